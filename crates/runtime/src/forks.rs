//! fork(2): a child has a copy of its parent's contexts and channels, and the parent's rings, devices and sockets behind them.
//! The child must neither use nor end them, not even where it leaves by exit(3), which ends what a thread has. And it has none of
//! the parent's other threads, so that what one of them had locked would stay so.

use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// All locks that were ever taken.
static LOCKS: Lock<Vec<&'static dyn Hold>> = Lock::new(Vec::new());

thread_local! {
    /// Locks that this thread has, or waits for.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    /// It forks, and has them all.
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

/// How many forks this process is away from the first one. What was made under another number is another process's.
pub fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts from now on, and how many there were.
pub fn watch() -> u32 {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    // Twice, by two threads, does no harm; to a `Once` that another thread is in a child would wait for ever.
    if !WATCHED.load(Ordering::Acquire) {
        // SAFETY: the functions take locks that whoever forks does not have, and give them back.
        let done = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
        debug_assert_eq!(done, 0);
        WATCHED.store(true, Ordering::Release);
    }
    count()
}

extern "C" fn before() {
    // In a signal handler that came into a call the child has what the call had.
    if INSIDE.get() > 0 || FORKING.get() {
        return;
    }
    let _inside = Inside::new();
    LOCKS.hold();
    LOCKS.held().into_iter().flatten().for_each(|lock| lock.hold());
    FORKING.set(true);
}

extern "C" fn after() {
    if FORKING.replace(false) {
        LOCKS.held().into_iter().flatten().for_each(|lock| lock.let_go());
        LOCKS.let_go();
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    after();
    for hook in &HOOKS {
        let hook = hook.load(Ordering::Acquire);
        if !hook.is_null() {
            // SAFETY: `in_each_child` has put a function of this type there.
            let hook = unsafe { std::mem::transmute::<*mut (), fn()>(hook) };
            hook();
        }
    }
}

/// What children do at first.
static HOOKS: [AtomicPtr<()>; 4] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 4];

/// Calls `f` in each child that fork(2) makes, in its one thread, before fork returns there: for what must not be a child's, and no more,
/// since signal handlers may be as far. A function is put there once.
///
/// # Panics
/// Where there are more than four.
pub fn in_each_child(f: fn()) {
    watch();
    let f = f as *mut ();
    let take = |hook: &AtomicPtr<()>| {
        let found = hook.compare_exchange(std::ptr::null_mut(), f, Ordering::AcqRel, Ordering::Acquire);
        found.is_ok() || found == Err(f)
    };
    assert!(HOOKS.iter().any(take), "a place for what a child does first");
}

/// Whether this thread has a [`Lock`], or waits for one: a signal handler that came into a call which does must not wait for one itself.
pub fn is_inside() -> bool {
    INSIDE.get() > 0
}

/// What whoever forks does with a lock.
trait Hold: Sync {
    fn hold(&'static self);
    fn let_go(&'static self);
}

/// A process's lock, which no other thread has while a child is made. Who has one must take no other: who forks takes them in any
/// order. No step may leave what it guards half changed, for one who panics lets go of it like any other.
pub struct Lock<T: 'static> {
    value: Mutex<T>,
    /// It is among all locks.
    known: AtomicBool,
    /// What whoever forks has of it.
    held: UnsafeCell<Option<MutexGuard<'static, T>>>,
}

// SAFETY: `held` is read and written by the thread that has the lock, or that has all of them for a fork.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A lock of the process; it is a static.
    pub const fn new(value: T) -> Lock<T> {
        Lock { value: Mutex::new(value), known: AtomicBool::new(false), held: UnsafeCell::new(None) }
    }

    fn take(&'static self) -> MutexGuard<'static, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was taken for a fork; called by the thread that forks.
    fn held(&'static self) -> Option<&'static T> {
        // SAFETY: this thread alone has the lock, and the value stays as it is meanwhile.
        unsafe { (*self.held.get()).as_deref() }
    }
}

impl<T: Send> Lock<T> {
    /// Waits for it.
    pub fn lock(&'static self) -> Locked<T> {
        let inside = Inside::new();
        if FORKING.get() {
            // In a handler of the program's (pthread_atfork(3)), between ours.
            // SAFETY: this thread has all locks that are known, and no other one is about to hold one.
            let held = unsafe { (*self.held.get()).take() };
            let back = held.is_some().then_some(self);
            return Locked { guard: ManuallyDrop::new(held.unwrap_or_else(|| self.take())), back, _inside: inside };
        }
        if !self.known.load(Ordering::Acquire) {
            watch();
            let mut all = LOCKS.take();
            if !self.known.swap(true, Ordering::AcqRel) {
                all.push(self);
            }
        }
        Locked { guard: ManuallyDrop::new(self.take()), back: None, _inside: inside }
    }
}

impl<T: Send> Lock<T> {
    /// The lock if nobody has it, this thread included: for signal handlers, which may have come into a call that has it.
    pub fn try_lock(&'static self) -> Option<Locked<T>> {
        let inside = Inside::new();
        let guard = match self.value.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { guard: ManuallyDrop::new(guard), back: None, _inside: inside })
    }
}

impl<T: Send> Hold for Lock<T> {
    fn hold(&'static self) {
        let guard = self.take();
        // SAFETY: this thread has the lock.
        unsafe { *self.held.get() = Some(guard) };
    }

    fn let_go(&'static self) {
        // SAFETY: it has had it since `hold`, and has it until this is dropped.
        drop(unsafe { (*self.held.get()).take() });
    }
}

struct Inside;

impl Inside {
    fn new() -> Inside {
        INSIDE.set(INSIDE.get() + 1);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() - 1);
    }
}

/// What a [`Lock`] guards, while this thread has it.
pub struct Locked<T: 'static> {
    guard: ManuallyDrop<MutexGuard<'static, T>>,
    /// It was taken for a fork, and is to be so again.
    back: Option<&'static Lock<T>>,
    // After the lock.
    _inside: Inside,
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone.
        let guard = unsafe { ManuallyDrop::take(&mut self.guard) };
        if let Some(lock) = self.back {
            // SAFETY: this thread has the lock.
            unsafe { *lock.held.get() = Some(guard) };
        }
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static ONE: Lock<u32> = Lock::new(0);
    static TWO: Lock<u32> = Lock::new(0);
    static MINE: Lock<u32> = Lock::new(0);

    /// What a child that looks at something says; one that hangs is ended, and says nothing.
    fn child(looks: impl FnOnce() -> bool) -> Option<bool> {
        let mut status = 0;
        // SAFETY: the child calls what is tested and no more, and ends by `_exit`; the parent waits for it.
        unsafe {
            let pid = libc::fork();
            assert!(pid >= 0);
            if pid == 0 {
                libc::alarm(5);
                libc::_exit(i32::from(!looks()));
            }
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        }
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) == 0)
    }

    #[test]
    fn a_child_finds_no_lock_taken() {
        static OVER: AtomicBool = AtomicBool::new(false);
        let busy = std::thread::spawn(|| {
            while !OVER.load(Ordering::Relaxed) {
                *ONE.lock() += 1;
                *TWO.lock() += 1;
            }
        });
        let before = watch();
        for _ in 0..200 {
            let free = || {
                *ONE.lock() += 1;
                *TWO.lock() += 1;
                count() == before + 1
            };
            assert_eq!(child(free), Some(true));
        }
        OVER.store(true, Ordering::Relaxed);
        busy.join().unwrap();
        assert_eq!(count(), before);
    }

    /// As a signal handler does that came into a call.
    #[test]
    fn who_has_a_lock_may_fork() {
        let before = watch();
        let mut mine = MINE.lock();
        *mine = 7;
        assert_eq!(child(|| *mine == 7 && count() == before + 1), Some(true));
        drop(mine);
        assert_eq!(child(|| *MINE.lock() == 7), Some(true));
    }
}
