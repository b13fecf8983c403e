//! The stack itself: what it owns, the life of its connections, and the order of its work.

use core::net::IpAddr;
use std::collections::VecDeque;

use mem::Side;
use mem::spsc::{Consumer, Producer};
use tcp::{SentPool, Tcb};
use wire::{Addr, Instant, MacAddr, SeqNum};

use crate::alarms::Alarms;
use crate::autoconf::Conflict;
use crate::channel::Endpoint;
use crate::conn::Birth;
use crate::conns::Conns;
use crate::cookies::Cookies;
use crate::counters::Counters;
use crate::ending::Walk;
use crate::flows::{FlowKey, FlowTable};
use crate::fragments::Reassembler;
use crate::intake::Intake;
use crate::interface::{Address, Interface, network};
use crate::keyed::Keyed;
use crate::learning::Learning;
use crate::listener::Listeners;
use crate::neighbor::{Neighbors, Question, Waiter};
use crate::options::Options;
use crate::path::PathMtus;
use crate::ports::LocalPorts;
use crate::queues::{Entry, Queue, Queues, Rest, queued};
use crate::route::Routes;
use crate::sources::Sources;
use crate::syn_cache::SynCache;
use crate::time_wait::TimeWaits;

use crate::{InterfaceConfig, InterfaceId, Mode, Route, StackConfig, SynCookies};

/// Flow-table values with this bit name TIME-WAIT records.
pub(crate) const TIME_WAIT: u32 = 1 << 31;
/// Flow-table values with this bit, and not the one above, name handshakes.
pub(crate) const EMBRYO: u32 = 1 << 30;
/// Connections by which lists of them are read ahead.
const AHEAD: usize = 8;
/// No neighbour was looked up yet.
pub(crate) const NO_NEIGHBOR: u32 = u32::MAX;
/// No route of the connection's interface covers its peer: the next hop is where the handshake came from.
pub(crate) const HANDSHAKE: u32 = u32::MAX - 1;
/// There is no next hop.
pub(crate) const NO_ROUTE: u32 = u32::MAX - 2;

/// One lane's network stack.
pub struct Stack {
    pub(crate) config: StackConfig,
    pub(crate) pool: Side,
    pub(crate) jobs: Consumer,
    pub(crate) events: Producer,
    pub(crate) sent: SentPool,
    pub(crate) limits: tcp::Limits,
    pub(crate) intake: Intake,
    pub(crate) counters: Counters,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) routes: Routes,
    pub(crate) neighbors: Neighbors,
    /// When addresses and routers need to be looked at again.
    pub(crate) configure_at: Instant,
    pub(crate) conflicts: Vec<Conflict>,
    pub(crate) paths: PathMtus,
    pub(crate) flows: FlowTable,
    pub(crate) conns: Conns,
    /// Which queues each connection is in.
    pub(crate) queues: Queues,
    pub(crate) listeners: Listeners,
    /// Options of the request that comes next.
    pub(crate) prepared: Options,
    pub(crate) syns: SynCache,
    pub(crate) cookies: Cookies,
    pub(crate) time_waits: TimeWaits,
    /// Connections that the application has closed.
    pub(crate) orphans: u32,
    /// The application ends: what it closes is told the peers, however much it is.
    pub(crate) ending: bool,
    /// Connections that are being ended, a part in each turn.
    pub(crate) walk: Option<Walk>,
    /// Where the last walk met a connection whose end is not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Where the next look for memory to free begins.
    hand: u32,
    pub(crate) ports: LocalPorts,
    pub(crate) sources: Sources,
    pub(crate) alarms: Alarms,
    pub(crate) due: Vec<u32>,
    /// Connections that were idle at some time, in its order.
    pub(crate) resting: Queue<Rest>,
    /// Connections with news for the application.
    pub(crate) notify: Queue<Entry>,
    /// Answers to requests, which are no connection's news.
    pub(crate) answers: VecDeque<crate::channel::Event>,
    pub(crate) reassembler: Reassembler,
    /// The connection whose predicted segment was the last frame: not settled, more of the same may follow.
    pub(crate) leading: Option<u32>,
    /// A packet whose last fragment was the last frame: whose it is has not been asked.
    pub(crate) whole: Option<Vec<u8>>,
    pub(crate) fragmenting: crate::fallback::Fragmenting,
    /// Whose queue the frames of the burst came by, where that is known.
    pub(crate) came_by: Option<u16>,
    /// Where answers to our SYNs arrive, if that is to be learnt.
    pub(crate) learning: Option<Box<Learning>>,
    pub(crate) icmp_budget: crate::icmp::Budget,
    isn: Keyed,
    /// Turns until the next check.
    #[cfg(debug_assertions)]
    pub(crate) unchecked: usize,
    #[cfg(debug_assertions)]
    pub(crate) scratch: crate::check::Scratch,
}

macro_rules! context {
    ($stack:ident, $now:expr) => {
        tcp::Context {
            now: $now,
            pool: &mut $stack.pool,
            sent: &mut $stack.sent,
            config: &$stack.config.tcp,
            counters: &mut $stack.counters.tcp,
            limits: &mut $stack.limits,
        }
    };
}
pub(crate) use context;

impl Stack {
    /// A stack with no interface; `pool`, `jobs` and `events` are its ends of the lane's memory.
    pub fn new(config: StackConfig, pool: Side, jobs: Consumer, events: Producer) -> Stack {
        let config = config.clamped();
        let secret = config.secret;
        let (a, b) = secret.split_at(8);
        let word = |half: &[u8]| half.iter().fold(0u64, |w, x| w << 8 | *x as u64);
        Stack {
            pool,
            jobs,
            events,
            sent: SentPool::new(),
            limits: tcp::Limits::default(),
            intake: Intake::default(),
            counters: Counters::default(),
            interfaces: Vec::new(),
            routes: Routes::default(),
            neighbors: Neighbors::new(config.max_neighbors),
            configure_at: Instant::FAR,
            conflicts: Vec::new(),
            paths: PathMtus::default(),
            flows: FlowTable::new(secret),
            conns: Conns::new(config.max_connections.min(EMBRYO - 1), config.tcp.clone()),
            queues: Queues::default(),
            listeners: Listeners::new(config.max_listeners, secret),
            prepared: Options::default(),
            syns: SynCache::new(config.max_half_open.min(EMBRYO - 1), config.tcp.initial_rto, config.tcp.max_rto),
            cookies: Cookies::new(secret),
            time_waits: TimeWaits::new(config.time_wait, config.max_time_wait.min(TIME_WAIT - 2)),
            orphans: 0,
            ending: false,
            walk: None,
            unacknowledged: 0,
            hand: 0,
            ports: LocalPorts::new(config.ports, secret, config.ports_start),
            sources: Sources::default(),
            alarms: Alarms::new(Instant::ZERO),
            due: Vec::with_capacity(256),
            resting: Queue::with_capacity(0),
            notify: Queue::with_capacity(256),
            answers: VecDeque::new(),
            reassembler: Reassembler::new(config.fragments.clone()),
            leading: None,
            whole: None,
            fragmenting: Default::default(),
            came_by: None,
            learning: (config.learn && config.steering.lanes() > 1).then(Box::default),
            icmp_budget: Default::default(),
            isn: Keyed::new(word(a).rotate_left(32) ^ 0x69736e, word(b)),
            #[cfg(debug_assertions)]
            unchecked: 0,
            #[cfg(debug_assertions)]
            scratch: Default::default(),
            config,
        }
    }

    /// Adds an interface; its number names it from now on.
    pub fn add_interface(&mut self, config: InterfaceConfig) -> InterfaceId {
        self.interfaces.push(Interface::new(config));
        let id = InterfaceId((self.interfaces.len() - 1) as u8);
        self.form_link_local(id);
        id
    }

    /// Other parameters of TCP from now on; what a connection took over when it began, it keeps. Not while handshakes are under
    /// way, which are held to the parameters when they end: whether it was done.
    pub fn set_tcp(&mut self, tcp: tcp::Config, syn_cookies: SynCookies) -> bool {
        let opening = |id| {
            self.conns.whole(id).is_some_and(|c| matches!(c.tcb.state(), tcp::State::SynSent | tcp::State::SynReceived))
        };
        if self.syns.len() > 0 || self.conns.iter_ids().any(opening) {
            return false;
        }
        self.config.tcp = tcp.clamped();
        self.config.syn_cookies = syn_cookies;
        self.conns.set_config(self.config.tcp.clone());
        true
    }

    /// An interface has another hardware address from now on: frames are sent from it, and taken that come to it.
    pub fn set_mac(&mut self, interface: InterfaceId, mac: MacAddr) {
        if let Some(i) = self.interfaces.get_mut(interface.index()) {
            i.config.mac = mac;
        }
    }

    /// Gives an interface an address; the route to its subnet comes with it.
    pub fn add_address(&mut self, interface: InterfaceId, addr: IpAddr, prefix: u8) {
        let Some(i) = self.interfaces.get_mut(interface.index()) else { return };
        if i.address(addr.into()).is_none() {
            i.addresses.edit().push(Address::new(addr.into(), prefix, i.config.dad));
            self.configure_at = Instant::ZERO;
        }
        self.add_route(Route { dst: network(addr, prefix), prefix, gateway: None, interface, metric: 0 });
    }

    /// Takes an address away; connections on it end by their timers.
    pub fn remove_address(&mut self, interface: InterfaceId, addr: IpAddr) {
        let Some(i) = self.interfaces.get_mut(interface.index()) else { return };
        let addr16 = Addr::from(addr);
        if let Some(at) = i.addresses.iter().position(|a| a.addr == addr16) {
            let prefix = i.addresses.edit().remove(at).prefix;
            self.configure_at = Instant::ZERO;
            let dst = network(addr, prefix);
            let shared = i.addresses.iter().any(|a| a.prefix == prefix && network(a.addr.to_ip(), prefix) == dst);
            if !shared {
                self.remove_route(&Route { dst, prefix, gateway: None, interface, metric: 0 });
            }
        }
    }

    /// Adds a route.
    pub fn add_route(&mut self, route: Route) {
        self.routes.add(route);
        self.neighbors.routes_changed();
    }

    /// Removes a route; `false` when there was none.
    pub fn remove_route(&mut self, route: &Route) -> bool {
        self.neighbors.routes_changed();
        self.routes.remove(route)
    }

    /// Removes every route of shared interfaces, before the kernel says them anew.
    pub fn clear_routes(&mut self) {
        self.neighbors.routes_changed();
        let interfaces = &self.interfaces;
        let shared = |r: &Route| interfaces.get(r.interface.index()).is_some_and(|i| i.config.mode == Mode::Shared);
        self.routes.retain(|r| !shared(r));
    }

    /// The kernel's or the administrator's word on a next hop.
    pub fn set_neighbor(&mut self, now: Instant, interface: InterfaceId, addr: IpAddr, mac: MacAddr) {
        self.neighbors.set(now, interface, addr.into(), mac);
        self.wake_resolved(now);
    }

    /// A next hop is no longer known.
    pub fn remove_neighbor(&mut self, interface: InterfaceId, addr: IpAddr) {
        self.neighbors.forget(interface, addr.into());
    }

    /// All that the kernel said of next hops is void; those in use are asked for again.
    pub fn forget_neighbors(&mut self) {
        let interfaces = &self.interfaces;
        self.neighbors.forget_all(|id| interfaces[id.index()].config.mode == Mode::Shared);
    }

    /// Next hops of shared interfaces that the kernel should resolve.
    pub fn wanted_neighbors(&mut self, out: &mut Vec<(InterfaceId, IpAddr)>) {
        if self.neighbors.questions.is_empty() {
            return;
        }
        let interfaces = &self.interfaces;
        self.neighbors.questions.retain(|q| {
            let shared = interfaces[q.interface.index()].config.mode == Mode::Shared;
            if shared {
                out.push((q.interface, q.addr.to_ip()));
            }
            !shared
        });
    }

    /// An interface of which it has been learnt which local ports lead to this lane; each is told once.
    pub fn take_learnt(&mut self) -> Option<InterfaceId> {
        self.learning.as_mut()?.take_news()
    }

    /// Statistics.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Of the connections those that have been idle and are parked.
    pub fn parked(&self) -> usize {
        self.conns.parked()
    }

    /// Connections now, TIME-WAIT aside.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Closed four-tuples being remembered.
    pub fn time_waits(&self) -> usize {
        self.time_waits.len()
    }

    /// Four-tuples in use: connections, and those that are being remembered.
    pub fn tuples(&self) -> usize {
        self.conns.len() + self.time_waits.len()
    }

    /// Local ports that active opens may leave from, of each address towards each remote end, if all lead to this lane.
    pub fn active_ports(&self) -> u32 {
        self.ports.count()
    }

    /// Connections that the application has closed, and that are not over.
    pub fn orphans(&self) -> usize {
        self.orphans as usize
    }

    /// Listeners now.
    pub fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// Whether a listener covers `local`.
    pub fn listening(&self, local: Endpoint) -> bool {
        self.listeners.covers(local)
    }

    /// The stack's side of the chunk pool, for statistics.
    pub fn pool(&self) -> &Side {
        &self.pool
    }

    /// The same, for the two-sided count of what is outstanding.
    pub fn pool_mut(&mut self) -> &mut Side {
        &mut self.pool
    }

    /// Segments sent and not acknowledged, of all connections.
    pub fn sent_records(&self) -> usize {
        self.sent.used()
    }

    /// Ids, tuples and states of all connections, for `ss`-like views and tests.
    pub fn each_connection(&self, mut f: impl FnMut(u32, &FlowKey, &Tcb)) {
        for id in self.conns.iter_ids() {
            self.conns.view(id, |key, tcb| f(id, key, tcb));
        }
    }

    /// The tuples of all connections, TIME-WAIT and handshakes aside.
    pub fn each_flow(&self, f: impl FnMut(&FlowKey)) {
        (0..self.conns.slots()).filter_map(|id| self.conns.key(id)).for_each(f);
    }

    /// RFC 6528 3: a clock of 4 µs ticks plus a keyed hash of the tuple.
    pub(crate) fn initial_sequence(&self, now: Instant, key: &FlowKey) -> (SeqNum, u32) {
        let hash = self.isn.tuple(key);
        // RFC 7323 5.4: the timestamp clock of each tuple has its own offset, so that it tells nothing about uptime.
        (SeqNum((hash as u32).wrapping_add((now.micros() / 4) as u32)), (hash >> 32) as u32)
    }

    #[inline(always)]
    pub(crate) fn find_flow(&self, key: &FlowKey, hash: u32) -> Option<u32> {
        self.flows.find(hash, |value| {
            if value & TIME_WAIT != 0 {
                self.time_waits.get(value & !TIME_WAIT).is_some_and(|t| t.key == *key)
            } else if value & EMBRYO != 0 {
                self.syns.get(value & !EMBRYO).is_some_and(|e| e.key == *key)
            } else {
                self.conns.key(value) == Some(key)
            }
        })
    }

    /// The largest segment that `interface` can receive from `key.remote`, and the bytes of its headers.
    #[inline]
    pub(crate) fn offered_mss(&self, interface: InterfaceId, key: &FlowKey) -> (u16, u16) {
        let headers = if key.remote.is_v4() { 40 } else { 60 };
        let mtu = self.interfaces[interface.index()].mtu(key.remote);
        (mtu.saturating_sub(headers).max(88), headers)
    }

    /// What of segments of `mss` bytes the path to `key.remote` takes, as far as it is known.
    #[inline]
    pub(crate) fn path_mss(&self, now: Instant, key: &FlowKey, mss: u16) -> u16 {
        if self.paths.is_empty() { mss } else { self.lowered_mss(now, key, mss) }
    }

    #[inline(never)]
    fn lowered_mss(&self, now: Instant, key: &FlowKey, mss: u16) -> u16 {
        let headers = if key.remote.is_v4() { 40 } else { 60 };
        self.paths.get(now, (key.interface, key.remote)).map_or(mss, |mtu| mtu.saturating_sub(headers).max(88).min(mss))
    }

    /// Puts a new connection, which `open` opens, into slab and table, there in the place of the value `instead`; `None` when
    /// the slab is full.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        birth: Birth,
        instead: Option<u32>,
        open: impl FnOnce(&mut Tcb, &mut tcp::Context),
    ) -> Option<u32> {
        let hash = birth.hash;
        let mut conn = self.conns.prepare(birth)?;
        open(&mut conn.tcb, &mut context!(self, now));
        let id = self.conns.insert(conn);
        self.queues.reach(id);
        if let Some(c) = self.conns.whole_mut(id) {
            c.wheel_at = self.alarms.born(now, self.queues[id].entry(id));
        }
        if !instead.is_some_and(|value| self.flows.replace(hash, value, id)) {
            self.flows.insert(hash, id);
        }
        Some(id)
    }

    /// Timers that are due (mTCP 3.2: one pass over what has expired).
    pub fn expire(&mut self, now: Instant) {
        self.conns.now = now;
        let mut due = core::mem::take(&mut self.due);
        self.alarms.expire(now, &self.queues, &mut due);
        for n in 0..due.len() {
            if let Some(later) = due.get(n + AHEAD) {
                self.conns.prefetch(*later);
            }
            let id = due[n];
            if let Some(at) = self.conns.parked_until(id).filter(|at| *at > now) {
                if at != Instant::FAR {
                    self.alarms.wheel.schedule(id, at);
                }
                continue;
            }
            let Some(c) = self.conns.get_mut(id) else { continue };
            // Where the wheel still has it, for later, that comes to nothing.
            c.wheel_at = Instant::FAR;
            if c.tcb.deadline() <= now {
                let mut cx = context!(self, now);
                c.tcb.on_timer(&mut cx);
            }
            self.settle(now, id);
        }
        due.clear();
        self.due = due;
        self.park(now);

        self.expire_handshakes(now);
        let (flows, sources) = (&mut self.flows, &mut self.sources);
        self.time_waits.expire(now, |t, record| {
            flows.remove(record.hash, t | TIME_WAIT);
            sources.freed(&record.key);
        });
        if self.reassembler.next().is_some_and(|at| at <= now) {
            for (interface, first) in self.reassembler.expire(now) {
                self.counters.drop(crate::DropReason::FragmentTimeout);
                self.reassembly_timed_out(now, interface, first.as_deref());
            }
        }
        self.configure(now);
        self.relieve(now);
        self.neighbors.expire(now);
        self.give_up_hops();
        self.ask_neighbors(now);
        self.wake_resolved(now);
        self.fail_unreachable(now);
    }

    /// Parks what has been idle for long enough, a few connections a turn.
    fn park(&mut self, now: Instant) {
        const STEP: usize = 256;
        // Beyond so many whole ones, memory counts for more than the work of parking.
        const WHOLE: usize = 32_768;
        let crowded = self.conns.len() - self.conns.parked() > WHOLE;
        let after = if crowded { core::time::Duration::ZERO } else { self.config.park_after };
        for _ in 0..STEP {
            // A second ago is long ago for a cache.
            if let Some(later) = self.resting.get(2 * AHEAD) {
                self.conns.prefetch(later.entry.id);
            }
            if let Some(later) = self.resting.get(AHEAD) {
                self.conns.prefetch_whole(later.entry.id);
            }
            let Some(Rest { entry, .. }) = self.resting.front().copied().filter(|r| r.since + after <= now) else {
                return;
            };
            self.resting.pop_front();
            if !self.queues.is_current(entry) {
                continue;
            }
            let id = entry.id;
            let word = &mut self.queues[id];
            word.remove(queued::RESTING);
            if word.bits() != 0 {
                // What it waits for settles it.
                continue;
            }
            let Some(c) = self.conns.whole_mut(id).filter(|c| c.tcb.is_idle()) else { continue };
            let since = c.tcb.last_active();
            if since + after > now {
                self.queues[id].insert(queued::RESTING);
                self.resting.push_back(Rest { entry, since: since.max(now) });
            } else {
                self.conns.park(id);
            }
        }
    }

    /// Short of chunks: what came out of order goes, of a few connections each time, until there are enough again.
    fn relieve(&mut self, now: Instant) {
        const STEP: u32 = 64;
        if self.pool.plenty() || self.conns.len() == 0 {
            return;
        }
        for _ in 0..STEP {
            let id = self.hand;
            self.hand = if id + 1 < self.conns.slots() { id + 1 } else { 0 };
            let Some(c) = self.conns.whole_mut(id) else { continue };
            let mut cx = context!(self, now);
            let shed = c.tcb.shed_out_of_order(&mut cx);
            self.counters.shed += shed as u64;
            if shed > 0 && self.pool.plenty() {
                return;
            }
        }
    }

    /// Earliest time at which [`Stack::expire`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let at = self.neighbors.next().min(self.configure_at);
        let neighbors = (at != Instant::FAR).then_some(at);
        let parking = self.resting.front().map(|r| r.since + self.config.park_after);
        [parking, self.alarms.next(), self.syns.next(), self.time_waits.next(), self.reassembler.next(), neighbors]
            .into_iter()
            .flatten()
            .min()
    }

    /// Jobs wait.
    pub fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Whether the application has left jobs behind that it has not handed over: a number that stays the same as long as
    /// they are the same, and more.
    pub fn left_jobs(&self) -> Option<u32> {
        self.jobs.offer()
    }

    /// The application does not come for them: they are done with the next [`Stack::run_jobs`].
    pub fn take_left_jobs(&mut self) {
        self.jobs.take_offer();
    }

    /// Something waits for the port or for room in the event ring.
    pub fn output_pending(&self) -> bool {
        !self.notify.is_empty() || !self.answers.is_empty() || self.interfaces.iter().any(Interface::waiting)
    }

    /// Questions of dedicated interfaces become ARP and NDP frames.
    pub(crate) fn ask_neighbors(&mut self, _now: Instant) {
        if self.neighbors.questions.is_empty() {
            return;
        }
        let questions = core::mem::take(&mut self.neighbors.questions);
        let mut kept = Vec::new();
        for q in questions {
            match self.interfaces[q.interface.index()].config.mode {
                Mode::Shared => kept.push(q),
                Mode::Dedicated => self.ask(&q),
            }
        }
        self.neighbors.questions = kept;
    }

    fn ask(&mut self, q: &Question) {
        let i = &self.interfaces[q.interface.index()];
        let Some(source) = i.source_for(q.addr).filter(|a| i.has(*a)) else { return };
        self.push_raw(q.interface, crate::replies::Raw::Solicit { target: q.addr, source, unicast: q.unicast });
    }

    /// Connections whose next hop is known now, or may be another one, are sent again.
    pub(crate) fn wake_resolved(&mut self, now: Instant) {
        while let Some(waiter) = self.neighbors.resolved.pop() {
            if self.waits_no_more(waiter) {
                self.settle(now, waiter.entry.id);
            }
        }
    }

    /// Connections being opened fail when their next hop does not answer; others live on their timers.
    pub(crate) fn fail_unreachable(&mut self, now: Instant) {
        while let Some(waiter) = self.neighbors.failed.pop() {
            if !self.waits_no_more(waiter) {
                continue;
            }
            let id = waiter.entry.id;
            // Where routes have changed meanwhile its hop may be another one, whose answer is still to come.
            self.find_hop(now, id);
            if self.conns.whole(id).is_some_and(|c| c.neighbor == waiter.hop) {
                self.lose_hop(now, id);
            }
            self.settle(now, id);
        }
    }

    /// Takes a connection off a hop's list; `false`, and nothing is done, where the hop is not that connection's (any more).
    fn waits_no_more(&mut self, Waiter { entry, hop }: Waiter) -> bool {
        let waited = self.queues.is_current(entry)
            && self.queues[entry.id].has(queued::HOP)
            && self.conns.whole(entry.id).is_some_and(|c| c.neighbor == hop);
        if waited {
            self.queues[entry.id].remove(queued::HOP);
        }
        waited
    }

    /// A connection hears that its next hop, or its own address, is not to be had.
    pub(crate) fn lose_hop(&mut self, now: Instant, id: u32) {
        if let Some(c) = self.conns.get_mut(id) {
            let mut cx = context!(self, now);
            c.tcb.unreachable(true, None, &mut cx);
        }
    }
}
