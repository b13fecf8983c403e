//! Closing: every way through the state diagram (RFC 9293 3.3.2, 3.6, 3.10.4, 3.10.5, 3.10.7.4).

use core::time::Duration;

use tcp::{Config, Error, Notice, Reply, State};
use wire::SeqNum;
use wire::tcp::Flags;

use crate::peer::{ISS, Peer, plain};

fn fin_wait_1() -> Peer {
    let mut p = Peer::server();
    p.shutdown();
    assert!(p.wants_data());
    p.expect("F. 1:1(0) ack 1 win 20000");
    assert_eq!(p.state(), State::FinWait1);
    assert!(!p.wants_data());
    p
}

fn fin_wait_2() -> Peer {
    let mut p = fin_wait_1();
    p.exchange(". 1:1(0) ack 2 win 20000", "");
    assert_eq!(p.state(), State::FinWait2);
    p
}

#[test]
fn we_close_first() {
    let mut p = fin_wait_2();
    p.no_timer();
    p.inject("F. 1:1(0) ack 2 win 20000");
    assert_eq!((p.state(), p.take_notice()), (State::TimeWait, Notice::FIN));
    assert!(p.wants_ack());
    p.expect(". 2:2(0) ack 2 win 19999");
    p.no_timer();
}

#[test]
fn their_fin_acknowledges_ours() {
    let mut p = fin_wait_1();
    p.exchange("F. 1:1(0) ack 2 win 20000", ". 2:2(0) ack 2 win 19999");
    assert_eq!(p.state(), State::TimeWait);
    p.no_timer();
}

/// RFC 9293 3.6, figure 13.
#[test]
fn both_close_at_once() {
    let mut p = fin_wait_1();
    p.exchange("F. 1:1(0) ack 1 win 20000", ". 2:2(0) ack 2 win 19999");
    assert_eq!((p.state(), p.take_notice()), (State::Closing, Notice::FIN));
    // The FIN is still retransmitted.
    p.timer_ms(220);
    p.expect("F. 1:1(0) ack 2 win 19999");
    p.exchange(". 2:2(0) ack 1 win 20000", "");
    assert_eq!(p.state(), State::Closing);
    p.exchange(". 2:2(0) ack 2 win 20000", "");
    assert_eq!(p.state(), State::TimeWait);
    p.no_timer();
}

#[test]
fn the_peer_closes_first() {
    let mut p = Peer::server();
    p.inject("F. 1:1(0) ack 1 win 20000");
    assert_eq!((p.state(), p.take_notice()), (State::CloseWait, Notice::FIN));
    // Its ACK waits one turn for our FIN.
    assert!(p.wants_ack() && p.defer_ack() && !p.defer_ack());
    p.expect(". 1:1(0) ack 2 win 19999");
    // We may still send.
    p.write(10);
    p.expect("P. 1:11(10) ack 2 win 19999");
    p.exchange(". 2:2(0) ack 11 win 20000", "");
    p.shutdown();
    p.expect("F. 11:11(0) ack 2 win 19999");
    assert_eq!(p.state(), State::LastAck);
    p.exchange(". 2:2(0) ack 11 win 20000", "");
    assert_eq!(p.state(), State::LastAck);
    p.exchange(". 2:2(0) ack 12 win 20000", "");
    assert_eq!((p.state(), p.error()), (State::Closed, None));
    p.no_timer();
}

/// The last acknowledgment ends it, whatever the segment carries besides.
#[test]
fn nothing_is_taken_after_the_end() {
    let mut p = Peer::server();
    p.inject("F. 1:1(0) ack 1 win 20000");
    p.shutdown();
    p.drain();
    assert_eq!(p.state(), State::LastAck);
    p.exchange("P. 2:12(10) ack 2 win 20000", "");
    assert_eq!((p.state(), p.take(), p.deadline()), (State::Closed, 0, wire::Instant::FAR));
    let mut p = fin_wait_1();
    p.inject("F. 1:1(0) ack 1 win 20000");
    p.drain();
    p.exchange("P. 2:12(10) ack 2 win 20000", "");
    assert_eq!((p.state(), p.take()), (State::TimeWait, 0));
}

/// A FIN is acknowledged whenever it comes, and counts once.
#[test]
fn a_repeated_fin_is_acknowledged() {
    let mut p = Peer::server();
    p.inject("F. 1:1(0) ack 1 win 20000");
    p.drain();
    p.take_notice();
    for text in ["F. 1:1(0) ack 1 win 20000", "F. 2:2(0) ack 1 win 20000", "P. 2:12(10) ack 1 win 20000"] {
        p.exchange(text, ". 1:1(0) ack 2 win 19999");
        assert_eq!((p.state(), p.notice(), p.take()), (State::CloseWait, Notice::default(), 0), "{text}");
    }
    p.shutdown();
    p.drain();
    p.exchange("F. 2:2(0) ack 1 win 20000", ". 2:2(0) ack 2 win 19999");
    assert_eq!(p.state(), State::LastAck);
    let mut p = fin_wait_1();
    p.exchange("F. 1:1(0) ack 1 win 20000", ". 2:2(0) ack 2 win 19999");
    p.exchange("F. 2:2(0) ack 1 win 20000", ". 2:2(0) ack 2 win 19999");
    assert_eq!(p.state(), State::Closing);
}

/// MAY-1: half-closed, we still receive, for as long as it takes.
#[test]
fn half_closed_still_receives() {
    for acked in [false, true] {
        let mut p = if acked { fin_wait_2() } else { fin_wait_1() };
        let ack = if acked { 2 } else { 1 };
        p.inject(&format!("P. 1:101(100) ack {ack} win 20000"));
        assert_eq!((p.take(), p.take_notice()), (100, Notice::DATA));
        p.expect(". 2:2(0) ack 101 win 19900");
        p.inject("FP. 101:201(100) ack 2 win 20000");
        assert_eq!((p.take(), p.state()), (100, State::TimeWait));
        p.drain();
    }
}

/// After the FIN nothing more is sent, whatever is written.
#[test]
fn nothing_is_sent_after_the_fin() {
    let mut p = Peer::server();
    p.write(1500);
    p.shutdown();
    p.write(10);
    p.expect(
        ". 1:1001(1000) ack 1 win 20000
         FP. 1001:1501(500) ack 1 win 20000",
    );
    p.write(10);
    p.shutdown();
    p.quiet();
    assert_eq!(p.info().notsent_bytes, 0);
    p.exchange(". 1:1(0) ack 1502 win 20000", "");
    assert_eq!(p.state(), State::FinWait2);
}

/// A FIN waits for the data before it, and rides on the last segment.
#[test]
fn a_fin_follows_the_data() {
    let mut p = Peer::server_window(plain(), 1000);
    p.write(2000);
    p.shutdown();
    p.expect(". 1:1001(1000) ack 1 win 20000");
    assert_eq!(p.state(), State::Established);
    p.wait_ms(20);
    // The FIN takes a number of the window, too.
    p.exchange(". 1:1(0) ack 1001 win 1000", "P. 1001:2001(1000) ack 1 win 20000");
    assert_eq!(p.state(), State::Established);
    p.exchange(". 1:1(0) ack 2001 win 1", "F. 2001:2001(0) ack 1 win 20000");
    assert_eq!((p.state(), p.info().unacked_bytes), (State::FinWait1, 1));
    let mut p = Peer::server_window(plain(), 1001);
    p.write(1000);
    p.shutdown();
    p.expect("FP. 1:1001(1000) ack 1 win 20000");
}

/// An application that has closed is told nothing; FIN-WAIT-2 then has a limit.
#[test]
fn an_orphan_in_fin_wait_2_is_timed() {
    // Closed after the shutdown was acknowledged.
    let mut p = fin_wait_2();
    p.close();
    p.timer_ms(60_000);
    p.quiet();
    assert_eq!((p.state(), p.error()), (State::Closed, None));
    // Closed at once.
    let mut p = Peer::server_with(Config { fin_timeout: Duration::from_secs(7), ..plain() });
    p.close();
    assert!(p.orphaned());
    p.expect("F. 1:1(0) ack 1 win 20000");
    p.wait_ms(20);
    p.exchange(". 1:1(0) ack 2 win 20000", "");
    assert_eq!(p.state(), State::FinWait2);
    p.timer_ms(7000);
    assert_eq!(p.state(), State::Closed);
    // Its FIN still ends it properly.
    let mut p = fin_wait_2();
    p.close();
    p.exchange("F. 1:1(0) ack 2 win 20000", ". 2:2(0) ack 2 win 19999");
    assert_eq!((p.state(), p.notice()), (State::TimeWait, Notice::default()));
    p.no_timer();
}

/// SHLD-3, RFC 2525 2.17: data that nobody will read is answered by a RST.
#[test]
fn data_for_an_orphan_is_reset() {
    let mut p = Peer::server();
    p.close();
    p.expect("F. 1:1(0) ack 1 win 20000");
    let rst = Reply { seq: ISS + 1, ack: SeqNum(0), flags: Flags::RST };
    assert_eq!(p.reply_to("P. 1:2(1) ack 1 win 20000"), Some(rst));
    p.quiet();
    assert_eq!((p.state(), p.counters.data_after_close, p.counters.resets_out), (State::Closed, 1, 1));
    // What was known already is not new data.
    let mut p = Peer::server();
    p.inject("P. 1:11(10) ack 1 win 20000");
    assert_eq!(p.read(), 10);
    p.close();
    p.expect("F. 1:1(0) ack 11 win 19990");
    p.exchange("P. 1:11(10) ack 1 win 20000", ". 2:2(0) ack 11 win 19990");
    assert_eq!(p.counters.data_after_close, 0);
    p.inject("F. 1:11(10) ack 1 win 20000");
    assert_eq!((p.counters.data_after_close, p.state()), (0, State::Closing));
    p.drain();
}

/// RFC 9293 3.10.4: closing with data unread resets, here or with the application.
#[test]
fn closing_with_data_unread_resets() {
    let mut p = Peer::server();
    p.inject("P. 1:11(10) ack 1 win 20000");
    p.drain();
    p.close();
    p.expect("R. 1:1(0) ack 11 win 0");
    assert_eq!(p.state(), State::Closed);
    let mut p = Peer::server();
    p.close_unread();
    p.expect("R. 1:1(0) ack 1 win 0");
    // In CLOSE-WAIT as well, and not when everything was read.
    let mut p = Peer::server();
    p.inject("FP. 1:11(10) ack 1 win 20000");
    p.drain();
    p.close();
    p.expect("R. 1:1(0) ack 12 win 0");
    let mut p = Peer::server();
    p.inject("FP. 1:11(10) ack 1 win 20000");
    p.drain();
    assert_eq!(p.read(), 10);
    p.close();
    p.expect("F. 1:1(0) ack 12 win 19989");
    assert_eq!(p.state(), State::LastAck);
}

/// Closing with data unread takes nothing back that was written before and may go: RST follows it.
#[test]
fn a_reset_for_data_unread_follows_what_was_written() {
    for more in [false, true] {
        let mut p = Peer::server();
        p.inject("P. 1:11(10) ack 1 win 20000");
        if more {
            p.write_more(1500)
        } else {
            p.write(1500)
        }
        p.close();
        p.expect(". 1:1001(1000) ack 11 win 19990\nP. 1001:1501(500) ack 11 win 19990\nR. 1501:1501(0) ack 11 win 0");
        assert_eq!((p.state(), p.counters.resets_out), (State::Closed, 1));
        p.no_timer();
    }
    // No further than the peer's window, for which it does not wait.
    let mut p = Peer::server();
    p.inject("P. 1:11(10) ack 1 win 1500");
    p.write(4000);
    p.close_unread();
    p.expect(". 1:1001(1000) ack 11 win 19990\nR. 1001:1001(0) ack 11 win 0");
    p.no_timer();
    // A peer that resets first is not answered.
    let mut p = Peer::server();
    p.write(1500);
    p.close_unread();
    p.inject("R 1:1(0) win 0");
    p.quiet();
    assert_eq!(p.state(), State::Closed);
}

/// A connection that is over is not reset for data unread.
#[test]
fn closing_what_is_over_sends_nothing() {
    let mut p = fin_wait_2();
    p.inject("FP. 1:11(10) ack 2 win 20000");
    p.expect(". 2:2(0) ack 12 win 19989");
    p.close();
    p.quiet();
    assert_eq!((p.state(), p.notice()), (State::TimeWait, Notice::default()));
    let mut p = Peer::server();
    p.inject("R 1:1(0) win 0");
    p.close_unread();
    p.quiet();
    assert_eq!(p.state(), State::Closed);
}

/// RFC 9293 3.10.5: ABORT resets in every synchronized state, and only there; queued data goes.
#[test]
fn abort_resets() {
    let mut p = Peer::server();
    p.write(20_000);
    assert_eq!(p.drain().len(), 10);
    p.abort();
    p.expect("R. 10001:10001(0) ack 1 win 0");
    assert_eq!((p.state(), p.error(), p.info().notsent_bytes), (State::Closed, None, 0));
    p.no_timer();
    let mut p = fin_wait_1();
    p.abort();
    p.expect("R. 2:2(0) ack 1 win 0");
    let mut p = fin_wait_2();
    p.abort();
    p.expect("R. 2:2(0) ack 1 win 0");
    let mut p = fin_wait_2();
    p.inject("F. 1:1(0) ack 2 win 20000");
    p.drain();
    p.abort();
    p.quiet();
    assert_eq!(p.state(), State::Closed);
    p.abort();
    p.quiet();
}

/// RFC 9293 3.10.7.4: a RST ends each of the closing states.
#[test]
fn a_reset_ends_every_state() {
    let mut states = [fin_wait_1(), fin_wait_2(), fin_wait_1(), Peer::server(), Peer::server()];
    states[2].exchange("F. 1:1(0) ack 1 win 20000", ". 2:2(0) ack 2 win 19999");
    states[3].exchange("F. 1:1(0) ack 1 win 20000", ". 1:1(0) ack 2 win 19999");
    states[4].exchange("F. 1:1(0) ack 1 win 20000", ". 1:1(0) ack 2 win 19999");
    states[4].shutdown();
    states[4].drain();
    let names = [State::FinWait1, State::FinWait2, State::Closing, State::CloseWait, State::LastAck];
    for (mut p, state) in states.into_iter().zip(names) {
        assert_eq!(p.state(), state);
        let seq = if matches!(state, State::FinWait1 | State::FinWait2) { 1 } else { 2 };
        p.exchange(&format!("R {seq}:{seq}(0) win 0"), "");
        assert_eq!((p.state(), p.error()), (State::Closed, Some(Error::Reset)), "{state:?}");
    }
}

/// An orphan whose FIN is never acknowledged ends with the retries.
#[test]
fn an_orphan_gives_up_with_the_retries() {
    let mut p = Peer::server_with(Config { orphan_retries: 2, ..plain() });
    p.write(10);
    p.close();
    p.expect("FP. 1:11(10) ack 1 win 20000");
    for n in 0..2 {
        p.timer_ms(220 << n);
        p.expect("FP. 1:11(10) ack 1 win 20000");
    }
    p.timer_ms(880);
    p.expect("R. 12:12(0) ack 1 win 0");
    assert_eq!((p.state(), p.notice()), (State::Closed, Notice::default()));
}

/// What a closed or closing connection is asked for changes nothing.
#[test]
fn calls_after_the_end_do_nothing() {
    let mut p = Peer::server();
    p.abort();
    p.drain();
    p.shutdown();
    p.write(10);
    p.cork(false);
    p.consumed(10);
    p.run_timers();
    p.quiet();
    assert!(!p.wants_data() && !p.wants_control() && !p.wants_ack());
    assert!(!p.established());
    p.no_timer();
}

/// Notices that could not be delivered come again.
#[test]
fn notices_and_bytes_can_be_put_back() {
    let mut p = Peer::server();
    p.inject("FP. 1:11(10) ack 1 win 20000");
    assert!(p.has_notice());
    let n = p.take_notice();
    assert!(n.has(Notice::DATA) && n.has(Notice::FIN) && !n.has(Notice::FAILED) && !p.has_notice());
    p.put_notice(n);
    p.put_notice(Notice::ACKED);
    assert_eq!(p.notice(), Notice(Notice::DATA.0 | Notice::FIN.0 | Notice::ACKED.0));
    let chain = p.take_received();
    assert_eq!((chain.len(), p.take_received().len()), (10, 0));
    p.put_received(chain);
    assert_eq!(p.read(), 10);
    p.drain();
}
