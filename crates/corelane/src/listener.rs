//! A socket that listens.

use std::io;
use std::net::SocketAddr;

use ::socket::{SockId, SockOption};

use crate::lane::{Lane, address};
use crate::stream::TcpStream;

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
            false => self.lane.enter(|app| app.accept(id, false))?,
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
