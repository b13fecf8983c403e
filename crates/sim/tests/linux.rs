//! Interop with the Linux kernel over a bad path in real time: every combination of options, on either side, either end
//! connecting, both directions at once. Skipped without root.

use core::time::Duration;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use io::impair::Impairment;
use sim::HostConfig;
use sim::real::{self, End, Kernel, Link, Peer, Progress, Sysctls, Transfer};
use tcp::Ecn;

const BYTES: u64 = 200_000;
const LIMIT: Duration = Duration::from_secs(60);

/// One run: options of each side, who connects, over what.
#[derive(Clone, Copy, Debug)]
struct Case {
    ours: Sysctls,
    linux: Sysctls,
    we_connect: bool,
    v6: bool,
    seed: u64,
}

fn options(bits: u64) -> Sysctls {
    let on = |bit: u64| bits >> bit & 1 == 1;
    Sysctls { timestamps: on(0), sack: on(1), window_scaling: on(2), ecn: on(3) }
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for bits in 0..16 {
        for own in [true, false] {
            let seed = bits * 2 + own as u64;
            let (ours, linux) = match own {
                true => (options(bits), options(15)),
                false => (options(15), options(bits)),
            };
            all.push(Case { ours, linux, we_connect: bits & 1 == own as u64, v6: (bits >> 1) & 1 == own as u64, seed });
        }
    }
    all
}

fn run(case: Case) -> Result<(), String> {
    let bad = Impairment {
        loss: 0.02,
        duplicate: 0.01,
        reorder: 0.02,
        reorder_by: Duration::from_millis(2),
        corrupt: 0.01,
        delay: Duration::from_millis(1),
        ..Impairment::default()
    };
    let mut config = HostConfig::new(1);
    let t = &mut config.stack.tcp;
    (t.timestamps, t.sack, t.window_scaling) = (case.ours.timestamps, case.ours.sack, case.ours.window_scaling);
    t.ecn = if case.ours.ecn { Ecn::Always } else { Ecn::Never };
    let address = |n: u8, connects: bool| connects.then(|| Kernel::address(n, case.v6));
    let transfer = |to, seed| Transfer { connect: to, send: BYTES, seed, v6: case.v6 };

    let kernel = Kernel::new(2, 1, case.linux).map_err(|e| e.to_string())?;
    let (peer, own) = Peer::new(transfer(address(2, case.we_connect), case.seed * 2));
    let other = kernel.peer(transfer(address(1, !case.we_connect), case.seed * 2 + 1)).map_err(|e| e.to_string())?;
    let mut link = Link::new([End::ours(config, 2, peer), End::Kernel(kernel)], [bad.clone(), bad], case.seed);
    let start = Instant::now();
    link.run(|| own.is_done() && other.is_done() || start.elapsed() > LIMIT).map_err(|e| e.to_string())?;
    other.stop.store(true, Ordering::Relaxed);
    let [[sent, received], [back, there]] = [result("corelane", &own)?, result("Linux", &other)?];
    (sent == there && back == received).then_some(()).ok_or("what arrived is not what was sent".into())
}

fn result(who: &str, p: &Progress) -> Result<[Vec<u8>; 2], String> {
    let received = p.received.load(Ordering::Relaxed);
    match p.result.lock().map_err(|e| e.to_string())?.clone() {
        Some(Ok(digests)) => Ok(digests),
        Some(Err(e)) => Err(format!("{who}: {e} after {received} bytes")),
        None => Err(format!("{who}: not done, {received} bytes received")),
    }
}

#[test]
fn every_combination_of_options() {
    if !real::available() {
        return testing::skip("needs root, iproute2, ethtool and /dev/net/tun");
    }
    let cases = cases();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        // They mostly wait.
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(e) = run(*case) {
                        failed.lock().expect("nobody panics with it").push(format!("{e}: {case:?}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("nobody panics with it");
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), cases.len(), failed.join("\n"));
}
