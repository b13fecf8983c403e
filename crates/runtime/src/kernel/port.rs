//! An interface that the kernel keeps using, and which addresses of the machine are served on it.

use std::net::IpAddr;

use ::io::netlink::{Address, Link};
use ::io::xdp::XdpDevice;
use wire::MacAddr;

use super::tuples::ActiveTuples;

/// An interface that the kernel keeps using.
pub(crate) struct SharedPort {
    /// Its place among the engine's ports.
    pub port: usize,
    pub vlan: u16,
    pub device: XdpDevice,
    /// Connections that lanes have opened by it.
    pub tuples: ActiveTuples,
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
    /// Whether frames come and go, likewise.
    pub way: Way,
}

/// Whether frames come and go by a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Open,
    /// The link is up, and its other end is not there.
    NoCarrier,
    Down,
}

impl Way {
    pub fn of(link: &Link) -> Way {
        match (link.up, link.carrier) {
            (true, true) => Way::Open,
            (true, false) => Way::NoCarrier,
            (false, _) => Way::Down,
        }
    }

    /// What a user should know of a change. A link that is up again has its carrier somewhat later.
    pub fn tells(self, now: Way, name: &str) -> Option<String> {
        match (self, now) {
            (Way::Open | Way::NoCarrier, Way::Down) => {
                Some(format!("{name} is down: nothing comes or goes until it is up again"))
            }
            (Way::Open, Way::NoCarrier) => {
                Some(format!("{name} has no carrier: nothing comes or goes until it has one"))
            }
            (Way::Down, Way::Open) => Some(format!("{name} is up again")),
            (Way::NoCarrier, Way::Open) => Some(format!("{name} has a carrier")),
            (Way::Down, Way::NoCarrier) | (Way::Open, Way::Open) => None,
            (Way::NoCarrier, Way::NoCarrier) | (Way::Down, Way::Down) => None,
        }
    }
}

impl SharedPort {
    /// Whether an address that the machine has is served on this device: its own, and those that belong to no interface to a
    /// network (`host`: the loopback interface and dummies), which peers reach by any. One that the configuration names may
    /// be of any interface that no other device takes (`taken`).
    pub(super) fn serves(&self, a: &Address, host: &[u32], taken: &[u32]) -> bool {
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
