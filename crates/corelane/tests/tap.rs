//! Bulk transfer between a lane and the kernel over TAP, with large frames and without: what arrives is what was sent, and
//! the frames are as large as was agreed.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use corelane::{Cidr, Config, Device, Engine, ListenOptions, PortConfig};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sha2::{Digest, Sha256};

const BYTES: usize = 64 << 20;
const PIECE: usize = 1 << 18;

fn sh(command: &str) {
    let mut words = command.split(' ');
    let out = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Runs `f` on a thread whose network is a new namespace; `false` where that takes root.
fn apart(name: &str, f: impl FnOnce() + Send + 'static) -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: network namespaces need root");
        return false;
    }
    let name = format!("cltap-{}-{name}", std::process::id());
    sh(&format!("ip netns add {name}"));
    let space = File::open(format!("/run/netns/{name}"));
    // The open file keeps it.
    sh(&format!("ip netns del {name}"));
    let space = space.unwrap();
    let inside = move || {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        f();
    };
    thread::spawn(inside).join().unwrap();
    true
}

/// A stretch of the stream, and of no other place in it.
fn stretch(at: usize, buf: &mut [u8]) {
    for (i, word) in buf.chunks_exact_mut(8).enumerate() {
        let n = (at as u64 / 8 + i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&(n ^ n >> 29).to_le_bytes());
    }
}

fn send(mut to: impl Write) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut buf = vec![0; PIECE];
    for at in (0..BYTES).step_by(PIECE) {
        stretch(at, &mut buf);
        hash.update(&buf);
        to.write_all(&buf).unwrap();
    }
    hash.finalize().into()
}

fn receive(mut from: impl Read) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut buf = vec![0; PIECE];
    let mut left = BYTES;
    while left > 0 {
        let n = from.read(&mut buf).unwrap();
        assert!(n > 0, "the stream ended {left} bytes early");
        hash.update(&buf[..n]);
        left -= n;
    }
    hash.finalize().into()
}

/// Both ways over one connection; segments and frames of each direction as the lane counted them, in first.
fn both_ways(mtu: u16, offload: bool, v6: bool) -> [(u64, u64); 2] {
    let device: Device = "tap:t0".parse().unwrap();
    let addresses: Vec<Cidr> = ["10.9.0.2/24", "fd09::2/64"].map(|a| a.parse().unwrap()).to_vec();
    let port =
        PortConfig { addresses, mtu: Some(mtu), offload: Some(offload), dad: Some(0), ..PortConfig::new(device) };
    let mut engine = Engine::start(&Config { ports: vec![port], buffers_mib: 64, ..Config::default() }).unwrap();
    sh("ip addr add 10.9.0.1/24 dev t0");
    sh("ip addr add fd09::1/64 dev t0 nodad");
    let at: SocketAddr = match v6 {
        false => (Ipv4Addr::new(10, 9, 0, 2), 7).into(),
        true => ("fd09::2".parse::<Ipv6Addr>().unwrap(), 7).into(),
    };
    let lane = engine.take_lane(0).unwrap().attach().unwrap();
    let listener = lane.listen(at, ListenOptions::default()).unwrap();
    let kernel = thread::spawn(move || {
        let stream = TcpStream::connect(at).unwrap();
        let sent = send(&stream);
        let got = receive(&stream);
        stream.shutdown(Shutdown::Both).unwrap();
        (sent, got)
    });
    let (stream, _) = listener.accept().unwrap();
    let got = receive(&stream);
    let sent = send(&stream);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(kernel.join().unwrap(), (got, sent));
    drop((stream, listener));
    lane.drain(Duration::from_secs(1));
    let snapshot = lane.snapshot().unwrap();
    let row = |name: &str| snapshot.rows.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!(row("drop_tcp_checksum"), 0);
    [(row("segments_in"), row("frames_in")), (row("segments_out"), row("frames_out"))]
}

#[test]
fn large_frames_cross_a_tap() {
    apart("large", || {
        for (mtu, v6) in [(1500, false), (1500, true), (9000, false)] {
            for (segments, frames) in both_ways(mtu, true, v6) {
                let full = BYTES as u64 / (mtu as u64 - 40);
                assert!(segments > full, "mtu {mtu}: {segments} segments");
                assert!(frames < segments / 2, "mtu {mtu}: {segments} segments in {frames} frames");
            }
        }
    });
}

#[test]
fn without_offload_frames_are_segments() {
    apart("small", || {
        for (segments, frames) in both_ways(1500, false, false) {
            assert!(segments > BYTES as u64 / 1460 && frames >= segments, "{segments} segments in {frames} frames");
        }
    });
}
