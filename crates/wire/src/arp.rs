//! ARP for IPv4 over Ethernet (RFC 826).

use crate::{MacAddr, Malformed, array, be16};

/// Bytes of a packet.
pub const LEN: usize = 28;

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Who has the target address?
    Request,
    /// The sender has it.
    Reply,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Request or reply.
    pub op: Op,
    /// Sender's hardware address.
    pub sender_mac: MacAddr,
    /// Sender's address.
    pub sender_ip: [u8; 4],
    /// Target's hardware address; zero in requests.
    pub target_mac: MacAddr,
    /// Target's address.
    pub target_ip: [u8; 4],
}

impl Packet {
    /// Reads a packet.
    pub fn parse(b: &[u8]) -> Result<Packet, Malformed> {
        if b.len() < LEN {
            return Err(Malformed::Truncated);
        }
        if be16(b, 0) != 1 || be16(b, 2) != crate::ethernet::IPV4 || b[4] != 6 || b[5] != 4 {
            return Err(Malformed::BadField);
        }
        let op = match be16(b, 6) {
            1 => Op::Request,
            2 => Op::Reply,
            _ => return Err(Malformed::BadField),
        };
        Ok(Packet {
            op,
            sender_mac: MacAddr(array(b, 8)),
            sender_ip: array(b, 14),
            target_mac: MacAddr(array(b, 18)),
            target_ip: array(b, 24),
        })
    }

    /// Writes it; 28 bytes, for which `b` must have room.
    pub fn emit(&self, b: &mut [u8]) -> usize {
        b[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, if self.op == Op::Request { 1 } else { 2 }]);
        b[8..14].copy_from_slice(&self.sender_mac.0);
        b[14..18].copy_from_slice(&self.sender_ip);
        b[18..24].copy_from_slice(&self.target_mac.0);
        b[24..28].copy_from_slice(&self.target_ip);
        LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(request: bool, a: [u8; 6], b: [u8; 4], c: [u8; 6], d: [u8; 4]) {
            let op = if request { Op::Request } else { Op::Reply };
            let p = Packet { op, sender_mac: MacAddr(a), sender_ip: b, target_mac: MacAddr(c), target_ip: d };
            let mut buf = [0; LEN];
            p.emit(&mut buf);
            prop_assert_eq!(Packet::parse(&buf), Ok(p));
            let oracle = etherparse::ArpPacketSlice::from_slice(&buf).unwrap();
            prop_assert_eq!(oracle.operation().0, if request { 1 } else { 2 });
            prop_assert_eq!((oracle.sender_hw_addr(), oracle.sender_protocol_addr()), (&a[..], &b[..]));
            prop_assert_eq!((oracle.target_hw_addr(), oracle.target_protocol_addr()), (&c[..], &d[..]));
        }

        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            let _ = Packet::parse(&bytes);
        }
    }
}
