//! What holds between two calls of a stack, whatever it was given: for simulations and fuzzers, which ask after each turn.
//!
//! Nothing that is known of a connection by its number outlives the connection, and everything that is kept of it in several
//! places says the same in all of them.

use core::cmp::Reverse;
use core::fmt::Arguments;

use wire::Addr;

use crate::Route;
use crate::conn::{Conn, Stage};
use crate::engine::{EMBRYO, HANDSHAKE, NO_NEIGHBOR, NO_ROUTE, Stack, TIME_WAIT};
use crate::flows::FlowKey;
use crate::interface::network;
use crate::queues::{Entry, Stale, queued};

impl Stack {
    /// Panics where the stack contradicts itself, in words that name what does. Its time grows with connections, records and
    /// routes; without debug assertions it does nothing.
    pub fn check(&self) {
        if cfg!(debug_assertions) {
            self.check_queues();
            self.check_waiters();
            self.check_hops();
            self.check_flows();
            self.check_counts();
        }
    }

    /// How many times `id` is in each queue, by its present incarnation.
    fn entries<'a>(&'a self, entries: impl IntoIterator<Item = &'a Entry>, seen: &mut [u32], what: Arguments) {
        let (mut current, mut stale) = (0, 0);
        for entry in entries {
            match self.queues.is_current(*entry) {
                true => {
                    assert!(self.conns.key(entry.id).is_some(), "{what}: {entry:?} is no connection");
                    seen[entry.id as usize] += 1;
                    current += 1;
                }
                false => stale += 1,
            }
        }
        assert!(stale <= current + 2 * Stale::FEW, "{what}: {stale} stale entries beside {current}");
    }

    /// After each turn every bit that is set has its entry: one, of this connection, on its own interface's list.
    fn check_queues(&self) {
        let slots = self.conns.slots() as usize;
        let mut lists = [const { Vec::new() }; 3];
        lists.iter_mut().for_each(|seen| seen.resize(slots, 0));
        for (n, i) in self.interfaces.iter().enumerate() {
            let all = [(&i.control, 0), (&i.acks, 1), (&i.later, 1), (&i.data, 2)];
            for (list, kind) in all {
                self.entries(list, &mut lists[kind], format_args!("list {kind} of interface {n}"));
                for entry in list.iter().filter(|e| self.queues.is_current(**e)) {
                    let c = self.conns.whole(entry.id).expect("who is on a list is not parked");
                    assert_eq!(
                        c.key.interface.index(),
                        n,
                        "{entry:?} is on another interface's list {kind}: {:?}",
                        c.key
                    );
                }
            }
        }
        let (mut notify, mut resting) = (vec![0; slots], vec![0; slots]);
        self.entries(self.notify.iter(), &mut notify, format_args!("news"));
        self.entries(self.resting.iter().map(|r| &r.entry), &mut resting, format_args!("resting"));
        for id in 0..slots as u32 {
            let word = self.queues[id];
            let there = self.conns.key(id).is_some();
            assert!(there || word.bits() == 0, "number {id} is free and in queues: {:#b}", word.bits());
            let [control, acks, data] = [0, 1, 2].map(|kind| lists[kind][id as usize]);
            let places = [
                (queued::CONTROL, control),
                (queued::ACK, acks),
                (queued::DATA, data),
                (queued::NOTIFY, notify[id as usize]),
                (queued::RESTING, resting[id as usize]),
            ];
            for (bit, entries) in places {
                assert_eq!(word.has(bit) as u32, entries, "connection {id} has so many entries for bit {bit:#b}");
            }
        }
    }

    /// Who waits for a hop is a connection with that hop, and whoever waits is waited with.
    fn check_waiters(&self) {
        let slots = self.conns.slots() as usize;
        let (mut hops, mut held) = (vec![0; slots], vec![0; slots]);
        for (hop, interface, waiting) in self.neighbors.each_waiting() {
            let mine = |e: &&Entry| self.queues.is_current(**e) && self.whole(e.id).neighbor == hop;
            let all: Vec<Entry> = waiting.iter().collect();
            for entry in all.iter().filter(mine) {
                let c = self.whole(entry.id);
                assert_eq!(c.key.interface, interface, "{:?} waits for a hop of another interface", c.key);
                hops[entry.id as usize] += 1;
            }
            let others = all.iter().filter(|e| !mine(e)).count();
            assert!(others <= all.len() / 2 + Stale::FEW, "{others} of {} do not wait for hop {hop}", all.len());
        }
        // Who has just been told is still to look.
        for waiter in self.neighbors.resolved.iter().chain(&self.neighbors.failed) {
            if self.queues.is_current(waiter.entry) && self.whole(waiter.entry.id).neighbor == waiter.hop {
                hops[waiter.entry.id as usize] += 1;
            }
        }
        for i in &self.interfaces {
            let all: Vec<Entry> = i.auto.held.iter().collect();
            self.entries(&all, &mut held, format_args!("held"));
        }
        for id in 0..slots as u32 {
            let (word, hops, held) = (self.queues[id], hops[id as usize], held[id as usize]);
            assert_eq!(word.has(queued::HELD) as u32, held, "connection {id} is held so many times");
            // Whose hop changed to and fro may be on the list of the present one twice, and leaves it at once.
            assert_eq!(word.has(queued::HOP), hops > 0, "connection {id} waits for its hop {hops} times");
        }
    }

    fn whole(&self, id: u32) -> &Conn {
        self.conns.whole(id).expect("who waits is not parked")
    }

    /// The hop that a connection would send through now is that of the best route by its own interface; where none covers its
    /// peer, the peer itself as far as the interface's prefixes reach.
    fn check_hops(&self) {
        for id in self.conns.iter_ids() {
            let Some(c) = self.conns.whole(id) else { continue };
            if c.neighbor == NO_NEIGHBOR || c.epoch != self.neighbors.epoch {
                continue;
            }
            let FlowKey { interface, remote, .. } = c.key;
            let hop = self.neighbors.at(c.neighbor);
            let to = remote.to_ip();
            let covers = |r: &&Route| {
                r.interface == interface && r.dst.is_ipv4() == to.is_ipv4() && network(to, r.prefix) == r.dst
            };
            let best = self.routes.iter().filter(covers).min_by_key(|r| (Reverse(r.prefix), r.metric));
            let expected = match best {
                Some(route) => Some((interface, route.gateway.map_or(remote, Addr::from))),
                None if self.interfaces[interface.index()].reaches(remote) => Some((interface, remote)),
                None => None,
            };
            assert_eq!(hop, expected, "the next hop of {:?}", c.key);
            let way_back = hop.is_some() || matches!(c.neighbor, HANDSHAKE | NO_ROUTE);
            assert!(way_back, "{:?} has the hop {}", c.key, c.neighbor);
        }
    }

    /// Each connection and record is found by its tuple, and the flow table knows nobody else.
    fn check_flows(&self) {
        let mut linked = 0;
        for id in self.conns.iter_ids() {
            let key = self.conns.key(id).expect("it is in use");
            if self.conns.whole(id).is_some_and(|c| !c.linked) {
                continue;
            }
            linked += 1;
            let found = self.find_flow(key, self.flows.hash(key));
            assert_eq!(found, Some(id), "connection {id} is not found by its tuple {key:?}");
        }
        for id in self.syns.iter_ids() {
            let key = &self.syns.get(id).expect("it is in use").key;
            let found = self.find_flow(key, self.flows.hash(key));
            assert_eq!(found, Some(id | EMBRYO), "the handshake {id} is not found by its tuple {key:?}");
        }
        for id in self.time_waits.iter_ids() {
            let key = &self.time_waits.get(id).expect("it is in use").key;
            let found = self.find_flow(key, self.flows.hash(key));
            assert_eq!(found, Some(id | TIME_WAIT), "the TIME-WAIT record {id} is not found by its tuple {key:?}");
        }
        let known = linked + self.syns.len() + self.time_waits.len();
        assert_eq!(self.flows.len(), known, "the flow table has entries of nobody");
    }

    /// What is counted is there.
    fn check_counts(&self) {
        let whole = || self.conns.iter_ids().filter_map(|id| self.conns.whole(id));
        let orphans = whole().filter(|c| c.orphan).count();
        assert_eq!(self.orphans as usize, orphans, "orphans");
        let parked = self.conns.iter_ids().count() - whole().count();
        assert_eq!(self.conns.parked(), parked, "parked connections");
        for (id, l) in self.listeners.iter() {
            let records = self.syns.of_listener(id).len();
            let of = |stage| whole().filter(|c| c.listener == id && c.stage == stage).count();
            assert_eq!(l.embryos as usize, records + of(Stage::Embryo), "handshakes of listener {id}");
            assert!(l.ready as usize >= of(Stage::Ready), "listener {id} has {} ready connections", l.ready);
        }
    }
}
