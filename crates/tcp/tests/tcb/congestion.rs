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

/// RFC 5681 3.1: slow start doubles the window each round trip, by at most two segments an ACK.
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
    assert_eq!(p.cwnd().0, 24);
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
    p.write(60_000);
    let mut una = 11_001;
    let ssthresh = p.cwnd().1;
    assert_eq!((p.drain().len(), ssthresh), (2, 5));
    while p.cwnd().0 < ssthresh {
        una += 1000;
        p.inject(&ack(una));
        p.drain();
    }
    for round in ssthresh..ssthresh + 4 {
        // One round trip: as many acknowledgments as the window has segments.
        for n in 1..=round {
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

/// Using all of it counts, though nothing was held back; using one segment less does not.
#[test]
fn a_window_used_to_the_last_segment_grows() {
    for (n, grows) in [(9000, false), (9001, true), (10_000, true)] {
        let mut p = wide(plain());
        p.set_nodelay(true);
        p.write(n);
        p.drain();
        p.inject(&ack(1001));
        assert_eq!(p.cwnd().0, 10 + grows as u64, "{n}");
        // Everything acknowledged forgets it.
        p.inject(&ack(n as u32 + 1));
        let cwnd = p.cwnd().0;
        p.write(1000);
        p.drain();
        p.inject(&ack(n as u32 + 1001));
        assert_eq!(p.cwnd().0, cwnd);
    }
}

/// RFC 5681 4.1: after an idle RTO the window starts from the initial one.
#[test]
fn a_restart_after_idle() {
    for (after_rto_us, restarted) in [(-1, false), (0, false), (1, true)] {
        let mut p = wide(plain());
        p.write(30_000);
        p.drain();
        p.wait_ms(20);
        for i in 0..5 {
            p.inject(&ack(2001 + i * 2000));
            p.drain();
        }
        let mut una = 10_001;
        while una < 30_001 {
            una += 2000;
            p.inject(&ack(una));
            p.drain();
        }
        p.no_timer();
        let before = p.cwnd().0;
        assert!(before > 15);
        let rto = p.info().rto_us;
        p.now = p.now.plus_micros(rto.saturating_add_signed(after_rto_us));
        p.write(50_000);
        assert_eq!(p.cwnd().0, if restarted { 10 } else { before }, "{after_rto_us}");
        p.drain();
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

/// The window is bytes: a segment smaller than what is left goes, a larger one waits.
#[test]
fn the_window_is_counted_in_bytes() {
    let mut p = wide(Config { initial_window: 2, ..plain() });
    p.set_nodelay(true);
    p.write(500);
    p.expect("P. 1:501(500) ack 1 win 20000");
    p.write(1000);
    p.expect("P. 501:1501(1000) ack 1 win 20000");
    p.write(501);
    p.quiet();
    assert!(p.wants_data());
    let mut p = wide(Config { initial_window: 2, ..plain() });
    p.set_nodelay(true);
    p.write(1500);
    p.drain();
    p.write(500);
    p.expect("P. 1501:2001(500) ack 1 win 20000");
}
