//! Memory of the channel for `recv`: buffers that the kernel picks from when bytes are there, so that a connection without
//! any holds none (provided buffers).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

const PAGE: usize = 4096;

/// Memory that does not move.
struct Stretch {
    at: NonNull<u8>,
    layout: Layout,
}

impl Stretch {
    fn new(bytes: usize) -> io::Result<Stretch> {
        let layout = Layout::from_size_align(bytes.max(1), PAGE).map_err(|_| crate::errno(libc::EINVAL))?;
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(layout) };
        let at = NonNull::new(at).ok_or_else(|| crate::errno(libc::ENOMEM))?;
        Ok(Stretch { at, layout })
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

/// Buffers of one size, by number.
pub(crate) struct Memory {
    bytes: Stretch,
    pub size: usize,
    pub count: u16,
}

impl Memory {
    pub fn new(count: u16, size: usize) -> io::Result<Memory> {
        Ok(Memory { bytes: Stretch::new(count as usize * size)?, size, count })
    }

    /// Where a buffer begins.
    pub fn at(&self, id: u16) -> *mut u8 {
        debug_assert!(id < self.count);
        self.bytes.at.as_ptr().wrapping_add(id as usize * self.size)
    }
}

/// Who has a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// Nobody: the kernel may pick it.
    Kernel,
    /// It has bytes that nobody has asked for.
    Channel,
    Application,
}

/// Buffers that the kernel picks from.
pub(crate) struct Pool {
    pub memory: Memory,
    entries: Stretch,
    tail: u16,
    /// Given since the kernel was told.
    unsaid: bool,
    /// Who has which, by number: the application gives nothing back twice.
    held: Vec<Holder>,
    /// How many of the kernel's it cannot pick.
    away: u16,
    /// Buffers that the kernel never has, behind all others.
    kept: Vec<u16>,
    /// The kernel's buffers.
    count: u16,
}

/// Buffers beside those that the kernel picks from.
const KEPT: u16 = 64;

/// The group of the channel's buffers; there is no other.
pub(crate) const GROUP: u16 = 0;

impl Pool {
    /// All buffers are the kernel's; the ring must go before this.
    pub fn new(ring: &IoUring, count: u16, size: usize) -> io::Result<Pool> {
        let memory = Memory::new(count + KEPT, size)?;
        let entries = Stretch::new(count as usize * size_of::<BufRingEntry>())?;
        let base = entries.at.as_ptr() as u64;
        // SAFETY: the entries stay where they are as long as the ring, which its owner drops first.
        unsafe { ring.submitter().register_buf_ring_with_flags(base, count, GROUP, 0)? };
        let (held, kept) = (vec![Holder::Kernel; (count + KEPT) as usize], (count..count + KEPT).collect());
        let mut pool = Pool { memory, entries, tail: 0, unsaid: false, held, away: 0, kept, count };
        (0..count).for_each(|id| pool.give(id));
        pool.publish();
        Ok(pool)
    }

    /// Lets the kernel have a buffer.
    fn give(&mut self, id: u16) {
        let at = (self.tail & (self.count - 1)) as usize;
        let address = self.memory.at(id) as u64;
        // SAFETY: `at` is below the number of entries, a power of two; the kernel reads an entry only behind the tail, and
        // writes none.
        let entry = unsafe { &mut *self.entries.at.as_ptr().cast::<BufRingEntry>().add(at) };
        entry.set_addr(address);
        entry.set_len(self.memory.size as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        self.unsaid = true;
    }

    /// The kernel hears of what it was given.
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.unsaid) {
            let base = self.entries.at.as_ptr().cast::<BufRingEntry>();
            // SAFETY: the address of the first entry of an initialised ring, whose tail the kernel reads atomically.
            let tail = unsafe { &*BufRingEntry::tail(base).cast::<AtomicU16>() };
            tail.store(self.tail, Ordering::Release);
        }
    }

    /// The kernel has put bytes into a buffer.
    pub fn taken(&mut self, id: u16) {
        if let Some(held) = self.held.get_mut(id as usize) {
            let had = std::mem::replace(held, Holder::Channel) != Holder::Kernel;
            self.away += u16::from(!had && id < self.count);
        }
    }

    /// The application gets a buffer that was taken: where it begins.
    pub fn lend(&mut self, id: u16) -> *const u8 {
        if let Some(held) = self.held.get_mut(id as usize) {
            *held = Holder::Application;
        }
        self.memory.at(id)
    }

    /// The application has done with a buffer; `false` where it had it not.
    pub fn take_back(&mut self, id: u16) -> bool {
        self.held.get(id as usize) == Some(&Holder::Application) && self.reuse(id)
    }

    /// Nobody needs a buffer's bytes any more, whoever had it; `false` where there were none.
    pub fn reuse(&mut self, id: u16) -> bool {
        let held = self.held.get_mut(id as usize);
        let had = held.is_some_and(|held| std::mem::replace(held, Holder::Kernel) != Holder::Kernel);
        if had && id < self.count {
            self.away -= 1;
            self.give(id);
        } else if had {
            self.kept.push(id);
        }
        had
    }

    /// Buffers with nothing in them: the kernel's, or those that it never has.
    pub fn free(&self, kept: bool) -> usize {
        if kept { self.kept.len() } else { (self.count - self.away).into() }
    }

    /// Bytes that the kernel has put into a buffer.
    pub fn bytes(&self, id: u16, len: usize) -> &[u8] {
        // SAFETY: the buffer is not the kernel's now, and as long as this or longer.
        unsafe { std::slice::from_raw_parts(self.memory.at(id), len.min(self.memory.size)) }
    }

    /// Puts bytes, as many as fit, into a buffer that the kernel never has: which, and how many. `None`: there is none left.
    pub fn spare(&mut self, bytes: &[u8]) -> Option<(u16, usize)> {
        let id = self.kept.pop()?;
        let len = bytes.len().min(self.memory.size);
        // SAFETY: as long as this or longer, and nobody's.
        unsafe { self.memory.at(id).copy_from_nonoverlapping(bytes.as_ptr(), len) };
        self.taken(id);
        Some((id, len))
    }

    /// Half of the kernel's buffers.
    pub fn half(&self) -> usize {
        self.count as usize / 2
    }
}
