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
        if b.len() < 40 {
            return None;
        }
        // The length of the original, not of what is quoted: let the walk see what is there.
        let mut head = [0; 128];
        let n = b.len().min(128);
        head[..n].copy_from_slice(&b[..n]);
        head[4..6].copy_from_slice(&((n - 40) as u16).to_be_bytes());
        let p = ipv6::Packet::parse(&head[..n]).ok()?;
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
