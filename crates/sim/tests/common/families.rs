//! IPv4, IPv6, and IPv6 within a link, for tests that look at all of them alike: packets, and who has an address.

use io::impair::Random;
use wire::icmpv6::Message;
use wire::{Addr, MacAddr, arp, ethernet, icmpv4, icmpv6, ipv4, ipv6};

/// Which addresses a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
    /// Link-local ones of IPv6.
    Local,
}

impl Family {
    pub fn draw(r: &mut Random) -> Family {
        r.pick(&[Family::V4, Family::V6, Family::Local])
    }

    /// Bits of a link's prefix.
    pub fn prefix(self) -> u8 {
        if self == Family::V4 { 24 } else { 64 }
    }
}

/// An IP packet of either version.
pub struct Packet<'a> {
    pub src: Addr,
    pub dst: Addr,
    pub protocol: u8,
    /// Bytes of its IP header.
    pub header: usize,
    pub payload: &'a [u8],
    /// All of it.
    pub bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// What is in a frame that is no ARP.
    pub fn of(eth: &ethernet::Frame<'a>) -> Packet<'a> {
        let (src, dst, protocol, header, payload) = match eth.ethertype {
            ethernet::IPV4 => {
                let ip = ipv4::Packet::parse(eth.payload).unwrap();
                (ip.src, ip.dst, ip.protocol, ip.header.len(), ip.payload)
            }
            _ => {
                let ip = ipv6::Packet::parse(eth.payload).unwrap();
                (ip.src, ip.dst, ip.next_header, ip.upper_offset, ip.payload)
            }
        };
        Packet { src, dst, protocol, header, payload, bytes: &eth.payload[..header + payload.len()] }
    }
}

/// What ARP or neighbour discovery says.
pub struct Resolution {
    pub source: Addr,
    /// Who is asked for, or who had asked.
    pub target: Addr,
    pub asks: bool,
}

impl Resolution {
    /// `None` for everything else.
    pub fn of(eth: &ethernet::Frame) -> Option<Resolution> {
        if eth.ethertype == ethernet::ARP {
            let p = arp::Packet::parse(eth.payload).unwrap();
            let (source, target) = (Addr::from_v4(p.sender_ip), Addr::from_v4(p.target_ip));
            return Some(Resolution { source, target, asks: p.op == arp::Op::Request });
        }
        let ip = Packet::of(eth);
        if ip.protocol != ipv6::ICMPV6 {
            return None;
        }
        match Message::parse(ip.src, ip.dst, ip.payload).unwrap() {
            Message::NeighborSolicit { target, .. } => Some(Resolution { source: ip.src, target, asks: true }),
            Message::NeighborAdvert { .. } => Some(Resolution { source: ip.src, target: ip.dst, asks: false }),
            _ => None,
        }
    }
}

/// The answer to who has an address: `theirs` is where, for the host `ours` that asked.
pub fn answer(ours: (MacAddr, Addr), theirs: (MacAddr, Addr), vlan: Option<u16>) -> Vec<u8> {
    if theirs.1.is_v4() {
        let mut frame = vec![0; 64];
        let at = ethernet::emit(&mut frame, ours.0, theirs.0, vlan, ethernet::ARP);
        let (sender_ip, target_ip) = (theirs.1.v4_octets(), ours.1.v4_octets());
        let packet = arp::Packet { op: arp::Op::Reply, sender_mac: theirs.0, sender_ip, target_mac: ours.0, target_ip };
        packet.emit(&mut frame[at..]);
        return frame;
    }
    let (target, target_mac) = (theirs.1, Some(theirs.0));
    let advert = Message::NeighborAdvert { target, target_mac, router: false, solicited: true, r#override: true };
    let mut icmp = vec![0; 64];
    let n = advert.emit(theirs.1, ours.1, &mut icmp);
    icmp_frame(ours, theirs, vlan, &icmp[..n])
}

/// What somebody says of a packet of ours: that it is longer than `mtu`, or else that nobody listens there.
pub fn error(
    ours: (MacAddr, Addr),
    theirs: (MacAddr, Addr),
    vlan: Option<u16>,
    mtu: Option<u16>,
    packet: &[u8],
) -> Vec<u8> {
    let v4 = ours.1.is_v4();
    let quote = &packet[..if v4 { 28 } else { 48 }];
    let mut icmp = vec![0; 8 + quote.len()];
    match (v4, mtu) {
        (true, Some(mtu)) => icmpv4::emit_too_big(&mut icmp, mtu, quote),
        (true, None) => icmpv4::emit_unreachable(&mut icmp, 3, quote),
        (false, Some(mtu)) => icmpv6::emit_too_big(theirs.1, ours.1, &mut icmp, mtu as u32, quote),
        (false, None) => icmpv6::emit_unreachable(theirs.1, ours.1, &mut icmp, 4, quote),
    };
    icmp_frame(ours, theirs, vlan, &icmp)
}

/// The MTU that such an error names.
pub fn told_mtu(frame: &[u8]) -> u16 {
    let eth = ethernet::Frame::parse(frame).unwrap();
    let icmp = Packet::of(&eth).payload;
    // The low half of ICMPv6's 32 bits is where ICMP's 16 are.
    u16::from_be_bytes([icmp[6], icmp[7]])
}

/// A message of ICMP or ICMPv6 for `ours`. Neighbour discovery demands its hop limit.
fn icmp_frame(ours: (MacAddr, Addr), theirs: (MacAddr, Addr), vlan: Option<u16>, icmp: &[u8]) -> Vec<u8> {
    let (src, dst, v4) = (theirs.1, ours.1, ours.1.is_v4());
    let mut frame = vec![0; 18 + 40];
    let at = ethernet::emit(&mut frame, ours.0, theirs.0, vlan, if v4 { ethernet::IPV4 } else { ethernet::IPV6 });
    let n = match v4 {
        true => {
            ipv4::Header { src, dst, protocol: ipv4::ICMP, ..Default::default() }.emit(&mut frame[at..], icmp.len())
        }
        false => ipv6::Header { src, dst, next_header: ipv6::ICMPV6, hop_limit: 255, ..Default::default() }
            .emit(&mut frame[at..], icmp.len()),
    };
    frame.truncate(at + n);
    frame.extend(icmp);
    frame
}
