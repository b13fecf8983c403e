//! What time brings: timers that are due (mTCP 3.2: one pass over what has expired), connections to be parked, memory to be freed.

use core::time::Duration;

use wire::Instant;

use crate::engine::{Stack, context};
use crate::schedule::queues::{Rest, queued};

/// So many entries ahead of the one that is worked on, the connections of lists are fetched from memory.
const AHEAD: usize = 8;

impl Stack {
    /// Does everything whose time has come: connections first, then the link, and last those whom the link lets go on.
    pub fn expire(&mut self, now: Instant) {
        self.conns.now = now;
        self.wake_due(now);
        self.park(now);
        self.expire_handshakes(now);
        self.demux.expire(now);
        self.link.expire(now, &mut self.counters);
        self.relieve(now);
        self.release_held(now);
        self.wake_resolved(now);
        self.fail_unreachable(now);
    }

    /// Earliest time at which [`Stack::expire`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let parking = self.schedule.idle.front().map(|r| r.since + self.config.park_after);
        let (handshakes, time_waits) = (self.demux.handshakes().next(), self.demux.time_waits().next());
        let all = [parking, self.schedule.next_deadline(), self.link.next_deadline(), handshakes, time_waits];
        // By a time for none, so that nothing is compared that is not there: valgrind would say so.
        let earliest = all.into_iter().fold(Instant::FAR, |least, at| least.min(at.unwrap_or(Instant::FAR)));
        (earliest != Instant::FAR).then_some(earliest)
    }

    fn wake_due(&mut self, now: Instant) {
        let mut due = core::mem::take(&mut self.due);
        self.schedule.expire(now, &mut due);
        for n in 0..due.len() {
            if let Some(later) = due.get(n + AHEAD) {
                self.conns.prefetch(*later);
            }
            let id = due[n];
            if let Some(at) = self.conns.parked_until(id).filter(|at| *at > now) {
                if at != Instant::FAR {
                    self.schedule.wake(id, at);
                }
                continue;
            }
            let Some(c) = self.conns.get_mut(id) else { continue };
            // Where the wheel still has it, for later, that comes to nothing.
            c.alarm.pass();
            if c.tcb.deadline() <= now {
                let mut cx = context!(self, now, c.pool);
                c.tcb.on_timer(&mut cx);
            }
            self.settle(now, id);
        }
        due.clear();
        self.due = due;
    }

    /// Parks what has been idle for long enough, a few connections a turn.
    fn park(&mut self, now: Instant) {
        const STEP: usize = 256;
        // Beyond so many active ones, memory counts for more than the work of parking; but one that is parked between the segments of
        // a burst would be so for nothing.
        const ACTIVE: usize = 32_768;
        const SOON: Duration = Duration::from_millis(20);
        let crowded = self.conns.len() - self.conns.parked() > ACTIVE;
        let after = if crowded { self.config.park_after.min(SOON) } else { self.config.park_after };
        for _ in 0..STEP {
            // A second ago is long ago for a cache.
            if let Some(later) = self.schedule.idle.get(2 * AHEAD) {
                self.conns.prefetch(later.entry.id);
            }
            if let Some(later) = self.schedule.idle.get(AHEAD) {
                self.conns.prefetch_active(later.entry.id);
            }
            let Some(Rest { entry, .. }) = self.schedule.idle.front().copied().filter(|r| r.since + after <= now)
            else {
                return;
            };
            self.schedule.idle.pop_front();
            let Some(others) = self.schedule.take(entry, queued::IDLE) else { continue };
            if others != 0 {
                // What it waits for settles it.
                continue;
            }
            let id = entry.id;
            let Some(c) = self.conns.active_mut(id).filter(|c| c.tcb.is_idle()) else { continue };
            let since = c.tcb.last_active();
            if since + after > now {
                self.schedule.rest_again(entry, since.max(now));
                continue;
            }
            match c.tcb.lingers_until() {
                // Nothing would settle it when that is over. Those behind it do not wait as long.
                Some(until) if until > now => {
                    self.schedule.rest_again(entry, until.min(now + SOON));
                    continue;
                }
                Some(_) => c.tcb.rest(&mut context!(self, now, c.pool)),
                None => {}
            }
            self.conns.park(id);
        }
    }

    /// Short of chunks: what came out of order goes, of a few connections each time, until there are enough again.
    fn relieve(&mut self, now: Instant) {
        const STEP: u32 = 64;
        if self.clients.home().plenty() || self.conns.len() == 0 {
            return;
        }
        for _ in 0..STEP {
            let id = self.relief;
            self.relief = if id + 1 < self.conns.slots() { id + 1 } else { 0 };
            let Some(c) = self.conns.active_mut(id) else { continue };
            let mut cx = context!(self, now, c.pool);
            let shed = c.tcb.shed_out_of_order(&mut cx);
            self.counters.shed += shed as u64;
            if shed > 0 && self.clients.home().plenty() {
                return;
            }
        }
    }
}
