//! ICMP and ICMPv6: echo and errors of ours in dedicated mode (RFC 792, RFC 1122 3.2.2, RFC 4443). Errors about what we have sent
//! are given to the caller in any mode.

use wire::quoted::Quoted;
use wire::{Addr, Instant, Malformed, ethernet, icmpv4, icmpv6, ipv4, ipv6};

use crate::InterfaceId;
use crate::counters::{Counters, DropReason};
use crate::link::Link;
use crate::link::Source;
use crate::link::replies::{Raw, emit_ip};
use crate::link::trouble::{self, Trouble};
use protocol::Failure;

/// ICMP messages that may be sent: 1,000 a second, 50 at once (RFC 1812 4.3.2.8, RFC 4443 2.4 f).
#[derive(Default)]
pub(crate) struct Budget {
    tokens: u32,
    at: u64,
}

impl Budget {
    fn take(&mut self, now: Instant) -> bool {
        let ms = now.millis() + 1;
        let earned = ms.saturating_sub(self.at).min(50) as u32;
        if earned > 0 {
            self.at = ms;
            self.tokens = (self.tokens + earned).min(50);
        }
        let ok = self.tokens > 0;
        self.tokens -= ok as u32;
        ok
    }
}

impl Link {
    /// A message; what it says of something that we have sent.
    pub fn take_icmpv4(
        &mut self,
        now: Instant,
        source: Source,
        ip: &ipv4::Packet,
        counters: &mut Counters,
    ) -> Result<Option<(Quoted, Trouble)>, DropReason> {
        let message = icmpv4::Message::parse(ip.payload).map_err(icmp_drop)?;
        match message {
            icmpv4::Message::EchoRequest { id, seq, data } => {
                if !self[source.interface].is_dedicated() {
                    return Ok(None);
                }
                let reply = icmpv4::Message::EchoReply { id, seq, data };
                self.echo(now, source, 8 + data.len(), |buf| reply.emit(buf), counters).map(|()| None)
            }
            icmpv4::Message::Unreachable { code, mtu, quoted } => {
                let trouble = match code {
                    4 => Trouble::TooBig(mtu as u32),
                    code => trouble::unreachable_v4(code),
                };
                Ok(Some((quoted, trouble)))
            }
            icmpv4::Message::TimeExceeded { quoted, .. } | icmpv4::Message::ParameterProblem { quoted, .. } => {
                Ok(Some((quoted, Trouble::Soft(Failure::HostUnreachable))))
            }
            icmpv4::Message::EchoReply { .. } => Ok(None),
            icmpv4::Message::Other { .. } => Err(DropReason::Icmp),
        }
    }

    /// The same of IPv6.
    pub fn take_icmpv6(
        &mut self,
        now: Instant,
        source: Source,
        ip: &ipv6::Packet,
        counters: &mut Counters,
    ) -> Result<Option<(Quoted, Trouble)>, DropReason> {
        // RFC 4861 6.1 and 7.1: neighbour discovery comes from the link itself; RFC 6980 5: and whole.
        let ndp = ip.payload.first().is_some_and(|kind| icmpv6::NDP.contains(kind));
        if ndp && (ip.hop_limit != 255 || ip.fragment.is_some()) {
            return Err(DropReason::Neighbor);
        }
        let message = icmpv6::Message::parse(source.src, source.dst, ip.payload).map_err(icmp_drop)?;
        match message {
            icmpv6::Message::EchoRequest { id, seq, data } => {
                if !self[source.interface].is_dedicated() || source.dst.is_multicast() {
                    return Ok(None);
                }
                let reply = icmpv6::Message::EchoReply { id, seq, data };
                let (src, dst) = (source.dst, source.src);
                self.echo(now, source, 8 + data.len(), |buf| reply.emit(src, dst, buf), counters).map(|()| None)
            }
            icmpv6::Message::Unreachable { code, quoted } => Ok(Some((quoted, trouble::unreachable_v6(code)))),
            icmpv6::Message::PacketTooBig { mtu, quoted } => Ok(Some((quoted, Trouble::TooBig(mtu)))),
            icmpv6::Message::TimeExceeded { quoted, .. } | icmpv6::Message::ParameterProblem { quoted, .. } => {
                Ok(Some((quoted, Trouble::Soft(Failure::HostUnreachable))))
            }
            icmpv6::Message::RouterSolicit { .. }
            | icmpv6::Message::RouterAdvert { .. }
            | icmpv6::Message::NeighborSolicit { .. }
            | icmpv6::Message::NeighborAdvert { .. }
            | icmpv6::Message::Redirect { .. } => self.take_ndp(now, source, &message, counters).map(|()| None),
            icmpv6::Message::EchoReply { .. } => Ok(None),
            icmpv6::Message::Other { .. } => Err(DropReason::Icmp),
        }
    }

    fn echo(
        &mut self,
        now: Instant,
        source: Source,
        len: usize,
        emit: impl FnOnce(&mut [u8]) -> usize,
        counters: &mut Counters,
    ) -> Result<(), DropReason> {
        if !self.icmp_budget.take(now) {
            return Err(DropReason::ReplyQueue);
        }
        let (ethertype, protocol, header) = protocol_of(&source);
        let mut bytes = vec![0; header + len];
        emit_ip(&mut bytes, &source.key(0, 0), protocol, len, self[source.interface].auto.hop_limit);
        emit(&mut bytes[header..]);
        counters.echoes += 1;
        self.push(source.interface, Raw::Packet { mac: source.mac, ethertype, bytes }, counters);
        Ok(())
    }

    /// RFC 1122 3.2.2.1, RFC 4443 3.1: a datagram for a port or protocol that nobody serves; `named_at` is the byte of an
    /// IPv6 packet that names the protocol.
    pub fn send_unreachable(
        &mut self,
        now: Instant,
        source: Source,
        protocol: u8,
        named_at: u16,
        packet: &[u8],
        counters: &mut Counters,
    ) {
        let udp = protocol == wire::udp::PROTOCOL;
        let (src, dst) = (source.dst, source.src);
        let emit = |b: &mut [u8], quote: &[u8]| match (src.is_v4(), udp) {
            (true, _) => icmpv4::emit_unreachable(b, if udp { 3 } else { 2 }, quote),
            (false, true) => icmpv6::emit_unreachable(src, dst, b, 4, quote),
            (false, false) => icmpv6::emit_parameter_problem(src, dst, b, 1, named_at as u32, quote),
        };
        self.send_error(now, source, packet, emit, counters);
    }

    /// A packet that the IPv6 parser refused: where RFC 8200 4 demands it, its sender hears of it.
    pub fn refused_v6(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        eth: &ethernet::Frame,
        why: Malformed,
        counters: &mut Counters,
    ) -> DropReason {
        let Malformed::Parameter { code, pointer } = why else { return DropReason::Malformed };
        let Some(ends) = eth.payload.get(8..40) else { return DropReason::Malformed };
        let addr = |at| Addr::from_v6(core::array::from_fn(|i| ends[at + i]));
        let (src, to) = (addr(0), addr(16));
        let i = &self[interface];
        // RFC 8200 4.2: options whose type begins with 10 are reported to those who sent them to a group, too.
        let anyway = code == 2 && eth.payload.get(pointer as usize).is_some_and(|kind| kind >> 6 == 2);
        let from = if to.is_multicast() { anyway.then(|| i.source_for(src)).flatten() } else { Some(to) };
        // RFC 4443 2.4 e: never to a group, nor about what came to one.
        let silent = src.is_multicast() || src.is_unspecified() || (eth.dst.is_multicast() && !anyway);
        if let Some(dst) = from.filter(|a| self[interface].is_dedicated() && !silent && i.has(*a)) {
            let source = Source { interface, mac: eth.src, src, dst, ecn: 0 };
            let emit =
                |b: &mut [u8], quote: &[u8]| icmpv6::emit_parameter_problem(dst, src, b, code, pointer as u32, quote);
            self.send_error(now, source, eth.payload, emit, counters);
        }
        DropReason::Malformed
    }

    /// RFC 1122 3.3.2, RFC 8200 4.5: the sender hears of a datagram that was not complete in time, if its first fragment
    /// was there.
    pub(super) fn reassembly_timed_out(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        first: Option<&[u8]>,
        counters: &mut Counters,
    ) {
        let Some(eth) = first.and_then(|frame| ethernet::Frame::parse(frame).ok()) else { return };
        let ends = match eth.ethertype {
            ethernet::IPV4 => ipv4::Packet::parse(eth.payload).map(|p| (p.src, p.dst)),
            _ => ipv6::Packet::parse(eth.payload).map(|p| (p.src, p.dst)),
        };
        let Ok((dst, src)) = ends else { return };
        let ours = self[interface].is_dedicated() && self[interface].has(src);
        if !ours || dst.is_unspecified() || eth.dst.is_multicast() {
            return;
        }
        let source = Source { interface, mac: eth.src, src: dst, dst: src, ecn: 0 };
        let emit = |b: &mut [u8], quote: &[u8]| match src.is_v4() {
            true => icmpv4::emit_time_exceeded(b, 1, quote),
            false => icmpv6::emit_time_exceeded(src, dst, b, 1, quote),
        };
        self.send_error(now, source, eth.payload, emit, counters);
    }

    /// An ICMP error about `packet`, as much of which is quoted as a packet that passes everywhere holds (RFC 1812 4.3.2.3,
    /// RFC 4443 2.4 c).
    fn send_error(
        &mut self,
        now: Instant,
        source: Source,
        packet: &[u8],
        emit: impl FnOnce(&mut [u8], &[u8]) -> usize,
        counters: &mut Counters,
    ) {
        if !self.icmp_budget.take(now) {
            return;
        }
        let (ethertype, protocol, header) = protocol_of(&source);
        let most = if source.src.is_v4() { 576 } else { 1280 };
        let quote = &packet[..packet.len().min(most - header - 8)];
        let key = source.key(0, 0);
        let mut bytes = vec![0; header + 8 + quote.len()];
        let hops = self[source.interface].auto.hop_limit;
        emit_ip(&mut bytes, &key, protocol, 8 + quote.len(), hops);
        emit(&mut bytes[header..], quote);
        self.push(source.interface, Raw::Packet { mac: source.mac, ethertype, bytes }, counters);
    }
}

/// EtherType, protocol and length of the IP header of what goes to a packet's source.
fn protocol_of(source: &Source) -> (u16, u8, usize) {
    match source.src.is_v4() {
        true => (ethernet::IPV4, ipv4::ICMP, 20),
        false => (ethernet::IPV6, ipv6::ICMPV6, 40),
    }
}

fn icmp_drop(m: Malformed) -> DropReason {
    match m {
        Malformed::BadChecksum => DropReason::IcmpChecksum,
        _ => DropReason::Malformed,
    }
}
