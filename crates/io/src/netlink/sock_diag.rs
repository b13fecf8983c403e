//! Connections and listeners of the kernel's TCP (NETLINK_SOCK_DIAG), as `ss` shows them and `ss -K` ends them.

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

/// One connection as `struct inet_diag_msg` describes it.
pub(super) struct DiagSocket<'a> {
    family: u8,
    local: IpAddr,
    /// Nothing but a timer is left of it (`idiag_timer` 3).
    time_wait: bool,
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
    Some(DiagSocket { family: b[0], local, time_wait: b[2] == 3, id })
}

/// `struct inet_diag_req_v2` without its id.
fn diag_request(family: u8, states: u32) -> Vec<u8> {
    let mut body = vec![family, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(states.to_ne_bytes());
    body
}

/// Calls `f` for each connection of the kernel's on local port `port`, listeners aside (sock_diag).
fn each_flow(socket: &mut Netlink, port: u16, mut f: impl FnMut(DiagSocket)) -> io::Result<()> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        // All states but CLOSE (7) and LISTEN (10).
        let mut body = diag_request(family as u8, 0xfff & !(1 << 7) & !(1 << 10));
        body.extend(port.to_be_bytes());
        body.resize(8 + SOCKET_ID, 0);
        socket.dump(SOCK_DIAG_BY_FAMILY, &body, |_, b| {
            // Kernels take the port of the request as a filter; what one sends all the same is not asked for.
            if let Some(s) = diag_socket(b).filter(|s| s.id[..2] == port.to_be_bytes()) {
                f(s);
            }
        })?;
    }
    Ok(())
}

/// Ports on which the kernel's TCP listens.
pub fn listening_ports() -> io::Result<Vec<u16>> {
    let mut socket = Netlink::with_groups(libc::NETLINK_SOCK_DIAG, 0)?;
    let mut ports = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut body = diag_request(family as u8, 1 << 10);
        body.resize(8 + SOCKET_ID, 0);
        socket.dump(SOCK_DIAG_BY_FAMILY, &body, |_, b| {
            ports.extend(diag_socket(b).map(|s| u16::from_be_bytes([s.id[0], s.id[1]])));
        })?;
    }
    Ok(ports)
}

/// What the kernel's TCP has on local port `port` of those addresses that `covers` names.
pub fn kernel_flows(port: u16, covers: impl Fn(IpAddr) -> bool) -> io::Result<KernelFlows> {
    let mut n = KernelFlows::default();
    each_flow(&mut Netlink::with_groups(libc::NETLINK_SOCK_DIAG, 0)?, port, |s| {
        if covers(s.local) {
            match s.time_wait {
                true => n.time_wait += 1,
                false => n.live += 1,
            }
        }
    })?;
    Ok(n)
}

/// Makes the kernel forget the connections in TIME-WAIT on local port `port` of those addresses that `covers` names
/// (SOCK_DESTROY, as `ss -K` does); how many. Needs CAP_NET_ADMIN, CONFIG_INET_DIAG_DESTROY, and a kernel that does it for
/// TIME-WAIT; the error of who lacks one of them is the kernel's.
pub fn forget_time_wait(port: u16, covers: impl Fn(IpAddr) -> bool) -> io::Result<usize> {
    let mut socket = Netlink::with_groups(libc::NETLINK_SOCK_DIAG, 0)?;
    let mut requests = Vec::new();
    each_flow(&mut socket, port, |s| {
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

    #[test]
    fn a_kernel_connection_is_seen_on_its_port_and_its_time_wait_is_none() {
        let here = |ip: IpAddr| ip == IpAddr::from([127, 0, 0, 1]);
        for listen in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(listen) else { continue };
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
                Err(e) => eprintln!("SKIPPED: this kernel or user cannot destroy a TIME-WAIT ({e})"),
            }
        }
    }
}
