//! Who uses the stack: clients, and their seats.
//!
//! A client has chunks of its own, in which lie the bytes of its connections. A seat is a pair of rings, jobs in and events out, for one
//! thread of a client; a connection belongs to the seat that hears of it. The first client is in the stack's own process, and shares
//! its chunks with the stack: what nobody has accepted yet lies there. Others are in other processes, and nothing that they write is
//! trusted ([`foreign`]).

mod foreign;

use std::collections::VecDeque;

use mem::ring::{Consumer, Producer, Raw};
use mem::{Side, spsc};
use protocol::Event;
use wire::Instant;

pub use foreign::{Bounds, Ill};

use crate::clients::foreign::Foreign;
use crate::conns::options::Options;
use crate::names::{ClientId, SeatId};
use crate::schedule::queues::Entry;

/// The client in the stack's own process.
pub(crate) const HOME: u16 = 0;
/// Its first seat.
pub(crate) const FIRST: SeatId = SeatId(0);

/// So few entries need no sweeping.
const FEW: usize = 64;

/// What a seat asks for, and how far it is believed.
pub(crate) enum Jobs {
    /// Of the stack's own process.
    Own(Box<Consumer>),
    /// Of another one.
    Foreign(Box<spsc::Consumer<Raw>>),
}

/// Where a seat is told something.
enum Events {
    Own(Producer),
    Foreign(spsc::Producer<Raw>),
}

/// Where the news of a connection are told.
pub(crate) enum Teller<'a> {
    Own(&'a mut Producer),
    Foreign(&'a mut spsc::Producer<Raw>, &'a mut Side),
}

/// One thread's end of the stack.
pub(crate) struct Seat {
    /// Whose.
    pub client: u16,
    /// Elsewhere while they are done; none of one that has gone.
    jobs: Option<Jobs>,
    events: Events,
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
    /// Its client has ended: nothing is heard of it any more.
    ended: bool,
    /// Nothing is left of it.
    gone: bool,
}

/// All of them. The first client and the first seat, which most stacks have alone, are a step nearer than the others.
pub(crate) struct Clients {
    /// The stack's side of the chunks of its own process.
    home: Side,
    /// The other clients.
    others: Vec<Foreign>,
    first: Seat,
    seats: Vec<Seat>,
    /// Seats of other clients at whose jobs is looked in each turn.
    polled: Vec<SeatId>,
    /// Seats that were told something in this turn.
    told: Vec<SeatId>,
    /// Seats with answers, or with news that found no room.
    waiting: Vec<SeatId>,
}

impl Clients {
    /// One client with one seat.
    pub fn new(home: Side, jobs: Consumer, events: Producer) -> Clients {
        let first = Seat::new(HOME, Jobs::Own(Box::new(jobs)), Events::Own(events));
        let (others, seats, polled) = (Vec::new(), Vec::new(), Vec::new());
        Clients { home, others, first, seats, polled, told: Vec::new(), waiting: Vec::new() }
    }

    /// Another seat of the client in the stack's own process; `None` where there are too many.
    pub fn add_seat(&mut self, jobs: Consumer, events: Producer) -> Option<SeatId> {
        let seat = self.insert(Seat::new(HOME, Jobs::Own(Box::new(jobs)), Events::Own(events)))?;
        self.polled.push(seat);
        Some(seat)
    }

    /// A seat in the place of one that has gone, or in a new one; `None` where there are too many.
    fn insert(&mut self, seat: Seat) -> Option<SeatId> {
        let place = self.seats.iter().position(Seat::is_free).unwrap_or(self.seats.len());
        let id = u16::try_from(place + 1).ok().filter(|id| *id < u16::MAX)?;
        match self.seats.get_mut(place) {
            Some(free) => *free = seat,
            None => self.seats.push(seat),
        }
        Some(SeatId(id))
    }

    /// The chunks of a client.
    #[inline(always)]
    pub fn side(&mut self, client: u16) -> &mut Side {
        match usize::from(client) {
            0 => &mut self.home,
            n => self.others[n - 1].side(),
        }
    }

    /// The chunks in the stack's own process.
    #[inline(always)]
    pub fn home(&self) -> &Side {
        &self.home
    }

    /// The same, to change.
    pub fn home_mut(&mut self) -> &mut Side {
        &mut self.home
    }

    /// The chunks in the stack's own process, and those of a client in another one.
    ///
    /// # Panics
    /// Where the client is not in another one.
    pub fn home_and(&mut self, client: ClientId) -> (&mut Side, &mut Side) {
        (&mut self.home, self.others[usize::from(client.0) - 1].side())
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

    /// The seat at whose jobs is looked after the first one's and `n` others'.
    #[inline]
    pub fn polled(&self, n: usize) -> Option<SeatId> {
        self.polled.get(n).copied()
    }

    /// Passes chunks to sides that have few.
    #[inline]
    pub fn supply(&mut self, low: u32) {
        self.home.supply_peer(low);
        for n in 0..self.polled.len() {
            if let Some(client) = usize::from(self.seat(self.polled[n]).client).checked_sub(1) {
                self.others[client].side().supply_peer(low);
            }
        }
    }

    /// Whether jobs wait.
    pub fn have_jobs(&self) -> bool {
        self.first.has_jobs() || self.polled.iter().any(|id| self.seats[usize::from(id.0) - 1].has_jobs())
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
            let told = self.teller(id).tell(answer);
            debug_assert!(told, "room was checked");
            emitted += 1;
        }
        (emitted, true)
    }

    /// Connections of a seat whose news found no room, about.
    pub fn stalled(&mut self, id: SeatId) -> usize {
        self.seat(id).stalled.len()
    }

    /// A seat has no room for so many events.
    pub fn is_full(&mut self, id: SeatId, events: usize) -> bool {
        let seat = self.seat(id);
        !seat.answers.is_empty() || !seat.events.has_room(events)
    }

    /// A connection whose news found no room before.
    pub fn next_stalled(&mut self, id: SeatId) -> Option<Entry> {
        self.seat(id).stalled.pop_front()
    }

    /// A connection whose news found no room in the ring again comes first.
    pub fn stall_first(&mut self, id: SeatId, entry: Entry) {
        self.seat(id).stalled.push_front(entry);
        self.wait(id);
    }

    /// A connection whose news found room in the ring, and not in its client's memory, comes behind all others.
    pub fn stall_last(&mut self, id: SeatId, entry: Entry) {
        self.seat(id).stalled.push_back(entry);
        self.wait(id);
    }

    /// Connections whose news found no room, and who should hear of them.
    pub fn each_stalled(&self) -> impl Iterator<Item = (SeatId, Entry)> + '_ {
        let each = core::iter::once(&self.first).chain(&self.seats);
        self.ids().zip(each).flat_map(|(id, seat)| seat.stalled.iter().map(move |entry| (id, *entry)))
    }

    /// Whether nobody hears what a seat is told any more.
    pub fn is_ended(&mut self, id: SeatId) -> bool {
        self.seat(id).ended
    }

    /// Where the news of a connection of this seat are told, if there is room for so many events. The seat's answers come first, since they
    /// name its connections.
    #[inline(always)]
    pub fn open(&mut self, id: SeatId, events: usize) -> Option<Teller<'_>> {
        let seat = self.seat(id);
        if !seat.answers.is_empty() || !seat.events.has_room(events) {
            return None;
        }
        Some(self.teller(id))
    }

    /// The same of the first seat, which has a ring of messages.
    #[inline(always)]
    pub fn open_first(&mut self, events: usize) -> Option<&mut Producer> {
        if !self.first.answers.is_empty() || !self.first.events.has_room(events) {
            return None;
        }
        if !self.first.told {
            self.note_told(FIRST);
        }
        match &mut self.first.events {
            Events::Own(events) => Some(events),
            Events::Foreign(_) => None,
        }
    }

    /// Where a seat is told something that there is room for.
    #[inline(always)]
    fn teller(&mut self, id: SeatId) -> Teller<'_> {
        if !self.seat(id).told {
            self.note_told(id);
        }
        let Clients { home, others, first, seats, .. } = self;
        let seat = match usize::from(id.0) {
            0 => first,
            n => &mut seats[n - 1],
        };
        let side = match usize::from(seat.client) {
            0 => home,
            n => others[n - 1].side(),
        };
        match &mut seat.events {
            Events::Own(events) => Teller::Own(events),
            Events::Foreign(events) => Teller::Foreign(events, side),
        }
    }

    #[cold]
    fn note_told(&mut self, id: SeatId) {
        self.seat(id).told = true;
        self.told.push(id);
    }

    /// Hands over what seats were told in this turn.
    #[inline]
    pub fn publish(&mut self) {
        for i in 0..self.told.len() {
            let seat = self.seat(self.told[i]);
            seat.told = false;
            seat.events.publish();
        }
    }

    /// The seats that were told something in this turn.
    pub fn last_told(&self) -> &[SeatId] {
        &self.told
    }

    /// A turn begins.
    #[inline]
    pub fn begin(&mut self) {
        self.told.clear();
    }
}

/// Who can be told something; whether there was room.
pub(crate) trait Tell {
    fn tell(&mut self, event: Event) -> bool;
}

impl Tell for Producer {
    #[inline(always)]
    fn tell(&mut self, event: Event) -> bool {
        self.push(event.into_message()).is_ok()
    }
}

impl Tell for Teller<'_> {
    fn tell(&mut self, event: Event) -> bool {
        match self {
            Teller::Own(events) => events.tell(event),
            Teller::Foreign(events, side) => far(events, side, event),
        }
    }
}

/// Tells another process an event.
#[inline(never)]
fn far(events: &mut spsc::Producer<Raw>, side: &mut Side, event: Event) -> bool {
    events.push(side.dismiss(event.into_message())).is_ok()
}

impl Jobs {
    fn is_empty(&self) -> bool {
        match self {
            Jobs::Own(jobs) => jobs.is_empty(),
            Jobs::Foreign(jobs) => jobs.is_empty(),
        }
    }

    fn offer(&self) -> Option<u32> {
        match self {
            Jobs::Own(jobs) => jobs.offer(),
            Jobs::Foreign(jobs) => jobs.offer(),
        }
    }

    fn take_offer(&mut self) {
        match self {
            Jobs::Own(jobs) => jobs.take_offer(),
            Jobs::Foreign(jobs) => jobs.take_offer(),
        }
    }
}

impl Events {
    #[inline(always)]
    fn has_room(&mut self, events: usize) -> bool {
        match self {
            Events::Own(ring) => ring.has_room(events),
            Events::Foreign(ring) => ring.has_room(events),
        }
    }

    #[inline]
    fn publish(&mut self) {
        match self {
            Events::Own(ring) => ring.publish(),
            Events::Foreign(ring) => ring.publish(),
        };
    }
}

impl Seat {
    fn new(client: u16, jobs: Jobs, events: Events) -> Seat {
        Seat {
            client,
            jobs: Some(jobs),
            events,
            answers: VecDeque::new(),
            stalled: VecDeque::new(),
            sweep_at: FEW,
            prepared: Options::default(),
            ending: false,
            left: None,
            told: false,
            waits: false,
            ended: false,
            gone: false,
        }
    }

    /// Whether its place can be another's.
    fn is_free(&self) -> bool {
        self.gone && !self.told && !self.waits
    }

    /// Whether jobs wait.
    #[inline]
    pub fn has_jobs(&self) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| !jobs.is_empty())
    }

    /// Answers that wait for room.
    pub fn answers(&self) -> usize {
        self.answers.len()
    }

    /// Its jobs, to be done, if any wait; [`Seat::put_jobs`] brings them back.
    #[inline]
    pub fn take_jobs(&mut self) -> Option<Jobs> {
        if self.has_jobs() { self.jobs.take() } else { None }
    }

    /// Those that were taken are done.
    #[inline]
    pub fn put_jobs(&mut self, mut jobs: Jobs) {
        if self.ended {
            return;
        }
        match &mut jobs {
            Jobs::Own(jobs) => jobs.release(),
            Jobs::Foreign(jobs) => jobs.release(),
        }
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
