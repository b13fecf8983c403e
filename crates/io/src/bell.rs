//! A doorbell between two threads: rung only when the other sleeps, so that a busy pair never makes a system call.
//!
//! The sleeper says so, then looks once more; the ringer publishes, then looks whether anyone sleeps. The fence on each side
//! makes sure that at least one of them sees the other (Dekker). One fence for each batch, never for each packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd and the word that says whether anyone waits for it.
// Lines of its own, and their pair: bells are made side by side, for lanes that share nothing.
#[derive(Debug)]
#[repr(align(128))]
pub struct Bell {
    fd: OwnedFd,
    sleeping: AtomicBool,
    /// Under loom, which cannot watch a descriptor: the eventfd's counter.
    #[cfg(loom)]
    count: AtomicU64,
}

impl Bell {
    /// A silent bell.
    pub fn new() -> io::Result<Bell> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Bell {
            fd,
            sleeping: AtomicBool::new(false),
            #[cfg(loom)]
            count: AtomicU64::new(0),
        })
    }

    /// The sleeper's first step; afterwards it must look for work once more before it waits for the descriptor.
    pub fn arm(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake: clears what was rung.
    pub fn disarm(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
        self.clear();
    }

    #[cfg(not(loom))]
    fn clear(&self) {
        let mut count = [0; 8];
        // Nothing to read is as good: nobody rang.
        let _ = rustix::io::read(&self.fd, &mut count);
    }

    /// Wakes the other side if it sleeps; call after publishing a batch. Whether it did.
    pub fn ring_if_sleeping(&self) -> bool {
        fence(Ordering::SeqCst);
        if !self.sleeping.load(Ordering::Relaxed) || !self.sleeping.swap(false, Ordering::Relaxed) {
            return false;
        }
        self.ring();
        true
    }

    /// Wakes the other side in any case.
    #[cfg(not(loom))]
    pub fn ring(&self) {
        // A counter that is full is a bell that rings already.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
}

/// The eventfd as a word: the kernel's lock in it orders what the ringer did before what the sleeper does afterwards.
#[cfg(loom)]
impl Bell {
    fn clear(&self) {
        self.count.swap(0, Ordering::AcqRel);
    }

    /// Wakes the other side in any case.
    pub fn ring(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a wait for the descriptor would return at once.
    pub fn is_rung(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn rung(bell: &Bell) -> bool {
        let mut fds = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn rings_once_for_a_sleeper_and_never_for_others() {
        let bell = Bell::new().unwrap();
        assert!(!bell.ring_if_sleeping() && !rung(&bell));
        bell.arm();
        assert!(bell.ring_if_sleeping() && !bell.ring_if_sleeping() && rung(&bell));
        bell.disarm();
        assert!(!rung(&bell));
    }
}
