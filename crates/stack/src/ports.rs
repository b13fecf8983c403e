//! Ports for active opens: RFC 6056 3.3.4 (algorithm 4, double-hash), so that successive connections to one peer take
//! successive ports from an offset that nobody outside can guess.

use core::hash::Hasher;

use siphasher::sip::SipHasher13;
use wire::Addr;

const COUNTERS: usize = 256;

pub(crate) struct Ports {
    first: u16,
    count: u32,
    hasher: SipHasher13,
    counters: [u32; COUNTERS],
}

impl Ports {
    /// `range` is first and last.
    pub fn new(range: (u16, u16), secret: [u8; 16]) -> Ports {
        let mut key = secret;
        key.rotate_left(7);
        Ports {
            first: range.0,
            count: (range.1.max(range.0) - range.0) as u32 + 1,
            hasher: SipHasher13::new_with_key(&key),
            counters: [0; COUNTERS],
        }
    }

    /// The next port towards a remote end that `usable` accepts; `None` after one round without any.
    pub fn pick(
        &mut self,
        local: Addr,
        remote: Addr,
        remote_port: u16,
        mut usable: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let mut h = self.hasher;
        for w in local.as_words().into_iter().chain(remote.as_words()) {
            h.write_u64(w);
        }
        h.write_u16(remote_port);
        let hash = h.finish();
        let offset = hash as u32;
        let counter = &mut self.counters[(hash >> 32) as usize % COUNTERS];
        for _ in 0..self.count {
            let port = self.first + (offset.wrapping_add(*counter) % self.count) as u16;
            // The counter passes what is taken too, so that it is not tried again soon.
            *counter = counter.wrapping_add(1);
            if usable(port) {
                return Some(port);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_port_once_then_none_and_cheap_in_between() {
        let (a, b) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        let mut ports = Ports::new((50_000, 50_999), [3; 16]);
        let mut taken = HashSet::new();
        let mut tries = 0;
        for _ in 0..1000 {
            let port = ports.pick(a, b, 80, |p| {
                tries += 1;
                !taken.contains(&p)
            });
            assert!(taken.insert(port.unwrap()));
        }
        assert_eq!(tries, 1000);
        assert!(taken.iter().all(|p| (50_000..51_000).contains(p)));
        assert_eq!(ports.pick(a, b, 80, |p| !taken.contains(&p)), None);
        // Another peer starts elsewhere.
        let mut fresh = Ports::new((1024, 65_535), [3; 16]);
        assert_ne!(fresh.pick(a, b, 80, |_| true), fresh.pick(a, b, 81, |_| true).map(|p| p.wrapping_sub(1)));
    }
}
