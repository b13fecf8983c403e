//! Whose a segment is: the flow table with the connections, handshakes and TIME-WAIT records that it names, listeners, SYN cookies, and the
//! ports of active opens.
//!
//! The flow table and the records that it names change together, here. Connections lie elsewhere ([`Conns`]): the table names them by number
//! from [`Demux::add`] to [`Demux::remove`].

pub(crate) mod cookies;
pub(crate) mod flows;
pub(crate) mod learning;
pub(crate) mod listener;
pub(crate) mod opened;
pub(crate) mod ports;
pub(crate) mod source;
pub(crate) mod sources;
pub(crate) mod syn_cache;
pub(crate) mod time_wait;

use wire::{Instant, Ports, SeqNum};

use crate::conns::Conns;
use crate::counters::Counters;
use crate::demux::cookies::Cookies;
use crate::demux::flows::{FlowTable, Place};
use crate::demux::learning::Learning;
use crate::demux::listener::{Listener, Listeners};
use crate::demux::opened::{OpenTuples, PortSource, Shared};
use crate::demux::ports::LocalPorts;
use crate::demux::sources::Sources;
use crate::demux::syn_cache::{Embryo, SynCache};
use crate::demux::time_wait::{TimeWait, TimeWaits};
use crate::keyed::Keyed;
use crate::{FlowKey, InterfaceId, StackConfig, Steering};

/// Values of the flow table with this bit name TIME-WAIT records.
const TIME_WAIT: u32 = 1 << 31;
/// Values with this bit, and not the one above, name handshakes.
const HANDSHAKE: u32 = 1 << 30;

/// Numbers of connections and handshakes are below this.
pub(crate) const MOST: u32 = HANDSHAKE - 1;
/// TIME-WAIT records, one more than may stay, have numbers up to this: `u32::MAX` is no value of the flow table.
pub(crate) const MOST_TIME_WAIT: u32 = TIME_WAIT - 2;

/// Who has a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Connection(u32),
    Handshake(u32),
    TimeWait(u32),
}

impl Owner {
    #[inline(always)]
    fn of(value: u32) -> Owner {
        if value & TIME_WAIT != 0 {
            Owner::TimeWait(value & !TIME_WAIT)
        } else if value & HANDSHAKE != 0 {
            Owner::Handshake(value & !HANDSHAKE)
        } else {
            Owner::Connection(value)
        }
    }

    #[inline(always)]
    fn value(self) -> u32 {
        match self {
            Owner::Connection(id) => id,
            Owner::Handshake(id) => id | HANDSHAKE,
            Owner::TimeWait(id) => id | TIME_WAIT,
        }
    }

    /// The connection is over, and its tuple remembered.
    #[inline(always)]
    pub fn is_over(self) -> bool {
        matches!(self, Owner::TimeWait(_))
    }
}

pub(crate) struct Demux {
    flows: FlowTable,
    handshakes: SynCache,
    time_waits: TimeWaits,
    pub listeners: Listeners,
    pub cookies: Cookies,
    ports: LocalPorts,
    shared: Shared,
    sources: Sources,
    /// Where answers to our SYNs arrive, if that is to be learnt.
    learning: Option<Box<Learning>>,
    steering: Steering,
    lane: u16,
    isn: Keyed,
}

impl Demux {
    pub fn new(config: &StackConfig) -> Demux {
        let secret = config.secret;
        let (a, b) = secret.split_at(8);
        let word = |half: &[u8]| half.iter().fold(0u64, |w, x| w << 8 | *x as u64);
        Demux {
            flows: FlowTable::new(secret),
            handshakes: SynCache::new(config.max_half_open.min(MOST), config.tcp.initial_rto, config.tcp.max_rto),
            time_waits: TimeWaits::new(config.time_wait, config.max_time_wait.min(MOST_TIME_WAIT)),
            listeners: Listeners::new(config.max_listeners, secret),
            cookies: Cookies::new(secret),
            ports: LocalPorts::new(config.ports.clone(), secret, config.ports_start),
            shared: Shared::default(),
            sources: Sources::default(),
            learning: (config.learn && config.steering.lanes() > 1).then(Box::default),
            steering: config.steering.clone(),
            lane: config.lane,
            isn: Keyed::new(word(a).rotate_left(32) ^ 0x69736e, word(b)),
        }
    }

    // The flow table.

    /// Of addresses and ports: what follows from it nobody outside may see.
    #[inline(always)]
    pub fn hash(&self, key: &FlowKey) -> u32 {
        self.flows.hash(key)
    }

    /// Who has the tuple `key`, whose hash it is, and where the flow table has that.
    #[inline(always)]
    pub fn find(&self, conns: &Conns, key: &FlowKey, hash: u32) -> Option<(Owner, Place)> {
        let found = self.flows.find(hash, |value| match Owner::of(value) {
            Owner::TimeWait(id) => self.time_waits.get(id).is_some_and(|t| t.key == *key),
            Owner::Handshake(id) => self.handshakes.get(id).is_some_and(|e| e.key == *key),
            Owner::Connection(id) => conns.has_key(id, key),
        });
        found.map(|(value, place)| (Owner::of(value), place))
    }

    /// [`Demux::find`] without the hash.
    pub fn look_up(&self, conns: &Conns, key: &FlowKey) -> Option<Owner> {
        self.find(conns, key, self.hash(key)).map(|(owner, _)| owner)
    }

    /// Hints that `hash` is looked up soon.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        self.flows.prefetch(hash);
    }

    /// Hints that who has a tuple of this hash is used soon; the number of the connection, if it is one.
    #[inline]
    pub fn prefetch_owner(&self, hash: u32, conns: &Conns) -> Option<u32> {
        // The first value under the hash is nearly always the one.
        match self.flows.find(hash, |_| true).map(|(value, _)| Owner::of(value))? {
            Owner::TimeWait(id) => self.time_waits.prefetch(id),
            Owner::Handshake(id) => self.handshakes.prefetch(id),
            Owner::Connection(id) => {
                conns.prefetch(id);
                return Some(id);
            }
        }
        None
    }

    /// A new connection is found under `hash` from now on, in the place of its handshake, if there was a record of it.
    #[inline(always)]
    pub fn add(&mut self, hash: u32, id: u32, handshake: Option<(u32, Place)>) {
        let replaces = |(h, place): (u32, Place)| self.flows.replace(hash, Owner::Handshake(h).value(), id, place);
        if !handshake.is_some_and(replaces) {
            self.flows.insert(hash, id);
        }
    }

    /// The tuple of a connection is free.
    #[inline(always)]
    pub fn remove(&mut self, key: &FlowKey, hash: u32, id: u32) {
        self.flows.remove(hash, id);
        self.freed(key);
    }

    /// The four-tuple is free.
    #[inline(always)]
    fn freed(&mut self, key: &FlowKey) {
        self.sources.freed(key);
        if let Some(tuples) = self.shared.told_of(key) {
            tuples.release(key);
        }
    }

    /// RFC 6528 3: a clock of 4 µs ticks plus a keyed hash of the tuple; and the offset of the tuple's timestamp clock.
    pub fn initial_sequence(&self, now: Instant, key: &FlowKey) -> (SeqNum, u32) {
        let hash = self.isn.tuple(key);
        // RFC 7323 5.4: each tuple has its own offset, so that it tells nothing about uptime.
        (SeqNum((hash as u32).wrapping_add((now.micros() / 4) as u32)), (hash >> 32) as u32)
    }

    /// Whether this lane has the answers to what `key` sends.
    #[inline(always)]
    pub fn is_ours(&self, key: &FlowKey) -> bool {
        self.steering.lane_of(key.remote, key.local, key.remote_port, key.local_port) == self.lane
    }

    // Handshakes.

    pub fn handshakes(&self) -> &SynCache {
        &self.handshakes
    }

    #[inline(always)]
    pub fn handshake(&self, id: u32) -> Option<&Embryo> {
        self.handshakes.get(id)
    }

    /// To change anything but when it is due, and its tuple.
    pub fn handshake_mut(&mut self, id: u32) -> Option<&mut Embryo> {
        self.handshakes.get_mut(id)
    }

    /// The SYN/ACK of a handshake goes out again, or is waited for, after so many timeouts.
    pub fn rearm_handshake(&mut self, id: u32, now: Instant, timeouts: u8) {
        self.handshakes.rearm(id, now, timeouts);
    }

    /// A handshake begins; `None` where there are too many.
    #[inline(always)]
    pub fn begin_handshake(&mut self, now: Instant, embryo: Embryo) -> Option<u32> {
        let (hash, listener) = (embryo.hash, embryo.listener);
        let id = self.handshakes.insert(now, embryo)?;
        self.flows.insert(hash, Owner::Handshake(id).value());
        if let Some(l) = self.listeners.get(listener) {
            l.embryos += 1;
        }
        Some(id)
    }

    /// A handshake's record goes, and its tuple is free.
    pub fn end_handshake(&mut self, id: u32) {
        let Some(e) = self.handshakes.remove(id) else { return };
        self.flows.remove(e.hash, Owner::Handshake(id).value());
        if let Some(l) = self.listeners.get(e.listener) {
            l.embryos -= 1;
        }
    }

    /// The record is another listener's, which has it in its count.
    pub fn give_handshake(&mut self, id: u32, listener: u32) {
        if let (Some(e), Some(l)) = (self.handshakes.get_mut(id), self.listeners.get(listener)) {
            e.listener = listener;
            l.embryos += 1;
        }
    }

    /// The record goes whose place in the flow table a connection has taken; the listener's count is of that now.
    #[inline(always)]
    pub fn handshake_is_done(&mut self, id: u32) {
        self.handshakes.remove(id);
    }

    /// The listener that a SYN of `key` is for, if there is one.
    #[inline(always)]
    pub fn listener_of(&mut self, key: &FlowKey) -> Option<(u32, &mut Listener)> {
        let id = self.listeners.find(key)?;
        Some((id, self.listeners.get(id)?))
    }

    // TIME-WAIT.

    pub fn time_waits(&self) -> &TimeWaits {
        &self.time_waits
    }

    #[inline(always)]
    pub fn time_wait(&self, id: u32) -> Option<&TimeWait> {
        self.time_waits.get(id)
    }

    /// To note what was answered and when the wait begins again.
    pub fn time_waits_mut(&mut self) -> &mut TimeWaits {
        &mut self.time_waits
    }

    /// A record takes the place of connection `id` in the flow table; its number, where there is room.
    #[inline(always)]
    pub fn remember(
        &mut self,
        now: Instant,
        id: u32,
        place: Place,
        record: TimeWait,
        counters: &mut Counters,
    ) -> Option<u32> {
        let hash = record.hash;
        let Some((t, evicted)) = self.time_waits.insert(now, record) else {
            self.remove(&record.key, hash, id);
            return None;
        };
        counters.time_waits += 1;
        self.flows.replace(hash, id, Owner::TimeWait(t).value(), place);
        if let Some(tuples) = self.shared.told_of(&record.key) {
            tuples.time_wait(&record.key);
        }
        if let Some((old, gone)) = evicted {
            counters.time_wait_evicted += 1;
            self.flows.remove(gone.hash, Owner::TimeWait(old).value());
            self.freed(&gone.key);
        }
        Some(t)
    }

    /// A TIME-WAIT record gives way to a connection that the peer opens, or ends early.
    pub fn forget(&mut self, id: u32, hash: u32, counters: &mut Counters) {
        if let Some(gone) = self.time_waits.get(id)
            && let Some(tuples) = self.shared.told_of(&gone.key)
        {
            tuples.release(&gone.key);
        }
        self.reuse(id, hash, counters);
    }

    /// A TIME-WAIT record gives way to an active open of its tuple.
    pub fn reuse(&mut self, id: u32, hash: u32, counters: &mut Counters) {
        self.time_waits.remove(id);
        self.flows.remove(hash, Owner::TimeWait(id).value());
        counters.time_wait_reused += 1;
    }

    /// TIME-WAIT is over for some.
    pub fn expire(&mut self, now: Instant) {
        self.flows.step();
        let Demux { flows, sources, time_waits, shared, .. } = self;
        time_waits.expire(now, |t, record| {
            flows.remove(record.hash, Owner::TimeWait(t).value());
            sources.freed(&record.key);
            if let Some(tuples) = shared.told_of(&record.key) {
                tuples.release(&record.key);
            }
        });
    }

    // Local ports.

    /// Connections are opened by an interface beside the kernel, and `tuples` is told of them.
    pub fn share(&mut self, interface: InterfaceId, tuples: Box<dyn OpenTuples>) {
        self.shared.add(interface, tuples);
    }

    /// Connections leave from the ports that `source` gives, and no others.
    pub fn share_ports(&mut self, source: Box<dyn PortSource>) {
        self.ports.replace(Ports::default());
        self.shared.ports = Some(source);
    }

    /// Takes note of the ports that there are by now.
    #[inline(always)]
    pub fn follow_ports(&mut self) {
        if let Some(ports) = self.shared.ports.as_mut().and_then(|source| source.changed()) {
            self.ports.replace(ports);
            self.sources.forget_spent();
        }
    }

    /// Asks for more ports, when all are taken; true where there are some.
    #[cold]
    pub fn more_ports(&mut self) -> bool {
        let more = self.shared.ports.as_mut().is_some_and(|source| source.more());
        self.follow_ports();
        more
    }

    /// The tuple is that of an active open from now on. `false` where there is no room for it.
    #[inline(always)]
    pub fn open(&mut self, key: &FlowKey) -> bool {
        let Some(tuples) = self.shared.of(key) else { return true };
        let room = tuples.claim(key);
        self.shared.opens_from(key.local_port);
        room
    }

    /// The peer's SYN has come, which answers an active open's.
    #[inline(always)]
    pub fn synchronized(&mut self, key: &FlowKey) {
        if let Some(tuples) = self.shared.told_of(key) {
            tuples.synchronized(key);
        }
    }

    /// Gives back the tuple of an active open for which there is no connection.
    pub fn give_up(&mut self, key: &FlowKey) {
        self.freed(key);
    }

    /// Number of ports that there are, or can be.
    pub fn local_ports(&self) -> u32 {
        self.shared.ports.as_ref().map_or_else(|| self.ports.count(), |source| source.most())
    }

    /// Whether it is to be learnt by which lane's queues answers come.
    #[inline(always)]
    pub fn is_learning(&self) -> bool {
        self.learning.is_some()
    }

    /// An answer to our SYN came by `lane`'s queue.
    pub fn answered(&mut self, key: &FlowKey, lane: u16, counters: &mut Counters) {
        if let Some(learning) = &mut self.learning {
            learning.answered(key, lane, lane == self.lane, counters);
        }
    }

    /// An interface of which it has been learnt which local ports lead to this lane; each is told once.
    pub fn take_learnt(&mut self) -> Option<InterfaceId> {
        self.learning.as_mut()?.take_news()
    }

    /// Entries of the flow table, for checks.
    pub fn entries(&self) -> usize {
        self.flows.len()
    }
}
