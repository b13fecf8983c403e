//! The receive window's arithmetic: its scale, a SYN's window, and silly-window avoidance on the receiving side.

use crate::Config;

/// RFC 7323 2.3: the largest shift.
pub(crate) const MOST_SCALE: u8 = 14;

/// The shift that lets 16 bits name `buffer` bytes (RFC 7323 2.2).
pub(crate) fn scale_for(buffer: u32, config: &Config) -> u8 {
    if !config.window_scaling {
        return 0;
    }
    (0..MOST_SCALE).find(|s| (buffer >> s) <= 0xffff).unwrap_or(MOST_SCALE)
}

/// The window of a SYN, which is never scaled (RFC 7323 2.2): whole segments, as Linux offers.
#[inline(always)]
pub(crate) fn initial(buffer: u32, mss: u16) -> u32 {
    let mss = mss.max(1) as u32;
    let whole = if buffer > mss { buffer - buffer % mss } else { buffer };
    whole.min(0xffff)
}

/// The value of the window field where `offered` bytes are and `free` may be.
///
/// RFC 9293 3.8.6.2.2 (MUST-39): the edge moves only by `step`, min(half the buffer, one segment), or more; it never moves left
/// (SHLD-14).
#[inline(always)]
pub(crate) fn field(offered: u32, free: u32, step: u32, shift: u8) -> u32 {
    let mut window = offered;
    if free > offered && free - offered >= step {
        window = free.min(0xffff << shift);
    }
    // Rounding up never pulls the edge back.
    (window.saturating_add((1 << shift) - 1) >> shift).min(0xffff)
}
