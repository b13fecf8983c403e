//! The timer wheel: three levels of 256 slots, ticks of a millisecond.
//!
//! Each id has at most one place, never later than it wants; moving a timer later costs nothing, because whoever is woken
//! too early asks again. Nodes are linked by number, in pages, so a timer is set and cleared in constant time without
//! allocation.

use wire::Instant;

const LEVELS: usize = 3;
const SLOTS: usize = 256;
const PAGE: usize = 1024;
const NIL: u32 = u32::MAX;
const UNLINKED: u16 = u16::MAX;

#[derive(Clone, Copy)]
struct Node {
    next: u32,
    prev: u32,
    /// Tick at which it is wanted, as far as the wheel knows.
    tick: u32,
    /// Level × 256 + slot.
    slot: u16,
}

pub(crate) struct Wheel {
    heads: [u32; LEVELS * SLOTS],
    busy: [[u64; SLOTS / 64]; LEVELS],
    pages: Vec<Box<[Node]>>,
    /// Ticks done.
    tick: u32,
    len: usize,
}

fn tick_of(at: Instant) -> u32 {
    // Rounded up: a timer may be late by a tick, never early.
    at.micros().div_ceil(1000).min(u32::MAX as u64) as u32
}

impl Wheel {
    pub fn new(now: Instant) -> Wheel {
        Wheel {
            heads: [NIL; LEVELS * SLOTS],
            busy: [[0; SLOTS / 64]; LEVELS],
            pages: Vec::new(),
            tick: now.millis() as u32,
            len: 0,
        }
    }

    fn node(&mut self, id: u32) -> &mut Node {
        while self.pages.len() <= id as usize / PAGE {
            let empty = Node { next: NIL, prev: NIL, tick: 0, slot: UNLINKED };
            self.pages.push(vec![empty; PAGE].into_boxed_slice());
        }
        &mut self.pages[id as usize / PAGE][id as usize % PAGE]
    }

    /// Makes sure that `id` comes out of [`Wheel::expire`] at `at` or before.
    pub fn schedule(&mut self, id: u32, at: Instant) {
        let tick = tick_of(at).max(self.tick + 1);
        let node = self.node(id);
        if node.slot != UNLINKED {
            if node.tick <= tick {
                return;
            }
            self.cancel(id);
        }
        self.link(id, tick);
    }

    fn link(&mut self, id: u32, tick: u32) {
        let ahead = tick - self.tick;
        let (level, at) = if ahead < 1 << 8 {
            (0, tick)
        } else if ahead < 1 << 16 {
            (1, tick >> 8)
        } else {
            // Beyond the last level: as far as it goes, then again.
            (2, (tick.min(self.tick.saturating_add((1 << 24) - (1 << 16)))) >> 16)
        };
        let slot = level * SLOTS + (at as usize & (SLOTS - 1));
        let head = self.heads[slot];
        if head != NIL {
            self.node(head).prev = id;
        }
        *self.node(id) = Node { next: head, prev: NIL, tick, slot: slot as u16 };
        self.heads[slot] = id;
        self.busy[level][(slot & (SLOTS - 1)) / 64] |= 1 << (slot % 64);
        self.len += 1;
    }

    /// Forgets `id`.
    pub fn cancel(&mut self, id: u32) {
        let node = *self.node(id);
        if node.slot == UNLINKED {
            return;
        }
        let slot = node.slot as usize;
        match node.prev {
            NIL => self.heads[slot] = node.next,
            prev => self.node(prev).next = node.next,
        }
        if node.next != NIL {
            self.node(node.next).prev = node.prev;
        }
        if self.heads[slot] == NIL {
            self.busy[slot / SLOTS][(slot & (SLOTS - 1)) / 64] &= !(1 << (slot % 64));
        }
        self.node(id).slot = UNLINKED;
        self.len -= 1;
    }

    fn take(&mut self, slot: usize, mut f: impl FnMut(&mut Wheel, u32, u32)) {
        let mut id = core::mem::replace(&mut self.heads[slot], NIL);
        self.busy[slot / SLOTS][(slot & (SLOTS - 1)) / 64] &= !(1 << (slot % 64));
        while id != NIL {
            let node = self.node(id);
            let (next, tick) = (node.next, node.tick);
            node.slot = UNLINKED;
            self.len -= 1;
            f(self, id, tick);
            id = next;
        }
    }

    /// Appends the ids that are due to `out`.
    pub fn expire(&mut self, now: Instant, out: &mut Vec<u32>) {
        let target = now.millis().min(u32::MAX as u64) as u32;
        while self.tick < target {
            if self.len == 0 {
                self.tick = target;
                return;
            }
            // Whole empty stretches of the first level are skipped.
            let at = self.tick as usize & (SLOTS - 1);
            let next = first_after(&self.busy[0], at).unwrap_or(SLOTS);
            let skip = (next - at) as u32;
            if skip > 1 {
                self.tick += (skip - 1).min(target - self.tick);
                if self.tick == target {
                    return;
                }
            }
            self.tick += 1;
            if self.tick & 0xff == 0 {
                if self.tick & 0xffff == 0 {
                    self.cascade(2 * SLOTS + (self.tick >> 16) as usize % SLOTS);
                }
                self.cascade(SLOTS + (self.tick >> 8) as usize % SLOTS);
            }
            self.take(self.tick as usize & (SLOTS - 1), |_, id, _| out.push(id));
        }
    }

    fn cascade(&mut self, slot: usize) {
        self.take(slot, |w, id, tick| {
            // What is due in this very tick lands in the slot that is emptied next.
            w.link(id, tick.max(w.tick));
        });
    }

    /// A time that is not later than the earliest due.
    pub fn next(&self) -> Option<Instant> {
        if self.len == 0 {
            return None;
        }
        let at = self.tick as usize & (SLOTS - 1);
        let base = self.tick & !0xff;
        let tick = match first_after(&self.busy[0], at) {
            Some(slot) => base + slot as u32,
            // Either the first level wraps or a higher one is poured down at the next boundary that holds something.
            None if self.busy[0].iter().any(|w| *w != 0) => base + 256,
            None => {
                let at1 = (self.tick >> 8) as usize & (SLOTS - 1);
                match first_after(&self.busy[1], at1) {
                    Some(slot) => (self.tick & !0xffff) + ((slot as u32) << 8),
                    None => (self.tick & !0xffff).saturating_add(1 << 16),
                }
            }
        };
        Some(Instant::from_micros(tick as u64 * 1000))
    }
}

/// The first set bit after `at`.
fn first_after(words: &[u64; SLOTS / 64], at: usize) -> Option<usize> {
    let from = at + 1;
    if from >= SLOTS {
        return None;
    }
    let mut word = from / 64;
    let mut bits = words[word] & (u64::MAX << (from % 64));
    loop {
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        word += 1;
        bits = *words.get(word)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn nothing_is_early_or_lost(ops in proptest::collection::vec((0u8..5, 0u32..50, 0u64..40_000_000_000), 1..200), start in 0u64..1 << 33) {
            let mut now = Instant::from_micros(start);
            let mut w = Wheel::new(now);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (op, id, us) in ops {
                match op {
                    0 | 1 => {
                        let at = now.plus_micros(if op == 0 { us } else { us % 300_000 });
                        w.schedule(id, at);
                        let earliest = model.get(&id).map_or(at.micros(), |m| (*m).min(at.micros()));
                        model.insert(id, earliest);
                    }
                    2 => {
                        w.cancel(id);
                        model.remove(&id);
                    }
                    _ => {
                        // Never past what `next` promises without looking.
                        let first = model.values().min().copied();
                        let next = w.next();
                        prop_assert_eq!(next.is_some(), first.is_some());
                        if let (Some(next), Some(first)) = (next, first) {
                            prop_assert!(next.micros() <= first.max(now.micros()).div_ceil(1000) * 1000 + 1000, "{next:?} {first}");
                        }
                        now = now.plus_micros(if op == 3 { us } else { us % 300_000 });
                        let mut out = Vec::new();
                        w.expire(now, &mut out);
                        for id in out {
                            let at = model.remove(&id);
                            prop_assert!(at.is_some());
                            // Far timers may come early to ask again; that is the lazy contract only beyond four hours.
                            if at.unwrap() > now.micros() {
                                prop_assert!(false, "early: {} > {}", at.unwrap(), now.micros());
                            }
                        }
                        for at in model.values() {
                            prop_assert!(*at + 1000 > now.micros(), "late: {at} at {}", now.micros());
                        }
                    }
                }
            }
        }
    }
}
