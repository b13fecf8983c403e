//! Keeping up with what comes in.
//!
//! What is on the way to a lane's connections waits in the ring of the device when the lane is slower than the device. Where the
//! ring runs over, who loses what is chance, and timeouts rather than windows share the link. So the fuller the ring, the less
//! each peer may have on the way: windows are bounded alike for all connections, by half as much each time that the ring is
//! found nearly full, and by a little more each half second in which it was never much filled. Windows that were announced are kept.

use core::time::Duration;

use wire::Instant;

use crate::engine::Stack;

/// In 256 parts of the ring: as full as this is too full.
const HIGH: u32 = 192;
/// What the ring may come to when the bound is raised.
const LOW: u32 = 96;
/// Least segments of a window: two, so that the second is acknowledged at once (RFC 9293 3.8.6.3).
const LEAST: u32 = 2;
/// How often the bound is raised.
const STEP: Duration = Duration::from_millis(500);

/// How a lane keeps up.
#[derive(Clone, Debug)]
pub(crate) struct Intake {
    /// Segments by which a window may be ahead of what was received; `u32::MAX`: as many as its buffer takes.
    bound: u32,
    /// The fullest that the ring was since the bound was raised last, in 256 parts.
    peak: u32,
    raise_at: Instant,
    /// Frames that come before a cut shows: those under way were allowed before.
    blind: u32,
    /// More frames wait than were taken.
    pub behind: bool,
}

impl Default for Intake {
    fn default() -> Intake {
        Intake { bound: u32::MAX, peak: 0, raise_at: Instant::ZERO, blind: 0, behind: false }
    }
}

impl Intake {
    /// A burst of `taken` frames is from a ring of `slots` where `waiting` were; whether the bound is lower now.
    #[inline]
    fn note(&mut self, now: Instant, taken: u32, waiting: u32, slots: u32) -> bool {
        self.behind = waiting > taken;
        if slots == 0 {
            return false;
        }
        let fill = (waiting as u64 * 256 / slots as u64) as u32;
        self.peak = self.peak.max(fill);
        self.blind = self.blind.saturating_sub(taken);
        if fill >= HIGH && self.blind == 0 {
            self.cut(now, slots);
            return true;
        }
        if self.bound != u32::MAX && now >= self.raise_at {
            self.raise(now, slots);
        }
        false
    }

    #[cold]
    fn cut(&mut self, now: Instant, slots: u32) {
        self.bound = (self.bound.min(slots) / 2).max(LEAST);
        self.blind = 2 * slots;
        self.peak = 0;
        self.raise_at = now + STEP;
    }

    #[cold]
    fn raise(&mut self, now: Instant, slots: u32) {
        let more = self.bound + (self.bound / 8).max(1);
        // Twice the windows fill the ring twice as much, at worst.
        if self.peak as u64 * more as u64 <= LOW as u64 * self.bound as u64 {
            self.bound = if more > slots { u32::MAX } else { more };
        }
        self.peak = 0;
        self.raise_at = now + STEP;
    }
}

impl Stack {
    /// Tells that the burst of `taken` frames that comes next is from a ring of `slots` frames where `waiting` were, it included. Where
    /// `slots` is 0 nobody knows, or what is too much waits elsewhere.
    #[inline]
    pub fn note_backlog(&mut self, now: Instant, taken: usize, (waiting, slots): (u32, u32)) {
        self.counters.window_cuts += self.intake.note(now, taken as u32, waiting, slots) as u64;
        self.limits.window = self.intake.bound;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 1024;

    /// Takes bursts of 64 from a ring that stays as full as told, 1 ms each.
    fn take(intake: &mut Intake, from_ms: u64, bursts: u64, waiting: u32) -> Vec<u32> {
        let at = |ms| Instant::from_micros((from_ms + ms) * 1000);
        let note = |ms| {
            intake.note(at(ms), 64, waiting, SLOTS);
            intake.bound
        };
        (0..bursts).map(note).collect()
    }

    #[test]
    fn a_ring_that_has_room_bounds_nothing() {
        let mut i = Intake::default();
        assert!(take(&mut i, 0, 10_000, SLOTS * 5 / 8).iter().all(|b| *b == u32::MAX));
        assert!(i.behind);
        take(&mut i, 10_000, 1, 64);
        assert!(!i.behind);
        // Nor does one of which nothing is known.
        i.note(Instant::from_micros(1), 64, 1 << 20, 0);
        assert_eq!(i.bound, u32::MAX);
    }

    #[test]
    fn a_full_ring_halves_the_bound_once_for_all_that_was_under_way() {
        let mut i = Intake::default();
        let bounds = take(&mut i, 0, 320, SLOTS);
        // Two rings of 16 bursts each go by before the next.
        assert_eq!(bounds.iter().step_by(32).copied().collect::<Vec<_>>(), [512, 256, 128, 64, 32, 16, 8, 4, 2, 2]);
        assert!(bounds.chunks(32).all(|c| c.iter().all(|b| *b == c[0])));
    }

    #[test]
    fn the_bound_rises_while_the_ring_stays_far_from_full() {
        let mut i = Intake::default();
        take(&mut i, 0, 320, SLOTS);
        // Half full: no more than that.
        assert!(take(&mut i, 1000, 5000, SLOTS / 2).iter().all(|b| *b == 2));
        let rising = take(&mut i, 6000, 60_000, SLOTS / 8);
        assert!(rising.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!((rising[499], rising[999], rising[1999]), (2, 3, 5));
        assert_eq!(rising.last(), Some(&u32::MAX));
    }
}
