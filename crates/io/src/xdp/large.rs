//! The second way out of an interface whose AF_XDP sockets copy: frames of several segments, which the kernel cuts.
//!
//! AF_XDP takes frames of the link, and where it copies, the kernel makes a buffer of each: for bulk that costs more than its
//! own TCP, which hands down 64 KiB at once and has them cut, without a copy, right before the driver. A packet socket with
//! a virtio-net header does the same: headers and chunks of payload go out by one gathering call. The queueing discipline
//! sees these frames, as it sees the kernel's own; the program on the interface does not, since it is for what comes in.
//!
//! At most one frame waits here, when the kernel has no room. Until it has gone the port says that it is full.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use wire::burst::{PARTS, TxOffload};

use crate::netlink::Link;
use crate::packet;
use crate::vnet;

/// Longest frame: what an IP packet can hold.
pub(super) const MAX_GSO: usize = 65_535;
/// Bytes under way in the interface's queue that the kernel keeps for us; it allows itself as much again around them. Enough
/// for 10 Gbit/s and a turn each 200 µs: more would only lie there, cold when it is sent and long in coming.
const QUEUED: i32 = 256 << 10;
/// Times that a frame is offered to a full queue before it counts as lost: a rule that drops all says the same.
const TRIES: u32 = 64;
/// Parts of a message: two headers, or one, and the payload.
const VECTORS: usize = PARTS + 1;

/// What has become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Sent,
    /// The kernel has no room now.
    Later,
    /// It never will take this one.
    Lost,
}

pub(super) struct Large {
    fd: OwnedFd,
    /// A frame behind its virtio-net header.
    frame: Vec<u8>,
    /// Bytes of it that wait for room in the kernel, header included; 0: none does.
    waiting: usize,
    /// How often it was turned away.
    tries: u32,
    /// The kernel does not cut for this interface after all.
    refused: bool,
    /// Frames of several segments that went.
    pub cut: u64,
    /// Frames that the kernel has taken, or never will, of one segment or several.
    gone: u64,
    /// Times that there was no room.
    pub full: u64,
    /// Frames lost.
    pub dropped: u64,
    pub syscalls: u64,
}

impl Large {
    pub fn open(link: &Link) -> io::Result<Large> {
        // Protocol 0 receives nothing.
        let fd = packet::socket(link, 0)?;
        packet::set(&fd, packet::PACKET_VNET_HDR, &1i32)?;
        // Whatever net.core.wmem_max allows, where we may; the default works, too.
        let _ = crate::sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &QUEUED);
        Ok(Large::with(fd))
    }

    fn with(fd: OwnedFd) -> Large {
        let frame = vec![0; vnet::LEN + MAX_GSO + 18];
        Large { fd, frame, waiting: 0, tries: 0, refused: false, cut: 0, gone: 0, full: 0, dropped: 0, syscalls: 0 }
    }

    /// Longest frame that is cut, bytes; 0 where none is.
    #[inline]
    pub fn max_gso(&self) -> usize {
        if self.refused { 0 } else { MAX_GSO }
    }

    /// Room for a frame; `None` while one waits.
    pub fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if !self.retry() {
            self.full += 1;
            return None;
        }
        self.frame.get_mut(vnet::LEN..vnet::LEN + len)
    }

    /// Sends the first `head` bytes of the frame that was reserved, and `parts` behind them.
    pub fn commit(&mut self, head: usize, parts: &[&[u8]], offload: TxOffload) {
        self.frame[..vnet::LEN].copy_from_slice(&vnet::encode(offload));
        let head = vnet::LEN + head;
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; VECTORS];
        let Some(used) = vectors.get_mut(..parts.len() + 1) else {
            self.dropped += 1;
            return;
        };
        let slices = [&self.frame[..head]];
        for (vector, part) in used.iter_mut().zip(slices.iter().chain(parts)) {
            *vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
        }
        // SAFETY: the vectors are slices that live through the call.
        match unsafe { self.send(used) } {
            Fate::Sent => self.cut += offload.gso.is_some() as u64,
            Fate::Lost => self.dropped += 1,
            Fate::Later => {
                self.tries = 0;
                let mut at = head;
                for part in parts {
                    // `reserve` gave room for the whole.
                    let Some(to) = self.frame.get_mut(at..at + part.len()) else {
                        self.dropped += 1;
                        return;
                    };
                    to.copy_from_slice(part);
                    at += part.len();
                }
                self.waiting = at;
            }
        }
    }

    /// Whether a frame waits for room.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Whether one waits that met a full queue, and so is lost after some tries.
    pub fn was_turned_away(&self) -> bool {
        self.waiting > 0 && self.tries > 0
    }

    /// Frames that are sent or lost: it grows whenever the one that waits does so no more.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// Sends what waits; whether nothing does any more.
    pub fn retry(&mut self) -> bool {
        if self.waiting == 0 {
            return true;
        }
        let whole = &self.frame[..self.waiting];
        let vector = libc::iovec { iov_base: whole.as_ptr().cast_mut().cast(), iov_len: whole.len() };
        let cut = whole[1] != 0;
        // SAFETY: the vector is a slice that lives through the call.
        match unsafe { self.send(&mut [vector]) } {
            Fate::Later => return false,
            Fate::Sent => self.cut += cut as u64,
            Fate::Lost => self.dropped += 1,
        }
        self.waiting = 0;
        true
    }

    /// One frame.
    ///
    /// # Safety
    /// The vectors must be memory that may be read.
    unsafe fn send(&mut self, vectors: &mut [libc::iovec]) -> Fate {
        // SAFETY: all zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len();
        loop {
            self.syscalls += 1;
            // SAFETY: the message is of vectors that the caller answers for; the kernel reads through them only.
            if unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) } >= 0 {
                self.gone += 1;
                return Fate::Sent;
            }
            let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
            if error != libc::EINTR {
                let fate = self.judge(error);
                self.gone += (fate == Fate::Lost) as u64;
                return fate;
            }
        }
    }

    fn judge(&mut self, error: i32) -> Fate {
        match error {
            // Our share of the queue is used up: it comes back.
            libc::EAGAIN => Fate::Later,
            // The queue is full, or memory is short.
            libc::ENOBUFS | libc::ENOMEM if self.tries < TRIES => {
                self.tries += 1;
                Fate::Later
            }
            libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP => {
                self.refused = true;
                Fate::Lost
            }
            // The interface is down: lost as on any link.
            _ => Fate::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    use wire::burst::{Gso, PartialChecksum};

    fn pair() -> (Large, OwnedFd) {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None).unwrap();
        (Large::with(a), b)
    }

    fn offload(mss: u16) -> TxOffload {
        TxOffload {
            checksum: Some(PartialChecksum { start: 34, offset: 16 }),
            gso: Some(Gso { mss, header: 54, ipv6: false }),
        }
    }

    fn next(from: &OwnedFd) -> Option<Vec<u8>> {
        let mut buf = vec![0; 1 << 17];
        let n = recv(from, &mut buf, RecvFlags::empty()).ok()?.0;
        buf.truncate(n);
        Some(buf)
    }

    #[test]
    fn frames_wait_for_room_and_keep_their_order() {
        let (mut large, peer) = pair();
        let parts = |n: u8| [vec![n; 2048], vec![n ^ 0x80; 1000]];
        let mut sent = 0u8;
        while !large.is_waiting() {
            let buf = large.reserve(60_000).unwrap();
            buf[..54].fill(sent);
            let [a, b] = parts(sent);
            large.commit(54, &[&a, &b], offload(1000));
            sent += 1;
            assert!(sent < 200, "there is always room");
        }
        // Nothing may go before the one that waits.
        assert!(large.reserve(60_000).is_none() && large.full == 1);
        assert_eq!(large.cut, sent as u64 - 1);
        let mut got = 0;
        while got < sent {
            let frame = next(&peer).unwrap_or_else(|| {
                let gone = large.gone();
                assert!(large.retry() && large.gone() == gone + 1);
                next(&peer).unwrap()
            });
            let [a, b] = parts(got);
            assert_eq!(frame[..vnet::LEN], vnet::encode(offload(1000)));
            assert_eq!(frame[vnet::LEN..], [&[got; 54][..], &a, &b].concat());
            got += 1;
        }
        assert!(large.reserve(100).is_some() && next(&peer).is_none());
        assert_eq!((large.cut, large.dropped), (sent as u64, 0));
        // A segment by itself is cut by nobody.
        large.commit(100, &[], TxOffload::default());
        assert_eq!((large.cut, large.dropped, large.gone()), (sent as u64, 0, sent as u64 + 1));
    }

    #[test]
    fn what_cannot_go_is_lost_and_counted() {
        let (mut large, peer) = pair();
        drop(peer);
        large.reserve(100).unwrap();
        large.commit(100, &[], TxOffload::default());
        assert!(!large.is_waiting());
        assert_eq!((large.dropped, large.cut, large.gone(), large.max_gso()), (1, 0, 1, MAX_GSO));
        // A full queue is full for a while; a rule that lets nothing through, for ever.
        assert!((0..TRIES).all(|_| large.judge(libc::ENOBUFS) == Fate::Later));
        assert_eq!(large.judge(libc::ENOBUFS), Fate::Lost);
        assert_eq!(large.judge(libc::EAGAIN), Fate::Later);
        // Who does not cut is not asked again.
        assert_eq!((large.judge(libc::EINVAL), large.max_gso()), (Fate::Lost, 0));
    }
}
