//! Under loom: its own atomics and cells, on the heap.

use super::*;
use loom::cell::UnsafeCell;
use std::mem::MaybeUninit;

pub(crate) struct Placed<T>(Arc<T>);

impl<T: Shared> Placed<T> {
    pub(crate) fn new(_arena: &Arc<Arena>) -> Result<Placed<T>, ArenaError> {
        Ok(Placed(Arc::new(T::default())))
    }
}

impl<T> Clone for Placed<T> {
    fn clone(&self) -> Placed<T> {
        Placed(self.0.clone())
    }
}

// SAFETY: as in the real thing.
unsafe impl<T: Shared> Send for Placed<T> {}

impl<T> std::ops::Deref for Placed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

pub(crate) struct Slots<T>(Arc<Vec<UnsafeCell<MaybeUninit<T>>>>);

// SAFETY: as in the real thing; loom checks it.
unsafe impl<T: Send> Send for Slots<T> {}

impl<T> Slots<T> {
    pub(crate) fn new(_arena: &Arc<Arena>, count: usize) -> Result<Slots<T>, ArenaError> {
        Ok(Slots(Arc::new((0..count).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect())))
    }

    /// # Safety
    /// As in the real thing.
    pub(crate) unsafe fn write(&self, i: u32, value: T) {
        self.0[i as usize].with_mut(|p| {
            // SAFETY: exclusive by the caller's promise, which loom verifies.
            unsafe { (*p).write(value) };
        })
    }

    /// # Safety
    /// As in the real thing.
    pub(crate) unsafe fn read(&self, i: u32) -> T {
        self.0[i as usize].with_mut(|p| {
            // SAFETY: initialised and exclusive by the caller's promise, which loom verifies.
            unsafe { (*p).assume_init_read() }
        })
    }

    /// # Safety
    /// As in the real thing.
    pub(crate) unsafe fn copy(&self, i: u32) -> T
    where
        T: Copy,
    {
        // SAFETY: as for `read`.
        unsafe { self.read(i) }
    }

    /// # Safety
    /// As in the real thing.
    pub(crate) unsafe fn get(&self, i: u32) -> &T {
        // SAFETY: initialised by the caller's promise; loom verifies that nobody writes now.
        self.0[i as usize].with(|p| unsafe { (*p).assume_init_ref() })
    }

    /// # Safety
    /// As in the real thing.
    pub(crate) unsafe fn get_mut(&mut self, i: u32) -> &mut T {
        // SAFETY: initialised and exclusive by the caller's promise; loom verifies that nobody uses it now.
        self.0[i as usize].with_mut(|p| unsafe { (*p).assume_init_mut() })
    }
}

impl<T> Clone for Slots<T> {
    fn clone(&self) -> Slots<T> {
        Slots(self.0.clone())
    }
}

pub(crate) struct Owned<T>(UnsafeCell<T>);

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned(UnsafeCell::new(value))
    }

    /// # Safety
    /// As in the real thing.
    pub(crate) unsafe fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.0.with_mut(|p| {
            // SAFETY: exclusive by the caller's promise, which loom verifies.
            f(unsafe { &mut *p })
        })
    }
}

/// A cell for each chunk, so that loom sees two threads in one chunk as a race.
#[derive(Clone)]
pub(crate) struct Tracks(Arc<Vec<UnsafeCell<()>>>);

// SAFETY: the cells guard nothing but loom's bookkeeping.
unsafe impl Send for Tracks {}

impl Tracks {
    pub(crate) fn new(count: usize) -> Tracks {
        Tracks(Arc::new((0..count).map(|_| UnsafeCell::new(())).collect()))
    }
    pub(crate) fn touch(&self, i: u32) {
        self.0[i as usize].with_mut(|_| ())
    }
}
