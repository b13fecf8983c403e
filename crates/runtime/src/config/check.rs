//! What the types of a configuration cannot say: ranges, and what does not go together.

use std::net::IpAddr;

use super::{Cidr, Config, Device, Model, PortConfig};
use client::Clock;

/// Ports that one engine may have: a sleeping lane waits on all of them at once.
const MAX_PORTS: usize = 16;
/// Smallest IP packet that every IPv6 link carries (RFC 8200 5).
const IPV6_MIN_MTU: u16 = 1280;

/// Where in a configuration something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A key of the file itself.
    Top(&'static str),
    /// A key of `[tcp]`.
    Tcp(&'static str),
    /// A key of the n-th `[[ports]]`, from 0.
    Port(usize, &'static str),
}

/// A value that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// Where it stands.
    pub place: Place,
    /// What is wrong and what was expected.
    pub message: String,
}

impl Place {
    pub(super) fn fault(self, message: impl Into<String>) -> Fault {
        Fault { place: self, message: message.into() }
    }

    /// The first byte of its key in the file, or of the table that lacks it.
    pub(super) fn offset(self, text: &str) -> Option<usize> {
        use toml::de::{DeTable, DeValue};
        fn find<'t, 'i>(table: &'t DeTable<'i>, key: &str) -> Option<(usize, &'t toml::Spanned<DeValue<'i>>)> {
            table.iter().find(|(name, _)| name.get_ref() == key).map(|(name, value)| (name.span().start, value))
        }
        let whole = DeTable::parse(text).ok()?;
        let whole = whole.get_ref();
        let (outer, key, table) = match self {
            Place::Top(key) => return find(whole, key).map(|(at, _)| at),
            Place::Tcp(key) => {
                let (at, table) = find(whole, "tcp")?;
                (at, key, table)
            }
            Place::Port(n, key) => {
                let (_, ports) = find(whole, "ports")?;
                let port = ports.get_ref().as_array()?.get(n)?;
                (port.span().start, key, port)
            }
        };
        Some(table.get_ref().as_table().and_then(|t| find(t, key)).map_or(outer, |(at, _)| at))
    }
}

/// Refuses a value out of range.
pub(super) fn within<T: PartialOrd + std::fmt::Display>(
    place: impl Fn(&'static str) -> Place,
    key: &'static str,
    value: Option<T>,
    least: T,
    most: T,
) -> Result<(), Fault> {
    match value {
        Some(value) if value < least || value > most => {
            Err(place(key).fault(format!("{key} is {value}: expected {least} to {most}")))
        }
        _ => Ok(()),
    }
}

impl Config {
    /// What the types cannot say.
    pub fn check(&self) -> Result<(), Fault> {
        // A device has its own time, and so has a thread that sleeps.
        let memory = self.ports.iter().all(|port| matches!(port.device, Device::Memory(_)));
        if matches!(self.clock, Clock::Told(_)) && !(memory && self.model == Model::Inline) {
            return Err(Place::Top("clock").fault("a told clock goes with the memory wire and the inline model alone"));
        }
        let top = Place::Top;
        within(top, "lanes", Some(self.lanes), 1, 128)?;
        if !self.cores.is_empty() && self.cores.len() != self.lanes as usize {
            let (cores, lanes) = (self.cores.len(), self.lanes);
            return Err(top("cores").fault(format!("{cores} cores for {lanes} lanes: expected one each")));
        }
        // A timer's slack is 50 µs; a second is a timeout's.
        within(top, "guard_us", Some(self.guard_us), 100, 1_000_000)?;
        within(top, "spin_us", Some(self.spin_us), 0, 1_000_000)?;
        within(top, "end_s", Some(self.end_s), 1, 86_400)?;
        const MOST: u32 = i32::MAX as u32;
        within(top, "buffers_mib", Some(self.buffers_mib), 1, 1 << 20)?;
        within(top, "max_connections", Some(self.max_connections), 1, MOST)?;
        within(top, "max_sockets", Some(self.max_sockets), 1, MOST)?;
        if self.local_ports.is_some_and(|(a, b)| a == 0 || a > b) {
            return Err(top("local_ports").fault("local_ports: expected [first, last] with first not above last"));
        }
        self.tcp.check()?;
        if self.ports.len() > MAX_PORTS {
            let message = format!("{} ports: expected at most {MAX_PORTS}", self.ports.len());
            return Err(Place::Port(MAX_PORTS, "device").fault(message));
        }
        self.ports.iter().enumerate().try_for_each(|(at, port)| {
            check_port(at, port)?;
            for earlier in &self.ports[..at] {
                if earlier.device == port.device {
                    return Err(Place::Port(at, "device").fault(format!("{} is named twice", port.device)));
                }
                if port.pcap.is_some() && earlier.pcap == port.pcap {
                    return Err(Place::Port(at, "pcap").fault("pcap: expected a file for each port"));
                }
            }
            Ok(())
        })
    }
}

fn check_port(at: usize, port: &PortConfig) -> Result<(), Fault> {
    let here = |key| Place::Port(at, key);
    within(here, "vlan", port.vlan, 1, 4094)?;
    // RFC 791: every host takes 576 bytes.
    within(here, "mtu", port.mtu, 576, u16::MAX)?;
    within(here, "dad", port.dad, 0, 10)?;
    for Cidr { addr, .. } in &port.addresses {
        let broadcast = matches!(addr, IpAddr::V4(a) if a.is_broadcast());
        if addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || broadcast {
            return Err(here("addresses").fault(format!("addresses: {addr} cannot be a host's own address")));
        }
    }
    if let Some(mtu) = port.mtu.filter(|mtu| *mtu < IPV6_MIN_MTU)
        && port.addresses.iter().any(|c| c.addr.is_ipv6())
    {
        return Err(here("mtu").fault(format!("mtu is {mtu}: IPv6 needs {IPV6_MIN_MTU} at least")));
    }
    let of_family = |v4: bool| port.gateways.iter().filter(|g| g.is_ipv4() == v4).count();
    if of_family(true) > 1 || of_family(false) > 1 {
        return Err(here("gateways").fault("gateways: expected at most one for each family"));
    }
    if let Some(gateway) = port.gateways.iter().find(|g| g.is_unspecified() || g.is_multicast() || g.is_loopback()) {
        return Err(here("gateways").fault(format!("gateways: {gateway} cannot be a router's address")));
    }
    // What the kernel says of an interface that it keeps would go before these.
    if let (Device::Xdp(name), Some(id)) = (&port.device, port.vlan) {
        return Err(here("vlan").fault(format!(
            "vlan: the kernel keeps {name}'s VLANs on interfaces of their own: share that one (device = \"xdp:{name}.{id}\"; `ip \
             link add link {name} name {name}.{id} type vlan id {id}` makes it)"
        )));
    }
    if matches!(port.device, Device::Xdp(_)) {
        let set = [
            ("gateways", !port.gateways.is_empty()),
            ("routes", !port.routes.is_empty()),
            ("neighbors", !port.neighbors.is_empty()),
            ("dad", port.dad.is_some()),
            ("autoconf", port.autoconf.is_some()),
        ];
        if let Some((key, _)) = set.iter().find(|(_, set)| *set) {
            let message = format!("{key}: {} follows the kernel's addresses and routes; leave it out", port.device);
            return Err(here(key).fault(message));
        }
    }
    if port.napi.is_some() && !matches!(port.device, Device::Tap(_)) {
        return Err(here("napi").fault(format!("napi: {} is no tap; leave it out", port.device)));
    }
    Ok(())
}
