//! Epolls: registrations, and the wait that runs the lane.

use core::ffi::c_int;
use std::time::Duration;

use capi::{Errno, Result};
use socket::{Interest, Ready, SockId, Sockets};

use crate::context::Context;
use crate::ids::{Kind, MOST_EVENTS as MOST};

/// `struct mtcp_epoll_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    /// Bits, as for epoll_ctl(2).
    pub events: u32,
    /// The program's own.
    pub data: u64,
}

const ADD: c_int = 1;
const DELETE: c_int = 2;
const MODIFY: c_int = 3;

/// A new epoll, which reports one event at a time.
pub fn create(c: &mut Context) -> Result<c_int> {
    if !c.ids.has_room(1) {
        return Err(Errno::MFILE);
    }
    let sock = c.call(Sockets::epoll_create_singly)?;
    c.ids.insert(Kind::Epoll, sock, false)
}

fn epoll_of(c: &mut Context, id: c_int) -> Result<SockId> {
    let entry = c.ids.get(id)?;
    match entry.kind {
        Kind::Epoll => Ok(entry.sock),
        Kind::Stream | Kind::Listener { .. } | Kind::Pipe => Err(Errno::INVAL),
    }
}

/// As epoll_ctl(2).
pub fn control(c: &mut Context, epoll: c_int, op: c_int, id: c_int, event: Option<Event>) -> Result<()> {
    let epoll = epoll_of(c, epoll)?;
    let sock = c.ids.get(id)?.sock;
    let interest = || event.map(|e| Interest::from_epoll(e.events, e.data)).ok_or(Errno::FAULT);
    match op {
        ADD => {
            let interest = interest()?;
            c.call(|s| s.epoll_add(epoll, sock, interest))
        }
        MODIFY => {
            let interest = interest()?;
            c.call(|s| s.epoll_modify(epoll, sock, interest))
        }
        DELETE => c.call(|s| s.epoll_delete(epoll, sock)),
        _ => Err(Errno::INVAL),
    }
}

/// As epoll_wait(2), `timeout` in milliseconds, below 0 without end; `out` is called with what is ready, at most `most`.
pub fn wait(
    c: &mut Context,
    epoll: c_int,
    most: c_int,
    timeout: c_int,
    mut out: impl FnMut(usize, Event),
) -> Result<c_int> {
    let epoll = epoll_of(c, epoll)?;
    let most = usize::try_from(most).ok().filter(|n| *n > 0).ok_or(Errno::INVAL)?.min(MOST);
    let mut ready = core::mem::take(&mut c.ready);
    if ready.len() < most {
        ready.resize(most, Ready { events: 0, data: 0 });
    }
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let found = c.enter(|app| app.epoll_wait(epoll, &mut ready[..most], limit, || false));
    if let Ok(n) = found {
        for (i, r) in ready[..n].iter().enumerate() {
            out(i, Event { events: r.events, data: r.data });
        }
    }
    c.ready = ready;
    Ok(found? as c_int)
}

/// The name of one event; of several, or of none that there is, `UNKNOWN`.
pub fn name(event: u32) -> &'static core::ffi::CStr {
    const NAMES: [(u32, &core::ffi::CStr); 14] = [
        (0, c"NONE"),
        (0x001, c"IN"),
        (0x002, c"PRI"),
        (0x004, c"OUT"),
        (0x008, c"ERR"),
        (0x010, c"HUP"),
        (0x040, c"RDNORM"),
        (0x080, c"RDBAND"),
        (0x100, c"WRNORM"),
        (0x200, c"WRBAND"),
        (0x400, c"MSG"),
        (0x2000, c"RDHUP"),
        (1 << 30, c"ONESHOT"),
        (1 << 31, c"ET"),
    ];
    NAMES.iter().find(|(bit, _)| *bit == event).map_or(c"UNKNOWN", |(_, name)| name)
}
