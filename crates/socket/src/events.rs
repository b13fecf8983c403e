//! What the stack says, taken in batches.

use mem::Chain;
use protocol::{ConnId, Endpoint, Event, Job, ListenerId};
use tcp::TcpInfo;

use crate::epoll::ANY;
use crate::readiness::bits;
use crate::sockets::{NONE, Sockets};
use crate::table::{ListenPhase, Phase, SockId, Socket, Tcp, flag};

/// So many sockets stay in the caches by themselves.
const FEW: usize = 2048;
/// Events by which reading goes ahead.
const AHEAD: u32 = 4;
/// Numbers above are no stack's; an index by number stays affordable.
const MOST: usize = 1 << 26;

/// Makes `table[at]` `id`; `false` for a number out of reason.
pub(crate) fn set(table: &mut Vec<u32>, at: u32, id: SockId) -> bool {
    let at = at as usize;
    if at >= MOST {
        return false;
    }
    if table.len() <= at {
        table.resize(at + 1, NONE);
    }
    table[at] = id.0;
    true
}

impl Sockets {
    /// Takes every event that waits; how many there were.
    pub fn process(&mut self) -> usize {
        let mut n = 0;
        let many = self.table.len() > FEW;
        while let Some(message) = self.events.pop() {
            n += 1;
            if many {
                self.read_ahead();
            }
            match Event::from_message(message) {
                Ok(event) => self.take(event),
                Err(chain) => {
                    chain.free(&mut self.side);
                    self.counters.undecodable += 1;
                }
            }
        }
        if n > 0 {
            self.events.release();
        }
        self.follow_share();
        if !self.starved.is_empty() && !self.backlogged() && self.side.has_free() {
            self.feed_starved();
        }
        if self.tight && !self.low.is_empty() {
            self.wake_low();
        }
        self.check_in_turn();
        n
    }

    /// The sockets of events to come are on their way while earlier ones are taken.
    fn read_ahead(&self) {
        let conn = |ahead: u32| self.events.peek(ahead).map(|m| Event::subject(m).0 as usize);
        if let Some(slot) = conn(2 * AHEAD).and_then(|conn| self.by_conn.get(conn)) {
            mem::prefetch::read(slot);
        }
        if let Some(id) = conn(AHEAD).and_then(|conn| self.by_conn.get(conn)) {
            self.table.prefetch(SockId(*id));
        }
    }

    /// The descriptor of a connection.
    pub(crate) fn sock(&mut self, conn: ConnId) -> Option<SockId> {
        match self.by_conn.get(conn.0 as usize) {
            Some(id) if *id != NONE => Some(SockId(*id)),
            _ => {
                // Closed here while the event was on its way.
                self.counters.late += 1;
                None
            }
        }
    }

    /// The connection's number is the stack's again.
    pub(crate) fn unname(&mut self, conn: ConnId, id: SockId) {
        if let Some(slot) = self.by_conn.get_mut(conn.0 as usize).filter(|slot| **slot == id.0) {
            *slot = NONE;
        }
    }

    /// Changes a connection's socket; `keys` says who is to hear of it.
    fn on_tcp(&mut self, conn: ConnId, keys: u32, f: impl FnOnce(&mut Tcp)) {
        let Some(id) = self.sock(conn) else { return };
        if let Some(t) = self.table.tcp(id) {
            f(t);
            self.epolls.wake(&mut t.watch, id, keys);
        }
    }

    // Decoding and this become one: an event is never put together.
    #[inline(always)]
    fn take(&mut self, event: Event) {
        match event {
            Event::Accepted { listener, conn, local, remote, chain } => {
                self.accepted(listener, conn, local, remote, chain);
            }
            Event::Opened { token, conn, local } => {
                let id = SockId(token.0);
                let phase = self.table.tcp(id).map(|t| t.phase);
                match phase {
                    Some(Phase::Abandoned) => self.end_abandoned(id, conn),
                    Some(Phase::Asked) if set(&mut self.by_conn, conn.0, id) => {
                        if let Some(t) = self.table.tcp(id) {
                            t.phase = Phase::Opening;
                            t.conn = conn;
                            self.locals.set(t, local);
                        }
                        self.send_late(id);
                    }
                    _ => {
                        self.counters.unasked += 1;
                        self.job(Job::Abort { conn });
                    }
                }
            }
            Event::Listening { token, listener, port } => {
                let id = SockId(token.0);
                let closing = match self.table.listener(id).map(|l| &l.phase) {
                    Some(ListenPhase::Asked) if set(&mut self.by_listener, listener.0, id) => {
                        if let Some(l) = self.table.listener(id) {
                            l.phase = ListenPhase::Open(listener);
                            l.local.port = port;
                        }
                        self.relisten(id, listener);
                        return;
                    }
                    Some(ListenPhase::Closing) => true,
                    _ => false,
                };
                if closing {
                    self.table.remove(id);
                } else {
                    self.counters.unasked += 1;
                }
                self.job(Job::CloseListener { listener });
            }
            Event::Refused { token, failure } => {
                let id = SockId(token.0);
                match self.table.get_mut(id) {
                    Some(Socket::Tcp(t)) if t.phase == Phase::Asked => {
                        t.phase = Phase::Failed;
                        t.fail(failure);
                        self.mark(id, ANY);
                    }
                    Some(Socket::Listener(l)) if matches!(l.phase, ListenPhase::Asked) => {
                        l.phase = ListenPhase::Failed(failure);
                        self.mark(id, ANY);
                    }
                    // Closed meanwhile: the number was kept for this answer.
                    Some(Socket::Tcp(t)) if t.phase == Phase::Abandoned => {
                        self.table.remove(id);
                    }
                    Some(Socket::Listener(l)) if matches!(l.phase, ListenPhase::Closing) => {
                        self.table.remove(id);
                    }
                    Some(Socket::Tcp(_) | Socket::Listener(_) | Socket::Pipe(_) | Socket::Epoll(_)) | None => {
                        self.counters.unasked += 1
                    }
                }
            }
            Event::Connected { conn } => self.on_tcp(conn, ANY, |t| {
                if t.phase == Phase::Opening {
                    t.phase = Phase::Open;
                    t.set(flag::NO_SPACE, false);
                }
            }),
            Event::Data { conn, chain, fin } => {
                let id = self.sock(conn);
                let Sockets { table, side, epolls, .. } = self;
                let Some((id, t)) = id.and_then(|id| Some((id, table.tcp(id)?))) else { return chain.free(side) };
                if t.phase == Phase::Lingering {
                    chain.free(side);
                } else {
                    if let Some(cold) = &mut t.cold {
                        cold.low_is_off &= !t.rx.is_empty();
                    }
                    t.rx.append(side, chain);
                }
                if fin {
                    t.set(flag::FIN, true);
                    epolls.wake(&mut t.watch, id, ANY);
                } else if t.readable() {
                    epolls.wake(&mut t.watch, id, bits::IN);
                } else {
                    self.note_low(id);
                }
            }
            Event::Fin { conn } => self.on_tcp(conn, ANY, |t| t.set(flag::FIN, true)),
            Event::Acked { conn, bytes } => {
                let Some(id) = self.sock(conn) else { return };
                if let Some(t) = self.table.tcp(id) {
                    t.in_flight = t.in_flight.saturating_sub(bytes);
                    self.mark_space(id);
                }
            }
            Event::Room { conn, bytes } => {
                let Some(id) = self.sock(conn) else { return };
                if let Some(t) = self.table.tcp(id) {
                    t.send_buffer = t.send_buffer.max(bytes);
                    self.mark_space(id);
                }
            }
            Event::Sent { conn, total, burst } => {
                let Some(id) = self.sock(conn) else { return };
                if let Some(t) = self.table.tcp(id) {
                    if let Some(cold) = &mut t.cold {
                        (cold.sent, cold.burst) = (total, burst);
                    }
                    self.mark_space(id);
                }
            }
            Event::Urgent { conn, beyond } => self.on_tcp(conn, bits::PRI, |t| t.urgent_at(beyond)),
            Event::Failed { conn, failure } => {
                let Some(id) = self.sock(conn) else { return };
                let Some(t) = self.table.tcp(id) else { return };
                t.fail(failure);
                match t.phase {
                    Phase::Opening => t.phase = Phase::Failed,
                    Phase::Lingering => {
                        t.phase = Phase::Lingered;
                        // `Closed` will say nothing new.
                        self.unname(conn, id);
                    }
                    _ => {}
                }
                self.mark(id, ANY);
            }
            Event::Closed { conn, failure } => {
                let Some(id) = self.sock(conn) else { return };
                match self.table.tcp(id) {
                    Some(t) if t.phase == Phase::Lingering => {
                        t.phase = Phase::Lingered;
                        if let Some(failure) = failure {
                            t.fail(failure);
                        }
                        self.unname(conn, id);
                    }
                    _ => self.counters.unasked += 1,
                }
            }
            Event::Released { conn } => self.on_released(conn),
            Event::Info { token, mut chain, .. } => {
                let mut bytes = [0; TcpInfo::BYTES];
                let n = chain.read(&mut self.side, &mut bytes);
                chain.free(&mut self.side);
                // The socket may be closed, and nobody waits any more.
                match self.queries.iter_mut().find(|q| q.token == token) {
                    Some(q) => q.answer = Some(TcpInfo::from_bytes(&bytes[..n])),
                    None => self.counters.late += 1,
                }
            }
        }
    }

    fn accepted(&mut self, listener: ListenerId, conn: ConnId, local: Endpoint, remote: Endpoint, chain: Chain) {
        let Some((id, l)) = self.listener_of(listener).and_then(|id| Some((id, self.table.listener(id)?))) else {
            // The listener was closed meanwhile: what nobody accepted is reset.
            chain.free(&mut self.side);
            self.counters.late += 1;
            self.job(Job::Abort { conn });
            return;
        };
        let (flags, cold) = (l.flags & flag::INHERITED, l.cold.clone());
        let (send_buffer, receive_buffer, resized) = (l.send_buffer, l.receive_buffer, l.resized);
        let may_be_low = cold.is_some();
        let mut t = self.fresh(false);
        (t.phase, t.conn, t.cold, t.rx) = (Phase::Open, conn, cold, chain);
        t.flags = flags | flag::QUEUED | flag::BOUND;
        (t.send_buffer, t.receive_buffer) = (send_buffer, receive_buffer);
        self.locals.set(&mut t, local);
        t.set_remote(remote);
        let new = self.table.insert_queued(t);
        if !set(&mut self.by_conn, conn.0, new) {
            if let Some(t) = self.table.tcp(new) {
                core::mem::take(&mut t.rx).free(&mut self.side);
            }
            self.counters.unasked += 1;
            self.table.remove(new);
            self.job(Job::Abort { conn });
            return;
        }
        if let Some(l) = self.table.listener(id) {
            l.queue.push_back(new);
        }
        if resized {
            self.resize(conn, new);
        }
        if may_be_low {
            self.note_low(new);
        }
        self.mark(id, bits::IN);
    }
}
