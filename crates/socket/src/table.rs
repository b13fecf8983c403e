//! The descriptor table: sockets, listeners and epolls in one space of small dense numbers.

use std::collections::VecDeque;

use mem::Chain;
use stack::channel::{ConnId, Endpoint, Failure, ListenerId};

use crate::epoll::{Epoll, Watch};
use crate::options::Cold;

/// A socket, listener or epoll of one lane: a small number, reused.
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
    /// Closed by the application before the stack had named it, or waiting for the end of a linger.
    Closing,
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
    /// A write found no chunk.
    pub const STARVED: u16 = 512;
    pub const V6: u16 = 1024;
    pub const BOUND: u16 = 2048;
    pub const V6_ONLY: u16 = 4096;
    /// Waits in an accept queue: no descriptor of the application yet.
    pub const QUEUED: u16 = 8192;
}

/// A TCP socket. An idle connection holds this and nothing else here.
pub(crate) struct Tcp {
    pub phase: Phase,
    pub error: Option<Failure>,
    pub flags: u16,
    pub conn: ConnId,
    /// Received and not read.
    pub rx: Chain,
    /// Read and not reported to the stack.
    pub unreported: u32,
    /// Written and, as far as reported, not acknowledged.
    pub in_flight: u32,
    pub send_buffer: u32,
    pub receive_buffer: u32,
    pub local: Endpoint,
    pub remote: Endpoint,
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
    /// What accepted sockets inherit.
    pub flags: u16,
    pub send_buffer: u32,
    pub receive_buffer: u32,
    pub cold: Option<Box<Cold>>,
    pub watch: Option<Watch>,
}

pub(crate) enum Socket {
    Tcp(Tcp),
    Listener(Box<Listening>),
    Epoll(Box<Epoll>),
}

impl Socket {
    pub fn watch(&mut self) -> Option<&mut Option<Watch>> {
        match self {
            Socket::Tcp(t) => Some(&mut t.watch),
            Socket::Listener(l) => Some(&mut l.watch),
            Socket::Epoll(_) => None,
        }
    }
}

/// Numbers to sockets; the number freed last is given out first.
pub(crate) struct Table {
    slots: Vec<Option<Socket>>,
    free: Vec<u32>,
    max: u32,
}

impl Table {
    pub fn new(max: u32) -> Table {
        Table { slots: Vec::new(), free: Vec::new(), max }
    }

    pub fn insert(&mut self, socket: Socket) -> Option<SockId> {
        if let Some(i) = self.free.pop() {
            self.slots[i as usize] = Some(socket);
            return Some(SockId(i));
        }
        if self.slots.len() >= self.max as usize {
            return None;
        }
        self.slots.push(Some(socket));
        Some(SockId(self.slots.len() as u32 - 1))
    }

    pub fn remove(&mut self, id: SockId) -> Option<Socket> {
        let socket = self.slots.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        Some(socket)
    }

    pub fn get(&self, id: SockId) -> Option<&Socket> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, id: SockId) -> Option<&mut Socket> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    pub fn tcp(&mut self, id: SockId) -> Option<&mut Tcp> {
        match self.get_mut(id)? {
            Socket::Tcp(t) => Some(t),
            Socket::Listener(_) | Socket::Epoll(_) => None,
        }
    }

    pub fn listener(&mut self, id: SockId) -> Option<&mut Listening> {
        match self.get_mut(id)? {
            Socket::Listener(l) => Some(l),
            Socket::Tcp(_) | Socket::Epoll(_) => None,
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = SockId> + use<> {
        (0..self.slots.len() as u32).map(SockId)
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
