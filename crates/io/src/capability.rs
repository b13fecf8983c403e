//! Capabilities: what a call needs, and what of it this thread does not have.

use std::fmt;

/// A capability of Linux, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Ports below 1024 (`net.ipv4.ip_unprivileged_port_start`).
    NetBindService = 10,
    /// Interfaces, TAP devices, XDP programs on an interface.
    NetAdmin = 12,
    /// Packet sockets and AF_XDP sockets.
    NetRaw = 13,
    /// Memory beyond the limit of locked memory.
    IpcLock = 14,
    /// BPF programs that compute packet offsets.
    Perfmon = 38,
    /// BPF maps and programs.
    Bpf = 39,
}

impl Capability {
    fn name(self) -> &'static str {
        match self {
            Capability::NetBindService => "CAP_NET_BIND_SERVICE",
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::IpcLock => "CAP_IPC_LOCK",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Effective capabilities by the text of `/proc/thread-self/status`, as bits; none where the line is missing.
fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

fn missing_of(status: &str, needed: &[Capability]) -> Vec<Capability> {
    let has = effective(status);
    needed.iter().copied().filter(|c| has & 1 << *c as u8 == 0).collect()
}

/// What this thread lacks of `needed`.
pub fn missing(needed: &[Capability]) -> Vec<Capability> {
    missing_of(&std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default(), needed)
}

/// The way out for who lacks `missing`. Where nothing is missing the kernel refused for another reason.
pub(crate) fn advice(missing: &[Capability]) -> String {
    let names: Vec<&str> = missing.iter().map(|c| c.name()).collect();
    match names.split_last() {
        None => {
            "was refused although this process has the capabilities for it: the user namespace of a container, seccomp \
                 or the kernel's lockdown may forbid it"
                .into()
        }
        Some((last, [])) => format!("needs {last}: run as root, or give the program that capability"),
        Some((last, rest)) => {
            format!("needs {} and {last}: run as root, or give the program these capabilities", rest.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Capability::*;
    use super::*;

    #[test]
    fn exactly_what_is_missing_is_named() {
        let status = |bits: u64| format!("Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t{bits:016x}\nCapBnd:\t0\n");
        let all = [NetAdmin, NetRaw, Bpf];
        assert_eq!(missing_of(&status(1 << 12 | 1 << 39), &all), [NetRaw]);
        assert_eq!(missing_of(&status(u64::MAX), &all), []);
        assert_eq!(missing_of("", &all), all);
        assert_eq!(advice(&[NetRaw]), "needs CAP_NET_RAW: run as root, or give the program that capability");
        let two = "needs CAP_NET_ADMIN and CAP_BPF: run as root, or give the program these capabilities";
        assert_eq!(advice(&[NetAdmin, Bpf]), two);
        assert!(advice(&[]).contains("seccomp"));
    }
}
