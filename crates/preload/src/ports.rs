//! Ports of connections that the program opens: those of the core that connects, to which the helper has replies delivered
//! (Fastsocket 3.3).

use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use claims::ports::{BEYOND, LINE, OPENED, RANGE};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::{ask, next, process};

/// Option of level IPPROTO_IP, for IPv6 too (Linux 6.3).
pub const LOCAL_PORT_RANGE: c_int = 51;

/// Lines of cores, shared with the helper and the program's other processes; null without any.
static LINES: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// Number of them.
static CORES: AtomicUsize = AtomicUsize::new(0);
/// The program gives sockets ranges of its own.
static PROGRAM_S: AtomicBool = AtomicBool::new(false);

/// Asks the helper for the lines. Called once, before there are threads.
pub fn find() {
    let Some(memory) = ask::ports() else { return };
    // SAFETY: numbers alone, of which all may be 0; the kernel fills it. A mapping of all that a descriptor of ours has, which nobody can
    // cut short: its size is sealed.
    unsafe {
        let mut told: libc::stat = zeroed();
        let bytes = if libc::fstat(memory, &mut told) == 0 { told.st_size as usize } else { 0 };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let lines = if bytes < LINE {
            libc::MAP_FAILED
        } else {
            libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, memory, 0)
        };
        next::close(memory);
        if lines != libc::MAP_FAILED {
            CORES.store(bytes / LINE, Ordering::Relaxed);
            LINES.store(lines.cast(), Ordering::Release);
        }
    }
}

/// The program chooses the ports of its sockets by itself: all are left to it.
pub fn leave_to_program() {
    PROGRAM_S.store(true, Ordering::Relaxed);
}

/// Line of the core on which a thread connects.
pub struct Core(*mut u8);

impl Core {
    fn range(&self) -> u32 {
        // SAFETY: within a mapping that is never undone, aligned, and written by the helper before it was mapped.
        unsafe { AtomicU32::from_ptr(self.0.add(RANGE).cast()) }.load(Ordering::Relaxed)
    }

    /// Counts a connection: from the core's ports, or from others.
    pub fn count(&self, beyond: bool) {
        let at = if beyond || self.range() == 0 { BEYOND } else { OPENED };
        // SAFETY: as above; all count by atomic operations.
        unsafe { AtomicU64::from_ptr(self.0.add(at).cast()) }.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets the socket have any port, since none of the core's is free; false where it had none of them.
    pub fn give_up(&self, fd: c_int) -> bool {
        self.range() != 0 && confine(fd, 0)
    }
}

/// Confines the port that the kernel will choose; 0 for all.
fn confine(fd: c_int, range: u32) -> bool {
    let (value, len) = ((&raw const range).cast::<c_void>(), size_of::<u32>() as socklen_t);
    // SAFETY: the value is `len` bytes long.
    unsafe { next::setsockopt(fd, libc::IPPROTO_IP, LOCAL_PORT_RANGE, value, len) == 0 }
}

/// Before a socket connects: one of TCP without a port will have one of the core's. The core, where there is something to count.
///
/// # Safety
///
/// `address` is null or has `len` bytes.
pub unsafe fn about_to_connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> Option<Core> {
    let lines = LINES.load(Ordering::Acquire);
    if lines.is_null() || PROGRAM_S.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the caller's.
    if address.is_null() || !unsafe { leaves(address, len as usize) } {
        return None;
    }
    let errno = process::errno();
    // SAFETY: no memory is passed.
    let core =
        usize::try_from(unsafe { libc::sched_getcpu() }).ok().filter(|core| *core < CORES.load(Ordering::Relaxed));
    // SAFETY: the line is within the mapping.
    let core = core.map(|core| Core(unsafe { lines.add(core * LINE) }));
    // A port that the socket has stays, whatever the range. UDP's, of a resolver's queries, are to be drawn from all.
    let confined = core.filter(|core| {
        ask::option(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
            && (core.range() == 0 || confine(fd, core.range()))
    });
    process::set_errno(errno);
    confined
}

/// True for an IP address other than a loopback one: what loopback delivers comes back on the core that sent it.
///
/// # Safety
///
/// `address` has `len` bytes.
unsafe fn leaves(address: *const sockaddr, len: usize) -> bool {
    if len < size_of::<libc::sa_family_t>() {
        return false;
    }
    // SAFETY: as many bytes are there as the family's address has, which may lie anywhere.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET if len >= size_of::<sockaddr_in>() => {
                let to = address.cast::<sockaddr_in>().read_unaligned().sin_addr.s_addr;
                to.to_ne_bytes()[0] != 127
            }
            // 24 bytes without the scope, as old programs pass it.
            libc::AF_INET6 if len >= size_of::<sockaddr_in6>() - 4 => {
                let place = address.cast::<u8>().add(std::mem::offset_of!(sockaddr_in6, sin6_addr));
                let to = std::net::Ipv6Addr::from(place.cast::<[u8; 16]>().read_unaligned());
                !to.to_ipv4_mapped().map_or_else(|| to.is_loopback(), |to| to.is_loopback())
            }
            _ => false,
        }
    }
}
