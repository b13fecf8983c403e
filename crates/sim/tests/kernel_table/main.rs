//! Lanes, the control plane's mirror and a model of the kernel's table of neighbours: clients that come and go, hosts that move, pairs
//! that answer from two hardware addresses, announcements, an administrator, notifications that come late or are lost, and a table
//! that is too small.
//!
//! `CORELANE_SEED=S` replays a run, `CORELANE_SEEDS=N` makes N.

#[path = "../common/mod.rs"]
mod common;
mod model;

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use ::io::impair::Random;
use common::*;
use runtime::neighbors::{Neighbors, Word};
use stack::Mode;
use wire::{MacAddr, ethernet};

use model::{ASKED, DELAY, Host, LINK, Millis, REACHABLE_MOST, Table};

/// Between two turns.
const TICK: Millis = 100;
const SECOND: Millis = 1000;
/// A run: anything may happen for so long, then hosts stay as they are, then nobody sends.
const EVENTFUL: Millis = 120 * SECOND;
const STEADY: Millis = HEALED + 20 * SECOND;
const IDLE: Millis = 180 * SECOND;
/// A next hop in use is told of at most once in it (`REST`), while the lane asks after ten seconds (`USE_AGAIN`).
const REST: Millis = 30 * SECOND;
const USE_AGAIN: Millis = 10 * SECOND;
/// A wrong hardware address is mended within it: its entry becomes stale (after `REST` since its last use, or soon enough to wait for
/// the rest of that), its use is told of, it is probed, and asked for.
const HEALED: Millis = REACHABLE_MOST + USE_AGAIN + DELAY + ASKED + 5 * SECOND;

/// A lane with one connection for each client.
struct Lane {
    bench: Bench,
    clients: BTreeMap<IpAddr, Client>,
}

struct Client {
    peer: Peer,
    /// Where its handshake came from.
    from: MacAddr,
}

/// Everything on the link, and the control plane.
struct World {
    kernel: Table,
    mirror: Neighbors,
    begin: std::time::Instant,
    lanes: Vec<Lane>,
    random: Random,
    /// Notifications reach the mirror when they are read.
    held: bool,
    /// Some were held.
    late: bool,
    /// Hosts whose entry was touched by more than their use: the times of their uses are not looked at.
    disturbed: BTreeSet<IpAddr>,
    /// Since when frames have gone where nobody is, by lane and host.
    wrong: HashMap<(usize, IpAddr), Millis>,
    next_mac: u32,
}

impl World {
    fn new(seed: u64, hosts: u32, limit: usize) -> World {
        let lane = |_| Lane { bench: Bench::listening(64, &[], |c| c.mode = Mode::Shared), clients: BTreeMap::new() };
        let mut world = World {
            kernel: Table::new(limit, seed ^ 0x7ab1e),
            mirror: Neighbors::default(),
            begin: std::time::Instant::now(),
            lanes: (0..2).map(lane).collect(),
            random: Random::new(seed),
            held: false,
            late: false,
            disturbed: BTreeSet::new(),
            wrong: HashMap::new(),
            next_mac: 0,
        };
        for n in 0..hosts {
            // Every fourth is a pair of switches.
            let macs = (0..1 + (n % 4 == 3) as u32).map(|_| world.fresh_mac()).collect();
            world.kernel.hosts.insert(peer(0x100 + n).to_ip(), Host { macs, silent: false });
        }
        world
    }

    fn fresh_mac(&mut self) -> MacAddr {
        self.next_mac += 1;
        let [_, a, b, c] = self.next_mac.to_be_bytes();
        MacAddr([2, 1, 0, a, b, c])
    }

    fn some_host(&mut self) -> IpAddr {
        let n = self.random.below(self.kernel.hosts.len() as u64) as usize;
        *self.kernel.hosts.keys().nth(n).unwrap()
    }

    /// Tells all lanes.
    fn tell(&mut self, addr: IpAddr, word: Word) {
        for lane in &mut self.lanes {
            let (now, interface) = (lane.bench.now, lane.bench.host.interface());
            word.tell(&mut lane.bench.host.stack, now, interface, addr);
        }
    }

    /// The control plane's turn: what the kernel has told of, unless that is late, and what lanes want.
    fn control(&mut self) {
        self.follow();
        let mut wanted = Vec::new();
        self.lanes.iter_mut().for_each(|lane| lane.bench.host.stack.wanted_neighbors(&mut wanted));
        for (_, addr) in wanted {
            let now = self.begin + Duration::from_millis(self.kernel.now);
            let word = self.mirror.uses(now, LINK, addr, self.held, &mut self.kernel);
            if let Some(word) = word.expect("no error but ENOBUFS") {
                self.tell(addr, word);
            }
        }
        self.follow();
    }

    fn follow(&mut self) {
        while !self.held
            && let Some(n) = self.kernel.told.pop_front()
        {
            self.mirror.told(&n);
            self.tell(n.addr, Word::Is(n.nud));
        }
    }

    /// Notifications that were not read are lost, and the table is read whole.
    fn overrun(&mut self) {
        self.kernel.told.clear();
        self.held = false;
        let all = self.kernel.dump();
        self.mirror.replace(&all);
        self.lanes.iter_mut().for_each(|lane| lane.bench.host.stack.forget_neighbors());
        all.iter().for_each(|n| self.tell(n.addr, Word::Is(n.nud)));
    }

    /// One frame of a client, and where its answer goes.
    fn ask(&mut self, lane: usize, addr: IpAddr) -> MacAddr {
        let macs = self.kernel.hosts[&addr].macs.clone();
        let from = self.random.pick(&macs);
        let Lane { bench, clients } = &mut self.lanes[lane];
        let send = |bench: &mut Bench, peer: &Peer, flags, payload: &[u8]| {
            let mut frame = bench.frame(peer, flags, payload, Default::default());
            frame[6..12].copy_from_slice(&from.0);
            bench.turn_all(vec![vec![frame]]).remove(0)
        };
        let client = clients.entry(addr).or_insert_with(|| {
            let mut peer = Peer { addr: addr.into(), ..Peer::new(1, 9000) };
            let [synack] = &send(bench, &peer, SYN, b"")[..] else { panic!("no answer to a SYN of {addr}") };
            peer.answer(&parse(synack).unwrap());
            send(bench, &peer, ACK, b"");
            Client { peer, from }
        });
        // Behind a hole: acknowledged at once.
        let hole = Peer { seq: client.peer.seq + 100, ..client.peer };
        let sent = send(bench, &hole, ACK, b"behind a hole");
        assert_eq!(sent.len(), 1, "each segment of {addr} has its answer, at {} ms", self.kernel.now);
        ethernet::Frame::parse(&sent[0]).unwrap().dst
    }

    fn tick(&mut self) {
        let now = self.kernel.now + TICK;
        self.kernel.work(now);
        for lane in &mut self.lanes {
            lane.bench.wait(Duration::from_millis(TICK));
        }
        self.control();
    }
}

/// Something happens to a host or to the table.
fn happens(w: &mut World) {
    let addr = w.some_host();
    w.wrong.retain(|(_, of), _| *of != addr);
    match w.random.below(9) {
        // A move: a fail-over, an address that another host takes over. Most announce it.
        0 | 1 => {
            let count = w.kernel.hosts[&addr].macs.len();
            let macs: Vec<MacAddr> = (0..count).map(|_| w.fresh_mac()).collect();
            let mac = macs[0];
            w.kernel.hosts.get_mut(&addr).unwrap().macs = macs;
            w.disturbed.insert(addr);
            if w.random.chance(0.6) {
                w.kernel.hears(addr, mac, false);
            }
        }
        2 => {
            let silent = w.random.chance(0.5);
            w.kernel.hosts.get_mut(&addr).unwrap().silent = silent;
            w.disturbed.insert(addr);
        }
        // The kernel has something for it as well.
        3 => drop(w.kernel.send_to(addr)),
        4 => {
            w.kernel.delete(addr);
            w.disturbed.insert(addr);
        }
        5 if w.random.chance(0.3) => {
            let mac = w.kernel.hosts[&addr].macs[0];
            w.kernel.pin(addr, mac);
            w.disturbed.insert(addr);
        }
        6 => (w.held, w.late) = (true, true),
        7 => w.held = false,
        8 if w.held => w.overrun(),
        _ => {}
    }
}

/// One frame of a client: it is answered, to where the kernel would send or, where it has no word, to where the client came from.
fn goes_right(w: &mut World, lane: usize, addr: IpAddr) -> MacAddr {
    let to = w.ask(lane, addr);
    let from = w.lanes[lane].clients[&addr].from;
    // Of notifications that wait nobody can know.
    if w.kernel.told.is_empty() {
        let now = w.kernel.now;
        assert_eq!(
            to,
            w.kernel.mac(addr).unwrap_or(from),
            "{addr} at {now} ms by lane {lane}; its handshake came from {from}"
        );
    }
    to
}

/// One frame of a client that sends all the time: where its host has moved the answer follows, if there is room for its entry.
fn heals(w: &mut World, lane: usize, addr: IpAddr, ample: bool) {
    let to = goes_right(w, lane, addr);
    let (now, host) = (w.kernel.now, &w.kernel.hosts[&addr]);
    if host.macs.contains(&to) || host.silent || !ample || w.held || w.kernel.is_permanent(addr) {
        w.wrong.remove(&(lane, addr));
        return;
    }
    let since = *w.wrong.entry((lane, addr)).or_insert(now);
    assert!(
        now - since <= HEALED,
        "{addr} moved at {since} ms, and at {now} ms frames go to {to} still, by lane {lane}"
    );
}

fn run(seed: u64) {
    let mut random = Random::new(seed ^ 0x5eed);
    let hosts = 6 + random.below(30) as u32;
    // Room for all, or for some.
    let ample = random.chance(0.5);
    let limit = if ample { hosts as usize } else { 1 + random.below(hosts as u64 / 2) as usize };
    let events = random.pick(&[0.0, 0.01, 0.1]);
    let mut w = World::new(seed, hosts, limit);
    // Some are in use all the time, by one lane or both, others now and then.
    let steady: Vec<(usize, IpAddr)> =
        w.kernel.hosts.keys().copied().flat_map(|a| [(0, a), (1, a)]).filter(|_| random.chance(0.3)).collect();
    while w.kernel.now < EVENTFUL + STEADY {
        w.tick();
        if w.kernel.now == EVENTFUL && w.held {
            w.overrun();
        }
        if w.kernel.now < EVENTFUL && w.random.chance(events) {
            happens(&mut w);
            w.control();
        }
        // Each second or so.
        for (lane, addr) in steady.iter().copied() {
            if w.random.chance(0.1) {
                heals(&mut w, lane, addr, ample);
            }
        }
        if w.random.chance(0.3) {
            let (lane, addr) = (w.random.below(2) as usize, w.some_host());
            goes_right(&mut w, lane, addr);
        }
        w.control();
    }
    if ample {
        assert_eq!(w.kernel.refused, 0);
        // An end that is told of late takes the time of a later use with it.
        if !w.late {
            at_most_once(&w);
        }
    }
    // Nobody uses anything: once the last questions are over the kernel is told of nothing, and what it has ages and goes.
    let end = w.kernel.now;
    while w.kernel.now < end + IDLE {
        w.tick();
    }
    let late: Vec<_> = w.kernel.uses.iter().filter(|(at, _)| *at > end + 2 * ASKED).collect();
    assert!(late.is_empty(), "uses of idle connections: {late:?}");
    assert!(w.kernel.left() < model::FEW, "{} entries are left", w.kernel.left());
}

/// A host that answers and stays where it is costs one message each half a minute.
fn at_most_once(w: &World) {
    let mut last = HashMap::new();
    for (at, addr) in w.kernel.uses.iter().copied().filter(|(_, addr)| !w.disturbed.contains(addr)) {
        if let Some(before) = last.insert(addr, at) {
            assert!(at - before >= REST, "the kernel was told of uses of {addr} at {before} and at {at} ms");
        }
    }
}

#[test]
fn lanes_follow_the_kernels_neighbours_and_keep_none() {
    testing::seeds("sim --test kernel_table", 60, testing::cores(), run);
}
