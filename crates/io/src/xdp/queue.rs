//! One queue of an interface: an AF_XDP socket with its own frames.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wire::burst::TxOffload;

use super::burst::Burst;
use super::device::{XdpConfig, ZeroCopy};
use super::metadata;
use super::ring::{CONTINUED, Desc, Kind, Ring, option, set_option};
use super::umem::{Rings, Umem, longest_frame};
use crate::sys;

const UMEM_REG: i32 = 4;
const STATISTICS: i32 = 7;
const OPTIONS: i32 = 8;
const MAX_TX_SKB_BUDGET: i32 = 9;
const FLAG_COPY: u16 = 2;
const FLAG_ZEROCOPY: u16 = 4;
const FLAG_NEED_WAKEUP: u16 = 8;
const FLAG_SG: u16 = 16;
/// Free frames with which nobody looks for more: what one connection sends in a turn.
const ENOUGH: usize = 64;
/// Frames that the kernel takes in within one call, where it does so in ours.
const BUDGET: u32 = 64;

#[derive(Clone, Copy)]
#[repr(C)]
struct UmemReg {
    addr: u64,
    len: u64,
    chunk_size: u32,
    headroom: u32,
    flags: u32,
    tx_metadata_len: u32,
}

#[repr(C)]
struct SockAddr {
    family: u16,
    flags: u16,
    ifindex: u32,
    queue: u32,
    shared_fd: u32,
}

impl SockAddr {
    fn bind(&self, fd: BorrowedFd) -> io::Result<()> {
        // SAFETY: the address is of the length that is said.
        sys::check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const *self).cast(), size_of::<SockAddr>() as u32) })
            .map(drop)
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is new, and nobody else's.
    unsafe {
        let fd = sys::check(libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// True where sockets take packets of several buffers (Linux 6.6): before, the flag is refused, whatever the interface.
pub(super) fn takes_several_buffers() -> bool {
    let nowhere = SockAddr { family: libc::AF_XDP as u16, flags: FLAG_SG, ifindex: 0, queue: 0, shared_fd: 0 };
    let bound = socket().and_then(|fd| nowhere.bind(fd.as_fd()));
    bound.is_err_and(|e| e.raw_os_error() == Some(libc::ENODEV))
}

/// What the kernel counted on a socket.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Statistics {
    pub rx_dropped: u64,
    pub rx_invalid: u64,
    pub tx_invalid: u64,
    pub rx_ring_full: u64,
    pub rx_fill_empty: u64,
    pub tx_empty: u64,
}

/// A queue of an interface, and how it is opened.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub ifindex: u32,
    pub queue: u16,
    pub mtu: u32,
    /// Packets of several buffers come and go, as they must where one buffer is shorter than a frame of the link.
    pub sg: bool,
}

/// Frames that came and were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    /// Longer than a buffer, or than IP allows.
    pub long: u64,
    /// For want of a buffer, or of room in the ring.
    pub full: u64,
    /// Times that a driver which does not copy found no buffer.
    pub no_buffer: u64,
}

/// What those know of each other that open an interface's queues at once.
pub(super) struct Opening {
    /// Just after another process has let go of a queue the kernel may still be tidying up.
    busy_until: Instant,
    failed: AtomicBool,
}

impl Opening {
    pub fn begin() -> Opening {
        Opening { busy_until: Instant::now() + Duration::from_secs(2), failed: AtomicBool::new(false) }
    }

    /// One of them has failed: the others are not needed.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether a queue that is in use may be tried again.
    pub fn may_wait(&self) -> bool {
        !self.has_failed() && Instant::now() < self.busy_until
    }
}

pub(super) struct Queue {
    rx: Ring<Desc>,
    tx: Ring<Desc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    fd: OwnedFd,
    umem: Umem,
    frame_size: usize,
    /// Bytes before each frame to send, for what it asks of the device.
    headroom: usize,
    /// Checksums can be asked for.
    pub sums: bool,
    /// Longest frame of the link.
    longest: usize,
    /// Frames to send that nobody uses.
    free: Vec<u64>,
    reserved: Option<u64>,
    /// A frame longer than one buffer, before it is cut up.
    long: Vec<u8>,
    reserved_long: bool,
    burst: Burst,
    /// The kernel left some of what was flushed in the ring.
    behind: bool,
    /// The kernel's receive work is done in our calls, so there is one for each look.
    polls: bool,
    pub zero_copy: bool,
    /// Packets of several buffers come and go.
    pub sg: bool,
    pub syscalls: u64,
    pub tx_full: u64,
    pub tx_dropped: u64,
}

impl Queue {
    /// Opens a socket on a queue; it receives once the program's map names it. `umem` was made for the same MTU and rings.
    pub fn open(
        At { ifindex, queue, mtu, sg }: At,
        umem: Umem,
        rings: Rings,
        config: &XdpConfig,
        opening: &Opening,
    ) -> io::Result<Queue> {
        let fd = socket()?;
        let frame_size = umem.frame_size();
        let Rings { receive, send } = rings;
        let (addr, len) = umem.region();
        let reg = UmemReg { addr, len, chunk_size: frame_size as u32, headroom: 0, flags: 0, tx_metadata_len: 0 };
        let b = fd.as_fd();
        let with = UmemReg { flags: metadata::UMEM_FLAG, tx_metadata_len: metadata::LEN as u32, ..reg };
        // Kernels before 6.11 do not know it.
        let metadata = config.offload && set_option(b, UMEM_REG, &with).is_ok();
        if !metadata {
            set_option(b, UMEM_REG, &reg)?;
        }
        let headroom = if metadata { metadata::HEADROOM } else { 0 };
        // The kernel shows what it received before it shows which frames it took for that: those that come back at once have
        // slots of their own.
        let mut fill = Ring::map(b, Kind::Fill, 2 * receive)?;
        let completion = Ring::map(b, Kind::Completion, send)?;
        let rx = Ring::map(b, Kind::Rx, receive)?;
        let tx = Ring::map(b, Kind::Tx, send)?;
        let frame = |i: u32| i as u64 * frame_size as u64;
        (0..receive).for_each(|i| fill.push(frame(i)));
        fill.publish();
        if config.busy_poll_us > 0 {
            busy_poll(b, config.busy_poll_us)?;
        }
        // A copied packet costs the kernel a buffer; without this it sends 32 of them a call. Older kernels do not know it.
        let _ = set_option(b, MAX_TX_SKB_BUDGET, &send);
        let flags = FLAG_NEED_WAKEUP
            | if sg { FLAG_SG } else { 0 }
            | match config.zero_copy {
                ZeroCopy::Auto => 0,
                ZeroCopy::Require => FLAG_ZEROCOPY,
                ZeroCopy::Never => FLAG_COPY,
            };
        let addr = SockAddr { family: libc::AF_XDP as u16, flags, ifindex, queue: queue as u32, shared_fd: 0 };
        while let Err(error) = addr.bind(b) {
            if error.raw_os_error() != Some(libc::EBUSY) || !opening.may_wait() {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let zero_copy = option::<u32>(fd.as_fd(), OPTIONS).is_ok_and(|o| o & 1 != 0);
        let sums = metadata && (!zero_copy || metadata::driver_sums(ifindex)?);
        let free = (receive..receive + send).map(frame).collect();
        Ok(Queue {
            rx,
            tx,
            fill,
            completion,
            fd,
            umem,
            frame_size,
            headroom,
            sums,
            longest: longest_frame(mtu),
            free,
            reserved: None,
            long: Vec::new(),
            reserved_long: false,
            burst: Burst::new(mtu),
            behind: false,
            polls: config.busy_poll_us > 0 && zero_copy,
            zero_copy,
            sg,
            syscalls: 0,
            tx_full: 0,
            tx_dropped: 0,
        })
    }

    /// Longest frame that is sent.
    pub fn max_frame(&self) -> usize {
        if self.sg { self.longest } else { self.buffer().min(self.longest) }
    }

    /// Bytes that one buffer to send takes.
    fn buffer(&self) -> usize {
        self.frame_size - self.headroom
    }

    /// Takes at most `max` packets; how many.
    pub fn receive(&mut self, max: usize) -> usize {
        // A packet of several parts has as many slots.
        let most = if self.sg { self.rx.slots() } else { max as u32 };
        let mut n = self.rx.available(most);
        if n == 0 && (self.polls || self.fill.needs_wakeup()) {
            self.kick_receive();
            n = self.rx.available(most);
        }
        let (rx, umem) = (&self.rx, &self.umem);
        let taken = self.burst.fill(n, max, |at| rx.peek(at), |addr, len| umem.bytes(addr, len));
        if taken == 0 {
            // Nothing but packets that were left out: nobody would ask for their release.
            self.release();
        }
        taken
    }

    /// Slots behind the burst in which frames were waiting when the ring was looked at last, of how many there are.
    pub fn backlog(&self) -> (u32, u32) {
        (self.rx.known().saturating_sub(self.burst.taken()), self.rx.slots())
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.burst.len()
    }

    /// Packet `i` of the burst, and payload bytes of the segments of which the kernel put it together; 0 where it did not.
    #[inline]
    pub fn packet(&self, i: usize) -> (&[u8], u16) {
        self.burst.packet(i, |addr, len| self.umem.bytes(addr, len))
    }

    /// Gives the frames of the burst back to the kernel.
    pub fn release(&mut self) {
        let taken = self.burst.taken();
        if taken == 0 {
            return;
        }
        // They fit: the ring has twice as many slots as there are frames to receive into.
        let mask = !(self.frame_size as u64 - 1);
        for i in 0..taken {
            let desc = self.rx.peek(i);
            self.fill.push(desc.addr & mask);
        }
        self.fill.publish();
        self.rx.consume(taken);
        self.burst.clear();
    }

    /// Takes sent frames back.
    fn reap(&mut self) {
        let n = self.completion.available(u32::MAX >> 1);
        let mask = !(self.frame_size as u64 - 1);
        for i in 0..n {
            self.free.push(self.completion.peek(i) & mask);
        }
        if n > 0 {
            self.completion.consume(n);
        }
    }

    /// Frames up to the MTU that can be sent now.
    pub fn send_room(&mut self) -> usize {
        let parts = if self.sg { self.longest.div_ceil(self.buffer()) } else { 1 };
        if self.free.len() < ENOUGH {
            self.reap();
        }
        let free = self.free.len() + self.reserved.is_some() as usize;
        let room = self.tx.room(ENOUGH as u32) as usize;
        free.min(room) / parts
    }

    pub fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.buffer() {
            if !self.sg {
                return None;
            }
            let parts = len.div_ceil(self.buffer());
            if self.free.len() < parts {
                self.reap();
            }
            if self.free.len() < parts || self.tx.room(parts as u32) < parts as u32 {
                self.tx_full += 1;
                return None;
            }
            self.reserved_long = true;
            self.long.resize(len, 0);
            return Some(&mut self.long);
        }
        self.reserved_long = false;
        if self.reserved.is_none() {
            if self.free.is_empty() {
                self.reap();
            }
            if self.tx.room(1) == 0 {
                self.tx_full += 1;
                return None;
            }
            self.reserved = self.free.pop();
        }
        let Some(addr) = self.reserved else {
            self.tx_full += 1;
            return None;
        };
        Some(self.umem.bytes_mut(addr + self.headroom as u64, self.frame_size - self.headroom))
    }

    pub fn commit(&mut self, len: usize, offload: TxOffload) {
        if !self.reserved_long {
            if let Some(frame) = self.reserved.take() {
                self.push(frame, len, 0, offload);
            }
            return;
        }
        self.reserved_long = false;
        let long = std::mem::take(&mut self.long);
        let (size, count) = (self.buffer(), len.div_ceil(self.buffer()));
        for (i, part) in long[..len].chunks(size).enumerate() {
            // `reserve` has counted them.
            let Some(frame) = self.free.pop() else { break };
            self.umem.bytes_mut(frame + self.headroom as u64, part.len()).copy_from_slice(part);
            let more = if i + 1 < count { CONTINUED } else { 0 };
            // The first part speaks for the packet.
            self.push(frame, part.len(), more, if i == 0 { offload } else { TxOffload::default() });
        }
        self.long = long;
    }

    fn push(&mut self, frame: u64, len: usize, mut options: u32, offload: TxOffload) {
        let addr = frame + self.headroom as u64;
        if let Some(sum) = offload.checksum.filter(|_| self.headroom > 0) {
            self.umem.bytes_mut(addr - metadata::LEN as u64, metadata::LEN).copy_from_slice(&metadata::checksum(sum));
            options |= metadata::DESC_FLAG;
        }
        self.tx.push(Desc { addr, len: len as u32, options });
    }

    /// Lets the kernel send; one system call where it wants one.
    pub fn flush(&mut self) -> io::Result<()> {
        self.tx.publish();
        if self.tx.busy() && self.tx.needs_wakeup() {
            self.kick_send()?;
            self.behind = self.tx.busy();
        } else {
            self.behind = false;
        }
        Ok(())
    }

    /// Whether the kernel has taken all that was flushed before; where not, it is asked to once more.
    #[inline]
    pub fn caught_up(&mut self) -> bool {
        if self.behind {
            self.tx.publish();
            // What ails the interface is told by the next flush.
            self.behind = self.kick_send().is_ok() && self.tx.busy();
        }
        !self.behind
    }

    fn kick_send(&mut self) -> io::Result<()> {
        self.syscalls += 1;
        // SAFETY: an empty send on our own descriptor.
        let r =
            unsafe { libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if r >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Not everything went: the rest goes with the next call.
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => Ok(()),
            _ => Err(error),
        }
    }

    fn kick_receive(&mut self) {
        self.syscalls += 1;
        // SAFETY: an empty receive on our own descriptor; what it says matters to nobody.
        unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    /// Asks the kernel once more to take what it has left to send, where it wants a call.
    pub fn ask_again(&mut self) {
        if self.tx.busy() && self.tx.needs_wakeup() {
            // What ails the interface is told by the next flush.
            let _ = self.kick_send();
            self.behind = self.tx.busy();
        }
    }

    /// Whether nothing is there to receive.
    pub fn quiet(&mut self) -> bool {
        self.rx.available(1) == 0
    }

    /// Whether the kernel has left some of what was flushed.
    pub fn is_behind(&self) -> bool {
        self.tx.busy()
    }

    /// More than half of the ring to send is used.
    pub fn is_crowded(&self) -> bool {
        self.tx.used() > self.tx.slots() / 2
    }

    /// Whether the kernel sends what it has left only when it is called.
    pub fn waits_for_call(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// What the kernel has taken and given back so far: it differs from before where there was any progress.
    pub fn progress(&self) -> (u32, u32) {
        (self.tx.taken(), self.completion.consumed())
    }

    /// Frames that were lost, by the kernel's count `s`. One for which a socket that copies has no buffer counts twice in it: as
    /// dropped, and as an empty ring.
    pub fn lost(&self, s: &Statistics) -> Lost {
        let (twice, no_buffer) = match self.zero_copy {
            true => (0, s.rx_fill_empty),
            false => (s.rx_fill_empty.min(s.rx_dropped), 0),
        };
        // A socket that takes packets of several buffers takes any frame.
        let long = if self.sg { 0 } else { s.rx_dropped - twice };
        let full = s.rx_dropped - long + s.rx_ring_full;
        Lost { long: long + self.burst.long(), full, no_buffer }
    }

    pub fn statistics(&self) -> Statistics {
        option(self.fd.as_fd(), STATISTICS).unwrap_or_default()
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Has the kernel's receive work done in calls on the socket.
fn busy_poll(fd: BorrowedFd, us: u32) -> io::Result<()> {
    [(libc::SO_PREFER_BUSY_POLL, 1u32), (libc::SO_BUSY_POLL, us), (libc::SO_BUSY_POLL_BUDGET, BUDGET)]
        .iter()
        .try_for_each(|(option, value)| sys::set_option(fd, libc::SOL_SOCKET, *option, value))
}

#[cfg(test)]
mod tests;
