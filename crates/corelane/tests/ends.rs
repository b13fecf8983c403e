//! What a program does last reaches its peers: the bytes that it wrote before it went to do something else, and the end of each of
//! its connections.

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use corelane::{Config, Engine, Events, Interest, Lane, LaneHandle, ListenOptions, Model, State, TcpStream, Trigger};

/// More than the ring between application and stack holds, several times.
const MANY: usize = 10_000;
/// Reached only where nothing happens any more.
const LIMIT: Duration = Duration::from_secs(60);

fn addr() -> SocketAddr {
    "10.0.0.1:80".parse().unwrap()
}

/// The engine of a server, which has a thread for its lane, and one of a model.
fn pair(model: Model) -> (Engine, Engine) {
    let config = |a: &str, model| Config { model, ..Config::memory(a).unwrap() };
    Engine::memory_pair(&config("10.0.0.1/24", Model::Paired), &config("10.0.0.2/24", model)).unwrap()
}

fn connect(lane: &Lane) -> TcpStream {
    let end = Instant::now() + LIMIT;
    loop {
        match lane.connect(addr()) {
            Ok(stream) => return stream,
            // The server's thread is not there yet.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => thread::yield_now(),
            Err(e) => panic!("connect: {e}"),
        }
    }
}

/// Tells each byte of one connection, and 0 at its end.
fn teller(end: LaneHandle, tell: Sender<u8>) -> JoinHandle<()> {
    thread::spawn(move || {
        let lane = end.attach().unwrap();
        let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() > 0 {
            tell.send(byte[0]).unwrap();
        }
        tell.send(0).unwrap();
    })
}

/// The peer hears what was done while the program waits for that without a call of the lane's.
fn heard_meanwhile(model: Model, what: fn(&Lane, &mut TcpStream)) {
    let (mut server, mut client) = pair(model);
    let (tell, told) = channel();
    let thread = teller(server.take_lane(0).unwrap(), tell);
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    let mut stream = connect(&lane);
    what(&lane, &mut stream);
    assert_eq!(told.recv_timeout(LIMIT), Ok(b'a'), "{model:?}");
    drop(stream);
    if model != Model::Inline {
        assert_eq!(told.recv_timeout(LIMIT), Ok(0), "{model:?}");
    }
    drop(lane);
    thread.join().unwrap();
}

#[test]
fn what_a_blocking_stream_was_given_leaves_while_its_program_waits_elsewhere() {
    for model in [Model::Paired, Model::Guarded] {
        heard_meanwhile(model, |_, stream| stream.write_all(b"a").unwrap());
    }
}

#[test]
fn what_a_nonblocking_stream_was_given_leaves_while_its_program_waits_elsewhere() {
    for model in [Model::Paired, Model::Guarded] {
        heard_meanwhile(model, |_, stream| {
            stream.set_nonblocking(true);
            stream.write_all(b"a").unwrap();
        });
    }
}

#[test]
fn flush_sends_in_every_model() {
    for model in [Model::Paired, Model::Guarded, Model::Inline] {
        heard_meanwhile(model, |lane, stream| {
            // The lane has heard that it is connected, and has its peer's address.
            lane.advance();
            stream.set_nonblocking(true);
            stream.write_all(b"a").unwrap();
            stream.flush().unwrap();
        });
    }
}

/// Drained means that the peer has what was written and the end, whoever runs the lane.
#[test]
fn drained_is_what_the_peer_has() {
    // The lane of a pair may by chance be done in the time that a drain takes which does not wait.
    for model in [Model::Paired; 10].into_iter().chain([Model::Guarded, Model::Inline]) {
        let (mut server, mut client) = pair(model);
        let (tell, told) = channel();
        let thread = teller(server.take_lane(0).unwrap(), tell);
        let lane = client.take_lane(0).unwrap().attach().unwrap();
        for _ in 0..2 {
            lane.advance();
        }
        let stream = connect(&lane);
        (&stream).write_all(b"a").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        lane.drain(LIMIT);
        // The peer's stack has the end already, whether its program has heard of it or not. Of a connection that is over nothing is told.
        if let Ok(info) = stream.info() {
            assert!(matches!(info.state, State::FinWait2 | State::TimeWait | State::Closed), "{model:?}: {info:?}");
        }
        drop(stream);
        assert_eq!((told.recv_timeout(LIMIT), told.recv_timeout(LIMIT)), (Ok(b'a'), Ok(0)), "{model:?}");
        thread.join().unwrap();
    }
}

/// A peer that goes on taking what is meant for it, slowly, holds an end up for no longer than the configuration says.
#[test]
fn a_peer_that_is_slow_is_reset_in_the_end() {
    const ALL: usize = 8 << 20;
    let mut config = Config { end_s: 1, ..Config::memory("10.0.0.2/24").unwrap() };
    (config.tcp.send_buffer, config.tcp.send_buffer_max) = (Some(ALL as u32), Some(ALL as u32));
    let server = Config { model: Model::Paired, ..Config::memory("10.0.0.1/24").unwrap() };
    let (mut server, mut client) = Engine::memory_pair(&server, &config).unwrap();
    let end = server.take_lane(0).unwrap();
    let reader = thread::spawn(move || {
        let lane = end.attach().unwrap();
        let listener = lane.listen(addr(), ListenOptions::default()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (mut buf, mut got) = (vec![0; 16 << 10], 0);
        // 2 MB a second at most, where an end waits for one.
        loop {
            match stream.read(&mut buf) {
                Ok(n) if n > 0 => got += n,
                end => break (got, end.map_err(|e| e.kind())),
            }
            thread::sleep(Duration::from_millis(8));
        }
    });
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    let stream = connect(&lane);
    stream.set_nonblocking(true);
    let mut written = 0;
    while let Ok(n) = stream.write(&vec![7; 64 << 10]) {
        written += n;
    }
    assert!(written > ALL / 2, "{written} bytes");
    drop(stream);
    drop(lane);
    drop(client);
    let (got, end) = reader.join().unwrap();
    assert_eq!(end, Err(ErrorKind::ConnectionReset), "{got} of {written} bytes");
    assert!(got < written);
}

/// Accepts `n` connections, says so, and counts those that end.
fn counter(end: LaneHandle, n: usize, tell: Sender<usize>) -> JoinHandle<()> {
    thread::spawn(move || {
        let lane = end.attach().unwrap();
        let mut listener = lane.listen(addr(), ListenOptions { backlog: n as u32, ..Default::default() }).unwrap();
        listener.set_nonblocking(true);
        let poller = lane.poller().unwrap();
        poller.add(&listener, u64::MAX, Interest::READ, Trigger::Level).unwrap();
        let (mut streams, mut ended) = (Vec::new(), 0);
        let (mut events, mut buf) = (Events::with_capacity(1024), [0; 16]);
        while ended < n {
            if poller.wait(&mut events, Some(LIMIT)).unwrap() == 0 {
                break;
            }
            for event in events.iter() {
                if event.key == u64::MAX {
                    while let Ok((stream, _)) = listener.accept() {
                        poller.add(&stream, streams.len() as u64, Interest::READ, Trigger::Level).unwrap();
                        streams.push(Some(stream));
                        if streams.len() == n {
                            tell.send(n).unwrap();
                        }
                    }
                    continue;
                }
                let Some(stream) = &streams[event.key as usize] else { continue };
                match stream.read(&mut buf) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Ok(1..) => panic!("nothing was written"),
                    Ok(0) | Err(_) => {
                        streams[event.key as usize] = None;
                        ended += 1;
                    }
                }
            }
        }
        tell.send(ended).unwrap();
        lane.drain(Duration::from_secs(2));
    })
}

/// Opens as many connections as the server waits for.
fn open(lane: &Lane, n: usize) -> Vec<TcpStream> {
    let mut streams = vec![connect(lane)];
    while streams.len() < n {
        let more = (n - streams.len()).min(500);
        let begun: Vec<_> = (0..more).map(|_| lane.connect_nonblocking(addr(), Default::default()).unwrap()).collect();
        lane.advance();
        streams.extend(begun);
    }
    streams
}

fn many_end(model: Model, end: fn(Vec<TcpStream>, Lane, Engine)) {
    let (mut server, mut client) = pair(model);
    let (tell, told) = channel();
    let thread = counter(server.take_lane(0).unwrap(), MANY, tell);
    let lane = client.take_lane(0).unwrap().attach().unwrap();
    let streams = open(&lane, MANY);
    let limit = Instant::now() + LIMIT;
    while told.try_recv().is_err() {
        assert!(Instant::now() < limit, "{model:?}: not all are open");
        lane.advance();
        thread::yield_now();
    }
    end(streams, lane, client);
    assert_eq!(told.recv_timeout(LIMIT + LIMIT), Ok(MANY), "{model:?}");
    thread.join().unwrap();
}

#[test]
fn ten_thousand_streams_that_are_dropped_with_their_lane_end() {
    for model in [Model::Inline, Model::Paired, Model::Guarded] {
        many_end(model, |streams, lane, engine| {
            drop(streams);
            drop(lane);
            engine.shutdown();
        });
    }
}

/// As where the thread that has them does not come back.
#[test]
fn ten_thousand_streams_that_nobody_closes_end_with_the_engine() {
    for model in [Model::Paired, Model::Guarded] {
        many_end(model, |streams, lane, engine| {
            std::mem::forget((streams, lane));
            engine.shutdown();
        });
    }
}
