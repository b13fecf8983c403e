//! Who is woken when: the wheel, and before it a queue for the young.
//!
//! Most connections end within a few round trips, and none of the times that they wait for comes. So a new one is not put on
//! the wheel for a time beyond [`YOUTH`]: it stands in a queue, in the order of birth, out of which it comes at that age, and
//! is put on the wheel then if it still lives. An earlier time goes to the wheel at once. Setting and clearing the timers of a
//! short connection costs nothing so, and nobody is woken late.

use core::time::Duration;
use std::collections::VecDeque;

use wire::Instant;

use crate::schedule::queues::{Entry, Queues};
use crate::schedule::wheel::Wheel;

/// At this age a connection is put on the wheel.
const YOUTH: Duration = Duration::from_millis(8);

/// Room for the young of a busy lane: a million a second.
const ROOM: usize = 8192;

struct Young {
    entry: Entry,
    /// When it is woken.
    at: Instant,
}

/// When a connection is woken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alarm {
    /// At the latest; `FAR`: nobody wakes it.
    at: Instant,
    /// The wheel may have it.
    on_wheel: bool,
}

impl Alarm {
    /// Nobody wakes it.
    pub const NONE: Alarm = Alarm { at: Instant::FAR, on_wheel: false };
    /// The same; whatever the wheel still has comes to nothing.
    pub const PASSED: Alarm = Alarm { at: Instant::FAR, on_wheel: true };

    /// It has come.
    pub fn pass(&mut self) {
        self.at = Instant::FAR;
    }
}

/// The timers of all connections.
pub(crate) struct Alarms {
    wheel: Wheel,
    young: VecDeque<Young>,
}

impl Alarms {
    pub fn new(now: Instant) -> Alarms {
        Alarms { wheel: Wheel::new(now), young: VecDeque::with_capacity(ROOM) }
    }

    /// A connection begins.
    #[inline(always)]
    pub fn born(&mut self, now: Instant, entry: Entry) -> Alarm {
        let at = now + YOUTH;
        self.young.push_back(Young { entry, at });
        Alarm { at, on_wheel: false }
    }

    /// A connection must be woken at `deadline`, at the latest.
    #[inline(always)]
    pub fn set(&mut self, id: u32, deadline: Instant, alarm: &mut Alarm) {
        if deadline < alarm.at {
            *alarm = Alarm { at: deadline, on_wheel: true };
            self.wheel.schedule(id, deadline);
        }
    }

    /// A connection that is parked must be woken at `at`.
    pub fn wake(&mut self, id: u32, at: Instant) {
        self.wheel.schedule(id, at);
    }

    /// A connection is over.
    #[inline(always)]
    pub fn cancel(&mut self, id: u32, alarm: Alarm) {
        if alarm.on_wheel {
            self.wheel.cancel(id);
        }
    }

    /// For checks.
    pub fn wheel(&self) -> &Wheel {
        &self.wheel
    }

    /// The numbers that are woken now.
    pub fn expire(&mut self, now: Instant, queues: &Queues, out: &mut Vec<u32>) {
        self.wheel.expire(now, out);
        while let Some(Young { entry, .. }) = self.young.pop_front_if(|young| young.at <= now) {
            if queues.is_current(entry) {
                out.push(entry.id);
            }
        }
    }

    /// Who is woken by age, and when, for checks.
    pub fn each_young(&self, queues: &Queues, mut f: impl FnMut(u32, Instant)) {
        let current = self.young.iter().filter(|young| queues.is_current(young.entry));
        current.for_each(|young| f(young.entry.id, young.at));
    }

    /// A time that is not later than the first that is due.
    pub fn next(&self) -> Option<Instant> {
        [self.wheel.next(), self.young.front().map(|young| young.at)].into_iter().flatten().min()
    }
}
