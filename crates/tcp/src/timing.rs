//! What an expired timer does: retransmission (RFC 6298), closed windows (RFC 9293 3.8.6.1), keepalive, delayed ACKs; and when the
//! transmit timer is set. The timers themselves are [`Timers`](crate::timers::Timers)'.

use wire::Instant;

use crate::timers::Pending;
use crate::{Context, Error, State, Tcb, flag};

impl Tcb {
    /// When [`Tcb::on_timer`] must be called at the latest.
    pub fn deadline(&self) -> Instant {
        let at = self.timers.deadline();
        if self.has(flag::PACED) { at.min(self.cc.pace_at()) } else { at }
    }

    /// Runs `pending` for `micros` from now.
    #[inline(always)]
    pub(crate) fn set_timer(&mut self, pending: Pending, micros: u32, cx: &Context) {
        self.timers.arm(pending, micros, cx.now);
    }

    /// RFC 6298 5.1, 5.3: the timeout starts anew.
    #[inline(always)]
    pub(crate) fn arm_rto(&mut self, cx: &Context) {
        let rto = self.timers.clamp_to_user_timeout(self.rtt.rto(cx.config), cx.now);
        self.set_timer(Pending::Rto, rto, cx);
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
        let since_sent = matches!(self.timers.pending(), Pending::Probe | Pending::Reorder);
        self.begin_rto(since_sent, cx);
    }

    /// The RTO begins, counted from now or, where `since_sent`, from the transmission of what is first.
    pub(crate) fn begin_rto(&mut self, since_sent: bool, cx: &mut Context) {
        if self.board.packets_out() == 0 {
            self.timers.stop();
            return;
        }
        let rto = match since_sent {
            true => self.rto_left(cx).unwrap_or(1),
            false => self.rtt.rto(cx.config),
        };
        let rto = self.timers.clamp_to_user_timeout(rto, cx.now);
        self.set_timer(Pending::Rto, rto, cx);
    }

    /// After progress: a tail loss probe where one may help, else the RTO.
    pub(crate) fn set_transmit_timer(&mut self, cx: &mut Context) {
        if self.board.packets_out() == 0 {
            self.timers.stop();
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
            self.timers.live_until(cx.now + self.timers.keepalive().idle());
        }
    }

    /// Does what is due.
    pub fn on_timer(&mut self, cx: &mut Context) {
        self.run_timers(cx);
        self.judge_disturbance();
    }

    fn run_timers(&mut self, cx: &mut Context) {
        let now = cx.now;
        if self.timers.take_ack(now) && self.has(flag::ACK_DELAYED) {
            cx.counters.delayed_acks += 1;
            self.set(flag::ACK_DELAYED, false);
            self.set(flag::ACK_NOW, true);
            self.delayed_ack_expired();
        }
        if self.cc.pace_at() <= now {
            self.set(flag::PACED, false);
        }
        match self.timers.take_transmit(now) {
            Pending::None => {}
            Pending::Rto => self.rto_expired(cx),
            Pending::Persist => self.persist_expired(cx),
            Pending::Probe => self.on_probe_timer(cx),
            Pending::Reorder => self.on_reorder_timer(cx),
        }
        if self.timers.take_cork(now) {
            // Linux: what is corked waits 200 ms at most.
            self.set(flag::PUSH_NOW, self.unsent() > 0);
            self.set(flag::UNPUSHED, false);
        }
        if self.timers.take_life(now) {
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
        if self.snd.wnd() == 0 && self.established() && !self.orphaned() {
            // The peer shrank its window to nothing over what we had sent: these are probes (RFC 9293 3.8.6, SHLD-15), and
            // the connection stays while it answers (3.8.6.1, MUST-37), unless nobody is left to wait.
            let silent = cx.now.micros_since(self.timers.heard_at()) > cx.config.max_rto.as_micros() as u64;
            if (silent && self.timers.retries() >= limit) || self.timers.user_timed_out(cx.now) || self.hoards(cx) {
                self.give_up(cx);
                return;
            }
        } else if self.timers.retries() >= limit || self.timers.user_timed_out(cx.now) {
            self.give_up(cx);
            return;
        }
        self.detect_black_hole(cx);
        self.enter_loss(cx);
        self.timers.timed_out();
        // Linux: the first SYNs go at a steady pace, so that one lost on the way costs little.
        if !(self.state == State::SynSent && self.timers.retries() <= cx.config.syn_linear_timeouts) {
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
        let stands = cx.now.micros_since(self.timers.progress_at());
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
        let silent = self.timers.probes() >= cx.config.retries
            && cx.now.micros_since(self.timers.heard_at()) > cx.config.max_rto.as_micros() as u64;
        let forsaken = self.orphaned() && self.timers.zero_probes() >= cx.config.orphan_retries;
        if silent || forsaken || self.timers.user_timed_out(cx.now) || self.hoards(cx) {
            cx.counters.persist_timeouts += 1;
            self.give_up(cx);
            return;
        }
        self.timers.probed();
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
        let idle = cx.now.micros_since(self.timers.heard_at());
        let keepalive = self.timers.keepalive();
        if idle < keepalive.idle().as_micros() as u64 {
            self.timers.live_until(self.timers.heard_at() + keepalive.idle());
            return;
        }
        if !self.board.is_empty() || !self.sender.is_empty() {
            self.timers.live_until(cx.now + keepalive.interval());
            return;
        }
        if self.timers.keepalive_failed(idle) {
            self.give_up(cx);
            return;
        }
        self.timers.keepalive_probed(cx.now);
        cx.counters.keepalives += 1;
        self.set(flag::PROBE_NOW, true);
    }
}
