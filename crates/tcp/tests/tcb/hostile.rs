//! Peers that take back what they offered, or hold on to what they can.

use tcp::{Config, Error, State};

use crate::peer::{Peer, plain};

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
