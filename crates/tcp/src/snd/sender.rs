//! The send half of a control block: what the application has queued, from the first byte that is not acknowledged on.
//!
//! Invariants, while the connection lives:
//! - `base` is the number of the first byte in `queue`: SND.UNA, but for a SYN before it or a FIN behind the last one;
//! - nothing was sent that was not queued: SND.NXT is at most the end of the queue, and a FIN behind it;
//! - `sml` is not beyond SND.NXT.

use mem::{Chain, Cursor, Side};
use wire::{Instant, SeqNum};

use crate::{Config, Open};

/// Bytes acknowledged of which the application may hear before a quarter of its buffer is free.
const WORTH: u32 = 2048;
/// Records of outstanding segments that every connection may have.
const MOST_RECORDS: u32 = 8192;
/// Headers of IPv6 and TCP.
const V6_HEADERS: u16 = 60;

#[derive(Debug)]
pub(crate) struct Sender {
    /// From `base` on: sent and not acknowledged, then not sent.
    queue: Chain,
    cursor: Cursor,
    /// Sequence number of the first byte in `queue`.
    base: SeqNum,
    /// End of the last partial segment sent, for Nagle as Minshall amended it.
    sml: SeqNum,
    /// Segments of the burst being sent, for PSH.
    burst: u32,
    /// Acknowledged bytes not reported to the application.
    unreported: u32,
    /// SO_SNDBUF.
    buffer: u32,
    /// When data was sent last, and when some was acknowledged last.
    sent_at: Instant,
    acked_at: Instant,
    /// ISS.
    iss: SeqNum,
    /// What the path takes, as far as it is known before the peer's SYN is there; SMSS counts afterwards.
    path_mss: u16,
    headers: u16,
}

impl Sender {
    #[inline(always)]
    pub fn new(open: &Open, config: &Config) -> Sender {
        let queue = Chain::default();
        Sender {
            cursor: queue.cursor(),
            queue,
            base: open.iss + 1,
            sml: open.iss,
            burst: 0,
            unreported: 0,
            buffer: config.send_buffer,
            sent_at: Instant::ZERO,
            acked_at: Instant::ZERO,
            iss: open.iss,
            path_mss: open.path_mss.min(open.mss),
            headers: open.headers,
        }
    }

    /// Goes on with nothing queued; SND.NXT is `nxt`.
    #[inline(always)]
    pub fn resume(&mut self, nxt: SeqNum, unreported: u32, buffer: u32, sent_at: Instant) {
        (self.base, self.sml) = (nxt, nxt);
        (self.unreported, self.buffer) = (unreported, buffer);
        (self.sent_at, self.acked_at) = (sent_at, sent_at);
    }

    /// ISS.
    #[inline(always)]
    pub fn iss(&self) -> SeqNum {
        self.iss
    }

    // -- The queue.

    /// Nothing is queued.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes that are not acknowledged, sent or not.
    #[inline(always)]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Sequence number of the first byte not yet queued.
    #[inline(always)]
    pub fn end(&self) -> SeqNum {
        self.base + self.queue.len() as u32
    }

    /// Queued bytes never sent. SND.NXT, `nxt`, lies before them (a SYN to come), among them, or behind them (FIN).
    #[inline(always)]
    pub fn unsent(&self, nxt: SeqNum) -> u32 {
        let left = self.end().0.wrapping_sub(nxt.0) as i32;
        (left.max(0) as u32).min(self.queue.len() as u32)
    }

    /// Where `seq` lies in the queue.
    #[inline(always)]
    pub fn offset(&self, seq: SeqNum) -> u32 {
        seq.since(self.base)
    }

    /// More is queued.
    #[inline(always)]
    pub fn append(&mut self, pool: &mut Side, chain: Chain) {
        self.queue.append(pool, chain);
    }

    /// What is queued.
    pub fn chain(&mut self) -> &mut Chain {
        &mut self.queue
    }

    /// Nothing will be sent any more.
    #[inline(always)]
    pub fn drop_queue(&mut self, pool: &mut Side) {
        core::mem::take(&mut self.queue).free(pool);
    }

    /// SND.UNA is `una`: bytes that need not be kept any more; how many.
    #[inline(always)]
    pub fn acknowledge(&mut self, pool: &mut Side, una: SeqNum) -> u32 {
        // Behind the base lies a SYN, behind the end a FIN.
        let data = (una.0.wrapping_sub(self.base.0) as i32).max(0).min(self.queue.len() as i32) as u32;
        if data > 0 {
            self.queue.consume(pool, data as usize);
            self.base += data;
            self.unreported += data;
        }
        data
    }

    /// Copies what lies at `offset` into `to`; in order where `fresh`, by the cursor.
    #[inline(always)]
    pub fn copy(&mut self, pool: &Side, fresh: bool, offset: u32, to: &mut [u8]) {
        match fresh {
            true => self.queue.copy_from(pool, &mut self.cursor, offset as usize, to),
            false => self.queue.copy_at(pool, offset as usize, to),
        };
    }

    /// The `len` bytes at `offset`, in order, where they lie: into the front of `parts`, and how many parts that is. `None` where it
    /// is more.
    pub fn gather<'a>(&'a mut self, pool: &'a Side, offset: u32, len: u32, parts: &mut [&'a [u8]]) -> Option<usize> {
        self.queue.gather(pool, &mut self.cursor, offset as usize, len as usize, parts)
    }

    // -- What the application hears.

    /// SO_SNDBUF.
    pub fn buffer(&self) -> u32 {
        self.buffer
    }

    /// It is set.
    pub fn set_buffer(&mut self, bytes: u32) {
        self.buffer = bytes;
    }

    /// Whether it is worth an event that it grows to `bytes`: in steps of an eighth.
    #[inline(always)]
    pub fn grows(&self, bytes: u32) -> bool {
        bytes > self.buffer + self.buffer / 8
    }

    /// Acknowledged bytes not reported to the application.
    #[inline(always)]
    pub fn unreported(&self) -> u32 {
        self.unreported
    }

    /// They are now.
    pub fn take_unreported(&mut self) -> u32 {
        core::mem::take(&mut self.unreported)
    }

    /// A quarter of the buffer is acknowledged and not reported: the application, which counts it as under way, must hear of that.
    #[inline(always)]
    pub fn fills_a_quarter(&self) -> bool {
        self.unreported >= self.buffer / 4
    }

    /// Whether they are worth an event: a quarter of the buffer, or of what can be had of one where memory is scarce.
    #[inline(always)]
    pub fn worth_telling(&self, share: impl FnOnce() -> usize) -> bool {
        self.fills_a_quarter() || self.unreported >= WORTH && self.unreported as usize >= share() / 4
    }

    // -- What was sent.

    /// Data goes out.
    #[inline(always)]
    pub fn sent(&mut self, now: Instant) {
        self.sent_at = now;
    }

    /// A partial segment goes out; SND.NXT is `nxt` then.
    #[inline(always)]
    pub fn sent_partial(&mut self, nxt: SeqNum) {
        self.sml = nxt;
    }

    /// Whether a partial segment is under way (RFC 9293 3.7.4 as Minshall amended it).
    pub fn partial_is_out(&self, una: SeqNum, nxt: SeqNum) -> bool {
        // Numbers go round: one that is beyond all that was sent is of long ago (Linux's tcp_minshall_check).
        self.sml.after(una) && !self.sml.after(nxt)
    }

    /// Data was acknowledged.
    #[inline(always)]
    pub fn acked(&mut self, now: Instant) {
        self.acked_at = now;
    }

    /// When data was sent last.
    #[inline(always)]
    pub fn sent_at(&self) -> Instant {
        self.sent_at
    }

    /// For how long, µs, neither was: waiting for acknowledgments is no idleness.
    #[inline(always)]
    pub fn idle(&self, now: Instant) -> u64 {
        now.micros_since(self.sent_at.max(self.acked_at))
    }

    /// Segments of the burst being sent.
    #[inline(always)]
    pub fn burst(&self) -> u32 {
        self.burst
    }

    /// `segs` more.
    #[inline(always)]
    pub fn extend_burst(&mut self, segs: u32) {
        self.burst += segs;
    }

    /// The next segment begins another.
    #[inline(always)]
    pub fn end_burst(&mut self) {
        self.burst = 0;
    }

    /// As many records of outstanding segments as there may be: enough for a send buffer of ordinary ones. A peer that asks for
    /// tiny ones must not make us keep, and walk over, a record for every few bytes (CVE-2019-11478, 11479).
    pub fn most_records(&self, config: &Config) -> u32 {
        let buffer = config.send_buffer_max.max(self.buffer);
        (buffer / 512).max(MOST_RECORDS)
    }

    // -- The path.

    /// Bytes of IP and TCP header before a segment.
    pub fn headers(&self) -> u16 {
        self.headers
    }

    /// Over IPv6.
    #[inline(always)]
    pub fn is_v6(&self) -> bool {
        self.headers >= V6_HEADERS
    }

    /// Segments of `mss` bytes are the longest that the path takes, options of the TCP header included; whether that is news.
    pub fn narrow(&mut self, mss: u16) -> bool {
        let news = mss < self.path_mss;
        self.path_mss = self.path_mss.min(mss.max(48));
        news
    }

    /// SMSS towards a peer that offers `mss`, options of the TCP header included.
    #[inline(always)]
    pub fn mss_for(&self, mss: Option<u16>) -> u16 {
        // RFC 9293 3.7.1, MUST-15: without the option the default is 536 (IPv6: 1220, RFC 8200 8.3).
        let default = if self.is_v6() { 1220 } else { 536 };
        // Tiny offers would make every byte a packet; Linux's floor of 48 bytes holds.
        mss.unwrap_or(default).max(48).min(self.path_mss)
    }

    /// Asserts what the module's head says; our SYN is not acknowledged where `syn`, a FIN was sent where `fin`.
    pub fn check(&self, una: SeqNum, nxt: SeqNum, syn: bool, fin: bool) {
        let fin_acked = fin && una == nxt;
        let first = if syn { una + 1 } else { una - fin_acked as u32 };
        assert_eq!(self.base, first, "the queue begins at the first byte that is not acknowledged");
        let sent = syn || !nxt.after(self.end() + fin as u32);
        assert!(sent, "SND.NXT {nxt:?} is beyond what was queued, {:?}", self.end());
        assert!(!fin_acked || self.is_empty(), "text behind a FIN");
    }
}
