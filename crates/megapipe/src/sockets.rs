//! Calls on what an int names: a descriptor, a lightweight socket, a listener.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};

use capi::info;
use capi::options::{self, Asked, Value};
use capi::{Errno, Result};
use channel::{Address, Capabilities, Channel, Listener, LwSocket, SockOption};
use libc::{c_int, c_void, sockaddr, socklen_t};

use crate::mine::{self, Slot};

/// What an int names.
pub enum Named {
    Fd(RawFd),
    Light(LwSocket),
    Listener(Listener),
}

/// What an int names; a negative one nothing.
pub fn named(fd: c_int) -> Result<Named> {
    match (LwSocket::from_number(fd), Listener::from_number(fd)) {
        (Some(light), _) => Ok(Named::Light(light)),
        (_, Some(listener)) => Ok(Named::Listener(listener)),
        _ if fd < 0 => Err(Errno::BADF),
        _ => Ok(Named::Fd(fd)),
    }
}

fn last(result: c_int) -> Result<c_int> {
    if result < 0 { Err(capi::errno::of_io(&io::Error::last_os_error())) } else { Ok(result) }
}

/// An address that a program passes.
///
/// # Safety
///
/// `at` is null, or has `len` readable bytes.
pub unsafe fn address(at: *const sockaddr, len: socklen_t) -> Result<Address> {
    if at.is_null() {
        return Err(Errno::FAULT);
    }
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null; the rest is the caller's word.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast(), len as usize) };
    Address::from_bytes(bytes).map_err(|e| capi::errno::of_io(&e))
}

/// Copies an address to where a program wants it.
///
/// # Safety
///
/// `len` is null or holds a length; `out` is null or has as many writable bytes.
unsafe fn give(address: &Address, out: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if out.is_null() || len.is_null() {
        return Err(Errno::FAULT);
    }
    let bytes = address.as_bytes();
    // SAFETY: not null; the rest is the caller's word.
    unsafe {
        let room = usize::try_from(*len as i32).map_err(|_| Errno::INVAL)?;
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len().min(room));
        *len = bytes.len() as socklen_t;
    }
    Ok(())
}

pub fn socket(channel: *mut Slot, domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    mine::with(channel, |channel| {
        let plain = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let tcp = plain == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
        if channel.capabilities().has(Capabilities::LANE) && tcp && matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return channel.socket(domain == libc::AF_INET6).map(LwSocket::number);
        }
        // SAFETY: no memory is passed.
        match unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) } {
            fd @ 0.. => Ok(fd),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

pub fn close(channel: *mut Slot, fd: c_int) -> Result<()> {
    match named(fd)? {
        Named::Light(light) => mine::with(channel, |channel| channel.close(light)),
        Named::Listener(listener) => listener.close().map_err(|e| capi::errno::of_io(&e)),
        Named::Fd(fd) => {
            mine::with(channel, |channel| match channel.has_registered(fd) {
                true => Err(io::Error::from_raw_os_error(libc::EBUSY)),
                false => Ok(()),
            })?;
            // SAFETY: the caller's own descriptor, which it asks to be closed.
            last(unsafe { libc::close(fd) }).map(drop)
        }
    }
}

pub fn bind(channel: *mut Slot, fd: c_int, to: &Address) -> Result<()> {
    match named(fd)? {
        Named::Light(light) => mine::with(channel, |channel| channel.bind(light, to)),
        Named::Listener(_) => Err(Errno::INVAL),
        Named::Fd(fd) => {
            mine::with(channel, |_| Ok(()))?;
            let bytes = to.as_bytes();
            // SAFETY: the address is as long as is said.
            last(unsafe { libc::bind(fd, bytes.as_ptr().cast(), bytes.len() as socklen_t) }).map(drop)
        }
    }
}

pub fn listen(channel: *mut Slot, fd: c_int, backlog: c_int) -> Result<()> {
    match named(fd)? {
        Named::Listener(_) => Err(Errno::INVAL),
        Named::Fd(_) | Named::Light(_) => mine::with(channel, |channel| {
            // SAFETY: no memory is passed.
            let kernels = descriptor(channel, fd, |fd| match unsafe { libc::listen(fd, backlog) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            })?;
            match (kernels, LwSocket::from_number(fd)) {
                (None, Some(light)) => channel.listen(light, backlog),
                _ => Ok(()),
            }
        }),
    }
}

/// getsockname, or getpeername.
///
/// # Safety
///
/// `len` is null or holds a length; `out` is null or has as many writable bytes.
pub unsafe fn name(channel: *mut Slot, fd: c_int, peer: bool, out: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    let address = match named(fd)? {
        Named::Listener(_) if peer => return Err(Errno::NOTCONN),
        Named::Listener(listener) => listener.address().map_err(|e| capi::errno::of_io(&e))?,
        Named::Light(light) if peer => mine::with(channel, |channel| channel.peer_addr(light))?,
        Named::Light(light) => mine::with(channel, |channel| channel.local_addr(light))?,
        Named::Fd(fd) => {
            mine::with(channel, |_| Ok(()))?;
            if out.is_null() || len.is_null() {
                return Err(Errno::FAULT);
            }
            let call = if peer { libc::getpeername } else { libc::getsockname };
            // SAFETY: the caller's word.
            return last(unsafe { call(fd, out, len) }).map(drop);
        }
    };
    // SAFETY: the caller's word.
    unsafe { give(&address, out, len) }
}

/// A descriptor for a call: the caller's, or one for a lightweight socket of the kernel's. `None`: it is a lane's.
fn descriptor<T>(channel: &mut Channel, fd: c_int, f: impl FnOnce(RawFd) -> io::Result<T>) -> io::Result<Option<T>> {
    match LwSocket::from_number(fd) {
        None => f(fd).map(Some),
        Some(light) => match channel.with_descriptor(light, |fd| f(fd.as_raw_fd())) {
            Ok(answer) => Ok(Some(answer)),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(e) => Err(e),
        },
    }
}

fn no_listener(fd: c_int) -> Result<()> {
    if matches!(named(fd)?, Named::Listener(_)) { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}

/// setsockopt.
pub fn set_option(channel: *mut Slot, fd: c_int, level: c_int, option: c_int, value: &[u8]) -> Result<()> {
    no_listener(fd)?;
    let kernels = mine::with(channel, |channel| {
        descriptor(channel, fd, |fd| {
            let len = value.len() as socklen_t;
            // SAFETY: the value is as long as is said.
            match unsafe { libc::setsockopt(fd, level, option, value.as_ptr().cast(), len) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    })?;
    let (None, Some(light)) = (kernels, LwSocket::from_number(fd)) else { return Ok(()) };
    let option = options::parse(level, option, value)?;
    mine::with(channel, |channel| channel.set_option(light, option))
}

/// getsockopt.
///
/// # Safety
///
/// `len` is null or holds a length; `out` is null or has as many writable bytes.
pub unsafe fn option(
    channel: *mut Slot,
    fd: c_int,
    level: c_int,
    option: c_int,
    out: *mut c_void,
    len: *mut socklen_t,
) -> Result<()> {
    no_listener(fd)?;
    if out.is_null() || len.is_null() {
        return Err(Errno::FAULT);
    }
    let kernels = mine::with(channel, |channel| {
        // SAFETY: the caller's word.
        descriptor(channel, fd, |fd| match unsafe { libc::getsockopt(fd, level, option, out, len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    })?;
    let (None, Some(light)) = (kernels, LwSocket::from_number(fd)) else { return Ok(()) };
    let asked = options::asked(level, option)?;
    let value = mine::with(channel, |channel| lane_option(channel, light, asked))?;
    // SAFETY: the caller's word.
    unsafe { value.write(out, len) }
}

/// What getsockopt tells of a lane's socket.
fn lane_option(channel: &mut Channel, light: LwSocket, asked: Asked) -> io::Result<Value> {
    Ok(match asked {
        Asked::Option(like) => options::shown(channel.option(light, like)?),
        Asked::Error => Value::int(channel.take_error(light)?.and_then(|e| e.raw_os_error()).unwrap_or(0)),
        Asked::Info => info::tcp_info(&channel.tcp_info(light)?),
        Asked::SegmentSize => options::shown(match channel.tcp_info(light) {
            Ok(info) => SockOption::MaxSegment(info.snd_mss as u32),
            Err(_) => channel.option(light, SockOption::MaxSegment(0))?,
        }),
        Asked::CongestionInfo => Value::of(&[]),
        Asked::Memory => {
            let (received, queued) = channel.held(light)?;
            let mut size = |like| match channel.option(light, like) {
                Ok(SockOption::SendBuffer(n) | SockOption::ReceiveBuffer(n)) => n as u64,
                _ => 0,
            };
            let (receive, send) = (size(SockOption::ReceiveBuffer(0)), size(SockOption::SendBuffer(0)));
            info::meminfo(received as u64, receive, queued as u64, send)
        }
    })
}

pub fn to_fd(channel: *mut Slot, fd: c_int) -> Result<c_int> {
    let Named::Light(light) = named(fd)? else { return Err(Errno::BADF) };
    mine::with(channel, |channel| channel.descriptor(light)).map(IntoRawFd::into_raw_fd)
}
