//! How much of a pool is in use, and what follows for whoever wants more.

use crate::sync::Ordering;

use super::{CHUNK_BYTES, Side, Untouched};

/// A pool's size and use, as one side sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Chunks in all.
    pub capacity: u32,
    /// Chunks in chains, or in messages on their way: exact while the other side stands still.
    pub in_use_estimate: u32,
    /// Free chunks in this side's magazine.
    pub free_here: u32,
    /// Free chunks in the other side's magazine, to within 15.
    pub free_peer: u32,
    /// Free chunks on their way between the sides.
    pub passing: u32,
    /// Chunks never used.
    pub untouched: u32,
    /// Allocations that found nothing.
    pub alloc_failures: u64,
    /// Chunks this side has passed to the other, wrapping.
    pub passed: u32,
}

impl Side {
    /// Sizes and use.
    #[inline]
    pub fn stats(&self) -> PoolStats {
        let untouched = self.untouched();
        let mut stats = PoolStats {
            capacity: self.chunks,
            in_use_estimate: 0,
            free_here: self.held,
            free_peer: 0,
            passing: 0,
            untouched,
            alloc_failures: self.failures,
            passed: 0,
        };
        self.peer.count(self.chunks, &mut stats);
        self.peers.iter().for_each(|peer| peer.count(self.chunks, &mut stats));
        let free = (untouched + self.held).saturating_add(stats.free_peer).saturating_add(stats.passing);
        stats.in_use_estimate = self.chunks.saturating_sub(free);
        stats
    }

    /// Chunks behind the shared counter.
    pub(super) fn untouched(&self) -> u32 {
        match &self.untouched {
            Untouched::Shared(fresh) => self.chunks - fresh.0.load(Ordering::Relaxed),
            Untouched::Dealt => 0,
        }
    }

    /// Whether at least a quarter of the chunks is free: buffers may grow.
    pub fn plenty(&self) -> bool {
        self.free() > self.chunks / 4
    }

    /// Less than a quarter of the chunks is free. While more is, this is a load, for whoever allocates many; it lags by two batches when
    /// they run out.
    #[inline(always)]
    pub fn is_tight(&mut self) -> bool {
        self.tight && self.note_use()
    }

    /// Looks again whether less than a quarter of the chunks is free.
    #[cold]
    pub(super) fn note_use(&mut self) -> bool {
        self.tight = !self.plenty();
        self.tight
    }

    /// Bytes that this side has chunks for without the other side's help, at most: what is free once memory is [`Side::spent`] is left.
    pub fn spare(&self) -> usize {
        let stats = self.stats();
        let here = stats.free_here + stats.passing + stats.untouched;
        here.min(self.free().saturating_sub(self.part(5))) as usize * CHUNK_BYTES
    }

    /// Chunks in no chain.
    fn free(&self) -> u32 {
        let stats = self.stats();
        stats.capacity - stats.in_use_estimate
    }

    /// So many 64ths of the chunks.
    fn part(&self, of_64: u64) -> u32 {
        (self.chunks as u64 * of_64 / 64) as u32
    }

    /// Bytes that one holder among many should be content with: an eighth of what is free of three quarters. All who keep to
    /// it share evenly, and what they leave is the share of whoever comes (dynamic thresholds: Choudhury and Hahne, 1998).
    pub fn share(&self) -> usize {
        let stats = self.stats();
        (stats.capacity / 4 * 3).saturating_sub(stats.in_use_estimate) as usize * CHUNK_BYTES / 8
    }

    /// Whether less than an eighth of the chunks is free: who holds some without need should give them back.
    pub fn scarce(&self) -> bool {
        self.free() < self.part(8)
    }

    /// Less than 6/64 of the chunks are free: what is left is for what comes in, for short answers and for turns.
    pub fn dry(&self) -> bool {
        self.free() < self.part(6)
    }

    /// Less than 5/64 of the chunks are free: what is left is for what comes in, and for turns.
    pub fn spent(&self) -> bool {
        self.free() < self.part(5)
    }

    /// At most 2/64 of the chunks are free: what is left is for turns, or what came in could never go out.
    pub fn is_at_last(&self) -> bool {
        self.free() <= self.part(2)
    }

    /// Turns that may be given at a time to those who have nothing under way while memory is dry: at most 2/64 of the chunks, so that what
    /// comes in finds the same between [`Side::spent`] and [`Side::is_at_last`], less a 64th.
    pub fn turns(&self) -> usize {
        self.part(2).clamp(1, 256) as usize
    }
}
