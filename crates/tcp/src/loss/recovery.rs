//! Loss recovery: in which phase it is, how fast it sends (PRR, RFC 6937), what was delivered, lost and reordered in all. The
//! phases are Linux's, which join RFC 5681, 6582, 6675, 6937 and 5682 into one machine; `alert.rs` moves them.
//!
//! Invariants:
//! - `high_seq` is no later than SND.NXT;
//! - the path reorders by at least three segments, RFC 5681's threshold, and at most [`MOST_REORDERING`];
//! - what a reduction is undone to was noted no later than SND.UNA.

use wire::SeqNum;

use crate::loss::probe::Probe;
use crate::loss::rack::Rack;
use crate::loss::refused::Refused;
use crate::loss::scoreboard::Lost;

/// RFC 5681 3.2: duplicates that speak for a loss.
const DUPLICATES: u16 = 3;
/// Segments beyond which reordering is not told from loss (Linux's tcp_max_reordering).
const MOST_REORDERING: u32 = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Open,
    /// Something is odd.
    Disorder,
    /// The window is being reduced because of ECN or a probe's loss.
    Cwr,
    /// Fast recovery.
    Recovery,
    /// After a timeout.
    Loss,
}

#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    phase: Phase,
    /// RFC 5682: a timeout may have been spurious.
    frto: bool,
    /// The timer expired: the first segment goes, whatever the counts say.
    head_due: bool,
    /// F-RTO step 2.b: new data goes before retransmissions.
    new_first: bool,
    /// How often reordering was seen.
    reordering_seen: u16,
    /// Segments by which the path reorders; also the duplicate-ACK threshold without SACK (RFC 5681: 3).
    reordering: u16,
    /// `snd.nxt` when the phase began (RFC 6582 `recover`, RFC 6675 `RecoveryPoint`).
    high_seq: SeqNum,
    /// `snd.una` when the window was reduced; `None` when there is nothing to undo.
    pub(super) undo_marker: Option<SeqNum>,
    /// Retransmissions not yet shown to be superfluous; -1: none was made.
    pub(super) undo_retrans: i32,
    /// To come back to; 0: not to be undone.
    pub(super) prior_ssthresh: u32,
    /// RFC 6937 `RecoverFS` (Linux: the window when recovery began), `prr_delivered`, `prr_out`; segments.
    pub(super) prior_cwnd: u32,
    prr_delivered: u32,
    prr_out: u32,
    /// Our timestamp clock when the first retransmission of this episode went, ms.
    pub(super) retrans_stamp: Option<u32>,
    /// Segments delivered in all.
    delivered: u32,
    /// Segments found lost in all.
    lost: u32,
    dsack_dups: u32,
    /// Segments that the peer may have refused, having taken its window back.
    pub refused: Option<Refused>,
    pub probe: Probe,
    pub rack: Rack,
}

/// What is kept of it in a pause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kept {
    pub lost: u32,
    pub dsack_dups: u32,
    pub reordering_seen: u16,
    pub reordering: u16,
    /// RACK's window: [`Rack::keep`].
    pub rack: (u8, u8),
}

impl Recovery {
    pub fn new(iss: SeqNum) -> Recovery {
        let none = Kept { lost: 0, dsack_dups: 0, reordering_seen: 0, reordering: DUPLICATES, rack: (1, 0) };
        Recovery::resumed(iss, 0, 0, &none)
    }

    /// After a pause, and `delivered` segments; SND.NXT is `nxt`, a round trip takes `rtt` µs.
    #[inline(always)]
    pub fn resumed(nxt: SeqNum, delivered: u32, rtt: u32, kept: &Kept) -> Recovery {
        let Kept { lost, dsack_dups, reordering_seen, reordering, rack } = *kept;
        Recovery {
            phase: Phase::Open,
            frto: false,
            head_due: false,
            new_first: false,
            reordering_seen,
            reordering,
            high_seq: nxt,
            undo_marker: None,
            undo_retrans: -1,
            prior_ssthresh: 0,
            prior_cwnd: 0,
            prr_delivered: 0,
            prr_out: 0,
            retrans_stamp: None,
            delivered,
            lost,
            dsack_dups,
            refused: None,
            probe: Probe::default(),
            rack: Rack::resumed(rack, rtt, delivered),
        }
    }

    /// Whether an answer that is late could still change something although nothing is out: a phase that ends when more is
    /// acknowledged, a reduction that may be undone, a probe whose answer told nothing. What is left else is told by [`Recovery::keep`],
    /// and the phase, which is Open or Cwr.
    pub fn lingers(&self) -> bool {
        !matches!(self.phase, Phase::Open | Phase::Cwr) || self.is_unsettled() || self.probe.is_due()
    }

    /// No answer is awaited any more; SND.NXT is `nxt`. It goes on in `phase`.
    pub fn rest(&mut self, phase: Phase, nxt: SeqNum) {
        self.enter(phase, nxt);
        self.undo_marker = None;
        self.retrans_stamp = None;
        self.head_due = false;
        self.probe.forget();
        self.probe.cancel();
        // A duplicate that was reported last still says that the reordering window is too small.
        self.rack.update_window(self.delivered, 0);
    }

    /// What to keep in a pause, in which nothing is out.
    pub fn keep(&self) -> Kept {
        let Recovery { lost, dsack_dups, reordering_seen, reordering, .. } = *self;
        Kept { lost, dsack_dups, reordering_seen, reordering, rack: self.rack.keep() }
    }

    /// Nothing was lost, reordered or probed for since the last trouble was over.
    #[inline(always)]
    pub fn is_undisturbed(&self) -> bool {
        self.phase == Phase::Open && !self.is_unsettled()
    }

    /// Something was sent again, probed for or reported twice of which the last word has not come.
    #[inline(always)]
    fn is_unsettled(&self) -> bool {
        self.probe.is_out()
            || self.refused.is_some()
            || self.undo_marker.is_some()
            || self.retrans_stamp.is_some()
            || self.rack.duplicate_noted() | self.head_due
    }

    // -- Phases.

    #[inline(always)]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    #[inline(always)]
    pub fn high_seq(&self) -> SeqNum {
        self.high_seq
    }

    /// A reduction of the window is under way.
    #[inline(always)]
    pub fn reducing(&self) -> bool {
        matches!(self.phase, Phase::Cwr | Phase::Recovery)
    }

    /// Goes on in `phase`, which began earlier. F-RTO ends with the Loss that it judges: retransmissions of a later phase would wait for
    /// it, too.
    #[inline(always)]
    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        if phase != Phase::Loss {
            (self.frto, self.new_first) = (false, false);
        }
    }

    /// `phase` begins; SND.NXT is `nxt`.
    pub fn enter(&mut self, phase: Phase, nxt: SeqNum) {
        self.set_phase(phase);
        self.high_seq = nxt;
    }

    /// Open where nothing is odd, else Disorder.
    pub fn keep_open(&mut self, odd: bool, nxt: SeqNum) {
        let phase = if odd { Phase::Disorder } else { Phase::Open };
        if self.phase != phase {
            self.enter(phase, nxt);
        }
    }

    /// The handshake is done: what became of the SYN says nothing more.
    pub fn handshake_done(&mut self) {
        self.set_phase(Phase::Open);
        self.undo_marker = None;
    }

    /// Retransmissions of a path's MTU that was found too large: Loss without a reduction, so that what is sent again is clocked
    /// out (Linux).
    pub fn enter_loss_of_size(&mut self, nxt: SeqNum) {
        self.enter(Phase::Loss, nxt);
        self.prior_ssthresh = 0;
        self.undo_marker = None;
    }

    /// RFC 6298 5.4–5.7: the timer expired; `again` where it had before.
    pub fn enter_loss(&mut self, nxt: SeqNum, again: bool, many_sacked: bool, frto: bool) {
        let fresh = self.phase < Phase::Recovery;
        if self.phase <= Phase::Disorder && many_sacked {
            self.reordering = self.reordering.min(DUPLICATES);
        }
        self.enter(Phase::Loss, nxt);
        self.probe.forget();
        self.probe.cancel();
        // RFC 5682 2.1 step 1: not while an earlier recovery is under way.
        self.frto = frto && (fresh || again);
        self.new_first = false;
        self.head_due = true;
    }

    // -- F-RTO (RFC 5682) and the first segment.

    /// A timeout may have been spurious: what its new data brings will tell.
    #[inline(always)]
    pub fn frto(&self) -> bool {
        self.frto
    }

    /// Retransmissions wait for what new data brings.
    pub fn frto_waits(&self, nxt: SeqNum) -> bool {
        self.frto && nxt.after(self.high_seq)
    }

    /// Step 3.a: the loss was real.
    pub fn end_frto(&mut self) {
        (self.frto, self.new_first) = (false, false);
    }

    /// Step 2.b: new data goes before retransmissions, where there is any.
    pub fn extend_frto(&mut self, nxt: SeqNum, more: bool) {
        self.high_seq = nxt;
        self.new_first |= more;
        self.frto &= more;
    }

    /// New data goes before retransmissions.
    #[inline(always)]
    pub fn new_first(&self) -> bool {
        self.new_first
    }

    /// New data went, if any could.
    pub fn new_data_went(&mut self, nxt: SeqNum) {
        self.new_first = false;
        self.frto = nxt.after(self.high_seq);
    }

    /// The first segment goes, whatever the counts say.
    #[inline(always)]
    pub fn head_due(&self) -> bool {
        self.head_due
    }

    /// Whether it does, which is done now, or not needed any more.
    #[inline(always)]
    pub fn take_head_due(&mut self) -> bool {
        core::mem::take(&mut self.head_due)
    }

    // -- Delivered, lost, reordered.

    /// Segments delivered in all, modulo 2^32.
    #[inline(always)]
    pub fn delivered(&self) -> u32 {
        self.delivered
    }

    /// `segs` more were.
    #[inline(always)]
    pub fn deliver(&mut self, segs: u32) {
        self.delivered = self.delivered.wrapping_add(segs);
    }

    /// Segments found lost in all, modulo 2^32.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// More are.
    pub fn note_lost(&mut self, lost: Lost) {
        self.lost = self.lost.wrapping_add(lost.segs);
    }

    /// `segs` were reported as duplicates; those in all.
    pub fn note_duplicates(&mut self, segs: u32) -> u32 {
        self.dsack_dups = self.dsack_dups.saturating_add(segs);
        self.dsack_dups
    }

    /// Duplicates reported in all.
    pub fn duplicates(&self) -> u32 {
        self.dsack_dups
    }

    /// Segments by which the path reorders.
    #[inline(always)]
    pub fn reordering(&self) -> u16 {
        self.reordering
    }

    /// How often it was seen to.
    #[inline(always)]
    pub fn reordering_seen(&self) -> u16 {
        self.reordering_seen
    }

    /// With much reordering, SACKed data counts as progress (Linux).
    #[inline(always)]
    pub fn reorders_much(&self) -> bool {
        self.reordering > DUPLICATES
    }

    /// Data from `low` on came after `fack`: the degree of reordering grows to it (RFC 8985 4 uses that it was seen; NewReno's
    /// threshold uses how much).
    pub fn note_reordering(&mut self, low: SeqNum, fack: SeqNum, mss: u16) {
        if !low.before(fack) {
            return;
        }
        let segs = fack.since(low).div_ceil(mss.max(1) as u32);
        if segs > self.reordering as u32 {
            self.reordering = segs.min(MOST_REORDERING) as u16;
        }
        self.reordering_seen = self.reordering_seen.saturating_add(1);
    }

    /// RFC 8985 6.2 step 4: reordering was never seen, so a hole in recovery or below `sacked_out` segments is a loss.
    pub fn holes_are_losses(&self, sacked_out: u32) -> bool {
        self.reordering_seen == 0 && (self.phase >= Phase::Recovery || sacked_out >= self.reordering as u32)
    }

    /// RFC 6582 3.2 steps 2 and 3, without SACK: the first segment is lost at the third duplicate and at each partial
    /// acknowledgment.
    pub fn first_is_lost(&self, duplicates: u32, advanced: bool) -> bool {
        (self.phase < Phase::Recovery && duplicates >= self.reordering as u32)
            || (self.phase == Phase::Recovery && advanced)
    }

    // -- The reduction, spread over a round trip (RFC 6937).

    /// One begins with a window of `cwnd`; SND.NXT is `nxt`.
    pub fn begin_reduction(&mut self, nxt: SeqNum, cwnd: u32) {
        self.high_seq = nxt;
        self.probe.forget();
        self.prior_cwnd = cwnd;
        self.prr_delivered = 0;
        self.prr_out = 0;
    }

    /// RFC 6937 3.1: the window after `delivered` segments were delivered, on the way to `ssthresh`, with `in_flight` out; where
    /// `progress`, the acknowledgment advanced and nothing new is lost. `None` where it stays.
    pub fn reduced_window(&mut self, delivered: u32, in_flight: u32, ssthresh: u32, progress: bool) -> Option<u32> {
        let prior = self.prior_cwnd;
        if delivered == 0 || prior == 0 {
            return None;
        }
        self.prr_delivered += delivered;
        let (done, out) = (self.prr_delivered, self.prr_out);
        let count = if in_flight > ssthresh {
            let due = (ssthresh as u64 * done as u64).div_ceil(prior as u64) as i64;
            due - out as i64
        } else {
            // Slow-start reduction bound, one more where there is progress.
            let n = (done as i64 - out as i64).max(delivered as i64) + progress as i64;
            n.min(ssthresh as i64 - in_flight as i64)
        };
        // The first retransmission goes at once.
        Some(in_flight + count.max((out == 0) as i64).max(0) as u32)
    }

    /// `segs` segments go out.
    #[inline(always)]
    pub fn sent(&mut self, segs: u32) {
        if self.reducing() {
            self.prr_out += segs;
        }
    }

    /// Asserts what the module's head says; SND.UNA and SND.NXT are `una` and `nxt`.
    pub fn check(&self, una: SeqNum, nxt: SeqNum) {
        // Outside of trouble nothing refreshes it, and numbers go round.
        let reached = self.phase == Phase::Open || self.high_seq.before_eq(nxt);
        assert!(reached, "recovery's point {:?} is beyond SND.NXT {nxt:?}", self.high_seq);
        let degrees = DUPLICATES as u32..=MOST_REORDERING;
        assert!(degrees.contains(&(self.reordering as u32)), "reordering by {} segments", self.reordering);
        let marked = self.phase == Phase::Open || self.undo_marker.is_none_or(|at| at.before_eq(una));
        assert!(marked, "{:?} is beyond {una:?}", self.undo_marker);
        assert!(self.phase == Phase::Loss || !(self.frto | self.new_first), "F-RTO judges no timeout: {self:?}");
        assert!(self.undo_retrans >= -1, "{} retransmissions to be undone", self.undo_retrans);
        self.refused.iter().for_each(|refused| refused.check(una, nxt));
        self.probe.check(nxt);
        self.rack.check();
    }
}
