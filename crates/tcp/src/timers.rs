//! A connection's timers. The stack's wheel holds one entry for each connection, at [`Tcb::deadline`] or earlier; what is
//! due is found out here, so moving a timer costs a store.

use core::time::Duration;

use wire::Instant;

use crate::State;
use crate::tcb::{Context, Error, Notice, Tcb, flag};

impl Tcb {
    /// When [`Tcb::on_timer`] must be called at the latest.
    pub fn deadline(&self) -> Instant {
        self.rto_at.min(self.ack_at).min(self.life_at)
    }

    /// RFC 6298 5.1, 5.3.
    pub(crate) fn arm_rto(&mut self, cx: &Context) {
        self.set(flag::PERSIST, false);
        self.rto_at = cx.now.plus_micros(self.rtt.rto(cx.config) as u64);
    }

    /// RFC 9293 3.8.6.1: probes start after an RTO and back off (MUST-35, SHLD-29, SHLD-30).
    pub(crate) fn arm_persist(&mut self, cx: &Context) {
        self.set(flag::PERSIST, true);
        self.rto_at = cx.now.plus_micros(self.rtt.rto(cx.config) as u64);
    }

    pub(crate) fn arm_keepalive(&mut self, cx: &Context) {
        if self.has(flag::KEEPALIVE) && matches!(self.state, State::Established | State::CloseWait) {
            self.life_at = cx.now + Duration::from_secs(self.keep_idle as u64);
        }
    }

    /// Does what is due.
    pub fn on_timer(&mut self, cx: &mut Context) {
        let now = cx.now;
        if self.ack_at <= now {
            self.ack_at = Instant::FAR;
            if self.has(flag::ACK_DELAYED) {
                cx.counters.delayed_acks += 1;
                self.set(flag::ACK_DELAYED, false);
                self.set(flag::ACK_NOW, true);
            }
        }
        if self.rto_at <= now {
            self.rto_at = Instant::FAR;
            match self.has(flag::PERSIST) {
                true => self.persist_expired(cx),
                false => self.rto_expired(cx),
            }
        }
        if self.life_at <= now {
            self.life_at = Instant::FAR;
            self.life_expired(cx);
        }
    }

    fn give_up(&mut self, cx: &mut Context) {
        let reset = self.established();
        self.close_now(Some(Error::TimedOut), cx);
        // Linux's habit: the peer, should it still live, learns that we gave up.
        self.set(flag::RST_PENDING, reset);
    }

    fn user_timed_out(&self, now: Instant) -> bool {
        // RFC 5482 3, RFC 9293 3.8.3.
        self.user_timeout > 0 && now.micros_since(self.progress_at) >= self.user_timeout as u64 * 1000
    }

    fn rto_expired(&mut self, cx: &mut Context) {
        if self.sent.is_empty() {
            return;
        }
        // RFC 9293 3.8.3 (MUST-20, MUST-21): R2 closes the connection; a SYN has its own limit (MUST-23).
        let limit = match self.state {
            State::SynSent => cx.config.syn_retries,
            State::SynReceived => cx.config.synack_retries,
            _ => cx.config.retries,
        };
        if self.retries >= limit || self.user_timed_out(cx.now) {
            self.give_up(cx);
            return;
        }
        self.on_retransmission_timeout(cx);
        self.retries += 1;
        self.rtt.backoff = self.rtt.backoff.saturating_add(1);
        self.arm_rto(cx);
    }

    fn persist_expired(&mut self, cx: &mut Context) {
        // RFC 9293 3.8.6.1 (MUST-37): as long as the peer answers probes, the connection stays; an orphan is not kept
        // for ever.
        let silent = cx.now.micros_since(self.heard_at) > cx.config.max_rto.as_micros() as u64 * 2;
        if (silent && self.probes >= cx.config.retries)
            || self.user_timed_out(cx.now)
            || (self.orphaned() && self.probes >= 8)
        {
            self.give_up(cx);
            return;
        }
        self.probes = self.probes.saturating_add(1);
        self.rtt.backoff = self.rtt.backoff.saturating_add(1);
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
            | State::Closing => {
                if self.has(flag::MORE) || self.has(flag::CORK) {
                    self.set(flag::MORE, false);
                    self.set(flag::PUSH_NOW, true);
                }
                self.keepalive_due(cx);
            }
            _ => {}
        }
    }

    /// RFC 9293 3.8.4 (MUST-24 … MUST-28): off by default, only while nothing is outstanding, several probes.
    fn keepalive_due(&mut self, cx: &mut Context) {
        if !self.has(flag::KEEPALIVE) {
            return;
        }
        let idle = cx.now.micros_since(self.heard_at);
        let wait = self.keep_idle as u64 * 1_000_000;
        if idle < wait {
            self.life_at = self.heard_at.plus_micros(wait);
            return;
        }
        let interval = Duration::from_secs(self.keep_interval as u64);
        if !self.sent.is_empty() || !self.tx.is_empty() {
            self.life_at = cx.now + interval;
            return;
        }
        let out = match self.user_timeout {
            0 => self.keep_probes >= self.keep_count,
            ms => idle >= ms as u64 * 1000 && self.keep_probes > 0,
        };
        if out {
            self.give_up(cx);
            return;
        }
        self.keep_probes += 1;
        cx.counters.keepalives += 1;
        self.set(flag::PROBE_NOW, true);
        self.life_at = cx.now + interval;
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
        self.keep_idle = idle.unwrap_or(self.keep_idle).max(1);
        self.keep_interval = interval.unwrap_or(self.keep_interval).max(1);
        self.keep_count = count.unwrap_or(self.keep_count).max(1);
        self.arm_keepalive(cx);
    }

    /// TCP_USER_TIMEOUT, ms; 0 is off.
    pub fn set_user_timeout(&mut self, ms: u32) {
        self.user_timeout = ms;
    }

    /// TCP_NODELAY.
    pub fn set_nodelay(&mut self, on: bool) {
        self.set(flag::NO_DELAY, on);
    }

    /// TCP_QUICKACK.
    pub fn set_quickack(&mut self, on: bool) {
        self.set(flag::QUICK_ACK, on);
        if on && self.has(flag::ACK_DELAYED) {
            self.set(flag::ACK_NOW, true);
        }
    }

    /// TCP_CORK.
    pub fn set_cork(&mut self, on: bool, cx: &Context) {
        self.set(flag::CORK, on);
        if on && self.life_at == Instant::FAR {
            self.life_at = cx.now + cx.config.cork_limit;
        }
    }

    /// TCP_MAXSEG: clamps what is sent.
    pub fn clamp_mss(&mut self, mss: u16) {
        if mss > 0 {
            self.smss = self.smss.min(mss.max(36));
        }
    }

    /// Whether anything waits for the application.
    pub fn has_notice(&self) -> bool {
        self.notice != Notice::default()
    }
}
