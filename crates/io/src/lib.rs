//! Packet I/O: AF_XDP, AF_PACKET, TAP, memory wire, pcap.
//!
//! A [`Port`] receives and sends bursts of Ethernet frames in its own memory. The stack sees only the traits of
//! [`wire::burst`]; the runtime owns the ports and decides when they sleep.

mod bell;
pub mod bpf;
mod capability;
mod error;

pub mod filters;
pub mod impair;
pub mod memwire;
pub mod netlink;
pub mod numa;
pub mod packet;
pub mod pcap;
pub mod perf;
mod port;
pub mod record;
pub mod rss;
mod sys;
pub mod tap;
mod vnet;
pub mod xdp;

pub use bell::Bell;
pub use capability::Capability;
pub use error::{Holder, PortError, word};
pub use port::{AnyPort, Port, PortCaps, PortCounters, Presence};
