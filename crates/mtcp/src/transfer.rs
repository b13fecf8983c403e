//! Reading and writing: sockets and pipes alike.

use core::ffi::c_int;

use capi::buffers::MOST_BYTES;
use capi::{Errno, Result};
use libc::iovec;
use socket::{RecvFlags, SockId, SockOption};

use crate::context::Context;
use crate::ids::Kind;

/// Bytes that a piece of received data has at most.
const PIECE: usize = 2048;

/// Something to read from or to write to.
#[derive(Clone, Copy)]
pub struct Stream {
    id: c_int,
    sock: SockId,
    pipe: bool,
    nonblocking: bool,
}

/// What `id` transfers with: `EINVAL` for an epoll. A listener's calls say why not.
pub fn stream(c: &mut Context, id: c_int) -> Result<Stream> {
    let entry = c.ids.get(id)?;
    let pipe = match entry.kind {
        Kind::Stream | Kind::Listener { .. } => false,
        Kind::Pipe => true,
        Kind::Epoll => return Err(Errno::INVAL),
    };
    let of = Stream { id, sock: entry.sock, pipe, nonblocking: entry.nonblocking };
    c.turn_to(of.sock);
    Ok(of)
}

/// What ended a connection is told by SO_ERROR too, though a call has told it.
#[cold]
fn remember(c: &mut Context, id: c_int, error: Errno) {
    let ends = [
        Errno::CONNRESET,
        Errno::TIMEDOUT,
        Errno::CONNREFUSED,
        Errno::CONNABORTED,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
    ];
    if ends.contains(&error)
        && let Ok(entry) = c.ids.get(id)
    {
        entry.told = Some(error);
    }
}

fn noting<T>(c: &mut Context, of: Stream, result: Result<T>) -> Result<T> {
    if let Err(error) = result
        && error != Errno::AGAIN
    {
        remember(c, of.id, error);
    }
    result
}

/// As recv(2); a pipe knows no flags but MSG_DONTWAIT.
#[inline]
pub fn receive(c: &mut Context, of: Stream, out: &mut [u8], flags: c_int) -> Result<usize> {
    let dont_wait = of.nonblocking || flags & libc::MSG_DONTWAIT != 0;
    let like = SockOption::ReceiveTimeout(None);
    if of.pipe {
        return c.wait(dont_wait, (of.sock, like), |s| s.pipe_read(of.sock, out));
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        // No error is ever queued.
        return Err(Errno::AGAIN);
    }
    let flags = RecvFlags { dont_wait, ..RecvFlags::from_bits(flags) };
    let mut done = 0;
    let end = c.wait(dont_wait, (of.sock, like), |s| s.recv_on(of.sock, out, &mut done, flags));
    match end {
        // What has come before the time was over, or the signal came, was taken.
        Err(_) if done > 0 && !flags.peek => Ok(done),
        other => noting(c, of, other),
    }
}

/// As write(2): one that may wait goes on until all is written.
#[inline]
pub fn send(c: &mut Context, of: Stream, data: &[u8], more: bool) -> Result<usize> {
    let sock = of.sock;
    let mut written = 0;
    let mut step = |s: &mut socket::Sockets| {
        let rest = &data[written..];
        let n = if of.pipe { s.pipe_write(sock, rest) } else { s.write(sock, rest, more) }?;
        written += n;
        // A short write was one that found no more room.
        if of.nonblocking || written == data.len() { Ok(()) } else { Err(socket::Errno::EAGAIN) }
    };
    let end = c.wait(of.nonblocking, (sock, SockOption::SendTimeout(None)), &mut step);
    if !of.pipe {
        c.wrote(sock, of.nonblocking);
    }
    match end {
        Err(_) if written > 0 => Ok(written),
        other => noting(c, of, other).map(|()| written),
    }
}

/// As writev(2).
pub fn send_parts(c: &mut Context, of: Stream, parts: &[&[u8]]) -> Result<usize> {
    let total = parts.iter().map(|p| p.len()).sum::<usize>();
    if total > MOST_BYTES {
        return Err(Errno::INVAL);
    }
    if of.pipe && total <= libc::PIPE_BUF {
        // So few bytes go together.
        return send(c, of, &parts.concat(), false);
    }
    let first = if of.pipe { Err(Errno::AGAIN) } else { c.poll(|s| s.writev(of.sock, parts, false)) };
    let mut written = match first {
        Err(Errno::AGAIN) if of.pipe || !of.nonblocking => 0,
        other => noting(c, of, other)?,
    };
    if !of.pipe && of.nonblocking || written == total {
        c.wrote(of.sock, of.nonblocking);
        return Ok(written);
    }
    // The rest waits for room, part by part.
    let mut before = 0;
    for (i, part) in parts.iter().enumerate() {
        let begin = written - before;
        before += part.len();
        if begin >= part.len() {
            continue;
        }
        match send(c, of, &part[begin..], i + 1 < parts.len()) {
            Ok(n) => written += n,
            Err(_) if written > 0 => break,
            Err(e) => return Err(e),
        }
        if written < before {
            break;
        }
    }
    Ok(written)
}

/// `mtcp_recv_zc`: where received bytes lie, as pieces; those that are not needed are empty. How many bytes they are.
pub fn lend(c: &mut Context, of: Stream, pieces: &mut [iovec]) -> Result<usize> {
    if of.pipe {
        return Err(Errno::OPNOTSUPP);
    }
    if pieces.is_empty() {
        return Err(Errno::INVAL);
    }
    let most = pieces.len() * PIECE;
    let mut used = 0;
    let end = c.wait(of.nonblocking, (of.sock, SockOption::ReceiveTimeout(None)), |s| {
        s.lend(of.sock, most, |piece| {
            pieces[used] = iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
            used += 1;
            used < pieces.len()
        })
    });
    for rest in &mut pieces[used..] {
        *rest = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
    }
    noting(c, of, end)
}

/// `mtcp_recv_done`: the first `len` of them are used up; `EINVAL` for more than there are.
pub fn release(c: &mut Context, of: Stream, len: usize) -> Result<()> {
    if of.pipe {
        return Err(Errno::OPNOTSUPP);
    }
    if len > c.call(|s| s.available(of.sock))? {
        return Err(Errno::INVAL);
    }
    c.call(|s| s.consume(of.sock, len))?;
    c.wrote(of.sock, of.nonblocking);
    Ok(())
}
