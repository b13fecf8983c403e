//! From a device's name to its queues: one port for each lane.

use std::net::IpAddr;

use io::impair::Impairment;
use io::memwire::{self, MemConfig};
use io::pcap::{Capture, Tee};
use io::tap::TapConfig;
use io::xdp::{XdpConfig, XdpDevice};
use io::{AnyPort, Port};
use stack::Mode;

use crate::config::{Config, Device, Neighbor, PortConfig};
use crate::error::Error;

/// Frames that a clean wire in memory holds in each direction: some bursts, few enough to stay in the caches.
const CLEAN_SLOTS: usize = 256;

/// As many as that, or, where a wire delays and then gives much at once, as many as it has by itself.
fn slots(impairment: &Impairment) -> usize {
    if *impairment == Impairment::default() { CLEAN_SLOTS } else { MemConfig::default().slots }
}

/// A device that was opened.
pub(crate) struct Opened {
    /// By lane.
    pub queues: Vec<AnyPort>,
    pub mode: Mode,
    pub vlan: Option<u16>,
    /// Largest IP packet that was asked for, bytes.
    pub mtu: Option<u16>,
    pub dad: u8,
    pub autoconf: bool,
    /// Addresses and prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    pub gateways: Vec<IpAddr>,
    /// Destinations on the link, and prefix lengths.
    pub routes: Vec<(IpAddr, u8)>,
    pub neighbors: Vec<Neighbor>,
    /// The interface, where the kernel keeps using it.
    pub shared: Option<XdpDevice>,
    /// Each flow comes by the queue by which it goes.
    pub mirrored: bool,
}

impl Opened {
    pub fn dedicated(port: &PortConfig, queues: Vec<AnyPort>) -> Opened {
        // Nobody else is on a wire in memory.
        let memory = matches!(port.device, Device::Memory(_));
        Opened {
            queues,
            mode: Mode::Dedicated,
            vlan: port.vlan,
            mtu: port.mtu,
            dad: port.dad.unwrap_or(!memory as u8),
            autoconf: port.autoconf.unwrap_or(!memory),
            addresses: port.addresses.iter().map(|c| (c.addr, c.prefix)).collect(),
            gateways: port.gateways.clone(),
            routes: port.routes.iter().map(|c| (c.addr, c.prefix)).collect(),
            neighbors: port.neighbors.clone(),
            shared: None,
            mirrored: false,
        }
    }
}

/// Both ends of a memory wire, for two engines of one process.
pub(crate) fn memory(configs: [&Config; 2], ends: [&PortConfig; 2]) -> Result<[Opened; 2], Error> {
    let same = |what: &str| Error::Config(format!("both ends of a memory wire need the same {what}"));
    let nothing = Impairment::default();
    // Whichever end says it.
    let impairment = match configs.map(|c| &c.impairment) {
        [a, b] if *b == nothing || a == b => a.clone(),
        [a, b] if *a == nothing => b.clone(),
        _ => return Err(same("impairment")),
    };
    let wire = MemConfig {
        name: "wire".into(),
        queues: configs[0].lanes,
        mtu: ends.iter().filter_map(|p| p.mtu).max().unwrap_or(1500),
        trust: ends.iter().all(|p| p.offload != Some(false)),
        slots: slots(&impairment),
        impairment,
        ..MemConfig::default()
    };
    let (a, b) = memwire::wire(&wire)?;
    let any = |ports: Vec<memwire::MemPort>| ports.into_iter().map(AnyPort::Mem).collect();
    let opened = |end, queues| captured(end, Opened { mirrored: true, ..Opened::dedicated(end, any(queues)) });
    Ok([opened(ends[0], a)?, opened(ends[1], b)?])
}

/// One end of a memory wire for an engine, the other for whoever speaks to it.
pub(crate) fn memory_end(config: &Config, end: &PortConfig) -> Result<(Opened, Vec<memwire::MemPort>), Error> {
    let wire = MemConfig {
        name: "wire".into(),
        queues: config.lanes,
        mtu: end.mtu.unwrap_or(1500),
        trust: true,
        slots: slots(&config.impairment),
        impairment: config.impairment.clone(),
        ..MemConfig::default()
    };
    let (ours, others) = memwire::wire(&wire)?;
    let opened = Opened::dedicated(end, ours.into_iter().map(AnyPort::Mem).collect());
    Ok((captured(end, opened)?, others))
}

/// Opens a device with a queue for each lane.
fn open(config: &Config, port: &PortConfig) -> Result<Opened, Error> {
    let offload = port.offload.unwrap_or(true);
    match &port.device {
        Device::Memory(_) => Err(Error::Config(format!(
            "{}: a memory wire joins two engines of one process; a program opens it with Engine::memory_pair",
            port.device
        ))),
        Device::Xdp(name) => {
            let xdp = XdpConfig {
                lanes: config.lanes,
                busy_poll_us: config.busy_poll_us,
                offload,
                cores: config.cores.clone(),
                ..XdpConfig::default()
            };
            let (device, ports) = XdpDevice::attach(name, &xdp)?;
            let queues = ports.into_iter().map(AnyPort::Xdp).collect();
            Ok(Opened { mode: Mode::Shared, shared: Some(device), ..Opened::dedicated(port, queues) })
        }
        Device::Packet(name) => {
            needs_address(port)?;
            let ports = io::packet::open(name, config.lanes, offload)?;
            Ok(Opened::dedicated(port, ports.into_iter().map(AnyPort::Packet).collect()))
        }
        Device::Tap(name) => {
            needs_address(port)?;
            let napi = port.napi.unwrap_or(false);
            let ports = io::tap::open(name, &TapConfig { queues: config.lanes, mtu: port.mtu, offload, napi })?;
            Ok(Opened::dedicated(port, ports.into_iter().map(AnyPort::Tap).collect()))
        }
    }
}

/// On a device of our own nobody else says which address is ours; one that the kernel has, too, would be answered for twice.
fn needs_address(port: &PortConfig) -> Result<(), Error> {
    if port.addresses.is_empty() {
        return Err(Error::Config(format!(
            "{}: which address is corelane's? name it with --addr 10.9.0.2/24 (one that the kernel does not have)",
            port.device
        )));
    }
    let kernel = io::netlink::Netlink::open().and_then(|mut n| n.addresses()).map_err(Error::system("netlink"))?;
    match port.addresses.iter().find(|ours| kernel.iter().any(|its| its.addr == ours.addr)) {
        None => Ok(()),
        Some(both) => Err(Error::Config(format!(
            "{}: {} is the kernel's own address: name another one, or share an interface with the kernel by xdp:IFACE",
            port.device, both.addr
        ))),
    }
}

/// Opens a device, with a capture file where one is asked for.
pub(crate) fn open_captured(config: &Config, port: &PortConfig) -> Result<Opened, Error> {
    let opened = open(config, port)?;
    if let (Some(mtu), Some(queue)) = (port.mtu, opened.queues.first())
        && mtu > queue.caps_of().mtu
    {
        let carries = queue.caps_of().mtu;
        let message =
            format!("{}: it carries packets of {carries} bytes, mtu is {mtu}: `ip link set` raises it", port.device);
        return Err(Error::Config(message));
    }
    captured(port, opened)
}

fn captured(port: &PortConfig, opened: Opened) -> Result<Opened, Error> {
    match &port.pcap {
        None => Ok(opened),
        Some(path) => capture(opened, path),
    }
}

fn capture(mut opened: Opened, path: &std::path::Path) -> Result<Opened, Error> {
    let names: Vec<String> = opened
        .queues
        .iter()
        .map(|q| {
            let caps = q.caps_of();
            format!("{}/{}", caps.name, caps.queue)
        })
        .collect();
    let file = Capture::create(path, &names)
        .map_err(Error::system(format!("capture file {} (can it be written there?)", path.display())))?;
    let tee = |(i, q)| AnyPort::Tee(Box::new(Tee::new(q, file.clone(), i as u32)));
    opened.queues = opened.queues.into_iter().enumerate().map(tee).collect();
    Ok(opened)
}
