//! After something happened to a connection: the lists and timers it belongs to, and its end.

use tcp::State;
use wire::Instant;

use crate::InterfaceId;
use crate::clients::FIRST;
use crate::conns::conn::{Conn, Stage};
use crate::demux::Demux;
use crate::demux::flows::Place;
use crate::demux::time_wait::TimeWait;
use crate::engine::wait::waits_for;
use crate::engine::{Stack, context};
use crate::link::neighbor::Hop;
use crate::link::replies::Reply;
use crate::schedule::Schedule;
use crate::schedule::queues::queued;

impl Stack {
    /// After anything happened to a connection: which lists it belongs to, when it must be looked at again, whether it is
    /// over.
    pub(super) fn settle(&mut self, now: Instant, id: u32) {
        self.settle_but(now, id, 0);
    }

    /// [`Stack::settle`], but that it joins none of the lists `but`.
    #[inline(always)]
    fn settle_but(&mut self, now: Instant, id: u32, but: u8) {
        let Some(c) = self.conns.get_mut(id) else { return };
        if c.tcb.has_knobs() {
            c.tcb.time_fin_wait_2(&mut context!(self, now, c.pool));
            c.tcb.watch_unsent();
        }
        let wants = c.tcb.wants();
        if matches!(c.tcb.state(), State::Closed | State::TimeWait) {
            return self.settle_over(now, id, wants, but);
        }
        place(now, id, c, wants, but, &mut self.schedule, &mut self.demux);
    }

    /// [`Stack::settle`] after an ordinary segment of a connection that the flow table has `at` this place.
    #[inline(always)]
    pub(super) fn settle_straight(&mut self, now: Instant, id: u32, at: Place) {
        let Some(c) = self.conns.active_mut(id) else { return };
        if c.tcb.is_over() {
            return self.end_straight(now, id, at);
        }
        if c.tcb.has_knobs() {
            return self.settle(now, id);
        }
        let wants = c.tcb.wants_straight();
        place(now, id, c, wants, 0, &mut self.schedule, &mut self.demux);
    }

    /// A connection that an ordinary segment has brought to CLOSED or TIME-WAIT. Where the application has closed it, it goes at
    /// once: its last ACK is its record's.
    fn end_straight(&mut self, now: Instant, id: u32, at: Place) {
        let Some(c) = self.conns.active_mut(id) else { return };
        let wants = c.tcb.wants();
        if c.stage != Stage::Closed || !c.linked {
            return self.settle(now, id);
        }
        if c.tcb.state() == State::Closed {
            return if wants == 0 { self.free(now, id) } else { self.settle(now, id) };
        }
        let plain = wants == queued::ACK && c.traffic_class | c.hop_limit == 0 && c.epoch == self.link.epoch();
        let interface = c.key.interface;
        if !plain || self.link[interface].is_asking() {
            return self.settle(now, id);
        }
        let Hop::Known(mac) = self.link.hop(now, c.neighbor) else { return self.settle(now, id) };
        c.linked = false;
        let record = record_of(now, c);
        let hash = record.hash;
        let Some(t) = self.demux.remember(now, id, at, record, &mut self.counters) else {
            return self.free(now, id);
        };
        self.link.answer(interface, Reply::TimeWait { record: t, hash, mac }, &mut self.counters);
        self.free(now, id);
    }

    /// A connection in CLOSED or TIME-WAIT: a record takes its place in the flow table, or nothing, and nobody keeps what
    /// the application does not know.
    #[inline(never)]
    fn settle_over(&mut self, now: Instant, id: u32, wants: u8, but: u8) {
        let Some(c) = self.conns.active_mut(id) else { return };
        if c.linked && c.tcb.state() == State::TimeWait {
            c.linked = false;
            let record = record_of(now, c);
            self.demux.remember(now, id, Place::UNKNOWN, record, &mut self.counters);
        }
        let unknown = matches!(c.stage, Stage::Embryo | Stage::Ready | Stage::Closed);
        if unknown && wants & (queued::CONTROL | queued::ACK) == 0 {
            return self.free(now, id);
        }
        if c.linked && c.tcb.state() == State::Closed {
            c.linked = false;
            self.demux.remove(&c.key, c.hash, id);
        }
        place(now, id, c, wants, but, &mut self.schedule, &mut self.demux);
    }

    /// After sending: what it could not send now waits for an ACK, a timer or the application, not for the list.
    pub(super) fn settle_sent(&mut self, now: Instant, id: u32) {
        let Some(c) = self.conns.active_mut(id) else { return };
        let over = matches!(c.tcb.state(), State::Closed | State::TimeWait);
        if !over && !c.tcb.has_knobs() {
            // Sending brings no news; when to look again is all that it can have changed.
            return self.schedule.watch(now, id, c.tcb.deadline(), &mut c.alarm, c.tcb.is_idle());
        }
        let wants = c.tcb.wants();
        if over && wants == 0 && !c.tcb.has_knobs() {
            return self.settle_over(now, id, wants, queued::SEND);
        }
        self.settle_unlisted(now, id);
    }

    /// [`Stack::settle`] of a connection that does not go straight back on the lists of what is sent.
    #[inline(never)]
    fn settle_unlisted(&mut self, now: Instant, id: u32) {
        self.settle_but(now, id, queued::SEND);
    }

    /// The number returns to the stack.
    pub(super) fn free(&mut self, now: Instant, id: u32) {
        let Some(c) = self.conns.get_mut(id) else { return };
        c.tcb.release(&mut context!(self, now, c.pool));
        if c.linked {
            self.demux.remove(&c.key, c.hash, id);
        }
        if !c.kept.is_empty() {
            core::mem::take(&mut c.kept).free(self.clients.home_mut());
        }
        match c.stage {
            Stage::Embryo => self.demux.listeners.get(c.listener).into_iter().for_each(|l| l.embryos -= 1),
            Stage::Ready => self.demux.listeners.get(c.listener).into_iter().for_each(|l| l.ready -= 1),
            Stage::Offered | Stage::Owned | Stage::Between | Stage::Closed | Stage::Lingering => {
                if c.seat != FIRST && self.clients.is_foreign(c.seat) {
                    self.clients.end_connection(self.clients.client_of(c.seat).0);
                }
            }
        }
        self.orphans -= c.orphan as u32;
        self.counters.closed += 1;
        if c.tcb.error().is_some() {
            self.counters.failed += 1;
        }
        let (interface, hop, alarm) = (c.key.interface, c.neighbor, c.alarm);
        self.conns.remove(id);
        let waits = self.schedule.end(id, interface, alarm);
        if waits != 0 {
            self.leave_link(waits, interface, hop);
        }
    }

    /// A connection is over that waited for a next hop or an address: its entries there are stale now, and where these are too many they go.
    #[inline(never)]
    fn leave_link(&mut self, bits: u8, interface: InterfaceId, hop: u32) {
        if bits & queued::HELD != 0 {
            self.link.leave_held(interface, |e| self.schedule.is_current(e));
        }
        if bits & queued::HOP != 0 {
            self.link.leave(hop, waits_for(hop, &self.conns, &self.schedule));
        }
    }
}

/// What is remembered of a connection in TIME-WAIT.
#[inline(always)]
fn record_of(now: Instant, c: &mut Conn) -> TimeWait {
    let stamps = c.tcb.timestamps();
    TimeWait {
        key: c.key,
        hash: c.hash,
        snd_nxt: c.tcb.snd_nxt(),
        rcv_nxt: c.tcb.rcv_nxt(),
        ts_recent: stamps.map_or(0, |(_, recent)| recent),
        ts_offset: stamps.map_or(0, |(offset, _)| offset),
        stamped: stamps.is_some(),
        window: c.tcb.window_field(),
        answered: 0,
        until: now,
        challenged: false,
    }
}

/// Puts a connection where it belongs, but not on the lists `but`.
#[inline(always)]
fn place(now: Instant, id: u32, c: &mut Conn, wants: u8, but: u8, schedule: &mut Schedule, demux: &mut Demux) {
    let news = match c.stage {
        Stage::Owned => c.tcb.has_notice(),
        Stage::Embryo if c.tcb.established() && c.tcb.passive() => {
            c.stage = Stage::Ready;
            if let Some(l) = demux.listeners.get(c.listener) {
                l.embryos -= 1;
                l.ready += 1;
            }
            true
        }
        Stage::Embryo | Stage::Offered | Stage::Between => false,
        Stage::Ready => true,
        Stage::Lingering => c.lingered(),
        Stage::Closed => false,
    };
    let idle = wants == 0 && !news && c.tcb.is_idle();
    schedule.watch(now, id, c.tcb.deadline(), &mut c.alarm, idle);
    schedule.join(id, c.key.interface, wants & !but, news, || c.tcb.defer_ack());
}
