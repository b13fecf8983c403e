//! The pressure of what comes in.
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
const LOW: u32 = 160;
/// Bytes of a frame from which on it is one of bulk, as a mean: smaller windows do not make others come more slowly.
const BULK: u64 = 512;
/// Least segments of a window: two, so that the second is acknowledged at once (RFC 9293 3.8.6.3).
const LEAST: u32 = 2;
/// How often the bound is raised.
const STEP: Duration = Duration::from_millis(500);

/// How full the ring is that frames come from, and what follows for windows.
#[derive(Clone, Debug)]
pub(crate) struct Pressure {
    /// Segments by which a window may be ahead of what was received; `u32::MAX`: as many as its buffer takes.
    bound: u32,
    /// The fullest that the ring was since the bound was raised last, in 256 parts.
    peak: u32,
    raise_at: Instant,
    /// Frames that come before a cut shows: those under way were allowed before.
    blind: u32,
    /// Frames and bytes that had come when the ring was judged last.
    judged: (u64, u64),
    /// More frames wait than were taken.
    pub behind: bool,
}

impl Default for Pressure {
    fn default() -> Pressure {
        Pressure { bound: u32::MAX, peak: 0, raise_at: Instant::ZERO, blind: 0, judged: (0, 0), behind: false }
    }
}

impl Pressure {
    /// A burst of `taken` frames is from a ring of `slots` where `waiting` are behind it; `came` are all frames and bytes so
    /// far. Whether the bound is lower now.
    #[inline]
    fn note(&mut self, now: Instant, taken: u32, (waiting, slots): (u32, u32), came: (u64, u64)) -> bool {
        self.behind = waiting > 0;
        if slots == 0 {
            return false;
        }
        let fill = ((waiting + taken) as u64 * 256 / slots as u64) as u32;
        self.peak = self.peak.max(fill);
        self.blind = self.blind.saturating_sub(taken);
        if fill >= HIGH && self.blind == 0 {
            return self.judge(now, slots, came);
        }
        if self.bound != u32::MAX && now >= self.raise_at {
            self.raise(now, slots);
        }
        false
    }

    /// The ring is too full; whether windows are why.
    #[cold]
    fn judge(&mut self, now: Instant, slots: u32, came: (u64, u64)) -> bool {
        let (frames, bytes) = (came.0 - self.judged.0, came.1 - self.judged.1);
        self.judged = came;
        self.blind = 2 * slots;
        self.raise_at = now + STEP;
        let cut = bytes >= BULK * frames && self.bound > LEAST;
        if cut {
            self.bound = (self.bound.min(slots) / 2).max(LEAST);
        }
        self.peak = 0;
        cut
    }

    #[cold]
    fn raise(&mut self, now: Instant, slots: u32) {
        // Since then nothing came, or this would have been asked before: a step for each half second of that, too.
        let quiet = now.micros_since(self.raise_at) / STEP.as_micros() as u64;
        for step in 0..=quiet.min(128) {
            let more = self.bound + (self.bound / 8).max(1);
            // Twice the windows fill the ring twice as much, at worst.
            if step == 0 && self.peak as u64 * more as u64 > LOW as u64 * self.bound as u64 {
                continue;
            }
            if more > slots {
                self.bound = u32::MAX;
                break;
            }
            self.bound = more;
        }
        self.peak = 0;
        self.raise_at = now + STEP;
    }
}

impl Stack {
    /// Tells that the burst of `taken` frames that comes next is from a ring of so many slots where so many wait behind it:
    /// `(waiting, slots)`. Where `slots` is 0 nobody knows, or what is too much waits elsewhere.
    #[inline]
    pub fn note_backlog(&mut self, now: Instant, taken: usize, backlog: (u32, u32)) {
        let came = (self.counters.frames_in, self.counters.bytes_in);
        self.counters.window_cuts += self.pressure.note(now, taken as u32, backlog, came) as u64;
        self.limits.window = self.pressure.bound;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 1024;

    /// A lane whose ring stays as full as told, with a burst of 64 frames each millisecond.
    #[derive(Default)]
    struct Lane {
        pressure: Pressure,
        ms: u64,
        came: (u64, u64),
    }

    impl Lane {
        /// The bound after each burst.
        fn take(&mut self, bursts: u64, waiting: u32, frame: u64) -> Vec<u32> {
            let mut note = |_| {
                self.ms += 1;
                let now = Instant::from_micros(self.ms * 1000);
                self.came = (self.came.0 + 64, self.came.1 + 64 * frame);
                self.pressure.note(now, 64, (waiting - 64, SLOTS), self.came);
                self.pressure.bound
            };
            (0..bursts).map(&mut note).collect()
        }
    }

    #[test]
    fn a_ring_that_has_room_bounds_nothing() {
        let mut lane = Lane::default();
        assert!(lane.take(10_000, SLOTS * 5 / 8, 1500).iter().all(|b| *b == u32::MAX));
        assert!(lane.pressure.behind);
        lane.take(1, 64, 1500);
        assert!(!lane.pressure.behind);
        // Nor does one of which nothing is known.
        lane.pressure.note(Instant::from_micros(1), 64, (1 << 20, 0), (0, 0));
        assert_eq!(lane.pressure.bound, u32::MAX);
    }

    #[test]
    fn a_full_ring_halves_the_bound_once_for_all_that_was_under_way() {
        let mut lane = Lane::default();
        let bounds = lane.take(320, SLOTS, 1500);
        // Two rings of 16 bursts each go by before the next.
        assert_eq!(bounds.iter().step_by(32).copied().collect::<Vec<_>>(), [512, 256, 128, 64, 32, 16, 8, 4, 2, 2]);
        assert!(bounds.chunks(32).all(|c| c.iter().all(|b| *b == c[0])));
    }

    #[test]
    fn short_frames_that_fill_the_ring_are_nobodys_windows() {
        let mut lane = Lane::default();
        assert!(lane.take(10_000, SLOTS, 60).iter().all(|b| *b == u32::MAX));
        // Among bulk that was bounded before, they keep nobody down.
        lane.take(320, SLOTS, 1500);
        assert_eq!(lane.pressure.bound, 2);
        lane.take(10_000, SLOTS, 60);
        assert!(lane.take(40_000, SLOTS / 8, 60).last() > Some(&1000));
    }

    #[test]
    fn the_bound_rises_while_the_ring_stays_far_from_full() {
        let mut lane = Lane::default();
        lane.take(320, SLOTS, 1500);
        // Half full: three segments would make it three quarters.
        assert!(lane.take(5000, SLOTS / 2, 1500).iter().all(|b| *b == 2));
        let rising = lane.take(60_000, SLOTS / 8, 1500);
        assert!(rising.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!((rising[399], rising[999], rising[1999]), (2, 3, 5));
        assert_eq!(rising.last(), Some(&u32::MAX));
    }

    #[test]
    fn the_bound_rises_while_nothing_comes() {
        let mut lane = Lane::default();
        lane.take(320, SLOTS, 1500);
        lane.ms += 2600;
        assert_eq!(lane.take(1, 64, 1500), [6]);
        lane.ms += 3_600_000;
        assert_eq!(lane.take(1, 64, 1500), [u32::MAX]);
    }
}
