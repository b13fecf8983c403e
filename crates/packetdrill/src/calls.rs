//! The calls on sockets: what blocks, what is asked for in flags, what addresses look like.

use std::os::fd::IntoRawFd;
use std::time::Duration;

use capi::address::{SockAddr, parse as endpoint};
pub(crate) use capi::errno::of as errno;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use socket::{ListenOptions, RecvFlags, Shutdown, SockId, SockOption, Sockets};

use crate::plugin::{Descriptor, Plugin, Result, World};

/// `None` where the call should wait.
fn unless_again<T>(result: core::result::Result<T, socket::Errno>, nonblocking: bool) -> Option<Result<T>> {
    match result {
        Err(socket::Errno::EAGAIN) if !nonblocking => None,
        other => Some(other.map_err(errno)),
    }
}

fn is_v6(w: &mut World, id: SockId) -> bool {
    matches!(w.with(|s| s.option(id, SockOption::Domain(0))), Ok(SockOption::Domain(libc::AF_INET6)))
}

/// A descriptor that libc can close.
fn hand_out(w: &mut World, id: SockId, nonblocking: bool) -> Result<i32> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC)?.into_raw_fd();
    w.descriptors.insert(fd, Descriptor { id, nonblocking });
    Ok(fd)
}

impl Plugin {
    /// The descriptor, whether it may block, and for how long.
    fn start(&self, fd: i32, flags: i32, timeout: SockOption) -> Result<(Descriptor, Option<Duration>)> {
        self.call(|w| {
            let mut d = *w.descriptor(fd)?;
            d.nonblocking |= flags & libc::MSG_DONTWAIT != 0;
            let timeout = match w.machine.sockets().option(d.id, timeout) {
                Ok(SockOption::ReceiveTimeout(t) | SockOption::SendTimeout(t)) => t,
                _ => None,
            };
            Ok((d, timeout))
        })
    }

    /// Whether the descriptor is one of ours.
    pub fn owns(&self, fd: i32) -> bool {
        self.call(|w| w.id(fd).is_ok())
    }

    /// socket(2): TCP over IPv4 or IPv6.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<i32> {
        let v6 = capi::address::is_v6(domain, kind, protocol)?;
        self.call(|w| {
            let id = w.with(|s| s.socket(v6)).map_err(errno)?;
            hand_out(w, id, kind & libc::SOCK_NONBLOCK != 0)
        })
    }

    /// epoll_create(2).
    pub fn epoll_create(&self) -> Result<i32> {
        self.call(|w| {
            let id = w.with(Sockets::epoll_create).map_err(errno)?;
            hand_out(w, id, false)
        })
    }

    /// bind(2).
    pub fn bind(&self, fd: i32, address: &[u8]) -> Result<()> {
        self.call(|w| {
            let id = w.id(fd)?;
            let local = endpoint(address, is_v6(w, id))?;
            w.with(|s| s.bind(id, local)).map_err(errno)
        })
    }

    /// listen(2).
    pub fn listen(&self, fd: i32, backlog: i32) -> Result<()> {
        self.call(|w| {
            let id = w.id(fd)?;
            // Linux: a negative backlog is as good as none.
            let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
            w.with(|s| s.listen(id, ListenOptions { backlog })).map_err(errno)?;
            w.with(|s| s.listen_result(id)).unwrap_or(Ok(())).map_err(errno)
        })
    }

    /// accept(2): the descriptor and the peer's address.
    pub fn accept(&self, fd: i32) -> Result<(i32, SockAddr)> {
        let (d, timeout) = self.start(fd, 0, SockOption::ReceiveTimeout(None))?;
        self.block(timeout, |w| {
            let accepted = unless_again(w.with(|s| s.accept(d.id)), d.nonblocking)?;
            Some(accepted.and_then(|(id, from)| Ok((hand_out(w, id, false)?, SockAddr::new(from, !from.addr.is_v4())))))
        })
    }

    /// connect(2).
    pub fn connect(&self, fd: i32, address: &[u8]) -> Result<()> {
        let (d, timeout) = self.start(fd, 0, SockOption::SendTimeout(None))?;
        let remote = self.call(|w| endpoint(address, is_v6(w, d.id)))?;
        let begun = self.call(|w| {
            let begun = w.with(|s| s.connect(d.id, remote));
            // What the stack can tell at once needs no packet.
            match (begun, w.with(|s| s.connect_result(d.id))) {
                (Err(socket::Errno::EINPROGRESS), Some(result)) => result,
                _ => begun,
            }
        });
        match begun {
            Err(socket::Errno::EINPROGRESS | socket::Errno::EALREADY) if !d.nonblocking => {
                let result = self.block(timeout, |w| w.with(|s| s.connect_result(d.id)).map(|r| r.map_err(errno)));
                // connect(2): a send timeout ends the wait and not the attempt.
                result.map_err(|e| if e == Errno::AGAIN { Errno::INPROGRESS } else { e })
            }
            other => other.map_err(errno),
        }
    }

    /// read(2), readv(2), recv(2) and what is like them; the buffers are filled in order.
    pub fn receive(&self, fd: i32, out: &mut [&mut [u8]], flags: i32) -> Result<usize> {
        let (d, timeout) = self.start(fd, flags, SockOption::ReceiveTimeout(None))?;
        if flags & libc::MSG_ERRQUEUE != 0 {
            // No error is ever queued.
            return Err(Errno::AGAIN);
        }
        let flags = RecvFlags { dont_wait: d.nonblocking, ..RecvFlags::from_bits(flags) };
        let mut buffer = vec![0; out.iter().map(|b| b.len()).sum()];
        let mut done = 0;
        let end = self.block(timeout, |w| {
            unless_again(w.with(|s| s.recv_on(d.id, &mut buffer, &mut done, flags)), d.nonblocking)
        });
        let n = match end {
            Err(_) if done > 0 => done,
            other => other?,
        };
        let mut rest = &buffer[..n];
        for part in out {
            let (now, later) = rest.split_at(part.len().min(rest.len()));
            part[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(n)
    }

    /// What a receive or a send says of a buffer at NULL: `EFAULT`, once it would come to that.
    pub fn nowhere(&self, fd: i32, flags: i32, receive: bool) -> Result<usize> {
        match receive {
            true if self.receive(fd, &mut [&mut [0]], flags | libc::MSG_PEEK)? == 0 => return Ok(0),
            true => {}
            false => {
                self.send(fd, &[], flags)?;
            }
        }
        Err(Errno::FAULT)
    }

    /// Under TCP_INQ, what recvmsg(2) tells beside the bytes: how many are left.
    pub fn left(&self, fd: i32) -> Option<i32> {
        self.call(|w| {
            let id = w.id(fd).ok()?;
            w.with(|s| s.inq(id)).ok().flatten().map(|n| n as i32)
        })
    }

    /// write(2), writev(2), send(2) and what is like them: a blocking one returns when all is written.
    pub fn send(&self, fd: i32, data: &[&[u8]], flags: i32) -> Result<usize> {
        const KNOWN: i32 = libc::MSG_DONTWAIT | libc::MSG_MORE | libc::MSG_NOSIGNAL | libc::MSG_EOR | libc::MSG_OOB;
        let (d, timeout) = self.start(fd, flags, SockOption::SendTimeout(None))?;
        if flags & !KNOWN != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let has = |flag: i32| flags & flag != 0;
        let data = data.concat();
        let mut written = 0;
        let end = self.block(timeout, |w| {
            loop {
                let rest = &data[written..];
                let result = w.with(|s| match () {
                    _ if has(libc::MSG_OOB) => s.write_urgent(d.id, rest),
                    _ if has(libc::MSG_EOR) => s.write_record(d.id, rest),
                    _ => s.write(d.id, rest, has(libc::MSG_MORE)),
                });
                match unless_again(result, d.nonblocking)? {
                    Ok(n) => written += n,
                    Err(e) => return Some(Err(e)),
                }
                if written == data.len() {
                    return Some(Ok(()));
                }
            }
        });
        if written > 0 { Ok(written) } else { end.map(|()| 0) }
    }

    /// fcntl(2): `F_GETFL` and `F_SETFL`.
    pub fn fcntl(&self, fd: i32, command: i32, argument: i32) -> Result<i32> {
        self.call(|w| {
            let d = w.descriptor(fd)?;
            match command {
                libc::F_GETFL if d.nonblocking => Ok(libc::O_RDWR | libc::O_NONBLOCK),
                libc::F_GETFL => Ok(libc::O_RDWR),
                libc::F_SETFL => {
                    d.nonblocking = argument & libc::O_NONBLOCK != 0;
                    Ok(0)
                }
                _ => Err(Errno::INVAL),
            }
        })
    }

    /// ioctl(2): `SIOCINQ`, `SIOCOUTQ`, `SIOCOUTQNSD`, `SIOCATMARK`.
    pub fn ioctl(&self, fd: i32, request: u64) -> Result<i32> {
        const NOT_SENT: u64 = 0x894b;
        const AT_MARK: u64 = 0x8905;
        self.call(|w| {
            let id = w.id(fd)?;
            let bytes = match request {
                libc::FIONREAD => w.with(|s| s.available(id)).map_err(errno)? as u64,
                AT_MARK => w.with(|s| s.at_mark(id)).map_err(errno)? as u64,
                libc::TIOCOUTQ => w.with(|s| s.unacknowledged(id)).map_err(errno)? as u64,
                NOT_SENT => w.machine.info(id).map_err(errno)?.notsent_bytes,
                _ => return Err(Errno::NOTTY),
            };
            Ok(bytes.min(i32::MAX as u64) as i32)
        })
    }

    /// shutdown(2).
    pub fn shutdown(&self, fd: i32, how: i32) -> Result<()> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::INVAL),
        };
        self.call(|w| {
            let id = w.id(fd)?;
            w.with(|s| s.shutdown(id, how)).map_err(errno)
        })
    }

    /// close(2), with SO_LINGER's wait. The descriptor itself is the caller's to close.
    pub fn close(&self, fd: i32) -> Result<()> {
        let (id, linger) = self.call(|w| {
            let id = w.descriptors.remove(&fd).map(|d| d.id).ok_or(Errno::BADF)?;
            let linger = match w.machine.sockets().option(id, SockOption::Linger(None)) {
                Ok(SockOption::Linger(linger)) => linger.map(|l| l.timeout),
                _ => None,
            };
            w.with(|s| s.close(id)).map_err(errno)?;
            Ok((id, linger.filter(|t| !t.is_zero())))
        })?;
        if linger.is_some() {
            // Linux: close tells no failure, and goes on in the background when the time is over.
            let _ = self.block(linger, |w| w.with(|s| s.linger_result(id)).map(Ok));
            self.call(|w| w.with(|s| s.linger_give_up(id)));
        }
        Ok(())
    }
}
