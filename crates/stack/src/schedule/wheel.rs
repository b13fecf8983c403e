//! The timer wheel: three levels of 256 slots, ticks of a millisecond.
//!
//! Each id has at most one place, never later than it wants; moving a timer later costs nothing, because whoever is woken
//! too early asks again. Nodes are linked by number, in pages, so a timer is set and cleared in constant time without
//! allocation. Time passes from one busy slot to the next, so an idle gap of any length costs nothing.

use mem::Paged;
use wire::Instant;

const LEVELS: usize = 3;
const SLOTS: usize = 256;
const NIL: u32 = u32::MAX;
const UNLINKED: u16 = u16::MAX;
/// Ticks share a word with the slot: 48 bits, 8,900 years of them. (32 would end 50 days after the host booted.)
const LAST_TICK: u64 = (1 << 48) - 1;
/// Farthest that the last level reaches, ticks; its current slot is never used.
const REACH: u64 = (1 << 24) - (1 << 16);

#[derive(Clone, Copy)]
struct Node {
    next: u32,
    prev: u32,
    /// Tick at which it is wanted, as far as the wheel knows, × 65,536 + level × 256 + slot.
    place: u64,
}

impl Node {
    const EMPTY: Node = Node { next: NIL, prev: NIL, place: UNLINKED as u64 };

    fn tick(&self) -> u64 {
        self.place >> 16
    }

    fn slot(&self) -> u16 {
        self.place as u16
    }
}

pub(crate) struct Wheel {
    heads: [u32; LEVELS * SLOTS],
    /// Which slots hold something.
    busy: [[u64; SLOTS / 64]; LEVELS],
    nodes: Paged<Node>,
    /// The last tick that was done. Its slot of the first level holds what was overdue when it was scheduled.
    tick: u64,
    len: usize,
}

fn tick_of(at: Instant) -> u64 {
    // Rounded up: a timer may be late by a tick, never early.
    at.micros().div_ceil(1000).min(LAST_TICK)
}

impl Wheel {
    pub fn new(now: Instant) -> Wheel {
        Wheel {
            heads: [NIL; LEVELS * SLOTS],
            busy: [[0; SLOTS / 64]; LEVELS],
            nodes: Paged::new(),
            tick: now.millis().min(LAST_TICK),
            len: 0,
        }
    }

    #[inline]
    fn node(&mut self, id: u32) -> &mut Node {
        if self.nodes.len() <= id as usize {
            self.grow(id);
        }
        self.nodes.get_mut(id as usize).expect("it was made")
    }

    #[cold]
    fn grow(&mut self, id: u32) {
        (self.nodes.len()..=id as usize).for_each(|_| self.nodes.push(Node::EMPTY));
    }

    /// Makes sure that `id` comes out of the first [`Wheel::expire`] at `at` (rounded up to a tick), or of an earlier one.
    pub fn schedule(&mut self, id: u32, at: Instant) {
        let tick = tick_of(at).max(self.tick);
        let node = self.node(id);
        if node.slot() != UNLINKED {
            if node.tick() <= tick {
                return;
            }
            self.cancel(id);
        }
        self.link(id, tick);
    }

    fn link(&mut self, id: u32, tick: u64) {
        let ahead = tick - self.tick;
        let (level, at) = if ahead < 1 << 8 {
            (0, tick)
        } else if ahead < 1 << 16 {
            (1, tick >> 8)
        } else {
            // Beyond the last level: as far as it goes, then again.
            (2, tick.min(self.tick + REACH) >> 16)
        };
        let at = at as usize % SLOTS;
        let slot = level * SLOTS + at;
        let head = self.heads[slot];
        if head != NIL {
            self.node(head).prev = id;
        }
        *self.node(id) = Node { next: head, prev: NIL, place: tick << 16 | slot as u64 };
        self.heads[slot] = id;
        self.busy[level][at / 64] |= 1 << (at % 64);
        self.len += 1;
    }

    /// Whether `id` is on the wheel.
    pub fn has(&self, id: u32) -> bool {
        self.nodes.get(id as usize).is_some_and(|node| node.slot() != UNLINKED)
    }

    /// Whether `id` comes out at `at` or earlier, if that is ever.
    pub fn wakes(&self, id: u32, at: Instant) -> bool {
        let in_time = |node: &Node| node.slot() != UNLINKED && node.tick() <= tick_of(at).max(self.tick);
        at == Instant::FAR || self.nodes.get(id as usize).is_some_and(in_time)
    }

    /// Forgets `id`.
    pub fn cancel(&mut self, id: u32) {
        let node = *self.node(id);
        if node.slot() == UNLINKED {
            return;
        }
        let slot = node.slot() as usize;
        match node.prev {
            NIL => self.heads[slot] = node.next,
            prev => self.node(prev).next = node.next,
        }
        if node.next != NIL {
            self.node(node.next).prev = node.prev;
        }
        if self.heads[slot] == NIL {
            self.clear_busy(slot);
        }
        *self.node(id) = Node::EMPTY;
        self.len -= 1;
    }

    fn clear_busy(&mut self, slot: usize) {
        self.busy[slot / SLOTS][slot % SLOTS / 64] &= !(1 << (slot % 64));
    }

    /// Empties a slot.
    fn take(&mut self, slot: usize, mut f: impl FnMut(&mut Wheel, u32, u64)) {
        let mut id = core::mem::replace(&mut self.heads[slot], NIL);
        self.clear_busy(slot);
        while id != NIL {
            let node = core::mem::replace(self.node(id), Node::EMPTY);
            self.len -= 1;
            f(self, id, node.tick());
            id = node.next;
        }
    }

    /// Appends the ids that are due to `out`; they are scheduled no more.
    pub fn expire(&mut self, now: Instant, out: &mut Vec<u32>) {
        let target = now.millis().min(LAST_TICK);
        if target < self.tick {
            return;
        }
        self.take(self.tick as usize % SLOTS, |_, id, _| out.push(id));
        while self.len > 0 {
            let next = self.next_busy();
            if next > target {
                break;
            }
            self.tick = next;
            if next.is_multiple_of(1 << 16) {
                self.cascade(2 * SLOTS + (next >> 16) as usize % SLOTS);
            }
            if next.is_multiple_of(1 << 8) {
                self.cascade(SLOTS + (next >> 8) as usize % SLOTS);
            }
            self.take(next as usize % SLOTS, |_, id, _| out.push(id));
        }
        self.tick = target;
    }

    /// Pours a slot down to the levels below; what is due in this very tick lands in the slot that is emptied next.
    fn cascade(&mut self, slot: usize) {
        self.take(slot, |w, id, tick| w.link(id, tick.max(w.tick)));
    }

    /// A time that is not later than the earliest due.
    pub fn next(&self) -> Option<Instant> {
        if self.len == 0 {
            return None;
        }
        let at = self.tick as usize % SLOTS;
        let overdue = self.busy[0][at / 64] & 1 << (at % 64) != 0;
        let tick = if overdue { self.tick } else { self.next_busy() };
        Some(Instant::from_micros(tick * 1000))
    }

    /// The next tick after this one with something to do, or an earlier one: a slot of the first level that is due, or the
    /// boundary at which one of a higher level is poured down.
    fn next_busy(&self) -> u64 {
        for (level, busy) in self.busy.iter().enumerate() {
            let shift = 8 * level as u32;
            let round = self.tick >> (shift + 8) << (shift + 8);
            if let Some(slot) = first_after(busy, (self.tick >> shift) as usize % SLOTS) {
                return round + ((slot as u64) << shift);
            }
            // What this level holds belongs to its next round, which starts before anything of a higher level is poured.
            if busy.iter().any(|w| *w != 0) {
                return round + (1 << (shift + 8));
            }
        }
        LAST_TICK
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

    fn ms(ms: u64) -> Instant {
        Instant::from_micros(ms * 1000)
    }

    fn expire(w: &mut Wheel, now: Instant) -> Vec<u32> {
        let mut out = Vec::new();
        w.expire(now, &mut out);
        out.sort();
        out
    }

    #[test]
    fn a_node_is_sixteen_bytes() {
        assert_eq!(size_of::<Node>(), 16);
    }

    #[test]
    fn only_an_earlier_time_moves_a_timer() {
        let mut w = Wheel::new(ms(0));
        w.schedule(1, ms(100));
        w.schedule(1, ms(70_000));
        assert_eq!(expire(&mut w, ms(99)), []);
        assert_eq!(expire(&mut w, ms(100)), [1]);
        w.schedule(1, ms(70_000));
        w.schedule(1, ms(200));
        assert_eq!(expire(&mut w, ms(200)), [1]);
        assert_eq!((expire(&mut w, ms(80_000)), w.next()), (vec![], None));
    }

    #[test]
    fn the_overdue_come_at_once_and_once() {
        let mut w = Wheel::new(ms(0));
        assert_eq!(expire(&mut w, ms(1000)), []);
        w.schedule(1, ms(3));
        w.schedule(2, ms(1000));
        w.schedule(3, Instant::from_micros(1_000_001));
        assert_eq!(w.next(), Some(ms(1000)));
        assert_eq!(expire(&mut w, ms(1000)), [1, 2]);
        assert_eq!(w.next(), Some(ms(1001)));
        assert_eq!(expire(&mut w, ms(1001)), [3]);
    }

    #[test]
    fn centuries_and_the_end_of_time() {
        // A loop over ticks would not come back from this.
        let century = ms(100 * 365 * 86_400_000);
        let mut w = Wheel::new(ms(0));
        w.schedule(7, century);
        w.schedule(8, Instant::FAR);
        assert_eq!(expire(&mut w, ms(century.millis() - 1)), []);
        assert_eq!(expire(&mut w, century), [7]);
        w.cancel(8);
        assert_eq!(w.next(), None);
        let mut w = Wheel::new(Instant::FAR);
        w.schedule(9, Instant::FAR);
        assert_eq!(expire(&mut w, Instant::FAR), [9]);
    }

    #[test]
    fn each_comes_in_its_tick_at_the_borders_of_the_levels() {
        let borders = || [1 << 8, 1 << 16, REACH, 1 << 24].into_iter().flat_map(|b| b - 2..=b + 2);
        for start in borders().chain([0, 1, 5000, (1 << 24) + 255, (1 << 32) + 65_535]) {
            for due in borders().map(|ahead| start + ahead) {
                // With company in its slot and the one before, so that it is told from them.
                let wheel = || {
                    let mut w = Wheel::new(ms(start));
                    [due - 1, due, due + 1].into_iter().zip(1..).for_each(|(at, id)| w.schedule(id, ms(at)));
                    w
                };
                let mut w = wheel();
                assert_eq!(expire(&mut w, ms(due - 2)), [], "{start} {due}");
                assert_eq!(expire(&mut w, ms(due - 1)), [1], "{start} {due}");
                assert_eq!(expire(&mut w, ms(due)), [2], "{start} {due}");
                assert_eq!(expire(&mut w, ms(due + 1)), [3], "{start} {due}");
                // From one time that it tells to the next.
                let mut w = wheel();
                let mut came = Vec::new();
                while let Some(next) = w.next() {
                    assert!(next.millis() > start && next.millis() <= due + 1);
                    came.extend(expire(&mut w, next).into_iter().map(|id| (id, next.millis())));
                }
                assert_eq!(came, [(1, due - 1), (2, due), (3, due + 1)], "{start}");
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Schedule(u32, u64),
        Cancel(u32),
        Pass(u64),
        ToNext,
    }

    fn op() -> impl Strategy<Value = Op> {
        // From a tick to a day, each level's borders included; some in the past.
        let span = prop_oneof![0u64..3_000, 0u64..600_000, 0u64..140_000_000, 0u64..86_400_000_000];
        prop_oneof![
            4 => (0u32..60, span.clone()).prop_map(|(id, us)| Op::Schedule(id, us)),
            1 => (0u32..60).prop_map(Op::Cancel),
            2 => span.prop_map(Op::Pass),
            2 => Just(Op::ToNext),
        ]
    }

    proptest! {
        #[test]
        fn each_comes_in_its_tick(ops in proptest::collection::vec(op(), 1..200), start in 0u64..1 << 50) {
            let mut now = Instant::from_micros(start);
            let mut w = Wheel::new(now);
            // Tick by id.
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Schedule(id, us) => {
                        let at = Instant::from_micros((now.micros() + us).saturating_sub(1500));
                        w.schedule(id, at);
                        let tick = at.micros().div_ceil(1000);
                        model.entry(id).and_modify(|t| *t = tick.min(*t)).or_insert(tick);
                    }
                    Op::Cancel(id) => {
                        w.cancel(id);
                        model.remove(&id);
                    }
                    Op::Pass(_) | Op::ToNext => {
                        let next = w.next();
                        prop_assert_eq!(next.is_some(), !model.is_empty());
                        if let (Some(next), Some(first)) = (next, model.values().min()) {
                            prop_assert!(next.millis() <= (*first).max(now.millis()), "{next:?} for {first}");
                        }
                        now = match op {
                            Op::Pass(us) => now.plus_micros(us),
                            _ => now.max(next.unwrap_or(now)),
                        };
                        let due: Vec<u32> = model.iter().filter(|(_, t)| **t <= now.millis()).map(|(id, _)| *id).collect();
                        model.retain(|_, t| *t > now.millis());
                        prop_assert_eq!(expire(&mut w, now), due);
                        prop_assert_eq!(w.len, model.len());
                    }
                }
            }
            // Following `next` alone ends, with everything in its tick.
            let from = now.millis();
            for _ in 0..1000 {
                let Some(next) = w.next() else { break };
                now = now.max(next);
                for id in expire(&mut w, now) {
                    prop_assert!(model.remove(&id).is_some_and(|t| t.max(from) == now.millis()), "{id} not in its tick");
                }
            }
            prop_assert!(model.is_empty() && w.next().is_none());
        }
    }
}
