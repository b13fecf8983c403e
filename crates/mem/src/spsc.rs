//! Rings from one producer to one consumer.
//!
//! [`queue`] carries any plain value, [`ring`](crate::ring) the messages of a lane. Writing and publishing are separate, so that a batch
//! costs one release store; so are reading and releasing. Items still in a ring when its consumer goes are forgotten.
//!
//! To sleep on an empty ring: declare it, issue one SeqCst fence, look at [`Consumer::is_empty`] once more, sleep. The
//! producer publishes, issues one SeqCst fence, and looks at the declaration. One of the two sees the other.

use crate::arena::{Arena, ArenaConfig, ArenaError, Huge};
use crate::index::{self, Head, INDICES_BYTES, Tail};
use crate::sync::Slots;
use std::sync::Arc;

/// The writing end.
pub struct Producer<T> {
    tail: Tail,
    slots: Slots<T>,
}

/// The reading end.
pub struct Consumer<T> {
    head: Head,
    slots: Slots<T>,
    /// Slots that may be held back before they are released unasked.
    lazy: u32,
    /// How many of those are left.
    left: u32,
}

/// A ring of plain values in memory of its own. `capacity` is a power of two from 1 to 2^30.
pub fn queue<T: Copy + Send + 'static>(capacity: usize) -> Result<(Producer<T>, Consumer<T>), ArenaError> {
    alone::<T>(capacity)
}

/// As [`queue`], in an arena that has [`queue_bytes`] left.
pub fn queue_in<T: Copy + Send + 'static>(
    arena: &Arc<Arena>,
    capacity: usize,
) -> Result<(Producer<T>, Consumer<T>), ArenaError> {
    ends::<T>(arena, capacity)
}

/// Bytes of arena that [`queue_in`] takes at most.
pub fn queue_bytes<T>(capacity: usize) -> usize {
    bytes::<T>(capacity)
}

/// Where a ring lies, for who makes its ends.
pub(crate) struct Place<T> {
    indices: index::Place,
    slots: Slots<T>,
    capacity: u32,
}

impl<T: Send + 'static> Place<T> {
    /// `capacity` is a power of two from 1 to 2^30; the arena has [`bytes`] left.
    pub(crate) fn new(arena: &Arc<Arena>, capacity: usize) -> Result<Place<T>, ArenaError> {
        const { assert!(align_of::<T>() <= 4096) };
        let indices = index::Place::new(arena, capacity)?;
        Ok(Place { indices, slots: Slots::new(arena, capacity)?, capacity: capacity as u32 })
    }

    /// The same ring for values of another type of the same size and alignment, of which those at the other end are, too.
    #[cfg(not(any(miri, loom)))]
    pub(crate) fn as_kind<U>(&self) -> Place<U> {
        const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
        Place { indices: self.indices.clone(), slots: self.slots.as_kind(), capacity: self.capacity }
    }

    /// The writing end. There must be one.
    pub(crate) fn producer(&self) -> Producer<T> {
        Producer { tail: self.indices.tail(), slots: self.slots.clone() }
    }

    /// The reading end. There must be one.
    pub(crate) fn consumer(&self) -> Consumer<T> {
        let lazy = (self.capacity / 4).clamp(1, 64);
        Consumer { head: self.indices.head(), slots: self.slots.clone(), lazy, left: lazy }
    }
}

/// Bytes of arena that a ring takes at most.
pub(crate) fn bytes<T>(capacity: usize) -> usize {
    INDICES_BYTES.saturating_add(align_of::<T>().max(64)).saturating_add(size_of::<T>().saturating_mul(capacity))
}

pub(crate) fn alone<T: Send + 'static>(capacity: usize) -> Result<(Producer<T>, Consumer<T>), ArenaError> {
    index::check(capacity)?;
    let arena = Arena::reserve(&ArenaConfig { bytes: bytes::<T>(capacity), huge: Huge::No, ..Default::default() })?;
    ends(&arena, capacity)
}

pub(crate) fn ends<T: Send + 'static>(
    arena: &Arc<Arena>,
    capacity: usize,
) -> Result<(Producer<T>, Consumer<T>), ArenaError> {
    let place = Place::new(arena, capacity)?;
    Ok((place.producer(), place.consumer()))
}

impl<T> Producer<T> {
    /// Writes without publishing. Gives the value back when the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        let Some(slot) = self.tail.slot() else { return Err(value) };
        // SAFETY: `slot` is below the slot count and the producer's own until published.
        unsafe { self.slots.write(slot, value) };
        self.tail.advance();
        Ok(())
    }

    /// What was written last, to change, if it is neither published nor offered.
    #[inline]
    pub fn last(&mut self) -> Option<&mut T> {
        let slot = self.tail.last()?;
        // SAFETY: `slot` is below the slot count, was written, and is the producer's own until published or offered,
        // which takes `&mut self`.
        Some(unsafe { self.slots.get_mut(slot) })
    }

    /// Hands everything written to the consumer, by one release store; says whether there was anything.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.tail.publish()
    }

    /// Lets a consumer that has [waited](Consumer::offer) long enough for more take what was written, without publishing it:
    /// for who may not come back soon. Whether the consumer must be woken to wait; it knows already otherwise.
    #[inline]
    pub fn offer(&mut self) -> bool {
        self.tail.offer()
    }

    /// Slots that can be written now. Reads the peer's index.
    pub fn room(&mut self) -> usize {
        self.tail.room() as usize
    }

    /// Whether `n` more fit. Reads the peer's index only when what was last seen of it does not suffice.
    #[inline]
    pub fn has_room(&mut self, n: usize) -> bool {
        n <= self.capacity() && self.tail.has_room(n as u32)
    }

    /// Values written and not published.
    pub fn pending(&self) -> usize {
        self.tail.pending() as usize
    }

    /// Values that the consumer has not released yet, those not published included.
    pub fn len(&self) -> usize {
        self.tail.len() as usize
    }

    /// Whether the consumer has released everything ever written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots in all.
    pub fn capacity(&self) -> usize {
        self.tail.slots() as usize
    }

    /// Whether the consumer was dropped: nothing pushed from now on is read.
    pub fn peer_gone(&self) -> bool {
        self.tail.peer_gone()
    }
}

impl<T> Consumer<T> {
    /// Takes the next value. What was taken is released now and then, and whenever the ring looks empty.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let Some(slot) = self.head.slot() else {
            self.release();
            return None;
        };
        // SAFETY: `slot` is below the slot count; the producer wrote and published it, and it is read once: `advance`
        // moves past it before anything else can look.
        let value = unsafe { self.slots.read(slot) };
        self.head.advance(1);
        self.left -= 1;
        if self.left == 0 {
            self.release();
        }
        Some(value)
    }

    /// Takes the next value as [`Consumer::pop`] does, where whoever writes it may go on writing: it is read once, whatever that is, and
    /// the copy does not change.
    #[inline]
    pub(crate) fn pop_copy(&mut self) -> Option<T>
    where
        T: Copy,
    {
        let Some(slot) = self.head.slot() else {
            self.release();
            return None;
        };
        // SAFETY: `slot` is below the slot count; every pattern of bits is a T, as whoever uses this for memory that it shares says.
        let value = unsafe { self.slots.copy(slot) };
        self.head.advance(1);
        self.left -= 1;
        if self.left == 0 {
            self.release();
        }
        Some(value)
    }

    /// Whether the producer has ever published more than the ring holds: it does not keep to the rules.
    pub fn is_overrun(&self) -> bool {
        self.head.is_overrun()
    }

    /// The value that comes `ahead` after the next one, if it is known to be there.
    #[inline]
    pub fn peek(&self, ahead: u32) -> Option<&T> {
        // SAFETY: the slot is published and not taken, so nobody writes to it; taking needs `&mut self`.
        (ahead < self.head.known()).then(|| unsafe { self.slots.get(self.head.slot_at(ahead)) })
    }

    /// Gives every slot taken so far back to the producer.
    #[inline]
    pub fn release(&mut self) {
        self.head.release();
        self.left = self.lazy;
    }

    /// Whether anything was offered that is neither published nor taken: a number that stays the same as long as it is the same
    /// offer, which may grow.
    pub fn offer(&self) -> Option<u32> {
        self.head.offer()
    }

    /// What is offered can be taken as if it were published. The producer tells of its next offer, unless it made that at this
    /// very moment: who sleeps now should look once more before long.
    pub fn take_offer(&mut self) {
        self.head.take_offer();
    }

    /// Values that could be taken now.
    pub fn len(&self) -> usize {
        self.head.len() as usize
    }

    /// Whether there is nothing to take now.
    pub fn is_empty(&self) -> bool {
        self.head.len() == 0
    }

    /// Slots in all.
    pub fn capacity(&self) -> usize {
        self.head.slots() as usize
    }

    /// Whether the producer was dropped. What it published before can still be taken: look again after this says so.
    pub fn peer_gone(&self) -> bool {
        self.head.peer_gone()
    }
}

impl<T> std::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("capacity", &self.capacity()).field("len", &self.len()).finish()
    }
}

impl<T> std::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("capacity", &self.capacity()).field("len", &self.len()).finish()
    }
}
