//! Records of segments sent and not yet acknowledged: what retransmission, RTT and loss detection work on.
//!
//! They live in one slab per stack, so a connection with nothing in flight holds none, and a busy one allocates nothing.

use wire::SeqNum;

/// End of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// What a record says of its segment.
pub(crate) mod mark {
    /// It carries SYN, which occupies the first sequence number.
    pub const SYN: u8 = 1;
    /// It carries FIN, which occupies the last.
    pub const FIN: u8 = 2;
    /// Judged lost and not sent again since.
    pub const LOST: u8 = 4;
    /// Sent more than once (Karn: not timed).
    pub const AGAIN: u8 = 8;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub seq: SeqNum,
    /// Sequence numbers occupied, SYN and FIN included.
    pub len: u32,
    /// Low bits of the time it was last sent, µs; differences below 71 minutes are right.
    pub at: u32,
    pub next: u32,
    pub marks: u8,
}

impl Sent {
    pub fn end(&self) -> SeqNum {
        self.seq + self.len
    }

    pub fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }
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

    fn release(&mut self, i: u32) -> Sent {
        let sent = self.slots[i as usize];
        self.slots[i as usize].next = self.free.unwrap_or(NIL);
        self.free = Some(i);
        self.used -= 1;
        sent
    }
}

/// One connection's records, oldest first.
#[derive(Debug)]
pub(crate) struct SentList {
    head: u32,
    tail: u32,
}

impl SentList {
    pub const fn new() -> SentList {
        SentList { head: NIL, tail: NIL }
    }

    pub fn is_empty(&self) -> bool {
        self.head == NIL
    }

    pub fn push(&mut self, pool: &mut SentPool, seq: SeqNum, len: u32, at: u32, marks: u8) {
        let i = pool.alloc(Sent { seq, len, at, next: NIL, marks });
        match self.tail {
            NIL => self.head = i,
            tail => pool.slots[tail as usize].next = i,
        }
        self.tail = i;
    }

    pub fn front<'p>(&self, pool: &'p mut SentPool) -> Option<&'p mut Sent> {
        (self.head != NIL).then(|| &mut pool.slots[self.head as usize])
    }

    pub fn pop(&mut self, pool: &mut SentPool) -> Option<Sent> {
        if self.head == NIL {
            return None;
        }
        let sent = pool.release(self.head);
        self.head = sent.next;
        if self.head == NIL {
            self.tail = NIL;
        }
        Some(sent)
    }

    pub fn clear(&mut self, pool: &mut SentPool) {
        while self.pop(pool).is_some() {}
    }

    /// Calls `f` for each record until it says stop.
    pub fn each(&self, pool: &mut SentPool, mut f: impl FnMut(&mut Sent) -> bool) {
        let mut i = self.head;
        while i != NIL {
            let sent = &mut pool.slots[i as usize];
            i = sent.next;
            if !f(sent) {
                return;
            }
        }
    }

    /// The first record that `pick` accepts, cut after `max` sequence numbers of data so that it fits one segment.
    pub fn find_cut<'p>(
        &mut self,
        pool: &'p mut SentPool,
        max: u32,
        mut pick: impl FnMut(&Sent) -> bool,
    ) -> Option<&'p mut Sent> {
        let mut i = self.head;
        while i != NIL && !pick(&pool.slots[i as usize]) {
            i = pool.slots[i as usize].next;
        }
        if i == NIL {
            return None;
        }
        let whole = pool.slots[i as usize];
        let keep = max + whole.is(mark::SYN) as u32;
        if whole.len > keep + whole.is(mark::FIN) as u32 {
            let rest = Sent { seq: whole.seq + keep, len: whole.len - keep, marks: whole.marks & !mark::SYN, ..whole };
            let j = pool.alloc(rest);
            if whole.next == NIL {
                self.tail = j;
            }
            let first = &mut pool.slots[i as usize];
            first.len = keep;
            first.marks &= !mark::FIN;
            first.next = j;
        }
        Some(&mut pool.slots[i as usize])
    }
}
