//! The two indices of a single-producer single-consumer ring, and the protocol between them.
//!
//! Both count up and wrap; their difference is what the ring holds. Each side writes its own index with one release store
//! for a batch and keeps a copy of the peer's, read again only when the copy says full or empty, so in steady state the
//! two lines move between cores once a batch, not once an item.
//!
//! A producer that may not come back soon *offers* what it has written and not published: a consumer that was told, and has
//! waited long enough for the rest of the batch, takes it. So the consumer can be ahead of what is published.

use crate::arena::{Arena, ArenaError};
use crate::sync::{AtomicU32, Ordering, Placed, Shared};
use std::sync::Arc;

/// One side's line. 128 bytes apart, since processors fetch lines in pairs.
#[derive(Default)]
#[repr(C, align(128))]
struct Line {
    index: AtomicU32,
    gone: AtomicU32,
    /// The producer's: up to where slots are offered, if that is beyond what is published.
    offered: AtomicU32,
    /// Beside it: the consumer has taken what was offered, and wants to be told of the next offer.
    taken: AtomicU32,
}

/// The shared words of a ring.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Indices {
    tail: Line,
    head: Line,
}

// SAFETY: atomics only; zero is their default.
unsafe impl Shared for Indices {}

/// Bytes of arena that a ring's indices take, alignment included.
pub(crate) const INDICES_BYTES: usize = size_of::<Indices>() + align_of::<Line>();

/// Refuses slot counts that are not a power of two from 1 to 2^30.
pub(crate) fn check(slots: usize) -> Result<(), ArenaError> {
    if slots.is_power_of_two() && slots <= 1 << 30 { Ok(()) } else { Err(ArenaError::Slots(slots)) }
}

/// Where the indices of a ring lie, for who makes its ends.
#[derive(Clone)]
pub(crate) struct Place {
    shared: Placed<Indices>,
    slots: u32,
}

impl Place {
    /// For `slots` slots, a power of two from 1 to 2^30.
    pub(crate) fn new(arena: &Arc<Arena>, slots: usize) -> Result<Place, ArenaError> {
        check(slots)?;
        Ok(Place { shared: Placed::new(arena)?, slots: slots as u32 })
    }

    /// The producer's end. There must be one.
    pub(crate) fn tail(&self) -> Tail {
        Tail { shared: self.shared.clone(), slots: self.slots, next: 0, published: 0, offered: 0, head: 0 }
    }

    /// The consumer's end. There must be one.
    pub(crate) fn head(&self) -> Head {
        Head { shared: self.shared.clone(), slots: self.slots, next: 0, released: 0, tail: 0, overrun: false }
    }
}

/// Makes both ends for `slots` slots, a power of two from 1 to 2^30.
pub(crate) fn ends(arena: &Arc<Arena>, slots: usize) -> Result<(Tail, Head), ArenaError> {
    let place = Place::new(arena, slots)?;
    Ok((place.tail(), place.head()))
}

/// How far `a` is ahead of `b`; 0 where it is behind.
#[inline]
fn ahead(a: u32, b: u32) -> u32 {
    (a.wrapping_sub(b) as i32).max(0) as u32
}

/// The producer's end: slots from `next` up to the peer's head plus `slots` are its own.
pub(crate) struct Tail {
    shared: Placed<Indices>,
    slots: u32,
    next: u32,
    published: u32,
    /// Never behind what is published.
    offered: u32,
    /// The consumer's index as last seen.
    head: u32,
}

impl Tail {
    /// None where the consumer's index is one that cannot be: what is written then is lost to that one alone.
    #[inline(always)]
    fn cached_room(&self) -> u32 {
        self.slots.saturating_sub(self.next.wrapping_sub(self.head))
    }

    fn refresh(&mut self) {
        // Acquire: the consumer is done with the slots before we write them.
        self.head = self.shared.head.index.load(Ordering::Acquire);
    }

    /// Slots that can be written now.
    pub(crate) fn room(&mut self) -> u32 {
        self.refresh();
        self.cached_room()
    }

    /// Whether `n` slots can be written; looks at the peer's line only when the last look does not suffice.
    #[inline]
    pub(crate) fn has_room(&mut self, n: u32) -> bool {
        self.cached_room() >= n || self.room() >= n
    }

    /// The slot to write next, exclusively ours until published, if there is one.
    #[inline]
    pub(crate) fn slot(&mut self) -> Option<u32> {
        self.has_room(1).then(|| self.next & (self.slots - 1))
    }

    /// The slot written last, if it is neither published nor offered.
    #[inline]
    pub(crate) fn last(&self) -> Option<u32> {
        (self.next != self.offered).then(|| self.next.wrapping_sub(1) & (self.slots - 1))
    }

    /// The slot that comes `ahead` after that one, whoever has it now.
    #[inline]
    pub(crate) fn slot_ahead(&self, ahead: u32) -> u32 {
        self.next.wrapping_add(ahead) & (self.slots - 1)
    }

    /// The slot named by [`Tail::slot`] is written.
    #[inline]
    pub(crate) fn advance(&mut self) {
        debug_assert!(self.cached_room() > 0);
        self.next = self.next.wrapping_add(1);
    }

    /// Hands what was written to the consumer; says whether there was anything.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let any = self.published != self.next;
        if any {
            // Release: the slots' contents come before their index.
            self.shared.tail.index.store(self.next, Ordering::Release);
            self.shared.tail.offered.store(self.next, Ordering::Release);
            (self.published, self.offered) = (self.next, self.next);
        }
        any
    }

    /// Lets a consumer that has waited long enough take what was written; whether it must be told, so that it waits.
    #[inline]
    pub(crate) fn offer(&mut self) -> bool {
        if self.offered == self.next {
            return false;
        }
        let first = self.offered == self.published;
        // Release: as for what is published.
        self.shared.tail.offered.store(self.next, Ordering::Release);
        self.offered = self.next;
        let taken = &self.shared.tail.taken;
        first
            || taken.load(Ordering::Relaxed) != 0 && {
                taken.store(0, Ordering::Relaxed);
                true
            }
    }

    /// Slots written and not published.
    pub(crate) fn pending(&self) -> u32 {
        self.next.wrapping_sub(self.published)
    }

    /// Slots the consumer has not released yet, unpublished ones included.
    pub(crate) fn len(&self) -> u32 {
        self.next.wrapping_sub(self.shared.head.index.load(Ordering::Acquire))
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn peer_gone(&self) -> bool {
        self.shared.head.gone.load(Ordering::Acquire) != 0
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.publish();
        self.shared.tail.gone.store(1, Ordering::Release);
    }
}

/// The consumer's end: slots from `released` up to the peer's tail are its own.
pub(crate) struct Head {
    shared: Placed<Indices>,
    slots: u32,
    next: u32,
    released: u32,
    /// The producer's index as last seen, never further ahead than there are slots.
    tail: u32,
    /// The producer has written an index that cannot be.
    overrun: bool,
}

impl Head {
    /// The slot to read next, exclusively ours until released, if there is one.
    #[inline]
    pub(crate) fn slot(&mut self) -> Option<u32> {
        if self.next == self.tail && self.available() == 0 {
            return None;
        }
        Some(self.next & (self.slots - 1))
    }

    /// The slot `i` behind the next one; only for `i` below what [`Head::available`] said.
    #[inline]
    pub(crate) fn slot_at(&self, i: u32) -> u32 {
        self.next.wrapping_add(i) & (self.slots - 1)
    }

    /// Slots that can be read for all we know without looking.
    #[inline]
    pub(crate) fn known(&self) -> u32 {
        self.tail.wrapping_sub(self.next)
    }

    /// Looks how many slots can be read.
    pub(crate) fn available(&mut self) -> u32 {
        let n = self.len();
        self.reach(self.next.wrapping_add(n))
    }

    /// Slots up to `tail` can be read, unless they are more than there are.
    #[inline]
    fn reach(&mut self, tail: u32) -> u32 {
        let n = tail.wrapping_sub(self.next);
        if n > self.slots {
            self.overrun = true;
            return 0;
        }
        self.tail = tail;
        n
    }

    /// Whether the producer has ever written an index that cannot be.
    pub(crate) fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// `n` slots are read and may be released.
    #[inline]
    pub(crate) fn advance(&mut self, n: u32) {
        debug_assert!(self.tail.wrapping_sub(self.next) >= n);
        self.next = self.next.wrapping_add(n);
    }

    /// Gives slots that were read back to the producer.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.released != self.next {
            // Release: our reads of the slots come before the producer's next writes.
            self.shared.head.index.store(self.next, Ordering::Release);
            self.released = self.next;
        }
    }

    /// Slots that could be read, looked at afresh.
    pub(crate) fn len(&self) -> u32 {
        // Acquire: pairs with the producer's publish. What was taken of an offer may be ahead of it.
        let published = self.shared.tail.index.load(Ordering::Acquire);
        ahead(published, self.next).max(self.known())
    }

    /// Where what is offered, and neither published nor taken, begins.
    pub(crate) fn offer(&self) -> Option<u32> {
        let begin = self.next.wrapping_add(self.len());
        (ahead(self.shared.tail.offered.load(Ordering::Acquire), begin) > 0).then_some(begin)
    }

    /// Takes what is offered as if it were published. The next offer is told, but for one that comes at the same moment: look
    /// once more a while later.
    pub(crate) fn take_offer(&mut self) {
        // Acquire: pairs with the producer's offer.
        let offered = self.shared.tail.offered.load(Ordering::Acquire);
        self.reach(self.tail.wrapping_add(ahead(offered, self.tail)));
        self.shared.tail.taken.store(1, Ordering::Relaxed);
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn peer_gone(&self) -> bool {
        self.shared.tail.gone.load(Ordering::Acquire) != 0
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        self.release();
        self.shared.head.gone.store(1, Ordering::Release);
    }
}
