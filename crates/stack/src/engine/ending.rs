//! The end of a lane's application: what it has left open is closed by the stack, which knows all of it. So an end takes one
//! walk over the connections, however many they are, and no message for each of them. The walk takes many turns: closed in one,
//! a hundred thousand would keep the lane from receiving, and their answers would come at once, more than a ring holds.

use wire::Instant;

use crate::conns::conn::{Conn, Stage};
use crate::engine::{Stack, context};
use protocol::{CloseMode, ConnId, ListenerId};

/// Connections that a turn ends: about as many answers come for them as a turn receives.
const EACH: usize = 32;
/// The same while more frames wait to be received, or to be sent, than a turn takes.
const EACH_BEHIND: usize = 4;
/// Places of the table that are looked at for one connection to be ended.
const LOOKS: usize = 64;

/// What is done to each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Close,
    Reset,
}

/// A walk over all connections.
#[derive(Clone, Copy, Debug)]
struct Walk {
    how: How,
    next: u32,
    /// Connections from here on were not there when it began.
    end: u32,
}

/// The end of a lane's application.
#[derive(Default)]
pub(crate) struct Ending {
    /// Connections that are being ended, a part in each turn.
    walk: Option<Walk>,
    /// Where the last walk met a connection whose end is not acknowledged.
    unacknowledged: u32,
}

/// What an end has yet to bring to the peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Connections whose end is not acknowledged.
    pub ends: usize,
    /// Bytes on them that are not.
    pub bytes: u64,
}

impl Stack {
    /// Begins to close all that the application has not closed, as the kernel does where a process ends: it stops listening, resets what
    /// nobody has accepted, and ends each connection, with a FIN behind what was written, or with a RST where bytes wait that the
    /// application was not given. Does the jobs that are there first, those that the application has left behind among them.
    /// [`Stack::go_on_ending`] does the rest.
    pub fn close_all(&mut self, now: Instant) {
        for seat in self.clients.ids() {
            self.clients.seat(seat).take_left();
        }
        self.run_jobs(now);
        for seat in self.clients.ids() {
            self.clients.seat(seat).ending = true;
        }
        self.stop_listening(now);
        self.ending.walk = Some(Walk { how: How::Close, next: 0, end: self.conns.slots() });
    }

    /// Closes all listeners, and resets what nobody has accepted.
    pub fn stop_listening(&mut self, now: Instant) {
        for id in self.demux.listeners.ids() {
            self.close_listener(now, ListenerId(id));
        }
    }

    /// Begins to reset the connections whose peers have not acknowledged the end: there is no time left to wait for them.
    /// [`Stack::go_on_ending`] does the rest.
    pub fn reset_all(&mut self) {
        self.ending.walk = Some(Walk { how: How::Reset, next: 0, end: self.conns.slots() });
    }

    /// Whether connections are still to be closed, or reset, by [`Stack::go_on_ending`].
    pub fn is_ending(&self) -> bool {
        self.ending.walk.is_some()
    }

    /// Goes on with what [`Stack::close_all`] or [`Stack::reset_all`] has begun, as far as it is good for a turn; how many
    /// connections were ended.
    pub fn go_on_ending(&mut self, now: Instant) -> usize {
        let Some(Walk { how, next, end }) = self.ending.walk else { return 0 };
        self.conns.now = now;
        let most = if self.pressure.behind || self.sending() { EACH_BEHIND } else { EACH };
        let (mut ended, mut next) = (0, next);
        let last = end.min(next.saturating_add((most * LOOKS) as u32));
        while ended < most && next < last {
            ended += match how {
                How::Close => self.close_left_open(now, next),
                How::Reset => self.reset_unacknowledged(now, next),
            } as usize;
            next += 1;
        }
        self.ending.walk = (next < end).then_some(Walk { how, next, end });
        ended
    }

    fn close_left_open(&mut self, now: Instant, id: u32) -> bool {
        // Parked ones are the application's.
        let open = |c: &&mut Conn| matches!(c.stage, Stage::Owned | Stage::Between);
        let Some(c) = self.conns.get_mut(id).filter(open) else { return false };
        let seat = c.seat;
        self.close(now, ConnId(id), seat, CloseMode::Graceful);
        self.settle(now, id);
        true
    }

    fn reset_unacknowledged(&mut self, now: Instant, id: u32) -> bool {
        let Some(c) = self.conns.get_mut(id).filter(|c| !c.lingered()) else { return false };
        c.stage = match c.stage {
            // The listener's count is of those.
            stage @ (Stage::Embryo | Stage::Ready) => stage,
            Stage::Offered | Stage::Owned | Stage::Between | Stage::Closed | Stage::Lingering => Stage::Closed,
        };
        let mut cx = context!(self, now, c.pool);
        c.tcb.abort(&mut cx);
        self.settle(now, id);
        true
    }

    /// Whether every connection's end has been acknowledged: all that the application has said has arrived. Peers that have not
    /// ended their side (FIN-WAIT-2) need no wait. It is asked in turn after turn: each time the walk goes on where the last one
    /// ended, or a hundred thousand ends would take a hundred thousand walks.
    pub fn ends_acknowledged(&mut self) -> bool {
        let slots = self.conns.slots();
        let from = self.ending.unacknowledged.min(slots);
        let mut ids = (from..slots).chain(0..from);
        let first = ids.find(|id| self.is_unacknowledged(*id));
        self.ending.unacknowledged = first.unwrap_or(0);
        first.is_none()
    }

    /// What is unacknowledged; looks at all connections.
    pub fn left(&self) -> Left {
        let mut left = Left::default();
        for id in (0..self.conns.slots()).filter(|id| self.is_unacknowledged(*id)) {
            left.ends += 1;
            left.bytes += self.conns.active(id).map_or(0, |c| c.tcb.unacknowledged() as u64);
        }
        left
    }

    fn is_unacknowledged(&self, id: u32) -> bool {
        // Parked ones are established.
        self.conns.is_used(id) && !self.conns.active(id).is_some_and(Conn::lingered)
    }
}
