//! The connections by number. Those with something going on are active and lie in boxes that are used again; idle ones are
//! parked: what is needed to go on with them, and nothing more.

pub(crate) mod conn;
pub(crate) mod options;

use tcp::{Config, Parked, Tcb};
use wire::Instant;

use crate::FlowKey;
use crate::conns::conn::{Birth, Conn, Stage};
use crate::link::hop::HANDSHAKE;
use crate::schedule::alarms::Alarm;
use crate::slab::Slab;

/// A parked connection: one that the application knows, with no trouble and in the flow table.
#[derive(Clone)]
struct Idle {
    tcb: Parked,
    hash: u32,
    neighbor: u32,
    epoch: u32,
    traffic_class: u8,
    hop_limit: u8,
    fragments: bool,
}

#[allow(clippy::large_enum_variant, reason = "the large one is the common one")]
enum Body {
    Active(Box<Conn>),
    Parked(Idle),
}

struct Slot {
    key: FlowKey,
    body: Body,
}

/// Boxes kept for connections to come, at most.
const MOST_SPARE: usize = 32_768;

pub(crate) struct Conns {
    slots: Slab<Slot>,
    #[allow(clippy::vec_box, reason = "the boxes themselves are what is kept")]
    spare: Vec<Box<Conn>>,
    parked: usize,
    config: Config,
    /// The time of the turn.
    pub now: Instant,
}

impl Conns {
    /// At most `max`, with these parameters.
    pub fn new(max: u32, config: Config) -> Conns {
        Conns { slots: Slab::new(max), spare: Vec::new(), parked: 0, config, now: Instant::ZERO }
    }

    /// Parameters of those to come; parked ones keep what they took over in what is parked of them.
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
        self.slots.insert_with(|| Slot { key, body: Body::Active(conn) }).expect("there is room")
    }

    /// The connection is over.
    pub fn remove(&mut self, id: u32) {
        match self.slots.remove(id).map(|slot| slot.body) {
            Some(Body::Active(conn)) => self.keep(conn),
            Some(Body::Parked(_)) => self.parked -= 1,
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
        if let Some(Slot { body: Body::Active(conn), .. }) = self.slots.get(id) {
            mem::prefetch::whole(&**conn);
        }
    }

    #[inline(always)]
    pub fn key(&self, id: u32) -> Option<&FlowKey> {
        self.slots.get(id).map(|slot| &slot.key)
    }

    /// The connection if it is not parked.
    #[inline(always)]
    pub fn active(&self, id: u32) -> Option<&Conn> {
        match &self.slots.get(id)?.body {
            Body::Active(conn) => Some(conn),
            Body::Parked(_) => None,
        }
    }

    /// The same, to change.
    #[inline(always)]
    pub fn active_mut(&mut self, id: u32) -> Option<&mut Conn> {
        match &mut self.slots.get_mut(id)?.body {
            Body::Active(conn) => Some(conn),
            Body::Parked(_) => None,
        }
    }

    /// The connection, made active.
    #[inline(always)]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut Conn> {
        if let Body::Parked(_) = self.slots.get(id)?.body {
            self.unpark(id);
        }
        self.active_mut(id)
    }

    #[cold]
    #[inline(never)]
    fn unpark(&mut self, id: u32) {
        let Some(Slot { key, body: Body::Parked(idle) }) = self.slots.get(id) else { return };
        let (key, idle) = (*key, idle.clone());
        let active = self.boxed(idle.active(key, self.now, &self.config));
        self.parked -= 1;
        if let Some(slot) = self.slots.get_mut(id) {
            slot.body = Body::Active(active);
        }
    }

    /// Parks a connection that has nothing to do; whether it could be.
    pub fn park(&mut self, id: u32) -> bool {
        let Some(Slot { body, .. }) = self.slots.get_mut(id) else { return false };
        let Body::Active(c) = body else { return false };
        // What a parked one does not keep: trouble, and where a handshake came from, where that is the way back.
        let kept = c.trouble.is_none() && c.neighbor != HANDSHAKE;
        if c.stage != Stage::Owned || !c.linked || c.orphan || !kept {
            return false;
        }
        let Some(tcb) = c.tcb.park(&self.config) else { return false };
        let idle = Idle {
            tcb,
            hash: c.hash,
            neighbor: c.neighbor,
            epoch: c.epoch,
            traffic_class: c.traffic_class,
            hop_limit: c.hop_limit,
            fragments: c.fragments,
        };
        if let Body::Active(old) = core::mem::replace(body, Body::Parked(idle)) {
            self.keep(old);
        }
        self.parked += 1;
        true
    }

    /// The next hop of a connection, parked or not: its index, and the epoch of that.
    pub fn hop(&self, id: u32) -> Option<(u32, u32)> {
        Some(match &self.slots.get(id)?.body {
            Body::Active(conn) => (conn.neighbor, conn.epoch),
            Body::Parked(idle) => (idle.neighbor, idle.epoch),
        })
    }

    /// When a parked connection has something to do; `None` for others.
    pub fn parked_until(&self, id: u32) -> Option<Instant> {
        match &self.slots.get(id)?.body {
            Body::Parked(idle) => Some(idle.tcb.deadline()),
            Body::Active(_) => None,
        }
    }

    /// Gives key and control block of a connection to `f`, a parked one's as it would be.
    pub fn view(&self, id: u32, f: impl FnOnce(&FlowKey, &Tcb)) {
        match self.slots.get(id).map(|slot| (&slot.key, &slot.body)) {
            Some((key, Body::Active(conn))) => f(key, &conn.tcb),
            Some((key, Body::Parked(idle))) => f(key, &Tcb::unpark(idle.tcb.clone(), self.now, &self.config)),
            None => {}
        }
    }
}

impl Idle {
    fn active(self, key: FlowKey, now: Instant, config: &Config) -> Conn {
        Conn {
            tcb: Tcb::unpark(self.tcb, now, config),
            key,
            hash: self.hash,
            alarm: Alarm::PASSED,
            neighbor: self.neighbor,
            epoch: self.epoch,
            listener: u32::MAX,
            came_from: None,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            fragments: self.fragments,
            cut: false,
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
        assert!(bytes <= 320, "{bytes}");
    }
}
