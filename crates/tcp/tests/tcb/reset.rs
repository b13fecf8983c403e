//! Blind attacks (RFC 5961): RST, SYN and ACK that do not fit exactly are challenged.

use tcp::{Config, Error, Notice, State};

use crate::peer::{Peer, open, plain};

const CHALLENGE: &str = ". 1:1(0) ack 1 win 20000";

/// The same in SYN-RECEIVED, where a wrong acknowledgment number changes nothing: RST comes before ACK (RFC 9293 3.10.7.4).
#[test]
fn a_reset_in_syn_received_is_judged_by_its_number() {
    let opening = || {
        let mut p = Peer::connecting(plain(), open());
        p.drain();
        p.inject("S 0:0(0) win 20000 <mss 1000>");
        p.drain();
        p
    };
    for (seq, challenged) in [(0, false), (2, true), (20_000, true), (20_001, false)] {
        let mut p = opening();
        p.exchange(&format!("R. {seq}:{seq}(0) ack 77 win 0"), if challenged { CHALLENGE } else { "" });
        assert_eq!((p.counters.challenge_acks, p.state()), (challenged as u64, State::SynReceived), "{seq}");
    }
    let mut p = opening();
    p.exchange("R. 1:1(0) ack 77 win 0", "");
    assert_eq!((p.state(), p.error()), (State::Closed, Some(Error::Refused)));
}

/// RFC 5961 3.2: only the exact number resets; anything else in the window is challenged; what is outside is ignored.
#[test]
fn only_an_exact_reset_counts() {
    for (seq, challenged) in [(0, false), (2, true), (20_000, true), (20_001, false), (-5, false)] {
        let mut p = Peer::server();
        p.exchange(&format!("R {seq}:{seq}(0) win 0"), if challenged { CHALLENGE } else { "" });
        assert_eq!((p.counters.challenge_acks, p.state()), (challenged as u64, State::Established), "{seq}");
        assert_eq!(p.counters.resets_in, 0);
    }
    let mut p = Peer::server();
    p.exchange("R 1:1(0) win 0", "");
    assert_eq!((p.state(), p.error(), p.take_notice()), (State::Closed, Some(Error::Reset), Notice::FAILED));
    assert_eq!(p.counters.resets_in, 1);
    // SHLD-2: one with text is valid.
    let mut p = Peer::server();
    p.exchange("R. 1:11(10) ack 1 win 0", "");
    assert_eq!((p.state(), p.take()), (State::Closed, 0));
}

/// What arrived in order before the RST is still read; what is queued to be sent is dropped.
#[test]
fn a_reset_frees_what_is_queued() {
    let mut p = Peer::server();
    p.inject("P. 1:101(100) ack 1 win 20000");
    p.inject("P. 201:301(100) ack 1 win 20000");
    p.write(5000);
    p.drain();
    p.inject("R 101:101(0) win 0");
    assert_eq!((p.state(), p.take()), (State::Closed, 100));
    let i = p.info();
    assert_eq!((i.notsent_bytes, p.deadline()), (0, wire::Instant::FAR));
    p.write(10);
    p.quiet();
}

/// RFC 5961 4.2: a SYN is challenged wherever it lies; whoever sent it must confirm by a RST.
#[test]
fn a_syn_is_challenged() {
    for (seq, counted) in [(1, 1), (2, 1), (20_000, 1)] {
        let mut p = Peer::server();
        p.exchange(&format!("S {seq}:{seq}(0) win 0"), CHALLENGE);
        assert_eq!((p.counters.challenge_acks, p.state()), (counted, State::Established));
    }
    let mut p = Peer::server();
    p.exchange("S 30000:30000(0) win 0", CHALLENGE);
    p.exchange("S. 0:0(0) ack 1 win 20000", CHALLENGE);
    assert_eq!(p.state(), State::Established);
}

/// RFC 5961 5.2: SND.UNA − MAX.SND.WND ≤ SEG.ACK ≤ SND.NXT.
#[test]
fn an_ack_outside_what_can_be_is_challenged() {
    let mut p = Peer::server();
    for i in 0..30 {
        p.write(1000);
        p.drain();
        p.inject(&format!(". 1:1(0) ack {} win 20000", 1001 + i * 1000));
    }
    p.write(10);
    p.drain();
    // SND.UNA is 30001, SND.NXT 30011, the largest window was 20000.
    let mut seq = 1;
    for (ack, ok) in [(10_000, false), (10_001, true), (30_000, true), (30_001, true), (30_012, false), (30_011, true)]
    {
        let before = p.counters;
        p.inject(&format!("P. {seq}:{}(10) ack {ack} win 20000", seq + 10));
        p.drain();
        assert_eq!(p.counters.bad_ack - before.bad_ack, !ok as u64, "{ack}");
        assert_eq!(p.counters.challenge_acks - before.challenge_acks, !ok as u64, "{ack}");
        // A segment that is challenged is not processed further.
        assert_eq!(p.read(), if ok { 10 } else { 0 }, "{ack}");
        seq += if ok { 10 } else { 0 };
    }
    assert_eq!(p.state(), State::Established);
}

/// The lower bound of RFC 5961 5.2 does not reach below what was ever sent: right after the handshake the largest window would
/// have let in any of 20,000 numbers before our first byte.
#[test]
fn an_ack_of_what_was_never_sent_is_challenged() {
    let mut p = Peer::server();
    for ack in [-30_000, -19_999, -1, 0] {
        p.exchange(&format!("P. 1:5(4) ack {ack} win 20000"), CHALLENGE);
        assert_eq!(p.take(), 0, "{ack}");
    }
    p.write(1000);
    p.drain();
    p.inject(". 1:1(0) ack 1001 win 20000");
    for (ack, ok) in [(0, false), (1, true), (1000, true)] {
        let before = p.counters.bad_ack;
        p.inject(&format!(". 1:1(0) ack {ack} win 20000"));
        p.drain();
        assert_eq!(p.counters.bad_ack - before, !ok as u64, "{ack}");
    }
}

/// RFC 5961 7, 10: a connection answers out-of-window segments twice a second, counted from the last answer.
#[test]
fn challenges_are_limited_for_a_connection() {
    // As it is by default.
    let mut p = Peer::server_with(Config { invalid_ratelimit: Config::default().invalid_ratelimit, ..plain() });
    p.exchange("R 5:5(0) win 0", CHALLENGE);
    // Whatever asks for it.
    let texts = ["R 5:5(0) win 0", "S 5:5(0) win 0", ". 0:0(0) ack 1 win 20000", ". 1:1(0) ack 2 win 20000"];
    for text in texts {
        p.exchange(text, "");
    }
    assert_eq!((p.counters.challenge_acks, p.counters.acks_limited), (1, 4));
    // One with data is not an answer to an answer.
    p.exchange("P. 0:1(1) ack 1 win 20000", CHALLENGE);
    assert_eq!(p.counters.acks_limited, 4);
    p.wait_ms(499);
    p.exchange("R 5:5(0) win 0", "");
    p.wait_ms(1);
    p.exchange("S 5:5(0) win 0", CHALLENGE);
    p.exchange(". 0:0(0) ack 1 win 20000", "");
    p.wait_ms(500);
    p.exchange(". 0:0(0) ack 1 win 20000", CHALLENGE);
    p.exchange("R 5:5(0) win 0", "");
    assert_eq!((p.counters.challenge_acks, p.counters.acks_limited), (2, 7));
}

/// A segment without ACK is dropped in every synchronized state (RFC 9293 3.10.7.4, fifth).
#[test]
fn segments_without_ack_are_dropped() {
    let mut p = Peer::server();
    p.exchange("P 1:11(10) win 20000", "");
    assert_eq!((p.take(), p.state()), (0, State::Established));
    p.exchange("F 1:1(0) win 20000", "");
    assert_eq!(p.state(), State::Established);
}

/// A dead connection is quiet, and remembers why it died.
#[test]
fn an_orphan_is_told_nothing() {
    let mut p = Peer::server();
    p.write(10);
    p.drain();
    p.close();
    p.expect("F. 11:11(0) ack 1 win 20000");
    p.inject("R 1:1(0) win 0");
    assert_eq!(
        (p.state(), p.error(), p.notice(), p.orphaned()),
        (State::Closed, Some(Error::Reset), Notice::default(), true)
    );
}
