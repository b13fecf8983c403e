//! Counters that one side writes and anyone reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// `N` counters on lines of their own. One thread writes, by plain load and store, which costs what a plain integer
/// costs; two writers would lose counts, nothing worse. Readers see each counter whole, not all of one moment.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters<const N: usize>([AtomicU64; N]);

impl<const N: usize> Counters<N> {
    /// All zero.
    pub const fn new() -> Counters<N> {
        Counters([const { AtomicU64::new(0) }; N])
    }

    /// Adds `n`, wrapping; the writer's only.
    #[inline]
    pub fn add(&self, index: usize, n: u64) {
        let counter = &self.0[index];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets a gauge; the writer's only.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Relaxed);
    }

    /// One counter.
    #[inline]
    pub fn value(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }

    /// All counters.
    pub fn snapshot(&self) -> [u64; N] {
        core::array::from_fn(|i| self.value(i))
    }
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Counters<N> {
        Counters::new()
    }
}
