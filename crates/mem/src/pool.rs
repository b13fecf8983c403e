//! Chunks of 2 KiB and who owns them.
//!
//! A pool has one side for the stack and one for each thread of the application. Each allocates from and frees into a private
//! magazine, lists of chunks threaded through their records, without any atomic operation. A magazine past its high
//! mark passes batches to the other side through an SPSC ring as long as that has fewer, and a side that sees the other run
//! low passes some over ([`Side::supply_peer`]). Surplus goes between the stack's side and another, never between two of the application's.
//! Chunks that were never used come from a shared counter, 64 at a time: the only atomic
//! read-modify-write, and memory that was never needed is never touched.
//!
//! Ownership is what makes the safe faces sound: every chunk is, at any time, in exactly one chain, magazine or ring slot,
//! and only whoever holds that may touch the chunk or its record. Where the application is another process ([`border`]), the stack keeps
//! its own records, and believes what that one writes only after it has looked.

#[cfg_attr(any(miri, loom), allow(dead_code, reason = "leases lie in files, which neither of them maps"))]
mod border;
mod peer;
mod usage;

use crate::arena::{Arena, ArenaConfig, ArenaError, Backing, Huge};
use crate::sync::{AtomicU32, Ordering, Placed, Shared, Tracks};
use border::Border;
use peer::{Link, Peer};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

/// Payload bytes of a chunk.
pub const CHUNK_BYTES: usize = 2048;

pub(crate) const NIL: u32 = u32::MAX;

/// Chunks in a full batch, and in one helping of fresh ones.
const BATCH: u32 = 64;

pub use border::Breach;
#[cfg(not(any(miri, loom)))]
pub(crate) use border::Lease;
pub use usage::PoolStats;

/// What is known of a chunk, apart from its payload.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Record {
    /// The next chunk of the chain or free list, or `NIL`.
    pub(crate) next: u32,
    /// Where the live bytes start in the payload.
    pub(crate) off: u16,
    /// Live bytes; `off + len <= CHUNK_BYTES`.
    pub(crate) len: u16,
    /// In the first chunk of a chain: where sequential reading is (see `chain`).
    pub(crate) mark: Mark,
}

/// A chunk of a chain and the distance from the chain's first byte to the chunk's.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Mark {
    pub(crate) chunk: u32,
    pub(crate) start: u32,
}

/// How to make a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Chunks of [`CHUNK_BYTES`]; address space, not memory, until used.
    pub chunks: u32,
    /// Huge pages to try.
    pub huge: Huge,
    /// Where the memory comes from.
    pub backing: Backing,
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        PoolConfig { chunks: 1 << 16, huge: Huge::default(), backing: Backing::default() }
    }
}

/// A free list that travels as one ring item.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Batch {
    head: u32,
    count: u32,
}

const NONE: Batch = Batch { head: NIL, count: 0 };

/// The first chunk never handed out.
#[derive(Default)]
#[repr(C, align(128))]
struct Fresh(AtomicU32);

// SAFETY: atomics only; zero is their default.
unsafe impl Shared for Fresh {}

/// Makes pools.
#[derive(Debug)]
pub struct Pool;

impl Pool {
    /// A pool in memory of its own: the stack's side, the application's side.
    #[expect(clippy::new_ret_no_self, reason = "a pool is its two sides")]
    pub fn new(config: &PoolConfig) -> Result<(Side, Side), ArenaError> {
        check(config.chunks)?;
        let arena = Arena::reserve(&ArenaConfig {
            bytes: Pool::bytes(config.chunks),
            huge: config.huge,
            backing: config.backing,
        })?;
        Pool::new_in(&arena, config.chunks)
    }

    /// Bytes of arena that [`Pool::new_in`] takes at most.
    pub fn bytes(chunks: u32) -> usize {
        (chunks as usize)
            .saturating_mul(CHUNK_BYTES + size_of::<Record>())
            .saturating_add(2 * 4096 + Link::bytes(chunks) + 2 * size_of::<Fresh>())
    }

    /// A pool in an arena that has [`Pool::bytes`] left.
    pub fn new_in(arena: &Arc<Arena>, chunks: u32) -> Result<(Side, Side), ArenaError> {
        check(chunks)?;
        let payload = arena.carve((chunks as usize).checked_mul(CHUNK_BYTES).ok_or(ArenaError::TooLarge)?, 4096)?;
        let records = arena.carve(chunks as usize * size_of::<Record>(), 64)?.cast();
        let fresh: Placed<Fresh> = Placed::new(arena)?;
        let link = Link::new(arena, chunks)?;
        let shape = Shape {
            payload,
            records,
            tag: next_tag()?,
            chunks,
            tracks: Tracks::new(chunks as usize),
            arena: arena.clone(),
        };
        let side = |which| Side::new(&shape, link.peer(which), Untouched::Shared(fresh.clone()));
        Ok((side(0), side(1)))
    }
}

/// What all sides of a pool have together.
struct Shape {
    payload: NonNull<u8>,
    records: NonNull<Record>,
    tag: u32,
    chunks: u32,
    tracks: Tracks,
    arena: Arc<Arena>,
}

/// Where a side finds chunks that were never used, when those that it has set aside are gone.
enum Untouched {
    /// Behind a counter that the sides share.
    Shared(Placed<Fresh>),
    /// Nowhere: each side has been given its part.
    #[cfg_attr(any(miri, loom), allow(dead_code, reason = "as for leases"))]
    Dealt,
}

fn check(chunks: u32) -> Result<(), ArenaError> {
    if (1..=1 << 31).contains(&chunks) { Ok(()) } else { Err(ArenaError::Chunks(chunks)) }
}

fn batch_of(chunks: u32) -> u32 {
    (chunks / 16).clamp(1, BATCH)
}

/// Enough for every chunk in full batches, and for short ones beside.
fn ring_slots(chunks: u32, batch: u32) -> usize {
    ((chunks / batch) as usize + 16).next_power_of_two().min(1 << 20)
}

/// A number that no other pool of this process has, so that a chain cannot meet the wrong pool's side. Never 0, which is
/// an empty chain's.
fn next_tag() -> Result<u32, ArenaError> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tag| tag.checked_add(1)).map_err(|_| ArenaError::TooLarge)
}

/// One side of a pool: what chains need to grow, shrink and be read. It stays on one thread at a time.
pub struct Side {
    payload: NonNull<u8>,
    records: NonNull<Record>,
    pub(crate) tag: u32,
    chunks: u32,
    /// The list that is allocated from and freed into, less than two batches long.
    free: Batch,
    /// Free chunks here: `free`, `full` and the fresh ones.
    held: u32,
    /// Chunks never used, set aside for this side.
    fresh: u32,
    fresh_end: u32,
    batch: u32,
    /// Full batches to keep in any case.
    high: usize,
    full: VecDeque<Batch>,
    /// The other side that this one speaks to, and others.
    peer: Peer,
    peers: Vec<Peer>,
    untouched: Untouched,
    /// Where the others are not trusted.
    border: Option<Box<Border>>,
    failures: u64,
    /// See [`Side::is_tight`].
    tight: bool,
    tracks: Tracks,
    _arena: Arc<Arena>,
}

/// What chains need to be read and written where they stand, without a side: for buffers that are held while the side works
/// for others.
#[derive(Clone)]
pub struct View {
    payload: NonNull<u8>,
    records: NonNull<Record>,
    pub(crate) tag: u32,
    tracks: Tracks,
    _arena: Arc<Arena>,
}

impl View {
    /// As [`Side::record`].
    #[inline(always)]
    pub(crate) fn record(&self, chunk: u32) -> *mut Record {
        self.tracks.touch(chunk);
        self.records.as_ptr().wrapping_add(chunk as usize)
    }

    /// As [`Side::payload`].
    #[inline(always)]
    pub(crate) fn payload(&self, chunk: u32) -> *mut u8 {
        self.payload.as_ptr().wrapping_add(chunk as usize * CHUNK_BYTES)
    }
}

// SAFETY: the pointers go into the arena, which the Arc keeps mapped; a side touches only chunks that it or a chain given
// to it owns, so it may move to another thread as a whole.
unsafe impl Send for Side {}

impl Side {
    fn new(shape: &Shape, peer: Peer, untouched: Untouched) -> Side {
        let chunks = shape.chunks;
        let batch = batch_of(chunks);
        Side {
            payload: shape.payload,
            records: shape.records,
            tag: shape.tag,
            chunks,
            free: NONE,
            held: 0,
            fresh: 0,
            fresh_end: 0,
            batch,
            high: (chunks / (4 * batch)).clamp(1, 8) as usize,
            // Room for every chunk, so that freeing never allocates; address space until used.
            full: VecDeque::with_capacity((chunks / batch) as usize + 16),
            peer,
            peers: Vec::new(),
            untouched,
            border: None,
            failures: 0,
            tight: false,
            tracks: shape.tracks.clone(),
            _arena: shape.arena.clone(),
        }
    }

    /// A view of the same pool.
    pub fn view(&self) -> View {
        let Side { payload, records, tag, tracks, _arena, .. } = self;
        View { payload: *payload, records: *records, tag: *tag, tracks: tracks.clone(), _arena: _arena.clone() }
    }

    /// A chunk's record. Whoever reads or writes through it must own the chunk: hold the chain or list it is in.
    #[inline(always)]
    pub(crate) fn record(&self, chunk: u32) -> *mut Record {
        debug_assert!(chunk < self.chunks);
        self.tracks.touch(chunk);
        self.records.as_ptr().wrapping_add(chunk as usize)
    }

    /// A chunk's payload, [`CHUNK_BYTES`] long, always initialised. The same rule as for [`Side::record`].
    #[inline(always)]
    pub(crate) fn payload(&self, chunk: u32) -> *mut u8 {
        debug_assert!(chunk < self.chunks);
        self.payload.as_ptr().wrapping_add(chunk as usize * CHUNK_BYTES)
    }

    /// A chunk that is the caller's alone, or `None` when there is none to be had. Its record is stale.
    #[inline]
    pub(crate) fn alloc(&mut self) -> Option<u32> {
        if self.free.count == 0 {
            return self.alloc_slow();
        }
        let chunk = self.free.head;
        // SAFETY: chunks of the free list are ours.
        self.free.head = unsafe { (*self.record(chunk)).next };
        self.free.count -= 1;
        self.held -= 1;
        self.tell();
        Some(chunk)
    }

    #[cold]
    fn alloc_slow(&mut self) -> Option<u32> {
        self.note_use();
        let refill = match self.full.pop_back() {
            Some(batch) => Some(batch),
            None => self.take(),
        };
        if let Some(batch) = refill {
            self.free = batch;
            return self.alloc();
        }
        if self.fresh == self.fresh_end && !self.take_fresh() {
            self.failures += 1;
            self.tell_all();
            return None;
        }
        let chunk = self.fresh;
        self.fresh += 1;
        self.held -= 1;
        Some(chunk)
    }

    /// Takes a batch that another side passed.
    fn take(&mut self) -> Option<Batch> {
        for peer in core::iter::once(&mut self.peer).chain(&mut self.peers) {
            let batch = match &mut self.border {
                None => peer.take(),
                Some(border) => border.take(peer, self.records),
            };
            if let Some(batch) = batch {
                self.held += batch.count;
                return Some(batch);
            }
        }
        None
    }

    /// Sets chunks aside that were never used.
    fn take_fresh(&mut self) -> bool {
        let Untouched::Shared(fresh) = &self.untouched else { return false };
        let fresh = &fresh.0;
        let mut first = fresh.load(Ordering::Relaxed);
        loop {
            let n = self.batch.min(self.chunks - first);
            if n == 0 {
                return false;
            }
            // Relaxed: a fresh chunk has no history that must be seen.
            match fresh.compare_exchange(first, first + n, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    (self.fresh, self.fresh_end) = (first, first + n);
                    self.held += n;
                    return true;
                }
                Err(now) => first = now,
            }
        }
    }

    /// Takes back a chunk that the caller owns, and owns no longer.
    #[inline]
    pub(crate) fn release(&mut self, chunk: u32) {
        // SAFETY: the chunk is the caller's, now ours.
        unsafe { (*self.record(chunk)).next = self.free.head };
        self.free = Batch { head: chunk, count: self.free.count + 1 };
        self.held += 1;
        self.tell();
        if self.free.count >= 2 * self.batch {
            self.stow();
        }
    }

    /// Puts half of the full list away, the newer one, or passes a batch to the other side when there are enough. The other
    /// half stays, so that whoever allocates and frees by turns is not here each time.
    #[cold]
    fn stow(&mut self) {
        let batch = self.newest();
        self.full.push_back(batch);
        if self.full.len() <= self.high {
            return;
        }
        let (free, poorest) = (0..=self.peers.len()).map(|i| (self.peer(i).free(), i)).min().unwrap_or_default();
        if free < self.held {
            // The newest: what the other side will write to is then in a cache that both share, as a rule, and the same
            // chunks go round rather than all that were ever kept here.
            if let Some(batch) = self.full.pop_back()
                && let Err(batch) = self.pass(poorest, batch)
            {
                self.full.push_back(batch);
            }
        }
    }

    /// Takes the newest batch off the list, oldest first: chunks that followed each other in a chain, and in memory, will do so
    /// again, and what lies together is copied and gathered in one go.
    fn newest(&mut self) -> Batch {
        let (mut head, mut rest) = (NIL, self.free.head);
        for _ in 0..self.batch {
            // SAFETY: chunks of a list of ours.
            let record = unsafe { &mut *self.record(rest) };
            (head, rest) = (rest, std::mem::replace(&mut record.next, head));
        }
        self.free = Batch { head: rest, count: self.free.count - self.batch };
        Batch { head, count: self.batch }
    }

    fn pass(&mut self, to: usize, batch: Batch) -> Result<(), Batch> {
        let peer = match to {
            0 => &mut self.peer,
            n => &mut self.peers[n - 1],
        };
        match &mut self.border {
            None => peer.give(batch)?,
            Some(border) => border.give(peer, self.records, batch)?,
        }
        self.held -= batch.count;
        peer.tell(self.held);
        Ok(())
    }

    /// Every 16 chunks the other side hears how many are free here; where there are several, the others hear once a turn.
    #[inline]
    fn tell(&self) {
        if self.held & 15 == 0 {
            self.peer.tell(self.held);
        }
    }

    #[cold]
    fn tell_all(&self) {
        (0..=self.peers.len()).for_each(|i| self.peer(i).tell(self.held));
    }

    /// The sides that this one speaks to.
    #[inline]
    fn peer(&self, i: usize) -> &Peer {
        match i {
            0 => &self.peer,
            n => &self.peers[n - 1],
        }
    }

    /// Passes a batch to each other side that has fewer than `low` free chunks, cannot help itself to fresh ones, and
    /// has less than this side. All sides should call it once a turn; it is a few loads when there is nothing to do.
    #[inline]
    pub fn supply_peer(&mut self, low: u32) {
        if let Untouched::Shared(fresh) = &self.untouched
            && fresh.0.load(Ordering::Relaxed) < self.chunks
        {
            return;
        }
        if !self.peers.is_empty() {
            self.tell_all();
        }
        for i in 0..=self.peers.len() {
            if self.peer(i).free() < low {
                self.supply(i);
            }
        }
    }

    #[cold]
    fn supply(&mut self, to: usize) {
        let peer = self.peer(to).free();
        // What the other side passed and we never needed is ours to pass back.
        while let Some(batch) = self.take() {
            self.full.push_back(batch);
        }
        if peer >= self.held {
            return;
        }
        if let Some(batch) = self.full.pop_front() {
            if let Err(batch) = self.pass(to, batch) {
                self.full.push_front(batch);
            }
            return;
        }
        // No batch is put away: what is passed halves the difference.
        let mut n = (self.held - peer).div_ceil(2).min(BATCH);
        let mut batch = NONE;
        while n > 0 {
            let chunk = if self.free.count > 0 {
                let chunk = self.free.head;
                // SAFETY: chunks of the free list are ours.
                self.free.head = unsafe { (*self.record(chunk)).next };
                self.free.count -= 1;
                chunk
            } else if self.fresh != self.fresh_end {
                self.fresh += 1;
                self.fresh - 1
            } else {
                break;
            };
            // SAFETY: as above.
            unsafe { (*self.record(chunk)).next = batch.head };
            batch = Batch { head: chunk, count: batch.count + 1 };
            n -= 1;
        }
        if batch.count > 0
            && let Err(batch) = self.pass(to, batch)
        {
            self.full.push_front(batch);
        }
    }

    /// Tells whether a chunk can be allocated now. When not, looks again at what the other side has passed meanwhile; and where there is
    /// nothing, says so: the other side, which may have heard of chunks that were passed since, helps whom it knows to have less.
    pub fn has_free(&mut self) -> bool {
        if self.held == 0
            && let Some(batch) = self.take()
        {
            self.full.push_back(batch);
        }
        let free = self.held > 0 || self.take_fresh();
        if !free {
            self.tell_all();
        }
        free
    }

    /// Chunks that are in no magazine: in chains, in messages, or lost. For tests, with both sides at hand; walks every
    /// free list and panics if a chunk is in two. Across a border it is the stack's side that is asked.
    pub fn outstanding(&mut self, other: &mut Side) -> u32 {
        assert!(self.tag == other.tag || self.is_called(other.tag), "not two sides of one pool");
        let fresh = self.chunks - self.untouched();
        let mut seen = vec![false; self.chunks as usize];
        let mut free = 0;
        let mut see = |chunk: u32| {
            assert!(!std::mem::replace(&mut seen[chunk as usize], true), "chunk {chunk} is free twice");
            free += 1;
        };
        (fresh..self.chunks).for_each(&mut see);
        for side in [self, other] {
            while let Some(batch) = side.take() {
                side.full.push_back(batch);
            }
            (side.fresh..side.fresh_end).for_each(&mut see);
            let mut count = side.fresh_end - side.fresh;
            for batch in side.full.iter().chain([&side.free]) {
                let mut chunk = batch.head;
                for _ in 0..batch.count {
                    see(chunk);
                    // SAFETY: chunks of a magazine are this side's.
                    chunk = unsafe { (*side.record(chunk)).next };
                }
                count += batch.count;
            }
            assert_eq!(count, side.held, "a side's count of its free chunks is wrong");
            side.tell_all();
        }
        seen.len() as u32 - free
    }
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Side").field("pool", &self.tag).field("stats", &self.stats()).finish()
    }
}
