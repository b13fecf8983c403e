//! A peer that takes its window back (RFC 9293 3.8.6): what it may have refused goes again before anything new.

use tcp::{Config, State};

use crate::peer::{Peer, plain};

/// Five segments are under way, and five more wait.
fn sender(tail_loss_probe: bool) -> Peer {
    let mut p = Peer::server_offered(Config { sack: true, tail_loss_probe, ..plain() }, "mss 1000,sackOK");
    p.inject(". 1:1(0) ack 1 win 5000");
    p.write(10_000);
    assert_eq!(p.drain().len(), 5);
    p.wait_ms(20);
    p
}

fn seg(n: u32) -> String {
    format!(". {n}:{}(1000) ack 1 win 20000", n + 1000)
}

fn ack(n: u32, window: u32) -> String {
    format!(". 1:1(0) ack {n} win {window}")
}

fn next_timer(p: &mut Peer) {
    p.now = p.deadline();
    p.run_timers();
}

fn all(p: &mut Peer) -> Vec<String> {
    std::iter::from_fn(|| p.next()).collect()
}

/// The window closes over segments that are under way, which are refused; once it opens they go again, and nothing new until the
/// peer has taken one.
#[test]
fn what_was_refused_goes_before_new_data() {
    // With a turn in between, or both acknowledgments in one burst.
    for turn in [true, false] {
        let mut p = sender(true);
        p.inject(&ack(2001, 0));
        if turn {
            p.quiet();
            assert_eq!(p.info().ca_state, 0);
        }
        p.inject(&ack(2001, 8000));
        assert_eq!(all(&mut p), [seg(2001), seg(3001), seg(4001)]);
        assert_eq!((p.info().lost, p.info().retrans, p.counters.windows_taken_back), (3, 3, 1));
        // No congestion: the window is what it was.
        assert!(p.info().snd_cwnd >= 10);
        p.exchange(&ack(2001, 8000), "");
        p.inject(&ack(3001, 7000));
        // Of 7,000 bytes half, of which two segments are under way.
        assert_eq!(all(&mut p), [seg(5001)]);
        p.inject(&ack(6001, 20_000));
        assert_eq!(all(&mut p).len(), 4);
        p.inject(&ack(10_001, 7000));
        assert_eq!((p.info().ca_state, p.info().unacked, p.is_disturbed()), (0, 0, false));
        p.no_timer();
    }
}

/// A window that becomes smaller, and not zero: what lies inside was taken.
#[test]
fn what_lies_inside_is_not_sent_again() {
    let mut p = sender(true);
    p.inject(&ack(1, 2500));
    p.quiet();
    p.inject(&ack(1, 9000));
    // In whole segments, as they were sent.
    assert_eq!(all(&mut p), [seg(2001), seg(3001), seg(4001)]);
    p.inject(&ack(5001, 4000));
    assert_eq!(all(&mut p), [seg(5001), seg(6001)]);
    // An acknowledgment beyond the edge: nothing was refused.
    let mut p = sender(true);
    p.inject(&ack(1, 2000));
    p.inject(&ack(3001, 9000));
    assert_eq!(all(&mut p), [seg(5001), seg(6001)]);
    assert_eq!(p.counters.windows_taken_back, 0);
}

/// Of a window that was taken back half is used, but two segments where it takes them.
#[test]
fn half_of_such_a_window_is_used() {
    let mut p = sender(true);
    p.inject(&ack(5001, 0));
    p.inject(&ack(5001, 4000));
    assert_eq!(all(&mut p).len(), 4);
    for (window, segments) in [(1000, 1), (1999, 1), (5999, 2), (6000, 3), (20_000, 5)] {
        let mut p = sender(true);
        p.inject(&ack(4001, 0));
        p.inject(&ack(5001, window));
        assert_eq!(all(&mut p).len(), segments, "{window}");
    }
}

/// SACKed segments are there: only the hole goes again.
#[test]
fn what_is_sacked_is_not_sent_again() {
    let mut p = sender(true);
    p.inject(". 1:1(0) ack 1 win 0 <sack 1001:3001>");
    p.inject(". 1:1(0) ack 1 win 6000 <sack 1001:3001>");
    assert_eq!(all(&mut p), [seg(1), seg(3001), seg(4001)]);
}

/// A segment that carries text takes the window back as well.
#[test]
fn text_may_take_it_back() {
    let mut p = sender(true);
    p.exchange("P. 1:101(100) ack 1 win 0", ". 1:1(0) ack 101 win 19900");
    p.inject(". 101:101(0) ack 1 win 9000");
    assert_eq!(all(&mut p)[..2], [1, 1001].map(|n| seg(n).replace("ack 1 win 20000", "ack 101 win 19900")));
}

/// RFC 8985 7.3: a tail loss probe beyond the window would be refused; the timeout comes instead, and probes the window (RFC 9293
/// 3.8.6.1).
#[test]
fn no_tail_loss_probe_beyond_the_window() {
    let mut p = sender(true);
    p.inject(&ack(2001, 0));
    p.quiet();
    let before = p.counters.timeouts;
    while p.counters.timeouts == before {
        p.quiet();
        next_timer(&mut p);
    }
    assert_eq!(p.counters.loss_probes, 0);
    p.expect(&seg(2001));
    // Inside it, there is one.
    let mut p = sender(true);
    p.write(1);
    p.inject(&ack(1, 5000));
    next_timer(&mut p);
    p.expect(&seg(4001));
    assert_eq!(p.counters.loss_probes, 1);
}

/// A window that opens and closes again, while nothing is taken, puts the timeout off only so often.
#[test]
fn a_flickering_window_is_believed_so_often() {
    let mut p = sender(true);
    for _ in 0..15 {
        p.inject(&ack(1, 0));
        p.wait_ms(10);
        p.inject(&ack(1, 5000));
        assert_eq!(all(&mut p).len(), 5);
        p.wait_ms(10);
    }
    let due = p.deadline();
    p.inject(&ack(1, 0));
    p.exchange(&ack(1, 5000), "");
    assert_eq!(p.deadline(), due);
    assert_eq!(p.counters.windows_taken_back, 15);
    // The timeout sends the first again, and once that is taken all goes on.
    next_timer(&mut p);
    assert_eq!(p.next(), Some(seg(1)));
    p.inject(&ack(1001, 9000));
    assert_eq!(p.state(), State::Established);
    assert!(!all(&mut p).is_empty());
}
