//! Variables by which the next program of a process finds the library and the helper.
//!
//! nginx executes its next binary with an environment of its own making, and passes its listeners on. Without the variables its
//! workers would share them from then on.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest variable that is kept, with its name.
const MOST: usize = 4096;
/// Most variables of an environment to which these are added.
const MOST_VARIABLES: usize = 1024;

/// `NAME=VALUE` with a zero behind it.
struct Variable(UnsafeCell<[u8; MOST]>);

// SAFETY: written by the constructor alone, before `KEPT` says that it may be read.
unsafe impl Sync for Variable {}

static VARIABLES: [(&CStr, Variable); 2] =
    [(c"LD_PRELOAD", Variable(UnsafeCell::new([0; MOST]))), (c"CORELANE_RUN", Variable(UnsafeCell::new([0; MOST])))];
static KEPT: AtomicBool = AtomicBool::new(false);

/// Takes copies, since programs write their titles over their environment. Called once, before there are threads.
pub fn keep() {
    for (name, variable) in &VARIABLES {
        // SAFETY: a constant that ends with a zero; constructors run before a program changes its environment.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        if value.is_null() {
            return;
        }
        // SAFETY: the environment's strings end with a zero.
        let mut value = unsafe { CStr::from_ptr(value) }.to_bytes();
        if *name == c"LD_PRELOAD" {
            // Ours stands first; the others are the program's to drop.
            value = value.split(|byte| matches!(byte, b':' | b' ')).next().unwrap_or_default();
        }
        let name = name.to_bytes();
        if name.len() + 1 + value.len() >= MOST {
            return;
        }
        // SAFETY: nobody reads it yet, and there is one thread.
        let place = unsafe { &mut *variable.0.get() };
        place[..name.len()].copy_from_slice(name);
        place[name.len()] = b'=';
        place[name.len() + 1..][..value.len()].copy_from_slice(value);
    }
    KEPT.store(true, Ordering::Release);
}

/// Calls `then` with an environment that has the variables: the given one where it has an LD_PRELOAD of its own, or is too long.
///
/// # Safety
///
/// `environment` is null or points to strings, of which the last is null.
pub unsafe fn completed<R>(environment: *const *const c_char, then: impl FnOnce(*const *const c_char) -> R) -> R {
    let mut all = [std::ptr::null(); MOST_VARIABLES + VARIABLES.len() + 1];
    let mut n = 0;
    if environment.is_null() || !KEPT.load(Ordering::Acquire) {
        return then(environment);
    }
    loop {
        // SAFETY: not beyond the null that ends it.
        let string = unsafe { *environment.add(n) };
        if string.is_null() {
            break;
        }
        // SAFETY: the caller's.
        let text = unsafe { CStr::from_ptr(string) }.to_bytes();
        if n == MOST_VARIABLES || text.starts_with(b"LD_PRELOAD=") {
            return then(environment);
        }
        // Of two variables of one name the first counts: the program's own.
        all[n] = string;
        n += 1;
    }
    for (place, (_, variable)) in all[n..].iter_mut().zip(&VARIABLES) {
        *place = variable.0.get().cast();
    }
    then(all.as_ptr())
}
