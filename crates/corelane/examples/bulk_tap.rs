//! Bulk transfer between a lane and the kernel's TCP over a TAP interface, and what each side's thread paid for it.
//!
//! ```sh
//! cargo build --release -p corelane --example bulk_tap
//! unshare -n target/release/examples/bulk_tap 4096                  # MiB each way, GSO-sized frames on both sides
//! unshare -n target/release/examples/bulk_tap 4096 offload=false    # frames of one segment, sums computed by both
//! ```
//!
//! As root, in a network namespace of its own; `mtu=N` sets another MTU. The lane's thread runs the whole stack in its own time:
//! its user time is TCP, copies and application. Its system time is the TAP device's reads and writes, and, as the kernel
//! processes what is written there at once, the kernel's own receive work: where the kernel receives, that belongs to the
//! kernel's side. Times are the threads' own, in ticks of 10 ms: let it run for some seconds.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Instant;

use corelane::{Config, Engine, ListenOptions, PortConfig};

const PIECE: usize = 128 << 10;

fn sh(command: &str) {
    let mut words = command.split(' ');
    let done = Command::new(words.next().expect("a word")).args(words).status();
    assert!(done.is_ok_and(|s| s.success()), "{command}: failed; run as root under `unshare -n`");
}

/// User and system time of this thread, ms.
fn spent() -> [u64; 2] {
    let stat = fs::read_to_string("/proc/thread-self/stat").expect("a proc file system");
    let after = stat.rsplit_once(')').expect("a name").1;
    let mut fields = after.split_whitespace().skip(11).map(|f| f.parse::<u64>().expect("ticks") * 10);
    [fields.next().expect("utime"), fields.next().expect("stime")]
}

/// Runs `f`; what it cost, ms, and how long it took, s.
fn cost(f: impl FnOnce()) -> ([u64; 2], f64) {
    let (before, start) = (spent(), Instant::now());
    f();
    let after = spent();
    ([after[0] - before[0], after[1] - before[1]], start.elapsed().as_secs_f64())
}

fn send(mut to: impl Write, bytes: usize) {
    let piece = vec![7; PIECE];
    (0..bytes / PIECE).for_each(|_| to.write_all(&piece).expect("sent"));
}

fn receive(mut from: impl Read, bytes: usize) {
    let mut piece = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let most = left.min(PIECE);
        match from.read(&mut piece[..most]).expect("received") {
            0 => panic!("the stream ended"),
            n => left -= n,
        }
    }
}

fn main() {
    let (mut mib, mut mtu, mut offload) = (1024, 1500, true);
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            None => mib = arg.parse().expect("MiB"),
            Some(("mtu", n)) => mtu = n.parse().expect("bytes"),
            Some(("offload", yes)) => offload = yes.parse().expect("true or false"),
            Some((name, _)) => panic!("no such argument: {name}"),
        }
    }
    let bytes = mib << 20;
    let addresses = vec!["10.9.0.2/24".parse().expect("an address")];
    let device = "tap:bulk0".parse().expect("a device");
    let port =
        PortConfig { addresses, mtu: Some(mtu), offload: Some(offload), dad: Some(0), ..PortConfig::new(device) };
    let mut engine = Engine::start(&Config { ports: vec![port], ..Config::default() })
        .unwrap_or_else(|e| panic!("{e}; run as root under `unshare -n`"));
    sh("ip addr add 10.9.0.1/24 dev bulk0");
    if !offload {
        sh("ethtool -K bulk0 tx off tso off gso off gro off");
    }
    let at = SocketAddr::from(([10, 9, 0, 2], 7));
    let lane = engine.take_lane(0).expect("a lane").attach().expect("attached");
    let listener = lane.listen(at, ListenOptions::default()).expect("a listener");
    let kernel = thread::spawn(move || {
        let stream = TcpStream::connect(at).expect("connected");
        let up = cost(|| send(&stream, bytes)).0;
        [up, cost(|| receive(&stream, bytes)).0]
    });
    let (stream, _) = listener.accept().expect("a connection");
    let up = cost(|| receive(&stream, bytes));
    let down = cost(|| send(&stream, bytes));
    // The end of the stream: the kernel has read everything.
    let _ = stream.read(&mut [0]);
    let theirs = kernel.join().expect("the kernel's side");
    let rows = lane.snapshot().expect("the lane is ours").rows;
    let row = |name: &str| rows.iter().find(|r| r.0 == name).map_or(0, |r| r.1);
    for way in ["in", "out"] {
        let (segments, frames) = (row(&format!("segments_{way}")), row(&format!("frames_{way}")));
        println!("{way}: {segments} segments in {frames} frames");
    }
    println!("mtu {mtu}, offload {offload}, {mib} MiB each way; CPU in ms a GB, user + system");
    let per = |ms: u64| ms as f64 * 1e9 / bytes as f64;
    for (what, (ours, seconds), theirs) in [("kernel → lane", up, theirs[0]), ("lane → kernel", down, theirs[1])] {
        println!(
            "{what}: {:.2} GB/s; lane's thread {:.0} + {:.0}, kernel's thread {:.0} + {:.0}",
            bytes as f64 / 1e9 / seconds,
            per(ours[0]),
            per(ours[1]),
            per(theirs[0]),
            per(theirs[1])
        );
    }
}
