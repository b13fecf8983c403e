//! The Internet checksum (RFC 1071), and its incremental form (RFC 1624).
//!
//! Partial sums are kept as native-endian 64-bit words with the carries added back: the ones' complement sum does not care
//! about byte order until it is stored.

use crate::Addr;

/// A partial ones' complement sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Of nothing.
    pub const ZERO: Sum = Sum(0);

    /// Adds a sum of bytes that start at an even offset.
    pub const fn add(self, other: Sum) -> Sum {
        let (s, carry) = self.0.overflowing_add(other.0);
        Sum(s + carry as u64)
    }

    /// Adds a sum of bytes that start at an odd offset (RFC 1071 2 B).
    pub const fn add_odd(self, other: Sum) -> Sum {
        self.add(Sum(other.fold_raw().swap_bytes() as u64))
    }

    const fn fold_raw(self) -> u16 {
        let s = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let s = (s >> 16) + (s & 0xffff);
        let s = (s >> 16) + (s & 0xffff);
        ((s >> 16) + (s & 0xffff)) as u16
    }

    /// The folded sum, not inverted, in host order.
    pub const fn folded(self) -> u16 {
        u16::from_be(self.fold_raw())
    }

    /// The checksum field's value: the inverted sum, in host order.
    pub const fn finish(self) -> u16 {
        !self.folded()
    }

    /// Whether the sum over data and its checksum is right.
    pub const fn is_ok(self) -> bool {
        self.fold_raw() == 0xffff
    }
}

/// Sums bytes that start at an even offset, the first of which `wide` has summed: as native-endian words, their sum and
/// how many bytes are in it, an even number.
#[inline]
pub fn sum_with(data: &[u8], wide: impl Fn(&[u8]) -> (u64, usize)) -> Sum {
    let (first, done) = wide(data);
    Sum(first).add(sum(&data[done..]))
}

/// Sums bytes that start at an even offset.
pub fn sum(data: &[u8]) -> Sum {
    let mut lanes = [0u64; 4];
    let mut carries = 0u64;
    let mut blocks = data.chunks_exact(32);
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let (s, c) = lane.overflowing_add(u64::from_ne_bytes([
                word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
            ]));
            *lane = s;
            carries += c as u64;
        }
    }
    let mut total = lanes.iter().fold(Sum(carries), |t, l| t.add(Sum(*l)));
    let mut words = blocks.remainder().chunks_exact(8);
    for word in &mut words {
        total = total
            .add(Sum(u64::from_ne_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]])));
    }
    // Up to seven bytes: small loads, whose sum cannot overflow.
    let mut rest = words.remainder();
    let mut tail = 0;
    if let [a, b, c, d, more @ ..] = rest {
        tail += u32::from_ne_bytes([*a, *b, *c, *d]) as u64;
        rest = more;
    }
    if let [a, b, more @ ..] = rest {
        tail += u16::from_ne_bytes([*a, *b]) as u64;
        rest = more;
    }
    if let [a] = rest {
        tail += u16::from_ne_bytes([*a, 0]) as u64;
    }
    total.add(Sum(tail))
}

/// Sums an IPv4 header without options.
#[inline]
pub fn sum_20(header: &[u8; 20]) -> Sum {
    let word = |i: usize| u32::from_ne_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]) as u64;
    Sum(word(0) + word(4) + word(8) + word(12) + word(16))
}

/// The pseudo-header's sum (RFC 9293 3.1; RFC 8200 8.1); `len` counts the transport header and payload.
pub fn pseudo(src: Addr, dst: Addr, protocol: u8, len: usize) -> Sum {
    let tail = (protocol as u64 + (len as u64 & 0xffff) + (len as u64 >> 16)).to_be();
    // The big-endian words land in the right halves because every 16-bit column counts alike.
    let fixed = Sum(tail);
    if src.is_v4() {
        let a = u32::from_ne_bytes(src.v4_octets()) as u64;
        let b = u32::from_ne_bytes(dst.v4_octets()) as u64;
        return fixed.add(Sum(a)).add(Sum(b));
    }
    let mut total = fixed;
    for half in src.as_words().into_iter().chain(dst.as_words()) {
        total = total.add(Sum(half.to_be()));
    }
    total
}

/// RFC 1624 equation 3: the checksum after a 16-bit field went from `old` to `new`; all in host order.
pub const fn update16(checksum: u16, old: u16, new: u16) -> u16 {
    let s = !checksum as u32 + !old as u32 + new as u32;
    let s = (s >> 16) + (s & 0xffff);
    !(((s >> 16) + (s & 0xffff)) as u16)
}

/// As [`update16`], for a 32-bit field.
pub const fn update32(checksum: u16, old: u32, new: u32) -> u16 {
    let high = update16(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update16(high, old as u16, new as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 4.1, as written.
    fn reference(data: &[u8]) -> u16 {
        let mut s = 0u32;
        for pair in data.chunks(2) {
            s += u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]) as u32;
            s = (s >> 16) + (s & 0xffff);
        }
        s as u16
    }

    fn same(a: u16, b: u16) -> bool {
        a == b || (a == 0 && b == 0xffff) || (a == 0xffff && b == 0)
    }

    #[test]
    fn rfc_1071_example() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).folded(), 0xddf2);
    }

    proptest! {
        #[test]
        fn is_the_rfc_s_sum(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(same(sum(&data).folded(), reference(&data)));
        }

        #[test]
        fn what_was_summed_before_counts(data in proptest::collection::vec(any::<u8>(), 0..300), words in 0usize..150) {
            let done = (words * 2).min(data.len() / 2 * 2);
            let wide = |d: &[u8]| (d[..done].chunks_exact(2).map(|w| u16::from_ne_bytes([w[0], w[1]]) as u64).sum(), done);
            prop_assert!(same(sum_with(&data, wide).folded(), reference(&data)));
        }

        #[test]
        fn pieces_add_up(data in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..300) {
            let (a, b) = data.split_at(cut.min(data.len()));
            let whole = if a.len() % 2 == 0 { sum(a).add(sum(b)) } else { sum(a).add_odd(sum(b)) };
            prop_assert!(same(whole.folded(), reference(&data)));
        }

        #[test]
        fn headers_of_twenty_bytes(header: [u8; 20]) {
            prop_assert_eq!(sum_20(&header).folded(), reference(&header));
        }

        #[test]
        fn pseudo_headers_are_sums_of_their_bytes(a: [u8; 16], b: [u8; 16], p: u8, len in 0usize..70000) {
            let bytes = [&a[..], &b, &(len as u32).to_be_bytes(), &[0, 0, 0, p]].concat();
            let got = pseudo(Addr::from_v6(a), Addr::from_v6(b), p, len);
            prop_assert!(same(got.folded(), reference(&bytes)));
            let v4 = [&a[..4], &b[..4], &(len as u32).to_be_bytes(), &[0, p]].concat();
            let (x, y) = ([a[0], a[1], a[2], a[3]], [b[0], b[1], b[2], b[3]]);
            prop_assert!(same(pseudo(Addr::from_v4(x), Addr::from_v4(y), p, len).folded(), reference(&v4)));
        }

        #[test]
        fn incremental_updates_agree(mut data in proptest::collection::vec(any::<u8>(), 8..64), new: u32) {
            let before = sum(&data).finish();
            let old = u32::from_be_bytes([data[0], data[1], data[2], data[3]]);
            data[..4].copy_from_slice(&new.to_be_bytes());
            prop_assert!(same(update32(before, old, new), sum(&data).finish()));
        }
    }
}
