//! Congestion control of one connection: the window, the algorithm, how much of the window was really used (RFC 7661, as Linux does
//! it), restart after idle (RFC 5681 4.1), and pacing.
//!
//! Invariants: window and threshold are at least one segment, so that there is always something that may go; while a rate is
//! asked for, nothing goes before `pace_at`.

use wire::{Instant, SeqNum};

use crate::config::{Config, MOST_BURST};
use crate::congestion::{AckSample, Algorithm, CongestionControl, Controller, Window};
use crate::loss::scoreboard::Scoreboard;
use crate::rtt::Rtt;

#[derive(Debug)]
pub(crate) struct Congestion {
    window: Window,
    control: Controller,
    /// Most segments out at once in the present window, which began below `usage_seq` (RFC 7661).
    max_out: u32,
    usage_seq: SeqNum,
    used: u32,
    stamp: Instant,
    /// When the next segment may go; `FAR` where none was paced.
    pace_at: Instant,
    /// Most bytes a second, SO_MAX_PACING_RATE; `u64::MAX`: no limit.
    max_pacing: u64,
    /// The window held the sender back when its use was judged last.
    limited: bool,
}

/// What is kept of it in a pause. How much was out in the present window, the next burst says anew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kept {
    pub cwnd: u32,
    pub ssthresh: u32,
    pub w_max: u32,
    pub past_slow_start: bool,
    pub algorithm: Algorithm,
    pub max_pacing: u64,
    /// How much of a window was used since when, where that is still to be judged.
    pub use_since: Option<(u32, Instant)>,
}

impl Congestion {
    #[inline(always)]
    pub fn new(iss: SeqNum, config: &Config) -> Congestion {
        Congestion {
            window: Window::new(config.initial_window),
            control: Controller::new(config.congestion),
            max_out: 0,
            usage_seq: iss,
            used: 0,
            stamp: Instant::ZERO,
            pace_at: Instant::FAR,
            max_pacing: u64::MAX,
            limited: false,
        }
    }

    /// RFC 6928: IW = 10 segments by default, for every segment size this stack uses (RFC 6928 2's byte limit included).
    #[inline(always)]
    fn initial(config: &Config) -> u32 {
        config.initial_window.max(1)
    }

    /// The handshake is done; `lost` where it says that the path is bad (RFC 6928 2, RFC 5681 3.1).
    #[inline(always)]
    pub fn open(&mut self, nxt: SeqNum, now: Instant, lost: bool, config: &Config) {
        self.window = Window::new(if lost { 1 } else { Congestion::initial(config) });
        self.stamp = now;
        self.usage_seq = nxt;
    }

    /// What to keep in a pause, in which nothing is out; something was sent last at `sent_at`.
    pub fn keep(&self, sent_at: Instant, now: Instant, rtt: &Rtt, config: &Config) -> Kept {
        // An initial window does not decay, and after an idle RTO the next burst forgets how much was used before.
        let settled = self.window.cwnd <= Congestion::initial(config) || self.rests(sent_at, now, rtt, config);
        let (w_max, past_slow_start) = self.control.keep();
        let ssthresh = if self.control.leaves(&self.window) { self.window.cwnd } else { self.window.ssthresh };
        Kept {
            cwnd: self.window.cwnd,
            ssthresh,
            w_max,
            past_slow_start,
            algorithm: self.control.algorithm(),
            max_pacing: self.max_pacing,
            use_since: (!settled).then_some((self.used, self.stamp)),
        }
    }

    /// Goes on after it; the least round trip was `min_rtt`.
    #[inline(always)]
    pub fn resume(&mut self, kept: &Kept, min_rtt: u32, nxt: SeqNum, sent_at: Instant) {
        self.window = Window { ssthresh: kept.ssthresh, ..Window::new(kept.cwnd) };
        self.control = Controller::resumed(kept.algorithm, min_rtt, kept.w_max, kept.past_slow_start);
        self.max_pacing = kept.max_pacing;
        self.usage_seq = nxt;
        (self.used, self.stamp) = kept.use_since.unwrap_or((0, sent_at));
    }

    /// TCP_CONGESTION: `algorithm` goes on from the present window.
    pub fn switch(&mut self, algorithm: Algorithm) {
        self.control = Controller::new(algorithm);
    }

    // -- The window.

    #[inline(always)]
    pub fn window(&self) -> Window {
        self.window
    }

    #[inline(always)]
    pub fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    #[inline(always)]
    pub fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// Segments that may go where `in_flight` are out.
    #[inline(always)]
    pub fn room(&self, in_flight: u32) -> u32 {
        self.window.cwnd.saturating_sub(in_flight)
    }

    /// `acked` segments were delivered outside a reduction; before that `in_flight` were out, and the window was the limit where
    /// `limited`.
    #[inline(always)]
    pub fn on_ack(&mut self, acked: u32, in_flight: u32, limited: bool, now: Instant, srtt: u32) {
        let sample = AckSample { acked, in_flight, limited, max_out: self.max_out, now, srtt };
        self.control.on_ack(&sample, &mut self.window);
    }

    /// A round trip of `rtt` µs was measured on the acknowledgment up to `una`.
    #[inline(always)]
    pub fn on_rtt(&mut self, rtt: u32, una: SeqNum, nxt: SeqNum) {
        let used = self.window.is_used(self.limited, self.max_out);
        self.control.on_rtt(rtt, una, nxt, &self.window, used);
    }

    /// Sending begins again after `idle` µs with nothing in flight.
    #[inline(always)]
    pub fn on_restart(&mut self, now: Instant, idle: u64) {
        self.control.on_restart(now, idle);
    }

    /// A loss or a mark: the new threshold. The window follows by [`Congestion::follow`].
    pub fn begin_reduction(&mut self) {
        self.window.counted = 0;
        self.window.ssthresh = self.control.ssthresh(&self.window);
    }

    /// The window that the reduction has come to.
    pub fn follow(&mut self, cwnd: u32) {
        self.window.cwnd = cwnd;
    }

    /// The reduction is over.
    pub fn end_reduction(&mut self) {
        if self.window.ssthresh < u32::MAX {
            self.window.cwnd = self.window.ssthresh;
        }
    }

    /// The retransmission timer expired for the first time: the new threshold.
    pub fn on_timeout(&mut self) {
        self.window.ssthresh = self.control.ssthresh(&self.window);
        self.control.on_timeout();
    }

    /// It expired: one segment more than the `in_flight` that are still believed out.
    pub fn collapse(&mut self, in_flight: u32) {
        self.window.cwnd = in_flight + 1;
        self.window.counted = 0;
    }

    /// A reduction was not called for: at least what there was before.
    pub fn undo(&mut self, cwnd: u32, ssthresh: u32) {
        self.window.cwnd = self.window.cwnd.max(cwnd);
        self.window.ssthresh = self.window.ssthresh.max(ssthresh);
        self.control.on_undo();
    }

    /// What growth has shown the path to bear is the threshold at least.
    pub fn keep_borne(&mut self) {
        self.window.ssthresh = self.window.borne();
    }

    // -- Its use.

    /// The window held the sender back.
    #[inline(always)]
    pub fn hold(&mut self) {
        self.limited = true;
    }

    /// Whether it did lately.
    #[inline(always)]
    pub fn limited(&self) -> bool {
        self.limited
    }

    /// A burst of new data has ended: was the window or the application the limit? `open` outside recovery.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub fn judge(
        &mut self,
        una: SeqNum,
        nxt: SeqNum,
        board: &Scoreboard,
        open: bool,
        now: Instant,
        rtt: &Rtt,
        config: &Config,
    ) {
        let (limited, out) = (board.in_flight() >= self.window.cwnd, board.packets_out());
        if !una.before(self.usage_seq) || limited || (!self.limited && out > self.max_out) {
            self.limited = limited;
            self.max_out = out;
            self.usage_seq = nxt;
        }
        let full = self.window.is_used(self.limited, self.max_out);
        if full {
            self.used = 0;
            self.stamp = now;
            return;
        }
        self.used = self.used.max(out);
        let rto = rtt.rto(config) as u64;
        if config.slow_start_after_idle && now.micros_since(self.stamp) >= rto {
            self.application_limited(open, now, config);
        }
    }

    /// RFC 7661 4.4.3: a window that has not been used for an RTO decays halfway towards what was.
    fn application_limited(&mut self, open: bool, now: Instant, config: &Config) {
        if open {
            let used = self.used.max(Congestion::initial(config));
            if used < self.window.cwnd {
                self.window.ssthresh = self.window.borne();
                self.window.cwnd = (self.window.cwnd + used) / 2;
            }
            self.used = 0;
        }
        self.stamp = now;
    }

    /// For how long, µs, nothing was sent. What was judged before lay before this pause, or was this one.
    #[inline(always)]
    fn idle(&self, sent_at: Instant, now: Instant) -> u64 {
        now.micros_since(sent_at.max(self.stamp))
    }

    /// RFC 5681 4.1: whether it was for longer than an RTO.
    #[inline(always)]
    fn rests(&self, sent_at: Instant, now: Instant, rtt: &Rtt, config: &Config) -> bool {
        config.slow_start_after_idle && self.idle(sent_at, now) > rtt.rto(config) as u64
    }

    /// RFC 5681 4.1: after an idle RTO the window starts from at most the initial one; one halving for each RTO gone by.
    #[inline]
    pub fn restart_after_idle(&mut self, sent_at: Instant, now: Instant, rtt: &Rtt, config: &Config) {
        if !self.rests(sent_at, now, rtt, config) {
            return;
        }
        let (rto, idle) = (rtt.rto(config) as u64, self.idle(sent_at, now));
        let floor = Congestion::initial(config).min(self.window.cwnd);
        self.window.ssthresh = self.window.borne();
        let mut left = idle.saturating_sub(rto);
        while left > 0 && self.window.cwnd > floor {
            self.window.cwnd /= 2;
            left = left.saturating_sub(rto);
        }
        self.window.cwnd = self.window.cwnd.max(floor);
        self.stamp = now;
        self.used = 0;
    }

    // -- Pacing.

    /// Bytes a second, for a round trip of `srtt` µs: twice the window in slow start, a fifth more than it afterwards (Linux's
    /// ratios).
    fn rate(&self, packets_out: u32, smss: u16, srtt: u32) -> u64 {
        let window = self.window.cwnd.max(packets_out) as u64 * smss as u64;
        let ratio = if self.window.cwnd < self.window.ssthresh / 2 { 200 } else { 120 };
        window.saturating_mul(ratio * 10_000) / srtt as u64
    }

    /// Segments that go as one: what the path takes in a millisecond or, where round trips are short, in a fraction of one.
    pub fn burst_segments(&self, packets_out: u32, smss: u16, rtt: &Rtt, config: &Config) -> u32 {
        let second = self.rate(packets_out, smss, rtt.srtt().max(1)).min(self.max_pacing);
        let near = 65_536u64 >> (rtt.min() >> 9).min(17);
        ((second / 1024 + near) / smss as u64).max(config.min_burst.into()).min(MOST_BURST.into()) as u32
    }

    /// Bytes a second; `None` where nothing is paced.
    #[inline(always)]
    fn pacing_rate(&self, packets_out: u32, smss: u16, srtt: u32, config: &Config) -> Option<u64> {
        let own = (config.pacing && srtt > 0).then(|| self.rate(packets_out, smss, srtt));
        match (own, self.max_pacing) {
            (own, u64::MAX) => own,
            (Some(own), max) => Some(own.min(max)),
            (None, max) => Some(max),
        }
    }

    /// `bytes` were sent: the next may go when they would have left at the pacing rate. Whether it must wait, where it is paced.
    #[inline(always)]
    pub fn pace(
        &mut self,
        bytes: u32,
        packets_out: u32,
        smss: u16,
        srtt: u32,
        now: Instant,
        config: &Config,
    ) -> Option<bool> {
        let rate = self.pacing_rate(packets_out, smss, srtt, config)?;
        let gap = (bytes as u64 * 1_000_000).div_ceil(rate.max(1));
        // Credit of one millisecond, so that a late turn does not slow the flow down.
        let from = match self.pace_at {
            Instant::FAR => now,
            at => at.max(Instant::from_micros(now.micros().saturating_sub(1000))),
        };
        self.pace_at = from.plus_micros(gap);
        Some(self.pace_at > now)
    }

    /// When the next segment may go, where it is paced.
    #[inline(always)]
    pub fn pace_at(&self) -> Instant {
        self.pace_at
    }

    /// Whether a rate is asked for.
    #[inline(always)]
    pub fn is_paced(&self, config: &Config) -> bool {
        config.pacing || self.max_pacing != u64::MAX
    }

    /// SO_MAX_PACING_RATE, bytes a second; `u64::MAX` is none. Whether nothing waits for it any more.
    pub fn set_max_pacing(&mut self, rate: u64) -> bool {
        self.max_pacing = rate.max(1);
        let none = rate == u64::MAX;
        if none {
            self.pace_at = Instant::FAR;
        }
        none
    }

    /// Asserts what the module's head says.
    pub fn check(&self) {
        let Window { cwnd, ssthresh, .. } = self.window;
        assert!(cwnd > 0 && ssthresh > 0, "a window of {cwnd} segments, a threshold of {ssthresh}");
    }
}
