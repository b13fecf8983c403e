//! What the kernel is asked that no crate asks for us.

/// sched_setattr(2)'s first version.
#[repr(C)]
#[derive(Default)]
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

/// Keep the policy, and so the nice value.
const KEEP_POLICY: u64 = 0x08;
/// The shortest that the kernel takes, ns.
const SLICE: u64 = 100_000;

/// Asks for short slices for this thread: it runs little at a time, and in return soon after it was woken, also where
/// another thread computes on the same core (EEVDF, Linux 6.12). Kernels that do not know it do as they always did.
pub(crate) fn short_slice() {
    let attr =
        SchedAttr { size: size_of::<SchedAttr>() as u32, flags: KEEP_POLICY, runtime: SLICE, ..SchedAttr::default() };
    // SAFETY: the structure is of the size that it says, and lives as long as the call; 0 is this thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}
