//! RFC 5681: slow start and congestion avoidance; fast recovery's arithmetic is RFC 6582's, in `recovery`.

use super::{AckSample, CongestionControl};

/// State of RFC 5681.
#[derive(Clone, Debug)]
pub struct NewReno {
    cwnd: u32,
    ssthresh: u32,
    /// Bytes acknowledged towards the next increase in congestion avoidance (RFC 3465 style counting).
    counted: u32,
}

impl NewReno {
    /// Starts in slow start with `window` bytes.
    pub fn new(window: u32) -> NewReno {
        NewReno { cwnd: window, ssthresh: u32::MAX, counted: 0 }
    }
}

impl CongestionControl for NewReno {
    fn cwnd(&self) -> u32 {
        self.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    fn on_ack(&mut self, ack: &AckSample) {
        // RFC 7661 4.3: a window that was not used is not validated, so it does not grow.
        if !ack.window_limited {
            return;
        }
        if self.cwnd < self.ssthresh {
            // RFC 5681 3.1, equation 2, with RFC 3465's limit of two segments an ACK.
            self.cwnd = self.cwnd.saturating_add(ack.acked.min(2 * ack.smss));
            return;
        }
        // RFC 5681 3.1: one segment a window.
        self.counted = self.counted.saturating_add(ack.acked);
        if self.counted >= self.cwnd {
            self.counted -= self.cwnd;
            self.cwnd = self.cwnd.saturating_add(ack.smss);
        }
    }

    fn on_loss(&mut self, flight: u32, smss: u32) {
        // RFC 5681 3.1, equation 4.
        self.ssthresh = (flight / 2).max(2 * smss);
        self.cwnd = self.ssthresh;
        self.counted = 0;
    }

    fn set_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd;
    }

    fn on_timeout(&mut self, flight: u32, smss: u32, first: bool) {
        // RFC 5681 3.1: ssthresh is set once for a segment that times out again and again.
        if first {
            self.ssthresh = (flight / 2).max(2 * smss);
        }
        self.cwnd = smss;
        self.counted = 0;
    }

    fn on_idle_restart(&mut self, initial_window: u32) {
        self.cwnd = self.cwnd.min(initial_window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn ack(acked: u32) -> AckSample {
        AckSample { acked, flight: 10_000, smss: MSS, window_limited: true }
    }

    #[test]
    fn slow_start_doubles_and_avoidance_adds_one_segment_a_window() {
        let mut c = NewReno::new(10 * MSS);
        for _ in 0..10 {
            c.on_ack(&ack(MSS));
        }
        assert_eq!(c.cwnd(), 20 * MSS);
        c.on_loss(20 * MSS, MSS);
        assert_eq!((c.cwnd(), c.ssthresh()), (10 * MSS, 10 * MSS));
        for _ in 0..10 {
            c.on_ack(&ack(MSS));
        }
        assert_eq!(c.cwnd(), 11 * MSS);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut c = NewReno::new(10 * MSS);
        c.on_ack(&AckSample { window_limited: false, ..ack(MSS) });
        assert_eq!(c.cwnd(), 10 * MSS);
    }

    #[test]
    fn a_timeout_restarts_from_one_segment_and_halves_once() {
        let mut c = NewReno::new(40 * MSS);
        c.on_timeout(40 * MSS, MSS, true);
        assert_eq!((c.cwnd(), c.ssthresh()), (MSS, 20 * MSS));
        c.on_timeout(MSS, MSS, false);
        assert_eq!((c.cwnd(), c.ssthresh()), (MSS, 20 * MSS));
    }
}
