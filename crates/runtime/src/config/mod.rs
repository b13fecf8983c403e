//! The configuration: one TOML file or the same fields from code. A bad file is refused with its name, line and column, and
//! what was expected.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use io::impair::Impairment;
use serde::{Deserialize, Deserializer, de};

use client::Clock;

pub use self::check::{Fault, Place};
pub use self::tcp::{Ecn, SynCookies, TcpConfig};

mod check;
mod tcp;

/// Who runs the stack's turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// The application's own waits: one thread a lane.
    #[default]
    Inline,
    /// A stack thread beside the application's, on the same core.
    Paired,
    /// The application's own waits, and a guard thread that steps in when they do not come.
    Guarded,
}

/// A packet device, as `KIND:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// AF_XDP beside the kernel.
    Xdp(String),
    /// AF_PACKET with an address of our own.
    Packet(String),
    /// A TAP interface to the local kernel.
    Tap(String),
    /// A wire in memory between two engines of one process.
    Memory(String),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Device::Xdp(name) => write!(f, "xdp:{name}"),
            Device::Packet(name) => write!(f, "packet:{name}"),
            Device::Tap(name) => write!(f, "tap:{name}"),
            Device::Memory(name) => write!(f, "mem:{name}"),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(s: &str) -> Result<Device, String> {
        let expected = || format!("device {s:?}: expected xdp:IFACE, packet:IFACE, tap:NAME or mem:NAME");
        let (kind, name) = s.split_once(':').ok_or_else(expected)?;
        // As dev_valid_name says; `%d` would ask TAP for a name of the kernel's choice.
        if ["", ".", ".."].contains(&name) || name.contains(['/', ':', '%']) || name.contains(char::is_whitespace) {
            return Err(expected());
        }
        // IFNAMSIZ counts the terminating zero.
        if name.len() > 15 && kind != "mem" {
            return Err(format!("device {s:?}: interface names have at most 15 characters"));
        }
        match kind {
            "xdp" => Ok(Device::Xdp(name.into())),
            "packet" => Ok(Device::Packet(name.into())),
            "tap" => Ok(Device::Tap(name.into())),
            "mem" => Ok(Device::Memory(name.into())),
            _ => Err(expected()),
        }
    }
}

/// An address with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub addr: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
}

impl Cidr {
    /// Whether `addr` is in its network.
    pub fn contains(&self, addr: IpAddr) -> bool {
        let bits = |addr: IpAddr| match addr {
            IpAddr::V4(a) => (u128::from(u32::from(a)) << 96, 32),
            IpAddr::V6(a) => (u128::from(a), 128),
        };
        let ((net, width), (host, of)) = (bits(self.addr), bits(addr));
        let kept = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
        width == of && (net ^ host) & kept == 0
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(s: &str) -> Result<Cidr, String> {
        let expected = || format!("address {s:?}: expected ADDRESS/PREFIX, like 10.0.0.2/24 or fd00::2/64");
        let (addr, prefix) = s.split_once('/').ok_or_else(expected)?;
        let addr: IpAddr = addr.parse().map_err(|_| expected())?;
        let prefix: u8 = prefix.parse().map_err(|_| expected())?;
        if prefix > if addr.is_ipv4() { 32 } else { 128 } {
            return Err(expected());
        }
        Ok(Cidr { addr, prefix })
    }
}

/// A neighbour whose hardware address is known without asking, as `ADDRESS MAC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Its address.
    pub addr: IpAddr,
    /// Its hardware address.
    pub mac: [u8; 6],
}

impl FromStr for Neighbor {
    type Err = String;

    fn from_str(s: &str) -> Result<Neighbor, String> {
        let expected = || format!("neighbour {s:?}: expected ADDRESS MAC, like 10.0.0.1 02:00:00:00:00:01");
        let (addr, text) = s.split_once(' ').ok_or_else(expected)?;
        let addr: IpAddr = addr.parse().map_err(|_| expected())?;
        let mut mac = [0; 6];
        let mut parts = text.trim().split(':');
        for byte in &mut mac {
            let part = parts.next().filter(|p| (1..=2).contains(&p.len())).ok_or_else(expected)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| expected())?;
        }
        // A group's is nobody's.
        if parts.next().is_some() || mac[0] & 1 != 0 || mac == [0; 6] {
            return Err(expected());
        }
        Ok(Neighbor { addr, mac })
    }
}

macro_rules! from_text {
    ($($ty:ty),*) => {$(
        impl<'de> Deserialize<'de> for $ty {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<$ty, D::Error> {
                String::deserialize(d)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}
from_text!(Device, Cidr, Neighbor);

/// One device and what is ours on it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Which device.
    pub device: Device,
    /// Our addresses; with `xdp` the interface's own when empty.
    #[serde(default)]
    pub addresses: Vec<Cidr>,
    /// Default routers, at most one for each family.
    #[serde(default)]
    pub gateways: Vec<IpAddr>,
    /// Destinations on the link itself, beside the networks of `addresses`.
    #[serde(default)]
    pub routes: Vec<Cidr>,
    /// Hosts on the link that are not asked for their hardware addresses.
    #[serde(default)]
    pub neighbors: Vec<Neighbor>,
    /// 802.1Q tag.
    pub vlan: Option<u16>,
    /// Largest IP packet, bytes; the device's own when missing.
    pub mtu: Option<u16>,
    /// How often an address is asked for before it is ours (RFC 4862, RFC 5227); 0 does not ask. Once when missing, not at
    /// all in memory.
    pub dad: Option<u8>,
    /// Whether a link-local address is formed and routers are believed (RFC 4861, RFC 4862). Yes when missing, no in memory.
    pub autoconf: Option<bool>,
    /// Frames are also written to this pcapng file.
    pub pcap: Option<std::path::PathBuf>,
    /// Whether checksums and cutting into segments are left to the device where it can; yes when missing.
    pub offload: Option<bool>,
    /// Whether the kernel receives in NAPI what a `tap` sends it, which it then can do on a thread of its own, rather than
    /// inside the lane's calls; no when missing.
    pub napi: Option<bool>,
}

impl PortConfig {
    /// A device with nothing but its name.
    pub fn new(device: Device) -> PortConfig {
        PortConfig {
            device,
            addresses: Vec::new(),
            gateways: Vec::new(),
            routes: Vec::new(),
            neighbors: Vec::new(),
            vlan: None,
            mtu: None,
            dad: None,
            autoconf: None,
            pcap: None,
            offload: None,
            napi: None,
        }
    }

    /// Whether `addr` is on the link, by `addresses` and `routes`.
    pub fn reaches(&self, addr: IpAddr) -> bool {
        self.addresses.iter().chain(&self.routes).any(|net| net.contains(addr))
    }
}

/// Everything that starts an engine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Lanes: stacks, queues of each port and application threads.
    pub lanes: u16,
    /// Core of each lane; not pinned when empty.
    pub cores: Vec<usize>,
    /// Who runs the stack.
    pub model: Model,
    /// How long a lane that finds nothing looks at most before it sleeps, µs; less where looking finds nothing.
    pub spin_us: u32,
    /// A lane never sleeps.
    pub busy_poll: bool,
    /// How long an application may not call in before its guard steps in, µs (`guarded`).
    pub guard_us: u32,
    /// Microseconds of busy polling in the kernel (`xdp`); 0 is none.
    pub busy_poll_us: u32,
    /// Devices.
    pub ports: Vec<PortConfig>,
    /// TCP.
    pub tcp: TcpConfig,
    /// Most connections of a lane.
    pub max_connections: u32,
    /// Most descriptors of a lane.
    pub max_sockets: u32,
    /// Buffer memory of a lane, MiB.
    pub buffers_mib: u32,
    /// Most TIME-WAIT records of a lane.
    pub max_time_wait: u32,
    /// Most handshakes under way in a lane.
    pub max_half_open: u32,
    /// Most of those of one listener.
    pub syn_backlog: u32,
    /// Most connections of a lane that were closed and are not over.
    pub max_orphans: u32,
    /// How long a lane that ends goes on at most with peers that are slow to take what is meant for them, s; then they are reset.
    pub end_s: u32,
    /// Local ports of active opens, first and last; chosen by the device when missing.
    pub local_ports: Option<(u16, u16)>,
    /// What a memory wire does to frames.
    #[serde(skip)]
    pub impairment: Impairment,
    /// The time of the lanes' turns.
    #[serde(skip)]
    pub clock: Clock,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            lanes: 1,
            cores: Vec::new(),
            model: Model::Inline,
            spin_us: 100,
            busy_poll: false,
            guard_us: 1000,
            busy_poll_us: 0,
            ports: Vec::new(),
            tcp: TcpConfig::default(),
            max_connections: 1 << 20,
            max_sockets: 1 << 20,
            buffers_mib: 512,
            max_time_wait: 262_144,
            max_half_open: 32_768,
            syn_backlog: 4096,
            max_orphans: 65_536,
            end_s: 60,
            local_ports: None,
            impairment: Impairment::default(),
            clock: Clock::default(),
        }
    }
}

/// A parser's message without the names of our types.
fn in_plain_words(message: &str) -> String {
    const TYPES: [(&str, &str); 6] = [
        ("expected u8", "expected 0 to 255"),
        ("expected u16", "expected 0 to 65535"),
        ("expected u32", "expected 0 to 4294967295"),
        ("expected u64", "expected 0 or more"),
        ("expected usize", "expected 0 or more"),
        (
            "map, expected a sequence",
            "a single table, expected one or more under a heading in double brackets, as [[ports]]",
        ),
    ];
    let found = TYPES.iter().find_map(|(ty, plain)| Some(message.strip_suffix(ty)?.to_owned() + plain));
    found.unwrap_or_else(|| message.to_owned())
}

/// What is wrong with a configuration file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct ConfigError {
    /// The file.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
    /// What was expected.
    pub message: String,
}

impl Config {
    /// Reads `text`, which came from `file`.
    pub fn from_toml(file: &str, text: &str) -> Result<Config, ConfigError> {
        let at = |offset: usize, message: String| {
            let before = text.get(..offset).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
            ConfigError { file: file.into(), line, column, message }
        };
        let config: Config = toml::from_str(text).map_err(|e| {
            // The parser's message may run over lines.
            let message = e.message().lines().collect::<Vec<_>>().join(", ");
            at(e.span().map_or(0, |s| s.start), in_plain_words(&message))
        })?;
        config.check().map_err(|fault| at(fault.place.offset(text).unwrap_or(0), fault.message))?;
        Ok(config)
    }

    /// One end of a wire in memory with this address (`10.0.0.1/24`).
    pub fn memory(address: &str) -> Result<Config, crate::Error> {
        let cidr = address.parse().map_err(crate::Error::Config)?;
        let port = PortConfig { addresses: vec![cidr], ..PortConfig::new(Device::Memory("wire".into())) };
        Ok(Config { ports: vec![port], buffers_mib: 64, ..Config::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file() {
        let c = Config::from_toml(
            "a.toml",
            r#"
lanes = 2
cores = [0, 1]
model = "paired"
[[ports]]
device = "xdp:eth0"
[[ports]]
device = "tap:t0"
addresses = ["10.9.0.2/24", "fd09::2/64"]
gateways = ["10.9.0.1"]
offload = false
napi = true
[tcp]
receive_buffer = 65536
"#,
        )
        .unwrap();
        assert_eq!((c.lanes, c.model, c.ports.len()), (2, Model::Paired, 2));
        assert_eq!(c.ports[1].device, Device::Tap("t0".into()));
        assert_eq!((c.ports[0].offload, c.ports[1].offload), (None, Some(false)));
        assert_eq!((c.ports[0].napi, c.ports[1].napi), (None, Some(true)));
        assert_eq!(c.tcp.parameters().receive_buffer, 65536);
    }

    #[test]
    fn networks_and_neighbours() {
        let net = |text: &str| text.parse::<Cidr>().unwrap();
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(net("10.1.2.3/24").contains(at("10.1.2.255")) && !net("10.1.2.3/24").contains(at("10.1.3.0")));
        assert!(net("10.0.0.1/0").contains(at("192.0.2.1")) && !net("10.0.0.1/0").contains(at("fd00::1")));
        assert!(net("fd00::1/128").contains(at("fd00::1")) && !net("fd00::1/127").contains(at("fd00::2")));
        let known: Neighbor = "10.0.0.1 2:0:0:0:a:Ff".parse().unwrap();
        assert_eq!((known.addr, known.mac), (at("10.0.0.1"), [2, 0, 0, 0, 10, 255]));
        for wrong in ["10.0.0.1", "10.0.0.1 02:00:00:00:00", "x 02:00:00:00:00:01", "10.0.0.1 01:00:00:00:00:01"] {
            assert!(wrong.parse::<Neighbor>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn time_is_told_to_who_can_be_told() {
        let told = Clock::Told(Default::default());
        let memory = Config { clock: told, ..Config::memory("10.0.0.1/24").unwrap() };
        assert!(Config { model: Model::Inline, ..memory.clone() }.check().is_ok());
        assert!(Config { model: Model::Paired, ..memory.clone() }.check().is_err());
        let ports = vec![PortConfig::new("xdp:eth0".parse().unwrap())];
        assert!(Config { model: Model::Inline, ports, ..memory }.check().is_err());
    }

    /// Every key is documented, and what the document calls the default is the default.
    #[test]
    fn the_documented_file() {
        let text = include_str!("../../../../docs/configuration.md");
        let text = text.split("```toml\n").nth(1).and_then(|t| t.split("```").next()).unwrap();
        let c = Config::from_toml("configuration.md", text).unwrap();
        assert_eq!(format!("{:?}", c.tcp.parameters()), format!("{:?}", TcpConfig::default().parameters()));
        assert!(!format!("{:?}", c.tcp).contains("None"), "{:?}", c.tcp);
        let default = Config { ports: c.ports.clone(), tcp: c.tcp.clone(), ..Config::default() };
        assert_eq!(format!("{c:?}"), format!("{default:?}"));
    }

    #[test]
    fn tcp_out_of_range_is_refused() {
        let refused = |text: &str| Config::from_toml("c.toml", text).unwrap_err().to_string();
        assert_eq!(refused("[tcp]\ndelayed_ack_ms = 501\n"), "c.toml:2:1: delayed_ack_ms is 501: expected 1 to 500");
        assert_eq!(refused("[tcp]\nsack = true\nmin_rto_ms = 0\n"), "c.toml:3:1: min_rto_ms is 0: expected 1 to 60000");
        assert_eq!(
            refused("[tcp]\ncongestion = \"vegas\"\n"),
            "c.toml:2:14: congestion \"vegas\": expected one of cubic, reno"
        );
        assert!(refused("[tcp]\nmin_rto_ms = 60000\nmax_rto_ms = 1000\n").starts_with("c.toml:2:1: min_rto_ms"));
    }

    #[test]
    fn a_bad_file_is_refused_where_it_is_bad() {
        let refused = |text: &str| Config::from_toml("c.toml", text).unwrap_err().to_string();
        assert!(
            refused("lanes = 1\nlanez = 2\n").starts_with("c.toml:2:1: unknown field `lanez`"),
            "{}",
            refused("lanes = 1\nlanez = 2\n")
        );
        assert!(refused("lanes = \"x\"\n").starts_with("c.toml:1:9: invalid type"));
        assert!(refused("\n\nmodel = \"both\"\n").starts_with("c.toml:3:9: unknown variant `both`"));
        assert!(refused("[[ports]]\ndevice = \"eth0\"\n").contains("c.toml:2:10: device \"eth0\": expected xdp:IFACE"));
        assert!(refused("lanes = 0\n").contains("c.toml:1:1: lanes is 0: expected 1 to 128"));
        assert!(refused("lanes = 2\ncores = [1]\n").contains("c.toml:2:1: 1 cores for 2 lanes"));
        assert!(refused("lanes = \n").starts_with("c.toml:1:"));
        for name in ["tap:x%d", "tap:..", "tap:", "xdp:a/b", "tap:a b", "xdp:a:b"] {
            assert!(name.parse::<Device>().is_err(), "{name}");
        }
    }

    /// The right line, also where another key begins alike, another port has the same key, or a line is not ASCII.
    #[test]
    fn a_fault_is_found_at_its_own_key() {
        let refused = |text: &str| Config::from_toml("c.toml", text).unwrap_err().to_string();
        let tap =
            |keys: &str| format!("[[ports]]\ndevice = \"tap:a\"\nvlan = 5\n[[ports]]\ndevice = \"tap:b\"\n{keys}\n");
        for (text, said) in [
            ("[tcp]\nsend_buffer_max = 8192\nsend_buffer = 1\n", "3:1: send_buffer is 1: expected 4096 to 1073741824"),
            ("[tcp]\r\nretries = 3\r\nsynack_retries = 200\r\n", "3:1: synack_retries is 200: expected 0 to 127"),
            ("tcp = { sack = true, keep_count = 0 }\n", "1:22: keep_count is 0: expected 1 to 127"),
            ("tcp = { } # grö\u{df}e\nlanes = 1 # é\nmodel = 1\n", "3:9: wanted string or table"),
            ("tcp.keep_count = 0\n", "1:5: keep_count is 0: expected 1 to 127"),
            ("lanes = -1\n", "1:9: invalid value: integer `-1`, expected 0 to 65535"),
            ("[tcp]\nretries = 256\n", "2:11: invalid value: integer `256`, expected 0 to 255"),
            (
                "[ports]\ndevice = \"tap:a\"\n",
                "1:1: invalid type: a single table, expected one or more under a heading in double brackets, as [[ports]]",
            ),
            ("max_sockets = 0\n", "1:1: max_sockets is 0: expected 1 to 2147483647"),
            (
                "[tcp]\nsend_buffer = 8192\nsend_buffer_max = 4096\n",
                "2:1: send_buffer is 8192: expected at most send_buffer_max, which is 4096",
            ),
            (
                "[tcp]\ninitial_rto_ms = 3000\nmax_rto_ms = 2000\n",
                "2:1: initial_rto_ms: expected at most max_rto_ms, which is 2000",
            ),
            (
                "[[ports]]\ndevice = \"xdp:eth1\"\nvlan = 5\n",
                "3:1: vlan: the kernel keeps eth1's VLANs on interfaces of their own: share that one (device = \"xdp:eth1.5\"; `ip \
                 link add link eth1 name eth1.5 type vlan id 5` makes it)",
            ),
            (&tap("vlan = 4095"), "6:1: vlan is 4095: expected 1 to 4094"),
            (&tap("mtu = 575"), "6:1: mtu is 575: expected 576 to 65535"),
            (&tap("mtu = 1000\naddresses = [\"fd00::1/64\"]"), "6:1: mtu is 1000: IPv6 needs 1280 at least"),
            (&tap("addresses = [\"224.0.0.1/4\"]"), "6:1: addresses: 224.0.0.1 cannot be a host's own address"),
            (&tap("gateways = [\"10.0.0.1\", \"10.0.0.2\"]"), "6:1: gateways: expected at most one for each family"),
            ("[[ports]]\ndevice = \"tap:a\"\n[[ports]]\ndevice = \"tap:a\"\n", "4:1: tap:a is named twice"),
            ("[[ports]]\ndevice = \"packet:a\"\nnapi = true\n", "3:1: napi: packet:a is no tap; leave it out"),
            (
                "[[ports]]\ndevice = \"xdp:a\"\ndad = 0\n",
                "3:1: dad: xdp:a follows the kernel's addresses and routes; leave it out",
            ),
        ] {
            assert_eq!(refused(text), format!("c.toml:{said}"));
        }
    }

    /// A size that is set alone moves the default of the other.
    #[test]
    fn buffers_follow_what_was_asked_for() {
        let sizes = |text: &str| {
            let t = Config::from_toml("c.toml", text).unwrap().tcp.parameters();
            (t.receive_buffer, t.receive_buffer_max)
        };
        assert_eq!(sizes("[tcp]\nreceive_buffer_max = 4096\n"), (4096, 4096));
        assert_eq!(sizes("[tcp]\nreceive_buffer = 8388608\n"), (8_388_608, 8_388_608));
    }
}
