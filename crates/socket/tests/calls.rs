//! Opening, naming and closing, as Linux does them.

mod common;

use core::time::Duration;

use common::{Lane, at, at6};
use mem::Chain;
use mem::ring::Message;
use protocol::{CloseMode, ConnId, ConnOption, Endpoint, Event, Failure, Job, ListenerId, Token};
use socket::{Errno, Linger, ListenOptions, SockId, SockOption, bits};
use tcp::TcpInfo;
use wire::Addr;

const BACKLOG: ListenOptions = ListenOptions { backlog: 8 };

fn refused(token: Token, failure: Failure) -> Event {
    Event::Refused { token, failure }
}

#[test]
fn numbers_are_small_reused_and_limited() {
    let mut l = Lane::with(3, 64, 16);
    let ids: Vec<_> = (0..3).map(|_| l.s.socket(false).unwrap()).collect();
    assert_eq!(ids, [SockId(0), SockId(1), SockId(2)]);
    assert_eq!(l.s.socket(false), Err(Errno::EMFILE));
    assert_eq!(l.s.epoll_create(), Err(Errno::EMFILE));
    assert_eq!(l.s.counters().no_descriptor, 2);
    l.s.close(SockId(1)).unwrap();
    assert_eq!(l.s.close(SockId(1)), Err(Errno::EBADF));
    assert_eq!(l.s.epoll_create(), Ok(SockId(1)));
    assert_eq!(l.s.len(), 3);
    l.end();
}

#[test]
fn bind_once_and_in_the_family() {
    let mut l = Lane::new();
    let (a, b) = (l.s.socket(false).unwrap(), l.s.socket(true).unwrap());
    assert_eq!(l.s.bind(a, at6(1)), Err(Errno::EAFNOSUPPORT));
    // An IPv6 socket speaks IPv4 unless it was told not to (RFC 3493 3.7, 5.3).
    l.s.set_option(b, SockOption::V6Only(true)).unwrap();
    assert_eq!(l.s.bind(b, at(1)), Err(Errno::EINVAL));
    l.s.set_option(b, SockOption::V6Only(false)).unwrap();
    l.s.bind(b, at(1)).unwrap();
    l.s.bind(a, at(1)).unwrap();
    assert_eq!(l.s.bind(a, at(2)), Err(Errno::EINVAL));
    assert_eq!(l.s.local(a), Ok(at(1)));
    assert_eq!(l.s.connect(a, at6(80)), Err(Errno::EAFNOSUPPORT));
    assert_eq!(l.s.connect(a, at(0)), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(l.s.option(b, SockOption::Domain(0)), Ok(SockOption::Domain(10)));
    assert_eq!(l.s.bind(SockId(77), at(1)), Err(Errno::EBADF));
    l.no_job();
    l.end();
}

/// Local addresses have numbers of two bytes; who binds to more of them is not told others'.
#[test]
fn any_number_of_local_addresses() {
    const MANY: u32 = 66_000;
    let mut l = Lane::with(MANY, 64, 16);
    let name = |n: u32| Endpoint { addr: Addr::from_v4((0x0a00_0000 + n).to_be_bytes()), port: 7 };
    let ids: Vec<_> = (0..MANY).map(|_| l.s.socket(false).unwrap()).collect();
    for (n, id) in ids.iter().enumerate() {
        l.s.bind(*id, name(n as u32)).unwrap();
    }
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(l.s.local(*id), Ok(name(n as u32)));
    }
    ids.into_iter().for_each(|id| l.s.close(id).unwrap());
    l.end();
}

#[test]
fn connect_tells_where_it_stands() {
    let mut l = Lane::new();
    let id = l.s.socket(false).unwrap();
    l.s.bind(id, at(0)).unwrap();
    assert_eq!(l.s.connect(id, at(80)), Err(Errno::EINPROGRESS));
    let Job::Connect { token, local, remote, receive_buffer } = l.job() else { panic!() };
    assert_eq!((local, remote, receive_buffer), (at(0), at(80), 0));
    assert_eq!(l.s.connect(id, at(80)), Err(Errno::EALREADY));
    assert_eq!(l.s.connect_result(id), None);
    l.tell(Event::Opened { token, conn: ConnId(9), local: at(4000) });
    assert_eq!(l.s.connect(id, at(80)), Err(Errno::EALREADY));
    assert_eq!((l.s.local(id), l.s.remote(id)), (Ok(at(4000)), Err(Errno::ENOTCONN)));
    assert_eq!(l.s.readiness(id), Ok(0));
    assert_eq!(l.s.read(id, &mut [0; 4]), Err(Errno::EAGAIN));
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::EAGAIN));
    l.tell(Event::Connected { conn: ConnId(9) });
    assert_eq!(l.s.connect_result(id), Some(Ok(())));
    assert_eq!(l.s.connect(id, at(80)), Err(Errno::EISCONN));
    assert_eq!(l.s.remote(id), Ok(at(80)));
    assert_eq!(l.s.readiness(id), Ok(bits::OUT));
    assert_eq!(l.s.bind(id, at(1)), Err(Errno::EINVAL));
    assert_eq!(l.s.listen(id, BACKLOG), Err(Errno::EINVAL));
    l.end();
}

#[test]
fn a_failed_connect_is_told_once_and_can_be_tried_again() {
    let mut l = Lane::new();
    let (id, token) = l.connecting();
    l.tell(Event::Opened { token, conn: ConnId(1), local: at(4000) });
    l.tell(Event::Failed { conn: ConnId(1), failure: Failure::Refused });
    assert_eq!(l.s.readiness(id), Ok(bits::IN | bits::OUT | bits::ERR | bits::HUP | bits::RDHUP));
    assert_eq!(l.s.connect(id, at(80)), Err(Errno::ECONNREFUSED));
    assert!(matches!(l.job(), Job::Close { conn: ConnId(1), mode: CloseMode::Graceful }));
    assert_eq!(l.s.readiness(id), Ok(bits::OUT | bits::HUP));
    assert_eq!(l.s.local(id).unwrap().port, 0);
    assert_eq!(l.s.connect(id, at(81)), Err(Errno::EINPROGRESS));
    let token = l.token();
    l.tell(refused(token, Failure::NetworkUnreachable));
    // SO_ERROR takes it; then connect knows only that it came to nothing.
    assert_eq!(l.s.take_error(id), Ok(Some(Errno::ENETUNREACH)));
    assert_eq!(l.s.take_error(id), Ok(None));
    assert_eq!(l.s.read(id, &mut [0; 4]), Ok(0));
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::EPIPE));
    assert_eq!(l.s.connect(id, at(81)), Err(Errno::ECONNABORTED));
    assert_eq!(l.s.read(id, &mut [0; 4]), Err(Errno::ENOTCONN));
    l.end();
}

/// Bytes of a connection that never came about, which only a confused stack sends, go with it.
#[test]
fn a_socket_connected_again_starts_empty() {
    let mut l = Lane::new();
    let (id, token) = l.connecting();
    l.tell(Event::Opened { token, conn: ConnId(1), local: at(4000) });
    l.data(1, b"early");
    l.s.shutdown(id, socket::Shutdown::Both).unwrap();
    assert_eq!(l.s.available(id), Ok(0));
    l.s.listen(id, BACKLOG).unwrap();
    l.end();
}

#[test]
fn every_failure_has_its_errno() {
    for (failure, errno) in [
        (Failure::Refused, Errno::ECONNREFUSED),
        (Failure::Reset, Errno::ECONNRESET),
        (Failure::TimedOut, Errno::ETIMEDOUT),
        (Failure::HostUnreachable, Errno::EHOSTUNREACH),
        (Failure::NetworkUnreachable, Errno::ENETUNREACH),
        (Failure::AddressInUse, Errno::EADDRINUSE),
        (Failure::AddressNotAvailable, Errno::EADDRNOTAVAIL),
        (Failure::NoBuffers, Errno::ENOBUFS),
        (Failure::ProtocolUnreachable, Errno::ENOPROTOOPT),
        (Failure::Aborted, Errno::ECONNABORTED),
        (Failure::TupleInUse, Errno::EADDRNOTAVAIL),
    ] {
        let mut l = Lane::new();
        let (id, token) = l.connecting();
        l.tell(refused(token, failure));
        assert_eq!(l.s.connect_result(id), Some(Err(errno)), "{failure:?}");
        l.end();
    }
    // Linux's numbers, a few of each neighbourhood.
    let numbers = [Errno::EBADF, Errno::EAGAIN, Errno::EPIPE, Errno::ENOTSOCK, Errno::EADDRINUSE, Errno::EINPROGRESS];
    assert_eq!(numbers.map(Errno::number), [9, 11, 32, 88, 98, 115]);
    assert_eq!(Errno::ECONNRESET.to_string(), "ECONNRESET");
}

#[test]
fn listening_and_what_refuses_it() {
    let mut l = Lane::new();
    let id = l.s.socket(true).unwrap();
    l.s.set_option(id, SockOption::ReusePort(true)).unwrap();
    l.s.set_option(id, SockOption::V6Only(true)).unwrap();
    l.s.set_option(id, SockOption::ReceiveBuffer(9000)).unwrap();
    l.s.bind(id, at6(0)).unwrap();
    l.s.listen(id, BACKLOG).unwrap();
    let Job::Listen { token, local, backlog, v6_only, reuse_port, receive_buffer } = l.job() else { panic!() };
    assert_eq!((local, backlog, v6_only, reuse_port, receive_buffer), (at6(0), 8, true, true, 9000));
    assert_eq!(l.s.listen_result(id), None);
    l.tell(refused(token, Failure::AddressInUse));
    assert_eq!(l.s.listen_result(id), Some(Err(Errno::EADDRINUSE)));
    assert_eq!(l.s.accept(id), Err(Errno::EADDRINUSE));
    l.s.listen(id, BACKLOG).unwrap();
    let token = l.token();
    l.tell(Event::Listening { token, listener: ListenerId(3), port: 1234 });
    assert_eq!(l.s.listen_result(id), Some(Ok(())));
    assert_eq!(l.s.local(id), Ok(at6(1234)));
    assert_eq!(l.s.option(id, SockOption::AcceptConn(false)), Ok(SockOption::AcceptConn(true)));
    assert_eq!(l.s.accept(id), Err(Errno::EAGAIN));
    assert_eq!(l.s.connect(id, at6(1)), Err(Errno::EISCONN));
    assert_eq!(l.s.bind(id, at6(1)), Err(Errno::EINVAL));
    assert_eq!(l.s.read(id, &mut [0]), Err(Errno::ENOTCONN));
    assert_eq!(l.s.write(id, b"x", false), Err(Errno::EPIPE));
    l.s.close(id).unwrap();
    assert!(matches!(l.job(), Job::CloseListener { listener: ListenerId(3) }));
    l.end();
}

#[test]
fn accept_gives_the_oldest_and_reports_in_batches() {
    let mut l = Lane::new();
    let id = l.listening(0);
    for conn in 0..5 {
        l.arrive(0, conn);
    }
    assert_eq!(l.s.readiness(id), Ok(bits::IN));
    // What waits in the queue is nobody's descriptor yet.
    assert_eq!(l.s.len(), 1);
    for hidden in 1..6 {
        assert_eq!(l.s.close(SockId(hidden)), Err(Errno::EBADF));
        assert_eq!(l.s.readiness(SockId(hidden)), Err(Errno::EBADF));
    }
    for conn in 0..5u16 {
        let (sock, peer) = l.s.accept(id).unwrap();
        assert_eq!(peer, at(5000 + conn));
        assert_eq!((l.s.local(sock), l.s.remote(sock)), (Ok(at(80)), Ok(peer)));
    }
    assert_eq!(l.s.accept(id), Err(Errno::EAGAIN));
    assert!(matches!(l.job(), Job::Taken { listener: ListenerId(0), count: 5 }));
    l.no_job();
    assert_eq!(l.s.accept(SockId(2)), Err(Errno::EINVAL));
    l.end();
}

#[test]
fn accept_without_a_descriptor_leaves_the_connection_in_the_queue() {
    let mut l = Lane::with(2, 64, 16);
    let id = l.listening(0);
    l.arrive(0, 0);
    let spare = l.s.socket(false).unwrap();
    assert_eq!(l.s.accept(id), Err(Errno::EMFILE));
    assert_eq!(l.s.readiness(id), Ok(bits::IN));
    l.s.close(spare).unwrap();
    assert_eq!(l.s.accept(id).unwrap().1, at(5000));
    l.end();
}

#[test]
fn a_connection_that_was_reset_in_the_queue_is_still_given() {
    let mut l = Lane::new();
    let id = l.listening(0);
    l.arrive(0, 4);
    l.data(4, b"hello");
    l.tell(Event::Failed { conn: ConnId(4), failure: Failure::Reset });
    let (sock, _) = l.s.accept(id).unwrap();
    let mut buf = [0; 16];
    assert_eq!(l.s.read(sock, &mut buf), Ok(5));
    assert_eq!(l.s.read(sock, &mut buf), Err(Errno::ECONNRESET));
    assert_eq!(l.s.read(sock, &mut buf), Ok(0));
    assert_eq!(l.s.write(sock, b"x", false), Err(Errno::EPIPE));
    assert_eq!(l.s.remote(sock), Err(Errno::ENOTCONN));
    l.end();
}

#[test]
fn accepted_sockets_inherit() {
    let mut l = Lane::new();
    let id = l.listening(0);
    for option in [
        SockOption::NoDelay(true),
        SockOption::KeepAlive(true),
        SockOption::KeepIdle(30),
        SockOption::SendBuffer(8192),
        SockOption::ReceiveTimeout(Some(Duration::from_secs(3))),
    ] {
        l.s.set_option(id, option).unwrap();
    }
    let told: Vec<_> = l
        .jobs()
        .into_iter()
        .map(|j| match j {
            Job::SetListenerOption { listener: ListenerId(0), option, value } => (option, value),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        told,
        [
            (ConnOption::NoDelay, 1),
            (ConnOption::KeepAlive, 1),
            (ConnOption::KeepIdle, 30),
            (ConnOption::SendBuffer, 16_384)
        ]
    );
    // The stack passes them on by itself. A buffer must be the same on both sides, and it may have made the connection before.
    l.arrive(0, 1);
    let job = l.job();
    let resized = matches!(job, Job::SetOption { conn: ConnId(1), option: ConnOption::SendBuffer, value: 16_384 });
    assert!(resized, "{job:?}");
    let (sock, _) = l.s.accept(id).unwrap();
    assert_eq!(l.s.option(sock, SockOption::NoDelay(false)), Ok(SockOption::NoDelay(true)));
    assert_eq!(l.s.option(sock, SockOption::Cork(true)), Ok(SockOption::Cork(false)));
    assert_eq!(l.s.option(sock, SockOption::SendBuffer(0)), Ok(SockOption::SendBuffer(16_384)));
    let timeout = SockOption::ReceiveTimeout(Some(Duration::from_secs(3)));
    assert_eq!(l.s.option(sock, SockOption::ReceiveTimeout(None)), Ok(timeout));
    l.end();
}

#[test]
fn options_travel_when_there_is_a_connection() {
    let mut l = Lane::new();
    let id = l.s.socket(false).unwrap();
    l.s.set_option(id, SockOption::ReceiveBuffer(20_000)).unwrap();
    l.s.set_option(id, SockOption::UserTimeout(5)).unwrap();
    l.s.set_option(id, SockOption::UserTimeout(7)).unwrap();
    l.s.set_option(id, SockOption::Cork(true)).unwrap();
    l.no_job();
    assert_eq!(l.s.connect(id, at(80)), Err(Errno::EINPROGRESS));
    let jobs = l.jobs();
    let [
        Job::Prepare { option: ConnOption::UserTimeout, value: 7 },
        Job::Prepare { option: ConnOption::Cork, value: 1 },
        Job::Connect { token, receive_buffer: 20_000, .. },
    ] = jobs[..]
    else {
        panic!("{jobs:?}")
    };
    // What is set before the connection has a number follows as soon as it has one.
    l.s.set_option(id, SockOption::UserTimeout(9)).unwrap();
    l.no_job();
    l.tell(Event::Opened { token, conn: ConnId(1), local: at(4000) });
    let jobs = l.jobs();
    let told =
        |o, v| jobs.iter().any(|j| matches!(j, Job::SetOption { option, value, .. } if (*option, *value) == (o, v)));
    assert!(told(ConnOption::UserTimeout, 9) && told(ConnOption::Cork, 1) && told(ConnOption::NoDelay, 0), "{jobs:?}");
    l.s.set_option(id, SockOption::Cork(false)).unwrap();
    assert!(matches!(l.job(), Job::SetOption { conn: ConnId(1), option: ConnOption::Cork, value: 0 }));
    for wrong in [
        SockOption::KeepIdle(0),
        SockOption::KeepInterval(40_000),
        SockOption::KeepCount(128),
        SockOption::MaxSegment(20),
    ] {
        assert_eq!(l.s.set_option(id, wrong), Err(Errno::EINVAL), "{wrong:?}");
    }
    assert_eq!(l.s.set_option(id, SockOption::AcceptConn(true)), Err(Errno::ENOPROTOOPT));
    assert_eq!(l.s.option(id, SockOption::Type(0)), Ok(SockOption::Type(1)));
    let epoll = l.s.epoll_create().unwrap();
    assert_eq!(l.s.set_option(epoll, SockOption::Cork(true)), Err(Errno::ENOTSOCK));
    l.no_job();
    l.end();
}

#[test]
fn close_says_how() {
    let mut l = Lane::new();
    let id = l.connected(1);
    l.s.close(id).unwrap();
    assert!(matches!(l.job(), Job::Close { conn: ConnId(1), mode: CloseMode::Graceful }));
    let id = l.connected(2);
    l.data(2, b"unread");
    l.s.close(id).unwrap();
    assert!(matches!(l.job(), Job::Close { conn: ConnId(2), mode: CloseMode::Unread }));
    let id = l.connected(3);
    l.s.set_option(id, SockOption::Linger(Some(Linger { timeout: Duration::ZERO }))).unwrap();
    l.s.close(id).unwrap();
    assert!(matches!(l.job(), Job::Abort { conn: ConnId(3) }));
    let id = l.connected(4);
    l.data(4, b"unread");
    l.s.abort(id).unwrap();
    assert!(matches!(l.job(), Job::Abort { conn: ConnId(4) }));
    assert_eq!(l.s.abort(id), Err(Errno::EBADF));
    let id = l.connected(5);
    l.tell(Event::Failed { conn: ConnId(5), failure: Failure::TimedOut });
    l.s.close(id).unwrap();
    assert!(matches!(l.job(), Job::Close { conn: ConnId(5), mode: CloseMode::Graceful }));
    l.end();
}

#[test]
fn events_after_close_are_dropped_until_the_number_is_reused() {
    let mut l = Lane::new();
    let id = l.connected(1);
    l.s.close(id).unwrap();
    l.data(1, b"late");
    l.tell(Event::Fin { conn: ConnId(1) });
    assert_eq!(l.s.counters().late, 2);
    assert!(matches!(l.job(), Job::Close { conn: ConnId(1), .. }));
    // The descriptor is another socket's by now, the connection's number too.
    let again = l.connected(1);
    assert_eq!(again, id);
    assert_eq!(l.s.available(again), Ok(0));
    l.data(1, b"new");
    assert_eq!(l.s.available(again), Ok(3));
    l.end();
}

#[test]
fn closing_before_the_stack_has_answered() {
    let mut l = Lane::new();
    // Connect: the number is kept for the answer, so that it cannot meet another socket's.
    for (linger, abort) in [(None, false), (Some(Linger { timeout: Duration::ZERO }), true)] {
        let id = l.s.socket(false).unwrap();
        l.s.set_option(id, SockOption::Linger(linger)).unwrap();
        assert_eq!(l.s.connect(id, at(80)), Err(Errno::EINPROGRESS));
        let token = l.token();
        l.s.close(id).unwrap();
        assert_eq!(l.s.close(id), Err(Errno::EBADF));
        l.s.linger_give_up(id);
        let other = l.s.socket(false).unwrap();
        assert_ne!(other, id);
        l.no_job();
        l.tell(Event::Opened { token, conn: ConnId(6), local: at(4000) });
        match l.job() {
            Job::Abort { conn: ConnId(6) } if abort => {}
            Job::Close { conn: ConnId(6), mode: CloseMode::Graceful } if !abort => {}
            job => panic!("{job:?}"),
        }
        l.tell(Event::Connected { conn: ConnId(6) });
        assert_eq!(l.s.socket(false), Ok(id));
        l.s.close(id).unwrap();
        l.s.close(other).unwrap();
    }
    let (id, token) = l.connecting();
    l.s.abort(id).unwrap();
    l.tell(refused(token, Failure::NoBuffers));
    assert_eq!(l.s.socket(false), Ok(id));
    l.s.close(id).unwrap();
    // Listen.
    let id = l.s.socket(false).unwrap();
    l.s.listen(id, BACKLOG).unwrap();
    let token = l.token();
    l.s.close(id).unwrap();
    assert_eq!(l.s.accept(id), Err(Errno::EBADF));
    l.tell(Event::Listening { token, listener: ListenerId(2), port: 1 });
    assert!(matches!(l.job(), Job::CloseListener { listener: ListenerId(2) }));
    assert!(l.s.is_empty());
    l.end();
}

#[test]
fn a_closed_listener_resets_what_nobody_accepted() {
    let mut l = Lane::new();
    let id = l.listening(2);
    l.arrive(2, 1);
    l.data(1, b"in the queue");
    l.arrive(2, 5);
    let (taken, _) = l.s.accept(id).unwrap();
    l.s.close(id).unwrap();
    // This one was on its way.
    l.arrive(2, 7);
    let jobs = l.jobs();
    assert!(
        matches!(
            jobs[..],
            [
                Job::CloseListener { listener: ListenerId(2) },
                Job::Abort { conn: ConnId(5) },
                Job::Abort { conn: ConnId(7) }
            ]
        ),
        "{jobs:?}"
    );
    assert_eq!(l.s.available(taken), Ok(12));
    assert_eq!(l.s.len(), 1);
    l.end();
}

#[test]
fn shutting_a_listener_stops_it() {
    let mut l = Lane::new();
    let id = l.listening(2);
    l.arrive(2, 1);
    l.s.shutdown(id, socket::Shutdown::Write).unwrap();
    assert_eq!(l.s.readiness(id), Ok(bits::IN));
    l.s.shutdown(id, socket::Shutdown::Both).unwrap();
    let jobs = l.jobs();
    assert!(matches!(jobs[..], [Job::CloseListener { .. }, Job::Abort { conn: ConnId(1) }]), "{jobs:?}");
    assert_eq!(l.s.accept(id), Err(Errno::EINVAL));
    assert_eq!(l.s.readiness(id), Ok(bits::OUT | bits::HUP));
    l.s.listen(id, BACKLOG).unwrap();
    assert!(matches!(l.job(), Job::Listen { local, .. } if local == at(80)));
    l.end();
}

#[test]
fn lingering() {
    let linger = SockOption::Linger(Some(Linger { timeout: Duration::from_secs(1) }));
    let mut l = Lane::new();
    let closed = |l: &mut Lane, conn: u32| {
        let id = l.connected(conn);
        l.s.set_option(id, linger).unwrap();
        l.s.close(id).unwrap();
        assert!(matches!(l.job(), Job::Close { mode: CloseMode::Report, .. }));
        assert_eq!(l.s.linger_result(id), None);
        assert_eq!(l.s.read(id, &mut [0]), Err(Errno::EBADF));
        assert_eq!(l.s.close(id), Err(Errno::EBADF));
        id
    };
    let id = closed(&mut l, 1);
    l.data(1, b"too late");
    l.tell(Event::Fin { conn: ConnId(1) });
    assert_eq!(l.s.linger_result(id), None);
    l.tell(Event::Closed { conn: ConnId(1), failure: None });
    assert_eq!(l.s.linger_result(id), Some(Ok(())));
    assert_eq!(l.s.len(), 0);

    let id = closed(&mut l, 1);
    l.tell(Event::Closed { conn: ConnId(1), failure: Some(Failure::TimedOut) });
    assert_eq!(l.s.linger_result(id), Some(Err(Errno::ETIMEDOUT)));

    // The failure was on its way when it was closed: what follows must not meet the descriptor's next owner.
    let id = closed(&mut l, 1);
    l.tell(Event::Failed { conn: ConnId(1), failure: Failure::Reset });
    assert_eq!(l.s.linger_result(id), Some(Err(Errno::ECONNRESET)));
    let next = l.connected(2);
    assert_eq!(next, id);
    l.tell(Event::Closed { conn: ConnId(1), failure: Some(Failure::Reset) });
    l.tell(Event::Fin { conn: ConnId(1) });
    assert_eq!(l.s.readiness(next), Ok(bits::OUT));
    l.s.close(next).unwrap();
    l.jobs();

    let id = closed(&mut l, 1);
    l.s.linger_give_up(id);
    assert_eq!(l.connected(3), id);
    l.tell(Event::Closed { conn: ConnId(1), failure: None });
    assert_eq!(l.s.readiness(id), Ok(bits::OUT));
    l.s.close(id).unwrap();
    l.jobs();

    // Who does not wait closes all the same, and the descriptor is free at once.
    let id = l.connected(4);
    l.s.set_option(id, linger).unwrap();
    l.s.close_behind(id);
    assert!(matches!(l.job(), Job::Close { conn: ConnId(4), mode: CloseMode::Report }));
    assert_eq!(l.s.len(), 0);
    assert_eq!(l.connected(5), id);
    l.tell(Event::Closed { conn: ConnId(4), failure: Some(Failure::Reset) });
    assert_eq!(l.s.readiness(id), Ok(bits::OUT));
    l.s.close_behind(id);
    assert!(matches!(l.job(), Job::Close { conn: ConnId(5), mode: CloseMode::Graceful }));
    l.s.close_behind(id);
    l.no_job();
    l.end();
}

#[test]
fn a_connect_that_finds_no_port_is_told_from_others() {
    let mut l = Lane::new();
    for (failure, no_port) in
        [(Failure::AddressNotAvailable, true), (Failure::TupleInUse, true), (Failure::NetworkUnreachable, false)]
    {
        let (id, token) = l.connecting();
        assert!(l.s.is_asked(id) && !l.s.found_no_port(id));
        l.tell(refused(token, failure));
        assert_eq!((l.s.is_asked(id), l.s.found_no_port(id)), (false, no_port), "{failure:?}");
    }
    let (id, token) = l.connecting();
    l.tell(Event::Opened { token, conn: ConnId(1), local: at(4000) });
    assert!(!l.s.is_asked(id) && !l.s.found_no_port(id));
    l.end();
}

#[test]
fn what_is_set_before_the_listener_has_a_name_is_told_afterwards() {
    let mut l = Lane::new();
    let id = l.s.socket(false).unwrap();
    l.s.set_option(id, SockOption::KeepAlive(true)).unwrap();
    l.s.bind(id, at(80)).unwrap();
    l.s.listen(id, BACKLOG).unwrap();
    let token = l.jobs().into_iter().find_map(|j| if let Job::Listen { token, .. } = j { Some(token) } else { None });
    l.s.set_option(id, SockOption::NoDelay(true)).unwrap();
    l.s.set_option(id, SockOption::KeepAlive(false)).unwrap();
    l.no_job();
    l.tell(Event::Listening { token: token.unwrap(), listener: ListenerId(7), port: 80 });
    let told: Vec<_> = l
        .jobs()
        .into_iter()
        .filter_map(|j| match j {
            Job::SetListenerOption { listener: ListenerId(7), option, value } => Some((option, value)),
            _ => None,
        })
        .collect();
    for expected in [(ConnOption::NoDelay, 1), (ConnOption::KeepAlive, 0), (ConnOption::Cork, 0)] {
        assert!(told.contains(&expected), "{expected:?} is not among {told:?}");
    }
    l.end();
}

#[test]
fn info_by_request_and_answer() {
    let mut l = Lane::new();
    let id = l.connected(1);
    let token = l.s.query_info(id).unwrap();
    assert!(matches!(l.job(), Job::Query { conn: ConnId(1), token: t } if t == token));
    assert!(l.s.info_result(token).is_none());
    let info = TcpInfo { srtt_us: 1234, ..TcpInfo::default() };
    let mut chain = Chain::default();
    chain.push_slice(&mut l.side, &info.to_bytes());
    l.tell(Event::Info { conn: ConnId(1), token, chain });
    assert_eq!(l.s.info_result(token), Some(Ok(info)));
    assert_eq!(l.s.info_result(token), Some(Err(Errno::ENOTCONN)));
    // The connection has gone in the stack.
    let token = l.s.query_info(id).unwrap();
    l.tell(Event::Info { conn: ConnId(1), token, chain: Chain::default() });
    assert_eq!(l.s.info_result(token), Some(Err(Errno::ENOTCONN)));
    // Closed meanwhile: the answer is thrown away.
    let token = l.s.query_info(id).unwrap();
    l.s.close(id).unwrap();
    assert_eq!(l.s.info_result(token), Some(Err(Errno::ENOTCONN)));
    let mut chain = Chain::default();
    chain.push_slice(&mut l.side, &info.to_bytes());
    let late = l.s.counters().late;
    l.tell(Event::Info { conn: ConnId(1), token, chain });
    assert_eq!(l.s.counters().late, late + 1);
    let fresh = l.s.socket(false).unwrap();
    assert_eq!(l.s.query_info(fresh), Err(Errno::ENOTCONN));
    l.end();
}

#[test]
fn a_message_that_is_no_event_is_counted_and_freed() {
    let mut l = Lane::new();
    let mut chain = Chain::default();
    chain.push_slice(&mut l.side, &[7; 5000]);
    l.message(Message { words: [999; 6], chain });
    l.tell(Event::Opened { token: Token(5), conn: ConnId(1), local: at(1) });
    l.tell(Event::Listening { token: Token(5), listener: ListenerId(1), port: 1 });
    l.tell(refused(Token(5), Failure::Reset));
    let jobs = l.jobs();
    assert!(matches!(jobs[..], [Job::Abort { .. }, Job::CloseListener { .. }]), "{jobs:?}");
    let counters = *l.s.counters();
    assert_eq!((counters.undecodable, counters.unasked), (1, 3));
    assert!(counters.rows().any(|row| row == ("unasked", 3)));
    l.end();
}

#[test]
fn no_job_is_lost_when_the_ring_is_full() {
    let mut l = Lane::with(100, 64, 4);
    let ids: Vec<_> = (0..20).map(|_| l.s.socket(false).unwrap()).collect();
    for id in &ids {
        assert_eq!(l.s.connect(*id, at(80)), Err(Errno::EINPROGRESS));
    }
    assert!(l.s.backlogged());
    let mut tokens = Vec::new();
    while tokens.len() < 20 {
        let jobs = l.jobs();
        assert!(!jobs.is_empty());
        tokens.extend(jobs.into_iter().map(|j| match j {
            Job::Connect { token, .. } => token.0,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!(tokens, ids.iter().map(|id| id.0).collect::<Vec<_>>());
    assert!(!l.s.backlogged() && l.s.counters().ring_full == 1);
    l.end();
}
