//! Reading and writing: sockets and pipes alike.

use core::ffi::c_int;

use capi::buffers::MOST_BYTES;
use capi::{Errno, Result};
use client::Transfer;
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
    c.app()?.turn_to(of.sock);
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
        return c.enter(|app| app.run(dont_wait, (of.sock, like), |s| s.pipe_read(of.sock, out)));
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        // No error is ever queued.
        return Err(Errno::AGAIN);
    }
    let flags = RecvFlags { dont_wait, ..RecvFlags::from_bits(flags) };
    let end = c.enter(|app| app.recv(of.sock, out, flags));
    noting(c, of, end)
}

/// As write(2): one that may wait goes on until all is written.
#[inline]
pub fn send(c: &mut Context, of: Stream, data: &[u8], more: bool) -> Result<usize> {
    let sock = of.sock;
    let how = Transfer { dont_wait: of.nonblocking, more, whole: true };
    if of.pipe {
        return c.enter(|app| app.send_by(sock, data, how, |s, rest| s.pipe_write(sock, rest)));
    }
    let end = c.enter(|app| app.send(sock, data, how));
    noting(c, of, end)
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
    if !of.pipe {
        let how = Transfer { dont_wait: of.nonblocking, more: false, whole: true };
        let end = c.enter(|app| app.send_parts(of.sock, parts, how));
        return noting(c, of, end);
    }
    let mut written = 0;
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
    let end = c.enter(|app| {
        app.run(of.nonblocking, (of.sock, SockOption::ReceiveTimeout(None)), |s| {
            s.lend(of.sock, most, |piece| {
                pieces[used] = iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
                used += 1;
                used < pieces.len()
            })
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
    c.app()?.wrote(of.sock, of.nonblocking);
    Ok(())
}
