//! The end of a process by exit(3), which a return from `main` is too: engines that are still there end as by
//! [`Engine::shutdown`](crate::Engine::shutdown), so that the peers of all connections hear of it. `_exit(2)` and signals that
//! nobody handles end a process without a word, and nothing can be said then.

use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::engine::LaneLink;
use crate::forks::{self, Lock};
use crate::keeper::{Keeper, LAST};
use crate::mailbox::Control;

/// How long a lane that its application runs (`inline`) may take to answer, before it counts as one that nobody runs.
const ANSWER: Duration = Duration::from_millis(200);
/// Between two questions to such a lane.
const TICK: Duration = Duration::from_millis(2);
/// How long the last resets of such a lane may take to leave.
const RESETS: Duration = Duration::from_millis(50);

/// What ends an engine whose process exits.
pub(crate) struct Ends {
    forks: u32,
    keeper: Arc<Keeper>,
    links: Arc<Vec<LaneLink>>,
    /// The applications run their lanes.
    inline: bool,
}

static ENGINES: Lock<Vec<Weak<Ends>>> = Lock::new(Vec::new());

/// Ends an engine with the process, as long as what comes back is there.
pub(crate) fn with_process(keeper: Arc<Keeper>, links: Arc<Vec<LaneLink>>, inline: bool) -> Arc<Ends> {
    let forks = forks::watch();
    let ends = Arc::new(Ends { forks, keeper, links, inline });
    let mut engines = ENGINES.lock();
    engines.retain(|ends| ends.strong_count() > 0);
    engines.push(Arc::downgrade(&ends));
    drop(engines);
    crate::sys::at_exit(end_all);
    ends
}

/// The process exits.
extern "C" fn end_all() {
    // Where a signal handler exits in the moment in which an engine starts or ends, it is not to wait for itself.
    let Some(engines) = ENGINES.try_lock() else { return };
    let engines: Vec<Arc<Ends>> = engines.iter().filter_map(Weak::upgrade).collect();
    // A parent's engines are the parent's to end.
    for engine in engines.into_iter().filter(|engine| engine.forks == forks::count()) {
        engine.end();
        // Its threads are still there.
        std::mem::forget(engine);
    }
}

impl Ends {
    fn end(&self) {
        if self.inline {
            self.end_inline();
        }
        self.keeper.exit();
    }

    /// Lanes that other threads of the application run: they are asked, and end what is open in their next turns.
    fn end_inline(&self) {
        let begun = Instant::now();
        let mut open: Vec<&LaneLink> = self.links.iter().filter(|link| link.mail.strong_count() > 0).collect();
        let mut answered = vec![false; self.links.len()];
        open.iter().for_each(|link| link.send(Control::End));
        while !open.is_empty() && begun.elapsed() < LAST {
            let (to, from) = channel();
            open.iter().for_each(|link| link.send(Control::Drained(to.clone())));
            drop(to);
            let mut over = vec![false; self.links.len()];
            while let Ok((lane, drained)) = from.recv_timeout(TICK) {
                let lane = usize::from(lane);
                (answered[lane], over[lane]) = (true, drained);
            }
            let patient = begun.elapsed() < ANSWER;
            open.retain(|link| {
                let lane = usize::from(link.index);
                !over[lane] && (answered[lane] || patient) && link.mail.strong_count() > 0
            });
            std::thread::sleep(TICK);
        }
        if !open.is_empty() {
            open.iter().for_each(|link| link.send(Control::Abort));
            std::thread::sleep(RESETS);
        }
    }
}
