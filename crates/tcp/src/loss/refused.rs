//! Sequence numbers that a peer may have refused, having taken its window back over them while they were under way (RFC 9293 3.8.6).
//!
//! Invariant: they lie between SND.UNA and SND.NXT.

use wire::SeqNum;

/// Openings after which segments are sent again while none is acknowledged: a window that opens and closes must not put off the
/// retransmission timer, and what it ends, for ever.
const OPENINGS: u8 = 15;

/// Sequence numbers under way beyond the window's edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Refused {
    /// The leftmost edge of the window.
    from: SeqNum,
    /// SND.NXT when the edge was seen last.
    to: SeqNum,
    /// They are being sent again.
    again: bool,
    /// Times that they were.
    openings: u8,
}

impl Refused {
    /// After an acknowledgment to `una`: `edge` is the right edge of the window, where that lies before SND.NXT, `nxt`.
    pub fn judge(before: Option<Refused>, una: SeqNum, nxt: SeqNum, edge: Option<SeqNum>) -> Option<Refused> {
        // An acknowledgment beyond the edge says that nothing was refused there, or is any more.
        let before = before.filter(|r| !una.after(r.from) && una != nxt);
        match (before, edge) {
            (Some(r), Some(edge)) if !edge.after(r.from) => Some(Refused { from: edge, to: nxt, again: false, ..r }),
            (Some(r), Some(_)) => Some(Refused { to: nxt, ..r }),
            (None, Some(edge)) => Some(Refused { from: edge, to: nxt, again: false, openings: 0 }),
            (before, None) => before,
        }
    }

    /// The window reaches to `right`: from where segments go again, where that is `useful` bytes, or all, beyond what was refused.
    pub fn open(&mut self, right: SeqNum, useful: u32) -> Option<SeqNum> {
        let useful = useful.min(self.to.since(self.from));
        let opens = right.after(self.from) && right.since(self.from) >= useful;
        if self.again || !opens || self.openings >= OPENINGS {
            return None;
        }
        (self.again, self.openings) = (true, self.openings + 1);
        Some(self.from)
    }

    /// Asserts what the module's head says.
    pub fn check(&self, una: SeqNum, nxt: SeqNum) {
        let Refused { from, to, .. } = *self;
        let under_way = una.before_eq(from) && from.before(to) && to.before_eq(nxt);
        assert!(under_way, "{from:?} to {to:?} were refused, and {una:?} to {nxt:?} are under way");
    }
}
