//! `errno`: how a call tells C why it failed.

use core::ffi::c_int;
use std::io::ErrorKind;

use libc::ssize_t;
pub use rustix::io::Errno;

/// What a call gives, or its `errno`.
pub type Result<T> = core::result::Result<T, Errno>;

/// The number of a socket's error.
pub fn of(error: socket::Errno) -> Errno {
    Errno::from_raw_os_error(error.number())
}

/// The number of what the system said, or of what was said in its words; `EIO` for anything else.
pub fn of_io(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(match error.kind() {
        ErrorKind::AddrInUse => Errno::ADDRINUSE,
        ErrorKind::AddrNotAvailable => Errno::ADDRNOTAVAIL,
        ErrorKind::PermissionDenied => Errno::ACCESS,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::InvalidInput | ErrorKind::InvalidData => Errno::INVAL,
        ErrorKind::NetworkDown => Errno::NETDOWN,
        _ => Errno::IO,
    })
}

/// Sets this thread's `errno`.
pub fn set(error: Errno) {
    // SAFETY: it is this thread's own.
    unsafe { *libc::__errno_location() = error.raw_os_error() }
}

/// A value that a call gives.
pub trait Answer {
    /// The value of a call that failed.
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: c_int = -1;
}

impl Answer for ssize_t {
    const FAILED: ssize_t = -1;
}

/// What C expects: the value, or -1 and `errno`, which a call that succeeds leaves alone.
#[inline]
pub fn answer<T: Answer>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => {
            set(error);
            T::FAILED
        }
    }
}

/// As [`answer`]: 0 or -1.
#[inline]
pub fn done(result: Result<()>) -> c_int {
    answer(result.map(|()| 0))
}

/// As [`answer`], for a number of bytes.
#[inline]
pub fn count(result: Result<usize>) -> ssize_t {
    answer(result.map(|n| n as ssize_t))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> i32 {
        // SAFETY: it is this thread's own.
        unsafe { *libc::__errno_location() }
    }

    #[test]
    fn failures_set_errno_and_success_does_not() {
        assert_eq!((done(Err(Errno::PERM)), errno()), (-1, libc::EPERM));
        assert_eq!((count(Ok(7)), errno()), (7, libc::EPERM));
        assert_eq!((count(Err(Errno::AGAIN)), errno()), (-1, libc::EAGAIN));
    }

    #[test]
    fn every_error_of_a_socket_has_linux_number() {
        assert_eq!(of(socket::Errno::ECONNRESET), Errno::CONNRESET);
        assert_eq!(of(socket::Errno::EAGAIN), Errno::AGAIN);
        assert_eq!(of_io(&std::io::Error::from_raw_os_error(libc::EADDRINUSE)), Errno::ADDRINUSE);
        assert_eq!(of_io(&std::io::Error::new(ErrorKind::AddrInUse, "the kernel has it")), Errno::ADDRINUSE);
        assert_eq!(of_io(&std::io::Error::other("no number")), Errno::IO);
    }
}
