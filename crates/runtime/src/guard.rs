//! The `guarded` model: the application runs the turns, and a guard thread takes them over whenever it has not called in for a
//! while, so that ACKs and retransmissions are not late.
//!
//! The guard is in one of three states. It *watches*: looks every guard time whether a turn was run since. It *serves*: nobody
//! had called in, so it runs the turns itself, and sleeps on the lane's descriptors between them, the turn free meanwhile; the
//! application takes it back by calling in, and rings. It *dozes*: the application waits in its own sleep, which watches the
//! same descriptors; it rings when it is back. A dozing guard still looks now and then, for an application that was stopped
//! in its sleep.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use io::Bell;
use mem::turn::{Held, Look, Turn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::lane::{Lane, Watched, Work};
use client::Clock;
use client::{LaneStats, add};

/// Looks that must find the same sleep before it dozes: so the application rings once in so many guard times at most.
const QUIET: u32 = 2;
/// Guard times between the looks of one that dozes.
const DOZE: u32 = 16;

/// A lane that the application and its guard run by turns.
pub(crate) struct Guarded {
    turn: Turn<Lane>,
    /// Wakes the guard.
    bell: Bell,
    /// What the lane waits for: for the guard, and for the application.
    watches: [Arc<OwnedFd>; 2],
    /// The lane's own.
    lane_bell: Arc<Bell>,
    stats: Arc<LaneStats>,
    after: Duration,
    /// When the application's sleep should be over, µs.
    due: AtomicU64,
}

/// What became of a sleep of the application's.
pub(crate) enum Slept {
    /// There was work already, or the wait was to end.
    No,
    /// It slept, and a turn brought this; a signal handler may have ended the sleep.
    Then { work: Work, signal: bool },
    /// Somebody else had the turn, at once or after the sleep.
    Taken { signal: bool },
}

/// Whether one of these became ready.
fn wait(fds: &mut [PollFd<'_>], us: Option<u64>) -> Result<bool, Errno> {
    let time = us.map(|us| Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 });
    poll(fds, time.as_ref()).map(|n| n > 0)
}

/// A turn of the guard's: how long it may sleep then, µs, for ever where there is nothing to wait for; `None` where it may not.
fn serve_once(lane: &mut Lane, woken: bool) -> Option<Option<u64>> {
    if !lane.turn().is_idle() {
        return None;
    }
    if woken {
        lane.look_around();
    }
    let wait_us = lane.prepare(None);
    match wait_us {
        Some(_) => lane.watched = Watched::Guard,
        None => lane.awake(),
    }
    wait_us
}

impl Guarded {
    pub fn new(mut lane: Lane, after: Duration) -> std::io::Result<Guarded> {
        let watches = [lane.watch()?, lane.watch()?];
        let (lane_bell, stats) = (lane.bell.clone(), lane.stats.clone());
        Ok(Guarded {
            turn: Turn::new(lane),
            bell: Bell::new()?,
            watches,
            lane_bell,
            stats,
            after,
            due: AtomicU64::new(u64::MAX),
        })
    }

    /// The application takes the turn, which it gives back by dropping it. Where the guard has it, that one is told.
    pub fn take(&self) -> Option<Held<'_, Lane>> {
        let Some(mut held) = self.turn.take() else {
            self.turn.want();
            return None;
        };
        held.with(|lane| {
            if lane.watched != Watched::No {
                // A guard that sleeps knows nothing of the timers that we are about to set.
                if lane.watched == Watched::Guard {
                    self.bell.ring();
                }
                lane.awake();
            }
        });
        Some(held)
    }

    /// Jobs were handed over while the guard had the turn: it may have looked for them already.
    pub fn tell(&self) {
        self.lane_bell.ring_if_sleeping();
    }

    /// The application sleeps until something comes, or `own` is rung; at most `limit`. `stop` is asked once `own` is armed.
    pub fn sleep(&self, own: &Bell, limit: Option<Duration>, mut stop: impl FnMut() -> bool) -> Slept {
        let Some(mut held) = self.take() else { return Slept::Taken { signal: false } };
        own.arm();
        let now = Clock::Monotonic.now();
        let ready = held.with(|lane| {
            let wait_us = if stop() { None } else { lane.prepare(limit) };
            match wait_us {
                Some(_) => lane.watched = Watched::App,
                None => lane.awake(),
            }
            wait_us
        });
        let Some(wait_us) = ready else {
            own.disarm();
            return Slept::No;
        };
        self.due.store(wait_us.map_or(u64::MAX, |us| now.plus_micros(us).micros()), Ordering::Relaxed);
        held.go_away();
        let mut fds = [PollFd::new(&*self.watches[1], PollFlags::IN), PollFd::new(own, PollFlags::IN)];
        let signal = wait(&mut fds, wait_us) == Err(Errno::INTR);
        let watched = fds[0].revents().contains(PollFlags::IN);
        if self.turn.come_back() {
            self.bell.ring();
        }
        own.disarm();
        let Some(mut held) = self.take() else { return Slept::Taken { signal } };
        held.with(|lane| {
            lane.slept(now);
            let work = lane.turn();
            if work.is_idle() && watched {
                lane.look_around();
            }
            Slept::Then { work, signal }
        })
    }

    /// The guard's life, until `stop`.
    pub fn guard(&self, stop: &impl Fn() -> bool) {
        let mut seen = self.turn.look();
        let mut quiet = 0;
        while !stop() {
            self.pause(1);
            let look = self.turn.look();
            if look != seen {
                (seen, quiet) = (look, 0);
            } else if look.is_held() {
                // It was interrupted in the middle of its turn, which nobody else can end.
                quiet = 0;
            } else if self.turn.is_away() {
                quiet += 1;
                if quiet < QUIET {
                    continue;
                }
                quiet = 0;
                seen = self.doze(seen, stop);
            } else {
                seen = self.serve(seen, stop);
            }
        }
    }

    /// Whether the bell was rung within so many guard times.
    fn pause(&self, times: u32) -> bool {
        let us = self.after.as_micros() as u64 * times as u64;
        let rung = wait(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(us)).unwrap_or(false);
        add(&self.stats.guard_looks, 1);
        if rung {
            self.bell.disarm();
        }
        rung
    }

    /// Leaves the lane to the application's sleep, as long as that lasts. What was seen last.
    fn doze(&self, mut seen: Look, stop: &impl Fn() -> bool) -> Look {
        if !self.turn.doze() {
            return self.turn.look();
        }
        while !self.pause(DOZE) && !stop() {
            let look = self.turn.look();
            if look != seen {
                seen = look;
                continue;
            }
            if !self.late() {
                continue;
            }
            if self.pause(1) {
                break;
            }
            // There is work, and nobody comes: the application was stopped in its sleep.
            if self.turn.look() == seen && self.late() {
                self.turn.stir();
                return self.serve(seen, stop);
            }
        }
        self.turn.stir();
        self.turn.look()
    }

    /// Whether whoever sleeps should be awake.
    fn late(&self) -> bool {
        let over = Clock::Monotonic.now().micros() > self.due.load(Ordering::Relaxed);
        over || wait(&mut [PollFd::new(&*self.watches[0], PollFlags::IN)], Some(0)).unwrap_or(false)
    }

    /// Runs the turns until the application calls in. What was seen last.
    fn serve(&self, mut seen: Look, stop: &impl Fn() -> bool) -> Look {
        add(&self.stats.takeovers, 1);
        self.turn.was_wanted();
        let mut woken = false;
        while !stop() {
            let Some(mut held) = self.turn.take_if(seen) else { return self.turn.look() };
            let wait_us = held.with(|lane| {
                if lane.watched != Watched::No {
                    lane.awake();
                }
                lane.alone = true;
                let wait_us = serve_once(lane, woken);
                lane.alone = false;
                wait_us
            });
            seen = held.leave();
            woken = false;
            if let Some(wait_us) = wait_us {
                let mut fds = [PollFd::new(&*self.watches[0], PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
                // A signal is a wake-up like any other.
                let _ = wait(&mut fds, wait_us);
                woken = fds[0].revents().contains(PollFlags::IN);
                if fds[1].revents().contains(PollFlags::IN) {
                    self.bell.disarm();
                }
            } else if self.turn.was_wanted() {
                return self.turn.look();
            }
        }
        seen
    }

    /// The guard takes the turn for good, while `f` lasts.
    pub fn last(&self, f: impl FnOnce(&mut Lane)) {
        for _ in 0..1000 {
            if let Some(mut held) = self.take() {
                return held.with(f);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
