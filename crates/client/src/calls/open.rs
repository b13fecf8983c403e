//! Sockets that listen, connect, and are closed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use protocol::Endpoint;
use socket::{Errno, Linger, ListenOptions, SockId, SockOption};

use crate::app::App;
use crate::claim::Claim;

fn address(at: Endpoint) -> SocketAddr {
    SocketAddr::new(at.addr.to_ip(), at.port)
}

fn system(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.number())
}

impl App {
    /// listen(2) where the socket is bound; what the kernel has granted for it comes back, and is to be held as long as it listens.
    pub fn listen(&mut self, sock: SockId, backlog: u32) -> io::Result<Option<Claim>> {
        let v6_only = matches!(self.sockets.option(sock, SockOption::V6Only(false)), Ok(SockOption::V6Only(true)));
        let mut at = self.sockets.local(sock).map(address).map_err(system)?;
        if at.port() == 0
            && let Some(port) = self.free_port()?
        {
            // Where others have ports the lane cannot tell which are free.
            at.set_port(port);
            self.sockets.choose_port(sock, port).map_err(system)?;
        }
        let claim = self.claim(at, v6_only)?;
        self.sockets.listen(sock, ListenOptions { backlog }).map_err(system)?;
        self.ask(|s| s.listen_result(sock)).map_err(system)?;
        Ok(claim)
    }

    /// accept(2): the oldest connection, and its peer.
    pub fn accept(&mut self, sock: SockId, dont_wait: bool) -> Result<(SockId, Endpoint), Errno> {
        self.run(dont_wait, (sock, SockOption::ReceiveTimeout(None)), |s| s.accept(sock))
    }

    /// connect(2): waits until it is done, at most `limit`, unless it is not to wait; `EINPROGRESS` then, and the attempt goes on.
    pub fn connect(
        &mut self,
        sock: SockId,
        remote: Endpoint,
        dont_wait: bool,
        limit: Option<Duration>,
    ) -> Result<(), Errno> {
        let begun = self.begin_connect(sock, remote);
        self.hand_over();
        match begun {
            Err(Errno::EINPROGRESS | Errno::EALREADY) if !dont_wait => {}
            // Some programs only ever ask.
            Err(Errno::EALREADY) if self.hear() => return self.sockets.connect(sock, remote),
            other => return other,
        }
        let end = self.block(limit, |s| match s.connect(sock, remote) {
            Err(Errno::EALREADY) => Err(Errno::EAGAIN),
            other => other,
        });
        // The last ACK of the handshake waits a turn for what the program writes, which may be nothing for long.
        self.send_off();
        // connect(2): a send timeout ends the wait and not the attempt.
        end.map_err(|e| if e == Errno::EAGAIN { Errno::EINPROGRESS } else { e })
    }

    /// close(2), SO_LINGER's wait included: then why the peer has not acknowledged everything, `EAGAIN` where the time was over first, and
    /// it goes on in the background.
    pub fn close(&mut self, sock: SockId, dont_wait: bool) -> Result<(), Errno> {
        let limit = match self.sockets.option(sock, SockOption::Linger(None)) {
            Ok(SockOption::Linger(Some(Linger { timeout }))) if !timeout.is_zero() && !dont_wait => Some(timeout),
            _ => None,
        };
        let Some(limit) = limit else {
            match dont_wait {
                // Where it lingers nobody waits for it.
                true => self.sockets.close_behind(sock),
                false => self.sockets.close(sock)?,
            }
            self.asked(dont_wait);
            return Ok(());
        };
        self.sockets.close(sock)?;
        self.send_off();
        let end = self.block(Some(limit), |s| s.linger_result(sock).unwrap_or(Err(Errno::EAGAIN)));
        self.sockets.linger_give_up(sock);
        end
    }
}
