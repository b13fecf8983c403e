//! What two sides of a pool say to each other, and the surplus that they pass.

use super::{Batch, PoolStats, batch_of, ring_slots};
use crate::arena::{Arena, ArenaError};
use crate::spsc::{self, Consumer, Place, Producer};
use crate::sync::{AtomicU32, Ordering, Placed, Shared};
use std::sync::Arc;

/// What one side tells the other; each written by one side only.
#[derive(Default)]
#[repr(C, align(128))]
struct Notice {
    /// Free chunks in the side's magazine, roughly.
    free: AtomicU32,
    /// Chunks passed to the other side, wrapping.
    given: AtomicU32,
    /// Chunks taken from the other side, wrapping.
    taken: AtomicU32,
}

#[derive(Default)]
#[repr(C)]
struct Notices([Notice; 2]);

// SAFETY: atomics only; zero is their default.
unsafe impl Shared for Notices {}

/// Where two sides meet: side 0 is the stack's.
pub(crate) struct Link {
    notices: Placed<Notices>,
    /// What each side passes to the other.
    from: [Place<Batch>; 2],
}

impl Link {
    /// For a pool of so many chunks, in an arena that has [`Link::bytes`] left.
    pub fn new(arena: &Arc<Arena>, chunks: u32) -> Result<Link, ArenaError> {
        let slots = ring_slots(chunks, batch_of(chunks));
        Ok(Link { notices: Placed::new(arena)?, from: [Place::new(arena, slots)?, Place::new(arena, slots)?] })
    }

    /// Bytes of arena that it takes at most.
    pub fn bytes(chunks: u32) -> usize {
        let ring = spsc::queue_bytes::<Batch>(ring_slots(chunks, batch_of(chunks)));
        2 * ring + size_of::<Notices>() + align_of::<Notices>()
    }

    /// What side `which` has of it. There must be one of each.
    pub fn peer(&self, which: usize) -> Peer {
        Peer {
            notices: self.notices.clone(),
            which,
            give: self.from[which].producer(),
            take: self.from[1 - which].consumer(),
        }
    }
}

/// Another side of the pool, as this one sees it.
pub(crate) struct Peer {
    notices: Placed<Notices>,
    which: usize,
    give: Producer<Batch>,
    take: Consumer<Batch>,
}

impl Peer {
    fn own(&self) -> &Notice {
        &self.notices.0[self.which]
    }

    fn other(&self) -> &Notice {
        &self.notices.0[1 - self.which]
    }

    /// Takes a batch that it passed.
    pub fn take(&mut self) -> Option<Batch> {
        let batch = self.take.pop()?;
        self.took(batch.count);
        Some(batch)
    }

    /// As [`Peer::take`], of one that may go on writing: nothing is known of the batch.
    pub fn take_copy(&mut self) -> Option<Batch> {
        self.take.pop_copy()
    }

    /// So many chunks of it were taken.
    pub fn took(&self, chunks: u32) {
        let taken = &self.own().taken;
        taken.store(taken.load(Ordering::Relaxed).wrapping_add(chunks), Ordering::Relaxed);
    }

    /// Whether it keeps to the rules of the ring.
    pub fn is_overrun(&self) -> bool {
        self.take.is_overrun()
    }

    /// Whether there is room for another batch.
    pub fn has_room(&mut self) -> bool {
        self.give.has_room(1)
    }

    /// Passes a batch.
    pub fn give(&mut self, batch: Batch) -> Result<(), Batch> {
        self.give.push(batch)?;
        self.give.publish();
        let given = &self.own().given;
        given.store(given.load(Ordering::Relaxed).wrapping_add(batch.count), Ordering::Relaxed);
        Ok(())
    }

    /// Tells how many are free here.
    #[inline]
    pub fn tell(&self, free: u32) {
        self.own().free.store(free, Ordering::Relaxed);
    }

    /// Free chunks that it has or is being passed, roughly.
    #[inline]
    pub fn free(&self) -> u32 {
        let passing = self.own().given.load(Ordering::Relaxed).wrapping_sub(self.other().taken.load(Ordering::Relaxed));
        self.other().free.load(Ordering::Relaxed).saturating_add(passing)
    }

    /// Adds what is known of it to the numbers of a pool of so many chunks.
    #[inline]
    pub fn count(&self, chunks: u32, stats: &mut PoolStats) {
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let (own, other) = (self.own(), self.other());
        let to_peer = load(&own.given).wrapping_sub(load(&other.taken));
        let to_here = load(&other.given).wrapping_sub(load(&own.taken));
        // Read at different moments, the two could pass each other; and what another process writes may be anything.
        stats.passing = stats.passing.saturating_add(to_peer.min(chunks) + to_here.min(chunks));
        stats.free_peer = stats.free_peer.saturating_add(load(&other.free));
        stats.passed = stats.passed.wrapping_add(load(&own.given));
    }
}
