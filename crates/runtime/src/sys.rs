//! What the kernel is asked that no crate asks for us.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::process::getpriority_process;

/// sched_setattr(2)'s first version.
#[repr(C)]
#[derive(Clone, Debug, Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Whatever the policy is.
const KEEP_POLICY: u64 = 0x08;
/// The shortest that the kernel takes, ns.
const SLICE: u64 = 100_000;

/// Asks for short slices for this thread: it runs little at a time, and in return soon after it was woken, also where
/// another thread computes on the same core (EEVDF, Linux 6.12). Kernels that do not know it do as they always did.
pub(crate) fn short_slice() {
    // What is set along with it stays what it was; of this thread alone.
    let Ok(nice) = getpriority_process(None) else { return };
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        flags: KEEP_POLICY,
        nice,
        runtime: SLICE,
        ..SchedAttr::default()
    };
    // SAFETY: the structure is of the size that it says, and lives as long as the call; 0 is this thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

/// Starts a thread that no signal comes to: a program's handlers run, and its signalfd and sigwait hear, in threads of its own.
pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // SAFETY: a set of signals is numbers alone, and is filled before it is used; both live as long as the calls.
    let before = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    // It begins with the mask of who starts it.
    let thread = std::thread::Builder::new().name(name).spawn(body);
    // SAFETY: the mask is the one from before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    thread
}

/// Has `f` called when the process exits, once however often this is asked for one process.
pub(crate) fn at_exit(f: extern "C" fn()) {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if !ASKED.swap(true, Ordering::Relaxed) {
        // SAFETY: a function of this type, which stays where it is. Where there is no room for it, nothing is called.
        unsafe { libc::atexit(f) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_ours_has_no_signals_and_who_started_it_its_own() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned();
            u64::from_str_radix(&mask, 16).unwrap()
        };
        let before = blocked();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = spawn("quiet".into(), move || tell.send(blocked()).unwrap()).unwrap();
        let within = told.recv().unwrap();
        thread.join().unwrap();
        for signal in [libc::SIGINT, libc::SIGALRM, libc::SIGUSR1, libc::SIGTERM] {
            assert_ne!(within & 1 << (signal - 1), 0);
        }
        assert_eq!(blocked(), before);
    }

    fn attr() -> SchedAttr {
        let mut attr = SchedAttr::default();
        // SAFETY: the kernel writes no more than the size that it is told; 0 is this thread.
        let r = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size_of::<SchedAttr>() as u32, 0) };
        assert_eq!(r, 0);
        attr
    }

    #[test]
    fn the_slice_is_all_that_changes() {
        std::thread::spawn(|| {
            // Being nice needs no privilege, and must stay.
            rustix::process::nice(3).unwrap();
            let before = attr();
            short_slice();
            let after = attr();
            assert_eq!((after.policy, after.nice), (before.policy, before.nice));
            // Kernels before 6.12 do not tell one.
            assert!(after.runtime == SLICE || before.runtime == 0, "{before:?} {after:?}");
        })
        .join()
        .unwrap();
    }
}
