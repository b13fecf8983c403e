//! Where a round takes place: two fresh network namespaces joined by a veth, with its traps out of the way.
//!
//! Client in a, server in b. Each of these was met, and each makes numbers plausible and wrong:
//! without a queue the 256-slot ring of veth drops bursts of SYNs (`pfifo`); with TSO on a sender the peer's NAPI is idle
//! (offloads off); without threaded NAPI the work of receiving runs on the sender's core (threads pinned, and their time
//! looked at); old TIME-WAIT sockets swallow new SYNs (new namespaces); this machine's default may be BBR (CUBIC).

use super::cpu;
use crate::failure::{Failure, words};
use crate::lab::{offload, tool};
use io::bpf::{Asm, Program};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Core and namespace of the load.
    Client,
    /// Core and namespace of what is measured.
    Server,
}

const CUBIC: &str = "cubic";
/// Of the whole machine.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Buckets of a table of established connections: a few for each that is open at once.
const OWN_TABLE: usize = 65_536;

/// The server's address.
pub const SERVER: &str = "10.99.0.2";

struct End {
    namespace: String,
    interface: String,
    /// /proc/net/dev of the namespace, which a descriptor goes on showing wherever it is read.
    counters: File,
}

/// Two namespaces, which go with this value.
pub struct Place {
    client: End,
    server: End,
    /// The client's addresses.
    pub sources: Vec<String>,
    /// Congestion control of the server's kernel.
    pub congestion: String,
    _namespaces: Namespaces,
}

/// Frames that crossed the server's end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames {
    /// To the server.
    pub received: u64,
    /// From the server.
    pub sent: u64,
    /// That the interface dropped, both ways.
    pub dropped: u64,
}

/// Removes the namespaces, and with them the veth.
struct Namespaces([String; 2]);

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in &self.0 {
            // One that was never made needs no removal.
            let _ = tool("ip", &["netns", "del", namespace]);
        }
    }
}

impl Place {
    /// Makes one with so many queues at each end and addresses at the client's.
    pub fn new(queues: usize, addresses: usize) -> Result<Place, Failure> {
        Place::with_table(queues, addresses, false)
    }

    /// Makes one as [`Place::new`] does. With `own_table` the server's namespace has a hash table of established connections of its
    /// own (Linux 6.1) in place of the machine's.
    pub fn with_table(queues: usize, addresses: usize, own_table: bool) -> Result<Place, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = std::process::id() % 100_000;
        let place = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|end| format!("corelane-bench-{end}-{id}-{place}"));
        let interfaces = ["a", "b"].map(|end| format!("cb{end}{id}"));
        let namespaces = Namespaces(names.clone());
        let [client, server] = &names;
        tool("ip", &["netns", "add", client])?;
        match own_table {
            true => own_table_of(client, server)?,
            false => drop(tool("ip", &["netns", "add", server])?),
        }
        let queues = queues.to_string();
        let end = |at: usize| ["netns", names[at].as_str(), "numtxqueues", &queues, "numrxqueues", &queues];
        let link = ["link", "add", "name", &interfaces[0]];
        let peer = ["type", "veth", "peer", "name", &interfaces[1]];
        tool("ip", &[link.as_slice(), &end(0), &peer, &end(1)].concat())?;
        let sources: Vec<String> = (0..addresses).map(|at| format!("10.99.{}.{}", at / 200, at % 200 + 10)).collect();
        for (at, (name, interface)) in names.iter().zip(&interfaces).enumerate() {
            tool("ip", &["-n", name, "link", "set", "lo", "up"])?;
            tool("ip", &["-n", name, "link", "set", "dev", interface, "up"])?;
            let own = [SERVER.to_owned()];
            for address in if at == 0 { sources.as_slice() } else { own.as_slice() } {
                tool("ip", &["-n", name, "addr", "add", &format!("{address}/16"), "dev", interface])?;
            }
            tool("tc", &["-n", name, "qdisc", "replace", "dev", interface, "root", "pfifo", "limit", "10000"])?;
            let namespace = Path::new("/run/netns").join(name);
            use offload::Feature::{Gro, Gso, Tso};
            for (feature, on) in [(Tso, false), (Gso, false), (Gro, true)] {
                offload::set(&namespace, interface, feature, on).map_err(|error| {
                    Failure::new(
                        format!("{interface}: {feature:?}: {}", words(&error)),
                        "run as root, with CAP_SYS_ADMIN",
                    )
                })?;
            }
            number_queues(&namespace, interface)?;
            // What a server that expects this load sets.
            let sysctl = "cd /proc/sys/net && echo 65535 >core/somaxconn; echo 65535 >ipv4/tcp_max_syn_backlog";
            tool("ip", &["netns", "exec", name, "sh", "-c", &format!("{{ {sysctl}; }} 2>/dev/null; true")])?;
        }
        // The server's is what is measured; the client's kernel speaks only where a baseline's client does.
        let [_, congestion] = [cubic(&names[0])?, cubic(&names[1])?];
        let [client, server] = [0, 1].map(|at| {
            let (namespace, interface) = (names[at].clone(), interfaces[at].clone());
            let counters =
                offload::within(&Path::new("/run/netns").join(&namespace), || File::open("/proc/thread-self/net/dev"));
            counters.map(|counters| End { namespace, interface, counters })
        });
        let unread = |error| Failure::told(format!("/proc/net/dev of a namespace: {}", words(&error)));
        Ok(Place {
            client: client.map_err(unread)?,
            server: server.map_err(unread)?,
            sources,
            congestion,
            _namespaces: namespaces,
        })
    }

    /// A side's kernel builds a packet for each segment, as if nothing could cut them.
    pub fn send_frame_each(&self, side: Side) -> Result<(), Failure> {
        let End { namespace, interface, .. } = self.end(side);
        tool("ip", &["-n", namespace, "link", "set", "dev", interface, "gso_max_segs", "1"]).map(drop)
    }

    /// Limits what GRO makes of packets at a side's interface, in bytes.
    pub fn set_gro_max_size(&self, side: Side, bytes: &str) -> Result<(), Failure> {
        let End { namespace, interface, .. } = self.end(side);
        tool("ip", &["-n", namespace, "link", "set", "dev", interface, "gro_max_size", bytes]).map(drop)
    }

    /// Puts a bridge above the server's end, which takes its address; the bridge's name.
    pub fn bridge_server(&self) -> Result<String, Failure> {
        const BRIDGE: &str = "br0";
        let End { namespace, interface, .. } = &self.server;
        let address = format!("{SERVER}/16");
        for arguments in [
            ["link", "add", BRIDGE, "type", "bridge"].as_slice(),
            &["link", "set", "dev", interface, "master", BRIDGE],
            &["addr", "del", &address, "dev", interface],
            &["link", "set", "dev", BRIDGE, "up"],
            &["addr", "add", &address, "dev", BRIDGE],
        ] {
            tool("ip", &[["-n", namespace].as_slice(), arguments].concat())?;
        }
        Ok(BRIDGE.to_owned())
    }

    fn end(&self, side: Side) -> &End {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// A side's interface.
    pub fn interface(&self, side: Side) -> &str {
        &self.end(side).interface
    }

    /// A side's hardware address.
    pub fn mac(&self, side: Side) -> Result<String, Failure> {
        let End { namespace, interface, .. } = self.end(side);
        let address = format!("/sys/class/net/{interface}/address");
        Ok(tool("ip", &["netns", "exec", namespace, "cat", &address])?.trim().to_owned())
    }

    /// The file of a side's namespace.
    pub fn namespace(&self, side: Side) -> PathBuf {
        Path::new("/run/netns").join(&self.end(side).namespace)
    }

    /// Whether an XDP program is on a side's interface.
    pub fn has_program(&self, side: Side) -> Result<bool, Failure> {
        let End { namespace, interface, .. } = self.end(side);
        let text = tool("ip", &["-n", namespace, "-details", "link", "show", "dev", interface])?;
        Ok(text.split_whitespace().any(|word| word.starts_with("xdp") || word == "prog/xdp"))
    }

    /// This program, or another, on a side.
    pub fn command(&self, side: Side, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.end(side).namespace]).arg(program);
        command
    }

    /// A program on a side, as the last argument of another command; of none: as [`Place::command`].
    pub fn command_under(&self, side: Side, under: &[String], program: &Path) -> Command {
        match under.split_first() {
            None => self.command(side, program),
            Some((first, rest)) => {
                let mut command = self.command(side, Path::new(first));
                command.args(rest).arg(program);
                command
            }
        }
    }

    /// Writes a kernel setting of a side's namespace, as `net/ipv4/tcp_tw_reuse`.
    pub fn set(&self, side: Side, name: &str, value: &str) -> Result<(), Failure> {
        let script = format!("echo {value} >/proc/sys/{name}");
        tool("ip", &["netns", "exec", &self.end(side).namespace, "sh", "-c", &script]).map(drop)
    }

    /// Gives each end's receive queues threads on these cores; the threads.
    ///
    /// To be called once programs are attached: attaching one makes new NAPI contexts.
    pub fn pin(&self, client: &[usize], server: &[usize]) -> Result<Napi, Failure> {
        let mut napi = Napi::default();
        for (side, cores) in [(Side::Client, client), (Side::Server, server)] {
            let End { namespace, interface, .. } = self.end(side);
            let threaded = format!("echo 1 >/sys/class/net/{interface}/threaded");
            tool("ip", &["netns", "exec", namespace, "sh", "-c", &threaded])?;
            let threads = cpu::named(&format!("napi/{interface}-"));
            if threads.is_empty() {
                let what = format!("{interface} has no NAPI thread");
                return Err(Failure::new(what, "Linux 5.15 or later has threaded NAPI on veth"));
            }
            for (at, thread) in threads.iter().enumerate() {
                pin(*thread, cores[at % cores.len()])?;
            }
            match side {
                Side::Client => napi.client = threads,
                Side::Server => napi.server = threads,
            }
        }
        Ok(napi)
    }

    /// Frames that crossed so far.
    pub fn frames(&mut self) -> Frames {
        let End { counters, interface, .. } = &mut self.server;
        let mut text = String::new();
        if counters.rewind().and_then(|()| counters.read_to_string(&mut text)).is_err() {
            return Frames::default();
        }
        parse_frames(&text, interface).unwrap_or_default()
    }
}

/// Attaches an XDP program to an end of the veth and detaches it again, which numbers the end's receive queues. A full queue stops the
/// sender's, and is to wake it by that number; without a program it is 0 for all of them (veth_poll of Linux 6.18), and the sender's
/// other queues stay stopped.
fn number_queues(namespace: &Path, interface: &str) -> Result<(), Failure> {
    const PASS: i32 = 2;
    let mut pass = Asm::default();
    pass.mov(0, PASS).exit();
    let pass = pass.finish();
    let attached = offload::within(namespace, || {
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        let index = name_to_index(&any, interface)?;
        Program::load_xdp("cl_number", &pass, false)?.attach(index, false).map(drop)
    });
    attached.map_err(|error| {
        Failure::new(format!("{interface}: an XDP program: {}", words(&error)), "run as root, with CAP_BPF")
    })
}

/// Makes a namespace that has its own table of established connections: one that is made from within `parent`, which says so.
fn own_table_of(parent: &str, name: &str) -> Result<(), Failure> {
    let unsupported = || {
        Failure::new("no namespace has a table of established connections of its own", "Linux 6.1 and later have it")
    };
    let ask = format!("echo {OWN_TABLE} >/proc/sys/net/ipv4/tcp_child_ehash_entries");
    tool("ip", &["netns", "exec", parent, "sh", "-c", &ask]).map_err(|_| unsupported())?;
    tool("nsenter", &[&format!("--net=/run/netns/{parent}"), "ip", "netns", "add", name])?;
    // One that uses another's has a negative number.
    let entries = tool("ip", &["netns", "exec", name, "cat", "/proc/sys/net/ipv4/tcp_ehash_entries"])?;
    match entries.trim().parse::<i64>() {
        Ok(entries) if entries > 0 => Ok(()),
        _ => Err(unsupported()),
    }
}

/// Gives a namespace's kernel CUBIC where this kernel has it; what it uses now.
fn cubic(namespace: &str) -> Result<String, Failure> {
    let choose = || {
        let file = "/proc/sys/net/ipv4/tcp_congestion_control";
        let script = format!("{{ echo {CUBIC} >{file}; }} 2>/dev/null; cat {file}");
        tool("ip", &["netns", "exec", namespace, "sh", "-c", &script]).map(|chosen| chosen.trim().to_owned())
    };
    let chosen = choose()?;
    if chosen == CUBIC {
        return Ok(chosen);
    }
    // A namespace chooses among what every process of the machine may use, which CUBIC is not where it is not the default: for
    // this moment it is. One of us at a time: each puts back what it found.
    let failed = |error: std::io::Error| Failure::told(format!("{ALLOWED}: {}", words(&error)));
    let lock = File::open(ALLOWED).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let allowed = std::fs::read_to_string(ALLOWED).map_err(failed)?;
    let widened = with(&allowed, CUBIC).is_some_and(|wider| std::fs::write(ALLOWED, wider).is_ok());
    let chosen = choose();
    if widened {
        std::fs::write(ALLOWED, allowed.trim()).map_err(failed)?;
    }
    // Still another one where the kernel has no CUBIC, and where this is a namespace of its own, which may allow nothing.
    chosen
}

/// A list of words with one more; `None` when it is there.
fn with(list: &str, word: &str) -> Option<String> {
    let there = list.split_whitespace().any(|w| w == word);
    (!there).then(|| format!("{} {word}", list.trim()))
}

/// From the table of /proc/net/dev: packets received are the second number, packets sent the tenth, those dropped stand two
/// behind each.
fn parse_frames(text: &str, interface: &str) -> Option<Frames> {
    let row = text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = row.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(Frames { received: *numbers.get(1)?, sent: *numbers.get(9)?, dropped: numbers.get(3)? + numbers.get(11)? })
}

fn pin(thread: u32, core: usize) -> Result<(), Failure> {
    let pid = i32::try_from(thread).ok().and_then(rustix::thread::Pid::from_raw);
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(pid, &set).map_err(|errno| {
        Failure::new(format!("pinning a NAPI thread to core {core}: {}", words(&errno.into())), "run as root")
    })
}

/// The threads that receive.
#[derive(Clone, Debug, Default)]
pub struct Napi {
    /// At the client's end.
    pub client: Vec<u32>,
    /// At the server's.
    pub server: Vec<u32>,
}

impl Napi {
    /// CPU time of the server's, so far.
    pub fn server_time(&self) -> Duration {
        self.server.iter().map(|thread| cpu::process_time(*thread)).sum()
    }

    /// CPU time of all, so far.
    pub fn time(&self) -> Duration {
        self.client.iter().chain(&self.server).map(|thread| cpu::process_time(*thread)).sum()
    }
}

/// Whether namespaces and a veth can be had: root, iproute2.
pub fn available() -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        let remedy = "run it with sudo; --wire mem needs no root";
        return Err(Failure::new("the rows on a veth need network namespaces, which needs root", remedy));
    }
    tool("ip", &["-V"]).map(drop)
}

/// The program that is running, to start more of it.
pub fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("corelane"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_more() {
        assert_eq!(with("reno bbr\n", "cubic").as_deref(), Some("reno bbr cubic"));
        assert_eq!(with("reno cubic bbr\n", "cubic"), None);
    }

    #[test]
    fn the_kernel_uses_cubic() {
        let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        if super::available().is_err() || !available.unwrap_or_default().contains(CUBIC) {
            return testing::skip("needs root, iproute2 and CUBIC");
        }
        let before = std::fs::read_to_string(ALLOWED).expect("Linux");
        let place = Place::new(1, 1).expect("a place");
        assert_eq!(place.congestion, CUBIC);
        for end in [&place.client, &place.server] {
            let file = "/proc/sys/net/ipv4/tcp_congestion_control";
            let chosen = tool("ip", &["netns", "exec", &end.namespace, "cat", file]).expect("a namespace");
            assert_eq!(chosen.trim(), CUBIC);
        }
        assert_eq!(std::fs::read_to_string(ALLOWED).expect("Linux"), before);
    }

    #[test]
    fn the_server_can_have_a_table_of_its_own() {
        if available().is_err() || !Path::new("/proc/sys/net/ipv4/tcp_child_ehash_entries").exists() {
            return testing::skip("needs root, iproute2 and Linux 6.1");
        }
        let place = Place::with_table(1, 1, true).expect("a place");
        let entries = |end: &End| {
            let file = "/proc/sys/net/ipv4/tcp_ehash_entries";
            let entries = tool("ip", &["netns", "exec", &end.namespace, "cat", file]).expect("a namespace");
            entries.trim().parse::<i64>().expect("a number")
        };
        assert_eq!(entries(&place.server), OWN_TABLE as i64);
        // The machine's, or this namespace's where it has one.
        assert_ne!(entries(&place.client), OWN_TABLE as i64);
    }

    #[test]
    fn frames_of_an_interface() {
        let text = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets\n    \
                    lo:       1       2    0    0    0     0          0         0        3       4    0    0    0     0       0          0\n \
                    cbb12: 100 20 0 5 0 0 0 0 300 40 0 7 0 0 0 0\n";
        let frames = parse_frames(text, "cbb12").expect("it is there");
        assert_eq!((frames.received, frames.sent, frames.dropped), (20, 40, 12));
        assert!(parse_frames(text, "cbb1").is_none());
    }
}
