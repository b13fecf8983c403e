//! The SACK scoreboard's input (RFC 2018 5, RFC 6675 4, RFC 2883): which segments the peer has, and what its duplicates tell.

use wire::SeqNum;
use wire::tcp::Segment;

use crate::ack::{Round, seen};
use crate::sent::mark;
use crate::{Context, Tcb, flag};

impl Tcb {
    /// Takes the blocks of an acceptable segment; `snd.una` is already what it acknowledges.
    pub(crate) fn take_sack(&mut self, seg: &Segment, r: &mut Round, cx: &mut Context) {
        let blocks = seg.options.sack.as_slice();
        if self.board.sacked_out == 0 {
            self.recovery.fack = self.snd.una;
            self.forget_reported();
        }
        let dsack = self.take_dsack(seg.ack, blocks, r, cx);
        if self.board.packets_out == 0 {
            return;
        }
        let mut todo = [(SeqNum(0), SeqNum(0), false); 4];
        let mut n = 0;
        for (i, (left, right)) in blocks.iter().enumerate() {
            let duplicate = i == 0 && dsack;
            if !self.block_valid(duplicate, *left, *right) {
                if !(duplicate && right.before_eq(self.snd.una)) {
                    cx.counters.sack_discarded += 1;
                }
                continue;
            }
            if right.after(r.prior_una) && n < todo.len() {
                todo[n] = (*left, *right, duplicate);
                n += 1;
            }
        }
        let todo = &mut todo[..n];
        // Insertion sort of at most four, by the left edge.
        for i in 1..todo.len() {
            let mut j = i;
            while j > 0 && todo[j].0.before(todo[j - 1].0) {
                todo.swap(j, j - 1);
                j -= 1;
            }
        }
        let before = self.recovery.reported;
        self.forget_reported();
        let mut places = self.recovery.reported.len();
        for (left, right, duplicate) in todo.iter() {
            // How far the block was looked at before: most are repeated, and one has grown.
            let covers = |b: &&(SeqNum, SeqNum)| !duplicate && b.0.before_eq(*left) && b.1.after(*left);
            let known = before.iter().find(covers).map(|b| b.1);
            if known.is_none_or(|known| known.before(*right)) {
                self.take_block(*left, *right, *duplicate, known, r, cx);
            }
            if let (false, Some(place)) = (duplicate, places.checked_sub(1)) {
                places = place;
                self.recovery.reported[place] = (*left, *right);
            }
        }
        if r.reordered != self.snd.nxt {
            self.note_reordering(r.reordered);
        }
    }

    /// RFC 2018 8, RFC 2883 4: a block must lie in what is outstanding, or be a plausible report of a duplicate.
    fn block_valid(&self, duplicate: bool, left: SeqNum, right: SeqNum) -> bool {
        if right.after(self.snd.nxt) || !left.before(right) {
            return false;
        }
        if left.after(self.snd.una) {
            return true;
        }
        let Some(marker) = self.recovery.undo_marker.filter(|_| duplicate) else { return false };
        if right.after(self.snd.una) {
            return false;
        }
        !left.before(marker) || (right.after(marker) && !left.before(right - self.snd.max_wnd))
    }

    /// RFC 2883 4: the first block reports a duplicate when it lies below the acknowledgment or inside the second block.
    fn take_dsack(&mut self, ack: SeqNum, blocks: &[(SeqNum, SeqNum)], r: &mut Round, cx: &mut Context) -> bool {
        let (left, right) = blocks[0];
        let inside = blocks.get(1).is_some_and(|(l, r)| !left.before(*l) && !right.after(*r));
        if !left.before(ack) && !inside {
            return false;
        }
        if !left.before(right) || right.since(left) > self.snd.max_wnd {
            return false;
        }
        let bytes = right.since(left);
        let smss = self.options.smss as u32;
        let segs = bytes.div_ceil(smss).max(1);
        if bytes <= smss && self.recovery.probe_high == Some(right) {
            r.seen |= seen::DSACK_TLP;
        }
        self.recovery.dsack_dups = self.recovery.dsack_dups.saturating_add(segs);
        // The network duplicates too: more than was ever sent again is not about retransmissions.
        if self.recovery.dsack_dups > self.stats.retrans {
            return false;
        }
        cx.counters.dsacks_in += 1;
        if self.recovery.reordering_seen > 0 && r.seen & seen::DSACK_TLP == 0 {
            self.recovery.rack.dsack_seen = true;
        }
        r.seen |= seen::DSACK;
        self.recovery.delivered = self.recovery.delivered.wrapping_add(segs);
        if let Some(marker) = self.recovery.undo_marker
            && self.recovery.undo_retrans > 0
            && !right.after(r.prior_una)
            && right.after(marker)
        {
            self.recovery.undo_retrans = (self.recovery.undo_retrans - segs as i32).max(0);
        }
        true
    }

    /// What is marked as SACKed may not be so any more, or is counted anew.
    pub(crate) fn forget_reported(&mut self) {
        self.recovery.reported = [(self.snd.una, self.snd.una); 3];
    }

    fn take_block(
        &mut self,
        left: SeqNum,
        right: SeqNum,
        duplicate: bool,
        known: Option<SeqNum>,
        r: &mut Round,
        cx: &mut Context,
    ) {
        let smss = self.options.smss as u32;
        let mut at = self.board.records.sack_start(cx.sent, left, known);
        while let Some(i) = at {
            let s = self.board.records.get(cx.sent, i);
            if !s.seq.before(right) {
                break;
            }
            at = self.board.records.next(cx.sent, i);
            if !s.end().after(left) {
                continue;
            }
            if s.is(mark::SACKED) && !duplicate {
                self.board.records.set_sack_hint(i);
                continue;
            }
            let mut i = i;
            if (s.seq.before(left) || s.end().after(right)) && self.too_many_records(cx.config) {
                continue;
            }
            // A record of several segments that is covered in part is cut at a segment's edge; part of a segment says
            // nothing (RFC 2018 3: blocks are what arrived, so that is a peer that splits).
            if s.seq.before(left) {
                let keep = left.since(s.seq).div_ceil(smss) * smss;
                if keep >= s.len {
                    continue;
                }
                let j = self.cut(i, keep, cx);
                at = Some(j);
                if self.board.records.get(cx.sent, j).end().after(right) {
                    continue;
                }
                i = j;
                at = self.board.records.next(cx.sent, j);
            } else if s.end().after(right) {
                let keep = right.since(s.seq) / smss * smss;
                if keep == 0 || keep >= s.len {
                    continue;
                }
                at = Some(self.cut(i, keep, cx));
            }
            self.mark_sacked(i, duplicate, r, cx);
            self.board.records.set_sack_hint(i);
        }
    }

    fn cut(&mut self, i: u32, keep: u32, cx: &mut Context) -> u32 {
        let before = self.board.records.get(cx.sent, i);
        let j = self.board.records.split(cx.sent, i, keep, self.options.smss as u32);
        let after = self.board.records.get(cx.sent, i).segs as u32 + self.board.records.get(cx.sent, j).segs as u32;
        self.recount(before.segs as u32, after, before.marks);
        j
    }

    /// One whole record is reported.
    fn mark_sacked(&mut self, i: u32, duplicate: bool, r: &mut Round, cx: &mut Context) {
        let s = self.board.records.get(cx.sent, i);
        let segs = s.segs as u32;
        if duplicate && s.is(mark::AGAIN) {
            if let Some(marker) = self.recovery.undo_marker
                && self.recovery.undo_retrans > 0
                && s.end().after(marker)
            {
                self.recovery.undo_retrans = (self.recovery.undo_retrans - segs as i32).max(0);
            }
            if s.is(mark::SACKED) && s.seq.before(r.reordered) {
                r.reordered = s.seq;
            }
        }
        if !s.end().after(self.snd.una) {
            return;
        }
        let now = cx.now.micros() as u32;
        if !s.is(mark::SACKED) {
            self.rack_advance(&s, now);
            if !s.is(mark::AGAIN) {
                // Sent once, and it was in a hole: the network reordered.
                if s.seq.before(self.recovery.fack) && s.seq.before(r.reordered) {
                    r.reordered = s.seq;
                }
                if !s.end().after(self.recovery.high_seq) {
                    r.seen |= seen::ORIGINAL;
                }
                r.sack_first_at = r.sack_first_at.or(Some(s.at));
                r.sack_last_at = Some(s.at);
            }
            // RFC 6675 4: what the peer has is in no pipe, neither as lost nor as sent again.
            if s.is(mark::LOST) {
                self.board.lost_out = self.board.lost_out.saturating_sub(segs);
            }
            if s.is(mark::RETRANS) {
                self.board.retrans_out = self.board.retrans_out.saturating_sub(segs);
            }
            self.board.records.forget_time(cx.sent, i);
            let record = self.board.records.get_mut(cx.sent, i);
            record.marks = (record.marks & !(mark::LOST | mark::RETRANS)) | mark::SACKED;
            r.seen |= seen::SACKED;
            self.board.sacked_out += segs;
            self.recovery.delivered = self.recovery.delivered.wrapping_add(segs);
            if s.end().after(self.recovery.fack) {
                self.recovery.fack = s.end();
            }
        }
    }

    /// Data from `low` on came after `recovery.fack`: the degree of reordering grows to it (RFC 8985 4 uses that it was
    /// seen; NewReno's threshold uses how much).
    pub(crate) fn note_reordering(&mut self, low: SeqNum) {
        let fack = if self.board.sacked_out > 0 { self.recovery.fack } else { self.snd.una };
        if !low.before(fack) {
            return;
        }
        let segs = fack.since(low).div_ceil(self.options.smss.max(1) as u32);
        if segs > self.recovery.reordering as u32 {
            self.recovery.reordering = segs.min(300) as u16;
        }
        self.recovery.reordering_seen = self.recovery.reordering_seen.saturating_add(1);
    }

    /// SACK on this connection.
    pub(crate) fn sack_on(&self) -> bool {
        self.has(flag::SACK)
    }
}
