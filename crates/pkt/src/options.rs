//! What may be set for a run: on the command line, or in lines at the start of a script.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which of IP's versions a script runs over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub enum IpVersion {
    /// AF_INET sockets, IPv4 packets.
    #[default]
    #[serde(rename = "ipv4")]
    V4,
    /// AF_INET6 sockets, IPv4 packets.
    #[serde(rename = "ipv4-mapped-ipv6")]
    Mapped,
    /// AF_INET6 sockets, IPv6 packets.
    #[serde(rename = "ipv6")]
    V6,
}

impl std::fmt::Display for IpVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            IpVersion::V4 => "ipv4",
            IpVersion::Mapped => "ipv4-mapped-ipv6",
            IpVersion::V6 => "ipv6",
        })
    }
}

/// How to run a script; names and defaults are the original's.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// `--ip_version`.
    pub ip_version: IpVersion,
    /// `--local_ip`: the stack's address.
    pub local_ip: Option<IpAddr>,
    /// `--remote_ip`: everybody else's.
    pub remote_ip: Option<IpAddr>,
    /// `--bind_port`: the stack's when it listens.
    pub bind_port: u16,
    /// `--connect_port`: the other side's when the stack connects.
    pub connect_port: u16,
    /// `--mtu`, bytes.
    pub mtu: u16,
    /// `--mss`: larger segments come as if a network card had joined them.
    pub mss: Option<u16>,
    /// `--tolerance_usecs`: how far from its time an event may be.
    pub tolerance_usecs: u64,
    /// `--tolerance_percent`: the same as a part of the time since the event before, when that is more.
    pub tolerance_percent: f64,
    /// `--tcp_ts_tick_usecs`: one tick of the stack's timestamps; 0 checks none.
    pub ts_tick_usecs: u64,
    /// `--tcp_ts_ecr_scaled`: echoes that were never sent are put on the line through the first value.
    pub ts_ecr_scaled: bool,
    /// `--strict_segments`: segments are not put together to what the script expects.
    pub strict_segments: bool,
    /// `--verbose`: the packets are written down.
    pub verbose: bool,
    /// `--exact`: no tolerance; echoes are checked; nothing may be sent after what the script expects.
    pub exact: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ip_version: IpVersion::V4,
            local_ip: None,
            remote_ip: None,
            bind_port: 8080,
            connect_port: 8080,
            mtu: 1500,
            mss: None,
            tolerance_usecs: 4000,
            tolerance_percent: 12.5,
            ts_tick_usecs: 0,
            ts_ecr_scaled: false,
            strict_segments: false,
            verbose: false,
            exact: false,
        }
    }
}

/// Names that mean something to the original alone: its devices, processes and threads.
const IGNORED: [&str; 10] = [
    "gateway_ip",
    "netmask_ip",
    "speed",
    "init_scripts",
    "code_command",
    "code_format",
    "code_sockopt",
    "non_fatal",
    "send_omit_free",
    "debug",
];

impl Options {
    /// Sets one by name; the error says what was expected.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        fn parsed<T: std::str::FromStr>(name: &str, value: Option<&str>, what: &str) -> Result<T, String> {
            let text = value.unwrap_or("nothing");
            text.parse().map_err(|_| format!("expected {what} after --{name}, got {text}"))
        }
        match name {
            "ip_version" => {
                self.ip_version = match value {
                    Some("ipv4") => IpVersion::V4,
                    Some("ipv4-mapped-ipv6") => IpVersion::Mapped,
                    Some("ipv6") => IpVersion::V6,
                    _ => return Err("expected ipv4, ipv4-mapped-ipv6 or ipv6 after --ip_version".into()),
                }
            }
            "local_ip" => self.local_ip = Some(parsed(name, value.map(without_prefix), "an address")?),
            "remote_ip" => self.remote_ip = Some(parsed(name, value.map(without_prefix), "an address")?),
            "bind_port" => self.bind_port = parsed(name, value, "a port")?,
            "connect_port" => self.connect_port = parsed(name, value, "a port")?,
            "mtu" => {
                let mtu = parsed(name, value, "bytes")?;
                // RFC 791 3.2: every link carries as much.
                if mtu < 68 {
                    return Err(format!("expected at least 68 bytes after --mtu, got {mtu}"));
                }
                self.mtu = mtu;
            }
            "mss" => self.mss = Some(parsed(name, value, "bytes")?),
            "tolerance_usecs" => self.tolerance_usecs = parsed(name, value, "microseconds")?,
            "tolerance_percent" => self.tolerance_percent = parsed(name, value, "a percentage")?,
            "tcp_ts_tick_usecs" => self.ts_tick_usecs = parsed(name, value, "microseconds")?,
            "tcp_ts_ecr_scaled" => self.ts_ecr_scaled = true,
            "strict_segments" => self.strict_segments = true,
            "exact" => self.exact = true,
            "verbose" => self.verbose = true,
            "define" | "dry_run" => {}
            _ if IGNORED.contains(&name) => {}
            _ => return Err(format!("expected an option, got --{name}")),
        }
        Ok(())
    }

    /// Whether packets are IPv6's.
    pub fn v6(&self) -> bool {
        self.ip_version == IpVersion::V6
    }

    /// The stack's address: 192.168.0.1 unless it was given.
    pub fn local(&self) -> IpAddr {
        let v6 = Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1);
        self.address(self.local_ip, Ipv4Addr::new(192, 168, 0, 1), v6)
    }

    /// The other side's address: 192.0.2.1 unless it was given.
    pub fn remote(&self) -> IpAddr {
        self.address(self.remote_ip, Ipv4Addr::new(192, 0, 2, 1), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))
    }

    /// An address given for the other version is none.
    fn address(&self, given: Option<IpAddr>, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
        let default = if self.v6() { v6.into() } else { v4.into() };
        given.filter(|a| a.is_ipv6() == self.v6()).unwrap_or(default)
    }

    /// How far an event may be from its time, `gap` after the event before, µs.
    pub fn tolerance(&self, gap: u64) -> u64 {
        if self.exact { 0 } else { self.tolerance_usecs.max((self.tolerance_percent / 100.0 * gap as f64) as u64) }
    }
}

fn without_prefix(text: &str) -> &str {
    text.split_once('/').map_or(text, |(address, _)| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name() {
        let mut o = Options::default();
        for (name, value) in
            [("ip_version", Some("ipv6")), ("remote_ip", Some("2001:db8::9/32")), ("mtu", Some("1520"))]
        {
            o.set(name, value).unwrap();
        }
        assert_eq!((o.v6(), o.mtu, o.remote()), (true, 1520, "2001:db8::9".parse().unwrap()));
        // Of the other version: as if it had not been given.
        o.set("local_ip", Some("10.0.0.1")).unwrap();
        assert!(o.local().is_ipv6());
        assert_eq!(o.set("mtu", Some("x")), Err("expected bytes after --mtu, got x".into()));
        assert_eq!(o.set("mtu", Some("67")), Err("expected at least 68 bytes after --mtu, got 67".into()));
        assert_eq!(o.set("nonsense", None), Err("expected an option, got --nonsense".into()));
        assert_eq!((o.tolerance(0), o.tolerance(1_000_000)), (4000, 125_000));
        o.set("exact", None).unwrap();
        assert_eq!(o.tolerance(1_000_000), 0);
    }
}
