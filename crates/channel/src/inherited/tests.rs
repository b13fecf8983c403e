use super::*;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use libc::{IPPROTO_IP as IP, IPPROTO_IPV6 as IPV6, IPPROTO_TCP as TCP, SOL_SOCKET as SOCKET};

use crate::listeners::Membership;
use crate::listeners::tests::{connect_from, drop_capabilities};
use crate::options::CpuMask;

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Whatever the original hands on, the kernel's own way says.
#[test]
fn options_together_are_as_the_original_hands_them_on() {
    let time = |seconds: i64| [seconds.to_ne_bytes(), [0; 8]].concat();
    let same = [
        (SOCKET, libc::SO_BINDTOIFINDEX, bytes(&[1])),
        (SOCKET, libc::SO_KEEPALIVE, bytes(&[1])),
        (SOCKET, libc::SO_LINGER, bytes(&[1, 7])),
        (SOCKET, libc::SO_OOBINLINE, bytes(&[1])),
        (SOCKET, libc::SO_RCVLOWAT, bytes(&[3])),
        (SOCKET, libc::SO_SNDBUF, bytes(&[70_000])),
        (SOCKET, libc::SO_RCVBUF, bytes(&[80_000])),
        (SOCKET, libc::SO_RCVTIMEO, time(11)),
        (SOCKET, libc::SO_SNDTIMEO, time(12)),
        (TCP, libc::TCP_NODELAY, bytes(&[1])),
        (TCP, libc::TCP_MAXSEG, bytes(&[1000])),
        (TCP, libc::TCP_WINDOW_CLAMP, bytes(&[9000])),
        (TCP, libc::TCP_CONGESTION, b"reno".to_vec()),
        (TCP, libc::TCP_KEEPIDLE, bytes(&[123])),
        (TCP, libc::TCP_KEEPINTVL, bytes(&[21])),
        (TCP, libc::TCP_KEEPCNT, bytes(&[5])),
        (TCP, libc::TCP_USER_TIMEOUT, bytes(&[4321])),
        (TCP, libc::TCP_LINGER2, bytes(&[9])),
        (TCP, libc::TCP_NOTSENT_LOWAT, bytes(&[5555])),
    ];
    let v4 = [
        (IP, libc::IP_FREEBIND, bytes(&[1])),
        (IP, libc::IP_TOS, bytes(&[0x10])),
        (IP, libc::IP_TTL, bytes(&[77])),
        (IP, libc::IP_MINTTL, bytes(&[3])),
    ];
    let v6 = [
        (IPV6, libc::IPV6_FREEBIND, bytes(&[1])),
        (IPV6, libc::IPV6_TCLASS, bytes(&[0x28])),
        (IPV6, libc::IPV6_UNICAST_HOPS, bytes(&[33])),
        (IPV6, libc::IPV6_MINHOPCOUNT, bytes(&[4])),
        (IPV6, libc::IPV6_DONTFRAG, bytes(&[1])),
    ];
    let privileged = [(SOCKET, libc::SO_MARK, bytes(&[6])), (IP, libc::IP_TRANSPARENT, bytes(&[1]))];
    let all = || ADDRESS.iter().chain(ALL).chain(LISTENING);
    let told = |fd: BorrowedFd<'_>| -> Vec<_> {
        all().map(|(level, name)| ((*level, *name), sys::option_bytes(fd, *level, *name).ok())).collect()
    };
    for (at, own) in [("127.0.0.1:0", &v4[..]), ("[::1]:0", &v6[..])] {
        let [plain, whole] = [(); 2].map(|()| TcpListener::bind(at).unwrap());
        let mut odd: Vec<_> = same.iter().chain(own).collect();
        for (level, name, value) in &odd {
            sys::set_option_bytes(whole.as_fd(), *level, *name, value)
                .unwrap_or_else(|e| panic!("{level} {name}: {e}"));
        }
        if rustix::process::geteuid().is_root() {
            for option in &privileged {
                sys::set_option_bytes(whole.as_fd(), option.0, option.1, &option.2).unwrap();
                odd.push(option);
            }
        } else {
            testing::skip("options that need root");
        }
        // Of the answers to SYNs alone.
        sys::set_option(whole.as_fd(), SOCKET, libc::SO_PRIORITY, 4).unwrap();
        let (fresh, wanted) = (accepted(&plain), accepted(&whole));
        for (level, name, _) in odd {
            let [usual, odd] = [&fresh.0, &wanted.0].map(|fd| sys::option_bytes(fd.as_fd(), *level, *name).unwrap());
            assert_ne!(usual, odd, "{level} {name}: nothing is shown");
        }
        let (part, _member) = Membership::socket(whole.as_fd(), CpuMask::one(0)).unwrap();
        assert_eq!(told(part.as_fd()), told(whole.as_fd()));
        let came = accepted(&TcpListener::from(part));
        assert_eq!(told(came.0.as_fd()), told(wanted.0.as_fd()));
    }
}

const SO_LOCK_FILTER: i32 = 44;
const NAMES: i32 = 128;

/// Handed on, and of no use to a connection: what is about multicast, what is for sockets that connect, and what a listener with
/// parts cannot have.
const LEFT_OUT: &[(i32, i32)] = &[
    (IP, libc::IP_MULTICAST_LOOP),
    (IP, libc::IP_MULTICAST_ALL),
    (IPV6, libc::IPV6_MULTICAST_LOOP),
    (IPV6, libc::IPV6_MULTICAST_ALL),
    (IPV6, libc::IPV6_ROUTER_ALERT_ISOLATE),
    (TCP, libc::TCP_REPAIR),
    (TCP, libc::TCP_FASTOPEN_CONNECT),
    (SOCKET, libc::SO_REUSEPORT),
    (SOCKET, SO_LOCK_FILTER),
    // A connection tells the CPU of its last packet, whatever its listener was given.
    (SOCKET, libc::SO_INCOMING_CPU),
];

/// One that was accepted, which a byte came in on, for TCP_DEFER_ACCEPT.
fn accepted(from: &TcpListener) -> (TcpStream, Vec<TcpStream>) {
    let mut client = connect_from(0, from.local_addr().unwrap(), 1);
    io::Write::write_all(&mut client[0], b"x").unwrap();
    (from.accept().unwrap().0, client)
}

/// Sets an option to the first of some values that another one is read after (the last is an interface's number
/// as IP_UNICAST_IF has it); `None`: none is taken, or all are read the same.
fn make_odd(fd: BorrowedFd<'_>, level: i32, name: i32) -> Option<Vec<u8>> {
    let usual = sys::option_bytes(fd, level, name).ok()?;
    [1, 0, 1000, 70_000, 1i32.to_be()].into_iter().find_map(|value: i32| {
        let mut value = value.to_ne_bytes().to_vec();
        value.resize(usual.len(), 0);
        sys::set_option_bytes(fd, level, name, &value).ok()?;
        sys::option_bytes(fd, level, name).ok().filter(|now| *now != usual)
    })
}

/// Every number that a level's options may have, one at a time: what of it comes to connections of the original comes to those
/// of the part. A kernel that has learnt another option fails here.
#[test]
fn nothing_that_is_handed_on_is_missing() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let listener = || {
            let listener = TcpListener::bind(at).unwrap();
            // As connections of one with parts have it.
            sys::set_option(listener.as_fd(), SOCKET, libc::SO_REUSEPORT, 1).unwrap();
            listener
        };
        let fresh = accepted(&listener());
        let (mut handed_on, mut missing) = (0, Vec::new());
        let names = [SOCKET, IP, IPV6, TCP].into_iter().flat_map(|level| (0..NAMES).map(move |name| (level, name)));
        for (level, name) in names.filter(|option| !LEFT_OUT.contains(option)) {
            let whole = listener();
            if make_odd(whole.as_fd(), level, name).is_none() {
                continue;
            }
            let told = |fd: &TcpStream| sys::option_bytes(fd.as_fd(), level, name).ok();
            let wanted = accepted(&whole);
            let (part, _member) = Membership::socket(whole.as_fd(), CpuMask::one(0)).unwrap();
            let came = accepted(&TcpListener::from(part));
            if told(&wanted.0) != told(&fresh.0) {
                handed_on += 1;
                if told(&came.0) != told(&wanted.0) {
                    missing.push((level, name));
                }
            }
        }
        assert_eq!(missing, [], "{at}: (level, name)");
        // Some need privileges, others a newer kernel than the oldest.
        assert!(handed_on >= 40, "{at}: {handed_on}");
    }
}

/// A size that was set stays what it is, even where it is that of fresh sockets, which tune themselves.
#[test]
fn sizes_are_locked_where_the_originals_are() {
    let whole = TcpListener::bind("127.0.0.1:0").unwrap();
    for name in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        let usual = sys::option(whole.as_fd(), SOCKET, name).unwrap();
        sys::set_option(whole.as_fd(), SOCKET, name, usual / 2).unwrap();
        assert_eq!(sys::option(whole.as_fd(), SOCKET, name).unwrap(), usual);
    }
    let wanted = accepted(&whole);
    let (part, _member) = Membership::socket(whole.as_fd(), CpuMask::one(0)).unwrap();
    let came = accepted(&TcpListener::from(part));
    let told = |fd: &TcpStream| {
        [SO_BUF_LOCK, libc::SO_RCVBUF, libc::SO_SNDBUF].map(|name| sys::option(fd.as_fd(), SOCKET, name).unwrap())
    };
    assert_eq!(told(&wanted.0)[0], 3);
    assert_eq!(told(&came.0), told(&wanted.0));
}

/// What a part is refused with where the process has no privileges.
fn refused(whole: &TcpListener) -> Option<i32> {
    std::thread::scope(|scope| {
        let may_not = || {
            drop_capabilities();
            Membership::socket(whole.as_fd(), CpuMask::one(0)).unwrap_err().raw_os_error()
        };
        scope.spawn(may_not).join().unwrap()
    })
}

/// The kernel's own words for it differ.
#[test]
fn what_may_not_be_set_is_one_error() {
    for name in [libc::SO_DEBUG, libc::SO_MARK] {
        let whole = TcpListener::bind("127.0.0.1:0").unwrap();
        if sys::set_option(whole.as_fd(), SOCKET, name, 1).is_err() {
            return testing::skip("needs root");
        }
        assert_eq!(refused(&whole), Some(libc::EPERM));
    }
}

/// Sizes above what anyone may have are forced, or refused.
#[test]
fn no_size_is_cut_in_silence() {
    const SIZE: i32 = 1 << 29;
    for (name, force) in [(libc::SO_RCVBUF, libc::SO_RCVBUFFORCE), (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE)] {
        let whole = TcpListener::bind("127.0.0.1:0").unwrap();
        sys::set_option(whole.as_fd(), SOCKET, name, SIZE).unwrap();
        if sys::option(whole.as_fd(), SOCKET, name).unwrap() == 2 * SIZE {
            // Whoever runs CI may have raised net.core.rmem_max and wmem_max.
            return testing::skip_in_ci_too("anyone may have such sizes here");
        }
        if sys::set_option(whole.as_fd(), SOCKET, force, SIZE).is_err() {
            return testing::skip("needs root");
        }
        let (part, member) = Membership::socket(whole.as_fd(), CpuMask::one(0)).unwrap();
        let came = accepted(&TcpListener::from(part));
        assert_eq!(sys::option(came.0.as_fd(), SOCKET, name).unwrap(), 2 * SIZE);
        drop(member);
        assert_eq!(refused(&whole), Some(libc::EPERM));
    }
}

/// The kernel takes no program then, and nothing listens beside the original meanwhile.
#[test]
fn a_listener_whose_filter_is_locked_has_no_parts() {
    let whole = TcpListener::bind("127.0.0.1:0").unwrap();
    sys::set_option(whole.as_fd(), SOCKET, SO_LOCK_FILTER, 1).unwrap();
    let refused = Membership::socket(whole.as_fd(), CpuMask::one(0)).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    assert_eq!(sys::option(whole.as_fd(), SOCKET, libc::SO_REUSEPORT).unwrap(), 0, "no part was begun");
}
