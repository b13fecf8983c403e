//! Linux's system calls on numbers and bytes: the one place of this crate that needs `unsafe`.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// What a call gives, or its `errno`.
pub type Result<T> = core::result::Result<T, i32>;

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn number(value: c_int) -> Result<i32> {
    if value < 0 { Err(errno()) } else { Ok(value) }
}

fn count(value: isize) -> Result<usize> {
    usize::try_from(value).map_err(|_| errno())
}

/// socket(2).
pub fn socket(domain: i32, kind: i32, protocol: i32) -> Result<i32> {
    // SAFETY: integers.
    number(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })
}

/// bind(2) to a `struct sockaddr`.
pub fn bind(fd: i32, address: &[u8]) -> Result<()> {
    // SAFETY: readable bytes and their number.
    number(unsafe { libc::bind(fd, address.as_ptr().cast(), address.len() as u32) }).map(drop)
}

/// connect(2) to a `struct sockaddr`.
pub fn connect(fd: i32, address: &[u8]) -> Result<()> {
    // SAFETY: readable bytes and their number.
    number(unsafe { libc::connect(fd, address.as_ptr().cast(), address.len() as u32) }).map(drop)
}

/// listen(2).
pub fn listen(fd: i32, backlog: i32) -> Result<()> {
    // SAFETY: integers.
    number(unsafe { libc::listen(fd, backlog) }).map(drop)
}

/// accept(2): the descriptor, which does not block, and the peer's `struct sockaddr`.
pub fn accept(fd: i32) -> Result<(i32, Vec<u8>)> {
    let mut address = vec![0; size_of::<libc::sockaddr_storage>()];
    let mut len = address.len() as u32;
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: room for the address and its length.
    let accepted = number(unsafe { libc::accept4(fd, address.as_mut_ptr().cast(), &mut len, flags) })?;
    address.truncate(len as usize);
    Ok((accepted, address))
}

/// recvmsg(2) into several buffers, which are filled in order.
pub fn receive(fd: i32, out: &mut [&mut [u8]], flags: i32) -> Result<usize> {
    let mut parts: Vec<_> = out.iter_mut().map(|b| iovec(b.as_mut_ptr().cast(), b.len())).collect();
    let mut message = message(&mut parts);
    // SAFETY: the message names writable buffers that live on.
    count(unsafe { libc::recvmsg(fd, &mut message, flags) })
}

/// sendmsg(2) from several buffers, in order.
pub fn send(fd: i32, data: &[&[u8]], flags: i32) -> Result<usize> {
    let mut parts: Vec<_> = data.iter().map(|b| iovec(b.as_ptr().cast_mut().cast(), b.len())).collect();
    let message = message(&mut parts);
    // SAFETY: the message names readable buffers that live on.
    count(unsafe { libc::sendmsg(fd, &message, flags | libc::MSG_NOSIGNAL) })
}

fn iovec(base: *mut c_void, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base, iov_len: len }
}

fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeros are a message without anything.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len() as _);
    message
}

/// shutdown(2).
pub fn shutdown(fd: i32, how: i32) -> Result<()> {
    // SAFETY: integers.
    number(unsafe { libc::shutdown(fd, how) }).map(drop)
}

/// close(2) of a descriptor that came from here, once.
pub fn close(fd: i32) -> Result<()> {
    // SAFETY: whoever has the number owns the descriptor.
    number(unsafe { libc::close(fd) }).map(drop)
}

/// ioctl(2) that gives an integer: `SIOCINQ`, `SIOCOUTQ`, `SIOCOUTQNSD`.
pub fn ioctl(fd: i32, request: u64) -> Result<i32> {
    const NOT_SENT: u64 = 0x894b;
    if !matches!(request, libc::FIONREAD | libc::TIOCOUTQ | NOT_SENT) {
        return Err(libc::ENOTTY);
    }
    let mut out: c_int = 0;
    // SAFETY: these requests write an int.
    number(unsafe { libc::ioctl(fd, request as _, &mut out) }).map(|_| out)
}

/// setsockopt(2).
pub fn set_option(fd: i32, level: i32, name: i32, value: &[u8]) -> Result<()> {
    // SAFETY: readable bytes and their number.
    number(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as u32) }).map(drop)
}

/// getsockopt(2): at most `room` bytes.
pub fn option(fd: i32, level: i32, name: i32, room: usize) -> Result<Vec<u8>> {
    let mut value = vec![0; room];
    let mut len = room as u32;
    // SAFETY: writable bytes and their number.
    number(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) })?;
    value.truncate(len as usize);
    Ok(value)
}

/// poll(2) on `(descriptor, events)`: what is returned for each.
pub fn poll(fds: &[(i32, i16)], timeout_ms: i32) -> Result<Vec<i16>> {
    let mut fds: Vec<_> =
        fds.iter().map(|(fd, events)| libc::pollfd { fd: *fd, events: *events, revents: 0 }).collect();
    // SAFETY: as many entries as are named.
    number(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, timeout_ms) })?;
    Ok(fds.iter().map(|f| f.revents).collect())
}

/// Whether `fd` has something to read within so many microseconds.
pub fn readable_within(fd: i32, micros: u64) -> bool {
    let mut fds = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = libc::timespec { tv_sec: (micros / 1_000_000) as _, tv_nsec: (micros % 1_000_000 * 1000) as _ };
    // SAFETY: one entry, a time, no signal mask.
    unsafe { libc::ppoll(&mut fds, 1, &time, core::ptr::null()) == 1 }
}

/// epoll_create1(2).
pub fn epoll_create() -> Result<i32> {
    // SAFETY: an integer.
    number(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// epoll_ctl(2).
pub fn epoll_ctl(epoll: i32, op: i32, fd: i32, events: u32, data: u64) -> Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: an event that the call reads.
    number(unsafe { libc::epoll_ctl(epoll, op, fd, &mut event) }).map(drop)
}

/// epoll_wait(2): events and data, at most `most`.
pub fn epoll_wait(epoll: i32, most: i32, timeout_ms: i32) -> Result<Vec<(u32, u64)>> {
    let room = usize::try_from(most).ok().filter(|n| (1..=4096).contains(n)).ok_or(libc::EINVAL)?;
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; room];
    // SAFETY: room for as many events as are named.
    let n = number(unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, timeout_ms) })?;
    events.truncate(n as usize);
    Ok(events.iter().map(|e| (e.events, e.u64)).collect())
}

/// Gives the calling thread a network namespace of its own.
pub fn new_network() -> io::Result<()> {
    // SAFETY: a flag; no file is shared by it.
    number(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop).map_err(io::Error::from_raw_os_error)
}

/// Lets the calling thread run before all ordinary ones, where it may.
pub fn hurry() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: of the calling thread, with a structure that the call reads.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &priority) };
}

/// A TUN device of bare IP packets, which lives as long as the file.
pub fn tun(name: &str) -> io::Result<File> {
    /// The part of `struct ifreq` that the request reads.
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: IFF_TUN | IFF_NO_PI, rest: [0; 22] };
    request.name.iter_mut().zip(name.bytes()).take(15).for_each(|(to, from)| *to = from);
    // SAFETY: a whole `struct ifreq`, which the kernel reads and writes during the call.
    number(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) })
        .map_err(io::Error::from_raw_os_error)?;
    Ok(file)
}
