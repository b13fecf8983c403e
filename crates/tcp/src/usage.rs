//! How much of the congestion window is really used (RFC 7661, as Linux does it), restart after idle (RFC 5681 4.1), and
//! pacing.

use wire::{Instant, SeqNum};

use crate::congestion::{Controller, Window};
use crate::loss::recovery::Phase;
use crate::{Config, Context, Tcb, flag};

/// Records of outstanding segments that every connection may have.
const MOST_RECORDS: u32 = 8192;
/// Most segments of a burst.
pub(crate) const MOST_BURST: u8 = 64;

/// Congestion control of one connection: the window, the algorithm, and how much of the window was used.
#[derive(Debug)]
pub(crate) struct Congestion {
    pub window: Window,
    pub control: Controller,
    /// Most segments out at once in the present window, which began below `usage_seq` (RFC 7661).
    pub max_out: u32,
    pub usage_seq: SeqNum,
    pub used: u32,
    pub stamp: Instant,
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
        }
    }
}

impl Tcb {
    /// RFC 6928: IW = 10 segments by default, for every segment size this stack uses (RFC 6928 2's byte limit included).
    pub(crate) fn initial_window(&self, config: &Config) -> u32 {
        config.initial_window.max(1)
    }

    /// A burst of new data has ended: was the window or the application the limit?
    #[inline]
    pub(crate) fn judge_window(&mut self, cx: &mut Context) {
        let limited = self.board.in_flight() >= self.cc.window.cwnd;
        if !self.snd.una.before(self.cc.usage_seq)
            || limited
            || (!self.has(flag::CWND_LIMITED) && self.board.packets_out() > self.cc.max_out)
        {
            self.set(flag::CWND_LIMITED, limited);
            self.cc.max_out = self.board.packets_out();
            self.cc.usage_seq = self.snd.nxt;
        }
        let full =
            self.has(flag::CWND_LIMITED) || (self.cc.window.slow_start() && self.cc.window.cwnd < 2 * self.cc.max_out);
        if full {
            self.cc.used = 0;
            self.cc.stamp = cx.now;
            return;
        }
        self.cc.used = self.cc.used.max(self.board.packets_out());
        let rto = self.rtt.rto(cx.config) as u64;
        if cx.config.slow_start_after_idle && cx.now.micros_since(self.cc.stamp) >= rto {
            self.application_limited(cx);
        }
    }

    /// As many records of outstanding segments as there may be: enough for a send buffer of ordinary ones. A peer that asks for
    /// tiny ones must not make us keep, and walk over, a record for every few bytes (CVE-2019-11478, 11479).
    pub(crate) fn most_records(&self, config: &Config) -> u32 {
        let buffer = config.send_buffer_max.max(self.sender.buffer);
        (buffer / 512).max(MOST_RECORDS)
    }

    /// RFC 7661 4.4.3: a window that has not been used for an RTO decays halfway towards what was.
    fn application_limited(&mut self, cx: &mut Context) {
        if self.recovery.phase() == Phase::Open {
            let used = self.cc.used.max(self.initial_window(cx.config));
            if used < self.cc.window.cwnd {
                self.cc.window.ssthresh = self.cc.window.borne();
                self.cc.window.cwnd = (self.cc.window.cwnd + used) / 2;
            }
            self.cc.used = 0;
        }
        self.cc.stamp = cx.now;
    }

    /// RFC 5681 4.1: after an idle RTO the window starts from at most the initial one; one halving for each RTO gone by.
    pub(crate) fn restart_after_idle(&mut self, cx: &mut Context) {
        if self.stats.bytes_sent == 0 {
            return;
        }
        let rto = self.rtt.rto(cx.config) as u64;
        // What was judged before lay before this pause, or was this one.
        let idle = cx.now.micros_since(self.sender.sent_at.max(self.cc.stamp));
        if !cx.config.slow_start_after_idle || idle <= rto {
            return;
        }
        let floor = self.initial_window(cx.config).min(self.cc.window.cwnd);
        self.cc.window.ssthresh = self.cc.window.borne();
        let mut left = idle.saturating_sub(rto);
        while left > 0 && self.cc.window.cwnd > floor {
            self.cc.window.cwnd /= 2;
            left = left.saturating_sub(rto);
        }
        self.cc.window.cwnd = self.cc.window.cwnd.max(floor);
        self.cc.stamp = cx.now;
        self.cc.used = 0;
    }

    /// Segments that go as one: what the path takes in a millisecond or, where round trips are short, in a fraction of one.
    pub(crate) fn burst_segments(&self, config: &Config) -> u32 {
        let window = self.cc.window.cwnd.max(self.board.packets_out()) as u64 * self.options.smss as u64;
        let ratio = if self.cc.window.cwnd < self.cc.window.ssthresh / 2 { 200 } else { 120 };
        let second =
            (window.saturating_mul(ratio * 10_000) / self.rtt.srtt().max(1) as u64).min(self.sender.max_pacing);
        let near = 65_536u64 >> (self.rtt.min() >> 9).min(17);
        ((second / 1024 + near) / self.options.smss as u64).max(config.min_burst.into()).min(MOST_BURST.into()) as u32
    }

    /// Bytes a second: twice the window a round trip in slow start, a fifth more than it afterwards (Linux's ratios).
    fn pacing_rate(&self, config: &Config) -> Option<u64> {
        let own = match (config.pacing, self.rtt.srtt()) {
            (true, srtt) if srtt > 0 => {
                let ratio = if self.cc.window.cwnd < self.cc.window.ssthresh / 2 { 200 } else { 120 };
                let window = self.cc.window.cwnd.max(self.board.packets_out()) as u64 * self.options.smss as u64;
                Some(window.saturating_mul(ratio * 10_000) / srtt as u64)
            }
            _ => None,
        };
        match (own, self.sender.max_pacing) {
            (own, u64::MAX) => own,
            (Some(own), max) => Some(own.min(max)),
            (None, max) => Some(max),
        }
    }

    /// Nothing may be sent yet.
    pub(crate) fn paced_out(&self, cx: &Context) -> bool {
        self.has(flag::PACED) && self.timers.pace_at > cx.now
    }

    /// `bytes` were sent: the next may go when they would have left at the pacing rate.
    pub(crate) fn paced(&mut self, bytes: u32, cx: &Context) {
        let Some(rate) = self.pacing_rate(cx.config) else { return };
        let gap = (bytes as u64 * 1_000_000).div_ceil(rate.max(1));
        // Credit of one millisecond, so that a late turn does not slow the flow down.
        let from = match self.timers.pace_at {
            Instant::FAR => cx.now,
            at => at.max(Instant::from_micros(cx.now.micros().saturating_sub(1000))),
        };
        self.timers.pace_at = from.plus_micros(gap);
        let wait = self.timers.pace_at > cx.now;
        self.set(flag::PACED, wait);
    }

    /// SO_MAX_PACING_RATE, bytes a second; `u64::MAX` is none.
    pub fn set_max_pacing_rate(&mut self, rate: u64) {
        self.sender.max_pacing = rate.max(1);
        if rate == u64::MAX {
            self.timers.pace_at = Instant::FAR;
            self.set(flag::PACED, false);
        }
    }
}
