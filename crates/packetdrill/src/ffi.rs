//! The C interface: raw pointers become slices here and nowhere else.

use core::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use core::{ptr, slice};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use libc::{epoll_event, iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval, timezone};
use rustix::io::Errno;

use crate::config;
use crate::plugin::{Plugin, Result};

type Data = *mut c_void;
type Addr = *const sockaddr;
type AddrOut = *mut sockaddr;
type LenOut = *mut socklen_t;

/// The table that the tool takes, in its order.
#[repr(C)]
#[allow(missing_docs)]
pub struct Interface {
    pub userdata: Data,
    pub free: unsafe extern "C" fn(Data),
    pub socket: unsafe extern "C" fn(Data, c_int, c_int, c_int) -> c_int,
    pub bind: unsafe extern "C" fn(Data, c_int, Addr, socklen_t) -> c_int,
    pub listen: unsafe extern "C" fn(Data, c_int, c_int) -> c_int,
    pub accept: unsafe extern "C" fn(Data, c_int, AddrOut, LenOut) -> c_int,
    pub connect: unsafe extern "C" fn(Data, c_int, Addr, socklen_t) -> c_int,
    pub read: unsafe extern "C" fn(Data, c_int, *mut c_void, size_t) -> ssize_t,
    pub readv: unsafe extern "C" fn(Data, c_int, *const iovec, c_int) -> ssize_t,
    pub recv: unsafe extern "C" fn(Data, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub recvfrom: unsafe extern "C" fn(Data, c_int, *mut c_void, size_t, c_int, AddrOut, LenOut) -> ssize_t,
    pub recvmsg: unsafe extern "C" fn(Data, c_int, *mut msghdr, c_int) -> ssize_t,
    pub write: unsafe extern "C" fn(Data, c_int, *const c_void, size_t) -> ssize_t,
    pub writev: unsafe extern "C" fn(Data, c_int, *const iovec, c_int) -> ssize_t,
    pub send: unsafe extern "C" fn(Data, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub sendto: unsafe extern "C" fn(Data, c_int, *const c_void, size_t, c_int, Addr, socklen_t) -> ssize_t,
    pub sendmsg: unsafe extern "C" fn(Data, c_int, *const msghdr, c_int) -> ssize_t,
    /// Variadic for the caller: on Linux's ABIs the third argument lies where a fixed one does.
    pub fcntl: unsafe extern "C" fn(Data, c_int, c_int, c_long) -> c_int,
    /// The same.
    pub ioctl: unsafe extern "C" fn(Data, c_int, c_ulong, *mut c_int) -> c_int,
    pub close: unsafe extern "C" fn(Data, c_int) -> c_int,
    pub shutdown: unsafe extern "C" fn(Data, c_int, c_int) -> c_int,
    pub getsockopt: unsafe extern "C" fn(Data, c_int, c_int, c_int, *mut c_void, LenOut) -> c_int,
    pub setsockopt: unsafe extern "C" fn(Data, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub poll: unsafe extern "C" fn(Data, *mut pollfd, nfds_t, c_int) -> c_int,
    pub netdev_send: unsafe extern "C" fn(Data, *const c_void, size_t) -> c_int,
    pub netdev_receive: unsafe extern "C" fn(Data, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub usleep: unsafe extern "C" fn(Data, c_uint) -> c_int,
    pub gettimeofday: unsafe extern "C" fn(Data, *mut timeval, *mut timezone) -> c_int,
    pub epoll_create: unsafe extern "C" fn(Data, c_int) -> c_int,
    pub epoll_ctl: unsafe extern "C" fn(Data, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub epoll_wait: unsafe extern "C" fn(Data, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub pipe: unsafe extern "C" fn(Data, *mut c_int) -> c_int,
    pub splice: unsafe extern "C" fn(Data, c_int, *mut i64, c_int, *mut i64, size_t, c_uint) -> ssize_t,
}

/// The run in progress, for a preloaded `getsockopt`, which gets no `userdata`.
static CURRENT: Mutex<Weak<Plugin>> = Mutex::new(Weak::new());

/// Fills the tool's table.
///
/// Flags that cannot be read end the process: the tool expects no failure here.
///
/// # Safety
/// `flags` is null or a C string; `interface` is room for the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, interface: *mut Interface) {
    let text = match flags.is_null() {
        true => "",
        // SAFETY: a C string, says the caller.
        false => unsafe { CStr::from_ptr(flags) }.to_str().unwrap_or("?"),
    };
    let config = config::machine(text).unwrap_or_else(|error| {
        eprintln!("corelane: --so_flags: {error}");
        std::process::exit(1);
    });
    let plugin = Arc::new(Plugin::new(config));
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&plugin);
    let table = Interface {
        userdata: Arc::into_raw(plugin).cast_mut().cast(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt: get_option,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    };
    // SAFETY: room for the table, says the caller.
    unsafe { interface.write(table) };
}

/// An integer that a call gives.
trait Answer {
    fn from_count(n: usize) -> Self;
    fn failed() -> Self;
}

impl Answer for c_int {
    fn from_count(n: usize) -> c_int {
        n as c_int
    }
    fn failed() -> c_int {
        -1
    }
}

impl Answer for ssize_t {
    fn from_count(n: usize) -> ssize_t {
        n as ssize_t
    }
    fn failed() -> ssize_t {
        -1
    }
}

/// What C expects: the value, or -1 and `errno`.
fn answer<T: Answer>(result: Result<usize>) -> T {
    match result {
        Ok(n) => T::from_count(n),
        Err(e) => {
            // SAFETY: it is this thread's own.
            unsafe { *libc::__errno_location() = e.raw_os_error() };
            T::failed()
        }
    }
}

fn done(result: Result<()>) -> c_int {
    answer(result.map(|()| 0))
}

fn number(result: Result<c_int>) -> c_int {
    answer(result.map(|n| n as usize))
}

/// # Safety
/// `data` comes from [`packetdrill_interface_init`] and has not been freed.
unsafe fn plugin<'a>(data: Data) -> &'a Plugin {
    // SAFETY: an `Arc`'s pointer that is given back in `free` only.
    unsafe { &*data.cast_const().cast::<Plugin>() }
}

/// # Safety
/// Null, or `len` readable bytes that outlive the call.
unsafe fn bytes<'a>(at: *const c_void, len: usize) -> &'a [u8] {
    // SAFETY: the caller's word.
    if at.is_null() { &[] } else { unsafe { slice::from_raw_parts(at.cast(), len) } }
}

/// # Safety
/// Null, or `len` writable bytes that outlive the call and nobody else touches meanwhile.
unsafe fn bytes_mut<'a>(at: *mut c_void, len: usize) -> &'a mut [u8] {
    // SAFETY: the caller's word.
    if at.is_null() { &mut [] } else { unsafe { slice::from_raw_parts_mut(at.cast(), len) } }
}

/// # Safety
/// `iov` is `n` buffers as in [`bytes_mut`].
unsafe fn buffers<'a>(iov: *const iovec, n: usize) -> Vec<&'a mut [u8]> {
    // SAFETY: the caller's word.
    let parts = if iov.is_null() { &[] } else { unsafe { slice::from_raw_parts(iov, n) } };
    // SAFETY: the same.
    parts.iter().map(|v| unsafe { bytes_mut(v.iov_base, v.iov_len) }).collect()
}

/// # Safety
/// `iov` is `n` buffers as in [`bytes`].
unsafe fn sources<'a>(iov: *const iovec, n: usize) -> Vec<&'a [u8]> {
    // SAFETY: the caller's word.
    let parts = if iov.is_null() { &[] } else { unsafe { slice::from_raw_parts(iov, n) } };
    // SAFETY: the same.
    parts.iter().map(|v| unsafe { bytes(v.iov_base, v.iov_len) }).collect()
}

/// # Safety
/// As [`bytes_mut`].
unsafe fn take(p: &Plugin, fd: c_int, buf: *mut c_void, n: usize, flags: c_int) -> Result<usize> {
    if buf.is_null() && n > 0 {
        return p.nowhere(fd, flags, true);
    }
    // SAFETY: the caller's word.
    p.receive(fd, &mut [unsafe { bytes_mut(buf, n) }], flags)
}

/// # Safety
/// As [`bytes`].
unsafe fn put(p: &Plugin, fd: c_int, buf: *const c_void, n: usize, flags: c_int) -> Result<usize> {
    if buf.is_null() && n > 0 {
        return p.nowhere(fd, flags, false);
    }
    // SAFETY: the caller's word.
    p.send(fd, &[unsafe { bytes(buf, n) }], flags)
}

/// Copies what fits of `value` to `out`, and its length to `len`, as accept and getsockopt do: the one gives the whole
/// length, the other what was copied.
///
/// # Safety
/// `len` is null or holds the bytes that `out` has.
unsafe fn give(value: &[u8], out: *mut c_void, len: LenOut, whole: bool) {
    if len.is_null() || out.is_null() {
        return;
    }
    // SAFETY: the caller's word.
    unsafe {
        let n = value.len().min(*len as usize);
        ptr::copy_nonoverlapping(value.as_ptr(), out.cast(), n);
        *len = if whole { value.len() } else { n } as socklen_t;
    }
}

/// Writes the control message of TCP_INQ, where there is room; its length.
fn inq(room: &mut [u8], left: i32) -> usize {
    const TCP_CM_INQ: i32 = 36;
    // A `struct cmsghdr` and an int, padded to words.
    let Some(room) = room.get_mut(..24) else { return 0 };
    room[..8].copy_from_slice(&20usize.to_ne_bytes());
    for (at, value) in [(8, libc::IPPROTO_TCP), (12, TCP_CM_INQ), (16, left), (20, 0)] {
        room[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    24
}

macro_rules! interface {
    ($($name:ident($plugin:ident $(, $arg:ident: $kind:ty)*) -> $result:ty $body:block)*) => {
        $(unsafe extern "C" fn $name(data: Data $(, $arg: $kind)*) -> $result {
            // SAFETY: the tool passes the table's `userdata`, and arguments as the system call of that name has them;
            // each pointer is used as the call's manual says.
            unsafe {
                let $plugin = plugin(data);
                $body
            }
        })*
    };
}

interface! {
    socket(p, domain: c_int, kind: c_int, protocol: c_int) -> c_int { number(p.socket(domain, kind, protocol)) }
    bind(p, fd: c_int, addr: Addr, len: socklen_t) -> c_int { done(p.bind(fd, bytes(addr.cast(), len as usize))) }
    listen(p, fd: c_int, backlog: c_int) -> c_int { done(p.listen(fd, backlog)) }
    accept(p, fd: c_int, addr: AddrOut, len: LenOut) -> c_int {
        number(p.accept(fd).map(|(fd, from)| {
            give(from.as_bytes(), addr.cast(), len, true);
            fd
        }))
    }
    connect(p, fd: c_int, addr: Addr, len: socklen_t) -> c_int { done(p.connect(fd, bytes(addr.cast(), len as usize))) }
    read(p, fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t { answer(take(p, fd, buf, n, 0)) }
    readv(p, fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        answer(p.receive(fd, &mut buffers(iov, n.max(0) as usize), 0))
    }
    recv(p, fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t { answer(take(p, fd, buf, n, flags)) }
    recvfrom(p, fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, _addr: AddrOut, len: LenOut) -> ssize_t {
        // A stream names no sender.
        if !len.is_null() {
            *len = 0;
        }
        answer(take(p, fd, buf, n, flags))
    }
    recvmsg(p, fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
        let msg = &mut *msg;
        let result = p.receive(fd, &mut buffers(msg.msg_iov, msg.msg_iovlen), flags);
        if result.is_ok() {
            let room = bytes_mut(msg.msg_control, msg.msg_controllen);
            (msg.msg_namelen, msg.msg_controllen, msg.msg_flags) = (0, p.left(fd).map_or(0, |n| inq(room, n)), 0);
        }
        answer(result)
    }
    write(p, fd: c_int, buf: *const c_void, n: size_t) -> ssize_t { answer(put(p, fd, buf, n, 0)) }
    writev(p, fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        answer(p.send(fd, &sources(iov, n.max(0) as usize), 0))
    }
    send(p, fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
        answer(put(p, fd, buf, n, flags))
    }
    sendto(p, fd: c_int, buf: *const c_void, n: size_t, flags: c_int, _addr: Addr, _len: socklen_t) -> ssize_t {
        // A stream has its address; one given here is ignored, as Linux does.
        answer(put(p, fd, buf, n, flags))
    }
    sendmsg(p, fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
        let msg = &*msg;
        answer(p.send(fd, &sources(msg.msg_iov, msg.msg_iovlen), flags))
    }
    fcntl(p, fd: c_int, command: c_int, argument: c_long) -> c_int { number(p.fcntl(fd, command, argument as c_int)) }
    ioctl(p, fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int {
        done(p.ioctl(fd, request).map(|n| *argument = n))
    }
    close(p, fd: c_int) -> c_int {
        // What is not ours, such as a pipe, is libc's.
        let ours = p.close(fd);
        match libc::close(fd) {
            0 if matches!(ours, Err(Errno::BADF)) => 0,
            0 => done(ours),
            _ => -1,
        }
    }
    shutdown(p, fd: c_int, how: c_int) -> c_int { done(p.shutdown(fd, how)) }
    get_option(p, fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: LenOut) -> c_int {
        done(p.option(fd, level, name).map(|v| give(v.as_bytes(), value, len, false)))
    }
    setsockopt(p, fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        done(p.set_option(fd, level, name, bytes(value, len as usize)))
    }
    poll(p, fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        let fds = if fds.is_null() { &mut [] } else { slice::from_raw_parts_mut(fds, n as usize) };
        let asked: Vec<_> = fds.iter().map(|f| (f.fd, f.events)).collect();
        let mut returned = vec![0; asked.len()];
        let result = p.poll(&asked, &mut returned, timeout);
        fds.iter_mut().zip(returned).for_each(|(f, r)| f.revents = r);
        answer(result)
    }
    netdev_send(p, buf: *const c_void, n: size_t) -> c_int {
        p.inject(bytes(buf, n));
        0
    }
    netdev_receive(p, buf: *mut c_void, n: *mut size_t, micros: *mut c_longlong) -> c_int {
        let room = bytes_mut(buf, *n);
        *n = 0;
        if let Some((at, packet)) = p.sniff() {
            *n = packet.len().min(room.len());
            room[..*n].copy_from_slice(&packet[..*n]);
            *micros = at.micros() as c_longlong;
        }
        0
    }
    usleep(p, micros: c_uint) -> c_int {
        p.pause(Duration::from_micros(micros as u64));
        0
    }
    gettimeofday(p, out: *mut timeval, _zone: *mut timezone) -> c_int {
        let now = p.now().micros();
        *out = timeval { tv_sec: (now / 1_000_000) as i64, tv_usec: (now % 1_000_000) as i64 };
        0
    }
    epoll_create(p, size: c_int) -> c_int {
        // Linux ignores the size, but for its sign.
        number(if size > 0 { p.epoll_create() } else { Err(Errno::INVAL) })
    }
    epoll_ctl(p, epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let (events, data) = if event.is_null() { (0, 0) } else { ((*event).events, (*event).u64) };
        done(p.epoll_ctl(epoll, op, fd, events, data))
    }
    epoll_wait(p, epoll: c_int, out: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
        answer(p.epoll_wait(epoll, most, timeout).map(|ready| {
            for (i, r) in ready.iter().enumerate() {
                out.add(i).write(epoll_event { events: r.events, u64: r.data });
            }
            ready.len()
        }))
    }
    pipe(_p, fds: *mut c_int) -> c_int { libc::pipe(fds) }
    splice(p, from: c_int, _off_in: *mut i64, to: c_int, _off_out: *mut i64, n: size_t, flags: c_uint) -> ssize_t {
        // Through a buffer, no longer than a pipe is.
        let mut buffer = vec![0; n.min(1 << 16)];
        let wait = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
        if p.owns(from) {
            let got = p.receive(from, &mut [&mut buffer], wait);
            return got.map_or_else(|e| answer(Err(e)), |got| libc::write(to, buffer.as_ptr().cast(), got));
        }
        let got = libc::read(from, buffer.as_mut_ptr().cast(), buffer.len());
        usize::try_from(got).map_or(-1, |got| answer(p.send(to, &[&buffer[..got]], wait)))
    }
}

unsafe extern "C" fn free(data: Data) {
    // SAFETY: the pointer that `Arc::into_raw` gave, for the last time. Descriptors that are still open are the tool's,
    // which has closed them by libc.
    drop(unsafe { Arc::from_raw(data.cast_const().cast::<Plugin>()) });
}

/// libc's `getsockopt` where the plug-in is preloaded: ours for our descriptors, the kernel's for all others.
///
/// # Safety
/// As getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: LenOut) -> c_int {
    let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
    match current.filter(|p| p.owns(fd)) {
        // SAFETY: the caller's word.
        Some(p) => done(p.option(fd, level, name).map(|v| unsafe { give(v.as_bytes(), value, len, false) })),
        // SAFETY: the same.
        None => unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::MaybeUninit;

    #[test]
    fn the_table_serves_and_sets_errno() {
        let mut table = MaybeUninit::<Interface>::uninit();
        // SAFETY: a C string and room for the table, which is then filled; calls get their own `userdata` and good pointers.
        unsafe {
            packetdrill_interface_init(c"local=10.0.0.1/8".as_ptr(), table.as_mut_ptr());
            let t = table.assume_init();
            let fd = (t.socket)(t.userdata, libc::AF_INET, libc::SOCK_STREAM, 0);
            assert!(fd >= 0);
            assert_eq!((t.listen)(t.userdata, fd, 1), 0);
            assert_eq!((t.fcntl)(t.userdata, fd, libc::F_SETFL, libc::O_NONBLOCK as c_long), 0);
            assert_eq!((t.accept)(t.userdata, fd, ptr::null_mut(), ptr::null_mut()), -1);
            assert_eq!(*libc::__errno_location(), libc::EAGAIN);
            let (mut kind, mut len) = (0i32, 4);
            assert_eq!(getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &mut len), 0);
            assert_eq!((kind, len), (libc::SOCK_STREAM, 4));
            // What is not ours is the kernel's.
            assert_eq!(getsockopt(-1, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &mut len), -1);
            assert_eq!(*libc::__errno_location(), libc::EBADF);
            let (mut n, mut at) = (99, 0);
            assert_eq!((t.netdev_receive)(t.userdata, [0u8; 99].as_mut_ptr().cast(), &mut n, &mut at), 0);
            assert_eq!(n, 0);
            assert_eq!((t.close)(t.userdata, fd), 0);
            assert_eq!((t.close)(t.userdata, fd), -1);
            (t.free)(t.userdata);
        }
    }
}
