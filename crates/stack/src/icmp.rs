//! ICMP, ICMPv6, ARP and NDP: echo and address resolution in dedicated mode, errors about our connections in any mode
//! (RFC 792, RFC 1122 3.2.2, RFC 4443, RFC 4861, RFC 5927).

use wire::quoted::Quoted;
use wire::{Addr, Instant, MacAddr, arp, ethernet, icmpv4, icmpv6, ipv4, ipv6};

use crate::Mode;
use crate::counters::DropReason;
use crate::engine::{Stack, TIME_WAIT, context};
use crate::flows::FlowKey;
use crate::input::Source;
use crate::output::{Raw, emit_ip};
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

/// What an ICMP error says about a path or peer.
enum Trouble {
    /// The path's MTU; 0 where an old router does not say (RFC 1191 5).
    TooBig(u32),
    Hard,
    Soft,
}

impl Stack {
    fn dedicated(&self, interface: InterfaceId) -> bool {
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
                    // RFC 1122 4.2.3.9: protocol and port unreachable are hard.
                    2 | 3 => Trouble::Hard,
                    _ => Trouble::Soft,
                };
                self.trouble(now, quoted, trouble)
            }
            icmpv4::Message::TimeExceeded { quoted, .. } | icmpv4::Message::ParameterProblem { quoted, .. } => {
                self.trouble(now, quoted, Trouble::Soft)
            }
            icmpv4::Message::EchoReply { .. } => Ok(()),
            icmpv4::Message::Other { .. } => Err(DropReason::Icmp),
        }
    }

    pub(crate) fn take_icmpv6(&mut self, now: Instant, source: Source, ip: &ipv6::Packet) -> Result<(), DropReason> {
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
                let trouble = if code == 4 || code == 1 { Trouble::Hard } else { Trouble::Soft };
                self.trouble(now, quoted, trouble)
            }
            icmpv6::Message::PacketTooBig { mtu, quoted } => self.trouble(now, quoted, Trouble::TooBig(mtu)),
            icmpv6::Message::TimeExceeded { quoted, .. } | icmpv6::Message::ParameterProblem { quoted, .. } => {
                self.trouble(now, quoted, Trouble::Soft)
            }
            icmpv6::Message::NeighborSolicit { target, source_mac } => {
                // RFC 4861 7.1.1: only from the link itself.
                if ip.hop_limit != 255 {
                    return Err(DropReason::Neighbor);
                }
                self.solicited(now, source, target, source_mac)
            }
            icmpv6::Message::NeighborAdvert { target, target_mac, solicited, .. } => {
                if ip.hop_limit != 255 || (solicited && source.dst.is_multicast()) {
                    return Err(DropReason::Neighbor);
                }
                if self.dedicated(source.interface)
                    && let Some(mac) = target_mac
                {
                    self.neighbors.learn(now, source.interface, target, mac, false, false);
                }
                Ok(())
            }
            icmpv6::Message::RouterSolicit { .. }
            | icmpv6::Message::RouterAdvert { .. }
            | icmpv6::Message::EchoReply { .. } => Ok(()),
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
        let key = FlowKey { local: source.dst, remote: source.src, local_port: 0, remote_port: 0 };
        let mut bytes = vec![0; ip_header + len];
        emit_ip(&mut bytes, &key, protocol, 0, len);
        emit(&mut bytes[ip_header..]);
        self.counters.echoes += 1;
        self.push_raw(source.interface, Raw::Packet { mac: source.mac, ethertype, bytes });
        Ok(())
    }

    /// RFC 1122 3.2.2.1: a datagram for a port or protocol that nobody serves.
    pub(crate) fn send_unreachable(&mut self, now: Instant, source: Source, protocol: u8, packet: &[u8]) {
        if !self.icmp_budget.take(now) {
            return;
        }
        let udp = protocol == wire::udp::PROTOCOL;
        // RFC 1812 4.3.2.3, RFC 4443 3.1: as much of the packet as fits a minimum-MTU error.
        let quote = &packet[..packet.len().min(548)];
        let key = FlowKey { local: source.dst, remote: source.src, local_port: 0, remote_port: 0 };
        let (ethertype, bytes) = if source.src.is_v4() {
            let mut bytes = vec![0; 20 + 8 + quote.len()];
            emit_ip(&mut bytes, &key, ipv4::ICMP, 0, 8 + quote.len());
            icmpv4::emit_unreachable(&mut bytes[20..], if udp { 3 } else { 2 }, quote);
            (ethernet::IPV4, bytes)
        } else {
            let mut bytes = vec![0; 40 + 8 + quote.len()];
            emit_ip(&mut bytes, &key, ipv6::ICMPV6, 0, 8 + quote.len());
            if udp {
                icmpv6::emit_unreachable(source.dst, source.src, &mut bytes[40..], 4, quote);
            } else {
                icmpv6::emit_unknown_header(source.dst, source.src, &mut bytes[40..], 6, quote);
            }
            (ethernet::IPV6, bytes)
        };
        self.push_raw(source.interface, Raw::Packet { mac: source.mac, ethertype, bytes });
    }

    /// An ICMP error: found by the quoted tuple, believed only when the quoted sequence number is in flight (RFC 5927).
    fn trouble(&mut self, now: Instant, quoted: Quoted, trouble: Trouble) -> Result<(), DropReason> {
        if quoted.protocol != ipv4::TCP {
            return Err(DropReason::IcmpUnmatched);
        }
        let key = FlowKey {
            local: quoted.src,
            remote: quoted.dst,
            local_port: quoted.src_port,
            remote_port: quoted.dst_port,
        };
        let hash = self.flows.hash(&key);
        let id = self
            .find_flow(&key, hash)
            .filter(|value| value & TIME_WAIT == 0 && self.live(*value))
            .ok_or(DropReason::IcmpUnmatched)?;
        let c = &mut self.conns[id];
        let mut cx = context!(self, now);
        let matched = match trouble {
            Trouble::TooBig(mtu) => {
                let headers = if key.remote.is_v4() { 40 } else { 60 };
                // RFC 1191 5: an old router names no MTU; RFC 8201 4: never below 1280 (IPv4: 552, Linux's floor).
                let floor = if key.remote.is_v4() { 552 } else { 1280 };
                let mtu = if mtu == 0 { floor } else { mtu.clamp(floor, 65_535) } as u16;
                let shrunk = c.tcb.shrink_mss(mtu - headers, quoted.seq, &mut cx);
                if shrunk {
                    self.paths.lower(now, key.remote, mtu);
                    self.counters.path_mtu += 1;
                }
                shrunk
            }
            Trouble::Hard => c.tcb.unreachable(true, quoted.seq, &mut cx),
            Trouble::Soft => c.tcb.unreachable(false, quoted.seq, &mut cx),
        };
        self.settle(now, id);
        if matched { Ok(()) } else { Err(DropReason::IcmpUnmatched) }
    }

    /// RFC 826, RFC 5227.
    pub(crate) fn take_arp(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        packet: &arp::Packet,
    ) -> Result<(), DropReason> {
        if !self.dedicated(interface) {
            return Ok(());
        }
        let (sender, target) = (Addr::from_v4(packet.sender_ip), Addr::from_v4(packet.target_ip));
        let i = &self.interfaces[interface.index()];
        let our_mac = i.config.mac;
        // Somebody else claims our address, or a group's.
        if i.has(sender) || packet.sender_mac.is_multicast() || sender.is_multicast() || sender.is_broadcast() {
            return Err(DropReason::Neighbor);
        }
        let for_us = i.has(target);
        let request = packet.op == arp::Op::Request;
        if !sender.is_unspecified() {
            self.neighbors.learn(now, interface, sender, packet.sender_mac, for_us && request, false);
        }
        if for_us && request {
            let reply = arp::Packet {
                op: arp::Op::Reply,
                sender_mac: our_mac,
                sender_ip: packet.target_ip,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            };
            self.push_raw(interface, Raw::Arp { mac: packet.sender_mac, packet: reply });
        }
        Ok(())
    }

    /// RFC 4861 7.2.3, 7.2.4.
    fn solicited(
        &mut self,
        now: Instant,
        source: Source,
        target: Addr,
        source_mac: Option<MacAddr>,
    ) -> Result<(), DropReason> {
        let i = &self.interfaces[source.interface.index()];
        if i.config.mode != Mode::Dedicated || !i.has(target) {
            return Ok(());
        }
        let our_mac = i.config.mac;
        // Duplicate address detection asks from the unspecified address: answered to all nodes.
        let probing = source.src.is_unspecified();
        let (dst, mac) = match probing {
            true => (all_nodes(), MacAddr([0x33, 0x33, 0, 0, 0, 1])),
            false => {
                let mac = source_mac.unwrap_or(source.mac);
                self.neighbors.learn(now, source.interface, source.src, mac, true, false);
                (source.src, mac)
            }
        };
        let advert = icmpv6::Message::NeighborAdvert {
            target,
            target_mac: Some(our_mac),
            router: false,
            solicited: !probing,
            r#override: true,
        };
        let bytes = ndp_packet(target, dst, 32, |buf| advert.emit(target, dst, buf));
        self.push_raw(source.interface, Raw::Packet { mac, ethertype: ethernet::IPV6, bytes });
        Ok(())
    }
}

fn all_nodes() -> Addr {
    Addr::from_v6([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
}

/// An NDP packet: hop limit 255 (RFC 4861 4).
fn ndp_packet(src: Addr, dst: Addr, len: usize, emit: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut bytes = vec![0; 40 + len];
    let header = ipv6::Header { src, dst, next_header: ipv6::ICMPV6, hop_limit: 255, ..ipv6::Header::default() };
    header.emit(&mut bytes, len);
    emit(&mut bytes[40..]);
    bytes
}

/// An ARP request or neighbour solicitation for `target`; the frame's length.
pub(crate) fn solicit(
    buf: &mut [u8],
    our_mac: MacAddr,
    vlan: Option<u16>,
    target: Addr,
    source: Addr,
    unicast: Option<MacAddr>,
) -> usize {
    if target.is_v4() {
        let at = ethernet::emit(buf, unicast.unwrap_or(MacAddr::BROADCAST), our_mac, vlan, ethernet::ARP);
        let packet = arp::Packet {
            op: arp::Op::Request,
            sender_mac: our_mac,
            sender_ip: source.v4_octets(),
            target_mac: MacAddr([0; 6]),
            target_ip: target.v4_octets(),
        };
        return at + packet.emit(&mut buf[at..]);
    }
    // RFC 4291 2.7.1: the solicited-node group of the target.
    let t = target.octets();
    let group = Addr::from_v6([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, t[13], t[14], t[15]]);
    let (dst, mac) = match unicast {
        Some(mac) => (target, mac),
        None => (group, MacAddr([0x33, 0x33, 0xff, t[13], t[14], t[15]])),
    };
    let solicit = icmpv6::Message::NeighborSolicit { target, source_mac: Some(our_mac) };
    let bytes = ndp_packet(source, dst, 32, |b| solicit.emit(source, dst, b));
    let at = ethernet::emit(buf, mac, our_mac, vlan, ethernet::IPV6);
    buf[at..at + bytes.len()].copy_from_slice(&bytes);
    at + bytes.len()
}

fn icmp_drop(m: wire::Malformed) -> DropReason {
    match m {
        wire::Malformed::BadChecksum => DropReason::IcmpChecksum,
        _ => DropReason::Malformed,
    }
}
