//! Slots by dense number; growing does not pause.

use mem::Paged;

/// What a free slot holds: the next free one.
enum Slot<T> {
    Used(T),
    Free(u32),
}

const END: u32 = u32::MAX;

/// A slab of at most `max` values.
pub(crate) struct Slab<T> {
    all: Paged<Slot<T>>,
    free: u32,
    len: usize,
    max: u32,
}

impl<T> Slab<T> {
    pub fn new(max: u32) -> Slab<T> {
        Slab { all: Paged::new(), free: END, len: 0, max }
    }

    /// Whether no value can be added.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free == END && self.all.len() >= self.max as usize
    }

    /// Adds what `f` makes, where there is room, straight into its place; its number.
    #[inline(always)]
    pub fn insert_with(&mut self, f: impl FnOnce() -> T) -> Option<u32> {
        let id = self.free;
        match self.all.get_mut(id as usize) {
            Some(slot) => {
                if let Slot::Free(next) = slot {
                    self.free = *next;
                }
                *slot = Slot::Used(f());
                self.len += 1;
                Some(id)
            }
            None => self.insert(f()).ok(),
        }
    }

    /// Its number, or the value back when the slab is full.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        let id = self.free;
        if let Some(slot) = self.all.get_mut(id as usize) {
            if let Slot::Free(next) = slot {
                self.free = *next;
            }
            *slot = Slot::Used(value);
            self.len += 1;
            return Ok(id);
        }
        if self.all.len() >= self.max as usize {
            return Err(value);
        }
        self.all.push(Slot::Used(value));
        self.len += 1;
        Ok(self.all.len() as u32 - 1)
    }

    pub fn remove(&mut self, id: u32) -> Option<T> {
        let slot = self.all.get_mut(id as usize).filter(|slot| matches!(slot, Slot::Used(_)))?;
        let old = core::mem::replace(slot, Slot::Free(self.free));
        self.free = id;
        self.len -= 1;
        match old {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    #[inline]
    pub fn get(&self, id: u32) -> Option<&T> {
        match self.all.get(id as usize)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        match self.all.get_mut(id as usize)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// Hints that the value is used soon.
    #[inline]
    pub fn prefetch(&self, id: u32) {
        if let Some(slot) = self.all.get(id as usize) {
            mem::prefetch::whole(slot);
        }
    }

    /// Numbers ever given out: all are below.
    pub fn slots(&self) -> u32 {
        self.all.len() as u32
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn iter_ids(&self) -> impl Iterator<Item = u32> {
        (0..self.slots()).filter(|id| self.get(*id).is_some())
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, id: u32) -> &T {
        self.get(id).expect("the slot is in use")
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.get_mut(id).expect("the slot is in use")
    }
}

/// Bytes of a slot.
#[cfg(test)]
pub(crate) const fn slot_bytes<T>() -> usize {
    size_of::<Slot<T>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 2000;

    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn the_last_freed_is_next() {
        let mut slab = Slab::new(5 * MANY as u32);
        slab.insert(0).unwrap();
        (1..5 * MANY as u32).for_each(|n| assert_eq!(slab.insert(n), Ok(n)));
        assert_eq!(slab.insert(77), Err(77));
        assert_eq!((slab.remove(3), slab.remove(700), slab.remove(700)), (Some(3), Some(700), None));
        assert_eq!((slab.insert(8), slab.insert(9), slab.insert(10)), (Ok(700), Ok(3), Err(10)));
        assert_eq!((slab.remove(8), slab.remove(8)), (Some(8), None));
        assert_eq!((slab.get(8), slab.len()), (None, 5 * MANY - 1));
        assert_eq!(slab.insert(8), Ok(8));
        slab[3] += 1;
        assert!(slab.is_full() && slab.insert_with(|| 11).is_none());
        slab.remove(8);
        assert_eq!((slab.is_full(), slab.insert_with(|| 12), slab[8]), (false, Some(8), 12));
        assert_eq!((slab[3], slab.get(u32::MAX), slab.get(6 * MANY as u32)), (10, None, None));
    }

    proptest! {
        #[test]
        fn is_a_map_from_its_numbers(ops in proptest::collection::vec(any::<(bool, u16)>(), 0..600)) {
            let mut slab = Slab::new(300);
            let mut model = HashMap::new();
            for (add, x) in ops {
                if add {
                    match slab.insert(x) {
                        Ok(id) => prop_assert_eq!(model.insert(id, x), None),
                        Err(back) => prop_assert!(back == x && model.len() == 300),
                    }
                } else {
                    let id = x as u32 % 310;
                    prop_assert_eq!(slab.remove(id), model.remove(&id));
                }
            }
            prop_assert_eq!(slab.len(), model.len());
            let mut ids: Vec<_> = model.keys().copied().collect();
            ids.sort();
            prop_assert_eq!(slab.iter_ids().collect::<Vec<_>>(), ids);
        }
    }
}
