//! Connections that wait for the link: for a next hop, or until it is decided whether their address is ours.

use wire::Instant;

use crate::conns::Conns;
use crate::counters::DropReason;
use crate::engine::output::SHARE;
use crate::engine::{Stack, context};
use crate::link::hop::NO_ROUTE;
use crate::link::neighbor::{Hop, Waiter};
use crate::schedule::Schedule;
use crate::schedule::queues::{Entry, queued};
use protocol::Failure;

/// Who waits for `hop`.
pub(super) fn waits_for<'a>(hop: u32, conns: &'a Conns, schedule: &'a Schedule) -> impl Fn(Entry) -> bool + use<'a> {
    move |e| {
        schedule.is_current(e)
            && schedule.has(e.id, queued::HOP)
            && conns.active(e.id).is_some_and(|c| c.neighbor == hop)
    }
}

impl Stack {
    /// Looks for a connection's next hop where it knows none, or where tables have changed. It waits for another one no more.
    #[inline(never)]
    pub(super) fn find_hop(&mut self, now: Instant, id: u32) {
        let Some(c) = self.conns.get_mut(id) else { return };
        if c.epoch == self.link.epoch() {
            return;
        }
        let before = c.neighbor;
        (c.neighbor, c.epoch) = self.link.find_hop(now, c.key.interface, c.key.remote, c.came_from.is_some());
        if c.neighbor != before && self.schedule.has(id, queued::HOP) {
            self.schedule.unmark(id, queued::HOP);
            self.link.leave(before, waits_for(before, &self.conns, &self.schedule));
        }
    }

    /// A connection with something to send and nowhere to send it.
    #[cold]
    pub(super) fn without_hop(&mut self, now: Instant, id: u32, hop: Hop) {
        let Some(c) = self.conns.active_mut(id) else { return };
        if matches!(hop, Hop::Wait) {
            if let Some(entry) = self.schedule.mark(id, queued::HOP) {
                self.link.wait(c.neighbor, entry);
            }
            return;
        }
        let no_route = c.neighbor == NO_ROUTE;
        self.counters.drop(if no_route { DropReason::NoRoute } else { DropReason::NoNeighbor });
        let mut cx = context!(self, now, c.pool);
        if !matches!(hop, Hop::Lost) && c.tcb.unreachable(true, None, &mut cx) && no_route {
            c.trouble = Some(Failure::NetworkUnreachable);
        }
        // Lost like on any link: an open connection's timers send it again, or give up in the end.
        for _ in 0..SHARE {
            let smss = c.tcb.segment_size() as u32;
            if c.tcb.next_segment(smss, &mut cx).is_none() {
                break;
            }
        }
    }

    /// Whether a connection must wait because its address is not ours yet; it is sent again when that is decided.
    pub(super) fn hold(&mut self, id: u32) -> bool {
        let Some(key) = self.conns.active(id).map(|c| c.key) else { return false };
        if !self.link.undecided(key.interface, key.local) {
            return false;
        }
        if let Some(entry) = self.schedule.mark(id, queued::HELD) {
            self.link.hold(key.interface, entry);
        }
        true
    }

    /// Who waited for an address looks again, or fails because it is lost.
    pub(super) fn release_held(&mut self, now: Instant) {
        for entry in self.link.take_released() {
            if self.schedule.take(entry, queued::HELD).is_none() {
                continue;
            }
            if self.conns.key(entry.id).is_some_and(|key| !self.link[key.interface].owns(key.local)) {
                self.lose_hop(now, entry.id);
            }
            self.settle(now, entry.id);
        }
    }

    /// Connections whose next hop is known now, or may be another one, are sent again.
    #[inline]
    pub(super) fn wake_resolved(&mut self, now: Instant) {
        while let Some(waiter) = self.link.take_resolved() {
            if self.waits_no_more(waiter) {
                self.settle(now, waiter.entry.id);
            }
        }
    }

    /// Connections being opened fail when their next hop does not answer; others live on their timers.
    pub(super) fn fail_unreachable(&mut self, now: Instant) {
        while let Some(waiter) = self.link.take_failed() {
            if !self.waits_no_more(waiter) {
                continue;
            }
            let id = waiter.entry.id;
            // Where routes have changed meanwhile its hop may be another one, whose answer is still to come.
            self.find_hop(now, id);
            if self.conns.active(id).is_some_and(|c| c.neighbor == waiter.hop) {
                self.lose_hop(now, id);
            }
            self.settle(now, id);
        }
    }

    /// Takes a connection off a hop's list; `false`, and nothing is done, where the hop is not that connection's (any more).
    fn waits_no_more(&mut self, Waiter { entry, hop }: Waiter) -> bool {
        let waited = waits_for(hop, &self.conns, &self.schedule)(entry);
        if waited {
            self.schedule.unmark(entry.id, queued::HOP);
        }
        waited
    }

    /// A connection hears that its next hop, or its own address, is not to be had.
    fn lose_hop(&mut self, now: Instant, id: u32) {
        if let Some(c) = self.conns.get_mut(id) {
            let mut cx = context!(self, now, c.pool);
            c.tcb.unreachable(true, None, &mut cx);
        }
    }
}
