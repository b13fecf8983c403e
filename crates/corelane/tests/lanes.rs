//! Lanes with real threads over the memory wire, in both thread models.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use corelane::{
    Config, ConnectOptions, Engine, Events, Interest, Lane, LaneHandle, ListenOptions, Model, State, Trigger,
};

const SERVER: &str = "10.0.0.1:80";

fn addr() -> SocketAddr {
    SERVER.parse().unwrap()
}

fn pair(lanes: u16, model: Model) -> (Engine, Engine) {
    let config = |address: &str| Config { lanes, model, ..Config::memory(address).unwrap() };
    Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).unwrap()
}

/// Waits, with a limit that only a lost wake-up reaches.
fn connect(lane: &Lane) -> corelane::TcpStream {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match lane.connect(addr()) {
            Ok(stream) => return stream,
            // The server's thread is not there yet.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => thread::yield_now(),
            Err(e) => panic!("connect: {e}"),
        }
    }
}

fn models(f: impl Fn(Model)) {
    f(Model::Inline);
    f(Model::Paired);
}

/// Echoes `n` connections to their ends, one after the other.
fn echo(end: LaneHandle, n: usize) {
    let lane = end.attach().unwrap();
    let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
    for _ in 0..n {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buf = vec![0; 65536];
        loop {
            match stream.read(&mut buf).unwrap() {
                0 => break,
                n => stream.write_all(&buf[..n]).unwrap(),
            }
        }
    }
    lane.drain(Duration::from_secs(2));
}

#[test]
fn a_large_transfer_comes_back_whole() {
    models(|model| {
        let (mut server, mut client) = pair(1, model);
        let end = server.take_lane(0).unwrap();
        let thread = thread::spawn(move || echo(end, 1));
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        let stream = connect(&lane);
        stream.set_nonblocking(true);
        let poller = lane.poller().unwrap();
        poller.add(&stream, 1, Interest::BOTH, Trigger::Edge).unwrap();
        let total: usize = 64 << 20;
        let byte = |at: usize| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8;
        let (mut sent, mut got, mut buf) = (0, 0, vec![0; 100_000]);
        let mut events = Events::with_capacity(4);
        while got < total {
            assert!(poller.wait(&mut events, Some(Duration::from_secs(20))).unwrap() > 0, "{model:?}: stuck at {got}");
            while sent < total {
                let n = (total - sent).min(50_000);
                let part: Vec<u8> = (sent..sent + n).map(byte).collect();
                match stream.write(&part) {
                    Ok(n) => sent += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => panic!("{e}"),
                }
                if sent == total {
                    stream.shutdown(Shutdown::Write).unwrap();
                }
            }
            while let Ok(n @ 1..) = stream.read(&mut buf) {
                assert!(buf[..n].iter().enumerate().all(|(i, b)| *b == byte(got + i)), "{model:?}: near {got}");
                got += n;
            }
        }
        stream.set_nonblocking(false);
        assert_eq!(stream.read(&mut buf).unwrap(), 0);
        drop(stream);
        lane.drain(Duration::from_secs(1));
        thread.join().unwrap();
    });
}

#[test]
fn many_short_connections_in_turn() {
    models(|model| {
        let (mut server, mut client) = pair(1, model);
        let end = server.take_lane(0).unwrap();
        let thread = thread::spawn(move || echo(end, 500));
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        for i in 0..500u32 {
            let mut stream = connect(&lane);
            stream.write_all(&i.to_be_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            assert_eq!(back, i.to_be_bytes());
        }
        lane.drain(Duration::from_secs(1));
        thread.join().unwrap();
    });
}

#[test]
fn two_lanes_keep_their_connections() {
    models(|model| {
        let (mut server, mut client) = pair(2, model);
        let ends: Vec<LaneHandle> = (0..2).map(|i| server.take_lane(i).unwrap()).collect();
        let servers: Vec<_> = ends.into_iter().map(|e| thread::spawn(move || echo(e, 50))).collect();
        let ends: Vec<LaneHandle> = (0..2).map(|i| client.take_lane(i).unwrap()).collect();
        let clients: Vec<_> = ends
            .into_iter()
            .map(|end| {
                thread::spawn(move || {
                    let lane = end.attach().unwrap();
                    for _ in 0..50 {
                        let mut stream = connect(&lane);
                        stream.write_all(b"x").unwrap();
                        stream.shutdown(Shutdown::Write).unwrap();
                        let mut back = Vec::new();
                        stream.read_to_end(&mut back).unwrap();
                        assert_eq!(back, b"x");
                    }
                    lane.drain(Duration::from_secs(1));
                })
            })
            .collect();
        clients.into_iter().chain(servers).for_each(|t| t.join().unwrap());
        // Ports were chosen so that every reply came back to its own lane.
        for stats in client.stats().iter().chain(&server.stats()) {
            let handed =
                stats.rows().iter().filter(|(n, _)| n.starts_with("handed_dropped")).map(|(_, v)| *v).sum::<u64>();
            assert_eq!(handed, 0, "{model:?}");
        }
    });
}

#[test]
fn a_waker_ends_a_wait_from_another_thread() {
    models(|model| {
        let (mut engine, _other) = pair(1, model);
        let lane = engine.take_lane(0).unwrap().attach().unwrap();
        let poller = lane.poller().unwrap();
        let waker = lane.waker();
        let mut events = Events::with_capacity(1);
        for _ in 0..100 {
            let waker = waker.clone();
            let thread = thread::spawn(move || waker.wake());
            // Without the waker this would wait for ever.
            assert_eq!(poller.wait(&mut events, None).unwrap(), 0);
            thread.join().unwrap();
        }
    });
}

#[test]
fn an_idle_lane_sleeps() {
    models(|model| {
        let (mut server, mut client) = pair(1, model);
        let end = server.take_lane(0).unwrap();
        let server_stats = server.stats();
        let thread = thread::spawn(move || echo(end, 1));
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        let mut stream = connect(&lane);
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        // Timers of the exchange run out meanwhile.
        stream.set_read_timeout(Some(Duration::from_millis(600))).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let stats = lane.stats();
        let before = (stats.turns(), server_stats[0].turns());
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let turns = (stats.turns() - before.0, server_stats[0].turns() - before.1);
        // A spinning lane makes a million turns in that time.
        assert!(turns.0 < 200 && turns.1 < 200, "{model:?}: {turns:?} turns while nothing happened");
        drop(stream);
        lane.drain(Duration::from_secs(1));
        thread.join().unwrap();
    });
}

#[test]
fn calls_fail_as_bsd_calls_do() {
    models(|model| {
        let (mut server, mut client) = pair(1, model);
        let end = server.take_lane(0).unwrap();
        let (ready, wait) = std::sync::mpsc::channel();
        let (done, stop) = std::sync::mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let lane = end.attach().unwrap();
            let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
            let busy = lane.listen(addr(), ListenOptions::default());
            assert_eq!(busy.err().map(|e| e.kind()), Some(ErrorKind::AddrInUse));
            let foreign = lane.listen("192.0.2.1:80".parse().unwrap(), ListenOptions::default());
            assert_eq!(foreign.err().map(|e| e.kind()), Some(ErrorKind::AddrNotAvailable));
            ready.send(()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            stream.abort().unwrap();
            while stop.try_recv().is_err() {
                lane.advance();
            }
        });
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        wait.recv().unwrap();
        let closed = lane.connect("10.0.0.1:81".parse().unwrap());
        assert_eq!(closed.err().map(|e| e.kind()), Some(ErrorKind::ConnectionRefused));
        let nowhere = lane.connect("192.0.2.1:80".parse().unwrap());
        assert_eq!(nowhere.err().map(|e| e.kind()), Some(ErrorKind::NetworkUnreachable));
        let stream = connect(&lane);
        assert_eq!(stream.peer_addr().unwrap(), addr());
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(stream.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        done.send(()).unwrap();
        thread.join().unwrap();
    });
}

#[test]
fn a_snapshot_tells_the_connection() {
    models(|model| {
        let (mut server, mut client) = pair(1, model);
        let end = server.take_lane(0).unwrap();
        let thread = thread::spawn(move || echo(end, 1));
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        let mut stream = connect(&lane);
        stream.set_nodelay(true).unwrap();
        stream.write_all(&[7; 5000]).unwrap();
        stream.read_exact(&mut [0; 5000]).unwrap();
        let info = stream.info().unwrap();
        // A busy machine lets a tail loss probe go.
        let sent = info.bytes_sent - info.bytes_retrans;
        assert_eq!((info.state, info.bytes_received, sent), (State::Established, 5000, 5000));
        assert!(info.srtt_us > 0 && info.rto_us >= 200_000 && info.snd_mss == 1448 && info.snd_cwnd >= 10, "{info:?}");
        let unopened = lane.connect_nonblocking(addr(), ConnectOptions::default()).unwrap();
        drop(unopened);
        drop(stream);
        lane.drain(Duration::from_secs(1));
        thread.join().unwrap();
    });
}

/// What is configured of either end of a memory wire holds, or is refused.
#[test]
fn the_ends_of_a_memory_wire_are_captured_and_agree() {
    let files =
        ["a", "b"].map(|end| std::env::temp_dir().join(format!("corelane-{}-{end}.pcapng", std::process::id())));
    let config = |address: &str, file: &std::path::Path| {
        let mut c = Config::memory(address).unwrap();
        c.ports[0].pcap = Some(file.into());
        c
    };
    let (a, b) = (config("10.0.0.1/24", &files[0]), config("10.0.0.2/24", &files[1]));
    let (mut server, mut client) = Engine::memory_pair(&a, &b).unwrap();
    let end = server.take_lane(0).unwrap();
    let thread = thread::spawn(move || echo(end, 1));
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    let mut stream = connect(&lane);
    stream.write_all(b"what the wire carries").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    drop(stream);
    lane.drain(Duration::from_secs(2));
    thread.join().unwrap();
    drop((lane, server, client));
    for file in &files {
        let bytes = std::fs::read(file).unwrap();
        let times = bytes.windows(back.len()).filter(|w| *w == back).count();
        assert!(times >= 2, "{times} of both directions in {}", file.display());
        std::fs::remove_file(file).unwrap();
    }

    let (mut small, mut large) = (a.clone(), b.clone());
    (small.ports[0].mtu, large.ports[0].mtu) = (Some(1400), Some(9000));
    assert!(Engine::memory_pair(&small, &large).is_err());
    let (mut lossy, mut slow) = (a.clone(), b.clone());
    lossy.impairment.loss = 0.5;
    slow.impairment.delay = Duration::from_millis(5);
    assert!(Engine::memory_pair(&lossy, &slow).is_err());
}
