//! The generator against servers that do what they should not, over the kernel's loopback.

use super::*;
use crate::load::report::Report;
use crate::load::talk::Fetch;
use crate::load::target::Http;
use crate::net::kernel::Kernel;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// Answers each request of a connection by `answer(request number on it)`; none: never again.
fn server(answer: impl Fn(&mut TcpStream, u32) -> Option<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback listens");
    let address = listener.local_addr().expect("it has one");
    let answer = Arc::new(answer);
    // Ends with the tests' process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.expect("loopback accepts"), answer.clone());
            thread::spawn(move || {
                let mut request = Vec::new();
                let mut byte = [0];
                for number in 0.. {
                    while !request.ends_with(b"\r\n\r\n") {
                        match stream.read(&mut byte) {
                            Ok(1) => request.push(byte[0]),
                            _ => return,
                        }
                    }
                    request.clear();
                    if answer(&mut stream, number).is_none() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Never answers, and keeps the connection.
fn hang() -> Option<()> {
    loop {
        thread::park();
    }
}

fn write(stream: &mut TcpStream, data: &[u8]) -> Option<()> {
    stream.write_all(data).ok()
}

/// A run of one connection at once, without an end of its own, unless `change` says otherwise; ended by `end`.
fn run(address: SocketAddr, end: Option<Duration>, change: impl FnOnce(&mut Plan)) -> (Tally, Report) {
    let minute = Duration::from_secs(60);
    let mut plan = Plan {
        concurrent: 1,
        total: None,
        per_connection: 1,
        hold: false,
        rate: None,
        connect_timeout: minute,
        timeout: minute,
    };
    change(&mut plan);
    let net = Kernel::client(address, Vec::new()).expect("epoll works");
    let shared = Arc::new(Shared::default());
    let mut generator = Generator::new(net, Fetch::new(&Http::at(address, "/"), None), plan, shared.clone());
    let stop = Stop::default();
    let tally = thread::scope(|scope| {
        if let Some(end) = end {
            let (shared, stop) = (&shared, &stop);
            scope.spawn(move || {
                thread::sleep(end);
                shared.end();
                thread::sleep(2 * NAP);
                stop.set();
            });
        }
        generator.run(&stop).expect("epoll works")
    });
    let report = tally.report();
    (tally, report)
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

#[test]
fn requests_that_are_never_answered_are_counted() {
    let address = server(|_, _| hang());
    let (tally, report) = run(address, Some(seconds(1.2)), |plan| plan.concurrent = 8);
    assert!(tally.is_useless() && report.errors.is_empty(), "{report}");
    let unanswered = &report.unanswered;
    assert_eq!((unanswered.requests, unanswered.connects, unanswered.age_us.samples), (8, 0, 8), "{report}");
    assert!(unanswered.oldest_s > 1.0, "{report}");
    assert!(report.to_string().contains("8 requests were still unanswered at the end, the oldest for "), "{report}");
    assert_eq!(report.latency_us.total.samples, 0, "a closed loop has them beside its latencies: {report}");
    let (tally, report) = run(address, None, |plan| (plan.total, plan.timeout) = (Some(2), seconds(0.2)));
    assert_eq!((report.errors["timed out"], tally.unanswered.count()), (2, 0), "{report}");
}

#[test]
fn a_server_that_falls_silent_is_seen() {
    let address = server(|stream, number| if number < 5 { write(stream, ANSWER) } else { hang() });
    let (tally, report) = run(address, Some(seconds(1.5)), |plan| plan.per_connection = 100);
    assert_eq!((report.messages, report.unanswered.requests), (5, 1), "{report}");
    assert!(tally.unanswered.stall().is_some() && !tally.is_useless(), "{report}");
    // One that answers to the end has not, though a request is under way.
    let slow = server(|stream, _| {
        thread::sleep(Duration::from_millis(20));
        write(stream, ANSWER)
    });
    let (tally, report) = run(slow, Some(seconds(1.5)), |plan| plan.per_connection = 1000);
    assert!(report.unanswered.requests == 1 && tally.unanswered.stall().is_none(), "{report}");
}

#[test]
fn an_open_loop_counts_the_age_of_the_unanswered_as_latency() {
    let address = server(|_, _| hang());
    let (tally, report) = run(address, Some(seconds(2.0)), |plan| (plan.concurrent, plan.rate) = (10, Some(20.0)));
    let unanswered = &report.unanswered;
    // Some 40 were due, ten of which may be open.
    assert_eq!(unanswered.requests, 10, "{report}");
    assert!((20..=40).contains(&unanswered.not_started), "{report}");
    assert!(tally.missed_rate() && !report.generator_was_bottleneck, "{report}");
    let total = &report.latency_us.total;
    assert_eq!(total.samples, unanswered.requests + unanswered.not_started, "{report}");
    assert_eq!(report.latency_us.first_byte.samples, 10, "{report}");
    // The first was due 2 s ago, the last just now.
    assert!(total.max > 1.8e6 && total.p50 < 0.8 * total.max && total.min < 0.2 * total.max, "{report}");
}

#[test]
fn connects_that_nobody_answers_are_counted() {
    // A full accept queue lets SYNs go unanswered.
    let listener = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let listener = listener.expect("a socket");
    rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    rustix::net::listen(&listener, 0).expect("it listens");
    let address = rustix::net::getsockname(&listener).expect("it has one");
    let address = SocketAddr::try_from(address).expect("an address");
    let _fills = TcpStream::connect(address).expect("one fits");
    let (tally, report) = run(address, Some(seconds(1.2)), |plan| plan.concurrent = 3);
    assert!(tally.is_useless() && tally.unanswered.stall().is_some(), "{report}");
    assert_eq!((report.unanswered.connects, report.unanswered.requests), (3, 0), "{report}");
    let (_, report) = run(address, Some(seconds(2.0)), |plan| plan.connect_timeout = seconds(0.3));
    assert!(report.errors["connect: timed out"] > 1, "{report}");
}

#[test]
fn a_complete_connection_that_the_server_keeps_is_closed_here() {
    let address = server(|stream, _| write(stream, ANSWER));
    // Minutes, if each end were waited for.
    let (_, report) = run(address, None, |plan| plan.total = Some(5000));
    assert_eq!((report.connections, report.messages, report.ends_outstanding), (5000, 5000, 5000), "{report}");
    assert!(report.errors.is_empty(), "{report}");
}

#[test]
fn a_reset_after_the_whole_answer_is_an_end() {
    let address = server(|stream, _| {
        write(stream, ANSWER)?;
        thread::sleep(Duration::from_millis(5));
        rustix::net::sockopt::set_socket_linger(&*stream, Some(Duration::ZERO)).expect("an option");
        None
    });
    let (_, report) = run(address, None, |plan| plan.total = Some(20));
    assert_eq!((report.connections, report.errors.len(), report.ends_outstanding), (20, 0, 0), "{report}");
    // Within an answer it is none.
    let address = server(|stream, _| {
        write(stream, &ANSWER[..ANSWER.len() - 1])?;
        rustix::net::sockopt::set_socket_linger(&*stream, Some(Duration::ZERO)).expect("an option");
        None
    });
    let (_, report) = run(address, None, |plan| plan.total = Some(20));
    assert_eq!((report.connections, report.errors["reset by the server"]), (0, 20), "{report}");
}

#[test]
fn the_timeout_begins_anew_with_each_request_and_each_part_of_an_answer() {
    let address = server(|stream, number| match number {
        // Slow, but never silent for as long as the timeout.
        0 => ANSWER.chunks(1).try_for_each(|part| {
            thread::sleep(Duration::from_millis(45));
            stream.write_all(part).ok()
        }),
        1..10 => {
            thread::sleep(Duration::from_millis(220));
            write(stream, ANSWER)
        }
        _ => {
            write(stream, &ANSWER[..10])?;
            hang()
        }
    });
    let (_, report) = run(address, None, |plan| {
        (plan.per_connection, plan.total, plan.timeout) = (11, Some(1), seconds(1.5));
    });
    assert_eq!((report.messages, report.errors["timed out"]), (10, 1), "{report}");
}

#[test]
fn bodies_may_have_any_length_but_nothing_follows_them() {
    let address = server(|stream, number| {
        let length = 1 + number as usize;
        write(stream, format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{}", "x".repeat(length)).as_bytes())
    });
    let (_, report) = run(address, None, |plan| (plan.per_connection, plan.total) = (30, Some(2)));
    assert_eq!((report.messages, report.errors.len()), (60, 0), "{report}");
    let address = server(|stream, _| write(stream, &[ANSWER, b"\r\n"].concat()));
    let (_, report) = run(address, None, |plan| plan.total = Some(3));
    assert_eq!(report.errors["bytes follow the response"], 3, "{report}");
}
