//! The straight path in: from a frame of the common shape to the connection's lists in one way, as far as the segment is what nearly every
//! segment is. Each step asks first and changes nothing where something is not so; the general way ([`super::input`]) takes it then from
//! the beginning.

use tcp::{Open, Tcb};
use wire::Instant;
use wire::burst::{RxChecksum, RxFrame};
use wire::tcp::{Ordinary, Segment, Syn};

use crate::clients::HOME;
use crate::conns::conn::{Birth, Stage};
use crate::counters::DropReason;
use crate::demux::Owner;
use crate::demux::flows::Place;
use crate::demux::syn_cache::Embryo;
use crate::engine::input::{CE, Fate, Sought, sum_ok};
use crate::engine::{Stack, context};
use crate::link::Source;
use crate::link::replies::Reply;
use crate::{FlowKey, InterfaceId, SynCookies};

impl Stack {
    /// Takes a frame of the common shape to and from good addresses, as [`Stack::take_frame`] would; `None`, with nothing
    /// done, where it is another. Unless it is `ours` anyway, `ask` is asked of one that is no connection's.
    #[inline(always)]
    pub(super) fn take_quick<'a>(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        frame: &RxFrame<'a>,
        hash: Option<u32>,
        ours: bool,
        ask: &mut impl FnMut(&Stack, RxFrame<'a>, Sought) -> bool,
    ) -> Option<Result<Fate, DropReason>> {
        let mac = self.link[interface].mac();
        let wire::quick::Tcp4 { mac, src, dst, tos, segment } = wire::quick::read(frame.data, mac)?;
        if !self.link.admits_untagged(interface, src, dst) {
            return None;
        }
        if !sum_ok(src, dst, segment, frame) {
            return Some(Err(DropReason::TcpChecksum));
        }
        let source = Source { interface, mac, src, dst, ecn: tos & 3 };
        let (mut hash, mut ours) = (hash, ours);
        if let Some((ports, seg)) = Ordinary::read(segment, frame.mss)
            && self.take_straight(now, source, ports, &seg, &mut hash)
        {
            return Some(Ok(Fate::Taken));
        }
        if let Some(((src_port, dst_port), syn)) = Syn::read(segment) {
            let key = source.key(dst_port, src_port);
            let hash = *hash.get_or_insert_with(|| self.demux.hash(&key));
            let taken = match (self.demux.find(&self.conns, &key, hash), syn.ack) {
                (None, None) => {
                    if !ours && ask(self, RxFrame { checksum: RxChecksum::Verified, ..*frame }, Sought::InVain) {
                        return Some(Ok(Fate::Given));
                    }
                    // Nobody is asked twice.
                    ours = true;
                    self.take_syn_straight(now, source, key, hash, &syn)
                }
                (Some((Owner::Connection(id), _)), Some(_)) => self.take_syn_ack_straight(now, source, &syn, id),
                _ => false,
            };
            if taken {
                return Some(Ok(Fate::Taken));
            }
        }
        let Ok(header) = Segment::header(segment) else { return Some(Err(DropReason::Malformed)) };
        let seg = Segment::behind(segment, header, frame.mss);
        let mut taken = self.take_common(now, source, &seg, hash, ours);
        if let Ok(Fate::Unknown(hash)) = taken {
            if ask(self, RxFrame { checksum: RxChecksum::Verified, ..*frame }, Sought::InVain) {
                return Some(Ok(Fate::Given));
            }
            taken = self.take_segment(now, source, &seg, Some(hash), true);
        }
        Some(taken)
    }

    /// The straight path: an ordinary segment of a connection, or of a handshake that it ends, from `ports` to ours. `false`, with
    /// nothing done but that the tuple's `hash` is known, where it is neither, or not ready for it.
    #[inline(always)]
    pub(super) fn take_straight(
        &mut self,
        now: Instant,
        source: Source,
        (src_port, dst_port): (u16, u16),
        seg: &Ordinary,
        hash: &mut Option<u32>,
    ) -> bool {
        let key = source.key(dst_port, src_port);
        let hash = *hash.get_or_insert_with(|| self.demux.hash(&key));
        if source.ecn == CE {
            return false;
        }
        let (id, place) = match self.demux.find(&self.conns, &key, hash) {
            Some((Owner::Connection(id), place)) => (id, place),
            Some((Owner::Handshake(id), place)) => return self.open_straight(now, source, seg, hash, id, place),
            Some((Owner::TimeWait(_), _)) | None => return false,
        };
        let Some(c) = self.conns.get_mut(id) else { return false };
        if !c.tcb.straight(seg, &mut context!(self, now, c.pool)) {
            return false;
        }
        self.counters.segments_in += seg.count() as u64;
        if !seg.payload.is_empty() && !seg.fin {
            // What follows it may be more of the same.
            self.burst.unsettled = Some(id);
        } else {
            self.settle_straight(now, id, place);
        }
        true
    }

    /// The straight path of an active open's end; `false`, with nothing done, where it is not so simple.
    #[inline(always)]
    fn take_syn_ack_straight(&mut self, now: Instant, source: Source, syn: &Syn, id: u32) -> bool {
        let Some(c) = self.conns.active_mut(id) else { return false };
        if source.ecn == CE
            || self.demux.is_learning()
            || !c.tcb.connect_straight(syn, &mut context!(self, now, c.pool))
        {
            return false;
        }
        self.demux.synchronized(&c.key);
        self.counters.segments_in += 1;
        self.settle_straight(now, id, Place::UNKNOWN);
        true
    }

    /// The straight path of a handshake's beginning: an ordinary SYN of a tuple that nobody has, for a listener with room and without
    /// options, while there is room among the handshakes. `false`, with nothing done, where it is not so simple.
    #[inline(always)]
    pub(super) fn take_syn_straight(
        &mut self,
        now: Instant,
        source: Source,
        key: FlowKey,
        hash: u32,
        syn: &Syn,
    ) -> bool {
        let most = self.config.syn_backlog;
        let room = self.demux.handshakes().len() < self.config.max_half_open as usize;
        let cookies = self.config.syn_cookies == SynCookies::Always;
        let Some((listener, l)) = self.demux.listener_of(&key) else { return false };
        if l.ready > l.backlog || l.embryos >= l.backlog.min(most) || !l.options.is_empty() || !room || cookies {
            return false;
        }
        let receive_buffer = l.receive_buffer;
        let (mss, _) = self.link.offered_mss(&key);
        let (iss, ts_offset) = self.demux.initial_sequence(now, &key);
        let mut embryo = Embryo::of(key, hash, syn, listener, (source.mac, source.interface));
        (embryo.iss, embryo.ts_offset) = (iss, ts_offset);
        (embryo.mss, embryo.receive_buffer) = (mss, receive_buffer);
        let Some(id) = self.demux.begin_handshake(now, embryo) else { return false };
        self.counters.segments_in += 1;
        self.counters.passive_opens += 1;
        self.link.answer(source.interface, Reply::SynAck { handshake: id }, &mut self.counters);
        true
    }

    /// The straight path of a handshake's end: the ACK of a SYN/ACK that went out once, by a listener that has room and asks for
    /// nothing special, becomes a connection at once. `false`, with nothing done, where it is not so simple.
    pub(super) fn open_straight(
        &mut self,
        now: Instant,
        source: Source,
        seg: &Ordinary,
        hash: u32,
        id: u32,
        place: Place,
    ) -> bool {
        let Some(&e) = self.demux.handshake(id) else { return false };
        let (mss, headers) = self.link.offered_mss(&e.key);
        let Some(l) = self.demux.listeners.get(e.listener) else { return false };
        // What nobody has accepted yet lies at home.
        let (pool, seat) = (HOME, l.seat);
        let plain = l.ready <= l.backlog && l.options.is_empty();
        if !plain || e.timeouts != 0 || e.again() || e.mss > mss || self.link.has_lowered_paths() {
            return false;
        }
        let Embryo { iss, ts_offset, mss, receive_buffer, listener, key, .. } = e;
        let open = Open { iss, ts_offset, mss, path_mss: mss, receive_buffer, headers };
        let offer = e.offer();
        if !Tcb::may_establish(&open, &offer, seg, &context!(self, now, pool)) {
            return false;
        }
        let sent = e.due.micros().saturating_sub(self.demux.handshakes().timeout(0).as_micros() as u64);
        let sent = Instant::from_micros(sent);
        let hop = self.link.passive_hop(source.interface, key.remote);
        let birth = Birth { key, hash, hop, came_from: Some(source.mac), listener, pool, seat, stage: Stage::Embryo };
        let establish = |tcb: &mut Tcb, cx: &mut tcp::Context| tcb.establish(&open, &offer, sent, seg, cx);
        let Some(new) = self.admit(now, birth, Some((id, place)), establish) else { return false };
        self.demux.handshake_is_done(id);
        self.counters.segments_in += seg.count() as u64;
        self.settle_straight(now, new, place);
        true
    }
}
