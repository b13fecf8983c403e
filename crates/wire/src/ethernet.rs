//! Ethernet II frames with at most one VLAN tag (IEEE 802.1Q, 802.1ad).

use crate::{MacAddr, Malformed, array, be16};

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// Tag of 802.1Q.
pub const VLAN: u16 = 0x8100;
/// Tag of 802.1ad.
pub const SERVICE_VLAN: u16 = 0x88a8;

/// Which kind of tag: two kinds with one identifier are two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// 802.1Q's, [`VLAN`].
    Customer,
    /// 802.1ad's, [`SERVICE_VLAN`].
    Service,
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Its kind.
    pub kind: Tag,
    /// Identifier, 12 bits.
    pub id: u16,
    /// Priority, 3 bits.
    pub pcp: u8,
}

/// A frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// To.
    pub dst: MacAddr,
    /// From.
    pub src: MacAddr,
    /// Its tag.
    pub vlan: Option<Vlan>,
    /// What the payload is.
    pub ethertype: u16,
    /// The rest, padding included.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads a frame.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        if bytes.len() < 14 {
            return Err(Malformed::Truncated);
        }
        let (dst, src) = (MacAddr(array(bytes, 0)), MacAddr(array(bytes, 6)));
        let ethertype = be16(bytes, 12);
        let kind = match ethertype {
            VLAN => Tag::Customer,
            SERVICE_VLAN => Tag::Service,
            _ => return Ok(Frame { dst, src, vlan: None, ethertype, payload: &bytes[14..] }),
        };
        if bytes.len() < 18 {
            return Err(Malformed::Truncated);
        }
        let tci = be16(bytes, 14);
        let vlan = Some(Vlan { kind, id: tci & 0xfff, pcp: (tci >> 13) as u8 });
        Ok(Frame { dst, src, vlan, ethertype: be16(bytes, 16), payload: &bytes[18..] })
    }
}

/// Writes the header, its tag as 802.1Q's; its length, 14 or 18 bytes. `buf` must have room for it.
pub fn emit(buf: &mut [u8], dst: MacAddr, src: MacAddr, vlan: Option<u16>, ethertype: u16) -> usize {
    buf[..6].copy_from_slice(&dst.0);
    buf[6..12].copy_from_slice(&src.0);
    match vlan {
        None => {
            buf[12..14].copy_from_slice(&ethertype.to_be_bytes());
            14
        }
        Some(id) => {
            buf[12..14].copy_from_slice(&VLAN.to_be_bytes());
            buf[14..16].copy_from_slice(&(id & 0xfff).to_be_bytes());
            buf[16..18].copy_from_slice(&ethertype.to_be_bytes());
            18
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(dst: [u8; 6], src: [u8; 6], vlan in proptest::option::of(0u16..4096), payload: Vec<u8>) {
            let mut buf = vec![0; 18 + payload.len()];
            let n = emit(&mut buf, MacAddr(dst), MacAddr(src), vlan, IPV4);
            buf.truncate(n);
            buf.extend(&payload);
            let f = Frame::parse(&buf).unwrap();
            prop_assert_eq!((f.dst.0, f.src.0, f.vlan.map(|v| v.id), f.ethertype), (dst, src, vlan, IPV4));
            prop_assert_eq!(f.payload, &payload[..]);
        }

        #[test]
        fn oracle(mut bytes in proptest::collection::vec(any::<u8>(), 0..40), tag in proptest::option::of(proptest::sample::select(vec![VLAN, SERVICE_VLAN]))) {
            use etherparse::{Ethernet2Slice, SingleVlanSlice};
            if let (Some(tag), Some(at)) = (tag, bytes.get_mut(12..14)) {
                at.copy_from_slice(&tag.to_be_bytes());
            }
            let ours = Frame::parse(&bytes);
            let Ok(eth) = Ethernet2Slice::from_slice_without_fcs(&bytes) else {
                prop_assert_eq!(ours.err(), Some(Malformed::Truncated));
                return Ok(());
            };
            if !matches!(eth.ether_type().0, VLAN | SERVICE_VLAN) {
                let f = ours.unwrap();
                prop_assert_eq!((f.dst.0, f.src.0, f.vlan, f.ethertype), (eth.destination(), eth.source(), None, eth.ether_type().0));
                prop_assert_eq!(f.payload, eth.payload_slice());
                return Ok(());
            }
            match SingleVlanSlice::from_slice(eth.payload_slice()) {
                Ok(o) => {
                    let f = ours.unwrap();
                    let kind = if eth.ether_type().0 == VLAN { Tag::Customer } else { Tag::Service };
                    let vlan = Vlan { kind, id: o.vlan_identifier().value(), pcp: o.priority_code_point().value() };
                    prop_assert_eq!((f.vlan, f.ethertype), (Some(vlan), o.ether_type().0));
                    prop_assert_eq!(f.payload, o.payload_slice());
                }
                Err(_) => prop_assert_eq!(ours.err(), Some(Malformed::Truncated)),
            }
        }
    }
}
