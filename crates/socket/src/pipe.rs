//! Pipes inside a lane (pipe(7)): bytes from one end to the other, and readiness in the same epolls as sockets.

use std::collections::VecDeque;

use crate::epoll::{ANY, Watch};
use crate::errno::Errno;
use crate::readiness::bits;
use crate::sockets::Sockets;
use crate::table::{SockId, Socket};

/// What a pipe holds, bytes; as on Linux.
const CAPACITY: usize = 65_536;
/// PIPE_BUF: a write of so many bytes goes whole or not at all.
const WHOLE: usize = 4096;

/// One end of a pipe. What one end does is told to the other at once.
pub(crate) struct PipeEnd {
    reads: bool,
    /// `None` once it is closed.
    other: Option<SockId>,
    /// Bytes in the pipe.
    held: usize,
    /// They lie in the end that reads them.
    data: VecDeque<u8>,
    pub watch: Option<Watch>,
}

impl PipeEnd {
    fn new(reads: bool) -> PipeEnd {
        PipeEnd { reads, other: None, held: 0, data: VecDeque::new(), watch: None }
    }

    /// Linux's pipe_poll; but the end of the stream is something to read, too, as it is for a socket.
    pub fn bits(&self) -> u32 {
        match (self.reads, self.other) {
            (true, None) => bits::IN | bits::HUP,
            (true, Some(_)) if self.held > 0 => bits::IN,
            (true, Some(_)) => 0,
            (false, None) => bits::OUT | bits::ERR,
            (false, Some(_)) if CAPACITY - self.held >= WHOLE => bits::OUT,
            (false, Some(_)) => 0,
        }
    }
}

impl Sockets {
    /// pipe(2): the end to read from, and the end to write to.
    pub fn pipe(&mut self) -> Result<(SockId, SockId), Errno> {
        let reader = self.insert(Socket::Pipe(Box::new(PipeEnd::new(true))))?;
        let writer = match self.insert(Socket::Pipe(Box::new(PipeEnd::new(false)))) {
            Ok(writer) => writer,
            Err(e) => {
                self.table.remove(reader);
                return Err(e);
            }
        };
        for (end, other) in [(reader, writer), (writer, reader)] {
            if let Some(end) = self.table.pipe(end) {
                end.other = Some(other);
            }
        }
        Ok((reader, writer))
    }

    /// The end `id` of a pipe, of the kind that a call needs.
    fn pipe_end(&mut self, id: SockId, reads: bool) -> Result<&mut PipeEnd, Errno> {
        match self.table.open_mut(id)? {
            Socket::Pipe(end) if end.reads == reads => Ok(end),
            Socket::Pipe(_) => Err(Errno::EBADF),
            Socket::Tcp(_) | Socket::Listener(_) | Socket::Epoll(_) => Err(Errno::EINVAL),
        }
    }

    /// read: 0 once the other end is closed and all was read, `EAGAIN` when nothing is there; `EBADF` at the end that
    /// writes.
    pub fn pipe_read(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno> {
        let end = self.pipe_end(id, true)?;
        let n = out.len().min(end.data.len());
        if n == 0 {
            return if end.other.is_some() && !out.is_empty() { Err(Errno::EAGAIN) } else { Ok(0) };
        }
        let (first, second) = end.data.as_slices();
        let cut = n.min(first.len());
        out[..cut].copy_from_slice(&first[..cut]);
        out[cut..n].copy_from_slice(&second[..n - cut]);
        end.data.drain(..n);
        end.held -= n;
        let (other, held) = (end.other, end.held);
        if let Some(writer) = other
            && let Some(end) = self.table.pipe(writer)
        {
            let was_full = end.bits() == 0;
            end.held = held;
            if was_full && end.bits() != 0 {
                self.mark(writer, bits::OUT);
            }
        }
        Ok(n)
    }

    /// write: what fits; up to PIPE_BUF (4096) bytes go whole or not at all. `EAGAIN` when nothing can go, `EPIPE` once
    /// the other end is closed; `EBADF` at the end that reads.
    pub fn pipe_write(&mut self, id: SockId, data: &[u8]) -> Result<usize, Errno> {
        let end = self.pipe_end(id, false)?;
        let Some(reader) = end.other else { return Err(Errno::EPIPE) };
        let room = CAPACITY - end.held;
        let n = match data.len() {
            len if len <= WHOLE && len > room => 0,
            len => len.min(room),
        };
        if n == 0 {
            return if data.is_empty() { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        end.held += n;
        if let Some(end) = self.table.pipe(reader) {
            end.held += n;
            end.data.extend(&data[..n]);
            self.mark(reader, bits::IN);
        }
        Ok(n)
    }

    /// FIONREAD: bytes that wait to be read.
    pub fn pipe_available(&mut self, id: SockId) -> Result<usize, Errno> {
        Ok(self.pipe_end(id, true)?.held)
    }

    /// One end is closed: the other hears of it.
    pub(crate) fn close_pipe(&mut self, id: SockId) {
        self.unwatch(id);
        let other = self.table.pipe(id).and_then(|end| end.other);
        self.table.remove(id);
        if let Some(other) = other
            && let Some(end) = self.table.pipe(other)
        {
            end.other = None;
            self.mark(other, ANY);
        }
    }
}
