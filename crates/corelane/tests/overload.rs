//! More than there is room for: what is refused is counted, what is held is bounded, and everybody else goes on as before.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use corelane::{
    Config, ConnectOptions, Engine, Events, Interest, Lane, LaneHandle, ListenOptions, MemPort, Model, Snapshot, State,
    TcpStream, Trigger,
};
use io::Port;
use io::memwire::MACS;
use stack::Steering;
use wire::burst::{RxBurst, TxOffload, TxSink};
use wire::{SeqNum, ethernet, ipv4, tcp};

use common::readdress;

const MODELS: [Model; 3] = [Model::Inline, Model::Paired, Model::Guarded];
/// Only a lost wake-up, or a starved connection, reaches it.
const LIMIT: Duration = Duration::from_secs(30);

fn addr() -> SocketAddr {
    "10.0.0.1:80".parse().unwrap()
}

fn pair(server: impl FnOnce(&mut Config), client: impl FnOnce(&mut Config)) -> (Engine, Engine) {
    let mut a = Config::memory("10.0.0.1/24").unwrap();
    let mut b = Config::memory("10.0.0.2/24").unwrap();
    server(&mut a);
    client(&mut b);
    Engine::memory_pair(&a, &b).unwrap()
}

/// The sum of a counter over all lanes.
fn count(snapshots: &[Snapshot], name: &str) -> u64 {
    let rows = snapshots.iter().flat_map(|s| &s.rows).filter(|(n, _)| n == name);
    rows.map(|(_, v)| *v).sum()
}

/// Echoes until told to stop; what comes to `unread` of the connections is left where it is.
struct Server {
    stop: Arc<AtomicBool>,
    held: Arc<AtomicBool>,
    rests: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    thread: thread::JoinHandle<()>,
}

impl Server {
    fn start(end: LaneHandle, unread: usize) -> Server {
        let (stop, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let [held, rests] = [(); 2].map(|_| Arc::new(AtomicBool::new(false)));
        let (theirs, counted, holds, resting) = (stop.clone(), accepted.clone(), held.clone(), rests.clone());
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            let lane = end.attach().unwrap();
            // All that a test opens at once: a full queue is another one's matter.
            let mut listener =
                lane.listen(addr(), ListenOptions { backlog: 1 << 16, ..ListenOptions::default() }).unwrap();
            listener.set_nonblocking(true);
            let poller = lane.poller().unwrap();
            poller.add(&listener, u64::MAX, Interest::READ, Trigger::Level).unwrap();
            tell.send(()).unwrap();
            let mut streams: Vec<Option<TcpStream>> = Vec::new();
            let (mut events, mut buf) = (Events::with_capacity(256), vec![0; 65536]);
            while !theirs.load(Ordering::Relaxed) {
                while holds.load(Ordering::SeqCst) {
                    resting.store(true, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(1));
                }
                poller.wait(&mut events, Some(Duration::from_millis(20))).unwrap();
                while let Ok((stream, _)) = listener.accept() {
                    counted.fetch_add(1, Ordering::Relaxed);
                    if streams.len() >= unread {
                        poller.add(&stream, streams.len() as u64, Interest::READ, Trigger::Level).unwrap();
                    }
                    streams.push(Some(stream));
                }
                for event in events.iter().filter(|e| e.key != u64::MAX) {
                    let Some(stream) = &streams[event.key as usize] else { continue };
                    match stream.read(&mut buf) {
                        Ok(n @ 1..) => {
                            stream.set_nonblocking(false);
                            (&mut &*stream).write_all(&buf[..n]).unwrap();
                            stream.set_nonblocking(true);
                        }
                        Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                        _ => streams[event.key as usize] = None,
                    }
                }
            }
            drop((streams, listener, poller));
            lane.drain(Duration::from_secs(2));
        });
        told.recv().unwrap();
        Server { stop, held, rests, accepted, thread }
    }

    /// Its application does nothing any more until [`Server::go_on`].
    fn rest(&self) {
        self.held.store(true, Ordering::SeqCst);
        while !self.rests.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }

    fn go_on(&self) {
        self.held.store(false, Ordering::SeqCst);
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// There and back.
fn works(stream: &mut TcpStream, what: &str) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"there and back").unwrap();
    let mut back = [0; 14];
    let heard = stream.read_exact(&mut back);
    assert!(heard.is_ok() && &back == b"there and back", "{what}: {heard:?}");
}

/// Lets the lane run until `done`.
fn run(lane: &Lane, what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        lane.advance();
        thread::yield_now();
        assert!(Instant::now() < end, "{what}");
    }
}

/// Five times as many connections as there is room for.
#[test]
fn more_connections_than_there_is_room_for() {
    for model in MODELS {
        let (mut server, mut client) = pair(|a| (a.model, a.max_connections) = (model, 200), |_| {});
        let echo = Server::start(server.take_lane(0).unwrap(), 0);
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        let mut first: Vec<TcpStream> = (0..100).map(|_| lane.connect(addr()).unwrap()).collect();
        let more: Vec<TcpStream> =
            (0..900).map(|_| lane.connect_nonblocking(addr(), ConnectOptions::default()).unwrap()).collect();
        run(&lane, "as many as fit", || echo.accepted() >= 200);
        let all = server.snapshots(LIMIT);
        assert!(count(&all, "connections") <= 200, "{model:?}");
        assert!(count(&all, "drop_no_connection") > 0, "{model:?}: {all:?}");
        for stream in &mut first {
            works(stream, "one of the first");
        }
        // Room again: whoever waits gets it by asking again, as TCP does.
        drop(first);
        drop(more);
        works(&mut lane.connect(addr()).unwrap(), "one that comes later");
        assert_eq!(count(&server.snapshots(LIMIT), "accept_overflows"), 0);
        echo.end();
    }
}

/// Two hundred peers send as much as they can to an application that reads none of it, into a pool that a fraction of their
/// windows would fill; those that it reads from get through.
#[test]
fn an_application_that_stops_reading() {
    const STUCK: usize = 200;
    for model in MODELS {
        let (mut server, mut client) = pair(|a| (a.model, a.buffers_mib) = (model, 4), |_| {});
        let echo = Server::start(server.take_lane(0).unwrap(), STUCK);
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        let stuck: Vec<TcpStream> = (0..STUCK).map(|_| lane.connect(addr()).unwrap()).collect();
        run(&lane, "the stuck ones", || echo.accepted() == STUCK);
        let mut active: Vec<TcpStream> = (0..5).map(|_| lane.connect(addr()).unwrap()).collect();
        let flood = |times: usize| {
            for _ in 0..times {
                for stream in &stuck {
                    stream.set_nonblocking(true);
                    let _ = stream.write(&[7; 16_384]);
                }
                lane.advance();
            }
        };
        flood(20);
        for round in 0..20 {
            for stream in &mut active {
                works(stream, &format!("{model:?}, round {round}"));
            }
            flood(1);
        }
        let all = server.snapshots(LIMIT);
        let chunks = (4 << 20) / 2048;
        assert!(count(&all, "chunks_in_use") <= chunks, "{model:?}");
        assert!(count(&all, "no_chunks") > 0, "{model:?}: memory was never short");
        // One more finds its way in.
        works(&mut lane.connect(addr()).unwrap(), "one that comes later");
        drop((stuck, active));
        echo.end();
    }
}

/// An application that listens and never calls in: its queue fills, more is counted and waits; when it calls, they are there.
#[test]
fn an_application_that_never_calls_in() {
    for model in [Model::Paired, Model::Guarded] {
        let (mut server, mut client) = pair(|a| a.model = model, |_| {});
        let (go, gone) = channel::<()>();
        let (tell, told) = channel();
        let end = server.take_lane(0).unwrap();
        let thread = thread::spawn(move || {
            let lane = end.attach().unwrap();
            let listener = lane.listen(addr(), ListenOptions { backlog: 16, ..ListenOptions::default() }).unwrap();
            tell.send(()).unwrap();
            gone.recv().unwrap();
            let mut all: Vec<TcpStream> = (0..40).map(|_| listener.accept().unwrap().0).collect();
            for stream in &mut all {
                stream.read_exact(&mut [0; 2]).unwrap();
                stream.write_all(b"ok").unwrap();
            }
            drop(all);
            lane.drain(Duration::from_secs(2));
        });
        told.recv().unwrap();
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        let streams: Vec<TcpStream> =
            (0..40).map(|_| lane.connect_nonblocking(addr(), ConnectOptions::default()).unwrap()).collect();
        let full = || count(&server.snapshots(LIMIT), "drop_backlog") > 0;
        run(&lane, "a full queue", full);
        let all = server.snapshots(LIMIT);
        // 16 and one more wait to be accepted, as in Linux; the others have no connection yet.
        assert!(count(&all, "connections") <= 17, "{model:?}: {all:?}");
        go.send(()).unwrap();
        // Handshakes that found no place are tried again as TCP does: within its first seconds.
        run(&lane, "all handshakes", || {
            let written = |stream: &TcpStream| stream.info().is_ok_and(|info| info.state == State::Established);
            streams.iter().all(written)
        });
        let mut streams = streams;
        for stream in &mut streams {
            stream.set_nonblocking(false);
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.write_all(b"hi").unwrap();
        }
        for stream in &mut streams {
            stream.read_exact(&mut [0; 2]).unwrap();
        }
        drop(streams);
        lane.drain(Duration::from_secs(2));
        thread.join().unwrap();
    }
}

/// An application that runs its lane itself and never does: its own peers wait, the other lane's do not.
#[test]
fn a_lane_that_never_runs_harms_no_other() {
    let (mut server, mut client) = pair(|a| a.lanes = 2, |b| b.lanes = 2);
    let _never = server.take_lane(1).unwrap();
    let idle = client.take_lane(1).unwrap();
    let echo = Server::start(server.take_lane(0).unwrap(), 0);
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    for _ in 0..50 {
        works(&mut lane.connect(addr()).unwrap(), "the other lane");
    }
    assert_eq!(server.stats()[1].turns(), 0);
    drop(idle);
    echo.end();
}

/// A wire between the memory ends of two engines, queue by queue, into which frames of somebody else are let.
struct Relay {
    stop: Arc<AtomicBool>,
    calm: Arc<AtomicBool>,
    flooded: Arc<AtomicUsize>,
    told: Receiver<()>,
    thread: thread::JoinHandle<()>,
}

impl Relay {
    /// Lets `flood` in on the server's queue 0, one after the other and over again, until [`Relay::calm`].
    fn start(mut server: Vec<MemPort>, mut client: Vec<MemPort>, flood: Vec<Vec<u8>>) -> Relay {
        let [stop, calm] = [(); 2].map(|_| Arc::new(AtomicBool::new(false)));
        let flooded = Arc::new(AtomicUsize::new(0));
        let (theirs, calms, counted) = (stop.clone(), calm.clone(), flooded.clone());
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            let mut next = flood.iter().cycle();
            while !theirs.load(Ordering::Relaxed) {
                for (one, other) in server.iter_mut().zip(&mut client) {
                    Relay::pass(one, other);
                    Relay::pass(other, one);
                }
                if calms.load(Ordering::Relaxed) {
                    let _ = tell.send(());
                    thread::sleep(Duration::from_micros(100));
                    continue;
                }
                // A quarter of what the wire holds: the client's frames find room beside them.
                let some = (0..64).filter(|_| Relay::send(&mut server[0], next.next().unwrap())).count();
                server[0].flush().unwrap();
                counted.fetch_add(some, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        Relay { stop, calm, flooded, told, thread }
    }

    fn send(port: &mut MemPort, frame: &[u8]) -> bool {
        let Some(room) = port.reserve(frame.len()) else { return false };
        room[..frame.len()].copy_from_slice(frame);
        port.commit(frame.len(), TxOffload::default());
        true
    }

    fn pass(from: &mut MemPort, to: &mut MemPort) {
        for at in 0..from.receive(64) {
            let mut frame = from.frame(at).data.to_vec();
            readdress(&mut frame, &MACS);
            while !Relay::send(to, &frame) {
                to.flush().unwrap();
                thread::yield_now();
            }
        }
        from.release();
        to.flush().unwrap();
    }

    /// Ends the flood: how many frames it was.
    fn calm(&self) -> u64 {
        self.calm.store(true, Ordering::Relaxed);
        self.told.recv().unwrap();
        self.flooded.load(Ordering::Relaxed) as u64
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Requests for a port that nobody listens on, whose flows are all `lane`'s of two.
fn requests_for(lane: u16) -> Vec<Vec<u8>> {
    let (src, dst) = (wire::Addr::from_v4([10, 0, 0, 2]), wire::Addr::from_v4([10, 0, 0, 1]));
    let steering = Steering::spread(2);
    let ports = (1024..2048).filter(|port| steering.lane_of(src, dst, *port, 81) == lane);
    let frame = |src_port: u16| {
        let mut b = vec![0; 54];
        ethernet::emit(&mut b, MACS[0], MACS[1], None, ethernet::IPV4);
        ipv4::Header { src, dst, ..ipv4::Header::default() }.emit(&mut b[14..], 20);
        let (seq, ack, flags) = (SeqNum(src_port as u32), SeqNum(0), tcp::Flags::SYN);
        let options = tcp::Options::default();
        tcp::Header { src_port, dst_port: 81, seq, ack, flags, window: 1000, urgent: 0, options }
            .emit(&mut b[34..], false);
        b
    };
    ports.map(frame).collect()
}

/// Frames for lane 1 arrive on lane 0's queue as fast as they can be made, among those of lane 0's connections: these go on,
/// and each of the flood's is handed over or counted. Lane 1 of `inline` never runs, so that its ring is full.
#[test]
fn a_lane_that_is_flooded_harms_no_other() {
    for model in MODELS {
        let config = |address, model| Config { model, lanes: 2, ..Config::memory(address).unwrap() };
        let (mut server, to_server) = Engine::memory_end(&config("10.0.0.1/24", model)).unwrap();
        let (mut client, to_client) = Engine::memory_end(&config("10.0.0.2/24", Model::Inline)).unwrap();
        let echo = Server::start(server.take_lane(0).unwrap(), 0);
        let _never = server.take_lane(1).unwrap();
        drop(client.take_lane(1));
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        let relay = Relay::start(to_server, to_client, requests_for(1));
        let mut connections = 0;
        while connections < 100 || relay.flooded.load(Ordering::Relaxed) < 10_000 {
            works(&mut lane.connect(addr()).unwrap(), "a connection of the lane that is not flooded");
            connections += 1;
        }
        let flooded = relay.calm();
        let stats = server.stats();
        let handed = || stats[0].handed_out() + stats[0].handed_dropped();
        run(&lane, &format!("{model:?}: {} of {flooded} counted", handed()), || handed() >= flooded);
        // What both hear of, as ARP, is handed over, too.
        assert!(handed() < flooded + 100, "{model:?}: {} of {flooded}", handed());
        if model == Model::Inline {
            assert_eq!((stats[0].handed_out(), stats[1].handed_in()), (512, 0), "all that the ring holds");
            assert!(stats[0].handed_dropped() >= flooded - 512);
        } else {
            run(&lane, &format!("{model:?}: what was handed over"), || stats[1].handed_in() == stats[0].handed_out());
        }
        // None of lane 0's own.
        assert_eq!(stats[0].handed_in(), 0, "{model:?}");
        lane.drain(Duration::from_secs(2));
        echo.end();
        relay.end();
    }
}

/// More requests than the ring between application and stack holds, and more frames than the wire's ring, which nobody
/// empties: the requests wait in the application's half, the frames in the stack's, and all are served.
#[test]
fn more_than_the_rings_hold() {
    for (served, model) in [
        (Model::Inline, Model::Inline),
        (Model::Inline, Model::Paired),
        (Model::Inline, Model::Guarded),
        (Model::Paired, Model::Paired),
        (Model::Guarded, Model::Guarded),
    ] {
        let (mut server, mut client) = pair(
            |a| (a.model, a.max_half_open, a.syn_backlog) = (served, 100_000, 100_000),
            |b| (b.model, b.max_connections, b.buffers_mib) = (model, 100_000, 128),
        );
        let echo = Server::start(server.take_lane(0).unwrap(), 0);
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        // Both know each other.
        works(&mut lane.connect(addr()).unwrap(), "the first");
        echo.rest();
        // The job ring has 8192 places, the wire's 256.
        let all: Vec<TcpStream> =
            (0..10_000).map(|_| lane.connect_nonblocking(addr(), ConnectOptions::default()).unwrap()).collect();
        // A server with a thread of its own empties the wire all the time: there it may be full, or never.
        if served == Model::Inline {
            run(&lane, &format!("{model:?}: a full wire"), || {
                let here = lane.snapshot().map_or_else(|| client.snapshots(LIMIT), |snapshot| vec![snapshot]);
                count(&here, "mem:wire/0/tx_full") > 0
            });
        }
        echo.go_on();
        run(&lane, &format!("{served:?}, {model:?}: all of them"), || echo.accepted() == 10_001);
        for mut stream in all.into_iter().step_by(997) {
            stream.set_nonblocking(false);
            works(&mut stream, "one of ten thousand");
        }
        lane.drain(Duration::from_secs(2));
        echo.end();
    }
}
