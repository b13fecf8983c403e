//! TCP sequence numbers (RFC 9293 3.4): a circle without an order, so there is no `Ord`.

use core::ops::{Add, AddAssign, Sub};

/// A sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Earlier on the half circle behind `other`.
    pub const fn before(self, other: SeqNum) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
    /// Later on the half circle ahead of `other`.
    pub const fn after(self, other: SeqNum) -> bool {
        other.before(self)
    }
    /// Earlier or the same.
    pub const fn before_eq(self, other: SeqNum) -> bool {
        !other.before(self)
    }
    /// Later or the same.
    pub const fn after_eq(self, other: SeqNum) -> bool {
        !self.before(other)
    }
    /// Steps from `earlier` to `self`.
    pub const fn since(self, earlier: SeqNum) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
    /// The later of two.
    pub const fn max(self, other: SeqNum) -> SeqNum {
        if self.before(other) { other } else { self }
    }
    /// The earlier of two.
    pub const fn min(self, other: SeqNum) -> SeqNum {
        if self.before(other) { self } else { other }
    }
    /// In the `len` numbers from `start` on.
    pub const fn in_window(self, start: SeqNum, len: u32) -> bool {
        self.since(start) < len
    }
}

impl Add<u32> for SeqNum {
    type Output = SeqNum;
    fn add(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_add(n))
    }
}

impl Sub<u32> for SeqNum {
    type Output = SeqNum;
    fn sub(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_sub(n))
    }
}

impl AddAssign<u32> for SeqNum {
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comparisons_survive_the_wrap(start: u32, ahead in 1u32..0x7fff_ffff) {
            let (a, b) = (SeqNum(start), SeqNum(start) + ahead);
            prop_assert!(a.before(b) && b.after(a) && !b.before_eq(a) && !a.after_eq(b));
            prop_assert_eq!(b.since(a), ahead);
            prop_assert_eq!((a.max(b), a.min(b)), (b, a));
            prop_assert!(b.in_window(a, ahead + 1) && !b.in_window(a, ahead));
            prop_assert_eq!(b - ahead, a);
        }
    }
}
