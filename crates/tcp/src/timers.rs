//! A connection's timers: when each expires, how often it did, and what is measured from when. The stack's wheel holds one entry
//! for each connection, at [`Tcb::deadline`](crate::Tcb::deadline) or earlier; what is due is found out then, so moving a timer costs a
//! store. `timing.rs` says what an expiry does.
//!
//! Invariants: `rto_at` is a time exactly while something is pending; keepalive's numbers are not zero.

use core::time::Duration;

use wire::Instant;

use crate::Config;

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

/// Keepalive's times, s, and numbers (RFC 9293 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Keepalive {
    idle: u16,
    interval: u16,
    count: u8,
    /// Probes unanswered.
    probes: u8,
}

impl Keepalive {
    #[inline(always)]
    pub fn new(config: &Config) -> Keepalive {
        Keepalive {
            idle: config.keep_idle.as_secs() as u16,
            interval: config.keep_interval.as_secs() as u16,
            count: config.keep_count,
            probes: 0,
        }
    }

    /// `None` leaves one as it is.
    pub fn set(&mut self, idle: Option<u16>, interval: Option<u16>, count: Option<u8>) {
        self.idle = idle.unwrap_or(self.idle).max(1);
        self.interval = interval.unwrap_or(self.interval).max(1);
        self.count = count.unwrap_or(self.count).max(1);
    }

    /// How long nothing is heard before the first probe.
    pub fn idle(&self) -> Duration {
        Duration::from_secs(self.idle as u64)
    }

    /// Between two probes.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.interval as u64)
    }
}

/// The timers of one connection.
#[derive(Debug)]
pub(crate) struct Timers {
    /// What `rto_at` is for.
    pending: Pending,
    /// Timeouts in a row.
    retries: u8,
    /// Probes into closed windows unanswered, and since something was acknowledged, answered or not.
    probes: u8,
    zero_probes: u8,
    keepalive: Keepalive,
    /// TCP_USER_TIMEOUT, ms; 0 is off.
    user_timeout: u32,
    /// When a segment out of the window was answered last, ms, low bits (Linux's tcp_invalid_ratelimit).
    invalid_at: Option<u32>,
    rto_at: Instant,
    ack_at: Instant,
    /// When a corked partial segment goes after all.
    cork_at: Instant,
    /// FIN-WAIT-2 or keepalive.
    life_at: Instant,
    /// When the peer was heard of last, and when something was acknowledged last or began to wait for that.
    heard_at: Instant,
    progress_at: Instant,
}

/// Whether `at` has come, which it will not again.
#[inline(always)]
fn take_due(at: &mut Instant, now: Instant) -> bool {
    let due = *at <= now;
    if due {
        *at = Instant::FAR;
    }
    due
}

impl Timers {
    #[inline(always)]
    pub fn new(config: &Config) -> Timers {
        Timers {
            pending: Pending::None,
            retries: 0,
            probes: 0,
            zero_probes: 0,
            keepalive: Keepalive::new(config),
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

    /// The earliest of all.
    #[inline(always)]
    pub fn deadline(&self) -> Instant {
        self.rto_at.min(self.ack_at).min(self.life_at).min(self.cork_at)
    }

    /// Whether none runs but for the connection's life, and none expired since the peer was heard of.
    pub fn are_idle(&self) -> bool {
        self.pending == Pending::None
            && [self.rto_at, self.ack_at, self.cork_at].iter().all(|at| *at == Instant::FAR)
            && [self.retries, self.probes, self.zero_probes] == [0; 3]
    }

    /// Goes on where [`Timers::are_idle`] was so. Nothing waits for its acknowledgment, so it does not matter when some came.
    #[inline(always)]
    pub fn resume(
        &mut self,
        life_at: Instant,
        heard_at: Instant,
        user_timeout: u32,
        keepalive: Keepalive,
        invalid_at: Option<u32>,
    ) {
        (self.life_at, self.heard_at, self.progress_at) = (life_at, heard_at, heard_at);
        (self.user_timeout, self.keepalive, self.invalid_at) = (user_timeout, keepalive, invalid_at);
    }

    /// When a segment out of the window was answered, ms, low bits, where another may not be answered at `now`, `wait` ms after it at least.
    pub fn invalid_at(&self, now: u32, wait: u32) -> Option<u32> {
        self.invalid_at.filter(|at| now.wrapping_sub(*at) < wait)
    }

    // -- The transmit timer.

    #[inline(always)]
    pub fn pending(&self) -> Pending {
        self.pending
    }

    /// Runs `pending` for `micros` from `now`.
    #[inline(always)]
    pub fn arm(&mut self, pending: Pending, micros: u32, now: Instant) {
        self.pending = pending;
        self.rto_at = now.plus_micros(micros.max(1) as u64);
    }

    /// None is pending.
    #[inline(always)]
    pub fn stop(&mut self) {
        self.pending = Pending::None;
        self.rto_at = Instant::FAR;
    }

    /// What is pending expires at `at`.
    pub fn hasten(&mut self, at: Instant) {
        if self.pending != Pending::None {
            self.rto_at = at;
        }
    }

    /// What has expired.
    pub fn take_transmit(&mut self, now: Instant) -> Pending {
        match take_due(&mut self.rto_at, now) {
            true => core::mem::take(&mut self.pending),
            false => Pending::None,
        }
    }

    /// Timeouts in a row.
    #[inline(always)]
    pub fn retries(&self) -> u8 {
        self.retries
    }

    /// The retransmission timer expired once more.
    pub fn timed_out(&mut self) {
        self.retries = self.retries.saturating_add(1);
    }

    /// It had no reason to.
    pub fn forget_retries(&mut self) {
        self.retries = 0;
    }

    // -- Probes into closed windows.

    /// Those that are unanswered.
    pub fn probes(&self) -> u8 {
        self.probes
    }

    /// Those since something was acknowledged, answered or not.
    pub fn zero_probes(&self) -> u8 {
        self.zero_probes
    }

    /// One more is due.
    pub fn probed(&mut self) {
        self.probes = self.probes.saturating_add(1);
        self.zero_probes = self.zero_probes.saturating_add(1);
    }

    /// They are answered.
    #[inline(always)]
    pub fn answered(&mut self) {
        self.probes = 0;
    }

    // -- What is measured from when.

    /// The peer was heard of.
    #[inline(always)]
    pub fn heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.keepalive.probes = 0;
    }

    #[inline(always)]
    pub fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Something was acknowledged.
    #[inline(always)]
    pub fn progressed(&mut self, now: Instant) {
        self.progress_at = now;
        self.retries = 0;
        self.zero_probes = 0;
    }

    /// Something begins to wait for its acknowledgment: the user timeout counts from here (RFC 5482 3.1).
    #[inline(always)]
    pub fn begin_to_wait(&mut self, now: Instant) {
        self.progress_at = now;
    }

    #[inline(always)]
    pub fn progress_at(&self) -> Instant {
        self.progress_at
    }

    /// TCP_USER_TIMEOUT, ms; 0 is off.
    pub fn set_user_timeout(&mut self, ms: u32) {
        self.user_timeout = ms;
    }

    pub fn user_timeout(&self) -> u32 {
        self.user_timeout
    }

    /// RFC 5482 3, RFC 9293 3.8.3.
    pub fn user_timed_out(&self, now: Instant) -> bool {
        self.user_timeout > 0 && now.micros_since(self.progress_at) >= self.user_timeout as u64 * 1000
    }

    /// RFC 5482 3.1: the connection ends at its user timeout, not at the next RTO after it.
    #[inline(always)]
    pub fn clamp_to_user_timeout(&self, rto: u32, now: Instant) -> u32 {
        if self.user_timeout == 0 || self.retries == 0 {
            return rto;
        }
        let left = (self.user_timeout as u64 * 1000).saturating_sub(now.micros_since(self.progress_at));
        (rto as u64).min(left.max(1000)) as u32
    }

    // -- Acknowledgments and corks.

    /// An acknowledgment goes at `at` at the latest.
    #[inline(always)]
    pub fn delay_ack(&mut self, at: Instant) {
        self.ack_at = at;
    }

    /// None waits any more.
    #[inline(always)]
    pub fn ack_went(&mut self) {
        self.ack_at = Instant::FAR;
    }

    /// Whether one must go.
    pub fn take_ack(&mut self, now: Instant) -> bool {
        take_due(&mut self.ack_at, now)
    }

    /// A partial segment is held until `at` at the latest, from the first time that it is.
    pub fn cork(&mut self, at: Instant) {
        if self.cork_at == Instant::FAR {
            self.cork_at = at;
        }
    }

    /// One is held.
    pub fn is_corked(&self) -> bool {
        self.cork_at != Instant::FAR
    }

    /// None is held any more.
    #[inline(always)]
    pub fn uncork(&mut self) {
        self.cork_at = Instant::FAR;
    }

    /// Whether it must go.
    pub fn take_cork(&mut self, now: Instant) -> bool {
        take_due(&mut self.cork_at, now)
    }

    /// Whether a segment out of the window may be answered at `now`, ms, `wait` ms after the last: it is, then.
    pub fn may_answer(&mut self, now: u32, wait: u32) -> bool {
        if self.invalid_at.is_some_and(|at| now.wrapping_sub(at) < wait) {
            return false;
        }
        self.invalid_at = Some(now);
        true
    }

    // -- The connection's life.

    /// Whether it goes on is asked at `at`.
    #[inline(always)]
    pub fn live_until(&mut self, at: Instant) {
        self.life_at = at;
    }

    /// It is not.
    #[inline(always)]
    pub fn live_on(&mut self) {
        self.life_at = Instant::FAR;
    }

    pub fn life_at(&self) -> Instant {
        self.life_at
    }

    /// Whether it is to be asked now.
    pub fn take_life(&mut self, now: Instant) -> bool {
        take_due(&mut self.life_at, now)
    }

    #[inline(always)]
    pub fn keepalive(&self) -> Keepalive {
        self.keepalive
    }

    pub fn keepalive_mut(&mut self) -> &mut Keepalive {
        &mut self.keepalive
    }

    /// Keepalive's probes went unanswered, or the user timeout has passed meanwhile; nothing was heard for `idle` µs.
    pub fn keepalive_failed(&self, idle: u64) -> bool {
        match self.user_timeout {
            0 => self.keepalive.probes >= self.keepalive.count,
            ms => idle >= ms as u64 * 1000 && self.keepalive.probes > 0,
        }
    }

    /// One more is due; the next after the interval.
    pub fn keepalive_probed(&mut self, now: Instant) {
        self.keepalive.probes = self.keepalive.probes.saturating_add(1);
        self.life_at = now + self.keepalive.interval();
    }

    /// Asserts what the module's head says.
    pub fn check(&self) {
        let runs = self.rto_at != Instant::FAR;
        assert_eq!(self.pending != Pending::None, runs, "the transmit timer runs for something: {self:?}");
        let Keepalive { idle, interval, count, .. } = self.keepalive;
        assert!(idle > 0 && interval > 0 && count > 0, "{:?}", self.keepalive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_micros(ms * 1000)
    }

    #[test]
    fn one_transmit_timer_at_a_time() {
        let mut t = Timers::new(&Config::default());
        t.hasten(at(1));
        assert_eq!((t.deadline(), t.take_transmit(at(9))), (Instant::FAR, Pending::None));
        t.arm(Pending::Rto, 200_000, at(0));
        t.arm(Pending::Probe, 50_000, at(0));
        t.check();
        assert_eq!((t.deadline(), t.take_transmit(at(49))), (at(50), Pending::None));
        assert_eq!((t.take_transmit(at(50)), t.pending(), t.deadline()), (Pending::Probe, Pending::None, Instant::FAR));
        t.arm(Pending::Persist, 1000, at(50));
        t.stop();
        t.check();
        assert!(t.are_idle());
    }

    #[test]
    fn a_cork_holds_from_the_first_time_on() {
        let mut t = Timers::new(&Config::default());
        t.cork(at(200));
        t.cork(at(300));
        assert_eq!((t.deadline(), t.take_cork(at(199)), t.take_cork(at(200))), (at(200), false, true));
        assert_eq!(t.deadline(), Instant::FAR);
    }

    #[test]
    fn the_user_timeout_comes_before_the_rto() {
        let mut t = Timers::new(&Config::default());
        t.set_user_timeout(1000);
        t.begin_to_wait(at(100));
        assert_eq!(t.clamp_to_user_timeout(5_000_000, at(600)), 5_000_000);
        t.timed_out();
        assert_eq!(t.clamp_to_user_timeout(5_000_000, at(600)), 500_000);
        assert_eq!((t.user_timed_out(at(1099)), t.user_timed_out(at(1100))), (false, true));
        t.progressed(at(1100));
        assert_eq!((t.retries(), t.user_timed_out(at(1100))), (0, false));
    }

    #[test]
    fn answers_out_of_the_window_are_spaced() {
        let mut t = Timers::new(&Config::default());
        assert!(t.may_answer(u32::MAX - 10, 500));
        assert!(!t.may_answer(400, 500) && t.may_answer(489, 500));
    }
}
