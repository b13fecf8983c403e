//! The monotonic clock: read once a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use wire::Instant;

/// The time of a lane's turns.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// CLOCK_MONOTONIC in microseconds.
    #[default]
    Monotonic,
    /// What is told, µs, on the memory wire and in the inline model: so that timers go by the run rather than by the machine.
    Told(Arc<AtomicU64>),
}

impl Clock {
    /// Now.
    pub fn now(&self) -> Instant {
        match self {
            Clock::Monotonic => {
                let t = clock_gettime(ClockId::Monotonic);
                Instant::from_micros(t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000)
            }
            Clock::Told(us) => Instant::from_micros(us.load(Ordering::Relaxed)),
        }
    }
}
