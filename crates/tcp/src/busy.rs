//! What only a connection with something under way needs: records of what it sent, recovery, congestion control's memory,
//! pacing. Most connections of a large server are idle, were never in trouble, and do without.

use core::ops::{Deref, DerefMut};

use wire::{Instant, SeqNum};

use crate::congestion::{Algorithm, Controller};
use crate::recovery::{Phase, Recovery};
use crate::sent::{SentList, SentPool};
use crate::tcb::{Context, Tcb, flag};
use crate::{Config, State};

#[derive(Debug)]
pub(crate) struct Active {
    pub sent: SentList,
    /// Of the segments outstanding: those SACKed, judged lost, and sent again.
    pub sacked_out: u32,
    pub lost_out: u32,
    pub retrans_out: u32,
    /// Segments of the burst being sent, for PSH.
    pub burst: u32,
    /// Most segments out at once in the present window, which began below `cwnd_usage_seq` (RFC 7661).
    pub max_packets_out: u32,
    pub cwnd_usage_seq: SeqNum,
    pub cwnd_used: u32,
    pub cwnd_stamp: Instant,
    /// The timestamp that the segment being worked on echoes, in our clock, ms.
    pub echo: Option<u32>,
    /// What came twice and has not been reported (RFC 2883).
    pub dsack: Option<(SeqNum, SeqNum)>,
    pub recovery: Recovery,
    pub control: Controller,
    pub pace_at: Instant,
    /// When a corked partial segment goes after all.
    pub cork_at: Instant,
    /// Most bytes a second, SO_MAX_PACING_RATE; `u64::MAX`: no limit.
    pub max_pacing: u64,
}

impl Active {
    const fn new(at: SeqNum, stamp: Instant, control: Controller) -> Active {
        Active {
            sent: SentList::new(),
            sacked_out: 0,
            lost_out: 0,
            retrans_out: 0,
            burst: 0,
            max_packets_out: 0,
            cwnd_usage_seq: at,
            cwnd_used: 0,
            cwnd_stamp: stamp,
            echo: None,
            dsack: None,
            recovery: Recovery::new(at),
            control,
            pace_at: Instant::FAR,
            cork_at: Instant::FAR,
            max_pacing: u64::MAX,
        }
    }

    /// Whether one made anew would be the same to a connection with nothing outstanding.
    fn is_fresh(&self, config: &Config) -> bool {
        let r = &self.recovery;
        self.sent.is_empty()
            && self.dsack.is_none()
            && r.phase == Phase::Open
            && r.lost | r.dsack_dups | (r.reordering_seen as u32) == 0
            && r.reordering == 3
            && !(r.frto | r.head_due | r.new_first | r.probe_due)
            && r.undo_marker.is_none()
            && r.retrans_stamp.is_none()
            && r.probe_high.is_none()
            && self.control.is_fresh(config.congestion)
            && self.pace_at == Instant::FAR
            && self.cork_at == Instant::FAR
            && self.max_pacing == u64::MAX
    }
}

/// As a resting connection has it.
static RESTING: Active = Active::new(SeqNum(0), Instant::ZERO, Controller::new(Algorithm::Cubic));

/// It, or nothing; what is read of nothing is what one made anew would hold.
#[derive(Debug, Default)]
pub(crate) struct Busy(Option<Box<Active>>);

impl Deref for Busy {
    type Target = Active;
    #[inline]
    fn deref(&self) -> &Active {
        self.0.as_deref().unwrap_or(&RESTING)
    }
}

impl DerefMut for Busy {
    #[inline]
    fn deref_mut(&mut self) -> &mut Active {
        // Segments, timers and sending have woken the connection; what is left are options that few set.
        self.0.get_or_insert_with(|| Box::new(Active::new(SeqNum(0), Instant::ZERO, Controller::new(Algorithm::Cubic))))
    }
}

impl Busy {
    pub fn give_back(&mut self, pool: &mut SentPool) {
        if let Some(active) = self.0.take() {
            pool.keep(active);
        }
    }
}

impl Tcb {
    /// Before anything happens to the connection.
    #[inline]
    pub(crate) fn wake(&mut self, cx: &mut Context) {
        if self.busy.0.is_none() {
            self.wake_up(cx);
        }
    }

    fn wake_up(&mut self, cx: &mut Context) {
        let control = Controller::resumed(cx.config.congestion, self.rtt.min);
        let active = Active::new(self.snd_una, self.sent_at, control);
        let boxed = match cx.sent.spare() {
            Some(mut old) => {
                *old = active;
                old
            }
            None => Box::new(active),
        };
        self.busy.0 = Some(boxed);
    }

    /// Segments sent and not acknowledged cumulatively.
    pub fn outstanding(&self) -> u32 {
        self.packets_out
    }

    /// After an exchange, with nothing under way and nothing to remember: what an idle connection does without is given
    /// back. Its window is at most the initial one, so no use of it needs to be judged (RFC 7661).
    #[inline]
    pub fn rest(&mut self, cx: &mut Context) {
        let idle = self.packets_out == 0
            && self.state == State::Established
            && self.tx.is_empty()
            && self.rx.is_empty()
            && self.rcv_nxt != self.irs + 1
            && self.snd_nxt != self.iss + 1
            && self.flags & (flag::ACK_NOW | flag::ACK_DELAYED | flag::PACED | flag::PROBE_NOW) == 0;
        if idle
            && self.cc.cwnd <= cx.config.initial_window
            && self.busy.0.as_ref().is_some_and(|b| b.is_fresh(cx.config))
        {
            self.busy.give_back(cx.sent);
        }
    }

    /// Nothing sent is remembered.
    pub(crate) fn forget_sent(&mut self, cx: &mut Context) {
        if let Some(b) = &mut self.busy.0 {
            b.sent.clear(cx.sent);
            (b.sacked_out, b.lost_out, b.retrans_out) = (0, 0, 0);
            b.recovery.probe_due = false;
            b.recovery.head_due = false;
            b.cork_at = Instant::FAR;
        }
    }
}
