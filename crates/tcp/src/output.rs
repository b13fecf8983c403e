//! What to send next (RFC 9293 3.8, 3.10.2): lost segments first, then new data as the windows allow, then bare ACKs.

use mem::Side;
use wire::SeqNum;
use wire::tcp::Flags;

use crate::loss::recovery::Phase;
use crate::loss::sent::mark;
use crate::outgoing::{Outgoing, wants};
use crate::timers::Pending;
use crate::{Context, State, Tcb, flag};

impl Tcb {
    /// What waits to be sent, as [`wants`] bits.
    pub fn wants(&self) -> u8 {
        let ack = if self.has(flag::ACK_NOW) { wants::ACK } else { 0 };
        if self.wants_control() {
            return ack | wants::CONTROL;
        }
        if self.wants_data() { ack | wants::DATA } else { ack }
    }

    /// SYN, FIN or RST waits to be sent without data: the paper's control list.
    pub fn wants_control(&self) -> bool {
        self.flags & (flag::RST_PENDING | flag::RESET_BEHIND) != 0
            || match self.state {
                State::SynSent | State::SynReceived => {
                    self.snd.nxt() == self.sender.iss() || self.board.retransmission_due()
                }
                _ => false,
            }
    }

    /// An ACK is due now.
    pub fn wants_ack(&self) -> bool {
        self.has(flag::ACK_NOW)
    }

    /// Whether the ACK that is due may wait until the application has had its turn, once: the last ACK of a handshake then
    /// rides on the request, the ACK of a FIN on ours.
    pub fn defer_ack(&mut self) -> bool {
        let later = self.has(flag::ACK_LATER);
        self.set(flag::ACK_LATER, false);
        later
    }

    /// Data, a FIN or a probe may be sent.
    pub fn wants_data(&self) -> bool {
        if !self.can_send() {
            return false;
        }
        (self.flags & (flag::SHUTDOWN | flag::FIN_SENT)) == flag::SHUTDOWN
            || self.unsent() > 0
            || self.has(flag::PROBE_NOW)
            || self.board.retransmission_due()
            || self.recovery.head_due()
            || self.recovery.probe.is_due()
    }

    fn can_send(&self) -> bool {
        matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck
        )
    }

    /// Whether the segment just given was the last for now, found out without asking for another; if so the burst is over.
    pub fn all_sent(&mut self, cx: &mut Context) -> bool {
        if self.recovery.new_first() || self.wants() != 0 {
            return false;
        }
        self.end_burst(cx);
        true
    }

    /// The next segment, or `None` when nothing may go now. `max` is the longest payload of one frame (a multiple of
    /// segments where the port cuts them), at least one segment.
    pub fn next_segment(&mut self, max: u32, cx: &mut Context) -> Option<Outgoing> {
        if self.flags & (flag::RST_PENDING | flag::RESET_BEHIND) != 0 {
            return Some(self.last_data_or_reset(max, cx));
        }
        match self.state {
            State::SynSent | State::SynReceived => return self.next_syn(cx),
            State::Closed | State::Listen => return None,
            State::TimeWait => return self.bare_ack(cx),
            _ => {}
        }
        if !self.wants_data() && !self.recovery.new_first() {
            self.end_burst(cx);
            return self.bare_ack(cx);
        }
        if let Some(out) = self.tail_probe(cx) {
            return Some(out);
        }
        // RFC 5682 2.1, step 2.b: after one acknowledgment new data shows whether the timeout was spurious.
        if self.recovery.new_first() {
            if let Some(out) = self.new_data(max, cx) {
                return Some(out);
            }
            self.recovery.new_data_went(self.snd.nxt());
        }
        self.retransmission(cx)
            .or_else(|| self.new_data(max, cx))
            .or_else(|| self.probe(cx))
            .or_else(|| self.bare_ack(cx))
    }

    #[cold]
    fn last_data_or_reset(&mut self, max: u32, cx: &mut Context) -> Outgoing {
        if self.has(flag::RESET_BEHIND) {
            if let Some(out) = self.new_data(max, cx) {
                return out;
            }
            self.abort(cx);
        }
        self.set(flag::RST_PENDING, false);
        cx.counters.resets_out += 1;
        let mut out = self.segment(self.snd.acceptable_seq(self.options.snd_unit()), Flags::RST | Flags::ACK, 0, 0, cx);
        out.window = 0;
        out
    }

    /// [`Tcb::next_segment`] and [`Tcb::all_sent`] of a connection whose SYN goes out for the first time, with Linux's four options;
    /// `None`, with nothing done, of another.
    #[inline(always)]
    pub fn first_syn(&mut self, cx: &mut Context) -> Option<Outgoing> {
        const ASKED: u32 = flag::TIMESTAMPS | flag::SCALED | flag::SACK;
        let first = self.state == State::SynSent
            && self.flags & (ASKED | flag::RST_PENDING | flag::ECN) == ASKED
            && self.snd.nxt() == self.sender.iss();
        if !first {
            return None;
        }
        self.note_syn(cx);
        Some(self.segment(self.sender.iss(), Flags::SYN, 0, 0, cx))
    }

    fn next_syn(&mut self, cx: &mut Context) -> Option<Outgoing> {
        let first = self.snd.nxt() == self.sender.iss();
        if !first && !self.board.retransmission_due() {
            // RFC 9293 3.10.7.4: in SYN-RECEIVED an unacceptable segment is answered by an ACK.
            return if self.state == State::SynReceived { self.bare_ack(cx) } else { None };
        }
        let mut flags = if self.state == State::SynSent { Flags::SYN } else { Flags::SYN | Flags::ACK };
        if first {
            self.note_syn(cx);
        } else {
            cx.counters.syn_retransmits += 1;
            if let Some(i) = self.board.head(cx.sent) {
                self.count_retransmission(i, cx);
            }
            // RFC 3168 6.1.1.1: a SYN that asked for ECN may have been dropped for that.
            if self.state == State::SynSent {
                self.set(flag::ECN, false);
            }
        }
        if self.has(flag::ECN) {
            // RFC 3168 6.1.1.
            flags = flags | if self.state == State::SynSent { Flags::ECE | Flags::CWR } else { Flags::ECE };
        }
        Some(self.segment(self.sender.iss(), flags, 0, 0, cx))
    }

    /// Our SYN is on its way for the first time.
    pub(crate) fn note_syn(&mut self, cx: &mut Context) {
        self.board.send(cx.sent, self.sender.iss(), 1, 1, cx.now.micros() as u32, mark::SYN);
        self.snd.send(1);
        self.timers.begin_to_wait(cx.now);
        self.sender.sent(cx.now);
        self.arm_rto(cx);
    }

    /// A segment marked lost, cut to the present segment size and to the peer's window (RFC 6675 5, RFC 5681 3.2).
    #[inline]
    fn retransmission(&mut self, cx: &mut Context) -> Option<Outgoing> {
        if !self.board.retransmission_due() && !self.recovery.head_due() {
            return None;
        }
        self.next_lost(cx)
    }

    #[cold]
    fn next_lost(&mut self, cx: &mut Context) -> Option<Outgoing> {
        let i = if self.recovery.take_head_due() && !self.board.is_empty() {
            // RFC 6298 5.4.
            self.board.head(cx.sent)?
        } else {
            // F-RTO waits for what its new data brings.
            let frto = self.recovery.frto_waits(self.snd.nxt());
            let held = !self.board.retransmission_due() || self.cc.room(self.board.in_flight()) == 0;
            if held || frto || self.paced_out(cx) {
                return None;
            }
            self.board.next_retransmit(cx.sent)?
        };
        let s = self.board.get(cx.sent, i);
        let right = self.snd.right();
        let smss = self.segment_size() as u32;
        let room = match s.seq.before(right) {
            true => right.since(s.seq).min(smss),
            // The first goes even into a closed window, as a probe (RFC 9293 3.8.6, SHLD-15's other side).
            false if s.seq == self.snd.una() => smss,
            false => return None,
        };
        if s.bytes() > room {
            self.board.split(cx.sent, i, room, smss);
        }
        match self.recovery.phase() {
            Phase::Loss => cx.counters.timeout_retransmits += 1,
            _ => cx.counters.fast_retransmits += 1,
        }
        if self.board.is_head(i) && self.timers.pending() != Pending::Reorder {
            self.arm_rto(cx);
        }
        self.count_retransmission(i, cx);
        self.judge_disturbance();
        Some(self.again(i, cx))
    }

    /// Record `i` is sent again, and counts as under way.
    fn count_retransmission(&mut self, i: u32, cx: &mut Context) {
        self.board.count_retransmission(cx.sent, i);
        let segs = self.sent_again(i, cx);
        self.recovery.sent_again(segs, cx.now.millis() as u32);
    }

    /// Record `i` is sent again; its segments.
    pub(crate) fn sent_again(&mut self, i: u32, cx: &mut Context) -> u32 {
        let s = self.board.send_again(cx.sent, i, cx.now.micros() as u32);
        let (segs, bytes) = (s.segs as u32, s.bytes());
        self.stats.retrans = self.stats.retrans.wrapping_add(segs);
        self.stats.bytes_retrans += bytes as u64;
        self.stats.bytes_sent += bytes as u64;
        self.sender.sent(cx.now);
        segs
    }

    /// The segment of record `i`.
    pub(crate) fn again(&mut self, i: u32, cx: &mut Context) -> Outgoing {
        let s = self.board.get(cx.sent, i);
        let mut flags = Flags::ACK;
        if s.is(mark::FIN) {
            flags = flags | Flags::FIN;
        }
        if s.is(mark::PSH) {
            flags = flags | Flags::PSH;
        }
        self.paced(s.bytes(), cx);
        // RFC 3168 6.1.5: retransmissions are not ECN-capable.
        self.segment(s.seq, flags, self.sender.offset(s.seq), s.bytes(), cx)
    }

    /// New data as the windows allow; when there is no more to send, the use of the window is judged.
    fn new_data(&mut self, max: u32, cx: &mut Context) -> Option<Outgoing> {
        let out = self.fresh_data(max, cx);
        if out.is_none() {
            self.end_burst(cx);
        }
        out
    }

    fn fresh_data(&mut self, max: u32, cx: &mut Context) -> Option<Outgoing> {
        if self.has(flag::FIN_SENT) || self.recovery.refused.is_some() {
            return None;
        }
        let unsent = self.unsent();
        let fin_due = self.has(flag::SHUTDOWN);
        if unsent == 0 && !fin_due {
            return None;
        }
        let smss = self.segment_size() as u32;
        let outstanding = self.snd.outstanding();
        let peer_room = self.window_room();
        if self.board.packets_out() == 0 {
            self.restart_after_idle(cx);
        }
        if unsent == 0 {
            // A bare FIN waits for neither Nagle nor the congestion window, but it takes a number of the peer's window.
            if peer_room == 0 {
                self.wait_for_window(outstanding, cx);
                return None;
            }
            return Some(self.send(0, true, cx));
        }
        if self.board.len() >= self.sender.most_records(cx.config) {
            cx.counters.records_full += 1;
            return None;
        }
        let quota = self.cc.room(self.board.in_flight());
        if quota == 0 {
            self.cc.hold();
            return None;
        }
        // A burst is paced as a whole.
        if self.sender.burst() == 0 && self.paced_out(cx) {
            return None;
        }
        // A record's last segment takes nothing of the next, and waits for nothing.
        let record = self.unsent_of_record();
        let max = if record <= smss {
            max.min(smss)
        } else {
            // No longer than the burst that the last of them ends.
            let max =
                max.min(self.burst_goal(cx.config).saturating_sub(self.sender.burst()).max(1).saturating_mul(smss));
            // CWR belongs on one segment, so that one goes alone.
            if self.has(flag::CWR) { max.min(smss) } else { max }
        };
        let ends = |len: u32| len == record && record < unsent;
        let mut len = record.min(max).min(peer_room).min(quota.saturating_mul(smss));
        // Whole segments only, unless this ends the queue and its last part may go.
        if len > smss && !ends(len) && (len < unsent || !self.may_send_partial(len % smss, fin_due)) {
            len -= len % smss;
        }
        if len == 0 {
            // RFC 9293 3.8.6.1 (MUST-36): the window is closed and nothing is under way to reopen it.
            self.wait_for_window(outstanding, cx);
            return None;
        }
        if len < smss && !ends(len) {
            let last = len == unsent;
            if last {
                if !self.may_send_partial(len, fin_due) {
                    if self.has(flag::CORK | flag::MORE) {
                        self.timers.cork(cx.now + cx.config.cork_limit);
                    }
                    return None;
                }
            } else if len < self.snd.max_wnd() / 2 {
                // RFC 9293 3.8.6.2.1 (MUST-38): a window too small for a segment waits for more, or for the override.
                self.wait_for_window(outstanding, cx);
                return None;
            }
        }
        let fin = fin_due && len == unsent && len < peer_room;
        Some(self.send(len, fin, cx))
    }

    fn wait_for_window(&mut self, outstanding: u32, cx: &mut Context) {
        if outstanding == 0 && self.timers.pending() != Pending::Persist {
            self.arm_persist(cx);
        }
    }

    /// Nagle's algorithm (RFC 9293 3.7.4, MUST-17) as Minshall amended it: a partial segment waits only for an earlier
    /// partial one; corked ones wait for more.
    fn may_send_partial(&self, len: u32, fin_due: bool) -> bool {
        if fin_due || len == 0 || self.has(flag::PUSH_NOW) {
            return true;
        }
        if self.has(flag::CORK | flag::MORE) {
            return false;
        }
        self.has(flag::NO_DELAY)
            || self.board.packets_out() == 0
            || !self.sender.partial_is_out(self.snd.una(), self.snd.nxt())
    }

    pub(crate) fn send(&mut self, len: u32, fin: bool, cx: &mut Context) -> Outgoing {
        let seq = self.snd.nxt();
        let offset = self.sender.offset(seq);
        let smss = self.segment_size() as u32;
        let mut flags = Flags::ACK;
        let mut marks = 0;
        if self.unsent() == len && len > 0 {
            // RFC 9293 3.9.1 (SHLD-27): PSH on the last segment of what was queued, unless more was announced.
            if !self.has(flag::UNPUSHED) {
                flags = flags | Flags::PSH;
                marks |= mark::PSH;
            }
            self.set(flag::PUSH_NOW, false);
            self.timers.uncork();
        }
        if len > 0 && self.record_ends(seq + len) {
            flags = flags | Flags::PSH;
            marks |= mark::PSH;
        }
        let segs = count(len, smss);
        self.sender.extend_burst(segs);
        if !fin && !flags.contains(Flags::PSH) && self.burst_ends(len, segs, cx.config) {
            if self.sender.burst() > 1 {
                // Not remembered: it says nothing about the data.
                flags = flags | Flags::PSH;
            }
            self.sender.end_burst();
        }
        if flags.contains(Flags::PSH) {
            self.sender.end_burst();
        }
        if fin {
            flags = flags | Flags::FIN;
            marks |= mark::FIN;
            self.set(flag::FIN_SENT, true);
            self.state = match self.state {
                State::CloseWait => State::LastAck,
                _ => State::FinWait1,
            };
            if self.orphaned() {
                self.timers.live_on();
            }
        }
        let occupied = len + fin as u32;
        if self.board.is_empty() {
            self.timers.begin_to_wait(cx.now);
        }
        let first = self.board.packets_out() == 0;
        self.board.send(cx.sent, seq, occupied, segs as u16, cx.now.micros() as u32, marks);
        if first && self.stats.bytes_sent > 0 {
            // Waiting for acknowledgments is no idleness.
            let idle = self.sender.idle(cx.now);
            self.cc.on_restart(cx.now, idle);
        }
        self.snd.send(occupied);
        if if len < smss { len > 0 } else { !len.is_multiple_of(smss) } {
            self.sender.sent_partial(self.snd.nxt());
        }
        self.stats.bytes_sent += len as u64;
        self.sender.sent(cx.now);
        self.set(flag::SENT_NEW, true);
        self.recovery.sent(segs);
        if first || matches!(self.timers.pending(), Pending::Probe | Pending::Persist | Pending::None) {
            self.rearm_rto(cx);
        }
        self.note_answer(cx);
        self.paced(len, cx);
        if len > 0 && self.has(flag::CWR) {
            // RFC 3168 6.1.2.
            flags = flags | Flags::CWR;
            self.set(flag::CWR, false);
        }
        let mut out = self.segment(seq, flags, offset, len, cx);
        out.fresh = true;
        if len > 0 && self.has(flag::ECN) {
            // RFC 3168 6.1.4, 6.1.5: data sent for the first time, not bare ACKs.
            out.ecn = 2;
        }
        out
    }

    /// A zero-window or keepalive probe: one sequence number below the window, as Linux sends it, so that any answer
    /// carries the window (RFC 9293 3.8.4 allows it, SHLD-28's byte of data is not needed).
    fn probe(&mut self, cx: &mut Context) -> Option<Outgoing> {
        if !self.has(flag::PROBE_NOW) {
            return None;
        }
        self.set(flag::PROBE_NOW, false);
        let persist = self.timers.pending() == Pending::Persist;
        cx.counters.window_probes += persist as u64;
        // RFC 9293 3.8.6.2.1: the override timeout sends what a small window takes.
        let room = self.snd.room().min(self.segment_size() as u32);
        let len = room.min(self.unsent_of_record());
        if persist && len > 0 && self.board.is_empty() {
            return Some(self.send(len, false, cx));
        }
        Some(self.segment(self.snd.una() - 1, Flags::ACK, 0, 0, cx))
    }

    fn bare_ack(&mut self, cx: &mut Context) -> Option<Outgoing> {
        if !self.has(flag::ACK_NOW) {
            return None;
        }
        Some(self.segment(self.snd.acceptable_seq(self.options.snd_unit()), Flags::ACK, 0, 0, cx))
    }

    fn segment(&mut self, seq: SeqNum, mut flags: Flags, offset: u32, len: u32, cx: &mut Context) -> Outgoing {
        let syn = flags.contains(Flags::SYN);
        let window = self.offer_window(syn, cx);
        let ack = if flags.contains(Flags::ACK) { self.rcv.nxt() } else { SeqNum(0) };
        if flags.contains(Flags::ACK) {
            self.acknowledged_now();
        }
        self.stats.segs_out = self.stats.segs_out.wrapping_add(count(len, self.options.smss() as u32));
        let options = self.options(syn, cx);
        // RFC 3168 6.1.3.
        if self.has(flag::ECE) && !syn && !flags.contains(Flags::RST) {
            flags = flags | Flags::ECE;
        }
        Outgoing { seq, ack, flags, window, ecn: 0, options, offset, len, fresh: false }
    }

    /// Copies the payload of `out` into `to`, which has its length.
    pub fn copy_payload(&mut self, out: &Outgoing, to: &mut [u8], pool: &Side) {
        self.sender.copy(pool, out.fresh, out.offset, to);
    }

    /// The payload of `out` where it lies, into the front of `parts`; how many parts it is. `None` where it must be copied: it is
    /// sent again, or in more parts.
    pub fn gather_payload<'a>(&'a mut self, out: &Outgoing, pool: &'a Side, parts: &mut [&'a [u8]]) -> Option<usize> {
        out.fresh.then(|| self.sender.gather(pool, out.offset, out.len, parts))?
    }

    /// SMSS (RFC 5681 2), bytes of payload beside timestamps.
    pub fn smss(&self) -> u16 {
        self.options.smss()
    }

    /// Most bytes of payload of the next segment: what its SACK blocks take is missing (RFC 9293 3.7.1, MUST-16; RFC 6691).
    #[inline(always)]
    pub fn segment_size(&self) -> u16 {
        if !self.receiver.has_blocks() { self.options.smss() } else { self.size_beside_blocks() }
    }

    #[inline(never)]
    fn size_beside_blocks(&self) -> u16 {
        if !self.has(flag::SACK) {
            return self.options.smss();
        }
        let most = if self.has(flag::TIMESTAMPS) { 3 } else { 4 };
        match self.receiver.count_blocks().min(most) as u16 {
            0 => self.options.smss(),
            n => self.options.smss().saturating_sub(4 + 8 * n).max(8),
        }
    }
}

/// Segments of at most `smss` bytes that `len` bytes are, at least one.
#[inline]
fn count(len: u32, smss: u32) -> u32 {
    // Most are one, and a division takes as long as all else here.
    if len <= smss { 1 } else { len.div_ceil(smss) }
}
