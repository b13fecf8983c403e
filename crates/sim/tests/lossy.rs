//! Simulation at length: random networks, hosts and applications, and what must hold whatever happens (`sim::world`).
//!
//! `CORELANE_SEEDS=N` runs N seeds, `CORELANE_SEED=S` replays one.

use sim::plan::Plan;
use sim::world::{self, Report};

#[test]
fn every_byte_once_and_in_order() {
    let reports = testing::seeds("sim --test lossy", testing::sized(2_000, 4_000), testing::cores(), |seed| {
        world::run(Plan::draw(seed))
    });
    let seeds = reports.len();
    let total = reports.into_iter().fold(Report::default(), |mut total, report| {
        total += report;
        total
    });
    println!("{seeds} seeds: {total:?}");
    // The draws are what they should be, where they are many: most connections end well, some do not.
    let most = total.complete > 10 * total.cut && total.complete > 5 * total.rude;
    assert!(seeds < 100 || most && total.cut > 0 && total.rude > 0, "{total:?}");
}
