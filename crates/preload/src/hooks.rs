//! Functions of the C library that a program calls here first. Each does its own small part and calls the next of its name.

use std::ffi::{c_char, c_int, c_void};
use std::slice;

use libc::{epoll_event, fd_set, msghdr, nfds_t, pollfd, sigset_t, sockaddr, socklen_t, ssize_t, timespec, timeval};

use crate::{environment, next, ports, process, table};

macro_rules! hooks {
    ($(fn $name:ident = $symbol:literal($($arg:ident: $type:ty),* $(,)?) { $($before:tt)* })*) => {
        $(#[unsafe(export_name = $symbol)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            $($before)*
            // SAFETY: the caller's arguments, for the function that it called.
            unsafe { next::$name($($arg),*) }
        })*
    };
}

hooks! {
    fn close = "close"(fd: c_int) {
        table::forget(fd);
    }
    fn dup2 = "dup2"(from: c_int, to: c_int) {
        if from != to {
            table::forget(to);
        }
    }
    fn dup3 = "dup3"(from: c_int, to: c_int, flags: c_int) {
        table::forget(to);
    }
    fn epoll_wait = "epoll_wait"(epoll: c_int, events: *mut epoll_event, n: c_int, timeout: c_int) {
        table::about_to_wait_elsewhere();
    }
    fn epoll_pwait = "epoll_pwait"(
        epoll: c_int,
        events: *mut epoll_event,
        n: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) {
        table::about_to_wait_elsewhere();
    }
    fn epoll_pwait2 = "epoll_pwait2"(
        epoll: c_int,
        events: *mut epoll_event,
        n: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) {
        table::about_to_wait_elsewhere();
    }
    fn poll = "poll"(fds: *mut pollfd, n: nfds_t, timeout: c_int) {
        // SAFETY: poll(2) is given as many.
        unsafe { about_to_poll(fds, n) };
    }
    fn ppoll = "ppoll"(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) {
        // SAFETY: as above.
        unsafe { about_to_poll(fds, n) };
    }
    fn poll_chk = "__poll_chk"(fds: *mut pollfd, n: nfds_t, timeout: c_int, bytes: usize) {
        if n as usize <= bytes / size_of::<pollfd>() {
            // SAFETY: as above, and as many fit.
            unsafe { about_to_poll(fds, n) };
        }
    }
    fn ppoll_chk = "__ppoll_chk"(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, bytes: usize) {
        if n as usize <= bytes / size_of::<pollfd>() {
            // SAFETY: as above.
            unsafe { about_to_poll(fds, n) };
        }
    }
    fn select = "select"(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) {
        // SAFETY: select(2) is given as many bits.
        unsafe { about_to_select(n, read) };
    }
    fn pselect = "pselect"(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) {
        // SAFETY: as above.
        unsafe { about_to_select(n, read) };
    }
    fn accept = "accept"(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) {
        table::about_to_accept(fd);
    }
    fn accept4 = "accept4"(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) {
        table::about_to_accept(fd);
    }
}

#[unsafe(export_name = "listen")]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let ours = table::about_to_listen(fd);
    // SAFETY: no memory is passed.
    let done = unsafe { next::listen(fd, backlog) };
    if ours && done == 0 {
        table::listens(fd);
    }
    done
}

#[unsafe(export_name = "connect")]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: connect(2) is given as many bytes.
    let Some(core) = (unsafe { ports::about_to_connect(fd, address, len) }) else {
        // SAFETY: the caller's arguments.
        return unsafe { next::connect(fd, address, len) };
    };
    // SAFETY: as above.
    let mut done = unsafe { next::connect(fd, address, len) };
    let exhausted = done != 0 && process::errno() == libc::EADDRNOTAVAIL && core.give_up(fd);
    if exhausted {
        // SAFETY: as above.
        done = unsafe { next::connect(fd, address, len) };
    }
    if done == 0 || process::errno() == libc::EINPROGRESS {
        core.count(exhausted);
    }
    done
}

#[unsafe(export_name = "epoll_ctl")]
unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let joins = operation == libc::EPOLL_CTL_ADD && table::joins(fd);
    // SAFETY: the caller's arguments.
    let done = unsafe { next::epoll_ctl(epoll, operation, fd, event) };
    if joins {
        table::joined(fd, done == 0);
    } else if operation == libc::EPOLL_CTL_DEL && done == 0 {
        table::left(fd);
    }
    done
}

#[unsafe(export_name = "execve")]
unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    if !table::passes_listeners() {
        // SAFETY: the caller's arguments.
        return unsafe { next::execve(path, arguments, variables) };
    }
    // SAFETY: execve(2) is given as much, and the caller's arguments.
    unsafe { environment::completed(variables, |variables| next::execve(path, arguments, variables)) }
}

#[unsafe(export_name = "recvmsg")]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's arguments.
    let got = unsafe { next::recvmsg(fd, message, flags) };
    // SAFETY: recvmsg(2) has filled it.
    if got >= 0 && unsafe { (*message).msg_controllen } > 0 {
        // SAFETY: as above.
        unsafe { each_received(message, table::adopt) };
    }
    got
}

/// Calls `f` for each descriptor that came with a message (SCM_RIGHTS).
///
/// # Safety
///
/// `message` is one that recvmsg(2) has filled.
unsafe fn each_received(message: *const msghdr, f: impl Fn(c_int)) {
    // SAFETY: the macros stay within the control messages that the kernel has written.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(header).cast::<c_int>();
                (0..bytes / size_of::<c_int>()).for_each(|at| f(fds.add(at).read_unaligned()));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

#[unsafe(export_name = "setsockopt")]
unsafe extern "C" fn setsockopt(fd: c_int, level: c_int, option: c_int, value: *const c_void, len: socklen_t) -> c_int {
    // SAFETY: the caller's arguments.
    let done = unsafe { next::setsockopt(fd, level, option, value, len) };
    let attaches = matches!(option, libc::SO_ATTACH_REUSEPORT_CBPF | libc::SO_ATTACH_REUSEPORT_EBPF);
    if attaches && level == libc::SOL_SOCKET && done == 0 {
        table::attached(fd);
    }
    if level == libc::IPPROTO_IP && option == ports::LOCAL_PORT_RANGE {
        ports::leave_to_program();
    }
    done
}

/// # Safety
///
/// `fds` points to `n` entries, or to none where `n` is 0.
unsafe fn about_to_poll(fds: *const pollfd, n: nfds_t) {
    if fds.is_null() || n == 0 {
        return;
    }
    // SAFETY: the caller's.
    let fds = unsafe { slice::from_raw_parts(fds, n as usize) };
    for entry in fds.iter().filter(|entry| entry.events & (libc::POLLIN | libc::POLLRDNORM) != 0) {
        table::about_to_wait(entry.fd);
    }
}

/// # Safety
///
/// `read` is null or has `n` bits, as whole words: it may be longer than an `fd_set`.
unsafe fn about_to_select(n: c_int, read: *const fd_set) {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let n = usize::try_from(n).unwrap_or(0);
    if read.is_null() || n == 0 {
        return;
    }
    // SAFETY: the caller's.
    let words = unsafe { slice::from_raw_parts(read.cast::<libc::c_ulong>(), n.div_ceil(BITS)) };
    for (at, word) in words.iter().enumerate() {
        let mut left = *word;
        while left != 0 {
            let fd = at * BITS + left.trailing_zeros() as usize;
            if fd < n {
                table::about_to_wait(fd as c_int);
            }
            left &= left - 1;
        }
    }
}
