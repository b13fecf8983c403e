//! CUBIC (RFC 9438) in integers: segments, milliseconds, and fractions in fixed point.

use wire::{Instant, SeqNum};

use super::{AckSample, CongestionControl, HyStart, Window};

/// β = 0.7 (RFC 9438 4.6), of 1024.
const BETA: u64 = 717;
/// C = 0.4 segments/s³ (RFC 9438 4.1) for time in 1024ths of a second: C = C_NUM / 2^C_SHIFT with time cubed.
const C_NUM: u64 = 410;
const C_SHIFT: u32 = 10 + 30;
/// α = 3 (1 − β) / (1 + β) (RFC 9438 4.3), as acknowledged segments a window for one segment of growth: 8/α·1/8.
const RENO_SCALE: u64 = 8 * (1024 + BETA) / 3 / (1024 - BETA);

/// RFC 9438 4.2's variables.
#[derive(Clone, Debug, Default)]
pub struct Cubic {
    /// Start of this epoch of congestion avoidance, ms; 0: none.
    epoch: u64,
    /// Round trip, shortest of the connection, µs; 0: none.
    min_rtt: u32,
    /// `W_max`.
    w_max: u32,
    /// The plateau of this epoch: `W_max`, or the window where it began above that.
    origin: u32,
    /// `K`, 1024ths of a second.
    k: u64,
    /// Acknowledged segments for one of growth.
    each: u32,
    last_cwnd: u32,
    last_ms: u64,
    /// `W_est` (RFC 9438 4.3) and the acknowledged segments counted for it.
    w_est: u32,
    est_acked: u32,
    hystart: HyStart,
    /// HyStart++ has ended slow start; the window takes it over.
    leave_slow_start: bool,
}

impl Cubic {
    /// At the start of an epoch; the shortest round trip so far, µs, `u32::MAX` where there was none.
    pub(super) fn resumed(min_rtt: u32, w_max: u32, past_slow_start: bool) -> Cubic {
        let min_rtt = if min_rtt == u32::MAX { 0 } else { min_rtt };
        let mut cubic = Cubic { min_rtt, w_max, ..Cubic::default() };
        if past_slow_start {
            cubic.hystart.stop();
        }
        cubic
    }

    /// `W_max`, and whether the first slow start is over. The next epoch begins after the pause, which is no time of the curve then
    /// (RFC 9438 4.2, 5.8).
    pub(super) fn keep(&self) -> (u32, bool) {
        (self.w_max, self.leave_slow_start || self.hystart.is_done())
    }

    /// Slow start is to end.
    pub(super) fn leaves(&self) -> bool {
        self.leave_slow_start
    }

    fn update(&mut self, cwnd: u32, acked: u32, now: Instant) {
        let ms = now.millis();
        self.est_acked = self.est_acked.saturating_add(acked);
        if self.last_cwnd == cwnd && ms.saturating_sub(self.last_ms) <= 1000 / 32 {
            return;
        }
        // The curve is looked at once a millisecond; what was acknowledged meanwhile still counts for `W_est`.
        if !(self.epoch > 0 && ms == self.last_ms) {
            self.last_cwnd = cwnd;
            self.last_ms = ms;
            self.follow(cwnd, acked, ms);
        }
        // RFC 9438 4.3: never slower than Reno with the same average window would be.
        let each_est = ((cwnd as u64 * RENO_SCALE) >> 3).max(1) as u32;
        while self.est_acked > each_est {
            self.est_acked -= each_est;
            self.w_est += 1;
        }
        if self.w_est > cwnd {
            self.each = self.each.min(cwnd / (self.w_est - cwnd));
        }
        // RFC 9438 4.4: no more than half as much again in a round trip.
        self.each = self.each.max(2);
    }

    fn follow(&mut self, cwnd: u32, acked: u32, ms: u64) {
        if self.epoch == 0 {
            // RFC 9438 4.2.
            self.epoch = ms.max(1);
            self.est_acked = acked;
            self.w_est = cwnd;
            if self.w_max <= cwnd {
                self.k = 0;
                self.origin = cwnd;
            } else {
                self.k = cube_root((self.w_max - cwnd) as u64 * ((1 << C_SHIFT) / C_NUM));
                self.origin = self.w_max;
            }
        }
        // W_cubic(t + RTT).
        let t = (ms - self.epoch) + self.min_rtt as u64 / 1000;
        let t = t * 1024 / 1000;
        let distance = t.abs_diff(self.k).min(1 << 17);
        let delta = ((C_NUM as u128 * (distance as u128).pow(3)) >> C_SHIFT) as u64;
        let target = match t < self.k {
            true => (self.origin as u64).saturating_sub(delta),
            false => self.origin as u64 + delta,
        };
        self.each = match target > cwnd as u64 {
            true => (cwnd as u64 / (target - cwnd as u64)) as u32,
            // Past the curve: hardly at all.
            false => 100 * cwnd,
        };
        // The first epoch has no maximum to look for: at least five per cent a round trip.
        if self.w_max == 0 {
            self.each = self.each.min(20);
        }
    }
}

impl Cubic {
    #[inline(never)]
    fn grow(&mut self, ack: &AckSample, w: &mut Window) {
        let mut acked = ack.acked;
        if w.slow_start() {
            let allowed = self.hystart.growth(acked);
            let left = w.grow_slow_start(allowed);
            if w.slow_start() || left == 0 {
                return;
            }
            acked = left;
        }
        self.update(w.cwnd, acked, ack.now);
        w.grow_linear(self.each, acked);
    }
}

impl CongestionControl for Cubic {
    #[inline(always)]
    fn on_ack(&mut self, ack: &AckSample, w: &mut Window) {
        if core::mem::take(&mut self.leave_slow_start) && w.slow_start() {
            w.ssthresh = w.cwnd;
        }
        if ack.validates(w) {
            self.grow(ack, w);
        }
    }

    fn ssthresh(&mut self, w: &Window) -> u32 {
        // RFC 9438 4.6, and 4.7 fast convergence: a flow that lost before it came back to its maximum gives way.
        self.epoch = 0;
        self.hystart.stop();
        self.w_max = match w.cwnd < self.w_max {
            true => (w.cwnd as u64 * (1024 + BETA) / 2048) as u32,
            false => w.cwnd,
        };
        ((w.cwnd as u64 * BETA / 1024) as u32).max(2)
    }

    #[inline(always)]
    fn on_rtt(&mut self, rtt: u32, una: SeqNum, nxt: SeqNum, w: &Window, used: bool) {
        if self.min_rtt == 0 || rtt < self.min_rtt {
            self.min_rtt = rtt.max(1);
        }
        // A window that does not grow fills no queue.
        if used && w.slow_start() && self.hystart.on_rtt(rtt, una, nxt) {
            self.leave_slow_start = true;
        }
    }

    fn on_timeout(&mut self) {
        // RFC 9438 4.8: the next epoch starts from the window it finds, with K = 0.
        let hystart = core::mem::take(&mut self.hystart);
        *self = Cubic { min_rtt: self.min_rtt, hystart, ..Cubic::default() };
    }

    fn on_undo(&mut self) {
        // RFC 9438 4.9: the epoch goes on from the restored window.
        self.epoch = 0;
    }

    fn on_restart(&mut self, now: Instant, idle: u64) {
        // RFC 9438 5.8: idle time is no time of the curve.
        if self.epoch > 0 {
            self.epoch = (self.epoch + idle / 1000).min(now.millis());
        }
    }
}

/// Cube root, rounded down.
fn cube_root(n: u64) -> u64 {
    if n == 0 {
        return 0;
    }
    let mut x = 1u64 << (64 - n.leading_zeros()).div_ceil(3);
    loop {
        // Newton from above.
        let y = (2 * x + n / (x * x)) / 3;
        if y >= x {
            return x;
        }
        x = y;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(c: &mut Cubic, w: &mut Window, from_ms: u64, to_ms: u64, rtt_ms: u64) {
        let mut t = from_ms;
        while t < to_ms {
            for _ in 0..w.cwnd {
                let now = Instant::from_micros(t * 1000);
                let a = AckSample {
                    acked: 1,
                    in_flight: w.cwnd,
                    limited: true,
                    max_out: w.cwnd,
                    now,
                    srtt: rtt_ms as u32 * 1000,
                };
                c.on_ack(&a, w);
            }
            t += rtt_ms;
        }
    }

    #[test]
    fn roots() {
        for n in [0u64, 1, 7, 8, 9, 26, 27, 1 << 30, u32::MAX as u64, 123_456_789_012, 1 << 59] {
            let r = cube_root(n);
            assert!(r.pow(3) <= n && (r + 1).pow(3) > n, "{n}: {r}");
        }
    }

    #[test]
    fn a_loss_leaves_seven_tenths_and_fast_convergence_gives_way() {
        let mut c = Cubic::default();
        assert_eq!(c.ssthresh(&Window::new(100)), 70);
        assert_eq!(c.w_max, 100);
        assert_eq!(c.ssthresh(&Window::new(80)), 56);
        assert_eq!(c.w_max, 68);
        assert_eq!(c.ssthresh(&Window::new(2)), 2);
    }

    #[test]
    fn the_window_comes_back_to_its_maximum_in_k_seconds() {
        let mut c = Cubic::default();
        let mut w = Window::new(1000);
        c.on_rtt(100_000, SeqNum(0), SeqNum(1), &w, true);
        w.ssthresh = c.ssthresh(&w);
        w.cwnd = w.ssthresh;
        // K = cbrt(W_max (1 − β) / C) = cbrt(750) = 9.09 s.
        run(&mut c, &mut w, 1000, 5000, 100);
        assert!((900..990).contains(&w.cwnd), "{}", w.cwnd);
        run(&mut c, &mut w, 5000, 10_100, 100);
        assert!((985..=1005).contains(&w.cwnd), "{}", w.cwnd);
        // Convex beyond.
        run(&mut c, &mut w, 10_100, 16_100, 100);
        assert!((1040..1130).contains(&w.cwnd), "{}", w.cwnd);
    }

    #[test]
    fn not_slower_than_reno_on_a_short_path() {
        let mut c = Cubic::default();
        let mut w = Window::new(20);
        c.on_rtt(2_000, SeqNum(0), SeqNum(1), &w, true);
        w.ssthresh = c.ssthresh(&w);
        w.cwnd = w.ssthresh;
        // α = 9/17 segments a round trip: 100 round trips give about 53.
        run(&mut c, &mut w, 1000, 1200, 2);
        assert!((50..80).contains(&w.cwnd), "{}", w.cwnd);
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut c = Cubic { epoch: 1000, ..Cubic::default() };
        c.on_restart(Instant::from_micros(9_000_000), 5_000_000);
        assert_eq!(c.epoch, 6000);
    }
}
