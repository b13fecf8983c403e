//! Next hops and their hardware addresses: learned by ARP and NDP in dedicated mode (RFC 826, RFC 4861 7), told by the
//! kernel in shared mode. Connections keep an index, so a frame costs no lookup.

use core::time::Duration;

use foldhash::HashMap;
use wire::{Addr, Instant, MacAddr};

use crate::InterfaceId;
use crate::schedule::queues::{Entry, Waiters};

/// Unicast or multicast questions before giving up, and the times of RFC 4861 10.
const TRIES: u8 = 3;
const RETRANS: Duration = Duration::from_secs(1);
const REACHABLE: Duration = Duration::from_secs(30);
const DELAY_FIRST_PROBE: Duration = Duration::from_secs(5);
/// The kernel, which confirms what is used, is told of a use again after so long.
const USE_AGAIN: Duration = Duration::from_secs(10);
/// Longest time between two questions for a hop for which the kernel's table has no room.
const ROOM_AGAIN: Duration = Duration::from_secs(30);
/// A hop that did not answer is not asked again for so long.
const HOLD_DOWN: Duration = Duration::from_secs(3);
/// Entries looked at for one that may give way to hearsay; four times as many for one that is needed.
const SAMPLE: usize = 16;

/// RFC 4861 7.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Asked, no answer yet.
    Incomplete { tries: u8, next: Instant },
    /// Confirmed not longer ago than `REACHABLE`; the kernel's word has no end.
    Reachable { until: Instant },
    /// The kernel has not confirmed it lately, and does once it is told of its use: at the first from `tell` on.
    Unused { tell: Instant },
    /// The kernel's table has no room for it: asked for again with a use from `next` on, ever more seldom.
    NoRoom { tries: u8, next: Instant },
    /// Not confirmed lately, or only heard of; used, and then confirmed.
    Stale,
    /// Used while stale: the peer has until then to show that it is there.
    Delay { until: Instant },
    /// Used while being asked directly.
    Probe { tries: u8, next: Instant },
    /// Did not answer, or was never asked.
    Failed { until: Instant },
}

pub(crate) struct Neighbor {
    pub addr: Addr,
    pub interface: InterfaceId,
    pub mac: MacAddr,
    state: Known,
    used: Instant,
    /// Somebody keeps its index: it is more than hearsay.
    indexed: bool,
    /// Connections to send again once it is resolved.
    waiting: Waiters,
}

impl Neighbor {
    /// What was said of it is void. Who waits for it goes on waiting, for an answer to another question.
    fn forget(&mut self, questions: &mut Vec<Question>) {
        match self.state {
            Known::Incomplete { .. } if !self.waiting.is_empty() => {
                questions.push(Question { interface: self.interface, addr: self.addr, unicast: None });
            }
            _ => self.state = Known::Failed { until: Instant::ZERO },
        }
    }
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
    /// Nobody can say now: frames are lost, and sent again by their timers.
    Lost,
    Unreachable,
}

/// What a claim may do to a hardware address that is known already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strength {
    /// ARP: anyone may say anything, so one that was confirmed is asked before it is replaced.
    Weak,
    /// NDP without the override flag: makes a confirmed one doubtful.
    Plain,
    /// NDP with it, or a source link-layer address: replaces.
    Override,
}

/// What an ARP or NDP message says of its sender or target.
pub(crate) struct Claim {
    pub mac: Option<MacAddr>,
    /// It answers our question.
    pub solicited: bool,
    pub strength: Strength,
    /// It asked us, and will be answered: remembered though it was unknown.
    pub create: bool,
}

/// A hop that did not answer, with the connections that wait for it.
pub(crate) struct Lost {
    pub interface: InterfaceId,
    pub addr: Addr,
    pub hop: u32,
    pub waiting: Vec<Entry>,
}

/// A connection that has waited for a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub entry: Entry,
    /// The hop's index.
    pub hop: u32,
}

/// All that wait for `hop`.
fn waiters(waiting: Vec<Entry>, hop: u32) -> impl Iterator<Item = Waiter> {
    waiting.into_iter().map(move |entry| Waiter { entry, hop })
}

pub(crate) struct Neighbors {
    list: Vec<Neighbor>,
    map: HashMap<(InterfaceId, Addr), u32>,
    max: usize,
    /// Where the next search for room begins.
    cursor: usize,
    /// Moves on when an index may mean another hop, or routes have changed: connections look theirs up again.
    pub epoch: u32,
    /// Earliest time at which `expire` has something to do.
    next: Instant,
    pub questions: Vec<Question>,
    pub lost: Vec<Lost>,
    /// Connections whose hop turned out unreachable.
    pub failed: Vec<Waiter>,
    /// Connections whose hop is resolved, or may be another one now.
    pub resolved: Vec<Waiter>,
    /// Who waits may have another hop now.
    rerouted: bool,
}

impl Neighbors {
    pub fn new(max: usize) -> Neighbors {
        Neighbors {
            list: Vec::new(),
            map: HashMap::default(),
            max: max.max(1),
            cursor: 0,
            epoch: 1,
            next: Instant::FAR,
            questions: Vec::new(),
            lost: Vec::new(),
            failed: Vec::new(),
            resolved: Vec::new(),
            rerouted: false,
        }
    }

    /// The index for a hop, which is kept until another one needs its place; `None` when the table is full of hops that
    /// others wait for.
    pub fn index(&mut self, now: Instant, interface: InterfaceId, addr: Addr) -> Option<u32> {
        let known = self.map.get(&(interface, addr)).copied();
        let i = known.or_else(|| self.insert(now, interface, addr, true))?;
        self.list[i as usize].indexed = true;
        Some(i)
    }

    /// A new entry. When the table is full one that nobody uses gives way, the longest unused of a few. Hearsay (`!needed`)
    /// takes no place of one in use, so that no flood of claims costs a connection its next hop; and nobody takes the place
    /// of one that is waited for, or more connections than places would chase each other around the table.
    fn insert(&mut self, now: Instant, interface: InterfaceId, addr: Addr, needed: bool) -> Option<u32> {
        let state = Known::Failed { until: Instant::ZERO };
        let mac = MacAddr([0; 6]);
        let fresh = Neighbor { addr, interface, mac, state, used: now, indexed: false, waiting: Waiters::default() };
        let i = if self.list.len() < self.max {
            self.list.push(fresh);
            self.list.len() - 1
        } else {
            let sample = (self.cursor..self.max).chain(0..self.cursor).take(if needed { 4 * SAMPLE } else { SAMPLE });
            let sample = sample.map(|i| (i, &self.list[i])).filter(|(_, n)| n.waiting.is_empty());
            let victim = sample.min_by_key(|(_, n)| (n.indexed, n.used)).map(|(i, _)| i);
            self.cursor = (self.cursor + SAMPLE) % self.max;
            let victim = victim?;
            if self.list[victim].indexed {
                if !needed {
                    return None;
                }
                self.epoch += 1;
            }
            let old = core::mem::replace(&mut self.list[victim], fresh);
            self.map.remove(&(old.interface, old.addr));
            victim
        };
        self.map.insert((interface, addr), i as u32);
        Some(i as u32)
    }

    /// Where frames for hop `i` go now; asks when nothing fresh is known (RFC 4861 7.3.3).
    #[inline]
    pub fn hop(&mut self, now: Instant, i: u32) -> Hop {
        let Some(n) = self.list.get_mut(i as usize) else { return Hop::Unreachable };
        n.used = now;
        match n.state {
            Known::Reachable { until } | Known::Unused { tell: until } if now < until => Hop::Known(n.mac),
            Known::Delay { .. } | Known::Probe { .. } => Hop::Known(n.mac),
            _ => self.ask(now, i),
        }
    }

    /// Where frames for hop `i` go, which must be asked for, or confirmed from now on.
    #[inline(never)]
    fn ask(&mut self, now: Instant, i: u32) -> Hop {
        let Some(n) = self.list.get_mut(i as usize) else { return Hop::Unreachable };
        match n.state {
            Known::Delay { .. } | Known::Probe { .. } => Hop::Known(n.mac),
            Known::Reachable { .. } | Known::Stale => {
                let until = now + DELAY_FIRST_PROBE;
                n.state = Known::Delay { until };
                self.next = self.next.min(until);
                Hop::Known(n.mac)
            }
            Known::Unused { .. } => {
                n.state = Known::Unused { tell: now + USE_AGAIN };
                self.questions.push(Question { interface: n.interface, addr: n.addr, unicast: Some(n.mac) });
                Hop::Known(n.mac)
            }
            Known::NoRoom { tries, next } => {
                if now >= next {
                    let rest = (RETRANS * (1 << tries)).min(ROOM_AGAIN);
                    n.state = Known::NoRoom { tries: (tries + 1).min(8), next: now + rest };
                    self.questions.push(Question { interface: n.interface, addr: n.addr, unicast: None });
                }
                Hop::Lost
            }
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
    pub fn wait(&mut self, i: u32, conn: Entry) {
        if let Some(n) = self.list.get_mut(i as usize) {
            n.waiting.push(conn);
        }
    }

    /// A connection that waited for hop `i` is over, or has another hop; `waits` tells who does.
    pub fn leave(&mut self, i: u32, waits: impl Fn(Entry) -> bool) {
        if let Some(n) = self.list.get_mut(i as usize) {
            n.waiting.leave(waits);
        }
    }

    /// Everyone looks for the next hop anew, those that wait for one with the next [`Neighbors::expire`].
    pub fn routes_changed(&mut self) {
        self.epoch += 1;
        self.rerouted = true;
        self.next = Instant::ZERO;
    }

    /// The kernel's or the administrator's word: true until it is taken back.
    pub fn set(&mut self, now: Instant, interface: InterfaceId, addr: Addr, mac: MacAddr) {
        if !one_host(mac) {
            return;
        }
        let Some(i) = self.index(now, interface, addr) else { return };
        let n = &mut self.list[i as usize];
        (n.mac, n.state) = (mac, Known::Reachable { until: Instant::FAR });
        self.resolved.extend(waiters(n.waiting.take(), i));
    }

    /// The kernel has an address that it has not confirmed lately: it serves, and its use is told of.
    pub fn set_stale(&mut self, now: Instant, interface: InterfaceId, addr: Addr, mac: MacAddr) {
        if !one_host(mac) {
            return;
        }
        let known = self.map.get(&(interface, addr)).copied();
        let Some(i) = known.or_else(|| self.insert(now, interface, addr, false)) else { return };
        let n = &mut self.list[i as usize];
        // An answer to what was told: not once more at once.
        if !matches!(n.state, Known::Unused { .. }) || n.mac != mac {
            (n.mac, n.state) = (mac, Known::Unused { tell: now });
        }
        self.resolved.extend(waiters(n.waiting.take(), i));
    }

    /// The kernel's table has no room for a hop that was asked for. Nobody waits for it: as on Linux what goes there is lost.
    pub fn refuse(&mut self, now: Instant, interface: InterfaceId, addr: Addr) {
        let Some(i) = self.find(interface, addr) else { return };
        let n = &mut self.list[i as usize];
        if matches!(n.state, Known::Incomplete { .. }) {
            n.state = Known::NoRoom { tries: 0, next: now + RETRANS };
            self.resolved.extend(waiters(n.waiting.take(), i));
        }
    }

    /// What ARP or NDP says (RFC 4861 7.2.3 and 7.2.5). Who did not ask us is believed only about hops that are known.
    pub fn claim(&mut self, now: Instant, interface: InterfaceId, addr: Addr, claim: Claim) {
        if claim.mac.is_some_and(|mac| !one_host(mac)) {
            return;
        }
        let known = self.map.get(&(interface, addr)).copied();
        let fresh = || if claim.create && claim.mac.is_some() { Some(()) } else { None };
        let Some(i) = known.or_else(|| fresh().and_then(|()| self.insert(now, interface, addr, false))) else {
            return;
        };
        let n = &mut self.list[i as usize];
        let confirmed = Known::Reachable { until: now + REACHABLE };
        let differs = claim.mac.filter(|mac| *mac != n.mac);
        match (n.state, claim.mac) {
            // Nobody overrules the kernel.
            (Known::Reachable { until: Instant::FAR } | Known::Unused { .. }, _) => {}
            (Known::Incomplete { .. } | Known::NoRoom { .. } | Known::Failed { .. }, None) => {}
            (Known::Incomplete { .. } | Known::NoRoom { .. } | Known::Failed { .. }, Some(mac)) => {
                n.mac = mac;
                n.state = if claim.solicited { confirmed } else { Known::Stale };
                self.resolved.extend(waiters(n.waiting.take(), i));
            }
            _ if differs.is_none() || claim.strength == Strength::Override => {
                if let Some(mac) = differs {
                    (n.mac, n.state) = (mac, Known::Stale);
                }
                if claim.solicited {
                    n.state = confirmed;
                }
            }
            (Known::Reachable { .. }, _) if claim.strength == Strength::Weak => {
                n.state = Known::Probe { tries: 1, next: now + RETRANS };
                self.next = self.next.min(now + RETRANS);
                self.questions.push(Question { interface, addr, unicast: Some(n.mac) });
            }
            (Known::Reachable { .. }, _) => n.state = Known::Stale,
            (Known::Stale, Some(mac)) if claim.strength == Strength::Weak => n.mac = mac,
            (Known::Stale | Known::Delay { .. } | Known::Probe { .. }, _) => {}
        }
    }

    /// The kernel has lost it.
    pub fn forget(&mut self, interface: InterfaceId, addr: Addr) {
        // What the kernel does not know yet it says so of; asking it again would not hurry it.
        if let Some(n) = self.map.get(&(interface, addr)).and_then(|i| self.list.get_mut(*i as usize))
            && !matches!(n.state, Known::Incomplete { .. })
        {
            n.forget(&mut self.questions);
        }
    }

    /// Those on interfaces that `of` names.
    pub fn forget_all(&mut self, of: impl Fn(InterfaceId) -> bool) {
        for n in self.list.iter_mut().filter(|n| of(n.interface)) {
            n.forget(&mut self.questions);
        }
    }

    /// Who waits for each hop: its index and interface, and the connections.
    pub fn each_waiting(&self) -> impl Iterator<Item = (u32, InterfaceId, &Waiters)> {
        (0..).zip(&self.list).map(|(i, n)| (i, n.interface, &n.waiting))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// How many are found by interface and address.
    pub fn known(&self) -> usize {
        self.map.len()
    }

    /// The index of a hop that is known.
    pub fn find(&self, interface: InterfaceId, addr: Addr) -> Option<u32> {
        self.map.get(&(interface, addr)).copied()
    }

    /// Hop `i`.
    pub fn at(&self, i: u32) -> Option<(InterfaceId, Addr)> {
        self.list.get(i as usize).map(|n| (n.interface, n.addr))
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    /// Asks again, gives up (RFC 4861 7.3.3; RFC 1122 2.3.2.2).
    pub fn expire(&mut self, now: Instant) {
        if now < self.next {
            return;
        }
        let rerouted = core::mem::take(&mut self.rerouted);
        let mut next = Instant::FAR;
        for (hop, n) in (0..).zip(&mut self.list) {
            if rerouted {
                self.resolved.extend(waiters(n.waiting.take(), hop));
            }
            let (state, unicast) = match n.state {
                Known::Incomplete { tries, next } if next <= now && tries >= TRIES => {
                    n.state = Known::Failed { until: now + HOLD_DOWN };
                    let waiting = n.waiting.take();
                    self.lost.push(Lost { interface: n.interface, addr: n.addr, hop, waiting });
                    continue;
                }
                Known::Incomplete { tries, next } if next <= now => {
                    (Known::Incomplete { tries: tries + 1, next: now + RETRANS }, None)
                }
                Known::Delay { until } if until <= now => (Known::Probe { tries: 1, next: now + RETRANS }, Some(n.mac)),
                // RFC 7048 3: the hop may have another hardware address now, so everyone is asked.
                Known::Probe { tries, next } if next <= now && tries >= TRIES => {
                    (Known::Incomplete { tries: 1, next: now + RETRANS }, None)
                }
                Known::Probe { tries, next } if next <= now => {
                    (Known::Probe { tries: tries + 1, next: now + RETRANS }, Some(n.mac))
                }
                Known::Incomplete { next: at, .. } | Known::Probe { next: at, .. } | Known::Delay { until: at } => {
                    next = next.min(at);
                    continue;
                }
                Known::Reachable { .. }
                | Known::Unused { .. }
                | Known::NoRoom { .. }
                | Known::Stale
                | Known::Failed { .. } => continue,
            };
            n.state = state;
            next = next.min(now + RETRANS);
            self.questions.push(Question { interface: n.interface, addr: n.addr, unicast });
        }
        self.next = next;
    }
}

fn one_host(mac: MacAddr) -> bool {
    !mac.is_multicast() && mac != MacAddr([0; 6])
}

#[cfg(test)]
mod tests;
