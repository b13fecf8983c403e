//! SEGMENT ARRIVES (RFC 9293 3.10.7): what a segment does to a connection, in the RFC's order.

use wire::SeqNum;
use wire::tcp::{Flags, Ordinary, Segment};

use crate::outgoing::{Reply, reset_for};
use crate::rcv::reassembly::Inserted;
use crate::rcv::{Acceptable, InWindow};
use crate::snd::Ack;
use crate::timers::SMALLEST_TIMER;
use crate::{Context, Error, Notice, State, Tcb, flag};

impl Tcb {
    /// Processes one segment of this connection. A `Reply` is a segment outside the connection's own flow (a RST).
    pub fn on_segment(&mut self, seg: &Segment, cx: &mut Context) -> Option<Reply> {
        match Ordinary::of(seg) {
            Some(ordinary) if !self.has(flag::CE_NOW) && self.straight(&ordinary, cx) => None,
            _ => self.general(seg, cx),
        }
    }

    /// The same of a segment that was not ordinary.
    #[inline(never)]
    pub fn general(&mut self, seg: &Segment, cx: &mut Context) -> Option<Reply> {
        self.note_arrival(seg);
        let reply = match self.state {
            State::Closed | State::TimeWait | State::Listen => reset_for(seg),
            State::SynSent => self.in_syn_sent(seg, cx),
            _ => self.in_synchronized(seg, cx),
        };
        self.set(flag::CE_NOW, false);
        self.judge_disturbance();
        reply
    }

    #[inline(always)]
    pub(crate) fn note_arrival(&mut self, seg: &Segment) {
        self.stats.segs_in = self.stats.segs_in.wrapping_add(seg.count());
        let stamp = seg.options.timestamps.filter(|ts| ts.echo != 0 && self.has(flag::TIMESTAMPS));
        self.receiver.set_echo(stamp.map(|ts| self.options.sent_at(ts.echo)));
    }

    /// Takes the text of a segment that says what the last one said, which was predicted, but for its text at `seq`: nothing
    /// of this connection has happened in between. `false`, and nothing is done, where it must go the whole way.
    pub fn on_following(&mut self, seq: SeqNum, text: &[u8], cx: &mut Context) -> bool {
        let plain = self.state == State::Established && self.receiver.is_in_order() && !self.orphaned();
        if !plain || seq != self.rcv.nxt() || text.is_empty() || text.len() > self.rcv.window() as usize {
            return false;
        }
        self.stats.segs_in = self.stats.segs_in.wrapping_add(1);
        cx.counters.predicted += 1;
        self.take_in_order(text, text.len(), cx);
        true
    }

    pub(crate) fn heard(&mut self, cx: &Context) {
        self.timers.heard(cx.now);
    }

    /// RFC 9293 3.10.7.3.
    fn in_syn_sent(&mut self, seg: &Segment, cx: &mut Context) -> Option<Reply> {
        let has_ack = seg.flags.contains(Flags::ACK);
        let ack = self.snd.accept_new_ack(seg.ack).filter(|_| has_ack);
        if has_ack && ack.is_none() {
            // The peer remembers an earlier connection of this tuple (TIME-WAIT); our RST ends its memory, so the SYN is
            // worth repeating at once rather than after a second.
            if self.timers.retries() == 0 && !seg.flags.contains(Flags::RST) {
                self.timers.hasten(cx.now.plus_micros(SMALLEST_TIMER as u64));
            }
            return reset_for(seg);
        }
        if seg.flags.contains(Flags::RST) {
            if ack.is_some() {
                cx.counters.resets_in += 1;
                self.close_now(Some(Error::Refused), cx);
            }
            return None;
        }
        if !seg.flags.contains(Flags::SYN) {
            return None;
        }
        // RFC 7323 5 as Linux has it: an echo that is none of ours is an old segment.
        if let (true, Some(echo)) = (has_ack, self.receiver.echo()) {
            let since = echo.wrapping_sub(self.timers.progress_at().millis() as u32) as i32;
            if since < 0 || (cx.now.millis() as u32).wrapping_sub(echo) as i32 <= -1 {
                cx.counters.paws += 1;
                return reset_for(seg);
            }
        }
        self.heard(cx);
        self.take_syn(seg, seg.ack, cx);
        let Some(ack) = ack else {
            // Simultaneous open (RFC 9293 3.5, figure 8; MUST-10): SYN-RECEIVED, our SYN goes out again with ACK.
            self.state = State::SynReceived;
            self.mark_all_lost(cx);
            return None;
        };
        self.acknowledge_syn(seg, ack, cx);
        self.set(flag::ACK_NOW | flag::ACK_LATER, true);
        // RFC 9293 3.10.7.3: data and FIN on a SYN/ACK are processed as in the other states.
        if !seg.payload.is_empty() || seg.flags.contains(Flags::FIN) {
            let rest = Segment { seq: seg.seq + 1, ..*seg };
            if let Some(rest) = self.rcv.accept(&rest) {
                self.take_text(&rest, cx);
            }
        }
        None
    }

    fn acknowledge_syn(&mut self, seg: &Segment, ack: Ack, cx: &mut Context) {
        let again = self.stats.retrans;
        self.take_ack(seg, ack, cx);
        // RFC 6928 2, RFC 5681 3.1: several lost SYNs say that the path is bad; one may just have been slow.
        self.cc.open(self.snd.nxt(), cx.now, again > 1, cx.config);
        self.recovery.handshake_done();
        if self.rtt.srtt() == 0 {
            // RFC 6298 5.7.
            self.rtt.unmeasured(cx.config);
        }
        self.state = State::Established;
        self.put_notice(Notice::CONNECTED);
        self.arm_keepalive(cx);
    }

    /// RFC 9293 3.10.7.4.
    fn in_synchronized(&mut self, seg: &Segment, cx: &mut Context) -> Option<Reply> {
        let rst = seg.flags.contains(Flags::RST);
        let syn = seg.flags.contains(Flags::SYN);

        // RFC 7323 5.3 R1: PAWS comes before the sequence check; RST is exempt, and a clock idle for 24 days is not
        // trusted (5.5).
        if let (true, Some(ts)) = (self.has(flag::TIMESTAMPS), seg.options.timestamps) {
            let old = self.rcv.is_older(ts.value) && self.rcv.ts_age(cx.now) < 24 * 86400;
            if old && !rst && !syn {
                cx.counters.paws += 1;
                self.answer_invalid(seg, cx);
                return None;
            }
        }

        // A SYN retransmitted by the peer: our SYN/ACK was lost or is on its way.
        if self.state == State::SynReceived && syn && !rst && seg.seq == self.receiver.irs() {
            if seg.flags.contains(Flags::ACK) && !self.passive() && seg.ack == self.snd.nxt() {
                // The other half of a simultaneous open.
                let rest = Segment { seq: seg.seq + 1, flags: Flags::ACK, ..*seg };
                return self.in_synchronized(&rest, cx);
            }
            self.mark_all_lost(cx);
            return None;
        }

        if rst && self.follows_fin(seg) {
            cx.counters.resets_in += 1;
            self.close_now(Some(Error::Reset), cx);
            return None;
        }
        let Some(acceptable) = self.rcv.accept(seg) else {
            cx.counters.unacceptable += 1;
            if !rst {
                // RFC 2883 4: what came again is reported.
                let end = seg.seq + seg.payload.len() as u32;
                if seg.seq.before(self.rcv.nxt()) {
                    self.note_duplicate(seg.seq, end.min(self.rcv.nxt()));
                }
                self.answer_invalid(seg, cx);
                // RFC 9293 MUST-66: with a zero window, RST and URG are looked at, and the acknowledgment still counts.
                let zero_window = self.rcv.window() == 0 && seg.seq == self.rcv.nxt();
                let looks = zero_window && seg.flags.contains(Flags::ACK) && self.state != State::SynReceived;
                if let Some(ack) = self.accept_ack(seg).filter(|_| looks) {
                    self.take_ack(seg, ack, cx);
                    self.after_ack(cx);
                }
            }
            return None;
        };

        if rst {
            // RFC 5961 3.2: exact match resets, anything else in the window is challenged.
            if seg.seq != self.rcv.nxt() {
                self.challenge(cx);
                return None;
            }
            cx.counters.resets_in += 1;
            let error = match self.state {
                State::SynReceived if !self.passive() => Error::Refused,
                _ => Error::Reset,
            };
            self.close_now(Some(error), cx);
            return None;
        }

        if syn {
            // RFC 5961 4.2.
            self.challenge(cx);
            return None;
        }
        if !seg.flags.contains(Flags::ACK) {
            return None;
        }

        if self.state == State::SynReceived {
            let Some(ack) = self.snd.accept_new_ack(seg.ack) else { return reset_for(seg) };
            self.snd.take_next_window(seg.seq);
            self.acknowledge_syn(seg, ack, cx);
        } else {
            let Some(ack) = self.accept_ack(seg) else {
                cx.counters.bad_ack += 1;
                // RFC 5961 5.2.
                self.challenge(cx);
                return None;
            };
            match seg.ack.before(self.snd.una()) {
                true => self.take_old_ack(seg, cx),
                false => self.take_ack(seg, ack, cx),
            }
        }
        self.heard(cx);
        self.note_cwr(seg);

        // RFC 7323 4.3: TS.Recent follows what the last ACK covered.
        if let (true, Some(ts)) = (self.has(flag::TIMESTAMPS), seg.options.timestamps)
            && self.rcv.covers_last_ack(seg.seq)
            && !self.rcv.is_older(ts.value)
        {
            self.rcv.take_ts(ts.value, cx.now);
        }
        self.after_ack(cx);
        if self.state == State::Closed || self.state == State::TimeWait {
            return None;
        }
        self.take_text(&acceptable, cx)
    }

    /// Some stacks send the RST that follows their FIN with the FIN's own number; once they have, they answer nothing any
    /// more (Linux's tcp_reset_check).
    fn follows_fin(&self, seg: &Segment) -> bool {
        seg.seq + 1 == self.rcv.nxt() && matches!(self.state, State::CloseWait | State::LastAck | State::Closing)
    }

    /// RFC 5961 5.2.
    fn accept_ack(&self, seg: &Segment) -> Option<Ack> {
        self.snd.accept_ack(seg.ack, self.stats.bytes_acked)
    }

    /// What the acknowledgment of our FIN does to the state.
    pub(crate) fn after_ack(&mut self, cx: &mut Context) {
        if !self.fin_acked() {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                // Only an orphan is timed: an application that half-closed may wait as long as it likes.
                if self.orphaned() {
                    self.timers.live_until(cx.now + cx.config.fin_timeout);
                }
            }
            State::Closing => self.enter_time_wait(),
            State::LastAck => self.close_now(None, cx),
            _ => {}
        }
    }

    /// Text and FIN.
    fn take_text(&mut self, acceptable: &Acceptable, cx: &mut Context) -> Option<Reply> {
        let seg = acceptable.segment();
        if seg.payload.is_empty() && !seg.flags.contains(Flags::FIN) {
            return None;
        }
        if matches!(self.state, State::CloseWait | State::Closing | State::LastAck) {
            // RFC 9293 3.10.7.4: nothing can follow a FIN; a repeated one is acknowledged.
            self.set(flag::ACK_NOW, true);
            return None;
        }
        if self.orphaned() && !seg.payload.is_empty() && (seg.seq + seg.payload.len() as u32).after(self.rcv.nxt()) {
            // RFC 2525 2.17, RFC 9293 3.10.4: nobody will read it.
            cx.counters.data_after_close += 1;
            self.close_now(None, cx);
            cx.counters.resets_out += 1;
            return reset_for(seg);
        }
        let InWindow { seq, data, fin, known, beyond } = self.rcv.trim(acceptable);
        if let Some((left, right)) = known {
            self.note_duplicate(left, right);
            self.set(flag::ACK_NOW, true);
            self.receiver.ack_quickly();
        }
        cx.counters.beyond_window += beyond as u64;
        if seq != self.rcv.nxt() {
            self.take_out_of_order(seq, data, fin, cx);
            return None;
        }
        if !data.is_empty() && !self.take_in_order(data, seg.longest().min(data.len()), cx) {
            return None;
        }
        if !self.receiver.is_in_order() {
            self.drain_reassembly(cx);
        }
        if fin == Some(self.rcv.nxt()) {
            self.take_fin(cx);
        }
        None
    }

    /// Appends in-order bytes, which came in segments of `segment`; `false` when some did not fit into memory.
    pub(crate) fn take_in_order(&mut self, data: &[u8], segment: usize, cx: &mut Context) -> bool {
        let took = self.receiver.push(cx.pool, data);
        cx.counters.in_order += 1;
        self.accept_bytes(took as u32, segment, cx);
        if took < data.len() {
            // Not acknowledged, so the peer sends it again when memory has come back.
            cx.counters.no_chunks += 1;
            self.set(flag::ACK_NOW, true);
            return false;
        }
        true
    }

    fn accept_bytes(&mut self, bytes: u32, segment: usize, cx: &mut Context) {
        self.rcv.advance(bytes);
        self.stats.bytes_received += bytes as u64;
        self.put_notice(Notice::DATA);
        self.note_ce(cx);
        self.receiver.measure(segment, &self.rcv, self.rtt.rto(cx.config), cx.now);
        self.schedule_ack(segment, cx);
    }

    fn take_out_of_order(&mut self, seq: SeqNum, data: &[u8], fin: Option<SeqNum>, cx: &mut Context) {
        self.stats.ooo_in = self.stats.ooo_in.wrapping_add(1);
        self.note_ce(cx);
        let Inserted { kept, duplicate } = self.receiver.insert(cx.pool, seq, data, fin);
        match kept {
            true => cx.counters.out_of_order += 1,
            false => cx.counters.out_of_order_dropped += 1,
        }
        if let Some((left, right)) = duplicate {
            self.note_duplicate(left, right);
        }
        // RFC 5681 4.2: at once, so that the sender sees duplicates.
        self.duplicate_ack(cx);
    }

    fn drain_reassembly(&mut self, cx: &mut Context) {
        let Some(mut ooo) = self.receiver.take_out_of_order() else { return };
        // RFC 2883 4: what fills the gap may bring again what lies above it; as Linux, the first such run.
        if let (Some((left, right)), false) = (ooo.overlap(self.rcv.nxt()), self.receiver.has_duplicate()) {
            self.note_duplicate(left, right);
        }
        while let Some(chain) = ooo.take(cx.pool, self.rcv.nxt()) {
            let bytes = chain.len();
            self.receiver.append(cx.pool, chain);
            self.accept_bytes(bytes as u32, 0, cx);
        }
        // RFC 5681 4.2: a segment that fills a gap is acknowledged at once.
        self.set(flag::ACK_NOW, true);
        if ooo.fin_at(self.rcv.nxt()) {
            ooo.free(cx.pool);
            self.take_fin(cx);
        } else if !ooo.is_empty() {
            self.receiver.keep_out_of_order(ooo);
        }
    }

    /// RFC 9293 3.10.7.4, eighth: the FIN.
    pub(crate) fn take_fin(&mut self, cx: &mut Context) {
        if self.has(flag::FIN_RECEIVED) {
            return;
        }
        self.rcv.take_fin();
        self.set(flag::FIN_RECEIVED | flag::ACK_NOW, true);
        if !self.orphaned() {
            self.put_notice(Notice::FIN);
            self.set(flag::ACK_LATER, true);
        }
        match self.state {
            State::SynReceived | State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(),
            _ => {}
        }
        self.arm_keepalive(cx);
    }

    fn enter_time_wait(&mut self) {
        self.state = State::TimeWait;
        self.timers.stop();
        self.timers.live_on();
    }

    /// An ACK that only repeats (RFC 9293 3.10.7.4).
    pub(crate) fn duplicate_ack(&mut self, _cx: &mut Context) {
        self.set(flag::ACK_NOW, true);
    }

    /// The ACK that a segment out of the window asks for. One that carries no data may itself be such an answer: twice a
    /// second is enough, or two ends could answer each other for ever (RFC 5961 10, Linux's tcp_invalid_ratelimit).
    fn answer_invalid(&mut self, seg: &Segment, cx: &mut Context) {
        let loops = seg.payload.is_empty() || seg.flags.contains(Flags::SYN);
        if loops && !self.may_answer(cx) {
            return;
        }
        self.duplicate_ack(cx);
    }

    fn may_answer(&mut self, cx: &mut Context) -> bool {
        let now = cx.now.millis() as u32;
        let wait = cx.config.invalid_ratelimit.as_millis() as u32;
        let may = self.timers.may_answer(now, wait);
        cx.counters.acks_limited += !may as u64;
        may
    }

    /// RFC 5961 7: challenge ACKs are limited, for each connection by itself.
    fn challenge(&mut self, cx: &mut Context) {
        if self.may_answer(cx) {
            cx.counters.challenge_acks += 1;
            self.set(flag::ACK_NOW, true);
        }
    }
}
