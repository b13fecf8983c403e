//! The flow table: from a segment's tuple to its connection.
//!
//! Open addressing with linear probing on a secret hash, so that no peer knows what collides. A slot is eight bytes: the
//! hash, which says where the entry belongs and rules out most strangers, and the value. While the table grows there are
//! two; every change moves a few entries over, so no packet waits for a rehash.

use crate::FlowKey;
use crate::spread::Spread;

/// An entry of a table. Zero is empty, so that a new table is pages the system has zeroed and growing touches none of them.
#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    value: u32,
}

impl Slot {
    fn pack(self) -> u64 {
        (self.hash as u64) << 32 | !self.value as u64
    }

    /// What a word holds; `None` where it is empty.
    #[inline]
    fn unpack(word: u64) -> Option<Slot> {
        let value = !(word as u32);
        (value != u32::MAX).then_some(Slot { hash: (word >> 32) as u32, value })
    }
}

/// Where an entry lies, until the next change of the table: a shorter way to it than by its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(u32);

impl Place {
    /// It is to be looked for.
    pub const UNKNOWN: Place = Place(u32::MAX);
}

const START: usize = 1024;
/// Old slots looked at for each change while growing: more than one for each new entry, so growing ends in time.
const STEP: usize = 8;

struct Table {
    slots: Vec<u64>,
    used: usize,
}

impl Table {
    fn new(size: usize) -> Table {
        let mut slots = vec![0; size];
        mem::advise(&mut slots);
        Table { slots, used: 0 }
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// Where, and what.
    #[inline(always)]
    fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<(usize, u32)> {
        let mask = self.mask();
        let mut i = hash as usize & mask;
        loop {
            let slot = Slot::unpack(self.slots[i])?;
            if slot.hash == hash && is(slot.value) {
                return Some((i, slot.value));
            }
            i = (i + 1) & mask;
        }
    }

    fn insert(&mut self, slot: Slot) {
        let mask = self.mask();
        let mut i = slot.hash as usize & mask;
        while Slot::unpack(self.slots[i]).is_some() {
            i = (i + 1) & mask;
        }
        self.slots[i] = slot.pack();
        self.used += 1;
    }

    /// Knuth's algorithm R: what follows moves up, so there are no tombstones.
    fn remove_at(&mut self, mut hole: usize) {
        let mask = self.mask();
        let mut i = hole;
        loop {
            i = (i + 1) & mask;
            let Some(slot) = Slot::unpack(self.slots[i]) else { break };
            let home = slot.hash as usize & mask;
            // Whether `home` lies cyclically in (hole, i]: then the entry may not move before it.
            if (i.wrapping_sub(home) & mask) < (i.wrapping_sub(hole) & mask) {
                continue;
            }
            self.slots[hole] = self.slots[i];
            hole = i;
        }
        self.slots[hole] = 0;
        self.used -= 1;
    }

    fn replace_at(&mut self, i: usize, hash: u32, value: u32) {
        self.slots[i] = Slot { hash, value }.pack();
    }
}

pub(crate) struct FlowTable {
    hasher: Spread,
    now: Table,
    /// The smaller table that is being emptied, and how far that has come.
    old: Option<(Table, usize)>,
}

impl FlowTable {
    pub fn new(secret: [u8; 16]) -> FlowTable {
        FlowTable { hasher: Spread::of(secret), now: Table::new(START), old: None }
    }

    /// Of addresses and ports: few tuples are there on several interfaces, and the comparison tells them apart.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u32 {
        self.hasher.tuple(key)
    }

    /// Hints that `hash` is looked up soon.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        mem::prefetch::read(&self.now.slots[hash as usize & self.now.mask()]);
    }

    /// The value under `hash` that `is` accepts, and its place.
    #[inline(always)]
    pub fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<(u32, Place)> {
        match self.now.find(hash, &mut is) {
            Some((at, value)) => Some((value, Place(at as u32))),
            None if self.old.is_none() => None,
            None => self.find_old(hash, &mut is),
        }
    }

    #[inline(never)]
    fn find_old(&self, hash: u32, is: &mut dyn FnMut(u32) -> bool) -> Option<(u32, Place)> {
        let (old, _) = self.old.as_ref()?;
        old.find(hash, is).map(|(_, value)| (value, Place::UNKNOWN))
    }

    /// Adds a value that is not there and is not `u32::MAX`.
    pub fn insert(&mut self, hash: u32, value: u32) {
        debug_assert!(value != u32::MAX, "stands for an empty slot");
        if self.old.is_none() && (self.now.used + 1) * 8 > self.now.slots.len() * 7 {
            let bigger = Table::new(self.now.slots.len() * 2);
            self.old = Some((core::mem::replace(&mut self.now, bigger), 0));
        }
        self.now.insert(Slot { hash, value });
        self.step();
    }

    /// Moves a few entries out of the old table, if there is one. Changes do so; where there are none for long, somebody must, since
    /// as long as there are two tables both are looked into.
    #[inline]
    pub fn step(&mut self) {
        if self.old.is_some() {
            self.step_on();
        }
    }

    #[inline(never)]
    fn step_on(&mut self) {
        let Some((old, at)) = &mut self.old else { return };
        for _ in 0..STEP {
            if old.used == 0 {
                self.old = None;
                return;
            }
            if *at >= old.slots.len() {
                *at = 0;
            }
            match Slot::unpack(old.slots[*at]) {
                None => *at += 1,
                Some(slot) => {
                    // What moves up into the hole is looked at again.
                    old.remove_at(*at);
                    self.now.insert(slot);
                }
            }
        }
    }

    /// Removes a value; whether it was there.
    pub fn remove(&mut self, hash: u32, value: u32) -> bool {
        let removed = self.with(hash, value, Table::remove_at);
        self.step();
        removed
    }

    /// Puts `new` in the place of `value`, which is at `place`; whether that was there.
    #[inline(always)]
    pub fn replace(&mut self, hash: u32, value: u32, new: u32, place: Place) -> bool {
        if let Some(word) = self.now.slots.get_mut(place.0 as usize)
            && *word == (Slot { hash, value }).pack()
        {
            *word = Slot { hash, value: new }.pack();
            return true;
        }
        self.replace_found(hash, value, new)
    }

    #[inline(never)]
    fn replace_found(&mut self, hash: u32, value: u32, new: u32) -> bool {
        self.with(hash, value, |table, at| table.replace_at(at, hash, new))
    }

    /// Does `f` to the table that holds `value`, at its place; whether one does.
    #[inline(always)]
    fn with(&mut self, hash: u32, value: u32, f: impl FnOnce(&mut Table, usize)) -> bool {
        if let Some((at, _)) = self.now.find(hash, |v| v == value) {
            f(&mut self.now, at);
            return true;
        }
        let Some((old, _)) = &mut self.old else { return false };
        let found = old.find(hash, |v| v == value);
        if let Some((at, _)) = found {
            f(old, at);
        }
        found.is_some()
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.now.used + self.old.as_ref().map_or(0, |(t, _)| t.used)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use wire::Addr;

    use super::*;
    use crate::InterfaceId;

    fn value_of(t: &FlowTable, hash: u32, value: u32) -> Option<u32> {
        t.find(hash, |v| v == value).map(|(value, _)| value)
    }

    #[test]
    fn grows_without_losing_anything() {
        let mut t = FlowTable::new([7; 16]);
        let key = |n: u32| FlowKey {
            interface: InterfaceId(0),
            local: Addr::from_v4([10, 0, 0, 1]),
            remote: Addr::from_v4(n.to_be_bytes()),
            local_port: 80,
            remote_port: n as u16,
        };
        for n in 0..100_000 {
            t.insert(t.hash(&key(n)), n);
            let probe = n / 2;
            assert_eq!(value_of(&t, t.hash(&key(probe)), probe), Some(probe));
        }
        assert_eq!(t.len(), 100_000);
        for n in 0..100_000 {
            assert!(t.remove(t.hash(&key(n)), n), "{n}");
        }
        assert_eq!(t.len(), 0);
    }

    #[test]
    fn it_grows_when_seven_eighths_are_full() {
        let mut t = FlowTable::new([7; 16]);
        for n in 0..START as u32 * 7 / 8 {
            t.insert(n.wrapping_mul(0x9e37_79b1), n);
            assert_eq!((t.now.slots.len(), t.old.is_none()), (START, true), "{n}");
        }
        t.insert(1, START as u32);
        assert_eq!(t.now.slots.len(), 2 * START);
        // The old table is emptied long before the new one is full.
        (1..300).for_each(|n| t.insert(n, START as u32 + n));
        assert!(t.old.is_none());
    }

    #[test]
    fn every_part_of_a_key_counts() {
        let t = FlowTable::new([7; 16]);
        let ip = |s: &str| Addr::from(s.parse::<core::net::IpAddr>().unwrap());
        for (a, b, c) in [("10.0.0.1", "10.0.0.2", "10.1.0.1"), ("fd00::1", "fd00::2", "fd00:0:0:1::1")] {
            let interface = InterfaceId(0);
            let key = FlowKey { interface, local: ip(a), remote: ip(b), local_port: 80, remote_port: 81 };
            let others = [
                FlowKey { local: ip(c), ..key },
                FlowKey { remote: ip(c), ..key },
                FlowKey { local: ip(b), remote: ip(a), ..key },
                FlowKey { local_port: 82, ..key },
                FlowKey { remote_port: 82, ..key },
                FlowKey { local_port: 81, remote_port: 80, ..key },
            ];
            assert_eq!(t.hash(&key), t.hash(&key.clone()));
            assert!(others.iter().all(|k| t.hash(k) != t.hash(&key)));
            assert_ne!(t.hash(&key), FlowTable::new([8; 16]).hash(&key));
        }
    }

    proptest! {
        #[test]
        fn is_a_multimap_while_it_grows(start in 0u32..1800, ops in proptest::collection::vec((0u8..8, any::<u16>()), 0..3000), seed: u32) {
            let mut t = FlowTable::new([1; 16]);
            let mut model: Vec<(u32, u32)> = Vec::new();
            let mut fresh = 0u32;
            // Hashes that crowd: values share them.
            let hash = |n: u32| (n / 3).wrapping_mul(0x9e37_79b1) ^ seed;
            let mut grew = false;
            for (op, x) in (0..start).map(|_| (0, 0)).chain(ops) {
                let at = x as usize % model.len().max(1);
                match op {
                    0..=3 => {
                        t.insert(hash(fresh), fresh);
                        model.push((hash(fresh), fresh));
                        fresh += 1;
                    }
                    4 if !model.is_empty() => {
                        let (h, v) = model.swap_remove(at);
                        prop_assert!(t.remove(h, v));
                        prop_assert!(!t.remove(h, v));
                    }
                    5 if !model.is_empty() => {
                        let (h, v) = model[at];
                        let new = fresh | 1 << 31;
                        fresh += 1;
                        // A place that is known, one that is another's by now, or none.
                        let place = match x % 3 {
                            0 => t.find(h, |w| w == v).expect("it is there").1,
                            1 => Place(x as u32),
                            _ => Place::UNKNOWN,
                        };
                        prop_assert!(t.replace(h, v, new, place));
                        prop_assert!(!t.replace(h, v, 1 << 30, place));
                        model[at].1 = new;
                    }
                    _ if !model.is_empty() => {
                        let (h, v) = model[at];
                        prop_assert_eq!(value_of(&t, h, v), Some(v));
                    }
                    _ => {}
                }
                grew |= t.old.is_some();
                prop_assert_eq!(t.len(), model.len());
            }
            prop_assert!(grew || model.len() <= START * 7 / 8);
            for (h, v) in model {
                prop_assert!(t.find(h, |w| w == v).is_some() && t.remove(h, v));
            }
            prop_assert_eq!(t.len(), 0);
        }

        #[test]
        fn is_a_multimap(ops in proptest::collection::vec((0u8..4, 0u32..3000, 0u32..40), 0..6000)) {
            // Few distinct hashes near the end of the table: long clusters that wrap around.
            let mut t = FlowTable::new([1; 16]);
            let mut model: HashMap<u32, u32> = HashMap::new();
            for (op, value, h) in ops {
                let hash = u32::MAX - 20 + h % 21;
                match op {
                    0 | 1 => {
                        if let std::collections::hash_map::Entry::Vacant(e) = model.entry(value) {
                            e.insert(hash);
                            t.insert(hash, value);
                        }
                    }
                    2 => {
                        let known = model.remove(&value);
                        prop_assert_eq!(known.is_some_and(|h| t.remove(h, value)), known.is_some());
                    }
                    _ => {
                        let hash = model.get(&value).copied();
                        let found = hash.and_then(|h| value_of(&t, h, value));
                        prop_assert_eq!(found, hash.map(|_| value));
                    }
                }
            }
            prop_assert_eq!(t.len(), model.len());
            for (value, hash) in model {
                prop_assert_eq!(value_of(&t, hash, value), Some(value));
            }
        }
    }
}
