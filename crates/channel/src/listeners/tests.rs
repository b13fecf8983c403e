use super::*;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Connects `n` times from a CPU, on which loopback then delivers.
pub(crate) fn connect_from(cpu: usize, to: SocketAddr, n: usize) -> Vec<TcpStream> {
    std::thread::spawn(move || {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
        (0..n).map(|_| TcpStream::connect(to).unwrap()).collect()
    })
    .join()
    .unwrap()
}

/// The calling thread is nobody special from now on.
pub(crate) fn drop_capabilities() {
    let (header, none) = ([0x2008_0522u32, 0], [0u32; 6]);
    // SAFETY: a header of version 3, and the six words that belong to it.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(done, 0);
}

fn waits(fd: &OwnedFd) -> u32 {
    sys::backlog(fd.as_fd()).unwrap().0
}

/// Another channel has the socket of a part in hand, to take from it, while its registration ends.
#[test]
fn a_part_ends_at_once_whoever_takes_from_it() {
    let whole = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = whole.local_addr().unwrap();
    let [zero, one] = [0, 1].map(|cpu| Membership::socket(whole.as_fd(), CpuMask::one(cpu)).unwrap());
    let _some = connect_from(0, at, 1);
    let (taking, n) = one.1.busiest(1).unwrap();
    assert_eq!(n, 1);
    zero.1.withdraw();
    drop(zero);
    let _more = connect_from(1, at, 8);
    assert_eq!(waits(&one.0), 8, "they went to a socket that nobody accepts from");
    drop(taking);
    assert_eq!(waits(&one.0), 8);
}

/// What ends in the middle leaves a blank, so that no other part moves; the next registration has its place.
#[test]
fn no_part_moves_when_another_ends() {
    let whole = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = whole.local_addr().unwrap();
    let join = |cpu| Membership::socket(whole.as_fd(), CpuMask::one(cpu)).unwrap();
    let places = |of: &Membership| -> Vec<Option<u64>> {
        let all = lock();
        all.groups[&of.key].parts.iter().map(|part| (part.id != BLANK).then_some(part.id)).collect()
    };
    let (zero, one, two) = (join(700), join(0), join(1));
    let (a, b, c) = (zero.1.id, one.1.id, two.1.id);
    assert_eq!(places(&one.1), [Some(a), Some(b), Some(c)]);
    drop(zero);
    assert_eq!(places(&one.1), [None, Some(b), Some(c)]);
    let _some = (connect_from(0, at, 2), connect_from(1, at, 3));
    assert_eq!((waits(&one.0), waits(&two.0)), (2, 3));
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE);
    sys::set_option(whole.as_fd(), level, name, 123).unwrap();
    let again = join(701);
    assert_eq!(sys::option(again.0.as_fd(), level, name).unwrap(), 123, "as options are now");
    assert_eq!(places(&one.1), [Some(again.1.id), Some(b), Some(c)]);
    drop(one);
    drop(two);
    assert_eq!(places(&again.1), [Some(again.1.id), None], "blanks at the end are for nobody, but the newest stays");
    let other = join(1);
    assert_eq!(places(&again.1), [Some(again.1.id), Some(other.1.id)]);
    drop(other);
    assert_eq!(places(&again.1), [Some(again.1.id), None], "a newer one");
}

/// A listener with a long queue, that has SO_REUSEPORT before it listens, or not.
fn listener(reuse: bool) -> (OwnedFd, SocketAddr) {
    listener_at(SocketAddr::from(([127, 0, 0, 1], 0)), reuse)
}

fn listener_at(at: SocketAddr, reuse: bool) -> (OwnedFd, SocketAddr) {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    // Without either its connections would keep the address from parts.
    sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
    sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, reuse as i32).unwrap();
    sys::bind(fd.as_fd(), &at.into()).unwrap();
    sys::listen(fd.as_fd(), 4096).unwrap();
    let at = sys::local(fd.as_fd()).unwrap().ip().unwrap();
    (fd, at)
}

/// Does something again and again while up to 500 connect from CPU 0, or once while some do: the clients.
fn while_many_connect(at: SocketAddr, once: bool, mut meanwhile: impl FnMut()) -> Vec<TcpStream> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let one = |_| (!over.load(Ordering::Relaxed)).then(|| connect_from(0, at, 1).pop().unwrap());
            (0..500).map_while(one).collect()
        });
        while !clients.is_finished() {
            meanwhile();
            over.store(once, Ordering::Relaxed);
            if once {
                break;
            }
        }
        clients.join().unwrap()
    })
}

/// Connections that come while the first part is made have the original's options, and are the original's where the kernel
/// takes a program before.
#[test]
fn the_first_part_has_no_connection_too_early() {
    const IDLE: (i32, i32) = (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE);
    let mut seen = 0;
    for round in 0..100 {
        let reuse = round % 2 == 0;
        let (whole, at) = listener(reuse);
        sys::set_option(whole.as_fd(), IDLE.0, IDLE.1, 123).unwrap();
        let mut made = None;
        let clients = while_many_connect(at, true, || {
            std::thread::sleep(Duration::from_micros(300));
            made = Some(Membership::socket(whole.as_fd(), CpuMask::one(reuse as usize)).unwrap());
            std::thread::sleep(Duration::from_micros(200));
        });
        let part = made.as_ref().map(|(part, _)| part).unwrap();
        if reuse {
            assert_eq!(waits(part), 0, "of {}, round {round}: they came in on another CPU", clients.len());
            seen += clients.len();
            continue;
        }
        let part = TcpListener::from(part.try_clone().unwrap());
        for _ in 0..sys::backlog(part.as_fd()).unwrap().0 {
            let (connection, _) = part.accept().unwrap();
            assert_eq!(sys::option(connection.as_fd(), IDLE.0, IDLE.1).unwrap(), 123, "round {round}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}: nothing is shown");
}

/// A part that may not have an option never listens: no connection comes to it, to be reset when it ends.
#[test]
fn a_part_that_is_refused_takes_no_connections() {
    for reuse in [false, true] {
        let (whole, at) = listener(reuse);
        if sys::set_option(whole.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, 6).is_err() {
            return testing::skip("needs root");
        }
        let refused = || {
            drop_capabilities();
            let mut n = 0;
            let clients = while_many_connect(at, false, || {
                let error = Membership::socket(whole.as_fd(), CpuMask::one(0)).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EPERM));
                n += 1;
            });
            assert!(n > 10, "{n}: nothing is shown");
            clients
        };
        let clients = std::thread::scope(|scope| scope.spawn(refused).join().unwrap());
        let reset = clients.iter().filter(|stream| stream.take_error().unwrap().is_some()).count();
        assert_eq!((clients.len(), reset), (500, 0));
        assert_eq!(waits(&whole), 500);
        if reuse {
            // And no program: the kernel deals out by hash again.
            let (other, _) = listener_at(at, true);
            let _more = connect_from(0, at, 64);
            assert!(waits(&whole) < 564 && waits(&other) > 0);
        }
    }
}
