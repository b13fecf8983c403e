//! What is known of paths, each by one interface: lowered MTUs (RFC 1191, RFC 8201), bounded and forgotten after ten minutes.

use core::time::Duration;

use foldhash::HashMap;
use wire::{Addr, Instant};

use crate::InterfaceId;

const LIMIT: usize = 4096;
const LIFETIME: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(crate) struct PathMtus {
    map: HashMap<(InterfaceId, Addr), (u16, Instant)>,
}

impl PathMtus {
    pub fn lower(&mut self, now: Instant, to: (InterfaceId, Addr), mtu: u16) {
        if self.map.len() >= LIMIT {
            self.map.retain(|_, (_, until)| *until > now);
            if self.map.len() >= LIMIT {
                return;
            }
        }
        let entry = self.map.entry(to).or_insert((mtu, now + LIFETIME));
        *entry = (entry.0.min(mtu), now + LIFETIME);
    }

    /// Whether nothing is known of any.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn get(&self, now: Instant, to: (InterfaceId, Addr)) -> Option<u16> {
        self.map.get(&to).filter(|(_, until)| *until > now).map(|(mtu, _)| *mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_is_kept_for_a_while_and_of_so_many_paths() {
        let at = |s: u64| Instant::from_micros(s * 1_000_000);
        let to = |n: usize| (InterfaceId(n as u8 & 1), Addr::from_v4((n as u32).to_be_bytes()));
        let mut paths = PathMtus::default();
        assert!(paths.is_empty());
        for n in 0..LIMIT {
            paths.lower(at(n as u64 & 1), to(n), 1400);
        }
        assert_eq!((paths.map.len(), paths.is_empty()), (LIMIT, false));
        // The table is full of what still holds.
        paths.lower(at(1), to(LIMIT), 1300);
        assert_eq!((paths.map.len(), paths.get(at(1), to(LIMIT))), (LIMIT, None));
        // To each its own, until ten minutes are over; and by its own interface.
        assert_eq!([599, 600, 601].map(|s| paths.get(at(s), to(0))), [Some(1400), None, None]);
        assert_eq!([600, 601].map(|s| paths.get(at(s), to(1))), [Some(1400), None]);
        assert_eq!(paths.get(at(1), (InterfaceId(1), to(0).1)), None);
        // What holds no more gives way: half of it.
        paths.lower(at(600), to(LIMIT), 1300);
        assert_eq!((paths.map.len(), paths.get(at(600), to(LIMIT))), (LIMIT / 2 + 1, Some(1300)));
        // The lowest of what was said, and from the last word on.
        paths.lower(at(700), to(LIMIT), 1350);
        assert_eq!(paths.get(at(1299), to(LIMIT)), Some(1300));
        paths.lower(at(1299), to(LIMIT), 1280);
        assert_eq!([1300, 1898, 1899].map(|s| paths.get(at(s), to(LIMIT))), [Some(1280), Some(1280), None]);
    }
}
