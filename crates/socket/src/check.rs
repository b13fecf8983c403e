//! Invariants of the application's half, for tests, simulations and lanes with debug assertions: whoever was told to wait will be told to
//! go on, by an event that the stack owes or by the queue of those who starve.

use std::collections::HashSet;

use crate::sockets::Sockets;
use crate::table::{ListenPhase, Phase, SockId, Socket, Tcp, flag};

/// Sockets looked at after each batch of events.
#[cfg(debug_assertions)]
const FEW: usize = 16;

impl Sockets {
    /// Panics where a socket waits for what nobody will tell it, in words that name it. Its time grows with the sockets; without
    /// debug assertions it does nothing.
    pub fn check(&self) {
        if cfg!(debug_assertions) {
            let starved: HashSet<SockId> = self.starved.iter().map(|s| s.id).collect();
            let taken: HashSet<SockId> = self.taken.iter().copied().collect();
            for id in self.table.ids() {
                match self.table.get(id) {
                    Some(Socket::Tcp(t)) => {
                        check_tcp(id, t);
                        let waits = self.tight && !t.readable() && !t.rx.is_empty();
                        assert!(!waits, "{id:?} waits for more than memory lets arrive: {} bytes", t.rx.len());
                        assert!(
                            !t.is(flag::STARVED) || starved.contains(&id),
                            "{id:?} starves, and nobody looks for it"
                        );
                    }
                    Some(Socket::Listener(l)) if matches!(l.phase, ListenPhase::Open(_)) => {
                        let told = l.taken == 0 || taken.contains(&id);
                        assert!(told, "{id:?} has taken {} connections that nobody will report", l.taken);
                    }
                    Some(Socket::Listener(_) | Socket::Pipe(_) | Socket::Epoll(_)) | None => {}
                }
            }
        }
    }

    /// After a batch of events: [`Sockets::check`] where the batches since the last one pay for it, each with the look at a few
    /// sockets.
    #[inline(always)]
    pub(crate) fn check_in_turn(&mut self) {
        #[cfg(debug_assertions)]
        {
            if self.unchecked > 0 {
                self.unchecked -= 1;
                return;
            }
            self.check();
            self.unchecked = self.table.ids().count() / FEW;
        }
    }
}

/// Established sockets wait for room only where there is none, and owe the stack no report of what was read.
fn check_tcp(id: SockId, t: &Tcp) {
    if t.phase != Phase::Open || t.error.is_some() {
        return;
    }
    let waits = t.is(flag::NO_SPACE) && !t.is(flag::SHUT_WRITE);
    // Acknowledgments make room, or what is sent, or the queue of the starved.
    assert!(!waits || !t.has_space(), "{id:?} waits for room, and there is some: {} of {}", t.in_flight, t.send_buffer);
    let owes = t.worth_reporting() && !t.is(flag::FIN);
    assert!(!owes, "{id:?} was read, {} of {}, and the window stays shut", t.unreported, t.receive_buffer);
}
