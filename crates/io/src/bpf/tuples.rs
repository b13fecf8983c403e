//! Four-tuples of the connections that lanes open beside the kernel: a table that lanes write in their memory, without a system call, and
//! that the program of [`super::program`] reads.
//!
//! A bucket is a cache line of eight slots. A slot is zero, or the hash of a tuple, whose two lowest bits say which of its segments are ours
//! ([`Phase`]). The hash is NH (RFC 4418 5.2.2) under keys drawn at random for each table, so that nobody can send segments that meet the
//! hash of a connection: two tuples share one by a chance of 2^-30 at most, and of 2^-62 as a rule.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::maps::OwnFlow;
use super::sys::{Map, MapKind};

/// Slots of a bucket.
pub(super) const SLOTS: usize = 8;
/// Buckets of a table: 8 MiB.
pub(super) const BUCKETS_LOG2: u32 = 17;
/// 32-bit words of a tuple.
pub(super) const WORDS: usize = 10;
/// Odd, and random in all bits (that of Fibonacci hashing, by 2^32): it spreads what NH leaves uneven.
pub(super) const SPREAD: i32 = 0x9e37_79b1u32 as i32;
/// Bits of a slot that say the phase, and one that is set in every hash, so that no slot in use is zero.
pub(super) const PHASE: u64 = 3;
pub(super) const USED: u64 = 4;

/// Which of a connection's segments are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Phase {
    /// None: somebody else has opened the tuple, of which a lane had TIME-WAIT and will yet say that it is over.
    GivenAway = 0,
    /// SYN-SENT: those with a SYN, and RSTs with an ACK, which are all that can answer our SYN. An ACK without either is about another
    /// connection of the tuple (RFC 9293 3.10.7.3): a masqueraded container may have it, and where nobody does, the kernel resets it.
    SynSent = 1,
    /// All of them.
    Synchronized = 2,
    /// TIME-WAIT: those without a SYN. A SYN/ACK says that somebody else has opened the tuple, and gives it away.
    TimeWait = 3,
}

/// Keys of the hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys(pub [u32; WORDS]);

impl Keys {
    pub fn random() -> io::Result<Keys> {
        let mut bytes = [0; 4 * WORDS];
        let n = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
        assert_eq!(n, bytes.len(), "getrandom(2) gives up to 256 bytes at once");
        Ok(Keys(words(&bytes)))
    }

    /// The bucket of a tuple, and its hash.
    fn of(&self, tuple: &OwnFlow) -> (usize, u64) {
        let words: [u32; WORDS] = words(&tuple.bytes());
        let keyed = |i: usize| u64::from(words[i].wrapping_add(self.0[i]));
        let sum = (0..WORDS).step_by(2).fold(0u64, |sum, i| sum.wrapping_add(keyed(i).wrapping_mul(keyed(i + 1))));
        let spread = sum.wrapping_mul(i64::from(SPREAD) as u64);
        let hash = spread ^ spread >> 32;
        (bucket(hash), (hash | USED) & !PHASE)
    }
}

fn words(bytes: &[u8; 4 * WORDS]) -> [u32; WORDS] {
    std::array::from_fn(|i| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[4 * i + byte])))
}

fn bucket(hash: u64) -> usize {
    (hash >> (u64::BITS - BUCKETS_LOG2)) as usize
}

/// Outcome of a claim.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The tuple was not in the table.
    New,
    /// Taken out of TIME-WAIT, in which it was in the table.
    Again,
    /// Its bucket is full: another port has another.
    Full,
}

/// The table of an interface.
#[derive(Debug)]
pub struct Tuples {
    map: Map,
    keys: Keys,
    /// The map's memory: 2^[`BUCKETS_LOG2`] buckets.
    slots: NonNull<[[AtomicU64; SLOTS]]>,
}

// SAFETY: the slots are atomics, in memory that stays mapped as long as this lives.
unsafe impl Send for Tuples {}
// SAFETY: as above.
unsafe impl Sync for Tuples {}

impl Tuples {
    /// An empty table.
    pub(super) fn new(keys: Keys) -> io::Result<Tuples> {
        let map = Map::new(MapKind::SharedArray, "cl_tuples", 4, 8 * SLOTS, 1 << BUCKETS_LOG2)?;
        let bytes = (8 * SLOTS) << BUCKETS_LOG2;
        // SAFETY: a new mapping of the map's memory, whose values follow one another and begin at offset 0 (BPF_F_MMAPABLE).
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, map.as_fd().as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Tuples { map, keys, slots: NonNull::slice_from_raw_parts(first, 1 << BUCKETS_LOG2) })
    }

    /// A table's map with one bucket: the shape of all.
    pub(super) fn template() -> io::Result<Map> {
        Map::new(MapKind::SharedArray, "cl_tuples", 4, 8 * SLOTS, 1)
    }

    pub(super) fn map(&self) -> &Map {
        &self.map
    }

    fn slots(&self) -> &[[AtomicU64; SLOTS]] {
        // SAFETY: mapped until `self` is dropped, at an address that is a multiple of a page, and changed by atomic means alone: here,
        // and by whole words in the program.
        unsafe { self.slots.as_ref() }
    }

    fn bucket(&self, tuple: &OwnFlow) -> (&[AtomicU64; SLOTS], u64) {
        let (bucket, hash) = self.keys.of(tuple);
        (&self.slots()[bucket], hash)
    }

    fn slot(&self, tuple: &OwnFlow) -> Option<&AtomicU64> {
        let (bucket, hash) = self.bucket(tuple);
        bucket.iter().find(|slot| slot.load(Ordering::Relaxed) & !PHASE == hash)
    }

    /// Takes a tuple that no lane has but in TIME-WAIT, in [`Phase::SynSent`].
    pub fn claim(&self, tuple: &OwnFlow) -> Claim {
        let (bucket, hash) = self.bucket(tuple);
        let claimed = hash | Phase::SynSent as u64;
        if let Some(own) = bucket.iter().find(|slot| slot.load(Ordering::Relaxed) & !PHASE == hash) {
            own.store(claimed, Ordering::Release);
            return Claim::Again;
        }
        // Another lane may be as quick.
        let take = |slot: &AtomicU64| {
            slot.load(Ordering::Relaxed) == 0
                && slot.compare_exchange(0, claimed, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if bucket.iter().any(take) { Claim::New } else { Claim::Full }
    }

    /// A claimed tuple is in another phase. Nothing where it is not claimed.
    pub fn enter(&self, tuple: &OwnFlow, phase: Phase) {
        if let Some(slot) = self.slot(tuple) {
            slot.store(slot.load(Ordering::Relaxed) & !PHASE | phase as u64, Ordering::Release);
        }
    }

    /// Gives a tuple back to the kernel; whether it was claimed.
    pub fn release(&self, tuple: &OwnFlow) -> bool {
        let slot = self.slot(tuple);
        if let Some(slot) = slot {
            slot.store(0, Ordering::Release);
        }
        slot.is_some()
    }

    /// True of a tuple that is claimed, and was not given away since.
    pub fn is_open(&self, tuple: &OwnFlow) -> bool {
        self.slot(tuple).is_some_and(|slot| slot.load(Ordering::Relaxed) & PHASE != Phase::GivenAway as u64)
    }

    /// Tuples that are claimed, by a look at the whole table.
    pub fn claimed(&self) -> usize {
        self.slots().iter().flatten().filter(|slot| slot.load(Ordering::Relaxed) != 0).count()
    }
}

impl Drop for Tuples {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference to it outlives `self`.
        unsafe { libc::munmap(self.slots.as_ptr().cast(), (8 * SLOTS) << BUCKETS_LOG2) };
    }
}
