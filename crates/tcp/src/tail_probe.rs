//! Tail loss probes (RFC 8985 7): when one is due, what it sends, and what its answer does. Their state is
//! [`Probe`](crate::loss::probe::Probe)'s.

use wire::SeqNum;

use crate::loss::probe::Answer;
use crate::loss::recovery::Phase;
use crate::loss::round::{Round, seen};
use crate::timers::{Pending, SMALLEST_TIMER};
use crate::{Context, Outgoing, Tcb, flag};

impl Tcb {
    /// RFC 8985 7.2: schedules a tail loss probe; `false` when none applies. `fresh` when the RTO starts anew as well.
    pub(crate) fn schedule_probe(&mut self, fresh: bool, cx: &mut Context) -> bool {
        if !cx.config.tail_loss_probe
            || self.board.packets_out() == 0
            || !self.sack_on()
            || !self.established()
            || !matches!(self.recovery.phase(), Phase::Open | Phase::Cwr)
        {
            return false;
        }
        let mut wait = match self.rtt.srtt() {
            0 => cx.config.initial_rto.as_micros() as u32,
            srtt if self.board.packets_out() == 1 => {
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
        self.recovery.probe.ask();
        self.begin_rto(true, cx);
    }

    /// RFC 8985 7.3: new data if there is some and the peer takes it, whatever the window says; else the last segment.
    #[inline(always)]
    pub(crate) fn tail_probe(&mut self, cx: &mut Context) -> Option<Outgoing> {
        if !self.recovery.probe.take_due() || self.board.packets_out() == 0 {
            return None;
        }
        self.send_probe(cx)
    }

    #[cold]
    fn send_probe(&mut self, cx: &mut Context) -> Option<Outgoing> {
        let smss = self.segment_size() as u32;
        let room = self.window_room();
        let len = self.unsent_of_record().min(smss);
        let again = len == 0 || len > room || self.recovery.refused.is_some();
        let out = if again {
            let mut i = self.board.tail(cx.sent)?;
            let s = self.board.get(cx.sent, i);
            let front = s.bytes().saturating_sub(1) / smss * smss;
            if !(s.seq + front).before(self.snd.right()) {
                // The peer has taken its window back, and would refuse it (RFC 9293 3.8.6): the timeout comes first.
                return None;
            }
            if front > 0 {
                i = self.board.split(cx.sent, i, front, smss);
            }
            self.sent_again(i, cx);
            self.again(i, cx)
        } else {
            let fin = self.has(flag::SHUTDOWN) && !self.has(flag::FIN_SENT) && len == self.unsent() && len < room;
            let out = self.send(len, fin, cx);
            // No probe follows a probe.
            self.set(flag::SENT_NEW, false);
            out
        };
        cx.counters.loss_probes += 1;
        self.recovery.probe.sent(self.snd.nxt(), again);
        self.judge_disturbance();
        self.begin_rto(false, cx);
        Some(out)
    }

    /// RFC 8985 7.4: what the acknowledgment says of the probe.
    #[inline(always)]
    pub(crate) fn process_probe_ack(&mut self, ack: SeqNum, r: &Round, cx: &mut Context) {
        if !self.recovery.probe.is_out() {
            return;
        }
        let bare = !r.has(seen::UNA_ADVANCED | seen::NOT_DUP | seen::SACKED);
        if self.recovery.probe.answer(ack, bare, r.has(seen::DSACK_TLP)) == Answer::Repaired {
            self.probe_repaired(cx);
        }
    }

    /// The probe repaired a loss, which must slow us down (RFC 8985 7.4.2).
    pub(crate) fn probe_repaired(&mut self, cx: &mut Context) {
        cx.counters.probe_recoveries += 1;
        self.begin_reduction();
        self.recovery.set_phase(Phase::Cwr);
        self.end_reduction();
        self.keep_open(cx);
    }
}
