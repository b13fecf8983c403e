//! mTCP's configuration file: a key and its values in each line, between them spaces, tabs or `=`; `#` begins a comment.

use core::ffi::c_int;
use std::net::IpAddr;

use capi::Words;
use runtime::config::Cidr;
use runtime::{Config, Device, Model, PortConfig};
use tcp::congestion::Algorithm;

use super::tables;
use super::{Fault, File, Sizes};

/// Where mTCP looks for the tables, from where the program runs.
const ROUTES: &str = "config/route.conf";
const HARDWARE: &str = "config/arp.conf";

/// mTCP's ways to a NIC, and what we have in their place.
const MODULES: [&str; 4] = ["psio", "dpdk", "netmap", "onvm"];

/// The keys that are read, as a refusal of another one lists them.
pub(super) const KEYS: [&str; 19] = [
    "io",
    "port",
    "address",
    "num_cores",
    "core_mask",
    "max_concurrency",
    "max_num_buffers",
    "rcvbuf",
    "sndbuf",
    "tcp_timeout",
    "tcp_timewait",
    "cc",
    "local_ports",
    "num_mem_ch",
    "multiprocess",
    "stat_print",
    "onvm_serv",
    "onvm_inst",
    "onvm_dest",
];

/// Where a message of the engine names something of the command's, its name here.
pub(super) const WORDS: Words = Words(&[
    ("use --lanes ", "use num_cores = "),
    ("(--cores, or `cores` of the configuration)", "(core_mask)"),
    ("name it with --addr 10.9.0.2/24", "name it as address = 10.9.0.2/24"),
    ("use --pcap FILE", "`pcap` of a configuration in corelane's own form writes it to a file"),
    ("name one with --dev or in [[ports]]", "name one as port = eth0"),
]);

/// A file that is being read.
pub struct Old {
    ports: Vec<PortConfig>,
    notes: Vec<String>,
}

/// The device that `port` and `io` mean.
fn device(io: &str, name: &str) -> Result<Device, String> {
    if name.contains(':') {
        return name.parse();
    }
    let kind = if MODULES.contains(&io) { "xdp" } else { io };
    format!("{kind}:{name}").parse()
}

fn number(key: &str, value: &str, least: i64, most: i64) -> Result<c_int, String> {
    let wrong = || format!("{key} is {value}: expected a number from {least} to {most}");
    let n: i64 = value.parse().map_err(|_| wrong())?;
    if n < least || n > most { Err(wrong()) } else { c_int::try_from(n).map_err(|_| wrong()) }
}

/// The bits of a mask in hexadecimal, as numbers of cores.
fn cores(value: &str) -> Result<Vec<usize>, String> {
    let digits = value.strip_prefix("0x").unwrap_or(value);
    let wrong = || format!("core_mask is {value}: expected a mask in hexadecimal, as 0000000F");
    let mut all = Vec::new();
    for (place, digit) in digits.chars().rev().enumerate() {
        let digit = digit.to_digit(16).ok_or_else(wrong)?;
        all.extend((0..4).filter(|bit| digit >> bit & 1 != 0).map(|bit| place * 4 + bit));
    }
    if all.is_empty() { Err(wrong()) } else { Ok(all) }
}

impl Old {
    /// Reads `text`, which came from `file`, and the tables beside it.
    pub fn parse(file: &str, text: &str) -> Result<File, Fault> {
        let mut old = Old { ports: Vec::new(), notes: Vec::new() };
        let mut config = Config { model: Model::Guarded, ..Config::default() };
        let mut sizes = Sizes::NOTHING;
        let usual = config.tcp.parameters();
        let (mut io, mut buffers) = ("xdp".to_owned(), [None, None]);
        let mut named: Vec<(usize, String)> = Vec::new();
        let mut addresses: Vec<(usize, Cidr)> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let at = at + 1;
            let line = line.split('#').next().unwrap_or("");
            let mut words = line.split([' ', '\t', '=', '\r']).filter(|w| !w.is_empty());
            let Some(key) = words.next() else { continue };
            let values: Vec<&str> = words.collect();
            let wrong = |message: String| Fault::at(file, at, message);
            let Some(value) = values.first().copied() else {
                return Err(wrong(format!("{key}: expected a value")));
            };
            if values.len() > 1 && !["port", "address", "stat_print", "local_ports"].contains(&key) {
                return Err(wrong(format!("{key} is {}: expected one value", values.join(" "))));
            }
            let int = |least, most| number(key, value, least, most).map_err(wrong);
            const MOST: i64 = c_int::MAX as i64;
            match key {
                "io" => {
                    if !MODULES.contains(&value) && !["xdp", "packet", "tap"].contains(&value) {
                        let all = MODULES.join(", ");
                        return Err(wrong(format!(
                            "io is {value}: expected xdp, packet or tap (or {all}, which mean xdp)"
                        )));
                    }
                    io = value.to_owned();
                }
                "port" => {
                    // As in mTCP, the last line counts.
                    named = values.iter().map(|name| (at, (*name).to_owned())).collect();
                    addresses.clear();
                }
                "address" => {
                    let last = named.len().checked_sub(1);
                    let last =
                        last.ok_or_else(|| wrong("address: expected after the port that it belongs to".into()))?;
                    for value in &values {
                        addresses.push((last, value.parse().map_err(wrong)?));
                    }
                }
                "num_cores" => sizes.num_cores = int(1, 128)?,
                "max_concurrency" => sizes.max_concurrency = int(1, MOST)?,
                "max_num_buffers" => sizes.max_num_buffers = int(1, MOST)?,
                "rcvbuf" | "sndbuf" => {
                    let size = int(64, 1 << 30)?;
                    let (which, usual) = match key {
                        "rcvbuf" => (0, usual.receive_buffer),
                        _ => (1, usual.send_buffer),
                    };
                    if u64::from(size.unsigned_abs()) < u64::from(usual) {
                        old.notes.push(format!(
                            "{file}:{at}: {key} is {size}: it begins with {usual}, and takes memory only for what is in it"
                        ));
                    }
                    buffers[which] = Some(size);
                }
                "local_ports" => {
                    let [first, last] = values[..] else {
                        return Err(wrong("local_ports: expected the first and the last, as 8192 32767".into()));
                    };
                    let port = |value| number(key, value, 1, 65_535).map_err(wrong);
                    let (first, last) = (port(first)?, port(last)?);
                    if first > last {
                        return Err(wrong(format!("local_ports is {first} {last}: expected the first, then the last")));
                    }
                    config.local_ports = Some((first as u16, last as u16));
                }
                "tcp_timewait" => {
                    let seconds = int(0, 600)?;
                    config.tcp.time_wait_ms = Some(seconds as u64 * 1000);
                    sizes.tcp_timewait = if seconds > 0 { seconds * 1000 } else { -1 };
                }
                "tcp_timeout" => {
                    // -1 is never; 0 was as good.
                    let seconds = int(-1, 32_767)?;
                    sizes.tcp_timeout = if seconds > 0 { seconds * 1000 } else { -1 };
                }
                "core_mask" => config.cores = cores(value).map_err(wrong)?,
                "cc" => {
                    let known = || format!("cc is {value}: expected cubic or reno");
                    config.tcp.congestion = Some(Algorithm::from_name(value).ok_or_else(|| wrong(known()))?);
                }
                "num_mem_ch" | "onvm_serv" | "onvm_inst" | "onvm_dest" => {
                    int(0, MOST)?;
                    old.notes.push(format!("{file}:{at}: {key}: has no meaning without DPDK; it is not used"));
                }
                "multiprocess" => {
                    if int(0, 1)? != 0 {
                        old.notes
                            .push(format!("{file}:{at}: multiprocess: each process needs an interface of its own"));
                    }
                }
                "stat_print" => {
                    old.notes.push(format!(
                        "{file}:{at}: stat_print: nothing is printed by itself; mtcp_getsockopt(TCP_INFO) tells"
                    ));
                }
                _ => {
                    let (all, last) = (&KEYS[..KEYS.len() - 1], KEYS[KEYS.len() - 1]);
                    return Err(wrong(format!("unknown key {key}: expected {} or {last}", all.join(", "))));
                }
            }
        }
        // Of two sizes one that is missing is as the other.
        if let Some(size) = buffers[0].or(buffers[1]) {
            sizes.rcvbuf_size = buffers[0].unwrap_or(size);
            sizes.sndbuf_size = buffers[1].unwrap_or(size);
        }
        if named.is_empty() {
            return Err(Fault::of(
                file,
                "names no port, which a configuration of mTCP's does by a line as `port = eth0`",
            ));
        }
        for (at, name) in &named {
            let device = device(&io, name).map_err(|e| Fault::at(file, *at, format!("port: {e}")))?;
            old.ports.push(PortConfig::new(device));
        }
        for (port, address) in addresses {
            old.ports[port].addresses.push(address);
        }
        old.tables()?;
        config.ports = old.ports;
        Ok(File { config, named: sizes, cores: "core_mask", words: WORDS, notes: old.notes })
    }

    /// The tables, where there are any.
    fn tables(&mut self) -> Result<(), Fault> {
        for (line, route) in tables::routes(ROUTES)? {
            let Some(port) = self.port(&route.device) else {
                return Err(Fault::at(ROUTES, line, format!("{}: not a port of the configuration", route.device)));
            };
            if let Device::Xdp(_) = port.device {
                let note = format!("{ROUTES}:{line}: {}: the kernel's routes are followed there", route.device);
                self.notes.push(note);
                continue;
            }
            // mTCP: the address of a route of length 0 is the router.
            match route.to.prefix {
                0 => port.gateways.push(route.to.addr),
                _ => port.routes.push(route.to),
            }
        }
        for (line, entry) in tables::hardware(HARDWARE)? {
            let own: Vec<usize> = (0..self.ports.len())
                .filter(|at| !matches!(self.ports[*at].device, Device::Xdp(_)))
                .filter(|at| self.ports.len() == 1 || self.ports[*at].reaches(entry.addr))
                .collect();
            match own[..] {
                [] => self
                    .notes
                    .push(format!("{HARDWARE}:{line}: {}: the kernel's neighbours are used there", entry.addr)),
                [port, ..] => self.ports[port].neighbors.push(entry),
            }
        }
        Ok(())
    }

    fn port(&mut self, name: &str) -> Option<&mut PortConfig> {
        self.ports.iter_mut().find(|port| match &port.device {
            Device::Xdp(device) | Device::Packet(device) | Device::Tap(device) => device == name,
            Device::Memory(_) => false,
        })
    }
}

/// An address without its prefix length is that of one host.
pub(super) fn cidr(text: &str) -> Result<Cidr, String> {
    match text.parse::<IpAddr>() {
        Ok(addr) => Ok(Cidr { addr, prefix: if addr.is_ipv4() { 32 } else { 128 } }),
        Err(_) => text.parse(),
    }
}
