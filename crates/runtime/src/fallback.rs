//! The global fallback: a connection whose lane has no listener for it goes to a lane that has one (Fastsocket 3.2.1,
//! DESIGN.md section 6). Lanes tell a directory of their listeners when these change, and look at it when it has changed;
//! as long as all lanes listen alike, a burst costs one look at a flag.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use protocol::Endpoint;
use stack::{InterfaceId, Stack, Tuple};
use wire::Addr;

/// Connections that are remembered to live elsewhere. A power of two; each takes eight bytes, once there is any.
const REMEMBERED: usize = 1 << 16;
/// Places of a connection: the latest of those that share them are remembered.
const WAYS: usize = 4;

type Listens = Vec<(Endpoint, bool)>;

/// Where every lane of an engine listens.
#[repr(align(128))]
pub(crate) struct Directory {
    /// Counts changes.
    version: AtomicU64,
    lanes: Mutex<Vec<Listens>>,
}

impl Directory {
    pub fn new(lanes: usize) -> Arc<Directory> {
        Arc::new(Directory { version: AtomicU64::new(0), lanes: Mutex::new(vec![Listens::new(); lanes]) })
    }
}

/// One lane's view.
pub(crate) struct Fallback {
    directory: Arc<Directory>,
    index: u16,
    /// What of ours the directory knows.
    told: u64,
    /// What of the others' we know.
    heard: u64,
    /// Lanes that listen where we do not, by port: address, IPv6 alone, lane.
    others: HashMap<u16, Vec<(Addr, bool, u16)>>,
    /// Connections that began elsewhere: tag and lane, by hash, the latest of each set first. Empty until there is one.
    remembered: Vec<[u64; WAYS]>,
}

/// Whether a listener at `at` takes what comes to `to`.
fn covers((at, v6_only): (Addr, bool), to: Addr) -> bool {
    at == to
        || match at.to_ip() {
            IpAddr::V4(ip) => ip.is_unspecified() && to.is_v4(),
            IpAddr::V6(ip) => ip.is_unspecified() && (!to.is_v4() || !v6_only),
        }
}

impl Fallback {
    pub fn new(directory: Arc<Directory>, index: u16) -> Fallback {
        Fallback { directory, index, told: 0, heard: 0, others: HashMap::new(), remembered: Vec::new() }
    }

    /// Tells of our listeners and hears of the others', where anything has changed: once a turn.
    #[inline]
    pub fn follow(&mut self, stack: &Stack) {
        let changes = stack.listener_changes();
        if changes != self.told || self.directory.version.load(Ordering::Acquire) != self.heard {
            self.exchange(stack, changes);
        }
    }

    #[cold]
    fn exchange(&mut self, stack: &Stack, changes: u64) {
        let mut lanes = self.directory.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes != self.told {
            self.told = changes;
            let ours = &mut lanes[self.index as usize];
            ours.clear();
            stack.each_listener(|local, v6_only| ours.push((local, v6_only)));
            // Under the lock: nobody misses a change.
            self.directory.version.fetch_add(1, Ordering::Release);
        }
        self.heard = self.directory.version.load(Ordering::Relaxed);
        self.others.clear();
        let ours = &lanes[self.index as usize];
        for (lane, listens) in lanes.iter().enumerate().filter(|(lane, _)| *lane != self.index as usize) {
            for (local, v6_only) in listens.iter().filter(|theirs| !ours.contains(theirs)) {
                self.others.entry(local.port).or_default().push((local.addr, *v6_only, lane as u16));
            }
        }
    }

    /// Whether [`Fallback::lane_of`] need be asked.
    #[inline]
    pub fn is_needed(&self) -> bool {
        !self.others.is_empty() || !self.remembered.is_empty()
    }

    /// The lane that takes what came to this one and has no place here; `None` where it is to stay.
    pub fn lane_of(&mut self, stack: &Stack, interface: InterfaceId, frame: &[u8]) -> Option<u16> {
        let tuple = stack::tuple_of(interface, frame)?;
        if stack.knows(&tuple) {
            return None;
        }
        let hash = stack.tuple_hash(&tuple.key);
        let to = Endpoint { addr: tuple.key.local, port: tuple.key.local_port };
        if let Some(lane) = self.recall(hash)
            && (!tuple.opens || self.listening(to).any(|l| l == lane))
        {
            return Some(lane);
        }
        if stack.listening(to) {
            return None;
        }
        let count = self.listening(to).count();
        let lane = self.listening(to).nth(stack.choose(&tuple.key, count))?;
        self.remember(&tuple, hash, lane);
        Some(lane)
    }

    fn listening(&self, to: Endpoint) -> impl Iterator<Item = u16> {
        let at_port = self.others.get(&to.port).map_or(&[][..], Vec::as_slice);
        at_port.iter().filter(move |(at, v6_only, _)| covers((*at, *v6_only), to.addr)).map(|(_, _, lane)| *lane)
    }

    /// Only what opens a connection makes an entry. One that later ones have driven out is as a rule found again: the hash names
    /// the same lane as long as the same lanes listen.
    fn remember(&mut self, tuple: &Tuple, hash: u32, lane: u16) {
        if tuple.opens {
            self.enter(hash, lane);
        }
    }

    fn enter(&mut self, hash: u32, lane: u16) {
        if self.remembered.is_empty() {
            self.remembered = vec![[0; WAYS]; REMEMBERED / WAYS];
        }
        let set = &mut self.remembered[hash as usize % (REMEMBERED / WAYS)];
        // What is there of the same hash, a free place, or the oldest makes room.
        let room = set.iter().position(|entry| *entry == 0 || (*entry >> 32) as u32 == hash).unwrap_or(WAYS - 1);
        set.copy_within(..room, 1);
        set[0] = (hash as u64) << 32 | (lane as u64 + 1);
    }

    fn recall(&self, hash: u32) -> Option<u16> {
        let set = self.remembered.get(hash as usize % (REMEMBERED / WAYS))?;
        let entry = *set.iter().find(|entry| **entry != 0 && (**entry >> 32) as u32 == hash)?;
        Some((entry as u32 - 1) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_cover_as_listeners_do() {
        let a = |s: &str| Addr::from(s.parse::<IpAddr>().unwrap());
        let (v4, v6) = (a("10.0.0.1"), a("fd00::1"));
        assert!(covers((v4, false), v4) && !covers((v4, false), a("10.0.0.2")));
        assert!(covers((a("0.0.0.0"), false), v4) && !covers((a("0.0.0.0"), false), v6));
        assert!(covers((a("::"), false), v4) && covers((a("::"), false), v6));
        assert!(!covers((a("::"), true), v4) && covers((a("::"), true), v6));
    }
    /// The latest of a set are remembered, each with its lane, and again with another.
    #[test]
    fn connections_of_one_set_are_remembered() {
        const SETS: u32 = (REMEMBERED / WAYS) as u32;
        let mut one = Fallback::new(Directory::new(8), 0);
        assert_eq!(one.recall(7), None);
        let hashes: Vec<u32> = (0..=WAYS as u32).map(|n| 7 + n * SETS).collect();
        for (lane, hash) in hashes.iter().enumerate().take(WAYS) {
            one.enter(*hash, lane as u16);
        }
        let found = |one: &Fallback| -> Vec<_> { hashes.iter().map(|hash| one.recall(*hash)).collect() };
        assert_eq!(found(&one), [Some(0), Some(1), Some(2), Some(3), None]);
        one.enter(hashes[1], 6);
        assert_eq!(found(&one), [Some(0), Some(6), Some(2), Some(3), None]);
        one.enter(hashes[4], 4);
        assert_eq!(found(&one), [None, Some(6), Some(2), Some(3), Some(4)], "the oldest makes room");
    }
}
