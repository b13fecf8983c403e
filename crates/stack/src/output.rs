//! Out to the wire: replies first, then the control, ACK and data lists (mTCP 3.2), framed straight into the port's
//! memory.

use wire::burst::TxSink;
use wire::quick::Headers;
use wire::{Addr, Instant};

use crate::channel::Failure;
use crate::conn::Conn;
use crate::counters::DropReason;
use crate::engine::{HANDSHAKE, NO_NEIGHBOR, NO_ROUTE, Stack, context};
use crate::flows::FlowKey;
use crate::framing::{Frames, Sent, Via};
use crate::interface::Interface;
use crate::neighbor::{Hop, Neighbors};
use crate::queues::{Entry, queued};
use crate::replies::{TTL, finish_bare};
use crate::route::{InterfaceId, Routes};
use crate::settle::watch;

/// Segments that one connection sends before the next one has its turn: a burst of frames of the link, or more where the
/// port cuts; with many waiting, so few that the list comes round soon, and that most have as many: then all send alike,
/// whatever they have been able to queue.
const SHARE: usize = 32;
const ROUND: usize = 2048;
const LEAST: usize = 4;
/// Segments of data in a turn, about; and while more frames wait to be received than a turn takes: acknowledgments of these
/// are then no more than it takes, and what waits to be sent waits here, where it is sent by turns, rather than behind ACKs
/// in the device.
const TURN: u64 = 2048;
const TURN_BEHIND: u64 = 128;

/// What the straight path did for a connection.
enum Straight {
    /// It sent all that there was.
    Sent,
    /// The port takes no more frames.
    Full,
    /// Nothing: it is for the general way.
    Not,
}

/// How far a connection came with what it has to send.
pub(crate) enum Progress {
    /// The connection has nothing more to send now.
    Idle,
    /// It has had its share.
    More,
    /// The port takes no more frames.
    Full,
}

impl Stack {
    /// Sends what waits for `interface`, as far as the port takes it; how many frames went.
    pub fn transmit<S: TxSink + ?Sized>(&mut self, now: Instant, interface: InterfaceId, sink: &mut S) -> usize {
        let i = interface.index();
        if i >= self.interfaces.len() || !self.interfaces[i].waiting() {
            return 0;
        }
        let before = self.counters.frames_out;
        let caps = sink.caps();
        let mut full = self.drain_raw(now, interface, sink, caps);
        if !full {
            let via = Via::new(&self.interfaces[i], interface, caps, sink.gathers());
            full = [queued::CONTROL, queued::ACK, queued::DATA].iter().any(|bit| self.drain(now, *bit, &via, sink));
        }
        if !full && !self.neighbors.questions.is_empty() {
            // Hops that turned out to be unknown are asked for at once.
            self.ask_neighbors(now);
            self.drain_raw(now, interface, sink, caps);
        }
        let i = &mut self.interfaces[i];
        i.acks.append(&mut i.later);
        (self.counters.frames_out - before) as usize
    }

    /// One list, each connection at most once; whether the port is full.
    fn drain<S: TxSink + ?Sized>(&mut self, now: Instant, bit: u8, via: &Via, sink: &mut S) -> bool {
        let i = via.interface.index();
        if self.list(i, bit).is_empty() {
            return false;
        }
        // What joins the list meanwhile is for the next time.
        let spare = core::mem::take(&mut self.interfaces[i].spare);
        let mut entries = core::mem::replace(self.list(i, bit), spare);
        let (share, most) = match bit {
            queued::DATA => {
                let share = (ROUND / entries.len()).clamp(LEAST, if via.caps.max_gso > 0 { ROUND } else { SHARE });
                let most = self.most_data();
                (share.min(most as usize), most)
            }
            _ => (SHARE, u64::MAX),
        };
        let begun = self.counters.segments_out;
        // An ACK rides on data where there is some to send: the data list comes next, and is done in this turn or the next.
        let rides = self.interfaces[i].data.len() as u64 * LEAST as u64 <= self.most_data();
        let (mut full, mut done) = (false, 0);
        for entry in &entries {
            let before = self.counters.segments_out;
            if before - begun >= most {
                break;
            }
            if !self.drain_one(now, *entry, (bit, rides), via, share, sink) {
                full = true;
                // It has had its turn if it sent anything: else it would begin each of them.
                if bit == queued::DATA && self.counters.segments_out > before {
                    self.list(i, bit).push(*entry);
                    done += 1;
                }
                break;
            }
            done += 1;
        }
        if done < entries.len() {
            entries.drain(..done);
            entries.append(self.list(i, bit));
            self.interfaces[i].spare = core::mem::replace(self.list(i, bit), entries);
        } else {
            entries.clear();
            self.interfaces[i].spare = entries;
        }
        full
    }

    /// One connection of a list; `false`, and it is to be there again, when the port is full.
    #[inline(always)]
    fn drain_one<S: TxSink + ?Sized>(
        &mut self,
        now: Instant,
        entry: Entry,
        (bit, rides): (u8, bool),
        via: &Via,
        share: usize,
        sink: &mut S,
    ) -> bool {
        let (i, id) = (via.interface.index(), entry.id);
        let Some(word) = self.queues.take(entry, bit) else { return true };
        if bit == queued::ACK {
            if rides && word.has(queued::DATA) {
                return true;
            }
            if self.conns.get_mut(id).is_some_and(|c| c.tcb.defer_ack()) {
                word.insert(bit);
                self.interfaces[i].later.push(entry);
                return true;
            }
        }
        match self.send_straight(now, id, via, sink) {
            Straight::Sent => return true,
            Straight::Full => {
                self.queues[id].insert(bit);
                return false;
            }
            Straight::Not => {}
        }
        match self.send_conn(now, id, via, share, sink) {
            Progress::Idle => self.settle_sent(now, id),
            Progress::More => {
                self.settle_sent(now, id);
                if self.queues.is_current(entry) && !self.queues[id].has(bit) {
                    self.queues[id].insert(bit);
                    self.list(i, bit).push(entry);
                }
            }
            Progress::Full => {
                self.queues[id].insert(bit);
                return false;
            }
        }
        true
    }

    /// Segments of data that a turn sends, about.
    fn most_data(&self) -> u64 {
        if self.intake.behind { TURN_BEHIND } else { TURN }
    }

    fn list(&mut self, i: usize, bit: u8) -> &mut Vec<Entry> {
        let interface = &mut self.interfaces[i];
        match bit {
            queued::CONTROL => &mut interface.control,
            queued::ACK => &mut interface.acks,
            _ => &mut interface.data,
        }
    }

    /// A connection with something to send and nowhere to send it.
    #[cold]
    fn without_hop(&mut self, now: Instant, id: u32, waits: bool) {
        if waits {
            let word = &mut self.queues[id];
            if !word.has(queued::HOP)
                && let Some(c) = self.conns.whole(id)
            {
                word.insert(queued::HOP);
                self.neighbors.wait(c.neighbor, word.entry(id));
            }
            return;
        }
        let Some(c) = self.conns.whole_mut(id) else { return };
        let no_route = c.neighbor == NO_ROUTE;
        self.counters.drop(if no_route { DropReason::NoRoute } else { DropReason::NoNeighbor });
        let mut cx = context!(self, now);
        if c.tcb.unreachable(true, None, &mut cx) && no_route {
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

    /// Looks for a connection's next hop where it knows none, or where tables have changed. It waits for another one no more.
    #[inline(never)]
    pub(crate) fn find_hop(&mut self, now: Instant, id: u32) {
        let Some(c) = self.conns.get_mut(id) else { return };
        if c.epoch == self.neighbors.epoch {
            return;
        }
        let before = c.neighbor;
        let interface = &self.interfaces[c.key.interface.index()];
        find_neighbor(&mut self.routes, &mut self.neighbors, interface, now, c);
        if c.neighbor != before && self.queues[id].has(queued::HOP) {
            self.queues[id].remove(queued::HOP);
            self.neighbors.leave(before, &self.conns, &self.queues);
        }
    }

    /// The next hop of a connection that is opened by a handshake on `interface`, as far as it is known.
    pub(crate) fn passive_hop(&mut self, interface: InterfaceId, remote: Addr) -> (u32, u32) {
        match self.routes.known_hop(interface, remote) {
            Some(hop) => hop,
            None if self.interfaces[interface.index()].reaches(remote) => (NO_NEIGHBOR, 0),
            None => (HANDSHAKE, self.neighbors.epoch),
        }
    }

    /// The straight path: one ordinary segment, in a frame of the common shape, to a neighbour that is known.
    #[inline(always)]
    fn send_straight<S: TxSink + ?Sized>(&mut self, now: Instant, id: u32, via: &Via, sink: &mut S) -> Straight {
        let Some(c) = self.conns.whole_mut(id) else { return Straight::Not };
        let plain = via.plain
            && c.key.interface == via.interface
            && c.epoch == self.neighbors.epoch
            && !(c.fragments | c.cut)
            && c.key.remote.is_v4();
        if !plain {
            return Straight::Not;
        }
        let Hop::Known(to) = self.neighbors.hop(now, c.neighbor) else { return Straight::Not };
        let Some(buf) = sink.reserve(via.room) else { return Straight::Full };
        let Some(head) = buf.first_chunk_mut() else { return Straight::Not };
        let mut cx = context!(self, now);
        let Some(out) = c.tcb.send_straight(&mut cx) else { return Straight::Not };
        let FlowKey { local: src, remote: dst, local_port: src_port, remote_port: dst_port, .. } = c.key;
        let (tos, ttl) = (c.traffic_class | out.ecn, if c.hop_limit == 0 { TTL } else { c.hop_limit });
        let tcp::Simple { seq, ack, flags, window, timestamps, len, .. } = out;
        let headers = Headers { to, from: via.mac, src, dst, tos, ttl, src_port, dst_port, seq, ack, flags, window };
        let text = headers.write_ordinary(head, timestamps, len as usize);
        let end = text + len as usize;
        if len > 0 {
            c.tcb.copy_text(&out, &mut buf[text..end], cx.pool);
        }
        let offload = finish_bare(&mut buf[..end], via.caps);
        sink.commit(end, offload);
        self.counters.frames_out += 1;
        self.counters.bytes_out += end as u64;
        self.counters.segments_out += 1;
        // Sending brings no news; when to look again is all that it can have changed, unless the connection is over.
        if c.tcb.is_over() || c.tcb.has_knobs() {
            self.settle_sent(now, id);
        } else {
            let idle = c.tcb.is_idle();
            watch(now, id, c, idle, &mut self.queues[id], &mut self.alarms, &mut self.resting);
        }
        Straight::Sent
    }

    #[inline(always)]
    fn send_conn<S: TxSink + ?Sized>(
        &mut self,
        now: Instant,
        id: u32,
        via: &Via,
        share: usize,
        sink: &mut S,
    ) -> Progress {
        if via.asking && self.hold(id) {
            return Progress::Idle;
        }
        let Some(mut c) = self.conns.get_mut(id) else { return Progress::Idle };
        if c.key.interface != via.interface {
            // No entry of another interface's connection is on the list.
            debug_assert!(false, "connection {id} is not the interface's");
            return Progress::Idle;
        }
        if c.epoch != self.neighbors.epoch {
            self.find_hop(now, id);
            match self.conns.get_mut(id) {
                Some(again) => c = again,
                None => return Progress::Idle,
            }
        }
        let to = match self.neighbors.hop(now, c.neighbor) {
            Hop::Known(mac) => mac,
            _ if let (HANDSHAKE, Some(mac)) = (c.neighbor, c.came_from) => mac,
            hop => {
                self.without_hop(now, id, matches!(hop, Hop::Wait));
                return Progress::Idle;
            }
        };
        let urgent = c.tcb.urgent_out();
        let frames = Frames::new(via, c, to, urgent);
        let mut left = share;
        while left > 0 {
            let smss = c.tcb.segment_size() as usize;
            let mut cx = context!(self, now);
            if c.cut && c.tcb.snd_una() == c.tcb.snd_nxt() {
                c.cut = false;
            }
            if urgent || c.fragments || c.tcb.unsent() as usize <= smss {
                // What most connections have to send: one segment, in a frame of its own. (Of several cut by hardware each
                // would repeat the urgent pointer; fragments need an identification each.)
                // Behind cut ones it is reserved like them, so that it does not overtake them.
                let large = c.cut && c.tcb.wants_data();
                let room = if large { frames.large_room(via, smss) } else { via.room };
                let Some(buf) = sink.reserve(room) else { return Progress::Full };
                let Some(out) = c.tcb.next_segment(smss as u32, &mut cx) else { return Progress::Idle };
                let end = frames.headers(c, &out, buf) + out.len as usize;
                frames.finish(c, &out, &mut buf[..end], cx.pool);
                sink.commit(end, frames.offload(None));
                self.counters.frames_out += 1;
                self.counters.bytes_out += end as u64;
                self.counters.segments_out += 1;
                left -= 1;
                if c.tcb.all_sent(&mut cx) {
                    return Progress::Idle;
                }
                continue;
            }
            let mut sent = Sent::default();
            let burst = frames.send_burst(c, via, smss, left, sink, &mut cx, &mut sent);
            self.counters.frames_out += sent.frames;
            self.counters.bytes_out += sent.bytes;
            self.counters.segments_out += sent.segments;
            if let Err(progress) = burst {
                return progress;
            }
            left = left.saturating_sub(sent.segments as usize);
            if c.tcb.all_sent(&mut context!(self, now)) {
                return Progress::Idle;
            }
        }
        Progress::More
    }
}

/// The neighbour through which a connection sends that knows none, or whose tables have changed: that of the best route by its
/// own interface. None where there is no room for one.
fn find_neighbor(routes: &mut Routes, neighbors: &mut Neighbors, link: &Interface, now: Instant, c: &mut Conn) {
    let FlowKey { interface, remote, .. } = c.key;
    let index = match routes.way_by(interface, remote) {
        Some(way) => {
            let index = neighbors.index(now, interface, way.hop.gateway.unwrap_or(remote));
            if let Some(index) = index {
                // For the connections that come.
                (way.neighbor, way.epoch) = (index, neighbors.epoch);
            }
            index
        }
        None if link.reaches(remote) => neighbors.index(now, interface, remote),
        // Answers go to where the handshake came from.
        None if c.came_from.is_some() => Some(HANDSHAKE),
        None => Some(NO_ROUTE),
    };
    (c.neighbor, c.epoch) = index.map_or((NO_NEIGHBOR, 0), |index| (index, neighbors.epoch));
}
