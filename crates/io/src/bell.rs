//! A doorbell between two threads, of one process or of two: rung only when the other sleeps, so that a busy pair never makes a system call.
//!
//! The sleeper says so, then looks once more; the ringer publishes, then looks whether anyone sleeps. The fence on each side
//! makes sure that at least one of them sees the other (Dekker). One fence for each batch, never for each packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// The word that says whether anyone waits.
#[derive(Debug)]
enum Word {
    /// Of this process.
    Own(AtomicU32),
    /// In the memory that a client in another process shares with the stack: the client waits for it.
    Client(mem::lease::Words),
    /// The same: the stack does.
    Stack(mem::lease::Words),
}

impl Word {
    #[inline(always)]
    fn get(&self) -> &AtomicU32 {
        match self {
            Word::Own(word) => word,
            Word::Client(words) => words.client(),
            Word::Stack(words) => words.stack(),
        }
    }
}

/// An eventfd and the word that says whether anyone waits for it.
// Lines of its own, and their pair: bells are made side by side, for lanes that share nothing.
#[derive(Debug)]
#[repr(align(128))]
pub struct Bell {
    fd: OwnedFd,
    word: Word,
    /// Under loom, which cannot watch a descriptor: the eventfd's counter.
    #[cfg(loom)]
    count: AtomicU64,
}

impl Bell {
    /// A silent bell.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell::over(Bell::descriptor()?, Word::Own(AtomicU32::new(0))))
    }

    fn over(fd: OwnedFd, word: Word) -> Bell {
        Bell {
            fd,
            word,
            #[cfg(loom)]
            count: AtomicU64::new(0),
        }
    }

    /// What a bell rings, for who passes it on to another process.
    pub fn descriptor() -> io::Result<OwnedFd> {
        Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
    }

    /// The bell that wakes a client's thread, at either end: an eventfd that both have, and the words of the thread's seat.
    pub fn of_client(fd: OwnedFd, words: mem::lease::Words) -> Bell {
        Bell::over(fd, Word::Client(words))
    }

    /// The bell that wakes the stack for what the thread of a client asks for, at either end.
    pub fn of_stack(fd: OwnedFd, words: mem::lease::Words) -> Bell {
        Bell::over(fd, Word::Stack(words))
    }

    /// The sleeper's first step; afterwards it must look for work once more before it waits for the descriptor.
    pub fn arm(&self) {
        self.word.get().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake: clears what was rung.
    pub fn disarm(&self) {
        self.quiet();
        self.clear();
    }

    /// Nobody is to ring any more; what was rung stays.
    pub fn quiet(&self) {
        self.word.get().store(0, Ordering::Relaxed);
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
        let word = self.word.get();
        if word.load(Ordering::Relaxed) == 0 || word.swap(0, Ordering::Relaxed) == 0 {
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
