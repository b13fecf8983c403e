//! The virtio-net header that TAP and AF_PACKET put in front of a frame: who finishes its checksum, who cuts it up.

use wire::burst::{RxChecksum, TxOffload};

/// Bytes of the header.
pub(crate) const LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// The first of the segments carries CWR.
const GSO_ECN: u8 = 0x80;

/// The header of a frame to send.
pub(crate) fn encode(offload: TxOffload) -> [u8; LEN] {
    let mut h = [0; LEN];
    if let Some(c) = offload.checksum {
        h[0] = NEEDS_CSUM;
        h[6..8].copy_from_slice(&c.start.to_ne_bytes());
        h[8..10].copy_from_slice(&c.offset.to_ne_bytes());
    }
    if let Some(g) = offload.gso {
        h[1] = if g.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
        h[2..4].copy_from_slice(&g.header.to_ne_bytes());
        h[4..6].copy_from_slice(&g.mss.to_ne_bytes());
    }
    h
}

/// What the header of a received frame says of its checksum, and the size of the segments in it (0: it is one).
pub(crate) fn decode(h: &[u8]) -> (RxChecksum, u16) {
    let Some(h) = h.first_chunk::<LEN>() else { return (RxChecksum::Unknown, 0) };
    let checksum = match h[0] & (NEEDS_CSUM | DATA_VALID) {
        0 => RxChecksum::Unknown,
        // The sender is on this machine: its sum is unfinished, its data is good.
        _ => RxChecksum::Verified,
    };
    let mss = match h[1] & !GSO_ECN {
        GSO_TCPV4 | GSO_TCPV6 => u16::from_ne_bytes([h[4], h[5]]),
        _ => 0,
    };
    (checksum, mss)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::burst::{Gso, PartialChecksum};

    #[test]
    fn headers_say_what_is_left_to_do() {
        assert_eq!(encode(TxOffload::default()), [0; LEN]);
        let offload = TxOffload {
            checksum: Some(PartialChecksum { start: 34, offset: 16 }),
            gso: Some(Gso { mss: 1448, header: 66, ipv6: true }),
        };
        let h = encode(offload);
        assert_eq!((h[0], h[1]), (1, 4));
        assert_eq!(h[2..], [66u16, 1448, 34, 16].map(u16::to_ne_bytes).concat()[..]);
        assert_eq!(decode(&h), (RxChecksum::Verified, 1448));
        assert_eq!(decode(&[0; LEN]), (RxChecksum::Unknown, 0));
        assert_eq!(decode(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]), (RxChecksum::Verified, 0));
        // UDP's, and a header that is none.
        assert_eq!(decode(&[0, 3, 0, 0, 9, 9, 0, 0, 0, 0]), (RxChecksum::Unknown, 0));
        assert_eq!(decode(&[1, 0x81, 0, 0, 9]), (RxChecksum::Unknown, 0));
        assert_eq!(decode(&[1, 0x81, 0, 0, 9, 0, 0, 0, 0, 0]), (RxChecksum::Verified, u16::from_ne_bytes([9, 0])));
    }
}
