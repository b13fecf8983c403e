//! This process: its number, its errno, and where its helper is.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use claims::{Helper as Found, MOST_NAME, Token};

/// Of the process that owns this memory; a child of vfork(2), which uses its parent's, has another.
static PID: AtomicI32 = AtomicI32::new(0);

/// The helper's socket and the token, written once, before there are threads.
struct Helper(UnsafeCell<([u8; MOST_NAME], Token)>);

// SAFETY: written by the constructor alone, before `NAME_LEN` says that it may be read.
unsafe impl Sync for Helper {}

static HELPER: Helper = Helper(UnsafeCell::new(([0; MOST_NAME], Token([0; 16]))));
/// Bytes of the name; 0 without a helper.
static NAME_LEN: AtomicUsize = AtomicUsize::new(0);

/// Reads from the environment where the helper is, and whether it deals ports; none where there is none.
pub fn find_helper() -> Option<bool> {
    // SAFETY: a constant that ends with a zero; constructors run before a program changes its environment.
    let value = unsafe { libc::getenv(c"CORELANE_RUN".as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the environment's strings end with a zero.
    let value = unsafe { std::ffi::CStr::from_ptr(value) }.to_bytes();
    let Found { name, token, ports } = Found::read(value)?;
    // SAFETY: nobody reads it yet, and there is one thread.
    let place = unsafe { &mut *HELPER.0.get() };
    place.0[..name.len()].copy_from_slice(name);
    place.1 = token;
    note_pid();
    // SAFETY: the handler calls nothing but getpid(2).
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    NAME_LEN.store(name.len(), Ordering::Release);
    Some(ports)
}

/// The helper's socket, and the token that it asks for.
pub fn helper() -> Option<(&'static [u8], Token)> {
    let len = NAME_LEN.load(Ordering::Acquire);
    if len == 0 {
        return None;
    }
    // SAFETY: not written any more since the length was stored.
    let place = unsafe { &*HELPER.0.get() };
    Some((&place.0[..len], place.1))
}

extern "C" fn after_fork() {
    note_pid();
}

fn note_pid() {
    // SAFETY: no memory is passed.
    PID.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Number of the process that owns this memory.
pub fn number() -> i32 {
    PID.load(Ordering::Relaxed)
}

/// True where this memory is the calling process's own: it is not in a child of vfork(2), nor in one of a bare clone(2).
pub fn owns_memory() -> bool {
    // SAFETY: no memory is passed.
    number() == unsafe { libc::getpid() }
}

/// Sets errno.
pub fn set_errno(error: c_int) {
    // SAFETY: the C library's own place, one for each thread.
    unsafe { *libc::__errno_location() = error };
}

/// The errno of the calling thread.
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}
