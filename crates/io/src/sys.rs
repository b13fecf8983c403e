//! System calls that several ports make.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The kernel's word on a call that gives -1 when it fails.
pub(crate) fn check(r: i32) -> io::Result<i32> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) }
}

/// setsockopt, for options whose kernel type `T` is.
pub(crate) fn set_option<T: Copy>(fd: impl AsFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the value is as long as is said, and lives through the call.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const *value).cast(), size_of::<T>() as u32) }).map(drop)
}
