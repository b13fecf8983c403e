//! The parts of a lease, in a memfd.

use super::{AttachError, MOST_SEATS, Seat, Shape, StackSeat};
use crate::arena::{Arena, ArenaConfig, ArenaError, Backing, Huge};
use crate::pool::{self, Side};
use crate::ring::{self, Raw};
use crate::spsc::{self, Place};
use crate::sync::{Placed, Shared};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// "corelane", as bytes.
const MAGIC: u64 = u64::from_ne_bytes(*b"corelane");
/// Of the parts and their order; what messages mean has a number of its own.
const VERSION: u32 = 1;

#[derive(Default)]
#[repr(C, align(128))]
struct Header {
    magic: AtomicU64,
    /// What messages mean.
    layout: AtomicU64,
    version: AtomicU32,
    chunks: AtomicU32,
    seats: AtomicU32,
    jobs: AtomicU32,
    events: AtomicU32,
    /// The client has attached to it; written by it.
    attached: AtomicU32,
}

// SAFETY: atomics only; zero is their default.
unsafe impl Shared for Header {}

/// A word of a cache line of its own.
#[derive(Default)]
#[repr(C, align(128))]
struct Lone(AtomicU32);

#[derive(Default)]
#[repr(C)]
struct SeatWords {
    /// Written by the stack's side: it does not look at the seat's jobs unless it is woken.
    stack: Lone,
    /// Written by the client: it sleeps.
    client: Lone,
    /// Written by the stack: nothing comes any more, and nothing is heard.
    ended: Lone,
}

// SAFETY: atomics only; zero is their default.
unsafe impl Shared for SeatWords {}

/// The words of a seat, in shared memory.
#[derive(Clone)]
pub struct Words(Placed<SeatWords>);

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stack, client, ended) = (self.stack(), self.client(), self.is_ended());
        f.debug_struct("Words").field("stack", stack).field("client", client).field("ended", &ended).finish()
    }
}

impl Words {
    /// Not zero where the stack must be woken for jobs to be seen; the stack's to write.
    pub fn stack(&self) -> &AtomicU32 {
        &self.0.stack.0
    }

    /// Not zero where the client sleeps, and how; the client's to write.
    pub fn client(&self) -> &AtomicU32 {
        &self.0.client.0
    }

    /// Whether nothing comes any more: the lane is over, or the client was ended for what it did.
    pub fn is_ended(&self) -> bool {
        self.0.ended.0.load(Ordering::Acquire) != 0
    }

    /// Says so; the stack's to call.
    pub fn end(&self) {
        self.0.ended.0.store(1, Ordering::Release);
    }
}

/// Where the parts of a lease lie.
struct Parts {
    header: Placed<Header>,
    pool: pool::Lease,
    seats: Vec<(Placed<SeatWords>, Place<Raw>, Place<Raw>)>,
}

impl Parts {
    fn bytes(shape: &Shape) -> usize {
        let rings = ring::ring_bytes(shape.jobs as usize).saturating_add(ring::ring_bytes(shape.events as usize));
        let seat = rings.saturating_add(size_of::<SeatWords>() + align_of::<SeatWords>());
        pool::Lease::bytes(shape.chunks, shape.seats as usize)
            .saturating_add(size_of::<Header>())
            .saturating_add(seat.saturating_mul(shape.seats as usize))
    }

    /// Cuts everything behind the header off, which comes first.
    fn cut(arena: &Arc<Arena>, header: Placed<Header>, shape: &Shape) -> Result<Parts, ArenaError> {
        let pool = pool::Lease::new(arena, shape.chunks, shape.seats as usize)?;
        let seat = |_| {
            let words = Placed::new(arena)?;
            let jobs = Place::new(arena, shape.jobs as usize)?;
            Ok((words, jobs, Place::new(arena, shape.events as usize)?))
        };
        let seats = (0..shape.seats).map(seat).collect::<Result<_, ArenaError>>()?;
        Ok(Parts { header, pool, seats })
    }
}

/// A client's memory, as the stack has it.
pub struct Lease {
    parts: Parts,
    arena: Arc<Arena>,
    side: AtomicBool,
    taken: Vec<AtomicBool>,
}

impl Lease {
    /// Makes a client's memory. `layout` is a number that stands for what messages mean; the client's must be the same.
    pub fn create(shape: &Shape, layout: u64) -> Result<Lease, ArenaError> {
        if !(1..=MOST_SEATS).contains(&shape.seats) {
            return Err(ArenaError::Foreign(format!(
                "a client has from 1 to {MOST_SEATS} threads, not {}",
                shape.seats
            )));
        }
        let config = ArenaConfig { bytes: Parts::bytes(shape), huge: shape.huge, backing: Backing::Memfd };
        let arena = Arena::reserve(&config)?;
        let header: Placed<Header> = Placed::new(&arena)?;
        let parts = Parts::cut(&arena, header, shape)?;
        let header = &parts.header;
        header.layout.store(layout, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.chunks.store(shape.chunks, Ordering::Relaxed);
        header.seats.store(shape.seats, Ordering::Relaxed);
        header.jobs.store(shape.jobs, Ordering::Relaxed);
        header.events.store(shape.events, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        // Nobody looks at a seat's jobs before it has been taken.
        parts.seats.iter().for_each(|(words, ..)| words.stack.0.store(1, Ordering::Relaxed));
        let taken = (0..shape.seats).map(|_| AtomicBool::new(false)).collect();
        Ok(Lease { parts, arena, side: AtomicBool::new(false), taken })
    }

    /// What the client maps.
    pub fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: what lies there is checked where the stack reads it.
        unsafe { self.arena.file() }.expect("a lease lies in a memfd")
    }

    /// Seats in it.
    pub fn seats(&self) -> usize {
        self.parts.seats.len()
    }

    /// The stack's side of the pool, once.
    pub fn stack_side(&self) -> Result<Option<Side>, ArenaError> {
        if self.side.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        self.parts.pool.stack_side().map(Some)
    }

    /// The stack's ends of a seat, once, where there is such a seat; its side passes chunks to the client's from now on.
    pub fn stack_seat(&self, seat: usize, side: &mut Side) -> Option<StackSeat> {
        if self.taken.get(seat)?.swap(true, Ordering::AcqRel) {
            return None;
        }
        if let Some(link) = self.parts.pool.link(seat) {
            side.join(link);
        }
        let (words, jobs, events) = &self.parts.seats[seat];
        Some(StackSeat { jobs: jobs.consumer(), events: events.producer(), words: Words(words.clone()) })
    }
}

/// A client's memory, as the client has it.
pub struct Attached {
    parts: Parts,
    tag: u32,
    taken: Vec<AtomicBool>,
}

/// How versions are written.
fn version(version: u32, layout: u64) -> String {
    format!("{version}.{layout:016x}")
}

impl Attached {
    /// Maps the memory that a stack has made for this process. A child of fork(2) does not have it.
    pub fn open(file: OwnedFd, layout: u64) -> Result<Attached, AttachError> {
        let arena = Arena::attach(file)?;
        if arena.bytes() < size_of::<Header>() {
            return Err(AttachError::Strange);
        }
        let header: Placed<Header> = Placed::new(&arena)?;
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(AttachError::Strange);
        }
        let (theirs, means) = (load(&header.version), header.layout.load(Ordering::Relaxed));
        if (theirs, means) != (VERSION, layout) {
            return Err(AttachError::Version { stack: version(theirs, means), ours: version(VERSION, layout) });
        }
        let shape = Shape {
            chunks: load(&header.chunks),
            seats: load(&header.seats),
            jobs: load(&header.jobs),
            events: load(&header.events),
            huge: Huge::No,
        };
        if !(1..=MOST_SEATS).contains(&shape.seats) {
            return Err(AttachError::Strange);
        }
        if header.attached.swap(1, Ordering::AcqRel) != 0 {
            return Err(AttachError::Taken);
        }
        let parts = Parts::cut(&arena, header, &shape)?;
        let tag = parts.pool.attach()?;
        let taken = (0..shape.seats).map(|_| AtomicBool::new(false)).collect();
        Ok(Attached { parts, tag, taken })
    }

    /// Seats in it.
    pub fn seats(&self) -> usize {
        self.parts.seats.len()
    }

    /// A thread's rings as words, once, for whoever writes and reads them itself: for tests of clients that keep no rule.
    #[doc(hidden)]
    pub fn raw_seat(&self, seat: usize) -> Option<(spsc::Producer<Raw>, spsc::Consumer<Raw>)> {
        if self.taken.get(seat)?.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (_, jobs, events) = &self.parts.seats[seat];
        Some((jobs.producer(), events.consumer()))
    }

    /// A thread's ends, once, where there is such a seat. The stack has to be told that it was taken.
    pub fn seat(&self, seat: usize) -> Option<Seat> {
        if self.taken.get(seat)?.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (words, jobs, events) = &self.parts.seats[seat];
        Some(Seat {
            side: self.parts.pool.seat_side(seat, self.tag),
            jobs: jobs.messages().producer(),
            events: events.messages().consumer(),
            words: Words(words.clone()),
        })
    }
}
