//! Calls, each written once: what waits, for how long, what ends the wait, and when what was asked for goes out.

mod open;
mod poll;
mod transfer;

use std::time::{Duration, Instant};

use socket::{Errno, SockId, SockOption, Sockets};
use tcp::TcpInfo;

pub use transfer::Transfer;

use crate::app::App;

/// Calls that found nothing, without a wait in between, after which the lane gets a turn: for programs that only ever poll.
const POLLS: u32 = 32;

impl App {
    /// A call that does not wait. What it asks for is left to whoever runs the lane beside this thread.
    #[inline]
    pub fn call<T>(&mut self, f: impl FnOnce(&mut Sockets) -> Result<T, Errno>) -> Result<T, Errno> {
        let answer = f(&mut self.sockets);
        self.leave();
        answer
    }

    /// Whether nothing will ever come.
    fn is_ended(&self) -> bool {
        self.is_over() || self.interrupts.as_ref().is_some_and(|interrupts| interrupts.is_over())
    }

    /// Whether a signal has come that ends a wait, which it does then.
    pub(crate) fn interrupted(&mut self) -> bool {
        self.interrupts.as_mut().is_some_and(|interrupts| interrupts.take())
    }

    /// Waits as [`App::wait`] does; what interrupts ends it, too.
    pub(crate) fn look(&mut self, left: Option<Duration>, stop: impl Fn() -> bool) -> bool {
        self.polls = 0;
        let interrupts = self.interrupts.take();
        let due = || interrupts.as_ref().is_some_and(|i| i.is_due() || i.is_over());
        let signal = self.wait(left, || stop() || due());
        self.interrupts = interrupts;
        signal
    }

    /// Waits until `f` gives something else than `EAGAIN`, at most `limit`; `EAGAIN` then. `EINTR` where a signal handler comes
    /// first, `ENETDOWN` where nobody runs the lane any more.
    pub fn block<T>(
        &mut self,
        limit: Option<Duration>,
        mut f: impl FnMut(&mut Sockets) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.polls = 0;
        // A time that no clock reaches is none.
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut signal = false;
        loop {
            match f(&mut self.sockets) {
                Err(Errno::EAGAIN) => {}
                other => return other,
            }
            if self.interrupted() | signal {
                return Err(Errno::EINTR);
            }
            if self.is_ended() {
                // What it said last.
                self.sockets.process();
                return match f(&mut self.sockets) {
                    Err(Errno::EAGAIN) => Err(Errno::ENETDOWN),
                    other => other,
                };
            }
            let left = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Err(Errno::EAGAIN),
                left => left,
            };
            signal = self.look(left, || false);
        }
    }

    /// Waits for an answer of the stack's, which comes without the peer's help; signals wait meanwhile. `ENETDOWN` where nobody gives it.
    pub fn ask<T>(&mut self, f: impl FnMut(&mut Sockets) -> Option<Result<T, Errno>>) -> Result<T, Errno> {
        self.until(None, f).unwrap_or(Err(Errno::ENETDOWN))
    }

    /// Hands over what was asked for and hears what the lane has to say, for who only ever asks. Whether it was heard.
    pub fn hear(&mut self) -> bool {
        self.hand_over();
        self.polls += 1;
        if self.sockets.backlogged() {
            self.relieve();
        } else if self.polls >= POLLS {
            self.polls = 0;
            self.advance();
        } else if self.sockets.has_events() {
            self.sockets.process();
        } else {
            return false;
        }
        true
    }

    /// A call that does not wait: `EAGAIN` once what the lane has said was heard too.
    #[inline]
    pub fn poll<T>(&mut self, mut f: impl FnMut(&mut Sockets) -> Result<T, Errno>) -> Result<T, Errno> {
        match f(&mut self.sockets) {
            Err(Errno::EAGAIN) => {}
            other => return other,
        }
        if !self.hear() {
            return Err(Errno::EAGAIN);
        }
        f(&mut self.sockets)
    }

    /// Waits as [`App::block`] does, or not at all; `like` names the timeout of the socket's.
    #[inline]
    pub fn run<T>(
        &mut self,
        dont_wait: bool,
        (sock, like): (SockId, SockOption),
        mut f: impl FnMut(&mut Sockets) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if dont_wait {
            return self.poll(f);
        }
        match f(&mut self.sockets) {
            Err(Errno::EAGAIN) => {}
            other => return other,
        }
        let limit = self.timeout(sock, like);
        self.block(limit, f)
    }

    /// SO_RCVTIMEO or SO_SNDTIMEO; pipes have none.
    pub fn timeout(&mut self, sock: SockId, like: SockOption) -> Option<Duration> {
        match self.sockets.option(sock, like) {
            Ok(SockOption::ReceiveTimeout(t) | SockOption::SendTimeout(t)) => t,
            _ => None,
        }
    }

    /// Something was written. A program that waits in its calls may not come back soon, so it is handed over at once; one that
    /// does not comes back to wait for events, and may write the rest before: header, body and FIN leave in one segment, and
    /// nobody who runs the lane meanwhile tears them apart.
    #[inline]
    pub fn wrote(&mut self, sock: SockId, dont_wait: bool) {
        match dont_wait {
            true => self.unsent = Some(sock),
            false => self.send_off(),
        }
    }

    /// Something else was asked for on a socket. Where it blocks, nothing waits for the program's next call.
    pub fn asked(&mut self, dont_wait: bool) {
        if dont_wait { self.hand_over() } else { self.send_off() }
    }

    /// A call concerns this socket: what was written to another one is handed over.
    #[inline]
    pub fn turn_to(&mut self, sock: SockId) {
        if self.unsent.is_some_and(|other| other != sock) {
            self.hand_over();
        }
    }

    /// A snapshot of a connection (TCP_INFO).
    pub fn info(&mut self, sock: SockId) -> Result<TcpInfo, Errno> {
        let token = self.sockets.query_info(sock)?;
        self.ask(|s| s.info_result(token))
    }
}
