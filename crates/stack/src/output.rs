//! Out to the wire: replies first, then the control, ACK and data lists (mTCP 3.2), framed straight into the port's
//! memory.

use tcp::Outgoing;
use wire::burst::{Gso, PARTS, PartialChecksum, TxCaps, TxOffload, TxSink};
use wire::quick::Headers;
use wire::tcp::{Flags, Header};
use wire::{Addr, Instant, MacAddr, SeqNum, arp, ethernet, ipv4, ipv6};

use crate::channel::Failure;
use crate::conn::Conn;
use crate::counters::DropReason;
use crate::engine::{HANDSHAKE, NO_NEIGHBOR, NO_ROUTE, Stack, context};
use crate::flows::FlowKey;
use crate::interface::{Interface, InterfaceConfig};
use crate::neighbor::{Hop, Neighbors};
use crate::queues::{Entry, queued};
use crate::route::{InterfaceId, Routes};
use crate::settle::watch;

/// Most replies that wait outside connections.
const RAW_LIMIT: usize = 512;
/// Segments that one connection sends before the next one has its turn: a burst of frames of the link, or more where the
/// port cuts; with many waiting, so few that the list comes round soon, and that most have as many: then all send alike,
/// whatever they have been able to queue.
const SHARE: usize = 32;
const ROUND: usize = 2048;
const LEAST: usize = 4;
/// Segments of data in a turn, about; and while more frames wait to be received than a turn takes: acknowledgments of these
/// are then no more than it takes, and what waits to be sent waits here, where it is sent by turns, rather than behind ACKs
/// in the device.
const TURN: u64 = 2048;
const TURN_BEHIND: u64 = 128;
/// Longest IP packet.
const LONGEST: usize = 65_535;
pub(crate) const TTL: u8 = 64;

/// A frame outside any connection.
pub(crate) enum Raw {
    /// A bare TCP segment: a SYN/ACK with a cookie, a RST, an ACK for TIME-WAIT.
    /// `hops` of 0 is the default.
    Tcp { mac: MacAddr, key: FlowKey, header: Header, class: u8, hops: u8 },
    /// The SYN/ACK of a handshake's record, if that is still there.
    SynAck { handshake: u32 },
    /// The ACK of a TIME-WAIT record, if that is still there.
    TimeWait { record: u32, mac: MacAddr },
    /// Who has `target`?
    Solicit { target: Addr, source: Addr, unicast: Option<MacAddr> },
    /// An ARP reply.
    Arp { mac: MacAddr, packet: arp::Packet },
    /// A whole IP packet.
    Packet { mac: MacAddr, ethertype: u16, bytes: Vec<u8> },
}

/// What the straight path did for a connection.
enum Straight {
    /// It sent all that there was.
    Sent,
    /// The port takes no more frames.
    Full,
    /// Nothing: it is for the general way.
    Not,
}

enum Progress {
    /// The connection has nothing more to send now.
    Idle,
    /// It has had its share.
    More,
    /// The port takes no more frames.
    Full,
}

impl Stack {
    pub(crate) fn push_raw(&mut self, interface: InterfaceId, raw: Raw) {
        let queue = &mut self.interfaces[interface.index()].raw;
        if queue.len() >= RAW_LIMIT {
            self.counters.drop(DropReason::ReplyQueue);
            return;
        }
        queue.push_back(raw);
    }

    /// Whether the answers to a burst that comes by `interface` would find room. Where the port sends too slowly for them,
    /// what it received is better left where it is.
    pub fn can_answer(&self, interface: InterfaceId) -> bool {
        self.interfaces.get(interface.index()).is_none_or(|i| i.raw.len() <= RAW_LIMIT / 2)
    }

    /// Sends what waits for `interface`, as far as the port takes it; how many frames went.
    pub fn transmit<S: TxSink + ?Sized>(&mut self, now: Instant, interface: InterfaceId, sink: &mut S) -> usize {
        let i = interface.index();
        if i >= self.interfaces.len() || !self.interfaces[i].waiting() {
            return 0;
        }
        let before = self.counters.frames_out;
        let caps = sink.caps();
        let mut full = self.drain_raw(now, interface, sink, caps);
        if !full {
            let via = Via::new(&self.interfaces[i], interface, caps, sink.gathers());
            full = [queued::CONTROL, queued::ACK, queued::DATA].iter().any(|bit| self.drain(now, *bit, &via, sink));
        }
        if !full && !self.neighbors.questions.is_empty() {
            // Hops that turned out to be unknown are asked for at once.
            self.ask_neighbors(now);
            self.drain_raw(now, interface, sink, caps);
        }
        let i = &mut self.interfaces[i];
        i.acks.append(&mut i.later);
        (self.counters.frames_out - before) as usize
    }

    /// The replies; whether the port is full.
    fn drain_raw<S: TxSink + ?Sized>(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        sink: &mut S,
        caps: TxCaps,
    ) -> bool {
        let i = interface.index();
        while let Some(raw) = self.interfaces[i].raw.pop_front() {
            let sent = match raw {
                Raw::SynAck { handshake } => self.send_syn_ack(now, interface, handshake, sink, caps),
                Raw::TimeWait { record, mac } => self.send_last_ack(now, interface, (record, mac), sink, caps),
                _ => self.send_raw(interface, &raw, sink, caps),
            };
            if !sent {
                self.interfaces[i].raw.push_front(raw);
                return true;
            }
        }
        false
    }

    /// One list, each connection at most once; whether the port is full.
    fn drain<S: TxSink + ?Sized>(&mut self, now: Instant, bit: u8, via: &Via, sink: &mut S) -> bool {
        let i = via.interface.index();
        if self.list(i, bit).is_empty() {
            return false;
        }
        // What joins the list meanwhile is for the next time.
        let spare = core::mem::take(&mut self.interfaces[i].spare);
        let mut entries = core::mem::replace(self.list(i, bit), spare);
        let (share, most) = match bit {
            queued::DATA => {
                let share = (ROUND / entries.len()).clamp(LEAST, if via.caps.max_gso > 0 { ROUND } else { SHARE });
                let most = self.most_data();
                (share.min(most as usize), most)
            }
            _ => (SHARE, u64::MAX),
        };
        let begun = self.counters.segments_out;
        // An ACK rides on data where there is some to send: the data list comes next, and is done in this turn or the next.
        let rides = self.interfaces[i].data.len() as u64 * LEAST as u64 <= self.most_data();
        let (mut full, mut done) = (false, 0);
        for entry in &entries {
            let before = self.counters.segments_out;
            if before - begun >= most {
                break;
            }
            if !self.drain_one(now, *entry, (bit, rides), via, share, sink) {
                full = true;
                // It has had its turn if it sent anything: else it would begin each of them.
                if bit == queued::DATA && self.counters.segments_out > before {
                    self.list(i, bit).push(*entry);
                    done += 1;
                }
                break;
            }
            done += 1;
        }
        if done < entries.len() {
            entries.drain(..done);
            entries.append(self.list(i, bit));
            self.interfaces[i].spare = core::mem::replace(self.list(i, bit), entries);
        } else {
            entries.clear();
            self.interfaces[i].spare = entries;
        }
        full
    }

    /// One connection of a list; `false`, and it is to be there again, when the port is full.
    #[inline(always)]
    fn drain_one<S: TxSink + ?Sized>(
        &mut self,
        now: Instant,
        entry: Entry,
        (bit, rides): (u8, bool),
        via: &Via,
        share: usize,
        sink: &mut S,
    ) -> bool {
        let (i, id) = (via.interface.index(), entry.id);
        let Some(word) = self.queues.take(entry, bit) else { return true };
        if bit == queued::ACK {
            if rides && word.has(queued::DATA) {
                return true;
            }
            if self.conns.get_mut(id).is_some_and(|c| c.tcb.defer_ack()) {
                word.insert(bit);
                self.interfaces[i].later.push(entry);
                return true;
            }
        }
        match self.send_straight(now, id, via, sink) {
            Straight::Sent => return true,
            Straight::Full => {
                self.queues[id].insert(bit);
                return false;
            }
            Straight::Not => {}
        }
        match self.send_conn(now, id, via, share, sink) {
            Progress::Idle => self.settle_sent(now, id),
            Progress::More => {
                self.settle_sent(now, id);
                if self.queues.is_current(entry) && !self.queues[id].has(bit) {
                    self.queues[id].insert(bit);
                    self.list(i, bit).push(entry);
                }
            }
            Progress::Full => {
                self.queues[id].insert(bit);
                return false;
            }
        }
        true
    }

    /// Segments of data that a turn sends, about.
    fn most_data(&self) -> u64 {
        if self.intake.behind { TURN_BEHIND } else { TURN }
    }

    fn list(&mut self, i: usize, bit: u8) -> &mut Vec<Entry> {
        let interface = &mut self.interfaces[i];
        match bit {
            queued::CONTROL => &mut interface.control,
            queued::ACK => &mut interface.acks,
            _ => &mut interface.data,
        }
    }

    /// A connection with something to send and nowhere to send it.
    #[cold]
    fn without_hop(&mut self, now: Instant, id: u32, waits: bool) {
        if waits {
            let word = &mut self.queues[id];
            if !word.has(queued::HOP)
                && let Some(c) = self.conns.whole(id)
            {
                word.insert(queued::HOP);
                self.neighbors.wait(c.neighbor, word.entry(id));
            }
            return;
        }
        let Some(c) = self.conns.whole_mut(id) else { return };
        let no_route = c.neighbor == NO_ROUTE;
        self.counters.drop(if no_route { DropReason::NoRoute } else { DropReason::NoNeighbor });
        let mut cx = context!(self, now);
        if c.tcb.unreachable(true, None, &mut cx) && no_route {
            c.trouble = Some(Failure::NetworkUnreachable);
        }
        // Lost like on any link: an open connection's timers send it again, or give up in the end.
        for _ in 0..SHARE {
            let smss = c.tcb.segment_size() as u32;
            if c.tcb.next_segment(smss, &mut cx).is_none() {
                break;
            }
        }
    }

    /// Looks for a connection's next hop where it knows none, or where tables have changed. It waits for another one no more.
    #[inline(never)]
    pub(crate) fn find_hop(&mut self, now: Instant, id: u32) {
        let Some(c) = self.conns.get_mut(id) else { return };
        if c.epoch == self.neighbors.epoch {
            return;
        }
        let before = c.neighbor;
        let interface = &self.interfaces[c.key.interface.index()];
        find_neighbor(&mut self.routes, &mut self.neighbors, interface, now, c);
        if c.neighbor != before && self.queues[id].has(queued::HOP) {
            self.queues[id].remove(queued::HOP);
            self.neighbors.leave(before, &self.conns, &self.queues);
        }
    }

    /// The next hop of a connection that is opened by a handshake on `interface`, as far as it is known.
    pub(crate) fn passive_hop(&mut self, interface: InterfaceId, remote: Addr) -> (u32, u32) {
        match self.routes.known_hop(interface, remote) {
            Some(hop) => hop,
            None if self.interfaces[interface.index()].reaches(remote) => (NO_NEIGHBOR, 0),
            None => (HANDSHAKE, self.neighbors.epoch),
        }
    }

    /// The straight path: one ordinary segment, in a frame of the common shape, to a neighbour that is known.
    #[inline(always)]
    fn send_straight<S: TxSink + ?Sized>(&mut self, now: Instant, id: u32, via: &Via, sink: &mut S) -> Straight {
        let Some(c) = self.conns.whole_mut(id) else { return Straight::Not };
        let plain = via.plain && c.epoch == self.neighbors.epoch && !(c.fragments | c.cut) && c.key.remote.is_v4();
        if !plain {
            return Straight::Not;
        }
        let Hop::Known(to) = self.neighbors.hop(now, c.neighbor) else { return Straight::Not };
        let Some(buf) = sink.reserve(via.room) else { return Straight::Full };
        let Some(head) = buf.first_chunk_mut() else { return Straight::Not };
        let mut cx = context!(self, now);
        let Some(out) = c.tcb.send_straight(&mut cx) else { return Straight::Not };
        let FlowKey { local: src, remote: dst, local_port: src_port, remote_port: dst_port, .. } = c.key;
        let (tos, ttl) = (c.traffic_class | out.ecn, if c.hop_limit == 0 { TTL } else { c.hop_limit });
        let tcp::Simple { seq, ack, flags, window, timestamps, len, .. } = out;
        let headers = Headers { to, from: via.mac, src, dst, tos, ttl, src_port, dst_port, seq, ack, flags, window };
        let text = headers.write_ordinary(head, timestamps, len as usize);
        let end = text + len as usize;
        if len > 0 {
            c.tcb.copy_text(&out, &mut buf[text..end], cx.pool);
        }
        let offload = finish_bare(&mut buf[..end], via.caps);
        sink.commit(end, offload);
        self.counters.frames_out += 1;
        self.counters.bytes_out += end as u64;
        self.counters.segments_out += 1;
        // Sending brings no news; when to look again is all that it can have changed, unless the connection is over.
        if c.tcb.is_over() || c.tcb.has_knobs() {
            self.settle_sent(now, id);
        } else {
            let idle = c.tcb.is_idle();
            watch(now, id, c, idle, &mut self.queues[id], &mut self.alarms, &mut self.resting);
        }
        Straight::Sent
    }

    #[inline(always)]
    fn send_conn<S: TxSink + ?Sized>(
        &mut self,
        now: Instant,
        id: u32,
        via: &Via,
        share: usize,
        sink: &mut S,
    ) -> Progress {
        if via.asking && self.hold(id) {
            return Progress::Idle;
        }
        let Some(mut c) = self.conns.get_mut(id) else { return Progress::Idle };
        if c.key.interface != via.interface {
            // No entry of another interface's connection is on the list.
            debug_assert!(false, "connection {id} is not the interface's");
            return Progress::Idle;
        }
        if c.epoch != self.neighbors.epoch {
            self.find_hop(now, id);
            match self.conns.get_mut(id) {
                Some(again) => c = again,
                None => return Progress::Idle,
            }
        }
        let to = match self.neighbors.hop(now, c.neighbor) {
            Hop::Known(mac) => mac,
            _ if let (HANDSHAKE, Some(mac)) = (c.neighbor, c.came_from) => mac,
            hop => {
                self.without_hop(now, id, matches!(hop, Hop::Wait));
                return Progress::Idle;
            }
        };
        let urgent = c.tcb.urgent_out();
        let frames = Frames::new(via, c, to, urgent);
        let mut left = share;
        while left > 0 {
            let smss = c.tcb.segment_size() as usize;
            let mut cx = context!(self, now);
            if c.cut && c.tcb.snd_una() == c.tcb.snd_nxt() {
                c.cut = false;
            }
            if urgent || c.fragments || c.tcb.unsent() as usize <= smss {
                // What most connections have to send: one segment, in a frame of its own. (Of several cut by hardware each
                // would repeat the urgent pointer; fragments need an identification each.)
                // Behind cut ones it is reserved like them, so that it does not overtake them.
                let large = c.cut && c.tcb.wants_data();
                let room = if large { frames.large_room(via, smss) } else { via.room };
                let Some(buf) = sink.reserve(room) else { return Progress::Full };
                let Some(out) = c.tcb.next_segment(smss as u32, &mut cx) else { return Progress::Idle };
                let end = frames.headers(c, &out, buf) + out.len as usize;
                frames.finish(c, &out, &mut buf[..end], cx.pool);
                sink.commit(end, frames.offload(None));
                self.counters.frames_out += 1;
                self.counters.bytes_out += end as u64;
                self.counters.segments_out += 1;
                left -= 1;
                if c.tcb.all_sent(&mut cx) {
                    return Progress::Idle;
                }
                continue;
            }
            let mut sent = Sent::default();
            let burst = frames.send_burst(c, via, smss, left, sink, &mut cx, &mut sent);
            self.counters.frames_out += sent.frames;
            self.counters.bytes_out += sent.bytes;
            self.counters.segments_out += sent.segments;
            if let Err(progress) = burst {
                return progress;
            }
            left = left.saturating_sub(sent.segments as usize);
            if c.tcb.all_sent(&mut context!(self, now)) {
                return Progress::Idle;
            }
        }
        Progress::More
    }

    /// The SYN/ACK of a handshake; `false` where the port is full.
    #[inline(always)]
    fn send_syn_ack<S: TxSink + ?Sized>(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        handshake: u32,
        sink: &mut S,
        caps: TxCaps,
    ) -> bool {
        let Some(&e) = self.syns.get(handshake).filter(|e| e.interface == interface) else { return true };
        let (out, class, hops) = self.syn_ack_of(now, &e);
        let i = &self.interfaces[interface.index()];
        if e.key.remote.is_v4() && i.config.vlan.is_none() {
            let Some(buf) = sink.reserve(128) else { return false };
            let ttl = if hops == 0 { TTL } else { hops };
            let headers =
                headers_of(&e.key, (e.mac, i.config.mac), (class, ttl), (out.seq, out.ack, out.flags, out.window));
            if let Some(end) = headers.write_syn(buf, &out.options) {
                let offload = finish_bare(&mut buf[..end], caps);
                sink.commit(end, offload);
                self.count_bare(end);
                return true;
            }
        }
        let header = out.header(e.key.local_port, e.key.remote_port);
        self.send_bare(interface, (e.mac, &e.key), &header, (class, hops), sink, caps)
    }

    /// The ACK of a TIME-WAIT record; `false` where the port is full.
    #[inline(always)]
    fn send_last_ack<S: TxSink + ?Sized>(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        (record, mac): (u32, MacAddr),
        sink: &mut S,
        caps: TxCaps,
    ) -> bool {
        let Some(r) = self.time_waits.get(record).filter(|r| r.key.interface == interface) else { return true };
        let i = &self.interfaces[interface.index()];
        if r.key.remote.is_v4() && i.config.vlan.is_none() {
            let Some(buf) = sink.reserve(128) else { return false };
            let Some(head) = buf.first_chunk_mut() else { return false };
            let headers =
                headers_of(&r.key, (mac, i.config.mac), (0, TTL), (r.snd_nxt, r.rcv_nxt, Flags::ACK, r.window));
            let end = headers.write_ordinary(head, r.stamps(now), 0);
            let offload = finish_bare(&mut buf[..end], caps);
            sink.commit(end, offload);
            self.count_bare(end);
            return true;
        }
        let (key, header) = (r.key, r.ack(now));
        self.send_bare(interface, (mac, &key), &header, (0, 0), sink, caps)
    }

    fn count_bare(&mut self, bytes: usize) {
        self.counters.segments_out += 1;
        self.counters.frames_out += 1;
        self.counters.bytes_out += bytes as u64;
    }

    /// A segment outside any connection; `false` where the port is full.
    #[inline(always)]
    fn send_bare<S: TxSink + ?Sized>(
        &mut self,
        interface: InterfaceId,
        (mac, key): (MacAddr, &FlowKey),
        header: &Header,
        (class, hops): (u8, u8),
        sink: &mut S,
        caps: TxCaps,
    ) -> bool {
        let i = &self.interfaces[interface.index()];
        let (our_mac, vlan, suggested) = (i.config.mac, i.config.vlan, i.auto.hop_limit);
        let Some(buf) = sink.reserve(128) else { return false };
        let tcp_at = link(vlan) + if key.remote.is_v4() { 20 } else { 40 };
        let end = emit_raw(buf, (mac, our_mac, vlan), key, header, class, hop_limit(key, hops, suggested));
        let offload = if caps.checksum {
            TxOffload { checksum: Some(PartialChecksum { start: tcp_at as u16, offset: 16 }), gso: None }
        } else {
            wire::tcp::finish_checksum(&mut buf[tcp_at..end], crate::input::sum);
            TxOffload::default()
        };
        sink.commit(end, offload);
        self.count_bare(end);
        true
    }

    fn send_raw<S: TxSink + ?Sized>(&mut self, interface: InterfaceId, raw: &Raw, sink: &mut S, caps: TxCaps) -> bool {
        let config = &self.interfaces[interface.index()].config;
        let (our_mac, vlan) = (config.mac, config.vlan);
        let room = match raw {
            Raw::Packet { bytes, .. } => 18 + bytes.len(),
            _ => 128,
        };
        if room > caps.max_frame.max(128) {
            self.counters.drop(DropReason::ReplyQueue);
            return true;
        }
        let Some(buf) = sink.reserve(room) else { return false };
        let (end, offload) = match raw {
            Raw::Tcp { mac, key, header, class, hops } => {
                return self.send_bare(interface, (*mac, key), header, (*class, *hops), sink, caps);
            }
            // By `drain_raw`.
            Raw::SynAck { .. } | Raw::TimeWait { .. } => return true,
            Raw::Solicit { target, source, unicast } => {
                (crate::ndp::solicit(buf, our_mac, vlan, *target, *source, *unicast), TxOffload::default())
            }
            Raw::Arp { mac, packet } => {
                let at = ethernet::emit(buf, *mac, our_mac, vlan, ethernet::ARP);
                (at + packet.emit(&mut buf[at..]), TxOffload::default())
            }
            Raw::Packet { mac, ethertype, bytes } => {
                let at = ethernet::emit(buf, *mac, our_mac, vlan, *ethertype);
                buf[at..at + bytes.len()].copy_from_slice(bytes);
                (at + bytes.len(), TxOffload::default())
            }
        };
        // Ethernet's minimum is the port's or the NIC's to pad.
        sink.commit(end, offload);
        self.counters.frames_out += 1;
        self.counters.bytes_out += end as u64;
        true
    }
}

/// What [`Headers`] needs of a segment outside any connection.
#[inline(always)]
fn headers_of(
    key: &FlowKey,
    (to, from): (MacAddr, MacAddr),
    (tos, ttl): (u8, u8),
    (seq, ack, flags, window): (SeqNum, SeqNum, Flags, u16),
) -> Headers {
    let &FlowKey { local: src, remote: dst, local_port: src_port, remote_port: dst_port, .. } = key;
    Headers { to, from, src, dst, tos, ttl, src_port, dst_port, seq, ack, flags, window }
}

/// The checksum of a frame of the common shape, which is finished here or left to the port.
#[inline(always)]
fn finish_bare(frame: &mut [u8], caps: TxCaps) -> TxOffload {
    if caps.checksum {
        return TxOffload { checksum: Some(PartialChecksum { start: 34, offset: 16 }), gso: None };
    }
    wire::tcp::finish_checksum(&mut frame[34..], crate::input::sum);
    TxOffload::default()
}

/// The IP header in front of `payload` bytes of `protocol`; `hops` is IPv6's hop limit, which routers may suggest.
pub(crate) fn emit_ip(buf: &mut [u8], key: &FlowKey, protocol: u8, payload: usize, hops: u8) -> usize {
    if key.remote.is_v4() {
        let header = ipv4::Header { src: key.local, dst: key.remote, protocol, ttl: TTL, ..ipv4::Header::default() };
        header.emit(buf, payload)
    } else {
        let header = ipv6::Header {
            src: key.local,
            dst: key.remote,
            next_header: protocol,
            hop_limit: hops,
            ..ipv6::Header::default()
        };
        header.emit(buf, payload)
    }
}

/// What was chosen, or the default (0): IPv6 routers may suggest one.
fn hop_limit(key: &FlowKey, chosen: u8, suggested: u8) -> u8 {
    match chosen {
        0 if key.remote.is_v4() => TTL,
        0 => suggested,
        chosen => chosen,
    }
}

/// What the frames that leave by one interface have in common.
struct Via {
    interface: InterfaceId,
    mac: MacAddr,
    vlan: Option<u16>,
    /// What IPv6 routers suggest.
    hop_limit: u8,
    /// Addresses are being asked for: connections may have to wait.
    asking: bool,
    caps: TxCaps,
    /// Sums are left to the port, which need no look at the payload, and it takes frames in parts.
    gathers: bool,
    /// For the largest segment that the link takes, options included.
    room: usize,
    /// The straight path may be taken: no tag, room for its headers, and no address is asked for.
    plain: bool,
}

impl Via {
    fn new(i: &Interface, interface: InterfaceId, caps: TxCaps, gathers: bool) -> Via {
        let InterfaceConfig { mac, vlan, mtu, .. } = i.config;
        Via {
            interface,
            mac,
            vlan,
            hop_limit: i.auto.hop_limit,
            asking: i.auto.asking,
            caps,
            gathers: caps.checksum && gathers,
            room: link(vlan) + mtu as usize,
            plain: vlan.is_none() && !i.auto.asking && mtu as usize >= wire::quick::LONGEST,
        }
    }
}

/// What a burst has sent.
#[derive(Default)]
struct Sent {
    frames: u64,
    bytes: u64,
    segments: u64,
}

/// The neighbour through which a connection sends that knows none, or whose tables have changed: that of the best route by its
/// own interface. None where there is no room for one.
fn find_neighbor(routes: &mut Routes, neighbors: &mut Neighbors, link: &Interface, now: Instant, c: &mut Conn) {
    let FlowKey { interface, remote, .. } = c.key;
    let index = match routes.way_by(interface, remote) {
        Some(way) => {
            let index = neighbors.index(now, interface, way.hop.gateway.unwrap_or(remote));
            if let Some(index) = index {
                // For the connections that come.
                (way.neighbor, way.epoch) = (index, neighbors.epoch);
            }
            index
        }
        None if link.reaches(remote) => neighbors.index(now, interface, remote),
        // Answers go to where the handshake came from.
        None if c.came_from.is_some() => Some(HANDSHAKE),
        None => Some(NO_ROUTE),
    };
    (c.neighbor, c.epoch) = index.map_or((NO_NEIGHBOR, 0), |index| (index, neighbors.epoch));
}

/// What the frames of one connection have in common.
struct Frames {
    /// Hardware addresses of the next hop and of ours.
    to: MacAddr,
    from: MacAddr,
    vlan: Option<u16>,
    hops: u8,
    /// Of the shape that [`Headers`] writes, but for options.
    plain: bool,
    /// Where the TCP header begins.
    tcp_at: usize,
    v4: bool,
    /// The port finishes checksums.
    checksum: bool,
}

impl Frames {
    #[inline(always)]
    fn new(via: &Via, c: &Conn, to: MacAddr, urgent: bool) -> Frames {
        let (v4, vlan) = (c.key.remote.is_v4(), via.vlan);
        Frames {
            to,
            from: via.mac,
            vlan,
            hops: hop_limit(&c.key, c.hop_limit, via.hop_limit),
            plain: v4 && vlan.is_none() && !urgent && !c.fragments,
            tcp_at: link(vlan) + if v4 { 20 } else { 40 },
            v4,
            checksum: via.caps.checksum,
        }
    }

    /// Bytes of all headers, the longest options included.
    fn longest(&self) -> usize {
        self.tcp_at + 60
    }

    /// For a frame that the port cuts.
    fn large_room(&self, via: &Via, payload: usize) -> usize {
        (self.longest() + payload).max(via.caps.max_frame + 1)
    }

    /// Segments that the connection hands out as one: cut by the port, or here (as Linux's GSO).
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn send_burst<S: TxSink + ?Sized>(
        &self,
        c: &mut Conn,
        via: &Via,
        smss: usize,
        left: usize,
        sink: &mut S,
        cx: &mut tcp::Context,
        sent: &mut Sent,
    ) -> Result<(), Progress> {
        let headers = self.longest();
        let max_gso = via.caps.max_gso;
        let together = match max_gso {
            0 => sink.room().min(left),
            gso => gso.saturating_sub(headers) / smss,
        };
        // The IP total length counts too: 64 KiB less headers.
        let payload = together.clamp(1, (LONGEST.saturating_sub(headers) / smss).max(1)) * smss;
        let large = max_gso > 0 && (together > 1 || c.cut && c.tcb.wants_data());
        let room = if large { self.large_room(via, payload) } else { via.room };
        if sink.reserve(room).is_none() {
            return Err(Progress::Full);
        }
        let Some(whole) = c.tcb.next_segment(payload as u32, cx) else { return Err(Progress::Idle) };
        let piece = if max_gso == 0 { smss as u32 } else { u32::MAX };
        let count = if whole.len <= piece { 1 } else { whole.len.div_ceil(piece) };
        for n in 0..count {
            // The port has said that they fit; one that fits no more is lost, as on the wire.
            let Some(buf) = sink.reserve(room) else { break };
            let out = whole.piece(n, count, piece);
            let len = out.len as usize;
            let cut = len > smss;
            c.cut |= large && len > 0;
            let text = self.headers(c, &out, buf);
            let offload = self.offload(cut.then_some((smss, text)));
            sent.frames += 1;
            sent.bytes += (text + len) as u64;
            sent.segments += if cut { len.div_ceil(smss) as u64 } else { 1 };
            if cut && via.gathers {
                let mut parts: [&[u8]; PARTS] = [&[]; PARTS];
                if let Some(n) = c.tcb.gather_payload(&out, cx.pool, &mut parts) {
                    sink.commit_with(text, &parts[..n], offload);
                    continue;
                }
            }
            self.finish(c, &out, &mut buf[..text + len], cx.pool);
            sink.commit(text + len, offload);
        }
        Ok(())
    }

    /// The headers of `out`, the checksum's field holding the folded pseudo-header; their length.
    #[inline(always)]
    fn headers(&self, c: &Conn, out: &Outgoing, buf: &mut [u8]) -> usize {
        if self.plain {
            let &Outgoing { seq, ack, flags, window, .. } = out;
            let FlowKey { local: src, remote: dst, local_port: src_port, remote_port: dst_port, .. } = c.key;
            let (to, from, tos, ttl) = (self.to, self.from, c.traffic_class | out.ecn, self.hops);
            let headers = Headers { to, from, src, dst, tos, ttl, src_port, dst_port, seq, ack, flags, window };
            if let Some(text) = headers.write(buf, &out.options, out.len as usize) {
                return text;
            }
            if let Some(text) = headers.write_syn(buf, &out.options).filter(|_| out.len == 0) {
                return text;
            }
        }
        emit_headers(buf, c, out, (self.to, self.from, self.vlan), self.hops)
    }

    /// The text behind the headers, and the checksum over both where the port does not finish it; `frame` ends with the text.
    #[inline(always)]
    fn finish(&self, c: &mut Conn, out: &Outgoing, frame: &mut [u8], pool: &mem::Side) {
        if out.len > 0 {
            let text = frame.len() - out.len as usize;
            c.tcb.copy_payload(out, &mut frame[text..], pool);
        }
        if !self.checksum {
            wire::tcp::finish_checksum(&mut frame[self.tcp_at..], crate::input::sum);
        }
    }

    /// What is left to the port; `cut` is how long its pieces are and where the headers end.
    #[inline(always)]
    fn offload(&self, cut: Option<(usize, usize)>) -> TxOffload {
        if !self.checksum {
            return TxOffload::default();
        }
        let gso = cut.map(|(mss, header)| Gso { mss: mss as u16, header: header as u16, ipv6: !self.v4 });
        TxOffload { checksum: Some(PartialChecksum { start: self.tcp_at as u16, offset: 16 }), gso }
    }
}

/// All headers of a segment outside any connection, the checksum's field holding the folded pseudo-header; their length.
fn emit_raw(
    buf: &mut [u8],
    (to, from, vlan): (MacAddr, MacAddr, Option<u16>),
    key: &FlowKey,
    header: &Header,
    tos: u8,
    ttl: u8,
) -> usize {
    let v4 = key.remote.is_v4();
    if v4 && vlan.is_none() && header.urgent == 0 {
        let &Header { seq, ack, flags, window, ref options, .. } = header;
        let &FlowKey { local: src, remote: dst, local_port: src_port, remote_port: dst_port, .. } = key;
        let headers = Headers { to, from, src, dst, tos, ttl, src_port, dst_port, seq, ack, flags, window };
        if let Some(end) = headers.write_syn(buf, options).or_else(|| headers.write(buf, options, 0)) {
            return end;
        }
    }
    let at = ethernet::emit(buf, to, from, vlan, if v4 { ethernet::IPV4 } else { ethernet::IPV6 });
    let tcp_at = at + if v4 { 20 } else { 40 };
    let end = tcp_at + header.emit(&mut buf[tcp_at..], header.flags.contains(Flags::SYN));
    emit_tcp_ip(&mut buf[at..], key, tos, ttl, end - tcp_at);
    wire::tcp::fill_pseudo(key.local, key.remote, end - tcp_at, &mut buf[tcp_at..end]);
    end
}

/// Bytes of the link's header.
fn link(vlan: Option<u16>) -> usize {
    14 + if vlan.is_some() { 4 } else { 0 }
}

/// All headers of a segment of any shape, the checksum's field holding the folded pseudo-header; their length.
#[inline(never)]
fn emit_headers(
    buf: &mut [u8],
    c: &Conn,
    out: &Outgoing,
    (mac, our_mac, vlan): (MacAddr, MacAddr, Option<u16>),
    hops: u8,
) -> usize {
    let (key, v4, len) = (&c.key, c.key.remote.is_v4(), out.len as usize);
    let ethertype = if v4 { ethernet::IPV4 } else { ethernet::IPV6 };
    let at = ethernet::emit(buf, mac, our_mac, vlan, ethertype);
    let tcp_at = at + if v4 { 20 } else { 40 };
    let mut header = out.header(key.local_port, key.remote_port);
    c.tcb.mark_urgent(&mut header);
    let text = tcp_at + header.emit(&mut buf[tcp_at..], out.flags.contains(Flags::SYN));
    emit_tcp_ip(&mut buf[at..], key, c.traffic_class | out.ecn, hops, text - tcp_at + len);
    if c.fragments && v4 {
        // RFC 6864 4.3: what may be fragmented needs an identification of its own.
        ipv4::let_fragment(&mut buf[at..], c.tcb.segments_sent() as u16);
    }
    wire::tcp::fill_pseudo(key.local, key.remote, text - tcp_at + len, &mut buf[tcp_at..text]);
    text
}

/// The IP header in front of `payload` bytes of TCP of a connection.
fn emit_tcp_ip(buf: &mut [u8], key: &FlowKey, class: u8, hops: u8, payload: usize) -> usize {
    let (src, dst) = (key.local, key.remote);
    if dst.is_v4() {
        ipv4::Header { src, dst, tos: class, ttl: hops, ..ipv4::Header::default() }.emit(buf, payload)
    } else {
        ipv6::Header { src, dst, traffic_class: class, hop_limit: hops, ..ipv6::Header::default() }.emit(buf, payload)
    }
}
