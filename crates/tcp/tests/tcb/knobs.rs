//! Socket options that few connections set (tcp(7)), urgent data (RFC 6093), and black holes (RFC 4821).

use tcp::congestion::Algorithm;
use tcp::{Config, Error, Notice, Open, State};

use crate::peer::{Peer, open, plain};

/// TCP_SYNCNT; the first SYNs go at a steady pace (Linux's tcp_syn_linear_timeouts).
#[test]
fn how_often_a_syn_is_repeated() {
    let mut p = Peer::connecting(Config { syn_linear_timeouts: 2, syn_retries: 9, ..plain() }, open());
    assert_eq!(p.syn_retries(&p.config), 9);
    p.set_syn_retries(2);
    assert_eq!(p.syn_retries(&p.config), 2);
    p.drain();
    for ms in [1000, 1000, 1000, 2000] {
        p.timer_ms(ms);
        assert_eq!(p.drain().len(), 1);
    }
    p.timer_ms(4000);
    assert_eq!((p.state(), p.error()), (State::Closed, Some(Error::TimedOut)));
    p.set_syn_retries(0);
    assert_eq!(p.syn_retries(&p.config), 9);
}

/// TCP_LINGER2: how long an orphan stays in FIN-WAIT-2; below zero not at all.
#[test]
fn how_long_an_orphan_lingers() {
    let mut p = Peer::server();
    p.set_linger2(5);
    p.close();
    p.drain();
    p.time_fin_wait_2();
    assert_eq!(p.state(), State::FinWait1);
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 2 win 20000");
    p.time_fin_wait_2();
    p.wait_ms(1000);
    // Once: it is not lengthened.
    p.time_fin_wait_2();
    p.timer_ms(4000);
    assert_eq!(p.state(), State::Closed);
    let mut p = Peer::server();
    p.set_linger2(-1);
    p.close();
    p.drain();
    p.inject(". 1:1(0) ack 2 win 20000");
    p.time_fin_wait_2();
    p.expect("R. 2:2(0) ack 1 win 0");
    // Nobody waits for days.
    let mut p = Peer::server();
    p.set_linger2(189_000);
    p.close();
    p.drain();
    p.inject(". 1:1(0) ack 2 win 20000");
    p.time_fin_wait_2();
    p.timer_ms(120_000);
    assert_eq!(p.state(), State::Closed);
    // Zero is the configured time; a connection with an owner is not timed.
    let mut p = Peer::server();
    p.set_linger2(0);
    p.close();
    p.drain();
    p.inject(". 1:1(0) ack 2 win 20000");
    p.time_fin_wait_2();
    p.timer_ms(60_000);
    let mut p = Peer::server();
    p.set_linger2(5);
    p.shutdown();
    p.drain();
    p.inject(". 1:1(0) ack 2 win 20000");
    p.time_fin_wait_2();
    p.no_timer();
}

/// TCP_WINDOW_CLAMP: what is offered does not exceed it; 0 is none.
#[test]
fn the_window_can_be_clamped() {
    let mut p = Peer::server();
    p.set_window_clamp(0);
    p.exchange("P. 1:1001(1000) ack 1 win 20000", ". 1:1(0) ack 1001 win 19000");
    p.set_window_clamp(5000);
    p.exchange("P. 1001:16001(15000) ack 1 win 20000", ". 1:1(0) ack 16001 win 4000");
    p.read();
    p.quiet();
    p.exchange(". 16000:16000(0) ack 1 win 20000", ". 1:1(0) ack 16001 win 5000");
    // SO_RCVBUF stays within it.
    p.set_receive_buffer(20_000);
    assert_eq!(p.info().rcv_space, 5000);
    p.set_window_clamp(90_000);
    assert_eq!(p.info().rcv_space, 5000);
}

/// TCP_NOTSENT_LOWAT: the application is told when less than half of it waits unsent, each time that is news.
#[test]
fn how_little_waits_unsent() {
    let mut p = Peer::server();
    p.watch_unsent();
    assert!(!p.has_notice());
    p.set_not_sent_low(8000);
    // How large a burst is is news at first.
    p.watch_unsent();
    assert_eq!((p.burst_bytes(), p.take_notice()), (10_000, Notice::SENT));
    p.watch_unsent();
    p.write(15_000);
    // A quarter of it must have gone.
    for at in (1..10_000).step_by(1000) {
        assert!(p.next().is_some());
        p.watch_unsent();
        let news = if at % 2000 == 1001 { Notice::SENT } else { Notice::default() };
        assert_eq!(p.take_notice(), news, "{at}");
    }
    // Or less than half of it waits.
    p.inject(". 1:1(0) ack 1001 win 20000");
    assert!(p.next().is_some());
    p.watch_unsent();
    assert_eq!((p.stream_sent(), p.take_notice()), (11_000, Notice::default()));
    p.inject(". 1:1(0) ack 2001 win 20000");
    p.drain();
    p.watch_unsent();
    assert_eq!((p.stream_sent(), p.take_notice()), (12_000, Notice::SENT));
    p.write(998);
    p.shutdown();
    p.inject(". 1:1(0) ack 10001 win 20000");
    p.drain();
    // The FIN is no byte of the stream.
    assert_eq!((p.state(), p.stream_sent()), (State::FinWait1, 15_998));
    p.watch_unsent();
    assert!(p.take_notice().has(Notice::SENT));
}

fn urgent(p: &mut Peer, bytes: usize) {
    p.write_urgent(bytes as u32);
    p.write(bytes);
}

/// RFC 6093 4, MUST-62: the pointer names the byte after the urgent one, on every segment before it (MUST-31).
#[test]
fn urgent_data_goes_out() {
    let mut p = Peer::server();
    assert!(!p.urgent_out());
    p.write(1500);
    urgent(&mut p, 1);
    p.expect(
        "U. 1:1001(1000) ack 1 win 20000 urg 1501
         U. 1001:1502(501) ack 1 win 20000 urg 501",
    );
    assert!(p.urgent_out());
    p.write(1000);
    p.expect(". 1502:2502(1000) ack 1 win 20000");
    p.timer_ms(220);
    p.expect("U. 1:1001(1000) ack 1 win 20000 urg 1501");
    p.inject(". 1:1(0) ack 1501 win 20000");
    assert!(p.urgent_out());
    p.drain();
    p.inject(". 1:1(0) ack 1502 win 20000");
    assert!(!p.urgent_out());
    p.drain();
}

/// An urgent byte farther than the field reaches is announced as far as it does, once all that is on its way.
#[test]
fn a_far_urgent_byte() {
    let config = Config { window_scaling: true, initial_window: 200, ..plain() };
    let mut p = Peer::server_offered(config, "mss 1000,wscale 4");
    p.write(70_000);
    urgent(&mut p, 1000);
    let sent = p.drain();
    assert_eq!(sent.len(), 71);
    assert_eq!(sent[0], "U. 1:1001(1000) ack 1 win 20000 urg 65535");
    assert_eq!(sent[5], "U. 5001:6001(1000) ack 1 win 20000 urg 65535");
    assert_eq!(sent[6], "U. 6001:7001(1000) ack 1 win 20000 urg 65000");
    assert_eq!(sent[70], "U. 70001:71001(1000) ack 1 win 20000 urg 1000");
    // Sent again, when all of it has gone, the field reaches only what was announced before.
    p.timer_ms(220);
    p.expect(". 1:1001(1000) ack 1 win 20000");
}

/// MUST-32, MUST-33: the application hears of an urgent byte as soon as the pointer is known, and where it is.
#[test]
fn urgent_data_comes_in() {
    let mut p = Peer::server();
    p.inject("PU. 1:11(10) ack 1 win 20000 urg 5");
    assert_eq!((p.take_notice(), p.urgent_in()), (Notice(Notice::URGENT.0 | Notice::DATA.0), Some(4)));
    assert_eq!((p.take(), p.urgent_in()), (10, Some(4_294_967_290)));
    p.drain();
    // Ahead of its segment.
    p.inject("PU. 11:21(10) ack 1 win 20000 urg 100");
    assert_eq!((p.take_notice().has(Notice::URGENT), p.urgent_in()), (true, Some(99)));
    // The same again is no news, a later one is, an earlier one is not.
    for (seq, urg, news) in [(21, 90, false), (31, 79, false), (41, 71, true)] {
        p.inject(&format!("PU. {seq}:{}(10) ack 1 win 20000 urg {urg}", seq + 10));
        assert_eq!(p.take_notice().has(Notice::URGENT), news, "{urg}");
        p.drain();
    }
    assert_eq!(p.urgent_in(), Some(100));
    p.take();
}

/// What is no urgent pointer: zero, without URG, behind what was received, outside the window, after the FIN, for an orphan.
#[test]
fn what_is_not_urgent() {
    for text in [
        "P. 1:11(10) ack 1 win 20000 urg 5",
        "PU. 1:11(10) ack 1 win 20000 urg 0",
        "PU. -9:1(10) ack 1 win 20000 urg 10",
        "U. 0:0(0) ack 1 win 20000 urg 5",
        "PU. 3:13(10) ack 1 win 20000 urg 65535",
    ] {
        let mut p = Peer::server();
        p.inject(text);
        assert!(!p.take_notice().has(Notice::URGENT), "{text}");
        assert_eq!(p.urgent_in(), None);
        p.read();
        p.drain();
    }
    // At the edges it counts.
    for text in [
        "PU. -9:1(10) ack 1 win 20000 urg 11",
        "PU. -8:2(10) ack 1 win 20000 urg 10",
        "U. 1:1(0) ack 1 win 20000 urg 1",
        "PU. 20000:20010(10) ack 1 win 20000 urg 5",
        "PU. 2:12(10) ack 1 win 20000 urg 65535",
    ] {
        let mut p = Peer::server();
        p.inject(text);
        let taken = !text.contains(" -9");
        assert_eq!(p.take_notice().has(Notice::URGENT), taken, "{text}");
        p.read();
        p.drain();
    }
    let mut p = Peer::server();
    p.inject("F. 1:1(0) ack 1 win 20000");
    p.take_notice();
    p.inject("PU. 2:12(10) ack 1 win 20000 urg 5");
    assert_eq!(p.take_notice(), Notice::default());
    p.drain();
    let mut p = Peer::server();
    p.close();
    p.drain();
    p.inject("U. 1:1(0) ack 1 win 20000 urg 5");
    assert_eq!((p.take_notice(), p.urgent_in()), (Notice::default(), None));
    p.drain();
}

/// RFC 9293 3.10.7.4: only acceptable segments count.
#[test]
fn urgent_beyond_the_window() {
    let mut p = Peer::server();
    p.inject("PU. 20001:20011(10) ack 1 win 20000 urg 5");
    assert!(!p.take_notice().has(Notice::URGENT));
    p.drain();
}

/// RFC 4821: full segments that vanish while the path is alive are halved, down to what every path takes.
#[test]
fn black_holes() {
    let config = Config { black_hole_timeouts: 2, ..plain() };
    let open = Open { mss: 1400, ..open() };
    let mut p = Peer::accepting(config.clone(), open, "S 0:0(0) win 20000 <mss 1400>");
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000");
    p.write(5000);
    p.drain();
    for (n, size) in [(0, 1400), (1, 1400), (2, 700), (3, 536), (4, 536)] {
        p.timer_ms(220 << n);
        let line = p.drain().remove(0);
        assert!(line.starts_with(&format!(". 1:{}({size})", 1 + size)), "{line}");
    }
    // A suspicion, no more.
    assert_eq!((p.counters.black_holes, p.segment_size()), (0, 536));
    // It was an outage: what is acknowledged now went in full segments.
    p.inject(". 1:1(0) ack 5001 win 20000");
    assert_eq!(p.segment_size(), 1400);
    p.write(3000);
    assert!(p.drain().remove(0).starts_with(". 5001:6401(1400)"));
    p.inject(". 1:1(0) ack 8001 win 20000");
    // Small segments do not tell.
    let mut p = Peer::accepting(config.clone(), open, "S 0:0(0) win 20000 <mss 1400>");
    p.drain();
    p.inject(". 1:1(0) ack 1 win 20000");
    p.write(536);
    p.drain();
    for _ in 0..6 {
        let us = p.deadline().micros() - p.now.micros();
        p.timer(us);
        p.drain();
    }
    assert_eq!((p.counters.black_holes, p.segment_size()), (0, 1400));
    // IPv6 has its own floor; zero switches it off.
    let v6 = Open { mss: 1400, headers: 60, ..open };
    for (config, open, size) in [(config.clone(), v6, 1220), (plain(), open, 1400)] {
        let mut p = Peer::accepting(config, open, "S 0:0(0) win 20000 <mss 1400>");
        p.drain();
        p.inject(". 1:1(0) ack 1 win 20000");
        p.write(5000);
        p.drain();
        for _ in 0..6 {
            let us = p.deadline().micros() - p.now.micros();
            p.timer(us);
            p.drain();
        }
        assert_eq!(p.segment_size(), size);
    }
}

/// Writes and sends until `bytes` have arrived, over a path that takes segments of `takes` says; the receiver has no SACK.
fn over(p: &mut Peer, bytes: u64, mut takes: impl FnMut(u64) -> bool) {
    let goal = p.info().bytes_acked + bytes;
    let mut came = std::collections::BTreeMap::new();
    let mut una = p.info().bytes_acked + 1;
    for _ in 0..10_000 {
        if p.info().bytes_acked >= goal {
            return;
        }
        if p.info().notsent_bytes < 3000 {
            p.write(6000);
        }
        let before = una;
        for line in p.drain() {
            let (numbers, _) = line[line.find(' ').unwrap() + 1..].split_once('(').unwrap();
            let (seq, end) = numbers.split_once(':').unwrap();
            let (seq, end): (u64, u64) = (seq.parse().unwrap(), end.parse().unwrap());
            if end > seq && takes(end - seq) {
                came.insert(seq, end.max(came.get(&seq).copied().unwrap_or(0)));
            }
        }
        while let Some((seq, end)) = came.first_key_value().map(|(s, e)| (*s, *e)).filter(|(s, _)| *s <= una) {
            una = una.max(end);
            came.remove(&seq);
        }
        p.wait_ms(20);
        if una > before {
            p.inject(&format!(". 1:1(0) ack {una} win 20000"));
        } else if p.deadline() != wire::Instant::FAR {
            let us = p.deadline().micros().saturating_sub(p.now.micros());
            p.timer(us);
        }
    }
    panic!("stands still at {una}");
}

fn probing() -> Peer {
    let config = Config { black_hole_timeouts: 2, ..plain() };
    let mut p = Peer::accepting(config, Open { mss: 1400, ..open() }, "S 0:0(0) win 20000 <mss 1400>");
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000");
    p
}

/// RFC 4821 7.7, RFC 8899 4.3: a path on which nothing long arrives is a black hole; full segments are tried again from time to
/// time, cost little while they vanish, and stay once they arrive.
#[test]
fn a_black_hole_is_found_and_left_again() {
    let mut p = probing();
    over(&mut p, 100_000, |len| len <= 1000);
    assert_eq!((p.counters.black_holes, p.segment_size()), (1, 700));
    // Tries to go back fail, ever more rarely, and do not count again.
    let (timeouts, from) = (p.counters.timeouts, p.now);
    over(&mut p, 20_000_000, |len| len <= 1000);
    let seconds = (p.now.micros() - from.micros()) / 1_000_000;
    assert!(seconds > 60, "{seconds} s");
    assert_eq!((p.counters.black_holes, p.segment_size()), (1, 700));
    assert!(p.counters.timeouts - timeouts < 8, "{} timeouts in {seconds} s", p.counters.timeouts - timeouts);
    // The path takes everything again.
    over(&mut p, 40_000_000, |_| true);
    assert_eq!(p.segment_size(), 1400);
}

/// Loss without regard to size is no black hole, however heavy.
#[test]
fn heavy_loss_is_no_black_hole() {
    for seed in 1..30u64 {
        let mut p = probing();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        over(&mut p, 300_000, |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % 100 >= 35
        });
        assert_eq!(p.counters.black_holes, 0, "seed {seed}");
        over(&mut p, 30_000, |_| true);
        assert_eq!(p.segment_size(), 1400, "seed {seed}");
        assert!(p.counters.timeouts > 10, "seed {seed}: {}", p.counters.timeouts);
    }
}

/// RFC 9293 3.9.2.2 (SHLD-25): a soft error is told when the connection fails, instead of the timeout.
#[test]
fn soft_errors_are_remembered() {
    let mut p = Peer::server_with(Config { retries: 1, ..plain() });
    p.write(10);
    p.drain();
    assert!(p.unreachable(true, Some(1)));
    assert_eq!(p.state(), State::Established);
    p.timer_ms(220);
    p.drain();
    p.timer_ms(440);
    assert_eq!(p.error(), Some(Error::Unreachable));
    p.drain();
}

/// The same with timestamps, which take their room of the smallest packet.
#[test]
fn black_holes_leave_room_for_timestamps() {
    let config = Config { black_hole_timeouts: 2, timestamps: true, ..plain() };
    let mut p = Peer::server_offered(config, "mss 1000,TS val 100 ecr 0");
    p.write(5000);
    p.drain();
    for n in 0..4 {
        p.timer_ms(220 << n);
        p.drain();
    }
    assert_eq!((p.segment_size(), p.info().pmtu), (524, 576));
}

/// TCP_CONGESTION: the next loss is the new algorithm's (RFC 9438 4.6 leaves seven tenths, RFC 5681 half).
#[test]
fn the_algorithm_can_be_changed() {
    for (algorithm, ssthresh) in [(Algorithm::Cubic, 7), (Algorithm::NewReno, 5)] {
        let mut p = Peer::server();
        p.set_congestion(algorithm);
        p.write(10_000);
        p.drain();
        p.timer_ms(220);
        assert_eq!(p.cwnd().1, ssthresh);
        p.drain();
    }
}

/// What the field of the next segment would say.
#[test]
fn the_window_field_is_scaled() {
    let config = Config { window_scaling: true, receive_buffer_max: 1 << 20, ..plain() };
    let p = Peer::accepting(config, Open { receive_buffer: 0, ..open() }, "S 0:0(0) win 20000 <mss 1000,wscale 2>");
    let i = p.info();
    assert_eq!(i.window_scale >> 4, 5);
    assert_eq!(p.window_field() as u64, i.rcv_wnd >> 5);
}

/// RFC 6691: SACK blocks take room of a segment only where SACK was agreed on.
#[test]
fn holes_without_sack_take_no_room() {
    let mut p = Peer::server();
    p.inject("P. 1001:2001(1000) ack 1 win 20000");
    p.write(1000);
    p.expect("P. 1:1001(1000) ack 1 win 20000");
}
