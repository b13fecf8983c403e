//! Points on the monotonic clock that the runtime reads once a turn; a test's virtual clock starts at zero.

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// Microseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The clock's start.
    pub const ZERO: Instant = Instant(0);
    /// Later than any other.
    pub const FAR: Instant = Instant(u64::MAX);

    /// `us` microseconds after the clock's start.
    pub const fn from_micros(us: u64) -> Instant {
        Instant(us)
    }
    /// Microseconds since the clock's start.
    pub const fn micros(self) -> u64 {
        self.0
    }
    /// Milliseconds since the clock's start, rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }
    /// Microseconds from `earlier` to `self`; zero where `earlier` is later.
    pub const fn micros_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
    /// `us` microseconds later.
    pub const fn plus_micros(self, us: u64) -> Instant {
        Instant(self.0.saturating_add(us))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(d.as_micros() as u64))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.micros_since(earlier))
    }
}
