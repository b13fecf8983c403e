//! Connections brought to life by the last ACK of a handshake (RFC 4987 3.6): what is noted of a SYN, and what comes of it.

use tcp::{Config, Ecn, Offer, State, stamp};
use wire::Instant;

use crate::peer::{IRS, Peer, open, plain};

fn config() -> Config {
    Config { window_scaling: true, timestamps: true, sack: true, ecn: Ecn::Passive, tail_loss_probe: false, ..plain() }
}

const ALL: &str = "SEW 0:0(0) win 12000 <mss 900,sackOK,TS val 77 ecr 0,wscale 5>";

#[test]
fn what_is_noted_of_a_syn() {
    let o = Peer::offer(ALL);
    let all = Offer { seq: IRS, window: 12_000, mss: 900, scale: Some(5), timestamp: Some(77), sack: true, ecn: true };
    assert_eq!(o, all);
    let none = Peer::offer("S 0:0(0) win 9");
    assert_eq!(none, Offer { seq: IRS, window: 9, mss: 0, scale: None, timestamp: None, sack: false, ecn: false });
    // Either flag alone asks for nothing.
    assert!(!Peer::offer("SE 0:0(0) win 9").ecn && !Peer::offer("SW 0:0(0) win 9").ecn);
    // What a cookie carries in a timestamp's low bits, and what it cannot without one.
    assert_eq!(all.for_cookie(&Config::default()), all);
    let stripped = Offer { timestamp: None, ..all }.for_cookie(&Config::default());
    assert_eq!(stripped, Offer { timestamp: None, scale: None, sack: false, ecn: false, ..all });
    for (scale, sack, ecn, bits) in [
        (None, false, false, 15),
        (Some(0), false, false, 0),
        (Some(14), true, false, 30),
        (Some(7), false, true, 39),
        (None, true, true, 63),
    ] {
        let o = Offer { scale, sack, ecn, ..all };
        assert_eq!(o.to_bits(), bits);
        assert_eq!(all.with_bits(bits), o);
    }
    assert_eq!(Offer { scale: Some(15), ..all }.to_bits() & 15, 14);
}

#[test]
fn stamps_lie_just_behind_the_clock() {
    assert_eq!(stamp(1000, 40), 1000 / 64 * 64 + 40);
    assert_eq!(stamp(1000, 41), 960 - 64 + 41);
    assert_eq!(stamp(1000, 63), 960 - 1);
    assert_eq!(stamp(1024, 0), 1024);
    assert_eq!(stamp(3, 9), 9u32.wrapping_sub(64));
}

/// The SYN/ACK that leaves nothing behind is the one that a connection would send.
#[test]
fn the_same_syn_ack() {
    for syn in [ALL, "S 0:0(0) win 12000 <mss 900>", "S 0:0(0) win 12000 <sackOK,wscale 3>"] {
        let mut p = Peer::accepting(config(), open(), syn);
        let line = p.syn_ack(&Peer::offer(syn));
        p.expect(&line);
        assert_eq!(p.counters.syn_retransmits, 0);
    }
}

/// The connection is as the SYN would have made it; the time of the SYN/ACK measures the path when it went once.
#[test]
fn the_same_connection() {
    let now = Instant::from_micros(200_000_000);
    for (back_ms, retries, srtt, cwnd) in [(Some(30), 0, 30_000, 10), (Some(30), 2, 30_000, 1), (None, 0, 0, 10)] {
        let sent = back_ms.map(|ms| Instant::from_micros(now.micros() - ms * 1000));
        let offer = Peer::offer("S 0:0(0) win 12000 <mss 900,wscale 5>");
        let mut p = Peer::resumed(config(), open(), &offer, sent, retries, now);
        assert_eq!((p.state(), p.passive(), p.segment_size()), (State::SynReceived, true, 900));
        p.inject(". 1:1(0) ack 1 win 100");
        assert_eq!(p.state(), State::Established);
        let i = p.info();
        assert_eq!(
            (i.srtt_us, i.snd_cwnd, i.snd_wnd, i.window_scale & 15),
            (srtt, cwnd, 3200, 5),
            "{back_ms:?} {retries}"
        );
        p.write(10);
        p.expect(". 1:11(10) ack 1 win 20000");
    }
}

/// RFC 9293 3.7.1, MUST-15: a SYN without the option means 536 bytes here too.
#[test]
fn without_an_mss_the_default_holds() {
    let offer = Peer::offer("S 0:0(0) win 12000");
    let now = Instant::from_micros(200_000_000);
    let p = Peer::resumed(config(), open(), &offer, Some(now), 0, now);
    assert_eq!(p.segment_size(), 536);
}
