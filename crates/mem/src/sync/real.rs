//! The real thing: shared words and slots lie in the arena.

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
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Placed<T> {}

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

    /// The same slots for values of another type of the same size.
    #[cfg(not(miri))]
    pub(crate) fn as_kind<U>(&self) -> Slots<U> {
        Slots { at: self.at.cast(), _arena: self._arena.clone() }
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

    /// Copies what is in slot `i`, once, even where another process writes there meanwhile.
    ///
    /// # Safety
    /// `i` is below the count, and every pattern of bits is a value of T.
    #[inline]
    pub(crate) unsafe fn copy(&self, i: u32) -> T
    where
        T: Copy,
    {
        // SAFETY: in bounds and valid by the caller's promise; a volatile read is made once, so what was checked is what is used.
        unsafe { self.at.as_ptr().add(i as usize).read_volatile() }
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
