//! CUBIC (RFC 9438) with HyStart++ (RFC 9406): the window against the RFC's formulas.

use tcp::Config;
use tcp::congestion::{AckSample, Algorithm, CongestionControl, Controller, HyStart, NewReno, Window};
use wire::{Instant, SeqNum};

use crate::peer::{Peer, plain};

const RTT_MS: u64 = 100;

fn sample(acked: u32, w: &Window, ms: u64) -> AckSample {
    AckSample {
        acked,
        in_flight: w.cwnd,
        limited: true,
        max_out: w.cwnd,
        now: Instant::from_micros(ms * 1000),
        srtt: RTT_MS as u32 * 1000,
    }
}

/// A controller that has measured a round trip of `rtt_ms`, and its window.
fn cubic(cwnd: u32, rtt_ms: u64) -> (Controller, Window) {
    let mut c = Controller::new(Algorithm::Cubic);
    let w = Window::new(cwnd);
    c.on_rtt(rtt_ms as u32 * 1000, SeqNum(0), SeqNum(1), &w, true);
    (c, w)
}

/// A loss at the present window; what RFC 9438 4.6 leaves.
fn lose(c: &mut Controller, w: &mut Window) {
    w.ssthresh = c.ssthresh(w);
    w.cwnd = w.ssthresh;
    w.counted = 0;
}

/// Round trips with one acknowledgment for each segment, spread over the round trip; the window after each.
fn rounds(c: &mut Controller, w: &mut Window, from_ms: u64, n: u64, rtt_ms: u64) -> Vec<u32> {
    (0..n)
        .map(|r| {
            let cwnd = w.cwnd as u64;
            for i in 0..cwnd {
                let ms = from_ms + r * rtt_ms + i * rtt_ms / cwnd;
                let ack = sample(1, w, ms);
                c.on_ack(&ack, w);
            }
            w.cwnd
        })
        .collect()
}

/// RFC 9438 4.2, 4.4, 4.5: concave up to W_max, flat there, convex beyond: C (t − K)³ + W_max.
#[test]
fn the_curve() {
    let (mut c, mut w) = cubic(400, RTT_MS);
    lose(&mut c, &mut w);
    assert_eq!((w.cwnd, w.ssthresh), (280, 280));
    let got = rounds(&mut c, &mut w, 5000, 140, RTT_MS);
    // K = ∛(W_max (1 − β) / C) = ∛300 s; the window of a round is the curve's a round trip later.
    let k = 300f64.cbrt();
    for (r, cwnd) in got.iter().enumerate() {
        let t = (r as f64 + 1.0) * 0.1;
        let curve = 0.4 * (t - k).powi(3) + 400.0;
        // Reno's window would be 280 + 9/17 a round trip: below the curve until far beyond.
        assert!((*cwnd as f64 - curve).abs() < 4.0, "round {r}: {cwnd}, the curve is at {curve}");
    }
    // Exactly, every twenty round trips.
    let every: Vec<u32> = got.iter().step_by(20).copied().collect();
    assert_eq!(every, CURVE);
}

const CURVE: [u32; 7] = [285, 362, 394, 400, 401, 415, 463];

/// RFC 9438 4.3: on a short path, or with a small window, it is Reno's.
#[test]
fn the_reno_friendly_region() {
    let (mut c, mut w) = cubic(40, 10);
    lose(&mut c, &mut w);
    assert_eq!(w.cwnd, 28);
    let got = rounds(&mut c, &mut w, 5000, 60, 10);
    // α = 3 (1 − β) / (1 + β) = 9/17 segments a round trip.
    for (r, cwnd) in got.iter().enumerate() {
        let reno = 28.0 + (r as f64 + 1.0) * 9.0 / 17.0;
        assert!((*cwnd as f64 - reno).abs() < 3.0, "round {r}: {cwnd}, Reno is at {reno}");
    }
    assert_eq!([got[9], got[19], got[39], got[59]], RENO);
}

const RENO: [u32; 4] = [32, 36, 48, 58];

/// RFC 9438 4.6: seven tenths, two segments at least.
#[test]
fn what_a_loss_leaves() {
    for (cwnd, left) in [(1000, 700), (100, 70), (10, 7), (9, 6), (4, 2), (3, 2), (2, 2), (1, 2)] {
        let (mut c, mut w) = cubic(cwnd, RTT_MS);
        lose(&mut c, &mut w);
        assert_eq!(w.ssthresh, left, "{cwnd}");
    }
}

/// RFC 9438 4.7: a flow that loses before it has come back to its maximum aims lower.
#[test]
fn fast_convergence() {
    // At the plateau the window stands still; where that is shows what W_max was.
    for (second, plateau) in [(400, 400), (399, 339), (300, 255)] {
        let (mut c, mut w) = cubic(400, RTT_MS);
        lose(&mut c, &mut w);
        w.cwnd = second;
        lose(&mut c, &mut w);
        let k = ((plateau - w.cwnd) as f64 / 0.4).cbrt();
        let got = rounds(&mut c, &mut w, 5000, (k * 10.0) as u64, RTT_MS);
        assert!(got.last().unwrap().abs_diff(plateau) <= 3, "{second}: {:?}", got.last());
    }
}

/// RFC 9438 4.8: after a timeout the curve starts anew from where slow start ends: K is zero.
#[test]
fn after_a_timeout() {
    let (mut c, mut w) = cubic(400, RTT_MS);
    lose(&mut c, &mut w);
    c.on_timeout();
    w.cwnd = 100;
    w.ssthresh = 100;
    let got = rounds(&mut c, &mut w, 5000, 40, RTT_MS);
    for (r, cwnd) in got.iter().enumerate() {
        let t = (r as f64 + 1.0) * 0.1;
        let curve = (0.4 * t.powi(3) + 100.0).max(100.0 + (r as f64) * 9.0 / 17.0);
        // The first epoch has no maximum behind it: five per cent a round trip at least.
        let least = 100.0 * 1.05f64.powi(r as i32);
        assert!(*cwnd as f64 >= curve.min(least) - 3.0, "round {r}: {cwnd}");
    }
    assert_eq!([got[0], got[9], got[19], got[39]], TIMEOUT);
}

const TIMEOUT: [u32; 4] = [105, 162, 264, 701];

/// RFC 9438 4.9: an undone reduction starts a new epoch from the restored window.
#[test]
fn after_an_undone_reduction() {
    let (mut c, mut w) = cubic(400, RTT_MS);
    lose(&mut c, &mut w);
    rounds(&mut c, &mut w, 5000, 10, RTT_MS);
    c.on_undo();
    w.cwnd = 400;
    let got = rounds(&mut c, &mut w, 6000, 10, RTT_MS);
    assert!(got.iter().all(|n| (400..=405).contains(n)), "{got:?}");
}

/// RFC 9438 5.8: idle time is not growth.
#[test]
fn idle_time_is_not_growth() {
    let (mut c, mut w) = cubic(400, RTT_MS);
    lose(&mut c, &mut w);
    let steady = rounds(&mut c, &mut w, 5000, 40, RTT_MS);
    let (mut c, mut w) = cubic(400, RTT_MS);
    lose(&mut c, &mut w);
    let mut got = rounds(&mut c, &mut w, 5000, 20, RTT_MS);
    c.on_restart(Instant::from_micros(37_000_000), 30_000_000);
    got.extend(rounds(&mut c, &mut w, 37_000, 20, RTT_MS));
    assert_eq!(got, steady);
    // Nor can it lie in the future.
    c.on_restart(Instant::from_micros(39_000_000), 90_000_000);
    let next = rounds(&mut c, &mut w, 39_000, 1, RTT_MS)[0];
    assert!(next.abs_diff(*steady.last().unwrap()) <= 40, "{next}");
}

/// No more than half as much again in a round trip (RFC 9438 4.4), however far the curve is.
#[test]
fn growth_is_bounded() {
    let (mut c, mut w) = cubic(10_000, RTT_MS);
    lose(&mut c, &mut w);
    w.cwnd = 10;
    w.ssthresh = 10;
    let got = rounds(&mut c, &mut w, 5000, 5, RTT_MS);
    assert_eq!(got, BOUNDED);
}

const BOUNDED: [u32; 5] = [15, 22, 33, 50, 75];

/// Slow start is counted in segments, up to the threshold; the rest goes on in congestion avoidance.
#[test]
fn slow_start_ends_at_the_threshold() {
    let (mut c, mut w) = cubic(10, RTT_MS);
    w.ssthresh = 20;
    for (acked, cwnd) in [(4, 14), (5, 19), (1, 20), (1, 20)] {
        let ack = sample(acked, &w, 1000);
        c.on_ack(&ack, &mut w);
        assert_eq!(w.cwnd, cwnd);
    }
    // RFC 7661 4.3: not when it was not used.
    let (mut c, mut w) = cubic(10, RTT_MS);
    for (max_out, cwnd) in [(5, 10), (6, 11)] {
        let ack = AckSample { limited: false, max_out, ..sample(1, &w, 1000) };
        c.on_ack(&ack, &mut w);
        assert_eq!(w.cwnd, cwnd);
    }
}

/// A window's arithmetic.
#[test]
fn windows() {
    let mut w = Window { cwnd: 10, ssthresh: 20, counted: 0 };
    assert!(w.slow_start());
    assert_eq!((w.grow_slow_start(5), w.cwnd), (0, 15));
    assert_eq!((w.grow_slow_start(8), w.cwnd), (3, 20));
    assert!(!w.slow_start());
    w.grow_linear(10, 9);
    assert_eq!((w.cwnd, w.counted), (20, 9));
    w.grow_linear(10, 1);
    assert_eq!((w.cwnd, w.counted), (21, 0));
    w.grow_linear(10, 25);
    assert_eq!((w.cwnd, w.counted), (23, 5));
    // What was counted towards a longer step is enough for a shorter one at once, one segment.
    w.grow_linear(5, 1);
    assert_eq!((w.cwnd, w.counted), (24, 1));
    w.grow_linear(0, 1);
    assert_eq!((w.cwnd, w.counted), (26, 0));
    assert_eq!(Window { cwnd: 100, ssthresh: 10, counted: 0 }.borne(), 75);
    assert_eq!(Window { cwnd: 7, ssthresh: 2, counted: 0 }.borne(), 4);
    assert_eq!(Window { cwnd: 8, ssthresh: 2, counted: 0 }.borne(), 6);
    assert_eq!(Window { cwnd: 8, ssthresh: 7, counted: 0 }.borne(), 7);
    assert_eq!(NewReno.ssthresh(&Window::new(9)), 4);
}

#[test]
fn algorithms_have_names() {
    assert_eq!(Algorithm::from_name("cubic"), Some(Algorithm::Cubic));
    assert_eq!(Algorithm::from_name("reno"), Some(Algorithm::NewReno));
    assert_eq!(Algorithm::from_name("bic"), None);
    for (a, name) in Algorithm::ALL {
        assert_eq!(
            (a.name(), Algorithm::from_number(a.number()), Controller::new(*a).algorithm()),
            (*name, Some(*a), *a)
        );
    }
    assert_eq!((Algorithm::Cubic.number(), Algorithm::NewReno.number(), Algorithm::from_number(2)), (0, 1, None));
}

/// One round of `n` samples of `rtt` µs; whether slow start ended.
fn round(h: &mut HyStart, una: u32, rtt: u32, n: u32) -> bool {
    (0..n).any(|i| h.on_rtt(rtt, SeqNum(una + i), SeqNum(una + 1000)))
}

/// RFC 9406 4.2: a round trip longer by an eighth, with eight samples, slows growth to a quarter; after five rounds of that
/// slow start is over.
#[test]
fn hystart_slows_and_stops() {
    let mut h = HyStart::default();
    assert!(!round(&mut h, 0, 80_000, 8));
    assert!(!round(&mut h, 1000, 89_999, 8));
    assert_eq!(h.growth(8), 8);
    // The last round's 89,999 and an eighth are 101,248.
    assert!(!round(&mut h, 2000, 101_247, 8));
    assert_eq!(h.growth(8), 8);
    assert!(!round(&mut h, 3000, 101_247 + 12_655, 7));
    assert_eq!(h.growth(8), 8);
    assert!(!h.on_rtt(101_247 + 12_655, SeqNum(3007), SeqNum(4000)));
    assert_eq!([h.growth(1), h.growth(1), h.growth(1), h.growth(1), h.growth(4), h.growth(9)], [0, 0, 0, 1, 1, 2]);
    for k in 4..8 {
        assert!(!round(&mut h, k * 1000, 130_000, 8), "{k}");
    }
    assert!(round(&mut h, 8000, 130_000, 1));
    assert_eq!(h.growth(9), 9);
    assert!(!round(&mut h, 9000, 200_000, 20));
}

/// The last sample of a round ends it when everything sent before is acknowledged, not earlier.
#[test]
fn hystart_counts_rounds() {
    let mut h = HyStart::default();
    assert!(!h.on_rtt(80_000, SeqNum(0), SeqNum(1000)));
    // Still the first round: its least round trip is what counts.
    assert!(!h.on_rtt(40_000, SeqNum(999), SeqNum(2000)));
    for i in 0..8 {
        assert!(!h.on_rtt(44_999, SeqNum(1000 + i), SeqNum(2000)));
    }
    assert_eq!(h.growth(4), 4);
    let mut h = HyStart::default();
    round(&mut h, 0, 40_000, 8);
    for i in 0..8 {
        h.on_rtt(45_000, SeqNum(1000 + i), SeqNum(2000));
    }
    assert_eq!(h.growth(4), 1);
}

/// RFC 9406 4.2: a round trip below the baseline resumes slow start; the threshold lies between 4 and 16 ms.
#[test]
fn hystart_resumes() {
    let mut h = HyStart::default();
    round(&mut h, 0, 40_000, 8);
    round(&mut h, 1000, 50_000, 8);
    assert_eq!(h.growth(4), 1);
    round(&mut h, 2000, 50_000, 8);
    assert_eq!(h.growth(4), 1);
    round(&mut h, 3000, 49_999, 7);
    assert_eq!(h.growth(4), 1);
    h.on_rtt(49_999, SeqNum(3007), SeqNum(4000));
    assert_eq!(h.growth(4), 4);
    for (base, thresh) in [(1_000, 4_000), (32_000, 4_000), (64_000, 8_000), (128_000, 16_000), (400_000, 16_000)] {
        for (rtt, slow) in [(base + thresh - 1, false), (base + thresh, true)] {
            let mut h = HyStart::default();
            round(&mut h, 0, base, 8);
            round(&mut h, 1000, rtt, 8);
            assert_eq!(h.growth(4) == 1, slow, "{base} {rtt}");
        }
    }
}

/// On a connection: slow start ends by itself when the round trip grows, without a loss.
#[test]
fn a_connection_leaves_slow_start_by_delay() {
    let config = Config { congestion: Algorithm::Cubic, window_scaling: true, ..plain() };
    let mut p = Peer::server_offered(config, "mss 1000,wscale 6");
    p.inject(". 1:1(0) ack 1 win 40000");
    p.write(2_000_000);
    p.drain();
    let mut una = 1;
    let mut left = None;
    for r in 0..12u64 {
        p.now = p.now.plus_micros(20_000 + r * 5_000);
        let n = p.info().unacked as u32;
        for _ in 0..n {
            una += 1000;
            p.inject(&format!(". 1:1(0) ack {una} win 40000"));
            p.drain();
        }
        if p.cwnd().1 != 0x7fff_ffff {
            left = Some((r, p.cwnd()));
            break;
        }
    }
    assert_eq!(left, LEFT);
    assert_eq!(p.info().total_retrans, 0);
}

const LEFT: Option<(u64, (u64, u64))> = Some((6, (124, 123)));

/// A loss on a connection with CUBIC leaves seven tenths.
#[test]
fn a_connection_loses_by_cubic() {
    let mut p = Peer::server_with(Config { congestion: Algorithm::Cubic, ..plain() });
    p.write(10_000);
    p.drain();
    p.timer_ms(220);
    p.drain();
    assert_eq!(p.cwnd(), (1, 7));
    // The other algorithm goes on from there.
    p.set_congestion(Algorithm::NewReno);
    p.inject(". 1:1(0) ack 10001 win 20000");
    p.write(5000);
    p.drain();
    p.inject(". 1:1(0) ack 12001 win 20000");
    let (cwnd, ssthresh) = p.cwnd();
    assert!(cwnd <= ssthresh && ssthresh == 7, "{cwnd} {ssthresh}");
    p.drain();
}

/// RFC 9438 4.2: the curve is looked at a round trip ahead, by the shortest that was measured; a timeout does not change it.
#[test]
fn the_shortest_round_trip_counts() {
    let run = |times: &[u32], timeout: bool| {
        let (mut c, mut w) = cubic(400, 2 * RTT_MS);
        for ms in times {
            c.on_rtt(ms * 1000, SeqNum(0), SeqNum(1), &w, true);
        }
        if timeout {
            c.on_timeout();
        }
        lose(&mut c, &mut w);
        rounds(&mut c, &mut w, 5000, 60, RTT_MS)
    };
    let long = run(&[], false);
    let short = run(&[100], false);
    assert_ne!(long, short);
    assert_eq!(run(&[300], false), long);
    assert_eq!(run(&[100, 300], false), short);
    assert_eq!((run(&[], true), run(&[100], true)), (long, short));
}

/// RFC 9406 4.3: HyStart++ is for the first slow start only, also when a timeout begins another.
#[test]
fn hystart_does_not_come_back_after_a_timeout() {
    let (mut c, mut w) = cubic(100, 40);
    lose(&mut c, &mut w);
    c.on_timeout();
    w.cwnd = 2;
    for (round, rtt) in [40_000, 40_000, 80_000, 80_000, 80_000, 80_000, 80_000, 80_000, 80_000].into_iter().enumerate()
    {
        for i in 0..10 {
            let una = SeqNum(round as u32 * 1000 + i);
            c.on_rtt(rtt, una, una + 1000, &w, true);
        }
        let before = w.cwnd;
        let ack = sample(4, &w, 5000 + round as u64 * 80);
        c.on_ack(&ack, &mut w);
        assert_eq!((w.cwnd, w.ssthresh), (before + 4, 70), "{round}");
    }
}

/// RFC 9406 4.2: rounds count towards the end of slow start only once the delay has grown.
#[test]
fn hystart_lets_a_steady_path_go_on() {
    let mut h = HyStart::default();
    for k in 0..20 {
        assert!(!round(&mut h, k * 1000, 40_000, 10));
        assert_eq!(h.growth(4), 4);
    }
}

/// Where the window is not used it does not grow, and round trips that become longer are not by our doing.
#[test]
fn hystart_looks_only_at_a_window_that_is_used() {
    for (used, left) in [(true, true), (false, false)] {
        let (mut c, mut w) = cubic(100, 40);
        for round in 0..12u32 {
            let rtt = if round < 2 { 40_000 } else { 80_000 };
            for i in 0..10 {
                let una = SeqNum(round * 1000 + i);
                c.on_rtt(rtt, una, una + 1000, &w, used);
            }
        }
        c.on_ack(&sample(1, &w, 5000), &mut w);
        assert_eq!(w.ssthresh < u32::MAX, left, "{used}");
    }
}

/// RFC 9438 4.9: an undone reduction starts a new epoch, however long the one that the loss began has run.
#[test]
fn an_undo_ends_the_epoch() {
    let (mut c, mut w) = cubic(400, RTT_MS);
    lose(&mut c, &mut w);
    rounds(&mut c, &mut w, 5000, 2, RTT_MS);
    w.cwnd = 400;
    c.on_undo();
    // No plateau at 400: at least Reno's 9/17 a round trip.
    let got = rounds(&mut c, &mut w, 5200, 30, RTT_MS);
    assert!((412..=418).contains(got.last().unwrap()), "{got:?}");
}

/// What an acknowledgment leaves over at the threshold counts in congestion avoidance.
#[test]
fn the_rest_of_slow_start_counts_on() {
    let (mut c, mut w) = cubic(100, RTT_MS);
    lose(&mut c, &mut w);
    w.cwnd = 68;
    let ack = sample(5, &w, 5000);
    c.on_ack(&ack, &mut w);
    assert_eq!((w.cwnd, w.counted), (70, 3));
}

/// RFC 9438 5.8 on a connection: a pause is no time of the curve.
#[test]
fn a_connection_pauses_without_growth() {
    let run = |idle: u64| {
        let config = Config { congestion: Algorithm::Cubic, slow_start_after_idle: false, ..plain() };
        let mut p = Peer::server_with(config);
        p.write(10_000);
        p.drain();
        p.timer_ms(220);
        p.drain();
        let mut una = 10_001;
        p.inject(&format!(". 1:1(0) ack {una} win 20000"));
        for round in 0..8 {
            if round == 4 {
                p.now = p.now.plus_micros(idle * 1000);
            }
            let n = p.cwnd().0 as u32 * 1000;
            p.write(n as usize);
            p.drain();
            p.now = p.now.plus_micros(20_000);
            una += n;
            p.inject(&format!(". 1:1(0) ack {una} win 20000"));
        }
        p.cwnd().0
    };
    assert_eq!(run(20_000), run(0));
}

/// RFC 9438 5.8: a pause shifts the curve by its own length, however often something too small to send was written in it.
#[test]
fn a_pause_counts_once() {
    let cwnd_after = |writes: usize| {
        let config = Config { congestion: Algorithm::Cubic, initial_window: 60, window_scaling: true, ..plain() };
        let mut p = Peer::server_offered(config, "mss 1000,wscale 7");
        let mut una = 1;
        let round = |p: &mut Peer, lost: bool, una: &mut u32| {
            let n = p.cwnd().0 as u32 * 1000;
            p.write(n as usize);
            p.drain();
            p.now = p.now.plus_micros(100_000);
            if lost {
                for _ in 0..3 {
                    p.inject(&format!(". 1:1(0) ack {una} win 20000"));
                    p.drain();
                }
            }
            *una += n;
            p.inject(&format!(". 1:1(0) ack {una} win 20000"));
            p.drain();
        };
        round(&mut p, true, &mut una);
        for _ in 0..20 {
            round(&mut p, false, &mut una);
        }
        for _ in 0..writes {
            p.now = p.now.plus_micros(100_000 / writes as u64);
            p.write_more(1);
            p.drain();
        }
        // Whole segments from here on again.
        p.write(1000 - writes);
        p.drain();
        p.now = p.now.plus_micros(20_000);
        una += 1000;
        p.inject(&format!(". 1:1(0) ack {una} win 20000"));
        for _ in 0..80 {
            round(&mut p, false, &mut una);
        }
        p.cwnd()
    };
    let (once, often) = (cwnd_after(1), cwnd_after(50));
    assert_eq!(once, often);
}
