//! Random connections: who says what to whom, with which options.

use core::time::Duration;

use io::impair::Random;
use protocol::{CloseMode, ConnOption};
use tcp::congestion::Algorithm;

use super::{micros, scale};
use crate::apps::{Abort, Answer, App, Ask, Bulk, Ping, Pong, SlowReader};
use crate::plan::Session;

type Apps = [Box<dyn App>; 2];

/// One to five connections of any kind, or many short ones.
pub(crate) fn sessions(r: &mut Random, seed: u64) -> Vec<(Session, Apps)> {
    if r.chance(0.1) {
        return (0..10 + r.below(60)).map(|i| session(r, seed * 1000 + i * 2, short)).collect();
    }
    let kinds: [Kind; 7] = [bulk_one_way, bulk_both_ways, ping_pong, half_close, slow_reader, abort, short];
    (0..1 + r.below(5))
        .map(|i| {
            let kind = r.pick(&kinds);
            session(r, seed * 1000 + i * 2, kind)
        })
        .collect()
}

type Kind = fn(&mut Random) -> (&'static str, Box<dyn App>, Box<dyn App>);

fn session(r: &mut Random, seed: u64, kind: Kind) -> (Session, Apps) {
    let (name, client, server) = kind(r);
    let (mut apps, mut swapped): (Apps, bool) = ([client, server], false);
    // Most applications do not care which end connects; requests come from the one that does.
    if !matches!(name, "ping-pong" | "half-close" | "short") {
        swapped = r.chance(0.5);
    }
    if swapped {
        apps.reverse();
    }
    let session = Session {
        name,
        start: micros(r, 2_000_000),
        from_b: r.chance(0.3),
        rude: name == "abort",
        options: [options(r), options(r)],
        seed,
    };
    (session, apps)
}

fn options(r: &mut Random) -> Vec<(ConnOption, u32)> {
    let mut all = Vec::new();
    let mut maybe = |r: &mut Random, p: f64, option: ConnOption, value: u32| {
        if r.chance(p) {
            all.push((option, value));
        }
    };
    maybe(r, 0.4, ConnOption::NoDelay, 1);
    maybe(r, 0.1, ConnOption::Cork, 1);
    maybe(r, 0.1, ConnOption::QuickAck, 1);
    let segment = 100 + r.below(1400) as u32;
    maybe(r, 0.1, ConnOption::MaxSegment, segment);
    let algorithm = r.pick(&[Algorithm::Cubic, Algorithm::NewReno]) as u32;
    maybe(r, 0.1, ConnOption::Congestion, algorithm);
    let low = 1 + r.below(100_000) as u32;
    maybe(r, 0.1, ConnOption::NotSentLow, low);
    let buffer = scale(r, 3000, 7) as u32;
    maybe(r, 0.1, ConnOption::ReceiveBuffer, buffer);
    let clamp = 3000 + r.below(100_000) as u32;
    maybe(r, 0.1, ConnOption::WindowClamp, clamp);
    if r.chance(0.1) {
        let (idle, interval) = (1 + r.below(20) as u32, 1 + r.below(5) as u32);
        // So many that no outage but a long one ends it.
        maybe(r, 1.0, ConnOption::KeepIdle, idle);
        maybe(r, 1.0, ConnOption::KeepInterval, interval);
        maybe(r, 1.0, ConnOption::KeepCount, 100);
        maybe(r, 1.0, ConnOption::KeepAlive, 1);
    }
    all
}

fn bulk(r: &mut Random, total: u64) -> Box<dyn App> {
    // Each write takes a chunk of memory, however short it is.
    let chunk = scale(r, 10, 11).max(total / 1000) as usize;
    Box::new(Bulk { total, chunk, more: r.chance(0.2), linger: r.chance(0.2) })
}

fn bulk_one_way(r: &mut Random) -> (&'static str, Box<dyn App>, Box<dyn App>) {
    let total = scale(r, 1000, 10);
    ("bulk one way", bulk(r, total), bulk(r, 0))
}

fn bulk_both_ways(r: &mut Random) -> (&'static str, Box<dyn App>, Box<dyn App>) {
    let (one, other) = (scale(r, 1000, 9), scale(r, 1000, 9));
    ("bulk both ways", bulk(r, one), bulk(r, other))
}

fn ping_pong(r: &mut Random) -> (&'static str, Box<dyn App>, Box<dyn App>) {
    let (rounds, request, response) = (1 + r.below(30), scale(r, 1, 12), scale(r, 1, 14));
    let think = if r.chance(0.3) { micros(r, 5_000_000) } else { Duration::ZERO };
    let first = r.chance(0.3).then_some(rounds);
    ("ping-pong", Box::new(Ping::new(rounds, request, response, think)), Box::new(Pong { request, response, first }))
}

fn half_close(r: &mut Random) -> (&'static str, Box<dyn App>, Box<dyn App>) {
    let (ask, answer) = (r.below(100_000), r.below(100_000));
    ("half-close", Box::new(Ask { total: ask }), Box::new(Answer { total: answer }))
}

fn slow_reader(r: &mut Random) -> (&'static str, Box<dyn App>, Box<dyn App>) {
    let total = scale(r, 1000, 8);
    let step = (total / (5 + r.below(50))).max(1);
    let longest = 1 << (10 + r.below(14));
    let pause = micros(r, longest);
    ("slow reader", bulk(r, total), Box::new(SlowReader::new(step, pause)))
}

fn abort(r: &mut Random) -> (&'static str, Box<dyn App>, Box<dyn App>) {
    let (one, other) = (scale(r, 1000, 8), r.below(50_000));
    let mode = r.pick(&[None, None, Some(CloseMode::Unread), Some(CloseMode::Graceful), Some(CloseMode::Report)]);
    ("abort", Box::new(Abort::new(other, micros(r, 3_000_000), mode)), bulk(r, one))
}

fn short(r: &mut Random) -> (&'static str, Box<dyn App>, Box<dyn App>) {
    let (request, response) = (1 + r.below(500), 1 + r.below(5000));
    let first = r.chance(0.5).then_some(1);
    let ping = Ping::new(1, request, response, Duration::ZERO);
    ("short", Box::new(ping), Box::new(Pong { request, response, first }))
}
