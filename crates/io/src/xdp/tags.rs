//! VLAN tags stay in the frames. A NIC that takes them off (rx-vlan-offload, on by default) puts them beside the frame, where an
//! XDP program does not see them: a frame of another VLAN would look like one of the untagged network. So that is turned off
//! while the program is attached, and on again afterwards.

use std::io;

use super::features::Off;

/// The kernel's names of what ethtool(8) calls rx-vlan-offload and rx-vlan-stag-hw-parse.
const STRIPPING: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];

/// Has interface number `index` leave tags where they are.
pub(super) fn keep(index: u32) -> io::Result<Off> {
    Off::keep(index, &STRIPPING)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use wire::burst::{RxBurst, TxSink};
    use wire::{Addr, MacAddr};

    use crate::Port;
    use crate::bpf::{KernelFunction, Maps, OwnFlags, OwnKey, Program, TAGS_BESIDE, Verdict, steer};
    use crate::netlink::Netlink;
    use crate::xdp::veth::{NAME, PEER, beside_a_veth};
    use crate::xdp::{XdpConfig, XdpDevice};

    /// Bytes of a segment here.
    const TCP: usize = 77;

    /// A SYN to a port of 10.0.0.1, with a tag in the frame or without.
    fn syn(to: MacAddr, vlan: Option<u16>, port: u8) -> Vec<u8> {
        let (src, dst) = (Addr::from_v4([10, 0, 0, 2]), Addr::from_v4([10, 0, 0, 1]));
        let mut b = vec![0; 18];
        let n = wire::ethernet::emit(&mut b, to, MacAddr([2; 6]), vlan, wire::ethernet::IPV4);
        b.resize(n + 20 + TCP, 9);
        wire::ipv4::Header { src, dst, ..Default::default() }.emit(&mut b[n..], TCP);
        b[n + 20..n + 24].copy_from_slice(&[0, 99, 0, port]);
        b[n + 33] = 2;
        b
    }

    #[test]
    fn a_tag_beside_a_frame_counts_on_a_veth() {
        beside_a_veth(1, || {
            let config = XdpConfig { receive_ring: 64, send_ring: 64, ..XdpConfig::default() };
            let (device, mut ports) = XdpDevice::attach(NAME, &config).unwrap();
            if device.loses_tags() {
                assert!(KernelFunction::named(TAGS_BESIDE).is_err(), "this kernel tells of tags");
                assert!(device.warnings()[0].contains("from Linux 6.8 on"), "{:?}", device.warnings());
                return;
            }
            assert_eq!(device.warnings(), Vec::<String>::new());
            let mut peer = crate::packet::open(PEER, 1, true).unwrap().remove(0);
            let peer_index = Netlink::open().unwrap().link(PEER).unwrap().unwrap().index;
            let mac = device.link().mac;
            // Of each network that is spoken of here.
            for vlan in [0, 7, 8, 9] {
                let key = OwnKey { vlan, addr: Addr::from_v4([10, 0, 0, 1]), port: 81 };
                device.own(key, OwnFlags::LISTENING).unwrap();
            }
            // What comes of a SYN to port 80, before one to port 81, which always comes.
            let mut comes = |vlan: Option<u16>| {
                for frame in [syn(mac, vlan, 80), syn(mac, None, 81)] {
                    let room = peer.reserve(frame.len()).unwrap();
                    room[..frame.len()].copy_from_slice(&frame);
                    peer.commit(frame.len(), Default::default());
                    peer.flush().unwrap();
                }
                let (mut got, mut last) = (Vec::new(), false);
                let end = Instant::now() + Duration::from_secs(10);
                while !last {
                    assert!(Instant::now() < end, "nothing came");
                    for i in 0..ports[0].receive(64) {
                        let data = ports[0].frame(i).data.to_vec();
                        last = data[data.len() - TCP + 3] == 81;
                        if !last {
                            got.push(data);
                        }
                    }
                    ports[0].release();
                }
                got
            };
            let listen = |vlan, listening| {
                let key = OwnKey { vlan, addr: Addr::from_v4([10, 0, 0, 1]), port: 80 };
                match listening {
                    true => device.own(key, OwnFlags::LISTENING).unwrap(),
                    false => device.disown(key).unwrap(),
                }
            };
            listen(0, true);
            assert_eq!(comes(None), [syn(mac, None, 80)]);
            assert_eq!(comes(Some(7)), [[0; 0]; 0], "the kernel's");
            // The other end sends with a tag, which is not the untagged network's, and none in the frame changes that.
            let tagged = Program::tag_what_leaves(peer_index, 7).unwrap();
            assert_eq!(comes(None), [[0; 0]; 0]);
            assert_eq!(comes(Some(9)), [[0; 0]; 0]);
            // What VLAN 7 listens on comes with its tag in the frame.
            listen(0, false);
            listen(7, true);
            assert_eq!(comes(None), [syn(mac, Some(7), 80)]);
            for other in [7, 9] {
                listen(other, true);
                assert_eq!(comes(Some(other)), [[0; 0]; 0], "two tags");
            }
            drop(tagged);
            assert_eq!(comes(None), [[0; 0]; 0]);
            assert_eq!(comes(Some(7)), [syn(mac, Some(7), 80)]);
            let _other = Program::tag_what_leaves(peer_index, 8).unwrap();
            assert_eq!(comes(None), [[0; 0]; 0]);
        });
    }

    #[test]
    fn a_tagged_frame_that_no_socket_takes_is_the_kernels() {
        beside_a_veth(1, || {
            let Ok(tags) = KernelFunction::named(TAGS_BESIDE) else { return };
            let of = |name| Netlink::open().unwrap().link(name).unwrap().unwrap();
            let link = of(NAME);
            let maps = Maps::new(1).unwrap();
            let key = OwnKey { vlan: 7, addr: Addr::from_v4([10, 0, 0, 1]), port: 80 };
            maps.own(key, OwnFlags::LISTENING).unwrap();
            let program = Program::load_xdp_for("corelane", &steer(&maps, Some(tags)), false, link.index).unwrap();
            let _attached = program.attach(link.index, false).unwrap();
            let _tagged = Program::tag_what_leaves(of(PEER).index, 7).unwrap();
            let mut peer = crate::packet::open(PEER, 1, true).unwrap().remove(0);
            let mut kernel = crate::packet::open(NAME, 1, true).unwrap().remove(0);
            let sent = syn(link.mac, None, 80);
            let room = peer.reserve(sent.len()).unwrap();
            room[..sent.len()].copy_from_slice(&sent);
            peer.commit(sent.len(), Default::default());
            peer.flush().unwrap();
            let end = Instant::now() + Duration::from_secs(10);
            loop {
                assert!(Instant::now() < end, "nothing came");
                let mut got = Vec::new();
                got.extend((0..kernel.receive(64)).map(|i| kernel.frame(i).data.to_vec()));
                kernel.release();
                // Others are of the kernel's own IPv6.
                if let Some(frame) = got.into_iter().find(|f| f[6..12] == [2; 6]) {
                    assert_eq!(frame, syn(link.mac, Some(7), 80), "one tag");
                    break;
                }
            }
            assert_eq!(maps.verdict(Verdict::Listen).unwrap(), 1);
        });
    }
}
