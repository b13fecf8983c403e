//! The kernel's sockets as scripts use ours: a socket's number is its descriptor, and no call waits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread::{self, JoinHandle};

use protocol::Endpoint;
use socket::{Errno, Interest, ListenOptions, Ready, RecvFlags, Shutdown, SockId, SockOption, Trigger, bits};
use tcp::TcpInfo;
use wire::Addr;

use super::{info, options, raw};
use crate::system::Calls;

const FAMILY_V4: u16 = libc::AF_INET as u16;
const FAMILY_V6: u16 = libc::AF_INET6 as u16;

/// Sockets of the kernel, closed at the end.
pub struct KernelSockets {
    /// Open descriptors; whether each is a socket of IPv6.
    open: BTreeMap<SockId, bool>,
    /// Closes that wait for SO_LINGER.
    closing: BTreeMap<SockId, JoinHandle<raw::Result<()>>>,
    /// What new sockets get as TCP_CONGESTION, where the kernel has it.
    congestion: String,
}

impl Drop for KernelSockets {
    fn drop(&mut self) {
        for id in self.open.keys() {
            // At the very end nobody asks how it went.
            let _ = raw::close(fd(*id));
        }
    }
}

fn fd(id: SockId) -> i32 {
    id.0 as i32
}

/// An error by its number; one that our sockets never give stands as `EINVAL`.
fn errno(number: i32) -> Errno {
    Errno::from_number(number).unwrap_or(Errno::EINVAL)
}

fn sockaddr(of: Endpoint, v6: bool) -> Vec<u8> {
    let family = if v6 { FAMILY_V6 } else { FAMILY_V4 };
    let mut out = family.to_ne_bytes().to_vec();
    out.extend(of.port.to_be_bytes());
    match v6 {
        false => out.extend(of.addr.v4_octets()),
        true => {
            out.extend([0; 4]);
            out.extend(of.addr.octets());
        }
    }
    out.resize(if v6 { 28 } else { 16 }, 0);
    out
}

fn endpoint(address: &[u8]) -> Option<Endpoint> {
    let family = u16::from_ne_bytes(address.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(address.get(2..4)?.try_into().ok()?);
    let addr: Addr = match family {
        FAMILY_V4 => Addr::from_v4(address.get(4..8)?.try_into().ok()?),
        FAMILY_V6 => IpAddr::from(<[u8; 16]>::try_from(address.get(8..24)?).ok()?).into(),
        _ => return None,
    };
    Some(Endpoint { addr, port })
}

impl KernelSockets {
    /// None yet; new ones get `congestion`.
    pub fn new(congestion: &str) -> KernelSockets {
        KernelSockets { open: BTreeMap::new(), closing: BTreeMap::new(), congestion: congestion.into() }
    }

    fn v6(&self, id: SockId) -> bool {
        self.open.get(&id).copied().unwrap_or(false)
    }

    fn keep(&mut self, fd: i32, v6: bool) -> SockId {
        let id = SockId(fd as u32);
        self.open.insert(id, v6);
        id
    }

    /// TCP_INFO.
    pub fn info(&mut self, id: SockId) -> Result<TcpInfo, Errno> {
        let bytes = raw::option(fd(id), libc::IPPROTO_TCP, libc::TCP_INFO, info::ROOM).map_err(errno)?;
        Ok(info::parse(&bytes))
    }

    fn epoll_ctl(&mut self, epoll: SockId, op: i32, id: SockId, interest: Interest) -> Result<(), Errno> {
        let trigger = match interest.trigger {
            Trigger::Level => 0,
            Trigger::Edge => bits::ET,
            Trigger::OneShot => bits::ONESHOT,
        };
        raw::epoll_ctl(fd(epoll), op, fd(id), interest.events | trigger, interest.data).map_err(errno)
    }
}

impl Calls for KernelSockets {
    fn socket(&mut self, v6: bool) -> Result<SockId, Errno> {
        let domain = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        let fd = raw::socket(domain, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, libc::IPPROTO_TCP).map_err(errno)?;
        // A kernel without it keeps its own.
        let _ = raw::set_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, self.congestion.as_bytes());
        Ok(self.keep(fd, v6))
    }

    fn bind(&mut self, id: SockId, local: Endpoint) -> Result<(), Errno> {
        raw::bind(fd(id), &sockaddr(local, self.v6(id))).map_err(errno)
    }

    fn listen(&mut self, id: SockId, options: ListenOptions) -> Result<(), Errno> {
        raw::listen(fd(id), options.backlog.min(i32::MAX as u32) as i32).map_err(errno)
    }

    fn listen_result(&mut self, _: SockId) -> Option<Result<(), Errno>> {
        Some(Ok(()))
    }

    fn accept(&mut self, id: SockId) -> Result<(SockId, Endpoint), Errno> {
        let (accepted, from) = raw::accept(fd(id)).map_err(errno)?;
        let v6 = self.v6(id);
        let accepted = self.keep(accepted, v6);
        Ok((accepted, endpoint(&from).ok_or(Errno::EAFNOSUPPORT)?))
    }

    fn connect(&mut self, id: SockId, remote: Endpoint) -> Result<(), Errno> {
        raw::connect(fd(id), &sockaddr(remote, self.v6(id))).map_err(errno)
    }

    fn connect_result(&mut self, id: SockId) -> Option<Result<(), Errno>> {
        let ready = self.readiness(id).unwrap_or(bits::ERR);
        if ready & (bits::OUT | bits::ERR | bits::HUP) == 0 {
            return None;
        }
        Some(self.take_error(id).and_then(|e| e.map_or(Ok(()), Err)))
    }

    fn close(&mut self, id: SockId) -> Result<(), Errno> {
        let linger = self.option(id, SockOption::Linger(None));
        self.open.remove(&id).ok_or(Errno::EBADF)?;
        match linger {
            Ok(SockOption::Linger(Some(l))) if !l.timeout.is_zero() => {
                self.closing.insert(id, thread::spawn(move || raw::close(fd(id))));
                Ok(())
            }
            _ => raw::close(fd(id)).map_err(errno),
        }
    }

    fn linger_result(&mut self, id: SockId) -> Option<Result<(), Errno>> {
        match self.closing.get(&id) {
            Some(thread) if !thread.is_finished() => None,
            _ => {
                let thread = self.closing.remove(&id);
                let result = thread.and_then(|t| t.join().ok()).unwrap_or(Ok(()));
                Some(result.map_err(errno))
            }
        }
    }

    fn linger_give_up(&mut self, id: SockId) {
        // The kernel has a clock of its own for it.
        self.closing.remove(&id);
    }

    fn shutdown(&mut self, id: SockId, how: Shutdown) -> Result<(), Errno> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        raw::shutdown(fd(id), how).map_err(errno)
    }

    fn recv_on(&mut self, id: SockId, out: &mut [u8], done: &mut usize, flags: RecvFlags) -> Result<usize, Errno> {
        let mut bits = libc::MSG_DONTWAIT;
        for (on, bit) in
            [(flags.peek, libc::MSG_PEEK), (flags.truncate, libc::MSG_TRUNC), (flags.urgent, libc::MSG_OOB)]
        {
            bits |= if on { bit } else { 0 };
        }
        let from = if flags.peek { 0 } else { *done };
        let low = match self.option(id, SockOption::ReceiveLow(1)) {
            Ok(SockOption::ReceiveLow(n)) => n as usize,
            _ => 1,
        };
        let target = if flags.wait_all { out.len() } else { low.min(out.len()) };
        match raw::receive(fd(id), &mut [&mut out[from..]], bits) {
            Ok(0) => Ok(from),
            Ok(n) => {
                *done = from + n;
                if *done >= target || flags.dont_wait || flags.urgent { Ok(*done) } else { Err(Errno::EAGAIN) }
            }
            Err(libc::EAGAIN) if from > 0 && flags.dont_wait => Ok(from),
            Err(libc::EAGAIN) => Err(Errno::EAGAIN),
            Err(_) if from > 0 => Ok(from),
            Err(e) => Err(errno(e)),
        }
    }

    fn read(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno> {
        raw::receive(fd(id), &mut [out], libc::MSG_DONTWAIT).map_err(errno)
    }

    fn peek(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno> {
        raw::receive(fd(id), &mut [out], libc::MSG_DONTWAIT | libc::MSG_PEEK).map_err(errno)
    }

    fn available(&mut self, id: SockId) -> Result<usize, Errno> {
        raw::ioctl(fd(id), libc::FIONREAD).map(|n| n as usize).map_err(errno)
    }

    fn unacknowledged(&mut self, id: SockId) -> Result<usize, Errno> {
        raw::ioctl(fd(id), libc::TIOCOUTQ).map(|n| n as usize).map_err(errno)
    }

    /// As recvmsg would say it: what is left, and one more at the end of the stream.
    fn inq(&mut self, id: SockId) -> Result<Option<usize>, Errno> {
        let on = matches!(self.option(id, SockOption::Inq(false))?, SockOption::Inq(true));
        let over = self.readiness(id)? & bits::RDHUP != 0;
        Ok(if on { Some(self.available(id)? + over as usize) } else { None })
    }

    fn write(&mut self, id: SockId, data: &[u8], more: bool) -> Result<usize, Errno> {
        let more = if more { libc::MSG_MORE } else { 0 };
        raw::send(fd(id), &[data], libc::MSG_DONTWAIT | more).map_err(errno)
    }

    fn write_record(&mut self, id: SockId, data: &[u8]) -> Result<usize, Errno> {
        raw::send(fd(id), &[data], libc::MSG_DONTWAIT | libc::MSG_EOR).map_err(errno)
    }

    fn write_urgent(&mut self, id: SockId, data: &[u8]) -> Result<usize, Errno> {
        raw::send(fd(id), &[data], libc::MSG_DONTWAIT | libc::MSG_OOB).map_err(errno)
    }

    fn set_option(&mut self, id: SockId, option: SockOption) -> Result<(), Errno> {
        let (level, name, value) = options::raw(option, self.v6(id));
        raw::set_option(fd(id), level, name, &value).map_err(errno)
    }

    fn option(&mut self, id: SockId, like: SockOption) -> Result<SockOption, Errno> {
        let (level, name, _) = options::raw(like, self.v6(id));
        let value = raw::option(fd(id), level, name, 64).map_err(errno)?;
        options::read(like, &value).ok_or(Errno::ENOPROTOOPT)
    }

    fn take_error(&mut self, id: SockId) -> Result<Option<Errno>, Errno> {
        let value = raw::option(fd(id), libc::SOL_SOCKET, libc::SO_ERROR, 4).map_err(errno)?;
        let number = value.try_into().map_or(0, i32::from_ne_bytes);
        Ok((number != 0).then(|| errno(number)))
    }

    fn readiness(&mut self, id: SockId) -> Result<u32, Errno> {
        let asked = (bits::IN | bits::PRI | bits::OUT | bits::RDHUP) as i16;
        let returned = raw::poll(&[(fd(id), asked)], 0).map_err(errno)?;
        match returned.first() {
            Some(r) if *r & libc::POLLNVAL == 0 => Ok(*r as u16 as u32),
            _ => Err(Errno::EBADF),
        }
    }

    fn epoll_create(&mut self) -> Result<SockId, Errno> {
        let fd = raw::epoll_create().map_err(errno)?;
        Ok(self.keep(fd, false))
    }

    fn epoll_add(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno> {
        self.epoll_ctl(epoll, libc::EPOLL_CTL_ADD, id, interest)
    }

    fn epoll_modify(&mut self, epoll: SockId, id: SockId, interest: Interest) -> Result<(), Errno> {
        self.epoll_ctl(epoll, libc::EPOLL_CTL_MOD, id, interest)
    }

    fn epoll_delete(&mut self, epoll: SockId, id: SockId) -> Result<(), Errno> {
        self.epoll_ctl(epoll, libc::EPOLL_CTL_DEL, id, Interest { events: 0, trigger: Trigger::Level, data: 0 })
    }

    fn epoll_collect(&mut self, epoll: SockId, out: &mut [Ready]) -> Result<usize, Errno> {
        let events = raw::epoll_wait(fd(epoll), out.len() as i32, 0).map_err(errno)?;
        for (to, (events, data)) in out.iter_mut().zip(&events) {
            *to = Ready { events: *events, data: *data };
        }
        Ok(events.len())
    }
}
