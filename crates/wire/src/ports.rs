//! Sets of TCP ports.

use core::fmt;
use std::sync::Arc;

const WORDS: usize = 65_536 / 64;

/// A set of ports. Port 0 is none. Clones are cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Ports(Arc<Set>);

#[derive(PartialEq, Eq)]
struct Set {
    /// One bit for each port.
    bits: [u64; WORDS],
    /// In order.
    list: Vec<u16>,
}

impl Ports {
    /// From `first` to `last`; at least `first` itself.
    pub fn new(first: u16, last: u16) -> Ports {
        let first = first.max(1);
        (first..=last.max(first)).collect()
    }

    /// Whether a port is one of them.
    #[inline]
    pub fn has(&self, port: u16) -> bool {
        self.0.bits[port as usize / 64] >> (port % 64) & 1 != 0
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> u32 {
        self.0.list.len() as u32
    }

    /// True of no port at all.
    pub fn is_empty(&self) -> bool {
        self.0.list.is_empty()
    }

    /// The one with a number in their order; `None` from [`Ports::count`] on.
    #[inline]
    pub fn nth(&self, n: u32) -> Option<u16> {
        self.0.list.get(n as usize).copied()
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.list.iter().copied()
    }

    /// First and last of each stretch.
    pub fn stretches(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        let runs = self.0.list.chunk_by(|a, b| a + 1 == *b);
        runs.map(|run| (run[0], run[run.len() - 1]))
    }
}

/// None.
impl Default for Ports {
    fn default() -> Ports {
        core::iter::empty().collect()
    }
}

impl FromIterator<u16> for Ports {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Ports {
        let mut bits = [0; WORDS];
        ports.into_iter().for_each(|port| bits[port as usize / 64] |= 1 << (port % 64));
        bits[0] &= !1;
        let has = |port: &u16| bits[*port as usize / 64] >> (port % 64) & 1 != 0;
        let list = (1..=u16::MAX).filter(has).collect();
        Ports(Arc::new(Set { bits, list }))
    }
}

/// Stretches, as `8192 to 19455, 20480 to 32767 and 61440`; `none`.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.stretches().count();
        if all == 0 {
            return f.write_str("none");
        }
        for (n, (first, last)) in self.stretches().enumerate() {
            let between = match n {
                0 => "",
                n if n + 1 == all => " and ",
                _ => ", ",
            };
            match first == last {
                true => write!(f, "{between}{first}")?,
                false => write!(f, "{between}{first} to {last}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn check(ports: &Ports, all: &BTreeSet<u16>) {
        let all: Vec<u16> = all.iter().copied().collect();
        assert_eq!((0..=u16::MAX).filter(|port| ports.has(*port)).collect::<Vec<u16>>(), all, "{ports}");
        assert_eq!(ports.count() as usize, all.len(), "{ports}");
        assert_eq!((0..).map_while(|n| ports.nth(n)).collect::<Vec<u16>>(), all, "{ports}");
        assert_eq!(ports.iter().collect::<Vec<u16>>(), all, "{ports}");
        let stretches: Vec<u16> = ports.stretches().flat_map(|(first, last)| first..=last).collect();
        assert_eq!(stretches, all, "{ports}");
    }

    #[test]
    fn ranges_and_words() {
        for (ports, text) in [
            (Ports::new(8, 10), "8 to 10"),
            (Ports::new(65_535, 65_535), "65535"),
            (Ports::new(9, 8), "9"),
            (Ports::new(0, u16::MAX), "1 to 65535"),
            (Ports::default(), "none"),
            ([1, 0, 65_535, 62, 64, 63].into_iter().collect(), "1, 62 to 64 and 65535"),
        ] {
            assert_eq!(ports.to_string(), text);
            assert_eq!(ports.is_empty(), text == "none");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn any_of_them(first: u16, last: u16, some: Vec<u16>) {
            check(&Ports::new(first, last), &(first.max(1)..=last.max(first).max(1)).collect());
            let all = some.iter().copied().filter(|port| *port != 0).collect();
            check(&some.into_iter().collect(), &all);
        }
    }
}
