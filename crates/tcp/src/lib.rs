//! One TCP connection, sans-I/O: RFC 9293 and what came after.
//!
//! A [`Tcb`] is fed segments, timers and the application's wishes, and is asked for the next segment to send. Time, the
//! chunk pool, the pool of sent-segment records and the counters come in through a [`Context`]; nothing here reads a
//! clock or allocates for a segment in order.
#![forbid(unsafe_code)]

mod ack;
mod acking;
mod alert;
mod buffers;
mod burst;
mod cc;
mod check;
mod config;
pub mod congestion;
mod context;
mod cookie;
mod ecn;
mod flag;
mod header;
mod info;
mod input;
mod knobs;
mod limits;
mod loss;
mod memory;
mod notice;
mod open;
mod outgoing;
mod output;
mod parked;
mod path;
mod rcv;
mod rtt;
mod sack;
mod shrink;
mod snd;
mod sockopt;
mod state;
mod stats;
mod straight;
mod tail_probe;
mod tcb;
mod timers;
mod timing;
mod urgent;
mod variables;
mod window;

pub use config::{Config, Ecn};
pub use context::{Context, Counters};
pub use cookie::{Offer, TS_BITS, stamp};
pub use info::TcpInfo;
pub use limits::Limits;
pub use loss::sent::SentPool;
pub use notice::{Error, Notice};
pub use open::Open;
pub use outgoing::{Outgoing, Reply, reset_for, wants};
pub use parked::Parked;
pub use state::State;
pub use straight::Simple;
pub use tcb::Tcb;
