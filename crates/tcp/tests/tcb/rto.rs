//! The retransmission timer (RFC 6298) and when it gives up (RFC 9293 3.8.3, RFC 5482).

use core::time::Duration;

use tcp::{Config, Error, Notice, State};

use crate::peer::{Peer, plain};

fn sent(n: u32) -> Peer {
    let mut p = Peer::server();
    p.write(n as usize);
    p.expect_data(1, n + 1, true);
    p
}

/// RFC 6298 5.1, 5.4–5.6: the earliest segment again, the timer doubled.
#[test]
fn the_earliest_is_sent_again_with_doubled_timeouts() {
    let mut p = sent(3000);
    for n in 0..10 {
        p.timer_ms((220 << n).min(120_000));
        assert!(p.wants_data());
        p.expect(". 1:1001(1000) ack 1 win 20000");
        let i = p.info();
        assert_eq!((i.backoff, i.total_retrans, i.bytes_retrans), (n + 1, n + 1, 1000 * (n + 1)));
        assert_eq!((p.counters.timeouts, p.counters.timeout_retransmits), (n + 1, n + 1));
    }
    // RFC 6298 5.5: no more than the largest.
    p.timer_ms(120_000);
    p.expect(". 1:1001(1000) ack 1 win 20000");
    assert_eq!(p.counters.fast_retransmits, 0);
}

/// RFC 6298 5.2, 5.3: new acknowledgments restart the timer, the last one stops it.
#[test]
fn acknowledgments_restart_and_stop_the_timer() {
    let mut p = sent(3000);
    p.wait_ms(100);
    p.inject(". 1:1(0) ack 1001 win 20000");
    // SRTT is 20 + 80/8 ms, RTTVAR 3/4 · 10 + 80/4 ms: the floor of 200 ms holds for four times that.
    assert_eq!((p.info().srtt_us, p.info().rttvar_us, p.info().rto_us), (30_000, 27_500, 230_000));
    p.wait_ms(100);
    // A duplicate does not.
    p.inject(". 1:1(0) ack 1001 win 20000");
    p.timer_ms(130);
    p.expect(". 1001:2001(1000) ack 1 win 20000");
    p.inject(". 1:1(0) ack 3001 win 20000");
    p.no_timer();
    p.quiet();
}

/// RFC 6298 5.1: the timer starts with the first segment and is not moved by those that follow.
#[test]
fn later_segments_do_not_move_the_timer() {
    let mut p = sent(1000);
    p.wait_ms(50);
    p.write(1000);
    p.drain();
    p.timer_ms(170);
    p.expect("P. 1:1001(1000) ack 1 win 20000");
}

/// RFC 6298 3 (Karn): what was sent twice is not timed, and the timeout stays backed off until something is measured.
#[test]
fn retransmitted_segments_are_not_timed() {
    let mut p = sent(1000);
    p.timer_ms(220);
    p.drain();
    p.wait_ms(300);
    p.inject(". 1:1(0) ack 1001 win 20000");
    let i = p.info();
    assert_eq!((i.srtt_us, i.rttvar_us, i.min_rtt_us, i.backoff, i.rto_us), (20_000, 10_000, 20_000, 1, 440_000));
    // The next one is.
    p.write(1000);
    p.drain();
    p.wait_ms(5);
    p.inject(". 1:1(0) ack 2001 win 20000");
    let i = p.info();
    assert_eq!((i.srtt_us, i.rttvar_us, i.min_rtt_us), (18_125, 11_250, 5000));
}

/// One ACK of several segments counts for the oldest: a delayed ACK belongs to the measurement.
#[test]
fn the_oldest_acknowledged_segment_is_timed() {
    let mut p = sent(1000);
    p.wait_ms(60);
    p.write(1000);
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 2001 win 20000");
    assert_eq!((p.info().srtt_us, p.info().min_rtt_us), (27_500, 20_000));
}

/// RFC 6298 2.3, 2.4: the variance counts four times where that is more than the floor.
#[test]
fn the_variance_widens_the_timeout() {
    let mut p = sent(1000);
    p.wait_ms(219);
    p.inject(". 1:1(0) ack 1001 win 20000");
    let i = p.info();
    assert_eq!((i.srtt_us, i.rttvar_us), (44_875, 57_250));
    assert_eq!(i.rto_us, 44_875 + 4 * 57_250);
    p.write(1000);
    p.drain();
    p.timer(44_875 + 4 * 57_250);
    p.drain();
}

/// The floor and the ceiling are the configuration's.
#[test]
fn bounds_are_configurable() {
    let config = Config {
        min_rto: Duration::from_secs(1),
        max_rto: Duration::from_millis(1500),
        initial_rto: Duration::from_millis(1300),
        ..plain()
    };
    let mut p = Peer::connecting(config.clone(), crate::peer::open());
    p.drain();
    p.timer_ms(1300);
    p.drain();
    p.timer_ms(1500);
    p.drain();
    let mut p = Peer::server_with(config);
    p.write(1000);
    p.drain();
    p.timer_ms(1020);
    p.drain();
    p.timer_ms(1500);
    p.drain();
}

/// RFC 6298 2.5 and a path slower than the largest timeout: the sum is bounded, too.
#[test]
fn a_slow_path_does_not_exceed_the_largest_timeout() {
    let config = Config { max_rto: Duration::from_secs(2), initial_rto: Duration::from_secs(2), ..plain() };
    let mut p = Peer::connecting(config, crate::peer::open());
    p.drain();
    p.wait_ms(1900);
    p.inject("S. 0:0(0) ack 1 win 20000");
    assert_eq!((p.info().srtt_us, p.info().rto_us), (1_900_000, 2_000_000));
    p.drain();
}

/// MUST-20: R2 retransmissions end the connection; the application hears of it, and the peer.
#[test]
fn retries_end_the_connection() {
    let mut p = Peer::server_with(Config { retries: 3, ..plain() });
    p.write(1500);
    p.drain();
    for n in 0..3 {
        p.timer_ms(220 << n);
        assert_eq!(p.drain().len(), 1);
    }
    p.timer_ms(220 << 3);
    assert!(p.wants_control());
    p.expect("R. 1501:1501(0) ack 1 win 0");
    assert_eq!((p.state(), p.error(), p.take_notice()), (State::Closed, Some(Error::TimedOut), Notice::FAILED));
    assert_eq!((p.counters.timeouts, p.counters.resets_out), (3, 1));
    p.no_timer();
}

/// SHLD-11: the default is beyond 100 s.
#[test]
fn fifteen_retries_by_default() {
    let mut p = sent(1000);
    let mut ms = 0;
    for n in 0..15 {
        let step = (220 << n).min(120_000);
        p.timer_ms(step);
        ms += step;
        assert_eq!(p.drain().len(), 1);
    }
    assert!(ms > 100_000);
    p.timer_ms(120_000);
    assert_eq!(p.state(), State::Closed);
    p.drain();
}

/// Progress starts the count again.
#[test]
fn progress_restarts_the_count() {
    let mut p = Peer::server_with(Config { retries: 2, ..plain() });
    p.write(2000);
    p.drain();
    for n in 0..2 {
        p.timer_ms(220 << n);
        p.drain();
    }
    p.exchange(". 1:1(0) ack 1001 win 20000", "P. 1001:2001(1000) ack 1 win 20000");
    for n in 2..4 {
        p.timer_ms(220 << n);
        p.expect("P. 1001:2001(1000) ack 1 win 20000");
    }
    p.timer_ms(220 << 4);
    assert_eq!(p.state(), State::Closed);
    p.drain();
}

/// RFC 5482, MUST-21: the user timeout counts from the last progress; it shortens the retransmission timeout that would
/// outlast it.
#[test]
fn the_user_timeout_ends_the_connection() {
    for (limit, last) in [(1540, 880), (1539, 879), (661, 1), (660, 1)] {
        let mut p = sent(1000);
        p.set_user_timeout(limit);
        for n in 0..2 {
            p.timer_ms(220 << n);
            if p.state() == State::Established {
                assert_eq!(p.drain().len(), 1);
            }
        }
        if limit > 660 {
            p.timer_ms(last);
        }
        assert_eq!((p.state(), p.error()), (State::Closed, Some(Error::TimedOut)), "{limit}");
        p.drain();
    }
    // A limit between two retransmissions takes the place of the second.
    let mut p = sent(1000);
    p.set_user_timeout(1541);
    for n in 0..3 {
        p.timer_ms(220 << n);
        assert_eq!(p.drain().len(), 1);
    }
    p.timer_ms(1);
    assert_eq!(p.state(), State::Closed);
    p.drain();
    // It is counted from when the data was sent, not from an earlier time.
    let mut p = Peer::server();
    p.set_user_timeout(300);
    p.wait_ms(10_000);
    p.write(1000);
    p.drain();
    p.timer_ms(220);
    assert_eq!(p.state(), State::Established);
    p.drain();
    p.wait_ms(70);
    // Progress moves it, though the first timeout is never shortened.
    p.inject(". 1:1(0) ack 501 win 20000");
    p.drain();
    p.timer_ms(440);
    assert_eq!(p.state(), State::Closed);
    p.drain();
}

/// A FIN is retransmitted as data is.
#[test]
fn a_fin_is_retransmitted() {
    let mut p = Peer::server();
    p.shutdown();
    p.expect("F. 1:1(0) ack 1 win 20000");
    for n in 0..3 {
        p.timer_ms(220 << n);
        p.expect("F. 1:1(0) ack 1 win 20000");
        assert_eq!(p.info().bytes_retrans, 0);
    }
    let mut p = Peer::server();
    p.write(1300);
    p.shutdown();
    p.expect(
        ". 1:1001(1000) ack 1 win 20000
         FP. 1001:1301(300) ack 1 win 20000",
    );
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1001 win 20000");
    p.timer_ms(220);
    p.expect("FP. 1001:1301(300) ack 1 win 20000");
    assert_eq!(p.info().bytes_retrans, 300);
    // The text is acknowledged, the FIN is not.
    p.inject(". 1:1(0) ack 1301 win 20000");
    assert_eq!(p.state(), State::FinWait1);
    p.timer_ms(440);
    p.expect("FP. 1301:1301(0) ack 1 win 20000");
    p.inject(". 1:1(0) ack 1302 win 20000");
    assert_eq!(p.state(), State::FinWait2);
    p.no_timer();
}

/// After a timeout everything outstanding is lost, and is sent again as acknowledgments come (RFC 6298 5.4, RFC 5681 3.1).
#[test]
fn everything_outstanding_follows_by_slow_start() {
    let mut p = sent(5000);
    p.timer_ms(220);
    p.expect(". 1:1001(1000) ack 1 win 20000");
    p.exchange(
        ". 1:1(0) ack 1001 win 20000",
        ". 1001:2001(1000) ack 1 win 20000
         . 2001:3001(1000) ack 1 win 20000",
    );
    p.exchange(
        ". 1:1(0) ack 3001 win 20000",
        ". 3001:4001(1000) ack 1 win 20000
         P. 4001:5001(1000) ack 1 win 20000",
    );
    p.inject(". 1:1(0) ack 5001 win 20000");
    p.quiet();
    p.no_timer();
    assert_eq!((p.counters.timeouts, p.counters.timeout_retransmits, p.info().total_retrans), (1, 5, 5));
}

/// An acknowledgment within a segment leaves its rest to be sent.
#[test]
fn a_segment_may_be_acknowledged_in_part() {
    let mut p = sent(2000);
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 301 win 20000");
    assert_eq!(p.info().unacked_bytes, 1700);
    p.timer_ms(220);
    p.expect(". 301:1001(700) ack 1 win 20000");
    // Marked lost and acknowledged in part.
    p.exchange(". 1:1(0) ack 1501 win 20000", "P. 1501:2001(500) ack 1 win 20000");
    p.inject(". 1:1(0) ack 2001 win 20000");
    p.no_timer();
}

/// RFC 9293 3.8.6.1 (MUST-37): a window shrunk to nothing over what was sent: retransmissions are probes, and the connection
/// stays while they are answered.
#[test]
fn retransmissions_into_a_closed_window_are_probes() {
    for answered in [true, false] {
        let mut p = Peer::server_with(Config { retries: 2, ..plain() });
        p.write(2000);
        p.drain();
        p.wait_ms(20);
        p.inject(". 1:1(0) ack 1001 win 0");
        let mut sent = 0;
        for _ in 0..14 {
            if p.state() != State::Established {
                break;
            }
            let us = p.deadline().micros() - p.now.micros();
            p.timer(us);
            sent += p.drain().iter().filter(|s| *s == ". 1001:2001(1000) ack 1 win 20000").count();
            if answered {
                p.inject(". 1:1(0) ack 1001 win 0");
            }
        }
        if answered {
            assert_eq!((p.state(), sent), (State::Established, 14));
        } else {
            // 220 ms · (2¹⁰ − 1) is the first sum beyond 120 s of silence.
            assert_eq!((p.error(), sent), (Some(Error::TimedOut), 9));
        }
    }
}

/// The silence must be longer than the largest timeout, not as long.
#[test]
fn silence_is_longer_than_the_largest_timeout() {
    let mut p = Peer::server_with(Config { retries: 1, max_rto: Duration::from_millis(660), ..plain() });
    p.write(2000);
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1001 win 0");
    for ms in [220, 440] {
        p.timer_ms(ms);
        assert_eq!(p.drain().len(), 1);
    }
    p.timer_ms(660);
    assert_eq!(p.state(), State::Closed);
    p.drain();
    let mut p = Peer::server_window(Config { retries: 1, max_rto: Duration::from_millis(660), ..plain() }, 0);
    p.write(2000);
    p.quiet();
    for ms in [220, 440] {
        p.timer_ms(ms);
        assert_eq!(p.drain().len(), 1);
    }
    p.timer_ms(660);
    assert_eq!(p.state(), State::Closed);
    p.drain();
}
