//! Simulation at length: random networks, hosts and applications, and what must hold whatever happens (`sim::world`).
//!
//! `CORELANE_SEEDS=N` runs N seeds, `CORELANE_SEED=S` replays one.

use std::panic::{catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sim::plan::Plan;
use sim::world::{self, Report};

#[test]
fn every_byte_once_and_in_order() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("CORELANE_SEED") {
        println!("{:?}", world::run(Plan::draw(seed)));
        return;
    }
    let seeds = number("CORELANE_SEEDS").unwrap_or(4_000);
    let next = AtomicU64::new(0);
    let total = Mutex::new(Report::default());
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut sum = Report::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    match catch_unwind(|| world::run(Plan::draw(seed))) {
                        Ok(report) => sum += report,
                        Err(cause) => {
                            next.store(seeds, Ordering::Relaxed);
                            eprintln!("replay with: CORELANE_SEED={seed} cargo test -p sim --test lossy");
                            resume_unwind(cause);
                        }
                    }
                }
                *total.lock().expect("nobody panics with it") += sum;
            });
        }
    });
    let total = total.into_inner().expect("nobody panics with it");
    println!("{seeds} seeds: {total:?}");
    // The draws are what they should be, where they are many: most connections end well, some do not.
    let most = total.complete > 10 * total.cut && total.complete > 5 * total.rude;
    assert!(seeds < 100 || most && total.cut > 0 && total.rude > 0, "{total:?}");
}
