//! Waiting for many sockets at once: epoll's rules, level, edge and one-shot.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::socket::{Ready, SockId, Sockets, bits};

use crate::lane::{Lane, error};
use crate::listener::TcpListener;
use crate::stream::TcpStream;

pub use ::socket::Trigger;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    bits: u32,
}

impl Interest {
    /// Something to read or to accept, or the end of the stream.
    pub const READ: Interest = Interest { bits: bits::IN | bits::RDHUP };
    /// Room to write.
    pub const WRITE: Interest = Interest { bits: bits::OUT };
    /// Either.
    pub const BOTH: Interest = Interest { bits: bits::IN | bits::RDHUP | bits::OUT };
    /// Only what is always reported: errors, and both directions closed.
    pub const NONE: Interest = Interest { bits: 0 };
}

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The registration's.
    pub key: u64,
    events: u32,
}

impl Event {
    /// A read or accept will not block.
    pub fn is_readable(&self) -> bool {
        self.events & (bits::IN | bits::ERR | bits::HUP) != 0
    }
    /// A write will not block.
    pub fn is_writable(&self) -> bool {
        self.events & (bits::OUT | bits::ERR | bits::HUP) != 0
    }
    /// The peer has finished writing.
    pub fn is_read_closed(&self) -> bool {
        self.events & (bits::RDHUP | bits::HUP) != 0
    }
    /// An error waits in [`TcpStream::take_error`].
    pub fn is_error(&self) -> bool {
        self.events & bits::ERR != 0
    }
}

/// Room for events.
pub struct Events {
    ready: Vec<Ready>,
    len: usize,
}

impl Events {
    /// Room for `n` events of one wait, at least one.
    pub fn with_capacity(n: usize) -> Events {
        Events { ready: vec![Ready { events: 0, data: 0 }; n.max(1)], len: 0 }
    }

    /// What the last wait gave.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.ready[..self.len].iter().map(|r| Event { key: r.data, events: r.events })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A socket that can be waited for.
pub trait Source {
    #[doc(hidden)]
    fn sock(&self) -> SockId;
}

impl Source for TcpStream {
    fn sock(&self) -> SockId {
        self.id
    }
}

impl Source for TcpListener {
    fn sock(&self) -> SockId {
        self.id
    }
}

/// Waits for many sockets of one lane.
pub struct Poller {
    pub(crate) lane: Lane,
    pub(crate) id: SockId,
}

fn interest(i: Interest, trigger: Trigger, key: u64) -> ::socket::Interest {
    ::socket::Interest { events: i.bits, trigger, data: key }
}

impl Poller {
    /// Registers a socket under `key`; `AlreadyExists` when it is.
    pub fn add(&self, source: &impl Source, key: u64, i: Interest, trigger: Trigger) -> io::Result<()> {
        self.lane.with(|s| s.epoll_add(self.id, source.sock(), interest(i, trigger, key)))
    }

    /// Changes a registration, and arms a one-shot again.
    pub fn modify(&self, source: &impl Source, key: u64, i: Interest, trigger: Trigger) -> io::Result<()> {
        self.lane.with(|s| s.epoll_modify(self.id, source.sock(), interest(i, trigger, key)))
    }

    /// Ends a registration; closing the socket does too.
    pub fn delete(&self, source: &impl Source) -> io::Result<()> {
        self.lane.with(|s| s.epoll_delete(self.id, source.sock()))
    }

    /// Waits for events, a [`Waker`](crate::Waker) or the end of `limit`; how many events there are.
    pub fn wait(&self, events: &mut Events, limit: Option<Duration>) -> io::Result<usize> {
        let woken = &self.lane.shared.woken;
        let is_woken = || woken.load(Ordering::Relaxed);
        let mut app = self.lane.shared.app.borrow_mut();
        events.len = app.epoll_wait(self.id, &mut events.ready, limit, is_woken).map_err(error)?;
        // Whoever has events comes back for it.
        if events.len == 0 && is_woken() {
            woken.swap(false, Ordering::Acquire);
        }
        Ok(events.len)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if let Ok(mut app) = self.lane.shared.app.try_borrow_mut() {
            // Nothing but the table's own bookkeeping can object, and it has nothing left to lose.
            let _ = app.sockets.close(self.id);
        }
    }
}

impl Lane {
    /// A poller for many sockets of this lane.
    pub fn poller(&self) -> io::Result<Poller> {
        let id = self.with(Sockets::epoll_create)?;
        Ok(Poller { lane: self.clone(), id })
    }
}
