//! Signals: handlers registered with `mtcp_register_signal` end the waits of all contexts with EINTR.
//!
//! A handler that a program installs by itself ends the sleep of the thread that it runs on, as with any system call; one that
//! comes while the thread waits but is not asleep yet goes unnoticed. Registered ones are counted here, so that none is missed: as in
//! mTCP, a signal that comes while a context does not wait stays pending for it, and its next call that would wait fails with EINTR.

use core::ffi::c_int;
use core::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use capi::{Errno, Result};
use runtime::Waker;

/// Linux's NSIG: signals are 1 to 64.
const SIGNALS: usize = 65;
/// Contexts that can be woken: as many as there are lanes at most.
const SLOTS: usize = 128;

/// Signals taken by registered handlers, modulo 2^32.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// The program's handler of each signal, as a number.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(libc::SIG_DFL) }; SIGNALS];
/// Who is to be woken; null where there is nobody.
static WAKERS: [AtomicPtr<Waker>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];
/// Handlers that look at them.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// What every registered signal runs.
extern "C" fn arrive(signal: c_int) {
    // SAFETY: it is this thread's own; the interrupted code must find it as it was.
    let errno = unsafe { *libc::__errno_location() };
    let handler = HANDLERS.get(signal as usize).map_or(libc::SIG_DFL, |h| h.load(Ordering::SeqCst));
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        // SAFETY: what `register` was given by the program: a function of this type.
        let handler = unsafe { core::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
        handler(signal);
    }
    // Now that the program's flag is raised, and not before: who wakes looks at it, and may sleep again.
    TAKEN.fetch_add(1, Ordering::SeqCst);
    wake_all();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Ends the sleeps of all contexts, which look then whether there is a reason.
pub fn wake_all() {
    LOOKING.fetch_add(1, Ordering::SeqCst);
    for slot in &WAKERS {
        let waker = slot.load(Ordering::SeqCst);
        if !waker.is_null() {
            // SAFETY: it was put there by `Wake::new`, and `Wake::drop` frees it only once nobody looks. To wake is to store
            // a flag and to write to an eventfd, which a handler may do.
            unsafe { (*waker).wake() };
        }
    }
    LOOKING.fetch_sub(1, Ordering::SeqCst);
}

/// In a child of fork(2), whose one thread this is: the parent's contexts are not its own to wake, and who looked is not here.
pub fn forked() {
    for slot in &WAKERS {
        slot.store(ptr::null_mut(), Ordering::SeqCst);
    }
    LOOKING.store(0, Ordering::SeqCst);
}

/// As signal(2): the handler before, as a number; `EINVAL` for what is no signal or cannot be caught. System calls of the
/// program's own go on after the handler.
pub fn register(signal: c_int, handler: usize) -> Result<usize> {
    let slot = usize::try_from(signal).ok().filter(|n| *n > 0).and_then(|n| HANDLERS.get(n)).ok_or(Errno::INVAL)?;
    if handler == libc::SIG_ERR {
        return Err(Errno::INVAL);
    }
    let ours = arrive as *const () as usize;
    // SAFETY: both structures are plain data, for which zeros are a value; the call reads one and writes the other.
    let before = unsafe {
        let mut new: libc::sigaction = core::mem::zeroed();
        let mut old: libc::sigaction = core::mem::zeroed();
        new.sa_flags = libc::SA_RESTART;
        new.sa_sigaction = if handler == libc::SIG_DFL || handler == libc::SIG_IGN { handler } else { ours };
        // The first signal may come before the call is back.
        let last = slot.swap(handler, Ordering::SeqCst);
        if libc::sigaction(signal, &new, &mut old) != 0 {
            slot.store(last, Ordering::SeqCst);
            return Err(Errno::INVAL);
        }
        if old.sa_sigaction == ours { last } else { old.sa_sigaction }
    };
    Ok(before)
}

/// A context's place among those that signals wake.
pub struct Wake {
    slot: usize,
    /// Signals taken when a wait of it ended by them last.
    seen: u32,
}

impl Wake {
    /// `ENOMEM` where there are more contexts than lanes can be.
    pub fn new(waker: Waker) -> Result<Wake> {
        let waker = Box::into_raw(Box::new(waker));
        let take = |slot: &AtomicPtr<Waker>| {
            slot.compare_exchange(ptr::null_mut(), waker, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        match WAKERS.iter().position(take) {
            Some(slot) => Ok(Wake { slot, seen: TAKEN.load(Ordering::SeqCst) }),
            None => {
                // SAFETY: made above, and nobody else has it.
                drop(unsafe { Box::from_raw(waker) });
                Err(Errno::NOMEM)
            }
        }
    }

    /// Whether a registered handler has run since a wait of this context was last ended by one.
    #[inline]
    pub fn is_due(&self) -> bool {
        TAKEN.load(Ordering::Acquire) != self.seen
    }

    /// The same, and a wait ends by it: those that came until now are no longer pending.
    pub fn take(&mut self) -> bool {
        let taken = TAKEN.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, taken) != taken
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        let waker = WAKERS[self.slot].swap(ptr::null_mut(), Ordering::SeqCst);
        // A handler that runs on this very thread is over before it comes here.
        while LOOKING.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        // SAFETY: `Wake::new` has made it; it is in no slot any more, and nobody looks.
        drop(unsafe { Box::from_raw(waker) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn first(_: c_int) {}
    extern "C" fn second(_: c_int) {}

    fn number(of: extern "C" fn(c_int)) -> usize {
        of as *const () as usize
    }

    #[test]
    fn handlers_are_told_as_the_program_gave_them() {
        let signal = libc::SIGURG;
        assert_eq!(register(signal, number(first)), Ok(libc::SIG_DFL));
        assert_eq!(register(signal, number(second)), Ok(number(first)));
        let before = TAKEN.load(Ordering::SeqCst);
        // SAFETY: a signal to this thread, which has a handler.
        unsafe { libc::raise(signal) };
        assert_eq!(TAKEN.load(Ordering::SeqCst), before + 1);
        assert_eq!(register(signal, libc::SIG_IGN), Ok(number(second)));
        assert_eq!(register(signal, libc::SIG_DFL), Ok(libc::SIG_IGN));
        assert_eq!(register(signal, libc::SIG_ERR), Err(Errno::INVAL));
        for no_signal in [-1, 0, 65, libc::SIGKILL, c_int::MAX] {
            assert_eq!(register(no_signal, number(first)), Err(Errno::INVAL), "{no_signal}");
        }
    }
}
