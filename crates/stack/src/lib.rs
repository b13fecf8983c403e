//! One core's network stack, sans-I/O: flows, listeners, timers, neighbours, ICMP.
//!
//! A [`Stack`] is one lane's: it takes bursts of frames, timer expiries and jobs, and gives bursts of frames and events.
//! The runtime calls it in the order of mTCP's main loop (NSDI'14 3.2): receive, expire, jobs, transmit, events.
#![forbid(unsafe_code)]

mod clients;
mod config;
mod conns;
mod counters;
mod demux;
mod engine;
mod keyed;
mod link;
mod names;
mod schedule;
mod slab;
mod spread;
mod steering;

pub use clients::{Bounds, Ill};
pub use config::{FragmentLimits, StackConfig, SynCookies};
pub use counters::{Counters, DropReason};
pub use demux::opened::{OpenTuples, PortSource};
pub use engine::{Asked, Left, OtherLanes, Sought, Stack, Tuple, tuple_of};
pub use link::autoconf::Conflict;
pub use link::interface::{InterfaceConfig, Mode};
pub use link::route::Route;
pub use names::{ClientId, FlowKey, InterfaceId, SeatId};
pub use steering::{SYMMETRIC_KEY, Steering, Toeplitz, is_for_all};
