//! Where clients in other processes come to a lane.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::io::Bell;
use client::Join;
use mem::Huge;
use mem::lease::{Lease, Shape};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use stack::Bounds;

use crate::lane::clients::Arrival;
use crate::mailbox::{Control, Mailbox};

/// How long a lane is given to let a client in: it does so in its next turn.
const ANSWER: Duration = Duration::from_secs(2);

/// What a client may have.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    /// Bytes of buffers, in chunks of 2 KiB.
    pub chunks: u32,
    /// Threads with an end of their own.
    pub threads: u32,
    /// Connections.
    pub connections: u32,
    /// Listeners.
    pub listeners: u32,
    /// Huge pages to try.
    pub huge: Huge,
}

impl Default for Lent {
    fn default() -> Lent {
        Lent { chunks: 32_768, threads: 1, connections: 65_536, listeners: 64, huge: Huge::No }
    }
}

/// A lane's door, for any thread of the process that runs it.
#[derive(Clone)]
pub struct Door {
    pub(crate) mail: Weak<Mailbox>,
    pub(crate) bell: Arc<Bell>,
    /// Jobs and events that a thread may have under way.
    pub(crate) rings: (u32, u32),
}

impl Door {
    /// Lets the process in whose pidfd this is: what it needs to attach ([`client::Attached`]), to be passed to it. When that process has gone,
    /// its connections are reset.
    pub fn admit(&self, process: OwnedFd, lent: Lent) -> io::Result<Join> {
        let (jobs, events) = self.rings;
        let shape = Shape { chunks: lent.chunks, seats: lent.threads, jobs, events, huge: lent.huge };
        let lease = Lease::create(&shape, protocol::LAYOUT).map_err(io::Error::other)?;
        let threads = (0..lent.threads).map(|_| Bell::descriptor()).collect::<io::Result<Vec<_>>>()?;
        let bell = Bell::descriptor()?;
        let join = Join {
            memory: lease.file().try_clone_to_owned()?,
            stack: bell.try_clone()?,
            threads: threads.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?,
            process: pidfd_open(getpid(), PidfdFlags::empty())?,
        };
        let bounds = Bounds { connections: lent.connections, listeners: lent.listeners };
        let over = || io::Error::new(io::ErrorKind::NetworkDown, "the lane is over");
        let (to, from) = channel();
        let arrival = Arrival { lease, bounds, bell, threads, process };
        self.mail.upgrade().ok_or_else(over)?.send(Control::Attach(Box::new(arrival), to));
        self.bell.ring();
        match from.recv_timeout(ANSWER) {
            Ok(Ok(())) => Ok(join),
            Ok(Err(why)) => Err(io::Error::other(why)),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the lane does not answer")),
        }
    }
}
