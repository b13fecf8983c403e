//! Handshakes without a connection: the SYN/ACK of a SYN that is only noted down, or not even that, and the connection
//! that its ACK brings to life (RFC 4987 3.6, 3.7).
//!
//! A SYN cookie has room for the segment size alone; the other options travel in the low bits of our timestamp, which the
//! peer echoes, laid out as Linux does.

use wire::tcp::{Flags, Options, Segment, Timestamps};
use wire::{Instant, SeqNum};

use crate::{Config, Context, Ecn, Open, Outgoing, Tcb};

/// What must be known of a SYN to open a connection by it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// `seg.seq`.
    pub seq: SeqNum,
    /// `seg.wnd`.
    pub window: u16,
    /// The peer's MSS; 0 where it gave none.
    pub mss: u16,
    /// Its window scale.
    pub scale: Option<u8>,
    /// Its timestamp.
    pub timestamp: Option<u32>,
    /// It takes SACK.
    pub sack: bool,
    /// It asked for ECN (RFC 3168 6.1.1).
    pub ecn: bool,
}

impl Offer {
    /// What `syn` offers.
    pub fn of(syn: &Segment) -> Offer {
        let o = &syn.options;
        Offer {
            seq: syn.seq,
            window: syn.window,
            mss: o.mss.unwrap_or(0),
            scale: o.window_scale,
            timestamp: o.timestamps.map(|ts| ts.value),
            sack: o.sack_permitted,
            ecn: syn.flags.contains(Flags::ECE | Flags::CWR),
        }
    }

    /// Without what a cookie cannot carry: all but the segment size need the timestamp, on both sides.
    pub fn for_cookie(self, config: &Config) -> Offer {
        match self.timestamp.filter(|_| config.timestamps) {
            Some(_) => self,
            None => Offer { scale: None, timestamp: None, sack: false, ecn: false, ..self },
        }
    }

    fn segment(&self) -> Segment<'static> {
        let timestamps = self.timestamp.map(|value| Timestamps { value, echo: 0 });
        let mss = Some(self.mss).filter(|mss| *mss > 0);
        let options =
            Options { mss, window_scale: self.scale, sack_permitted: self.sack, timestamps, ..Options::default() };
        let flags = if self.ecn { Flags::SYN | Flags::ECE | Flags::CWR } else { Flags::SYN };
        let (seq, window) = (self.seq, self.window);
        Segment {
            src_port: 0,
            dst_port: 0,
            seq,
            ack: SeqNum(0),
            flags,
            window,
            urgent: 0,
            options,
            payload: &[],
            mss: 0,
        }
    }

    /// The offer in the low bits of a timestamp: window scale (15 for none), SACK, ECN.
    pub fn to_bits(&self) -> u32 {
        self.scale.map_or(15, |s| s.min(14) as u32) | (self.sack as u32) << 4 | (self.ecn as u32) << 5
    }

    /// Takes over what [`Offer::to_bits`] had noted.
    pub fn with_bits(self, bits: u32) -> Offer {
        let scale = Some((bits & 15) as u8).filter(|s| *s < 15);
        Offer { scale, sack: bits & 16 != 0, ecn: bits & 32 != 0, ..self }
    }
}

/// Bits of a timestamp that carry options.
pub const TS_BITS: u32 = 6;

/// A timestamp with `bits` below, not later than `now` (Linux's cookie_init_timestamp).
pub fn stamp(now: u32, bits: u32) -> u32 {
    let stamped = (now >> TS_BITS << TS_BITS) | bits;
    if stamped > now { stamped.wrapping_sub(1 << TS_BITS) } else { stamped }
}

impl Tcb {
    /// The SYN/ACK for a SYN; nothing is kept. It is what the connection of [`Tcb::resume`] would send.
    #[inline]
    pub fn syn_ack(open: &Open, offer: &Offer, now: Instant, config: &Config) -> Outgoing {
        let offset = open.ts_offset;
        let timestamp = offer.timestamp.filter(|_| config.timestamps);
        let options = Options {
            mss: Some(open.mss),
            window_scale: offer.scale.filter(|_| config.window_scaling).map(|_| open.scale(config)),
            sack_permitted: config.sack && offer.sack,
            timestamps: timestamp.map(|echo| Timestamps { value: (now.millis() as u32).wrapping_add(offset), echo }),
            ..Options::default()
        };
        let mut flags = Flags::SYN | Flags::ACK;
        if offer.ecn && config.ecn != Ecn::Never {
            // RFC 3168 6.1.1.
            flags = flags | Flags::ECE;
        }
        let window = open.first_window(config) as u16;
        let (seq, ack) = (open.iss, offer.seq + 1);
        Outgoing { seq, ack, flags, window, ecn: 0, options, offset: 0, len: 0, fresh: false }
    }

    /// The connection in SYN-RECEIVED whose SYN/ACK went out at `sent`, `retries` times more after that; where `sent` is
    /// not known, only an echoed timestamp measures the handshake's round trip: a cookie's reads up to 128 ms too long.
    pub fn resume(&mut self, open: &Open, offer: &Offer, sent: Option<Instant>, retries: u8, cx: &mut Context) {
        let now = cx.now;
        cx.now = sent.unwrap_or(now);
        self.accept(open, &offer.segment(), cx);
        self.note_syn(cx);
        self.stats.segs_out = 1;
        cx.now = now;
        self.timers.heard(now);
        if sent.is_none() {
            // Which SYN/ACK the ACK answers is not known.
            self.board.first_is_ambiguous(cx.sent);
        }
        self.stats.retrans = retries as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers() -> impl Iterator<Item = Offer> {
        (0..=15u8).flat_map(|scale| {
            (0..4u8).map(move |bits| Offer {
                seq: SeqNum(77),
                window: 1000,
                mss: 1460,
                scale: Some(scale).filter(|s| *s < 15),
                timestamp: Some(5),
                sack: bits & 1 != 0,
                ecn: bits & 2 != 0,
            })
        })
    }

    #[test]
    fn options_come_back_out_of_the_bits() {
        for offer in offers() {
            assert!(offer.to_bits() < 1 << TS_BITS);
            let bare = Offer { scale: None, sack: false, ecn: false, ..offer };
            assert_eq!(bare.with_bits(offer.to_bits()), offer);
            assert_eq!(Offer::of(&offer.segment()), offer);
        }
    }

    #[test]
    fn a_stamp_is_never_in_the_future_and_never_far_behind() {
        for now in (1000..2000).chain([u32::MAX, u32::MAX - 63, 64]) {
            for bits in 0..64 {
                let ts = stamp(now, bits);
                assert_eq!(ts & 63, bits);
                assert!(ts <= now && now - ts < 128, "{now} {bits} {ts}");
            }
        }
        // At the very start there is no earlier one: it wraps.
        assert_eq!(stamp(3, 9), 9u32.wrapping_sub(64));
    }

    #[test]
    fn a_cookie_without_timestamps_carries_the_segment_size_alone() {
        for offer in offers() {
            let on = Config::default();
            let off = Config { timestamps: false, ..Config::default() };
            for bare in [Offer { timestamp: None, ..offer }.for_cookie(&on), offer.for_cookie(&off)] {
                assert_eq!((bare.scale, bare.sack, bare.ecn, bare.mss), (None, false, false, 1460));
            }
            assert_eq!(offer.for_cookie(&on), offer);
        }
    }
}
