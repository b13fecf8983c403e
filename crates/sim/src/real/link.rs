//! Two ends and the paths between them by the clock on the wall.

use core::time::Duration;
use std::io;

use ::io::Port;
use ::io::impair::{Impairment, Path, PathCounters};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;
use wire::Instant;
use wire::burst::{RxBurst, RxChecksum, TxOffload, TxSink};

use super::kernel::Kernel;
use super::peer::Peer;
use crate::host::{Host, HostConfig};

/// Nothing sleeps longer, so that who waits for a result is not kept waiting.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// An end of a link.
pub enum End {
    /// Linux.
    Kernel(Kernel),
    /// Ours, in this process, with its application.
    Ours(Box<Host>, Peer),
}

impl End {
    /// Our stack as host `config`, whose neighbour is host `peer`; it runs `app`.
    pub fn ours(config: HostConfig, peer: u8, app: Peer) -> End {
        let mut host = Host::new(config);
        let other = HostConfig::new(peer);
        let interface = host.interface();
        for (addr, _) in &other.addresses {
            host.stack.set_neighbor(Instant::from_micros(1), interface, *addr, other.mac);
        }
        End::Ours(Box::new(host), app)
    }

    /// Takes what has arrived; what it sends.
    fn turn(&mut self, now: Instant, arrived: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        match self {
            End::Kernel(k) => {
                for frame in arrived {
                    if let Some(buf) = k.port.reserve(frame.len()) {
                        buf.copy_from_slice(&frame);
                        k.port.commit(frame.len(), TxOffload::default());
                    }
                }
                let n = k.port.receive(64);
                let frames = (0..n)
                    .map(|i| {
                        let frame = k.port.frame(i);
                        assert_eq!(frame.checksum, RxChecksum::Unknown, "an unfinished checksum on the path");
                        frame.data.to_vec()
                    })
                    .collect();
                k.port.release();
                frames
            }
            End::Ours(host, app) => {
                let mut out = host.turn(now, arrived);
                app.turn(host);
                // What the application asked for goes out at once.
                if host.stack.has_jobs() {
                    out.extend(host.turn(now, Vec::new()));
                }
                out
            }
        }
    }

    fn deadline(&self, now: Instant) -> Instant {
        match self {
            End::Kernel(_) => Instant::FAR,
            End::Ours(host, _) if host.stack.output_pending() || host.stack.has_jobs() => now,
            End::Ours(host, _) => host.stack.next_deadline().unwrap_or(Instant::FAR),
        }
    }
}

/// Two ends and the paths between them.
pub struct Link {
    ends: [End; 2],
    paths: [Path; 2],
    start: std::time::Instant,
}

impl Link {
    /// Joins two ends; `suffers[i]` is what the frames of end `i` meet, drawn from `seed`.
    pub fn new(ends: [End; 2], suffers: [Impairment; 2], seed: u64) -> Link {
        let [there, back] = suffers;
        let paths = [Path::new(there, seed.wrapping_mul(2)), Path::new(back, seed.wrapping_mul(2) + 1)];
        Link { ends, paths, start: std::time::Instant::now() }
    }

    fn now(&self) -> Instant {
        // Not from zero: that is "never" in some places.
        Instant::from_micros(self.start.elapsed().as_micros() as u64 + 1_000_000)
    }

    /// Carries frames until `done` says so.
    pub fn run(&mut self, mut done: impl FnMut() -> bool) -> io::Result<()> {
        // Linux rounds sleeps up by 50 µs otherwise.
        set_current_timer_slack(core::num::NonZeroU64::new(1))?;
        while !done() {
            let now = self.now();
            let mut busy = false;
            for i in 0..2 {
                let mut arrived = Vec::new();
                while let Some(frame) = self.paths[1 - i].pop(now) {
                    arrived.push(frame);
                }
                let frames = self.ends[i].turn(now, arrived);
                busy |= !frames.is_empty();
                for frame in frames {
                    if let Some(answer) = self.paths[i].push(now, &frame) {
                        self.paths[1 - i].push(now, &answer);
                    }
                }
            }
            if !busy {
                self.sleep()?;
            }
        }
        Ok(())
    }

    /// Until a frame is due, a timer, or the kernel sends something.
    fn sleep(&mut self) -> io::Result<()> {
        let now = self.now();
        let due = self.paths.iter().filter_map(Path::next_at);
        let timers = self.ends.iter().map(|e| e.deadline(now));
        let next = due.chain(timers).min().unwrap_or(Instant::FAR);
        let wait = Duration::from_micros(next.micros_since(now)).min(LONGEST_SLEEP);
        if wait.is_zero() {
            return Ok(());
        }
        let mut fds: Vec<PollFd> = Vec::new();
        for end in &self.ends {
            if let End::Kernel(k) = end {
                fds.push(PollFd::from_borrowed_fd(k.port.wake_fd(), PollFlags::IN));
            }
        }
        let timeout = Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos() as _ };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// What happened to the frames of each end.
    pub fn counters(&self) -> [PathCounters; 2] {
        [self.paths[0].counters(), self.paths[1].counters()]
    }
}
