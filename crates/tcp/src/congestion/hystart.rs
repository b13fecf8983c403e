//! HyStart++ (RFC 9406): slow start ends when the round trip grows, before the queue overflows.

use wire::SeqNum;

/// RFC 9406 4.3, µs.
const MIN_RTT_THRESH: u32 = 4_000;
const MAX_RTT_THRESH: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// RFC 9406 4.2's variables.
#[derive(Clone, Debug)]
pub struct HyStart {
    /// `windowEnd`.
    end: Option<SeqNum>,
    /// `lastRoundMinRTT`, `currentRoundMinRTT`, µs; `u32::MAX` is infinity.
    last: u32,
    current: u32,
    /// `cssBaselineMinRtt`, while in conservative slow start.
    baseline: Option<u32>,
    samples: u8,
    rounds: u8,
    /// Conservative slow start's fraction of growth, segments.
    part: u8,
    done: bool,
}

impl Default for HyStart {
    fn default() -> HyStart {
        HyStart {
            end: None,
            last: u32::MAX,
            current: u32::MAX,
            baseline: None,
            samples: 0,
            rounds: 0,
            part: 0,
            done: false,
        }
    }
}

impl HyStart {
    /// Slow start is over.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// A round trip of `rtt` µs was measured; `una` is acknowledged, `nxt` is `snd.nxt`. Whether slow start must end.
    pub fn on_rtt(&mut self, rtt: u32, una: SeqNum, nxt: SeqNum) -> bool {
        if self.done {
            return false;
        }
        // RFC 9406 4.2: a round ends when what was outstanding at its start is acknowledged.
        let ended = match self.end {
            Some(end) => !una.before(end),
            None => true,
        };
        let mut stop = false;
        if ended {
            if self.end.is_some() && self.baseline.is_some() {
                self.rounds += 1;
                stop = self.rounds >= CSS_ROUNDS;
            }
            self.end = Some(nxt);
            self.last = self.current;
            self.current = u32::MAX;
            self.samples = 0;
        }
        self.current = self.current.min(rtt);
        self.samples = self.samples.saturating_add(1);
        if self.samples >= N_RTT_SAMPLE && self.current != u32::MAX && self.last != u32::MAX {
            match self.baseline {
                None => {
                    let thresh = (self.last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                    if self.current >= self.last.saturating_add(thresh) {
                        self.baseline = Some(self.current);
                        self.rounds = 0;
                    }
                }
                // The exit was spurious: the round trip is back below.
                Some(baseline) if self.current < baseline => self.baseline = None,
                Some(_) => {}
            }
        }
        self.done = stop;
        stop
    }

    /// What slow start may add for `acked` segments.
    pub fn growth(&mut self, acked: u32) -> u32 {
        // RFC 9406 4.3 advises 8 segments an acknowledgment at most where sending is not paced; with receivers that coalesce
        // (GRO) that would hold slow start back, so there is no such limit here, as in Linux.
        if self.baseline.is_none() || self.done {
            return acked;
        }
        let due = acked + self.part as u32;
        self.part = (due % CSS_GROWTH_DIVISOR) as u8;
        due / CSS_GROWTH_DIVISOR
    }

    /// A loss or a mark: slow start is over for good (RFC 9406 4.3: only the initial one uses this).
    pub fn stop(&mut self) {
        self.done = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One round of `n` samples; whether slow start ended.
    fn round(h: &mut HyStart, una: u32, rtt: u32, n: u32) -> bool {
        (0..n).any(|i| h.on_rtt(rtt, SeqNum(una + i), SeqNum(una + 1000)))
    }

    #[test]
    fn growth_slows_when_the_round_trip_grows_and_ends_after_five_rounds() {
        let mut h = HyStart::default();
        assert!(!round(&mut h, 0, 40_000, 10));
        assert!(!round(&mut h, 1000, 40_000, 10));
        assert_eq!((h.growth(4), h.growth(20)), (4, 20));
        // An eighth of 40 ms is 5 ms: 44.9 is not enough, 45 is.
        assert!(!round(&mut h, 2000, 44_999, 10));
        assert_eq!(h.growth(4), 4);
        assert!(!round(&mut h, 3000, 51_000, 7));
        assert_eq!(h.growth(4), 4);
        assert!(!h.on_rtt(51_000, SeqNum(3007), SeqNum(4000)));
        assert_eq!((h.growth(3), h.growth(1), h.growth(8)), (0, 1, 2));
        for k in 4..8 {
            assert!(!round(&mut h, k * 1000, 52_000, 10));
        }
        assert!(round(&mut h, 8000, 52_000, 1));
        assert_eq!(h.growth(4), 4);
    }

    #[test]
    fn a_spurious_exit_is_taken_back() {
        let mut h = HyStart::default();
        round(&mut h, 0, 40_000, 8);
        round(&mut h, 1000, 50_000, 8);
        assert_eq!(h.growth(4), 1);
        round(&mut h, 2000, 49_000, 8);
        assert_eq!(h.growth(4), 4);
    }

    #[test]
    fn the_thresholds_are_bounded() {
        for (base, under, over) in [(1_000, 4_999, 5_000), (400_000, 415_999, 416_000)] {
            let mut h = HyStart::default();
            round(&mut h, 0, base, 8);
            round(&mut h, 1000, under, 8);
            assert_eq!(h.growth(4), 4);
            let mut h = HyStart::default();
            round(&mut h, 0, base, 8);
            round(&mut h, 1000, over, 8);
            assert_eq!(h.growth(4), 1);
        }
    }

    #[test]
    fn only_the_first_slow_start() {
        let mut h = HyStart::default();
        round(&mut h, 0, 40_000, 8);
        h.stop();
        round(&mut h, 1000, 80_000, 8);
        assert_eq!(h.growth(4), 4);
    }
}
