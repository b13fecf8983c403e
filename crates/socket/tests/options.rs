//! Socket options: what may be set, what the stack is told and when, what getsockopt says.

mod common;

use common::{Lane, at};
use protocol::{ConnId, ConnOption, Event, Job, ListenerId};
use socket::{Errno, Interest, ListenOptions, Ready, SockOption, bits};
use tcp::congestion::Algorithm;

#[test]
fn values_come_back_as_linux_gives_them() {
    let mut l = Lane::new();
    let id = l.s.socket(false).unwrap();
    for (set, got) in [
        (SockOption::SendBuffer(10_000), SockOption::SendBuffer(20_000)),
        (SockOption::SendBuffer(0), SockOption::SendBuffer(4608)),
        (SockOption::ReceiveBuffer(10_000), SockOption::ReceiveBuffer(20_000)),
        (SockOption::ReceiveBuffer(1), SockOption::ReceiveBuffer(2304)),
        (SockOption::ReceiveLow(0), SockOption::ReceiveLow(1)),
        (SockOption::ReceiveLow(500), SockOption::ReceiveLow(500)),
        (SockOption::OobInline(true), SockOption::OobInline(true)),
        (SockOption::Inq(true), SockOption::Inq(true)),
        (SockOption::SynCount(3), SockOption::SynCount(3)),
        (SockOption::Linger2(7), SockOption::Linger2(7)),
        (SockOption::Linger2(1000), SockOption::Linger2(120)),
        (SockOption::Linger2(-5), SockOption::Linger2(-1)),
        (SockOption::Linger2(0), SockOption::Linger2(60)),
        (SockOption::DeferAccept(1), SockOption::DeferAccept(1)),
        (SockOption::DeferAccept(2), SockOption::DeferAccept(3)),
        (SockOption::DeferAccept(10), SockOption::DeferAccept(15)),
        (SockOption::DeferAccept(0), SockOption::DeferAccept(0)),
        (SockOption::WindowClamp(1), SockOption::WindowClamp(1152)),
        (SockOption::WindowClamp(0), SockOption::WindowClamp(0)),
        (SockOption::MaxSegment(0), SockOption::MaxSegment(536)),
        (SockOption::MaxSegment(1000), SockOption::MaxSegment(1000)),
        (SockOption::NotSentLow(4096), SockOption::NotSentLow(4096)),
        (SockOption::TrafficClass(0x2b), SockOption::TrafficClass(0x28)),
        (SockOption::TrafficClass(-1), SockOption::TrafficClass(0)),
        (SockOption::HopLimit(3), SockOption::HopLimit(3)),
        (SockOption::HopLimit(-1), SockOption::HopLimit(64)),
        (SockOption::MtuDiscover(0), SockOption::MtuDiscover(0)),
        (SockOption::MtuDiscover(2), SockOption::MtuDiscover(2)),
        (SockOption::UserTimeout(9), SockOption::UserTimeout(9)),
        (SockOption::congestion("reno").unwrap(), SockOption::Congestion(Algorithm::NewReno)),
    ] {
        l.s.set_option(id, set).unwrap();
        assert_eq!(l.s.option(id, set), Ok(got), "{set:?}");
    }
    assert_eq!(l.s.option(id, SockOption::Protocol(0)), Ok(SockOption::Protocol(6)));
    assert_eq!(SockOption::congestion("none"), Err(Errno::ENOENT));
    l.no_job();
    l.end();
}

#[test]
fn defaults_are_the_stacks() {
    let mut l = Lane::new();
    let id = l.s.socket(false).unwrap();
    for default in [
        SockOption::ReceiveLow(1),
        SockOption::SynCount(tcp::Config::default().syn_retries.into()),
        SockOption::Linger2(60),
        SockOption::KeepIdle(7200),
        SockOption::KeepInterval(75),
        SockOption::KeepCount(9),
        SockOption::HopLimit(64),
        SockOption::Congestion(tcp::Config::default().congestion),
    ] {
        assert_eq!(l.s.option(id, default), Ok(default));
    }
    l.end();
}

#[test]
fn what_may_not_be_set() {
    let mut l = Lane::new();
    let id = l.connected(1);
    for wrong in [
        SockOption::SynCount(0),
        SockOption::SynCount(128),
        SockOption::HopLimit(0),
        SockOption::HopLimit(256),
        SockOption::TrafficClass(256),
        SockOption::MtuDiscover(6),
        SockOption::MtuDiscover(-1),
        // Its port was taken as it was.
        SockOption::V6Only(true),
        SockOption::UserTimeout(u32::MAX),
        // The window was told to the peer.
        SockOption::WindowClamp(0),
    ] {
        assert_eq!(l.s.set_option(id, wrong), Err(Errno::EINVAL), "{wrong:?}");
    }
    assert_eq!(l.s.set_option(id, SockOption::Protocol(6)), Err(Errno::ENOPROTOOPT));
    l.no_job();
    l.end();
}

/// What the SYN depends on goes ahead of the request for it.
#[test]
fn requests_come_with_their_options() {
    let mut l = Lane::new();
    let id = l.s.socket(false).unwrap();
    l.s.set_option(id, SockOption::MaxSegment(700)).unwrap();
    l.s.set_option(id, SockOption::NoDelay(true)).unwrap();
    l.s.bind(id, at(80)).unwrap();
    l.s.listen(id, ListenOptions { backlog: 4 }).unwrap();
    let jobs = l.jobs();
    let [
        Job::Prepare { option: ConnOption::MaxSegment, value: 700 },
        Job::Prepare { option: ConnOption::NoDelay, value: 1 },
        Job::Listen { token, backlog: 4, receive_buffer: 0, .. },
    ] = jobs[..]
    else {
        panic!("{jobs:?}")
    };
    // Between the request and its answer.
    l.s.set_option(id, SockOption::DeferAccept(1)).unwrap();
    l.s.listen(id, ListenOptions { backlog: 9 }).unwrap();
    l.no_job();
    l.tell(Event::Listening { token, listener: ListenerId(5), port: 80 });
    let jobs = l.jobs();
    assert!(matches!(jobs[0], Job::SetBacklog { listener: ListenerId(5), backlog: 9 }), "{jobs:?}");
    let deferred = |j: &Job| {
        matches!(j, Job::SetListenerOption { listener: ListenerId(5), option: ConnOption::DeferAccept, value: 1 })
    };
    assert!(jobs.iter().any(deferred), "{jobs:?}");
    // And after it.
    l.s.listen(id, ListenOptions { backlog: 2 }).unwrap();
    assert!(matches!(l.job(), Job::SetBacklog { listener: ListenerId(5), backlog: 2 }));
    l.s.set_option(id, SockOption::HopLimit(1)).unwrap();
    assert!(matches!(
        l.job(),
        Job::SetListenerOption { listener: ListenerId(5), option: ConnOption::HopLimit, value: 1 }
    ));
    l.end();
}

#[test]
fn less_than_the_low_water_mark_is_nothing_to_read() {
    let mut l = Lane::new();
    let id = l.connected(1);
    l.s.set_option(id, SockOption::ReceiveLow(10)).unwrap();
    l.data(1, b"123456789");
    assert_eq!(l.s.readiness(id).unwrap() & bits::IN, 0);
    l.data(1, b"0");
    assert_eq!(l.s.readiness(id).unwrap() & bits::IN, bits::IN);
    let mut buf = [0; 4];
    l.s.read(id, &mut buf).unwrap();
    assert_eq!(l.s.readiness(id).unwrap() & bits::IN, 0);
    l.tell(Event::Fin { conn: ConnId(1) });
    assert_eq!(l.s.readiness(id).unwrap() & bits::IN, bits::IN);
    l.end();
}

/// A larger SO_SNDBUF or TCP_NOTSENT_LOWAT is room at once: nothing that is acknowledged or sent later may be worth telling.
#[test]
fn a_larger_limit_wakes_who_waits_for_room() {
    type Options = [SockOption; 2];
    let sizes: Options = [SockOption::SendBuffer(4000), SockOption::SendBuffer(400_000)];
    let marks: Options = [SockOption::NotSentLow(1000), SockOption::NotSentLow(100_000)];
    for [small, large] in [sizes, marks] {
        let mut l = Lane::new();
        let id = l.connected(1);
        let epoll = l.s.epoll_create().unwrap();
        l.s.epoll_add(epoll, id, Interest::from_epoll(bits::OUT | bits::ET, 7)).unwrap();
        l.s.set_option(id, small).unwrap();
        let mut ready = [Ready { events: 0, data: 0 }; 4];
        assert_eq!(l.s.epoll_collect(epoll, &mut ready), Ok(1));
        assert!(l.s.write(id, &[1; 9000], false).unwrap() < 9000);
        assert_eq!(l.s.write(id, b"x", false), Err(Errno::EAGAIN));
        assert_eq!(l.s.epoll_collect(epoll, &mut ready), Ok(0));
        l.s.set_option(id, large).unwrap();
        assert_eq!(l.s.epoll_collect(epoll, &mut ready), Ok(1));
        assert_eq!(ready[0].events, bits::OUT);
        l.s.check();
        free_writes(&mut l);
        l.end();
    }
}

/// Bytes that were read and not reported close a smaller window for good, where nothing is left to be read.
#[test]
fn a_smaller_window_is_told_what_was_read() {
    for option in [SockOption::ReceiveBuffer(5000), SockOption::WindowClamp(5000)] {
        let mut l = Lane::new();
        let id = l.connected(1);
        let mut buf = [0; 8000];
        // An eighth of the buffer is worth a job.
        l.data(1, &[1; 7999]);
        l.s.read(id, &mut buf).unwrap();
        l.no_job();
        l.s.set_option(id, option).unwrap();
        let jobs = l.jobs();
        assert!(matches!(jobs[..], [Job::SetOption { .. }, Job::Consumed { bytes: 7999, .. }]), "{jobs:?}");
        // From now on of the smaller one.
        l.data(1, &[1; 700]);
        l.s.read(id, &mut buf).unwrap();
        assert!(matches!(l.job(), Job::Consumed { bytes: 700, .. }));
        l.end();
    }
}

/// TCP_WINDOW_CLAMP is no SO_RCVBUF, and the smaller of them counts, in either order.
#[test]
fn a_clamp_leaves_the_buffer_alone() {
    let mut l = Lane::new();
    let [one, other] = [1, 2].map(|conn| l.connected(conn));
    for option in [SockOption::ReceiveBuffer(20_000), SockOption::WindowClamp(4000)] {
        l.s.set_option(one, option).unwrap();
    }
    for option in [SockOption::WindowClamp(4000), SockOption::ReceiveBuffer(20_000), SockOption::WindowClamp(9000)] {
        l.s.set_option(other, option).unwrap();
    }
    l.jobs();
    let mut buf = [0; 600];
    for (conn, id) in [(1, one), (2, other)] {
        assert_eq!(l.s.option(id, SockOption::ReceiveBuffer(0)), Ok(SockOption::ReceiveBuffer(40_000)));
        l.data(conn, &[1; 600]);
        l.s.read(id, &mut buf).unwrap();
        assert!(matches!(l.job(), Job::Consumed { bytes: 600, .. }));
    }
    l.end();
}

fn free_writes(l: &mut Lane) {
    for job in l.jobs() {
        if let Job::Write { chain, .. } = job {
            l.bytes(chain);
        }
    }
}

#[test]
fn what_is_not_sent_is_bounded() {
    let mut l = Lane::new();
    let id = l.connected(1);
    l.s.set_option(id, SockOption::NotSentLow(1000)).unwrap();
    assert!(matches!(l.job(), Job::SetOption { option: ConnOption::NotSentLow, value: 1000, .. }));
    assert_eq!(l.s.write(id, &[1; 3000], false), Ok(1000));
    assert_eq!(l.s.write(id, &[1; 3000], false), Err(Errno::EAGAIN));
    assert_eq!(l.s.readiness(id), Ok(0));
    l.tell(Event::Sent { conn: ConnId(1), total: 500, burst: 400 });
    // Half is free: room to write, but nobody is woken for it yet.
    assert_eq!(l.s.readiness(id), Ok(0));
    l.tell(Event::Sent { conn: ConnId(1), total: 501, burst: 400 });
    assert_eq!(l.s.readiness(id), Ok(bits::OUT));
    // The burst that crosses the mark is taken whole.
    assert_eq!(l.s.write(id, &[1; 3000], false), Ok(701));
    assert_eq!(l.s.write(id, &[1; 3000], false), Err(Errno::EAGAIN));
    free_writes(&mut l);
    l.end();
}
