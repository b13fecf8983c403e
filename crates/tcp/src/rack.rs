//! RACK-TLP (RFC 8985): losses found by time, and tails probed before the retransmission timer must.

use wire::SeqNum;

use crate::ack::{Round, seen};
use crate::recovery::Phase;
use crate::sent::{Run, Sent, mark};
use crate::timers::Pending;
use crate::{Context, Tcb};

/// RFC 8985 7.2: what is added for a delayed ACK is Linux's smallest timer otherwise, µs.
pub(crate) const SMALLEST_TIMER: u32 = 2_000;
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
    pub advanced: bool,
    pub dsack_seen: bool,
    /// `RACK.reo_wnd_mult`.
    steps: u8,
    /// `RACK.reo_wnd_persist`.
    pub persist: u8,
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

    /// RFC 8985 6.2 step 2, where `last` of what was delivered was sent last and only once.
    #[inline]
    pub fn delivered_in_order(&mut self, last: &Run, now: u32) {
        self.advanced = true;
        self.rtt = now.wrapping_sub(last.last_at);
        if !self.valid || sent_after(last.last_at, last.last_end, self.at, self.end) {
            self.valid = true;
            self.at = last.last_at;
            self.end = last.last_end;
        }
    }
}

impl Tcb {
    /// RFC 8985 6.2 step 2: the latest delivered transmission.
    pub(crate) fn rack_advance(&mut self, s: &Sent, now: u32) {
        let rtt = now.wrapping_sub(s.at);
        // Quicker than the path: the original, not the retransmission, was delivered.
        if s.is(mark::AGAIN) && rtt < self.rtt.min {
            return;
        }
        let rack = &mut self.recovery.rack;
        rack.advanced = true;
        rack.rtt = rtt;
        if !rack.valid || sent_after(s.at, s.end(), rack.at, rack.end) {
            rack.valid = true;
            rack.at = s.at;
            rack.end = s.end();
        }
    }

    /// RFC 8985 6.2 step 4: how long a hole may be reordering.
    fn reorder_window(&self) -> u32 {
        if self.recovery.reordering_seen == 0 {
            if self.recovery.phase >= Phase::Recovery {
                return 0;
            }
            if self.board.sacked_out >= self.recovery.reordering as u32 {
                return 0;
            }
        }
        let min = if self.rtt.min == u32::MAX { 0 } else { self.rtt.min };
        let steps = self.recovery.rack.steps.max(1) as u32;
        (min / 4).saturating_mul(steps).min(self.rtt.srtt)
    }

    /// RFC 8985 6.2 step 4: D-SACKs say that the window is too small; once a round trip.
    pub(crate) fn update_reorder_window(&mut self) {
        let delivered = self.recovery.delivered;
        let una_delivered = delivered.wrapping_sub(self.board.packets_out);
        let rack = &mut self.recovery.rack;
        if (una_delivered.wrapping_sub(rack.widened_at) as i32) < 0 {
            rack.dsack_seen = false;
        }
        if rack.dsack_seen {
            rack.dsack_seen = false;
            rack.steps = rack.steps.max(1).saturating_add(1);
            rack.widened_at = delivered;
            rack.persist = PERSIST;
        } else if rack.persist == 0 {
            rack.steps = 1;
        }
    }

    /// Undone by D-SACK: the widened window persists.
    pub(crate) fn keep_reorder_window(&mut self) {
        let rack = &mut self.recovery.rack;
        rack.persist = rack.persist.saturating_add(1).min(PERSIST);
    }

    /// RFC 8985 6.2 step 5: marks what must be lost by now; when the next one would be, µs from now.
    pub(crate) fn rack_detect(&mut self, cx: &mut Context) -> Option<u32> {
        let now = cx.now.micros() as u32;
        let window = self.reorder_window();
        let (at, end, rtt, valid) = {
            let r = &self.recovery.rack;
            (r.at, r.end, r.rtt, r.valid)
        };
        let mut wait = None;
        let mut next = self.board.records.oldest();
        while let Some(i) = next {
            let s = self.board.records.get(cx.sent, i);
            if !valid || !sent_after(at, end, s.at, s.end()) {
                break;
            }
            next = self.board.records.newer(cx.sent, i);
            let left = (rtt.wrapping_add(window)).wrapping_sub(now.wrapping_sub(s.at)) as i32;
            if left <= 0 {
                self.mark_lost(i, cx);
            } else {
                wait = wait.max(Some(left as u32));
            }
        }
        wait
    }

    /// How long, µs, until a segment sent at `at` would count as lost; 0 or less: now.
    pub(crate) fn rack_timeout(&self, at: u32, now: u32) -> i32 {
        self.recovery.rack.rtt.wrapping_sub(now.wrapping_sub(at)) as i32
    }

    /// Looks for losses after an acknowledgment.
    pub(crate) fn rack_mark_lost(&mut self, cx: &mut Context) -> bool {
        if !core::mem::take(&mut self.recovery.rack.advanced) {
            return false;
        }
        let Some(wait) = self.rack_detect(cx) else { return false };
        // RFC 8985 6.3: the reordering timer.
        self.set_timer(Pending::Reorder, wait + SMALLEST_TIMER, cx);
        true
    }

    /// RFC 8985 6.3: the reordering timer expired.
    pub(crate) fn on_reorder_timer(&mut self, cx: &mut Context) {
        let before = self.in_flight();
        let lost = self.recovery.lost;
        let wait = self.rack_detect(cx);
        if let Some(wait) = wait {
            self.set_timer(Pending::Reorder, wait + SMALLEST_TIMER, cx);
        }
        if self.in_flight() != before && self.recovery.phase != Phase::Recovery {
            self.enter_recovery(false, cx);
            let lost = self.recovery.lost.wrapping_sub(lost);
            self.reduce_window(1, lost, 0);
        }
        if self.timers.pending == Pending::None && self.board.packets_out > 0 {
            self.arm_rto(cx);
        }
    }

    /// RFC 8985 7.2: schedules a tail loss probe; `false` when none applies. `fresh` when the RTO starts anew as well.
    pub(crate) fn schedule_probe(&mut self, fresh: bool, cx: &mut Context) -> bool {
        if !cx.config.tail_loss_probe
            || self.board.packets_out == 0
            || !self.sack_on()
            || !self.established()
            || !matches!(self.recovery.phase, Phase::Open | Phase::Cwr)
        {
            return false;
        }
        let mut wait = match self.rtt.srtt {
            0 => cx.config.initial_rto.as_micros() as u32,
            srtt if self.board.packets_out == 1 => {
                srtt.saturating_mul(2).saturating_add(cx.config.min_rto.as_micros() as u32)
            }
            srtt => srtt.saturating_mul(2).saturating_add(SMALLEST_TIMER),
        };
        let rto = match fresh {
            true => Some(self.rtt.rto(cx.config)),
            false => self.rto_left(cx),
        };
        if let Some(rto) = rto {
            wait = wait.min(rto);
        }
        self.set_timer(Pending::Probe, wait, cx);
        true
    }

    /// RFC 8985 7.3: the probe timer expired. New data when there is some and it fits, else the last segment again.
    pub(crate) fn on_probe_timer(&mut self, cx: &mut Context) {
        // At most one probe is under way.
        if self.recovery.probe_high.is_none() {
            self.recovery.probe_due = true;
        }
        self.rearm_rto(cx);
    }

    /// RFC 8985 7.4: what the acknowledgment says of the probe.
    pub(crate) fn process_probe_ack(&mut self, ack: SeqNum, r: &Round, cx: &mut Context) {
        let Some(high) = self.recovery.probe_high else { return };
        if ack.before(high) {
            return;
        }
        if !self.recovery.probe_again || r.seen & seen::DSACK_TLP != 0 {
            self.recovery.probe_high = None;
        } else if ack.after(high) {
            // The probe repaired a loss, which must slow us down (RFC 8985 7.4.2).
            cx.counters.probe_recoveries += 1;
            self.begin_reduction();
            self.recovery.phase = Phase::Cwr;
            self.end_reduction();
            self.keep_open(cx);
        } else if r.seen & (seen::UNA_ADVANCED | seen::NOT_DUP | seen::SACKED) == 0 {
            // A bare duplicate: both the original and the probe arrived.
            self.recovery.probe_high = None;
        }
    }
}

/// RFC 8985 6.2's `RACK_sent_after`.
fn sent_after(at1: u32, end1: SeqNum, at2: u32, end2: SeqNum) -> bool {
    let d = at1.wrapping_sub(at2) as i32;
    d > 0 || (d == 0 && end1.after(end2))
}
