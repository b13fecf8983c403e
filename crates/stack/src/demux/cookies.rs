//! SYN cookies (RFC 4987 3.6): an ISN that vouches for itself, so that a handshake needs no memory at all.
//!
//! Bernstein's layout as Linux has it: the cookie is a keyed hash of the tuple, plus the peer's ISN so that ours rises with
//! it, plus a minute counter in the top byte, plus a second hash, of the minute too, that hides the index of the segment
//! size. A guess succeeds once in 2^29 tries.

use core::hash::Hasher;

use siphasher::sip::SipHasher24;
use wire::{Instant, SeqNum};

use crate::FlowKey;

/// Segment sizes that an index stands for: IPv4 and IPv6.
const SIZES: [[u16; 4]; 2] = [[536, 1300, 1440, 1460], [1220, 1420, 1440, 8940]];
/// Minutes that a cookie lives, the present one included.
const MINUTES: u32 = 2;
/// A cookie lives no longer.
const LIFE_US: u64 = MINUTES as u64 * 60_000_000;
/// After this long without a cookie sent, an ACK cannot carry one.
const MEMORY_US: u64 = LIFE_US + 60_000_000;

pub(crate) struct Cookies {
    hasher: SipHasher24,
    /// When the last one went out.
    last: Option<Instant>,
}

impl Cookies {
    pub fn new(secret: [u8; 16]) -> Cookies {
        let mut key = secret;
        key.rotate_left(11);
        key.iter_mut().for_each(|b| *b ^= 0x5c);
        Cookies { hasher: SipHasher24::new_with_key(&key), last: None }
    }

    fn hash(&self, key: &FlowKey, minute: u32, which: u64) -> u32 {
        let mut h = self.hasher;
        for w in key.local.as_words().into_iter().chain(key.remote.as_words()) {
            h.write_u64(w);
        }
        h.write_u32((key.local_port as u32) << 16 | key.remote_port as u32);
        h.write_u32(minute);
        // Who is on one link gets no cookie for another.
        h.write_u64(which | (key.interface.0 as u64) << 40);
        h.finish() as u32
    }

    /// The ISN that carries the largest size in the table that `mss` allows; that size.
    pub fn make(&mut self, now: Instant, key: &FlowKey, irs: SeqNum, mss: u16) -> (SeqNum, u16) {
        self.last = Some(now);
        let sizes = &SIZES[!key.remote.is_v4() as usize];
        let index = sizes.iter().rposition(|size| *size <= mss).unwrap_or(0);
        let minute = minute(now);
        let hidden = self.hash(key, minute, hiding(irs)).wrapping_add(index as u32) & 0xff_ffff;
        let cookie = self.hash(key, 0, 0).wrapping_add(irs.0).wrapping_add(minute << 24).wrapping_add(hidden);
        (SeqNum(cookie), sizes[index])
    }

    /// Whether an ACK may carry a cookie at all.
    pub fn expected(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.micros_since(last) < MEMORY_US)
    }

    /// A peer whose cookie was turned away at `since` may still be let in by it.
    pub fn returns(since: Instant, now: Instant) -> bool {
        now.micros_since(since) < LIFE_US
    }

    /// The segment size in a cookie that is ours and young enough.
    pub fn check(&self, now: Instant, key: &FlowKey, irs: SeqNum, cookie: SeqNum) -> Option<u16> {
        let rest = cookie.0.wrapping_sub(self.hash(key, 0, 0)).wrapping_sub(irs.0);
        let minute = minute(now);
        let age = minute.wrapping_sub(rest >> 24) & 0xff;
        if age >= MINUTES {
            return None;
        }
        let hidden = self.hash(key, minute.wrapping_sub(age), hiding(irs));
        let index = rest.wrapping_sub(hidden) & 0xff_ffff;
        SIZES[!key.remote.is_v4() as usize].get(index as usize).copied()
    }
}

/// What the second hash takes in beside tuple and minute. Without the peer's ISN its neighbours would do too, and a later
/// segment than the first would open a stream that lacks its first bytes.
fn hiding(irs: SeqNum) -> u64 {
    1 << 32 | irs.0 as u64
}

fn minute(now: Instant) -> u32 {
    (now.micros() / 60_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InterfaceId;
    use wire::Addr;

    fn key(port: u16) -> FlowKey {
        let (local, remote) = (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]));
        FlowKey { interface: InterfaceId(0), local, remote, local_port: 80, remote_port: port }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_cookie_comes_back_within_its_time() {
        let mut c = Cookies::new([7; 16]);
        assert!(!c.expected(at(100)));
        for (port, mss, kept) in [(1, 9000, 1460), (2, 1459, 1440), (3, 1310, 1300), (4, 536, 536), (5, 100, 536)] {
            for start in [0, 59, 61, 256 * 60 - 1] {
                let irs = SeqNum(port as u32 * 0x1234_5678);
                let (isn, size) = c.make(at(start), &key(port), irs, mss);
                assert_eq!(size, kept);
                assert_eq!(c.check(at(start), &key(port), irs, isn), Some(kept));
                assert_eq!(c.check(at(start + 60), &key(port), irs, isn), Some(kept));
                assert_eq!(c.check(at(start + 121), &key(port), irs, isn), None);
                assert!(c.expected(at(start + 121)) && !c.expected(at(start + 181)));
            }
        }
    }

    #[test]
    fn nothing_else_is_a_cookie() {
        let mut c = Cookies::new([7; 16]);
        let (isn, _) = c.make(at(500), &key(1), SeqNum(1), 1460);
        assert_eq!(c.check(at(500), &key(2), SeqNum(1), isn), None);
        assert_eq!(c.check(at(500), &key(1), SeqNum(2), isn), None);
        let elsewhere = FlowKey { interface: InterfaceId(1), ..key(1) };
        assert_eq!(c.check(at(500), &elsewhere, SeqNum(1), isn), None);
        assert_eq!(Cookies::new([8; 16]).check(at(500), &key(1), SeqNum(1), isn), None);
        // A guess has one chance in 2^29: two minutes of 256, four indices of 2^24.
        let hits = (0..1 << 20).filter(|n: &u32| {
            let guess = SeqNum(n.wrapping_mul(0x9e37_79b1));
            c.check(at(500), &key(1), SeqNum(1), guess).is_some()
        });
        assert!(hits.count() <= 1);
    }

    #[test]
    fn cookies_of_one_tuple_rise_with_the_peers_number() {
        let mut c = Cookies::new([7; 16]);
        let (a, _) = c.make(at(500), &key(1), SeqNum(1000), 1460);
        let (b, _) = c.make(at(500), &key(1), SeqNum(1000 + (1 << 30)), 1460);
        let rise = b.since(a);
        assert!((1 << 30) - (1 << 24) < rise && rise < (1 << 30) + (1 << 24), "{rise}");
    }

    #[test]
    fn ipv6_has_sizes_of_its_own() {
        let mut c = Cookies::new([7; 16]);
        let v6 = |n| Addr::from_v6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]);
        let interface = InterfaceId(0);
        let key = FlowKey { interface, local: v6(1), remote: v6(2), local_port: 80, remote_port: 9 };
        let (isn, size) = c.make(at(500), &key, SeqNum(1), 9000);
        assert_eq!((size, c.check(at(501), &key, SeqNum(1), isn)), (8940, Some(8940)));
    }
}
