//! What to send next (RFC 9293 3.8, 3.10.2): lost segments first, then new data as the windows allow, then bare ACKs.

use mem::Side;
use wire::tcp::{Flags, Header, Options, Segment};
use wire::{Instant, SeqNum};

use crate::State;
use crate::sent::mark;
use crate::tcb::{Context, Tcb, flag};

/// A segment of a connection, ready to be framed.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack`.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// The window field as it goes on the wire.
    pub window: u16,
    /// Options.
    pub options: Options,
    /// Where the payload starts in the send queue.
    offset: u32,
    /// Payload bytes.
    pub len: u32,
    /// Taken from the cursor, in order, rather than from the middle of the queue.
    fresh: bool,
}

/// A segment outside any connection's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack`.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
}

/// RFC 9293 3.10.7.1: the RST that answers a segment for which there is no connection; none answers a RST.
pub fn reset_for(seg: &Segment) -> Option<Reply> {
    if seg.flags.contains(Flags::RST) {
        return None;
    }
    if seg.flags.contains(Flags::ACK) {
        return Some(Reply { seq: seg.ack, ack: SeqNum(0), flags: Flags::RST });
    }
    let len = seg.payload.len() as u32 + seg.flags.contains(Flags::SYN) as u32 + seg.flags.contains(Flags::FIN) as u32;
    Some(Reply { seq: SeqNum(0), ack: seg.seq + len, flags: Flags::RST | Flags::ACK })
}

impl Tcb {
    /// SYN, FIN or RST waits to be sent without data: the paper's control list.
    pub fn wants_control(&self) -> bool {
        self.has(flag::RST_PENDING)
            || match self.state {
                State::SynSent | State::SynReceived => self.snd_nxt == self.iss || self.lost > 0,
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
        self.lost > 0
            || self.has(flag::PROBE_NOW)
            || self.unsent() > 0
            || (self.has(flag::SHUTDOWN) && !self.has(flag::FIN_SENT))
    }

    fn can_send(&self) -> bool {
        matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck
        )
    }

    /// The next segment, or `None` when nothing may go now. `max` is the longest payload of one frame (a multiple of
    /// segments where the port cuts them), at least one segment.
    pub fn next_segment(&mut self, max: u32, cx: &mut Context) -> Option<Outgoing> {
        if self.has(flag::RST_PENDING) {
            self.set(flag::RST_PENDING, false);
            cx.counters.resets_out += 1;
            let mut out = self.segment(self.snd_nxt, Flags::RST | Flags::ACK, 0, 0, cx);
            out.window = 0;
            return Some(out);
        }
        match self.state {
            State::SynSent | State::SynReceived => return self.next_syn(cx),
            State::Closed | State::Listen => return None,
            State::TimeWait => return self.bare_ack(cx),
            _ => {}
        }
        self.retransmission(cx)
            .or_else(|| self.new_data(max, cx))
            .or_else(|| self.probe(cx))
            .or_else(|| self.bare_ack(cx))
    }

    fn next_syn(&mut self, cx: &mut Context) -> Option<Outgoing> {
        let first = self.snd_nxt == self.iss;
        if !first && self.lost == 0 {
            return None;
        }
        let flags = if self.state == State::SynSent { Flags::SYN } else { Flags::SYN | Flags::ACK };
        let now = cx.now.micros() as u32;
        if first {
            self.sent.push(cx.sent, self.iss, 1, now, mark::SYN);
            self.snd_nxt = self.iss + 1;
            self.progress_at = cx.now;
        } else {
            cx.counters.syn_retransmits += 1;
            self.retrans += 1;
            self.lost = 0;
            if let Some(s) = self.sent.front(cx.sent) {
                s.marks = mark::SYN | mark::AGAIN;
                s.at = now;
            }
            // RFC 6298 5.7: a lost SYN makes the RTO three seconds when data starts; Linux keeps one second. The initial
            // window is one segment then (RFC 5681 3.1).
            let smss = self.smss as u32;
            self.control.get_mut().set_cwnd(smss);
        }
        if self.rto_at == Instant::FAR || first {
            self.arm_rto(cx);
        }
        Some(self.segment(self.iss, flags, 0, 0, cx))
    }

    /// A segment marked lost, cut to the present segment size.
    fn retransmission(&mut self, cx: &mut Context) -> Option<Outgoing> {
        if self.lost == 0 {
            return None;
        }
        // RFC 5681 3.2, RFC 6675 5: the window holds for retransmissions too, but the first one always goes.
        let flight = self.flight();
        let smss = self.smss as u32;
        if flight > 0 && flight + smss > self.send_window() {
            let front_lost = self.sent.front(cx.sent).is_some_and(|s| s.is(mark::LOST) && !s.is(mark::AGAIN));
            if !front_lost {
                return None;
            }
        }
        let s = self.sent.find_cut(cx.sent, smss, |s| s.is(mark::LOST))?;
        s.marks = (s.marks & !mark::LOST) | mark::AGAIN;
        s.at = cx.now.micros() as u32;
        let (seq, len, fin) = (s.seq, s.len, s.is(mark::FIN));
        self.lost = self.lost.saturating_sub(len);
        let bytes = len - fin as u32;
        match self.recovery.phase {
            crate::recovery::Phase::Recovery => cx.counters.fast_retransmits += 1,
            _ => cx.counters.timeout_retransmits += 1,
        }
        self.retrans += 1;
        self.bytes_retrans += bytes as u64;
        if self.rto_at == Instant::FAR || self.has(flag::PERSIST) {
            self.arm_rto(cx);
        }
        let offset = seq.since(self.base);
        let flags = Flags::ACK | if fin { Flags::FIN } else { Flags::PSH };
        Some(self.segment(seq, flags, offset, bytes, cx))
    }

    fn new_data(&mut self, max: u32, cx: &mut Context) -> Option<Outgoing> {
        if self.has(flag::FIN_SENT) {
            return None;
        }
        let unsent = self.unsent();
        let fin_due = self.has(flag::SHUTDOWN);
        if unsent == 0 && !fin_due {
            return None;
        }
        let smss = self.smss as u32;
        let flight = self.flight();
        let outstanding = self.snd_nxt.since(self.snd_una);
        let window = self.send_window();
        let cwnd_room = window.saturating_sub(flight);
        let peer_room = self.snd_wnd.saturating_sub(outstanding);

        if unsent == 0 {
            // A bare FIN takes no window (Linux's habit); it does not wait for Nagle either.
            return Some(self.send(0, true, cx));
        }
        if cwnd_room < unsent.min(smss) {
            self.set(flag::CWND_LIMITED, true);
            return None;
        }
        let mut len = unsent.min(max).min(peer_room);
        if cwnd_room < len {
            self.set(flag::CWND_LIMITED, true);
            len = cwnd_room;
        }
        // Whole segments only, unless this ends the queue and its last part may go.
        if len > smss && (len < unsent || !self.may_send_partial(len % smss, outstanding, fin_due)) {
            len -= len % smss;
        }
        if len == 0 {
            // RFC 9293 3.8.6.1 (MUST-36): the window is closed and nothing is under way to reopen it.
            if outstanding == 0 && !self.has(flag::PERSIST) {
                self.arm_persist(cx);
            }
            return None;
        }
        if len < smss {
            let last = len == unsent;
            if last {
                if !self.may_send_partial(len, outstanding, fin_due) {
                    return None;
                }
            } else if len < self.max_wnd / 2 {
                // RFC 9293 3.8.6.2.1 (MUST-38): a window too small for a segment waits for more, or for the override.
                if outstanding == 0 && !self.has(flag::PERSIST) {
                    self.arm_persist(cx);
                }
                return None;
            }
        }
        let fin = fin_due && len == unsent;
        if !fin && flight + len + smss > window {
            self.set(flag::CWND_LIMITED, true);
        }
        Some(self.send(len, fin, cx))
    }

    /// Nagle's algorithm (RFC 9293 3.7.4, MUST-17) as Minshall amended it: a partial segment waits only for an earlier
    /// partial one; corked ones wait for more.
    fn may_send_partial(&self, len: u32, outstanding: u32, fin_due: bool) -> bool {
        if fin_due || len == 0 || self.has(flag::PUSH_NOW) {
            return true;
        }
        if self.has(flag::CORK | flag::MORE) {
            return false;
        }
        self.has(flag::NO_DELAY) || outstanding == 0 || !self.snd_sml.after(self.snd_una)
    }

    fn send(&mut self, len: u32, fin: bool, cx: &mut Context) -> Outgoing {
        let seq = self.snd_nxt;
        let offset = seq.since(self.base);
        let mut flags = Flags::ACK;
        let mut marks = 0;
        if self.unsent() == len && len > 0 {
            // RFC 9293 3.9.1 (SHLD-27): PSH on the last segment of what was queued.
            flags = flags | Flags::PSH;
            self.set(flag::PUSH_NOW, false);
        }
        if fin {
            flags = flags | Flags::FIN;
            marks = mark::FIN;
            self.set(flag::FIN_SENT, true);
            self.state = match self.state {
                State::CloseWait => State::LastAck,
                _ => State::FinWait1,
            };
            if self.orphaned() {
                self.life_at = Instant::FAR;
            }
        }
        let occupied = len + fin as u32;
        if self.sent.is_empty() {
            self.progress_at = cx.now;
        }
        self.sent.push(cx.sent, seq, occupied, cx.now.micros() as u32, marks);
        self.snd_nxt += occupied;
        if !len.is_multiple_of(self.smss as u32) {
            self.snd_sml = self.snd_nxt;
        }
        self.bytes_sent += len as u64;
        if self.rto_at == Instant::FAR || self.has(flag::PERSIST) {
            self.arm_rto(cx);
        }
        let mut out = self.segment(seq, flags, offset, len, cx);
        out.fresh = true;
        out
    }

    /// A zero-window or keepalive probe: one sequence number below the window, as Linux sends it, so that any answer
    /// carries the window (RFC 9293 3.8.4 allows it, SHLD-28's byte of data is not needed).
    fn probe(&mut self, cx: &mut Context) -> Option<Outgoing> {
        if !self.has(flag::PROBE_NOW) {
            return None;
        }
        self.set(flag::PROBE_NOW, false);
        cx.counters.window_probes += self.has(flag::PERSIST) as u64;
        // RFC 9293 3.8.6.2.1: the override timeout sends what a small window takes.
        let room = self.snd_wnd.saturating_sub(self.snd_nxt.since(self.snd_una)).min(self.smss as u32);
        let len = room.min(self.unsent());
        if self.has(flag::PERSIST) && len > 0 && self.sent.is_empty() {
            return Some(self.send(len, false, cx));
        }
        Some(self.segment(self.snd_una - 1, Flags::ACK, 0, 0, cx))
    }

    fn bare_ack(&mut self, cx: &mut Context) -> Option<Outgoing> {
        if !self.has(flag::ACK_NOW) {
            return None;
        }
        Some(self.segment(self.snd_nxt, Flags::ACK, 0, 0, cx))
    }

    fn segment(&mut self, seq: SeqNum, flags: Flags, offset: u32, len: u32, cx: &Context) -> Outgoing {
        let syn = flags.contains(Flags::SYN);
        let window = self.offer_window();
        let ack = if flags.contains(Flags::ACK) { self.rcv_nxt } else { SeqNum(0) };
        if flags.contains(Flags::ACK) {
            // Everything received is acknowledged by this (RFC 9293 3.8.6.3).
            self.set(flag::ACK_NOW | flag::ACK_DELAYED | flag::ACK_LATER, false);
            self.ack_at = Instant::FAR;
            self.unacked_in = 0;
            self.last_ack_sent = self.rcv_nxt;
        }
        self.segs_out = self.segs_out.wrapping_add(1);
        let options = self.options(syn, cx);
        Outgoing { seq, ack, flags, window, options, offset, len, fresh: false }
    }

    /// Copies the payload of `out` into `to`, which has its length.
    pub fn copy_payload(&mut self, out: &Outgoing, to: &mut [u8], pool: &Side) {
        match out.fresh {
            true => self.tx.copy_from(pool, &mut self.cursor, out.offset as usize, to),
            false => self.tx.copy_at(pool, out.offset as usize, to),
        };
    }

    /// The segment size now, bytes of payload.
    pub fn smss(&self) -> u16 {
        self.smss
    }
}

impl Outgoing {
    /// The header, for `src_port` → `dst_port`.
    pub fn header(&self, src_port: u16, dst_port: u16) -> Header {
        Header {
            src_port,
            dst_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: 0,
            options: self.options,
        }
    }
}
