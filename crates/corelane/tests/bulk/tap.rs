//! Bulk over AF_XDP on a tap whose other side leaves cutting to it, as virtual machines do: what the kernel behind the other end of
//! the wire sends comes in pieces of up to 64 KiB, behind a virtio-net header.

use super::*;
use std::fs::OpenOptions;

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
/// Unfinished checksums, and large segments of IPv4 and IPv6.
const CUTS: libc::c_ulong = 1 | 2 | 4;
/// Bytes of the longest packet, with its Ethernet header and the virtio-net header of ten bytes.
const LONGEST: usize = (64 << 10) + 14 + 10;

/// A tap of this thread's network, which ends with the file.
fn tap(name: &str) -> File {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: plain data, of which all zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: a whole ifreq, which lives through the call; then an integer.
    let made = unsafe {
        libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) | libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, CUTS)
    };
    assert_eq!(made, 0, "{name}: {}", std::io::Error::last_os_error());
    file
}

/// Carries packets one way until an end is gone.
fn carry(mut from: File, mut to: File) {
    let mut packet = vec![0; LONGEST];
    loop {
        let Ok(n) = from.read(&mut packet) else { return };
        if to.write(&packet[..n]).is_err() {
            return;
        }
    }
}

fn over(v6: bool, bytes: usize) -> Counted {
    let far = space(&format!("tap-{v6}"));
    let ours = tap("t0");
    address("t0", 2);
    let there = far.try_clone().unwrap();
    let other = move || {
        enter(&there);
        let other = tap("t1");
        address("t1", 1);
        other
    };
    let other = thread::spawn(other).join().unwrap();
    let carriers = [(&ours, &other), (&other, &ours)].map(|(from, to)| {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        thread::spawn(move || carry(from, to))
    });
    let port = PortConfig::new("xdp:t0".parse().unwrap());
    let counted = both_ways(port, v6, bytes, || Some(far.try_clone().unwrap()));
    sh("ip link del t0");
    let end = move || {
        enter(&far);
        sh("ip link del t1");
    };
    thread::spawn(end).join().unwrap();
    carriers.into_iter().for_each(|carrier| carrier.join().unwrap());
    counted
}

#[test]
fn a_tap_takes_packets_that_its_other_side_has_not_cut() {
    apart("tap", || {
        // A little first: where bursts are lost, a segment comes by each retransmission timeout.
        assert_eq!(over(false, 64 << 10).dropped, 0);
        for v6 in [false, true] {
            let Counted { both: [(segments, frames), _], dropped, .. } = over(v6, BYTES);
            assert_eq!(dropped, 0);
            assert!(segments > BYTES as u64 / 1460, "{segments} segments");
            assert!(segments > 4 * frames, "{segments} segments in {frames} frames");
        }
    });
}
