//! Readiness, as epoll(7) defines it: level, edge, one-shot; several epolls.
//!
//! A registration ([`Watch`]) lies in its socket; most sockets have one. What happens on a socket wakes the registrations
//! that ask for that kind of thing, as Linux's keyed wake-ups do, and puts them on their epoll's ready list. What holds is
//! looked up when the list is collected, so nothing is reported that is no longer true.

use std::collections::VecDeque;

use protocol::Failure;

use crate::errno::Errno;
use crate::readiness::{bits, common_bits, listener_bits};
use crate::sockets::Sockets;
use crate::table::{SockId, Socket, flag};

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
    /// Its place among [`Epolls`].
    epoll: u32,
    /// What is reported, ERR and HUP in any case; 0: a one-shot that has fired.
    events: u32,
    /// The mark of its entry in the ready list; 0: it has none.
    place: u32,
    trigger: Trigger,
    /// Of one event at a time: what was reported last, by its place in [`SINGLY`], or [`NOTHING`].
    last: u8,
    /// The same: what is still to be reported of an edge, by places in [`SINGLY`].
    owed: u8,
}

/// The order in which [`Sockets::epoll_create_singly`]'s report what holds at once.
const SINGLY: [u32; 6] = [bits::ERR, bits::IN, bits::PRI, bits::OUT, bits::RDHUP, bits::HUP];
/// No place in [`SINGLY`].
const NOTHING: u8 = 7;

/// What keeps bits of a socket back where they are reported one by one.
#[derive(Clone, Copy)]
struct Back {
    /// Something has come that was not read.
    unread: bool,
    /// The peer has reset it.
    reset: bool,
}

impl Back {
    /// What of `events`, which hold and were asked for, may be reported. As mTCP has it: the end of a stream comes after its
    /// bytes, and a reset is an end.
    #[inline]
    fn of(self, events: u32) -> u32 {
        const END: u32 = bits::RDHUP | bits::HUP;
        match events {
            e if e & bits::IN != 0 && self.unread => e & !(END | if self.reset { bits::ERR | bits::OUT } else { 0 }),
            e if e & bits::ERR != 0 && self.reset && e & (bits::IN | bits::RDHUP) != 0 => e & !(bits::ERR | bits::OUT),
            e => e,
        }
    }
}

/// The places of bits in [`SINGLY`].
fn places(events: u32) -> u8 {
    SINGLY.iter().enumerate().fold(0, |all, (i, bit)| all | ((events & bit != 0) as u8) << i)
}

impl Watch {
    /// The next of `events` to be reported alone, as its place; there is one.
    fn next(&self, events: u32) -> u8 {
        let all = u32::from(places(events));
        // First, but who does not see it must hear of the rest.
        if events & bits::ERR != 0 && self.last != 0 {
            return 0;
        }
        // Round and round: what always holds must not hide the rest.
        let after = all & !((2 << self.last) - 1);
        (if after != 0 { after } else { all }).trailing_zeros() as u8
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
    /// Reports one event at a time, and HUP only where it was asked for.
    singly: bool,
    /// Edges of which something is still to be reported.
    owed: VecDeque<SockId>,
}

impl Epoll {
    #[inline]
    fn push(&mut self, id: SockId) -> u32 {
        self.last_place = self.last_place.checked_add(1).unwrap_or(1);
        self.ready.push_back((id, self.last_place));
        self.last_place
    }
}

/// The epolls, apart from the table: what happens on a socket changes its registration and an epoll at once.
#[derive(Default)]
pub(crate) struct Epolls {
    all: Vec<Epoll>,
    free: Vec<u32>,
}

impl Epolls {
    fn insert(&mut self) -> u32 {
        if let Some(free) = self.free.pop() {
            return free;
        }
        self.all.push(Epoll::default());
        self.all.len() as u32 - 1
    }

    fn remove(&mut self, epoll: u32) {
        self.all[epoll as usize] = Epoll::default();
        self.free.push(epoll);
    }

    /// Something happened on socket `id`: of its registrations those that it concerns go on their epolls' ready lists.
    #[inline]
    pub fn wake(&mut self, head: &mut Option<Watch>, id: SockId, keys: u32) {
        let mut next = head.as_mut();
        while let Some(w) = next {
            if w.place == 0
                && w.events & keys != 0
                && let Some(e) = self.all.get_mut(w.epoll as usize)
            {
                w.place = e.push(id);
            }
            next = w.more.as_deref_mut();
        }
    }

    /// A registration is gone. The epoll whose list has become worth sweeping by it.
    #[inline]
    fn unregistered(&mut self, w: &Watch) -> Option<u32> {
        let e = self.all.get_mut(w.epoll as usize)?;
        e.members -= 1;
        if w.place == 0 {
            return None;
        }
        // An entry of the ready list has become void. They are skipped when met, and swept when they are many, so that the
        // list stays in proportion to what is registered however rarely it is collected.
        e.stale += 1;
        (e.stale >= 64 && e.stale * 2 >= e.ready.len()).then_some(w.epoll)
    }
}

/// What an epoll reports without being asked.
fn always(e: &Epoll) -> u32 {
    if e.singly { bits::ERR } else { bits::ERR | bits::HUP }
}

/// A new or changed registration: where it is ready it goes on the list, to be found when that is collected. What was
/// changed for `now` bits, and must hear of room, says `true`.
#[inline]
fn register(e: &mut Epoll, w: &mut Watch, id: SockId, now: u32) -> bool {
    if now & w.events != 0 && w.place == 0 {
        w.place = e.push(id);
        e.fresh = true;
    }
    w.events & bits::OUT & !now != 0
}

fn find(head: &mut Option<Watch>, epoll: u32) -> Option<&mut Watch> {
    let mut at = head.as_mut()?;
    loop {
        if at.epoll == epoll {
            return Some(at);
        }
        at = at.more.as_deref_mut()?;
    }
}

/// Takes `epoll`'s registration out of the list; there is hardly ever more than one.
fn unlink(slot: &mut Option<Watch>, epoll: u32) -> Option<Watch> {
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

impl Socket {
    fn registration(&self, epoll: u32) -> Option<&Watch> {
        let mut at = match self {
            Socket::Tcp(t) => t.watch.as_ref()?,
            Socket::Listener(l) => l.watch.as_ref()?,
            Socket::Pipe(end) => end.watch.as_ref()?,
            Socket::Epoll(_) => return None,
        };
        loop {
            if at.epoll == epoll {
                return Some(at);
            }
            at = at.more.as_deref()?;
        }
    }

    /// For who reports one event at a time.
    #[inline]
    fn back(&self) -> Back {
        match self {
            Socket::Tcp(t) => Back { unread: !t.rx.is_empty(), reset: t.error == Some(Failure::Reset) },
            _ => Back { unread: false, reset: false },
        }
    }

    /// What holds now, the registrations, and where to note that somebody waits for room.
    #[inline]
    fn watched(&mut self) -> Option<(u32, &mut Option<Watch>, Option<&mut u16>)> {
        match self {
            Socket::Tcp(t) => Some((common_bits(t), &mut t.watch, Some(&mut t.flags))),
            Socket::Listener(l) => Some((listener_bits(l), &mut l.watch, None)),
            Socket::Pipe(end) => Some((end.bits(), &mut end.watch, None)),
            Socket::Epoll(_) => None,
        }
    }
}

impl Sockets {
    /// A new epoll.
    pub fn epoll_create(&mut self) -> Result<SockId, Errno> {
        let epoll = self.epolls.insert();
        self.insert(Socket::Epoll(epoll)).inspect_err(|_| self.epolls.remove(epoll))
    }

    /// A new epoll of mTCP's kind: each [`Ready`] has one bit, and no socket has two of them in one collection, so that what a
    /// program does about the first cannot make the second stale. What holds at once is reported by turns, an error first; HUP
    /// only where it was asked for. While bytes wait for who asked for IN, there is no end of the stream yet; and a reset is the
    /// end of it, IN and RDHUP, an error only for who asked for neither.
    pub fn epoll_create_singly(&mut self) -> Result<SockId, Errno> {
        let id = self.epoll_create()?;
        let epoll = self.epoll(id)?;
        self.epolls.all[epoll as usize].singly = true;
        Ok(id)
    }

    #[inline]
    fn epoll(&self, id: SockId) -> Result<u32, Errno> {
        match self.table.open(id)? {
            Socket::Epoll(epoll) => Ok(*epoll),
            Socket::Tcp(_) | Socket::Listener(_) | Socket::Pipe(_) => Err(Errno::EINVAL),
        }
    }

    /// The registrations of a socket that an epoll may watch. An epoll cannot be watched.
    fn watchable(&mut self, id: SockId) -> Result<&mut Option<Watch>, Errno> {
        self.table.open_mut(id)?.watch().ok_or(Errno::EINVAL)
    }

    /// EPOLL_CTL_ADD.
    pub fn epoll_add(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno> {
        let epoll = self.epoll(epoll)?;
        let Sockets { table, epolls, .. } = self;
        let (now, slot, flags) = table.open_mut(id)?.watched().ok_or(Errno::EINVAL)?;
        if slot.is_some() && find(slot, epoll).is_some() {
            return Err(Errno::EEXIST);
        }
        let e = epolls.all.get_mut(epoll as usize).ok_or(Errno::EBADF)?;
        e.members += 1;
        let Interest { events, trigger, data } = interest;
        let more = slot.take().map(Box::new);
        let events = events | always(e);
        let mut w = Watch { data, more, epoll, events, place: 0, trigger, last: NOTHING, owed: 0 };
        if let (true, Some(flags)) = (register(e, &mut w, id, now), flags) {
            *flags |= flag::NO_SPACE;
        }
        *slot = Some(w);
        Ok(())
    }

    /// EPOLL_CTL_MOD.
    pub fn epoll_modify(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno> {
        let epoll = self.epoll(epoll)?;
        let Sockets { table, epolls, .. } = self;
        let (now, slot, flags) = table.open_mut(id)?.watched().ok_or(Errno::EINVAL)?;
        let w = find(slot, epoll).ok_or(Errno::ENOENT)?;
        let e = epolls.all.get_mut(epoll as usize).ok_or(Errno::EBADF)?;
        (w.events, w.trigger, w.data) = (interest.events | always(e), interest.trigger, interest.data);
        w.owed = 0;
        if let (true, Some(flags)) = (register(e, w, id, now), flags) {
            *flags |= flag::NO_SPACE;
        }
        Ok(())
    }

    /// EPOLL_CTL_DEL.
    pub fn epoll_delete(&mut self, epoll: SockId, id: SockId) -> Result<(), Errno> {
        let epoll = self.epoll(epoll)?;
        let w = unlink(self.watchable(id)?, epoll).ok_or(Errno::ENOENT)?;
        if let Some(full) = self.epolls.unregistered(&w) {
            self.sweep(full);
        }
        Ok(())
    }

    /// Whether something was ready when it was registered since the last `epoll_collect`: worth a look before anything else,
    /// since the answer to what an accepted connection brought goes out a turn sooner.
    pub fn epoll_is_fresh(&mut self, epoll: SockId) -> bool {
        self.epoll(epoll).is_ok_and(|e| self.epolls.all[e as usize].fresh)
    }

    /// Void entries leave a ready list.
    #[cold]
    fn sweep(&mut self, epoll: u32) {
        let Sockets { table, epolls, .. } = self;
        let Some(e) = epolls.all.get_mut(epoll as usize) else { return };
        e.ready.retain(|(id, place)| {
            table.get(*id).and_then(|s| s.registration(epoll)).is_some_and(|w| w.place == *place)
        });
        e.stale = 0;
    }

    /// What holds on a socket now, for `poll` and `select`; an unknown descriptor is `EBADF`.
    pub fn readiness(&self, id: SockId) -> Result<u32, Errno> {
        match self.table.open(id)? {
            Socket::Epoll(epoll) => {
                let holds = |(sock, place): &(SockId, u32)| {
                    self.table.get(*sock).is_some_and(|s| {
                        s.registration(*epoll).is_some_and(|w| w.place == *place && s.bits() & w.events != 0)
                    })
                };
                let ready = self.epolls.all.get(*epoll as usize).is_some_and(|e| e.ready.iter().any(holds));
                Ok(if ready { bits::IN } else { 0 })
            }
            socket => Ok(socket.bits()),
        }
    }

    /// Something happened on a socket: the registrations that it concerns go on their epolls' ready lists.
    #[inline]
    pub(crate) fn mark(&mut self, id: SockId, keys: u32) {
        if let Some(slot) = self.table.get_mut(id).and_then(Socket::watch) {
            self.epolls.wake(slot, id, keys);
        }
    }

    /// Room to write may have come: who missed it hears of it (Linux's sk_stream_write_space).
    pub(crate) fn mark_space(&mut self, id: SockId) {
        if let Some(t) = self.table.tcp(id).filter(|t| t.is(flag::NO_SPACE) && t.has_space()) {
            t.set(flag::NO_SPACE, false);
            self.epolls.wake(&mut t.watch, id, bits::OUT);
        }
    }

    /// Reports ready registrations, at most `out.len()`; how many. Never blocks. `EINVAL` when `out` is empty.
    pub fn epoll_collect(&mut self, epoll: SockId, out: &mut [Ready]) -> Result<usize, Errno> {
        let epoll = self.epoll(epoll)?;
        if out.is_empty() {
            return Err(Errno::EINVAL);
        }
        let Sockets { table, epolls, .. } = self;
        let e = epolls.all.get_mut(epoll as usize).ok_or(Errno::EBADF)?;
        e.fresh = false;
        if e.singly {
            return Ok(self.collect_singly(epoll, out));
        }
        let mut free = out.iter_mut();
        // Once round: level-triggered ones go to the end, to be looked at by the next call.
        for _ in 0..e.ready.len() {
            if free.len() == 0 {
                break;
            }
            let Some((id, place)) = e.ready.pop_front() else { break };
            let found = table.get_mut(id).and_then(Socket::watched).and_then(|(now, slot, flags)| {
                let w = find(slot, epoll).filter(|w| w.place == place)?;
                Some((now, w, flags))
            });
            let Some((now, w, flags)) = found else {
                e.stale = e.stale.saturating_sub(1);
                continue;
            };
            let events = now & w.events;
            if let (true, Some(flags)) = (w.events & bits::OUT & !now != 0, flags) {
                *flags |= flag::NO_SPACE;
            }
            if events != 0 && w.trigger == Trigger::Level {
                e.ready.push_back((id, place));
            } else {
                w.place = 0;
            }
            if events != 0
                && let Some(room) = free.next()
            {
                *room = Ready { events, data: w.data };
                if w.trigger == Trigger::OneShot {
                    w.events = 0;
                }
            }
        }
        let left = free.len();
        Ok(out.len() - left)
    }

    /// [`Sockets::epoll_collect`] of an epoll that reports one event at a time.
    fn collect_singly(&mut self, epoll: u32, out: &mut [Ready]) -> usize {
        let Sockets { table, epolls, .. } = self;
        let Some(e) = epolls.all.get_mut(epoll as usize) else { return 0 };
        let mut n = 0;
        for _ in 0..e.owed.len() {
            if n == out.len() {
                return n;
            }
            let Some(id) = e.owed.pop_front() else { break };
            let Some((now, slot, _)) = table.get_mut(id).and_then(Socket::watched) else { continue };
            let Some(w) = find(slot, epoll).filter(|w| w.owed != 0) else { continue };
            let owed = core::mem::take(&mut w.owed);
            // What has happened since is found below, together with this.
            let left = places(now & w.events) & owed;
            if w.place != 0 || left == 0 {
                continue;
            }
            let place = left.trailing_zeros() as u8;
            out[n] = Ready { events: SINGLY[place as usize], data: w.data };
            n += 1;
            w.owed = left & !(1 << place);
            if w.owed != 0 {
                e.owed.push_back(id);
            }
        }
        for _ in 0..e.ready.len() {
            if n == out.len() {
                break;
            }
            let Some((id, mark)) = e.ready.pop_front() else { break };
            let found = table.get_mut(id).and_then(|s| {
                let back = s.back();
                let (now, slot, flags) = s.watched()?;
                let w = find(slot, epoll).filter(|w| w.place == mark)?;
                Some((now, back, w, flags))
            });
            let Some((now, back, w, flags)) = found else {
                e.stale = e.stale.saturating_sub(1);
                continue;
            };
            if let (true, Some(flags)) = (w.events & bits::OUT & !now != 0, flags) {
                *flags |= flag::NO_SPACE;
            }
            let events = now & w.events;
            if events == 0 {
                w.place = 0;
                continue;
            }
            match w.trigger {
                Trigger::Level => {
                    w.last = w.next(back.of(events));
                    e.ready.push_back((id, mark));
                }
                Trigger::Edge => {
                    // The bytes come first in any case, and the end is owed.
                    let events = Back { unread: false, ..back }.of(events);
                    (w.place, w.last) = (0, NOTHING);
                    w.last = w.next(events);
                    // An error says it all.
                    w.owed = if w.last == 0 { 0 } else { places(events) & !(1 << w.last) };
                    if w.owed != 0 {
                        e.owed.push_back(id);
                    }
                }
                Trigger::OneShot => {
                    // Round and round here too: each time it is asked for again.
                    w.place = 0;
                    w.last = w.next(back.of(events));
                    w.events = 0;
                }
            }
            out[n] = Ready { events: SINGLY[w.last as usize], data: w.data };
            n += 1;
        }
        n
    }

    /// A closed socket is registered nowhere.
    pub(crate) fn unwatch(&mut self, id: SockId) {
        let Some(slot) = self.table.get_mut(id).and_then(Socket::watch) else { return };
        if slot.is_some() {
            let head = slot.take();
            self.unregister(head);
        }
    }

    /// The registrations of a socket are gone with it.
    #[inline]
    pub(crate) fn unregister(&mut self, head: Option<Watch>) {
        let mut next = head;
        while let Some(w) = next {
            if let Some(full) = self.epolls.unregistered(&w) {
                self.sweep(full);
            }
            next = w.more.map(|b| *b);
        }
    }

    /// A closed epoll's registrations are void; its number may mean another one soon.
    pub(crate) fn forget_epoll(&mut self, id: SockId) {
        let Ok(epoll) = self.epoll(id) else { return };
        let mut left = self.epolls.all[epoll as usize].members;
        self.epolls.remove(epoll);
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
        let ((jobs, _jobs), (_events, events)) = (mem::ring::ring(4).unwrap(), mem::ring::ring(4).unwrap());
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
            assert!(s.epolls.all[s.epoll(epoll).unwrap() as usize].ready.len() < 200);
        }
        let mut out = [Ready { events: 0, data: 0 }; 4];
        assert_eq!(s.epoll_collect(epoll, &mut out), Ok(1));
        assert_eq!(out[0], Ready { events: bits::OUT | bits::HUP, data: 7 });
        s.close(steady).unwrap();
        let number = s.epoll(epoll).unwrap() as usize;
        assert_eq!(s.epolls.all[number].members, 0);
        assert_eq!(s.epoll_collect(epoll, &mut out), Ok(0));
        assert_eq!(s.epolls.all[number].stale, 0);
    }
}
