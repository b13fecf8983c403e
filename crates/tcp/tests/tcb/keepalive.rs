//! Keepalive (RFC 9293 3.8.4).

use tcp::{Error, State};

use crate::peer::{Peer, plain};

/// SHLD-12: no data, one below what was sent.
const PROBE: &str = ". 0:0(0) ack 1 win 20000";
const ANSWER: &str = ". 1:1(0) ack 1 win 20000";

fn kept(idle: u16, interval: u16, count: u8) -> Peer {
    let mut p = Peer::server();
    p.keepalive(Some(true), Some(idle), Some(interval), Some(count));
    p
}

/// MUST-25: off unless asked for. MUST-24, MUST-28: on request, after two hours by default; every 75 s, nine times.
#[test]
fn off_by_default_and_two_hours_when_on() {
    let mut p = Peer::server();
    p.no_timer();
    p.keepalive(None, None, None, None);
    p.no_timer();
    p.keepalive(Some(true), None, None, None);
    p.timer_ms(7_200_000);
    p.expect(PROBE);
    for n in 1..9 {
        p.timer_ms(75_000);
        p.expect(PROBE);
        assert_eq!(p.counters.keepalives, n + 1);
    }
    p.timer_ms(75_000);
    p.expect("R. 1:1(0) ack 1 win 0");
    assert_eq!((p.state(), p.error(), p.counters.keepalives), (State::Closed, Some(Error::TimedOut), 9));
    assert_eq!(p.counters.window_probes, 0);
}

/// MUST-26, MUST-27: only after the interval without a segment, which is configurable.
#[test]
fn any_segment_restarts_the_wait() {
    let mut p = kept(10, 3, 2);
    p.wait_ms(6000);
    p.inject("P. 1:2(1) ack 1 win 20000");
    p.drain();
    // The timer finds that something was heard, and waits for the rest.
    p.timer_ms(4000);
    p.quiet();
    p.timer_ms(6000);
    p.expect(". 0:0(0) ack 2 win 19999");
    // An answer starts everything again, the count as well.
    p.wait_ms(1000);
    p.inject(". 2:2(0) ack 1 win 20000");
    p.timer_ms(2000);
    p.quiet();
    p.timer_ms(8000);
    p.expect(". 0:0(0) ack 2 win 19999");
    p.timer_ms(3000);
    p.expect(". 0:0(0) ack 2 win 19999");
    p.timer_ms(3000);
    assert_eq!(p.state(), State::Closed);
    p.drain();
}

/// MUST-29: one lost answer does not end it.
#[test]
fn a_single_loss_is_tolerated() {
    let mut p = kept(10, 3, 2);
    p.timer_ms(10_000);
    p.expect(PROBE);
    p.timer_ms(3000);
    p.expect(PROBE);
    p.inject(ANSWER);
    p.timer_ms(3000);
    p.quiet();
    assert_eq!(p.state(), State::Established);
    p.timer_ms(7000);
    p.expect(PROBE);
}

/// While data is outstanding or waits, its own timers find a dead peer.
#[test]
fn outstanding_data_needs_no_keepalive() {
    let mut p = kept(1, 1, 1);
    p.inject(". 1:1(0) ack 1 win 0");
    p.write(10);
    p.quiet();
    let mut probes = 0;
    for _ in 0..20 {
        let us = p.deadline().micros() - p.now.micros();
        p.timer(us);
        probes += p.drain().len();
    }
    assert_eq!(p.counters.keepalives, 0);
    assert_eq!((p.state(), probes as u64), (State::Established, p.counters.window_probes));
    let mut p = kept(1, 1, 1);
    p.write(10);
    p.drain();
    for _ in 0..8 {
        let us = p.deadline().micros() - p.now.micros();
        p.timer(us);
        p.drain();
    }
    assert_eq!((p.state(), p.counters.keepalives), (State::Established, 0));
}

#[test]
fn it_can_be_switched_off_again() {
    let mut p = kept(10, 3, 2);
    p.keepalive(Some(false), None, None, None);
    p.timer_ms(10_000);
    p.quiet();
    p.no_timer();
}

/// Times of zero count as one second, and one probe.
#[test]
fn the_least_values() {
    let mut p = kept(0, 0, 0);
    p.timer_ms(1000);
    p.expect(PROBE);
    p.timer_ms(1000);
    assert_eq!(p.state(), State::Closed);
    p.drain();
}

/// RFC 5482, as Linux reads it: with a user timeout it ends when that has passed and a probe went unanswered.
#[test]
fn the_user_timeout_replaces_the_count() {
    let mut p = kept(10, 3, 1);
    p.set_user_timeout(16_000);
    p.timer_ms(10_000);
    p.expect(PROBE);
    p.timer_ms(3000);
    p.expect(PROBE);
    p.timer_ms(3000);
    assert_eq!(p.error(), Some(Error::TimedOut));
    p.drain();
    // Shorter than the idle time: one probe is sent first.
    let mut p = kept(10, 3, 9);
    p.set_user_timeout(1);
    p.timer_ms(10_000);
    p.expect(PROBE);
    p.timer_ms(3000);
    assert_eq!(p.error(), Some(Error::TimedOut));
    p.drain();
}

/// It runs in CLOSE-WAIT, armed anew by the FIN, and starts with the handshake when it was asked for earlier.
#[test]
fn where_it_runs() {
    let mut p = kept(10, 3, 2);
    p.wait_ms(4000);
    p.exchange("F. 1:1(0) ack 1 win 20000", ". 1:1(0) ack 2 win 19999");
    p.timer_ms(10_000);
    p.expect(". 0:0(0) ack 2 win 19999");
}

/// Asked for while the connection is being opened, it starts with the handshake.
#[test]
fn asked_for_before_the_handshake() {
    let mut p = Peer::accepting(plain(), crate::peer::open(), "S 0:0(0) win 20000 <mss 1000>");
    p.drain();
    p.keepalive(Some(true), Some(5), None, None);
    p.timer_ms(1000);
    p.drain();
    p.inject(". 1:1(0) ack 1 win 20000");
    assert_eq!(p.state(), State::Established);
    p.timer_ms(5000);
    p.expect(PROBE);
}

/// A half-closed connection is probed like any other; only an orphan's FIN-WAIT-2 is timed.
#[test]
fn a_half_closed_connection_is_probed() {
    let mut p = kept(10, 5, 3);
    p.shutdown();
    p.drain();
    p.wait_ms(100);
    p.exchange(". 1:1(0) ack 2 win 20000", "");
    assert_eq!(p.state(), State::FinWait2);
    p.now += core::time::Duration::from_secs(20);
    p.run_timers();
    assert_eq!(p.drain().len(), 1);
    assert_eq!((p.state(), p.counters.keepalives), (State::FinWait2, 1));
}
