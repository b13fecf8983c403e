//! Wire formats: Ethernet, ARP, IPv4/6, ICMP, TCP; sequence numbers; checksums.
#![forbid(unsafe_code)]

pub mod burst;
mod time;

pub use time::Instant;
