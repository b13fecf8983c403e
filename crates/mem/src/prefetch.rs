//! Hints that memory will be read soon. They never fault and change nothing but time; where the architecture is not known
//! they are nothing.

/// The line on which `value` starts.
#[inline(always)]
pub fn read<T: ?Sized>(value: &T) {
    line(core::ptr::from_ref(value).cast())
}

/// All lines of `value`.
#[inline(always)]
pub fn whole<T>(value: &T) {
    let at = core::ptr::from_ref(value).cast::<u8>();
    (0..size_of::<T>().div_ceil(64)).for_each(|i| line(at.wrapping_add(64 * i)));
}

/// The first two lines of `bytes`: a frame's headers.
#[inline(always)]
pub fn slice(bytes: &[u8]) {
    line(bytes.as_ptr());
    if bytes.len() > 64 {
        line(bytes[64..].as_ptr());
    }
}

/// The line at `at`, whatever is there.
#[inline(always)]
pub fn line(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch accesses nothing that the program can see, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// The line at `at`, to be written.
#[inline(always)]
pub(crate) fn line_to_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch accesses nothing that the program can see, whatever the address; processors without PREFETCHW
    // treat it as nothing.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(at.cast())
    };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
