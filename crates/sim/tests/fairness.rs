//! How flows of one kind share a bottleneck at equal RTTs: Jain's index over what each gets in the long run.

use core::time::Duration;

use sim::flows::{Bottleneck, Flows, jain};
use tcp::congestion::Algorithm;

/// The index after `time`.
fn share(congestion: Algorithm, flows: u32, time: Duration) -> f64 {
    // Eight segments for each flow on the way and in the queue: with fewer, timeouts share it and not windows.
    let rate = flows as u64 * 1_000_000;
    let bottleneck = Bottleneck { rate, rtt: Duration::from_millis(50), loss: 0.0 };
    let mut flows = Flows::open(bottleneck, congestion, flows, 1);
    flows.run(Duration::from_secs(10), u64::MAX);
    let before = flows.received().to_vec();
    flows.run(time, u64::MAX);
    let shares: Vec<u64> = flows.received().iter().zip(&before).map(|(now, then)| now - then).collect();
    let index = jain(&shares);
    let used = shares.iter().sum::<u64>() as f64 * 8.0 / time.as_micros() as f64;
    println!(
        "{congestion:?}, {} flows: Jain's index {index:.4}, {used:.0} of {} Mbit/s",
        shares.len(),
        rate / 1_000_000
    );
    index
}

const ALL: [Algorithm; 2] = [Algorithm::Cubic, Algorithm::NewReno];

#[test]
fn few_share_a_bottleneck_evenly() {
    for congestion in ALL {
        assert!(share(congestion, 64, Duration::from_secs(120)) >= 0.99);
    }
}

/// The same holds for a thousand after as long; a short run shows how they come near it. `CORELANE_LONG=1` runs it in full.
#[test]
fn many_share_a_bottleneck_evenly() {
    let long = std::env::var("CORELANE_LONG").is_ok();
    let (time, least) = if long { (120, 0.99) } else { (10, 0.85) };
    for congestion in ALL {
        assert!(share(congestion, 1024, Duration::from_secs(time)) >= least);
    }
}
