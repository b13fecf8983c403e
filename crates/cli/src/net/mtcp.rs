//! A corelane lane as a network through mTCP's C functions, as a C program calls them: what they cost beside the Rust API.

use super::{LISTENER, Net, Ready};
use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, c_int};
use mtcp::{Event, Token, ffi as calls};
use std::io;
use std::ptr::null_mut;
use std::time::Duration;

const BACKLOG: c_int = 65_535;
const EVENTS: usize = 512;
/// EPOLL_CTL_ADD.
const ADD: c_int = 1;

/// A context, and a listener on it.
pub struct OnMtcp {
    mctx: *mut Token,
    epoll: c_int,
    listener: c_int,
    events: Vec<Event>,
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl OnMtcp {
    /// A context of this thread, listening on a port of all addresses of both families.
    pub fn new(app: corelane::App, port: u16) -> io::Result<OnMtcp> {
        let mctx = mtcp::adopt(app)?;
        let mut net = OnMtcp { mctx, epoll: -1, listener: -1, events: vec![Event { events: 0, data: 0 }; EVENTS] };
        let any = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as u16,
            sin6_port: port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        };
        let len = size_of_val(&any) as libc::socklen_t;
        // SAFETY: the context is this thread's; the address is as long as is said.
        unsafe {
            net.epoll = checked(calls::mtcp_epoll_create(mctx, EVENTS as c_int))?;
            net.listener =
                checked(calls::mtcp_socket(mctx, libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0))?;
            checked(calls::mtcp_bind(mctx, net.listener, (&raw const any).cast(), len))?;
            checked(calls::mtcp_listen(mctx, net.listener, BACKLOG))?;
        }
        net.add(net.listener, EPOLLIN, LISTENER)?;
        Ok(net)
    }

    fn add(&mut self, id: c_int, events: c_int, key: u64) -> io::Result<()> {
        let event = Event { events: (events | EPOLLET) as u32, data: key };
        // SAFETY: one event is there.
        checked(unsafe { calls::mtcp_epoll_ctl(self.mctx, self.epoll, ADD, id, &event) }).map(drop)
    }
}

impl Drop for OnMtcp {
    fn drop(&mut self) {
        // SAFETY: any number may be given.
        unsafe { calls::mtcp_destroy_context(self.mctx) };
    }
}

impl Net for OnMtcp {
    type Stream = c_int;

    fn accept(&mut self, _: usize) -> io::Result<Option<c_int>> {
        // SAFETY: nobody asks for the address.
        match checked(unsafe { calls::mtcp_accept(self.mctx, self.listener, null_mut(), null_mut()) }) {
            Ok(id) => {
                // SAFETY: any number may be given.
                checked(unsafe { calls::mtcp_setsock_nonblock(self.mctx, id) })?;
                Ok(Some(id))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn stop_listening(&mut self) {
        // SAFETY: any number may be given.
        unsafe { calls::mtcp_close(self.mctx, std::mem::replace(&mut self.listener, -1)) };
    }

    fn connect(&mut self, _: u64) -> io::Result<c_int> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connected(&mut self, _: &c_int) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn watch(&mut self, id: &c_int, key: u64) -> io::Result<()> {
        self.add(*id, EPOLLIN | EPOLLOUT | EPOLLRDHUP, key)
    }

    fn read(&mut self, id: &c_int, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the memory is there, and as long as is said.
        let n = unsafe { calls::mtcp_read(self.mctx, *id, buffer.as_mut_ptr().cast(), buffer.len()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// mTCP has no word for what follows; what is written and closed in one turn leaves together anyway.
    fn write(&mut self, id: &c_int, data: &[u8], _more: bool) -> io::Result<usize> {
        // SAFETY: the memory is there, and as long as is said.
        let n = unsafe { calls::mtcp_write(self.mctx, *id, data.as_ptr().cast(), data.len()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    fn shutdown(&mut self, id: &c_int) -> io::Result<()> {
        // SAFETY: any number may be given.
        checked(unsafe { calls::mtcp_shutdown(self.mctx, *id, libc::SHUT_WR) }).map(drop)
    }

    fn close(&mut self, id: c_int) {
        // SAFETY: any number may be given.
        unsafe { calls::mtcp_close(self.mctx, id) };
    }

    fn abort(&mut self, id: c_int) {
        // SAFETY: any number may be given.
        unsafe { calls::mtcp_abort(self.mctx, id) };
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        let limit = timeout.map_or(-1, |limit| limit.as_millis().min(c_int::MAX as u128) as c_int);
        let (at, room) = (self.events.as_mut_ptr(), self.events.len() as c_int);
        // SAFETY: so many events have room there.
        let n = checked(unsafe { calls::mtcp_epoll_wait(self.mctx, self.epoll, at, room, limit) })?;
        ready.extend(self.events[..n as usize].iter().map(|event| {
            let is = |bits: c_int| event.events & bits as u32 != 0;
            let ended = is(EPOLLRDHUP | EPOLLHUP | EPOLLERR);
            Ready { key: event.data, read: is(EPOLLIN) || ended, write: is(EPOLLOUT), ended }
        }));
        Ok(())
    }
}
