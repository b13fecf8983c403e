//! How operations begin: what each asks of the kernel, and what goes with it.

use std::io;
use std::os::fd::RawFd;

use io_uring::opcode;
use io_uring::squeue::{Entry as Sqe, Flags};
use io_uring::types::{Fd, Fixed};

use super::pool::{GROUP, Pool};
use super::{Kernel, MOST, NO_SIGNAL, OP, poll_first, real_length, tag};
use crate::buffer::Place;
use crate::core::{Core, FileKind, Kind, Stage, Target, Way};
use crate::event::Data;

/// How a file is named to the kernel.
#[derive(Clone, Copy)]
pub(super) enum File {
    Fd(RawFd),
    Slot(u32),
}

/// An entry on either kind of file.
macro_rules! on {
    ($file:expr, $fd:ident => $entry:expr) => {
        match $file {
            File::Fd(fd) => {
                let $fd = Fd(fd);
                $entry
            }
            File::Slot(slot) => {
                let $fd = Fixed(slot);
                $entry
            }
        }
    };
}

pub(super) use on;

impl Kernel {
    pub(super) fn file(core: &Core, at: u32) -> Option<(File, FileKind)> {
        match core.entries.get(at)?.target {
            Target::Fd { fd, kind, .. } => Some((File::Fd(fd), kind)),
            Target::Direct { slot, kind, .. } => Some((File::Slot(slot), kind)),
            _ => None,
        }
    }

    /// Begins the first operations of a handle.
    pub fn begin(&mut self, core: &mut Core, at: u32) {
        match core.entries.get(at).map(|entry| &entry.target) {
            Some(Target::Listener { .. }) => self.accept(core, at),
            Some(Target::Ended { .. }) => core.refuse(at),
            Some(Target::Fd { .. } | Target::Direct { .. }) => {
                self.begin_way(core, at, Way::In);
                self.begin_way(core, at, Way::Out);
            }
            _ => {}
        }
    }

    pub(super) fn begin_way(&mut self, core: &mut Core, at: u32, way: Way) {
        let Some(op) = core.head(at, way) else { return };
        let Some((file, kind)) = Kernel::file(core, at) else { return };
        if core.ops.get(op).is_none_or(|op| op.stage != Stage::Queued) || core.waits(at, way) {
            return;
        }
        if way == Way::In {
            let recv = matches!(core.ops.get(op).map(|op| &op.kind), Some(Kind::Recv));
            if recv && let Err(error) = self.buffers(core) {
                return core.complete(at, Way::In, Err(error), Data::None);
            }
            if self.flows(core, at, recv) && self.pour(core, at) {
                return;
            }
            if recv {
                return self.begin_recv(core, at, op, file, kind);
            }
        }
        let Some(this) = core.ops.get(op) else { return };
        // To read nothing is no wait for something; messages are taken one by one all the same.
        let none = matches!(this.kind, Kind::Read) && this.place.len() == 0;
        if none && !matches!(kind, FileKind::Message | FileKind::File) {
            return core.complete(at, Way::In, Ok(0), Data::None);
        }
        if let Kind::Disconnect(how) = this.kind {
            return match file {
                File::Fd(fd) => core.complete(at, Way::Out, crate::sys::shutdown(fd, how), Data::None),
                File::Slot(slot) => self.end(core, at, op, slot, None),
            };
        }
        // FIN rides on the last bytes, where one request can say all of them.
        let rides = kind == FileKind::Tcp && matches!(this.kind, Kind::Write) && this.place.len() <= MOST;
        let ends = core.after(op).filter(|next| {
            let next = core.ops.get(*next).map(|next| &next.kind);
            rides && matches!(next, Some(Kind::Disconnect(libc::SHUT_WR | libc::SHUT_RDWR)))
        });
        let (number, first) = (tag(OP, core.ops.generation(op), op), poll_first(core, at));
        let Some(this) = core.ops.get_mut(op) else { return };
        this.stage = Stage::Submitted;
        let more = if ends.is_some() { libc::MSG_MORE } else { 0 };
        let entry = self.entry(this, file, kind, more, first).user_data(number);
        match (ends, file) {
            (Some(next), File::Slot(slot)) => self.end(core, at, next, slot, Some(entry)),
            // A descriptor's end follows the write's completion, by a system call.
            _ => self.push(core, &[entry]),
        }
    }

    /// The end of a connection that has a place in the table. To shut it down takes the kernel a thread of its own; where
    /// nothing is left to be read, and nobody reads or has it as a descriptor, closing the place says the same.
    fn end(&mut self, core: &mut Core, at: u32, op: u32, slot: u32, last: Option<Sqe>) {
        let number = tag(OP, core.ops.generation(op), op);
        let can = core.closes(at);
        let Some(op) = core.ops.get_mut(op) else { return };
        let Kind::Disconnect(how) = op.kind else { return };
        let closes = can && how == libc::SHUT_RDWR;
        op.stage = if closes { Stage::Closing } else { Stage::Submitted };
        if let Some(entry) = core.entries.get_mut(at) {
            entry.closing = closes;
        }
        let end = if closes {
            opcode::Close::new(Fixed(slot)).build()
        } else {
            opcode::Shutdown::new(Fixed(slot), how).build()
        };
        let end = end.user_data(number);
        // Whatever becomes of it, the next goes on.
        let quench = if closes { self.quenches(core, at).map(|quench| quench.flags(Flags::IO_HARDLINK)) } else { None };
        let last = last.map(|last| last.flags(Flags::IO_LINK));
        match (last, quench) {
            (Some(last), Some(quench)) => self.push(core, &[last, quench, end]),
            (Some(before), None) | (None, Some(before)) => self.push(core, &[before, end]),
            (None, None) => self.push(core, &[end]),
        }
    }

    /// What an operation asks of the kernel.
    fn entry(&self, op: &mut crate::core::Op, file: File, kind: FileKind, more: i32, first: u16) -> Sqe {
        let socket = matches!(kind, FileKind::Tcp | FileKind::Stream | FileKind::Message);
        let whole = if kind == FileKind::Message { 0 } else { libc::MSG_WAITALL };
        let send = libc::MSG_NOSIGNAL | whole | more;
        let quiet = if kind == FileKind::Pipe && self.no_signal { NO_SIGNAL } else { 0 };
        match (&op.kind, &mut op.place) {
            (Kind::Connect(address), _) => {
                let (addr, len) = address.as_ptr();
                on!(file, fd => opcode::Connect::new(fd, addr, len).build())
            }
            (Kind::Write, Place::One { at, len }) => {
                let (at, len) = (at.cast_const(), (*len).min(MOST) as u32);
                if socket {
                    on!(file, fd => opcode::Send::new(fd, at, len).flags(send).build())
                } else {
                    on!(file, fd => opcode::Write::new(fd, at, len).offset(op.offset).rw_flags(quiet).build())
                }
            }
            (Kind::Write, Place::Many(parts)) => {
                if socket {
                    let header = parts.header().cast_const();
                    on!(file, fd => opcode::SendMsg::new(fd, header).flags(send as u32).build())
                } else {
                    let (iov, n) = (parts.left().as_ptr(), parts.left().len() as u32);
                    on!(file, fd => opcode::Writev::new(fd, iov, n).offset(op.offset).rw_flags(quiet).build())
                }
            }
            (_, Place::One { at, len }) => {
                let (at, len) = (*at, (*len).min(MOST) as u32);
                if socket {
                    on!(file, fd => opcode::Recv::new(fd, at, len).flags(real_length(kind)).ioprio(first).build())
                } else {
                    on!(file, fd => opcode::Read::new(fd, at, len).offset(op.offset).build())
                }
            }
            (_, Place::Many(parts)) => {
                if socket {
                    let header = parts.header();
                    let flags = real_length(kind) as u32;
                    on!(file, fd => opcode::RecvMsg::new(fd, header).flags(flags).ioprio(first).build())
                } else {
                    let (iov, n) = (parts.left().as_ptr(), parts.left().len() as u32);
                    on!(file, fd => opcode::Readv::new(fd, iov, n).offset(op.offset).build())
                }
            }
        }
    }

    /// The memory for `recv` is there from the first one on.
    fn buffers(&mut self, core: &Core) -> io::Result<()> {
        if self.pool.is_none() {
            self.pool = Some(Pool::new(&self.ring, core.options.buffers, core.options.buffer_size as usize)?);
        }
        Ok(())
    }

    fn begin_recv(&mut self, core: &mut Core, at: u32, op: u32, file: File, kind: FileKind) {
        let (number, first) = (tag(OP, core.ops.generation(op), op), poll_first(core, at));
        let Some(this) = core.ops.get_mut(op) else { return };
        this.stage = Stage::Submitted;
        let (len, none) = (core.options.buffer_size, std::ptr::null_mut());
        let entry = match kind {
            FileKind::Pipe | FileKind::File => {
                on!(file, fd => opcode::Read::new(fd, none, len).offset(u64::MAX).buf_group(GROUP).build())
            }
            _ => {
                let flags = real_length(kind);
                on!(file, fd => opcode::Recv::new(fd, none, len).flags(flags).ioprio(first).buf_group(GROUP).build())
            }
        };
        self.push(core, &[entry.flags(Flags::BUFFER_SELECT).user_data(number)]);
    }
}
