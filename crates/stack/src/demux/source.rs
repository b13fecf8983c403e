//! The source of an active open: an address and a port that are free for the remote end, and whose answers come back to this lane
//! (mTCP 4.2, Fastsocket 3.3).

use wire::{Addr, Instant};

use crate::FlowKey;
use crate::conns::Conns;
use crate::demux::sources::{Known, REMEMBERED};
use crate::demux::time_wait::TimeWait;
use crate::demux::{Demux, Owner};
use protocol::{Endpoint, Failure};

/// Ports that are looked at for one whose answers come straight to its lane: one in the square of the number of lanes is such a
/// port. More looks would cost more than a hand-over does.
const LOOKS: u32 = 256;

/// The tuple of an active open.
pub(crate) struct Chosen {
    pub key: FlowKey,
    /// The key's, in the flow table.
    pub hash: u32,
    /// The TIME-WAIT record that it takes the place of.
    pub reuses: Option<u32>,
}

impl Demux {
    /// Address and port of an active open to `key`'s remote end: `key.local` first, and the best, then the others that are as good.
    pub fn choose_source(
        &mut self,
        now: Instant,
        conns: &Conns,
        key: FlowKey,
        others: impl FnOnce() -> Vec<Addr>,
    ) -> Option<Chosen> {
        let to = (key.interface, key.remote, key.remote_port);
        let first = self.sources.by_remote.get(&to).copied().unwrap_or(key.local);
        if let Some(chosen) = self.choose_port(now, conns, FlowKey { local: first, ..key }) {
            return Some(chosen);
        }
        // Each address is searched once in a round, so a search that ends is paid for by all the ports that it found.
        let all = others();
        let start = all.iter().position(|a| *a == first).map_or(0, |at| at + 1);
        let others = all.iter().cycle().skip(start).take(all.len()).filter(|a| **a != first);
        let mut found = None;
        for addr in others {
            found = self.choose_port(now, conns, FlowKey { local: *addr, ..key });
            if found.is_some() {
                break;
            }
        }
        let by_remote = &mut self.sources.by_remote;
        if by_remote.len() >= REMEMBERED {
            by_remote.clear();
        }
        match &found {
            Some(chosen) => by_remote.insert(to, chosen.key.local),
            None => by_remote.remove(&to),
        };
        found
    }

    /// A port of `key.local` for an active open.
    pub fn choose_port(&mut self, now: Instant, conns: &Conns, key: FlowKey) -> Option<Chosen> {
        if self.sources.has_spent() {
            return self.choose_among_freed(now, conns, key);
        }
        let chosen = self.look_for_port(now, conns, key);
        if chosen.is_none() {
            self.sources.looked(now, &key, false);
        }
        chosen
    }

    /// [`Demux::choose_port`] where ports towards some remote end were all taken.
    #[cold]
    fn choose_among_freed(&mut self, now: Instant, conns: &Conns, key: FlowKey) -> Option<Chosen> {
        loop {
            match self.sources.known(now, &key) {
                Known::Spent => return None,
                Known::Freed(port) if self.ports.has(port) => {
                    let chosen = self.usable(now, conns, FlowKey { local_port: port, ..key });
                    if chosen.is_some() {
                        return chosen;
                    }
                }
                Known::Freed(_) => {}
                Known::Nothing => break,
            }
        }
        let chosen = self.look_for_port(now, conns, key);
        self.sources.looked(now, &key, chosen.is_some());
        chosen
    }

    #[inline(always)]
    fn look_for_port(&mut self, now: Instant, conns: &Conns, key: FlowKey) -> Option<Chosen> {
        if self.learning.is_some() {
            return self.look_for_learnt_port(now, conns, key);
        }
        let mut round = self.ports.round(key.local, key.remote, key.remote_port);
        while let Some(local_port) = self.ports.next(&mut round) {
            let chosen = self.usable(now, conns, FlowKey { local_port, ..key });
            if chosen.is_some() {
                return chosen;
            }
        }
        None
    }

    /// The same where the NIC does not tell its hash: of the ports by which this lane is found the first whose answers come
    /// straight here, as far as that has been learnt. One of which nothing is known is as good: it tells something. Where there
    /// are none, or too few, another is taken, and its answers are handed over.
    #[inline(never)]
    fn look_for_learnt_port(&mut self, now: Instant, conns: &Conns, key: FlowKey) -> Option<Chosen> {
        let mut round = self.ports.round(key.local, key.remote, key.remote_port);
        let way = self.learning.as_ref().and_then(|l| l.way(&key));
        let (mut looked, mut spare) = (0, None);
        while let Some(local_port) = self.ports.next(&mut round) {
            looked += 1;
            let key = FlowKey { local_port, ..key };
            if !self.is_ours(&key) {
                continue;
            }
            let away = way.and_then(|way| way.lane_of(local_port)).is_some_and(|to| to != self.lane);
            if !away || spare.is_none() {
                let chosen = self.usable(now, conns, key);
                if !away && chosen.is_some() {
                    return chosen;
                }
                spare = spare.or(chosen);
            }
            if looked >= LOOKS && spare.is_some() {
                break;
            }
        }
        spare
    }

    /// The tuple, where an active open may have it.
    #[inline(always)]
    fn usable(&self, now: Instant, conns: &Conns, key: FlowKey) -> Option<Chosen> {
        if !self.is_ours(&key) || self.listeners.covers(Endpoint { addr: key.local, port: key.local_port }) {
            return None;
        }
        self.free(now, conns, key)
    }

    /// The tuple of an active open that names its port.
    pub fn claim(&self, now: Instant, conns: &Conns, key: FlowKey) -> Result<Chosen, Failure> {
        if !self.is_ours(&key) {
            // Another lane would have the answers.
            return Err(Failure::AddressNotAvailable);
        }
        self.free(now, conns, key).ok_or(Failure::TupleInUse)
    }

    /// The tuple, where nobody has it, or only a TIME-WAIT record that may be used again.
    #[inline(always)]
    fn free(&self, now: Instant, conns: &Conns, key: FlowKey) -> Option<Chosen> {
        let hash = self.hash(&key);
        let reuses = match self.find(conns, &key, hash) {
            None => None,
            Some((Owner::TimeWait(id), _)) if self.is_reusable(now, id) => Some(id),
            Some(_) => return None,
        };
        Some(Chosen { key, hash, reuses })
    }

    /// RFC 6191: a TIME-WAIT tuple may be used again by an active open when timestamps tell the generations apart, a second
    /// after the old one ended (Linux's `tcp_tw_reuse`).
    fn is_reusable(&self, now: Instant, id: u32) -> bool {
        let age = |t: &TimeWait| self.time_waits.age_us(now, t);
        self.time_waits.get(id).is_some_and(|t| t.stamped && age(t) > 1_000_000)
    }
}
