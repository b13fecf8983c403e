//! RACK (RFC 8985): losses found by time.
//!
//! Invariants: the reordering window is at least one step wide, and a widened one persists for at most [`PERSIST`] recoveries.

use wire::SeqNum;

use crate::loss::scoreboard::{Lost, Scoreboard};
use crate::loss::sent::{Run, Sent, SentPool, mark};
use crate::rtt::Rtt;

/// RFC 8985 6.2 step 4: recoveries for which a widened reordering window persists.
const PERSIST: u8 = 16;

/// RFC 8985 5.2's variables of a connection. Times are µs, low bits.
#[derive(Clone, Debug)]
pub(crate) struct Rack {
    /// When the segment delivered last, in the order of transmission, was sent: `RACK.xmit_ts`.
    at: u32,
    /// `RACK.end_seq`.
    end: SeqNum,
    /// `RACK.rtt`.
    rtt: u32,
    /// `at` has moved since losses were looked for.
    advanced: bool,
    dsack_seen: bool,
    /// `RACK.reo_wnd_mult`.
    steps: u8,
    /// `RACK.reo_wnd_persist`.
    persist: u8,
    /// `delivered` when the window was widened last.
    widened_at: u32,
    valid: bool,
}

impl Rack {
    pub const fn new() -> Rack {
        Rack {
            at: 0,
            end: SeqNum(0),
            rtt: 0,
            advanced: false,
            dsack_seen: false,
            steps: 1,
            persist: 0,
            widened_at: 0,
            valid: false,
        }
    }

    /// After a pause, and `delivered` segments, with what was kept; a round trip takes `rtt` µs.
    pub fn resumed((steps, persist): (u8, u8), rtt: u32, delivered: u32) -> Rack {
        Rack { steps, persist, rtt, widened_at: delivered, ..Rack::new() }
    }

    /// `RACK.reo_wnd_mult` and `RACK.reo_wnd_persist`.
    pub fn keep(&self) -> (u8, u8) {
        (self.steps, self.persist)
    }

    /// RFC 8985 6.2 step 2, where `last` of what was delivered was sent last and only once.
    #[inline(always)]
    pub fn delivered_in_order(&mut self, last: &Run, now: u32) {
        self.advance(last.last_at, last.last_end, now.wrapping_sub(last.last_at));
    }

    /// RFC 8985 6.2 step 2: `s` was delivered; `min_rtt` is the path's.
    #[inline]
    pub fn delivered(&mut self, s: &Sent, now: u32, min_rtt: u32) {
        let rtt = now.wrapping_sub(s.at);
        // Quicker than the path: the original, not the retransmission, was delivered.
        if !(s.is(mark::AGAIN) && rtt < min_rtt) {
            self.advance(s.at, s.end(), rtt);
        }
    }

    #[inline(always)]
    fn advance(&mut self, at: u32, end: SeqNum, rtt: u32) {
        self.advanced = true;
        self.rtt = rtt;
        if !self.valid || sent_after(at, end, self.at, self.end) {
            self.valid = true;
            self.at = at;
            self.end = end;
        }
    }

    /// The peer had something twice: the reordering window may be too small.
    pub fn note_duplicate(&mut self) {
        self.dsack_seen = true;
    }

    /// Whether that is still to be acted on.
    #[inline(always)]
    pub fn duplicate_noted(&self) -> bool {
        self.dsack_seen
    }

    /// RFC 8985 6.2 step 4: D-SACKs say that the window is too small; once a round trip. Segments delivered in all, and out.
    pub fn update_window(&mut self, delivered: u32, packets_out: u32) {
        let una_delivered = delivered.wrapping_sub(packets_out);
        if (una_delivered.wrapping_sub(self.widened_at) as i32) < 0 {
            self.dsack_seen = false;
        }
        if self.dsack_seen {
            self.dsack_seen = false;
            self.steps = self.steps.max(1).saturating_add(1);
            self.widened_at = delivered;
            self.persist = PERSIST;
        } else if self.persist == 0 {
            self.steps = 1;
        }
    }

    /// Undone by D-SACK: the widened window persists.
    pub fn keep_window(&mut self) {
        self.persist = self.persist.saturating_add(1).min(PERSIST);
    }

    /// A recovery is over.
    pub fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
    }

    /// Losses are to be looked for anew.
    pub fn look_again(&mut self) {
        self.advanced = true;
    }

    /// Whether losses are to be looked for, for which this is the time then.
    pub fn take_advanced(&mut self) -> bool {
        core::mem::take(&mut self.advanced)
    }

    /// RFC 8985 6.2 step 4: how long a hole may be reordering, µs; where what was seen so far speaks for loss (`impatient`), not at
    /// all.
    fn window(&self, impatient: bool, rtt: &Rtt) -> u32 {
        if impatient {
            return 0;
        }
        let steps = self.steps.max(1) as u32;
        (rtt.least() / 4).saturating_mul(steps).min(rtt.srtt())
    }

    /// RFC 8985 6.2 step 5: marks what must be lost by now; when the next one would be, µs from now.
    pub fn detect(
        &self,
        board: &mut Scoreboard,
        pool: &mut SentPool,
        now: u32,
        impatient: bool,
        rtt: &Rtt,
    ) -> (Lost, Option<u32>) {
        let limit = self.rtt.wrapping_add(self.window(impatient, rtt));
        let mut wait = None;
        let lost = board.mark_lost_by_time(pool, |s| {
            if !self.valid || !sent_after(self.at, self.end, s.at, s.end()) {
                return None;
            }
            let left = limit.wrapping_sub(now.wrapping_sub(s.at)) as i32;
            if left > 0 {
                wait = wait.max(Some(left as u32));
            }
            Some(left <= 0)
        });
        (lost, wait)
    }

    /// RFC 8985 6.3: whether what was sent at `at` is too young to be lost when the retransmission timer expires.
    pub fn is_young(&self, at: u32, now: u32) -> bool {
        self.rtt.wrapping_sub(now.wrapping_sub(at)) as i32 > 0
    }

    /// Asserts what the module's head says.
    pub fn check(&self) {
        assert!(self.steps > 0 && self.persist <= PERSIST, "reordering window: {self:?}");
    }
}

/// RFC 8985 6.2's `RACK_sent_after`.
fn sent_after(at1: u32, end1: SeqNum, at2: u32, end2: SeqNum) -> bool {
    let d = at1.wrapping_sub(at2) as i32;
    d > 0 || (d == 0 && end1.after(end2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_window_persists_for_a_while() {
        let mut rack = Rack::new();
        rack.note_duplicate();
        rack.update_window(10, 0);
        assert_eq!((rack.steps, rack.persist), (2, PERSIST));
        for _ in 0..300 {
            rack.keep_window();
            rack.check();
        }
        for _ in 0..PERSIST {
            rack.update_window(20, 0);
            assert_eq!(rack.steps, 2);
            rack.recovered();
        }
        rack.update_window(20, 0);
        assert_eq!(rack.steps, 1);
        rack.check();
    }
}
