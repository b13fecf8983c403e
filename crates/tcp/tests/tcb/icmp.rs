//! What ICMP errors do (RFC 9293 3.9.2.2, RFC 5927), and smaller segments for a smaller path (RFC 1191, RFC 8201).

use tcp::{Config, Error, Notice, Open, State};

use crate::peer::{Peer, open, plain};

/// RFC 5927 4: only an error that quotes a number in flight counts.
#[test]
fn the_quoted_number_must_be_in_flight() {
    let mut p = Peer::server();
    p.write(3000);
    p.drain();
    p.inject(". 1:1(0) ack 1001 win 20000");
    for (seq, ok) in [(1000, false), (1001, true), (2000, true), (3000, true), (3001, false)] {
        assert_eq!(p.unreachable(true, Some(seq)), ok, "{seq}");
    }
    assert!(p.unreachable(true, None));
    // With nothing in flight there is nothing that an error could quote.
    p.inject(". 1:1(0) ack 3001 win 20000");
    assert!(!p.unreachable(true, Some(3001)) && !p.unreachable(true, Some(3000)) && !p.too_big(600, Some(3001)));
    // MUST-56: established connections survive even hard errors.
    assert_eq!((p.state(), p.error()), (State::Established, None));
    p.quiet();
}

/// RFC 9293 3.9.2.2 (SHLD-26): a hard error ends an opening; a soft one does not (MUST-56).
#[test]
fn hard_errors_end_an_opening() {
    let mut p = Peer::connecting(plain(), open());
    p.drain();
    assert!(p.unreachable(false, Some(0)));
    assert!(!p.unreachable(true, Some(-1)));
    assert!(!p.unreachable(true, Some(1)));
    assert_eq!(p.state(), State::SynSent);
    assert!(p.unreachable(true, Some(0)));
    assert_eq!((p.state(), p.error(), p.take_notice()), (State::Closed, Some(Error::Unreachable), Notice::FAILED));
    p.quiet();
    p.no_timer();
    let mut p = Peer::accepting(plain(), open(), "S 0:0(0) win 20000");
    p.drain();
    assert!(p.unreachable(false, Some(0)));
    assert_eq!(p.state(), State::SynReceived);
    assert!(p.unreachable(true, Some(0)));
    assert_eq!((p.state(), p.error()), (State::Closed, Some(Error::Unreachable)));
}

/// Of what went out as one large segment the last part may be short; the others were as long as the path now says is too much.
#[test]
fn too_big_segments_with_a_short_tail_are_cut() {
    let mut p = Peer::server_with(Config { min_burst: 64, ..plain() });
    p.segments = 4;
    p.write(2100);
    p.expect("P. 1:2101(2100) ack 1 win 20000");
    // 700 bytes each, if they were alike.
    assert!(p.too_big(760, Some(1)));
    p.expect(
        ". 1:761(760) ack 1 win 20000
         . 761:1521(760) ack 1 win 20000
         P. 1521:2101(580) ack 1 win 20000",
    );
}

/// RFC 1191: what was too big is sent again at once in smaller segments, and it is no sign of congestion.
#[test]
fn too_big_segments_are_cut() {
    let mut p = Peer::server();
    p.write(2500);
    p.drain();
    assert!(p.too_big(600, Some(1)));
    assert_eq!((p.segment_size(), p.info().pmtu), (600, 640));
    p.expect(
        ". 1:601(600) ack 1 win 20000
         . 601:1001(400) ack 1 win 20000
         . 1001:1601(600) ack 1 win 20000
         . 1601:2001(400) ack 1 win 20000",
    );
    assert_eq!(p.cwnd(), (10, 0x7fff_ffff));
    p.write(1000);
    p.inject(". 1:1(0) ack 2501 win 20000");
    p.expect(
        ". 2501:3101(600) ack 1 win 20000
         P. 3101:3501(400) ack 1 win 20000",
    );
    // A segment cut so is acknowledged piece by piece.
    p.inject(". 1:1(0) ack 3101 win 20000");
    p.inject(". 1:1(0) ack 3501 win 20000");
    p.no_timer();
}

/// RFC 5927 7: not for numbers that are not in flight, nor to a larger size.
#[test]
fn forged_errors_are_ignored() {
    let mut p = Peer::server();
    p.write(2000);
    p.drain();
    p.inject(". 1:1(0) ack 1001 win 20000");
    assert!(!p.too_big(600, Some(1000)));
    assert!(!p.too_big(600, Some(2001)));
    assert!(!p.too_big(1000, Some(1001)));
    assert!(!p.too_big(1001, None));
    assert_eq!(p.segment_size(), 1000);
    assert!(p.too_big(999, Some(2000)));
    assert_eq!(p.segment_size(), 999);
    assert!(p.too_big(900, Some(1001)));
    p.drain();
    assert!(p.too_big(1, None));
    assert_eq!(p.segment_size(), 36);
    p.drain();
}

/// Timestamps take their room.
#[test]
fn the_size_counts_options() {
    let mut p = Peer::server_offered(Config { timestamps: true, ..plain() }, "mss 1000,TS val 100 ecr 0");
    assert_eq!((p.segment_size(), p.info().pmtu), (988, 1040));
    assert!(!p.too_big(1000, None));
    assert!(p.too_big(999, None));
    assert_eq!((p.segment_size(), p.info().pmtu), (987, 1039));
}

/// A path that shrinks while the SYN is under way bounds what is sent, whatever the peer offers to take.
#[test]
fn a_path_that_is_known_before_the_handshake_bounds_segments() {
    for path in [400, 900] {
        let mut p = Peer::connecting(plain(), open());
        p.drain();
        assert!(p.too_big(path, Some(0)));
        // Nothing new.
        assert!(!p.too_big(path, Some(0)) && !p.too_big(path + 1, Some(0)));
        p.exchange("S. 0:0(0) ack 1 win 20000 <mss 1000>", ". 1:1(0) ack 1 win 20000");
        assert_eq!((p.segment_size(), p.info().advmss), (path, 1000));
    }
    // The stack knew it already.
    let p = Peer::accepting(plain(), Open { path_mss: 700, ..open() }, "S 0:0(0) win 20000 <mss 1000>");
    assert_eq!((p.segment_size(), p.info().advmss), (700, 1000));
    // In SYN-RECEIVED as well.
    let mut p = Peer::accepting(plain(), open(), "S 0:0(0) win 20000 <mss 1000>");
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    assert!(p.too_big(600, Some(0)));
    assert_eq!((p.segment_size(), p.info().advmss), (600, 1000));
    p.quiet();
}

/// What is small enough is not sent again.
#[test]
fn small_segments_stay() {
    let mut p = Peer::server();
    p.write(1000);
    p.drain();
    p.write(600);
    p.drain();
    assert!(p.too_big(600, Some(1)));
    p.expect(
        ". 1:601(600) ack 1 win 20000
         P. 601:1001(400) ack 1 win 20000",
    );
}

/// Every segment that is outstanding counts as what it would be sent as now, also what the peer has already.
#[test]
fn a_smaller_size_recounts_what_is_out() {
    let config = Config { sack: true, tail_loss_probe: false, ..plain() };
    let mut p = Peer::server_offered(config, "mss 1000,sackOK");
    p.write(5000);
    p.drain();
    p.wait_ms(20);
    p.exchange(". 1:1(0) ack 1 win 20000 <sack 2001:4001>", "");
    assert!(p.too_big(500, Some(1)));
    let i = p.info();
    assert_eq!((i.unacked, i.sacked, i.lost, i.retrans), (10, 4, 6, 0));
    // RFC 1191 6.4: no sign of congestion; Loss without a reduction.
    assert_eq!((i.ca_state, p.cwnd()), (4, (10, 0x7fff_ffff)));
    assert_eq!(p.drain().len(), 6);
    p.inject(". 1:1(0) ack 5001 win 20000");
    assert_eq!((p.info().unacked, p.info().sacked, p.info().ca_state), (0, 0, 0));
}

/// A size that changes nothing for what is out leaves recovery alone; during one it stays what it was.
#[test]
fn a_smaller_size_does_not_disturb_recovery() {
    let mut p = Peer::server();
    p.write(500);
    p.drain();
    assert!(p.too_big(600, Some(1)));
    assert_eq!(p.info().ca_state, 0);
    p.quiet();
    let mut p = Peer::server();
    p.write(10_000);
    p.drain();
    for _ in 0..3 {
        p.inject(". 1:1(0) ack 1 win 20000");
    }
    assert_eq!((p.info().ca_state, p.cwnd().1), (3, 5));
    assert!(p.too_big(600, Some(1)));
    assert_eq!((p.info().ca_state, p.cwnd().1), (3, 5));
    p.drain();
}

/// What we offer to receive is not the path's matter: the other direction may take more (RFC 9293 3.7.1, MUST-67).
#[test]
fn a_small_path_does_not_lower_the_mss_offered() {
    let config = Config { timestamps: true, ..plain() };
    let mut p = Peer::connecting(config, open());
    p.drain();
    assert!(p.too_big(500, Some(0)));
    p.timer_ms(1000);
    p.expect("S 0:0(0) win 20000 <mss 1000,TS val 2000 ecr 0>");
    p.inject("S. 0:0(0) ack 1 win 20000 <mss 1000,TS val 100 ecr 2000>");
    p.drain();
    assert_eq!(p.segment_size(), 488);
}
