//! What holds between two calls of a stack, whatever it was given: for simulations, fuzzers and lanes, which ask after each turn.
//!
//! Nothing that is known of a connection by its number outlives the connection, and everything that is kept of it in several
//! places says the same in all of them.

use core::fmt::Arguments;

use std::collections::HashMap;

use wire::Instant;

use crate::clients::HOME;
use crate::conns::conn::{Conn, Stage};
use crate::demux::Owner;
use crate::engine::Stack;
use crate::link::hop::{HANDSHAKE, NO_NEIGHBOR, NO_ROUTE};
use crate::schedule::queues::{Entry, Stale, queued};
use crate::{FlowKey, InterfaceId};

/// So much is looked at after each turn.
#[cfg(debug_assertions)]
const FEW: usize = 16;

/// What a check counts with: kept, so that one allocates nothing where another has been.
#[derive(Default)]
pub(crate) struct Scratch {
    /// How many times each connection is on the lists of each kind, and in the other queues.
    lists: [Vec<u32>; 3],
    notify: Vec<u32>,
    idle: Vec<u32>,
    hops: Vec<u32>,
    held: Vec<u32>,
    /// Handshakes and ready connections by listener.
    of: HashMap<u32, (usize, usize)>,
    /// When each young connection is woken; `FAR` of the others.
    young: Vec<Instant>,
}

impl Scratch {
    /// Nothing of so many connections.
    fn clear(&mut self, slots: usize) {
        let Scratch { lists, notify, idle, hops, held, of, young } = self;
        for seen in lists.iter_mut().chain([notify, idle, hops, held]) {
            seen.clear();
            seen.resize(slots, 0);
        }
        of.clear();
        young.clear();
        young.resize(slots, Instant::FAR);
    }
}

impl Stack {
    /// Panics where the stack contradicts itself, in words that name what does. Its time grows with connections, records and
    /// routes; without debug assertions it does nothing.
    pub fn check(&self) {
        if cfg!(debug_assertions) {
            self.check_with(&mut Scratch::default());
        }
    }

    fn check_with(&self, scratch: &mut Scratch) {
        scratch.clear(self.conns.slots() as usize);
        self.check_queues(scratch);
        self.check_waiters(scratch);
        self.link.check();
        self.check_hops();
        self.check_flows();
        self.check_timers(scratch);
        self.check_senders();
        self.check_counts(scratch);
    }

    /// At the end of a turn: [`Stack::check`] where the turns since the last one pay for it, each with the look at `each`
    /// connections. So a turn takes no longer where there are many, and with few of them there is one after each turn. Without debug
    /// assertions it does nothing.
    #[inline(always)]
    pub fn check_in_turn(&mut self, each: usize) {
        #[cfg(debug_assertions)]
        {
            if self.unchecked > 0 {
                self.unchecked -= 1;
                return;
            }
            let mut scratch = core::mem::take(&mut self.scratch);
            self.check_with(&mut scratch);
            self.scratch = scratch;
            self.unchecked = self.cost_of_check().saturating_sub(FEW) / each.max(1);
        }
        #[cfg(not(debug_assertions))]
        let _ = each;
    }

    /// What a check looks at, in connections, about.
    #[cfg(debug_assertions)]
    fn cost_of_check(&self) -> usize {
        let records = self.half_open() + self.time_waits() + self.listeners();
        let (neighbors, routes) = self.link.places();
        let places = self.conns.slots() as usize + neighbors;
        // A route costs each connection a glance, a place and a sent segment little more.
        self.conns.len() * (1 + routes / 16) + records + (places + self.sent.used()) / 16
    }

    /// Counts in `seen` how often each connection is in a queue, by its present incarnation; returns the number of stale entries.
    fn entries(&self, entries: impl Iterator<Item = Entry>, seen: &mut [u32], what: Arguments) -> usize {
        let mut stale = 0;
        for entry in entries {
            match self.schedule.is_current(entry) {
                true => {
                    assert!(self.conns.key(entry.id).is_some(), "{what}: {entry:?} is no connection");
                    seen[entry.id as usize] += 1;
                }
                false => stale += 1,
            }
        }
        stale
    }

    /// After each turn every bit that is set has its entry: one, of this connection, on its own interface's list.
    fn check_queues(&self, Scratch { lists, notify, idle, .. }: &mut Scratch) {
        assert_eq!(self.schedule.interfaces(), self.link.interfaces().len(), "interfaces with lists");
        for interface in self.link.ids() {
            let n = interface.index();
            let mut stale = 0;
            for (list, kind) in self.schedule.each_list(interface) {
                let what = format_args!("list {kind} of interface {n}");
                stale += self.entries(list.iter().copied(), &mut lists[kind], what);
                for entry in list.iter().filter(|e| self.schedule.is_current(**e)) {
                    let c = self.conns.active(entry.id).expect("who is on a list is not parked");
                    assert_eq!(
                        c.key.interface.index(),
                        n,
                        "{entry:?} is on another interface's list {kind}: {:?}",
                        c.key
                    );
                }
            }
            let most = self.schedule.most_stale(interface);
            assert!(stale <= most, "interface {n}: {stale} stale entries, more than {most}");
        }
        let news = &self.schedule.notify;
        let stale = self.entries(news.iter().copied(), notify, format_args!("news"));
        assert!(stale <= news.stale().most(), "news: {stale} stale entries of {}", news.len());
        self.check_stalled(notify);
        let rest = &self.schedule.idle;
        let stale = self.entries(rest.iter().map(|r| r.entry), idle, format_args!("idle"));
        assert!(stale <= rest.stale().most(), "idle: {stale} stale entries of {}", rest.len());
        for id in 0..self.conns.slots() {
            let word = self.schedule.words()[id];
            let there = self.conns.key(id).is_some();
            assert!(there || word.bits() == 0, "number {id} is free and in queues: {:#b}", word.bits());
            let [control, acks, data] = [0, 1, 2].map(|kind| lists[kind][id as usize]);
            let places = [
                (queued::CONTROL, control),
                (queued::ACK, acks),
                (queued::DATA, data),
                (queued::NOTIFY, notify[id as usize]),
                (queued::IDLE, idle[id as usize]),
            ];
            for (bit, entries) in places {
                assert_eq!(word.has(bit) as u32, entries, "connection {id} has so many entries for bit {bit:#b}");
            }
        }
    }

    /// News that found no room are their seat's.
    fn check_stalled(&self, notify: &mut [u32]) {
        for (seat, entry) in self.clients.each_stalled().filter(|(_, entry)| self.schedule.is_current(*entry)) {
            assert_eq!(self.active(entry.id).seat, seat, "connection {} waits for another seat's room", entry.id);
            notify[entry.id as usize] += 1;
        }
    }

    /// Who waits for a hop is a connection with that hop, and whoever waits is waited with.
    fn check_waiters(&self, Scratch { hops, held, .. }: &mut Scratch) {
        for (hop, interface, waiting) in self.link.each_waiting() {
            let mine = |e: &Entry| self.schedule.is_current(*e) && self.active(e.id).neighbor == hop;
            for entry in waiting.iter().filter(mine) {
                let c = self.active(entry.id);
                assert_eq!(c.key.interface, interface, "{:?} waits for a hop of another interface", c.key);
                hops[entry.id as usize] += 1;
            }
            let (others, all) = (waiting.iter().filter(|e| !mine(e)).count(), waiting.iter().count());
            assert!(others <= all / 2 + Stale::FEW, "{others} of {all} do not wait for hop {hop}");
        }
        // Who has just been told is still to look.
        for waiter in self.link.told() {
            if self.schedule.is_current(waiter.entry) && self.active(waiter.entry.id).neighbor == waiter.hop {
                hops[waiter.entry.id as usize] += 1;
            }
        }
        for i in self.link.interfaces() {
            let stale = self.entries(i.held().iter(), held, format_args!("held"));
            assert!(stale <= i.held().stale().most(), "held: {stale} stale entries");
        }
        for id in 0..self.conns.slots() {
            let (word, hops, held) = (self.schedule.words()[id], hops[id as usize], held[id as usize]);
            assert_eq!(word.has(queued::HELD) as u32, held, "connection {id} is held so many times");
            // Whose hop changed to and fro may be on the list of the present one twice, and leaves it at once.
            assert_eq!(word.has(queued::HOP), hops > 0, "connection {id} waits for its hop {hops} times");
        }
    }

    fn active(&self, id: u32) -> &Conn {
        self.conns.active(id).expect("who waits is not parked")
    }

    /// The hop that a connection would send through now is that of the best route by its own interface; where none covers its
    /// peer, the peer itself as far as the interface's prefixes reach; else where its handshake came from.
    fn check_hops(&self) {
        for id in self.conns.iter_ids() {
            // A parked connection looks its hop up again.
            let Some(Conn { key, neighbor, epoch, came_from, .. }) = self.conns.active(id) else { continue };
            if *neighbor == NO_NEIGHBOR || *epoch != self.link.epoch() {
                continue;
            }
            let FlowKey { interface, remote, .. } = *key;
            let (hop, expected) = (self.link.neighbor(*neighbor), self.link.expected_hop(interface, remote));
            assert_eq!(hop, expected, "the next hop of {key:?}");
            let way_back = match *neighbor {
                HANDSHAKE => came_from.is_some(),
                NO_ROUTE => came_from.is_none(),
                _ => hop.is_some(),
            };
            assert!(way_back, "{key:?} has the hop {neighbor}");
        }
    }

    /// Each connection and record is found by its tuple on its own interface, and the flow table knows nobody else.
    fn check_flows(&self) {
        let mut linked = 0;
        for id in self.conns.iter_ids() {
            let key = self.conns.key(id).expect("it is in use");
            if let Some(c) = self.conns.active(id) {
                assert_eq!((c.key, c.hash), (key, self.demux.hash(&key)), "connection {id}");
                if !c.linked {
                    continue;
                }
            }
            linked += 1;
            self.check_flow(&key, Owner::Connection(id));
        }
        for id in self.demux.handshakes().iter_ids() {
            self.check_flow(&self.demux.handshake(id).expect("it is in use").key, Owner::Handshake(id));
        }
        for id in self.demux.time_waits().iter_ids() {
            self.check_flow(&self.demux.time_wait(id).expect("it is in use").key, Owner::TimeWait(id));
        }
        let known = linked + self.half_open() + self.time_waits();
        assert_eq!(self.demux.entries(), known, "the flow table has entries of nobody");
    }

    fn check_flow(&self, key: &FlowKey, owner: Owner) {
        let found = |key: &FlowKey| self.demux.look_up(&self.conns, key);
        assert_eq!(found(key), Some(owner), "{owner:?} is not found by its tuple {key:?}");
        // Who has the same tuple on the next interface is another one.
        let next = (key.interface.index() + 1) % self.link.interfaces().len();
        if next != key.interface.index() {
            let beside = FlowKey { interface: InterfaceId(next as u8), ..*key };
            assert_ne!(found(&beside), Some(owner), "{owner:?} of {key:?} is found by interface {next}, too");
        }
    }

    /// Data, a FIN or a probe that waits to be sent has something under way before it, a timer, a place on a list, or a next hop or an
    /// address to come: else no event would ever send it.
    fn check_senders(&self) {
        for id in self.conns.iter_ids() {
            let Some(c) = self.conns.active(id).filter(|c| c.linked && c.tcb.waits_for_a_turn()) else { continue };
            let listed = self.schedule.words()[id].bits() & (queued::SEND | queued::HOP | queued::HELD) != 0;
            assert!(listed, "connection {id} has something to send, and nothing will send it: {:?}", c.tcb);
        }
    }

    /// Whoever waits for a time is on the wheel, and no number of a connection that is over is.
    fn check_timers(&self, Scratch { young, .. }: &mut Scratch) {
        self.schedule.alarms().each_young(self.schedule.words(), |id, at| young[id as usize] = at);
        for id in 0..self.conns.slots() {
            let deadline = match self.conns.active(id) {
                Some(c) if c.linked => c.tcb.deadline(),
                // In TIME-WAIT its record has the time.
                Some(_) => continue,
                None => self.conns.parked_until(id).unwrap_or(Instant::FAR),
            };
            // Who has something to send looks for his time when he has sent it.
            let grows = young[id as usize] <= deadline;
            let woken = self.schedule.words()[id].has(queued::SEND)
                || grows
                || self.schedule.alarms().wheel().wakes(id, deadline);
            assert!(woken, "connection {id} waits for {deadline:?}, and is not woken");
            let there = self.conns.key(id).is_some();
            assert!(there || !self.schedule.alarms().wheel().has(id), "number {id} is free and on the wheel");
        }
    }

    /// Clients in other processes have as many connections and listeners as is counted.
    fn check_clients(&self) {
        for (client, connections, listeners) in self.clients.each_count() {
            let mine = |seat| self.clients.client_of(seat) == client;
            let has = |id: &u32| {
                let known = self.conns.active(*id).is_none_or(|c| !matches!(c.stage, Stage::Embryo | Stage::Ready));
                known && self.conns.seat(*id).is_some_and(mine)
            };
            assert_eq!(connections as usize, self.conns.iter_ids().filter(has).count(), "connections of {client:?}");
            let of = self.demux.listeners.iter().filter(|(_, l)| mine(l.seat)).count();
            assert_eq!(listeners as usize, of, "listeners of {client:?}");
        }
    }

    /// What is counted is there.
    fn check_counts(&self, Scratch { of, .. }: &mut Scratch) {
        assert!(self.burst.unsettled.is_none() && self.burst.reassembled.is_none(), "a burst is not done");
        for id in self.demux.handshakes().iter_ids() {
            of.entry(self.demux.handshake(id).expect("it is in use").listener).or_default().0 += 1;
        }
        let (mut sent, mut orphans, mut parked) = (0, 0, 0);
        for id in self.conns.iter_ids() {
            let Some(c) = self.conns.active(id) else {
                parked += 1;
                continue;
            };
            c.tcb.check(&self.sent);
            sent += c.tcb.sent_records() as usize;
            orphans += c.orphan as u32;
            match c.stage {
                Stage::Embryo => of.entry(c.listener).or_default().0 += 1,
                Stage::Ready => of.entry(c.listener).or_default().1 += 1,
                Stage::Offered => {
                    assert_eq!(c.pool, HOME, "connection {id} is not accepted, and lies in a client's chunks");
                    of.entry(c.listener).or_default().1 += 1;
                }
                Stage::Owned | Stage::Between | Stage::Closed | Stage::Lingering => {}
            }
        }
        self.check_clients();
        assert_eq!(self.sent.used(), sent, "records of sent segments");
        assert_eq!(self.orphans, orphans, "orphans");
        assert_eq!(self.conns.parked(), parked, "parked connections");
        for (id, l) in self.demux.listeners.iter() {
            let (embryos, ready) = of.remove(&id).unwrap_or_default();
            assert_eq!(l.embryos as usize, embryos, "handshakes of listener {id}");
            assert!(l.ready as usize >= ready, "listener {id} has {} ready connections", l.ready);
        }
        assert!(of.is_empty(), "of listeners that are gone there are handshakes and ready connections {of:?}");
    }
}
