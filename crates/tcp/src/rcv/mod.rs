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

/// What a connection with nothing under way keeps of them: Last.ACK.sent is RCV.NXT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    nxt: SeqNum,
    adv: SeqNum,
    ts_recent: u32,
    ts_recent_age: u32,
}

impl Idle {
    /// `None` where something is under way.
    pub fn of(rcv: &Rcv) -> Option<Idle> {
        let Rcv { nxt, adv, last_ack_sent, ts_recent, ts_recent_age, unacked } = *rcv;
        (unacked == 0 && last_ack_sent == nxt).then_some(Idle { nxt, adv, ts_recent, ts_recent_age })
    }

    /// The variables again.
    #[inline(always)]
    pub fn rcv(&self) -> Rcv {
        let Idle { nxt, adv, ts_recent, ts_recent_age } = *self;
        Rcv { nxt, adv, last_ack_sent: nxt, ts_recent, ts_recent_age, unacked: 0 }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// RCV.NXT is 100, RCV.WND `window`.
    fn rcv(window: u32) -> Rcv {
        let mut rcv = Rcv::default();
        rcv.synchronise(SeqNum(99), window);
        rcv
    }

    fn seg(seq: u32, payload: &[u8], flags: Flags) -> Segment<'_> {
        let (ack, options) = (SeqNum(0), Default::default());
        let seq = SeqNum(seq);
        Segment { src_port: 1, dst_port: 2, seq, ack, flags, window: 0, urgent: 0, options, payload, mss: 0 }
    }

    #[test]
    fn the_four_cases() {
        let accepts = |window, seq, len: usize, flags| rcv(window).accept(&seg(seq, &[0; 99][..len], flags)).is_some();
        let edges = |window, len, flags| {
            (0..200)
                .filter(|seq| accepts(window, *seq, len, flags))
                .fold(None, |edges: Option<(u32, u32)>, seq| Some((edges.map_or(seq, |(first, _)| first), seq)))
        };
        assert_eq!(edges(0, 0, Flags::ACK), Some((100, 100)));
        assert_eq!(edges(0, 1, Flags::ACK), None);
        // An empty one is taken at the right edge, too, but no RST.
        assert_eq!(edges(10, 0, Flags::ACK), Some((100, 110)));
        assert_eq!(edges(10, 0, Flags::RST), Some((100, 109)));
        assert_eq!(edges(10, 5, Flags::ACK), Some((96, 109)));
        assert_eq!(edges(10, 4, Flags::ACK | Flags::FIN), Some((96, 109)));
        assert_eq!(edges(10, 50, Flags::ACK), Some((51, 109)));
    }

    #[test]
    fn what_lies_in_the_window() {
        let data: Vec<u8> = (0..20).collect();
        let trim = |window, seq| {
            let (rcv, seg) = (rcv(window), seg(seq, &data, Flags::ACK | Flags::FIN));
            let t = rcv.trim(&rcv.accept(&seg).expect("acceptable"));
            (t.seq.0, t.data.to_vec(), t.fin.map(|end| end.0), t.known.map(|(l, r)| (l.0, r.0)), t.beyond)
        };
        assert_eq!(trim(50, 100), (100, data.clone(), Some(120), None, false));
        assert_eq!(trim(50, 95), (100, data[5..].to_vec(), Some(115), Some((95, 100)), false));
        assert_eq!(trim(10, 95), (100, data[5..15].to_vec(), None, Some((95, 100)), true));
        assert_eq!(trim(10, 105), (105, data[..5].to_vec(), None, None, true));
        // The FIN takes no room of its own.
        assert_eq!(trim(20, 100), (100, data.clone(), Some(120), None, false));
        assert_eq!(trim(50, 80), (100, vec![], Some(100), Some((80, 100)), false));
    }

    #[test]
    fn edges_never_move_left() {
        let mut rcv = rcv(100);
        rcv.advance(60);
        assert_eq!((rcv.nxt().0, rcv.window(), rcv.unacked()), (160, 40, 60));
        rcv.offer(30);
        assert_eq!(rcv.window(), 40);
        rcv.offer(50);
        assert_eq!(rcv.window(), 50);
        rcv.check();
        rcv.acknowledged();
        rcv.advance(50);
        rcv.take_fin();
        assert_eq!((rcv.nxt().0, rcv.window(), rcv.unacked()), (211, 0, 50));
        assert!(rcv.covers_last_ack(SeqNum(160)) && !rcv.covers_last_ack(SeqNum(161)));
        rcv.check();
    }
}
