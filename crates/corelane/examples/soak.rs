//! The program that `ci.sh soak` runs for hours: it serves, connects, and opens and closes ports without end, on one device.
//!
//! `soak CONFIG PEER...` reads commands from standard input, one a line:
//!
//! - `busy`: serve an echo on port 80 and on a port that changes, and exchange bytes with the echo servers PEER...
//! - `quiet`: close all but port 80, and connect nowhere
//! - `sample`: print what all lanes count, as one line of JSON
//! - `end`: shut down
//!
//! Every byte that comes back is compared. One that differs ends the program with exit code 1.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::exit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corelane::{
    Config, ConnectOptions, Engine, Events, Interest, Lane, ListenOptions, Poller, TcpListener, TcpStream, Trigger,
};

/// Connections of a lane's own at once.
const OPEN: usize = 24;
/// How long a port of the changing kind is listened on.
const PORT_TIME: Duration = Duration::from_millis(40);
/// Ports of that kind.
const PORTS: std::ops::Range<u16> = 20_000..24_000;
/// A connection that is older is reset.
const OLD: Duration = Duration::from_secs(8);

/// What all threads know.
#[derive(Default)]
struct Shared {
    peers: Vec<SocketAddr>,
    busy: AtomicBool,
    end: AtomicBool,
    /// Exchanges that went well, connections that failed, ports that were listened on, calls to listen that failed.
    done: AtomicU64,
    failed: AtomicU64,
    listened: AtomicU64,
    refused: AtomicU64,
    /// Why the last of these failed.
    why: Mutex<String>,
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

enum Role {
    /// Gives back what comes; bytes that could not be written yet.
    Echo(Vec<u8>),
    /// Sends so many bytes and reads them back: all, sent, received.
    Client(u64, u64, u64),
}

struct Conn {
    stream: TcpStream,
    role: Role,
    since: Instant,
}

/// The byte at this place of a client's stream.
fn pattern(at: u64) -> u8 {
    ((at * 131) >> 3) as u8
}

impl Conn {
    /// Goes on as far as it can; whether it is over.
    fn go_on(&mut self, shared: &Shared) -> io::Result<bool> {
        let mut buf = [0; 8192];
        let block = |e: &io::Error| e.kind() == io::ErrorKind::WouldBlock;
        match &mut self.role {
            Role::Echo(pending) => loop {
                while !pending.is_empty() {
                    match self.stream.write(pending) {
                        Ok(n) => drop(pending.drain(..n)),
                        Err(e) if block(&e) => return Ok(false),
                        Err(e) => return Err(e),
                    }
                }
                match self.stream.read(&mut buf) {
                    Ok(0) => return Ok(true),
                    Ok(n) => pending.extend_from_slice(&buf[..n]),
                    Err(e) if block(&e) => return Ok(false),
                    Err(e) => return Err(e),
                }
            },
            Role::Client(all, sent, received) => {
                while *sent < *all {
                    let n = (*all - *sent).min(buf.len() as u64) as usize;
                    (0..n).for_each(|i| buf[i] = pattern(*sent + i as u64));
                    match self.stream.write(&buf[..n]) {
                        Ok(n) => *sent += n as u64,
                        Err(e) if block(&e) => break,
                        Err(e) => return Err(e),
                    }
                }
                while *received < *all {
                    match self.stream.read(&mut buf) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(n) => {
                            if let Some(i) = (0..n).find(|i| buf[*i] != pattern(*received + *i as u64)) {
                                eprintln!("soak: byte {} of an exchange differs", *received + i as u64);
                                exit(1);
                            }
                            *received += n as u64;
                        }
                        Err(e) if block(&e) => return Ok(false),
                        Err(e) => return Err(e),
                    }
                }
                shared.done.fetch_add(1, Ordering::Relaxed);
                Ok(true)
            }
        }
    }
}

struct Program<'a> {
    lane: Lane,
    poller: Poller,
    shared: &'a Shared,
    random: Random,
    conns: Vec<Option<Conn>>,
}

impl Program<'_> {
    fn add(&mut self, stream: TcpStream, role: Role) -> io::Result<()> {
        stream.set_nonblocking(true);
        let key = self.conns.iter().position(Option::is_none).unwrap_or(self.conns.len());
        self.poller.add(&stream, key as u64 + 2, Interest::BOTH, Trigger::Edge)?;
        let conn = Some(Conn { stream, role, since: Instant::now() });
        match self.conns.get_mut(key) {
            Some(place) => *place = conn,
            None => self.conns.push(conn),
        }
        self.serve(key);
        Ok(())
    }

    fn serve(&mut self, key: usize) {
        let Some(conn) = self.conns.get_mut(key).and_then(Option::as_mut) else { return };
        match conn.go_on(self.shared) {
            Ok(false) => {}
            Ok(true) => self.leave(key),
            // Links go down, peers are killed.
            Err(_) => {
                self.shared.failed.fetch_add(1, Ordering::Relaxed);
                self.leave(key);
            }
        }
    }

    /// Closes, and now and then resets.
    fn leave(&mut self, key: usize) {
        let Some(conn) = self.conns[key].take() else { return };
        let _ = if self.random.below(8) == 0 { conn.stream.abort() } else { conn.stream.close() };
    }

    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        while let Ok((stream, _)) = listener.accept() {
            self.add(stream, Role::Echo(Vec::new()))?;
        }
        Ok(())
    }

    /// A connection to a peer, or to an address where nobody is, of which it is soon closed.
    fn connect(&mut self) -> io::Result<()> {
        let mut peer = self.shared.peers[self.random.below(self.shared.peers.len() as u64) as usize];
        if let (0, IpAddr::V4(to)) = (self.random.below(6), peer.ip()) {
            let [a, b, c, _] = to.octets();
            peer.set_ip([a, b, c, 100 + self.random.below(100) as u8].into());
        }
        let bits = self.random.below(19);
        let all = 1 + self.random.below(1 << bits);
        // There may be no route while a link is down.
        let Ok(stream) = self.lane.connect_nonblocking(peer, ConnectOptions::default()) else { return Ok(()) };
        self.add(stream, Role::Client(all, 0, 0))
    }

    fn listen(&mut self, port: u16, key: u64) -> io::Result<TcpListener> {
        let mut listener = self.lane.listen((Ipv6Addr::UNSPECIFIED, port).into(), ListenOptions::default())?;
        listener.set_nonblocking(true);
        self.poller.add(&listener, key, Interest::READ, Trigger::Level)?;
        Ok(listener)
    }

    fn run(&mut self) -> io::Result<()> {
        let fixed = self.listen(80, 0)?;
        let mut changing: Option<(TcpListener, Instant)> = None;
        let mut events = Events::with_capacity(256);
        while !self.shared.end.load(Ordering::Relaxed) {
            self.poller.wait(&mut events, Some(Duration::from_millis(5)))?;
            for event in events.iter().collect::<Vec<_>>() {
                match event.key {
                    0 => self.accept(&fixed)?,
                    1 => {
                        if let Some((listener, _)) = &changing {
                            self.accept(listener)?;
                        }
                    }
                    key => self.serve(key as usize - 2),
                }
            }
            let busy = self.shared.busy.load(Ordering::Relaxed);
            for key in 0..self.conns.len() {
                let Some(conn) = &self.conns[key] else { continue };
                let (age, mine) = (conn.since.elapsed(), matches!(conn.role, Role::Client(..)));
                // What leads nowhere is given up while it is still being tried.
                let given_up = mine && age > Duration::from_millis(500) && self.random.below(50) == 0;
                if given_up || age > OLD || !busy && age > Duration::from_millis(200) {
                    self.leave(key);
                }
            }
            if !busy {
                changing = None;
                continue;
            }
            if changing.as_ref().is_none_or(|(_, since)| since.elapsed() > PORT_TIME) {
                changing = None;
                let port = PORTS.start + self.random.below(PORTS.len() as u64) as u16;
                match self.listen(port, 1) {
                    Ok(listener) => {
                        self.shared.listened.fetch_add(1, Ordering::Relaxed);
                        changing = Some((listener, Instant::now()));
                    }
                    Err(error) => {
                        self.shared.refused.fetch_add(1, Ordering::Relaxed);
                        *self.shared.why.lock().unwrap() = error.to_string();
                    }
                }
            }
            if self.conns.iter().flatten().filter(|c| matches!(c.role, Role::Client(..))).count() < OPEN {
                self.connect()?;
            }
        }
        Ok(())
    }
}

fn sample(engine: &Engine, shared: &Shared) -> String {
    let mut sums = std::collections::BTreeMap::<String, u64>::new();
    for snapshot in engine.snapshots(Duration::from_secs(10)) {
        *sums.entry("lanes_heard".into()).or_default() += 1;
        for (name, value) in snapshot.rows {
            *sums.entry(name).or_default() += value;
        }
    }
    let counts = [&shared.done, &shared.failed, &shared.listened, &shared.refused].map(|n| n.load(Ordering::Relaxed));
    for (name, n) in ["exchanges", "exchanges_failed", "listened", "listens_refused"].iter().zip(counts) {
        sums.insert((*name).into(), n);
    }
    let rows: Vec<String> = sums.iter().filter(|(_, v)| **v > 0).map(|(k, v)| format!("\"{k}\":{v}")).collect();
    format!("{{\"why\":{:?},{}}}", shared.why.lock().unwrap(), rows.join(","))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, peers @ ..] = &args[..] else { return Err("usage: soak CONFIG PEER...".into()) };
    let peers = peers.iter().map(|p| p.parse()).collect::<Result<Vec<_>, _>>()?;
    let config = Config::from_toml(file, &std::fs::read_to_string(file)?)?;
    let mut engine = Engine::start(&config)?;
    let shared = Shared { peers, ..Shared::default() };
    let handles: Vec<_> = (0..engine.lanes()).map_while(|i| engine.take_lane(i)).collect();
    thread::scope(|scope| -> io::Result<()> {
        for (i, handle) in handles.into_iter().enumerate() {
            let shared = &shared;
            scope.spawn(move || {
                let run = || -> io::Result<()> {
                    let lane = handle.attach()?;
                    let poller = lane.poller()?;
                    let random = Random(0x9e37_79b9_7f4a_7c15 ^ (i as u64 + 1));
                    Program { lane, poller, shared, random, conns: Vec::new() }.run()
                };
                if let Err(error) = run() {
                    eprintln!("soak: lane {i}: {error}");
                    exit(1);
                }
            });
        }
        let (mut out, stdin) = (io::stdout(), io::stdin());
        writeln!(out, "ready")?;
        out.flush()?;
        for line in stdin.lock().lines() {
            match line?.trim() {
                "busy" => shared.busy.store(true, Ordering::Relaxed),
                "quiet" => shared.busy.store(false, Ordering::Relaxed),
                "sample" => {
                    writeln!(out, "{}", sample(&engine, &shared))?;
                    out.flush()?;
                }
                "end" => break,
                other => eprintln!("soak: no command {other:?}"),
            }
        }
        shared.end.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    engine.shutdown();
    Ok(())
}
