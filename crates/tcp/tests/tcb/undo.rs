//! Spurious timeouts and retransmissions, found and undone: F-RTO (RFC 5682), timestamps (RFC 3522), D-SACK (RFC 3708).

use tcp::Config;

use crate::peer::{Peer, plain};

fn frto() -> Config {
    Config { sack: true, tail_loss_probe: false, frto: true, ..plain() }
}

fn sender(config: Config, options: &str, bytes: usize) -> Peer {
    let mut p = Peer::server_offered(config, &format!("mss 1000{options}"));
    p.write(bytes);
    p.drain();
    p
}

fn ack(n: u32) -> String {
    format!(". 1:1(0) ack {n} win 20000")
}

fn seg(n: u32) -> String {
    format!(". {n}:{}(1000) ack 1 win 20000", n + 1000)
}

/// RFC 5682 2.1: after the timeout one acknowledgment lets two new segments out; the next says that the originals arrived.
#[test]
fn a_spurious_timeout_is_undone() {
    for (options, sack) in [("", false), (",sackOK", true)] {
        let mut p = sender(Config { sack, ..frto() }, options, 20_000);
        p.timer_ms(220);
        p.expect(&seg(1));
        assert_eq!((p.cwnd(), p.info().ca_state), ((1, 5), 4));
        p.exchange(&ack(1001), &[seg(10_001), seg(11_001)].join("\n"));
        p.inject(&ack(2001));
        assert_eq!((p.counters.spurious_timeouts, p.info().ca_state, p.info().lost), (1, 0, 0), "{options}");
        assert_eq!(p.info().total_retrans, 1);
        assert!(p.cwnd().0 >= 10 && p.cwnd().1 == 0x7fff_ffff, "{:?}", p.cwnd());
        p.drain();
    }
}

/// RFC 5682 2.1 step 3.a: a duplicate instead says that the loss was real.
#[test]
fn a_real_timeout_is_found_real() {
    let mut p = sender(frto(), ",sackOK", 20_000);
    p.timer_ms(220);
    p.expect(&seg(1));
    p.exchange(&ack(1001), &[seg(10_001), seg(11_001)].join("\n"));
    p.inject(". 1:1(0) ack 1001 win 20000 <sack 10001:11001>");
    assert_eq!((p.counters.spurious_timeouts, p.info().ca_state), (0, 4));
    assert_eq!(p.drain()[0], seg(1001));
    let mut p = sender(Config { sack: false, ..frto() }, "", 20_000);
    p.timer_ms(220);
    p.expect(&seg(1));
    p.exchange(&ack(1001), &[seg(10_001), seg(11_001)].join("\n"));
    p.inject(&ack(1001));
    assert_eq!((p.counters.spurious_timeouts, p.info().ca_state), (0, 4));
    assert_eq!(p.drain()[0], seg(1001));
}

/// RFC 5682 2.1 step 2.a: everything acknowledged at once tells nothing; the connection goes on.
#[test]
fn everything_acknowledged_tells_nothing() {
    let mut p = sender(frto(), ",sackOK", 10_000);
    p.timer_ms(220);
    p.expect(&seg(1));
    p.exchange(&ack(10_001), "");
    assert_eq!((p.info().ca_state, p.info().unacked), (0, 0));
    p.no_timer();
}

/// Without new data to try, retransmission goes on as after any timeout.
#[test]
fn without_new_data_it_retransmits() {
    let mut p = sender(frto(), ",sackOK", 5000);
    p.timer_ms(220);
    p.expect(&seg(1));
    p.inject(&ack(1001));
    let sent = p.drain();
    assert_eq!(sent[0], seg(1001));
    // Nor when the peer's window takes none.
    let mut p = sender(frto(), ",sackOK", 20_000);
    p.timer_ms(220);
    p.drain();
    p.inject(". 1:1(0) ack 1001 win 9000");
    assert_eq!(p.drain()[0], seg(1001));
}

/// A second timeout keeps looking.
#[test]
fn the_second_timeout_is_judged_too() {
    let mut p = sender(frto(), ",sackOK", 20_000);
    p.timer_ms(220);
    p.drain();
    p.timer_ms(440);
    p.expect(&seg(1));
    p.exchange(&ack(1001), &[seg(10_001), seg(11_001)].join("\n"));
    p.inject(&ack(2001));
    assert_eq!((p.counters.spurious_timeouts, p.info().ca_state), (1, 0));
    p.drain();
}

fn stamped() -> Config {
    Config { timestamps: true, frto: false, ..frto() }
}

fn sack_ts(ack: u32, blocks: &str, val: u32, ecr: u32) -> String {
    let sack = if blocks.is_empty() { String::new() } else { format!(",sack {blocks}") };
    format!(". 1:1(0) ack {ack} win 20000 <TS val {val} ecr {ecr}{sack}>")
}

/// RFC 3522: the acknowledgment of the retransmitted segment echoes the original's timestamp.
#[test]
fn an_old_echo_undoes_a_recovery() {
    for (ecr, undone) in [(1020, true), (1047, false)] {
        let mut p = sender(stamped(), ",sackOK,TS val 100 ecr 0", 9880);
        p.wait_ms(20);
        p.inject(&sack_ts(1, "989:1977", 100, 1020));
        p.quiet();
        p.timer_ms(7);
        assert_eq!(p.drain().len(), 1);
        assert_eq!((p.info().ca_state, p.cwnd().1), (3, 5));
        p.wait_ms(1);
        p.inject(&sack_ts(9881, "", 101, ecr));
        assert_eq!((p.counters.undone, p.info().ca_state), (undone as u64, 0), "{ecr}");
        assert_eq!(p.cwnd().1, if undone { 0x7fff_ffff } else { 5 });
        assert_eq!(p.cwnd().0 >= 10, undone);
    }
}

/// The same after a timeout.
#[test]
fn an_old_echo_undoes_a_timeout() {
    let mut p = sender(stamped(), ",sackOK,TS val 100 ecr 0", 9880);
    p.timer_ms(220);
    assert_eq!(p.drain().len(), 1);
    p.wait_ms(5);
    p.inject(&sack_ts(989, "", 101, 1020));
    assert_eq!((p.counters.undone, p.counters.spurious_timeouts, p.info().lost, p.info().ca_state), (1, 1, 0, 0));
    p.quiet();
    assert_eq!(p.cwnd().1, 0x7fff_ffff);
}

/// RFC 3708: when each retransmission was reported as a duplicate, nothing had been lost.
#[test]
fn duplicates_reported_undo_a_recovery() {
    let mut p = sender(frto(), ",sackOK", 10_000);
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000 <sack 2001:3001>");
    p.timer_ms(7);
    let n = p.drain().len();
    p.inject(". 1:1(0) ack 1 win 20000 <sack 2001:10001>");
    assert_eq!((n + p.drain().len(), p.info().ca_state, p.cwnd().1), (2, 3, 5));
    // The late originals arrive, then the report of both copies.
    p.inject(". 1:1(0) ack 10001 win 20000 <sack 1:1001>");
    p.wait_ms(30);
    p.quiet();
    p.inject(". 1:1(0) ack 10001 win 20000 <sack 1001:2001>");
    assert_eq!((p.counters.dsacks_in, p.counters.undone, p.info().dsack_dups), (2, 1, 2));
    assert_eq!((p.cwnd().1, p.info().ca_state), (0x7fff_ffff, 0));
}

/// One report of two is not enough.
#[test]
fn half_the_duplicates_undo_nothing() {
    let mut p = sender(frto(), ",sackOK", 10_000);
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000 <sack 2001:3001>");
    p.timer_ms(7);
    p.drain();
    p.inject(". 1:1(0) ack 1 win 20000 <sack 2001:10001>");
    p.drain();
    p.inject(". 1:1(0) ack 10001 win 20000 <sack 1:1001>");
    assert_eq!((p.counters.dsacks_in, p.counters.undone, p.cwnd().1), (1, 0, 5));
}

/// RFC 3522 during recovery: the first partial acknowledgment already tells; what was marked is taken back.
#[test]
fn an_old_echo_undoes_a_recovery_under_way() {
    let mut p = sender(stamped(), ",sackOK,TS val 100 ecr 0", 9880);
    p.wait_ms(20);
    p.inject(&sack_ts(1, "2965:3953", 100, 1020));
    p.timer_ms(7);
    assert_eq!((p.drain().len(), p.info().lost), (1, 3));
    p.wait_ms(1);
    // The late original of the first arrives; its retransmission is still under way.
    p.inject(&sack_ts(989, "2965:3953", 101, 1020));
    let held = p.info();
    assert_eq!((held.ca_state, p.cwnd().1, p.counters.undone), (1, 0x7fff_ffff, 1));
    assert_eq!((held.lost, held.total_retrans), (0, 1));
}

/// D-SACK after recovery has ended, while the window is still remembered.
#[test]
fn what_is_not_ours_to_undo() {
    // A duplicate that the network made: nothing was sent again.
    let mut p = sender(frto(), ",sackOK", 5000);
    p.inject(". 1:1(0) ack 1001 win 20000 <sack 1:1001>");
    assert_eq!((p.counters.dsacks_in, p.counters.undone, p.info().dsack_dups), (0, 0, 1));
    // Longer than any window ever was.
    let mut p = sender(frto(), ",sackOK", 5000);
    p.timer_ms(220);
    p.drain();
    p.inject(". 1:1(0) ack 1001 win 20000 <sack -20001:1>");
    assert_eq!((p.counters.dsacks_in, p.info().dsack_dups), (0, 0));
}

/// RFC 2883 4.2: duplicates reported above the acknowledgment count as well.
#[test]
fn duplicates_above_a_hole_count() {
    let mut p = sender(frto(), ",sackOK", 10_000);
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000 <sack 2001:3001>");
    p.timer_ms(7);
    p.expect(&seg(1));
    p.exchange(". 1:1(0) ack 1 win 20000 <sack 2001:10001>", &seg(1001));
    p.inject(". 1:1(0) ack 1 win 20000 <sack 1001:10001>");
    p.inject(". 1:1(0) ack 1 win 20000 <sack 1001:2001 1001:10001>");
    assert_eq!((p.counters.dsacks_in, p.counters.undone), (1, 0));
    p.inject(". 1:1(0) ack 10001 win 20000 <sack 1:1001>");
    assert_eq!((p.counters.dsacks_in, p.counters.undone, p.cwnd().1), (2, 1, 0x7fff_ffff));
}

/// RFC 5682 3.1: a SACK for an original does as well as an acknowledgment.
#[test]
fn a_sacked_original_shows_a_spurious_timeout() {
    let mut p = sender(frto(), ",sackOK", 10_000);
    p.timer_ms(220);
    p.expect(&seg(1));
    p.inject(". 1:1(0) ack 1 win 20000 <sack 1001:2001>");
    assert_eq!((p.counters.spurious_timeouts, p.info().ca_state, p.info().lost), (1, 1, 0));
    p.drain();
}

/// RFC 5682 2.1 step 3.a: SACKed new data shows a real loss also where the segment is no duplicate; other segments that do
/// not move the acknowledgment say nothing.
#[test]
fn what_a_segment_with_data_tells_of_a_timeout() {
    for (sack, real) in [(" <sack 10001:11001>", true), ("", false)] {
        let mut p = sender(frto(), ",sackOK", 20_000);
        p.timer_ms(220);
        p.drain();
        p.exchange(&ack(1001), &[seg(10_001), seg(11_001)].join("\n"));
        p.inject(&format!("P. 1:11(10) ack 1001 win 19999{sack}"));
        let sent = p.drain();
        assert_eq!(sent.iter().any(|s| s.starts_with(". 1001:2001")), real, "{sent:?}");
        p.inject(". 11:11(0) ack 2001 win 20000");
        assert_eq!(p.counters.spurious_timeouts, !real as u64);
        p.drain();
    }
}

/// RFC 5682 2.1 step 2: a duplicate before anything was acknowledged leaves the question open.
#[test]
fn a_duplicate_before_any_progress_decides_nothing() {
    let mut p = sender(frto(), ",sackOK", 20_000);
    p.timer_ms(220);
    p.expect(&seg(1));
    p.exchange(&ack(1), "");
    p.exchange(&ack(1001), &[seg(10_001), seg(11_001)].join("\n"));
    p.inject(&ack(2001));
    assert_eq!(p.counters.spurious_timeouts, 1);
    p.drain();
}

/// RFC 5682 2.1 step 1: not while fast recovery had begun, and not where it is switched off.
#[test]
fn where_a_timeout_is_not_questioned() {
    let mut p = sender(frto(), ",sackOK", 20_000);
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 20000 <sack 7001:10001>");
    p.drain();
    p.timer_ms(220);
    p.expect(&seg(1));
    p.inject(". 1:1(0) ack 1001 win 20000 <sack 7001:10001>");
    assert_eq!(p.drain()[0], seg(1001));
    let mut p = sender(Config { frto: false, ..frto() }, ",sackOK", 20_000);
    p.timer_ms(220);
    p.drain();
    p.exchange(&ack(1001), &[seg(1001), seg(2001)].join("\n"));
}

/// What an undo has unmarked can be lost all the same, and is then found.
#[test]
fn a_loss_after_an_undo_is_repaired() {
    let mut p = sender(frto(), ",sackOK", 20_000);
    p.timer_ms(220);
    p.expect(&seg(1));
    p.exchange(&ack(1001), &[seg(10_001), seg(11_001)].join("\n"));
    p.inject(&ack(2001));
    assert_eq!(p.counters.spurious_timeouts, 1);
    p.drain();
    p.wait_ms(30);
    p.inject(". 1:1(0) ack 2001 win 20000 <sack 3001:10001 10001:12001>");
    assert_eq!((p.info().lost, p.info().ca_state), (1, 3));
    assert_eq!(p.drain()[0], seg(2001));
}

/// So can what had been sent again before.
#[test]
fn a_retransmission_from_before_an_undo_can_be_lost() {
    let mut p = sender(stamped(), ",sackOK,TS val 100 ecr 0", 14_820);
    p.timer_ms(220);
    assert_eq!(p.drain().len(), 1);
    p.wait_ms(25);
    p.inject(&sack_ts(989, "", 101, 1240));
    assert_eq!(p.drain().len(), 2);
    p.wait_ms(25);
    p.inject(&sack_ts(1977, "", 102, 1000));
    assert_eq!((p.counters.undone, p.info().lost, p.info().retrans), (1, 0, 1));
    assert!(p.drain()[0].starts_with(". 9881:"));
    p.wait_ms(30);
    p.inject(&sack_ts(1977, "9881:10869", 103, 1290));
    let sent = p.drain();
    assert!(sent.iter().any(|s| s.starts_with(". 1977:2965")), "{sent:?}");
}

/// RFC 3168 6.1.2: what is undone before CWR went out needs none.
#[test]
fn an_undone_reduction_is_not_told() {
    let config = Config { ecn: tcp::Ecn::Passive, ..stamped() };
    let mut p = Peer::accepting(config, crate::peer::open(), "SEW 0:0(0) win 20000 <mss 1000,sackOK,TS val 100 ecr 0>");
    p.drain();
    p.wait_ms(20);
    p.inject(&sack_ts(1, "", 100, 1000));
    p.write(2000);
    p.drain();
    p.timer_ms(220);
    assert_eq!(p.drain().len(), 1);
    p.wait_ms(5);
    p.inject(&sack_ts(989, "", 101, 1020));
    assert_eq!(p.counters.undone, 1);
    p.write(3000);
    let sent = p.drain();
    assert!(!sent.is_empty() && sent.iter().all(|s| !s.contains("W.")), "{sent:?}");
}

/// A recovery that was called for can be undone until what was sent after it is acknowledged; from then on nothing of it is left, and
/// the connection takes the straight path again.
#[test]
fn a_recovery_that_was_called_for_is_forgotten() {
    for timeout in [false, true] {
        let mut p = sender(Config { tail_loss_probe: false, sack: true, ..plain() }, ",sackOK", 10_000);
        if timeout {
            p.timer_ms(220);
        } else {
            for n in 1..4 {
                p.inject(&format!("{} <sack 1001:{}>", ack(1), 1001 + 1000 * n));
            }
        }
        p.expect(&seg(1));
        p.exchange(&ack(10_001), "");
        assert_eq!((p.info().ca_state, p.is_disturbed()), (0, true));
        let (_, reduced) = p.cwnd();
        // Nothing was sent since.
        p.exchange(&ack(10_001), "");
        assert!(p.is_disturbed());
        p.write(1000);
        p.expect(&seg(10_001));
        assert!(p.is_disturbed());
        p.exchange(&ack(11_001), "");
        assert!(!p.is_disturbed(), "timeout: {timeout}");
        // Too late.
        p.write(1000);
        p.drain();
        p.exchange(&format!("{} <sack 1:1001>", ack(11_001)), "");
        assert_eq!(p.cwnd().1, reduced);
    }
}

/// What judged a timeout is over with it: it holds no retransmission of a later recovery back.
#[test]
fn frto_ends_with_the_timeout() {
    let mut p = sender(frto(), ",sackOK", 10_000);
    p.timer_ms(220);
    p.expect(&seg(1));
    p.inject(". 1:1(0) ack 10001 win 60000");
    p.write(40_000);
    let end = 10_001 + 1000 * p.drain().len() as u32;
    let last = end - 1000;
    assert!(last >= 15_001, "{end}");
    // Of that the first and the last are lost. New data goes out while the first is repaired.
    p.wait_ms(20);
    let sacked = |right: u32| format!(". 1:1(0) ack 10001 win 60000 <sack 11001:{right}>");
    p.inject(&sacked(14_001));
    let mut sent = p.drain();
    while p.now.micros() % 1_000_000 < 900_000 && !sent.iter().any(|s| s.starts_with(". 10001:")) {
        p.now = p.now.plus_micros(1000);
        p.run_timers();
        sent.extend(p.drain());
    }
    p.inject(&sacked(last));
    sent = p.drain();
    let new = end + 1000;
    assert!(sent.contains(&seg(new)), "no new data: {sent:?}");
    assert_eq!(p.info().ca_state, 3);
    // It arrives, and shows that what is before it is lost.
    p.now = p.now.plus_micros(20_000);
    p.inject(&format!(". 1:1(0) ack 10001 win 60000 <sack {new}:{} 11001:{last}>", new + 1000));
    sent = p.drain();
    p.now = p.now.plus_micros(20_000);
    p.run_timers();
    sent.extend(p.drain());
    assert!(sent.iter().any(|s| s.starts_with(&format!(". {last}:"))), "the last was not sent again: {sent:?}");
}
