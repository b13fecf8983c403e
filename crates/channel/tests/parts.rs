//! Listeners in parts, and who takes over what waits. These pin threads to CPUs, and so need two of them.

mod common;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use channel::{Amount, Capabilities, Channel, CpuMask, Options};
use common::{Who, accepting, connect_from, count, light, listener, number, on_engines, pin, ring, uring, usual};

#[test]
fn a_cpu_has_its_part_and_the_original_the_rest() {
    if !ring() {
        return;
    }
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (fd, at) = listener(at);
        let (mut a, mut b) = (uring(usual()).unwrap(), uring(usual()).unwrap());
        let zero = a.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
        accepting(&mut a, zero);
        // The original, which nobody has registered, keeps what is left.
        let _waits = connect_from(1, at, 3);
        assert_eq!((count(&mut a), count(&mut b)), (0, 0));
        let rest = b.register(fd.try_clone().unwrap(), 1).unwrap();
        accepting(&mut b, rest);
        assert_eq!((count(&mut a), count(&mut b)), (0, 3));
        let _more = (connect_from(0, at, 20), connect_from(1, at, 10));
        assert_eq!((count(&mut a), count(&mut b)), (20, 10));
        // A part for each, then one less: the array of the kernel's is in another order.
        let mut c = uring(usual()).unwrap();
        let one = c.register_part(fd.as_fd(), 2, CpuMask::one(1)).unwrap();
        accepting(&mut c, one);
        let _again = (connect_from(0, at, 5), connect_from(1, at, 6));
        assert_eq!((count(&mut a), count(&mut b), count(&mut c)), (5, 0, 6));
        a.unregister(zero).unwrap();
        let _last = (connect_from(0, at, 7), connect_from(1, at, 8));
        assert_eq!((count(&mut a), count(&mut b), count(&mut c)), (0, 7, 8));
        c.unregister(one).unwrap();
        let _whole = (connect_from(0, at, 2), connect_from(1, at, 2));
        assert_eq!(count(&mut b), 4, "without parts all is the original's");
    }
}

#[test]
fn parts_that_cannot_be() {
    if !ring() {
        return;
    }
    let (fd, _) = listener("127.0.0.1:0");
    let (mut a, mut b) = (uring(usual()).unwrap(), uring(usual()).unwrap());
    let both = CpuMask::from_words(&[3]).unwrap();
    a.register_part(fd.as_fd(), 0, both).unwrap();
    for mask in [CpuMask::one(0), CpuMask::one(1), both] {
        assert_eq!(number(b.register_part(fd.as_fd(), 0, mask).unwrap_err()), libc::EBUSY);
    }
    assert_eq!(number(b.register_part(fd.as_fd(), 0, CpuMask::NONE).unwrap_err()), libc::EINVAL);
    b.register_part(fd.as_fd(), 0, CpuMask::one(700)).unwrap();
    let stream: OwnedFd = std::os::unix::net::UnixStream::pair().unwrap().0.into();
    assert_eq!(number(b.register_part(stream.as_fd(), 0, CpuMask::one(5)).unwrap_err()), libc::EINVAL);
    // When a channel ends, so do its parts.
    drop(a);
    b.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
}

/// An idle channel helps one whose thread is busy, where both want it.
#[test]
fn an_idle_channel_takes_what_waits() {
    if !ring() {
        return;
    }
    let name = "an_idle_channel_takes_what_waits";
    let options = Options { balance: 4, accept_ahead: 0, ..usual() };
    on_engines(name, Capabilities::BALANCE, options, |mut w| {
        let (fd, at) = listener("127.0.0.1:0");
        let zero = w.a.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
        let one = w.b.register_part(fd.as_fd(), 1, CpuMask::one(1)).unwrap();
        w.a.accept(zero, Amount::Endless, true).unwrap();
        w.b.accept(one, Amount::Endless, true).unwrap();
        w.b.flush().unwrap();
        // A does not look: its connections wait.
        let _few = connect_from(0, at, 3);
        assert_eq!(count(&mut w.b), 0, "so few are no overload");
        let _many = connect_from(0, at, 9);
        let end = Instant::now() + Duration::from_secs(10);
        let mut taken = 0;
        while taken < 9 && Instant::now() < end {
            taken += count(&mut w.b);
            if w.b.stats().taken as usize == taken && taken >= 9 {
                break;
            }
        }
        // Half of what waits each time, as long as it is too much: 12, 6, 3.
        assert_eq!((taken, w.b.stats().taken), (9, 9));
        assert_eq!(count(&mut w.a), 3);
        assert_eq!(w.a.stats().taken, 0);
        let _ = Who::A;
    });
}

/// What waits where a registration ends, in the channel or in the kernel, goes to the others.
#[test]
fn who_goes_leaves_what_waits_to_the_others() {
    if !ring() {
        return;
    }
    for ahead in [64, 4, 0] {
        let (fd, at) = listener("127.0.0.1:0");
        let options = Options { accept_ahead: ahead, ..usual() };
        let [mut a, mut b, mut c] = [(); 3].map(|()| uring(options).unwrap());
        let zero = a.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
        let one = b.register_part(fd.as_fd(), 1, CpuMask::one(1)).unwrap();
        let rest = c.register(fd.try_clone().unwrap(), 2).unwrap();
        a.accept(zero, Amount::Of(1), true).unwrap();
        a.flush().unwrap();
        accepting(&mut c, rest);
        let mut clients = connect_from(0, at, 21);
        assert_eq!((count(&mut a), count(&mut b), count(&mut c)), (1, 0, 0));
        a.unregister(zero).unwrap();
        assert_eq!(count(&mut c), 10, "c sleeps, and is woken");
        // B goes too, before it has seen what was left to it.
        b.unregister(one).unwrap();
        assert_eq!(count(&mut c), 10);
        clients.extend(connect_from(0, at, 3));
        assert_eq!(count(&mut c), 3);
        // Those that completions would have told, which nobody has fetched.
        for light in [true, false] {
            let zero = a.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
            a.accept(zero, Amount::Endless, light).unwrap();
            a.flush().unwrap();
            clients.extend(connect_from(0, at, 5));
            a.flush().unwrap();
            a.unregister(zero).unwrap();
            assert_eq!((count(&mut a), count(&mut c)), (0, 5));
        }
        c.unregister(rest).unwrap();
        drop((a, b, c));
        // Of the one that was accepted, its channel is gone.
        let gone = |s: &TcpStream| s.set_nonblocking(true).is_ok() && matches!(s.peek(&mut [0]), Ok(0));
        assert_eq!(clients.iter().filter(|s| gone(s)).count(), 34);
    }
}

/// The same within one channel, and of a listener that is no part.
#[test]
fn what_waits_goes_to_another_registration_of_the_channel() {
    if !ring() {
        return;
    }
    let (fd, at) = listener("127.0.0.1:0");
    let [mut a, mut b] = [(); 2].map(|()| uring(usual()).unwrap());
    let whole = a.register(fd.try_clone().unwrap(), 0).unwrap();
    a.accept(whole, Amount::Of(1), true).unwrap();
    a.flush().unwrap();
    let _clients = connect_from(0, at, 11);
    assert_eq!(count(&mut a), 1);
    let zero = a.register_part(fd.as_fd(), 1, CpuMask::one(0)).unwrap();
    accepting(&mut a, zero);
    a.unregister(whole).unwrap();
    assert_eq!(count(&mut a), 10);
    let rest = b.register(fd, 2).unwrap();
    accepting(&mut b, rest);
    a.unregister(zero).unwrap();
    let _more = connect_from(0, at, 5);
    assert_eq!((count(&mut a), count(&mut b)), (0, 5));
}

/// A network of its own for this thread and those that it starts, with ports for many connections and long accept queues; `false`:
/// not allowed to.
fn own_network() -> bool {
    let set = |name: &str, value: &str| std::fs::write(format!("/proc/sys/net/{name}"), value).is_ok();
    // SAFETY: no memory is passed.
    let alone = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    let up = || std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|s| s.success());
    alone && up() && set("ipv4/ip_local_port_range", "1024 65000") && set("core/somaxconn", "65535")
}

/// A part ends while handshakes are under way with it, which TCP_DEFER_ACCEPT keeps so until bytes come. The one that goes on is
/// waited for, and is the others'; the one that does not holds nobody up for long.
#[test]
fn a_handshake_under_way_with_a_part_that_ends_goes_on() {
    if !ring() {
        return;
    }
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (fd, at) = listener(at);
        let wait: i32 = 30;
        let (value, len) = ((&raw const wait).cast(), size_of::<i32>() as libc::socklen_t);
        // SAFETY: the value is `len` bytes long.
        let set = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, value, len) };
        assert_eq!(set, 0);
        let (mut a, mut b) = (uring(usual()).unwrap(), uring(usual()).unwrap());
        let zero = a.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
        let rest = b.register(fd.try_clone().unwrap(), 1).unwrap();
        accepting(&mut a, zero);
        accepting(&mut b, rest);
        let mut clients = connect_from(0, at, 2);
        assert_eq!((count(&mut a), count(&mut b)), (0, 0));
        let (ends, begins) = std::sync::mpsc::channel();
        let mut goes_on = clients.pop().unwrap();
        let client = std::thread::spawn(move || {
            begins.recv().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            goes_on.write_all(b"!").unwrap();
            goes_on
        });
        ends.send(()).unwrap();
        a.unregister(zero).unwrap();
        let goes_on = client.join().unwrap();
        assert_eq!((count(&mut a), count(&mut b), a.stats().dropped), (0, 1, 0));
        assert!(goes_on.take_error().unwrap().is_none());
    }
}

/// A part comes and goes while others, one of which takes what waits elsewhere, stay: every connection is somebody's. The kernel
/// gives no handshake to another listener here (`net.ipv4.tcp_migrate_req` is 0 in a new network).
#[test]
fn no_connection_is_lost_while_parts_end_and_others_take_from_them() {
    // The network is the thread's.
    std::thread::spawn(parts_come_and_go).join().unwrap();
}

fn parts_come_and_go() {
    if !ring() {
        return;
    }
    if !own_network() {
        return testing::skip("needs root and iproute2");
    }
    // Connections of each client at least, and times that a part comes and goes meanwhile.
    const EACH: usize = 10_000;
    const TIMES: usize = 20;
    let (fd, at) = listener("127.0.0.1:0");
    // A full queue loses what its clients have closed already.
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::listen(fd.as_raw_fd(), 2 * EACH as i32) }, 0);
    let (fd, over, accepted) = (&fd, &AtomicBool::new(false), &AtomicUsize::new(0));
    let (times, opened) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
    // Channels are their threads'. What has come so far, without waiting for more than a moment.
    let take = |channel: &mut Channel, limit: u64| {
        while let Some(event) = channel.dispatch(Some(Duration::from_millis(limit))).unwrap() {
            let socket = light(event);
            channel.close(socket).unwrap();
            accepted.fetch_add(1, Ordering::Relaxed);
        }
    };
    let stays = |options: Options, mask: CpuMask| {
        move || {
            let mut channel = uring(options).unwrap();
            let handle = match mask.is_empty() {
                true => channel.register(fd.try_clone().unwrap(), 0).unwrap(),
                false => channel.register_part(fd.as_fd(), 0, mask).unwrap(),
            };
            accepting(&mut channel, handle);
            while !over.load(Ordering::Relaxed) {
                take(&mut channel, 1);
            }
            channel.stats().taken
        }
    };
    std::thread::scope(|scope| {
        let eager = Options { balance: 1, ..usual() };
        let whole = scope.spawn(stays(usual(), CpuMask::NONE));
        let takes = scope.spawn(stays(eager, CpuMask::one(1)));
        let ends = scope.spawn(move || {
            let mut random = 1u64;
            let mut channel = uring(Options { accept_ahead: 4, ..usual() }).unwrap();
            while !over.load(Ordering::Relaxed) {
                let part = channel.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
                accepting(&mut channel, part);
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                std::thread::sleep(Duration::from_micros(random >> 53));
                if random >> 40 & 1 == 0 {
                    take(&mut channel, 0);
                }
                channel.unregister(part).unwrap();
                times.fetch_add(1, Ordering::Relaxed);
            }
            channel.stats().dropped
        });
        let clients = [0, 1].map(|cpu| {
            scope.spawn(move || {
                pin(cpu);
                let mut n = 0;
                while n < EACH || times.load(Ordering::Relaxed) < TIMES && opened.load(Ordering::Relaxed) < 50 * EACH {
                    TcpStream::connect_timeout(&at, Duration::from_secs(5)).map(drop)?;
                    opened.fetch_add(1, Ordering::Relaxed);
                    n += 1;
                }
                std::io::Result::Ok(())
            })
        });
        let connected = clients.map(|client| client.join().unwrap());
        let end = Instant::now() + Duration::from_secs(10);
        while accepted.load(Ordering::Relaxed) < opened.load(Ordering::Relaxed) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::Relaxed);
        connected.into_iter().for_each(Result::unwrap);
        let dropped = ends.join().unwrap();
        let times = times.load(Ordering::Relaxed);
        assert!(times >= TIMES, "{times}: nothing is shown");
        assert_eq!(dropped, 0, "closed for want of somebody, or of a descriptor");
        assert_eq!(whole.join().unwrap(), 0);
        assert!(takes.join().unwrap() > 0, "nothing was taken");
    });
    let (accepted, opened) = (accepted.load(Ordering::Relaxed), opened.load(Ordering::Relaxed));
    assert_eq!(accepted, opened, "the kernel counted {}", what_the_kernel_counted());
}

/// What the kernel's TCP has counted in this thread's network.
fn what_the_kernel_counted() -> String {
    let all = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
    let mut lines = all.lines();
    let mut counted = Vec::new();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let both = names.split(' ').zip(values.split(' '));
        counted.extend(both.filter(|(_, value)| *value != "0").map(|(name, value)| format!("{name} {value}")));
    }
    counted.join(", ")
}

/// Connections go to others by descriptors, of which there may be fewer than connections: they go some at a time.
#[test]
fn connections_go_to_others_where_descriptors_are_few() {
    // Once more, in a process of its own: the limit is a process's.
    const ALONE: &str = "CORELANE_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(ALONE).is_some() {
        return a_part_ends_with_few_descriptors();
    }
    if !ring() {
        return;
    }
    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "connections_go_to_others_where_descriptors_are_few", "--nocapture"]).env(ALONE, "");
    let out = test.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&[out.stdout, out.stderr].concat()));
}

fn a_part_ends_with_few_descriptors() {
    const CONNECTIONS: usize = 100;
    // Of the connections, some are in the channel and the others in the kernel.
    for ahead in [64, 4] {
        let (fd, at) = listener("127.0.0.1:0");
        let mut a = uring(Options { accept_ahead: ahead, ..usual() }).unwrap();
        let part = a.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
        let (over, ready) = (&AtomicBool::new(false), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let fd = fd.try_clone().unwrap();
            let others = scope.spawn(move || {
                let (mut b, mut n) = (uring(usual()).unwrap(), 0);
                let rest = b.register(fd, 1).unwrap();
                accepting(&mut b, rest);
                ready.store(true, Ordering::Release);
                // Once more when all have been left to it.
                for last in [false, true] {
                    while last || !over.load(Ordering::Acquire) {
                        match b.dispatch(Some(Duration::from_millis(if last { 20 } else { 1 }))).unwrap() {
                            Some(event) => {
                                light(event);
                                n += 1;
                            }
                            None if last => break,
                            None => {}
                        }
                    }
                }
                n
            });
            while !ready.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let _clients = connect_from(0, at, CONNECTIONS);
            a.flush().unwrap();
            // All numbers below the next one that is free are taken, so that there are 10.
            let next = fd_of_next();
            limit_descriptors(next + 10);
            a.unregister(part).unwrap();
            limit_descriptors(next + 1000);
            over.store(true, Ordering::Release);
            assert_eq!((others.join().unwrap(), a.stats().dropped), (CONNECTIONS, 0), "{ahead} accepted ahead");
        });
    }
}

/// The number that the next descriptor would have.
fn fd_of_next() -> u64 {
    std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64
}

fn limit_descriptors(most: u64) {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or fill a structure of theirs.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now), 0);
        now.rlim_cur = most.min(now.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now), 0);
    }
}

#[test]
fn nothing_is_taken_unless_asked() {
    if !ring() {
        return;
    }
    let (fd, at) = listener("127.0.0.1:0");
    let quiet = Options { accept_ahead: 0, ..usual() };
    let (mut a, mut b) = (uring(quiet).unwrap(), uring(quiet).unwrap());
    let zero = a.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
    let one = b.register_part(fd.as_fd(), 1, CpuMask::one(1)).unwrap();
    accepting(&mut b, one);
    let _many = connect_from(0, at, 30);
    assert_eq!(count(&mut b), 0);
    accepting(&mut a, zero);
    assert_eq!(count(&mut a), 30);
}

#[test]
fn one_channel_may_have_a_part_and_the_rest() {
    if !ring() {
        return;
    }
    for mode in 0..3 {
        let mut a = uring(usual()).unwrap();
        let (fd, at, handles) = if mode == 0 {
            let (fd, at) = listener("127.0.0.1:0");
            let part = a.register_part(fd.as_fd(), 1, CpuMask::one(1)).unwrap();
            let rest = a.register(fd.try_clone().unwrap(), 2).unwrap();
            (Some(fd), at, [part, rest])
        } else {
            let any: SocketAddr = if mode == 1 { "127.0.0.1:0" } else { "[::]:0" }.parse().unwrap();
            let listener = channel::Listener::at(any.into(), 100).unwrap();
            let part = a.register_listener(listener, 1, CpuMask::one(1)).unwrap();
            let rest = a.register_listener(listener, 2, CpuMask::NONE).unwrap();
            let port = listener.address().unwrap().ip().unwrap().port();
            (None, SocketAddr::from(([127, 0, 0, 1], port)), [part, rest])
        };
        handles.into_iter().for_each(|handle| accepting(&mut a, handle));
        let _streams = (connect_from(0, at, 3), connect_from(1, at, 4));
        assert_eq!(count(&mut a), 7, "{mode}");
        drop(fd);
    }
}
