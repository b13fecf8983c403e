//! A bad network, sans-I/O: frames go in with a time and come out later, twice, damaged, out of order or not at all.
//!
//! One seed draws everything, so a run can be repeated exactly.

mod random;
mod router;

use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use wire::Instant;

pub use random::Random;
use router::Ip;

/// What a path does to frames; probabilities from 0 to 1. The default does nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Impairment {
    /// A frame vanishes.
    pub loss: f64,
    /// Loss comes in bursts.
    pub burst: Option<Burst>,
    /// A frame arrives twice.
    pub duplicate: f64,
    /// A frame is held back by up to `reorder_by`, so that later ones overtake it.
    pub reorder: f64,
    /// Longest that a reordered frame is held back.
    pub reorder_by: Duration,
    /// A byte that a checksum guards changes: of IPv4 any, of IPv6 any behind its header, of other frames none.
    pub corrupt: f64,
    /// Every frame takes so long.
    pub delay: Duration,
    /// And up to so much longer, order kept.
    pub jitter: Duration,
    /// Bits a second; 0 is unlimited.
    pub rate: u64,
    /// What waits for the rate.
    pub queue: Queue,
    /// Longest IP packet, bytes; longer ones are dropped. 0 takes any.
    pub mtu: u16,
    /// Nobody tells the sender of a packet that was too long: a black hole.
    pub silent: bool,
    /// Nothing passes.
    pub down: bool,
}

/// A queue in front of a link of some rate. The default is unlimited and marks nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Most bytes that wait; what comes then is dropped. 0 is unlimited.
    pub bytes: usize,
    /// The same in frames.
    pub frames: usize,
    /// Bytes waiting from which on ECN-capable packets are marked (RFC 3168). 0 never.
    pub mark: usize,
}

impl Queue {
    /// Tail drop behind `bytes`.
    pub fn bytes(bytes: usize) -> Queue {
        Queue { bytes, ..Queue::default() }
    }
}

/// Gilbert's and Elliott's two-state loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// From good to bad, for each frame.
    pub enter: f64,
    /// From bad to good.
    pub leave: f64,
    /// Loss while bad.
    pub loss: f64,
}

/// What a path did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Frames in.
    pub frames: u64,
    /// Lost at random or in a burst.
    pub lost: u64,
    /// Dropped because the queue was full.
    pub overflow: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Marked "congestion experienced".
    pub marked: u64,
    /// Dropped because they were longer than the MTU.
    pub too_big: u64,
    /// Dropped because the path was down.
    pub cut: u64,
}

struct Waiting {
    at: Instant,
    /// Keeps frames of one instant in order.
    number: u64,
    frame: Vec<u8>,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.number == other.number
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    /// Earliest first out of a max-heap.
    fn cmp(&self, other: &Waiting) -> core::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// One direction of a link.
pub struct Path {
    config: Impairment,
    random: Random,
    waiting: BinaryHeap<Waiting>,
    number: u64,
    bad: bool,
    /// When the rate has served everything accepted so far, ns.
    busy_until: u64,
    /// When each frame that waits for the rate will have been served, ns.
    queued: VecDeque<u64>,
    /// Jitter never lets a frame overtake an earlier one; reordering does.
    latest: Instant,
    counters: PathCounters,
}

impl Path {
    /// A path whose fate is drawn from `seed`.
    pub fn new(config: Impairment, seed: u64) -> Path {
        Path {
            config,
            random: Random::new(seed),
            waiting: BinaryHeap::new(),
            number: 0,
            bad: false,
            busy_until: 0,
            queued: VecDeque::new(),
            latest: Instant::ZERO,
            counters: PathCounters::default(),
        }
    }

    /// Changes what happens to frames from now on.
    pub fn set(&mut self, config: Impairment) {
        self.config = config;
    }

    /// What happened so far.
    pub fn counters(&self) -> PathCounters {
        self.counters
    }

    /// Frames under way.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends a frame. What a router on the way answers comes back, for its sender.
    pub fn push(&mut self, now: Instant, frame: &[u8]) -> Option<Vec<u8>> {
        self.counters.frames += 1;
        if self.config.down {
            self.counters.cut += 1;
            return None;
        }
        if self.is_lost() {
            self.counters.lost += 1;
            return None;
        }
        let mtu = self.config.mtu;
        if mtu > 0 && router::packet_len(frame) > mtu as usize {
            self.counters.too_big += 1;
            return if self.config.silent { None } else { router::too_big(frame, mtu) };
        }
        let mut frame = frame.to_vec();
        let start = self.serve(now, &mut frame)?;
        let c = &self.config;
        let jitter = match c.jitter.as_micros() as u64 {
            0 => 0,
            j => self.random.below(j),
        };
        let mut at = (start + c.delay).plus_micros(jitter).max(self.latest);
        self.latest = at;
        if self.random.chance(c.reorder) {
            at = at.plus_micros(self.random.below(c.reorder_by.as_micros().max(1) as u64));
            self.counters.reordered += 1;
        }
        if self.random.chance(c.corrupt)
            && let Some(ip) = Ip::find(&frame)
        {
            self.damage(&mut frame, ip.guarded());
        }
        if self.random.chance(self.config.duplicate) {
            let later = at.plus_micros(self.random.below(self.config.delay.as_micros().max(1) as u64));
            self.enqueue(later, frame.clone());
            self.counters.duplicated += 1;
        }
        self.enqueue(at, frame);
        None
    }

    fn is_lost(&mut self) -> bool {
        let c = &self.config;
        if let Some(burst) = c.burst {
            let flip = if self.bad { burst.leave } else { burst.enter };
            self.bad ^= self.random.chance(flip);
        }
        let burst = self.bad && c.burst.is_some_and(|b| self.random.chance(b.loss));
        burst || self.random.chance(c.loss)
    }

    /// The queue and the rate behind it: when the frame's last bit leaves, or `None` where there was no room.
    fn serve(&mut self, now: Instant, frame: &mut [u8]) -> Option<Instant> {
        let Impairment { rate, queue, .. } = self.config;
        if rate == 0 {
            return Some(now);
        }
        let now = now.micros() * 1000;
        while self.queued.front().is_some_and(|at| *at <= now) {
            self.queued.pop_front();
        }
        let bits = self.busy_until.saturating_sub(now) as u128 * rate as u128 / 1_000_000_000;
        let waiting = (bits / 8) as usize;
        if (queue.bytes > 0 && waiting + frame.len() > queue.bytes)
            || (queue.frames > 0 && self.queued.len() >= queue.frames)
        {
            self.counters.overflow += 1;
            return None;
        }
        if queue.mark > 0 && waiting >= queue.mark && router::mark(frame) {
            self.counters.marked += 1;
        }
        self.busy_until = self.busy_until.max(now) + (frame.len() as u64 * 8_000_000_000).div_ceil(rate);
        self.queued.push_back(self.busy_until);
        Some(Instant::from_micros(self.busy_until.div_ceil(1000)))
    }

    /// Changes one byte from `first` on. The Internet checksum must notice, so it is one byte: two bits of one column can
    /// cancel out and pass it.
    fn damage(&mut self, frame: &mut [u8], first: usize) {
        if frame.len() > first {
            let at = first + self.random.below((frame.len() - first) as u64) as usize;
            frame[at] ^= 1 + self.random.below(255) as u8;
            self.counters.corrupted += 1;
        }
    }

    fn enqueue(&mut self, at: Instant, frame: Vec<u8>) {
        self.number += 1;
        self.waiting.push(Waiting { at, number: self.number, frame });
    }

    /// The next frame that has arrived by `now`.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.waiting.peek()?.at > now {
            return None;
        }
        self.waiting.pop().map(|w| w.frame)
    }

    /// When the next frame arrives.
    pub fn next_at(&self) -> Option<Instant> {
        self.waiting.peek().map(|w| w.at)
    }
}

#[cfg(test)]
mod tests;
