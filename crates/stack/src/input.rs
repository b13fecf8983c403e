//! From frames to connections: Ethernet, IP, and the demultiplexing of TCP segments.

use tcp::State;
use wire::burst::{RxBurst, RxChecksum, RxFrame};
use wire::tcp::{Flags, Header, Options, Ordinary, Segment, Syn};
use wire::{Addr, Instant, MacAddr, Malformed, SeqNum, arp, ethernet, ipv4, ipv6};

use crate::Mode;
use crate::ahead::GROUP;
use crate::conn::Conn;
use crate::counters::DropReason;
use crate::engine::{EMBRYO, Stack, TIME_WAIT, context};
use crate::flows::FlowKey;
use crate::fragments::Fragment;
use crate::replies::Raw;
use crate::route::InterfaceId;
use crate::time_wait::TimeWait;
use crate::train::Train;

/// Where a packet came from, for replies.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub interface: InterfaceId,
    pub mac: MacAddr,
    pub src: Addr,
    pub dst: Addr,
    /// The ECN bits of its IP header (RFC 3168 5).
    pub ecn: u8,
}

impl Source {
    /// The tuple of a packet from there, with these ports.
    #[inline(always)]
    pub fn key(&self, local_port: u16, remote_port: u16) -> FlowKey {
        FlowKey { interface: self.interface, local: self.dst, remote: self.src, local_port, remote_port }
    }
}

/// Other lanes, whose frames may come by ours.
pub trait Strangers {
    /// Which frames of the burst they are asked about. What is put together here is offered to them always.
    fn asked(&self) -> Asked;

    /// The lane by whose queue the burst came.
    fn came_by(&self) -> Option<u16>;

    /// Whether frame `index` of the burst is theirs, and was given to them.
    fn take(&mut self, stack: &Stack, index: usize, frame: RxFrame, sought: Sought) -> bool;
}

/// What the stack has done with a frame before it asks whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// Nothing: [`Stack::serves`] tells whether a connection here has it.
    Not,
    /// It was looked for in vain among the connections here.
    InVain,
    /// It was put together: frame `index` was the last fragment. Those were asked about as fragments; it is not yet.
    Reassembled,
}

/// Which frames other lanes are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// None: there are no others, or they were asked before.
    Never,
    /// Those of the common shape that belong to no connection of ours, and all uncommon ones: what a connection here has is
    /// ours, so the common frame asks nobody.
    Unknown,
    /// All, before a connection of ours is looked for.
    First,
}

/// There are none.
impl Strangers for () {
    fn asked(&self) -> Asked {
        Asked::Never
    }

    fn came_by(&self) -> Option<u16> {
        None
    }

    fn take(&mut self, _: &Stack, _: usize, _: RxFrame, _: Sought) -> bool {
        false
    }
}

/// What became of a frame that was not dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Taken,
    /// Nothing: it belongs to no connection of ours under this hash.
    Unknown(u32),
    /// It is another lane's.
    Given,
}

/// Congestion experienced.
pub(crate) const CE: u8 = 3;

/// A checksum's sum, of long segments by the CPU's widest loads.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> wire::checksum::Sum {
    wire::checksum::sum_with(bytes, mem::sum::ones)
}

/// Whether a segment's checksum is right, as far as the port has not seen to that.
#[inline(always)]
fn sum_ok(src: Addr, dst: Addr, bytes: &[u8], frame: &RxFrame) -> bool {
    frame.checksum == RxChecksum::Verified || check(src, dst, bytes, frame.checksum)
}

#[inline(never)]
fn check(src: Addr, dst: Addr, bytes: &[u8], checksum: RxChecksum) -> bool {
    checksum == RxChecksum::MayBePartial && wire::tcp::is_pseudo_only(src, dst, bytes)
        || wire::tcp::sum_ok(src, dst, bytes.len(), sum(bytes))
}

impl Stack {
    /// Takes a burst of frames from one interface.
    pub fn receive<B: RxBurst + ?Sized>(&mut self, now: Instant, interface: InterfaceId, burst: &B) {
        self.receive_own(now, interface, burst, &mut ());
    }

    /// The same of a burst that has frames of `others` too.
    #[inline(never)]
    pub fn receive_own<B, S>(&mut self, now: Instant, interface: InterfaceId, burst: &B, others: &mut S)
    where
        B: RxBurst + ?Sized,
        S: Strangers,
    {
        if interface.index() >= self.interfaces.len() || burst.is_empty() {
            return;
        }
        self.conns.now = now;
        self.counters.bursts += 1;
        let mut train: Option<Train> = None;
        let asked = others.asked();
        self.came_by = others.came_by();
        (0..GROUP).for_each(|i| burst.prefetch(i));
        let mut hashes = [None; GROUP];
        for i in 0..burst.len() {
            if i % GROUP == 0 {
                hashes = self.look_ahead(interface, burst, i);
            }
            let frame = burst.frame(i);
            if let Some(t) = train.as_mut() {
                if self.follow(now, t, &frame) {
                    self.counters.frames_in += 1;
                    self.counters.bytes_in += frame.data.len() as u64;
                    continue;
                }
                let id = t.id;
                train = None;
                self.settle(now, id);
            }
            if asked == Asked::First && others.take(self, i, frame, Sought::Not) {
                continue;
            }
            let mut ask =
                |stack: &Stack, frame, sought| asked == Asked::Unknown && others.take(stack, i, frame, sought);
            let hash = hashes[i % GROUP];
            let taken = match self.take_quick(now, interface, &frame, hash, asked != Asked::Unknown, &mut ask) {
                Some(taken) => taken,
                None if ask(self, frame, Sought::Not) => Ok(Fate::Given),
                None => self.take_uncommon(now, interface, frame, |stack, whole| {
                    others.take(stack, i, whole, Sought::Reassembled)
                }),
            };
            match taken {
                Ok(Fate::Given) => continue,
                Ok(_) => {}
                Err(reason) => self.counters.drop(reason),
            }
            self.counters.frames_in += 1;
            self.counters.bytes_in += frame.data.len() as u64;
            if let Some(id) = self.leading.take() {
                train = Some(Train::new(id, &frame));
            }
        }
        if let Some(t) = train {
            self.settle(now, t.id);
        }
        self.wake_resolved(now);
        self.ask_neighbors(now);
    }

    /// Takes a frame of the common shape to and from good addresses, as [`Stack::take_frame`] would; `None`, with nothing
    /// done, where it is another. Unless it is `ours` anyway, `ask` is asked of one that is no connection's.
    #[inline(always)]
    fn take_quick<'a>(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        frame: &RxFrame<'a>,
        hash: Option<u32>,
        ours: bool,
        ask: &mut impl FnMut(&Stack, RxFrame<'a>, Sought) -> bool,
    ) -> Option<Result<Fate, DropReason>> {
        let i = &mut self.interfaces[interface.index()];
        let wire::quick::Tcp4 { mac, src, dst, tos, segment } = wire::quick::read(frame.data, i.config.mac)?;
        if i.config.vlan.is_some() || !i.addresses.admits(src, dst) {
            return None;
        }
        if !sum_ok(src, dst, segment, frame) {
            return Some(Err(DropReason::TcpChecksum));
        }
        let source = Source { interface, mac, src, dst, ecn: tos & 3 };
        let (mut hash, mut ours) = (hash, ours);
        if let Some((ports, seg)) = Ordinary::read(segment, frame.mss)
            && self.take_straight(now, source, ports, &seg, &mut hash)
        {
            return Some(Ok(Fate::Taken));
        }
        if let Some(((src_port, dst_port), syn)) = Syn::read(segment) {
            let key = source.key(dst_port, src_port);
            let hash = *hash.get_or_insert_with(|| self.flows.hash(&key));
            let taken = match (self.find_flow(&key, hash), syn.ack) {
                (None, None) => {
                    if !ours && ask(self, RxFrame { checksum: RxChecksum::Verified, ..*frame }, Sought::InVain) {
                        return Some(Ok(Fate::Given));
                    }
                    // Nobody is asked twice.
                    ours = true;
                    self.take_syn_straight(now, source, key, hash, &syn)
                }
                (Some(id), Some(_)) if id & (EMBRYO | TIME_WAIT) == 0 => {
                    self.take_syn_ack_straight(now, source, &syn, id)
                }
                _ => false,
            };
            if taken {
                return Some(Ok(Fate::Taken));
            }
        }
        let Ok(header) = Segment::header(segment) else { return Some(Err(DropReason::Malformed)) };
        let seg = Segment::behind(segment, header, frame.mss);
        let mut taken = self.take_common(now, source, &seg, hash, ours);
        if let Ok(Fate::Unknown(hash)) = taken {
            if ask(self, RxFrame { checksum: RxChecksum::Verified, ..*frame }, Sought::InVain) {
                return Some(Ok(Fate::Given));
            }
            taken = self.take_segment(now, source, &seg, Some(hash), true);
        }
        Some(taken)
    }

    /// Any frame; `give` is asked whether a packet of which it was the last fragment is another lane's.
    fn take_uncommon(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        frame: RxFrame,
        give: impl FnOnce(&Stack, RxFrame) -> bool,
    ) -> Result<Fate, DropReason> {
        self.take_frame(now, interface, frame)?;
        if let Some(whole) = self.whole.take() {
            self.note_fragmenting(now, interface, &whole);
            let whole = RxFrame::new(&whole, RxChecksum::Unknown);
            if !give(self, whole) {
                // The queue of fragments is not that of the tuple.
                let came_by = self.came_by.take();
                // It has no fragment header, so this leaves no other whole.
                let taken = self.take_frame(now, interface, whole);
                self.came_by = came_by;
                taken?;
            }
        }
        Ok(Fate::Taken)
    }

    fn take_frame(&mut self, now: Instant, interface: InterfaceId, frame: RxFrame) -> Result<(), DropReason> {
        let eth = ethernet::Frame::parse(frame.data).map_err(|_| DropReason::Malformed)?;
        let config = &self.interfaces[interface.index()].config;
        if !on_link(eth.vlan, config.vlan) {
            return Err(DropReason::NotOurLink);
        }
        let to_group = eth.dst.is_multicast();
        if eth.dst != config.mac && !to_group {
            return Err(DropReason::NotOurLink);
        }
        match eth.ethertype {
            ethernet::IPV4 => {
                let ip = ipv4::Packet::parse(eth.payload).map_err(ip_drop)?;
                let (src, dst) = (ip.src, ip.dst);
                if src.is_multicast() || src.is_broadcast() || src.is_unspecified() || src.is_loopback() {
                    return Err(DropReason::BadSource);
                }
                if !self.interfaces[interface.index()].has(dst) {
                    return Err(DropReason::NotOurAddress);
                }
                if to_group {
                    // RFC 1122 3.3.6: sent to all on the link, addressed to us alone.
                    return Err(DropReason::NotOurLink);
                }
                if self.interfaces[interface.index()].owns(src) {
                    // RFC 1122 3.2.1.3: nobody else speaks for us ("LAND").
                    return Err(DropReason::BadSource);
                }
                if ip.is_fragment() {
                    return self.take_fragment(now, interface, frame.data);
                }
                let source = Source { interface, mac: eth.src, src, dst, ecn: ip.tos & 3 };
                match ip.protocol {
                    ipv4::TCP => self.take_tcp(now, source, ip.payload, &frame),
                    ipv4::ICMP => self.take_icmpv4(now, source, &ip),
                    protocol => self.take_other(now, source, protocol, 0, eth.payload),
                }
            }
            ethernet::IPV6 => {
                let ip = ipv6::Packet::parse(eth.payload).map_err(|m| self.refused_v6(now, interface, &eth, m))?;
                let (src, dst) = (ip.src, ip.dst);
                if src.is_multicast() || src.is_loopback() {
                    return Err(DropReason::BadSource);
                }
                let ours = self.interfaces[interface.index()].has(dst);
                // RFC 4861: neighbour discovery speaks to solicited-node and all-nodes groups.
                let group = dst.is_multicast() && ip.next_header == ipv6::ICMPV6;
                if !ours && !group {
                    return Err(DropReason::NotOurAddress);
                }
                // Neighbour discovery hears of those who take our address for theirs.
                if !group && self.interfaces[interface.index()].owns(src) {
                    return Err(DropReason::BadSource);
                }
                if ip.fragment.is_some_and(|f| f.offset != 0 || f.more) {
                    return self.take_fragment(now, interface, frame.data);
                }
                let source = Source { interface, mac: eth.src, src, dst, ecn: ip.traffic_class & 3 };
                match ip.next_header {
                    ipv6::TCP if to_group || src.is_unspecified() => Err(DropReason::BadSource),
                    ipv6::TCP => self.take_tcp(now, source, ip.payload, &frame),
                    ipv6::ICMPV6 => self.take_icmpv6(now, source, &ip),
                    ipv6::NO_NEXT_HEADER => Ok(()),
                    protocol if !to_group => self.take_other(now, source, protocol, ip.named_at, eth.payload),
                    _ => Err(DropReason::Protocol),
                }
            }
            ethernet::ARP => {
                let packet = arp::Packet::parse(eth.payload).map_err(|_| DropReason::Malformed)?;
                self.take_arp(now, interface, &packet)
            }
            _ => Err(DropReason::EtherType),
        }
    }

    fn take_fragment(&mut self, now: Instant, interface: InterfaceId, frame: &[u8]) -> Result<(), DropReason> {
        let fate = self.reassembler.push(now, interface, frame);
        for _ in 0..core::mem::take(&mut self.reassembler.evicted) {
            self.counters.drop(DropReason::FragmentLimit);
        }
        match fate {
            Fragment::Kept => Ok(()),
            Fragment::Dropped(reason) => Err(reason),
            Fragment::Complete(whole) => {
                self.counters.reassembled += 1;
                self.whole = Some(whole);
                Ok(())
            }
        }
    }

    fn take_tcp(&mut self, now: Instant, source: Source, bytes: &[u8], frame: &RxFrame) -> Result<(), DropReason> {
        if !sum_ok(source.src, source.dst, bytes, frame) {
            // RFC 9293 3.1, MUST-3.
            return Err(DropReason::TcpChecksum);
        }
        let mut hash = None;
        if let Some((ports, seg)) = Ordinary::read(bytes, frame.mss)
            && self.take_straight(now, source, ports, &seg, &mut hash)
        {
            return Ok(());
        }
        let seg = Segment::parse_merged(bytes, frame.mss).map_err(|_| DropReason::Malformed)?;
        self.take_segment(now, source, &seg, hash, true).map(|_| ())
    }

    /// [`Stack::take_common`] where a call does not matter.
    #[inline(never)]
    fn take_segment(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Segment,
        hash: Option<u32>,
        ours: bool,
    ) -> Result<Fate, DropReason> {
        self.take_common(now, source, seg, hash, ours)
    }

    /// `hash` is the tuple's, where it is known. Nothing is done with what belongs to no connection and may not be `ours`.
    #[inline(always)]
    fn take_common(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Segment,
        hash: Option<u32>,
        ours: bool,
    ) -> Result<Fate, DropReason> {
        let key = source.key(seg.dst_port, seg.src_port);
        let hash = hash.unwrap_or_else(|| self.flows.hash(&key));
        let found = self.find_flow(&key, hash);
        // What is remembered of a connection may be older than one that another lane has.
        if !ours && found.is_none_or(|value| value & TIME_WAIT != 0) {
            return Ok(Fate::Unknown(hash));
        }
        self.counters.segments_in += seg.count() as u64;
        let taken = match found {
            Some(value) if value & TIME_WAIT != 0 => self.in_time_wait(now, source, seg, key, hash, value),
            Some(value) if value & EMBRYO != 0 => self.in_handshake(now, source, seg, hash, value & !EMBRYO),
            Some(id) => self.take_odd(now, source, seg, &key, id),
            None => self.without_connection(now, source, seg, key, hash, None),
        };
        taken.map(|()| Fate::Taken)
    }

    /// The straight path: an ordinary segment of a connection, or of a handshake that it ends, from `ports` to ours. `false`, with
    /// nothing done but that the tuple's `hash` is known, where it is neither, or not ready for it.
    #[inline(always)]
    fn take_straight(
        &mut self,
        now: Instant,
        source: Source,
        (src_port, dst_port): (u16, u16),
        seg: &Ordinary,
        hash: &mut Option<u32>,
    ) -> bool {
        let key = source.key(dst_port, src_port);
        let hash = *hash.get_or_insert_with(|| self.flows.hash(&key));
        let Some(id) = self.find_flow(&key, hash).filter(|value| value & TIME_WAIT == 0 && source.ecn != CE) else {
            return false;
        };
        if id & EMBRYO != 0 {
            return self.open_straight(now, source, seg, hash, id & !EMBRYO);
        }
        let Some(c) = self.conns.get_mut(id) else { return false };
        if !c.tcb.straight(seg, &mut context!(self, now)) {
            return false;
        }
        self.counters.segments_in += seg.count() as u64;
        if !seg.payload.is_empty() && !seg.fin {
            // What follows it may be more of the same.
            self.leading = Some(id);
        } else {
            self.settle_straight(now, id);
        }
        true
    }

    /// The straight path of an active open's end; `false`, with nothing done, where it is not so simple.
    #[inline(always)]
    fn take_syn_ack_straight(&mut self, now: Instant, source: Source, syn: &Syn, id: u32) -> bool {
        let Some(c) = self.conns.whole_mut(id) else { return false };
        if source.ecn == CE || self.learning.is_some() || !c.tcb.connect_straight(syn, &mut context!(self, now)) {
            return false;
        }
        self.counters.segments_in += 1;
        self.settle_straight(now, id);
        true
    }

    /// Any segment of connection `id`.
    #[inline(never)]
    fn take_odd(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Segment,
        key: &FlowKey,
        id: u32,
    ) -> Result<(), DropReason> {
        let Some(Conn { tcb, .. }) = self.conns.get_mut(id) else { return Err(DropReason::NoSocket) };
        if source.ecn == CE {
            tcb.congestion_experienced();
        }
        if seg.flags.intersects(Flags::URG | Flags::SYN) {
            if seg.flags.contains(Flags::URG) {
                tcb.note_urgent(seg);
            }
            if let (Some(learning), Some(lane)) = (&mut self.learning, self.came_by)
                && tcb.state() == State::SynSent
            {
                learning.answered(key, lane, lane == self.config.lane, &mut self.counters);
            }
        }
        let reply = tcb.on_segment(seg, &mut context!(self, now));
        if let Some(reply) = reply {
            self.reply(source, seg, reply);
        }
        self.settle(now, id);
        Ok(())
    }

    /// RFC 9293 3.10.7.1 and 3.10.7.2: CLOSED and LISTEN. `after` is the sequence number that an earlier connection of the
    /// same tuple reached.
    fn without_connection(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Segment,
        key: FlowKey,
        hash: u32,
        after: Option<SeqNum>,
    ) -> Result<(), DropReason> {
        let has = |flag| seg.flags.contains(flag);
        let silent = !has(Flags::ACK) && !has(Flags::RST);
        let listener = if silent { self.listeners.find(&key) } else { None };
        if let Some(listener) = listener {
            // RFC 9293 3.10.7.2, fourth: what has neither SYN nor ACK is dropped; Linux does so with SYN and FIN together.
            if !has(Flags::SYN) || has(Flags::FIN) {
                return Err(DropReason::NoSocket);
            }
            return self.take_syn(now, source, seg, key, hash, listener, after);
        }
        if let Some(taken) = self.take_cookie(now, source, seg, key, hash) {
            return taken;
        }
        if has(Flags::RST) {
            return Ok(());
        }
        self.refuse(source, seg);
        Err(DropReason::NoSocket)
    }

    /// RFC 9293 3.10.7.4 for TIME-WAIT, with RFC 6191's reuse and RFC 1337's deafness to RST.
    fn in_time_wait(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Segment,
        key: FlowKey,
        hash: u32,
        value: u32,
    ) -> Result<(), DropReason> {
        let t = value & !TIME_WAIT;
        let Some(&record) = self.time_waits.get(t) else { return Err(DropReason::NoSocket) };
        let TimeWait { snd_nxt, rcv_nxt, challenged, .. } = record;
        let ts = record.ts();
        let has = |flag| seg.flags.contains(flag);
        if has(Flags::RST) {
            // RFC 1337 3: old RSTs must not end the wait. One that answers the ACK we sent to a SYN is not old: the peer has
            // no memory of the connection and will send its SYN again.
            if challenged && seg.seq == rcv_nxt {
                self.drop_time_wait(value, hash);
            }
            return Ok(());
        }
        // A SYN with FIN opens nothing (`without_connection` drops it), so it does not end the wait either (MUST-13).
        let opens = has(Flags::SYN) && !has(Flags::ACK) && !has(Flags::FIN);
        let stamped = seg.options.timestamps.filter(|_| self.config.tcp.timestamps);
        // RFC 6191 2: a newer timestamp, or the first one, or a higher sequence number, is a new connection.
        let fresh = match (ts, stamped) {
            (Some(recent), Some(ts)) if ts.value != recent => (ts.value.wrapping_sub(recent) as i32) > 0,
            (None, Some(_)) => true,
            _ => seg.seq.after(rcv_nxt),
        };
        if opens && fresh && self.listeners.find(&key).is_some() {
            self.drop_time_wait(value, hash);
            return self.without_connection(now, source, seg, key, hash, Some(snd_nxt));
        }
        if opens {
            self.time_waits.challenge(t);
        }
        let len = seg.payload.len() as u32 + has(Flags::FIN) as u32 + has(Flags::SYN) as u32;
        if has(Flags::FIN) && seg.seq + len == rcv_nxt {
            self.time_waits.restart(t, now);
        }
        if len == 0 && seg.seq == rcv_nxt {
            return Ok(());
        }
        // What carries no data may itself be such an answer.
        let loops = seg.payload.is_empty() && !has(Flags::FIN);
        if loops && !self.time_waits.may_answer(t, now, self.config.tcp.invalid_ratelimit) {
            self.counters.tcp.acks_limited += 1;
            return Ok(());
        }
        let header = record.ack(now);
        self.push_raw(source.interface, Raw::Tcp { mac: source.mac, key, header, class: 0, hops: 0 });
        Ok(())
    }

    /// A segment outside any connection goes back the way its cause came.
    pub(crate) fn reply(&mut self, source: Source, seg: &Segment, reply: tcp::Reply) {
        let key = source.key(seg.dst_port, seg.src_port);
        let header = bare(&key, reply.seq, reply.ack, reply.flags, 0, Options::default());
        self.push_raw(source.interface, Raw::Tcp { mac: source.mac, key, header, class: 0, hops: 0 });
    }

    /// A protocol we do not speak: said so where we own the address (RFC 1122 3.2.2.1).
    fn take_other(
        &mut self,
        now: Instant,
        source: Source,
        protocol: u8,
        named_at: u16,
        packet: &[u8],
    ) -> Result<(), DropReason> {
        let dedicated = self.interfaces[source.interface.index()].config.mode == Mode::Dedicated;
        if dedicated && !source.dst.is_multicast() && !source.src.is_unspecified() {
            self.send_unreachable(now, source, protocol, named_at, packet);
        }
        Err(DropReason::Protocol)
    }

    /// Whether a connection in this state may be found by an ICMP error.
    pub(crate) fn live(&self, id: u32) -> bool {
        self.conns
            .whole(id)
            .map_or(self.conns.key(id).is_some(), |c| !matches!(c.tcb.state(), State::Closed | State::TimeWait))
    }
}

/// Whether a frame with this tag is of the link whose frames have the 802.1Q tag `ours`, or none. A priority tag (VLAN 0) is no
/// VLAN (IEEE 802.1Q 6.9.1); a service tag (802.1ad) is another link's, whatever its identifier.
fn on_link(tag: Option<ethernet::Vlan>, ours: Option<u16>) -> bool {
    match tag {
        None => ours.is_none(),
        Some(tag) if tag.kind == ethernet::Tag::Customer => (tag.id != 0).then_some(tag.id) == ours,
        Some(_) => false,
    }
}

/// A segment without text.
pub(crate) fn bare(key: &FlowKey, seq: SeqNum, ack: SeqNum, flags: Flags, window: u16, options: Options) -> Header {
    Header { src_port: key.local_port, dst_port: key.remote_port, seq, ack, flags, window, urgent: 0, options }
}

fn ip_drop(m: Malformed) -> DropReason {
    match m {
        Malformed::BadChecksum => DropReason::IpChecksum,
        _ => DropReason::Malformed,
    }
}
