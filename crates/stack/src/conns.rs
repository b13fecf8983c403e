//! The connections by number. Those with something going on are active and lie in boxes that are used again; idle ones are
//! parked: what is needed to go on with them, and nothing more.

pub(crate) mod conn;
pub(crate) mod options;

use std::collections::HashMap;

use mem::Chain;
use tcp::{Config, Parked, Tcb};
use wire::{Addr, Instant};

use crate::conns::conn::{Birth, Conn, Stage};
use crate::link::hop::{HANDSHAKE, NO_NEIGHBOR};
use crate::names::SeatId;
use crate::schedule::alarms::Alarm;
use crate::slab::Slab;
use crate::spread::Spread;
use crate::{FlowKey, InterfaceId};

/// A parked connection: one that the application knows, with no trouble and in the flow table. Its next hop is looked up again.
#[derive(Clone)]
struct Idle {
    tcb: Parked,
    remote: Addr,
    local_port: u16,
    remote_port: u16,
    /// Our address, the interface and whose it is: one of [`Locals`].
    local: u16,
    /// With [`FRAGMENTS`] in the place of the ECN bits.
    traffic_class: u8,
    hop_limit: u8,
}

/// Routers may fragment its packets.
const FRAGMENTS: u8 = 1;

#[allow(clippy::large_enum_variant, reason = "the large one is the common one")]
enum Slot {
    Active { key: FlowKey, conn: Box<Conn> },
    Parked(Idle),
}

/// Our end of a connection, without the port.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Local {
    interface: InterfaceId,
    addr: Addr,
    pool: u16,
    seat: SeatId,
}

/// Our ends of parked connections, which are few, by number.
#[derive(Default)]
struct Locals {
    all: Vec<Local>,
    numbers: HashMap<Local, u16>,
}

impl Locals {
    /// The number of an end; `None` where there are too many to have one.
    fn number(&mut self, local: Local) -> Option<u16> {
        if let Some(number) = self.numbers.get(&local) {
            return Some(*number);
        }
        let number = u16::try_from(self.all.len()).ok()?;
        self.all.push(local);
        self.numbers.insert(local, number);
        Some(number)
    }

    fn is(&self, number: u16, key: &FlowKey) -> bool {
        let Local { interface, addr, .. } = self.all[number as usize];
        (interface, addr) == (key.interface, key.local)
    }
}

/// Boxes kept for connections to come, at most.
const MOST_SPARE: usize = 32_768;

pub(crate) struct Conns {
    slots: Slab<Slot>,
    locals: Locals,
    /// As the flow table has it: a parked connection does not keep its hash.
    spread: Spread,
    #[allow(clippy::vec_box, reason = "the boxes themselves are what is kept")]
    spare: Vec<Box<Conn>>,
    parked: usize,
    config: Config,
    /// What is left out of parked connections is as this says, whatever parameters came later.
    left_out: Config,
    /// The time of the turn.
    pub now: Instant,
}

impl Conns {
    /// At most `max`, with these parameters; their tuples are hashed by `spread`.
    pub fn new(max: u32, spread: Spread, config: Config) -> Conns {
        let (slots, locals, left_out) = (Slab::new(max), Locals::default(), config.clone());
        Conns { slots, locals, spread, spare: Vec::new(), parked: 0, config, left_out, now: Instant::ZERO }
    }

    /// Parameters of those to come.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Connections, parked ones included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn parked(&self) -> usize {
        self.parked
    }

    /// Numbers ever given out: all are below.
    pub fn slots(&self) -> u32 {
        self.slots.slots()
    }

    pub fn iter_ids(&self) -> impl Iterator<Item = u32> {
        self.slots.iter_ids()
    }

    /// Whether there is a connection of this number.
    pub fn is_used(&self, id: u32) -> bool {
        self.slots.get(id).is_some()
    }

    fn boxed(&mut self, conn: Conn) -> Box<Conn> {
        match self.spare.pop() {
            Some(mut old) => {
                *old = conn;
                old
            }
            None => Box::new(conn),
        }
    }

    fn keep(&mut self, conn: Box<Conn>) {
        if self.spare.len() < MOST_SPARE {
            self.spare.push(conn);
        }
    }

    /// A connection that is to be: its control block is still to be opened, and then it is [`Conns::insert`]ed. `None` when
    /// there are too many.
    #[inline(always)]
    pub fn prepare(&mut self, birth: Birth) -> Option<Box<Conn>> {
        if self.slots.is_full() {
            return None;
        }
        Some(match self.spare.pop() {
            Some(mut old) => {
                old.renew(birth);
                old
            }
            None => Box::new(Conn::new(birth, &self.config)),
        })
    }

    /// The number of a connection for which there was room.
    #[inline(always)]
    pub fn insert(&mut self, conn: Box<Conn>) -> u32 {
        let key = conn.key;
        self.slots.insert_with(|| Slot::Active { key, conn }).expect("there is room")
    }

    /// The connection is over.
    pub fn remove(&mut self, id: u32) {
        match self.slots.remove(id) {
            Some(Slot::Active { conn, .. }) => self.keep(conn),
            Some(Slot::Parked(_)) => self.parked -= 1,
            None => {}
        }
    }

    /// Hints that the connection is used soon: its place here, where a parked one lies.
    #[inline]
    pub fn prefetch(&self, id: u32) {
        self.slots.prefetch(id);
    }

    /// The same for the active connection, whose place has come.
    #[inline]
    pub fn prefetch_active(&self, id: u32) {
        if let Some(Slot::Active { conn, .. }) = self.slots.get(id) {
            mem::prefetch::whole(&**conn);
        }
    }

    /// Who hears of a connection.
    pub fn seat(&self, id: u32) -> Option<SeatId> {
        Some(match self.slots.get(id)? {
            Slot::Active { conn, .. } => conn.seat,
            Slot::Parked(idle) => self.locals.all[idle.local as usize].seat,
        })
    }

    /// The tuple of a connection.
    pub fn key(&self, id: u32) -> Option<FlowKey> {
        Some(match self.slots.get(id)? {
            Slot::Active { key, .. } => *key,
            Slot::Parked(idle) => idle.key(&self.locals),
        })
    }

    /// Whether `key` is the tuple of a connection.
    #[inline(always)]
    pub fn has_key(&self, id: u32, key: &FlowKey) -> bool {
        match self.slots.get(id) {
            Some(Slot::Active { key: own, .. }) => own == key,
            Some(Slot::Parked(idle)) => idle.has_key(key, &self.locals),
            None => false,
        }
    }

    /// The connection if it is not parked.
    #[inline(always)]
    pub fn active(&self, id: u32) -> Option<&Conn> {
        match self.slots.get(id)? {
            Slot::Active { conn, .. } => Some(conn),
            Slot::Parked(_) => None,
        }
    }

    /// The same, to change.
    #[inline(always)]
    pub fn active_mut(&mut self, id: u32) -> Option<&mut Conn> {
        match self.slots.get_mut(id)? {
            Slot::Active { conn, .. } => Some(conn),
            Slot::Parked(_) => None,
        }
    }

    /// The connection, made active.
    #[inline(always)]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut Conn> {
        if let Slot::Parked(_) = self.slots.get(id)? {
            self.unpark(id);
        }
        self.active_mut(id)
    }

    #[cold]
    #[inline(never)]
    fn unpark(&mut self, id: u32) {
        let Some(Slot::Parked(idle)) = self.slots.get(id) else { return };
        let (key, idle) = (idle.key(&self.locals), idle.clone());
        let whose = self.locals.all[idle.local as usize];
        let hash = self.spread.tuple(&key);
        let conn = self.boxed(idle.active((key, hash), whose, self.now, &self.left_out));
        self.parked -= 1;
        if let Some(slot) = self.slots.get_mut(id) {
            *slot = Slot::Active { key, conn };
        }
    }

    /// Parks a connection that has nothing to do; whether it could be.
    pub fn park(&mut self, id: u32) -> bool {
        let Some(slot) = self.slots.get_mut(id) else { return false };
        let Slot::Active { key, conn: c } = slot else { return false };
        // What a parked one does not keep: trouble, and where a handshake came from, where that is the way back.
        let kept = c.trouble.is_none() && c.neighbor != HANDSHAKE;
        if c.stage != Stage::Owned || !c.linked || c.orphan || !kept {
            return false;
        }
        let local = Local { interface: key.interface, addr: key.local, pool: c.pool, seat: c.seat };
        let Some(local) = self.locals.number(local) else { return false };
        let Some(tcb) = c.tcb.park(self.now, &self.left_out) else { return false };
        let idle = Idle {
            tcb,
            remote: key.remote,
            local_port: key.local_port,
            remote_port: key.remote_port,
            local,
            traffic_class: c.traffic_class | if c.fragments { FRAGMENTS } else { 0 },
            hop_limit: c.hop_limit,
        };
        if let Slot::Active { conn, .. } = core::mem::replace(slot, Slot::Parked(idle)) {
            self.keep(conn);
        }
        self.parked += 1;
        true
    }

    /// When a parked connection has something to do; `None` for others.
    pub fn parked_until(&self, id: u32) -> Option<Instant> {
        match self.slots.get(id)? {
            Slot::Parked(idle) => Some(idle.tcb.deadline(self.now)),
            Slot::Active { .. } => None,
        }
    }

    /// Gives key and control block of a connection to `f`, a parked one's as it would be.
    pub fn view(&self, id: u32, f: impl FnOnce(&FlowKey, &Tcb)) {
        match self.slots.get(id) {
            Some(Slot::Active { key, conn }) => f(key, &conn.tcb),
            Some(Slot::Parked(idle)) => {
                f(&idle.key(&self.locals), &Tcb::unpark(idle.tcb.clone(), self.now, &self.left_out));
            }
            None => {}
        }
    }
}

impl Idle {
    fn key(&self, locals: &Locals) -> FlowKey {
        let Idle { remote, local_port, remote_port, .. } = *self;
        let Local { interface, addr, .. } = locals.all[self.local as usize];
        FlowKey { interface, local: addr, remote, local_port, remote_port }
    }

    fn has_key(&self, key: &FlowKey, locals: &Locals) -> bool {
        let ports = (self.local_port, self.remote_port) == (key.local_port, key.remote_port);
        ports && self.remote == key.remote && locals.is(self.local, key)
    }

    fn active(self, (key, hash): (FlowKey, u32), whose: Local, now: Instant, config: &Config) -> Conn {
        Conn {
            tcb: Tcb::unpark(self.tcb, now, config),
            key,
            hash,
            alarm: Alarm::PASSED,
            neighbor: NO_NEIGHBOR,
            epoch: 0,
            listener: u32::MAX,
            kept: Chain::default(),
            pool: whose.pool,
            seat: whose.seat,
            came_from: None,
            traffic_class: self.traffic_class & !FRAGMENTS,
            hop_limit: self.hop_limit,
            fragments: self.traffic_class & FRAGMENTS != 0,
            cut: false,
            turn: 0,
            stage: Stage::Owned,
            trouble: None,
            orphan: false,
            linked: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_takes_little() {
        let bytes = crate::slab::slot_bytes::<Slot>();
        assert!(bytes <= 176, "{bytes}");
    }
}
