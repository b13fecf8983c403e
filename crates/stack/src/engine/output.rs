//! Out to the wire: replies first, then the control, ACK and data lists (mTCP 3.2), framed straight into the port's
//! memory.

use wire::Instant;
use wire::burst::TxSink;
use wire::quick::Headers;

use crate::FlowKey;
use crate::InterfaceId;
use crate::conns::conn::Conn;
use crate::engine::framing::{Frames, Progress, Sent, Via};
use crate::engine::headers::finish_bare;
use crate::engine::{Stack, context};
use crate::link::hop::HANDSHAKE;
use crate::link::neighbor::Hop;
use crate::link::replies::TTL;
use crate::schedule::queues::{Entry, queued};

/// Segments that one connection sends before the next one has its turn: a burst of frames of the link, or more where the
/// port cuts; with many waiting, so few that the list comes round soon, and that most have as many: then all send alike,
/// whatever they have been able to queue.
pub(super) const SHARE: usize = 32;
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

impl Stack {
    /// Sends what waits for `interface`, as far as the port takes it; how many frames went.
    pub fn transmit<S: TxSink + ?Sized>(&mut self, now: Instant, interface: InterfaceId, sink: &mut S) -> usize {
        if self.link.get(interface).is_none() || !self.has_output(interface) {
            return 0;
        }
        let before = self.counters.frames_out;
        let caps = sink.caps();
        let mut full = self.drain_replies(now, interface, sink, caps);
        if !full {
            let via = Via::new(&self.link[interface], interface, caps, sink.gathers());
            full = [queued::CONTROL, queued::ACK, queued::DATA].iter().any(|bit| self.drain(now, *bit, &via, sink));
        }
        if !full && self.link.has_questions() {
            // Hops that turned out to be unknown are asked for at once.
            self.link.ask(&mut self.counters);
            self.drain_replies(now, interface, sink, caps);
        }
        self.schedule.turn_is_over(interface);
        (self.counters.frames_out - before) as usize
    }

    /// One list, each connection at most once; whether the port is full.
    fn drain<S: TxSink + ?Sized>(&mut self, now: Instant, bit: u8, via: &Via, sink: &mut S) -> bool {
        let Some(entries) = self.schedule.start(via.interface, bit) else { return false };
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
        let rides = self.schedule.with_data(via.interface) as u64 * LEAST as u64 <= self.most_data();
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
                    self.schedule.push(via.interface, *entry, bit);
                    done += 1;
                }
                break;
            }
            done += 1;
        }
        self.schedule.finish(via.interface, bit, entries, done);
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
        let id = entry.id;
        let Some(others) = self.schedule.take(entry, bit) else { return true };
        if bit == queued::ACK {
            if rides && others & queued::DATA != 0 {
                return true;
            }
            if self.conns.get_mut(id).is_some_and(|c| c.tcb.defer_ack()) {
                self.schedule.defer_ack(via.interface, entry);
                return true;
            }
        }
        let straight = match bit {
            queued::CONTROL => self.send_syn_straight(now, id, via, sink),
            _ => self.send_straight(now, id, via, sink),
        };
        match straight {
            Straight::Sent => return true,
            Straight::Full => {
                self.schedule.stay(id, bit);
                return false;
            }
            Straight::Not => {}
        }
        match self.send_conn(now, id, via, share, sink) {
            Progress::Idle => self.settle_sent(now, id),
            Progress::More => {
                self.settle_sent(now, id);
                self.schedule.join_again(via.interface, entry, bit);
            }
            Progress::Full => {
                self.schedule.stay(id, bit);
                return false;
            }
        }
        true
    }

    /// Segments of data that a turn sends, about.
    fn most_data(&self) -> u64 {
        if self.pressure.behind { TURN_BEHIND } else { TURN }
    }

    /// The straight path: one ordinary segment, in a frame of the common shape, to a neighbour that is known.
    #[inline(always)]
    fn send_straight<S: TxSink + ?Sized>(&mut self, now: Instant, id: u32, via: &Via, sink: &mut S) -> Straight {
        let Some(c) = self.conns.active_mut(id) else { return Straight::Not };
        if !is_plain(c, via, self.link.epoch()) {
            return Straight::Not;
        }
        let Hop::Known(to) = self.link.hop(now, c.neighbor) else { return Straight::Not };
        let Some(buf) = sink.reserve(via.room) else { return Straight::Full };
        let Some(head) = buf.first_chunk_mut() else { return Straight::Not };
        let mut cx = context!(self, now, c.pool);
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
            self.schedule.watch(now, id, c.tcb.deadline(), &mut c.alarm, c.tcb.is_idle());
        }
        Straight::Sent
    }

    /// The straight path of an active open's beginning: its SYN, for the first time, in a frame of the common shape, to a neighbour that is
    /// known.
    #[inline(always)]
    fn send_syn_straight<S: TxSink + ?Sized>(&mut self, now: Instant, id: u32, via: &Via, sink: &mut S) -> Straight {
        let Some(c) = self.conns.active_mut(id) else { return Straight::Not };
        if !is_plain(c, via, self.link.epoch()) {
            return Straight::Not;
        }
        let Hop::Known(to) = self.link.hop(now, c.neighbor) else { return Straight::Not };
        let Some(buf) = sink.reserve(via.room) else { return Straight::Full };
        let mut cx = context!(self, now, c.pool);
        let Some(out) = c.tcb.first_syn(&mut cx) else { return Straight::Not };
        let frames = Frames::new(via, c, to, false);
        let end = frames.syn(c, &out, buf);
        frames.finish(c, &out, &mut buf[..end], cx.pool);
        sink.commit(end, frames.offload(None));
        self.counters.frames_out += 1;
        self.counters.bytes_out += end as u64;
        self.counters.segments_out += 1;
        if c.tcb.has_knobs() {
            self.settle_sent(now, id);
        } else {
            self.schedule.watch(now, id, c.tcb.deadline(), &mut c.alarm, false);
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
        if c.epoch != self.link.epoch() {
            self.find_hop(now, id);
            match self.conns.get_mut(id) {
                Some(again) => c = again,
                None => return Progress::Idle,
            }
        }
        let to = match self.link.hop(now, c.neighbor) {
            Hop::Known(mac) => mac,
            // Where the kernel has no answer (yet) either, too.
            _ if let Some(mac) = c.came_from
                && (c.neighbor == HANDSHAKE || self.link.is_shared(via.interface)) =>
            {
                mac
            }
            hop => {
                self.without_hop(now, id, hop);
                return Progress::Idle;
            }
        };
        let urgent = c.tcb.urgent_out();
        let frames = Frames::new(via, c, to, urgent);
        let mut left = share;
        while left > 0 {
            let smss = c.tcb.segment_size() as usize;
            let mut cx = context!(self, now, c.pool);
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
            if c.tcb.all_sent(&mut context!(self, now, c.pool)) {
                return Progress::Idle;
            }
        }
        Progress::More
    }
}

/// Whether frames of a connection have the common shape, and its next hop is looked up.
#[inline(always)]
fn is_plain(c: &Conn, via: &Via, epoch: u32) -> bool {
    via.plain && c.key.interface == via.interface && c.epoch == epoch && !(c.fragments | c.cut) && c.key.remote.is_v4()
}
