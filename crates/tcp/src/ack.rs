//! What an acknowledgment does (RFC 9293 3.10.7.4): moves the send window, frees what was delivered, measures the path,
//! feeds the scoreboard, loss detection and congestion control.

use wire::SeqNum;
use wire::tcp::{Flags, Segment};

use crate::loss::recovery::Phase;
use crate::loss::round::{Round, seen};
use crate::loss::sent::{Run, mark};
use crate::snd::Ack;
use crate::timers::Pending;
use crate::variables::SegWnd;
use crate::{Context, Notice, State, Tcb, flag};

impl Tcb {
    /// Bytes of the application's that are not acknowledged, sent or not.
    pub fn unacknowledged(&self) -> usize {
        self.sender.queued()
    }

    /// Records of segments sent and not acknowledged in the slab.
    pub fn sent_records(&self) -> u32 {
        self.board.slots()
    }

    /// Queued bytes never sent.
    #[inline(always)]
    pub fn unsent(&self) -> u32 {
        self.sender.unsent(self.snd.nxt())
    }

    fn round(&self) -> Round {
        Round {
            seen: 0,
            prior_una: self.snd.una(),
            prior_fack: self.board.fack(self.snd.una()),
            prior_in_flight: self.board.in_flight(),
            prior_delivered: self.recovery.delivered(),
            prior_lost: self.recovery.lost(),
            reordered: self.snd.nxt(),
            acked_segs: 0,
            first_at: None,
            last_at: None,
            sack_first_at: None,
            sack_last_at: None,
        }
    }

    /// Takes the acknowledgment of a segment, which is `ack`.
    pub(crate) fn take_ack(&mut self, seg: &Segment, ack: Ack, cx: &mut Context) {
        if !self.take_plain_ack(seg, ack, cx) {
            self.take_any_ack(seg, ack, cx);
        }
    }

    /// New data is acknowledged and nothing is amiss: what [`Tcb::take_any_ack`] comes to then. `false` otherwise, with
    /// nothing done.
    fn take_plain_ack(&mut self, seg: &Segment, ack: Ack, cx: &mut Context) -> bool {
        let plain = seg.ack.after(self.snd.una())
            && seg.options.sack.as_slice().is_empty()
            && !seg.flags.contains(Flags::ECE)
            && self.has(flag::SACK)
            && self.undisturbed();
        if !plain {
            return false;
        }
        let Some(run) = self.board.acknowledge_run(cx.sent, seg.ack) else { return false };
        self.take_run(seg.seq, ack, self.options.window_of(seg), &run, cx);
        true
    }

    /// Notes whether anything stands in the way of the straight path; to be called where what [`Tcb::undisturbed`] asks for may
    /// have changed.
    pub(crate) fn judge_disturbance(&mut self) {
        let disturbed = !self.undisturbed();
        self.set(flag::DISTURBED, disturbed);
    }

    /// Nothing was lost, reordered, probed for or marked in either direction, as far as we know, since the last trouble was over.
    pub(crate) fn undisturbed(&self) -> bool {
        self.recovery.is_undisturbed() && self.board.is_clean() && self.receiver.is_in_order() && self.path_is_clear()
    }

    /// The records of `run` are acknowledged by `seg`, where nothing is amiss.
    #[inline(always)]
    pub(crate) fn take_run(&mut self, seq: SeqNum, ack: Ack, window: SegWnd, run: &Run, cx: &mut Context) {
        let now = cx.now.micros() as u32;
        self.recovery.rack.delivered_in_order(run, now);
        // Nothing is lost or SACKed, so all that was out was in flight.
        let in_flight = self.board.packets_out() + run.segs;
        self.recovery.deliver(run.segs);
        self.timers.progressed(cx.now);
        self.timers.answered();
        self.update_window(seq, ack, window);
        self.snd.acknowledge(ack);
        self.sender.acked(cx.now);
        let limited = self.cc.limited();
        // Linux: MSG_MORE holds until an acknowledgment; TCP_CORK does longer.
        self.set(flag::MORE, false);
        // RFC 6298 3.
        let (rtt, least) = (now.wrapping_sub(run.first_at), now.wrapping_sub(run.last_at));
        self.rtt.sample(rtt, Some(least), cx.config);
        self.cc.on_rtt(least, ack.number(), self.snd.nxt());
        self.cc.on_ack(run.segs, in_flight, limited, cx.now, self.rtt.srtt());
        self.free_acknowledged(cx);
        self.set_transmit_timer(cx);
        self.expand_send_buffer(cx);
        if self.board.packets_out() != 0 {
            self.watch_edge_straight(cx);
        }
    }

    fn take_any_ack(&mut self, seg: &Segment, ack: Ack, cx: &mut Context) {
        let mut r = self.round();
        if !seg.payload.is_empty() || seg.flags.contains(Flags::FIN) {
            r.seen |= seen::DATA;
        }
        if self.update_window(seg.seq, ack, self.options.window_of(seg)) {
            r.seen |= seen::WINDOW;
        }
        // RFC 3168 6.1.2; the SYN's bits mean something else.
        if seg.flags.contains(Flags::ECE) && self.has(flag::ECN) && !seg.flags.contains(Flags::SYN) {
            r.seen |= seen::ECE;
        }
        if self.snd.acknowledge(ack) {
            r.seen |= seen::UNA_ADVANCED;
            self.timers.progressed(cx.now);
            self.sender.acked(cx.now);
            self.judge_black_hole(cx);
            // Linux: MSG_MORE holds until an acknowledgment; TCP_CORK does longer.
            self.set(flag::MORE, false);
            self.recovery.take_head_due();
        }
        if self.has(flag::SACK) && !seg.options.sack.as_slice().is_empty() {
            self.take_sack(seg, &mut r, cx);
        }
        self.timers.answered();
        if self.board.packets_out() == 0 {
            if r.seen & seen::DSACK != 0 {
                self.alert(&mut r, 0, cx);
            }
            self.process_probe_ack(seg.ack, &r, cx);
            self.watch_edge(cx);
            return;
        }
        let had_limit = self.cc.limited();
        self.clean(&mut r, seg, cx);
        self.recovery.rack.update_window(self.recovery.delivered(), self.board.packets_out());
        self.process_probe_ack(seg.ack, &r, cx);
        let dubious = r.seen & seen::NOT_DUP == 0 || r.seen & seen::ALERT != 0 || self.recovery.phase() != Phase::Open;
        if dubious {
            let dup = r.seen & (seen::UNA_ADVANCED | seen::NOT_DUP | seen::DSACK) == 0;
            cx.counters.dup_acks += dup as u64;
            self.alert(&mut r, dup as u32, cx);
        }
        self.recovery.judge_undo(self.snd.una());
        if r.seen & seen::SET_TIMER != 0 {
            self.set_transmit_timer(cx);
        }
        self.watch_edge(cx);
        self.control_congestion(&r, had_limit, cx);
    }

    /// An ACK older than `snd.una` moves nothing, but its SACK blocks may be news (RFC 2018 5).
    pub(crate) fn take_old_ack(&mut self, seg: &Segment, cx: &mut Context) {
        if !self.has(flag::SACK) || seg.options.sack.as_slice().is_empty() || self.board.packets_out() == 0 {
            return;
        }
        let mut r = self.round();
        self.take_sack(seg, &mut r, cx);
        self.alert(&mut r, 0, cx);
    }

    /// Takes the window of a segment, before SND.UNA moves; whether it says anything: the segment is no duplicate then.
    #[inline(always)]
    pub(crate) fn update_window(&mut self, seq: SeqNum, ack: Ack, window: SegWnd) -> bool {
        let Some(told) = self.snd.update_window(seq, ack, window) else { return false };
        // A window too small to use (MUST-38) leaves the timer alone: one that opens and closes by a byte would restart it
        // for ever, and neither the override nor a limit would ever come.
        let useful = || (self.options.smss() as u32).min(self.unsent()).min(self.snd.max_wnd() / 2).max(1);
        if self.timers.pending() == Pending::Persist && window.bytes() >= useful() {
            self.set(flag::PROBE_NOW, false);
            self.rtt.forget_backoff();
            self.timers.stop();
        }
        told
    }

    /// Frees what was acknowledged cumulatively and takes the round trip (RFC 6298 3, RFC 7323 4.1).
    fn clean(&mut self, r: &mut Round, seg: &Segment, cx: &mut Context) {
        let now = cx.now.micros() as u32;
        let (sack, smss, min_rtt) = (self.has(flag::SACK), self.options.smss() as u32, self.rtt.min());
        let recovery = &mut self.recovery;
        let head = self.board.acknowledge(cx.sent, self.snd.una(), smss, |s| {
            r.acked(s, recovery.high_seq());
            if sack && !s.is(mark::SACKED) {
                recovery.deliver(s.segs as u32);
                recovery.rack.delivered(s, now, min_rtt);
            }
            if s.is(mark::SYN) {
                recovery.forget_retransmissions();
            }
        });
        if head.is_some_and(|s| s.is(mark::SACKED)) {
            r.seen |= seen::RENEGED;
        }

        // RFC 6298 3 (Karn): what was sent more than once is not timed; RFC 7323 4.1: the echo tells it apart.
        let first = if r.seen & seen::AGAIN_ACKED == 0 { r.first_at } else { None };
        let sample = first.or(r.sack_first_at).map(|at| now.wrapping_sub(at));
        let least = first.and(r.last_at).or(r.sack_last_at).map(|at| now.wrapping_sub(at));
        let measured = match (sample, seg.options.timestamps) {
            (Some(rtt), _) => Some(rtt),
            (None, Some(ts)) if self.has(flag::TIMESTAMPS) && ts.echo != 0 && r.seen & seen::ACKED != 0 => {
                let sent_ms = self.options.sent_at(ts.echo);
                let rtt = (cx.now.millis() as u32).wrapping_sub(sent_ms);
                // A clock of milliseconds: half of one is the least it can mean. An echo from the future means nothing.
                (rtt < 1 << 21).then(|| (rtt * 1000).max(500))
            }
            _ => None,
        };
        if let Some(rtt) = measured {
            self.rtt.sample(rtt, least, cx.config);
            self.cc.on_rtt(least.unwrap_or(rtt), self.snd.una(), self.snd.nxt());
        }
        if r.seen & seen::ACKED != 0 {
            r.seen |= seen::SET_TIMER;
            self.free_acknowledged(cx);
            if !sack {
                let delivered = self.board.remove_duplicates(r.acked_segs);
                self.recovery.deliver(delivered);
                if r.seen & seen::AGAIN_ACKED != 0 {
                    r.seen &= !seen::ORIGINAL;
                }
            } else if r.reordered.before(r.prior_fack) {
                self.note_reordering(r.reordered);
            }
        } else if let (Some(head), Some(sack_at)) = (head, r.sack_first_at)
            && (sack_at.wrapping_sub(head.at) as i32) < 0
        {
            // Linux: the timer moves only when the SACK is not for data sent after the head, or it would move for ever.
            r.seen |= seen::SET_TIMER;
        }
    }

    /// Bytes that need not be kept any more.
    fn free_acknowledged(&mut self, cx: &mut Context) {
        let data = self.sender.acknowledge(cx.pool, self.snd.una());
        if data == 0 {
            return;
        }
        self.stats.bytes_acked += data as u64;
        let worth = self.has(flag::TELL_ACKED) || self.sender.worth_telling(|| cx.pool.share());
        if worth && !self.orphaned() {
            self.put_notice(Notice::ACKED);
        }
    }

    /// What the acknowledgment means for the window: reduction while one is under way, growth otherwise.
    fn control_congestion(&mut self, r: &Round, was_limited: bool, cx: &mut Context) {
        let delivered = self.recovery.delivered().wrapping_sub(r.prior_delivered);
        if self.recovery.reducing() {
            let lost = self.recovery.lost().wrapping_sub(r.prior_lost);
            self.reduce_window(delivered, lost, r.seen);
            return;
        }
        // Linux: with much reordering, SACKed data counts as progress too.
        let raise = match self.recovery.reorders_much() {
            true => r.seen & seen::PROGRESS != 0,
            false => r.seen & seen::ACKED != 0,
        };
        if raise {
            self.cc.on_ack(delivered, r.prior_in_flight, was_limited, cx.now, self.rtt.srtt());
            self.expand_send_buffer(cx);
        }
    }

    /// Whether our FIN was sent and acknowledged.
    pub(crate) fn fin_acked(&self) -> bool {
        self.has(flag::FIN_SENT) && self.snd.una() == self.snd.nxt()
    }

    /// Whether the connection exists for the application: past the handshake.
    pub fn established(&self) -> bool {
        !matches!(self.state, State::Closed | State::Listen | State::SynSent | State::SynReceived)
    }
}
