//! A lane as its application sees it: the maker of sockets.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ::socket::{Errno, SockId, SockOption, Sockets};
use mem::View;
use protocol::Endpoint;
use runtime::{App, LaneStats, Waker};

use crate::poller::Poller;
use crate::socket::TcpSocket;
use crate::stream::TcpStream;

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
    /// Local address and port; 0 and unspecified let the lane choose. Of several lanes each has ports of its own towards a remote
    /// end, those whose replies come to it; another's is EADDRNOTAVAIL.
    pub bind: Option<SocketAddr>,
    /// How long a blocking connect waits; `None` as long as TCP tries.
    pub timeout: Option<Duration>,
}

pub(crate) fn error(e: Errno) -> io::Error {
    io::Error::from_raw_os_error(e.number())
}

/// What every call that would wait for ever gets.
pub(crate) fn over() -> io::Error {
    io::Error::new(io::ErrorKind::NetworkDown, "the engine was shut down")
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
        let mut app = self.shared.app.borrow_mut();
        let answer = f(&mut app.sockets).map_err(error);
        app.leave();
        answer
    }

    /// Hands over what was asked for, at once; `inline` it waits for the next call that advances.
    pub(crate) fn hand_over(&self) {
        self.shared.app.borrow_mut().hand_over();
    }

    /// Hands over what was asked for, and has it done; `inline` that takes a turn.
    pub(crate) fn send_off(&self) {
        self.shared.app.borrow_mut().send_off();
    }

    /// Waits until `f` gives something else than EAGAIN, at most `limit`; `EAGAIN` then, as a BSD call with a timeout.
    pub(crate) fn block<T>(
        &self,
        limit: Option<Duration>,
        mut f: impl FnMut(&mut Sockets) -> Result<T, Errno>,
    ) -> io::Result<T> {
        let retry = |s: &mut Sockets| match f(s) {
            Err(Errno::EAGAIN) => None,
            other => Some(other),
        };
        self.until(limit, retry, Errno::EAGAIN)
    }

    /// Waits until `done` gives something, at most `limit`; `late` then.
    pub(crate) fn until<T>(
        &self,
        limit: Option<Duration>,
        done: impl FnMut(&mut Sockets) -> Option<Result<T, Errno>>,
        late: Errno,
    ) -> io::Result<T> {
        let mut app = self.shared.app.borrow_mut();
        match app.until(limit, done) {
            Some(answer) => answer.map_err(error),
            None if app.is_over() => Err(over()),
            None => Err(error(late)),
        }
    }

    /// Which lane of its engine.
    pub fn index(&self) -> u16 {
        self.shared.app.borrow().index()
    }

    /// The lane's counters.
    pub fn stats(&self) -> Arc<LaneStats> {
        self.shared.app.borrow().stats().clone()
    }

    /// An IPv4 socket, to be given options before it listens or connects.
    pub fn socket_v4(&self) -> io::Result<TcpSocket> {
        TcpSocket::new(self, false)
    }

    /// An IPv6 socket, to be given options before it listens or connects.
    pub fn socket_v6(&self) -> io::Result<TcpSocket> {
        TcpSocket::new(self, true)
    }

    /// Listens on an address; port 0 lets the lane choose.
    pub fn listen(&self, addr: SocketAddr, options: ListenOptions) -> io::Result<TcpListener> {
        let socket = TcpSocket::new(self, addr.is_ipv6())?;
        socket.set_option(SockOption::ReusePort(options.reuse_port))?;
        socket.set_option(SockOption::V6Only(options.v6_only))?;
        socket.bind(addr)?;
        socket.listen(options.backlog)
    }

    /// Connects and waits until it is done.
    pub fn connect(&self, addr: SocketAddr) -> io::Result<TcpStream> {
        self.connect_with(addr, ConnectOptions::default())
    }

    /// Connects and waits until it is done.
    pub fn connect_with(&self, addr: SocketAddr, options: ConnectOptions) -> io::Result<TcpStream> {
        self.socket_for(addr, options)?.connect(addr, options.timeout)
    }

    /// Begins to connect; the stream is writable once it is done, and [`TcpStream::take_error`] tells how.
    pub fn connect_nonblocking(&self, addr: SocketAddr, options: ConnectOptions) -> io::Result<TcpStream> {
        self.socket_for(addr, options)?.connect_nonblocking(addr)
    }

    fn socket_for(&self, addr: SocketAddr, options: ConnectOptions) -> io::Result<TcpSocket> {
        let socket = TcpSocket::new(self, addr.is_ipv6())?;
        options.bind.map_or(Ok(()), |local| socket.bind(local))?;
        Ok(socket)
    }

    /// A poller for many sockets of this lane.
    pub fn poller(&self) -> io::Result<Poller> {
        let id = self.with(Sockets::epoll_create)?;
        Ok(Poller { lane: self.clone(), id })
    }

    /// A handle that ends this lane's current or next [`Poller::wait`] from any thread.
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
        self.shared.app.borrow().snapshot()
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
    pub(crate) fn new(lane: Lane, id: SockId, claim: Option<runtime::Claim>) -> TcpListener {
        TcpListener { lane, id, nonblocking: false, claim }
    }

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

    /// Gives the port back where it is shared with the kernel: connections that are begun from now on are the kernel's. Those that have
    /// begun can still be accepted; once it is dropped, what is left of them is reset.
    pub fn give_port_back(&mut self) {
        drop(self.claim.take());
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

    /// The option that `like` names, with its value.
    pub fn option(&self, like: SockOption) -> io::Result<SockOption> {
        let id = self.id;
        self.lane.with(|s| s.option(id, like))
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        // First the kernel may have what opens connections, so that no SYN arrives for a listener that is gone.
        drop(self.claim.take());
        if let Ok(mut app) = self.lane.shared.app.try_borrow_mut() {
            // Closed already only if the table says so; nothing is left to do then.
            let _ = app.sockets.close(self.id);
            app.leave();
        }
    }
}
