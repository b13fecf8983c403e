//! Frames that wait to leave for no connection: what the link's own protocols say, resets and cookies, and the answers of records, which
//! are made when they go.

use wire::burst::{TxCaps, TxSink};
use wire::tcp::Header;
use wire::{Addr, MacAddr, arp, ethernet, ipv4, ipv6};

use crate::counters::{Counters, DropReason};
use crate::link::Link;
use crate::{FlowKey, InterfaceId};

/// Most that wait on an interface.
const LIMIT: usize = 512;
pub(crate) const TTL: u8 = 64;

/// What waits: the answer of a record, or a frame. Small, since nearly all are of records.
#[derive(Clone, Copy)]
pub(crate) enum Reply {
    /// The SYN/ACK of a handshake's record, if that is still there.
    SynAck { handshake: u32 },
    /// The ACK of a TIME-WAIT record, if that is still there.
    /// Numbers are given out again, so the tuple's hash must be the record's still: the next hop is that tuple's.
    TimeWait { record: u32, hash: u32, mac: MacAddr },
    /// The next of the frames that wait beside.
    Frame,
}

/// A frame outside any connection and record.
pub(crate) enum Raw {
    /// A bare TCP segment: a SYN/ACK with a cookie, a RST, an ACK for TIME-WAIT.
    /// `hops` of 0 is the default.
    Tcp { mac: MacAddr, key: FlowKey, header: Header, class: u8, hops: u8 },
    /// Who has `target`?
    Solicit { target: Addr, source: Addr, unicast: Option<MacAddr> },
    /// An ARP reply.
    Arp { mac: MacAddr, packet: arp::Packet },
    /// A whole IP packet.
    Packet { mac: MacAddr, ethertype: u16, bytes: Vec<u8> },
}

impl Link {
    /// Queues the answer of a record.
    #[inline(always)]
    pub fn answer(&mut self, interface: InterfaceId, reply: Reply, counters: &mut Counters) {
        let i = &mut self.interfaces[interface.index()];
        if i.replies.len() >= LIMIT {
            return counters.drop(DropReason::ReplyQueue);
        }
        i.replies.push_back(reply);
    }

    /// Queues a frame.
    pub fn push(&mut self, interface: InterfaceId, raw: Raw, counters: &mut Counters) {
        let i = &mut self.interfaces[interface.index()];
        if i.replies.len() >= LIMIT {
            return counters.drop(DropReason::ReplyQueue);
        }
        i.replies.push_back(Reply::Frame);
        i.frames.push_back(raw);
    }

    /// Whether the answers to a burst that comes by `interface` would find room.
    pub fn can_answer(&self, interface: InterfaceId) -> bool {
        self.get(interface).is_none_or(|i| i.replies.len() <= LIMIT / 2)
    }

    /// What leaves `interface` next.
    #[inline(always)]
    pub fn first_reply(&self, interface: InterfaceId) -> Option<Reply> {
        self[interface].replies.front().copied()
    }

    /// It has left.
    #[inline(always)]
    pub fn reply_left(&mut self, interface: InterfaceId) {
        let i = &mut self.interfaces[interface.index()];
        if let Some(Reply::Frame) = i.replies.pop_front() {
            i.frames.pop_front();
        }
    }

    /// The first of the frames that wait, for which it is the turn.
    pub fn first_frame(&self, interface: InterfaceId) -> Option<&Raw> {
        self[interface].frames.front()
    }

    /// Writes a frame that is no TCP segment; `false` where the port is full.
    pub fn send_frame<S: TxSink + ?Sized>(
        &self,
        interface: InterfaceId,
        raw: &Raw,
        sink: &mut S,
        caps: TxCaps,
        counters: &mut Counters,
    ) -> bool {
        let i = &self[interface];
        let (our_mac, vlan) = (i.mac(), i.vlan());
        let room = match raw {
            Raw::Packet { bytes, .. } => 18 + bytes.len(),
            _ => 128,
        };
        if room > caps.max_frame.max(128) {
            counters.drop(DropReason::ReplyQueue);
            return true;
        }
        let Some(buf) = sink.reserve(room) else { return false };
        let end = match raw {
            // By the caller.
            Raw::Tcp { .. } => return true,
            Raw::Solicit { target, source, unicast } => {
                crate::link::ndp::solicit(buf, our_mac, vlan, *target, *source, *unicast)
            }
            Raw::Arp { mac, packet } => {
                let at = ethernet::emit(buf, *mac, our_mac, vlan, ethernet::ARP);
                at + packet.emit(&mut buf[at..])
            }
            Raw::Packet { mac, ethertype, bytes } => {
                let at = ethernet::emit(buf, *mac, our_mac, vlan, *ethertype);
                buf[at..at + bytes.len()].copy_from_slice(bytes);
                at + bytes.len()
            }
        };
        // Ethernet's minimum is the port's or the NIC's to pad.
        sink.commit(end, Default::default());
        counters.frames_out += 1;
        counters.bytes_out += end as u64;
        true
    }
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
