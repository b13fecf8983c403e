//! From frames to connections: Ethernet, IP, and the demultiplexing of TCP segments.

use tcp::State;
use wire::burst::{RxBurst, RxChecksum, RxFrame};
use wire::tcp::{Flags, Options, Ordinary, Segment};
use wire::{Addr, Instant, Malformed, SeqNum, arp, ethernet, ipv4, ipv6};

use crate::FlowKey;
use crate::InterfaceId;
use crate::conns::conn::Conn;
use crate::counters::DropReason;
use crate::demux::Owner;
use crate::demux::flows::Place;
use crate::demux::time_wait::TimeWait;
use crate::engine::ahead::GROUP;
use crate::engine::headers::sum;
use crate::engine::train::{Train, may_follow};
use crate::engine::{Stack, context};
use crate::link::Source;
use crate::link::replies::Raw;

/// Other lanes, whose frames may come by ours.
pub trait OtherLanes {
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
impl OtherLanes for () {
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
pub(super) enum Fate {
    Taken,
    /// Nothing: it belongs to no connection of ours under this hash.
    Unknown(u32),
    /// It is another lane's.
    Given,
}

/// What is known of the burst, or of its last frame.
#[derive(Default)]
pub(crate) struct Burst {
    /// The connection whose text was the last frame: it is not settled, since more of the same may follow.
    pub unsettled: Option<u32>,
    /// A packet whose last fragment was the last frame: whose it is has not been asked.
    pub reassembled: Option<Vec<u8>>,
    /// Whose queue the frames came by, where that is known.
    pub came_by: Option<u16>,
}

/// Congestion experienced.
pub(crate) const CE: u8 = 3;

/// Whether a segment's checksum is right, as far as the port has not seen to that.
#[inline(always)]
pub(super) fn sum_ok(src: Addr, dst: Addr, bytes: &[u8], frame: &RxFrame) -> bool {
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
        S: OtherLanes,
    {
        if self.link.get(interface).is_none() || burst.is_empty() {
            return;
        }
        self.conns.now = now;
        self.counters.bursts += 1;
        let mut train: Option<Train> = None;
        let asked = others.asked();
        self.burst.came_by = others.came_by();
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
            if let Some(id) = self.burst.unsettled.take() {
                if i + 1 < burst.len() && may_follow(&frame, &burst.frame(i + 1)) {
                    train = Some(Train::new(id, &frame));
                } else {
                    self.settle_straight(now, id, Place::UNKNOWN);
                }
            }
        }
        if let Some(t) = train {
            self.settle(now, t.id);
        }
        self.wake_resolved(now);
        self.link.ask(&mut self.counters);
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
        if let Some(bytes) = self.burst.reassembled.take() {
            self.note_fragmenting(now, interface, &bytes);
            let packet = RxFrame::new(&bytes, RxChecksum::Unknown);
            if !give(self, packet) {
                // The queue of fragments is not that of the tuple.
                let came_by = self.burst.came_by.take();
                // It has no fragment header, so this leaves no other.
                let taken = self.take_frame(now, interface, packet);
                self.burst.came_by = came_by;
                taken?;
            }
        }
        Ok(Fate::Taken)
    }

    fn take_frame(&mut self, now: Instant, interface: InterfaceId, frame: RxFrame) -> Result<(), DropReason> {
        let eth = ethernet::Frame::parse(frame.data).map_err(|_| DropReason::Malformed)?;
        let i = &self.link[interface];
        if !on_link(eth.vlan, i.vlan()) {
            return Err(DropReason::NotOurLink);
        }
        let to_group = eth.dst.is_multicast();
        if eth.dst != i.mac() && !to_group {
            return Err(DropReason::NotOurLink);
        }
        match eth.ethertype {
            ethernet::IPV4 => {
                let ip = ipv4::Packet::parse(eth.payload).map_err(ip_drop)?;
                let (src, dst) = (ip.src, ip.dst);
                if src.is_multicast() || src.is_broadcast() || src.is_unspecified() || src.is_loopback() {
                    return Err(DropReason::BadSource);
                }
                if !self.link[interface].has(dst) {
                    return Err(DropReason::NotOurAddress);
                }
                if to_group {
                    // RFC 1122 3.3.6: sent to all on the link, addressed to us alone.
                    return Err(DropReason::NotOurLink);
                }
                if self.link[interface].owns(src) {
                    // RFC 1122 3.2.1.3: nobody else speaks for us ("LAND").
                    return Err(DropReason::BadSource);
                }
                if ip.is_fragment() {
                    return self.take_fragment(now, interface, frame.data);
                }
                let source = Source { interface, mac: eth.src, src, dst, ecn: ip.tos & 3 };
                match ip.protocol {
                    ipv4::TCP => self.take_tcp(now, source, ip.payload, &frame),
                    ipv4::ICMP => {
                        let error = self.link.take_icmpv4(now, source, &ip, &mut self.counters)?;
                        self.take_icmp_error(now, interface, error)
                    }
                    protocol => self.take_other(now, source, protocol, 0, eth.payload),
                }
            }
            ethernet::IPV6 => {
                let ip = ipv6::Packet::parse(eth.payload)
                    .map_err(|m| self.link.refused_v6(now, interface, &eth, m, &mut self.counters))?;
                let (src, dst) = (ip.src, ip.dst);
                if src.is_multicast() || src.is_loopback() {
                    return Err(DropReason::BadSource);
                }
                let ours = self.link[interface].has(dst);
                // RFC 4861: neighbour discovery speaks to solicited-node and all-nodes groups.
                let group = dst.is_multicast() && ip.next_header == ipv6::ICMPV6;
                if !ours && !group {
                    return Err(DropReason::NotOurAddress);
                }
                // Neighbour discovery hears of those who take our address for theirs.
                if !group && self.link[interface].owns(src) {
                    return Err(DropReason::BadSource);
                }
                if ip.fragment.is_some_and(|f| f.offset != 0 || f.more) {
                    return self.take_fragment(now, interface, frame.data);
                }
                let source = Source { interface, mac: eth.src, src, dst, ecn: ip.traffic_class & 3 };
                match ip.next_header {
                    ipv6::TCP if to_group || src.is_unspecified() => Err(DropReason::BadSource),
                    ipv6::TCP => self.take_tcp(now, source, ip.payload, &frame),
                    ipv6::ICMPV6 => {
                        let error = self.link.take_icmpv6(now, source, &ip, &mut self.counters)?;
                        self.take_icmp_error(now, interface, error)
                    }
                    ipv6::NO_NEXT_HEADER => Ok(()),
                    protocol if !to_group => self.take_other(now, source, protocol, ip.named_at, eth.payload),
                    _ => Err(DropReason::Protocol),
                }
            }
            ethernet::ARP => {
                let packet = arp::Packet::parse(eth.payload).map_err(|_| DropReason::Malformed)?;
                self.link.take_arp(now, interface, &packet, &mut self.counters)
            }
            _ => Err(DropReason::EtherType),
        }
    }

    fn take_fragment(&mut self, now: Instant, interface: InterfaceId, frame: &[u8]) -> Result<(), DropReason> {
        self.burst.reassembled = self.link.take_fragment(now, interface, frame, &mut self.counters)?;
        Ok(())
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
    pub(super) fn take_segment(
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
    pub(super) fn take_common(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Segment,
        hash: Option<u32>,
        ours: bool,
    ) -> Result<Fate, DropReason> {
        let key = source.key(seg.dst_port, seg.src_port);
        let hash = hash.unwrap_or_else(|| self.demux.hash(&key));
        let found = self.demux.find(&self.conns, &key, hash).map(|(owner, _)| owner);
        // What is remembered of a connection may be older than one that another lane has.
        if !ours && found.is_none_or(Owner::is_over) {
            return Ok(Fate::Unknown(hash));
        }
        self.counters.segments_in += seg.count() as u64;
        let taken = match found {
            Some(Owner::TimeWait(t)) => self.in_time_wait(now, source, seg, key, hash, t),
            Some(Owner::Handshake(id)) => self.in_handshake(now, source, seg, hash, id),
            Some(Owner::Connection(id)) => self.take_odd(now, source, seg, &key, id),
            None => self.without_connection(now, source, seg, key, hash, None),
        };
        taken.map(|()| Fate::Taken)
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
        let Some(Conn { tcb, pool, .. }) = self.conns.get_mut(id) else { return Err(DropReason::NoSocket) };
        if source.ecn == CE {
            tcb.congestion_experienced();
        }
        let syn_sent = tcb.state() == State::SynSent;
        if seg.flags.intersects(Flags::URG | Flags::SYN) {
            if seg.flags.contains(Flags::URG) {
                tcb.note_urgent(seg);
            }
            if let Some(lane) = self.burst.came_by
                && syn_sent
            {
                self.demux.answered(key, lane, &mut self.counters);
            }
        }
        let reply = tcb.on_segment(seg, &mut context!(self, now, *pool));
        if syn_sent && tcb.state() != State::SynSent {
            self.demux.synchronized(key);
        }
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
        let listener = if silent { self.demux.listeners.find(&key) } else { None };
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
        t: u32,
    ) -> Result<(), DropReason> {
        let Some(&record) = self.demux.time_wait(t) else { return Err(DropReason::NoSocket) };
        let TimeWait { snd_nxt, rcv_nxt, challenged, .. } = record;
        let ts = record.ts();
        let has = |flag| seg.flags.contains(flag);
        if has(Flags::RST) {
            // RFC 1337 3: old RSTs must not end the wait. One that answers the ACK we sent to a SYN is not old: the peer has
            // no memory of the connection and will send its SYN again.
            if challenged && seg.seq == rcv_nxt {
                self.demux.forget(t, hash, &mut self.counters);
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
        if opens && fresh && self.demux.listeners.find(&key).is_some() {
            self.demux.forget(t, hash, &mut self.counters);
            return self.without_connection(now, source, seg, key, hash, Some(snd_nxt));
        }
        if opens {
            self.demux.time_waits_mut().challenge(t);
        }
        let len = seg.payload.len() as u32 + has(Flags::FIN) as u32 + has(Flags::SYN) as u32;
        if has(Flags::FIN) && seg.seq + len == rcv_nxt {
            self.demux.time_waits_mut().restart(t, now);
        }
        if len == 0 && seg.seq == rcv_nxt {
            return Ok(());
        }
        // What carries no data may itself be such an answer.
        let loops = seg.payload.is_empty() && !has(Flags::FIN);
        if loops && !self.demux.time_waits_mut().may_answer(t, now, self.config.tcp.invalid_ratelimit) {
            self.counters.tcp.acks_limited += 1;
            return Ok(());
        }
        let header = record.ack(now);
        self.link.push(
            source.interface,
            Raw::Tcp { mac: source.mac, key, header, class: 0, hops: 0 },
            &mut self.counters,
        );
        Ok(())
    }

    /// A segment outside any connection goes back the way its cause came.
    pub(super) fn reply(&mut self, source: Source, seg: &Segment, reply: tcp::Reply) {
        let key = source.key(seg.dst_port, seg.src_port);
        let header = key.header(reply.seq, reply.ack, reply.flags, 0, Options::default());
        self.link.push(
            source.interface,
            Raw::Tcp { mac: source.mac, key, header, class: 0, hops: 0 },
            &mut self.counters,
        );
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
        let dedicated = self.link[source.interface].is_dedicated();
        if dedicated && !source.dst.is_multicast() && !source.src.is_unspecified() {
            self.link.send_unreachable(now, source, protocol, named_at, packet, &mut self.counters);
        }
        Err(DropReason::Protocol)
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

fn ip_drop(m: Malformed) -> DropReason {
    match m {
        Malformed::BadChecksum => DropReason::IpChecksum,
        _ => DropReason::Malformed,
    }
}
