//! One end says everything and finishes; the other hears all of it before it says a word.

use protocol::CloseMode;
use wire::Instant;

use super::{App, Stream};
use crate::host::Host;

/// Speaks first.
pub struct Ask {
    /// Bytes to send.
    pub total: u64,
}

impl App for Ask {
    fn poll(&mut self, _now: Instant, s: &mut Stream, host: &mut Host) -> Instant {
        s.read(host, u64::MAX);
        if s.connected && s.write_to(host, self.total, 5000, false) {
            s.shutdown(host);
        }
        assert!(s.received == 0 || s.shut, "an answer before the question's end");
        if s.fin {
            s.close(host, CloseMode::Graceful);
        }
        Instant::FAR
    }
}

/// Speaks after the other end has finished.
pub struct Answer {
    /// Bytes to send.
    pub total: u64,
}

impl App for Answer {
    fn poll(&mut self, _now: Instant, s: &mut Stream, host: &mut Host) -> Instant {
        s.read(host, u64::MAX);
        if s.fin && s.write_to(host, self.total, 3000, false) {
            s.close(host, CloseMode::Graceful);
        }
        Instant::FAR
    }
}
