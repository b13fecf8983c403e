//! Memory that all sockets share: how much each may have under way, and who waits for it.

use mem::CHUNK_BYTES;
use protocol::Job;

use crate::readiness::bits;
use crate::sockets::Sockets;
use crate::table::{SockId, flag};

/// Bytes that every connection may have in flight, however scarce memory is.
pub(crate) const LEAST: usize = 8192;

/// A socket that may not write for want of chunks, or of slots in the ring.
pub(crate) struct Starved {
    pub id: SockId,
    /// Bytes under way when the stack was asked to tell of every acknowledged one.
    asked: Option<u32>,
    /// Bytes of the write that found no room.
    len: usize,
}

/// A turn to send a chunk though memory is dry.
pub(crate) struct Turn {
    id: SockId,
    stage: Stage,
}

enum Stage {
    /// So many batches of events ago, at most [`UNUSED`].
    Given { batches: u8 },
    /// A chunk was written. The stack was asked to tell of acknowledged bytes when so many were under way.
    Used { asked: u32 },
}

/// Batches of events after which a turn that was not used is another's.
const UNUSED: u8 = 3;

/// A short answer.
const LITTLE: usize = 512;

/// The part of a rise of the share that is followed at once.
const RISE: usize = 64;

/// Sockets that waited for chunks and are looked at in one go.
const FED: usize = 64;

impl Sockets {
    /// Bytes that a connection with so many in flight, and as many to write, may have there while all compete for the
    /// chunks. Of the last eighth those who hold none get a chunk each: of its first quarter whoever writes, of the next eighth who
    /// writes little, which goes at once where the peer takes anything. The rest is for what comes in, and for those who are given a
    /// turn ([`Sockets::give_turn`]).
    fn allowance(&self, in_flight: usize, len: usize) -> usize {
        match in_flight {
            _ if !self.side.scarce() => self.share.min(self.side.share()).max(LEAST),
            0 if !self.side.dry() || len <= LITTLE && !self.side.spent() => CHUNK_BYTES,
            _ => 0,
        }
    }

    /// [`Sockets::allowance`] for a write of `id`, which uses its turn where it has one.
    pub(crate) fn allowed(&mut self, id: SockId, in_flight: usize, len: usize) -> usize {
        match self.allowance(in_flight, len) {
            0 if in_flight == 0 && self.use_turn(id) => CHUNK_BYTES,
            allowed => allowed,
        }
    }

    /// A turn for one that has nothing under way and waits in the queue: the next chunk is its, however dry memory is, once there
    /// is one; `false` where as many have a turn as may. What came in and is to go on would else keep all memory for good.
    fn give_turn(&mut self, id: SockId) -> bool {
        let given = self.turns.len() < self.side.turns();
        if given {
            self.turns.push(Turn { id, stage: Stage::Given { batches: 0 } });
        }
        given
    }

    /// Uses the turn of a socket; `false` where it has none.
    fn use_turn(&mut self, id: SockId) -> bool {
        let given = |turn: &&mut Turn| turn.id == id && matches!(turn.stage, Stage::Given { .. });
        let turn = self.turns.iter_mut().find(given);
        turn.map(|turn| turn.stage = Stage::Used { asked: 0 }).is_some()
    }

    /// After a batch of events: turns end when what was written is acknowledged, which the stack is asked to tell, or where nothing was
    /// written; who would still write waits in the queue again.
    fn end_turns(&mut self) {
        let mut turns = core::mem::take(&mut self.turns);
        turns.retain_mut(|turn| {
            let Some(t) = self.table.tcp(turn.id) else { return false };
            // For who waits again the queue asks.
            let (in_flight, conn, asks) = (t.in_flight, t.conn, !t.is(flag::STARVED));
            match &mut turn.stage {
                Stage::Given { batches } => {
                    *batches += 1;
                    return *batches < UNUSED;
                }
                Stage::Used { asked } if asks && *asked != in_flight && in_flight > 0 => {
                    *asked = in_flight;
                    self.job(Job::TellAcked { conn });
                }
                Stage::Used { .. } => {}
            }
            in_flight > 0
        });
        self.turns = turns;
    }

    /// The share falls at once and rises slowly: what comes back in one go is for all, not for the next who writes.
    pub(crate) fn follow_share(&mut self) {
        let now = self.side.share();
        self.share = now.min(self.share + (now.saturating_sub(self.share)).div_ceil(RISE));
        self.tight = now == 0;
    }

    /// Not writable until there are chunks, slots, or a larger share again: in the queue of those for whom
    /// [`Sockets::process`] looks, and asks the stack.
    pub(crate) fn starve(&mut self, id: SockId, len: usize) {
        let Some(t) = self.table.tcp(id) else { return };
        t.set(flag::NO_SPACE, true);
        if t.is(flag::STARVED) {
            return;
        }
        t.set(flag::STARVED, true);
        if self.starved.len() > 2 * self.table.len() + 64 {
            self.forget_closed();
        }
        self.starved.push_back(Starved { id, asked: None, len });
    }

    /// Sockets that were closed while they waited, and whose numbers others have now, who may wait too.
    #[cold]
    fn forget_closed(&mut self) {
        let Sockets { table, starved, .. } = self;
        starved.retain(|s| {
            let Some(t) = table.tcp(s.id).filter(|t| t.is(flag::STARVED)) else { return false };
            t.set(flag::STARVED, false);
            true
        });
        for s in starved.iter() {
            table.tcp(s.id).into_iter().for_each(|t| t.set(flag::STARVED, true));
        }
    }

    /// A write was cut short. By the buffer or by TCP_NOTSENT_LOWAT: acknowledgments, or what is sent, will make room, and the stack tells
    /// of that unasked. By the share of the memory: what was taken may be too little for the stack to tell of.
    pub(crate) fn wait_for_room(&mut self, id: SockId, len: usize) {
        let Some(t) = self.table.tcp(id) else { return };
        t.set(flag::NO_SPACE, true);
        if t.has_space() {
            self.starve(id, len);
        }
    }

    /// There are chunks, and slots in the ring, again: for those who have waited longest, and have less than their share.
    pub(crate) fn feed_starved(&mut self) {
        self.end_turns();
        for _ in 0..self.starved.len().min(FED) {
            let Some(mut s) = self.starved.pop_front() else { return };
            let Some(t) = self.table.tcp(s.id).filter(|t| t.is(flag::STARVED)) else { continue };
            let (in_flight, conn) = (t.in_flight, t.conn);
            let fed = (in_flight as usize) < self.allowance(in_flight as usize, s.len);
            let fed = fed || in_flight == 0 && self.give_turn(s.id);
            if !fed {
                // Part of it may be acknowledged, and not worth telling when it was.
                if in_flight > 0 && s.asked != Some(in_flight) {
                    s.asked = Some(in_flight);
                    self.job(Job::TellAcked { conn });
                }
                self.starved.push_back(s);
                continue;
            }
            if let Some(t) = self.table.tcp(s.id) {
                t.set(flag::STARVED, false);
            }
            self.mark_space(s.id);
        }
    }

    /// Bytes came or were read, or SO_RCVLOWAT was set: where fewer wait to be read, memory may be too short for more.
    #[cold]
    pub(crate) fn note_low(&mut self, id: SockId) {
        let Some(t) = self.table.tcp(id).filter(|t| !t.rx.is_empty() && !t.readable()) else { return };
        let Some(cold) = t.cold.as_mut().filter(|cold| !cold.is_low) else { return };
        cold.is_low = true;
        if self.low.len() > 2 * self.table.len() + 64 {
            self.forget_low();
        }
        self.low.push(id);
    }

    /// Memory is short, so more may be refused than what waits to be read (Linux's `tcp_rmem_pressure`).
    #[cold]
    pub(crate) fn wake_low(&mut self) {
        for id in core::mem::take(&mut self.low) {
            let Some(t) = self.table.tcp(id) else { continue };
            let Some(cold) = t.cold.as_mut().filter(|cold| cold.is_low) else { continue };
            (cold.is_low, cold.low_is_off) = (false, !t.rx.is_empty());
            if !t.rx.is_empty() {
                self.epolls.wake(&mut t.watch, id, bits::IN);
            }
        }
    }

    /// Drops entries of sockets that were closed, as [`Sockets::forget_closed`] does.
    #[cold]
    fn forget_low(&mut self) {
        let Sockets { table, low, .. } = self;
        let mut set = |id: SockId, on: bool| {
            let cold = table.tcp(id).and_then(|t| t.cold.as_mut());
            cold.is_some_and(|cold| std::mem::replace(&mut cold.is_low, on))
        };
        low.retain(|id| set(*id, false));
        low.iter().for_each(|id| _ = set(*id, true));
    }
}
