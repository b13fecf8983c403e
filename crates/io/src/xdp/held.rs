//! Ports that the kernel chooses for its own sockets, and that are held so that it does not.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, bind, sendmsg,
    socket_with, socketpair,
};

/// Descriptors of one message at most (SCM_MAX_FD).
const MOST: usize = 253;

/// Sockets that are bound and do nothing. The kernel's connect(2), and bind(2) to port 0, pass over such a port; a program that asks for it
/// by number and sets SO_REUSEADDR, as servers do, has it beside us and can listen.
///
/// They are in flight between the ends of socket pairs (SCM_RIGHTS), where they take up no descriptors of the process.
#[derive(Debug, Default)]
pub struct Held {
    /// Full ones are whole no more: their other end has all messages.
    pairs: Vec<(Option<OwnedFd>, OwnedFd)>,
}

impl Held {
    /// Holds ports of these in their order, `most` at most: those held. After `tries` that others have, it goes on only where there is none
    /// yet, nor `enough` without. An error is what kept it from more, and not that others have a port.
    pub(super) fn hold(
        &mut self,
        ports: impl IntoIterator<Item = u16>,
        most: usize,
        tries: usize,
        enough: bool,
    ) -> (Vec<u16>, Option<(u16, io::Error)>) {
        let (mut held, mut sockets, mut taken) = (Vec::new(), Vec::new(), 0);
        let mut failed = None;
        for port in ports {
            let some = enough || !held.is_empty() || !sockets.is_empty();
            if held.len() + sockets.len() >= most || taken >= tries && some {
                break;
            }
            match bound(port) {
                Ok(socket) => sockets.push((port, socket)),
                Err(Errno::ADDRINUSE) => taken += 1,
                Err(error) => {
                    failed = Some((port, error.into()));
                    break;
                }
            }
            if sockets.len() == MOST
                && let Err(error) = self.put(&mut sockets, &mut held)
            {
                return (held, Some((port, error)));
            }
        }
        if let Some(port) = sockets.last().map(|(port, _)| *port)
            && let Err(error) = self.put(&mut sockets, &mut held)
        {
            failed = Some((port, error));
        }
        (held, failed)
    }

    /// Sends them off; their ports are held then.
    fn put(&mut self, sockets: &mut Vec<(u16, OwnedFd)>, held: &mut Vec<u16>) -> io::Result<()> {
        let fds: Vec<BorrowedFd> = sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
        let room = match self.pairs.last() {
            Some((Some(end), _)) => send(end, &fds),
            _ => Err(Errno::AGAIN),
        };
        match room {
            Err(Errno::AGAIN) => {
                let (flags, stream) = (SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, SocketType::STREAM);
                let (end, other) = socketpair(AddressFamily::UNIX, stream, flags, None)?;
                send(&end, &fds)?;
                if let Some((full, _)) = self.pairs.last_mut() {
                    *full = None;
                }
                self.pairs.push((Some(end), other));
            }
            other => other?,
        }
        held.extend(sockets.drain(..).map(|(port, _)| port));
        Ok(())
    }
}

fn send(end: &OwnedFd, fds: &[BorrowedFd]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    assert!(with.push(SendAncillaryMessage::ScmRights(fds)), "a message has room for {MOST}");
    sendmsg(end, &[IoSlice::new(b"p")], &mut with, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// A port that nobody has, as the kernel chooses it for bind(2) to port 0.
pub fn free_port() -> io::Result<u16> {
    let addr = rustix::net::getsockname(bound(0)?)?;
    SocketAddr::try_from(addr).map(|addr| addr.port()).map_err(Into::into)
}

/// A socket on a port of all addresses of both families, as far as the kernel has both.
fn bound(port: u16) -> Result<OwnedFd, Errno> {
    let new = |family| socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (socket, addr) = match new(AddressFamily::INET6) {
        Ok(socket) => {
            set_ipv6_v6only(&socket, false)?;
            (socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
        }
        Err(Errno::AFNOSUPPORT) => (new(AddressFamily::INET)?, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        Err(error) => return Err(error),
    };
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &addr)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn listener(addr: SocketAddr, reuse: bool) -> Result<OwnedFd, Errno> {
        let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_reuseaddr(&socket, reuse)?;
        bind(&socket, &addr)?;
        rustix::net::listen(&socket, 1)?;
        Ok(socket)
    }

    /// Ports held: neither chosen for a connection nor twice to be had, and open to a server that asks for them.
    #[test]
    fn the_kernel_does_not_choose_a_held_port() {
        let Ok(taken) = TcpListener::bind("127.0.0.1:0") else { return testing::skip("no 127.0.0.1 here") };
        let port = taken.local_addr().unwrap().port();
        let range = port.saturating_sub(400).max(1024)..=port.saturating_add(400);
        let mut held = Held::default();
        let (ports, failed) = held.hold(range.clone(), 700, usize::MAX, false);
        assert!(failed.is_none() && ports.len() > 300 && !ports.contains(&port), "{failed:?}, {}", ports.len());
        for _ in 0..2000 {
            let client = TcpStream::connect(taken.local_addr().unwrap()).unwrap();
            drop(taken.accept().unwrap());
            assert!(!ports.contains(&client.local_addr().unwrap().port()));
            let other = TcpListener::bind("127.0.0.1:0").unwrap();
            assert!(!ports.contains(&other.local_addr().unwrap().port()));
        }
        let one = ports[ports.len() / 2];
        for host in ["127.0.0.1", "::1"] {
            let addr = SocketAddr::new(host.parse().unwrap(), one);
            assert_eq!(listener(addr, false).map(drop), Err(Errno::ADDRINUSE), "{addr}");
            assert!(listener(addr, true).is_ok(), "{addr}");
        }
        // Ports on which others listen are theirs.
        let server = listener(SocketAddr::from(([127, 0, 0, 1], one)), true).unwrap();
        assert_eq!(Held::default().hold([one], 1, 1, true).0, []);
        drop(server);
        drop(held);
        assert!(listener(SocketAddr::from(([127, 0, 0, 1], one)), false).is_ok());
    }

    #[test]
    fn taken_ports_are_looked_through_where_there_is_none_yet() {
        let server = TcpListener::bind("[::]:0").unwrap();
        let all = || std::iter::repeat_n(server.local_addr().unwrap().port(), 100).chain([free_port().unwrap()]);
        let hold = |tries, enough| Held::default().hold(all(), 10, tries, enough).0.len();
        assert_eq!([hold(5, true), hold(101, true), hold(5, false)], [0, 1, 1]);
    }

    #[test]
    fn a_free_port_is_nobodys() {
        let port = free_port().unwrap();
        assert!(port != 0 && TcpListener::bind(("127.0.0.1", port)).is_ok());
    }

    /// Few descriptors hold many ports.
    #[test]
    fn held_ports_take_no_descriptors() {
        let highest = || std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let before = highest();
        let mut held = Held::default();
        let (ports, failed) = held.hold(20_000..24_000, 3000, usize::MAX, false);
        assert!(failed.is_none() && ports.len() > 2000, "{failed:?}, {}", ports.len());
        // Other tests open some.
        assert!(highest() < before + 200, "{} after {before}", highest());
    }
}
