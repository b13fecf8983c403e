//! What one acknowledgment says, gathered while it is worked on.

use wire::SeqNum;

use crate::loss::sent::{Sent, mark};

/// Its kinds of news, as bits.
pub(crate) mod seen {
    /// The segment carried data.
    pub const DATA: u32 = 1 << 0;
    pub const WINDOW: u32 = 1 << 1;
    pub const UNA_ADVANCED: u32 = 1 << 2;
    /// Data, or our SYN, was acknowledged cumulatively.
    pub const ACKED: u32 = 1 << 3;
    /// Of what was acknowledged some had been sent again.
    pub const AGAIN_ACKED: u32 = 1 << 4;
    /// New SACKed data.
    pub const SACKED: u32 = 1 << 5;
    pub const DSACK: u32 = 1 << 6;
    /// The D-SACK answers a tail loss probe.
    pub const DSACK_TLP: u32 = 1 << 7;
    pub const ECE: u32 = 1 << 8;
    /// Data below `high_seq`, never sent again, was delivered.
    pub const ORIGINAL: u32 = 1 << 9;
    /// A retransmission was found lost.
    pub const LOST_AGAIN: u32 = 1 << 10;
    /// The peer forgot what it had SACKed (RFC 2018 8).
    pub const RENEGED: u32 = 1 << 11;
    pub const SET_TIMER: u32 = 1 << 12;

    pub const NOT_DUP: u32 = DATA | WINDOW | ACKED;
    pub const ALERT: u32 = SACKED | ECE | DSACK;
    pub const PROGRESS: u32 = ACKED | SACKED;
}

/// One acknowledgment while it is worked on.
pub(crate) struct Round {
    pub seen: u32,
    /// `snd.una` before it.
    pub prior_una: SeqNum,
    /// Highest SACKed sequence number before it.
    pub prior_fack: SeqNum,
    pub prior_in_flight: u32,
    pub prior_delivered: u32,
    pub prior_lost: u32,
    /// Lowest sequence number delivered late, without having been sent again.
    pub reordered: SeqNum,
    /// Segments acknowledged cumulatively.
    pub acked_segs: u32,
    /// Transmission of the first and the last segment acknowledged cumulatively and sent once.
    pub first_at: Option<u32>,
    pub last_at: Option<u32>,
    /// The same for what was SACKed.
    pub sack_first_at: Option<u32>,
    pub sack_last_at: Option<u32>,
}

impl Round {
    /// Whether any of `bits` was seen.
    #[inline(always)]
    pub fn has(&self, bits: u32) -> bool {
        self.seen & bits != 0
    }

    /// `s` is acknowledged cumulatively.
    #[inline(always)]
    pub fn acked(&mut self, s: &Sent, high_seq: SeqNum) {
        if s.is(mark::AGAIN) {
            self.seen |= seen::AGAIN_ACKED;
        } else if !s.is(mark::SACKED) {
            self.last_at = Some(s.at);
            self.first_at = self.first_at.or(self.last_at);
            if s.seq.before(self.reordered) {
                self.reordered = s.seq;
            }
            if !s.end().after(high_seq) {
                self.seen |= seen::ORIGINAL;
            }
        }
        self.acked_segs += s.segs as u32;
        self.seen |= seen::ACKED;
    }

    /// `s` is SACKed, which it was not, when `fack` was the highest that was.
    pub fn sacked(&mut self, s: &Sent, fack: SeqNum, high_seq: SeqNum) {
        if !s.is(mark::AGAIN) {
            // Sent once, and it was in a hole: the network reordered.
            if s.seq.before(fack) && s.seq.before(self.reordered) {
                self.reordered = s.seq;
            }
            if !s.end().after(high_seq) {
                self.seen |= seen::ORIGINAL;
            }
            self.sack_first_at = self.sack_first_at.or(Some(s.at));
            self.sack_last_at = Some(s.at);
        }
        self.seen |= seen::SACKED;
    }
}
