//! What the stack says, taken in batches.

use stack::channel::{ConnId, Event, Job};
use tcp::TcpInfo;

use crate::sockets::{NONE, Sockets};
use crate::table::{ListenPhase, Phase, SockId, Socket, Tcp, flag};

impl Sockets {
    /// Takes every event that waits; how many there were.
    pub fn process(&mut self) -> usize {
        let mut n = 0;
        while let Some(message) = self.events.pop() {
            n += 1;
            match Event::from_message(message) {
                Ok(event) => self.take(event),
                Err(chain) => {
                    chain.free(&mut self.side);
                    self.stray += 1;
                }
            }
        }
        if n > 0 {
            self.events.release();
        }
        if !self.starved.is_empty() && self.side.has_free() {
            for id in core::mem::take(&mut self.starved) {
                if let Some(t) = self.table.tcp(id) {
                    t.set(flag::STARVED, false);
                    self.mark(id);
                }
            }
        }
        n
    }

    /// The descriptor of a connection.
    fn sock(&self, conn: ConnId) -> Option<SockId> {
        self.by_conn.get(conn.0 as usize).copied().filter(|id| *id != NONE).map(SockId)
    }

    fn name(&mut self, conn: ConnId, id: SockId) {
        let at = conn.0 as usize;
        if self.by_conn.len() <= at {
            self.by_conn.resize(at + 1, NONE);
        }
        self.by_conn[at] = id.0;
    }

    fn on_tcp(&mut self, conn: ConnId, f: impl FnOnce(&mut Tcp)) {
        let Some(id) = self.sock(conn) else {
            // Closed here while the event was on its way.
            self.stray += 1;
            return;
        };
        if let Some(t) = self.table.tcp(id) {
            f(t);
            self.mark(id);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Accepted { listener, conn, local, remote } => {
                let id = self.by_listener.get(listener.0 as usize).copied().filter(|id| *id != NONE).map(SockId);
                let Some(l) = id.and_then(|id| self.table.listener(id)) else {
                    // The listener was closed meanwhile.
                    self.job(Job::Abort { conn });
                    return;
                };
                let inherited = l.flags & (flag::NO_DELAY | flag::CORK | flag::KEEPALIVE);
                let cold = l.cold.clone();
                let (send_buffer, receive_buffer) = (l.send_buffer, l.receive_buffer);
                let v6 = if remote.addr.is_v4() { 0 } else { flag::V6 };
                let tcp = Tcp {
                    phase: Phase::Open,
                    error: None,
                    flags: inherited | flag::QUEUED | flag::BOUND | v6,
                    conn,
                    rx: mem::Chain::default(),
                    unreported: 0,
                    in_flight: 0,
                    send_buffer,
                    receive_buffer,
                    local,
                    remote,
                    watch: None,
                    cold,
                };
                let (Some(new), Some(id)) = (self.table.insert(Socket::Tcp(tcp)), id) else {
                    // Out of descriptors: EMFILE has nobody to go to.
                    self.job(Job::Abort { conn });
                    self.job(Job::Taken { listener, count: 1 });
                    self.stray += 1;
                    return;
                };
                self.name(conn, new);
                if inherited != 0 || self.table.tcp(new).is_some_and(|t| t.cold.is_some()) {
                    let cold = self.table.tcp(new).and_then(|t| t.cold.clone());
                    self.send_options(conn, inherited, cold.as_deref());
                }
                if let Some(l) = self.table.listener(id) {
                    l.queue.push_back(new);
                }
                self.mark(id);
            }
            Event::Opened { token, conn, local } => {
                let id = SockId(token.0);
                let Some(t) = self.table.tcp(id).filter(|t| matches!(t.phase, Phase::Asked | Phase::Closing)) else {
                    self.job(Job::Abort { conn });
                    self.stray += 1;
                    return;
                };
                if t.phase == Phase::Closing {
                    self.table.remove(id);
                    self.job(Job::Abort { conn });
                    return;
                }
                t.phase = Phase::Opening;
                t.conn = conn;
                t.local = local;
                let flags = t.flags;
                let cold = t.cold.clone();
                self.name(conn, id);
                self.send_options(conn, flags, cold.as_deref());
            }
            Event::Listening { token, listener, port } => {
                let id = SockId(token.0);
                let Some(l) = self.table.listener(id) else {
                    self.job(Job::CloseListener { listener });
                    return;
                };
                if matches!(l.phase, ListenPhase::Closing) {
                    self.table.remove(id);
                    self.job(Job::CloseListener { listener });
                    return;
                }
                l.phase = ListenPhase::Open(listener);
                l.local.port = port;
                let at = listener.0 as usize;
                if self.by_listener.len() <= at {
                    self.by_listener.resize(at + 1, NONE);
                }
                self.by_listener[at] = id.0;
            }
            Event::Refused { token, failure } => {
                let id = SockId(token.0);
                let over = match self.table.get_mut(id) {
                    Some(Socket::Tcp(t)) if t.phase == Phase::Closing => true,
                    Some(Socket::Tcp(t)) => {
                        t.phase = Phase::Failed;
                        t.error = Some(failure);
                        t.set(flag::ERROR_NEW, true);
                        false
                    }
                    Some(Socket::Listener(l)) => {
                        let closing = matches!(l.phase, ListenPhase::Closing);
                        l.phase = ListenPhase::Failed(failure);
                        closing
                    }
                    Some(Socket::Epoll(_)) | None => {
                        self.stray += 1;
                        return;
                    }
                };
                if over {
                    self.table.remove(id);
                } else {
                    self.mark(id);
                }
            }
            Event::Connected { conn } => self.on_tcp(conn, |t| {
                if t.phase == Phase::Opening {
                    t.phase = Phase::Open;
                }
            }),
            Event::Data { conn, chain } => {
                let Some(id) = self.sock(conn) else {
                    chain.free(&mut self.side);
                    self.stray += 1;
                    return;
                };
                match self.table.tcp(id) {
                    Some(t) if t.is(flag::SHUT_READ) || t.phase == Phase::Closing => {
                        // shutdown(SHUT_RD): what still comes is thrown away and counts as read.
                        t.unreported += chain.len() as u32;
                        chain.free(&mut self.side);
                        self.report_consumed(id);
                    }
                    Some(t) => {
                        t.rx.append(&mut self.side, chain);
                        self.mark(id);
                    }
                    None => chain.free(&mut self.side),
                }
            }
            Event::Fin { conn } => self.on_tcp(conn, |t| {
                // A lingering socket uses the bit for its own end.
                if t.phase != Phase::Closing {
                    t.set(flag::FIN, true);
                }
            }),
            Event::Acked { conn, bytes } => self.on_tcp(conn, |t| t.in_flight = t.in_flight.saturating_sub(bytes)),
            Event::Failed { conn, failure } => self.on_tcp(conn, |t| {
                t.error = Some(failure);
                t.set(flag::ERROR_NEW, true);
                if t.phase == Phase::Opening {
                    t.phase = Phase::Failed;
                }
            }),
            Event::Closed { conn, failure } => {
                let id = self.sock(conn);
                if let Some(slot) = self.by_conn.get_mut(conn.0 as usize) {
                    *slot = NONE;
                }
                if let Some(t) = id.and_then(|id| self.table.tcp(id)) {
                    t.error = failure;
                    t.set(flag::FIN, true);
                }
            }
            Event::Info { token, mut chain, .. } => {
                let mut bytes = [0; TcpInfo::BYTES];
                let n = chain.read(&mut self.side, &mut bytes);
                chain.free(&mut self.side);
                self.infos.push((token, TcpInfo::from_bytes(&bytes[..n])));
            }
        }
    }
}
