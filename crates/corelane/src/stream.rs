//! A connection.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use ::socket::{Errno, RecvFlags, SockId, SockOption, Sockets};
use runtime::App;
use tcp::TcpInfo;

use crate::lane::{Lane, address, error};

/// A TCP connection of one lane. Dropping it closes it: what was written is still sent.
///
/// What is written leaves at once where the stream blocks, and by [`flush`](Write::flush). Where it does not block, it leaves without another
/// call where a thread runs the lane beside this one (`paired`, `guarded`), some five milliseconds later, so that what is written in pieces goes
/// together; with `inline`, where nobody but this thread's calls runs the stack, it waits for the next call that waits or
/// advances ([`Lane::advance`](crate::Lane::advance), [`Lane::drain`](crate::Lane::drain), [`Poller::wait`](crate::Poller::wait)), or for `flush`,
/// which takes a turn.
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

    /// A call that reads: waits unless it is not to.
    pub(crate) fn receiving<T>(&self, f: impl FnMut(&mut Sockets, SockId) -> Result<T, Errno>) -> io::Result<T> {
        self.run(SockOption::ReceiveTimeout(None), f, |_, _| ())
    }

    /// A call that writes. A program that waits in its calls may wait for what the peer does upon it, and not come back before: then it goes
    /// out at once.
    pub(crate) fn sending<T>(&self, f: impl FnMut(&mut Sockets, SockId) -> Result<T, Errno>) -> io::Result<T> {
        self.run(SockOption::SendTimeout(None), f, |app, id| app.wrote(id, false))
    }

    fn run<T>(
        &self,
        like: SockOption,
        mut f: impl FnMut(&mut Sockets, SockId) -> Result<T, Errno>,
        then: impl FnOnce(&mut App, SockId),
    ) -> io::Result<T> {
        let id = self.id;
        if self.nonblocking.get() {
            return self.lane.with(|s| f(s, id));
        }
        self.lane.enter(|app| {
            let answer = app.run(false, (id, like), |s| f(s, id));
            then(app, id);
            answer
        })
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
        self.lane.enter(|app| app.recv(id, buf, flags))
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
        self.ending(|s, id| s.shutdown(id, how))
    }

    /// A call after which nothing may be said for long.
    fn ending(&self, f: impl FnOnce(&mut Sockets, SockId) -> Result<(), Errno>) -> io::Result<()> {
        let (id, nonblocking) = (self.id, self.nonblocking.get());
        self.lane.enter(|app| {
            let done = f(&mut app.sockets, id);
            app.asked(nonblocking);
            done
        })
    }

    /// Closes; with SO_LINGER and a timeout, waits until the peer has acknowledged everything.
    pub fn close(self) -> io::Result<()> {
        self.closed.set(true);
        let (id, nonblocking) = (self.id, self.nonblocking.get());
        self.lane.enter(|app| app.close(id, nonblocking))
    }

    /// Resets the connection: nothing more is sent, the peer sees an error.
    pub fn abort(self) -> io::Result<()> {
        self.closed.set(true);
        self.ending(|s, id| s.abort(id))
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
        self.lane.enter(|app| app.info(id))
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
