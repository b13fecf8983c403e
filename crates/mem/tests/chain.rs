//! Chains: each operation beside what it must do to the bytes, and that no chunk is lost.

#![cfg(not(loom))]

use mem::{CHUNK_BYTES, Chain, Pool, PoolConfig, Side};

fn pool(chunks: u32) -> (Side, Side) {
    Pool::new(&PoolConfig { chunks, ..Default::default() }).unwrap()
}

fn bytes(from: usize, n: usize) -> Vec<u8> {
    (from..from + n).map(|i| (i * 31 + i / 251) as u8).collect()
}

fn chain(side: &mut Side, data: &[u8]) -> Chain {
    let mut c = Chain::default();
    assert_eq!(c.push_slice(side, data), data.len());
    c
}

fn contents(c: &Chain, side: &Side) -> Vec<u8> {
    let mut out = vec![0; c.len() + 7];
    let n = c.copy_at(side, 0, &mut out);
    out.truncate(n);
    out
}

#[test]
fn bytes_come_out_as_they_went_in() {
    let (mut a, mut b) = pool(64);
    for n in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 3] {
        let data = bytes(0, n);
        let mut c = chain(&mut a, &data);
        assert_eq!((c.len(), c.is_empty()), (n, n == 0));
        assert_eq!(contents(&c, &a), data);
        let mut out = vec![0; n + 1];
        assert_eq!(c.read(&mut b, &mut out), n);
        assert_eq!(&out[..n], data);
        assert_eq!(a.outstanding(&mut b), 0, "an empty chain holds nothing");
    }
}

#[test]
fn a_dry_pool_takes_what_fits() {
    let (mut a, mut b) = pool(3);
    let mut c = Chain::default();
    assert_eq!(c.push_slice(&mut a, &bytes(0, 4 * CHUNK_BYTES)), 3 * CHUNK_BYTES);
    assert!(c.spare(&mut a).is_none());
    assert_eq!(a.stats().alloc_failures, 2);
    assert_eq!(a.stats().in_use_estimate, 3);
    assert!(!a.has_free() && !b.has_free());
    c.consume(&mut a, 1);
    assert_eq!(contents(&c, &a), bytes(1, 3 * CHUNK_BYTES - 1));
    c.free(&mut b);
    a.supply_peer(1);
    b.supply_peer(2);
    assert!(a.has_free(), "the side that has passes some over");
    assert_eq!(a.outstanding(&mut b), 0);
}

#[test]
fn small_pieces_share_chunks() {
    let (mut a, mut b) = pool(64);
    let mut c = Chain::default();
    for i in 0..CHUNK_BYTES / 2 {
        let piece = chain(&mut a, &bytes(3 * i, 3));
        c.append(&mut b, piece);
    }
    assert_eq!(c.chunks(&a), (3 * (CHUNK_BYTES / 2)).div_ceil(CHUNK_BYTES - 2));
    assert_eq!(contents(&c, &a), bytes(0, 3 * (CHUNK_BYTES / 2)));
    c.free(&mut b);
    assert_eq!(a.outstanding(&mut b), 0);
}

#[test]
fn spare_room_is_written_in_place() {
    let (mut a, mut b) = pool(8);
    let mut c = Chain::default();
    assert_eq!(c.spare(&mut a).unwrap().len(), CHUNK_BYTES);
    c.advance(&mut a, 0);
    assert_eq!(a.outstanding(&mut b), 0, "unused room is given back");
    c.spare(&mut a).unwrap()[..5].copy_from_slice(b"hello");
    c.advance(&mut a, 5);
    assert_eq!(c.spare(&mut a).unwrap().len(), CHUNK_BYTES - 5);
    c.advance(&mut a, usize::MAX);
    assert_eq!(c.len(), CHUNK_BYTES);
    assert_eq!(&c.first_slice(&a)[..5], b"hello");
    // Room that was asked for and forgotten is given back by whatever comes next.
    let mut forgotten = Chain::default();
    assert!(forgotten.spare(&mut a).is_some());
    let some = chain(&mut a, b"some");
    forgotten.link(&mut a, some);
    assert_eq!((forgotten.chunks(&a), forgotten.len()), (1, 4));
    forgotten.free(&mut a);
    // An empty last chunk is no obstacle to anything behind it.
    assert!(c.spare(&mut a).is_some());
    let more = chain(&mut a, b"more");
    c.link(&mut a, more);
    let front = c.split_front(&mut a, CHUNK_BYTES);
    assert_eq!((front.len(), c.first_slice(&a)), (CHUNK_BYTES, &b"more"[..]));
    front.free(&mut a);
    c.free(&mut a);
    assert_eq!(a.outstanding(&mut b), 0);
}

#[test]
fn a_cut_in_a_dry_pool_is_made_early() {
    let (mut a, mut b) = pool(3);
    let data = bytes(0, 3 * CHUNK_BYTES);
    let mut c = chain(&mut a, &data);
    let front = c.split_front(&mut a, CHUNK_BYTES + 10);
    assert_eq!((front.len(), c.len()), (CHUNK_BYTES, 2 * CHUNK_BYTES));
    let none = c.split_front(&mut a, 10);
    assert_eq!((none.len(), c.len()), (0, 2 * CHUNK_BYTES));
    front.free(&mut a);
    let front = c.split_front(&mut a, 10);
    assert_eq!(contents(&front, &a), data[CHUNK_BYTES..][..10]);
    assert_eq!(contents(&c, &a), data[CHUNK_BYTES + 10..]);
    front.free(&mut a);
    c.free(&mut a);
    none.free(&mut a);
    assert_eq!(a.outstanding(&mut b), 0);
}

#[test]
fn the_mark_follows_the_queue() {
    let (mut a, mut b) = pool(256);
    let mut c = Chain::default();
    let mut cursor = c.cursor();
    let (mut pushed, mut consumed, mut sent) = (0, 0, 0);
    let mut out = [0; 1460];
    for round in 0..if cfg!(miri) { 60 } else { 400 } {
        pushed += c.push_slice(&mut a, &bytes(pushed, 1500));
        let n = c.copy_from(&b, &mut cursor, sent - consumed, &mut out);
        assert_eq!(out[..n], bytes(sent, n));
        sent += n;
        // Elsewhere and back does not disturb it.
        let n = c.copy_at(&b, 5, &mut out);
        assert_eq!(out[..n], bytes(consumed + 5, n));
        if round % 7 == 6 {
            let n = (sent - consumed) * (round % 4) / 3;
            c.consume(&mut b, n);
            consumed += n;
        }
        if round % 50 == 49 {
            sent = consumed;
        }
        if round % 90 == 89 {
            c.truncate(&mut b, sent - consumed);
            pushed = sent;
        }
    }
    c.free(&mut a);
    assert_eq!(a.outstanding(&mut b), 0);
}

#[test]
fn chunks_passed_to_an_idle_side_come_back() {
    let (mut a, mut b) = pool(256);
    let all = 256 * CHUNK_BYTES;
    let mut c = chain(&mut a, &vec![1; all]);
    c.truncate(&mut a, CHUNK_BYTES);
    assert!(a.stats().passing > 0, "{:?}", a.stats());
    // The other side has never looked at what it was passed, and now this one is dry.
    while c.len() < all {
        let before = a.stats();
        if c.push_slice(&mut a, &[2; CHUNK_BYTES]) == 0 {
            b.supply_peer(1);
            assert!(a.has_free(), "{before:?}: nothing came");
        }
    }
    c.free(&mut a);
    assert_eq!(a.outstanding(&mut b), 0);
}

#[test]
#[should_panic(expected = "a chain of another pool")]
fn a_chain_meets_only_its_own_pool() {
    let (mut a, _b) = pool(4);
    let (other, _) = pool(4);
    let c = chain(&mut a, b"x");
    let _ = c.first_slice(&other).len();
}

/// A view reads and fills a chain where it stands, whatever the side does meanwhile.
#[test]
fn a_view_sees_a_chain_as_it_is() {
    let (mut side, _other) = Pool::new(&PoolConfig { chunks: 64, ..PoolConfig::default() }).unwrap();
    let view = side.view();
    let mut chain = Chain::default();
    assert!(chain.rest(&view).is_empty());
    assert_eq!(chain.slices(&view).count(), 0);
    let data: Vec<u8> = (0..5000).map(|i| i as u8 ^ (i >> 8) as u8).collect();
    chain.push_slice(&mut side, &data);
    chain.consume(&mut side, 7);
    {
        let pieces: Vec<&[u8]> = chain.slices(&view).collect();
        // Others come and go.
        let mut more = Chain::default();
        more.push_slice(&mut side, &[1; 3000]);
        more.free(&mut side);
        assert_eq!(pieces.concat(), data[7..]);
        assert_eq!(pieces.len(), 3);
    }
    let rest = chain.rest(&view);
    assert_eq!(rest.len(), 3 * CHUNK_BYTES - 5000);
    rest.fill(9);
    chain.advance(&mut side, 2);
    assert_eq!(chain.slices(&view).flatten().copied().collect::<Vec<_>>(), [&data[7..], &[9, 9]].concat());
    chain.free(&mut side);
    // Room that was asked for and not used is no piece.
    let mut empty = Chain::default();
    assert_eq!(empty.spare(&mut side).unwrap().len(), CHUNK_BYTES);
    assert_eq!((empty.slices(&view).count(), empty.rest(&view).len()), (0, CHUNK_BYTES));
    empty.advance(&mut side, 0);
    assert!(empty.rest(&view).is_empty());
    empty.free(&mut side);
}

/// The parts are the bytes, from wherever to wherever, whatever lay in between; and reading goes on from where they ended.
#[test]
fn parts_are_gathered_where_they_lie() {
    let (mut a, _b) = pool(64);
    let data = bytes(3, 5 * CHUNK_BYTES + 100);
    let mut c = Chain::default();
    // Pieces of many sizes, so that chunks are not full.
    let mut at = 0;
    for n in [1, CHUNK_BYTES, 700, 2 * CHUNK_BYTES, 13].into_iter().cycle() {
        let n = n.min(data.len() - at);
        let piece = chain(&mut a, &data[at..at + n]);
        c.link(&mut a, piece);
        at += n;
        if at == data.len() {
            break;
        }
    }
    c.consume(&mut a, 5);
    let data = &data[5..];
    let mut cursor = c.cursor();
    let step = data.len() / 7;
    for (offset, len) in [(0, data.len()), (0, 1), (step, step), (3 * step, 2 * step), (data.len() - 1, 1), (0, 10)] {
        let mut parts: [&[u8]; 48] = [&[]; 48];
        let n = c.gather(&a, &mut cursor, offset, len, &mut parts).unwrap();
        assert_eq!(parts[..n].concat(), data[offset..offset + len]);
        assert!(parts[..n].iter().all(|p| !p.is_empty()) && parts[n..].iter().all(|p| p.is_empty()));
        let mut next = [0; 50];
        let k = c.copy_from(&a, &mut cursor, offset + len, &mut next);
        assert_eq!(next[..k], data[offset + len..][..k]);
    }
    let mut parts: [&[u8]; 2] = [&[]; 2];
    // Too many parts, too many bytes, none.
    assert!(c.gather(&a, &mut cursor, 0, data.len(), &mut parts).is_none());
    for (offset, len) in [(1, data.len()), (usize::MAX, 2), (0, 0)] {
        let mut parts: [&[u8]; 48] = [&[]; 48];
        assert!(c.gather(&a, &mut cursor, offset, len, &mut parts).is_none(), "{offset}, {len}");
    }
    assert_eq!(contents(&c, &a), data);
    c.free(&mut a);
}

/// Chunks that lie one behind the other in memory are one part, and what was freed in order is handed out in order: bulk that
/// goes round keeps its few parts, whatever the batches in which chunks are passed begin and end with.
#[test]
fn chunks_that_lie_together_are_one_part() {
    let (mut a, mut b) = pool(1024);
    let data = bytes(7, 40 * CHUNK_BYTES);
    let parts_of = |c: &mut Chain, side: &Side, offset, len| {
        let mut parts: [&[u8]; 48] = [&[]; 48];
        let n = c.gather(side, &mut c.cursor(), offset, len, &mut parts).unwrap();
        assert_eq!(parts[..n].concat(), data[offset..offset + len]);
        n
    };
    let mut c = chain(&mut a, &data);
    assert_eq!(parts_of(&mut c, &a, 0, data.len()), 1);
    assert_eq!(parts_of(&mut c, &a, 3000, 10_000), 1);
    for _ in 0..500 {
        c.free(&mut b);
        c = chain(&mut a, &data);
        assert!(parts_of(&mut c, &a, 0, data.len()) <= 3);
    }
    c.free(&mut b);
    // The rest of a chunk that is not full is no part of it.
    let mut short = chain(&mut a, &data[..100]);
    let more = chain(&mut a, &data[100..5000]);
    short.link(&mut a, more);
    assert_eq!(parts_of(&mut short, &a, 0, 5000), 2);
    short.free(&mut a);
}

/// What is offered to each shrinks as it is taken, and is never the last.
#[test]
fn a_share_leaves_some_to_others() {
    let (mut side, _app) = pool(256);
    let whole = side.share();
    assert_eq!(whole, 256 / 4 * 3 * 2048 / 8);
    let mut held = Vec::new();
    for _ in 0..100 {
        let share = bytes(0, side.share());
        held.push(chain(&mut side, &share));
    }
    assert!(held.windows(2).all(|w| w[1].len() <= w[0].len()));
    assert!(side.stats().in_use_estimate <= 256 / 4 * 3);
    held.drain(..).for_each(|mut c| c.consume(&mut side, usize::MAX));
    assert_eq!(side.share(), whole);
}
