//! Sharing an interface with the kernel: its addresses, routes and neighbours become the lanes', our ports become known to
//! the XDP program, and one sleeping thread follows the changes.

mod drain;
mod follower;
mod nat;
pub mod neighbors;
mod port;
mod ports;
mod state;
mod tuples;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ::io::netlink::{Conntrack, Netlink};
use ::io::xdp::{ActivePorts, Local};
use ::io::{Bell, PortError};
use mem::ArenaError;
use stack::Route;
use wire::Ports;

use crate::devices::Devices;
use crate::error::Error;
use crate::lane::Wanted;
use crate::links::LaneLink;
use crate::mailbox::Control;
use client::Claim;
use client::Gate;
use drain::Draining;
pub(crate) use drain::{Ledger, Question};
use follower::{Follower, Tables};
use nat::Mirror;
use neighbors::Neighbors;
pub(crate) use port::{SharedPort, Way};
use ports::LanePorts;
use state::{Listen, State, lock};
pub(crate) use tuples::ActiveTuples;
use tuples::{LaneTuples, PortUse};

/// The control plane of an engine's shared interfaces.
pub(crate) struct Kernel {
    state: Arc<Mutex<State>>,
    bell: Arc<Bell>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    wanted: Sender<Wanted>,
    inbox: Option<Receiver<Wanted>>,
    ledger: Arc<Ledger>,
}

fn system(what: &str) -> impl FnOnce(io::Error) -> Error {
    Error::system(what.to_string())
}

impl Kernel {
    /// Reads what there is; [`Kernel::follow`] starts to follow it. Connections are opened from ports of
    /// `range`, or from any.
    pub fn new(
        ports: Vec<SharedPort>,
        fixed: Vec<Route>,
        range: Option<(u16, u16)>,
        lanes: usize,
    ) -> Result<Kernel, Error> {
        let netlink = Netlink::open().map_err(system("netlink"))?;
        let local = Local::new().map_err(system("epoll"))?;
        let bell = Arc::new(Bell::new().map_err(system("eventfd"))?);
        let ledger = Ledger::new(lanes);
        let mut state = State {
            ports,
            addresses: Vec::new(),
            host: Vec::new(),
            held: HashMap::new(),
            local,
            draining: Draining::new(ledger.clone()),
            bell: bell.clone(),
            active: ActivePorts::new(range),
            published: Arc::default(),
            ahead: 0,
            look: None,
            used: Vec::new(),
            nat: Arc::default(),
            opened: Vec::new(),
            refusal: None,
            fixed,
            netlink,
            neighbors: Neighbors::default(),
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
            ledger,
        })
    }

    /// Ports from which connections are opened first.
    pub fn free_ports(&self) -> Ports {
        lock(&self.state).active.free()
    }

    /// For lanes: the ports from which they open connections.
    pub fn lane_ports(&self) -> LanePorts {
        LanePorts::of(&self.state)
    }

    /// For a lane: the tables of the connections that it opens, by the place of the interface among the engine's ports.
    pub fn lane_tuples(&self) -> Result<Vec<(usize, LaneTuples)>, ArenaError> {
        let (mut state, used) = (lock(&self.state), PortUse::new());
        let State { ports, opened, nat, .. } = &mut *state;
        let of = |p: &SharedPort| {
            let (ours, source) = nat::ends(nat, &self.bell, &p.tuples)?;
            opened.push(source);
            Ok((p.port, LaneTuples::new(p.tuples.clone(), used.clone(), ours)))
        };
        let tuples = ports.iter().map(of).collect();
        state.used.push(used);
        tuples
    }

    /// For lanes: where to ask for next hops.
    pub fn asker(&self) -> (Sender<Wanted>, Arc<Bell>) {
        (self.wanted.clone(), self.bell.clone())
    }

    /// For lanes: where to note what becomes of their listeners.
    pub fn ledger(&self) -> Arc<Ledger> {
        self.ledger.clone()
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

    /// Another process of this user may hold our ports beside us from now on.
    pub fn let_successor_in(&self) {
        lock(&self.state).local.let_successor_in();
    }

    /// Whether any of the interfaces has an address that is served, and a carrier.
    pub fn is_reachable(&self) -> bool {
        let state = lock(&self.state);
        // Link-local ones are there before the interface can be reached.
        let counts = |addr: &IpAddr| match addr {
            IpAddr::V4(v4) => !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        };
        let by = |p: &SharedPort| {
            let mut own = state.addresses.iter().filter(|(port, ..)| *port == p.port);
            own.any(|(_, addr, _)| counts(addr) || p.only.is_some())
        };
        state.ports.iter().any(|p| p.way == Way::Open && by(p))
    }

    /// Gives everything back to the kernel, whoever still has listeners: for an engine whose applications' ends stay longer.
    pub fn give_back(&self) {
        let mut state = lock(&self.state);
        state.held.clear();
        state.draining.end_all();
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
        let (state, bell, tables) = (self.state.clone(), self.bell.clone(), Tables::default());
        let (local, nat, opened) = {
            let mut state = lock(&self.state);
            (state.local.clone(), state.nat.clone(), std::mem::take(&mut state.opened))
        };
        let nat = Mirror::new(nat, bell.clone(), opened, Conntrack::open().ok());
        let follower = Follower { state, lanes, devices, monitor, bell, local, inbox, tables, nat };
        let (stop, lanes) = (self.stop.clone(), follower.lanes.clone());
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| follower.run(&stop))).is_err() {
                // Lanes that hear of no change would go on with addresses and neighbours that are no more.
                tracing::error!("the control thread panicked: all connections are reset");
                lanes.iter().for_each(|lane| lane.send(Control::Reset));
            }
        };
        let thread = crate::sys::spawn("corelane-kernel".into(), body);
        self.thread = Some(thread.map_err(system("starting the control thread"))?);
        Ok(())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of it was told.
            let _ = thread.join();
        }
    }
}

struct PortGate(Arc<Mutex<State>>);

struct Release(Arc<Mutex<State>>, Listen);

impl Drop for Release {
    fn drop(&mut self) {
        lock(&self.0).release(self.1);
    }
}

/// The error of a socket call.
fn refusal(error: PortError) -> io::Error {
    let kind = match error {
        PortError::Busy { .. } => io::ErrorKind::AddrInUse,
        PortError::Permission { .. } => io::ErrorKind::PermissionDenied,
        PortError::Full { .. } => io::ErrorKind::AddrNotAvailable,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.to_string())
}

impl Gate for PortGate {
    fn listen(&self, addr: SocketAddr, v6_only: bool) -> io::Result<Claim> {
        let listen = Listen { addr, v6_only };
        let mut state = lock(&self.0);
        state.listen(listen).map_err(refusal)?;
        Ok(Claim::new(Release(self.0.clone(), listen)))
    }

    fn free_port(&self) -> io::Result<u16> {
        ::io::xdp::free_port()
    }

    fn opens_from(&self, port: u16) -> io::Result<()> {
        lock(&self.0).opens_from(port).map_err(refusal)
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
