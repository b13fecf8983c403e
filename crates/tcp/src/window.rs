//! The receive window: what is offered, when it grows, and silly-window avoidance on the receiving side.

use wire::tcp::Options;

use crate::tcb::{Context, Tcb, flag};
use crate::{Config, State};

/// The shift that lets 16 bits name `buffer` bytes (RFC 7323 2.2).
pub(crate) fn scale_for(buffer: u32, config: &Config) -> u8 {
    if !config.window_scaling {
        return 0;
    }
    (0..14).find(|s| (buffer >> s) <= 0xffff).unwrap_or(14)
}

/// The window of a SYN, which is never scaled (RFC 7323 2.2).
pub(crate) fn initial(buffer: u32) -> u32 {
    buffer.min(0xffff)
}

impl Tcb {
    /// Moves the right edge as far as the buffer allows and gives the window field's value.
    ///
    /// RFC 9293 3.8.6.2.2 (MUST-39): the edge moves only by min(half the buffer, one segment) or more; it never moves
    /// left (SHLD-14).
    pub(crate) fn offer_window(&mut self) -> u16 {
        if self.state == State::SynSent {
            return initial(self.receive_buffer) as u16;
        }
        let free = self.receive_buffer.saturating_sub(self.occupied);
        let offered = self.rcv_adv.since(self.rcv_nxt);
        let step = (self.receive_buffer / 2).min(self.mss_clamp as u32);
        let limit = 0xffff << self.rcv_scale;
        let mut window = offered;
        if free > offered && free - offered >= step.min(free) {
            window = free.min(limit);
        }
        // RFC 7323 2.2: the window of a segment with SYN is not scaled. Rounding up never pulls the edge back.
        let shift = if self.state == State::SynReceived { 0 } else { self.rcv_scale };
        let field = (window.saturating_add((1 << shift) - 1) >> shift).min(0xffff);
        if field << shift > offered {
            self.rcv_adv = self.rcv_nxt + (field << shift);
        }
        field as u16
    }

    /// The application read `bytes`: tell the peer when the window opens by a useful step.
    pub fn consumed(&mut self, bytes: u32, _cx: &mut Context) {
        self.occupied = self.occupied.saturating_sub(bytes);
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            return;
        }
        let free = self.receive_buffer.saturating_sub(self.occupied).min(0xffff << self.rcv_scale);
        let offered = self.rcv_adv.since(self.rcv_nxt);
        // Linux's habit: an unsolicited update when the window at least doubles, or opens from nothing.
        let step = (self.receive_buffer / 2).min(2 * self.mss_clamp as u32);
        if free >= offered.saturating_mul(2).max(offered + step.max(1)) {
            self.set(flag::ACK_NOW, true);
        }
    }

    /// SO_RCVBUF: a smaller buffer takes effect as data arrives; the window does not shrink.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        self.receive_buffer = bytes.max(2048);
    }

    /// Options of an outgoing segment.
    pub(crate) fn options(&self, syn: bool, cx: &Context) -> Options {
        let mut o = Options::default();
        if syn {
            o.mss = Some(self.mss_clamp);
            o.window_scale = self.has(flag::SCALED).then_some(self.rcv_scale);
        }
        if self.has(flag::TIMESTAMPS) {
            let value = (cx.now.millis() as u32).wrapping_add(self.ts_offset);
            // RFC 7323 3.2: TSecr is zero while ACK is not set.
            let echo = if self.state == State::SynSent { 0 } else { self.ts_recent };
            o.timestamps = Some(wire::tcp::Timestamps { value, echo });
        }
        o
    }
}
