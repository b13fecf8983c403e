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
        !self.used(3, 4)
    }

    /// Whether so many parts of the chunks are in use.
    fn used(&self, parts: u32, of: u32) -> bool {
        let stats = self.stats();
        stats.in_use_estimate >= stats.capacity / of * parts
    }

    /// Bytes that one holder among many should be content with: an eighth of what is free of three quarters. All who keep to
    /// it share evenly, and what they leave is the share of whoever comes (dynamic thresholds: Choudhury and Hahne, 1998).
    pub fn share(&self) -> usize {
        let stats = self.stats();
        (stats.capacity / 4 * 3).saturating_sub(stats.in_use_estimate) as usize * CHUNK_BYTES / 8
    }

    /// Whether less than an eighth of the chunks is free: who holds some without need should give them back.
    pub fn scarce(&self) -> bool {
        self.used(7, 8)
    }

    /// Whether less than a sixteenth of the chunks is free: what is left is for what comes in, and for short answers.
    pub fn dry(&self) -> bool {
        self.used(15, 16)
    }

    /// Whether less than a 32nd of the chunks is free: what is left is for what comes in.
    pub fn spent(&self) -> bool {
        self.used(31, 32)
    }
}
