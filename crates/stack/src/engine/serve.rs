//! Clients in other processes: what they ask for, what nobody has accepted yet, and their end.
//!
//! Bytes of a connection that no client has accepted lie in memory of the stack's own. It is *offered*: told, with a copy of what came, and
//! kept until the client says that it has taken it, or says anything else about it. If the client ends before that, it is offered to
//! another listener of the address, or reset. Once it is accepted its bytes move into the client's chunks, and what comes later is received
//! into them. As long as the client has too few chunks for all of them, it is told of as many as it has chunks for, copied, and of all that
//! needs none: it may wait for just that before it frees any.

use mem::lease::{StackSeat, Words};
use mem::ring::Raw;
use mem::{Chain, Side, spsc};
use protocol::{ConnId, Endpoint, Event, Job, ListenerId};
use tcp::Notice;
use wire::Instant;

use crate::clients::Tell;
use crate::clients::{Bounds, FIRST, Ill};
use crate::conns::conn::{Conn, Stage};
use crate::counters::DropReason;
use crate::engine::events::MOST_NEWS;
use crate::engine::{Stack, context};
use crate::names::{ClientId, SeatId};
use crate::schedule::queues::Entry;

/// Jobs of a seat that a turn does: so many that a client which always has some holds the others up no longer than a burst does.
const MOST_JOBS: usize = 512;
/// Answers that may wait for a client to read them; it is not heard again before.
const MOST_ANSWERS: usize = 1024;
/// While a client's memory is scarce, a connection that lies outside it has a chunk of it in each 2^18 µs: as often as a peer tries again at
/// first.
const TURN_BITS: u32 = 18;
/// Connections of a client that has gone that a turn ends, and places of the table that it looks at.
const MOST_ENDS: usize = 64;
const MOST_LOOKS: usize = 4096;

impl Stack {
    /// A client in another process, whose chunks have this side; `None` where there are too many.
    pub fn add_client(&mut self, side: Side, bounds: Bounds) -> Option<ClientId> {
        self.clients.add_client(side, bounds)
    }

    /// The side of a client's chunks, as long as the client is there.
    pub fn side_of(&mut self, client: ClientId) -> Option<&mut Side> {
        self.clients.side_of(client)
    }

    /// Another thread of a client in another process, and the words by which both say that they sleep; `None` where there are too many, or
    /// the client has ended. It is not polled yet.
    pub fn add_client_seat(&mut self, client: ClientId, seat: StackSeat) -> Option<(SeatId, Words)> {
        self.clients.add_foreign_seat(client, seat)
    }

    /// Whether a seat's jobs are looked at in each turn, or only while it is so.
    pub fn poll_seat(&mut self, seat: SeatId, on: bool) {
        self.clients.poll_seat(seat, on);
    }

    /// Whether jobs of a seat wait.
    pub fn has_jobs_of(&mut self, seat: SeatId) -> bool {
        self.clients.seat(seat).has_jobs()
    }

    /// The seats that were told something by the last [`Stack::flush_events`].
    pub fn told(&self) -> &[SeatId] {
        self.clients.last_told()
    }

    /// Clients that were ended since the last call, and why.
    pub fn take_ill(&mut self) -> Vec<(ClientId, Ill)> {
        core::mem::take(&mut self.ill)
    }

    /// A client has gone. What nobody has accepted is offered to others that listen at the address; its connections are reset, by and by
    /// ([`Stack::go_on_reclaiming`]), but for those that it had closed.
    pub fn end_client(&mut self, now: Instant, client: ClientId) {
        self.end_client_as(now, client, false);
    }

    fn end_client_as(&mut self, now: Instant, client: ClientId, all: bool) {
        let Some(stalled) = self.clients.end_client(client, all) else { return };
        for entry in stalled {
            // Another seat may be to hear of those that nobody has accepted.
            self.schedule.notify.push_back(entry);
        }
        for id in self.demux.listeners.ids() {
            let seat = self.demux.listeners.get(id).map(|l| l.seat);
            if seat.is_some_and(|seat| self.clients.client_of(seat) == client) {
                self.retire_listener(now, ListenerId(id));
            }
        }
    }

    /// A client has broken a rule.
    #[cold]
    fn end_ill(&mut self, now: Instant, seat: SeatId, ill: Ill) {
        let client = self.clients.client_of(seat);
        self.counters.clients_ended += 1;
        self.ill.push((client, ill));
        self.end_client_as(now, client, true);
    }

    /// A job that cannot be done: of the stack's own process it is counted, another one is ended for it.
    #[cold]
    pub(super) fn bad_job(&mut self, now: Instant, seat: SeatId) {
        self.counters.drop(DropReason::BadJob);
        if self.clients.is_foreign(seat) {
            self.end_ill(now, seat, Ill::Name);
        }
    }

    /// Does what a client in another process asks for; how many jobs that were.
    #[inline(never)]
    pub(super) fn run_foreign(&mut self, now: Instant, seat: SeatId, jobs: &mut spsc::Consumer<Raw>) -> usize {
        let client = self.clients.client_of(seat);
        let waiting = jobs.len().min(MOST_JOBS);
        let mut done = 0;
        while done < waiting && self.clients.seat(seat).answers() < MOST_ANSWERS {
            let Some(raw) = jobs.pop_raw() else { break };
            done += 1;
            let Some(side) = self.clients.side_of(client) else { return done };
            let job = match side.admit(raw) {
                Ok(message) => Job::from_message(message),
                Err(breach) => {
                    self.end_ill(now, seat, breach.into());
                    return done;
                }
            };
            let Ok(mut job) = job else {
                self.end_ill(now, seat, Ill::Message);
                return done;
            };
            if let Some(ConnId(id)) = job.conn().or(queried(&job))
                && self.conns.active(id).is_some_and(|c| c.stage == Stage::Offered && c.seat == seat)
            {
                self.accept_offered(now, id);
            }
            if let Job::Write { conn, chain, .. } = &mut job
                && !self.bring_home(*conn, (client, seat), chain)
            {
                job = Job::Abort { conn: *conn };
            }
            let conn = job.conn();
            self.run(now, seat, job);
            if let Some(conn) = conn {
                self.settle(now, conn.0);
            }
        }
        if jobs.is_overrun() {
            self.end_ill(now, seat, mem::Breach::Overrun.into());
        } else if let Some(breach) = self.clients.side_of(client).and_then(|side| side.breach()) {
            self.end_ill(now, seat, breach.into());
        }
        done
    }

    /// Bytes that a client sends on a connection whose others could not move into its chunks yet: now they can, or these come to lie where
    /// those do. `false` where there is room for neither: what was written cannot be sent, and the connection cannot go on.
    fn bring_home(&mut self, conn: ConnId, (client, seat): (ClientId, SeatId), chain: &mut Chain) -> bool {
        let elsewhere =
            |c: &Conn| c.pool != client.0 && c.seat == seat && matches!(c.stage, Stage::Owned | Stage::Between);
        // One that is parked may lie there, too.
        if !self.conns.get_mut(conn.0).is_some_and(|c| elsewhere(c)) || self.move_in(conn.0) {
            return true;
        }
        let (home, side) = self.clients.home_and(client);
        let copy = chain.copied(side, home);
        let done = copy.is_some();
        core::mem::replace(chain, copy.unwrap_or_default()).free(side);
        done
    }

    /// Moves a connection's bytes into the chunks of the client that it belongs to; `false` where there is no room yet.
    pub(super) fn move_in(&mut self, id: u32) -> bool {
        let Some(c) = self.conns.active_mut(id) else { return true };
        let client = self.clients.client_of(c.seat);
        if c.pool == client.0 {
            return true;
        }
        let (home, side) = self.clients.home_and(client);
        let moved = c.tcb.move_bytes(home, side);
        if moved {
            c.pool = client.0;
        }
        moved
    }

    /// News of a connection whose bytes find too few chunks in its client's memory: as many as find some are told, copied, and the rest is
    /// told later. How many events that were, or the seat that is still to hear of some, or has no room for events.
    #[cold]
    pub(super) fn tell_in_part(&mut self, now: Instant, id: u32) -> Result<usize, SeatId> {
        let Some(c) = self.conns.active_mut(id) else { return Ok(0) };
        let seat = c.seat;
        if self.clients.is_full(seat, MOST_NEWS) {
            self.counters.events_held += 1;
            return Err(seat);
        }
        let client = self.clients.client_of(seat);
        let turn = (now.micros() >> TURN_BITS) as u8;
        let (home, side) = self.clients.home_and(client);
        let chain = c.tcb.copy_received(home, side, c.turn != turn);
        let len = chain.len();
        c.turn = if len > 0 { turn } else { c.turn };
        if len == c.tcb.waiting() {
            c.tcb.drop_received(home, len);
            c.tcb.put_received(chain);
            return self.tell_to(now, id, seat);
        }
        // Bytes come behind their urgent mark and before the end.
        let notice = c.tcb.take_notice();
        let later = notice.0 & (Notice::DATA.0 | Notice::FIN.0 | Notice::FAILED.0);
        c.tcb.put_notice(Notice(notice.0 & !later));
        let mut told = self.tell_to(now, id, seat).unwrap_or_default();
        if len > 0
            && let Some(mut teller) = self.clients.open(seat, 1)
        {
            let data = teller.tell(Event::Data { conn: ConnId(id), chain, fin: false });
            debug_assert!(data, "room was checked");
            told += 1;
        }
        if let Some(c) = self.conns.active_mut(id) {
            c.tcb.drop_received(self.clients.home_mut(), len);
            c.tcb.put_notice(Notice(later));
        }
        self.counters.events += told as u64;
        Err(seat)
    }

    /// Tells a client in another process of a connection that it may accept; how many events that were, or the seat, where there is no
    /// room.
    #[cold]
    pub(super) fn offer(&mut self, id: u32) -> Result<usize, SeatId> {
        let Some(c) = self.conns.active_mut(id) else { return Ok(0) };
        let (seat, listener) = (c.seat, c.listener);
        let client = self.clients.client_of(seat);
        if self.clients.open(seat, 1).is_none() {
            self.counters.events_held += 1;
            return Err(seat);
        }
        let Some(l) = self.demux.listeners.get(listener) else { return Ok(0) };
        if !self.clients.take_connection(client.0) {
            return Err(seat);
        }
        let (home, side) = self.clients.home_and(client);
        // Another client may have been told of the first bytes, and have gone.
        let mut received = core::mem::take(&mut c.kept);
        received.append(home, c.tcb.take_received());
        c.tcb.put_received(received);
        let mut chain = c.tcb.copy_received(home, side, true);
        let mut received = c.tcb.take_received();
        c.kept = received.split_front(home, chain.len());
        c.tcb.put_received(received);
        if c.kept.len() < chain.len() {
            // A chunk could not be split for want of another one.
            chain.free(side);
            chain = c.kept.front_copied(home, c.kept.len(), side);
        }
        let local = Endpoint { addr: c.key.local, port: c.key.local_port };
        let remote = Endpoint { addr: c.key.remote, port: c.key.remote_port };
        let accepted = Event::Accepted { listener: ListenerId(listener), conn: ConnId(id), local, remote, chain };
        if let Some(mut teller) = self.clients.open(seat, 1) {
            let told = teller.tell(accepted);
            debug_assert!(told, "room was checked");
        }
        c.stage = Stage::Offered;
        l.offered.push_back(self.schedule.entry(id));
        Ok(1)
    }

    /// A client has taken so many connections off a listener's queue.
    #[cold]
    pub(super) fn taken(&mut self, now: Instant, listener: ListenerId, count: u32) {
        for _ in 0..count {
            let Some(entry) = self.demux.listeners.get(listener.0).and_then(|l| l.offered.pop_front()) else { return };
            self.accept_entry(now, entry, listener);
        }
    }

    /// A client has accepted a connection of a listener, unless it has said so already.
    pub(super) fn accept_entry(&mut self, now: Instant, entry: Entry, listener: ListenerId) {
        let offered = |c: &Conn| c.stage == Stage::Offered && c.listener == listener.0;
        if self.schedule.is_current(entry) && self.conns.active(entry.id).is_some_and(offered) {
            self.accept_offered(now, entry.id);
        }
    }

    /// A client has accepted a connection.
    fn accept_offered(&mut self, now: Instant, id: u32) {
        let Some(c) = self.conns.active_mut(id) else { return };
        core::mem::take(&mut c.kept).free(self.clients.side(c.pool));
        (c.stage, c.listener) = (Stage::Owned, u32::MAX);
        self.move_in(id);
        self.settle(now, id);
    }

    /// A listener of a client that has gone: what nobody has accepted is offered to another one of the address, or reset.
    fn retire_listener(&mut self, now: Instant, listener: ListenerId) {
        let Some(gone) = self.demux.listeners.remove(listener.0) else { return };
        self.clients.end_listener(self.clients.client_of(gone.seat).0);
        for id in self.demux.handshakes().of_listener(listener.0) {
            let heir = self.demux.handshake(id).and_then(|e| self.demux.listeners.find(&e.key));
            match heir {
                Some(heir) => self.demux.give_handshake(id, heir),
                None => self.demux.end_handshake(id),
            }
        }
        let left =
            |c: &Conn| c.listener == listener.0 && matches!(c.stage, Stage::Embryo | Stage::Ready | Stage::Offered);
        let ids: Vec<u32> = self.conns.iter_ids().filter(|id| self.conns.active(*id).is_some_and(left)).collect();
        for id in ids {
            self.offer_again(now, id);
        }
    }

    /// A connection that nobody has accepted has lost its listener.
    fn offer_again(&mut self, now: Instant, id: u32) {
        let Some(c) = self.conns.active_mut(id) else { return };
        if c.stage == Stage::Offered {
            self.clients.end_connection(self.clients.client_of(c.seat).0);
            c.stage = Stage::Ready;
        }
        let heir = self.demux.listener_of(&c.key);
        match heir {
            Some((heir, l)) => {
                match c.stage {
                    Stage::Embryo => l.embryos += 1,
                    _ => l.ready += 1,
                }
                (c.listener, c.seat) = (heir, l.seat);
                self.counters.offered_again += 1;
            }
            None => {
                // It was nobody's.
                (c.stage, c.listener, c.seat) = (Stage::Closed, u32::MAX, FIRST);
                core::mem::take(&mut c.kept).free(self.clients.home_mut());
                c.tcb.abort(&mut context!(self, now, c.pool));
            }
        }
        self.settle(now, id);
    }

    /// Goes on with the ends of clients that have gone, as far as it is good for a turn; how many connections were ended.
    pub fn go_on_reclaiming(&mut self, now: Instant) -> usize {
        let Some(walk) = self.clients.ending() else { return 0 };
        self.conns.now = now;
        let (mut ended, end) = (0, self.conns.slots());
        let mut next = walk.next;
        let last = end.min(next.saturating_add(MOST_LOOKS as u32));
        while ended < MOST_ENDS && next < last {
            ended += self.reclaim(now, next, walk.client, walk.all) as usize;
            next += 1;
        }
        self.clients.went_on(walk.client, (next < end).then_some(next));
        ended
    }

    /// Whether clients that have gone have connections still to be reset.
    pub fn is_reclaiming(&self) -> bool {
        self.clients.ending().is_some()
    }

    /// Clients in other processes of which something is left.
    pub fn clients(&self) -> usize {
        self.clients.others()
    }

    fn reclaim(&mut self, now: Instant, id: u32, client: ClientId, all: bool) -> bool {
        let Some(seat) = self.conns.seat(id) else { return false };
        if self.clients.client_of(seat) != client {
            return false;
        }
        let Some(c) = self.conns.get_mut(id) else { return false };
        match c.stage {
            Stage::Owned | Stage::Between | Stage::Lingering => {}
            Stage::Closed if all => {}
            // The first two were offered to others when it ended.
            Stage::Embryo | Stage::Ready | Stage::Offered | Stage::Closed => return false,
        }
        c.stage = Stage::Closed;
        c.tcb.abort(&mut context!(self, now, c.pool));
        self.settle(now, id);
        true
    }
}

/// The connection that a question is about.
fn queried(job: &Job) -> Option<ConnId> {
    match job {
        Job::Query { conn, .. } => Some(*conn),
        _ => None,
    }
}
