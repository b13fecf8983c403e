//! Receive-buffer autotuning: as much as the application reads in a round trip, twice over, so that a sender in slow start
//! is never held back (dynamic right-sizing; Linux's `tcp_rcv_space_adjust`).

use wire::{Instant, SeqNum};

/// A round that began longer ago, µs, is over when more comes.
const LATELY: u64 = 1_000_000;

/// What it knows of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Autotune {
    /// Bytes that the application read in the present round, and most in a round before.
    copied: u32,
    space: u32,
    /// When the round began.
    round: Instant,
    /// Our estimate of the round trip as the receiver, µs; 0: none.
    rtt: u32,
    /// A window from here on is being timed.
    timed: Option<(SeqNum, Instant)>,
    /// The echo that was measured last.
    echo: u32,
}

/// What is kept of it in a pause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    space: u32,
    rtt: u32,
}

/// The present round, where it counts: otherwise the next one begins after the pause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Round {
    copied: u32,
    since: Instant,
    echo: u32,
}

impl Autotune {
    /// What to keep.
    pub fn keep(&self) -> Kept {
        Kept { space: self.space, rtt: self.rtt }
    }

    /// The round, where so much was read in it that a buffer of `buffer` bytes may grow by it, and that lately.
    pub fn round(&self, buffer: u32, now: Instant) -> Option<Round> {
        let counts = self.copied > buffer / 8 && now.micros_since(self.round) < LATELY;
        counts.then_some(Round { copied: self.copied, since: self.round, echo: self.echo })
    }

    /// Goes on with what was kept.
    pub fn resumed(Kept { space, rtt }: Kept, round: Option<Round>, now: Instant) -> Autotune {
        let Round { copied, since, echo } = round.unwrap_or(Round { copied: 0, since: now, echo: 0 });
        Autotune { space, rtt, copied, round: since, echo, timed: None }
    }

    /// The application read `bytes`; where a round ends by that, and it read more in it than ever, so many, and before at most so many.
    pub fn read(&mut self, bytes: u32, now: Instant) -> Option<(u32, u32)> {
        self.copied = self.copied.saturating_add(bytes);
        if self.rtt == 0 || now.micros_since(self.round) < self.rtt as u64 {
            return None;
        }
        let (copied, space) = (self.copied, self.space.max(1));
        self.copied = 0;
        self.round = now;
        if copied <= space {
            return None;
        }
        self.space = copied;
        Some((copied, space))
    }

    /// Whether `echo` was measured last.
    #[inline(always)]
    pub fn knows(&self, echo: u32) -> bool {
        self.echo == echo
    }

    /// The peer paused: `echo` is of what went before that.
    pub fn skip_echo(&mut self, echo: u32) {
        self.echo = echo;
    }

    /// The peer paused: the window that was timed took its pause.
    pub fn skip_window(&mut self) {
        self.timed = None;
    }

    /// Data came, in full segments where `full`, which echoes our clock of `echo`, ms, and at most `most` µs ago.
    pub fn measure_echo(&mut self, echo: u32, full: bool, most: u32, now: Instant) {
        if !full {
            return;
        }
        self.echo = echo;
        let ms = (now.millis() as u32).wrapping_sub(echo);
        if ms <= (most / 1000).min(1 << 20) {
            self.take(ms.max(1) * 1000, false);
        }
    }

    /// Data came, without an echo: RCV.NXT is `nxt`, and `window` bytes are offered. A window takes a round trip at most.
    pub fn measure_window(&mut self, nxt: SeqNum, window: u32, now: Instant) {
        match self.timed {
            Some((end, since)) if !nxt.before(end) => {
                let rtt = now.micros_since(since).clamp(1, 1 << 30) as u32;
                self.take(rtt, true);
            }
            Some(_) => return,
            None => {}
        }
        self.timed = Some((nxt + window.max(1), now));
    }

    /// RFC 6298's smoothing where the sample is good, the least where it is an upper bound.
    fn take(&mut self, sample: u32, bound: bool) {
        self.rtt = match (self.rtt, bound) {
            (0, _) => sample,
            (old, true) => old.min(sample),
            (old, false) => ((old as u64 * 7 + sample as u64) / 8) as u32,
        };
    }
}
