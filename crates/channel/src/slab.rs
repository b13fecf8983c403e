//! Values under small numbers that are given out again; the generation tells the new owner of a number from the old one.

/// No number.
pub(crate) const NONE: u32 = u32::MAX;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Numbers to values; the number freed last, whose memory is in the caches, is given out first.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    most: u32,
}

impl<T> Slab<T> {
    /// At most `most` values.
    pub fn new(most: u32) -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new(), most }
    }

    /// The number of a new value, or the value where there are too many.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        if let Some(at) = self.free.pop() {
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
        self.free.push(at);
        Some(value)
    }

    pub fn get(&self, at: u32) -> Option<&T> {
        self.slots.get(at as usize)?.value.as_ref()
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.slots.get_mut(at as usize)?.value.as_mut()
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
