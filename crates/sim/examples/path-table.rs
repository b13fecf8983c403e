//! Our TCP beside Linux's on the same simulated paths, in real time: goodput over loss and RTT as a table, or the survival of
//! one long transfer over a very bad path.
//!
//! Needs root. `cargo run --release -p sim --example path-table -- --help`

use core::time::Duration;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use io::impair::{Impairment, PathCounters};
use sim::HostConfig;
use sim::flows::Bottleneck;
use sim::real::{self, End, Kernel, Link, Peer, Progress, Sysctls, Transfer};

const HELP: &str = "\
usage: path-table [OPTIONS]

Without --survive: goodput from Linux and from corelane to Linux, by turns, for each loss and RTT.

  --rate MBIT     bottleneck, Mbit/s                          [100]
  --loss LIST     per cent, separated by commas               [0.01,0.1,1,5]
  --rtt LIST      ms                                          [1,10,50,200]
  --times N       repetitions of each cell                    [3]
  --seconds S     length of a run, to which 40 RTTs are added [6]
  --quick         two cells, one short run each
  --survive BYTES both ways between corelane and Linux, with 5 % loss, reordering, duplicates and corruption
  --parallel N    connections that share these               [16]
  --seed N        draws the paths' fate                       [1]
";

struct Args {
    rate: u64,
    loss: Vec<f64>,
    rtt: Vec<u64>,
    times: u64,
    seconds: f64,
    survive: Option<u64>,
    parallel: u64,
    seed: u64,
}

fn parse() -> Result<Args, String> {
    let mut a = Args {
        rate: 100_000_000,
        loss: vec![0.01, 0.1, 1.0, 5.0],
        rtt: vec![1, 10, 50, 200],
        times: 3,
        seconds: 6.0,
        survive: None,
        parallel: 16,
        seed: 1,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => (a.loss, a.rtt, a.times, a.seconds) = (vec![0.1, 1.0], vec![10], 1, 1.0),
            "--rate" => a.rate = number::<u64>(&word, words.next())? * 1_000_000,
            "--loss" => a.loss = list(&word, words.next())?,
            "--rtt" => a.rtt = list(&word, words.next())?,
            "--times" => a.times = number(&word, words.next())?,
            "--seconds" => a.seconds = number(&word, words.next())?,
            "--survive" => a.survive = Some(number(&word, words.next())?),
            "--parallel" => a.parallel = number::<u64>(&word, words.next())?.max(1),
            "--seed" => a.seed = number(&word, words.next())?,
            "--help" | "-h" => return Err(HELP.into()),
            other => return Err(format!("{other}: unknown\n\n{HELP}")),
        }
    }
    Ok(a)
}

fn number<T: std::str::FromStr>(option: &str, word: Option<String>) -> Result<T, String> {
    let word = word.ok_or(format!("{option} needs a value"))?;
    word.parse().map_err(|_| format!("{option} {word}: not a number"))
}

fn list<T: std::str::FromStr>(option: &str, word: Option<String>) -> Result<Vec<T>, String> {
    let word = word.ok_or(format!("{option} needs a list"))?;
    word.split(',').map(|w| number(option, Some(w.into()))).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Linux,
    Corelane,
}

fn main() -> ExitCode {
    let args = match parse() {
        Ok(args) => args,
        Err(text) => {
            eprint!("{text}");
            return ExitCode::from(2);
        }
    };
    if !real::available() {
        eprintln!("path-table needs root, iproute2, ethtool and /dev/net/tun");
        return ExitCode::FAILURE;
    }
    let result = match args.survive {
        Some(bytes) => survive(bytes, args.parallel, args.seed),
        None => table(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Starts host 1, which does `transfer`, as Linux or as ours.
fn sender(kind: Sender, transfer: Transfer) -> std::io::Result<(End, Arc<Progress>)> {
    match kind {
        Sender::Linux => {
            let kernel = Kernel::new(1, 2, Sysctls::default())?;
            let progress = kernel.peer(transfer)?;
            Ok((End::Kernel(kernel), progress))
        }
        Sender::Corelane => {
            let (peer, progress) = Peer::new(transfer);
            Ok((End::ours(ours(), 2, peer), progress))
        }
    }
}

/// Buffers that never limit, as the kernel's do not.
fn ours() -> HostConfig {
    let mut config = HostConfig::new(1);
    config.chunks = 1 << 18;
    config.stack.tcp.receive_buffer_max = 64 << 20;
    config.stack.tcp.send_buffer_max = 64 << 20;
    config
}

/// Mbit/s that arrive at Linux from `kind` within `time`.
fn measure(kind: Sender, b: &Bottleneck, time: Duration, seed: u64) -> std::io::Result<f64> {
    let receiver = Kernel::new(2, 1, Sysctls::default())?;
    let sink = receiver.peer(Transfer { connect: None, send: 0, seed, v6: false })?;
    let to = Some(Kernel::address(2, false));
    let (end, source) = sender(kind, Transfer { connect: to, send: u64::MAX, seed, v6: false })?;
    let mut link = Link::new([end, End::Kernel(receiver)], b.paths(), seed);
    let start = Instant::now();
    link.run(|| start.elapsed() >= time)?;
    let (bytes, took) = (sink.received.load(Ordering::Relaxed), start.elapsed());
    // Their threads end without the path.
    for progress in [&sink, &source] {
        progress.stop.store(true, Ordering::Relaxed);
    }
    Ok(bytes as f64 * 8.0 / took.as_secs_f64() / 1e6)
}

fn table(args: &Args) -> std::io::Result<()> {
    println!("Goodput to Linux, Mbit/s, median (least … most) of {}; both CUBIC.", args.times);
    println!("Bottleneck {} Mbit/s, queue of one round trip.\n", args.rate / 1_000_000);
    println!("| loss | RTT | from Linux | from corelane | ratio |");
    println!("|---:|---:|---:|---:|---:|");
    for &loss in &args.loss {
        for &rtt in &args.rtt {
            let b = Bottleneck { rate: args.rate, rtt: Duration::from_millis(rtt), loss: loss / 100.0 };
            let time = Duration::from_secs_f64(args.seconds) + b.rtt * 40;
            let mut got = [Vec::new(), Vec::new()];
            for i in 0..args.times {
                // By turns, so that what the machine does meanwhile meets both.
                for (kind, got) in [Sender::Linux, Sender::Corelane].into_iter().zip(&mut got) {
                    got.push(measure(kind, &b, time, args.seed + i)?);
                }
            }
            let [(linux, linux_text), (own, own_text)] = got.map(summary);
            println!("| {loss} % | {rtt} ms | {linux_text} | {own_text} | {:.2} |", own / linux);
        }
    }
    Ok(())
}

fn summary(mut all: Vec<f64>) -> (f64, String) {
    all.sort_by(f64::total_cmp);
    let median = all[all.len() / 2];
    (median, format!("{median:.2} ({:.2} … {:.2})", all[0], all[all.len() - 1]))
}

/// Long transfers in both directions over paths that do everything; `parallel` of them share `bytes`, each on a path of
/// its own, because a connection mostly waits on such a path.
fn survive(bytes: u64, parallel: u64, seed: u64) -> std::io::Result<()> {
    let share = bytes.div_ceil(parallel);
    let start = Instant::now();
    let runs: Vec<_> = (0..parallel).map(|i| std::thread::spawn(move || survivor(share, seed + 2 * i))).collect();
    let mut intact = true;
    for (i, run) in runs.into_iter().enumerate() {
        intact &= run.join().map_err(|_| std::io::Error::other("a thread panicked"))??.report(i);
    }
    println!("{bytes} bytes each way over {parallel} connections in {:.1} s", start.elapsed().as_secs_f64());
    intact.then_some(()).ok_or(std::io::Error::other("what arrived is not what was sent"))
}

/// What one of them came to: digests of what each end sent and received, and what the paths did.
struct Survived {
    own: [Vec<u8>; 2],
    linux: [Vec<u8>; 2],
    paths: [PathCounters; 2],
}

impl Survived {
    fn report(&self, i: usize) -> bool {
        let hex = |digest: &[u8]| digest.iter().map(|b| format!("{b:02x}")).collect::<String>();
        for (from, to, sent, received, path) in [
            ("corelane", "Linux", &self.own[0], &self.linux[1], &self.paths[0]),
            ("Linux", "corelane", &self.linux[0], &self.own[1], &self.paths[1]),
        ] {
            let verdict = if sent == received { "arrived whole" } else { "DAMAGED" };
            println!("{i}: {from} to {to}: SHA-256 {} {verdict}", hex(sent));
            println!("   {path:?}");
        }
        self.own[0] == self.linux[1] && self.linux[0] == self.own[1]
    }
}

fn survivor(bytes: u64, seed: u64) -> std::io::Result<Survived> {
    let bad = Impairment {
        loss: 0.05,
        duplicate: 0.02,
        reorder: 0.05,
        reorder_by: Duration::from_millis(1),
        corrupt: 0.01,
        delay: Duration::from_micros(100),
        ..Impairment::default()
    };
    let kernel = Kernel::new(2, 1, Sysctls::default())?;
    let other = kernel.peer(Transfer { connect: None, send: bytes, seed: seed + 1, v6: false })?;
    let to = Some(Kernel::address(2, false));
    let (end, own) = sender(Sender::Corelane, Transfer { connect: to, send: bytes, seed, v6: false })?;
    let mut link = Link::new([end, End::Kernel(kernel)], [bad.clone(), bad], seed);
    link.run(|| own.is_done() && other.is_done())?;
    let digests = |p: &Progress| {
        let result = p.result.lock().expect("nobody panics with it").clone();
        result.unwrap_or(Err("it is not done".into())).map_err(std::io::Error::other)
    };
    Ok(Survived { own: digests(&own)?, linux: digests(&other)?, paths: link.counters() })
}
