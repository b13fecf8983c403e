//! TCP options, laid out as Linux lays them out.

use crate::{SeqNum, be16, be32};

/// RFC 7323's timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo: u32,
}

/// Up to four SACK blocks (RFC 2018): left edge and right edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(SeqNum, SeqNum); 4],
    len: u8,
}

impl SackBlocks {
    /// Adds a block; a fifth does not fit and is ignored.
    pub fn push(&mut self, left: SeqNum, right: SeqNum) {
        if let Some(slot) = self.blocks.get_mut(self.len as usize) {
            *slot = (left, right);
            self.len += 1;
        }
    }
    /// The blocks.
    pub fn as_slice(&self) -> &[(SeqNum, SeqNum)] {
        &self.blocks[..self.len as usize]
    }
}

/// What a segment's options say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size.
    pub mss: Option<u16>,
    /// Window scale shift.
    pub window_scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks.
    pub sack: SackBlocks,
}

const NOP: u8 = 1;

impl Options {
    /// Reads options. What is unknown is stepped over (RFC 9293 3.1, MUST-6); at a length that cannot be, the rest is
    /// ignored (MUST-7).
    #[inline(always)]
    pub fn parse(b: &[u8]) -> Options {
        // What nearly every segment of an established connection carries (RFC 7323 appendix A).
        if b.len() == 12 && b[..4] == [NOP, NOP, 8, 10] {
            let timestamps = Some(Timestamps { value: be32(b, 4), echo: be32(b, 8) });
            return Options { timestamps, ..Options::default() };
        }
        // And nearly every SYN, in Linux's layout.
        if let [2, 4, m0, m1, 4, 2, 8, 10, ts @ .., NOP, 3, 3, shift] = b
            && ts.len() == 8
        {
            return Options {
                mss: Some(u16::from_be_bytes([*m0, *m1])),
                window_scale: Some(*shift),
                sack_permitted: true,
                timestamps: Some(Timestamps { value: be32(ts, 0), echo: be32(ts, 4) }),
                sack: SackBlocks::default(),
            };
        }
        if b.is_empty() { Options::default() } else { Options::walk(b) }
    }

    #[inline(never)]
    fn walk(mut b: &[u8]) -> Options {
        let mut o = Options::default();
        while let [kind, rest @ ..] = b {
            match kind {
                0 => break,
                &NOP => {
                    b = rest;
                    continue;
                }
                _ => {}
            }
            let Some(len) = rest.first().map(|l| *l as usize).filter(|l| *l >= 2 && *l <= b.len()) else { break };
            match (kind, len) {
                (2, 4) => o.mss = Some(be16(b, 2)),
                (3, 3) => o.window_scale = Some(b[2]),
                (4, 2) => o.sack_permitted = true,
                // RFC 2018 3: 8n + 2.
                (5, 10..) if len % 8 == 2 => {
                    for pair in b[2..len].chunks_exact(8) {
                        o.sack.push(SeqNum(be32(pair, 0)), SeqNum(be32(pair, 4)));
                    }
                }
                (8, 10) => o.timestamps = Some(Timestamps { value: be32(b, 2), echo: be32(b, 6) }),
                _ => {}
            }
            b = &b[len..];
        }
        o
    }

    /// Bytes that [`Options::emit`] writes.
    pub fn len(&self, syn: bool) -> usize {
        let ts = if self.timestamps.is_some() { 12 } else { 0 };
        if !syn {
            return ts
                + match self.sack.as_slice().len() {
                    0 => 0,
                    n => 4 + 8 * n.min(if ts > 0 { 3 } else { 4 }),
                };
        }
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let sack = if self.sack_permitted && ts == 0 { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        mss + ts + sack + scale
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Options::default()
    }

    /// Writes them, padded to words, in Linux's order: `mss`, `sackOK`, `TS`, `nop`, `wscale`; `TS`, `SACK` outside SYNs.
    /// The length; `b` must have room for 40 bytes or [`Options::len`].
    #[inline]
    pub fn emit(&self, b: &mut [u8], syn: bool) -> usize {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            b[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let (true, Some(mss)) = (syn, self.mss) {
            let [hi, lo] = mss.to_be_bytes();
            put(&[2, 4, hi, lo]);
        }
        if let Some(ts) = self.timestamps {
            put(if syn && self.sack_permitted { &[4, 2, 8, 10] } else { &[NOP, NOP, 8, 10] });
            put(&ts.value.to_be_bytes());
            put(&ts.echo.to_be_bytes());
        } else if syn && self.sack_permitted {
            put(&[NOP, NOP, 4, 2]);
        }
        if let (true, Some(shift)) = (syn, self.window_scale) {
            put(&[NOP, 3, 3, shift]);
        }
        let blocks = self.sack.as_slice();
        if !syn && !blocks.is_empty() {
            // Forty bytes hold three blocks beside timestamps (RFC 2018 3).
            let blocks = &blocks[..blocks.len().min(if self.timestamps.is_some() { 3 } else { 4 })];
            put(&[NOP, NOP, 5, 2 + 8 * blocks.len() as u8]);
            for (left, right) in blocks {
                put(&left.0.to_be_bytes());
                put(&right.0.to_be_bytes());
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn linux_layout() {
        let o = Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 0 }),
            ..Options::default()
        };
        let mut b = [0; 40];
        let n = o.emit(&mut b, true);
        assert_eq!(b[..n], [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
    }

    /// RFC 9293 3.1, MUST-4: what stands behind an "end of options" is padding.
    #[test]
    fn nothing_counts_behind_the_end() {
        assert_eq!(Options::parse(&[0, 3, 3, 7]), Options::default());
        let mss = Options { mss: Some(1460), ..Options::default() };
        assert_eq!(Options::parse(&[2, 4, 5, 180, 0, 3, 3, 7, 4, 2, 0, 0]), mss);
        assert_eq!(Options::parse(&[2, 4, 5, 180, 1, 1, 0, 0]), mss);
    }

    /// RFC 9293 3.1, MUST-6: what stands behind an option of any other kind is read.
    #[test]
    fn unknown_options_are_stepped_over() {
        let known = Options { mss: Some(1460), window_scale: Some(7), ..Options::default() };
        for kind in (9..=255).chain([6, 7]) {
            for len in [2, 3, 12] {
                let mut unknown = vec![0xa5; len];
                unknown[..2].copy_from_slice(&[kind, len as u8]);
                let b = [&[2, 4, 5, 180], &unknown[..], &[3, 3, 7]].concat();
                assert_eq!(Options::parse(&b), known, "kind {kind}, {len} bytes");
            }
        }
    }

    #[test]
    fn impossible_lengths_end_the_walk() {
        // Length 0 made the original loop for ever; length 1 and a length past the end are as bad.
        for bad in [[2u8, 0, 5, 180], [2, 1, 5, 180], [2, 5, 5, 180]] {
            assert_eq!(Options::parse(&bad), Options::default());
        }
        let after = [1, 3, 3, 7, 99, 0, 2, 4];
        assert_eq!(Options::parse(&after), Options { window_scale: Some(7), ..Options::default() });
        // Known kinds with another length are unknown.
        assert_eq!(Options::parse(&[2, 3, 5, 1]), Options::default());
        for len in 2..20 {
            let mut b = [7; 20];
            b[..2].copy_from_slice(&[5, len]);
            let blocks = Options::parse(&b[..len as usize]).sack.as_slice().len();
            assert_eq!(blocks, if matches!(len, 10 | 18) { len as usize / 8 } else { 0 }, "length {len}");
        }
    }

    proptest! {
        #[test]
        fn sack_round_trip(edges in proptest::collection::vec(any::<(u32, u32)>(), 0..6), ts: bool) {
            let mut o = Options { timestamps: ts.then_some(Timestamps { value: 3, echo: 4 }), ..Options::default() };
            for (l, r) in &edges {
                o.sack.push(SeqNum(*l), SeqNum(*r));
            }
            let mut b = [0; 40];
            let n = o.emit(&mut b, false);
            prop_assert_eq!(n, o.len(false));
            prop_assert!(n <= 40 && n.is_multiple_of(4));
            let back = Options::parse(&b[..n]);
            let kept = edges.len().min(if ts { 3 } else { 4 });
            prop_assert_eq!(back.sack.as_slice(), &o.sack.as_slice()[..kept]);
            prop_assert_eq!(back.timestamps, o.timestamps);
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Options::parse(&bytes);
        }
    }
}
