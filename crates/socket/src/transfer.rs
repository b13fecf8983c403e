//! Moving bytes.

use mem::Chain;
use stack::channel::Job;

use crate::errno::Errno;
use crate::sockets::Sockets;
use crate::table::{Phase, SockId, Tcp, flag};

/// Which directions `shutdown` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// SHUT_RD.
    Read,
    /// SHUT_WR.
    Write,
    /// SHUT_RDWR.
    Both,
}

/// The error that a read or write meets first: reported once, then the connection is just over.
fn pending(t: &mut Tcp) -> Result<(), Errno> {
    match t.error {
        Some(failure) if t.is(flag::ERROR_NEW) => {
            t.set(flag::ERROR_NEW, false);
            Err(failure.into())
        }
        _ => Ok(()),
    }
}

fn readable(t: &mut Tcp) -> Result<(), Errno> {
    match t.phase {
        Phase::Open => {}
        Phase::Failed => {
            pending(t)?;
            return Err(Errno::ENOTCONN);
        }
        Phase::Asked | Phase::Opening => return Err(Errno::EAGAIN),
        Phase::Fresh | Phase::Closing => return Err(Errno::ENOTCONN),
    }
    Ok(())
}

impl Sockets {
    /// read: 0 at the end of the stream, `EAGAIN` when nothing is there.
    pub fn read(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno> {
        self.receive(id, out, false)
    }

    /// recv with MSG_PEEK.
    pub fn peek(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno> {
        self.receive(id, out, true)
    }

    fn receive(&mut self, id: SockId, out: &mut [u8], peek: bool) -> Result<usize, Errno> {
        let Sockets { table, side, .. } = self;
        let t = match table.get_mut(id).ok_or(Errno::EBADF)? {
            crate::table::Socket::Tcp(t) => t,
            crate::table::Socket::Listener(_) => return Err(Errno::ENOTCONN),
            crate::table::Socket::Epoll(_) => return Err(Errno::EINVAL),
        };
        readable(t)?;
        if t.rx.is_empty() {
            pending(t)?;
            let over = t.is(flag::FIN | flag::SHUT_READ) || t.error.is_some();
            return if over || out.is_empty() { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        if peek {
            let n = out.len().min(t.rx.len());
            return Ok(t.rx.copy_at(side, 0, &mut out[..n]));
        }
        let n = t.rx.read(side, out);
        t.unreported += n as u32;
        self.report_consumed(id);
        Ok(n)
    }

    /// readv: fills the buffers in order.
    pub fn readv(&mut self, id: SockId, out: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let mut total = 0;
        for buf in out.iter_mut().filter(|b| !b.is_empty()) {
            match self.read(id, buf) {
                Ok(0) => break,
                Ok(n) => {
                    total += n;
                    if n < buf.len() {
                        break;
                    }
                }
                Err(_) if total > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(total)
    }

    /// Everything received, without a copy; empty at the end of the stream.
    pub fn read_chain(&mut self, id: SockId) -> Result<Chain, Errno> {
        let t = self.tcp(id)?;
        readable(t)?;
        if t.rx.is_empty() {
            pending(t)?;
            let over = t.is(flag::FIN | flag::SHUT_READ) || t.error.is_some();
            return if over { Ok(Chain::default()) } else { Err(Errno::EAGAIN) };
        }
        let chain = core::mem::take(&mut t.rx);
        t.unreported += chain.len() as u32;
        self.report_consumed(id);
        Ok(chain)
    }

    /// The first contiguous bytes received, where they lie; for parsers. Empty when there are none.
    pub fn first_slice(&mut self, id: SockId) -> Result<&[u8], Errno> {
        let Sockets { table, side, .. } = self;
        let t = table.tcp(id).ok_or(Errno::EBADF)?;
        Ok(t.rx.first_slice(side))
    }

    /// Drops bytes that were read in place.
    pub fn consume(&mut self, id: SockId, n: usize) -> Result<(), Errno> {
        let Sockets { table, side, .. } = self;
        let t = table.tcp(id).ok_or(Errno::EBADF)?;
        let n = n.min(t.rx.len());
        t.rx.consume(side, n);
        t.unreported += n as u32;
        self.report_consumed(id);
        Ok(())
    }

    /// Bytes that a read would give (FIONREAD).
    pub fn available(&mut self, id: SockId) -> Result<usize, Errno> {
        Ok(self.tcp(id)?.rx.len())
    }

    /// Bytes written and, as far as is known, not acknowledged (SIOCOUTQ).
    pub fn unacknowledged(&mut self, id: SockId) -> Result<usize, Errno> {
        Ok(self.tcp(id)?.in_flight as usize)
    }

    /// The stack counts unreported bytes as occupying the window. A quarter of the buffer is worth a job; an emptied queue
    /// is worth one from an eighth on, so that a sender held up by the window goes on at once.
    pub(crate) fn report_consumed(&mut self, id: SockId) {
        let Some(t) = self.table.tcp(id) else { return };
        let quarter = t.receive_buffer / 4;
        let due = t.unreported >= quarter || (t.rx.is_empty() && t.unreported >= quarter / 2);
        if due && t.error.is_none() && !t.is(flag::FIN) {
            let (conn, bytes) = (t.conn, core::mem::take(&mut t.unreported));
            self.job(Job::Consumed { conn, bytes });
        }
    }

    /// How much a write may take now.
    fn room(&mut self, id: SockId) -> Result<usize, Errno> {
        let congested = self.congested();
        let t = match self.table.get_mut(id).ok_or(Errno::EBADF)? {
            crate::table::Socket::Tcp(t) => t,
            crate::table::Socket::Listener(_) => return Err(Errno::EPIPE),
            crate::table::Socket::Epoll(_) => return Err(Errno::EINVAL),
        };
        match t.phase {
            Phase::Open => {}
            Phase::Asked | Phase::Opening => return Err(Errno::EAGAIN),
            Phase::Failed => {
                pending(t)?;
                return Err(Errno::EPIPE);
            }
            // Linux: EPIPE on a socket that was never connected.
            Phase::Fresh => return Err(Errno::EPIPE),
            Phase::Closing => return Err(Errno::EBADF),
        }
        pending(t)?;
        if t.error.is_some() || t.is(flag::SHUT_WRITE) {
            return Err(Errno::EPIPE);
        }
        let room = t.send_buffer.saturating_sub(t.in_flight) as usize;
        if congested {
            // The ring to the stack is full: bulk waits.
            self.starve(id);
            return Err(Errno::EAGAIN);
        }
        if room == 0 { Err(Errno::EAGAIN) } else { Ok(room) }
    }

    fn starve(&mut self, id: SockId) {
        if let Some(t) = self.table.tcp(id).filter(|t| !t.is(flag::STARVED)) {
            t.set(flag::STARVED, true);
            self.starved.push(id);
        }
    }

    /// write, or send with MSG_MORE: takes what fits, `EAGAIN` when nothing does.
    pub fn write(&mut self, id: SockId, data: &[u8], more: bool) -> Result<usize, Errno> {
        self.writev(id, &[data], more)
    }

    /// writev: takes what fits of the buffers in order.
    pub fn writev(&mut self, id: SockId, data: &[&[u8]], more: bool) -> Result<usize, Errno> {
        let room = self.room(id)?;
        let mut chain = Chain::default();
        let mut starved = false;
        let mut asked = 0;
        for part in data {
            let part = &part[..part.len().min(room - chain.len())];
            asked += part.len();
            if chain.push_slice(&mut self.side, part) < part.len() {
                starved = true;
                break;
            }
        }
        let n = chain.len();
        if starved {
            self.starve(id);
        }
        if n == 0 {
            return if asked == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        self.send(id, chain, more);
        Ok(n)
    }

    /// Sends a chain without a copy, whole; it may exceed the send buffer by its own length. Given back with the error.
    pub fn write_chain(&mut self, id: SockId, chain: Chain, more: bool) -> Result<(), (Errno, Chain)> {
        match self.room(id) {
            Ok(_) if chain.is_empty() => Ok(()),
            Ok(_) => {
                self.send(id, chain, more);
                Ok(())
            }
            Err(e) => Err((e, chain)),
        }
    }

    fn send(&mut self, id: SockId, chain: Chain, more: bool) {
        let Some(t) = self.table.tcp(id) else { return };
        t.in_flight += chain.len() as u32;
        let conn = t.conn;
        self.job(Job::Write { conn, chain, more });
    }

    /// shutdown.
    pub fn shutdown(&mut self, id: SockId, how: Shutdown) -> Result<(), Errno> {
        let Sockets { table, side, .. } = self;
        let t = table.tcp(id).ok_or(Errno::EBADF)?;
        if t.phase != Phase::Open || t.error.is_some() {
            return Err(Errno::ENOTCONN);
        }
        if how != Shutdown::Write {
            t.set(flag::SHUT_READ, true);
            let unread = core::mem::take(&mut t.rx);
            t.unreported += unread.len() as u32;
            unread.free(side);
        }
        let conn = t.conn;
        let write = how != Shutdown::Read && !t.is(flag::SHUT_WRITE);
        if write {
            t.set(flag::SHUT_WRITE, true);
            self.job(Job::Shutdown { conn });
        }
        self.report_consumed(id);
        self.mark(id);
        Ok(())
    }
}
