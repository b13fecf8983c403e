//! Zero-window probes (RFC 9293 3.8.6.1).

use tcp::{Config, Error, State};

use crate::peer::{Peer, plain};

/// A probe lies one below what was sent, so that any answer carries the window.
const PROBE: &str = ". 0:0(0) ack 1 win 20000";

fn closed_window(config: Config) -> Peer {
    let mut p = Peer::server_with(config);
    p.inject(". 1:1(0) ack 1 win 0");
    p.write(3000);
    p.quiet();
    p
}

/// MUST-35, MUST-36, SHLD-29, SHLD-30: the first after an RTO, then at doubled intervals up to the largest RTO.
#[test]
fn probes_back_off() {
    let mut p = closed_window(plain());
    for n in 0..10 {
        p.timer_ms((220 << n).min(120_000));
        assert!(p.wants_data());
        p.expect(PROBE);
        assert_eq!(p.counters.window_probes, n + 1);
        p.exchange(". 1:1(0) ack 1 win 0", "");
    }
    p.timer_ms(120_000);
    p.expect(PROBE);
    assert_eq!((p.state(), p.info().unacked_bytes, p.info().notsent_bytes), (State::Established, 0, 3000));
}

/// MUST-37: as long as probes are answered the window may stay closed.
#[test]
fn an_answered_probe_keeps_the_connection() {
    let mut p = closed_window(Config { retries: 3, ..plain() });
    for n in 0..60 {
        p.timer_ms((220_u64 << n.min(10)).min(120_000));
        p.expect(PROBE);
        p.inject(". 1:1(0) ack 1 win 0");
    }
    assert_eq!(p.state(), State::Established);
}

/// Without answers it ends: after the retries, and not before the largest RTO of silence.
#[test]
fn unanswered_probes_end_the_connection() {
    let mut p = closed_window(Config { retries: 3, ..plain() });
    for n in 0..9 {
        p.timer_ms(220 << n);
        p.expect(PROBE);
    }
    // 220 ms · (2⁹ − 1) is not yet 120 s; the next sum is beyond.
    p.timer_ms(220 << 9);
    assert_eq!((p.error(), p.counters.persist_timeouts), (Some(Error::TimedOut), 1));
    assert_eq!(p.counters.window_probes, 9);
    p.expect("R. 1:1(0) ack 1 win 0");
    let mut p = closed_window(Config { retries: 12, ..plain() });
    for n in 0..12 {
        assert_eq!(p.info().probes, n);
        p.timer_ms((220_u64 << n).min(120_000));
        p.expect(PROBE);
    }
    p.timer_ms(120_000);
    assert_eq!(p.error(), Some(Error::TimedOut));
    p.expect("R. 1:1(0) ack 1 win 0");
}

/// An orphan is not kept for ever, even by a peer that answers.
#[test]
fn an_orphan_is_probed_eight_times() {
    let mut p = closed_window(plain());
    p.close();
    p.quiet();
    for n in 0..8 {
        p.timer_ms(220 << n);
        p.expect(PROBE);
        p.inject(". 1:1(0) ack 1 win 0");
    }
    p.timer_ms(220 << 8);
    p.expect("R. 1:1(0) ack 1 win 0");
    assert_eq!((p.state(), p.error()), (State::Closed, Some(Error::TimedOut)));
}

/// The user timeout counts without an acknowledgment of data, probes or not.
#[test]
fn the_user_timeout_ends_probing() {
    let mut p = closed_window(plain());
    p.set_user_timeout(1000);
    // Progress was made at the handshake: 220, 660 ms pass, 1,540 ms end it.
    for ms in [220, 440] {
        p.timer_ms(ms);
        p.expect(PROBE);
        p.inject(". 1:1(0) ack 1 win 0");
    }
    p.timer_ms(880);
    assert_eq!(p.error(), Some(Error::TimedOut));
    p.expect("R. 1:1(0) ack 1 win 0");
}

/// A window that opens ends probing at once, and the back-off with it.
#[test]
fn an_open_window_resumes() {
    let mut p = closed_window(plain());
    for ms in [220, 440] {
        p.timer_ms(ms);
        p.expect(PROBE);
    }
    assert_eq!(p.info().backoff, 2);
    p.inject(". 1:1(0) ack 1 win 20000");
    assert_eq!(p.info().backoff, 0);
    p.expect_data(1, 3001, true);
    p.timer_ms(220);
    assert_eq!(p.counters.timeouts, 1);
    p.drain();
}

/// An opening between the timer and the probe makes the probe unnecessary.
#[test]
fn a_probe_that_is_not_needed_is_not_sent() {
    let mut p = closed_window(plain());
    p.timer_ms(220);
    p.inject(". 1:1(0) ack 1 win 20000");
    p.expect_data(1, 3001, true);
    p.inject(". 1:1(0) ack 3001 win 20000");
    p.quiet();
    p.no_timer();
    assert_eq!(p.counters.window_probes, 0);
}

/// While something is in flight its retransmission timer runs, not the persist timer.
#[test]
fn data_in_flight_needs_no_probe() {
    let mut p = Peer::server();
    p.write(2000);
    p.expect_data(1, 2001, true);
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1001 win 0");
    p.write(1000);
    p.quiet();
    p.timer_ms(220);
    // The retransmission is the probe.
    p.expect("P. 1001:2001(1000) ack 1 win 20000");
    assert_eq!((p.counters.timeouts, p.counters.window_probes), (1, 0));
    p.inject(". 1:1(0) ack 2001 win 0");
    p.quiet();
    // The timeout stays backed off until something is measured.
    p.timer_ms(440);
    p.expect(". 2000:2000(0) ack 1 win 20000");
    assert_eq!(p.counters.window_probes, 1);
}

/// A FIN takes a number of the window: a closed one is probed for it.
#[test]
fn a_fin_waits_for_the_window() {
    let mut p = Peer::server_window(plain(), 0);
    p.shutdown();
    p.quiet();
    for n in 0..2 {
        p.timer_ms(220 << n);
        p.expect(PROBE);
    }
    assert_eq!(p.state(), State::Established);
    p.exchange(". 1:1(0) ack 1 win 1", "F. 1:1(0) ack 1 win 20000");
    assert_eq!(p.state(), State::FinWait1);
    p.timer_ms(220);
    p.expect("F. 1:1(0) ack 1 win 20000");
}
