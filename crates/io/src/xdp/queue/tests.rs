use wire::burst::{Gso, PartialChecksum, TxSink};
use wire::{Addr, MacAddr};

use super::*;
use crate::Port;
use crate::bpf::{Maps, OwnFlags, OwnKey, Program, steer};
use crate::netlink::{Link, Netlink};
use crate::packet::{self, PacketPort};
use crate::xdp::XdpDevice;
use crate::xdp::umem::frame_size;
use crate::xdp::veth::{NAME, PEER, beside_a_veth};

const RINGS: Rings = Rings { receive: 64, send: 64 };

fn config() -> XdpConfig {
    XdpConfig { receive_ring: RINGS.receive, send_ring: RINGS.send, ..XdpConfig::default() }
}

fn link() -> Link {
    Netlink::open().unwrap().link(NAME).unwrap().unwrap()
}

fn key() -> OwnKey {
    OwnKey { vlan: 0, addr: Addr::from_v4([10, 0, 0, 1]), port: 80 }
}

/// Sends `n` segments of `len` bytes of text to port 80 of 10.0.0.1.
fn send(peer: &mut PacketPort, to: MacAddr, n: usize, len: usize) {
    let (src, dst) = (Addr::from_v4([10, 0, 0, 2]), Addr::from_v4([10, 0, 0, 1]));
    for _ in 0..n {
        let frame = peer.reserve(54 + len).unwrap();
        frame[..54 + len].fill(0);
        wire::ethernet::emit(frame, to, MacAddr([2; 6]), None, wire::ethernet::IPV4);
        wire::ipv4::Header { src, dst, ..Default::default() }.emit(&mut frame[14..], 20 + len);
        frame[34..38].copy_from_slice(&[0, 99, 0, 80]);
        frame[46..48].copy_from_slice(&[0x50, 0x10]);
        let gso = (len > 1460).then_some(Gso { mss: 1460, header: 54, ipv6: false });
        let checksum = gso.map(|_| PartialChecksum { start: 34, offset: 16 });
        peer.commit(54 + len, TxOffload { checksum, gso });
        peer.flush().unwrap();
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_frame_without_room_counts_once() {
    beside_a_veth(1, || {
        let (device, mut ports) = XdpDevice::attach(NAME, &config()).unwrap();
        device.own(key(), OwnFlags::LISTENING).unwrap();
        let mut peer = packet::open(PEER, 1, true).unwrap().remove(0);
        for round in 1..=3 {
            send(&mut peer, device.link().mac, 50, 100);
            let lost = (round * 50u64).saturating_sub(RINGS.receive.into());
            until("a frame that no buffer is left for", || ports[0].counters().rx_dropped == lost);
        }
        assert_eq!(ports[0].receive(1000), RINGS.receive as usize);
        assert_eq!((ports[0].counters().rx_dropped, ports[0].counters().rx_long), (86, 0));
        ports[0].release();
    });
}

/// In generic mode a program is given frames as long as nobody has cut them: before Linux 6.6 all sockets lose them.
#[test]
fn frames_that_nobody_has_cut_are_taken_whole_or_counted() {
    for sg in [true, false].into_iter().filter(|sg| !sg || takes_several_buffers()) {
        beside_a_veth(1, || {
            let (link, maps) = (link(), Maps::new(1).unwrap());
            let at = At { ifindex: link.index, queue: 0, mtu: link.mtu, sg };
            let umem = Umem::new(frame_size(link.mtu, None), RINGS).unwrap();
            let mut queue = Queue::open(at, umem, RINGS, &config(), &Opening::begin()).unwrap();
            maps.sockets.set(&0u32.to_ne_bytes(), &queue.as_fd().as_raw_fd().to_ne_bytes()).unwrap();
            maps.own(key(), OwnFlags::LISTENING).unwrap();
            let program = Program::load_xdp("corelane", &steer(&maps, None), sg).unwrap();
            let _attached = program.attach(link.index, true).unwrap();
            let mut peer = packet::open(PEER, 1, true).unwrap().remove(0);
            // One buffer holds 1,792 bytes.
            let texts = [1460, 1738, 1739, 8000, 60_000];
            let mut got = Vec::new();
            let long = |queue: &Queue| queue.lost(&queue.statistics()).long;
            for text in texts {
                let before = long(&queue);
                send(&mut peer, link.mac, 1, text);
                until("a frame", || queue.receive(64) == 1 || long(&queue) > before);
                got.extend((0..queue.len()).map(|i| queue.packet(i)).map(|(data, mss)| (data.len() - 54, mss)));
                queue.release();
            }
            let all = texts.map(|text| (text, if text > 1464 { 1460 } else { 0 }));
            let taken = if sg { 5 } else { 2 };
            assert_eq!(got, all[..taken], "several buffers: {sg}");
            let lost = Lost { long: 5 - taken as u64, full: 0, no_buffer: 0 };
            assert_eq!(queue.lost(&queue.statistics()), lost, "several buffers: {sg}");
        });
    }
}
