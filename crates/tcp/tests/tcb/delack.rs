//! When acknowledgments go out (RFC 9293 3.8.6.3, RFC 5681 4.2): quickly at the start, delayed where the application answers,
//! every second full segment in any case.

use core::time::Duration;

use tcp::Config;

use crate::peer::{Peer, plain};

/// The application has answered one byte with one byte; from now on ACKs wait for its answers.
fn answering(config: Config) -> Peer {
    let mut p = Peer::server_with(config);
    p.inject("P. 1:2(1) ack 1 win 20000");
    p.write(1);
    p.expect("P. 1:2(1) ack 2 win 19999");
    p
}

/// SHLD-18, MUST-40: a small segment is acknowledged after 40 ms.
#[test]
fn a_small_segment_waits_for_the_timer() {
    let mut p = answering(plain());
    p.exchange("P. 2:102(100) ack 2 win 20000", "");
    assert!(!p.wants_ack());
    p.timer_ms(40);
    assert!(p.wants_ack());
    p.expect(". 2:2(0) ack 102 win 19899");
    assert_eq!(p.counters.delayed_acks, 1);
    p.no_timer();
    // The answer did not come: the next one is not waited for.
    p.exchange("P. 102:152(50) ack 2 win 20000", ". 2:2(0) ack 152 win 19849");
    assert_eq!(p.counters.delayed_acks, 1);
}

/// The delay runs from the first segment that is not acknowledged.
#[test]
fn the_delay_runs_from_the_first_segment() {
    let mut p = answering(plain());
    p.exchange("P. 2:52(50) ack 2 win 20000", "");
    p.wait_ms(30);
    p.exchange("P. 52:62(10) ack 2 win 20000", "");
    p.timer_ms(10);
    p.expect(". 2:2(0) ack 62 win 19939");
}

#[test]
fn the_delay_is_configurable() {
    let mut p = answering(Config { delayed_ack: Duration::from_millis(7), ..plain() });
    p.exchange("P. 2:102(100) ack 2 win 20000", "");
    p.timer_ms(7);
    p.expect(". 2:2(0) ack 102 win 19899");
}

/// At the start half a window of segments is acknowledged one by one, sixteen at most; then every second one (SHLD-19).
#[test]
fn every_second_full_segment_after_a_quick_start() {
    for (len, quick) in [(1000, 10), (800, 12), (400, 16)] {
        let mut p = Peer::server();
        let mut seq = 1;
        let mut alone = 0;
        for n in 0..24 {
            p.inject(&format!(". {seq}:{}({len}) ack 1 win 20000", seq + len));
            seq += len;
            alone += 1;
            // Segments below 536 bytes need more than two.
            let full = len.max(536);
            let due = n < quick || alone * len > full;
            assert_eq!(p.wants_ack(), due, "{len} {n}");
            if due {
                alone = 0;
                let ack = p.next().unwrap();
                assert!(ack.starts_with(&format!(". 1:1(0) ack {seq} ")), "{ack}");
            }
            p.read();
            p.drain();
        }
    }
}

/// What the kernel has put together counts as the segments it was: two of 700 bytes ask for an ACK, one does not.
#[test]
fn segments_put_together_are_told_apart() {
    let mut p = answering(plain());
    p.inject(". 2:2102(2100) ack 2 win 20000 mss 700");
    assert_eq!((p.info().rcv_mss, p.info().segs_in), (700, 5));
    assert!(p.wants_ack());
    p.drain();
    p.exchange(". 2102:2802(700) ack 2 win 20000", "");
    p.inject("P. 2802:3502(700) ack 2 win 20000");
    assert!(p.wants_ack());
    p.drain();
    // One that is shorter than the size says.
    p.inject(". 3502:3802(300) ack 2 win 20000 mss 700");
    assert_eq!((p.info().rcv_mss, p.info().segs_in), (700, 8));
}

/// A quick ACK may wait one turn for the application's answer; one that is due by count may not.
#[test]
fn a_quick_ack_may_ride_on_the_answer() {
    let mut p = Peer::server();
    p.inject("P. 1:101(100) ack 1 win 20000");
    assert!(p.wants_ack() && p.defer_ack() && !p.defer_ack());
    p.write(10);
    p.expect("P. 1:11(10) ack 101 win 19900");
    p.inject("P. 101:401(300) ack 11 win 20000");
    p.inject("P. 401:701(300) ack 11 win 20000");
    assert!(p.wants_ack() && !p.defer_ack());
    p.expect(". 11:11(0) ack 701 win 19300");
}

/// What counts as full is the larger of 536 bytes and what the peer sent last in one segment.
#[test]
fn more_than_a_full_segment_is_acknowledged() {
    let mut p = answering(plain());
    p.exchange("P. 2:302(300) ack 2 win 20000", "");
    p.exchange("P. 302:538(236) ack 2 win 20000", "");
    p.exchange("P. 538:539(1) ack 2 win 20000", ". 2:2(0) ack 539 win 19462");
    assert_eq!(p.info().rcv_mss, 536);
    p.no_timer();
    p.exchange("P. 539:1239(700) ack 2 win 20000", "");
    assert_eq!(p.info().rcv_mss, 700);
    p.exchange("P. 1239:1240(1) ack 2 win 20000", ". 2:2(0) ack 1240 win 18761");
    p.exchange("P. 1240:1840(600) ack 2 win 20000", "");
    p.exchange("P. 1840:1940(100) ack 2 win 20000", "");
    p.exchange("P. 1940:1941(1) ack 2 win 20000", ". 2:2(0) ack 1941 win 18060");
    // No more than our own segment size counts, whatever was joined on the way.
    p.exchange("P. 1941:5941(4000) ack 2 win 20000", ". 2:2(0) ack 5941 win 14060");
    assert_eq!(p.info().rcv_mss, 1000);
}

/// After an idle RTO the start is quick again, unless the application answers.
#[test]
fn quick_again_after_an_idle_time() {
    for (ms, quick) in [(220, false), (221, true)] {
        let mut p = Peer::server();
        for n in 0..11 {
            p.inject(&format!(". {}:{}(1000) ack 1 win 20000", 1 + n * 1000, 1001 + n * 1000));
            p.drain();
        }
        p.timer_ms(40);
        p.drain();
        p.wait_ms(ms - 40);
        p.inject(". 11001:12001(1000) ack 1 win 20000");
        assert_eq!(p.wants_ack(), quick, "{ms}");
        p.drain();
    }
    let mut p = answering(plain());
    p.inject(". 2:2(0) ack 2 win 20000");
    p.wait_ms(1000);
    p.exchange("P. 2:102(100) ack 2 win 20000", "");
}

/// A delayed acknowledgment rides on data.
#[test]
fn data_carries_the_acknowledgment() {
    let mut p = answering(plain());
    p.exchange("P. 2:402(400) ack 2 win 20000", "");
    p.write(10);
    p.expect("P. 2:12(10) ack 402 win 19599");
    assert!(!p.wants_ack());
    p.wait_ms(100);
    assert_eq!(p.counters.delayed_acks, 0);
    // The count of what is not acknowledged starts again.
    p.exchange("P. 402:802(400) ack 12 win 20000", "");
    p.timer_ms(40);
    p.drain();
}

/// An answer after the delay is none.
#[test]
fn a_late_answer_does_not_delay() {
    for (ms, delayed) in [(39, true), (40, false)] {
        let mut p = Peer::server();
        p.exchange("P. 1:2(1) ack 1 win 20000", ". 1:1(0) ack 2 win 19999");
        p.wait_ms(ms);
        p.write(1);
        p.drain();
        p.inject("P. 2:3(1) ack 2 win 20000");
        assert_eq!(p.wants_ack(), !delayed, "{ms}");
        p.drain();
    }
}

/// TCP_QUICKACK: at once, including the one that waits.
#[test]
fn quick_acknowledgments_on_request() {
    let mut p = answering(plain());
    p.exchange("P. 2:3(1) ack 2 win 20000", "");
    p.set_quickack(true);
    p.expect(". 2:2(0) ack 3 win 19998");
    p.no_timer();
    // Quick acknowledgments are left from the start.
    assert!(!p.wants_ack());
    p.exchange("P. 3:4(1) ack 2 win 20000", ". 2:2(0) ack 4 win 19997");
    p.set_quickack(false);
    p.exchange("P. 4:5(1) ack 2 win 20000", "");
    p.set_quickack(false);
    p.quiet();
    p.set_quickack(true);
    p.expect(". 2:2(0) ack 5 win 19996");
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

/// What we send ourselves takes nothing from the quick ACKs at the start of the peer's data.
#[test]
fn quick_acks_are_for_what_arrives() {
    let mut p = Peer::server();
    p.exchange("P. 1:11(10) ack 1 win 20000", ". 1:1(0) ack 11 win 19990");
    p.wait_ms(50);
    p.write(18_000);
    for una in [1001, 5001, 11_001, 18_001] {
        p.drain();
        p.inject(&format!(". 11:11(0) ack {una} win 20000"));
    }
    p.exchange("P. 11:21(10) ack 18001 win 20000", ". 18001:18001(0) ack 21 win 19980");
}
