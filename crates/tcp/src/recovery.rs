//! Loss detection and recovery: NewReno (RFC 5681 3.2, RFC 6582) with limited transmit (RFC 3042), and what a
//! retransmission timeout marks. Every way of finding losses ends in [`Tcb::mark_lost`]; what is marked is sent again by
//! `output` as the window allows.

use wire::SeqNum;

use crate::sent::{Sent, mark};
use crate::tcb::{Context, Tcb};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// Fast recovery.
    Recovery,
    /// After a timeout.
    Loss,
}

#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub phase: Phase,
    /// RFC 6582 3.2: `snd.nxt` when the last loss was found.
    pub recover: SeqNum,
}

impl Recovery {
    pub fn new(iss: SeqNum) -> Recovery {
        Recovery { phase: Phase::Open, recover: iss }
    }

    pub fn ca_state(&self) -> u64 {
        match self.phase {
            Phase::Open => 0,
            Phase::Recovery => 3,
            Phase::Loss => 4,
        }
    }
}

impl Tcb {
    /// Marks records for retransmission.
    pub(crate) fn mark_lost(&mut self, cx: &mut Context, mut pick: impl FnMut(&Sent) -> bool) {
        let mut lost = 0;
        self.sent.each(cx.sent, |s| {
            if !s.is(mark::LOST) && pick(s) {
                s.marks |= mark::LOST;
                lost += s.len;
            }
            true
        });
        self.lost += lost;
    }

    fn mark_first(&mut self, cx: &mut Context) {
        if let Some(s) = self.sent.front(cx.sent)
            && !s.is(mark::LOST)
        {
            s.marks |= mark::LOST;
            self.lost += s.len;
        }
    }

    /// Bytes believed to be in the network (RFC 6675's `pipe` without SACK).
    pub(crate) fn flight(&self) -> u32 {
        self.snd_nxt.since(self.snd_una).saturating_sub(self.lost)
    }

    /// What may be in flight now.
    pub(crate) fn send_window(&self) -> u32 {
        let cwnd = self.control.get().cwnd();
        // RFC 3042: the first two duplicate ACKs each let one new segment out.
        let limited = match (self.recovery.phase, self.dup_acks) {
            (Phase::Open, n @ 1..=2) => n as u32 * self.smss as u32,
            _ => 0,
        };
        cwnd.saturating_add(limited)
    }

    /// A duplicate ACK (RFC 5681 2).
    pub(crate) fn on_dup_ack(&mut self, cx: &mut Context) {
        cx.counters.dup_acks += 1;
        self.dup_acks = self.dup_acks.saturating_add(1);
        let smss = self.smss as u32;
        match self.recovery.phase {
            Phase::Open if self.dup_acks == 3 => {
                // RFC 6582 3.2 step 2: not for losses that the last recovery or timeout already covers.
                if !(self.snd_una - 1).after(self.recovery.recover) {
                    return;
                }
                self.recovery.recover = self.snd_nxt;
                self.recovery.phase = Phase::Recovery;
                let flight = self.snd_nxt.since(self.snd_una);
                let control = self.control.get_mut();
                control.on_loss(flight, smss);
                let inflated = control.ssthresh().saturating_add(3 * smss);
                control.set_cwnd(inflated);
                self.mark_first(cx);
            }
            Phase::Recovery => {
                // RFC 5681 3.2 step 4: each further one says that a segment has left the network.
                let control = self.control.get_mut();
                let cwnd = control.cwnd().saturating_add(smss);
                control.set_cwnd(cwnd);
            }
            Phase::Open | Phase::Loss => {}
        }
    }

    /// `acked` bytes of new data were acknowledged; `flight` were outstanding before. Returns whether the window may grow.
    pub(crate) fn on_new_ack(&mut self, acked: u32, cx: &mut Context) -> bool {
        self.dup_acks = 0;
        let smss = self.smss as u32;
        match self.recovery.phase {
            Phase::Open => true,
            Phase::Recovery if self.snd_una.before(self.recovery.recover) => {
                // RFC 6582 3.2 step 3, partial acknowledgment: the next hole is lost too.
                self.mark_first(cx);
                let control = self.control.get_mut();
                let mut cwnd = control.cwnd().saturating_sub(acked);
                if acked >= smss {
                    cwnd += smss;
                }
                control.set_cwnd(cwnd.max(smss));
                false
            }
            Phase::Recovery => {
                // RFC 6582 3.2 step 3, full acknowledgment, option 1: no burst.
                self.recovery.phase = Phase::Open;
                let flight = self.snd_nxt.since(self.snd_una);
                let control = self.control.get_mut();
                let cwnd = control.ssthresh().min(flight.max(smss) + smss);
                control.set_cwnd(cwnd);
                false
            }
            Phase::Loss => {
                if !self.snd_una.before(self.recovery.recover) {
                    self.recovery.phase = Phase::Open;
                }
                true
            }
        }
    }

    /// The retransmission timer expired (RFC 6298 5.4–5.7): everything outstanding counts as lost.
    pub(crate) fn on_retransmission_timeout(&mut self, cx: &mut Context) {
        cx.counters.timeouts += 1;
        let smss = self.smss as u32;
        let first = self.recovery.phase != Phase::Loss || self.snd_una.after(self.recovery.recover);
        let flight = self.flight();
        self.control.get_mut().on_timeout(flight, smss, first && self.retries == 0);
        self.recovery.phase = Phase::Loss;
        self.recovery.recover = self.snd_nxt;
        self.dup_acks = 0;
        self.mark_lost(cx, |_| true);
    }
}
