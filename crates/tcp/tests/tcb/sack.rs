//! Selective acknowledgment: what we report (RFC 2018 3, 4; RFC 2883 4) and what we make of reports (RFC 2018 5, RFC 6675).

use tcp::Config;

use crate::peer::{Peer, plain};

pub fn sacking() -> Config {
    Config { sack: true, tail_loss_probe: false, ..plain() }
}

fn receiver() -> Peer {
    let p = Peer::server_offered(sacking(), "mss 1000,sackOK");
    assert_eq!(p.info().options, 2);
    p
}

fn data(from: u32, to: u32) -> String {
    format!("P. {from}:{to}({}) ack 1 win 20000", to - from)
}

/// RFC 2018 2: the option stands on SYNs, and on a SYN/ACK only in answer.
#[test]
fn both_syns_must_permit_it() {
    let open = crate::peer::open();
    let mut p = Peer::accepting(sacking(), open, "S 0:0(0) win 20000 <mss 1000,sackOK>");
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000,sackOK>");
    let mut p = Peer::accepting(sacking(), open, "S 0:0(0) win 20000 <mss 1000>");
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    p.exchange(". 1:1(0) ack 1 win 20000", "");
    p.exchange(&data(1001, 2001), ". 1:1(0) ack 1 win 20000");
    assert_eq!(p.info().options, 0);
    let mut p = Peer::accepting(plain(), open, "S 0:0(0) win 20000 <mss 1000,sackOK>");
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    let mut p = Peer::connecting(sacking(), open);
    p.expect("S 0:0(0) win 20000 <mss 1000,sackOK>");
    p.exchange("S. 0:0(0) ack 1 win 20000 <mss 1000>", ". 1:1(0) ack 1 win 20000");
    p.exchange(&data(1001, 2001), ". 1:1(0) ack 1 win 20000");
    let mut p = Peer::connecting(sacking(), open);
    p.drain();
    p.exchange("S. 0:0(0) ack 1 win 20000 <mss 1000,sackOK>", ". 1:1(0) ack 1 win 20000");
    p.exchange(&data(1001, 2001), ". 1:1(0) ack 1 win 20000 <sack 1001:2001>");
}

/// RFC 2018 4: the block that grew last comes first, then those reported before; four at most.
#[test]
fn the_latest_block_comes_first() {
    let mut p = receiver();
    for (from, blocks) in [
        (1001, "1001:2001"),
        (3001, "3001:4001 1001:2001"),
        (5001, "5001:6001 3001:4001 1001:2001"),
        (7001, "7001:8001 5001:6001 3001:4001 1001:2001"),
        (9001, "9001:10001 7001:8001 5001:6001 3001:4001"),
    ] {
        p.exchange(&data(from, from + 1000), &format!(". 1:1(0) ack 1 win 20000 <sack {blocks}>"));
    }
    // A block that grows comes to the front, at either end.
    p.exchange(&data(2001, 2501), ". 1:1(0) ack 1 win 20000 <sack 1001:2501 9001:10001 7001:8001 5001:6001>");
    p.exchange(&data(4501, 5001), ". 1:1(0) ack 1 win 20000 <sack 4501:6001 1001:2501 9001:10001 7001:8001>");
    // Two that join are one.
    p.exchange(&data(6001, 7001), ". 1:1(0) ack 1 win 20000 <sack 4501:8001 1001:2501 9001:10001 3001:4001>");
    // What is acknowledged cumulatively is no block any more.
    p.exchange(&data(1, 1001), ". 1:1(0) ack 2501 win 17500 <sack 4501:8001 9001:10001 3001:4001>");
    p.exchange(&data(2501, 4501), ". 1:1(0) ack 8001 win 12000 <sack 3001:4001 9001:10001>");
    p.exchange(&data(8001, 9001), ". 1:1(0) ack 10001 win 10000");
    assert_eq!(p.read(), 10_000);
    p.drain();
}

/// RFC 2018 4: as many blocks as fit are reported, those pushed out earlier included.
#[test]
fn blocks_pushed_out_come_back() {
    let mut p = receiver();
    for from in [1001, 3001, 5001, 7001, 9001] {
        p.inject(&data(from, from + 1000));
        p.drain();
    }
    p.exchange(&data(8001, 9001), ". 1:1(0) ack 1 win 20000 <sack 7001:10001 5001:6001 3001:4001 1001:2001>");
}

/// RFC 2018 3: with timestamps there is room for three.
#[test]
fn three_blocks_beside_timestamps() {
    let mut p = Peer::server_offered(Config { timestamps: true, ..sacking() }, "mss 1000,sackOK,TS val 100 ecr 0");
    for from in [1001, 3001, 5001, 7001] {
        p.inject(&format!("P. {from}:{}(1000) ack 1 win 20000 <TS val 100 ecr 1020>", from + 1000));
        p.drain();
    }
    // What is written is cut when the header is (`wire`): here all are listed, the size of data shows what counts.
    assert_eq!(p.segment_size(), 988 - 28);
}

/// RFC 9293 3.7.1 (MUST-16): blocks on data take their room from it.
#[test]
fn blocks_make_segments_smaller() {
    let mut p = receiver();
    p.inject(&data(1001, 2001));
    p.write(2000);
    p.expect(
        ". 1:989(988) ack 1 win 20000 <sack 1001:2001>
         . 989:1977(988) ack 1 win 20000 <sack 1001:2001>
         P. 1977:2001(24) ack 1 win 20000 <sack 1001:2001>",
    );
    for (from, size) in [(3001, 980), (5001, 972), (7001, 964), (9001, 964)] {
        p.inject(&data(from, from + 1000));
        assert_eq!(p.segment_size(), size);
    }
    p.drain();
    p.inject(&data(1, 1001));
    p.inject(&data(2001, 3001));
    p.drain();
    p.inject(&data(4001, 5001));
    p.inject(&data(6001, 7001));
    p.inject(&data(8001, 9001));
    assert_eq!(p.segment_size(), 1000);
    p.drain();
}

/// RFC 2883 4.3: a segment that fills a gap and goes on over what lies above it.
#[test]
fn what_fills_a_gap_may_bring_duplicates() {
    let mut p = receiver();
    p.exchange(&data(1001, 1201), ". 1:1(0) ack 1 win 20000 <sack 1001:1201>");
    p.exchange(&data(1401, 1501), ". 1:1(0) ack 1 win 20000 <sack 1401:1501 1001:1201>");
    p.exchange(&data(801, 901), ". 1:1(0) ack 1 win 20000 <sack 801:901 1401:1501 1001:1201>");
    p.exchange(&data(1, 851), ". 1:1(0) ack 901 win 19100 <sack 801:851 1401:1501 1001:1201>");
    p.exchange(&data(901, 1301), ". 1:1(0) ack 1301 win 18700 <sack 1001:1201 1401:1501>");
    // The left part first, where both ends are known.
    p.exchange(&data(1201, 1451), ". 1:1(0) ack 1501 win 18500 <sack 1201:1301>");
    assert_eq!(p.read(), 1500);
    p.drain();
}

/// RFC 2883 4.1: what came again is reported once, before the other blocks.
#[test]
fn duplicates_are_reported_once() {
    let mut p = receiver();
    p.exchange(&data(1, 1001), ". 1:1(0) ack 1001 win 19000");
    p.exchange(&data(1, 1001), ". 1:1(0) ack 1001 win 19000 <sack 1:1001>");
    assert_eq!(p.counters.dsacks_out, 1);
    p.exchange(&data(2001, 3001), ". 1:1(0) ack 1001 win 19000 <sack 2001:3001>");
    p.exchange(&data(501, 1001), ". 1:1(0) ack 1001 win 19000 <sack 501:1001 2001:3001>");
    // Part of it new.
    p.exchange(&data(501, 1501), ". 1:1(0) ack 1501 win 18500 <sack 501:1001 2001:3001>");
    // RFC 2883 4.2: above a hole, with the block that holds it.
    p.exchange(&data(2001, 3001), ". 1:1(0) ack 1501 win 18500 <sack 2001:3001 2001:3001>");
    p.exchange(&data(2501, 3501), ". 1:1(0) ack 1501 win 18500 <sack 2501:3001 2001:3501>");
    p.exchange(&data(1501, 2001), ". 1:1(0) ack 3501 win 16500");
    assert_eq!(p.counters.dsacks_out, 5);
    // On data as well.
    p.inject(&data(3001, 3501));
    p.write(10);
    p.expect("P. 1:11(10) ack 3501 win 16500 <sack 3001:3501>");
    // An ACK without text is no duplicate.
    p.exchange(". 3500:3500(0) ack 1 win 20000", ". 11:11(0) ack 3501 win 16500");
}

fn sender(config: Config, bytes: usize) -> Peer {
    let mut p = Peer::server_offered(config, "mss 1000,sackOK");
    p.write(bytes);
    let n = p.drain().len();
    assert_eq!(n, bytes.div_ceil(1000).min(10));
    p.wait_ms(20);
    p
}

fn sack(ack: u32, blocks: &str) -> String {
    format!(". 1:1(0) ack {ack} win 20000 <sack {blocks}>")
}

fn seg(n: u32) -> String {
    format!(". {n}:{}(1000) ack 1 win 20000", n + 1000)
}

/// sacked, lost, retransmitted and not acknowledged, of what is out.
fn board(p: &Peer) -> (u64, u64, u64, u64) {
    let i = p.info();
    (i.sacked, i.lost, i.retrans, i.unacked)
}

/// RFC 6675 4: segments are counted by blocks, repeated ones once; part of a segment is nothing.
#[test]
fn blocks_mark_segments() {
    let mut p = sender(sacking(), 10_000);
    p.inject(&sack(1, "9001:10001"));
    assert_eq!(board(&p), (1, 0, 0, 10));
    p.inject(&sack(1, "9001:10001"));
    assert_eq!(board(&p), (1, 0, 0, 10));
    p.inject(&sack(1, "7501:8501 9001:10001"));
    assert_eq!(board(&p), (1, 0, 0, 10));
    p.inject(&sack(1, "7001:10001"));
    assert_eq!((p.info().sacked, p.info().delivered), (3, 4));
    p.drain();
    // The cumulative acknowledgment takes them off.
    p.inject(". 1:1(0) ack 8001 win 20000");
    assert_eq!(board(&p).0, 2);
    p.inject(". 1:1(0) ack 10001 win 20000");
    assert_eq!((board(&p), p.info().delivered), ((0, 0, 0, 0), 11));
    p.no_timer();
}

/// RFC 2018 8, RFC 6675: blocks that cannot be are dropped and counted.
#[test]
fn impossible_blocks_are_dropped() {
    let mut p = sender(sacking(), 10_000);
    for (blocks, discarded) in
        [("10001:10002", 1), ("9001:10002", 1), ("3001:3001", 1), ("3001:2001", 1), ("2001:3001 5001:4001", 1)]
    {
        let before = p.counters.sack_discarded;
        p.inject(&sack(1, blocks));
        assert_eq!(p.counters.sack_discarded - before, discarded, "{blocks}");
    }
    assert_eq!(p.info().sacked, 1);
    // Below what is acknowledged it looks like a duplicate's report; none was sent again, so it is dropped.
    p.inject(". 1:1(0) ack 1001 win 20000");
    let before = p.counters.sack_discarded;
    p.inject(&sack(1001, "1:1001"));
    assert_eq!((p.counters.dsacks_in, p.counters.sack_discarded - before), (0, 1));
    p.drain();
}

/// RFC 6675 5: three segments beyond a hole and it is lost: sent again at once, before new data.
#[test]
fn three_segments_beyond_a_hole() {
    let mut p = sender(sacking(), 12_000);
    p.exchange(&sack(1, "1001:2001"), &seg(10_001));
    p.exchange(&sack(1, "1001:3001"), &format!("P{}", seg(11_001)));
    assert_eq!((board(&p), p.info().ca_state), ((2, 0, 0, 12), 1));
    p.exchange(&sack(1, "1001:4001"), &seg(1));
    assert_eq!((board(&p), p.info().ca_state), ((3, 1, 1, 12), 3));
    assert_eq!((p.cwnd().1, p.counters.fast_retransmits), (5, 1));
    // What is SACKed is not sent again.
    p.exchange(&sack(1, "1001:8001"), "");
    p.exchange(". 1:1(0) ack 8001 win 20000", "");
    assert_eq!(board(&p), (0, 0, 0, 4));
    p.inject(". 1:1(0) ack 12001 win 20000");
    assert_eq!((p.info().ca_state, p.cwnd()), (0, (5, 5)));
    p.no_timer();
}

/// Several holes are all lost when something later is delivered; they go in order, as the window allows.
#[test]
fn holes_go_in_order() {
    let mut p = sender(sacking(), 10_000);
    p.inject(&sack(1, "2001:3001 4001:5001 6001:7001"));
    assert_eq!((board(&p), p.info().ca_state), ((3, 4, 0, 10), 3));
    let mut sent = p.drain();
    p.inject(&sack(1, "2001:3001 4001:5001 6001:8001"));
    sent.extend(p.drain());
    p.inject(&sack(1, "2001:3001 4001:5001 6001:10001"));
    sent.extend(p.drain());
    assert_eq!(sent, [seg(1), seg(1001), seg(3001), seg(5001)]);
    assert_eq!(board(&p), (6, 4, 4, 10));
    // A retransmission that is delivered is no longer lost.
    p.inject(&sack(1, "1001:3001 4001:5001 6001:10001"));
    assert_eq!(board(&p), (7, 3, 3, 10));
    p.inject(". 1:1(0) ack 10001 win 20000");
    assert_eq!(board(&p), (0, 0, 0, 0));
}

/// The block of one segment in the middle of a large one that the port cut: it is split at segment edges.
#[test]
fn large_records_are_split() {
    let mut p = Peer::server_offered(Config { min_burst: 64, ..sacking() }, "mss 1000,sackOK");
    p.segments = 10;
    p.write(10_000);
    // At most half the window goes as one (Linux).
    p.expect(
        "P. 1:5001(5000) ack 1 win 20000
         P. 5001:10001(5000) ack 1 win 20000",
    );
    assert_eq!(p.info().unacked, 10);
    p.wait_ms(20);
    p.segments = 1;
    p.inject(&sack(1, "3001:4001 6001:8001"));
    assert_eq!(board(&p), (3, 5, 0, 10));
    assert_eq!(p.drain()[0], seg(1));
    p.inject(&sack(2001, "3001:4001 6001:8001"));
    assert_eq!((board(&p).0, board(&p).3), (3, 8));
    p.inject(". 1:1(0) ack 9501 win 20000");
    assert_eq!(p.info().unacked, 1);
    p.inject(". 1:1(0) ack 10001 win 20000");
    assert_eq!(p.info().unacked, 0);
}

/// RFC 2018 8: after a timeout nothing SACKed is sent again, unless the peer shows that it dropped it.
#[test]
fn a_timeout_keeps_what_is_sacked() {
    let mut p = sender(sacking(), 5000);
    p.inject(&sack(1, "1001:2001 4001:5001"));
    p.drain();
    p.timer_ms(7);
    p.expect(&seg(1));
    // The RTO runs from the retransmission on.
    p.timer_ms(220);
    assert_eq!((p.counters.timeouts, p.info().sacked), (1, 2));
    p.expect(&seg(1));
    p.exchange(". 1:1(0) ack 2001 win 20000 <sack 4001:5001>", &[seg(2001), seg(3001)].join("\n"));
}

/// RFC 2018 8: an acknowledgment that ends at a SACKed segment says that the peer forgot it.
#[test]
fn a_peer_that_forgets() {
    let mut p = sender(sacking(), 5000);
    p.inject(&sack(1, "1001:2001"));
    p.inject(". 1:1(0) ack 1001 win 20000");
    p.drain();
    assert_eq!(p.info().sacked, 1);
    // A little patience, then all is sent again.
    p.timer_ms(10);
    assert_eq!((p.counters.reneged, p.info().sacked, p.info().lost), (1, 0, 4));
    p.expect(&seg(1001));
}

/// An old ACK moves nothing, its blocks may be news.
#[test]
fn blocks_of_an_old_ack() {
    let mut p = sender(sacking(), 10_000);
    p.inject(". 1:1(0) ack 2001 win 20000");
    p.inject(&sack(1001, "5001:6001"));
    assert_eq!((board(&p), p.counters.dup_acks), ((1, 0, 0, 8), 0));
    p.drain();
}

/// RFC 2018 8: what was SACKed may be dropped where memory is short; it is then no block any more, and taken again.
#[test]
fn what_is_out_of_order_may_be_shed() {
    let mut p = receiver();
    assert_eq!(p.shed(), 0);
    p.inject(&data(1001, 2001));
    p.inject(&data(3001, 3501));
    p.drain();
    assert_eq!((p.shed(), p.shed()), (1500, 0));
    p.exchange(&data(1, 1001), ". 1:1(0) ack 1001 win 19000");
    p.exchange(&data(3001, 3501), ". 1:1(0) ack 1001 win 19000 <sack 3001:3501>");
    p.inject(&data(1001, 3001));
    assert_eq!(p.read(), 3500);
    p.drain();
}

/// Blocks of one acknowledgment are news at once, in whatever order they stand: no reordering.
#[test]
fn blocks_of_one_ack_are_no_reordering() {
    let mut p = sender(sacking(), 10_000);
    p.inject(&sack(1, "9001:10001 5001:6001 2001:3001"));
    assert_eq!((p.info().sacked, p.info().reordering, p.info().reord_seen), (3, 3, 0));
    p.drain();
    // A later one below them is.
    p.inject(&sack(1, "3001:4001 9001:10001 5001:6001 2001:3001"));
    assert_eq!(p.info().reordering, 3, "it was sent again");
    let mut p = sender(sacking(), 10_000);
    p.inject(&sack(1, "8001:9001"));
    p.inject(&sack(1, "2001:3001 8001:9001"));
    assert_eq!((p.info().reordering, p.info().reord_seen), (7, 1));
    p.drain();
}

/// RFC 6675 4: a lost segment that arrives is in no count but that of the SACKed ones.
#[test]
fn what_arrives_leaves_the_other_counts() {
    let mut p = sender(sacking(), 10_000);
    p.wait_ms(20);
    p.inject(&sack(1, "3001:10001"));
    assert_eq!(p.drain(), [seg(1), seg(1001), seg(2001)]);
    p.wait_ms(1);
    p.inject(&sack(1, "1001:2001 3001:10001"));
    assert_eq!((p.info().sacked, p.info().lost, p.info().retrans), (8, 2, 2));
    p.inject(&sack(2001, "3001:10001"));
    assert_eq!((p.info().sacked, p.info().lost, p.info().retrans), (7, 1, 1));
    p.drain();
}

/// RFC 9293 3.8.6: a retransmission does not go beyond the peer's window, unless it is the first segment.
#[test]
fn retransmissions_stay_in_the_window() {
    let mut p = sender(sacking(), 5000);
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 1000 <sack 2001:5001>");
    p.expect(&seg(1));
    p.inject(". 1:1(0) ack 1 win 2000 <sack 2001:5001>");
    p.expect(&seg(1001));
}

/// RFC 6937 3.1, slow-start reduction bound: below the threshold each acknowledgment that makes progress, with nothing newly
/// lost, lets out one segment more than it delivers.
#[test]
fn after_heavy_loss_the_flight_grows_back() {
    let mut p = Peer::server_offered(Config { initial_window: 20, ..sacking() }, "mss 1000,sackOK");
    p.write(20_000);
    assert_eq!(p.drain().len(), 20);
    p.wait_ms(20);
    p.inject(&sack(1, "17001:20001"));
    assert_eq!((p.info().lost, p.cwnd().1), (17, 10));
    assert_eq!(p.drain(), [seg(1), seg(1001), seg(2001)]);
    p.wait_ms(20);
    p.exchange(&sack(1001, "17001:20001"), &[seg(3001), seg(4001)].join("\n"));
    p.exchange(&sack(2001, "17001:20001"), &[seg(5001), seg(6001)].join("\n"));
}

/// As Linux: on a path that reorders much, SACKed data is progress for the window too.
#[test]
fn sacked_data_grows_the_window_where_there_is_reordering() {
    for reorders in [false, true] {
        let mut p = sender(sacking(), 5000);
        p.wait_ms(20);
        if reorders {
            p.exchange(&sack(1, "4001:5001"), "");
        }
        p.exchange(". 1:1(0) ack 5001 win 20000", "");
        assert_eq!(p.info().reordering, if reorders { 5 } else { 3 });
        p.write(10_000);
        assert_eq!(p.drain().len(), 10);
        p.wait_ms(20);
        let cwnd = p.cwnd().0;
        p.inject(&sack(5001, "6001:8001"));
        assert_eq!((p.info().ca_state, p.cwnd().0 - cwnd), (1, 2 * reorders as u64));
        p.drain();
    }
}

/// RFC 2883 4.2: of a segment that repeats several runs the first part is reported.
#[test]
fn the_first_repeated_part_is_reported() {
    let mut p = receiver();
    p.inject(&data(1001, 2001));
    p.inject(&data(3001, 4001));
    p.drain();
    p.exchange(&data(1001, 4001), ". 1:1(0) ack 1 win 20000 <sack 1001:2001 1001:4001>");
    p.inject(&data(1, 1001));
    assert_eq!(p.read(), 4000);
    p.drain();
}

/// Blocks that were swallowed by a larger one are no blocks any more; those that are left keep their order.
#[test]
fn swallowed_blocks_are_forgotten() {
    let mut p = receiver();
    for from in [9001, 7001, 1001, 3001, 5001] {
        p.inject(&data(from, from + 1000));
    }
    p.drain();
    p.exchange(&data(1501, 3501), ". 1:1(0) ack 1 win 20000 <sack 1501:2001 1001:4001 5001:6001 7001:8001>");
    p.exchange(&data(4001, 5001), ". 1:1(0) ack 1 win 20000 <sack 1001:6001 7001:8001 9001:10001>");
    p.inject(&data(1, 1001));
    assert_eq!(p.read(), 6000);
    p.drain();
}

/// RFC 2018 8: what a peer forgot it may report again.
#[test]
fn what_was_forgotten_may_be_reported_again() {
    let mut p = sender(sacking(), 5000);
    p.inject(&sack(1, "1001:2001 3001:4001"));
    p.inject(&sack(1001, "3001:4001"));
    p.drain();
    p.timer_ms(10);
    assert_eq!((p.counters.reneged, p.info().sacked), (1, 0));
    p.drain();
    p.inject(&sack(1001, "3001:4001"));
    assert_eq!((p.info().sacked, p.info().lost), (1, 3));
    p.drain();
}

/// The patience with a peer that forgets is half a round trip, where that is more than 10 ms.
#[test]
fn patience_with_a_peer_that_forgets() {
    let mut p = Peer::accepting(sacking(), crate::peer::open(), "S 0:0(0) win 20000 <mss 1000,sackOK>");
    p.drain();
    p.wait_ms(100);
    p.inject(". 1:1(0) ack 1 win 20000");
    p.write(5000);
    p.drain();
    p.wait_ms(100);
    p.inject(&sack(1, "1001:2001"));
    p.inject(". 1:1(0) ack 1001 win 20000");
    p.drain();
    p.timer_ms(50);
    assert_eq!(p.counters.reneged, 1);
    p.drain();
}
