//! The thread that follows what changes: links, addresses, routes, neighbours, and what lanes and listeners want.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ::io::Bell;
use ::io::netlink::{Change, KernelNeighbor, Link, Netlink};
use ::io::xdp::Local;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::state::{State, lock};
use crate::devices::Devices;
use crate::engine::LaneLink;
use crate::lane::Wanted;
use crate::mailbox::Control;

pub(super) struct Follower {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) lanes: Arc<Vec<LaneLink>>,
    pub(super) devices: Arc<Devices>,
    pub(super) monitor: Netlink,
    pub(super) bell: Arc<Bell>,
    pub(super) local: Arc<Local>,
    pub(super) inbox: Receiver<Wanted>,
    /// Links that are down, by number: told once.
    pub(super) down: Vec<u32>,
}

impl Follower {
    pub(super) fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let (holding, patience) = {
                let state = lock(&self.state);
                (state.beside_kernel(), state.draining.patience())
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
            // Too many to follow one by one: everything is read once more.
            let links = state.netlink.links()?;
            for p in &state.ports {
                let link = p.device.link();
                if !links.iter().any(|l| l.index == link.index) {
                    self.devices.gone(p.port, &link.name);
                }
            }
            links.iter().for_each(|link| link_is(&mut state, &mut self.down, &self.lanes, link));
            self.lanes.iter().for_each(|l| l.send(Control::ForgetNeighbors));
            return state.tell_all(&self.lanes);
        };
        let all = |make: &dyn Fn() -> Control| self.lanes.iter().for_each(|l| l.send(make()));
        let (mut routes, mut addresses) = (false, false);
        for change in changes {
            match change {
                Change::Link(link) => link_is(&mut state, &mut self.down, &self.lanes, &link),
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

/// What there is to say and to do about a link as it is now.
fn link_is(state: &mut State, down: &mut Vec<u32>, lanes: &[LaneLink], link: &Link) {
    let all = |make: &dyn Fn() -> Control| lanes.iter().for_each(|l| l.send(make()));
    let Some(at) = state.port_of(link.index) else { return };
    let was_down = down.contains(&link.index);
    if !link.up && !was_down {
        tracing::warn!("{} is down: nothing comes or goes until it is up again", link.name);
        down.push(link.index);
    } else if link.up && was_down {
        tracing::warn!("{} is up again", link.name);
        down.retain(|l| *l != link.index);
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
