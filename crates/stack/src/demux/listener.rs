//! Listeners: one table a lane (Fastsocket's local listen table), exact address first, then the wildcards.

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use wire::{Addr, Instant};

use crate::FlowKey;
use crate::InterfaceId;
use crate::conns::options::Options;
use crate::keyed::Keyed;
use crate::names::SeatId;
use crate::schedule::queues::Entry;
use crate::slab::Slab;
use protocol::{ConnOption, Endpoint};

pub(crate) struct Listener {
    /// Who hears of its connections.
    pub seat: SeatId,
    pub local: Endpoint,
    pub backlog: u32,
    pub v6_only: bool,
    pub reuse_port: bool,
    pub receive_buffer: u32,
    /// What accepted connections inherit.
    pub options: Options,
    /// Handshakes under way.
    pub embryos: u32,
    /// Established and not yet taken by the application.
    pub ready: u32,
    /// When a cookie that came back found the accept queue full, last.
    pub overflowed: Option<Instant>,
    /// Of a client in another process: those that it was told of, in order.
    pub offered: VecDeque<Entry>,
}

pub(crate) struct Listeners {
    slab: Slab<Listener>,
    /// More than one id where listeners share an address (SO_REUSEPORT).
    by_local: HashMap<(Addr, u16), Vec<u32>>,
    /// Insertions and removals.
    pub changes: u64,
    /// Where there were any since this was taken, and whether of a wildcard for IPv6 alone.
    pub changed: HashSet<(Endpoint, bool)>,
    chooser: Keyed,
}

impl Listener {
    /// Traffic class (without the ECN bits) and hop limit of its handshakes; 0 is the default.
    pub fn class_and_hops(&self) -> (u8, u8) {
        if self.options.is_empty() {
            return (0, 0);
        }
        let option = |o| self.options.get(o).unwrap_or(0) as u8;
        (option(ConnOption::TrafficClass) & !3, option(ConnOption::HopLimit))
    }
}

impl Listeners {
    pub fn new(max: u32, secret: [u8; 16]) -> Listeners {
        let mut key = secret;
        key.rotate_left(3);
        Listeners {
            slab: Slab::new(max),
            by_local: HashMap::default(),
            changes: 0,
            changed: HashSet::default(),
            chooser: Keyed::of(key),
        }
    }

    /// One of so many for a connection, evenly and always the same. The peer may see which: the flow table's hash would not do.
    pub fn choose(&self, key: &FlowKey, count: usize) -> usize {
        self.chooser.tuple(key) as usize % count.max(1)
    }

    pub fn each(&self, f: impl FnMut(&Listener)) {
        self.by_local.values().flatten().filter_map(|id| self.slab.get(*id)).for_each(f);
    }

    /// All, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Listener)> {
        self.slab.iter_ids().filter_map(|id| Some((id, self.slab.get(id)?)))
    }

    pub fn get(&mut self, id: u32) -> Option<&mut Listener> {
        self.slab.get_mut(id)
    }

    /// The numbers of all.
    pub fn ids(&self) -> Vec<u32> {
        self.slab.iter_ids().collect()
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether another listener bars `local`; with SO_REUSEPORT on both it does not.
    pub fn conflicts(&self, local: Endpoint, v6_only: bool, reuse_port: bool) -> bool {
        let bars = |addr: Addr| {
            self.by_local.get(&(addr, local.port)).is_some_and(|ids| {
                ids.iter().filter_map(|id| self.slab.get(*id)).any(|l| {
                    let both = l.reuse_port && reuse_port;
                    let families = local.addr.is_v4() == l.local.addr.is_v4()
                        || (l.local.addr.is_unspecified() && !l.local.addr.is_v4() && !l.v6_only)
                        || (local.addr.is_unspecified() && !local.addr.is_v4() && !v6_only);
                    !both && families
                })
            })
        };
        if local.addr.is_unspecified() {
            // A wildcard meets every address of the port.
            let ports = self.by_local.keys().filter(|(_, port)| *port == local.port);
            return ports.map(|(addr, _)| *addr).any(bars);
        }
        bars(local.addr) || bars(Addr::UNSPECIFIED_V4) || bars(Addr::UNSPECIFIED_V6)
    }

    pub fn insert(&mut self, listener: Listener) -> Result<u32, Listener> {
        let key = (listener.local.addr, listener.local.port);
        let change = (listener.local, listener.v6_only);
        let id = self.slab.insert(listener)?;
        self.changes += 1;
        self.changed.insert(change);
        self.by_local.entry(key).or_default().push(id);
        Ok(id)
    }

    pub fn remove(&mut self, id: u32) -> Option<Listener> {
        let listener = self.slab.remove(id)?;
        self.changes += 1;
        self.changed.insert((listener.local, listener.v6_only));
        let key = (listener.local.addr, listener.local.port);
        if let Some(ids) = self.by_local.get_mut(&key) {
            ids.retain(|i| *i != id);
            if ids.is_empty() {
                self.by_local.remove(&key);
            }
        }
        Some(listener)
    }

    /// Whether there is a listener at just this address.
    pub fn is_at(&self, local: Endpoint, v6_only: bool) -> bool {
        let ids = self.by_local.get(&(local.addr, local.port)).into_iter().flatten();
        ids.filter_map(|id| self.slab.get(*id)).any(|l| l.v6_only == v6_only)
    }

    /// Whether anyone listens at `local`.
    pub fn covers(&self, local: Endpoint) -> bool {
        let (addr, local_port) = (local.addr, local.port);
        let key = FlowKey { interface: InterfaceId(0), local: addr, remote: addr, local_port, remote_port: 0 };
        self.find(&key).is_some()
    }

    /// The listener for a SYN of `key`, or one of several.
    pub fn find(&self, key: &FlowKey) -> Option<u32> {
        let (addr, port) = (key.local, key.local_port);
        let pick = |ids: &[u32]| match *ids {
            [id] => id,
            _ => ids[self.choose(key, ids.len())],
        };
        if let Some(ids) = self.by_local.get(&(addr, port)) {
            return Some(pick(ids));
        }
        if addr.is_v4()
            && let Some(ids) = self.by_local.get(&(Addr::UNSPECIFIED_V4, port))
        {
            return Some(pick(ids));
        }
        let ids = self.by_local.get(&(Addr::UNSPECIFIED_V6, port))?;
        if !addr.is_v4() {
            return Some(pick(ids));
        }
        // Of those that share the place some may take IPv6 alone.
        let both = || ids.iter().filter(|id| self.slab.get(**id).is_some_and(|l| !l.v6_only));
        let of = match both().count() {
            0 | 1 => 0,
            count => self.choose(key, count),
        };
        both().nth(of).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listener(local: Endpoint, v6_only: bool, reuse_port: bool) -> Listener {
        let options = Options::default();
        Listener {
            seat: SeatId(0),
            local,
            backlog: 1,
            v6_only,
            reuse_port,
            receive_buffer: 0,
            options,
            embryos: 0,
            ready: 0,
            overflowed: None,
            offered: VecDeque::new(),
        }
    }

    /// Whether `l` takes connections to `addr`, which is no wildcard.
    fn takes(l: &Listener, addr: Addr) -> bool {
        l.local.addr == addr
            || l.local.addr == Addr::UNSPECIFIED_V4 && addr.is_v4()
            || l.local.addr == Addr::UNSPECIFIED_V6 && !(addr.is_v4() && l.v6_only)
    }

    proptest! {
        /// Against a plain list: two bar each other where both would take some connection; a connection goes to who names its
        /// address, then to a wildcard of its family, then to one of both.
        #[test]
        fn who_listens_is_found(wishes in proptest::collection::vec((0usize..5, 80u16..82, any::<bool>(), any::<bool>(), any::<bool>()), 1..12)) {
            let v4 = |n| Addr::from_v4([10, 0, 0, n]);
            let v6 = |n| Addr::from_v6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]);
            let places = [Addr::UNSPECIFIED_V4, Addr::UNSPECIFIED_V6, v4(1), v4(2), v6(1)];
            let all = [v4(1), v4(2), v4(3), v6(1), v6(2)];
            let mut listeners = Listeners::new(100, [7; 16]);
            let mut model: Vec<(u32, Listener)> = Vec::new();
            let mut changes = 0;
            for (place, port, v6_only, reuse_port, leaves) in wishes {
                let local = Endpoint { addr: places[place], port };
                let new = listener(local, v6_only, reuse_port);
                let bars = |old: &Listener| {
                    let both = all.iter().any(|addr| takes(old, *addr) && takes(&new, *addr));
                    old.local.port == port && both && !(old.reuse_port && reuse_port)
                };
                let barred = model.iter().any(|(_, old)| bars(old));
                prop_assert_eq!(listeners.conflicts(local, v6_only, reuse_port), barred, "{:?}", local);
                if !barred {
                    let id = listeners.insert(listener(local, v6_only, reuse_port)).ok().expect("there is room");
                    model.push((id, new));
                    changes += 1;
                }
                if leaves && !model.is_empty() {
                    let (id, _) = model.swap_remove(0);
                    prop_assert!(listeners.remove(id).is_some() && listeners.remove(id).is_none());
                    changes += 1;
                }
                prop_assert_eq!((listeners.len(), listeners.ids().len(), listeners.changes), (model.len(), model.len(), changes));
                for (addr, port) in all.iter().flat_map(|addr| [(*addr, 80), (*addr, 81)]) {
                    let rank = |l: &Listener| match l.local.addr {
                        Addr::UNSPECIFIED_V6 => 2,
                        Addr::UNSPECIFIED_V4 => 1,
                        _ => 0,
                    };
                    let fit = model.iter().filter(|(_, l)| l.local.port == port && takes(l, addr));
                    let best = fit.clone().map(|(_, l)| rank(l)).min();
                    let may: Vec<u32> = fit.filter(|(_, l)| Some(rank(l)) == best).map(|(id, _)| *id).collect();
                    prop_assert_eq!(listeners.covers(Endpoint { addr, port }), !may.is_empty());
                    for remote_port in 0..16 {
                        let key = FlowKey { interface: InterfaceId(0), local: addr, remote: addr, local_port: port, remote_port };
                        let found = listeners.find(&key);
                        prop_assert!(found.map_or(may.is_empty(), |id| may.contains(&id)), "{:?}: {:?} of {:?}", key, found, may);
                    }
                }
            }
        }
    }

    #[test]
    fn those_at_one_place_share_evenly() {
        let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 80 };
        let mut listeners = Listeners::new(100, [7; 16]);
        let ids = [(); 3].map(|()| listeners.insert(listener(local, false, true)).ok().expect("there is room"));
        let mut share = [0; 3];
        for remote_port in 0..3000 {
            let remote = Addr::from_v4([10, 0, 0, 9]);
            let key = FlowKey { interface: InterfaceId(0), local: remote, remote, local_port: 80, remote_port };
            let id = listeners.find(&key).expect("one of them");
            assert_eq!(listeners.find(&key), Some(id));
            share[ids.iter().position(|i| *i == id).expect("it is known")] += 1;
        }
        assert!(share.iter().all(|n| (850..1150).contains(n)), "{share:?}");
    }
}
