//! System calls that several ports make.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

/// The kernel's word on a call that gives -1 when it fails.
pub(crate) fn check(r: i32) -> io::Result<i32> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) }
}

/// setsockopt, for options whose kernel type `T` is.
pub(crate) fn set_option<T: Copy>(fd: impl AsFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the value is as long as is said, and lives through the call.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const *value).cast(), size_of::<T>() as u32) }).map(drop)
}

/// getsockopt, for options of 64 bits.
pub(crate) fn option_of_64_bits(fd: impl AsFd, level: i32, option: i32) -> io::Result<u64> {
    let (mut value, mut len) = (0u64, size_of::<u64>() as u32);
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the value has room for what the length says, and both live through the call.
    check(unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// Threads at most for what mostly waits for the kernel.
const THREADS: usize = 16;

/// One of several things to do at once.
pub(crate) type Job<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Does all of this at once, as far as there can be threads. For calls in which the kernel computes or waits for tens of milliseconds.
pub(crate) fn at_once(jobs: Vec<Job>) {
    let helpers = jobs.len().saturating_sub(1).min(THREADS);
    let left = Mutex::new(jobs.into_iter());
    let work = || {
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(job) = next else { return };
            job();
        }
    };
    std::thread::scope(|scope| {
        let _quiet = Quiet::now();
        for _ in 0..helpers {
            // Where there is no thread to be had, this one does what is left.
            if std::thread::Builder::new().name("corelane-io".into()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
}

/// As long as it lives no signal comes to this thread, nor to those that it starts: they are for threads of the program's own.
struct Quiet(libc::sigset_t);

impl Quiet {
    fn now() -> Quiet {
        // SAFETY: a set of signals is numbers alone, and is filled before it is used; both live as long as the calls.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Quiet(before)
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the mask is the one from before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn all_is_done_and_two_wait_for_each_other() {
        for count in [0, 1, 2, 100] {
            let mut done = vec![false; count];
            at_once(done.iter_mut().map(|done| Box::new(|| *done = true) as Job).collect());
            assert_eq!(done, vec![true; count]);
        }
        let both = Barrier::new(2);
        let wait = || {
            both.wait();
        };
        at_once(vec![Box::new(wait), Box::new(wait)]);
    }

    #[test]
    fn helpers_have_no_signals_and_who_started_them_its_own() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned();
            u64::from_str_radix(&mask, 16).unwrap()
        };
        let (before, both, seen) = (blocked(), Barrier::new(2), Mutex::new(Vec::new()));
        let look = || {
            both.wait();
            seen.lock().unwrap().push(blocked());
        };
        at_once(vec![Box::new(look), Box::new(look)]);
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen.len(), 2);
        assert!(seen.iter().all(|mask| mask & 1 << (libc::SIGINT - 1) != 0), "{seen:x?}");
        assert_eq!(blocked(), before);
    }
}
