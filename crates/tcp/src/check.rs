//! What holds of a connection between two calls, whatever it was given: each part's own invariants, and those that join parts.

use crate::loss::recovery::Phase;
use crate::timers::Pending;
use crate::{Notice, SentPool, State, Tcb, flag};

impl Tcb {
    /// Panics where the control block contradicts itself, in words that name what does: for simulations, fuzzers and tests. Its time
    /// grows with the segments outstanding.
    pub fn check(&self, sent: &SentPool) {
        let (una, nxt) = (self.snd.una(), self.snd.nxt());
        self.rcv.check();
        self.receiver.check(&self.rcv);
        self.options.check();
        self.snd.check();
        self.board.check(sent, una, nxt, self.has(flag::SACK));
        self.recovery.check(una, nxt);
        self.rtt.check();
        self.timers.check();
        self.cc.check();
        self.check_outstanding();
        self.check_reports();
    }

    /// Something waits to be sent, nothing is under way, and no timer runs: only a place on the lists of what is sent, or a next hop that
    /// comes, ends that.
    pub fn waits_for_a_turn(&self) -> bool {
        let timed = self.timers.pending() != Pending::None || self.has(flag::PACED) || self.timers.is_corked();
        self.established() && !self.is_over() && self.wants_data() && self.board.is_empty() && !timed
    }

    /// Room in the send buffer is told of, or will be: who waits for it hears of a quarter of the buffer, and of each byte once it has asked.
    fn check_reports(&self) {
        let worth = self.sender.fills_a_quarter() || self.has(flag::TELL_ACKED) && self.sender.unreported() > 0;
        let told = !worth || self.orphaned() || !self.established() || self.notice().has(Notice::ACKED);
        assert!(told, "{} bytes are acknowledged, and nobody is told: {self:?}", self.sender.unreported());
    }

    /// While the connection lives, what is outstanding has a record and a timer, and what is lost has its recovery.
    fn check_outstanding(&self) {
        match self.state {
            State::Closed | State::Listen | State::TimeWait => {
                assert!(self.board.is_empty(), "{:?} with records", self.state);
                return;
            }
            _ => {}
        }
        let syn = matches!(self.state, State::SynSent | State::SynReceived);
        self.sender.check(self.snd.una(), self.snd.nxt(), syn, self.has(flag::FIN_SENT));
        assert_eq!(self.board.is_empty(), self.snd.una() == self.snd.nxt(), "what is outstanding has a record");
        let timed = self.board.is_empty() || self.timers.pending() != Pending::None;
        assert!(timed, "what is outstanding has a timer: {self:?}");
        assert!(
            self.has(flag::DISTURBED) || self.undisturbed(),
            "it is disturbed, and takes the straight path: {self:?}"
        );
        let open = self.established() && self.recovery.phase() == Phase::Open;
        assert!(!open || self.board.lost_out() == 0, "segments are lost, and nothing is done about it: {self:?}");
    }
}
