//! Frames of a queue: memory that the kernel and a socket share.

use std::io;

/// Bytes that the kernel keeps free before each frame, and those of an Ethernet header with a tag.
const AROUND: u32 = 256 + 18;
/// The largest MTU whose frames lie in one buffer each.
pub(super) const LONGEST_IN_ONE: u32 = 4096 - AROUND;

/// Drivers that tell the hardware the length of its buffers in KiB, rounded down: of 2,048 bytes they see the 1,792 behind the kernel's
/// headroom, and a frame of more than 1,024 would find no buffer (`igb_setup_srrctl`, `igc_configure_rx_ring`, and
/// `ixgbe_configure_srrctl` for the 82599; seen with igb of Linux 7.3).
const BUFFERS_IN_KIB: [&str; 3] = ["igb", "igc", "ixgbe"];

/// Bytes of one buffer on a link of this MTU, for its driver.
pub(super) fn frame_size(mtu: u32, driver: Option<&str>) -> usize {
    let wide = driver.is_some_and(|driver| BUFFERS_IN_KIB.contains(&driver));
    if mtu + AROUND <= 2048 && !wide { 2048 } else { 4096 }
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
    frame_size: usize,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Umem {}

impl Umem {
    /// Memory for a queue with such rings, of frames of so many bytes.
    pub fn new(frame_size: usize, rings: Rings) -> io::Result<Umem> {
        let len = (rings.receive + rings.send) as usize * frame_size;
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
            if at == libc::MAP_FAILED {
                Err(io::Error::last_os_error())
            } else {
                Ok(Umem { at: at.cast(), len, frame_size })
            }
        };
        // Huge pages when there are some: reserved ones, or what the system puts together when asked.
        let reserved = if len.is_multiple_of(2 << 20) { map(libc::MAP_HUGETLB).ok() } else { None };
        let mut umem = reserved.map_or_else(|| map(0), Ok)?;
        mem::advise(umem.bytes_mut(0, len));
        Ok(umem)
    }

    /// Bytes of one frame.
    pub fn frame_size(&self) -> usize {
        self.frame_size
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_the_link_finds_room_in_whole_kib_where_the_driver_counts_so() {
        for mtu in [576, 1500, 1774, 1775, 3000] {
            assert_eq!(frame_size(mtu, None), if mtu <= 1774 { 2048 } else { 4096 });
            for driver in BUFFERS_IN_KIB {
                let seen = (frame_size(mtu, Some(driver)) - 256) / 1024 * 1024;
                assert!(seen >= longest_frame(mtu), "{driver}, {mtu}: {seen}");
            }
            assert_eq!(frame_size(mtu, Some("i40e")), frame_size(mtu, None));
        }
    }
}
