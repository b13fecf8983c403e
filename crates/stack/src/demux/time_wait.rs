//! TIME-WAIT (RFC 9293 3.3.2): a small record instead of a connection. All wait equally long, so they form one queue.

use core::time::Duration;

use wire::tcp::{Flags, Header, Options, Timestamps};
use wire::{Instant, SeqNum};

use crate::FlowKey;
use crate::slab::Slab;

/// What must be known of a connection that is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    pub key: FlowKey,
    /// The key's, in the flow table.
    pub hash: u32,
    pub snd_nxt: SeqNum,
    pub rcv_nxt: SeqNum,
    /// TS.Recent, and the offset of our timestamp clock.
    pub ts_recent: u32,
    pub ts_offset: u32,
    /// Timestamps were on.
    pub stamped: bool,
    /// The window field as it was sent last.
    pub window: u16,
    /// When something invalid was answered last, in units of 16 ms; 0 is never.
    pub answered: u16,
    pub until: Instant,
    /// A SYN was answered by an ACK: a RST that fits exactly is the peer's answer to that, not an old duplicate.
    pub challenged: bool,
}

impl TimeWait {
    /// The acknowledgment that answers what comes late (RFC 9293 3.10.7.4), and the FIN.
    pub fn ack(&self, now: Instant) -> Header {
        let options = Options { timestamps: self.stamps(now), ..Options::default() };
        self.key.header(self.snd_nxt, self.rcv_nxt, Flags::ACK, self.window, options)
    }

    /// The timestamps of its ACK.
    #[inline(always)]
    pub fn stamps(&self, now: Instant) -> Option<Timestamps> {
        let value = (now.millis() as u32).wrapping_add(self.ts_offset);
        self.ts().map(|echo| Timestamps { value, echo })
    }

    /// TS.Recent, where timestamps were on.
    pub fn ts(&self) -> Option<u32> {
        self.stamped.then_some(self.ts_recent)
    }
}

struct Node {
    record: TimeWait,
    next: u32,
    prev: u32,
}

const NIL: u32 = u32::MAX;

/// Whether an answer may go, `gap` after the one before it at `last`, in units of 16 ms; 0 is never.
pub(crate) fn answer(last: &mut u16, now: Instant, gap: Duration) -> bool {
    const UNIT_MS: u64 = 16;
    let at = ((now.millis() / UNIT_MS) as u16).max(1);
    if *last != 0 && at.wrapping_sub(*last) < (gap.as_millis() as u64).div_ceil(UNIT_MS) as u16 {
        return false;
    }
    *last = at;
    true
}

pub(crate) struct TimeWaits {
    slab: Slab<Node>,
    head: u32,
    tail: u32,
    length: Duration,
    max: u32,
}

impl TimeWaits {
    pub fn new(length: Duration, max: u32) -> TimeWaits {
        // One more than may stay, so that the newest always finds a place before the oldest goes.
        TimeWaits { slab: Slab::new(max.saturating_add(1)), head: NIL, tail: NIL, length, max: max.max(1) }
    }

    /// Microseconds that a record has waited.
    pub fn age_us(&self, now: Instant, record: &TimeWait) -> u64 {
        let length = self.length.as_micros() as u64;
        length - record.until.micros_since(now).min(length)
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    fn link(&mut self, id: u32) {
        let tail = self.tail;
        let node = &mut self.slab[id];
        (node.prev, node.next) = (tail, NIL);
        match tail {
            NIL => self.head = id,
            tail => self.slab[tail].next = id,
        }
        self.tail = id;
    }

    fn unlink(&mut self, id: u32) {
        let (prev, next) = (self.slab[id].prev, self.slab[id].next);
        match prev {
            NIL => self.head = next,
            prev => self.slab[prev].next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => self.slab[next].prev = prev,
        }
    }

    /// Starts the wait; the oldest gives way when there are too many. `None` when even that found no room.
    pub fn insert(&mut self, now: Instant, record: TimeWait) -> Option<(u32, Option<(u32, TimeWait)>)> {
        let evicted = if self.slab.len() >= self.max as usize { self.head } else { NIL };
        let evicted = (evicted != NIL).then(|| self.remove(evicted).map(|t| (evicted, t))).flatten();
        let record = TimeWait { until: now + self.length, ..record };
        let id = self.slab.insert(Node { record, next: NIL, prev: NIL }).ok()?;
        self.link(id);
        Some((id, evicted))
    }

    pub fn prefetch(&self, id: u32) {
        self.slab.prefetch(id);
    }

    pub fn get(&self, id: u32) -> Option<&TimeWait> {
        self.slab.get(id).map(|n| &n.record)
    }

    pub fn iter_ids(&self) -> impl Iterator<Item = u32> {
        self.slab.iter_ids()
    }

    pub fn remove(&mut self, id: u32) -> Option<TimeWait> {
        self.slab.get(id)?;
        self.unlink(id);
        self.slab.remove(id).map(|n| n.record)
    }

    /// Whether something invalid is answered: not more often than once in `gap`.
    pub fn may_answer(&mut self, id: u32, now: Instant, gap: Duration) -> bool {
        self.slab.get_mut(id).is_some_and(|n| answer(&mut n.record.answered, now, gap))
    }

    /// Remembers that a SYN was challenged.
    pub fn challenge(&mut self, id: u32) {
        if let Some(node) = self.slab.get_mut(id) {
            node.record.challenged = true;
        }
    }

    /// RFC 9293 3.10.7.4: a retransmitted FIN restarts the wait.
    pub fn restart(&mut self, id: u32, now: Instant) {
        if self.slab.get(id).is_some() {
            self.unlink(id);
            self.slab[id].record.until = now + self.length;
            self.link(id);
        }
    }

    /// Ends what has waited long enough.
    pub fn expire(&mut self, now: Instant, mut f: impl FnMut(u32, TimeWait)) {
        while let Some(head) = self.slab.get(self.head).filter(|n| n.record.until <= now) {
            let (id, record) = (self.head, head.record);
            self.remove(id);
            f(id, record);
        }
    }

    /// When the next one ends.
    pub fn next(&self) -> Option<Instant> {
        self.slab.get(self.head).map(|n| n.record.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use wire::Addr;

    fn record(n: u16) -> TimeWait {
        let a = Addr::from_v4([10, 0, 0, 1]);
        TimeWait {
            key: FlowKey { interface: crate::InterfaceId(0), local: a, remote: a, local_port: n, remote_port: 80 },
            hash: 0,
            snd_nxt: SeqNum(1),
            rcv_nxt: SeqNum(2),
            ts_recent: 0,
            ts_offset: 0,
            stamped: false,
            window: 0,
            answered: 0,
            until: Instant::ZERO,
            challenged: false,
        }
    }

    #[test]
    fn a_queue_with_restarts_and_a_limit() {
        let at = |s: u64| Instant::from_micros(s * 1_000_000);
        let mut t = TimeWaits::new(Duration::from_secs(60), 3);
        let ids: Vec<u32> = (0..3).map(|n| t.insert(at(n), record(n as u16)).unwrap().0).collect();
        assert_eq!(t.next(), Some(at(60)));
        t.restart(ids[0], at(10));
        assert_eq!(t.next(), Some(at(61)));
        let (_, evicted) = t.insert(at(11), record(3)).unwrap();
        assert_eq!(evicted.unwrap().1.key.local_port, 1);
        assert_eq!(t.remove(ids[2]).unwrap().key.local_port, 2);
        assert!(t.get(ids[2]).is_none() && t.remove(ids[2]).is_none());
        let mut ended = Vec::new();
        t.expire(at(70), |_, r| ended.push(r.key.local_port));
        assert_eq!(ended, [0]);
        t.expire(at(71), |_, r| ended.push(r.key.local_port));
        assert_eq!((ended, t.len(), t.next()), (vec![0, 3], 0, None));
        assert!(size_of::<Node>() <= 88, "a record and its links");
    }

    #[test]
    fn answers_keep_their_distance() {
        let (gap, at) = (Duration::from_millis(500), |ms: u64| Instant::from_micros(ms * 1000));
        // In units of 16 ms, which come round after 17 minutes.
        for start in [0, 1, 15, 16, 1000, 0xffff * 16, 0xffff * 16 + 15, 0x1_0000 * 16, 1 << 40] {
            let mut last = 0;
            assert!(answer(&mut last, at(start), gap));
            assert!((0..=480).all(|later| !answer(&mut last, at(start + later), gap)), "{start}");
            assert!(answer(&mut last, at(start + 528), gap), "{start}");
            assert!(!answer(&mut last, at(start + 529), gap));
        }
    }

    proptest! {
        #[test]
        fn is_a_queue(ops in proptest::collection::vec((0u8..6, any::<u8>(), 0u64..9), 0..300), max in 1u32..12) {
            let mut t = TimeWaits::new(Duration::from_secs(20), max);
            let mut model: VecDeque<(u32, u16, u64)> = VecDeque::new();
            let mut now = 0;
            for (n, (op, x, s)) in ops.into_iter().enumerate() {
                let n = n as u16;
                now += s;
                let at = Instant::from_micros(now * 1_000_000);
                let some = model.get(x as usize % model.len().max(1)).copied();
                match (op, some) {
                    (0..=2, _) => {
                        let gone = if model.len() == max as usize { model.pop_front() } else { None };
                        let (id, evicted) = t.insert(at, record(n)).unwrap();
                        prop_assert_eq!(evicted.map(|(id, r)| (id, r.key.local_port)), gone.map(|g| (g.0, g.1)));
                        model.push_back((id, n, now + 20));
                    }
                    (3, Some((id, port, _))) => {
                        prop_assert_eq!(t.remove(id).map(|r| r.key.local_port), Some(port));
                        model.retain(|m| m.0 != id);
                    }
                    (4, Some((id, port, _))) => {
                        t.restart(id, at);
                        model.retain(|m| m.0 != id);
                        model.push_back((id, port, now + 20));
                    }
                    _ => {
                        let mut ended = Vec::new();
                        t.expire(at, |id, r| ended.push((id, r.key.local_port)));
                        let due = model.iter().take_while(|m| m.2 <= now).count();
                        let gone: Vec<_> = model.drain(..due).map(|m| (m.0, m.1)).collect();
                        prop_assert_eq!(ended, gone);
                    }
                }
                prop_assert_eq!(t.len(), model.len());
                prop_assert_eq!(t.next(), model.front().map(|m| Instant::from_micros(m.2 * 1_000_000)));
                for (id, port, _) in &model {
                    prop_assert_eq!(t.get(*id).map(|r| r.key.local_port), Some(*port));
                }
            }
        }
    }
}
