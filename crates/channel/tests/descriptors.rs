//! What becomes of connections where no descriptor is left. The limit is the process's: one test.

mod common;

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use channel::{Amount, CpuMask, Data, Options, Socket};
use common::{accepting, connect_from, count, listener, number, ring, uring, usual};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Leaves room for `n` descriptors, until what comes back goes.
fn leave_room(of: &OwnedFd, n: usize) -> Vec<OwnedFd> {
    let mut all: Vec<_> = std::iter::from_fn(|| of.try_clone().ok()).collect();
    all.truncate(all.len() - n);
    all
}

fn gone(client: &TcpStream) -> bool {
    client.set_nonblocking(true).unwrap();
    client.peek(&mut [0]).map_or_else(|e| e.kind() != std::io::ErrorKind::WouldBlock, |n| n == 0)
}

#[test]
fn connections_stay_with_somebody_or_are_counted() {
    if !ring() {
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), ..getrlimit(Resource::Nofile) }).unwrap();
    for (light, ahead) in [(true, 4), (false, 4), (true, 0)] {
        let (fd, at) = listener("127.0.0.1:0");
        let options = Options { accept_ahead: ahead, ..usual() };
        let (mut a, mut b) = (uring(options).unwrap(), uring(options).unwrap());
        let zero = a.register_part(fd.as_fd(), 0, CpuMask::one(0)).unwrap();
        let rest = b.register(fd.try_clone().unwrap(), 1).unwrap();
        accepting(&mut b, rest);
        a.accept(zero, Amount::Of(1), light).unwrap();
        a.flush().unwrap();
        let clients = connect_from(0, at, 20);
        let one = a.dispatch(None).unwrap().unwrap();
        let none_left = leave_room(&fd, 3);
        a.unregister(zero).unwrap();
        drop(none_left);
        let came = count(&mut b);
        assert_eq!((came + a.stats().dropped as usize, b.stats().dropped), (19, 0), "{light} {ahead}");
        assert!(came >= 3 && (came < 19 || !light), "{came}");
        assert_eq!(clients.iter().filter(|client| gone(client)).count(), 19 - came);
        drop(one);
    }
    // Who cannot have a connection as it was asked for, gets it later.
    let (fd, at) = listener("127.0.0.1:0");
    let mut a = uring(usual()).unwrap();
    let whole = a.register(fd.try_clone().unwrap(), 0).unwrap();
    a.accept(whole, Amount::Of(1), true).unwrap();
    a.flush().unwrap();
    let clients = connect_from(0, at, 2);
    let one = a.dispatch(None).unwrap().unwrap();
    let mut next = || {
        a.accept(whole, Amount::Of(1), false).unwrap();
        a.dispatch(Some(Duration::from_secs(10))).unwrap().unwrap()
    };
    let none_left = leave_room(&fd, 0);
    assert_eq!(number(next().result.unwrap_err()), libc::EMFILE);
    drop(none_left);
    let Data::Accepted(Socket::Fd(second), 0) = next().data else { panic!("no connection") };
    assert_eq!(TcpStream::from(second).peer_addr().unwrap(), clients[1].local_addr().unwrap());
    drop(one);
}
