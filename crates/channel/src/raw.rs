//! Operations on memory and descriptors that stay the caller's: for a layer in a language that cannot promise, and is told.

use std::io;
use std::os::fd::RawFd;

use crate::address::Address;
use crate::buffer::{Owner, Place};
use crate::channel::{Channel, many};
use crate::core::{Kind, Target};
use crate::errno;
use crate::event::Received;
use crate::names::Handle;
use crate::options::CpuMask;

impl Received {
    /// Where the bytes are, and how many; they are there until [`Channel::release_raw`] is told of the place.
    pub fn into_raw(self) -> (*const u8, usize) {
        (self.at, self.len)
    }
}

impl Channel {
    /// Registers a descriptor that stays the caller's; with a mask, its part of a listener, as
    /// [`register_part`](Channel::register_part).
    ///
    /// # Safety
    ///
    /// It is open, and stays the same file, as long as the handle is registered.
    pub unsafe fn register_raw(&mut self, fd: RawFd, cookie: u64, mask: CpuMask) -> io::Result<Handle> {
        self.register_file(fd, cookie, mask)
    }

    /// Whether a descriptor of this number is registered.
    pub fn has_registered(&self, fd: RawFd) -> bool {
        self.core.fds.contains_key(&fd)
    }

    /// Reads into memory of the caller's, at a place of a file or (`u64::MAX`) its own position.
    ///
    /// # Safety
    ///
    /// `at` is the beginning of `len` bytes that are there, and nobody else's, until the completion was fetched or the handle
    /// is unregistered.
    pub unsafe fn read_raw(&mut self, handle: Handle, at: *mut u8, len: usize, offset: u64) -> io::Result<()> {
        self.ask(handle, Kind::Read, Place::One { at, len }, offset, Owner::Caller)
    }

    /// Writes memory of the caller's, at a place of a file or (`u64::MAX`) its own position.
    ///
    /// # Safety
    ///
    /// `at` is the beginning of `len` bytes that are there, and written by nobody, until the completion was fetched or the
    /// handle is unregistered.
    pub unsafe fn write_raw(&mut self, handle: Handle, at: *const u8, len: usize, offset: u64) -> io::Result<()> {
        self.ask(handle, Kind::Write, Place::One { at: at.cast_mut(), len }, offset, Owner::Caller)
    }

    /// As [`read_raw`](Channel::read_raw), into several stretches.
    ///
    /// # Safety
    ///
    /// As there, of each of them.
    pub unsafe fn readv_raw(&mut self, handle: Handle, parts: &[libc::iovec]) -> io::Result<()> {
        self.ask(handle, Kind::Read, many(parts.to_vec())?, u64::MAX, Owner::Caller)
    }

    /// As [`write_raw`](Channel::write_raw), from several stretches.
    ///
    /// # Safety
    ///
    /// As there, of each of them.
    pub unsafe fn writev_raw(&mut self, handle: Handle, parts: &[libc::iovec]) -> io::Result<()> {
        self.ask(handle, Kind::Write, many(parts.to_vec())?, u64::MAX, Owner::Caller)
    }

    /// As [`read_from`](Channel::read_from); the address goes to `from`, and its length, which says before how much room there
    /// is, to `length`.
    ///
    /// # Safety
    ///
    /// As [`read_raw`](Channel::read_raw), of the bytes, the address and the length.
    pub unsafe fn read_from_raw(
        &mut self,
        handle: Handle,
        at: *mut u8,
        len: usize,
        from: *mut libc::sockaddr,
        length: *mut libc::socklen_t,
    ) -> io::Result<()> {
        let part = libc::iovec { iov_base: at.cast(), iov_len: len };
        self.ask_named(handle, Kind::Read, part, Address::empty(), Owner::CallerFrom(from, length))
    }

    /// As [`write_to`](Channel::write_to).
    ///
    /// # Safety
    ///
    /// As [`write_raw`](Channel::write_raw).
    pub unsafe fn write_to_raw(&mut self, handle: Handle, at: *const u8, len: usize, to: Address) -> io::Result<()> {
        let part = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
        self.ask_named(handle, Kind::Write, part, to, Owner::Caller)
    }

    /// Gives memory of a `recv` back by where it begins. EINVAL: nothing of this channel's that is out begins there.
    pub fn release_raw(&mut self, at: *const u8) -> io::Result<()> {
        let ours = self.kernel.as_ref().and_then(|kernel| kernel.buffer_at(at));
        let buffer = ours.or_else(|| self.lane.as_ref().and_then(|lane| lane.buffer_at(at)));
        self.release_number(buffer.ok_or_else(|| errno(libc::EINVAL))?)
    }

    /// Where a handle's socket is.
    pub fn handle_local_addr(&mut self, handle: Handle) -> io::Result<Address> {
        self.address_of(handle, false)
    }

    /// Whom a handle's socket is connected to.
    pub fn handle_peer_addr(&mut self, handle: Handle) -> io::Result<Address> {
        self.address_of(handle, true)
    }

    fn address_of(&mut self, handle: Handle, peer: bool) -> io::Result<Address> {
        use std::os::fd::AsFd;
        let at = self.core.at(handle)?;
        let ask = if peer { crate::sys::peer } else { crate::sys::local };
        let entry = self.core.entries.get(at).ok_or_else(|| errno(libc::EBADF))?;
        let (light, sock) = match &entry.target {
            Target::Fd { fd, .. } => return ask(crate::sys::borrow(*fd)?),
            Target::Listener { accept, .. } => return ask(accept.fd.as_fd()),
            Target::Direct { light, .. } | Target::Ended { light } => (*light, None),
            Target::Lane { light, sock } => (*light, Some(*sock)),
            Target::LaneListener { sock, .. } => (0, Some(*sock)),
        };
        match (sock, &mut self.lane) {
            (Some(sock), Some(lane)) if peer => lane.remote(sock),
            (Some(sock), Some(lane)) => lane.local(sock),
            _ => {
                let light = crate::names::LwSocket::new(self.core.light.generation(light), light);
                ask(self.installed(light)?.as_fd())
            }
        }
    }
}
