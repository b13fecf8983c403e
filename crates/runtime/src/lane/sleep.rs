//! How a lane sleeps: what it waits for, for how long, and what ends that; and what becomes of ports whose links are down or gone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io::{Bell, Port, Presence};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use stack::InterfaceId;
use wire::Instant;

use super::{LEFT_US, Lane, Watched, held_for};
use client::add;

/// Descriptors that a sleeping lane waits on at most.
const MAX_FDS: usize = 32;
/// Of these, those that are no ports': the bell, one more, and that of clients.
const OTHERS: usize = 3;
/// How soon a port that was full is tried again, where it does not say when it has room; and how soon a full event ring, µs.
const FULL_US: u64 = 200;
/// How often it is looked for an interface that is down.
const DOWN_US: u64 = 100_000;

impl Lane {
    /// Waits for a frame, the bell, `extra` or the next timer, at most `limit`. Returns at once when there is work. Whether a
    /// signal handler ended it.
    pub(crate) fn sleep(&mut self, extra: Option<&Bell>, limit: Option<Duration>) -> bool {
        let mut signal = false;
        if let Some(wait) = self.prepare(limit) {
            let since = self.clock.now();
            match self.poll(extra, wait) {
                Ok(None | Some(0)) => {}
                Ok(Some(ill)) => self.look_after(ill),
                Err(error) => signal = error == Errno::INTR,
            }
            self.slept(since);
        }
        self.awake();
        signal
    }

    /// Arms all that ends a sleep. How many microseconds it may take, and for ever where there is nothing to wait for but
    /// that; `None` when there is work. Either way [`Lane::awake`] comes next.
    pub(crate) fn prepare(&mut self, limit: Option<Duration>) -> Option<Option<u64>> {
        self.bell.arm();
        let handed = !self.handover.is_empty();
        if let Some(clients) = &self.clients {
            clients.arm();
        }
        if handed && self.held_handed.is_none()
            || self.stack.has_jobs()
            || self.stack.is_ending()
            || self.stack.is_reclaiming()
            || self.mail.is_called()
        {
            return None;
        }
        for i in 0..self.ports.len() {
            self.armed += 1;
            if self.gone & 1 << i != 0 {
                continue;
            }
            let frames = !self.ports[i].prepare_sleep();
            if frames && self.held[i].is_none() {
                return None;
            }
            if frames != (self.unread & 1 << i != 0) {
                self.watch_port(i, frames);
            }
        }
        let now = self.clock.now();
        let mut wait = self.stack.next_deadline().map(|at| at.micros_since(now));
        let full = self.stack.events_pending().then_some(FULL_US);
        wait = [wait, full].into_iter().flatten().min();
        for (i, port) in self.ports.iter().enumerate().filter(|(i, _)| self.gone & 1 << i == 0) {
            // Of what an idle turn leaves, the port had no room for. One that says nothing takes more soon, and tells nobody.
            let full = || self.stack.sends_by(InterfaceId(i as u8)).then_some(FULL_US);
            // One that is down takes nothing, however often it is asked.
            let least = if (self.down | self.link_down) & 1 << i != 0 { DOWN_US } else { 0 };
            let due = port.due_us().or_else(full).map(|us| us.max(least));
            let held = self.held[i].filter(|_| self.unread & 1 << i != 0).map(|since| held_for(since, now));
            wait = [wait, due, held].into_iter().flatten().min();
        }
        let held = self.held_handed.filter(|_| handed).map(|since| held_for(since, now));
        wait = [wait, held].into_iter().flatten().min();
        if self.down != 0 {
            self.look_for_down(now);
            wait = Some(wait.map_or(DOWN_US, |w| w.min(DOWN_US)));
        }
        // Looked at once the bell is armed, which is rung for what is left first.
        let left = if self.alone { self.stack.left_jobs_due(now, LEFT_US) } else { None };
        let limit = limit.map(|l| l.as_micros() as u64);
        let wait = [wait, left, limit, self.nap_us(), self.losses.due_us(now)].into_iter().flatten().min();
        (wait != Some(0)).then_some(wait)
    }

    /// After [`Lane::prepare`].
    pub(crate) fn awake(&mut self) {
        for port in &mut self.ports[..self.armed] {
            port.wake_up();
        }
        self.armed = 0;
        self.watched = Watched::No;
        if let Some(clients) = &self.clients {
            clients.quiet();
        }
        self.bell.disarm();
    }

    /// A sleep is over.
    pub(crate) fn slept(&self, since: Instant) {
        add(&self.stats.sleeps, 1);
        add(&self.stats.slept_us, self.clock.now().micros_since(since));
    }

    /// A descriptor that is readable whenever one that the lane waits for is.
    pub(crate) fn watch(&mut self) -> rustix::io::Result<Arc<OwnedFd>> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let none = epoll::EventData::new_u64(0);
        epoll::add(&fd, &*self.bell, none, epoll::EventFlags::IN)?;
        for port in &self.ports {
            epoll::add(&fd, port.wake_fd(), none, epoll::EventFlags::IN)?;
        }
        if let Some(clients) = &self.clients {
            epoll::add(&fd, clients.wake_fd(), none, epoll::EventFlags::IN)?;
        }
        let fd = Arc::new(fd);
        self.watches.push(fd.clone());
        Ok(fd)
    }

    /// Clients in other processes wake whoever waits for this lane, from now on.
    pub(super) fn watch_clients(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let none = epoll::EventData::new_u64(0);
        self.watches.iter().try_for_each(|watch| epoll::add(watch, fd, none, epoll::EventFlags::IN))
    }

    /// Whoever waits for this lane, with its turn or without, hears of frames on a port unless there are some.
    #[cold]
    fn watch_port(&mut self, i: usize, frames: bool) {
        let bit = 1 << i;
        self.unread = if frames { self.unread | bit } else { self.unread & !bit };
        let read = if frames { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        for watch in &self.watches {
            // Where it fails there is the timer, or the wake-up comes at once.
            let _ = epoll::modify(watch, self.ports[i].wake_fd(), epoll::EventData::new_u64(0), read);
        }
    }

    /// Nobody waits for a port any more.
    #[cold]
    fn leave(&mut self, i: usize) {
        self.gone |= 1 << i;
        for watch in &self.watches {
            // One that is closed is out of it already.
            let _ = epoll::delete(watch, self.ports[i].wake_fd());
        }
    }

    /// What the control plane heard of a port's link.
    #[cold]
    pub(super) fn link_is(&mut self, i: usize, presence: Presence) {
        match presence {
            Presence::Up => self.link_down &= !(1 << i),
            Presence::Down => self.link_down |= 1 << i,
            Presence::Gone => self.leave(i),
        }
    }

    /// Looks after ports whose descriptors are in error: after a wake-up that brought nothing.
    pub(crate) fn look_around(&mut self) {
        let ill = self.ill();
        if ill != 0 {
            self.look_after(ill);
        }
    }

    /// The ports whose descriptors are in error now, by bit.
    fn ill(&self) -> u32 {
        self.poll(None, Some(0)).ok().flatten().unwrap_or(0)
    }

    /// Waits; the ports whose descriptors are in error, by bit, or `None` where the time was over first.
    fn poll(&self, extra: Option<&Bell>, wait_us: Option<u64>) -> Result<Option<u32>, Errno> {
        let timeout =
            wait_us.map(|us| Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 });
        let bell = self.bell.as_fd();
        let mut fds: [PollFd; MAX_FDS] = core::array::from_fn(|_| PollFd::from_borrowed_fd(bell, PollFlags::IN));
        let ports = self.ports.len().min(MAX_FDS - OTHERS);
        for (i, port) in self.ports[..ports].iter().enumerate() {
            if self.gone & 1 << i == 0 {
                let read = if self.unread & 1 << i != 0 { PollFlags::empty() } else { PollFlags::IN };
                fds[i] = PollFd::from_borrowed_fd(port.wake_fd(), read);
            }
        }
        // The bell itself is in the place after them.
        let mut n = ports + 1;
        if let Some(extra) = extra {
            fds[n] = PollFd::from_borrowed_fd(extra.as_fd(), PollFlags::IN);
            n += 1;
        }
        if let Some(clients) = &self.clients {
            fds[n] = PollFd::from_borrowed_fd(clients.wake_fd(), PollFlags::IN);
            n += 1;
        }
        if poll(&mut fds[..n], timeout.as_ref())? == 0 {
            return Ok(None);
        }
        let bad = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        Ok(Some((0..ports).filter(|i| fds[*i].revents().intersects(bad)).fold(0, |bits, i| bits | 1 << i)))
    }

    /// A descriptor in error is ready for ever, until the error was taken or nobody waits for it any more.
    fn look_after(&mut self, ill: u32) {
        for i in (0..self.ports.len().min(MAX_FDS - OTHERS)).filter(|i| ill & 1 << i != 0) {
            let name = self.port_name(InterfaceId(i as u8));
            let error = self.ports[i].take_error();
            if self.ill() & 1 << i == 0 {
                match (error, self.ports[i].presence()) {
                    (Some(_), Presence::Gone) => self.devices.gone(i, &name),
                    (Some(error), _) => {
                        if self.devices.is_down(i, true) {
                            tracing::warn!("{name}: {error}: nothing comes or goes until it is up again");
                        }
                        self.down |= 1 << i;
                    }
                    (None, _) => tracing::warn!("{name}: an error that the kernel does not name"),
                }
                continue;
            }
            self.leave(i);
            self.devices.gone(i, &name);
        }
    }

    /// Looks what became of interfaces that were down.
    fn look_for_down(&mut self, now: Instant) {
        if now.micros_since(self.looked) < DOWN_US {
            return;
        }
        self.looked = now;
        let down = self.down;
        for i in (0..self.ports.len()).filter(|i| down & 1 << i != 0) {
            match self.ports[i].presence() {
                Presence::Down => continue,
                Presence::Up if self.devices.is_down(i, false) => {
                    tracing::warn!("{} is up again", self.port_name(InterfaceId(i as u8)));
                }
                Presence::Up => {}
                Presence::Gone => self.devices.gone(i, &self.port_name(InterfaceId(i as u8))),
            }
            self.down &= !(1 << i);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
