//! What the kernel says of operations.

use std::io;

use io_uring::{cqueue, opcode};

use super::begin::{File, on};
use super::{ACCEPT, ACCEPT_END, CALL, CANCEL, FLOW, Kernel, LEFT, OP, tag};
use crate::core::{Core, FileKind, Kind, Stage, Way};
use crate::errno;
use crate::event::{Data, Received};
use io_uring::types::{Fd, Fixed};

impl Kernel {
    pub(super) fn completion(&mut self, core: &mut Core, number: u64, result: i32, flags: u32) {
        let (generation, at) = ((number >> 32) as u32 & 0xff_ffff, number as u32);
        match number >> 56 {
            OP if core.ops.generation(at) & 0xff_ffff == generation => self.operation(core, at, result, flags),
            ACCEPT => self.accepted(core, at, generation, result, flags),
            LEFT => self.left(core, at, generation),
            FLOW => self.flowed(core, at, generation, result, flags),
            CALL => self.answered(core, at, result),
            CANCEL if result == -libc::ENOENT => self.missed += 1,
            ACCEPT_END if result == -libc::ENOENT => self.not_ended(core, at, generation),
            _ => {}
        }
    }

    fn operation(&mut self, core: &mut Core, op: u32, result: i32, flags: u32) {
        let Some(at) = core.ops.get(op).map(|op| op.handle) else { return };
        let (head, messages) = (core.head(at, Way::Out) == Some(op), core.has_messages(at));
        let Some(this) = core.ops.get_mut(op) else { return };
        let stage = std::mem::replace(&mut this.stage, Stage::Queued);
        if let Some(entry) = core.entries.get_mut(at) {
            match this.kind {
                Kind::Read | Kind::Recv if result >= 0 && stage == Stage::Submitted => {
                    entry.drained = !cqueue::sock_nonempty(flags)
                }
                Kind::Disconnect(_) => entry.closing = false,
                _ => {}
            }
        }
        match &this.kind {
            Kind::Recv if stage == Stage::Polled && self.pool.as_ref().is_some_and(|pool| pool.free(false) == 0) => {
                self.starves(core, at, false)
            }
            // It can go on; what is wrong with the file, the operation itself will say.
            _ if stage == Stage::Polled => core.touch(at),
            Kind::Recv => self.received(core, at, result, flags),
            Kind::Write => self.wrote(core, at, op, result),
            Kind::Read => match -result {
                libc::EAGAIN => self.poll(core, at, op, libc::POLLIN),
                libc::EINTR => core.touch(at),
                _ => {
                    let room = if messages { this.place.len() } else { usize::MAX };
                    let result = answer(result).map(|n| this.holds(n, room));
                    core.complete(at, Way::In, result, Data::None);
                }
            },
            Kind::Connect(_) => core.complete(at, Way::Out, answer(result), Data::None),
            // It was linked to a write that failed or was cut short, and has its turn later.
            Kind::Disconnect(_) if !head => {}
            Kind::Disconnect(_) if result == -libc::ECANCELED => core.touch(at),
            Kind::Disconnect(_) if stage == Stage::Closing => {
                self.count_place(false);
                core.complete(at, Way::Out, answer(result), Data::None);
                core.end(at);
            }
            Kind::Disconnect(_) => core.complete(at, Way::Out, answer(result), Data::None),
            Kind::Accept { .. } => {}
        }
    }

    fn wrote(&mut self, core: &mut Core, at: u32, op: u32, result: i32) {
        let kind = Kernel::file(core, at).map(|(_, kind)| kind);
        let Some(this) = core.ops.get_mut(op) else { return };
        match -result {
            libc::EAGAIN => return self.poll(core, at, op, libc::POLLOUT),
            libc::EINTR => return core.touch(at),
            // A kernel that cannot do without the signal.
            libc::EOPNOTSUPP | libc::EINVAL if kind == Some(FileKind::Pipe) && self.no_signal => {
                self.no_signal = false;
                return core.touch(at);
            }
            1.. => return core.complete(at, Way::Out, answer(result), Data::None),
            _ => {}
        }
        let n = result as usize;
        this.done += n;
        this.place.skip(n);
        if this.offset != u64::MAX {
            this.offset += n as u64;
        }
        if n > 0 && this.place.len() > 0 && kind != Some(FileKind::Message) {
            return core.touch(at);
        }
        let done = this.done;
        core.complete(at, Way::Out, Ok(done), Data::None);
    }

    fn received(&mut self, core: &mut Core, at: u32, result: i32, flags: u32) {
        let buffer = cqueue::buffer_select(flags);
        match (result, buffer, &mut self.pool) {
            (1.., Some(id), Some(pool)) => {
                pool.taken(id);
                let op = core.head(at, Way::In).and_then(|op| core.ops.get_mut(op));
                let len = op.map_or(0, |op| op.holds(result as usize, pool.memory.size));
                let received = Received { channel: core.id, at: pool.lend(id), len, buffer: id.into() };
                return core.complete(at, Way::In, Ok(len), Data::Received(received));
            }
            (_, Some(id), Some(pool)) => {
                pool.taken(id);
                pool.reuse(id);
            }
            _ => {}
        }
        match -result {
            // The kernel says so before it looks for bytes; a buffer that is given back is for who has some.
            libc::ENOBUFS | libc::EAGAIN => {
                core.stats.no_buffer += u64::from(result == -libc::ENOBUFS);
                if let Some(op) = core.head(at, Way::In) {
                    self.poll(core, at, op, libc::POLLIN);
                }
            }
            libc::EINTR => core.touch(at),
            _ => core.complete(at, Way::In, answer(result), Data::None),
        }
    }

    /// A handle waits for a buffer: one of the kernel's, or of those that it never has.
    pub(super) fn starves(&mut self, core: &mut Core, at: u32, kept: bool) {
        let generation = core.entries.generation(at);
        if let Some(entry) = core.entries.get_mut(at).filter(|entry| !entry.starving) {
            entry.starving = true;
            self.starving[usize::from(kept)].push_back((at, generation));
        }
    }

    /// A file that was opened not to block says EAGAIN rather than wait: the kernel is asked to tell.
    pub(super) fn poll(&mut self, core: &mut Core, at: u32, op: u32, events: i16) {
        let Some((file, _)) = Kernel::file(core, at) else { return };
        let number = tag(OP, core.ops.generation(op), op);
        if let Some(op) = core.ops.get_mut(op) {
            op.stage = Stage::Polled;
        }
        let entry = on!(file, fd => opcode::PollAdd::new(fd, events as u32).build());
        self.push(core, &[entry.user_data(number)]);
    }
}

pub(super) fn answer(result: i32) -> io::Result<usize> {
    if result < 0 { Err(errno(-result)) } else { Ok(result as usize) }
}
