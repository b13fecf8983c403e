//! The congestion window as RFC 5681 moves it, its start (RFC 6928), and windows that were not used (RFC 7661).

use tcp::Config;

use crate::peer::{Peer, plain};

fn wide(config: Config) -> Peer {
    let mut p = Peer::server_offered(Config { window_scaling: true, ..config }, "mss 1000,wscale 2");
    p.inject(". 1:1(0) ack 1 win 60000");
    p
}

fn ack(n: u32) -> String {
    format!(". 1:1(0) ack {n} win 60000")
}

/// RFC 6928: ten segments.
#[test]
fn the_initial_window() {
    let mut p = wide(plain());
    assert_eq!(p.cwnd(), (10, 0x7fff_ffff));
    p.write(50_000);
    assert_eq!(p.drain().len(), 10);
    let mut p = wide(Config { initial_window: 3, ..plain() });
    p.write(50_000);
    assert_eq!(p.drain().len(), 3);
}

/// RFC 5681 3.1: slow start doubles the window each round trip, counting what is acknowledged (RFC 3465).
#[test]
fn slow_start() {
    let mut p = wide(plain());
    p.write(100_000);
    p.drain();
    for i in 0..10 {
        p.inject(&ack(1001 + i * 1000));
        assert_eq!(p.drain().len(), 2);
        assert_eq!(p.cwnd().0, 11 + i as u64);
    }
    p.inject(&ack(12_001));
    assert_eq!(p.cwnd().0, 22);
    p.drain();
    p.inject(&ack(20_001));
    assert_eq!(p.cwnd().0, 30);
    p.drain();
}

/// RFC 5681 3.1: beyond ssthresh a segment each round trip.
#[test]
fn congestion_avoidance() {
    let mut p = wide(plain());
    p.write(1000);
    p.drain();
    p.inject(&ack(1001));
    p.write(10_000);
    p.drain();
    for _ in 0..3 {
        p.inject(&ack(1001));
        p.drain();
    }
    p.inject(&ack(11_001));
    p.write(100_000);
    p.drain();
    let mut una = 12_001;
    p.inject(&ack(una));
    p.drain();
    let ssthresh = p.cwnd().1;
    assert_eq!((p.cwnd().0, p.info().ca_state), (ssthresh, 0));
    for round in ssthresh..ssthresh + 4 {
        // One round trip: as many acknowledgments as the window has segments.
        // The acknowledgment that ended recovery counts.
        for n in 1 + (round == ssthresh) as u64..=round {
            una += 1000;
            p.inject(&ack(una));
            assert_eq!(p.cwnd().0, round + (n == round) as u64, "{round} {n}");
            p.drain();
        }
    }
}

/// RFC 7661: a window that the application does not fill does not grow.
#[test]
fn an_unused_window_does_not_grow() {
    let mut p = wide(plain());
    for i in 0..20 {
        p.write(3000);
        p.drain();
        p.inject(&ack(3001 + i * 3000));
        p.quiet();
    }
    assert_eq!(p.cwnd().0, 10);
}

/// RFC 7661 4.3, as Linux: slow start reaches up to twice what was out at once; congestion avoidance needs all of it used.
#[test]
fn how_much_use_lets_it_grow() {
    for (segments, grows) in [(4, false), (5, false), (6, true), (10, true)] {
        let mut p = wide(plain());
        p.write(segments * 1000);
        p.drain();
        p.inject(&ack(1001));
        assert_eq!(p.cwnd().0, 10 + grows as u64, "{segments}");
    }
    for (segments, grows) in [(4, false), (5, true)] {
        let mut p = wide(plain());
        p.write(10_000);
        p.drain();
        for _ in 0..3 {
            p.inject(&ack(1));
            p.drain();
        }
        p.inject(&ack(10_001));
        p.write(1000);
        p.drain();
        let mut una = 11_001;
        p.inject(&ack(una));
        assert_eq!(p.cwnd(), (5, 5));
        for _ in 0..4 {
            p.write(segments * 1000);
            p.drain();
            una += segments as u32 * 1000;
            p.inject(&ack(una));
            p.drain();
        }
        assert_eq!(p.cwnd().0 > 5, grows, "{segments}");
    }
}

/// Thirty segments in slow start: the window is 40 and everything is acknowledged.
fn grown(config: Config) -> Peer {
    let mut p = wide(config);
    p.write(30_000);
    p.drain();
    p.wait_ms(20);
    for i in 0..5 {
        p.inject(&ack(2001 + i * 2000));
        p.drain();
    }
    p.wait_ms(20);
    for i in 5..15 {
        p.inject(&ack(2001 + i * 2000));
        p.drain();
    }
    p.no_timer();
    assert_eq!(p.cwnd(), (40, 0x7fff_ffff));
    assert_eq!(p.info().rto_us, 220_000);
    p
}

/// RFC 5681 4.1: an RTO after the last segment was sent the window is halved, once more for each RTO, down to the initial
/// one.
#[test]
fn a_restart_after_idle() {
    // Exactly an RTO is not idle for longer, but unused for as long (RFC 7661).
    for (us, cwnd) in
        [(219_999, 40), (220_000, 25), (220_001, 20), (440_000, 20), (440_001, 10), (660_001, 10), (100_000_000, 10)]
    {
        let mut p = grown(plain());
        p.now = p.now.plus_micros(us - 20_000);
        p.write(5000);
        p.drain();
        assert_eq!(p.cwnd(), (cwnd, 0x7fff_ffff), "{us}");
    }
    let mut p = grown(Config { slow_start_after_idle: false, ..plain() });
    p.wait_ms(100_000);
    p.write(5000);
    p.drain();
    assert_eq!(p.cwnd(), (40, 0x7fff_ffff));
}

/// RFC 7661 4.4: a window that has not been used for an RTO comes down halfway to what was.
#[test]
fn an_unused_window_decays() {
    let mut p = grown(plain());
    let mut una = 30_001;
    for (wait, cwnd) in [(0, 40), (100, 40), (59, 40), (0, 25), (199, 25), (0, 17), (0, 17)] {
        p.wait_ms(wait);
        p.write(7000);
        assert_eq!(p.drain().len(), 7);
        assert_eq!(p.cwnd().0, cwnd, "{una}");
        p.wait_ms(20);
        una += 7000;
        p.inject(&ack(una));
        p.quiet();
    }
}

/// Before anything was sent there is nothing to restart; with data in flight neither.
#[test]
fn no_restart_without_idleness() {
    let mut p = wide(Config { initial_window: 2, ..plain() });
    p.write(1000);
    p.drain();
    p.wait_ms(100);
    p.write(1000);
    assert_eq!(p.cwnd().0, 2);
}

/// The window counts segments, whatever their size.
#[test]
fn the_window_is_counted_in_segments() {
    let mut p = wide(Config { initial_window: 2, ..plain() });
    p.set_nodelay(true);
    p.write(1);
    p.expect("P. 1:2(1) ack 1 win 20000");
    p.write(1500);
    p.expect(". 2:1002(1000) ack 1 win 20000");
    assert!(p.wants_data());
    p.inject(&ack(2));
    assert_eq!(p.drain().len(), 1);
}

/// RFC 7661 4.4: a window no larger than what was used stays, and its threshold with it.
#[test]
fn a_small_window_does_not_decay() {
    let mut p = wide(Config { initial_window: 4, ..plain() });
    p.write(4000);
    p.drain();
    p.timer_ms(220);
    p.drain();
    p.inject(&ack(4001));
    let mut una = 4001;
    while p.cwnd().0 < 4 {
        let n = p.cwnd().0 as u32 * 1000;
        p.write(n as usize);
        p.drain();
        p.wait_ms(20);
        una += n;
        p.inject(&ack(una));
    }
    assert_eq!(p.cwnd(), (4, 2));
    for _ in 0..30 {
        p.write(1000);
        p.drain();
        p.wait_ms(20);
        una += 1000;
        p.inject(&ack(una));
    }
    assert_eq!(p.cwnd(), (4, 2));
}

/// The most that was out at once in a window is what counts, however it came together.
#[test]
fn the_peak_of_a_window_counts() {
    for (more, grows) in [(1, false), (2, true)] {
        let mut p = wide(plain());
        p.write(4000);
        p.drain();
        p.write(more * 1000);
        p.drain();
        p.inject(&ack(1001));
        assert_eq!(p.cwnd().0, 10 + grows as u64, "{more}");
    }
    // What was sent earlier, and acknowledged, does not.
    let mut p = wide(plain());
    p.write(5000);
    p.drain();
    p.inject(&ack(5001));
    p.write(6000);
    p.drain();
    p.inject(&ack(11_001));
    let cwnd = p.cwnd().0;
    for i in 0..3 {
        p.write(2000);
        p.drain();
        p.inject(&ack(13_001 + i * 2000));
    }
    assert_eq!(p.cwnd().0, cwnd);
}

/// RFC 7661 4.4: in slow start a window of which more than half is used does not decay.
#[test]
fn more_than_half_in_use_does_not_decay() {
    for (segments, decays) in [(20, true), (21, false)] {
        let mut p = grown(plain());
        let mut una = 30_001;
        let mut least = 40;
        for _ in 0..15 {
            p.write(segments * 1000);
            p.drain();
            least = least.min(p.cwnd().0);
            p.now = p.now.plus_micros(20_000);
            p.run_timers();
            una += segments as u32 * 1000;
            p.inject(&ack(una));
            p.drain();
        }
        assert_eq!(least, if decays { 30 } else { 40 }, "{segments}");
    }
}
