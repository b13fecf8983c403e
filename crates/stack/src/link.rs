//! The links: interfaces and their addresses, routes, next hops, path MTUs, fragments, what ARP, NDP and ICMP say of them, and the
//! frames that go out for no connection.
//!
//! What belongs to an interface is held by interface. A connection is known here only as an entry of the schedule that waits: for a next hop
//! ([`Link::wait`]) or for an address ([`Link::hold`]). Who need wait no longer is handed out by [`Link::take_resolved`] and its like, and
//! the caller decides what becomes of the connection.

pub(crate) mod arp;
pub(crate) mod autoconf;
pub(crate) mod check;
pub(crate) mod fragments;
pub(crate) mod hop;
pub(crate) mod icmp;
pub(crate) mod interface;
pub(crate) mod ndp;
pub(crate) mod neighbor;
pub(crate) mod path;
pub(crate) mod replies;
pub(crate) mod route;
pub(crate) mod trouble;

use core::net::IpAddr;

use wire::{Addr, Instant, MacAddr};

use crate::counters::Counters;
use crate::link::autoconf::Conflict;
use crate::link::fragments::{Fragment, Reassembler};
use crate::link::hop::{HANDSHAKE, NO_NEIGHBOR, NO_ROUTE};
use crate::link::interface::{Address, Interface, network};
use crate::link::neighbor::{Hop, Neighbors, Question, Waiter};
use crate::link::path::PathMtus;
use crate::link::replies::Raw;
use crate::link::route::Routes;
use crate::schedule::queues::Entry;
use crate::{DropReason, FlowKey, InterfaceConfig, InterfaceId, Mode, Route, StackConfig};

/// Where a packet came from, for replies.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub interface: InterfaceId,
    pub mac: MacAddr,
    pub src: Addr,
    pub dst: Addr,
    /// The ECN bits of its IP header (RFC 3168 5).
    pub ecn: u8,
}

impl Source {
    /// The tuple of a packet from there, with these ports.
    #[inline(always)]
    pub fn key(&self, local_port: u16, remote_port: u16) -> FlowKey {
        FlowKey { interface: self.interface, local: self.dst, remote: self.src, local_port, remote_port }
    }
}

pub(crate) struct Link {
    interfaces: Vec<Interface>,
    routes: Routes,
    neighbors: Neighbors,
    paths: PathMtus,
    reassembler: Reassembler,
    icmp_budget: icmp::Budget,
    /// When addresses and routers need to be looked at again.
    configure_at: Instant,
    conflicts: Vec<Conflict>,
    /// Connections that have waited for an address of which it is decided now whether it is ours.
    released: Vec<Entry>,
    /// Which of the lanes this is: all hear the link, lane 0 speaks for them.
    lane: u16,
    secret: [u8; 16],
}

impl core::ops::Index<InterfaceId> for Link {
    type Output = Interface;
    #[inline(always)]
    fn index(&self, id: InterfaceId) -> &Interface {
        &self.interfaces[id.index()]
    }
}

impl Link {
    pub fn new(config: &StackConfig) -> Link {
        Link {
            interfaces: Vec::new(),
            routes: Routes::default(),
            neighbors: Neighbors::new(config.max_neighbors),
            paths: PathMtus::default(),
            reassembler: Reassembler::new(config.fragments.clone()),
            icmp_budget: icmp::Budget::default(),
            configure_at: Instant::FAR,
            conflicts: Vec::new(),
            released: Vec::new(),
            lane: config.lane,
            secret: config.secret,
        }
    }

    /// Adds an interface; its number names it from now on.
    pub fn add_interface(&mut self, config: InterfaceConfig) -> InterfaceId {
        assert!(self.interfaces.len() < 256, "a stack has 256 interfaces at most");
        self.interfaces.push(Interface::new(config));
        let id = InterfaceId((self.interfaces.len() - 1) as u8);
        self.form_link_local(id);
        id
    }

    /// The interface, if there is one of that number.
    pub fn get(&self, id: InterfaceId) -> Option<&Interface> {
        self.interfaces.get(id.index())
    }

    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    pub fn ids(&self) -> impl DoubleEndedIterator<Item = InterfaceId> + use<> {
        (0..self.interfaces.len()).map(|n| InterfaceId(n as u8))
    }

    pub fn set_mac(&mut self, interface: InterfaceId, mac: MacAddr) {
        if let Some(i) = self.interfaces.get_mut(interface.index()) {
            i.config.mac = mac;
        }
    }

    /// Another MTU; whether it is smaller than before.
    pub fn set_mtu(&mut self, interface: InterfaceId, mtu: u16) -> bool {
        let Some(i) = self.interfaces.get_mut(interface.index()) else { return false };
        let before = core::mem::replace(&mut i.config.mtu, mtu.max(interface::LEAST_MTU));
        before > i.config.mtu
    }

    pub fn add_address(&mut self, interface: InterfaceId, addr: IpAddr, prefix: u8) {
        let Some(i) = self.interfaces.get_mut(interface.index()) else { return };
        if i.address(addr.into()).is_none() {
            i.addresses.edit().push(Address::new(addr.into(), prefix, i.config.dad));
            self.configure_at = Instant::ZERO;
        }
        self.add_route(Route { dst: network(addr, prefix), prefix, gateway: None, interface, metric: 0 });
    }

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

    /// Adds a route; `false`, with nothing done, where its interface is not there.
    pub fn add_route(&mut self, route: Route) -> bool {
        let there = route.interface.index() < self.interfaces.len();
        if there {
            self.routes.add(route);
            self.neighbors.routes_changed();
        }
        there
    }

    pub fn remove_route(&mut self, route: &Route) -> bool {
        self.neighbors.routes_changed();
        self.routes.remove(route)
    }

    /// Removes every route of shared interfaces.
    pub fn clear_routes(&mut self) {
        self.neighbors.routes_changed();
        let interfaces = &self.interfaces;
        let shared = |r: &Route| interfaces.get(r.interface.index()).is_some_and(|i| i.config.mode == Mode::Shared);
        self.routes.retain(|r| !shared(r));
    }

    /// Whether packets may come to `dst` from `src` by `interface` in frames without a tag.
    #[inline(always)]
    pub fn admits_untagged(&mut self, interface: InterfaceId, src: Addr, dst: Addr) -> bool {
        let i = &mut self.interfaces[interface.index()];
        i.config.vlan.is_none() && i.addresses.admits(src, dst)
    }

    /// Whether some interface has `addr`, or is about to.
    pub fn owns(&self, addr: Addr) -> bool {
        self.interfaces.iter().any(|i| i.owns(addr))
    }

    // Next hops.

    pub fn set_neighbor(&mut self, now: Instant, interface: InterfaceId, addr: IpAddr, mac: MacAddr) {
        self.neighbors.set(now, interface, addr.into(), mac);
    }

    pub fn set_stale_neighbor(&mut self, now: Instant, interface: InterfaceId, addr: IpAddr, mac: MacAddr) {
        self.neighbors.set_stale(now, interface, addr.into(), mac);
    }

    pub fn refuse_neighbor(&mut self, now: Instant, interface: InterfaceId, addr: IpAddr) {
        self.neighbors.refuse(now, interface, addr.into());
    }

    pub fn remove_neighbor(&mut self, interface: InterfaceId, addr: IpAddr) {
        self.neighbors.forget(interface, addr.into());
    }

    /// All that the kernel said of next hops is void.
    pub fn forget_neighbors(&mut self) {
        let interfaces = &self.interfaces;
        self.neighbors.forget_all(|id| interfaces[id.index()].config.mode == Mode::Shared);
    }

    /// Next hops of shared interfaces that the kernel should resolve, or confirm.
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

    /// Moves on when an index of a next hop may mean another one: connections look theirs up again.
    #[inline(always)]
    pub fn epoch(&self) -> u32 {
        self.neighbors.epoch
    }

    /// Where frames for next hop `hop` go now; asks when nothing fresh is known.
    #[inline(always)]
    pub fn hop(&mut self, now: Instant, hop: u32) -> Hop {
        self.neighbors.hop(now, hop)
    }

    /// The next hop towards `remote` by `interface`, and the epoch of that: that of the best route by this interface, whichever leads there
    /// best of all. Where no route of it covers the peer, the peer itself as far as the interface's prefixes reach, else where its
    /// handshake came from. None where there is no room for a neighbour more.
    pub fn find_hop(&mut self, now: Instant, interface: InterfaceId, remote: Addr, handshake: bool) -> (u32, u32) {
        let Link { routes, neighbors, interfaces, .. } = self;
        let index = match routes.way_by(interface, remote) {
            Some(way) => {
                let index = neighbors.index(now, interface, way.hop.gateway.unwrap_or(remote));
                if let Some(index) = index {
                    // For the connections that come.
                    (way.neighbor, way.epoch) = (index, neighbors.epoch);
                }
                index
            }
            None if interfaces[interface.index()].reaches(remote) => neighbors.index(now, interface, remote),
            // Answers go to where the handshake came from.
            None if handshake => Some(HANDSHAKE),
            None => Some(NO_ROUTE),
        };
        index.map_or((NO_NEIGHBOR, 0), |index| (index, neighbors.epoch))
    }

    /// The kernel says where the next hops of this interface are.
    pub fn is_shared(&self, interface: InterfaceId) -> bool {
        self[interface].config.mode == Mode::Shared
    }

    /// The next hop of a connection that is opened by a handshake on `interface`, as far as it is known.
    #[inline]
    pub fn passive_hop(&mut self, interface: InterfaceId, remote: Addr) -> (u32, u32) {
        match self.routes.known_hop(interface, remote) {
            Some(hop) => hop,
            None if self[interface].reaches(remote) => (NO_NEIGHBOR, 0),
            None => (HANDSHAKE, self.neighbors.epoch),
        }
    }

    /// The interface of the best route to `remote`, and its next hop as far as it is known.
    pub fn best_hop(&mut self, remote: Addr) -> Option<(InterfaceId, (u32, u32))> {
        self.routes.way(remote).map(|way| (way.hop.interface, (way.neighbor, way.epoch)))
    }

    /// The next hop to `remote` by `interface`, if a route leads there.
    pub fn hop_by(&mut self, interface: InterfaceId, remote: Addr) -> Option<(u32, u32)> {
        self.routes.known_hop(interface, remote)
    }

    /// A connection waits for its next hop's hardware address.
    pub fn wait(&mut self, hop: u32, conn: Entry) {
        self.neighbors.wait(hop, conn);
    }

    /// A connection that waited for `hop` is over, or has another one; `waits` tells who does.
    pub fn leave(&mut self, hop: u32, waits: impl Fn(Entry) -> bool) {
        self.neighbors.leave(hop, waits);
    }

    /// A connection whose next hop is resolved, or may be another one now.
    pub fn take_resolved(&mut self) -> Option<Waiter> {
        self.neighbors.resolved.pop()
    }

    /// A connection whose next hop turned out unreachable.
    pub fn take_failed(&mut self) -> Option<Waiter> {
        self.neighbors.failed.pop()
    }

    /// Questions of dedicated interfaces become ARP and NDP frames.
    #[inline]
    pub fn ask(&mut self, counters: &mut Counters) {
        if !self.neighbors.questions.is_empty() {
            self.ask_all(counters);
        }
    }

    /// Whether a next hop is to be asked for.
    #[inline(always)]
    pub fn has_questions(&self) -> bool {
        !self.neighbors.questions.is_empty()
    }

    #[cold]
    fn ask_all(&mut self, counters: &mut Counters) {
        let questions = core::mem::take(&mut self.neighbors.questions);
        let mut kept = Vec::new();
        for q in questions {
            match self[q.interface].config.mode {
                Mode::Shared => kept.push(q),
                Mode::Dedicated => self.ask_for(&q, counters),
            }
        }
        self.neighbors.questions = kept;
    }

    fn ask_for(&mut self, q: &Question, counters: &mut Counters) {
        let i = &self[q.interface];
        let Some(source) = i.source_for(q.addr).filter(|a| i.has(*a)) else { return };
        self.push(q.interface, Raw::Solicit { target: q.addr, source, unicast: q.unicast }, counters);
    }

    // Path MTUs.

    /// The largest segment that `interface` can receive from `key.remote`, and the bytes of its headers.
    #[inline]
    pub fn offered_mss(&self, key: &FlowKey) -> (u16, u16) {
        let headers = if key.remote.is_v4() { 40 } else { 60 };
        let mtu = self[key.interface].mtu(key.remote);
        (mtu.saturating_sub(headers).max(88), headers)
    }

    /// Whether some path carries less than its link.
    #[inline(always)]
    pub fn has_lowered_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    /// What of segments of `mss` bytes the path to `key.remote` takes, as far as it is known.
    #[inline]
    pub fn path_mss(&self, now: Instant, key: &FlowKey, mss: u16) -> u16 {
        if self.paths.is_empty() { mss } else { self.lowered_mss(now, key, mss) }
    }

    #[inline(never)]
    fn lowered_mss(&self, now: Instant, key: &FlowKey, mss: u16) -> u16 {
        let headers = if key.remote.is_v4() { 40 } else { 60 };
        self.paths.get(now, (key.interface, key.remote)).map_or(mss, |mtu| mtu.saturating_sub(headers).max(88).min(mss))
    }

    /// The path to `key.remote` carries packets of `mtu` bytes only.
    pub fn lower_path(&mut self, now: Instant, key: &FlowKey, mtu: u16) {
        self.paths.lower(now, (key.interface, key.remote), mtu);
    }

    // Fragments.

    /// A frame with a fragment of a datagram; the whole frame, if it was the last that was missing.
    pub fn take_fragment(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        frame: &[u8],
        counters: &mut Counters,
    ) -> Result<Option<Vec<u8>>, DropReason> {
        let fate = self.reassembler.push(now, interface, frame);
        for _ in 0..core::mem::take(&mut self.reassembler.evicted) {
            counters.drop(DropReason::FragmentLimit);
        }
        match fate {
            Fragment::Kept => Ok(None),
            Fragment::Dropped(reason) => Err(reason),
            Fragment::Complete(whole) => {
                counters.reassembled += 1;
                Ok(Some(whole))
            }
        }
    }

    // Time.

    /// Does what the time says; whoever need wait no longer is there to be taken afterwards.
    pub fn expire(&mut self, now: Instant, counters: &mut Counters) {
        if self.reassembler.next().is_some_and(|at| at <= now) {
            for (interface, first) in self.reassembler.expire(now) {
                counters.drop(DropReason::FragmentTimeout);
                self.reassembly_timed_out(now, interface, first.as_deref(), counters);
            }
        }
        self.configure(now, counters);
        self.neighbors.expire(now);
        self.give_up_hops();
        self.ask(counters);
    }

    /// Earliest time at which [`Link::expire`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let at = self.neighbors.next().min(self.configure_at);
        let neighbors = (at != Instant::FAR).then_some(at);
        [self.reassembler.next(), neighbors].into_iter().flatten().min()
    }

    /// A check after each turn takes longer by so many places.
    #[cfg(debug_assertions)]
    pub fn places(&self) -> (usize, usize) {
        (self.neighbors.len(), self.routes.iter().count())
    }
}
