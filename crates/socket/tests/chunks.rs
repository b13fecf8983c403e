//! Chains that the application fills and keeps itself.

mod common;

use common::Lane;
use mem::Chain;

/// Bytes of a chunk.
const CHUNK: usize = 2048;

fn bytes(l: &mut Lane, chain: &mut Chain) -> Vec<u8> {
    let mut out = vec![0; chain.len()];
    assert_eq!(chain.read(l.s.side(), &mut out), out.len());
    out
}

#[test]
fn chains_are_filled_divided_and_given_back() {
    let mut l = Lane::with(10, 8, 256);
    let view = l.s.view();
    let mut chain = Chain::default();
    assert_eq!(l.s.chunks_push(&mut chain, b"some text"), 9);
    // Written where it stands, as much as there is room for behind it.
    assert!(l.s.chunks_room(&mut chain));
    let room = chain.rest(&view);
    assert_eq!(room.len(), CHUNK - 9);
    room[..5].copy_from_slice(b" more");
    l.s.chunks_written(&mut chain, 5);
    let mut other = Chain::default();
    l.s.chunks_push(&mut other, b", and that of another");
    l.s.chunks_append(&mut chain, other);
    l.s.chunks_consume(&mut chain, 5);
    let mut front = l.s.chunks_split(&mut chain, 9);
    assert_eq!(bytes(&mut l, &mut front), b"text more");
    assert_eq!(bytes(&mut l, &mut chain), b", and that of another");
    [front, chain].into_iter().for_each(|chain| l.s.chunks_free(chain));
    assert_eq!(l.s.counters().no_chunk, 0);
    l.end();
}

#[test]
fn a_chain_that_found_no_memory_is_counted() {
    let mut l = Lane::with(10, 8, 256);
    let (mut chain, mut other) = (Chain::default(), Chain::default());
    assert_eq!(l.s.chunks_push(&mut chain, &[7; 8 * CHUNK]), 8 * CHUNK);
    assert_eq!(l.s.counters().no_chunk, 0, "all of it found room");
    assert_eq!(l.s.chunks_push(&mut other, b"x"), 0);
    assert_eq!(l.s.counters().no_chunk, 1);
    assert!(!l.s.chunks_room(&mut other));
    assert_eq!(l.s.counters().no_chunk, 2);
    // What is given back is there again.
    l.s.chunks_free(chain);
    assert!(l.s.chunks_room(&mut other));
    let n = l.s.chunks_push(&mut other, &[7; 9 * CHUNK]);
    assert!((1..9 * CHUNK).contains(&n), "{n}");
    assert_eq!(l.s.counters().no_chunk, 3);
    l.s.chunks_free(other);
    l.end();
}
