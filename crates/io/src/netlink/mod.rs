//! What the kernel knows of links, addresses, routes and neighbours, read by rtnetlink and followed.

mod conntrack;
mod neighbor;
mod sock_diag;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use wire::MacAddr;

use crate::sys::set_option;

pub(crate) use conntrack::nft_tables;
pub use conntrack::{Conntrack, Ends, nat_is_used};
use neighbor::neighbor;
pub use neighbor::{KernelNeighbor, Nud};
pub use sock_diag::{
    Handshakes, KernelFlows, accept_queues, all_kernel_flows, forget_time_wait, kernel_flows, listeners_on,
};

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its hardware address.
    pub mac: MacAddr,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Frames can come and go: the other end of the cable is there.
    pub carrier: bool,
    /// The machine's own: what it sends comes back to it.
    pub loopback: bool,
    /// The bond, team or bridge that it belongs to, by number; 0 where there is none.
    pub master: u32,
    /// The interface that it is on, as a VLAN or macvlan, by number; a veth's other end.
    pub lower: Option<u32>,
    /// That one is in another network namespace.
    pub lower_is_elsewhere: bool,
    /// `veth`, `tun`, … ; empty for hardware.
    pub kind: String,
    /// Queues of each direction, as far as the kernel says.
    pub rx_queues: u32,
    /// Id of the XDP program on it; 0 where there is none.
    pub xdp_program: u32,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whose.
    pub link: u32,
    /// The address.
    pub addr: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
    /// Duplicate detection is not done, or failed.
    pub tentative: bool,
}

/// A unicast route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Destination network.
    pub dst: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Interface.
    pub link: u32,
    /// Priority.
    pub metric: u32,
    /// Routing table; 254 is main.
    pub table: u32,
}

/// Something changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A link is there, or is different.
    Link(Link),
    /// A link is no more.
    NoLink(u32),
    /// An address came, or went (`false`).
    Address(Address, bool),
    /// Some route came or went: read them again.
    Routes,
    /// A neighbour is there, is different, or is gone ([`Nud::Failed`]).
    Neighbor(KernelNeighbor),
}

const HEADER: usize = 16;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const DUMP_INTERRUPTED: u16 = 0x10;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
const NESTED: u16 = 0x8000;

/// A netlink socket.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    b.get(at..at + 2).map_or(0, |s| u16::from_ne_bytes([s[0], s[1]]))
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).map_or(0, |s| u32::from_ne_bytes([s[0], s[1], s[2], s[3]]))
}

/// Attributes of a message from byte `at` on.
pub(crate) fn attributes(b: &[u8], at: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = b.get(at..).unwrap_or(&[]);
    core::iter::from_fn(move || {
        let len = u16_at(rest, 0) as usize;
        if rest.len() < 4 || len < 4 || len > rest.len() {
            return None;
        }
        let item = (u16_at(rest, 2) & 0x3fff, &rest[4..len]);
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(item)
    })
}

fn ip(b: &[u8]) -> Option<IpAddr> {
    match b.len() {
        4 => <[u8; 4]>::try_from(b).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(b).ok().map(IpAddr::from),
        _ => None,
    }
}

fn text(b: &[u8]) -> String {
    String::from_utf8_lossy(b.split(|c| *c == 0).next().unwrap_or(&[])).into_owned()
}

impl Netlink {
    /// A socket for questions.
    pub fn open() -> io::Result<Netlink> {
        Netlink::with_groups(libc::NETLINK_ROUTE, 0)
    }

    /// A socket that hears of changes of links, addresses, routes and neighbours.
    pub fn monitor() -> io::Result<Netlink> {
        // RTMGRP_LINK | NEIGH | IPV4_IFADDR | IPV4_ROUTE | IPV6_IFADDR | IPV6_ROUTE
        let monitor = Netlink::with_groups(libc::NETLINK_ROUTE, 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400)?;
        // Bursts (a routing daemon's start) fit. Without CAP_NET_ADMIN it stays as it is, and more is read anew.
        let _ = set_option(&monitor.fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(1i32 << 20));
        Ok(monitor)
    }

    pub(crate) fn with_groups(protocol: i32, groups: u32) -> io::Result<Netlink> {
        // SAFETY: a plain system call; the descriptor it gives is new.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: all zero is a valid sockaddr_nl.
        let mut addr: libc::sockaddr_nl = unsafe { core::mem::zeroed() };
        addr.nl_family = libc::AF_NETLINK as u16;
        addr.nl_groups = groups;
        // SAFETY: the address is of the length that is said.
        let r = unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), size_of_val(&addr) as u32) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(Netlink { fd, sequence: 1 }) }
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut b = Vec::with_capacity(HEADER + body.len());
        write_message(&mut b, kind, flags, self.sequence, |b| b.extend(body));
        rustix::net::send(&self.fd, &b, rustix::net::SendFlags::empty())?;
        Ok(())
    }

    /// Calls `f` for each message of a dump; a dump that was interrupted by changes is asked for again.
    pub(crate) fn dump(&mut self, kind: u16, body: &[u8], mut f: impl FnMut(u16, &[u8])) -> io::Result<()> {
        for _ in 0..8 {
            self.send(kind, DUMP, body)?;
            let mut collected = Vec::new();
            if self.collect(&mut collected)? {
                collected.iter().for_each(|(kind, body): &(u16, Vec<u8>)| f(*kind, body));
                return Ok(());
            }
        }
        Err(io::Error::other("the kernel's tables change too fast to be read"))
    }

    /// Reads one whole answer; `false` when it was interrupted.
    fn collect(&mut self, out: &mut Vec<(u16, Vec<u8>)>) -> io::Result<bool> {
        let mut buf = vec![0; 1 << 16];
        let mut whole = true;
        loop {
            let receive = || rustix::net::recv(&self.fd, &mut buf[..], rustix::net::RecvFlags::empty());
            let (n, _) = rustix::io::retry_on_intr(receive)?;
            for (kind, flags, sequence, body) in messages(&buf[..n]) {
                if sequence != self.sequence {
                    continue;
                }
                whole &= flags & DUMP_INTERRUPTED == 0;
                match kind {
                    NLMSG_DONE => return Ok(whole),
                    NLMSG_ERROR => match u32_at(body, 0) as i32 {
                        0 => return Ok(whole),
                        e => return Err(io::Error::from_raw_os_error(-e)),
                    },
                    _ => out.push((kind, body.to_vec())),
                }
            }
        }
    }

    /// What the kernel answers about one thing; nothing where it says `none`.
    fn one(&mut self, kind: u16, body: &[u8], none: i32) -> io::Result<Vec<(u16, Vec<u8>)>> {
        self.send(kind, ACK, body)?;
        let mut answer = Vec::new();
        match self.collect(&mut answer) {
            Err(error) if error.raw_os_error() == Some(none) => Ok(Vec::new()),
            other => other.map(|_| answer),
        }
    }

    /// All interfaces.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        let mut all = Vec::new();
        self.dump(RTM_GETLINK, &[0; 16], |kind, b| {
            if kind == RTM_NEWLINK {
                all.push(link(b));
            }
        })?;
        Ok(all)
    }

    /// The interface of that name.
    pub fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        Ok(self.links()?.into_iter().find(|l| l.name == name))
    }

    /// The interface of that number.
    pub fn link_at(&mut self, index: u32) -> io::Result<Option<Link>> {
        // ifinfomsg
        let mut body = [0; 16];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        let answer = self.one(RTM_GETLINK, &body, libc::ENODEV)?;
        Ok(answer.iter().find(|(kind, _)| *kind == RTM_NEWLINK).map(|(_, b)| link(b)))
    }

    /// All addresses.
    pub fn addresses(&mut self) -> io::Result<Vec<Address>> {
        let mut all = Vec::new();
        self.dump(RTM_GETADDR, &[0; 8], |kind, b| {
            if kind == RTM_NEWADDR {
                all.extend(address(b));
            }
        })?;
        Ok(all)
    }

    /// All unicast routes of both families, main table first in precedence.
    pub fn routes(&mut self) -> io::Result<Vec<KernelRoute>> {
        let mut all = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut body = [0; 12];
            body[0] = family as u8;
            self.dump(RTM_GETROUTE, &body, |kind, b| {
                if kind == RTM_NEWROUTE {
                    all.extend(route(b));
                }
            })?;
        }
        Ok(all)
    }

    /// Waits for changes and gives them; for a socket from [`Netlink::monitor`]. An overrun is told as `None`: read
    /// everything again.
    pub fn changes(&mut self) -> io::Result<Option<Vec<Change>>> {
        let mut buf = vec![0; 1 << 16];
        let n = match rustix::net::recv(&self.fd, &mut buf[..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((n, _)) => n,
            Err(rustix::io::Errno::NOBUFS) => {
                // What waits here is older than what was lost.
                let more = |r| matches!(r, Ok(_) | Err(rustix::io::Errno::NOBUFS));
                while more(rustix::net::recv(&self.fd, &mut buf[..], rustix::net::RecvFlags::DONTWAIT).map(drop)) {}
                return Ok(None);
            }
            Err(rustix::io::Errno::AGAIN) => return Ok(Some(Vec::new())),
            Err(e) => return Err(e.into()),
        };
        Ok(Some(changes_in(&buf[..n])))
    }
}

/// The changes that one datagram of a [`Netlink::monitor`] tells.
pub fn changes_in(datagram: &[u8]) -> Vec<Change> {
    let mut all = Vec::new();
    for (kind, _, _, b) in messages(datagram) {
        match kind {
            RTM_NEWLINK => all.push(Change::Link(link(b))),
            // A bridge's word (AF_BRIDGE) on a port that leaves it is another.
            RTM_DELLINK if b.first() == Some(&0) => all.push(Change::NoLink(u32_at(b, 4))),
            RTM_NEWADDR => all.extend(address(b).map(|a| Change::Address(a, true))),
            RTM_DELADDR => all.extend(address(b).map(|a| Change::Address(a, false))),
            RTM_NEWROUTE | RTM_DELROUTE => all.push(Change::Routes),
            RTM_NEWNEIGH => all.extend(neighbor(b).map(Change::Neighbor)),
            RTM_DELNEIGH => {
                all.extend(neighbor(b).map(|n| Change::Neighbor(KernelNeighbor { nud: Nud::Failed, ..n })));
            }
            _ => {}
        }
    }
    all
}

/// The unicast routes in one datagram of a dump of routes.
pub fn routes_in(datagram: &[u8]) -> Vec<KernelRoute> {
    messages(datagram).filter(|(kind, ..)| *kind == RTM_NEWROUTE).filter_map(|(.., b)| route(b)).collect()
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Adds a request, whose body `fill` writes.
fn write_message(b: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = b.len();
    b.extend([0; 4]);
    b.extend(kind.to_ne_bytes());
    b.extend((flags | REQUEST).to_ne_bytes());
    b.extend(sequence.to_ne_bytes());
    b.extend([0; 4]);
    fill(b);
    let len = (b.len() - at) as u32;
    b[at..at + 4].copy_from_slice(&len.to_ne_bytes());
}

/// Adds an attribute that consists of those that `fill` adds.
fn nested(body: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = body.len();
    body.extend([0; 2]);
    body.extend((kind | NESTED).to_ne_bytes());
    fill(body);
    let len = (body.len() - at) as u16;
    body[at..at + 2].copy_from_slice(&len.to_ne_bytes());
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((4 + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// (type, flags, sequence, body) of each message in a datagram.
fn messages(b: &[u8]) -> impl Iterator<Item = (u16, u16, u32, &[u8])> {
    let mut rest = b;
    core::iter::from_fn(move || {
        let len = u32_at(rest, 0) as usize;
        if rest.len() < HEADER || len < HEADER || len > rest.len() {
            return None;
        }
        let item = (u16_at(rest, 4), u16_at(rest, 6), u32_at(rest, 8), &rest[HEADER..len]);
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(item)
    })
}

fn link(b: &[u8]) -> Link {
    // IFF_UP, IFF_LOOPBACK
    let flags = u32_at(b, 8);
    let (up, loopback) = (flags & 1 != 0, flags & 8 != 0);
    let mut l = Link { index: u32_at(b, 4), up, loopback, carrier: true, ..Link::default() };
    for (kind, v) in attributes(b, 16) {
        match kind {
            1 => l.mac = v.try_into().map(MacAddr).unwrap_or_default(),
            3 => l.name = text(v),
            4 => l.mtu = u32_at(v, 0),
            // IFLA_LINK. Tunnels that are on no interface have 0.
            5 => l.lower = Some(u32_at(v, 0)).filter(|lower| *lower != 0),
            10 => l.master = u32_at(v, 0),
            // IFLA_LINKINFO / IFLA_INFO_KIND
            18 => l.kind = attributes(v, 0).find(|(k, _)| *k == 1).map(|(_, v)| text(v)).unwrap_or_default(),
            32 => l.rx_queues = u32_at(v, 0),
            33 => l.carrier = v.first() != Some(&0),
            // IFLA_LINK_NETNSID
            37 => l.lower_is_elsewhere = true,
            // IFLA_XDP / IFLA_XDP_PROG_ID
            43 => l.xdp_program = attributes(v, 0).find(|(k, _)| *k == 4).map_or(0, |(_, v)| u32_at(v, 0)),
            _ => {}
        }
    }
    if l.lower_is_elsewhere {
        // Its number is one of that namespace.
        l.lower = None;
    }
    l
}

fn address(b: &[u8]) -> Option<Address> {
    let (mut local, mut peer) = (None, None);
    let mut flags = *b.get(2)? as u32;
    for (kind, v) in attributes(b, 8) {
        match kind {
            1 => peer = ip(v),
            2 => local = ip(v),
            8 => flags = u32_at(v, 0),
            _ => {}
        }
    }
    // IFA_F_TENTATIVE, IFA_F_DADFAILED
    let tentative = flags & (0x40 | 0x08) != 0;
    let addr = local.or(peer)?;
    is_prefix(addr, b[1]).then_some(Address { link: u32_at(b, 4), addr, prefix: b[1], tentative })
}

/// Whether a network of this address can have a prefix of so many bits.
fn is_prefix(addr: IpAddr, bits: u8) -> bool {
    bits <= if addr.is_ipv4() { 32 } else { 128 }
}

fn route(b: &[u8]) -> Option<KernelRoute> {
    // rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags. RTN_UNICAST is 1.
    if b.len() < 12 || b[7] != 1 || u32_at(b, 8) & 0x200 != 0 {
        return None;
    }
    let v4 = b[0] == libc::AF_INET as u8;
    let mut r = KernelRoute {
        dst: if v4 { [0u8; 4].into() } else { [0u8; 16].into() },
        prefix: b[1],
        gateway: None,
        link: 0,
        metric: 0,
        table: b[4] as u32,
    };
    for (kind, v) in attributes(b, 12) {
        match kind {
            1 => r.dst = ip(v)?,
            4 => r.link = u32_at(v, 0),
            5 => r.gateway = ip(v),
            6 => r.metric = u32_at(v, 0),
            // RTA_MULTIPATH: the first hop is as good as another for one lane.
            9 if r.link == 0 => {
                r.link = u32_at(v, 4);
                r.gateway = attributes(v, 8).find(|(k, _)| *k == 5).and_then(|(_, v)| ip(v));
            }
            15 => r.table = u32_at(v, 0),
            _ => {}
        }
    }
    // RTA_VIA alone names a router of the other family.
    r.gateway = r.gateway.filter(|g| g.is_ipv4() == r.dst.is_ipv4());
    (r.link != 0 && is_prefix(r.dst, r.prefix)).then_some(r)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there() {
        let mut n = Netlink::open().unwrap();
        let lo = n.link("lo").unwrap().expect("lo");
        assert_eq!(n.neighbor(lo.index, [127, 9, 9, 9].into()).unwrap(), None);
        let nowhere = n.use_neighbor(i32::MAX as u32, [127, 9, 9, 9].into()).unwrap_err();
        assert_eq!(nowhere.raw_os_error(), Some(libc::ENODEV));
        assert_eq!((lo.index, lo.mtu >= 1500, lo.loopback, lo.master), (1, true, true, 0));
        assert_eq!(n.link("no-such-link").unwrap(), None);
        for all in n.links().unwrap() {
            assert_eq!(n.link_at(all.index).unwrap().map(|l| (l.index, l.name)), Some((all.index, all.name)));
        }
        assert_eq!(n.link_at(i32::MAX as u32).unwrap(), None);
        if lo.up {
            let all = n.addresses().unwrap();
            assert!(all.iter().any(|a| a.link == 1 && a.addr == IpAddr::from([127, 0, 0, 1]) && a.prefix == 8));
        }
        n.routes().unwrap();
        n.neighbors().unwrap();
    }

    /// A message of this kind with the body and these attributes.
    fn message(kind: u16, body: &[u8], with: &[(u16, &[u8])]) -> Vec<u8> {
        let mut b = body.to_vec();
        with.iter().for_each(|(kind, value)| attribute(&mut b, *kind, value));
        let mut m = ((HEADER + b.len()) as u32).to_ne_bytes().to_vec();
        m.extend(kind.to_ne_bytes());
        m.resize(HEADER, 0);
        m.extend(b);
        m
    }

    #[test]
    fn prefixes_and_routers_that_cannot_be_are_not_told() {
        let address =
            |prefix: u8, at: &[u8]| changes_in(&message(RTM_NEWADDR, &[0, prefix, 0, 0, 2, 0, 0, 0], &[(2, at)]));
        assert_eq!((address(32, &[10, 0, 0, 1]).len(), address(33, &[10, 0, 0, 1]).len()), (1, 0));
        assert_eq!((address(128, &[0xfd; 16]).len(), address(129, &[0xfd; 16]).len()), (1, 0));
        let route = |prefix: u8, router: &[u8]| {
            // RTN_UNICAST by interface 2.
            let body = [libc::AF_INET as u8, prefix, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
            routes_in(&message(RTM_NEWROUTE, &body, &[(1, &[10, 0, 0, 0]), (4, &[2, 0, 0, 0]), (5, router)]))
        };
        assert_eq!(route(8, &[10, 0, 0, 1])[0].gateway, Some([10, 0, 0, 1].into()));
        assert_eq!(route(8, &[0xfd; 16])[0].gateway, None);
        assert!(route(40, &[10, 0, 0, 1]).is_empty());
    }

    #[test]
    fn truncated_messages_are_no_trouble() {
        let whole: Vec<u8> = (0..200u8).cycle().take(400).collect();
        for n in 0..whole.len() {
            let b = &whole[..n];
            messages(b).count();
            attributes(b, 16).count();
            link(b);
            address(b);
            route(b);
            neighbor(b);
            sock_diag::diag_socket(b);
        }
    }
}
