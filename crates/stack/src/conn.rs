//! A connection as the stack keeps it: the TCB and where it stands among the stack's lists.

use tcp::Tcb;

use crate::flows::FlowKey;
use crate::route::InterfaceId;

/// Where a connection is between the wire and the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Passive, handshake not done: the listener's half-open queue.
    Embryo,
    /// Passive, established, the application not yet told.
    Ready,
    /// The application knows it.
    Owned,
    /// The application has closed it.
    Released,
    /// As `Released`, and the application waits for [`Event::Closed`](crate::channel::Event::Closed).
    Lingering,
}

pub(crate) struct Conn {
    pub tcb: Tcb,
    pub key: FlowKey,
    pub hash: u32,
    /// Index of the neighbour that frames go to; `NO_NEIGHBOR` while none was asked for.
    pub neighbor: u32,
    /// `Neighbors::epoch` when `neighbor` was looked up.
    pub epoch: u32,
    /// The listener it came by, while `Embryo` or `Ready`.
    pub listener: u32,
    pub interface: InterfaceId,
    /// IP_TOS or IPV6_TCLASS, without the ECN bits.
    pub traffic_class: u8,
    /// IP_TTL or IPV6_UNICAST_HOPS; 0 is the default, which for IPv6 a router may suggest.
    pub hop_limit: u8,
    pub stage: Stage,
    /// Counted among the stack's orphans.
    pub orphan: bool,
    /// In the flow table (TIME-WAIT hands the place to its record).
    pub linked: bool,
}

/// Bits of a connection id's place in queues; they outlive the connection, so a stale entry is recognised.
pub(crate) mod queued {
    pub const CONTROL: u8 = 1;
    pub const ACK: u8 = 2;
    pub const DATA: u8 = 4;
    pub const NOTIFY: u8 = 8;
    pub const NEIGHBOR: u8 = 16;
}
