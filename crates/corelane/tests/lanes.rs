//! Lanes with real threads over the memory wire, in each thread model.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corelane::{
    Algorithm, Config, ConnectOptions, Engine, Events, Interest, Lane, LaneHandle, ListenOptions, Model, RecvFlags,
    SockOption, State, Trigger,
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
    f(Model::Guarded);
}

/// Echoes `n` connections to their ends, one after the other.
fn echo(end: LaneHandle, n: usize) {
    echo_when(end, n, || ());
}

/// The same; `listens` is called when it can be connected to.
fn echo_when(end: LaneHandle, n: usize, listens: impl FnOnce()) {
    let lane = end.attach().unwrap();
    let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
    listens();
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
        let (tell, told) = std::sync::mpsc::channel();
        let servers: Vec<_> = ends
            .into_iter()
            .map(|end| {
                let tell = tell.clone();
                thread::spawn(move || echo_when(end, 50, || tell.send(()).unwrap()))
            })
            .collect();
        // Both listen before anybody asks: else one would be given the other's connections.
        (0..2).for_each(|_| told.recv().unwrap());
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
        // Ports were chosen so that every reply came back to its own lane: only ARP, which each lane sends and answers for
        // itself, is told to the other. Half of the replies would be fifty frames and more.
        for stats in client.stats().iter().chain(&server.stats()) {
            let (out, frames) = (stats.handed_out(), stats.rx_frames());
            assert!(out <= 10 && frames >= 100, "{model:?}: {out} of {frames} frames handed over");
            assert_eq!((stats.handed_dropped(), stats.fallback_out()), (0, 0), "{model:?}");
        }
    });
}

/// Of the ports that an application may name, a lane takes those whose replies come to it, and says so of the others.
#[test]
fn a_named_port_is_one_lanes() {
    let (mut server, mut client) = pair(2, Model::Paired);
    let (tell, told) = std::sync::mpsc::channel();
    let done = Arc::new(AtomicBool::new(false));
    let servers: Vec<_> = (0..2)
        .map(|i| (server.take_lane(i).unwrap(), tell.clone(), done.clone()))
        .map(|(end, tell, done)| {
            thread::spawn(move || {
                let lane = end.attach().unwrap();
                let mut listener = lane.listen(addr(), ListenOptions::default()).unwrap();
                listener.set_nonblocking(true);
                tell.send(()).unwrap();
                while !done.load(Ordering::Relaxed) {
                    let _ = listener.accept();
                    thread::sleep(Duration::from_millis(1));
                }
            })
        })
        .collect();
    (0..2).for_each(|_| told.recv().unwrap());
    let lanes: Vec<Lane> = (0..2).map(|i| client.take_lane(i).unwrap().attach().unwrap()).collect();
    for port in 30_000..30_016 {
        let options =
            ConnectOptions { bind: Some(([10, 0, 0, 2], port).into()), timeout: Some(Duration::from_secs(20)) };
        let taken = lanes.iter().filter(|lane| match lane.connect_with(addr(), options) {
            Ok(_) => true,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::AddrNotAvailable, "{e}");
                false
            }
        });
        assert_eq!(taken.count(), 1, "port {port}");
    }
    done.store(true, Ordering::Relaxed);
    servers.into_iter().for_each(|t| t.join().unwrap());
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
        let looks = stats.guard_looks() + server_stats[0].guard_looks();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let turns = (stats.turns() - before.0, server_stats[0].turns() - before.1);
        // A spinning lane makes a million turns in that time.
        assert!(turns.0 < 200 && turns.1 < 200, "{model:?}: {turns:?} turns while nothing happened");
        // Guards that do not doze look 600 times each.
        let looks = stats.guard_looks() + server_stats[0].guard_looks() - looks;
        assert!(looks < 300, "{model:?}: {looks} looks while nothing happened");
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
            // Not before the other end has looked at it.
            stop.recv().unwrap();
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
        done.send(()).unwrap();
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

#[test]
fn options_are_set_before_the_handshake_and_inherited() {
    models(|model| {
        let (mut a, mut b) = pair(1, model);
        let server = a.take_lane(0).unwrap();
        let serving = thread::spawn(move || {
            let lane = server.attach().unwrap();
            let socket = lane.socket_v4().unwrap();
            socket.set_option(SockOption::Congestion(Algorithm::NewReno)).unwrap();
            socket.set_option(SockOption::UserTimeout(7_000)).unwrap();
            socket.bind(addr()).unwrap();
            let listener = socket.listen(16).unwrap();
            let reno = SockOption::Congestion(Algorithm::NewReno);
            assert_eq!(listener.option(SockOption::Congestion(Algorithm::Cubic)).unwrap(), reno);
            let (mut stream, _) = listener.accept().unwrap();
            assert_eq!(stream.option(SockOption::Congestion(Algorithm::Cubic)).unwrap(), reno);
            assert_eq!(stream.option(SockOption::UserTimeout(0)).unwrap(), SockOption::UserTimeout(7_000));
            assert_eq!(stream.info().unwrap().snd_mss, 700 - 12);
            std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        });
        let lane = b.take_lane(0).unwrap().attach().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        let stream = loop {
            let socket = lane.socket_v4().unwrap();
            // With it our own SYN says so.
            socket.set_option(SockOption::MaxSegment(700)).unwrap();
            match socket.connect(addr(), None) {
                Err(e) if e.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => thread::yield_now(),
                other => break other.unwrap(),
            }
        };
        drop(stream);
        lane.drain(Duration::from_secs(2));
        serving.join().unwrap();
    });
}

#[test]
fn an_own_address_is_no_peer() {
    let (mut a, _b) = pair(1, Model::Inline);
    let lane = a.take_lane(0).unwrap().attach().unwrap();
    let _listener = lane.listen(addr(), ListenOptions::default()).unwrap();
    assert_eq!(lane.connect(addr()).err().unwrap().kind(), ErrorKind::HostUnreachable);
}

#[test]
fn a_listen_that_fails_leaves_nothing_behind() {
    let config = |address: &str| Config { max_sockets: 4, ..Config::memory(address).unwrap() };
    let (mut a, _b) = Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).unwrap();
    let lane = a.take_lane(0).unwrap().attach().unwrap();
    let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
    for _ in 0..10 {
        let refused = lane.listen(addr(), ListenOptions::default()).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        let options = ConnectOptions { bind: Some("[fd00::1]:9".parse().unwrap()), ..ConnectOptions::default() };
        assert!(lane.connect_nonblocking(addr(), options).is_err());
    }
    drop(listener);
    let any = lane.listen("10.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
    assert_ne!(any.local_addr().unwrap().port(), 0);
}

/// Whoever waits for a lane whose thread has ended is told, and not left to wait.
#[test]
fn shutting_down_ends_the_calls_that_wait() {
    for model in [Model::Paired, Model::Guarded] {
        let (mut a, _b) = pair(1, model);
        let handle = a.take_lane(0).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = thread::spawn(move || {
            let lane = handle.attach().unwrap();
            let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
            tell.send(()).unwrap();
            assert_eq!(listener.accept().err().unwrap().kind(), ErrorKind::NetworkDown);
            let poller = lane.poller().unwrap();
            poller.add(&listener, 1, Interest::READ, Trigger::Level).unwrap();
            let error = poller.wait(&mut Events::with_capacity(1), None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkDown);
        });
        told.recv().unwrap();
        a.shutdown();
        waiting.join().unwrap();
    }
}

#[test]
fn the_smaller_mtu_of_an_end_is_kept_to() {
    let (client, mut server) = (Config::memory("10.0.0.2/24").unwrap(), Config::memory("10.0.0.1/24").unwrap());
    server.ports[0].mtu = Some(1280);
    let mut client = client;
    client.ports[0].mtu = Some(4000);
    let (mut a, mut b) = Engine::memory_pair(&client, &server).unwrap();
    let serving = {
        let handle = b.take_lane(0).unwrap();
        thread::spawn(move || echo(handle, 1))
    };
    let lane = a.take_lane(0).unwrap().attach().unwrap();
    let stream = connect(&lane);
    // 1280 less the headers of IP and TCP, and timestamps.
    assert_eq!(stream.info().unwrap().snd_mss, 1228);
    drop(stream);
    lane.drain(Duration::from_secs(2));
    serving.join().unwrap();
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

    let (mut lossy, mut slow) = (a.clone(), b.clone());
    lossy.impairment.loss = 0.5;
    slow.impairment.delay = Duration::from_millis(5);
    assert!(Engine::memory_pair(&lossy, &slow).is_err());
}

/// Frames of one lane arrive on another's queue, so the engine runs a lane on when its application has gone.
#[test]
fn a_lane_outlives_its_application() {
    models(|model| {
        let (mut a, _b) = pair(2, model);
        drop(a.take_lane(0));
        let lane = a.take_lane(1).unwrap().attach().unwrap();
        let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
        drop((lane, listener));
        let lanes: Vec<u16> = a.snapshots(Duration::from_secs(20)).iter().map(|s| s.lane).collect();
        assert_eq!(lanes, [0, 1], "{model:?}");
        a.shutdown();
    });
}

/// A call that waits goes on until what was asked for is there: SO_RCVLOWAT, MSG_WAITALL.
#[test]
fn a_blocking_read_waits_for_enough() {
    models(|model| {
        let (mut a, mut b) = pair(1, model);
        let server = a.take_lane(0).unwrap();
        let serving = thread::spawn(move || {
            let lane = server.attach().unwrap();
            let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            for part in [b"abc", b"def", b"ghi", b"jkl"] {
                assert_eq!(stream.write(part).unwrap(), 3);
                // So that the parts come apart; together they would show nothing.
                lane.drain(Duration::from_millis(20));
                thread::sleep(Duration::from_millis(20));
            }
            drop(stream);
            lane.drain(Duration::from_secs(2));
        });
        let lane = b.take_lane(0).unwrap().attach().unwrap();
        let stream = connect(&lane);
        let mut buf = [0; 64];
        stream.set_option(SockOption::ReceiveLow(4)).unwrap();
        let n = stream.read(&mut buf).unwrap();
        assert!(n >= 4, "{n}");
        let all = RecvFlags { wait_all: true, ..RecvFlags::default() };
        assert_eq!(stream.recv(&mut buf[n..11], all).unwrap(), 11 - n);
        assert_eq!(&buf[..11], b"abcdefghijk");
        assert_eq!(stream.recv(&mut buf[11..], all).unwrap(), 1);
        assert_eq!((stream.unacknowledged().unwrap(), stream.at_mark().unwrap()), (0, false));
        drop(stream);
        serving.join().unwrap();
    });
}

/// Closing is heard of, also where the application does nothing after it.
#[test]
fn a_dropped_lane_closes_its_connections() {
    for model in [Model::Paired, Model::Guarded] {
        let (mut a, mut b) = pair(1, model);
        let server = a.take_lane(0).unwrap();
        let serving = thread::spawn(move || {
            let lane = server.attach().unwrap();
            let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            stream.read(&mut [0; 8]).unwrap()
        });
        let lane = b.take_lane(0).unwrap().attach().unwrap();
        drop((connect(&lane), lane));
        assert_eq!(serving.join().unwrap(), 0, "{model:?}");
    }
}

/// A lane that never sleeps works, and one that waits has its limit.
#[test]
fn a_busy_lane_never_sleeps() {
    models(|model| {
        let config = |address: &str| Config { busy_poll: true, model, ..Config::memory(address).unwrap() };
        let (mut a, mut b) = Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).unwrap();
        let end = a.take_lane(0).unwrap();
        let thread = thread::spawn(move || echo(end, 1));
        let lane = b.take_lane(0).unwrap().attach().unwrap();
        let mut stream = connect(&lane);
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        stream.set_read_timeout(None).unwrap();
        for _ in 0..20 {
            stream.write_all(b"hello").unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
        }
        assert_eq!(lane.stats().sleeps(), 0, "{model:?}");
        drop(stream);
        lane.drain(Duration::from_secs(2));
        thread.join().unwrap();
    });
}

/// Echoes on this lane until told to stop, and says how many connections that were.
fn echo_until(end: LaneHandle, stop: Arc<AtomicBool>, ready: std::sync::mpsc::Sender<()>) -> usize {
    let lane = end.attach().unwrap();
    let mut listener = lane.listen(addr(), ListenOptions::default()).unwrap();
    listener.set_nonblocking(true);
    let poller = lane.poller().unwrap();
    poller.add(&listener, 0, Interest::READ, Trigger::Level).unwrap();
    ready.send(()).unwrap();
    let (mut streams, mut events, mut buf) = (Vec::new(), Events::with_capacity(64), [0; 4096]);
    let mut accepted = 0;
    while !stop.load(Ordering::Relaxed) {
        poller.wait(&mut events, Some(Duration::from_millis(20))).unwrap();
        while let Ok((stream, _)) = listener.accept() {
            accepted += 1;
            poller.add(&stream, accepted, Interest::READ, Trigger::Level).unwrap();
            streams.push(stream);
        }
        streams.retain(|stream: &corelane::TcpStream| match stream.read(&mut buf) {
            Ok(0) => false,
            Ok(n) => stream.write(&buf[..n]).is_ok(),
            Err(e) => e.kind() == ErrorKind::WouldBlock,
        });
    }
    drop((streams, listener, poller));
    lane.drain(Duration::from_secs(2));
    accepted as usize
}

/// A lane whose application does not listen, or has gone, turns nobody away: its connections go to a lane that listens, and
/// stay there when others begin to.
#[test]
fn a_lane_without_a_listener_gives_its_connections_to_one_with() {
    models(|model| {
        let (mut server, mut client) = pair(2, model);
        let (tell, told) = std::sync::mpsc::channel();
        let stops = [(); 2].map(|_| Arc::new(AtomicBool::new(false)));
        let serve = |server: &mut Engine, at: usize| {
            let (end, stop, tell) = (server.take_lane(at).unwrap(), stops[at].clone(), tell.clone());
            let thread = thread::spawn(move || echo_until(end, stop, tell));
            told.recv().unwrap();
            thread
        };
        // Only lane 1 listens; the application of lane 0 is not there yet, so something must run the lane.
        let zero = server.take_lane(0).unwrap();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let stop0 = stops[0].clone();
        let tell0 = tell.clone();
        let first = thread::spawn(move || {
            let lane = zero.attach().unwrap();
            while gone.try_recv().is_err() {
                lane.advance();
                thread::yield_now();
            }
            let mut listener = lane.listen(addr(), ListenOptions::default()).unwrap();
            listener.set_nonblocking(true);
            tell0.send(()).unwrap();
            let mut kept = Vec::new();
            while !stop0.load(Ordering::Relaxed) {
                lane.advance();
                while let Ok((stream, _)) = listener.accept() {
                    kept.push(stream);
                }
                let mut buf = [0; 64];
                for stream in &kept {
                    if let Ok(n @ 1..) = stream.read(&mut buf) {
                        stream.write(&buf[..n]).unwrap();
                    }
                }
                thread::yield_now();
            }
            kept.len()
        });
        let second = serve(&mut server, 1);
        let lanes: Vec<LaneHandle> = (0..2).map(|at| client.take_lane(at).unwrap()).collect();
        let to_main = std::sync::mpsc::channel::<()>();
        let mut begins = Vec::new();
        let clients: Vec<_> = lanes
            .into_iter()
            .map(|end| {
                let (begin, begun) = std::sync::mpsc::channel::<()>();
                begins.push(begin);
                let done = to_main.0.clone();
                thread::spawn(move || {
                    let lane = end.attach().unwrap();
                    let speak = |stream: &mut corelane::TcpStream| {
                        stream.write_all(b"speak").unwrap();
                        let heard = stream.read_exact(&mut [0; 5]);
                        assert!(heard.is_ok(), "{model:?}, lane {}: {heard:?}", lane.index());
                    };
                    let open = |n: usize| -> Vec<corelane::TcpStream> {
                        (0..n).map(|_| lane.connect(addr()).unwrap()).collect()
                    };
                    let mut early = open(30);
                    early.iter_mut().for_each(speak);
                    // The other lane's frames come by this one's queue.
                    let pause = |lane: &Lane| {
                        done.send(()).unwrap();
                        while begun.try_recv().is_err() {
                            lane.advance();
                            thread::yield_now();
                        }
                    };
                    pause(&lane);
                    // Now both listen: the early ones live where they began.
                    let mut late = open(30);
                    early.iter_mut().chain(&mut late).for_each(speak);
                    pause(&lane);
                    drop((early, late));
                    pause(&lane);
                    // And now lane 0 listens no more.
                    let mut last = open(30);
                    last.iter_mut().for_each(speak);
                    drop(last);
                    pause(&lane);
                    lane.drain(Duration::from_secs(2));
                })
            })
            .collect();
        let all_done = || (0..2).for_each(|_| to_main.1.recv_timeout(Duration::from_secs(60)).unwrap());
        let all_go = || begins.iter().for_each(|b| b.send(()).unwrap());
        all_done();
        assert_eq!(server.stats()[0].connections(), 0, "{model:?}");
        assert!(server.stats()[0].fallback_out() > 0, "{model:?}");
        go.send(()).unwrap();
        told.recv_timeout(Duration::from_secs(60)).unwrap();
        all_go();
        all_done();
        assert!(server.stats()[0].connections() > 0, "{model:?}");
        all_go();
        all_done();
        // The application of lane 0 ends; the engine runs its lane on.
        stops[0].store(true, Ordering::Relaxed);
        let zeros = first.join().unwrap();
        // A lane answers before it does what its application asked for last: so twice.
        (0..2).for_each(|_| assert_eq!(server.snapshots(Duration::from_secs(20)).len(), 2));
        all_go();
        all_done();
        all_go();
        clients.into_iter().for_each(|t| t.join().unwrap());
        stops[1].store(true, Ordering::Relaxed);
        let ones = second.join().unwrap();
        assert_eq!(zeros + ones, 180, "{model:?}: {zeros} and {ones}");
        assert!(zeros > 0, "{model:?}");
        for stats in server.stats() {
            assert_eq!(stats.handed_dropped(), 0, "{model:?}");
        }
    });
}
