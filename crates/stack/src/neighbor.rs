//! Next hops and their hardware addresses: learned by ARP and NDP in dedicated mode (RFC 826, RFC 4861 7.3), told by the
//! kernel in shared mode. Connections keep an index, so a frame costs no lookup.

use core::time::Duration;
use std::collections::HashMap;

use wire::{Addr, Instant, MacAddr};

use crate::route::InterfaceId;

/// Unicast or multicast questions before giving up (RFC 4861 10).
const TRIES: u8 = 3;
const RETRANS: Duration = Duration::from_secs(1);
const REACHABLE: Duration = Duration::from_secs(30);
/// A hop that did not answer is not asked again for so long.
const HOLD_DOWN: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Asked, no answer yet.
    Incomplete {
        tries: u8,
        next: Instant,
    },
    /// Confirmed not longer ago than `REACHABLE`; the kernel's word has no end.
    Reachable {
        until: Instant,
    },
    /// Confirmed some time ago; used while being asked again.
    Probe {
        tries: u8,
        next: Instant,
    },
    Failed {
        until: Instant,
    },
}

pub(crate) struct Neighbor {
    pub addr: Addr,
    pub interface: InterfaceId,
    pub mac: MacAddr,
    state: Known,
    used: Instant,
    /// Connections to send again once it is resolved.
    pub waiting: Vec<u32>,
}

/// A question for a hop: ARP or NDP in dedicated mode, the kernel's job in shared mode.
pub(crate) struct Question {
    pub interface: InterfaceId,
    pub addr: Addr,
    /// Known address to ask directly.
    pub unicast: Option<MacAddr>,
}

/// What a lookup says.
pub(crate) enum Hop {
    Known(MacAddr),
    Wait,
    Unreachable,
}

pub(crate) struct Neighbors {
    list: Vec<Neighbor>,
    map: HashMap<(InterfaceId, Addr), u32>,
    max: usize,
    /// Moves on when an index may mean another hop, or routes have changed: connections look theirs up again.
    pub epoch: u32,
    /// Earliest time at which `expire` has something to do.
    next: Instant,
    pub questions: Vec<Question>,
    /// Connections whose hop turned out unreachable.
    pub failed: Vec<u32>,
    /// Connections whose hop is resolved.
    pub resolved: Vec<u32>,
}

impl Neighbors {
    pub fn new(max: usize) -> Neighbors {
        Neighbors {
            list: Vec::new(),
            map: HashMap::new(),
            max: max.max(1),
            epoch: 1,
            next: Instant::FAR,
            questions: Vec::new(),
            failed: Vec::new(),
            resolved: Vec::new(),
        }
    }

    /// The index for a hop; `now` decides who gives way when the table is full. Entries with waiters or in use by many
    /// keep their index for life: a reused index only ever means another lookup.
    pub fn index(&mut self, now: Instant, interface: InterfaceId, addr: Addr) -> u32 {
        if let Some(i) = self.map.get(&(interface, addr)) {
            return *i;
        }
        let fresh = Neighbor {
            addr,
            interface,
            mac: MacAddr([0; 6]),
            state: Known::Failed { until: Instant::ZERO },
            used: now,
            waiting: Vec::new(),
        };
        let i = if self.list.len() < self.max {
            self.list.push(fresh);
            self.list.len() as u32 - 1
        } else {
            let oldest = (0..self.list.len()).min_by_key(|i| self.list[*i].used).unwrap_or(0);
            let old = core::mem::replace(&mut self.list[oldest], fresh);
            self.resolved.extend(old.waiting);
            self.map.remove(&(old.interface, old.addr));
            self.epoch += 1;
            oldest as u32
        };
        self.map.insert((interface, addr), i);
        i
    }

    /// Where frames for hop `i` go now; asks when nothing fresh is known.
    pub fn hop(&mut self, now: Instant, i: u32) -> Hop {
        let Some(n) = self.list.get_mut(i as usize) else { return Hop::Unreachable };
        n.used = now;
        match n.state {
            Known::Reachable { until } if now < until => Hop::Known(n.mac),
            Known::Reachable { .. } => {
                n.state = Known::Probe { tries: 1, next: now + RETRANS };
                self.next = self.next.min(now + RETRANS);
                self.questions.push(Question { interface: n.interface, addr: n.addr, unicast: Some(n.mac) });
                Hop::Known(n.mac)
            }
            Known::Probe { .. } => Hop::Known(n.mac),
            Known::Incomplete { .. } => Hop::Wait,
            Known::Failed { until } if now < until => Hop::Unreachable,
            Known::Failed { .. } => {
                n.state = Known::Incomplete { tries: 1, next: now + RETRANS };
                self.next = self.next.min(now + RETRANS);
                self.questions.push(Question { interface: n.interface, addr: n.addr, unicast: None });
                Hop::Wait
            }
        }
    }

    /// A connection waits for hop `i`.
    pub fn wait(&mut self, i: u32, conn: u32) {
        if let Some(n) = self.list.get_mut(i as usize) {
            n.waiting.push(conn);
        }
    }

    /// An answer, or a claim. Unsolicited claims change only what is already known (so that the table cannot be filled
    /// from outside); `create` is for requests to us and for the kernel's word. `lasting` entries are the kernel's.
    pub fn learn(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        addr: Addr,
        mac: MacAddr,
        create: bool,
        lasting: bool,
    ) {
        if mac.is_multicast() || mac == MacAddr([0; 6]) {
            return;
        }
        let known = self.map.contains_key(&(interface, addr));
        if !known && !create {
            return;
        }
        let i = self.index(now, interface, addr) as usize;
        let n = &mut self.list[i];
        n.mac = mac;
        n.state = Known::Reachable { until: if lasting { Instant::FAR } else { now + REACHABLE } };
        self.resolved.append(&mut n.waiting);
    }

    /// The kernel has lost it.
    pub fn forget(&mut self, interface: InterfaceId, addr: Addr) {
        if let Some(i) = self.map.get(&(interface, addr)) {
            self.list[*i as usize].state = Known::Failed { until: Instant::ZERO };
        }
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    /// Asks again, gives up (RFC 4861 7.3.3; RFC 1122 2.3.2.2).
    pub fn expire(&mut self, now: Instant) {
        if now < self.next {
            return;
        }
        let mut next = Instant::FAR;
        for n in &mut self.list {
            match n.state {
                Known::Incomplete { tries, next: at } if at <= now => {
                    if tries >= TRIES {
                        n.state = Known::Failed { until: now + HOLD_DOWN };
                        self.failed.append(&mut n.waiting);
                    } else {
                        n.state = Known::Incomplete { tries: tries + 1, next: now + RETRANS };
                        next = next.min(now + RETRANS);
                        self.questions.push(Question { interface: n.interface, addr: n.addr, unicast: None });
                    }
                }
                Known::Probe { tries, next: at } if at <= now => {
                    if tries >= TRIES {
                        // Ask everyone: the hop may have another hardware address now.
                        n.state = Known::Incomplete { tries: 1, next: now + RETRANS };
                        self.questions.push(Question { interface: n.interface, addr: n.addr, unicast: None });
                    } else {
                        n.state = Known::Probe { tries: tries + 1, next: now + RETRANS };
                        self.questions.push(Question { interface: n.interface, addr: n.addr, unicast: Some(n.mac) });
                    }
                    next = next.min(now + RETRANS);
                }
                Known::Incomplete { next: at, .. } | Known::Probe { next: at, .. } => next = next.min(at),
                Known::Reachable { .. } | Known::Failed { .. } => {}
            }
        }
        self.next = next;
    }
}
