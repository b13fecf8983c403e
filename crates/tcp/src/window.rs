//! The receive window: what is offered, when it grows, and silly-window avoidance on the receiving side.

use wire::tcp::{Options, SackBlocks};
use wire::{Instant, SeqNum};

use crate::{Config, Context, Notice, State, Tcb, flag};

/// The shift that lets 16 bits name `buffer` bytes (RFC 7323 2.2).
pub(crate) fn scale_for(buffer: u32, config: &Config) -> u8 {
    if !config.window_scaling {
        return 0;
    }
    (0..14).find(|s| (buffer >> s) <= 0xffff).unwrap_or(14)
}

/// The window of a SYN, which is never scaled (RFC 7323 2.2): whole segments, as Linux offers.
pub(crate) fn initial(buffer: u32, mss: u16) -> u32 {
    let mss = mss.max(1) as u32;
    let whole = if buffer > mss { buffer - buffer % mss } else { buffer };
    whole.min(0xffff)
}

/// Receive-buffer autotuning: as much as the application reads in a round trip, twice over, so that a sender in slow start
/// is never held back (dynamic right-sizing; Linux's `tcp_rcv_space_adjust`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Autotune {
    /// Bytes that the application read in the present round, and most in a round before.
    pub copied: u32,
    pub space: u32,
    /// When the round began.
    pub round: Instant,
    /// Our estimate of the round trip as the receiver, µs; 0: none.
    pub rtt: u32,
    /// A window from here on is being timed.
    pub timed: Option<(SeqNum, Instant)>,
    /// The echo that was measured last.
    pub echo: u32,
}

impl Tcb {
    /// Moves the right edge as far as the buffer allows and gives the window field's value.
    ///
    /// RFC 9293 3.8.6.2.2 (MUST-39): the edge moves only by min(half the buffer, one segment) or more; it never moves
    /// left (SHLD-14).
    pub(crate) fn offer_window(&mut self, syn: bool, cx: &Context) -> u16 {
        let offered = self.rcv.adv.since(self.rcv.nxt);
        if syn {
            // RFC 7323 2.2: the window of a segment with SYN is not scaled; of a SYN/ACK it is as when the SYN was taken.
            return match self.state {
                State::SynSent => initial(self.receiver.buffer, self.receiver.mss_clamp) as u16,
                _ => offered.min(0xffff) as u16,
            };
        }
        let free = self.receiver.buffer.saturating_sub(self.receiver.occupied).min(self.ahead(cx));
        let step = (self.receiver.buffer / 2).min(self.receiver.mss_clamp as u32);
        let limit = 0xffff << self.options.rcv_scale();
        let mut window = offered;
        if free > offered && free - offered >= step {
            window = free.min(limit);
        }
        // Rounding up never pulls the edge back.
        let shift = self.options.rcv_scale();
        let field = (window.saturating_add((1 << shift) - 1) >> shift).min(0xffff);
        if field << shift > offered {
            self.rcv.adv = self.rcv.nxt + (field << shift);
        }
        field as u16
    }

    /// Bytes by which the right edge may be ahead of what was received, as far as the lane keeps up.
    fn ahead(&self, cx: &Context) -> u32 {
        cx.limits.window.saturating_mul(self.receiver.mss_clamp as u32)
    }

    /// The application read `bytes`: tell the peer when the window opens by a useful step.
    pub fn consumed(&mut self, bytes: u32, cx: &mut Context) {
        self.receiver.occupied = self.receiver.occupied.saturating_sub(bytes);
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            return;
        }
        self.autotune(bytes, cx);
        let free = self
            .receiver
            .buffer
            .saturating_sub(self.receiver.occupied)
            .min(self.ahead(cx))
            .min(0xffff << self.options.rcv_scale());
        let offered = self.rcv.adv.since(self.rcv.nxt);
        // Linux's habit: an unsolicited update when the window at least doubles, or opens from nothing.
        let step = (self.receiver.buffer / 2).min(2 * self.receiver.mss_clamp as u32).min(self.ahead(cx) / 2);
        if free >= offered.saturating_mul(2).max(offered + step.max(1)) {
            self.set(flag::ACK_NOW, true);
        }
    }

    fn autotune(&mut self, bytes: u32, cx: &mut Context) {
        let t = &mut self.receiver.tune;
        t.copied = t.copied.saturating_add(bytes);
        if t.rtt == 0 || cx.now.micros_since(t.round) < t.rtt as u64 {
            return;
        }
        let (copied, space) = (t.copied, t.space.max(1));
        t.copied = 0;
        t.round = cx.now;
        if copied <= space {
            return;
        }
        t.space = copied;
        if self.has(flag::RCVBUF_LOCKED) || copied < self.receiver.buffer / 8 {
            return;
        }
        // Twice what was read, and the growth once more: the sender doubles each round trip.
        let mut want = copied as u64 * 2 + 16 * self.receiver.mss_clamp as u64;
        want += want * (copied - space).min(space) as u64 / space as u64;
        let clamp = self.knobs.as_ref().map_or(0, |k| k.window_clamp);
        let most = if clamp > 0 { clamp.min(cx.config.receive_buffer_max) } else { cx.config.receive_buffer_max };
        let want = want.min(most as u64) as u32;
        // Not while memory is short: what one connection gains all would pay for.
        if want > self.receiver.buffer && cx.pool.plenty() {
            self.receiver.buffer = want;
        }
    }

    /// `seg` brought data in order: the receiver's estimate of the round trip, from the echo of our timestamps or else from
    /// how long a window takes.
    pub(crate) fn measure_as_receiver(&mut self, len: usize, cx: &Context) {
        let now = cx.now;
        if let Some(echo) = self.receiver.echo {
            if echo == self.receiver.tune.echo || len < self.receiver.mss as usize {
                return;
            }
            self.receiver.tune.echo = echo;
            let ms = (now.millis() as u32).wrapping_sub(echo);
            if ms < 1 << 20 {
                self.receiver.tune.take(ms.max(1) * 1000, false);
            }
            return;
        }
        match self.receiver.tune.timed {
            Some((end, since)) if !self.rcv.nxt.before(end) => {
                let rtt = now.micros_since(since).clamp(1, 1 << 30) as u32;
                self.receiver.tune.take(rtt, true);
            }
            Some(_) => return,
            None => {}
        }
        self.receiver.tune.timed = Some((self.rcv.nxt + self.rcv.adv.since(self.rcv.nxt).max(1), now));
    }

    /// SO_RCVBUF: a smaller buffer takes effect as data arrives; the window does not shrink, and no longer grows by itself.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        self.receiver.buffer = bytes.clamp(2048, Config::MOST_BYTES);
        self.set(flag::RCVBUF_LOCKED, true);
    }

    /// SO_SNDBUF, for the rhythm of reports; it no longer grows by itself.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.sender.set_buffer(bytes.clamp(2048, Config::MOST_BYTES));
        self.set(flag::SNDBUF_LOCKED, true);
    }

    /// Bytes that the application should queue at most.
    pub fn send_buffer(&self) -> u32 {
        self.sender.buffer()
    }

    /// Send-buffer autotuning: two windows, so that one can be acknowledged while the next is queued (Linux's
    /// `tcp_sndbuf_expand`).
    pub(crate) fn expand_send_buffer(&mut self, cx: &Context) {
        let want = 2 * self.cc.cwnd() as u64 * self.options.smss as u64;
        let want = want.min(cx.config.send_buffer_max as u64) as u32;
        // In steps of an eighth: each is an event.
        if !self.sender.grows(want) || self.has(flag::SNDBUF_LOCKED) || !cx.pool.plenty() {
            return;
        }
        self.sender.set_buffer(want);
        if !self.orphaned() {
            self.put_notice(Notice::ROOM);
        }
    }

    /// Options of an outgoing segment.
    #[inline]
    pub(crate) fn options(&mut self, syn: bool, cx: &mut Context) -> Options {
        let timestamps = self.has(flag::TIMESTAMPS).then(|| {
            let value = self.options.clock(cx.now);
            // RFC 7323 3.2: TSecr is zero while ACK is not set.
            let echo = if self.state == State::SynSent { 0 } else { self.rcv.ts_recent };
            wire::tcp::Timestamps { value, echo }
        });
        if syn {
            return Options {
                mss: Some(self.receiver.mss_clamp),
                window_scale: self.has(flag::SCALED).then_some(self.options.rcv_scale()),
                sack_permitted: self.has(flag::SACK),
                timestamps,
                ..Options::default()
            };
        }
        let sack = match self.receiver.dsack.is_some() || self.receiver.ooo.is_some() {
            true => self.sack_blocks(cx),
            false => SackBlocks::default(),
        };
        Options { timestamps, sack, ..Options::default() }
    }

    #[cold]
    fn sack_blocks(&mut self, cx: &mut Context) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if self.has(flag::SACK) {
            // RFC 2883 4: a duplicate is reported once, first.
            if let Some((left, right)) = self.receiver.dsack.take() {
                cx.counters.dsacks_out += 1;
                blocks.push(left, right);
            }
            if let Some(ooo) = &self.receiver.ooo {
                for (left, right) in ooo.blocks() {
                    blocks.push(left, right);
                }
            }
        }
        blocks
    }

    /// `left..right` came twice (RFC 2883 4).
    pub(crate) fn note_duplicate(&mut self, left: SeqNum, right: SeqNum) {
        if self.has(flag::SACK) && left.before(right) {
            self.receiver.dsack = Some((left, right));
        }
    }
}

impl Autotune {
    /// RFC 6298's smoothing where the sample is good, the least where it is an upper bound.
    fn take(&mut self, sample: u32, bound: bool) {
        self.rtt = match (self.rtt, bound) {
            (0, _) => sample,
            (old, true) => old.min(sample),
            (old, false) => ((old as u64 * 7 + sample as u64) / 8) as u32,
        };
    }
}
