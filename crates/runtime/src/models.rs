//! Every order of small cases in which two threads meet, tried by loom: the bell, the mailbox, the hand-over between lanes, and
//! the end of an engine. `RUSTFLAGS="--cfg loom" cargo test -p runtime --lib --target-dir target/loom`.
//!
//! Each model is the protocol as the callers follow it: publish, then ring; or arm, look, and only then sleep. A sleeper for whom
//! there is work and whom nobody has rung would sleep for ever, which is what these tests look for.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use io::Bell;
use loom::model::Builder;
use loom::thread;
use wire::burst::{RxBurst, RxChecksum, RxFrame};

use crate::handover::mesh;
use crate::keeper::Crew;
use crate::mailbox::{Control, Mailbox};

/// As `loom::model`, with at most three preemptions: bugs of this kind need no more, and all orders would take hours.
fn bounded(f: impl Fn() + Sync + Send + 'static) {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

fn bell() -> Arc<Bell> {
    Arc::new(Bell::new().unwrap())
}

fn letter(n: u8) -> Control {
    Control::RemoveAddress(n as usize, IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)))
}

/// Which letters these are.
fn numbers(letters: &[Control]) -> Vec<usize> {
    letters.iter().map(|l| if let Control::RemoveAddress(n, _) = l { *n } else { 0 }).collect()
}

/// Waits for the bell's descriptor, as `poll` does.
fn sleep(bell: &Bell) {
    while !bell.is_rung() {
        thread::yield_now();
    }
}

#[test]
fn a_lane_that_sleeps_hears_of_a_letter() {
    bounded(|| {
        let (mail, bell) = (Arc::new(Mailbox::default()), bell());
        let control_plane = thread::spawn({
            let (mail, bell) = (mail.clone(), bell.clone());
            move || {
                // As `LaneLink::send`.
                mail.send(letter(1));
                bell.ring();
            }
        });
        loop {
            bell.arm();
            if !mail.is_called() {
                sleep(&bell);
            }
            bell.disarm();
            if mail.is_called() {
                assert_eq!(numbers(&mail.take()), [1]);
                break;
            }
        }
        control_plane.join().unwrap();
        assert!(!mail.is_called() && mail.take().is_empty());
    });
}

#[test]
fn letters_come_in_order_and_none_is_left_unannounced() {
    bounded(|| {
        let mail = Arc::new(Mailbox::default());
        let control_plane = thread::spawn({
            let mail = mail.clone();
            move || {
                mail.send(letter(1));
                mail.send(letter(2));
            }
        });
        let mut had = Vec::new();
        for _ in 0..2 {
            if mail.is_called() {
                had.extend(mail.take());
            }
        }
        control_plane.join().unwrap();
        // What is still in the box is announced.
        if had.len() < 2 {
            assert!(mail.is_called(), "{} letters taken, the others unannounced", had.len());
            had.extend(mail.take());
        }
        assert_eq!(numbers(&had), [1, 2]);
    });
}

#[test]
fn two_senders_leave_two_letters() {
    bounded(|| {
        let mail = Arc::new(Mailbox::default());
        let senders = [1, 2].map(|n| {
            let mail = mail.clone();
            thread::spawn(move || mail.send(letter(n)))
        });
        let mut had = if mail.is_called() { mail.take() } else { Vec::new() };
        senders.into_iter().for_each(|s| s.join().unwrap());
        if had.len() < 2 {
            assert!(mail.is_called());
            had.extend(mail.take());
        }
        let mut numbers = numbers(&had);
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2]);
    });
}

/// Frames that one lane hands to another wake it, and are whole when it sees them.
#[test]
fn a_lane_that_sleeps_hears_of_frames_handed_over() {
    bounded(|| {
        let bells = [bell(), bell()];
        let mut lanes = mesh(&bells, 64).unwrap();
        let mut there = lanes.pop().unwrap();
        let mut here = lanes.pop().unwrap();
        let giver = thread::spawn(move || {
            for byte in [1, 2] {
                assert!(here.out.give(1, 3, RxFrame::new(&[byte; 60], RxChecksum::Unknown), true));
                here.out.publish();
            }
            here
        });
        let mut seen = Vec::new();
        while seen.len() < 2 {
            bells[1].arm();
            if there.is_empty() {
                sleep(&bells[1]);
            }
            bells[1].disarm();
            there.take(8, |_, port, frames| {
                for i in 0..frames.len() {
                    let data = frames.frame(i).data;
                    assert_eq!((port, data.len()), (3, 60));
                    assert!(frames.chosen(i) && data.iter().all(|b| *b == data[0]));
                    seen.push(data[0]);
                }
            });
        }
        assert_eq!(seen, [1, 2]);
        giver.join().unwrap();
    });
}

/// `ring_if_sleeping` wakes once for a sleep, whoever of two rings.
#[test]
fn a_sleeper_is_rung_once_by_two() {
    bounded(|| {
        let bell = bell();
        bell.arm();
        let ringers = [(); 2].map(|()| {
            let bell = bell.clone();
            thread::spawn(move || bell.ring_if_sleeping() as u32)
        });
        let rang: u32 = ringers.into_iter().map(|r| r.join().unwrap()).sum();
        assert!(rang == 1 && bell.is_rung());
    });
}

/// The end of an engine reaches a lane's thread between any two of its steps.
#[test]
fn a_lanes_thread_hears_of_the_end() {
    bounded(|| {
        let (crew, bells) = (Arc::new(Crew::new()), [bell()]);
        crew.start(|| {
            let (crew, bell) = (crew.clone(), bells[0].clone());
            Ok::<_, ()>(thread::spawn(move || {
                // As `Keeper::turn` and `Lane::sleep`, where nothing comes.
                while !crew.is_over() {
                    bell.arm();
                    sleep(&bell);
                    bell.disarm();
                }
                crew.finished();
                while !crew.all_finished() {
                    thread::yield_now();
                }
            }))
        })
        .unwrap();
        crew.end(&bells).into_iter().for_each(|t| t.join().unwrap());
        assert!(crew.all_finished());
    });
}

/// A lane that is handed to a thread while the engine ends is either joined or never started.
#[test]
fn no_thread_is_started_behind_the_end() {
    bounded(|| {
        let (crew, bells) = (Arc::new(Crew::new()), [bell()]);
        let application = thread::spawn({
            let (crew, bell) = (crew.clone(), bells[0].clone());
            move || {
                let mut started = false;
                let result = crew.start(|| {
                    started = true;
                    let (crew, bell) = (crew.clone(), bell.clone());
                    Ok::<_, ()>(thread::spawn(move || {
                        while !crew.is_over() {
                            bell.arm();
                            sleep(&bell);
                            bell.disarm();
                        }
                        crew.finished();
                    }))
                });
                result.unwrap();
                started
            }
        });
        let mut joined = crew.end(&bells);
        let started = application.join().unwrap();
        assert_eq!(joined.len(), started as usize);
        joined.drain(..).for_each(|t| t.join().unwrap());
        assert!(crew.all_finished());
        crew.start(|| -> Result<_, ()> { panic!("started behind the end") }).unwrap();
    });
}
