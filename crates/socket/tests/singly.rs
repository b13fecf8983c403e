//! Epolls of mTCP's kind: one bit in each report, no socket twice in one collection.

mod common;

use common::Lane;
use protocol::{ConnId, Event, Failure};
use socket::{Interest, Ready, SockId, bits};

fn collect(l: &mut Lane, epoll: SockId, most: usize) -> Vec<(u64, u32)> {
    let mut out = [Ready { events: 0, data: 0 }; 8];
    let n = l.s.epoll_collect(epoll, &mut out[..most]).unwrap();
    out[..n].iter().map(|r| (r.data, r.events)).collect()
}

/// An epoll that watches connections 1 to `n`, each with its number.
fn watched(l: &mut Lane, n: u32, events: u32) -> (SockId, Vec<SockId>) {
    let epoll = l.s.epoll_create_singly().unwrap();
    let ids = (1..=n).map(|conn| l.connected(conn)).collect::<Vec<_>>();
    for (i, id) in ids.iter().enumerate() {
        l.s.epoll_add(epoll, *id, Interest::from_epoll(events, i as u64 + 1)).unwrap();
    }
    (epoll, ids)
}

#[test]
fn what_holds_at_once_is_reported_by_turns() {
    let mut l = Lane::new();
    let (e, ids) = watched(&mut l, 1, bits::IN | bits::OUT);
    assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    l.data(1, b"x");
    for _ in 0..3 {
        assert_eq!(collect(&mut l, e, 8), [(1, bits::IN)]);
        assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    }
    // What no longer holds is not reported.
    l.s.read(ids[0], &mut [0; 8]).unwrap();
    assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    l.end();
}

#[test]
fn an_edge_is_told_whole_but_not_at_once() {
    let mut l = Lane::new();
    let (e, ids) = watched(&mut l, 2, bits::IN | bits::OUT | bits::RDHUP | bits::ET);
    assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT), (2, bits::OUT)]);
    for conn in [1, 2] {
        l.data(conn, b"x");
        l.tell(Event::Fin { conn: ConnId(conn) });
    }
    // With room for one report nothing is lost, only later.
    let mut told = Vec::new();
    for _ in 0..6 {
        told.extend(collect(&mut l, e, 1));
    }
    told.sort_unstable();
    let all = [bits::IN, bits::OUT, bits::RDHUP];
    assert_eq!(told, [1, 2].iter().flat_map(|n| all.map(|bit| (*n, bit))).collect::<Vec<_>>());
    assert_eq!(collect(&mut l, e, 8), []);
    // What has gone meanwhile is not told.
    l.s.epoll_modify(e, ids[0], Interest::from_epoll(bits::IN | bits::OUT | bits::ET, 7)).unwrap();
    assert_eq!(collect(&mut l, e, 8), [(7, bits::IN)]);
    l.s.epoll_delete(e, ids[0]).unwrap();
    assert_eq!(collect(&mut l, e, 8), []);
    l.end();
}

#[test]
fn news_on_an_edge_half_told_starts_it_again() {
    let mut l = Lane::new();
    let (e, _) = watched(&mut l, 1, bits::IN | bits::OUT | bits::ET);
    assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    l.data(1, b"x");
    assert_eq!(collect(&mut l, e, 8), [(1, bits::IN)]);
    l.data(1, b"y");
    assert_eq!(collect(&mut l, e, 8), [(1, bits::IN)]);
    assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    assert_eq!(collect(&mut l, e, 8), []);
    l.end();
}

#[test]
fn one_shot_is_one_report() {
    let mut l = Lane::new();
    let (e, ids) = watched(&mut l, 1, bits::IN | bits::OUT | bits::ONESHOT);
    l.data(1, b"x");
    assert_eq!(collect(&mut l, e, 8), [(1, bits::IN)]);
    assert_eq!(collect(&mut l, e, 8), []);
    l.s.epoll_modify(e, ids[0], Interest::from_epoll(bits::OUT | bits::ONESHOT, 1)).unwrap();
    assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    assert_eq!(collect(&mut l, e, 8), []);
    // Asked for both each time, it tells of one and then of the other.
    for event in [bits::IN, bits::OUT, bits::IN] {
        l.s.epoll_modify(e, ids[0], Interest::from_epoll(bits::IN | bits::OUT | bits::ONESHOT, 1)).unwrap();
        assert_eq!(collect(&mut l, e, 8), [(1, event)]);
    }
    l.end();
}

#[test]
fn an_error_comes_first_and_hides_nothing() {
    let mut l = Lane::new();
    let (e, ids) = watched(&mut l, 1, bits::IN | bits::OUT);
    assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    l.tell(Event::Failed { conn: ConnId(1), failure: Failure::TimedOut });
    // Who looks for IN alone sees it every other time, and reads the error.
    for _ in 0..2 {
        assert_eq!(collect(&mut l, e, 8), [(1, bits::ERR)]);
        assert_eq!(collect(&mut l, e, 8), [(1, bits::IN)]);
    }
    l.s.take_error(ids[0]).unwrap();
    let mut told: Vec<_> = (0..4).flat_map(|_| collect(&mut l, e, 8)).map(|(_, bit)| bit).collect();
    told.sort_unstable();
    assert_eq!(told, [bits::IN, bits::IN, bits::OUT, bits::OUT]);
    l.end();
}

#[test]
fn an_edge_of_an_error_is_the_error_alone() {
    let mut l = Lane::new();
    let (e, _) = watched(&mut l, 1, bits::IN | bits::OUT | bits::ET);
    assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    l.tell(Event::Failed { conn: ConnId(1), failure: Failure::TimedOut });
    assert_eq!(collect(&mut l, e, 8), [(1, bits::ERR)]);
    assert_eq!(collect(&mut l, e, 8), []);
    l.end();
}

#[test]
fn hup_is_told_to_who_asked() {
    let mut l = Lane::new();
    let (e, ids) = watched(&mut l, 1, bits::HUP);
    l.tell(Event::Failed { conn: ConnId(1), failure: Failure::TimedOut });
    l.s.take_error(ids[0]).unwrap();
    assert_eq!(collect(&mut l, e, 8), [(1, bits::HUP)]);
    // A socket that was never connected hangs up on nobody.
    let fresh = l.s.socket(false).unwrap();
    l.s.epoll_add(e, fresh, Interest::from_epoll(bits::IN, 9)).unwrap();
    assert_eq!(collect(&mut l, e, 8), [(1, bits::HUP)]);
    l.end();
}

/// Programs for mTCP end at an error; that a peer has reset a connection was the end of the stream there.
#[test]
fn a_reset_is_the_end_of_the_stream() {
    for trigger in [0, bits::ET, bits::ONESHOT] {
        for (asked, told) in [
            (bits::IN | bits::OUT, bits::IN),
            (bits::IN | bits::OUT | bits::RDHUP, bits::IN | bits::RDHUP),
            (bits::OUT | bits::RDHUP, bits::RDHUP),
            (bits::OUT, bits::ERR),
        ] {
            let mut l = Lane::new();
            let (e, ids) = watched(&mut l, 1, asked | trigger);
            assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
            l.tell(Event::Failed { conn: ConnId(1), failure: Failure::Reset });
            if trigger == bits::ONESHOT {
                l.s.epoll_modify(e, ids[0], Interest::from_epoll(asked | trigger, 1)).unwrap();
            }
            let [(1, event)] = collect(&mut l, e, 8)[..] else { panic!("{asked:#x} {trigger:#x}") };
            assert!(event.is_power_of_two() && event & told != 0, "{asked:#x} {trigger:#x}: {event:#x}");
            assert_eq!(l.s.read(ids[0], &mut [0; 8]), Err(socket::Errno::ECONNRESET));
            l.end();
        }
    }
}

/// The end of a stream would have a program close a connection whose last request it has not read.
#[test]
fn the_end_of_a_stream_comes_after_its_bytes() {
    let mut l = Lane::new();
    let (e, ids) = watched(&mut l, 1, bits::IN | bits::OUT | bits::RDHUP | bits::HUP);
    assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    l.data(1, b"xy");
    l.tell(Event::Fin { conn: ConnId(1) });
    for _ in 0..3 {
        assert_eq!(collect(&mut l, e, 8), [(1, bits::IN)]);
        assert_eq!(collect(&mut l, e, 8), [(1, bits::OUT)]);
    }
    // Who does not ask for bytes does not wait for them.
    l.s.epoll_modify(e, ids[0], Interest::from_epoll(bits::RDHUP, 1)).unwrap();
    assert_eq!(collect(&mut l, e, 8), [(1, bits::RDHUP)]);
    l.s.epoll_modify(e, ids[0], Interest::from_epoll(bits::IN | bits::OUT | bits::RDHUP, 1)).unwrap();
    l.s.read(ids[0], &mut [0; 2]).unwrap();
    let mut told: Vec<_> = (0..3).flat_map(|_| collect(&mut l, e, 8)).map(|(_, bit)| bit).collect();
    told.sort_unstable();
    assert_eq!(told, [bits::IN, bits::OUT, bits::RDHUP]);
    l.end();
}
