//! Descriptors that are listeners of ours, by number.
//!
//! A listener is *open* until a process waits for its connections, *taken* from then on: the process has its part, or has kept the
//! socket. A child that inherits a taken one shares it, as without us: it may be in an epoll set that both wait in.
//!
//! Parts are for who serves many connections at a time, which epoll tells. One that accepts, or polls for the listener alone, serves a
//! connection before it returns, and those in a queue of its own would wait for that: it shares the listener, unless it has made one
//! for itself.
//!
//! A process that has taken its part out of its epoll set and waits for other events gives it back, and the listener is open again:
//! workers that take turns at waiting for it (nginx's accept_mutex) share it, since what came to a part would wait for its worker's
//! turn. One that adds it again before it waits (nginx does so every 16 connections) keeps it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, Ordering};

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
/// Taken, and in no epoll set any more.
const AWAY: u8 = 4;

/// A listener may be away.
static ANY_AWAY: AtomicBool = AtomicBool::new(false);
/// Highest number of a listener.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// A part costs a worker and the helper more than a turn: one that has given it back has another no sooner than after so many
/// milliseconds.
const REST: u32 = 250;

struct Entry {
    state: AtomicU8,
    /// Threads that are about to add the descriptor to an epoll set.
    joining: AtomicU16,
    /// Epoll sets of this process that have the descriptor.
    sets: AtomicU16,
    /// Process that listens with it; 0 where that was another program.
    owner: AtomicI32,
    /// The helper knows that the process shares it.
    shared: AtomicBool,
    /// When a part was given back, in milliseconds; 0 for never.
    rests: AtomicU32,
}

static TABLE: [Entry; MOST] = [const { Entry::new() }; MOST];

fn entry(fd: c_int) -> Option<&'static Entry> {
    TABLE.get(usize::try_from(fd).ok()?)
}

impl Entry {
    const fn new() -> Entry {
        Entry {
            state: AtomicU8::new(NONE),
            joining: AtomicU16::new(0),
            sets: AtomicU16::new(0),
            owner: AtomicI32::new(0),
            shared: AtomicBool::new(false),
            rests: AtomicU32::new(0),
        }
    }

    fn state(&self) -> u8 {
        self.state.load(Ordering::SeqCst)
    }

    /// True where an open listener may become the process's part. An epoll set keeps the file that a descriptor had when it was added:
    /// one that is in a set is not replaced, nor one that other threads than `own` are adding. Those that add one for the first time
    /// wait for who replaces it.
    fn may_change(&self, own: u16) -> bool {
        self.sets.load(Ordering::SeqCst) == 0
            && match self.rests.load(Ordering::Relaxed) {
                0 => true,
                since => now().wrapping_sub(since) >= REST && self.joining.load(Ordering::SeqCst) <= own,
            }
    }

    /// True where no epoll set of this process has the descriptor, nor will in a moment.
    fn is_away(&self) -> bool {
        self.sets.load(Ordering::SeqCst) == 0 && self.joining.load(Ordering::SeqCst) == 0
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Begins to ask in a state. A thread that adds the descriptor meanwhile waits.
    fn begin(&self, from: u8) -> bool {
        self.change(from, ASKING)
    }
}

/// Milliseconds of the monotonic clock; never 0.
fn now() -> u32 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written alone.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    (time.tv_sec as u32).wrapping_mul(1000).wrapping_add(time.tv_nsec as u32 / 1_000_000) | 1
}

/// Finds listeners that this program has from who executed it: a service manager's, or an earlier binary's.
pub fn adopt_inherited() {
    (0..MOST_INHERITED).for_each(adopt);
}

/// A descriptor has come from another process, or another program: it may be a listener.
pub fn adopt(fd: c_int) {
    if process::helper().is_some()
        && process::owns_memory()
        && ask::option(fd, libc::SO_ACCEPTCONN) == Some(1)
        && is_tcp(fd)
    {
        open(fd, 0);
    }
}

fn is_tcp(fd: c_int) -> bool {
    matches!(ask::option(fd, libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6))
        && ask::option(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

fn open(fd: c_int, owner: i32) {
    if let Some(entry) = entry(fd) {
        entry.sets.store(0, Ordering::SeqCst);
        entry.rests.store(0, Ordering::Relaxed);
        entry.owner.store(owner, Ordering::Relaxed);
        entry.shared.store(false, Ordering::Relaxed);
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
        entry.state.store(OPEN, Ordering::SeqCst);
    }
}

/// Before a socket listens: the helper makes it ready to be partitioned. Whether it is one of ours.
pub fn about_to_listen(fd: c_int) -> bool {
    let Some(entry) = entry(fd) else { return false };
    process::helper().is_some()
        && entry.state() == NONE
        && process::owns_memory()
        && is_tcp(fd)
        && matches!(ask::helper(Kind::Listen, fd), Some((Verdict::Keep, _)))
}

/// A socket of ours listens.
pub fn listens(fd: c_int) {
    open(fd, process::number());
}

/// A descriptor is about to close, or its number to become another file's.
pub fn forget(fd: c_int) {
    if let Some(entry) = entry(fd)
        && entry.state() != NONE
        && process::owns_memory()
        && matches!(entry.state.swap(NONE, Ordering::SeqCst), TAKEN | AWAY)
    {
        // A child that closes its copy of a parent's part is told apart by the helper.
        ask::helper(Kind::Close, fd);
    }
}

/// True where a program that this process executes has a listener of ours.
pub fn passes_listeners() -> bool {
    let listens = |fd: &c_int| entry(*fd).is_some_and(|entry| entry.state() != NONE);
    // SAFETY: no memory is passed.
    let flags = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) };
    (0..=HIGHEST.load(Ordering::Relaxed)).filter(listens).any(|fd| matches!(flags(fd), 0))
}

/// The program selects listeners of this one's address by itself.
pub fn attached(fd: c_int) {
    if process::owns_memory() && is_tcp(fd) {
        ask::helper(Kind::Attach, fd);
    }
}

/// Before a thread waits for a descriptor by poll or select: a socket that the process listens with becomes its part.
pub fn about_to_wait(fd: c_int) {
    if let Some(entry) = entry(fd)
        && matches!(entry.state(), OPEN | ASKING)
    {
        if entry.owner.load(Ordering::Relaxed) == process::number() {
            wait(fd, entry, 0);
        } else if !entry.shared.swap(true, Ordering::Relaxed) && process::owns_memory() {
            ask::helper(Kind::Share, fd);
        }
    }
}

/// Before a thread waits: an open listener becomes the process's part. `own` is 1 where the thread is counted as joining.
fn wait(fd: c_int, entry: &Entry, own: u16) {
    match entry.state() {
        OPEN if entry.may_change(own) => take(fd, entry, own),
        ASKING => take(fd, entry, own),
        AWAY => _ = entry.change(AWAY, TAKEN),
        _ => {}
    }
}

/// Before a descriptor is added to an epoll set: true where [`joined`] is to be told of it.
pub fn joins(fd: c_int) -> bool {
    let Some(entry) = entry(fd) else { return false };
    let ours = entry.state() != NONE && process::owns_memory();
    if ours {
        entry.joining.fetch_add(1, Ordering::SeqCst);
        wait(fd, entry, 1);
    }
    ours
}

/// A descriptor has been added to an epoll set, or could not be.
pub fn joined(fd: c_int, added: bool) {
    if let Some(entry) = entry(fd) {
        entry.sets.fetch_add(added.into(), Ordering::SeqCst);
        entry.joining.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A descriptor has left an epoll set.
pub fn left(fd: c_int) {
    if let Some(entry) = entry(fd)
        && entry.state() != NONE
        && process::owns_memory()
        && entry.sets.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |sets| sets.checked_sub(1)) == Ok(1)
        // A socket that the process has made stays its part.
        && entry.owner.load(Ordering::Relaxed) != process::number()
        && entry.change(TAKEN, AWAY)
    {
        ANY_AWAY.store(true, Ordering::SeqCst);
    }
}

/// Before a thread waits for events: parts that are in no epoll set are given back.
pub fn about_to_wait_elsewhere() {
    if ANY_AWAY.load(Ordering::Relaxed) {
        give_back();
    }
}

#[cold]
fn give_back() {
    if !process::owns_memory() {
        return;
    }
    let errno = process::errno();
    ANY_AWAY.store(false, Ordering::SeqCst);
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        if let Some(entry) = entry(fd)
            && entry.begin(AWAY)
        {
            let mut state = TAKEN;
            // A thread that began to add it before was not told to wait.
            if entry.is_away() && replace(fd, Kind::Away) == Some(Verdict::Replace) {
                entry.rests.store(now(), Ordering::Relaxed);
                state = OPEN;
            }
            entry.state.store(state, Ordering::SeqCst);
        }
    }
    process::set_errno(errno);
}

/// Before a thread accepts. Who does not block there has waited elsewhere: in a way that was seen, or for a socket that must stay.
pub fn about_to_accept(fd: c_int) {
    if entry(fd).is_some_and(|entry| matches!(entry.state(), OPEN | ASKING)) {
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
fn take(fd: c_int, entry: &Entry, own: u16) {
    let errno = process::errno();
    if process::owns_memory() {
        if entry.begin(OPEN) {
            let state = match entry.may_change(own).then(|| replace(fd, Kind::Poll)) {
                // Another thread has begun to add it before it could see that this one asks.
                None => OPEN,
                Some(Some(Verdict::Keep | Verdict::Replace)) => TAKEN,
                Some(_) => NONE,
            };
            entry.state.store(state, Ordering::SeqCst);
        } else {
            // Another thread asks: the listener is waited for as what it becomes. In a child that was forked meanwhile nobody does.
            for _ in 0..2 * ask::PATIENCE.tv_sec * 1000 {
                if entry.state() != ASKING {
                    break;
                }
                let millisecond = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                // SAFETY: the time is read alone.
                unsafe { libc::nanosleep(&millisecond, std::ptr::null_mut()) };
            }
        }
    }
    process::set_errno(errno);
}

/// Asks about a listener and puts what comes with the answer in its place; `None` where that is impossible.
fn replace(fd: c_int, kind: Kind) -> Option<Verdict> {
    match ask::helper(kind, fd)? {
        (Verdict::Replace, None) => None,
        (Verdict::Replace, Some(part)) => {
            // SAFETY: no memory is passed.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            let keep = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
            // SAFETY: numbers alone; `part` is ours, and nobody else knows of it.
            unsafe {
                let placed = next::dup3(part, fd, keep) == fd;
                next::close(part);
                placed.then_some(Verdict::Replace)
            }
        }
        (verdict, _) => Some(verdict),
    }
}
