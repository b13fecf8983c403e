//! The scoreboard's input (RFC 2018 5, RFC 6675 4, RFC 2883): which segments the peer has, and what its duplicates tell.

use wire::SeqNum;
use wire::tcp::Segment;

use crate::loss::round::{Round, seen};
use crate::loss::scoreboard::Block;
use crate::loss::sent::mark;
use crate::{Context, Tcb};

impl Tcb {
    /// Takes the blocks of an acceptable segment; `snd.una` is already what it acknowledges.
    pub(crate) fn take_sack(&mut self, seg: &Segment, r: &mut Round, cx: &mut Context) {
        let blocks = seg.options.sack.as_slice();
        self.board.begin_sacks(self.snd.una());
        let dsack = self.take_dsack(seg.ack, blocks, r, cx);
        if self.board.packets_out() == 0 {
            return;
        }
        let mut todo = [Block { left: SeqNum(0), right: SeqNum(0), duplicate: false }; 4];
        let mut n = 0;
        for (i, (left, right)) in blocks.iter().enumerate() {
            let block = Block { left: *left, right: *right, duplicate: i == 0 && dsack };
            if !self.block_valid(&block) {
                if !(block.duplicate && right.before_eq(self.snd.una())) {
                    cx.counters.sack_discarded += 1;
                }
                continue;
            }
            if right.after(r.prior_una) && n < todo.len() {
                todo[n] = block;
                n += 1;
            }
        }
        let todo = &mut todo[..n];
        // Insertion sort of at most four, by the left edge.
        for i in 1..todo.len() {
            let mut j = i;
            while j > 0 && todo[j].left.before(todo[j - 1].left) {
                todo.swap(j, j - 1);
                j -= 1;
            }
        }
        self.mark_blocks(todo, r, cx);
        if r.reordered != self.snd.nxt() {
            self.note_reordering(r.reordered);
        }
    }

    fn mark_blocks(&mut self, blocks: &[Block], r: &mut Round, cx: &mut Context) {
        let (una, smss, now) = (self.snd.una(), self.options.smss() as u32, cx.now.micros() as u32);
        let most = self.sender.most_records(cx.config);
        let (recovery, min_rtt) = (&mut self.recovery, self.rtt.min());
        self.board.take_blocks(cx.sent, blocks, (una, smss, most), |s, block, fack| {
            if block.duplicate && s.is(mark::AGAIN) {
                recovery.superfluous(s.segs as u32, s.end());
                if s.is(mark::SACKED) && s.seq.before(r.reordered) {
                    r.reordered = s.seq;
                }
            }
            if s.end().after(una) && !s.is(mark::SACKED) {
                recovery.rack.delivered(s, now, min_rtt);
                recovery.deliver(s.segs as u32);
                r.sacked(s, fack, recovery.high_seq());
            }
        });
    }

    /// RFC 2018 8, RFC 2883 4: a block must lie in what is outstanding, or be a plausible report of a duplicate.
    fn block_valid(&self, block: &Block) -> bool {
        let Block { left, right, duplicate } = *block;
        if right.after(self.snd.nxt()) || !left.before(right) {
            return false;
        }
        if left.after(self.snd.una()) {
            return true;
        }
        let Some(marker) = self.recovery.undo_marker().filter(|_| duplicate) else { return false };
        if right.after(self.snd.una()) {
            return false;
        }
        !left.before(marker) || (right.after(marker) && !left.before(right - self.snd.max_wnd()))
    }

    /// RFC 2883 4: the first block reports a duplicate when it lies below the acknowledgment or inside the second block.
    fn take_dsack(&mut self, ack: SeqNum, blocks: &[(SeqNum, SeqNum)], r: &mut Round, cx: &mut Context) -> bool {
        let (left, right) = blocks[0];
        let inside = blocks.get(1).is_some_and(|(l, r)| !left.before(*l) && !right.after(*r));
        if !left.before(ack) && !inside {
            return false;
        }
        if !left.before(right) || right.since(left) > self.snd.max_wnd() {
            return false;
        }
        let bytes = right.since(left);
        let smss = self.options.smss() as u32;
        let segs = bytes.div_ceil(smss).max(1);
        if bytes <= smss && self.recovery.probe.ends_at(right) {
            r.seen |= seen::DSACK_TLP;
        }
        // The network duplicates too: more than was ever sent again is not about retransmissions.
        if self.recovery.note_duplicates(segs) > self.stats.retrans {
            return false;
        }
        cx.counters.dsacks_in += 1;
        if self.recovery.reordering_seen() > 0 && !r.has(seen::DSACK_TLP) {
            self.recovery.rack.note_duplicate();
        }
        r.seen |= seen::DSACK;
        self.recovery.deliver(segs);
        if !right.after(r.prior_una) {
            self.recovery.superfluous(segs, right);
        }
        true
    }
}
