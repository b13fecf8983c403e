//! A connection.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use ::socket::{Errno, Linger, RecvFlags, SockId, SockOption, Sockets};
use tcp::TcpInfo;

use crate::lane::{Lane, address, error};

/// A TCP connection of one lane. Dropping it closes it: what was written is still sent.
///
/// What is written leaves without another call where a thread runs the lane beside this one (`paired`, `guarded`): at once where the
/// stream blocks and by [`flush`](Write::flush), otherwise some five milliseconds later, so that what is written in pieces goes
/// together. With `inline` nobody but this thread's calls runs the stack: what is written waits for the next call that waits or
/// advances ([`Lane::advance`](crate::Lane::advance), [`Lane::drain`](crate::Lane::drain), a read that blocks,
/// [`Poller::wait`](crate::Poller::wait)), or for `flush`, which takes a turn.
pub struct TcpStream {
    pub(crate) lane: Lane,
    pub(crate) id: SockId,
    nonblocking: Cell<bool>,
    closed: Cell<bool>,
}

impl TcpStream {
    pub(crate) fn new(lane: Lane, id: SockId, nonblocking: bool) -> TcpStream {
        TcpStream { lane, id, nonblocking: Cell::new(nonblocking), closed: Cell::new(false) }
    }

    fn run<T>(
        &self,
        limit: impl FnOnce() -> Option<Duration>,
        mut f: impl FnMut(&mut Sockets, SockId) -> Result<T, Errno>,
    ) -> io::Result<T> {
        let id = self.id;
        // The first try needs no wait, no look at timeouts.
        match self.lane.with(|s| Ok(f(s, id)))? {
            Err(Errno::EAGAIN) if !self.nonblocking.get() => self.lane.block(limit(), |s| f(s, id)),
            other => other.map_err(error),
        }
    }

    pub(crate) fn receiving<T>(&self, f: impl FnMut(&mut Sockets, SockId) -> Result<T, Errno>) -> io::Result<T> {
        self.run(|| self.timeout(SockOption::ReceiveTimeout(None)), f)
    }

    pub(crate) fn sending<T>(&self, f: impl FnMut(&mut Sockets, SockId) -> Result<T, Errno>) -> io::Result<T> {
        let sent = self.run(|| self.timeout(SockOption::SendTimeout(None)), f);
        // A program that waits in its calls may wait for what the peer does upon it, and not come back before.
        if !self.nonblocking.get() {
            self.lane.hand_over();
        }
        sent
    }

    fn timeout(&self, like: SockOption) -> Option<Duration> {
        match self.option(like) {
            Ok(SockOption::ReceiveTimeout(t) | SockOption::SendTimeout(t)) => t,
            _ => None,
        }
    }

    /// Whether calls fail with `WouldBlock` rather than wait.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.set(on);
    }

    /// Reads what is there; 0 at the end of the stream.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv(buf, RecvFlags::default())
    }

    /// As [`TcpStream::read`], leaving the bytes where they are.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv(buf, RecvFlags { peek: true, ..RecvFlags::default() })
    }

    /// Reads as recv(2) does with these flags: all of `buf`, the urgent byte, nothing but the count …
    pub fn recv(&self, buf: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let id = self.id;
        if self.nonblocking.get() || flags.dont_wait {
            return self.lane.with(|s| s.recv(id, buf, flags));
        }
        let mut done = 0;
        let limit = || self.timeout(SockOption::ReceiveTimeout(None));
        match self.run(limit, |s, id| s.recv_on(id, buf, &mut done, flags)) {
            // What has come before the time was over was taken.
            Err(_) if done > 0 => Ok(done),
            other => other,
        }
    }

    /// Whether the next byte to be read is the urgent one (SIOCATMARK).
    pub fn at_mark(&self) -> io::Result<bool> {
        let id = self.id;
        self.lane.with(|s| s.at_mark(id))
    }

    /// Bytes written that the peer has, as far as is known, not acknowledged (SIOCOUTQ).
    pub fn unacknowledged(&self) -> io::Result<usize> {
        let id = self.id;
        self.lane.with(|s| s.unacknowledged(id))
    }

    /// Takes what fits into the send buffer.
    pub fn write(&self, buf: &[u8]) -> io::Result<usize> {
        self.sending(|s, id| s.write(id, buf, false))
    }

    /// As [`TcpStream::write`], with more to follow at once (MSG_MORE): a partial segment waits for it.
    pub fn write_more(&self, buf: &[u8]) -> io::Result<usize> {
        self.sending(|s, id| s.write(id, buf, true))
    }

    /// Fills several buffers in order.
    pub fn read_vectored(&self, bufs: &mut [IoSliceMut]) -> io::Result<usize> {
        self.receiving(|s, id| {
            let mut parts: Vec<&mut [u8]> = bufs.iter_mut().map(|b| &mut **b).collect();
            s.readv(id, &mut parts)
        })
    }

    /// Takes what fits of several buffers in order.
    pub fn write_vectored(&self, bufs: &[IoSlice]) -> io::Result<usize> {
        let parts: Vec<&[u8]> = bufs.iter().map(|b| &**b).collect();
        self.sending(|s, id| s.writev(id, &parts, false))
    }

    /// Lets `f` read received bytes where they lie and say how many it has used. Empty input: nothing has arrived. The lane is
    /// lent out meanwhile: `f` must not use it or its sockets.
    pub fn read_in_place<T>(&self, f: impl FnOnce(&[u8]) -> (usize, T)) -> io::Result<T> {
        let id = self.id;
        self.lane.with(|s| {
            let (used, answer) = f(s.first_slice(id)?);
            if used > 0 {
                s.consume(id, used)?;
            }
            Ok(answer)
        })
    }

    /// Bytes that wait to be read.
    pub fn available(&self) -> io::Result<usize> {
        let id = self.id;
        self.lane.with(|s| s.available(id))
    }

    /// Ends one or both directions; what was written is still sent.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => ::socket::Shutdown::Read,
            Shutdown::Write => ::socket::Shutdown::Write,
            Shutdown::Both => ::socket::Shutdown::Both,
        };
        let id = self.id;
        let done = self.lane.with(|s| s.shutdown(id, how));
        self.lane.hand_over();
        done
    }

    /// Closes; with SO_LINGER and a timeout, waits until the peer has acknowledged everything.
    pub fn close(self) -> io::Result<()> {
        self.closed.set(true);
        let id = self.id;
        let limit = match self.option(SockOption::Linger(None)) {
            Ok(SockOption::Linger(Some(Linger { timeout }))) => Some(timeout),
            _ => None,
        };
        self.lane.with(|s| s.close(id))?;
        self.lane.hand_over();
        let Some(limit) = limit.filter(|l| !l.is_zero() && !self.nonblocking.get()) else { return Ok(()) };
        let mut app = self.lane.shared.app.borrow_mut();
        match app.until(Some(limit), |s| s.linger_result(id)) {
            Some(answer) => answer.map_err(error),
            None => {
                app.sockets.linger_give_up(id);
                Err(error(Errno::EAGAIN))
            }
        }
    }

    /// Resets the connection: nothing more is sent, the peer sees an error.
    pub fn abort(self) -> io::Result<()> {
        self.closed.set(true);
        let id = self.id;
        let done = self.lane.with(|s| s.abort(id));
        self.lane.hand_over();
        done
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let id = self.id;
        self.lane.with(|s| s.remote(id)).map(address)
    }

    /// Our address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let id = self.id;
        self.lane.with(|s| s.local(id)).map(address)
    }

    /// The pending error (SO_ERROR), which is then no longer pending.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let id = self.id;
        self.lane.with(|s| s.take_error(id)).map(|e| e.map(error))
    }

    /// A snapshot of the connection (TCP_INFO).
    pub fn info(&self) -> io::Result<TcpInfo> {
        let id = self.id;
        let token = self.lane.with(|s| s.query_info(id))?;
        self.lane.until(None, |s| s.info_result(token), Errno::ENOTCONN)
    }

    /// Sets an option.
    pub fn set_option(&self, option: SockOption) -> io::Result<()> {
        let id = self.id;
        self.lane.with(|s| s.set_option(id, option))
    }

    /// The option that `like` names, with its value.
    pub fn option(&self, like: SockOption) -> io::Result<SockOption> {
        let id = self.id;
        self.lane.with(|s| s.option(id, like))
    }

    /// TCP_NODELAY.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.set_option(SockOption::NoDelay(on))
    }

    /// SO_RCVTIMEO: how long a blocking read waits.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_option(SockOption::ReceiveTimeout(limit))
    }

    /// SO_SNDTIMEO: how long a blocking write waits.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_option(SockOption::SendTimeout(limit))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        if self.closed.get() {
            return;
        }
        if let Ok(mut app) = self.lane.shared.app.try_borrow_mut() {
            // A lingering drop goes on in the background, as in the standard library.
            app.sockets.close_behind(self.id);
            app.leave();
        }
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        TcpStream::read(self, buf)
    }
    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        TcpStream::read_vectored(self, bufs)
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        TcpStream::read(self, buf)
    }
}

impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        TcpStream::write(self, buf)
    }
    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        TcpStream::write_vectored(self, bufs)
    }
    /// Hands over what was written; `inline` it takes a turn, which sends what the peer's window and the device have room for.
    fn flush(&mut self) -> io::Result<()> {
        self.lane.send_off();
        Ok(())
    }
}

impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        TcpStream::write(self, buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.lane.send_off();
        Ok(())
    }
}
