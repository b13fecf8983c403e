//! The other ways to serve, each loaded and checked like the first: plain epoll, a shared listener, io_uring; and resets.

use super::channel::{self, Parts};
use super::tests::load;
use super::*;
use crate::http::fixed::Fixed;
use crate::net::kernel::{self, Kernel, Manner};
use crate::net::uring;
use corelane::channel::Channel;
use std::net::SocketAddr;
use std::thread;

/// Serves on as many threads as there are listeners while `client` runs.
fn beside(
    manner: Manner,
    threads: usize,
    serve: impl Fn(rustix::fd::OwnedFd, &Stop) -> io::Result<Counts> + Sync,
    client: impl FnOnce(SocketAddr),
) -> Counts {
    let any = "127.0.0.1:0".parse().expect("an address");
    let (first, address) = kernel::listen(any, manner).expect("loopback listens");
    let mut listeners = vec![first];
    for _ in 1..threads {
        listeners.push(match manner.shared {
            true => listeners[0].try_clone().expect("a descriptor"),
            false => kernel::listen(address, manner).expect("loopback listens").0,
        });
    }
    let stop = Stop::default();
    thread::scope(|scope| {
        let serving: Vec<_> = listeners.into_iter().map(|listener| scope.spawn(|| serve(listener, &stop))).collect();
        struct StopOnDrop<'a>(&'a Stop);
        impl Drop for StopOnDrop<'_> {
            fn drop(&mut self) {
                self.0.set();
            }
        }
        let guard = StopOnDrop(&stop);
        client(address);
        drop(guard);
        let join = |thread: thread::ScopedJoinHandle<'_, io::Result<Counts>>| thread.join().expect("no panic");
        serving.into_iter().map(join).fold(Counts::default(), |sum, counts| sum.plus(counts.expect("it serves")))
    })
}

/// Short connections, long ones, large answers.
fn work(address: SocketAddr, bytes: u64) {
    for (messages, total) in [(1, 400), (7, 60)] {
        let report = load(address, "/", Some(bytes), |plan| {
            (plan.per_connection, plan.total) = (messages, Some(total));
        });
        assert_eq!((report.connections, report.messages), (total, total * u64::from(messages)), "{report}");
        assert!(report.errors.is_empty(), "{report}");
    }
}

#[test]
fn every_rival_answers_everything() {
    for bytes in [64, 300_000] {
        for (plain, shared) in [(false, false), (true, false), (true, true)] {
            let manner = Manner { plain, shared, reset: false };
            let serve = |listener, stop: &Stop| {
                let mut server = Server::new(Kernel::server(listener, manner)?, Fixed::new(bytes));
                server.run(stop)?;
                Ok(server.counts)
            };
            let counts = beside(manner, 2, serve, |address| work(address, bytes as u64));
            assert_eq!((counts.connections, counts.requests, counts.errors), (460, 820, 0), "{manner:?}");
        }
        let Ok(_) = io_uring::IoUring::new(8) else {
            testing::skip("io_uring is not allowed here");
            continue;
        };
        crate::sys::raise_descriptor_limit();
        let serve = |listener, stop: &Stop| uring::serve(listener, uring::Work::Message(bytes), stop);
        let counts = beside(Manner::default(), 2, serve, |address| work(address, bytes as u64));
        assert_eq!((counts.connections, counts.requests, counts.errors), (460, 820, 0));
        for (batched, light) in [(true, true), (true, false), (false, false)] {
            let parts = Parts { partitioned: false, batched, light };
            let serve = |listener, stop: &Stop| {
                let channel = Channel::uring(parts.options())?;
                channel::serve(
                    channel,
                    parts,
                    bytes,
                    |channel, cookie| Ok(vec![channel.register(listener, cookie)?]),
                    stop,
                )
            };
            let counts = beside(Manner::default(), 2, serve, |address| work(address, bytes as u64));
            assert_eq!((counts.connections, counts.requests, counts.errors), (460, 820, 0), "{parts:?}");
        }
    }
}

#[test]
fn the_ring_takes_requests_in_pieces_and_several_at_once() {
    use std::io::{Read, Write};
    let Ok(_) = io_uring::IoUring::new(8) else { return testing::skip("io_uring is not allowed here") };
    crate::sys::raise_descriptor_limit();
    let serve = |listener, stop: &Stop| uring::serve(listener, uring::Work::Message(3), stop);
    let counts = beside(Manner::default(), 1, serve, |address| {
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        for piece in
            ["GET / HTTP/1.1\r\nHo", "st: a\r\n\r\nGET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n"]
        {
            stream.write_all(piece.as_bytes()).expect("connected");
            thread::sleep(Duration::from_millis(20));
        }
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("an orderly end");
        assert_eq!(answers.matches("\r\n\r\nabc").count(), 3, "{answers}");
        // One that ends its side first is answered all the same.
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n").expect("connected");
        stream.shutdown(std::net::Shutdown::Write).expect("connected");
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("an orderly end");
        assert_eq!(answers.matches("\r\n\r\nabc").count(), 2, "{answers}");
        // One that goes away in the middle of many answers harms nobody.
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.write_all("GET / HTTP/1.1\r\n\r\n".repeat(50).as_bytes()).expect("connected");
        thread::sleep(Duration::from_millis(5));
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket");
        drop(stream);
        // What is no request ends its connection alone.
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.write_all(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n").expect("connected");
        assert_eq!(stream.read(&mut [0; 9]).unwrap_or(0), 0);
    });
    assert_eq!(counts.connections, 4);
    assert!(counts.requests >= 5 && (1..=2).contains(&counts.errors), "{counts:?}");
}

#[test]
fn resets_are_what_was_asked_for() {
    let manner = Manner { reset: true, ..Manner::default() };
    let accept = |address| {
        // The kernel's client delays the handshake's last ACK, for a request that does not come here.
        let report = load(address, "/", None, |plan| (plan.per_connection, plan.total) = (0, Some(40)));
        assert_eq!((report.connections, report.messages, report.errors.len()), (40, 0, 0), "{report}");
        assert!(report.latency_us.connect.p50 > 0.0 && report.latency_us.total.p50 >= report.latency_us.connect.min);
    };
    let counts = beside(manner, 1, |listener, stop| reset::run(Kernel::server(listener, manner)?, stop), accept);
    assert_eq!(counts.connections, 40);
    if io_uring::IoUring::new(8).is_ok() {
        crate::sys::raise_descriptor_limit();
        let serve = |listener, stop: &Stop| uring::serve(listener, uring::Work::Reset, stop);
        assert_eq!(beside(manner, 1, serve, accept).connections, 40);
    }
}

#[test]
fn held_connections_stay() {
    use crate::load::generator::Generator;
    use crate::load::plan::{Plan, Shared};
    use crate::load::talk::Fetch;
    use crate::load::target::Http;
    use std::sync::Arc;
    let serve = |listener, stop: &Stop| {
        let mut server = Server::new(Kernel::server(listener, Manner::default())?, Fixed::new(64));
        server.run(stop)?;
        Ok(server.counts)
    };
    let counts = beside(Manner::default(), 1, serve, |address| {
        let fetch = Fetch::new(&Http::at(address, "/"), Some(64));
        let plan = Plan {
            concurrent: 100,
            total: None,
            per_connection: 2,
            hold: true,
            rate: None,
            connect_timeout: Duration::from_secs(20),
            timeout: Duration::from_secs(20),
        };
        let (shared, stop) = (Arc::new(Shared::default()), Stop::default());
        let report = thread::scope(|scope| {
            let loading = scope.spawn(|| {
                let net = Kernel::client(address, Vec::new()).expect("epoll works");
                Generator::new(net, fetch, plan, shared.clone()).run(&stop).expect("epoll works").report()
            });
            while shared.progress().held < 100 && !loading.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            shared.measure();
            thread::sleep(Duration::from_millis(60));
            shared.end();
            stop.set();
            loading.join().expect("no panic")
        });
        assert_eq!((report.held, report.messages, report.errors.len()), (100, 0, 0), "{report}");
    });
    assert_eq!((counts.connections, counts.requests), (100, 200));
}
