//! Receiving until further notice: a lightweight socket that has been read empty once gets one request that stays with the
//! kernel (multishot), instead of one for each message. What comes before it is asked for waits here.

use std::io;

use io_uring::squeue::{Entry as Sqe, Flags};
use io_uring::types::Fixed;
use io_uring::{cqueue, opcode};

use super::complete::answer;
use super::pool::{GROUP, Pool};
use super::{FLOW, Kernel, cancel, tag};
use crate::core::{Core, FileKind, Kind, LightOf, Stage, Target, Way};
use crate::event::{Data, Received};
use crate::flow::Flow;

/// Buffers of one socket that nobody asked for, before it is to send no more.
const AHEAD: usize = 8;

/// Takes the bytes of a socket out of all its buffers: how many buffers. Bytes that are spilled are before those in buffers.
fn spill(flow: &mut Flow, pool: &mut Pool) -> usize {
    let buffers = flow.ahead.len();
    for (id, len) in flow.ahead.drain(..) {
        flow.spilled.extend_from_slice(pool.bytes(id, len as usize));
        pool.reuse(id);
    }
    buffers
}

fn flow_of(core: &mut Core, at: u32) -> Option<&mut Flow> {
    core.entries.get_mut(at)?.flow.as_deref_mut()
}

/// The place of a TCP connection that nobody has as a descriptor too.
fn slot(core: &Core, at: u32) -> Option<u32> {
    let Target::Direct { light, slot, kind: FileKind::Tcp } = core.entries.get(at)?.target else { return None };
    let alone = matches!(core.light.get(light)?.of, LightOf::Slot { shared: false, .. });
    alone.then_some(slot)
}

impl Kernel {
    /// Whether a handle receives until further notice, from now on if it can.
    pub(super) fn flows(&mut self, core: &mut Core, at: u32, recv: bool) -> bool {
        let can = recv && core.drained(at) && slot(core, at).is_some();
        let Some(entry) = core.entries.get_mut(at) else { return false };
        if entry.flow.is_none() && can {
            entry.flow = Some(Box::default());
        }
        entry.flow.is_some()
    }

    /// Gives what is there to who asks, and sees that more comes. `false`: it is over, and the next read is as any other.
    pub(super) fn pour(&mut self, core: &mut Core, at: u32) -> bool {
        loop {
            let slot = slot(core, at);
            let Some(op) = core.head(at, Way::In) else { return true };
            let generation = core.entries.generation(at);
            let (Some(entry), Some(op)) = (core.entries.get_mut(at), core.ops.get_mut(op)) else { return true };
            let (Some(flow), Some(pool)) = (&mut entry.flow, &mut self.pool) else { return true };
            // Nothing is asked of a place that is being closed.
            if op.stage != Stage::Queued || entry.closing {
                return true;
            }
            let reads = matches!(op.kind, Kind::Read);
            let channel = core.id;
            let received = |pool: &mut Pool, id: u16, len: usize| {
                (len, Data::Received(Received { channel, at: pool.lend(id), len, buffer: id.into() }))
            };
            let (len, data) = if reads && op.place.len() == 0 {
                (0, Data::None)
            } else if !flow.left().is_empty() && reads {
                let n = op.place.fill(flow.left());
                flow.pass(n);
                (n, Data::None)
            } else if !flow.left().is_empty() {
                let Some((id, len)) = pool.spare(flow.left()) else {
                    core.stats.no_buffer += 1;
                    self.starves(core, at, true);
                    return true;
                };
                flow.pass(len);
                received(pool, id, len)
            } else if let Some((id, len)) = flow.ahead.pop_front() {
                self.ahead -= 1;
                if reads {
                    let bytes = pool.bytes(id, len as usize);
                    let n = op.place.fill(bytes);
                    if n < bytes.len() {
                        flow.spilled.extend_from_slice(&bytes[n..]);
                        self.ahead -= spill(flow, pool);
                    }
                    pool.reuse(id);
                    (n, Data::None)
                } else {
                    received(pool, id, len as usize)
                }
            } else if let Some(end) = flow.end {
                // The end stays the end; an error is told once.
                if end != 0 {
                    flow.end = None;
                }
                core.complete(at, Way::In, answer(end), Data::None);
                continue;
            } else if flow.armed || entry.starving {
                return true;
            } else if let Some(slot) = slot {
                (flow.armed, flow.ending) = (true, false);
                let entry = opcode::RecvMulti::new(Fixed(slot), GROUP).build();
                self.push(core, &[entry.flags(Flags::BUFFER_SELECT).user_data(tag(FLOW, generation, at))]);
                return true;
            } else {
                entry.flow = None;
                return false;
            };
            core.complete(at, Way::In, Ok(len), data);
        }
    }

    /// A request that stays has something to say.
    pub(super) fn flowed(&mut self, core: &mut Core, at: u32, generation: u32, result: i32, flags: u32) {
        let known = core.entries.generation(at) & 0xff_ffff == generation;
        let Some(pool) = &mut self.pool else { return };
        let buffer = cqueue::buffer_select(flags).inspect(|id| pool.taken(*id));
        let entry = core.entries.get_mut(at).filter(|_| known);
        let Some((drained, flow)) = entry.and_then(|entry| Some((&mut entry.drained, entry.flow.as_deref_mut()?)))
        else {
            // It was unregistered meanwhile.
            if let Some(id) = buffer {
                pool.reuse(id);
            }
            return;
        };
        *drained = result >= 0 && !cqueue::sock_nonempty(flags);
        match (buffer, result) {
            // Bytes that nobody asks for must not keep the others from theirs.
            (Some(id), 1..) if !flow.spilled.is_empty() || self.ahead >= pool.half() => {
                flow.ahead.push_back((id, result as u32));
                self.ahead += 1;
                self.ahead -= spill(flow, pool);
            }
            (Some(id), 1..) => {
                flow.ahead.push_back((id, result as u32));
                self.ahead += 1;
            }
            (Some(id), _) => {
                pool.reuse(id);
            }
            _ => {}
        }
        if !cqueue::more(flags) {
            (flow.armed, flow.ending) = (false, false);
            match -result {
                libc::ENOBUFS => {
                    core.stats.no_buffer += 1;
                    self.dried(core, at);
                }
                // It was asked to end, or has to be asked for again.
                libc::ECANCELED | libc::EINTR | libc::EAGAIN | ..0 => {}
                number => flow.end = Some(-number),
            }
        }
        if !self.pour(core, at) {
            core.touch(at);
        }
        if flow_of(core, at).is_some_and(|flow| flow.ahead.len() >= AHEAD || !flow.spilled.is_empty()) {
            self.quench(core, at);
        }
    }

    /// There was no buffer. The kernel says so before it looks for bytes, so who wants one waits for some first; a read has
    /// memory of its own, and is one request as any other.
    fn dried(&mut self, core: &mut Core, at: u32) {
        let Some(op) = core.head(at, Way::In) else { return };
        let reads = core.ops.get(op).is_some_and(|op| matches!(op.kind, Kind::Read));
        let Some(entry) = core.entries.get_mut(at).filter(|entry| !entry.closing) else { return };
        if !reads {
            self.poll(core, at, op, libc::POLLIN);
        } else if entry.flow.as_ref().is_some_and(|flow| !flow.has_bytes() && flow.end.is_none()) {
            entry.flow = None;
            core.touch(at);
        }
    }

    /// No more is received than was.
    fn quench(&mut self, core: &mut Core, at: u32) {
        let Some(end) = self.quenches(core, at) else { return };
        if let Some(flow) = flow_of(core, at)
            && !std::mem::replace(&mut flow.ending, true)
        {
            self.push(core, &[end]);
        }
    }

    /// What ends a request that stays, where there is one. Behind something else it may never be looked at.
    pub(super) fn quenches(&mut self, core: &mut Core, at: u32) -> Option<Sqe> {
        flow_of(core, at).filter(|flow| flow.armed)?;
        Some(cancel(tag(FLOW, core.entries.generation(at), at)).flags(Flags::SKIP_SUCCESS))
    }

    /// Waits until nothing is received until further notice any more; whether bytes were that nobody asked for.
    pub fn settle(&mut self, core: &mut Core, at: u32) -> io::Result<bool> {
        self.quench(core, at);
        let cancels: Vec<_> = self.quenches(core, at).into_iter().collect();
        self.until_called_back(core, &cancels, |_, core| {
            let flow = core.entries.get(at).and_then(|entry| entry.flow.as_ref());
            flow.is_none_or(|flow| !flow.armed)
        })?;
        Ok(flow_of(core, at).is_some_and(|flow| flow.has_bytes()))
    }

    /// Nothing is received any more, and what was is dropped; the memory is the channel's.
    pub fn dry(&mut self, core: &mut Core, at: u32) {
        if let Some(end) = self.quenches(core, at) {
            self.push(core, &[end]);
        }
        let flow = core.entries.get_mut(at).and_then(|entry| entry.flow.take());
        if let (Some(flow), Some(pool)) = (flow, &mut self.pool) {
            self.ahead -= flow.ahead.len();
            for (id, _) in flow.ahead {
                pool.reuse(id);
            }
        }
    }
}
