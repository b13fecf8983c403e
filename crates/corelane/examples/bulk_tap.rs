//! Bulk transfer between a lane and the kernel's TCP over a TAP interface, and what each side's thread paid for it.
//!
//! ```sh
//! cargo build --release -p corelane --example bulk_tap
//! unshare -n target/release/examples/bulk_tap 4096                  # MiB each way, GSO-sized frames on both sides
//! unshare -n target/release/examples/bulk_tap 4096 offload=false    # frames of one segment, sums computed by both
//! ```
//!
//! As root, in a network namespace of its own; `mtu=N` sets another MTU, `send_buffer=N` bounds the lane's send buffer (4 MiB
//! otherwise). What a write to a TAP device sends, the kernel receives inside that write, as a rule, and so in the writer's
//! time: the lane would be billed for the kernel's TCP. So here the kernel receives in NAPI, on a thread that does nothing
//! else (`napi = true`, `/sys/class/net/bulk0/threaded`), and three threads are billed:
//!
//! - the lane's: user time is TCP, copies and application; system time is the device's reads and writes, each of which copies
//!   a frame, and the waking of NAPI;
//! - the kernel's application: its system time is the socket calls, their copies, and TCP as far as it runs inside them;
//! - NAPI: the kernel's receive work in both directions. Where the lane sends that is segments and the ACKs for them, where the
//!   kernel sends it is the ACKs that the lane writes and the data that they let out.
//!
//! The kernel's share is that of the last two. `napi=false` leaves the kernel's receive work in the lane's system time, as it is
//! without the option; then only the sum of all says something. Interrupts are billed to whom they meet. Times are the threads'
//! own, in ticks of 10 ms: let it run for some seconds, and leave the cores to it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Instant;

use corelane::{Config, Engine, ListenOptions, PortConfig, TcpConfig};

const PIECE: usize = 128 << 10;

fn sh(command: &str) {
    let mut words = command.split(' ');
    let done = Command::new(words.next().expect("a word")).args(words).status();
    assert!(done.is_ok_and(|s| s.success()), "{command}: failed; run as root under `unshare -n`");
}

const OWN: &str = "/proc/thread-self/stat";

/// User and system time of a thread, ms.
fn spent(stat: &str) -> [u64; 2] {
    let stat = fs::read_to_string(stat).expect("a thread, and a proc file system");
    let after = stat.rsplit_once(')').expect("a name").1;
    let mut fields = after.split_whitespace().skip(11).map(|f| f.parse::<u64>().expect("ticks") * 10);
    [fields.next().expect("utime"), fields.next().expect("stime")]
}

/// Runs `f`; what it cost this thread, ms, and how long it took, s.
fn cost(f: impl FnOnce()) -> ([u64; 2], f64) {
    let (before, start) = (spent(OWN), Instant::now());
    f();
    let after = spent(OWN);
    ([after[0] - before[0], after[1] - before[1]], start.elapsed().as_secs_f64())
}

/// The kernel's threads for the device's NAPI.
fn napi_threads() -> Vec<u32> {
    let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|n| n.starts_with("napi/bulk0-"));
    let all = fs::read_dir("/proc").expect("a proc file system");
    all.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).filter(name).collect()
}

/// Gives the device's NAPI a thread; where its times are.
fn thread_for_napi() -> String {
    // Other namespaces may have a device of the same name.
    let others = napi_threads();
    // A view of /sys that shows this namespace's devices, for as long as it takes.
    let write = "mount -t sysfs sysfs /sys && echo 1 > /sys/class/net/bulk0/threaded";
    let done = Command::new("unshare").args(["-m", "sh", "-c", write]).status();
    assert!(done.is_ok_and(|s| s.success()), "{write}: failed; NAPI has threads since Linux 5.12");
    let own = napi_threads().into_iter().find(|pid| !others.contains(pid)).expect("a thread for NAPI");
    format!("/proc/{own}/stat")
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
    let (mut mib, mut mtu, mut offload, mut napi, mut send_buffer) = (1024, 1500, true, true, None);
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            None => mib = arg.parse().expect("MiB"),
            Some(("mtu", n)) => mtu = n.parse().expect("bytes"),
            Some(("offload", yes)) => offload = yes.parse().expect("true or false"),
            Some(("napi", yes)) => napi = yes.parse().expect("true or false"),
            Some(("send_buffer", n)) => send_buffer = Some(n.parse().expect("bytes")),
            Some((name, _)) => panic!("no such argument: {name}"),
        }
    }
    let bytes = mib << 20;
    let addresses = vec!["10.9.0.2/24".parse().expect("an address")];
    let device = "tap:bulk0".parse().expect("a device");
    let port = PortConfig {
        addresses,
        mtu: Some(mtu),
        offload: Some(offload),
        napi: Some(napi),
        dad: Some(0),
        ..PortConfig::new(device)
    };
    let tcp = TcpConfig { send_buffer_max: send_buffer, ..TcpConfig::default() };
    let mut engine = Engine::start(&Config { ports: vec![port], tcp, ..Config::default() })
        .unwrap_or_else(|e| panic!("{e}; run as root under `unshare -n`"));
    let napi = napi.then(thread_for_napi);
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
    let in_napi = || napi.as_ref().map_or(0, |stat| spent(stat).iter().sum::<u64>());
    let at_first = in_napi();
    let up = cost(|| receive(&stream, bytes));
    let between = in_napi();
    let down = cost(|| send(&stream, bytes));
    // The end of the stream: the kernel has read everything.
    let _ = stream.read(&mut [0]);
    let at_last = in_napi();
    let theirs = kernel.join().expect("the kernel's side");
    let rows = lane.snapshot().expect("the lane is ours").rows;
    let row = |name: &str| rows.iter().find(|r| r.0 == name).map_or(0, |r| r.1);
    for way in ["in", "out"] {
        let (segments, frames) = (row(&format!("segments_{way}")), row(&format!("frames_{way}")));
        println!("{way}: {segments} segments in {frames} frames");
    }
    println!("mtu {mtu}, offload {offload}, {mib} MiB each way; CPU in ms a GB, user + system");
    let per = |ms: u64| ms as f64 * 1e9 / bytes as f64;
    for (what, (ours, seconds), theirs, napi) in
        [("kernel → lane", up, theirs[0], between - at_first), ("lane → kernel", down, theirs[1], at_last - between)]
    {
        println!(
            "{what}: {:.2} GB/s; lane {:.0} ({:.0} + {:.0}); kernel {:.0} (application {:.0} + {:.0}, NAPI {:.0})",
            bytes as f64 / 1e9 / seconds,
            per(ours[0] + ours[1]),
            per(ours[0]),
            per(ours[1]),
            per(theirs[0] + theirs[1] + napi),
            per(theirs[0]),
            per(theirs[1]),
            per(napi)
        );
    }
}
