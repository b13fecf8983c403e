//! Records of segments sent and not yet acknowledged: the retransmission queue and the SACK scoreboard.
//!
//! They live in one slab per stack, so a connection with nothing in flight holds none, and a busy one allocates nothing. The only
//! record of a connection, as a short exchange has it, lies in the connection's list itself until a second one follows or something
//! is to be done with it but to acknowledge it: it is in both orders by itself.
//! Each record stands in two orders: of sequence numbers, and of the last transmission, which is what RACK walks
//! (RFC 8985 6.2) and what keeps loss detection proportional to what was lost.
//!
//! Invariants: a record marked TIMED is in the order of transmission once, and no other is; each link has its counterpart; no
//! record below the retransmission hint is lost and waits.

use wire::SeqNum;

/// End of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// What a record says of its segment.
pub(crate) mod mark {
    /// It carries SYN, which occupies the first sequence number.
    pub const SYN: u8 = 1;
    /// It carries FIN, which occupies the last.
    pub const FIN: u8 = 2;
    /// Judged lost, and not delivered since.
    pub const LOST: u8 = 4;
    /// Sent more than once (Karn: not timed).
    pub const AGAIN: u8 = 8;
    /// The peer has it (RFC 2018); it may still forget it.
    pub const SACKED: u8 = 16;
    /// Its retransmission is believed to be under way.
    pub const RETRANS: u8 = 32;
    /// It went out with PSH.
    pub const PSH: u8 = 64;
    /// In the order of transmission: under way for all we know.
    pub const TIMED: u8 = 128;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub seq: SeqNum,
    /// Sequence numbers occupied, SYN and FIN included.
    pub len: u32,
    /// Low bits of the time it was last sent, µs; differences below 71 minutes are right.
    pub at: u32,
    next: u32,
    older: u32,
    newer: u32,
    /// Segments it went out as: what the window counts.
    pub segs: u16,
    pub marks: u8,
}

impl Sent {
    pub fn end(&self) -> SeqNum {
        self.seq + self.len
    }

    pub fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Bytes of payload.
    pub fn bytes(&self) -> u32 {
        self.len - self.is(mark::SYN) as u32 - self.is(mark::FIN) as u32
    }
}

/// What [`SentList::pop_run`] took out.
pub(crate) struct Run {
    /// When its first record was sent.
    pub first_at: u32,
    /// When its last record was sent, and where that ends.
    pub last_at: u32,
    pub last_end: SeqNum,
    pub segs: u32,
}

/// The slab of all connections' records.
#[derive(Debug, Default)]
pub struct SentPool {
    slots: Vec<Sent>,
    free: Option<u32>,
    used: usize,
}

impl SentPool {
    /// An empty slab.
    pub fn new() -> SentPool {
        SentPool::default()
    }

    /// Records in use.
    pub fn used(&self) -> usize {
        self.used
    }

    fn alloc(&mut self, sent: Sent) -> u32 {
        self.used += 1;
        match self.free {
            Some(i) => {
                let next = self.slots[i as usize].next;
                self.free = (next != NIL).then_some(next);
                self.slots[i as usize] = sent;
                i
            }
            None => {
                self.slots.push(sent);
                (self.slots.len() - 1) as u32
            }
        }
    }

    fn release(&mut self, i: u32) {
        self.slots[i as usize].next = self.free.unwrap_or(NIL);
        self.free = Some(i);
        self.used -= 1;
    }

    fn at(&mut self, i: u32) -> &mut Sent {
        &mut self.slots[i as usize]
    }
}

/// The only record of a connection, sent once.
#[derive(Clone, Copy, Debug)]
struct Only {
    seq: SeqNum,
    len: u32,
    at: u32,
    segs: u16,
    marks: u8,
}

impl Only {
    #[inline(always)]
    fn sent(&self) -> Sent {
        let Only { seq, len, at, segs, marks } = *self;
        Sent { seq, len, at, next: NIL, older: NIL, newer: NIL, segs, marks: marks | mark::TIMED }
    }
}

/// One connection's records.
#[derive(Debug)]
pub(crate) struct SentList {
    /// Where it is there, none is in the slab.
    only: Option<Only>,
    head: u32,
    tail: u32,
    oldest: u32,
    newest: u32,
    /// No record before this one waits for its retransmission; `NIL`: begin at the head.
    retransmit_hint: u32,
    /// Where the last SACK walk ended; `NIL`: begin at the head.
    sack_hint: u32,
    len: u32,
}

impl SentList {
    pub const fn new() -> SentList {
        SentList {
            only: None,
            head: NIL,
            tail: NIL,
            oldest: NIL,
            newest: NIL,
            retransmit_hint: NIL,
            sack_hint: NIL,
            len: 0,
        }
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.only.is_none() && self.head == NIL
    }

    /// How many there are.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len + self.only.is_some() as u32
    }

    /// How many of them are in the slab.
    pub fn slots(&self) -> u32 {
        self.len
    }

    /// The only record moves to the slab.
    #[inline]
    pub fn spill(&mut self, pool: &mut SentPool) {
        if let Some(only) = self.only.take() {
            let i = pool.alloc(only.sent());
            *self = SentList { head: i, tail: i, oldest: i, newest: i, len: 1, ..SentList::new() };
        }
    }

    /// The lowest sequence number's record.
    pub fn head(&mut self, pool: &mut SentPool) -> Option<u32> {
        self.spill(pool);
        (self.head != NIL).then_some(self.head)
    }

    /// The highest sequence number's record.
    pub fn tail(&mut self, pool: &mut SentPool) -> Option<u32> {
        self.spill(pool);
        (self.tail != NIL).then_some(self.tail)
    }

    /// Whether record `i` has the lowest sequence number.
    pub fn is_head(&self, i: u32) -> bool {
        self.head == i
    }

    /// The first of them.
    #[inline(always)]
    pub fn first(&self, pool: &SentPool) -> Option<Sent> {
        match &self.only {
            Some(only) => Some(only.sent()),
            None => pool.slots.get(self.head as usize).copied(),
        }
    }

    /// All of them, by sequence numbers.
    pub fn iter<'a>(&'a self, pool: &'a SentPool) -> impl Iterator<Item = Sent> + 'a {
        let mut at = self.head;
        self.only.iter().map(Only::sent).chain(core::iter::from_fn(move || {
            let s = *pool.slots.get(at as usize)?;
            at = s.next;
            Some(s)
        }))
    }

    /// The record after `i` in sequence.
    pub fn next(&self, pool: &SentPool, i: u32) -> Option<u32> {
        let next = pool.slots[i as usize].next;
        (next != NIL).then_some(next)
    }

    pub fn get(&self, pool: &SentPool, i: u32) -> Sent {
        pool.slots[i as usize]
    }

    pub fn get_mut<'p>(&self, pool: &'p mut SentPool, i: u32) -> &'p mut Sent {
        pool.at(i)
    }

    #[inline(always)]
    pub fn push(&mut self, pool: &mut SentPool, seq: SeqNum, len: u32, segs: u16, at: u32, marks: u8) {
        match self.is_empty() {
            true => self.only = Some(Only { seq, len, at, segs, marks }),
            false => self.push_behind(pool, Only { seq, len, at, segs, marks }),
        }
    }

    fn push_behind(&mut self, pool: &mut SentPool, sent: Only) {
        self.spill(pool);
        let i = pool.alloc(Sent { marks: sent.marks, ..sent.sent() });
        pool.at(self.tail).next = i;
        self.tail = i;
        self.len += 1;
        self.sent_last(pool, i);
    }

    pub fn pop(&mut self, pool: &mut SentPool) -> Option<Sent> {
        if let Some(only) = self.only.take() {
            return Some(only.sent());
        }
        let i = self.head(pool)?;
        self.forget_time(pool, i);
        let sent = pool.slots[i as usize];
        self.head = sent.next;
        if self.head == NIL {
            self.tail = NIL;
        }
        if self.retransmit_hint == i {
            self.retransmit_hint = sent.next;
        }
        if self.sack_hint == i {
            self.sack_hint = NIL;
        }
        pool.release(i);
        self.len -= 1;
        Some(sent)
    }

    /// Takes out all records up to `ack`, if they are the oldest in both orders, unmarked, and `ack` cuts none; else `None`,
    /// with nothing changed.
    #[inline(always)]
    pub fn pop_run(&mut self, pool: &mut SentPool, ack: SeqNum) -> Option<Run> {
        let Some(s) = self.only else { return self.pop_run_of_many(pool, ack) };
        let end = s.seq + s.len;
        if end.after(ack) {
            return None;
        }
        self.only = None;
        Some(Run { first_at: s.at, last_at: s.at, last_end: end, segs: s.segs as u32 })
    }

    fn pop_run_of_many(&mut self, pool: &mut SentPool, ack: SeqNum) -> Option<Run> {
        const ODD: u8 = mark::AGAIN | mark::SACKED | mark::LOST | mark::RETRANS;
        if self.oldest != self.head {
            return None;
        }
        let first = pool.slots.get(self.head as usize)?;
        let mut run = Run { first_at: first.at, last_at: first.at, last_end: first.seq, segs: 0 };
        let (mut i, mut end, mut n) = (self.head, NIL, 0);
        while i != NIL {
            let s = pool.slots[i as usize];
            if s.end().after(ack) {
                if s.seq.before(ack) {
                    return None;
                }
                break;
            }
            if s.marks & ODD != 0 || s.newer != s.next {
                return None;
            }
            run.segs += s.segs as u32;
            (run.last_at, run.last_end) = (s.at, s.end());
            (i, end) = (s.next, i);
            n += 1;
        }
        if n == 0 {
            return None;
        }
        // The whole run goes to the free list at once; `next` is its link there, too.
        let first = core::mem::replace(&mut self.head, i);
        pool.slots[end as usize].next = pool.free.unwrap_or(NIL);
        pool.free = Some(first);
        pool.used -= n as usize;
        self.len -= n;
        self.oldest = i;
        (self.retransmit_hint, self.sack_hint) = (NIL, NIL);
        match i {
            NIL => (self.tail, self.newest) = (NIL, NIL),
            i => pool.at(i).older = NIL,
        }
        Some(run)
    }

    #[inline(always)]
    pub fn clear(&mut self, pool: &mut SentPool) {
        while !self.is_empty() {
            self.pop(pool);
        }
    }

    /// Cuts record `i` after `keep` sequence numbers, `0 < keep < len`; the rest's index. `mss` counts the segments anew.
    pub fn split(&mut self, pool: &mut SentPool, i: u32, keep: u32, mss: u32) -> u32 {
        let whole = pool.slots[i as usize];
        debug_assert!(keep > 0 && keep < whole.len);
        let segs = |bytes: u32| bytes.div_ceil(mss.max(1)).clamp(1, u16::MAX as u32) as u16;
        let rest =
            Sent { seq: whole.seq + keep, len: whole.len - keep, marks: whole.marks & !mark::SYN, older: i, ..whole };
        let j = pool.alloc(rest);
        self.len += 1;
        if whole.next == NIL {
            self.tail = j;
        }
        if whole.is(mark::TIMED) {
            match whole.newer {
                NIL => self.newest = j,
                newer => pool.at(newer).older = j,
            }
        }
        let second = pool.at(j);
        second.segs = segs(second.bytes());
        let first = pool.at(i);
        first.len = keep;
        first.marks &= !(mark::FIN | mark::PSH);
        first.next = j;
        first.segs = segs(first.bytes());
        if first.is(mark::TIMED) {
            first.newer = j;
        }
        j
    }

    /// Puts record `i` at the end of the order of transmission: it was sent just now.
    pub fn sent_last(&mut self, pool: &mut SentPool, i: u32) {
        self.forget_time(pool, i);
        let newest = self.newest;
        let s = pool.at(i);
        s.marks |= mark::TIMED;
        s.older = newest;
        s.newer = NIL;
        match newest {
            NIL => self.oldest = i,
            n => pool.at(n).newer = i,
        }
        self.newest = i;
    }

    /// Takes record `i` out of the order of transmission: it is delivered, or lost and not sent again.
    pub fn forget_time(&mut self, pool: &mut SentPool, i: u32) {
        let s = pool.slots[i as usize];
        if !s.is(mark::TIMED) {
            return;
        }
        match s.older {
            NIL => self.oldest = s.newer,
            o => pool.at(o).newer = s.newer,
        }
        match s.newer {
            NIL => self.newest = s.older,
            n => pool.at(n).older = s.older,
        }
        pool.at(i).marks &= !mark::TIMED;
    }

    /// The record sent longest ago among those under way.
    pub fn oldest(&mut self, pool: &mut SentPool) -> Option<u32> {
        self.spill(pool);
        (self.oldest != NIL).then_some(self.oldest)
    }

    /// The one sent after `i`.
    pub fn newer(&self, pool: &SentPool, i: u32) -> Option<u32> {
        let newer = pool.slots[i as usize].newer;
        (newer != NIL).then_some(newer)
    }

    /// Record `i` waits for its retransmission.
    pub fn wants_retransmit(&mut self, pool: &SentPool, i: u32) {
        let hint = self.retransmit_hint;
        if hint == NIL || pool.slots[i as usize].seq.before(pool.slots[hint as usize].seq) {
            self.retransmit_hint = i;
        }
    }

    /// The first record that waits for its retransmission.
    pub fn next_retransmit(&mut self, pool: &SentPool) -> Option<u32> {
        let mut i = if self.retransmit_hint == NIL { self.head } else { self.retransmit_hint };
        while i != NIL {
            let s = &pool.slots[i as usize];
            if s.is(mark::LOST) && !s.is(mark::RETRANS | mark::SACKED) {
                self.retransmit_hint = i;
                return Some(i);
            }
            i = s.next;
        }
        None
    }

    /// Where to begin looking for `seq`: at or before its record, or where the last walk ended if that lies before `known`,
    /// up to which all is looked at.
    pub fn sack_start(&mut self, pool: &mut SentPool, seq: SeqNum, known: Option<SeqNum>) -> Option<u32> {
        let hint = self.sack_hint;
        let seq = known.map_or(seq, |known| if known.after(seq) { known } else { seq });
        if hint != NIL && pool.slots[hint as usize].seq.before_eq(seq) { Some(hint) } else { self.head(pool) }
    }

    /// Asserts what the module's head says.
    pub fn check(&self, pool: &SentPool) {
        assert!(self.only.is_none() || self.head == NIL, "the only record, and another: {self:?}");
        let (mut n, mut timed, mut last, mut i) = (0, 0, NIL, self.head);
        let (mut below, mut hinted) = (true, self.sack_hint == NIL);
        while i != NIL {
            let s = &pool.slots[i as usize];
            below &= i != self.retransmit_hint;
            hinted |= i == self.sack_hint;
            let waits = s.is(mark::LOST) && !s.is(mark::RETRANS | mark::SACKED);
            assert!(!(waits && below), "below the hint a record waits: {s:?}");
            n += 1;
            timed += s.is(mark::TIMED) as u32;
            (last, i) = (i, s.next);
        }
        assert_eq!((n, last), (self.len, self.tail), "records, and the last");
        assert!(self.retransmit_hint == NIL || !below, "the retransmission hint is no record of this list");
        assert!(hinted, "the SACK hint is no record of this list");
        let (mut last, mut i) = (NIL, self.oldest);
        while i != NIL {
            let s = &pool.slots[i as usize];
            assert!(s.is(mark::TIMED) && timed > 0, "too many in the order of transmission: {s:?}");
            assert_eq!(s.older, last, "the way back of {s:?}");
            timed -= 1;
            (last, i) = (i, s.newer);
        }
        assert_eq!((timed, last), (0, self.newest), "missing in the order of transmission, and the newest");
    }

    /// Remembers where a SACK walk ended.
    pub fn set_sack_hint(&mut self, i: u32) {
        self.sack_hint = i;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(pool: &mut SentPool) -> SentList {
        let mut list = SentList::new();
        for n in 0..3u32 {
            list.push(pool, SeqNum(1000 * n), 1000, 1, n, 0);
        }
        list
    }

    fn by_time(list: &mut SentList, pool: &mut SentPool) -> Vec<u32> {
        let mut out = Vec::new();
        let mut i = list.oldest(pool);
        while let Some(n) = i {
            out.push(list.get(pool, n).seq.0);
            i = list.newer(pool, n);
        }
        out
    }

    #[test]
    fn two_orders() {
        let mut pool = SentPool::new();
        let mut list = three(&mut pool);
        assert_eq!(pool.used(), 3);
        assert_eq!(by_time(&mut list, &mut pool), [0, 1000, 2000]);
        list.sent_last(&mut pool, 0);
        assert_eq!(by_time(&mut list, &mut pool), [1000, 2000, 0]);
        list.forget_time(&mut pool, 2);
        list.forget_time(&mut pool, 2);
        assert_eq!(by_time(&mut list, &mut pool), [1000, 0]);
        assert_eq!(list.pop(&mut pool).unwrap().seq, SeqNum(0));
        assert_eq!(by_time(&mut list, &mut pool), [1000]);
        list.clear(&mut pool);
        assert_eq!((pool.used(), list.oldest(&mut pool), list.len()), (0, None, 0));
        assert_eq!((list.head(&mut pool), list.tail(&mut pool)), (None, None));
    }

    #[test]
    fn the_only_one_takes_no_slot() {
        let mut pool = SentPool::new();
        let mut list = SentList::new();
        list.push(&mut pool, SeqNum(0), 1000, 2, 7, mark::PSH);
        assert_eq!((list.is_empty(), list.len(), list.slots(), pool.used()), (false, 1, 0, 0));
        assert!(list.pop_run(&mut pool, SeqNum(999)).is_none());
        let run = list.pop_run(&mut pool, SeqNum(1000)).unwrap();
        assert_eq!((run.first_at, run.last_at, run.last_end.0, run.segs, list.len()), (7, 7, 1000, 2, 0));
        // Until another one follows.
        list.push(&mut pool, SeqNum(1000), 1000, 1, 8, mark::PSH);
        let first = list.first(&pool).unwrap();
        list.push(&mut pool, SeqNum(2000), 1000, 1, 9, 0);
        assert_eq!((list.len(), list.slots(), pool.used()), (2, 2, 2));
        let marks = |list: &SentList| list.iter(&pool).map(|s| (s.seq.0, s.marks)).collect::<Vec<_>>();
        assert_eq!(marks(&list), [(1000, mark::PSH | mark::TIMED), (2000, mark::TIMED)]);
        assert_eq!((first.marks, list.first(&pool).unwrap().at), (mark::PSH | mark::TIMED, 8));
        list.check(&pool);
        list.clear(&mut pool);
        assert_eq!((list.is_empty(), pool.used()), (true, 0));
    }

    #[test]
    fn a_cut_keeps_both_orders_and_moves_the_ends() {
        let mut pool = SentPool::new();
        let mut list = SentList::new();
        list.push(&mut pool, SeqNum(0), 3001, 3, 7, mark::FIN | mark::PSH | mark::AGAIN);
        let head = list.head(&mut pool).unwrap();
        assert_eq!(head, 0);
        let j = list.split(&mut pool, head, 1000, 1000);
        let (a, b) = (list.get(&pool, 0), list.get(&pool, j));
        assert_eq!((a.seq.0, a.len, a.segs, a.is(mark::FIN | mark::PSH)), (0, 1000, 1, false));
        assert_eq!((b.seq.0, b.len, b.segs, b.is(mark::FIN), b.is(mark::PSH)), (1000, 2001, 2, true, true));
        assert!(a.is(mark::AGAIN) && b.is(mark::AGAIN));
        assert_eq!(by_time(&mut list, &mut pool), [0, 1000]);
        assert_eq!(list.tail(&mut pool), Some(j));
        list.push(&mut pool, SeqNum(3001), 10, 1, 9, 0);
        assert_eq!(by_time(&mut list, &mut pool), [0, 1000, 3001]);
        list.forget_time(&mut pool, 0);
        let k = list.split(&mut pool, j, 1000, 1000);
        assert_eq!(by_time(&mut list, &mut pool), [1000, 2000, 3001]);
        assert_eq!(list.next(&pool, j), Some(k));
        // The SYN stays in front.
        let mut list = SentList::new();
        list.push(&mut pool, SeqNum(0), 2001, 2, 7, mark::SYN);
        let head = list.head(&mut pool).unwrap();
        let j = list.split(&mut pool, head, 1001, 1000);
        let (a, b) = (list.get(&pool, head), list.get(&pool, j));
        assert_eq!((a.is(mark::SYN), b.is(mark::SYN), a.bytes(), b.bytes()), (true, false, 1000, 1000));
    }

    #[test]
    fn the_first_that_waits() {
        let mut pool = SentPool::new();
        let mut list = three(&mut pool);
        assert_eq!(list.next_retransmit(&pool), None);
        // Without a hint from the head on.
        list.get_mut(&mut pool, 1).marks |= mark::LOST;
        assert_eq!(list.next_retransmit(&pool), Some(1));
        for i in [2, 1] {
            list.get_mut(&mut pool, i).marks |= mark::LOST;
            list.wants_retransmit(&pool, i);
        }
        assert_eq!(list.next_retransmit(&pool), Some(1));
        list.get_mut(&mut pool, 1).marks |= mark::RETRANS;
        assert_eq!(list.next_retransmit(&pool), Some(2));
        list.get_mut(&mut pool, 2).marks |= mark::SACKED;
        assert_eq!(list.next_retransmit(&pool), None);
        list.get_mut(&mut pool, 0).marks |= mark::LOST;
        list.wants_retransmit(&pool, 0);
        assert_eq!(list.next_retransmit(&pool), Some(0));
    }

    #[test]
    fn hints_survive_what_is_acknowledged() {
        let mut pool = SentPool::new();
        let mut list = three(&mut pool);
        list.set_sack_hint(1);
        assert_eq!(list.sack_start(&mut pool, SeqNum(2500), None), Some(1));
        assert_eq!(list.sack_start(&mut pool, SeqNum(500), None), Some(0));
        assert_eq!(list.sack_start(&mut pool, SeqNum(500), Some(SeqNum(1500))), Some(1));
        list.get_mut(&mut pool, 2).marks |= mark::LOST;
        list.wants_retransmit(&pool, 2);
        list.pop(&mut pool);
        list.pop(&mut pool);
        assert_eq!(list.sack_start(&mut pool, SeqNum(2500), None), Some(2));
        assert_eq!(list.next_retransmit(&pool), Some(2));
        // The hint itself is acknowledged.
        list.set_sack_hint(2);
        list.push(&mut pool, SeqNum(3000), 1000, 1, 3, mark::LOST);
        list.pop(&mut pool);
        let head = list.head(&mut pool);
        assert_eq!(list.sack_start(&mut pool, SeqNum(3500), None), head);
        assert_eq!(list.next_retransmit(&pool), head);
    }
}
