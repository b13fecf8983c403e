//! The memory that a stack shares with a client that it does not trust.
#![cfg(not(any(loom, miri)))]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mem::lease::{AttachError, Attached, Lease, Seat, Shape, StackSeat};
use mem::ring::{Message, Raw};
use mem::{Breach, CHUNK_BYTES, Chain, Huge, Side};
use proptest::prelude::*;

const LAYOUT: u64 = 7;

fn shape(chunks: u32) -> Shape {
    Shape { chunks, seats: 2, jobs: 64, events: 64, huge: Huge::No }
}

/// Both ends of a lease, in one process at two addresses.
struct Both {
    side: Side,
    stack: StackSeat,
    client: Seat,
    file: OwnedFd,
    lease: Lease,
    attached: Attached,
}

impl Both {
    fn new(chunks: u32) -> Both {
        let lease = Lease::create(&shape(chunks), LAYOUT).unwrap();
        let attached = Attached::open(lease.file().try_clone_to_owned().unwrap(), LAYOUT).unwrap();
        let mut side = lease.stack_side().unwrap().unwrap();
        let stack = lease.stack_seat(0, &mut side).unwrap();
        let client = attached.seat(0).unwrap();
        let file = lease.file().try_clone_to_owned().unwrap();
        Both { side, stack, client, file, lease, attached }
    }

    /// What the stack tells the client.
    fn tell(&mut self, data: &[u8]) -> usize {
        let mut chain = Chain::default();
        let n = chain.push_slice(&mut self.side, data);
        let raw = self.side.dismiss(Message { words: [1, 2, 3, 4, 5, 6], chain });
        self.stack.events.push(raw).unwrap();
        self.stack.events.publish();
        n
    }

    /// What the client hears.
    fn hear(&mut self) -> Vec<u8> {
        let Message { words, chain } = self.client.events.pop().unwrap();
        assert_eq!(words, [1, 2, 3, 4, 5, 6]);
        let mut bytes = Vec::new();
        chain.for_each_slice(&self.client.side, 0, usize::MAX, |piece| bytes.extend_from_slice(piece));
        chain.free(&mut self.client.side);
        bytes
    }

    /// What the client asks for, through the ring, as the stack understands it.
    fn ask(&mut self, data: &[u8]) -> Vec<u8> {
        let mut chain = Chain::default();
        let n = chain.push_slice(&mut self.client.side, data);
        self.client.jobs.push(Message { words: [9; 6], chain }).unwrap();
        self.client.jobs.publish();
        let raw = self.stack.jobs.pop_raw().unwrap();
        let Message { words, chain } = self.side.admit(raw).unwrap();
        assert_eq!((words, chain.len()), ([9; 6], n));
        let mut bytes = Vec::new();
        chain.for_each_slice(&self.side, 0, usize::MAX, |piece| bytes.extend_from_slice(piece));
        chain.free(&mut self.side);
        bytes
    }
}

fn bytes(n: usize, seed: u8) -> Vec<u8> {
    (0..n).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn bytes_cross_both_ways_and_chunks_come_back() {
    let mut both = Both::new(256);
    let (mut asked, mut told) = (0, 0);
    for round in 0..20_000usize {
        let data = bytes(round * 37 % 9000, round as u8);
        // One way only for a while, so that surplus has to pass.
        if round / 1000 % 2 == 0 {
            let n = both.tell(&data);
            assert_eq!(both.hear(), data[..n]);
            told += (n == data.len()) as u32;
        } else {
            let heard = both.ask(&data);
            assert_eq!(heard, data[..heard.len()]);
            asked += (heard.len() == data.len()) as u32;
        }
        both.side.supply_peer(16);
        both.client.side.supply_peer(16);
    }
    assert!(told > 9_900 && asked > 9_900, "{told} {asked}");
    // The second seat's part is still its own.
    let mut second = both.attached.seat(1).unwrap();
    assert_eq!(both.side.breach(), None);
    let untaken = second.side.stats().free_here;
    assert_eq!(both.side.outstanding(&mut both.client.side), untaken);
    // Now it is joined, and chunks go to and fro there, too.
    let stack = both.lease.stack_seat(1, &mut both.side).unwrap();
    both.client = std::mem::replace(&mut second, both.client);
    both.stack = stack;
    for round in 0..2_000usize {
        let data = bytes(round * 91 % 9000, round as u8);
        let heard = both.ask(&data);
        assert_eq!(heard, data[..heard.len()]);
        assert!(round < 10 || heard.len() == data.len(), "{round}: {} of {}", heard.len(), data.len());
        both.side.supply_peer(16);
        both.client.side.supply_peer(16);
    }
}

#[test]
fn each_end_is_given_once() {
    let both = Both::new(64);
    let Both { mut side, lease, attached, .. } = both;
    assert!(lease.stack_side().unwrap().is_none() && lease.stack_seat(0, &mut side).is_none());
    assert!(lease.stack_seat(2, &mut side).is_none());
    assert!(attached.seat(0).is_none() && attached.seat(1).is_some() && attached.seat(2).is_none());
    let again = Attached::open(lease.file().try_clone_to_owned().unwrap(), LAYOUT);
    assert!(matches!(again, Err(AttachError::Taken)));
}

fn refusal(file: OwnedFd) -> String {
    Attached::open(file, LAYOUT).err().expect("it is no lease").to_string()
}

#[test]
fn what_is_no_lease_is_refused_in_a_line() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let memfd = |bytes: u64, seals: SealFlags| {
        let file = memfd_create("none", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    };
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let null = std::fs::File::open("/dev/null").unwrap().into();
    assert_eq!(refusal(null), "the descriptor is no shared memory (a memfd)");
    let unsealed = refusal(memfd(1 << 20, SealFlags::GROW));
    assert_eq!(unsealed, "the shared memory is not sealed: it could shrink while it is in use");
    assert_eq!(refusal(memfd(0, sealed)), "the shared memory is empty");
    assert_eq!(refusal(memfd(1, sealed)), "the shared memory is not a stack's");
    assert_eq!(refusal(memfd(1 << 20, sealed)), "the shared memory is not a stack's");

    let other = Lease::create(&shape(64), 8).unwrap();
    let line = refusal(other.file().try_clone_to_owned().unwrap());
    let ours = "1.0000000000000007";
    assert_eq!(
        line,
        format!(
            "the stack speaks version 1.0000000000000008 and this program {ours}: both must be of the same corelane"
        )
    );

    // One that is smaller than it says.
    let lease = Lease::create(&shape(64), LAYOUT).unwrap();
    let mut head = [0; 4096];
    rustix::io::pread(lease.file(), &mut head, 0).unwrap();
    let small = memfd_create("small", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::write(&small, &head).unwrap();
    fcntl_add_seals(&small, sealed).unwrap();
    assert!(refusal(small).starts_with("the arena is too small: "));
    assert!(Lease::create(&Shape { seats: 0, ..shape(64) }, LAYOUT).is_err());
}

#[test]
fn a_child_of_fork_has_no_part_of_it() {
    let both = Both::new(64);
    let maps = || std::fs::read_to_string("/proc/self/smaps").unwrap();
    let stays = |maps: &str| {
        let each = maps.split_inclusive("VmFlags: ");
        // The flags of a mapping come behind its name.
        let named: Vec<bool> = each.map(|part| part.contains("/memfd:corelane")).collect();
        let flags = maps.split("VmFlags: ").skip(1).map(|rest| rest.lines().next().unwrap_or_default().contains("dc"));
        named.into_iter().zip(flags).filter(|(named, _)| *named).map(|(_, flag)| flag).collect::<Vec<_>>()
    };
    assert!(stays(&maps()).contains(&true), "the client's mapping is not copied");
    assert!(both.file.as_fd().as_raw_fd() >= 0);
}

/// A seat of a client that keeps no rule, with direct access to all that it maps.
struct Malice {
    both: Both,
    map: *mut u8,
    len: usize,
}

impl Malice {
    fn new(chunks: u32) -> Malice {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let both = Both::new(chunks);
        let len = rustix::fs::fstat(&both.file).unwrap().st_size as usize;
        let (rw, at) = (ProtFlags::READ | ProtFlags::WRITE, core::ptr::null_mut());
        // SAFETY: a fresh mapping of a file that cannot shrink.
        let map = unsafe { mmap(at, len, rw, MapFlags::SHARED, &both.file, 0) }.unwrap();
        Malice { both, map: map.cast(), len }
    }

    fn scribble(&mut self, at: usize, value: u32) {
        let at = at % (self.len / 4);
        // SAFETY: inside the mapping, aligned; the stack looks at what lies there as at anything.
        unsafe { self.map.cast::<u32>().add(at).write_volatile(value) }
    }
}

impl Drop for Malice {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        let _ = unsafe { rustix::mm::munmap(self.map.cast(), self.len) };
    }
}

/// Where a chunk's record lies, for who knows the layout: behind the payloads.
fn record_of(chunks: u32, chunk: u32) -> usize {
    let payload = 4096;
    (payload + chunks as usize * CHUNK_BYTES + chunk as usize * 16) / 4
}

#[test]
fn each_breach_is_named() {
    let chain = |first: u32, last: u32, len: u32| {
        let mut raw = [0; 8];
        (raw[6], raw[7]) = (u64::from(first) | u64::from(last) << 32, u64::from(len));
        Raw(raw)
    };
    let told = |change: &dyn Fn(&mut Malice), raw: Raw| {
        let mut it = Malice::new(64);
        change(&mut it);
        it.both.side.admit(raw).map(|_| ())
    };
    // Chunks 0 to 7 are the first seat's, 8 to 15 the second's, the others the stack's.
    let good = |it: &mut Malice| {
        for chunk in 0..3 {
            let at = record_of(64, chunk);
            it.scribble(at, chunk + 1);
            it.scribble(at + 1, 10 << 16);
        }
    };
    assert_eq!(told(&good, chain(0, 2, 30)), Ok(()));
    assert_eq!(told(&good, chain(0, 0, 10)), Ok(()));
    assert_eq!(told(&good, chain(0, 2, 29)), Err(Breach::Chain));
    assert_eq!(told(&good, chain(0, 2, 31)), Err(Breach::Chain));
    assert_eq!(told(&good, chain(0, 1, 30)), Err(Breach::Chain));
    assert_eq!(told(&good, chain(0, 9, 30)), Err(Breach::Bytes), "its fourth chunk is empty");
    assert_eq!(told(&good, chain(16, 16, 10)), Err(Breach::Chunk), "the stack's");
    assert_eq!(told(&good, chain(64, 64, 10)), Err(Breach::Chunk));
    assert_eq!(told(&good, chain(u32::MAX, u32::MAX, 10)), Err(Breach::Chunk));
    let twice = |it: &mut Malice| {
        good(it);
        it.scribble(record_of(64, 2), 0);
    };
    assert_eq!(told(&twice, chain(0, 3, 1000)), Err(Breach::Chunk), "a chain that goes round");
    let long = |it: &mut Malice| it.scribble(record_of(64, 0) + 1, 2049 << 16);
    assert_eq!(told(&long, chain(0, 0, 2049)), Err(Breach::Bytes));
    let beyond = |it: &mut Malice| it.scribble(record_of(64, 0) + 1, 10 << 16 | 2040);
    assert_eq!(told(&beyond, chain(0, 0, 10)), Err(Breach::Bytes));

    let mut it = Malice::new(64);
    let raw = it.both.side.admit(chain(0, 0, 10));
    assert!(raw.is_err());
    // A chunk that was given cannot be given again.
    let mut it = Malice::new(64);
    good(&mut it);
    let first = it.both.side.admit(chain(0, 0, 10)).unwrap();
    assert_eq!(it.both.side.admit(chain(0, 0, 10)).map(|_| ()), Err(Breach::Chunk));
    first.chain.free(&mut it.both.side);
    assert_eq!(it.both.side.admit(chain(0, 0, 10)).map(|_| ()), Err(Breach::Chunk), "nor once it is free here");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// Whatever the client writes, the stack's side goes on or names a breach; what it has is counted once.
    #[test]
    fn whatever_is_written_the_stack_keeps_what_it_has(
        steps in proptest::collection::vec((any::<[u16; 4]>(), any::<[u32; 3]>()), 1..200),
    ) {
        let chunks = 64;
        let mut it = Malice::new(chunks);
        let mut held: Vec<Chain> = Vec::new();
        for ([what, a, b, c], [x, y, z]) in steps {
            match what % 8 {
                0 => it.scribble(a as usize | (b as usize) << 16, x),
                1 => it.scribble(record_of(chunks, u32::from(a) % chunks) + usize::from(b) % 2, x % 80),
                2 => it.scribble(record_of(chunks, u32::from(a) % chunks), u32::from(b) % chunks),
                3 => it.scribble(record_of(chunks, u32::from(a) % chunks) + 1, (u32::from(b) % 2048) << 16),
                4 => {
                    let (first, last, bytes) = (x % 70, y % 70, z % 5000);
                    let raw = Raw([0, 0, 0, 0, 0, 0, u64::from(first) | u64::from(last) << 32, u64::from(bytes)]);
                    if let Ok(message) = it.both.side.admit(raw) {
                        held.push(message.chain);
                    } else {
                        // It would be detached now.
                        break;
                    }
                }
                5 => {
                    // Whoever does not read has a full ring, or says so.
                    if !it.both.stack.events.has_room(1) {
                        break;
                    }
                    it.both.tell(&bytes(usize::from(c) % 5000, a as u8));
                }
                6 => it.both.side.supply_peer(u32::from(a) % 70),
                _ => {
                    while let Some(raw) = it.both.stack.jobs.pop_raw() {
                        let _ = it.both.side.admit(raw);
                    }
                    if let Some(chain) = held.pop() {
                        let mut all = vec![0; chain.len()];
                        prop_assert_eq!(chain.copy_at(&it.both.side, 0, &mut all), all.len());
                        chain.free(&mut it.both.side);
                    }
                }
            }
            it.both.side.stats();
            if it.both.side.breach().is_some() {
                break;
            }
        }
        // All that the stack has is its own, and readable, whatever the client does.
        for chain in held {
            let mut all = vec![0; chain.len()];
            prop_assert_eq!(chain.copy_at(&it.both.side, 0, &mut all), all.len());
            chain.free(&mut it.both.side);
        }
    }
}
