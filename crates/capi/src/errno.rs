//! `errno`: how a call tells C why it failed.

use core::ffi::c_int;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

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

impl Answer for () {
    const FAILED: () = ();
}

impl<T> Answer for *mut T {
    const FAILED: *mut T = core::ptr::null_mut();
}

/// A handle.
impl Answer for u64 {
    const FAILED: u64 = 0;
}

/// A signal handler.
impl Answer for usize {
    const FAILED: usize = libc::SIG_ERR;
}

impl Answer for c_int {
    const FAILED: c_int = -1;
}

impl Answer for ssize_t {
    const FAILED: ssize_t = -1;
}

/// The body of a C function: a panic ends here, and the call fails with `ENETDOWN`. `broken` is to end what may be left half done.
#[inline]
pub fn contained<T: Answer>(body: impl FnOnce() -> T, broken: impl FnOnce()) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        // Nor does one that ends it.
        let _ = catch_unwind(AssertUnwindSafe(broken));
        set(Errno::NETDOWN);
        T::FAILED
    })
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
    fn a_panic_ends_in_the_call_and_fails_it() {
        let mut told = false;
        assert_eq!(contained(|| 7, || panic!("not called")), 7);
        assert_eq!((contained(|| -> c_int { panic!("as meant") }, || told = true), errno()), (-1, libc::ENETDOWN));
        assert!(told);
        assert!(contained(|| -> *mut u8 { panic!("as meant") }, || panic!("that, too")).is_null());
        assert_eq!(contained(|| -> u64 { panic!("as meant") }, || ()), 0);
        assert_eq!(contained(|| -> usize { panic!("as meant") }, || ()), libc::SIG_ERR);
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
