//! What the parts call things by.

use wire::tcp::{Flags, Header, Options};
use wire::{Addr, SeqNum};

/// Number of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceId(pub u8);

impl InterfaceId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A connection's four-tuple, as seen from here, and the interface on which it is meant: two links may have the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Where the peer is: segments of other interfaces are not the connection's.
    pub interface: InterfaceId,
    /// Our address.
    pub local: Addr,
    /// The peer's address.
    pub remote: Addr,
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

impl FlowKey {
    /// The header of a segment without text that goes to the peer.
    pub(crate) fn header(&self, seq: SeqNum, ack: SeqNum, flags: Flags, window: u16, options: Options) -> Header {
        let (src_port, dst_port) = (self.local_port, self.remote_port);
        Header { src_port, dst_port, seq, ack, flags, window, urgent: 0, options }
    }
}

/// A seat of a stack: one thread's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeatId(pub u16);

/// A client of a stack; 0 is the one in the stack's own process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u16);
