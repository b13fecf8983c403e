//! Sharing an interface with the kernel: its addresses, routes and neighbours become the lanes', our ports become known to
//! the XDP program, and one sleeping thread follows the changes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::io::bpf::{OwnFlags, OwnFlow, OwnKey};
use ::io::netlink::{self, Address, Change, KernelNeighbor, KernelRoute, Link, Netlink};
use ::io::xdp::{ActivePorts, Local, Placeholder, XdpDevice};
use ::io::{Bell, PortError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stack::{FlowKey, InterfaceId, Route};
use wire::{MacAddr, Ports};

use crate::app::Gate;
use crate::claim::Claim;
use crate::devices::Devices;
use crate::drain::Draining;
use crate::engine::{Error, LaneLink};
use crate::lane::Wanted;
use crate::mailbox::Control;

/// An interface that the kernel keeps using.
pub(crate) struct SharedPort {
    /// Its place among the engine's ports.
    pub port: usize,
    pub vlan: u16,
    pub device: XdpDevice,
    /// Ours on it: all of the kernel's, or those configured.
    pub only: Option<Vec<IpAddr>>,
    /// The link's MTU, as it was heard of last.
    pub mtu: u32,
    /// The largest that is used: what there is room for, and what the configuration allows.
    pub largest: u16,
    /// Its hardware address, likewise.
    pub mac: MacAddr,
    /// Its receive queues, likewise.
    pub queues: u16,
}

impl SharedPort {
    /// Whether an address that the machine has is served on this device: its own, and those that belong to no interface to a
    /// network (`host`: the loopback interface and dummies), which peers reach by any. One that the configuration names may
    /// be of any interface that no other device takes (`taken`).
    fn serves(&self, a: &Address, host: &[u32], taken: &[u32]) -> bool {
        let here = a.link == self.device.link().index;
        match &self.only {
            Some(only) => only.contains(&a.addr) && (here || !taken.contains(&a.link)),
            None => here || host.contains(&a.link) && leaves_the_machine(a.addr),
        }
    }
}

/// Whether packets from and to an address may be on a network.
fn leaves_the_machine(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(a) => !a.is_loopback() && !a.is_link_local(),
        IpAddr::V6(a) => !a.is_loopback() && !a.is_unicast_link_local(),
    }
}

/// What a listener asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Listen {
    addr: SocketAddr,
    v6_only: bool,
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
struct Held {
    count: usize,
    /// By address.
    places: HashMap<IpAddr, Option<Placeholder>>,
    may_hold: bool,
}

struct State {
    ports: Vec<SharedPort>,
    /// (port index, address, prefix).
    addresses: Vec<(usize, IpAddr, u8)>,
    /// Links whose addresses are the machine's, whatever link they are reached by: the loopback interface and dummies.
    host: Vec<u32>,
    held: HashMap<Listen, Held>,
    /// Connections to these ports from this machine.
    local: Arc<Local>,
    draining: Draining,
    /// Wakes the control thread.
    bell: Arc<Bell>,
    active: ActivePorts,
    /// Routes of dedicated ports, which no kernel change touches.
    fixed: Vec<Route>,
    netlink: Netlink,
}

/// The control plane of an engine's shared interfaces.
pub(crate) struct Kernel {
    state: Arc<Mutex<State>>,
    bell: Arc<Bell>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    wanted: Sender<Wanted>,
    inbox: Option<Receiver<Wanted>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn system(what: &str) -> impl FnOnce(io::Error) -> Error {
    Error::system(what.to_string())
}

impl Kernel {
    /// Reads what there is; [`Kernel::follow`] starts to follow it. Active opens leave from `range`, or from what is free.
    pub fn new(ports: Vec<SharedPort>, fixed: Vec<Route>, range: Option<(u16, u16)>) -> Result<Kernel, Error> {
        let netlink = Netlink::open().map_err(system("netlink"))?;
        let devs: Vec<&str> = ports.iter().map(|port| port.device.link().name.as_str()).collect();
        let active = match range {
            Some((first, last)) => ActivePorts::claim_all(&devs, first, last)?,
            None => ActivePorts::claim(&devs)?,
        };
        let local = Local::new().map_err(system("epoll"))?;
        let bell = Arc::new(Bell::new().map_err(system("eventfd"))?);
        let mut state = State {
            ports,
            addresses: Vec::new(),
            host: Vec::new(),
            held: HashMap::new(),
            local,
            draining: Draining::default(),
            bell: bell.clone(),
            active,
            fixed,
            netlink,
        };
        state.read_addresses().map_err(system("reading addresses"))?;
        let (wanted, inbox) = channel();
        Ok(Kernel {
            state: Arc::new(Mutex::new(state)),
            bell,
            stop: Arc::default(),
            thread: None,
            wanted,
            inbox: Some(inbox),
        })
    }

    /// Ports for active opens.
    pub fn active_ports(&self) -> Ports {
        lock(&self.state).active.ports
    }

    /// For lanes: where to ask for next hops.
    pub fn asker(&self) -> (Sender<Wanted>, Arc<Bell>) {
        (self.wanted.clone(), self.bell.clone())
    }

    /// For applications: where to ask for ports.
    pub fn gate(&self) -> Arc<dyn Gate> {
        Arc::new(PortGate(self.state.clone()))
    }

    /// Connections from this machine, for whoever asks first; until then, and once that has gone, they are reset.
    pub fn local(&self) -> Option<LocalConnections> {
        let local = lock(&self.state).local.clone();
        let taken = local.take();
        self.bell.ring();
        taken.then(|| LocalConnections { local, bell: self.bell.clone() })
    }

    /// Whether any of the interfaces has an address that is served.
    pub fn has_address(&self) -> bool {
        !lock(&self.state).addresses.is_empty()
    }

    /// Gives everything back to the kernel, whoever still has listeners: for an engine whose applications' ends stay longer.
    pub fn give_back(&self) {
        let mut state = lock(&self.state);
        state.held.clear();
        state.draining = Draining::default();
        state.ports.clear();
    }

    /// Lines that a user should read.
    pub fn warnings(&self) -> Vec<String> {
        let state = lock(&self.state);
        let of = |p: &SharedPort| {
            let link = p.device.link();
            let mut lines = ::io::xdp::warnings(&link.name, link.index);
            let there = |addr: &IpAddr| state.addresses.iter().any(|(port, a, _)| *port == p.port && a == addr);
            let only = p.only.as_deref().unwrap_or_default();
            lines.extend(only.iter().filter(|addr| !there(addr)).map(|addr| {
                format!("{addr} is no address of {0}, nor answered for until it is: `ip addr add` gives it", link.name)
            }));
            if p.only.is_none() && !state.addresses.iter().any(|(port, ..)| *port == p.port) {
                lines.push(format!("{} has no address yet: `ip addr add` gives it one", link.name));
            }
            lines
        };
        state.ports.iter().flat_map(of).collect()
    }

    /// Tells the lanes what there is and starts the thread that follows the changes.
    pub fn follow(&mut self, lanes: Arc<Vec<LaneLink>>, devices: Arc<Devices>) -> Result<(), Error> {
        let Some(inbox) = self.inbox.take() else { return Ok(()) };
        // Listening before reading, so that nothing falls between.
        let monitor = Netlink::monitor().map_err(system("netlink"))?;
        lock(&self.state).tell_all(&lanes).map_err(system("reading routes and neighbours"))?;
        let (state, bell, local) = (self.state.clone(), self.bell.clone(), lock(&self.state).local.clone());
        let follower = Follower { state, lanes, devices, monitor, bell, local, inbox, down: Vec::new() };
        let stop = self.stop.clone();
        let thread = crate::sys::spawn("corelane-kernel".into(), move || follower.run(&stop));
        self.thread = Some(thread.map_err(system("starting the control thread"))?);
        Ok(())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread panicked");
        }
    }
}

impl State {
    fn port_of(&self, link: u32) -> Option<usize> {
        self.ports.iter().position(|p| p.device.link().index == link)
    }

    /// Takes what is new; which addresses are no more.
    fn read_addresses(&mut self) -> io::Result<Vec<(usize, IpAddr)>> {
        let all = self.netlink.addresses()?;
        let host = |l: &&Link| l.loopback || l.kind == "dummy";
        self.host = self.netlink.links()?.iter().filter(host).map(|l| l.index).collect();
        let taken: Vec<u32> = self.ports.iter().map(|p| p.device.link().index).collect();
        let mut gone = Vec::new();
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
                    self.add_address(at, a.addr, a.prefix)?;
                }
            }
        }
        Ok(gone)
    }

    /// Our ports on an address of this port; whether it is new.
    fn add_address(&mut self, at: usize, addr: IpAddr, prefix: u8) -> io::Result<bool> {
        let p = &self.ports[at];
        if self.addresses.iter().any(|(port, a, _)| *port == p.port && *a == addr) {
            return Ok(false);
        }
        p.device.set_active(p.vlan, addr.into(), self.active.ports).map_err(io::Error::other)?;
        self.addresses.push((p.port, addr, prefix));
        let wild: Vec<Listen> = self.held.keys().copied().filter(|l| l.covers(addr)).collect();
        for listen in wild {
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
        let _ = p.device.clear_active(p.vlan, addr.into());
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

    /// Takes `listen`'s port on one address from the kernel.
    fn take(&mut self, listen: Listen, addr: IpAddr) -> Result<(), PortError> {
        let State { ports, addresses, held, local, draining, .. } = self;
        let Some(held) = held.get_mut(&listen) else { return Ok(()) };
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
            let key = OwnKey { vlan: p.vlan, addr: addr.into(), port: listen.addr.port() };
            p.device.own(key, if held.may_hold { OwnFlags::BESIDE_KERNEL } else { OwnFlags::LISTENING })?;
            draining.end(ports, p.port, key);
        }
        Ok(())
    }

    fn listen(&mut self, listen: Listen) -> Result<(), PortError> {
        if let Some(held) = self.held.get_mut(&listen) {
            held.count += 1;
            return Ok(());
        }
        let covered: Vec<IpAddr> = self.addresses.iter().map(|(_, a, _)| *a).filter(|a| listen.covers(*a)).collect();
        let may_hold = kernel_may_hold(listen.addr.port(), &covered);
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

    fn release(&mut self, listen: Listen) {
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
                draining.begin(ports, p.port, OwnKey { vlan: p.vlan, addr: (*addr).into(), port: listen.addr.port() });
            }
        }
        bell.ring();
    }

    /// What is remembered of the fragments of this connection is not pushed out by those of others.
    fn sends_fragments(&self, key: &FlowKey) {
        let on = |p: &&SharedPort| self.addresses.iter().any(|(port, a, _)| *port == p.port && *a == key.local.to_ip());
        for p in self.ports.iter().filter(on) {
            let local = OwnKey { vlan: p.vlan, addr: key.local, port: key.local_port };
            let flow = OwnFlow { local, remote: key.remote, remote_port: key.remote_port };
            if let Err(error) = p.device.sends_fragments(flow) {
                tracing::debug!("{error}");
            }
        }
    }

    /// Ports whose last kernel connection has ended need no look-up any more.
    fn review_flows(&mut self) {
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

    fn tell_routes(&mut self, lanes: &[LaneLink]) -> io::Result<()> {
        let routes = self.routes()?;
        lanes.iter().for_each(|l| l.send(Control::Routes(routes.clone())));
        Ok(())
    }

    fn tell_neighbors(&mut self, lanes: &[LaneLink]) -> io::Result<()> {
        for n in self.netlink.neighbors()? {
            if let (Some(at), Some(mac)) = (self.port_of(n.link), n.mac) {
                let port = self.ports[at].port;
                lanes.iter().for_each(|l| l.send(Control::SetNeighbor(port, n.addr, mac)));
            }
        }
        Ok(())
    }

    fn tell_all(&mut self, lanes: &[LaneLink]) -> io::Result<()> {
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

/// Whether the kernel has connections on a port of these addresses, which then stay with it. What it only remembers of
/// connections that have ended (TIME-WAIT) it forgets, so that their four-tuples can be used again.
fn kernel_may_hold(port: u16, addresses: &[IpAddr]) -> bool {
    let covers = |addr| addresses.contains(&addr);
    let flows = match netlink::kernel_flows(port, covers) {
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

struct PortGate(Arc<Mutex<State>>);

struct Release(Arc<Mutex<State>>, Listen);

impl Drop for Release {
    fn drop(&mut self) {
        lock(&self.0).release(self.1);
    }
}

impl Gate for PortGate {
    fn listen(&self, addr: SocketAddr, v6_only: bool) -> io::Result<Claim> {
        let listen = Listen { addr, v6_only };
        let mut state = lock(&self.0);
        state.listen(listen).map_err(|error| match error {
            PortError::Busy { .. } => io::Error::new(io::ErrorKind::AddrInUse, error.to_string()),
            PortError::Permission { .. } => io::Error::new(io::ErrorKind::PermissionDenied, error.to_string()),
            PortError::Full { .. } => io::Error::new(io::ErrorKind::AddrNotAvailable, error.to_string()),
            other => io::Error::other(other.to_string()),
        })?;
        Ok(Claim::new(Release(self.0.clone(), listen)))
    }

    fn active(&self) -> Ports {
        lock(&self.0).active.ports
    }
}

/// Connections from this machine to the ports that lanes listen on over interfaces shared with the kernel. They come by `lo`,
/// which is the kernel's: so these are its sockets, and where nobody takes them they are reset.
pub struct LocalConnections {
    local: Arc<Local>,
    bell: Arc<Bell>,
}

impl LocalConnections {
    /// The next connection, if one waits; non-blocking, as its socket is. Errors: those of accept(2).
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        self.local.accept()
    }
}

/// Readable while a connection waits.
impl AsFd for LocalConnections {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.local.as_fd()
    }
}

impl Drop for LocalConnections {
    fn drop(&mut self) {
        self.local.leave();
        self.bell.ring();
    }
}

struct Follower {
    state: Arc<Mutex<State>>,
    lanes: Arc<Vec<LaneLink>>,
    devices: Arc<Devices>,
    monitor: Netlink,
    bell: Arc<Bell>,
    local: Arc<Local>,
    inbox: Receiver<Wanted>,
    /// Links that are down, by number: told once.
    down: Vec<u32>,
}

impl Follower {
    fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let (holding, patience) = {
                let state = lock(&self.state);
                (state.held.values().any(|h| h.may_hold), state.draining.patience())
            };
            {
                let mut fds = [
                    PollFd::new(&self.monitor, PollFlags::IN),
                    PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(self.local.as_fd(), PollFlags::IN),
                ];
                let watched = if self.local.is_taken() { 2 } else { 3 };
                let second = holding.then_some(Duration::from_secs(1));
                let longest = second.into_iter().chain(patience).min();
                let longest = longest.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos() as _ });
                // A signal is a wake-up like any other.
                let _ = poll(&mut fds[..watched], longest.as_ref());
            }
            self.bell.disarm();
            if let Err(error) = self.local.refuse() {
                // Short of descriptors: they wait, and this thread with them.
                tracing::debug!("refusing a connection from this machine: {error}");
                std::thread::sleep(Duration::from_millis(10));
            }
            if let Err(error) = self.work(holding) {
                tracing::warn!("following the kernel's tables: {error}");
            }
        }
    }

    fn work(&mut self, holding: bool) -> io::Result<()> {
        let mut state = lock(&self.state);
        while let Ok(wanted) = self.inbox.try_recv() {
            let (port, addr) = match wanted {
                Wanted::Neighbor(port, addr) => (port, addr),
                Wanted::Fragments(key) => {
                    state.sends_fragments(&key);
                    continue;
                }
            };
            let Some(link) = state.ports.iter().find(|p| p.port == port).map(|p| p.device.link().index) else {
                continue;
            };
            // One that cannot be asked for (the link is down) must not keep the others waiting.
            if let Err(error) = state.netlink.resolve(link, addr) {
                tracing::debug!("asking for {addr}: {error}");
                continue;
            }
            // One that is known already causes no change to hear of. What is not known yet will.
            if let Some(KernelNeighbor { mac: Some(mac), .. }) = state.netlink.neighbor(link, addr)? {
                self.lanes.iter().for_each(|l| l.send(Control::SetNeighbor(port, addr, mac)));
            }
        }
        if holding {
            state.review_flows();
        }
        let State { ports, draining, .. } = &mut *state;
        draining.work(Instant::now(), ports, &self.lanes, &self.bell);
        let Some(changes) = self.monitor.changes()? else {
            // Too many to follow one by one.
            return state.tell_all(&self.lanes);
        };
        let all = |make: &dyn Fn() -> Control| self.lanes.iter().for_each(|l| l.send(make()));
        let (mut routes, mut addresses) = (false, false);
        for change in changes {
            match change {
                Change::Link(link) => {
                    let Some(at) = state.port_of(link.index) else { continue };
                    let was_down = self.down.contains(&link.index);
                    if !link.up && !was_down {
                        tracing::warn!("{} is down: nothing comes or goes until it is up again", link.name);
                        self.down.push(link.index);
                    } else if link.up && was_down {
                        tracing::warn!("{} is up again", link.name);
                        self.down.retain(|l| *l != link.index);
                        if let Err(error) = state.ports[at].device.came_up() {
                            tracing::warn!("{error}");
                        }
                    }
                    let p = &mut state.ports[at];
                    if p.mtu != link.mtu {
                        let rest = match link.mtu > p.device.link().mtu {
                            true => ": start again to use that",
                            false => " from now on",
                        };
                        tracing::warn!("{}: its MTU is {}{rest}", link.name, link.mtu);
                        p.mtu = link.mtu;
                        let (port, mtu) = (p.port, link.mtu.min(p.largest.into()) as u16);
                        all(&|| Control::SetMtu(port, mtu));
                    }
                    let (now, served) = (p.device.queues_now(), p.device.queues());
                    if now > served && now != p.queues {
                        tracing::warn!(
                            "{0}: it has {now} receive queues now, and frames of {served} are taken: connections by the others \
                             get no answer: `ethtool -L {0} combined {served}`, or start again",
                            link.name
                        );
                    }
                    p.queues = now;
                    if p.mac != link.mac {
                        tracing::warn!("{}: its hardware address is {} from now on", link.name, link.mac);
                        p.mac = link.mac;
                        if let Err(error) = p.device.set_mac(link.mac) {
                            tracing::warn!("{error}");
                        }
                        let port = p.port;
                        all(&|| Control::SetMac(port, link.mac));
                    }
                }
                Change::NoLink(link) => {
                    let Some(at) = state.port_of(link) else { continue };
                    self.devices.gone(state.ports[at].port, &state.ports[at].device.link().name);
                }
                Change::Address(..) => addresses = true,
                Change::Routes => routes = true,
                Change::Neighbor(n) => {
                    let Some(at) = state.port_of(n.link) else { continue };
                    let port = state.ports[at].port;
                    match n.mac {
                        Some(mac) => all(&|| Control::SetNeighbor(port, n.addr, mac)),
                        None => all(&|| Control::RemoveNeighbor(port, n.addr)),
                    }
                }
            }
        }
        if addresses {
            // Which device an address is served on depends on all that there are.
            let before = state.addresses.clone();
            for (port, addr) in state.read_addresses()? {
                all(&|| Control::RemoveAddress(port, addr));
            }
            for (port, addr, prefix) in state.addresses.iter().filter(|a| !before.contains(a)) {
                all(&|| Control::AddAddress(*port, *addr, *prefix));
            }
        }
        if routes || addresses {
            state.tell_routes(&self.lanes)?;
        }
        Ok(())
    }
}
