//! What the kernel is asked that no crate asks for us.

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

#[cfg(test)]
mod tests {
    use super::*;

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
