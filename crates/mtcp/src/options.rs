//! getsockopt, setsockopt, ioctl.

use core::ffi::{c_int, c_long};

use capi::info;
use capi::options::{Asked, Value, asked, parse, shown};
use capi::{Errno, Result, errno};
use socket::{SockId, SockOption};
use tcp::TcpInfo;

use crate::context::Context;
use crate::ids::Kind;
use crate::sockets::socket_of;

/// Linux's SIOCATMARK.
const AT_MARK: c_long = 0x8905;
/// Linux's SIOCOUTQNSD.
const NOT_SENT: c_long = 0x894b;

/// As setsockopt(2).
pub fn set(c: &mut Context, id: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    let sock = socket_of(c, id)?;
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) {
        return set_fast_open(c, id, value);
    }
    let option = parse(level, name, value)?;
    c.call(|s| s.set_option(sock, option))?;
    let nonblocking = c.ids.get(id)?.nonblocking;
    c.send_off(nonblocking);
    Ok(())
}

/// As getsockopt(2).
pub fn get(c: &mut Context, id: c_int, level: c_int, name: c_int) -> Result<Value> {
    let sock = socket_of(c, id)?;
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) {
        return Ok(Value::int(c.ids.get(id)?.fast_open));
    }
    match asked(level, name)? {
        Asked::Option(like) => c.call(|s| s.option(sock, like)).map(shown),
        Asked::Error => {
            let pending = take_error(c, sock)?;
            let told = c.ids.get(id)?.told.take();
            Ok(Value::int(pending.or(told).map_or(0, Errno::raw_os_error)))
        }
        Asked::Info => tcp_info(c, sock).map(|i| info::tcp_info(&i)),
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

/// A server without cookies to give is free to (RFC 7413 3), as Linux with its default of net.ipv4.tcp_fastopen.
fn set_fast_open(c: &mut Context, id: c_int, value: &[u8]) -> Result<()> {
    let waiting = value.get(..4).and_then(|v| v.try_into().ok()).map(i32::from_ne_bytes).ok_or(Errno::INVAL)?;
    let sock = socket_of(c, id)?;
    // Linux: not of a connection.
    if waiting < 0 || c.call(|s| s.remote(sock)).is_ok() {
        return Err(Errno::INVAL);
    }
    c.ids.get(id)?.fast_open = waiting;
    Ok(())
}

/// Who asks has heard, perhaps, by other ways than ours that something happened.
fn take_error(c: &mut Context, sock: SockId) -> Result<Option<Errno>> {
    c.hear()?;
    let error = c.sockets()?.take_error(sock).map_err(errno::of)?;
    Ok(error.map(errno::of))
}

fn tcp_info(c: &mut Context, sock: SockId) -> Result<TcpInfo> {
    let token = c.call(|s| s.query_info(sock))?;
    c.ask(|s| s.info_result(token))
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
