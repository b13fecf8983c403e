//! Connections and listeners of the kernel's TCP (NETLINK_SOCK_DIAG), as `ss` shows them and `ss -K` ends them.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use super::{ACK, Netlink, ip};

/// What the kernel's TCP has on a local port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFlows {
    /// Connections, handshakes included.
    pub live: usize,
    /// Four-tuples that it only remembers: TIME-WAIT, and FIN-WAIT-2 without a socket.
    pub time_wait: usize,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// Bytes of `struct inet_diag_sockid`.
const SOCKET_ID: usize = 48;
/// Offset of `idiag_rqueue`, behind four bytes, the id and the timer.
const RECEIVED: usize = 4 + SOCKET_ID + 4;
/// Offset of `idiag_inode`, behind both queues and the user.
const INODE: usize = RECEIVED + 12;

/// One connection as `struct inet_diag_msg` describes it.
pub(super) struct DiagSocket<'a> {
    family: u8,
    local: IpAddr,
    /// Nothing but a timer is left of it (`idiag_timer` 3).
    time_wait: bool,
    /// Of a handshake: its SYN/ACK was sent again.
    again: bool,
    /// `idiag_rqueue`: bytes to read, of a listener connections to accept.
    received: u32,
    /// `idiag_inode`: number of its file; 0 where no process has it.
    inode: u32,
    /// `struct inet_diag_sockid`, cookie included.
    id: &'a [u8],
}

pub(super) fn diag_socket(b: &[u8]) -> Option<DiagSocket<'_>> {
    let id = b.get(4..4 + SOCKET_ID)?;
    let local = match b[0] as i32 {
        libc::AF_INET => ip(&id[4..8])?,
        // An IPv4 connection of a socket of both families.
        _ => ip(&id[4..20])?.to_canonical(),
    };
    let word = |at: usize| Some(u32::from_ne_bytes(*b.get(at..)?.first_chunk()?));
    let (received, inode) = (word(RECEIVED)?, word(INODE)?);
    Some(DiagSocket { family: b[0], local, time_wait: b[2] == 3, again: b[3] > 0, received, inode, id })
}

impl DiagSocket<'_> {
    /// The local port.
    fn port(&self) -> u16 {
        u16::from_be_bytes([self.id[0], self.id[1]])
    }

    /// SO_COOKIE of a socket: two words, the lower one first.
    fn cookie(&self) -> Option<u64> {
        let word = |at: usize| Some(u32::from_ne_bytes(*self.id.get(at..)?.first_chunk()?));
        Some(u64::from(word(40)?) | u64::from(word(44)?) << 32)
    }
}

/// `struct inet_diag_req_v2` without its id.
fn diag_request(family: u8, states: u32) -> Vec<u8> {
    let mut body = vec![family, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(states.to_ne_bytes());
    body
}

/// All states of connections: neither CLOSE (7) nor LISTEN (10).
const CONNECTIONS: u32 = 0xfff & !(1 << 7) & !(1 << 10);
/// TCP_LISTEN.
const LISTENING: u32 = 1 << 10;
/// TCP_SYN_RECV, by which the kernel means its half-open records too.
const SYN_RECEIVED: u32 = 1 << 3;

/// Calls `f` for each socket of the kernel's in one of `states` on local port `port`, or on any where that is 0 (sock_diag).
fn each(socket: &mut Netlink, states: u32, port: u16, mut f: impl FnMut(DiagSocket)) -> io::Result<()> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut body = diag_request(family as u8, states);
        body.extend(port.to_be_bytes());
        body.resize(8 + SOCKET_ID, 0);
        socket.dump(SOCK_DIAG_BY_FAMILY, &body, |_, b| {
            // Kernels take the port of the request as a filter; what one sends all the same is not asked for.
            if let Some(s) = diag_socket(b).filter(|s| port == 0 || s.port() == port) {
                f(s);
            }
        })?;
    }
    Ok(())
}

/// Sockets that listen in this network namespace: connections that wait to be accepted, by the socket's cookie (SO_COOKIE).
pub fn accept_queues() -> io::Result<HashMap<u64, u32>> {
    let mut queues = HashMap::new();
    each(&mut Netlink::with_groups(libc::NETLINK_SOCK_DIAG, 0)?, LISTENING, 0, |s| {
        queues.extend(s.cookie().map(|cookie| (cookie, s.received)));
    })?;
    Ok(queues)
}

/// Sockets that listen on a local port in this network namespace: the socket's cookie (SO_COOKIE) by the number of its file, as
/// `/proc/PID/fd` shows it.
pub fn listeners_on(port: u16) -> io::Result<HashMap<u64, u64>> {
    let mut found = HashMap::new();
    each(&mut Netlink::with_groups(libc::NETLINK_SOCK_DIAG, 0)?, LISTENING, port, |s| {
        found.extend(s.cookie().map(|cookie| (u64::from(s.inode), cookie)));
    })?;
    Ok(found)
}

/// What the kernel's TCP has on local port `port` of those addresses that `covers` names.
pub fn kernel_flows(port: u16, covers: impl Fn(IpAddr) -> bool) -> io::Result<KernelFlows> {
    let mut n = KernelFlows::default();
    each(&mut Netlink::with_groups(libc::NETLINK_SOCK_DIAG, 0)?, CONNECTIONS, port, |s| {
        if covers(s.local) {
            match s.time_wait {
                true => n.time_wait += 1,
                false => n.live += 1,
            }
        }
    })?;
    Ok(n)
}

/// What the kernel's TCP has, by local address and port.
pub fn all_kernel_flows() -> io::Result<HashMap<(IpAddr, u16), KernelFlows>> {
    let mut all: HashMap<_, KernelFlows> = HashMap::new();
    each(&mut Netlink::with_groups(libc::NETLINK_SOCK_DIAG, 0)?, CONNECTIONS, 0, |s| {
        let n = all.entry((s.local, s.port())).or_default();
        match s.time_wait {
            true => n.time_wait += 1,
            false => n.live += 1,
        }
    })?;
    Ok(all)
}

/// Ports and addresses of a connection, with which `struct inet_diag_sockid` begins.
const TUPLE: usize = 36;

/// Handshakes with the kernel's listeners on one local port, of which each becomes a connection or nothing.
#[derive(Debug)]
pub struct Handshakes {
    socket: Netlink,
    port: u16,
    left: Vec<[u8; TUPLE]>,
}

impl Handshakes {
    /// Those that are under way now.
    pub fn under_way(port: u16) -> io::Result<Handshakes> {
        let mut socket = Netlink::with_groups(libc::NETLINK_SOCK_DIAG, 0)?;
        let left = half_open(&mut socket, port)?;
        Ok(Handshakes { socket, port, left })
    }

    /// How many of those were still when it was looked last.
    pub fn seen(&self) -> usize {
        self.left.len()
    }

    /// How many of those are still: what is not is in an accept queue or gone. One whose SYN/ACK was sent again is not waited for
    /// either, since its peer may be none.
    ///
    /// The kernel puts a connection in the place of its half-open record, in SYN-RECEIVED, then into the accept queue, and then
    /// lets it be ESTABLISHED: so nothing is between here and the queue.
    pub fn left(&mut self) -> io::Result<usize> {
        if !self.left.is_empty() {
            let mut now = half_open(&mut self.socket, self.port)?;
            now.sort_unstable();
            self.left.retain(|tuple| now.binary_search(tuple).is_ok());
        }
        Ok(self.left.len())
    }
}

fn half_open(socket: &mut Netlink, port: u16) -> io::Result<Vec<[u8; TUPLE]>> {
    let mut found = Vec::new();
    each(socket, SYN_RECEIVED, port, |s| found.extend(s.id.first_chunk().filter(|_| !s.again)))?;
    Ok(found)
}

/// Makes the kernel forget the connections in TIME-WAIT on local port `port` of those addresses that `covers` names
/// (SOCK_DESTROY, as `ss -K` does); how many. Needs CAP_NET_ADMIN, CONFIG_INET_DIAG_DESTROY, and a kernel that does it for
/// TIME-WAIT; the error of who lacks one of them is the kernel's.
pub fn forget_time_wait(port: u16, covers: impl Fn(IpAddr) -> bool) -> io::Result<usize> {
    let mut socket = Netlink::with_groups(libc::NETLINK_SOCK_DIAG, 0)?;
    let mut requests = Vec::new();
    each(&mut socket, CONNECTIONS, port, |s| {
        if s.time_wait && covers(s.local) {
            requests.push([&diag_request(s.family, 0)[..], s.id].concat());
        }
    })?;
    let mut n = 0;
    for request in requests {
        socket.send(SOCK_DESTROY, ACK, &request)?;
        match socket.collect(&mut Vec::new()) {
            Ok(_) => n += 1,
            // It has ended by itself.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TCP_DEFER_ACCEPT keeps a handshake under way until its first bytes come.
    #[test]
    fn a_handshake_is_under_way_until_its_connection_waits_to_be_accepted() {
        use std::io::Write;
        for listen in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(listen) else {
                testing::skip(format_args!("no {listen} here"));
                continue;
            };
            crate::sys::set_option(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &30).unwrap();
            let port = listener.local_addr().unwrap().port();
            assert_eq!(Handshakes::under_way(port).unwrap().left().unwrap(), 0);
            let mut one = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            let mut handshakes = Handshakes::under_way(port).unwrap();
            let _later = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            assert_eq!(handshakes.left().unwrap(), 1, "another one began later");
            one.write_all(b"!").unwrap();
            assert_eq!(handshakes.left().unwrap(), 0);
            assert_eq!(listener.accept().unwrap().0.peer_addr().unwrap().port(), one.local_addr().unwrap().port());
            assert_eq!(Handshakes::under_way(port).unwrap().left().unwrap(), 1);
        }
    }

    #[test]
    fn listeners_of_a_port_are_told_by_file_and_cookie() {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let file = std::fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap();
        let cookie = rustix::net::sockopt::socket_cookie(&listener).unwrap();
        let found = listeners_on(listener.local_addr().unwrap().port()).unwrap();
        let found: Vec<_> = found.iter().map(|(inode, cookie)| (format!("socket:[{inode}]"), *cookie)).collect();
        assert_eq!(found, [(file.to_str().unwrap().to_owned(), cookie)]);
    }

    #[test]
    fn a_kernel_connection_is_seen_on_its_port_and_its_time_wait_is_none() {
        let here = |ip: IpAddr| ip == IpAddr::from([127, 0, 0, 1]);
        for listen in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(listen) else {
                testing::skip(format_args!("no {listen} here"));
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let flows = || kernel_flows(port, here).unwrap();
            assert_eq!(flows(), KernelFlows::default());
            let c = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (s, _) = listener.accept().unwrap();
            assert_eq!(flows(), KernelFlows { live: 1, time_wait: 0 });
            assert_eq!(kernel_flows(port, |ip| !here(ip)).unwrap(), KernelFlows::default(), "another address");
            // Who closes first has the TIME-WAIT.
            drop(s);
            drop(c);
            while flows().live > 0 {
                std::thread::yield_now();
            }
            assert_eq!(flows(), KernelFlows { live: 0, time_wait: 1 });
            assert_eq!(forget_time_wait(port, |ip| !here(ip)).unwrap(), 0, "another address");
            match forget_time_wait(port, here) {
                Ok(n) => assert_eq!((n, flows()), (1, KernelFlows::default())),
                Err(e) => testing::skip(format_args!("this kernel or user cannot destroy a TIME-WAIT ({e})")),
            }
        }
    }
}
