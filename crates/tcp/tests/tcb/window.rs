//! Windows: what we offer, what we heed, and silly-window avoidance on both sides (RFC 9293 3.8.6, RFC 7323 2).

use tcp::{Config, State};

use crate::peer::{Peer, open, plain};

fn scaled() -> Config {
    Config { window_scaling: true, ..plain() }
}

/// RFC 7323 2.2: the smallest shift that lets 16 bits name the buffer, at most 14; the SYN's window is not scaled, and is
/// whole segments.
#[test]
fn the_shift_fits_the_buffer() {
    for (buffer, scale, window) in [
        (20_000, 0, 20_000),
        (20_999, 0, 20_000),
        (999, 0, 999),
        (1000, 0, 1000),
        (1001, 0, 1000),
        (65_535, 0, 65_000),
        (65_536, 1, 65_000),
        (66_000, 1, 65_535),
        (131_071, 1, 65_535),
        (131_072, 2, 65_535),
        (65_535 << 13, 13, 65_535),
        (65_535 << 14, 14, 65_535),
        (u32::MAX, 14, 65_535),
    ] {
        let mut p = Peer::connecting(scaled(), tcp::Open { receive_buffer: buffer, ..open() });
        p.expect(&format!("S 0:0(0) win {window} <mss 1000,wscale {scale}>"));
    }
}

/// The SYN/ACK's window is not scaled, the next segment's is; rounding up never moves the edge back.
#[test]
fn windows_are_scaled_after_the_handshake() {
    let open = tcp::Open { receive_buffer: 200_000, ..open() };
    let mut p = Peer::accepting(scaled(), open, "S 0:0(0) win 20000 <mss 1000,wscale 5>");
    p.expect("S. 0:0(0) ack 1 win 65535 <mss 1000,wscale 2>");
    p.inject(". 1:1(0) ack 1 win 1000");
    assert_eq!((p.info().snd_wnd, p.info().window_scale, p.info().options), (32_000, 0x25, 4));
    p.exchange("P. 1:1001(1000) ack 1 win 1000", ". 1:1(0) ack 1001 win 49750");
    assert_eq!(p.info().rcv_wnd, 199_000);
    // 198,999 bytes are free: 49,750 fields of four bytes, rounded up to 199,000, which was offered already.
    p.exchange("P. 1001:1002(1) ack 1 win 1000", ". 1:1(0) ack 1002 win 49750");
    assert_eq!(p.info().rcv_wnd, 199_000);
}

/// RFC 7323 1.3: both SYNs must carry the option.
#[test]
fn without_the_option_nothing_is_scaled() {
    let open = tcp::Open { receive_buffer: 200_000, ..open() };
    let mut p = Peer::accepting(scaled(), open, "S 0:0(0) win 20000 <mss 1000>");
    p.expect("S. 0:0(0) ack 1 win 65535 <mss 1000>");
    p.inject(". 1:1(0) ack 1 win 1000");
    assert_eq!((p.info().snd_wnd, p.info().window_scale, p.info().options), (1000, 0, 0));
    p.exchange("P. 1:1001(1000) ack 1 win 1000", ". 1:1(0) ack 1001 win 65535");
    let mut p = Peer::accepting(plain(), open, "S 0:0(0) win 20000 <mss 1000,wscale 5>");
    p.expect("S. 0:0(0) ack 1 win 65535 <mss 1000>");
    p.inject(". 1:1(0) ack 1 win 1000");
    assert_eq!(p.info().snd_wnd, 1000);
}

/// RFC 7323 2.3: a shift above 14 counts as 14.
#[test]
fn a_shift_above_14_counts_as_14() {
    for (shift, wnd) in [(13, 10 << 13), (14, 10 << 14), (15, 10 << 14), (255, 10 << 14)] {
        let mut p = Peer::accepting(scaled(), open(), &format!("S 0:0(0) win 20000 <mss 1000,wscale {shift}>"));
        p.drain();
        p.inject(". 1:1(0) ack 1 win 10");
        assert_eq!(p.info().snd_wnd, wnd);
    }
}

/// MUST-1: the field is unsigned; REC-1: windows are kept in 32 bits.
#[test]
fn windows_are_unsigned() {
    let mut p = Peer::accepting(scaled(), open(), "S 0:0(0) win 20000 <mss 1000,wscale 14>");
    p.drain();
    p.inject(". 1:1(0) ack 1 win 65535");
    assert_eq!(p.info().snd_wnd, 65_535 << 14);
}

/// SHLD-14: a smaller SO_RCVBUF takes effect as data arrives.
#[test]
fn the_offered_window_never_shrinks() {
    let mut p = Peer::server();
    p.set_receive_buffer(5000);
    p.exchange("P. 1:1001(1000) ack 1 win 20000", ". 1:1(0) ack 1001 win 19000");
    for i in 1..20 {
        let seq = 1 + i * 1000;
        let answer = format!(". 1:1(0) ack {} win {}", seq + 1000, 19_000 - i * 1000);
        p.inject(&format!("P. {seq}:{}(1000) ack 1 win 20000", seq + 1000));
        if !p.wants_ack() {
            p.timer_ms(40);
        }
        p.expect(&answer);
    }
    assert_eq!(p.read(), 20_000);
    p.expect(". 1:1(0) ack 20001 win 5000");
    // A larger one at once, when the application reads.
    p.set_receive_buffer(30_000);
    p.consumed(0);
    p.expect(". 1:1(0) ack 20001 win 30000");
    p.set_receive_buffer(1);
    p.inject("P. 20001:50001(30000) ack 1 win 20000");
    p.expect(". 1:1(0) ack 50001 win 0");
    assert_eq!(p.read(), 30_000);
    p.expect(". 1:1(0) ack 50001 win 2048");
}

fn filled(bytes: i64) -> Peer {
    let mut p = Peer::server();
    p.inject(&format!("P. 1:{}({bytes}) ack 1 win 20000", 1 + bytes));
    p.drain();
    assert_eq!(p.take() as i64, bytes);
    p
}

/// Where the lane bounds windows, one that is nearly closed opens all the same, as far as the bound goes.
#[test]
fn a_bounded_window_opens_after_a_little_was_left() {
    let mut p = filled(19_976);
    p.limits.window = 2;
    p.consumed(19_976);
    p.expect(". 1:1(0) ack 19977 win 2000");
    p.exchange("P. 19977:20977(1000) ack 1 win 20000", ". 1:1(0) ack 20977 win 2000");
    // What was announced is kept when the bound falls.
    p.limits.window = 0;
    p.exchange("P. 20977:21477(500) ack 1 win 20000", ". 1:1(0) ack 21477 win 1500");
}

/// MUST-39: the window opens by a segment or half the buffer at least; an update of our own by two segments or a doubling.
#[test]
fn a_closed_window_opens_by_a_useful_step() {
    let mut p = filled(20_000);
    assert_eq!(p.info().rcv_wnd, 0);
    p.consumed(999);
    p.quiet();
    // A probe that comes now still sees it closed: 999 bytes are less than a segment.
    p.exchange(". 20000:20000(0) ack 1 win 20000", ". 1:1(0) ack 20001 win 0");
    p.consumed(1);
    p.quiet();
    p.exchange(". 20000:20000(0) ack 1 win 20000", ". 1:1(0) ack 20001 win 1000");
    p.consumed(999);
    p.quiet();
    p.consumed(1);
    p.quiet();
    p.consumed(1000);
    p.expect(". 1:1(0) ack 20001 win 3000");
    p.consumed(2999);
    p.quiet();
    p.consumed(1);
    p.expect(". 1:1(0) ack 20001 win 6000");
}

#[test]
fn the_update_of_a_closed_window_takes_two_segments() {
    let mut p = filled(20_000);
    p.consumed(1999);
    p.quiet();
    p.consumed(1);
    p.expect(". 1:1(0) ack 20001 win 2000");
    p.consumed(30_000);
    p.expect(". 1:1(0) ack 20001 win 20000");
}

/// MUST-39 with a buffer smaller than two segments: half of it is enough.
#[test]
fn a_small_buffer_opens_by_its_half() {
    let open = tcp::Open { receive_buffer: 3000, mss: 2000, ..open() };
    let mut p = Peer::accepting(plain(), open, "S 0:0(0) win 20000 <mss 1000>");
    p.drain();
    p.inject(". 1:1(0) ack 1 win 20000");
    p.exchange("P. 1:2001(2000) ack 1 win 20000", ". 1:1(0) ack 2001 win 0");
    assert_eq!(p.take(), 2000);
    p.consumed(499);
    p.quiet();
    p.exchange(". 2000:2000(0) ack 1 win 20000", ". 1:1(0) ack 2001 win 0");
    p.consumed(1);
    p.expect(". 1:1(0) ack 2001 win 1500");
    p.consumed(1499);
    p.quiet();
    p.consumed(1);
    p.expect(". 1:1(0) ack 2001 win 3000");
}

/// Reading after the peer's FIN tells it nothing.
#[test]
fn no_updates_after_the_peers_fin() {
    let mut p = Peer::server();
    p.exchange("FP. 1:20001(20000) ack 1 win 20000", ". 1:1(0) ack 20002 win 0");
    assert_eq!((p.read(), p.state()), (20_000, State::CloseWait));
    p.quiet();
}

/// Half-closed by us, the window still matters.
#[test]
fn updates_after_our_fin() {
    for acked in [false, true] {
        let mut p = filled(20_000);
        p.shutdown();
        p.expect("F. 1:1(0) ack 20001 win 0");
        if acked {
            p.inject(". 20001:20001(0) ack 2 win 20000");
        }
        assert_eq!(p.state(), if acked { State::FinWait2 } else { State::FinWait1 });
        p.consumed(20_000);
        p.expect(". 2:2(0) ack 20001 win 20000");
    }
}

/// RFC 9293 3.10.7.4: SND.WL1 and SND.WL2 keep an old segment from setting the window.
#[test]
fn old_segments_do_not_set_the_window() {
    let mut p = Peer::server();
    p.write(4000);
    p.drain();
    p.exchange("P. 101:201(100) ack 2001 win 9000", ". 4001:4001(0) ack 1 win 20000");
    assert_eq!(p.info().snd_wnd, 9000);
    // Older by sequence number.
    p.inject(". 100:100(0) ack 2001 win 10000");
    assert_eq!(p.info().snd_wnd, 9000);
    let sacked = p.info().sacked;
    // The same segment's place: any window (RFC 9293 3.8.6: also a smaller one).
    for win in [8999, 9001, 0, 7000] {
        p.inject(&format!(". 101:101(0) ack 2001 win {win}"));
        assert_eq!(p.info().snd_wnd, win);
    }
    assert_eq!(p.info().sacked, sacked, "a window that changes is no duplicate");
    // A newer one, or a newer acknowledgment of the same: any.
    p.inject(". 102:102(0) ack 2001 win 6000");
    assert_eq!(p.info().snd_wnd, 6000);
    p.inject(". 102:102(0) ack 3001 win 5000");
    assert_eq!(p.info().snd_wnd, 5000);
    // Newer by sequence number, and older by acknowledgment.
    p.inject(". 103:103(0) ack 2001 win 20000");
    assert_eq!(p.info().snd_wnd, 5000);
    // Older by sequence number, newer by acknowledgment.
    p.inject(". 99:99(0) ack 4001 win 4000");
    assert_eq!((p.info().snd_wnd, p.info().unacked_bytes), (5000, 0));
    p.drain();
}

/// Whatever is in flight counts against the window.
#[test]
fn the_peers_window_is_heeded() {
    let mut p = Peer::server_window(plain(), 3500);
    p.write(10_000);
    p.expect(
        ". 1:1001(1000) ack 1 win 20000
         . 1001:2001(1000) ack 1 win 20000
         . 2001:3001(1000) ack 1 win 20000",
    );
    // The remaining 500 are less than half of the largest window.
    p.exchange(". 1:1(0) ack 1001 win 3500", ". 3001:4001(1000) ack 1 win 20000");
    p.exchange(". 1:1(0) ack 1001 win 4500", ". 4001:5001(1000) ack 1 win 20000");
    p.exchange(". 1:1(0) ack 1001 win 4999", "");
    p.exchange(". 1:1(0) ack 1001 win 5000", ". 5001:6001(1000) ack 1 win 20000");
}

/// MUST-34, SHLD-15, SHLD-16, SHLD-17: a window that shrinks stops new data and nothing else.
#[test]
fn a_shrinking_window_is_survived() {
    let mut p = Peer::server();
    p.write(8000);
    p.expect_data(1, 8001, true);
    p.write(2000);
    p.drain();
    p.wait_ms(20);
    p.exchange(". 1:1(0) ack 1001 win 500", "");
    assert_eq!((p.info().snd_wnd, p.info().unacked_bytes, p.state()), (500, 9000, State::Established));
    p.write(1000);
    p.quiet();
    p.timer_ms(220);
    p.expect(". 1001:1501(500) ack 1 win 20000");
    p.inject(". 1:1(0) ack 10001 win 500");
    p.quiet();
    p.exchange(". 1:1(0) ack 10001 win 1000", "P. 10001:11001(1000) ack 1 win 20000");
}

/// MUST-38: a piece smaller than a segment goes when it is half of the largest window seen.
#[test]
fn small_windows_are_used_from_half_the_largest_on() {
    let mut p = Peer::accepting(plain(), open(), "S 0:0(0) win 1500 <mss 1000>");
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 749");
    p.write(5000);
    p.quiet();
    p.inject(". 1:1(0) ack 1 win 750");
    p.expect(". 1:751(750) ack 1 win 20000");
    p.inject(". 1:1(0) ack 751 win 999");
    p.expect(". 751:1750(999) ack 1 win 20000");
}

/// The override timeout sends what a small window takes (RFC 9293 3.8.6.2.1), once an RTO.
#[test]
fn the_override_sends_a_small_piece() {
    let mut p = Peer::server_window(plain(), 300);
    p.write(5000);
    p.quiet();
    p.timer_ms(220);
    assert!(p.wants_data());
    p.expect(". 1:301(300) ack 1 win 20000");
    assert_eq!(p.counters.window_probes, 1);
    // It is data like any other: retransmitted when it is lost.
    p.timer_ms(440);
    p.expect(". 1:301(300) ack 1 win 20000");
    p.exchange(". 1:1(0) ack 301 win 20000", &(data(301, 2301).replace("P", "")));
}

fn data(first: u32, end: u32) -> String {
    (first..end)
        .step_by(1000)
        .map(|s| (s, (s + 1000).min(end)))
        .map(|(s, e)| format!("{} {s}:{e}({}) ack 1 win 20000\n", if e == end { "P." } else { "." }, e - s))
        .collect()
}

/// SHLD-28: full segments, the last one what is left; PSH ends what was queued (MUST-61, SHLD-27).
#[test]
fn data_goes_in_full_segments() {
    let mut p = Peer::server();
    p.write(2500);
    p.expect(&data(1, 2501));
    let long = Config { min_burst: 64, ..plain() };
    let mut p = Peer::server_with(long.clone());
    p.segments = 4;
    p.write(4500);
    p.expect(
        ". 1:4001(4000) ack 1 win 20000
         P. 4001:4501(500) ack 1 win 20000",
    );
    // What a port cuts is whole segments: the tail may go with it when it ends the queue and may go by itself.
    let mut p = Peer::server_with(long);
    p.segments = 4;
    p.write(2500);
    p.expect("P. 1:2501(2500) ack 1 win 20000");
    p.write(2500);
    p.expect(". 2501:4501(2000) ack 1 win 20000");
    p.set_nodelay(true);
    p.expect("P. 4501:5001(500) ack 1 win 20000");
    // Not the window's remainder.
    let mut p = Peer::server_window(plain(), 2500);
    p.segments = 4;
    p.write(4000);
    p.expect(". 1:2001(2000) ack 1 win 20000");
}

/// A window that doubles is told at once, however large it is.
#[test]
fn a_large_window_that_doubles_is_told() {
    let config = Config { window_scaling: true, ..plain() };
    let open = tcp::Open { receive_buffer: 200_000, ..open() };
    let mut p = Peer::accepting(config, open, "S 0:0(0) win 20000 <mss 1000,wscale 0>");
    p.drain();
    p.inject(". 1:1(0) ack 1 win 20000");
    p.drain();
    let mut seq = 1;
    while p.info().rcv_wnd > 50_000 {
        p.inject(&format!(". {seq}:{}(1000) ack 1 win 20000", seq + 1000));
        seq += 1000;
        p.drain();
    }
    p.read();
    p.expect(&format!(". 1:1(0) ack {seq} win 50000"));
}

/// RFC 9293 3.8.6: below a window that shrank our acknowledgments stand at its edge, or the peer would drop them; what
/// scaling rounds away is no shrinking.
#[test]
fn acknowledgments_stay_within_a_shrunk_window() {
    for (window, seq) in [(62, 1001), (61, 977)] {
        let config = Config { window_scaling: true, ..plain() };
        let mut p = Peer::server_offered(config, "mss 1000,wscale 4");
        p.write(1000);
        p.drain();
        p.exchange(&format!("P. 1:11(10) ack 1 win {window}"), &format!(". {seq}:{seq}(0) ack 11 win 19990"));
    }
}
