//! How a spurious recovery is recognised: D-SACK (RFC 3708) and timestamps (RFC 3522), and what it is undone to.

use wire::SeqNum;

use crate::loss::recovery::{Phase, Recovery};

impl Recovery {
    /// A reduction begins that may have to be undone; `retrans_out` segments are under way again.
    pub fn remember_for_undo(&mut self, una: SeqNum, retrans_out: u32) {
        self.undo_marker = Some(una);
        self.undo_retrans = match retrans_out {
            0 => -1,
            n => n as i32,
        };
    }

    /// The window and the threshold to come back to.
    pub fn remember_window(&mut self, cwnd: u32, ssthresh: u32) {
        self.prior_cwnd = cwnd;
        self.prior_ssthresh = ssthresh;
    }

    /// The threshold to come back to; 0: the reduction is not to be undone, since the network asked for it.
    pub fn remember_ssthresh(&mut self, ssthresh: u32) {
        self.prior_ssthresh = ssthresh;
    }

    /// There is nothing to undo.
    pub fn forget_undo(&mut self) {
        self.undo_marker = None;
    }

    /// SND.UNA is `una`. What was sent after the recovery is acknowledged: who would report that something of it was superfluous has
    /// done so, since it was sent before.
    #[inline(always)]
    pub fn judge_undo(&mut self, una: SeqNum) {
        if self.phase() == Phase::Open && una.after(self.high_seq()) {
            self.undo_marker = None;
        }
    }

    /// A reduction is undone: the window and the threshold to come back to, if they are.
    pub fn take_undo(&mut self) -> Option<(u32, u32)> {
        self.undo_marker = None;
        self.rack.look_again();
        (self.prior_ssthresh > 0).then_some((self.prior_cwnd, self.prior_ssthresh))
    }

    /// `snd.una` when the window was reduced.
    pub fn undo_marker(&self) -> Option<SeqNum> {
        self.undo_marker
    }

    /// `segs` segments are sent again, by a clock of `now` ms.
    pub fn sent_again(&mut self, segs: u32, now: u32) {
        self.retrans_stamp.get_or_insert(now);
        self.undo_retrans = self.undo_retrans.max(0) + segs as i32;
        self.sent(segs);
    }

    /// Nothing outstanding was sent again.
    pub fn forget_retransmissions(&mut self) {
        self.retrans_stamp = None;
    }

    /// `segs` segments up to `end` were superfluous.
    pub fn superfluous(&mut self, segs: u32, end: SeqNum) {
        if self.undo_retrans > 0 && self.undo_marker.is_some_and(|marker| end.after(marker)) {
            self.undo_retrans = (self.undo_retrans - segs as i32).max(0);
        }
    }

    /// RFC 3708: all retransmissions were.
    pub fn all_superfluous(&self) -> bool {
        self.undo_marker.is_some() && self.undo_retrans == 0
    }

    /// RFC 3522: the acknowledgment echoes a timestamp from before the first retransmission.
    pub fn delayed_not_lost(&self, echo: Option<u32>) -> bool {
        match (self.retrans_stamp, echo) {
            (Some(stamp), Some(echo)) => (echo.wrapping_sub(stamp) as i32) < 0,
            _ => false,
        }
    }

    /// Either says so.
    pub fn was_spurious(&self, echo: Option<u32>) -> bool {
        self.undo_marker.is_some() && (self.undo_retrans == 0 || self.delayed_not_lost(echo))
    }
}
