//! Frames of a queue: memory that the kernel and a socket share.

use std::io;

/// Bytes that the kernel keeps free before each frame, and those of an Ethernet header with a tag.
const AROUND: u32 = 256 + 18;
/// The largest MTU whose frames lie in one buffer each.
pub(super) const LONGEST_IN_ONE: u32 = 4096 - AROUND;

/// Bytes of one buffer.
pub(super) fn frame_size(mtu: u32) -> usize {
    if mtu + AROUND <= 2048 { 2048 } else { 4096 }
}

/// Longest frame of a link, a VLAN tag included.
pub(super) fn longest_frame(mtu: u32) -> usize {
    mtu as usize + 18
}

/// Slots of a queue's rings, and so frames: powers of two.
#[derive(Clone, Copy)]
pub(super) struct Rings {
    pub receive: u32,
    pub send: u32,
}

/// The frames of a queue: one mapping, first those to receive into, then those to send.
pub(super) struct Umem {
    at: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Umem {}

impl Umem {
    /// Memory for a queue with such rings on a link of this MTU.
    pub fn new(mtu: u32, rings: Rings) -> io::Result<Umem> {
        let len = (rings.receive + rings.send) as usize * frame_size(mtu);
        let map = |flags: i32| {
            // SAFETY: a new private mapping.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                    -1,
                    0,
                )
            };
            if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Umem { at: at.cast(), len }) }
        };
        // Huge pages when there are some: reserved ones, or what the system puts together when asked.
        let reserved = if len.is_multiple_of(2 << 20) { map(libc::MAP_HUGETLB).ok() } else { None };
        let mut umem = reserved.map_or_else(|| map(0), Ok)?;
        mem::advise(umem.bytes_mut(0, len));
        Ok(umem)
    }

    /// Where it begins, and its bytes, as the kernel is told.
    pub fn region(&self) -> (u64, u64) {
        (self.at as u64, self.len as u64)
    }

    /// Bytes `at..at + len`, where they lie inside.
    pub fn bytes(&self, at: u64, len: usize) -> &[u8] {
        let at = at as usize;
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return &[];
        }
        // SAFETY: checked to lie in the mapping, whose bytes are initialised; frames under a shared borrow are ours: received
        // and not given back.
        unsafe { std::slice::from_raw_parts(self.at.add(at), len) }
    }

    pub fn bytes_mut(&mut self, at: u64, len: usize) -> &mut [u8] {
        let at = at as usize;
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return &mut [];
        }
        // SAFETY: as above; a frame to send is ours until its descriptor is published.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(at), len) }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length; the socket that used it is closed before (field order).
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}
