//! How much goes at once: bursts, what ends them, and what their end says of the window.

use crate::loss::recovery::Phase;
use crate::{Config, Context, Tcb, flag};

impl Tcb {
    pub(crate) fn end_burst(&mut self, cx: &mut Context) {
        self.sender.end_burst();
        if self.has(flag::SENT_NEW) {
            self.set(flag::SENT_NEW, false);
            self.judge_window(cx);
            self.schedule_probe(false, cx);
        }
    }

    /// A burst of new data has ended: was the window or the application the limit?
    #[inline]
    pub(crate) fn judge_window(&mut self, cx: &mut Context) {
        let open = self.recovery.phase() == Phase::Open;
        self.cc.judge(self.snd.una(), self.snd.nxt(), &self.board, open, cx.now, &self.rtt, cx.config);
    }

    /// Data goes out with nothing under way.
    #[inline(always)]
    pub(crate) fn restart_after_idle(&mut self, cx: &mut Context) {
        if self.stats.bytes_sent > 0 {
            self.cc.restart_after_idle(self.sender.sent_at(), cx.now, &self.rtt, cx.config);
        }
    }

    /// Linux's habit: the last segment of each burst carries PSH, so that the receiver's coalescing does not hold it back.
    /// A burst is what a millisecond of the path takes, at least two segments, at most half of either window. `len` bytes
    /// are about to go as `segs` segments.
    pub(crate) fn burst_ends(&self, len: u32, segs: u32, config: &Config) -> bool {
        let smss = self.options.smss() as u32;
        let left = self.unsent() - len;
        let room = self.snd.room().saturating_sub(len);
        let quota = self.cc.room(self.board.in_flight() + segs);
        self.sender.burst() >= self.burst_goal(config) || quota == 0 || room < left.min(smss)
    }

    /// Segments of a burst.
    pub(crate) fn burst_goal(&self, config: &Config) -> u32 {
        let smss = self.options.smss();
        (self.cc.cwnd() / 2)
            .min(self.snd.max_wnd() / 2 / smss as u32)
            .min(self.cc.burst_segments(self.board.packets_out(), smss, &self.rtt, config))
            .max(1)
    }

    /// Bytes of a burst: whole segments, at most half of the largest window (Linux's `tcp_xmit_size_goal`).
    pub fn burst_bytes(&self) -> u32 {
        let smss = self.options.smss().max(1) as u32;
        (self.snd.max_wnd() / 2).min(65_215) / smss * smss
    }

    /// Nothing may be sent yet.
    #[inline(always)]
    pub(crate) fn paced_out(&self, cx: &Context) -> bool {
        self.has(flag::PACED) && self.cc.pace_at() > cx.now
    }

    /// `bytes` were sent: the next may go when they would have left at the pacing rate.
    #[inline(always)]
    pub(crate) fn paced(&mut self, bytes: u32, cx: &Context) {
        let (out, smss, srtt) = (self.board.packets_out(), self.options.smss(), self.rtt.srtt());
        if let Some(wait) = self.cc.pace(bytes, out, smss, srtt, cx.now, cx.config) {
            self.set(flag::PACED, wait);
        }
    }

    /// SO_MAX_PACING_RATE, bytes a second; `u64::MAX` is none.
    pub fn set_max_pacing_rate(&mut self, rate: u64) {
        if self.cc.set_max_pacing(rate) {
            self.set(flag::PACED, false);
        }
    }
}
