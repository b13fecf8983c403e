//! The monotonic clock: read once a turn.

use rustix::time::{ClockId, clock_gettime};
use wire::Instant;

/// CLOCK_MONOTONIC in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// Now.
    pub fn now(self) -> Instant {
        let t = clock_gettime(ClockId::Monotonic);
        Instant::from_micros(t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000)
    }

    /// CPU time of the calling thread, µs.
    pub fn thread_cpu_us(self) -> u64 {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
    }
}
