//! One core's network stack, sans-I/O: flows, listeners, timers, neighbours, ICMP.
//!
//! A [`Stack`] is one lane's: it takes bursts of frames, timer expiries and jobs, and gives bursts of frames and events.
//! The runtime calls it in the order of mTCP's main loop (NSDI'14 3.2): receive, expire, jobs, transmit, events.
#![forbid(unsafe_code)]

mod ahead;
mod alarms;
mod arp;
mod autoconf;
pub mod channel;
mod check;
mod config;
mod conn;
mod conns;
mod cookies;
mod counters;
mod ending;
mod engine;
mod events;
mod fallback;
mod flows;
mod fragments;
mod framing;
mod handshake;
mod icmp;
mod icmp_tcp;
mod input;
mod intake;
mod interface;
mod jobs;
mod keyed;
mod learning;
mod listener;
mod ndp;
mod neighbor;
mod options;
mod output;
mod path;
mod ports;
mod queues;
mod replies;
mod route;
mod settle;
mod slab;
mod sources;
mod spread;
mod steering;
mod syn_cache;
mod time_wait;
mod train;
mod wheel;

pub use autoconf::Conflict;
pub use config::{StackConfig, SynCookies};
pub use counters::{Counters, DropReason};
pub use ending::Left;
pub use engine::Stack;
pub use fallback::{Tuple, tuple_of};
pub use flows::FlowKey;
pub use fragments::FragmentLimits;
pub use input::{Asked, Sought, Strangers};
pub use interface::{InterfaceConfig, Mode};
pub use route::{InterfaceId, Route};
pub use steering::{SYMMETRIC_KEY, Steering, Toeplitz, is_for_all};
