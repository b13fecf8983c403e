//! After something happened to a connection: the lists and timers it belongs to, and its end.

use tcp::State;
use wire::Instant;

use crate::InterfaceId;
use crate::alarms::Alarms;
use crate::conn::{Conn, Stage};
use crate::counters::Counters;
use crate::engine::{Stack, TIME_WAIT, context};
use crate::flows::FlowTable;
use crate::interface::Interface;
use crate::listener::Listeners;
use crate::neighbor::Hop;
use crate::queues::{Entry, Queue, Queues, Rest, Word, queued};
use crate::replies::Raw;
use crate::time_wait::{TimeWait, TimeWaits};

impl Stack {
    /// After anything happened to a connection: which lists it belongs to, when it must be looked at again, whether it is
    /// over.
    pub(crate) fn settle(&mut self, now: Instant, id: u32) {
        self.settle_but(now, id, 0);
    }

    /// [`Stack::settle`], but that it joins none of the lists `but`.
    #[inline(always)]
    fn settle_but(&mut self, now: Instant, id: u32, but: u8) {
        let Some(c) = self.conns.get_mut(id) else { return };
        if c.tcb.has_knobs() {
            c.tcb.time_fin_wait_2(&mut context!(self, now));
            c.tcb.watch_unsent();
        }
        let wants = c.tcb.wants();
        if matches!(c.tcb.state(), State::Closed | State::TimeWait) {
            return self.settle_over(now, id, wants, but);
        }
        let Stack { queues, alarms, resting, listeners, interfaces, notify, .. } = self;
        Lists { queues, alarms, resting, listeners, interfaces, notify }.place(now, id, c, wants, but);
    }

    /// [`Stack::settle`] after an ordinary segment.
    #[inline(always)]
    pub(crate) fn settle_straight(&mut self, now: Instant, id: u32) {
        let Stack { conns, queues, alarms, resting, listeners, interfaces, notify, .. } = self;
        let Some(c) = conns.whole_mut(id) else { return };
        if c.tcb.is_over() {
            return self.end_straight(now, id);
        }
        if c.tcb.has_knobs() {
            return self.settle(now, id);
        }
        let wants = c.tcb.wants_straight();
        Lists { queues, alarms, resting, listeners, interfaces, notify }.place(now, id, c, wants, 0);
    }

    /// A connection that an ordinary segment has brought to CLOSED or TIME-WAIT. Where the application has closed it, it goes at
    /// once: its last ACK is its record's.
    fn end_straight(&mut self, now: Instant, id: u32) {
        let Some(c) = self.conns.whole_mut(id) else { return };
        let wants = c.tcb.wants();
        if c.stage != Stage::Released || !c.linked {
            return self.settle(now, id);
        }
        if c.tcb.state() == State::Closed {
            return if wants == 0 { self.free(now, id) } else { self.settle(now, id) };
        }
        let plain = wants == queued::ACK && c.traffic_class | c.hop_limit == 0 && c.epoch == self.neighbors.epoch;
        let interface = c.key.interface;
        if !plain || self.interfaces[interface.index()].auto.asking {
            return self.settle(now, id);
        }
        let Hop::Known(mac) = self.neighbors.hop(now, c.neighbor) else { return self.settle(now, id) };
        c.linked = false;
        let record = record_of(now, c);
        let hash = record.hash;
        let Some(t) = remember(now, id, record, &mut self.time_waits, &mut self.flows, &mut self.counters) else {
            return self.free(now, id);
        };
        self.push_raw(interface, Raw::TimeWait { record: t, hash, mac });
        self.free(now, id);
    }

    /// A connection in CLOSED or TIME-WAIT: a record takes its place in the flow table, or nothing, and nobody keeps what
    /// the application does not know.
    #[inline(never)]
    fn settle_over(&mut self, now: Instant, id: u32, wants: u8, but: u8) {
        let Stack {
            conns,
            flows,
            time_waits,
            counters,
            sources,
            queues,
            alarms,
            resting,
            listeners,
            interfaces,
            notify,
            ..
        } = self;
        let Some(c) = conns.whole_mut(id) else { return };
        if c.linked && c.tcb.state() == State::TimeWait {
            c.linked = false;
            let record = record_of(now, c);
            remember(now, id, record, time_waits, flows, counters);
        }
        let unknown = matches!(c.stage, Stage::Embryo | Stage::Ready | Stage::Released);
        if unknown && wants & (queued::CONTROL | queued::ACK) == 0 {
            return self.free(now, id);
        }
        if c.linked && c.tcb.state() == State::Closed {
            c.linked = false;
            flows.remove(c.hash, id);
            sources.freed(&c.key);
        }
        Lists { queues, alarms, resting, listeners, interfaces, notify }.place(now, id, c, wants, but);
    }

    /// After sending: what it could not send now waits for an ACK, a timer or the application, not for the list.
    pub(crate) fn settle_sent(&mut self, now: Instant, id: u32) {
        let Stack { conns, queues, alarms, resting, .. } = self;
        let Some(c) = conns.whole_mut(id) else { return };
        let over = matches!(c.tcb.state(), State::Closed | State::TimeWait);
        if !over && !c.tcb.has_knobs() {
            // Sending brings no news; when to look again is all that it can have changed.
            let idle = c.tcb.is_idle();
            return watch(now, id, c, idle, &mut queues[id], alarms, resting);
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
    pub(crate) fn free(&mut self, now: Instant, id: u32) {
        let Some(c) = self.conns.get_mut(id) else { return };
        c.tcb.release(&mut context!(self, now));
        if c.linked {
            self.flows.remove(c.hash, id);
            self.sources.freed(&c.key);
        }
        if c.on_wheel {
            self.alarms.wheel.cancel(id);
        }
        match c.stage {
            Stage::Embryo => self.listeners.get(c.listener).into_iter().for_each(|l| l.embryos -= 1),
            Stage::Ready => self.listeners.get(c.listener).into_iter().for_each(|l| l.ready -= 1),
            Stage::Owned | Stage::Released | Stage::Lingering => {}
        }
        self.orphans -= c.orphan as u32;
        self.counters.closed += 1;
        if c.tcb.error().is_some() {
            self.counters.failed += 1;
        }
        let (interface, hop) = (c.key.interface, c.neighbor);
        self.conns.remove(id);
        let bits = self.queues.end(id);
        if bits != 0 {
            self.leave_queues(bits, interface, hop);
        }
    }

    /// A connection is over that was in the queues `bits`: its entries are stale now, and where these are too many they go.
    #[inline(never)]
    fn leave_queues(&mut self, bits: u8, interface: InterfaceId, hop: u32) {
        let Stack { conns, queues, interfaces, notify, resting, neighbors, .. } = self;
        if bits & queued::RESTING != 0 {
            resting.leave(queues);
        }
        if bits & queued::NOTIFY != 0 {
            notify.leave(queues);
        }
        let i = &mut interfaces[interface.index()];
        if bits & queued::SEND != 0 {
            i.leave((bits & queued::SEND).count_ones(), queues);
        }
        if bits & queued::HELD != 0 {
            i.auto.held.leave(|e| queues.is_current(e));
        }
        if bits & queued::HOP != 0 {
            neighbors.leave(hop, conns, queues);
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

/// A TIME-WAIT record takes a connection's place in the flow table; its number, where there is room.
fn remember(
    now: Instant,
    id: u32,
    record: TimeWait,
    time_waits: &mut TimeWaits,
    flows: &mut FlowTable,
    counters: &mut Counters,
) -> Option<u32> {
    let hash = record.hash;
    let Some((t, evicted)) = time_waits.insert(now, record) else {
        flows.remove(hash, id);
        return None;
    };
    counters.time_waits += 1;
    if let Some((old, gone)) = evicted {
        counters.time_wait_evicted += 1;
        flows.remove(gone.hash, old | TIME_WAIT);
    }
    flows.replace(hash, id, t | TIME_WAIT);
    Some(t)
}

/// When a connection must be looked at again: by its timers, and, where it has become idle, to be parked.
#[inline(always)]
pub(crate) fn watch(
    now: Instant,
    id: u32,
    c: &mut Conn,
    idle: bool,
    word: &mut Word,
    alarms: &mut Alarms,
    resting: &mut Queue<Rest>,
) {
    let deadline = c.tcb.deadline();
    if deadline < c.wheel_at {
        (c.wheel_at, c.on_wheel) = (deadline, true);
        alarms.wheel.schedule(id, deadline);
    }
    if idle && !word.has(queued::RESTING) {
        word.insert(queued::RESTING);
        resting.push_back(Rest { entry: word.entry(id), since: now });
    }
}

/// What a connection has its places in.
struct Lists<'a> {
    queues: &'a mut Queues,
    alarms: &'a mut Alarms,
    resting: &'a mut Queue<Rest>,
    listeners: &'a mut Listeners,
    interfaces: &'a mut Vec<Interface>,
    notify: &'a mut Queue<Entry>,
}

impl Lists<'_> {
    /// Puts a connection where it belongs, but not on the lists `but`.
    #[inline(always)]
    fn place(self, now: Instant, id: u32, c: &mut Conn, wants: u8, but: u8) {
        let news = match c.stage {
            Stage::Owned => c.tcb.has_notice(),
            Stage::Embryo if c.tcb.established() && c.tcb.passive() => {
                c.stage = Stage::Ready;
                if let Some(l) = self.listeners.get(c.listener) {
                    l.embryos -= 1;
                    l.ready += 1;
                }
                true
            }
            Stage::Embryo => false,
            Stage::Ready => true,
            Stage::Lingering => c.lingered(),
            Stage::Released => false,
        };
        let word = &mut self.queues[id];
        let idle = wants == 0 && !news && c.tcb.is_idle();
        watch(now, id, c, idle, word, self.alarms, self.resting);
        // Membership of the lists that are wanted and do not have it yet.
        let add = (wants & !but | if news { queued::NOTIFY } else { 0 }) & !word.bits();
        if add == 0 {
            return;
        }
        word.insert(add);
        let entry = word.entry(id);
        if add & queued::NOTIFY != 0 {
            self.notify.push_back(entry);
        }
        if add & queued::SEND != 0 {
            let i = &mut self.interfaces[c.key.interface.index()];
            if add & queued::CONTROL != 0 {
                i.control.push(entry);
            }
            if add & queued::ACK != 0 {
                if c.tcb.defer_ack() { i.later.push(entry) } else { i.acks.push(entry) }
            }
            if add & queued::DATA != 0 {
                i.data.push(entry);
            }
        }
    }
}
