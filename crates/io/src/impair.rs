//! A bad network, sans-I/O: frames go in with a time and come out later, twice, damaged, out of order or not at all.
//!
//! One seed draws everything, so a run can be repeated exactly.

use core::time::Duration;
use std::collections::BinaryHeap;

use wire::Instant;

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
    /// A byte of a frame changes.
    pub corrupt: f64,
    /// Every frame takes so long.
    pub delay: Duration,
    /// And up to so much longer, order kept.
    pub jitter: Duration,
    /// Bytes a second; 0 is unlimited.
    pub rate: u64,
    /// Most bytes that wait for the rate; what comes then is dropped. 0 is unlimited.
    pub queue: usize,
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
}

/// xoshiro256** (Blackman and Vigna), seeded by splitmix64.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The sequence of `seed`.
    pub fn new(mut seed: u64) -> Random {
        Random(core::array::from_fn(|_| {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = seed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Below `n`, which is not zero.
    pub fn below(&mut self, n: u64) -> u64 {
        ((self.bits() as u128 * n as u128) >> 64) as u64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.bits() >> 11) as f64) < p * (1u64 << 53) as f64
    }
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
    /// When the rate has served everything accepted so far.
    busy_until: Instant,
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
            busy_until: Instant::ZERO,
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

    /// Sends a frame.
    pub fn push(&mut self, now: Instant, frame: &[u8]) {
        self.counters.frames += 1;
        let c = &self.config;
        if let Some(burst) = c.burst {
            let flip = if self.bad { burst.leave } else { burst.enter };
            self.bad ^= self.random.chance(flip);
        }
        let burst = self.bad && c.burst.is_some_and(|b| self.random.chance(b.loss));
        if burst || self.random.chance(c.loss) {
            self.counters.lost += 1;
            return;
        }
        let mut start = now;
        if c.rate > 0 {
            let backlog = self.busy_until.micros_since(now) * c.rate / 1_000_000;
            if c.queue > 0 && backlog as usize + frame.len() > c.queue {
                self.counters.overflow += 1;
                return;
            }
            let us = (frame.len() as u64 * 1_000_000).div_ceil(c.rate);
            self.busy_until = self.busy_until.max(now).plus_micros(us);
            start = self.busy_until;
        }
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
        let mut frame = frame.to_vec();
        if self.random.chance(c.corrupt) && frame.len() > 14 {
            // Behind the Ethernet header, so that it is the Internet checksum that must notice; within one byte, because
            // two bits of one column can cancel out and pass it.
            let at = 14 + self.random.below(frame.len() as u64 - 14) as usize;
            frame[at] ^= 1 + self.random.below(255) as u8;
            self.counters.corrupted += 1;
        }
        if self.random.chance(c.duplicate) {
            let later = at.plus_micros(self.random.below(c.delay.as_micros().max(1) as u64));
            self.enqueue(later, frame.clone());
            self.counters.duplicated += 1;
        }
        self.enqueue(at, frame);
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
mod tests {
    use super::*;

    fn run(config: &Impairment, seed: u64, n: u32) -> (Vec<(u64, Vec<u8>)>, PathCounters) {
        let mut path = Path::new(config.clone(), seed);
        for i in 0..n {
            let mut frame = vec![0; 60];
            frame[..4].copy_from_slice(&i.to_be_bytes());
            path.push(Instant::from_micros(i as u64 * 10), &frame);
        }
        let mut out = Vec::new();
        while let Some(at) = path.next_at() {
            assert!(path.pop(Instant::from_micros(at.micros() - 1)).is_none());
            out.push((at.micros(), path.pop(at).unwrap()));
        }
        (out, path.counters())
    }

    #[test]
    fn a_clean_path_is_a_delay_line() {
        let config = Impairment { delay: Duration::from_millis(5), ..Impairment::default() };
        let (out, _) = run(&config, 1, 100);
        for (i, (at, frame)) in out.iter().enumerate() {
            assert_eq!((*at, &frame[..4]), (5000 + i as u64 * 10, &(i as u32).to_be_bytes()[..]));
        }
        assert_eq!(out.len(), 100);
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let ms = Duration::from_millis;
        let config = Impairment {
            loss: 0.1,
            burst: Some(Burst { enter: 0.01, leave: 0.2, loss: 0.9 }),
            duplicate: 0.05,
            reorder: 0.1,
            reorder_by: ms(3),
            corrupt: 0.05,
            delay: ms(2),
            jitter: ms(1),
            ..Impairment::default()
        };
        assert_eq!(run(&config, 7, 5000), run(&config, 7, 5000));
        let (_, c) = run(&config, 7, 5000);
        assert_ne!(c, run(&config, 8, 5000).1);
        // 10 % and the bursts' share of about 4 %; the others of what is left.
        assert!((500..1000).contains(&c.lost), "{c:?}");
        assert!((150..300).contains(&c.duplicated) && (150..300).contains(&c.corrupted), "{c:?}");
        assert!((300..550).contains(&c.reordered), "{c:?}");
    }

    #[test]
    fn a_rate_spreads_frames_and_its_queue_overflows() {
        let config = Impairment { rate: 600_000, queue: 600, ..Impairment::default() };
        let mut path = Path::new(config, 1);
        (0..20).for_each(|_| path.push(Instant::ZERO, &[0; 60]));
        assert_eq!((path.len(), path.counters().overflow), (10, 10));
        assert_eq!(path.next_at(), Some(Instant::from_micros(100)));
    }
}
