//! Connections, over both engines.

mod common;

use std::os::fd::AsFd;
use std::time::Duration;

use channel::{Amount, Buffer, Capabilities, Command, CpuMask, Data, How, Listener, Options, Socket};
use common::{Who, World, bytes, everywhere, light, number, on_engines, ring, stream, usual};

/// Reads `n` bytes of A's end, as B's stream has them from `from` on.
fn expect(w: &mut World, a: channel::Handle, from: usize, n: usize) {
    let mut got = 0;
    while got < n {
        w.a.read(a, vec![0; 65_536.min(n - got)]).unwrap();
        let event = w.next(Who::A);
        assert_eq!(event.command, Command::Read);
        let part = bytes(event);
        assert!(!part.is_empty(), "ended at {got}");
        assert!(part == stream(from + got, part.len()), "near {}", from + got);
        got += part.len();
    }
}

#[test]
fn a_request_and_an_answer() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.a.read(a, vec![0; 100]).unwrap();
        w.b.write(b, b"ping").unwrap();
        let wrote = w.next(Who::B);
        assert_eq!((wrote.command, wrote.cookie, wrote.result.unwrap()), (Command::Write, 2, 4));
        assert!(matches!(wrote.data, Data::Buffer(Buffer::Static(b"ping"))));
        let read = w.next(Who::A);
        assert_eq!((read.command, read.cookie, read.handle), (Command::Read, 1, a));
        assert_eq!(bytes(read), b"ping");
    });
}

/// On every engine the same: it is complete in its turn, and says nothing of the end.
#[test]
fn to_read_nothing_is_no_wait() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        for _ in 0..2 {
            w.a.read(a, Vec::new()).unwrap();
            w.a.readv(a, vec![Vec::new(); 2]).unwrap();
            for _ in 0..2 {
                assert_eq!(w.next(Who::A).result.unwrap(), 0);
            }
            w.a.read(a, vec![0; 10]).unwrap();
            w.a.read(a, Vec::new()).unwrap();
            w.nothing(Who::A);
            w.b.write(b, b"some").unwrap();
            w.next(Who::B).result.unwrap();
            assert_eq!(bytes(w.next(Who::A)), b"some");
            assert_eq!(w.next(Who::A).result.unwrap(), 0);
        }
    });
}

#[test]
fn completions_are_in_order() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        // Reads wait for reads, writes for writes; neither for the other.
        for n in 1..=50 {
            w.a.read(a, vec![0; n]).unwrap();
            w.a.write(a, stream(0, n)).unwrap();
        }
        for n in 1..=50 {
            let event = w.next(Who::A);
            assert_eq!((event.command, event.result.unwrap()), (Command::Write, n));
        }
        w.nothing(Who::A);
        let total = (1..=50).sum::<usize>();
        w.b.write(b, stream(0, total)).unwrap();
        w.next(Who::B).result.unwrap();
        let mut all = Vec::new();
        let mut last = 0;
        while all.len() < total {
            let event = w.next(Who::A);
            let Data::Vec(room) = &event.data else { panic!("{event:?}") };
            assert!(room.len() > last, "a read overtook another");
            last = room.len();
            all.extend(bytes(event));
            if last == 50 {
                break;
            }
        }
        assert!(all == stream(0, all.len()));
    });
}

#[test]
fn a_long_write_is_whole_and_the_next_waits_for_it() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        let total = 20 << 20;
        w.b.write(b, stream(0, total)).unwrap();
        w.b.writev(b, vec![stream(total, 3).into(), Vec::new().into(), stream(total + 3, 70_000).into()]).unwrap();
        w.b.shutdown(b, How::Write).unwrap();
        // Nobody reads: it cannot have gone.
        w.nothing(Who::B);
        expect(&mut w, a, 0, total + 70_003);
        w.a.read(a, vec![0; 10]).unwrap();
        assert_eq!(w.next(Who::A).result.unwrap(), 0, "the end comes behind all");
        let (first, second, third) = (w.next(Who::B), w.next(Who::B), w.next(Who::B));
        assert_eq!((first.command, first.result.unwrap()), (Command::Write, total));
        assert_eq!((second.command, second.result.unwrap()), (Command::Write, 70_003));
        assert_eq!((third.command, third.result.unwrap()), (Command::Disconnect, 0));
        assert!(matches!(second.data, Data::Buffers(all) if all.len() == 3));
    });
}

#[test]
fn vectors() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.b.writev(b, vec![b"one ".into(), b"two ".into(), b"three".into()]).unwrap();
        assert_eq!(w.next(Who::B).result.unwrap(), 13);
        w.a.readv(a, vec![vec![0; 5], Vec::new(), vec![0; 100]]).unwrap();
        let event = w.next(Who::A);
        let n = event.result.unwrap();
        let Data::Vecs(parts) = event.data else { panic!() };
        assert_eq!(parts.concat()[..n], b"one two three"[..n]);
        // Nothing to write is written at once, and in its turn.
        w.b.writev(b, Vec::new()).unwrap();
        w.b.write(b, Vec::new()).unwrap();
        w.b.write(b, b"x").unwrap();
        let results: Vec<usize> = (0..3).map(|_| w.next(Who::B).result.unwrap()).collect();
        assert_eq!(results, [0, 0, 1]);
        let too_many = (0..1025).map(|_| b"x".into()).collect();
        assert_eq!(number(w.b.writev(b, too_many).unwrap_err()), libc::EINVAL);
        assert_eq!(number(w.b.readv(b, vec![Vec::new(); 1025]).unwrap_err()), libc::EINVAL);
    });
}

#[test]
fn an_end_rides_behind_what_was_written() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.b.write(b, b"bye").unwrap();
        w.b.disconnect(b).unwrap();
        assert_eq!(w.next(Who::B).command, Command::Write);
        let end = w.next(Who::B);
        assert_eq!((end.command, end.result.unwrap()), (Command::Disconnect, 0));
        w.a.read(a, vec![0; 10]).unwrap();
        assert_eq!(bytes(w.next(Who::A)), b"bye");
        w.a.read(a, vec![0; 10]).unwrap();
        assert_eq!(w.next(Who::A).result.unwrap(), 0);
        // The handle is still there; the connection is not.
        w.b.write(b, b"more").unwrap();
        assert_eq!(number(w.next(Who::B).result.unwrap_err()), libc::EPIPE);
        w.b.unregister(b).unwrap();
    });
}

#[test]
fn what_is_cancelled_never_comes() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        for _ in 0..10 {
            w.a.read(a, vec![0; 1000]).unwrap();
        }
        w.pump();
        w.a.unregister(a).unwrap();
        assert_eq!(number(w.a.unregister(a).unwrap_err()), libc::EBADF);
        assert_eq!(number(w.a.read(a, vec![0; 10]).unwrap_err()), libc::EBADF);
        // Its connection is closed with it.
        w.b.read(b, vec![0; 10]).unwrap();
        assert!(matches!(w.next(Who::B).result, Ok(0) | Err(_)));
        // The next one has its place, and hears of its own operations alone.
        let (a2, b2) = w.connection(listening);
        assert_ne!(a, a2);
        w.nothing(Who::A);
        w.a.read(a2, vec![0; 10]).unwrap();
        w.b.write(b2, b"new").unwrap();
        assert_eq!(bytes(w.next(Who::A)), b"new");
    });
}

#[test]
fn a_completion_that_was_not_fetched_goes_with_its_handle() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.b.write(b, b"never seen").unwrap();
        w.next(Who::B).result.unwrap();
        w.a.recv(a).unwrap();
        // It is complete, and waits to be fetched.
        for _ in 0..1000 {
            w.a.flush().unwrap();
        }
        w.a.unregister(a).unwrap();
        w.nothing(Who::A);
    });
}

#[test]
fn a_write_is_given_up_half_way() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (_a, b) = w.connection(listening);
        w.b.write(b, vec![7; 50 << 20]).unwrap();
        w.b.write(b, vec![8; 50 << 20]).unwrap();
        w.b.disconnect(b).unwrap();
        w.nothing(Who::B);
        w.b.unregister(b).unwrap();
        w.nothing(Who::B);
    });
}

/// Whoever has those that wait, the channel or the kernel.
#[test]
fn several_are_accepted_and_the_queue_is_told() {
    for accept_ahead in [64, 2, 0] {
        let options = Options { accept_ahead, ..usual() };
        on_engines("", Capabilities::KERNEL, options, several_are_accepted);
    }
}

fn several_are_accepted(mut w: World) {
    let listening = w.listen();
    let to = w.address();
    for cookie in 0..6 {
        let b = w.socket(cookie);
        w.b.connect(b, to).unwrap();
    }
    for _ in 0..6 {
        w.next(Who::B).result.unwrap();
    }
    for queued in [5, 4] {
        w.a.accept(listening, Amount::Of(1), true).unwrap();
        let event = w.next(Who::A);
        assert!(matches!(event.data, Data::Accepted(Socket::Light(_), n) if n == queued), "{event:?}");
    }
    w.a.accept(listening, Amount::Of(3), true).unwrap();
    for queued in [3, 2, 1] {
        let event = w.next(Who::A);
        assert!(matches!(event.data, Data::Accepted(Socket::Light(_), n) if n == queued), "{event:?}");
    }
    w.nothing(Who::A);
    w.a.accept(listening, Amount::Endless, true).unwrap();
    light(w.next(Who::A));
    for _ in 0..5 {
        let b = w.socket(9);
        w.b.connect(b, to).unwrap();
        light(w.next(Who::A));
    }
    assert_eq!(w.a.stats().accepted, 11);
    assert_eq!(number(w.a.accept(listening, Amount::Of(0), true).unwrap_err()), libc::EINVAL);
    w.a.unregister(listening).unwrap();
    w.nothing(Who::A);
}

/// Nothing is accepted before it is asked for.
#[test]
fn nothing_is_accepted_ahead() {
    let options = Options { accept_ahead: 0, ..usual() };
    on_engines("", Capabilities::KERNEL, options, |mut w| {
        let listening = w.listen();
        let to = w.address();
        for cookie in 0..3 {
            let b = w.socket(cookie);
            w.b.connect(b, to).unwrap();
            w.next(Who::B).result.unwrap();
        }
        w.a.accept(listening, Amount::Of(1), true).unwrap();
        light(w.next(Who::A));
        w.nothing(Who::A);
        w.a.accept(listening, Amount::Of(2), true).unwrap();
        light(w.next(Who::A));
        light(w.next(Who::A));
    });
}

#[test]
fn connections_as_descriptors() {
    on_engines("connections_as_descriptors", Capabilities::DESCRIPTORS, usual(), |mut w| {
        let listening = w.listen();
        let to = w.address();
        // Both kinds by turns: what was accepted ahead as one becomes the other.
        for as_light in [false, true, true, false, false, true] {
            let b = w.socket(2);
            w.b.connect(b, to).unwrap();
            w.next(Who::B).result.unwrap();
            w.a.accept(listening, Amount::Of(1), as_light).unwrap();
            let event = w.next(Who::A);
            event.result.unwrap();
            let a = match event.data {
                Data::Accepted(Socket::Fd(fd), _) if !as_light => w.a.register(fd, 1).unwrap(),
                Data::Accepted(Socket::Light(socket), _) if as_light => w.a.register_light(socket, 1).unwrap(),
                other => panic!("{other:?}"),
            };
            w.b.write(b, b"hello").unwrap();
            w.next(Who::B).result.unwrap();
            w.a.read(a, vec![0; 10]).unwrap();
            assert_eq!(bytes(w.next(Who::A)), b"hello");
            let given = w.a.unregister(a).unwrap();
            assert_eq!(given.is_some(), !as_light, "a descriptor is given back, a lightweight socket is closed");
        }
    });
}

#[test]
fn lightweight_to_descriptor() {
    on_engines("lightweight_to_descriptor", Capabilities::DESCRIPTORS, usual(), |mut w| {
        let listening = w.listen();
        let b = w.socket(2);
        let to = w.address();
        w.b.connect(b, to).unwrap();
        w.next(Who::B).result.unwrap();
        w.a.accept(listening, Amount::Of(1), true).unwrap();
        let socket = light(w.next(Who::A));
        let peer = w.a.peer_addr(socket).unwrap().ip().unwrap();
        assert_eq!(peer, w.b.handle_local_addr(b).unwrap().ip().unwrap());
        let a = w.a.register_light(socket, 1).unwrap();
        let fd = w.a.descriptor(socket).unwrap();
        w.a.unregister(a).unwrap();
        w.a.flush().unwrap();
        // The connection lives on in the descriptor.
        rustix::io::write(fd.as_fd(), b"still here").unwrap();
        w.b.read(b, vec![0; 100]).unwrap();
        assert_eq!(bytes(w.next(Who::B)), b"still here");
        assert_eq!(number(w.a.descriptor(socket).unwrap_err()), libc::EBADF);
    });
}

#[test]
fn a_lane_has_no_descriptors() {
    if !ring() {
        return;
    }
    let mut w = World::new(common::Kind::Lane, usual());
    let listening = w.listen();
    let (a, _b) = w.connection(listening);
    let _ = a;
    let socket = w.a.socket(false).unwrap();
    assert_eq!(number(w.a.descriptor(socket).unwrap_err()), libc::EOPNOTSUPP);
    w.a.close(socket).unwrap();
    w.a.accept(listening, Amount::Of(1), false).unwrap();
    let event = w.next(Who::A);
    assert_eq!(number(event.result.unwrap_err()), libc::EOPNOTSUPP);
    let mut kernel = World::new(common::Kind::Uring, usual());
    assert_eq!(number(kernel.a.socket(false).unwrap_err()), libc::EOPNOTSUPP);
}

#[test]
fn nobody_listens() {
    everywhere(|mut w| {
        let listening = w.listen();
        let to = w.address();
        w.a.unregister(listening).unwrap();
        if w.kind == common::Kind::Uring {
            // The kernel's listener is the listener's, and goes with it.
            w.listener.close().unwrap();
        }
        let b = w.socket(2);
        w.b.connect(b, to).unwrap();
        let event = w.next(Who::B);
        assert_eq!((event.command, number(event.result.unwrap_err())), (Command::Connect, libc::ECONNREFUSED));
        // It can be tried again.
        w.b.connect(b, to).unwrap();
        assert_eq!(number(w.next(Who::B).result.unwrap_err()), libc::ECONNREFUSED);
    });
}

#[test]
fn a_reset_is_told() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.b.read(b, vec![0; 10]).unwrap();
        // Closing with bytes unread resets (RFC 9293 3.10.4).
        w.b.write(b, b"unread").unwrap();
        assert_eq!(w.next(Who::B).command, Command::Write);
        w.nothing(Who::A);
        w.a.unregister(a).unwrap();
        let event = w.next(Who::B);
        assert_eq!((event.command, number(event.result.unwrap_err())), (Command::Read, libc::ECONNRESET));
    });
}

/// A buffer that is given back is for who has bytes, however many idle ones asked before; and one that was on its way to who
/// has left is for the next.
#[test]
fn a_free_buffer_finds_who_has_bytes() {
    let options = Options { buffers: 1, buffer_size: 64, completions: 1, ..usual() };
    on_engines("", Capabilities::KERNEL, options, |mut w| {
        let listening = w.listen();
        let ends: Vec<_> = (0..6).map(|_| w.connection(listening)).collect();
        let hold = |w: &mut World, (a, b)| {
            w.b.write(b, b"held").unwrap();
            w.next(Who::B).result.unwrap();
            w.a.recv(a).unwrap();
            let event = w.next(Who::A);
            assert_eq!(event.handle, a);
            let Data::Received(received) = event.data else { panic!() };
            received
        };
        let held = hold(&mut w, ends[0]);
        for (a, _) in &ends[1..] {
            w.a.recv(*a).unwrap();
            w.nothing(Who::A);
        }
        w.b.write(ends[5].1, b"bytes").unwrap();
        w.next(Who::B).result.unwrap();
        w.nothing(Who::A);
        w.a.release(held).unwrap();
        let event = w.next(Who::A);
        assert_eq!((event.handle, event.result.unwrap()), (ends[5].0, 5));
        let Data::Received(held) = event.data else { panic!() };
        // One that leaves, one that ends, and one with bytes: they wait for the same buffer.
        for (_, b) in [ends[1], ends[3]] {
            w.b.write(b, b"bytes").unwrap();
            w.next(Who::B).result.unwrap();
        }
        w.b.disconnect(ends[2].1).unwrap();
        w.next(Who::B).result.unwrap();
        w.a.release(held).unwrap();
        w.a.unregister(ends[1].0).unwrap();
        loop {
            let event = w.next(Who::A);
            if event.handle == ends[3].0 {
                assert_eq!(event.result.unwrap(), 5);
                break;
            }
            assert_eq!((event.handle, event.result.unwrap()), (ends[2].0, 0));
        }
        // Two requests that belong together go through a ring that has hardly room for them.
        w.b.write(ends[4].1, b"last").unwrap();
        w.b.disconnect(ends[4].1).unwrap();
        assert_eq!([w.next(Who::B).command, w.next(Who::B).command], [Command::Write, Command::Disconnect]);
    });
}

#[test]
fn memory_of_the_channel() {
    let options = Options { buffers: 2, buffer_size: 64, ..usual() };
    on_engines("", Capabilities::KERNEL, options, |mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.b.write(b, stream(0, 300)).unwrap();
        w.next(Who::B).result.unwrap();
        for _ in 0..6 {
            w.a.recv(a).unwrap();
        }
        let mut held = Vec::new();
        let mut got = 0;
        while held.len() < 2 {
            let event = w.next(Who::A);
            assert_eq!(event.command, Command::Recv);
            let Data::Received(received) = event.data else { panic!() };
            let part = w.a.bytes(&received);
            assert_eq!(part.len(), event.result.unwrap());
            assert!(part.len() <= 64 && part == stream(got, part.len()));
            got += part.len();
            held.push(received);
        }
        // No memory is left, until some is given back.
        w.nothing(Who::A);
        assert!(w.a.stats().no_buffer > 0);
        while got < 300 {
            let first = held.remove(0);
            w.a.release(first).unwrap();
            let event = w.next(Who::A);
            let Data::Received(received) = event.data else { panic!("{event:?}") };
            let part = w.a.bytes(&received);
            assert!(part == stream(got, part.len()));
            got += part.len();
            held.push(received);
            w.a.recv(a).unwrap();
        }
        held.into_iter().for_each(|received| w.a.release(received).unwrap());
        w.b.disconnect(b).unwrap();
        w.next(Who::B).result.unwrap();
        let end = w.next(Who::A);
        assert_eq!(end.result.unwrap(), 0);
        assert!(matches!(end.data, Data::None), "the end takes no memory");
    });
}

/// Whoever waits for memory gets it when there is some, whatever else happens meanwhile.
#[test]
fn who_waits_for_memory_is_not_forgotten() {
    let options = Options { buffers: 1, buffer_size: 64, ..usual() };
    on_engines("", Capabilities::KERNEL, options, |mut w| {
        let listening = w.listen();
        let pairs: Vec<_> = (0..5).map(|_| w.connection(listening)).collect();
        for (a, b) in &pairs {
            w.b.write(*b, b"x").unwrap();
            w.a.recv(*a).unwrap();
        }
        for _ in &pairs {
            let received = loop {
                let event = w.next(Who::A);
                if let Data::Received(received) = event.data {
                    break received;
                }
            };
            // Other news of those that wait.
            for (a, b) in &pairs {
                w.a.write(*a, b"y").unwrap();
                w.b.write(*b, b"z").unwrap();
            }
            for _ in 0..20 {
                w.pump();
            }
            w.a.release(received).unwrap();
        }
    });
}

#[test]
fn memory_is_given_back_once() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.b.write(b, b"x").unwrap();
        w.a.recv(a).unwrap();
        let Data::Received(received) = w.next(Who::A).data else { panic!() };
        assert_eq!((w.a.bytes(&received), w.b.bytes(&received)), (&b"x"[..], &b""[..]));
        let (at, len) = received.into_raw();
        assert_eq!(len, 1);
        assert_eq!(number(w.a.release_raw(at.wrapping_add(1)).unwrap_err()), libc::EINVAL);
        assert_eq!(number(w.b.release_raw(at).unwrap_err()), libc::EINVAL);
        w.a.release_raw(at).unwrap();
        assert_eq!(number(w.a.release_raw(at).unwrap_err()), libc::EINVAL);
        assert_eq!(number(w.a.release_raw(std::ptr::null()).unwrap_err()), libc::EINVAL);
    });
}

#[test]
fn wrong_handles_are_refused() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        let refused = |result: std::io::Result<()>| assert_eq!(number(result.unwrap_err()), libc::EBADF);
        // Another channel's.
        refused(w.a.read(b, vec![0; 1]));
        refused(w.b.write(a, b"x"));
        refused(w.b.accept(listening, Amount::Of(1), true));
        for bits in [0, 1, u64::MAX, a.to_bits() ^ 64, a.to_bits() ^ 1 << 24, a.to_bits() ^ 1 << 44] {
            let made_up = channel::Handle::from_bits(bits);
            refused(w.a.recv(made_up));
            refused(w.a.disconnect(made_up));
            refused(w.a.unregister(made_up).map(drop));
        }
        // What cannot be done with what there is.
        assert_eq!(number(w.a.read(listening, vec![0; 1]).unwrap_err()), libc::ENOTCONN);
        assert_eq!(number(w.a.accept(a, Amount::Of(1), true).unwrap_err()), libc::EINVAL);
        for number_ in
            [channel::LwSocket::from_number(i32::MAX).unwrap(), channel::LwSocket::from_number(1 << 30).unwrap()]
        {
            let wrong = w.b.close(number_).unwrap_err();
            assert!(matches!(number(wrong), libc::EBADF | libc::EBUSY));
        }
        w.a.unregister(a).unwrap();
        refused(w.a.read(a, vec![0; 1]));
    });
}

#[test]
fn a_lightweight_socket_is_registered_once() {
    everywhere(|mut w| {
        let listening = w.listen();
        let b = w.socket(2);
        let to = w.address();
        w.b.connect(b, to).unwrap();
        w.a.accept(listening, Amount::Of(1), true).unwrap();
        let socket = light(w.next(Who::A));
        assert!(socket.number() >= 1 << 30);
        assert_eq!(number(w.b.register_light(socket, 1).map(|_| ()).unwrap_err_or_ebadf()), libc::EBADF);
        let a = w.a.register_light(socket, 1).unwrap();
        assert_eq!(number(w.a.register_light(socket, 1).unwrap_err()), libc::EEXIST);
        assert_eq!(number(w.a.close(socket).unwrap_err()), libc::EBUSY);
        w.a.unregister(a).unwrap();
        assert_eq!(number(w.a.register_light(socket, 1).unwrap_err()), libc::EBADF);
        assert_eq!(number(w.a.close(socket).unwrap_err()), libc::EBADF);
    });
}

/// On a lane the other channel may well have a socket of the same number.
trait OrEbadf {
    fn unwrap_err_or_ebadf(self) -> std::io::Error;
}

impl OrEbadf for std::io::Result<()> {
    fn unwrap_err_or_ebadf(self) -> std::io::Error {
        match self {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => std::io::Error::from_raw_os_error(libc::EBADF),
            Err(error) => error,
            Ok(()) => panic!("registered"),
        }
    }
}

#[test]
fn a_cookie_can_be_changed() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.a.set_cookie(a, 77).unwrap();
        w.a.read(a, vec![0; 4]).unwrap();
        w.b.write(b, b"x").unwrap();
        assert_eq!(w.next(Who::A).cookie, 77);
    });
}

#[test]
fn masks_do_not_meet() {
    everywhere(|mut w| {
        let (zero, one) = (CpuMask::one(0), CpuMask::one(1));
        let first = w.a.register_listener(w.listener, 1, zero).unwrap();
        let wrong = w.a.register_listener(w.listener, 2, zero).unwrap_err();
        assert_eq!(number(wrong), libc::EBUSY);
        if w.kind == common::Kind::Uring {
            let second = w.b.register_listener(w.listener, 2, one).unwrap();
            w.b.unregister(second).unwrap();
        }
        assert_eq!(number(w.listener.close().unwrap_err()), libc::EBUSY);
        w.a.unregister(first).unwrap();
        w.a.register_listener(w.listener, 1, zero).unwrap();
    });
}

/// One channel with a part and the original, on any engine: the connections of the thread's CPU are the part's, then the
/// original's.
#[test]
fn one_channel_has_a_part_and_the_rest() {
    std::thread::spawn(a_part_and_the_rest).join().unwrap();
}

fn a_part_and_the_rest() {
    common::pin(0);
    for first in [true, false] {
        everywhere(|mut w| {
            let register = |w: &mut World, part: bool| {
                let mask = if part { CpuMask::one(0) } else { CpuMask::NONE };
                let handle = w.a.register_listener(w.listener, u64::from(part), mask).unwrap();
                w.a.accept(handle, Amount::Endless, true).unwrap();
                handle
            };
            let handles = [register(&mut w, first), register(&mut w, !first)];
            let part = handles[usize::from(!first)];
            w.pump();
            let connect = |w: &mut World| {
                let b = w.socket(2);
                let to = w.address();
                w.b.connect(b, to).unwrap();
                w.next(Who::B).result.unwrap();
                b
            };
            for _ in 0..2 {
                connect(&mut w);
                let event = w.next(Who::A);
                assert_eq!(event.cookie, 1, "{:?}", w.kind);
                light(event);
            }
            // One that waits where nobody has asked for it finds the original too.
            w.a.unregister(part).unwrap();
            for _ in 0..2 {
                connect(&mut w);
                let event = w.next(Who::A);
                assert_eq!(event.cookie, 0, "{:?}", w.kind);
                light(event);
            }
            // And the place is the next part's.
            register(&mut w, true);
            w.pump();
            connect(&mut w);
            assert_eq!(w.next(Who::A).cookie, 1, "{:?}", w.kind);
        });
    }
}

/// Everything is given up with what is under way.
#[test]
fn a_channel_ends_with_operations_under_way() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.a.accept(listening, Amount::Endless, true).unwrap();
        w.a.read(a, vec![0; 1 << 20]).unwrap();
        w.a.read(a, vec![0; 1 << 20]).unwrap();
        w.a.write(a, vec![0; 100 << 20]).unwrap();
        w.b.recv(b).unwrap();
        w.pump();
        w.a.write(a, b"not handed over").unwrap();
    });
}

#[test]
fn many_connections_come_and_go() {
    everywhere(|mut w| {
        let listening = w.listen();
        let to = w.address();
        w.a.accept(listening, Amount::Endless, true).unwrap();
        let (mut begun, mut ended, total) = (0, 0, 600);
        let mut clients = std::collections::HashMap::new();
        while ended < total {
            while begun < total && clients.len() < 40 {
                let b = w.socket(begun);
                clients.insert(begun, b);
                w.b.connect(b, to).unwrap();
                w.b.write(b, stream(begun as usize, 100)).unwrap();
                w.b.shutdown(b, How::Write).unwrap();
                w.b.read(b, vec![0; 200]).unwrap();
                begun += 1;
            }
            while let Some(event) = w.a.dispatch(Some(Duration::ZERO)).unwrap() {
                let handle = event.handle;
                match event.command {
                    Command::Accept => {
                        let socket = light(event);
                        let a = w.a.register_light(socket, 0).unwrap();
                        w.a.recv(a).unwrap();
                    }
                    Command::Recv => {
                        event.result.unwrap();
                        let Data::Received(received) = event.data else { panic!("ended too soon") };
                        let bytes = w.a.bytes(&received).to_vec();
                        w.a.release(received).unwrap();
                        w.a.write(handle, bytes).unwrap();
                        w.a.disconnect(handle).unwrap();
                    }
                    Command::Disconnect => drop(w.a.unregister(handle).unwrap()),
                    Command::Write => drop(event.result.unwrap()),
                    other => panic!("{other:?}"),
                }
            }
            while let Some(event) = w.b.dispatch(Some(Duration::ZERO)).unwrap() {
                let (handle, cookie) = (event.handle, event.cookie);
                if event.command == Command::Read {
                    assert!(bytes(event) == stream(cookie as usize, 100));
                    w.b.unregister(handle).unwrap();
                    clients.remove(&cookie);
                    ended += 1;
                } else {
                    event.result.unwrap();
                }
            }
        }
        let stats = w.a.stats();
        assert_eq!(stats.accepted, total);
        assert!(stats.batches < stats.requests, "{stats:?}");
    });
}

/// A port that is left to the engine is chosen once, and told.
#[test]
fn a_port_that_is_chosen_is_told() {
    on_engines("", Capabilities::KERNEL, usual(), |mut w| {
        let mut at = w.address().ip().unwrap();
        at.set_port(0);
        let listener = Listener::at(at.into(), 5).unwrap();
        let handle = w.a.register_listener(listener, 1, CpuMask::NONE).unwrap();
        let chosen = listener.address().unwrap().ip().unwrap();
        assert_ne!(chosen.port(), 0);
        assert_eq!(w.a.handle_local_addr(handle).unwrap().ip().unwrap(), chosen);
        w.a.unregister(handle).unwrap();
        assert_eq!(listener.address().unwrap().ip().unwrap(), chosen);
        listener.close().unwrap();
    });
}

/// Only a file can be read and written anywhere.
#[test]
fn places_of_a_socket() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, _) = w.connection(listening);
        assert_eq!(number(w.a.read_at(a, vec![0; 10], 5).unwrap_err()), libc::ESPIPE);
        assert_eq!(number(w.a.write_at(a, b"x", 0).unwrap_err()), libc::ESPIPE);
        w.nothing(Who::A);
    });
}

/// Reads once into the channel's memory at A.
fn received(w: &mut World, a: channel::Handle) -> Vec<u8> {
    w.a.recv(a).unwrap();
    let event = w.next(Who::A);
    assert_eq!((event.handle, event.command), (a, Command::Recv));
    let Data::Received(received) = event.data else { panic!("{:?}", event.result) };
    let bytes = w.a.bytes(&received).to_vec();
    w.a.release(received).unwrap();
    bytes
}

#[test]
fn bytes_that_nobody_asks_for_starve_nobody() {
    const MUCH: usize = 200_000;
    let options = Options { buffers: 4, buffer_size: 1024, ..usual() };
    on_engines("", Capabilities::KERNEL, options, |mut w| {
        let listening = w.listen();
        let (silent, busy) = (w.connection(listening), w.connection(listening));
        let another = w.connection(listening);
        for (a, b) in [[silent, another, busy]; 3].concat() {
            w.b.write(b, b"once").unwrap();
            w.next(Who::B).result.unwrap();
            assert_eq!(received(&mut w, a), b"once");
        }
        // Much comes that nobody asks for, also for the buffer that the application gives back.
        w.b.write(busy.1, b"held").unwrap();
        w.a.recv(busy.0).unwrap();
        let Data::Received(held) = w.next(Who::A).data else { panic!() };
        w.b.write(silent.1, stream(0, MUCH)).unwrap();
        w.nothing(Who::A);
        w.a.release(held).unwrap();
        w.b.write(another.1, stream(0, MUCH)).unwrap();
        w.nothing(Who::A);
        for _ in 0..20 {
            w.b.write(busy.1, b"again").unwrap();
            assert_eq!(received(&mut w, busy.0), b"again");
        }
        // By either kind of read, all of it in its order.
        let mut got = 0;
        while got < MUCH {
            let bytes = if got.is_multiple_of(2) {
                received(&mut w, silent.0)
            } else {
                w.a.read(silent.0, vec![0; 100]).unwrap();
                let event = w.next(Who::A);
                let n = *event.result.as_ref().unwrap();
                bytes(event)[..n].to_vec()
            };
            assert!(!bytes.is_empty() && bytes == stream(got, bytes.len()), "at {got}");
            got += bytes.len();
        }
    });
}

#[test]
fn what_follows_a_disconnect() {
    everywhere(|mut w| {
        let listening = w.listen();
        let (a, b) = w.connection(listening);
        w.b.write(b, b"request").unwrap();
        w.next(Who::B).result.unwrap();
        assert_eq!(received(&mut w, a), b"request");
        w.a.write(a, b"answer").unwrap();
        w.a.disconnect(a).unwrap();
        for command in [Command::Write, Command::Disconnect] {
            let event = w.next(Who::A);
            assert_eq!((event.command, event.result.is_ok()), (command, true));
        }
        w.b.read(b, vec![0; 100]).unwrap();
        assert_eq!(w.next(Who::B).result.unwrap(), 6);
        w.b.read(b, vec![0; 100]).unwrap();
        assert_eq!(w.next(Who::B).result.unwrap(), 0);
        // A connection that is given the same place is not meant by the handle of the one before.
        let (new, far) = w.connection(listening);
        w.b.write(far, b"other").unwrap();
        w.next(Who::B).result.unwrap();
        w.a.recv(a).unwrap();
        assert_eq!(w.next(Who::A).result.unwrap(), 0);
        w.a.write(a, b"late").unwrap();
        assert_eq!(number(w.next(Who::A).result.unwrap_err()), libc::EPIPE);
        w.a.disconnect(a).unwrap();
        assert_eq!((w.next(Who::A).handle, received(&mut w, new)), (a, b"other".to_vec()));
        w.a.unregister(a).unwrap();
        w.a.write(new, b"answer").unwrap();
        assert_eq!(w.next(Who::A).result.unwrap(), 6);
    });
}

#[test]
fn an_answer_before_the_request_was_read_arrives() {
    everywhere(|mut w| {
        let listening = w.listen();
        for reads in [false, true] {
            let (a, b) = w.connection(listening);
            w.b.write(b, stream(0, 1000)).unwrap();
            w.next(Who::B).result.unwrap();
            if reads {
                w.a.read(a, vec![0; 10]).unwrap();
                assert_eq!(w.next(Who::A).result.unwrap(), 10);
            }
            w.a.write(a, b"too long").unwrap();
            w.a.disconnect(a).unwrap();
            w.next(Who::A).result.unwrap();
            w.next(Who::A).result.unwrap();
            for n in [8, 0] {
                w.b.read(b, vec![0; 100]).unwrap();
                assert_eq!(w.next(Who::B).result.unwrap(), n);
            }
        }
    });
}
