//! Which queues each connection is in.
//!
//! Queues hold connection numbers, and the number of a connection that is over is given out again. So a number counts its
//! incarnations, and an entry of a queue names one of them: an entry of an earlier one is stale, and whoever takes it out of
//! the queue skips it. A word for each number holds the incarnation and, for each kind of queue, whether the connection is in
//! it; when the connection is over the bits are cleared and the next incarnation begins, so nothing that a queue knows of a
//! connection outlives it.

use std::collections::VecDeque;

use wire::Instant;

/// Bits of the queues.
pub(crate) mod queued {
    pub const CONTROL: u8 = tcp::wants::CONTROL;
    pub const ACK: u8 = tcp::wants::ACK;
    pub const DATA: u8 = tcp::wants::DATA;
    /// Any of the lists of what is sent.
    pub const SEND: u8 = CONTROL | ACK | DATA;
    /// It has news for the application.
    pub const NOTIFY: u8 = 8;
    /// It waits for its next hop's hardware address.
    pub const HOP: u8 = 16;
    /// Nothing is under way: it will be parked if that stays so.
    pub const IDLE: u8 = 32;
    /// It waits until its address is ours.
    pub const HELD: u8 = 64;
}

/// A connection in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub id: u32,
    incarnation: u32,
}

impl Entry {
    /// The first connection of a number.
    #[cfg(test)]
    pub fn first(id: u32) -> Entry {
        Entry { id, incarnation: 0 }
    }
}

/// What queues know of a connection number.
#[derive(Clone, Copy, Default)]
pub(crate) struct Word {
    incarnation: u32,
    bits: u8,
}

impl Word {
    #[inline(always)]
    pub fn bits(self) -> u8 {
        self.bits
    }

    #[inline(always)]
    pub fn has(self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    #[inline(always)]
    pub fn insert(&mut self, bits: u8) {
        self.bits |= bits;
    }

    #[inline(always)]
    pub fn remove(&mut self, bits: u8) {
        self.bits &= !bits;
    }

    /// The entry of connection `id`, whose word this is.
    #[inline(always)]
    pub fn entry(self, id: u32) -> Entry {
        Entry { id, incarnation: self.incarnation }
    }
}

/// A word for each connection number that was ever given out.
#[derive(Default)]
pub(crate) struct Queues(Vec<Word>);

impl Queues {
    /// Makes room for number `id`.
    #[inline]
    pub fn reach(&mut self, id: u32) {
        if self.0.len() <= id as usize {
            self.0.resize(id as usize + 1, Word::default());
        }
    }

    /// Whether the connection of `entry` still is.
    #[inline(always)]
    pub fn is_current(&self, entry: Entry) -> bool {
        self[entry.id].incarnation == entry.incarnation
    }

    /// An entry was taken out of the queue `bit`: the word of its connection, without the bit; `None` where that is over.
    #[inline(always)]
    pub fn take(&mut self, entry: Entry, bit: u8) -> Option<&mut Word> {
        let word = &mut self[entry.id];
        if word.incarnation != entry.incarnation {
            return None;
        }
        word.remove(bit);
        Some(word)
    }

    /// The connection is over: its entries are stale from now on. The queues that it was in.
    #[inline]
    pub fn end(&mut self, id: u32) -> u8 {
        let word = &mut self[id];
        let bits = word.bits;
        *word = Word { incarnation: word.incarnation.wrapping_add(1), bits: 0 };
        bits
    }
}

impl core::ops::Index<u32> for Queues {
    type Output = Word;
    #[inline(always)]
    fn index(&self, id: u32) -> &Word {
        &self.0[id as usize]
    }
}

impl core::ops::IndexMut<u32> for Queues {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut Word {
        &mut self.0[id as usize]
    }
}

/// Counts the stale entries of a queue, so that no queue is mostly these: where nobody takes entries out, because a port takes
/// no frames or the application reads no events, connections may still come and go.
#[derive(Default)]
pub(crate) struct Stale {
    /// Entries that became stale since the last sweep; some may have been taken out.
    count: usize,
    /// Entries when the last one became stale, 0 after a sweep.
    #[cfg(debug_assertions)]
    len: usize,
}

impl Stale {
    /// Stale entries that are left in a queue however short it is.
    pub const FEW: usize = 64;

    /// Adds `n`; whether the queue, which has `len` entries, must be swept now.
    #[inline]
    pub fn add(&mut self, n: u32, len: usize) -> bool {
        self.count += n as usize;
        let sweep = self.count > Self::FEW && 2 * self.count > len;
        if sweep {
            self.count = 0;
        }
        #[cfg(debug_assertions)]
        {
            self.len = if sweep { 0 } else { len };
        }
        sweep
    }

    /// Stale entries that a queue may have: taking out current ones does not end any, and what is worked on meanwhile is not swept. Known
    /// in debug builds.
    pub fn most(&self) -> usize {
        #[cfg(debug_assertions)]
        return self.len / 2 + 2 * Self::FEW;
        #[cfg(not(debug_assertions))]
        usize::MAX
    }
}

/// What a queue holds.
pub(crate) trait Queued: Copy {
    fn entry(self) -> Entry;
}

impl Queued for Entry {
    #[inline(always)]
    fn entry(self) -> Entry {
        self
    }
}

/// A connection that was idle at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub entry: Entry,
    pub since: Instant,
}

impl Queued for Rest {
    #[inline(always)]
    fn entry(self) -> Entry {
        self.entry
    }
}

/// Connections in the order in which they came.
pub(crate) struct Queue<T> {
    entries: VecDeque<T>,
    stale: Stale,
}

impl<T: Queued> Queue<T> {
    pub fn with_capacity(n: usize) -> Queue<T> {
        Queue { entries: VecDeque::with_capacity(n), stale: Stale::default() }
    }

    /// For checks.
    pub fn stale(&self) -> &Stale {
        &self.stale
    }

    /// A connection in it is over.
    #[inline]
    pub fn leave(&mut self, queues: &Queues) {
        if self.stale.add(1, self.entries.len()) {
            self.entries.retain(|e| queues.is_current(e.entry()));
        }
    }
}

impl<T> core::ops::Deref for Queue<T> {
    type Target = VecDeque<T>;
    fn deref(&self) -> &VecDeque<T> {
        &self.entries
    }
}

impl<T> core::ops::DerefMut for Queue<T> {
    fn deref_mut(&mut self) -> &mut VecDeque<T> {
        &mut self.entries
    }
}

/// Connections that wait for one thing, all of which are told together.
#[derive(Default)]
pub(crate) struct Waiters {
    entries: Vec<Entry>,
    stale: Stale,
}

impl Waiters {
    pub fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All of them, who then wait no more.
    pub fn take(&mut self) -> Vec<Entry> {
        self.stale = Stale::default();
        core::mem::take(&mut self.entries)
    }

    /// One of them waits no more; `waits` tells who does. A short list has no stale entry after this.
    pub fn leave(&mut self, waits: impl Fn(Entry) -> bool) {
        if self.stale.add(1, self.entries.len()) || self.entries.len() <= Stale::FEW {
            self.entries.retain(|e| waits(*e));
            self.stale = Stale::default();
        }
    }

    /// For checks.
    pub fn stale(&self) -> &Stale {
        &self.stale
    }

    /// For checks.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        self.entries.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_ends_with_its_connection() {
        let mut queues = Queues::default();
        queues.reach(3);
        queues[3].insert(queued::ACK | queued::HOP);
        let old = queues[3].entry(3);
        assert!(queues.is_current(old) && queues[3].has(queued::ACK) && !queues[3].has(queued::DATA));
        assert_eq!(queues.end(3), queued::ACK | queued::HOP);
        assert!(!queues.is_current(old) && queues[3].bits() == 0);
        queues[3].insert(queued::DATA);
        let new = queues[3].entry(3);
        assert!(queues.is_current(new) && !queues.is_current(old) && new.id == old.id);
        // Setting and clearing bits does not change the incarnation.
        queues[3].remove(queued::DATA);
        assert!(queues.is_current(new) && queues[3].entry(3) == new);
    }

    #[test]
    fn stale_entries_are_at_most_half_of_what_there_was() {
        let mut queues = Queues::default();
        queues.reach(1000);
        let mut queue = Queue::with_capacity(0);
        (0..1000).for_each(|id| queue.push_back(queues[id].entry(id)));
        let stale = |queue: &Queue<Entry>, queues: &Queues| queue.iter().filter(|e| !queues.is_current(**e)).count();
        // From the back, while nobody takes entries out.
        for id in (520..1000).rev() {
            queues.end(id);
            queue.leave(&queues);
        }
        assert_eq!((queue.len(), stale(&queue, &queues), queue.stale().most()), (1000, 480, 500 + 2 * Stale::FEW));
        // Then current ones are taken from the front: most are stale, and no more than before.
        queue.drain(..300);
        assert_eq!((queue.len(), stale(&queue, &queues), queue.stale().most()), (700, 480, 500 + 2 * Stale::FEW));
        // The next that ends sweeps.
        queues.end(400);
        queue.leave(&queues);
        assert_eq!((queue.len(), stale(&queue, &queues), queue.stale().most()), (219, 0, 2 * Stale::FEW));
    }

    #[test]
    fn waiters_who_left_do_not_fill_the_list() {
        let mut queues = Queues::default();
        queues.reach(1);
        let mut waiters = Waiters::default();
        queues[0].insert(queued::HOP);
        waiters.push(queues[0].entry(0));
        for _ in 0..10_000 {
            waiters.push(queues[1].entry(1));
            queues.end(1);
            waiters.leave(|e| queues.is_current(e));
            assert!(waiters.entries.len() <= 2);
        }
        let many: Vec<_> = (2..1002).collect();
        queues.reach(1002);
        many.iter().for_each(|id| waiters.push(queues[*id].entry(*id)));
        for id in many {
            queues.end(id);
            waiters.leave(|e| queues.is_current(e));
            let current = waiters.iter().filter(|e| queues.is_current(*e)).count();
            assert!(waiters.entries.len() <= 2 * current + Stale::FEW);
        }
        assert_eq!(waiters.take(), [queues[0].entry(0)]);
        assert!(waiters.is_empty());
    }
}
