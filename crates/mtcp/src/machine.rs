//! The machine that a program runs on.

use core::ffi::c_int;

/// The processors that are on.
pub fn processors() -> c_int {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.clamp(1, c_int::MAX as i64) as c_int
}
