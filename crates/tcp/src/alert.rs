//! What is done about trouble, as Linux's `tcp_fastretrans_alert` joins RFC 6582, 6675, 8985, 5682 and 3522: the phases of
//! [`Recovery`](crate::loss::recovery::Recovery) are moved here, by what acknowledgments and timers say.
//!
//! Every way of finding losses ends in [`Scoreboard::mark_lost`](crate::loss::scoreboard::Scoreboard::mark_lost); what is marked is
//! sent again by `output` as the window allows.

use crate::loss::recovery::Phase;
use crate::loss::round::{Round, seen};
use crate::loss::scoreboard::Lost;
use crate::loss::sent::mark;
use crate::timers::{Pending, SMALLEST_TIMER};
use crate::{Context, Tcb, flag};

impl Tcb {
    /// Something about the acknowledgment is not as in an undisturbed transfer; where SACK is off, it stands for `dups` duplicates.
    pub(crate) fn alert(&mut self, r: &mut Round, dups: u32, cx: &mut Context) {
        let ece = r.has(seen::ECE);
        let advanced = r.has(seen::UNA_ADVANCED);
        if self.board.packets_out() == 0 {
            self.board.reset_duplicates();
        }
        if ece {
            self.recovery.remember_ssthresh(0);
        }
        if r.has(seen::RENEGED) && advanced {
            // RFC 2018 8: the peer dropped what it had SACKed; the timer clears the board after a little patience.
            let patience = (self.rtt.srtt() / 2).max(10_000);
            self.set_timer(Pending::Rto, patience, cx);
            r.seen &= !seen::SET_TIMER;
            return;
        }
        match self.recovery.phase() {
            Phase::Open => self.recovery.forget_retransmissions(),
            _ if self.snd.una().before(self.recovery.high_seq()) => {}
            Phase::Cwr => {
                // Something above `high_seq` must be acknowledged, or one ECE would reduce twice.
                if self.snd.una() != self.recovery.high_seq() {
                    self.end_reduction();
                    self.recovery.set_phase(Phase::Open);
                }
            }
            Phase::Recovery => {
                self.reset_reno_sacks();
                if self.undo_recovery(cx) {
                    return;
                }
                self.end_reduction();
            }
            Phase::Disorder | Phase::Loss => {}
        }
        match self.recovery.phase() {
            Phase::Recovery => {
                if !advanced {
                    if !self.sack_on() {
                        self.add_reno_sack(dups);
                    }
                } else if self.undo_partial(r, cx) {
                    return;
                }
                if self.undo_by_dsack(cx) {
                    self.keep_open(cx);
                }
                self.find_losses(r, cx);
                if self.recovery.phase() != Phase::Recovery {
                    if self.board.lost_out() == 0 {
                        return;
                    }
                    self.enter_recovery(ece, cx);
                }
            }
            Phase::Loss => {
                self.process_loss(r, dups, cx);
                self.find_losses(r, cx);
                if !(self.recovery.phase() == Phase::Open || r.has(seen::LOST_AGAIN)) {
                    return;
                }
                // Undone, or retransmissions were lost: as in Open.
                self.alert_open(r, dups, ece, cx);
            }
            Phase::Open | Phase::Disorder | Phase::Cwr => self.alert_open(r, dups, ece, cx),
        }
    }

    fn alert_open(&mut self, r: &mut Round, dups: u32, ece: bool, cx: &mut Context) {
        if !self.sack_on() {
            if r.has(seen::UNA_ADVANCED) {
                self.reset_reno_sacks();
            }
            self.add_reno_sack(dups);
        }
        if self.recovery.phase() <= Phase::Disorder {
            self.undo_by_dsack(cx);
        }
        self.find_losses(r, cx);
        if self.board.lost_out() == 0 {
            self.try_to_open(ece, cx);
        } else {
            self.enter_recovery(ece, cx);
        }
    }

    // -- Losses.

    /// Segments were judged lost.
    pub(crate) fn note_lost(&mut self, lost: Lost, cx: &mut Context) {
        self.recovery.note_lost(lost);
        cx.counters.lost_retransmits += lost.again;
    }

    /// Everything that is not SACKed.
    pub(crate) fn mark_all_lost(&mut self, cx: &mut Context) {
        let lost = self.board.mark_lost_where(cx.sent, |_| true);
        self.note_lost(lost, cx);
    }

    fn find_losses(&mut self, r: &mut Round, cx: &mut Context) {
        if self.board.is_empty() {
            return;
        }
        if !self.sack_on() {
            self.newreno_mark_lost(r.has(seen::UNA_ADVANCED), cx);
            return;
        }
        let before = self.board.retrans_out();
        if self.rack_mark_lost(cx) {
            r.seen &= !seen::SET_TIMER;
        }
        if before > self.board.retrans_out() {
            r.seen |= seen::LOST_AGAIN;
        }
    }

    /// RFC 6582 3.2 steps 2 and 3: the first segment, at the third duplicate and at each partial acknowledgment.
    fn newreno_mark_lost(&mut self, advanced: bool, cx: &mut Context) {
        let due = self.recovery.first_is_lost(self.board.sacked_out(), advanced);
        if !due {
            return;
        }
        let Some(i) = self.board.head(cx.sent) else { return };
        let s = self.board.get(cx.sent, i);
        if s.is(mark::LOST) {
            return;
        }
        let smss = self.options.smss() as u32;
        let keep = smss + s.is(mark::SYN) as u32;
        if s.segs > 1 && s.len > keep {
            self.board.split(cx.sent, i, keep, smss);
        }
        let lost = self.board.mark_lost(cx.sent, i);
        self.note_lost(lost, cx);
    }

    /// Looks for losses after an acknowledgment; whether the reordering timer runs then.
    fn rack_mark_lost(&mut self, cx: &mut Context) -> bool {
        self.recovery.rack.take_advanced() && self.rack_detect(cx)
    }

    /// RFC 8985 6.2 step 5; whether the reordering timer runs then (6.3).
    fn rack_detect(&mut self, cx: &mut Context) -> bool {
        let now = cx.now.micros() as u32;
        let impatient = self.recovery.holes_are_losses(self.board.sacked_out());
        let (lost, wait) = self.recovery.rack.detect(&mut self.board, cx.sent, now, impatient, &self.rtt);
        self.note_lost(lost, cx);
        if let Some(wait) = wait {
            self.set_timer(Pending::Reorder, wait + SMALLEST_TIMER, cx);
        }
        wait.is_some()
    }

    /// RFC 8985 6.3: the reordering timer expired.
    pub(crate) fn on_reorder_timer(&mut self, cx: &mut Context) {
        let before = self.board.in_flight();
        let lost = self.recovery.lost();
        self.rack_detect(cx);
        if self.board.in_flight() != before && self.recovery.phase() != Phase::Recovery {
            self.enter_recovery(false, cx);
            let lost = self.recovery.lost().wrapping_sub(lost);
            self.reduce_window(1, lost, 0);
        }
        if self.timers.pending() == Pending::None && self.board.packets_out() > 0 {
            self.arm_rto(cx);
        }
    }

    // -- Without SACK (RFC 6582): each duplicate ACK stands for one segment delivered.

    fn add_reno_sack(&mut self, dups: u32) {
        let delivered = self.board.add_duplicates(dups);
        self.recovery.deliver(delivered);
    }

    fn reset_reno_sacks(&mut self) {
        if !self.sack_on() {
            self.board.reset_duplicates();
        }
    }

    // -- Phases.

    fn any_sent_again(&self, cx: &Context) -> bool {
        self.board.any_sent_again(cx.sent)
    }

    fn try_to_open(&mut self, ece: bool, cx: &mut Context) {
        if !self.any_sent_again(cx) {
            self.recovery.forget_retransmissions();
        }
        if ece {
            self.enter_cwr(cx);
        }
        if self.recovery.phase() != Phase::Cwr {
            self.keep_open(cx);
        }
    }

    /// Open where nothing is odd, else Disorder.
    pub(crate) fn keep_open(&mut self, cx: &mut Context) {
        let odd = self.board.sacked_out() + self.board.lost_out() > 0 || self.any_sent_again(cx);
        self.recovery.keep_open(odd, self.snd.nxt());
    }

    /// RFC 6937 3, RFC 5681 3.2, RFC 3168 6.1.2: the new threshold; the window follows as data is delivered.
    pub(crate) fn begin_reduction(&mut self) {
        self.recovery.begin_reduction(self.snd.nxt(), self.cc.cwnd());
        self.cc.begin_reduction();
        self.queue_cwr();
    }

    /// RFC 6937 3.1: how much may be sent for what `delivered` segments freed.
    pub(crate) fn reduce_window(&mut self, delivered: u32, lost: u32, seen: u32) {
        let progress = seen & seen::UNA_ADVANCED != 0 && lost == 0;
        let (in_flight, ssthresh) = (self.board.in_flight(), self.cc.ssthresh());
        if let Some(cwnd) = self.recovery.reduced_window(delivered, in_flight, ssthresh, progress) {
            self.cc.follow(cwnd);
        }
    }

    pub(crate) fn end_reduction(&mut self) {
        let reduced = self.recovery.phase() == Phase::Cwr || self.recovery.undo_marker().is_some();
        if reduced {
            self.cc.end_reduction();
        }
    }

    fn enter_cwr(&mut self, cx: &mut Context) {
        self.recovery.remember_ssthresh(0);
        if self.recovery.phase() < Phase::Cwr {
            self.recovery.forget_undo();
            self.begin_reduction();
            self.recovery.set_phase(Phase::Cwr);
            cx.counters.ecn_reductions += 1;
        }
    }

    /// Linux's `tcp_current_ssthresh`: what growth has shown the path to bear.
    fn borne(&self) -> u32 {
        match self.recovery.reducing() {
            true => self.cc.ssthresh(),
            false => self.cc.window().borne(),
        }
    }

    fn remember_for_undo(&mut self) {
        self.recovery.remember_for_undo(self.snd.una(), self.board.retrans_out());
    }

    fn enter_recovery(&mut self, ece: bool, cx: &mut Context) {
        cx.counters.recoveries += 1;
        self.recovery.remember_ssthresh(0);
        self.remember_for_undo();
        if !self.recovery.reducing() {
            if !ece {
                let ssthresh = self.borne();
                self.recovery.remember_ssthresh(ssthresh);
            }
            self.begin_reduction();
        }
        self.recovery.set_phase(Phase::Recovery);
    }

    /// The retransmission timer expired (RFC 6298 5.4–5.7, RFC 5681 3.1).
    pub(crate) fn enter_loss(&mut self, cx: &mut Context) {
        cx.counters.timeouts += 1;
        let reneged = self.board.reneged(cx.sent);
        if reneged {
            cx.counters.reneged += 1;
            self.board.forget_sacks(cx.sent, self.snd.una());
        } else {
            self.reset_reno_sacks();
        }
        let now = cx.now.micros() as u32;
        let (sack, una, rack) = (self.sack_on(), self.snd.una(), &self.recovery.rack);
        // RFC 8985 6.3: what was sent a moment ago is not lost yet, but for the first.
        let lost =
            self.board.mark_lost_where(cx.sent, |s| reneged || !sack || s.seq == una || !rack.is_young(s.at, now));
        self.note_lost(lost, cx);
        let (phase, again) = (self.recovery.phase(), self.timers.retries() > 0);
        if phase <= Phase::Disorder || !self.recovery.high_seq().after(una) || (phase == Phase::Loss && !again) {
            let ssthresh = self.borne();
            self.recovery.remember_window(self.cc.cwnd(), ssthresh);
            self.cc.on_timeout();
            self.remember_for_undo();
        }
        self.cc.collapse(self.board.in_flight());
        self.recovery.enter_loss(self.snd.nxt(), again, self.board.sacked_out() >= 3, cx.config.frto);
        self.queue_cwr();
    }

    /// RFC 5682 2.1 and 3.1.
    fn process_loss(&mut self, r: &Round, dups: u32, cx: &mut Context) {
        let high_seq = self.recovery.high_seq();
        let recovered = !self.snd.una().before(high_seq);
        let advanced = r.has(seen::UNA_ADVANCED);
        if advanced && self.undo_loss(false, cx) {
            return;
        }
        if self.recovery.frto() {
            // Step 3.b: never-retransmitted data was delivered, so not all was lost.
            if r.has(seen::ORIGINAL) && self.undo_loss(true, cx) {
                return;
            }
            if self.snd.nxt().after(high_seq) {
                if r.has(seen::SACKED) || dups > 0 {
                    self.recovery.end_frto();
                }
            } else if advanced && !recovered {
                // Step 2.b: new data, if there is any and the window takes it.
                let room = self.snd.room() > 0;
                let more = self.unsent() > 0 && room;
                self.recovery.extend_frto(self.snd.nxt(), more);
                if more {
                    return;
                }
            }
        }
        if recovered {
            // Step 2.a.
            self.undo_recovery(cx);
            return;
        }
        if !self.sack_on() {
            if self.snd.nxt().after(self.recovery.high_seq()) && dups > 0 {
                self.add_reno_sack(dups);
            } else if advanced {
                self.reset_reno_sacks();
            }
        }
    }

    // -- Undo.

    fn undo_reduction(&mut self, unmark: bool, cx: &mut Context) {
        cx.counters.undone += 1;
        if unmark {
            self.board.unmark_lost(cx.sent);
        }
        if let Some((cwnd, ssthresh)) = self.recovery.take_undo() {
            self.cc.undo(cwnd, ssthresh);
            self.withdraw_cwr();
        }
    }

    /// Without SACK the phase is kept until something above `high_seq` is acknowledged, or old duplicates would start
    /// another recovery (RFC 6582 3.2 step 2).
    fn must_stay(&self) -> bool {
        self.snd.una() == self.recovery.high_seq() && !self.sack_on()
    }

    fn undo_recovery(&mut self, cx: &mut Context) -> bool {
        if self.recovery.was_spurious(self.receiver.echo()) {
            self.undo_reduction(false, cx);
        }
        if self.must_stay() {
            if !self.any_sent_again(cx) {
                self.recovery.forget_retransmissions();
            }
            return true;
        }
        if self.recovery.phase() == Phase::Recovery {
            self.recovery.rack.recovered();
        }
        self.recovery.enter(Phase::Open, self.snd.nxt());
        false
    }

    fn undo_by_dsack(&mut self, cx: &mut Context) -> bool {
        if !self.recovery.all_superfluous() {
            return false;
        }
        self.recovery.rack.keep_window();
        self.undo_reduction(false, cx);
        true
    }

    fn undo_loss(&mut self, by_frto: bool, cx: &mut Context) -> bool {
        if !by_frto && !self.recovery.was_spurious(self.receiver.echo()) {
            return false;
        }
        self.undo_reduction(true, cx);
        cx.counters.spurious_timeouts += 1;
        self.recovery.end_frto();
        self.timers.forget_retries();
        if self.must_stay() {
            return true;
        }
        if by_frto || self.sack_on() {
            self.recovery.set_phase(Phase::Open);
        }
        true
    }

    /// A partial acknowledgment for data that was only late: no more is marked.
    fn undo_partial(&mut self, r: &Round, cx: &mut Context) -> bool {
        let late = self.recovery.undo_marker().is_some() && self.recovery.delayed_not_lost(self.receiver.echo());
        if !late {
            return false;
        }
        self.note_reordering(r.prior_una);
        if self.board.retrans_out() > 0 {
            return true;
        }
        if !self.any_sent_again(cx) {
            self.recovery.forget_retransmissions();
        }
        self.undo_reduction(true, cx);
        self.keep_open(cx);
        false
    }

    /// Data from `low` on came after what was SACKed.
    pub(crate) fn note_reordering(&mut self, low: wire::SeqNum) {
        self.recovery.note_reordering(low, self.board.fack(self.snd.una()), self.options.smss());
    }

    /// SACK on this connection.
    pub(crate) fn sack_on(&self) -> bool {
        self.has(flag::SACK)
    }
}
