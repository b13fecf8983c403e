//! The rings that the kernel and an AF_XDP socket share (Documentation/networking/af_xdp.rst).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

pub(super) const SOL_XDP: i32 = 283;

/// A frame, or a part of one.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Desc {
    pub addr: u64,
    pub len: u32,
    pub options: u32,
}

/// More parts of the same packet follow.
pub(super) const CONTINUED: u32 = 1;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Offsets {
    producer: u64,
    consumer: u64,
    desc: u64,
    flags: u64,
}

/// Where each ring's parts lie in its mapping.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct AllOffsets {
    rx: Offsets,
    tx: Offsets,
    fill: Offsets,
    completion: Offsets,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Rx,
    Tx,
    Fill,
    Completion,
}

pub(super) fn set_option<T: Copy>(fd: BorrowedFd, option: i32, value: &T) -> io::Result<()> {
    sys::set_option(fd, SOL_XDP, option, value)
}

/// Reads an option whose kernel type is plain integers.
pub(super) fn option<T: Default>(fd: BorrowedFd, option: i32) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as u32;
    // SAFETY: the kernel writes at most `len` bytes of integers into a value of that size.
    let r = unsafe { libc::getsockopt(fd.as_raw_fd(), SOL_XDP, option, (&raw mut value).cast(), &raw mut len) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// One ring of `T`. This side produces on fill and tx rings and consumes on the others.
pub(super) struct Ring<T> {
    map: *mut libc::c_void,
    map_len: usize,
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    desc: *mut T,
    mask: u32,
    /// Our own index: the next to produce or consume.
    local: u32,
    /// The other side's, when it was last looked at.
    cached: u32,
}

// SAFETY: the mapping belongs to this value alone; the indices shared with the kernel are atomics.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Sets the size of a ring of a fresh socket and maps it.
    pub fn map(fd: BorrowedFd, kind: Kind, size: u32) -> io::Result<Ring<T>> {
        let (number, page) = match kind {
            Kind::Rx => (2, 0),
            Kind::Tx => (3, 0x8000_0000u64),
            Kind::Fill => (5, 0x1_0000_0000),
            Kind::Completion => (6, 0x1_8000_0000),
        };
        set_option(fd, number, &size)?;
        let all: AllOffsets = option(fd, 1)?;
        let at = match kind {
            Kind::Rx => all.rx,
            Kind::Tx => all.tx,
            Kind::Fill => all.fill,
            Kind::Completion => all.completion,
        };
        let map_len = at.desc as usize + size as usize * size_of::<T>();
        // SAFETY: a new shared mapping of the socket's ring.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                page as i64,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = map.cast::<u8>();
        Ok(Ring {
            map,
            map_len,
            producer: base.wrapping_add(at.producer as usize).cast(),
            consumer: base.wrapping_add(at.consumer as usize).cast(),
            flags: base.wrapping_add(at.flags as usize).cast(),
            desc: base.wrapping_add(at.desc as usize).cast(),
            mask: size - 1,
            local: 0,
            // A producer starts with a whole ring of room, which `room` finds out.
            cached: 0,
        })
    }

    fn index(&self, which: *const AtomicU32) -> &AtomicU32 {
        // SAFETY: the index lies in the mapping, which lives as long as `self`, aligned by the kernel.
        unsafe { &*which }
    }

    /// Producer: free slots, at least when `want` are not known to be.
    pub fn room(&mut self, want: u32) -> u32 {
        let size = self.mask + 1;
        let mut room = size.saturating_sub(self.local.wrapping_sub(self.cached));
        if room < want {
            self.cached = self.index(self.consumer).load(Ordering::Acquire);
            room = size.saturating_sub(self.local.wrapping_sub(self.cached));
        }
        room
    }

    /// Producer: writes the next slot, which [`Ring::room`] has said to be free.
    pub fn push(&mut self, value: T) {
        // SAFETY: the slot index is masked, so inside the ring; it is ours until published.
        unsafe { self.desc.add((self.local & self.mask) as usize).write(value) };
        self.local = self.local.wrapping_add(1);
    }

    /// Producer: shows the kernel what was pushed.
    pub fn publish(&self) {
        self.index(self.producer).store(self.local, Ordering::Release);
    }

    /// Producer: slots that the kernel has not taken yet.
    pub fn used(&self) -> u32 {
        self.local.wrapping_sub(self.taken())
    }

    /// Producer: whether the kernel has not taken everything.
    pub fn busy(&self) -> bool {
        self.used() != 0
    }

    /// Producer: the kernel's index, which moves when it takes something.
    pub fn taken(&self) -> u32 {
        self.index(self.consumer).load(Ordering::Relaxed)
    }

    /// Consumer: slots to read, at most `max`.
    pub fn available(&mut self, max: u32) -> u32 {
        let mut n = self.cached.wrapping_sub(self.local);
        if n < max {
            self.cached = self.index(self.producer).load(Ordering::Acquire);
            n = self.cached.wrapping_sub(self.local);
        }
        n.min(max)
    }

    /// Consumer: slots to read that [`Ring::available`] has seen.
    pub fn known(&self) -> u32 {
        self.cached.wrapping_sub(self.local)
    }

    /// Consumer: our own index, which moves with [`Ring::consume`].
    pub fn consumed(&self) -> u32 {
        self.local
    }

    /// Slots in all.
    pub fn slots(&self) -> u32 {
        self.mask + 1
    }

    /// Consumer: the slot `ahead` of the next, which [`Ring::available`] has said to be there.
    pub fn peek(&self, ahead: u32) -> T {
        // SAFETY: the slot index is masked; the kernel has published it.
        unsafe { self.desc.add((self.local.wrapping_add(ahead) & self.mask) as usize).read() }
    }

    /// Consumer: gives `n` slots back.
    pub fn consume(&mut self, n: u32) {
        self.local = self.local.wrapping_add(n);
        self.index(self.consumer).store(self.local, Ordering::Release);
    }

    /// The kernel waits for a system call.
    pub fn needs_wakeup(&self) -> bool {
        self.index(self.flags).load(Ordering::Relaxed) & 1 != 0
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length and is not used after this.
        unsafe { libc::munmap(self.map, self.map_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Both ends of a ring over a page of its own, whose indices begin at `first`. The page is the first one's.
    fn ends(first: u32) -> (Ring<u64>, std::mem::ManuallyDrop<Ring<u64>>) {
        // SAFETY: a new private mapping.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED);
        let base = map.cast::<u8>();
        let end = || Ring {
            map,
            map_len: PAGE,
            producer: base.cast(),
            consumer: base.wrapping_add(64).cast(),
            flags: base.wrapping_add(128).cast(),
            desc: base.wrapping_add(192).cast::<u64>(),
            mask: 7,
            local: first,
            cached: first,
        };
        let (a, b) = (end(), end());
        a.index(a.producer).store(first, Ordering::Relaxed);
        a.index(a.consumer).store(first, Ordering::Relaxed);
        (a, std::mem::ManuallyDrop::new(b))
    }

    #[test]
    fn slots_come_in_order_when_the_ring_and_the_numbers_begin_again() {
        let (mut producer, mut consumer) = ends(u32::MAX - 10);
        let (mut pushed, mut seen) = (0, 0);
        for n in [1, 8, 3, 7, 8, 8, 2] {
            assert_eq!((producer.room(8), consumer.available(8)), (8, 0));
            for _ in 0..n {
                producer.push(pushed);
                pushed += 1;
            }
            assert_eq!((consumer.available(8), producer.busy()), (0, true));
            assert_eq!((producer.used(), producer.taken()), (n, consumer.local));
            producer.publish();
            assert_eq!((producer.room(8), consumer.available(8), consumer.known()), (8 - n, n, n));
            for ahead in 0..n {
                assert_eq!(consumer.peek(ahead), seen);
                seen += 1;
            }
            consumer.consume(n);
            assert_eq!((producer.used(), producer.busy()), (0, false));
        }
        assert_eq!((pushed, seen), (37, 37));
    }

    #[test]
    fn the_kernels_flag_is_read() {
        let (producer, _consumer) = ends(0);
        assert!(!producer.needs_wakeup());
        producer.index(producer.flags).store(1, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }
}
