//! Threads that run lanes: those of the `paired` model, and those whose application has gone. A lane must go on as long as any
//! other does: frames of their connections arrive on its queue, and are handed over.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use io::Bell;

use crate::engine::{Error, pin};
use crate::lane::Lane;

/// What is in flight when the engine ends may finish within this time.
const LAST: Duration = Duration::from_secs(2);

/// How an engine's lanes run on threads of their own.
pub(crate) struct Keeper {
    /// The engine ends.
    stop: AtomicBool,
    /// Threads whose lane has something to finish.
    busy: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Of the lanes, by number.
    bells: Vec<Arc<Bell>>,
    cores: Vec<usize>,
    spin: u32,
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
    pub fn new(bells: Vec<Arc<Bell>>, cores: Vec<usize>, spin: u32) -> Keeper {
        Keeper {
            stop: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            threads: Mutex::default(),
            bells,
            cores,
            spin,
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
        let mut threads = self.threads();
        if self.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (keeper, end) = (self.clone(), End(ended, lane.app_bell.clone()));
        let name = format!("lane-{}", lane.index);
        let body = move || {
            let _end = end;
            keeper.turn(lane);
        };
        let thread = std::thread::Builder::new().name(name).spawn(body);
        threads.push(thread.map_err(Error::system("starting a lane's thread"))?);
        self.busy.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn turn(&self, mut lane: Lane) {
        if let Some(core) = self.cores.get(lane.index as usize)
            && let Err(error) = pin(*core)
        {
            tracing::warn!("{error}");
        }
        let mut idle = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if !lane.turn().is_idle() {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle > self.spin {
                lane.sleep(None, None);
            }
        }
        let end = Instant::now() + LAST;
        let mut finished = false;
        while Instant::now() < end {
            lane.turn();
            if !finished && lane.drained() {
                finished = true;
                self.busy.fetch_sub(1, Ordering::Relaxed);
            }
            if self.busy.load(Ordering::Relaxed) == 0 {
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
