//! The arena and the pools in it: what is reserved, what becomes resident, what is refused.
#![cfg(not(loom))]

use mem::{Arena, ArenaConfig, ArenaError, Backing, Chain, Huge, Pages, Pool, PoolConfig, frames, ring, spsc};

#[test]
fn everything_of_a_lane_fits_into_one_arena() {
    let bytes =
        Pool::bytes(100) + 2 * ring::ring_bytes(64) + spsc::queue_bytes::<u32>(64) + frames::ring_bytes(16, 1514);
    for backing in [Backing::Anonymous, Backing::Memfd] {
        for huge in [Huge::No, Huge::Transparent, Huge::Explicit] {
            let arena = Arena::reserve(&ArenaConfig { bytes, huge, backing }).unwrap();
            assert!(arena.bytes() >= bytes);
            let (mut a, mut b) = Pool::new_in(&arena, 100).unwrap();
            let (mut jobs, mut to_b) = ring::ring_in(&arena, 64).unwrap();
            let _events = ring::ring_in(&arena, 64).unwrap();
            let _numbers = spsc::queue_in::<u32>(&arena, 64).unwrap();
            let _frames = frames::ring_in(&arena, 16, 1514).unwrap();
            assert!(arena.used() <= bytes, "the sizes that are told suffice");
            let mut chain = Chain::default();
            assert_eq!(chain.push_slice(&mut a, &[7; 5000]), 5000);
            jobs.push(ring::Message { words: [1; 6], chain }).unwrap();
            jobs.publish();
            drop((arena, jobs));
            let chain = to_b.pop().unwrap().chain;
            assert_eq!((chain.len(), chain.first_slice(&b)[0]), (5000, 7));
            chain.free(&mut b);
            assert_eq!(a.outstanding(&mut b), 0);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let arena = Arena::reserve(&ArenaConfig { bytes: 8192, huge: Huge::No, ..Default::default() }).unwrap();
    assert_eq!(arena.pages(), Pages::Plain);
    let error = Pool::new_in(&arena, 100).unwrap_err();
    assert_eq!(error.to_string(), "the arena is too small: 204800 bytes wanted, 8192 left");
    assert!(matches!(ring::ring_in(&arena, 1 << 20), Err(ArenaError::Full { .. })));
    assert!(matches!(Pool::new_in(&arena, 0), Err(ArenaError::Chunks(0))));
    assert!(matches!(Pool::new_in(&arena, u32::MAX), Err(ArenaError::Chunks(_))));
    assert!(matches!(
        Arena::reserve(&ArenaConfig { bytes: usize::MAX, ..Default::default() }),
        Err(ArenaError::TooLarge)
    ));
}

#[test]
#[cfg(not(miri))]
fn more_than_the_address_space_is_refused_in_words() {
    let error = Arena::reserve(&ArenaConfig { bytes: 1 << 60, ..Default::default() }).unwrap_err().to_string();
    assert!(error.starts_with("cannot reserve 1152921504606846976 bytes of memory: "), "{error}");
}

#[test]
fn a_pool_can_be_as_small_as_one_chunk() {
    for chunks in 1..40 {
        let (mut a, mut b) = Pool::new(&PoolConfig { chunks, ..Default::default() }).unwrap();
        for _ in 0..3 {
            let mut all = Chain::default();
            // Whatever the other side holds back, it passes over when asked.
            while all.chunks(&a) < chunks as usize {
                let before = all.len();
                if all.push_slice(&mut a, &[1; 2048]) == 0 {
                    b.supply_peer(chunks);
                }
                assert!(all.len() > before || a.has_free(), "{chunks}: {a:?} {b:?}");
            }
            assert_eq!(a.stats().in_use_estimate, chunks);
            all.free(&mut b);
            assert_eq!(a.outstanding(&mut b), 0);
            assert_eq!(b.stats().in_use_estimate, 0);
        }
    }
}

/// Resident pages of this process, of memory whose addresses contain `at`'s mapping.
#[cfg(not(miri))]
fn resident(kb_of: &str) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    let mut kb = 0;
    for line in smaps.lines() {
        if line.split_once(' ').is_some_and(|(range, _)| range.contains('-') && !range.ends_with(':')) {
            inside = line.contains(kb_of);
        } else if let (true, Some(rss)) = (inside, line.strip_prefix("Rss:")) {
            kb += rss.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap();
        }
    }
    kb
}

#[test]
#[cfg(not(miri))]
fn nothing_is_resident_until_touched() {
    // A memfd mapping has a name by which to find it; 16 GiB would not fit if they were committed.
    let config = ArenaConfig { bytes: 16 << 30, huge: Huge::No, backing: Backing::Memfd };
    let arena = Arena::reserve(&config).unwrap();
    // Other tests of this process have such mappings too, of at most a few hundred KiB.
    assert!(resident("memfd:corelane") < 4096);
    let chunks = 7 << 20;
    let (mut a, mut b) = Pool::new_in(&arena, chunks).unwrap();
    assert!(resident("memfd:corelane") < 4096);
    let mut chain = Chain::default();
    chain.push_slice(&mut a, &vec![1; 16 << 20]);
    assert!((16 << 10..20 << 10).contains(&resident("memfd:corelane")));
    // Recycled before fresh: the same again costs at most what the idle side was passed meanwhile.
    for _ in 0..10 {
        chain.free(&mut a);
        b.supply_peer(1);
        chain = Chain::default();
        chain.push_slice(&mut a, &vec![1; 16 << 20]);
    }
    assert!(a.stats().untouched > chunks - 2 * (16 << 9) - 2048, "{:?}", a.stats());
    assert!(resident("memfd:corelane") < 40 << 10);
    chain.free(&mut a);
}

#[test]
#[cfg(not(miri))]
fn another_mapping_of_the_file_sees_the_same_bytes() {
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::fs::FileExt;
    let arena = Arena::reserve(&ArenaConfig { bytes: 1 << 20, huge: Huge::No, backing: Backing::Memfd }).unwrap();
    let (mut a, _b) = Pool::new_in(&arena, 4).unwrap();
    let mut chain = Chain::default();
    chain.push_slice(&mut a, b"seen through the file");
    // SAFETY: the file is only read, through a descriptor of its own.
    let fd = unsafe { arena.file() }.unwrap();
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let file = std::fs::File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), arena.bytes() as u64);
    let mut bytes = vec![0; 4 * 2048];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.windows(21).any(|w| w == b"seen through the file"));
    chain.free(&mut a);
    assert!(rustix::fs::ftruncate(fd, 4096).is_err(), "it cannot shrink under a mapping");
}
