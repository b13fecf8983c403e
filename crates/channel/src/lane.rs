//! The lane's engine: our own TCP. An operation that can finish at once does so inside its call; others wait for the socket's
//! readiness, which an edge-triggered epoll of the channel's tells.

mod parts;

use std::collections::HashSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ::socket::{Errno, Interest, ListenOptions, Ready, RecvFlags, Shutdown, SockId, SockOption, Trigger, bits};
use protocol::Endpoint;
use runtime::{App, Claim};

use crate::address::Address;
use crate::buffer::Place;
use crate::core::{Core, Kind, LightOf, ListenerOf, Stage, Target, Way};
use crate::errno;
use crate::event::{Data, Received, Socket};
use parts::Parts;

use crate::uring::pool::Memory;

/// Readiness that is looked at in one go.
const READY: usize = 256;
/// How far ahead of what is gone on with the next is read.
const AHEAD: usize = 4;
/// In the number of a buffer: it is the lane's.
pub(crate) const OURS: u32 = 1 << 31;

/// Memory for `recv`.
struct Buffers {
    memory: Memory,
    free: Vec<u16>,
    out: Vec<bool>,
    /// Handles that found none free.
    starving: HashSet<(u32, u32)>,
}

/// The lane's engine of a channel.
pub(crate) struct Lane {
    pub app: App,
    epoll: SockId,
    ready: Vec<Ready>,
    buffers: Option<Buffers>,
    pub parts: Vec<Parts>,
}

fn error(e: Errno) -> io::Error {
    errno(e.number())
}

fn endpoint(address: &Address) -> io::Result<Endpoint> {
    let ip = address.ip()?;
    Ok(Endpoint { addr: ip.ip().into(), port: ip.port() })
}

fn address(e: Endpoint) -> Address {
    std::net::SocketAddr::new(e.addr.to_ip(), e.port).into()
}

fn interest(handle: u64) -> Interest {
    Interest { events: bits::IN | bits::OUT | bits::RDHUP, trigger: Trigger::Edge, data: handle }
}

/// How an attempt ended.
enum Step {
    /// Not yet.
    Waits,
    Done(io::Result<usize>, Data),
}

fn step(result: Result<usize, Errno>) -> Step {
    match result {
        Err(Errno::EAGAIN) => Step::Waits,
        other => Step::Done(other.map_err(error), Data::None),
    }
}

impl Lane {
    pub fn new(mut app: App) -> io::Result<Lane> {
        let epoll = app.sockets.epoll_create().map_err(error)?;
        Ok(Lane { app, epoll, ready: vec![Ready { events: 0, data: 0 }; READY], buffers: None, parts: Vec::new() })
    }

    /// What wakes a wait of this lane's application.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.app.bell()
    }

    pub fn socket(&mut self, v6: bool) -> io::Result<SockId> {
        self.app.sockets.socket(v6).map_err(error)
    }

    pub fn bind(&mut self, sock: SockId, to: &Address) -> io::Result<()> {
        self.app.sockets.bind(sock, endpoint(to)?).map_err(error)
    }

    /// Listens; whatever the kernel must grant for it comes with the socket.
    pub fn listen(&mut self, at: &Address, backlog: i32) -> io::Result<(SockId, Option<Claim>)> {
        let wanted = at.ip()?;
        let sock = self.socket(wanted.is_ipv6())?;
        let tried = self.bind(sock, at).and_then(|()| self.listen_on(sock, backlog));
        tried.map(|claim| (sock, claim)).inspect_err(|_| self.app.sockets.close_behind(sock))
    }

    /// A socket of the lane's listens where it is bound; what the kernel must grant for it comes back.
    pub fn listen_on(&mut self, sock: SockId, backlog: i32) -> io::Result<Option<Claim>> {
        self.app.listen(sock, backlog.max(1) as u32)
    }

    /// Changes how many may wait at a listener.
    pub fn set_backlog(&mut self, sock: SockId, backlog: i32) -> io::Result<()> {
        self.app.sockets.listen(sock, ListenOptions { backlog: backlog.max(1) as u32 }).map_err(error)
    }

    pub fn local(&mut self, sock: SockId) -> io::Result<Address> {
        self.app.sockets.local(sock).map(address).map_err(error)
    }

    pub fn remote(&mut self, sock: SockId) -> io::Result<Address> {
        self.app.sockets.remote(sock).map(address).map_err(error)
    }

    pub fn set_option(&mut self, sock: SockId, option: SockOption) -> io::Result<()> {
        self.app.sockets.set_option(sock, option).map_err(error)
    }

    pub fn option(&mut self, sock: SockId, like: SockOption) -> io::Result<SockOption> {
        self.app.sockets.option(sock, like).map_err(error)
    }

    /// SO_ERROR.
    pub fn take_error(&mut self, sock: SockId) -> io::Result<Option<io::Error>> {
        // Who asks has heard by other ways, perhaps, that something happened.
        self.app.advance();
        Ok(self.app.sockets.take_error(sock).map_err(error)?.map(error))
    }

    /// TCP_INFO, which the stack is asked for.
    pub fn info(&mut self, sock: SockId) -> io::Result<tcp::TcpInfo> {
        self.app.info(sock).map_err(error)
    }

    /// Bytes that wait to be read, and that are not acknowledged.
    pub fn held(&mut self, sock: SockId) -> io::Result<(usize, usize)> {
        self.app.advance();
        let received = self.app.sockets.available(sock).map_err(error)?;
        Ok((received, self.app.sockets.unacknowledged(sock).map_err(error)?))
    }

    /// A handle hears of its socket.
    pub fn watch(&mut self, sock: SockId, handle: u64) -> io::Result<()> {
        self.app.sockets.epoll_add(self.epoll, sock, interest(handle)).map_err(error)
    }

    /// Another handle hears of it.
    pub fn watch_again(&mut self, sock: SockId, handle: u64) -> io::Result<()> {
        self.app.sockets.epoll_modify(self.epoll, sock, interest(handle)).map_err(error)
    }

    pub fn close(&mut self, sock: SockId) {
        self.app.sockets.close_behind(sock);
    }

    /// Lets the lane work, and goes on with what has become ready.
    pub fn advance(&mut self, core: &mut Core) {
        self.app.advance();
        self.collect(core);
    }

    /// Goes on with what has become ready.
    pub fn collect(&mut self, core: &mut Core) {
        loop {
            let n = self.app.sockets.epoll_collect(self.epoll, &mut self.ready).unwrap_or(0);
            let named = |of: &Ready| crate::Handle::from_bits(of.data);
            for i in 0..n {
                if let Some(later) = self.ready[i..n].get(AHEAD) {
                    core.entries.prefetch(named(later).at());
                }
                if let Ok(at) = core.at(named(&self.ready[i])) {
                    self.begin(core, at);
                }
            }
            if n < READY {
                return;
            }
        }
    }

    /// Waits for something, at most `limit`; EINTR where a signal came.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        match self.app.wait(limit, || false) {
            true => Err(errno(libc::EINTR)),
            false => Ok(()),
        }
    }

    /// Goes on with a handle's operations.
    pub fn begin(&mut self, core: &mut Core, at: u32) {
        match core.entries.get(at).map(|entry| &entry.target) {
            Some(Target::Lane { sock, .. }) => {
                let sock = *sock;
                self.go_on(core, at, sock, Way::In);
                self.go_on(core, at, sock, Way::Out);
            }
            Some(Target::LaneListener { sock, of }) => {
                let sock = *sock;
                let has = match of {
                    ListenerOf::Light(_) => true,
                    ListenerOf::Object { listener, .. } => self.accepts_from(*listener, at),
                };
                if has {
                    self.accept(core, at, sock);
                }
            }
            _ => {}
        }
    }

    fn go_on(&mut self, core: &mut Core, at: u32, sock: SockId, way: Way) {
        while let Some(op) = core.head(at, way) {
            if core.waits(at, way) {
                return;
            }
            match self.attempt(core, at, sock, op) {
                Step::Waits => return,
                Step::Done(result, data) => core.complete(at, way, result, data),
            }
        }
    }

    fn attempt(&mut self, core: &mut Core, at: u32, sock: SockId, op: u32) -> Step {
        let more =
            core.after(op).and_then(|next| core.ops.get(next)).is_some_and(|next| matches!(next.kind, Kind::Write));
        let size = core.options.buffer_size as usize;
        let Some(this) = core.ops.get_mut(op) else { return Step::Waits };
        match &this.kind {
            Kind::Accept { .. } => Step::Done(Err(errno(libc::EINVAL)), Data::None),
            // To read nothing is no wait for something.
            Kind::Read if this.place.len() == 0 => Step::Done(Ok(0), Data::None),
            Kind::Read => self.read(sock, &mut this.place),
            Kind::Recv => self.recv(core, at, sock, size),
            Kind::Write => {
                let step = self.write(sock, &mut this.place, &mut this.done, more);
                match step {
                    Step::Done(Ok(_), data) => Step::Done(Ok(this.done), data),
                    other => other,
                }
            }
            Kind::Connect(to) => match this.stage {
                Stage::Queued => match self.connect(sock, to) {
                    Ok(()) => {
                        this.stage = Stage::Submitted;
                        Step::Waits
                    }
                    Err(error) => Step::Done(Err(error), Data::None),
                },
                Stage::Submitted | Stage::Polled | Stage::Closing => match self.app.sockets.connect_result(sock) {
                    None => Step::Waits,
                    Some(Ok(())) => Step::Done(Ok(0), Data::None),
                    Some(Err(e)) => {
                        // The failure was told; the socket can be connected again.
                        if let Ok(to) = endpoint(to) {
                            let _ = self.app.sockets.connect(sock, to);
                        }
                        Step::Done(Err(error(e)), Data::None)
                    }
                },
            },
            Kind::Disconnect(how) => {
                let how = match *how {
                    libc::SHUT_RD => Shutdown::Read,
                    libc::SHUT_WR => Shutdown::Write,
                    _ => Shutdown::Both,
                };
                step(self.app.sockets.shutdown(sock, how).map(|()| 0))
            }
        }
    }

    fn connect(&mut self, sock: SockId, to: &Address) -> io::Result<()> {
        let from = self.app.sockets.local(sock).map_err(error)?;
        self.app.may_connect_from(from.port).map_err(|e| errno(e.raw_os_error().unwrap_or(libc::EADDRNOTAVAIL)))?;
        match self.app.begin_connect(sock, endpoint(to)?) {
            Err(Errno::EINPROGRESS) => Ok(()),
            Ok(()) => Err(errno(libc::EISCONN)),
            Err(e) => Err(error(e)),
        }
    }

    fn read(&mut self, sock: SockId, place: &mut Place) -> Step {
        let sockets = &mut self.app.sockets;
        match place {
            Place::One { at, len } => {
                // SAFETY: the memory is the operation's until its completion.
                let out = unsafe { slice_mut(*at, *len) };
                step(sockets.recv(sock, out, RecvFlags::default()))
            }
            Place::Many(parts) => {
                let mut done = 0;
                for part in parts.left() {
                    // SAFETY: as above.
                    let out = unsafe { slice_mut(part.iov_base.cast(), part.iov_len) };
                    match sockets.recv(sock, out, RecvFlags::default()) {
                        Ok(n) => {
                            done += n;
                            if n < part.iov_len {
                                return Step::Done(Ok(done), Data::None);
                            }
                        }
                        // What came goes first; the end, or what went wrong, is for the next read.
                        Err(_) if done > 0 => return Step::Done(Ok(done), Data::None),
                        Err(e) => return step(Err(e)),
                    }
                }
                Step::Done(Ok(done), Data::None)
            }
        }
    }

    fn write(&mut self, sock: SockId, place: &mut Place, done: &mut usize, more: bool) -> Step {
        let sockets = &mut self.app.sockets;
        loop {
            let (at, len, last) = match &*place {
                Place::One { at, len } => (*at, *len, true),
                Place::Many(parts) => match parts.left() {
                    [] => return Step::Done(Ok(0), Data::None),
                    [part, rest @ ..] => (part.iov_base.cast(), part.iov_len, rest.is_empty()),
                },
            };
            // SAFETY: the memory is the operation's until its completion.
            let data = unsafe { slice(at, len) };
            match sockets.write(sock, data, more || !last) {
                Ok(n) => {
                    *done += n;
                    place.skip(n);
                    if n == 0 && len == 0 && last || place.len() == 0 {
                        return Step::Done(Ok(0), Data::None);
                    }
                }
                Err(e) => return step(Err(e)),
            }
        }
    }

    fn recv(&mut self, core: &mut Core, at: u32, sock: SockId, size: usize) -> Step {
        if self.buffers.is_none() {
            match Memory::new(core.options.buffers, size) {
                Ok(memory) => {
                    let free = (0..memory.count).rev().collect();
                    let out = vec![false; memory.count as usize];
                    self.buffers = Some(Buffers { memory, free, out, starving: HashSet::new() });
                }
                Err(error) => return Step::Done(Err(error), Data::None),
            }
        }
        let Some(buffers) = &mut self.buffers else { return Step::Waits };
        let Some(id) = buffers.free.last().copied() else {
            core.stats.no_buffer += 1;
            buffers.starving.insert((at, core.entries.generation(at)));
            return Step::Waits;
        };
        let begin = buffers.memory.at(id);
        // SAFETY: a buffer that is free is nobody's.
        let out = unsafe { slice_mut(begin, size) };
        match self.app.sockets.recv(sock, out, RecvFlags::default()) {
            Ok(len @ 1..) => {
                buffers.free.pop();
                buffers.out[id as usize] = true;
                let received = Received { channel: core.id, at: begin, len, buffer: OURS | u32::from(id) };
                Step::Done(Ok(len), Data::Received(received))
            }
            other => step(other),
        }
    }

    /// The application has done with a buffer; EINVAL where it had it not. Who waits for one goes on.
    pub fn release(&mut self, core: &mut Core, id: u32) -> io::Result<()> {
        let buffers = self.buffers.as_mut().ok_or_else(|| errno(libc::EINVAL))?;
        let id = (id & !OURS) as u16;
        if !buffers.out.get_mut(id as usize).is_some_and(std::mem::take) {
            return Err(errno(libc::EINVAL));
        }
        buffers.free.push(id);
        for (at, generation) in std::mem::take(&mut buffers.starving) {
            if core.entries.generation(at) == generation {
                core.touch(at);
            }
        }
        Ok(())
    }

    /// Which buffer begins at an address.
    pub fn buffer_at(&self, at: *const u8) -> Option<u32> {
        let memory = &self.buffers.as_ref()?.memory;
        let offset = (at as usize).checked_sub(memory.at(0) as usize)?;
        let id = offset / memory.size;
        (offset % memory.size == 0 && id < memory.count as usize).then_some(OURS | id as u32)
    }

    fn accept(&mut self, core: &mut Core, at: u32, sock: SockId) {
        while let Some(light) = core.wants(at) {
            if !light {
                // There is no file of the process behind it.
                core.complete(at, Way::In, Err(errno(libc::EOPNOTSUPP)), Data::None);
                continue;
            }
            let socket = match self.app.sockets.accept(sock) {
                Ok((socket, _)) => socket,
                Err(Errno::EAGAIN) => return,
                Err(e) => {
                    core.complete(at, Way::In, Err(error(e)), Data::None);
                    continue;
                }
            };
            match core.new_light(LightOf::Lane(socket)) {
                Ok(light) => {
                    let queued = self.app.sockets.waiting(sock).unwrap_or(0);
                    core.accepted(at, Socket::Light(light), queued);
                }
                Err(error) => {
                    self.close(socket);
                    core.complete(at, Way::In, Err(error), Data::None);
                }
            }
        }
    }
}

/// # Safety
///
/// `at` is the beginning of `len` bytes that nobody writes as long as the slice is used; of none, it may be anything.
unsafe fn slice<'a>(at: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at, len) } }
}

/// # Safety
///
/// `at` is the beginning of `len` bytes that nobody else uses as long as the slice is used; of none, it may be anything.
unsafe fn slice_mut<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: the caller's promise.
    if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(at, len) } }
}
