//! Which segments are taken (RFC 9293 3.4, 3.10.7.4), what is cut off, and what waits out of order.

use tcp::{Config, Notice, State};

use crate::peer::{Peer, plain};

const ACK: &str = ". 1:1(0) ack 1 win 20000";

/// The four cases, at both edges of the window 1…20000.
#[test]
fn the_four_acceptability_tests() {
    // Without text in an open window; the right edge itself counts.
    for (seq, ok) in [(0, false), (1, true), (2, true), (20_000, true), (20_001, true), (20_002, false)] {
        let mut p = Peer::server();
        p.exchange(&format!(". {seq}:{seq}(0) ack 1 win 20000"), if ok { "" } else { ACK });
        assert_eq!(p.counters.unacceptable, !ok as u64, "{seq}");
    }
    // With ten bytes: the first or the last must lie inside.
    for (seq, ok, taken) in [(-9, false, 0), (-8, true, 1), (0, true, 9), (1, true, 10), (20_001, false, 0)] {
        let mut p = Peer::server();
        p.inject(&format!("P. {seq}:{}(10) ack 1 win 20000", seq + 10));
        assert_eq!((p.counters.unacceptable, p.take()), (!ok as u64, taken), "{seq}");
        p.drain();
    }
    // The last number of the window is inside, and what lies beyond is cut off.
    let mut p = Peer::server();
    p.exchange("P. 20000:20010(10) ack 1 win 20000", ACK);
    assert_eq!((p.counters.unacceptable, p.counters.out_of_order, p.counters.beyond_window), (0, 1, 1));
    // A segment that starts before the window and ends behind it.
    let mut p = Peer::server();
    p.inject("P. -100:20101(20201) ack 1 win 20000");
    assert_eq!((p.counters.unacceptable, p.take()), (0, 20_000));
    p.expect(". 1:1(0) ack 20001 win 0");
}

/// A peer that has filled the window, and whose first segment was lost, acknowledges with the number at the right edge: it is
/// its SND.NXT. What it acknowledges counts, and the window it offers.
#[test]
fn an_ack_at_the_right_edge_counts() {
    let mut p = Peer::server_offered(Config { sack: true, ..plain() }, "mss 1000,sackOK");
    for i in 1..20 {
        p.inject(&format!(". {}:{}(1000) ack 1 win 20000", 1 + i * 1000, 1001 + i * 1000));
        p.drain();
    }
    p.write(3000);
    p.drain();
    p.exchange(". 20001:20001(0) ack 1001 win 9000", "");
    let i = p.info();
    assert_eq!((p.counters.unacceptable, i.bytes_acked, i.snd_wnd), (0, 1000, 9000));
    // Text and a FIN there lie outside.
    p.inject("F. 20001:20001(0) ack 3001 win 9000");
    p.inject("P. 20001:20002(1) ack 3001 win 9000");
    assert_eq!((p.counters.unacceptable, p.info().bytes_acked), (2, 1000));
    p.drain();
    p.exchange(". 20001:20001(0) ack 3001 win 9000", "");
    p.no_timer();
}

/// FIN and SYN occupy a number each.
#[test]
fn control_bits_count_as_length() {
    let mut p = Peer::server();
    // Ten bytes and FIN: the FIN is at 1, and is the only new thing.
    p.exchange("F. -9:1(10) ack 1 win 20000", ". 1:1(0) ack 2 win 19999");
    assert_eq!((p.state(), p.counters.unacceptable), (State::CloseWait, 0));
    let mut p = Peer::server();
    p.exchange("S. -9:1(10) ack 1 win 20000", ACK);
    assert_eq!((p.counters.unacceptable, p.counters.challenge_acks), (0, 1));
    let mut p = Peer::server();
    p.exchange("S. -10:0(10) ack 1 win 20000", ACK);
    assert_eq!((p.counters.unacceptable, p.counters.challenge_acks), (1, 0));
}

fn full() -> Peer {
    let mut p = Peer::server();
    for i in 0..20 {
        p.inject(&format!(". {}:{}(1000) ack 1 win 20000", 1 + i * 1000, 1001 + i * 1000));
        p.drain();
    }
    assert_eq!((p.take(), p.info().rcv_wnd), (20_000, 0));
    p
}

/// A closed window takes nothing but acknowledgments and RST (MUST-66).
#[test]
fn a_zero_window_takes_acks_and_resets() {
    let mut p = full();
    p.write(500);
    p.expect("P. 1:501(500) ack 20001 win 0");
    // Text is refused, its acknowledgment counts.
    p.exchange(". 20001:20002(1) ack 501 win 7000", ". 501:501(0) ack 20001 win 0");
    assert_eq!((p.take(), p.counters.unacceptable, p.info().unacked_bytes, p.info().snd_wnd), (0, 1, 0, 7000));
    p.exchange(". 20001:20001(0) ack 501 win 8000", "");
    assert_eq!(p.info().snd_wnd, 8000);
    // A zero-window probe one below, or one beyond.
    p.exchange(". 20000:20000(0) ack 501 win 8000", ". 501:501(0) ack 20001 win 0");
    p.exchange(". 20002:20002(0) ack 501 win 8000", ". 501:501(0) ack 20001 win 0");
    // One that reaches over the edge from below.
    p.exchange("P. 19991:20011(20) ack 501 win 8000", ". 501:501(0) ack 20001 win 0");
    assert_eq!(p.counters.unacceptable, 4);
    p.exchange("R 20000:20000(0) win 0", "");
    p.exchange("R 20002:20002(0) win 0", "");
    assert_eq!(p.state(), State::Established);
    p.inject("R 20001:20001(0) win 0");
    assert_eq!(p.state(), State::Closed);
}

/// In a closed window an acknowledgment beyond what was sent does not count, nor one of a segment elsewhere.
#[test]
fn a_zero_window_does_not_take_any_ack() {
    let mut p = full();
    p.write(500);
    p.drain();
    p.exchange(". 20001:20002(1) ack 502 win 7000", ". 501:501(0) ack 20001 win 0");
    p.exchange(". 20002:20003(1) ack 501 win 7000", ". 501:501(0) ack 20001 win 0");
    assert_eq!((p.info().unacked_bytes, p.info().snd_wnd), (500, 20_000));
    // The acknowledgment of our FIN counts as well.
    p.shutdown();
    p.expect("F. 501:501(0) ack 20001 win 0");
    p.exchange(". 20001:20002(1) ack 502 win 7000", ". 502:502(0) ack 20001 win 0");
    assert_eq!(p.state(), State::FinWait2);
}

#[test]
fn what_is_known_is_cut_off() {
    let mut p = Peer::server();
    p.exchange("P. 1:101(100) ack 1 win 20000", ". 1:1(0) ack 101 win 19900");
    p.exchange("P. 51:201(150) ack 1 win 20000", ". 1:1(0) ack 201 win 19800");
    assert_eq!(p.take(), 200);
    // All of it known: acknowledged at once, nothing taken.
    p.exchange("P. 101:201(100) ack 1 win 20000", ". 1:1(0) ack 201 win 19800");
    assert_eq!((p.take(), p.counters.unacceptable), (0, 1));
    assert_eq!(p.info().bytes_received, 200);
}

/// SHLD-31, MAY-13; RFC 5681 4.2.
#[test]
fn out_of_order_segments_wait_and_are_acknowledged_at_once() {
    let mut p = Peer::server();
    p.exchange("P. 1001:2001(1000) ack 1 win 20000", ACK);
    p.exchange("P. 3001:4001(1000) ack 1 win 20000", ACK);
    assert_eq!((p.counters.out_of_order, p.info().rcv_ooopack, p.take()), (2, 2, 0));
    assert_eq!(p.take_notice(), Notice::default());
    p.exchange("P. 1:1001(1000) ack 1 win 20000", ". 1:1(0) ack 2001 win 18000");
    assert_eq!((p.take(), p.take_notice()), (2000, Notice::DATA));
    // Filling a gap in part is acknowledged at once too.
    p.exchange("P. 2001:2011(10) ack 1 win 20000", ". 1:1(0) ack 2011 win 17990");
    p.exchange("P. 2011:3001(990) ack 1 win 20000", ". 1:1(0) ack 4001 win 16000");
    assert_eq!(p.take(), 2000);
    assert_eq!(p.info().bytes_received, 4000);
}

/// Every way two runs can meet.
#[test]
fn runs_overlap_touch_and_join() {
    // (segments out of order, then what 1:101 reaches)
    let cases: [(&[(i64, i64)], i64); 14] = [
        (&[(101, 201)], 201),
        (&[(101, 201), (201, 301)], 301),
        (&[(201, 301), (101, 201)], 301),
        (&[(101, 201), (301, 401)], 201),
        (&[(301, 401), (101, 201), (201, 301)], 401),
        (&[(101, 201), (151, 251)], 251),
        (&[(151, 251), (101, 201)], 251),
        (&[(121, 131), (101, 201)], 201),
        (&[(101, 201), (121, 131)], 201),
        (&[(111, 121), (131, 141), (151, 161), (101, 201)], 201),
        (&[(111, 121), (131, 141), (105, 135), (101, 106)], 141),
        (&[(101, 201), (101, 201)], 201),
        (&[(101, 111), (121, 131), (131, 141), (106, 125)], 141),
        (&[(102, 201)], 101),
    ];
    for (segments, reached) in cases {
        let mut p = Peer::server();
        for (from, to) in segments {
            p.inject(&format!("P. {from}:{to}({}) ack 1 win 20000", to - from));
            p.drain();
        }
        p.inject("P. 1:101(100) ack 1 win 20000");
        assert_eq!(p.take() as i64, reached - 1, "{segments:?}");
        p.drain();
        assert_eq!(p.counters.out_of_order_dropped, 0);
    }
}

/// In-order text may reach into and beyond what waits.
#[test]
fn in_order_text_overlaps_what_waits() {
    for (end, reached) in [(111, 121), (120, 121), (121, 121), (130, 130), (200, 200)] {
        let mut p = Peer::server();
        p.inject("P. 111:121(10) ack 1 win 20000");
        p.drain();
        p.inject(&format!("P. 1:{end}({}) ack 1 win 20000", end - 1));
        assert_eq!(p.take() as i64, reached - 1, "{end}");
        p.drain();
        // Nothing waits any more: what follows is predicted again.
        p.inject(&format!("P. {reached}:{}(1) ack 1 win 20000", reached + 1));
        assert_eq!((p.counters.predicted, p.take()), (1, 1), "{end}");
        p.drain();
    }
}

/// A flood of pieces is bounded: 128 runs for each connection.
#[test]
fn runs_are_bounded() {
    let mut p = Peer::server();
    for i in 0..128 {
        p.inject(&format!("P. {}:{}(1) ack 1 win 20000", 3 + i * 2, 4 + i * 2));
    }
    assert_eq!((p.counters.out_of_order, p.counters.out_of_order_dropped), (128, 0));
    p.inject("P. 259:260(1) ack 1 win 20000");
    assert_eq!((p.counters.out_of_order, p.counters.out_of_order_dropped), (128, 1));
    // Growing or joining runs needs no new one.
    p.inject("P. 4:5(1) ack 1 win 20000");
    p.inject("P. 258:259(1) ack 1 win 20000");
    assert_eq!((p.counters.out_of_order, p.counters.out_of_order_dropped), (130, 1));
    p.drain();
    p.inject("P. 1:3(2) ack 1 win 20000");
    assert_eq!(p.take(), 5);
    p.drain();
}

/// A FIN out of order takes effect when everything before it is there.
#[test]
fn a_fin_out_of_order_waits() {
    let mut p = Peer::server();
    p.exchange("FP. 101:201(100) ack 1 win 20000", ACK);
    assert_eq!(p.state(), State::Established);
    p.exchange("P. 1:101(100) ack 1 win 20000", ". 1:1(0) ack 202 win 19799");
    assert_eq!((p.state(), p.take()), (State::CloseWait, 200));
    // A FIN alone.
    let mut p = Peer::server();
    p.exchange("F. 101:101(0) ack 1 win 20000", ACK);
    p.exchange("P. 1:51(50) ack 1 win 20000", ". 1:1(0) ack 51 win 19950");
    assert_eq!(p.state(), State::Established);
    p.exchange("P. 51:101(50) ack 1 win 20000", ". 1:1(0) ack 102 win 19899");
    assert_eq!((p.state(), p.take()), (State::CloseWait, 100));
}

/// Text beyond the window is cut off, and with it the FIN behind.
#[test]
fn what_lies_beyond_the_window_is_cut_off() {
    let mut p = Peer::server();
    p.inject("P. 1:20001(20000) ack 1 win 20000");
    assert_eq!((p.counters.beyond_window, p.take()), (0, 20_000));
    p.drain();
    let mut p = Peer::server();
    p.inject("FP. 1:20002(20001) ack 1 win 20000");
    assert_eq!((p.counters.beyond_window, p.take(), p.state()), (1, 20_000, State::Established));
    p.expect(". 1:1(0) ack 20001 win 0");
    // A FIN right behind the last byte that fits is taken: it needs no room.
    let mut p = Peer::server();
    p.inject("FP. 1:20001(20000) ack 1 win 20000");
    assert_eq!((p.counters.beyond_window, p.take(), p.state()), (0, 20_000, State::CloseWait));
    p.expect(". 1:1(0) ack 20002 win 0");
}

/// Without memory a segment is not acknowledged; the peer sends it again.
#[test]
fn without_memory_nothing_is_acknowledged() {
    let mut p = Peer::with_memory(plain(), crate::peer::open(), "S 0:0(0) win 20000 <mss 1000>", 2);
    p.drain();
    p.exchange(". 1:1(0) ack 1 win 20000", "");
    p.inject("P. 1:2001(2000) ack 1 win 20000");
    p.drain();
    p.inject("P. 2001:6001(4000) ack 1 win 20000");
    assert_eq!((p.counters.no_chunks, p.counters.in_order), (1, 2));
    p.expect(". 1:1(0) ack 4097 win 15904");
    assert_eq!(p.read(), 4096);
    p.drain();
    p.inject("P. 4097:5001(904) ack 1 win 20000");
    assert_eq!((p.counters.no_chunks, p.take()), (1, 904));
    p.drain();
    // Out of order as well.
    p.inject("P. 5101:12001(6900) ack 1 win 20000");
    assert_eq!((p.counters.out_of_order_dropped, p.counters.out_of_order), (1, 0));
    p.drain();
    p.inject("P. 5001:5101(100) ack 1 win 20000");
    p.drain();
}

/// Where memory is short, an eighth of the buffer is all that may lie unread: what is free is for others.
#[test]
fn whoever_reads_nothing_does_not_get_the_last_of_the_memory() {
    let mut p = Peer::with_memory(plain(), crate::peer::open(), "S 0:0(0) win 20000 <mss 1000>", 8);
    p.drain();
    p.exchange(". 1:1(0) ack 1 win 20000", "");
    // Seven of eight chunks.
    p.inject("P. 1:12501(12500) ack 1 win 20000");
    p.drain();
    assert_eq!(p.counters.no_chunks, 0);
    p.inject("P. 12501:13001(500) ack 1 win 20000");
    assert_eq!((p.counters.no_chunks, p.counters.in_order), (1, 2));
    p.expect(". 1:1(0) ack 12501 win 7500");
    // Who reads gets more.
    assert_eq!(p.take(), 12_500);
    p.inject("P. 12501:13001(500) ack 1 win 20000");
    assert_eq!((p.counters.no_chunks, p.take()), (1, 500));
    p.drain();
}

/// The last two 64ths of the memory are for what goes out: else what came in would have to stay for good.
#[test]
fn what_comes_in_leaves_the_last_of_the_memory_to_what_goes_out() {
    let mut p = Peer::with_memory(plain(), crate::peer::open(), "S 0:0(0) win 20000 <mss 1000>", 64);
    p.drain();
    p.exchange(". 1:1(0) ack 1 win 20000", "");
    let others = p.occupy(61);
    p.inject("P. 1:501(500) ack 1 win 20000");
    p.drain();
    assert_eq!((p.counters.no_chunks, p.take()), (0, 500));
    let more = p.occupy(1);
    p.inject("P. 501:1001(500) ack 1 win 20000");
    assert_eq!((p.counters.no_chunks, p.take()), (1, 0));
    p.expect(". 1:1(0) ack 501 win 19500");
    p.release(more);
    p.inject("P. 501:1001(500) ack 1 win 20000");
    assert_eq!((p.counters.no_chunks, p.take()), (1, 500));
    p.release(others);
    p.drain();
}

/// Header prediction is a short cut, not another behaviour.
#[test]
fn prediction_counts_the_usual_and_leaves_the_rest() {
    let mut p = Peer::server();
    p.inject("P. 1:101(100) ack 1 win 20000");
    assert_eq!(p.counters.predicted, 1);
    p.inject(". 101:201(100) ack 1 win 20000");
    assert_eq!(p.counters.predicted, 2);
    p.drain();
    for text in [
        ". 201:201(0) ack 1 win 20000",
        "E. 201:301(100) ack 1 win 19999",
        ". 302:303(1) ack 1 win 19999",
        ". 301:302(1) ack 1 win 19999",
        "U. 303:304(1) ack 1 win 19999",
        "E. 304:305(1) ack 1 win 19999",
        "W. 305:306(1) ack 1 win 19999",
    ] {
        p.inject(text);
        assert_eq!(p.counters.predicted, 2, "{text}");
    }
    p.drain();
    p.inject(". 306:307(1) ack 1 win 19999");
    assert_eq!((p.counters.predicted, p.take()), (3, 306));
    p.write(1000);
    p.drain();
    p.inject(". 307:307(0) ack 1001 win 19999");
    // Without SACK nothing of it is undisturbed enough.
    assert_eq!((p.counters.predicted, p.info().unacked_bytes), (3, 0));
    p.inject("P. 307:308(1) ack 1002 win 19999");
    p.inject("P. 307:308(1) ack 1000 win 19999");
    assert_eq!(p.counters.predicted, 3);
    p.drain();
}

/// A window that is scaled is compared as it counts; a full window of text is still the usual, a byte more is not.
#[test]
fn prediction_at_the_edges() {
    let config = Config { window_scaling: true, ..plain() };
    let mut p = Peer::server_offered(config, "mss 1000,wscale 3");
    p.inject(". 1:1(0) ack 1 win 2500");
    for i in 0..3 {
        p.inject(&format!("P. {}:{}(10) ack 1 win 2500", 1 + i * 10, 11 + i * 10));
        p.drain();
    }
    assert_eq!(p.counters.predicted, 3);
    p.inject("P. 31:41(10) ack 1 win 2499");
    assert_eq!((p.counters.predicted, p.info().snd_wnd), (4, 19_992));
    p.drain();
    let mut p = Peer::server();
    p.inject("P. 1:20001(20000) ack 1 win 20000");
    assert_eq!((p.counters.predicted, p.counters.beyond_window), (1, 0));
    p.drain();
    let mut p = Peer::server();
    p.inject("P. 1:20002(20001) ack 1 win 20000");
    assert_eq!((p.counters.predicted, p.counters.beyond_window), (0, 1));
    p.drain();
    // With a closed window, for an orphan, with SACK blocks, or a stale acknowledgment it is not usual.
    let mut p = Peer::server_window(plain(), 0);
    p.inject("P. 1:11(10) ack 1 win 0");
    assert_eq!(p.counters.predicted, 0);
    p.drain();
    let mut p = Peer::server();
    p.write(3000);
    p.close();
    p.drain();
    p.inject(". 1:1(0) ack 1001 win 20000");
    assert_eq!((p.counters.predicted, p.info().unacked_bytes), (0, 2001));
    let config = Config { sack: true, ..plain() };
    let mut p = Peer::server_offered(config, "mss 1000,sackOK");
    p.write(3000);
    p.drain();
    p.inject("P. 1:11(10) ack 1001 win 20000 <sack 2001:3001>");
    assert_eq!((p.counters.predicted, p.info().sacked), (0, 1));
    p.inject("P. 11:21(10) ack 1001 win 20000");
    assert_eq!(p.counters.predicted, 1);
    p.inject("P. 21:31(10) ack 1000 win 20000");
    p.inject("P. 31:41(10) ack 3002 win 20000");
    assert_eq!(p.counters.predicted, 1);
    p.drain();
}
