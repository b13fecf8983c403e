//! What all connections of a stack together may do.

use wire::Instant;

/// Shared limits of one stack.
#[derive(Clone, Debug)]
pub struct Limits {
    seed: u32,
    /// Challenge ACKs a second at most, about; 0: no limit.
    per_second: u32,
    second: u32,
    left: u32,
    /// Segments by which a window's right edge may be ahead of what was received; `u32::MAX`: no limit.
    pub window: u32,
}

impl Limits {
    /// `challenges` challenge ACKs a second, give or take a random half drawn from `seed`: an exact number would tell an
    /// attacker who counts them about other connections (CVE-2016-5696).
    pub fn new(seed: u32, challenges: u32) -> Limits {
        Limits { seed, per_second: challenges, second: u32::MAX, left: 0, window: u32::MAX }
    }

    /// Whether another challenge ACK may go (RFC 5961 7).
    pub fn challenge(&mut self, now: Instant) -> bool {
        if self.per_second == 0 {
            return true;
        }
        let second = (now.millis() / 1000) as u32;
        if self.second != second {
            self.second = second;
            let mut x = self.seed ^ second.wrapping_mul(0x9e37_79b9);
            x = (x ^ (x >> 15)).wrapping_mul(0x85eb_ca6b);
            x ^= x >> 13;
            self.left = self.per_second.div_ceil(2).saturating_add(x % self.per_second);
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::new(0, 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_gives_about_as_many_as_were_asked_for() {
        let mut l = Limits::new(7, 100);
        let mut counts = Vec::new();
        for s in 0..50u64 {
            counts.push((0..1000).filter(|_| l.challenge(Instant::from_micros(s * 1_000_000))).count());
        }
        assert!(counts.iter().all(|n| (50..150).contains(n)), "{counts:?}");
        assert!(counts.windows(2).any(|w| w[0] != w[1]));
        assert!(Limits::new(7, u32::MAX).challenge(Instant::ZERO) && Limits::new(7, 1).challenge(Instant::ZERO));
        let mut none = Limits::new(7, 0);
        assert!((0..100_000).all(|_| none.challenge(Instant::ZERO)));
    }
}
