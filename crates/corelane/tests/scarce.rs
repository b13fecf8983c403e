//! Buffers and rings that are too small for what is asked of them: nobody waits for ever, whoever else holds them.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use corelane::{
    Config, ConnectOptions, Engine, Events, Interest, Lane, LaneHandle, ListenOptions, Model, TcpStream, Trigger,
};

/// Only one that is stuck reaches it.
const LIMIT: Duration = Duration::from_secs(30);
const SHORT: usize = 64;

fn addr(host: u8) -> SocketAddr {
    ([10, 0, 0, host], 80).into()
}

/// Answers 's' with a few bytes and 'q' with many, as far as it is let; what comes to some connections is not read.
struct Server {
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    thread: thread::JoinHandle<()>,
}

impl Server {
    fn start(end: LaneHandle, unread: std::ops::Range<usize>, answer: usize) -> Server {
        let (stop, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (theirs, counted) = (stop.clone(), accepted.clone());
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            let lane = end.attach().unwrap();
            let options = ListenOptions { backlog: 1 << 16, ..ListenOptions::default() };
            let mut listener = lane.listen(addr(1), options).unwrap();
            listener.set_nonblocking(true);
            let poller = lane.poller().unwrap();
            poller.add(&listener, u64::MAX, Interest::READ, Trigger::Level).unwrap();
            tell.send(()).unwrap();
            let mut streams: Vec<(Option<TcpStream>, usize)> = Vec::new();
            let (mut events, mut buf) = (Events::with_capacity(256), vec![0; 65536]);
            let answers = vec![9; answer];
            while !theirs.load(Ordering::Relaxed) {
                poller.wait(&mut events, Some(Duration::from_millis(5))).unwrap();
                while let Ok((stream, _)) = listener.accept() {
                    let n = counted.fetch_add(1, Ordering::Relaxed);
                    if !unread.contains(&n) {
                        poller.add(&stream, streams.len() as u64, Interest::READ, Trigger::Level).unwrap();
                    }
                    streams.push((Some(stream), 0));
                }
                for event in events.iter().filter(|e| e.key != u64::MAX) {
                    let (Some(stream), owed) = &mut streams[event.key as usize] else { continue };
                    match stream.read(&mut buf) {
                        Ok(1..) => *owed += if buf[0] == b's' { SHORT } else { answer },
                        Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                        _ => streams[event.key as usize].0 = None,
                    }
                }
                for (stream, owed) in streams.iter_mut().filter(|(_, owed)| *owed > 0) {
                    if let Some(stream) = stream
                        && let Ok(n) = stream.write(&answers[..*owed])
                    {
                        *owed -= n;
                    }
                }
            }
            drop((streams, listener, poller));
            lane.drain(Duration::from_secs(1));
        });
        told.recv().unwrap();
        Server { stop, accepted, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn pair() -> (Engine, Engine) {
    let (mut a, b) = (Config::memory("10.0.0.1/24").unwrap(), Config::memory("10.0.0.2/24").unwrap());
    (a.model, a.buffers_mib) = (Model::Paired, 4);
    Engine::memory_pair(&a, &b).unwrap()
}

fn ask(stream: &mut TcpStream, question: u8, answer: usize, who: &str) {
    stream.set_nonblocking(false);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&[question]).unwrap();
    stream.read_exact(&mut vec![0; answer]).unwrap_or_else(|e| panic!("{who} waits for {answer} bytes: {e}"));
}

fn advance(lane: &Lane, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        lane.advance();
    }
}

/// What was acknowledged when memory was plenty counts against nobody when it is scarce.
#[test]
fn an_old_connection_gets_its_share_like_a_new_one() {
    const UNREAD: usize = 200;
    const ANSWER: usize = 40_000;
    let (mut server, mut client) = pair();
    let s = Server::start(server.take_lane(0).unwrap(), 1..1 + UNREAD, ANSWER);
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    let mut old = lane.connect(addr(1)).unwrap();
    ask(&mut old, b'q', ANSWER, "the old one, first");
    let unread: Vec<TcpStream> = (0..UNREAD).map(|_| lane.connect(addr(1)).unwrap()).collect();
    while s.accepted.load(Ordering::Relaxed) < UNREAD + 1 {
        lane.advance();
    }
    for _ in 0..40 {
        for stream in &unread {
            stream.set_nonblocking(true);
            let _ = (&mut &*stream).write(&[7; 16_384]);
        }
        advance(&lane, Duration::from_millis(20));
    }
    ask(&mut lane.connect(addr(1)).unwrap(), b'q', ANSWER, "the new one");
    ask(&mut old, b'q', ANSWER, "the old one");
    s.end();
}

/// Whoever asks for much and reads none of it may fill the buffers, but leaves room for short answers to others.
#[test]
fn those_who_read_nothing_leave_room_for_short_answers() {
    let (mut server, mut client) = pair();
    let s = Server::start(server.take_lane(0).unwrap(), 0..0, 200_000);
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    let mut old = lane.connect(addr(1)).unwrap();
    ask(&mut old, b's', SHORT, "the old one, first");
    let mut slow: Vec<TcpStream> = (0..1000).map(|_| lane.connect(addr(1)).unwrap()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"q").unwrap());
    advance(&lane, Duration::from_secs(3));
    let rows = server.snapshots(Duration::from_secs(10)).into_iter().flat_map(|s| s.rows);
    let used: u64 = rows.filter(|(name, _)| name == "chunks_in_use").map(|(_, n)| n).sum();
    assert!(used > 2048 / 4 * 3, "buffers are scarce: {used} of 2048 chunks");
    ask(&mut old, b's', SHORT, "the old one");
    ask(&mut lane.connect(addr(1)).unwrap(), b's', SHORT, "the new one");
    s.end();
}

/// Each end has more to answer than its ring takes, and the other's ring is full of what it has not read.
#[test]
fn two_ends_that_answer_each_other_never_stand_still() {
    const EACH: usize = 40_000;
    let (mut a, mut b) = (Config::memory("10.0.0.1/24").unwrap(), Config::memory("10.0.0.2/24").unwrap());
    for c in [&mut a, &mut b] {
        (c.max_half_open, c.syn_backlog, c.max_connections) = (200_000, 200_000, 400_000);
    }
    let (mut a, mut b) = Engine::memory_pair(&a, &b).unwrap();
    let accepted = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let side = |end: LaneHandle, own: usize| {
        let lane = end.attach().unwrap();
        let options = ListenOptions { backlog: 1 << 17, ..ListenOptions::default() };
        let mut listener = lane.listen(addr(own as u8 + 1), options).unwrap();
        listener.set_nonblocking(true);
        advance(&lane, Duration::from_millis(100));
        let other = addr(2 - own as u8);
        let open = |_| lane.connect_nonblocking(other, ConnectOptions::default()).unwrap();
        let mut streams: Vec<TcpStream> = (0..EACH).map(open).collect();
        let begun = Instant::now();
        while accepted.iter().any(|n| n.load(Ordering::Relaxed) < EACH) {
            lane.advance();
            while let Ok((stream, _)) = listener.accept() {
                streams.push(stream);
                accepted[own].fetch_add(1, Ordering::Relaxed);
            }
            assert!(begun.elapsed() < 2 * LIMIT, "accepted {accepted:?} of {EACH}");
        }
    };
    let (a, b) = (a.take_lane(0).unwrap(), b.take_lane(0).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| side(a, 0));
        scope.spawn(|| side(b, 1));
    });
}
