//! Where the server core's time goes, sampled by perf: kernel, packet I/O, TCP, application (NSDI'14 figs. 1 and 2).
//!
//! Every sample of the core's CPU clock has the function it fell into; the function's name says whose it is. Samples of the
//! idle loop do not count. Functions that were inlined count as those they were inlined into.

use super::Settings;
use super::case::{Case, Wire};
use super::child::Child;
use super::cpu;
use super::measure::{self, Layout, Measurement};
use crate::failure::{Failure, words};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Samples a second: prime, so that nothing that ticks hides from it.
const FREQUENCY: u32 = 1999;

/// The shares, in the order of the plot.
pub const SHARES: [&str; 6] = ["kernel", "packet_io", "tcp", "application", "library", "unknown"];

/// Says why there will be no profile, where there will be none.
pub fn available() -> Result<(), Failure> {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let out = Command::new("perf")
        .args(["stat", "-a", "-e", "cpu-clock", "--", "true"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            Failure::new(format!("perf: {}", words(&error)), "install it (Debian: apt install linux-perf)")
        })?;
    if out.status.success() {
        return Ok(());
    }
    let what = format!("perf may not look at whole cores (kernel.perf_event_paranoid is {})", paranoid.trim());
    Err(Failure::new(what, "run as root, or set it to 0"))
}

/// Measures a case, and samples the server's cores meanwhile.
pub fn measure(case: &Case, settings: &Settings) -> Result<Measurement, Failure> {
    let file = std::env::temp_dir().join(format!("corelane-perf-{}", std::process::id()));
    let mut sampler = Sampler { file: file.clone(), ours: Vec::new(), child: None, failure: None };
    let seconds = case.work.seconds.unwrap_or(settings.seconds);
    let mut begin = |layout: &Layout, ours: &[u32]| sampler.start(layout, ours, seconds);
    let found = measure::measure_with(case, settings, &mut begin);
    let shares = found.and_then(|found| sampler.finish().map(|shares| (found, shares)));
    // It was written by perf, if at all.
    let _ = std::fs::remove_file(&file);
    let (mut found, (shares, samples)) = shares?;
    for name in SHARES {
        found.set(name, shares.get(name).copied().unwrap_or(0.0));
    }
    found.set("samples", samples as f64);
    if found.values["unknown"] > 0.05 {
        found.remarks.insert("more than 5 % of the samples have no name: was the program stripped?".into());
    }
    if case.wire == Wire::Mem {
        found.remarks.insert("packet I/O of a memory wire is copies, which are inlined into TCP".into());
    }
    Ok(found)
}

struct Sampler {
    file: PathBuf,
    /// The server's processes and the kernel's threads, NAPI's among them, which are gone when samples are looked at.
    ours: Vec<u32>,
    child: Option<Child>,
    failure: Option<Failure>,
}

impl Sampler {
    /// Samples for a time, a moment less than what is measured.
    fn start(&mut self, layout: &Layout, ours: &[u32], seconds: f64) {
        self.ours =
            ours.iter().copied().chain(cpu::named("").into_iter().filter(|pid| is_kernel_thread(*pid))).collect();
        let cores = layout.server.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-e", "cpu-clock", "-F", &FREQUENCY.to_string(), "-C", &cores, "-o"]);
        command.arg(&self.file).args(["--", "sleep", &format!("{:.2}", seconds * 0.9)]);
        match Child::spawn(command, "perf record") {
            Ok(child) => self.child = Some(child),
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// The shares of what was not idle, and how many samples they are made of.
    fn finish(self) -> Result<(BTreeMap<&'static str, f64>, usize), Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let Some(mut child) = self.child else { return Err(Failure::told("perf record was not started")) };
        child.end(std::time::Duration::from_secs(20))?;
        let out = Command::new("perf")
            .args(["script", "-F", "pid,ip,sym,dso", "-i"])
            .arg(&self.file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|error| Failure::told(format!("perf script: {}", words(&error))))?;
        let (mut counts, mut all) = (BTreeMap::new(), 0);
        let program = super::place::this_program();
        let program = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_ours = |pid: u32| pid == 0 || self.ours.contains(&pid);
        let text = String::from_utf8_lossy(&out.stdout);
        for share in text.lines().filter_map(|line| share_of(line, &program, is_ours)) {
            *counts.entry(share).or_insert(0.0) += 1.0;
            all += 1;
        }
        if all == 0 {
            return Err(Failure::told("perf took no sample of the server's cores"));
        }
        counts.values_mut().for_each(|count| *count /= all as f64);
        Ok((counts, all))
    }
}

/// What runs in the kernel alone was started by no command line.
fn is_kernel_thread(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.is_empty())
}

/// Whose a sample is, from `pid address symbol (object)`; nothing where the core was idle, or did another program's work.
fn share_of(line: &str, program: &str, is_ours: impl Fn(u32) -> bool) -> Option<&'static str> {
    let (rest, object) = line.trim_end().strip_suffix(')')?.rsplit_once('(')?;
    let mut words = rest.split_whitespace();
    if !is_ours(words.next()?.parse().ok()?) {
        return None;
    }
    u64::from_str_radix(words.next()?, 16).ok()?;
    let symbol = words.collect::<Vec<_>>().join(" ");
    if symbol == "[unknown]" || symbol.is_empty() {
        return Some(if object.starts_with("bpf_prog") { "packet_io" } else { "unknown" });
    }
    let in_kernel = object.starts_with('[') && object != "[vdso]";
    match in_kernel {
        _ if object.starts_with("bpf_prog") || symbol.starts_with("bpf_prog") => Some("packet_io"),
        true if IDLE.iter().any(|idle| symbol.contains(idle)) => None,
        true => Some(of_kernel(&symbol)),
        false if object.ends_with(program) => Some(of_ours(&symbol)),
        false => Some("library"),
    }
}

const IDLE: [&str; 7] =
    ["default_idle", "safe_halt", "acpi_idle", "cpuidle", "do_idle", "poll_idle", "cpu_startup_entry"];

/// The kernel's names: its TCP and IP, its packet I/O, the rest.
fn of_kernel(symbol: &str) -> &'static str {
    const TCP: [&str; 18] = [
        "tcp",
        "inet",
        "ip_",
        "ipv4",
        "ip6",
        "ipv6",
        "sk_",
        "sock",
        "lock_sock",
        "release_sock",
        "reqsk",
        "bictcp",
        "cubic",
        "dst_",
        "fib_",
        "rt_",
        "secure_tcp",
        "raw_v4",
    ];
    const PACKET_IO: [&str; 23] = [
        "veth",
        "napi",
        "net_rx",
        "net_tx",
        "netif",
        "dev_",
        "skb",
        "alloc_skb",
        "kfree_skb",
        "consume_skb",
        "build_skb",
        "xsk",
        "xdp",
        "xp_",
        "page_pool",
        "qdisc",
        "pfifo",
        "sch_direct",
        "eth_",
        "gro_",
        "process_backlog",
        "validate_xmit",
        "ptr_ring",
    ];
    let name = symbol.trim_start_matches('_');
    let is = |names: &[&str]| names.iter().any(|prefix| name.starts_with(prefix));
    match name {
        _ if is(&TCP) => "tcp",
        _ if is(&PACKET_IO) || name.contains("skb") => "packet_io",
        _ => "kernel",
    }
}

/// Our names: crate first. The command and the library share one; their modules differ.
fn of_ours(symbol: &str) -> &'static str {
    let path = symbol.trim_start_matches(['<', '&', '*', ' ']).trim_start_matches("dyn ").trim_start_matches("mut ");
    let mut parts = path.split("::");
    let name = |part: Option<&'_ str>| {
        part.unwrap_or("").trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_').to_owned()
    };
    let (first, second) = (name(parts.next()), name(parts.next()));
    match (first.as_str(), second.as_str()) {
        ("io", _) | ("mem", "frames") => "packet_io",
        ("wire" | "tcp" | "stack" | "mem" | "runtime" | "socket", _) => "tcp",
        ("corelane", "lane" | "poller" | "stream" | "socket" | "engine") => "tcp",
        ("corelane" | "httparse" | "io_uring" | "rustix" | "hdrhistogram", _) => "application",
        _ => "library",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_owners() {
        for (line, owner) in [
            ("  7 ffffffff81a0 tcp_v4_rcv ([kernel.kallsyms])", Some("tcp")),
            ("  7 ffffffff81a0 __netif_receive_skb_core.constprop.0 ([kernel.kallsyms])", Some("packet_io")),
            ("  7 ffffffff81a0 do_syscall_64 ([kernel.kallsyms])", Some("kernel")),
            ("  7 ffffffff81a0 pv_native_safe_halt ([kernel.kallsyms])", None),
            ("  7 55d0aa11bb22 <tcp::tcb::Tcb>::input (/tmp/t/corelane)", Some("tcp")),
            ("  7 55d0aa11bb22 tcp::input::receive (/tmp/t/corelane)", Some("tcp")),
            ("  7 55d0aa11bb22 <io::xdp::queue::Queue>::receive (/tmp/t/corelane)", Some("packet_io")),
            ("  7 55d0aa11bb22 corelane::server::serve (/tmp/t/corelane)", Some("application")),
            ("  7 55d0aa11bb22 <corelane::lane::Lane>::with (/tmp/t/corelane)", Some("tcp")),
            ("  7 55d0aa11bb22 httparse::parse (/tmp/t/corelane)", Some("application")),
            ("  7 7f00aa11bb22 __memmove_avx (/usr/lib/libc.so.6)", Some("library")),
            ("  7 55d0aa11bb22 [unknown] (/tmp/t/corelane)", Some("unknown")),
            ("  7 ffffc00aa112 bpf_prog_1234_corelane (bpf_prog_1234_corelane)", Some("packet_io")),
            ("nonsense", None),
        ] {
            assert_eq!(share_of(line, "corelane", |pid| pid == 7), owner, "{line}");
            // Another program's.
            assert_eq!(share_of(line, "corelane", |_| false), None);
        }
    }
}
