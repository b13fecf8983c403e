//! Goodput of one connection over loss, RTT and bandwidth, under the virtual clock: exact, so that whatever changes it shows
//! as a difference to `snapshots/goodput.txt`.
//!
//! `CORELANE_SNAPSHOT=write` writes what it is now.

use core::time::Duration;
use std::fmt::Write;

use sim::flows::{Bottleneck, goodput};
use tcp::congestion::Algorithm;

const LOSS: [f64; 5] = [0.0, 0.01, 0.1, 1.0, 5.0];
const RTT_MS: [u64; 4] = [1, 10, 50, 200];
/// A cell ends with whichever comes first.
const TIME: Duration = Duration::from_secs(30);
const BYTES: u64 = 64_000_000;

fn table(congestion: Algorithm, rate: u64) -> String {
    let mut out = format!("{congestion:?}, {} Mbit/s\n{:>8}", rate / 1_000_000, "loss");
    RTT_MS.iter().for_each(|rtt| write!(out, "{:>9}", format!("{rtt} ms")).unwrap());
    out.push('\n');
    for loss in LOSS {
        write!(out, "{:>8}", format!("{loss} %")).unwrap();
        for rtt in RTT_MS {
            let bottleneck = Bottleneck { rate, rtt: Duration::from_millis(rtt), loss: loss / 100.0 };
            write!(out, "{:>9.2}", goodput(bottleneck, congestion, TIME, BYTES, 1)).unwrap();
        }
        out.push('\n');
    }
    out
}

#[test]
fn goodput_is_what_it_was() {
    let cells = [
        (Algorithm::Cubic, 100_000_000),
        (Algorithm::Cubic, 1_000_000_000),
        (Algorithm::NewReno, 100_000_000),
        (Algorithm::NewReno, 1_000_000_000),
    ];
    let mut tables: Vec<String> = Vec::new();
    std::thread::scope(|scope| {
        let all: Vec<_> = cells.into_iter().map(|(c, rate)| scope.spawn(move || table(c, rate))).collect();
        tables.extend(all.into_iter().map(|t| t.join().expect("a table")));
    });
    let head = "Goodput of one connection, Mbit/s, by loss and RTT; a queue of one round trip.\n\n";
    let now = head.to_string() + &tables.join("\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/goodput.txt");
    if std::env::var("CORELANE_SNAPSHOT").is_ok_and(|v| v == "write") {
        std::fs::write(path, &now).expect("writing the snapshot");
        println!("{now}");
        return;
    }
    let then = std::fs::read_to_string(path).unwrap_or_default();
    let changed: Vec<String> = then
        .lines()
        .zip(now.lines())
        .enumerate()
        .filter(|(_, (then, now))| then != now)
        .map(|(i, (then, now))| format!("line {}\n  was {then}\n  is  {now}", i + 1))
        .collect();
    assert!(
        then == now,
        "goodput is not what it was; where that is meant: CORELANE_SNAPSHOT=write cargo test -p sim --test goodput\n{}",
        changed.join("\n")
    );
}
