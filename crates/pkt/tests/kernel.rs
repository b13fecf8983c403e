//! The same dialogues against the kernel, where it may be asked: what our stack does there is what Linux does.
//!
//! These are the dialogues that Linux holds in every run; docs/differential.md lists the others with the reason for each.

use std::path::Path;
use std::thread;

use pkt::{Defines, Report, Under, Verdict, run};

const DIALOGUES: [&str; 49] = [
    "challenge/ack-of-the-future",
    "challenge/ack-too-old",
    "challenge/no-flags",
    "challenge/syn",
    "close/active",
    "close/fin-on-data",
    "close/fin-retransmit",
    "close/half",
    "close/linger-zero",
    "close/passive",
    "close/simultaneous",
    "close/unread-data-resets",
    "data/beyond-the-window",
    "data/duplicates",
    "data/in-order",
    "data/out-of-order",
    "data/overlap",
    "data/segments",
    "data/vectors",
    "delayed-ack/rides-on-data",
    "handshake/active-refused",
    "handshake/data-in-syn",
    "handshake/data-with-last-ack",
    "handshake/nobody-listens",
    "handshake/passive-no-options-v4",
    "handshake/simultaneous-open",
    "handshake/simultaneous-open-ack-v4",
    "handshake/simultaneous-open-rst-v4",
    "handshake/simultaneous-open-syn-v4",
    "handshake/syn-received-window-not-scaled",
    "handshake/syn-received-window-scaled-v4",
    "handshake/syn-retransmit",
    "nagle/full-segments-go",
    "nagle/nodelay",
    "nagle/one-small-segment",
    "reset/accepted",
    "reset/in-close-wait",
    "reset/syn-received-outside",
    "reset/syn-received-wrong-ack",
    "rto/back-off",
    "sack/fast-retransmit",
    "sack/limited-transmit",
    "sack/two-holes",
    "sack/without-sack",
    "timestamps/echo",
    "timestamps/missing",
    "timestamps/paws",
    "window/ack-at-the-right-edge",
    "window/text-at-the-right-edge",
];

/// Real time: a busy machine is late, and gets a second and a third chance beside other scripts, and more alone.
const CHANCES: [usize; 2] = [3, 20];
const TOLERANCE: &str = "20000";

fn on_kernel(name: &str) -> Report {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/dialogue/{name}.pkt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let given = [("tolerance_usecs", Some(TOLERANCE))];
    run(name, &text, &given, &Defines::new(), Under::Kernel)
}

/// A script in a thread of its own, whose network namespace it changes.
fn judged(name: &'static str, chances: usize) -> Report {
    let once = || thread::spawn(move || on_kernel(name)).join().expect("a report");
    let mut report = once();
    for _ in 1..chances {
        if matches!(report.verdict, Verdict::Pass | Verdict::Unsupported { .. }) {
            break;
        }
        report = once();
    }
    report
}

#[test]
fn linux_holds_the_same_dialogues() {
    let [beside, alone] = CHANCES;
    if let Verdict::Unsupported { reason, .. } = judged(DIALOGUES[0], beside).verdict {
        assert!(reason.contains("a network of the kernel's own"), "{reason}");
        return testing::skip(reason);
    }
    let mut late = Vec::new();
    for some in DIALOGUES.chunks(8) {
        let running: Vec<_> = some.iter().map(|name| (name, thread::spawn(move || judged(name, beside)))).collect();
        let reports = running.into_iter().map(|(name, t)| (name, t.join().expect("a report")));
        late.extend(reports.filter(|(_, r)| r.verdict != Verdict::Pass).map(|(name, _)| *name));
    }
    let reports = late.into_iter().map(|name| judged(name, alone));
    let failures: Vec<_> = reports.filter(|r| r.verdict != Verdict::Pass).map(|r| r.line()).collect();
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}
