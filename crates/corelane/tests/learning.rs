//! A NIC that hides its RSS key: lanes learn which local ports lead back to them.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corelane::{Config, Engine, Events, Interest, Lane, ListenOptions, MemPort, Model, Trigger};
use io::Port;
use io::memwire::MACS;
use stack::Steering;
use wire::burst::{RxBurst, TxOffload, TxSink};

use common::readdress;

/// Only a lost wake-up reaches it.
const LIMIT: Duration = Duration::from_secs(60);
/// A key that nobody is told.
const HIDDEN: [u8; 40] = [
    0x8b, 0x11, 0x5e, 0x6c, 0x02, 0xd9, 0xaf, 0x37, 0x54, 0xe8, 0x90, 0x1d, 0xc3, 0x7a, 0x46, 0x28, 0xbb, 0x0f, 0x69,
    0xd2, 0x13, 0xfe, 0x85, 0x4c, 0x31, 0xa7, 0x9e, 0x60, 0xc8, 0x5b, 0x04, 0x72, 0xed, 0x16, 0x3f, 0x99, 0xaa, 0x07,
    0xd4, 0x68,
];

fn addr() -> SocketAddr {
    "10.0.0.1:80".parse().unwrap()
}

/// Two NICs on a wire: the client's puts frames into the queue that its hidden hash names, the server's has one queue.
struct Nics {
    stop: Arc<AtomicBool>,
    /// The client's has another table now.
    other: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Nics {
    fn start(mut server: Vec<MemPort>, mut client: Vec<MemPort>, tables: [Steering; 2]) -> Nics {
        let [stop, other] = [(); 2].map(|_| Arc::new(AtomicBool::new(false)));
        let (ended, changed) = (stop.clone(), other.clone());
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let table = &tables[usize::from(changed.load(Ordering::Relaxed))];
                let mut frames = 0;
                for from in &mut client {
                    frames += pass(from, &mut server, |_| 0);
                }
                frames += pass(&mut server[0], &mut client, |frame| table.named_lane(frame).unwrap_or(0));
                if frames == 0 {
                    thread::sleep(Duration::from_micros(20));
                }
            }
        });
        Nics { stop, other, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn pass(from: &mut MemPort, to: &mut [MemPort], queue: impl Fn(&[u8]) -> u16) -> usize {
    let n = from.receive(64);
    for at in 0..n {
        let mut frame = from.frame(at).data.to_vec();
        readdress(&mut frame, &MACS);
        let port = &mut to[usize::from(queue(&frame))];
        loop {
            if let Some(room) = port.reserve(frame.len()) {
                room[..frame.len()].copy_from_slice(&frame);
                port.commit(frame.len(), TxOffload::default());
                break;
            }
            port.flush().unwrap();
            thread::yield_now();
        }
    }
    from.release();
    to.iter_mut().for_each(|port| port.flush().unwrap());
    n
}

/// Opens a connection, sends a byte, and has it back.
fn echo(lane: &Lane) {
    let end = Instant::now() + LIMIT;
    let mut stream = loop {
        match lane.connect(addr()) {
            Ok(stream) => break stream,
            // The server is not there yet.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => thread::yield_now(),
            Err(e) => panic!("connect: {e}"),
        }
    };
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

/// Of all answers to SYNs of a number of connections of each lane those that were handed over, what all were, and frames handed
/// over.
fn opened(engine: &Engine, lanes: &[Lane], each: usize) -> (u64, u64, u64) {
    let count = |name: &str| -> u64 {
        let all = engine.snapshots(LIMIT);
        assert_eq!(all.len(), lanes.len());
        all.iter().flat_map(|s| &s.rows).filter(|(n, _)| n == name).map(|(_, v)| v).sum()
    };
    let counts = || ["answers_handed", "answers_own", "handed_in"].map(count);
    let before = counts();
    for _ in 0..each {
        lanes.iter().for_each(echo);
    }
    let [handed, own, frames] = counts();
    (handed - before[0], handed - before[0] + own - before[1], frames - before[2])
}

/// Runs `f` with a client of so many lanes behind a NIC of so many queues.
fn behind_a_nic(lanes: u16, queues: u16, f: impl FnOnce(&Engine, &[Lane], &Nics)) {
    let config = |address, lanes| Config { model: Model::Paired, lanes, ..Config::memory(address).unwrap() };
    let (mut server, to_server) = Engine::memory_end(&config("10.0.0.1/24", 1)).unwrap();
    let (mut client, to_client) = Engine::memory_end(&config("10.0.0.2/24", lanes)).unwrap();
    let table = |first: u16| -> Steering {
        let table: Vec<u16> = (0..128).map(|at| (at % queues + first) % lanes).collect();
        Steering::predicted(HIDDEN, &table, lanes).unwrap()
    };
    let nics = Nics::start(to_server, to_client, [table(0), table(1)]);
    let stop = Arc::new(AtomicBool::new(false));
    let (ended, end) = (stop.clone(), server.take_lane(0).unwrap());
    let echoes = thread::spawn(move || {
        let lane = end.attach().unwrap();
        let mut listener = lane.listen(addr(), ListenOptions::default()).unwrap();
        listener.set_nonblocking(true);
        let poller = lane.poller().unwrap();
        poller.add(&listener, 0, Interest::READ, Trigger::Level).unwrap();
        let (mut streams, mut events) = (Vec::new(), Events::with_capacity(64));
        while !ended.load(Ordering::Relaxed) {
            poller.wait(&mut events, Some(Duration::from_millis(10))).unwrap();
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true);
                poller.add(&stream, 1, Interest::READ, Trigger::Level).unwrap();
                streams.push(stream);
            }
            streams.retain_mut(|stream| {
                let mut byte = [0; 64];
                match stream.read(&mut byte) {
                    Ok(0) => false,
                    Ok(n) => stream.write_all(&byte[..n]).is_ok(),
                    Err(e) => e.kind() == ErrorKind::WouldBlock,
                }
            });
        }
        lane.drain(Duration::from_secs(2));
    });
    let ends: Vec<Lane> =
        (0..usize::from(lanes)).map(|lane| client.take_lane(lane).unwrap().attach().unwrap()).collect();
    f(&client, &ends, &nics);
    for lane in &ends {
        lane.drain(Duration::from_secs(2));
    }
    stop.store(true, Ordering::Relaxed);
    echoes.join().unwrap();
    nics.end();
}

/// At first a connection arrives on its own lane by chance, then by choice; and so again where the NIC is set otherwise.
#[test]
fn connections_come_back_to_the_lane_that_opened_them() {
    for lanes in [2, 4] {
        behind_a_nic(lanes, lanes, |engine, ends, nics| {
            let (handed, all, _) = opened(engine, ends, 12);
            assert_eq!(all, 12 * u64::from(lanes));
            assert!(handed * 4 >= all, "{lanes} lanes: {handed} of {all} before anything can be known");
            opened(engine, ends, 60);
            let (handed, all, frames) = opened(engine, ends, 200);
            // What is unknown of a higher bit of the port is tried out: at most once for each.
            assert!(handed <= 9 * u64::from(lanes), "{lanes} lanes: {handed} of {all} answers were handed over");
            assert!(frames <= 6 * handed + 20, "{lanes} lanes: {frames} frames were handed over");
            // Each lane has a queue that leads elsewhere now.
            nics.other.store(true, Ordering::Relaxed);
            opened(engine, ends, 200);
            let (handed, all, _) = opened(engine, ends, 200);
            assert!(handed <= 9 * u64::from(lanes), "{lanes} lanes: {handed} of {all} answers by the other table");
        });
    }
}

/// Three queues in turn are no linear function of the hash: all goes on as if nothing were learnt.
#[test]
fn what_cannot_be_learnt_harms_nobody() {
    behind_a_nic(2, 3, |engine, ends, _| {
        let (handed, all, _) = opened(engine, ends, 400);
        assert_eq!(all, 800);
        assert!((200..600).contains(&handed), "{handed} of {all} answers were handed over");
    });
}
