//! Relays through a machine whose memory is short: whoever else holds it, no stream stands still while its ends want it to move.
//!
//! The ends are a machine with plenty. Nothing is lost on the way, so each standstill is the doing of the one in the middle.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};

use io::impair::Random;
use protocol::Endpoint;
use sim::{Machine, MachineConfig};
use socket::{Errno, Interest, ListenOptions, Ready, SockId, Sockets, Trigger, bits};
use stack::Bounds;
use testing::{Size, cores, seeds, size};
use wire::{Addr, Instant};

const ENDS: [u8; 4] = [192, 168, 0, 2];
const RELAY: [u8; 4] = [192, 168, 0, 1];
const PORTS: [u16; 2] = [80, 81];
/// Ten times the least RTO, which the path is too short to exceed.
const STANDSTILL: Duration = Duration::from_secs(2);
/// A lane that has starving sockets looks that often, or more often.
const LOOK: Duration = Duration::from_millis(1);

fn at(addr: [u8; 4], port: u16) -> Endpoint {
    Endpoint { addr: Addr::from_v4(addr), port }
}

/// Byte `n` of a stream.
fn byte(stream: usize, n: u64) -> u8 {
    (n as u32).wrapping_mul(0x9e37_79b1).rotate_left(8) as u8 ^ stream as u8
}

/// Bytes on their way from one end to the other.
struct Stream {
    length: u64,
    written: u64,
    read: u64,
    /// When bytes were read last, or the reader's pause is over.
    moved: Instant,
}

/// An end of a connection.
struct End {
    sock: Option<SockId>,
    /// Nothing is read until then.
    pause: Instant,
}

/// A connection in the relay.
#[derive(Default)]
struct Middle {
    /// To the end that connected, and to the other.
    socks: [Option<SockId>; 2],
    /// By events, and by what reads and writes gave since.
    readable: [bool; 2],
    writable: [bool; 2],
    /// Bytes read of one socket and not yet written to the other.
    buffers: [VecDeque<u8>; 2],
}

/// A drawn run.
struct Run {
    r: Random,
    relay: Host,
    ends: Host,
    delay: Duration,
    /// Frames under way: when they arrive, towards the relay or the ends.
    wire: VecDeque<(Instant, bool, Vec<u8>)>,
    now: Instant,
    /// From the connecting end and from the accepting one, for each connection.
    streams: Vec<[Stream; 2]>,
    pair: Vec<[End; 2]>,
    middle: Vec<Middle>,
    /// By the port of whoever connects: an end, or the relay.
    by_port: [HashMap<u16, usize>; 2],
    /// Bytes that the relay reads before it writes.
    buffer: usize,
    trigger: Trigger,
    /// A read or write that does less than it might is the last until an event, as epoll(7) allows, and not the one that fails.
    thrifty: bool,
    epoll: SockId,
    listeners: [SockId; 2],
    pauses: bool,
    /// Connections that the relay accepts at a time: others wait, with what they were sent.
    accepts: usize,
}

/// A machine, and who uses it: a client in another process, or its own.
struct Host {
    machine: Machine,
    client: Option<usize>,
}

impl Host {
    /// Whoever uses a machine has so many chunks; beside a client in another process, what it has not accepted has a quarter more.
    fn new(address: [u8; 4], seed: u64, chunks: u32, client: Option<Bounds>) -> Host {
        let addresses = vec![(address.into(), 32)];
        let own = if client.is_some() { (chunks / 4).max(16) } else { chunks };
        let mut machine = Machine::new(MachineConfig { addresses, seed, chunks: own, ..MachineConfig::default() });
        let client = client.map(|bounds| machine.attach(chunks, 1, bounds));
        Host { machine, client }
    }

    fn sockets(&mut self) -> &mut Sockets {
        match self.client {
            Some(client) => self.machine.client(client, 0),
            None => self.machine.sockets(),
        }
    }

    fn listener(&mut self, here: Endpoint) -> SockId {
        let id = self.sockets().socket(false).unwrap();
        self.sockets().bind(id, here).unwrap();
        self.sockets().listen(id, ListenOptions { backlog: 4096 }).unwrap();
        self.machine.settle();
        assert_eq!(self.sockets().listen_result(id), Some(Ok(())));
        assert_eq!(self.sockets().accept(id), Err(Errno::EAGAIN));
        id
    }
}

impl Run {
    fn draw(seed: u64) -> Run {
        let mut r = Random::new(seed);
        let relays = r.pick(&[4, 12, 40, 100]);
        // A chunk for each socket at least, sixteen at most.
        let chunks = (relays as u32 * 2 * r.pick(&[1, 2, 3, 4, 8, 16])).max(32);
        let far = Bounds { connections: 2 * relays as u32, listeners: 1 };
        let mut relay = Host::new(RELAY, seed, chunks, seed.is_multiple_of(3).then_some(far));
        let mut ends = Host::new(ENDS, seed ^ 1, 1 << 14, None);
        let listeners = [relay.listener(at(RELAY, PORTS[0])), ends.listener(at(ENDS, PORTS[1]))];
        let epoll = relay.sockets().epoll_create().unwrap();
        let now = relay.machine.now();
        // Whoever sends in both directions, sends more than the memory holds, or a little.
        let total = 3 * chunks as u64 * 2048;
        let both = r.chance(0.5);
        let mut length = |on: bool| match r.chance(0.2) {
            _ if !on => 0,
            true => r.pick(&[1, 100, 5000]),
            false => total / relays as u64 * r.pick(&[1, 2, 3]) / 2,
        };
        let stream = |length| Stream { length, written: 0, read: 0, moved: now };
        let streams =
            (0..relays).map(|i| [length(both || i % 2 == 0), length(both || i % 2 == 1)].map(stream)).collect();
        let end = || End { sock: None, pause: Instant::ZERO };
        let pair = (0..relays).map(|_| [end(), end()]).collect();
        let middle = (0..relays).map(|_| Middle::default()).collect();
        let delay = Duration::from_micros(r.pick(&[20, 500, 5000, 20_000]));
        let buffer = r.pick(&[1000, 4096, 16_384, 65_536, 262_144]);
        let trigger = r.pick(&[Trigger::Level, Trigger::Edge]);
        let (pauses, thrifty) = (r.chance(0.5), r.chance(0.5));
        let accepts = r.pick(&[1, 4, usize::MAX]);
        let (wire, by_port) = (VecDeque::new(), [HashMap::new(), HashMap::new()]);
        let mut run = Run {
            r,
            relay,
            ends,
            delay,
            wire,
            now,
            streams,
            pair,
            middle,
            by_port,
            buffer,
            trigger,
            thrifty,
            epoll,
            listeners,
            pauses,
            accepts,
        };
        run.connect();
        run
    }

    fn connect(&mut self) {
        for i in 0..self.pair.len() {
            let sock = self.ends.sockets().socket(false).unwrap();
            assert_eq!(self.ends.sockets().connect(sock, at(RELAY, PORTS[0])), Err(Errno::EINPROGRESS));
            self.ends.machine.settle();
            self.by_port[0].insert(self.ends.sockets().local(sock).unwrap().port, i);
            self.pair[i][0].sock = Some(sock);
        }
    }

    /// Connects what the relay has accepted to the other end.
    fn accept(&mut self) {
        for _ in 0..self.accepts {
            let Ok((sock, from)) = self.relay.sockets().accept(self.listeners[0]) else { break };
            let i = self.by_port[0][&from.port];
            let other = self.relay.sockets().socket(false).unwrap();
            assert_eq!(self.relay.sockets().connect(other, at(ENDS, PORTS[1])), Err(Errno::EINPROGRESS));
            self.relay.machine.settle();
            self.by_port[1].insert(self.relay.sockets().local(other).unwrap().port, i);
            self.middle[i].socks = [Some(sock), Some(other)];
            for (side, id) in [sock, other].into_iter().enumerate() {
                let interest =
                    Interest { events: bits::IN | bits::OUT, trigger: self.trigger, data: (2 * i + side) as u64 };
                self.relay.sockets().epoll_add(self.epoll, id, interest).unwrap();
            }
        }
        while let Ok((sock, from)) = self.ends.sockets().accept(self.listeners[1]) {
            let i = self.by_port[1][&from.port];
            self.pair[i][1].sock = Some(sock);
            self.streams[i].iter_mut().for_each(|s| s.moved = self.now);
        }
    }

    /// Serves the relay's events: read what is readable while there is room, write what is writable while there is something.
    fn serve(&mut self) {
        let mut ready = [Ready { events: 0, data: 0 }; 512];
        for _ in 0..1000 {
            self.relay.machine.settle();
            let n = self.relay.sockets().epoll_collect(self.epoll, &mut ready).unwrap();
            let mut moved = false;
            for event in &ready[..n] {
                let (i, side) = (event.data as usize / 2, event.data as usize % 2);
                let middle = &mut self.middle[i];
                middle.readable[side] |= event.events & bits::IN != 0;
                middle.writable[side] |= event.events & bits::OUT != 0;
                moved |= self.pump(i);
            }
            if n == 0 || !moved {
                return;
            }
        }
        panic!("the relay has no end of events");
    }

    /// Moves what can be moved; `true` where a byte was.
    fn pump(&mut self, i: usize) -> bool {
        let sockets = self.relay.sockets();
        let Middle { socks, readable, writable, buffers } = &mut self.middle[i];
        let [Some(a), Some(b)] = *socks else { return false };
        let mut moved = false;
        for (from, to) in [(0, 1), (1, 0)] {
            let buffer = &mut buffers[from];
            while readable[from] && buffer.len() < self.buffer || writable[to] && !buffer.is_empty() {
                let mut room = vec![0; self.buffer - buffer.len()];
                if readable[from] && !room.is_empty() {
                    let n = sockets.read([a, b][from], &mut room).unwrap_or(0);
                    buffer.extend(&room[..n]);
                    readable[from] = if self.thrifty { n == room.len() } else { n > 0 };
                    moved |= n > 0;
                }
                if writable[to] && !buffer.is_empty() {
                    let (front, back) = buffer.as_slices();
                    let n = sockets.writev([a, b][to], &[front, back], false).unwrap_or(0);
                    writable[to] = if self.thrifty { n == buffer.len() } else { n > 0 };
                    buffer.drain(..n);
                    moved |= n > 0;
                }
            }
        }
        moved
    }

    /// The ends write all that they have, and read unless they pause.
    fn talk(&mut self) {
        let now = self.now;
        let mut buf = [0; 8192];
        for i in 0..self.pair.len() {
            for e in 0..2 {
                let Some(sock) = self.pair[i][e].sock else { continue };
                let sockets: &mut Sockets = self.ends.sockets();
                if e == 0 || self.pair[i][1].sock.is_some() {
                    let out = &mut self.streams[i][e];
                    while out.written < out.length {
                        let n = (out.length - out.written).min(buf.len() as u64) as usize;
                        (0..n).for_each(|k| buf[k] = byte(2 * i + e, out.written + k as u64));
                        match sockets.write(sock, &buf[..n], false) {
                            Ok(n) => out.written += n as u64,
                            Err(_) => break,
                        }
                    }
                }
                if self.pair[i][e].pause > now {
                    continue;
                }
                let come = &mut self.streams[i][1 - e];
                while let Ok(n @ 1..) = sockets.read(sock, &mut buf) {
                    let right = (0..n).all(|k| buf[k] == byte(2 * i + 1 - e, come.read + k as u64));
                    assert!(right, "stream {i} has other bytes behind {}", come.read);
                    come.read += n as u64;
                    come.moved = now;
                    if self.pauses && self.r.chance(0.01) {
                        self.pair[i][e].pause = now.plus_micros(self.r.below(1_000_000));
                        come.moved = self.pair[i][e].pause;
                        break;
                    }
                }
            }
        }
        self.ends.machine.settle();
    }

    /// Frames that were sent go on the wire.
    fn carry(&mut self) {
        for to_relay in [false, true] {
            let m = if to_relay { &mut self.ends } else { &mut self.relay };
            while let Some((at, packet)) = m.machine.pop() {
                self.wire.push_back((at + self.delay, to_relay, packet));
            }
        }
    }

    fn over(&self) -> bool {
        self.streams.iter().flatten().all(|s| s.read == s.length)
    }

    /// Panics where a stream has stood still for too long.
    fn check(&mut self) {
        let longest = STANDSTILL.as_micros() as u64;
        let stands = |s: &Stream| s.read < s.length && self.now.micros_since(s.moved) > longest;
        let all = || self.streams.iter().flatten();
        let Some(n) = all().position(stands) else { return };
        let (i, e) = (n / 2, n % 2);
        let (Stream { length, written, read, moved }, held) = (&self.streams[i][e], self.middle[i].buffers[e].len());
        let (stand, under_way) = (all().filter(|s| stands(s)).count(), all().filter(|s| s.read < s.length).count());
        let stats = self.relay.sockets().side().stats();
        panic!(
            "{stand} of {under_way} streams stand still at {:?}; {i}.{e} since {moved:?}: of {length} bytes {written} are written, {read} read, \
             {held} with the relay, which takes {} at a time, {stats:?}",
            self.now, self.buffer
        );
    }

    /// Lets what is under way arrive, and everything be freed.
    fn wind_down(&mut self) {
        let until = self.now + STANDSTILL;
        while self.now < until {
            self.step();
        }
        assert_eq!(self.relay.machine.leaked(), 0, "chunks are left in the relay");
    }

    fn step(&mut self) {
        let front = self.wire.front().map(|(at, ..)| *at);
        let pauses = self.pair.iter().flatten().map(|e| e.pause).filter(|p| *p > self.now).min();
        let looks = self.relay.sockets().starving() || self.relay.machine.holds_news() || self.accepts < usize::MAX;
        let look = looks.then(|| self.now + LOOK);
        let next = [front, pauses, look, self.relay.machine.next_deadline(), self.ends.machine.next_deadline()];
        let next = next.into_iter().flatten().min().unwrap_or(self.now + STANDSTILL);
        self.now = next.max(self.now.plus_micros(1));
        self.relay.machine.advance_to(self.now);
        self.ends.machine.advance_to(self.now);
        self.carry();
        self.wire.make_contiguous().sort_by_key(|(at, ..)| *at);
        while let Some((_, to_relay, packet)) = self.wire.pop_front_if(|(at, ..)| *at <= self.now) {
            let m = if to_relay { &mut self.relay } else { &mut self.ends };
            m.machine.inject(&packet);
        }
        self.accept();
        self.serve();
        self.talk();
        self.relay.machine.settle();
        self.carry();
    }
}

/// Virtual time until every byte has arrived.
fn run(seed: u64) -> Duration {
    let mut run = Run::draw(seed);
    let start = run.now;
    while !run.over() {
        run.step();
        run.check();
    }
    let took = Duration::from_micros(run.now.micros_since(start));
    run.wind_down();
    took
}

#[test]
fn no_relay_stands_still() {
    let usual = match size() {
        Size::Gate => 50,
        Size::Full => 300,
        Size::Long => 2000,
    };
    let times = seeds("sim --test scarce", usual, cores(), run);
    println!("{} runs, {:?} of virtual time", times.len(), times.iter().sum::<Duration>());
}
