//! Loss recovery without SACK: fast retransmit (RFC 5681 3.2), NewReno (RFC 6582), limited transmit (RFC 3042), and what is
//! sent meanwhile (RFC 6937).

use tcp::Config;

use crate::peer::{Peer, plain};

/// A flight of `n` bytes. The peer lets 25,000 through, so that only the congestion window limits; numbers in this file count
/// from the flight's first byte, a segment after the connection's.
fn flight(n: u32) -> Peer {
    let config = Config { window_scaling: true, ..plain() };
    let mut p = Peer::server_offered(config, "mss 1000,wscale 0");
    p.write(1000);
    p.drain();
    p.wait_ms(20);
    p.inject(&ack(1));
    p.quiet();
    p.write(n as usize);
    p
}

const BASE: u32 = 1000;

fn ack(n: u32) -> String {
    format!(". 1:1(0) ack {} win 25000", BASE + n)
}

fn data(psh: &str, from: u32, to: u32) -> String {
    format!("{psh}. {}:{}({}) ack 1 win 20000", BASE + from, BASE + to, to - from)
}

fn seg(n: u32) -> String {
    data("", n, n + 1000)
}

fn all(range: core::ops::Range<u32>) -> String {
    range.map(|i| seg(1 + i * 1000)).collect::<Vec<_>>().join("\n")
}

/// Duplicates `n` times; what is sent for each.
fn dups(p: &mut Peer, una: u32, n: usize) -> Vec<Vec<String>> {
    (0..n)
        .map(|_| {
            p.inject(&ack(una));
            p.drain()
        })
        .collect()
}

/// The first flight of a connection is recovered as any other.
#[test]
fn the_first_flight_is_recovered_as_well() {
    let mut p = Peer::server();
    p.write(4000);
    p.expect_data(1, 4001, true);
    for _ in 0..2 {
        p.exchange(". 1:1(0) ack 1 win 20000", "");
    }
    p.exchange(". 1:1(0) ack 1 win 20000", ". 1:1001(1000) ack 1 win 20000");
    assert_eq!(p.counters.fast_retransmits, 1);
}

/// RFC 5681 3.2: the third duplicate sends the first segment again and halves the window.
#[test]
fn three_duplicates_start_fast_retransmit() {
    let mut p = flight(10_000);
    assert_eq!(p.drain().len(), 10);
    assert_eq!(p.cwnd(), (10, 0x7fff_ffff));
    p.wait_ms(20);
    p.exchange(&ack(1), "");
    assert_eq!((p.info().sacked, p.info().ca_state), (1, 1));
    p.exchange(&ack(1), "");
    assert_eq!((p.info().sacked, p.info().ca_state, p.cwnd().0), (2, 1, 10));
    p.inject(&ack(1));
    assert!(p.wants_data());
    p.expect(&seg(1));
    let i = p.info();
    assert_eq!((i.sacked, i.lost, i.retrans, i.unacked, i.ca_state), (3, 1, 1, 10, 3));
    assert_eq!((p.cwnd(), p.counters.fast_retransmits, p.counters.recoveries), ((7, 5), 1, 1));
    assert_eq!((p.counters.dup_acks, i.total_retrans, i.bytes_retrans), (3, 1, 1000));
}

/// RFC 6937 3.1: while more is in flight than the threshold, one segment goes for every two delivered; then one for one.
#[test]
fn the_window_falls_in_proportion() {
    let mut p = flight(10_000);
    p.drain();
    assert_eq!(dups(&mut p, 1, 3), [vec![], vec![], vec![seg(1)]]);
    p.write(10_000);
    let sent: Vec<usize> = dups(&mut p, 1, 6).iter().map(Vec::len).collect();
    assert_eq!(sent, [0, 0, 1, 1, 1, 1]);
}

/// RFC 3042: the first two duplicates let a new segment out each, the window unchanged.
#[test]
fn limited_transmit() {
    let mut p = flight(40_000);
    p.expect(&all(0..10));
    p.exchange(&ack(1), &seg(10_001));
    p.exchange(&ack(1), &seg(11_001));
    assert_eq!((p.info().sacked, p.cwnd().0), (2, 10));
    p.exchange(&ack(1), &seg(1));
    // RFC 5681 3.2 step 2: what it sent does not count into the threshold.
    assert_eq!(p.cwnd().1, 5);
    // Not when the peer's window does not allow it.
    let mut p = flight(40_000);
    p.inject(&format!("P. 1:2(1) ack {} win 10999", BASE + 1));
    p.inject(&format!(". 2:2(0) ack {} win 10999", BASE + 1));
    assert_eq!(p.drain().len(), 10);
    p.exchange(&format!(". 2:2(0) ack {} win 10999", BASE + 1), "");
    p.exchange(&format!(". 2:2(0) ack {} win 11000", BASE + 1), ". 11001:12001(1000) ack 2 win 19999");
    p.exchange(&format!(". 2:2(0) ack {} win 11000", BASE + 1), "");
    assert_eq!(p.info().sacked, 2);
}

/// RFC 5681 2: what counts as a duplicate. A window that shrinks in place is not news (see `window`).
#[test]
fn only_real_duplicates_count() {
    let mut p = flight(5000);
    p.drain();
    for text in [
        ". 1:1(0) ack 1001 win 25001",
        "P. 1:2(1) ack 1001 win 25001",
        ". 2:2(0) ack 1001 win 25000",
        "F. 2:2(0) ack 1001 win 25000",
    ] {
        p.inject(text);
        assert_eq!((p.counters.dup_acks, p.info().sacked), (0, 0), "{text}");
    }
    p.inject(". 3:3(0) ack 1001 win 25000");
    assert_eq!((p.counters.dup_acks, p.info().sacked), (0, 0), "the window's place moved");
    p.inject(". 3:3(0) ack 1001 win 25000");
    assert_eq!((p.counters.dup_acks, p.info().sacked), (1, 1));
    p.drain();
    // Nothing outstanding, nothing duplicated.
    let mut p = Peer::server();
    p.inject(". 1:1(0) ack 1 win 20000");
    assert_eq!((p.counters.dup_acks, p.info().sacked), (0, 0));
    // An older one is none.
    let mut p = flight(5000);
    p.drain();
    p.inject(&ack(2001));
    p.inject(&ack(1001));
    assert_eq!(p.counters.dup_acks, 0);
    // No more than what may have been delivered: one is the hole.
    let mut p = flight(2000);
    p.drain();
    for n in 1..=5 {
        p.exchange(&ack(1), "");
        assert_eq!((p.info().sacked, p.counters.dup_acks), (1, n));
    }
}

/// New data acknowledged ends the count.
#[test]
fn duplicates_count_in_a_row() {
    let mut p = flight(8000);
    p.drain();
    p.inject(&ack(1));
    p.inject(&ack(1));
    assert_eq!(p.info().sacked, 2);
    p.inject(&ack(1001));
    assert_eq!((p.info().sacked, p.info().ca_state), (0, 0));
    p.inject(&ack(1001));
    p.inject(&ack(1001));
    p.quiet();
    assert_eq!(p.counters.fast_retransmits, 0);
    p.exchange(&ack(1001), &seg(1001));
}

/// RFC 6582 3.2: a partial acknowledgment marks the next hole; it goes as the window allows.
#[test]
fn partial_acknowledgments_fill_hole_after_hole() {
    let mut p = flight(10_000);
    assert_eq!(p.drain().len(), 10);
    p.wait_ms(20);
    dups(&mut p, 1, 2);
    p.exchange(&ack(1), &seg(1));
    p.inject(&ack(3001));
    let i = p.info();
    assert_eq!((i.lost, i.sacked, i.unacked, i.retrans, i.ca_state), (1, 1, 7, 0, 3));
    p.quiet();
    p.exchange(&ack(3001), &seg(3001));
    assert_eq!(p.cwnd(), (5, 5));
    p.exchange(&ack(5001), &seg(5001));
    assert_eq!(p.counters.fast_retransmits, 3);
    // RFC 6582 3.2: all that was outstanding is acknowledged; the state stays until something newer is.
    p.exchange(&ack(10_001), "");
    assert_eq!((p.cwnd(), p.info().ca_state), ((5, 5), 3));
    p.no_timer();
    p.write(1000);
    p.drain();
    p.inject(&ack(11_001));
    assert_eq!((p.cwnd(), p.info().ca_state), ((5, 5), 0));
}

/// RFC 6582 4: duplicates of what a finished recovery covered start no new one.
#[test]
fn stale_duplicates_do_not_retransmit() {
    let mut p = flight(10_000);
    p.drain();
    dups(&mut p, 1, 3);
    p.exchange(&ack(10_001), "");
    p.write(5000);
    assert_eq!(p.drain().len(), 5);
    assert!(dups(&mut p, 10_001, 3).iter().all(Vec::is_empty));
    assert_eq!((p.counters.fast_retransmits, p.counters.recoveries), (1, 1));
    // One segment further on they count.
    p.inject(&ack(11_001));
    assert_eq!(p.info().ca_state, 0);
    p.write(5000);
    p.drain();
    let again = dups(&mut p, 11_001, 3);
    assert_eq!(again[2], [seg(11_001)]);
    assert_eq!((p.counters.fast_retransmits, p.info().ca_state), (2, 3));
}

/// After a timeout duplicates are expected: no fast retransmit until everything from before is acknowledged.
#[test]
fn duplicates_after_a_timeout_do_nothing() {
    let mut p = flight(10_000);
    p.drain();
    p.timer_ms(220);
    p.expect(&seg(1));
    assert_eq!((p.cwnd(), p.info().ca_state, p.info().lost), ((1, 5), 4, 10));
    for _ in 0..5 {
        p.exchange(&ack(1), "");
    }
    assert_eq!((p.cwnd(), p.counters.fast_retransmits), ((1, 5), 0));
    p.exchange(&ack(10_001), "");
    assert_eq!(p.info().ca_state, 4);
    p.write(1000);
    p.drain();
    p.inject(&ack(11_001));
    assert_eq!(p.info().ca_state, 0);
}

/// RFC 5681 3.1, equation 4: half, two segments at least; set once for one loss.
#[test]
fn timeouts_halve_once() {
    let mut p = flight(10_000);
    p.drain();
    p.timer_ms(220);
    p.drain();
    assert_eq!(p.cwnd(), (1, 5));
    p.timer_ms(440);
    p.drain();
    assert_eq!(p.cwnd(), (1, 5));
    let mut p = Peer::server_with(Config { initial_window: 3, ..plain() });
    p.write(3000);
    p.drain();
    p.timer_ms(220);
    p.drain();
    assert_eq!(p.cwnd(), (1, 2));
}

/// A retransmission that is lost too is found by the timer.
#[test]
fn a_lost_retransmission_times_out() {
    let mut p = flight(10_000);
    p.drain();
    dups(&mut p, 1, 3);
    p.timer_ms(220);
    p.expect(&seg(1));
    // RFC 5681 3.1: one loss, one reduction.
    assert_eq!((p.info().ca_state, p.cwnd(), p.counters.lost_retransmits), (4, (1, 5), 1));
    assert_eq!((p.counters.fast_retransmits, p.counters.timeout_retransmits), (1, 1));
}

/// Of a record that went out as many segments only the first is taken for lost.
#[test]
fn the_first_segment_of_a_large_record_is_lost() {
    let mut p = flight(0);
    (p.segments, p.config.min_burst) = (10, 64);
    p.write(10_000);
    p.expect(&[data("P", 1, 5001), data("P", 5001, 10_001)].join("\n"));
    assert_eq!(p.info().unacked, 10);
    for _ in 0..2 {
        p.exchange(&ack(1), "");
    }
    p.exchange(&ack(1), &seg(1));
    assert_eq!((p.info().lost, p.info().retrans, p.info().unacked), (1, 1, 10));
    p.inject(&ack(1001));
    p.exchange(&ack(1001), &seg(1001));
    p.exchange(&ack(10_001), "");
    assert_eq!(p.info().unacked, 0);
}

/// RFC 6582: each segment counts as delivered once, by a duplicate or by the acknowledgment.
#[test]
fn duplicates_and_their_acknowledgment_count_once() {
    let mut p = flight(5000);
    p.drain();
    let before = p.info().delivered;
    for n in 1..=2 {
        p.inject(&ack(1));
        assert_eq!(p.info().delivered - before, n);
    }
    p.inject(&ack(3001));
    assert_eq!((p.info().delivered - before, p.info().sacked), (3, 0));
}

/// RFC 6937 3.1: what delivers nothing changes nothing.
#[test]
fn the_peers_data_does_not_move_a_reduction() {
    let mut p = flight(20_000);
    p.drain();
    dups(&mut p, 1, 3);
    let cwnd = p.cwnd();
    p.exchange(&format!("P. 1:2(1) ack {} win 25000", BASE + 1), ". 13001:13001(0) ack 2 win 19999");
    assert_eq!(p.cwnd(), cwnd);
}

/// RFC 5681 3.1: a timeout after progress is another loss, and halves again.
#[test]
fn a_timeout_after_progress_halves_again() {
    let mut p = flight(10_000);
    p.drain();
    p.timer_ms(220);
    p.drain();
    p.inject(&ack(1001));
    p.drain();
    p.inject(&ack(3001));
    assert_eq!((p.drain().len(), p.cwnd(), p.info().ca_state), (4, (4, 5), 4));
    let us = p.deadline().micros() - p.now.micros();
    p.timer(us);
    assert_eq!((p.cwnd(), p.info().ca_state), ((1, 2), 4));
    p.drain();
}

/// RFC 6582 3.2 step 3: a partial acknowledgment starts the retransmission timer anew, here each of them.
#[test]
fn partial_acknowledgments_restart_the_timer() {
    let mut p = flight(10_000);
    p.drain();
    dups(&mut p, 1, 3);
    for una in [3001, 5001] {
        p.now = p.now.plus_micros(50_000);
        p.inject(&ack(una));
        p.drain();
        let rto = p.info().rto_us;
        assert_eq!(p.deadline(), p.now.plus_micros(rto));
    }
}

/// RFC 6582 3.2 with stretch ACKs: one that covers several segments deflates by all of them and grows the window by as many.
#[test]
fn stretch_acknowledgments_count_what_they_cover() {
    let mut p = flight(10_000);
    p.drain();
    dups(&mut p, 1, 3);
    p.inject(&ack(6001));
    assert_eq!((p.info().unacked, p.info().sacked, p.info().ca_state), (4, 0, 3));
    let mut p = flight(20_000);
    p.drain();
    let cwnd = p.cwnd().0;
    p.inject(&ack(5001));
    assert_eq!(p.cwnd().0, cwnd + 5);
    p.drain();
}
