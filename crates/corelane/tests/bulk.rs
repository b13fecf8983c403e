//! Bulk transfer between a lane and the kernel, over TAP with large frames and without, over AF_XDP with jumbo frames: what
//! arrives is what was sent, and the frames are as large as was agreed.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::Duration;

use corelane::{Cidr, Config, Device, Engine, ListenOptions, PortConfig};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sha2::{Digest, Sha256};

#[path = "bulk/merged.rs"]
mod merged;
#[path = "bulk/tap.rs"]
mod tap;

const BYTES: usize = 64 << 20;
const PIECE: usize = 1 << 18;

fn sh(command: &str) {
    let mut words = command.split(' ');
    let out = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
}

/// A network namespace that nothing but the open file keeps.
fn space(name: &str) -> File {
    let name = format!("clbulk-{}-{name}", std::process::id());
    sh(&format!("ip netns add {name}"));
    let space = File::open(format!("/run/netns/{name}"));
    sh(&format!("ip netns del {name}"));
    space.unwrap()
}

/// From here on this thread's network is this one.
fn enter(space: &File) {
    move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Runs `f` on a thread whose network is a new namespace, where that can be.
fn apart(name: &'static str, f: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return testing::skip("network namespaces need root");
    }
    let inside = move || {
        enter(&space(name));
        f();
    };
    thread::spawn(inside).join().unwrap();
}

/// A stretch of the stream, and of no other place in it.
fn stretch(at: usize, buf: &mut [u8]) {
    for (i, word) in buf.chunks_exact_mut(8).enumerate() {
        let n = (at as u64 / 8 + i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&(n ^ n >> 29).to_le_bytes());
    }
}

fn send(mut to: impl Write, bytes: usize) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut buf = vec![0; PIECE];
    for at in (0..bytes).step_by(PIECE) {
        let piece = &mut buf[..PIECE.min(bytes - at)];
        stretch(at, piece);
        hash.update(&*piece);
        to.write_all(piece).unwrap();
    }
    hash.finalize().into()
}

fn receive(mut from: impl Read, bytes: usize) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut buf = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let n = from.read(&mut buf).unwrap();
        assert!(n > 0, "the stream ended {left} bytes early");
        hash.update(&buf[..n]);
        left -= n;
    }
    hash.finalize().into()
}

/// Brings `name` up and gives it addresses, of host `n`.
fn address(name: &str, n: u8) {
    sh(&format!("ip link set {name} up"));
    sh(&format!("ip addr add 10.9.0.{n}/24 dev {name}"));
    sh(&format!("ip addr add fd09::{n}/64 dev {name} nodad"));
}

fn addresses() -> Vec<Cidr> {
    ["10.9.0.2/24", "fd09::2/64"].map(|a| a.parse().unwrap()).to_vec()
}

/// What a lane counted of a transfer in both directions.
struct Counted {
    /// Segments and frames that it received, and those that it sent.
    both: [(u64, u64); 2],
    /// Frames that it left to be cut.
    cut: u64,
    /// Frames lost before they came to it.
    dropped: u64,
}

/// Over a TAP interface.
fn over_tap(mtu: u16, offload: bool, napi: bool, v6: bool) -> Counted {
    let device: Device = "tap:t0".parse().unwrap();
    let port = PortConfig {
        addresses: addresses(),
        mtu: Some(mtu),
        offload: Some(offload),
        napi: Some(napi),
        dad: Some(0),
        ..PortConfig::new(device)
    };
    both_ways(port, v6, BYTES, || {
        if napi {
            thread_for_napi();
        }
        sh("ip addr add 10.9.0.1/24 dev t0");
        sh("ip addr add fd09::1/64 dev t0 nodad");
        None
    })
}

/// The device's NAPI goes to a thread of its own, which only one that has a NAPI gets.
fn thread_for_napi() {
    let threads = || Command::new("pgrep").args(["-c", "^napi/t0-"]).output().unwrap().stdout;
    let before = threads();
    // A view of /sys with this namespace's devices.
    let write = "mount -t sysfs sysfs /sys && echo 1 > /sys/class/net/t0/threaded";
    assert!(Command::new("unshare").args(["-m", "sh", "-c", write]).status().unwrap().success());
    assert_ne!(threads(), before);
}

/// Over AF_XDP on one end of a veth, whose other end is in a namespace `far` of the kernel's; of the frames to it one in
/// `loss` is lost.
fn over_xdp(mtu: u16, offload: bool, v6: bool, loss: Option<u32>) -> Counted {
    let far = space(&format!("far-{mtu}-{offload}-{v6}-{}", loss.is_some()));
    let fd = far.as_fd().as_raw_fd();
    let netns = format!("/proc/{}/fd/{fd}", std::process::id());
    let one = format!("mtu {mtu} numrxqueues 1 numtxqueues 1");
    sh(&format!("ip link add va {one} type veth peer name vb {one} netns {netns}"));
    for addr in ["10.9.0.2/24", "fd09::2/64"] {
        let nodad = if addr.contains(':') { " nodad" } else { "" };
        sh(&format!("ip addr add {addr} dev va{nodad}"));
    }
    sh("ip link set va up");
    let there = far.try_clone().unwrap();
    let peer = move || {
        enter(&there);
        sh("ip addr add 10.9.0.1/24 dev vb");
        sh("ip addr add fd09::1/64 dev vb nodad");
        sh("ip link set vb up");
        loss.map(|one_in| lose("vb", one_in))
    };
    let _loss = thread::spawn(peer).join().unwrap();
    let device: Device = "xdp:va".parse().unwrap();
    let port = PortConfig { offload: Some(offload), ..PortConfig::new(device) };
    let counted = both_ways(port, v6, BYTES, || Some(far.try_clone().unwrap()));
    sh("ip link del va");
    counted
}

/// Loses one in `one_in` of the frames that an interface receives, as long as this lives.
fn lose(device: &str, one_in: u32) -> (io::bpf::Link, io::bpf::Program) {
    const PRANDOM: i32 = 7;
    let index = io::netlink::Netlink::open().unwrap().link(device).unwrap().unwrap().index;
    let mut program = io::bpf::Asm::default();
    // 32 random bits; drop or pass.
    program.call(PRANDOM).mov(1, (u32::MAX / one_in) as i32).jump_if_reg(io::bpf::If::Lt, 0, 1, "drop");
    program.mov(0, 2).exit().label("drop").mov(0, 1).exit();
    let program = io::bpf::Program::load_xdp("loss", &program.finish(), false).unwrap();
    (program.attach(index, false).unwrap(), program)
}

/// So many bytes each way over one connection. `ready` says where the kernel's side is, if not here.
fn both_ways(port: PortConfig, v6: bool, bytes: usize, ready: impl FnOnce() -> Option<File>) -> Counted {
    let mut engine = Engine::start(&Config { ports: vec![port], buffers_mib: 64, ..Config::default() }).unwrap();
    let far = ready();
    let at: SocketAddr = match v6 {
        false => (Ipv4Addr::new(10, 9, 0, 2), 7).into(),
        true => ("fd09::2".parse::<Ipv6Addr>().unwrap(), 7).into(),
    };
    let lane = engine.take_lane(0).unwrap().attach().unwrap();
    let listener = lane.listen(at, ListenOptions::default()).unwrap();
    let kernel = thread::spawn(move || {
        if let Some(far) = far {
            enter(&far);
        }
        let stream = TcpStream::connect(at).unwrap();
        let sent = send(&stream, bytes);
        let got = receive(&stream, bytes);
        stream.shutdown(Shutdown::Both).unwrap();
        (sent, got)
    });
    let (stream, _) = listener.accept().unwrap();
    let got = receive(&stream, bytes);
    let sent = send(&stream, bytes);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(kernel.join().unwrap(), (got, sent));
    drop((stream, listener));
    lane.drain(Duration::from_secs(1));
    let snapshot = lane.snapshot().unwrap();
    let row = |name: &str| snapshot.rows.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!(row("drop_tcp_checksum"), 0);
    let of_port = |name: &str| snapshot.rows.iter().filter(|(n, _)| n.ends_with(name)).map(|(_, n)| n).sum();
    Counted {
        both: [(row("segments_in"), row("frames_in")), (row("segments_out"), row("frames_out"))],
        cut: of_port("/tx_cut"),
        dropped: of_port("/rx_dropped"),
    }
}

#[test]
fn large_frames_cross_a_tap() {
    apart("large", || {
        for (mtu, v6) in [(1500, false), (1500, true), (9000, false)] {
            let counted = over_tap(mtu, true, false, v6);
            assert!(counted.cut > 0, "mtu {mtu}");
            for (segments, frames) in counted.both {
                let full = BYTES as u64 / (mtu as u64 - 40);
                assert!(segments > full, "mtu {mtu}: {segments} segments");
                assert!(frames < segments / 2, "mtu {mtu}: {segments} segments in {frames} frames");
            }
        }
    });
}

/// The kernel receives on a thread of NAPI's, later than the write that sends: frames of a segment may be put together there.
#[test]
fn the_kernel_may_receive_in_napi() {
    apart("napi", || {
        assert!(over_tap(1500, true, true, false).cut > 0);
        assert_eq!(over_tap(1500, false, true, true).cut, 0);
    });
}

#[test]
fn without_offload_frames_are_segments() {
    apart("small", || {
        let counted = over_tap(1500, false, false, false);
        assert_eq!(counted.cut, 0);
        for (segments, frames) in counted.both {
            assert!(segments > BYTES as u64 / 1460 && frames >= segments, "{segments} segments in {frames} frames");
        }
    });
}

#[test]
fn jumbo_frames_over_af_xdp() {
    apart("jumbo", || {
        for (mtu, offload, v6) in [(9000, true, false), (9000, false, true), (1500, false, false)] {
            let Counted { both: [taken, sent], cut, .. } = over_xdp(mtu, offload, v6, None);
            // Data in full segments, and an acknowledgment for every second one.
            let full = BYTES as u64 / (mtu as u64 - 72);
            for (segments, frames) in [taken, sent] {
                assert!(segments > full && segments < 3 * full, "mtu {mtu}: {segments} segments");
                assert!(frames >= segments || offload, "mtu {mtu}: {segments} segments in {frames} frames");
            }
            assert!(taken.1 >= taken.0 && (cut > 0) == offload, "mtu {mtu}: {cut} frames were left to be cut");
        }
    });
}

/// Where AF_XDP copies, bursts leave whole and the kernel cuts them: also those that are lost in part.
#[test]
fn bursts_leave_af_xdp_whole() {
    apart("bursts", || {
        for (v6, loss) in [(false, None), (true, None), (false, Some(200)), (true, Some(200))] {
            let Counted { both: [_, (segments, frames)], cut, .. } = over_xdp(1500, true, v6, loss);
            assert!(segments > BYTES as u64 / 1460, "{segments} segments");
            // Half of them are bare acknowledgments of what was received before.
            assert!(cut > 0 && frames - cut < segments, "{segments} segments in {frames} frames, {cut} to be cut");
            assert!(loss.is_some() || segments > 2 * frames, "{segments} segments in {frames} frames");
        }
    });
}

#[test]
fn memory_wires_of_every_size() {
    for (mtu, offload) in [(1500, false), (9000, true), (9000, false), (1280, true)] {
        let config = |address: &str| {
            let mut c = Config::memory(address).unwrap();
            (c.ports[0].mtu, c.ports[0].offload) = (Some(mtu), Some(offload));
            c
        };
        let (mut a, mut b) = Engine::memory_pair(&config("10.9.0.1/24"), &config("10.9.0.2/24")).unwrap();
        let at = SocketAddr::from(([10, 9, 0, 2], 7));
        let end = b.take_lane(0).unwrap();
        let (ready, listening) = std::sync::mpsc::channel();
        let server = thread::spawn(move || {
            let lane = end.attach().unwrap();
            let listener = lane.listen(at, ListenOptions::default()).unwrap();
            ready.send(()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            let got = receive(&stream, BYTES);
            let sent = send(&stream, BYTES);
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            drop((stream, listener));
            lane.drain(Duration::from_secs(1));
            (got, sent)
        });
        listening.recv().unwrap();
        let lane = a.take_lane(0).unwrap().attach().unwrap();
        let stream = lane.connect(at).unwrap();
        let sent = send(&stream, BYTES);
        let got = receive(&stream, BYTES);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        let snapshot = lane.snapshot().unwrap();
        drop(stream);
        lane.drain(Duration::from_secs(1));
        assert_eq!(server.join().unwrap(), (sent, got), "mtu {mtu}, offload {offload}");
        let row = |name: &str| snapshot.rows.iter().find(|(n, _)| n == name).unwrap().1;
        let full = BYTES as u64 / (mtu as u64 - 52);
        assert!(row("frames_out") > full && row("frames_in") > full, "mtu {mtu}");
        assert_eq!(row("drop_tcp_checksum"), 0);
    }
}
