//! System calls that rustix does not have in the form needed here.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::address::Address;
use crate::errno;

fn done(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(crate) fn option(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value has room for `len` bytes.
    done(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len) })?;
    Ok(value)
}

pub(crate) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value is `len` bytes long.
    done(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) })?;
    Ok(())
}

/// The longest value of an option that is copied from socket to socket; a name of congestion control has 16.
const MOST_VALUE: usize = 64;

pub(crate) fn option_bytes(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; MOST_VALUE];
    let mut len = MOST_VALUE as libc::socklen_t;
    // SAFETY: the value has room for `len` bytes.
    done(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len) })?;
    value.truncate(len as usize);
    Ok(value)
}

pub(crate) fn set_option_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the value is `len` bytes long.
    done(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) })?;
    Ok(())
}

/// SO_COOKIE: a number that no other socket has had since the machine started.
pub(crate) fn cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut value = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    let into = (&raw mut value).cast();
    // SAFETY: the value has room for `len` bytes.
    done(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, into, &mut len) })?;
    Ok(value)
}

/// Of a TCP listener: connections that wait to be accepted, and how many may.
pub(crate) fn backlog(fd: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    // SAFETY: numbers alone, of which all may be 0.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let into = (&raw mut info).cast();
    // SAFETY: `info` has room for `len` bytes.
    done(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, into, &mut len) })?;
    Ok((info.tcpi_unacked, info.tcpi_sacked))
}

pub(crate) fn shutdown(fd: RawFd, how: i32) -> io::Result<usize> {
    // SAFETY: no memory is involved.
    done(unsafe { libc::shutdown(fd, how) }).map(|_| 0)
}

/// Waits until all that the kernel began before, as the way of a packet up to its socket, is over (an RCU grace period), where it
/// can be asked for that; else for a while that mostly is enough.
pub(crate) fn after_what_is_under_way() {
    const GLOBAL: i32 = 1;
    // SAFETY: no memory is passed.
    if unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) } != 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

pub(crate) fn local(fd: BorrowedFd<'_>) -> io::Result<Address> {
    // SAFETY: `filled` gives a place with room for as many bytes as its length says.
    Address::filled(|at, len| unsafe { libc::getsockname(fd.as_raw_fd(), at, len) })
}

pub(crate) fn peer(fd: BorrowedFd<'_>) -> io::Result<Address> {
    // SAFETY: as above.
    Address::filled(|at, len| unsafe { libc::getpeername(fd.as_raw_fd(), at, len) })
}

pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = done(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: a new descriptor, nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn bind(fd: BorrowedFd<'_>, address: &Address) -> io::Result<()> {
    let (at, len) = address.as_ptr();
    // SAFETY: `at` points to `len` bytes.
    done(unsafe { libc::bind(fd.as_raw_fd(), at, len) })?;
    Ok(())
}

pub(crate) fn listen(fd: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    done(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    Ok(())
}

/// The descriptor of a caller, for the length of a call; EBADF where there is none.
pub(crate) fn borrow<'a>(fd: RawFd) -> io::Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(errno(libc::EBADF));
    }
    // SAFETY: not -1; and a number that names no file is an error of whatever call it is used in.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}
