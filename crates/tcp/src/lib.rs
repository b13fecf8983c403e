//! One TCP connection, sans-I/O: RFC 9293 and what came after.
//!
//! A [`Tcb`] is fed segments, timers and the application's wishes, and is asked for the next segment to send. Time, the
//! chunk pool, the pool of sent-segment records and the counters come in through a [`Context`]; nothing here reads a
//! clock or allocates for a segment in order.
#![forbid(unsafe_code)]

mod ack;
mod acking;
mod config;
pub mod congestion;
mod context;
mod cookie;
mod ecn;
mod flag;
mod info;
mod input;
mod knobs;
mod limits;
mod memory;
mod notice;
mod open;
mod output;
mod parked;
mod path;
mod rack;
mod reassembly;
mod receiver;
mod recovery;
mod rtt;
mod sack;
mod scoreboard;
mod sender;
mod sent;
mod straight;
mod tcb;
mod timers;
mod urgent;
mod usage;
mod variables;
mod window;

pub use config::{Config, Ecn};
pub use context::{Context, Counters};
pub use cookie::{Offer, TS_BITS, stamp};
pub use info::{State, TcpInfo};
pub use limits::Limits;
pub use notice::{Error, Notice};
pub use open::Open;
pub use output::{Outgoing, Reply, reset_for, wants};
pub use parked::Parked;
pub use sent::SentPool;
pub use straight::Simple;
pub use tcb::Tcb;
