//! Options that few connections set (tcp(7)): what the application may turn on one connection besides the common ones.

use std::collections::VecDeque;

use wire::{Instant, SeqNum};

use crate::{Config, Notice};

/// Their values; a connection without any has none of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knobs {
    /// TCP_SYNCNT; 0 is the configured number.
    pub syn_retries: u8,
    /// TCP_LINGER2, seconds; 0 is the configured time, below 0 no FIN-WAIT-2 without an owner at all.
    pub linger2: i32,
    /// FIN-WAIT-2 was entered and timed by `linger2`.
    pub lingers: bool,
    /// TCP_WINDOW_CLAMP, bytes; 0 is none.
    pub window_clamp: u32,
    /// TCP_NOTSENT_LOWAT, bytes; 0 is none.
    pub not_sent_low: u32,
    /// [`Tcb::stream_sent`](crate::Tcb::stream_sent) when the application was told of it.
    pub told_sent: Option<u32>,
    /// `snd.up`: one past the last urgent byte written (RFC 6093 2.2).
    pub snd_up: Option<SeqNum>,
    /// The last byte that the peer marked as urgent, until the application is told.
    pub rcv_up: Option<SeqNum>,
    pub hole: Hole,
    /// Ends of records (MSG_EOR) that wait to be sent, in order.
    pub records: VecDeque<SeqNum>,
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
