//! Sends and reads like others, and one day walks away.

use core::time::Duration;

use protocol::CloseMode;
use wire::Instant;

use super::{App, Stream};
use crate::host::Host;

/// See the module.
pub struct Abort {
    /// Bytes it would send.
    pub total: u64,
    /// How long it stays.
    pub after: Duration,
    /// What it does then; `None` is RST.
    pub mode: Option<CloseMode>,
    until: Option<Instant>,
}

impl Abort {
    /// Sends up to `total` bytes and leaves `after` its first turn.
    pub fn new(total: u64, after: Duration, mode: Option<CloseMode>) -> Abort {
        Abort { total, after, mode, until: None }
    }
}

impl App for Abort {
    fn poll(&mut self, now: Instant, s: &mut Stream, host: &mut Host) -> Instant {
        let until = *self.until.get_or_insert(now + self.after);
        if now >= until {
            match self.mode {
                Some(mode) => s.close(host, mode),
                None => s.abort(host),
            }
            return Instant::FAR;
        }
        s.read(host, u64::MAX);
        s.write_to(host, self.total, 4000, false);
        until
    }
}
