//! Where PSH stands (RFC 9293 3.9.1.2): at the end of what was written, and at the end of each burst, as Linux has it.

use tcp::Config;

use crate::peer::{Peer, plain};

fn sender(config: Config) -> Peer {
    let mut p = Peer::server_with(config);
    p.push = true;
    p
}

/// Which of the segments sent now carry PSH.
fn pushed(p: &mut Peer) -> Vec<bool> {
    p.drain().iter().map(|line| line.starts_with('P') || line.starts_with("FP")).collect()
}

/// MUST-61, SHLD-27: the last segment of what is queued, once.
#[test]
fn the_end_of_what_was_written() {
    let mut p = sender(Config { min_burst: 64, ..plain() });
    p.write(1000);
    p.write(1000);
    p.expect(
        ". 1:1001(1000) ack 1 win 20000
         P. 1001:2001(1000) ack 1 win 20000",
    );
    p.write(100);
    p.expect("P. 2001:2101(100) ack 1 win 20000");
    p.inject(". 1:1(0) ack 2101 win 20000");
    p.write(50);
    p.shutdown();
    p.expect("FP. 2101:2151(50) ack 1 win 20000");
    let mut p = sender(plain());
    p.shutdown();
    p.expect("F. 1:1(0) ack 1 win 20000");
}

/// A write that announces more is not pushed at its end.
#[test]
fn not_when_more_was_announced() {
    let mut p = sender(Config { min_burst: 64, ..plain() });
    p.write_more(1000);
    p.expect(". 1:1001(1000) ack 1 win 20000");
    p.write(1000);
    p.expect("P. 1001:2001(1000) ack 1 win 20000");
}

/// Each burst ends with one: at its length, and where a window ends it.
#[test]
fn the_end_of_each_burst() {
    // Half the congestion window.
    let mut p = sender(Config { min_burst: 64, ..plain() });
    p.write(20_000);
    assert_eq!(pushed(&mut p), [false, false, false, false, true, false, false, false, false, true]);
    // The configured length, where the path is slow: 10 segments in 20 ms are one a millisecond.
    let mut p = sender(Config { min_burst: 3, ..plain() });
    p.write(20_000);
    assert_eq!(pushed(&mut p), [false, false, true, false, false, true, false, false, true, false]);
    // Half the largest window of the peer.
    let mut p =
        Peer::accepting(Config { min_burst: 64, ..plain() }, crate::peer::open(), "S 0:0(0) win 8000 <mss 1000>");
    p.push = true;
    p.drain();
    p.wait_ms(20);
    p.inject(". 1:1(0) ack 1 win 8000");
    p.write(20_000);
    assert_eq!(pushed(&mut p), [false, false, false, true, false, false, false, true]);
    // The peer's window ends it.
    let mut p = sender(Config { min_burst: 64, ..plain() });
    p.inject(". 2:2(0) ack 1 win 3500");
    p.write(20_000);
    assert_eq!(pushed(&mut p), [false, false, true]);
}

/// A retransmission carries the PSH of what was written, not that of a burst.
#[test]
fn retransmissions_remember_only_what_was_written() {
    let mut p = sender(plain());
    p.write(2000);
    p.expect(
        ". 1:1001(1000) ack 1 win 20000
         P. 1001:2001(1000) ack 1 win 20000",
    );
    p.write(2000);
    p.expect(
        ". 2001:3001(1000) ack 1 win 20000
         P. 3001:4001(1000) ack 1 win 20000",
    );
    p.timer_ms(220);
    p.expect(". 1:1001(1000) ack 1 win 20000");
    p.inject(". 1:1(0) ack 1001 win 20000");
    p.expect(
        "P. 1001:2001(1000) ack 1 win 20000
         . 2001:3001(1000) ack 1 win 20000",
    );
}

/// What a path takes in a millisecond is one burst: 100 segments in 20 ms, twice as fast in slow start, are nine in 1,024 µs.
#[test]
fn a_millisecond_of_the_path() {
    for (initial_window, len) in [(100, 9), (60, 5), (30, 2), (20, 2)] {
        let config = Config { window_scaling: true, initial_window, ..plain() };
        let mut p = Peer::server_offered(config, "mss 1000,wscale 4");
        p.push = true;
        p.write(200_000);
        let at: Vec<usize> = pushed(&mut p).iter().enumerate().filter(|(_, p)| **p).map(|(i, _)| i + 1).collect();
        assert_eq!(at[..3], [len, 2 * len, 3 * len], "{initial_window}");
    }
}

/// Beyond half the threshold a fifth more than the window in a round trip: 101 segments in 20 ms are five in 1,024 µs.
#[test]
fn a_millisecond_after_a_loss() {
    let config = Config { window_scaling: true, initial_window: 200, ..plain() };
    let mut p = Peer::server_offered(config, "mss 1000,wscale 4");
    p.write(200_000);
    p.drain();
    p.timer_ms(220);
    p.drain();
    p.inject(". 1:1(0) ack 200001 win 20000");
    assert_eq!(p.cwnd(), (101, 100));
    p.push = true;
    p.write(100_000);
    let at: Vec<usize> = pushed(&mut p).iter().enumerate().filter(|(_, p)| **p).map(|(i, _)| i + 1).collect();
    assert_eq!(at[..3], [5, 10, 15]);
}

/// MSG_EOR: what follows a record shares no segment with its end, which waits for nothing.
#[test]
fn records_end_segments() {
    let mut p = sender(Config { min_burst: 64, ..plain() });
    p.write(300);
    p.write_record(300);
    p.write_record(1400);
    p.write(2000);
    p.expect(
        "P. 1:601(600) ack 1 win 20000
         . 601:1601(1000) ack 1 win 20000
         P. 1601:2001(400) ack 1 win 20000
         . 2001:3001(1000) ack 1 win 20000
         P. 3001:4001(1000) ack 1 win 20000",
    );
    // Retransmissions keep to it.
    p.timer_ms(220);
    p.expect("P. 1:601(600) ack 1 win 20000");
    p.inject(". 1:1(0) ack 601 win 20000");
    p.drain();
    p.inject(". 1:1(0) ack 4001 win 20000");
    // The last record of the queue is a small segment like any other (Nagle).
    p.write(10);
    p.write_record(10);
    p.expect("P. 4001:4021(20) ack 1 win 20000");
    p.write_record(10);
    p.quiet();
    p.write(10);
    p.expect("P. 4021:4031(10) ack 1 win 20000");
    p.inject(". 1:1(0) ack 4031 win 20000");
    p.expect("P. 4031:4041(10) ack 1 win 20000");
}

/// Bursts of one segment, as with a window of two: none of them is pushed.
#[test]
fn bursts_of_one_segment() {
    let mut p = sender(Config { initial_window: 2, min_burst: 64, ..plain() });
    p.write(20_000);
    assert_eq!(pushed(&mut p), [false, false]);
}
