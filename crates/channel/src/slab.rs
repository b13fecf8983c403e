//! Values under small numbers that are given out again; the generation tells the new owner of a number from the old one.

use std::collections::VecDeque;

/// No number.
pub(crate) const NONE: u32 = u32::MAX;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Numbers to values.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// The one freed last at the back.
    free: VecDeque<u32>,
    most: u32,
    rest: usize,
}

impl<T> Slab<T> {
    /// At most `most` values; the number freed last, whose memory is in the caches, is given out first.
    pub fn new(most: u32) -> Slab<T> {
        Slab::resting(most, 0)
    }

    /// At most `most` values; a number that is freed is not given out before `rest` others have been freed, unless none is
    /// left: for names that have few bits of a generation.
    pub const fn resting(most: u32, rest: usize) -> Slab<T> {
        Slab { slots: Vec::new(), free: VecDeque::new(), most, rest }
    }

    /// A number that was used and may be used again.
    fn used(&mut self) -> Option<u32> {
        match self.rest {
            0 => self.free.pop_back(),
            rest if self.free.len() > rest || self.slots.len() as u32 >= self.most => self.free.pop_front(),
            _ => None,
        }
    }

    /// The number of a new value, or the value where there are too many.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        if let Some(at) = self.used() {
            self.slots[at as usize].value = Some(value);
            return Ok(at);
        }
        let at = self.slots.len() as u32;
        if at >= self.most {
            return Err(value);
        }
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Ok(at)
    }

    /// The value goes; its number, with the next generation, is free.
    pub fn remove(&mut self, at: u32) -> Option<T> {
        let slot = self.slots.get_mut(at as usize)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push_back(at);
        Some(value)
    }

    pub fn get(&self, at: u32) -> Option<&T> {
        self.slots.get(at as usize)?.value.as_ref()
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.slots.get_mut(at as usize)?.value.as_mut()
    }

    /// Reads ahead what has a number.
    pub fn prefetch(&self, at: u32) {
        if let Some(slot) = self.slots.get(at as usize) {
            mem::prefetch::whole(slot);
        }
    }

    /// The generation of a number's value; of the next one, where there is none.
    pub fn generation(&self, at: u32) -> u32 {
        self.slots.get(at as usize).map_or(0, |slot| slot.generation)
    }

    /// Numbers in use.
    pub fn numbers(&self) -> Vec<u32> {
        (0..self.slots.len() as u32).filter(|at| self.get(*at).is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_rests_while_others_are_freed() {
        let mut s = Slab::resting(6, 3);
        let first = s.insert(0).unwrap();
        s.remove(first);
        for n in 1..=3 {
            let at = s.insert(n).unwrap();
            assert_ne!(at, first, "{n}");
            s.remove(at);
        }
        assert_eq!(s.insert(4), Ok(first));
        // Where there are no more, none rests.
        let all: Vec<_> = (0..5).map(|n| s.insert(n).unwrap()).collect();
        assert_eq!(s.insert(9), Err(9));
        s.remove(all[0]);
        assert_eq!(s.insert(9), Ok(all[0]));
    }

    #[test]
    fn a_number_that_is_given_again_has_another_generation() {
        let mut s = Slab::new(2);
        let (a, b) = (s.insert('a').unwrap(), s.insert('b').unwrap());
        assert_eq!(s.insert('c'), Err('c'));
        let before = s.generation(a);
        assert_eq!((s.remove(a), s.remove(a)), (Some('a'), None));
        assert_eq!(s.insert('d'), Ok(a));
        assert_ne!(s.generation(a), before);
        assert_eq!((s.get(a), s.get(b), s.numbers()), (Some(&'d'), Some(&'b'), vec![0, 1]));
    }
}
