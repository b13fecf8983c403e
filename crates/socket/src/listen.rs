//! Listeners and their accept queues.

use std::collections::VecDeque;

use protocol::{ConnOption, Endpoint, Job, ListenerId, Token};

use crate::epoll::ANY;
use crate::errno::Errno;
use crate::options::FLAGGED;
use crate::sockets::{NONE, Sockets};
use crate::table::{ListenPhase, Listening, Phase, SockId, Socket, flag};

/// What `listen` may ask for.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Most connections that wait to be accepted.
    pub backlog: u32,
}

impl Sockets {
    /// listen: asks the stack; [`Sockets::listen_result`] tells. Without `bind` the stack chooses the port. After a failure
    /// it may be tried again; on an open listener it changes the backlog.
    pub fn listen(&mut self, id: SockId, options: ListenOptions) -> Result<(), Errno> {
        let backlog = options.backlog.max(1);
        match self.table.open_mut(id)? {
            Socket::Pipe(_) | Socket::Epoll(_) => return Err(Errno::ENOTSOCK),
            Socket::Listener(l) => match l.phase {
                ListenPhase::Failed(_) => (l.phase, l.backlog) = (ListenPhase::Asked, backlog),
                ListenPhase::Open(listener) => {
                    l.backlog = backlog;
                    self.job(Job::SetBacklog { listener, backlog });
                    return Ok(());
                }
                ListenPhase::Asked => {
                    l.backlog = backlog;
                    l.cold.get_or_insert_default().late = true;
                    return Ok(());
                }
                ListenPhase::Closing => return Ok(()),
            },
            socket => {
                let Socket::Tcp(t) = socket else { return Err(Errno::ENOTSOCK) };
                if t.phase != Phase::Fresh {
                    return Err(Errno::EINVAL);
                }
                let listening = Listening {
                    phase: ListenPhase::Asked,
                    local: self.locals.of(t),
                    backlog,
                    queue: VecDeque::new(),
                    taken: 0,
                    flags: t.flags,
                    send_buffer: t.send_buffer,
                    receive_buffer: t.receive_buffer,
                    resized: false,
                    cold: t.cold.take(),
                    watch: t.watch.take(),
                };
                *socket = Socket::Listener(Box::new(listening));
            }
        }
        if let Some(l) = self.table.listener(id) {
            let cold = l.cold.as_deref();
            let options = Sockets::to_tell(l.flags, cold);
            let job = Job::Listen {
                token: Token(id.0),
                local: l.local,
                backlog,
                v6_only: l.flags & flag::V6_ONLY != 0,
                reuse_port: l.flags & flag::REUSE_PORT != 0,
                receive_buffer: cold.and_then(|c| c.told(ConnOption::ReceiveBuffer)).unwrap_or(0),
            };
            self.prepare(options);
            self.job(job);
        }
        Ok(())
    }

    /// The stack has named a listener: it hears of what was changed meanwhile.
    pub(crate) fn relisten(&mut self, id: SockId, listener: ListenerId) {
        let Some(l) = self.table.listener(id) else { return };
        let Some(cold) = l.cold.as_mut().filter(|c| c.late) else { return };
        cold.late = false;
        let backlog = l.backlog;
        let mut options = cold.stack.clone();
        for (bit, option) in FLAGGED {
            options.push((option, (l.flags & bit != 0) as u32));
        }
        self.job(Job::SetBacklog { listener, backlog });
        for (option, value) in options {
            self.job(Job::SetListenerOption { listener, option, value });
        }
    }

    /// What became of `listen`; `None` while the stack has not answered.
    pub fn listen_result(&mut self, id: SockId) -> Option<Result<(), Errno>> {
        match self.table.open(id) {
            Err(e) => Some(Err(e)),
            Ok(Socket::Listener(l)) => match l.phase {
                ListenPhase::Asked => None,
                ListenPhase::Open(_) | ListenPhase::Closing => Some(Ok(())),
                ListenPhase::Failed(failure) => Some(Err(failure.into())),
            },
            Ok(Socket::Tcp(_) | Socket::Pipe(_) | Socket::Epoll(_)) => Some(Err(Errno::EINVAL)),
        }
    }

    /// accept: the oldest established connection. One that was reset since is given too; its first read tells. `EMFILE`
    /// leaves it in the queue.
    pub fn accept(&mut self, id: SockId) -> Result<(SockId, Endpoint), Errno> {
        let Sockets { table, taken: reports, counters, .. } = self;
        let first = match table.open_mut(id)? {
            Socket::Listener(l) => match l.phase {
                ListenPhase::Failed(failure) => return Err(failure.into()),
                _ => *l.queue.front().ok_or(Errno::EAGAIN)?,
            },
            Socket::Tcp(_) => return Err(Errno::EINVAL),
            Socket::Pipe(_) | Socket::Epoll(_) => return Err(Errno::ENOTSOCK),
        };
        if !table.accept(first) {
            counters.no_descriptor += 1;
            return Err(Errno::EMFILE);
        }
        if let Some(l) = table.listener(id) {
            l.queue.pop_front();
            if l.taken == 0 {
                reports.push(id);
            }
            l.taken += 1;
        }
        let t = table.tcp(first).ok_or(Errno::EAGAIN)?;
        Ok((first, t.remote()))
    }

    /// Connections that wait to be accepted.
    pub fn waiting(&mut self, id: SockId) -> Result<usize, Errno> {
        match self.table.open(id)? {
            Socket::Listener(l) => Ok(l.queue.len()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Tells the stack that accept queues have room again: one job a listener and batch.
    pub(crate) fn report_taken(&mut self) {
        let mut reports = core::mem::take(&mut self.taken);
        for id in reports.drain(..) {
            let Some(l) = self.table.listener(id) else { continue };
            let count = core::mem::take(&mut l.taken);
            if let (ListenPhase::Open(listener), 1..) = (&l.phase, count) {
                let listener = *listener;
                self.job(Job::Taken { listener, count });
            }
        }
        // The same memory next time.
        self.taken = reports;
    }

    /// What the stack calls a listener, and who it is here.
    pub(crate) fn listener_of(&self, listener: ListenerId) -> Option<SockId> {
        self.by_listener.get(listener.0 as usize).copied().filter(|id| *id != NONE).map(SockId)
    }

    /// Closes the listener in the stack, and what nobody accepted.
    pub(crate) fn stop_listening(&mut self, id: SockId) {
        self.unwatch(id);
        let Some(l) = self.table.listener(id) else { return };
        let queue = core::mem::take(&mut l.queue);
        if let ListenPhase::Open(listener) = l.phase {
            self.by_listener[listener.0 as usize] = NONE;
            self.job(Job::CloseListener { listener });
        }
        for waiting in queue {
            self.abort_queued(waiting);
        }
    }

    /// shutdown of a listener's receiving side stops it (Linux): an unconnected socket, still bound, is left.
    pub(crate) fn shut_listener(&mut self, id: SockId) -> Result<(), Errno> {
        let Some(l) = self.table.listener(id) else { return Err(Errno::ENOTCONN) };
        if !matches!(l.phase, ListenPhase::Open(_)) {
            return Err(Errno::ENOTCONN);
        }
        let watch = l.watch.take();
        let mut fresh = self.fresh(false);
        self.stop_listening(id);
        let Some(l) = self.table.listener(id) else { return Err(Errno::ENOTCONN) };
        (fresh.flags, fresh.send_buffer, fresh.receive_buffer) = (l.flags, l.send_buffer, l.receive_buffer);
        (fresh.cold, fresh.watch) = (l.cold.take(), watch);
        self.locals.set(&mut fresh, l.local);
        if let Some(socket) = self.table.get_mut(id) {
            *socket = Socket::Tcp(fresh);
        }
        self.mark(id, ANY);
        Ok(())
    }
}
