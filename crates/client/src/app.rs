//! The application's end of a lane.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io::Bell;
use protocol::Endpoint;
use socket::{Errno, SockId, Sockets};

use crate::claim::{Claim, Gate};
use crate::clock::Clock;
use crate::patience::{Patience, Then};
use crate::stats::{LaneStats, Snapshot};
use crate::wait::{Interrupts, Wait, descriptor};

/// How long a wait may be that nobody is sure to end.
const SHORT: Duration = Duration::from_micros(100);
/// How long a lane's thread, which has to wake up first, is given to make room for jobs.
const RELIEF: Duration = Duration::from_millis(2);
/// How long it is given to say whether there is a port, or to make room at the end: it does so in its next turn, which others on its core
/// may put off.
const ANSWER: Duration = Duration::from_secs(2);
/// Between the looks of an orderly end.
const TICK: Duration = Duration::from_millis(1);
/// Looks between the caller's looks at its clock, where nobody sleeps.
const BUSY_LOOKS: u32 = 64;

/// How an end waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// How long it looks at most before it sleeps, µs.
    pub spin_us: u32,
    /// It never sleeps.
    pub busy: bool,
}

/// What an end knows of its lane.
#[derive(Clone)]
pub struct Facts {
    /// Which lane.
    pub index: u16,
    /// Its core, where the configuration names one.
    pub core: Option<usize>,
    /// Its counters.
    pub stats: Arc<LaneStats>,
    /// Local ports that lead to this lane, from one address towards one remote end, about: at least, where its counters are not seen.
    pub ports: u32,
    /// Jobs that may be under way.
    pub jobs: u32,
    /// Who decides about ports on shared interfaces.
    pub gate: Option<Arc<dyn Gate>>,
}

/// The application's end of a lane. It belongs to one thread at a time.
pub struct App {
    /// The sockets.
    pub sockets: Sockets,
    wait: Option<Box<dyn Wait>>,
    /// Somebody runs the lane beside this thread.
    beside: bool,
    facts: Facts,
    patience: Patience,
    /// Never sleeps.
    busy: bool,
    /// What else ends its waits.
    pub(crate) interrupts: Option<Box<dyn Interrupts>>,
    /// A socket that does not block and was written to, and not handed over: what else is written to it goes with that.
    pub(crate) unsent: Option<SockId>,
    /// Calls that found nothing, without a wait in between.
    pub(crate) polls: u32,
}

/// Wakes an application's wait from another thread.
#[derive(Clone, Debug)]
pub struct Waker {
    bell: Arc<Bell>,
    flag: Arc<AtomicBool>,
}

impl Waker {
    /// Makes the current or next wait return.
    pub fn wake(&self) {
        self.flag.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl App {
    /// The end of a lane that is waited for like this.
    pub fn new(sockets: Sockets, wait: Box<dyn Wait>, waiting: Waiting, facts: Facts) -> App {
        App {
            sockets,
            beside: wait.is_beside(),
            wait: Some(wait),
            facts,
            patience: Patience::new(waiting.spin_us),
            busy: waiting.busy,
            interrupts: None,
            unsent: None,
            polls: 0,
        }
    }

    fn wait_mut(&mut self) -> &mut dyn Wait {
        &mut **self.wait.as_mut().expect("an end waits until it goes")
    }

    fn wait_ref(&self) -> &dyn Wait {
        &**self.wait.as_ref().expect("an end waits until it goes")
    }

    /// How it waits.
    #[doc(hidden)]
    pub fn waiter(&mut self) -> &mut dyn Wait {
        self.wait_mut()
    }

    /// The lane's core, where the configuration names one.
    pub fn core(&self) -> Option<usize> {
        self.facts.core
    }

    /// Which lane.
    pub fn index(&self) -> u16 {
        self.facts.index
    }

    /// The lane's counters.
    pub fn stats(&self) -> &Arc<LaneStats> {
        &self.facts.stats
    }

    /// Everything that the lane counted, where this thread can tell: where it runs the lane, and no guard is at it.
    pub fn snapshot(&mut self) -> Option<Snapshot> {
        self.wait_mut().snapshot()
    }

    /// What ends this end's waits when it is readable: an eventfd, for what else is to wake it.
    pub fn bell(&self) -> BorrowedFd<'_> {
        descriptor(self.wait_ref().bell())
    }

    /// A handle that wakes this end; `flag` is raised when it is used.
    pub fn waker(&self, flag: Arc<AtomicBool>) -> Waker {
        Waker { bell: self.wait_ref().bell().clone(), flag }
    }

    /// Signals end its waits from now on.
    pub fn interrupt_by(&mut self, interrupts: Box<dyn Interrupts>) {
        self.interrupts = Some(interrupts);
    }

    /// Whether nobody runs the lane any more: its engine was shut down. Nothing will ever come.
    pub fn is_over(&self) -> bool {
        self.wait_ref().is_over()
    }

    /// Asks for the right to listen on an address (an unspecified IPv6 one takes IPv4 unless `v6_only`); `None` where nobody else has a say.
    pub fn claim(&self, addr: std::net::SocketAddr, v6_only: bool) -> std::io::Result<Option<Claim>> {
        match &self.facts.gate {
            None => Ok(None),
            Some(gate) => gate.listen(addr, v6_only).map(Some),
        }
    }

    /// A port for a listener that asks for any; `None` where the lane itself chooses.
    pub(crate) fn free_port(&self) -> std::io::Result<Option<u16>> {
        self.facts.gate.as_ref().map(|gate| gate.free_port()).transpose()
    }

    /// Asks for a port that an active open names: beside the kernel others on the machine may have it.
    pub fn may_connect_from(&self, port: u16) -> std::io::Result<()> {
        match &self.facts.gate {
            Some(gate) if port != 0 => gate.opens_from(port),
            _ => Ok(()),
        }
    }

    /// Begins to connect a socket, as [`Sockets::connect`] does. Where the lane may have no port left towards the remote end, its
    /// word is waited for, which comes with its next turn, so that this call fails (`EADDRNOTAVAIL`) as on Linux, and the socket is as it was.
    pub fn begin_connect(&mut self, sock: SockId, remote: Endpoint) -> Result<(), Errno> {
        let begun = self.sockets.connect(sock, remote);
        // What the lane has not seen yet is in the ring at most, or behind it.
        let most = self.facts.stats.tuples() + u64::from(self.facts.jobs);
        let ports = self.facts.stats.local_ports().max(self.facts.ports.into());
        if begun != Err(Errno::EINPROGRESS) || most < ports && !self.sockets.backlogged() {
            return begun;
        }
        self.begun(sock, remote)
    }

    /// What the lane says of a connect that was asked for.
    #[cold]
    fn begun(&mut self, sock: SockId, remote: Endpoint) -> Result<(), Errno> {
        let end = Instant::now() + ANSWER;
        loop {
            self.advance();
            self.hand_over();
            if !self.sockets.is_asked(sock) {
                break;
            }
            if Instant::now() >= end || self.is_over() {
                return Err(Errno::EINPROGRESS);
            }
            self.pause();
        }
        match self.sockets.found_no_port(sock) {
            // It tells the failure, and makes the socket a fresh one again.
            true => self.sockets.connect(sock, remote),
            false => Err(Errno::EINPROGRESS),
        }
    }

    fn pause(&mut self) {
        let App { sockets, wait, .. } = self;
        if let Some(wait) = wait {
            wait.pause(&mut || sockets.has_events());
        }
    }

    /// Hands over what was asked for, and takes what there is, without waiting; whether anything came.
    pub fn advance(&mut self) -> bool {
        let handed = self.sockets.flush();
        let work = self.wait_mut().advance(handed);
        self.sockets.process() > 0 || work
    }

    /// Hands over what was asked for, without a turn: for who may not come back soon. Where another thread runs the lane, or
    /// takes it over, it goes on; `inline` it waits for the next call that advances.
    pub fn hand_over(&mut self) {
        self.unsent = None;
        if self.sockets.flush() {
            self.wait_mut().hand_over();
        }
    }

    /// Hands over all that was asked for, however much: what does not fit the ring goes as the lane makes room for it, as long as
    /// it does so within two seconds.
    pub fn hand_over_all(&mut self) {
        self.hand_over();
        let (mut waiting, mut since) = (self.sockets.backlog(), Instant::now());
        while waiting > 0 && !self.is_over() && since.elapsed() < ANSWER {
            self.advance();
            if self.sockets.backlog() < waiting {
                (waiting, since) = (self.sockets.backlog(), Instant::now());
                continue;
            }
            // Whoever else runs it makes room without a word.
            self.wait_mut().pause(&mut || false);
        }
        self.hand_over();
    }

    /// Hands over what was asked for, and has it done: where this thread runs the lane that takes a turn, for which it may not come back
    /// soon.
    pub fn send_off(&mut self) {
        if self.beside {
            return self.hand_over();
        }
        self.unsent = None;
        self.advance();
    }

    /// Where jobs wait for room in the ring, lets the lane do those that are in it: many small ones should not end what
    /// a buffer still has room for. Soon back, with room or without.
    pub fn relieve(&mut self) {
        let end = Instant::now() + RELIEF;
        loop {
            self.advance();
            self.hand_over();
            if !self.sockets.backlogged() || Instant::now() >= end {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Leaves what was asked for to whoever runs the lane beside this thread, which takes it where nothing is handed over for
    /// some milliseconds; what comes before that goes with it. `inline` nobody runs it, and it waits for the next call that
    /// advances.
    #[inline]
    pub fn leave(&mut self) {
        if self.beside && self.sockets.offer() {
            self.wait_mut().hand_over();
        }
    }

    /// Advances, and sleeps until something comes, at most `limit`. `stop` is asked before sleeping, after the bell is
    /// armed. Whether a signal handler ended the sleep.
    pub fn wait(&mut self, limit: Option<Duration>, stop: impl Fn() -> bool) -> bool {
        let mut end = None;
        let mut empty = 0;
        self.unsent = None;
        loop {
            if self.advance() || stop() {
                self.patience.something(|| Clock::Monotonic.now());
                return false;
            }
            if self.busy {
                empty += 1;
                if empty > BUSY_LOOKS {
                    // The caller looks at its clock, and comes back.
                    return false;
                }
                continue;
            }
            let now = Clock::Monotonic.now();
            match self.patience.nothing(now) {
                Then::Look => {}
                Then::Yield => {
                    let end = *end.get_or_insert_with(|| limit.map(|l| now.plus_micros(l.as_micros() as u64)));
                    if end.is_some_and(|end| now >= end) {
                        self.patience.interrupted();
                        return false;
                    }
                    std::thread::yield_now();
                }
                Then::Sleep => break,
            }
        }
        // Chunks come back without an event, and a full ring empties without one.
        let limit = match self.sockets.starving() || self.sockets.backlogged() {
            true => Some(limit.map_or(SHORT, |l| l.min(SHORT))),
            false => limit,
        };
        let App { sockets, wait, .. } = self;
        let slept = wait.as_mut().map(|wait| wait.sleep(limit, &mut || stop() || sockets.has_events()));
        let slept = slept.unwrap_or_default();
        if self.sockets.process() > 0 || slept.work {
            self.patience.something(|| Clock::Monotonic.now());
        }
        slept.signal
    }

    /// Waits until `done` gives something, at most `limit`, or until the lane [is over](App::is_over).
    pub fn until<T>(&mut self, limit: Option<Duration>, mut done: impl FnMut(&mut Sockets) -> Option<T>) -> Option<T> {
        let start = Instant::now();
        loop {
            if let Some(answer) = done(&mut self.sockets) {
                return Some(answer);
            }
            let left = match limit {
                None => None,
                Some(limit) => Some(limit.checked_sub(start.elapsed()).filter(|d| !d.is_zero())?),
            };
            if self.is_over() {
                self.sockets.process();
                return done(&mut self.sockets);
            }
            self.wait(left, || false);
        }
    }

    /// The end leaves its thread, for another one to take; as when it goes for good, a lane that this thread runs is run meanwhile.
    pub fn detach(&mut self) {
        self.hand_over_all();
        self.entrust();
    }

    fn entrust(&mut self) {
        self.wait = self.wait.take().map(Wait::entrust);
        self.beside = self.wait_ref().is_beside();
    }

    /// Waits until what is queued has left and all connections are over, at most `limit`; for an orderly end.
    pub fn drain(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        while Instant::now() < end && !self.is_over() {
            self.advance();
            let backlogged = self.sockets.backlogged();
            let left = TICK.min(end.saturating_duration_since(Instant::now()));
            if self.wait_mut().drained(left) && !backlogged {
                return;
            }
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return self.end();
        }
        // Sockets that a panic has left behind may cause another one, which would end the process on the spot.
        let _ = catch_unwind(AssertUnwindSafe(|| self.end()));
    }
}

impl App {
    fn end(&mut self) {
        // What was closed just now is to be known; whoever else runs the lane goes on alone as soon as it has seen that nobody calls in.
        self.hand_over_all();
        self.entrust();
        // A lane that nobody else runs ends here.
        self.wait_mut().finish();
    }
}
