//! A lane as its application sees it; what makes its sockets stands with them.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ::socket::{Errno, Sockets};
use mem::View;
use protocol::Endpoint;
use runtime::{App, LaneStats, Waker};

/// One lane, on the thread that took it. Clones are handles of the same lane.
#[derive(Clone)]
pub struct Lane {
    pub(crate) shared: Rc<Shared>,
}

/// What the handles of a lane have together; each of its sockets holds one, so a handle is one count and no atomic.
pub(crate) struct Shared {
    pub app: RefCell<App>,
    pub view: View,
    /// Raised by wakers, lowered by the wait that they end.
    pub woken: Arc<AtomicBool>,
}

pub(crate) fn error(e: Errno) -> io::Error {
    match e {
        Errno::ENETDOWN => io::Error::new(io::ErrorKind::NetworkDown, "the engine was shut down"),
        e => io::Error::from_raw_os_error(e.number()),
    }
}

pub(crate) fn endpoint(a: SocketAddr) -> Endpoint {
    Endpoint { addr: a.ip().into(), port: a.port() }
}

pub(crate) fn address(e: Endpoint) -> SocketAddr {
    SocketAddr::new(e.addr.to_ip(), e.port)
}

impl Lane {
    pub(crate) fn new(app: App) -> Lane {
        let view = app.sockets.view();
        Lane { shared: Rc::new(Shared { app: RefCell::new(app), view, woken: Arc::default() }) }
    }

    pub(crate) fn sockets<T>(&self, f: impl FnOnce(&mut Sockets) -> T) -> T {
        f(&mut self.shared.app.borrow_mut().sockets)
    }

    /// A call that does not wait. What it asks for is left to whoever runs the lane beside this thread.
    #[inline]
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Sockets) -> Result<T, Errno>) -> io::Result<T> {
        self.shared.app.borrow_mut().call(f).map_err(error)
    }

    /// A call that may wait. The program may do other things after it, for long.
    #[inline]
    pub(crate) fn enter<T>(&self, f: impl FnOnce(&mut App) -> Result<T, Errno>) -> io::Result<T> {
        let mut app = self.shared.app.borrow_mut();
        let answer = f(&mut app).map_err(error);
        app.leave();
        answer
    }

    /// Hands over what was asked for, and has it done; `inline` that takes a turn.
    pub(crate) fn send_off(&self) {
        self.shared.app.borrow_mut().send_off();
    }

    /// Which lane of its engine.
    pub fn index(&self) -> u16 {
        self.shared.app.borrow().index()
    }

    /// The lane's counters.
    pub fn stats(&self) -> Arc<LaneStats> {
        self.shared.app.borrow().stats().clone()
    }

    /// A handle that ends this lane's current or next [`Poller::wait`](crate::Poller::wait) from any thread.
    pub fn waker(&self) -> Waker {
        self.shared.app.borrow().waker(self.shared.woken.clone())
    }

    /// Lets the lane work without waiting; for loops that do something else too.
    pub fn advance(&self) -> bool {
        self.shared.app.borrow_mut().advance()
    }

    /// Waits until what was written has left and all connections of the lane are over, at most `limit`; for an orderly end of a
    /// thread.
    pub fn drain(&self, limit: Duration) {
        self.shared.app.borrow_mut().drain(limit);
    }

    /// Everything this lane counted, where this thread runs it (`inline`, and `guarded` unless its guard is at it).
    pub fn snapshot(&self) -> Option<runtime::Snapshot> {
        self.shared.app.borrow_mut().snapshot()
    }
}
