//! fork(2): a child has a copy of its parent's contexts and channels, and the parent's rings, devices and sockets behind them.
//! The child must neither use nor end them, not even where it leaves by exit(3), which ends what a thread has.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How many forks this process is away from the first one. What was made under another number is another process's.
pub fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts from now on, and how many there were.
pub fn watch() -> u32 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function does nothing that a child of a process with threads must not do.
        let done = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(done, 0);
    });
    count()
}
