//! The application's wishes (mTCP 3.2: job queues drained once a turn).

use tcp::{Open, State, Tcb, TcpInfo};
use wire::{Addr, Instant, SeqNum};

use crate::InterfaceId;
use crate::channel::{CloseMode, ConnId, Endpoint, Event, Failure, Job, ListenerId, Token};
use crate::conn::{Birth, Conn, Stage};
use crate::counters::DropReason;
use crate::engine::{Stack, TIME_WAIT, context};
use crate::flows::FlowKey;
use crate::listener::Listener;
use crate::options::{Options, apply};
use crate::sources::Known;

/// Ports that are looked at for one whose answers come straight to its lane: one in the square of the number of lanes is such a
/// port. More looks would cost more than a hand-over does.
const LOOKS: u32 = 256;

/// The tuple of an active open.
pub(crate) struct Chosen {
    pub key: FlowKey,
    /// The key's, in the flow table.
    pub hash: u32,
    /// What the flow table has there: a TIME-WAIT record that may be used again.
    pub found: Option<u32>,
}

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
            self.ask_neighbors(now);
        }
        waiting
    }

    /// Does one job; a connection that it names is to be settled after it.
    fn run(&mut self, now: Instant, job: Job) {
        match job {
            Job::Connect { token, local, remote, receive_buffer } => {
                self.ending = false;
                let options = core::mem::take(&mut self.prepared);
                if let Err(failure) = self.connect(now, token, local, remote, receive_buffer, options) {
                    self.counters.failed_opens += 1;
                    self.answers.push_back(Event::Refused { token, failure });
                }
            }
            Job::Listen { token, local, backlog, v6_only, reuse_port, receive_buffer } => {
                self.ending = false;
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
                if let Some(l) = self.listeners.get(listener.0) {
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
            Job::SetListenerOption { listener, option, value } => match self.listeners.get(listener.0) {
                Some(l) => l.options.set(option, value),
                None => self.counters.drop(DropReason::BadJob),
            },
            Job::SetBacklog { listener, backlog } => match self.listeners.get(listener.0) {
                Some(l) => l.backlog = backlog.max(1),
                None => self.counters.drop(DropReason::BadJob),
            },
            Job::Urgent { conn, bytes } => self.on_conn(now, conn, |tcb, _| tcb.write_urgent(bytes)),
            Job::EndRecord { conn } => self.on_conn(now, conn, |tcb, _| tcb.end_record()),
            Job::Ending => self.ending = true,
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
    pub(crate) fn close(&mut self, now: Instant, conn: ConnId, mode: CloseMode) {
        let full = self.orphans >= self.config.max_orphans && !self.ending;
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

    fn connect(
        &mut self,
        now: Instant,
        token: Token,
        local: Endpoint,
        remote: Endpoint,
        receive_buffer: u32,
        options: Options,
    ) -> Result<(), Failure> {
        if remote.port == 0 || remote.addr.is_unspecified() || remote.addr.is_multicast() || remote.addr.is_broadcast()
        {
            return Err(Failure::AddressNotAvailable);
        }
        // Nothing loops back: what goes to an own address would leave and never come.
        if self.interfaces.iter().any(|i| i.owns(remote.addr)) {
            return Err(Failure::HostUnreachable);
        }
        let (interface, hop) = self.way_from(local.addr, remote.addr)?;
        let addr = match local.addr.is_unspecified() {
            true => self.interfaces[interface.index()].source_for(remote.addr).ok_or(Failure::AddressNotAvailable)?,
            false => local.addr,
        };
        if addr.is_v4() != remote.addr.is_v4() {
            return Err(Failure::AddressNotAvailable);
        }
        let mut key =
            FlowKey { interface, local: addr, remote: remote.addr, local_port: local.port, remote_port: remote.port };
        let (hash, found) = if local.port == 0 {
            let any = local.addr.is_unspecified();
            let chosen = self.choose_source(now, interface, key, any).ok_or(Failure::AddressNotAvailable)?;
            key = chosen.key;
            (chosen.hash, chosen.found)
        } else {
            // Another lane would have the answers.
            if self.config.steering.lane_of(key.remote, key.local, key.remote_port, key.local_port) != self.config.lane
            {
                return Err(Failure::AddressNotAvailable);
            }
            let hash = self.flows.hash(&key);
            (hash, self.find_flow(&key, hash))
        };
        let (mut iss, ts_offset) = self.initial_sequence(now, &key);
        match found {
            None => {}
            Some(value) if self.reusable(now, value) => {
                if let Some(old) = self.time_waits.get(value & !TIME_WAIT) {
                    iss = beyond(iss, old.snd_nxt);
                }
                self.drop_time_wait(value, hash);
            }
            Some(_) => return Err(Failure::TupleInUse),
        }
        let (mss, headers) = self.offered_mss(interface, &key);
        let (mss, receive_buffer) = options.limit(mss, receive_buffer, self.config.tcp.receive_buffer);
        let path_mss = self.path_mss(now, &key, mss);
        let open = Open { iss, ts_offset, mss, path_mss, receive_buffer, headers };
        let birth = Birth { key, hash, hop, came_from: None, listener: u32::MAX, stage: Stage::Owned };
        let id = self.admit(now, birth, None, |tcb, cx| tcb.connect(&open, cx)).ok_or(Failure::NoBuffers)?;
        self.give_options(now, id, &options);
        self.counters.active_opens += 1;
        let local = Endpoint { addr: key.local, port: key.local_port };
        self.answers.push_back(Event::Opened { token, conn: ConnId(id), local });
        self.settle(now, id);
        Ok(())
    }

    /// The interface by which a connection from `local` to `remote` is opened, and its next hop as far as it is known. Answers
    /// come to the address, so a chosen one is that of the interface (RFC 1122 3.3.4.2's strong model).
    fn way_from(&mut self, local: Addr, remote: Addr) -> Result<(InterfaceId, (u32, u32)), Failure> {
        let best = self.routes.way(remote).map(|way| (way.hop.interface, (way.neighbor, way.epoch)));
        if local.is_unspecified() {
            return best.ok_or(Failure::NetworkUnreachable);
        }
        if let Some(best) = best.filter(|(interface, _)| self.interfaces[interface.index()].owns(local)) {
            return Ok(best);
        }
        let owners = (0..).map(InterfaceId).zip(&self.interfaces).filter(|(_, i)| i.owns(local)).map(|(id, _)| id);
        let mut failure = Failure::AddressNotAvailable;
        for interface in owners {
            if let Some(hop) = self.routes.known_hop(interface, remote) {
                return Ok((interface, hop));
            }
            failure = Failure::NetworkUnreachable;
        }
        Err(failure)
    }

    /// Sets what was asked for on a new connection.
    #[inline]
    pub(crate) fn give_options(&mut self, now: Instant, id: u32, options: &Options) {
        if !options.is_empty()
            && let Some(c) = self.conns.get_mut(id)
        {
            options.apply(c, &mut context!(self, now));
        }
    }

    /// A local port for an active open: free for this remote end, and such that the reply comes back to this lane
    /// (mTCP 4.2, Fastsocket 3.3).
    pub(crate) fn choose_port(&mut self, now: Instant, key: FlowKey) -> Option<Chosen> {
        if self.sources.has_spent() {
            return self.choose_among_freed(now, key);
        }
        let chosen = self.look_for_port(now, key);
        if chosen.is_none() {
            self.sources.looked(now, &key, false);
        }
        chosen
    }

    /// [`Stack::choose_port`] where ports towards some remote end were all taken.
    #[cold]
    fn choose_among_freed(&mut self, now: Instant, key: FlowKey) -> Option<Chosen> {
        loop {
            match self.sources.known(now, &key) {
                Known::Spent => return None,
                Known::Freed(port) if self.ports.has(port) => {
                    let chosen = self.usable(now, FlowKey { local_port: port, ..key });
                    if chosen.is_some() {
                        return chosen;
                    }
                }
                Known::Freed(_) => {}
                Known::Nothing => break,
            }
        }
        let chosen = self.look_for_port(now, key);
        self.sources.looked(now, &key, chosen.is_some());
        chosen
    }

    #[inline(always)]
    fn look_for_port(&mut self, now: Instant, key: FlowKey) -> Option<Chosen> {
        if self.learning.is_some() {
            return self.look_for_learnt_port(now, key);
        }
        let mut round = self.ports.round(key.local, key.remote, key.remote_port);
        while let Some(local_port) = self.ports.next(&mut round) {
            let chosen = self.usable(now, FlowKey { local_port, ..key });
            if chosen.is_some() {
                return chosen;
            }
        }
        None
    }

    /// The same where the NIC does not tell its hash: of the ports by which this lane is found the first whose answers come
    /// straight here, as far as that has been learnt. One of which nothing is known is as good: it tells something. Where there
    /// are none, or too few, another is taken, and its answers are handed over.
    #[inline(never)]
    fn look_for_learnt_port(&mut self, now: Instant, key: FlowKey) -> Option<Chosen> {
        let mut round = self.ports.round(key.local, key.remote, key.remote_port);
        let way = self.learning.as_ref().and_then(|l| l.way(&key));
        let lane = self.config.lane;
        let (mut looked, mut spare) = (0, None);
        while let Some(local_port) = self.ports.next(&mut round) {
            looked += 1;
            let key = FlowKey { local_port, ..key };
            if self.config.steering.lane_of(key.remote, key.local, key.remote_port, key.local_port) != lane {
                continue;
            }
            let away = way.and_then(|way| way.lane_of(local_port)).is_some_and(|to| to != lane);
            if !away || spare.is_none() {
                let chosen = self.usable(now, key);
                if !away && chosen.is_some() {
                    return chosen;
                }
                spare = spare.or(chosen);
            }
            if looked >= LOOKS && spare.is_some() {
                break;
            }
        }
        spare
    }

    /// The tuple, where an active open may have it.
    #[inline(always)]
    fn usable(&self, now: Instant, key: FlowKey) -> Option<Chosen> {
        let Stack { flows, listeners, config, .. } = self;
        if config.steering.lane_of(key.remote, key.local, key.remote_port, key.local_port) != config.lane {
            return None;
        }
        if listeners.covers(Endpoint { addr: key.local, port: key.local_port }) {
            return None;
        }
        let hash = flows.hash(&key);
        let found = self.find_flow(&key, hash);
        let free = found.is_none_or(|value| self.reusable(now, value));
        free.then_some(Chosen { key, hash, found })
    }

    /// RFC 6191: a TIME-WAIT tuple may be used again by an active open when timestamps tell the generations apart, a second
    /// after the old one ended (Linux's `tcp_tw_reuse`).
    fn reusable(&self, now: Instant, value: u32) -> bool {
        if value & TIME_WAIT == 0 {
            return false;
        }
        let length = self.config.time_wait.as_micros() as u64;
        self.time_waits.get(value & !TIME_WAIT).is_some_and(|t| {
            let age = length - t.until.micros_since(now).min(length);
            t.stamped && age > 1_000_000
        })
    }

    /// A TIME-WAIT record gives way to a connection of its tuple.
    pub(crate) fn drop_time_wait(&mut self, value: u32, hash: u32) {
        self.time_waits.remove(value & !TIME_WAIT);
        self.flows.remove(hash, value);
        self.counters.time_wait_reused += 1;
    }

    fn listen(&mut self, token: Token, mut listener: Listener) {
        let local = listener.local;
        let ours = local.addr.is_unspecified() || self.interfaces.iter().any(|i| i.owns(local.addr));
        let refusal = if !ours {
            Some(Failure::AddressNotAvailable)
        } else if local.port != 0 && self.listeners.conflicts(local, listener.v6_only, listener.reuse_port) {
            Some(Failure::AddressInUse)
        } else if local.port == 0 {
            let free = self
                .config
                .ports
                .iter()
                .find(|port| !self.listeners.conflicts(Endpoint { port: *port, ..local }, listener.v6_only, false));
            match free {
                Some(port) => {
                    listener.local.port = port;
                    None
                }
                None => Some(Failure::AddressInUse),
            }
        } else {
            None
        };
        let port = listener.local.port;
        let answer = match refusal {
            Some(failure) => Event::Refused { token, failure },
            None => match self.listeners.insert(listener) {
                Ok(id) => Event::Listening { token, listener: ListenerId(id), port },
                Err(_) => Event::Refused { token, failure: Failure::NoBuffers },
            },
        };
        self.answers.push_back(answer);
    }

    /// RFC 9293 3.10.4: what the application has not taken is reset; what it has taken lives on.
    pub(crate) fn close_listener(&mut self, now: Instant, listener: ListenerId) {
        for id in self.syns.of_listener(listener.0) {
            self.forget_embryo(id);
        }
        if self.listeners.remove(listener.0).is_none() {
            self.counters.drop(DropReason::BadJob);
            return;
        }
        let mine = |c: &Conn| c.listener == listener.0 && matches!(c.stage, Stage::Embryo | Stage::Ready);
        let ids: Vec<u32> = self.conns.iter_ids().filter(|id| self.conns.whole(*id).is_some_and(mine)).collect();
        for id in ids {
            if let Some(c) = self.conns.get_mut(id) {
                c.stage = Stage::Released;
                c.listener = u32::MAX;
                let mut cx = context!(self, now);
                c.tcb.abort(&mut cx);
            }
            self.settle(now, id);
        }
    }
}

/// RFC 6191, RFC 9293 MAY-2: beyond everything that the connection before, which got to `old`, may have sent.
pub(crate) fn beyond(iss: SeqNum, old: SeqNum) -> SeqNum {
    if iss.after(old + 65_536) { iss } else { old + 65_537 }
}

/// A connection that the application may name.
fn owned(conns: &mut crate::conns::Conns, conn: ConnId) -> Option<&mut Conn> {
    conns.get_mut(conn.0).filter(|c| c.stage == Stage::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_generation_begins_beyond_all_that_was_sent() {
        for old in [SeqNum(5), SeqNum(u32::MAX - 70_000)] {
            for (ahead, begins) in [(65_536, 65_537), (65_537, 65_537), (100_000, 100_000), (1 << 30, 1 << 30)] {
                assert_eq!(beyond(old + ahead, old), old + begins);
            }
            for behind in [0, 1, 65_536, 65_537, 1 << 30] {
                assert_eq!(beyond(old - behind, old), old + 65_537);
            }
        }
    }
}
