//! Limits over all connections of a stack.

use wire::Instant;

/// Challenge ACKs of all connections together (RFC 5961 7). The number in each second is drawn anew between half the limit
/// and one and a half, so that counting ours tells an attacker nothing about a third party's connection (CVE-2016-5696).
pub(crate) struct Challenges {
    limit: u32,
    second: u64,
    left: u32,
    seed: u64,
}

impl Challenges {
    pub fn new(limit: u32, seed: u64) -> Challenges {
        Challenges { limit, second: u64::MAX, left: 0, seed: seed | 1 }
    }

    /// Whether one may go now.
    pub fn take(&mut self, now: Instant) -> bool {
        let second = now.micros() / 1_000_000;
        if self.second != second {
            self.second = second;
            // xorshift64*: nobody outside sees its output.
            self.seed ^= self.seed >> 12;
            self.seed ^= self.seed << 25;
            self.seed ^= self.seed >> 27;
            let draw = (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32;
            self.left = self.limit / 2 + if self.limit > 0 { draw % self.limit } else { 0 };
        }
        let ok = self.left > 0;
        self.left -= ok as u32;
        ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_second(c: &mut Challenges, s: u64) -> u32 {
        (0..10_000).filter(|n| c.take(Instant::from_micros(s * 1_000_000 + n * 90))).count() as u32
    }

    #[test]
    fn a_second_has_a_number_that_cannot_be_guessed() {
        let mut c = Challenges::new(1000, 77);
        let counts: Vec<u32> = (0..200).map(|s| in_second(&mut c, s)).collect();
        assert!(counts.iter().all(|n| (500..1500).contains(n)));
        let mean = counts.iter().sum::<u32>() / 200;
        assert!((950..1050).contains(&mean), "{mean}");
        let mut distinct = counts.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 150);
        assert_eq!(in_second(&mut Challenges::new(0, 1), 5), 0);
    }
}
