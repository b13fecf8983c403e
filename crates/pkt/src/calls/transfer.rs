//! Calls that move bytes. What is written and read follows [`pattern`], so that bytes in a wrong place are seen.

use socket::{Errno, RecvFlags};

use super::args::{Args, field, field_int, fields, integer, iovec};
use super::{Fd, Progress, Try, is_buffer};
use crate::ast::Expr;
use crate::conn::pattern;
use crate::run::{Runner, Stop};

const MSG_DONTWAIT: i64 = 0x40;
const MSG_EOR: i64 = 0x80;
const MSG_MORE: i64 = 0x8000;
/// Flags of sending that mean what is not here.
const NOT_SENT: [(&str, i64); 3] = [("MSG_OOB", 0x1), ("MSG_ZEROCOPY", 0x400_0000), ("MSG_FASTOPEN", 0x2000_0000)];
/// The same of receiving.
const NOT_RECEIVED: [(&str, i64); 1] = [("MSG_ERRQUEUE", 0x2000)];
/// More in one call than any script has.
const MOST: usize = 64 << 20;

/// What a call of this family says about its buffers.
struct Transfer {
    bytes: usize,
    null: bool,
    flags: i64,
}

fn total(parts: &[usize]) -> usize {
    parts.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

fn transfer(args: &Args) -> Result<Transfer, Stop> {
    let name = args.call.name.as_str();
    let (bytes, null) = match name {
        "readv" | "writev" => {
            args.exactly(3)?;
            let parts = iovec(args.get(1)?)?;
            if args.int(2)? != parts.len() as i64 {
                return Err(Stop::fail(format!("{} buffers", args.int(2)?), parts.len().to_string()));
            }
            (total(&parts), false)
        }
        "recvmsg" | "sendmsg" => {
            args.exactly(3)?;
            let iov = field(args.fields(1)?, "msg_iov").ok_or_else(|| Stop::fail("a field `msg_iov`", "none"))?;
            let parts = iovec(&iov.value)?;
            let count = iov.index.as_ref().map_or(Ok(parts.len() as i64), integer)?;
            if count != parts.len() as i64 {
                return Err(Stop::fail(format!("{count} buffers"), parts.len().to_string()));
            }
            (total(&parts), false)
        }
        _ => (args.int(2)?.max(0) as usize, !is_buffer(args.get(1)?)),
    };
    if bytes > MOST {
        return Err(Stop::unsupported(format!("{bytes} bytes in one call")));
    }
    let flags = match name {
        "recv" | "send" | "recvfrom" | "sendto" => args.int(3)?,
        "recvmsg" | "sendmsg" => args.int(2)?,
        _ => 0,
    };
    let absent = if name.starts_with('r') { &NOT_RECEIVED[..] } else { &NOT_SENT[..] };
    match absent.iter().find(|(_, bit)| flags & bit != 0) {
        Some((name, _)) => Err(Stop::unsupported(*name)),
        None => Ok(Transfer { bytes, null, flags }),
    }
}

impl Runner<'_> {
    pub(super) fn sys_receive(&mut self, args: &Args, progress: &mut Progress) -> Result<Try, Stop> {
        let t = transfer(args)?;
        let (number, fd) = self.fd(args, 0)?;
        let flags = RecvFlags::from_bits(t.flags as i32);
        let wait = !fd.nonblocking && !flags.dont_wait;
        let flags = RecvFlags { dont_wait: !wait, ..flags };
        let sockets = self.machine.sockets();
        if t.null && t.bytes > 0 {
            // Linux finds out when it copies.
            return Ok(match sockets.peek(fd.id, &mut [0]) {
                Ok(0) => Ok(0).into(),
                Ok(_) => Try::errno("EFAULT"),
                Err(e) => Err::<i64, _>(e).into(),
            });
        }
        progress.buffer.resize(t.bytes, 0);
        let n = match sockets.recv_on(fd.id, &mut progress.buffer, &mut progress.moved, flags) {
            Ok(n) => n,
            Err(Errno::EAGAIN) if wait => return Ok(Try::Wait),
            Err(e) => return Ok(Err::<i64, _>(e).into()),
        };
        // An urgent byte is not where the stream has it.
        let urgent = flags.urgent || self.conns.iter().any(|c| c.urgent && c.sock == Some(fd.id));
        let start = 1 + fd.read as u32;
        let right = |i: &usize| progress.buffer[*i] == pattern(start.wrapping_add(*i as u32));
        if let (Some(i), false) = ((0..n).find(|i| !right(i)), urgent || flags.truncate) {
            return Err(Stop::fail("the bytes sent, in order", format!("others from byte {} on", fd.read + i as u64)));
        }
        if let (Some(fd), false) = (self.fds.get_mut(&number), flags.peek || flags.urgent) {
            fd.read += n as u64;
        }
        self.received(args, &fd, n)
    }

    /// The end of a call that received; recvmsg tells more.
    fn received(&mut self, args: &Args, fd: &Fd, n: usize) -> Result<Try, Stop> {
        if args.call.name != "recvmsg" {
            return Ok(Ok(n as i64).into());
        }
        let message = args.fields(1)?;
        let flags = field_int(message, "msg_flags")?;
        let mut expected = Vec::new();
        if let Some(control) = field(message, "msg_control") {
            let Expr::List(list) = &control.value else { return Err(Stop::fail("a list", "something else")) };
            for one in list {
                let one = fields(one)?;
                let header = (field_int(one, "cmsg_level")?, field_int(one, "cmsg_type")?);
                // SOL_TCP, TCP_CM_INQ.
                if header != (6, 36) {
                    return Err(Stop::unsupported(format!("control message {} of level {}", header.1, header.0)));
                }
                expected.push(field_int(one, "cmsg_data")?);
            }
        }
        let left = self.machine.sockets().inq(fd.id).ok().flatten();
        let got: Vec<_> = left.map(|n| n as i64).into_iter().collect();
        if flags != 0 {
            return Ok(Try::with(n as i64, "msg_flags", flags, 0));
        }
        let show = |left: &[i64]| format!("{left:?} as what is left");
        Ok(Try::with(n as i64, "a message with", show(&expected), show(&got)))
    }

    pub(super) fn sys_send(&mut self, args: &Args, progress: &mut Progress) -> Result<Try, Stop> {
        let t = transfer(args)?;
        let (number, fd) = self.fd(args, 0)?;
        if args.call.name == "sendto" && *args.get(4)? != Expr::Ellipsis {
            return Err(Stop::unsupported("sendto another address than `...`"));
        }
        let more = t.flags & MSG_MORE != 0;
        if t.null && t.bytes > 0 {
            return Ok(match self.machine.sockets().write(fd.id, &[], more) {
                Ok(_) => Try::errno("EFAULT"),
                Err(e) => Err::<i64, _>(e).into(),
            });
        }
        let wait = !fd.nonblocking && t.flags & MSG_DONTWAIT == 0;
        loop {
            let start = 1 + self.fds.get(&number).map_or(0, |fd| fd.written) as u32;
            let rest = 0..(t.bytes - progress.moved) as u32;
            let data: Vec<u8> = rest.map(|i| pattern(start.wrapping_add(i))).collect();
            let written = match t.flags & MSG_EOR {
                0 => self.machine.sockets().write(fd.id, &data, more),
                _ => self.machine.sockets().write_record(fd.id, &data),
            };
            match written {
                Ok(n) => {
                    progress.moved += n;
                    if let Some(fd) = self.fds.get_mut(&number) {
                        fd.written += n as u64;
                    }
                    if progress.moved == t.bytes || n == 0 {
                        return Ok(Ok(progress.moved as i64).into());
                    }
                    // As in Linux, what was taken is sent while the call goes on.
                    self.machine.settle();
                }
                Err(Errno::EAGAIN) if wait => return Ok(Try::Wait),
                Err(_) if progress.moved > 0 => return Ok(Ok(progress.moved as i64).into()),
                Err(e) => return Ok(Err::<i64, _>(e).into()),
            }
        }
    }
}
