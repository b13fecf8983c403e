//! A ring of packet frames from one producer to one consumer: the memory wire.
//!
//! Slots have one size; a frame is written in place ([`FrameTx::reserve`], [`FrameTx::commit`]), published in bursts, read
//! in place, released in bursts.

use crate::arena::{Arena, ArenaConfig, ArenaError, Huge};
use crate::index::{self, Head, INDICES_BYTES, Tail};
use crate::prefetch;
use core::ptr::NonNull;
use core::slice;
use std::sync::Arc;

/// What lies before a frame in its slot.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    meta: u64,
    len: u32,
}

/// Slots by which fetching goes ahead of writing.
const AHEAD: u32 = 4;
const HEADER_BYTES: usize = 16;
/// Nothing is reserved.
const NOTHING: i64 = -1;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// The slots; both ends hold them, each touches only slots that its index end names.
struct Slots {
    at: NonNull<u8>,
    stride: usize,
    /// Bytes of a frame at most.
    room: usize,
    _arena: Arc<Arena>,
}

// SAFETY: the pointer goes into the arena, which the Arc keeps mapped; who touches what is settled by the indices.
unsafe impl Send for Slots {}

impl Slots {
    #[inline(always)]
    fn header(&self, slot: u32) -> *mut Header {
        self.at.as_ptr().wrapping_add(slot as usize * self.stride).cast()
    }

    #[inline(always)]
    fn bytes(&self, slot: u32) -> *mut u8 {
        self.at.as_ptr().wrapping_add(slot as usize * self.stride + HEADER_BYTES)
    }
}

/// The writing end.
pub struct FrameTx {
    tail: Tail,
    slots: Slots,
    /// Room of the frame that was reserved, in the slot that comes next, and not committed; below 0 there is none.
    reserved: i64,
}

/// The reading end.
pub struct FrameRx {
    head: Head,
    slots: Slots,
    /// Frames of the burst that is lent out.
    burst: u32,
}

/// An odd number of cache lines: an even one would put the first lines of all slots into few sets of the cache.
fn stride(slot_bytes: usize) -> Option<usize> {
    Some(slot_bytes.checked_add(HEADER_BYTES)?.checked_next_multiple_of(64)? | 64)
}

/// A ring of `slots` (a power of two from 1 to 2^30) frames of at most `slot_bytes` each, in memory of its own.
pub fn ring(slots: usize, slot_bytes: usize) -> Result<(FrameTx, FrameRx), ArenaError> {
    index::check(slots)?;
    let bytes = ring_bytes(slots, slot_bytes);
    let arena = Arena::reserve(&ArenaConfig { bytes, huge: Huge::Transparent, ..Default::default() })?;
    ring_in(&arena, slots, slot_bytes)
}

/// As [`ring`], in an arena that has [`ring_bytes`] left.
pub fn ring_in(arena: &Arc<Arena>, slots: usize, slot_bytes: usize) -> Result<(FrameTx, FrameRx), ArenaError> {
    let (tail, head) = index::ends(arena, slots)?;
    let stride = stride(slot_bytes).filter(|_| slot_bytes <= u32::MAX as usize).ok_or(ArenaError::TooLarge)?;
    let at = arena.carve(slots.checked_mul(stride).ok_or(ArenaError::TooLarge)?, 64)?;
    let half = || Slots { at, stride, room: slot_bytes, _arena: arena.clone() };
    Ok((FrameTx { tail, slots: half(), reserved: NOTHING }, FrameRx { head, slots: half(), burst: 0 }))
}

/// Bytes of arena that [`ring_in`] takes at most.
pub fn ring_bytes(slots: usize, slot_bytes: usize) -> usize {
    let stride = stride(slot_bytes).unwrap_or(usize::MAX);
    stride.saturating_mul(slots).saturating_add(INDICES_BYTES + 64)
}

impl FrameTx {
    /// Room for a frame of `len` bytes, holding stale bytes; `None` when the ring is full or slots are smaller. Reserving
    /// again forgets a frame that was not committed.
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.reserved = NOTHING;
        if len > self.slots.room {
            return None;
        }
        let slot = self.tail.slot()?;
        self.reserved = len as i64;
        // SAFETY: the slot is the producer's own until published, has `room >= len` bytes, and arena bytes are initialised.
        Some(unsafe { slice::from_raw_parts_mut(self.slots.bytes(slot), len) })
    }

    /// The first `len` bytes of what was reserved are a frame, with a word beside it. Not visible before
    /// [`FrameTx::publish`]. Says `false`, and does nothing, when nothing is reserved or less.
    #[inline]
    pub fn commit(&mut self, len: usize, meta: u64) -> bool {
        let room = core::mem::replace(&mut self.reserved, NOTHING);
        if room < 0 || len > room as usize {
            return false;
        }
        // SAFETY: a reservation stands, so the slot that comes next is the producer's own until published; slots are aligned
        // to 64 bytes.
        unsafe { self.slots.header(self.tail.slot_ahead(0)).write(Header { meta, len: len as u32 }) };
        self.tail.advance();
        // The reader's cache has the lines of slots to come; they are fetched while others are written.
        let ahead = self.slots.header(self.tail.slot_ahead(AHEAD)).cast::<u8>();
        prefetch::line_to_write(ahead);
        prefetch::line_to_write(ahead.wrapping_add(64));
        true
    }

    /// Hands the committed frames over, by one release store; says whether there were any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.tail.publish()
    }

    /// Frames that can be written now. Reads the peer's index.
    pub fn room(&mut self) -> usize {
        self.tail.room() as usize
    }

    /// Frames committed and not published.
    pub fn pending(&self) -> usize {
        self.tail.pending() as usize
    }

    /// Frames that the reader has not released yet.
    pub fn len(&self) -> usize {
        self.tail.len() as usize
    }

    /// Whether the reader has released everything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Longest frame, bytes.
    pub fn max_frame(&self) -> usize {
        self.slots.room
    }

    /// Slots in all.
    pub fn capacity(&self) -> usize {
        self.tail.slots() as usize
    }

    /// Whether the reader was dropped.
    pub fn peer_gone(&self) -> bool {
        self.tail.peer_gone()
    }
}

impl FrameRx {
    /// Borrows up to `max` frames, after releasing the burst before; says how many.
    pub fn burst(&mut self, max: usize) -> usize {
        self.release();
        self.burst = self.head.available().min(max.min(u32::MAX as usize) as u32);
        self.burst as usize
    }

    /// Hints that frame `i` of the burst is read soon: its first two lines.
    #[inline]
    pub fn prefetch(&self, i: usize) {
        if i < self.burst as usize {
            let at = self.slots.header(self.head.slot_at(i as u32)).cast::<u8>();
            prefetch::line(at);
            prefetch::line(at.wrapping_add(64));
        }
    }

    /// Frame `i` of the burst and the word beside it; empty and 0 for `i` outside the burst.
    #[inline]
    pub fn frame(&self, i: usize) -> (&[u8], u64) {
        if i >= self.burst as usize {
            return (&[], 0);
        }
        let slot = self.head.slot_at(i as u32);
        // SAFETY: the slot is published and not released, so nobody writes to it; releasing needs `&mut self`. The producer
        // bounded the length by the slot's room.
        unsafe {
            let header = self.slots.header(slot).read();
            (slice::from_raw_parts(self.slots.bytes(slot), header.len as usize), header.meta)
        }
    }

    /// Gives the burst's slots back to the producer.
    pub fn release(&mut self) {
        self.head.advance(core::mem::take(&mut self.burst));
        self.head.release();
    }

    /// Frames that wait, those of the burst included.
    pub fn len(&self) -> usize {
        self.head.len() as usize
    }

    /// Whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Longest frame, bytes.
    pub fn max_frame(&self) -> usize {
        self.slots.room
    }

    /// Slots in all.
    pub fn capacity(&self) -> usize {
        self.head.slots() as usize
    }

    /// Whether the producer was dropped. Frames published before can still be read: look again after this says so.
    pub fn peer_gone(&self) -> bool {
        self.head.peer_gone()
    }
}

impl core::fmt::Debug for FrameTx {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FrameTx").field("capacity", &self.capacity()).field("len", &self.len()).finish()
    }
}

impl core::fmt::Debug for FrameRx {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FrameRx").field("capacity", &self.capacity()).field("len", &self.len()).finish()
    }
}
