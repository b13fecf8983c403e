//! Sets of TCP ports.

use core::fmt;

/// Ports of one block.
const BLOCK: u32 = 1024;

/// Ports from a first to a last one, of which whole blocks of 1024 may be left out: those that a kernel chooses for itself, or on which
/// others listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
    /// Blocks that are not left out, by bit; those of the first and the last port are not.
    blocks: u64,
    count: u32,
}

impl Ports {
    /// From `first` to `last`; at least `first` itself. Port 0 is none.
    pub const fn new(first: u16, last: u16) -> Ports {
        let first = if first == 0 { 1 } else { first };
        let last = if last < first { first } else { last };
        let (low, high) = (first as u32 / BLOCK, last as u32 / BLOCK);
        let blocks = (u64::MAX >> (63 - (high - low))) << low;
        Ports { first, last, blocks, count: last as u32 - first as u32 + 1 }
    }

    /// The blocks of these bits; the first one counts from port 1024 on. `None` where there is none.
    pub fn of_blocks(blocks: u64) -> Option<Ports> {
        let blocks = blocks & !1;
        let low = blocks.trailing_zeros();
        let high = blocks.checked_ilog2()?;
        let (first, last) = ((low * BLOCK) as u16, (high * BLOCK + BLOCK - 1) as u16);
        Some(Ports { first, last, blocks, count: blocks.count_ones() * BLOCK })
    }

    /// Whether a port is one of them.
    pub const fn has(&self, port: u16) -> bool {
        self.first <= port && port <= self.last && self.blocks >> (port as u32 / BLOCK) & 1 != 0
    }

    /// How many there are.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The one with a number, which is less than [`Ports::count`].
    #[inline]
    pub const fn nth(&self, n: u32) -> u16 {
        let mut at = self.first as u32 + n;
        let mut rest = self.blocks >> (self.first as u32 / BLOCK);
        let mut block = self.first as u32 / BLOCK;
        // Past each gap before it.
        loop {
            let run = rest.trailing_ones();
            if at < (block + run) * BLOCK || run == 64 {
                return at as u16;
            }
            rest >>= run;
            let gap = rest.trailing_zeros();
            if gap == 64 {
                return at as u16;
            }
            rest >>= gap;
            at += gap * BLOCK;
            block += run + gap;
        }
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        (self.first..=self.last).filter(move |port| self.has(*port))
    }

    /// First and last of each stretch.
    pub fn stretches(self) -> impl Iterator<Item = (u16, u16)> {
        let (first, last) = (u32::from(self.first), u32::from(self.last));
        let starts = (0..64).filter(move |n| self.blocks >> n & 1 != 0 && (*n == 0 || self.blocks >> (n - 1) & 1 == 0));
        starts.map(move |n| {
            let end = (n + (self.blocks >> n).trailing_ones()) * BLOCK - 1;
            (first.max(n * BLOCK) as u16, last.min(end) as u16)
        })
    }
}

/// As `8192 to 19455, 20480 to 32767 and 61440 to 65535`.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.stretches().count();
        for (n, (first, last)) in self.stretches().enumerate() {
            let between = match n {
                0 => "",
                n if n + 1 == all => " and ",
                _ => ", ",
            };
            write!(f, "{between}{first} to {last}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(ports: Ports) {
        let all: Vec<u16> = (0..=u16::MAX).filter(|port| ports.has(*port)).collect();
        assert_eq!(ports.count() as usize, all.len(), "{ports}");
        assert_eq!((0..ports.count()).map(|n| ports.nth(n)).collect::<Vec<u16>>(), all, "{ports}");
        assert_eq!(ports.iter().collect::<Vec<u16>>(), all, "{ports}");
        let stretches: Vec<u16> = ports.stretches().flat_map(|(first, last)| first..=last).collect();
        assert_eq!(stretches, all, "{ports}");
    }

    #[test]
    fn ranges_and_blocks() {
        for (ports, text) in [
            (Some(Ports::new(8, 10)), "8 to 10"),
            (Some(Ports::new(65_535, 65_535)), "65535 to 65535"),
            (Some(Ports::new(9, 8)), "9 to 9"),
            (Some(Ports::new(0, u16::MAX)), "1 to 65535"),
            (Some(Ports::new(1000, 5000)), "1000 to 5000"),
            (Ports::of_blocks(u64::MAX), "1024 to 65535"),
            (Ports::of_blocks(1 << 63 | 7 << 9 | 1 << 3), "3072 to 4095, 9216 to 12287 and 64512 to 65535"),
            (Ports::of_blocks(1 << 63), "64512 to 65535"),
        ] {
            let ports = ports.expect("some");
            check(ports);
            assert_eq!(ports.to_string(), text);
        }
        assert_eq!(Ports::of_blocks(1), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn any_of_them(first: u16, last: u16, blocks: u64) {
            check(Ports::new(first, last));
            if let Some(ports) = Ports::of_blocks(blocks) {
                check(ports);
            }
        }
    }
}
