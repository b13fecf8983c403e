//! The border between the stack's side of a pool and an application in another process, which is not trusted.
//!
//! The payload of the pool lies in memory that both map. The stack's records lie in memory of its own, where nobody else writes: what a chain
//! consists of is never read where the application could have changed it. Beside the payload lie the application's records, which the
//! stack writes when it gives chunks away, and reads, each once, when it takes some. A bit a chunk says whether the stack has it: so a
//! chunk that the application names twice, or does not have, is found where it is named.

use super::peer::{Link, Peer};
use super::{BATCH, Batch, CHUNK_BYTES, Mark, NIL, Record, Shape, Side, Untouched, check, next_tag};
use crate::arena::{Arena, ArenaConfig, ArenaError, Backing, Huge};
use crate::sync::{AtomicU32, Ordering, Placed, Shared, Tracks};
use std::ptr::NonNull;
use std::sync::Arc;

/// How an application in another process broke the rules of the memory that it shares with the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// An index is further ahead than there are slots.
    #[error("it published more than a ring holds")]
    Overrun,
    /// A chunk of a number that the pool has not, or that is not the application's, or named twice.
    #[error("it named a chunk that is not its own")]
    Chunk,
    /// A chunk whose bytes do not lie in it, or that is empty.
    #[error("it named bytes that no chunk holds")]
    Bytes,
    /// A chain whose length is not that of its chunks, or whose last chunk is not among them.
    #[error("a chain is not as long as it says")]
    Chain,
    /// A batch of surplus chunks that is empty, or larger than batches are.
    #[error("a batch of chunks is not one")]
    Batch,
}

/// What the stack's side needs to know besides.
pub(crate) struct Border {
    /// The application's records.
    shared: NonNull<Record>,
    /// By chunk: whether the stack has it.
    ours: Vec<u64>,
    chunks: u32,
    name: Placed<Name>,
    breach: Option<Breach>,
    /// The stack's own records.
    _records: Arc<Arena>,
}

// SAFETY: the pointer goes into the arena, which the side keeps mapped.
unsafe impl Send for Border {}

impl Border {
    /// The application's record of a chunk, copied once; the chunk is the stack's from now on.
    #[inline]
    fn admit(&mut self, chunk: u32) -> Result<Record, Breach> {
        let bit = 1 << (chunk % 64);
        match self.ours.get_mut(chunk as usize / 64) {
            Some(word) if chunk < self.chunks && *word & bit == 0 => *word |= bit,
            _ => return Err(Breach::Chunk),
        }
        // SAFETY: below the number of chunks, each of which has a record there; every pattern of bits is a record. The application may
        // write meanwhile, so the record is copied once, and the copy is looked at.
        Ok(unsafe { self.shared.as_ptr().add(chunk as usize).read_volatile() })
    }

    /// Gives a chunk away, with this record.
    #[inline]
    fn dismiss(&mut self, chunk: u32, record: Record) {
        debug_assert!(self.has(chunk));
        self.ours[chunk as usize / 64] &= !(1 << (chunk % 64));
        // SAFETY: chunks of the stack's side are below the number of chunks; nobody here borrows the application's records.
        unsafe { self.shared.as_ptr().add(chunk as usize).write_volatile(record) }
    }

    fn has(&self, chunk: u32) -> bool {
        self.ours[chunk as usize / 64] & 1 << (chunk % 64) != 0
    }

    /// Takes a batch that the application passed.
    pub fn take(&mut self, peer: &mut Peer, records: NonNull<Record>) -> Option<Batch> {
        if self.breach.is_some() {
            return None;
        }
        let Some(batch) = peer.take_copy() else {
            if peer.is_overrun() {
                self.breach = Some(Breach::Overrun);
            }
            return None;
        };
        match self.admit_batch(batch, records) {
            Ok(()) => {
                peer.took(batch.count);
                Some(batch)
            }
            Err(breach) => {
                self.breach = Some(breach);
                None
            }
        }
    }

    fn admit_batch(&mut self, batch: Batch, records: NonNull<Record>) -> Result<(), Breach> {
        if !(1..=BATCH).contains(&batch.count) {
            return Err(Breach::Batch);
        }
        let mut chunk = batch.head;
        for _ in 0..batch.count {
            let record = self.admit(chunk)?;
            // SAFETY: `admit` has looked that there is such a chunk, and it is the stack's alone.
            unsafe { (*records.as_ptr().add(chunk as usize)).next = record.next };
            chunk = record.next;
        }
        Ok(())
    }

    /// Passes a batch to the application.
    pub fn give(&mut self, peer: &mut Peer, records: NonNull<Record>, batch: Batch) -> Result<(), Batch> {
        if !peer.has_room() {
            return Err(batch);
        }
        let mut chunk = batch.head;
        for _ in 0..batch.count {
            // SAFETY: chunks of a list of the stack's side.
            let next = unsafe { (*records.as_ptr().add(chunk as usize)).next };
            self.dismiss(chunk, Record { next, off: 0, len: 0, mark: Mark { chunk: NIL, start: 0 } });
            chunk = next;
        }
        peer.give(batch)
    }
}

impl Side {
    /// Whether the application has broken the rules: nothing that it says is taken any more.
    pub fn breach(&self) -> Option<Breach> {
        self.border.as_ref().and_then(|border| border.breach)
    }

    /// Whether the application calls the pool so.
    pub(super) fn is_called(&self, tag: u32) -> bool {
        self.border.as_ref().is_some_and(|border| border.name.0.load(Ordering::Relaxed) == tag)
    }

    /// The application has another thread, with a side of its own.
    pub(crate) fn join(&mut self, link: &Link) {
        self.peers.push(link.peer(0));
        self.tell_all();
    }

    /// Takes the chunks of a chain over from the application: the first, the last, and how many bytes there are.
    pub(crate) fn take_over(&mut self, first: u32, last: u32, bytes: u32) -> Result<(), Breach> {
        let Some(border) = &mut self.border else { return Err(Breach::Chunk) };
        let (mut chunk, mut left) = (first, bytes);
        // Each round makes a chunk ours that was not, so there is an end.
        loop {
            let Record { next, off, len, .. } = border.admit(chunk)?;
            if len == 0 || usize::from(off) + usize::from(len) > CHUNK_BYTES {
                return Err(Breach::Bytes);
            }
            left = left.checked_sub(u32::from(len)).ok_or(Breach::Chain)?;
            let end = chunk == last;
            let next = if end { NIL } else { next };
            // SAFETY: `admit` has looked that there is such a chunk, and it is the stack's alone. The mark is of use in the first one only.
            unsafe {
                let record = self.records.as_ptr().add(chunk as usize);
                record.write(Record { next, off, len, mark: Mark { chunk: first, start: 0 } });
            }
            if end {
                return if left == 0 { Ok(()) } else { Err(Breach::Chain) };
            }
            chunk = next;
        }
    }

    /// Gives the chunks of a chain away, and says what the application calls its pool.
    pub(crate) fn give_away(&mut self, first: u32) -> u32 {
        let Some(border) = &mut self.border else { return self.tag };
        let mut chunk = first;
        while chunk != NIL {
            // SAFETY: chunks of a chain of the stack's side.
            let record = unsafe { self.records.as_ptr().add(chunk as usize).read() };
            border.dismiss(chunk, Record { mark: Mark { chunk: first, start: 0 }, ..record });
            chunk = record.next;
        }
        // Whatever the application has written there is its own affair.
        border.name.0.load(Ordering::Relaxed)
    }
}

/// What the application calls the pool, in its process; written by it.
#[derive(Default)]
#[repr(C, align(128))]
struct Name(AtomicU32);

// SAFETY: an atomic only; zero is its default.
unsafe impl Shared for Name {}

/// A pool whose application is another process.
pub(crate) struct Lease {
    payload: NonNull<u8>,
    /// The application's records.
    records: NonNull<Record>,
    chunks: u32,
    name: Placed<Name>,
    /// Of the application's threads.
    links: Vec<Link>,
    arena: Arc<Arena>,
}

// SAFETY: the pointers go into the arena, which is kept mapped; what lies there is reached through sides and links only, each of which is
// one thread's.
unsafe impl Send for Lease {}
// SAFETY: as above; whoever makes an end twice would break it, and `lease` makes each once.
unsafe impl Sync for Lease {}

/// The part of the chunks that the application's threads have from the beginning; the stack has the others, and passes them on.
const DEALT: u32 = 4;

impl Lease {
    /// Bytes of arena that [`Lease::new`] takes at most.
    pub fn bytes(chunks: u32, seats: usize) -> usize {
        (chunks as usize)
            .saturating_mul(CHUNK_BYTES + size_of::<Record>())
            .saturating_add(2 * 4096 + 2 * size_of::<Name>())
            .saturating_add(Link::bytes(chunks).saturating_mul(seats))
    }

    /// Cuts a pool for an application of so many threads off an arena that has [`Lease::bytes`] left; the same, in the same order, in each
    /// process that maps it.
    pub fn new(arena: &Arc<Arena>, chunks: u32, seats: usize) -> Result<Lease, ArenaError> {
        check(chunks)?;
        let payload = arena.carve((chunks as usize).checked_mul(CHUNK_BYTES).ok_or(ArenaError::TooLarge)?, 4096)?;
        let records = arena.carve(chunks as usize * size_of::<Record>(), 64)?.cast();
        let name = Placed::new(arena)?;
        let links = (0..seats).map(|_| Link::new(arena, chunks)).collect::<Result<_, _>>()?;
        Ok(Lease { payload, records, chunks, name, links, arena: arena.clone() })
    }

    /// What each thread has from the beginning.
    fn dealt(&self) -> u32 {
        self.chunks / DEALT / self.links.len().max(1) as u32
    }

    /// The stack's side, in the stack's process. There must be one.
    pub fn stack_side(&self) -> Result<Side, ArenaError> {
        let bytes = self.chunks as usize * size_of::<Record>();
        let own = Arena::reserve(&ArenaConfig { bytes, huge: Huge::No, backing: Backing::Anonymous })?;
        let shape = self.shape(own.carve(bytes, 64)?.cast(), next_tag()?);
        let mut side = Side::new(&shape, self.links[0].peer(0), Untouched::Dealt);
        let first = self.dealt() * self.links.len() as u32;
        (side.fresh, side.fresh_end, side.held) = (first, self.chunks, self.chunks - first);
        let mut ours = vec![0; self.chunks.div_ceil(64) as usize];
        (first..self.chunks).for_each(|chunk| ours[chunk as usize / 64] |= 1 << (chunk % 64));
        side.border = Some(Box::new(Border {
            shared: self.records,
            ours,
            chunks: self.chunks,
            name: self.name.clone(),
            breach: None,
            _records: own,
        }));
        Ok(side)
    }

    /// The application's process attaches: what it calls the pool from now on, the same for all its threads, and nothing else there.
    pub fn attach(&self) -> Result<u32, ArenaError> {
        let tag = next_tag()?;
        self.name.0.store(tag, Ordering::Relaxed);
        Ok(tag)
    }

    /// The side of one of the application's threads, in its process. There must be one.
    pub fn seat_side(&self, seat: usize, tag: u32) -> Side {
        let mut side = Side::new(&self.shape(self.records, tag), self.links[seat].peer(1), Untouched::Dealt);
        let first = self.dealt() * seat as u32;
        (side.fresh, side.fresh_end, side.held) = (first, first + self.dealt(), self.dealt());
        side.tell_all();
        side
    }

    /// Where a thread's side meets the stack's; that of the first one does so from the beginning.
    pub fn link(&self, seat: usize) -> Option<&Link> {
        self.links[1..].get(seat.checked_sub(1)?)
    }

    fn shape(&self, records: NonNull<Record>, tag: u32) -> Shape {
        let tracks = Tracks::new(self.chunks as usize);
        Shape { payload: self.payload, records, tag, chunks: self.chunks, tracks, arena: self.arena.clone() }
    }
}
