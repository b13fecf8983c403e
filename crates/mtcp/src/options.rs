//! getsockopt, setsockopt, ioctl.

use core::ffi::{c_int, c_long};

use capi::info;
use capi::options::{Asked, Value, asked, parse, shown};
use capi::{Errno, Result, errno};
use socket::{SockId, SockOption};
use tcp::{State, TcpInfo};

use crate::context::Context;
use crate::ids::Kind;
use crate::sockets::{is_v6, socket_of};

/// Linux's SIOCATMARK.
const AT_MARK: c_long = 0x8905;
/// Linux's SIOCOUTQNSD.
const NOT_SENT: c_long = 0x894b;

/// Options of Linux's that have nothing to act on here, with what they are at first: there are no queues with priorities
/// nor broadcasts, a route is always taken, the lane is where its frames come, and how it polls is the engine's to say. Of
/// Fast Open see [`fast_open`].
const KEPT: [(c_int, c_int, c_int); 6] = [
    (libc::SOL_SOCKET, libc::SO_PRIORITY, 0),
    (libc::SOL_SOCKET, libc::SO_BROADCAST, 0),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE, 0),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU, -1),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL, 0),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 0),
];

/// What such an option is at first.
fn kept(level: c_int, name: c_int) -> Option<c_int> {
    KEPT.iter().find(|(l, n, _)| (*l, *n) == (level, name)).map(|(.., at_first)| *at_first)
}

/// As setsockopt(2).
pub fn set(c: &mut Context, id: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    let sock = socket_of(c, id)?;
    if level == libc::IPPROTO_IPV6 && !is_v6(c, sock) {
        return Err(Errno::NOPROTOOPT);
    }
    if kept(level, name).is_some() {
        return keep(c, id, name, value);
    }
    let option = parse(level, name, value)?;
    c.call(|s| s.set_option(sock, option))?;
    let nonblocking = c.ids.get(id)?.nonblocking;
    c.asked(nonblocking);
    Ok(())
}

/// As getsockopt(2).
pub fn get(c: &mut Context, id: c_int, level: c_int, name: c_int) -> Result<Value> {
    let sock = socket_of(c, id)?;
    if !matches!(level, libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP) && !is_v6(c, sock) {
        return Err(Errno::OPNOTSUPP);
    }
    if let Some(at_first) = kept(level, name) {
        let kept = c.ids.get(id)?.kept.as_deref();
        let set = kept.and_then(|kept| kept.iter().find(|(n, _)| *n == name)).map(|(_, value)| *value);
        return Ok(Value::int(set.unwrap_or(at_first)));
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_SNDLOWAT) {
        // It cannot be set, as on Linux.
        return Ok(Value::int(1));
    }
    match asked(level, name)? {
        Asked::Option(like) => {
            let value = c.call(|s| s.option(sock, like)).map(shown)?;
            Ok(if level == libc::IPPROTO_IP { value.shrinking() } else { value })
        }
        Asked::Error => {
            let pending = take_error(c, sock)?;
            let told = c.ids.get(id)?.told.take();
            Ok(Value::int(pending.or(told).map_or(0, Errno::raw_os_error)))
        }
        Asked::Info => {
            let state = match c.ids.get(id)?.kind {
                Kind::Listener { .. } => State::Listen,
                _ => State::Closed,
            };
            // Linux: who has no connection yet, or any more, is told that.
            let none = TcpInfo { state, ..TcpInfo::default() };
            Ok(info::tcp_info(&tcp_info(c, sock).unwrap_or(none)))
        }
        Asked::SegmentSize => {
            let size = match tcp_info(c, sock) {
                Ok(info) => SockOption::MaxSegment(info.snd_mss as u32),
                Err(_) => c.call(|s| s.option(sock, SockOption::MaxSegment(0)))?,
            };
            Ok(shown(size))
        }
        Asked::CongestionInfo => Ok(Value::of(&[])),
        Asked::Memory => memory(c, sock),
    }
}

/// Keeps what changes nothing, as Linux would.
fn keep(c: &mut Context, id: c_int, name: c_int, value: &[u8]) -> Result<()> {
    let n = value.get(..4).and_then(|v| v.try_into().ok()).map(c_int::from_ne_bytes).ok_or(Errno::INVAL)?;
    let n = match name {
        libc::SO_BROADCAST | libc::SO_DONTROUTE => (n != 0) as c_int,
        libc::SO_BUSY_POLL if n < 0 => return Err(Errno::INVAL),
        libc::TCP_FASTOPEN => fast_open(c, id, n)?,
        _ => n,
    };
    let kept = c.ids.get(id)?.kept.get_or_insert_default();
    kept.retain(|(other, _)| *other != name);
    kept.push((name, n));
    Ok(())
}

/// TCP_FASTOPEN, the length of a queue. A server without cookies to give is free to (RFC 7413 3), and so every handshake is whole:
/// as on Linux, where net.ipv4.tcp_fastopen by default gives none to whoever sets this.
fn fast_open(c: &mut Context, id: c_int, queue: c_int) -> Result<c_int> {
    let sock = socket_of(c, id)?;
    // Linux: not of a connection.
    if queue < 0 || c.call(|s| s.remote(sock)).is_ok() {
        return Err(Errno::INVAL);
    }
    // Linux's net.core.somaxconn.
    Ok(queue.min(4096))
}

/// Who asks has heard, perhaps, by other ways than ours that something happened.
fn take_error(c: &mut Context, sock: SockId) -> Result<Option<Errno>> {
    c.hear()?;
    let error = c.sockets()?.take_error(sock).map_err(errno::of)?;
    Ok(error.map(errno::of))
}

fn tcp_info(c: &mut Context, sock: SockId) -> Result<TcpInfo> {
    c.enter(|app| app.info(sock))
}

fn memory(c: &mut Context, sock: SockId) -> Result<Value> {
    let sockets = c.sockets()?;
    let received = sockets.available(sock).map_err(errno::of)?;
    let queued = sockets.unacknowledged(sock).map_err(errno::of)?;
    let size = |like| match sockets.option(sock, like) {
        Ok(SockOption::SendBuffer(n) | SockOption::ReceiveBuffer(n)) => n as u64,
        _ => 0,
    };
    let (receive, send) = (size(SockOption::ReceiveBuffer(0)), size(SockOption::SendBuffer(0)));
    Ok(info::meminfo(received as u64, receive, queued as u64, send))
}

/// `mtcp_setsock_nonblock`, and FIONBIO.
pub fn set_nonblocking(c: &mut Context, id: c_int, on: bool) -> Result<()> {
    c.ids.get(id)?.nonblocking = on;
    Ok(())
}

/// As ioctl(2), the argument and the answer an int: FIONREAD, FIONBIO, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK.
pub fn ioctl(c: &mut Context, id: c_int, request: c_int, argument: &mut c_int) -> Result<()> {
    // Requests are unsigned, and some are given with their sign.
    let request = c_long::from(request as u32);
    let entry = c.ids.get(id)?;
    let sock = entry.sock;
    if request == libc::FIONBIO as c_long {
        return set_nonblocking(c, id, *argument != 0);
    }
    let pipe = match entry.kind {
        Kind::Stream | Kind::Listener { .. } => false,
        Kind::Pipe => true,
        Kind::Epoll => return Err(Errno::INVAL),
    };
    // Some programs only ever ask.
    c.hear()?;
    let n = match request {
        r if r == libc::FIONREAD as c_long => {
            c.call(|s| if pipe { s.pipe_available(sock) } else { s.available(sock) })? as u64
        }
        _ if pipe => return Err(Errno::INVAL),
        // The sockets hear of acknowledgments now and then; the stack knows.
        r if r == libc::TIOCOUTQ as c_long => match tcp_info(c, sock) {
            Ok(info) => info.unacked_bytes + info.notsent_bytes,
            Err(_) => c.call(|s| s.unacknowledged(sock))? as u64,
        },
        AT_MARK => c.call(|s| s.at_mark(sock))? as u64,
        NOT_SENT => tcp_info(c, sock)?.notsent_bytes,
        _ => return Err(Errno::INVAL),
    };
    *argument = n.min(c_int::MAX as u64) as c_int;
    Ok(())
}
