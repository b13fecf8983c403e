//! recv's flags, TCP_INQ, and the urgent mark.

mod common;

use common::Lane;
use protocol::{ConnId, Event, Failure, Job};
use socket::{Errno, RecvFlags, SockOption, bits};

fn flags(bits: i32) -> RecvFlags {
    RecvFlags::from_bits(bits)
}
const OOB: i32 = 1;
const PEEK: i32 = 2;
const TRUNC: i32 = 0x20;
const WAITALL: i32 = 0x100;

#[test]
fn waiting_for_everything() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let (mut buf, mut done) = ([0; 10], 0);
    assert_eq!(l.s.recv_on(id, &mut buf, &mut done, flags(WAITALL)), Err(Errno::EAGAIN));
    l.data(1, b"abcd");
    assert_eq!(l.s.recv_on(id, &mut buf, &mut done, flags(WAITALL)), Err(Errno::EAGAIN));
    assert_eq!(done, 4);
    l.data(1, b"efghijkl");
    assert_eq!(l.s.recv_on(id, &mut buf, &mut done, flags(WAITALL)), Ok(10));
    assert_eq!(&buf, b"abcdefghij");
    // Without waiting it is what is there.
    assert_eq!(l.s.recv(id, &mut buf, flags(WAITALL)), Ok(2));
    // The end ends it; the error after some bytes waits for the next call.
    l.data(1, b"xyz");
    l.tell(Event::Failed { conn: ConnId(1), failure: Failure::Reset });
    assert_eq!(l.s.recv_on(id, &mut buf, &mut 0, flags(WAITALL)), Ok(3));
    assert_eq!(l.s.recv(id, &mut buf, flags(0)), Err(Errno::ECONNRESET));
    assert_eq!(l.s.recv(id, &mut buf, flags(0)), Ok(0));
    l.end();
}

#[test]
fn a_waiting_peek_takes_nothing() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let (mut buf, mut done) = ([0; 6], 0);
    l.data(1, b"abc");
    assert_eq!(l.s.recv_on(id, &mut buf, &mut done, flags(WAITALL | PEEK)), Err(Errno::EAGAIN));
    l.data(1, b"def");
    assert_eq!(l.s.recv_on(id, &mut buf, &mut done, flags(WAITALL | PEEK)), Ok(6));
    assert_eq!(&buf, b"abcdef");
    assert_eq!(l.s.available(id), Ok(6));
    l.end();
}

#[test]
fn the_low_water_mark_holds_for_waiting_reads() {
    let mut l = Lane::new();
    let id = l.connected(1);
    l.s.set_option(id, SockOption::ReceiveLow(5)).unwrap();
    let (mut buf, mut done) = ([0; 100], 0);
    l.data(1, b"abc");
    assert_eq!(l.s.recv_on(id, &mut buf, &mut done, flags(0)), Err(Errno::EAGAIN));
    l.data(1, b"def");
    assert_eq!(l.s.recv_on(id, &mut buf, &mut done, flags(0)), Ok(6));
    l.data(1, b"g");
    assert_eq!(l.s.recv(id, &mut buf, flags(0)), Ok(1));
    l.end();
}

/// Memory too short for as much as SO_RCVLOWAT asks for: what is there is readable (Linux's `tcp_rmem_pressure`), in whichever order all
/// come, until it is read.
#[test]
fn the_low_water_mark_does_not_hold_while_memory_is_short() {
    let ready = |l: &mut Lane, id| {
        l.s.process();
        l.s.check();
        l.s.readiness(id).unwrap() & bits::IN != 0
    };
    let ways: [fn(&mut Lane, socket::SockId); 4] = [
        |l, _| l.data(1, b"abc"),
        // Above the mark until it is set, or until some is read.
        |l, id| {
            l.s.set_option(id, SockOption::ReceiveLow(1)).unwrap();
            l.data(1, b"abc");
            l.s.set_option(id, SockOption::ReceiveLow(5)).unwrap();
        },
        |l, id| {
            l.data(1, b"12345abc");
            assert_eq!(l.s.recv(id, &mut [0; 5], flags(0)), Ok(5));
        },
        |l, id| {
            l.data(1, b"12345abc");
            assert_eq!(l.s.readv(id, &mut [&mut [0; 5]]), Ok(5));
        },
    ];
    for (way, short_first) in ways.iter().flat_map(|way| [(way, true), (way, false)]) {
        let mut l = Lane::with(10, 64, 64);
        let id = l.connected(1);
        let epoll = l.s.epoll_create().unwrap();
        l.s.set_option(id, SockOption::ReceiveLow(5)).unwrap();
        let occupy = |l: &mut Lane| l.chain(&[0; 48 * 2048]);
        let mut others = short_first.then(|| occupy(&mut l));
        l.s.process();
        way(&mut l, id);
        if !short_first {
            assert!(!ready(&mut l, id));
            others = Some(occupy(&mut l));
        }
        let mut events = [socket::Ready { events: 0, data: 0 }; 4];
        l.s.epoll_add(epoll, id, socket::Interest::from_epoll(bits::IN | bits::ET, 7)).unwrap();
        _ = l.s.epoll_collect(epoll, &mut events);
        assert!(ready(&mut l, id));
        if !short_first {
            assert_eq!(l.s.epoll_collect(epoll, &mut events), Ok(1));
        }
        let (mut buf, mut done) = ([0; 2], 0);
        assert_eq!(l.s.recv_on(id, &mut buf, &mut done, flags(0)), Ok(2));
        assert!(ready(&mut l, id));
        assert_eq!(l.s.recv(id, &mut buf, flags(0)), Ok(1));
        others.unwrap().free(&mut l.side);
        l.s.process();
        // The mark holds again for what comes now.
        l.data(1, b"def");
        assert!(!ready(&mut l, id));
        l.data(1, b"gh");
        assert!(ready(&mut l, id));
        l.end();
    }
}

#[test]
fn truncated_bytes_are_dropped() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let mut buf = *b"......";
    l.data(1, b"abcdefgh");
    assert_eq!(l.s.recv(id, &mut buf, flags(TRUNC)), Ok(6));
    assert_eq!(&buf, b"......");
    assert_eq!(l.s.recv(id, &mut buf, flags(0)), Ok(2));
    assert_eq!(&buf, b"gh....");
    l.end();
}

#[test]
fn inq_tells_what_is_left() {
    let mut l = Lane::new();
    let id = l.connected(1);
    l.data(1, &[0; 100]);
    assert_eq!(l.s.inq(id), Ok(None));
    l.s.set_option(id, SockOption::Inq(true)).unwrap();
    l.s.recv(id, &mut [0; 40], flags(0)).unwrap();
    assert_eq!(l.s.inq(id), Ok(Some(60)));
    l.tell(Event::Fin { conn: ConnId(1) });
    l.s.recv(id, &mut [0; 60], flags(0)).unwrap();
    assert_eq!(l.s.inq(id), Ok(Some(1)));
    l.end();
}

#[test]
fn the_urgent_byte_is_read_apart() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let mut buf = [0; 8];
    assert_eq!(l.s.recv(id, &mut buf, flags(OOB)), Err(Errno::EINVAL));
    // The pointer is known before the byte.
    l.tell(Event::Urgent { conn: ConnId(1), beyond: 3 });
    assert_eq!(l.s.recv(id, &mut buf, flags(OOB)), Err(Errno::EAGAIN));
    assert_eq!(l.s.readiness(id).unwrap() & bits::PRI, 0);
    l.data(1, b"abc!def");
    assert_eq!(l.s.readiness(id).unwrap() & bits::PRI, bits::PRI);
    assert_eq!(l.s.available(id), Ok(3));
    assert_eq!(l.s.recv(id, &mut buf, flags(OOB | PEEK)), Ok(1));
    assert_eq!((l.s.recv(id, &mut buf, flags(OOB)), buf[0]), (Ok(1), b'!'));
    assert_eq!(l.s.recv(id, &mut buf, flags(OOB)), Err(Errno::EINVAL));
    assert_eq!(l.s.at_mark(id), Ok(false));
    // Reading stops at the mark, then goes on behind it.
    assert_eq!((l.s.read(id, &mut buf), &buf[..3]), (Ok(3), &b"abc"[..]));
    assert_eq!(l.s.at_mark(id), Ok(true));
    assert_eq!((l.s.read(id, &mut buf), &buf[..3]), (Ok(3), &b"def"[..]));
    assert_eq!(l.s.at_mark(id), Ok(false));
    l.end();
}

#[test]
fn or_in_line() {
    let mut l = Lane::new();
    let id = l.connected(1);
    l.s.set_option(id, SockOption::OobInline(true)).unwrap();
    let mut buf = [0; 8];
    l.data(1, b"ab");
    l.tell(Event::Urgent { conn: ConnId(1), beyond: 0 });
    l.data(1, b"!cd");
    assert_eq!(l.s.recv(id, &mut buf, flags(OOB)), Err(Errno::EINVAL));
    assert_eq!((l.s.read(id, &mut buf), &buf[..2]), (Ok(2), &b"ab"[..]));
    assert_eq!(l.s.at_mark(id), Ok(true));
    assert_eq!((l.s.read(id, &mut buf), &buf[..3]), (Ok(3), &b"!cd"[..]));
    assert_eq!(l.s.at_mark(id), Ok(false));
    l.end();
}

#[test]
fn an_urgent_write_names_its_last_byte() {
    let mut l = Lane::new();
    let id = l.connected(1);
    assert_eq!(l.s.write_urgent(id, b"abc"), Ok(3));
    let mut jobs = l.jobs();
    assert!(matches!(jobs[0], Job::Urgent { conn: ConnId(1), bytes: 3 }), "{jobs:?}");
    let Some(Job::Write { chain, .. }) = jobs.pop() else { panic!("{jobs:?}") };
    assert_eq!(l.bytes(chain), b"abc");
    l.end();
}

#[test]
fn what_is_lent_stays_where_it_is() {
    let mut l = Lane::new();
    let id = l.connected(1);
    assert_eq!(l.s.lend(id, 100, |_| true), Err(Errno::EAGAIN));
    l.data(1, &[b'a'; 5000]);
    let mut pieces = Vec::new();
    let n = l.s.lend(id, usize::MAX, |piece| {
        pieces.push((piece.as_ptr(), piece.len()));
        true
    });
    assert_eq!((n, pieces.iter().map(|(_, len)| len).sum::<usize>()), (Ok(5000), 5000));
    // More comes, and part of it is used.
    l.data(1, &[b'b'; 100]);
    l.s.consume(id, pieces[0].1).unwrap();
    let mut later = Vec::new();
    l.s.lend(id, usize::MAX, |piece| {
        later.push(piece.as_ptr());
        true
    })
    .unwrap();
    assert_eq!(later[0], pieces[1].0);
    // As much as is wanted, and no more.
    assert_eq!(l.s.lend(id, 7, |_| true), Ok(7));
    let mut calls = 0;
    let first = l.s.lend(id, usize::MAX, |_| {
        calls += 1;
        false
    });
    assert_eq!((first, calls), (Ok(pieces[1].1), 1));
    l.tell(Event::Fin { conn: ConnId(1) });
    l.s.consume(id, usize::MAX).unwrap();
    assert_eq!(l.s.lend(id, 100, |_| true), Ok(0));
    l.end();
}
