//! Opening (RFC 9293 3.5, 3.10.7.2, 3.10.7.3).

use tcp::{Config, Error, Notice, Open, Reply, State};
use wire::SeqNum;
use wire::tcp::Flags;

use crate::peer::{IRS, ISS, Peer, open, plain};

fn syn_sent() -> Peer {
    let mut p = Peer::connecting(plain(), open());
    p.expect("S 0:0(0) win 20000 <mss 1000>");
    p
}

fn syn_received() -> Peer {
    let mut p = Peer::accepting(plain(), open(), "S 0:0(0) win 20000 <mss 1000>");
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    p
}

#[test]
fn active_open() {
    let mut p = Peer::connecting(plain(), open());
    assert_eq!(p.state(), State::SynSent);
    assert!(p.wants_control() && !p.wants_data() && !p.passive() && !p.established());
    assert_eq!(p.stream_sent(), 0);
    p.expect("S 0:0(0) win 20000 <mss 1000>");
    assert!(!p.wants_control());
    p.inject("S. 0:0(0) ack 1 win 12000 <mss 800>");
    assert_eq!(p.state(), State::Established);
    assert!(p.established());
    assert_eq!(p.take_notice(), Notice::CONNECTED);
    assert!(p.wants_ack());
    p.expect(". 1:1(0) ack 1 win 20000");
    p.no_timer();
    let i = p.info();
    assert_eq!((i.snd_mss, i.snd_wnd, i.rcv_wnd, i.unacked_bytes), (800, 12_000, 20_000, 0));
    assert_eq!((i.segs_in, i.segs_out, i.total_retrans), (1, 2, 0));
}

#[test]
fn passive_open() {
    let mut p = Peer::accepting(plain(), open(), "S 0:0(0) win 12000 <mss 800>");
    assert_eq!(p.state(), State::SynReceived);
    assert!(p.passive() && p.wants_control() && !p.wants_data() && !p.established());
    assert_eq!(p.info().snd_wnd, 12_000);
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    p.inject(". 1:1(0) ack 1 win 9000");
    assert_eq!(p.state(), State::Established);
    assert_eq!(p.take_notice(), Notice::CONNECTED);
    p.quiet();
    p.no_timer();
    assert_eq!(p.info().snd_wnd, 9000);
    assert_eq!(p.counters.resets_in, 0);
}

/// The window of the last ACK of the handshake counts, even when it is older by sequence number than nothing at all.
#[test]
fn a_window_that_shrinks_with_the_last_ack_counts() {
    let mut p = syn_received();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 500");
    p.write(3000);
    // RFC 9293 3.8.6.2.1: half the largest window seen is 10,000, so 500 bytes wait for the override.
    p.quiet();
    p.timer_ms(220);
    p.expect(". 1:501(500) ack 1 win 20000");
}

/// The last ACK waits one turn for what the application sends at once.
#[test]
fn the_ack_of_a_syn_ack_may_ride_on_data() {
    let mut p = syn_sent();
    p.inject("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    assert!(p.wants_ack() && p.defer_ack());
    assert!(!p.defer_ack(), "only once");
    p.write(100);
    p.expect("P. 1:101(100) ack 1 win 20000");
    p.inject(". 1:1(0) ack 101 win 20000");
    assert!(!p.defer_ack());
}

#[test]
fn syn_is_retransmitted_with_backoff_until_r2() {
    let mut p = syn_sent();
    for (n, s) in [1, 2, 4, 8, 16, 32, 64].into_iter().enumerate() {
        p.timer_ms(s * 1000);
        assert!(p.wants_control());
        p.expect("S 0:0(0) win 20000 <mss 1000>");
        assert_eq!(p.info().backoff, n as u64 + 1);
    }
    assert_eq!((p.counters.syn_retransmits, p.info().total_retrans, p.counters.timeouts), (7, 7, 7));
    p.timer_ms(120_000);
    p.quiet();
    assert_eq!((p.state(), p.error(), p.take_notice()), (State::Closed, Some(Error::TimedOut), Notice::FAILED));
    p.no_timer();
}

#[test]
fn syn_retries_are_configurable() {
    let mut p = Peer::connecting(Config { syn_retries: 1, ..plain() }, open());
    assert_eq!(p.drain().len(), 1);
    p.timer_ms(1000);
    assert_eq!(p.drain().len(), 1);
    p.timer_ms(2000);
    assert_eq!(p.error(), Some(Error::TimedOut));
}

#[test]
fn syn_ack_is_retransmitted_with_backoff_until_its_own_limit() {
    let mut p = syn_received();
    for s in [1, 2, 4, 8, 16] {
        p.timer_ms(s * 1000);
        p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    }
    p.timer_ms(32_000);
    p.quiet();
    assert_eq!((p.state(), p.error()), (State::Closed, Some(Error::TimedOut)));
}

/// RFC 9293 3.10.7.3: an unacceptable ACK is answered by a RST, and the SYN is sent again soon.
#[test]
fn unacceptable_acks_in_syn_sent_are_reset() {
    for ack in [0, 2] {
        let mut p = syn_sent();
        let reply = p.reply_to(&format!("S. 0:0(0) ack {ack} win 20000"));
        assert_eq!(reply, Some(Reply { seq: ISS + ack, ack: SeqNum(0), flags: Flags::RST }));
        assert_eq!(p.state(), State::SynSent);
        p.timer_ms(2);
        p.expect("S 0:0(0) win 20000 <mss 1000>");
        // Only the first time: whoever answers so does not make us send every 2 ms.
        assert!(p.reply_to(&format!(". 0:0(0) ack {ack} win 20000")).is_some());
        p.timer_ms(2000);
    }
}

#[test]
fn resets_in_syn_sent_count_only_with_our_ack() {
    for text in ["R. 0:0(0) ack 0 win 0", "R. 0:0(0) ack 2 win 0", "R 0:0(0) win 0"] {
        let mut p = syn_sent();
        p.inject(text);
        p.quiet();
        assert_eq!((p.state(), p.counters.resets_in), (State::SynSent, 0));
        p.timer_ms(1000);
    }
    let mut p = syn_sent();
    p.inject("R. 0:0(0) ack 1 win 0");
    p.quiet();
    assert_eq!((p.state(), p.error(), p.counters.resets_in), (State::Closed, Some(Error::Refused), 1));
    assert_eq!(p.take_notice(), Notice::FAILED);
    p.no_timer();
}

/// RFC 9293 3.10.7.3, fifth: neither SYN nor RST.
#[test]
fn other_segments_in_syn_sent_are_dropped() {
    let mut p = syn_sent();
    for text in
        [". 0:0(0) ack 1 win 20000", "P. 1:101(100) ack 1 win 20000", "F. 1:1(0) ack 1 win 20000", "P 1:9(8) win 1"]
    {
        p.exchange(text, "");
        assert_eq!(p.state(), State::SynSent);
    }
    p.timer_ms(1000);
}

/// RFC 9293 3.5, figure 8 (MUST-10).
#[test]
fn simultaneous_open() {
    let mut p = syn_sent();
    p.inject("S 0:0(0) win 15000 <mss 900>");
    assert_eq!((p.state(), p.passive()), (State::SynReceived, false));
    assert!(p.wants_control());
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    assert_eq!(p.take_notice(), Notice::default());
    p.inject("S. 0:0(0) ack 1 win 15000 <mss 900>");
    assert_eq!((p.state(), p.take_notice()), (State::Established, Notice::CONNECTED));
    p.quiet();
    assert_eq!((p.info().snd_mss, p.info().snd_wnd), (900, 15_000));
    p.no_timer();
}

/// The same, with a plain ACK instead of the peer's SYN/ACK.
#[test]
fn simultaneous_open_ends_with_an_ack_as_well() {
    let mut p = syn_sent();
    p.inject("S 0:0(0) win 15000 <mss 900>");
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    p.inject(". 1:1(0) ack 1 win 15000");
    assert_eq!(p.state(), State::Established);
}

/// In a simultaneous open the peer's SYN may come again before its SYN/ACK; a SYN/ACK for something else does not open.
#[test]
fn simultaneous_open_answers_a_repeated_syn() {
    let mut p = syn_sent();
    p.inject("S 0:0(0) win 15000 <mss 900>");
    p.expect("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    p.exchange("S 0:0(0) win 15000 <mss 900>", "S. 0:0(0) ack 1 win 20000 <mss 1000>");
    p.exchange("S. 0:0(0) ack 0 win 15000 <mss 900>", "S. 0:0(0) ack 1 win 20000 <mss 1000>");
    assert_eq!(p.state(), State::SynReceived);
}

/// RFC 9293 3.10.7.4, RFC 5961 3.2 and 4.2: in SYN-RECEIVED, too, what is unacceptable is answered by an ACK, and a RST or SYN in
/// the window by a challenge. The window of that ACK is scaled (RFC 7323 2.3), and its edge is the SYN/ACK's.
#[test]
fn after_a_simultaneous_open_strange_segments_are_answered() {
    let config = Config { window_scaling: true, receive_buffer_max: 1 << 20, ..plain() };
    let open = Open { receive_buffer: 0, ..open() };
    for (text, challenges) in [
        (". 0:0(0) ack 1 win 15000", 0),
        ("P. 200000:200010(10) ack 1 win 15000", 0),
        ("R 1000:1000(0) win 0", 1),
        ("S 1000:1000(0) win 15000", 1),
    ] {
        let config = Config { receive_buffer: 64_000, ..config.clone() };
        let mut p = Peer::connecting(config, open);
        p.expect("S 0:0(0) win 64000 <mss 1000,wscale 5>");
        p.inject("S 0:0(0) win 15000 <mss 900,wscale 0>");
        p.expect("S. 0:0(0) ack 1 win 64000 <mss 1000,wscale 5>");
        p.exchange(text, ". 1:1(0) ack 1 win 2000");
        assert_eq!((p.state(), p.counters.challenge_acks), (State::SynReceived, challenges), "{text}");
        p.quiet();
        p.inject(". 1:1(0) ack 1 win 15000");
        assert_eq!((p.state(), p.info().rcv_wnd), (State::Established, 64_000));
        p.drain();
    }
}

/// RFC 9293 3.10.7.4, MUST-11: a RST sends an opener to CLOSED as refused, and a passive one away as reset.
#[test]
fn a_reset_in_syn_received() {
    let mut p = syn_sent();
    p.inject("S 0:0(0) win 15000");
    p.drain();
    p.inject("R 1:1(0) win 0");
    assert_eq!((p.state(), p.error()), (State::Closed, Some(Error::Refused)));
    let mut p = syn_received();
    p.inject("R 1:1(0) win 0");
    p.quiet();
    assert_eq!((p.state(), p.error(), p.counters.resets_in), (State::Closed, Some(Error::Reset), 1));
}

/// RFC 9293 3.10.7.3: text on the SYN/ACK is taken.
#[test]
fn data_on_a_syn_ack() {
    for (text, state, read, ack) in [
        ("S. 0:100(100) ack 1 win 20000 <mss 1000>", State::Established, 100, ". 1:1(0) ack 101 win 19900"),
        ("SF. 0:0(0) ack 1 win 20000 <mss 1000>", State::CloseWait, 0, ". 1:1(0) ack 2 win 19999"),
        ("SF. 0:50(50) ack 1 win 20000 <mss 1000>", State::CloseWait, 50, ". 1:1(0) ack 52 win 19949"),
    ] {
        let mut p = syn_sent();
        p.inject(text);
        assert_eq!((p.state(), p.take()), (state, read));
        p.expect(ack);
    }
}

/// A SYN that comes again means that the SYN/ACK was lost.
#[test]
fn a_repeated_syn_is_answered_by_the_same_syn_ack() {
    let mut p = syn_received();
    p.exchange("S 0:0(0) win 20000 <mss 1000>", "S. 0:0(0) ack 1 win 20000 <mss 1000>");
    assert_eq!((p.state(), p.counters.syn_retransmits), (State::SynReceived, 1));
    p.inject("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    assert_eq!(p.state(), State::SynReceived, "a passive opener takes no SYN/ACK");
    p.drain();
    p.exchange(". 1:1(0) ack 1 win 20000", "");
    assert_eq!(p.state(), State::Established);
}

/// RFC 9293 3.10.7.4: in SYN-RECEIVED an ACK of something else is answered by a RST.
#[test]
fn unacceptable_acks_in_syn_received_are_reset() {
    for ack in [0, 2] {
        let mut p = syn_received();
        let reply = p.reply_to(&format!(". 1:1(0) ack {ack} win 20000"));
        assert_eq!(reply, Some(Reply { seq: ISS + ack, ack: SeqNum(0), flags: Flags::RST }));
        assert_eq!(p.state(), State::SynReceived);
    }
}

/// RFC 9293 3.10.7.4: a segment without ACK is dropped.
#[test]
fn segments_without_ack_in_syn_received_are_dropped() {
    let mut p = syn_received();
    p.exchange("P 1:101(100) win 20000", "");
    assert_eq!((p.state(), p.take()), (State::SynReceived, 0));
}

#[test]
fn the_last_ack_may_carry_data_and_fin() {
    let mut p = syn_received();
    p.inject("PF. 1:101(100) ack 1 win 20000");
    assert_eq!(p.state(), State::CloseWait);
    assert_eq!(p.notice(), Notice(Notice::CONNECTED.0 | Notice::DATA.0 | Notice::FIN.0));
    p.expect(". 1:1(0) ack 102 win 19899");
    assert_eq!(p.read(), 100);
}

/// A FIN before our SYN is acknowledged waits for its turn: the segment lacks an acceptable ACK.
#[test]
fn nothing_is_sent_before_the_handshake_is_done() {
    let mut p = syn_received();
    p.write(500);
    p.shutdown();
    p.quiet();
    assert!(!p.wants_data());
    p.exchange(". 1:1(0) ack 1 win 20000", "FP. 1:501(500) ack 1 win 20000");
    assert_eq!(p.state(), State::FinWait1);
}

/// RFC 9293 3.10.4: CLOSE in SYN-SENT forgets the connection without a word.
#[test]
fn closing_in_syn_sent_sends_nothing() {
    let calls: [fn(&mut Peer); 3] = [Peer::shutdown, Peer::close, Peer::abort];
    for call in calls {
        let mut p = syn_sent();
        call(&mut p);
        p.quiet();
        assert_eq!((p.state(), p.error()), (State::Closed, None));
        p.no_timer();
    }
}

/// RFC 9293 3.10.5: ABORT in SYN-RECEIVED resets.
#[test]
fn aborting_in_syn_received_resets() {
    let mut p = syn_received();
    p.abort();
    assert!(p.wants_control());
    p.expect("R. 1:1(0) ack 1 win 0");
    assert_eq!((p.state(), p.counters.resets_out), (State::Closed, 1));
    assert!(!p.wants_control());
}

/// RFC 6298 3: the time of a SYN sent once is a sample; Karn's algorithm forbids it after a retransmission.
#[test]
fn the_handshake_measures_the_path_unless_it_was_repeated() {
    let mut p = syn_sent();
    p.wait_ms(80);
    p.inject("S. 0:0(0) ack 1 win 20000");
    let i = p.info();
    assert_eq!((i.srtt_us, i.rttvar_us, i.min_rtt_us, i.rto_us), (80_000, 40_000, 80_000, 280_000));
    let mut p = syn_sent();
    p.timer_ms(1000);
    p.drain();
    p.wait_ms(80);
    p.inject("S. 0:0(0) ack 1 win 20000");
    let i = p.info();
    // RFC 6298 5.7: three seconds for data then.
    assert_eq!((i.srtt_us, i.min_rtt_us, i.backoff, i.rto_us), (0, 0, 0, 3_000_000));
}

/// RFC 5681 3.1, RFC 6928 2: the window starts from one segment when more than one SYN was lost.
#[test]
fn lost_syns_leave_a_window_of_one_segment() {
    let mut p = syn_received();
    p.timer_ms(1000);
    p.drain();
    p.inject(". 1:1(0) ack 1 win 20000");
    assert_eq!(p.cwnd().0, 10);
    let mut p = syn_received();
    for ms in [1000, 2000] {
        p.timer_ms(ms);
        p.drain();
    }
    p.inject(". 1:1(0) ack 1 win 20000");
    p.write(5000);
    p.expect(". 1:1001(1000) ack 1 win 20000");
}

/// RFC 9293 3.10.7.1: segments for no connection.
#[test]
fn closed_connections_answer_with_resets() {
    let mut p = Peer::server();
    p.abort();
    p.drain();
    assert_eq!(p.reply_to("R 1:1(0) win 0"), None);
    let rst = Reply { seq: ISS + 77, ack: SeqNum(0), flags: Flags::RST };
    assert_eq!(p.reply_to("P. 1:11(10) ack 77 win 0"), Some(rst));
    for (text, len) in
        [("P 5:15(10) win 0", 10), ("S 5:5(0) win 0", 1), ("SF 5:5(0) win 0", 2), ("F 5:15(10) win 0", 11)]
    {
        let rst = Reply { seq: SeqNum(0), ack: IRS + 5 + len, flags: Flags::RST | Flags::ACK };
        assert_eq!(p.reply_to(text), Some(rst), "{text}");
    }
    p.quiet();
}

/// RFC 7323 3.2: timestamps that were not asked for, or that echo nothing, are no reason to refuse a SYN/ACK.
#[test]
fn a_meaningless_echo_does_not_refuse() {
    let mut p = syn_sent();
    p.exchange("S. 0:0(0) ack 1 win 20000 <mss 1000,TS val 5 ecr 7>", ". 1:1(0) ack 1 win 20000");
    assert_eq!(p.state(), State::Established);
    let mut p = Peer::connecting(Config { timestamps: true, ..plain() }, open());
    p.drain();
    p.inject("S. 0:0(0) ack 1 win 20000 <mss 1000,TS val 5 ecr 0>");
    assert_eq!((p.state(), p.counters.paws), (State::Established, 0));
    p.drain();
}

/// A repeated SYN carries no byte of the stream, and the stream has not begun before the handshake's end.
#[test]
fn a_syn_is_no_data() {
    let mut p = syn_sent();
    p.timer_ms(1000);
    p.drain();
    let i = p.info();
    assert_eq!((i.total_retrans, i.bytes_sent, i.bytes_retrans, p.stream_sent()), (1, 0, 0, 0));
    p.inject("S. 0:0(0) ack 1 win 20000 <mss 1000>");
    p.drain();
    assert_eq!((p.stream_sent(), p.smss()), (0, 1000));
    p.write(1500);
    p.shutdown();
    p.drain();
    assert_eq!((p.stream_sent(), p.info().bytes_sent), (1500, 1500));
}
