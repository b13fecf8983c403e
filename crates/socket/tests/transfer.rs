//! Reading, writing, shutting down.

mod common;

use common::{Lane, RECEIVE, SEND};

/// What everybody may have in flight.
const LEAST: usize = 8192;
use mem::Chain;
use protocol::{ConnId, Event, Failure, Job};
use socket::{Errno, Shutdown, SockOption, bits};

#[test]
fn reads_in_every_form() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let mut buf = [0; 8];
    assert_eq!(l.s.read(id, &mut buf), Err(Errno::EAGAIN));
    assert_eq!(l.s.read(id, &mut []), Ok(0));
    l.data(1, b"abcdefghijklmnopqrstuvwxyz");
    assert_eq!(l.s.peek(id, &mut buf), Ok(8));
    assert_eq!(&buf, b"abcdefgh");
    assert_eq!(l.s.available(id), Ok(26));
    let (mut a, mut b) = ([0; 3], [0; 4]);
    assert_eq!(l.s.readv(id, &mut [&mut a, &mut [], &mut b]), Ok(7));
    assert_eq!((&a, &b), (b"abc", b"defg"));
    assert!(l.s.first_slice(id).unwrap().starts_with(b"hijk"));
    l.s.consume(id, 4).unwrap();
    assert_eq!(l.s.read(id, &mut buf), Ok(8));
    assert_eq!(&buf, b"lmnopqrs");
    let mut chain = l.s.read_chain(id).unwrap();
    assert_eq!(chain.len(), 7);
    assert_eq!(chain.read(l.s.side(), &mut buf), 7);
    assert_eq!(&buf[..7], b"tuvwxyz");
    chain.free(l.s.side());
    assert_eq!(l.s.read_chain(id).map(|c| c.len()), Err(Errno::EAGAIN));
    l.data(1, b"x");
    l.tell(Event::Fin { conn: ConnId(1) });
    assert_eq!(l.s.readv(id, &mut [&mut a, &mut b]), Ok(1));
    assert_eq!(l.s.read(id, &mut buf), Ok(0));
    assert_eq!(l.s.peek(id, &mut buf), Ok(0));
    assert!(l.s.read_chain(id).unwrap().is_empty());
    l.end();
}

#[test]
fn many_small_pieces_come_out_in_order() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let all: Vec<u8> = (0..20_000u32).map(|i| (i * 7 % 251) as u8).collect();
    for piece in all.chunks(777) {
        l.data(1, piece);
    }
    let mut got = Vec::new();
    let mut buf = [0; 1000];
    while let Ok(n @ 1..) = l.s.read(id, &mut buf) {
        got.extend_from_slice(&buf[..n]);
    }
    assert!(got == all);
    l.end();
}

/// A quarter of the buffer is reported; an eighth when everything was read; less never.
#[test]
fn consumed_bytes_are_reported_when_they_matter() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let mut buf = vec![0; RECEIVE as usize];
    let eighth = RECEIVE as usize / 8;
    l.data(1, &vec![1; eighth - 1]);
    l.s.read(id, &mut buf).unwrap();
    l.no_job();
    l.data(1, &[1]);
    l.s.read(id, &mut buf).unwrap();
    assert!(matches!(l.job(), Job::Consumed { conn: ConnId(1), bytes } if bytes as usize == eighth));
    // With more waiting, not before a quarter.
    l.data(1, &vec![1; 3 * eighth]);
    l.s.read(id, &mut buf[..2 * eighth - 1]).unwrap();
    l.no_job();
    l.s.read(id, &mut buf[..1]).unwrap();
    assert!(matches!(l.job(), Job::Consumed { bytes, .. } if bytes as usize == 2 * eighth));
    // After FIN no window matters.
    l.tell(Event::Fin { conn: ConnId(1) });
    l.s.read(id, &mut buf).unwrap();
    l.no_job();
    l.end();
}

/// Whatever the pattern of reads, less than a quarter of the buffer stays unreported, and an eighth once all is read: the
/// peer's window cannot close for good.
#[test]
fn the_window_keeps_moving() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let (mut arrived, mut reported, mut seed) = (0usize, 0usize, 12345u32);
    let mut buf = vec![0; RECEIVE as usize];
    for _ in 0..2000 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let waiting = l.s.available(id).unwrap();
        let window = RECEIVE as usize - (arrived - reported);
        let n = (seed as usize >> 8) % (window.min(9000) + 1);
        if n > 0 {
            l.data(1, &vec![0; n]);
            arrived += n;
        }
        let want = 1 + (seed as usize >> 16) % 12_000;
        let read = l.s.read(id, &mut buf[..want]).unwrap_or(0);
        for job in l.jobs() {
            match job {
                Job::Consumed { bytes, .. } => reported += bytes as usize,
                other => panic!("{other:?}"),
            }
        }
        let left = waiting + n - read;
        let unreported = arrived - left - reported;
        assert!(unreported < RECEIVE as usize / 4 && (left > 0 || unreported < RECEIVE as usize / 8));
    }
    assert!(arrived > 100 * RECEIVE as usize, "the test moved too little");
    l.end();
}

/// MSG_EOR ends a record only where all of it was taken.
#[test]
fn a_record_that_fits_is_ended() {
    let mut l = Lane::new();
    let id = l.connected(1);
    assert_eq!(l.s.write_record(id, b"hello"), Ok(5));
    let jobs = l.jobs();
    assert!(matches!(jobs[..], [Job::Write { .. }, Job::EndRecord { conn: ConnId(1) }]), "{jobs:?}");
    let big = vec![9; 2 * SEND as usize];
    assert_eq!(l.s.write_record(id, &big), Ok(SEND as usize - 5));
    let more = l.jobs();
    assert!(matches!(more[..], [Job::Write { .. }]), "{more:?}");
    assert_eq!(l.s.write_record(id, b"x"), Err(Errno::EAGAIN));
    for job in jobs.into_iter().chain(more) {
        if let Job::Write { chain, .. } = job {
            chain.free(l.s.side());
        }
    }
    l.end();
}

#[test]
fn writes_take_what_fits() {
    let mut l = Lane::new();
    let id = l.connected(1);
    assert_eq!(l.s.write(id, b"hello", false), Ok(5));
    assert_eq!(l.written(), (ConnId(1), b"hello".to_vec(), false));
    assert_eq!(l.s.writev(id, &[b"a", b"", b"bc"], true), Ok(3));
    assert_eq!(l.written(), (ConnId(1), b"abc".to_vec(), true));
    assert_eq!(l.s.unacknowledged(id), Ok(8));
    let big = vec![9; 2 * SEND as usize];
    assert_eq!(l.s.writev(id, &[&big[..100], &big], false), Ok(SEND as usize - 8));
    assert_eq!(l.written().1.len(), SEND as usize - 8);
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::EAGAIN));
    assert_eq!(l.s.write(id, b"", false), Ok(0));
    assert_eq!(l.s.readiness(id), Ok(0));
    // Writable from a third on, though less can be written before.
    l.tell(Event::Acked { conn: ConnId(1), bytes: SEND / 3 - 1 });
    assert_eq!(l.s.readiness(id), Ok(0));
    l.tell(Event::Acked { conn: ConnId(1), bytes: 1 });
    assert_eq!(l.s.readiness(id), Ok(bits::OUT));
    assert_eq!(l.s.write(id, &big, false), Ok(SEND as usize / 3));
    l.written();
    l.no_job();
    l.end();
}

#[test]
fn a_chain_goes_whole_or_comes_back() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let chain = |l: &mut Lane, n: usize| {
        let mut chain = Chain::default();
        assert_eq!(chain.push_slice(l.s.side(), &vec![5; n]), n);
        chain
    };
    let long = chain(&mut l, SEND as usize + 100);
    assert!(l.s.write_chain(id, long, false).is_ok());
    assert_eq!(l.written().1.len(), SEND as usize + 100);
    let more = chain(&mut l, 10);
    let (errno, back) = l.s.write_chain(id, more, false).unwrap_err();
    assert_eq!((errno, back.len()), (Errno::EAGAIN, 10));
    l.tell(Event::Acked { conn: ConnId(1), bytes: SEND + 100 });
    assert!(l.s.write_chain(id, back, true).is_ok());
    assert!(l.s.write_chain(id, Chain::default(), false).is_ok());
    assert_eq!(l.written(), (ConnId(1), vec![5; 10], true));
    l.end();
}

#[test]
fn what_a_broken_connection_says() {
    let mut l = Lane::new();
    let mut buf = [0; 4];
    let reset = |conn| Event::Failed { conn: ConnId(conn), failure: Failure::Reset };
    // Write first: the error once, then EPIPE; read: the end.
    let id = l.connected(1);
    l.tell(reset(1));
    assert_eq!(l.s.readiness(id), Ok(bits::IN | bits::OUT | bits::ERR | bits::HUP | bits::RDHUP));
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::ECONNRESET));
    assert_eq!(l.s.readiness(id), Ok(bits::IN | bits::OUT | bits::HUP | bits::RDHUP));
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::EPIPE));
    assert_eq!(l.s.read(id, &mut buf), Ok(0));
    assert_eq!(l.s.shutdown(id, Shutdown::Both), Err(Errno::ENOTCONN));
    // Read first.
    let id = l.connected(2);
    l.tell(Event::Failed { conn: ConnId(2), failure: Failure::TimedOut });
    assert_eq!(l.s.read(id, &mut buf), Err(Errno::ETIMEDOUT));
    assert_eq!(l.s.read(id, &mut buf), Ok(0));
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::EPIPE));
    // Linux: a reset after FIN is a broken pipe for the writer, and no news for the reader.
    let id = l.connected(3);
    l.tell(Event::Fin { conn: ConnId(3) });
    l.tell(reset(3));
    assert_eq!(l.s.read(id, &mut buf), Ok(0));
    assert_eq!(l.s.take_error(id), Ok(Some(Errno::EPIPE)));
    // Never connected.
    let id = l.s.socket(false).unwrap();
    assert_eq!(l.s.read(id, &mut buf), Err(Errno::ENOTCONN));
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::EPIPE));
    assert_eq!(l.s.shutdown(id, Shutdown::Both), Err(Errno::ENOTCONN));
    let epoll = l.s.epoll_create().unwrap();
    assert_eq!(l.s.read(epoll, &mut buf), Err(Errno::EINVAL));
    assert_eq!(l.s.write(epoll, b"x", false), Err(Errno::EINVAL));
    l.jobs();
    l.end();
}

#[test]
fn shutdown_of_either_side() {
    let mut l = Lane::new();
    let mut buf = [0; 4];
    let id = l.connected(1);
    assert_eq!(l.s.write(id, b"last", false), Ok(4));
    l.s.shutdown(id, Shutdown::Write).unwrap();
    l.s.shutdown(id, Shutdown::Write).unwrap();
    let jobs = l.jobs();
    assert!(matches!(jobs[..], [Job::Write { .. }, Job::Shutdown { conn: ConnId(1) }]), "{jobs:?}");
    for job in jobs {
        if let Job::Write { chain, .. } = job {
            chain.free(&mut l.side);
        }
    }
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::EPIPE));
    assert_eq!(l.s.readiness(id), Ok(bits::OUT));
    l.data(1, b"ab");
    assert_eq!(l.s.read(id, &mut buf), Ok(2));
    l.tell(Event::Fin { conn: ConnId(1) });
    assert_eq!(l.s.readiness(id), Ok(bits::IN | bits::OUT | bits::RDHUP | bits::HUP));
    // What was received before SHUT_RD, and even after, can be read; then it is the end.
    let id = l.connected(2);
    l.data(2, b"ab");
    l.s.shutdown(id, Shutdown::Read).unwrap();
    l.data(2, b"cd");
    assert_eq!(l.s.read(id, &mut buf), Ok(4));
    assert_eq!(l.s.read(id, &mut buf), Ok(0));
    assert_eq!(l.s.readiness(id), Ok(bits::IN | bits::OUT | bits::RDHUP));
    assert_eq!(l.s.write(id, b"x", false), Ok(1));
    assert_eq!(l.written().1, b"x");
    // A connect in progress is given up.
    let (id, token) = l.connecting();
    l.tell(Event::Opened { token, conn: ConnId(3), local: common::at(4000) });
    l.s.shutdown(id, Shutdown::Both).unwrap();
    assert!(matches!(l.job(), Job::Close { conn: ConnId(3), .. }));
    assert_eq!(l.s.readiness(id), Ok(bits::OUT | bits::HUP));
    l.end();
}

#[test]
fn a_dry_pool_stops_writers_until_there_are_chunks() {
    let mut l = Lane::with(10, 8, 256);
    let epoll = l.s.epoll_create().unwrap();
    let id = l.connected(1);
    let other = l.connected(2);
    let third = l.connected(3);
    let edge = socket::Interest::from_epoll(bits::OUT | bits::ET, 7);
    l.s.epoll_add(epoll, other, edge).unwrap();
    let mut ready = [socket::Ready { events: 0, data: 0 }; 4];
    assert_eq!(l.s.epoll_collect(epoll, &mut ready), Ok(1));
    // The first takes the least that everybody may have and one chunk more for a byte, the second the rest, cut short.
    let n = l.s.write(id, &[1; SEND as usize], false).unwrap() + l.s.write(third, b"x", false).unwrap();
    let m = l.s.write(other, &[2; SEND as usize], false).unwrap();
    // Five chunks of the eight, and the other three.
    assert_eq!((n, m), (LEAST + 1, 3 * 2048));
    assert_eq!(l.s.counters().no_chunk, 1);
    assert_eq!(l.s.write(other, b"x", false), Err(Errno::EAGAIN));
    assert!(l.s.starving());
    assert_eq!(l.s.readiness(other).unwrap() & bits::OUT, 0);
    l.s.process();
    assert_eq!(l.s.epoll_collect(epoll, &mut ready), Ok(0));
    // The stack frees what was acknowledged, and passes it over.
    for job in l.jobs() {
        let Job::Write { chain, .. } = job else { panic!() };
        chain.free(&mut l.side);
    }
    l.side.supply_peer(8);
    l.tell(Event::Acked { conn: ConnId(1), bytes: LEAST as u32 });
    l.tell(Event::Acked { conn: ConnId(2), bytes: m as u32 });
    assert!(!l.s.starving());
    assert_eq!(l.s.epoll_collect(epoll, &mut ready), Ok(1));
    assert_eq!(ready[0], socket::Ready { events: bits::OUT, data: 7 });
    assert_eq!(l.s.write(other, b"x", false), Ok(1));
    l.written();
    l.end();
}

/// Writers cut short by the share of the memory, far below the send buffer, may have too little under way for the stack to tell of
/// when it is acknowledged: the stack is asked to, or they would never hear of room.
#[test]
fn a_write_cut_short_by_the_share_goes_on() {
    for edge in [true, false] {
        let mut l = Lane::with(10, 64, 256);
        let id = l.connected(1);
        l.s.set_option(id, SockOption::SendBuffer(50_000)).unwrap();
        l.job();
        let epoll = l.s.epoll_create().unwrap();
        let mut ready = [socket::Ready { events: 0, data: 0 }; 4];
        if edge {
            l.s.epoll_add(epoll, id, socket::Interest::from_epoll(bits::OUT | bits::ET, 7)).unwrap();
            assert_eq!(l.s.epoll_collect(epoll, &mut ready), Ok(1));
        }
        // Three quarters of the chunks are somebody's.
        let others = l.chain(&[0; 48 * 2048]);
        l.s.process();
        assert_eq!(l.s.write(id, &[1; 20_000], false), Ok(LEAST));
        l.s.check();
        assert!(l.s.starving());
        assert_eq!(l.s.readiness(id), Ok(0));
        l.written();
        // Nothing is acknowledged yet; what is will be told.
        l.s.process();
        assert!(matches!(l.job(), Job::TellAcked { conn: ConnId(1) }));
        l.s.process();
        l.no_job();
        others.free(&mut l.side);
        l.tell(Event::Acked { conn: ConnId(1), bytes: 1 });
        assert!(!l.s.starving());
        assert_eq!(l.s.readiness(id), Ok(bits::OUT));
        assert_eq!(l.s.epoll_collect(epoll, &mut ready), Ok(edge as usize));
        l.s.check();
        l.end();
    }
}

/// However many write as much as they can, nobody is left without, and what is free is not all taken.
#[test]
fn many_writers_share_what_there_is() {
    let mut l = Lane::with(2000, 2048, 4096);
    let ids: Vec<_> = (0..300).map(|conn| l.connected(conn)).collect();
    let (mut got, mut rounds) = (vec![0; ids.len()], 0);
    loop {
        let before: usize = got.iter().sum();
        for (id, got) in ids.iter().zip(&mut got) {
            *got += l.s.write(*id, &[1; SEND as usize], false).unwrap_or(0);
        }
        l.s.process();
        rounds += 1;
        assert!(rounds < 10_000);
        if rounds > 100 && before == got.iter().sum() {
            break;
        }
    }
    let (least, most) = (*got.iter().min().unwrap(), *got.iter().max().unwrap());
    // The first had their whole buffers, since nobody else had asked; the last have what everybody may.
    assert!(most <= SEND as usize && least >= LEAST.min(2048 * 2048 / 2 / 300), "{least} to {most}");
    assert!(l.side.stats().in_use_estimate < 2048 / 8 * 7);
    for job in l.jobs() {
        let Job::Write { chain, .. } = job else { continue };
        chain.free(&mut l.side);
    }
    l.end();
}

/// Chunks of which what came in holds all but the last: those with nothing under way send one in turn, each until its chunk is
/// acknowledged, so that what came in can go on. Else a relay stands still as a whole.
#[test]
fn who_has_nothing_under_way_sends_in_turn_when_memory_is_dry() {
    let mut l = Lane::with(10, 64, 256);
    let epoll = l.s.epoll_create().unwrap();
    let ids = [1, 2, 3, 4].map(|conn| {
        let id = l.connected(conn);
        l.s.epoll_add(epoll, id, socket::Interest::from_epoll(bits::OUT | bits::ET, conn.into())).unwrap();
        id
    });
    let mut ready = [socket::Ready { events: 0, data: 0 }; 8];
    assert_eq!(l.s.epoll_collect(epoll, &mut ready), Ok(4));
    let came = l.chain(&[0; 62 * 2048]);
    assert!(l.side.is_at_last());
    let told = |l: &mut Lane| {
        l.side.supply_peer(64);
        l.s.process();
        l.s.check();
        let mut ready = [socket::Ready { events: 0, data: 0 }; 8];
        let n = l.s.epoll_collect(epoll, &mut ready).unwrap();
        ready[..n].iter().map(|r| r.data as usize).collect::<Vec<_>>()
    };
    let full = |l: &mut Lane, conn: usize| l.s.write(ids[conn - 1], &[7; 9000], false);
    (1..=4).for_each(|conn| assert_eq!(full(&mut l, conn), Err(Errno::EAGAIN)));
    // Two 64ths of 64 chunks: two at a time.
    assert_eq!(told(&mut l), [1, 2]);
    assert_eq!((full(&mut l, 1), full(&mut l, 3)), (Ok(2048), Err(Errno::EAGAIN)));
    assert_eq!(l.written().1, [7; 2048]);
    assert_eq!(told(&mut l), []);
    assert!(matches!(l.job(), Job::TellAcked { conn: ConnId(1) }));
    // The second does not use its turn.
    let mut next = Vec::new();
    (0..3).for_each(|_| next.extend(told(&mut l)));
    assert_eq!(next, [3]);
    assert_eq!((full(&mut l, 2), l.s.write(ids[2], b"short", false)), (Err(Errno::EAGAIN), Ok(5)));
    assert_eq!(l.written().1, b"short");
    assert_eq!(told(&mut l), []);
    assert!(
        matches!(l.job(), Job::TellAcked { conn: ConnId(3) }),
        "it has nothing more to write, and its turn is to end"
    );
    l.tell(Event::Acked { conn: ConnId(3), bytes: 5 });
    assert_eq!(told(&mut l), [4]);
    // Enough for all.
    came.free(&mut l.side);
    assert_eq!(told(&mut l), [1, 2]);
    l.end();
}

#[test]
fn a_full_ring_stops_writers_until_it_drains() {
    let mut l = Lane::with(10, 256, 4);
    let id = l.connected(1);
    let mut n = 0;
    while l.s.write(id, b"abc", false).is_ok() {
        n += 1;
        assert!(n < 10, "writes must stop when the ring is full");
    }
    assert_eq!(l.s.readiness(id), Ok(0));
    let mut got = 0;
    while got < n {
        for job in l.jobs() {
            let Job::Write { chain, .. } = job else { panic!() };
            assert_eq!(l.bytes(chain), b"abc");
            got += 1;
        }
    }
    l.s.process();
    assert_eq!(l.s.readiness(id), Ok(bits::OUT));
    assert_eq!(l.s.write(id, b"abc", false), Ok(3));
    l.end();
}

/// A write that has not gone yet says that the socket is closed after it; nothing else does, and no other's.
#[test]
fn the_last_write_carries_the_close() {
    let mut l = Lane::new();
    let ids = [1, 2, 3, 4].map(|conn| l.connected(conn));
    let close = |l: &mut Lane, conn: usize| l.s.close(ids[conn - 1]).unwrap();
    let write = |l: &mut Lane, conn: usize| assert_eq!(l.s.write(ids[conn - 1], b"bye", false), Ok(3));
    // Written last, in this batch.
    write(&mut l, 1);
    close(&mut l, 1);
    // Another's write lies behind.
    write(&mut l, 2);
    write(&mut l, 3);
    close(&mut l, 2);
    // The write has gone.
    assert_eq!(l.raw_jobs(), ["write 1 and close", "write 2", "write 3", "close 2"].map(String::from),);
    close(&mut l, 3);
    // Something else was asked for since.
    write(&mut l, 4);
    l.s.shutdown(ids[3], Shutdown::Write).unwrap();
    close(&mut l, 4);
    assert_eq!(l.raw_jobs(), ["close 3", "write 4", "Shutdown { conn: ConnId(4) }", "close 4"].map(String::from));
    l.end();
}
