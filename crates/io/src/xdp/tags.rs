//! VLAN tags stay in the frames. A NIC that takes them off (rx-vlan-offload, on by default) puts them beside the frame, where an
//! XDP program does not see them: a frame of another VLAN would look like one of the untagged network. So that is turned off
//! while the program is attached, and on again afterwards.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::rss::ethtool;
use crate::sys::check;

const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
/// ETH_SS_FEATURES.
const FEATURES: u32 = 4;
/// Features that are believed.
const MOST: u32 = 1024;
/// The kernel's names of what ethtool(8) calls rx-vlan-offload and rx-vlan-stag-hw-parse.
const STRIPPING: [&[u8]; 2] = [b"rx-vlan-hw-parse", b"rx-vlan-stag-hw-parse"];

/// What was done about an interface's tags; undone when it is dropped.
#[derive(Debug)]
pub(super) struct Tags {
    name: String,
    /// Of the network namespace of the interface, whoever drops this.
    socket: OwnedFd,
    /// Features that were turned off, by number.
    turned_off: Vec<usize>,
    lost: bool,
}

/// A block of 32 features as ETHTOOL_GFEATURES tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    available: u32,
    active: u32,
    never_changed: u32,
}

impl Block {
    fn of(words: &[u32]) -> Option<Block> {
        let [available, _requested, active, never_changed] = *words else { return None };
        Some(Block { available, active, never_changed })
    }
}

impl Tags {
    /// Has `name` leave tags where they are.
    pub fn keep(name: &str) -> io::Result<Tags> {
        // SAFETY: a plain system call that gives a new descriptor.
        let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: new, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut tags = Tags { name: name.into(), socket, turned_off: Vec::new(), lost: false };
        tags.keep_again()?;
        Ok(tags)
    }

    /// The same again: what has been turned on meanwhile is turned off.
    pub fn keep_again(&mut self) -> io::Result<()> {
        let (names, blocks) = (self.feature_names()?, self.features()?);
        for (at, _) in names.iter().enumerate().filter(|(_, name)| STRIPPING.contains(&name.as_slice())) {
            let Some(block) = blocks.get(at / 32) else { continue };
            let bit = 1 << (at % 32);
            if block.active & bit == 0 {
                continue;
            }
            // What cannot be changed stays as it is, and is told.
            let changes = block.available & !block.never_changed & bit != 0;
            match changes.then(|| self.set(at, false)) {
                Some(Ok(())) => self.turned_off.push(at),
                Some(Err(e)) if e.raw_os_error() == Some(libc::EPERM) => return Err(e),
                _ => {}
            }
        }
        let after = self.features()?;
        let is_on = |at: usize| after.get(at / 32).is_some_and(|b| b.active & 1 << (at % 32) != 0);
        let stripping = |(at, name): (usize, &Vec<u8>)| STRIPPING.contains(&name.as_slice()) && is_on(at);
        self.lost = names.iter().enumerate().any(stripping);
        Ok(())
    }

    /// Whether frames lose their tags all the same.
    pub fn are_lost(&self) -> bool {
        self.lost
    }

    /// Whether anything was turned off.
    pub fn was_on(&self) -> bool {
        !self.turned_off.is_empty()
    }

    /// Names of the features, by number; none where there is no ethtool.
    fn feature_names(&self) -> io::Result<Vec<Vec<u8>>> {
        // struct ethtool_sset_info: cmd, reserved, sset_mask, data.
        let mut info = [GSSET_INFO, 0, 0, 0, 0];
        info[if cfg!(target_endian = "little") { 2 } else { 3 }] = 1 << FEATURES;
        match ethtool(&self.socket, &self.name, &mut info) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
            other => other?,
        }
        let n = info[4].min(MOST);
        // struct ethtool_gstrings: cmd, string_set, len, and 32 bytes for each.
        let mut words = vec![0; 3 + n as usize * 8];
        words[..3].copy_from_slice(&[GSTRINGS, FEATURES, n]);
        ethtool(&self.socket, &self.name, &mut words)?;
        let bytes: Vec<u8> = words[3..].iter().flat_map(|w| w.to_ne_bytes()).collect();
        Ok(bytes.chunks(32).map(|name| name.split(|b| *b == 0).next().unwrap_or_default().to_vec()).collect())
    }

    fn features(&self) -> io::Result<Vec<Block>> {
        let n = MOST / 32;
        // struct ethtool_gfeatures: cmd, size, and four words for each block; the kernel sets size to what there is.
        let mut words = vec![0; 2 + n as usize * 4];
        words[..2].copy_from_slice(&[GFEATURES, n]);
        match ethtool(&self.socket, &self.name, &mut words) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
            other => other?,
        }
        Ok(words[2..].chunks(4).take(words[1] as usize).filter_map(Block::of).collect())
    }

    fn set(&self, at: usize, on: bool) -> io::Result<()> {
        let n = self.features()?.len();
        // struct ethtool_sfeatures: cmd, size, and (valid, requested) for each block, all blocks.
        let mut words = vec![0; 2 + n * 2];
        words[..2].copy_from_slice(&[SFEATURES, n as u32]);
        words[2 + at / 32 * 2] = 1 << (at % 32);
        words[3 + at / 32 * 2] = (on as u32) << (at % 32);
        ethtool(&self.socket, &self.name, &mut words)
    }
}

impl Drop for Tags {
    fn drop(&mut self) {
        for at in &self.turned_off {
            // The interface may be gone.
            let _ = self.set(*at, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use wire::burst::{RxBurst, TxSink};
    use wire::{Addr, MacAddr};

    use super::*;
    use crate::Port;
    use crate::bpf::{KernelFunction, Maps, OwnFlags, OwnKey, Program, TAGS_BESIDE, Verdict, steer};
    use crate::netlink::Netlink;
    use crate::xdp::veth::{NAME, PEER, beside_a_veth};
    use crate::xdp::{XdpConfig, XdpDevice};

    #[test]
    fn stripping_is_off_as_long_as_it_is_kept_off() {
        beside_a_veth(1, || {
            let tags = Tags::keep(NAME).unwrap();
            assert!(tags.was_on() && !tags.are_lost());
            assert!(!Tags::keep(NAME).unwrap().was_on(), "it is off already");
            let mut next = Tags::keep(NAME).unwrap();
            drop(tags);
            // The last one undid it while the next was at it.
            next.keep_again().unwrap();
            assert!(next.was_on() && !next.are_lost());
            assert!(!Tags::keep(NAME).unwrap().was_on(), "it is off again");
            drop(next);
            assert!(Tags::keep(NAME).unwrap().was_on(), "it is on again");
            let lo = Tags::keep("lo").unwrap();
            assert!(!lo.are_lost() && !lo.was_on());
            assert!(Tags::keep("clveth-none").is_err());
        });
    }

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
