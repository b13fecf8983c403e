//! Writing and shutting down.

use mem::{CHUNK_BYTES, Chain};
use protocol::Job;

use crate::epoll::ANY;
use crate::errno::Errno;
use crate::receive::pending;
use crate::share::LEAST;
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

impl Sockets {
    pub(crate) fn stream(&mut self, id: SockId, listener: Errno) -> Result<&mut Tcp, Errno> {
        match self.table.open_mut(id)? {
            Socket::Tcp(t) => Ok(t),
            Socket::Listener(_) => Err(listener),
            Socket::Pipe(_) | Socket::Epoll(_) => Err(Errno::EINVAL),
        }
    }

    /// Bytes written and, as far as is known, not acknowledged (SIOCOUTQ).
    pub fn unacknowledged(&mut self, id: SockId) -> Result<usize, Errno> {
        Ok(self.stream(id, Errno::EINVAL)?.in_flight as usize)
    }

    /// How much a write of `len` bytes may take now; `EAGAIN` when nothing.
    fn room(&mut self, id: SockId, len: usize) -> Result<usize, Errno> {
        let congested = self.backlogged();
        let t = self.stream(id, Errno::EPIPE)?;
        match t.phase {
            Phase::Open | Phase::Failed => {}
            Phase::Asked | Phase::Opening => return Err(Errno::EAGAIN),
            // Linux: EPIPE on a socket that was never connected.
            Phase::Fresh
            | Phase::Abandoned
            | Phase::Lingering
            | Phase::Lingered
            | Phase::Releasing
            | Phase::Released => return Err(Errno::EPIPE),
        }
        pending(t)?;
        if t.error.is_some() || t.is(flag::SHUT_WRITE) {
            return Err(Errno::EPIPE);
        }
        if congested {
            // Jobs are queued already for want of slots in the ring: bulk waits.
            self.starve(id, len);
            return Err(Errno::EAGAIN);
        }
        let (in_flight, room) = (t.in_flight as usize, t.send_buffer.saturating_sub(t.in_flight).min(t.unsent_room()));
        if room == 0 {
            t.set(flag::NO_SPACE, true);
            return Err(Errno::EAGAIN);
        }
        let room = room as usize;
        if !self.tight && in_flight + len <= LEAST {
            return Ok(room);
        }
        match self.allowed(id, in_flight, len).saturating_sub(in_flight).min(room) {
            0 => {
                self.starve(id, len);
                Err(Errno::EAGAIN)
            }
            room => Ok(room),
        }
    }

    /// write, or send with MSG_MORE: takes what fits, `EAGAIN` when nothing does.
    #[inline]
    pub fn write(&mut self, id: SockId, data: &[u8], more: bool) -> Result<usize, Errno> {
        // What most writes are: a few bytes, with room for them in the buffer and the ring.
        const ODD: u16 = flag::ERROR_NEW | flag::SHUT_WRITE | flag::QUEUED;
        let waiting = self.backlogged();
        let most = if self.tight { 0 } else { LEAST };
        let Sockets { table, side, .. } = self;
        if let Some(Socket::Tcp(t)) = table.get_mut(id)
            && t.phase == Phase::Open
            && t.flags & ODD == 0
            && t.error.is_none()
            && t.cold.is_none()
            && !waiting
            && (1..=CHUNK_BYTES).contains(&data.len())
            && data.len() <= t.send_buffer.saturating_sub(t.in_flight) as usize
            && data.len() + t.in_flight as usize <= most
        {
            let mut chain = Chain::default();
            if chain.push_slice(side, data) > 0 {
                let (conn, n) = (t.conn, data.len() as u32);
                t.in_flight += n;
                t.written = t.written.wrapping_add(n);
                self.job(Job::Write { conn, chain, more, close: false });
                return Ok(data.len());
            }
        }
        self.writev(id, &[data], more)
    }

    /// writev: takes what fits of the buffers in order.
    pub fn writev(&mut self, id: SockId, data: &[&[u8]], more: bool) -> Result<usize, Errno> {
        self.write_parts(id, data, more, false)
    }

    /// send with MSG_EOR: as `write`, and where all was taken, no segment carries its last byte and what is written later.
    pub fn write_record(&mut self, id: SockId, data: &[u8]) -> Result<usize, Errno> {
        let n = self.write(id, data, false)?;
        if n == data.len()
            && n > 0
            && let Some(t) = self.table.tcp(id)
        {
            let conn = t.conn;
            self.job(Job::EndRecord { conn });
        }
        Ok(n)
    }

    pub(crate) fn write_parts(&mut self, id: SockId, data: &[&[u8]], more: bool, urgent: bool) -> Result<usize, Errno> {
        let len = data.iter().map(|part| part.len()).sum();
        let room = match self.room(id, len) {
            Err(Errno::EAGAIN) if len == 0 => return Ok(0),
            other => other?,
        };
        let mut chain = Chain::default();
        let mut full = false;
        for part in data {
            let fits = part.len().min(room - chain.len());
            full |= fits < part.len();
            if chain.push_slice(&mut self.side, &part[..fits]) < fits {
                self.counters.no_chunk += 1;
                self.starve(id, len);
                full = true;
            }
            if full {
                break;
            }
        }
        let n = chain.len();
        if n > 0 {
            if urgent {
                self.mark_next(id, n);
            }
            self.send(id, chain, more);
        }
        if full {
            self.wait_for_room(id, len - n);
        }
        if n == 0 && full { Err(Errno::EAGAIN) } else { Ok(n) }
    }

    /// Sends a chain of the application's side without a copy, whole; it may exceed the send buffer by its own length.
    /// Given back with the error.
    pub fn write_chain(&mut self, id: SockId, chain: Chain, more: bool) -> Result<(), (Errno, Chain)> {
        match self.room(id, chain.len()) {
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
        t.written = t.written.wrapping_add(chain.len() as u32);
        let conn = t.conn;
        self.job(Job::Write { conn, chain, more, close: false });
    }

    /// shutdown. What was received stays readable, as on Linux; a listener stops listening.
    pub fn shutdown(&mut self, id: SockId, how: Shutdown) -> Result<(), Errno> {
        let t = match self.table.open_mut(id)? {
            Socket::Tcp(t) => t,
            Socket::Listener(_) if how == Shutdown::Write => return Ok(()),
            Socket::Listener(_) => return self.shut_listener(id),
            Socket::Pipe(_) | Socket::Epoll(_) => return Err(Errno::ENOTSOCK),
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
