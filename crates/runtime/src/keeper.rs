//! Threads that run lanes: those of the `paired` model, the guards of `guarded`, and those of lanes whose application has gone. A lane must go on as long as any
//! other does: frames of their connections arrive on its queue, and are handed over.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use io::Bell;

use crate::clock::Clock;
use crate::engine::{Error, pin};
use crate::guard::Guarded;
use crate::lane::Lane;
use crate::patience::{Patience, Then};
use crate::sys::{short_slice, spawn};

/// What is in flight when the engine ends may finish within this time.
const LAST: Duration = Duration::from_secs(2);

/// How an engine's lanes run on threads of their own.
pub(crate) struct Keeper {
    /// The engine ends.
    stop: AtomicBool,
    /// Threads whose lane has something to finish.
    busy_threads: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Of the lanes, by number.
    bells: Vec<Arc<Bell>>,
    cores: Vec<usize>,
    /// How long a lane looks at most before it sleeps, µs.
    spin_us: u32,
    /// Lanes never sleep.
    busy: bool,
}

/// Tells the application that its lane's thread is over, however it ended.
struct End(Arc<AtomicBool>, Arc<Bell>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.ring();
    }
}

impl Keeper {
    pub fn new(bells: Vec<Arc<Bell>>, cores: Vec<usize>, spin_us: u32, busy: bool) -> Keeper {
        Keeper {
            stop: AtomicBool::new(false),
            busy_threads: AtomicUsize::new(0),
            threads: Mutex::default(),
            bells,
            cores,
            spin_us,
            busy,
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a lane must outlive its application.
    pub fn wants(&self) -> bool {
        self.bells.len() > 1 && !self.stop.load(Ordering::Relaxed)
    }

    /// Runs a lane until the engine ends; `ended` is raised then.
    pub fn run(self: &Arc<Self>, lane: Lane, ended: Arc<AtomicBool>) -> Result<(), Error> {
        let (keeper, end) = (self.clone(), End(ended, lane.app_bell.clone()));
        self.spawn(format!("lane-{}", lane.index), lane.index, end, move || keeper.turn(lane))
    }

    /// Guards a lane until the engine ends; `ended` is raised then.
    pub fn guard(
        self: &Arc<Self>,
        lane: Arc<Guarded>,
        (index, bell): (u16, Arc<Bell>),
        ended: Arc<AtomicBool>,
    ) -> Result<(), Error> {
        let keeper = self.clone();
        self.spawn(format!("guard-{index}"), index, End(ended, bell), move || {
            lane.guard(&keeper.stop);
            lane.last(|lane| {
                lane.alone = true;
                keeper.finish(lane);
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
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let mut threads = self.threads();
        if self.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let core = self.cores.get(index as usize).copied();
        let body = move || {
            let _end = end;
            if let Some(core) = core
                && let Err(error) = pin(core)
            {
                tracing::warn!("{error}");
            }
            // An application that computes on the same core is not to keep it waiting.
            short_slice();
            body();
        };
        let thread = spawn(name, body);
        threads.push(thread.map_err(Error::system("starting a lane's thread"))?);
        self.busy_threads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn turn(&self, mut lane: Lane) {
        lane.alone = true;
        let mut patience = Patience::new(self.spin_us);
        while !self.stop.load(Ordering::Relaxed) {
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
        self.finish(&mut lane);
    }

    /// What is in flight may finish.
    fn finish(&self, lane: &mut Lane) {
        let end = Instant::now() + LAST;
        let mut finished = false;
        while Instant::now() < end {
            lane.turn();
            if !finished && lane.drained() {
                finished = true;
                self.busy_threads.fetch_sub(1, Ordering::Relaxed);
            }
            if self.busy_threads.load(Ordering::Relaxed) == 0 {
                return;
            }
            lane.sleep(None, Some(Duration::from_millis(10)));
        }
    }

    /// Ends the threads.
    pub fn end(&self) {
        let threads = {
            let mut threads = self.threads();
            self.stop.store(true, Ordering::Relaxed);
            std::mem::take(&mut *threads)
        };
        for bell in &self.bells {
            bell.ring();
        }
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a lane's thread panicked");
            }
        }
    }
}
