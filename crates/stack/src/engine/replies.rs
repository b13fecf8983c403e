//! TCP segments that go out for no connection: the SYN/ACK of a handshake's record, the ACK of a TIME-WAIT record, resets, cookies. What
//! the link's own protocols say goes out between them.

use wire::burst::{PartialChecksum, TxCaps, TxOffload, TxSink};
use wire::quick::Headers;
use wire::tcp::{Flags, Header};
use wire::{Instant, MacAddr, SeqNum, ethernet};

use crate::counters::Counters;
use crate::demux::time_wait::TimeWait;
use crate::engine::Stack;
use crate::engine::headers::{emit_tcp_ip, finish_bare, hop_limit, link, sum};
use crate::link::interface::Interface;
use crate::link::replies::{Raw, Reply, TTL};
use crate::{FlowKey, InterfaceId};

impl Stack {
    /// Whether the answers to a burst that comes by `interface` would find room. Where the port sends too slowly for them,
    /// what it received is better left where it is.
    pub fn can_answer(&self, interface: InterfaceId) -> bool {
        self.link.can_answer(interface)
    }

    /// Sends what waits for no connection; whether the port is full.
    pub(super) fn drain_replies<S: TxSink + ?Sized>(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        sink: &mut S,
        caps: TxCaps,
    ) -> bool {
        while let Some(reply) = self.link.first_reply(interface) {
            let sent = match reply {
                Reply::SynAck { handshake } => self.send_syn_ack(now, interface, handshake, sink, caps),
                Reply::TimeWait { record, hash, mac } => {
                    self.send_last_ack(now, interface, (record, hash, mac), sink, caps)
                }
                Reply::Frame => self.send_frame(interface, sink, caps),
            };
            if !sent {
                return true;
            }
            self.link.reply_left(interface);
        }
        false
    }

    #[inline(never)]
    fn send_frame<S: TxSink + ?Sized>(&mut self, interface: InterfaceId, sink: &mut S, caps: TxCaps) -> bool {
        let Stack { link, counters, .. } = self;
        match link.first_frame(interface) {
            Some(&Raw::Tcp { mac, key, ref header, class, hops }) => {
                send_bare(&link[interface], (mac, &key), header, (class, hops), sink, caps, counters)
            }
            Some(raw) => link.send_frame(interface, raw, sink, caps, counters),
            None => true,
        }
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
        let Some(&e) = self.demux.handshake(handshake).filter(|e| e.interface == interface) else { return true };
        let (out, class, hops) = self.syn_ack_of(now, &e);
        let i = &self.link[interface];
        if e.key.remote.is_v4() && i.vlan().is_none() {
            let Some(buf) = sink.reserve(128) else { return false };
            let ttl = if hops == 0 { TTL } else { hops };
            let headers = headers_of(&e.key, (e.mac, i.mac()), (class, ttl), (out.seq, out.ack, out.flags, out.window));
            if let Some(end) = headers.write_syn(buf, &out.options) {
                let offload = finish_bare(&mut buf[..end], caps);
                sink.commit(end, offload);
                count_bare(end, &mut self.counters);
                return true;
            }
        }
        let header = out.header(e.key.local_port, e.key.remote_port);
        send_bare(i, (e.mac, &e.key), &header, (class, hops), sink, caps, &mut self.counters)
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
        let Some(r) = self.demux.time_wait(record).filter(mine) else { return true };
        let i = &self.link[interface];
        if r.key.remote.is_v4() && i.vlan().is_none() {
            let Some(buf) = sink.reserve(128) else { return false };
            let Some(head) = buf.first_chunk_mut() else { return false };
            let headers = headers_of(&r.key, (mac, i.mac()), (0, TTL), (r.snd_nxt, r.rcv_nxt, Flags::ACK, r.window));
            let end = headers.write_ordinary(head, r.stamps(now), 0);
            let offload = finish_bare(&mut buf[..end], caps);
            sink.commit(end, offload);
            count_bare(end, &mut self.counters);
            return true;
        }
        let (key, header) = (r.key, r.ack(now));
        send_bare(i, (mac, &key), &header, (0, 0), sink, caps, &mut self.counters)
    }
}

fn count_bare(bytes: usize, counters: &mut Counters) {
    counters.segments_out += 1;
    counters.frames_out += 1;
    counters.bytes_out += bytes as u64;
}

/// A segment outside any connection; `false` where the port is full.
fn send_bare<S: TxSink + ?Sized>(
    i: &Interface,
    (mac, key): (MacAddr, &FlowKey),
    header: &Header,
    (class, hops): (u8, u8),
    sink: &mut S,
    caps: TxCaps,
    counters: &mut Counters,
) -> bool {
    let (our_mac, vlan) = (i.mac(), i.vlan());
    let Some(buf) = sink.reserve(128) else { return false };
    let tcp_at = link(vlan) + if key.remote.is_v4() { 20 } else { 40 };
    let end = emit_raw(buf, (mac, our_mac, vlan), key, header, class, hop_limit(key, hops, i.hop_limit()));
    let offload = if caps.checksum {
        TxOffload { checksum: Some(PartialChecksum { start: tcp_at as u16, offset: 16 }), gso: None }
    } else {
        wire::tcp::finish_checksum(&mut buf[tcp_at..end], sum);
        TxOffload::default()
    };
    sink.commit(end, offload);
    count_bare(end, counters);
    true
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
