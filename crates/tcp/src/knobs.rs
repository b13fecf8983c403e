//! Options that few connections set (tcp(7)): what the application may turn on one connection besides the common ones.

use core::time::Duration;
use std::collections::VecDeque;

use wire::{Instant, SeqNum};

use crate::congestion::Algorithm;
use crate::{Config, Context, Notice, State, Tcb, flag};

/// Their values; a connection without any has none of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knobs {
    /// TCP_SYNCNT; 0 is the configured number.
    syn_retries: u8,
    /// TCP_LINGER2, seconds; 0 is the configured time, below 0 no FIN-WAIT-2 without an owner at all.
    linger2: i32,
    /// FIN-WAIT-2 was entered and timed by `linger2`.
    lingers: bool,
    /// TCP_WINDOW_CLAMP, bytes; 0 is none.
    pub(crate) window_clamp: u32,
    /// TCP_NOTSENT_LOWAT, bytes; 0 is none.
    not_sent_low: u32,
    /// [`Tcb::stream_sent`] when the application was told of it.
    told_sent: Option<u32>,
    /// `snd.up`: one past the last urgent byte written (RFC 6093 2.2).
    pub(crate) snd_up: Option<SeqNum>,
    /// The last byte that the peer marked as urgent, until the application is told.
    pub(crate) rcv_up: Option<SeqNum>,
    pub(crate) hole: Hole,
    /// Ends of records (MSG_EOR) that wait to be sent, in order.
    pub(crate) records: VecDeque<SeqNum>,
}

/// What is believed of a path on which full segments vanished (RFC 4821 7.7, RFC 8899 4.3).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Hole {
    /// Nothing.
    #[default]
    None,
    /// Full segments timed out: what is sent is smaller until something gets through.
    Suspected(Doubt),
    /// Small segments got through: full ones are sent again.
    Trying(Doubt),
    /// Time after time full segments were lost where small ones got through: segments stay small for a while.
    Found(Doubt),
}

/// What tells a black hole from loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    /// Segment size before, and the one that is used instead: the longest that is known to get through, once one is.
    pub full: u16,
    pub small: u16,
    /// Length of the shortest segment that timed out. One as long as this that arrives shows that length is not the cause.
    pub lost: u16,
    /// How often in a row full segments were lost and small ones got through.
    pub rounds: u8,
    /// Tries to go back to full segments since the black hole was found.
    pub raises: u8,
    /// What was first sent in `from..to` went in small segments, or before anything was known: it proves nothing.
    pub from: SeqNum,
    pub to: SeqNum,
    /// Full segments end here: a try to go back sends a few only.
    pub end: Option<SeqNum>,
    /// When the next try is due.
    pub at: Instant,
}

impl Knobs {
    /// What a connection that sets none has.
    pub fn of(config: &Config) -> Option<Box<Knobs>> {
        let not_sent_low = config.not_sent_low;
        (not_sent_low > 0).then(|| Box::new(Knobs { not_sent_low, ..Knobs::default() }))
    }
}

impl Notice {
    /// Less than TCP_NOTSENT_LOWAT waits to be sent.
    pub const SENT: Notice = Notice(32);
    /// The peer marked a byte as urgent.
    pub const URGENT: Notice = Notice(64);
}

impl Tcb {
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

impl Algorithm {
    /// All that there are, with Linux's names.
    pub const ALL: &'static [(Algorithm, &'static str)] = &[(Algorithm::Cubic, "cubic"), (Algorithm::NewReno, "reno")];

    /// Its name for TCP_CONGESTION.
    pub fn name(self) -> &'static str {
        Algorithm::ALL.iter().find(|(a, _)| *a == self).map_or("", |(_, name)| name)
    }

    /// The algorithm that `name` stands for.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.iter().find(|(_, n)| *n == name).map(|(a, _)| *a)
    }

    /// Its number between the halves of a lane.
    pub fn number(self) -> u32 {
        Algorithm::ALL.iter().position(|(a, _)| *a == self).map_or(u32::MAX, |at| at as u32)
    }

    /// The algorithm with this number.
    pub fn from_number(number: u32) -> Option<Algorithm> {
        Algorithm::ALL.get(number as usize).map(|(a, _)| *a)
    }
}
