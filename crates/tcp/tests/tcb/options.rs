//! Options of SYNs and the segment size they set (RFC 9293 3.2, 3.7.1).

use tcp::{Config, Open};

use crate::peer::{Peer, TS, open, plain};

fn smss(open: Open, config: Config, options: &str) -> u16 {
    let syn = format!("S 0:0(0) win 20000{}", if options.is_empty() { String::new() } else { format!(" <{options}>") });
    let mut p = Peer::accepting(config, open, &syn);
    p.drain();
    p.segment_size()
}

/// MUST-14, MUST-15, MUST-16, MUST-67: what is sent fits the peer's MSS and our path; without the option 536, IPv6 1220.
#[test]
fn the_segment_size() {
    let v4 = Open { mss: 1460, ..open() };
    let v6 = Open { mss: 1440, headers: 60, ..open() };
    for (open, options, size) in [
        (v4, "mss 1460", 1460),
        (v4, "mss 1461", 1460),
        (v4, "mss 1459", 1459),
        (v4, "", 536),
        (v6, "", 1220),
        (Open { headers: 59, ..v4 }, "", 536),
        (Open { mss: 500, ..v4 }, "", 500),
        (v4, "mss 48", 48),
        (v4, "mss 47", 48),
        (v4, "mss 0", 48),
    ] {
        assert_eq!(smss(open, plain(), options), size, "{options}");
    }
}

/// RFC 6691, RFC 7323 3.2: options are taken off the size.
#[test]
fn timestamps_make_segments_smaller() {
    let config = Config { timestamps: true, ..plain() };
    assert_eq!(smss(open(), config.clone(), "mss 1000,TS val 1 ecr 0"), 988);
    assert_eq!(smss(open(), config.clone(), "mss 1000"), 1000);
    assert_eq!(smss(open(), config.clone(), "mss 49,TS val 1 ecr 0"), 37);
    assert_eq!(smss(open(), config, "mss 48,TS val 1 ecr 0"), 36);
    assert_eq!(smss(open(), plain(), "mss 1000,TS val 1 ecr 0"), 1000);
}

/// Before the peer has spoken the size is at most 536.
#[test]
fn before_the_syn_is_answered() {
    assert_eq!(Peer::connecting(plain(), open()).segment_size(), 536);
    assert_eq!(Peer::connecting(plain(), Open { mss: 100, ..open() }).segment_size(), 100);
}

/// SHLD-5, MAY-3, MUST-65: SYN and SYN/ACK carry our MSS, nothing else does; the order is Linux's.
#[test]
fn only_syns_carry_mss_and_scale() {
    let config = Config { timestamps: true, window_scaling: true, ..plain() };
    let open = Open { receive_buffer: 100_000, ..open() };
    let mut p = Peer::connecting(config.clone(), open);
    p.expect(&format!("S 0:0(0) win 65535 <mss 1000,TS val {TS} ecr 0,wscale 1>"));
    p.wait_ms(20);
    p.inject(&format!("S. 0:0(0) ack 1 win 20000 <mss 1000,TS val 100 ecr {TS},wscale 3>"));
    p.expect(". 1:1(0) ack 1 win 50000 <TS val 1020 ecr 100>");
    assert_eq!((p.info().options, p.info().window_scale), (5, 0x13));
    let syn = "S 0:0(0) win 20000 <mss 1000,TS val 100 ecr 0,wscale 3>";
    let mut p = Peer::accepting(config, open, syn);
    p.expect(&format!("S. 0:0(0) ack 1 win 65535 <mss 1000,TS val {TS} ecr 100,wscale 1>"));
    p.inject(&format!(". 1:1(0) ack 1 win 20000 <TS val 100 ecr {TS}>"));
    p.write(10);
    p.expect(&format!("P. 1:11(10) ack 1 win 50000 <TS val {TS} ecr 100>"));
}

/// TCP_MAXSEG clamps what is sent, not below 36 bytes.
#[test]
fn the_application_may_clamp_the_size() {
    let mut p = Peer::server();
    p.clamp_mss(0);
    assert_eq!(p.segment_size(), 1000);
    p.clamp_mss(700);
    p.write(1000);
    p.expect(
        ". 1:701(700) ack 1 win 20000
         P. 701:1001(300) ack 1 win 20000",
    );
    p.clamp_mss(900);
    assert_eq!(p.segment_size(), 700);
    p.clamp_mss(36);
    assert_eq!(p.segment_size(), 36);
    p.clamp_mss(35);
    assert_eq!(p.segment_size(), 36);
}
