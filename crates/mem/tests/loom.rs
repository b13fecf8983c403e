//! Every interleaving of small cases: `RUSTFLAGS="--cfg loom" cargo test -p mem --test loom --release`.
#![cfg(loom)]

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;
use mem::ring::{self, Message};
use mem::spsc;
use mem::turn::Turn;
use mem::{Chain, Pool, PoolConfig, Side, frames};

/// As `loom::model`, for the larger cases: with at most three preemptions, which is what bugs of this kind need.
fn bounded(f: impl Fn() + Sync + Send + 'static) {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

fn pool(chunks: u32) -> (Side, Side) {
    Pool::new(&PoolConfig { chunks, ..Default::default() }).unwrap()
}

fn chain(side: &mut Side, byte: u8) -> Option<Chain> {
    let mut c = Chain::default();
    (c.push_slice(side, &[byte; 3]) == 3).then_some(c)
}

fn take(c: Chain, side: &mut Side) -> u8 {
    let byte = c.first_slice(side)[0];
    assert_eq!(c.first_slice(side), [byte; 3]);
    c.free(side);
    byte
}

#[test]
fn a_full_ring_wraps_in_order() {
    bounded(|| {
        let (mut tx, mut rx) = spsc::queue::<u64>(2).unwrap();
        let producer = thread::spawn(move || {
            for i in 0..4u64 {
                while tx.push(i).is_err() {
                    thread::yield_now();
                }
                tx.publish();
            }
        });
        let mut want = 0;
        while want < 4 {
            match rx.pop() {
                Some(got) => {
                    assert_eq!(got, want);
                    want += 1;
                }
                None => thread::yield_now(),
            }
        }
        assert_eq!(rx.pop(), None);
        producer.join().unwrap();
    });
}

#[test]
fn a_batch_is_seen_whole() {
    loom::model(|| {
        let (mut tx, mut rx) = spsc::queue::<u64>(4).unwrap();
        let producer = thread::spawn(move || {
            tx.push(1).unwrap();
            tx.push(2).unwrap();
            tx.publish();
            tx
        });
        let n = rx.len();
        assert!(n == 0 || n == 2, "{n}");
        if n == 2 {
            assert_eq!((rx.pop(), rx.pop(), rx.pop()), (Some(1), Some(2), None));
        }
        let tx = producer.join().unwrap();
        assert!(!rx.peer_gone() && !tx.peer_gone());
        drop(rx);
        assert!(tx.peer_gone());
    });
}

#[test]
fn what_was_written_survives_its_producer() {
    loom::model(|| {
        let (mut tx, mut rx) = spsc::queue::<u64>(2).unwrap();
        let producer = thread::spawn(move || {
            tx.push(7).unwrap();
            // Published by the drop.
        });
        let mut got = Vec::new();
        loop {
            let last = rx.peer_gone();
            got.extend(std::iter::from_fn(|| rx.pop()));
            if last {
                break;
            }
            thread::yield_now();
        }
        assert_eq!(got, [7]);
        producer.join().unwrap();
    });
}

#[test]
fn a_sleeper_is_woken() {
    // The protocol in the ring's documentation: either the consumer sees the item or the producer sees the sleeper.
    loom::model(|| {
        let (mut tx, rx) = spsc::queue::<u64>(2).unwrap();
        let sleeping = Arc::new(AtomicBool::new(false));
        let flag = sleeping.clone();
        let producer = thread::spawn(move || {
            tx.push(1).unwrap();
            tx.publish();
            fence(Ordering::SeqCst);
            let rings = flag.load(Ordering::Relaxed);
            (rings, tx)
        });
        sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let sleeps = rx.is_empty();
        let (rings, _tx) = producer.join().unwrap();
        assert!(!sleeps || rings, "asleep with an item in the ring and no bell");
    });
}

#[test]
fn an_offer_is_taken_whole_and_once() {
    loom::model(|| {
        let (mut tx, mut rx) = spsc::queue::<u64>(4).unwrap();
        let producer = thread::spawn(move || {
            tx.push(1).unwrap();
            assert!(tx.offer());
            tx.push(2).unwrap();
            let told = tx.offer();
            tx.push(3).unwrap();
            tx.publish();
            (told, tx)
        });
        let mut got = Vec::new();
        if rx.offer().is_some() {
            rx.take_offer();
        }
        let early = rx.len();
        got.extend(std::iter::from_fn(|| rx.pop()));
        assert!(got.len() >= early && got == [1, 2, 3][..got.len()], "{got:?} after {early}");
        let (_told, tx) = producer.join().unwrap();
        assert_eq!(rx.offer(), None);
        got.extend(std::iter::from_fn(|| rx.pop()));
        assert_eq!((got, rx.len(), tx.len()), (vec![1, 2, 3], 0, 0));
    });
}

#[test]
fn a_chain_changes_hands_and_its_chunk_comes_back() {
    loom::model(|| {
        // One chunk in all: the second chain can only be made of the first one's memory.
        let (mut a, mut b) = pool(1);
        let (mut tx, mut rx) = ring::ring(2).unwrap();
        let other = thread::spawn(move || {
            for want in [1, 2] {
                let got = loop {
                    match rx.pop() {
                        Some(message) => break message,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(got.words[0], want as u64);
                assert_eq!(take(got.chain, &mut b), want);
                b.supply_peer(1);
            }
            b
        });
        for byte in [1, 2] {
            let chain = loop {
                match chain(&mut a, byte) {
                    Some(chain) => break chain,
                    None => thread::yield_now(),
                }
            };
            tx.push(Message { words: [byte as u64, 0, 0, 0, 0, 0], chain }).unwrap();
            tx.publish();
        }
        let mut b = other.join().unwrap();
        assert_eq!(a.outstanding(&mut b), 0);
    });
}

#[test]
fn both_sides_help_themselves_to_fresh_chunks() {
    loom::model(|| {
        let (mut a, mut b) = pool(2);
        let other = thread::spawn(move || (chain(&mut b, 2), b));
        let mine = chain(&mut a, 1);
        let (theirs, mut b) = other.join().unwrap();
        // One chunk each: there are two, and a helping is one here.
        assert_eq!(take(mine.unwrap(), &mut b), 1);
        assert_eq!(take(theirs.unwrap(), &mut a), 2);
        assert_eq!(a.outstanding(&mut b), 0);
    });
}

#[test]
fn surplus_passes_both_ways_at_once() {
    bounded(|| {
        let (mut a, mut b) = pool(4);
        let from_b: Vec<Chain> = (0..4).map(|i| chain(&mut b, i).unwrap()).collect();
        let mut from_b = from_b.into_iter();
        let (one, two) = (from_b.next().unwrap(), from_b.next().unwrap());
        let other = thread::spawn(move || {
            take(one, &mut b);
            take(two, &mut b);
            b.supply_peer(2);
            b.supply_peer(2);
            let again = chain(&mut b, 9);
            (again, b)
        });
        for c in from_b {
            take(c, &mut a);
        }
        a.supply_peer(2);
        let again = chain(&mut a, 8);
        let (theirs, mut b) = other.join().unwrap();
        for c in [again, theirs].into_iter().flatten() {
            take(c, &mut a);
        }
        assert_eq!(a.outstanding(&mut b), 0);
    });
}

#[test]
fn frames_wrap_in_order() {
    loom::model(|| {
        let (mut tx, mut rx) = frames::ring(2, 8).unwrap();
        let producer = thread::spawn(move || {
            for i in 0..3u8 {
                loop {
                    if let Some(room) = tx.reserve(2) {
                        room.copy_from_slice(&[i, i]);
                        break;
                    }
                    thread::yield_now();
                }
                assert!(tx.commit(2, i as u64));
                tx.publish();
            }
        });
        let mut want = 0u8;
        while want < 3 {
            let n = rx.burst(2);
            for i in 0..n {
                assert_eq!(rx.frame(i), (&[want, want][..], want as u64));
                want += 1;
            }
            rx.release();
            if n == 0 {
                thread::yield_now();
            }
        }
        producer.join().unwrap();
    });
}

/// Whoever has the turn has the value alone, and sees what the one before did.
#[test]
fn turns_do_not_overlap() {
    loom::model(|| {
        let turn = Arc::new(Turn::new(0));
        let other = turn.clone();
        // Loom sees two threads in the value at once, or one that reads behind the other's back.
        let guard = thread::spawn(move || {
            let before = other.look();
            other.take_if(before).map(|mut held| held.with(|v| *v += 1)).is_some()
        });
        let mut mine = 0;
        for _ in 0..2 {
            if let Some(mut held) = turn.take() {
                held.with(|v| *v += 1);
                mine += 1;
            }
        }
        let theirs = guard.join().unwrap() as i32;
        assert_eq!(turn.take().unwrap().with(|v| *v), mine + theirs);
        assert!(mine + theirs >= 1);
    });
}

/// The guard takes over in the middle of a call: what the application has handed over is done once, by either, or the
/// application is told that somebody else is at it and rings.
#[test]
fn a_job_is_done_whoever_has_the_turn() {
    bounded(|| {
        let (mut tx, rx) = spsc::queue::<u64>(2).unwrap();
        let turn = Arc::new(Turn::new((rx, 0)));
        let (armed, rung) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (turn2, armed2, rung2) = (turn.clone(), armed.clone(), rung.clone());
        let guard = thread::spawn(move || {
            let seen = turn2.look();
            // The application has not called in, as far as this shows.
            let Some(mut held) = turn2.take_if(seen) else { return };
            held.with(|(rx, done)| *done += std::iter::from_fn(|| rx.pop()).count());
            // About to sleep: says so, and looks once more.
            armed2.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let asleep = held.with(|(rx, _)| rx.is_empty());
            drop(held);
            if !asleep || rung2.load(Ordering::Acquire) {
                let Some(mut held) = turn2.take() else { return };
                held.with(|(rx, done)| *done += std::iter::from_fn(|| rx.pop()).count());
            }
        });
        tx.push(7).unwrap();
        tx.publish();
        let mine = match turn.take() {
            Some(mut held) => {
                held.with(|(rx, done)| *done += std::iter::from_fn(|| rx.pop()).count());
                true
            }
            None => {
                fence(Ordering::SeqCst);
                if armed.load(Ordering::Relaxed) {
                    rung.store(true, Ordering::Release);
                }
                false
            }
        };
        guard.join().unwrap();
        let rung = rung.load(Ordering::Relaxed);
        let done = turn.take().unwrap().with(|(_, done)| *done);
        assert!(done == 1 || (done == 0 && rung && !mine), "{done} {rung} {mine}");
    });
}

/// What the guard says while the application is about to sleep: it is seen, or rung for.
#[test]
fn an_event_of_the_guards_is_not_slept_through() {
    bounded(|| {
        let (tx, rx) = spsc::queue::<u64>(2).unwrap();
        let turn = Arc::new(Turn::new(tx));
        let armed = Arc::new(AtomicBool::new(false));
        let (turn2, armed2) = (turn.clone(), armed.clone());
        let guard = thread::spawn(move || {
            let Some(mut held) = turn2.take() else { return (false, false) };
            held.with(|tx| {
                tx.push(7).unwrap();
                tx.publish();
            });
            fence(Ordering::SeqCst);
            (true, armed2.load(Ordering::Relaxed))
        });
        // The last look found nothing; the turn is taken to arm what wakes us.
        let sleeps = turn.take().map(|held| {
            armed.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let empty = rx.is_empty();
            if empty {
                held.go_away();
            }
            empty
        });
        let (said, rung) = guard.join().unwrap();
        assert!(sleeps != Some(true) || !said || rung, "asleep with an event in the ring and no bell");
    });
}

/// An application that comes back while the guard dozes off: it stays awake, or is rung for.
#[test]
fn nobody_watches_is_never_so() {
    loom::model(|| {
        let turn = Arc::new(Turn::new(()));
        turn.take().unwrap().go_away();
        let other = turn.clone();
        let guard = thread::spawn(move || other.is_away() && other.doze());
        let rung = turn.come_back();
        let dozed = guard.join().unwrap();
        assert!(!dozed || rung, "the guard dozes, and nobody has rung");
        assert!(!turn.is_away());
    });
}

/// A guard that finds the application away finds what it has said before it went, without taking the turn.
#[test]
fn away_means_said() {
    loom::model(|| {
        let (turn, due) = (Arc::new(Turn::new(())), Arc::new(AtomicBool::new(false)));
        let (turn2, due2) = (turn.clone(), due.clone());
        let guard = thread::spawn(move || !turn2.is_away() || due2.load(Ordering::Relaxed));
        let held = turn.take().unwrap();
        due.store(true, Ordering::Relaxed);
        held.go_away();
        assert!(guard.join().unwrap());
    });
}
