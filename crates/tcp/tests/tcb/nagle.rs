//! When a partial segment may go: Nagle (RFC 9293 3.7.4, SHLD-7) as Minshall amended it, TCP_NODELAY, TCP_CORK, MSG_MORE.

use core::time::Duration;

use tcp::Config;

use crate::peer::{Peer, plain};

/// Only an earlier partial segment holds a partial one back.
#[test]
fn a_partial_segment_waits_for_an_earlier_partial_one() {
    let mut p = Peer::server();
    p.write(10);
    p.expect("P. 1:11(10) ack 1 win 20000");
    p.write(10);
    p.quiet();
    p.write(10);
    p.quiet();
    assert_eq!(p.info().notsent_bytes, 20);
    // What fills a segment goes.
    p.write(985);
    p.expect(". 11:1011(1000) ack 1 win 20000");
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 10 win 20000");
    p.quiet();
    p.exchange(". 1:1(0) ack 11 win 20000", "P. 1011:1016(5) ack 1 win 20000");
    // A full segment in flight does not hold a partial one back.
    let mut p = Peer::server();
    p.write(1000);
    p.expect("P. 1:1001(1000) ack 1 win 20000");
    p.write(10);
    p.expect("P. 1001:1011(10) ack 1 win 20000");
    p.write(10);
    p.quiet();
    p.exchange(". 1:1(0) ack 1001 win 20000", "");
    p.exchange(". 1:1(0) ack 1011 win 20000", "P. 1011:1021(10) ack 1 win 20000");
}

/// MUST-17.
#[test]
fn the_application_can_disable_it() {
    let mut p = Peer::server();
    p.write(10);
    p.drain();
    p.write(10);
    p.quiet();
    p.set_nodelay(true);
    assert!(p.wants_data());
    p.expect("P. 11:21(10) ack 1 win 20000");
    p.write(10);
    p.expect("P. 21:31(10) ack 1 win 20000");
    p.set_nodelay(false);
    p.write(10);
    p.quiet();
}

/// A FIN carries the rest with it.
#[test]
fn the_last_partial_segment_goes_with_the_fin() {
    let mut p = Peer::server();
    p.write(10);
    p.drain();
    p.write(10);
    p.quiet();
    p.shutdown();
    p.expect("FP. 11:21(10) ack 1 win 20000");
}

/// MSG_MORE holds a partial segment back until more is written, or for a limited time.
#[test]
fn more_to_come_waits() {
    let mut p = Peer::server();
    p.write_more(10);
    p.quiet();
    p.wait_ms(100);
    p.write(5);
    p.expect("P. 1:16(15) ack 1 win 20000");
    let mut p = Peer::server();
    p.write_more(1010);
    p.expect(". 1:1001(1000) ack 1 win 20000");
    p.timer_ms(200);
    p.expect("P. 1001:1011(10) ack 1 win 20000");
    // The limit is spent: what follows is held back anew, until an acknowledgment comes.
    p.write_more(10);
    p.quiet();
    p.exchange(". 1:1(0) ack 1011 win 20000", ". 1011:1021(10) ack 1 win 20000");
}

#[test]
fn a_cork_holds_back_until_it_is_pulled() {
    let mut p = Peer::server();
    p.cork(true);
    p.write(10);
    p.quiet();
    p.write(995);
    p.expect(". 1:1001(1000) ack 1 win 20000");
    p.inject(". 1:1(0) ack 1001 win 20000");
    p.cork(false);
    p.expect("P. 1001:1006(5) ack 1 win 20000");
    // TCP_NODELAY lets out what is held, once.
    p.cork(true);
    p.write(10);
    p.quiet();
    p.set_nodelay(true);
    p.expect("P. 1006:1016(10) ack 1 win 20000");
    p.write(10);
    p.quiet();
    // Shutting down pulls it.
    p.shutdown();
    p.expect("FP. 1016:1026(10) ack 1 win 20000");
}

/// A corked segment goes after the limit; the cork stays for the next one.
#[test]
fn the_limit_of_a_cork() {
    let mut p = Peer::server_with(Config { cork_limit: Duration::from_millis(70), ..plain() });
    p.cork(true);
    p.wait_ms(30);
    for i in 0..2 {
        p.write(10);
        p.quiet();
        p.wait_ms(20);
        // More does not lengthen it.
        p.write(5);
        p.quiet();
        p.timer_ms(50);
        p.expect(&format!("P. {}:{}(15) ack 1 win 20000", 1 + i * 15, 16 + i * 15));
        p.inject(&format!(". 1:1(0) ack {} win 20000", 16 + i * 15));
        p.quiet();
        p.no_timer();
    }
    // Pulled or filled in time, it does not run out later.
    p.write(10);
    p.quiet();
    p.cork(false);
    p.expect("P. 31:41(10) ack 1 win 20000");
    p.inject(". 1:1(0) ack 41 win 20000");
    p.no_timer();
    p.cork(true);
    p.write(10);
    p.quiet();
    p.write(990);
    p.expect("P. 41:1041(1000) ack 1 win 20000");
    p.inject(". 1:1(0) ack 1041 win 20000");
    p.no_timer();
}

/// Keepalive has a timer of its own.
#[test]
fn the_limit_of_a_cork_with_keepalive() {
    let mut p = Peer::server();
    p.keepalive(Some(true), None, None, None);
    p.write_more(10);
    p.quiet();
    p.timer_ms(200);
    p.expect("P. 1:11(10) ack 1 win 20000");
}

/// MUST-60: nothing written stays unsent without a timer or an acknowledgment to come; `drain` checks that everywhere.
#[test]
fn small_writes_all_arrive() {
    let mut p = Peer::server();
    let mut acked = 1;
    for _ in 0..50 {
        p.write(7);
        for line in p.drain() {
            let end: u32 = line.split([':', '(']).nth(1).unwrap().parse().unwrap();
            acked = acked.max(end);
        }
    }
    p.exchange(&format!(". 1:1(0) ack {acked} win 20000"), "P. 8:351(343) ack 1 win 20000");
}

/// Switching Nagle on lets nothing out that it holds; off lets it go at once.
#[test]
fn only_switching_it_off_lets_go() {
    let mut p = Peer::server();
    p.write(500);
    assert_eq!(p.drain().len(), 1);
    p.write(500);
    p.quiet();
    p.set_nodelay(false);
    p.quiet();
    p.set_nodelay(true);
    assert_eq!(p.drain().len(), 1);
}

/// Corking again does not begin the wait anew.
#[test]
fn a_second_cork_does_not_prolong_the_first() {
    let mut p = Peer::server();
    p.cork(true);
    p.write(500);
    p.quiet();
    p.wait_ms(150);
    p.cork(true);
    p.timer_ms(50);
    assert_eq!(p.drain().len(), 1);
}
