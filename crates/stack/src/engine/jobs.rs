//! The application's wishes (mTCP 3.2: job queues drained once a turn).

use tcp::{State, Tcb, TcpInfo};
use wire::Instant;

use crate::clients::{FIRST, Jobs};
use crate::conns::Conns;
use crate::conns::conn::{Conn, Stage};
use crate::conns::options::apply;
use crate::counters::DropReason;
use crate::demux::listener::Listener;
use crate::engine::{Stack, context};
use crate::names::SeatId;
use protocol::{CloseMode, ConnId, Event, Job, ListenerId};

impl Stack {
    /// Does every job that waits; how many there were.
    pub fn run_jobs(&mut self, now: Instant) -> usize {
        self.conns.now = now;
        let mut done = self.run_jobs_of(now, FIRST);
        let mut n = 0;
        while let Some(seat) = self.clients.polled(n) {
            done += self.run_jobs_of(now, seat);
            // One that was ended is no longer there.
            n += (self.clients.polled(n) == Some(seat)) as usize;
        }
        if done > 0 {
            self.counters.jobs += done as u64;
            self.link.ask(&mut self.counters);
        }
        done
    }

    fn run_jobs_of(&mut self, now: Instant, seat: SeatId) -> usize {
        let Some(mut all) = self.clients.seat(seat).take_jobs() else { return 0 };
        let jobs = match &mut all {
            Jobs::Own(jobs) => jobs,
            Jobs::Foreign(jobs) => {
                let done = self.run_foreign(now, seat, jobs);
                self.clients.seat(seat).put_jobs(all);
                return done;
            }
        };
        // What arrives while this runs is the next turn's.
        let waiting = jobs.len();
        // Jobs for one connection come in a row, and are settled together.
        let mut unsettled = None;
        for _ in 0..waiting {
            let Some(message) = jobs.pop() else { break };
            match Job::from_message(message) {
                Ok(job) => {
                    let conn = job.conn();
                    if conn != unsettled
                        && let Some(before) = core::mem::replace(&mut unsettled, conn)
                    {
                        self.settle(now, before.0);
                    }
                    self.run(now, seat, job);
                }
                Err(chain) => {
                    self.free_chain(seat, chain);
                    self.counters.drop(DropReason::BadJob);
                }
            }
        }
        if let Some(last) = unsettled {
            self.settle(now, last.0);
        }
        self.clients.seat(seat).put_jobs(all);
        waiting
    }

    /// Bytes that a seat has sent and nobody takes.
    #[cold]
    fn free_chain(&mut self, seat: SeatId, chain: mem::Chain) {
        let client = self.clients.seat(seat).client;
        chain.free(self.clients.side(client));
    }

    /// Does one job; a connection that it names is to be settled after it. With decoding it becomes one: a job is never put together.
    #[inline(always)]
    pub(super) fn run(&mut self, now: Instant, seat: SeatId, job: Job) {
        match job {
            Job::Connect { token, local, remote, receive_buffer } => {
                if let Err(failure) = self.connect(now, seat, token, local, remote, receive_buffer) {
                    self.counters.failed_opens += 1;
                    self.clients.answer(seat, Event::Refused { token, failure });
                }
            }
            Job::Listen { token, local, backlog, v6_only, reuse_port, receive_buffer } => {
                let own = self.clients.seat(seat);
                own.ending = false;
                let listener = Listener {
                    seat,
                    local,
                    backlog: backlog.max(1),
                    v6_only,
                    reuse_port,
                    receive_buffer,
                    options: core::mem::take(&mut own.prepared),
                    embryos: 0,
                    ready: 0,
                    overflowed: None,
                    offered: Default::default(),
                };
                self.listen(token, listener);
            }
            Job::Taken { listener, count } => match self.listener_of(listener, seat) {
                Some(l) => {
                    l.ready = l.ready.saturating_sub(count);
                    if !l.offered.is_empty() {
                        self.taken(now, listener, count);
                    }
                }
                None => self.bad_job(now, seat),
            },
            Job::CloseListener { listener } => match self.listener_of(listener, seat) {
                Some(_) => self.close_listener(now, listener),
                None => self.bad_job(now, seat),
            },
            Job::Write { conn, chain, more, close } => {
                let Some(c) = owned(&mut self.conns, conn, seat) else {
                    self.free_chain(seat, chain);
                    return self.bad_job(now, seat);
                };
                let mut cx = context!(self, now, c.pool);
                c.tcb.write(chain, more, &mut cx);
                if close {
                    self.close(now, conn, seat, CloseMode::Graceful);
                }
            }
            Job::Consumed { conn, bytes } => self.on_conn(now, conn, seat, |tcb, cx| tcb.consumed(bytes, cx)),
            Job::Shutdown { conn } => self.on_conn(now, conn, seat, |tcb, cx| tcb.shutdown(cx)),
            Job::Close { conn, mode } => self.close(now, conn, seat, mode),
            Job::Abort { conn } => {
                if let Some(c) = owned(&mut self.conns, conn, seat) {
                    c.stage = Stage::Closed;
                    let mut cx = context!(self, now, c.pool);
                    c.tcb.abort(&mut cx);
                } else {
                    self.bad_job(now, seat);
                }
            }
            Job::SetOption { conn, option, value } => match owned(&mut self.conns, conn, seat) {
                Some(c) => {
                    let mut cx = context!(self, now, c.pool);
                    apply(c, option, value, &mut cx);
                }
                None => self.bad_job(now, seat),
            },
            Job::Prepare { option, value } => self.clients.seat(seat).prepared.set(option, value),
            Job::SetListenerOption { listener, option, value } => match self.listener_of(listener, seat) {
                Some(l) => l.options.set(option, value),
                None => self.bad_job(now, seat),
            },
            Job::SetBacklog { listener, backlog } => match self.listener_of(listener, seat) {
                Some(l) => l.backlog = backlog.max(1),
                None => self.bad_job(now, seat),
            },
            Job::Urgent { conn, bytes } => self.on_conn(now, conn, seat, |tcb, _| tcb.write_urgent(bytes)),
            Job::EndRecord { conn } => self.on_conn(now, conn, seat, |tcb, _| tcb.end_record()),
            Job::Ending => self.clients.seat(seat).ending = true,
            Job::Release { conn } => match owned(&mut self.conns, conn, seat) {
                Some(c) => {
                    c.stage = Stage::Between;
                    self.clients.answer(seat, Event::Released { conn });
                }
                None => self.bad_job(now, seat),
            },
            Job::Take { conn } => self.take(now, conn, seat),
            Job::TellAcked { conn } => self.on_conn(now, conn, seat, |tcb, _| tcb.tell_acked()),
            Job::Query { conn, token } => {
                let info = owned(&mut self.conns, conn, seat).map(|c| c.tcb.info(now, &self.config.tcp));
                let mut chain = mem::Chain::default();
                if let Some(info) = info {
                    let bytes: [u8; TcpInfo::BYTES] = info.to_bytes();
                    let client = self.clients.seat(seat).client;
                    let side = self.clients.side(client);
                    if chain.push_slice(side, &bytes) < bytes.len() {
                        chain.free(side);
                        chain = mem::Chain::default();
                    }
                }
                self.clients.answer(seat, Event::Info { conn, token, chain });
            }
        }
    }

    /// The application is done with a connection.
    #[inline]
    pub(super) fn close(&mut self, now: Instant, conn: ConnId, seat: SeatId, mode: CloseMode) {
        let full = self.orphans >= self.config.max_orphans && !self.clients.seat(seat).ending;
        if let Some(c) = owned(&mut self.conns, conn, seat) {
            c.stage = match mode {
                CloseMode::Report => Stage::Lingering,
                CloseMode::Graceful | CloseMode::Unread => Stage::Closed,
            };
            let mut cx = context!(self, now, c.pool);
            c.tcb.close(mode == CloseMode::Unread, &mut cx);
            let over = matches!(c.tcb.state(), State::Closed | State::TimeWait);
            if full && !over {
                // Linux's tcp_max_orphans: nobody is left whom a queue of these would serve.
                self.counters.orphans_reset += 1;
                c.tcb.abort(&mut cx);
            } else {
                c.orphan = true;
                self.orphans += 1;
            }
        } else {
            self.bad_job(now, seat);
        }
    }

    /// Another thread of the client that a connection belongs to has it from now on.
    #[cold]
    fn take(&mut self, now: Instant, conn: ConnId, seat: SeatId) {
        let client = self.clients.client_of(seat);
        match self.conns.get_mut(conn.0) {
            Some(c) if c.stage == Stage::Between && self.clients.client_of(c.seat) == client => {
                (c.stage, c.seat) = (Stage::Owned, seat);
            }
            _ => self.bad_job(now, seat),
        }
    }

    /// A listener that a seat may name.
    fn listener_of(&mut self, listener: ListenerId, seat: SeatId) -> Option<&mut Listener> {
        self.demux.listeners.get(listener.0).filter(|l| l.seat == seat)
    }

    fn on_conn(&mut self, now: Instant, conn: ConnId, seat: SeatId, f: impl FnOnce(&mut Tcb, &mut tcp::Context)) {
        match owned(&mut self.conns, conn, seat) {
            Some(c) => {
                let mut cx = context!(self, now, c.pool);
                f(&mut c.tcb, &mut cx);
            }
            None => self.bad_job(now, seat),
        }
    }
}

/// A connection that a seat may name.
fn owned(conns: &mut Conns, conn: ConnId, seat: SeatId) -> Option<&mut Conn> {
    conns.get_mut(conn.0).filter(|c| matches!(c.stage, Stage::Owned | Stage::Between) && c.seat == seat)
}
