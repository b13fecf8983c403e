//! Rings: against a model, across threads, at their edges.
#![cfg(not(loom))]

use mem::ring::{self, Message};
use mem::spsc;
use mem::{ArenaError, Chain, Counters, Pool, PoolConfig, frames};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::thread;

const MANY: u64 = if cfg!(miri) { 200 } else { 200_000 };

#[test]
fn only_powers_of_two() {
    for slots in [0, 3, 12, (1 << 30) + 1, usize::MAX] {
        assert!(matches!(ring::ring(slots), Err(ArenaError::Slots(_))));
        assert!(spsc::queue::<u8>(slots).is_err());
        assert!(frames::ring(slots, 64).is_err());
    }
    assert_eq!(ring::ring(3).unwrap_err().to_string(), "a ring needs a power of two of slots from 1 to 2^30, not 3");
    assert!(frames::ring(4, usize::MAX).is_err());
    assert!(frames::ring(1 << 30, usize::MAX >> 8).is_err());
}

#[test]
fn what_comes_can_be_looked_at() {
    let (mut tx, mut rx) = spsc::queue(4).unwrap();
    assert_eq!(rx.peek(0), None);
    (1..=3).for_each(|n| tx.push(n).unwrap());
    tx.publish();
    // Nobody has looked at the producer's index yet.
    assert_eq!(rx.peek(0), None);
    assert_eq!(rx.pop(), Some(1));
    assert_eq!((rx.peek(0), rx.peek(1), rx.peek(2), rx.peek(u32::MAX)), (Some(&2), Some(&3), None, None));
    assert_eq!(rx.pop(), Some(2));
    assert_eq!(rx.peek(0), Some(&3));
    assert_eq!(rx.pop(), Some(3));
    assert_eq!(rx.peek(0), None);
}

#[test]
fn what_was_written_last_can_be_changed_until_it_is_published() {
    let (mut tx, mut rx) = spsc::queue(2).unwrap();
    assert_eq!(tx.last(), None);
    for round in 0..5 {
        tx.push(10 * round).unwrap();
        tx.push(10 * round + 1).unwrap();
        assert_eq!(tx.push(0), Err(0));
        *tx.last().unwrap() += 5;
        tx.publish();
        assert_eq!(tx.last(), None);
        assert_eq!((rx.pop(), rx.pop(), rx.pop()), (Some(10 * round), Some(10 * round + 6), None));
    }
}

#[test]
fn what_is_offered_waits_for_who_asks() {
    let (mut tx, mut rx) = spsc::queue::<u32>(8).unwrap();
    assert!(!tx.offer() && rx.offer().is_none());
    for round in 0..3 {
        for i in 0..5 {
            tx.push(i).unwrap();
        }
        assert!(tx.offer(), "round {round}: the first offer is told");
        let mark = rx.offer();
        assert!(mark.is_some() && rx.is_empty() && rx.pop().is_none());
        // It is no longer the producer's to change, and grows in silence.
        assert_eq!(tx.last(), None);
        tx.push(5).unwrap();
        assert_eq!(tx.last(), Some(&mut 5));
        assert!(!tx.offer() && !tx.offer());
        assert_eq!(rx.offer(), mark);
        rx.take_offer();
        assert_eq!((rx.len(), rx.pop(), rx.peek(0), rx.len()), (6, Some(0), Some(&1), 5));
        assert_eq!((rx.offer(), tx.pending()), (None, 6));
        // Who has taken one is told of the next, which is another.
        tx.push(6).unwrap();
        assert!(tx.offer() && rx.offer().is_some() && rx.offer() != mark);
        // What is published afterwards comes behind it, whatever was taken before.
        assert!(tx.publish() && rx.offer().is_none());
        assert_eq!(std::iter::from_fn(|| rx.pop()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert!(rx.is_empty() && !tx.publish());
        tx.push(7).unwrap();
        assert!(tx.publish() && rx.offer().is_none());
        assert_eq!((rx.len(), rx.pop(), rx.pop()), (1, Some(7), None));
    }
}

#[test]
fn an_offer_taken_is_not_given_twice() {
    let (mut tx, mut rx) = spsc::queue::<u32>(4).unwrap();
    for i in 0..3 {
        tx.push(i).unwrap();
    }
    tx.offer();
    rx.take_offer();
    assert_eq!((rx.pop(), rx.pop(), rx.pop(), rx.pop()), (Some(0), Some(1), Some(2), None));
    // The consumer is ahead of what is published, and has released it.
    assert_eq!((tx.room(), rx.len()), (4, 0));
    tx.push(3).unwrap();
    assert_eq!((rx.pop(), tx.publish(), rx.pop(), rx.pop()), (None, true, Some(3), None));
}

#[test]
fn a_ring_of_one() {
    let (mut tx, mut rx) = spsc::queue(1).unwrap();
    for i in 0..5 {
        assert_eq!((tx.push(i), tx.push(99)), (Ok(()), Err(99)));
        assert_eq!((tx.pending(), rx.pop(), rx.len()), (1, None, 0));
        assert!(tx.publish() && !tx.publish());
        assert_eq!((rx.len(), rx.pop(), rx.pop()), (1, Some(i), None));
    }
}

#[test]
fn ends_that_go_are_noticed() {
    let (mut tx, mut rx) = ring::ring(4).unwrap();
    assert!(!tx.peer_gone() && !rx.peer_gone());
    tx.push(Message { words: [1; 6], ..Default::default() }).unwrap();
    drop(tx);
    assert!(rx.peer_gone());
    assert_eq!(rx.pop().unwrap().words, [1; 6], "what was written before is still there");
    assert!(rx.pop().is_none());
    let (tx, rx) = ring::ring(4).unwrap();
    drop(rx);
    assert!(tx.peer_gone());
}

#[test]
fn messages_carry_chains_between_threads() {
    let (mut a, mut b) = Pool::new(&PoolConfig { chunks: 64, ..Default::default() }).unwrap();
    let (mut tx, mut rx) = ring::ring(16).unwrap();
    let reader = thread::spawn(move || {
        let mut out = [0; 4096];
        let mut want = 0;
        while want < MANY / 4 {
            let Some(Message { words, mut chain }) = rx.pop() else {
                b.supply_peer(8);
                thread::yield_now();
                continue;
            };
            assert_eq!(words, [want, want + 1, want + 2, want + 3, want + 4, want + 5]);
            let n = chain.read(&mut b, &mut out);
            assert!(chain.is_empty());
            assert!(out[..n].iter().all(|&x| x == want as u8));
            assert_eq!(n, (want as usize * 37) % 4000);
            want += 1;
        }
        b
    });
    for i in 0..MANY / 4 {
        let data = vec![i as u8; (i as usize * 37) % 4000];
        let mut chain = Chain::default();
        while chain.len() < data.len() {
            let n = chain.len();
            if chain.push_slice(&mut a, &data[n..]) == 0 {
                thread::yield_now();
            }
        }
        let mut message = Message { words: [i, i + 1, i + 2, i + 3, i + 4, i + 5], chain };
        while let Err(back) = tx.push(message) {
            message = back;
            tx.publish();
            thread::yield_now();
        }
        if i % 3 == 0 || i + 1 == MANY / 4 {
            tx.publish();
        }
        // The reader may wait for what is held back here while we wait for its chunks.
        tx.publish();
    }
    let mut b = reader.join().unwrap();
    assert_eq!(a.outstanding(&mut b), 0);
}

#[test]
fn frames_between_threads() {
    let (mut tx, mut rx) = frames::ring(8, 1514).unwrap();
    let writer = thread::spawn(move || {
        for i in 0..MANY {
            let len = (i as usize * 13) % 1515;
            loop {
                if let Some(room) = tx.reserve(len) {
                    room.fill(i as u8);
                    break;
                }
                tx.publish();
                thread::yield_now();
            }
            assert!(tx.commit(len, i));
        }
    });
    let mut want = 0;
    while want < MANY {
        let n = rx.burst(5);
        assert!(n <= 5);
        for i in 0..n {
            let (data, meta) = rx.frame(i);
            assert_eq!((meta, data.len()), (want, (want as usize * 13) % 1515));
            assert!(data.iter().all(|&x| x == want as u8));
            want += 1;
        }
        assert_eq!(rx.frame(n), (&[][..], 0));
        if n == 0 {
            thread::yield_now();
        }
    }
    writer.join().unwrap();
    assert!(rx.peer_gone());
    rx.release();
    assert!(rx.is_empty());
}

#[test]
fn a_frame_is_committed_once_and_within_its_room() {
    let (mut tx, mut rx) = frames::ring(2, 100).unwrap();
    assert!(tx.reserve(101).is_none());
    assert!(!tx.commit(0, 0));
    assert!(tx.reserve(10).is_some());
    assert!(!tx.commit(11, 0));
    assert!(!tx.commit(10, 0), "a refused commit forgets the reservation");
    for i in 0..2 {
        tx.reserve(100).unwrap().fill(7);
        assert!(tx.commit(50, i));
    }
    assert!(tx.reserve(1).is_none());
    assert_eq!((rx.burst(9), tx.pending()), (0, 2));
    assert!(tx.publish());
    assert_eq!((rx.len(), rx.burst(1), rx.frame(0), rx.frame(1)), (2, 1, (&[7; 50][..], 0), (&[][..], 0)));
    assert_eq!((tx.room(), rx.burst(9), tx.room(), rx.frame(0).1), (0, 1, 1, 1));
    rx.release();
    assert_eq!((tx.room(), tx.len(), rx.frame(0)), (2, 0, (&[][..], 0)));
}

#[test]
fn counters_are_read_from_elsewhere() {
    static COUNTERS: Counters<2> = Counters::new();
    thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..1000 {
                COUNTERS.add(0, 3);
            }
            COUNTERS.set(1, 5);
        });
    });
    assert_eq!((COUNTERS.snapshot(), COUNTERS.value(0)), ([3000, 5], 3000));
}

#[derive(Clone, Debug)]
enum Step {
    Push,
    Publish,
    Pop,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![5 => Just(Step::Push), 2 => Just(Step::Publish), 5 => Just(Step::Pop), 1 => Just(Step::Release)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 512 },
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn a_ring_is_a_bounded_queue(order in 0u32..6, steps in proptest::collection::vec(step(), 1..400)) {
        let capacity = 1usize << order;
        let (mut tx, mut rx) = spsc::queue::<u32>(capacity).unwrap();
        let (mut written, mut published) = (VecDeque::new(), VecDeque::new());
        let mut unreleased = 0;
        let mut next = 0;
        for step in steps {
            match step {
                Step::Push => {
                    let holds = written.len() + published.len();
                    match tx.push(next) {
                        Ok(()) => {
                            prop_assert!(holds < capacity);
                            written.push_back(next);
                            next += 1;
                        }
                        // Slots that were read may still be held back, but not all of them for ever.
                        Err(back) => {
                            prop_assert_eq!(back, next);
                            prop_assert!(holds + unreleased >= capacity);
                            prop_assert_eq!(tx.room(), 0);
                        }
                    }
                }
                Step::Publish => {
                    prop_assert_eq!(tx.pending(), written.len());
                    prop_assert_eq!(tx.publish(), !written.is_empty());
                    published.append(&mut written);
                }
                Step::Pop => {
                    let want = published.pop_front();
                    prop_assert_eq!(rx.pop(), want);
                    unreleased = if want.is_some() { unreleased + 1 } else { 0 };
                }
                Step::Release => {
                    rx.release();
                    unreleased = 0;
                    prop_assert_eq!(tx.room(), capacity - written.len() - published.len());
                }
            }
            prop_assert_eq!((rx.len(), rx.is_empty()), (published.len(), published.is_empty()));
        }
    }
}
