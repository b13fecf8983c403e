//! A doorbell between two threads: rung only when the other sleeps, so that a busy pair never makes a system call.
//!
//! The sleeper says so, then looks once more; the ringer publishes, then looks whether anyone sleeps. The fence on each side
//! makes sure that at least one of them sees the other (Dekker). One fence for each batch, never for each packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd and the word that says whether anyone waits for it.
// Lines of its own, and their pair: bells are made side by side, for lanes that share nothing.
#[derive(Debug)]
#[repr(align(128))]
pub struct Bell {
    fd: OwnedFd,
    sleeping: AtomicBool,
}

impl Bell {
    /// A silent bell.
    pub fn new() -> io::Result<Bell> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Bell { fd, sleeping: AtomicBool::new(false) })
    }

    /// The sleeper's first step; afterwards it must look for work once more before it waits for the descriptor.
    pub fn arm(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake: clears what was rung.
    pub fn disarm(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
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
    pub fn ring(&self) {
        // A counter that is full is a bell that rings already.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
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
