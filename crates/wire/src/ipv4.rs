//! IPv4 (RFC 791).

use crate::{Addr, Malformed, array, be16, checksum};

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;

/// A packet whose header is sound.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// From.
    pub src: Addr,
    /// To.
    pub dst: Addr,
    /// What the payload is.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Type of service: DSCP and, in the low two bits, ECN.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// DF.
    pub dont_fragment: bool,
    /// MF.
    pub more_fragments: bool,
    /// Where this fragment belongs, bytes.
    pub fragment_offset: u16,
    /// The header with its options.
    pub header: &'a [u8],
    /// The payload, link padding cut off.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet and verifies its header checksum.
    pub fn parse(b: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        if b.len() < 20 {
            return Err(Malformed::Truncated);
        }
        if b[0] >> 4 != 4 {
            return Err(Malformed::BadVersion);
        }
        let ihl = (b[0] & 15) as usize * 4;
        if ihl < 20 || ihl > b.len() {
            return Err(Malformed::BadHeaderLength);
        }
        let total = be16(b, 2) as usize;
        if total < ihl || total > b.len() {
            return Err(Malformed::BadTotalLength);
        }
        let (header, payload) = b[..total].split_at(ihl);
        let sum = match header.try_into() {
            Ok(plain) => checksum::sum_20(plain),
            Err(_) => checksum::sum(header),
        };
        if !sum.is_ok() {
            return Err(Malformed::BadChecksum);
        }
        if ihl > 20 {
            options(&header[20..])?;
        }
        let word = be16(b, 6);
        Ok(Packet {
            src: Addr::from_v4(array(b, 12)),
            dst: Addr::from_v4(array(b, 16)),
            protocol: b[9],
            ttl: b[8],
            tos: b[1],
            id: be16(b, 4),
            dont_fragment: word & 0x4000 != 0,
            more_fragments: word & 0x2000 != 0,
            fragment_offset: (word & 0x1fff) << 3,
            header,
            payload,
        })
    }

    /// Not a whole datagram.
    pub fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }
}

/// Options are stepped over; source routes are refused (RFC 7126 4.3, 4.4).
fn options(mut o: &[u8]) -> Result<(), Malformed> {
    while let [kind, rest @ ..] = o {
        match kind {
            0 => return Ok(()),
            1 => o = rest,
            131 | 137 => return Err(Malformed::BadOption),
            _ => {
                let len = *rest.first().ok_or(Malformed::BadOption)? as usize;
                if len < 2 || len > o.len() {
                    return Err(Malformed::BadOption);
                }
                o = &o[len..];
            }
        }
    }
    Ok(())
}

/// A header to write, without options.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// From.
    pub src: Addr,
    /// To.
    pub dst: Addr,
    /// What the payload is.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Type of service.
    pub tos: u8,
    /// Identification; meaningless while `dont_fragment` (RFC 6864 4.1).
    pub id: u16,
    /// DF.
    pub dont_fragment: bool,
}

impl Default for Header {
    fn default() -> Header {
        let any = Addr::UNSPECIFIED_V4;
        Header { src: any, dst: any, protocol: TCP, ttl: 64, tos: 0, id: 0, dont_fragment: true }
    }
}

impl Header {
    /// Bytes of the header.
    pub const LEN: usize = 20;

    /// Writes it with its checksum for `payload` bytes behind it; 20 bytes, for which `b` must have room.
    pub fn emit(&self, b: &mut [u8], payload: usize) -> usize {
        let mut h = [0; 20];
        h[0] = 0x45;
        h[1] = self.tos;
        h[2..4].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
        h[4..6].copy_from_slice(&self.id.to_be_bytes());
        h[6] = (self.dont_fragment as u8) << 6;
        h[8] = self.ttl;
        h[9] = self.protocol;
        h[12..16].copy_from_slice(&self.src.v4_octets());
        h[16..20].copy_from_slice(&self.dst.v4_octets());
        let sum = checksum::sum_20(&h).finish();
        h[10..12].copy_from_slice(&sum.to_be_bytes());
        b[..20].copy_from_slice(&h);
        20
    }
}

/// Lets routers fragment the packet in `b`, whose header has no options: DF off, and an identification (RFC 6864 4.3).
pub fn let_fragment(b: &mut [u8], id: u16) {
    b[4..6].copy_from_slice(&id.to_be_bytes());
    b[6..8].fill(0);
    b[10..12].fill(0);
    let sum = checksum::sum(&b[..20]).finish();
    b[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_that_may_be_fragmented() {
        let mut b = [0; 25];
        Header::default().emit(&mut b, 5);
        assert!(Packet::parse(&b).unwrap().dont_fragment);
        let_fragment(&mut b, 0x1234);
        let p = Packet::parse(&b).unwrap();
        assert_eq!((p.dont_fragment, p.more_fragments, p.id, p.payload.len()), (false, false, 0x1234, 5));
    }

    proptest! {
        #[test]
        fn round_trip_and_oracle(src: [u8; 4], dst: [u8; 4], protocol: u8, ttl: u8, tos: u8, id: u16, df: bool, payload in proptest::collection::vec(any::<u8>(), 0..200), padding in 0usize..40) {
            let h = Header { src: Addr::from_v4(src), dst: Addr::from_v4(dst), protocol, ttl, tos, id, dont_fragment: df };
            let mut b = vec![0; 20];
            h.emit(&mut b, payload.len());
            b.extend(&payload);
            b.extend(vec![0; padding]);
            let p = Packet::parse(&b).unwrap();
            prop_assert_eq!((p.src, p.dst, p.protocol, p.ttl, p.tos, p.id, p.dont_fragment), (h.src, h.dst, protocol, ttl, tos, id, df));
            prop_assert_eq!(p.payload, &payload[..]);
            let (oracle, _) = etherparse::Ipv4Header::from_slice(&b).unwrap();
            prop_assert_eq!((oracle.source, oracle.destination, oracle.time_to_live), (src, dst, ttl));
            prop_assert_eq!(oracle.calc_header_checksum(), oracle.header_checksum);
        }

        #[test]
        fn oracle_for_any_sound_header(mut bytes in proptest::collection::vec(any::<u8>(), 60..100), ihl in 4u8..=15, short in 0u16..100) {
            bytes[0] = 0x40 | ihl;
            bytes[2..4].copy_from_slice(&short.to_be_bytes());
            // Options that are all padding, or as they come.
            if ihl % 2 == 0 {
                bytes[20..60].fill(1);
            }
            bytes[10..12].fill(0);
            let sum = checksum::sum(&bytes[..ihl as usize * 4]).finish();
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            let oracle = etherparse::Ipv4Slice::from_slice(&bytes);
            match (Packet::parse(&bytes), oracle) {
                (Ok(p), Ok(o)) => {
                    let h = o.header();
                    prop_assert_eq!((p.src.v4_octets(), p.dst.v4_octets()), (h.source(), h.destination()));
                    prop_assert_eq!((p.protocol, p.ttl, p.id), (h.protocol().0, h.ttl(), h.identification()));
                    prop_assert_eq!(p.tos, h.dcp().value() << 2 | h.ecn().value());
                    prop_assert_eq!((p.dont_fragment, p.more_fragments), (h.dont_fragment(), h.more_fragments()));
                    prop_assert_eq!(p.fragment_offset, h.fragments_offset().byte_offset());
                    prop_assert_eq!(p.is_fragment(), h.is_fragmenting_payload());
                    prop_assert_eq!(p.header, h.slice());
                    if h.protocol() != etherparse::IpNumber::AUTHENTICATION_HEADER {
                        prop_assert_eq!(p.payload, o.payload().payload);
                    }
                }
                // Options are the oracle's payload, not its business; nor is what an authentication header says.
                (Err(Malformed::BadOption), _) => prop_assert!(ihl > 5),
                (Err(_), Err(_)) => {}
                (p, o) => prop_assert!(p.is_ok() && bytes[9] == 51, "{p:?} {o:?}"),
            }
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Packet::parse(&bytes);
        }
    }

    /// RFC 9293 3.9.2, MUST-50: IP options that are not known, a router alert and a timestamp change nothing.
    #[test]
    fn unknown_options_are_ignored() {
        let options: [&[u8]; 4] =
            [&[0x5e, 4, 1, 2], &[148, 4, 0, 0], &[68, 8, 5, 0, 0, 0, 0, 0], &[1, 0x9e, 3, 7, 7, 4, 4, 0]];
        for option in options {
            let mut b = vec![0; 20];
            Header::default().emit(&mut b, 5);
            b.extend(option);
            b.extend(b"hello");
            b[0] = 0x45 + (option.len() / 4) as u8;
            let len = b.len() as u16;
            b[2..4].copy_from_slice(&len.to_be_bytes());
            b[10..12].fill(0);
            let sum = checksum::sum(&b[..20 + option.len()]).finish();
            b[10..12].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(Packet::parse(&b).map(|p| p.payload), Ok(&b"hello"[..]), "{option:?}");
        }
    }

    #[test]
    fn refusals() {
        let mut good = [0; 24];
        Header::default().emit(&mut good, 4);
        assert!(Packet::parse(&good).is_ok());
        let with = |f: &dyn Fn(&mut [u8; 24])| {
            let mut b = good;
            f(&mut b);
            b[10..12].fill(0);
            let ihl = ((b[0] & 15) as usize * 4).clamp(20, 24);
            let sum = checksum::sum(&b[..ihl]).finish();
            b[10..12].copy_from_slice(&sum.to_be_bytes());
            Packet::parse(&b).err()
        };
        assert_eq!(with(&|b| b[0] = 0x65), Some(Malformed::BadVersion));
        assert_eq!(with(&|b| b[0] = 0x44), Some(Malformed::BadHeaderLength));
        assert_eq!(with(&|b| b[0] = 0x47), Some(Malformed::BadHeaderLength));
        assert_eq!(with(&|b| b[3] = 25), Some(Malformed::BadTotalLength));
        assert_eq!(with(&|b| b[3] = 19), Some(Malformed::BadTotalLength));
        // An option of length 0, and a source route.
        assert_eq!(
            with(&|b| {
                b[0] = 0x46;
                b[20] = 7;
                b[21] = 0
            }),
            Some(Malformed::BadOption)
        );
        assert_eq!(
            with(&|b| {
                b[0] = 0x46;
                b[20] = 131;
                b[21] = 4
            }),
            Some(Malformed::BadOption)
        );
        let mut b = good;
        b[11] ^= 1;
        assert_eq!(Packet::parse(&b).err(), Some(Malformed::BadChecksum));
        assert_eq!(Packet::parse(&good[..19]).err(), Some(Malformed::Truncated));
    }
}
