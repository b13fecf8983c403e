//! Passive opens (RFC 9293 3.10.7.2, RFC 4987): from a SYN by way of a record, or of a cookie, to a connection.

use tcp::{Offer, Open, Outgoing, Tcb, reset_for};
use wire::tcp::{Flags, Options, Segment, Timestamps};
use wire::{Instant, MacAddr, SeqNum};

use crate::clients::HOME;
use crate::config::SynCookies;
use crate::conns::conn::{Birth, Stage};
use crate::counters::DropReason;
use crate::demux::cookies::Cookies;
use crate::demux::flows::Place;
use crate::demux::syn_cache::Embryo;
use crate::demux::time_wait::answer;
use crate::engine::input::CE;
use crate::engine::open::beyond;
use crate::engine::{Stack, context};
use crate::link::Source;
use crate::link::replies::{Raw, Reply};
use crate::{FlowKey, InterfaceId};
use protocol::ConnOption;

impl Stack {
    /// A SYN for `listener`. `after` is the sequence number that an earlier connection of the same tuple reached.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn take_syn(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Segment,
        key: FlowKey,
        hash: u32,
        listener: u32,
        after: Option<SeqNum>,
    ) -> Result<(), DropReason> {
        let l = self.demux.listeners.get(listener).ok_or(DropReason::NoSocket)?;
        // Linux's habit: a full accept queue makes SYNs wait for their retransmission.
        if l.ready > l.backlog {
            return Err(DropReason::Backlog);
        }
        let full = l.embryos >= l.backlog.min(self.config.syn_backlog);
        let crowded = self.demux.handshakes().len() >= self.config.max_half_open as usize;
        let cookie = match self.config.syn_cookies {
            SynCookies::Always => true,
            SynCookies::WhenFull => full || crowded,
            SynCookies::Never if full => return Err(DropReason::SynBacklog),
            SynCookies::Never => false,
        };
        let Some(mut open) = self.passive_open(now, &key, listener) else {
            return Err(DropReason::NoSocket);
        };
        let mut offer = Offer::of(seg);
        // RFC 3168 6.1.1: a SYN must not be ECN-capable; a path that marks it cannot be trusted.
        offer.ecn &= source.ecn != CE;
        self.counters.passive_opens += 1;
        if cookie {
            let offer = offer.for_cookie(&self.config.tcp);
            let mss = match offer.mss {
                0 => default_mss(&key),
                mss => mss,
            };
            (open.iss, _) = self.demux.cookies.make(now, &key, offer.seq, mss.min(open.path_mss));
            self.counters.cookies_sent += 1;
            self.send_cookie(now, (source.interface, source.mac), key, &open, &offer, listener);
            return Ok(());
        }
        if let Some(after) = after {
            open.iss = beyond(open.iss, after);
        }
        if crowded && let Some(oldest) = self.demux.handshakes().oldest() {
            self.counters.half_open_evicted += 1;
            self.demux.end_handshake(oldest);
        }
        let mut embryo = Embryo::new(key, hash, &offer, listener, source.mac, source.interface);
        (embryo.iss, embryo.ts_offset) = (open.iss, open.ts_offset);
        (embryo.mss, embryo.receive_buffer) = (open.mss, open.receive_buffer);
        let id = self.demux.begin_handshake(now, embryo).ok_or(DropReason::SynBacklog)?;
        self.link.answer(source.interface, Reply::SynAck { handshake: id }, &mut self.counters);
        Ok(())
    }

    /// How a connection of `listener` is opened.
    fn passive_open(&mut self, now: Instant, key: &FlowKey, listener: u32) -> Option<Open> {
        let (mss, headers) = self.link.offered_mss(key);
        let (iss, ts_offset) = self.demux.initial_sequence(now, key);
        let l = self.demux.listeners.get(listener)?;
        let (mss, receive_buffer) = l.options.limit(mss, l.receive_buffer, self.config.tcp.receive_buffer);
        let path_mss = self.link.path_mss(now, key, mss);
        Some(Open { iss, ts_offset, mss, path_mss, receive_buffer, headers })
    }

    /// How the connection of a record is opened.
    fn open_of(e: &Embryo, path_mss: u16) -> Open {
        let headers = if e.key.remote.is_v4() { 40 } else { 60 };
        let Embryo { iss, ts_offset, mss, receive_buffer, .. } = *e;
        Open { iss, ts_offset, mss, path_mss, receive_buffer, headers }
    }

    /// Bytes that the SYN/ACK of a record offers, and the shift of the window in every segment after it.
    fn first_window(&self, e: &Embryo) -> (u32, u8) {
        let open = Self::open_of(e, e.mss);
        let scaled = self.config.tcp.window_scaling && e.offer().scale.is_some();
        (open.first_window(&self.config.tcp), if scaled { open.scale(&self.config.tcp) } else { 0 })
    }

    /// Sends a SYN/ACK that carries a cookie back the way the SYN came.
    fn send_cookie(
        &mut self,
        now: Instant,
        (interface, mac): (InterfaceId, MacAddr),
        key: FlowKey,
        open: &Open,
        offer: &Offer,
        listener: u32,
    ) {
        let out = Tcb::syn_ack(open, offer, now, &self.config.tcp);
        let mut header = out.header(key.local_port, key.remote_port);
        if let Some(ts) = &mut header.options.timestamps {
            let clock = ts.value.wrapping_sub(open.ts_offset);
            ts.value = tcp::stamp(clock, offer.to_bits()).wrapping_add(open.ts_offset);
        }
        let (class, hops) = self.demux.listeners.get(listener).map_or((0, 0), |l| l.class_and_hops());
        self.link.push(interface, Raw::Tcp { mac, key, header, class, hops }, &mut self.counters);
    }

    /// The SYN/ACK of a record, and its class and hop limit.
    #[inline(always)]
    pub(super) fn syn_ack_of(&mut self, now: Instant, e: &Embryo) -> (Outgoing, u8, u8) {
        let (class, hops) = self.demux.listeners.get(e.listener).map_or((0, 0), |l| l.class_and_hops());
        (Tcb::syn_ack(&Self::open_of(e, e.mss), &e.offer(), now, &self.config.tcp), class, hops)
    }

    fn repeat_syn_ack(&mut self, id: u32) {
        let Some(e) = self.demux.handshake_mut(id) else { return };
        e.set_again();
        let interface = e.interface;
        self.counters.tcp.syn_retransmits += 1;
        self.link.answer(interface, Reply::SynAck { handshake: id }, &mut self.counters);
    }

    /// Whether a segment out of order is answered again: not more often than the limit (Linux's tcp_invalid_ratelimit).
    fn may_answer(&mut self, now: Instant, id: u32) -> bool {
        let gap = self.config.tcp.invalid_ratelimit;
        let allowed = self.demux.handshake_mut(id).is_some_and(|e| answer(&mut e.answered, now, gap));
        self.counters.tcp.acks_limited += !allowed as u64;
        allowed
    }

    /// SYN-RECEIVED (RFC 9293 3.10.7.4; Linux's tcp_check_req).
    pub(super) fn in_handshake(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Segment,
        hash: u32,
        id: u32,
    ) -> Result<(), DropReason> {
        let Some(&e) = self.demux.handshake(id) else { return Err(DropReason::NoSocket) };
        let has = |flag| seg.flags.contains(flag);
        let (rst, syn, ack) = (has(Flags::RST), has(Flags::SYN), has(Flags::ACK));
        let offer = e.offer();
        // RFC 7323 5.3 R1.
        let old = match (offer.timestamp, seg.options.timestamps) {
            (Some(recent), Some(ts)) => !rst && (ts.value.wrapping_sub(recent) as i32) < 0,
            _ => false,
        };
        if syn && !ack && !rst && !old && seg.seq == e.irs {
            // Our SYN/ACK was lost, or is on its way.
            if self.may_answer(now, id) {
                self.demux.rearm_handshake(id, now, e.timeouts);
                self.repeat_syn_ack(id);
            }
            return Ok(());
        }
        // RFC 9293 3.10.7.4: the RST bit is looked at before the ACK field.
        if ack && !rst && seg.ack != e.iss + 1 {
            self.refuse(source, seg);
            return Ok(());
        }
        let rcv_nxt = e.irs + 1;
        let end = seg.seq + seg.payload.len() as u32 + syn as u32 + has(Flags::FIN) as u32;
        let exact = seg.seq == rcv_nxt;
        let inside = exact || {
            let edge = rcv_nxt + self.first_window(&e).0;
            // An empty segment at the right edge is taken, as the connection does it.
            (end.after(rcv_nxt) && seg.seq.before(edge)) || (end == edge && seg.seq == edge && !rst)
        };
        if rst && exact {
            self.counters.tcp.resets_in += 1;
            self.demux.end_handshake(id);
            return Ok(());
        }
        // RFC 5961 3.2 and 4.2: any other RST or SYN in the window is challenged.
        if old || !inside || rst || syn {
            if (inside || !rst) && self.may_answer(now, id) {
                self.acknowledge(now, source, &e);
            }
            return Ok(());
        }
        if !ack {
            return Ok(());
        }
        let Some(l) = self.demux.listeners.get(e.listener) else {
            self.demux.end_handshake(id);
            self.refuse(source, seg);
            return Err(DropReason::NoSocket);
        };
        if l.ready > l.backlog {
            self.counters.accept_overflows += 1;
            if self.config.abort_on_overflow {
                self.demux.end_handshake(id);
                self.refuse(source, seg);
            } else if let Some(e) = self.demux.handshake_mut(id) {
                e.acked = true;
            }
            return Err(DropReason::Backlog);
        }
        let defer = l.options.get(ConnOption::DeferAccept).unwrap_or(0);
        if (e.timeouts as u32) < defer && end == rcv_nxt {
            // TCP_DEFER_ACCEPT: the application wants data.
            self.counters.accepts_deferred += 1;
            if let Some(e) = self.demux.handshake_mut(id) {
                e.acked = true;
            }
            return Ok(());
        }
        // The link may have changed since the SYN came.
        let mss = e.mss.min(self.link.offered_mss(&e.key).0);
        let open = Self::open_of(&e, self.link.path_mss(now, &e.key, mss));
        let sent = e.due.micros().saturating_sub(self.demux.handshakes().timeout(e.timeouts).as_micros() as u64);
        let sent = (!e.again()).then_some(Instant::from_micros(sent));
        let how = (&open, &offer, sent, e.timeouts);
        let new = self.open_passive(now, source, e.key, hash, e.listener, how, Some(id))?;
        self.demux.handshake_is_done(id);
        self.first_segment(now, source, seg, new);
        Ok(())
    }

    /// An ACK outside any connection: it may carry a cookie. `None` where it does not.
    pub(super) fn take_cookie(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Segment,
        key: FlowKey,
        hash: u32,
    ) -> Option<Result<(), DropReason>> {
        let bare = !seg.flags.contains(Flags::SYN) && !seg.flags.contains(Flags::RST);
        if !bare || !seg.flags.contains(Flags::ACK) || !self.demux.cookies.expected(now) {
            return None;
        }
        let listener = self.demux.listeners.find(&key)?;
        let (irs, iss) = (seg.seq - 1, seg.ack - 1);
        let Some(mss) = self.demux.cookies.check(now, &key, irs, iss) else {
            self.counters.cookies_failed += 1;
            // Whoever was turned away by a full queue sends on: what carries the cookie comes again, unless a RST ends it before.
            let overflowed = self.demux.listeners.get(listener)?.overflowed;
            return overflowed.is_some_and(|at| Cookies::returns(at, now)).then_some(Err(DropReason::Backlog));
        };
        self.counters.cookies_received += 1;
        if let Some(l) = self.demux.listeners.get(listener).filter(|l| l.ready > l.backlog) {
            l.overflowed = Some(now);
            self.counters.accept_overflows += 1;
            return Some(Err(DropReason::Backlog));
        }
        let open = Open { iss, ..self.passive_open(now, &key, listener)? };
        let timestamps = seg.options.timestamps.filter(|_| self.config.tcp.timestamps);
        let timestamp = timestamps.map(|ts| ts.value);
        let bare = Offer { seq: irs, window: seg.window, mss, scale: None, timestamp, sack: false, ecn: false };
        let offer = match timestamps {
            Some(ts) => bare.with_bits(ts.echo.wrapping_sub(open.ts_offset)),
            None => bare,
        };
        let opened = self.open_passive(now, source, key, hash, listener, (&open, &offer, None, 0), None);
        Some(opened.map(|id| self.first_segment(now, source, seg, id)))
    }

    /// The connection in SYN-RECEIVED, its ACK still to be processed; it takes the place of the `handshake` in the flow table.
    #[allow(clippy::too_many_arguments)]
    fn open_passive(
        &mut self,
        now: Instant,
        source: Source,
        key: FlowKey,
        hash: u32,
        listener: u32,
        (open, offer, sent, retries): (&Open, &Offer, Option<Instant>, u8),
        handshake: Option<u32>,
    ) -> Result<u32, DropReason> {
        let l = self.demux.listeners.get(listener).ok_or(DropReason::NoSocket)?;
        let (pool, seat) = (HOME, l.seat);
        let hop = self.link.passive_hop(source.interface, key.remote);
        let birth = Birth { key, hash, hop, came_from: Some(source.mac), listener, pool, seat, stage: Stage::Embryo };
        let resume = |tcb: &mut Tcb, cx: &mut tcp::Context| tcb.resume(open, offer, sent, retries, cx);
        let id =
            self.admit(now, birth, handshake.map(|h| (h, Place::UNKNOWN)), resume).ok_or(DropReason::NoConnection)?;
        if let Some(l) = self.demux.listeners.get(listener)
            && !l.options.is_empty()
            && let Some(c) = self.conns.get_mut(id)
        {
            l.options.apply(c, &mut context!(self, now, c.pool));
        }
        // A record was counted as this is now.
        if let (None, Some(l)) = (handshake, self.demux.listeners.get(listener)) {
            l.embryos += 1;
        }
        Ok(id)
    }

    fn first_segment(&mut self, now: Instant, source: Source, seg: &Segment, id: u32) {
        let reply = self.conns.get_mut(id).and_then(|c| c.tcb.on_segment(seg, &mut context!(self, now, c.pool)));
        if let Some(reply) = reply {
            self.reply(source, seg, reply);
        }
        self.settle(now, id);
    }

    /// A RST for a segment that fits nothing.
    pub(super) fn refuse(&mut self, source: Source, seg: &Segment) {
        if let Some(reply) = reset_for(seg) {
            self.counters.resets_out += 1;
            self.reply(source, seg, reply);
        }
    }

    /// The ACK that a handshake's record sends: what was expected.
    fn acknowledge(&mut self, now: Instant, source: Source, e: &Embryo) {
        let ts_offset = e.ts_offset;
        let value = (now.millis() as u32).wrapping_add(ts_offset);
        let timestamps = e.offer().timestamp.filter(|_| self.config.tcp.timestamps);
        let options = Options { timestamps: timestamps.map(|echo| Timestamps { value, echo }), ..Options::default() };
        // RFC 7323 2.3: scaled as in every segment but a SYN; rounded up, so that the edge stays (RFC 9293 SHLD-14).
        let (window, shift) = self.first_window(e);
        let window = (window + ((1 << shift) - 1)) >> shift;
        let header = e.key.header(e.iss + 1, e.irs + 1, Flags::ACK, window as u16, options);
        self.counters.tcp.challenge_acks += 1;
        self.link.push(
            source.interface,
            Raw::Tcp { mac: source.mac, key: e.key, header, class: 0, hops: 0 },
            &mut self.counters,
        );
    }

    /// An ICMP error about a SYN/ACK: believed when it quotes ours (RFC 5927 4.1), fatal where it is hard (RFC 9293
    /// 3.9.2.2).
    pub(super) fn handshake_trouble(&mut self, id: u32, seq: Option<SeqNum>, hard: bool) -> Result<(), DropReason> {
        let ours = self.demux.handshake(id).is_some_and(|e| seq.is_none_or(|seq| seq == e.iss));
        if !ours {
            return Err(DropReason::IcmpUnmatched);
        }
        if hard {
            self.demux.end_handshake(id);
        }
        Ok(())
    }

    /// SYN/ACKs that are due again, and records that were not answered (Linux's reqsk_timer_handler).
    pub(super) fn expire_handshakes(&mut self, now: Instant) {
        while let Some(id) = self.demux.handshakes().due(now) {
            let Some(&Embryo { listener, timeouts, acked, .. }) = self.demux.handshake(id) else { break };
            let Some(l) = self.demux.listeners.get(listener) else {
                self.demux.end_handshake(id);
                continue;
            };
            let n = timeouts as u32;
            let max = l.options.get(ConnOption::SynCount).unwrap_or(self.config.tcp.synack_retries as u32);
            let defer = l.options.get(ConnOption::DeferAccept).unwrap_or(0);
            // While data is waited for, nothing is sent but the last time, so that an ACK can still establish it.
            let over = n >= max && (defer == 0 || !acked || n >= defer);
            let resend = defer == 0 || !acked || n + 1 >= defer;
            if over || timeouts == u8::MAX {
                self.counters.half_open_expired += 1;
                self.demux.end_handshake(id);
                continue;
            }
            self.demux.rearm_handshake(id, now, timeouts + 1);
            if resend {
                self.repeat_syn_ack(id);
            }
        }
    }
}

/// RFC 9293 3.7.1 (MUST-15, MUST-16): what the peer takes when it does not say.
fn default_mss(key: &FlowKey) -> u16 {
    if key.remote.is_v4() { 536 } else { 1220 }
}
