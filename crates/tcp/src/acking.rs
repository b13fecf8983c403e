//! When to acknowledge (RFC 9293 3.8.6.3): at least every second full-sized segment, otherwise delayed; at once at the
//! start of a transfer, where the peer's slow start waits for it (Linux's quick ACKs), and not at once where the
//! application answers what it reads, so that the ACK rides on the answer (its ping-pong mode).

use crate::rcv::receiver::Urgency;
use crate::{Context, Tcb, flag};

impl Tcb {
    /// `segment` bytes came in one segment and are in order.
    #[inline(always)]
    pub(crate) fn schedule_ack(&mut self, segment: usize, cx: &mut Context) {
        let rto = self.rtt.rto(cx.config);
        match self.receiver.arrived(segment, self.rcv.unacked(), cx.now, rto, self.has(flag::PINGPONG)) {
            Urgency::Now => self.set(flag::ACK_NOW, true),
            // The application is about to hear of it; its answer may be a turn away.
            Urgency::Quick => self.set(flag::ACK_NOW | flag::ACK_LATER, true),
            Urgency::Delayed if self.has(flag::ACK_DELAYED) => {}
            Urgency::Delayed => {
                self.set(flag::ACK_DELAYED, true);
                self.timers.delay_ack(cx.now + cx.config.delayed_ack);
            }
        }
    }

    /// Data goes out soon after data came in: the application answers.
    pub(crate) fn note_answer(&mut self, cx: &Context) {
        let delay = cx.config.delayed_ack.as_micros() as u64;
        if self.receiver.data_at().is_some_and(|at| cx.now.micros_since(at) < delay) {
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
        if self.rcv.unacked() > 0 {
            self.receiver.ack_went();
        }
        self.rcv.acknowledged();
    }
}
