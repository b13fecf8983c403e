//! The end of a process by exit(3), which a return from `main` is too: engines that are still there end as by
//! [`Engine::shutdown`](crate::Engine::shutdown), so that the peers of all connections hear of it. `_exit(2)` and signals that
//! nobody handles end a process without a word, and nothing can be said then.

use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use io::Bell;

use crate::forks::{self, Lock};
use crate::keeper::Keeper;
use crate::links::LaneLink;
use crate::mailbox::Control;

/// How long a lane that its application runs (`inline`) may take to answer, before it counts as one that nobody runs.
const ANSWER: Duration = Duration::from_millis(200);
/// The same where somebody sleeps in a call, whom it wakes, or has answered before.
const PRESENT: Duration = Duration::from_secs(2);
/// Between two questions to such a lane.
const TICK: Duration = Duration::from_millis(2);

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

/// Resets all connections of the engine that has the lane with this bell: a broken lane leaves no whole engine.
pub(crate) fn reset_engine_of(bell: &Arc<Bell>) {
    reset(|engine| engine.links.iter().any(|link| Arc::ptr_eq(&link.bell, bell)));
}

/// Resets all connections of this process's engines, and ends their lanes: for who is about to end the process because something in
/// it is broken, so that no peer takes half an answer for a whole one. Lanes do it in their next turns, which are not waited for; calls
/// fail then as after [`Engine::shutdown`](crate::Engine::shutdown).
pub fn reset_all() {
    reset(|_| true);
}

fn reset(which: impl Fn(&Ends) -> bool) {
    for engine in engines().iter().filter(|engine| which(engine)) {
        engine.links.iter().for_each(|link| link.send(Control::Reset));
    }
}

/// Engines of this process. None where a signal handler exits, or a thread panics, in the moment in which one starts or ends:
/// it is not to wait for itself.
fn engines() -> Vec<Arc<Ends>> {
    let Some(engines) = ENGINES.try_lock() else { return Vec::new() };
    // A parent's engines are the parent's to end.
    let own = |engine: &Arc<Ends>| engine.forks == forks::count();
    engines.iter().filter_map(Weak::upgrade).filter(own).collect()
}

/// The process exits.
extern "C" fn end_all() {
    for engine in engines() {
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

    /// Lanes that other threads of the application run: they are asked, and end what is open in their next turns. How long that
    /// may take, they know themselves.
    fn end_inline(&self) {
        let mut open: Vec<Asked> =
            self.links.iter().filter(|link| link.mail.strong_count() > 0).map(Asked::to_end).collect();
        while !open.is_empty() {
            let (to, from) = channel();
            open.iter().for_each(|asked| asked.link.send(Control::Ended(to.clone())));
            drop(to);
            let mut ended = vec![false; self.links.len()];
            while let Ok((lane, over)) = from.recv_timeout(TICK) {
                ended[usize::from(lane)] |= over;
            }
            open.retain_mut(|asked| !ended[usize::from(asked.link.index)] && asked.is_run());
            std::thread::sleep(TICK);
        }
    }
}

/// A lane that was asked to end.
struct Asked<'a> {
    link: &'a LaneLink,
    patience: Duration,
    /// Turns that it had taken when it was looked at last, and when one was new.
    turns: u64,
    since: Instant,
}

impl Asked<'_> {
    fn to_end(link: &LaneLink) -> Asked<'_> {
        let turns = link.stats.turns();
        let sleeps = link.bell.ring_if_sleeping();
        link.send(Control::End);
        Asked { link, patience: if sleeps { PRESENT } else { ANSWER }, turns, since: Instant::now() }
    }

    /// Whether somebody runs it.
    fn is_run(&mut self) -> bool {
        let turns = self.link.stats.turns();
        if turns != self.turns {
            (self.turns, self.since, self.patience) = (turns, Instant::now(), PRESENT);
        }
        self.link.mail.strong_count() > 0 && self.since.elapsed() < self.patience
    }
}
