//! Which of our addresses an active open leaves from, where it does not say: the best one (RFC 6724) as long as it has ports
//! towards the remote end, then the others in turn. And towards which remote ends an address has none: to find that out takes a
//! look at all of them, which is remembered until one is free again.

use foldhash::HashMap;
use wire::{Addr, Instant};

use crate::FlowKey;
use crate::InterfaceId;

/// Remote ends remembered at most; then all are forgotten.
pub(super) const REMEMBERED: usize = 1024;
/// TIME-WAIT tuples may be used again when they are a second old, which nothing tells.
const AGE_US: u64 = 1_000_000;
/// With more ports that are free again, the next one is looked for as usual.
const PLENTY: usize = 1024;

/// Where active opens find ports, and where they find none.
#[derive(Default)]
pub(crate) struct Sources {
    /// The address that had one towards a remote end, where it was not the best.
    pub(super) by_remote: HashMap<(InterfaceId, Addr, u16), Addr>,
    /// Address and remote end between which all ports are taken.
    spent: HashMap<(InterfaceId, Addr, Addr, u16), Spent>,
}

/// All ports were taken.
struct Spent {
    /// Those that are free again.
    freed: Vec<u16>,
    /// When all are looked at again.
    until: Instant,
}

/// What is known of the ports between an address and a remote end.
pub(crate) enum Known {
    /// Nothing: they are looked at.
    Nothing,
    /// This one is free again, as far as is known.
    Freed(u16),
    /// None is free.
    Spent,
}

impl Sources {
    fn of(key: &FlowKey) -> (InterfaceId, Addr, Addr, u16) {
        (key.interface, key.local, key.remote, key.remote_port)
    }

    /// Whether ports between any address and remote end were all taken.
    pub fn has_spent(&self) -> bool {
        !self.spent.is_empty()
    }

    /// What is known of the ports from `key.local` towards its remote end.
    pub fn known(&mut self, now: Instant, key: &FlowKey) -> Known {
        let Some(spent) = self.spent.get_mut(&Sources::of(key)) else { return Known::Nothing };
        match spent.freed.pop() {
            Some(port) => Known::Freed(port),
            None if now < spent.until => Known::Spent,
            None => Known::Nothing,
        }
    }

    /// All of them were looked at; whether one was free.
    pub fn looked(&mut self, now: Instant, key: &FlowKey, found: bool) {
        if found {
            self.spent.remove(&Sources::of(key));
            return;
        }
        if self.spent.len() >= REMEMBERED {
            self.spent.clear();
        }
        self.spent.insert(Sources::of(key), Spent { freed: Vec::new(), until: now.plus_micros(AGE_US) });
    }

    /// There are other ports now.
    #[cold]
    pub fn forget_spent(&mut self) {
        self.spent.clear();
    }

    /// A four-tuple is nobody's any more.
    #[inline]
    pub fn freed(&mut self, key: &FlowKey) {
        if !self.spent.is_empty() {
            self.remember_freed(key);
        }
    }

    #[cold]
    fn remember_freed(&mut self, key: &FlowKey) {
        let Some(spent) = self.spent.get_mut(&Sources::of(key)) else { return };
        spent.freed.push(key.local_port);
        if spent.freed.len() > PLENTY {
            self.spent.remove(&Sources::of(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One look at all ports is remembered for a second, or until one is free again; and nothing of another remote end.
    #[test]
    fn that_there_is_no_port_is_found_out_once() {
        let mut sources = Sources::default();
        let at = |us| Instant::ZERO.plus_micros(us);
        let key = |local_port, remote_port| FlowKey {
            interface: InterfaceId(0),
            local: Addr::from_v4([10, 0, 0, 1]),
            remote: Addr::from_v4([10, 0, 0, 2]),
            local_port,
            remote_port,
        };
        let port = |known| match known {
            Known::Freed(port) => Some(port),
            _ => None,
        };
        assert!(matches!(sources.known(at(0), &key(0, 80)), Known::Nothing));
        sources.freed(&key(7, 80));
        sources.looked(at(0), &key(0, 80), false);
        assert!(matches!(sources.known(at(AGE_US - 1), &key(0, 80)), Known::Spent));
        assert!(matches!(sources.known(at(1), &key(0, 81)), Known::Nothing));
        sources.freed(&key(7, 81));
        sources.freed(&key(8, 80));
        assert_eq!(port(sources.known(at(1), &key(0, 80))), Some(8));
        assert!(matches!(sources.known(at(1), &key(0, 80)), Known::Spent));
        // TIME-WAIT tuples may be used again by now.
        assert!(matches!(sources.known(at(AGE_US), &key(0, 80)), Known::Nothing));
        sources.looked(at(AGE_US), &key(0, 80), true);
        assert!(sources.spent.is_empty());
        // What is free in numbers is found as usual; and so are remote ends without number.
        sources.looked(at(0), &key(0, 80), false);
        (0..=PLENTY as u16).for_each(|port| sources.freed(&key(port, 80)));
        assert!(sources.spent.is_empty());
        (0..5000).for_each(|remote| sources.looked(at(0), &key(0, remote), false));
        assert!(sources.spent.len() <= REMEMBERED);
        sources.forget_spent();
        assert!(!sources.has_spent());
    }
}
