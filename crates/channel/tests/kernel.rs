//! What has a descriptor, in the channels of both engines.

mod common;

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use channel::{Address, Amount, Command, CpuMask, Data, Message, Options};
use common::{Kind, Who, World, bytes, everywhere, light, number, ring, stream, uring, usual};
use rustix::pipe::{PipeFlags, pipe_with};

fn pipe(flags: PipeFlags) -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | flags).unwrap()
}

#[test]
fn pipes() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        for flags in [PipeFlags::empty(), PipeFlags::NONBLOCK] {
            let (read, write) = pipe(flags);
            let (read, write) = (w.a.register(read, 1).unwrap(), w.a.register(write, 2).unwrap());
            w.a.read(read, vec![0; 100]).unwrap();
            w.nothing(Who::A);
            w.a.write(write, b"through").unwrap();
            let (one, two) = (w.next(Who::A), w.next(Who::A));
            let (wrote, was_read) = if one.command == Command::Write { (one, two) } else { (two, one) };
            assert_eq!((wrote.cookie, wrote.result.unwrap()), (2, 7));
            assert_eq!(bytes(was_read), b"through");
            // More than it holds: the rest follows what is read.
            w.a.write(write, stream(0, 300_000)).unwrap();
            let mut got = 0;
            while got < 300_000 {
                w.a.recv(read).unwrap();
                let mut event = w.next(Who::A);
                if event.command == Command::Write {
                    assert_eq!(event.result.unwrap(), 300_000);
                    event = w.next(Who::A);
                }
                let Data::Received(received) = event.data else { panic!("{event:?}") };
                assert!(w.a.bytes(&received) == stream(got, event.result.unwrap()));
                got += w.a.bytes(&received).len();
                w.a.release(received).unwrap();
            }
            w.pump();
            drop(w.a.unregister(write).unwrap().unwrap());
            w.a.read(read, vec![0; 10]).unwrap();
            loop {
                let event = w.next(Who::A);
                if event.command == Command::Read {
                    assert_eq!(event.result.unwrap(), 0, "the end");
                    break;
                }
            }
        }
    });
}

#[test]
fn a_pipe_that_nobody_reads() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        let (read, write) = pipe(PipeFlags::empty());
        drop(read);
        let write = w.a.register(write, 1).unwrap();
        w.a.write(write, b"lost").unwrap();
        assert_eq!(number(w.next(Who::A).result.unwrap_err()), libc::EPIPE);
    });
}

#[test]
fn fifos_files_and_their_places() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        let dir = std::env::temp_dir().join(format!("channel-{}-{:?}", std::process::id(), w.kind));
        std::fs::create_dir_all(&dir).unwrap();
        let fifo = dir.join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let _ = std::fs::remove_file(&fifo);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let both = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        let again = both.try_clone().unwrap();
        let reads = w.a.register(both.into(), 1).unwrap();
        w.a.read(reads, vec![0; 10]).unwrap();
        w.pump();
        (&again).write_all(b"fifo").unwrap();
        assert_eq!(bytes(w.next(Who::A)), b"fifo");

        let path = dir.join("file");
        let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let file = w.a.register(file.into(), 3).unwrap();
        w.a.write(file, stream(0, 100_000)).unwrap();
        w.a.write_at(file, b"AAAA", 50_000).unwrap();
        for n in [100_000, 4] {
            assert_eq!(w.next(Who::A).result.unwrap(), n);
        }
        w.a.read_at(file, vec![0; 8], 49_998).unwrap();
        let mut expected = stream(49_998, 8);
        expected[2..6].copy_from_slice(b"AAAA");
        assert_eq!(bytes(w.next(Who::A)), expected);
        // Its own position is behind what was written there.
        w.a.read(file, vec![0; 10]).unwrap();
        assert_eq!(w.next(Who::A).result.unwrap(), 0);
        let _ = std::fs::remove_dir_all(&dir);
    });
}

/// One that waits for ever hears of a timer, also where the lane sleeps.
#[test]
fn timers() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
        for flags in [TimerfdFlags::empty(), TimerfdFlags::NONBLOCK] {
            let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags | TimerfdFlags::CLOEXEC).unwrap();
            let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
            let soon = Timespec { tv_sec: 0, tv_nsec: 30_000_000 };
            let set = Itimerspec { it_interval: nothing, it_value: soon };
            rustix::time::timerfd_settime(&fd, TimerfdTimerFlags::empty(), &set).unwrap();
            let timer = w.a.register(fd, 5).unwrap();
            w.a.read(timer, vec![0; 8]).unwrap();
            let event = w.a.dispatch(None).unwrap().unwrap();
            assert_eq!((event.cookie, bytes(event)), (5, 1u64.to_ne_bytes().to_vec()));
        }
    });
}

#[test]
fn signals() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        // SAFETY: an empty set, with a signal that this process sends itself; the mask of this thread alone.
        let fd = unsafe {
            use std::os::fd::FromRawFd;
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGUSR2);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            OwnedFd::from_raw_fd(libc::signalfd(-1, &set, libc::SFD_CLOEXEC))
        };
        let signals = w.a.register(fd, 6).unwrap();
        w.a.read(signals, vec![0; 128]).unwrap();
        w.pump();
        // SAFETY: this thread, which blocks it.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        let event = w.next(Who::A);
        let info = bytes(event);
        assert_eq!(info.len(), 128);
        assert_eq!(u32::from_ne_bytes(info[..4].try_into().unwrap()), libc::SIGUSR2 as u32);
    });
}

#[test]
fn unix_sockets() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        let path = std::env::temp_dir().join(format!("channel-{}-{:?}.sock", std::process::id(), w.kind));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        for nonblocking in [false, true] {
            listener.set_nonblocking(nonblocking).unwrap();
            let own = listener.try_clone().unwrap();
            let wrong = w.a.register_part(own.as_fd(), 0, CpuMask::one(0)).unwrap_err();
            assert_eq!(number(wrong), libc::EOPNOTSUPP);
            let listening = w.a.register(own.into(), 1).unwrap();
            w.a.accept(listening, Amount::Of(1), true).unwrap();
            w.nothing(Who::A);
            let fd = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
            let client = w.b.register(fd.unwrap(), 2).unwrap();
            w.b.connect(client, Address::unix(&path).unwrap()).unwrap();
            w.next(Who::B).result.unwrap();
            let socket = light(w.next(Who::A));
            let server = w.a.register_light(socket, 3).unwrap();
            w.b.write(client, stream(0, 1 << 20)).unwrap();
            w.b.disconnect(client).unwrap();
            let mut got = 0;
            loop {
                w.a.read(server, vec![0; 100_000]).unwrap();
                let part = bytes(w.next(Who::A));
                if part.is_empty() {
                    break;
                }
                assert!(part == stream(got, part.len()));
                got += part.len();
            }
            assert_eq!(got, 1 << 20);
            w.pump();
            w.b.unregister(client).unwrap();
            while w.b.dispatch(Some(Duration::ZERO)).unwrap().is_some() {}
            w.a.unregister(listening).unwrap().unwrap();
            w = World::new(w.kind, usual());
        }
        let _ = std::fs::remove_file(&path);
    });
}

/// Two ends of a UNIX socket and of UDP, the first to send.
fn datagrams() -> [(OwnedFd, OwnedFd); 2] {
    let (one, two) = UnixDatagram::pair().unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    other.connect(udp.local_addr().unwrap()).unwrap();
    [(one.into(), two.into()), (other.into(), udp.into())]
}

#[test]
fn messages_stay_messages() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        for (from, to) in datagrams() {
            let (from, to) = (w.a.register(from, 1).unwrap(), w.a.register(to, 2).unwrap());
            for _ in 0..3 {
                w.a.write(from, b"message").unwrap();
            }
            w.a.writev(from, vec![b"in ".into(), b"parts".into()]).unwrap();
            for n in [7, 7, 7, 8] {
                assert_eq!(w.next(Who::A).result.unwrap(), n);
            }
            for _ in 0..3 {
                w.a.read(to, vec![0; 100]).unwrap();
                assert_eq!(bytes(w.next(Who::A)), b"message");
            }
            w.a.recv(to).unwrap();
            let event = w.next(Who::A);
            let Data::Received(received) = event.data else { panic!() };
            assert_eq!(w.a.bytes(&received), b"in parts");
            w.a.release(received).unwrap();
        }
    });
}

/// Of messages that are empty, and that are longer than the memory they are read into.
#[test]
fn messages_that_do_not_fit_are_told_from_those_that_do() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        let kind = rustix::net::SocketType::SEQPACKET;
        let (three, four) =
            rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, rustix::net::SocketFlags::CLOEXEC, None)
                .unwrap();
        for (from, to) in datagrams().into_iter().chain([(three, four)]) {
            let to = w.a.register(to, 2).unwrap();
            for (len, sign) in [(0, Message::Whole), (4096, Message::Whole), (4097, Message::Cut), (9000, Message::Cut)]
            {
                let whole = stream(7, len);
                let part = &whole[..len.min(4096)];
                for _ in 0..4 {
                    rustix::net::send(&from, &whole, rustix::net::SendFlags::empty()).unwrap();
                }
                w.a.recv(to).unwrap();
                w.a.read(to, vec![0; 4096]).unwrap();
                w.a.readv(to, vec![vec![0; 1000], vec![0; 3096]]).unwrap();
                w.a.read_from(to, vec![0; 4096]).unwrap();
                for _ in 0..4 {
                    let event = w.next(Who::A);
                    assert_eq!((event.result.unwrap(), event.message), (part.len(), Some(sign)));
                    match event.data {
                        Data::Received(received) => {
                            assert!(w.a.bytes(&received) == part);
                            w.a.release(received).unwrap();
                        }
                        Data::Vec(bytes) | Data::From(bytes, _) => assert!(bytes[..part.len()] == *part),
                        Data::Vecs(all) => assert!(all.concat()[..part.len()] == *part),
                        Data::None => assert!(part.is_empty()),
                        other => panic!("{other:?}"),
                    }
                }
            }
            // One is taken by a read of nothing.
            for text in [&b"gone"[..], b"next"] {
                rustix::net::send(&from, text, rustix::net::SendFlags::empty()).unwrap();
            }
            w.a.read(to, Vec::new()).unwrap();
            let event = w.next(Who::A);
            assert_eq!((event.result.unwrap(), event.message), (0, Some(Message::Cut)));
            w.a.read(to, vec![0; 10]).unwrap();
            assert_eq!(bytes(w.next(Who::A)), b"next");
        }
        // A stream has no messages, and a read of nothing takes nothing, and waits for nothing.
        let (one, mut two) = UnixStream::pair().unwrap();
        let one = w.a.register(one.into(), 1).unwrap();
        w.a.read(one, Vec::new()).unwrap();
        w.a.readv(one, Vec::new()).unwrap();
        w.a.read(one, vec![0; 3]).unwrap();
        for _ in 0..2 {
            let event = w.next(Who::A);
            assert_eq!((event.result.unwrap(), event.message), (0, None));
        }
        w.nothing(Who::A);
        two.write_all(b"stream").unwrap();
        let event = w.next(Who::A);
        assert_eq!((event.message, bytes(event)), (None, b"str".to_vec()));
    });
}

/// A server that answers whoever asks, as UDP's do.
#[test]
fn datagrams_and_who_sent_them() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let server = std::net::UdpSocket::bind(at).unwrap();
            let clients: Vec<_> = (0..3).map(|_| std::net::UdpSocket::bind(at).unwrap()).collect();
            let to = server.local_addr().unwrap();
            let server = w.a.register(server.into(), 1).unwrap();
            w.a.read_from(server, vec![0; 5]).unwrap();
            w.nothing(Who::A);
            for (i, client) in clients.iter().enumerate() {
                client.send_to(format!("ask {i}, and more").as_bytes(), to).unwrap();
                let event = w.next(Who::A);
                assert_eq!((event.command, event.result.unwrap()), (Command::Read, 5), "cut to its memory");
                let Data::From(bytes, Some(from)) = event.data else { panic!("{:?}", event.data) };
                assert_eq!(bytes, format!("ask {i}").as_bytes());
                assert_eq!(from.ip().unwrap(), client.local_addr().unwrap());
                w.a.write_to(server, bytes, from).unwrap();
                w.a.read_from(server, vec![0; 5]).unwrap();
                let event = w.next(Who::A);
                assert_eq!((event.command, event.result.unwrap()), (Command::Write, 5));
                let mut answer = [0; 10];
                let (n, from) = client.recv_from(&mut answer).unwrap();
                assert_eq!((&answer[..n], from), (format!("ask {i}").as_bytes(), to));
            }
            // Nobody is there to be written to; the one that waits is given up.
            w.a.write(server, b"whom?").unwrap();
            assert_eq!(number(w.next(Who::A).result.unwrap_err()), libc::EDESTADDRREQ);
            w.a.unregister(server).unwrap();
        }
        // UNIX sockets have names, or none.
        let path = std::env::temp_dir().join(format!("corelane-from-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let (named, nameless) = (UnixDatagram::bind(&path).unwrap(), UnixDatagram::unbound().unwrap());
        nameless.send_to(b"nobody", &path).unwrap();
        let named = w.a.register(named.into(), 1).unwrap();
        w.a.read_from(named, vec![0; 10]).unwrap();
        assert!(matches!(w.next(Who::A).data, Data::From(_, None)));
        let other = w.a.register(nameless.into(), 2).unwrap();
        w.a.write_to(other, b"by name", Address::unix(&path).unwrap()).unwrap();
        assert_eq!(w.next(Who::A).result.unwrap(), 7);
        std::fs::remove_file(&path).unwrap();
        let (read, _write) = pipe(PipeFlags::empty());
        let read = w.a.register(read, 3).unwrap();
        assert_eq!(number(w.a.read_from(read, vec![0; 10]).unwrap_err()), libc::ENOTSOCK);
    });
}

#[test]
fn a_descriptor_is_registered_once_and_given_back() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        let (read, write) = pipe(PipeFlags::empty());
        let numbers = (read.as_raw_fd(), write.as_raw_fd());
        let handle = w.a.register(read, 1).unwrap();
        // SAFETY: the descriptor is the handle's.
        assert_eq!(number(unsafe { w.a.register_raw(numbers.0, 1, CpuMask::NONE) }.unwrap_err()), libc::EEXIST);
        // SAFETY: the descriptor is there.
        assert_eq!(number(unsafe { w.a.register_raw(numbers.1, 1, CpuMask::one(0)) }.unwrap_err()), libc::EINVAL);
        for wrong in [-1, 1 << 20] {
            // SAFETY: there is no such descriptor.
            assert_eq!(number(unsafe { w.a.register_raw(wrong, 1, CpuMask::NONE) }.unwrap_err()), libc::EBADF);
        }
        w.a.read(handle, vec![0; 1 << 20]).unwrap();
        w.pump();
        let read = w.a.unregister(handle).unwrap().unwrap();
        assert_eq!(read.as_raw_fd(), numbers.0);
        // It goes on as any other.
        rustix::io::write(&write, b"after").unwrap();
        let mut buf = [0; 10];
        assert_eq!(rustix::io::read(&read, &mut buf).unwrap(), 5);
    });
}

/// Cancelling ends what waits, of every kind, and nothing comes of it.
#[test]
fn whatever_waits_is_cancelled() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        let (read, _write) = pipe(PipeFlags::empty());
        let (quick, _other) = pipe(PipeFlags::NONBLOCK);
        let (one, _two) = UnixStream::pair().unwrap();
        let timer =
            rustix::time::timerfd_create(rustix::time::TimerfdClockId::Monotonic, rustix::time::TimerfdFlags::CLOEXEC);
        for fd in [read, quick, one.into(), timer.unwrap()] {
            let handle = w.a.register(fd, 1).unwrap();
            w.a.read(handle, vec![1; 4096]).unwrap();
            w.a.recv(handle).unwrap();
            w.nothing(Who::A);
            w.a.unregister(handle).unwrap().unwrap();
        }
        w.nothing(Who::A);
    });
}

#[test]
fn time_limits() {
    if !ring() {
        return;
    }
    everywhere(|mut w| {
        assert!(w.a.dispatch(Some(Duration::ZERO)).unwrap().is_none());
        let start = Instant::now();
        assert!(w.a.dispatch(Some(Duration::from_millis(30))).unwrap().is_none());
        assert!(start.elapsed() >= Duration::from_millis(30));
        let (read, _write) = pipe(PipeFlags::empty());
        let handle = w.a.register(read, 1).unwrap();
        w.a.read(handle, vec![0; 10]).unwrap();
        assert!(w.a.dispatch(Some(Duration::from_millis(1))).unwrap().is_none());
    });
}

#[test]
fn a_signal_ends_a_wait() {
    if !ring() {
        return;
    }
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a handler that does nothing; no SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    everywhere(|mut w| {
        let (read, _write) = pipe(PipeFlags::empty());
        let handle = w.a.register(read, 1).unwrap();
        for limit in [None, Some(Duration::from_secs(60))] {
            // With something to hand over, which hides how a wait ends, and without.
            w.a.read(handle, vec![0; 10]).unwrap();
            for _ in 0..2 {
                // SAFETY: this thread, which is there as long as the other is waited for.
                let me = unsafe { libc::pthread_self() };
                let done = std::sync::atomic::AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while !done.load(std::sync::atomic::Ordering::Acquire) {
                            std::thread::sleep(Duration::from_millis(20));
                            // SAFETY: as above.
                            unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                        }
                    });
                    let waited = w.a.dispatch(limit);
                    done.store(true, std::sync::atomic::Ordering::Release);
                    assert_eq!(number(waited.unwrap_err()), libc::EINTR, "{:?}", w.kind);
                });
            }
        }
    });
}

/// The kernel's ring of completions is too short for what comes at once: nothing is lost.
#[test]
fn more_completions_than_fit() {
    if !ring() {
        return;
    }
    let options = Options { completions: 4, batch: 4096, ..usual() };
    let mut channel = uring(options).unwrap();
    let mut ends = Vec::new();
    for i in 0..200 {
        let (read, write) = pipe(PipeFlags::empty());
        let handle = channel.register(read, i).unwrap();
        channel.read(handle, vec![0; 8]).unwrap();
        ends.push(write);
    }
    channel.flush().unwrap();
    for (i, end) in ends.iter().enumerate() {
        rustix::io::write(end, &(i as u64).to_ne_bytes()).unwrap();
    }
    let mut seen = [false; 200];
    for _ in 0..200 {
        let event = channel.dispatch(Some(Duration::from_secs(10))).unwrap().expect("a completion was lost");
        let cookie = event.cookie;
        assert_eq!(bytes(event), cookie.to_ne_bytes());
        assert!(!std::mem::replace(&mut seen[cookie as usize], true), "twice");
    }
    assert!(channel.stats().overflows > 0);
}

/// A batch is many times as long as the kernel's queue: each completion comes once, and those of a handle in order.
#[test]
fn a_batch_that_is_longer_than_the_queue() {
    if !ring() {
        return;
    }
    const PAIRS: u64 = 60;
    const EACH: u8 = 6;
    for completions in [1, 2, 4, 16] {
        let options = Options { completions, batch: 4096, ..usual() };
        let mut channel = uring(options).unwrap();
        let mut pairs = Vec::new();
        for i in 0..PAIRS {
            let (a, b) = UnixStream::pair().unwrap();
            pairs.push([channel.register(a.into(), 2 * i).unwrap(), channel.register(b.into(), 2 * i + 1).unwrap()]);
        }
        for n in 0..EACH {
            for (i, [a, b]) in pairs.iter().enumerate() {
                channel.write(*a, vec![n; 1 + usize::from(n)]).unwrap();
                // Some wait for what is written, some have it at once, and some write the other way too.
                match i % 3 {
                    0 => channel.read(*b, vec![0; 1 + usize::from(n)]).unwrap(),
                    1 => channel.write(*b, vec![n; 1 + usize::from(n)]).unwrap(),
                    _ => {}
                }
            }
        }
        let (mut next, mut all) = (vec![0; 2 * PAIRS as usize], 0);
        while let Some(event) = channel.dispatch(Some(Duration::from_millis(200))).unwrap() {
            let place = event.cookie as usize;
            let n: u8 = next[place];
            assert_eq!(event.result.as_ref().unwrap(), &(1 + usize::from(n)), "{completions}: {event:?}");
            match event.data {
                Data::Buffer(bytes) => assert!(bytes.iter().all(|byte| *byte == n)),
                Data::Vec(bytes) => assert!(bytes.iter().all(|byte| *byte == n)),
                other => panic!("{other:?}"),
            }
            next[place] += 1;
            all += 1;
        }
        let per_pair = |i| if i % 3 == 2 { 1 } else { 2 };
        assert_eq!(all, (0..PAIRS).map(per_pair).sum::<u64>() * u64::from(EACH), "{completions}");
        assert!(next.iter().all(|n| [0, EACH].contains(n)), "{next:?}");
    }
}

#[test]
fn requests_go_in_batches() {
    if !ring() {
        return;
    }
    let mut channel = uring(Options { batch: 10, ..usual() }).unwrap();
    let ends: Vec<_> = (0..25).map(|_| pipe(PipeFlags::empty())).collect();
    let mut writes = Vec::new();
    for (i, (read, write)) in ends.into_iter().enumerate() {
        writes.push(write);
        let handle = channel.register(read, i as u64).unwrap();
        channel.read(handle, vec![0; 8]).unwrap();
        let batches = channel.stats().batches;
        assert_eq!(batches, (i as u64 + 1) / 10, "after {} requests", i + 1);
    }
    channel.flush().unwrap();
    let stats = channel.stats();
    assert_eq!((stats.batches, stats.requests, stats.enters), (3, 25, 3));
    channel.flush().unwrap();
    assert_eq!(channel.stats().enters, 3, "there was nothing to hand over");
    for bad in [
        Options { batch: 0, ..usual() },
        Options { buffers: 3, ..usual() },
        Options { buffer_size: 1, ..usual() },
        Options { lwsockets: 0, ..usual() },
    ] {
        assert_eq!(number(uring(bad).err().unwrap()), libc::EINVAL);
    }
    let _ = Kind::Uring;
}
