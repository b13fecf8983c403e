//! When to acknowledge (RFC 9293 3.8.6.3): at least every second full-sized segment, otherwise delayed; at once at the
//! start of a transfer, where the peer's slow start waits for it (Linux's quick ACKs), and not at once where the
//! application answers what it reads, so that the ACK rides on the answer (its ping-pong mode).

use crate::{Context, Tcb, flag};

/// Most quick ACKs at the start of a transfer.
const QUICK: u32 = 16;

impl Tcb {
    /// `segment` bytes came in one segment and are in order.
    pub(crate) fn schedule_ack(&mut self, segment: usize, cx: &mut Context) {
        if segment >= self.receiver.mss as usize {
            self.receiver.mss = segment.min(self.receiver.mss_clamp as usize) as u16;
        }
        let first = self.receiver.data_at == wire::Instant::ZERO;
        let idle = cx.now.micros_since(self.receiver.data_at) > self.rtt.rto(cx.config) as u64;
        if first || (idle && !self.has(flag::PINGPONG)) {
            // Half a window of quick ACKs, as at the start.
            let half = self.receiver.buffer / (2 * self.receiver.mss.max(1) as u32);
            self.receiver.quick_acks = self.receiver.quick_acks.max(half.clamp(2, QUICK) as u8);
        }
        self.receiver.data_at = cx.now;
        let quick = self.receiver.quick_acks > 0 && !self.has(flag::PINGPONG);
        // SHLD-19: every second full-sized segment.
        let second = self.rcv.unacked > self.receiver.mss as u32;
        if second || self.receiver.ooo.is_some() {
            self.set(flag::ACK_NOW, true);
        } else if quick {
            // The application is about to hear of it; its answer may be a turn away.
            self.set(flag::ACK_NOW | flag::ACK_LATER, true);
        } else if !self.has(flag::ACK_DELAYED) {
            self.set(flag::ACK_DELAYED, true);
            self.timers.delay_ack(cx.now + cx.config.delayed_ack);
        }
    }

    /// Data goes out soon after data came in: the application answers.
    pub(crate) fn note_answer(&mut self, cx: &Context) {
        let delay = cx.config.delayed_ack.as_micros() as u64;
        if self.receiver.data_at != wire::Instant::ZERO && cx.now.micros_since(self.receiver.data_at) < delay {
            self.set(flag::PINGPONG, true);
        }
    }

    /// The answer did not come in time: no waiting for the next one.
    pub(crate) fn delayed_ack_expired(&mut self) {
        self.set(flag::PINGPONG, false);
    }

    /// An ACK goes out with this segment: everything received is acknowledged by it (RFC 9293 3.8.6.3).
    #[inline(always)]
    pub(crate) fn acknowledged_now(&mut self) {
        self.set(flag::ACK_NOW | flag::ACK_DELAYED | flag::ACK_LATER, false);
        self.timers.ack_went();
        if self.rcv.unacked > 0 {
            self.receiver.quick_acks = self.receiver.quick_acks.saturating_sub(1);
        }
        self.rcv.unacked = 0;
        self.rcv.last_ack_sent = self.rcv.nxt;
    }
}
