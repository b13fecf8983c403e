//! Neighbour discovery input and questions (RFC 4861 7.2, RFC 4862 5.4). Messages are valid as RFC 4861 6.1, 7.1 and 8.1
//! demand when they come here.

use wire::icmpv6::Message;
use wire::{Addr, Instant, MacAddr, arp, ethernet, ipv6};

use crate::counters::{Counters, DropReason};
use crate::link::Link;
use crate::link::Source;
use crate::link::interface::Phase;
use crate::link::neighbor::{Claim, Strength};
use crate::link::replies::Raw;

impl Link {
    pub fn take_ndp(
        &mut self,
        now: Instant,
        source: Source,
        message: &Message,
        counters: &mut Counters,
    ) -> Result<(), DropReason> {
        let interface = source.interface;
        if !self[interface].is_dedicated() || source.mac == self[interface].config.mac {
            return Ok(());
        }
        match *message {
            Message::NeighborSolicit { target, source_mac } => {
                self.solicited(now, source, target, source_mac, counters)
            }
            Message::NeighborAdvert { target, target_mac, router, solicited, r#override } => {
                if self[interface].owns(target) {
                    // RFC 4862 5.4.4.
                    self.conflict(now, interface, target, target_mac.unwrap_or(source.mac), counters);
                    return Err(DropReason::Neighbor);
                }
                let strength = if r#override { Strength::Override } else { Strength::Plain };
                self.neighbors.claim(
                    now,
                    interface,
                    target,
                    Claim { mac: target_mac, solicited, strength, create: false },
                );
                if !router {
                    self.not_a_router(now, interface, target);
                }
                Ok(())
            }
            Message::RouterAdvert { .. } => {
                self.take_router_advert(now, source, message, counters);
                Ok(())
            }
            Message::Redirect { target, destination, target_mac } => {
                self.take_redirect(now, source, target, destination, target_mac, counters).ok_or(DropReason::Neighbor)
            }
            // RFC 4861 6.2.6 is for routers.
            Message::RouterSolicit { .. } => Ok(()),
            // The others are not brought here.
            _ => Ok(()),
        }
    }

    /// RFC 4861 7.2.3, 7.2.4; RFC 4862 5.4.3.
    fn solicited(
        &mut self,
        now: Instant,
        source: Source,
        target: Addr,
        source_mac: Option<MacAddr>,
        counters: &mut Counters,
    ) -> Result<(), DropReason> {
        let i = &self[source.interface];
        let our_mac = i.config.mac;
        let probing = source.src.is_unspecified();
        match i.address(target).map(|a| a.phase) {
            Some(Phase::Ours { .. }) => {}
            Some(Phase::Tentative { .. }) if probing => {
                self.conflict(now, source.interface, target, source.mac, counters);
                return Err(DropReason::Neighbor);
            }
            Some(Phase::Tentative { .. } | Phase::Duplicate) | None => return Ok(()),
        }
        if !probing {
            let claim = Claim { mac: source_mac, solicited: false, strength: Strength::Override, create: true };
            self.neighbors.claim(now, source.interface, source.src, claim);
        }
        // Every lane hears it; one answers.
        if self.lane != 0 {
            return Ok(());
        }
        // Who asks for the address itself has none yet: answered to all nodes.
        let dst = if probing { Addr::from_words([0xff02 << 48, 1]) } else { source.src };
        let advert = Message::NeighborAdvert {
            target,
            target_mac: Some(our_mac),
            router: false,
            solicited: !probing,
            r#override: true,
        };
        let mac = (!probing).then(|| source_mac.unwrap_or(source.mac));
        self.push(source.interface, packet(target, dst, mac, &advert), counters);
        Ok(())
    }
}

/// An NDP packet: hop limit 255 (RFC 4861 4); to the group's hardware address when `mac` is missing (RFC 2464 7).
pub(crate) fn packet(src: Addr, dst: Addr, mac: Option<MacAddr>, message: &Message) -> Raw {
    let mut bytes = vec![0; 40 + 64];
    let len = message.emit(src, dst, &mut bytes[40..]);
    let header = ipv6::Header { src, dst, next_header: ipv6::ICMPV6, hop_limit: 255, ..ipv6::Header::default() };
    header.emit(&mut bytes, len);
    bytes.truncate(40 + len);
    let mac = mac.unwrap_or_else(|| MacAddr::multicast_v6(dst.octets().into()));
    Raw::Packet { mac, ethertype: ethernet::IPV6, bytes }
}

/// An ARP request or neighbour solicitation for `target`; the frame's length. From nobody it asks whether the address is free
/// (RFC 5227 2.1.1, RFC 4862 5.4.2); an IPv4 address from itself is an announcement (RFC 5227 2.3).
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
    let low = target.as_words()[1] & 0xff_ffff;
    let dst = if unicast.is_some() { target } else { Addr::from_words([0xff02 << 48, 0x1_ff00_0000 | low]) };
    let source_mac = (!source.is_unspecified()).then_some(our_mac);
    let Raw::Packet { mac, bytes, .. } = packet(source, dst, unicast, &Message::NeighborSolicit { target, source_mac })
    else {
        return 0;
    };
    let at = ethernet::emit(buf, mac, our_mac, vlan, ethernet::IPV6);
    buf[at..at + bytes.len()].copy_from_slice(&bytes);
    at + bytes.len()
}
