//! The SYN cache (RFC 4987 3.4): handshakes under way, a small record each, bounded, with a queue for each back-off.

use core::time::Duration;

use tcp::Offer;
use wire::tcp::Syn;
use wire::{Instant, MacAddr, SeqNum};

use crate::FlowKey;
use crate::InterfaceId;
use crate::slab::Slab;

/// What is kept of a SYN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Embryo {
    pub key: FlowKey,
    /// The key's, in the flow table.
    pub hash: u32,
    /// When the SYN/ACK goes out again, or the record goes.
    pub due: Instant,
    pub iss: SeqNum,
    pub irs: SeqNum,
    pub ts_offset: u32,
    pub ts_recent: u32,
    pub receive_buffer: u32,
    pub listener: u32,
    /// Where the SYN came from.
    pub mac: MacAddr,
    pub window: u16,
    pub peer_mss: u16,
    /// Largest segment that we take.
    pub mss: u16,
    /// When something out of order was answered last, in units of 16 ms; 0 is never.
    pub answered: u16,
    pub interface: InterfaceId,
    /// SYN/ACK timeouts so far.
    pub timeouts: u8,
    /// 15 is none.
    scale: u8,
    flags: u8,
    /// The handshake is done, but the accept queue was full or the listener waits for data.
    pub acked: bool,
}

const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const ECN: u8 = 4;
const AGAIN: u8 = 8;

impl Embryo {
    /// A record of `offer`; the fields beyond it are the caller's to fill.
    #[inline(always)]
    pub fn new(key: FlowKey, hash: u32, offer: &Offer, listener: u32, mac: MacAddr, interface: InterfaceId) -> Embryo {
        Embryo {
            key,
            hash,
            due: Instant::ZERO,
            iss: SeqNum(0),
            irs: offer.seq,
            ts_offset: 0,
            ts_recent: offer.timestamp.unwrap_or(0),
            receive_buffer: 0,
            listener,
            mac,
            window: offer.window,
            peer_mss: offer.mss,
            mss: 0,
            answered: 0,
            interface,
            timeouts: 0,
            scale: offer.scale.map_or(15, |s| s.min(14)),
            flags: offer.timestamp.map_or(0, |_| TIMESTAMPS)
                | if offer.sack { SACK } else { 0 }
                | if offer.ecn { ECN } else { 0 },
            acked: false,
        }
    }

    /// The same of an ordinary SYN.
    #[inline(always)]
    pub fn of(key: FlowKey, hash: u32, syn: &Syn, listener: u32, (mac, interface): (MacAddr, InterfaceId)) -> Embryo {
        let &Syn { seq, window, mss, scale, timestamps, .. } = syn;
        let (scale, timestamp) = (Some(scale), Some(timestamps.value));
        Embryo::new(
            key,
            hash,
            &Offer { seq, window, mss, scale, timestamp, sack: true, ecn: false },
            listener,
            mac,
            interface,
        )
    }

    #[inline(always)]
    pub fn offer(&self) -> Offer {
        Offer {
            seq: self.irs,
            window: self.window,
            mss: self.peer_mss,
            scale: Some(self.scale).filter(|s| *s < 15),
            timestamp: (self.flags & TIMESTAMPS != 0).then_some(self.ts_recent),
            sack: self.flags & SACK != 0,
            ecn: self.flags & ECN != 0,
        }
    }

    /// The SYN/ACK went out more than once: no round trip can be told from its ACK.
    pub fn again(&self) -> bool {
        self.flags & AGAIN != 0
    }

    pub fn set_again(&mut self) {
        self.flags |= AGAIN;
    }
}

struct Node {
    embryo: Embryo,
    next: u32,
    prev: u32,
}

const NIL: u32 = u32::MAX;
/// Back-offs that differ; 2^15 seconds are beyond any limit.
const CLASSES: usize = 16;

pub(crate) struct SynCache {
    slab: Slab<Node>,
    /// First and last of each queue: all in one wait equally long, so it is in order.
    queues: [(u32, u32); CLASSES],
    first: Duration,
    longest: Duration,
}

impl SynCache {
    /// At most `max` records; the first timeout and the longest.
    pub fn new(max: u32, first: Duration, longest: Duration) -> SynCache {
        SynCache { slab: Slab::new(max), queues: [(NIL, NIL); CLASSES], first, longest }
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// How long a SYN/ACK is waited for after `timeouts`.
    pub fn timeout(&self, timeouts: u8) -> Duration {
        (self.first * (1 << class(timeouts))).min(self.longest)
    }

    pub fn prefetch(&self, id: u32) {
        self.slab.prefetch(id);
    }

    pub fn get(&self, id: u32) -> Option<&Embryo> {
        self.slab.get(id).map(|n| &n.embryo)
    }

    /// To change anything but `due`, `timeouts` and `key`.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut Embryo> {
        self.slab.get_mut(id).map(|n| &mut n.embryo)
    }

    /// Adds a record whose SYN/ACK goes out now; `None` when the cache is full.
    pub fn insert(&mut self, now: Instant, embryo: Embryo) -> Option<u32> {
        let embryo = Embryo { due: now + self.timeout(embryo.timeouts), ..embryo };
        let id = self.slab.insert(Node { embryo, next: NIL, prev: NIL }).ok()?;
        self.link(id);
        Some(id)
    }

    pub fn remove(&mut self, id: u32) -> Option<Embryo> {
        self.slab.get(id)?;
        self.unlink(id);
        self.slab.remove(id).map(|n| n.embryo)
    }

    /// Waits anew from now on, after `timeouts`.
    pub fn rearm(&mut self, id: u32, now: Instant, timeouts: u8) {
        if self.slab.get(id).is_none() {
            return;
        }
        self.unlink(id);
        let due = now + self.timeout(timeouts);
        let embryo = &mut self.slab[id].embryo;
        (embryo.timeouts, embryo.due) = (timeouts, due);
        self.link(id);
    }

    /// The one that has waited longest, with the most timeouts: the least likely to be answered.
    pub fn oldest(&self) -> Option<u32> {
        self.queues.iter().rev().map(|(head, _)| *head).find(|head| *head != NIL)
    }

    /// One that is due.
    pub fn due(&self, now: Instant) -> Option<u32> {
        let heads = self.queues.iter().map(|(head, _)| *head);
        heads.filter(|id| self.get(*id).is_some_and(|e| e.due <= now)).min_by_key(|id| self.get(*id).map(|e| e.due))
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|(head, _)| self.get(*head).map(|e| e.due)).min()
    }

    pub fn iter_ids(&self) -> impl Iterator<Item = u32> {
        self.slab.iter_ids()
    }

    /// All records of a listener.
    pub fn of_listener(&self, listener: u32) -> Vec<u32> {
        self.slab.iter_ids().filter(|id| self.get(*id).is_some_and(|e| e.listener == listener)).collect()
    }

    fn link(&mut self, id: u32) {
        let queue = &mut self.queues[class(self.slab[id].embryo.timeouts)];
        let tail = core::mem::replace(&mut queue.1, id);
        if tail == NIL {
            queue.0 = id;
        } else {
            self.slab[tail].next = id;
        }
        let node = &mut self.slab[id];
        (node.prev, node.next) = (tail, NIL);
    }

    fn unlink(&mut self, id: u32) {
        let Node { embryo, next, prev } = &self.slab[id];
        let (next, prev, class) = (*next, *prev, class(embryo.timeouts));
        match prev {
            NIL => self.queues[class].0 = next,
            prev => self.slab[prev].next = next,
        }
        match next {
            NIL => self.queues[class].1 = prev,
            next => self.slab[next].prev = prev,
        }
    }
}

fn class(timeouts: u8) -> usize {
    (timeouts as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::Addr;

    fn embryo(port: u16) -> Embryo {
        let a = Addr::from_v4([10, 0, 0, 1]);
        let key = FlowKey { interface: InterfaceId(0), local: a, remote: a, local_port: 80, remote_port: port };
        let offer = Offer {
            seq: SeqNum(port as u32),
            window: 9,
            mss: 1460,
            scale: Some(7),
            timestamp: None,
            sack: true,
            ecn: false,
        };
        Embryo::new(key, 0, &offer, 3, MacAddr([0; 6]), InterfaceId(0))
    }

    fn cache(max: u32) -> SynCache {
        SynCache::new(max, Duration::from_secs(1), Duration::from_secs(120))
    }

    #[test]
    fn a_record_is_small_and_tells_the_offer() {
        assert!(crate::slab::slot_bytes::<Node>() <= 104, "{}", crate::slab::slot_bytes::<Node>());
        let e = embryo(5);
        let offer = e.offer();
        assert_eq!((offer.seq, offer.mss, offer.scale, offer.timestamp), (SeqNum(5), 1460, Some(7), None));
        assert!(offer.sack && !offer.ecn && !e.again());
    }

    #[test]
    fn timeouts_double_up_to_the_longest() {
        let c = cache(1);
        let seconds: Vec<u64> = [0, 1, 2, 5, 6, 7, 200].iter().map(|n| c.timeout(*n).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 32, 64, 120, 120]);
    }

    proptest! {
        /// Against a plain list.
        #[test]
        fn is_ordered_by_due_time(ops in proptest::collection::vec((0u8..5, any::<u8>(), 0u64..3000), 0..200)) {
            let mut c = cache(20);
            let mut model: Vec<(u32, Instant, u8)> = Vec::new();
            let mut now = Instant::from_micros(1);
            for (n, (op, x, ms)) in ops.into_iter().enumerate() {
                now = now.plus_micros(ms * 1000);
                let some = model.get(x as usize % model.len().max(1)).copied();
                match (op, some) {
                    (0 | 1, _) => {
                        let id = c.insert(now, embryo(n as u16));
                        prop_assert_eq!(id.is_some(), model.len() < 20);
                        model.extend(id.map(|id| (id, now + Duration::from_secs(1), 0)));
                    }
                    (2, Some((id, ..))) => {
                        prop_assert!(c.remove(id).is_some() && c.remove(id).is_none());
                        model.retain(|m| m.0 != id);
                    }
                    (3, Some((id, _, timeouts))) => {
                        c.rearm(id, now, timeouts + 1);
                        model.retain(|m| m.0 != id);
                        model.push((id, now + c.timeout(timeouts + 1), timeouts + 1));
                    }
                    _ => {
                        while let Some(id) = c.due(now) {
                            let first = model.iter().map(|m| m.1).min();
                            prop_assert_eq!(c.get(id).map(|e| e.due), first);
                            c.remove(id);
                            model.retain(|m| m.0 != id);
                        }
                        prop_assert!(model.iter().all(|m| m.1 > now));
                    }
                }
                prop_assert_eq!(c.len(), model.len());
                prop_assert_eq!(c.next(), model.iter().map(|m| m.1).min());
                let most = model.iter().map(|m| m.2).max();
                prop_assert_eq!(c.oldest().and_then(|id| c.get(id)).map(|e| e.timeouts), most);
            }
        }
    }
}
