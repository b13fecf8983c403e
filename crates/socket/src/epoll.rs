//! Readiness, as epoll(7) defines it: level, edge, one-shot; several epolls.

use std::collections::VecDeque;

use crate::errno::Errno;
use crate::sockets::Sockets;
use crate::table::{ListenPhase, Listening, Phase, SockId, Socket, Tcp, flag};

/// Event bits, with Linux's numbers.
pub mod bits {
    /// Something to read, or to accept.
    pub const IN: u32 = 0x001;
    /// Room to write.
    pub const OUT: u32 = 0x004;
    /// An error waits in SO_ERROR; always reported.
    pub const ERR: u32 = 0x008;
    /// Both directions are closed; always reported.
    pub const HUP: u32 = 0x010;
    /// The peer has finished writing.
    pub const RDHUP: u32 = 0x2000;
}

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
    epoll: SockId,
    data: u64,
    events: u32,
    trigger: Trigger,
    queued: bool,
    /// Something happened since the last report.
    fresh: bool,
    /// A one-shot that has fired.
    spent: bool,
    /// Registrations with other epolls.
    more: Option<Box<Watch>>,
}

#[derive(Default)]
pub(crate) struct Epoll {
    ready: VecDeque<SockId>,
}

fn find<'w>(head: &'w mut Option<Watch>, epoll: SockId) -> Option<&'w mut Watch> {
    let mut at = head.as_mut()?;
    loop {
        if at.epoll == epoll {
            return Some(at);
        }
        at = at.more.as_deref_mut()?;
    }
}

pub(crate) fn tcp_bits(t: &Tcp) -> u32 {
    let failed = t.error.is_some();
    match t.phase {
        // Linux: an unconnected stream socket is writable and hung up.
        Phase::Fresh => bits::OUT | bits::HUP,
        Phase::Asked | Phase::Opening => 0,
        Phase::Failed => {
            bits::IN | bits::OUT | bits::HUP | bits::RDHUP | if t.is(flag::ERROR_NEW) { bits::ERR } else { 0 }
        }
        Phase::Closing => bits::HUP,
        Phase::Open => {
            let fin = t.is(flag::FIN) || failed;
            let shut = t.is(flag::SHUT_WRITE) || failed;
            let mut b = 0;
            if !t.rx.is_empty() || fin || t.is(flag::SHUT_READ) {
                b |= bits::IN;
            }
            if fin || t.is(flag::SHUT_READ) {
                b |= bits::RDHUP;
            }
            if shut || (writable(t) && !t.is(flag::STARVED)) {
                b |= bits::OUT;
            }
            if fin && shut {
                b |= bits::HUP;
            }
            if failed && t.is(flag::ERROR_NEW) {
                b |= bits::ERR;
            }
            b
        }
    }
}

/// Linux's `sk_stream_is_writeable`: at least a third of the buffer is free.
fn writable(t: &Tcp) -> bool {
    t.send_buffer.saturating_sub(t.in_flight) >= t.send_buffer / 3
}

fn listener_bits(l: &Listening) -> u32 {
    match l.phase {
        ListenPhase::Failed(_) => bits::ERR | bits::HUP,
        _ if !l.queue.is_empty() => bits::IN,
        _ => 0,
    }
}

impl Sockets {
    /// A new epoll.
    pub fn epoll_create(&mut self) -> Result<SockId, Errno> {
        self.table.insert(Socket::Epoll(Box::default())).ok_or(Errno::EMFILE)
    }

    fn epoll(&mut self, id: SockId) -> Result<&mut Epoll, Errno> {
        match self.table.get_mut(id).ok_or(Errno::EBADF)? {
            Socket::Epoll(e) => Ok(e),
            Socket::Tcp(_) | Socket::Listener(_) => Err(Errno::EINVAL),
        }
    }

    /// EPOLL_CTL_ADD.
    pub fn epoll_add(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno> {
        self.epoll(epoll)?;
        let slot = self.table.get_mut(id).ok_or(Errno::EBADF)?.watch().ok_or(Errno::EINVAL)?;
        if find(slot, epoll).is_some() {
            return Err(Errno::EEXIST);
        }
        let more = slot.take().map(Box::new);
        let Interest { events, trigger, data } = interest;
        *slot = Some(Watch { epoll, data, events, trigger, queued: false, fresh: true, spent: false, more });
        self.mark(id);
        Ok(())
    }

    /// EPOLL_CTL_MOD.
    pub fn epoll_modify(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno> {
        self.epoll(epoll)?;
        let slot = self.table.get_mut(id).ok_or(Errno::EBADF)?.watch().ok_or(Errno::EINVAL)?;
        let w = find(slot, epoll).ok_or(Errno::ENOENT)?;
        (w.events, w.trigger, w.data) = (interest.events, interest.trigger, interest.data);
        (w.fresh, w.spent) = (true, false);
        self.mark(id);
        Ok(())
    }

    /// EPOLL_CTL_DEL.
    pub fn epoll_delete(&mut self, epoll: SockId, id: SockId) -> Result<(), Errno> {
        self.epoll(epoll)?;
        let slot = self.table.get_mut(id).ok_or(Errno::EBADF)?.watch().ok_or(Errno::EINVAL)?;
        find(slot, epoll).ok_or(Errno::ENOENT)?;
        unlink(slot, epoll);
        Ok(())
    }

    /// What holds on a socket now, for `poll` and `select`; an unknown descriptor is `EBADF`.
    pub fn readiness(&self, id: SockId) -> Result<u32, Errno> {
        Ok(match self.table.get(id).ok_or(Errno::EBADF)? {
            Socket::Tcp(t) => tcp_bits(t),
            Socket::Listener(l) => listener_bits(l),
            Socket::Epoll(e) => if e.ready.is_empty() { 0 } else { bits::IN },
        })
    }

    /// Something happened on a socket: its registrations go on their epolls' ready lists.
    pub(crate) fn mark(&mut self, id: SockId) {
        let Some(Some(slot)) = self.table.get_mut(id).map(|s| s.watch()) else { return };
        let mut lists = [SockId(u32::MAX); 4];
        let mut n = 0;
        let mut next = slot.as_mut();
        while let Some(w) = next {
            w.fresh = true;
            if !w.queued && !w.spent && n < lists.len() {
                w.queued = true;
                lists[n] = w.epoll;
                n += 1;
            }
            next = w.more.as_deref_mut();
        }
        for epoll in &lists[..n] {
            match self.table.get_mut(*epoll) {
                Some(Socket::Epoll(e)) => e.ready.push_back(id),
                // The epoll was closed: its registrations are void.
                _ => continue,
            }
        }
    }

    /// Reports ready registrations, at most `out.len()`; how many. Never blocks.
    pub fn epoll_collect(&mut self, epoll: SockId, out: &mut [Ready]) -> Result<usize, Errno> {
        let waiting = self.epoll(epoll)?.ready.len();
        let mut n = 0;
        for _ in 0..waiting {
            if n == out.len() {
                break;
            }
            let Some(id) = self.epoll(epoll)?.ready.pop_front() else { break };
            let Some(socket) = self.table.get_mut(id) else { continue };
            let now = match socket {
                Socket::Tcp(t) => tcp_bits(t),
                Socket::Listener(l) => listener_bits(l),
                Socket::Epoll(_) => continue,
            };
            // A stale entry: closed and reused, or deleted since.
            let Some(w) = socket.watch().and_then(|slot| find(slot, epoll)).filter(|w| w.queued) else { continue };
            w.queued = false;
            let events = now & (w.events | bits::ERR | bits::HUP);
            if events == 0 || w.spent || (w.trigger == Trigger::Edge && !w.fresh) {
                continue;
            }
            w.fresh = false;
            out[n] = Ready { events, data: w.data };
            n += 1;
            match w.trigger {
                Trigger::Level => {
                    // Looked at again by the next call, which finds out whether it still holds.
                    w.queued = true;
                    self.epoll(epoll)?.ready.push_back(id);
                }
                Trigger::Edge => {}
                Trigger::OneShot => w.spent = true,
            }
        }
        Ok(n)
    }
}

impl Sockets {
    /// A closed epoll's registrations are void; its number may mean another one soon.
    pub(crate) fn forget_epoll(&mut self, epoll: SockId) {
        for id in self.table.ids() {
            let Some(Some(slot)) = self.table.get_mut(id).map(|s| s.watch()) else { continue };
            unlink(slot, epoll);
        }
    }
}

/// Rebuilds the list without `epoll`'s; there is hardly ever more than one.
fn unlink(slot: &mut Option<Watch>, epoll: SockId) {
    let mut rest = slot.take();
    while let Some(mut w) = rest {
        rest = w.more.take().map(|b| *b);
        if w.epoll != epoll {
            w.more = slot.take().map(Box::new);
            *slot = Some(w);
        }
    }
}
