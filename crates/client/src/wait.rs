//! How an application's end waits, and who runs the lane meanwhile.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use io::Bell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::stats::Snapshot;

/// What a sleep brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slept {
    /// A turn that this thread took after it found something to do.
    pub work: bool,
    /// A signal handler ended it.
    pub signal: bool,
}

/// How an end waits. None of these looks at sockets: whoever calls hands jobs over before, and takes events afterwards.
pub trait Wait: Send + Any {
    /// Takes a turn of the lane where this thread takes them, and otherwise, where jobs were `handed` over, wakes whoever does. Whether a turn
    /// found something to do.
    fn advance(&mut self, handed: bool) -> bool;

    /// Jobs were handed over, or left behind: whoever else runs the lane is woken. Where nobody does, they wait for the next turn.
    fn hand_over(&mut self);

    /// Whether somebody runs the lane beside this thread: what is left behind goes on then.
    fn is_beside(&self) -> bool;

    /// Sleeps until something comes, at most `limit`. `ready` is asked once the bell is armed, and ends it.
    fn sleep(&mut self, limit: Option<Duration>, ready: &mut dyn FnMut() -> bool) -> Slept;

    /// Gives whoever else runs the lane a moment, unless `ready`: it is to answer, or to make room, which nobody says.
    fn pause(&mut self, ready: &mut dyn FnMut() -> bool);

    /// Whether nobody runs the lane any more: nothing will ever come.
    fn is_over(&self) -> bool;

    /// What ends the sleeps of this end when it is rung.
    fn bell(&self) -> &Arc<Bell>;

    /// Whether all that was said has arrived, and all connections are over; waits for it for at most `limit`.
    fn drained(&mut self, limit: Duration) -> bool;

    /// Everything that the lane counted, where this thread can tell.
    fn snapshot(&mut self) -> Option<Snapshot> {
        None
    }

    /// This end is not used for a while, or for good: who waits from now on. A lane that this thread runs is run by another one, where others
    /// need it.
    fn entrust(self: Box<Self>) -> Box<dyn Wait>;

    /// This end goes for good, and with it a lane that nobody else runs.
    fn finish(&mut self);
}

/// What ends waits with `EINTR`, beside a signal handler that ends a sleep by itself: handlers that ran before the sleep began, too.
pub trait Interrupts: Send {
    /// Whether something came since a wait was last ended by it.
    fn is_due(&self) -> bool;

    /// The same, and a wait ends by it: what came until now is no longer due.
    fn take(&mut self) -> bool;

    /// Whether nothing will ever come to this end any more, for a reason of the program's own.
    fn is_over(&self) -> bool {
        false
    }
}

/// What ends a wait when it is readable.
pub(crate) fn descriptor(bell: &Bell) -> BorrowedFd<'_> {
    use std::os::fd::AsFd;
    bell.as_fd()
}

/// Sleeps until the bell is rung, unless there is no reason to. Whether a signal handler ended it.
pub fn doze(bell: &Bell, limit: Option<Duration>, ready: &mut dyn FnMut() -> bool) -> bool {
    let mut signal = false;
    bell.arm();
    if !ready() {
        let timeout = limit.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: l.subsec_nanos() as i64 });
        signal = poll(&mut [PollFd::new(bell, PollFlags::IN)], timeout.as_ref()) == Err(Errno::INTR);
    }
    bell.disarm();
    signal
}
