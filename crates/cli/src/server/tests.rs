//! The server and the generator against each other, over the kernel's loopback.

use super::*;
use crate::http::files::Files;
use crate::http::fixed::Fixed;
use crate::http::site::{Show, Site};
use crate::load::generator::Generator;
use crate::load::plan::{Plan, Shared};
use crate::load::report::Report;
use crate::load::talk::Fetch;
use crate::load::target::Http;
use crate::net::kernel::{self, Kernel, Manner};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

/// A listener of the kernel's, and where it is.
fn on_loopback() -> (OwnedFd, SocketAddr) {
    let any = "127.0.0.1:0".parse().expect("an address");
    kernel::listen(any, Manner::default()).expect("loopback listens")
}

/// Takes its connections; on the thread that does.
fn taking(listener: OwnedFd) -> Kernel {
    Kernel::server(listener, Manner::default()).expect("epoll works")
}

/// Serves in another thread while `client` runs; what the server counted.
fn with_server<H: Handler>(handler: impl FnOnce() -> H + Send, client: impl FnOnce(SocketAddr)) -> Counts {
    with_timeouts(&Limits::default().timeouts, handler, client)
}

fn with_timeouts<H: Handler>(
    timeouts: &[Duration; 4],
    handler: impl FnOnce() -> H + Send,
    client: impl FnOnce(SocketAddr),
) -> Counts {
    let (tell, told) = std::sync::mpsc::channel();
    let stop = Stop::default();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (listener, address) = on_loopback();
            let net = taking(listener);
            tell.send(address).expect("the test waits");
            let limits = Limits { timeouts: *timeouts, ..Limits::default() };
            let mut server = Server::with_limits(net, handler(), limits);
            server.run(&stop).expect("epoll works");
            server.counts
        });
        struct StopOnDrop<'a>(&'a Stop);
        impl Drop for StopOnDrop<'_> {
            fn drop(&mut self) {
                self.0.set();
            }
        }
        let guard = StopOnDrop(&stop);
        client(told.recv().expect("the server started"));
        drop(guard);
        server.join().expect("the server does not panic")
    })
}

pub fn load(address: SocketAddr, path: &str, length: Option<u64>, change: impl FnOnce(&mut Plan)) -> Report {
    let fetch = Fetch::new(&Http::at(address, path), length);
    let mut plan = Plan {
        concurrent: 20,
        total: Some(500),
        per_connection: 1,
        hold: false,
        rate: None,
        connect_timeout: Duration::from_secs(20),
        timeout: Duration::from_secs(20),
    };
    change(&mut plan);
    let net = Kernel::client(address, Kernel::loopback_sources(0, 3)).expect("epoll works");
    let mut generator = Generator::new(net, fetch, plan, Arc::new(Shared::default()));
    generator.run(&Stop::default()).expect("epoll works").report()
}

/// Sends, ends sending, and reads to the end.
fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(request).expect("it takes requests");
    stream.shutdown(Shutdown::Write).expect("connected");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an orderly end");
    answer
}

#[test]
fn short_and_long_connections_all_complete() {
    let counts = with_server(
        || Fixed::new(64),
        |address| {
            let report = load(address, "/", None, |_| {});
            assert_eq!((report.connections, report.messages, report.errors.len()), (500, 500, 0), "{report}");
            let report = load(address, "/", None, |plan| (plan.per_connection, plan.total) = (7, Some(100)));
            assert_eq!((report.connections, report.messages, report.errors.len()), (100, 700, 0), "{report}");
            let report = load(address, "/", None, |plan| plan.rate = Some(5000.0));
            assert_eq!((report.connections, report.errors.len()), (500, 0), "{report}");
        },
    );
    assert_eq!((counts.connections, counts.requests), (1100, 1700));
    assert_eq!((counts.errors, counts.timeouts), (0, 0));
}

#[test]
fn large_answers_pass_through_full_buffers() {
    with_server(
        || Fixed::new(3_000_000),
        |address| {
            let report = load(address, "/", Some(3_000_000), |plan| {
                (plan.total, plan.concurrent, plan.per_connection) = (Some(12), 4, 2);
            });
            assert_eq!((report.messages, report.errors.len()), (24, 0), "{report}");
        },
    );
}

#[test]
fn wrong_answers_are_found() {
    with_server(
        || Fixed::new(64),
        |address| {
            let report = load(address, "/", Some(65), |_| {});
            assert_eq!((report.connections, report.errors["the body is not as long as --length says"]), (0, 500));
        },
    );
    let gone: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let report = load(gone, "/", None, |plan| plan.total = Some(10));
    assert_eq!((report.connections, report.errors["connection refused"]), (0, 10));
}

#[test]
fn a_closed_loop_ends_where_nobody_listens() {
    let gone: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let report = load(gone, "/", None, |plan| plan.total = Some(100_000));
    let failed = report.errors["connection refused"];
    assert!((100..1000).contains(&failed) && report.connections == 0, "{report}");
    // An open loop keeps its rate.
    let report = load(gone, "/", None, |plan| (plan.total, plan.rate) = (Some(1000), Some(100_000.0)));
    assert_eq!(report.errors["connection refused"], 1000, "{report}");
}

#[test]
fn files_arrive_whole() {
    let dir = std::env::temp_dir().join(format!("corelane-cli-server-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let want: Vec<u8> = (0..2_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(dir.join("big"), &want).expect("a file");
    let site = || Site::new(Files::open(&dir).expect("it opens"), Show::default(), SystemTime::now());
    with_server(site, |address| {
        let answer = exchange(address, b"GET /big HTTP/1.1\r\nHost: a\r\n\r\nGET /none HTTP/1.1\r\nHost: a\r\n\r\n");
        let end = crate::http::head::end_of_head(&answer, 0).expect("a head");
        assert!(answer[end..].starts_with(&want));
        assert!(answer[end + want.len()..].starts_with(b"HTTP/1.1 404 Not Found\r\n"));
        let report = load(address, "/none", None, |plan| plan.total = Some(5));
        assert_eq!(report.errors["status 404"], 5);
    });
    std::fs::remove_dir_all(&dir).expect("it was there");
}

/// A client that sends all of its request before it reads learns why it is refused: what is asked for counts before the length.
#[test]
fn a_refused_upload_is_read_on_and_its_answer_arrives() {
    let dir = std::env::temp_dir().join(format!("corelane-cli-upload-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    std::fs::write(dir.join("file"), "x").expect("a file");
    let site = || Site::new(Files::open(&dir).expect("it opens"), Show::default(), SystemTime::now());
    let counts = with_server(site, |address| {
        let upload = |head: &str, bytes: usize| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            let head = format!("{head} HTTP/1.1\r\nHost: a\r\nContent-Length: {bytes}\r\n\r\n");
            let all = [head.as_bytes(), &vec![0; bytes]].concat();
            stream.write_all(&all).expect("the whole request is taken");
            stream.shutdown(Shutdown::Write).expect("connected");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an orderly end");
            answer
        };
        for bytes in [200_000, 8_000_000] {
            let answer = upload("POST /file", bytes);
            assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("\r\nAllow: GET, HEAD\r\n"), "{answer}");
            assert!(upload("GET /none", bytes).starts_with("HTTP/1.1 404 "));
            assert!(upload("GET /file", bytes).starts_with("HTTP/1.1 413 "));
        }
    });
    assert_eq!((counts.requests, counts.errors), (6, 0));
    std::fs::remove_dir_all(&dir).expect("it was there");
}

#[test]
fn a_stopping_server_finishes_what_it_began() {
    let mut taken = Vec::new();
    let mut stream = None;
    with_server(
        || Fixed::new(5_000_000),
        |address| {
            let mut client = TcpStream::connect(address).expect("it listens");
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("it takes requests");
            let mut some = vec![0; 1000];
            client.read_exact(&mut some).expect("the answer began");
            taken = some;
            let reader = thread::spawn(move || {
                let mut rest = Vec::new();
                client.read_to_end(&mut rest).map(|_| rest)
            });
            stream = Some(reader);
        },
    );
    let rest = stream.expect("it ran").join().expect("no panic").expect("an orderly end");
    let end = crate::http::head::end_of_head(&taken, 0).expect("a head");
    assert_eq!(taken.len() + rest.len() - end, 5_000_000);
}

/// A restart refuses nobody for as long as somebody takes a slow answer.
#[test]
fn a_stopping_server_takes_connections_while_it_finishes_others() {
    let stop = Stop::default();
    let (listener, address) = on_loopback();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut server = Server::new(taking(listener), Fixed::new(50_000_000));
            server.run(&stop).expect("epoll works");
            server.counts
        });
        let get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let begin = || {
            let mut client = TcpStream::connect(address).expect("it listens");
            client.write_all(get).expect("it takes requests");
            client.read_exact(&mut [0; 1000]).expect("the answer began");
            client
        };
        let end = |mut client: TcpStream| io::copy(&mut client, &mut io::sink()).expect("an orderly end");
        let mut idle = TcpStream::connect(address).expect("it listens");
        idle.write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").expect("it takes requests");
        assert!(idle.read(&mut [0; 1000]).expect("an answer") > 0);
        let slow = begin();
        stop.set();
        // The one that is idle hears of the stop.
        assert_eq!(idle.read(&mut [0; 10]).expect("an orderly end"), 0);
        assert!(end(begin()) > 49_000_000, "a new one is served whole, and then closed");
        assert!(end(slow) > 49_000_000);
        assert_eq!(server.join().expect("no panic").errors, 0);
    });
}

/// Nor for as long as peers take to acknowledge the end of idle connections.
#[test]
fn a_stopping_server_takes_connections_while_idle_ones_end() {
    let ask = |address| {
        let mut client = TcpStream::connect(address)?;
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        let mut answer = [0; 12];
        client.read_exact(&mut answer)?;
        assert_eq!(&answer, b"HTTP/1.1 200");
        Ok::<_, io::Error>(client)
    };
    // The server takes them for a short while; on a busy machine the client may come after it.
    let in_time = |_| {
        let stop = Stop::default();
        let (listener, address) = on_loopback();
        let server = {
            let stop = stop.clone();
            thread::spawn(move || Server::new(taking(listener), Fixed::new(1)).run(&stop).expect("epoll works"))
        };
        let mut idle = ask(address).expect("it serves");
        stop.set();
        io::copy(&mut idle, &mut io::sink()).expect("an orderly end");
        let answered = ask(address).is_ok();
        server.join().expect("no panic");
        answered
    };
    assert!((0..20).any(in_time));
}

/// Short for one timeout, long for the others.
fn only(list: u8) -> [Duration; 4] {
    let mut all = [Duration::from_secs(600); 4];
    all[usize::from(list)] = Duration::from_millis(30);
    all
}

#[test]
fn a_slow_head_is_told_408() {
    let counts = with_timeouts(
        &only(HEAD),
        || Fixed::new(1),
        |address| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(b"GET / HTTP/1.1\r\nHost:").expect("it takes requests");
            let mut answer = Vec::new();
            // The client's own end comes before the lingering server's.
            let mut first = [0; 12];
            stream.read_exact(&mut first).expect("an answer");
            assert_eq!(&first, b"HTTP/1.1 408");
            stream.shutdown(Shutdown::Write).expect("connected");
            stream.read_to_end(&mut answer).expect("an orderly end");
        },
    );
    assert_eq!((counts.timeouts, counts.errors), (1, 0));
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    let counts = with_timeouts(
        &only(IDLE),
        || Fixed::new(0),
        |address| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("it takes requests");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an orderly end");
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
        },
    );
    assert_eq!((counts.requests, counts.timeouts), (1, 1));
}

#[test]
fn a_client_that_takes_nothing_is_reset() {
    let counts = with_timeouts(
        &only(WRITE),
        || Fixed::new(50_000_000),
        |address| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("it takes requests");
            // Takes nothing until the reset shows that the server has given up.
            while stream.take_error().expect("a socket").is_none() {
                thread::sleep(Duration::from_millis(5));
            }
        },
    );
    assert_eq!(counts.timeouts, 1);
}

/// One connection of which the test says what comes in and how much room there is; time passes as the test says.
#[derive(Default)]
struct Fake {
    input: Vec<u8>,
    room: usize,
    aborted: bool,
}

impl Net for Fake {
    type Stream = ();

    fn accept(&mut self, _: usize) -> io::Result<Option<()>> {
        Ok(None)
    }

    fn stop_listening(&mut self) {}

    fn connect(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn connected(&mut self, (): &()) -> io::Result<()> {
        Ok(())
    }

    fn watch(&mut self, (): &(), _: u64) -> io::Result<()> {
        Ok(())
    }

    fn read(&mut self, (): &(), buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.len().min(buffer.len());
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        buffer[..n].copy_from_slice(&self.input[..n]);
        self.input.drain(..n);
        Ok(n)
    }

    fn write(&mut self, (): &(), data: &[u8], _: bool) -> io::Result<usize> {
        let n = data.len().min(self.room);
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.room -= n;
        Ok(n)
    }

    fn shutdown(&mut self, (): &()) -> io::Result<()> {
        Ok(())
    }

    fn close(&mut self, (): ()) {}

    fn abort(&mut self, (): ()) {
        self.aborted = true;
    }

    fn wait(&mut self, _: &mut Vec<Ready>, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}

/// A server in the middle of a long answer whose client has taken nothing that needed room.
fn answering() -> Server<Fake, Fixed> {
    let mut server = Server::new(Fake { room: 100_000, ..Fake::default() }, Fixed::new(50_000_000));
    server.net.input.extend_from_slice(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    server.welcome(());
    assert_eq!((server.open(), server.net.room), (1, 0));
    server
}

/// After `seconds` there is room for so many bytes, and `input` has come; the network tells of it.
fn after<H: Handler>(server: &mut Server<Fake, H>, seconds: u64, input: &[u8], room: usize) {
    server.now += Duration::from_secs(seconds);
    server.net.input.extend_from_slice(input);
    server.net.room = room;
    server.wake(Ready { key: 0, read: !input.is_empty(), write: room > 0, ended: false });
    server.expire();
}

#[test]
fn what_a_client_sends_is_no_progress_of_its_answer() {
    let mut server = answering();
    for _ in 0..2 {
        after(&mut server, 20, b"x", 0);
        assert!(!server.net.aborted);
    }
    after(&mut server, 20, b"x", 0);
    assert!(server.net.aborted, "it took nothing for a minute");
    assert_eq!((server.counts.timeouts, server.open()), (1, 0));
}

#[test]
fn a_client_that_takes_an_answer_in_drips_is_reset() {
    let mut server = answering();
    // 100 bytes a second are fewer than the least rate.
    for _ in 0..5 {
        after(&mut server, 10, b"", 1000);
        assert!(!server.net.aborted);
    }
    after(&mut server, 10, b"", 1000);
    assert!(server.net.aborted && server.counts.timeouts == 1);
    // One that takes more goes on for as long as it takes.
    let mut server = answering();
    for _ in 0..100 {
        after(&mut server, 10, b"", 3000);
    }
    assert!(!server.net.aborted && server.open() == 1);
    // And the drip may be allowed.
    let mut server = answering();
    server.limits.least_rate = 0;
    for _ in 0..100 {
        after(&mut server, 50, b"", 1);
    }
    assert!(!server.net.aborted);
}

#[test]
fn room_that_was_not_announced_is_looked_for_before_a_client_is_reset() {
    let mut server = answering();
    server.now += Duration::from_secs(61);
    server.net.room = 30_000;
    server.expire();
    assert!(!server.net.aborted && server.net.room == 0);
    server.now += Duration::from_secs(61);
    server.expire();
    assert!(server.net.aborted && server.counts.timeouts == 1);
}

/// A server whose client was refused, and may send more.
fn lingering() -> Server<Fake, Fixed> {
    let mut server = Server::new(Fake { room: 100_000, ..Fake::default() }, Fixed::new(1));
    server.net.input.extend_from_slice(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n");
    server.welcome(());
    assert_eq!((server.counts.requests, server.open()), (1, 1));
    server
}

#[test]
fn a_refused_client_that_goes_on_is_read_for_half_a_minute() {
    let mut server = lingering();
    for second in (4..30).step_by(4) {
        after(&mut server, 4, b"more", 0);
        assert!(server.open() == 1 && server.net.input.is_empty(), "{second} s");
    }
    after(&mut server, 4, b"more", 0);
    assert_eq!((server.open(), server.counts.timeouts, server.counts.errors), (0, 0, 0));
    // Nor does one stay that sends nothing, whatever room it tells of.
    let mut server = lingering();
    after(&mut server, 4, b"", 1);
    assert_eq!(server.open(), 1);
    after(&mut server, 2, b"", 0);
    assert_eq!(server.open(), 0);
}

#[test]
fn a_refused_client_is_read_a_part_in_each_turn() {
    let mut server = lingering();
    let whole = 3 * linger::EACH + 1;
    after(&mut server, 1, &vec![0; whole], 0);
    for left in [2, 1, 0] {
        assert_eq!(server.net.input.len(), left * linger::EACH + 1);
        assert!(server.lingering.has_unread());
        server.turn().expect("it waits");
    }
    assert!(server.net.input.is_empty() && !server.lingering.has_unread() && server.open() == 1);
}

/// So many that memory is bounded; who was silent for longest goes.
#[test]
fn refused_clients_are_bounded_in_number() {
    let mut server = lingering();
    server.close(0);
    let come = |server: &mut Server<Fake, Fixed>, clients: usize| {
        for _ in 0..clients {
            server.now += Duration::from_millis(1);
            server.net.room = 100_000;
            server.net.input.extend_from_slice(b"\0");
            server.welcome(());
        }
    };
    come(&mut server, linger::MAX + 10);
    assert_eq!(server.open(), linger::MAX);
    server.now += Duration::from_secs(5);
    server.expire();
    assert_eq!(server.open(), 0);
    come(&mut server, linger::MAX);
    assert_eq!(server.open(), linger::MAX, "those that have gone do not count");
}
