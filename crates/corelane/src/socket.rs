//! A socket that neither listens nor connects yet: for options that the handshake needs.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ::socket::{Errno, SockId, SockOption};

use crate::lane::{Lane, TcpListener, address, endpoint, error};
use crate::stream::TcpStream;

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
        let v6_only = matches!(self.option(SockOption::V6Only(false)), Ok(SockOption::V6Only(true)));
        let bound = || self.lane.with(|s| s.local(id)).map(address);
        let addr = bound()?;
        let mut claim = None;
        // Nobody can ask the kernel for a port that the lane has yet to choose.
        if addr.port() != 0 {
            claim = self.lane.shared.app.borrow().claim(addr, v6_only)?;
        }
        self.lane.with(|s| s.listen(id, ::socket::ListenOptions { backlog }))?;
        self.lane.until(None, |s| s.listen_result(id), Errno::EINVAL)?;
        if addr.port() == 0 {
            let chosen = bound()?;
            claim = self.lane.shared.app.borrow().claim(chosen, v6_only)?;
        }
        self.id = None;
        Ok(TcpListener::new(self.lane.clone(), id, claim))
    }

    /// Connects and waits until it is done, at most `timeout`; `None` as long as TCP tries.
    pub fn connect(self, addr: SocketAddr, timeout: Option<Duration>) -> io::Result<TcpStream> {
        let lane = self.lane.clone();
        let stream = self.connect_nonblocking(addr)?;
        stream.set_nonblocking(false);
        let id = stream.id;
        lane.until(timeout, |s| s.connect_result(id), Errno::ETIMEDOUT)?;
        Ok(stream)
    }

    /// Begins to connect; the stream is writable once it is done, and [`TcpStream::take_error`] tells how.
    pub fn connect_nonblocking(mut self, addr: SocketAddr) -> io::Result<TcpStream> {
        let id = self.id().map_err(error)?;
        let from = self.lane.with(|s| s.local(id))?;
        self.lane.shared.app.borrow().may_connect_from(from.port)?;
        let mut app = self.lane.shared.app.borrow_mut();
        match app.connect(id, endpoint(addr)) {
            Ok(()) | Err(Errno::EINPROGRESS) => app.leave(),
            Err(e) => return Err(error(e)),
        }
        drop(app);
        self.id = None;
        Ok(TcpStream::new(self.lane.clone(), id, true))
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
