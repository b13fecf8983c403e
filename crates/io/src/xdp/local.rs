//! Connections from this machine to owned ports. They come by `lo`, where no XDP program takes them, so the kernel's TCP has
//! them: a [`Placeholder`] lets its listener have what comes by `lo`, and whoever runs the engine accepts them here, to serve
//! or to refuse them. Without that a program on this machine would wait for an answer until it gives up.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown, sockopt};

use super::sharing::{Placeholder, share};
use crate::error::PortError;

/// The owned ports of an engine, as this machine's own programs reach them.
#[derive(Debug)]
pub struct Local {
    epoll: OwnedFd,
    places: Mutex<Places>,
    /// Somebody accepts; see [`Local::take`].
    taken: AtomicBool,
    /// The process whose listeners these are.
    process: u32,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    listeners: HashMap<u64, Weak<OwnedFd>>,
}

/// A listener's place among those of a [`Local`]; dropping it takes the listener out, and ends it.
#[derive(Debug)]
pub(super) struct Place(Arc<Local>, u64);

impl Drop for Place {
    fn drop(&mut self) {
        let listener = self.0.places().listeners.remove(&self.1);
        if self.0.process == std::process::id()
            && let Some(listener) = listener.and_then(|listener| listener.upgrade())
        {
            // Closing alone would do neither where a child of fork(2) has the descriptor too: what waits there would be told
            // again and again, and nobody would accept it. Neither can fail in a way that matters: the descriptor is open.
            let _ = epoll::delete(&self.0.epoll, &*listener);
            let _ = shutdown(&*listener, Shutdown::Both);
        }
    }
}

/// Connections that [`Local::refuse`] resets at once.
const MOST_REFUSED: usize = 64;

impl Local {
    /// None yet. Errors: the kernel's.
    pub fn new() -> io::Result<Arc<Local>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Arc::new(Local {
            epoll,
            places: Mutex::default(),
            taken: AtomicBool::new(false),
            process: std::process::id(),
        }))
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds an address and port, as [`Placeholder::hold`] does; connections to it from this machine come here.
    pub fn hold(self: &Arc<Self>, addr: SocketAddr) -> Result<Placeholder, PortError> {
        let mut held = Placeholder::hold(addr)?;
        let mut places = self.places();
        places.next += 1;
        let key = places.next;
        let source =
            |source: Errno| PortError::System { what: format!("holding TCP port {addr}"), source: source.into() };
        epoll::add(&self.epoll, &held.fd, EventData::new_u64(key), EventFlags::IN).map_err(source)?;
        places.listeners.insert(key, Arc::downgrade(&held.fd));
        drop(places);
        held.place = Some(Place(self.clone(), key));
        Ok(held)
    }

    /// From now on another process of this user may hold these addresses and ports beside this one ([`Succession`](super::Succession)).
    pub fn let_successor_in(&self) {
        for listener in self.places().listeners.values().filter_map(Weak::upgrade) {
            // It cannot fail in a way that matters: the other one waits for the end then.
            let _ = share(&listener, true);
        }
    }

    /// From now on the caller accepts; false where somebody does already.
    pub fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::AcqRel)
    }

    /// The opposite of [`Local::take`].
    pub fn leave(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// Whether somebody accepts.
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
    }

    /// The next connection, if one waits; it does not block. Errors: those of accept(2).
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        loop {
            let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            let key = match epoll::wait(&self.epoll, &mut events, Some(&now)) {
                Ok(0) => return Ok(None),
                Ok(_) => events[0].data.u64(),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            // A listener whose place is dropped at this moment is shut down by that thread.
            let Some(listener) = self.places().listeners.get(&key).and_then(Weak::upgrade) else { continue };
            match accept_with(&*listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(stream) => return Ok(Some(stream)),
                // Another thread was faster, or the connection has ended in the queue.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Resets some of what waits, unless somebody accepts; the rest is still told. Errors: those of accept(2).
    pub fn refuse(&self) -> io::Result<()> {
        for _ in 0..MOST_REFUSED {
            if self.is_taken() {
                break;
            }
            let Some(stream) = self.accept()? else { break };
            // Where that fails the close is an orderly one, which ends the connection as well.
            let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        }
        Ok(())
    }
}

/// Readable while a connection waits.
impl AsFd for Local {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    /// A listener that a child of fork(2) has too ends with its place, and what waited there is told no more.
    #[test]
    fn a_listener_ends_whoever_else_has_it() {
        let local = Local::new().unwrap();
        let held = match local.hold("127.0.0.1:0".parse().unwrap()) {
            // A kernel may refuse ordinary users the filter.
            Err(refused @ PortError::Permission { .. }) => return testing::skip(refused),
            held => held.unwrap(),
        };
        let at = SocketAddr::try_from(rustix::net::getsockname(&*held.fd).unwrap()).unwrap();
        // As after fork: another descriptor of the same open file.
        let child = held.fd.try_clone().unwrap();
        let _waits = TcpStream::connect(at).unwrap();
        drop(held);
        assert_eq!(TcpStream::connect(at).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(local.accept().unwrap().is_none());
        drop(child);
    }
}
