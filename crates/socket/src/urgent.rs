//! The urgent mark (tcp(7), RFC 6093): where it lies, what stops at it, and the byte that can be read apart.

use protocol::Job;

use crate::errno::Errno;
use crate::sockets::Sockets;
use crate::table::{SockId, Tcp, flag};

/// The last byte that the peer marked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Urgent {
    /// How many bytes will be read before it.
    pub ahead: usize,
    /// MSG_OOB has read it.
    pub read: bool,
}

impl Tcp {
    /// The mark, and whether the byte stays in the stream.
    fn mark(&self) -> Option<(Urgent, bool)> {
        let cold = self.cold.as_ref()?;
        Some((cold.urgent?, cold.oob_inline))
    }

    /// The stack says that the mark lies `beyond` bytes after what it has delivered.
    pub fn urgent_at(&mut self, beyond: u32) {
        let ahead = self.rx.len() + beyond as usize;
        self.cold.get_or_insert_default().urgent = Some(Urgent { ahead, read: false });
    }

    /// The urgent byte has arrived and was not read.
    pub fn urgent_waits(&self) -> bool {
        self.mark().is_some_and(|(urgent, _)| !urgent.read && urgent.ahead < self.rx.len())
    }

    /// What one read may take (Linux's tcp_recvmsg): bytes to step over first, then bytes up to the mark.
    pub fn span(&self) -> (usize, usize) {
        let len = self.rx.len();
        match self.mark() {
            None | Some((Urgent { ahead: 0, .. }, true)) => (0, len),
            Some((Urgent { ahead: 0, .. }, false)) => (len.min(1), len.saturating_sub(1)),
            Some((Urgent { ahead, .. }, _)) => (0, len.min(ahead)),
        }
    }

    /// `n` bytes have left the queue.
    pub fn took(&mut self, n: usize) {
        self.unreported += n as u32;
        if let Some(cold) = &mut self.cold {
            cold.urgent = cold.urgent.and_then(|u| Some(Urgent { ahead: u.ahead.checked_sub(n)?, ..u }));
        }
    }
}

impl Sockets {
    /// SIOCATMARK: whether the next byte to be read is the urgent one.
    pub fn at_mark(&mut self, id: SockId) -> Result<bool, Errno> {
        Ok(self.stream(id, Errno::EINVAL)?.mark().is_some_and(|(urgent, _)| urgent.ahead == 0))
    }

    /// recv with MSG_OOB: the urgent byte, once; `EINVAL` when there is none apart, `EAGAIN` before it has arrived.
    pub(crate) fn recv_urgent(&mut self, id: SockId, out: &mut [u8], peek: bool) -> Result<usize, Errno> {
        let t = self.stream(id, Errno::ENOTCONN)?;
        let Some((Urgent { ahead, .. }, _)) = t.mark().filter(|(urgent, inline)| !urgent.read && !inline) else {
            return Err(Errno::EINVAL);
        };
        if ahead >= t.rx.len() {
            return if t.receive_over() { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        if !peek && let Some(u) = t.cold.as_mut().and_then(|c| c.urgent.as_mut()) {
            u.read = true;
        }
        let n = out.len().min(1);
        let Sockets { table, side, .. } = self;
        let t = table.tcp(id).ok_or(Errno::EBADF)?;
        Ok(t.rx.copy_at(side, ahead, &mut out[..n]))
    }

    /// send with MSG_OOB: the last byte taken is urgent.
    pub fn write_urgent(&mut self, id: SockId, data: &[u8]) -> Result<usize, Errno> {
        self.write_parts(id, &[data], false, true)
    }

    pub(crate) fn mark_next(&mut self, id: SockId, bytes: usize) {
        let Some(t) = self.table.tcp(id).filter(|t| !t.is(flag::SHUT_WRITE)) else { return };
        let conn = t.conn;
        self.job(Job::Urgent { conn, bytes: bytes as u32 });
    }
}
