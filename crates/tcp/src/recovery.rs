//! Loss recovery: when it begins and ends, what is marked lost, how fast it sends (PRR, RFC 6937), how a spurious one is
//! recognised and undone (F-RTO, RFC 5682; D-SACK, RFC 3708; timestamps, RFC 3522). The states are Linux's, which join
//! these RFCs into one machine: Open, Disorder (something is odd), Cwr (the network asked to slow down), Recovery, Loss.
//!
//! Every way of finding losses ends in [`Tcb::mark_lost`]; what is marked is sent again by `output` as the window allows.

use wire::SeqNum;

use crate::ack::{Round, seen};
use crate::congestion::CongestionControl;
use crate::rack::Rack;
use crate::sent::mark;
use crate::timers::Pending;
use crate::{Context, Tcb};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Open,
    Disorder,
    /// The window is being reduced because of ECN or a probe's loss.
    Cwr,
    /// Fast recovery.
    Recovery,
    /// After a timeout.
    Loss,
}

#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub phase: Phase,
    /// RFC 5682: a timeout may have been spurious.
    pub frto: bool,
    /// The timer expired: the first segment goes, whatever the counts say.
    pub head_due: bool,
    /// F-RTO step 2.b: new data goes before retransmissions.
    pub new_first: bool,
    /// How often reordering was seen.
    pub reordering_seen: u16,
    /// Segments by which the path reorders; also the duplicate-ACK threshold without SACK (RFC 5681: 3).
    pub reordering: u16,
    /// `snd.nxt` when the phase began (RFC 6582 `recover`, RFC 6675 `RecoveryPoint`).
    pub high_seq: SeqNum,
    /// End of the highest SACKed record.
    pub fack: SeqNum,
    /// Blocks that the last acknowledgment with any reported: what they cover needs no second look.
    pub reported: [(SeqNum, SeqNum); 3],
    /// `snd.una` when the window was reduced; `None` when there is nothing to undo.
    pub undo_marker: Option<SeqNum>,
    /// Retransmissions not yet shown to be superfluous; -1: none was made.
    pub undo_retrans: i32,
    /// To come back to; 0: not to be undone.
    pub prior_ssthresh: u32,
    /// RFC 6937 `RecoverFS` (Linux: the window when recovery began), `prr_delivered`, `prr_out`; segments.
    pub prior_cwnd: u32,
    pub prr_delivered: u32,
    pub prr_out: u32,
    /// Our timestamp clock when the first retransmission of this episode went, ms.
    pub retrans_stamp: Option<u32>,
    /// Segments delivered in all.
    pub delivered: u32,
    /// Segments found lost in all.
    pub lost: u32,
    pub dsack_dups: u32,
    /// `snd.nxt` when the tail loss probe under way was sent (`TLP.end_seq`).
    pub probe_high: Option<SeqNum>,
    /// It was a retransmission.
    pub probe_again: bool,
    /// It is to be sent.
    pub probe_due: bool,
    pub rack: Rack,
}

impl Recovery {
    pub fn new(iss: SeqNum) -> Recovery {
        Recovery {
            phase: Phase::Open,
            frto: false,
            head_due: false,
            new_first: false,
            reordering_seen: 0,
            reordering: 3,
            high_seq: iss,
            fack: iss,
            reported: [(iss, iss); 3],
            undo_marker: None,
            undo_retrans: -1,
            prior_ssthresh: 0,
            prior_cwnd: 0,
            prr_delivered: 0,
            prr_out: 0,
            retrans_stamp: None,
            delivered: 0,
            lost: 0,
            dsack_dups: 0,
            probe_high: None,
            probe_again: false,
            probe_due: false,
            rack: Rack::new(),
        }
    }

    /// A reduction of the window is under way.
    pub fn reducing(&self) -> bool {
        matches!(self.phase, Phase::Cwr | Phase::Recovery)
    }
}

impl Tcb {
    /// Segments believed to be in the network (RFC 6675's `pipe`).
    pub(crate) fn in_flight(&self) -> u32 {
        (self.board.packets_out + self.board.retrans_out).saturating_sub(self.board.sacked_out + self.board.lost_out)
    }

    /// Marks record `i` lost, again where its retransmission was lost too.
    pub(crate) fn mark_lost(&mut self, i: u32, cx: &mut Context) {
        let s = self.board.records.get_mut(cx.sent, i);
        if s.is(mark::SACKED) {
            return;
        }
        let segs = s.segs as u32;
        if s.is(mark::LOST) {
            if !s.is(mark::RETRANS) {
                return;
            }
            s.marks &= !mark::RETRANS;
            self.board.retrans_out = self.board.retrans_out.saturating_sub(segs);
            cx.counters.lost_retransmits += 1;
        } else {
            s.marks |= mark::LOST;
            if s.is(mark::RETRANS) {
                s.marks &= !mark::RETRANS;
                self.board.retrans_out = self.board.retrans_out.saturating_sub(segs);
            }
            self.board.lost_out += segs;
        }
        self.recovery.lost = self.recovery.lost.wrapping_add(segs);
        self.board.records.forget_time(cx.sent, i);
        self.board.records.wants_retransmit(cx.sent, i);
    }

    /// Every record not SACKed, and those that `pick` accepts.
    pub(crate) fn mark_all_lost(&mut self, cx: &mut Context, mut pick: impl FnMut(&crate::sent::Sent) -> bool) {
        let mut at = self.board.records.head();
        while let Some(i) = at {
            let s = self.board.records.get(cx.sent, i);
            at = self.board.records.next(cx.sent, i);
            if pick(&s) {
                self.mark_lost(i, cx);
            }
        }
    }

    /// Whether anything outstanding was sent again.
    fn any_sent_again(&self, cx: &mut Context) -> bool {
        self.board.retrans_out > 0 || self.board.records.front(cx.sent).is_some_and(|s| s.is(mark::AGAIN))
    }

    /// Linux's `tcp_current_ssthresh`: what growth has shown the path to bear.
    fn borne(&self) -> u32 {
        match self.recovery.reducing() {
            true => self.cc.window.ssthresh,
            false => self.cc.window.borne(),
        }
    }

    // -- Without SACK (RFC 6582): each duplicate ACK stands for one segment delivered.

    fn add_reno_sack(&mut self, dups: u32) {
        if dups == 0 {
            return;
        }
        let before = self.board.sacked_out;
        self.board.sacked_out += dups;
        self.limit_reno_sacks();
        let delivered = self.board.sacked_out.saturating_sub(before);
        self.recovery.delivered = self.recovery.delivered.wrapping_add(delivered);
    }

    /// No more than can have been delivered: what is left out less the hole.
    fn limit_reno_sacks(&mut self) {
        let holes = self.board.lost_out.max(1).min(self.board.packets_out);
        if self.board.sacked_out + holes > self.board.packets_out {
            self.board.sacked_out = self.board.packets_out - holes;
        }
    }

    /// Cumulatively acknowledged segments were the ones that the duplicates stood for, but the first filled the hole.
    pub(crate) fn remove_reno_sacks(&mut self, r: &Round) {
        let acked = r.acked_segs;
        if acked > 0 {
            let delivered = (acked as i64 - self.board.sacked_out as i64).max(1) as u32;
            self.recovery.delivered = self.recovery.delivered.wrapping_add(delivered);
            self.board.sacked_out = self.board.sacked_out.saturating_sub(acked - 1);
        }
        self.limit_reno_sacks();
    }

    fn reset_reno_sacks(&mut self) {
        if !self.sack_on() {
            self.board.sacked_out = 0;
        }
    }

    /// RFC 6582 3.2 steps 2 and 3: the first segment, at the third duplicate and at each partial acknowledgment.
    fn newreno_mark_lost(&mut self, advanced: bool, cx: &mut Context) {
        let phase = self.recovery.phase;
        let due = (phase < Phase::Recovery && self.board.sacked_out >= self.recovery.reordering as u32)
            || (phase == Phase::Recovery && advanced);
        let Some(i) = self.board.records.head().filter(|_| due) else { return };
        let s = self.board.records.get(cx.sent, i);
        if s.is(mark::LOST) {
            return;
        }
        let keep = self.options.smss as u32 + s.is(mark::SYN) as u32;
        if s.segs > 1 && s.len > keep {
            let j = self.board.records.split(cx.sent, i, keep, self.options.smss as u32);
            let after = self.board.records.get(cx.sent, i).segs as u32 + self.board.records.get(cx.sent, j).segs as u32;
            self.recount(s.segs as u32, after, s.marks);
        }
        self.mark_lost(i, cx);
    }

    // -- The machine.

    /// Something about the acknowledgment is not as in an undisturbed transfer (Linux's `tcp_fastretrans_alert`).
    pub(crate) fn alert(&mut self, r: &mut Round, dups: u32, cx: &mut Context) {
        let ece = r.seen & seen::ECE != 0;
        let advanced = r.seen & seen::UNA_ADVANCED != 0;
        if self.board.packets_out == 0 {
            self.board.sacked_out = 0;
        }
        if ece {
            self.recovery.prior_ssthresh = 0;
        }
        if r.seen & seen::RENEGED != 0 && advanced {
            // RFC 2018 8: the peer dropped what it had SACKed; the timer clears the board after a little patience.
            let patience = (self.rtt.srtt / 2).max(10_000);
            self.set_timer(Pending::Rto, patience, cx);
            r.seen &= !seen::SET_TIMER;
            return;
        }
        match self.recovery.phase {
            Phase::Open => self.recovery.retrans_stamp = None,
            _ if self.snd.una.before(self.recovery.high_seq) => {}
            Phase::Cwr => {
                // Something above `high_seq` must be acknowledged, or one ECE would reduce twice.
                if self.snd.una != self.recovery.high_seq {
                    self.end_reduction();
                    self.recovery.phase = Phase::Open;
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
        match self.recovery.phase {
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
                if self.recovery.phase != Phase::Recovery {
                    if self.board.lost_out == 0 {
                        return;
                    }
                    self.enter_recovery(ece, cx);
                }
            }
            Phase::Loss => {
                self.process_loss(r, dups, cx);
                self.find_losses(r, cx);
                if !(self.recovery.phase == Phase::Open || r.seen & seen::LOST_AGAIN != 0) {
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
            if r.seen & seen::UNA_ADVANCED != 0 {
                self.reset_reno_sacks();
            }
            self.add_reno_sack(dups);
        }
        if self.recovery.phase <= Phase::Disorder {
            self.undo_by_dsack(cx);
        }
        self.find_losses(r, cx);
        if self.board.lost_out == 0 {
            self.try_to_open(ece, cx);
        } else {
            self.enter_recovery(ece, cx);
        }
    }

    fn find_losses(&mut self, r: &mut Round, cx: &mut Context) {
        if self.board.records.is_empty() {
            return;
        }
        if !self.sack_on() {
            self.newreno_mark_lost(r.seen & seen::UNA_ADVANCED != 0, cx);
            return;
        }
        let before = self.board.retrans_out;
        if self.rack_mark_lost(cx) {
            r.seen &= !seen::SET_TIMER;
        }
        if before > self.board.retrans_out {
            r.seen |= seen::LOST_AGAIN;
        }
    }

    fn try_to_open(&mut self, ece: bool, cx: &mut Context) {
        if !self.any_sent_again(cx) {
            self.recovery.retrans_stamp = None;
        }
        if ece {
            self.enter_cwr(cx);
        }
        if self.recovery.phase != Phase::Cwr {
            self.keep_open(cx);
        }
    }

    /// Open where nothing is odd, else Disorder.
    pub(crate) fn keep_open(&mut self, cx: &mut Context) {
        let odd = self.board.sacked_out + self.board.lost_out > 0 || self.any_sent_again(cx);
        let phase = if odd { Phase::Disorder } else { Phase::Open };
        if self.recovery.phase != phase {
            self.recovery.phase = phase;
            self.recovery.high_seq = self.snd.nxt;
        }
    }

    /// RFC 6937 3, RFC 5681 3.2, RFC 3168 6.1.2: the new threshold; the window follows as data is delivered.
    pub(crate) fn begin_reduction(&mut self) {
        self.recovery.high_seq = self.snd.nxt;
        self.recovery.probe_high = None;
        self.cc.window.counted = 0;
        self.recovery.prior_cwnd = self.cc.window.cwnd;
        self.recovery.prr_delivered = 0;
        self.recovery.prr_out = 0;
        self.cc.window.ssthresh = self.cc.control.ssthresh(&self.cc.window);
        self.queue_cwr();
    }

    /// RFC 6937 3.1: how much may be sent for what `delivered` segments freed.
    pub(crate) fn reduce_window(&mut self, delivered: u32, lost: u32, seen: u32) {
        let prior = self.recovery.prior_cwnd;
        if delivered == 0 || prior == 0 {
            return;
        }
        let ssthresh = self.cc.window.ssthresh;
        let in_flight = self.in_flight();
        self.recovery.prr_delivered += delivered;
        let (done, out) = (self.recovery.prr_delivered, self.recovery.prr_out);
        let count = if in_flight > ssthresh {
            let due = (ssthresh as u64 * done as u64).div_ceil(prior as u64) as i64;
            due - out as i64
        } else {
            // Slow-start reduction bound, one more where the acknowledgment shows progress and nothing new is lost.
            let mut n = (done as i64 - out as i64).max(delivered as i64);
            if seen & seen::UNA_ADVANCED != 0 && lost == 0 {
                n += 1;
            }
            n.min(ssthresh as i64 - in_flight as i64)
        };
        // The first retransmission goes at once.
        let count = count.max((out == 0) as i64).max(0) as u32;
        self.cc.window.cwnd = in_flight + count;
    }

    pub(crate) fn end_reduction(&mut self) {
        if self.cc.window.ssthresh < u32::MAX
            && (self.recovery.phase == Phase::Cwr || self.recovery.undo_marker.is_some())
        {
            self.cc.window.cwnd = self.cc.window.ssthresh;
        }
    }

    pub(crate) fn enter_cwr(&mut self, cx: &mut Context) {
        self.recovery.prior_ssthresh = 0;
        if self.recovery.phase < Phase::Cwr {
            self.recovery.undo_marker = None;
            self.begin_reduction();
            self.recovery.phase = Phase::Cwr;
            cx.counters.ecn_reductions += 1;
        }
    }

    fn remember_for_undo(&mut self) {
        self.recovery.undo_marker = Some(self.snd.una);
        self.recovery.undo_retrans = match self.board.retrans_out {
            0 => -1,
            n => n as i32,
        };
    }

    pub(crate) fn enter_recovery(&mut self, ece: bool, cx: &mut Context) {
        cx.counters.recoveries += 1;
        self.recovery.prior_ssthresh = 0;
        self.remember_for_undo();
        if !self.recovery.reducing() {
            if !ece {
                self.recovery.prior_ssthresh = self.borne();
            }
            self.begin_reduction();
        }
        self.recovery.phase = Phase::Recovery;
    }

    /// The retransmission timer expired (RFC 6298 5.4–5.7, RFC 5681 3.1).
    pub(crate) fn enter_loss(&mut self, cx: &mut Context) {
        cx.counters.timeouts += 1;
        let fresh = self.recovery.phase < Phase::Recovery;
        let reneged = self.board.records.front(cx.sent).is_some_and(|s| s.is(mark::SACKED));
        if reneged {
            // RFC 2018 8: what was SACKed must be sent again after a timeout.
            cx.counters.reneged += 1;
            self.board.sacked_out = 0;
            self.forget_reported();
        } else {
            self.reset_reno_sacks();
        }
        let now = cx.now.micros() as u32;
        let head = self.board.records.head();
        let mut at = head;
        while let Some(i) = at {
            at = self.board.records.next(cx.sent, i);
            let s = self.board.records.get_mut(cx.sent, i);
            let sent_at = s.at;
            if reneged {
                s.marks &= !mark::SACKED;
            } else if self.sack_on() && Some(i) != head && self.rack_timeout(sent_at, now) > 0 {
                // RFC 8985 6.3: what was sent a moment ago is not lost yet.
                continue;
            }
            self.mark_lost(i, cx);
        }
        if self.recovery.phase <= Phase::Disorder
            || !self.recovery.high_seq.after(self.snd.una)
            || (self.recovery.phase == Phase::Loss && self.timers.retries == 0)
        {
            self.recovery.prior_ssthresh = self.borne();
            self.recovery.prior_cwnd = self.cc.window.cwnd;
            self.cc.window.ssthresh = self.cc.control.ssthresh(&self.cc.window);
            self.cc.control.on_timeout();
            self.remember_for_undo();
        }
        self.cc.window.cwnd = self.in_flight() + 1;
        self.cc.window.counted = 0;
        if self.recovery.phase <= Phase::Disorder && self.board.sacked_out >= 3 {
            self.recovery.reordering = self.recovery.reordering.min(3);
        }
        self.recovery.phase = Phase::Loss;
        self.recovery.high_seq = self.snd.nxt;
        self.recovery.probe_high = None;
        self.recovery.probe_due = false;
        self.queue_cwr();
        // RFC 5682 2.1 step 1: not while an earlier recovery is under way.
        self.recovery.frto = cx.config.frto && (fresh || self.timers.retries > 0);
        self.recovery.new_first = false;
        self.recovery.head_due = true;
    }

    /// RFC 5682 2.1 and 3.1.
    fn process_loss(&mut self, r: &Round, dups: u32, cx: &mut Context) {
        let recovered = !self.snd.una.before(self.recovery.high_seq);
        let advanced = r.seen & seen::UNA_ADVANCED != 0;
        if advanced && self.undo_loss(false, cx) {
            return;
        }
        if self.recovery.frto {
            // Step 3.b: never-retransmitted data was delivered, so not all was lost.
            if r.seen & seen::ORIGINAL != 0 && self.undo_loss(true, cx) {
                return;
            }
            if self.snd.nxt.after(self.recovery.high_seq) {
                if r.seen & seen::SACKED != 0 || dups > 0 {
                    // Step 3.a: the loss was real.
                    self.recovery.frto = false;
                }
            } else if advanced && !recovered {
                self.recovery.high_seq = self.snd.nxt;
                // Step 2.b: new data, if there is any and the window takes it.
                let room = self.snd.wnd > self.snd.nxt.since(self.snd.una);
                if self.unsent() > 0 && room {
                    self.recovery.new_first = true;
                    return;
                }
                self.recovery.frto = false;
            }
        }
        if recovered {
            // Step 2.a.
            self.undo_recovery(cx);
            return;
        }
        if !self.sack_on() {
            if self.snd.nxt.after(self.recovery.high_seq) && dups > 0 {
                self.add_reno_sack(dups);
            } else if advanced {
                self.reset_reno_sacks();
            }
        }
    }

    // -- Undo.

    /// RFC 3522: the acknowledgment echoes a timestamp from before the first retransmission.
    fn delayed_not_lost(&self) -> bool {
        match (self.recovery.retrans_stamp, self.receiver.echo) {
            (Some(stamp), Some(echo)) => (echo.wrapping_sub(stamp) as i32) < 0,
            _ => false,
        }
    }

    fn may_undo(&self) -> bool {
        self.recovery.undo_marker.is_some() && (self.recovery.undo_retrans == 0 || self.delayed_not_lost())
    }

    fn undo_reduction(&mut self, unmark: bool, cx: &mut Context) {
        cx.counters.undone += 1;
        if unmark {
            let mut at = self.board.records.head();
            while let Some(i) = at {
                at = self.board.records.next(cx.sent, i);
                let s = self.board.records.get_mut(cx.sent, i);
                if s.is(mark::LOST) {
                    s.marks &= !mark::LOST;
                    if !s.is(mark::TIMED | mark::SACKED) {
                        self.board.records.sent_last(cx.sent, i);
                    }
                }
            }
            self.board.lost_out = 0;
        }
        if self.recovery.prior_ssthresh > 0 {
            self.cc.window.cwnd = self.cc.window.cwnd.max(self.recovery.prior_cwnd);
            self.cc.window.ssthresh = self.cc.window.ssthresh.max(self.recovery.prior_ssthresh);
            self.cc.control.on_undo();
            self.withdraw_cwr();
        }
        self.recovery.undo_marker = None;
        self.recovery.rack.advanced = true;
    }

    /// Without SACK the phase is kept until something above `high_seq` is acknowledged, or old duplicates would start
    /// another recovery (RFC 6582 3.2 step 2).
    fn must_stay(&self) -> bool {
        self.snd.una == self.recovery.high_seq && !self.sack_on()
    }

    fn undo_recovery(&mut self, cx: &mut Context) -> bool {
        if self.may_undo() {
            self.undo_reduction(false, cx);
        }
        if self.must_stay() {
            if !self.any_sent_again(cx) {
                self.recovery.retrans_stamp = None;
            }
            return true;
        }
        if self.recovery.phase == Phase::Recovery {
            let rack = &mut self.recovery.rack;
            rack.persist = rack.persist.saturating_sub(1);
        }
        self.recovery.phase = Phase::Open;
        false
    }

    fn undo_by_dsack(&mut self, cx: &mut Context) -> bool {
        if self.recovery.undo_marker.is_none() || self.recovery.undo_retrans != 0 {
            return false;
        }
        self.keep_reorder_window();
        self.undo_reduction(false, cx);
        true
    }

    fn undo_loss(&mut self, by_frto: bool, cx: &mut Context) -> bool {
        if !by_frto && !self.may_undo() {
            return false;
        }
        self.undo_reduction(true, cx);
        cx.counters.spurious_timeouts += 1;
        self.timers.retries = 0;
        if self.must_stay() {
            return true;
        }
        if by_frto || self.sack_on() {
            self.recovery.phase = Phase::Open;
        }
        true
    }

    /// A partial acknowledgment for data that was only late: no more is marked.
    fn undo_partial(&mut self, r: &Round, cx: &mut Context) -> bool {
        if self.recovery.undo_marker.is_none() || !self.delayed_not_lost() {
            return false;
        }
        self.note_reordering(r.prior_una);
        if self.board.retrans_out > 0 {
            return true;
        }
        if !self.any_sent_again(cx) {
            self.recovery.retrans_stamp = None;
        }
        self.undo_reduction(true, cx);
        self.keep_open(cx);
        false
    }
}
