//! Checksums that AF_XDP leaves to the device, over a veth pair: unfinished where the link delivers them so, finished by
//! the kernel where the device does not.
//!
//! Needs root; skipped without.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use io::bpf::{OwnFlags, OwnKey};
use io::packet::{self, PacketPort};
use io::xdp::{XdpConfig, XdpDevice, XdpPort};
use io::{Port, PortError};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use wire::burst::{Gso, PartialChecksum, RxBurst, RxChecksum, TxOffload, TxSink};
use wire::tcp::{Flags, Header, Options};
use wire::{Addr, MacAddr, SeqNum, ethernet, ipv4};

fn sh(command: &str) {
    let mut words = command.split(' ');
    let out = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
}

/// A veth pair `sa`, `sb` in a namespace of this thread's own; `sb` has so many queues.
fn veth_of(mtu: u16, queues: u16) -> bool {
    if !rustix::process::geteuid().is_root() {
        testing::skip("network namespaces need root");
        return false;
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("clsum-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    sh(&format!("ip netns add {name}"));
    let space = File::open(format!("/run/netns/{name}"));
    // The open file keeps it.
    sh(&format!("ip netns del {name}"));
    move_into_link_name_space(space.unwrap().as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    let peer = format!("peer name sb mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
    sh(&format!("ip link add sa mtu {mtu} numrxqueues 1 numtxqueues 1 type veth {peer}"));
    sh("ip link set sa up");
    sh("ip link set sb up");
    true
}

fn veth(mtu: u16) -> bool {
    veth_of(mtu, 1)
}

/// Sends a segment with `len` bytes of text; what arrives of it, and what is said of its checksum.
fn cross(from: &mut XdpPort, to: &mut PacketPort, len: usize) -> (Vec<u8>, RxChecksum) {
    let (src, dst) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
    let checksum = from.caps().checksum;
    let buf = from.reserve(54 + len).unwrap();
    ethernet::emit(buf, MacAddr([2; 6]), MacAddr([4; 6]), None, ethernet::IPV4);
    ipv4::Header { src, dst, ..ipv4::Header::default() }.emit(&mut buf[14..], 20 + len);
    let (seq, ack, options) = (SeqNum(1), SeqNum(2), Options::default());
    let header = Header { src_port: 1, dst_port: 2, seq, ack, flags: Flags::ACK, window: 3, urgent: 0, options };
    header.emit(&mut buf[34..], false);
    buf[54..54 + len].iter_mut().enumerate().for_each(|(i, b)| *b = i as u8 ^ (i >> 8) as u8);
    let segment = &mut buf[34..54 + len];
    let offload = if checksum {
        wire::tcp::fill_pseudo(src, dst, 20 + len, segment);
        TxOffload { checksum: Some(PartialChecksum { start: 34, offset: 16 }), gso: None }
    } else {
        wire::tcp::fill_checksum(src, dst, segment);
        TxOffload::default()
    };
    let sent = buf[..54 + len].to_vec();
    from.commit(54 + len, offload);
    from.flush().unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        assert!(Instant::now() < end, "nothing arrived");
        for i in 0..to.receive(64) {
            let f = to.frame(i);
            if f.data[..14] == sent[..14] {
                let (data, known) = (f.data.to_vec(), f.checksum);
                to.release();
                assert_eq!((&data[..50], &data[52..]), (&sent[..50], &sent[52..]));
                return (data[34..].to_vec(), known);
            }
        }
        to.release();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel takes the program before off in its own time.
fn attach(config: &XdpConfig) -> (XdpDevice, Vec<XdpPort>) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match XdpDevice::attach("sa", config) {
            Err(PortError::ForeignProgram { .. }) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other.unwrap(),
        }
    }
}

/// Whether this is Linux `major.minor` or later.
fn linux(major: u32, minor: u32) -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-', '+']).map_while(|n| n.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

/// Its warnings, but for the one that every driver has from kernels that do not tell of tags.
fn said(device: &XdpDevice) -> Vec<String> {
    let of_tags = |w: &String| !linux(6, 8) && w.contains("tells in driver mode, from Linux 6.8 on");
    device.warnings().into_iter().filter(|w| !of_tags(w)).collect()
}

fn run(mtu: u16, texts: &[usize]) {
    if !veth(mtu) {
        return;
    }
    if mtu > 3822 && !linux(6, 6) {
        let refused = XdpDevice::attach("sa", &XdpConfig::default()).err().expect("a buffer is shorter").to_string();
        assert!(refused.contains("since Linux 6.6") && refused.contains("ip link set sa mtu 3000"), "{refused}");
        return;
    }
    let (src, dst) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
    for (offload, device) in [(true, true), (true, false), (false, true)] {
        sh(if device { "ethtool -K sa tx on" } else { "ethtool -K sa tx off" });
        let config = XdpConfig { offload, receive_ring: 64, send_ring: 64, ..XdpConfig::default() };
        let (attached, mut from) = attach(&config);
        assert_eq!(said(&attached), Vec::<String>::new());
        // What a frame asks of the device stands in metadata before it, which older kernels do not know.
        let offload = offload && linux(6, 11);
        let mut to = packet::open("sb", 1, true).unwrap();
        assert_eq!(from[0].caps().checksum, offload, "this kernel copies on veth");
        // What is sent large is received as the link carries it; what the kernel puts together comes so whatever is sent.
        assert_eq!((from[0].caps().max_gso > 0, from[0].caps_of().max_rx_frame), (offload, mtu as usize + 18));
        assert_eq!(to[0].caps_of().max_rx_frame, 65_535 + 18);
        for len in texts {
            let (segment, known) = cross(&mut from[0], &mut to[0], *len);
            if offload && device {
                assert!(wire::tcp::is_pseudo_only(src, dst, &segment), "{mtu}, {len}");
                assert_eq!(known, RxChecksum::Verified);
            } else {
                assert!(wire::tcp::checksum_ok(src, dst, &segment), "{mtu}, {len}");
            }
        }
    }
}

#[test]
fn a_driver_that_takes_no_program_is_told_of() {
    if !veth_of(1500, 2) {
        return;
    }
    let config = XdpConfig { receive_ring: 64, send_ring: 64, ..XdpConfig::default() };
    let (attached, mut from) = attach(&config);
    let [driver, tags] = &attached.warnings()[..] else { panic!("{:?}", attached.warnings()) };
    assert!(driver.contains("driver of sa") && driver.contains("at least as many receive queues"), "{driver}");
    assert!(tags.contains("tells in driver mode") && tags.contains("taken for untagged ones"), "{tags}");
    let mut to = packet::open("sb", 1, true).unwrap();
    cross(&mut from[0], &mut to[0], 1000);
}

/// In generic mode the program is given a sender's burst as long as nobody has cut it.
#[test]
fn a_burst_that_nobody_has_cut_comes_whole_in_generic_mode() {
    if !veth_of(1500, 2) {
        return;
    }
    const TEXT: usize = 60_000;
    let config = XdpConfig { receive_ring: 64, send_ring: 64, ..XdpConfig::default() };
    let (attached, mut to) = attach(&config);
    let key = OwnKey { vlan: 0, addr: Addr::from_v4([10, 0, 0, 1]), port: 80 };
    attached.own(key, OwnFlags::LISTENING).unwrap();
    let mut from = packet::open("sb", 1, true).unwrap().remove(0);
    let frame = from.reserve(54 + TEXT).unwrap();
    frame[..54 + TEXT].fill(7);
    ethernet::emit(frame, attached.link().mac, MacAddr([2; 6]), None, ethernet::IPV4);
    let (src, dst) = (Addr::from_v4([10, 0, 0, 2]), key.addr);
    ipv4::Header { src, dst, ..ipv4::Header::default() }.emit(&mut frame[14..], 20 + TEXT);
    let (seq, ack, options) = (SeqNum(1), SeqNum(2), Options::default());
    let header = Header { src_port: 99, dst_port: 80, seq, ack, flags: Flags::ACK, window: 3, urgent: 0, options };
    header.emit(&mut frame[34..], false);
    wire::tcp::fill_pseudo(src, dst, 20 + TEXT, &mut frame[34..54 + TEXT]);
    let sent = frame[..54 + TEXT].to_vec();
    let gso = Some(Gso { mss: 1460, header: 54, ipv6: false });
    from.commit(54 + TEXT, TxOffload { checksum: Some(PartialChecksum { start: 34, offset: 16 }), gso });
    from.flush().unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let n = to[0].receive(64);
        let counters = to[0].counters();
        if let Some(frame) = (0..n).map(|i| to[0].frame(i)).find(|frame| frame.data.len() > 1000) {
            assert!(frame.data == sent, "{} bytes of {}", frame.data.len(), sent.len());
            assert!(frame.mss > 0 && counters.rx_long == 0);
            return;
        }
        to[0].release();
        if counters.rx_long > 0 {
            let warnings = attached.warnings();
            assert!(!linux(6, 6), "it is lost");
            assert!(warnings.iter().any(|w| w.contains("from Linux 6.6 on")), "{warnings:?}");
            return;
        }
        assert!(Instant::now() < end, "nothing came: {counters:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn where_busy_polling_does_nothing_it_is_told() {
    if !veth(1500) {
        return;
    }
    let config = XdpConfig { busy_poll_us: 50, receive_ring: 64, send_ring: 64, ..XdpConfig::default() };
    let (attached, mut from) = attach(&config);
    let warning = said(&attached).pop().expect("a veth copies");
    assert!(warning.contains("busy_poll_us does nothing on sa"), "{warning}");
    let mut to = packet::open("sb", 1, true).unwrap();
    cross(&mut from[0], &mut to[0], 1000);
    // No call for a look that finds nothing.
    let calls = from[0].counters().syscalls;
    assert_eq!((0..10).map(|_| from[0].receive(64)).sum::<usize>(), 0);
    assert_eq!(from[0].counters().syscalls, calls);
}

#[test]
fn one_buffer() {
    run(1500, &[0, 1, 64, 1459, 1460]);
}

#[test]
fn several_buffers() {
    // Buffers are 4,096 bytes less what stands before the frame.
    run(9000, &[1, 3977, 3978, 3979, 4042, 8010, 8960]);
}

#[test]
fn tags_are_where_they_were() {
    if !veth(1500) {
        return;
    }
    let (mut from, mut to) = (packet::open("sa", 1, false).unwrap(), packet::open("sb", 1, false).unwrap());
    let tagged = |tpid: u16, tci: u16, n: u8| {
        let mut frame = vec![n; 200];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa]);
        frame[12..18].copy_from_slice(&[tpid.to_be_bytes(), tci.to_be_bytes(), 0x88b5u16.to_be_bytes()].concat());
        frame
    };
    let mut plain = tagged(0, 0, 5);
    plain[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    let sent = [tagged(0x8100, 7, 1), plain, tagged(0x88a8, 0xefff, 2), tagged(0x8100, 0x2007, 3)];
    // More than once around the ring's bursts: nothing of one frame is left in another's place.
    for _ in 0..300 {
        for frame in &sent {
            from[0].reserve(frame.len()).unwrap().copy_from_slice(frame);
            from[0].commit(frame.len(), TxOffload::default());
        }
        from[0].flush().unwrap();
        let mut got = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while got.len() < sent.len() {
            assert!(Instant::now() < end, "{} arrived", got.len());
            for i in 0..to[0].receive(64) {
                let frame = to[0].frame(i).data;
                if frame[6..12] == sent[0][6..12] {
                    got.push(frame.to_vec());
                }
            }
            to[0].release();
        }
        assert_eq!(got, sent);
    }
    assert_eq!(to[0].counters().rx_dropped, 0);
}
