//! Registrations of one listener with one lane's channel. A lane has all connections that its NIC queue brings, in one accept
//! queue, so one registration has them: that whose mask has the lane's core, else the original, which has no mask, else the
//! first. When it ends, the next one by the same rule has them.

use std::io;

use ::socket::SockId;
use runtime::Claim;

use super::Lane;
use crate::core::Core;
use crate::listeners::Listener;
use crate::options::CpuMask;

/// A listener of a lane, and who wants its connections.
pub(crate) struct Parts {
    listener: Listener,
    sock: SockId,
    /// What the kernel has granted for it.
    claim: Option<Claim>,
    /// Handles in the order of their registration.
    members: Vec<(u32, CpuMask)>,
    /// The one of them that is given the connections.
    acceptor: u32,
}

/// The registration that is given the connections of a core.
fn acceptor_of(members: &[(u32, CpuMask)], core: usize) -> Option<u32> {
    let named = members.iter().find(|(_, mask)| mask.meets(&CpuMask::one(core)));
    let original = || members.iter().find(|(_, mask)| mask.is_empty());
    named.or_else(original).or(members.first()).map(|(at, _)| *at)
}

impl Lane {
    /// The socket of a listener that is registered.
    pub fn listening(&self, listener: Listener) -> Option<SockId> {
        self.parts.iter().find(|parts| parts.listener == listener).map(|parts| parts.sock)
    }

    /// Where it runs: on its core, or wherever this thread is.
    fn runs_on(&self) -> usize {
        self.app.core().unwrap_or_else(rustix::thread::sched_getcpu)
    }

    /// A handle joins the listener whose socket this is; the first one brings what the kernel has granted for it.
    pub fn join(
        &mut self,
        core: &mut Core,
        (listener, sock, claim): (Listener, SockId, Option<Claim>),
        (at, mask): (u32, CpuMask),
    ) -> io::Result<()> {
        let runs_on = self.runs_on();
        let Some(parts) = self.parts.iter_mut().find(|parts| parts.listener == listener) else {
            self.watch(sock, core.handle(at).to_bits())?;
            self.parts.push(Parts { listener, sock, claim, members: vec![(at, mask)], acceptor: at });
            return Ok(());
        };
        parts.members.push((at, mask));
        self.choose_acceptor(core, listener, runs_on)
    }

    /// A handle leaves; with the last one the socket is closed.
    pub fn leave(&mut self, core: &mut Core, listener: Listener, at: u32) {
        let runs_on = self.runs_on();
        let Some(place) = self.parts.iter().position(|parts| parts.listener == listener) else { return };
        self.parts[place].members.retain(|(other, _)| *other != at);
        if self.parts[place].members.is_empty() {
            let Parts { sock, claim, .. } = self.parts.swap_remove(place);
            // First the kernel may have what opens connections, so that no SYN arrives for a listener that is gone.
            drop(claim);
            self.close(sock);
        } else {
            // Its socket is watched already, so that there is nothing to fail.
            let _ = self.choose_acceptor(core, listener, runs_on);
        }
    }

    /// Gives the connections that wait, and those that come, to the registration that is to have them now.
    fn choose_acceptor(&mut self, core: &mut Core, listener: Listener, runs_on: usize) -> io::Result<()> {
        let Some(parts) = self.parts.iter_mut().find(|parts| parts.listener == listener) else { return Ok(()) };
        let Some(now) = acceptor_of(&parts.members, runs_on) else { return Ok(()) };
        if parts.acceptor == now {
            return Ok(());
        }
        parts.acceptor = now;
        let sock = parts.sock;
        core.touch(now);
        self.watch_again(sock, core.handle(now).to_bits())
    }

    /// Whether a handle has the connections of its listener.
    pub fn accepts_from(&self, listener: Listener, at: u32) -> bool {
        self.parts.iter().any(|parts| parts.listener == listener && parts.acceptor == at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_then_the_original_then_the_first() {
        let mut members = vec![(7, CpuMask::one(3)), (8, CpuMask::one(4))];
        assert_eq!(
            (acceptor_of(&members, 3), acceptor_of(&members, 4), acceptor_of(&members, 5)),
            (Some(7), Some(8), Some(7))
        );
        members.push((9, CpuMask::NONE));
        assert_eq!((acceptor_of(&members, 4), acceptor_of(&members, 5), acceptor_of(&[], 0)), (Some(8), Some(9), None));
    }
}
