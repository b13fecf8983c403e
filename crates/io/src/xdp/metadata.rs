//! What a sent frame may ask of the device: struct xsk_tx_metadata, which lies right before the frame
//! (Documentation/networking/xsk-tx-metadata.rst).
//!
//! Where frames are copied the kernel itself sees to it, whatever the device can; without copying the driver must say that
//! it does (`xsk-features` of the netdev family).

use std::io;

use wire::burst::PartialChecksum;

use crate::netlink::{Netlink, attributes};

/// Bytes of it.
pub(super) const LEN: usize = 24;
/// Bytes in front of each sent frame where it is used: a cache line, so that frames stay aligned.
pub(super) const HEADROOM: usize = 64;
/// `XDP_UMEM_TX_METADATA_LEN`.
pub(super) const UMEM_FLAG: u32 = 1 << 2;
/// `XDP_TX_METADATA`: the descriptor's frame has it.
pub(super) const DESC_FLAG: u32 = 1 << 1;

const TXMD_CHECKSUM: u64 = 1 << 1;

/// The bytes that ask for a checksum.
pub(super) fn checksum(sum: PartialChecksum) -> [u8; LEN] {
    let mut b = [0; LEN];
    b[..8].copy_from_slice(&TXMD_CHECKSUM.to_ne_bytes());
    b[8..10].copy_from_slice(&sum.start.to_ne_bytes());
    b[10..12].copy_from_slice(&sum.offset.to_ne_bytes());
    b
}

const NETLINK_GENERIC: i32 = 16;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
const NETDEV_XSK_FLAGS_TX_CHECKSUM: u64 = 1 << 1;
/// `struct genlmsghdr`.
const GENL_HEADER: usize = 4;

/// Whether the driver computes checksums of frames that it sends without copying.
pub(super) fn driver_sums(ifindex: u32) -> io::Result<bool> {
    let mut netlink = Netlink::with_groups(NETLINK_GENERIC, 0)?;
    let mut family = None;
    netlink.dump(GENL_ID_CTRL, &[CTRL_CMD_GETFAMILY, 1, 0, 0], |_, body| family = family.or(netdev(body)))?;
    // A kernel from before it has no such drivers.
    let Some(family) = family else { return Ok(false) };
    let mut sums = false;
    netlink.dump(family, &[NETDEV_CMD_DEV_GET, 1, 0, 0], |_, body| sums |= says_so(body, ifindex))?;
    Ok(sums)
}

/// Whether the kernel finishes checksums of frames that it copies. virtio_net takes frames only in pages (IFF_TX_SKB_NO_LINEAR), and for
/// such drivers Linux before 6.18 does not look at what a frame asks (`xsk_build_skb_zerocopy`): they left with sums unfinished.
pub(super) fn copies_with_sums(driver: Option<&str>, release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    driver != Some("virtio_net") || version >= (6, 18)
}

/// The number of the netdev family, if this message is about it.
fn netdev(body: &[u8]) -> Option<u16> {
    let find = |kind| attributes(body, GENL_HEADER).find(|a| a.0 == kind).map(|a| a.1);
    (find(CTRL_ATTR_FAMILY_NAME)? == b"netdev\0")
        .then(|| find(CTRL_ATTR_FAMILY_ID))??
        .try_into()
        .ok()
        .map(u16::from_ne_bytes)
}

/// Whether this message says that device `ifindex` does.
fn says_so(body: &[u8], ifindex: u32) -> bool {
    let find = |kind| attributes(body, GENL_HEADER).find(|a| a.0 == kind).map(|a| a.1);
    let features = find(NETDEV_A_DEV_XSK_FEATURES).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
    find(NETDEV_A_DEV_IFINDEX) == Some(&ifindex.to_ne_bytes()) && features & NETDEV_XSK_FLAGS_TX_CHECKSUM != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtio_net_before_6_18_copies_without_sums() {
        for (driver, release, sums) in [
            (Some("virtio_net"), "6.12.117-1~deb12u1", false),
            (Some("virtio_net"), "6.9", false),
            (Some("virtio_net"), "6.18.0", true),
            (Some("virtio_net"), "7.3.4+deb14-amd64", true),
            (Some("virtio_net"), "unknown", false),
            (Some("igb"), "6.12.117", true),
            (None, "6.12.117", true),
        ] {
            assert_eq!(copies_with_sums(driver, release), sums, "{driver:?} {release}");
        }
    }

    /// As the kernel lays it out.
    #[repr(C)]
    struct TxMetadata {
        flags: u64,
        csum_start: u16,
        csum_offset: u16,
        launch_time: u64,
    }

    #[test]
    fn the_layout_is_the_kernel_s() {
        assert_eq!(size_of::<TxMetadata>(), LEN);
        assert_eq!(core::mem::offset_of!(TxMetadata, csum_start), 8);
        assert_eq!(core::mem::offset_of!(TxMetadata, csum_offset), 10);
        assert!(LEN <= HEADROOM && LEN.is_multiple_of(8) && HEADROOM.is_multiple_of(64));
        let b = checksum(PartialChecksum { start: 0x22, offset: 0x10 });
        let words =
            [2u64.to_ne_bytes().to_vec(), 0x22u16.to_ne_bytes().to_vec(), 0x10u16.to_ne_bytes().to_vec()].concat();
        assert_eq!((&b[..12], &b[12..]), (&words[..], &[0; 12][..]));
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut b = [(value.len() as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat();
        b.extend(value);
        b.resize(b.len().next_multiple_of(4), 0);
        b
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let head = vec![1, 2, 0, 0];
        let device = |index: u32, features: u64| {
            [
                head.clone(),
                attribute(1, &index.to_ne_bytes()),
                attribute(3, &[0; 8]),
                attribute(6, &features.to_ne_bytes()),
            ]
            .concat()
        };
        assert!(says_so(&device(7, 2), 7) && says_so(&device(7, 3), 7));
        assert!(!says_so(&device(7, 1), 7) && !says_so(&device(8, 2), 7) && !says_so(&head, 7));
        let family = |name: &[u8]| [head.clone(), attribute(2, name), attribute(1, &29u16.to_ne_bytes())].concat();
        assert_eq!((netdev(&family(b"netdev\0")), netdev(&family(b"nlctrl\0")), netdev(&head)), (Some(29), None, None));
    }

    /// The loopback's driver does not; asking is what is tried here.
    #[test]
    fn this_kernel_answers() {
        assert!(!driver_sums(1).unwrap());
    }
}
