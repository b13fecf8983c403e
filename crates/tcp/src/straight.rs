//! The straight path: the segment that nearly every one is, taken in one go.
//!
//! An ordinary segment is the next one in order of a synchronised connection, acknowledges nothing, or new data, and brings
//! nothing, text, a FIN, or both; nothing was lost or reordered on its connection. It is taken here as [`Tcb::on_segment`]
//! would take it in the RFC's order. What is not ordinary is left to that, with nothing done.

use mem::Side;
use wire::tcp::{Flags, Ordinary, Syn, Timestamps};
use wire::{Instant, SeqNum};

use crate::loss::sent::{Run, mark};
use crate::outgoing::wants;
use crate::timers::Pending;
use crate::variables::SegWnd;
use crate::{Context, Ecn, Notice, Offer, Open, State, Tcb, flag};

/// States in which text and FIN are taken, and those in which the peer has sent its FIN.
const OPEN: u32 = 1 << State::Established as u32 | 1 << State::FinWait1 as u32 | 1 << State::FinWait2 as u32;
const SHUT: u32 = 1 << State::CloseWait as u32 | 1 << State::LastAck as u32;

/// States in which there is nothing to send but acknowledgments.
const OVER: u32 = 1 << State::Closing as u32 | 1 << State::TimeWait as u32;

/// Nothing of this may be under way where an ordinary segment is sent: what is listed here is asked for before text.
const HELD: u32 = flag::DISTURBED
    | flag::RST_PENDING
    | flag::RESET_BEHIND
    | flag::PROBE_NOW
    | flag::CORK
    | flag::MORE
    | flag::UNPUSHED
    | flag::FIN_SENT
    | flag::CWR
    | flag::PACED;

/// An ordinary segment to send: its options are timestamps or none, its text, if it has any, is the queue's.
#[derive(Clone, Copy, Debug)]
pub struct Simple {
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack`.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// The window field as it goes on the wire.
    pub window: u16,
    /// The two ECN bits of the IP header (RFC 3168 5): 0, or 2 for ECT(0).
    pub ecn: u8,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Bytes of text.
    pub len: u32,
}

impl Tcb {
    /// What [`Tcb::next_segment`] would give, and all that it would, of a connection with nothing under way, one segment to send,
    /// and nothing in the way of it: some text, a FIN, or both; or an acknowledgment alone. `None`, with nothing done, where it is
    /// not so. No other segment waits then.
    #[inline(always)]
    pub fn send_straight(&mut self, cx: &mut Context) -> Option<Simple> {
        let state = 1u32 << self.state as u32;
        let fin = self.has(flag::SHUTDOWN);
        let unsent = self.unsent();
        let sends = state & (OPEN | SHUT) != 0 && self.flags & flag::FIN_SENT == 0 && unsent + fin as u32 > 0;
        if !sends {
            let alone = state & (OPEN | SHUT | OVER) != 0
                && self.flags & (flag::DISTURBED | flag::RST_PENDING | flag::PROBE_NOW | flag::SENT_NEW) == 0
                && self.flags & flag::ACK_NOW != 0
                && unsent == 0
                && !self.recovery.probe.is_due()
                && !self.receiver.has_duplicate()
                && self.snd.outstanding() <= self.snd.wnd();
            return alone.then(|| self.simple(self.snd.nxt(), Flags::ACK, 0, cx));
        }
        let may = self.flags & HELD == 0
            && self.board.packets_out() == 0
            && unsent <= self.options.smss() as u32
            && unsent + fin as u32 <= self.snd.wnd()
            && self.timers.pending() == Pending::None
            && !self.receiver.has_duplicate()
            && self.knobs.is_none()
            && !self.cc.is_paced(cx.config);
        if !may {
            return None;
        }
        Some(self.send_first(unsent, fin, cx))
    }

    /// [`Tcb::wants`] after an ordinary segment was taken.
    #[inline(always)]
    pub fn wants_straight(&self) -> u8 {
        let ack = if self.flags & flag::ACK_NOW != 0 { wants::ACK } else { 0 };
        let fin = self.flags & (flag::SHUTDOWN | flag::FIN_SENT) == flag::SHUTDOWN;
        let data = fin
            || self.unsent() > 0
            || self.flags & flag::PROBE_NOW != 0
            || self.recovery.probe.is_due()
            || self.flags & flag::DISTURBED != 0 && self.wants_data();
        ack | if data { wants::DATA } else { 0 }
    }

    /// `len` bytes, all that there are, and a FIN where `fin`: the first of a flight.
    #[inline(always)]
    fn send_first(&mut self, len: u32, fin: bool, cx: &mut Context) -> Simple {
        let seq = self.snd.nxt();
        let (mut flags, mut marks) = (Flags::ACK, 0);
        if self.stats.bytes_sent > 0 {
            self.restart_after_idle(cx);
            // Waiting for acknowledgments is no idleness.
            let idle = self.sender.idle(cx.now);
            self.cc.on_restart(cx.now, idle);
        }
        if len > 0 {
            // RFC 9293 3.9.1 (SHLD-27).
            flags = flags | Flags::PSH;
            marks |= mark::PSH;
            self.set(flag::PUSH_NOW, false);
            self.timers.uncork();
        }
        if fin {
            flags = flags | Flags::FIN;
            marks |= mark::FIN;
            self.set(flag::FIN_SENT, true);
            self.state = if self.state == State::CloseWait { State::LastAck } else { State::FinWait1 };
            if self.orphaned() {
                self.timers.live_on();
            }
        }
        let occupied = len + fin as u32;
        self.timers.begin_to_wait(cx.now);
        self.board.send(cx.sent, seq, occupied, 1, cx.now.micros() as u32, marks);
        self.snd.send(occupied);
        if len > 0 && len < self.options.smss() as u32 {
            self.sender.sent_partial(self.snd.nxt());
        }
        self.stats.bytes_sent += len as u64;
        self.sender.sent(cx.now);
        self.sender.end_burst();
        self.note_answer(cx);
        self.judge_window(cx);
        if !self.schedule_probe(true, cx) {
            self.arm_rto(cx);
        }
        let mut out = self.simple(seq, flags, len, cx);
        // RFC 3168 6.1.4, 6.1.5: data sent for the first time, not bare ACKs.
        out.ecn = if len > 0 && self.has(flag::ECN) { 2 } else { 0 };
        out
    }

    /// The header of an ordinary segment; it acknowledges all that has come (RFC 9293 3.8.6.3).
    #[inline(always)]
    fn simple(&mut self, seq: SeqNum, mut flags: Flags, len: u32, cx: &mut Context) -> Simple {
        let window = self.offer_window(false, cx);
        self.acknowledged_now();
        self.stats.segs_out = self.stats.segs_out.wrapping_add(1);
        // RFC 3168 6.1.3.
        if self.has(flag::ECE) {
            flags = flags | Flags::ECE;
        }
        let value = self.options.clock(cx.now);
        let timestamps = self.has(flag::TIMESTAMPS).then_some(Timestamps { value, echo: self.rcv.ts_recent() });
        Simple { seq, ack: self.rcv.nxt(), flags, window, ecn: 0, timestamps, len }
    }

    /// Copies the text of `out`, which was just given, into `to`, which has its length.
    #[inline(always)]
    pub fn copy_text(&mut self, out: &Simple, to: &mut [u8], pool: &Side) {
        self.sender.copy(pool, true, self.sender.offset(out.seq), to);
    }

    /// Takes an ordinary segment; `false`, with nothing done, where it or the connection is not.
    #[inline(always)]
    pub fn straight(&mut self, seg: &Ordinary, cx: &mut Context) -> bool {
        debug_assert!(self.has(flag::DISTURBED) || self.undisturbed(), "{self:?}");
        let state = 1u32 << self.state as u32;
        let len = seg.payload.len() as u32;
        let brings = len + seg.fin as u32;
        let ordinary = seg.seq == self.rcv.nxt()
            && (state & OPEN != 0 || state & SHUT != 0 && brings == 0)
            && brings <= self.rcv.window()
            && self.flags & flag::DISTURBED == 0
            // RFC 2525 2.17: what nobody will read is answered by a RST.
            && (len == 0 || !self.orphaned())
            && self.snd.wnd() != 0;
        let Some(ack) = self.snd.accept_ordinary_ack(seg.ack).filter(|_| ordinary) else {
            return self.has(flag::DISTURBED) && self.take_text_in_trouble(seg, cx);
        };
        let stamp = match (self.has(flag::TIMESTAMPS), seg.timestamps) {
            (false, _) => None,
            (true, Some(ts)) if !self.rcv.is_older(ts.value) => Some(ts),
            (true, _) => return false,
        };
        if seg.ack != self.snd.una() {
            if !self.has(flag::SACK) {
                return false;
            }
            let Some(run) = self.board.acknowledge_run(cx.sent, seg.ack) else { return false };
            self.take_run(seg.seq, ack, self.options.scaled(seg.window), &run, cx);
        } else if brings > 0 {
            self.update_window(seg.seq, ack, self.options.scaled(seg.window));
            self.watch_edge_straight(cx);
            self.timers.answered();
        } else {
            return false;
        }
        cx.counters.predicted += 1;
        self.stats.segs_in = self.stats.segs_in.wrapping_add(seg.count());
        self.heard(cx);
        self.receiver.set_echo(stamp.filter(|ts| ts.echo != 0).map(|ts| self.options.sent_at(ts.echo)));
        // RFC 7323 4.3: TS.Recent follows what the last ACK covered.
        if let Some(ts) = stamp.filter(|_| self.rcv.covers_last_ack(seg.seq)) {
            self.rcv.take_ts(ts.value, cx.now);
        }
        if self.has(flag::FIN_SENT) {
            self.after_ack(cx);
            if self.state == State::Closed {
                return true;
            }
        }
        self.take_ordinary_text(seg, cx);
        true
    }

    /// The SYN/ACK that answers our SYN, which was sent once and asked for all options that it has: the connection is established as
    /// [`Tcb::on_segment`] would do it. `false`, with nothing done, where it is another.
    #[inline(always)]
    pub fn connect_straight(&mut self, syn: &Syn, cx: &mut Context) -> bool {
        const ASKED: u32 = flag::TIMESTAMPS | flag::SCALED | flag::SACK;
        let clock = cx.now.millis() as u32;
        let echo = self.options.sent_at(syn.timestamps.echo);
        let since = echo.wrapping_sub(self.timers.progress_at().millis() as u32) as i32;
        let ordinary = self.state == State::SynSent
            && self.flags & (ASKED | flag::DISTURBED | flag::CE_NOW) == ASKED
            && syn.ack == Some(self.snd.nxt())
            && self.snd.nxt() == self.sender.iss() + 1
            && self.stats.retrans == 0
            // An echo that is none of ours is of an old segment.
            && syn.timestamps.echo != 0
            && since >= 0
            && clock.wrapping_sub(echo) as i32 >= 0;
        if !ordinary {
            return false;
        }
        let Some(ack) = self.snd.accept_new_ack(self.snd.nxt()) else { return false };
        let Some(run) = self.board.acknowledge_run(cx.sent, ack.number()) else { return false };
        self.stats.segs_in = self.stats.segs_in.wrapping_add(1);
        self.receiver.set_echo(Some(echo));
        self.heard(cx);
        self.rcv.synchronise(syn.seq, self.receiver.synchronise(syn.seq));
        self.options.scale_by(syn.scale);
        self.rcv.take_ts(syn.timestamps.value, cx.now);
        // RFC 3168 6.1.1: a SYN/ACK without ECE declines.
        self.set(flag::ECN, false);
        self.options.set_smss(self.smss_for(Some(syn.mss)));
        let window = SegWnd::of_syn(syn.window);
        self.snd.synchronise(syn.seq, ack.number(), window);
        self.take_run(syn.seq, ack, window, &run, cx);
        self.cc.open(self.snd.nxt(), cx.now, false, cx.config);
        self.state = State::Established;
        self.put_notice(Notice::CONNECTED);
        self.arm_keepalive(cx);
        self.set(flag::ACK_NOW | flag::ACK_LATER, true);
        true
    }

    /// Header prediction for a connection whose own segments are in trouble: text in order of a segment that changes nothing else,
    /// or acknowledges something, is taken as such. `false`, with nothing done, where it is another.
    #[cold]
    #[inline(never)]
    fn take_text_in_trouble(&mut self, seg: &Ordinary, cx: &mut Context) -> bool {
        let len = seg.payload.len() as u32;
        let predicted = self.state == State::Established
            && seg.seq == self.rcv.nxt()
            && self.receiver.is_in_order()
            && !self.orphaned()
            && !seg.fin
            && len > 0
            && len <= self.rcv.window()
            && self.snd.wnd() != 0
            && self.options.scaled(seg.window).bytes() == self.snd.wnd();
        let fresh = match (self.has(flag::TIMESTAMPS), seg.timestamps) {
            (false, _) => true,
            (true, Some(ts)) => !self.rcv.is_older(ts.value),
            (true, None) => false,
        };
        let Some(ack) = self.snd.accept_ordinary_ack(seg.ack).filter(|_| predicted && fresh) else { return false };
        let seg = seg.segment();
        cx.counters.predicted += 1;
        self.note_arrival(&seg);
        if let Some(ts) = seg.options.timestamps.filter(|_| self.has(flag::TIMESTAMPS))
            && self.rcv.covers_last_ack(seg.seq)
        {
            self.rcv.take_ts(ts.value, cx.now);
        }
        self.heard(cx);
        if seg.ack != self.snd.una() {
            self.take_ack(&seg, ack, cx);
        }
        self.take_in_order(seg.payload, seg.longest(), cx);
        self.judge_disturbance();
        true
    }

    /// Text and FIN, if there are any, of a segment that is in order and fits the window.
    #[inline(always)]
    fn take_ordinary_text(&mut self, seg: &Ordinary, cx: &mut Context) {
        // Where memory is short, the peer sends it again, and its FIN.
        let taken = seg.payload.is_empty() || self.take_in_order(seg.payload, seg.longest(), cx);
        if seg.fin && taken {
            self.take_fin(cx);
        }
    }

    /// Whether [`Tcb::establish`] may take the acknowledgment `seg` of the SYN/ACK that answered `offer`.
    #[inline(always)]
    pub fn may_establish(open: &Open, offer: &Offer, seg: &Ordinary, cx: &Context) -> bool {
        // RFC 7323 3.2: with timestamps on both sides every segment has one; 5.3 R1: none is older.
        let stamped = match (offer.timestamp, seg.timestamps) {
            (None, _) => true,
            (Some(recent), Some(ts)) => ts.value.wrapping_sub(recent) as i32 >= 0,
            (Some(_), None) => false,
        };
        seg.ack == open.iss + 1
            && seg.seq == offer.seq + 1
            && stamped
            && offer.sack
            && cx.config.sack
            && seg.payload.len() as u32 + seg.fin as u32 <= open.first_window(cx.config)
    }

    /// The connection of a handshake that `seg` ends: as [`Tcb::resume`] and [`Tcb::on_segment`] open it, but without its
    /// SYN-RECEIVED. Its SYN/ACK went out once, at `sent`. [`Tcb::may_establish`] was asked.
    #[inline(always)]
    pub fn establish(&mut self, open: &Open, offer: &Offer, sent: Instant, seg: &Ordinary, cx: &mut Context) {
        self.renew(State::Established, open, cx.config);
        let timestamps = offer.timestamp.filter(|_| cx.config.timestamps);
        self.flags |= flag::PASSIVE | flag::SACK;
        self.set(flag::TIMESTAMPS, timestamps.is_some());
        self.set(flag::ECN, offer.ecn && cx.config.ecn != Ecn::Never);
        match offer.scale {
            Some(shift) if cx.config.window_scaling => {
                self.flags |= flag::SCALED;
                self.options.scale_by(shift);
            }
            _ => self.options.unscale(),
        }
        self.options.set_smss(self.smss_for(Some(offer.mss).filter(|mss| *mss > 0)));
        self.rcv.synchronise(offer.seq, self.receiver.synchronise(offer.seq));
        if let Some(recent) = timestamps {
            let value = seg.timestamps.map_or(recent, |ts| ts.value);
            self.rcv.take_ts(value, cx.now);
            let echo = seg.timestamps.map_or(0, |ts| ts.echo);
            self.receiver.set_echo((echo != 0).then(|| self.options.sent_at(echo)));
        }
        self.snd.establish(seg.seq, seg.ack, self.options.scaled(seg.window), SegWnd::of_syn(offer.window));
        (self.stats.segs_in, self.stats.segs_out) = (seg.count(), 1);
        let at = sent.micros() as u32;
        let rtt = (cx.now.micros() as u32).wrapping_sub(at);
        self.recovery
            .rack
            .delivered_in_order(&Run { first_at: at, last_at: at, last_end: seg.ack, segs: 1 }, cx.now.micros() as u32);
        self.recovery.deliver(1);
        self.rtt.sample(rtt, Some(rtt), cx.config);
        self.cc.on_rtt(rtt, seg.ack, seg.ack);
        self.cc.open(seg.ack, cx.now, false, cx.config);
        self.sender.sent(sent);
        self.sender.acked(cx.now);
        self.timers.begin_to_wait(cx.now);
        self.timers.heard(cx.now);
        self.put_notice(Notice::CONNECTED);
        self.take_ordinary_text(seg, cx);
    }
}
