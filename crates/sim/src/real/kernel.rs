//! The Linux kernel as an end of a path: a network namespace with one TAP interface, whose other side is ours.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use ::io::tap::{self, TapConfig, TapPort};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::host::HostConfig;

/// What its TCP is told.
#[derive(Clone, Copy, Debug)]
pub struct Sysctls {
    /// tcp_timestamps.
    pub timestamps: bool,
    /// tcp_sack.
    pub sack: bool,
    /// tcp_window_scaling.
    pub window_scaling: bool,
    /// tcp_ecn: ask for it.
    pub ecn: bool,
}

impl Default for Sysctls {
    fn default() -> Sysctls {
        Sysctls { timestamps: true, sack: true, window_scaling: true, ecn: false }
    }
}

/// A namespace of the kernel, and our side of its interface.
pub struct Kernel {
    space: File,
    /// Frames from and to it.
    pub port: TapPort,
}

impl Kernel {
    /// Makes host `n` of the network of [`HostConfig::new`]; its only neighbour is host `peer`.
    pub fn new(n: u8, peer: u8, sysctls: Sysctls) -> io::Result<Kernel> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("clsim-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        sh(&format!("ip netns add {name}"))?;
        let space = File::open(format!("/run/netns/{name}"));
        // The open file keeps it; its name is not needed, so nothing stays behind however we end.
        sh(&format!("ip netns del {name}"))?;
        let space = space?;
        let (own, other) = (HostConfig::new(n), HostConfig::new(peer));
        let setup = move || -> io::Result<TapPort> {
            let mut ports = tap::open("tap0", &TapConfig { mtu: Some(own.mtu), ..TapConfig::default() })
                .map_err(io::Error::other)?;
            let port = ports.pop().ok_or_else(|| io::Error::other("no queue"))?;
            let Sysctls { timestamps, sack, window_scaling, ecn } = sysctls;
            for (key, value) in [
                ("ipv4/tcp_no_metrics_save", "1"),
                ("ipv4/tcp_rmem", "4096 131072 67108864"),
                ("ipv4/tcp_wmem", "4096 262144 67108864"),
                ("ipv4/tcp_timestamps", number(timestamps)),
                ("ipv4/tcp_sack", number(sack)),
                ("ipv4/tcp_window_scaling", number(window_scaling)),
                ("ipv4/tcp_ecn", number(ecn)),
            ] {
                std::fs::write(format!("/proc/sys/net/{key}"), value)
                    .map_err(|e| io::Error::new(e.kind(), format!("{key} = {value}: {e}")))?;
            }
            // Frames on the path are what they would be on a wire: whole checksums, an MTU's worth each.
            sh("ethtool -K tap0 tx off tso off gso off gro off")?;
            sh(&format!("ip link set tap0 address {}", own.mac))?;
            for (addr, prefix) in &own.addresses {
                sh(&format!("ip addr add {addr}/{prefix} dev tap0{}", if addr.is_ipv6() { " nodad" } else { "" }))?;
            }
            for (addr, _) in &other.addresses {
                sh(&format!("ip neigh replace {addr} lladdr {} dev tap0 nud permanent", other.mac))?;
            }
            Ok(port)
        };
        let port = inside(&space, setup)?.join().map_err(|_| io::Error::other("a thread panicked"))??;
        Ok(Kernel { space, port })
    }

    /// Runs `f` on a thread of its own whose sockets are the namespace's.
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        inside(&self.space, f)
    }

    /// The address of host `n`.
    pub fn address(n: u8, v6: bool) -> IpAddr {
        HostConfig::new(n).addresses[v6 as usize].0
    }
}

fn number(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

fn inside<T: Send + 'static>(space: &File, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let space = space.try_clone()?;
    let (told, heard) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let moved = move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network));
        let ok = moved.is_ok();
        let _ = told.send(moved);
        assert!(ok, "the namespace cannot be entered");
        f()
    });
    heard.recv().map_err(io::Error::other)??;
    Ok(thread)
}

/// Runs a command in the calling thread's namespace.
fn sh(command: &str) -> io::Result<()> {
    let mut words = command.split(' ');
    let out = Command::new(words.next().unwrap_or_default()).args(words).output()?;
    if out.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{command}: {}", String::from_utf8_lossy(&out.stderr).trim())))
}
