//! Sets of TCP ports.

use core::fmt;

/// Ports in one stretch or two, as they lie below and above those that a kernel chooses for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: Stretch,
    /// Empty (its first is above its last) where there is one stretch.
    second: Stretch,
}

/// First and last.
type Stretch = (u16, u16);

impl Ports {
    /// From `first` to `last`; at least `first` itself. Port 0 is none.
    pub const fn new(first: u16, last: u16) -> Ports {
        let first = if first == 0 { 1 } else { first };
        Ports { first: (first, if last < first { first } else { last }), second: (1, 0) }
    }

    /// With those from `first` to `last` as well, which must not be of the set yet.
    pub fn and(self, first: u16, last: u16) -> Ports {
        debug_assert!(!self.has(first) && !self.has(last) && self.second == (1, 0));
        Ports { second: (first, last), ..self }
    }

    /// First and last of each stretch; where there is one, the second's first is above its last.
    pub const fn stretches(&self) -> [(u16, u16); 2] {
        [self.first, self.second]
    }

    /// Whether a port is one of them.
    pub const fn has(&self, port: u16) -> bool {
        (self.first.0 <= port && port <= self.first.1) || (self.second.0 <= port && port <= self.second.1)
    }

    /// How many there are.
    pub const fn count(&self) -> u32 {
        self.in_first() + (self.second.1 as u32 + 1 - self.second.0 as u32)
    }

    const fn in_first(&self) -> u32 {
        self.first.1 as u32 - self.first.0 as u32 + 1
    }

    /// The one with a number, which is less than [`Ports::count`].
    #[inline]
    pub const fn nth(&self, n: u32) -> u16 {
        let ahead = self.in_first();
        if n < ahead { self.first.0 + n as u16 } else { self.second.0 + (n - ahead) as u16 }
    }

    /// Each of them, the first stretch first.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        (0..self.count()).map(move |n| self.nth(n))
    }
}

/// As `8192 to 32767 and 61440 to 65535`.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.first.0, self.first.1)?;
        if self.second != (1, 0) {
            write!(f, " and {} to {}", self.second.0, self.second.1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stretch_and_two() {
        for (ports, text) in [
            (Ports::new(8, 10), "8 to 10"),
            (Ports::new(8, 10).and(65_534, 65_535), "8 to 10 and 65534 to 65535"),
            (Ports::new(65_535, 65_535), "65535 to 65535"),
            (Ports::new(9, 8), "9 to 9"),
            (Ports::new(0, u16::MAX), "1 to 65535"),
        ] {
            let all: Vec<u16> = (0..=u16::MAX).filter(|port| ports.has(*port)).collect();
            assert_eq!(ports.iter().collect::<Vec<u16>>(), all, "{text}");
            assert_eq!((ports.count(), ports.to_string().as_str()), (all.len() as u32, text));
        }
    }
}
