//! The UDP header (RFC 768).

use crate::{Addr, Malformed, be16, checksum};

/// IP protocol number.
pub const PROTOCOL: u8 = 17;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// From.
    pub src_port: u16,
    /// To.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub len: u16,
}

impl Header {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Reads the header of a datagram that `b` holds whole.
    pub fn parse(b: &[u8]) -> Result<Header, Malformed> {
        if b.len() < Header::LEN {
            return Err(Malformed::Truncated);
        }
        let len = be16(b, 4);
        if (len as usize) < Header::LEN || len as usize > b.len() {
            return Err(Malformed::BadTotalLength);
        }
        Ok(Header { src_port: be16(b, 0), dst_port: be16(b, 2), len })
    }

    /// Writes it in front of the payload that `b` holds from byte 8 to `len`, checksum included; 8 bytes.
    pub fn emit(&self, src: Addr, dst: Addr, b: &mut [u8]) -> usize {
        b[..2].copy_from_slice(&self.src_port.to_be_bytes());
        b[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        b[4..6].copy_from_slice(&self.len.to_be_bytes());
        b[6..8].fill(0);
        let len = self.len as usize;
        let sum = checksum::pseudo(src, dst, PROTOCOL, len).add(checksum::sum(&b[..len])).finish();
        // Zero would say that there is none.
        b[6..8].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
        Header::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_that_cannot_be() {
        let datagram = |len: u16| [&[0, 1, 0, 2][..], &len.to_be_bytes(), &[0; 6]].concat();
        assert_eq!(Header::parse(&datagram(12)), Ok(Header { src_port: 1, dst_port: 2, len: 12 }));
        assert_eq!(Header::parse(&datagram(8)).map(|h| h.len), Ok(8));
        for bad in [0, 7, 13, 65_535] {
            assert_eq!(Header::parse(&datagram(bad)), Err(Malformed::BadTotalLength));
        }
        assert_eq!(Header::parse(&datagram(8)[..7]), Err(Malformed::Truncated));
    }

    proptest! {
        #[test]
        fn round_trip_and_oracle(
            src_port: u16, dst_port: u16, a: [u8; 4], c: [u8; 4], payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let h = Header { src_port, dst_port, len: 8 + payload.len() as u16 };
            let mut b = [&[0; 8][..], &payload].concat();
            h.emit(Addr::from_v4(a), Addr::from_v4(c), &mut b);
            prop_assert_eq!(Header::parse(&b), Ok(h));
            let oracle = etherparse::UdpHeader::with_ipv4_checksum(
                src_port, dst_port, &etherparse::Ipv4Header { source: a, destination: c, ..Default::default() }, &payload,
            );
            prop_assert_eq!(&b[..8], &oracle.unwrap().to_bytes()[..]);
        }
    }
}
