//! Which of our addresses an active open leaves from, where it does not say: the best one (RFC 6724) as long as it has ports
//! towards the remote end, then the others in turn.

use foldhash::HashMap;
use wire::{Addr, Instant};

use crate::InterfaceId;
use crate::engine::Stack;
use crate::flows::FlowKey;
use crate::jobs::Chosen;

/// Remote ends remembered at most; then all are forgotten.
const REMEMBERED: usize = 1024;
/// TIME-WAIT tuples may be used again when they are a second old, which nothing tells.
const AGE_US: u64 = 1_000_000;

/// Remote ends towards which the best address has run out of ports.
#[derive(Default)]
pub(crate) struct Sources {
    by_remote: HashMap<(Addr, u16), Found>,
}

/// How the last search ended.
#[derive(Clone, Copy)]
enum Found {
    /// This address had one.
    At(Addr),
    /// None had: until so many connections have ended, or this time.
    Nowhere { ended: u64, until: Instant },
}

impl Stack {
    /// Address and port of an active open to `key`'s remote end; `key.local` is the address to try first, and the only one
    /// unless `any`.
    pub(crate) fn choose_source(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        key: FlowKey,
        any: bool,
    ) -> Option<Chosen> {
        if !any {
            return self.choose_port(now, key);
        }
        let to = (key.remote, key.remote_port);
        let ended = self.counters.closed + self.counters.time_waits - self.time_waits.len() as u64;
        let first = match self.sources.by_remote.get(&to) {
            None => key.local,
            Some(Found::At(addr)) => *addr,
            Some(Found::Nowhere { ended: then, until }) if *then == ended && now < *until => return None,
            Some(Found::Nowhere { .. }) => key.local,
        };
        if let Some(chosen) = self.choose_port(now, FlowKey { local: first, ..key }) {
            return Some(chosen);
        }
        // Each address is searched once in a round, so a search that ends is paid for by all the ports that it found.
        let all = self.interfaces[interface.index()].sources_for(key.remote);
        let start = all.iter().position(|a| *a == first).map_or(0, |at| at + 1);
        let others = all.iter().cycle().skip(start).take(all.len()).filter(|a| **a != first);
        let mut found = None;
        for addr in others {
            found = self.choose_port(now, FlowKey { local: *addr, ..key });
            if found.is_some() {
                break;
            }
        }
        let by_remote = &mut self.sources.by_remote;
        if by_remote.len() >= REMEMBERED {
            by_remote.clear();
        }
        let memory = match &found {
            Some(chosen) => Found::At(chosen.key.local),
            None => Found::Nowhere { ended, until: now.plus_micros(AGE_US) },
        };
        by_remote.insert(to, memory);
        found
    }
}
