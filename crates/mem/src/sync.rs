//! What differs between the real thing and a loom model: where shared words and ring slots live.
//!
//! In the real thing both lie in the arena, reached by pointers that the holder's `Arc` keeps valid. Loom cannot watch raw
//! memory, so under `cfg(loom)` the same names keep loom's own atomics and cells on the heap; the algorithms above are
//! the same lines of code in both.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::arena::{Arena, ArenaError};
use std::sync::Arc;

/// A type for which all-zero bytes are the value of `Default`, made of atomics only.
///
/// # Safety
/// Zeroed memory must be a valid value, and the type must have no drop glue.
pub(crate) unsafe trait Shared: Default + Sync {}

#[cfg(not(loom))]
mod real {
    use super::*;
    use std::ops::Deref;
    use std::ptr::NonNull;

    /// Shared words in the arena.
    pub(crate) struct Placed<T> {
        at: NonNull<T>,
        _arena: Arc<Arena>,
    }

    // SAFETY: it only gives out `&T`, and `Shared` types are Sync; the mapping lives as long as the Arc.
    unsafe impl<T: Shared> Send for Placed<T> {}

    impl<T: Shared> Placed<T> {
        pub(crate) fn new(arena: &Arc<Arena>) -> Result<Placed<T>, ArenaError> {
            let at = arena.carve(size_of::<T>(), align_of::<T>())?;
            Ok(Placed { at: at.cast(), _arena: arena.clone() })
        }
    }

    impl<T: Shared> Clone for Placed<T> {
        fn clone(&self) -> Placed<T> {
            Placed { at: self.at, _arena: self._arena.clone() }
        }
    }

    impl<T: Shared> Deref for Placed<T> {
        type Target = T;
        #[inline]
        fn deref(&self) -> &T {
            // SAFETY: carved for a T alone, aligned, zeroed (which `Shared` says is valid), mapped while the Arc lives.
            unsafe { self.at.as_ref() }
        }
    }

    /// The slots of a ring in the arena.
    pub(crate) struct Slots<T> {
        at: NonNull<T>,
        _arena: Arc<Arena>,
    }

    // SAFETY: slots are reached only through the unsafe methods below; values of T move between threads through them.
    unsafe impl<T: Send> Send for Slots<T> {}

    impl<T> Slots<T> {
        pub(crate) fn new(arena: &Arc<Arena>, count: usize) -> Result<Slots<T>, ArenaError> {
            let bytes = count.checked_mul(size_of::<T>()).ok_or(ArenaError::TooLarge)?;
            let at = arena.carve(bytes, align_of::<T>().max(64))?;
            Ok(Slots { at: at.cast(), _arena: arena.clone() })
        }

        /// Moves a value into slot `i`.
        ///
        /// # Safety
        /// `i` is below the count; nobody else accesses the slot until the caller hands it over.
        #[inline]
        pub(crate) unsafe fn write(&self, i: u32, value: T) {
            // SAFETY: in bounds and exclusive by the caller's promise.
            unsafe { self.at.as_ptr().add(i as usize).write(value) }
        }

        /// Moves the value out of slot `i`.
        ///
        /// # Safety
        /// `i` is below the count; the slot was written, handed over to the caller, and not read since.
        #[inline]
        pub(crate) unsafe fn read(&self, i: u32) -> T {
            // SAFETY: initialised and exclusive by the caller's promise.
            unsafe { self.at.as_ptr().add(i as usize).read() }
        }

        /// The value in slot `i`.
        ///
        /// # Safety
        /// As for [`Slots::read`], which does not happen while it is borrowed.
        #[inline]
        pub(crate) unsafe fn get(&self, i: u32) -> &T {
            // SAFETY: initialised, and written by nobody, by the caller's promise.
            unsafe { &*self.at.as_ptr().add(i as usize) }
        }

        /// The same, to change.
        ///
        /// # Safety
        /// As for [`Slots::write`]; the slot was written, and nothing else is borrowed of it.
        #[inline]
        pub(crate) unsafe fn get_mut(&mut self, i: u32) -> &mut T {
            // SAFETY: initialised and exclusive by the caller's promise.
            unsafe { &mut *self.at.as_ptr().add(i as usize) }
        }
    }

    impl<T> Clone for Slots<T> {
        fn clone(&self) -> Slots<T> {
            Slots { at: self.at, _arena: self._arena.clone() }
        }
    }

    /// A value with one user at a time.
    pub(crate) struct Owned<T>(std::cell::UnsafeCell<T>);

    impl<T> Owned<T> {
        pub(crate) fn new(value: T) -> Owned<T> {
            Owned(std::cell::UnsafeCell::new(value))
        }

        /// # Safety
        /// Nobody else uses the value meanwhile.
        #[inline(always)]
        pub(crate) unsafe fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
            // SAFETY: exclusive by the caller's promise.
            f(unsafe { &mut *self.0.get() })
        }
    }

    /// Tells loom who touches which chunk; nothing here.
    #[derive(Clone)]
    pub(crate) struct Tracks;

    impl Tracks {
        pub(crate) fn new(_count: usize) -> Tracks {
            Tracks
        }
        #[inline(always)]
        pub(crate) fn touch(&self, _i: u32) {}
    }
}
#[cfg(not(loom))]
pub(crate) use real::{Owned, Placed, Slots, Tracks};

#[cfg(loom)]
#[expect(clippy::arc_with_non_send_sync, reason = "the wrappers are Send, each with its reason")]
mod model {
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
}
#[cfg(loom)]
pub(crate) use model::{Owned, Placed, Slots, Tracks};
