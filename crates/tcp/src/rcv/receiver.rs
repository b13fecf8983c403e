//! The receive half of a control block: what has come and the application has not read, and how much more may come.
//!
//! Invariants: what is in `queue` counts as occupied; what came out of order lies in the window, in runs that neither touch nor
//! overlap; no segment is longer than what our SYN offers.

use mem::{CHUNK_BYTES, Chain, Side};
use wire::{Instant, SeqNum};

use crate::rcv::Rcv;
use crate::rcv::autotune::{Autotune, Kept, Round};
use crate::rcv::reassembly::{Inserted, Reassembly};
use crate::{Config, Open, window};

/// Most quick ACKs at the start of a transfer.
const QUICK: u32 = 16;

#[derive(Debug)]
pub(crate) struct Receiver {
    /// In order, not yet handed to the application.
    queue: Chain,
    /// In-order bytes that the application has not reported as read.
    occupied: u32,
    /// SO_RCVBUF.
    buffer: u32,
    /// When data arrived last.
    data_at: Instant,
    /// The longest segment that came: what the peer's SMSS is taken for.
    mss: u16,
    /// The MSS that our SYN offers.
    mss_clamp: u16,
    quick_acks: u8,
    /// IRS.
    irs: SeqNum,
    /// The timestamp that the segment being worked on echoes, in our clock, ms.
    echo: Option<u32>,
    ooo: Option<Box<Reassembly>>,
    /// What came twice and has not been reported (RFC 2883).
    dsack: Option<(SeqNum, SeqNum)>,
    tune: Autotune,
}

/// How soon data that came in order is acknowledged (RFC 9293 3.8.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// At once.
    Now,
    /// At once, unless the application answers in its next turn.
    Quick,
    /// By the timer.
    Delayed,
}

/// What is kept of it in a pause, beside the times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    occupied: u32,
    buffer: u32,
    irs: SeqNum,
    tune: Kept,
    mss: u16,
    mss_clamp: u16,
}

impl Idle {
    /// The MSS that our SYN offered.
    pub fn mss_clamp(&self) -> u16 {
        self.mss_clamp
    }

    /// IRS.
    pub fn irs(&self) -> SeqNum {
        self.irs
    }
}

impl Receiver {
    #[inline(always)]
    pub fn new(open: &Open, config: &Config) -> Receiver {
        Receiver {
            queue: Chain::default(),
            occupied: 0,
            buffer: open.buffer(config),
            data_at: Instant::ZERO,
            mss: open.mss.min(536),
            mss_clamp: open.mss,
            quick_acks: 0,
            irs: SeqNum(0),
            echo: None,
            ooo: None,
            dsack: None,
            tune: Autotune::default(),
        }
    }

    /// What to keep in a pause, and the quick ACKs left, of which there are at most 16; `None` where something waits here.
    pub fn keep(&self) -> Option<(Idle, u8)> {
        let tune = self.tune.keep();
        let Receiver { occupied, buffer, irs, mss, mss_clamp, quick_acks, .. } = *self;
        let idle = self.queue.is_empty() && self.ooo.is_none() && self.dsack.is_none();
        idle.then_some((Idle { occupied, buffer, irs, tune, mss, mss_clamp }, quick_acks))
    }

    /// The round of autotuning, where it counts.
    pub fn round(&self, now: Instant) -> Option<Round> {
        self.tune.round(self.buffer, now)
    }

    /// Goes on after it.
    #[inline(always)]
    pub fn resume(&mut self, idle: Idle, quick_acks: u8, round: Option<Round>, now: Instant, data_at: Instant) {
        let Idle { occupied, buffer, irs, tune, mss, mss_clamp } = idle;
        (self.occupied, self.buffer, self.irs) = (occupied, buffer, irs);
        (self.mss, self.mss_clamp, self.quick_acks) = (mss, mss_clamp, quick_acks);
        self.tune = Autotune::resumed(tune, round, now);
        self.data_at = data_at;
    }

    /// The peer's SYN came with `irs`; bytes that our answer offers.
    #[inline(always)]
    pub fn synchronise(&mut self, irs: SeqNum) -> u32 {
        self.irs = irs;
        self.first_window()
    }

    /// Bytes that a SYN offers.
    #[inline(always)]
    pub fn first_window(&self) -> u32 {
        window::initial(self.buffer, self.mss_clamp)
    }

    /// IRS.
    #[inline(always)]
    pub fn irs(&self) -> SeqNum {
        self.irs
    }

    /// The longest segment that came: what the peer's SMSS is taken for.
    #[inline(always)]
    pub fn mss(&self) -> u16 {
        self.mss
    }

    /// The MSS that our SYN offers.
    #[inline(always)]
    pub fn mss_clamp(&self) -> u16 {
        self.mss_clamp
    }

    /// When data arrived last; `None` where none has.
    #[inline(always)]
    pub fn data_at(&self) -> Option<Instant> {
        (self.data_at != Instant::ZERO).then_some(self.data_at)
    }

    /// A segment came that echoes `echo` of our clock, ms.
    #[inline(always)]
    pub fn set_echo(&mut self, echo: Option<u32>) {
        self.echo = echo;
    }

    /// The timestamp that the segment being worked on echoes, in our clock, ms.
    #[inline(always)]
    pub fn echo(&self) -> Option<u32> {
        self.echo
    }

    // -- What has come.

    /// Bytes that wait for the application.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// They go to it.
    pub fn take(&mut self) -> Chain {
        core::mem::take(&mut self.queue)
    }

    /// They could not; nothing came in between.
    pub fn put(&mut self, chain: Chain) {
        self.queue = chain;
    }

    /// Nobody will read them.
    #[inline(always)]
    pub fn drop_queue(&mut self, pool: &mut Side) {
        core::mem::take(&mut self.queue).free(pool);
    }

    /// Keeps `data`, which came in order; how much of it. Where memory is short, whoever has much unread gets no more of it, so
    /// that others get through. An eighth of the buffer an application may have read without saying so.
    #[inline(always)]
    pub fn push(&mut self, pool: &mut Side, data: &[u8]) -> usize {
        let refused = pool.is_tight() && (self.occupied >= self.buffer / 8 || pool.is_at_last());
        let took = if refused { 0 } else { self.queue.push_slice(pool, data) };
        self.occupied += took as u32;
        took
    }

    /// The first bytes of the queue, copied into chunks of `to`, which the application reads from. Where memory is short, by the rule of
    /// [`Receiver::push`] and a chunk at a time; where it is scarce, in its `turn`: these bytes are here for good, while segments that were
    /// refused come again at longer and longer intervals.
    pub fn copy(&self, from: &Side, to: &mut Side, turn: bool) -> Chain {
        if !to.has_free() {
            return Chain::default();
        }
        let told = self.occupied - self.queue.len() as u32;
        let most = match to.plenty() {
            true => to.spare(),
            false if to.is_at_last() || to.scarce() && !turn => 0,
            false => (self.buffer / 8).saturating_sub(told).min(CHUNK_BYTES as u32) as usize,
        };
        self.queue.front_copied(from, most, to)
    }

    /// The first bytes of the queue were given as a copy.
    pub fn drop_front(&mut self, pool: &mut Side, bytes: usize) {
        self.queue.consume(pool, bytes);
    }

    /// Appends what came out of order and is in order now.
    pub fn append(&mut self, pool: &mut Side, chain: Chain) {
        self.occupied += chain.len() as u32;
        self.queue.append(pool, chain);
    }

    /// The application says that it read `bytes`; how many that can be of those that it was given.
    pub fn read(&mut self, bytes: u32) -> u32 {
        let bytes = bytes.min(self.occupied - self.queue.len() as u32);
        self.occupied -= bytes;
        bytes
    }

    /// All that it holds: what waits for the application, and what came out of order.
    pub fn chains(&mut self) -> impl Iterator<Item = &mut Chain> {
        core::iter::once(&mut self.queue).chain(self.ooo.iter_mut().flat_map(|ooo| ooo.chains()))
    }

    // -- Out of order.

    /// Nothing came out of order that is still kept.
    #[inline(always)]
    pub fn is_in_order(&self) -> bool {
        self.ooo.is_none()
    }

    /// Keeps what is new of `data` at `seq`, out of order, behind which the stream ends where there is `fin`.
    pub fn insert(&mut self, pool: &mut Side, seq: SeqNum, data: &[u8], fin: Option<SeqNum>) -> Inserted {
        let ooo = self.ooo.get_or_insert_with(Box::<Reassembly>::default);
        let mut done = Inserted { kept: true, duplicate: None };
        if !data.is_empty() {
            done = ooo.insert(pool, seq, data);
        }
        if let (true, Some(end)) = (done.kept, fin) {
            ooo.set_fin(end);
        }
        done
    }

    /// What came out of order.
    pub fn take_out_of_order(&mut self) -> Option<Box<Reassembly>> {
        self.ooo.take()
    }

    /// What of it still is.
    pub fn keep_out_of_order(&mut self, ooo: Box<Reassembly>) {
        self.ooo = Some(ooo);
    }

    /// `left..right` came twice (RFC 2883 4).
    pub fn note_duplicate(&mut self, left: SeqNum, right: SeqNum) {
        if left.before(right) {
            self.dsack = Some((left, right));
        }
    }

    /// Something did, and was not reported.
    #[inline(always)]
    pub fn has_duplicate(&self) -> bool {
        self.dsack.is_some()
    }

    /// RFC 2883 4: it is reported once, first.
    pub fn take_duplicate(&mut self) -> Option<(SeqNum, SeqNum)> {
        self.dsack.take()
    }

    /// There is something for a SACK option.
    #[inline(always)]
    pub fn has_blocks(&self) -> bool {
        self.dsack.is_some() || self.ooo.is_some()
    }

    /// How many blocks a SACK option has, with the duplicate.
    pub fn count_blocks(&self) -> usize {
        self.blocks().count() + self.dsack.is_some() as usize
    }

    /// Blocks of what came out of order (RFC 2018 4).
    pub fn blocks(&self) -> impl Iterator<Item = (SeqNum, SeqNum)> + '_ {
        self.ooo.iter().flat_map(|ooo| ooo.blocks())
    }

    // -- Acknowledging: at least every second full-sized segment, otherwise delayed; at once at the start of a transfer, where the
    // peer's slow start waits for it (Linux's quick ACKs), and not at once where the application answers what it reads, so that
    // the ACK rides on the answer (`pingpong`).

    /// `segment` bytes came in one segment, in order; `unacked` are not acknowledged. How soon they are.
    #[inline(always)]
    pub fn arrived(&mut self, segment: usize, unacked: u32, now: Instant, rto: u32, pingpong: bool) -> Urgency {
        if segment >= self.mss as usize {
            self.mss = segment.min(self.mss_clamp as usize) as u16;
        }
        let first = self.data_at == Instant::ZERO;
        let idle = now.micros_since(self.data_at) > rto as u64;
        if first || (idle && !pingpong) {
            // Half a window of quick ACKs, as at the start.
            let half = self.buffer / (2 * self.mss.max(1) as u32);
            self.quick_acks = self.quick_acks.max(half.clamp(2, QUICK) as u8);
        }
        self.data_at = now;
        // SHLD-19: every second full-sized segment.
        if unacked > self.mss as u32 || self.ooo.is_some() {
            Urgency::Now
        } else if self.quick_acks > 0 && !pingpong {
            Urgency::Quick
        } else {
            Urgency::Delayed
        }
    }

    /// The next acknowledgments are not delayed.
    pub fn ack_quickly(&mut self) {
        self.quick_acks = self.quick_acks.max(2);
    }

    /// An acknowledgment of data goes out.
    #[inline(always)]
    pub fn ack_went(&mut self) {
        self.quick_acks = self.quick_acks.saturating_sub(1);
    }

    // -- The window.

    /// SO_RCVBUF.
    pub fn buffer(&self) -> u32 {
        self.buffer
    }

    /// It is set.
    pub fn set_buffer(&mut self, bytes: u32) {
        self.buffer = bytes;
    }

    /// Moves the right edge as far as the buffer and `ahead` allow and gives the window field's value.
    #[inline(always)]
    pub fn offer(&self, rcv: &mut Rcv, shift: u8, ahead: u32) -> u16 {
        let free = self.free().min(ahead);
        let step = (self.buffer / 2).min(self.mss_clamp as u32);
        let field = window::field(rcv.window(), free, step, shift);
        rcv.offer(field << shift);
        field as u16
    }

    /// Bytes that the buffer still takes.
    #[inline(always)]
    fn free(&self) -> u32 {
        self.buffer.saturating_sub(self.occupied)
    }

    /// Whether the peer should hear unasked that the window has opened: it at least doubles, or opens from nothing (Linux's
    /// habit).
    pub fn worth_update(&self, rcv: &Rcv, shift: u8, ahead: u32) -> bool {
        let free = self.free().min(ahead).min(0xffff << shift);
        let offered = rcv.window();
        let step = (self.buffer / 2).min(2 * self.mss_clamp as u32).min(ahead / 2);
        free >= offered.saturating_mul(2).max(offered + step.max(1))
    }

    /// The application read `bytes`: what the buffer grows to by that, at most `most`, where it may and memory is plenty.
    pub fn autotune(&mut self, bytes: u32, now: Instant, most: Option<u32>, plenty: impl FnOnce() -> bool) {
        let Some((copied, space)) = self.tune.read(bytes, now) else { return };
        let Some(most) = most.filter(|_| copied >= self.buffer / 8) else { return };
        // Twice what was read, and the growth once more: the sender doubles each round trip.
        let mut want = copied as u64 * 2 + 16 * self.mss_clamp as u64;
        want += want * (copied - space).min(space) as u64 / space as u64;
        let want = want.min(most as u64) as u32;
        // Not while memory is short: what one connection gains all would pay for.
        if want > self.buffer && plenty() {
            self.buffer = want;
        }
    }

    /// `len` bytes came in one segment, in order: the receiver's estimate of the round trip, from the echo of our timestamps or else
    /// from how long a window takes. Where no data came for longer than an RTO, µs, the peer paused, and either would measure that; so may
    /// the echo of the handshake.
    #[inline(always)]
    pub fn measure(&mut self, len: usize, rcv: &Rcv, rto: u32, now: Instant) {
        match self.echo {
            // Most segments echo what the one before did.
            Some(echo) if self.tune.knows(echo) => {}
            Some(echo) => {
                let first = self.data_at == Instant::ZERO;
                if !first && now.micros_since(self.data_at) > rto as u64 {
                    return self.tune.skip_echo(echo);
                }
                let most = if first { rto } else { u32::MAX };
                self.tune.measure_echo(echo, len >= self.mss as usize, most, now);
            }
            None => {
                if now.micros_since(self.data_at) > rto as u64 {
                    self.tune.skip_window();
                }
                self.tune.measure_window(rcv.nxt(), rcv.window(), now);
            }
        }
    }

    /// Asserts what the module's head says.
    pub fn check(&self, rcv: &Rcv) {
        let waiting = self.queue.len();
        assert!(self.occupied as usize >= waiting, "{waiting} bytes wait, {} are occupied", self.occupied);
        assert!(self.mss <= self.mss_clamp, "a segment of {} bytes came, {} is most", self.mss, self.mss_clamp);
        if let Some(ooo) = &self.ooo {
            ooo.check(rcv.nxt() + rcv.window());
        }
    }
}
