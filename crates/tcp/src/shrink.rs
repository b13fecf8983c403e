//! A peer that takes its window back (RFC 9293 3.8.6): segments under way beyond the new edge may be refused when they arrive, and nothing
//! will tell. When the window opens again they are sent again first, since new data behind them could fill a receiver that counts what
//! came out of order against its window, and it would refuse them for ever.

use wire::SeqNum;

use crate::loss::recovery::Phase;
use crate::loss::refused::Refused;
use crate::{Context, Tcb, flag};

impl Tcb {
    /// After an ordinary acknowledgment, before which nothing was refused.
    #[inline(always)]
    pub(crate) fn watch_edge_straight(&mut self, cx: &mut Context) {
        if self.snd.outstanding() > self.snd.wnd() {
            self.edge_moved(cx);
        }
    }

    /// After any acknowledgment: notes what the peer may refuse, and has it sent again once the window opens.
    pub(crate) fn watch_edge(&mut self, cx: &mut Context) {
        if self.recovery.refused.is_some() || self.snd.outstanding() > self.snd.wnd() {
            self.edge_moved(cx);
        }
    }

    #[cold]
    fn edge_moved(&mut self, cx: &mut Context) {
        let (una, nxt, right) = (self.snd.una(), self.snd.nxt(), self.snd.right());
        // Less than a unit of the window field is rounding (RFC 7323 2.3).
        let short = nxt.after(right) && nxt.since(right) >= self.options.snd_unit();
        if short {
            self.set(flag::RETRACTS, true);
        }
        self.recovery.refused = Refused::judge(self.recovery.refused, una, nxt, short.then_some(right));
        // Silly windows do not count as open (RFC 9293 3.8.6.2.1, MUST-38).
        let useful = (self.options.smss() as u32).min(self.snd.max_wnd() / 2).max(1);
        if let Some(from) = self.recovery.refused.as_mut().and_then(|refused| refused.open(right, useful)) {
            self.send_refused_again(from, cx);
        }
        self.judge_disturbance();
    }

    /// Bytes of new data that the peer's window takes. One that takes its window back offers more than its memory holds, where segments
    /// are short for what each costs it: a single hole in a whole window would have it refuse what fills the hole, for ever. Of its
    /// window half is used from then on, and two segments at least: fewer would wait for delayed acknowledgments.
    #[inline(always)]
    pub(crate) fn window_room(&self) -> u32 {
        if !self.has(flag::RETRACTS) {
            return self.snd.room();
        }
        let wnd = self.snd.wnd();
        (wnd / 2).max(wnd.min(2 * self.options.smss() as u32)).saturating_sub(self.snd.outstanding())
    }

    /// Presumes lost what lies beyond `from`, without taking it for congestion: the path bore it.
    fn send_refused_again(&mut self, from: SeqNum, cx: &mut Context) {
        let lost = self.board.mark_lost_from(cx.sent, from, self.options.smss() as u32);
        self.note_lost(lost, cx);
        cx.counters.windows_taken_back += 1;
        if self.board.lost_out() == 0 {
            return;
        }
        if self.recovery.phase() < Phase::Recovery {
            self.cc.keep_borne();
            self.recovery.enter_loss_of_size(self.snd.nxt());
        }
        // Timeouts so far came while the window was shut.
        self.rtt.forget_backoff();
        self.timers.forget_retries();
        self.recovery.probe.cancel();
        self.rearm_rto(cx);
    }
}
