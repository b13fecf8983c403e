//! Random paths, and what becomes of them during a run.

use core::time::Duration;

use io::impair::{Burst, Impairment, Queue, Random};

use super::{micros, part, scale};
use crate::plan::Change;

pub(crate) struct Paths {
    pub a_to_b: Impairment,
    pub b_to_a: Impairment,
    pub changes: Vec<Change>,
    /// For so long that connections may end by it.
    pub cut: bool,
}

/// Both directions of a path.
pub(crate) fn paths(r: &mut Random, v6: bool) -> Paths {
    let mut now = [impairment(r), impairment(r)];
    let [a_to_b, b_to_a] = now.clone();
    let mut changes = Vec::new();
    let mut at = Duration::ZERO;
    let mut change = |at: Duration, now: &[Impairment; 2], i: usize| {
        changes.push(Change { at, from_b: i == 1, to: now[i].clone() });
    };
    for _ in 0..r.below(4) {
        at += micros(r, 3_000_000);
        let i = r.below(2) as usize;
        match r.below(4) {
            // The route changes.
            0 => {
                let mtu = now[i].mtu;
                now[i] = Impairment { mtu, ..impairment(r) };
                change(at, &now, i);
            }
            // An outage, too short to end anything.
            1 => {
                now[i].down = true;
                change(at, &now, i);
                now[i].down = false;
                at += micros(r, 15_000_000);
                change(at, &now, i);
            }
            // A narrower link; sometimes it widens again.
            _ => {
                let least = if v6 { 1280 } else { 576 };
                now[i].mtu = least + r.below(1500 - least as u64) as u16;
                now[i].silent = r.chance(0.3);
                change(at, &now, i);
                if r.chance(0.3) {
                    at += micros(r, 3_000_000);
                    now[i].mtu = 0;
                    change(at, &now, i);
                }
            }
        }
    }
    let cut = r.chance(0.1);
    if cut {
        at += micros(r, 2_000_000);
        // One way, or both.
        let both = r.chance(0.3);
        let first = r.below(2) as usize;
        for i in [first, 1 - first].into_iter().take(1 + both as usize) {
            now[i].down = true;
            change(at, &now, i);
        }
        // For ever, or for hours.
        if r.chance(0.3) {
            at += Duration::from_secs(1000 + r.below(10_000));
            for i in 0..2 {
                now[i].down = false;
                change(at, &now, i);
            }
        }
    }
    Paths { a_to_b, b_to_a, changes, cut }
}

fn impairment(r: &mut Random) -> Impairment {
    let burst = Burst { enter: 0.001 + part(r, 0.01), leave: 0.1 + part(r, 0.5), loss: 0.5 + part(r, 0.5) };
    let rate = if r.chance(0.5) { scale(r, 500_000, 10) } else { 0 };
    Impairment {
        loss: part(r, 0.1),
        burst: r.chance(0.2).then_some(burst),
        duplicate: part(r, 0.05),
        reorder: part(r, 0.2),
        reorder_by: micros(r, 20_000),
        corrupt: part(r, 0.05),
        delay: micros(r, 100_000),
        jitter: micros(r, 5_000),
        rate,
        queue: queue(r),
        ..Impairment::default()
    }
}

fn queue(r: &mut Random) -> Queue {
    let mut q = Queue::default();
    match r.below(3) {
        0 => q.bytes = scale(r, 20_000, 5) as usize,
        1 => q.frames = scale(r, 10, 5) as usize,
        _ => {}
    }
    if r.chance(0.5) {
        q.mark = scale(r, 5_000, 4) as usize;
    }
    q
}
