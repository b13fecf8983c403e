//! Owned queues of bytes.
//!
//! A chain is a list of chunks with its length; it may move between the two sides of its pool, and to another thread, and
//! whoever holds it owns its chunks alone. Operations name the [`Side`] they allocate from and free into. Appending and
//! consuming cost by the chunk, never by the length.
//!
//! Reading at a growing offset (transmission) must not walk from the front each time. The place where such reading stands,
//! the *mark*, is kept in the record of the chain's first chunk and handed on when that is consumed: only the chain itself
//! can tell that a remembered chunk is still its own, so a position kept outside could never be trusted.
//!
//! Invariants, on which the `unsafe` below rests: the chunks from `head` along `next` to `tail` belong to this chain only;
//! `tail.next` is `NIL`; `off + len <= CHUNK_BYTES`; the `len`s add up to `bytes`; if `bytes > 0` the first chunk has
//! `len > 0` and its mark names a chunk of this chain and that chunk's distance from the front. A chunk with `len == 0`
//! is only left by [`Chain::spare`].

mod copy;
mod slices;

use crate::pool::{CHUNK_BYTES, Mark, NIL, Record, Side, View};
use core::ptr;
use core::slice;

pub use slices::Slices;

/// A queue of bytes in chunks. It has no destructor, since freeing needs a [`Side`]: one that is dropped keeps its chunks
/// until the pool goes. Give it to [`Chain::free`], to another chain, or to a ring.
#[must_use = "a dropped chain leaks its chunks: free it"]
#[derive(Debug)]
#[repr(C)]
pub struct Chain {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) bytes: u32,
    pub(crate) pool: u32,
}

const _: () = assert!(size_of::<Chain>() == 16);

/// The right to move a chain's mark: there should be one for each chain that is read on by [`Chain::copy_from`], while any
/// number of [`Chain::copy_at`] may look elsewhere. It holds no position (the chain does), so it cannot go stale: it stays
/// good whatever is appended, consumed or cut off.
#[derive(Debug, Default)]
pub struct Cursor(());

impl Default for Chain {
    #[inline]
    fn default() -> Chain {
        Chain { head: NIL, tail: NIL, bytes: 0, pool: 0 }
    }
}

impl Chain {
    /// Bytes in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Whether it holds no byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A cursor for sequential reading, at the front.
    pub fn cursor(&self) -> Cursor {
        Cursor(())
    }

    /// Chunks in it; walks them.
    pub fn chunks(&self, side: &Side) -> usize {
        self.check(side);
        let mut n = 0;
        let mut chunk = self.head;
        while chunk != NIL {
            n += 1;
            chunk = self.record(side, chunk).next;
        }
        n
    }

    /// Appends as much of `data` as there are chunks for; says how many bytes.
    #[inline]
    pub fn push_slice(&mut self, side: &mut Side, data: &[u8]) -> usize {
        // A small message, which is all there is: one chunk, whose record is written once.
        if self.head == NIL && !data.is_empty() && data.len() <= CHUNK_BYTES {
            let Some(chunk) = side.alloc() else { return 0 };
            let mark = Mark { chunk, start: 0 };
            // SAFETY: the chunk was just allocated, so it is ours alone, and no caller's slice; `data` fits.
            unsafe {
                ptr::copy_nonoverlapping(data.as_ptr(), side.payload(chunk), data.len());
                side.record(chunk).write(Record { next: NIL, off: 0, len: data.len() as u16, mark });
            }
            *self = Chain { head: chunk, tail: chunk, bytes: data.len() as u32, pool: side.tag };
            return data.len();
        }
        self.push_more(side, data)
    }

    fn push_more(&mut self, side: &mut Side, data: &[u8]) -> usize {
        self.check(side);
        let mut left = data;
        while !left.is_empty() {
            let Some(room) = self.room(side) else { break };
            let n = left.len().min(room.len());
            let (now, later) = left.split_at(n);
            room[..n].copy_from_slice(now);
            self.grow(side, n);
            left = later;
        }
        data.len() - left.len()
    }

    /// Room to write into behind the last byte, at least one byte: the rest of the last chunk, or a new one. `None` when the
    /// pool is dry. The contents are stale bytes. [`Chain::advance`] must follow, if only by 0.
    pub fn spare<'a>(&'a mut self, side: &'a mut Side) -> Option<&'a mut [u8]> {
        self.check(side);
        self.room(side)
    }

    /// Appends the first `n` bytes that were written into [`Chain::spare`], at most as many as it has.
    pub fn advance(&mut self, side: &mut Side, n: usize) {
        self.check(side);
        if self.head == NIL {
            return;
        }
        let tail = self.record(side, self.tail);
        let room = CHUNK_BYTES - (tail.off + tail.len) as usize;
        self.grow(side, n.min(room));
        if self.bytes == 0 {
            core::mem::take(self).free(side);
        }
    }

    /// Appends `other`. Its first chunk is copied when it fits behind our last byte, so that many small pieces do not take a
    /// chunk each; the rest is linked.
    #[inline]
    pub fn append(&mut self, side: &mut Side, other: Chain) {
        if self.head == NIL && other.bytes > 0 {
            other.check(side);
            *self = other;
            return;
        }
        self.append_more(side, other);
    }

    fn append_more(&mut self, side: &mut Side, mut other: Chain) {
        self.check(side);
        other.check(side);
        if self.bytes == 0 || other.bytes == 0 {
            return self.link(side, other);
        }
        let (tail, first) = (*self.record(side, self.tail), *other.record(side, other.head));
        let (end, n) = ((tail.off + tail.len) as usize, first.len as usize);
        if n > CHUNK_BYTES - end || self.bytes.checked_add(other.bytes).is_none() {
            return self.link(side, other);
        }
        // SAFETY: both chunks are owned, by `self` and `other`, and therefore differ; `end + n <= CHUNK_BYTES`.
        unsafe {
            let from = side.payload(other.head).add(first.off as usize);
            ptr::copy_nonoverlapping(from, side.payload(self.tail).add(end), n);
        }
        self.grow(side, n);
        side.release(other.head);
        other.head = first.next;
        other.bytes -= n as u32;
        if other.head != NIL {
            self.join(side, other);
        }
    }

    /// Appends `other` without copying a byte.
    ///
    /// # Panics
    /// If the two together hold 4 GiB or more.
    pub fn link(&mut self, side: &mut Side, other: Chain) {
        self.check(side);
        other.check(side);
        if other.bytes == 0 {
            other.free(side);
        } else if self.bytes == 0 {
            core::mem::replace(self, other).free(side);
        } else {
            self.join(side, other);
        }
    }

    /// Drops `n` bytes, or all there are, from the front.
    #[inline]
    pub fn consume(&mut self, side: &mut Side, n: usize) {
        if n >= self.len() && self.head == self.tail {
            self.check(side);
            let chunk = core::mem::take(self).head;
            if chunk != NIL {
                side.release(chunk);
            }
            return;
        }
        self.consume_some(side, n);
    }

    fn consume_some(&mut self, side: &mut Side, n: usize) {
        self.check(side);
        if n >= self.len() {
            return core::mem::take(self).free(side);
        }
        if n == 0 {
            return;
        }
        let mark = self.record(side, self.head).mark;
        let mut left = n;
        loop {
            let record = self.record_mut(side, self.head);
            let len = record.len as usize;
            if len > left {
                record.off += left as u16;
                record.len -= left as u16;
                break;
            }
            left -= len;
            let next = record.next;
            side.release(self.head);
            // Not NIL: `n` is below the sum of what is left.
            self.head = next;
        }
        self.bytes -= n as u32;
        self.rebase(side, mark, n as u32);
    }

    /// Moves bytes from the front into `out`; says how many.
    #[inline]
    pub fn read(&mut self, side: &mut Side, out: &mut [u8]) -> usize {
        let n = self.copy_at(side, 0, out);
        self.consume(side, n);
        n
    }

    /// Copies bytes from `offset` on into `out`; says how many there were.
    #[inline]
    pub fn copy_at(&self, side: &Side, offset: usize, out: &mut [u8]) -> usize {
        self.copy(side, offset, out).0
    }

    /// As [`Chain::copy_at`], and remembers where it ended: the next such read at or behind that place does not walk there.
    /// Reading further back is right too, and moves the mark back.
    #[inline]
    pub fn copy_from(&mut self, side: &Side, _cursor: &mut Cursor, offset: usize, out: &mut [u8]) -> usize {
        let (n, mark) = self.copy(side, offset, out);
        if let Some(mark) = mark {
            self.record_mut(side, self.head).mark = mark;
        }
        n
    }

    /// The `len` bytes from `offset` on as they lie, into the front of `parts`, chunks that lie together as one; how many
    /// parts they are. Remembers where it ended as [`Chain::copy_from`] does. `None`, and nothing remembered, where there are
    /// fewer bytes or more parts.
    pub fn gather<'a>(
        &'a mut self,
        side: &'a Side,
        _cursor: &mut Cursor,
        offset: usize,
        len: usize,
        parts: &mut [&'a [u8]],
    ) -> Option<usize> {
        self.check(side);
        if len == 0 || offset.checked_add(len)? > self.len() {
            return None;
        }
        let mut at = self.seek(side, offset);
        let (mut skip, mut left, mut n) = (offset - at.start as usize, len, 0);
        // The part that grows while chunks lie one behind the other.
        let (mut start, mut together): (*const u8, usize) = (ptr::null(), 0);
        loop {
            let record = *self.record(side, at.chunk);
            let here = (record.len as usize - skip).min(left);
            if here > 0 {
                let from = side.payload(at.chunk).wrapping_add(record.off as usize + skip).cast_const();
                if together == 0 || start.wrapping_add(together) != from {
                    (start, together) = (from, 0);
                    n += 1;
                }
                together += here;
                left -= here;
                // SAFETY: live bytes of chunks of this chain, which is borrowed exclusively for 'a, and the side, which keeps
                // the arena mapped, as long; the pointer is the payloads' of all chunks, in one piece of the arena; the mark
                // written below lies in a record, not in a payload.
                *parts.get_mut(n - 1)? = unsafe { slice::from_raw_parts(start, together) };
            }
            if left == 0 {
                break;
            }
            at = Mark { chunk: record.next, start: at.start + record.len as u32 };
            skip = 0;
        }
        self.record_mut(side, self.head).mark = at;
        Some(n)
    }

    /// Keeps the first `n` bytes.
    pub fn truncate(&mut self, side: &mut Side, n: usize) {
        self.check(side);
        if n >= self.len() {
            return;
        }
        if n == 0 {
            return core::mem::take(self).free(side);
        }
        let rest = self.cut(side, n);
        rest.free(side);
    }

    /// Takes the first `n` bytes, or all there are, off. A chunk in which the cut lies is split by copying; when the pool is
    /// dry the cut is made before that chunk, and the result shorter.
    pub fn split_front(&mut self, side: &mut Side, n: usize) -> Chain {
        self.check(side);
        if n >= self.len() {
            return core::mem::take(self);
        }
        if n == 0 {
            return Chain::default();
        }
        let at = self.seek(side, n - 1);
        let record = *self.record(side, at.chunk);
        let keep = n - at.start as usize;
        let rest = record.len as usize - keep;
        if rest > 0 {
            let Some(new) = side.alloc() else { return self.split_front(side, at.start as usize) };
            let next = record.next;
            // SAFETY: `new` is ours alone, `at.chunk` this chain's; `keep + rest` is its length. The record of a fresh chunk
            // is written whole.
            unsafe {
                let from = side.payload(at.chunk).add(record.off as usize + keep);
                ptr::copy_nonoverlapping(from, side.payload(new), rest);
                let mark = Mark { chunk: new, start: 0 };
                side.record(new).write(Record { next, off: 0, len: rest as u16, mark });
            }
            let record = self.record_mut(side, at.chunk);
            record.len = keep as u16;
            record.next = new;
            if self.tail == at.chunk {
                self.tail = new;
            }
        }
        let rest = self.cut(side, n);
        core::mem::replace(self, rest)
    }

    /// The first bytes that lie together; empty only when the chain is.
    pub fn first_slice<'a>(&'a self, side: &'a Side) -> &'a [u8] {
        self.check(side);
        if self.bytes == 0 {
            return &[];
        }
        self.live(side, self.head)
    }

    /// Its bytes as they lie, piece by piece; none of them empty.
    pub fn slices<'a>(&'a self, view: &'a View) -> Slices<'a> {
        assert!(self.pool == view.tag || self.head == NIL, "a chain of another pool");
        Slices::from(self.head, view)
    }

    /// As [`Chain::spare`], of the last chunk alone: empty where that is full, or there is none.
    pub fn rest<'a>(&'a mut self, view: &'a View) -> &'a mut [u8] {
        if self.head == NIL {
            return &mut [];
        }
        assert!(self.pool == view.tag, "a chain of another pool");
        // SAFETY: the last chunk is this chain's, which is borrowed exclusively.
        let tail = unsafe { *view.record(self.tail) };
        let end = (tail.off + tail.len) as usize;
        // SAFETY: behind the live bytes of the last chunk, inside it; the chain is borrowed exclusively and the view, which
        // keeps the arena mapped, as long as the slice.
        unsafe { slice::from_raw_parts_mut(view.payload(self.tail).add(end), CHUNK_BYTES - end) }
    }

    /// Gives `len` bytes from `offset` on, or as many as there are, to `f`, piece by piece.
    pub fn for_each_slice(&self, side: &Side, offset: usize, len: usize, mut f: impl FnMut(&[u8])) {
        self.check(side);
        let mut left = len.min(self.len().saturating_sub(offset));
        if left == 0 {
            return;
        }
        let at = self.seek(side, offset);
        let (mut chunk, mut skip) = (at.chunk, offset - at.start as usize);
        while left > 0 {
            let live = &self.live(side, chunk)[skip..];
            let piece = &live[..live.len().min(left)];
            if !piece.is_empty() {
                f(piece);
            }
            left -= piece.len();
            skip = 0;
            chunk = self.record(side, chunk).next;
        }
    }

    /// Whether it lies in the pool of this side.
    pub fn is_of(&self, side: &Side) -> bool {
        self.pool == side.tag || self.head == NIL
    }

    /// Gives all chunks back.
    pub fn free(self, side: &mut Side) {
        self.check(side);
        let mut chunk = self.head;
        while chunk != NIL {
            let next = self.record(side, chunk).next;
            side.release(chunk);
            chunk = next;
        }
    }

    /// A chain meets only sides of its own pool: the other pool's chunk of the same number is somebody else's.
    #[inline(always)]
    fn check(&self, side: &Side) {
        assert!(self.pool == side.tag || self.head == NIL, "a chain of another pool");
    }

    /// The record of a chunk of this chain.
    #[inline(always)]
    fn record<'a>(&'a self, side: &'a Side, chunk: u32) -> &'a Record {
        // SAFETY: the callers pass chunks of this chain, on a side of its pool; while the chain is borrowed shared, nobody
        // writes to their records.
        unsafe { &*side.record(chunk) }
    }

    /// The record of a chunk of this chain, to change.
    #[inline(always)]
    fn record_mut<'a>(&'a mut self, side: &'a Side, chunk: u32) -> &'a mut Record {
        // SAFETY: the callers pass chunks of this chain, on a side of its pool; the chain is borrowed exclusively.
        unsafe { &mut *side.record(chunk) }
    }

    /// The live bytes of a chunk of this chain.
    #[inline(always)]
    fn live<'a>(&'a self, side: &'a Side, chunk: u32) -> &'a [u8] {
        let record = self.record(side, chunk);
        // SAFETY: `off + len <= CHUNK_BYTES`, payloads are initialised, and nobody writes to a chain's live bytes while it
        // is borrowed shared.
        unsafe { slice::from_raw_parts(side.payload(chunk).add(record.off as usize), record.len as usize) }
    }

    /// The room behind the last byte, a new chunk's if the last is full.
    #[inline]
    fn room<'a>(&'a mut self, side: &'a mut Side) -> Option<&'a mut [u8]> {
        // Lengths are u32; the last chunk must not take them past it.
        if self.bytes > u32::MAX - CHUNK_BYTES as u32 {
            return None;
        }
        let mut end = match self.head {
            NIL => CHUNK_BYTES,
            _ => {
                let tail = self.record(side, self.tail);
                (tail.off + tail.len) as usize
            }
        };
        if end == CHUNK_BYTES {
            let chunk = side.alloc()?;
            let mark = Mark { chunk, start: 0 };
            // SAFETY: the chunk was just allocated, so it is ours alone.
            unsafe { side.record(chunk).write(Record { next: NIL, off: 0, len: 0, mark }) };
            if self.head == NIL {
                (self.head, self.pool) = (chunk, side.tag);
            } else {
                self.record_mut(side, self.tail).next = chunk;
            }
            self.tail = chunk;
            end = 0;
        }
        // SAFETY: behind the live bytes of the last chunk, inside it; the chain is borrowed exclusively and the
        // side, which keeps the arena mapped, as long as the slice.
        Some(unsafe { slice::from_raw_parts_mut(side.payload(self.tail).add(end), CHUNK_BYTES - end) })
    }

    /// Counts `n` bytes written into [`Chain::room`].
    #[inline]
    fn grow(&mut self, side: &Side, n: usize) {
        self.record_mut(side, self.tail).len += n as u16;
        self.bytes += n as u32;
    }

    /// Links `other`; neither has no chunk.
    fn join(&mut self, side: &Side, other: Chain) {
        self.bytes = self.bytes.checked_add(other.bytes).expect("a chain of 4 GiB");
        self.record_mut(side, self.tail).next = other.head;
        self.tail = other.tail;
    }

    /// After `n` bytes went from the front: the mark as seen from the new first chunk.
    fn rebase(&mut self, side: &Side, mark: Mark, n: u32) {
        let mark = match mark.start.checked_sub(n) {
            Some(start) => Mark { chunk: mark.chunk, start },
            None => Mark { chunk: self.head, start: 0 },
        };
        self.record_mut(side, self.head).mark = mark;
    }

    /// Cuts behind the first `n` bytes, `0 < n < len`, and gives the rest; in the middle of a chunk the rest of that chunk
    /// is dropped from both.
    fn cut(&mut self, side: &mut Side, n: usize) -> Chain {
        let mark = self.record(side, self.head).mark;
        let at = self.seek(side, n - 1);
        let record = self.record_mut(side, at.chunk);
        let keep = n - at.start as usize;
        let dropped = record.len as usize - keep;
        record.len = keep as u16;
        let head = core::mem::replace(&mut record.next, NIL);
        let bytes = self.bytes - (n + dropped) as u32;
        let mut rest = Chain { head, tail: self.tail, bytes, pool: self.pool };
        (self.tail, self.bytes) = (at.chunk, n as u32);
        if mark.start as usize >= n {
            self.record_mut(side, self.head).mark = Mark { chunk: self.head, start: 0 };
        }
        if bytes == 0 {
            core::mem::take(&mut rest).free(side);
            return rest;
        }
        // An empty chunk must not come first.
        while rest.record(side, rest.head).len == 0 {
            let next = rest.record(side, rest.head).next;
            side.release(rest.head);
            rest.head = next;
        }
        let behind = (n + dropped) as u32;
        rest.rebase(side, mark, behind);
        rest
    }

    /// The chunk that holds the byte at `offset < len`.
    fn seek(&self, side: &Side, offset: usize) -> Mark {
        debug_assert!(offset < self.len());
        let tail = self.record(side, self.tail).len as usize;
        if offset >= self.len() - tail {
            return Mark { chunk: self.tail, start: (self.len() - tail) as u32 };
        }
        let mark = self.record(side, self.head).mark;
        let mut at = if mark.start as usize <= offset { mark } else { Mark { chunk: self.head, start: 0 } };
        loop {
            let record = self.record(side, at.chunk);
            let end = at.start + record.len as u32;
            if offset < end as usize {
                return at;
            }
            at = Mark { chunk: record.next, start: end };
        }
    }

    /// Copies, and says where the last byte was.
    #[inline]
    fn copy(&self, side: &Side, offset: usize, out: &mut [u8]) -> (usize, Option<Mark>) {
        self.check(side);
        let n = out.len().min(self.len().saturating_sub(offset));
        if n == 0 {
            return (0, None);
        }
        if self.head == self.tail {
            // All there is lies together.
            let from = &self.live(side, self.head)[offset..];
            out[..n].copy_from_slice(&from[..n]);
            return (n, Some(Mark { chunk: self.head, start: 0 }));
        }
        self.copy_more(side, offset, out, n)
    }

    fn copy_more(&self, side: &Side, offset: usize, out: &mut [u8], n: usize) -> (usize, Option<Mark>) {
        let mut at = self.seek(side, offset);
        let mut skip = offset - at.start as usize;
        let mut done = 0;
        loop {
            let live = &self.live(side, at.chunk)[skip..];
            let k = live.len().min(n - done);
            out[done..done + k].copy_from_slice(&live[..k]);
            done += k;
            if done == n {
                return (n, Some(at));
            }
            let record = self.record(side, at.chunk);
            at = Mark { chunk: record.next, start: at.start + record.len as u32 };
            skip = 0;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pool::{Pool, PoolConfig};

    /// Reading on must not walk from the front: the mark stands in the chunk that was read last, whatever happens around it.
    #[test]
    fn the_mark_stays_where_reading_was() {
        let (mut side, _other) = Pool::new(&PoolConfig { chunks: 64, ..Default::default() }).unwrap();
        let mut chain = Chain::default();
        let mark = |chain: &Chain, side: &Side| chain.record(side, chain.head).mark;
        assert_eq!(chain.push_slice(&mut side, &[1; 10 * CHUNK_BYTES]), 10 * CHUNK_BYTES);
        let mut cursor = chain.cursor();
        chain.copy_from(&side, &mut cursor, 7 * CHUNK_BYTES - 10, &mut [0; 20]);
        let at = mark(&chain, &side);
        assert_eq!(at.start as usize, 7 * CHUNK_BYTES);
        chain.copy_at(&side, 0, &mut [0; 20]);
        chain.push_slice(&mut side, &[2; CHUNK_BYTES]);
        chain.consume(&mut side, 3 * CHUNK_BYTES + 5);
        let now = mark(&chain, &side);
        assert_eq!((now.chunk, now.start as usize), (at.chunk, 4 * CHUNK_BYTES - 5));
        let front = chain.split_front(&mut side, CHUNK_BYTES);
        let now = mark(&chain, &side);
        assert_eq!((now.chunk, now.start as usize), (at.chunk, 3 * CHUNK_BYTES - 5));
        chain.truncate(&mut side, 3 * CHUNK_BYTES);
        assert_eq!(mark(&chain, &side).chunk, at.chunk);
        chain.truncate(&mut side, 3 * CHUNK_BYTES - 5);
        assert_eq!((mark(&chain, &side).chunk, mark(&chain, &side).start), (chain.head, 0));
        let mut whole = front;
        chain.copy_from(&side, &mut cursor, 2 * CHUNK_BYTES, &mut [0; 20]);
        chain.consume(&mut side, 2 * CHUNK_BYTES + CHUNK_BYTES / 2);
        assert_eq!((mark(&chain, &side).chunk, mark(&chain, &side).start), (chain.head, 0));
        whole.append(&mut side, chain);
        assert_eq!(mark(&whole, &side).start, 0);
        whole.free(&mut side);
    }
}
