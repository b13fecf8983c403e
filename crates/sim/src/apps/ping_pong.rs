//! A request, a response, a pause, and again.

use core::time::Duration;

use protocol::CloseMode;
use wire::Instant;

use super::{App, Stream};
use crate::host::Host;

/// Asks.
pub struct Ping {
    /// How often.
    pub rounds: u64,
    /// Bytes of a request.
    pub request: u64,
    /// Bytes of a response.
    pub response: u64,
    /// From a response to the next request.
    pub think: Duration,
    done: u64,
    asked: u64,
    next: Instant,
}

impl Ping {
    /// `rounds` requests of some bytes for responses of some bytes, with `think` time between.
    pub fn new(rounds: u64, request: u64, response: u64, think: Duration) -> Ping {
        Ping { rounds, request, response, think, done: 0, asked: 0, next: Instant::ZERO }
    }
}

impl App for Ping {
    fn poll(&mut self, now: Instant, s: &mut Stream, host: &mut Host) -> Instant {
        s.read(host, u64::MAX);
        if !s.connected {
            return Instant::FAR;
        }
        assert!(s.received <= self.asked * self.response, "an answer that nobody asked for");
        if self.done < self.asked && s.received == self.asked * self.response {
            self.done = self.asked;
            self.next = now + self.think;
        }
        if self.done == self.rounds {
            s.shutdown(host);
            if s.fin {
                s.close(host, CloseMode::Graceful);
            }
            return Instant::FAR;
        }
        if self.asked == self.done {
            if now < self.next {
                return self.next;
            }
            self.asked += 1;
        }
        s.write_to(host, self.asked * self.request, 1 << 14, false);
        Instant::FAR
    }
}

/// Answers.
pub struct Pong {
    /// Bytes of a request.
    pub request: u64,
    /// Bytes of a response.
    pub response: u64,
    /// Finishes by itself after so many, before the other end does.
    pub first: Option<u64>,
}

impl App for Pong {
    fn poll(&mut self, _now: Instant, s: &mut Stream, host: &mut Host) -> Instant {
        s.read(host, u64::MAX);
        let asked = s.received / self.request;
        if !s.shut && s.write_to(host, asked * self.response, 1 << 14, false) && (s.fin || self.first == Some(asked)) {
            s.shutdown(host);
        }
        if s.shut && s.fin {
            s.close(host, CloseMode::Graceful);
        }
        Instant::FAR
    }
}
