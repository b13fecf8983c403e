//! ICMP and ICMPv6: echo and errors of ours in dedicated mode, errors about our connections in any mode (RFC 792,
//! RFC 1122 3.2.2, RFC 4443, RFC 5927).

use wire::{Addr, Instant, Malformed, ethernet, icmpv4, icmpv6, ipv4, ipv6};

use crate::Mode;
use crate::channel::Failure;
use crate::counters::DropReason;
use crate::engine::Stack;
use crate::icmp_tcp::{self, Trouble};
use crate::input::Source;
use crate::replies::{Raw, emit_ip};
use crate::route::InterfaceId;

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

impl Stack {
    pub(crate) fn dedicated(&self, interface: InterfaceId) -> bool {
        self.interfaces[interface.index()].config.mode == Mode::Dedicated
    }

    pub(crate) fn take_icmpv4(&mut self, now: Instant, source: Source, ip: &ipv4::Packet) -> Result<(), DropReason> {
        let message = icmpv4::Message::parse(ip.payload).map_err(icmp_drop)?;
        match message {
            icmpv4::Message::EchoRequest { id, seq, data } => {
                if !self.dedicated(source.interface) {
                    return Ok(());
                }
                let reply = icmpv4::Message::EchoReply { id, seq, data };
                self.echo(now, source, ethernet::IPV4, ipv4::ICMP, 20, 8 + data.len(), |buf| reply.emit(buf))
            }
            icmpv4::Message::Unreachable { code, mtu, quoted } => {
                let trouble = match code {
                    4 => Trouble::TooBig(mtu as u32),
                    code => icmp_tcp::unreachable_v4(code),
                };
                self.trouble(now, source.interface, quoted, trouble)
            }
            icmpv4::Message::TimeExceeded { quoted, .. } | icmpv4::Message::ParameterProblem { quoted, .. } => {
                self.trouble(now, source.interface, quoted, Trouble::Soft(Failure::HostUnreachable))
            }
            icmpv4::Message::EchoReply { .. } => Ok(()),
            icmpv4::Message::Other { .. } => Err(DropReason::Icmp),
        }
    }

    pub(crate) fn take_icmpv6(&mut self, now: Instant, source: Source, ip: &ipv6::Packet) -> Result<(), DropReason> {
        // RFC 4861 6.1 and 7.1: neighbour discovery comes from the link itself; RFC 6980 5: and whole.
        let ndp = ip.payload.first().is_some_and(|kind| icmpv6::NDP.contains(kind));
        if ndp && (ip.hop_limit != 255 || ip.fragment.is_some()) {
            return Err(DropReason::Neighbor);
        }
        let message = icmpv6::Message::parse(source.src, source.dst, ip.payload).map_err(icmp_drop)?;
        match message {
            icmpv6::Message::EchoRequest { id, seq, data } => {
                if !self.dedicated(source.interface) || source.dst.is_multicast() {
                    return Ok(());
                }
                let reply = icmpv6::Message::EchoReply { id, seq, data };
                let (src, dst) = (source.dst, source.src);
                self.echo(now, source, ethernet::IPV6, ipv6::ICMPV6, 40, 8 + data.len(), |buf| {
                    reply.emit(src, dst, buf)
                })
            }
            icmpv6::Message::Unreachable { code, quoted } => {
                self.trouble(now, source.interface, quoted, icmp_tcp::unreachable_v6(code))
            }
            icmpv6::Message::PacketTooBig { mtu, quoted } => {
                self.trouble(now, source.interface, quoted, Trouble::TooBig(mtu))
            }
            icmpv6::Message::TimeExceeded { quoted, .. } | icmpv6::Message::ParameterProblem { quoted, .. } => {
                self.trouble(now, source.interface, quoted, Trouble::Soft(Failure::HostUnreachable))
            }
            icmpv6::Message::RouterSolicit { .. }
            | icmpv6::Message::RouterAdvert { .. }
            | icmpv6::Message::NeighborSolicit { .. }
            | icmpv6::Message::NeighborAdvert { .. }
            | icmpv6::Message::Redirect { .. } => self.take_ndp(now, source, &message),
            icmpv6::Message::EchoReply { .. } => Ok(()),
            icmpv6::Message::Other { .. } => Err(DropReason::Icmp),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn echo(
        &mut self,
        now: Instant,
        source: Source,
        ethertype: u16,
        protocol: u8,
        ip_header: usize,
        len: usize,
        emit: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), DropReason> {
        if !self.icmp_budget.take(now) {
            return Err(DropReason::ReplyQueue);
        }
        let key = source.key(0, 0);
        let mut bytes = vec![0; ip_header + len];
        emit_ip(&mut bytes, &key, protocol, len, self.interfaces[source.interface.index()].auto.hop_limit);
        emit(&mut bytes[ip_header..]);
        self.counters.echoes += 1;
        self.push_raw(source.interface, Raw::Packet { mac: source.mac, ethertype, bytes });
        Ok(())
    }

    /// RFC 1122 3.2.2.1, RFC 4443 3.1: a datagram for a port or protocol that nobody serves; `named_at` is the byte of an
    /// IPv6 packet that names the protocol.
    pub(crate) fn send_unreachable(
        &mut self,
        now: Instant,
        source: Source,
        protocol: u8,
        named_at: u16,
        packet: &[u8],
    ) {
        let udp = protocol == wire::udp::PROTOCOL;
        let (src, dst) = (source.dst, source.src);
        self.send_error(now, source, packet, |b, quote| match (src.is_v4(), udp) {
            (true, _) => icmpv4::emit_unreachable(b, if udp { 3 } else { 2 }, quote),
            (false, true) => icmpv6::emit_unreachable(src, dst, b, 4, quote),
            (false, false) => icmpv6::emit_parameter_problem(src, dst, b, 1, named_at as u32, quote),
        });
    }

    /// A packet that the IPv6 parser refused: where RFC 8200 4 demands it, its sender hears of it.
    pub(crate) fn refused_v6(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        eth: &ethernet::Frame,
        why: Malformed,
    ) -> DropReason {
        let Malformed::Parameter { code, pointer } = why else { return DropReason::Malformed };
        let Some(ends) = eth.payload.get(8..40) else { return DropReason::Malformed };
        let addr = |at| Addr::from_v6(core::array::from_fn(|i| ends[at + i]));
        let (src, to) = (addr(0), addr(16));
        let i = &self.interfaces[interface.index()];
        // RFC 8200 4.2: options whose type begins with 10 are reported to those who sent them to a group, too.
        let anyway = code == 2 && eth.payload.get(pointer as usize).is_some_and(|kind| kind >> 6 == 2);
        let from = if to.is_multicast() { anyway.then(|| i.source_for(src)).flatten() } else { Some(to) };
        // RFC 4443 2.4 e: never to a group, nor about what came to one.
        let silent = src.is_multicast() || src.is_unspecified() || (eth.dst.is_multicast() && !anyway);
        if let Some(dst) = from.filter(|a| self.dedicated(interface) && !silent && i.has(*a)) {
            let source = Source { interface, mac: eth.src, src, dst, ecn: 0 };
            self.send_error(now, source, eth.payload, |b, quote| {
                icmpv6::emit_parameter_problem(dst, src, b, code, pointer as u32, quote)
            });
        }
        DropReason::Malformed
    }

    /// RFC 1122 3.3.2, RFC 8200 4.5: the sender hears of a datagram that was not complete in time, if its first fragment
    /// was there.
    pub(crate) fn reassembly_timed_out(&mut self, now: Instant, interface: InterfaceId, first: Option<&[u8]>) {
        let Some(eth) = first.and_then(|frame| ethernet::Frame::parse(frame).ok()) else { return };
        let ends = match eth.ethertype {
            ethernet::IPV4 => ipv4::Packet::parse(eth.payload).map(|p| (p.src, p.dst)),
            _ => ipv6::Packet::parse(eth.payload).map(|p| (p.src, p.dst)),
        };
        let Ok((dst, src)) = ends else { return };
        let ours = self.dedicated(interface) && self.interfaces[interface.index()].has(src);
        if !ours || dst.is_unspecified() || eth.dst.is_multicast() {
            return;
        }
        let source = Source { interface, mac: eth.src, src: dst, dst: src, ecn: 0 };
        self.send_error(now, source, eth.payload, |b, quote| match src.is_v4() {
            true => icmpv4::emit_time_exceeded(b, 1, quote),
            false => icmpv6::emit_time_exceeded(src, dst, b, 1, quote),
        });
    }

    /// An ICMP error about `packet`, as much of which is quoted as a packet that passes everywhere holds (RFC 1812 4.3.2.3,
    /// RFC 4443 2.4 c).
    fn send_error(
        &mut self,
        now: Instant,
        source: Source,
        packet: &[u8],
        emit: impl FnOnce(&mut [u8], &[u8]) -> usize,
    ) {
        if !self.icmp_budget.take(now) {
            return;
        }
        let v4 = source.src.is_v4();
        let (ethertype, protocol, header, most) =
            if v4 { (ethernet::IPV4, ipv4::ICMP, 20, 576) } else { (ethernet::IPV6, ipv6::ICMPV6, 40, 1280) };
        let quote = &packet[..packet.len().min(most - header - 8)];
        let key = source.key(0, 0);
        let mut bytes = vec![0; header + 8 + quote.len()];
        let hops = self.interfaces[source.interface.index()].auto.hop_limit;
        emit_ip(&mut bytes, &key, protocol, 8 + quote.len(), hops);
        emit(&mut bytes[header..], quote);
        self.push_raw(source.interface, Raw::Packet { mac: source.mac, ethertype, bytes });
    }
}

fn icmp_drop(m: Malformed) -> DropReason {
    match m {
        Malformed::BadChecksum => DropReason::IcmpChecksum,
        _ => DropReason::Malformed,
    }
}
