//! What the application may turn on one connection (tcp(7)).

use core::time::Duration;

use wire::SeqNum;

use crate::congestion::Algorithm;
use crate::knobs::Knobs;
use crate::{Config, Context, Notice, State, Tcb, flag};

impl Tcb {
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
        self.timers.keepalive_mut().set(idle, interval, count);
        self.arm_keepalive(cx);
    }

    /// TCP_USER_TIMEOUT, ms; 0 is off.
    pub fn set_user_timeout(&mut self, ms: u32) {
        self.timers.set_user_timeout(ms);
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
            self.timers.uncork();
        }
    }

    /// Whether any of these options was ever set.
    pub fn has_knobs(&self) -> bool {
        self.knobs.is_some()
    }

    pub(crate) fn knobs_mut(&mut self) -> &mut Knobs {
        self.knobs.get_or_insert_default()
    }

    /// Longest TCP_LINGER2, seconds (Linux's TCP_FIN_TIMEOUT_MAX).
    pub const MOST_LINGER2: i32 = 120;

    /// TCP_SYNCNT; 0 is the configured number.
    pub fn set_syn_retries(&mut self, retries: u8) {
        self.knobs_mut().syn_retries = retries;
    }

    /// Retransmissions of the SYN before the open fails.
    pub fn syn_retries(&self, config: &Config) -> u8 {
        self.knobs.as_ref().map(|k| k.syn_retries).filter(|n| *n > 0).unwrap_or(config.syn_retries)
    }

    /// TCP_LINGER2, seconds, at most [`Tcb::MOST_LINGER2`]; 0 is the configured time, below 0 an orphan does not stay in FIN-WAIT-2
    /// at all.
    pub fn set_linger2(&mut self, seconds: i32) {
        self.knobs_mut().linger2 = seconds.min(Tcb::MOST_LINGER2);
    }

    /// Times an orphan in FIN-WAIT-2 by TCP_LINGER2; to be called after whatever may have brought it there.
    pub fn time_fin_wait_2(&mut self, cx: &mut Context) {
        let Some(k) = self.knobs.as_mut().filter(|k| k.linger2 != 0 && !k.lingers) else { return };
        if self.state != State::FinWait2 || self.flags & flag::ORPHAN == 0 {
            return;
        }
        k.lingers = true;
        match u64::try_from(k.linger2) {
            Ok(seconds) => self.timers.live_until(cx.now + Duration::from_secs(seconds)),
            // Linux: closed by a reset at once.
            Err(_) => self.abort(cx),
        }
    }

    /// TCP_WINDOW_CLAMP, bytes: what is offered never exceeds it; what was offered before is not taken back.
    pub fn set_window_clamp(&mut self, bytes: u32) {
        self.knobs_mut().window_clamp = bytes;
        if bytes > 0 {
            self.receiver.set_buffer(self.receiver.buffer().min(bytes));
        }
    }

    /// TCP_CONGESTION: `algorithm` goes on from the present window.
    pub fn set_congestion(&mut self, algorithm: Algorithm) {
        self.cc.switch(algorithm);
    }

    /// TCP_NOTSENT_LOWAT, bytes; 0 is none.
    pub fn set_not_sent_low(&mut self, bytes: u32) {
        self.knobs_mut().told_sent = None;
        self.knobs_mut().not_sent_low = bytes;
    }

    /// Raises [`Notice::SENT`] when that is news under TCP_NOTSENT_LOWAT; to be called after sending.
    pub fn watch_unsent(&mut self) {
        if self.knobs.as_ref().is_none_or(|k| k.not_sent_low == 0) || !self.established() {
            return;
        }
        let (unsent, sent) = (self.unsent(), self.stream_sent());
        let k = self.knobs_mut();
        // The application, which counts what it wrote since it was told, thinks that more waits than does.
        let untold = k.told_sent.map_or(u32::MAX, |told| sent.wrapping_sub(told));
        let is_low = |waits: u32| 2 * (waits as u64) < k.not_sent_low as u64;
        let news = untold >= (k.not_sent_low / 4).max(1) || is_low(unsent) && !is_low(unsent.saturating_add(untold));
        if news {
            k.told_sent = Some(sent);
        }
        if news && !self.orphaned() {
            self.put_notice(Notice::SENT);
        }
    }

    /// Bytes unsent up to the next end of a record: what the next segment may take of them.
    pub(crate) fn unsent_of_record(&self) -> u32 {
        let unsent = self.unsent();
        match self.knobs.as_ref().and_then(|k| k.records.front()) {
            Some(end) => end.since(self.snd.nxt()).min(unsent),
            None => unsent,
        }
    }

    /// Whether a record ends at `end`, up to which is sent now; it is remembered no more.
    pub(crate) fn record_ends(&mut self, end: SeqNum) -> bool {
        self.knobs.as_mut().is_some_and(|k| k.records.pop_front_if(|at| *at == end).is_some())
    }

    /// The window as the field of a segment says it now.
    pub fn window_field(&self) -> u16 {
        (self.rcv.window() >> self.options.rcv_scale()).min(0xffff) as u16
    }

    /// Bytes of the stream sent at least once, modulo 2^32.
    pub fn stream_sent(&self) -> u32 {
        match self.state {
            State::SynSent | State::SynReceived => 0,
            _ => self.snd.nxt().since(self.sender.iss() + 1) - self.has(flag::FIN_SENT) as u32,
        }
    }
}
