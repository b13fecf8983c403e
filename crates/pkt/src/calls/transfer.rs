//! Calls that move bytes. What is written and read follows [`pattern`], so that bytes in a wrong place are seen.

use socket::{Errno, bits};

use super::args::{Args, field, field_int, fields, integer, iovec};
use super::{Fd, Progress, Try, is_buffer};
use crate::ast::Expr;
use crate::conn::pattern;
use crate::run::{Runner, Stop};

const MSG_PEEK: i64 = 0x2;
const MSG_DONTWAIT: i64 = 0x40;
const MSG_WAITALL: i64 = 0x100;
const MSG_NOSIGNAL: i64 = 0x4000;
const MSG_MORE: i64 = 0x8000;
/// Flags that mean what is not here.
const ABSENT: [(&str, i64); 6] = [
    ("MSG_OOB", 0x1),
    ("MSG_TRUNC", 0x20),
    ("MSG_EOR", 0x80),
    ("MSG_ERRQUEUE", 0x2000),
    ("MSG_ZEROCOPY", 0x400_0000),
    ("MSG_FASTOPEN", 0x2000_0000),
];
/// More in one call than any script has.
const MOST: usize = 64 << 20;

/// What a call of this family says about its buffers.
struct Transfer {
    bytes: usize,
    null: bool,
    flags: i64,
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
            (parts.iter().sum(), false)
        }
        "recvmsg" | "sendmsg" => {
            args.exactly(3)?;
            let iov = field(args.fields(1)?, "msg_iov").ok_or_else(|| Stop::fail("a field `msg_iov`", "none"))?;
            let parts = iovec(&iov.value)?;
            let count = iov.index.as_ref().map_or(Ok(parts.len() as i64), integer)?;
            if count != parts.len() as i64 {
                return Err(Stop::fail(format!("{count} buffers"), parts.len().to_string()));
            }
            (parts.iter().sum(), false)
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
    if let Some((name, _)) = ABSENT.iter().find(|(_, bit)| flags & bit != 0) {
        return Err(Stop::unsupported(*name));
    }
    let known = MSG_PEEK | MSG_DONTWAIT | MSG_WAITALL | MSG_NOSIGNAL | MSG_MORE;
    match flags & !known {
        0 => Ok(Transfer { bytes, null, flags }),
        other => Err(Stop::unsupported(format!("flags {other:#x}"))),
    }
}

impl Runner<'_> {
    pub(super) fn sys_receive(&mut self, args: &Args, progress: &mut Progress) -> Result<Try, Stop> {
        let t = transfer(args)?;
        let (number, fd) = self.fd(args, 0)?;
        let mut buffer = vec![0; t.bytes - progress.moved];
        let sockets = self.machine.sockets();
        if t.null && t.bytes > 0 {
            // Linux finds out when it copies.
            return Ok(match sockets.peek(fd.id, &mut [0]) {
                Ok(0) => Ok(0).into(),
                Ok(_) => Try::errno("EFAULT"),
                Err(e) => Err::<i64, _>(e).into(),
            });
        }
        let peek = t.flags & MSG_PEEK != 0;
        let got = if peek { sockets.peek(fd.id, &mut buffer) } else { sockets.read(fd.id, &mut buffer) };
        let wait = !fd.nonblocking && t.flags & MSG_DONTWAIT == 0;
        let n = match got {
            Ok(n) => n,
            Err(Errno::EAGAIN) if wait => return Ok(Try::Wait),
            Err(_) if progress.moved > 0 => return Ok(Ok(progress.moved as i64).into()),
            Err(e) => return Ok(Err::<i64, _>(e).into()),
        };
        let start = 1 + fd.read as u32;
        if let Some(i) = (0..n).find(|i| buffer[*i] != pattern(start.wrapping_add(*i as u32))) {
            return Err(Stop::fail("the bytes sent, in order", format!("others from byte {} on", fd.read + i as u64)));
        }
        if peek {
            return self.received(args, &fd, n);
        }
        if let Some(fd) = self.fds.get_mut(&number) {
            fd.read += n as u64;
        }
        progress.moved += n;
        if t.flags & MSG_WAITALL != 0 && wait && n > 0 && progress.moved < t.bytes {
            return Ok(Try::Wait);
        }
        self.received(args, &fd, progress.moved)
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
        let mut got = Vec::new();
        if fd.inq {
            // Linux's tcp_inq_hint: the end of the stream counts as a byte.
            let sockets = self.machine.sockets();
            let over = sockets.readiness(fd.id).is_ok_and(|holds| holds & bits::RDHUP != 0);
            got.push((sockets.available(fd.id).unwrap_or_default() as i64).max(over as i64));
        }
        let show = |messages: &[i64]| format!("flags 0 and {messages:?} left");
        if flags != 0 {
            return Ok(Try::with(n as i64, "msg_flags", flags, 0));
        }
        Ok(Try::with(n as i64, "the message", show(&expected), show(&got)))
    }

    pub(super) fn sys_send(&mut self, args: &Args, progress: &mut Progress) -> Result<Try, Stop> {
        let t = transfer(args)?;
        let (number, fd) = self.fd(args, 0)?;
        if args.call.name == "sendto" && *args.get(4)? != Expr::Ellipsis {
            return Err(Stop::unsupported("sendto another address than `...`"));
        }
        let start = 1 + fd.written as u32;
        let data: Vec<u8> = (0..(t.bytes - progress.moved) as u32).map(|i| pattern(start.wrapping_add(i))).collect();
        let more = t.flags & MSG_MORE != 0;
        if t.null && t.bytes > 0 {
            return Ok(match self.machine.sockets().write(fd.id, &[], more) {
                Ok(_) => Try::errno("EFAULT"),
                Err(e) => Err::<i64, _>(e).into(),
            });
        }
        let wait = !fd.nonblocking && t.flags & MSG_DONTWAIT == 0;
        match self.machine.sockets().write(fd.id, &data, more) {
            Ok(n) => {
                progress.moved += n;
                if let Some(fd) = self.fds.get_mut(&number) {
                    fd.written += n as u64;
                }
                if progress.moved < t.bytes && wait {
                    return Ok(Try::Wait);
                }
                Ok(Ok(progress.moved as i64).into())
            }
            Err(Errno::EAGAIN) if wait => Ok(Try::Wait),
            Err(_) if progress.moved > 0 => Ok(Ok(progress.moved as i64).into()),
            Err(e) => Ok(Err::<i64, _>(e).into()),
        }
    }
}
