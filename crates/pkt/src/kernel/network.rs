//! A network of the kernel's own with one TUN device: what it sends comes out here, and what is put in here reaches it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::raw;

/// The device's name, which scripts use.
const DEVICE: &str = "tun0";

/// A network namespace of the calling thread's, with one device.
pub struct Network {
    tun: File,
    start: Instant,
    /// Packets that the kernel sent, with the time at which they were seen.
    sent: VecDeque<(Duration, Vec<u8>)>,
}

impl Network {
    /// Moves the calling thread, and with it all threads it starts, to a new network namespace. There the kernel has
    /// `local` and reaches everybody else through the device. Needs root's privileges.
    pub fn new(local: IpAddr, mtu: u16) -> io::Result<Network> {
        raw::new_network()?;
        let tun = raw::tun(DEVICE)?;
        let mtu = mtu.to_string();
        let address = match local {
            IpAddr::V4(a) => format!("{a}/16"),
            IpAddr::V6(a) => format!("{a}/48"),
        };
        shell("ip link set lo up")?;
        // No address of its own making speaks on the device, and the addresses given are good at once.
        shell(&format!("sysctl -q net.ipv6.conf.{DEVICE}.addr_gen_mode=1 net.ipv6.conf.{DEVICE}.accept_dad=0"))?;
        shell(&format!("ip link set {DEVICE} mtu {mtu} up && ip addr add {address} dev {DEVICE}"))?;
        let family = if local.is_ipv4() { "-4" } else { "-6" };
        shell(&format!("ip {family} route add default dev {DEVICE}"))?;
        // Nothing paces: scripts say when packets leave.
        shell(&format!("tc qdisc replace dev {DEVICE} root pfifo"))?;
        let mut network = Network { tun, start: Instant::now(), sent: VecDeque::new() };
        network.collect();
        network.sent.clear();
        Ok(network)
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Sleeps until then, or until the kernel sends something.
    pub fn wait_until(&mut self, time: Duration) {
        self.collect();
        if let Some(left) = time.checked_sub(self.now()).filter(|_| self.sent.is_empty()) {
            raw::readable_within(self.tun.as_raw_fd(), left.as_micros().max(1) as u64);
            self.collect();
        }
    }

    /// A packet arrives.
    pub fn inject(&mut self, packet: &[u8]) -> io::Result<()> {
        self.collect();
        self.tun.write_all(packet)
    }

    /// The next packet that the kernel sent, with the time at which it was seen.
    pub fn pop(&mut self) -> Option<(Duration, Vec<u8>)> {
        self.collect();
        self.sent.pop_front()
    }

    /// Takes what the device has.
    pub fn collect(&mut self) {
        let mut buffer = [0; 65_536];
        while let Ok(n) = self.tun.read(&mut buffer) {
            if !is_discovery(&buffer[..n]) {
                self.sent.push_back((self.start.elapsed(), buffer[..n].to_vec()));
            }
        }
    }
}

/// Whether a packet is IPv6's talk with its neighbours, or of a kind that no script speaks of.
fn is_discovery(packet: &[u8]) -> bool {
    const HOP_BY_HOP: u8 = 0;
    const ICMP: u8 = 58;
    match packet {
        [b, ..] if b >> 4 == 4 => false,
        [b, _, _, _, _, _, next, ..] if b >> 4 == 6 => match *next {
            HOP_BY_HOP => true,
            // Multicast listeners, routers and neighbours (RFC 2710, RFC 4861).
            ICMP => packet.get(40).is_some_and(|kind| (130..=143).contains(kind)),
            _ => false,
        },
        _ => true,
    }
}

/// Runs a command line in the calling thread's namespace.
pub fn shell(line: &str) -> io::Result<()> {
    let out = Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output()?;
    match out.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{line}: {}", String::from_utf8_lossy(&out.stderr).trim()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each in a thread of its own: the namespace is the thread's.
    fn in_network(local: &'static str, test: impl FnOnce(Network) + Send + 'static) {
        let run = move || match Network::new(local.parse().unwrap(), 1400) {
            Ok(network) => test(network),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => testing::skip(e),
            Err(e) => panic!("{e}"),
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn a_syn_comes_out_and_a_reset_goes_in() {
        in_network("192.168.0.1", |mut network| {
            let fd = raw::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0).unwrap();
            let mut peer = vec![2, 0, 0x1f, 0x90, 192, 0, 2, 1];
            peer.resize(16, 0);
            assert_eq!(raw::connect(fd, &peer), Err(libc::EINPROGRESS));
            network.wait_until(network.now() + Duration::from_secs(2));
            let (at, syn) = network.pop().expect("a SYN");
            assert!(at <= network.now());
            assert_eq!((syn[9], syn[33] & 0x3f, &syn[12..20]), (6, 2, &[192, 168, 0, 1, 192, 0, 2, 1][..]));
            // RST and ACK in answer.
            let mut rst = syn[..40].to_vec();
            (rst[2], rst[3], rst[32], rst[33]) = (0, 40, 0x50, 0x14);
            for i in 0..4 {
                (rst[12 + i], rst[16 + i]) = (syn[16 + i], syn[12 + i]);
                (rst[24 + i], rst[28 + i]) = (0, syn[24 + i]);
            }
            (rst[20], rst[21], rst[22], rst[23]) = (syn[22], syn[23], syn[20], syn[21]);
            let ack = u32::from_be_bytes(rst[28..32].try_into().unwrap()).wrapping_add(1);
            rst[28..32].copy_from_slice(&ack.to_be_bytes());
            let (src, dst) = (wire::Addr::from_v4([192, 0, 2, 1]), wire::Addr::from_v4([192, 168, 0, 1]));
            wire::ipv4::Header { src, dst, ..Default::default() }.emit(&mut rst, 20);
            wire::tcp::fill_checksum(src, dst, &mut rst[20..]);
            network.inject(&rst).unwrap();
            let soon = network.now() + Duration::from_millis(20);
            network.wait_until(soon);
            assert_eq!(network.pop(), None);
            let error = raw::option(fd, libc::SOL_SOCKET, libc::SO_ERROR, 4).unwrap();
            assert_eq!(error, libc::ECONNREFUSED.to_ne_bytes());
            raw::close(fd).unwrap();
        });
    }

    #[test]
    fn a_quiet_network_is_quiet() {
        in_network("fd3d:fa7b:d17d::1", |mut network| {
            let soon = network.now() + Duration::from_millis(300);
            network.wait_until(soon);
            assert!(network.now() >= soon);
            assert_eq!(network.pop(), None);
        });
    }
}
