//! A connection moves to another thread of the application: whoever has it releases it, and once the stack has said that nothing more comes
//! here, another one adopts it. No byte is lost or doubled on the way, and nothing is copied.

use protocol::{ConnId, Endpoint, Job};

use crate::epoll::ANY;
use crate::errno::Errno;
use crate::events::set;
use crate::sockets::Sockets;
use crate::table::{Phase, SockId, Socket, Tcp, flag};

/// A connection that one thread has released and no other has adopted: with all that was received and not read, and what was set.
pub struct Moved {
    conn: ConnId,
    local: Endpoint,
    tcp: Tcp,
}

impl Moved {
    /// Which connection.
    pub fn conn(&self) -> ConnId {
        self.conn
    }
}

impl Sockets {
    /// Gives a connection away: the number is no more the application's, and [`Sockets::released`] has the connection once the stack has
    /// answered. `ENOTCONN` where it is not established, or has failed.
    pub fn release(&mut self, id: SockId) -> Result<(), Errno> {
        let t = self.tcp(id)?;
        if t.phase != Phase::Open {
            return Err(Errno::ENOTCONN);
        }
        t.phase = Phase::Releasing;
        let conn = t.conn;
        self.queries.retain(|q| q.sock != id);
        self.unwatch(id);
        self.job(Job::Release { conn });
        Ok(())
    }

    /// A connection that [`Sockets::release`] gives away, once; `None` while the stack has not answered. The number is free then.
    pub fn released(&mut self, id: SockId) -> Option<Moved> {
        let t = self.table.tcp(id).filter(|t| t.phase == Phase::Released)?;
        let (conn, local) = (t.conn, self.locals.of(t));
        let t = self.table.tcp(id)?;
        let fresh = Tcp { cold: t.cold.take(), rx: core::mem::take(&mut t.rx), watch: None, ..*t };
        self.table.remove(id);
        self.unname(conn, id);
        Some(Moved { conn, local, tcp: fresh })
    }

    /// The answer to `Release`.
    pub(crate) fn on_released(&mut self, conn: ConnId) {
        match self.sock(conn).and_then(|id| self.table.tcp(id)) {
            Some(t) if t.phase == Phase::Releasing => t.phase = Phase::Released,
            _ => self.counters.unasked += 1,
        }
    }

    /// Takes a connection that another thread has released, of the same memory; given back with the error: `EINVAL` where its memory is
    /// another one, `EMFILE` where there are too many descriptors.
    #[allow(
        clippy::result_large_err,
        reason = "a connection that is refused comes back; it is no matter of each packet"
    )]
    pub fn adopt(&mut self, moved: Moved) -> Result<SockId, (Errno, Moved)> {
        let Moved { conn, local, tcp } = moved;
        if !tcp.rx.is_of(&self.side) {
            return Err((Errno::EINVAL, Moved { conn, local, tcp }));
        }
        if self.table.is_full() {
            self.counters.no_descriptor += 1;
            return Err((Errno::EMFILE, Moved { conn, local, tcp }));
        }
        let mut tcp = Tcp { phase: Phase::Open, ..tcp };
        // Whoever waited for room waited on the other thread.
        tcp.set(flag::STARVED | flag::NO_SPACE, false);
        tcp.cold.iter_mut().for_each(|cold| cold.is_low = false);
        self.locals.set(&mut tcp, local);
        let Some(id) = self.table.insert(Socket::Tcp(tcp)) else { unreachable!("there is room") };
        set(&mut self.by_conn, conn.0, id);
        self.job(Job::Take { conn });
        self.mark(id, ANY);
        self.note_low(id);
        Ok(id)
    }
}
