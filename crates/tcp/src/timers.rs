//! A connection's timers. The stack's wheel holds one entry for each connection, at [`Tcb::deadline`] or earlier; what is
//! due is found out here, so moving a timer costs a store.

use core::time::Duration;

use wire::Instant;

use crate::{Config, Context, Error, Notice, State, Tcb, flag};

/// Least time that a timer runs beside the RTO, µs (Linux's TCP_TIMEOUT_MIN).
pub(crate) const SMALLEST_TIMER: u32 = 2_000;

/// What the timer in `rto_at` is for; a connection runs one of these at a time (as Linux does).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pending {
    #[default]
    None,
    /// Retransmission timeout (RFC 6298).
    Rto,
    /// Zero-window probe (RFC 9293 3.8.6.1).
    Persist,
    /// Tail loss probe (RFC 8985 7).
    Probe,
    /// Reordering window (RFC 8985 6.3).
    Reorder,
}

/// The timers of one connection, how often they expired, and what they are measured from.
#[derive(Debug)]
pub(crate) struct Timers {
    /// What `rto_at` is for.
    pub pending: Pending,
    pub retries: u8,
    pub probes: u8,
    /// Probes into closed windows since something was acknowledged, answered or not.
    pub zero_probes: u8,
    pub keep_probes: u8,
    pub keep_count: u8,
    pub keep_idle: u16,
    pub keep_interval: u16,
    /// TCP_USER_TIMEOUT, ms; 0 is off.
    pub user_timeout: u32,
    /// When a segment out of the window was answered last, ms, low bits (Linux's tcp_invalid_ratelimit).
    pub invalid_at: Option<u32>,
    pub rto_at: Instant,
    pub ack_at: Instant,
    /// When a corked partial segment goes after all.
    pub cork_at: Instant,
    /// FIN-WAIT-2, keepalive or cork.
    pub life_at: Instant,
    pub heard_at: Instant,
    pub progress_at: Instant,
}

impl Timers {
    #[inline(always)]
    pub fn new(config: &Config) -> Timers {
        Timers {
            pending: Pending::None,
            retries: 0,
            probes: 0,
            zero_probes: 0,
            keep_probes: 0,
            keep_count: config.keep_count,
            keep_idle: config.keep_idle.as_secs() as u16,
            keep_interval: config.keep_interval.as_secs() as u16,
            user_timeout: 0,
            invalid_at: None,
            rto_at: Instant::FAR,
            ack_at: Instant::FAR,
            cork_at: Instant::FAR,
            life_at: Instant::FAR,
            heard_at: Instant::ZERO,
            progress_at: Instant::ZERO,
        }
    }
}

impl Tcb {
    /// When [`Tcb::on_timer`] must be called at the latest.
    pub fn deadline(&self) -> Instant {
        let at = self.timers.rto_at.min(self.timers.ack_at).min(self.timers.life_at).min(self.timers.cork_at);
        if self.has(flag::PACED) { at.min(self.cc.pace_at()) } else { at }
    }

    /// Runs `pending` for `micros` from now.
    pub(crate) fn set_timer(&mut self, pending: Pending, micros: u32, cx: &Context) {
        self.timers.pending = pending;
        self.timers.rto_at = cx.now.plus_micros(micros.max(1) as u64);
    }

    pub(crate) fn stop_transmit_timer(&mut self) {
        self.timers.pending = Pending::None;
        self.timers.rto_at = Instant::FAR;
    }

    /// RFC 6298 5.1, 5.3: the timeout starts anew.
    pub(crate) fn arm_rto(&mut self, cx: &Context) {
        let rto = self.clamp_to_user_timeout(self.rtt.rto(cx.config), cx);
        self.set_timer(Pending::Rto, rto, cx);
    }

    /// RFC 5482 3.1: the connection ends at its user timeout, not at the next RTO after it.
    fn clamp_to_user_timeout(&self, rto: u32, cx: &Context) -> u32 {
        if self.timers.user_timeout == 0 || self.timers.retries == 0 {
            return rto;
        }
        let left =
            (self.timers.user_timeout as u64 * 1000).saturating_sub(cx.now.micros_since(self.timers.progress_at));
        (rto as u64).min(left.max(1000)) as u32
    }

    /// µs until the first outstanding segment's RTO, counted from its last transmission; `None` when it has passed.
    pub(crate) fn rto_left(&self, cx: &mut Context) -> Option<u32> {
        let now = cx.now.micros() as u32;
        let rto = self.rtt.rto(cx.config);
        let at = self.board.first(cx.sent)?.at;
        let left = at.wrapping_add(rto).wrapping_sub(now) as i32;
        (left > 0).then_some(left as u32)
    }

    /// The RTO takes the place of whatever was pending; a probe's or reordering timer's time counts towards it.
    pub(crate) fn rearm_rto(&mut self, cx: &mut Context) {
        if self.board.packets_out() == 0 {
            self.stop_transmit_timer();
            return;
        }
        let rto = match self.timers.pending {
            Pending::Probe | Pending::Reorder => self.rto_left(cx).unwrap_or(1),
            _ => self.rtt.rto(cx.config),
        };
        let rto = self.clamp_to_user_timeout(rto, cx);
        self.set_timer(Pending::Rto, rto, cx);
    }

    /// After progress: a tail loss probe where one may help, else the RTO.
    pub(crate) fn set_transmit_timer(&mut self, cx: &mut Context) {
        if self.board.packets_out() == 0 {
            self.stop_transmit_timer();
        } else if !self.schedule_probe(true, cx) {
            self.rearm_rto(cx);
        }
    }

    /// RFC 9293 3.8.6.1: probes start after an RTO and back off (MUST-35, SHLD-29, SHLD-30).
    pub(crate) fn arm_persist(&mut self, cx: &Context) {
        let rto = self.rtt.rto(cx.config);
        self.set_timer(Pending::Persist, rto, cx);
    }

    pub(crate) fn arm_keepalive(&mut self, cx: &Context) {
        if self.has(flag::KEEPALIVE) && matches!(self.state, State::Established | State::CloseWait) {
            self.timers.life_at = cx.now + Duration::from_secs(self.timers.keep_idle as u64);
        }
    }

    /// Does what is due.
    pub fn on_timer(&mut self, cx: &mut Context) {
        self.run_timers(cx);
        self.judge_disturbance();
    }

    fn run_timers(&mut self, cx: &mut Context) {
        let now = cx.now;
        if self.timers.ack_at <= now {
            self.timers.ack_at = Instant::FAR;
            if self.has(flag::ACK_DELAYED) {
                cx.counters.delayed_acks += 1;
                self.set(flag::ACK_DELAYED, false);
                self.set(flag::ACK_NOW, true);
                self.delayed_ack_expired();
            }
        }
        if self.cc.pace_at() <= now {
            self.set(flag::PACED, false);
        }
        if self.timers.rto_at <= now {
            self.timers.rto_at = Instant::FAR;
            match core::mem::take(&mut self.timers.pending) {
                Pending::None => {}
                Pending::Rto => self.rto_expired(cx),
                Pending::Persist => self.persist_expired(cx),
                Pending::Probe => {
                    // So that the RTO that follows is counted from the transmission, not from now.
                    self.timers.pending = Pending::Probe;
                    self.on_probe_timer(cx);
                }
                Pending::Reorder => self.on_reorder_timer(cx),
            }
        }
        if self.timers.cork_at <= now {
            // Linux: what is corked waits 200 ms at most.
            self.timers.cork_at = Instant::FAR;
            self.set(flag::PUSH_NOW, self.unsent() > 0);
            self.set(flag::UNPUSHED, false);
        }
        if self.timers.life_at <= now {
            self.timers.life_at = Instant::FAR;
            self.life_expired(cx);
        }
    }

    fn give_up(&mut self, cx: &mut Context) {
        let reset = self.established();
        let error = self.soft_error.take().unwrap_or(Error::TimedOut);
        self.close_now(Some(error), cx);
        // The peer, should it still live, learns that we gave up (Linux tells it only when keepalives fail).
        self.set(flag::RST_PENDING, reset);
    }

    fn user_timed_out(&self, now: Instant) -> bool {
        // RFC 5482 3, RFC 9293 3.8.3.
        self.timers.user_timeout > 0
            && now.micros_since(self.timers.progress_at) >= self.timers.user_timeout as u64 * 1000
    }

    fn rto_expired(&mut self, cx: &mut Context) {
        if self.board.is_empty() {
            return;
        }
        // RFC 9293 3.8.3 (MUST-20, MUST-21): R2 closes the connection; a SYN has its own limit (MUST-23).
        let limit = match self.state {
            State::SynSent => self.syn_retries(cx.config).saturating_add(cx.config.syn_linear_timeouts),
            State::SynReceived => cx.config.synack_retries,
            // Nobody waits for an orphan's data for long.
            _ if self.orphaned() => cx.config.orphan_retries,
            _ => cx.config.retries,
        };
        if self.snd.wnd == 0 && self.established() && !self.orphaned() {
            // The peer shrank its window to nothing over what we had sent: these are probes (RFC 9293 3.8.6, SHLD-15), and
            // the connection stays while it answers (3.8.6.1, MUST-37), unless nobody is left to wait.
            let silent = cx.now.micros_since(self.timers.heard_at) > cx.config.max_rto.as_micros() as u64;
            if (silent && self.timers.retries >= limit) || self.user_timed_out(cx.now) || self.hoards(cx) {
                self.give_up(cx);
                return;
            }
        } else if self.timers.retries >= limit || self.user_timed_out(cx.now) {
            self.give_up(cx);
            return;
        }
        self.detect_black_hole(cx);
        self.enter_loss(cx);
        self.timers.retries = self.timers.retries.saturating_add(1);
        // Linux: the first SYNs go at a steady pace, so that one lost on the way costs little.
        if !(self.state == State::SynSent && self.timers.retries <= cx.config.syn_linear_timeouts) {
            self.rtt.back_off();
        }
        self.arm_rto(cx);
    }

    /// RFC 6429 3: whoever answers probes may keep its window closed, but not hold memory by it that others lack: an orphan
    /// not while buffers may not grow, another not for longer than a minute when they are nearly used up, and for two seconds
    /// when nobody else gets any.
    fn hoards(&self, cx: &mut Context) -> bool {
        const PATIENCE_US: u64 = 60_000_000;
        const DRY_US: u64 = 2_000_000;
        let stands = cx.now.micros_since(self.timers.progress_at);
        let hoards = match self.orphaned() {
            true => !cx.pool.plenty(),
            false => stands >= PATIENCE_US && cx.pool.scarce() || stands >= DRY_US && cx.pool.dry(),
        };
        cx.counters.window_hoarders += hoards as u64;
        hoards
    }

    fn persist_expired(&mut self, cx: &mut Context) {
        // RFC 9293 3.8.6.1 (MUST-37): as long as the peer answers probes, the connection stays; an orphan is not kept
        // for ever.
        let silent = self.timers.probes >= cx.config.retries
            && cx.now.micros_since(self.timers.heard_at) > cx.config.max_rto.as_micros() as u64;
        let forsaken = self.orphaned() && self.timers.zero_probes >= cx.config.orphan_retries;
        if silent || forsaken || self.user_timed_out(cx.now) || self.hoards(cx) {
            cx.counters.persist_timeouts += 1;
            self.give_up(cx);
            return;
        }
        self.timers.probes = self.timers.probes.saturating_add(1);
        self.timers.zero_probes = self.timers.zero_probes.saturating_add(1);
        self.rtt.back_off();
        self.set(flag::PROBE_NOW, true);
        self.arm_persist(cx);
    }

    fn life_expired(&mut self, cx: &mut Context) {
        match self.state {
            // An orphan whose peer never finishes.
            State::FinWait2 if self.orphaned() => self.close_now(None, cx),
            State::Established
            | State::CloseWait
            | State::FinWait1
            | State::FinWait2
            | State::LastAck
            | State::Closing => self.keepalive_due(cx),
            _ => {}
        }
    }

    /// RFC 9293 3.8.4 (MUST-24 … MUST-28): off by default, only while nothing is outstanding, several probes.
    fn keepalive_due(&mut self, cx: &mut Context) {
        if !self.has(flag::KEEPALIVE) {
            return;
        }
        let idle = cx.now.micros_since(self.timers.heard_at);
        let wait = self.timers.keep_idle as u64 * 1_000_000;
        if idle < wait {
            self.timers.life_at = self.timers.heard_at.plus_micros(wait);
            return;
        }
        let interval = Duration::from_secs(self.timers.keep_interval as u64);
        if !self.board.is_empty() || !self.sender.queue.is_empty() {
            self.timers.life_at = cx.now + interval;
            return;
        }
        let out = match self.timers.user_timeout {
            0 => self.timers.keep_probes >= self.timers.keep_count,
            ms => idle >= ms as u64 * 1000 && self.timers.keep_probes > 0,
        };
        if out {
            self.give_up(cx);
            return;
        }
        self.timers.keep_probes = self.timers.keep_probes.saturating_add(1);
        cx.counters.keepalives += 1;
        self.set(flag::PROBE_NOW, true);
        self.timers.life_at = cx.now + interval;
    }

    /// SO_KEEPALIVE and its times; `None` leaves one as it is. Idle and interval in seconds.
    pub fn set_keepalive(
        &mut self,
        on: Option<bool>,
        idle: Option<u16>,
        interval: Option<u16>,
        count: Option<u8>,
        cx: &Context,
    ) {
        if let Some(on) = on {
            self.set(flag::KEEPALIVE, on);
        }
        self.timers.keep_idle = idle.unwrap_or(self.timers.keep_idle).max(1);
        self.timers.keep_interval = interval.unwrap_or(self.timers.keep_interval).max(1);
        self.timers.keep_count = count.unwrap_or(self.timers.keep_count).max(1);
        self.arm_keepalive(cx);
    }

    /// TCP_USER_TIMEOUT, ms; 0 is off.
    pub fn set_user_timeout(&mut self, ms: u32) {
        self.timers.user_timeout = ms;
    }

    /// TCP_NODELAY.
    pub fn set_nodelay(&mut self, on: bool) {
        self.set(flag::NO_DELAY, on);
        // Linux: what is held, even by TCP_CORK, goes.
        self.set(flag::PUSH_NOW, on && self.unsent() > 0);
    }

    /// TCP_QUICKACK as Linux has it, for now and not for good: off, ACKs wait for an answer to ride on; on, they do not, and
    /// one that waits goes.
    pub fn set_quickack(&mut self, on: bool) {
        self.set(flag::PINGPONG, !on);
        if on && self.has(flag::ACK_DELAYED) {
            self.set(flag::ACK_NOW, true);
        }
    }

    /// TCP_CORK.
    pub fn set_cork(&mut self, on: bool) {
        self.set(flag::CORK, on);
        if !on {
            self.timers.cork_at = Instant::FAR;
        }
    }

    /// Whether anything waits for the application.
    pub fn has_notice(&self) -> bool {
        self.notice != Notice::default()
    }
}
