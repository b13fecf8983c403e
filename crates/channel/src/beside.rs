//! More listeners on the address of one that there is: a SO_REUSEPORT group.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{errno, inherited, sys};

/// SO_NETNS_COOKIE of asm-generic/socket.h.
const SO_NETNS_COOKIE: i32 = 71;

/// Where a socket of TCP listens, or is bound: sockets of the same place may be members of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The local port; 0 where it is not bound.
    pub port: u16,
    /// `struct sockaddr`, and whether IPv4 is left out.
    address: (Vec<u8>, bool),
    interface: i32,
    namespace: Option<Vec<u8>>,
}

impl Place {
    /// EOPNOTSUPP where the socket is not one of TCP over IP.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Place> {
        let get = |name| sys::option(socket, libc::SOL_SOCKET, name);
        let domain = get(libc::SO_DOMAIN)?;
        let inet = matches!(domain, libc::AF_INET | libc::AF_INET6);
        if !inet || get(libc::SO_TYPE)? != libc::SOCK_STREAM || get(libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
            return Err(errno(libc::EOPNOTSUPP));
        }
        let address = sys::local(socket)?;
        let only = domain == libc::AF_INET6 && sys::option(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)? != 0;
        Ok(Place {
            port: address.ip()?.port(),
            address: (address.as_bytes().to_vec(), only),
            interface: get(libc::SO_BINDTOIFINDEX).unwrap_or(0),
            namespace: sys::option_bytes(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE).ok(),
        })
    }

    /// True where both are in one network namespace; kernels before 5.14 do not tell, and are believed.
    pub fn is_beside(&self, other: &Place) -> bool {
        self.namespace == other.namespace
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match crate::Address::from_bytes(&self.address.0).and_then(|address| address.ip()) {
            Ok(address) => write!(f, "{address}"),
            Err(_) => write!(f, "port {}", self.port),
        }
    }
}

/// A listener on the address of `whole`, with its user and options: a member of its group from now on. `whole` gets SO_REUSEPORT if it has
/// it not.
pub fn listen_beside(whole: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    beside(whole, inherited::ALL)
}

/// Connections that wait at a listener to be accepted, and how many may.
pub fn waiting(listener: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    sys::backlog(listener)
}

/// Waits until the kernel has taken to its socket each packet that is on its way now (an RCU grace period).
pub fn after_packets_under_way() {
    sys::after_what_is_under_way();
}

/// A socket beside `whole` on its address, that has `options` of it and then listens. No program names it. A blank, for which
/// others wait, has no options before one does.
pub(crate) fn beside(whole: BorrowedFd<'_>, options: &[(i32, i32)]) -> io::Result<OwnedFd> {
    let get = |name| sys::option(whole, libc::SOL_SOCKET, name);
    let domain = get(libc::SO_DOMAIN)?;
    if domain != libc::AF_INET && domain != libc::AF_INET6 {
        return Err(errno(libc::EOPNOTSUPP));
    }
    let part = sys::socket(domain, libc::SOCK_STREAM, get(libc::SO_PROTOCOL)?)?;
    sys::set_option(whole, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    sys::set_option(part.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    // A group is of one user, and a socket is whose process made it.
    let owner = rustix::fs::fstat(whole)?.st_uid;
    if rustix::fs::fstat(&part)?.st_uid != owner {
        rustix::fs::fchown(&part, Some(rustix::fs::Uid::from_raw(owner)), None)?;
    }
    inherited::copy(part.as_fd(), whole, inherited::ADDRESS)?;
    inherited::copy(part.as_fd(), whole, options)?;
    sys::bind(part.as_fd(), &sys::local(whole)?)?;
    let most = sys::backlog(whole).map_or(libc::SOMAXCONN, |(_, most)| most as i32);
    sys::listen(part.as_fd(), most)?;
    inherited::copy(part.as_fd(), whole, inherited::LISTENING)?;
    Ok(part)
}
