//! poll and epoll.

use std::time::Duration;

use rustix::io::Errno;
use socket::{Interest, Ready, bits};

use crate::calls::errno;
use crate::plugin::{Plugin, Result, World};

/// Milliseconds as poll(2) and epoll_wait(2) have them; negative ones wait for ever.
fn limit(timeout: i32) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Waits at most that long until `look` finds something.
fn wait(plugin: &Plugin, timeout: i32, mut look: impl FnMut(&mut World) -> Result<usize>) -> Result<usize> {
    let found = plugin.block(limit(timeout), |w| match look(w) {
        Ok(0) => None,
        other => Some(other),
    });
    // The time is over.
    if found == Err(Errno::AGAIN) { Ok(0) } else { found }
}

impl Plugin {
    /// poll(2) on `(descriptor, events)`; the answers go to `returned`. How many have one.
    pub fn poll(&self, fds: &[(i32, i16)], returned: &mut [i16], timeout: i32) -> Result<usize> {
        let invalid = libc::POLLNVAL as u32;
        wait(self, timeout, |w| {
            for ((fd, events), out) in fds.iter().zip(returned.iter_mut()) {
                let asked = *events as u32 | bits::ERR | bits::HUP;
                let now = match w.id(*fd) {
                    _ if *fd < 0 => 0,
                    Ok(id) => w.machine.sockets().readiness(id).map_or(invalid, |r| r & asked),
                    Err(_) => invalid,
                };
                *out = now as i16;
            }
            Ok(returned.iter().filter(|r| **r != 0).count())
        })
    }

    /// epoll_ctl(2).
    pub fn epoll_ctl(&self, epoll: i32, op: i32, fd: i32, events: u32, data: u64) -> Result<()> {
        self.call(|w| {
            let (epoll, id) = (w.id(epoll)?, w.id(fd)?);
            let interest = Interest::from_epoll(events, data);
            w.with(|s| match op {
                libc::EPOLL_CTL_ADD => s.epoll_add(epoll, id, interest).map_err(errno),
                libc::EPOLL_CTL_MOD => s.epoll_modify(epoll, id, interest).map_err(errno),
                libc::EPOLL_CTL_DEL => s.epoll_delete(epoll, id).map_err(errno),
                _ => Err(Errno::INVAL),
            })
        })
    }

    /// epoll_wait(2): at most `most` events.
    pub fn epoll_wait(&self, epoll: i32, most: i32, timeout: i32) -> Result<Vec<Ready>> {
        let most = usize::try_from(most).ok().filter(|n| (1..=4096).contains(n)).ok_or(Errno::INVAL)?;
        let mut ready = vec![Ready { events: 0, data: 0 }; most];
        let n = wait(self, timeout, |w| {
            let epoll = w.id(epoll)?;
            w.with(|s| s.epoll_collect(epoll, &mut ready)).map_err(errno)
        })?;
        ready.truncate(n);
        Ok(ready)
    }
}
