//! Sockets: made, bound, listening, accepted, connected, closed.

use core::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};

use capi::address::{self, SockAddr, V4_BYTES};
use capi::{Errno, Result, errno};
use protocol::Endpoint;
use socket::{ListenOptions, Shutdown, SockId, SockOption, Sockets};
use wire::Addr;

use crate::context::{Context, Sources};
use crate::ids::Kind;

/// The socket of a stream or listener: `ENOTSOCK` for pipes and epolls.
pub fn socket_of(c: &mut Context, id: c_int) -> Result<SockId> {
    let entry = c.ids.get(id)?;
    match entry.kind {
        Kind::Stream | Kind::Listener { .. } => Ok(entry.sock),
        Kind::Pipe | Kind::Epoll => Err(Errno::NOTSOCK),
    }
}

/// As socket(2): TCP over IPv4 or IPv6.
pub fn socket(c: &mut Context, domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    let v6 = address::is_v6(domain, kind, protocol)?;
    if !c.ids.has_room(1) {
        return Err(Errno::MFILE);
    }
    let sock = c.call(|s| s.socket(v6))?;
    if c.keepalive {
        c.call(|s| s.set_option(sock, SockOption::KeepAlive(true)))?;
    }
    c.ids.insert(Kind::Stream, sock, kind & libc::SOCK_NONBLOCK != 0)
}

/// As pipe(2): the id to read from, then the id to write to.
pub fn pipe(c: &mut Context) -> Result<[c_int; 2]> {
    if !c.ids.has_room(2) {
        return Err(Errno::MFILE);
    }
    let (reader, writer) = c.call(Sockets::pipe)?;
    Ok([c.ids.insert(Kind::Pipe, reader, false)?, c.ids.insert(Kind::Pipe, writer, false)?])
}

/// As bind(2); whether the address is ours is looked at when it is used.
pub fn bind(c: &mut Context, id: c_int, at: &[u8]) -> Result<()> {
    let sock = socket_of(c, id)?;
    let local = match (is_v6(c, sock), at.get(4..8)) {
        // Linux: programs of old leave the family of INADDR_ANY out.
        (false, Some(addr)) if address::is_unspec(at) && addr == [0; 4] && at.len() >= V4_BYTES => {
            Endpoint { addr: Addr::UNSPECIFIED_V4, port: u16::from_be_bytes([at[2], at[3]]) }
        }
        (v6, _) => address::parse(at, v6)?,
    };
    c.call(|s| s.bind(sock, local))
}

/// As listen(2).
pub fn listen(c: &mut Context, id: c_int, backlog: c_int) -> Result<()> {
    let sock = socket_of(c, id)?;
    // Linux: a negative backlog is as good as none.
    let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
    if let Kind::Listener { .. } = c.ids.get(id)?.kind {
        return c.call(|s| s.listen(sock, ListenOptions { backlog }));
    }
    let claim = c.app()?.listen(sock, backlog).map_err(|e| errno::of_io(&e))?;
    c.ids.get(id)?.kind = Kind::Listener { claim };
    Ok(())
}

/// As accept(2): the id of the oldest connection, and its peer. It blocks where its listener does: reads never do in mTCP, and its
/// programs, which wait for the listener's event, need not say so of each connection.
pub fn accept(c: &mut Context, id: c_int) -> Result<(c_int, SockAddr)> {
    let entry = c.ids.get(id)?;
    let (sock, nonblocking) = (entry.sock, entry.nonblocking);
    match entry.kind {
        Kind::Listener { .. } => {}
        Kind::Stream => return Err(Errno::INVAL),
        Kind::Pipe | Kind::Epoll => return Err(Errno::NOTSOCK),
    }
    if !c.ids.has_room(1) {
        return Err(Errno::MFILE);
    }
    let (new, peer) = c.enter(|app| app.accept(sock, nonblocking))?;
    let v6 = is_v6(c, sock);
    let accepted = c.ids.insert(Kind::Stream, new, nonblocking)?;
    if let Some(kept) = c.ids.get(id)?.kept.clone() {
        c.ids.get(accepted)?.kept = Some(kept);
    }
    Ok((accepted, SockAddr::new(peer, v6)))
}

/// Whether a socket is of IPv6.
pub fn is_v6(c: &mut Context, sock: SockId) -> bool {
    let domain = c.call(|s| s.option(sock, SockOption::Domain(0)));
    matches!(domain, Ok(SockOption::Domain(libc::AF_INET6)))
}

/// As connect(2), but for AF_UNSPEC, which leaves alone what is not connected, and ends no connection.
pub fn connect(c: &mut Context, id: c_int, to: &[u8]) -> Result<()> {
    let entry = c.ids.get(id)?;
    let (sock, nonblocking) = (entry.sock, entry.nonblocking);
    match entry.kind {
        Kind::Stream => {}
        Kind::Listener { .. } => return Err(Errno::ISCONN),
        Kind::Pipe | Kind::Epoll => return Err(Errno::NOTSOCK),
    }
    if address::is_unspec(to) {
        return if c.call(|s| s.is_fresh(sock))? { Ok(()) } else { Err(Errno::OPNOTSUPP) };
    }
    let v6 = is_v6(c, sock);
    let remote = address::parse(to, v6)?;
    let local = c.call(|s| s.local(sock))?;
    if local.port == 0 && local.addr.is_unspecified() && remote.addr.is_v4() {
        leave_from(c, sock);
    }
    c.app()?.may_connect_from(local.port).map_err(|_| Errno::ADDRNOTAVAIL)?;
    let limit = c.app()?.timeout(sock, SockOption::SendTimeout(None));
    c.enter(|app| app.connect(sock, remote, nonblocking, limit))
}

/// The next of the addresses that `mtcp_init_rss` has set; a socket that is bound to a port alone keeps it.
fn leave_from(c: &mut Context, sock: SockId) {
    let Some(sources) = &mut c.sources else { return };
    let at = u32::from(sources.first).wrapping_add(sources.next);
    sources.next = (sources.next + 1) % sources.count;
    let local = Endpoint { addr: Addr::from(IpAddr::V4(Ipv4Addr::from(at))), port: 0 };
    // Where it was bound before, it leaves from there.
    let _ = c.call(|s| s.bind(sock, local));
}

/// `mtcp_init_rss`: which addresses connections leave from.
pub fn init_rss(c: &mut Context, first: Ipv4Addr, count: c_int) -> Result<()> {
    let count = u32::try_from(count).ok().filter(|n| (1..=65_536).contains(n)).ok_or(Errno::INVAL)?;
    c.sources = (!first.is_unspecified()).then_some(Sources { first, count, next: 0 });
    Ok(())
}

/// As close(2), SO_LINGER's wait included.
pub fn close(c: &mut Context, id: c_int) -> Result<()> {
    let entry = c.ids.get(id)?;
    let (sock, nonblocking) = (entry.sock, entry.nonblocking);
    let entry = c.ids.remove(id)?;
    if !matches!(entry.kind, Kind::Stream) {
        let closed = c.close_entry(entry);
        c.asked(nonblocking);
        return closed;
    }
    match c.enter(|app| app.close(sock, nonblocking)) {
        // Linux: close tells no failure, and goes on in the background when the time is over.
        Err(Errno::INTR) => Err(Errno::INTR),
        _ => Ok(()),
    }
}

/// `mtcp_abort`: RST, and the id is free.
pub fn abort(c: &mut Context, id: c_int) -> Result<()> {
    let entry = c.ids.get(id)?;
    if !matches!(entry.kind, Kind::Stream) {
        return Err(Errno::NOTSOCK);
    }
    let (sock, nonblocking) = (entry.sock, entry.nonblocking);
    c.ids.remove(id)?;
    let aborted = c.call(|s| s.abort(sock));
    c.asked(nonblocking);
    aborted
}

/// As shutdown(2).
pub fn shutdown(c: &mut Context, id: c_int, how: c_int) -> Result<()> {
    let sock = socket_of(c, id)?;
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Err(Errno::INVAL),
    };
    c.call(|s| s.shutdown(sock, how))?;
    let nonblocking = c.ids.get(id)?.nonblocking;
    c.asked(nonblocking);
    let stopped = how != Shutdown::Write;
    // Linux: a listener whose receiving side is shut listens no more, and keeps its address.
    let entry = c.ids.get(id)?;
    if stopped && matches!(entry.kind, Kind::Listener { .. }) {
        entry.kind = Kind::Stream;
    }
    Ok(())
}

/// As getsockname(2).
pub fn name(c: &mut Context, id: c_int) -> Result<SockAddr> {
    let sock = socket_of(c, id)?;
    let at = c.call(|s| s.local(sock))?;
    let v6 = is_v6(c, sock);
    Ok(SockAddr::new(at, v6))
}

/// As getpeername(2).
pub fn peer(c: &mut Context, id: c_int) -> Result<SockAddr> {
    let sock = socket_of(c, id)?;
    let at = match c.call(|s| s.remote(sock)) {
        Err(Errno::NOTCONN) if c.hear()? => c.call(|s| s.remote(sock))?,
        other => other?,
    };
    let v6 = is_v6(c, sock);
    Ok(SockAddr::new(at, v6))
}
