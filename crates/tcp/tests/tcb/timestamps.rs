//! Timestamps and PAWS (RFC 7323), strictly as negotiated.

use tcp::{Config, State};

use crate::peer::{Peer, TS, open, plain};

fn stamped() -> Config {
    Config { timestamps: true, ..plain() }
}

/// The peer's clock stands at 100 at the handshake, ours at 1,020 after it.
fn established() -> Peer {
    let p = Peer::server_offered(stamped(), "mss 1000,TS val 100 ecr 0");
    assert_eq!(p.timestamps().map(|t| t.1), Some(100));
    p
}

/// RFC 7323 3.2: TSval runs in milliseconds from a random offset; TSecr repeats what came, and is zero without ACK.
#[test]
fn every_segment_carries_them() {
    let mut p = established();
    p.write(10);
    p.expect("P. 1:11(10) ack 1 win 20000 <TS val 1020 ecr 100>");
    p.wait_ms(7);
    p.inject("P. 1:11(10) ack 11 win 20000 <TS val 103 ecr 1020>");
    p.write(10);
    p.expect("P. 11:21(10) ack 11 win 19990 <TS val 1027 ecr 103>");
    p.shutdown();
    p.expect("F. 21:21(0) ack 11 win 19990 <TS val 1027 ecr 103>");
    p.abort();
    p.expect("R. 22:22(0) ack 11 win 0 <TS val 1027 ecr 103>");
}

/// RFC 7323 1.3: both SYNs, or neither.
#[test]
fn both_sides_must_agree() {
    for config in [stamped(), plain()] {
        let mut p = Peer::server_offered(config, "mss 1000");
        assert_eq!((p.timestamps(), p.info().options), (None, 0));
        p.write(10);
        p.expect("P. 1:11(10) ack 1 win 20000");
    }
    let mut p = Peer::server_offered(plain(), "mss 1000,TS val 100 ecr 0");
    assert_eq!(p.timestamps(), None);
    p.write(10);
    p.expect("P. 1:11(10) ack 1 win 20000");
    let mut p = Peer::connecting(stamped(), open());
    p.expect(&format!("S 0:0(0) win 20000 <mss 1000,TS val {TS} ecr 0>"));
    p.exchange("S. 0:0(0) ack 1 win 20000 <mss 1000>", ". 1:1(0) ack 1 win 20000");
    assert_eq!(p.segment_size(), 1000);
}

/// RFC 7323 4.3: TS.Recent follows segments that start at or before the last acknowledgment sent.
#[test]
fn what_is_echoed() {
    let mut p = established();
    p.exchange(
        "P. 1:601(600) ack 1 win 20000 <TS val 101 ecr 1020>",
        ". 1:1(0) ack 601 win 19400 <TS val 1020 ecr 101>",
    );
    // Two small segments arrive before an ACK: the first one's stamp is echoed.
    p.inject("P. 601:611(10) ack 1 win 20000 <TS val 110 ecr 1020>");
    p.inject("P. 611:621(10) ack 1 win 20000 <TS val 120 ecr 1020>");
    p.expect(". 1:1(0) ack 621 win 19380 <TS val 1020 ecr 110>");
    // A hole: what lies behind it is not echoed, what fills it is.
    p.exchange(
        "P. 631:641(10) ack 1 win 20000 <TS val 140 ecr 1020>",
        ". 1:1(0) ack 621 win 19380 <TS val 1020 ecr 110>",
    );
    p.exchange(
        "P. 621:631(10) ack 1 win 20000 <TS val 130 ecr 1020>",
        ". 1:1(0) ack 641 win 19360 <TS val 1020 ecr 130>",
    );
    // A repeated acknowledgment, newer by its stamp.
    p.inject(". 641:641(0) ack 1 win 20000 <TS val 150 ecr 1020>");
    p.write(1);
    p.expect("P. 1:2(1) ack 641 win 19360 <TS val 1020 ecr 150>");
}

/// The same on the slow path and on the predicted one.
#[test]
fn the_slow_path_follows_the_same_rule() {
    let mut p = established();
    p.inject("EP. 1:601(600) ack 1 win 19999 <TS val 105 ecr 1020>");
    p.drain();
    p.inject("EP. 601:611(10) ack 1 win 19998 <TS val 110 ecr 1020>");
    p.inject("EP. 611:621(10) ack 1 win 19997 <TS val 120 ecr 1020>");
    assert_eq!(p.counters.predicted, 0);
    assert_eq!(p.timestamps().unwrap().1, 110);
    p.drain();
    p.inject("EP. 621:631(10) ack 1 win 19996 <TS val 120 ecr 1020>");
    assert_eq!(p.timestamps().unwrap().1, 120);
    // Equal is not older.
    p.inject("P. 631:641(10) ack 1 win 19996 <TS val 120 ecr 1020>");
    assert_eq!((p.counters.paws, p.take(), p.counters.predicted), (0, 640, 1));
    p.drain();
}

/// RFC 7323 5.3 R1: an older stamp is refused with an ACK, whatever the segment carries.
#[test]
fn older_segments_are_refused() {
    let mut p = established();
    for (n, text) in
        ["P. 1:11(10) ack 1 win 20000", ". 1:1(0) ack 1 win 20000", "F. 1:1(0) ack 1 win 20000"].iter().enumerate()
    {
        p.exchange(&format!("{text} <TS val 99 ecr 1020>"), ". 1:1(0) ack 1 win 20000 <TS val 1020 ecr 100>");
        assert_eq!((p.counters.paws, p.take(), p.state()), (n as u64 + 1, 0, State::Established));
    }
    // The comparison is on the circle: 2³¹ − 1 ahead is newer, 2³¹ behind is older.
    let mut p = established();
    let newest = 100_u32.wrapping_add(0x7fff_ffff);
    p.inject(&format!("P. 1:11(10) ack 1 win 20000 <TS val {newest} ecr 1020>"));
    assert_eq!((p.take(), p.timestamps().unwrap().1), (10, newest));
    p.drain();
    p.inject("P. 11:21(10) ack 1 win 20000 <TS val 100 ecr 1020>");
    assert_eq!((p.take(), p.counters.paws), (0, 1));
    p.drain();
    p.inject("P. 11:21(10) ack 1 win 20000 <TS val 98 ecr 1020>");
    assert_eq!((p.take(), p.counters.paws), (10, 1));
    p.drain();
}

/// RFC 7323 5.2: a RST is exempt.
#[test]
fn an_old_reset_counts() {
    let mut p = established();
    p.inject("R 1:1(0) win 0 <TS val 1 ecr 0>");
    assert_eq!((p.state(), p.counters.paws), (State::Closed, 0));
    let mut p = established();
    p.inject("R 1:1(0) win 0");
    assert_eq!(p.state(), State::Closed);
}

/// RFC 7323 5.5: after 24 days without a segment the peer's clock may have wrapped.
#[test]
fn a_stamp_older_than_24_days_is_not_trusted() {
    for (seconds, refused) in [(24 * 86_400 - 1, true), (24 * 86_400, false)] {
        let mut p = established();
        p.wait_ms(seconds * 1000);
        p.inject("P. 1:11(10) ack 1 win 20000 <TS val 99 ecr 1020>");
        assert_eq!((p.counters.paws, p.take() == 0), (refused as u64, refused));
        p.drain();
    }
}

/// A SYN with an old stamp is challenged as any other (RFC 5961 4).
#[test]
fn an_old_syn_is_challenged() {
    let mut p = established();
    p.exchange("S 5:5(0) win 0 <TS val 1 ecr 0>", ". 1:1(0) ack 1 win 20000 <TS val 1020 ecr 100>");
    assert_eq!((p.counters.challenge_acks, p.counters.paws), (1, 0));
}

/// A repeated SYN in SYN-RECEIVED is subject to PAWS as well, and answered.
#[test]
fn a_repeated_syn_is_answered() {
    let mut p = Peer::accepting(stamped(), open(), "S 0:0(0) win 20000 <mss 1000,TS val 100 ecr 0>");
    p.drain();
    p.inject("S 0:0(0) win 20000 <mss 1000,TS val 1100 ecr 0>");
    assert_eq!(p.drain().len(), 1);
}

/// Prediction takes a newer or equal stamp, and none without.
#[test]
fn prediction_compares_stamps() {
    let mut p = established();
    p.inject("P. 1:11(10) ack 1 win 20000 <TS val 100 ecr 1020>");
    assert_eq!(p.counters.predicted, 1);
    p.inject("P. 11:21(10) ack 1 win 20000 <TS val 99 ecr 1020>");
    assert_eq!((p.counters.predicted, p.counters.paws), (1, 1));
    p.inject("P. 11:21(10) ack 1 win 20000");
    assert_eq!(p.counters.predicted, 1);
    p.drain();
}

/// An echo that is none of ours tells an old SYN/ACK (Linux): older than our SYN, or from the future.
#[test]
fn the_echo_of_a_syn_ack_is_checked() {
    for (wait, ecr, ok) in [
        (0, 999, false),
        (0, 1000, true),
        (0, 1001, false),
        (20, 1020, true),
        (20, 1021, false),
        (20, 1000, true),
        (20, 999, false),
    ] {
        let mut p = Peer::connecting(stamped(), open());
        p.drain();
        p.wait_ms(wait);
        let reply = p.reply_to(&format!("S. 0:0(0) ack 1 win 20000 <mss 1000,TS val 100 ecr {ecr}>"));
        assert_eq!((reply.is_none(), p.counters.paws), (ok, !ok as u64), "{wait} {ecr}");
        assert_eq!(p.state(), if ok { State::Established } else { State::SynSent });
        p.drain();
    }
    // Without ACK there is no echo to look at.
    let mut p = Peer::connecting(stamped(), open());
    p.drain();
    p.inject("S 0:0(0) win 20000 <mss 1000,TS val 100 ecr 7>");
    assert_eq!(p.state(), State::SynReceived);
    p.drain();
}

/// RFC 7323 4.1: the echo measures the round trip of what was sent more than once; half a millisecond is the least.
#[test]
fn echoes_time_retransmissions() {
    for (wait, ecr, rtt, min) in [(30, 1240, 30_000, 20_000), (30, 1020, 250_000, 20_000), (0, 1240, 500, 500)] {
        let mut p = established();
        p.write(10);
        p.drain();
        p.timer_ms(220);
        p.drain();
        p.wait_ms(wait);
        p.inject(&format!(". 1:1(0) ack 11 win 20000 <TS val 100 ecr {ecr}>"));
        let i = p.info();
        assert_eq!((i.srtt_us, i.min_rtt_us, i.backoff), ((20_000 * 7 + rtt) / 8, min, 0), "{ecr}");
    }
    // One from the future, or none, measures nothing.
    for ecr in [1271, 0] {
        let mut p = established();
        p.write(10);
        p.drain();
        p.timer_ms(220);
        p.drain();
        p.wait_ms(30);
        p.inject(&format!(". 1:1(0) ack 11 win 20000 <TS val 100 ecr {ecr}>"));
        assert_eq!((p.info().srtt_us, p.info().backoff), (20_000, 1), "{ecr}");
    }
}

/// RFC 7323 3.2 would drop a segment without the option; it is taken, as Linux takes it.
#[test]
fn segments_without_a_stamp_are_taken() {
    let mut p = established();
    p.inject("P. 1:11(10) ack 1 win 20000");
    assert_eq!((p.take(), p.counters.paws, p.timestamps().unwrap().1), (10, 0, 100));
    p.drain();
    p.inject("R 11:11(0) win 0");
    assert_eq!(p.state(), State::Closed);
}

/// RFC 7323 4.1: only an acknowledgment of new data measures.
#[test]
fn repeated_acknowledgments_measure_nothing() {
    let mut p = established();
    p.write(1000);
    p.drain();
    let before = p.info();
    p.wait_ms(100);
    p.inject(". 1:1(0) ack 1 win 19000 <TS val 100 ecr 1020>");
    let i = p.info();
    assert_eq!((i.srtt_us, i.rttvar_us, i.min_rtt_us), (before.srtt_us, before.rttvar_us, before.min_rtt_us));
}
