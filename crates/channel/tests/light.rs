//! Lightweight sockets of the kernel's engine, against peers that are std's: their ends, their conversions, and shortages.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use channel::{Amount, Channel, Command, Data, Event, Handle, LwSocket, Options, Socket};
use common::{ring, uring, usual};

/// Patience with what must come.
const LIMIT: Duration = Duration::from_secs(30);

/// A channel that accepts, and where.
fn setup(options: Options) -> (Channel, Handle, SocketAddr) {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = l.local_addr().unwrap();
    let mut ch = uring(options).unwrap();
    let h = ch.register(l.into(), 0).unwrap();
    ch.accept(h, Amount::Endless, true).unwrap();
    ch.flush().unwrap();
    (ch, h, at)
}

fn next(ch: &mut Channel) -> Event {
    ch.dispatch(Some(LIMIT)).unwrap().expect("an event")
}

/// A connection: the peer, and the channel's end.
fn connect(ch: &mut Channel, at: SocketAddr) -> (TcpStream, Handle, LwSocket) {
    let s = TcpStream::connect(at).unwrap();
    let e = next(ch);
    let Data::Accepted(Socket::Light(l), _) = e.data else { panic!("{e:?}") };
    (s, ch.register_light(l, 0).unwrap(), l)
}

/// Has it received until further notice.
fn flowing(ch: &mut Channel, s: &mut TcpStream, h: Handle) {
    for _ in 0..2 {
        ch.recv(h).unwrap();
        ch.flush().unwrap();
        s.write_all(b"x").unwrap();
        let e = next(ch);
        let Data::Received(r) = e.data else { panic!("{e:?}") };
        ch.release(r).unwrap();
    }
    ch.flush().unwrap();
}

/// A peer that reads to the end, of any kind: how many bytes.
fn reads_to_the_end(mut s: TcpStream) -> JoinHandle<(usize, TcpStream)> {
    s.set_read_timeout(Some(LIMIT)).unwrap();
    std::thread::spawn(move || {
        let (mut buf, mut n) = (vec![0; 1 << 20], 0);
        loop {
            match s.read(&mut buf) {
                Ok(0) => return (n, s),
                Ok(k) => n += k,
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return (n, s),
                Err(e) => panic!("no end after {n} bytes: {e}"),
            }
        }
    })
}

/// What completed, and how.
type Seen = (Command, Result<usize, Option<i32>>);

/// Runs the channel until the peer has seen the end: how many bytes it read, and what completed.
fn run(ch: &mut Channel, peer: JoinHandle<(usize, TcpStream)>) -> (usize, Vec<Seen>) {
    let mut seen = Vec::new();
    while !peer.is_finished() {
        if let Some(e) = ch.dispatch(Some(Duration::from_millis(5))).unwrap() {
            seen.push((e.command, e.result.map_err(|e| e.raw_os_error())));
        }
    }
    while let Some(e) = ch.dispatch(Some(Duration::ZERO)).unwrap() {
        seen.push((e.command, e.result.map_err(|e| e.raw_os_error())));
    }
    (peer.join().unwrap().0, seen)
}

#[test]
fn a_slow_peer_that_is_given_up_sees_an_end() {
    if !ring() {
        return;
    }
    for flows in [false, true] {
        let (mut ch, _, at) = setup(usual());
        let (mut s, h, _) = connect(&mut ch, at);
        if flows {
            flowing(&mut ch, &mut s, h);
        }
        ch.write(h, vec![7; 64 << 20]).unwrap();
        ch.disconnect(h).unwrap();
        ch.flush().unwrap();
        assert!(ch.dispatch(Some(Duration::from_millis(50))).unwrap().is_none());
        ch.unregister(h).unwrap();
        let (n, seen) = run(&mut ch, reads_to_the_end(s));
        assert!(n < 64 << 20 && seen.is_empty());
    }
}

#[test]
fn a_recv_behind_a_disconnect_does_not_hold_it_up() {
    if !ring() {
        return;
    }
    for round in 0..10 {
        for reads in [false, true] {
            let (mut ch, _, at) = setup(usual());
            let (mut s, h, _) = connect(&mut ch, at);
            flowing(&mut ch, &mut s, h);
            let n = (6 << 20) + round * 100_000;
            ch.write(h, vec![7; n]).unwrap();
            ch.disconnect(h).unwrap();
            ch.flush().unwrap();
            if reads {
                ch.recv(h).unwrap();
                ch.flush().unwrap();
            }
            let (got, seen) = run(&mut ch, reads_to_the_end(s));
            assert_eq!(got, n);
            assert_eq!(seen.len(), if reads { 3 } else { 2 }, "{seen:?}");
            assert!(seen.contains(&(Command::Write, Ok(n))) && seen.contains(&(Command::Disconnect, Ok(0))));
        }
    }
}

#[test]
fn a_write_of_more_than_one_request_is_whole_before_its_end() {
    if !ring() {
        return;
    }
    const N: usize = 0x7fff_f000 + (8 << 20);
    let (mut ch, _, at) = setup(usual());
    let (mut s, h, _) = connect(&mut ch, at);
    flowing(&mut ch, &mut s, h);
    ch.write(h, vec![0; N]).unwrap();
    ch.disconnect(h).unwrap();
    let (got, seen) = run(&mut ch, reads_to_the_end(s));
    assert_eq!((got, seen), (N, vec![(Command::Write, Ok(N)), (Command::Disconnect, Ok(0))]));
}

#[test]
fn a_descriptor_loses_no_bytes() {
    if !ring() {
        return;
    }
    let (mut ch, _, at) = setup(usual());
    let (mut s, h, l) = connect(&mut ch, at);
    flowing(&mut ch, &mut s, h);
    s.write_all(b"before").unwrap();
    let busy = match ch.descriptor(l) {
        Err(error) => error,
        Ok(fd) => {
            // It had not come, and is the descriptor's.
            let mut t = TcpStream::from(fd);
            t.set_read_timeout(Some(LIMIT)).unwrap();
            let mut bytes = [0; 6];
            t.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"before");
            return;
        }
    };
    assert_eq!(busy.raw_os_error(), Some(libc::EBUSY));
    ch.recv(h).unwrap();
    let Data::Received(received) = next(&mut ch).data else { panic!() };
    assert_eq!(ch.bytes(&received), b"before");
    ch.release(received).unwrap();
    let mut t = TcpStream::from(ch.descriptor(l).unwrap());
    s.write_all(b"behind").unwrap();
    ch.unregister(h).unwrap();
    ch.flush().unwrap();
    t.set_read_timeout(Some(LIMIT)).unwrap();
    let mut bytes = [0; 6];
    t.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"behind");
}

#[test]
fn there_is_no_descriptor_of_what_is_ending() {
    if !ring() {
        return;
    }
    let (mut ch, _, at) = setup(usual());
    let (mut s, h, l) = connect(&mut ch, at);
    flowing(&mut ch, &mut s, h);
    ch.write(h, vec![7; 8 << 20]).unwrap();
    ch.disconnect(h).unwrap();
    ch.flush().unwrap();
    assert_eq!(ch.descriptor(l).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    assert_eq!(run(&mut ch, reads_to_the_end(s)).0, 8 << 20);
}

/// Where all places for lightweight sockets are taken, connections wait in the kernel's queue, and none is lost.
#[test]
fn who_finds_no_place_waits() {
    if !ring() {
        return;
    }
    for ahead in [0, 1, 64] {
        let (mut ch, h, at) = setup(Options { lwsockets: 4, accept_ahead: ahead, ..usual() });
        let mut peers: Vec<_> = (0..10).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut sockets = Vec::new();
        for _ in 0..10 {
            let event = next(&mut ch);
            match event.data {
                Data::Accepted(Socket::Light(socket), _) => {
                    sockets.push(socket);
                    assert!(sockets.len() <= 4);
                }
                _ => {
                    assert_eq!(event.result.unwrap_err().raw_os_error(), Some(libc::ENFILE));
                    assert_eq!(sockets.len(), 4);
                    sockets.drain(..2).for_each(|socket| ch.close(socket).unwrap());
                    ch.accept(h, Amount::Endless, true).unwrap();
                    ch.flush().unwrap();
                    peers.drain(..2).for_each(|mut peer| assert_eq!(peer.read(&mut [0]).unwrap(), 0));
                }
            }
        }
        // Those that are left are open.
        peers.iter_mut().for_each(|peer| {
            peer.set_nonblocking(true).unwrap();
            assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        });
    }
}

#[test]
fn a_read_needs_no_buffer_of_the_channels() {
    if !ring() {
        return;
    }
    let (mut ch, _, at) = setup(Options { buffers: 1, ..usual() });
    let (mut sa, a, _) = connect(&mut ch, at);
    let (mut sb, b, _) = connect(&mut ch, at);
    flowing(&mut ch, &mut sb, b);
    sa.write_all(b"held").unwrap();
    ch.recv(a).unwrap();
    let Data::Received(held) = next(&mut ch).data else { panic!() };
    ch.read(b, vec![0; 10]).unwrap();
    sb.write_all(b"data").unwrap();
    let event = next(&mut ch);
    assert_eq!((event.handle, event.result.unwrap()), (b, 4));
    assert!(ch.stats().enters < 1000, "it asks again and again");
    ch.release(held).unwrap();
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    if !ring() {
        return;
    }
    let (mut ch, _, at) = setup(Options { buffers: 32_768, buffer_size: 1 << 20, ..usual() });
    let (_s, h, _) = connect(&mut ch, at);
    ch.recv(h).unwrap();
    // A machine that promises more than it has takes it at its word.
    let event = ch.dispatch(Some(Duration::from_millis(50))).unwrap();
    assert!(event.is_none_or(|event| event.result.unwrap_err().raw_os_error() == Some(libc::ENOMEM)));
}
