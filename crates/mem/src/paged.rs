//! A growing array in large pieces for which huge pages are asked: with millions of entries met in random order, address
//! translation would cost more than the entries. Only the first piece grows, and is moved for it while it is small (large
//! ones the system moves by their page tables), so growing never pauses.

/// Bytes of a piece, about. Small programs do not outgrow the first, which asks for nothing.
const PIECE: usize = 16 << 20;

/// The array.
#[derive(Debug)]
pub struct Paged<T> {
    /// The first piece by itself: most arrays have no other, and what is in it is a step nearer.
    first: Vec<T>,
    /// The others.
    rest: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Paged<T> {
    fn default() -> Paged<T> {
        Paged::new()
    }
}

impl<T> Paged<T> {
    /// Entries of a piece, as a power of two.
    const SHIFT: u32 = (PIECE / if size_of::<T>() == 0 { 1 } else { size_of::<T>() }).ilog2();

    /// An empty array.
    pub const fn new() -> Paged<T> {
        Paged { first: Vec::new(), rest: Vec::new(), len: 0 }
    }

    /// Entries in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where entry `i` lies that is not in the first piece.
    #[inline(always)]
    fn place(i: usize) -> (usize, usize) {
        ((i >> Self::SHIFT).wrapping_sub(1), i & ((1 << Self::SHIFT) - 1))
    }

    /// Entry `i`.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<&T> {
        if let Some(entry) = self.first.get(i) {
            return Some(entry);
        }
        let (piece, at) = Self::place(i);
        // SAFETY: entries below `len` have been pushed, each at its place; nothing is ever taken out.
        (i < self.len).then(|| unsafe { self.rest.get_unchecked(piece).get_unchecked(at) })
    }

    /// Entry `i`, to change.
    #[inline(always)]
    pub fn get_mut(&mut self, i: usize) -> Option<&mut T> {
        if i < self.first.len() {
            return self.first.get_mut(i);
        }
        let (piece, at) = Self::place(i);
        // SAFETY: as above.
        (i < self.len).then(|| unsafe { self.rest.get_unchecked_mut(piece).get_unchecked_mut(at) })
    }

    /// Appends an entry.
    pub fn push(&mut self, value: T) {
        if self.len < 1 << Self::SHIFT {
            self.first.push(value);
        } else {
            let (piece, _) = Self::place(self.len);
            if piece == self.rest.len() {
                self.add_piece();
            }
            self.rest[piece].push(value);
        }
        self.len += 1;
    }

    #[cold]
    fn add_piece(&mut self) {
        let mut piece = Vec::new();
        // Untouched memory costs nothing.
        piece.reserve_exact(1 << Self::SHIFT);
        advise(piece.spare_capacity_mut());
        self.rest.push(piece);
    }
}

/// Asks for huge pages where `memory` covers some whole ones; nothing depends on the answer.
pub fn advise<T>(memory: &mut [T]) {
    #[cfg(all(target_os = "linux", not(miri), not(loom)))]
    {
        const HUGE: usize = 2 << 20;
        let start = memory.as_mut_ptr() as usize;
        let from = start.next_multiple_of(HUGE);
        let to = (start + size_of_val(memory)) / HUGE * HUGE;
        if from < to {
            // SAFETY: the advice changes what the pages are made of, not what is in them; they lie inside `memory`.
            let _ = unsafe {
                rustix::mm::madvise(from as *mut core::ffi::c_void, to - from, rustix::mm::Advice::LinuxHugepage)
            };
        }
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_an_array() {
        let mut p: Paged<[u32; 64]> = Paged::default();
        let n = if cfg!(miri) { 7 } else { (2 << Paged::<[u32; 64]>::SHIFT) + 7 };
        (0..n).for_each(|i| p.push([i as u32; 64]));
        p.get_mut(n - 1).unwrap()[3] = 9;
        assert_eq!(
            (p.len(), p.get(n - 1).unwrap()[..4].to_vec()),
            (n, vec![n as u32 - 1, n as u32 - 1, n as u32 - 1, 9])
        );
        assert!((0..n).step_by(97).all(|i| p.get(i).unwrap()[0] == i as u32));
        assert!(p.get(n).is_none() && p.get_mut(usize::MAX).is_none());
        assert!(Paged::<u8>::new().is_empty() && Paged::<u8>::new().get(0).is_none());
    }

    #[test]
    fn advice_on_anything() {
        advise::<u64>(&mut []);
        let mut v = vec![7u64; if cfg!(miri) { 100 } else { 1 << 20 }];
        advise(&mut v);
        advise(&mut v[1..9]);
        assert!(v.iter().all(|x| *x == 7));
    }
}
