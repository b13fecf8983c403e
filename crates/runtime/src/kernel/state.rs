//! What is ours of the kernel's interfaces: addresses, listeners' ports on them, ports that drain; and what the lanes are told of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::io::bpf::{OwnFlags, OwnFlow, OwnKey};
use ::io::netlink::{self, Address, KernelFlows, KernelNeighbor, KernelRoute, Link, Netlink};
use ::io::xdp::{ActivePorts, Held as HeldPorts, Local, Placeholder};
use ::io::{Bell, PortError};
use stack::{FlowKey, InterfaceId, Route};

use super::drain::Draining;
use super::nat::{Nat, Source};
use super::neighbors::{Neighbors, Word};
use super::port::SharedPort;
use super::ports::Published;
use super::tuples::{PortUse, is_used};
use crate::links::LaneLink;
use crate::mailbox::Control;

/// What a listener asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Listen {
    pub(super) addr: SocketAddr,
    pub(super) v6_only: bool,
}

impl Listen {
    /// Whether it serves `addr`.
    fn covers(&self, addr: IpAddr) -> bool {
        match self.addr.ip() {
            ip if ip == addr => true,
            // A dual-stack wildcard takes both families, as the stack's own listeners do.
            IpAddr::V6(ip) if ip.is_unspecified() => addr.is_ipv6() || !self.v6_only,
            IpAddr::V4(ip) if ip.is_unspecified() => addr.is_ipv4(),
            _ => false,
        }
    }
}

/// A listener's hold on a port: on every address it covers.
pub(super) struct Held {
    count: usize,
    /// By address.
    places: HashMap<IpAddr, Option<Placeholder>>,
    may_hold: bool,
}

/// What the kernel has on its addresses and ports, or why that is not known.
type Kernels = Result<HashMap<(IpAddr, u16), KernelFlows>, String>;

/// Ports of the kernel's that are held at once, 15 µs each: others wait for that.
const AT_ONCE: usize = 128;
/// Local ports to begin with, as far as there are so many: with a few hundred short connections wait for each other.
const FIRST: usize = 4096;
/// Ports that are held ahead where all are taken.
const STEP: usize = 1024;
/// Between two looks at local ports: for those that the kernel chooses by now, and for those that nobody needs.
const LOOK: Duration = Duration::from_secs(2);

pub(super) struct State {
    pub(super) ports: Vec<SharedPort>,
    /// (port index, address, prefix).
    pub(super) addresses: Vec<(usize, IpAddr, u8)>,
    /// Links whose addresses are the machine's, whatever link they are reached by: the loopback interface and dummies.
    pub(super) host: Vec<u32>,
    pub(super) held: HashMap<Listen, Held>,
    /// Connections to these ports from this machine.
    pub(super) local: Arc<Local>,
    pub(super) draining: Draining,
    /// Wakes the control thread.
    pub(super) bell: Arc<Bell>,
    /// Ports from which connections are opened.
    pub(super) active: ActivePorts,
    /// News of these, for the lanes.
    pub(super) published: Arc<Published>,
    /// So many more are to be held before lanes need them.
    pub(super) ahead: usize,
    /// Next look at the ports, while there are some.
    pub(super) look: Option<Instant>,
    /// Connections by local port, for each lane.
    pub(super) used: Vec<PortUse>,
    /// The machine's NAT.
    pub(super) nat: Arc<Nat>,
    /// Connections that lanes open, for who enters them into connection tracking.
    pub(super) opened: Vec<Source>,
    /// Why there were no more the last time.
    pub(super) refusal: Option<String>,
    /// Routes of dedicated ports, which no kernel change touches.
    pub(super) fixed: Vec<Route>,
    pub(super) netlink: Netlink,
    pub(super) neighbors: Neighbors,
}

impl State {
    pub(super) fn port_of(&self, link: u32) -> Option<usize> {
        self.ports.iter().position(|p| p.device.link().index == link)
    }

    /// Takes what is new; which addresses are no more.
    pub(super) fn read_addresses(&mut self) -> io::Result<Vec<(usize, IpAddr)>> {
        let all = self.netlink.addresses()?;
        let host = |l: &&Link| l.loopback || l.kind == "dummy";
        self.host = self.netlink.links()?.iter().filter(host).map(|l| l.index).collect();
        let taken: Vec<u32> = self.ports.iter().map(|p| p.device.link().index).collect();
        let mut gone = Vec::new();
        let mut kernels = None;
        for at in 0..self.ports.len() {
            let (p, host) = (&self.ports[at], &self.host);
            let port = p.port;
            let served: Vec<Address> = all.iter().filter(|a| p.serves(a, host, &taken)).copied().collect();
            let kept = |addr: &IpAddr| served.iter().any(|a| a.addr == *addr);
            let ours = self.addresses.iter().filter(|(p, ..)| *p == port).map(|(_, addr, _)| *addr);
            let lost: Vec<IpAddr> = ours.filter(|addr| !kept(addr)).collect();
            for addr in lost {
                self.remove_address(at, addr);
                gone.push((port, addr));
            }
            // Its own come last: of equals the stack speaks from the last.
            for own in [false, true] {
                let link = self.ports[at].device.link().index;
                for a in served.iter().filter(|a| !a.tentative && (a.link == link) == own) {
                    self.add_address(at, a.addr, a.prefix, &mut kernels)?;
                }
            }
        }
        Ok(gone)
    }

    /// Our ports on an address of this port; whether it is new. `kernels` is what the kernel has, once that was asked for: an address
    /// that was here before, or on another machine, may have connections of the kernel's from then.
    fn add_address(&mut self, at: usize, addr: IpAddr, prefix: u8, kernels: &mut Option<Kernels>) -> io::Result<bool> {
        let p = &self.ports[at];
        if self.addresses.iter().any(|(port, a, _)| *port == p.port && *a == addr) {
            return Ok(false);
        }
        self.addresses.push((p.port, addr, prefix));
        let wild: Vec<Listen> = self.held.keys().copied().filter(|l| l.covers(addr)).collect();
        for listen in wild {
            if let Some(held) = self.held.get_mut(&listen)
                && !held.places.contains_key(&addr)
            {
                let kernels = kernels.get_or_insert_with(|| netlink::all_kernel_flows().map_err(|e| e.to_string()));
                let port = listen.addr.port();
                let flows = kernels.as_ref().map(|all| all.get(&(addr, port)).copied().unwrap_or_default());
                // The other addresses are not looked up for it.
                held.may_hold |= kernel_may_hold(port, flows, |a| a == addr);
            }
            if let Err(error) = self.take(listen, addr) {
                tracing::warn!("{}: {error}", SocketAddr::new(addr, listen.addr.port()));
            }
        }
        Ok(true)
    }

    fn remove_address(&mut self, at: usize, addr: IpAddr) -> bool {
        let p = &self.ports[at];
        let before = self.addresses.len();
        self.addresses.retain(|(port, a, _)| !(*port == p.port && *a == addr));
        if self.addresses.len() == before {
            return false;
        }
        let elsewhere = self.addresses.iter().any(|(_, a, _)| *a == addr);
        for (listen, held) in &mut self.held {
            let held_here = held.places.contains_key(&addr);
            if !elsewhere {
                held.places.remove(&addr);
            }
            if held_here {
                let _ = p.device.disown(OwnKey { vlan: p.vlan, addr: addr.into(), port: listen.addr.port() });
            }
        }
        self.draining.end_address(p, addr);
        true
    }

    /// Connections are opened from now on, and the XDP programs are told of each.
    pub(super) fn open(&mut self) {
        self.nat.look();
        match self.ports.iter().try_for_each(|p| p.tuples.make(&p.device)) {
            Ok(()) => drop(self.more_ports()),
            Err(error) => tracing::warn!("no connection can be opened: {error}"),
        }
    }

    /// Takes more local ports, for a lane that waits; whether there were any.
    pub(super) fn more_ports(&mut self) -> bool {
        let more = self.take_ports(AT_ONCE);
        if more == 0 {
            self.published.expect(self.active.most());
            return false;
        }
        self.published.publish(self.active.most());
        let count = self.active.ports().count() as usize;
        if more <= AT_ONCE || count < FIRST {
            self.ahead = FIRST.saturating_sub(count).max(STEP);
            self.bell.ring();
        }
        self.look_after_ports();
        true
    }

    /// A connection may leave from this port, which is named by who opens it.
    pub(super) fn opens_from(&mut self, port: u16) -> Result<(), PortError> {
        self.active.hold(port)?;
        self.look_after_ports();
        Ok(())
    }

    /// Ports are looked after from now on.
    fn look_after_ports(&mut self) {
        if self.look.is_none() {
            self.look = Some(Instant::now() + LOOK);
            self.bell.ring();
        }
    }

    /// Time until the next look at the ports.
    pub(super) fn ports_patience(&self) -> Option<Duration> {
        self.look.map(|look| look.saturating_duration_since(Instant::now()))
    }

    /// Looks after the ports, if it is time. Those that are over are dropped best without the lock, since that takes a while.
    pub(super) fn look_at_ports(&mut self) -> Option<HeldPorts> {
        let State { active, used, .. } = self;
        if self.look.is_none_or(|look| Instant::now() < look) {
            return None;
        }
        let news = active.look(AT_ONCE, |port| is_used(used, port));
        if let Some(error) = news.failed {
            tracing::warn!("local ports that are the kernel's by now are not held: {error}");
        }
        if news.changed {
            self.published.publish(active.most());
            tracing::debug!("connections leave from {} local ports", active.ports().count());
        }
        let next = if news.rest { Duration::ZERO } else { LOOK };
        self.look = active.are_used().then(|| Instant::now() + next);
        news.over
    }

    /// Holds some of the ports that lanes are about to need; whether more of these are left.
    pub(super) fn take_ahead(&mut self) -> bool {
        if self.ahead == 0 {
            return false;
        }
        let more = self.take_ports(self.ahead.min(AT_ONCE));
        self.ahead = if more > 0 { self.ahead.saturating_sub(more) } else { 0 };
        if self.ahead == 0 {
            self.published.publish(self.active.most());
        }
        self.ahead > 0
    }

    fn take_ports(&mut self, most: usize) -> usize {
        match self.active.more(most) {
            Ok(0) => 0,
            Ok(more) => {
                tracing::debug!("connections leave from {} local ports", self.active.ports().count());
                self.refusal = None;
                more
            }
            Err(error) => {
                // Each open that fails comes here: once is enough.
                let refusal = error.to_string();
                if self.refusal.as_ref() != Some(&refusal) {
                    tracing::warn!("connections are opened from no port more: {refusal}");
                    self.refusal = Some(refusal);
                }
                0
            }
        }
    }

    /// Takes `listen`'s port on one address from the kernel, or leaves all of it to the kernel.
    fn take(&mut self, listen: Listen, addr: IpAddr) -> Result<(), PortError> {
        let State { ports, addresses, held, local, draining, .. } = self;
        let Some(held) = held.get_mut(&listen) else { return Ok(()) };
        let new = !held.places.contains_key(&addr);
        let key = |p: &SharedPort| OwnKey { vlan: p.vlan, addr: addr.into(), port: listen.addr.port() };
        let mut taken = Vec::new();
        // Several devices where it is the machine's, and peers reach it by any.
        for p in ports.iter().filter(|p| addresses.iter().any(|(at, a, _)| *at == p.port && *a == addr)) {
            if let Entry::Vacant(place) = held.places.entry(addr) {
                let socket = match addr {
                    IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                        SocketAddr::V6(SocketAddrV6::new(v6, listen.addr.port(), 0, p.device.link().index))
                    }
                    _ => SocketAddr::new(addr, listen.addr.port()),
                };
                place.insert(Some(local.hold(socket)?));
            }
            let owned = p.device.own(key(p), if held.may_hold { OwnFlags::BESIDE_KERNEL } else { OwnFlags::LISTENING });
            if let Err(error) = owned {
                // The placeholder would take SYNs and answer none.
                if new {
                    held.places.remove(&addr);
                    taken.iter().for_each(|p: &&SharedPort| drop(p.device.disown(key(p))));
                }
                return Err(error);
            }
            draining.end(&ports[..], p.port, key(p));
            taken.push(p);
        }
        Ok(())
    }

    pub(super) fn listen(&mut self, listen: Listen) -> Result<(), PortError> {
        if let Some(held) = self.held.get_mut(&listen) {
            held.count += 1;
            return Ok(());
        }
        let covered: Vec<IpAddr> = self.addresses.iter().map(|(_, a, _)| *a).filter(|a| listen.covers(*a)).collect();
        let (port, covers) = (listen.addr.port(), |addr| covered.contains(&addr));
        let may_hold = kernel_may_hold(port, netlink::kernel_flows(port, covers), covers);
        self.held.insert(listen, Held { count: 1, places: HashMap::new(), may_hold });
        for addr in covered {
            match self.take(listen, addr) {
                Ok(()) => {}
                // The address went a moment ago, of which the follower is about to hear: the others are listened on.
                Err(PortError::Invalid(_)) if listen.addr.ip().is_unspecified() => {}
                Err(error) => {
                    self.release(listen);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub(super) fn release(&mut self, listen: Listen) {
        let Some(held) = self.held.get_mut(&listen) else { return };
        held.count -= 1;
        if held.count > 0 {
            return;
        }
        let Some(held) = self.held.remove(&listen) else { return };
        // The placeholders go, so that others may listen; connections that are still open stay ours until they end.
        let State { ports, addresses, draining, bell, .. } = self;
        for addr in held.places.keys() {
            for p in ports.iter().filter(|p| addresses.iter().any(|(at, a, _)| *at == p.port && a == addr)) {
                draining.begin(
                    &ports[..],
                    p.port,
                    OwnKey { vlan: p.vlan, addr: (*addr).into(), port: listen.addr.port() },
                );
            }
        }
        bell.ring();
    }

    /// What is remembered of the fragments of this connection is not pushed out by those of others.
    pub(super) fn sends_fragments(&self, key: &FlowKey) {
        let on = |p: &&SharedPort| self.addresses.iter().any(|(port, a, _)| *port == p.port && *a == key.local.to_ip());
        for p in self.ports.iter().filter(on) {
            let local = OwnKey { vlan: p.vlan, addr: key.local, port: key.local_port };
            let flow = OwnFlow { local, remote: key.remote, remote_port: key.remote_port };
            if let Err(error) = p.device.sends_fragments(flow) {
                tracing::debug!("{error}");
            }
        }
    }

    /// Whether the kernel may have connections on a port on which we listen.
    pub(super) fn beside_kernel(&self) -> bool {
        self.held.values().any(|held| held.may_hold)
    }

    /// Ports whose last kernel connection has ended need no look-up any more.
    pub(super) fn review_flows(&mut self) {
        let State { ports, addresses, held, .. } = self;
        for (listen, held) in held.iter_mut().filter(|(_, h)| h.may_hold) {
            let covers = |addr| held.places.contains_key(&addr);
            if netlink::kernel_flows(listen.addr.port(), covers).is_ok_and(|n| n.live == 0) {
                held.may_hold = false;
                for addr in held.places.keys() {
                    for p in ports.iter().filter(|p| addresses.iter().any(|(port, a, _)| *port == p.port && a == addr))
                    {
                        let key = OwnKey { vlan: p.vlan, addr: (*addr).into(), port: listen.addr.port() };
                        if let Err(error) = p.device.own(key, OwnFlags::LISTENING) {
                            tracing::warn!("{error}");
                        }
                    }
                }
            }
        }
    }

    fn routes(&mut self) -> io::Result<Vec<Route>> {
        let kernel = self.netlink.routes()?;
        let ours = |r: &KernelRoute| {
            let at = self.port_of(r.link)?;
            // The main table; policy routing is not followed.
            (r.table == 254).then(|| Route {
                dst: r.dst,
                prefix: r.prefix,
                gateway: r.gateway,
                interface: InterfaceId(self.ports[at].port as u8),
                metric: r.metric,
            })
        };
        Ok(kernel.iter().filter_map(ours).chain(self.fixed.iter().copied()).collect())
    }

    pub(super) fn tell_routes(&mut self, lanes: &[LaneLink]) -> io::Result<()> {
        let routes = self.routes()?;
        lanes.iter().for_each(|l| l.send(Control::Routes(routes.clone())));
        Ok(())
    }

    fn tell_neighbors(&mut self, lanes: &[LaneLink]) -> io::Result<()> {
        let mut all = self.netlink.neighbors()?;
        all.retain(|n| self.port_of(n.link).is_some());
        self.neighbors.replace(&all);
        all.iter().for_each(|n| self.tell_neighbor(n.link, n.addr, Word::Is(n.nud), lanes));
        Ok(())
    }

    /// The kernel's word on one neighbour.
    pub(super) fn neighbor_is(&mut self, n: &KernelNeighbor, lanes: &[LaneLink]) {
        if self.port_of(n.link).is_some() {
            self.neighbors.told(n);
            self.tell_neighbor(n.link, n.addr, Word::Is(n.nud), lanes);
        }
    }

    fn tell_neighbor(&self, link: u32, addr: IpAddr, word: Word, lanes: &[LaneLink]) {
        if let Some(at) = self.port_of(link) {
            let port = self.ports[at].port;
            lanes.iter().for_each(|l| l.send(Control::Neighbor(port, addr, word)));
        }
    }

    /// A lane uses a next hop that it does not know, or that the kernel does not watch.
    pub(super) fn use_neighbor(&mut self, port: usize, addr: IpAddr, behind: bool, lanes: &[LaneLink]) {
        let Some(link) = self.ports.iter().find(|p| p.port == port).map(|p| p.device.link().index) else { return };
        match self.neighbors.uses(Instant::now(), link, addr, behind, &mut self.netlink) {
            Ok(Some(word)) => self.tell_neighbor(link, addr, word, lanes),
            Ok(None) => {}
            // One that cannot be asked for (the link is down) must not keep the others waiting.
            Err(error) => tracing::debug!("asking for {addr}: {error}"),
        }
    }

    pub(super) fn tell_all(&mut self, lanes: &[LaneLink]) -> io::Result<()> {
        for (port, addr) in self.read_addresses()? {
            lanes.iter().for_each(|l| l.send(Control::RemoveAddress(port, addr)));
        }
        for (port, addr, prefix) in &self.addresses {
            lanes.iter().for_each(|l| l.send(Control::AddAddress(*port, *addr, *prefix)));
        }
        self.tell_routes(lanes)?;
        self.tell_neighbors(lanes)
    }
}

/// Whether the kernel has connections on a port of the addresses that are covered, which then stay with it. What it only remembers of
/// connections that have ended (TIME-WAIT) it forgets, so that their four-tuples can be used again.
fn kernel_may_hold(
    port: u16,
    flows: Result<KernelFlows, impl std::fmt::Display>,
    covers: impl Fn(IpAddr) -> bool,
) -> bool {
    let flows = match flows {
        Ok(flows) => flows,
        Err(error) => {
            tracing::warn!("port {port}: asking for the kernel's connections: {error}: each segment is looked up");
            return true;
        }
    };
    // Where the kernel or this user cannot, they stay, and the XDP program takes no notice of them.
    if flows.time_wait > 0
        && let Err(error) = netlink::forget_time_wait(port, covers)
    {
        tracing::debug!("port {port}: the kernel keeps its TIME-WAIT: {error}");
    }
    match (flows.live, flows.time_wait) {
        (0, 0) => {}
        (0, n) => tracing::warn!("the kernel had {n} connections in TIME-WAIT on port {port}, which end here"),
        (n, 0) => tracing::warn!("the kernel still has {n} connections on port {port}, which stay with it"),
        (n, m) => tracing::warn!(
            "the kernel still has {n} connections on port {port}, which stay with it (and had {m} in TIME-WAIT, which end here)"
        ),
    }
    flows.live > 0
}

pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
