//! What the application is told of its connection.

/// Why a connection ended badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Error {
    /// RST in answer to our SYN.
    Refused,
    /// RST.
    Reset,
    /// Retransmissions, probes or the user timeout ran out.
    TimedOut,
    /// The application aborted.
    Aborted,
    /// An ICMP error said so while the connection was being opened.
    Unreachable,
}

/// What the application should be told, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notice(pub u8);

impl Notice {
    /// The handshake is done.
    pub const CONNECTED: Notice = Notice(1);
    /// Bytes are ready.
    pub const DATA: Notice = Notice(2);
    /// The peer's FIN came in order.
    pub const FIN: Notice = Notice(4);
    /// Send-queue room is worth a report.
    pub const ACKED: Notice = Notice(8);
    /// The connection failed.
    pub const FAILED: Notice = Notice(16);
    /// The send buffer has grown.
    pub const ROOM: Notice = Notice(128);

    /// Whether any bit of `other` is set.
    pub fn has(self, other: Notice) -> bool {
        self.0 & other.0 != 0
    }
}
