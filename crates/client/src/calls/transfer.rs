//! Reading and writing.

use socket::{Errno, RecvFlags, SockId, SockOption, Sockets};

use crate::app::App;

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transfer {
    /// The call does not wait (O_NONBLOCK, MSG_DONTWAIT).
    pub dont_wait: bool,
    /// More follows at once (MSG_MORE): a partial segment waits for it.
    pub more: bool,
    /// A call that may wait goes on until all is written, as write(2) does; otherwise it takes what fits once anything does.
    pub whole: bool,
}

impl App {
    /// recv(2).
    #[inline]
    pub fn recv(&mut self, sock: SockId, out: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        let mut done = 0;
        let like = SockOption::ReceiveTimeout(None);
        match self.run(flags.dont_wait, (sock, like), |s| s.recv_on(sock, out, &mut done, flags)) {
            // What has come before the time was over, or the signal came, was taken.
            Err(_) if done > 0 && !flags.peek => Ok(done),
            other => other,
        }
    }

    /// send(2): how many bytes were taken.
    #[inline]
    pub fn send(&mut self, sock: SockId, data: &[u8], how: Transfer) -> Result<usize, Errno> {
        let sent = self.send_by(sock, data, how, |s, rest| s.write(sock, rest, how.more));
        self.wrote(sock, how.dont_wait);
        sent
    }

    /// The same by `write`, which says how many of the bytes it has taken; nothing is handed over.
    #[inline]
    pub fn send_by(
        &mut self,
        sock: SockId,
        data: &[u8],
        how: Transfer,
        mut write: impl FnMut(&mut Sockets, &[u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let Transfer { dont_wait, whole, .. } = how;
        let mut written = 0;
        let like = SockOption::SendTimeout(None);
        let end = self.run(dont_wait, (sock, like), |s| {
            written += write(s, &data[written..])?;
            // A short write was one that found no more room.
            if dont_wait || !whole || written == data.len() { Ok(()) } else { Err(Errno::EAGAIN) }
        });
        match end {
            Err(_) if written > 0 => Ok(written),
            other => other.map(|()| written),
        }
    }

    /// writev(2): how many bytes were taken.
    pub fn send_parts(&mut self, sock: SockId, parts: &[&[u8]], how: Transfer) -> Result<usize, Errno> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let like = SockOption::SendTimeout(None);
        // The first time all of them together; the rest waits for room, part by part.
        let first = match how.whole && !how.dont_wait {
            true => self.poll(|s| s.writev(sock, parts, how.more)),
            false => self.run(how.dont_wait, (sock, like), |s| s.writev(sock, parts, how.more)),
        };
        let mut written = match first {
            Err(Errno::EAGAIN) if how.whole && !how.dont_wait => 0,
            other => other?,
        };
        if how.dont_wait || !how.whole || written == total {
            self.wrote(sock, how.dont_wait);
            return Ok(written);
        }
        let mut before = 0;
        for (i, part) in parts.iter().enumerate() {
            let begin = written - before;
            before += part.len();
            if begin >= part.len() {
                continue;
            }
            let more = how.more || i + 1 < parts.len();
            match self.send(sock, &part[begin..], Transfer { more, ..how }) {
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
}
