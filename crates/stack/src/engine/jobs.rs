//! The application's wishes (mTCP 3.2: job queues drained once a turn).

use tcp::{State, Tcb, TcpInfo};
use wire::Instant;

use crate::conns::Conns;
use crate::conns::conn::{Conn, Stage};
use crate::conns::options::apply;
use crate::counters::DropReason;
use crate::demux::listener::Listener;
use crate::engine::{Stack, context};
use protocol::{CloseMode, ConnId, Event, Job};

impl Stack {
    /// Does every job that waits; how many there were.
    pub fn run_jobs(&mut self, now: Instant) -> usize {
        self.conns.now = now;
        // What arrives while this runs is the next turn's.
        let waiting = self.jobs.len();
        // Jobs for one connection come in a row, and are settled together.
        let mut unsettled = None;
        for _ in 0..waiting {
            let Some(message) = self.jobs.pop() else { break };
            match Job::from_message(message) {
                Ok(job) => {
                    let conn = job.conn();
                    if conn != unsettled
                        && let Some(before) = core::mem::replace(&mut unsettled, conn)
                    {
                        self.settle(now, before.0);
                    }
                    self.run(now, job);
                }
                Err(chain) => {
                    chain.free(&mut self.pool);
                    self.counters.drop(DropReason::BadJob);
                }
            }
        }
        if let Some(last) = unsettled {
            self.settle(now, last.0);
        }
        if waiting > 0 {
            self.jobs.release();
            self.counters.jobs += waiting as u64;
            self.link.ask(&mut self.counters);
        }
        waiting
    }

    /// Does one job; a connection that it names is to be settled after it. With decoding it becomes one: a job is never put together.
    #[inline(always)]
    fn run(&mut self, now: Instant, job: Job) {
        match job {
            Job::Connect { token, local, remote, receive_buffer } => {
                self.ending.ending = false;
                let options = core::mem::take(&mut self.prepared);
                if let Err(failure) = self.connect(now, token, local, remote, receive_buffer, options) {
                    self.counters.failed_opens += 1;
                    self.answers.push_back(Event::Refused { token, failure });
                }
            }
            Job::Listen { token, local, backlog, v6_only, reuse_port, receive_buffer } => {
                self.ending.ending = false;
                let listener = Listener {
                    local,
                    backlog: backlog.max(1),
                    v6_only,
                    reuse_port,
                    receive_buffer,
                    options: core::mem::take(&mut self.prepared),
                    embryos: 0,
                    ready: 0,
                };
                self.listen(token, listener);
            }
            Job::Taken { listener, count } => {
                if let Some(l) = self.demux.listeners.get(listener.0) {
                    l.ready = l.ready.saturating_sub(count);
                }
            }
            Job::CloseListener { listener } => self.close_listener(now, listener),
            Job::Write { conn, chain, more, close } => {
                let Some(c) = owned(&mut self.conns, conn) else {
                    chain.free(&mut self.pool);
                    self.counters.drop(DropReason::BadJob);
                    return;
                };
                let mut cx = context!(self, now);
                c.tcb.write(chain, more, &mut cx);
                if close {
                    self.close(now, conn, CloseMode::Graceful);
                }
            }
            Job::Consumed { conn, bytes } => self.on_conn(now, conn, |tcb, cx| tcb.consumed(bytes, cx)),
            Job::Shutdown { conn } => self.on_conn(now, conn, |tcb, cx| tcb.shutdown(cx)),
            Job::Close { conn, mode } => self.close(now, conn, mode),
            Job::Abort { conn } => {
                if let Some(c) = owned(&mut self.conns, conn) {
                    c.stage = Stage::Released;
                    let mut cx = context!(self, now);
                    c.tcb.abort(&mut cx);
                } else {
                    self.counters.drop(DropReason::BadJob);
                }
            }
            Job::SetOption { conn, option, value } => match owned(&mut self.conns, conn) {
                Some(c) => {
                    let mut cx = context!(self, now);
                    apply(c, option, value, &mut cx);
                }
                None => self.counters.drop(DropReason::BadJob),
            },
            Job::Prepare { option, value } => self.prepared.set(option, value),
            Job::SetListenerOption { listener, option, value } => match self.demux.listeners.get(listener.0) {
                Some(l) => l.options.set(option, value),
                None => self.counters.drop(DropReason::BadJob),
            },
            Job::SetBacklog { listener, backlog } => match self.demux.listeners.get(listener.0) {
                Some(l) => l.backlog = backlog.max(1),
                None => self.counters.drop(DropReason::BadJob),
            },
            Job::Urgent { conn, bytes } => self.on_conn(now, conn, |tcb, _| tcb.write_urgent(bytes)),
            Job::EndRecord { conn } => self.on_conn(now, conn, |tcb, _| tcb.end_record()),
            Job::Ending => self.ending.ending = true,
            Job::TellAcked { conn } => self.on_conn(now, conn, |tcb, _| tcb.tell_acked()),
            Job::Query { conn, token } => {
                let info = owned(&mut self.conns, conn).map(|c| c.tcb.info(now, &self.config.tcp));
                let mut chain = mem::Chain::default();
                if let Some(info) = info {
                    let bytes: [u8; TcpInfo::BYTES] = info.to_bytes();
                    if chain.push_slice(&mut self.pool, &bytes) < bytes.len() {
                        chain.free(&mut self.pool);
                        chain = mem::Chain::default();
                    }
                }
                self.answers.push_back(Event::Info { conn, token, chain });
            }
        }
    }

    /// The application is done with a connection.
    #[inline]
    pub(super) fn close(&mut self, now: Instant, conn: ConnId, mode: CloseMode) {
        let full = self.orphans >= self.config.max_orphans && !self.ending.ending;
        if let Some(c) = owned(&mut self.conns, conn) {
            c.stage = match mode {
                CloseMode::Report => Stage::Lingering,
                CloseMode::Graceful | CloseMode::Unread => Stage::Released,
            };
            let mut cx = context!(self, now);
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
            self.counters.drop(DropReason::BadJob);
        }
    }

    fn on_conn(&mut self, now: Instant, conn: ConnId, f: impl FnOnce(&mut Tcb, &mut tcp::Context)) {
        match owned(&mut self.conns, conn) {
            Some(c) => {
                let mut cx = context!(self, now);
                f(&mut c.tcb, &mut cx);
            }
            None => self.counters.drop(DropReason::BadJob),
        }
    }
}

/// A connection that the application may name.
fn owned(conns: &mut Conns, conn: ConnId) -> Option<&mut Conn> {
    conns.get_mut(conn.0).filter(|c| c.stage == Stage::Owned)
}
