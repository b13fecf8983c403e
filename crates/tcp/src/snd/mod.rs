//! The send sequence variables (RFC 9293 3.3.1), with what is queued ([`sender`]).
//!
//! Invariants:
//! - SND.UNA <= SND.NXT; SND.UNA moves only by an [`Ack`], which was compared with both;
//! - SND.WND never exceeds MAX.SND.WND.

pub(crate) mod sender;

use wire::SeqNum;

use crate::variables::SegWnd;

/// SEG.ACK of a segment that acknowledges nothing that was not sent. It may be old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack(SeqNum);

impl Ack {
    /// SEG.ACK.
    #[inline(always)]
    pub fn number(self) -> SeqNum {
        self.0
    }
}

/// Send sequence variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snd {
    /// SND.UNA.
    una: SeqNum,
    /// SND.NXT.
    nxt: SeqNum,
    /// SND.WND, scaled.
    wnd: u32,
    /// MAX.SND.WND (RFC 5961 5.2).
    max_wnd: u32,
    /// SND.WL1.
    wl1: SeqNum,
    /// SND.WL2.
    wl2: SeqNum,
}

impl Snd {
    #[inline(always)]
    pub fn new(iss: SeqNum) -> Snd {
        Snd { una: iss, nxt: iss, wnd: 0, max_wnd: 0, wl1: SeqNum(0), wl2: SeqNum(0) }
    }

    /// SND.UNA.
    #[inline(always)]
    pub fn una(&self) -> SeqNum {
        self.una
    }

    /// SND.NXT.
    #[inline(always)]
    pub fn nxt(&self) -> SeqNum {
        self.nxt
    }

    /// SND.WND, scaled.
    #[inline(always)]
    pub fn wnd(&self) -> u32 {
        self.wnd
    }

    /// MAX.SND.WND (RFC 5961 5.2).
    #[inline(always)]
    pub fn max_wnd(&self) -> u32 {
        self.max_wnd
    }

    /// Sequence numbers sent and not acknowledged.
    #[inline(always)]
    pub fn outstanding(&self) -> u32 {
        self.nxt.since(self.una)
    }

    /// Sequence numbers that the peer's window still takes.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.wnd.saturating_sub(self.outstanding())
    }

    /// The right edge of the peer's window.
    pub fn right(&self) -> SeqNum {
        self.una + self.wnd
    }

    /// Whether `seq` is in flight, SND.UNA <= SEG.SEQ < SND.NXT.
    pub fn is_out(&self, seq: SeqNum) -> bool {
        !seq.before(self.una) && seq.before(self.nxt)
    }

    /// The sequence number of a segment without text: SND.NXT, unless the peer has shrunk its window to below that and would drop the
    /// segment, acknowledgment and all (RFC 9293 3.8.6, SHLD-15; Linux's tcp_acceptable_seq). Less than a `unit` of the window field is
    /// rounding.
    #[inline(always)]
    pub fn acceptable_seq(&self, unit: u32) -> SeqNum {
        let right = self.right();
        let shrunk = self.nxt.after(right) && self.nxt.since(right) >= unit;
        if shrunk { right } else { self.nxt }
    }

    /// `len` sequence numbers are sent.
    #[inline(always)]
    pub fn send(&mut self, len: u32) {
        self.nxt += len;
    }

    // -- The peer's SYN.

    /// It came with SEG.SEQ and SEG.ACK; its window.
    #[inline(always)]
    pub fn synchronise(&mut self, seq: SeqNum, ack: SeqNum, window: SegWnd) {
        (self.wl1, self.wl2) = (seq, ack);
        (self.wnd, self.max_wnd) = (window.bytes(), window.bytes());
    }

    /// RFC 9293 3.10.7.4: the window of the ACK, SEG.SEQ `seq`, that ends the handshake counts from here on, whatever the SYN's was.
    pub fn take_next_window(&mut self, seq: SeqNum) {
        self.wl1 = seq - 1;
    }

    /// The handshake was done elsewhere: its ACK, `ack`, acknowledges all that was sent; the peer's SYN offered `syn` bytes.
    #[inline(always)]
    pub fn establish(&mut self, seq: SeqNum, ack: SeqNum, window: SegWnd, syn: SegWnd) {
        (self.una, self.nxt) = (ack, ack);
        (self.wl1, self.wl2) = (seq, ack);
        self.wnd = window.bytes();
        self.max_wnd = window.bytes().max(syn.bytes());
    }

    // -- Acknowledgments.

    /// RFC 5961 5.2: SND.UNA - MAX.SND.WND <= SEG.ACK <= SND.NXT. The lower bound does not reach below the first byte ever
    /// acknowledged: an ACK of what was never sent would otherwise pass as an old one, and let its text in (as Linux since
    /// 6.7: at most the bytes acknowledged).
    pub fn accept_ack(&self, ack: SeqNum, bytes_acked: u64) -> Option<Ack> {
        let old = (self.max_wnd as u64).min(bytes_acked) as u32;
        (!ack.after(self.nxt) && !ack.before(self.una - old)).then_some(Ack(ack))
    }

    /// SND.UNA < SEG.ACK <= SND.NXT: what acknowledges our SYN.
    pub fn accept_new_ack(&self, ack: SeqNum) -> Option<Ack> {
        (ack.after(self.una) && ack.before_eq(self.nxt)).then_some(Ack(ack))
    }

    /// SND.UNA <= SEG.ACK <= SND.NXT.
    #[inline(always)]
    pub fn accept_ordinary_ack(&self, ack: SeqNum) -> Option<Ack> {
        (ack.since(self.una) <= self.outstanding()).then_some(Ack(ack))
    }

    /// SND.UNA is what `ack` says, unless that is old; whether it has moved.
    #[inline(always)]
    pub fn acknowledge(&mut self, ack: Ack) -> bool {
        let news = ack.0.after(self.una);
        if news {
            self.una = ack.0;
        }
        news
    }

    /// RFC 9293 3.10.7.4: SND.WL1 and SND.WL2 keep old segments from setting the window. Before SND.UNA moves. `None` where the
    /// segment is old; else whether it tells anything, and is no duplicate then.
    #[inline(always)]
    pub fn update_window(&mut self, seq: SeqNum, ack: Ack, window: SegWnd) -> Option<bool> {
        let (ack, window) = (ack.0, window.bytes());
        let newer = self.wl1.before(seq) || (self.wl1 == seq && self.wl2.before_eq(ack));
        if !newer || ack.before(self.una) {
            return None;
        }
        let told = ack.after(self.una) || self.wl1.before(seq) || window != self.wnd;
        self.wl1 = seq;
        self.wl2 = ack;
        self.wnd = window;
        self.max_wnd = self.max_wnd.max(window);
        Some(told)
    }

    /// Asserts what the module's head says.
    pub fn check(&self) {
        assert!(self.una.before_eq(self.nxt), "SND.UNA {:?} is beyond SND.NXT {:?}", self.una, self.nxt);
        assert!(self.wnd <= self.max_wnd, "SND.WND {} is more than MAX.SND.WND {}", self.wnd, self.max_wnd);
    }
}

/// What a connection with nothing under way keeps of them: SND.NXT is SND.UNA, and for SND.WL2 that will do, since an ACK before
/// it sets no window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    una: SeqNum,
    wnd: u32,
    max_wnd: u32,
    wl1: SeqNum,
}

impl Idle {
    /// `None` where something is under way.
    pub fn of(snd: &Snd) -> Option<Idle> {
        let Snd { una, nxt, wnd, max_wnd, wl1, wl2: _ } = *snd;
        (una == nxt).then_some(Idle { una, wnd, max_wnd, wl1 })
    }

    /// The variables again.
    #[inline(always)]
    pub fn snd(&self) -> Snd {
        let Idle { una, wnd, max_wnd, wl1 } = *self;
        Snd { una, nxt: una, wnd, max_wnd, wl1, wl2: una }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 of 1,000 bytes of window are out, from just below the wrap on.
    fn snd() -> Snd {
        let mut snd = Snd::new(SeqNum(u32::MAX - 50));
        snd.send(100);
        snd.synchronise(SeqNum(7), snd.una(), SegWnd::of_syn(1000));
        snd
    }

    #[test]
    fn what_an_ack_may_be() {
        let snd = snd();
        let (una, nxt) = (snd.una(), snd.nxt());
        assert_eq!(snd.accept_ordinary_ack(una), Some(Ack(una)));
        assert_eq!((snd.accept_new_ack(una), snd.accept_new_ack(nxt)), (None, Some(Ack(nxt))));
        for beyond in [snd.accept_ordinary_ack(nxt + 1), snd.accept_new_ack(nxt + 1), snd.accept_ack(nxt + 1, 9999)] {
            assert_eq!(beyond, None);
        }
        assert_eq!(snd.accept_ordinary_ack(una - 1), None);
        // Old ones reach back by a window, but not to before the first byte.
        assert_eq!((snd.accept_ack(una - 1000, 9999), snd.accept_ack(una - 1001, 9999)), (Some(Ack(una - 1000)), None));
        assert_eq!((snd.accept_ack(una - 5, 5), snd.accept_ack(una - 6, 5)), (Some(Ack(una - 5)), None));
    }

    #[test]
    fn old_acks_move_nothing() {
        let mut snd = snd();
        let una = snd.una();
        assert!(!snd.acknowledge(Ack(una - 5)) && !snd.acknowledge(Ack(una)));
        assert_eq!(snd.update_window(SeqNum(8), Ack(una - 5), SegWnd::of_syn(5)), None);
        assert!(snd.acknowledge(Ack(una + 60)));
        assert_eq!((snd.una(), snd.outstanding(), snd.room(), snd.right()), (una + 60, 40, 960, una + 1060));
        snd.check();
    }

    #[test]
    fn the_newest_window_counts() {
        let mut snd = snd();
        let ack = Ack(snd.una());
        assert_eq!(snd.update_window(SeqNum(7), ack, SegWnd::of_syn(1000)), Some(false));
        assert_eq!(snd.update_window(SeqNum(9), ack, SegWnd::of_syn(2000)), Some(true));
        assert_eq!(snd.update_window(SeqNum(8), ack, SegWnd::of_syn(3000)), None);
        assert_eq!((snd.wnd(), snd.max_wnd()), (2000, 2000));
        assert_eq!(snd.update_window(SeqNum(9), ack, SegWnd::of_syn(1)), Some(true));
        assert_eq!((snd.wnd(), snd.max_wnd()), (1, 2000));
        // The peer has shrunk its window to below what is sent.
        assert_eq!((snd.acceptable_seq(1), snd.acceptable_seq(128)), (snd.una() + 1, snd.nxt()));
    }
}
