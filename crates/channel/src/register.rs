//! What is registered with a channel, and what becomes of it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use ::socket::SockOption;

use crate::address::Address;
use crate::channel::Channel;
use crate::core::{Accept, FileKind, Light, LightOf, ListenerOf, Target};
use crate::listeners::{Listener, Membership};
use crate::names::{Handle, LwSocket};
use crate::options::CpuMask;
use crate::slab::NONE;
use crate::uring::Kernel;
use crate::{errno, sys};

impl Channel {
    /// Registers a descriptor: a socket, listening or not, a pipe, a FIFO, a timer, signals, a file. EEXIST: it is.
    pub fn register(&mut self, fd: OwnedFd, cookie: u64) -> io::Result<Handle> {
        let raw = fd.as_raw_fd();
        let handle = self.register_file(raw, cookie, CpuMask::NONE)?;
        self.own(handle, fd);
        Ok(handle)
    }

    /// Registers the part of a listening descriptor that is `mask`'s; the original, wherever it is registered without a
    /// mask, keeps all other CPUs. EBUSY: the mask meets that of another part, of any channel of this process, or a parent
    /// had parts of it when this process was forked. EINVAL: it
    /// does not listen, or the mask is empty. EOPNOTSUPP: it is not TCP's. EADDRINUSE: another socket that does not share
    /// the address has it.
    pub fn register_part(&mut self, fd: BorrowedFd<'_>, cookie: u64, mask: CpuMask) -> io::Result<Handle> {
        if mask.is_empty() {
            return Err(errno(libc::EINVAL));
        }
        self.register_file(fd.as_raw_fd(), cookie, mask)
    }

    /// Registers a lightweight socket. EEXIST: it is.
    pub fn register_light(&mut self, socket: LwSocket, cookie: u64) -> io::Result<Handle> {
        let (light, of, listens) = {
            let (at, light) = self.core.light(socket)?;
            if light.handle != NONE {
                return Err(errno(libc::EEXIST));
            }
            (at, light.of, light.listens.is_some())
        };
        let target = match of {
            LightOf::Lane(sock) if listens => Target::LaneListener { sock, of: ListenerOf::Light(light) },
            LightOf::Slot { slot, kind, .. } => Target::Direct { light, slot, kind },
            LightOf::Ended => Target::Ended { light },
            LightOf::Lane(sock) => Target::Lane { light, sock },
        };
        let at = self.core.insert(cookie, target)?;
        let handle = self.core.handle(at);
        if let (LightOf::Lane(sock), Some(lane)) = (of, &mut self.lane)
            && let Err(error) = lane.watch(sock, handle.to_bits())
        {
            self.core.entries.remove(at);
            return Err(error);
        }
        if let Some(light) = self.core.light.get_mut(light) {
            light.handle = at;
        }
        Ok(handle)
    }

    /// Registers a listener that is no descriptor: with a channel of the kernel the part of `mask`'s CPUs, or the whole
    /// without one; with a lane's the lane's own connections, whatever the mask, which must still meet no other's. Of several
    /// registrations with one lane that whose mask has the lane's core has them, else one without a mask, else the first; the
    /// others have none until it ends.
    pub fn register_listener(&mut self, listener: Listener, cookie: u64, mask: CpuMask) -> io::Result<Handle> {
        let Some(lane) = &mut self.lane else {
            let (fd, member) = Membership::kernel(listener, mask)?;
            return self.accepting(Accept::new(fd, Some(member), FileKind::Tcp), cookie, -1);
        };
        let (at, backlog, member) = Membership::lane(listener, mask)?;
        let known = lane.listening(listener);
        let (sock, claim) = match known {
            Some(sock) => (sock, None),
            None => {
                let (sock, claim) = lane.listen(&at, backlog)?;
                if listener.chosen(lane.local(sock)?)? {
                    (sock, claim)
                } else {
                    drop(claim);
                    lane.close(sock);
                    lane.listen(&listener.address()?, backlog)?
                }
            }
        };
        let target = Target::LaneListener { sock, of: ListenerOf::Object { listener, _member: member } };
        let joined = self.core.insert(cookie, target).and_then(|at| {
            let joined = lane.join(&mut self.core, (listener, sock, claim), (at, mask));
            joined.map(|()| self.core.handle(at)).inspect_err(|_| {
                lane.leave(&mut self.core, listener, at);
                self.core.entries.remove(at);
            })
        });
        joined.inspect_err(|_| {
            if known.is_none() {
                lane.close(sock);
            }
        })
    }

    /// A descriptor by its number.
    pub(crate) fn register_file(&mut self, fd: RawFd, cookie: u64, mask: CpuMask) -> io::Result<Handle> {
        let file = sys::borrow(fd)?;
        let kind = Kernel::kind(file)?;
        let socket = !matches!(kind, FileKind::Pipe | FileKind::File);
        let listens = socket && sys::option(file, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? != 0;
        if !mask.is_empty() {
            let wrong = errno(if listens { libc::EOPNOTSUPP } else { libc::EINVAL });
            return if listens && kind == FileKind::Tcp { self.part(file, cookie, mask) } else { Err(wrong) };
        }
        if self.core.fds.contains_key(&fd) {
            return Err(errno(libc::EEXIST));
        }
        let handle = if listens {
            let (own, member) = Membership::socket(file, mask)?;
            self.accepting(Accept::new(own, Some(member), kind), cookie, fd)?
        } else {
            self.kernel()?;
            let at = self.core.insert(cookie, Target::Fd { fd, kind, owned: None })?;
            self.core.handle(at)
        };
        self.core.fds.insert(fd, handle.at());
        Ok(handle)
    }

    fn part(&mut self, whole: BorrowedFd<'_>, cookie: u64, mask: CpuMask) -> io::Result<Handle> {
        let (fd, member) = Membership::socket(whole, mask)?;
        self.accepting(Accept::new(fd, Some(member), FileKind::Tcp), cookie, -1)
    }

    fn accepting(&mut self, accept: Box<Accept>, cookie: u64, fd: RawFd) -> io::Result<Handle> {
        self.kernel()?;
        let at = self.core.insert(cookie, Target::Listener { accept, fd, owned: None })?;
        self.core.listening.push(at);
        if let Some(kernel) = &self.kernel {
            kernel.reaches(&mut self.core, at);
        }
        Ok(self.core.handle(at))
    }

    /// The descriptor is the handle's, until it is unregistered.
    fn own(&mut self, handle: Handle, file: OwnedFd) {
        if let Some(entry) = self.core.entries.get_mut(handle.at()) {
            match &mut entry.target {
                Target::Fd { owned, .. } | Target::Listener { owned, .. } => *owned = Some(file),
                _ => {}
            }
        }
    }

    /// Ends a registration. What is under way is cancelled, and its completions never come; when this returns nobody touches
    /// its memory any more. A lightweight socket is closed with it, a part of a listener too; a descriptor that was given is
    /// given back. Connections of the kernel's that wait there go to other registrations of the listener in this process, and
    /// are reset where there is none. A transfer of a file on a disk cannot be cancelled, and is waited for.
    pub fn unregister(&mut self, handle: Handle) -> io::Result<Option<OwnedFd>> {
        let at = self.core.at(handle)?;
        let target = self.core.entries.get(at).map(|entry| &entry.target);
        let kernels = !matches!(target, Some(Target::Lane { .. } | Target::LaneListener { .. }));
        if let (true, Some(kernel)) = (kernels, &mut self.kernel) {
            kernel.stop(&mut self.core, at)?;
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.dry(&mut self.core, at);
        }
        self.core.drop_ops(at);
        let Some(entry) = self.core.entries.remove(at) else { return Ok(None) };
        match entry.target {
            Target::Fd { fd, owned, .. } => {
                self.core.fds.remove(&fd);
                return Ok(owned);
            }
            Target::Listener { accept, fd, owned } => {
                drop(accept);
                self.core.fds.remove(&fd);
                self.core.listening.retain(|other| *other != at);
                return Ok(owned);
            }
            Target::Direct { light, .. }
            | Target::Ended { light }
            | Target::Lane { light, .. }
            | Target::LaneListener { of: ListenerOf::Light(light), .. } => self.close_light_at(light),
            Target::LaneListener { of: ListenerOf::Object { listener, .. }, .. } => {
                if let Some(lane) = &mut self.lane {
                    lane.leave(&mut self.core, listener, at);
                }
            }
        }
        Ok(None)
    }

    /// Changes the cookie of a handle's completions to come.
    pub fn set_cookie(&mut self, handle: Handle, cookie: u64) -> io::Result<()> {
        let at = self.core.at(handle)?;
        let entry = self.core.entries.get_mut(at).ok_or_else(|| errno(libc::EBADF))?;
        entry.cookie = cookie;
        Ok(())
    }

    /// Closes a lightweight socket that is not registered. EBUSY: it is.
    pub fn close(&mut self, socket: LwSocket) -> io::Result<()> {
        let (at, light) = self.core.light(socket)?;
        if light.handle != NONE {
            return Err(errno(libc::EBUSY));
        }
        self.close_light_at(at);
        Ok(())
    }

    pub(crate) fn close_light_at(&mut self, at: u32) {
        let Some(Light { of, listens, .. }) = self.core.light.remove(at) else { return };
        // As above: the kernel first.
        drop(listens);
        match (of, &mut self.kernel, &mut self.lane) {
            (LightOf::Slot { slot, .. }, Some(kernel), _) => kernel.close_slot(&mut self.core, slot),
            (LightOf::Lane(sock), _, Some(lane)) => lane.close(sock),
            _ => {}
        }
    }

    /// A descriptor of the process for a lightweight socket, beside it. EOPNOTSUPP: it is a lane's, and no file. ENOTCONN: it
    /// was disconnected, or is being. EBUSY: bytes have come that a `recv` has to ask for first, else they would be lost to it.
    pub fn descriptor(&mut self, socket: LwSocket) -> io::Result<OwnedFd> {
        let (at, light) = self.core.light(socket)?;
        let handle = light.handle;
        if self.core.entries.get(handle).is_some_and(|entry| entry.closing) {
            return Err(errno(libc::ENOTCONN));
        }
        // Whoever has it keeps the connection open, whatever becomes of the place; and reads what it alone may read.
        let before = self.core.share(at, true);
        let fd = match &mut self.kernel {
            Some(kernel) => kernel.settle(&mut self.core, handle),
            None => Ok(false),
        };
        let fd = match fd {
            Ok(false) => self.installed(socket),
            Ok(true) => Err(errno(libc::EBUSY)),
            Err(error) => Err(error),
        };
        if fd.is_err() {
            self.core.share(at, before);
        }
        fd
    }

    /// The same for a moment: gone before anything else is asked of the channel.
    pub fn with_descriptor<T>(
        &mut self,
        socket: LwSocket,
        f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        f(self.installed(socket)?.as_fd())
    }

    pub(crate) fn installed(&mut self, socket: LwSocket) -> io::Result<OwnedFd> {
        let (_, light) = self.core.light(socket)?;
        match (light.of, &mut self.kernel) {
            (LightOf::Slot { slot, .. }, Some(kernel)) => kernel.install(&mut self.core, slot),
            (LightOf::Ended, _) => Err(errno(libc::ENOTCONN)),
            _ => Err(errno(libc::EOPNOTSUPP)),
        }
    }

    /// A TCP socket of the lane, to be bound or connected. EOPNOTSUPP: the channel has none; sockets of the kernel are made
    /// as ever.
    pub fn socket(&mut self, v6: bool) -> io::Result<LwSocket> {
        let lane = self.lane.as_mut().ok_or_else(|| errno(libc::EOPNOTSUPP))?;
        let sock = lane.socket(v6)?;
        self.core.new_light(LightOf::Lane(sock)).inspect_err(|_| lane.close(sock))
    }

    fn lane_socket(&mut self, socket: LwSocket) -> io::Result<(&mut crate::lane::Lane, ::socket::SockId)> {
        let (_, light) = self.core.light(socket)?;
        match (light.of, &mut self.lane) {
            (LightOf::Lane(sock), Some(lane)) => Ok((lane, sock)),
            _ => Err(errno(libc::EOPNOTSUPP)),
        }
    }

    /// Binds a socket of the lane.
    pub fn bind(&mut self, socket: LwSocket, to: &Address) -> io::Result<()> {
        let (lane, sock) = self.lane_socket(socket)?;
        lane.bind(sock, to)
    }

    /// A socket of the lane listens where it is bound, or at a port that is chosen, and is then registered; of one that
    /// listens, `backlog` changes. EINVAL: it is a connection, or registered as what does not listen. EOPNOTSUPP: it is the kernel's.
    pub fn listen(&mut self, socket: LwSocket, backlog: i32) -> io::Result<()> {
        let (at, light) = self.core.light(socket)?;
        let (listens, registered) = (light.listens.is_some(), light.handle != NONE);
        let (lane, sock) = self.lane_socket(socket)?;
        if listens {
            return lane.set_backlog(sock, backlog);
        }
        if registered {
            return Err(errno(libc::EINVAL));
        }
        let claim = lane.listen_on(sock, backlog)?;
        if let Some(light) = self.core.light.get_mut(at) {
            light.listens = Some(claim);
        }
        Ok(())
    }

    /// Sets an option of a socket of the lane. EOPNOTSUPP: it is the kernel's; see [`Channel::descriptor`].
    pub fn set_option(&mut self, socket: LwSocket, option: SockOption) -> io::Result<()> {
        let (lane, sock) = self.lane_socket(socket)?;
        lane.set_option(sock, option)
    }

    /// The option of a socket of the lane that `like` names, with its value. EOPNOTSUPP: it is the kernel's.
    pub fn option(&mut self, socket: LwSocket, like: SockOption) -> io::Result<SockOption> {
        let (lane, sock) = self.lane_socket(socket)?;
        lane.option(sock, like)
    }

    /// What is wrong with a socket of the lane and was not told yet (SO_ERROR). EOPNOTSUPP: it is the kernel's.
    pub fn take_error(&mut self, socket: LwSocket) -> io::Result<Option<io::Error>> {
        let (lane, sock) = self.lane_socket(socket)?;
        lane.take_error(sock)
    }

    /// What the stack knows of a connection of the lane (TCP_INFO). ENOTCONN: it is none. EOPNOTSUPP: it is the kernel's.
    pub fn tcp_info(&mut self, socket: LwSocket) -> io::Result<tcp::TcpInfo> {
        let (lane, sock) = self.lane_socket(socket)?;
        lane.info(sock)
    }

    /// Bytes that wait to be read from a socket of the lane, and those written that its peer has not acknowledged. EOPNOTSUPP:
    /// it is the kernel's.
    pub fn held(&mut self, socket: LwSocket) -> io::Result<(usize, usize)> {
        let (lane, sock) = self.lane_socket(socket)?;
        lane.held(sock)
    }

    /// Where a lightweight socket is.
    pub fn local_addr(&mut self, socket: LwSocket) -> io::Result<Address> {
        match self.lane_socket(socket) {
            Ok((lane, sock)) => lane.local(sock),
            Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => Err(error),
            Err(_) => sys::local(self.installed(socket)?.as_fd()),
        }
    }

    /// Whom a lightweight socket is connected to.
    pub fn peer_addr(&mut self, socket: LwSocket) -> io::Result<Address> {
        match self.lane_socket(socket) {
            Ok((lane, sock)) => lane.remote(sock),
            Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => Err(error),
            Err(_) => sys::peer(self.installed(socket)?.as_fd()),
        }
    }
}
