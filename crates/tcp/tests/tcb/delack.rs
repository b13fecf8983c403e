//! When acknowledgments go out (RFC 9293 3.8.6.3, RFC 5681 4.2).

use core::time::Duration;

use tcp::Config;

use crate::peer::{Peer, plain};

/// SHLD-18, MUST-40: a small segment is acknowledged after 40 ms.
#[test]
fn a_small_segment_waits_for_the_timer() {
    let mut p = Peer::server();
    p.exchange("P. 1:101(100) ack 1 win 20000", "");
    assert!(!p.wants_ack());
    p.timer_ms(40);
    assert!(p.wants_ack());
    p.expect(". 1:1(0) ack 101 win 19900");
    assert_eq!(p.counters.delayed_acks, 1);
    p.no_timer();
    // Again, from its own arrival.
    p.wait_ms(500);
    p.exchange("P. 101:151(50) ack 1 win 20000", "");
    p.wait_ms(30);
    p.exchange("P. 151:161(10) ack 1 win 20000", "");
    p.timer_ms(10);
    p.expect(". 1:1(0) ack 161 win 19840");
}

#[test]
fn the_delay_is_configurable() {
    let mut p = Peer::server_with(Config { delayed_ack: Duration::from_millis(7), ..plain() });
    p.exchange("P. 1:101(100) ack 1 win 20000", "");
    p.timer_ms(7);
    p.expect(". 1:1(0) ack 101 win 19900");
}

/// Full segments at the start are acknowledged at once, sixteen of them; then every second one (SHLD-19).
#[test]
fn every_second_full_segment_after_a_quick_start() {
    let mut p = Peer::server();
    let mut seq = 1;
    for n in 0..24 {
        p.inject(&format!(". {seq}:{}(1000) ack 1 win 20000", seq + 1000));
        seq += 1000;
        assert_eq!(p.wants_ack(), n < 16 || n % 2 == 1, "{n}");
        if p.wants_ack() {
            let ack = p.next().unwrap();
            assert!(ack.starts_with(&format!(". 1:1(0) ack {seq} ")), "{ack}");
        }
        p.read();
        p.drain();
    }
    // One that stays alone waits for the timer.
    p.inject(&format!(". {seq}:{}(1000) ack 1 win 20000", seq + 1000));
    p.timer_ms(40);
    assert_eq!(p.drain().len(), 1);
}

/// What counts as full is the larger of what the peer sent so far; two of its segments, or more bytes than one.
#[test]
fn more_than_a_full_segment_is_acknowledged() {
    let mut p = Peer::server();
    p.exchange("P. 1:301(300) ack 1 win 20000", "");
    assert_eq!(p.info().rcv_mss, 300);
    p.timer_ms(40);
    p.drain();
    p.exchange("P. 301:451(150) ack 1 win 20000", "");
    p.exchange("P. 451:601(150) ack 1 win 20000", "");
    p.exchange("P. 601:602(1) ack 1 win 20000", ". 1:1(0) ack 602 win 19399");
    assert_eq!(p.info().rcv_mss, 300);
    p.no_timer();
}

/// Quick acknowledgments are for segments of at least 536 bytes, or of the segment size where that is smaller.
#[test]
fn small_segments_are_not_quick() {
    let mut p = Peer::server();
    p.exchange("P. 1:536(535) ack 1 win 20000", "");
    p.timer_ms(40);
    p.drain();
    p.exchange("P. 536:1072(536) ack 1 win 20000", ". 1:1(0) ack 1072 win 18929");
    let mut p = Peer::accepting(plain(), crate::peer::open(), "S 0:0(0) win 20000 <mss 400>");
    p.drain();
    p.exchange(". 1:1(0) ack 1 win 20000", "");
    p.exchange("P. 1:400(399) ack 1 win 20000", "");
    p.timer_ms(40);
    p.drain();
    p.exchange("P. 400:800(400) ack 1 win 20000", ". 1:1(0) ack 800 win 19201");
}

/// A delayed acknowledgment rides on data.
#[test]
fn data_carries_the_acknowledgment() {
    let mut p = Peer::server();
    p.exchange("P. 1:101(100) ack 1 win 20000", "");
    p.write(10);
    p.expect("P. 1:11(10) ack 101 win 19900");
    assert!(!p.wants_ack());
    p.wait_ms(100);
    assert_eq!(p.counters.delayed_acks, 0);
    // The count of what is not acknowledged starts again.
    p.exchange("P. 101:201(100) ack 11 win 20000", "");
    p.timer_ms(40);
    p.drain();
}

/// TCP_QUICKACK: at once, including the one that waits.
#[test]
fn quick_acknowledgments_on_request() {
    let mut p = Peer::server();
    p.set_quickack(true);
    assert!(!p.wants_ack());
    p.exchange("P. 1:2(1) ack 1 win 20000", ". 1:1(0) ack 2 win 19999");
    p.set_quickack(false);
    p.exchange("P. 2:3(1) ack 1 win 20000", "");
    p.set_quickack(false);
    p.quiet();
    p.set_quickack(true);
    p.expect(". 1:1(0) ack 3 win 19998");
    p.no_timer();
}

/// MUST-58, MUST-59: a burst is acknowledged once.
#[test]
fn a_burst_is_acknowledged_once() {
    let mut p = Peer::server();
    for i in 0..5 {
        p.inject(&format!(". {}:{}(1000) ack 1 win 20000", 1 + i * 1000, 1001 + i * 1000));
    }
    p.expect(". 1:1(0) ack 5001 win 15000");
}

/// An ACK for nothing new is not answered, or two peers would never fall silent.
#[test]
fn plain_acks_are_not_acknowledged() {
    let mut p = Peer::server();
    p.exchange(". 1:1(0) ack 1 win 20000", "");
    p.exchange(". 1:1(0) ack 1 win 10000", "");
    p.write(10);
    p.drain();
    p.exchange(". 1:1(0) ack 11 win 20000", "");
    p.no_timer();
}
