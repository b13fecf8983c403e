//! Random histories of a program: streams that are opened, written to and ended, while it waits for something that is no call of its
//! lane's, and an end of its lane or its engine. Whatever it does, the peer has each byte that a write took, in order, and each end.
//!
//! `CORELANE_SEEDS=N` runs N seeds, `CORELANE_SEED=S` replays one.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use corelane::{Config, Engine, Events, Interest, Lane, LaneHandle, ListenOptions, Model, State, TcpStream, Trigger};
use io::impair::Random;

/// Reached only where nothing happens any more.
const LIMIT: Duration = Duration::from_secs(30);
/// The longest write: more than the buffers of a stream hold.
const LONGEST: u64 = 400_000;
const STREAMS: usize = 12;

fn addr() -> SocketAddr {
    "10.0.0.1:80".parse().unwrap()
}

/// Byte `at` of a stream; the first one is its number.
fn byte(stream: usize, at: usize) -> u8 {
    if at == 0 { stream as u8 } else { (at.wrapping_mul(31) ^ (at >> 8) ^ stream.wrapping_mul(101)) as u8 }
}

/// By stream: how much of it the peer has, and whether its end.
type Heard = BTreeMap<usize, (usize, bool)>;

#[derive(Default)]
struct Ear {
    heard: Mutex<Heard>,
    news: Condvar,
}

impl Ear {
    /// Waits without a call of the lane's until the peer has all this.
    fn waits_for(&self, all: &Heard) {
        let heard = self.heard.lock().unwrap();
        let (heard, late) = self.news.wait_timeout_while(heard, LIMIT, |heard| heard != all).unwrap();
        assert!(!late.timed_out(), "the peer has {:?}, and was sent {all:?}", *heard);
    }
}

/// Reads whatever comes until everything that was opened has ended and its program says that it is over.
fn peer(end: LaneHandle, ear: Arc<Ear>, over: Arc<Mutex<bool>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let lane = end.attach().unwrap();
        let mut listener = lane.listen(addr(), ListenOptions::default()).unwrap();
        listener.set_nonblocking(true);
        let poller = lane.poller().unwrap();
        poller.add(&listener, u64::MAX, Interest::READ, Trigger::Level).unwrap();
        let mut streams: Vec<Option<(TcpStream, Option<usize>, usize)>> = Vec::new();
        let (mut events, mut buf) = (Events::with_capacity(64), vec![0; 50_000]);
        while !*over.lock().unwrap() {
            poller.wait(&mut events, Some(Duration::from_millis(20))).unwrap();
            for event in events.iter() {
                if event.key == u64::MAX {
                    while let Ok((stream, _)) = listener.accept() {
                        poller.add(&stream, streams.len() as u64, Interest::READ, Trigger::Level).unwrap();
                        stream.set_nonblocking(true);
                        streams.push(Some((stream, None, 0)));
                    }
                    continue;
                }
                let place = &mut streams[event.key as usize];
                let Some((stream, number, at)) = place else { continue };
                let (n, ended) = match stream.read(&mut buf) {
                    Ok(n) => (n, n == 0),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
                    Err(e) => panic!("stream {number:?} after {at} bytes: {e}"),
                };
                if n > 0 {
                    let number = *number.get_or_insert(buf[0] as usize);
                    let wrong = (0..n).find(|i| buf[*i] != byte(number, *at + i));
                    assert_eq!(wrong.map(|i| *at + i), None, "stream {number}");
                    *at += n;
                }
                if let Some(number) = *number {
                    ear.heard.lock().unwrap().insert(number, (*at, ended));
                    ear.news.notify_all();
                }
                if ended {
                    *place = None;
                }
            }
        }
    })
}

struct Program {
    r: Random,
    model: Model,
    lane: Lane,
    ear: Arc<Ear>,
    /// Each stream that can be written to.
    open: BTreeMap<usize, TcpStream>,
    /// Those whose sending side is ended, which are kept.
    shut: Vec<TcpStream>,
    /// What the peer must have in the end.
    sent: Heard,
}

impl Program {
    fn connect(&mut self) {
        let number = self.sent.len();
        if number == STREAMS {
            return;
        }
        let end = Instant::now() + LIMIT;
        let stream = loop {
            match self.lane.connect(addr()) {
                Ok(stream) => break stream,
                // The peer's thread is not there yet.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => thread::yield_now(),
                Err(e) => panic!("connect: {e}"),
            }
        };
        stream.set_nonblocking(self.r.chance(0.5));
        self.open.insert(number, stream);
        self.sent.insert(number, (0, false));
        // So that the peer knows which one it is.
        self.write(number, 1);
    }

    /// Writes so many bytes, or fewer where there is no room and nobody waits for it.
    fn write(&mut self, number: usize, n: usize) {
        let stream = &self.open[&number];
        let at = &mut self.sent.get_mut(&number).unwrap().0;
        let bytes: Vec<u8> = (*at..*at + n).map(|at| byte(number, at)).collect();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(took) => {
                    *at += took;
                    rest = &rest[took..];
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => panic!("write: {e}"),
            }
        }
    }

    /// Something else takes the program's time, until what it has written has arrived.
    fn pause(&mut self) {
        if self.model != Model::Inline {
            return self.ear.waits_for(&self.sent);
        }
        // Nobody else runs this lane.
        let end = Instant::now() + LIMIT;
        while *self.ear.heard.lock().unwrap() != self.sent {
            assert!(
                Instant::now() < end,
                "the peer has {:?}, was sent {:?}",
                self.ear.heard.lock().unwrap(),
                self.sent
            );
            self.lane.advance();
            thread::yield_now();
        }
    }

    fn step(&mut self) {
        let Some(number) = self.open.keys().copied().nth(self.r.below(self.open.len().max(1) as u64) as usize) else {
            return self.connect();
        };
        match self.r.below(10) {
            0 | 1 => self.connect(),
            2..=5 => {
                let n = self.r.pick(&[1, 100, 1448, 20_000, LONGEST]);
                let n = 1 + self.r.below(n);
                self.write(number, n as usize);
            }
            6 | 7 => self.pause(),
            8 => {
                let stream = self.open.remove(&number).unwrap();
                self.sent.get_mut(&number).unwrap().1 = true;
                match self.r.below(3) {
                    0 => drop(stream),
                    1 => drop(stream.close()),
                    _ => {
                        stream.shutdown(Shutdown::Write).unwrap();
                        self.shut.push(stream);
                    }
                }
            }
            _ => (&self.open[&number]).flush().unwrap(),
        }
    }

    /// The program goes, one way or another.
    fn end(mut self, engine: Engine) -> Heard {
        self.sent.values_mut().for_each(|(_, ended)| *ended = true);
        let streams = (self.open, self.shut);
        match self.r.below(3) {
            0 => {
                drop(streams);
                drop(self.lane);
                engine.shutdown();
            }
            1 => {
                let (open, shut) = streams;
                // What is ended in one direction only can be asked for afterwards.
                let keeps = self.r.chance(0.7);
                // Those that are not kept end here: what stays open is never drained.
                let kept: Vec<TcpStream> = open.into_values().filter(|_| keeps).collect();
                kept.iter().for_each(|stream| stream.shutdown(Shutdown::Write).unwrap());
                self.lane.drain(LIMIT);
                for stream in kept.iter().chain(&shut) {
                    // Of one that is over altogether nothing is told.
                    let Ok(info) = stream.info() else { continue };
                    let arrived = matches!(info.state, State::FinWait2 | State::TimeWait | State::Closed);
                    assert!(arrived, "drained, and a stream's end is not acknowledged: {info:?}");
                }
                drop((kept, shut, self.lane, engine));
            }
            _ if self.model == Model::Inline => drop((streams, self.lane, engine)),
            // Its thread does not come back to them.
            _ => {
                std::mem::forget((streams, self.lane));
                engine.shutdown();
            }
        }
        self.sent
    }
}

fn run(seed: u64) {
    let mut r = Random::new(seed ^ 0x415);
    let model = r.pick(&[Model::Paired, Model::Guarded, Model::Inline]);
    let config = |a: &str, model| Config { model, ..Config::memory(a).unwrap() };
    let (mut server, mut client) =
        Engine::memory_pair(&config("10.0.0.1/24", Model::Paired), &config("10.0.0.2/24", model)).unwrap();
    let (ear, over) = (Arc::new(Ear::default()), Arc::new(Mutex::new(false)));
    let thread = peer(server.take_lane(0).unwrap(), ear.clone(), over.clone());
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    let steps = r.below(25) + 5;
    let mut program =
        Program { r, model, lane, ear: ear.clone(), open: BTreeMap::new(), shut: Vec::new(), sent: Heard::new() };
    let played = catch_unwind(AssertUnwindSafe(|| {
        (0..steps).for_each(|_| program.step());
        let all = program.end(client);
        ear.waits_for(&all);
    }));
    *over.lock().unwrap() = true;
    let heard = thread.join();
    if let Err(cause) = played.and(heard) {
        eprintln!("{model:?}; replay with: CORELANE_SEED={seed} cargo test -p corelane --test histories");
        resume_unwind(cause);
    }
}

#[test]
fn the_peer_has_what_was_written_and_each_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match number("CORELANE_SEED") {
        Some(seed) => run(seed),
        None => (0..number("CORELANE_SEEDS").unwrap_or(40)).for_each(run),
    }
}
