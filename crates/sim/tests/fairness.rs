//! How flows of one kind share a bottleneck at equal RTTs: Jain's index over what each gets in the long run.

use core::time::Duration;

use sim::flows::{Bottleneck, Flows, jain};
use tcp::congestion::Algorithm;

fn share(congestion: Algorithm, flows: u32) -> f64 {
    // Sixteen segments for each flow on the way and in the queue: with fewer, timeouts share it and not windows.
    let n = |k: &str, d: u64| std::env::var(k).ok().and_then(|v| v.parse::<u64>().ok()).unwrap_or(d);
    let rate = flows as u64 * n("FR", 1_000_000);
    let bottleneck = Bottleneck { rate, rtt: Duration::from_millis(n("FRTT", 100)), loss: 0.0 };
    let mut flows = Flows::open(bottleneck, congestion, flows, 1);
    flows.run(Duration::from_secs(n("FW", 10)), u64::MAX);
    let before = flows.received().to_vec();
    let time = Duration::from_secs(n("FT", 60));
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

#[test]
fn a_bottleneck_is_shared_evenly() {
    let mut low = Vec::new();
    for congestion in [Algorithm::Cubic, Algorithm::NewReno] {
        for flows in [64, 1024] {
            let index = share(congestion, flows);
            if index < 0.99 {
                low.push((congestion, flows, index));
            }
        }
    }
    assert!(low.is_empty(), "not fair: {low:?}");
}
