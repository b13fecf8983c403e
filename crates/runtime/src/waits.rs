//! How the ends of this process's lanes wait, by model: who runs the turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use client::{Slept, Snapshot, Wait, doze};
use io::Bell;

use crate::guard::{self, Guarded};
use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::mailbox::{Control, Mailbox};

/// How long whoever else runs the lane is given for something that it does not say.
const SHORT: Duration = Duration::from_micros(100);
/// How long a lane's thread, which has to wake up first, is given for a question.
const RELIEF: Duration = Duration::from_millis(2);

/// This thread takes the turns, inside its own waits (`inline`); who takes over when it goes.
pub(crate) struct Inline {
    /// There until it is run by another thread.
    lane: Option<Box<Lane>>,
    keeper: Arc<Keeper>,
    bell: Arc<Bell>,
}

impl Inline {
    pub fn new(lane: Lane, keeper: Arc<Keeper>) -> Inline {
        let bell = lane.app_bell.clone();
        Inline { lane: Some(Box::new(lane)), keeper, bell }
    }

    pub fn lane(&mut self) -> &mut Lane {
        self.lane.as_mut().expect("it is this thread's")
    }
}

impl Wait for Inline {
    fn advance(&mut self, _handed: bool) -> bool {
        !self.lane().turn().is_idle()
    }

    fn hand_over(&mut self) {}

    fn is_beside(&self) -> bool {
        false
    }

    fn sleep(&mut self, limit: Option<Duration>, ready: &mut dyn FnMut() -> bool) -> Slept {
        let bell = self.bell.clone();
        bell.arm();
        let signal = !ready() && self.lane().sleep(Some(&bell), limit);
        bell.disarm();
        Slept { work: !self.lane().turn().is_idle(), signal }
    }

    fn pause(&mut self, _ready: &mut dyn FnMut() -> bool) {}

    fn is_over(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.is_over())
    }

    fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    fn drained(&mut self, limit: Duration) -> bool {
        let drained = self.lane().drained();
        if !drained {
            self.lane().sleep(None, Some(limit));
        }
        drained
    }

    fn snapshot(&mut self) -> Option<Snapshot> {
        Some(self.lane().snapshot())
    }

    fn entrust(mut self: Box<Self>) -> Box<dyn Wait> {
        if !self.keeper.wants() || self.is_over() {
            return self;
        }
        let Some(lane) = self.lane.take() else { return self };
        let (index, paired) = (lane.index, Paired::of(&lane));
        if let Err(error) = self.keeper.run(*lane) {
            tracing::warn!("lane {index}: {error}");
        }
        Box::new(paired)
    }

    fn finish(&mut self) {
        if let Some(lane) = &mut self.lane {
            lane.finish(|| ());
        }
    }
}

/// Another thread takes the turns, until it has ended (`paired`).
pub(crate) struct Paired {
    lane: Arc<Bell>,
    bell: Arc<Bell>,
    mail: Weak<Mailbox>,
    ended: Arc<AtomicBool>,
}

impl Paired {
    pub fn of(lane: &Lane) -> Paired {
        let (bell, mail) = (lane.app_bell.clone(), Arc::downgrade(&lane.mail));
        Paired { lane: lane.bell.clone(), bell, mail, ended: lane.over.clone() }
    }

    /// Whether the lane says that everything has left and is over.
    fn asked(&self) -> bool {
        let (to, from) = std::sync::mpsc::channel();
        // A lane that is gone has nothing left.
        let Some(mail) = self.mail.upgrade() else { return true };
        mail.send(Control::Drained(to));
        self.lane.ring();
        from.recv_timeout(RELIEF).unwrap_or(false)
    }
}

impl Wait for Paired {
    fn advance(&mut self, handed: bool) -> bool {
        if handed {
            self.hand_over();
        }
        false
    }

    fn hand_over(&mut self) {
        self.lane.ring_if_sleeping();
    }

    fn is_beside(&self) -> bool {
        true
    }

    fn sleep(&mut self, limit: Option<Duration>, ready: &mut dyn FnMut() -> bool) -> Slept {
        let signal = doze(&self.bell, limit, &mut || ready() || self.ended.load(Ordering::Acquire));
        Slept { work: false, signal }
    }

    fn pause(&mut self, ready: &mut dyn FnMut() -> bool) {
        doze(&self.bell, Some(SHORT), ready);
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    fn drained(&mut self, limit: Duration) -> bool {
        let drained = self.asked();
        if !drained {
            doze(&self.bell, Some(limit), &mut || false);
        }
        drained
    }

    fn entrust(self: Box<Self>) -> Box<dyn Wait> {
        self
    }

    fn finish(&mut self) {}
}

/// This thread takes the turns, or its guard when it does not call in, until that one has ended (`guarded`).
pub(crate) struct ByTurns {
    lane: Arc<Guarded>,
    bell: Arc<Bell>,
    ended: Arc<AtomicBool>,
}

impl ByTurns {
    pub fn new(lane: Arc<Guarded>, bell: Arc<Bell>, ended: Arc<AtomicBool>) -> ByTurns {
        ByTurns { lane, bell, ended }
    }
}

impl Wait for ByTurns {
    fn advance(&mut self, handed: bool) -> bool {
        if let Some(mut held) = self.lane.take() {
            return !held.with(Lane::turn).is_idle();
        }
        if handed {
            self.hand_over();
        }
        false
    }

    fn hand_over(&mut self) {
        self.lane.tell();
    }

    fn is_beside(&self) -> bool {
        true
    }

    fn sleep(&mut self, limit: Option<Duration>, ready: &mut dyn FnMut() -> bool) -> Slept {
        // What the guard has said since the last look came without a ring.
        match self.lane.sleep(&self.bell, limit, &mut *ready) {
            guard::Slept::No => Slept::default(),
            guard::Slept::Then { work, signal } => Slept { work: !work.is_idle(), signal },
            // The guard is at it, and leaves it to us soon.
            guard::Slept::Taken { signal } => {
                let soon = &mut || signal || ready() || self.ended.load(Ordering::Acquire);
                Slept { work: false, signal: doze(&self.bell, Some(SHORT), soon) || signal }
            }
        }
    }

    fn pause(&mut self, ready: &mut dyn FnMut() -> bool) {
        doze(&self.bell, Some(SHORT), ready);
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    fn drained(&mut self, limit: Duration) -> bool {
        let drained = self.lane.take().is_some_and(|mut held| held.with(|lane| lane.drained()));
        if !drained && let guard::Slept::Taken { .. } = self.lane.sleep(&self.bell, Some(limit), || false) {
            std::thread::yield_now();
        }
        drained
    }

    fn snapshot(&mut self) -> Option<Snapshot> {
        self.lane.take().map(|mut held| held.with(|lane| lane.snapshot()))
    }

    fn entrust(self: Box<Self>) -> Box<dyn Wait> {
        self
    }

    fn finish(&mut self) {}
}
