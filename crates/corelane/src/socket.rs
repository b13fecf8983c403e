//! A socket that neither listens nor connects yet: for options that the handshake needs.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ::socket::{Errno, SockId, SockOption};

use crate::lane::{Lane, endpoint, error};
use crate::listener::TcpListener;
use crate::stream::TcpStream;

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

/// A socket that neither listens nor connects yet. What is set on it goes before the configuration, from the first segment on;
/// the streams of a listener inherit it.
///
/// ```no_run
/// # fn f(lane: &corelane::Lane) -> std::io::Result<()> {
/// use corelane::{Algorithm, SockOption};
/// let socket = lane.socket_v4()?;
/// socket.set_option(SockOption::Congestion(Algorithm::NewReno))?;
/// socket.set_option(SockOption::UserTimeout(5_000))?;
/// let stream = socket.connect("10.0.0.1:80".parse().unwrap(), None)?;
/// # Ok(())
/// # }
/// ```
pub struct TcpSocket {
    lane: Lane,
    /// `None` once it has become something else.
    id: Option<SockId>,
}

impl TcpSocket {
    #[inline]
    pub(crate) fn new(lane: &Lane, v6: bool) -> io::Result<TcpSocket> {
        let id = lane.with(|s| s.socket(v6))?;
        Ok(TcpSocket { lane: lane.clone(), id: Some(id) })
    }

    fn id(&self) -> Result<SockId, Errno> {
        self.id.ok_or(Errno::EBADF)
    }

    /// Sets an option.
    pub fn set_option(&self, option: SockOption) -> io::Result<()> {
        self.lane.with(|s| s.set_option(self.id()?, option))
    }

    /// The option that `like` names, with its value.
    pub fn option(&self, like: SockOption) -> io::Result<SockOption> {
        self.lane.with(|s| s.option(self.id()?, like))
    }

    /// The local address and port; unspecified and 0 let the lane choose.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        self.lane.with(|s| s.bind(self.id()?, endpoint(addr)))
    }

    /// Listens where it is bound, with at most `backlog` connections that wait to be accepted.
    pub fn listen(mut self, backlog: u32) -> io::Result<TcpListener> {
        let id = self.id().map_err(error)?;
        let claim = self.lane.shared.app.borrow_mut().listen(id, backlog)?;
        self.id = None;
        Ok(TcpListener::new(self.lane.clone(), id, claim))
    }

    /// Connects and waits until it is done, at most `timeout`; `None` as long as TCP tries.
    pub fn connect(mut self, addr: SocketAddr, timeout: Option<Duration>) -> io::Result<TcpStream> {
        let id = self.may_connect()?;
        self.lane.enter(|app| match app.connect(id, endpoint(addr), false, timeout) {
            Err(Errno::EINPROGRESS) => Err(Errno::ETIMEDOUT),
            other => other,
        })?;
        self.id = None;
        Ok(TcpStream::new(self.lane.clone(), id, false))
    }

    /// Begins to connect; the stream is writable once it is done, and [`TcpStream::take_error`] tells how.
    pub fn connect_nonblocking(mut self, addr: SocketAddr) -> io::Result<TcpStream> {
        let id = self.may_connect()?;
        self.lane.enter(|app| match app.begin_connect(id, endpoint(addr)) {
            Err(Errno::EINPROGRESS) => Ok(()),
            other => other,
        })?;
        self.id = None;
        Ok(TcpStream::new(self.lane.clone(), id, true))
    }

    /// Its number, where it may connect from the port that it is bound to.
    fn may_connect(&self) -> io::Result<SockId> {
        let id = self.id().map_err(error)?;
        let from = self.lane.with(|s| s.local(id))?;
        self.lane.shared.app.borrow().may_connect_from(from.port)?;
        Ok(id)
    }
}

impl Drop for TcpSocket {
    fn drop(&mut self) {
        if let (Some(id), Ok(mut app)) = (self.id.take(), self.lane.shared.app.try_borrow_mut()) {
            // Closed already only if the table says so; nothing is left to do then.
            let _ = app.sockets.close(id);
        }
    }
}

impl Lane {
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
}
