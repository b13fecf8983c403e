//! Peers that take back what they offered, or hold on to what they can.

use tcp::{Config, Error, State};

use crate::peer::{Peer, open, plain};

fn grabbing(una: u32, win: u32) -> String {
    format!(". 1:1(0) ack {una} win {win}")
}

/// SHLD-15: an ACK or RST beyond a window that has shrunk would be dropped, and with it what it acknowledges: it goes at the
/// window's edge. Less than a unit of the window field is rounding.
#[test]
fn what_carries_no_text_stays_inside_a_shrunken_window() {
    let mut p = Peer::server();
    p.write(5000);
    p.expect_data(1, 5001, true);
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1001 win 1500");
    p.inject("P. 1:1001(1000) ack 1001 win 1500");
    p.inject("P. 1001:2001(1000) ack 1001 win 1500");
    p.expect(". 2501:2501(0) ack 2001 win 18000");
    p.abort();
    p.expect("R. 2501:2501(0) ack 2001 win 0");

    for (window, at) in [(125, 5001), (124, 4969)] {
        let config = Config { window_scaling: true, ..plain() };
        let mut p = Peer::server_offered(config, "mss 1000,wscale 5");
        p.write(5000);
        assert_eq!(p.drain().len(), 5);
        p.wait_ms(20);
        // 1,001 + 125 · 32 is 5,001.
        p.inject(&format!(". 1:1(0) ack 1001 win {window}"));
        p.inject(&format!("P. 1:1001(1000) ack 1001 win {window}"));
        p.inject(&format!("P. 1001:2001(1000) ack 1001 win {window}"));
        p.expect(&format!(". {at}:{at}(0) ack 2001 win 18000"));
    }
}

/// MUST-37 is for those who wait: an orphan whose window was closed over what it had sent is given up like any other.
#[test]
fn an_orphan_does_not_wait_for_a_shrunken_window() {
    for (orphan, left) in [(true, State::Closed), (false, State::Established)] {
        let mut p = Peer::server_with(Config { orphan_retries: 3, ..plain() });
        p.write(2000);
        p.drain();
        p.wait_ms(20);
        p.inject(". 1:1(0) ack 1001 win 0");
        if orphan {
            p.close();
        }
        for n in 0..4 {
            p.timer_ms(220 << n);
            p.drain();
            if p.state() != State::Closed {
                p.inject(". 1:1(0) ack 1001 win 0");
            }
        }
        assert_eq!(p.state(), left);
    }
}

/// A window that opens by a byte and closes again restarts neither the persist timer nor its back-off.
#[test]
fn a_flickering_window_does_not_put_off_the_end() {
    let mut p = Peer::server_with(plain());
    p.inject(". 1:1(0) ack 1 win 0");
    p.write(3000);
    p.quiet();
    p.close();
    for n in 0..8 {
        for _ in 0..3 {
            p.wait_ms(60 << n);
            p.exchange(&grabbing(1, 1), "");
            p.exchange(&grabbing(1, 0), "");
        }
        p.timer_ms(40 << n);
        p.expect(". 0:0(0) ack 1 win 20000");
    }
    p.timer_ms(220 << 8);
    p.expect("R. 1:1(0) ack 1 win 0");
    assert_eq!((p.state(), p.error()), (State::Closed, Some(Error::TimedOut)));
}

/// RFC 5482 3.1: what is timed is data that waits, not how long the connection was idle before.
#[test]
fn the_user_timeout_counts_from_when_data_began_to_wait() {
    for fin in [false, true] {
        let mut p = Peer::server_with(plain());
        p.set_user_timeout(1000);
        p.inject(". 1:1(0) ack 1 win 0");
        p.wait_ms(3_600_000);
        if fin {
            p.shutdown()
        } else {
            p.write(3000)
        }
        p.quiet();
        for ms in [220, 440] {
            p.timer_ms(ms);
            p.expect(". 0:0(0) ack 1 win 20000");
            p.inject(". 1:1(0) ack 1 win 0");
        }
        // Later writes do not put it off.
        if !fin {
            p.write(10);
        }
        p.timer_ms(880);
        assert_eq!(p.error(), Some(Error::TimedOut));
        p.expect("R. 1:1(0) ack 1 win 0");
    }
}

/// Linux's tcp_reset_check: a RST with the number of the FIN before it ends what waits for nothing but our own FIN.
#[test]
fn a_reset_with_the_number_of_the_fin() {
    let mut p = Peer::server();
    p.exchange("F. 1:1(0) ack 1 win 20000", ". 1:1(0) ack 2 win 19999");
    p.inject("R 0:0(0)");
    assert_eq!(p.state(), State::CloseWait);
    p.inject("R 1:1(0)");
    assert_eq!((p.state(), p.error(), p.counters.resets_in), (State::Closed, Some(Error::Reset), 1));
    // Not before the FIN.
    let mut p = Peer::server();
    p.inject("R 0:0(0)");
    assert_eq!((p.state(), p.counters.unacceptable), (State::Established, 1));
}

/// A clock that jumps, as after SIGSTOP, gives round trips of an hour: nothing overflows.
#[test]
fn round_trips_of_an_hour_are_survived() {
    for segments in [1, 2] {
        let mut p = Peer::server_offered(Config { sack: true, ..plain() }, "mss 1000,sackOK");
        p.write(segments * 1000);
        p.drain();
        p.now = p.now.plus_micros(4_200_000_000);
        p.inject(&grabbing(1 + segments as u32 * 1000, 20_000));
        p.write(segments * 1000);
        p.drain();
        assert!(p.deadline() > p.now.plus_micros(1_000_000));
    }
}

/// A peer that asks for tiny segments does not make us remember one for every few bytes of a large buffer.
#[test]
fn tiny_segments_are_bounded_in_number() {
    let config = Config { window_scaling: true, initial_window: 60_000, send_buffer_max: 1 << 20, ..plain() };
    let mut p = Peer::server_offered(config, "mss 1,wscale 14");
    assert_eq!(p.segment_size(), 48);
    p.write(400_000);
    assert_eq!((p.drain().len(), p.info().unacked), (8192, 8192));
    assert!(p.counters.records_full > 0);
    // It goes on as they are acknowledged.
    p.wait_ms(20);
    p.inject(&grabbing(1 + 48, 20_000));
    assert_eq!((p.drain().len(), p.info().unacked), (1, 8192));
}

/// What a SACK block repeats is not looked at twice, and nothing is missed for it: whatever order segments arrive in, and
/// whichever blocks the peer chooses to report, all that were reported count.
#[test]
fn every_reported_segment_is_counted() {
    let mut x = 7_u64;
    let mut random = |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) % n
    };
    for round in 0..30 {
        let config = Config { sack: true, window_scaling: true, initial_window: 200, ..plain() };
        let mut p = Peer::server_offered(config, "mss 1000,sackOK,wscale 10");
        p.write(200_000);
        p.drain();
        p.wait_ms(20);
        // Segment 0 is lost; `true`: it has arrived, `told`: and was reported.
        let mut arrived = [false; 200];
        let mut told = [false; 200];
        let mut blocks: Vec<(usize, usize)> = Vec::new();
        for _ in 0..150 {
            let at = 1 + random(199) as usize;
            arrived[at] = true;
            // Blocks are whole runs, the newest first, then those reported before (RFC 2018 4).
            let run = |at: usize| {
                let left = (0..at).rev().find(|i| !arrived[*i]).map_or(0, |i| i + 1);
                let right = (at..200).find(|i| !arrived[*i]).unwrap_or(200);
                (left, right)
            };
            let mut next = vec![run(at)];
            next.extend(blocks.iter().map(|b| run(b.0)));
            next.dedup();
            let mut seen = Vec::new();
            next.retain(|b| !seen.contains(b) && (seen.push(*b), true).1);
            next.truncate(2 + random(3) as usize);
            blocks = next;
            let text: Vec<String> = blocks.iter().map(|(l, r)| format!(" {}:{}", 1 + l * 1000, 1 + r * 1000)).collect();
            p.inject(&format!(". 1:1(0) ack 1 win 20000 <sack{}>", text.concat()));
            blocks.iter().for_each(|(l, r)| told[*l..*r].fill(true));
            p.drain();
            p.now = p.now.plus_micros(random(300));
            let count = told.iter().filter(|t| **t).count() as u64;
            assert_eq!(p.info().sacked, count, "round {round}: {blocks:?}");
        }
        p.inject(&grabbing(200_001, 20_000));
        p.drain();
        assert_eq!((p.info().sacked, p.info().unacked), (0, 0));
    }
}

/// An application may ask for any buffer: no sum of sizes overflows, and data still flows.
#[test]
fn buffers_beyond_all_bounds() {
    let mut p = Peer::server();
    p.set_send_buffer(u32::MAX);
    p.set_receive_buffer(u32::MAX);
    assert_eq!((p.send_buffer(), p.info().rcv_space), (1 << 30, 1 << 30));
    p.write(1000);
    p.drain();
    p.wait_ms(20);
    p.exchange("P. 1:1001(1000) ack 1001 win 20000", ". 1001:1001(0) ack 1001 win 65535");
    assert_eq!(p.read(), 1000);
    p.drain();
}

/// RFC 6429 3: a closed window does not hold memory that others lack: an orphan's not while a quarter is missing, any other
/// not for longer than a minute when an eighth is left. With memory at hand both stay (MUST-37).
#[test]
fn closed_windows_do_not_hold_the_last_memory() {
    // Of 64 chunks of 2,048 bytes.
    for (bytes, orphan, outstanding, ends) in [
        (50 * 2048, true, false, Some(0)),
        (40 * 2048, true, false, None),
        (58 * 2048, false, false, Some(60)),
        (58 * 2048, false, true, Some(60)),
        (50 * 2048, false, false, None),
    ] {
        let config = Config { orphan_retries: 100, ..plain() };
        let mut p = Peer::with_memory(config, open(), "S 0:0(0) win 20000 <mss 1000>", 64);
        p.drain();
        p.wait_ms(20);
        p.inject(&grabbing(1, if outstanding { 2000 } else { 0 }));
        p.write(bytes);
        p.drain();
        p.inject(&grabbing(1, 0));
        if orphan {
            p.close();
        }
        let start = p.now;
        while p.state() != State::Closed && p.now.micros_since(start) < 200_000_000 {
            let us = p.deadline().micros() - p.now.micros();
            p.timer(us);
            p.drain();
            if p.state() != State::Closed {
                p.inject(&grabbing(1, 0));
            }
        }
        let lived = p.now.micros_since(start) / 1_000_000;
        assert_eq!((p.state() == State::Closed, p.counters.window_hoarders), (ends.is_some(), ends.is_some() as u64));
        assert!(ends.is_none_or(|s| (s..=2 * s + 1).contains(&lived)), "{bytes} {orphan}: {lived} s");
    }
}
