//! Waiting for many sockets at once.

use std::time::{Duration, Instant};

use socket::{Errno, Ready, SockId};

use crate::app::App;

impl App {
    /// epoll_wait(2): what is ready, at most as many as `out` has room for; how many. 0 where `limit` is over first, or where `stop` says so.
    pub fn epoll_wait(
        &mut self,
        epoll: SockId,
        out: &mut [Ready],
        limit: Option<Duration>,
        stop: impl Fn() -> bool,
    ) -> Result<usize, Errno> {
        // What was asked for since the last wait goes out, and what came in is seen, before anything else: but for what was
        // ready when it was added, whose answer can go out with it.
        if !self.sockets.epoll_is_fresh(epoll) {
            self.unsent = None;
            self.advance();
        }
        let mut end = None;
        let mut signal = false;
        loop {
            let n = self.sockets.epoll_collect(epoll, out)?;
            if n > 0 || stop() {
                return Ok(n);
            }
            // Who does not wait is not interrupted.
            let waits = limit != Some(Duration::ZERO);
            if waits && self.interrupted() | signal {
                return Err(Errno::EINTR);
            }
            if self.is_ended() {
                return Err(Errno::ENETDOWN);
            }
            let left = match limit {
                None => None,
                Some(Duration::ZERO) => return Ok(0),
                Some(limit) => {
                    let end = *end.get_or_insert_with(|| Instant::now() + limit);
                    match end.saturating_duration_since(Instant::now()) {
                        Duration::ZERO => return Ok(0),
                        left => Some(left),
                    }
                }
            };
            signal = self.look(left, &stop);
        }
    }
}
