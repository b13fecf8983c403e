//! Work of a generator, and the numbers that it shares with its controller.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Work of one generator.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Connections at once (closed loop), or at most (open loop).
    pub concurrent: usize,
    /// Connections in all; none: until stopped.
    pub total: Option<u64>,
    /// Requests on each connection; 0: the server ends it, by RST or FIN.
    pub per_connection: u32,
    /// Connections stay open after their requests.
    pub hold: bool,
    /// Connections a second (open loop).
    pub rate: Option<f64>,
    /// Longest time for a connect.
    pub connect_timeout: Duration,
    /// Longest silence of a server that owes an answer, or its end: from the request, and from each piece of the answer.
    pub timeout: Duration,
}

impl Plan {
    /// Says if a connection that has `done` so many requests makes its last one now.
    pub fn is_last(&self, done: u32) -> bool {
        done + 1 == self.per_connection && !self.hold
    }
}

/// Phase of the run, and progress, shared by generators and their controller.
#[derive(Debug, Default)]
pub struct Shared {
    phase: AtomicU8,
    connections: AtomicU64,
    messages: AtomicU64,
    errors: AtomicU64,
    held: AtomicU64,
}

/// Numbers for a progress line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Connections completed.
    pub connections: u64,
    /// Responses received.
    pub messages: u64,
    /// Connections that failed.
    pub errors: u64,
    /// Connections kept open.
    pub held: u64,
}

impl Shared {
    /// Progress so far, all generators together.
    pub fn progress(&self) -> Progress {
        Progress {
            connections: self.connections.load(Ordering::Relaxed),
            messages: self.messages.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
        }
    }

    /// Adds what a generator did since it last told.
    pub fn publish(&self, now: Progress, before: Progress) {
        self.connections.fetch_add(now.connections - before.connections, Ordering::Relaxed);
        self.messages.fetch_add(now.messages - before.messages, Ordering::Relaxed);
        self.errors.fetch_add(now.errors - before.errors, Ordering::Relaxed);
        self.held.fetch_add(now.held.wrapping_sub(before.held), Ordering::Relaxed);
    }

    /// Starts the measurement: what was done before no longer counts.
    pub fn measure(&self) {
        self.phase.store(1, Ordering::Relaxed);
    }

    /// Ends the measurement; load goes on until the stop.
    pub fn end(&self) {
        self.phase.store(2, Ordering::Relaxed);
    }

    /// 0 before, 1 during, 2 after the measurement.
    pub fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }
}
