//! Buffers that grow by themselves, and what paces sending.

use tcp::{Config, Notice, Open};

use crate::peer::{Peer, open, plain};

/// Not locked by SO_RCVBUF.
fn tuned() -> Open {
    Open { receive_buffer: 0, ..open() }
}

fn config() -> Config {
    Config { window_scaling: true, receive_buffer: 20_000, receive_buffer_max: 1_000_000, ..plain() }
}

fn receiver(config: Config, open: Open) -> Peer {
    let mut p = Peer::accepting(config, open, "S 0:0(0) win 20000 <mss 1000,wscale 4>");
    // The window that is being timed is another one after a pause.
    p.pauses = false;
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000");
    p
}

/// The shift is chosen for what the buffer may grow to; a buffer that was set does not grow.
#[test]
fn the_scale_leaves_room_to_grow() {
    let mut p = Peer::accepting(config(), tuned(), "S 0:0(0) win 20000 <mss 1000,wscale 4>");
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000,wscale 4>");
    let mut p = Peer::accepting(config(), open(), "S 0:0(0) win 20000 <mss 1000,wscale 4>");
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000,wscale 0>");
    let small = Config { receive_buffer_max: 1000, receive_buffer: 70_000, ..config() };
    let mut p = Peer::accepting(small, tuned(), "S 0:0(0) win 20000 <mss 1000,wscale 4>");
    p.expect("S. 0:0(0) ack 1 win 65535 <mss 1000,wscale 1>");
}

/// A window a round trip comes in and is read at once; the buffer after each.
fn feed(p: &mut Peer, seq: &mut i64, rounds: usize, ms: u64) -> Vec<u64> {
    (0..rounds)
        .map(|_| {
            let window = p.info().rcv_wnd as i64 / 1000;
            for _ in 0..window {
                p.inject(&format!(". {seq}:{}(1000) ack 1 win 20000", *seq + 1000));
                *seq += 1000;
                p.read();
                p.drain();
            }
            p.now = p.now.plus_micros(ms * 1000);
            p.run_timers();
            p.drain();
            p.info().rcv_space
        })
        .collect()
}

/// Twice what is read in a round trip, so that a sender in slow start is never held back.
#[test]
fn the_receive_buffer_grows_with_what_is_read() {
    let mut p = receiver(config(), tuned());
    let mut seq = 1;
    let got = feed(&mut p, &mut seq, 8, 50);
    assert_eq!(got, GROWN);
    // Not beyond the largest, and never smaller.
    assert_eq!(*feed(&mut p, &mut seq, 8, 50).last().unwrap(), 1_000_000);
    // TCP_WINDOW_CLAMP is another limit.
    let mut p = receiver(config(), tuned());
    p.set_window_clamp(100_000);
    let mut seq = 1;
    assert_eq!(*feed(&mut p, &mut seq, 12, 50).last().unwrap(), 100_000);
    p.set_window_clamp(30_000);
    assert_eq!(p.info().rcv_space, 30_000);
    // SO_RCVBUF holds it, before or after.
    let mut p = receiver(config(), open());
    let mut seq = 1;
    assert_eq!(feed(&mut p, &mut seq, 8, 50), [20_000; 8]);
    let mut p = receiver(config(), tuned());
    p.set_receive_buffer(25_000);
    let mut seq = 1;
    assert_eq!(feed(&mut p, &mut seq, 8, 50), [25_000; 8]);
}

const GROWN: [u64; 8] = [112_000, 112_000, 480_000, 480_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000];

/// It does not grow beyond what is used.
#[test]
fn a_slow_stream_does_not_grow_it() {
    let mut p = receiver(config(), tuned());
    let mut seq = 1;
    feed(&mut p, &mut seq, 1, 50);
    for _ in 0..50 {
        for _ in 0..5 {
            p.inject(&format!(". {seq}:{}(1000) ack 1 win 20000", seq + 1000));
            seq += 1000;
            p.read();
            p.drain();
        }
        p.now = p.now.plus_micros(50_000);
        p.run_timers();
        p.drain();
    }
    assert_eq!(p.info().rcv_space, 112_000);
}

/// Timestamps measure the receiver's round trip as well.
#[test]
fn echoes_measure_the_receivers_round_trip() {
    let config = Config { timestamps: true, ..config() };
    let mut p = Peer::accepting(config, tuned(), "S 0:0(0) win 20000 <mss 1000,wscale 4,TS val 100 ecr 0>");
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000 <TS val 100 ecr 1000>");
    let mut seq = 1;
    let mut space = Vec::new();
    for r in 0..6 {
        let window = p.info().rcv_wnd as i64 / 1000;
        for _ in 0..window {
            let ecr = 1020 + r * 50;
            p.inject(&format!(". {seq}:{}(1000) ack 1 win 20000 <TS val {} ecr {ecr}>", seq + 1000, 100 + r));
            seq += 1000;
            p.read();
            p.drain();
        }
        p.now = p.now.plus_micros(50_000);
        p.run_timers();
        p.drain();
        space.push(p.info().rcv_space);
    }
    assert_eq!(space, STAMPED);
}

const STAMPED: [u64; 6] = [20_000, 112_000, 112_000, 480_000, 480_000, 1_000_000];

/// A receiver as [`receiver`], of a peer that sends timestamps where `stamps`.
fn stamped(stamps: bool) -> Peer {
    let syn = if stamps { ",TS val 100 ecr 0" } else { "" };
    let config = Config { timestamps: stamps, ..config() };
    let mut p = Peer::accepting(config, tuned(), &format!("S 0:0(0) win 20000 <mss 1000,wscale 4{syn}>"));
    p.pauses = false;
    p.drain();
    p.wait_ms(20);
    p.inject(&full(stamps, 1, 100, 1000).replace("1:1001(1000)", "1:1(0)"));
    p
}

/// A full segment of its.
fn full(stamps: bool, seq: i64, val: u64, ecr: u64) -> String {
    let stamp = if stamps { format!(" <TS val {val} ecr {ecr}>") } else { String::new() };
    format!(". {seq}:{}(1000) ack 1 win 20000{stamp}", seq + 1000)
}

/// The pause of a peer is no round trip: neither by the echo of what went before it, nor by the window that took it.
#[test]
fn a_pause_is_no_round_trip() {
    for stamps in [false, true] {
        let mut p = stamped(stamps);
        // Parked, too, and so whichever window is timed.
        p.pauses = true;
        let start = p.now.millis();
        let (mut seq, mut val, mut echo) = (1, 100, 1020);
        // Two bursts of a window, after ten seconds each.
        for _ in 0..2 {
            p.wait_ms(10_000);
            val += 10_000;
            for _ in 0..3 {
                for _ in 0..p.info().rcv_wnd as i64 / 1000 {
                    p.inject(&full(stamps, seq, val, echo));
                    seq += 1000;
                    p.read();
                    p.drain();
                }
                echo = 1020 + p.now.millis() - start;
                p.wait_ms(20);
                val += 20;
            }
        }
        assert!(p.info().rcv_space > 400_000, "{stamps}: {}", p.info().rcv_space);
    }
}

/// A round trip that is longer than what the handshake made the RTO is still one.
#[test]
fn a_path_that_became_long_is_measured() {
    for stamps in [false, true] {
        let mut p = stamped(stamps);
        let (mut seq, start) = (1i64, p.now.millis());
        // A segment each 40 ms, each an answer to what was 400 ms before.
        for _ in 0..200 {
            let echo = 1020 + (p.now.millis() - start).saturating_sub(400);
            p.inject(&full(stamps, seq, echo - 900, echo));
            seq += 1000;
            p.read();
            p.drain();
            p.now = p.now.plus_micros(40_000);
            p.run_timers();
            p.drain();
        }
        assert!(p.info().rcv_space > 20_000, "{stamps}: {}", p.info().rcv_space);
    }
}

/// The send buffer grows to two windows, in steps that are worth an event.
#[test]
fn the_send_buffer_follows_the_window() {
    let config = Config { send_buffer: 20_000, send_buffer_max: 45_000, window_scaling: true, ..plain() };
    let mut p = Peer::server_offered(config.clone(), "mss 1000,wscale 4");
    assert_eq!((p.send_buffer(), p.has_notice()), (20_000, false));
    p.write(100_000);
    p.drain();
    for (i, (buffer, told)) in
        [(20_000, false), (24_000, true), (24_000, false), (28_000, true)].into_iter().enumerate()
    {
        p.inject(&format!(". 1:1(0) ack {} win 20000", 1001 + i * 1000));
        assert_eq!((p.send_buffer(), p.take_notice().has(Notice::ROOM)), (buffer, told), "{i}");
        p.take_acked();
        p.drain();
    }
    p.inject(". 1:1(0) ack 14001 win 20000");
    assert_eq!(p.send_buffer(), 45_000);
    p.drain();
    // SO_SNDBUF holds it.
    let mut p = Peer::server_offered(config, "mss 1000,wscale 4");
    p.set_send_buffer(10_000);
    p.write(100_000);
    p.drain();
    p.inject(". 1:1(0) ack 10001 win 20000");
    assert_eq!((p.send_buffer(), p.take_notice().has(Notice::ROOM)), (10_000, false));
    p.take_acked();
    p.drain();
    p.set_send_buffer(1);
    assert_eq!(p.send_buffer(), 2048);
}

/// A rate set by the application: each burst of two segments (`min_burst`) waits until the one before has left at that rate.
#[test]
fn a_pacing_rate_spaces_bursts() {
    let mut p = Peer::server();
    p.set_max_pacing_rate(100_000);
    p.write(8000);
    p.expect(". 1:1001(1000) ack 1 win 20000\n. 1001:2001(1000) ack 1 win 20000");
    p.quiet();
    p.timer_ms(20);
    p.expect(". 2001:3001(1000) ack 1 win 20000\n. 3001:4001(1000) ack 1 win 20000");
    p.quiet();
    // A turn that comes late is credited with a millisecond.
    p.now = p.now.plus_micros(22_000);
    p.run_timers();
    p.expect(". 4001:5001(1000) ack 1 win 20000\n. 5001:6001(1000) ack 1 win 20000");
    p.quiet();
    p.timer_ms(19);
    p.expect(". 6001:7001(1000) ack 1 win 20000\n. 7001:8001(1000) ack 1 win 20000");
    // No rate, no waiting.
    p.inject(". 1:1(0) ack 8001 win 20000");
    p.set_max_pacing_rate(u64::MAX);
    p.write(3000);
    assert_eq!(p.drain().len(), 3);
    // Retransmissions are paced as well.
    let mut p = Peer::server();
    p.write(3000);
    p.drain();
    p.set_max_pacing_rate(100_000);
    p.timer_ms(220);
    p.expect(". 1:1001(1000) ack 1 win 20000");
    p.inject(". 1:1(0) ack 1001 win 20000");
    p.quiet();
    p.timer_ms(10);
    p.expect(". 1001:2001(1000) ack 1 win 20000");
}

/// Pacing by the window: twice a round trip's worth in slow start, a fifth more afterwards.
#[test]
fn the_window_paces() {
    let mut p = Peer::server_with(Config { pacing: true, ..plain() });
    p.write(30_000);
    p.expect(". 1:1001(1000) ack 1 win 20000\n. 1001:2001(1000) ack 1 win 20000");
    // Ten segments in 20 ms, twice as fast: two every two milliseconds.
    for i in 1..5 {
        p.timer_ms(2);
        assert_eq!(p.drain().len(), 2, "{i}");
    }
    let mut p = Peer::server_with(Config { pacing: true, ..plain() });
    p.write(10_000);
    for _ in 0..4 {
        assert_eq!(p.drain().len(), 2);
        p.timer_ms(2);
    }
    assert_eq!(p.drain().len(), 2);
    // After a timeout, beyond the threshold: six segments in 20 ms and a fifth more.
    p.timer_ms(2);
    p.timer_ms(210);
    p.drain();
    p.inject(". 1:1(0) ack 10001 win 20000");
    assert_eq!(p.cwnd(), (6, 5));
    p.write(6000);
    assert_eq!(p.drain().len(), 2);
    let us = p.deadline().micros() - p.now.micros();
    assert_eq!(us, 5556);
}

/// Half as much again read in a round trip is expected once more.
#[test]
fn the_receive_buffer_expects_the_same_growth_again() {
    let mut p = receiver(config(), tuned());
    let mut seq = 1;
    feed(&mut p, &mut seq, 1, 50);
    for _ in 0..30 {
        p.inject(&format!(". {seq}:{}(1000) ack 1 win 20000", seq + 1000));
        seq += 1000;
        p.read();
        p.drain();
    }
    p.now = p.now.plus_micros(50_000);
    p.run_timers();
    p.inject(&format!(". {seq}:{}(1000) ack 1 win 20000", seq + 1000));
    p.read();
    p.drain();
    assert_eq!(p.info().rcv_space, 114_000);
}

/// A buffer that is larger than what is read needs does not shrink.
#[test]
fn the_receive_buffer_does_not_shrink() {
    let config = Config { timestamps: true, receive_buffer: 150_000, ..config() };
    let mut p = Peer::accepting(config, tuned(), "S 0:0(0) win 20000 <mss 1000,wscale 4,TS val 100 ecr 0>");
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000 <TS val 100 ecr 1000>");
    let mut seq = 1;
    for r in 0..6 {
        for _ in 0..20 {
            let (end, val, ecr) = (seq + 1000, 100 + r, 1020 + r * 50);
            p.inject(&format!(". {seq}:{end}(1000) ack 1 win 20000 <TS val {val} ecr {ecr}>"));
            seq = end;
            p.read();
            p.drain();
        }
        p.now = p.now.plus_micros(50_000);
        p.run_timers();
        p.drain();
        assert_eq!(p.info().rcv_space, 150_000);
    }
}

/// On a short path a burst is larger than what a rate takes in a millisecond: the peer's coalescing is worth it.
#[test]
fn bursts_are_longer_on_a_short_path() {
    for (us, burst) in [(20_000, 2), (100, 5)] {
        let mut p = Peer::accepting(plain(), open(), "S 0:0(0) win 20000 <mss 1000>");
        p.drain();
        p.now = p.now.plus_micros(us);
        p.inject(". 1:1(0) ack 1 win 20000");
        p.set_max_pacing_rate(100_000);
        p.write(8000);
        assert_eq!(p.drain().len(), burst, "{us}");
    }
}
