//! Both ends of short transactions: a connection, 64 bytes there and back, the server closes first.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corelane::{ConnectOptions, Events, Interest, Lane, ListenOptions, Poller, TcpStream, Trigger};

const AT_ONCE: usize = 256;

/// Time between two turns, µs: about what they take.
const TURN_US: u64 = 200;

/// Lets both ends run by turns until `n` connections are done, and tells them the time.
#[inline(always)]
pub fn run(server: &mut Server, client: &mut Client, n: usize, time: &AtomicU64) {
    (client.begun, client.done, client.goal) = (0, 0, n);
    while client.done < n {
        time.fetch_add(TURN_US, Ordering::Relaxed);
        client.turn();
        server.turn();
    }
}

/// Echoes 64 bytes, and closes first.
pub struct Server<'a> {
    poller: Poller,
    listener: corelane::TcpListener,
    streams: Vec<Option<TcpStream>>,
    free: Vec<usize>,
    events: Events,
    _lane: &'a Lane,
}

impl<'a> Server<'a> {
    pub fn new(lane: &'a Lane) -> Server<'a> {
        let mut listener =
            lane.listen(SocketAddr::from(([10, 0, 0, 1], 80)), ListenOptions::default()).expect("a listener");
        listener.set_nonblocking(true);
        let poller = lane.poller().expect("a poller");
        poller.add(&listener, u64::MAX, Interest::READ, Trigger::Level).expect("added");
        Server {
            poller,
            listener,
            streams: (0..4 * AT_ONCE).map(|_| None).collect(),
            free: (0..4 * AT_ONCE).rev().collect(),
            events: Events::with_capacity(AT_ONCE),
            _lane: lane,
        }
    }

    pub fn turn(&mut self) {
        self.poller.wait(&mut self.events, Some(Duration::ZERO)).expect("a wait");
        for event in self.events.iter() {
            if event.key == u64::MAX {
                while let Ok((stream, _)) = self.listener.accept() {
                    let at = self.free.pop().expect("room");
                    self.poller.add(&stream, at as u64, Interest::READ, Trigger::Edge).expect("added");
                    self.streams[at] = Some(stream);
                }
                continue;
            }
            let at = event.key as usize;
            let Some(stream) = &self.streams[at] else { continue };
            let mut buf = [0; 64];
            if let Ok(n @ 1..) = stream.read(&mut buf) {
                stream.write(&buf[..n]).expect("written");
                self.streams[at] = None;
                self.free.push(at);
            }
        }
    }
}

/// Opens as many connections as it is to, 256 at once.
pub struct Client<'a> {
    lane: &'a Lane,
    poller: Poller,
    streams: [Option<TcpStream>; AT_ONCE],
    idle: Vec<usize>,
    events: Events,
    begun: usize,
    done: usize,
    goal: usize,
}

impl<'a> Client<'a> {
    pub fn new(lane: &'a Lane) -> Client<'a> {
        Client {
            lane,
            poller: lane.poller().expect("a poller"),
            streams: [const { None }; AT_ONCE],
            idle: (0..AT_ONCE).collect(),
            events: Events::with_capacity(AT_ONCE),
            begun: 0,
            done: 0,
            goal: 0,
        }
    }

    pub fn turn(&mut self) {
        while self.begun < self.goal {
            let Some(at) = self.idle.pop() else { break };
            let to = SocketAddr::from(([10, 0, 0, 1], 80));
            let stream = self.lane.connect_nonblocking(to, ConnectOptions::default()).expect("a connection");
            self.poller.add(&stream, at as u64, Interest::BOTH, Trigger::Edge).expect("added");
            self.streams[at] = Some(stream);
            self.begun += 1;
        }
        self.poller.wait(&mut self.events, Some(Duration::ZERO)).expect("a wait");
        for event in self.events.iter() {
            let at = event.key as usize;
            let Some(stream) = &self.streams[at] else { continue };
            let mut buf = [0; 64];
            match stream.read(&mut buf) {
                Ok(_) => {
                    self.streams[at] = None;
                    self.idle.push(at);
                    self.done += 1;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if event.is_writable() {
                        stream.write(&[1; 64]).expect("written");
                    }
                }
                Err(e) => panic!("{e}"),
            }
        }
    }
}
