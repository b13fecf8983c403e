//! A lane as its application sees it: the maker of sockets.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use runtime::{App, LaneStats, Waker};
use socket::{Errno, SockId, SockOption, Sockets};
use stack::channel::Endpoint;

use crate::poller::Poller;
use crate::stream::TcpStream;

/// One lane, on the thread that took it. Clones are handles of the same lane.
#[derive(Clone)]
pub struct Lane {
    pub(crate) app: Rc<RefCell<App>>,
    /// Raised by wakers, lowered by the wait that they end.
    pub(crate) woken: Arc<AtomicBool>,
}

/// What `listen` may ask for.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Most connections that wait to be accepted.
    pub backlog: u32,
    /// Several listeners of one lane share an address.
    pub reuse_port: bool,
    /// An unspecified IPv6 address takes no IPv4.
    pub v6_only: bool,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions { backlog: 4096, reuse_port: false, v6_only: false }
    }
}

/// What `connect` may ask for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectOptions {
    /// Local address and port; 0 and unspecified let the lane choose.
    pub bind: Option<SocketAddr>,
    /// How long a blocking connect waits; `None` as long as TCP tries.
    pub timeout: Option<Duration>,
}

pub(crate) fn error(e: Errno) -> io::Error {
    io::Error::from_raw_os_error(e.number())
}

pub(crate) fn endpoint(a: SocketAddr) -> Endpoint {
    Endpoint { addr: a.ip().into(), port: a.port() }
}

pub(crate) fn address(e: Endpoint) -> SocketAddr {
    SocketAddr::new(e.addr.to_ip(), e.port)
}

impl Lane {
    pub(crate) fn new(app: App) -> Lane {
        Lane { app: Rc::new(RefCell::new(app)), woken: Arc::default() }
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Sockets) -> Result<T, Errno>) -> io::Result<T> {
        f(&mut self.app.borrow_mut().sockets).map_err(error)
    }

    /// Waits until `f` gives something else than EAGAIN, at most `limit`; `EAGAIN` then, as a BSD call with a timeout.
    pub(crate) fn block<T>(
        &self,
        limit: Option<Duration>,
        mut f: impl FnMut(&mut Sockets) -> Result<T, Errno>,
    ) -> io::Result<T> {
        let mut app = self.app.borrow_mut();
        let answer = app.until(limit, |s| match f(s) {
            Err(Errno::EAGAIN) => None,
            other => Some(other),
        });
        answer.unwrap_or(Err(Errno::EAGAIN)).map_err(error)
    }

    /// Which lane of its engine.
    pub fn index(&self) -> u16 {
        self.app.borrow().index()
    }

    /// The lane's counters.
    pub fn stats(&self) -> Arc<LaneStats> {
        self.app.borrow().stats().clone()
    }

    /// Listens on an address; port 0 lets the lane choose.
    pub fn listen(&self, addr: SocketAddr, options: ListenOptions) -> io::Result<TcpListener> {
        let id = self.with(|s| {
            let id = s.socket(addr.is_ipv6())?;
            s.set_option(id, SockOption::ReusePort(options.reuse_port))?;
            s.set_option(id, SockOption::V6Only(options.v6_only))?;
            s.bind(id, endpoint(addr))?;
            Ok(id)
        })?;
        let mut listener = TcpListener { lane: self.clone(), id, nonblocking: false, claim: None };
        listener.claim = self.app.borrow().claim(addr, options.v6_only)?;
        self.with(|s| s.listen(id, socket::ListenOptions { backlog: options.backlog }))?;
        let answer = self.app.borrow_mut().until(None, |s| s.listen_result(id));
        answer.unwrap_or(Err(Errno::EINVAL)).map_err(error)?;
        Ok(listener)
    }

    /// Connects and waits until it is done.
    pub fn connect(&self, addr: SocketAddr) -> io::Result<TcpStream> {
        self.connect_with(addr, ConnectOptions::default())
    }

    /// Connects and waits until it is done.
    pub fn connect_with(&self, addr: SocketAddr, options: ConnectOptions) -> io::Result<TcpStream> {
        let stream = self.connect_nonblocking(addr, options)?;
        stream.set_nonblocking(false);
        let id = stream.id;
        let answer = self.app.borrow_mut().until(options.timeout, |s| s.connect_result(id));
        answer.unwrap_or(Err(Errno::ETIMEDOUT)).map_err(error)?;
        Ok(stream)
    }

    /// Begins to connect; the stream is writable once it is done, and [`TcpStream::take_error`] tells how.
    pub fn connect_nonblocking(&self, addr: SocketAddr, options: ConnectOptions) -> io::Result<TcpStream> {
        let id = self.with(|s| s.socket(addr.is_ipv6()))?;
        let stream = TcpStream::new(self.clone(), id, true);
        self.with(|s| {
            if let Some(bind) = options.bind {
                s.bind(id, endpoint(bind))?;
            }
            match s.connect(id, endpoint(addr)) {
                Err(Errno::EINPROGRESS) => Ok(()),
                other => other,
            }
        })?;
        Ok(stream)
    }

    /// A poller for many sockets of this lane.
    pub fn poller(&self) -> io::Result<Poller> {
        let id = self.with(Sockets::epoll_create)?;
        Ok(Poller { lane: self.clone(), id })
    }

    /// A handle that ends this lane's current or next [`Poller::wait`] from any thread.
    pub fn waker(&self) -> Waker {
        self.app.borrow().waker(self.woken.clone())
    }

    /// Lets the lane work without waiting; for loops that do something else too.
    pub fn advance(&self) -> bool {
        self.app.borrow_mut().advance()
    }

    /// Lets what was written leave, at most for `limit`; for an orderly end of a thread.
    pub fn drain(&self, limit: Duration) {
        self.app.borrow_mut().drain(limit);
    }

    /// Everything this lane counted, where this thread runs it (`inline`).
    pub fn snapshot(&self) -> Option<runtime::Snapshot> {
        self.app.borrow().lane().map(runtime::Lane::snapshot)
    }
}

/// A listening socket. Dropping it stops listening and resets what nobody accepted.
pub struct TcpListener {
    pub(crate) lane: Lane,
    pub(crate) id: SockId,
    nonblocking: bool,
    /// The kernel's consent to use the port, on a shared interface.
    claim: Option<runtime::Claim>,
}

impl TcpListener {
    /// Accepts the oldest connection; waits for one unless non-blocking. The stream blocks as the listener does.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let id = self.id;
        let (conn, peer) = match self.nonblocking {
            true => self.lane.with(|s| s.accept(id))?,
            false => self.lane.block(None, |s| s.accept(id))?,
        };
        Ok((TcpStream::new(self.lane.clone(), conn, self.nonblocking), address(peer)))
    }

    /// Whether `accept` fails with `WouldBlock` rather than wait.
    pub fn set_nonblocking(&mut self, on: bool) {
        self.nonblocking = on;
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let id = self.id;
        self.lane.with(|s| s.local(id)).map(address)
    }

    /// Sets an option; accepted streams inherit it.
    pub fn set_option(&self, option: SockOption) -> io::Result<()> {
        let id = self.id;
        self.lane.with(|s| s.set_option(id, option))
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        // First the kernel may have what opens connections, so that no SYN arrives for a listener that is gone.
        drop(self.claim.take());
        if let Ok(mut app) = self.lane.app.try_borrow_mut() {
            // Closed already only if the table says so; nothing is left to do then.
            let _ = app.sockets.close(self.id);
        }
    }
}
