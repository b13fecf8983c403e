//! The plug-in as the tool uses it: a thread that moves the clock and one whose calls block. The peer is another machine.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use corelane_packetdrill::Plugin;
use protocol::Endpoint;
use rustix::io::Errno;
use sim::{Machine, MachineConfig};
use socket::{ListenOptions, SockId};
use wire::{Addr, Instant};

const OURS: [u8; 4] = [192, 168, 0, 1];
const PEER: [u8; 4] = [192, 0, 2, 1];
const PORT: u16 = 8080;

fn sockaddr(addr: [u8; 4]) -> Vec<u8> {
    let mut out = (libc::AF_INET as u16).to_ne_bytes().to_vec();
    out.extend(PORT.to_be_bytes());
    out.extend(addr);
    out.resize(16, 0);
    out
}

/// A plug-in, and a peer that listens.
fn pair() -> (Arc<Plugin>, Machine, SockId) {
    let mut peer = Machine::new(MachineConfig { addresses: vec![(PEER.into(), 24)], seed: 2, ..Default::default() });
    let listener = peer.sockets().socket(false).unwrap();
    peer.sockets().bind(listener, Endpoint { addr: Addr::from_v4(PEER), port: PORT }).unwrap();
    peer.sockets().listen(listener, ListenOptions { backlog: 4 }).unwrap();
    peer.settle();
    let config = MachineConfig { addresses: vec![(OURS.into(), 16)], ..Default::default() };
    (Arc::new(Plugin::new(config)), peer, listener)
}

/// Packets cross until the peer has nothing to say; those of the plug-in are waited for.
fn exchange(p: &Plugin, peer: &mut Machine) {
    let (_, packet) = p.sniff().expect("a packet");
    peer.inject(&packet);
    answer(p, peer);
}

fn answer(p: &Plugin, peer: &mut Machine) {
    while let Some((_, packet)) = peer.pop() {
        p.inject(&packet);
    }
}

/// An open connection: our descriptor, the peer's socket.
fn open(p: &Plugin, peer: &mut Machine, listener: SockId) -> (i32, SockId) {
    let fd = p.socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0).unwrap();
    assert_eq!(p.connect(fd, &sockaddr(PEER)), Err(Errno::INPROGRESS));
    exchange(p, peer);
    exchange(p, peer);
    assert_eq!(p.connect(fd, &sockaddr(PEER)), Ok(()));
    assert_eq!(p.connect(fd, &sockaddr(PEER)), Err(Errno::ISCONN));
    p.fcntl(fd, libc::F_SETFL, 0).unwrap();
    (fd, peer.sockets().accept(listener).unwrap().0)
}

/// A call in the second thread; what it gives, and when it ended.
fn blocked<T: Send + 'static>(
    p: &Arc<Plugin>,
    call: impl FnOnce(&Plugin) -> T + Send + 'static,
) -> thread::JoinHandle<(T, Instant)> {
    let p = p.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let handle = thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        let out = call(&p);
        (out, p.now())
    });
    // As the tool does: the call blocks when its thread sleeps.
    let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap().as_raw_nonzero());
    let sleeps = || std::fs::read_to_string(&stat).is_ok_and(|s| s.rsplit(") ").next().unwrap().starts_with('S'));
    while !sleeps() {
        assert!(!handle.is_finished());
        thread::sleep(Duration::from_millis(1));
    }
    handle
}

#[test]
fn a_blocking_read_ends_at_the_instant_of_the_packet() {
    let (p, mut peer, listener) = pair();
    let (fd, theirs) = open(&p, &mut peer, listener);
    let reader = blocked(&p, move |p| {
        let mut buf = [0; 10];
        (p.receive(fd, &mut [&mut buf], 0), buf)
    });
    p.pause(Duration::from_millis(300));
    let at = p.now();
    peer.sockets().write(theirs, b"hello", false).unwrap();
    peer.settle();
    answer(&p, &mut peer);
    // The clock waits for the reader.
    p.pause(Duration::from_secs(5));
    let ((got, buf), ended) = reader.join().unwrap();
    assert_eq!((got, &buf[..5]), (Ok(5), &b"hello"[..]));
    assert_eq!(ended, at);
}

#[test]
fn a_receive_timeout_ends_a_read_on_time() {
    let (p, mut peer, listener) = pair();
    let (fd, _) = open(&p, &mut peer, listener);
    let timeval = [[0i64.to_ne_bytes(), 250_000i64.to_ne_bytes()].concat()].concat();
    p.set_option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeval).unwrap();
    let start = p.now();
    let reader = blocked(&p, move |p| p.receive(fd, &mut [&mut [0; 10]], 0));
    p.pause(Duration::from_secs(1));
    let (got, ended) = reader.join().unwrap();
    assert_eq!(got, Err(Errno::AGAIN));
    assert_eq!(ended.micros_since(start), 250_000);
}

#[test]
fn a_blocking_write_goes_on_as_the_peer_acknowledges() {
    let (p, mut peer, listener) = pair();
    let (fd, theirs) = open(&p, &mut peer, listener);
    const BYTES: usize = 1_000_000;
    let writer = blocked(&p, move |p| p.send(fd, &[&[7; BYTES]], 0));
    let mut read = 0;
    while read < BYTES {
        exchange(&p, &mut peer);
        while let Ok(n @ 1..) = peer.sockets().read(theirs, &mut [0; 65_536]) {
            read += n;
        }
        // Delayed acknowledgments are due by then.
        let later = peer.now().plus_micros(1000);
        peer.advance_to(later);
        answer(&p, &mut peer);
    }
    assert_eq!(writer.join().unwrap().0, Ok(BYTES));
}

#[test]
fn blocking_connect_and_close_with_linger() {
    let (p, mut peer, listener) = pair();
    let fd = p.socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP).unwrap();
    let opener = blocked(&p, move |p| p.connect(fd, &sockaddr(PEER)));
    exchange(&p, &mut peer);
    assert_eq!(opener.join().unwrap().0, Ok(()));
    exchange(&p, &mut peer);
    assert!(peer.sockets().accept(listener).is_ok());
    let linger = [1i32.to_ne_bytes(), 2i32.to_ne_bytes()].concat();
    p.set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
    let start = p.now();
    let closer = blocked(&p, move |p| p.close(fd));
    // The FIN is never acknowledged: SO_LINGER's two seconds pass.
    p.pause(Duration::from_secs(10));
    let (end, ended) = closer.join().unwrap();
    assert_eq!((end, ended.micros_since(start)), (Ok(()), 2_000_000));
    assert_eq!(p.shutdown(fd, libc::SHUT_WR), Err(Errno::BADF));
}

#[test]
fn the_main_thread_waits_in_virtual_time() {
    let (p, mut peer, listener) = pair();
    let (fd, _) = open(&p, &mut peer, listener);
    let start = p.now();
    let mut returned = [0];
    assert_eq!(p.poll(&[(fd, libc::POLLIN)], &mut returned, 1500), Ok(0));
    assert_eq!(p.now().micros_since(start), 1_500_001);
    assert_eq!(p.poll(&[(fd, libc::POLLIN | libc::POLLOUT), (77, 0)], &mut [0, 0], -1), Ok(2));
    let epoll = p.epoll_create().unwrap();
    p.epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT as u32, 99).unwrap();
    let ready = p.epoll_wait(epoll, 8, -1).unwrap();
    assert_eq!((ready.len(), ready[0].events, ready[0].data), (1, libc::EPOLLOUT as u32, 99));
    // Nobody is left who could send anything.
    assert_eq!(p.receive(fd, &mut [&mut [0; 4]], 0), Err(Errno::DEADLK));
    assert_eq!(p.sniff(), None);
}

#[test]
fn unanswered_segments_are_sniffed_at_their_instants() {
    let (p, mut peer, listener) = pair();
    let (fd, _) = open(&p, &mut peer, listener);
    assert_eq!(p.send(fd, &[b"lo", b"st"], libc::MSG_DONTWAIT), Ok(4));
    let (first, packet) = p.sniff().unwrap();
    assert_eq!(&packet[packet.len() - 4..], b"lost");
    let (second, _) = p.sniff().unwrap();
    assert!(second.micros_since(first) >= 200_000);
    assert!(p.now().micros_since(second) <= 1);
    assert_eq!(p.ioctl(fd, libc::TIOCOUTQ), Ok(4));
    assert_eq!(p.nowhere(fd, 0, false), Err(Errno::FAULT));
    assert_eq!(p.nowhere(fd, libc::MSG_DONTWAIT, true), Err(Errno::AGAIN));
}

#[test]
fn what_is_not_there_is_refused_as_linux_does() {
    let (p, _, _) = pair();
    assert_eq!(p.socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), Err(Errno::AFNOSUPPORT));
    assert_eq!(p.socket(libc::AF_INET, libc::SOCK_DGRAM, 0), Err(Errno::SOCKTNOSUPPORT));
    assert_eq!(p.socket(libc::AF_INET, libc::SOCK_STREAM, 132), Err(Errno::PROTONOSUPPORT));
    let fd = p.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    assert_eq!(p.bind(fd, b"\x02"), Err(Errno::INVAL));
    assert_eq!(p.bind(fd, &sockaddr([10, 9, 9, 9])), Ok(()));
    assert_eq!(p.listen(fd, 1), Err(Errno::ADDRNOTAVAIL));
    assert_eq!(p.fcntl(fd, libc::F_GETFL, 0), Ok(libc::O_RDWR));
    assert_eq!(p.fcntl(fd, libc::F_DUPFD, 0), Err(Errno::INVAL));
    assert_eq!(p.ioctl(fd, 1), Err(Errno::NOTTY));
    assert_eq!(p.shutdown(fd, 9), Err(Errno::INVAL));
    assert_eq!(p.epoll_wait(fd, 0, 0), Err(Errno::INVAL));
    assert!(p.owns(fd) && !p.owns(0));
}
