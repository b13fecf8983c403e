//! One lane's queues of an interface.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use wire::burst::{RxBurst, RxChecksum, RxFrame, TxCaps, TxOffload, TxSink};

use super::device::Attached;
use super::large::Large;
use super::queue::Queue;
use crate::error::PortError;
use crate::port::{Port, PortCaps, PortCounters};
use crate::sys::{self, Job};

/// How soon the kernel may have room again, µs.
const AGAIN_US: u64 = 100;
/// How late it is asked again at most, µs.
const LATEST_US: u64 = 10_000;

/// One lane's queues of an interface. A lane that has several receives from each in turn and sends on the first.
pub struct XdpPort {
    queues: Vec<Queue>,
    /// For frames of several segments, where the kernel copies.
    large: Option<Large>,
    /// The frame that was reserved last is for it.
    reserved_large: bool,
    /// The one whose burst is lent out.
    current: usize,
    /// Waits for all of them, where there are several.
    epoll: Option<OwnedFd>,
    /// When it slept last, something was left.
    stall: Option<Stall>,
    caps: PortCaps,
    checksum: RxChecksum,
    counters: PortCounters,
    /// Keeps the program attached while any queue lives.
    _attached: Arc<Attached>,
}

/// The kernel has left something to send.
#[derive(Clone, Copy)]
struct Stall {
    /// What it had taken by then. While that does not change, it takes nothing.
    progress: Progress,
    since: Instant,
    /// When it is asked again, µs after it was asked last.
    again_us: u64,
}

/// What has left the port: slots, frames that came back, large frames.
type Progress = ((u32, u32), u64);

/// What the kernel has left, and how.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// A large frame met a full queue.
    turned_away: bool,
    /// There is none for another frame, or not much.
    no_room: bool,
    /// The kernel sends only when it is called.
    waits_for_call: bool,
}

impl Left {
    /// When the kernel is asked again where it has taken nothing for so long, both in µs.
    fn again_us(self, lasted_us: u64) -> u64 {
        if self.turned_away {
            // The number of tries is bounded, and nothing else leaves meanwhile.
            AGAIN_US
        } else if !self.no_room && !self.waits_for_call {
            // There is room, and the driver goes on by itself: the timer is for one that stops all the same.
            LATEST_US
        } else {
            // As long again as nothing was taken: a stall is noticed to be over when it has lasted twice as long, at the latest.
            lasted_us.clamp(AGAIN_US, LATEST_US)
        }
    }
}

impl XdpPort {
    pub(super) fn new(
        queues: Vec<Queue>,
        large: Option<Large>,
        caps: PortCaps,
        checksum: RxChecksum,
        attached: Arc<Attached>,
    ) -> Result<XdpPort, PortError> {
        let system = |source: rustix::io::Errno| PortError::System { what: "epoll".into(), source: source.into() };
        let epoll = match queues.len() {
            1 => None,
            _ => {
                let fd = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
                for (i, q) in queues.iter().enumerate() {
                    epoll::add(&fd, q, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN).map_err(system)?;
                }
                Some(fd)
            }
        };
        let counters = PortCounters::default();
        let port = XdpPort {
            queues,
            large,
            reserved_large: false,
            current: 0,
            epoll,
            stall: None,
            caps,
            checksum,
            counters,
            _attached: attached,
        };
        Ok(port)
    }

    /// Finds out what the kernel leaves, and how long it has done so.
    fn look_at_sending(&mut self) {
        let queue = &mut self.queues[0];
        let waits = self.large.as_ref().is_some_and(Large::is_waiting);
        let full = queue.send_room() == 0;
        if !waits && !full && !queue.is_behind() {
            self.stall = None;
            return;
        }
        let (now, progress) = (Instant::now(), (queue.progress(), self.large.as_ref().map_or(0, Large::gone)));
        let since = self.stall.filter(|s| s.progress == progress).map_or(now, |s| s.since);
        let left = Left {
            turned_away: self.large.as_ref().is_some_and(Large::was_turned_away),
            no_room: waits || full || queue.is_crowded(),
            waits_for_call: queue.waits_for_call(),
        };
        let lasted_us = now.duration_since(since).as_micros() as u64;
        self.stall = Some(Stall { progress, since, again_us: left.again_us(lasted_us) });
    }

    fn count(&mut self, len: usize) {
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
    }
}

impl Drop for XdpPort {
    fn drop(&mut self) {
        // The kernel waits at the end of each socket until nobody looks at it any more.
        let mut jobs: Vec<Job> = self.queues.drain(..).map(|queue| Box::new(|| drop(queue)) as Job).collect();
        jobs.extend(self.large.take().map(|large| Box::new(|| drop(large)) as Job));
        sys::at_once(jobs);
    }
}

impl RxBurst for XdpPort {
    #[inline]
    fn len(&self) -> usize {
        self.queues[self.current].len()
    }

    #[inline]
    fn frame(&self, index: usize) -> RxFrame<'_> {
        let (data, mss) = self.queues[self.current].packet(index);
        RxFrame { data, checksum: self.checksum, mss }
    }

    #[inline]
    fn prefetch(&self, index: usize) {
        let queue = &self.queues[self.current];
        if index < queue.len() {
            mem::prefetch::slice(queue.packet(index).0);
        }
    }
}

impl TxSink for XdpPort {
    #[inline]
    fn caps(&self) -> TxCaps {
        self.caps.tx
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.reserved_large = false;
        if len > self.caps.tx.max_frame
            && let Some(large) = &mut self.large
        {
            self.reserved_large = true;
            // What the ring was given earlier goes first.
            if !self.queues[0].caught_up() {
                return None;
            }
            return large.reserve(len);
        }
        self.queues[0].reserve(len)
    }

    #[inline]
    fn room(&mut self) -> usize {
        self.queues[0].send_room()
    }

    #[inline]
    fn commit(&mut self, len: usize, offload: TxOffload) {
        if self.reserved_large {
            return self.commit_with(len, &[], offload);
        }
        self.count(len);
        self.queues[0].commit(len, offload);
    }

    fn gathers(&self) -> bool {
        self.large.is_some()
    }

    fn commit_with(&mut self, head: usize, parts: &[&[u8]], offload: TxOffload) {
        let len = head + parts.iter().map(|p| p.len()).sum::<usize>();
        if self.reserved_large
            && let Some(large) = &mut self.large
        {
            self.reserved_large = false;
            large.commit(head, parts, offload);
            self.caps.tx.max_gso = large.max_gso();
            return self.count(len);
        }
        let Some(buf) = self.queues[0].reserve(len) else { return };
        let mut at = head;
        for part in parts {
            buf[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.count(len);
        self.queues[0].commit(len, offload);
    }
}

impl Port for XdpPort {
    fn receive(&mut self, max: usize) -> usize {
        for _ in 0..self.queues.len() {
            self.current = (self.current + 1) % self.queues.len();
            let n = self.queues[self.current].receive(max);
            if n > 0 {
                self.counters.rx_frames += n as u64;
                let bytes: usize = (0..n).map(|i| self.queues[self.current].packet(i).0.len()).sum();
                self.counters.rx_bytes += bytes as u64;
                return n;
            }
        }
        0
    }

    fn release(&mut self) {
        self.queues[self.current].release();
    }

    fn flush(&mut self) -> Result<(), PortError> {
        if let Some(large) = &mut self.large {
            large.retry();
        }
        self.queues[0]
            .flush()
            .map_err(|source| PortError::System { what: format!("sending on {}", self.caps.name), source })
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        match &self.epoll {
            Some(fd) => fd.as_fd(),
            None => self.queues[0].as_fd(),
        }
    }

    fn prepare_sleep(&mut self) -> bool {
        self.queues[0].ask_again();
        // Where frames wait, too: whoever leaves them there for now sleeps all the same.
        self.look_at_sending();
        self.queues.iter_mut().all(Queue::quiet)
    }

    fn wake_up(&mut self) {}

    fn due_us(&self) -> Option<u64> {
        self.stall.map(|s| s.again_us)
    }

    #[inline]
    fn backlog(&self) -> (u32, u32) {
        self.queues[self.current].backlog()
    }

    fn caps_of(&self) -> PortCaps {
        self.caps.clone()
    }

    fn counters(&self) -> PortCounters {
        let mut c = self.counters;
        for q in &self.queues {
            let s = q.statistics();
            let lost = q.lost(&s);
            c.rx_dropped += lost.long + lost.full;
            c.rx_long += lost.long;
            c.rx_no_buffer += lost.no_buffer;
            c.tx_dropped += s.tx_invalid + q.tx_dropped;
            c.tx_full += q.tx_full;
            c.syscalls += q.syscalls;
        }
        if let Some(l) = &self.large {
            c.tx_cut += l.cut;
            c.tx_dropped += l.dropped;
            c.tx_full += l.full;
            c.syscalls += l.syscalls;
        }
        c
    }
}

#[cfg(test)]
mod tests;
