//! A model of the kernel's table of neighbours (Linux `net/core/neighbour.c` with the defaults of `net.ipv4.neigh`), and the hosts of
//! a link that it asks.

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};
use std::io;

use ::io::impair::Random;
use ::io::netlink::{KernelNeighbor, Nud};
use io::Error;
use runtime::neighbors::Kernel;
use wire::MacAddr;

pub const LINK: u32 = 7;
/// Milliseconds of the model.
pub type Millis = u64;
const SECOND: Millis = 1000;
/// `base_reachable_time`; an entry's own is between half and one and a half of it.
const REACHABLE: Millis = 30 * SECOND;
pub const REACHABLE_MOST: Millis = REACHABLE * 3 / 2;
/// `delay_first_probe_time`, and the use that keeps an entry from becoming stale.
pub const DELAY: Millis = 5 * SECOND;
/// `ucast_solicit` and `mcast_solicit`, `retrans_time` apart.
const TRIES: u8 = 3;
pub const ASKED: Millis = TRIES as Millis * SECOND;
/// `locktime`: a second answer within it changes no hardware address.
const LOCK: Millis = SECOND;
/// `gc_stale_time`, and half of `base_reachable_time` between two sweeps.
const UNUSED: Millis = 60 * SECOND;
const SWEEP: Millis = REACHABLE / 2;
/// An entry that changed within it is not collected for another one (`neigh_forced_gc`).
const YOUNG: Millis = 5 * SECOND;
/// `gc_thresh1`: fewer are not swept.
pub const FEW: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Incomplete { tries: u8, next: Millis },
    Reachable { until: Millis },
    Stale,
    Delay { until: Millis },
    Probe { tries: u8, next: Millis },
    Failed,
    Permanent,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    mac: MacAddr,
    used: Millis,
    updated: Millis,
}

impl Entry {
    /// Its timer runs, and holds it.
    fn is_held(&self) -> bool {
        !matches!(self.state, State::Stale | State::Failed)
    }

    fn nud(&self) -> Nud {
        match self.state {
            State::Incomplete { .. } => Nud::Incomplete,
            State::Failed => Nud::Failed,
            State::Stale => Nud::Stale(self.mac),
            State::Permanent => Nud::Fixed(self.mac),
            State::Reachable { .. } | State::Delay { .. } | State::Probe { .. } => Nud::Confirmed(self.mac),
        }
    }
}

/// A host on the link.
#[derive(Clone, Debug)]
pub struct Host {
    /// Hardware addresses that answer, in their order: one, or the two of a pair of switches (MLAG).
    pub macs: Vec<MacAddr>,
    /// Answers no questions.
    pub silent: bool,
}

/// The table.
pub struct Table {
    pub now: Millis,
    /// `gc_thresh3`.
    limit: usize,
    entries: BTreeMap<IpAddr, Entry>,
    sweep: Millis,
    random: Random,
    pub hosts: BTreeMap<IpAddr, Host>,
    /// Notifications that nobody has read yet, oldest first.
    pub told: VecDeque<KernelNeighbor>,
    /// Uses told of by netlink (NTF_USE): when, and of whom.
    pub uses: Vec<(Millis, IpAddr)>,
    /// Uses for which there was no room.
    pub refused: u64,
}

impl Table {
    pub fn new(limit: usize, seed: u64) -> Table {
        Table {
            now: 0,
            limit,
            entries: BTreeMap::new(),
            sweep: SWEEP,
            random: Random::new(seed),
            hosts: BTreeMap::new(),
            told: VecDeque::new(),
            uses: Vec::new(),
            refused: 0,
        }
    }

    /// Entries that are not the administrator's.
    pub fn left(&self) -> usize {
        self.entries.values().filter(|e| e.state != State::Permanent).count()
    }

    /// Where the kernel itself would send.
    pub fn mac(&self, addr: IpAddr) -> Option<MacAddr> {
        match self.entries.get(&addr)?.nud() {
            Nud::Confirmed(mac) | Nud::Fixed(mac) | Nud::Stale(mac) => Some(mac),
            Nud::Incomplete | Nud::Failed => None,
        }
    }

    /// The administrator's word.
    pub fn is_permanent(&self, addr: IpAddr) -> bool {
        self.entries.get(&addr).is_some_and(|e| e.state == State::Permanent)
    }

    /// An answer to RTM_GETNEIGH.
    pub fn dump(&self) -> Vec<KernelNeighbor> {
        self.entries.iter().map(|(addr, e)| KernelNeighbor { link: LINK, addr: *addr, nud: e.nud() }).collect()
    }

    fn tell(&mut self, addr: IpAddr, nud: Nud) {
        self.told.push_back(KernelNeighbor { link: LINK, addr, nud });
    }

    /// Changes an entry and tells of it.
    fn change(&mut self, addr: IpAddr, change: impl FnOnce(&mut Entry)) {
        let now = self.now;
        let Some(e) = self.entries.get_mut(&addr) else { return };
        change(e);
        e.updated = now;
        let nud = e.nud();
        self.tell(addr, nud);
    }

    fn remove(&mut self, addr: IpAddr) {
        if self.entries.remove(&addr).is_some() {
            self.tell(addr, Nud::Failed);
        }
    }

    /// Room for another entry (`neigh_alloc`); permanent ones do not count.
    fn has_room(&mut self) -> bool {
        if self.left() >= self.limit {
            let old = |e: &Entry| !e.is_held() && (e.state == State::Failed || e.updated + YOUNG < self.now);
            let victims: Vec<IpAddr> = self.entries.iter().filter(|(_, e)| old(e)).map(|(a, _)| *a).collect();
            victims.into_iter().for_each(|a| self.remove(a));
        }
        self.left() < self.limit
    }

    /// A packet of the kernel's own, or NTF_USE (`neigh_event_send`). ENOBUFS where there is no room.
    pub fn send_to(&mut self, addr: IpAddr) -> io::Result<()> {
        if !self.entries.contains_key(&addr) {
            if !self.has_room() {
                self.refused += 1;
                // ENOBUFS of Linux.
                return Err(Error::from_raw_os_error(105));
            }
            let fresh = Entry { state: State::Failed, mac: MacAddr([0; 6]), used: self.now, updated: self.now };
            self.entries.insert(addr, fresh);
        }
        let now = self.now;
        let Some(e) = self.entries.get_mut(&addr) else { return Ok(()) };
        e.used = now;
        match e.state {
            State::Failed => {
                e.state = State::Incomplete { tries: 1, next: now + SECOND };
                e.updated = now;
                self.ask(addr, None);
            }
            // Nobody is told of these two.
            State::Stale => (e.state, e.updated) = (State::Delay { until: now + DELAY }, now),
            _ => {}
        }
        Ok(())
    }

    /// A question, and its answers at once; a known address is asked alone.
    fn ask(&mut self, addr: IpAddr, unicast: Option<MacAddr>) {
        let Some(host) = self.hosts.get(&addr).filter(|h| !h.silent) else { return };
        let macs: Vec<MacAddr> = host.macs.iter().copied().filter(|m| unicast.is_none_or(|u| u == *m)).collect();
        for mac in macs {
            self.hears(addr, mac, true);
        }
    }

    /// An answer to a question, or an announcement of a host (gratuitous ARP); entries are made for neither.
    pub fn hears(&mut self, addr: IpAddr, mac: MacAddr, answer: bool) {
        let Some(e) = self.entries.get(&addr) else { return };
        let known = !matches!(e.state, State::Incomplete { .. } | State::Failed);
        if e.state == State::Permanent || known && e.mac != mac && e.updated + LOCK >= self.now {
            return;
        }
        if known && e.mac == mac && !answer {
            return;
        }
        let reachable = REACHABLE / 2 + self.random.below(REACHABLE);
        let until = self.now + reachable;
        self.change(addr, |e| (e.mac, e.state) = (mac, if answer { State::Reachable { until } } else { State::Stale }));
    }

    /// `ip neigh replace … nud permanent`.
    pub fn pin(&mut self, addr: IpAddr, mac: MacAddr) {
        let fresh = Entry { state: State::Permanent, mac, used: self.now, updated: self.now };
        self.entries.insert(addr, fresh);
        self.tell(addr, Nud::Fixed(mac));
    }

    /// `ip neigh del`.
    pub fn delete(&mut self, addr: IpAddr) {
        self.remove(addr);
    }

    /// Lets time pass.
    pub fn work(&mut self, now: Millis) {
        self.now = now;
        let addrs: Vec<IpAddr> = self.entries.keys().copied().collect();
        for addr in addrs {
            let e = self.entries[&addr];
            match e.state {
                State::Reachable { until } if until <= now => match e.used + DELAY >= now {
                    true => self.delay(addr),
                    false => self.change(addr, |e| e.state = State::Stale),
                },
                State::Delay { until } if until <= now => {
                    self.change(addr, |e| e.state = State::Probe { tries: 1, next: now + SECOND });
                    self.ask(addr, Some(e.mac));
                }
                State::Incomplete { tries, next } | State::Probe { tries, next } if next <= now && tries >= TRIES => {
                    self.change(addr, |e| e.state = State::Failed);
                }
                State::Incomplete { tries, next } if next <= now => {
                    self.again(addr, State::Incomplete { tries: tries + 1, next: now + SECOND });
                    self.ask(addr, None);
                }
                State::Probe { tries, next } if next <= now => {
                    self.again(addr, State::Probe { tries: tries + 1, next: now + SECOND });
                    self.ask(addr, Some(e.mac));
                }
                _ => {}
            }
        }
        if self.sweep <= now {
            self.sweep = now + SWEEP;
            let unused = |e: &Entry| !e.is_held() && (e.state == State::Failed || e.used + UNUSED < now);
            let victims: Vec<IpAddr> = self.entries.iter().filter(|(_, e)| unused(e)).map(|(a, _)| *a).collect();
            if self.left() >= FEW {
                victims.into_iter().for_each(|a| self.remove(a));
            }
        }
    }

    fn delay(&mut self, addr: IpAddr) {
        self.again(addr, State::Delay { until: self.now + DELAY });
    }

    /// A state that nobody is told of.
    fn again(&mut self, addr: IpAddr, state: State) {
        if let Some(e) = self.entries.get_mut(&addr) {
            e.state = state;
        }
    }
}

impl Kernel for Table {
    fn use_neighbor(&mut self, link: u32, addr: IpAddr) -> io::Result<()> {
        assert_eq!(link, LINK);
        assert!(!self.is_permanent(addr), "{addr} is the administrator's, and a use would make it a learned one");
        self.uses.push((self.now, addr));
        self.send_to(addr)
    }

    fn neighbor(&mut self, link: u32, addr: IpAddr) -> io::Result<Option<KernelNeighbor>> {
        assert_eq!(link, LINK);
        Ok(self.entries.get(&addr).map(|e| KernelNeighbor { link, addr, nud: e.nud() }))
    }
}
