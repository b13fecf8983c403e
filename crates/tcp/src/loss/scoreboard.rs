//! The scoreboard: what was sent and is not acknowledged, how many segments of it were SACKed, judged lost and sent again
//! (RFC 6675 4), and what the peer's SACK blocks said of it (RFC 2018 5).
//!
//! Invariants:
//! - the records cover SND.UNA to SND.NXT without a gap, in order of sequence numbers;
//! - `packets_out`, `lost_out` and `retrans_out` are the segments of all records, of those marked LOST and of those marked
//!   RETRANS; `sacked_out` is those of the records marked SACKED or, where SACK is off, the duplicate ACKs that stand for
//!   segments, never more than are out;
//! - what is SACKED is not LOST;
//! - while something is SACKED, `fack` is the end of the highest such record.

use wire::SeqNum;

use crate::loss::sent::{Run, Sent, SentList, SentPool, mark};

/// Segments that have just been judged lost, and records among them whose retransmission was lost.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "Recovery and the counters hear of it"]
pub(crate) struct Lost {
    pub segs: u32,
    pub again: u64,
}

impl core::ops::AddAssign for Lost {
    fn add_assign(&mut self, other: Lost) {
        self.segs = self.segs.wrapping_add(other.segs);
        self.again += other.again;
    }
}

/// One SACK block, and what it is taken for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub left: SeqNum,
    pub right: SeqNum,
    /// It reports a duplicate (RFC 2883).
    pub duplicate: bool,
}

#[derive(Debug)]
pub(crate) struct Scoreboard {
    records: SentList,
    packets_out: u32,
    sacked_out: u32,
    lost_out: u32,
    retrans_out: u32,
    /// End of the highest SACKed record.
    fack: SeqNum,
    /// Blocks that the last acknowledgment with any reported: what they cover needs no second look.
    reported: [(SeqNum, SeqNum); 3],
}

impl Scoreboard {
    #[inline(always)]
    pub fn new(iss: SeqNum) -> Scoreboard {
        Scoreboard {
            records: SentList::new(),
            packets_out: 0,
            sacked_out: 0,
            lost_out: 0,
            retrans_out: 0,
            fack: iss,
            reported: [(iss, iss); 3],
        }
    }

    // -- What there is.

    /// Nothing is outstanding.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Segments sent and not acknowledged cumulatively.
    #[inline(always)]
    pub fn packets_out(&self) -> u32 {
        self.packets_out
    }

    /// Of these those SACKed; without SACK, the duplicate ACKs that stand for them.
    #[inline(always)]
    pub fn sacked_out(&self) -> u32 {
        self.sacked_out
    }

    /// Of these those judged lost.
    #[inline(always)]
    pub fn lost_out(&self) -> u32 {
        self.lost_out
    }

    /// Of these those sent again.
    #[inline(always)]
    pub fn retrans_out(&self) -> u32 {
        self.retrans_out
    }

    /// Segments believed to be in the network (RFC 6675's `pipe`).
    #[inline(always)]
    pub fn in_flight(&self) -> u32 {
        (self.packets_out + self.retrans_out).saturating_sub(self.sacked_out + self.lost_out)
    }

    /// Nothing is SACKed, lost or sent again.
    #[inline(always)]
    pub fn is_clean(&self) -> bool {
        self.sacked_out | self.lost_out | self.retrans_out == 0
    }

    /// More is lost than is under way again.
    #[inline(always)]
    pub fn retransmission_due(&self) -> bool {
        self.lost_out > self.retrans_out
    }

    /// How many records there are.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.records.len()
    }

    /// How many of them are in the slab.
    pub fn slots(&self) -> u32 {
        self.records.slots()
    }

    /// The end of the highest SACKed record; `una` where none is.
    #[inline(always)]
    pub fn fack(&self, una: SeqNum) -> SeqNum {
        if self.sacked_out > 0 { self.fack } else { una }
    }

    /// The lowest sequence number's record.
    pub fn head(&mut self, pool: &mut SentPool) -> Option<u32> {
        self.records.head(pool)
    }

    /// The highest sequence number's record.
    pub fn tail(&mut self, pool: &mut SentPool) -> Option<u32> {
        self.records.tail(pool)
    }

    /// Whether record `i` has the lowest sequence number.
    pub fn is_head(&self, i: u32) -> bool {
        self.records.is_head(i)
    }

    /// Record `i`.
    #[inline(always)]
    pub fn get(&self, pool: &SentPool, i: u32) -> Sent {
        self.records.get(pool, i)
    }

    /// The first record.
    #[inline(always)]
    pub fn first(&self, pool: &SentPool) -> Option<Sent> {
        self.records.first(pool)
    }

    /// All records, by sequence numbers.
    pub fn iter<'a>(&'a self, pool: &'a SentPool) -> impl Iterator<Item = Sent> + 'a {
        self.records.iter(pool)
    }

    /// The first record that is lost and not under way again.
    pub fn next_retransmit(&mut self, pool: &SentPool) -> Option<u32> {
        self.records.next_retransmit(pool)
    }

    /// Whether anything outstanding was sent again.
    pub fn any_sent_again(&self, pool: &SentPool) -> bool {
        self.retrans_out > 0 || self.first(pool).is_some_and(|s| s.is(mark::AGAIN))
    }

    // -- Sending.

    /// `len` sequence numbers from `seq` on go out for the first time, as `segs` segments.
    #[inline(always)]
    pub fn send(&mut self, pool: &mut SentPool, seq: SeqNum, len: u32, segs: u16, now: u32, marks: u8) {
        self.records.push(pool, seq, len, segs, now, marks);
        self.packets_out += segs as u32;
    }

    /// Record `i` goes out again at `now`; what it is.
    pub fn send_again(&mut self, pool: &mut SentPool, i: u32, now: u32) -> Sent {
        let s = self.records.get_mut(pool, i);
        s.marks |= mark::AGAIN;
        s.at = now;
        let sent = *s;
        self.records.sent_last(pool, i);
        sent
    }

    /// The retransmission of record `i` counts as under way.
    pub fn count_retransmission(&mut self, pool: &mut SentPool, i: u32) {
        let s = self.records.get_mut(pool, i);
        if !s.is(mark::RETRANS) {
            s.marks |= mark::RETRANS;
            self.retrans_out += s.segs as u32;
        }
    }

    /// Karn: it is not known which transmission of the first record an acknowledgment would answer.
    pub fn first_is_ambiguous(&mut self, pool: &mut SentPool) {
        if let Some(i) = self.head(pool) {
            self.records.get_mut(pool, i).marks |= mark::AGAIN;
        }
    }

    /// Cuts record `i` after `keep` sequence numbers; the rest's index. The segments are counted anew.
    pub fn split(&mut self, pool: &mut SentPool, i: u32, keep: u32, mss: u32) -> u32 {
        let before = self.records.get(pool, i);
        let j = self.records.split(pool, i, keep, mss);
        let after = self.records.get(pool, i).segs as u32 + self.records.get(pool, j).segs as u32;
        self.recount(before.segs as u32, after, before.marks);
        j
    }

    /// A record's count of segments changed from `before` to `after`.
    fn recount(&mut self, before: u32, after: u32, marks: u8) {
        let fix = |n: &mut u32| *n = (*n + after).saturating_sub(before);
        fix(&mut self.packets_out);
        if marks & mark::SACKED != 0 {
            fix(&mut self.sacked_out);
        }
        if marks & mark::LOST != 0 {
            fix(&mut self.lost_out);
        }
        if marks & mark::RETRANS != 0 {
            fix(&mut self.retrans_out);
        }
    }

    /// Segments are of `mss` bytes from now on, which were of `old`: each record is counted anew, and what was too long is lost.
    pub fn resize(&mut self, pool: &mut SentPool, old: u32, mss: u32, una: SeqNum) -> Lost {
        self.forget_reported(una);
        let mut lost = Lost::default();
        let mut at = self.records.head(pool);
        while let Some(i) = at {
            let s = self.records.get(pool, i);
            at = self.records.next(pool, i);
            // Of several segments the last may have been short, the others were full.
            let largest = if s.segs > 1 { s.bytes().min(old) } else { s.bytes() };
            let segs = s.bytes().div_ceil(mss).clamp(1, u16::MAX as u32);
            self.recount(s.segs as u32, segs, s.marks);
            self.records.get_mut(pool, i).segs = segs as u16;
            if largest > mss {
                lost += self.mark_lost(pool, i);
            }
        }
        lost
    }

    // -- Acknowledged.

    /// Takes out all records up to `ack` where nothing is the matter with them ([`SentList::pop_run`]); else `None`, with nothing
    /// changed.
    #[inline(always)]
    pub fn acknowledge_run(&mut self, pool: &mut SentPool, ack: SeqNum) -> Option<Run> {
        let run = self.records.pop_run(pool, ack)?;
        self.packets_out -= run.segs;
        Some(run)
    }

    /// Takes out all that lies below `una`, each part by `each`; a record that `una` cuts is cut first, so that what remains is
    /// counted right. What is first then.
    #[inline(always)]
    pub fn acknowledge(
        &mut self,
        pool: &mut SentPool,
        una: SeqNum,
        mss: u32,
        mut each: impl FnMut(&Sent),
    ) -> Option<Sent> {
        while let Some(mut s) = self.records.first(pool) {
            if s.end().after(una) {
                if !s.seq.before(una) {
                    return Some(s);
                }
                let i = self.records.head(pool)?;
                self.split(pool, i, una.since(s.seq), mss);
                s = self.records.get(pool, i);
            }
            self.records.pop(pool);
            let segs = s.segs as u32;
            let less = |n: &mut u32, mark: u8| {
                if s.is(mark) {
                    *n = n.saturating_sub(segs);
                }
            };
            less(&mut self.retrans_out, mark::RETRANS);
            less(&mut self.sacked_out, mark::SACKED);
            less(&mut self.lost_out, mark::LOST);
            self.packets_out = self.packets_out.saturating_sub(segs);
            each(&s);
        }
        None
    }

    /// Everything was acknowledged, or will never be: no record is left.
    pub fn clear(&mut self, pool: &mut SentPool) {
        self.records.clear(pool);
        (self.packets_out, self.sacked_out, self.lost_out, self.retrans_out) = (0, 0, 0, 0);
    }

    // -- Lost.

    /// Marks record `i` lost, again where its retransmission was lost too.
    pub fn mark_lost(&mut self, pool: &mut SentPool, i: u32) -> Lost {
        let s = self.records.get_mut(pool, i);
        if s.is(mark::SACKED) || (s.is(mark::LOST) && !s.is(mark::RETRANS)) {
            return Lost::default();
        }
        let segs = s.segs as u32;
        let lost = Lost { segs, again: s.is(mark::LOST) as u64 };
        if s.is(mark::RETRANS) {
            s.marks &= !mark::RETRANS;
            self.retrans_out = self.retrans_out.saturating_sub(segs);
        }
        if !s.is(mark::LOST) {
            s.marks |= mark::LOST;
            self.lost_out += segs;
        }
        self.records.forget_time(pool, i);
        self.records.wants_retransmit(pool, i);
        lost
    }

    /// Marks lost what `pick` accepts and is not SACKed.
    pub fn mark_lost_where(&mut self, pool: &mut SentPool, mut pick: impl FnMut(&Sent) -> bool) -> Lost {
        let mut lost = Lost::default();
        let mut at = self.records.head(pool);
        while let Some(i) = at {
            at = self.records.next(pool, i);
            if pick(&self.records.get(pool, i)) {
                lost += self.mark_lost(pool, i);
            }
        }
        lost
    }

    /// Marks lost what lies at or beyond `from` and is not SACKed, in whole segments of `mss` bytes.
    pub fn mark_lost_from(&mut self, pool: &mut SentPool, from: SeqNum, mss: u32) -> Lost {
        let mut lost = Lost::default();
        let mut at = self.records.head(pool);
        while let Some(mut i) = at {
            let s = self.records.get(pool, i);
            if s.end().after(from) {
                let before = if from.after(s.seq) { from.since(s.seq) / mss * mss } else { 0 };
                if before > 0 && !s.is(mark::SACKED) {
                    i = self.split(pool, i, before, mss);
                }
                lost += self.mark_lost(pool, i);
            }
            at = self.records.next(pool, i);
        }
        lost
    }

    /// Marks lost, from the one sent longest ago on, what `judge` says is; up to the first of which it says nothing.
    pub fn mark_lost_by_time(&mut self, pool: &mut SentPool, mut judge: impl FnMut(&Sent) -> Option<bool>) -> Lost {
        let mut lost = Lost::default();
        let mut next = self.records.oldest(pool);
        while let Some(i) = next {
            let Some(is_lost) = judge(&self.records.get(pool, i)) else { break };
            next = self.records.newer(pool, i);
            if is_lost {
                lost += self.mark_lost(pool, i);
            }
        }
        lost
    }

    /// Nothing was lost after all.
    pub fn unmark_lost(&mut self, pool: &mut SentPool) {
        let mut at = self.records.head(pool);
        while let Some(i) = at {
            at = self.records.next(pool, i);
            let s = self.records.get_mut(pool, i);
            if s.is(mark::LOST) {
                s.marks &= !mark::LOST;
                if !s.is(mark::TIMED | mark::SACKED) {
                    self.records.sent_last(pool, i);
                }
            }
        }
        self.lost_out = 0;
    }

    // -- SACKed.

    /// Whether the peer forgot what it had SACKed (RFC 2018 8): it would have acknowledged the first cumulatively.
    pub fn reneged(&self, pool: &SentPool) -> bool {
        self.first(pool).is_some_and(|s| s.is(mark::SACKED))
    }

    /// RFC 2018 8: what was SACKed must be sent again after a timeout.
    pub fn forget_sacks(&mut self, pool: &mut SentPool, una: SeqNum) {
        let mut at = self.records.head(pool);
        while let Some(i) = at {
            at = self.records.next(pool, i);
            self.records.get_mut(pool, i).marks &= !mark::SACKED;
        }
        self.sacked_out = 0;
        self.forget_reported(una);
    }

    /// What is marked as SACKed may not be so any more, or is counted anew.
    fn forget_reported(&mut self, una: SeqNum) {
        self.reported = [(una, una); 3];
    }

    /// An acknowledgment brings `blocks`, by their left edges: marks what is news. `each` hears of each record that a block
    /// covers as it was before, and of `fack` as it was then. Where there are `most` records none is cut any more.
    pub fn take_blocks(
        &mut self,
        pool: &mut SentPool,
        blocks: &[Block],
        (una, mss, most): (SeqNum, u32, u32),
        mut each: impl FnMut(&Sent, &Block, SeqNum),
    ) {
        let before = self.reported;
        self.forget_reported(una);
        let mut places = self.reported.len();
        for block in blocks {
            // How far the block was looked at before: most are repeated, and one has grown.
            let covers = |b: &&(SeqNum, SeqNum)| !block.duplicate && b.0.before_eq(block.left) && b.1.after(block.left);
            let known = before.iter().find(covers).map(|b| b.1);
            if known.is_none_or(|known| known.before(block.right)) {
                self.take_block(pool, block, known, (una, mss, most), &mut each);
            }
            if let (false, Some(place)) = (block.duplicate, places.checked_sub(1)) {
                places = place;
                self.reported[place] = (block.left, block.right);
            }
        }
    }

    /// Before the first block after which something may be SACKed.
    pub fn begin_sacks(&mut self, una: SeqNum) {
        if self.sacked_out == 0 {
            self.fack = una;
            self.forget_reported(una);
        }
    }

    fn take_block(
        &mut self,
        pool: &mut SentPool,
        block: &Block,
        known: Option<SeqNum>,
        (una, mss, most): (SeqNum, u32, u32),
        each: &mut impl FnMut(&Sent, &Block, SeqNum),
    ) {
        let Block { left, right, duplicate } = *block;
        let mut at = self.records.sack_start(pool, left, known);
        while let Some(i) = at {
            let s = self.records.get(pool, i);
            if !s.seq.before(right) {
                break;
            }
            at = self.records.next(pool, i);
            if !s.end().after(left) {
                continue;
            }
            if s.is(mark::SACKED) && !duplicate {
                self.records.set_sack_hint(i);
                continue;
            }
            let mut i = i;
            if (s.seq.before(left) || s.end().after(right)) && self.records.len() >= most {
                continue;
            }
            // A record of several segments that is covered in part is cut at a segment's edge; part of a segment says
            // nothing (RFC 2018 3: blocks are what arrived, so that is a peer that splits).
            if s.seq.before(left) {
                let keep = left.since(s.seq).div_ceil(mss) * mss;
                if keep >= s.len {
                    continue;
                }
                let j = self.split(pool, i, keep, mss);
                at = Some(j);
                if self.records.get(pool, j).end().after(right) {
                    continue;
                }
                i = j;
                at = self.records.next(pool, j);
            } else if s.end().after(right) {
                let keep = right.since(s.seq) / mss * mss;
                if keep == 0 || keep >= s.len {
                    continue;
                }
                at = Some(self.split(pool, i, keep, mss));
            }
            let s = self.records.get(pool, i);
            each(&s, block, self.fack);
            if s.end().after(una) && !s.is(mark::SACKED) {
                self.mark_sacked(pool, i);
            }
            self.records.set_sack_hint(i);
        }
    }

    /// RFC 6675 4: what the peer has is in no pipe, neither as lost nor as sent again.
    fn mark_sacked(&mut self, pool: &mut SentPool, i: u32) {
        self.records.forget_time(pool, i);
        let s = self.records.get_mut(pool, i);
        let segs = s.segs as u32;
        if s.is(mark::LOST) {
            self.lost_out = self.lost_out.saturating_sub(segs);
        }
        if s.is(mark::RETRANS) {
            self.retrans_out = self.retrans_out.saturating_sub(segs);
        }
        s.marks = (s.marks & !(mark::LOST | mark::RETRANS)) | mark::SACKED;
        self.sacked_out += segs;
        if s.end().after(self.fack) {
            self.fack = s.end();
        }
    }

    // -- Without SACK (RFC 6582): each duplicate ACK stands for one segment delivered.

    /// `dups` duplicates more; segments that they show to be delivered.
    pub fn add_duplicates(&mut self, dups: u32) -> u32 {
        if dups == 0 {
            return 0;
        }
        let before = self.sacked_out;
        self.sacked_out += dups;
        self.limit_duplicates();
        self.sacked_out.saturating_sub(before)
    }

    /// No more than can have been delivered: what is left out less the hole.
    fn limit_duplicates(&mut self) {
        let holes = self.lost_out.max(1).min(self.packets_out);
        if self.sacked_out + holes > self.packets_out {
            self.sacked_out = self.packets_out - holes;
        }
    }

    /// `acked` segments acknowledged cumulatively were the ones that the duplicates stood for, but the first filled the hole.
    /// Segments that are news as delivered.
    pub fn remove_duplicates(&mut self, acked: u32) -> u32 {
        let mut delivered = 0;
        if acked > 0 {
            delivered = (acked as i64 - self.sacked_out as i64).max(1) as u32;
            self.sacked_out = self.sacked_out.saturating_sub(acked - 1);
        }
        self.limit_duplicates();
        delivered
    }

    /// Duplicates stand for nothing any more.
    pub fn reset_duplicates(&mut self) {
        self.sacked_out = 0;
    }

    // -- Invariants.

    /// Asserts what the module's head says, of a connection with SACK or without.
    pub fn check(&self, pool: &SentPool, una: SeqNum, nxt: SeqNum, sack: bool) {
        self.records.check(pool);
        let (mut end, mut fack) = (una, una);
        let (mut out, mut sacked, mut lost, mut again) = (0, 0, 0, 0);
        for s in self.iter(pool) {
            assert_eq!(s.seq, end, "a record begins where the one before it ends");
            assert!(s.len > 0 && s.segs > 0, "a record of nothing: {s:?}");
            assert!(!(s.is(mark::SACKED) && s.is(mark::LOST)), "SACKed and lost: {s:?}");
            end = s.end();
            let segs = s.segs as u32;
            out += segs;
            lost += if s.is(mark::LOST) { segs } else { 0 };
            again += if s.is(mark::RETRANS) { segs } else { 0 };
            if s.is(mark::SACKED) {
                (sacked, fack) = (sacked + segs, end);
            }
        }
        assert!(self.is_empty() || end == nxt, "records end at {end:?}, SND.NXT is {nxt:?}");
        let counted = (self.packets_out, self.lost_out, self.retrans_out);
        assert_eq!(counted, (out, lost, again), "segments out, lost and sent again");
        if sack {
            assert_eq!(self.sacked_out, sacked, "segments SACKed");
            assert!(sacked == 0 || self.fack == fack, "SND.FACK {:?}, the highest SACKed ends at {fack:?}", self.fack);
        } else {
            assert_eq!(sacked, 0, "SACKed without SACK");
            assert!(self.sacked_out <= out, "{} duplicates for {out} segments", self.sacked_out);
        }
    }
}
