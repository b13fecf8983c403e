//! Writing and shutting down.

use mem::{CHUNK_BYTES, Chain};
use protocol::Job;

use crate::epoll::ANY;
use crate::errno::Errno;
use crate::receive::pending;
use crate::sockets::Sockets;
use crate::table::{Phase, SockId, Socket, Tcp, flag};

/// Bytes that every connection may have in flight, however scarce memory is.
pub(crate) const LEAST: usize = 8192;

/// A socket that may not write for want of chunks, or of slots in the ring.
pub(crate) struct Starved {
    pub id: SockId,
    /// What it had in flight when the stack was asked to tell of every acknowledged byte.
    pub asked: Option<u32>,
}

/// A short answer.
const LITTLE: usize = 512;

/// The part of a rise of the share that is followed at once.
const RISE: usize = 64;

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
            self.starve(id);
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
        match self.allowance(in_flight, len).saturating_sub(in_flight).min(room) {
            0 => {
                self.starve(id);
                Err(Errno::EAGAIN)
            }
            room => Ok(room),
        }
    }

    /// Bytes that a connection with so many in flight, and as many to write, may have there while all compete for the
    /// chunks. Of the last eighth those who hold none get a chunk each: of its first half whoever writes, of the next quarter
    /// who writes little, which goes at once where the peer takes anything. The rest is for what comes in.
    pub(crate) fn allowance(&self, in_flight: usize, len: usize) -> usize {
        match in_flight {
            _ if !self.side.scarce() => self.share.min(self.side.share()).max(LEAST),
            0 if !self.side.dry() || len <= LITTLE && !self.side.spent() => CHUNK_BYTES,
            _ => 0,
        }
    }

    /// The share falls at once and rises slowly: what comes back in one go is for all, not for the next who writes.
    pub(crate) fn follow_share(&mut self) {
        let now = self.side.share();
        self.share = now.min(self.share + (now.saturating_sub(self.share)).div_ceil(RISE));
        self.tight = now == 0;
    }

    /// Not writable until there are chunks, slots, or a larger share again: in the queue of those for whom
    /// [`Sockets::process`] looks, and asks the stack.
    fn starve(&mut self, id: SockId) {
        let Some(t) = self.table.tcp(id) else { return };
        t.set(flag::NO_SPACE, true);
        if t.is(flag::STARVED) {
            return;
        }
        t.set(flag::STARVED, true);
        if self.starved.len() > 2 * self.table.len() + 64 {
            self.forget_closed();
        }
        self.starved.push_back(Starved { id, asked: None });
    }

    /// Sockets that were closed while they waited, and whose numbers others have now, who may wait too.
    #[cold]
    fn forget_closed(&mut self) {
        let Sockets { table, starved, .. } = self;
        starved.retain(|s| {
            let Some(t) = table.tcp(s.id).filter(|t| t.is(flag::STARVED)) else { return false };
            t.set(flag::STARVED, false);
            true
        });
        for s in starved.iter() {
            table.tcp(s.id).into_iter().for_each(|t| t.set(flag::STARVED, true));
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
                self.starve(id);
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
            self.wait_for_room(id);
        }
        if n == 0 && full { Err(Errno::EAGAIN) } else { Ok(n) }
    }

    /// A write was cut short. By the buffer or by TCP_NOTSENT_LOWAT: acknowledgments, or what is sent, will make room, and the stack tells
    /// of that unasked. By the share of the memory: what was taken may be too little for the stack to tell of.
    fn wait_for_room(&mut self, id: SockId) {
        let Some(t) = self.table.tcp(id) else { return };
        t.set(flag::NO_SPACE, true);
        if t.has_space() {
            self.starve(id);
        }
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
