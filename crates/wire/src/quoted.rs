//! The packet that an ICMP error quotes: whose it was.

use crate::{Addr, SeqNum, array, be16, be32, ipv6};

/// The tuple of a quoted packet, as its sender saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Its source: the receiver of the error.
    pub src: Addr,
    /// Its destination.
    pub dst: Addr,
    /// Transport protocol.
    pub protocol: u8,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// The TCP sequence number.
    pub seq: Option<SeqNum>,
}

impl Quoted {
    /// Reads a quoted IPv4 packet, of which at least eight bytes of payload must be there (RFC 792).
    pub fn parse_v4(b: &[u8]) -> Option<Quoted> {
        if b.len() < 20 || b[0] >> 4 != 4 {
            return None;
        }
        let ihl = (b[0] & 15) as usize * 4;
        // A later fragment has no ports.
        if ihl < 20 || be16(b, 6) & 0x1fff != 0 {
            return None;
        }
        let (src, dst) = (Addr::from_v4(array(b, 12)), Addr::from_v4(array(b, 16)));
        Quoted::ports(src, dst, b[9], b.get(ihl..)?)
    }

    /// Reads a quoted IPv6 packet; its tail may be cut off (RFC 4443 2.4 c).
    pub fn parse_v6(b: &[u8]) -> Option<Quoted> {
        let p = ipv6::Packet::parse_cut(b).ok().filter(|_| b[0] >> 4 == 6)?;
        if p.fragment.is_some_and(|f| f.offset != 0) {
            return None;
        }
        Quoted::ports(p.src, p.dst, p.next_header, p.payload)
    }

    fn ports(src: Addr, dst: Addr, protocol: u8, b: &[u8]) -> Option<Quoted> {
        if b.len() < 8 {
            return None;
        }
        let seq = (protocol == crate::ipv4::TCP).then(|| SeqNum(be32(b, 4)));
        Some(Quoted { src, dst, protocol, src_port: be16(b, 0), dst_port: be16(b, 2), seq })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ipv4, udp};
    use proptest::prelude::*;

    const SEGMENT: [u8; 8] = [0x1f, 0x90, 0, 80, 0, 0, 1, 0];

    fn v4(protocol: u8) -> (Quoted, Vec<u8>) {
        let (src, dst) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        let mut b = vec![0; 20];
        // Long when it was sent, cut off now.
        ipv4::Header { src, dst, protocol, ..Default::default() }.emit(&mut b, 1400);
        b.extend(SEGMENT);
        let seq = (protocol == ipv4::TCP).then_some(SeqNum(256));
        (Quoted { src, dst, protocol, src_port: 8080, dst_port: 80, seq }, b)
    }

    fn v6(first: u8, extensions: &[u8]) -> (Quoted, Vec<u8>) {
        let (src, dst) = (Addr::from_v6([0xfd; 16]), Addr::from_v6([0xfe; 16]));
        let mut b = vec![0; 40];
        ipv6::Header { src, dst, next_header: first, ..Default::default() }.emit(&mut b, 1400);
        b.extend(extensions);
        b.extend(SEGMENT);
        (Quoted { src, dst, protocol: ipv6::TCP, src_port: 8080, dst_port: 80, seq: Some(SeqNum(256)) }, b)
    }

    #[test]
    fn the_tuple_of_what_was_sent() {
        for protocol in [ipv4::TCP, udp::PROTOCOL] {
            let (q, b) = v4(protocol);
            assert_eq!(Quoted::parse_v4(&b), Some(q));
            assert_eq!(Quoted::parse_v4(&b[..27]), None);
            assert_eq!(Quoted::parse_v6(&b), None);
        }
        // Behind options, and none in a later fragment.
        let (q, mut b) = v4(ipv4::TCP);
        b[0] = 0x46;
        b.splice(20..20, [1, 1, 1, 0]);
        assert_eq!(Quoted::parse_v4(&b), Some(q));
        b[7] = 1;
        assert_eq!(Quoted::parse_v4(&b), None);

        let (q, b) = v6(ipv6::TCP, &[]);
        assert_eq!(Quoted::parse_v6(&b), Some(q));
        assert_eq!(Quoted::parse_v6(&b[..47]), None);
        assert_eq!(Quoted::parse_v4(&b), None);
        // However far behind extension headers.
        let options = [&[ipv6::TCP, 31, 1, 252][..], &[0; 252]].concat();
        let (q, b) = v6(60, &options);
        assert_eq!(Quoted::parse_v6(&b), Some(q));
        let (q, b) = v6(44, &[ipv6::TCP, 0, 0, 1, 0, 0, 0, 9]);
        assert_eq!(Quoted::parse_v6(&b), Some(q));
        let (_, b) = v6(44, &[ipv6::TCP, 0, 0, 9, 0, 0, 0, 9]);
        assert_eq!(Quoted::parse_v6(&b), None);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..60, six: bool) {
            let mut b = if six { v6(60, &bytes).1 } else { v4(6).1 };
            b.truncate(cut.max(20));
            b.extend(&bytes);
            for b in [&b, &bytes] {
                let _ = (Quoted::parse_v4(b), Quoted::parse_v6(b));
            }
        }
    }
}
