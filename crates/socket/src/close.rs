//! The ends of sockets: close, abort, SO_LINGER.

use core::time::Duration;

use protocol::{CloseMode, ConnId, Job};

use crate::errno::Errno;
use crate::options::Linger;
use crate::sockets::{NONE, Sockets};
use crate::table::{ListenPhase, Phase, SockId, Socket, Tcp};

/// How a connection is given up; `None` resets it.
fn mode(t: &Tcp) -> Option<CloseMode> {
    let linger = t.cold.as_ref().and_then(|c| c.linger);
    match linger {
        Some(l) if l.timeout.is_zero() => None,
        _ if !t.rx.is_empty() => Some(CloseMode::Unread),
        Some(_) if t.phase == Phase::Open && t.error.is_none() => Some(CloseMode::Report),
        _ => Some(CloseMode::Graceful),
    }
}

impl Sockets {
    /// close. With SO_LINGER and a timeout the number is kept until [`Sockets::linger_result`] has told the end or
    /// [`Sockets::linger_give_up`] was called; otherwise it is free at once.
    pub fn close(&mut self, id: SockId) -> Result<(), Errno> {
        match self.table.open_mut(id)? {
            // What most are: nothing was asked for, everything was read.
            Socket::Tcp(t)
                if t.phase == Phase::Open && t.cold.is_none() && t.rx.is_empty() && self.queries.is_empty() =>
            {
                let (conn, watch) = (t.conn, t.watch.take());
                self.table.remove(id);
                self.unname(conn, id);
                if watch.is_some() {
                    self.unregister(watch);
                }
                self.close_job(conn);
            }
            Socket::Tcp(_) => self.close_tcp(id, mode),
            Socket::Listener(_) | Socket::Pipe(_) | Socket::Epoll(_) => self.close_other(id),
        }
        Ok(())
    }

    /// As [`Sockets::close`], by who does not wait: with SO_LINGER and a timeout it goes on in the background.
    pub fn close_behind(&mut self, id: SockId) {
        if self.close(id).is_ok() && self.table.get(id).is_some() {
            self.linger_give_up(id);
        }
    }

    fn close_other(&mut self, id: SockId) {
        match self.table.get(id) {
            Some(Socket::Epoll(_)) => {
                self.forget_epoll(id);
                return self.table.remove(id);
            }
            Some(Socket::Pipe(_)) => return self.close_pipe(id),
            Some(Socket::Tcp(_) | Socket::Listener(_)) | None => {}
        }
        self.stop_listening(id);
        match self.table.listener(id) {
            // The answer will name the listener; then it goes.
            Some(l) if matches!(l.phase, ListenPhase::Asked) => l.phase = ListenPhase::Closing,
            _ => self.table.remove(id),
        }
    }

    /// RST now.
    pub fn abort(&mut self, id: SockId) -> Result<(), Errno> {
        self.tcp(id)?;
        self.close_tcp(id, |_| None);
        Ok(())
    }

    /// Gives up a connection that nobody accepted: it is reset (RFC 9293 3.10.4, and Linux).
    pub(crate) fn abort_queued(&mut self, id: SockId) {
        self.close_tcp(id, |_| None);
    }

    fn close_tcp(&mut self, id: SockId, mode: impl FnOnce(&Tcp) -> Option<CloseMode>) {
        if !self.queries.is_empty() {
            self.queries.retain(|q| q.sock != id);
        }
        let Sockets { table, side, .. } = self;
        let Some(t) = table.tcp(id) else { return };
        let mode = mode(t);
        if !t.rx.is_empty() {
            core::mem::take(&mut t.rx).free(side);
        }
        let (conn, watch) = (t.conn, t.watch.take());
        if t.phase == Phase::Asked {
            // `Opened` will come and name what is to be closed.
            t.phase = Phase::Abandoned;
            if mode.is_none() {
                t.cold.get_or_insert_default().linger = Some(Linger { timeout: Duration::ZERO });
            }
            return self.unregister(watch);
        }
        if mode == Some(CloseMode::Report) {
            t.phase = Phase::Lingering;
        } else {
            table.remove(id);
            self.unname(conn, id);
        }
        self.unregister(watch);
        if conn.0 != NONE {
            self.end(conn, mode);
        }
    }

    /// The stack has named a connection whose socket was closed before.
    pub(crate) fn end_abandoned(&mut self, id: SockId, conn: ConnId) {
        let mode = self.table.tcp(id).and_then(|t| mode(t));
        self.table.remove(id);
        self.end(conn, mode);
    }

    fn end(&mut self, conn: ConnId, mode: Option<CloseMode>) {
        self.job(match mode {
            Some(mode) => Job::Close { conn, mode },
            None => Job::Abort { conn },
        });
    }

    /// A socket whose connect failed, or is given up, is a fresh one again (Linux's tcp_disconnect).
    pub(crate) fn disconnect(&mut self, id: SockId) {
        let Sockets { table, side, .. } = self;
        let Some(t) = table.tcp(id) else { return };
        let conn = core::mem::replace(&mut t.conn, ConnId(NONE));
        core::mem::take(&mut t.rx).free(side);
        t.reset_to_fresh();
        if conn.0 != NONE {
            self.unname(conn, id);
            self.end(conn, Some(CloseMode::Graceful));
        }
    }

    /// How a lingering close ended; `None` while it waits. The number is free after an answer.
    pub fn linger_result(&mut self, id: SockId) -> Option<Result<(), Errno>> {
        let Some(t) = self.table.tcp(id) else { return Some(Ok(())) };
        match t.phase {
            Phase::Lingering => None,
            Phase::Lingered => {
                let end = t.error.map_or(Ok(()), |failure| Err(failure.into()));
                self.table.remove(id);
                Some(end)
            }
            Phase::Fresh
            | Phase::Asked
            | Phase::Opening
            | Phase::Open
            | Phase::Failed
            | Phase::Abandoned
            | Phase::Releasing
            | Phase::Released => Some(Ok(())),
        }
    }

    /// Stops waiting for a lingering close: it goes on in the background.
    pub fn linger_give_up(&mut self, id: SockId) {
        let Some(t) = self.table.tcp(id) else { return };
        if matches!(t.phase, Phase::Lingering | Phase::Lingered) {
            let conn = t.conn;
            self.table.remove(id);
            self.unname(conn, id);
        }
    }
}
