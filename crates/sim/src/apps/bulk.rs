//! Sends much, reads at once what comes, and closes when both directions have ended. With nothing to send it is a sink.

use protocol::CloseMode;
use wire::Instant;

use super::{App, Stream};
use crate::host::Host;

/// See the module.
pub struct Bulk {
    /// Bytes to send.
    pub total: u64,
    /// Bytes of one write.
    pub chunk: usize,
    /// Whether writes say that more follows.
    pub more: bool,
    /// Waits until the other end has everything (SO_LINGER).
    pub linger: bool,
}

impl App for Bulk {
    fn poll(&mut self, _now: Instant, s: &mut Stream, host: &mut Host) -> Instant {
        s.read(host, u64::MAX);
        if s.connected && s.write_to(host, self.total, self.chunk, self.more) {
            s.shutdown(host);
        }
        if s.shut && s.fin {
            s.close(host, if self.linger { CloseMode::Report } else { CloseMode::Graceful });
        }
        Instant::FAR
    }
}
