//! The end of a lane that another process runs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::io::Bell;
use mem::lease::{self, Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket::{SocketConfig, Sockets};

use crate::app::{App, Facts, Waiting};
use crate::wait::{Slept, Wait, doze};

/// How long whoever runs the lane is given for something that it does not say.
const SHORT: Duration = Duration::from_micros(100);

/// What a stack gives a process that attaches to it: descriptors, which another process can pass on.
#[derive(Debug)]
pub struct Join {
    /// The memory that the two share, nobody else's.
    pub memory: OwnedFd,
    /// An eventfd that wakes the stack.
    pub stack: OwnedFd,
    /// An eventfd for each thread, which wakes it.
    pub threads: Vec<OwnedFd>,
    /// The process that runs the stack, to see when it is gone (pidfd_open(2)).
    pub process: OwnedFd,
}

/// A process's attachment to a lane of another one.
pub struct Attached {
    memory: lease::Attached,
    stack: OwnedFd,
    threads: Vec<OwnedFd>,
    process: Arc<OwnedFd>,
}

impl Attached {
    /// Attaches to what a stack has given. Errors are a line: another version, or no stack's memory.
    pub fn open(join: Join) -> io::Result<Attached> {
        let Join { memory, stack, threads, process } = join;
        let memory = lease::Attached::open(memory, protocol::LAYOUT).map_err(io::Error::other)?;
        if threads.len() != memory.seats() {
            return Err(io::Error::other("the stack has not given a bell for each thread"));
        }
        Ok(Attached { memory, stack, threads, process: Arc::new(process) })
    }

    /// Threads that can have an end of their own.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The end of thread `n`, once: `None` where it is taken, or there are fewer.
    pub fn app(&self, n: usize, config: SocketConfig, waiting: Waiting, facts: Facts) -> io::Result<Option<App>> {
        let Some(lease::Seat { side, jobs, events, words }) = self.memory.seat(n) else { return Ok(None) };
        let own = Arc::new(Bell::of_client(self.threads[n].try_clone()?, words.clone()));
        let stack = Bell::of_stack(self.stack.try_clone()?, words.clone());
        let wait = Far { own, stack, words, process: self.process.clone(), dead: AtomicBool::new(false) };
        Ok(Some(App::new(Sockets::new(config, side, jobs, events), Box::new(wait), waiting, facts)))
    }
}

/// Another process runs the lane.
struct Far {
    own: Arc<Bell>,
    stack: Bell,
    words: Words,
    process: Arc<OwnedFd>,
    /// That process has gone.
    dead: AtomicBool,
}

impl Wait for Far {
    fn advance(&mut self, handed: bool) -> bool {
        if handed {
            self.hand_over();
        }
        false
    }

    fn hand_over(&mut self) {
        self.stack.ring_if_sleeping();
    }

    fn is_beside(&self) -> bool {
        true
    }

    fn sleep(&mut self, limit: Option<Duration>, ready: &mut dyn FnMut() -> bool) -> Slept {
        let mut signal = false;
        self.own.arm();
        if !ready() && !self.is_over() {
            let timeout = limit.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: l.subsec_nanos() as i64 });
            let mut fds = [PollFd::new(&*self.own, PollFlags::IN), PollFd::new(&*self.process, PollFlags::IN)];
            signal = poll(&mut fds, timeout.as_ref()) == Err(Errno::INTR);
            if !fds[1].revents().is_empty() && !signal {
                self.dead.store(true, Ordering::Release);
            }
        }
        self.own.disarm();
        Slept { work: false, signal }
    }

    fn pause(&mut self, ready: &mut dyn FnMut() -> bool) {
        doze(&self.own, Some(SHORT), ready);
    }

    fn is_over(&self) -> bool {
        self.words.is_ended() || self.dead.load(Ordering::Acquire)
    }

    fn bell(&self) -> &Arc<Bell> {
        &self.own
    }

    fn drained(&mut self, limit: Duration) -> bool {
        // The stack goes on with what was closed, whoever has gone.
        doze(&self.own, Some(limit), &mut || false);
        true
    }

    fn entrust(self: Box<Self>) -> Box<dyn Wait> {
        self
    }

    fn finish(&mut self) {}
}
