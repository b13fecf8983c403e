//! Who uses the stack: clients, and their seats.
//!
//! A client has chunks of its own, in which lie the bytes of its connections. A seat is a pair of rings, jobs in and events out, for one
//! thread of a client; a connection belongs to the seat that hears of it. The first client is in the stack's own process, and shares
//! its chunks with the stack: what nobody has accepted yet lies there.

use std::collections::VecDeque;

use mem::Side;
use mem::ring::{Consumer, Producer};
use protocol::Event;
use wire::Instant;

use crate::conns::options::Options;
use crate::names::SeatId;
use crate::schedule::queues::Entry;

/// The client in the stack's own process.
pub(crate) const HOME: u16 = 0;

/// So few entries need no sweeping.
const FEW: usize = 64;

/// One thread's end of the stack.
pub(crate) struct Seat {
    /// Whose.
    pub client: u16,
    /// Elsewhere while they are done.
    jobs: Option<Box<Consumer>>,
    events: Producer,
    /// Answers to requests, which are no connection's events.
    answers: VecDeque<Event>,
    /// Connections whose news found no room.
    stalled: VecDeque<Entry>,
    /// With so many of them it is looked which of them still are.
    sweep_at: usize,
    /// Options of the request that comes next.
    pub prepared: Options,
    /// It closes all that it has: each of these closes is told the peer, however many there are.
    pub ending: bool,
    /// Which jobs it has left behind without handing them over, and since when.
    left: Option<(u32, Instant)>,
    /// It was told something that is not published.
    told: bool,
    /// It is among those that wait.
    waits: bool,
}

/// All of them. The first client and the first seat, which most stacks have alone, are a step nearer than the others.
pub(crate) struct Clients {
    /// The stack's side of the chunks of its own process.
    home: Side,
    /// Those of the other clients.
    sides: Vec<Side>,
    first: Seat,
    seats: Vec<Seat>,
    /// Seats that were told something in this turn.
    told: Vec<SeatId>,
    /// Seats with answers, or with news that found no room.
    waiting: Vec<SeatId>,
}

impl Clients {
    /// One client with one seat.
    pub fn new(home: Side, jobs: Consumer, events: Producer) -> Clients {
        let first = Seat::new(HOME, jobs, events);
        Clients { home, sides: Vec::new(), first, seats: Vec::new(), told: Vec::new(), waiting: Vec::new() }
    }

    /// Another seat of a client.
    pub fn add_seat(&mut self, client: u16, jobs: Consumer, events: Producer) -> SeatId {
        self.seats.push(Seat::new(client, jobs, events));
        SeatId(self.seats.len() as u16)
    }

    /// The chunks of a client.
    #[inline(always)]
    pub fn side(&mut self, client: u16) -> &mut Side {
        match usize::from(client) {
            0 => &mut self.home,
            n => &mut self.sides[n - 1],
        }
    }

    /// The chunks in the stack's own process.
    #[inline(always)]
    pub fn home(&self) -> &Side {
        &self.home
    }

    /// A seat.
    #[inline(always)]
    pub fn seat(&mut self, id: SeatId) -> &mut Seat {
        match usize::from(id.0) {
            0 => &mut self.first,
            n => &mut self.seats[n - 1],
        }
    }

    /// The seats.
    pub fn ids(&self) -> impl Iterator<Item = SeatId> + use<> {
        (0..=self.seats.len() as u16).map(SeatId)
    }

    /// Passes chunks to sides that have few.
    #[inline]
    pub fn supply(&mut self, low: u32) {
        self.home.supply_peer(low);
        self.sides.iter_mut().for_each(|side| side.supply_peer(low));
    }

    /// Whether jobs wait.
    pub fn have_jobs(&self) -> bool {
        self.first.has_jobs() || self.seats.iter().any(Seat::has_jobs)
    }

    /// Tells a seat the answer to a request, when there is room.
    pub fn answer(&mut self, id: SeatId, event: Event) {
        self.seat(id).answers.push_back(event);
        self.wait(id);
    }

    /// A connection's news found no room, and comes first when there is some. Entries of those that are over go when they are many.
    pub fn stall(&mut self, id: SeatId, entry: Entry, is_current: impl Fn(Entry) -> bool) {
        let seat = self.seat(id);
        if seat.stalled.len() >= seat.sweep_at {
            seat.stalled.retain(|entry| is_current(*entry));
            seat.sweep_at = (2 * seat.stalled.len()).max(FEW);
        }
        seat.stalled.push_back(entry);
        self.wait(id);
    }

    fn wait(&mut self, id: SeatId) {
        if !core::mem::replace(&mut self.seat(id).waits, true) {
            self.waiting.push(id);
        }
    }

    /// Whether something waits for room.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The seats for which something waits, which then count as none; who is not done is to wait again.
    pub fn take_waiting(&mut self) -> Vec<SeatId> {
        let waiting = core::mem::take(&mut self.waiting);
        waiting.iter().for_each(|id| self.seat(*id).waits = false);
        waiting
    }

    /// The list that [`Clients::take_waiting`] gave is done with: its memory serves the next.
    pub fn give_back(&mut self, mut taken: Vec<SeatId>) {
        if self.waiting.is_empty() {
            taken.clear();
            self.waiting = taken;
        }
    }

    /// Emits answers as far as there is room: how many, and whether that was all.
    pub fn emit_answers(&mut self, id: SeatId) -> (usize, bool) {
        let mut emitted = 0;
        while let Some(answer) = self.seat(id).answers.pop_front() {
            if !self.seat(id).events.has_room(1) {
                self.seat(id).answers.push_front(answer);
                self.wait(id);
                return (emitted, false);
            }
            let seat = self.told(id);
            let told = seat.events.push(answer.into_message()).is_ok();
            debug_assert!(told, "room was checked");
            emitted += 1;
        }
        (emitted, true)
    }

    /// A connection whose news found no room before.
    pub fn next_stalled(&mut self, id: SeatId) -> Option<Entry> {
        self.seat(id).stalled.pop_front()
    }

    /// It found none again.
    pub fn stall_again(&mut self, id: SeatId, entry: Entry) {
        self.seat(id).stalled.push_front(entry);
        self.wait(id);
    }

    /// Connections whose news found no room, and who should hear of them.
    pub fn each_stalled(&self) -> impl Iterator<Item = (SeatId, Entry)> + '_ {
        let each = core::iter::once(&self.first).chain(&self.seats);
        self.ids().zip(each).flat_map(|(id, seat)| seat.stalled.iter().map(move |entry| (id, *entry)))
    }

    /// Where the news of a connection of this seat are told, if there is room for so many events. The seat's answers come first, since they
    /// name its connections.
    #[inline(always)]
    pub fn open(&mut self, id: SeatId, events: usize) -> Option<&mut Producer> {
        let seat = self.seat(id);
        if !seat.answers.is_empty() || !seat.events.has_room(events) {
            return None;
        }
        Some(&mut self.told(id).events)
    }

    /// A seat is told something.
    #[inline(always)]
    fn told(&mut self, id: SeatId) -> &mut Seat {
        if !self.seat(id).told {
            self.note_told(id);
        }
        self.seat(id)
    }

    #[cold]
    fn note_told(&mut self, id: SeatId) {
        self.seat(id).told = true;
        self.told.push(id);
    }

    /// Hands over what seats were told in this turn; which they are.
    #[inline]
    pub fn publish(&mut self) -> &[SeatId] {
        for i in 0..self.told.len() {
            let seat = self.seat(self.told[i]);
            seat.told = false;
            seat.events.publish();
        }
        &self.told
    }

    /// A turn begins.
    #[inline]
    pub fn begin(&mut self) {
        self.told.clear();
    }
}

impl Seat {
    fn new(client: u16, jobs: Consumer, events: Producer) -> Seat {
        Seat {
            client,
            jobs: Some(Box::new(jobs)),
            events,
            answers: VecDeque::new(),
            stalled: VecDeque::new(),
            sweep_at: FEW,
            prepared: Options::default(),
            ending: false,
            left: None,
            told: false,
            waits: false,
        }
    }

    /// Whether jobs wait.
    #[inline]
    fn has_jobs(&self) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| !jobs.is_empty())
    }

    /// Its jobs, to be done, if any wait; [`Seat::put_jobs`] brings them back.
    #[inline]
    pub fn take_jobs(&mut self) -> Option<Box<Consumer>> {
        if self.has_jobs() { self.jobs.take() } else { None }
    }

    /// Those that were taken are done.
    #[inline]
    pub fn put_jobs(&mut self, mut jobs: Box<Consumer>) {
        jobs.release();
        self.jobs = Some(jobs);
    }

    /// What it has left behind for long enough is taken as if it were handed over.
    pub fn collect_left(&mut self, now: Instant, after_us: u64) {
        let since = self.left.filter(|(_, since)| now.micros_since(*since) < after_us);
        let Some(jobs) = &mut self.jobs else { return };
        self.left = match (jobs.offer(), self.left) {
            // One more look: what is left next is told, but for what was left at the same moment.
            (None, _) => since,
            (Some(mark), Some((seen, _))) if mark == seen && since.is_none() => {
                jobs.take_offer();
                Some((mark, now))
            }
            (Some(mark), Some((seen, _))) if mark == seen => since,
            (Some(mark), _) => Some((mark, now)),
        };
    }

    /// All that it has left behind is taken as if it were handed over: it does not come back.
    pub fn take_left(&mut self) {
        self.jobs.iter_mut().for_each(|jobs| jobs.take_offer());
    }

    /// When [`Seat::collect_left`] should look next, µs from now.
    pub fn left_due(&self, now: Instant, after_us: u64) -> Option<u64> {
        let offer = self.jobs.as_ref().and_then(|jobs| jobs.offer());
        (self.left.is_some() || offer.is_some()).then(|| {
            let since = self.left.map_or(now, |(_, since)| since);
            after_us.saturating_sub(now.micros_since(since)).max(1)
        })
    }
}
