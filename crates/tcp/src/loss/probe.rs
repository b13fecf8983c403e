//! The tail loss probe (RFC 8985 7): whether one is to be sent, and what the answer says.
//!
//! Invariants: at most one probe is under way, and it ends no later than SND.NXT.

use wire::SeqNum;

/// The tail loss probe of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    /// `snd.nxt` when the one under way was sent (`TLP.end_seq`).
    end: Option<SeqNum>,
    /// It was a retransmission.
    again: bool,
    /// It is to be sent.
    due: bool,
}

/// What an acknowledgment says of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing, or that both the original and the probe arrived.
    Nothing,
    /// The probe repaired a loss.
    Repaired,
}

impl Probe {
    /// One is under way.
    #[inline(always)]
    pub fn is_out(&self) -> bool {
        self.end.is_some()
    }

    /// The one under way is a retransmission.
    pub fn is_again(&self) -> bool {
        self.is_out() && self.again
    }

    /// One is to be sent.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Its timer expired.
    pub fn ask(&mut self) {
        // At most one probe is under way.
        self.due |= self.end.is_none();
    }

    /// Whether one is to be sent, which is done now.
    #[inline(always)]
    pub fn take_due(&mut self) -> bool {
        core::mem::take(&mut self.due)
    }

    /// It was sent, up to `end`; `again` where that was a retransmission.
    pub fn sent(&mut self, end: SeqNum, again: bool) {
        (self.end, self.again) = (Some(end), again);
    }

    /// Whatever was under way does not count any more.
    pub fn forget(&mut self) {
        self.end = None;
    }

    /// None is to be sent.
    pub fn cancel(&mut self) {
        self.due = false;
    }

    /// Whether it ends at `right`: a duplicate up to there may be its answer.
    pub fn ends_at(&self, right: SeqNum) -> bool {
        self.end == Some(right)
    }

    /// RFC 8985 7.4: `ack` came, as a bare duplicate where `bare`, with a D-SACK for the probe where `duplicate`.
    #[inline(always)]
    pub fn answer(&mut self, ack: SeqNum, bare: bool, duplicate: bool) -> Answer {
        let Some(end) = self.end else { return Answer::Nothing };
        if ack.before(end) {
            return Answer::Nothing;
        }
        if !self.again || duplicate {
            self.end = None;
        } else if ack.after(end) {
            return Answer::Repaired;
        } else if bare {
            // Both the original and the probe arrived.
            self.end = None;
        }
        Answer::Nothing
    }

    /// Asserts what the module's head says.
    pub fn check(&self, nxt: SeqNum) {
        assert!(self.end.is_none_or(|end| end.before_eq(nxt)), "the probe ends beyond {nxt:?}: {self:?}");
        assert!(!(self.due && self.is_out()), "a probe follows a probe: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(again: bool) -> Probe {
        let mut p = Probe::default();
        p.ask();
        assert!(p.take_due());
        p.sent(SeqNum(1000), again);
        p
    }

    #[test]
    fn one_at_a_time() {
        let mut p = out(true);
        p.ask();
        p.check(SeqNum(1000));
        assert!(!p.take_due() && p.is_out());
    }

    #[test]
    fn what_answers_say() {
        let answer = |again, ack, bare, duplicate| {
            let mut p = out(again);
            (p.answer(SeqNum(ack), bare, duplicate), p.is_out())
        };
        // Below its end nothing is known yet.
        assert_eq!(answer(true, 999, true, true), (Answer::Nothing, true));
        // New data that is acknowledged was no repair, nor was what came twice.
        assert_eq!(answer(false, 1000, false, false), (Answer::Nothing, false));
        assert_eq!(answer(true, 1000, false, true), (Answer::Nothing, false));
        assert_eq!(answer(true, 1000, true, false), (Answer::Nothing, false));
        assert_eq!(answer(true, 1000, false, false), (Answer::Nothing, true));
        assert_eq!(answer(true, 1001, false, false), (Answer::Repaired, true));
    }
}
