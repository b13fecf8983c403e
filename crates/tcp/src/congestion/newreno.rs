//! RFC 5681: slow start and congestion avoidance; fast recovery's arithmetic is RFC 6582's, in `recovery`.

use super::{AckSample, CongestionControl, Window};

/// RFC 5681 keeps nothing beside the window.
#[derive(Clone, Debug, Default)]
pub struct NewReno;

impl CongestionControl for NewReno {
    fn on_ack(&mut self, ack: &AckSample, w: &mut Window) {
        if !ack.validates(w) {
            return;
        }
        let mut acked = ack.acked;
        if w.slow_start() {
            // RFC 5681 3.1, equation 2, counting what is acknowledged (RFC 3465).
            acked = w.grow_slow_start(acked);
        }
        if acked > 0 {
            // One segment a window.
            let each = w.cwnd;
            w.grow_linear(each, acked);
        }
    }

    fn ssthresh(&mut self, w: &Window) -> u32 {
        // RFC 5681 3.1, equation 4.
        (w.cwnd / 2).max(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Instant;

    fn ack(acked: u32) -> AckSample {
        AckSample { acked, in_flight: 10, limited: true, max_out: 10, now: Instant::ZERO, srtt: 1000 }
    }

    #[test]
    fn slow_start_doubles_and_avoidance_adds_one_segment_a_window() {
        let mut w = Window::new(10);
        for _ in 0..10 {
            NewReno.on_ack(&ack(1), &mut w);
        }
        assert_eq!(w.cwnd, 20);
        w.ssthresh = NewReno.ssthresh(&w);
        w.cwnd = w.ssthresh;
        assert_eq!(w.cwnd, 10);
        for _ in 0..9 {
            NewReno.on_ack(&ack(1), &mut w);
        }
        assert_eq!(w.cwnd, 10);
        NewReno.on_ack(&ack(1), &mut w);
        assert_eq!(w.cwnd, 11);
    }

    #[test]
    fn slow_start_ends_at_the_threshold_and_the_rest_counts_on() {
        let mut w = Window { cwnd: 8, ssthresh: 10, counted: 0 };
        NewReno.on_ack(&ack(5), &mut w);
        assert_eq!((w.cwnd, w.counted), (10, 3));
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut w = Window { cwnd: 10, ssthresh: 5, counted: 0 };
        NewReno.on_ack(&AckSample { limited: false, ..ack(20) }, &mut w);
        assert_eq!(w.cwnd, 10);
        // In slow start up to twice what was out.
        let mut w = Window::new(10);
        NewReno.on_ack(&AckSample { limited: false, max_out: 5, ..ack(1) }, &mut w);
        assert_eq!(w.cwnd, 10);
        NewReno.on_ack(&AckSample { limited: false, max_out: 6, ..ack(1) }, &mut w);
        assert_eq!(w.cwnd, 11);
    }

    #[test]
    fn never_below_two() {
        assert_eq!(NewReno.ssthresh(&Window::new(3)), 2);
        assert_eq!(NewReno.ssthresh(&Window::new(41)), 20);
    }
}
