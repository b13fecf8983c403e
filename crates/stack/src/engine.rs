//! The stack itself: it joins the parts, each of which owns what it holds, in the order of a turn.
//!
//! [`Link`] has the interfaces, [`Demux`] says whose a segment is, [`Conns`] has the connections, [`Schedule`] what is to be done with them and
//! when. What a part must keep consistent is private to it; none of them knows this one. What happens to a connection happens in the files below: a segment comes
//! ([`input`], [`handshake`]), the application wants something ([`jobs`], [`open`]), time passes ([`time`]); then the connection is settled
//! ([`settle`]), which says what is to be done next, and what is to be sent or told goes out ([`output`], [`events`]).

mod ahead;
mod check;
mod ending;
mod events;
mod fallback;
mod framing;
mod handshake;
mod headers;
mod icmp;
mod input;
mod jobs;
mod open;
mod output;
mod pressure;
mod replies;
mod serve;
mod settle;
mod statistics;
mod straight;
mod time;
mod train;
mod wait;

use core::net::IpAddr;

use mem::Side;
use mem::ring::{Consumer, Producer};
use tcp::{SentPool, Tcb};
use wire::{Instant, MacAddr};

pub use ending::Left;
pub use fallback::{Tuple, tuple_of};
pub use input::{Asked, OtherLanes, Sought};

use crate::clients::{Clients, Ill};
use crate::conns::Conns;
use crate::conns::conn::Birth;
use crate::counters::Counters;
use crate::demux::flows::Place;
use crate::demux::opened::{OpenTuples, PortSource};
use crate::demux::{Demux, MOST};
use crate::link::Link;
use crate::link::autoconf::Conflict;
use crate::names::{ClientId, SeatId};
use crate::schedule::Schedule;
use crate::spread::Spread;
use crate::{InterfaceConfig, InterfaceId, Route, StackConfig, SynCookies};

/// One lane's network stack.
pub struct Stack {
    link: Link,
    demux: Demux,
    conns: Conns,
    schedule: Schedule,
    clients: Clients,

    config: StackConfig,
    counters: Counters,
    sent: SentPool,
    limits: tcp::Limits,

    burst: input::Burst,
    pressure: pressure::Pressure,
    fragmenting: fallback::Fragmenting,
    ending: ending::Ending,
    /// Clients that were ended for what they did.
    ill: Vec<(ClientId, Ill)>,
    /// Connections that the application has closed.
    orphans: u32,
    /// Connections whose time has come: empty between calls, its memory is kept.
    due: Vec<u32>,
    /// Where the next look for memory to free begins.
    relief: u32,
    /// Turns until the next check.
    #[cfg(debug_assertions)]
    unchecked: usize,
    #[cfg(debug_assertions)]
    scratch: check::Scratch,
}

/// What a control block needs besides, where its bytes lie in the chunks of the client `$pool`.
macro_rules! context {
    ($stack:ident, $now:expr, $pool:expr) => {
        tcp::Context {
            now: $now,
            pool: $stack.clients.side($pool),
            sent: &mut $stack.sent,
            config: &$stack.config.tcp,
            counters: &mut $stack.counters.tcp,
            limits: &mut $stack.limits,
        }
    };
}
use context;

impl Stack {
    /// A stack with no interface; `pool` is its side of the chunks of its own process, `jobs` and `events` are its ends of the first seat's
    /// rings.
    pub fn new(config: StackConfig, pool: Side, jobs: Consumer, events: Producer) -> Stack {
        let config = config.clamped();
        Stack {
            link: Link::new(&config),
            demux: Demux::new(&config),
            conns: Conns::new(config.max_connections.min(MOST), Spread::of(config.secret), config.tcp.clone()),
            schedule: Schedule::new(),
            clients: Clients::new(pool, jobs, events),
            counters: Counters::default(),
            sent: SentPool::new(),
            limits: tcp::Limits::default(),
            burst: Default::default(),
            pressure: Default::default(),
            fragmenting: Default::default(),
            ending: Default::default(),
            ill: Vec::new(),
            orphans: 0,
            due: Vec::with_capacity(256),
            relief: 0,
            #[cfg(debug_assertions)]
            unchecked: 0,
            #[cfg(debug_assertions)]
            scratch: Default::default(),
            config,
        }
    }

    /// The kernel has what is not a connection's or a listener's of this interface: `tuples` is told of what is opened by it.
    pub fn share(&mut self, interface: InterfaceId, tuples: Box<dyn OpenTuples>) {
        self.demux.share(interface, tuples);
    }

    /// Local ports are not this stack's alone: connections leave from those that `source` gives.
    pub fn share_ports(&mut self, source: Box<dyn PortSource>) {
        self.demux.share_ports(source);
    }

    /// Adds an interface; its number names it from now on.
    pub fn add_interface(&mut self, config: InterfaceConfig) -> InterfaceId {
        self.schedule.add_interface();
        self.link.add_interface(config)
    }

    /// Other parameters of TCP from now on; what a connection took over when it began, it keeps. Not while handshakes are under
    /// way, which are held to the parameters when they end: whether it was done.
    pub fn set_tcp(&mut self, tcp: tcp::Config, syn_cookies: SynCookies) -> bool {
        let opening = |id| {
            self.conns
                .active(id)
                .is_some_and(|c| matches!(c.tcb.state(), tcp::State::SynSent | tcp::State::SynReceived))
        };
        if self.demux.handshakes().len() > 0 || self.conns.iter_ids().any(opening) {
            return false;
        }
        self.config.tcp = tcp.clamped();
        self.config.syn_cookies = syn_cookies;
        self.conns.set_config(self.config.tcp.clone());
        true
    }

    /// An interface has another hardware address from now on: frames are sent from it, and taken that come to it.
    pub fn set_mac(&mut self, interface: InterfaceId, mac: MacAddr) {
        self.link.set_mac(interface, mac);
    }

    /// The link of an interface takes packets of so many bytes from now on. Connections by it that send longer ones send what is
    /// on its way again, shorter (RFC 1191 6.4); where it takes longer ones, those that begin later use that.
    pub fn set_mtu(&mut self, now: Instant, interface: InterfaceId, mtu: u16) {
        if !self.link.set_mtu(interface, mtu) {
            return;
        }
        let by_it = |id: &u32| self.conns.key(*id).is_some_and(|key| key.interface == interface);
        let ids: Vec<u32> = self.conns.iter_ids().filter(by_it).collect();
        for id in ids {
            let Some(key) = self.conns.key(id) else { continue };
            let (mss, _) = self.link.offered_mss(&key);
            if let Some(c) = self.conns.get_mut(id) {
                c.tcb.shrink_mss(mss, None, &mut context!(self, now, c.pool));
            }
            self.settle(now, id);
        }
    }

    /// Gives an interface an address; the route to its subnet comes with it.
    pub fn add_address(&mut self, interface: InterfaceId, addr: IpAddr, prefix: u8) {
        self.link.add_address(interface, addr, prefix);
    }

    /// Takes an address away; connections on it end by their timers.
    pub fn remove_address(&mut self, interface: InterfaceId, addr: IpAddr) {
        self.link.remove_address(interface, addr);
    }

    /// Adds a route; `false`, with nothing done, where its interface is not there.
    pub fn add_route(&mut self, route: Route) -> bool {
        self.link.add_route(route)
    }

    /// Removes a route; `false` when there was none.
    pub fn remove_route(&mut self, route: &Route) -> bool {
        self.link.remove_route(route)
    }

    /// Removes every route of shared interfaces, before the kernel says them anew.
    pub fn clear_routes(&mut self) {
        self.link.clear_routes();
    }

    /// The kernel's or the administrator's word on a next hop.
    pub fn set_neighbor(&mut self, now: Instant, interface: InterfaceId, addr: IpAddr, mac: MacAddr) {
        self.link.set_neighbor(now, interface, addr, mac);
        self.wake_resolved(now);
    }

    /// The kernel has an address of a next hop that it has not confirmed lately (NUD_STALE). It is used, and
    /// [`Stack::wanted_neighbors`] tells of the use.
    pub fn set_stale_neighbor(&mut self, now: Instant, interface: InterfaceId, addr: IpAddr, mac: MacAddr) {
        self.link.set_stale_neighbor(now, interface, addr, mac);
        self.wake_resolved(now);
    }

    /// The kernel's table has no room for a next hop that [`Stack::wanted_neighbors`] told of (ENOBUFS). Connections that came by a
    /// handshake are answered to where that came from; of others what is sent is lost until there is room.
    pub fn refuse_neighbor(&mut self, now: Instant, interface: InterfaceId, addr: IpAddr) {
        self.counters.neighbors_refused += 1;
        self.link.refuse_neighbor(now, interface, addr);
        self.wake_resolved(now);
    }

    /// A next hop is no longer known.
    pub fn remove_neighbor(&mut self, interface: InterfaceId, addr: IpAddr) {
        self.link.remove_neighbor(interface, addr);
    }

    /// All that the kernel said of next hops is void; those in use are asked for again.
    pub fn forget_neighbors(&mut self) {
        self.link.forget_neighbors();
    }

    /// Next hops of shared interfaces that the kernel should resolve, or confirm.
    pub fn wanted_neighbors(&mut self, out: &mut Vec<(InterfaceId, IpAddr)>) {
        self.link.wanted_neighbors(out);
    }

    /// Conflicts about addresses since the last call, for the log.
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        self.link.take_conflicts()
    }

    /// An interface of which it has been learnt which local ports lead to this lane; each is told once.
    pub fn take_learnt(&mut self) -> Option<InterfaceId> {
        self.demux.take_learnt()
    }

    /// Gives another thread of the stack's own process a seat: `jobs` and `events` are the stack's ends of its rings, and its bytes lie in the
    /// chunks of that process. `None` where there are too many.
    pub fn add_seat(&mut self, jobs: Consumer, events: Producer) -> Option<SeatId> {
        self.clients.add_seat(jobs, events)
    }

    /// The stack's side of the chunks of its own process, for the two-sided count of what is outstanding.
    pub fn pool_mut(&mut self) -> &mut Side {
        self.clients.home_mut()
    }

    /// Jobs wait.
    pub fn has_jobs(&self) -> bool {
        self.clients.have_jobs()
    }

    /// Jobs that a seat has left behind without handing them over, for `after_us` by now, are done with the next [`Stack::run_jobs`]: for
    /// applications that may do other things for long.
    pub fn collect_left_jobs(&mut self, now: Instant, after_us: u64) {
        for seat in self.clients.ids() {
            self.clients.seat(seat).collect_left(now, after_us);
        }
    }

    /// When [`Stack::collect_left_jobs`] should be called next, µs from now; `None` where nothing was left behind.
    pub fn left_jobs_due(&mut self, now: Instant, after_us: u64) -> Option<u64> {
        self.clients.ids().filter_map(|seat| self.clients.seat(seat).left_due(now, after_us)).min()
    }

    /// Whether something waits to be sent by `interface`.
    #[inline(always)]
    fn has_output(&self, interface: InterfaceId) -> bool {
        self.link[interface].has_replies() || self.schedule.has_output(interface)
    }

    /// Whether frames wait for a port.
    pub fn sending(&self) -> bool {
        self.link.ids().any(|interface| self.has_output(interface))
    }

    /// Whether frames wait for the port of `interface`.
    pub fn sends_by(&self, interface: InterfaceId) -> bool {
        self.link.get(interface).is_some() && self.has_output(interface)
    }

    /// Something waits for room in the event ring.
    pub fn events_pending(&self) -> bool {
        !self.schedule.notify.is_empty() || self.clients.is_waiting()
    }

    /// Something waits for the port or for room in the event ring.
    pub fn output_pending(&self) -> bool {
        self.events_pending() || self.sending()
    }

    /// Adds a new connection, which `open` opens, in the place of its handshake's record, where there is one; `None` when there are too
    /// many.
    #[inline(always)]
    fn admit(
        &mut self,
        now: Instant,
        birth: Birth,
        handshake: Option<(u32, Place)>,
        open: impl FnOnce(&mut Tcb, &mut tcp::Context),
    ) -> Option<u32> {
        let hash = birth.hash;
        let mut conn = self.conns.prepare(birth)?;
        open(&mut conn.tcb, &mut context!(self, now, birth.pool));
        let id = self.conns.insert(conn);
        let alarm = self.schedule.begin(now, id);
        if let Some(c) = self.conns.active_mut(id) {
            c.alarm = alarm;
        }
        self.demux.add(hash, id, handshake);
        Some(id)
    }
}
