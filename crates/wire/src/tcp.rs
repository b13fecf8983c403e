//! The TCP header and its options (RFC 9293 3.1, RFC 7323, RFC 2018).

mod options;

pub use options::{Options, SackBlocks, Timestamps};

use core::ops::BitOr;

use crate::{Addr, Malformed, SeqNum, be16, be32, checksum, ipv4};

/// Control bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x001);
    /// Synchronize sequence numbers.
    pub const SYN: Flags = Flags(0x002);
    /// Reset.
    pub const RST: Flags = Flags(0x004);
    /// Push.
    pub const PSH: Flags = Flags(0x008);
    /// The acknowledgment field counts.
    pub const ACK: Flags = Flags(0x010);
    /// The urgent pointer counts.
    pub const URG: Flags = Flags(0x020);
    /// ECN echo (RFC 3168).
    pub const ECE: Flags = Flags(0x040);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Flags = Flags(0x080);
    /// Accurate ECN (RFC 9768), once NS.
    pub const AE: Flags = Flags(0x100);

    /// No bit.
    pub const fn empty() -> Flags {
        Flags(0)
    }
    /// All bits of `other`.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
    /// Any bit of `other`.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
    /// As they stand in the header's low nine bits.
    pub const fn bits(self) -> u16 {
        self.0
    }
    /// From [`Flags::bits`].
    pub const fn from_bits(bits: u16) -> Flags {
        Flags(bits & 0x1ff)
    }
    /// Without the bits of `other`.
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A segment whose header is sound.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// From.
    pub src_port: u16,
    /// To.
    pub dst_port: u16,
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack`.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// `seg.wnd`, not scaled.
    pub window: u16,
    /// `seg.up`.
    pub urgent: u16,
    /// Options.
    pub options: Options,
    /// Text.
    pub payload: &'a [u8],
    /// Where several segments were put together before they came here: the text of each but the last, bytes; else 0.
    pub mss: u16,
}

impl<'a> Segment<'a> {
    /// Reads a segment; the checksum is [`checksum_ok`]'s business.
    #[inline]
    pub fn parse(b: &'a [u8]) -> Result<Segment<'a>, Malformed> {
        Segment::parse_merged(b, 0)
    }

    /// The same where several may have been put together: `mss` is that field.
    #[inline(always)]
    pub fn parse_merged(b: &'a [u8], mss: u16) -> Result<Segment<'a>, Malformed> {
        Segment::header(b).map(|header| Segment::behind(b, header, mss))
    }

    /// The segment whose header is `header` bytes long, as [`Segment::header`] says.
    #[inline(always)]
    pub fn behind(b: &'a [u8], header: usize, mss: u16) -> Segment<'a> {
        // Read first, so that what is read of the rest goes straight to its place.
        let options = Options::parse(&b[20..header]);
        Segment {
            src_port: be16(b, 0),
            dst_port: be16(b, 2),
            seq: SeqNum(be32(b, 4)),
            ack: SeqNum(be32(b, 8)),
            flags: Flags::from_bits(be16(b, 12)),
            window: be16(b, 14),
            urgent: be16(b, 18),
            options,
            payload: &b[header..],
            mss,
        }
    }

    /// Bytes of a segment's header, options included.
    #[inline(always)]
    pub fn header(b: &[u8]) -> Result<usize, Malformed> {
        if b.len() < 20 {
            return Err(Malformed::Truncated);
        }
        let header = (b[12] >> 4) as usize * 4;
        if header < 20 || header > b.len() {
            return Err(Malformed::BadHeaderLength);
        }
        Ok(header)
    }

    /// Bytes of text in the longest of the segments that were put together in this one.
    pub fn longest(&self) -> usize {
        match self.mss {
            0 => self.payload.len(),
            mss => self.payload.len().min(mss as usize),
        }
    }

    /// How many segments were put together in this one, at least 1.
    pub fn count(&self) -> u32 {
        match self.mss {
            0 => 1,
            mss => self.payload.len().div_ceil(mss as usize).max(1) as u32,
        }
    }
}

/// A segment as nearly all are between SYN and the end: its flags are ACK, with PSH, FIN, both or neither, and its options
/// timestamps or none.
#[derive(Clone, Copy, Debug)]
pub struct Ordinary<'a> {
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack`.
    pub ack: SeqNum,
    /// `seg.wnd`, not scaled.
    pub window: u16,
    /// It has FIN.
    pub fin: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Text.
    pub payload: &'a [u8],
    /// As [`Segment::mss`].
    pub mss: u16,
}

impl<'a> Ordinary<'a> {
    const FLAGS: u16 = Flags::ACK.0 | Flags::PSH.0 | Flags::FIN.0;

    /// What the header of such a segment says, and its ports, from and to; `None` where it is another. `mss` as
    /// [`Segment::mss`].
    #[inline(always)]
    pub fn read(b: &'a [u8], mss: u16) -> Option<((u16, u16), Ordinary<'a>)> {
        let (h, rest) = b.split_first_chunk::<20>()?;
        let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        // Length of the header and flags.
        let (shape, window) = (word(12) >> 16, word(12) as u16);
        let flags = shape as u16 & 0x1ff;
        if flags & !(Flags::PSH.0 | Flags::FIN.0) != Flags::ACK.0 {
            return None;
        }
        let (timestamps, payload) = match shape >> 12 {
            5 => (None, rest),
            8 => {
                let (o, text) = rest.split_first_chunk::<12>()?;
                if o[..4] != [1, 1, 8, 10] {
                    return None;
                }
                let word = |at: usize| u32::from_be_bytes([o[at], o[at + 1], o[at + 2], o[at + 3]]);
                (Some(Timestamps { value: word(4), echo: word(8) }), text)
            }
            _ => return None,
        };
        let (seq, ack) = (SeqNum(word(4)), SeqNum(word(8)));
        let fin = flags & Flags::FIN.0 != 0;
        let ports = ((word(0) >> 16) as u16, word(0) as u16);
        Some((ports, Ordinary { seq, ack, window, fin, timestamps, payload, mss }))
    }

    /// The same of a segment that was read.
    #[inline(always)]
    pub fn of(seg: &Segment<'a>) -> Option<Ordinary<'a>> {
        let &Segment { seq, ack, flags, window, ref options, payload, mss, .. } = seg;
        let plain = flags.0 & !Ordinary::FLAGS == 0 && flags.contains(Flags::ACK);
        let usual = options.mss.is_none()
            && options.window_scale.is_none()
            && !options.sack_permitted
            && options.sack.as_slice().is_empty();
        let (fin, timestamps) = (flags.contains(Flags::FIN), options.timestamps);
        (plain && usual).then_some(Ordinary { seq, ack, window, fin, timestamps, payload, mss })
    }

    /// The whole segment, but for its ports.
    pub fn segment(&self) -> Segment<'a> {
        let &Ordinary { seq, ack, window, fin, timestamps, payload, mss } = self;
        let flags = if fin { Flags::ACK | Flags::FIN } else { Flags::ACK };
        let options = Options { timestamps, ..Options::default() };
        Segment { src_port: 0, dst_port: 0, seq, ack, flags, window, urgent: 0, options, payload, mss }
    }

    /// As [`Segment::longest`].
    #[inline(always)]
    pub fn longest(&self) -> usize {
        match self.mss {
            0 => self.payload.len(),
            mss => self.payload.len().min(mss as usize),
        }
    }

    /// As [`Segment::count`].
    #[inline(always)]
    pub fn count(&self) -> u32 {
        match self.mss {
            0 => 1,
            mss => self.payload.len().div_ceil(mss as usize).max(1) as u32,
        }
    }
}

/// A SYN or SYN/ACK as nearly all are: without text, with the options of Linux in its layout, and no other flag.
#[derive(Clone, Copy, Debug)]
pub struct Syn {
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack` of a SYN/ACK.
    pub ack: Option<SeqNum>,
    /// `seg.wnd`.
    pub window: u16,
    /// Maximum segment size.
    pub mss: u16,
    /// Window scale shift.
    pub scale: u8,
    /// TSval and TSecr.
    pub timestamps: Timestamps,
}

impl Syn {
    /// What such a segment says, and its ports, from and to; `None` where it is another segment.
    #[inline(always)]
    pub fn read(b: &[u8]) -> Option<((u16, u16), Syn)> {
        let h: &[u8; 40] = b.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        // Ten words, SYN without or with ACK; MSS; SACK permitted and timestamps; NOP and window scale.
        let usual = word(12) >> 16 & 0xf1ef == 0xa002
            && word(20) >> 16 == 0x0204
            && word(24) == 0x0402_080a
            && word(36) >> 8 == 0x01_0303;
        let ports = ((word(0) >> 16) as u16, word(0) as u16);
        let ack = (h[13] & Flags::ACK.0 as u8 != 0).then(|| SeqNum(word(8)));
        let (seq, window, mss) = (SeqNum(word(4)), word(12) as u16, word(20) as u16);
        let timestamps = Timestamps { value: word(28), echo: word(32) };
        usual.then_some((ports, Syn { seq, ack, window, mss, scale: word(36) as u8, timestamps }))
    }
}

/// A header to write.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// From.
    pub src_port: u16,
    /// To.
    pub dst_port: u16,
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.ack`.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// `seg.wnd`, not scaled.
    pub window: u16,
    /// `seg.up`.
    pub urgent: u16,
    /// Options.
    pub options: Options,
}

impl Header {
    /// Writes it with a checksum of zero; its length. `b` must have room for 60 bytes or the header's length.
    #[inline]
    pub fn emit(&self, b: &mut [u8], syn: bool) -> usize {
        let options = self.options.emit(&mut b[20..], syn);
        let len = 20 + options;
        b[..2].copy_from_slice(&self.src_port.to_be_bytes());
        b[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        b[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        b[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        let word = ((len / 4) as u16) << 12 | self.flags.bits();
        b[12..14].copy_from_slice(&word.to_be_bytes());
        b[14..16].copy_from_slice(&self.window.to_be_bytes());
        b[16..18].fill(0);
        b[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        len
    }
}

/// Whether a segment's checksum is right (RFC 9293 3.1, MUST-3).
#[inline]
pub fn checksum_ok(src: Addr, dst: Addr, segment: &[u8]) -> bool {
    sum_ok(src, dst, segment.len(), checksum::sum(segment))
}

/// The same of a segment of `len` bytes that was summed already.
#[inline]
pub fn sum_ok(src: Addr, dst: Addr, len: usize, sum: checksum::Sum) -> bool {
    checksum::pseudo(src, dst, ipv4::TCP, len).add(sum).is_ok()
}

/// Whether the checksum field holds the folded pseudo-header alone: a sum that the sender's hardware was to finish.
pub fn is_pseudo_only(src: Addr, dst: Addr, segment: &[u8]) -> bool {
    segment.len() >= 20 && be16(segment, 16) == checksum::pseudo(src, dst, ipv4::TCP, segment.len()).folded()
}

/// Writes the checksum of a segment (MUST-2); at least 20 bytes.
#[inline]
pub fn fill_checksum(src: Addr, dst: Addr, segment: &mut [u8]) {
    segment[16..18].fill(0);
    let sum = checksum::pseudo(src, dst, ipv4::TCP, segment.len()).add(checksum::sum(segment)).finish();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
}

/// Finishes the checksum of a segment whose field holds the folded pseudo-header; at least 20 bytes.
#[inline]
pub fn finish_checksum(segment: &mut [u8], sum: impl Fn(&[u8]) -> checksum::Sum) {
    let sum = sum(segment).finish();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
}

/// Leaves the checksum of a segment of `len` bytes to the port: the field gets the folded pseudo-header.
pub fn fill_pseudo(src: Addr, dst: Addr, len: usize, header: &mut [u8]) {
    let sum = checksum::pseudo(src, dst, ipv4::TCP, len).folded();
    header[16..18].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn a() -> (Addr, Addr) {
        (Addr::from_v4([10, 0, 0, 1]), Addr::from_v4([10, 0, 0, 2]))
    }

    proptest! {
        #[test]
        fn round_trip_and_oracle(
            src_port: u16, dst_port: u16, seq: u32, ack: u32, bits in 0u16..0x200, window: u16,
            mss in proptest::option::of(any::<u16>()), scale in proptest::option::of(0u8..15), sack: bool,
            ts in proptest::option::of(any::<(u32, u32)>()), payload in proptest::collection::vec(any::<u8>(), 0..100), syn: bool,
        ) {
            let flags = Flags::from_bits(bits);
            let timestamps = ts.map(|(value, echo)| Timestamps { value, echo });
            let options = match syn {
                true => Options { mss, window_scale: scale, sack_permitted: sack, timestamps, ..Options::default() },
                false => Options { timestamps, ..Options::default() },
            };
            let h = Header { src_port, dst_port, seq: SeqNum(seq), ack: SeqNum(ack), flags, window, urgent: 0, options };
            let mut b = vec![0; 60];
            let n = h.emit(&mut b, syn);
            prop_assert_eq!(n, 20 + options.len(syn));
            b.truncate(n);
            b.extend(&payload);
            let (src, dst) = a();
            fill_checksum(src, dst, &mut b);
            prop_assert!(checksum_ok(src, dst, &b));
            let s = Segment::parse(&b).unwrap();
            prop_assert_eq!((s.src_port, s.dst_port, s.seq.0, s.ack.0, s.flags, s.window), (src_port, dst_port, seq, ack, flags, window));
            prop_assert_eq!(s.options, options);
            prop_assert_eq!(s.payload, &payload[..]);
            let (oracle, rest) = etherparse::TcpHeader::from_slice(&b).unwrap();
            prop_assert_eq!((oracle.source_port, oracle.sequence_number, oracle.window_size, rest), (src_port, seq, window, &payload[..]));
            let sum = oracle.calc_checksum_ipv4_raw([10, 0, 0, 1], [10, 0, 0, 2], &payload).unwrap();
            prop_assert_eq!(sum, oracle.checksum);
            // Any single bit that flips is noticed.
            let bit = seq as usize % (b.len() * 8);
            b[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!checksum_ok(src, dst, &b));
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = Segment::parse(&bytes);
        }

        #[test]
        fn unfinished_sums_are_recognised(payload in proptest::collection::vec(any::<u8>(), 0..100)) {
            let (src, dst) = a();
            let mut b = vec![0; 20];
            b[12] = 0x50;
            b.extend(&payload);
            let n = b.len();
            fill_pseudo(src, dst, n, &mut b);
            prop_assert!(is_pseudo_only(src, dst, &b));
            b[16] ^= 1;
            prop_assert!(!is_pseudo_only(src, dst, &b));
        }
    }
}
