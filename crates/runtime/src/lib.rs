//! Lanes: threads, wake-up, steering, shared counters.
//!
//! A [`Lane`] is one core's stack with its ports. An [`App`] is the application's end of it ([`client`]). The two run on one thread
//! (`inline`, the paper's zero-thread TCP; `guarded` with a second one that steps in when the first does not call), or as a
//! pair of threads pinned to one core (`paired`, NSDI'14 3.1); either way they speak through the same rings.

pub mod config;
mod cores;
mod devices;
mod door;
mod ending;
mod engine;
mod error;
mod exit;
mod fallback;
pub mod forks;
mod guard;
mod handover;
mod keeper;
mod kernel;
mod lane;
mod links;
mod mailbox;
#[cfg(all(test, loom))]
mod models;
mod ports;
mod provoke;
mod secret;
mod sort;
mod sync;
mod sys;
mod waits;

pub use client::{App, Claim, Clock, LaneStats, Snapshot, Waker};
pub use config::{Config, ConfigError, Device, Model, PortConfig};
pub use door::{Door, Lent};
pub use engine::{AppHandle, Engine};
pub use error::Error;
pub use exit::reset_all;
pub use io::memwire::MemPort;
pub use kernel::LocalConnections;
#[doc(hidden)]
pub use kernel::neighbors;
pub use lane::{Lane, Work};
#[doc(hidden)]
pub use provoke::provoke;
