//! An interface that the kernel keeps using, and which addresses of the machine are served on it.

use std::net::IpAddr;

use ::io::netlink::Address;
use ::io::xdp::XdpDevice;
use wire::MacAddr;

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
