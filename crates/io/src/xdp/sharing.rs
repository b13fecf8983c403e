//! Living beside the kernel: what keeps it quiet on our ports, and what its users should know.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::device::LOOPBACK;
use super::local::Place;
use crate::capability::Capability;
use crate::error::PortError;
use crate::netlink::{Netlink, nft_tables};
use crate::sys::{check, set_option};

/// Connections from this machine that may wait to be accepted; the kernel bounds it (net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// A kernel socket that listens on an owned port and answers nobody outside this machine: a filter drops every segment that
/// did not come by `lo` before TCP sees it. Connections by `lo` are for [`super::Local`].
///
/// Without it a frame that slips past the program (a queue without a socket, the moment of starting) would meet a closed port
/// and be answered by a RST. It also makes sure that no other program listens there, and that none will.
#[derive(Debug)]
pub struct Placeholder {
    pub(super) place: Option<Place>,
    pub(super) fd: Arc<OwnedFd>,
}

impl Placeholder {
    /// Holds an address and port; `Busy` when a program listens there.
    pub fn hold(addr: SocketAddr) -> Result<Placeholder, PortError> {
        let busy = |source: io::Error| match source.raw_os_error() {
            Some(libc::EADDRINUSE) => PortError::Busy {
                what: format!("TCP port {addr}"),
                hint: format!("`ss -ltnp 'sport = :{}'` shows which; stop it or choose another port", addr.port()),
            },
            Some(libc::EADDRNOTAVAIL) => {
                PortError::Invalid(format!("{} is no address of this machine: `ip addr` lists them", addr.ip()))
            }
            // Not the port: an ordinary user is refused a filter where net.core.bpf_jit_limit leaves him none.
            Some(libc::EPERM) => PortError::system(
                format!("attaching a filter to the socket that holds TCP port {addr}"),
                source,
                &[Capability::Bpf],
            ),
            _ => PortError::system(format!("holding TCP port {addr}"), source, &[Capability::NetBindService]),
        };
        let held = hold(addr, None, SUCCESSIONS.load(Ordering::Relaxed) > 0);
        held.map(|fd| Placeholder { place: None, fd: Arc::new(fd) }).map_err(busy)
    }
}

/// Of this process, now.
static SUCCESSIONS: AtomicU32 = AtomicU32::new(0);

/// Of a process that waits for another one's interface: placeholders beside that one's, from the moment on in which it lets them in
/// ([`Local::let_successor_in`](super::Local::let_successor_in)). So there is none between the two in which the kernel would refuse connections: a SYN
/// that nobody answers comes again. This process's own placeholders can be made beside these.
#[derive(Debug)]
pub struct Succession {
    port: u16,
    held: HashMap<(String, SocketAddr), OwnedFd>,
}

impl Succession {
    /// To a port, of nothing yet.
    pub fn to(port: u16) -> Succession {
        SUCCESSIONS.fetch_add(1, Ordering::Relaxed);
        Succession { port, held: HashMap::new() }
    }

    /// Holds what can be held by now: the port on addresses that may be served on these interfaces, of what comes by them. Whether one of
    /// them still has an XDP program.
    pub fn hold(&mut self, devs: &[&str]) -> io::Result<bool> {
        let mut netlink = Netlink::open()?;
        let links = netlink.links()?;
        let addresses = netlink.addresses()?;
        let mut taken = false;
        for link in links.iter().filter(|l| devs.contains(&l.name.as_str())) {
            taken |= link.xdp_program != 0;
            for addr in addresses.iter().map(|a| a.addr).filter(|addr| !addr.is_loopback()) {
                let at = (link.name.clone(), SocketAddr::new(addr, self.port));
                // What cannot be held is still another's, or will never be ours.
                if !self.held.contains_key(&at)
                    && let Ok(fd) = hold(at.1, Some(&at.0), true)
                {
                    self.held.insert(at, fd);
                }
            }
        }
        Ok(taken)
    }
}

impl Drop for Succession {
    fn drop(&mut self) {
        SUCCESSIONS.fetch_sub(1, Ordering::Relaxed);
        // The kernel remembers of a port that the last socket bound to it would share it, until one is bound that would not.
        let _ = bound(([127, 91, 0, 1], self.port).into(), None, false);
    }
}

/// A listener that answers nobody outside this machine, of what comes by `dev` or by any interface; `beside` others that share the port.
fn hold(addr: SocketAddr, dev: Option<&str>, beside: bool) -> io::Result<OwnedFd> {
    let fd = bound(addr, dev, beside)?;
    // SAFETY: a plain system call on our own descriptor.
    check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) })?;
    if beside && dev.is_none() {
        // Nobody else from now on.
        share(&fd, false)?;
    }
    Ok(fd)
}

/// Whether sockets that would share their port too, of this user, can be bound and listen beside this one.
pub(super) fn share(fd: &OwnedFd, on: bool) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &i32::from(on))
}

fn bound(addr: SocketAddr, dev: Option<&str>, beside: bool) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system calls; the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind, 0))?) };
    // Connections that are accepted inherit it.
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let interface = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX) as u32;
    let mut code = [
        op((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, interface),
        op((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, LOOPBACK),
        op((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
        op((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    set_option(&fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
    // Connections of an earlier program that end or linger do not stand in the way; a listener does.
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
    share(&fd, beside)?;
    if let Some(dev) = dev {
        let mut name = [0u8; libc::IFNAMSIZ];
        name.iter_mut().zip(dev.bytes()).for_each(|(to, from)| *to = from);
        set_option(&fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &name)?;
    }
    if addr.is_ipv6() {
        set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1i32)?;
    }
    let bound = match addr {
        SocketAddr::V4(a) => {
            let sin = libc::sockaddr_in {
                sin_family: family as u16,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the address is of the length that is said.
            unsafe { libc::bind(fd.as_raw_fd(), (&raw const sin).cast(), size_of_val(&sin) as u32) }
        }
        SocketAddr::V6(a) => {
            let sin6 = libc::sockaddr_in6 {
                sin6_family: family as u16,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: the address is of the length that is said.
            unsafe { libc::bind(fd.as_raw_fd(), (&raw const sin6).cast(), size_of_val(&sin6) as u32) }
        }
    };
    check(bound)?;
    Ok(fd)
}

/// What will no longer see the traffic of owned ports on an interface: one line each.
pub fn warnings(dev: &str, ifindex: u32) -> Vec<String> {
    let mut all = Vec::new();
    let sniffers = sniffers(&std::fs::read_to_string("/proc/net/packet").unwrap_or_default(), ifindex);
    if sniffers > 0 {
        all.push(format!(
            "{sniffers} packet socket(s) (tcpdump, DHCP clients …) on {dev} will not see corelane's traffic: use --pcap FILE"
        ));
    }
    if let Ok(tables) = nft_tables()
        && !tables.is_empty()
    {
        all.push(format!(
                "nftables tables {} do not see corelane's traffic on {dev}: its ports are open as far as they are concerned",
                tables.join(", ")
            ));
    }
    all
}

/// Packet sockets that receive from an interface, or from all, by the text of `/proc/net/packet`. Those without a protocol
/// only send, as ours do.
fn sniffers(table: &str, ifindex: u32) -> usize {
    let receives = |line: &&str| {
        let mut fields = line.split_whitespace().skip(3);
        let protocol = fields.next().and_then(|p| u16::from_str_radix(p, 16).ok());
        let interface = fields.next().and_then(|i| i.parse::<u32>().ok());
        protocol.is_some_and(|p| p != 0) && interface.is_some_and(|i| i == ifindex || i == 0)
    };
    table.lines().skip(1).filter(receives).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_sends_misses_nothing() {
        let table = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
0000000000000000 3      3    0003   7     1 0      0      100
0000000000000000 3      3    0000   7     0 0      0      101
0000000000000000 3      2    0800   0     1 0      0      102
0000000000000000 3      3    0000   0     0 0      0      103
0000000000000000 3      3    0003   8     1 0      0      104
";
        assert_eq!((sniffers(table, 7), sniffers(table, 8), sniffers(table, 9), sniffers("", 7)), (2, 2, 1, 0));
    }
}
