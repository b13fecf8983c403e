//! What a router on the path does to a packet: it marks congestion (RFC 3168), and says that a packet is too big for the
//! next link (RFC 1191, RFC 8201).

use wire::{Addr, checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6};

const CE: u8 = 3;
/// Longest ICMP errors: RFC 1812 4.3.2.3, RFC 4443 2.4 c.
const LONGEST_V4: usize = 576;
const LONGEST_V6: usize = 1280;

fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    core::array::from_fn(|i| b[at + i])
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(b, at))
}

/// Which IP a frame carries, and where: behind the Ethernet header and a VLAN tag.
pub(super) enum Ip {
    V4(usize),
    V6(usize),
}

impl Ip {
    pub fn find(frame: &[u8]) -> Option<Ip> {
        let kind = |at: usize| (frame.len() >= at + 2).then(|| be16(frame, at));
        let at = if kind(12)? == ethernet::VLAN { 18 } else { 14 };
        match kind(at - 2)? {
            ethernet::IPV4 if frame.len() >= at + 20 => Some(Ip::V4(at)),
            ethernet::IPV6 if frame.len() >= at + 40 => Some(Ip::V6(at)),
            _ => None,
        }
    }

    /// The first byte that a checksum guards: all of IPv4, of IPv6 what follows its header.
    pub fn guarded(&self) -> usize {
        match *self {
            Ip::V4(at) => at,
            Ip::V6(at) => at + 40,
        }
    }
}

/// Marks "congestion experienced" where the sender says that it would understand (RFC 3168 5); whether it did.
pub(super) fn mark(frame: &mut [u8]) -> bool {
    match Ip::find(frame) {
        Some(Ip::V4(at)) if frame[at + 1] & CE != 0 => {
            frame[at + 1] |= CE;
            let end = at + ((frame[at] & 15) as usize * 4).clamp(20, frame.len() - at);
            frame[at + 10..at + 12].fill(0);
            let sum = checksum::sum(&frame[at..end]).finish();
            frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        // The traffic class lies across two bytes: its low two bits are the second's 5 and 4.
        Some(Ip::V6(at)) if frame[at + 1] >> 4 & CE != 0 => {
            frame[at + 1] |= CE << 4;
            true
        }
        _ => false,
    }
}

/// Bytes of the frame's IP packet; 0 where it carries none.
pub(super) fn packet_len(frame: &[u8]) -> usize {
    match Ip::find(frame) {
        Some(Ip::V4(at)) => be16(frame, at + 2) as usize,
        Some(Ip::V6(at)) => 40 + be16(frame, at + 4) as usize,
        None => 0,
    }
}

/// The frame that tells the sender of `frame` how much the next link takes; `None` where IPv4 would be cut up instead.
pub(super) fn too_big(frame: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let (at, mut out) = match Ip::find(frame)? {
        Ip::V4(at) => {
            if frame[at + 6] & 0x40 == 0 {
                return None;
            }
            let quoted = &frame[at..frame.len().min(at + LONGEST_V4 - 28)];
            let mut out = vec![0; at + 28 + quoted.len()];
            let n = icmpv4::emit_too_big(&mut out[at + 20..], mtu, quoted);
            let (src, dst) = (Addr::from_v4([192, 0, 2, 1]), Addr::from_v4(array(frame, at + 12)));
            ipv4::Header { src, dst, protocol: ipv4::ICMP, ..ipv4::Header::default() }.emit(&mut out[at..], n);
            (at, out)
        }
        Ip::V6(at) => {
            let quoted = &frame[at..frame.len().min(at + LONGEST_V6 - 48)];
            let mut out = vec![0; at + 48 + quoted.len()];
            let mut router = [0; 16];
            router[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
            let (src, dst) = (Addr::from_v6(router), Addr::from_v6(array(frame, at + 8)));
            let n = icmpv6::emit_too_big(src, dst, &mut out[at + 40..], mtu as u32, quoted);
            ipv6::Header { src, dst, next_header: ipv6::ICMPV6, ..ipv6::Header::default() }.emit(&mut out[at..], n);
            (at, out)
        }
    };
    out[..6].copy_from_slice(&frame[6..12]);
    out[6..12].copy_from_slice(&frame[..6]);
    out[12..at].copy_from_slice(&frame[12..at]);
    Some(out)
}
