//! The application's end of a lane: its sockets, and how it waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io::Bell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket::Sockets;

use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::stats::LaneStats;

/// How long a wait may be that nobody is sure to end.
const SHORT: Duration = Duration::from_micros(100);

/// Who runs the stack's turns.
enum Turner {
    /// This thread, inside its own waits; who takes over when it goes.
    Inline(Box<Lane>, Arc<Keeper>),
    /// Another thread, which this bell wakes, until it has ended.
    Paired { lane: Arc<Bell>, ended: Arc<AtomicBool> },
}

/// The application's end of a lane. It belongs to one thread.
pub struct App {
    /// The sockets.
    pub sockets: Sockets,
    turner: Turner,
    bell: Arc<Bell>,
    stats: Arc<LaneStats>,
    index: u16,
    /// Empty looks before sleeping.
    spin: u32,
    /// Who decides about ports on shared interfaces.
    gate: Option<Arc<dyn Gate>>,
}

/// Who decides about ports on shared interfaces.
pub(crate) trait Gate: Send + Sync {
    /// Takes a port from the kernel for a listener.
    fn listen(&self, addr: std::net::SocketAddr, v6_only: bool) -> std::io::Result<crate::Claim>;
    /// The ports that active opens may leave from.
    fn active(&self) -> (u16, u16);
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
    pub(crate) fn inline(sockets: Sockets, lane: Lane, keeper: Arc<Keeper>, spin: u32) -> App {
        let (bell, stats, index) = (lane.app_bell.clone(), lane.stats.clone(), lane.index);
        App { sockets, turner: Turner::Inline(Box::new(lane), keeper), bell, stats, index, spin, gate: None }
    }

    pub(crate) fn set_gate(&mut self, gate: Option<Arc<dyn Gate>>) {
        self.gate = gate;
    }

    pub(crate) fn paired(
        sockets: Sockets,
        lane: Arc<Bell>,
        ended: Arc<AtomicBool>,
        bell: Arc<Bell>,
        stats: Arc<LaneStats>,
        index: u16,
        spin: u32,
    ) -> App {
        App { sockets, turner: Turner::Paired { lane, ended }, bell, stats, index, spin, gate: None }
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
        let Some((first, last)) = self.gate.as_ref().map(|gate| gate.active()) else { return Ok(()) };
        if port == 0 || (first..=last).contains(&port) {
            return Ok(());
        }
        Err(std::io::Error::new(
            std::io::ErrorKind::AddrNotAvailable,
            format!("connecting from port {port}: beside the kernel only {first} to {last} are ours (local_ports)"),
        ))
    }

    /// Which lane.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// The lane's counters.
    pub fn stats(&self) -> &Arc<LaneStats> {
        &self.stats
    }

    /// The lane itself, when this thread runs it.
    pub fn lane(&self) -> Option<&Lane> {
        match &self.turner {
            Turner::Inline(lane, _) => Some(lane),
            Turner::Paired { .. } => None,
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
            Turner::Paired { ended, .. } => ended.load(Ordering::Acquire),
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
        }
    }

    /// Advances, and sleeps until something comes, at most `limit`. `stop` is asked before sleeping, after the bell is
    /// armed.
    pub fn wait(&mut self, limit: Option<Duration>, stop: impl Fn() -> bool) {
        for _ in 0..=self.spin {
            if self.advance() || stop() {
                return;
            }
        }
        // Chunks come back without an event, and a full ring empties without one.
        let limit = match self.sockets.starving() || self.sockets.backlogged() {
            true => Some(limit.map_or(SHORT, |l| l.min(SHORT))),
            false => limit,
        };
        match &mut self.turner {
            Turner::Inline(lane, _) => {
                self.bell.arm();
                if !stop() {
                    lane.sleep(Some(&self.bell), limit);
                }
                self.bell.disarm();
                lane.turn();
                self.sockets.process();
            }
            Turner::Paired { ended, .. } => {
                self.bell.arm();
                if !stop() && !self.sockets.has_events() && !ended.load(Ordering::Acquire) {
                    let timeout =
                        limit.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: l.subsec_nanos() as i64 });
                    let mut fds = [PollFd::new(&*self.bell, PollFlags::IN)];
                    // A signal is a wake-up like any other.
                    let _ = poll(&mut fds, timeout.as_ref());
                }
                self.bell.disarm();
                self.sockets.process();
            }
        }
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

    /// Runs until what is queued has left, at most `limit`; for an orderly end.
    pub fn drain(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        while Instant::now() < end && !self.is_over() {
            self.advance();
            match &mut self.turner {
                Turner::Inline(lane, _) if lane.drained() => return,
                Turner::Inline(lane, _) => lane.sleep(None, Some(Duration::from_millis(1))),
                Turner::Paired { .. } if !self.sockets.backlogged() => return,
                Turner::Paired { .. } => {}
            }
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // What was closed just now is to be known.
        self.sockets.flush();
        let ended = Arc::new(AtomicBool::new(true));
        let gone = Turner::Paired { lane: self.bell.clone(), ended: ended.clone() };
        if let Turner::Inline(lane, keeper) = std::mem::replace(&mut self.turner, gone)
            && keeper.wants()
            && let Err(error) = keeper.run(*lane, ended)
        {
            tracing::warn!("lane {}: {error}", self.index);
        }
    }
}
