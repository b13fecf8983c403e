//! The machine behind one lock, and how the tool's two threads share its clock.
//!
//! The tool's second thread makes the calls that a script expects to block: there it really sleeps, since the tool looks
//! at the thread's state to know. Meanwhile the main thread moves the clock. Whenever the main thread has changed something, the
//! sleeper looks whether its call can finish; the main thread goes on when it has gone back to sleep, or has returned and
//! read the clock. So a call finishes at the very instant that lets it.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use rustix::io::Errno;
use sim::Machine;
use socket::SockId;
use wire::Instant;

/// What a call gives, or its `errno`.
pub type Result<T> = std::result::Result<T, Errno>;

/// Real time that the main thread waits for the other at most: only a tool that ends with a call under way needs it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Virtual time that a wait for a packet or for a call may take: beyond two hours of keepalive.
const HORIZON: Duration = Duration::from_secs(24 * 3600);

/// A descriptor that the tool has.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    pub id: SockId,
    pub nonblocking: bool,
}

/// The tool's second thread, as the main thread sees it.
#[derive(Clone, Copy, PartialEq)]
enum Guest {
    /// Not in a call.
    Absent,
    /// Sleeps in a call, at most until then.
    Asleep(Instant),
    /// Was woken, and looks whether its call can finish.
    Looking,
    /// Its call has ended; it has not read the clock.
    Leaving,
}

/// What the lock guards.
pub(crate) struct World {
    pub machine: Machine,
    pub descriptors: BTreeMap<i32, Descriptor>,
    guest: Guest,
}

impl World {
    /// Does something with the sockets, and lets the stack follow.
    pub fn with<T>(&mut self, f: impl FnOnce(&mut socket::Sockets) -> T) -> T {
        let out = f(self.machine.sockets());
        self.machine.settle();
        out
    }

    pub fn descriptor(&mut self, fd: i32) -> Result<&mut Descriptor> {
        self.descriptors.get_mut(&fd).ok_or(Errno::BADF)
    }

    pub fn id(&self, fd: i32) -> Result<SockId> {
        self.descriptors.get(&fd).map(|d| d.id).ok_or(Errno::BADF)
    }

    /// When something happens without anybody's help.
    fn next_event(&self) -> Option<Instant> {
        let guest = match self.guest {
            Guest::Asleep(until) if until != Instant::FAR => Some(until),
            _ => None,
        };
        [self.machine.next_deadline(), guest].into_iter().flatten().min()
    }
}

/// One run of the tool.
pub struct Plugin {
    world: Mutex<World>,
    /// The sleeper is to look.
    moved: Condvar,
    /// It has looked, or has left.
    looked: Condvar,
    main: ThreadId,
}

type Guard<'a> = MutexGuard<'a, World>;

impl Plugin {
    /// A plug-in whose main thread is the caller's.
    pub fn new(config: sim::MachineConfig) -> Plugin {
        let machine = Machine::new(config);
        Plugin {
            world: Mutex::new(World { machine, descriptors: BTreeMap::new(), guest: Guest::Absent }),
            moved: Condvar::new(),
            looked: Condvar::new(),
            main: std::thread::current().id(),
        }
    }

    fn is_main(&self) -> bool {
        std::thread::current().id() == self.main
    }

    fn enter(&self) -> Guard<'_> {
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_main() { self.await_guest(world) } else { world }
    }

    /// The end of a call: who may have waited for it looks.
    fn leave(&self, mut world: Guard<'_>) {
        if self.is_main() {
            drop(self.rendezvous(world));
        } else {
            world.guest = Guest::Leaving;
        }
    }

    fn await_guest<'a>(&'a self, world: Guard<'a>) -> Guard<'a> {
        let busy = |w: &mut World| matches!(w.guest, Guest::Looking | Guest::Leaving);
        self.looked.wait_timeout_while(world, PATIENCE, busy).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Lets the sleeper look, and waits until it has.
    fn rendezvous<'a>(&'a self, mut world: Guard<'a>) -> Guard<'a> {
        if matches!(world.guest, Guest::Asleep(_)) {
            world.guest = Guest::Looking;
            self.moved.notify_all();
        }
        self.await_guest(world)
    }

    /// Sleeps until there is something to look at.
    fn sleep<'a>(&'a self, mut world: Guard<'a>, until: Option<Instant>) -> Guard<'a> {
        world.guest = Guest::Asleep(until.unwrap_or(Instant::FAR));
        self.looked.notify_all();
        let asleep = |w: &mut World| matches!(w.guest, Guest::Asleep(_));
        self.moved.wait_while(world, asleep).unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the clock to `to`; whatever happens on the way does so at its own instant.
    fn advance<'a>(&'a self, mut world: Guard<'a>, to: Instant) -> Guard<'a> {
        while world.machine.now() < to {
            let soon = world.machine.now().plus_micros(1);
            let at = world.next_event().map_or(to, |at| at.max(soon).min(to));
            world.machine.advance_to(at);
            world = self.rendezvous(world);
        }
        world
    }

    /// A call that does not block.
    pub(crate) fn call<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.enter();
        let out = f(&mut world);
        self.leave(world);
        out
    }

    /// A call that blocks while `attempt` gives nothing: `EAGAIN` when `timeout` is over; `EDEADLK` in the main thread
    /// when nothing is left that could end it.
    pub(crate) fn block<T>(
        &self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut World) -> Option<Result<T>>,
    ) -> Result<T> {
        let mut world = self.enter();
        let start = world.machine.now();
        let until = timeout.map(|t| start + t);
        let out = loop {
            if let Some(out) = attempt(&mut world) {
                break out;
            }
            if until.is_some_and(|until| until <= world.machine.now()) {
                break Err(Errno::AGAIN);
            }
            world = if !self.is_main() {
                self.sleep(world, until)
            } else {
                match [world.next_event(), until].into_iter().flatten().min() {
                    Some(at) if at <= start + HORIZON => {
                        let soon = world.machine.now().plus_micros(1);
                        self.advance(world, at.max(soon))
                    }
                    _ => break Err(Errno::DEADLK),
                }
            };
        };
        self.leave(world);
        out
    }

    /// An IP packet arrives.
    pub fn inject(&self, packet: &[u8]) {
        self.call(|w| w.machine.inject(packet));
    }

    /// The next IP packet sent, with its instant; the clock moves as far as it takes. `None` when none can come.
    pub fn sniff(&self) -> Option<(Instant, Vec<u8>)> {
        let mut world = self.enter();
        let limit = world.machine.now() + HORIZON;
        let packet = loop {
            if let Some(packet) = world.machine.pop() {
                break Some(packet);
            }
            match world.next_event() {
                Some(at) if at <= limit => {
                    let soon = world.machine.now().plus_micros(1);
                    world = self.advance(world, at.max(soon));
                }
                _ => break None,
            }
        };
        self.leave(world);
        packet
    }

    /// The clock moves.
    pub fn pause(&self, time: Duration) {
        let world = self.enter();
        let to = world.machine.now() + time;
        drop(self.advance(world, to));
    }

    /// The clock. Looking at it takes a microsecond, since the tool waits by looking; but not for a call that has just
    /// ended, which looks when that was.
    pub fn now(&self) -> Instant {
        let mut world = self.enter();
        if world.guest == Guest::Leaving && !self.is_main() {
            world.guest = Guest::Absent;
            self.looked.notify_all();
            return world.machine.now();
        }
        let to = world.machine.now().plus_micros(1);
        self.advance(world, to).machine.now()
    }
}
