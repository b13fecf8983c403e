//! The descriptor table: sockets, listeners, pipes and epolls in one space of small dense numbers.

use std::collections::VecDeque;

use mem::{Chain, Paged};
use protocol::{ConnId, Endpoint, Failure, ListenerId};
use wire::Addr;

use crate::epoll::Watch;
use crate::errno::Errno;
use crate::locals::{ANY_V4, ANY_V6};
use crate::options::Cold;
use crate::pipe::PipeEnd;

/// A socket, listener, end of a pipe or epoll of one lane: a small number, reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SockId(pub u32);

/// What a TCP socket is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `socket`, perhaps `bind`.
    Fresh,
    /// `connect` was asked for; the stack has not named the connection.
    Asked,
    /// The SYN is on its way.
    Opening,
    /// Established, perhaps half-closed, perhaps failed since.
    Open,
    /// `connect` failed.
    Failed,
    /// Closed by the application in `Asked`: the number is kept until the stack's answer, which names it.
    Abandoned,
    /// Closed by the application, which waits for the end of SO_LINGER.
    Lingering,
    /// A linger that has ended; `error` says how.
    Lingered,
    /// Given away by the application; the stack has not answered.
    Releasing,
    /// Given away, for another thread to adopt.
    Released,
}

pub(crate) mod flag {
    /// The peer has sent FIN.
    pub const FIN: u16 = 1;
    pub const SHUT_WRITE: u16 = 2;
    pub const SHUT_READ: u16 = 4;
    pub const NO_DELAY: u16 = 8;
    pub const CORK: u16 = 16;
    pub const KEEPALIVE: u16 = 32;
    pub const REUSE_ADDR: u16 = 64;
    pub const REUSE_PORT: u16 = 128;
    /// `error` has not been reported.
    pub const ERROR_NEW: u16 = 256;
    /// A write found no chunk, or no slot in the ring.
    pub const STARVED: u16 = 512;
    pub const V6: u16 = 1024;
    pub const BOUND: u16 = 2048;
    pub const V6_ONLY: u16 = 4096;
    /// Waits in an accept queue: no descriptor of the application yet.
    pub const QUEUED: u16 = 8192;
    /// Somebody found the send buffer full and wants to hear of room (Linux's SOCK_NOSPACE).
    pub const NO_SPACE: u16 = 16384;
    /// What an accepted socket takes over from its listener.
    /// A connect that succeeds has yet to be told so (Linux: once 0, then EISCONN).
    pub const CONNECTING: u16 = 32768;
    pub const INHERITED: u16 = NO_DELAY | CORK | KEEPALIVE | REUSE_ADDR | REUSE_PORT | V6 | V6_ONLY;
}

/// A TCP socket. An idle connection holds this and nothing else here.
pub(crate) struct Tcp {
    pub phase: Phase,
    pub error: Option<Failure>,
    pub flags: u16,
    pub local_port: u16,
    pub remote_port: u16,
    pub conn: ConnId,
    /// Received and not read.
    pub rx: Chain,
    /// Read and not reported to the stack.
    pub unreported: u32,
    /// Written since the stream began, modulo 2^32.
    pub written: u32,
    /// Written and, as far as reported, not acknowledged.
    pub in_flight: u32,
    /// Never more than the stack's: a part of it is what acknowledged bytes are told by.
    pub send_buffer: u32,
    /// Never more than the stack's: a part of it is what read bytes are reported by. Within TCP_WINDOW_CLAMP.
    pub receive_buffer: u32,
    /// Our address, by its number ([`Locals`](crate::locals::Locals)).
    pub local: u16,
    pub remote_addr: Addr,
    pub watch: Option<Watch>,
    /// Options that few set.
    pub cold: Option<Box<Cold>>,
}

impl Tcp {
    pub fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub fn set(&mut self, flag: u16, on: bool) {
        if on { self.flags |= flag } else { self.flags &= !flag }
    }

    /// Whether the socket's family has this address: an IPv6 one has IPv4's as mapped ones, unless IPV6_V6ONLY is set.
    pub fn speaks(&self, addr: Addr) -> bool {
        match (addr.is_v4(), self.is(flag::V6)) {
            (true, true) => !self.is(flag::V6_ONLY),
            (v4, v6) => v4 != v6,
        }
    }

    pub fn remote(&self) -> Endpoint {
        Endpoint { addr: self.remote_addr, port: self.remote_port }
    }

    pub fn set_remote(&mut self, at: Endpoint) {
        (self.remote_addr, self.remote_port) = (at.addr, at.port);
    }

    /// Bytes that a read waits for (SO_RCVLOWAT): within what the window, and memory, let arrive.
    pub fn receive_low(&self) -> usize {
        let low = self.cold.as_ref().filter(|c| !c.low_is_off).map_or(1, |c| c.receive_low);
        low.clamp(1, self.receive_buffer / 2) as usize
    }

    /// Whether a read would give something, or the end.
    #[inline]
    pub fn readable(&self) -> bool {
        let enough = if self.cold.is_none() { !self.rx.is_empty() } else { self.rx.len() >= self.receive_low() };
        enough || self.receive_over()
    }

    /// What TCP_NOTSENT_LOWAT allows to be written: up to the mark, the burst that crosses it whole, as on Linux.
    pub fn unsent_room(&self) -> u32 {
        let Some(c) = self.cold.as_ref().filter(|c| c.not_sent_low > 0) else { return u32::MAX };
        let limit = match c.burst {
            0 => c.not_sent_low,
            burst => c.not_sent_low.checked_next_multiple_of(burst).unwrap_or(u32::MAX),
        };
        limit.saturating_sub(self.written.wrapping_sub(c.sent))
    }

    /// Linux's `tcp_stream_memory_free` for who is to be woken: less than half of TCP_NOTSENT_LOWAT waits.
    fn unsent_is_low(&self) -> bool {
        let waits = |sent: u32| self.written.wrapping_sub(sent) as u64;
        self.cold.as_ref().is_none_or(|c| c.not_sent_low == 0 || 2 * waits(c.sent) < c.not_sent_low as u64)
    }

    /// Linux's `sk_stream_is_writeable`: a third of the buffer is free.
    pub fn has_space(&self) -> bool {
        self.unsent_is_low() && !self.is(flag::STARVED) && self.third_is_free()
    }

    /// Of the send buffer.
    #[inline]
    pub fn third_is_free(&self) -> bool {
        self.send_buffer.saturating_sub(self.in_flight) >= self.send_buffer / 3
    }

    /// As `socket` and `bind` had left it.
    pub fn reset_to_fresh(&mut self) {
        let v6 = self.is(flag::V6);
        let any = if v6 { Addr::UNSPECIFIED_V6 } else { Addr::UNSPECIFIED_V4 };
        self.phase = Phase::Fresh;
        self.error = None;
        self.flags &= flag::INHERITED | flag::BOUND;
        (self.unreported, self.in_flight, self.written) = (0, 0, 0);
        self.set_remote(Endpoint { addr: any, port: 0 });
        if !self.is(flag::BOUND) {
            (self.local, self.local_port) = (if v6 { ANY_V6 } else { ANY_V4 }, 0);
        }
    }

    /// Nothing more will be received.
    pub fn receive_over(&self) -> bool {
        self.is(flag::FIN | flag::SHUT_READ) || self.error.is_some()
    }

    pub fn fail(&mut self, failure: Failure) {
        if self.error.is_none() {
            self.error = Some(failure);
            self.set(flag::ERROR_NEW, true);
        }
    }

    /// The error that waits in SO_ERROR, which is then reported.
    pub fn take_error(&mut self) -> Option<Errno> {
        if !self.is(flag::ERROR_NEW) {
            return None;
        }
        self.set(flag::ERROR_NEW, false);
        self.error.map(|failure| match failure {
            // Linux's tcp_reset: in CLOSE-WAIT, where only we would still write, it is a broken pipe.
            Failure::Reset if self.is(flag::FIN) && !self.is(flag::SHUT_WRITE) => Errno::EPIPE,
            failure => failure.into(),
        })
    }
}

pub(crate) enum ListenPhase {
    Asked,
    Open(ListenerId),
    Failed(Failure),
    /// Closed before the stack had named it.
    Closing,
}

pub(crate) struct Listening {
    pub phase: ListenPhase,
    pub local: Endpoint,
    pub backlog: u32,
    pub queue: VecDeque<SockId>,
    /// Taken and not reported.
    pub taken: u32,
    /// What accepted sockets inherit, and more.
    pub flags: u16,
    pub send_buffer: u32,
    pub receive_buffer: u32,
    /// A buffer was set while it listened: the stack may have made connections before that which are accepted after it.
    pub resized: bool,
    pub cold: Option<Box<Cold>>,
    pub watch: Option<Watch>,
}

pub(crate) enum Socket {
    Tcp(Tcp),
    Listener(Box<Listening>),
    Pipe(Box<PipeEnd>),
    /// Its place among the epolls.
    Epoll(u32),
}

impl Socket {
    pub fn watch(&mut self) -> Option<&mut Option<Watch>> {
        match self {
            Socket::Tcp(t) => Some(&mut t.watch),
            Socket::Listener(l) => Some(&mut l.watch),
            Socket::Pipe(end) => Some(&mut end.watch),
            Socket::Epoll(_) => None,
        }
    }

    /// Whether the application has the number.
    fn is_open(&self) -> bool {
        match self {
            Socket::Tcp(t) => {
                !t.is(flag::QUEUED)
                    && !matches!(
                        t.phase,
                        Phase::Abandoned | Phase::Lingering | Phase::Lingered | Phase::Releasing | Phase::Released
                    )
            }
            Socket::Listener(l) => !matches!(l.phase, ListenPhase::Closing),
            Socket::Pipe(_) | Socket::Epoll(_) => true,
        }
    }
}

/// Numbers to sockets; the number freed last is given out first.
pub(crate) struct Table {
    slots: Paged<Option<Socket>>,
    free: Vec<u32>,
    max: u32,
    /// Sockets in accept queues, which do not count against `max`: their number is bounded by the backlogs.
    queued: u32,
}

impl Table {
    pub fn new(max: u32) -> Table {
        Table { slots: Paged::new(), free: Vec::new(), max, queued: 0 }
    }

    #[inline]
    fn put(&mut self, socket: Socket) -> SockId {
        if let Some(i) = self.free.pop() {
            if let Some(slot) = self.slots.get_mut(i as usize) {
                *slot = Some(socket);
            }
            return SockId(i);
        }
        self.slots.push(Some(socket));
        SockId(self.slots.len() as u32 - 1)
    }

    #[inline]
    pub fn insert(&mut self, socket: Socket) -> Option<SockId> {
        (self.len() < self.max as usize).then(|| self.put(socket))
    }

    /// Whether there are as many descriptors as there may be.
    pub fn is_full(&self) -> bool {
        self.len() >= self.max as usize
    }

    /// A connection that nobody has accepted; `tcp` must have the flag.
    #[inline]
    pub fn insert_queued(&mut self, tcp: Tcp) -> SockId {
        debug_assert!(tcp.is(flag::QUEUED));
        self.queued += 1;
        self.put(Socket::Tcp(tcp))
    }

    /// Makes a queued connection a descriptor; `false` when there are too many.
    pub fn accept(&mut self, id: SockId) -> bool {
        if self.len() >= self.max as usize {
            return false;
        }
        if let Some(t) = self.tcp(id).filter(|t| t.is(flag::QUEUED)) {
            t.set(flag::QUEUED, false);
            self.queued -= 1;
        }
        true
    }

    /// Frees a number; what the socket held of the pool must be gone.
    #[inline]
    pub fn remove(&mut self, id: SockId) {
        let Some(slot @ Some(_)) = self.slots.get_mut(id.0 as usize) else { return };
        if let Some(Socket::Tcp(t)) = slot {
            self.queued -= t.is(flag::QUEUED) as u32;
        }
        *slot = None;
        self.free.push(id.0);
    }

    /// What the application may name.
    pub fn open(&self, id: SockId) -> Result<&Socket, Errno> {
        self.get(id).filter(|s| s.is_open()).ok_or(Errno::EBADF)
    }

    /// What the application may name.
    pub fn open_mut(&mut self, id: SockId) -> Result<&mut Socket, Errno> {
        self.get_mut(id).filter(|s| s.is_open()).ok_or(Errno::EBADF)
    }

    /// The same, when it is a TCP socket that neither listens nor polls.
    #[inline]
    pub fn open_tcp(&mut self, id: SockId) -> Result<&mut Tcp, Errno> {
        match self.open_mut(id)? {
            Socket::Tcp(t) => Ok(t),
            Socket::Listener(_) => Err(Errno::EOPNOTSUPP),
            Socket::Pipe(_) | Socket::Epoll(_) => Err(Errno::ENOTSOCK),
        }
    }

    pub fn get(&self, id: SockId) -> Option<&Socket> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, id: SockId) -> Option<&mut Socket> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    /// Hints that the socket is used soon.
    pub fn prefetch(&self, id: SockId) {
        if let Some(slot) = self.slots.get(id.0 as usize) {
            mem::prefetch::whole(slot);
        }
    }

    pub fn tcp(&mut self, id: SockId) -> Option<&mut Tcp> {
        match self.get_mut(id)? {
            Socket::Tcp(t) => Some(t),
            Socket::Listener(_) | Socket::Pipe(_) | Socket::Epoll(_) => None,
        }
    }

    pub fn listener(&mut self, id: SockId) -> Option<&mut Listening> {
        match self.get_mut(id)? {
            Socket::Listener(l) => Some(l),
            Socket::Tcp(_) | Socket::Pipe(_) | Socket::Epoll(_) => None,
        }
    }

    pub fn pipe(&mut self, id: SockId) -> Option<&mut PipeEnd> {
        match self.get_mut(id)? {
            Socket::Pipe(end) => Some(end),
            Socket::Tcp(_) | Socket::Listener(_) | Socket::Epoll(_) => None,
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = SockId> + use<> {
        (0..self.slots.len() as u32).map(SockId)
    }

    /// Descriptors that count against the limit.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.queued as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        // 350 bytes for an idle connection in the whole process: here at most a third of it, with the table by connection.
        assert!(size_of::<Option<Socket>>() + size_of::<u32>() <= 116, "{}", size_of::<Option<Socket>>());
    }
}
