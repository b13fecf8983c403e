//! The end of a lane's application: what it has left open is closed by the stack, which knows all of it. So an end takes one
//! walk over the connections, however many they are, and no message for each of them.

use tcp::State;
use wire::Instant;

use crate::channel::CloseMode;
use crate::conn::Stage;
use crate::engine::{Stack, context};

impl Stack {
    /// Closes all that the application has not closed, as the kernel does where a process ends: it stops listening, resets what
    /// nobody has accepted, and ends each connection, with a FIN behind what was written, or with a RST where bytes wait that the
    /// application was not given. Does the jobs that are there first, those that the application has left behind among them.
    pub fn close_all(&mut self, now: Instant) {
        self.take_left_jobs();
        self.run_jobs(now);
        self.ending = true;
        for id in self.listeners.ids() {
            self.close_listener(now, crate::channel::ListenerId(id));
        }
        let ids: Vec<u32> = self.conns.iter_ids().collect();
        for id in ids {
            if self.conns.get_mut(id).is_some_and(|c| c.stage == Stage::Owned) {
                self.close(now, crate::channel::ConnId(id), CloseMode::Graceful);
                self.settle(now, id);
            }
        }
    }

    /// Resets the connections whose peers have not acknowledged the end yet: there is no time left to wait for them. How many
    /// they are.
    pub fn abort_all(&mut self, now: Instant) -> usize {
        self.conns.now = now;
        let mut all = 0;
        let ids: Vec<u32> = self.conns.iter_ids().collect();
        for id in ids {
            let Some(c) = self.conns.get_mut(id) else { continue };
            if matches!(c.tcb.state(), State::Closed | State::TimeWait | State::FinWait2) {
                continue;
            }
            c.stage = match c.stage {
                // The listener's count is of those.
                stage @ (Stage::Embryo | Stage::Ready) => stage,
                Stage::Owned | Stage::Released | Stage::Lingering => Stage::Released,
            };
            let mut cx = context!(self, now);
            c.tcb.abort(&mut cx);
            self.settle(now, id);
            all += 1;
        }
        all
    }

    /// Whether frames wait for a port.
    pub fn sending(&self) -> bool {
        self.interfaces.iter().any(crate::interface::Interface::waiting)
    }
}
