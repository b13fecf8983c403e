//! Explicit congestion notification (RFC 3168).

use tcp::{Config, Ecn};

use crate::peer::{Peer, open, plain};

fn with(ecn: Ecn) -> Config {
    Config { ecn, ..plain() }
}

/// A connection that agreed on ECN.
fn marked() -> Peer {
    let mut p = Peer::accepting(with(Ecn::Passive), open(), "SEW 0:0(0) win 20000 <mss 1000>");
    p.expect("SE. 0:0(0) ack 1 win 20000 <mss 1000>");
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000");
    assert_eq!(p.info().options, 8);
    p
}

/// RFC 3168 6.1.1: ECE and CWR ask, ECE alone agrees; a SYN is not ECN-capable itself.
#[test]
fn who_agrees() {
    for (ecn, flags, answer) in [
        (Ecn::Passive, "SEW", "SE."),
        (Ecn::Always, "SEW", "SE."),
        (Ecn::Never, "SEW", "S."),
        (Ecn::Passive, "S", "S."),
        (Ecn::Passive, "SE", "S."),
        (Ecn::Passive, "SW", "S."),
    ] {
        let mut p = Peer::accepting(with(ecn), open(), &format!("{flags} 0:0(0) win 20000 <mss 1000>"));
        p.expect(&format!("{answer} 0:0(0) ack 1 win 20000 <mss 1000>"));
        assert_eq!(p.info().options, 8 * (answer == "SE.") as u64, "{flags}");
    }
    for (ecn, syn, flags, on) in [
        (Ecn::Always, "SEW", "SE.", true),
        (Ecn::Always, "SEW", "SEW.", false),
        (Ecn::Always, "SEW", "S.", false),
        (Ecn::Passive, "S", "SE.", false),
        (Ecn::Never, "S", "SE.", false),
    ] {
        let mut p = Peer::connecting(with(ecn), open());
        p.expect(&format!("{syn} 0:0(0) win 20000 <mss 1000>"));
        p.inject(&format!("{flags} 0:0(0) ack 1 win 20000 <mss 1000>"));
        assert_eq!(p.info().options, 8 * on as u64, "{flags}");
        p.expect(". 1:1(0) ack 1 win 20000");
        p.write(10);
        p.expect(&format!("{}P. 1:11(10) ack 1 win 20000", if on { "[ect0] " } else { "" }));
    }
}

/// RFC 3168 6.1.1.1: a SYN that asked and was lost is repeated without.
#[test]
fn a_repeated_syn_asks_no_more() {
    let mut p = Peer::connecting(with(Ecn::Always), open());
    p.expect("SEW 0:0(0) win 20000 <mss 1000>");
    p.timer_ms(1000);
    p.expect("S 0:0(0) win 20000 <mss 1000>");
    p.inject("SE. 0:0(0) ack 1 win 20000 <mss 1000>");
    assert_eq!(p.info().options, 0);
    p.drain();
}

/// RFC 3168 6.1.4, 6.1.5, 6.1.6, 5.2: data is ECN-capable when it is sent first; ACKs, retransmissions and probes are not.
#[test]
fn what_is_marked() {
    let mut p = marked();
    p.write(2000);
    p.expect(
        "[ect0] . 1:1001(1000) ack 1 win 20000
         [ect0] P. 1001:2001(1000) ack 1 win 20000",
    );
    p.exchange("P. 1:11(10) ack 1 win 20000", ". 2001:2001(0) ack 11 win 19990");
    p.timer_ms(220);
    p.drain();
    p.inject(". 11:11(0) ack 1001 win 20000");
    p.expect("P. 1001:2001(1000) ack 11 win 19990");
    p.inject(". 11:11(0) ack 2001 win 0");
    p.write(10);
    p.quiet();
    let us = p.deadline().micros() - p.now.micros();
    p.timer(us);
    p.expect(". 2000:2000(0) ack 11 win 19990");
    p.shutdown();
    p.exchange(". 11:11(0) ack 2001 win 10", "[ect0] PW. 2001:2011(10) ack 11 win 19990");
    p.exchange(". 11:11(0) ack 2011 win 10", "F. 2011:2011(0) ack 11 win 19990");
}

/// RFC 3168 6.1.3: CE is echoed on every ACK until CWR comes.
#[test]
fn marks_are_echoed_until_cwr() {
    let mut p = marked();
    p.exchange("P. 1:11(10) ack 1 win 20000", ". 1:1(0) ack 11 win 19990");
    p.exchange("[ce] P. 11:21(10) ack 1 win 20000", "E. 1:1(0) ack 21 win 19980");
    assert_eq!(p.counters.ecn_ce, 1);
    p.exchange("P. 21:31(10) ack 1 win 19999", "E. 1:1(0) ack 31 win 19970");
    p.write(10);
    p.expect("[ect0] PE. 1:11(10) ack 31 win 19970");
    p.exchange("PW. 31:41(10) ack 11 win 20000", ". 11:11(0) ack 41 win 19960");
    // CWR on a segment that is marked itself: echoed on.
    p.exchange("[ce] PW. 41:51(10) ack 11 win 20000", "E. 11:11(0) ack 51 win 19950");
    p.exchange("W. 51:51(0) ack 11 win 20000", "");
    p.exchange("P. 51:61(10) ack 11 win 20000", "");
    p.timer_ms(40);
    p.expect(". 11:11(0) ack 61 win 19940");
    // Out of order it counts as well; a RST carries no ECE.
    p.exchange("[ce] P. 71:81(10) ack 11 win 20000", "E. 11:11(0) ack 61 win 19940");
    p.abort();
    p.expect("R. 11:11(0) ack 61 win 0");
    // Without ECN a mark means nothing.
    let mut p = Peer::server();
    p.exchange("[ce] P. 1:11(10) ack 1 win 20000", ". 1:1(0) ack 11 win 19990");
    assert_eq!(p.counters.ecn_ce, 0);
}

/// RFC 3168 6.1.2: ECE reduces the window once a round trip, and CWR goes on the next new data.
#[test]
fn an_echo_reduces_once_a_round_trip() {
    let mut p = marked();
    p.write(40_000);
    assert_eq!(p.drain().len(), 10);
    p.wait_ms(20);
    p.inject("E. 1:1(0) ack 1001 win 20000");
    assert_eq!((p.cwnd().1, p.info().ca_state, p.counters.ecn_reductions), (5, 2, 1));
    let mut sent = p.drain();
    for i in 2..10 {
        p.inject(&format!("E. 1:1(0) ack {} win 20000", i * 1000 + 1));
        sent.extend(p.drain());
    }
    assert_eq!((p.cwnd().1, p.counters.ecn_reductions, p.info().total_retrans), (5, 1, 0));
    let cwr: Vec<bool> = sent.iter().map(|s| s.contains("W.")).collect();
    assert!(cwr[0] && cwr.iter().skip(1).all(|c| !c), "{sent:?}");
    assert_eq!(sent[0], "[ect0] W. 10001:11001(1000) ack 1 win 20000");
    // What was out at the reduction is acknowledged; the next ECE counts again.
    p.inject(". 1:1(0) ack 12001 win 20000");
    assert_eq!((p.info().ca_state, p.cwnd().0), (0, 5));
    p.drain();
    p.inject("E. 1:1(0) ack 13001 win 20000");
    assert_eq!((p.cwnd().1, p.counters.ecn_reductions), (2, 2));
    p.drain();
}

/// RFC 3168 6.1.2: a loss reduces, and tells the peer, as ECE does.
#[test]
fn a_loss_is_told_by_cwr() {
    let mut p = marked();
    p.write(11_000);
    p.drain();
    p.timer_ms(220);
    p.drain();
    p.inject(". 1:1(0) ack 10001 win 20000");
    let sent = p.drain();
    assert_eq!(sent, ["[ect0] W. 10001:11001(1000) ack 1 win 20000"]);
    // ECE without ECN means nothing.
    let mut p = Peer::server();
    p.write(5000);
    p.drain();
    p.inject("E. 1:1(0) ack 1001 win 20000");
    assert_eq!(p.cwnd(), (10, 0x7fff_ffff));
}

/// RFC 3168 6.1.2: CWR is for data; a bare FIN leaves it to what was sent before.
#[test]
fn a_bare_fin_carries_no_cwr() {
    let mut p = marked();
    p.write(2000);
    p.drain();
    p.inject("E. 1:1(0) ack 1001 win 20000");
    p.shutdown();
    p.expect("F. 2001:2001(0) ack 1 win 20000");
}

/// RFC 3168 6.1.1.1 is about SYNs: a SYN/ACK that is repeated still agrees.
#[test]
fn a_repeated_syn_ack_still_agrees() {
    let mut p = Peer::accepting(with(Ecn::Passive), open(), "SEW 0:0(0) win 20000 <mss 1000>");
    p.drain();
    p.timer_ms(1000);
    p.expect("SE. 0:0(0) ack 1 win 20000 <mss 1000>");
}
