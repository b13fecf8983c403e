//! The receive sequence variables (RFC 9293 3.3.1), with what has come ([`receiver`], [`reassembly`]) and how much more may
//! ([`autotune`], [`window`](crate::window)).
//!
//! Invariants: Last.ACK.sent <= RCV.NXT <= RCV.NXT + RCV.WND; none of these edges ever moves left (RFC 9293 3.8.6, "do not
//! shrink"); `unacked` lies between the first two.

pub(crate) mod autotune;
pub(crate) mod reassembly;
pub(crate) mod receiver;

use wire::tcp::{Flags, Segment};
use wire::{Instant, SeqNum};

/// Receive sequence variables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rcv {
    /// RCV.NXT.
    nxt: SeqNum,
    /// RCV.NXT + RCV.WND as it was offered last.
    adv: SeqNum,
    /// Last.ACK.sent (RFC 7323 4.3).
    last_ack_sent: SeqNum,
    /// TS.Recent (RFC 7323 4.3), and when it was taken, s.
    ts_recent: u32,
    ts_recent_age: u32,
    /// In-order bytes since the last ACK we sent.
    unacked: u32,
}

/// A segment that has something in the receive window, or is empty at one of its edges ([`Rcv::accept`]).
pub(crate) struct Acceptable<'a>(Segment<'a>);

impl<'a> Acceptable<'a> {
    #[inline(always)]
    pub fn segment(&self) -> &Segment<'a> {
        &self.0
    }
}

/// What of an acceptable segment lies in the window.
pub(crate) struct InWindow<'a> {
    pub seq: SeqNum,
    pub data: &'a [u8],
    /// Where its text ends, behind which it has its FIN.
    pub fin: Option<SeqNum>,
    /// It began before RCV.NXT, and brought this again.
    pub known: Option<(SeqNum, SeqNum)>,
    /// Its end lay beyond the window.
    pub beyond: bool,
}

impl Rcv {
    /// RCV.NXT.
    #[inline(always)]
    pub fn nxt(&self) -> SeqNum {
        self.nxt
    }

    /// RCV.WND.
    #[inline(always)]
    pub fn window(&self) -> u32 {
        self.adv.since(self.nxt)
    }

    /// The peer's SYN came with `irs`, and our answer offers `window` bytes.
    #[inline(always)]
    pub fn synchronise(&mut self, irs: SeqNum, window: u32) {
        self.nxt = irs + 1;
        self.adv = self.nxt + window;
        self.last_ack_sent = self.nxt;
    }

    /// RFC 9293 3.10.7.4, the four cases, with two additions: a zero-length segment at the left edge is always acceptable,
    /// and so is one at the right edge that is no RST. A peer that has filled the window and misses a segment at its start
    /// sends its ACKs with that number (SND.NXT = RCV.NXT + RCV.WND), and retransmits until they are heard; Linux and FreeBSD
    /// take them. RFC 5961 3.2 keeps RST out.
    pub fn accept<'a>(&self, seg: &Segment<'a>) -> Option<Acceptable<'a>> {
        let window = self.window();
        let rst = seg.flags.contains(Flags::RST);
        let len =
            seg.payload.len() as u32 + seg.flags.contains(Flags::FIN) as u32 + seg.flags.contains(Flags::SYN) as u32;
        let acceptable = match (len, window) {
            (0, 0) => seg.seq == self.nxt,
            (0, _) => seg.seq.in_window(self.nxt, window) || (seg.seq == self.adv && !rst),
            (_, 0) => false,
            _ => {
                seg.seq.in_window(self.nxt, window) || (seg.seq + (len - 1)).in_window(self.nxt, window)
                    // A segment that covers the whole window and more.
                    || (seg.seq.before(self.nxt) && (seg.seq + len).after(self.adv))
            }
        };
        acceptable.then_some(Acceptable(*seg))
    }

    /// Cuts off what lies outside of the window.
    pub fn trim<'a>(&self, seg: &Acceptable<'a>) -> InWindow<'a> {
        let Segment { mut seq, payload: mut data, flags, .. } = seg.0;
        let end = seq + data.len() as u32;
        let mut fin = flags.contains(Flags::FIN).then_some(end);
        let mut known = None;
        if seq.before(self.nxt) {
            let again = (self.nxt.since(seq) as usize).min(data.len());
            known = Some((seq, seq + again as u32));
            data = &data[again..];
            seq += again as u32;
        }
        let window = self.window();
        let ahead = (seq + data.len() as u32).since(self.nxt);
        let beyond = seq.in_window(self.nxt, window.max(1)) && ahead > window;
        if beyond {
            data = &data[..data.len() - ((ahead - window) as usize).min(data.len())];
            fin = None;
        }
        InWindow { seq, data, fin, known, beyond }
    }

    /// `bytes` came in order.
    #[inline(always)]
    pub fn advance(&mut self, bytes: u32) {
        self.nxt += bytes;
        if self.nxt.after(self.adv) {
            self.adv = self.nxt;
        }
        self.unacked += bytes;
    }

    /// The FIN came in order.
    #[inline(always)]
    pub fn take_fin(&mut self) {
        self.nxt += 1;
        if self.nxt.after(self.adv) {
            self.adv = self.nxt;
        }
    }

    /// `window` bytes are offered; less than before is not.
    #[inline(always)]
    pub fn offer(&mut self, window: u32) {
        if window > self.window() {
            self.adv = self.nxt + window;
        }
    }

    /// In-order bytes since the last ACK we sent.
    #[inline(always)]
    pub fn unacked(&self) -> u32 {
        self.unacked
    }

    /// An ACK goes out: everything that came is acknowledged by it (RFC 9293 3.8.6.3).
    #[inline(always)]
    pub fn acknowledged(&mut self) {
        self.unacked = 0;
        self.last_ack_sent = self.nxt;
    }

    // -- TS.Recent (RFC 7323 4.3).

    /// TS.Recent.
    #[inline(always)]
    pub fn ts_recent(&self) -> u32 {
        self.ts_recent
    }

    /// `value` is older.
    #[inline(always)]
    pub fn is_older(&self, value: u32) -> bool {
        (value.wrapping_sub(self.ts_recent) as i32) < 0
    }

    /// For how long, s, it has been known.
    pub fn ts_age(&self, now: Instant) -> u32 {
        ((now.millis() / 1000) as u32).wrapping_sub(self.ts_recent_age)
    }

    /// Whether a segment at `seq` covers what was acknowledged last: its timestamp may be taken.
    #[inline(always)]
    pub fn covers_last_ack(&self, seq: SeqNum) -> bool {
        seq.before_eq(self.last_ack_sent)
    }

    /// It is `value` now.
    #[inline(always)]
    pub fn take_ts(&mut self, value: u32, now: Instant) {
        self.ts_recent = value;
        self.ts_recent_age = (now.millis() / 1000) as u32;
    }

    /// Asserts what the module's head says.
    pub fn check(&self) {
        assert!(self.nxt.before_eq(self.adv), "the window ends at {:?}, before RCV.NXT {:?}", self.adv, self.nxt);
        assert!(self.last_ack_sent.before_eq(self.nxt), "{:?} was acknowledged, beyond RCV.NXT", self.last_ack_sent);
        let since = self.nxt.since(self.last_ack_sent);
        assert!(self.unacked <= since, "{} bytes not acknowledged, of {since}", self.unacked);
    }
}
