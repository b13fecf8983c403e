//! `corelane lab`: two network namespaces joined by a veth with several queues, to try everything on one machine.
//!
//! The traps of veth are taken out of the way: a `pfifo` instead of no queue (or SYN bursts are dropped by the ring), no TSO
//! on the server's end (or veth bypasses the client's receive queue), no wait for duplicate address detection.

pub mod offload;

use crate::failure::{Failure, words};
use crate::say::say;
use std::fmt::Write;
use std::io;
use std::path::Path;
use std::process::{Command, Output};

/// One end of the veth.
struct End {
    namespace: &'static str,
    interface: &'static str,
    v4: &'static str,
    v6: &'static str,
}

const A: End = End { namespace: "corelane-a", interface: "cl-a", v4: "10.99.0.1", v6: "fd99::1" };
const B: End = End { namespace: "corelane-b", interface: "cl-b", v4: "10.99.0.2", v6: "fd99::2" };

impl End {
    fn namespace_exists(&self) -> bool {
        Path::new("/run/netns").join(self.namespace).exists()
    }

    fn interface_exists(&self) -> bool {
        self.namespace_exists() && ip(&["-n", self.namespace, "link", "show", "dev", self.interface]).is_ok()
    }

    /// Queues of the interface, where it is there.
    fn queues(&self) -> Option<usize> {
        let text = ip(&["-n", self.namespace, "-d", "link", "show", "dev", self.interface]).ok()?;
        text.split_whitespace().skip_while(|word| *word != "numrxqueues").nth(1)?.parse().ok()
    }

    fn configure(&self) -> Result<(), Failure> {
        let (ns, dev) = (self.namespace, self.interface);
        // Before the interface is up: the link-local address would be tentative for a second as well.
        let dad = format!("/proc/sys/net/ipv6/conf/{dev}/accept_dad");
        if tool("ip", &["netns", "exec", ns, "test", "-e", &dad]).is_ok() {
            tool("ip", &["netns", "exec", ns, "sh", "-c", &format!("echo 0 > {dad}")])?;
        }
        ip(&["-n", ns, "link", "set", "lo", "up"])?;
        ip(&["-n", ns, "addr", "replace", &format!("{}/24", self.v4), "dev", dev])?;
        ip(&["-n", ns, "link", "set", "dev", dev, "up"])?;
        ip(&["-n", ns, "addr", "replace", &format!("{}/64", self.v6), "dev", dev, "nodad"])?;
        tool("tc", &["-n", ns, "qdisc", "replace", "dev", dev, "root", "pfifo", "limit", "10000"])?;
        Ok(())
    }
}

/// Makes the lab, or says that it is there.
pub fn up(queues: usize) -> Result<(), Failure> {
    need_root()?;
    ip(&["-V"])?;
    if A.interface_exists() && B.interface_exists() {
        if A.queues() == Some(queues) {
            // Again, so that what somebody changed by hand is as promised.
            configure()?;
            return say(format!("The lab is up already.\n\n{}", what_to_try()));
        }
        say("The lab was up with another number of queues; made anew.")?;
    }
    remove()?;
    build(queues).inspect_err(|_| {
        // Half a lab helps nobody; the first error is the one to report.
        let _ = remove();
    })?;
    say(format!("The lab is up.\n\n{}", what_to_try()))
}

/// Removes the lab.
pub fn down() -> Result<(), Failure> {
    need_root()?;
    let was_up = A.namespace_exists() || B.namespace_exists();
    let running: Vec<String> = [&A, &B].into_iter().filter(|end| end.namespace_exists()).flat_map(processes).collect();
    remove()?;
    say(if was_up { "The lab is down." } else { "The lab was not up." })?;
    if !running.is_empty() {
        say(format!("Processes still run in what is left of it: {}", running.join(", ")))?;
    }
    Ok(())
}

/// Says whether the lab is there.
pub fn status(json: bool) -> Result<(), Failure> {
    let up = A.interface_exists() && B.interface_exists();
    let queues = if up { A.queues() } else { None };
    if json {
        let end = |end: &End| {
            serde_json::json!({
                "namespace": end.namespace, "interface": end.interface, "v4": end.v4, "v6": end.v6,
                "processes": if end.namespace_exists() { processes(end) } else { Vec::new() },
            })
        };
        return say(serde_json::json!({ "up": up, "queues": queues, "a": end(&A), "b": end(&B) }));
    }
    if !up {
        return say("The lab is not up: corelane lab up");
    }
    for end in [&A, &B] {
        let End { namespace, interface, v4, v6 } = end;
        let running = processes(end);
        let running = if running.is_empty() { "none".to_owned() } else { running.join(", ") };
        let queues = queues.unwrap_or(0);
        say(format!("{namespace}: {interface} {v4}/24 {v6}/64, {queues} queues, processes: {running}"))?;
    }
    Ok(())
}

fn build(queues: usize) -> Result<(), Failure> {
    ip(&["netns", "add", A.namespace])?;
    ip(&["netns", "add", B.namespace])?;
    let queues = queues.to_string();
    let end = |end: &'static End| ["netns", end.namespace, "numtxqueues", "", "numrxqueues", ""];
    let (mut a, mut b) = (end(&A), end(&B));
    for side in [&mut a, &mut b] {
        side[3] = &queues;
        side[5] = &queues;
    }
    let link =
        [["link", "add", "name", A.interface].as_slice(), &a, &["type", "veth", "peer", "name", B.interface], &b];
    ip(&link.concat())?;
    configure()
}

fn configure() -> Result<(), Failure> {
    A.configure()?;
    B.configure()?;
    let namespace = Path::new("/run/netns").join(B.namespace);
    offload::set(&namespace, B.interface, offload::Feature::Tso, false).map_err(|error| {
        Failure::new(format!("{}: TSO stays on: {}", B.interface, words(&error)), "run as root, with CAP_SYS_ADMIN")
    })
}

fn remove() -> Result<(), Failure> {
    for end in [&A, &B] {
        if end.interface_exists() {
            // A process that still runs in the namespace would keep it, and the veth with it.
            ip(&["-n", end.namespace, "link", "del", "dev", end.interface])?;
        }
        if end.namespace_exists() {
            ip(&["netns", "del", end.namespace])?;
        }
    }
    Ok(())
}

/// Processes in the namespace, as `name (pid)`.
fn processes(end: &End) -> Vec<String> {
    let pids = ip(&["netns", "pids", end.namespace]).unwrap_or_default();
    let name = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pids.split_whitespace().map(|pid| format!("{} ({pid})", name(pid).trim())).collect()
}

fn need_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new("lab makes network namespaces, which needs root", "run it with sudo; corelane demo needs no root"))
}

fn ip(arguments: &[&str]) -> Result<String, Failure> {
    tool("ip", arguments)
}

/// Runs a program of iproute2; what it printed.
pub fn tool(name: &str, arguments: &[&str]) -> Result<String, Failure> {
    let Output { status, stdout, stderr } = Command::new(name).args(arguments).output().map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "install iproute2 (Debian: apt install iproute2)",
            _ => "see whether it can be run",
        };
        Failure::new(format!("{name}: {}", words(&error)), remedy)
    })?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr);
    let said = said.trim();
    let command = format!("{name} {}", arguments.join(" "));
    let remedy = match said {
        text if text.contains("Operation not permitted") => "run as root, with CAP_SYS_ADMIN and CAP_NET_ADMIN",
        text if text.contains("Unknown device type") => "this kernel has no veth: load or build the module veth",
        _ => "corelane lab down, then try again",
    };
    Err(Failure::new(format!("{command}: {said}"), remedy))
}

fn what_to_try() -> String {
    let program = std::env::current_exe().map_or_else(|_| "corelane".to_owned(), |path| path.display().to_string());
    let (a, b) = (A.namespace, B.namespace);
    let mut text = String::new();
    for end in [&A, &B] {
        let End { namespace, interface, v4, v6 } = end;
        let _ = writeln!(text, "{namespace}: {interface} {v4}/24 {v6}/64");
    }
    let _ = write!(
        text,
        "
Serve a page on corelane, beside the kernel:
  mkdir -p www && echo '<h1>It works</h1>' > www/index.html
  ip netns exec {b} {program} serve www --dev xdp:{dev} --port 80 &
and fetch it with programs on the kernel's TCP:
  ip netns exec {a} curl -i http://{v4}/
  ip netns exec {a} curl -i 'http://[{v6}]/'
  ip netns exec {a} wrk -c 1000 -d 10 http://{v4}/
  ip netns exec {a} ab -c 500 -n 100000 http://{v4}/
The kernel keeps the interface too:
  ip netns exec {a} ping -c 3 {v4}
Load a server that runs on the kernel's TCP:
  ip netns exec {b} {program} serve www --kernel --port 8080 &
  ip netns exec {a} {program} load http://{v4}:8080/ --dev xdp:{dev_a} -c 64 -d 5
Remove it all: {program} lab down",
        dev = B.interface,
        dev_a = A.interface,
        v4 = B.v4,
        v6 = B.v6,
    );
    text
}
