//! Byte ranges, RFC 9110 section 14.

/// More ranges than this in one request are answered with the whole file, as RFC 9110 14.2 allows.
pub const MAX_RANGES: usize = 16;

/// Inclusive first and last byte of a satisfiable range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub first: u64,
    /// Offset of the last byte.
    pub last: u64,
}

impl ByteRange {
    /// Number of bytes.
    pub fn length(self) -> u64 {
        self.last - self.first + 1
    }
}

/// What a `Range` field asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ranges {
    /// The field is absent, malformed, another unit, or abusive: send everything (RFC 9110 14.2).
    Ignore,
    /// None of them can be met: 416.
    Unsatisfiable,
    /// These, in the order asked.
    Some(Vec<ByteRange>),
}

/// Parses a `Range` value against a representation of `size` bytes.
pub fn parse(value: &[u8], size: u64) -> Ranges {
    // RFC 9110 14.2 lets a server ignore the field here. "Send what there is" must not fail because there is nothing yet: clients that
    // fetch by ranges ask so of any file, and others answer 200.
    if size == 0 {
        return Ranges::Ignore;
    }
    let Some(set) = strip_unit(value) else { return Ranges::Ignore };
    let mut ranges = Vec::new();
    let mut asked = 0;
    for spec in set.split(|&byte| byte == b',') {
        let spec = spec.trim_ascii();
        if spec.is_empty() {
            continue;
        }
        asked += 1;
        if asked > MAX_RANGES {
            return Ranges::Ignore;
        }
        match one(spec, size) {
            Err(()) => return Ranges::Ignore,
            Ok(range) => ranges.extend(range),
        }
    }
    // RFC 9110 14.2: overlapping ranges may be an attack on the server's output; nobody needs them.
    let overlap =
        ranges.iter().enumerate().any(|(at, a)| ranges[..at].iter().any(|b| a.first <= b.last && b.first <= a.last));
    match (asked, ranges.len()) {
        (0, _) => Ranges::Ignore,
        _ if overlap => Ranges::Ignore,
        (_, 0) => Ranges::Unsatisfiable,
        _ => Ranges::Some(ranges),
    }
}

fn strip_unit(value: &[u8]) -> Option<&[u8]> {
    let (unit, set) = value.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

/// One range: `Err` when malformed, `None` when beyond the end.
fn one(spec: &[u8], size: u64) -> Result<Option<ByteRange>, ()> {
    let dash = spec.iter().position(|&byte| byte == b'-').ok_or(())?;
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    match (first.is_empty(), last.is_empty()) {
        (true, true) => Err(()),
        (true, false) => {
            let suffix = number(last)?.min(size);
            Ok((suffix > 0).then(|| ByteRange { first: size - suffix, last: size - 1 }))
        }
        (false, _) => {
            let first = number(first)?;
            let last = if last.is_empty() { u64::MAX } else { number(last)? };
            if last < first {
                return Err(());
            }
            Ok((first < size).then(|| ByteRange { first, last: last.min(size - 1) }))
        }
    }
}

fn number(digits: &[u8]) -> Result<u64, ()> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(());
    }
    // A number beyond 64 bits is beyond every file: saturate.
    Ok(digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some(ranges: &[(u64, u64)]) -> Ranges {
        Ranges::Some(ranges.iter().map(|&(first, last)| ByteRange { first, last }).collect())
    }

    #[test]
    fn forms_of_rfc_9110_14_1_2() {
        assert_eq!(parse(b"bytes=0-499", 10_000), some(&[(0, 499)]));
        assert_eq!(parse(b"bytes=-500", 10_000), some(&[(9_500, 9_999)]));
        assert_eq!(parse(b"bytes=9500-", 10_000), some(&[(9_500, 9_999)]));
        assert_eq!(parse(b"bytes=0-0,-1", 10_000), some(&[(0, 0), (9_999, 9_999)]));
        assert_eq!(parse(b"bytes= 0-999, 4500-5499, -1000", 10_000), some(&[(0, 999), (4_500, 5_499), (9_000, 9_999)]));
        assert_eq!(parse(b"Bytes=5-99", 10), some(&[(5, 9)]));
        assert_eq!(parse(b"bytes=-99", 10), some(&[(0, 9)]));
        assert_eq!(parse(b"bytes=4-99999999999999999999999", 10), some(&[(4, 9)]));
    }

    #[test]
    fn what_cannot_be_met_and_what_is_ignored() {
        for value in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=10-,11-"] {
            assert_eq!(parse(value.as_bytes(), 10), Ranges::Unsatisfiable, "{value}");
        }
        for value in ["bytes=0-", "bytes=-5", "bytes=0-0", "bytes=7-"] {
            assert_eq!(parse(value.as_bytes(), 0), Ranges::Ignore, "{value} of nothing");
        }
        for value in
            ["", "bytes", "bytes=", "lines=0-1", "bytes=a-b", "bytes=5-4", "bytes=-", "bytes=0-5,3-8", "bytes=1--2"]
        {
            assert_eq!(parse(value.as_bytes(), 10), Ranges::Ignore, "{value}");
        }
        let many =
            format!("bytes={}", (0..=MAX_RANGES).map(|at| format!("{0}-{0}", at * 2)).collect::<Vec<_>>().join(","));
        assert_eq!(parse(many.as_bytes(), 1000), Ranges::Ignore);
    }

    proptest! {
        #[test]
        fn ranges_stay_inside(value in "(bytes=)?[0-9,\\- ]{0,40}", size in 0u64..100) {
            if let Ranges::Some(ranges) = parse(value.as_bytes(), size) {
                prop_assert!(!ranges.is_empty() && ranges.len() <= MAX_RANGES);
                for range in ranges {
                    prop_assert!(range.first <= range.last && range.last < size);
                }
            }
        }
    }
}
