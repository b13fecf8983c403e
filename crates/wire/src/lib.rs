//! Wire formats: Ethernet, ARP, IPv4/6, ICMP, TCP; sequence numbers; checksums.
//!
//! Views borrow the frame and are checked when they are made: a value that exists is well-formed, and nothing here reads
//! past its bytes or panics on them.
#![forbid(unsafe_code)]

mod addr;
pub mod arp;
pub mod burst;
pub mod checksum;
pub mod cut;
pub mod ethernet;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
mod mac;
mod ports;
pub mod quick;
pub mod quoted;
mod seq;
pub mod tcp;
mod time;
pub mod udp;

pub use addr::Addr;
pub use mac::MacAddr;
pub use ports::Ports;
pub use seq::SeqNum;
pub use time::Instant;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its fixed header.
    Truncated,
    /// A header length below the minimum or past the end.
    BadHeaderLength,
    /// A total or payload length past the end, or below the header.
    BadTotalLength,
    /// Another IP version.
    BadVersion,
    /// The checksum is wrong.
    BadChecksum,
    /// An option or extension header that may not be (source routes, mapped addresses, too many).
    BadOption,
    /// A field has a value that the protocol does not know.
    BadField,
    /// IPv6 headers that RFC 8200 wants answered by a parameter problem.
    Parameter {
        /// Of the ICMPv6 message (RFC 4443 3.4).
        code: u8,
        /// The byte at fault, from the packet's start.
        pointer: u16,
    },
}

pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub(crate) fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}
