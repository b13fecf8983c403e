//! The ends of connections: TIME-WAIT and its reuse, FIN-WAIT-2, orphans; with peers made by hand.

mod common;

use core::time::Duration;

use common::{ACK, Bench, FIN, PORT, Peer, RST, SYN, usual};
use protocol::{CloseMode, ConnOption, Endpoint, Job, Token};
use stack::{DropReason, Left};
use tcp::State;
use wire::Addr;
use wire::tcp::{Options, Timestamps};

fn plain() -> Options {
    Options { mss: Some(1460), ..Options::default() }
}

fn states(b: &Bench) -> Vec<State> {
    let mut all = Vec::new();
    b.host.stack.each_connection(|_, _, t| all.push(t.state()));
    all
}

/// A connection that we closed first, and its peer, whose FIN has been acknowledged.
fn in_time_wait(b: &mut Bench, options: Options) -> Peer {
    let mut p = b.establish(2, 4000, options);
    let conn = b.accepted[b.accepted.len() - 1];
    let fin = b.job(Job::Close { conn, mode: CloseMode::Graceful }).remove(0);
    assert!(fin.flags.contains(FIN));
    p.answer(&fin);
    let last = b.send(&p, FIN | ACK, &[]).remove(0);
    p.seq += 1;
    assert_eq!((last.ack, b.host.stack.time_waits(), states(b).len()), (p.seq, 1, 0));
    p
}

#[test]
fn time_wait_answers_and_ends() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = in_time_wait(&mut b, usual());
    p.ts = Some((2000, p.ts.unwrap().1));
    // The FIN again: acknowledged as before, window and timestamp included, and the wait starts anew.
    b.wait(Duration::from_secs(30));
    let again = b.send(&Peer { seq: p.seq - 1, ..p }, FIN | ACK, &[]).remove(0);
    assert_eq!((again.flags, again.seq, again.ack), (ACK, p.ack, p.seq));
    assert!(again.window > 0);
    assert_eq!(again.options.timestamps.map(|ts| ts.echo), Some(1000));
    b.wait(Duration::from_secs(59));
    assert_eq!(b.host.stack.time_waits(), 1);
    // RFC 1337: a RST does not end it. What fits exactly and says nothing is not answered.
    assert!(b.send(&p, RST, &[]).is_empty());
    assert!(b.send(&p, RST | ACK, &[]).is_empty());
    assert!(b.send(&p, ACK, &[]).is_empty());
    assert_eq!(b.host.stack.time_waits(), 1);
    b.wait(Duration::from_secs(2));
    assert_eq!(b.host.stack.time_waits(), 0);
    assert_eq!(b.host.leaked(), 0);
}

#[test]
fn acks_out_of_place_are_not_answered_for_ever() {
    let mut b = Bench::listening(10, &[], |_| {});
    let p = in_time_wait(&mut b, plain());
    let stray = Peer { seq: p.seq - 5, ..p };
    let answers: usize = (0..100).map(|_| b.send(&stray, ACK, &[]).len()).sum();
    assert_eq!((answers, b.host.stack.counters().tcp.acks_limited), (1, 99));
    b.wait(Duration::from_millis(520));
    assert_eq!(b.send(&stray, ACK, &[]).len(), 1);
    // Data is no such answer.
    assert_eq!((0..10).map(|_| b.send(&stray, ACK, b"x").len()).sum::<usize>(), 10);
}

/// RFC 6191 2, the whole table: (the old connection's timestamps, the SYN's distance in timestamps and sequence numbers,
/// whether it is a new connection).
#[test]
fn time_wait_gives_way_to_what_is_newer() {
    for (old, ts, seq, taken) in [
        (true, Some(1), -5000, true),
        (true, Some(0), 1, true),
        (true, Some(0), -1, false),
        (true, Some(-1), 5000, false),
        (true, None, 1, true),
        (true, None, -1, false),
        (false, Some(0), -5000, true),
        (false, None, 1, true),
        (false, None, -1, false),
    ] {
        let mut b = Bench::listening(10, &[], |_| {});
        let p = in_time_wait(&mut b, if old { usual() } else { plain() });
        let snd_nxt = p.ack;
        let mut q = Peer { seq: p.seq + seq as u32, ts: None, ..p };
        q.ts = ts.map(|ts: i32| (1000u32.wrapping_add(ts as u32), 0));
        let timestamps = q.ts.map(|(value, echo)| Timestamps { value, echo });
        let answer = b.send_with(&q, SYN, &[], Options { timestamps, ..plain() }).remove(0);
        let case = format!("{old} {ts:?} {seq}");
        if taken {
            assert_eq!((answer.flags, answer.ack), (SYN | ACK, q.seq + 1), "{case}");
            // Beyond anything that the old connection can have sent.
            assert!(answer.seq.after(snd_nxt + 65_535), "{case}");
            q.answer(&answer);
            b.send(&q, ACK, b"new");
            assert_eq!((&b.bytes[..], b.host.stack.counters().time_wait_reused), (&b"new"[..], 1), "{case}");
        } else {
            assert_eq!((answer.flags, answer.seq, answer.ack), (ACK, snd_nxt, p.seq), "{case}");
            // The peer answers that with a RST, and only this one ends the wait (RFC 9293 3.10.7.4).
            assert!(b.send(&Peer { seq: p.seq, ..q }, RST, &[]).is_empty());
            assert_eq!(b.host.stack.time_waits(), 0, "{case}");
        }
    }
}

#[test]
fn the_oldest_gives_way_when_there_are_too_many() {
    let mut b = Bench::listening(1000, &[], |c| c.stack.max_time_wait = 5);
    for n in 0..20 {
        let mut p = b.establish(2, 4000 + n, plain());
        let conn = b.accepted[n as usize];
        let fin = b.job(Job::Close { conn, mode: CloseMode::Graceful }).remove(0);
        p.answer(&fin);
        b.send(&p, FIN | ACK, &[]);
        assert!(b.host.stack.time_waits() <= 5);
    }
    let counters = b.host.stack.counters();
    assert_eq!((b.host.stack.time_waits(), counters.time_waits, counters.time_wait_evicted), (5, 20, 15));
}

/// The ACK of a FIN is its TIME-WAIT record's. Where that has given way before the ACK went out, its number is another record's,
/// which must not be sent in its name, to where its peer is.
#[test]
fn an_ack_that_waits_ends_with_its_record() {
    let mut b = Bench::listening(10, &[], |c| c.stack.max_time_wait = 1);
    let mut frames = Vec::new();
    for n in [2, 3] {
        let mut p = b.establish(n, 4000, usual());
        let conn = b.accepted[b.accepted.len() - 1];
        let fin = b.job(Job::Close { conn, mode: CloseMode::Graceful }).remove(0);
        p.answer(&fin);
        frames.push(b.frame(&p, FIN | ACK, &[], Options::default()));
    }
    let sent: Vec<Addr> = b.turn(frames).iter().map(|s| s.to).collect();
    assert_eq!((sent, b.host.stack.time_waits()), (vec![common::peer(3)], 1));
    assert_eq!((b.host.stack.counters().time_wait_evicted, b.host.leaked()), (1, 0));
}

#[test]
fn an_active_open_reuses_its_tuple_after_a_second() {
    let mut b = Bench::new(|_| {});
    let local = Endpoint { addr: common::ours(), port: 7000 };
    let remote = Endpoint { addr: common::peer(0x0a00_0002), port: PORT };
    let connect = |b: &mut Bench, token| b.job(Job::Connect { token: Token(token), local, remote, receive_buffer: 0 });
    let syn = connect(&mut b, 1).remove(0);
    let mut p = Peer::new(2, PORT);
    (p.local_port, p.ts, p.ack) = (7000, Some((1000, syn.options.timestamps.unwrap().value)), syn.seq + 1);
    b.send_with(&p, SYN | ACK, &[], usual());
    assert!(b.connected);
    p.seq += 1;
    let conn = b.opened.unwrap();
    let fin = b.job(Job::Close { conn, mode: CloseMode::Graceful });
    p.answer(fin.last().unwrap());
    b.send(&p, FIN | ACK, &[]);
    assert_eq!(b.host.stack.time_waits(), 1);
    b.wait(Duration::from_millis(900));
    assert!(connect(&mut b, 2).is_empty());
    assert_eq!(b.failed, Some(protocol::Failure::TupleInUse));
    b.wait(Duration::from_millis(200));
    let syn = connect(&mut b, 3).remove(0);
    assert_eq!((syn.flags, b.host.stack.time_waits()), (SYN, 0));
    assert!(syn.seq.after(p.ack + 65_535));
}

/// A connection that we have closed, and that waits for the peer's FIN.
fn in_fin_wait_2(b: &mut Bench, port: u16) -> Peer {
    let mut p = b.establish(2, port, plain());
    let conn = b.accepted[b.accepted.len() - 1];
    let fin = b.job(Job::Close { conn, mode: CloseMode::Graceful }).remove(0);
    p.answer(&fin);
    b.send(&p, ACK, &[]);
    p
}

#[test]
fn an_orphan_waits_for_the_peers_fin_for_a_while() {
    for (linger2, seconds) in [(None, 60), (Some(5), 5), (Some(100), 100)] {
        let options: Vec<_> = linger2.map(|s| (ConnOption::Linger2, s)).into_iter().collect();
        let mut b = Bench::listening(10, &options, |_| {});
        let p = in_fin_wait_2(&mut b, 4000);
        assert_eq!(states(&b), [State::FinWait2]);
        b.wait(Duration::from_millis(seconds * 1000 - 20));
        assert_eq!(states(&b), [State::FinWait2], "{linger2:?}");
        b.wait(Duration::from_millis(40));
        assert_eq!(b.host.stack.connections(), 0, "{linger2:?}");
        assert_eq!(b.send(&p, FIN | ACK, &[])[0].flags, RST);
    }
}

#[test]
fn or_not_at_all() {
    let mut b = Bench::listening(10, &[(ConnOption::Linger2, -1i32 as u32)], |_| {});
    let mut p = b.establish(2, 4000, plain());
    let fin = b.job(Job::Close { conn: b.accepted[0], mode: CloseMode::Graceful }).remove(0);
    p.answer(&fin);
    let answers = b.send(&p, ACK, &[]);
    assert!(answers[0].flags.contains(RST), "{answers:?}");
    assert_eq!(b.host.stack.connections(), 0);
}

/// A program that ends waits for its peers' acknowledgment of its end, not for theirs: an idle peer may never close.
#[test]
fn a_peer_that_has_acknowledged_our_end_needs_no_wait() {
    let mut b = Bench::listening(10, &[], |_| {});
    assert!(b.host.stack.ends_acknowledged(), "there is nobody");
    let mut p = b.establish(2, 4000, plain());
    assert!(!b.host.stack.ends_acknowledged(), "it may still say something");
    let fin = b.job(Job::Close { conn: b.accepted[0], mode: CloseMode::Graceful }).remove(0);
    assert!(!b.host.stack.ends_acknowledged(), "the end is on its way");
    p.answer(&fin);
    b.send(&p, ACK, &[]);
    assert_eq!(states(&b), [State::FinWait2]);
    assert!(b.host.stack.ends_acknowledged());
}

#[test]
fn an_owner_waits_as_long_as_it_likes() {
    let mut b = Bench::listening(10, &[(ConnOption::Linger2, 5)], |_| {});
    let mut p = b.establish(2, 4000, plain());
    let fin = b.job(Job::Shutdown { conn: b.accepted[0] }).remove(0);
    p.answer(&fin);
    b.send(&p, ACK, &[]);
    b.wait(Duration::from_secs(1000));
    assert_eq!(states(&b), [State::FinWait2]);
    b.send(&p, ACK, b"late");
    assert_eq!(b.bytes, b"late");
    // Closed now, it is timed from here.
    b.job(Job::Close { conn: b.accepted[0], mode: CloseMode::Graceful });
    b.wait(Duration::from_millis(4900));
    assert_eq!(states(&b), [State::FinWait2]);
    b.wait(Duration::from_millis(200));
    assert_eq!(b.host.stack.connections(), 0);
}

#[test]
fn orphans_are_counted_and_too_many_are_reset() {
    let mut b = Bench::listening(100, &[], |c| c.stack.max_orphans = 10);
    for n in 0..10 {
        in_fin_wait_2(&mut b, 4000 + n);
    }
    assert_eq!((b.host.stack.orphans(), b.host.stack.connections()), (10, 10));
    b.establish(2, 5000, plain());
    let answers = b.job(Job::Close { conn: b.accepted[10], mode: CloseMode::Graceful });
    assert!(answers[0].flags.contains(RST), "{answers:?}");
    assert_eq!((b.host.stack.orphans(), b.host.stack.connections()), (10, 10));
    assert_eq!(b.host.stack.counters().orphans_reset, 1);
    b.wait(Duration::from_secs(61));
    assert_eq!((b.host.stack.orphans(), b.host.stack.connections()), (0, 0));
    assert_eq!(b.host.leaked(), 0);
}

/// A peer that offers no window and answers every probe does not keep an orphan for ever.
#[test]
fn an_orphan_is_not_held_by_a_closed_window() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = b.establish(2, 4000, plain());
    p.window = 0;
    b.send(&p, ACK, &[]);
    assert!(b.write(b.accepted[0], &[1; 5000]).is_empty());
    b.job(Job::Close { conn: b.accepted[0], mode: CloseMode::Graceful });
    let mut probes = 0;
    for _ in 0..4000 {
        for (_, s) in b.wait(Duration::from_millis(500)) {
            if s.flags.contains(RST) {
                assert!(probes >= 3, "{probes}");
                assert_eq!((b.host.stack.connections(), b.host.leaked()), (0, 0));
                assert_eq!(b.host.stack.counters().tcp.persist_timeouts, 1);
                return;
            }
            probes += 1;
            b.send(&p, ACK, &[]);
        }
    }
    panic!("{probes} probes and no end: {:?}", states(&b));
}

#[test]
fn nothing_is_known_of_other_ports() {
    let mut b = Bench::new(|_| {});
    let p = Peer::new(2, 4000);
    let rst = b.send_with(&p, SYN, &[], plain()).remove(0);
    assert_eq!((rst.flags, rst.ack, rst.to), (RST | ACK, p.seq + 1, p.addr));
    assert_ne!(rst.to, Addr::UNSPECIFIED_V4);
}

/// SO_LINGER waits for the acknowledgment of everything, not for the peer's FIN.
#[test]
fn a_lingering_close_ends_when_all_is_acknowledged() {
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = b.establish(2, 4000, plain());
    b.write(b.accepted[0], b"last words");
    let sent = b.job(Job::Close { conn: b.accepted[0], mode: CloseMode::Report });
    assert_eq!(b.closed, None);
    p.answer(sent.last().unwrap());
    b.send(&p, ACK, &[]);
    assert_eq!((b.closed, states(&b)), (Some(None), vec![State::FinWait2]));
    b.send(&p, FIN | ACK, &[]);
    assert_eq!((b.host.stack.connections(), b.host.stack.time_waits()), (0, 1));
    // A reset tells why it did not end well.
    let mut b = Bench::listening(10, &[], |_| {});
    let mut p = b.establish(2, 4000, plain());
    let sent = b.job(Job::Close { conn: b.accepted[0], mode: CloseMode::Report });
    p.answer(sent.last().unwrap());
    b.send(&p, RST, &[]);
    assert_eq!(b.closed, Some(Some(protocol::Failure::Reset)));
}

/// The application has gone, and has closed nothing: each of its peers hears of the end, whatever state its connection was in.
#[test]
fn the_end_of_an_application_ends_all_that_it_has() {
    let mut b = Bench::listening(10, &[], |c| c.stack.max_orphans = 1);
    let peers: Vec<Peer> = (0..5).map(|n| b.establish(n + 2, 4000, plain())).collect();
    assert_eq!(b.host.stack.connections(), 5);
    // A handshake that is not over, too: nobody will listen for it.
    b.send(&Peer::new(9, 4000), SYN, &[]);
    b.host.stack.close_all(b.now);
    assert_eq!(b.host.stack.go_on_ending(b.now), 5);
    let said = b.turn(vec![]);
    let fins = said.iter().filter(|s| s.flags.contains(FIN)).count();
    assert_eq!((fins, b.host.stack.listeners(), b.host.stack.half_open()), (5, 0, 0), "{said:?}");
    // One acknowledges the end, and is done with it; one ends too, and three are not heard of.
    let mut first = peers[0];
    first.ack += 1;
    b.send(&first, ACK, &[]);
    let mut second = peers[1];
    second.ack += 1;
    b.send(&second, FIN | ACK, &[]);
    assert_eq!((b.host.stack.connections(), b.host.stack.time_waits(), b.host.stack.tuples()), (4, 1, 5));
    // There is no time left: those that may not have heard are reset, and nobody else.
    assert_eq!(b.host.stack.left(), Left { ends: 3, bytes: 0 });
    b.host.stack.reset_all();
    assert_eq!(b.host.stack.go_on_ending(b.now), 3);
    assert!(!b.host.stack.is_ending());
    let said = b.turn(vec![]);
    assert_eq!((said.len(), said.iter().filter(|s| s.flags.contains(RST)).count()), (3, 3), "{said:?}");
    assert!(!b.host.stack.sending());
}

/// What is left behind is done once it has been there for long enough, and not before.
#[test]
fn jobs_that_were_left_behind_are_done_after_a_while() {
    const AFTER: u64 = 4000;
    let mut b = Bench::listening(10, &[], |_| {});
    b.establish(2, 4000, plain());
    let begin = b.now;
    let due = |b: &mut Bench, us| b.host.stack.left_jobs_due(begin.plus_micros(us), AFTER);
    assert_eq!(due(&mut b, 0), None);
    b.host.leave(Job::Close { conn: b.accepted[0], mode: CloseMode::Graceful });
    assert_eq!(due(&mut b, 0), Some(AFTER));
    for us in [0, 1000, AFTER - 1] {
        b.host.stack.collect_left_jobs(begin.plus_micros(us), AFTER);
        assert_eq!(due(&mut b, us), Some(AFTER - us));
        assert!(b.turn(Vec::new()).is_empty());
    }
    b.host.stack.collect_left_jobs(begin.plus_micros(AFTER), AFTER);
    let sent = b.turn(Vec::new());
    assert!(matches!(&sent[..], [s] if s.flags.contains(FIN)), "{sent:?}");
    // It is looked once more for what was left at the same moment.
    assert_eq!(due(&mut b, AFTER + 1), Some(AFTER - 1));
    b.host.stack.collect_left_jobs(begin.plus_micros(2 * AFTER), AFTER);
    assert_eq!(due(&mut b, 2 * AFTER), None);
}

/// Many are ended in many turns, as many in each as have answers that a turn receives; fewer where the ring holds more than that.
#[test]
fn the_end_of_many_takes_many_turns() {
    let mut b = Bench::listening(100, &[], |_| {});
    for n in 0..70 {
        b.establish(2, 4000 + n, plain());
    }
    // Numbers of nobody, and of one that the application has closed itself, are passed over.
    for n in [70, 71, 72] {
        let p = b.establish(2, 4000 + n, plain());
        match n {
            71 => b.job(Job::Close { conn: b.accepted[71], mode: CloseMode::Graceful }),
            _ => b.send(&p, RST, &[]),
        };
    }
    assert_eq!(b.host.stack.connections(), 71 + 2);
    for conn in [b.accepted[70], b.accepted[72]] {
        b.job(Job::Close { conn, mode: CloseMode::Graceful });
    }
    assert_eq!(b.host.stack.connections(), 71);
    b.host.stack.close_all(b.now);
    assert_eq!(b.host.stack.left(), Left { ends: 71, bytes: 0 });
    let (mut ended, mut fins) = (Vec::new(), Vec::new());
    for behind in [0, 500, 0, 0] {
        b.host.stack.note_backlog(b.now, 64, (behind, 1024));
        assert!(b.host.stack.is_ending());
        ended.push(b.host.stack.go_on_ending(b.now));
        fins.push(b.turn(vec![]).iter().filter(|s| s.flags.contains(FIN)).count());
    }
    assert_eq!(ended, [32, 4, 32, 2]);
    assert_eq!(fins, [32, 4, 32, 2]);
    assert!(!b.host.stack.is_ending());
    assert_eq!(b.host.stack.counters().dropped(DropReason::BadJob), 0);
}

/// What an application closes one by one at its end is not cut short by the limit of orphans, which is for one that goes on.
#[test]
fn the_last_closes_of_an_application_are_no_resets() {
    for (last, fins) in [(false, 1), (true, 3)] {
        let mut b = Bench::listening(10, &[], |c| c.stack.max_orphans = 1);
        for n in 0..3 {
            b.establish(n + 2, 4000, plain());
        }
        if last {
            b.job(Job::Ending);
        }
        let said: Vec<_> = b
            .accepted
            .clone()
            .into_iter()
            .flat_map(|conn| b.job(Job::Close { conn, mode: CloseMode::Graceful }))
            .collect();
        let count = |flag| said.iter().filter(|s| s.flags.contains(flag)).count();
        assert_eq!((count(FIN), count(RST)), (fins, 3 - fins), "{said:?}");
    }
}
