//! Reads little at a time with pauses between, so that the window closes; sends nothing.

use core::time::Duration;

use protocol::CloseMode;
use wire::Instant;

use super::{App, Stream};
use crate::host::Host;

/// See the module.
pub struct SlowReader {
    /// Bytes read at a time.
    pub step: u64,
    /// Time between.
    pub pause: Duration,
    next: Instant,
}

impl SlowReader {
    /// Reads `step` bytes each `pause`.
    pub fn new(step: u64, pause: Duration) -> SlowReader {
        SlowReader { step, pause, next: Instant::ZERO }
    }
}

impl App for SlowReader {
    fn poll(&mut self, now: Instant, s: &mut Stream, host: &mut Host) -> Instant {
        if s.unread > 0 && now >= self.next {
            s.read(host, self.step);
            self.next = now + self.pause;
        }
        if s.unread > 0 {
            return self.next;
        }
        if s.fin {
            s.close(host, CloseMode::Graceful);
        }
        Instant::FAR
    }
}
