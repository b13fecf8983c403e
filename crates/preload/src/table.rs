//! Descriptors that are listeners of ours, by number.
//!
//! A listener is *open* until a process waits for its connections, *taken* from then on: the process has its part, or has kept the
//! socket. A child that inherits a taken one shares it, as without us: it may be in an epoll set that both wait in.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

use claims::{Kind, Verdict};

use crate::{ask, next, process};

/// Numbers that are looked at; a listener beyond them is left alone. The table has no memory before it is used.
const MOST: usize = 1 << 16;

/// Descriptors that a program inherits by execve(2) and that are asked whether they listen.
const MOST_INHERITED: c_int = 256;

const NONE: u8 = 0;
const OPEN: u8 = 1;
/// A thread asks the helper just now.
const ASKING: u8 = 2;
const TAKEN: u8 = 3;

static TABLE: [AtomicU8; MOST] = [const { AtomicU8::new(NONE) }; MOST];

fn entry(fd: c_int) -> Option<&'static AtomicU8> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Finds listeners that this program has from who executed it: a service manager's, or an earlier binary's.
pub fn adopt_inherited() {
    for fd in 0..MOST_INHERITED {
        if ask::option(fd, libc::SO_ACCEPTCONN) == Some(1) && is_tcp(fd) {
            set(fd, OPEN);
        }
    }
}

fn is_tcp(fd: c_int) -> bool {
    matches!(ask::option(fd, libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6))
        && ask::option(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

fn set(fd: c_int, state: u8) {
    if let Some(entry) = entry(fd) {
        entry.store(state, Ordering::Relaxed);
    }
}

/// Before a socket listens: the helper makes it ready to be partitioned. Whether it is one of ours.
pub fn about_to_listen(fd: c_int) -> bool {
    let Some(entry) = entry(fd) else { return false };
    process::helper().is_some()
        && entry.load(Ordering::Relaxed) == NONE
        && process::owns_memory()
        && is_tcp(fd)
        && matches!(ask::helper(Kind::Listen, fd), Some((Verdict::Keep, _)))
}

/// A socket of ours listens.
pub fn listens(fd: c_int) {
    set(fd, OPEN);
}

/// A descriptor is about to close, or its number to become another file's.
pub fn forget(fd: c_int) {
    if let Some(entry) = entry(fd)
        && entry.load(Ordering::Relaxed) != NONE
        && process::owns_memory()
        && entry.swap(NONE, Ordering::Relaxed) == TAKEN
    {
        // A child that closes its copy of a parent's part is told apart by the helper.
        ask::helper(Kind::Close, fd);
    }
}

/// The program selects listeners of this one's address by itself.
pub fn attached(fd: c_int) {
    if process::owns_memory() && is_tcp(fd) {
        ask::helper(Kind::Attach, fd);
    }
}

/// Before a thread waits for the connections of a descriptor: an open listener becomes the process's part.
pub fn about_to_wait(fd: c_int) {
    if let Some(entry) = entry(fd)
        && matches!(entry.load(Ordering::Relaxed), OPEN | ASKING)
    {
        take(fd, entry);
    }
}

/// Before a thread accepts. Who does not block there has waited elsewhere: in a way that was seen, or for a socket that must stay.
pub fn about_to_accept(fd: c_int) {
    if entry(fd).is_some_and(|entry| matches!(entry.load(Ordering::Relaxed), OPEN | ASKING)) {
        let errno = process::errno();
        // SAFETY: no memory is passed.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        process::set_errno(errno);
        if flags & libc::O_NONBLOCK == 0 {
            about_to_wait(fd);
        }
    }
}

#[cold]
fn take(fd: c_int, entry: &AtomicU8) {
    let errno = process::errno();
    if process::owns_memory() {
        match entry.compare_exchange(OPEN, ASKING, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                let taken = replace(fd);
                entry.store(if taken { TAKEN } else { NONE }, Ordering::Release);
            }
            // Another thread asks: the listener is waited for as what it becomes. In a child that was forked meanwhile nobody does.
            Err(_) => {
                for _ in 0..2 * ask::PATIENCE.tv_sec * 1000 {
                    if entry.load(Ordering::Acquire) != ASKING {
                        break;
                    }
                    let millisecond = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                    // SAFETY: the time is read alone.
                    unsafe { libc::nanosleep(&millisecond, std::ptr::null_mut()) };
                }
            }
        }
    }
    process::set_errno(errno);
}

/// Asks for the process's part and puts it in the listener's place; false where the listener is left alone.
fn replace(fd: c_int) -> bool {
    match ask::helper(Kind::Poll, fd) {
        None | Some((Verdict::Leave, _)) => false,
        Some((Verdict::Keep, _)) => true,
        Some((Verdict::Replace, None)) => false,
        Some((Verdict::Replace, Some(part))) => {
            // SAFETY: no memory is passed.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            let keep = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
            // SAFETY: numbers alone; `part` is ours, and nobody else knows of it.
            unsafe {
                let placed = next::dup3(part, fd, keep) == fd;
                next::close(part);
                placed
            }
        }
    }
}
