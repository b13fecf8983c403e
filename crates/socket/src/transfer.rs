//! Moving bytes.

use mem::Chain;
use stack::channel::Job;

use crate::epoll::ANY;
use crate::errno::Errno;
use crate::sockets::Sockets;
use crate::table::{Phase, SockId, Socket, Tcp, flag};

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

/// The error that a call meets first: reported once, then the connection is just over.
fn pending(t: &mut Tcp) -> Result<(), Errno> {
    t.take_error().map_or(Ok(()), Err)
}

/// What a read of a socket without bytes says: the end of the stream, or why not (Linux's tcp_recvmsg).
fn nothing(t: &mut Tcp) -> Result<(), Errno> {
    match t.phase {
        Phase::Open | Phase::Failed => {
            // The peer's FIN comes before whatever went wrong after it.
            if t.is(flag::FIN) {
                return Ok(());
            }
            pending(t)?;
            if t.receive_over() { Ok(()) } else { Err(Errno::EAGAIN) }
        }
        Phase::Asked | Phase::Opening => Err(Errno::EAGAIN),
        Phase::Fresh | Phase::Abandoned | Phase::Lingering | Phase::Lingered => Err(Errno::ENOTCONN),
    }
}

impl Sockets {
    fn stream(&mut self, id: SockId, listener: Errno) -> Result<&mut Tcp, Errno> {
        match self.table.open_mut(id)? {
            Socket::Tcp(t) => Ok(t),
            Socket::Listener(_) => Err(listener),
            Socket::Epoll(_) => Err(Errno::EINVAL),
        }
    }

    /// read: 0 at the end of the stream, `EAGAIN` when nothing is there.
    pub fn read(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno> {
        self.readv(id, &mut [out])
    }

    /// readv: fills the buffers in order.
    pub fn readv(&mut self, id: SockId, out: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let t = self.stream(id, Errno::ENOTCONN)?;
        if t.rx.is_empty() {
            let wanted = out.iter().any(|b| !b.is_empty());
            return match nothing(t) {
                Err(Errno::EAGAIN) if !wanted => Ok(0),
                other => other.map(|()| 0),
            };
        }
        let Sockets { table, side, .. } = self;
        let Some(t) = table.tcp(id) else { return Err(Errno::EBADF) };
        let mut n = 0;
        for part in out.iter_mut() {
            n += t.rx.read(side, part);
        }
        t.unreported += n as u32;
        self.report_consumed(id);
        Ok(n)
    }

    /// recv with MSG_PEEK.
    pub fn peek(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno> {
        let t = self.stream(id, Errno::ENOTCONN)?;
        if t.rx.is_empty() {
            return nothing(t).map(|()| 0);
        }
        let Sockets { table, side, .. } = self;
        let Some(t) = table.tcp(id) else { return Err(Errno::EBADF) };
        Ok(t.rx.copy_at(side, 0, out))
    }

    /// Everything received, without a copy; empty at the end of the stream.
    pub fn read_chain(&mut self, id: SockId) -> Result<Chain, Errno> {
        let t = self.stream(id, Errno::ENOTCONN)?;
        if t.rx.is_empty() {
            return nothing(t).map(|()| Chain::default());
        }
        let chain = core::mem::take(&mut t.rx);
        t.unreported += chain.len() as u32;
        self.report_consumed(id);
        Ok(chain)
    }

    /// The first contiguous bytes received, where they lie; for parsers. Empty when there are none: a read tells why.
    pub fn first_slice(&mut self, id: SockId) -> Result<&[u8], Errno> {
        self.stream(id, Errno::ENOTCONN)?;
        let Sockets { table, side, .. } = self;
        let t = table.tcp(id).ok_or(Errno::EBADF)?;
        Ok(t.rx.first_slice(side))
    }

    /// Drops bytes that were read in place.
    pub fn consume(&mut self, id: SockId, n: usize) -> Result<(), Errno> {
        self.stream(id, Errno::ENOTCONN)?;
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
        Ok(self.stream(id, Errno::EINVAL)?.rx.len())
    }

    /// Bytes written and, as far as is known, not acknowledged (SIOCOUTQ).
    pub fn unacknowledged(&mut self, id: SockId) -> Result<usize, Errno> {
        Ok(self.stream(id, Errno::EINVAL)?.in_flight as usize)
    }

    /// The stack counts unreported bytes as occupying the window. A quarter of the buffer is worth a job; an emptied queue
    /// is worth one from an eighth on, so that a sender held up by the window goes on at once.
    fn report_consumed(&mut self, id: SockId) {
        let Some(t) = self.table.tcp(id) else { return };
        let quarter = t.receive_buffer / 4;
        let due = t.unreported >= quarter || (t.rx.is_empty() && t.unreported >= quarter / 2);
        if due && t.error.is_none() && !t.is(flag::FIN) {
            let (conn, bytes) = (t.conn, core::mem::take(&mut t.unreported));
            self.job(Job::Consumed { conn, bytes });
        }
    }

    /// How much a write may take now; `EAGAIN` when nothing.
    fn room(&mut self, id: SockId) -> Result<usize, Errno> {
        let congested = self.backlogged();
        let t = self.stream(id, Errno::EPIPE)?;
        match t.phase {
            Phase::Open | Phase::Failed => {}
            Phase::Asked | Phase::Opening => return Err(Errno::EAGAIN),
            // Linux: EPIPE on a socket that was never connected.
            Phase::Fresh | Phase::Abandoned | Phase::Lingering | Phase::Lingered => return Err(Errno::EPIPE),
        }
        pending(t)?;
        if t.error.is_some() || t.is(flag::SHUT_WRITE) {
            return Err(Errno::EPIPE);
        }
        if congested {
            // Jobs are queued already for want of slots in the ring: bulk waits.
            self.starve(id);
            return Err(Errno::EAGAIN);
        }
        let room = t.send_buffer.saturating_sub(t.in_flight) as usize;
        if room == 0 {
            t.set(flag::NO_SPACE, true);
            return Err(Errno::EAGAIN);
        }
        Ok(room)
    }

    /// Not writable until there are chunks, and slots, again.
    fn starve(&mut self, id: SockId) {
        if let Some(t) = self.table.tcp(id) {
            t.set(flag::NO_SPACE, true);
            if !t.is(flag::STARVED) {
                t.set(flag::STARVED, true);
                self.starved.push(id);
            }
        }
    }

    /// write, or send with MSG_MORE: takes what fits, `EAGAIN` when nothing does.
    pub fn write(&mut self, id: SockId, data: &[u8], more: bool) -> Result<usize, Errno> {
        self.writev(id, &[data], more)
    }

    /// writev: takes what fits of the buffers in order.
    pub fn writev(&mut self, id: SockId, data: &[&[u8]], more: bool) -> Result<usize, Errno> {
        let room = match self.room(id) {
            Err(Errno::EAGAIN) if data.iter().all(|part| part.is_empty()) => return Ok(0),
            other => other?,
        };
        let mut chain = Chain::default();
        let mut full = false;
        for part in data {
            let fits = part.len().min(room - chain.len());
            full |= fits < part.len();
            if chain.push_slice(&mut self.side, &part[..fits]) < fits {
                self.counters.no_chunk += 1;
                self.starve(id);
                full = true;
            }
            if full {
                break;
            }
        }
        let n = chain.len();
        if full && let Some(t) = self.table.tcp(id) {
            t.set(flag::NO_SPACE, true);
        }
        match n {
            0 if full => Err(Errno::EAGAIN),
            0 => Ok(0),
            _ => {
                self.send(id, chain, more);
                Ok(n)
            }
        }
    }

    /// Sends a chain of the application's side without a copy, whole; it may exceed the send buffer by its own length.
    /// Given back with the error.
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
        let Some(t) = self.table.tcp(id) else { return chain.free(&mut self.side) };
        t.in_flight = t.in_flight.saturating_add(chain.len() as u32);
        let conn = t.conn;
        self.job(Job::Write { conn, chain, more });
    }

    /// shutdown. What was received stays readable, as on Linux; a listener stops listening.
    pub fn shutdown(&mut self, id: SockId, how: Shutdown) -> Result<(), Errno> {
        let t = match self.table.open_mut(id)? {
            Socket::Tcp(t) => t,
            Socket::Listener(_) if how == Shutdown::Write => return Ok(()),
            Socket::Listener(_) => return self.shut_listener(id),
            Socket::Epoll(_) => return Err(Errno::ENOTSOCK),
        };
        match t.phase {
            Phase::Open if t.error.is_none() => {}
            Phase::Opening => {
                self.disconnect(id);
                self.mark(id, ANY);
                return Ok(());
            }
            _ => return Err(Errno::ENOTCONN),
        }
        if how != Shutdown::Write {
            t.set(flag::SHUT_READ, true);
        }
        if how != Shutdown::Read && !t.is(flag::SHUT_WRITE) {
            t.set(flag::SHUT_WRITE, true);
            let conn = t.conn;
            self.job(Job::Shutdown { conn });
        }
        self.mark(id, ANY);
        Ok(())
    }
}
