//! A wire in memory: two ends, each with as many queues as the other, no kernel in between.
//!
//! For tests, the demonstration and benchmarks without packet I/O. Queue i of one end is joined to queue i of the other;
//! the stacks choose ports so that flows stay on their queue.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use mem::frames::{FrameRx, FrameTx};
use wire::MacAddr;
use wire::burst::{RxBurst, RxChecksum, RxFrame, TxCaps, TxOffload, TxSink};

use crate::bell::Bell;
use crate::error::PortError;
use crate::impair::{Impairment, Path};
use crate::port::{Port, PortCaps, PortCounters};

/// What a wire is like.
#[derive(Clone, Debug)]
pub struct MemConfig {
    /// For messages, `mem:NAME`.
    pub name: String,
    /// Queues of each end.
    pub queues: u16,
    /// Frames that one queue holds in one direction; a power of two.
    pub slots: usize,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Frames never leave memory, so checksums are neither computed nor verified.
    pub trust: bool,
    /// What happens to frames in each direction.
    pub impairment: Impairment,
    /// Draws the impairment.
    pub seed: u64,
}

impl Default for MemConfig {
    fn default() -> MemConfig {
        MemConfig {
            name: "wire".into(),
            queues: 1,
            slots: 1024,
            mtu: 1500,
            trust: false,
            impairment: Impairment::default(),
            seed: 1,
        }
    }
}

/// The hardware addresses of the two ends.
pub const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 0xa]), MacAddr([2, 0, 0, 0, 0, 0xb])];

/// The two ends of a new wire, each one port a queue.
pub fn wire(config: &MemConfig) -> Result<(Vec<MemPort>, Vec<MemPort>), PortError> {
    let memory = |source| PortError::Memory { what: "the memory wire", source };
    let bell = || Bell::new().map(Arc::new).map_err(|source| PortError::System { what: "eventfd".into(), source });
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for queue in 0..config.queues.max(1) {
        let frame = config.mtu as usize + 18;
        let (to_b, from_a) = mem::frames::ring(config.slots, frame).map_err(memory)?;
        let (to_a, from_b) = mem::frames::ring(config.slots, frame).map_err(memory)?;
        let (bell_a, bell_b) = (bell()?, bell()?);
        let seed = config.seed.wrapping_mul(1000) + queue as u64 * 2;
        a.push(MemPort::new(config, queue, 0, (to_b, from_b), (bell_a.clone(), bell_b.clone()), seed));
        b.push(MemPort::new(config, queue, 1, (to_a, from_a), (bell_b, bell_a), seed + 1));
    }
    Ok((a, b))
}

/// One queue of one end.
pub struct MemPort {
    tx: FrameTx,
    rx: FrameRx,
    /// Rung by the other end.
    own: Arc<Bell>,
    other: Arc<Bell>,
    burst: usize,
    caps: PortCaps,
    checksum: RxChecksum,
    counters: PortCounters,
    bad: Option<Box<Bad>>,
}

/// A wire that is not clean: frames pass through a path before they reach the ring.
struct Bad {
    path: Path,
    buffer: Vec<u8>,
    start: std::time::Instant,
}

impl Bad {
    fn now(&self) -> wire::Instant {
        wire::Instant::from_micros(self.start.elapsed().as_micros() as u64)
    }
}

impl MemPort {
    fn new(
        config: &MemConfig,
        queue: u16,
        end: usize,
        (tx, rx): (FrameTx, FrameRx),
        (own, other): (Arc<Bell>, Arc<Bell>),
        seed: u64,
    ) -> MemPort {
        let max_frame = config.mtu as usize + 18;
        let clean = config.impairment == Impairment::default();
        let trust = config.trust && clean;
        MemPort {
            tx,
            rx,
            own,
            other,
            burst: 0,
            caps: PortCaps {
                name: format!("mem:{}", config.name),
                mac: MACS[end],
                mtu: config.mtu,
                max_rx_frame: max_frame,
                queue,
                zero_copy: true,
                tx: TxCaps { max_frame, checksum: trust, max_gso: 0 },
            },
            checksum: if trust { RxChecksum::Verified } else { RxChecksum::Unknown },
            counters: PortCounters::default(),
            bad: (!clean).then(|| {
                Box::new(Bad {
                    path: Path::new(config.impairment.clone(), seed),
                    buffer: vec![0; max_frame],
                    start: std::time::Instant::now(),
                })
            }),
        }
    }

    /// Lets what has arrived at the end of an impaired path into the ring.
    fn deliver(&mut self) {
        let Some(bad) = &mut self.bad else { return };
        let now = bad.now();
        while let Some(frame) = bad.path.pop(now) {
            match self.tx.reserve(frame.len()) {
                Some(slot) => {
                    slot.copy_from_slice(&frame);
                    self.tx.commit(frame.len(), 0);
                }
                None => self.counters.tx_dropped += 1,
            }
        }
        if self.tx.publish() {
            self.other.ring_if_sleeping();
        }
    }
}

impl RxBurst for MemPort {
    #[inline]
    fn len(&self) -> usize {
        self.burst
    }

    #[inline]
    fn frame(&self, index: usize) -> RxFrame<'_> {
        RxFrame::new(self.rx.frame(index).0, self.checksum)
    }

    #[inline]
    fn prefetch(&self, index: usize) {
        self.rx.prefetch(index);
    }
}

impl TxSink for MemPort {
    #[inline]
    fn caps(&self) -> TxCaps {
        self.caps.tx
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if let Some(bad) = &mut self.bad {
            return bad.buffer.get_mut(..len);
        }
        let slot = self.tx.reserve(len);
        if slot.is_none() {
            self.counters.tx_full += 1;
        }
        slot
    }

    #[inline]
    fn room(&mut self) -> usize {
        if self.bad.is_some() { usize::MAX } else { self.tx.room() }
    }

    #[inline]
    fn commit(&mut self, len: usize, _offload: TxOffload) {
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
        match &mut self.bad {
            None => {
                self.tx.commit(len, 0);
            }
            Some(bad) => {
                let now = bad.now();
                // Two ports and no router: a packet that is too big for this wire just vanishes.
                let _ = bad.path.push(now, &bad.buffer[..len]);
            }
        }
    }
}

impl Port for MemPort {
    #[inline]
    fn receive(&mut self, max: usize) -> usize {
        if self.bad.is_some() {
            self.deliver();
        }
        self.burst = self.rx.burst(max);
        self.counters.rx_frames += self.burst as u64;
        self.burst
    }

    #[inline]
    fn release(&mut self) {
        self.rx.release();
        self.burst = 0;
    }

    #[inline]
    fn flush(&mut self) -> Result<(), PortError> {
        self.deliver();
        if self.tx.publish() && self.other.ring_if_sleeping() {
            self.counters.syscalls += 1;
        }
        Ok(())
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.own.arm();
        if self.rx.is_empty() {
            return true;
        }
        self.own.disarm();
        false
    }

    fn wake_up(&mut self) {
        self.own.disarm();
    }

    /// An impaired path delivers something then.
    fn due_us(&self) -> Option<u64> {
        let bad = self.bad.as_ref()?;
        Some(bad.path.next_at()?.micros_since(bad.now()))
    }

    fn caps_of(&self) -> PortCaps {
        self.caps.clone()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(port: &mut MemPort, frame: &[u8]) -> bool {
        let Some(slot) = port.reserve(frame.len()) else { return false };
        slot[..frame.len()].copy_from_slice(frame);
        port.commit(frame.len(), TxOffload::default());
        true
    }

    #[test]
    fn frames_cross_in_order_and_a_full_ring_says_so() {
        let (mut a, mut b) = wire(&MemConfig { slots: 8, queues: 2, ..MemConfig::default() }).unwrap();
        for i in 0..8u8 {
            assert!(send(&mut a[1], &[i; 60]));
        }
        assert!(!send(&mut a[1], &[9; 60]));
        a[1].flush().unwrap();
        assert_eq!((b[0].receive(64), b[1].receive(3)), (0, 3));
        assert_eq!((0..3).map(|i| b[1].frame(i).data[0]).collect::<Vec<_>>(), [0, 1, 2]);
        b[1].release();
        assert_eq!(b[1].receive(64), 5);
        assert_eq!(b[1].frame(4).data, [7; 60]);
    }

    #[test]
    fn two_threads_exchange_a_million_frames_without_losing_a_wake_up() {
        let (mut a, mut b) = wire(&MemConfig { slots: 64, ..MemConfig::default() }).unwrap();
        let n: u32 = if cfg!(debug_assertions) { 200_000 } else { 1_000_000 };
        let sender = std::thread::spawn(move || {
            let port = &mut a[0];
            for i in 0..n {
                while !send(port, &i.to_ne_bytes()) {
                    port.flush().unwrap();
                    std::thread::yield_now();
                }
                if i % 7 == 0 {
                    port.flush().unwrap();
                }
            }
            port.flush().unwrap();
            a
        });
        let mut next = 0u32;
        while next < n {
            let got = b[0].receive(32);
            for i in 0..got {
                assert_eq!(b[0].frame(i).data, next.to_ne_bytes());
                next += 1;
            }
            b[0].release();
            if got == 0 && b[0].prepare_sleep() {
                let mut fds = [rustix::event::PollFd::from_borrowed_fd(b[0].wake_fd(), rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut fds, None).unwrap();
                b[0].wake_up();
            }
        }
        drop(sender.join().unwrap());
    }
}
