//! Chains against plain byte queues: random operations on both sides of a small pool, which runs dry now and then.
#![cfg(not(loom))]

use mem::ring::{self, Message};
use mem::{CHUNK_BYTES, Chain, Cursor, Pool, PoolConfig, Side};
use proptest::prelude::*;

const CHAINS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Push { n: usize },
    Spare { n: usize },
    Append { from: usize, link: bool },
    Consume { n: usize },
    Read { n: usize },
    Truncate { n: usize },
    Split { n: usize, to: usize },
    CopyAt { offset: usize, n: usize },
    CopyFrom { offset: usize, n: usize },
    Slices { offset: usize, n: usize },
    Pass,
    Supply { low: u32 },
}

fn amount() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0usize..40,
        3 => 0usize..3000,
        2 => 0usize..20_000,
        1 => Just(CHUNK_BYTES),
        1 => Just(CHUNK_BYTES - 1),
        1 => Just(usize::MAX),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => amount().prop_map(|n| Step::Push { n: n.min(20_000) }),
        2 => amount().prop_map(|n| Step::Spare { n }),
        3 => (0..CHAINS, any::<bool>()).prop_map(|(from, link)| Step::Append { from, link }),
        3 => amount().prop_map(|n| Step::Consume { n }),
        2 => amount().prop_map(|n| Step::Read { n: n.min(20_000) }),
        1 => amount().prop_map(|n| Step::Truncate { n }),
        2 => (amount(), 0..CHAINS).prop_map(|(n, to)| Step::Split { n, to }),
        2 => (amount(), amount()).prop_map(|(offset, n)| Step::CopyAt { offset, n: n.min(20_000) }),
        4 => (amount(), amount()).prop_map(|(offset, n)| Step::CopyFrom { offset, n: n.min(20_000) }),
        2 => (amount(), amount()).prop_map(|(offset, n)| Step::Slices { offset, n }),
        2 => Just(Step::Pass),
        1 => (0u32..40).prop_map(|low| Step::Supply { low }),
    ]
}

/// A chain, what it should hold, and the place where it is read on.
#[derive(Default)]
struct Pair {
    chain: Chain,
    model: Vec<u8>,
    cursor: Cursor,
}

fn window(model: &[u8], offset: usize, n: usize) -> &[u8] {
    let model = &model[offset.min(model.len())..];
    &model[..n.min(model.len())]
}

fn whole(chain: &Chain, side: &Side) -> Vec<u8> {
    let mut bytes = Vec::new();
    chain.for_each_slice(side, 0, usize::MAX, |piece| bytes.extend_from_slice(piece));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 6 } else { 1500 },
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn chains_are_byte_queues(
        chunks in prop_oneof![1u32..12, 12u32..200],
        steps in proptest::collection::vec((0..CHAINS, 0usize..2, step()), 1..if cfg!(miri) { 40 } else { 160 }),
    ) {
        let (a, b) = Pool::new(&PoolConfig { chunks, ..Default::default() }).unwrap();
        let mut sides = [a, b];
        let (mut tx, mut rx) = ring::ring(2).unwrap();
        let mut pairs: [Pair; CHAINS] = Default::default();
        let mut fill = 0u8;
        for (which, side, step) in steps {
            let side = &mut sides[side];
            let Pair { chain, model, cursor } = &mut pairs[which];
            match step {
                Step::Push { n } => {
                    let data: Vec<u8> = (0..n).map(|_| { fill = fill.wrapping_mul(5).wrapping_add(13); fill }).collect();
                    let took = chain.push_slice(side, &data);
                    prop_assert!(took == n || !side.has_free(), "short though there are chunks");
                    model.extend_from_slice(&data[..took]);
                }
                Step::Spare { n } => {
                    if let Some(room) = chain.spare(side) {
                        let n = n.min(room.len());
                        fill = fill.wrapping_add(1);
                        room[..n].fill(fill);
                        chain.advance(side, n);
                        model.resize(model.len() + n, fill);
                    } else {
                        prop_assert!(!side.has_free());
                    }
                }
                Step::Append { from, link } => {
                    if from != which {
                        let other = std::mem::take(&mut pairs[from].chain);
                        let bytes = std::mem::take(&mut pairs[from].model);
                        let Pair { chain, model, .. } = &mut pairs[which];
                        if link { chain.link(side, other) } else { chain.append(side, other) }
                        model.extend(bytes);
                    }
                }
                Step::Consume { n } => {
                    chain.consume(side, n);
                    model.drain(..n.min(model.len()));
                }
                Step::Read { n } => {
                    let mut out = vec![0; n];
                    let got = chain.read(side, &mut out);
                    prop_assert!(out[..got].iter().copied().eq(model.drain(..n.min(model.len()))));
                }
                Step::Truncate { n } => {
                    chain.truncate(side, n);
                    model.truncate(n);
                }
                Step::Split { n, to } => {
                    let front = chain.split_front(side, n);
                    let whole_cut = n.min(model.len());
                    prop_assert!(front.len() == whole_cut || (front.len() < whole_cut && !side.has_free()));
                    prop_assert!(front.len() + CHUNK_BYTES > whole_cut);
                    let bytes: Vec<u8> = model.drain(..front.len()).collect();
                    if to == which {
                        prop_assert_eq!(whole(&front, side), bytes);
                        front.free(side);
                    } else {
                        pairs[to].chain.append(side, front);
                        pairs[to].model.extend(bytes);
                    }
                }
                Step::CopyAt { offset, n } => {
                    let mut out = vec![0; n];
                    let got = chain.copy_at(side, offset, &mut out);
                    prop_assert_eq!(&out[..got], window(model, offset, n));
                }
                Step::CopyFrom { offset, n } => {
                    let mut out = vec![0; n];
                    let got = chain.copy_from(side, cursor, offset, &mut out);
                    prop_assert_eq!(&out[..got], window(model, offset, n));
                }
                Step::Slices { offset, n } => {
                    let mut bytes = Vec::new();
                    chain.for_each_slice(side, offset, n, |piece| bytes.extend_from_slice(piece));
                    prop_assert_eq!(&bytes[..], window(model, offset, n));
                }
                Step::Pass => {
                    let chain = std::mem::take(chain);
                    tx.push(Message { words: [which as u64; 6], chain }).unwrap();
                    tx.publish();
                    let message = rx.pop().unwrap();
                    rx.release();
                    prop_assert_eq!(message.words, [which as u64; 6]);
                    pairs[which].chain = message.chain;
                }
                Step::Supply { low } => side.supply_peer(low),
            }
            let Pair { chain, model, .. } = &pairs[which];
            prop_assert_eq!((chain.len(), chain.is_empty()), (model.len(), model.is_empty()));
            let first = chain.first_slice(&sides[0]);
            prop_assert!(model.starts_with(first) && first.is_empty() == model.is_empty());
        }
        for (poor, rich) in [(0, 1), (1, 0)] {
            let (free, can) = (sides[poor].has_free(), sides[rich].stats().free_here > 0);
            sides[rich].supply_peer(u32::MAX);
            prop_assert!(free || !can || sides[poor].has_free(), "who found nothing is helped by who has some");
        }
        let [a, b] = &mut sides;
        let held: usize = pairs.iter().map(|p| p.chain.chunks(a)).sum();
        prop_assert_eq!(a.outstanding(b) as usize, held, "chunks in chains and nowhere else");
        prop_assert_eq!(a.stats().in_use_estimate as usize, held);
        for Pair { chain, model, .. } in pairs {
            prop_assert_eq!(whole(&chain, a), model);
            chain.free(b);
        }
        prop_assert_eq!(a.outstanding(b), 0);
    }
}
