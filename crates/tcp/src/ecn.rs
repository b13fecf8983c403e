//! Explicit congestion notification (RFC 3168).

use wire::tcp::{Flags, Segment};

use crate::{Context, State, Tcb, flag};

impl Tcb {
    /// What the peer's SYN or SYN/ACK says (RFC 3168 6.1.1): a SYN asks with ECE and CWR, a SYN/ACK agrees with ECE alone.
    pub(crate) fn negotiate_ecn(&mut self, syn: &Segment) {
        let (ece, cwr) = (syn.flags.contains(Flags::ECE), syn.flags.contains(Flags::CWR));
        // RFC 3168 6.1.1: a SYN must not itself be ECN-capable; a path that marks it cannot be trusted.
        let agreed = match self.state {
            State::SynReceived => ece && cwr && !self.has(flag::CE_NOW),
            _ => ece && !cwr,
        };
        let on = self.has(flag::ECN) && agreed;
        self.set(flag::ECN, on);
    }

    /// The packet that carries the next segment for [`Tcb::on_segment`] was marked CE.
    pub fn congestion_experienced(&mut self) {
        self.set(flag::CE_NOW, true);
    }

    /// RFC 3168 6.1.3: CE is echoed until the sender says that it has reduced its window.
    pub(crate) fn note_ce(&mut self, cx: &mut Context) {
        if !self.has(flag::CE_NOW) || !self.has(flag::ECN) {
            return;
        }
        cx.counters.ecn_ce += 1;
        if !self.has(flag::ECE) {
            self.set(flag::ECE | flag::ACK_NOW, true);
            self.receiver.ack_quickly();
        }
    }

    /// CWR from the peer.
    pub(crate) fn note_cwr(&mut self, seg: &Segment) {
        if self.has(flag::ECN) && seg.flags.contains(Flags::CWR) {
            self.set(flag::ECE, false);
            if !seg.payload.is_empty() {
                // Its window may be down to one segment: the answer must not wait.
                self.set(flag::ACK_NOW, true);
            }
        }
    }

    /// The window was reduced: the peer must hear of it, or it repeats ECE for ever.
    pub(crate) fn queue_cwr(&mut self) {
        if self.has(flag::ECN) {
            self.set(flag::CWR, true);
        }
    }

    pub(crate) fn withdraw_cwr(&mut self) {
        self.set(flag::CWR, false);
    }
}
