//! What the handshake agreed on. Together with the variables that every segment is compared with and moves ([`Rcv`](crate::rcv::Rcv), [`Snd`](crate::snd::Snd)), the
//! state and the flags it is the first cache line of a control block.

use wire::Instant;
use wire::tcp::{Flags, Segment};

use crate::window::MOST_SCALE;
use crate::{Config, Open};

/// The window that a segment offers, scaled: an unscaled field is a `u16`, and does not go for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegWnd(u32);

impl SegWnd {
    /// RFC 7323 2.2: the window of a segment with SYN is not scaled.
    #[inline(always)]
    pub fn of_syn(field: u16) -> SegWnd {
        SegWnd(field as u32)
    }

    #[inline(always)]
    pub fn bytes(self) -> u32 {
        self.0
    }
}

/// What the two SYNs agreed on, beside the flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated {
    /// Random offset of our timestamp clock.
    ts_offset: u32,
    /// SMSS (RFC 5681 2), bytes of payload beside timestamps.
    smss: u16,
    /// Rcv.Wind.Shift and Snd.Wind.Shift (RFC 7323 2.3).
    rcv_scale: u8,
    snd_scale: u8,
}

impl Negotiated {
    #[inline(always)]
    pub fn new(open: &Open, config: &Config) -> Negotiated {
        Negotiated { ts_offset: open.ts_offset, smss: open.mss.min(536), rcv_scale: open.scale(config), snd_scale: 0 }
    }

    /// Goes on with what was agreed on.
    #[inline(always)]
    pub fn resume(&mut self, smss: u16, rcv_scale: u8, snd_scale: u8) {
        (self.smss, self.rcv_scale, self.snd_scale) = (smss, rcv_scale, snd_scale);
    }

    /// The peer scales its windows by `shift`; one above 14 counts as 14 (RFC 7323 2.3).
    #[inline(always)]
    pub fn scale_by(&mut self, shift: u8) {
        self.snd_scale = shift.min(MOST_SCALE);
    }

    /// It does not, so neither do we.
    #[inline(always)]
    pub fn unscale(&mut self) {
        (self.rcv_scale, self.snd_scale) = (0, 0);
    }

    /// SMSS (RFC 5681 2), bytes of payload beside timestamps.
    #[inline(always)]
    pub fn smss(&self) -> u16 {
        self.smss
    }

    /// Segments are of `smss` bytes from now on; of how many they were.
    #[inline(always)]
    pub fn set_smss(&mut self, smss: u16) -> u16 {
        core::mem::replace(&mut self.smss, smss)
    }

    /// Rcv.Wind.Shift.
    #[inline(always)]
    pub fn rcv_scale(&self) -> u8 {
        self.rcv_scale
    }

    /// Snd.Wind.Shift.
    pub fn snd_scale(&self) -> u8 {
        self.snd_scale
    }

    /// What one in the peer's window field stands for, bytes.
    #[inline(always)]
    pub fn snd_unit(&self) -> u32 {
        1 << self.snd_scale
    }

    /// The window of a segment without SYN.
    #[inline(always)]
    pub fn scaled(&self, field: u16) -> SegWnd {
        SegWnd((field as u32) << self.snd_scale)
    }

    /// The window of `seg`.
    #[inline(always)]
    pub fn window_of(&self, seg: &Segment) -> SegWnd {
        if seg.flags.contains(Flags::SYN) { SegWnd::of_syn(seg.window) } else { self.scaled(seg.window) }
    }

    /// Random offset of our timestamp clock.
    pub fn ts_offset(&self) -> u32 {
        self.ts_offset
    }

    /// Our timestamp clock, ms.
    #[inline(always)]
    pub fn clock(&self, now: Instant) -> u32 {
        (now.millis() as u32).wrapping_add(self.ts_offset)
    }

    /// When, ms, low bits, a timestamp that comes back was sent.
    #[inline(always)]
    pub fn sent_at(&self, echo: u32) -> u32 {
        echo.wrapping_sub(self.ts_offset)
    }

    /// Asserts that segments are of some length, and scales are not above 14.
    pub fn check(&self) {
        assert!(self.smss > 0 && self.rcv_scale.max(self.snd_scale) <= MOST_SCALE, "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use crate::Tcb;

    #[test]
    fn what_every_segment_touches_is_one_line() {
        assert_eq!(align_of::<Tcb>(), 64);
        assert_eq!(offset_of!(Tcb, state), 0);
        assert_eq!(offset_of!(Tcb, receiver), 64, "state, flags, variables and options fill the first line");
    }
}
