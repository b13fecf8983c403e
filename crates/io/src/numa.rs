//! Memory near a core. Where a machine has several NUMA nodes, what is touched first while [`near`] runs lies on the node of
//! the core that is named: the frames and rings of a queue, which the kernel pins when the socket is made, and what a lane's tables
//! begin with. What a lane touches first later, from its core, is there by the kernel's own rule.

use std::io;

/// Nodes that are named, in words of 64.
const WORDS: usize = 16;
/// What the kernel is told of that: one more than there are bits.
const BITS: usize = WORDS * 64 + 1;

/// Runs `work` with memory preferred on the node of `core`; where it is full the kernel takes another. Without a core, on a machine with
/// one node, where the kernel refuses, and where whoever started the program has chosen a policy (`numactl`), it just runs.
pub fn near<T>(core: Option<usize>, work: impl FnOnce() -> T) -> T {
    let _preferred = core.and_then(node_of).and_then(Preferred::set);
    work()
}

/// The node of a core, where there are several.
fn node_of(core: usize) -> Option<usize> {
    let online = std::fs::read_to_string("/sys/devices/system/node/online").ok()?;
    if !online.contains(['-', ',']) {
        return None;
    }
    let mut entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
    entries.find_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// A thread's policy of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    mode: i32,
    nodes: [u64; WORDS],
}

impl Policy {
    fn of_this_thread() -> io::Result<Policy> {
        let mut policy = Policy { mode: 0, nodes: [0; WORDS] };
        // SAFETY: the kernel writes a mode and as many bits as are said; both places live through the call.
        let r = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy.mode,
                policy.nodes.as_mut_ptr(),
                BITS,
                0usize,
                0usize,
            )
        };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(policy) }
    }

    fn set(&self) -> io::Result<()> {
        // SAFETY: the kernel reads as many bits as are said; the policy changes where pages come from, not what is in them.
        let r = unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, self.nodes.as_ptr(), BITS) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// This thread prefers a node; it had another policy before, and has it again afterwards.
struct Preferred(Policy);

impl Preferred {
    /// `None`, with nothing done, where it may not or has a policy already.
    fn set(node: usize) -> Option<Preferred> {
        let before = Policy::of_this_thread().ok().filter(|p| p.mode == libc::MPOL_DEFAULT)?;
        let mut nodes = [0; WORDS];
        *nodes.get_mut(node / 64)? |= 1 << (node % 64);
        Policy { mode: libc::MPOL_PREFERRED, nodes }.set().ok()?;
        Some(Preferred(before))
    }
}

impl Drop for Preferred {
    fn drop(&mut self) {
        // It was this thread's a moment ago.
        let _ = self.0.set();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_ends_with_its_guard() {
        let before = Policy::of_this_thread().unwrap();
        if before.mode != libc::MPOL_DEFAULT {
            return testing::skip("the tests run with a NUMA policy of their own");
        }
        let preferred = Preferred::set(0).unwrap();
        let now = Policy::of_this_thread().unwrap();
        assert_eq!((now.mode, now.nodes[0]), (libc::MPOL_PREFERRED, 1));
        // That is this thread's policy now, and stays.
        assert!(Preferred::set(0).is_none());
        drop(preferred);
        assert_eq!(Policy::of_this_thread().unwrap(), before);
        assert!(Preferred::set(64 * WORDS).is_none());
        assert_eq!(Policy::of_this_thread().unwrap(), before);
    }

    #[test]
    fn work_is_done_wherever() {
        assert_eq!(near(None, || 1) + near(Some(0), || 2) + near(Some(100_000), || 3), 6);
    }
}
