//! What goes out for no connection: the SYN/ACK of a handshake's record, the ACK of a TIME-WAIT record, resets, cookies, and what the
//! link's own protocols say.

use wire::burst::{PartialChecksum, TxCaps, TxOffload, TxSink};
use wire::quick::Headers;
use wire::tcp::{Flags, Header};
use wire::{Addr, Instant, MacAddr, SeqNum, arp, ethernet, ipv4, ipv6};

use crate::counters::DropReason;
use crate::engine::Stack;
use crate::flows::FlowKey;
use crate::framing::{emit_tcp_ip, link};
use crate::route::InterfaceId;
use crate::time_wait::TimeWait;

/// Most replies that wait outside connections.
const RAW_LIMIT: usize = 512;
pub(crate) const TTL: u8 = 64;

/// A frame outside any connection.
pub(crate) enum Raw {
    /// A bare TCP segment: a SYN/ACK with a cookie, a RST, an ACK for TIME-WAIT.
    /// `hops` of 0 is the default.
    Tcp { mac: MacAddr, key: FlowKey, header: Header, class: u8, hops: u8 },
    /// The SYN/ACK of a handshake's record, if that is still there.
    SynAck { handshake: u32 },
    /// The ACK of a TIME-WAIT record, if that is still there.
    /// Numbers are given out again, so the tuple's hash must be the record's still: the next hop is that tuple's.
    TimeWait { record: u32, hash: u32, mac: MacAddr },
    /// Who has `target`?
    Solicit { target: Addr, source: Addr, unicast: Option<MacAddr> },
    /// An ARP reply.
    Arp { mac: MacAddr, packet: arp::Packet },
    /// A whole IP packet.
    Packet { mac: MacAddr, ethertype: u16, bytes: Vec<u8> },
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

    /// The replies; whether the port is full.
    pub(crate) fn drain_raw<S: TxSink + ?Sized>(
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
                Raw::TimeWait { record, hash, mac } => {
                    self.send_last_ack(now, interface, (record, hash, mac), sink, caps)
                }
                _ => self.send_raw(interface, &raw, sink, caps),
            };
            if !sent {
                self.interfaces[i].raw.push_front(raw);
                return true;
            }
        }
        false
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
        (record, hash, mac): (u32, u32, MacAddr),
        sink: &mut S,
        caps: TxCaps,
    ) -> bool {
        let mine = |r: &&TimeWait| r.hash == hash && r.key.interface == interface;
        let Some(r) = self.time_waits.get(record).filter(mine) else { return true };
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
pub(crate) fn finish_bare(frame: &mut [u8], caps: TxCaps) -> TxOffload {
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
pub(crate) fn hop_limit(key: &FlowKey, chosen: u8, suggested: u8) -> u8 {
    match chosen {
        0 if key.remote.is_v4() => TTL,
        0 => suggested,
        chosen => chosen,
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
