//! The application's end of a lane: its sockets, and how it waits.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use io::Bell;
use protocol::Endpoint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket::{SockId, Sockets};

use crate::clock::Clock;
use crate::ending::QUIET;
use crate::engine::{AppHandle, JOBS};
use crate::guard::{Guarded, Slept};
use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::mailbox::{Control, Mailbox};
use crate::patience::{Patience, Then};
use crate::stats::{LaneStats, Snapshot};

/// How long a wait may be that nobody is sure to end.
const SHORT: Duration = Duration::from_micros(100);
/// Between the looks of an orderly end.
const TICK: Duration = Duration::from_millis(1);
/// How long a lane's thread, which has to wake up first, is given to make room for jobs.
const RELIEF: Duration = Duration::from_millis(2);
/// How long it is given to say whether there is a port: it says so in its next turn, which others on its core may put off.
const ANSWER: Duration = QUIET;
/// Looks between the caller's looks at its clock, where nobody sleeps.
const BUSY_LOOKS: u32 = 64;

/// Who runs the stack's turns.
enum Turner {
    /// This thread, inside its own waits; who takes over when it goes.
    Inline(Box<Lane>, Arc<Keeper>),
    /// Another thread, which this bell wakes, until it has ended.
    Paired { lane: Arc<Bell>, ended: Arc<AtomicBool> },
    /// This thread, or the guard's when this one does not call in; until that one has ended.
    Guarded { lane: Arc<Guarded>, ended: Arc<AtomicBool> },
}

/// What an application's end has of its lane, whoever runs it.
pub(crate) struct Parts {
    bell: Arc<Bell>,
    stats: Arc<LaneStats>,
    mail: Weak<Mailbox>,
    index: u16,
}

impl Parts {
    pub fn of(lane: &Lane) -> Parts {
        Parts {
            bell: lane.app_bell.clone(),
            stats: lane.stats.clone(),
            mail: Arc::downgrade(&lane.mail),
            index: lane.index,
        }
    }
}

/// How an end waits.
#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    /// How long it looks at most before it sleeps, µs.
    pub spin_us: u32,
    /// It never sleeps.
    pub busy: bool,
}

/// The application's end of a lane. It belongs to one thread.
pub struct App {
    /// The sockets.
    pub sockets: Sockets,
    turner: Turner,
    bell: Arc<Bell>,
    stats: Arc<LaneStats>,
    /// The lane's, for what is asked of it from here.
    mail: Weak<Mailbox>,
    index: u16,
    patience: Patience,
    /// Never sleeps.
    busy: bool,
    /// The lane's core, where the configuration names one.
    core: Option<usize>,
    /// Local ports that lead to this lane, from one address towards one remote end, about.
    ports: u32,
    /// Who decides about ports on shared interfaces.
    gate: Option<Arc<dyn Gate>>,
    /// It has heard that connections are opened.
    opens: bool,
}

/// Who decides about ports on shared interfaces.
pub(crate) trait Gate: Send + Sync {
    /// Takes a port from the kernel for a listener.
    fn listen(&self, addr: std::net::SocketAddr, v6_only: bool) -> std::io::Result<crate::Claim>;
    /// The ports that active opens may leave from.
    fn active(&self) -> wire::Ports;
    /// Takes them from the kernel, before the first connection is opened.
    fn opens(&self) -> std::io::Result<()>;
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
    fn new(sockets: Sockets, turner: Turner, of: Parts, wait: Waiting) -> App {
        let Parts { bell, stats, mail, index } = of;
        let patience = Patience::new(wait.spin_us);
        App {
            sockets,
            turner,
            bell,
            stats,
            mail,
            index,
            patience,
            busy: wait.busy,
            core: None,
            ports: u32::MAX,
            gate: None,
            opens: true,
        }
    }

    pub(crate) fn inline(sockets: Sockets, lane: Lane, keeper: Arc<Keeper>, wait: Waiting) -> App {
        let parts = Parts::of(&lane);
        App::new(sockets, Turner::Inline(Box::new(lane), keeper), parts, wait)
    }

    pub(crate) fn paired(
        sockets: Sockets,
        lane: Arc<Bell>,
        ended: Arc<AtomicBool>,
        parts: Parts,
        wait: Waiting,
    ) -> App {
        // Nothing comes while this end keeps the other from running; that one may be told never to sleep.
        App::new(sockets, Turner::Paired { lane, ended }, parts, Waiting { busy: false, ..wait })
    }

    pub(crate) fn guarded(
        sockets: Sockets,
        lane: Arc<Guarded>,
        ended: Arc<AtomicBool>,
        parts: Parts,
        wait: Waiting,
    ) -> App {
        App::new(sockets, Turner::Guarded { lane, ended }, parts, wait)
    }

    pub(crate) fn set_gate(&mut self, gate: Option<Arc<dyn Gate>>) {
        self.opens = gate.is_none();
        self.gate = gate;
    }

    pub(crate) fn set_ports(&mut self, ports: u32) {
        self.ports = ports;
    }

    pub(crate) fn set_core(&mut self, core: Option<usize>) {
        self.core = core;
    }

    /// The lane's core, where the configuration names one.
    pub fn core(&self) -> Option<usize> {
        self.core
    }

    /// Asks for the right to listen on an address (an unspecified IPv6 one takes IPv4 unless `v6_only`); `None` where nobody else has a say.
    pub fn claim(&self, addr: std::net::SocketAddr, v6_only: bool) -> std::io::Result<Option<crate::Claim>> {
        match &self.gate {
            None => Ok(None),
            Some(gate) => gate.listen(addr, v6_only).map(Some),
        }
    }

    /// Whether an active open may leave from this port: answers to another one would reach the kernel, which resets them.
    pub fn may_connect_from(&self, port: u16) -> std::io::Result<()> {
        let Some(ours) = self.gate.as_ref().map(|gate| gate.active()) else { return Ok(()) };
        if port == 0 || ours.has(port) {
            return Ok(());
        }
        Err(std::io::Error::new(
            std::io::ErrorKind::AddrNotAvailable,
            format!("connecting from port {port}: beside the kernel only {ours} are ours (local_ports)"),
        ))
    }

    /// Begins to connect a socket, as [`Sockets::connect`] does. Where the lane may have no port left towards the remote end, its
    /// word is waited for, which comes with its next turn, so that this call fails (`EADDRNOTAVAIL`) as on Linux, and the socket is as it was.
    pub fn connect(&mut self, sock: SockId, remote: Endpoint) -> Result<(), socket::Errno> {
        if !self.opens && !self.may_open() {
            return Err(socket::Errno::EADDRNOTAVAIL);
        }
        let begun = self.sockets.connect(sock, remote);
        // What the lane has not seen yet is in the ring at most, or behind it.
        let most = self.stats.tuples() + JOBS as u64;
        if begun != Err(socket::Errno::EINPROGRESS) || most < u64::from(self.ports) && !self.sockets.backlogged() {
            return begun;
        }
        self.begun(sock, remote)
    }

    /// The first connection is about to be opened.
    #[cold]
    fn may_open(&mut self) -> bool {
        match self.gate.as_ref().map_or(Ok(()), |gate| gate.opens()) {
            Ok(()) => self.opens = true,
            Err(error) => tracing::warn!("taking ports for connections: {error}"),
        }
        self.opens
    }

    /// What the lane says of a connect that was asked for.
    #[cold]
    fn begun(&mut self, sock: SockId, remote: Endpoint) -> Result<(), socket::Errno> {
        let end = Instant::now() + ANSWER;
        loop {
            self.advance();
            self.hand_over();
            if !self.sockets.is_asked(sock) {
                break;
            }
            if Instant::now() >= end || self.is_over() {
                return Err(socket::Errno::EINPROGRESS);
            }
            match &self.turner {
                Turner::Inline(..) => {}
                Turner::Paired { .. } => {
                    doze(&self.bell, Some(SHORT), || self.sockets.has_events());
                }
                Turner::Guarded { .. } => std::thread::yield_now(),
            }
        }
        match self.sockets.found_no_port(sock) {
            // It tells the failure, and makes the socket a fresh one again.
            true => self.sockets.connect(sock, remote),
            false => Err(socket::Errno::EINPROGRESS),
        }
    }

    /// The lane, where this thread runs it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn lane(&mut self) -> Option<&mut Lane> {
        match &mut self.turner {
            Turner::Inline(lane, _) => Some(lane),
            Turner::Paired { .. } | Turner::Guarded { .. } => None,
        }
    }

    /// What ends this end's waits when it is readable: an eventfd, for what else is to wake it.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Which lane.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// The lane's counters.
    pub fn stats(&self) -> &Arc<LaneStats> {
        &self.stats
    }

    /// Everything that the lane counted, when this thread runs it; `None` too while its guard is at it.
    pub fn snapshot(&self) -> Option<Snapshot> {
        match &self.turner {
            Turner::Inline(lane, _) => Some(lane.snapshot()),
            Turner::Paired { .. } => None,
            Turner::Guarded { lane, .. } => lane.take().map(|mut held| held.with(|lane| lane.snapshot())),
        }
    }

    /// A handle that wakes this end; `flag` is raised when it is used.
    pub fn waker(&self, flag: Arc<AtomicBool>) -> Waker {
        Waker { bell: self.bell.clone(), flag }
    }

    /// Whether nobody runs the lane any more: its engine was shut down. Nothing will ever come.
    pub fn is_over(&self) -> bool {
        match &self.turner {
            Turner::Inline(..) => false,
            Turner::Paired { ended, .. } | Turner::Guarded { ended, .. } => ended.load(Ordering::Acquire),
        }
    }

    /// Hands over what was asked for, and takes what there is, without waiting; whether anything came.
    pub fn advance(&mut self) -> bool {
        let jobs = self.sockets.flush();
        match &mut self.turner {
            Turner::Inline(lane, _) => {
                let work = lane.turn();
                let events = self.sockets.process() > 0;
                events || !work.is_idle()
            }
            Turner::Paired { lane, .. } => {
                if jobs {
                    lane.ring_if_sleeping();
                }
                self.sockets.process() > 0
            }
            Turner::Guarded { lane, .. } => {
                let idle = match lane.take() {
                    Some(mut held) => held.with(Lane::turn).is_idle(),
                    None => {
                        if jobs {
                            lane.tell();
                        }
                        true
                    }
                };
                let events = self.sockets.process() > 0;
                events || !idle
            }
        }
    }

    /// Hands over what was asked for, without a turn: for who may not come back soon. Where another thread runs the lane, or
    /// takes it over, it goes on; `inline` it waits for the next call that advances.
    pub fn hand_over(&mut self) {
        if self.sockets.flush() {
            match &self.turner {
                Turner::Inline(..) => {}
                Turner::Paired { lane, .. } => {
                    lane.ring_if_sleeping();
                }
                Turner::Guarded { lane, .. } => lane.tell(),
            }
        }
    }

    /// Hands over all that was asked for, however much: what does not fit the ring goes as the lane makes room for it, as long as
    /// it does so within two seconds.
    pub fn hand_over_all(&mut self) {
        self.hand_over();
        let (mut waiting, mut since) = (self.sockets.backlog(), Instant::now());
        while waiting > 0 && !self.is_over() && since.elapsed() < QUIET {
            self.advance();
            if self.sockets.backlog() < waiting {
                (waiting, since) = (self.sockets.backlog(), Instant::now());
                continue;
            }
            match &self.turner {
                Turner::Inline(..) => {}
                // It makes room without a word.
                Turner::Paired { .. } | Turner::Guarded { .. } => {
                    doze(&self.bell, Some(SHORT), || false);
                }
            }
        }
        self.hand_over();
    }

    /// Hands over what was asked for, and has it done: `inline` that takes a turn, for which this thread may not come back
    /// soon.
    pub fn send_off(&mut self) {
        match self.turner {
            Turner::Inline(..) => {
                self.advance();
            }
            Turner::Paired { .. } | Turner::Guarded { .. } => self.hand_over(),
        }
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
        match &self.turner {
            Turner::Inline(..) => {}
            Turner::Paired { lane, .. } => {
                if self.sockets.offer() {
                    lane.ring_if_sleeping();
                }
            }
            Turner::Guarded { lane, .. } => {
                if self.sockets.offer() {
                    lane.tell();
                }
            }
        }
    }

    /// Advances, and sleeps until something comes, at most `limit`. `stop` is asked before sleeping, after the bell is
    /// armed. Whether a signal handler ended the sleep.
    pub fn wait(&mut self, limit: Option<Duration>, stop: impl Fn() -> bool) -> bool {
        let mut end = None;
        let mut empty = 0;
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
        let (work, signal) = match &mut self.turner {
            Turner::Inline(lane, _) => {
                self.bell.arm();
                let signal = !stop() && lane.sleep(Some(&self.bell), limit);
                self.bell.disarm();
                (!lane.turn().is_idle(), signal)
            }
            Turner::Paired { ended, .. } => {
                let ready = || stop() || self.sockets.has_events() || ended.load(Ordering::Acquire);
                (false, doze(&self.bell, limit, ready))
            }
            // What the guard has said since the last look came without a ring.
            Turner::Guarded { lane, ended } => {
                match lane.sleep(&self.bell, limit, || stop() || self.sockets.has_events()) {
                    Slept::No => (false, false),
                    Slept::Then { work, signal } => (!work.is_idle(), signal),
                    // The guard is at it, and leaves it to us soon.
                    Slept::Taken { signal } => {
                        let ready = || signal || stop() || self.sockets.has_events() || ended.load(Ordering::Acquire);
                        (false, doze(&self.bell, Some(SHORT), ready) || signal)
                    }
                }
            }
        };
        if self.sockets.process() > 0 || work {
            self.patience.something(|| Clock::Monotonic.now());
        }
        signal
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

    /// The end leaves its thread, for another one to take; as when it goes for good, an `inline` lane is run meanwhile.
    pub fn detach(mut self) -> AppHandle {
        self.hand_over_all();
        self.entrust();
        AppHandle::new(self)
    }

    /// This end is not used for a while, or for good. An `inline` lane is run by a thread from now on, where there are others:
    /// frames of theirs arrive on its queue.
    fn entrust(&mut self) {
        let Turner::Inline(lane, keeper) = &self.turner else { return };
        if !keeper.wants() {
            return;
        }
        let ended = Arc::new(AtomicBool::new(false));
        let beside = Turner::Paired { lane: lane.bell.clone(), ended: ended.clone() };
        if let Turner::Inline(lane, keeper) = std::mem::replace(&mut self.turner, beside)
            && let Err(error) = keeper.run(*lane, ended)
        {
            tracing::warn!("lane {}: {error}", self.index);
        }
    }

    /// Waits until what is queued has left and all connections are over, at most `limit`; for an orderly end.
    pub fn drain(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        while Instant::now() < end && !self.is_over() {
            self.advance();
            let backlogged = self.sockets.backlogged();
            match &mut self.turner {
                Turner::Inline(lane, _) => {
                    if lane.drained() && !backlogged {
                        return;
                    }
                    lane.sleep(None, Some(TICK));
                }
                Turner::Paired { lane, .. } => {
                    if !backlogged && asked(&self.mail, lane) {
                        return;
                    }
                    let left = end.saturating_duration_since(Instant::now());
                    doze(&self.bell, Some(TICK.min(left)), || self.sockets.has_events());
                }
                Turner::Guarded { lane, .. } => {
                    if lane.take().is_some_and(|mut held| held.with(|lane| lane.drained())) && !backlogged {
                        return;
                    }
                    if let Slept::Taken { .. } = lane.sleep(&self.bell, Some(TICK), || false) {
                        std::thread::yield_now();
                    }
                }
            }
        }
    }
}

/// Whether a lane that another thread runs says that everything has left and is over.
fn asked(mail: &Weak<Mailbox>, lane: &Bell) -> bool {
    let (to, from) = std::sync::mpsc::channel();
    // A lane that is gone has nothing left.
    let Some(mail) = mail.upgrade() else { return true };
    mail.send(Control::Drained(to));
    lane.ring();
    from.recv_timeout(RELIEF).unwrap_or(false)
}

/// Sleeps until the bell is rung, unless there is no reason to. Whether a signal handler ended it.
fn doze(bell: &Bell, limit: Option<Duration>, ready: impl Fn() -> bool) -> bool {
    let mut signal = false;
    bell.arm();
    if !ready() {
        let timeout = limit.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: l.subsec_nanos() as i64 });
        signal = poll(&mut [PollFd::new(bell, PollFlags::IN)], timeout.as_ref()) == Err(Errno::INTR);
    }
    bell.disarm();
    signal
}

impl Drop for App {
    fn drop(&mut self) {
        // What was closed just now is to be known; a guard goes on alone as soon as it has seen that nobody calls in.
        self.hand_over_all();
        self.entrust();
        // An `inline` lane that nobody else runs ends here.
        if let Turner::Inline(lane, _) = &mut self.turner {
            lane.finish(|| ());
        }
    }
}
