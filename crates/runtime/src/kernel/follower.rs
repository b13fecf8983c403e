//! The thread that follows what changes: links, addresses, routes, neighbours, and what lanes and listeners want.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ::io::netlink::{Change, Conntrack, Link, Netlink};
use ::io::xdp::Local;
use ::io::{Bell, Presence};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::nat::Mirror;
use super::port::Way;
use super::state::{State, lock};
use crate::devices::Devices;
use crate::lane::Wanted;
use crate::links::LaneLink;
use crate::mailbox::Control;

pub(super) struct Follower {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) lanes: Arc<Vec<LaneLink>>,
    pub(super) devices: Arc<Devices>,
    pub(super) monitor: Netlink,
    pub(super) bell: Arc<Bell>,
    pub(super) local: Arc<Local>,
    pub(super) inbox: Receiver<Wanted>,
    pub(super) tables: Tables,
    pub(super) nat: Mirror<Conntrack>,
}

/// The kernel's tables that are read whole after a change. A routing daemon changes routes by the thousand: as long as that goes on,
/// they are read now and then.
#[derive(Default)]
pub(super) struct Tables {
    /// What has changed since it was read.
    changed: Option<Changed>,
    read: Option<Instant>,
    /// Changes wait that nobody has looked at yet.
    more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Changed {
    Routes,
    /// Addresses, and with them routes.
    Addresses,
    /// Nobody knows what: changes were lost.
    All,
}

impl Tables {
    /// Between two readings.
    const REST: Duration = Duration::from_millis(50);

    fn change(&mut self, what: Changed) {
        self.changed = self.changed.max(Some(what));
    }

    /// The kernel may have told of more than was followed.
    fn behind(&self) -> bool {
        self.more || self.changed == Some(Changed::All)
    }

    /// How long until what has changed is to be read.
    fn patience(&self, now: Instant) -> Option<Duration> {
        let since = self.read.map_or(Tables::REST, |read| now.saturating_duration_since(read));
        self.changed.map(|_| Tables::REST.saturating_sub(since))
    }

    /// What is to be read now.
    fn due(&mut self, now: Instant) -> Option<Changed> {
        self.patience(now).filter(Duration::is_zero)?;
        self.read = Some(now);
        self.changed.take()
    }
}

/// Datagrams of changes that are followed before the rest of the work.
const DATAGRAMS: usize = 64;
/// Letters of lanes between two looks at changes.
const WANTS: usize = 64;

impl Follower {
    pub(super) fn run(mut self, stop: &AtomicBool) {
        if let Err(error) = self.look_at_links() {
            tracing::warn!("reading interfaces: {error}");
        }
        while !stop.load(Ordering::Relaxed) {
            let (holding, patience) = {
                let state = lock(&self.state);
                let now = Instant::now();
                let (tables, nat) = (self.tables.patience(now), self.nat.patience(now));
                let patience = [state.draining.patience(), state.ports_patience(), tables, nat];
                (state.beside_kernel(), patience.into_iter().flatten().min())
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
            while lock(&self.state).take_ahead() {}
            let (over, opens) = {
                let mut state = lock(&self.state);
                (state.look_at_ports(), state.look.is_some())
            };
            drop(over);
            if opens {
                self.nat.look();
            }
            self.nat.work(Instant::now());
        }
    }

    /// What has changed since the links were looked at, before anybody listened for changes.
    fn look_at_links(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        let indices: Vec<u32> = state.ports.iter().map(|p| p.device.link().index).collect();
        for index in indices {
            match state.netlink.link_at(index)? {
                Some(link) => link_is(&mut state, &self.lanes, &link),
                None => is_gone(&state, &self.devices, &self.lanes, index),
            }
        }
        Ok(())
    }

    fn work(&mut self, holding: bool) -> io::Result<()> {
        crate::provoke("control");
        let mut state = lock(&self.state);
        if holding {
            state.review_flows();
        }
        let State { ports, draining, .. } = &mut *state;
        draining.work(Instant::now(), &ports[..], &self.lanes, &self.bell);
        loop {
            for change in collect(&mut self.tables, || self.monitor.changes()) {
                match change {
                    Change::Link(link) => link_is(&mut state, &self.lanes, &link),
                    Change::NoLink(link) => is_gone(&state, &self.devices, &self.lanes, link),
                    Change::Address(..) => self.tables.change(Changed::Addresses),
                    Change::Routes => self.tables.change(Changed::Routes),
                    Change::Neighbor(n) => state.neighbor_is(&n, &self.lanes),
                }
            }
            // After the changes: of a neighbour it counts what the kernel said of it last.
            let behind = self.tables.behind();
            let wanted: Vec<Wanted> = self.inbox.try_iter().take(WANTS).collect();
            let rest = wanted.len() == WANTS;
            for wanted in wanted {
                match wanted {
                    Wanted::Neighbor(port, addr) => state.use_neighbor(port, addr, behind, &self.lanes),
                    Wanted::Fragments(key) => state.sends_fragments(&key),
                }
            }
            if !rest {
                break;
            }
        }
        let Some(changed) = self.tables.due(Instant::now()) else { return Ok(()) };
        let read = read(&mut state, &self.devices, &self.lanes, changed);
        if read.is_err() {
            self.tables.change(changed);
        }
        read
    }
}

/// The changes that wait. Where some were lost, or cannot be read, everything is read once more; what was told before is told.
fn collect(tables: &mut Tables, mut next: impl FnMut() -> io::Result<Option<Vec<Change>>>) -> Vec<Change> {
    let mut changes = Vec::new();
    tables.more = true;
    for _ in 0..DATAGRAMS {
        match next() {
            Ok(Some(more)) if more.is_empty() => {
                tables.more = false;
                break;
            }
            Ok(Some(more)) => changes.extend(more),
            Ok(None) => tables.change(Changed::All),
            Err(error) => {
                tracing::warn!("following the kernel's tables: {error}");
                tables.change(Changed::All);
                break;
            }
        }
    }
    changes
}

/// Tells the lanes what the kernel's tables say now.
fn read(state: &mut State, devices: &Devices, lanes: &[LaneLink], changed: Changed) -> io::Result<()> {
    let all = |make: &dyn Fn() -> Control| lanes.iter().for_each(|l| l.send(make()));
    match changed {
        Changed::Routes => state.tell_routes(lanes),
        Changed::Addresses => {
            // Which device an address is served on depends on all that there are.
            let before = state.addresses.clone();
            for (port, addr) in state.read_addresses()? {
                all(&|| Control::RemoveAddress(port, addr));
            }
            for (port, addr, prefix) in state.addresses.iter().filter(|a| !before.contains(a)) {
                all(&|| Control::AddAddress(*port, *addr, *prefix));
            }
            state.tell_routes(lanes)
        }
        Changed::All => {
            let links = state.netlink.links()?;
            let ports = state.ports.iter().map(|p| p.device.link().index);
            ports.filter(|p| links.iter().all(|l| l.index != *p)).for_each(|p| is_gone(state, devices, lanes, p));
            links.iter().for_each(|link| link_is(state, lanes, link));
            all(&|| Control::ForgetNeighbors);
            state.tell_all(lanes)
        }
    }
}

/// A link is no more: lanes need not ask it for room, nor anybody wait for it.
fn is_gone(state: &State, devices: &Devices, lanes: &[LaneLink], link: u32) {
    let Some(p) = state.port_of(link).map(|at| &state.ports[at]) else { return };
    lanes.iter().for_each(|l| l.send(Control::Link(p.port, Presence::Gone)));
    devices.gone(p.port, &p.device.link().name);
}

/// What there is to say and to do about a link as it is now.
fn link_is(state: &mut State, lanes: &[LaneLink], link: &Link) {
    let all = |make: &dyn Fn() -> Control| lanes.iter().for_each(|l| l.send(make()));
    let Some(at) = state.port_of(link.index) else { return };
    let p = &mut state.ports[at];
    let (was, now) = (p.way, Way::of(link));
    if let Some(line) = was.tells(now, &link.name) {
        tracing::warn!("{line}");
    }
    p.way = now;
    // One that was down from the start is no change, and told all the same.
    if was == Way::Down || now == Way::Down {
        let (port, presence) = (p.port, if now == Way::Down { Presence::Down } else { Presence::Up });
        all(&|| Control::Link(port, presence));
    }
    if was == Way::Down
        && now != Way::Down
        && let Err(error) = p.device.came_up()
    {
        tracing::warn!("{error}");
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_at_once_and_then_now_and_then() {
        let (mut tables, begin) = (Tables::default(), Instant::now());
        assert_eq!((tables.due(begin), tables.patience(begin)), (None, None), "nothing has changed");
        tables.change(Changed::Routes);
        assert_eq!(tables.patience(begin), Some(Duration::ZERO));
        assert_eq!(tables.due(begin), Some(Changed::Routes));
        // A change every millisecond for a second.
        let mut readings = 0;
        let mut last = begin;
        for ms in 1..=1000 {
            tables.change(Changed::Routes);
            let now = begin + Duration::from_millis(ms);
            if tables.due(now).is_some() {
                (readings, last) = (readings + 1, now);
            }
        }
        assert!((18..=20).contains(&readings), "{readings}");
        // The last of them is followed, and nothing after it.
        let now = begin + Duration::from_millis(1000);
        let wait = tables.patience(now).map_or(Duration::ZERO, |wait| wait);
        assert!(last == now || tables.due(now + wait).is_some());
        assert_eq!(tables.patience(now + wait), None);
    }

    #[test]
    fn changes_that_were_told_before_an_error_are_followed() {
        let mut tables = Tables::default();
        let mut told = vec![Err(io::ErrorKind::OutOfMemory.into()), Ok(Some(vec![Change::NoLink(7)]))];
        let changes = collect(&mut tables, || told.pop().unwrap());
        assert!(matches!(changes[..], [Change::NoLink(7)]), "{changes:?}");
        assert_eq!(tables.due(Instant::now()), Some(Changed::All), "nobody knows what was lost");
        // An overrun is no end: what waits behind it is newer.
        let mut told = vec![Ok(Some(vec![])), Ok(Some(vec![Change::NoLink(8)])), Ok(None)];
        assert!(matches!(collect(&mut tables, || told.pop().unwrap())[..], [Change::NoLink(8)]));
        assert!(told.is_empty());
    }

    #[test]
    fn changes_that_wait_are_known_to_wait() {
        let mut tables = Tables::default();
        collect(&mut tables, || Ok(Some(vec![Change::Routes])));
        assert!(tables.behind(), "more than are followed in one turn");
        collect(&mut tables, || Ok(Some(vec![])));
        assert!(!tables.behind());
        let mut told = vec![Ok(Some(vec![])), Ok(None)];
        collect(&mut tables, || told.pop().unwrap());
        assert!(tables.behind(), "some were lost");
        assert_eq!((tables.due(Instant::now()), tables.behind()), (Some(Changed::All), false));
    }

    #[test]
    fn what_includes_the_rest_is_read() {
        let (mut tables, begin) = (Tables::default(), Instant::now());
        for what in [Changed::Addresses, Changed::Routes] {
            tables.change(what);
        }
        assert_eq!(tables.due(begin), Some(Changed::Addresses));
        for what in [Changed::Routes, Changed::All, Changed::Addresses] {
            tables.change(what);
        }
        assert_eq!(tables.due(begin), None, "it was read just now");
        assert_eq!(tables.due(begin + Tables::REST), Some(Changed::All));
    }
}
