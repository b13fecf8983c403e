//! Readiness as epoll(7) has it.

mod common;

use common::{Lane, SEND, at};
use protocol::{ConnId, Event, Failure, ListenerId};
use socket::{Errno, Interest, Ready, Shutdown, SockId, Trigger, bits};

fn interest(events: u32, trigger: Trigger) -> Interest {
    Interest { events, trigger, data: 1 }
}

impl Lane {
    fn collect(&mut self, epoll: SockId) -> Vec<(u64, u32)> {
        let mut out = [Ready { events: 0, data: 0 }; 32];
        let n = self.s.epoll_collect(epoll, &mut out).unwrap();
        out[..n].iter().map(|r| (r.data, r.events)).collect()
    }

    /// What one registration with data 1 reports.
    fn once(&mut self, epoll: SockId) -> Option<u32> {
        match self.collect(epoll)[..] {
            [] => None,
            [(1, events)] => Some(events),
            ref other => panic!("{other:?}"),
        }
    }

    /// Fills the send buffer.
    fn fill(&mut self, id: SockId) {
        assert!(self.s.write(id, &[0; SEND as usize], false).is_ok());
        self.written();
    }
}

#[test]
fn linux_numbers() {
    assert_eq!(
        (bits::IN, bits::PRI, bits::OUT, bits::ERR, bits::HUP, bits::RDHUP, bits::ONESHOT, bits::ET),
        (1, 2, 4, 8, 0x10, 0x2000, 0x4000_0000, 0x8000_0000)
    );
    let i = Interest::from_epoll(bits::IN | bits::ET, 9);
    assert_eq!(i, Interest { events: bits::IN, trigger: Trigger::Edge, data: 9 });
    assert_eq!(Interest::from_epoll(bits::ET | bits::ONESHOT, 9).trigger, Trigger::OneShot);
    assert_eq!(Interest::from_epoll(bits::OUT, 9).trigger, Trigger::Level);
}

#[test]
fn registering() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let id = l.connected(1);
    let i = interest(bits::IN, Trigger::Level);
    assert_eq!(l.s.epoll_modify(e, id, i), Err(Errno::ENOENT));
    assert_eq!(l.s.epoll_delete(e, id), Err(Errno::ENOENT));
    assert_eq!(l.s.epoll_add(e, SockId(50), i), Err(Errno::EBADF));
    assert_eq!(l.s.epoll_add(SockId(50), id, i), Err(Errno::EBADF));
    assert_eq!(l.s.epoll_add(id, id, i), Err(Errno::EINVAL));
    assert_eq!(l.s.epoll_add(e, e, i), Err(Errno::EINVAL));
    l.s.epoll_add(e, id, i).unwrap();
    assert_eq!(l.s.epoll_add(e, id, i), Err(Errno::EEXIST));
    assert_eq!(l.s.epoll_collect(e, &mut []), Err(Errno::EINVAL));
    l.s.epoll_delete(e, id).unwrap();
    l.data(1, b"x");
    assert_eq!(l.once(e), None);
    l.end();
}

#[test]
fn level_reports_as_long_as_it_holds() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let id = l.connected(1);
    l.s.epoll_add(e, id, interest(bits::IN, Trigger::Level)).unwrap();
    assert_eq!(l.once(e), None);
    l.data(1, b"ab");
    assert_eq!(l.s.readiness(e), Ok(bits::IN));
    assert_eq!(l.once(e), Some(bits::IN));
    l.s.read(id, &mut [0; 1]).unwrap();
    assert_eq!(l.once(e), Some(bits::IN));
    l.s.read(id, &mut [0; 1]).unwrap();
    assert_eq!(l.s.readiness(e), Ok(0));
    assert_eq!(l.once(e), None);
    l.data(1, b"c");
    assert_eq!(l.once(e), Some(bits::IN));
    l.end();
}

#[test]
fn edge_reports_what_is_new_and_only_that() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let id = l.connected(1);
    l.data(1, b"before");
    l.s.epoll_add(e, id, interest(bits::IN | bits::OUT, Trigger::Edge)).unwrap();
    assert_eq!(l.once(e), Some(bits::IN | bits::OUT));
    assert_eq!(l.once(e), None);
    // More data is news though some was unread; what holds is reported with it.
    l.data(1, b"more");
    assert_eq!(l.once(e), Some(bits::IN | bits::OUT));
    // An acknowledgement is none as long as nobody found the buffer full.
    assert_eq!(l.s.write(id, b"x", false), Ok(1));
    l.written();
    l.tell(Event::Acked { conn: ConnId(1), bytes: 1 });
    assert_eq!(l.once(e), None);
    l.fill(id);
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::EAGAIN));
    l.tell(Event::Acked { conn: ConnId(1), bytes: 1 });
    assert_eq!(l.once(e), None);
    l.tell(Event::Acked { conn: ConnId(1), bytes: SEND - 1 });
    assert_eq!(l.once(e), Some(bits::IN | bits::OUT));
    assert_eq!(l.once(e), None);
    // Read before it is collected: nothing holds any more.
    l.s.read(id, &mut [0; 100]).unwrap();
    l.s.epoll_modify(e, id, interest(bits::IN, Trigger::Edge)).unwrap();
    l.data(1, b"gone");
    l.s.read(id, &mut [0; 100]).unwrap();
    assert_eq!(l.once(e), None);
    l.data(1, b"new");
    assert_eq!(l.once(e), Some(bits::IN));
    l.end();
}

#[test]
fn an_edge_for_writing_is_not_woken_by_reading() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let id = l.connected(1);
    l.s.epoll_add(e, id, interest(bits::OUT, Trigger::Edge)).unwrap();
    assert_eq!(l.once(e), Some(bits::OUT));
    l.data(1, b"x");
    assert_eq!(l.once(e), None);
    // A change of state concerns everybody (Linux's sk_state_change).
    l.tell(Event::Fin { conn: ConnId(1) });
    assert_eq!(l.once(e), Some(bits::OUT));
    l.end();
}

#[test]
fn one_shot_fires_once_until_armed_again() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let id = l.connected(1);
    l.s.epoll_add(e, id, interest(bits::IN, Trigger::OneShot)).unwrap();
    l.data(1, b"a");
    assert_eq!(l.once(e), Some(bits::IN));
    l.data(1, b"b");
    l.tell(Event::Failed { conn: ConnId(1), failure: Failure::Reset });
    assert_eq!(l.once(e), None);
    l.s.epoll_modify(e, id, interest(bits::OUT, Trigger::OneShot)).unwrap();
    assert_eq!(l.once(e), Some(bits::OUT | bits::ERR | bits::HUP));
    assert_eq!(l.once(e), None);
    l.end();
}

#[test]
fn hang_ups_and_errors_need_no_asking() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let id = l.connected(1);
    l.s.epoll_add(e, id, interest(0, Trigger::Level)).unwrap();
    l.data(1, b"x");
    l.tell(Event::Fin { conn: ConnId(1) });
    assert_eq!(l.once(e), None);
    l.s.shutdown(id, Shutdown::Write).unwrap();
    assert_eq!(l.once(e), Some(bits::HUP));
    l.s.epoll_modify(e, id, interest(bits::RDHUP, Trigger::Level)).unwrap();
    assert_eq!(l.once(e), Some(bits::HUP | bits::RDHUP));
    l.end();
}

#[test]
fn a_connect_makes_writable() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let id = l.s.socket(false).unwrap();
    l.s.epoll_add(e, id, interest(bits::OUT, Trigger::Edge)).unwrap();
    assert_eq!(l.once(e), Some(bits::OUT | bits::HUP));
    assert_eq!(l.s.connect(id, at(80)), Err(Errno::EINPROGRESS));
    let token = l.token();
    l.tell(Event::Opened { token, conn: ConnId(1), local: at(4000) });
    assert_eq!(l.once(e), None);
    l.tell(Event::Connected { conn: ConnId(1) });
    assert_eq!(l.once(e), Some(bits::OUT));
    l.end();
}

#[test]
fn a_listener_by_edges_tells_each_arrival() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let id = l.listening(0);
    l.s.epoll_add(e, id, interest(bits::IN, Trigger::Edge)).unwrap();
    assert_eq!(l.once(e), None);
    l.arrive(0, 1);
    l.arrive(0, 2);
    assert_eq!(l.once(e), Some(bits::IN));
    assert_eq!(l.once(e), None);
    l.arrive(0, 3);
    assert_eq!(l.once(e), Some(bits::IN));
    l.end();
}

#[test]
fn many_epolls_all_hear_of_it() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let epolls: Vec<_> = (0..9).map(|_| l.s.epoll_create().unwrap()).collect();
    for e in &epolls {
        l.s.epoll_add(*e, id, interest(bits::IN, Trigger::Edge)).unwrap();
        assert_eq!(l.once(*e), None);
    }
    l.s.epoll_delete(epolls[4], id).unwrap();
    l.s.close(epolls[6]).unwrap();
    // A new epoll of the same number is not the one that was closed.
    assert_eq!(l.s.epoll_create(), Ok(epolls[6]));
    l.data(1, b"x");
    for (i, e) in epolls.iter().enumerate() {
        assert_eq!(l.once(*e), (i != 4 && i != 6).then_some(bits::IN), "{i}");
    }
    l.end();
}

#[test]
fn a_closed_socket_is_forgotten_and_its_number_starts_afresh() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let id = l.connected(1);
    l.s.epoll_add(e, id, interest(bits::IN, Trigger::Level)).unwrap();
    l.data(1, b"x");
    l.s.close(id).unwrap();
    l.jobs();
    assert_eq!(l.collect(e), []);
    // The old entry of the list must not report the new socket, nor twice.
    for conn in 2..200 {
        let id = l.connected(conn);
        l.data(conn, b"x");
        l.s.epoll_add(e, id, interest(bits::IN, Trigger::Level)).unwrap();
        l.s.epoll_delete(e, id).unwrap();
        l.s.epoll_add(e, id, interest(bits::IN, Trigger::Level)).unwrap();
        if conn % 7 == 0 {
            assert_eq!(l.collect(e), [(1, bits::IN)]);
        }
        l.s.close(id).unwrap();
        l.jobs();
    }
    assert_eq!(l.collect(e), []);
    l.end();
}

#[test]
fn a_short_buffer_starves_nobody() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    for conn in 0..10 {
        let id = l.connected(conn);
        l.s.epoll_add(e, id, Interest { events: bits::IN, trigger: Trigger::Level, data: conn as u64 }).unwrap();
        l.data(conn, b"x");
    }
    let mut seen = [0; 10];
    let mut out = [Ready { events: 0, data: 0 }; 3];
    for _ in 0..10 {
        assert_eq!(l.s.epoll_collect(e, &mut out), Ok(3));
        for r in out {
            seen[r.data as usize] += 1;
        }
    }
    assert_eq!(seen, [3; 10]);
    l.end();
}

/// What is said in one event is what is said in two.
#[test]
fn bytes_come_with_the_connection_and_the_end_with_the_bytes() {
    let mut l = Lane::new();
    let e = l.s.epoll_create().unwrap();
    let listener = l.listening(7);
    let chain = l.chain(b"hello");
    let local = at(80);
    l.tell(Event::Accepted { listener: ListenerId(7), conn: ConnId(1), local, remote: at(5001), chain });
    let (id, _) = l.s.accept(listener).unwrap();
    l.s.epoll_add(e, id, interest(bits::IN | bits::RDHUP, Trigger::Edge)).unwrap();
    assert_eq!(l.once(e), Some(bits::IN));
    let mut buf = [0; 8];
    assert_eq!(l.s.read(id, &mut buf), Ok(5));
    assert_eq!((&buf[..5], l.s.read(id, &mut buf.clone())), (&b"hello"[..], Err(Errno::EAGAIN)));
    let chain = l.chain(b"bye");
    l.tell(Event::Data { conn: ConnId(1), chain, fin: true });
    assert_eq!(l.once(e), Some(bits::IN | bits::RDHUP));
    assert_eq!((l.s.read(id, &mut buf), &buf[..3]), (Ok(3), &b"bye"[..]));
    assert_eq!(l.s.read(id, &mut buf), Ok(0));
    // Nobody takes them: the bytes go back.
    l.s.close(listener).unwrap();
    let chain = l.chain(b"late");
    l.tell(Event::Accepted { listener: ListenerId(7), conn: ConnId(2), local, remote: at(5002), chain });
    l.end();
}
