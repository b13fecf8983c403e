//! Threads that run lanes: those of the `paired` model, the guards of `guarded`, and those of lanes whose application has gone. A lane must go on as long as any
//! other does: frames of their connections arrive on its queue, and are handed over.

use std::sync::atomic::AtomicBool as Flag;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use io::Bell;

use crate::cores::pin;
use crate::error::Error;
use crate::guard::Guarded;
use crate::lane::Lane;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::sys::{short_slice, spawn};
use client::Clock;
use client::{Patience, Then};

/// How long lanes that end are waited for without a sign of life: how long they may take for what is open, they know themselves.
const DEAD: Duration = Duration::from_secs(2);

/// The threads that an engine has started, and what they know of its end.
pub(crate) struct Crew<T> {
    /// The engine ends.
    stop: AtomicBool,
    /// Threads whose lane has something to finish.
    unfinished: AtomicUsize,
    /// Signs of life of threads that finish something.
    beats: AtomicUsize,
    threads: Mutex<Vec<T>>,
}

/// Waits for a crew's threads.
struct Watch {
    beats: usize,
    since: Instant,
}

impl<T> Crew<T> {
    pub fn new() -> Crew<T> {
        Crew {
            stop: AtomicBool::new(false),
            unfinished: AtomicUsize::new(0),
            beats: AtomicUsize::new(0),
            threads: Mutex::new(Vec::new()),
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<T>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread, unless the engine ends already: none is started behind [`Crew::end`].
    pub fn start<E>(&self, start: impl FnOnce() -> Result<T, E>) -> Result<(), E> {
        let mut threads = self.threads();
        if self.is_over() {
            return Ok(());
        }
        threads.push(start()?);
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the engine ends.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A thread's lane has nothing to finish any more.
    pub fn finished(&self) {
        self.unfinished.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether no lane has.
    pub fn all_finished(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) == 0
    }

    /// A thread is at work on what its lane has to finish.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    fn watch(&self) -> Watch {
        Watch { beats: self.beats.load(Ordering::Relaxed), since: Instant::now() }
    }

    /// Whether lanes have something to finish, and one has shown since that it is at it.
    fn goes_on(&self, watch: &mut Watch) -> bool {
        let beats = self.beats.load(Ordering::Relaxed);
        if beats != watch.beats {
            *watch = Watch { beats, since: Instant::now() };
        }
        !self.all_finished() && watch.since.elapsed() < DEAD
    }

    /// Tells the threads, which the bells wake, that the engine ends; all that were ever started, to be joined.
    pub fn end(&self, bells: &[Arc<Bell>]) -> Vec<T> {
        let threads = {
            let mut threads = self.threads();
            self.stop.store(true, Ordering::Relaxed);
            std::mem::take(&mut *threads)
        };
        for bell in bells {
            bell.ring();
        }
        threads
    }
}

/// How an engine's lanes run on threads of their own.
pub(crate) struct Keeper {
    crew: Crew<JoinHandle<()>>,
    /// The process ends, and lane threads with it: they say nothing to the applications, which may be about to end too.
    exiting: AtomicBool,
    /// Of the lanes, by number.
    bells: Vec<Arc<Bell>>,
    cores: Vec<usize>,
    /// How long a lane looks at most before it sleeps, µs.
    spin_us: u32,
    /// Lanes never sleep.
    busy: bool,
}

/// A thread's part of what a crew has to finish: done when it is dropped, by a panic too.
struct Duty(Arc<Keeper>);

impl Drop for Duty {
    fn drop(&mut self) {
        self.0.crew.finished();
    }
}

/// Tells the application that its lane's thread is over, however it ended.
struct End(Arc<Flag>, Arc<Bell>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.ring();
    }
}

impl Keeper {
    pub fn new(bells: Vec<Arc<Bell>>, cores: Vec<usize>, spin_us: u32, busy: bool) -> Keeper {
        Keeper { crew: Crew::new(), exiting: AtomicBool::new(false), bells, cores, spin_us, busy }
    }

    /// Whether a lane must outlive its application.
    pub fn wants(&self) -> bool {
        self.bells.len() > 1 && !self.crew.is_over()
    }

    /// Runs a lane until the engine ends, or the lane is over; its flag is raised then.
    pub fn run(self: &Arc<Self>, lane: Lane) -> Result<(), Error> {
        let (keeper, end) = (self.clone(), End(lane.over.clone(), lane.app_bell.clone()));
        self.spawn(format!("lane-{}", lane.index), lane.index, end, move |duty| keeper.turn(lane, duty))
    }

    /// Guards a lane until the engine ends, or the lane is over; `over` is raised then.
    pub fn guard(
        self: &Arc<Self>,
        lane: Arc<Guarded>,
        (index, bell): (u16, Arc<Bell>),
        over: Arc<Flag>,
    ) -> Result<(), Error> {
        let keeper = self.clone();
        self.spawn(format!("guard-{index}"), index, End(over.clone(), bell), move |duty| {
            lane.guard(&|| keeper.crew.is_over() || over.load(Ordering::Acquire));
            lane.last(|lane| {
                lane.alone = true;
                keeper.finish(lane, duty);
                keeper.stay_if_exiting();
                // The application's end may stay for long.
                lane.let_go();
            });
        })
    }

    fn spawn(
        self: &Arc<Self>,
        name: String,
        index: u16,
        end: End,
        body: impl FnOnce(Duty) + Send + 'static,
    ) -> Result<(), Error> {
        let core = self.cores.get(index as usize).copied();
        let keeper = self.clone();
        let body = move || {
            let _end = end;
            let duty = Duty(keeper);
            if let Some(core) = core
                && let Err(error) = pin(core)
            {
                tracing::warn!("{error}");
            }
            // An application that computes on the same core is not to keep it waiting.
            short_slice();
            body(duty);
        };
        self.crew.start(|| spawn(name, body).map_err(Error::system("starting a lane's thread")))
    }

    fn turn(&self, mut lane: Lane, duty: Duty) {
        lane.alone = true;
        let mut patience = Patience::new(self.spin_us);
        while !self.crew.is_over() && !lane.is_over() {
            if !lane.turn().is_idle() {
                patience.something(|| Clock::Monotonic.now());
                continue;
            }
            // The application may live on the same core.
            match if self.busy { Then::Yield } else { patience.nothing(Clock::Monotonic.now()) } {
                Then::Look => {}
                Then::Yield => std::thread::yield_now(),
                Then::Sleep => {
                    lane.sleep(None, None);
                }
            }
        }
        self.finish(&mut lane, duty);
        self.stay_if_exiting();
    }

    /// Ends what is open, and waits for the peers; the lane goes on for the others as long as they do the same.
    fn finish(&self, lane: &mut Lane, duty: Duty) {
        lane.finish(|| self.crew.beat());
        drop(duty);
        let mut others = self.crew.watch();
        while self.crew.goes_on(&mut others) {
            lane.turn();
            lane.sleep(None, Some(Duration::from_millis(10)));
        }
    }

    /// The process is about to be gone: until then its applications wait as before, rather than hear that their lane is over.
    fn stay_if_exiting(&self) {
        while self.exiting.load(Ordering::Relaxed) {
            std::thread::park();
        }
    }

    /// The process ends: the threads finish what is open, and are not waited for any longer.
    pub fn exit(&self) {
        self.exiting.store(true, Ordering::Relaxed);
        // They are not joined: the process does not wait for one that hangs.
        self.crew.end(&self.bells).into_iter().for_each(drop);
        let mut watch = self.crew.watch();
        while self.crew.goes_on(&mut watch) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the threads.
    pub fn end(&self) {
        for thread in self.crew.end(&self.bells) {
            // Its lane has said so.
            let _ = thread.join();
        }
    }
}
