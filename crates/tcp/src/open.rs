//! How a connection is opened.

use wire::SeqNum;

use crate::Config;
use crate::window::{self, scale_for};

/// How a connection is opened.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Initial send sequence number (RFC 6528, drawn by the stack).
    pub iss: SeqNum,
    /// Random offset of our timestamp clock.
    pub ts_offset: u32,
    /// Largest segment that we can receive, which our SYN offers: the interface's MTU less IP and TCP headers.
    pub mss: u16,
    /// Largest segment that the path to the peer is known to take: a bound of what is sent, not of what is offered.
    pub path_mss: u16,
    /// SO_RCVBUF, bytes; 0: the configuration's, and it may grow by itself.
    pub receive_buffer: u32,
    /// Bytes of IP and TCP header that `mss` left room for, for `pmtu` in snapshots.
    pub headers: u16,
}

impl Open {
    /// Bytes of the receive buffer at first.
    pub(crate) fn buffer(&self, config: &Config) -> u32 {
        if self.receive_buffer > 0 { self.receive_buffer } else { config.receive_buffer }
    }

    /// Bytes that our SYN or SYN/ACK offers.
    pub fn first_window(&self, config: &Config) -> u32 {
        window::initial(self.buffer(config), self.mss)
    }

    /// Our window scale: for all that the buffer may grow to (RFC 7323 2.2).
    pub fn scale(&self, config: &Config) -> u8 {
        let buffer = self.buffer(config);
        scale_for(if self.receive_buffer > 0 { buffer } else { config.receive_buffer_max.max(buffer) }, config)
    }
}
