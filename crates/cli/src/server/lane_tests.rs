//! The server on a lane, fetched from over the memory wire.

use super::channel::Parts;
use super::*;
use crate::http::files::Files;
use crate::http::reader::Reader;
use crate::http::site::{Show, Site};
use crate::load::generator::Generator;
use crate::load::plan::{Plan, Shared};
use crate::load::talk::Fetch;
use crate::load::target::Http;
use crate::net::lane::OnLane;
use corelane::channel::{Address, Channel, CpuMask, Listener};
use corelane::{Config, Engine, Lane, Model};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

const SERVER: &str = "10.0.0.1:80";

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("corelane-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn noise(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Sends requests on one connection, gives status and body of each answer.
fn fetch(lane: &Lane, requests: &[&str]) -> Vec<(u16, Vec<u8>)> {
    let address: SocketAddr = SERVER.parse().expect("an address");
    let stream = lane.connect(address).expect("it listens");
    let all: String = requests.iter().map(|request| format!("{request}\r\nHost: a\r\n\r\n")).collect();
    assert_eq!(stream.write(all.as_bytes()).expect("room"), all.len());
    let (mut answers, mut reader, mut buffer) = (Vec::new(), Reader::default(), vec![0; 100_000]);
    let mut body = Vec::new();
    while answers.len() < requests.len() {
        let n = stream.read(&mut buffer).expect("an answer");
        assert_ne!(n, 0, "closed after {} answers", answers.len());
        let mut rest = &buffer[..n];
        while !rest.is_empty() {
            let bodiless = requests[answers.len()].starts_with("HEAD");
            let used = reader.feed(rest, bodiless, &mut |bytes| body.extend_from_slice(bytes)).expect("well-formed");
            rest = &rest[used..];
            if reader.is_done() {
                answers.push((reader.status, std::mem::take(&mut body)));
                reader.next();
            }
        }
    }
    answers
}

fn over_the_wire(model: Model, loss: f64, dir: &TempDir, client: impl FnOnce(&Lane)) -> Counts {
    let end = |address| Config { model, ..Config::memory(address).expect("a good address") };
    let (mut a, b) = (end("10.0.0.1/24"), end("10.0.0.2/24"));
    a.impairment.loss = loss;
    let (mut server, mut other) = Engine::memory_pair(&a, &b).expect("memory");
    let handle = server.take_lane(0).expect("a lane");
    let stop = Stop::default();
    let (tell, told) = std::sync::mpsc::channel();
    let counts = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let lane = handle.attach().expect("a lane");
            let mut net = OnLane::new(lane.clone()).expect("a poller");
            net.listen(SERVER.parse().expect("an address")).expect("it listens");
            let files = Files::open(&dir.0).expect("the directory opens");
            tell.send(()).expect("the test waits");
            let mut server = Server::new(net, Site::new(files, Show::default(), SystemTime::now()));
            server.run(&stop).expect("the lane works");
            lane.drain(Duration::from_millis(200));
            server.counts
        });
        struct StopOnDrop<'a>(&'a Stop);
        impl Drop for StopOnDrop<'_> {
            fn drop(&mut self) {
                self.0.set();
            }
        }
        let guard = StopOnDrop(&stop);
        told.recv().expect("the server started");
        let lane = other.take_lane(0).expect("a lane").attach().expect("a lane");
        client(&lane);
        lane.drain(Duration::from_millis(200));
        drop(guard);
        serving.join().expect("the server does not panic")
    });
    other.shutdown();
    server.shutdown();
    counts
}

fn files_arrive(model: Model, loss: f64) {
    let dir = TempDir::new(&format!("lane-{model:?}-{loss}"));
    std::fs::write(dir.0.join("index.html"), "<p>home").expect("a file");
    std::fs::write(dir.0.join("small"), noise(50_000)).expect("a file");
    std::fs::write(dir.0.join("large"), noise(3_000_000)).expect("a file");
    let counts = over_the_wire(model, loss, &dir, |lane| {
        let answers = fetch(
            lane,
            &[
                "GET / HTTP/1.1",
                "GET /large HTTP/1.1",
                "HEAD /large HTTP/1.1",
                "GET /none HTTP/1.1",
                "GET /large HTTP/1.1\r\nRange: bytes=1000000-1999999",
                "GET /small HTTP/1.1",
                // The last: it ends the connection.
                "GET /%2e%2e/etc/passwd HTTP/1.1",
            ],
        );
        let (large, small) = (noise(3_000_000), noise(50_000));
        let bodies: [(u16, Option<&[u8]>); 7] = [
            (200, Some(b"<p>home")),
            (200, Some(&large)),
            (200, Some(b"")),
            (404, None),
            (206, Some(&large[1_000_000..2_000_000])),
            (200, Some(&small)),
            (400, None),
        ];
        for (at, ((status, body), (want_status, want))) in answers.iter().zip(bodies).enumerate() {
            assert_eq!(*status, want_status, "answer {at}");
            assert!(want.is_none_or(|want| want == body), "answer {at} differs");
        }
        assert_eq!(answers.len(), 7);
    });
    assert_eq!((counts.connections, counts.requests, counts.errors), (1, 7, 0));
}

#[test]
fn files_arrive_inline() {
    files_arrive(Model::Inline, 0.0);
}

#[test]
fn files_arrive_paired() {
    files_arrive(Model::Paired, 0.0);
}

#[test]
fn files_arrive_guarded() {
    files_arrive(Model::Guarded, 0.0);
}

#[test]
fn files_arrive_under_loss() {
    for model in [Model::Inline, Model::Paired, Model::Guarded] {
        files_arrive(model, 0.01);
    }
}

#[test]
fn the_generator_loads_a_lane() {
    let dir = TempDir::new("lane-load");
    std::fs::write(dir.0.join("index.html"), "<p>home").expect("a file");
    let counts = over_the_wire(Model::Inline, 0.0, &dir, |lane| {
        let target: SocketAddr = SERVER.parse().expect("an address");
        let plan = Plan {
            concurrent: 50,
            total: Some(3000),
            per_connection: 2,
            hold: false,
            rate: None,
            connect_timeout: Duration::from_secs(20),
            timeout: Duration::from_secs(20),
        };
        let mut net = OnLane::new(lane.clone()).expect("a poller");
        net.aim(target, Vec::new());
        let fetch = Fetch::new(&Http::at(target, "/"), Some(7));
        let mut generator = Generator::new(net, fetch, plan, Arc::new(Shared::default()));
        let report = generator.run(&Stop::default()).expect("the lane works").report();
        assert_eq!((report.connections, report.messages, report.errors.len()), (3000, 6000, 0), "{report}");
    });
    assert_eq!((counts.connections, counts.requests, counts.errors), (3000, 6000, 0));
}

#[test]
fn channels_answer_over_a_lane() {
    for model in [Model::Inline, Model::Paired, Model::Guarded] {
        let end = |address| Config { model, ..Config::memory(address).expect("a good address") };
        let (mut server, mut client) = Engine::memory_pair(&end("10.0.0.1/24"), &end("10.0.0.2/24")).expect("memory");
        let target: SocketAddr = SERVER.parse().expect("an address");
        let (handle, stop) = (server.take_lane(0).expect("a lane"), Stop::default());
        let (tell, told) = std::sync::mpsc::channel();
        let counts = thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let channel = handle.channel(Parts::ALL.options()).expect("a channel");
                let listener = Listener::at(Address::from(target), 1024).expect("an address");
                let register = |channel: &mut Channel, cookie| {
                    let handle = channel.register_listener(listener, cookie, CpuMask::NONE)?;
                    tell.send(()).expect("somebody waits");
                    Ok(vec![handle])
                };
                channel::serve(channel, Parts::ALL, 300, register, &stop).expect("the lane works")
            });
            told.recv().expect("it listens");
            let lane = client.take_lane(0).expect("a lane").attach().expect("a lane");
            for (per_connection, total) in [(1, 2000), (7, 200)] {
                let (hold, rate, timeout) = (false, None, Duration::from_secs(20));
                let connect_timeout = timeout;
                let plan =
                    Plan { concurrent: 50, total: Some(total), per_connection, hold, rate, connect_timeout, timeout };
                let mut net = OnLane::new(lane.clone()).expect("a poller");
                net.aim(target, Vec::new());
                let fetch = Fetch::new(&Http::at(target, "/"), Some(300));
                let mut generator = Generator::new(net, fetch, plan, Arc::new(Shared::default()));
                let report = generator.run(&Stop::default()).expect("the lane works").report();
                let messages = total * u64::from(per_connection);
                assert_eq!(
                    (report.connections, report.messages, report.errors.len()),
                    (total, messages, 0),
                    "{report}"
                );
            }
            stop.set();
            serving.join().expect("no panic")
        });
        assert_eq!((counts.connections, counts.requests, counts.errors), (2200, 3400, 0), "{model:?}");
    }
}
