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
/// The one option without a length.
const PAD1: u8 = 0;
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
    /// Where `next_header` is named, bytes from the packet's start.
    pub named_at: u16,
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
        if b[0] >> 4 != 6 {
            return Err(Malformed::BadVersion);
        }
        let end = 40 + be16(b, 4) as usize;
        if end > b.len() {
            return Err(Malformed::BadTotalLength);
        }
        Packet::parse_cut(&b[..end])
    }

    /// Reads what is there of a packet whose tail may be cut off (RFC 4443 2.4 c).
    pub(crate) fn parse_cut(b: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let end = b.len();
        if end < 40 {
            return Err(Malformed::Truncated);
        }
        let (src, dst) = (Addr::from_v6(array(b, 8)), Addr::from_v6(array(b, 24)));
        // RFC 4291 2.5.5.2 addresses have no place on the wire; here they would pass for IPv4 flows.
        if src.is_v4() || dst.is_v4() {
            return Err(Malformed::BadOption);
        }
        let word = be32(b, 0);
        let (mut next, mut named_at, mut at) = (b[6], 6, 40);
        let mut fragment = None;
        for headers in 0.. {
            match next {
                // RFC 8200 4.1: only behind the fixed header; elsewhere it is no header that we know.
                HOP_BY_HOP if at != 40 => return Err(problem(UNKNOWN_HEADER, named_at)),
                HOP_BY_HOP | ROUTING | DESTINATION => {
                    let after = b.get(at + 1).map_or(usize::MAX, |len| at + 8 + *len as usize * 8);
                    if after > end {
                        return Err(Malformed::BadHeaderLength);
                    }
                    if next != ROUTING {
                        options(b, at + 2, after)?;
                    } else if b[at + 3] != 0 {
                        // RFC 8200 4.4: no type is known here, and type 0 must not be (RFC 5095 3).
                        return Err(problem(ERRONEOUS_FIELD, at + 2));
                    }
                    (next, named_at, at) = (b[at], at, after);
                }
                FRAGMENT if fragment.is_none() => {
                    if end < at + 8 {
                        return Err(Malformed::BadHeaderLength);
                    }
                    let word = be16(b, at + 2);
                    fragment = Some(Fragment { offset: word & !7, more: word & 1 != 0, id: be32(b, at + 4) });
                    (next, named_at, at) = (b[at], at, at + 8);
                    if word & !7 != 0 {
                        // What follows is the middle of something.
                        break;
                    }
                }
                FRAGMENT => return Err(Malformed::BadHeaderLength),
                _ => break,
            }
            if headers == MAX_HEADERS {
                return Err(Malformed::BadOption);
            }
        }
        Ok(Packet {
            src,
            dst,
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            hop_limit: b[7],
            next_header: next,
            named_at: named_at as u16,
            fragment,
            upper_offset: at,
            payload: &b[at..],
        })
    }
}

/// RFC 4443 3.4: codes of parameter problems.
const ERRONEOUS_FIELD: u8 = 0;
const UNKNOWN_HEADER: u8 = 1;
const UNKNOWN_OPTION: u8 = 2;

fn problem(code: u8, pointer: usize) -> Malformed {
    Malformed::Parameter { code, pointer: pointer as u16 }
}

/// The options from `at` to `end` of a header: none is known here beside padding, so the high bits of their types say what
/// becomes of the packet (RFC 8200 4.2).
fn options(b: &[u8], mut at: usize, end: usize) -> Result<(), Malformed> {
    while at < end {
        if b[at] == PAD1 {
            at += 1;
            continue;
        }
        let after = b[..end].get(at + 1).map_or(usize::MAX, |len| at + 2 + *len as usize);
        if after > end {
            return Err(Malformed::BadOption);
        }
        match b[at] >> 6 {
            0 => {}
            1 => return Err(Malformed::BadOption),
            _ => return Err(problem(UNKNOWN_OPTION, at)),
        }
        at = after;
    }
    Ok(())
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

    /// A packet of `first`, then these extension headers, then `[1, 2, 3]`.
    fn packet(first: u8, extensions: &[&[u8]]) -> Vec<u8> {
        let mut b = [&[0; 40][..], &extensions.concat(), &[1, 2, 3]].concat();
        let n = b.len() - 40;
        header(first).emit(&mut b, n);
        b
    }

    #[test]
    fn extension_headers_that_may_not_be() {
        let parse = |first, extensions: &[&[u8]]| {
            Packet::parse(&packet(first, extensions)).map(|p| (p.next_header, p.named_at, p.upper_offset))
        };
        let problem = |code, pointer| Err(Malformed::Parameter { code, pointer });
        let padded = |next| [next, 0, 1, 4, 0, 0, 0, 0];
        assert_eq!(parse(HOP_BY_HOP, &[&padded(TCP)]), Ok((TCP, 40, 48)));
        assert_eq!(parse(DESTINATION, &[&padded(DESTINATION), &padded(99)]), Ok((99, 48, 56)));
        // Hop-by-hop options only first.
        assert_eq!(parse(DESTINATION, &[&padded(HOP_BY_HOP), &padded(TCP)]), problem(1, 40));
        // Routing headers only when they are used up, whatever their type.
        for kind in [0, 2, 4, 255] {
            assert_eq!(parse(ROUTING, &[&[TCP, 0, kind, 0, 0, 0, 0, 0]]), Ok((TCP, 40, 48)));
            assert_eq!(parse(ROUTING, &[&[TCP, 0, kind, 1, 0, 0, 0, 0]]), problem(0, 42));
        }
        // Unknown options: skipped, dropped, reported, reported unless to a group.
        for first in [HOP_BY_HOP, DESTINATION] {
            assert_eq!(parse(first, &[&[TCP, 0, 0x1e, 4, 9, 9, 9, 9]]), Ok((TCP, 40, 48)));
            assert_eq!(parse(first, &[&[TCP, 0, 0x5e, 4, 9, 9, 9, 9]]), Err(Malformed::BadOption));
            assert_eq!(parse(first, &[&[TCP, 0, 0x9e, 4, 9, 9, 9, 9]]), problem(2, 42));
            assert_eq!(parse(first, &[&[TCP, 0, PAD1, PAD1, 0xde, 2, 9, 9]]), problem(2, 44));
            // Past the header's end, and without a length.
            assert_eq!(parse(first, &[&[TCP, 0, 1, 5, 0, 0, 0, 0]]), Err(Malformed::BadOption));
            assert_eq!(parse(first, &[&[TCP, 0, 1, 3, 0, 0, 0, 7]]), Err(Malformed::BadOption));
        }
        let fragment = |offset: u8| [TCP, 0, 0, offset, 0, 0, 0, 1];
        assert_eq!(parse(FRAGMENT, &[&[FRAGMENT, 0, 0, 1, 0, 0, 0, 1], &fragment(1)]), Err(Malformed::BadHeaderLength));
        // In a later fragment nothing is a header.
        assert_eq!(parse(FRAGMENT, &[&[HOP_BY_HOP, 0, 0, 8, 0, 0, 0, 1]]), Ok((HOP_BY_HOP, 40, 48)));
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
        fn oracle_for_extension_headers(
            kinds in proptest::collection::vec(0usize..3, 0..5), hop_by_hop: bool, sizes: [u8; 6], offset in 0u16..3, more: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            // Headers of padding alone, at most one of them a fragment header.
            let mut kinds: Vec<u8> = kinds.into_iter().map(|k| [DESTINATION, ROUTING, FRAGMENT][k]).collect();
            let mut fragments = 0;
            kinds.retain(|k| { fragments += (*k == FRAGMENT) as usize; *k != FRAGMENT || fragments == 1 });
            // The oracle looks for headers behind a later fragment's, where there are none.
            prop_assume!(offset == 0 || fragments == 0 || kinds.last() == Some(&FRAGMENT));
            if hop_by_hop {
                kinds.insert(0, HOP_BY_HOP);
            }
            let mut b = vec![0; 40];
            for (i, kind) in kinds.iter().enumerate() {
                let next = kinds.get(i + 1).copied().unwrap_or(TCP);
                if *kind == FRAGMENT {
                    b.extend([next, 0]);
                    b.extend((offset << 3 | more as u16).to_be_bytes());
                    b.extend([0, 0, 0, 7]);
                } else {
                    let units = sizes[i] & 3;
                    b.extend([next, units]);
                    b.resize(b.len() + 6 + units as usize * 8, 0);
                }
            }
            b.extend(&payload);
            let n = b.len() - 40;
            header(kinds.first().copied().unwrap_or(TCP)).emit(&mut b, n);
            let p = Packet::parse(&b).unwrap();
            let o = etherparse::Ipv6Slice::from_slice(&b).unwrap();
            let behind = o.payload();
            prop_assert_eq!((p.next_header, p.payload), (behind.ip_number.0, behind.payload));
            prop_assert_eq!(p.fragment.is_some_and(|f| f.more || f.offset != 0), behind.fragmented);
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
