//! RACK-TLP (RFC 8985): losses by time, the reordering window and its timer, tail loss probes.

use tcp::Config;

use crate::peer::{Peer, plain};

fn config() -> Config {
    Config { sack: true, tail_loss_probe: false, ..plain() }
}

fn probing() -> Config {
    Config { sack: true, ..plain() }
}

fn sender(config: Config, bytes: usize) -> Peer {
    let mut p = Peer::server_offered(config, "mss 1000,sackOK");
    p.write(bytes);
    p.drain();
    p
}

fn sack(ack: u32, blocks: &str) -> String {
    format!(". 1:1(0) ack {ack} win 20000 <sack {blocks}>")
}

fn ack(n: u32) -> String {
    format!(". 1:1(0) ack {n} win 20000")
}

fn seg(n: u32) -> String {
    format!(". {n}:{}(1000) ack 1 win 20000", n + 1000)
}

fn last(n: u32) -> String {
    format!("P{}", seg(n))
}

/// RFC 8985 6.2 step 4: before reordering was seen a hole may be a quarter of the least round trip old; a timer waits for
/// that (6.3, and Linux's 2 ms).
#[test]
fn a_hole_is_lost_after_a_quarter_round_trip() {
    let mut p = sender(config(), 5000);
    p.wait_ms(20);
    p.exchange(&sack(1, "1001:2001"), "");
    assert_eq!((p.info().lost, p.info().ca_state), (0, 1));
    p.timer_ms(7);
    assert_eq!((p.info().lost, p.info().ca_state, p.counters.recoveries, p.counters.timeouts), (1, 3, 1, 0));
    p.expect(&seg(1));
    p.inject(&ack(5001));
    p.no_timer();
    assert_eq!((p.info().ca_state, p.counters.fast_retransmits), (0, 1));
}

/// A hole filled in time is no loss; it is reordering.
#[test]
fn a_hole_filled_in_time_is_reordering() {
    let mut p = sender(config(), 5000);
    p.wait_ms(20);
    p.exchange(&sack(1, "3001:5001"), "");
    p.wait_ms(6);
    assert_eq!(p.info().reordering, 3);
    p.exchange(&ack(5001), "");
    assert_eq!((p.info().ca_state, p.info().reordering, p.counters.recoveries), (0, 5, 0));
    assert_eq!((p.cwnd().0, p.info().total_retrans), (10, 0));
    p.no_timer();
}

/// RFC 8985 6.2 step 4: once reordering was seen, three segments beyond a hole are not enough; time decides.
#[test]
fn with_reordering_time_decides() {
    let mut p = sender(config(), 5000);
    p.wait_ms(20);
    p.inject(&sack(1, "3001:5001"));
    p.inject(&ack(5001));
    p.write(10_000);
    assert_eq!(p.drain().len(), 10);
    p.wait_ms(20);
    p.exchange(&sack(5001, "6001:15001"), "");
    assert_eq!((p.info().sacked, p.info().lost), (9, 0));
    p.timer_ms(7);
    p.expect(&seg(5001));
}

/// RFC 8985 6.2 step 5: what was sent after what was delivered last may still come.
#[test]
fn only_earlier_transmissions_are_lost() {
    let mut p = sender(config(), 3000);
    p.wait_ms(5);
    p.write(3000);
    assert_eq!(p.drain().len(), 3);
    p.wait_ms(15);
    // 1:3001 were sent 20 ms ago, the rest 15 ms ago; 2001 was delivered.
    p.inject(&sack(1, "2001:3001"));
    p.timer_ms(7);
    assert_eq!(p.info().lost, 2);
    p.expect(&seg(1));
    // 4001, sent later, shows 3001 as lost as soon as it is a round trip old.
    p.exchange(&sack(1, "2001:3001 4001:5001"), &seg(1001));
    assert_eq!(p.info().lost, 3);
}

/// RFC 8985 5.3: a retransmission that is lost is found by what was sent after it.
#[test]
fn a_lost_retransmission_is_found() {
    let mut p = sender(config(), 12_000);
    p.wait_ms(20);
    p.exchange(&sack(1, "1001:4001"), &[seg(1), seg(10_001)].join("\n"));
    assert_eq!((p.info().retrans, p.info().lost), (1, 1));
    p.wait_ms(20);
    p.inject(&sack(1, "1001:4001 10001:11001"));
    assert_eq!((p.counters.lost_retransmits, p.info().retrans), (1, 0));
    assert_eq!(p.drain()[0], seg(1));
    assert_eq!((p.counters.fast_retransmits, p.counters.timeouts, p.info().total_retrans), (3, 0, 3));
}

/// RFC 8985 7.2: two round trips after the last segment, the largest delay of an ACK more for a single one, and never
/// after the RTO.
#[test]
fn when_a_tail_is_probed() {
    let mut p = sender(probing(), 2000);
    p.timer_ms(42);
    assert!(p.wants_data());
    p.expect(&last(1001));
    assert_eq!((p.counters.loss_probes, p.counters.timeouts, p.info().total_retrans), (1, 0, 1));
    // RFC 8985 7.3: the RTO counts from the probe.
    p.timer_ms(220);
    assert_eq!(p.counters.timeouts, 1);
    p.drain();
    // A single segment: 2 · 20 + 200 ms is beyond the RTO, which counts.
    let mut p = sender(probing(), 1000);
    p.timer_ms(220);
    p.expect(&last(1));
    assert_eq!((p.counters.loss_probes, p.counters.timeouts), (1, 0));
}

/// New data moves the probe.
#[test]
fn each_segment_moves_the_probe() {
    let mut p = sender(probing(), 2000);
    p.wait_ms(30);
    p.write(1000);
    p.drain();
    p.timer_ms(42);
    p.expect(&last(2001));
}

/// An acknowledgment of new data schedules it anew.
#[test]
fn acknowledgments_move_the_probe() {
    let mut p = sender(probing(), 3000);
    p.wait_ms(20);
    p.exchange(&ack(1001), "");
    p.timer_ms(42);
    p.expect(&last(2001));
}

/// RFC 8985 7.3: new data is the better probe, where the peer's window lets it; the congestion window does not matter.
#[test]
fn a_probe_prefers_new_data() {
    let mut p = sender(probing(), 12_000);
    assert_eq!(p.cwnd().0, 10);
    p.timer_ms(42);
    p.expect(&seg(10_001));
    assert_eq!((p.counters.loss_probes, p.info().total_retrans, p.info().unacked), (1, 0, 11));
    let mut p = Peer::server_offered(probing(), "mss 1000,sackOK");
    p.write(2000);
    p.drain();
    p.inject(". 2:2(0) ack 1 win 2500");
    p.write(1000);
    p.quiet();
    p.timer_ms(42);
    p.expect(&last(1001));
}

/// RFC 8985 7.3: one probe at a time; the RTO follows, counted from it.
#[test]
fn the_rto_follows_a_probe_of_new_data() {
    let mut p = sender(probing(), 12_000);
    p.timer_ms(42);
    p.expect(&seg(10_001));
    p.timer_ms(220);
    assert_eq!((p.counters.timeouts, p.counters.loss_probes), (1, 1));
    p.drain();
}

/// RFC 8985 7.4.2: the probe repaired a loss: the window is reduced as for any other.
#[test]
fn a_loss_that_the_probe_repaired_counts() {
    let mut p = sender(probing(), 5000);
    p.wait_ms(20);
    p.inject(&ack(4001));
    p.timer_ms(220);
    p.expect(&last(4001));
    p.wait_ms(20);
    p.inject(&ack(5001));
    // Something later must be acknowledged to tell.
    assert_eq!((p.counters.probe_recoveries, p.cwnd().0), (0, 10));
    p.write(1000);
    p.drain();
    p.wait_ms(20);
    p.inject(&ack(6001));
    assert_eq!((p.counters.probe_recoveries, p.cwnd(), p.info().ca_state), (1, (5, 5), 0));
}

/// RFC 8985 7.4.1: a D-SACK for the probe shows that nothing was lost.
#[test]
fn a_superfluous_probe_is_excused() {
    for answer in [sack(5001, "4001:5001"), ack(5001)] {
        let mut p = sender(probing(), 5000);
        p.wait_ms(20);
        p.inject(&ack(4001));
        p.timer_ms(220);
        p.expect(&last(4001));
        p.wait_ms(20);
        p.inject(&ack(5001));
        p.inject(&answer);
        p.write(1000);
        p.drain();
        p.wait_ms(20);
        p.inject(&ack(6001));
        assert_eq!((p.counters.probe_recoveries, p.cwnd().0), (0, 10), "{answer}");
    }
}

/// A probe of new data is no retransmission: its acknowledgment ends it.
#[test]
fn a_probe_of_new_data_is_only_data() {
    let mut p = sender(probing(), 11_000);
    p.timer_ms(42);
    p.expect(&last(10_001));
    p.wait_ms(20);
    p.inject(&ack(11_001));
    p.write(1000);
    p.drain();
    p.inject(&ack(12_001));
    assert_eq!((p.counters.probe_recoveries, p.info().ca_state), (0, 0));
}

/// The last segment of a large record is what is probed with.
#[test]
fn the_probe_is_one_segment() {
    let mut p = Peer::server_offered(Config { min_burst: 64, ..probing() }, "mss 1000,sackOK");
    p.segments = 10;
    p.write(2500);
    p.expect("P. 1:2501(2500) ack 1 win 20000");
    p.timer_ms(42);
    p.expect("P. 2001:2501(500) ack 1 win 20000");
    assert_eq!(p.info().unacked, 3);
    p.inject(&ack(2501));
    assert_eq!(p.info().unacked, 0);
}

/// A FIN is probed for like data.
#[test]
fn a_fin_is_probed() {
    let mut p = Peer::server_offered(probing(), "mss 1000,sackOK");
    p.write(1500);
    p.shutdown();
    assert_eq!(p.drain().len(), 2);
    p.timer_ms(42);
    p.expect("FP. 1001:1501(500) ack 1 win 20000");
}

/// RFC 8985 7.2: no probe while losses are being repaired, without SACK, or when switched off.
#[test]
fn where_there_is_no_probe() {
    let mut p = sender(config(), 2000);
    p.timer_ms(220);
    assert_eq!((p.counters.timeouts, p.counters.loss_probes), (1, 0));
    p.drain();
    let mut p = sender(probing(), 5000);
    p.wait_ms(20);
    p.inject(&sack(1, "1001:4001"));
    p.expect(&seg(1));
    p.timer_ms(220);
    assert_eq!((p.counters.timeouts, p.counters.loss_probes), (1, 0));
    p.drain();
    let mut p = Peer::server_with(plain());
    p.write(2000);
    p.drain();
    p.timer_ms(220);
    assert_eq!(p.counters.loss_probes, 0);
    p.drain();
}

/// RFC 8985 6.3: at a timeout, what was sent less than a round trip ago is not lost yet; without SACK everything is.
#[test]
fn a_timeout_spares_what_was_just_sent() {
    for (sack, lost) in [(true, 1), (false, 2)] {
        let mut p = sender(Config { sack, ..config() }, 1000);
        p.wait_ms(210);
        p.write(1000);
        p.drain();
        p.timer_ms(10);
        assert_eq!((p.counters.timeouts, p.info().lost, p.info().unacked), (1, lost, 2));
        p.expect(&seg(1));
    }
    // A round trip later it is.
    let mut p = sender(config(), 1000);
    p.wait_ms(200);
    p.write(1000);
    p.drain();
    p.timer_ms(20);
    assert_eq!(p.info().lost, 2);
    p.drain();
}

/// RFC 8985 6.2 step 4: D-SACKs widen the reordering window by a quarter of the round trip, once a round trip.
#[test]
fn duplicates_widen_the_reordering_window() {
    let mut p = sender(config(), 5000);
    // Reordering is seen first.
    p.wait_ms(20);
    p.inject(&sack(1, "3001:5001"));
    p.inject(&ack(5001));
    let mut una = 5001;
    for (round, ms) in [(0, 7), (1, 12), (2, 17), (3, 22), (4, 22)] {
        p.write(4000);
        assert!(!p.drain().is_empty());
        p.wait_ms(20);
        let (next, end) = (una + 1000, una + 4000);
        p.inject(&sack(una, &format!("{next}:{end}")));
        // The hole is given up after the window; it was only late, and both copies arrive.
        p.timer_ms(ms);
        assert_eq!(p.info().lost, 1, "{round}");
        p.expect(&seg(una));
        p.inject(&ack(end));
        p.inject(&sack(end, &format!("{una}:{next}")));
        assert_eq!(p.counters.dsacks_in, round + 1);
        una = end;
        assert_eq!(p.info().ca_state, 0);
    }
}

/// A retransmission that is lost again, found while a timeout is being recovered from, begins a recovery.
#[test]
fn a_retransmission_lost_after_a_timeout_is_found() {
    let mut p = sender(config(), 10_000);
    p.timer_ms(220);
    p.expect(&seg(1));
    p.wait_ms(20);
    // The first retransmission is delivered, the next two go out; the second of them is delivered.
    p.exchange(&ack(1001), &[seg(1001), seg(2001)].join("\n"));
    p.wait_ms(20);
    p.inject(&sack(1001, "2001:3001"));
    assert_eq!((p.counters.lost_retransmits, p.counters.recoveries, p.info().ca_state), (1, 1, 3));
    assert!(p.drain().contains(&seg(1001)));
}

/// RFC 8985 6.2 step 2: `RACK.xmit_ts` is the latest transmission delivered; one that was sent earlier and comes later takes
/// nothing back.
#[test]
fn an_older_delivery_takes_nothing_back() {
    let mut p = sender(config(), 1000);
    for ms in [2, 1] {
        p.wait_ms(ms);
        p.write(1000);
        assert_eq!(p.drain().len(), 1);
    }
    p.wait_ms(20);
    p.exchange(&sack(1, "2001:3001"), "");
    p.wait_ms(1);
    p.exchange(&sack(1001, "2001:3001"), "");
    // The path takes 24 ms by now, a quarter of the least 20 ms more, and the timer 2 ms; 22 ms have passed.
    p.timer_ms(9);
    p.expect(&seg(1001));
}

/// One flight of `n` segments from `una` on, all but the first of the next three SACKed 20 ms later.
fn hole(p: &mut Peer, una: u32, n: u32) {
    p.write(n as usize * 1000);
    assert_eq!(p.drain().len() as u32, n);
    p.wait_ms(20);
    p.exchange(&sack(una, &format!("{}:{}", una + 1000, una + 4000)), "");
}

/// Reordering was seen, and everything up to 5001 is acknowledged.
fn reordered() -> Peer {
    let mut p = sender(config(), 5000);
    p.wait_ms(20);
    p.exchange(&sack(1, "3001:5001"), "");
    p.exchange(&ack(5001), "");
    p
}

/// RFC 8985 6.2 step 4: the window widens once a round trip, which is over when something sent after the last time is
/// delivered.
#[test]
fn the_reordering_window_widens_once_a_round_trip() {
    for (n, last) in [(5, 17), (6, 12)] {
        let mut p = reordered();
        for (una, n, ms) in [(5001, 4, 7), (9001, 4, 12), (13_001, n, last)] {
            hole(&mut p, una, n);
            p.timer_ms(ms);
            p.expect(&seg(una));
            p.inject(&ack(una + 1000 * n));
            p.inject(&sack(una + 1000 * n, &format!("{una}:{}", una + 1000)));
        }
        assert_eq!(p.counters.dsacks_in, 3);
    }
}

/// RFC 8985 6.3: a window that has widened since the timer was set makes it wait for the rest.
#[test]
fn the_reordering_timer_waits_for_a_widened_window() {
    let mut p = reordered();
    p.write(5000);
    p.drain();
    p.wait_ms(20);
    p.inject(&sack(5001, "7001:10001"));
    p.timer_ms(7);
    p.expect(&seg(5001));
    p.exchange(&sack(6001, "7001:10001"), &seg(6001));
    p.inject(&ack(10_001));
    hole(&mut p, 10_001, 4);
    p.wait_ms(1);
    // One of the two retransmissions was superfluous.
    p.exchange(&sack(10_001, "5001:6001 11001:14001"), "");
    assert_eq!((p.counters.dsacks_in, p.counters.undone), (1, 0));
    p.timer_ms(6);
    assert_eq!(p.info().lost, 0);
    p.timer_ms(5);
    assert_eq!(p.info().lost, 1);
    p.expect(&seg(10_001));
}

/// RFC 8985 6.3: what the timer finds lost during a recovery belongs to it; and something is always timed meanwhile
/// (RFC 6298 5.1).
#[test]
fn the_reordering_timer_adds_to_a_recovery() {
    let mut p = reordered();
    p.write(3000);
    p.drain();
    p.wait_ms(10);
    p.write(3000);
    p.drain();
    p.wait_ms(10);
    p.exchange(&sack(5001, "6001:8001"), "");
    p.timer_ms(7);
    let rto = p.info().rto_us;
    assert_eq!(p.deadline(), p.now.plus_micros(rto));
    p.expect(&seg(5001));
    let (_, ssthresh) = p.cwnd();
    p.wait_ms(3);
    p.exchange(&sack(5001, "6001:8001 9001:11001"), "");
    p.timer_ms(7);
    assert_eq!((p.info().lost, p.counters.recoveries, p.cwnd().1), (2, 1, ssthresh));
    p.expect(&seg(8001));
}

/// RFC 8985 7.2: for a single segment the delay of an ACK is allowed for, where the RTO leaves room for it.
#[test]
fn a_single_segment_is_probed_late() {
    let mut p = sender(probing(), 1000);
    p.wait_ms(219);
    p.inject(&ack(1001));
    p.write(1000);
    p.drain();
    p.wait_ms(270);
    p.inject(&ack(2001));
    p.write(1000);
    p.drain();
    let i = p.info();
    let probe = 2 * i.srtt_us + 200_000;
    assert!(probe < i.rto_us);
    p.timer(probe);
    p.expect(&last(2001));
    assert_eq!((p.counters.loss_probes, p.counters.timeouts), (1, 0));
}

/// RFC 8985 7.2: during a recovery the RTO runs, not a probe.
#[test]
fn a_recovery_is_not_probed() {
    let mut p = sender(probing(), 8000);
    p.wait_ms(20);
    p.exchange(&sack(1, "2001:8001"), &[seg(1), seg(1001)].join("\n"));
    p.wait_ms(20);
    p.exchange(&sack(1001, "2001:8001"), "");
    p.timer(p.info().rto_us);
    assert_eq!((p.counters.loss_probes, p.counters.timeouts), (0, 1));
    p.drain();
}

/// RFC 8985 7.4.2: a segment that carries data is no duplicate, so it says nothing about the probe.
#[test]
fn data_from_the_peer_does_not_excuse_a_probe() {
    let mut p = sender(probing(), 5000);
    p.wait_ms(20);
    p.inject(&ack(4001));
    p.timer_ms(220);
    p.expect(&last(4001));
    p.wait_ms(20);
    p.inject(&ack(5001));
    p.inject("P. 1:11(10) ack 5001 win 19999");
    p.write(1000);
    p.drain();
    p.wait_ms(20);
    p.inject(". 11:11(0) ack 6001 win 20000");
    assert_eq!((p.counters.probe_recoveries, p.cwnd()), (1, (5, 5)));
}

/// RFC 6298 5.3 with SACK: what was sent before the first hole's retransmission and arrives restarts the timer; it shows
/// that the path still delivers.
#[test]
fn late_originals_restart_the_timer() {
    let mut p = sender(config(), 10_000);
    p.wait_ms(20);
    // Three holes, and room for one retransmission.
    p.exchange(&sack(1, "3001:6001"), &seg(1));
    p.wait_ms(10);
    p.inject(&sack(1, "1001:2001 3001:6001"));
    let rto = p.info().rto_us;
    assert_eq!(p.deadline(), p.now.plus_micros(rto));
    p.drain();
}

/// RFC 8985 7.4.1: the D-SACK that excuses a probe may come with the next acknowledgment.
#[test]
fn a_probe_is_excused_by_a_late_report() {
    let mut p = sender(probing(), 5000);
    p.wait_ms(20);
    p.inject(&ack(4001));
    p.timer_ms(220);
    p.expect(&last(4001));
    p.wait_ms(20);
    p.inject(&ack(5001));
    p.write(1000);
    p.drain();
    p.wait_ms(20);
    p.inject(&sack(6001, "4001:5001"));
    assert_eq!((p.counters.probe_recoveries, p.cwnd().0), (0, 10));
}

/// RFC 8985 6.2 step 4: before reordering was seen, duplicates widen nothing.
#[test]
fn duplicates_without_reordering_widen_nothing() {
    let mut p = sender(config(), 4000);
    p.wait_ms(20);
    p.exchange(&sack(1, "1001:2001"), "");
    p.timer_ms(7);
    p.expect(&seg(1));
    p.inject(&ack(4001));
    p.inject(&sack(4001, "1:1001"));
    assert_eq!(p.counters.dsacks_in, 1);
    p.write(4000);
    p.drain();
    p.wait_ms(20);
    p.exchange(&sack(4001, "5001:6001"), "");
    p.timer_ms(7);
    p.expect(&seg(4001));
}

/// A probe may carry the FIN with the last data, where the peer's window has a number for it.
#[test]
fn a_probe_carries_the_fin() {
    for (window, flags) in [(10_501, "FP"), (20_000, "FP"), (10_500, "P")] {
        let mut p = Peer::server_offered(probing(), "mss 1000,sackOK");
        p.inject(&format!("P. 1:2(1) ack 1 win {window}"));
        p.write(10_500);
        p.shutdown();
        p.drain();
        p.timer_ms(42);
        p.expect(&format!("{flags}. 10001:10501(500) ack 2 win 19999"));
    }
    // Not while more is to come.
    let mut p = sender(probing(), 11_500);
    p.shutdown();
    p.timer_ms(42);
    p.expect(&seg(10_001));
}

/// A probe is a retransmission like others: while it is out, a duplicate means disorder.
#[test]
fn a_duplicate_after_a_probe_is_disorder() {
    let mut p = sender(probing(), 1000);
    p.timer_ms(220);
    p.expect(&last(1));
    assert_eq!(p.counters.loss_probes, 1);
    p.inject(&ack(1));
    assert_eq!(p.info().ca_state, 1);
}

/// RFC 8985 7.3: while the probe has not gone out, the RTO counts from the segment.
#[test]
fn the_rto_counts_from_the_segment_until_the_probe_is_out() {
    let mut p = sender(probing(), 2000);
    p.timer_ms(42);
    assert_eq!(p.deadline(), p.now.plus_micros(178_000));
    p.drain();
}
