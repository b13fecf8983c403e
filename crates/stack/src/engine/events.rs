//! Events for the application, one batch a turn (mTCP 3.2: the event queue is flushed once).

use mem::Chain;
use tcp::{Notice, State};

use crate::clients::{FIRST, Tell};
use crate::conns::conn::{Conn, Stage};
use crate::engine::Stack;
use crate::names::SeatId;
use crate::schedule::queues::queued;
use protocol::{ConnId, Endpoint, Event, ListenerId};
use wire::Instant;

impl Stack {
    /// Emits what the ring takes and publishes it; how many events there were.
    pub fn flush_events(&mut self, now: Instant) -> usize {
        self.clients.begin();
        self.clients.supply(LOW_SUPPLY);
        if self.schedule.notify.is_empty() && !self.clients.is_waiting() {
            return 0;
        }
        let mut emitted = 0;
        if self.clients.is_waiting() {
            let waiting = self.clients.take_waiting();
            emitted += waiting.iter().map(|seat| self.flush_waiting(now, *seat)).sum::<usize>();
            self.clients.give_back(waiting);
        }
        for _ in 0..self.schedule.notify.len() {
            let Some(entry) = self.schedule.notify.pop_front() else { break };
            if self.schedule.take(entry, queued::NOTIFY).is_none() {
                continue;
            }
            match self.tell(now, entry.id) {
                Ok(count) => emitted += count,
                Err(seat) => {
                    self.schedule.stay(entry.id, queued::NOTIFY);
                    self.clients.stall(seat, entry, |e| self.schedule.is_current(e));
                }
            }
        }
        self.clients.publish();
        self.counters.events += emitted as u64;
        emitted
    }

    /// A seat's answers, and then the news that found no room before; how many events there were.
    fn flush_waiting(&mut self, now: Instant, seat: SeatId) -> usize {
        // A connection's first event must follow the answer that names it.
        let (mut emitted, all) = self.clients.emit_answers(seat);
        if !all {
            return emitted;
        }
        let (mut left, mut held) = (self.clients.stalled(seat), 0);
        while left > 0
            && held < MOST_HELD
            && let Some(entry) = self.clients.next_stalled(seat)
        {
            left -= 1;
            if self.schedule.take(entry, queued::NOTIFY).is_none() {
                continue;
            }
            match self.tell(now, entry.id) {
                Ok(count) => emitted += count,
                Err(seat) => {
                    self.schedule.stay(entry.id, queued::NOTIFY);
                    if self.clients.is_full(seat, MOST_NEWS) {
                        self.clients.stall_first(seat, entry);
                        break;
                    }
                    // Chunks, or a connection less, may take long, and may wait for what others behind it are told.
                    self.clients.stall_last(seat, entry);
                    held += 1;
                }
            }
        }
        emitted
    }

    /// All news of one connection in order, how many events they were; the seat that should hear of it, where that has no room.
    #[inline(always)]
    fn tell(&mut self, now: Instant, id: u32) -> Result<usize, SeatId> {
        let Some(c) = self.conns.get_mut(id) else { return Ok(0) };
        if c.seat != FIRST {
            return self.tell_another(now, id);
        }
        // Room for everything that one connection may have to say, so that nothing needs to be put back half-told.
        let Some(events) = self.clients.open_first(MOST_NEWS) else {
            self.counters.events_held += 1;
            return Err(FIRST);
        };
        let (count, over) = news(c, ConnId(id), &mut Counted { events, count: 0 });
        if over {
            self.settle(now, id);
        }
        Ok(count)
    }

    /// The same, for another seat than the first.
    #[inline(never)]
    fn tell_another(&mut self, now: Instant, id: u32) -> Result<usize, SeatId> {
        let Some(c) = self.conns.get_mut(id) else { return Ok(0) };
        let (seat, stage) = (c.seat, c.stage);
        if self.clients.is_foreign(seat) {
            match stage {
                _ if self.clients.is_ended(seat) => return Ok(0),
                Stage::Ready => return self.offer(id),
                // Only what was accepted lies in the client's chunks.
                Stage::Owned if !self.move_in(id) => return self.tell_in_part(now, id),
                _ => {}
            }
        }
        self.tell_to(now, id, seat)
    }

    /// Tells the news of a connection to a seat.
    pub(super) fn tell_to(&mut self, now: Instant, id: u32, seat: SeatId) -> Result<usize, SeatId> {
        let Some(c) = self.conns.active_mut(id) else { return Ok(0) };
        let Some(mut teller) = self.clients.open(seat, MOST_NEWS) else {
            self.counters.events_held += 1;
            return Err(seat);
        };
        let (count, over) = news(c, ConnId(id), &mut Counted { events: &mut teller, count: 0 });
        if over {
            self.settle(now, id);
        }
        Ok(count)
    }
}

/// Events that are counted as they are told.
struct Counted<'a, T> {
    events: &'a mut T,
    count: usize,
}

impl<T: Tell> Counted<'_, T> {
    // Whoever tells one knows its kind: only that kind's words are left of this.
    #[inline(always)]
    fn say(&mut self, event: Event) -> bool {
        self.count += 1;
        self.events.tell(event)
    }
}

/// Says what is new of a connection, one event after the other; how many they were, and whether it is to be settled.
#[inline(always)]
fn news<T: Tell>(c: &mut Conn, conn: ConnId, to: &mut Counted<'_, T>) -> (usize, bool) {
    let told = match c.stage {
        Stage::Closed | Stage::Embryo | Stage::Offered | Stage::Between => true,
        Stage::Lingering => {
            if c.lingered() {
                c.stage = Stage::Closed;
                to.say(Event::Closed { conn, failure: c.failure() })
            } else {
                true
            }
        }
        Stage::Ready | Stage::Owned => {
            let mut told = true;
            let notice = c.tcb.take_notice();
            if c.stage == Stage::Ready {
                let local = Endpoint { addr: c.key.local, port: c.key.local_port };
                let remote = Endpoint { addr: c.key.remote, port: c.key.remote_port };
                let listener = ListenerId(c.listener);
                // What is urgent is told before the bytes that it lies among.
                let first = notice.has(Notice::DATA) && !notice.has(Notice::URGENT);
                // Another client was told of it before, and has gone: then what that one was told comes first.
                let kept = core::mem::take(&mut c.kept);
                let chain = match () {
                    () if !kept.is_empty() => kept,
                    () if first => c.tcb.take_received(),
                    () => Chain::default(),
                };
                told &= to.say(Event::Accepted { listener, conn, local, remote, chain });
                // The listener's count of ready ones stays until the application reports it taken.
                c.stage = Stage::Owned;
                c.listener = u32::MAX;
            }
            if notice.has(Notice::CONNECTED) && !c.tcb.passive() {
                told &= to.say(Event::Connected { conn });
            }
            if notice.has(Notice::ACKED) {
                told &= to.say(Event::Acked { conn, bytes: c.tcb.take_acked() });
            }
            if notice.has(Notice::ROOM) {
                told &= to.say(Event::Room { conn, bytes: c.tcb.send_buffer() });
            }
            if notice.has(Notice::SENT) {
                told &= to.say(Event::Sent { conn, total: c.tcb.stream_sent(), burst: c.tcb.burst_bytes() });
            }
            if notice.has(Notice::URGENT)
                && let Some(beyond) = c.tcb.urgent_in()
            {
                told &= to.say(Event::Urgent { conn, beyond });
            }
            let chain = if notice.has(Notice::DATA) { c.tcb.take_received() } else { Chain::default() };
            let fin = notice.has(Notice::FIN);
            if !chain.is_empty() {
                told &= to.say(Event::Data { conn, chain, fin });
            } else if fin {
                told &= to.say(Event::Fin { conn });
            }
            if notice.has(Notice::FAILED)
                && let Some(failure) = c.failure()
            {
                told &= to.say(Event::Failed { conn, failure });
            }
            told
        }
    };
    debug_assert!(told, "room was checked");
    // Telling changes nothing that lists or timers go by, but who has been told of the end may go.
    (to.count, matches!(c.tcb.state(), State::Closed | State::TimeWait))
}

/// Events that one connection may have at once.
pub(super) const MOST_NEWS: usize = 9;
/// Connections of a seat whose news find room in the ring, and not in the client's memory, that are looked at in a turn.
const MOST_HELD: usize = 64;
/// Chunks that the application's side should find waiting.
const LOW_SUPPLY: u32 = 512;
