//! What is left of a connection while it is parked. That it goes on as if it had not been, all dialogues show: each is parked
//! whenever nothing is under way (`Peer::drain`).

use core::time::Duration;

use tcp::congestion::Algorithm;
use tcp::{Config, State};

use crate::peer::{Peer, plain};

/// Bytes of one that has nothing beside: 350 in all with what stack and sockets keep of it.
const USUAL: usize = 152;

fn cubic() -> Config {
    Config { sack: true, tail_loss_probe: false, window_scaling: true, congestion: Algorithm::Cubic, ..plain() }
}

fn ack(n: u32) -> String {
    format!(". 1:1(0) ack {n} win 20000")
}

fn segment(n: u32) -> String {
    format!(". {n}:{}(1000) ack 1 win 20000", n + 1000)
}

/// Ten segments are out.
fn flight() -> Peer {
    let mut p = Peer::server_offered(cubic(), "mss 1000,sackOK,wscale 0");
    p.write(10_000);
    assert_eq!(p.drain().len(), 10);
    p.wait_ms(20);
    p
}

#[test]
fn most_have_nothing_beside() {
    let mut p = flight();
    assert_eq!(p.pause(), None, "something is under way");
    p.exchange(&ack(10_001), "");
    p.wait_ms(1000);
    assert_eq!(p.pause(), Some(USUAL));
    let mut p = Peer::server();
    p.exchange("P. 1:1001(1000) ack 1 win 20000", ". 1:1(0) ack 1001 win 19000");
    assert_eq!(p.pause(), None, "the application has not taken it");
    p.read();
    p.write(500);
    p.drain();
    p.wait_ms(20);
    p.exchange(". 1001:1001(0) ack 501 win 20000", "");
    assert_eq!(p.pause(), Some(USUAL));
}

#[test]
fn a_loss_leaves_nothing_beside() {
    let mut p = flight();
    for n in 1..4 {
        p.inject(&format!("{} <sack 1001:{}>", ack(1), 1001 + 1000 * n));
    }
    p.expect(&segment(1));
    p.wait_ms(1);
    p.exchange(&ack(10_001), "");
    let told = |p: &Peer| (p.info().total_retrans, p.cwnd(), p.counters.recoveries);
    assert_eq!(told(&p), (1, (8, 7), 1));
    p.wait_ms(2000);
    assert_eq!(p.pause(), Some(USUAL));
    assert_eq!(told(&p), (1, (8, 7), 1));
}

#[test]
fn a_timeout_leaves_nothing_beside() {
    let mut p = flight();
    p.timer_ms(200);
    p.expect(&segment(1));
    p.wait_ms(20);
    p.exchange(&format!("{} <sack 1:1001>", ack(10_001)), "");
    p.wait_ms(2000);
    assert_eq!((p.info().total_retrans, p.info().dsack_dups), (1, 1));
    assert_eq!(p.pause(), Some(USUAL));
}

/// Answers that are late may still count for a while: then it is as if they were known not to come.
#[test]
fn what_may_still_be_answered_is_waited_for() {
    type Make = fn() -> Peer;
    fn flight_without_sack() -> Peer {
        let mut p = Peer::server_offered(Config { sack: false, ..cubic() }, "mss 1000,wscale 0");
        p.write(10_000);
        p.drain();
        p
    }
    // After a timeout without SACK, the phase lasts until more is acknowledged (RFC 6582 3.2).
    let timeout: Make = || {
        let mut p = flight_without_sack();
        p.timer_ms(220);
        p.expect(&segment(1));
        p.exchange(&ack(10_001), "");
        assert_eq!(p.info().ca_state, 4);
        p
    };
    // So does fast recovery.
    let recovery: Make = || {
        let mut p = flight_without_sack();
        p.wait_ms(20);
        for _ in 0..3 {
            p.inject(&ack(1));
        }
        p.expect(&segment(1));
        p.exchange(&ack(10_001), "");
        assert_eq!(p.info().ca_state, 3);
        p
    };
    // A probe whose answer does not tell whether it repaired anything.
    let probe: Make = || {
        let mut p = Peer::server_offered(Config { tail_loss_probe: true, ..cubic() }, "mss 1000,sackOK,wscale 0");
        p.write(1000);
        p.drain();
        while p.drain().is_empty() {
            p.now = p.now.plus_micros(1000);
            p.run_timers();
        }
        p.exchange(&ack(1001), "");
        p
    };
    // Window and threshold: after a timeout as slow start left them, after the others as reduced, whatever there was before.
    for (name, make, window) in [("timeout", timeout, (7, 7)), ("recovery", recovery, (7, 7)), ("probe", probe, (7, 7))]
    {
        let mut p = make();
        p.wait_ms(50);
        assert_eq!(p.pause(), None, "{name}");
        p.wait_ms(1000);
        assert_eq!((p.pause(), p.info().ca_state, p.cwnd()), (Some(USUAL), 0, window), "{name}");
        // It goes on as any other.
        p.write(1000);
        assert_eq!(p.drain().len(), 1, "{name}");
    }
}

/// What the peer or we are to hear of a mark, they do after the pause.
#[test]
fn marks_outlast_a_pause() {
    let config = Config { ecn: tcp::Ecn::Passive, ..plain() };
    let mut p = Peer::accepting(config, crate::peer::open(), "SEW 0:0(0) win 20000 <mss 1000>");
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000");
    p.exchange("[ce] P. 1:11(10) ack 1 win 20000", "E. 1:1(0) ack 11 win 19990");
    p.read();
    p.wait_ms(1000);
    assert_eq!(p.pause(), Some(USUAL));
    p.exchange("P. 11:21(10) ack 1 win 20000", "E. 1:1(0) ack 21 win 19980");
    // Ours was reduced: the next new data says so.
    p.read();
    p.write(10);
    p.drain();
    p.wait_ms(20);
    p.exchange("E. 21:21(0) ack 11 win 20000", "");
    p.wait_ms(2000);
    assert_eq!((p.pause(), p.info().ca_state, p.counters.ecn_reductions), (Some(USUAL), 2, 1));
    p.write(20);
    p.expect("[ect0] EPW. 11:31(20) ack 21 win 19980");
    // What the peer sent before it heard of that is no second mark.
    p.inject("E. 21:31(10) ack 11 win 20000");
    assert_eq!(p.counters.ecn_reductions, 1);
}

#[test]
fn a_wide_window_leaves_nothing_beside_once_it_rests() {
    let mut p = flight();
    p.exchange(&ack(10_001), "");
    p.write(20_000);
    assert_eq!(p.drain().len(), 20);
    p.wait_ms(20);
    p.exchange(&ack(30_001), "");
    assert!(p.cwnd().0 > 10);
    // How much of it was used is still to be judged.
    assert!(p.pause() > Some(USUAL));
    p.wait_ms(1000);
    assert_eq!(p.pause(), Some(USUAL));
}

#[test]
fn what_is_rare_lies_beside() {
    type Set = fn(&mut Peer);
    let set: [(&str, Set); 4] = [
        ("TCP_USER_TIMEOUT", |p| p.set_user_timeout(30_000)),
        ("TCP_KEEPIDLE", |p| p.keepalive(None, Some(10), None, None)),
        ("SO_MAX_PACING_RATE", |p| p.set_max_pacing_rate(1_000_000)),
        ("TCP_NOTSENT_LOWAT", |p| p.set_not_sent_low(1)),
    ];
    for (name, set) in set {
        let mut p = Peer::server();
        assert_eq!(p.pause(), Some(USUAL));
        set(&mut p);
        assert!(p.pause() > Some(USUAL), "{name}");
    }
    // A segment out of the window was answered a moment ago: another one is not, parked or not.
    let mut p = Peer::server_with(Config { invalid_ratelimit: Duration::from_millis(500), ..plain() });
    let old = ". 4294967295:4294967295(0) ack 1 win 20000";
    p.exchange(old, ". 1:1(0) ack 1 win 20000");
    assert!(p.pause() > Some(USUAL));
    p.exchange(old, "");
    p.wait_ms(500);
    assert_eq!((p.pause(), p.state()), (Some(USUAL), State::Established));
    p.exchange(old, ". 1:1(0) ack 1 win 20000");
}
