//! Parameters that make no sense: a program may set what the configuration file would refuse. Whatever they are, nothing
//! panics or overflows, no timer runs wild, and what was sent arrives or the connection ends.
//!
//! `CORELANE_SEED=S` replays one.

use core::time::Duration;

use io::impair::Random;
use sim::plan::Plan;
use sim::world::{self, Report};
use stack::{StackConfig, SynCookies};

/// Nothing, all there is, next to them, or anything.
fn number(r: &mut Random, most: u64) -> u64 {
    match r.below(8) {
        0 => 0,
        1 => most,
        2 => 1,
        3 => most - 1,
        4 => most / 2,
        5 => most / 2 + 1,
        _ => r.below(most),
    }
}

fn time(r: &mut Random) -> Duration {
    match r.below(7) {
        0 => Duration::ZERO,
        1 => Duration::MAX,
        2 => Duration::from_nanos(1),
        3 => Duration::from_micros(u32::MAX as u64 + 1),
        4 => Duration::from_secs(65_536),
        5 => Duration::from_millis(r.below(1000)),
        _ => Duration::from_secs(r.below(100_000)),
    }
}

/// Each parameter is odd now and then.
fn distort(r: &mut Random, s: &mut StackConfig) {
    let share = [0.05, 0.3, 1.0][r.below(3) as usize];
    macro_rules! odd {
        ($make:ident $($field:expr),*) => {$( if r.chance(share) { $field = $make(r) } )*};
        ($type:ty: $($field:expr),*) => {$( if r.chance(share) { $field = number(r, <$type>::MAX as u64) as $type } )*};
    }
    let t = &mut s.tcp;
    odd!(u32: t.receive_buffer, t.receive_buffer_max, t.send_buffer, t.send_buffer_max, t.initial_window);
    odd!(u8: t.black_hole_timeouts, t.min_burst, t.syn_retries, t.syn_linear_timeouts, t.synack_retries, t.retries);
    odd!(u8: t.orphan_retries, t.keep_count);
    odd!(time t.initial_rto, t.min_rto, t.max_rto, t.delayed_ack, t.invalid_ratelimit, t.fin_timeout, t.cork_limit);
    odd!(time t.keep_idle, t.keep_interval, s.time_wait, s.fragments.timeout);
    odd!(u32: s.max_time_wait, s.syn_backlog, s.max_half_open, s.max_orphans);
    odd!(u16: s.min_path_mtu);
    odd!(usize: s.fragments.datagrams, s.fragments.bytes, s.max_neighbors);
    if r.chance(share) {
        // So many that no session meets another's port: they are told apart by these.
        let first = number(r, u16::MAX as u64).min(65_000) as u16;
        s.ports = wire::Ports::new(first, first + 500);
    }
    if r.chance(share) {
        s.max_connections = r.below(40) as u32;
    }
    s.syn_cookies = r.pick(&[SynCookies::Never, SynCookies::WhenFull, SynCookies::Always]);
}

fn run(seed: u64) -> Report {
    let mut plan = Plan::draw(seed);
    let mut r = Random::new(seed ^ 0x0dd);
    distort(&mut r, &mut plan.a.stack);
    distort(&mut r, &mut plan.b.stack);
    if r.chance(0.2) {
        // The least that the stack takes a link for.
        plan.a.mtu = 148 + r.below(1200) as u16;
    }
    plan.scarce = true;
    world::run(plan)
}

#[test]
fn no_parameter_does_harm() {
    let reports = testing::seeds("sim --test extremes", 600, testing::cores(), run);
    let seeds = reports.len() as u64;
    let total = reports.into_iter().fold(Report::default(), |mut total, report| {
        total += report;
        total
    });
    // Most connections come through all the same.
    println!("{total:?}");
    assert!(seeds < 100 || total.complete as u64 > seeds * 5 / 3, "{total:?}");
}
