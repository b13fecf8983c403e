//! Exchanges of 64 bytes over many open connections in random order, both ends in one thread, for instruction counts, cache
//! misses and memory: nothing waits and the lanes' time is told, so a run repeats exactly.
//!
//! ```sh
//! cargo build --release -p corelane --example flows
//! valgrind --tool=cachegrind target/release/examples/flows 100000 200000
//! ```
//!
//! Arguments: connections, and exchanges on connections drawn at random.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use corelane::{
    Clock, Config, ConnectOptions, Engine, Events, Interest, Lane, ListenOptions, Model, Poller, SockOption,
    TcpListener, TcpStream, Trigger,
};

/// Exchanges under way at once.
const AT_ONCE: usize = 256;
/// Time between two turns, µs: about what they take.
const TURN_US: u64 = 200;
/// One remote port takes at most this many from one address.
const PER_PORT: usize = 40_000;

fn main() {
    let mut args = std::env::args().skip(1).map(|n| n.parse().expect("a number"));
    let (n, exchanges): (usize, usize) = (args.next().unwrap_or(100_000), args.next().unwrap_or(200_000));
    let time = Arc::new(AtomicU64::new(1_000_000));
    let config = |address: &str| {
        let mut c = Config::memory(address).expect("an address");
        (c.model, c.clock) = (Model::Inline, Clock::Told(time.clone()));
        c
    };
    let (mut server, mut client) =
        Engine::memory_pair(&config("10.0.0.1/24"), &config("10.0.0.2/24")).expect("a pair of engines");
    let server = server.take_lane(0).expect("a lane").attach().expect("attached");
    let client = client.take_lane(0).expect("a lane").attach().expect("attached");
    let mut server = Server::new(&server, n.div_ceil(PER_PORT));
    let mut client = Client::new(&client);
    let begun = Instant::now();
    while client.streams.len() < n || client.under_way > 0 {
        time.fetch_add(TURN_US, Ordering::Relaxed);
        client.open(n);
        client.turn();
        server.turn();
    }
    println!("{n} connections opened, an exchange on each: {:.2} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    run(&mut server, &mut client, exchanges, &time);
    let took = begun.elapsed().as_secs_f64();
    println!("{exchanges} exchanges, both ends in one thread: {:.0} ns each", took * 1e9 / exchanges as f64);
}

/// The counted part: callgrind's `--toggle-collect=flows::run`.
#[inline(never)]
fn run(server: &mut Server, client: &mut Client, exchanges: usize, time: &AtomicU64) {
    let goal = client.done + exchanges;
    let mut begun = client.done;
    while client.done < goal {
        time.fetch_add(TURN_US, Ordering::Relaxed);
        while client.under_way < AT_ONCE && begun < goal {
            client.ask_somebody();
            begun += 1;
        }
        client.turn();
        server.turn();
    }
}

struct Server {
    poller: Poller,
    listeners: Vec<TcpListener>,
    streams: Vec<TcpStream>,
    events: Events,
}

impl Server {
    fn new(lane: &Lane, ports: usize) -> Server {
        let poller = lane.poller().expect("a poller");
        let listeners: Vec<TcpListener> = (0..ports)
            .map(|i| {
                let addr = SocketAddr::from(([10, 0, 0, 1], 1000 + i as u16));
                let mut listener = lane.listen(addr, ListenOptions::default()).expect("a listener");
                listener.set_nonblocking(true);
                poller.add(&listener, i as u64, Interest::READ, Trigger::Level).expect("added");
                listener
            })
            .collect();
        Server { poller, listeners, streams: Vec::new(), events: Events::with_capacity(AT_ONCE) }
    }

    fn turn(&mut self) {
        let ports = self.listeners.len();
        self.poller.wait(&mut self.events, Some(Duration::ZERO)).expect("a wait");
        for event in self.events.iter() {
            if let Some(listener) = self.listeners.get(event.key as usize) {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_option(SockOption::KeepAlive(true)).expect("keepalive");
                    let key = (ports + self.streams.len()) as u64;
                    self.poller.add(&stream, key, Interest::READ, Trigger::Edge).expect("added");
                    self.streams.push(stream);
                }
                continue;
            }
            let stream = &self.streams[event.key as usize - ports];
            let mut buf = [0; 64];
            while let Ok(n @ 1..) = stream.read(&mut buf) {
                stream.write(&buf[..n]).expect("written");
            }
        }
    }
}

struct Client<'a> {
    lane: &'a Lane,
    poller: Poller,
    streams: Vec<TcpStream>,
    asked: Vec<bool>,
    events: Events,
    under_way: usize,
    done: usize,
    random: u64,
}

impl<'a> Client<'a> {
    fn new(lane: &'a Lane) -> Client<'a> {
        Client {
            lane,
            poller: lane.poller().expect("a poller"),
            streams: Vec::new(),
            asked: Vec::new(),
            events: Events::with_capacity(AT_ONCE),
            under_way: 0,
            done: 0,
            random: 1,
        }
    }

    fn open(&mut self, n: usize) {
        while self.streams.len() < n && self.under_way < AT_ONCE {
            let to = SocketAddr::from(([10, 0, 0, 1], 1000 + (self.streams.len() / PER_PORT) as u16));
            let stream = self.lane.connect_nonblocking(to, ConnectOptions::default()).expect("a connection");
            stream.set_option(SockOption::KeepAlive(true)).expect("keepalive");
            self.poller.add(&stream, self.streams.len() as u64, Interest::BOTH, Trigger::Edge).expect("added");
            self.streams.push(stream);
            self.asked.push(false);
            self.under_way += 1;
        }
    }

    /// One that waits for no answer, drawn by xorshift.
    fn ask_somebody(&mut self) {
        loop {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let at = (self.random % self.streams.len() as u64) as usize;
            if !self.asked[at] {
                self.asked[at] = true;
                self.under_way += 1;
                self.streams[at].write(&[1; 64]).expect("written");
                return;
            }
        }
    }

    fn turn(&mut self) {
        self.poller.wait(&mut self.events, Some(Duration::ZERO)).expect("a wait");
        for event in self.events.iter() {
            let at = event.key as usize;
            let mut buf = [0; 64];
            if let Ok(1..) = self.streams[at].read(&mut buf) {
                self.asked[at] = false;
                self.under_way -= 1;
                self.done += 1;
            } else if event.is_writable() && !self.asked[at] {
                self.asked[at] = true;
                self.streams[at].write(&[1; 64]).expect("written");
            }
        }
    }
}
