//! Listeners: one table a lane (Fastsocket's local listen table), exact address first, then the wildcards.

use foldhash::{HashMap, HashSet};
use wire::Addr;

use crate::InterfaceId;
use crate::channel::Endpoint;
use crate::flows::FlowKey;
use crate::keyed::Keyed;
use crate::options::Options;
use crate::slab::Slab;

pub(crate) struct Listener {
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
        let pick = |ids: &Vec<u32>| match ids[..] {
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
        let id = pick(ids);
        (!addr.is_v4() || !self.slab.get(id)?.v6_only).then_some(id)
    }
}
