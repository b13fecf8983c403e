//! The functions that this library stands in front of: the next ones of their names, another preloaded library's or the C library's.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{epoll_event, fd_set, msghdr, nfds_t, pollfd, sigset_t, sockaddr, socklen_t, ssize_t, timespec, timeval};

use crate::process;

/// A function by name, looked up once.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// The function's address; null where no library has it.
    fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($arg:ident: $type:ty),* $(,)?) -> $out:ty;)*) => {
        $(
        mod $name {
            pub(super) static NEXT: super::Next = super::Next::new($symbol);
        }

        /// The C library's function of this name.
        ///
        /// # Safety
        ///
        /// The function's own conditions.
        pub unsafe fn $name($($arg: $type),*) -> $out {
            let found = $name::NEXT.get();
            if found.is_null() {
                process::set_errno(libc::ENOSYS);
                return -1;
            }
            // SAFETY: a function of this name has these arguments.
            let function: unsafe extern "C" fn($($type),*) -> $out = unsafe { transmute_copy(&found) };
            // SAFETY: the caller's.
            unsafe { function($($arg),*) }
        }
        )*

        /// Looks all of them up.
        pub fn resolve() {
            $($name::NEXT.get();)*
        }
    };
}

functions! {
    listen = c"listen": fn(fd: c_int, backlog: c_int) -> c_int;
    close = c"close": fn(fd: c_int) -> c_int;
    dup2 = c"dup2": fn(from: c_int, to: c_int) -> c_int;
    dup3 = c"dup3": fn(from: c_int, to: c_int, flags: c_int) -> c_int;
    epoll_ctl = c"epoll_ctl": fn(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait = c"epoll_wait": fn(epoll: c_int, events: *mut epoll_event, n: c_int, timeout: c_int) -> c_int;
    epoll_pwait = c"epoll_pwait": fn(
        epoll: c_int,
        events: *mut epoll_event,
        n: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int;
    epoll_pwait2 = c"epoll_pwait2": fn(
        epoll: c_int,
        events: *mut epoll_event,
        n: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    poll = c"poll": fn(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
    ppoll = c"ppoll": fn(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    poll_chk = c"__poll_chk": fn(fds: *mut pollfd, n: nfds_t, timeout: c_int, bytes: usize) -> c_int;
    ppoll_chk = c"__ppoll_chk": fn(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, bytes: usize) -> c_int;
    select = c"select": fn(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect = c"pselect": fn(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    execve = c"execve": fn(path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    recvmsg = c"recvmsg": fn(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    setsockopt = c"setsockopt": fn(fd: c_int, level: c_int, option: c_int, value: *const c_void, len: socklen_t) -> c_int;
    accept = c"accept": fn(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    connect = c"connect": fn(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    accept4 = c"accept4": fn(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
}
