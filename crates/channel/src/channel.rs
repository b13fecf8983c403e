//! The channel: operations go in, completions come out.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use runtime::App;

use crate::address::Address;
use crate::buffer::{Buffer, Owner, Parts, Place};
use crate::core::{Core, Kind, Target};
use crate::errno;
use crate::event::{Data, Event, Received, Socket};
use crate::lane::{Lane, OURS};
use crate::names::{CHANNELS, Handle};
use crate::options::{Capabilities, Options};
use crate::stats::Stats;
use crate::uring::Kernel;

/// Stretches of one vectored operation at most; Linux's UIO_MAXIOV.
pub(crate) const MOST_PARTS: usize = 1024;
/// How far ahead of the completion that is fetched the next is read.
const AHEAD: usize = 4;
/// Between an idle channel's looks for connections that wait elsewhere.
const LOOK: Duration = Duration::from_millis(5);

/// How many connections an `accept` is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many, at least one.
    Of(u32),
    /// All that come, until the handle is unregistered or accepting fails.
    Endless,
}

/// Which directions a `disconnect` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// SHUT_RD.
    Read,
    /// SHUT_WR: the peer reads the end, and may still write.
    Write,
    /// SHUT_RDWR.
    Both,
}

/// A completion channel. It belongs to the thread that made it.
pub struct Channel {
    pub(crate) core: Core,
    pub(crate) kernel: Option<Box<Kernel>>,
    pub(crate) lane: Option<Box<Lane>>,
    /// Not to be moved to another thread: the ring has one issuer.
    _thread: PhantomData<*mut ()>,
}

static LAST: AtomicU32 = AtomicU32::new(0);

fn new_id() -> u32 {
    LAST.fetch_add(1, Ordering::Relaxed) % CHANNELS + 1
}

impl Channel {
    /// A channel over the kernel. EINVAL: an option is out of range. ENOSYS, EPERM: the kernel has no io_uring, or not for
    /// this process (`kernel.io_uring_disabled`, seccomp); EINVAL too, where it is older than Linux 6.1. What
    /// [`ring_refused`](crate::ring_refused) says of the error is for whoever runs the program.
    pub fn uring(options: Options) -> io::Result<Channel> {
        options.check()?;
        let kernel = Some(Box::new(Kernel::new(&options)?));
        Ok(Channel { core: Core::new(new_id(), options), kernel, lane: None, _thread: PhantomData })
    }

    /// A channel over a lane, whose application's end this is. The kernel's handles get a ring inside it with the first of
    /// them, which fails as [`uring`](Channel::uring) where there is none to be had.
    pub fn lane(app: App, options: Options) -> io::Result<Channel> {
        options.check()?;
        let lane = Some(Box::new(Lane::new(app)?));
        Ok(Channel { core: Core::new(new_id(), options), kernel: None, lane, _thread: PhantomData })
    }

    /// Its number, in its handles.
    pub fn id(&self) -> u32 {
        self.core.id
    }

    /// What it can do.
    pub fn capabilities(&self) -> Capabilities {
        let own = match self.lane {
            Some(_) => Capabilities::LANE,
            None => Capabilities(Capabilities::DESCRIPTORS.0 | Capabilities::BALANCE.0),
        };
        Capabilities(own.0 | Capabilities::KERNEL.0)
    }

    /// Changes the number of requests of a batch. EINVAL: not 1 to 4096.
    pub fn set_batch(&mut self, requests: u32) -> io::Result<()> {
        let options = Options { batch: requests, ..self.core.options };
        options.check()?;
        self.core.options = options;
        Ok(())
    }

    /// What it counted.
    pub fn stats(&self) -> Stats {
        self.core.stats
    }

    /// The ring, which a lane's channel has from its first handle of the kernel's on.
    pub(crate) fn kernel(&mut self) -> io::Result<&mut Kernel> {
        if self.kernel.is_none() {
            let kernel = Kernel::new(&self.core.options)?;
            if let Some(lane) = &self.lane {
                kernel.wakes(lane.bell())?;
            }
            self.kernel = Some(Box::new(kernel));
        }
        self.kernel.as_deref_mut().ok_or_else(|| errno(libc::ENOSYS))
    }

    /// Asks for something. On a lane it is begun at once; the kernel gets it with its batch.
    pub(crate) fn ask(
        &mut self,
        handle: Handle,
        kind: Kind,
        place: Place,
        offset: u64,
        owner: Owner,
    ) -> io::Result<()> {
        let at = self.core.at(handle)?;
        let listens = matches!(
            self.core.entries.get(at).map(|entry| &entry.target),
            Some(Target::Listener { .. } | Target::LaneListener { .. })
        );
        if listens != matches!(kind, Kind::Accept { .. }) {
            return Err(errno(if listens { libc::ENOTCONN } else { libc::EINVAL }));
        }
        if offset != u64::MAX && !self.core.has_places(at) {
            return Err(errno(libc::ESPIPE));
        }
        self.core.push(at, kind, place, offset, owner)?;
        if let Some(lane) = &mut self.lane
            && matches!(
                self.core.entries.get(at).map(|entry| &entry.target),
                Some(Target::Lane { .. } | Target::LaneListener { .. })
            )
        {
            // It is in the lane's hands. A turn now, before the application has seen all that came, would acknowledge by itself
            // what is about to be answered.
            lane.begin(&mut self.core, at);
            return Ok(());
        }
        if self.core.asked >= self.core.options.batch {
            // What is asked for is asked for: the next dispatch tells what is wrong with the channel as a whole.
            let _ = self.flush();
        }
        Ok(())
    }

    /// Accepts connections; each is a completion. Lightweight ones are the channel's alone. EOPNOTSUPP in the completion:
    /// descriptors of a lane's connections.
    pub fn accept(&mut self, handle: Handle, amount: Amount, light: bool) -> io::Result<()> {
        let left = match amount {
            Amount::Of(0) => return Err(errno(libc::EINVAL)),
            Amount::Of(n) => n.min(u32::MAX - 1),
            Amount::Endless => u32::MAX,
        };
        let none = Place::One { at: std::ptr::null_mut(), len: 0 };
        self.ask(handle, Kind::Accept { left, light }, none, u64::MAX, Owner::Caller)
    }

    /// Connects a socket.
    pub fn connect(&mut self, handle: Handle, to: Address) -> io::Result<()> {
        let none = Place::One { at: std::ptr::null_mut(), len: 0 };
        self.ask(handle, Kind::Connect(Box::new(to)), none, u64::MAX, Owner::Caller)
    }

    /// Reads what is there, up to the length of `bytes`, which come back with the completion.
    pub fn read(&mut self, handle: Handle, bytes: Vec<u8>) -> io::Result<()> {
        self.read_at(handle, bytes, u64::MAX)
    }

    /// The same at a place of a file; `u64::MAX` is the file's own position. ESPIPE: it has no places.
    pub fn read_at(&mut self, handle: Handle, mut bytes: Vec<u8>, offset: u64) -> io::Result<()> {
        let place = Place::One { at: bytes.as_mut_ptr(), len: bytes.len() };
        self.ask(handle, Kind::Read, place, offset, Owner::Vec(bytes))
    }

    /// Reads into several stretches in their order. EINVAL: more than 1024.
    pub fn readv(&mut self, handle: Handle, mut all: Vec<Vec<u8>>) -> io::Result<()> {
        let part = |bytes: &mut Vec<u8>| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let parts = all.iter_mut().map(part).collect();
        self.ask(handle, Kind::Read, many(parts)?, u64::MAX, Owner::Vecs(all))
    }

    /// Reads what is there, and who sent it: of a datagram socket, connected or not. ENOTSOCK: it is none.
    pub fn read_from(&mut self, handle: Handle, mut bytes: Vec<u8>) -> io::Result<()> {
        let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        self.ask_named(handle, Kind::Read, part, Address::empty(), Owner::From(bytes))
    }

    /// Writes a datagram to an address. ENOTSOCK: it is no socket.
    pub fn write_to(&mut self, handle: Handle, bytes: impl Into<Buffer>, to: Address) -> io::Result<()> {
        let bytes = bytes.into();
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        self.ask_named(handle, Kind::Write, part, to, Owner::Buffer(bytes))
    }

    pub(crate) fn ask_named(
        &mut self,
        handle: Handle,
        kind: Kind,
        part: libc::iovec,
        name: Address,
        owner: Owner,
    ) -> io::Result<()> {
        let at = self.core.at(handle)?;
        if !self.core.is_socket(at) {
            return Err(errno(libc::ENOTSOCK));
        }
        self.ask(handle, kind, Place::Many(Parts::named(part, name)), u64::MAX, owner)
    }

    /// Writes all of `bytes`, which come back with the completion.
    pub fn write(&mut self, handle: Handle, bytes: impl Into<Buffer>) -> io::Result<()> {
        self.write_at(handle, bytes, u64::MAX)
    }

    /// The same at a place of a file; `u64::MAX` is the file's own position. ESPIPE: it has no places.
    pub fn write_at(&mut self, handle: Handle, bytes: impl Into<Buffer>, offset: u64) -> io::Result<()> {
        let bytes = bytes.into();
        let place = Place::One { at: bytes.as_ptr().cast_mut(), len: bytes.len() };
        self.ask(handle, Kind::Write, place, offset, Owner::Buffer(bytes))
    }

    /// Writes several stretches in their order. EINVAL: more than 1024.
    pub fn writev(&mut self, handle: Handle, all: Vec<Buffer>) -> io::Result<()> {
        let part = |bytes: &Buffer| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let parts = all.iter().map(part).collect();
        self.ask(handle, Kind::Write, many(parts)?, u64::MAX, Owner::Buffers(all))
    }

    /// Receives what is there into memory of the channel, which is [released](Channel::release) later.
    pub fn recv(&mut self, handle: Handle) -> io::Result<()> {
        let none = Place::One { at: std::ptr::null_mut(), len: 0 };
        self.ask(handle, Kind::Recv, none, u64::MAX, Owner::Caller)
    }

    /// What was received; nothing where another channel received it.
    pub fn bytes<'a>(&'a self, received: &'a Received) -> &'a [u8] {
        if received.channel != self.core.id {
            return &[];
        }
        // SAFETY: the memory is this channel's, which is borrowed; and the buffer is the application's until it is released,
        // which takes `received` away.
        unsafe { std::slice::from_raw_parts(received.at, received.len) }
    }

    /// Gives memory of a `recv` back. EINVAL: another channel's.
    pub fn release(&mut self, received: Received) -> io::Result<()> {
        match received.channel == self.core.id {
            true => self.release_number(received.buffer),
            false => Err(errno(libc::EINVAL)),
        }
    }

    pub(crate) fn release_number(&mut self, buffer: u32) -> io::Result<()> {
        match (&mut self.lane, &mut self.kernel) {
            (Some(lane), _) if buffer & OURS != 0 => lane.release(&mut self.core, buffer),
            (_, Some(kernel)) => kernel.release(buffer),
            _ => Err(errno(libc::EINVAL)),
        }
    }

    /// Ends a connection in both directions, after what was written before.
    pub fn disconnect(&mut self, handle: Handle) -> io::Result<()> {
        self.shutdown(handle, How::Both)
    }

    /// Ends a connection in some direction, after what was written before; the completion is a `Disconnect`.
    pub fn shutdown(&mut self, handle: Handle, how: How) -> io::Result<()> {
        let how = match how {
            How::Read => libc::SHUT_RD,
            How::Write => libc::SHUT_WR,
            How::Both => libc::SHUT_RDWR,
        };
        let none = Place::One { at: std::ptr::null_mut(), len: 0 };
        self.ask(handle, Kind::Disconnect(how), none, u64::MAX, Owner::Caller)
    }

    /// Begins whatever can begin.
    fn begin(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.feed(&mut self.core);
        }
        while let Some(at) = self.core.next_dirty() {
            match (self.core.entries.get(at).map(|entry| &entry.target), &mut self.kernel, &mut self.lane) {
                (Some(Target::Lane { .. } | Target::LaneListener { .. }), _, Some(lane)) => {
                    lane.begin(&mut self.core, at);
                }
                (Some(_), Some(kernel), _) => kernel.begin(&mut self.core, at),
                _ => {}
            }
        }
    }

    fn count_batch(&mut self) {
        let asked = std::mem::take(&mut self.core.asked);
        if asked > 0 {
            self.core.stats.batches += 1;
            self.core.stats.requests += u64::from(asked);
        }
    }

    /// Hands over what was asked for, without waiting.
    pub fn flush(&mut self) -> io::Result<()> {
        self.count_batch();
        self.begin();
        if let Some(lane) = &mut self.lane {
            lane.advance(&mut self.core);
        }
        match &mut self.kernel {
            Some(kernel) => kernel.flush(&mut self.core),
            None => Ok(()),
        }
    }

    /// The next completion; waits for one at most `limit`. `None`: none came. EINTR: a signal did. ENETDOWN: the lane's
    /// engine was shut down.
    pub fn dispatch(&mut self, limit: Option<Duration>) -> io::Result<Option<Event>> {
        let mut end = None;
        loop {
            if let Some(event) = self.fetch() {
                return Ok(Some(event));
            }
            let left = match limit {
                Some(limit) if !limit.is_zero() => {
                    let end = *end.get_or_insert_with(|| Instant::now() + limit);
                    Some(end.saturating_duration_since(Instant::now()))
                }
                other => other,
            };
            self.turn(left)?;
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(self.fetch());
            }
        }
    }

    /// A completion that is there. Those of handles that are no more are dropped.
    fn fetch(&mut self) -> Option<Event> {
        while let Some(event) = self.core.events.pop_front() {
            if let Some(later) = self.core.events.get(AHEAD) {
                self.core.entries.prefetch(later.handle.at());
                // As a rule the address of what the application has of it.
                mem::prefetch::line(later.cookie as *const u8);
            }
            if self.core.at(event.handle).is_ok() {
                return Some(event);
            }
            match event.data {
                Data::Accepted(socket, _) => {
                    self.core.stats.dropped += 1;
                    if let Socket::Light(light) = socket {
                        let _ = self.close(light);
                    }
                }
                Data::Received(received) => {
                    let _ = self.release(received);
                }
                _ => {}
            }
        }
        None
    }

    /// Hands over what was asked for, and waits for something, at most `limit`.
    fn turn(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.count_batch();
        self.begin();
        let at_once = !self.core.events.is_empty() || limit.is_some_and(|limit| limit.is_zero());
        match (&mut self.lane, &mut self.kernel) {
            (Some(lane), kernel) => {
                if let Some(kernel) = kernel {
                    kernel.flush(&mut self.core)?;
                }
                lane.advance(&mut self.core);
                if at_once || !self.core.events.is_empty() || !self.core.dirty.is_empty() {
                    return Ok(());
                }
                if lane.app.is_over() {
                    return Err(errno(libc::ENETDOWN));
                }
                let waited = lane.wait(limit);
                lane.collect(&mut self.core);
                if let Some(kernel) = kernel {
                    kernel.flush(&mut self.core)?;
                }
                if self.core.events.is_empty() && self.core.dirty.is_empty() { waited } else { Ok(()) }
            }
            (None, Some(kernel)) if at_once => kernel.flush(&mut self.core),
            (None, Some(kernel)) => {
                let mut limit = limit;
                if self.core.options.balance > 0 {
                    kernel.flush(&mut self.core)?;
                    let some = !self.core.events.is_empty() || !self.core.dirty.is_empty();
                    if some || kernel.balance(&mut self.core) > 0 {
                        return Ok(());
                    }
                    limit = Some(limit.map_or(LOOK, |limit| limit.min(LOOK)));
                }
                kernel.wait(&mut self.core, limit)
            }
            (None, None) => Err(errno(libc::ENOSYS)),
        }
    }
}

/// Several stretches; EINVAL: too many, or more bytes than one call can tell.
pub(crate) fn many(parts: Vec<libc::iovec>) -> io::Result<Place> {
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len));
    if parts.len() > MOST_PARTS || total.is_none_or(|total| total > isize::MAX as usize) {
        return Err(errno(libc::EINVAL));
    }
    Ok(Place::Many(Parts::new(parts)))
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.app.sockets.ending();
        }
        for at in self.core.entries.numbers() {
            let handle = self.core.handle(at);
            if self.unregister(handle).is_err() && self.core.entries.get(at).is_some() {
                // Somebody may still write into what operations own.
                let ops = std::mem::replace(&mut self.core.ops, crate::slab::Slab::new(0));
                std::mem::forget(ops);
                return;
            }
        }
        for at in self.core.light.numbers() {
            self.close_light_at(at);
        }
        let _ = self.flush();
    }
}
