//! IPv6 (RFC 8200) and the walk over its extension headers.

use crate::{Addr, Malformed, array, be16, be32};

/// Next header of TCP.
pub const TCP: u8 = 6;
/// Next header of ICMPv6.
pub const ICMPV6: u8 = 58;
/// Nothing follows.
pub const NO_NEXT_HEADER: u8 = 59;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
/// More extension headers than this are an attack, not a packet.
const MAX_HEADERS: usize = 8;

/// The fragment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Where it belongs, bytes.
    pub offset: u16,
    /// More follow.
    pub more: bool,
    /// Which datagram.
    pub id: u32,
}

/// A packet whose headers are sound.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// From.
    pub src: Addr,
    /// To.
    pub dst: Addr,
    /// DSCP and, in the low two bits, ECN.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// The protocol behind the extension headers; in a later fragment, that of the first.
    pub next_header: u8,
    /// Its fragment header.
    pub fragment: Option<Fragment>,
    /// Where `payload` starts, bytes from the packet's start.
    pub upper_offset: usize,
    /// What is behind the extension headers, link padding cut off.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet.
    pub fn parse(b: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        if b.len() < 40 {
            return Err(Malformed::Truncated);
        }
        let word = be32(b, 0);
        if word >> 28 != 6 {
            return Err(Malformed::BadVersion);
        }
        let end = 40 + be16(b, 4) as usize;
        if end > b.len() {
            return Err(Malformed::BadTotalLength);
        }
        let (src, dst) = (Addr::from_v6(array(b, 8)), Addr::from_v6(array(b, 24)));
        // RFC 4291 2.5.5.2 addresses have no place on the wire; here they would pass for IPv4 flows.
        if src.is_v4() || dst.is_v4() {
            return Err(Malformed::BadOption);
        }
        let mut next = b[6];
        let mut at = 40;
        let mut fragment = None;
        for _ in 0..=MAX_HEADERS {
            match next {
                HOP_BY_HOP | ROUTING | DESTINATION => {
                    if end < at + 8 {
                        return Err(Malformed::BadHeaderLength);
                    }
                    // RFC 5095: type 0 routing headers are dead.
                    if next == ROUTING && b[at + 2] == 0 && b[at + 3] != 0 {
                        return Err(Malformed::BadOption);
                    }
                    next = b[at];
                    at += 8 + b[at + 1] as usize * 8;
                    if at > end {
                        return Err(Malformed::BadHeaderLength);
                    }
                }
                FRAGMENT => {
                    if end < at + 8 || fragment.is_some() {
                        return Err(Malformed::BadHeaderLength);
                    }
                    let word = be16(b, at + 2);
                    fragment = Some(Fragment { offset: word & !7, more: word & 1 != 0, id: be32(b, at + 4) });
                    next = b[at];
                    at += 8;
                    if word & !7 != 0 {
                        // What follows is the middle of something.
                        return Ok(Packet::new(b, word_parts(be32(b, 0)), (src, dst), next, fragment, at, end));
                    }
                }
                _ => return Ok(Packet::new(b, word_parts(be32(b, 0)), (src, dst), next, fragment, at, end)),
            }
        }
        Err(Malformed::BadOption)
    }

    fn new(
        b: &'a [u8],
        (traffic_class, flow_label): (u8, u32),
        (src, dst): (Addr, Addr),
        next_header: u8,
        fragment: Option<Fragment>,
        at: usize,
        end: usize,
    ) -> Packet<'a> {
        Packet {
            src,
            dst,
            traffic_class,
            flow_label,
            hop_limit: b[7],
            next_header,
            fragment,
            upper_offset: at,
            payload: &b[at..end],
        }
    }
}

fn word_parts(word: u32) -> (u8, u32) {
    ((word >> 20) as u8, word & 0xf_ffff)
}

/// A header to write, without extensions.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// From.
    pub src: Addr,
    /// To.
    pub dst: Addr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// What the payload is.
    pub next_header: u8,
}

impl Default for Header {
    fn default() -> Header {
        let any = Addr::UNSPECIFIED_V6;
        Header { src: any, dst: any, traffic_class: 0, flow_label: 0, hop_limit: 64, next_header: TCP }
    }
}

impl Header {
    /// Bytes of the header.
    pub const LEN: usize = 40;

    /// Writes it for `payload` bytes behind it; 40 bytes, for which `b` must have room.
    pub fn emit(&self, b: &mut [u8], payload: usize) -> usize {
        let word = 6 << 28 | (self.traffic_class as u32) << 20 | (self.flow_label & 0xf_ffff);
        b[..4].copy_from_slice(&word.to_be_bytes());
        b[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src.octets());
        b[24..40].copy_from_slice(&self.dst.octets());
        40
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(next_header: u8) -> Header {
        let a = Addr::from_v6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        Header { src: a, dst: a, next_header, ..Header::default() }
    }

    #[test]
    fn walks_extension_headers() {
        // Hop-by-hop of 16 bytes, then a first fragment, then TCP.
        let mut b = vec![0; 40];
        b.extend([FRAGMENT, 1, 5, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        b.extend([TCP, 0, 0, 1, 0, 0, 0, 9]);
        b.extend([1, 2, 3]);
        let n = b.len() - 40;
        header(HOP_BY_HOP).emit(&mut b, n);
        let p = Packet::parse(&b).unwrap();
        assert_eq!(p.next_header, TCP);
        assert_eq!(p.fragment, Some(Fragment { offset: 0, more: true, id: 9 }));
        assert_eq!((p.payload, p.upper_offset), (&[1u8, 2, 3][..], 64));
        b[41] = 200;
        assert_eq!(Packet::parse(&b).err(), Some(Malformed::BadHeaderLength));
    }

    #[test]
    fn refusals() {
        let mut b = vec![0; 40];
        header(TCP).emit(&mut b, 1);
        assert_eq!(Packet::parse(&b).err(), Some(Malformed::BadTotalLength));
        header(TCP).emit(&mut b, 0);
        assert!(Packet::parse(&b).is_ok());
        b[8..24].copy_from_slice(&Addr::from_v4([10, 0, 0, 1]).octets());
        assert_eq!(Packet::parse(&b).err(), Some(Malformed::BadOption));
        let mut chain = vec![0; 40];
        for _ in 0..20 {
            chain.extend([DESTINATION, 0, 0, 0, 0, 0, 0, 0]);
        }
        header(DESTINATION).emit(&mut chain, 160);
        assert_eq!(Packet::parse(&chain).err(), Some(Malformed::BadOption));
    }

    proptest! {
        #[test]
        fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..160), six: bool) {
            if let (true, Some(first)) = (six, bytes.first_mut()) {
                *first = 0x60;
            }
            if let (true, true) = (six, bytes.len() > 40) {
                let n = (bytes.len() - 40) as u16;
                bytes[4..6].copy_from_slice(&n.to_be_bytes());
            }
            let _ = Packet::parse(&bytes);
        }

        #[test]
        fn oracle(src: [u8; 16], dst: [u8; 16], class: u8, label in 0u32..1 << 20, hops: u8, payload in proptest::collection::vec(any::<u8>(), 0..100)) {
            let (a, b) = (Addr::from_v6(src), Addr::from_v6(dst));
            prop_assume!(!a.is_v4() && !b.is_v4());
            let h = Header { src: a, dst: b, traffic_class: class, flow_label: label, hop_limit: hops, next_header: TCP };
            let mut bytes = vec![0; 40];
            h.emit(&mut bytes, payload.len());
            bytes.extend(&payload);
            let p = Packet::parse(&bytes).unwrap();
            prop_assert_eq!((p.src, p.dst, p.traffic_class, p.flow_label, p.hop_limit), (a, b, class, label, hops));
            prop_assert_eq!(p.payload, &payload[..]);
            let (oracle, _) = etherparse::Ipv6Header::from_slice(&bytes).unwrap();
            prop_assert_eq!((oracle.source, oracle.destination, oracle.traffic_class, oracle.hop_limit), (src, dst, class, hops));
        }
    }
}
