//! Readiness, as epoll(7) defines it: level, edge, one-shot; several epolls.
//!
//! A registration ([`Watch`]) lies in its socket; most sockets have one. What happens on a socket wakes the registrations
//! that ask for that kind of thing, as Linux's keyed wake-ups do, and puts them on their epoll's ready list. What holds is
//! looked up when the list is collected, so nothing is reported that is no longer true.

use std::collections::VecDeque;

use crate::errno::Errno;
use crate::sockets::Sockets;
use crate::table::{ListenPhase, Listening, Phase, SockId, Socket, Tcp, flag};

/// Event bits, with Linux's numbers.
pub mod bits {
    /// Something to read, or to accept.
    pub const IN: u32 = 0x001;
    /// An urgent byte that has not been read.
    pub const PRI: u32 = 0x002;
    /// Room to write.
    pub const OUT: u32 = 0x004;
    /// An error waits in SO_ERROR; always reported.
    pub const ERR: u32 = 0x008;
    /// Both directions are closed; always reported.
    pub const HUP: u32 = 0x010;
    /// The peer has finished writing.
    pub const RDHUP: u32 = 0x2000;
    /// In a request: one report, then none before the registration is modified.
    pub const ONESHOT: u32 = 1 << 30;
    /// In a request: edge-triggered.
    pub const ET: u32 = 1 << 31;
}

/// A wake-up that concerns everybody: the state changed.
pub(crate) const ANY: u32 = u32::MAX;

/// When an event is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// As long as it is true.
    #[default]
    Level,
    /// Each time something new happens.
    Edge,
    /// Once; then not before the registration is modified.
    OneShot,
}

/// What a registration asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// [`bits`].
    pub events: u32,
    /// When.
    pub trigger: Trigger,
    /// Comes back with each event.
    pub data: u64,
}

impl Interest {
    /// From a `struct epoll_event`, whose `events` say the trigger too.
    pub fn from_epoll(events: u32, data: u64) -> Interest {
        let trigger = match events {
            e if e & bits::ONESHOT != 0 => Trigger::OneShot,
            e if e & bits::ET != 0 => Trigger::Edge,
            _ => Trigger::Level,
        };
        Interest { events: events & !(bits::ONESHOT | bits::ET), trigger, data }
    }
}

/// One reported event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// [`bits`] that hold.
    pub events: u32,
    /// The registration's.
    pub data: u64,
}

/// A registration as its socket keeps it.
pub(crate) struct Watch {
    data: u64,
    /// Registrations with other epolls.
    more: Option<Box<Watch>>,
    epoll: SockId,
    events: u32,
    /// The mark of its entry in the ready list; 0: it has none.
    place: u32,
    trigger: Trigger,
    /// A one-shot that has fired.
    spent: bool,
}

impl Watch {
    fn reported(&self) -> u32 {
        self.events | bits::ERR | bits::HUP
    }

    /// Whether a wake-up for `keys` puts it on the ready list.
    fn wakes(&self, keys: u32) -> bool {
        self.place == 0 && !self.spent && self.reported() & keys != 0
    }
}

/// One epoll.
#[derive(Default)]
pub(crate) struct Epoll {
    /// Sockets to look at, each with the mark that its registration has while the entry is good.
    ready: VecDeque<(SockId, u32)>,
    last_place: u32,
    /// Entries whose registration has gone.
    stale: usize,
    members: usize,
    /// Something was ready when it was registered, and has not been collected.
    fresh: bool,
}

impl Epoll {
    fn push(&mut self, id: SockId) -> u32 {
        self.last_place = self.last_place.checked_add(1).unwrap_or(1);
        self.ready.push_back((id, self.last_place));
        self.last_place
    }
}

fn find(head: &mut Option<Watch>, epoll: SockId) -> Option<&mut Watch> {
    let mut at = head.as_mut()?;
    loop {
        if at.epoll == epoll {
            return Some(at);
        }
        at = at.more.as_deref_mut()?;
    }
}

/// Takes `epoll`'s registration out of the list; there is hardly ever more than one.
fn unlink(slot: &mut Option<Watch>, epoll: SockId) -> Option<Watch> {
    let mut found = None;
    let mut rest = slot.take();
    while let Some(mut w) = rest {
        rest = w.more.take().map(|b| *b);
        if w.epoll == epoll {
            found = Some(w);
        } else {
            w.more = slot.take().map(Box::new);
            *slot = Some(w);
        }
    }
    found
}

/// Linux's tcp_poll.
fn tcp_bits(t: &Tcp) -> u32 {
    match t.phase {
        // Linux: an unconnected stream socket is writable and hung up.
        Phase::Fresh => bits::OUT | bits::HUP,
        Phase::Asked | Phase::Opening | Phase::Abandoned | Phase::Lingering | Phase::Lingered => 0,
        Phase::Open | Phase::Failed => {
            let failed = t.error.is_some();
            let no_more_in = t.receive_over();
            let no_more_out = t.is(flag::SHUT_WRITE) || failed;
            let mut b = 0;
            if t.readable() {
                b |= bits::IN;
            }
            if t.urgent_waits() {
                b |= bits::PRI;
            }
            if no_more_in {
                b |= bits::RDHUP;
            }
            if no_more_out || t.has_space() {
                b |= bits::OUT;
            }
            if no_more_in && no_more_out {
                b |= bits::HUP;
            }
            if t.is(flag::ERROR_NEW) {
                b |= bits::ERR;
            }
            b
        }
    }
}

fn listener_bits(l: &Listening) -> u32 {
    match l.phase {
        ListenPhase::Failed(_) => bits::ERR | bits::HUP,
        _ if !l.queue.is_empty() => bits::IN,
        _ => 0,
    }
}

impl Socket {
    /// What holds now.
    fn bits(&self) -> u32 {
        match self {
            Socket::Tcp(t) => tcp_bits(t),
            Socket::Listener(l) => listener_bits(l),
            Socket::Epoll(_) => 0,
        }
    }

    fn registration(&self, epoll: SockId) -> Option<&Watch> {
        let mut at = match self {
            Socket::Tcp(t) => t.watch.as_ref()?,
            Socket::Listener(l) => l.watch.as_ref()?,
            Socket::Epoll(_) => return None,
        };
        loop {
            if at.epoll == epoll {
                return Some(at);
            }
            at = at.more.as_deref()?;
        }
    }
}

impl Sockets {
    /// A new epoll.
    pub fn epoll_create(&mut self) -> Result<SockId, Errno> {
        self.insert(Socket::Epoll(Box::default()))
    }

    fn epoll(&mut self, id: SockId) -> Result<&mut Epoll, Errno> {
        match self.table.open_mut(id)? {
            Socket::Epoll(e) => Ok(e),
            Socket::Tcp(_) | Socket::Listener(_) => Err(Errno::EINVAL),
        }
    }

    /// The registrations of a socket that `epoll` may watch. An epoll cannot be watched.
    fn watchable(&mut self, epoll: SockId, id: SockId) -> Result<&mut Option<Watch>, Errno> {
        self.epoll(epoll)?;
        self.table.open_mut(id)?.watch().ok_or(Errno::EINVAL)
    }

    /// EPOLL_CTL_ADD.
    pub fn epoll_add(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno> {
        let slot = self.watchable(epoll, id)?;
        if find(slot, epoll).is_some() {
            return Err(Errno::EEXIST);
        }
        let Interest { events, trigger, data } = interest;
        let more = slot.take().map(Box::new);
        *slot = Some(Watch { data, more, epoll, events, place: 0, trigger, spent: false });
        self.epoll(epoll)?.members += 1;
        self.enqueue(epoll, id);
        Ok(())
    }

    /// EPOLL_CTL_MOD.
    pub fn epoll_modify(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno> {
        let w = find(self.watchable(epoll, id)?, epoll).ok_or(Errno::ENOENT)?;
        (w.events, w.trigger, w.data) = (interest.events, interest.trigger, interest.data);
        w.spent = false;
        self.enqueue(epoll, id);
        Ok(())
    }

    /// EPOLL_CTL_DEL.
    pub fn epoll_delete(&mut self, epoll: SockId, id: SockId) -> Result<(), Errno> {
        let w = unlink(self.watchable(epoll, id)?, epoll).ok_or(Errno::ENOENT)?;
        self.unregistered(&w);
        Ok(())
    }

    /// A new or changed registration: whether it is ready is found out when it is collected.
    fn enqueue(&mut self, epoll: SockId, id: SockId) {
        if self.table.get(id).and_then(|s| s.registration(epoll)).is_none_or(|w| w.place != 0) {
            return;
        }
        let Some(place) = self.table.epoll(epoll).map(|e| e.push(id)) else { return };
        let Some(socket) = self.table.get_mut(id) else { return };
        let now = socket.bits();
        if let Some(w) = socket.watch().and_then(|slot| find(slot, epoll)) {
            w.place = place;
            let ready = now & w.reported() != 0;
            if let (true, Some(e)) = (ready, self.table.epoll(epoll)) {
                e.fresh = true;
            }
        }
    }

    /// Whether something was ready when it was registered since the last `epoll_collect`: worth a look before anything else,
    /// since the answer to what an accepted connection brought goes out a turn sooner.
    pub fn epoll_is_fresh(&mut self, epoll: SockId) -> bool {
        self.table.epoll(epoll).is_some_and(|e| e.fresh)
    }

    fn unregistered(&mut self, w: &Watch) {
        if let Some(e) = self.table.epoll(w.epoll) {
            e.members -= 1;
        }
        if w.place != 0 {
            self.staled(w.epoll);
        }
    }

    /// An entry of the ready list has become void. They are skipped when met, and swept when they are many, so that the
    /// list stays in proportion to what is registered however rarely it is collected.
    fn staled(&mut self, epoll: SockId) {
        let Some(e) = self.table.epoll(epoll) else { return };
        e.stale += 1;
        if e.stale < 64 || e.stale * 2 < e.ready.len() {
            return;
        }
        let mut ready = core::mem::take(&mut e.ready);
        ready.retain(|(id, place)| {
            self.table.get(*id).and_then(|s| s.registration(epoll)).is_some_and(|w| w.place == *place)
        });
        if let Some(e) = self.table.epoll(epoll) {
            (e.ready, e.stale) = (ready, 0);
        }
    }

    /// What holds on a socket now, for `poll` and `select`; an unknown descriptor is `EBADF`.
    pub fn readiness(&self, id: SockId) -> Result<u32, Errno> {
        match self.table.open(id)? {
            Socket::Epoll(e) => {
                let holds = |(sock, place): &(SockId, u32)| {
                    self.table.get(*sock).is_some_and(|s| {
                        s.registration(id).is_some_and(|w| w.place == *place && s.bits() & w.reported() != 0)
                    })
                };
                Ok(if e.ready.iter().any(holds) { bits::IN } else { 0 })
            }
            socket => Ok(socket.bits()),
        }
    }

    /// Something happened on a socket: the registrations that it concerns go on their epolls' ready lists.
    pub(crate) fn mark(&mut self, id: SockId, keys: u32) {
        let Some(Some(slot)) = self.table.get_mut(id).map(Socket::watch) else { return };
        // Mostly nobody watches, or the one who does knows already.
        if slot.as_ref().is_none_or(|w| w.more.is_none() && !w.wakes(keys)) {
            return;
        }
        let mut head = slot.take();
        let mut next = head.as_mut();
        while let Some(w) = next {
            if w.wakes(keys)
                && let Some(e) = self.table.epoll(w.epoll)
            {
                w.place = e.push(id);
            }
            next = w.more.as_deref_mut();
        }
        if let Some(slot) = self.table.get_mut(id).and_then(Socket::watch) {
            *slot = head;
        }
    }

    /// Room to write may have come: who missed it hears of it (Linux's sk_stream_write_space).
    pub(crate) fn mark_space(&mut self, id: SockId) {
        if let Some(t) = self.table.tcp(id).filter(|t| t.is(flag::NO_SPACE) && t.has_space()) {
            t.set(flag::NO_SPACE, false);
            self.mark(id, bits::OUT);
        }
    }

    /// Reports ready registrations, at most `out.len()`; how many. Never blocks. `EINVAL` when `out` is empty.
    pub fn epoll_collect(&mut self, epoll: SockId, out: &mut [Ready]) -> Result<usize, Errno> {
        let e = self.epoll(epoll)?;
        if out.is_empty() {
            return Err(Errno::EINVAL);
        }
        e.fresh = false;
        let mut ready = core::mem::take(&mut e.ready);
        let mut stale = 0;
        let mut n = 0;
        // Once round: level-triggered ones go to the end, to be looked at by the next call.
        for _ in 0..ready.len() {
            if n == out.len() {
                break;
            }
            let Some((id, place)) = ready.pop_front() else { break };
            let Some(socket) = self.table.get_mut(id) else {
                stale += 1;
                continue;
            };
            let now = socket.bits();
            let Some(w) = socket.watch().and_then(|s| find(s, epoll)).filter(|w| w.place == place) else {
                stale += 1;
                continue;
            };
            let events = now & w.reported();
            let waits_for_space = w.events & bits::OUT & !now != 0;
            if events != 0 {
                out[n] = Ready { events, data: w.data };
                n += 1;
                w.spent = w.trigger == Trigger::OneShot;
            }
            if events != 0 && w.trigger == Trigger::Level {
                ready.push_back((id, place));
            } else {
                w.place = 0;
            }
            if let (true, Socket::Tcp(t)) = (waits_for_space, socket) {
                t.set(flag::NO_SPACE, true);
            }
        }
        if let Some(e) = self.table.epoll(epoll) {
            e.ready = ready;
            e.stale = e.stale.saturating_sub(stale);
        }
        Ok(n)
    }

    /// A closed socket is registered nowhere.
    pub(crate) fn unwatch(&mut self, id: SockId) {
        let mut next = self.table.get_mut(id).and_then(Socket::watch).and_then(Option::take);
        while let Some(w) = next {
            self.unregistered(&w);
            next = w.more.map(|b| *b);
        }
    }

    /// A closed epoll's registrations are void; its number may mean another one soon.
    pub(crate) fn forget_epoll(&mut self, epoll: SockId) {
        let mut left = self.table.epoll(epoll).map_or(0, |e| e.members);
        for id in self.table.ids() {
            if left == 0 {
                return;
            }
            let Some(Some(slot)) = self.table.get_mut(id).map(Socket::watch) else { continue };
            left -= unlink(slot, epoll).is_some() as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registrations that come and go without a collection: the list must not grow with the changes.
    #[test]
    fn what_is_never_collected_does_not_pile_up() {
        let (_stack, side) = mem::Pool::new(&mem::PoolConfig { chunks: 64, ..Default::default() }).unwrap();
        let ((jobs, _jobs), (_events, events)) = (mem::spsc::ring(4).unwrap(), mem::spsc::ring(4).unwrap());
        let mut s = Sockets::new(crate::SocketConfig::default(), side, jobs, events);
        let epoll = s.epoll_create().unwrap();
        let interest = Interest::from_epoll(bits::OUT, 7);
        let steady = s.socket(false).unwrap();
        s.epoll_add(epoll, steady, interest).unwrap();
        for i in 0..10_000 {
            let id = s.socket(false).unwrap();
            s.epoll_add(epoll, id, interest).unwrap();
            if i % 2 == 0 {
                s.epoll_delete(epoll, id).unwrap();
            }
            s.close(id).unwrap();
            assert!(s.epoll(epoll).unwrap().ready.len() < 200);
        }
        let mut out = [Ready { events: 0, data: 0 }; 4];
        assert_eq!(s.epoll_collect(epoll, &mut out), Ok(1));
        assert_eq!(out[0], Ready { events: bits::OUT | bits::HUP, data: 7 });
        s.close(steady).unwrap();
        assert_eq!(s.epoll(epoll).unwrap().members, 0);
        assert_eq!(s.epoll_collect(epoll, &mut out), Ok(0));
        assert_eq!(s.epoll(epoll).unwrap().stale, 0);
    }
}
