//! AF_PACKET: any interface, slowly. Frames are received through a ring that the kernel fills (TPACKET_V2) and sent in
//! batches with a virtio-net header. The address must be one that the kernel does not own, or it would answer too.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use wire::burst::{RxBurst, RxChecksum, RxFrame, TxCaps, TxOffload, TxSink};

use crate::capability::Capability;
use crate::error::PortError;
use crate::netlink::{Link, Netlink};
use crate::port::{Port, PortCaps, PortCounters, Presence};
use crate::sys::{check, set_option};
use crate::vnet;

const SOL_PACKET: i32 = 263;
const PACKET_RX_RING: i32 = 5;
const PACKET_STATISTICS: i32 = 6;
const PACKET_VERSION: i32 = 10;
pub(crate) const PACKET_VNET_HDR: i32 = 15;
const PACKET_FANOUT: i32 = 18;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const TPACKET_V2: i32 = 1;

const STATUS_USER: u32 = 1;
const STATUS_CSUM_NOT_READY: u32 = 1 << 3;
const STATUS_VLAN_VALID: u32 = 1 << 4;
const STATUS_CSUM_VALID: u32 = 1 << 7;

/// One slot holds the largest packet that the kernel may have put together (GRO).
const SLOT: usize = 1 << 17;
const SLOTS: usize = 512;
/// Frames sent with one call.
const BATCH: usize = 64;
const MAX_GSO: usize = 65_535;
/// Bytes of a VLAN tag.
const TAG: usize = 4;

/// `struct tpacket2_hdr`.
#[repr(C)]
struct Slot {
    status: AtomicU32,
    len: u32,
    captured: u32,
    mac: u16,
    net: u16,
    sec: u32,
    nsec: u32,
    vlan_tci: u16,
    vlan_tpid: u16,
    padding: [u8; 4],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RingRequest {
    block_size: u32,
    blocks: u32,
    frame_size: u32,
    frames: u32,
}

/// One queue of an interface through AF_PACKET.
pub struct PacketPort {
    rx: OwnedFd,
    tx: OwnedFd,
    ring: *mut u8,
    /// The next slot to read.
    at: usize,
    /// Slots of the burst.
    burst: usize,
    /// Frames to send, each behind its header, one after the other.
    out: Vec<u8>,
    ends: Vec<usize>,
    caps: PortCaps,
    link: u32,
    counters: PortCounters,
    /// Frames for which the ring had no room: the kernel forgets them when it has told.
    missed: Cell<u64>,
}

// SAFETY: the ring's mapping belongs to this value alone.
unsafe impl Send for PacketPort {}

pub(crate) fn set<T: Copy>(fd: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    set_option(fd, SOL_PACKET, option, value)
}

/// A packet socket on an interface that receives `protocol` (0: nothing).
pub(crate) fn socket(link: &Link, protocol: u16) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is new.
    let fd = unsafe {
        OwnedFd::from_raw_fd(check(libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        ))?)
    };
    bind(&fd, link, protocol)?;
    Ok(fd)
}

fn bind(fd: &OwnedFd, link: &Link, protocol: u16) -> io::Result<()> {
    // SAFETY: all zero is a valid sockaddr_ll.
    let mut addr: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
    addr.sll_family = libc::AF_PACKET as u16;
    addr.sll_protocol = protocol.to_be();
    addr.sll_ifindex = link.index as i32;
    // SAFETY: the address is of the length that is said.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), size_of_val(&addr) as u32) }).map(drop)
}

/// Opens `queues` queues on an interface; flows are spread over them by the kernel's hash. With `offload` the kernel
/// finishes checksums and cuts large frames into segments.
pub fn open(name: &str, queues: u16, offload: bool) -> Result<Vec<PacketPort>, PortError> {
    let link = Netlink::open()
        .and_then(|mut n| n.link(name))
        .map_err(|source| PortError::System { what: "reading interfaces".into(), source })?
        .ok_or_else(|| PortError::NoInterface(name.into()))?;
    if !link.up {
        return Err(PortError::Down(name.into()));
    }
    let failed = |source| PortError::system(format!("AF_PACKET on {name}"), source, &[Capability::NetRaw]);
    let group = (std::process::id() & 0xffff) as i32;
    (0..queues).map(|i| PacketPort::new(&link, i, (queues > 1).then_some(group), offload).map_err(failed)).collect()
}

impl PacketPort {
    fn new(link: &Link, queue: u16, group: Option<i32>, offload: bool) -> io::Result<PacketPort> {
        // Not bound to a protocol before the ring is there, so that nothing is queued outside it.
        let rx = socket(link, 0)?;
        set(&rx, PACKET_VERSION, &TPACKET_V2)?;
        // The size of the segments that the kernel puts together (GRO) stands in it.
        set(&rx, PACKET_VNET_HDR, &1i32)?;
        set(&rx, PACKET_IGNORE_OUTGOING, &1i32)?;
        let request = RingRequest {
            block_size: SLOT as u32,
            blocks: SLOTS as u32,
            frame_size: SLOT as u32,
            frames: SLOTS as u32,
        };
        set(&rx, PACKET_RX_RING, &request)?;
        // SAFETY: a new shared mapping of the socket's ring.
        let ring = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SLOT * SLOTS,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                rx.as_raw_fd(),
                0,
            )
        };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let tx = socket(link, 0)?;
        set(&tx, PACKET_VNET_HDR, &1i32)?;
        let mtu = link.mtu.min(65_535) as u16;
        let port = PacketPort {
            rx,
            tx,
            ring: ring.cast(),
            at: 0,
            burst: 0,
            out: Vec::with_capacity(1 << 17),
            ends: Vec::with_capacity(BATCH),
            link: link.index,
            caps: PortCaps {
                name: format!("packet:{}", link.name),
                mac: link.mac,
                mtu,
                // The kernel puts segments together (GRO) whatever we send.
                max_rx_frame: MAX_GSO + 18,
                queue,
                zero_copy: false,
                tx: TxCaps {
                    max_frame: mtu as usize + 18,
                    checksum: offload,
                    max_gso: if offload { MAX_GSO } else { 0 },
                },
            },
            counters: PortCounters::default(),
            missed: Cell::new(0),
        };
        bind(&port.rx, link, libc::ETH_P_ALL as u16)?;
        // Questions for our IPv6 addresses go to groups that the kernel has not joined (RFC 4291 2.7.1).
        let groups = libc::packet_mreq {
            mr_ifindex: link.index as i32,
            mr_type: libc::PACKET_MR_ALLMULTI as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set(&port.rx, libc::PACKET_ADD_MEMBERSHIP, &groups)?;
        if let Some(group) = group {
            // PACKET_FANOUT_HASH; fragments are put together first so that they hash alike.
            set(&port.rx, PACKET_FANOUT, &(group | 0x8000 << 16))?;
        }
        Ok(port)
    }

    fn slot(&self, i: usize) -> &Slot {
        // SAFETY: the index is taken modulo the ring's size; slots are aligned and start with their header.
        unsafe { &*self.ring.add((i % SLOTS) * SLOT).cast() }
    }

    /// Size of the segments in a frame that the kernel has put together.
    fn mss(&self, i: usize) -> u16 {
        let slot = self.slot(i);
        let (at, whole) = (slot.mac as usize, slot.captured == slot.len);
        // The kernel leaves the header out where the frame did not fit.
        if !whole || at < size_of::<Slot>() + vnet::LEN || at > SLOT {
            return 0;
        }
        // SAFETY: inside the slot, before the frame, which the kernel has given to us until its status says otherwise.
        let header =
            unsafe { std::slice::from_raw_parts(self.ring.add((i % SLOTS) * SLOT + at - vnet::LEN), vnet::LEN) };
        vnet::decode(header).1
    }

    /// Puts a VLAN tag that the kernel took off back where it was; frames are told apart by it. A frame without room for its tag
    /// is emptied, and counted as dropped: without the tag it would be another link's.
    fn put_tag_back(&mut self, i: usize) {
        let slot = self.slot(i);
        let (at, captured) = (slot.mac as usize, slot.captured as usize);
        if !has_room_for_tag(at, captured) {
            // SAFETY: a slot that the kernel has given to us, to which no reference lives.
            unsafe { (*self.ring.add((i % SLOTS) * SLOT).cast::<Slot>()).captured = 0 };
            self.counters.rx_dropped += 1;
            return;
        }
        let tpid = if slot.vlan_tpid == 0 { 0x8100u16 } else { slot.vlan_tpid };
        let (tpid, tci) = (tpid.to_be_bytes(), slot.vlan_tci.to_be_bytes());
        // SAFETY: a slot that the kernel has given to us, to which no reference lives; the range lies behind its header, as
        // `has_room_for_tag` says, and inside it.
        unsafe {
            let start = self.ring.add((i % SLOTS) * SLOT);
            let slot: *mut Slot = start.cast();
            let moved = std::slice::from_raw_parts_mut(start.add(at - vnet::LEN - TAG), TAG + vnet::LEN + 12);
            moved.copy_within(TAG.., 0);
            let tag = moved.len() - TAG;
            moved[tag..].copy_from_slice(&[tpid[0], tpid[1], tci[0], tci[1]]);
            (*slot).mac -= TAG as u16;
            (*slot).captured += TAG as u32;
            (*slot).len += TAG as u32;
        }
    }

    fn bytes(&self, i: usize) -> &[u8] {
        let slot = self.slot(i);
        let (at, len) = (slot.mac as usize, slot.captured as usize);
        if at + len > SLOT {
            return &[];
        }
        // SAFETY: inside the slot, which the kernel has given to us until its status says otherwise.
        unsafe { std::slice::from_raw_parts(self.ring.add((i % SLOTS) * SLOT + at), len) }
    }
}

/// Whether a tag can be put into a frame of `captured` bytes that begins at `at` in its slot: its two addresses, and the
/// virtio-net header before them, move towards the front, where the slot's own header must stay whole.
fn has_room_for_tag(at: usize, captured: usize) -> bool {
    at >= size_of::<Slot>() + vnet::LEN + TAG && captured >= 12 && at + captured <= SLOT
}

impl RxBurst for PacketPort {
    fn len(&self) -> usize {
        self.burst
    }

    fn frame(&self, index: usize) -> RxFrame<'_> {
        let i = self.at + index;
        let status = self.slot(i).status.load(Ordering::Relaxed);
        let checksum = match status & (STATUS_CSUM_NOT_READY | STATUS_CSUM_VALID) {
            0 => RxChecksum::Unknown,
            _ => RxChecksum::Verified,
        };
        RxFrame { data: self.bytes(i), checksum, mss: self.mss(i) }
    }
}

impl TxSink for PacketPort {
    fn caps(&self) -> TxCaps {
        self.caps.tx
    }

    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.ends.len() >= BATCH {
            self.counters.tx_full += 1;
            return None;
        }
        let start = self.ends.last().copied().unwrap_or(0) + vnet::LEN;
        self.out.resize(start + len, 0);
        Some(&mut self.out[start..])
    }

    fn room(&mut self) -> usize {
        BATCH - self.ends.len()
    }

    fn commit(&mut self, len: usize, offload: TxOffload) {
        let start = self.ends.last().copied().unwrap_or(0);
        self.out[start..start + vnet::LEN].copy_from_slice(&vnet::encode(offload));
        self.ends.push(start + vnet::LEN + len);
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
        self.counters.tx_cut += offload.gso.is_some() as u64;
    }
}

impl Port for PacketPort {
    fn receive(&mut self, max: usize) -> usize {
        let mut n = 0;
        while n < max.min(SLOTS) {
            let status = self.slot(self.at + n).status.load(Ordering::Acquire);
            if status & STATUS_USER == 0 {
                break;
            }
            if status & STATUS_VLAN_VALID != 0 {
                self.put_tag_back(self.at + n);
            }
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += self.slot(self.at + n).captured as u64;
            n += 1;
        }
        self.burst = n;
        n
    }

    fn release(&mut self) {
        for i in 0..self.burst {
            self.slot(self.at + i).status.store(0, Ordering::Release);
        }
        self.at = (self.at + self.burst) % SLOTS;
        self.burst = 0;
    }

    fn flush(&mut self) -> Result<(), PortError> {
        if self.ends.is_empty() {
            return Ok(());
        }
        // SAFETY: all zero is a valid iovec and a valid mmsghdr.
        let (mut parts, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) = unsafe { core::mem::zeroed() };
        let mut at = 0;
        for ((part, message), end) in parts.iter_mut().zip(&mut messages).zip(&self.ends) {
            *part = libc::iovec { iov_base: self.out[at..].as_mut_ptr().cast(), iov_len: end - at };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            at = *end;
        }
        let messages = &mut messages[..self.ends.len()];
        let mut done = 0;
        while done < messages.len() {
            self.counters.syscalls += 1;
            // SAFETY: the messages point into `parts` and `out`, which live through the call.
            let r = unsafe {
                libc::sendmmsg(
                    self.tx.as_raw_fd(),
                    messages[done..].as_mut_ptr(),
                    (messages.len() - done) as u32,
                    libc::MSG_DONTWAIT,
                )
            };
            if r > 0 {
                done += r as usize;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                // The queue is full, or this one frame cannot go: as on any link, it is lost and counted.
                _ => {
                    self.counters.tx_dropped += 1;
                    done += 1;
                }
            }
        }
        self.ends.clear();
        Ok(())
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.rx.as_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        fence(Ordering::SeqCst);
        self.slot(self.at).status.load(Ordering::Acquire) & STATUS_USER == 0
    }

    fn wake_up(&mut self) {}

    fn take_error(&mut self) -> Option<io::Error> {
        // The kernel says ENETDOWN, and keeps the descriptor ready until it was heard.
        match rustix::net::sockopt::socket_error(&self.rx) {
            Ok(Err(error)) | Err(error) => Some(error.into()),
            Ok(Ok(())) => None,
        }
    }

    fn presence(&self) -> Presence {
        match Netlink::open().and_then(|mut netlink| netlink.link_at(self.link)) {
            Ok(Some(link)) if link.up => Presence::Up,
            Ok(Some(_)) | Err(_) => Presence::Down,
            Ok(None) => Presence::Gone,
        }
    }

    fn caps_of(&self) -> PortCaps {
        self.caps.clone()
    }

    fn counters(&self) -> PortCounters {
        let mut c = self.counters;
        let mut stats = [0u32; 2];
        let mut len = size_of_val(&stats) as u32;
        // SAFETY: the kernel writes at most `len` bytes of integers. Reading resets its count.
        let r = unsafe {
            libc::getsockopt(
                self.rx.as_raw_fd(),
                SOL_PACKET,
                PACKET_STATISTICS,
                stats.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if r == 0 {
            self.missed.set(self.missed.get() + stats[1] as u64);
        }
        c.rx_dropped += self.missed.get();
        c
    }
}

impl Drop for PacketPort {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length and is not used after this.
        unsafe { libc::munmap(self.ring.cast(), SLOT * SLOTS) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_needs_room_before_and_behind_the_frame() {
        let first = size_of::<Slot>() + vnet::LEN + TAG;
        assert!(has_room_for_tag(first, 12) && has_room_for_tag(first, SLOT - first));
        // The header in front would be overwritten; there is no place for a tag; the frame does not fit the slot.
        assert!(!has_room_for_tag(first - 1, 60));
        assert!(!has_room_for_tag(first, 11));
        assert!(!has_room_for_tag(first, SLOT - first + 1));
    }
}
