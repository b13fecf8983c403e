//! Reading, in every form that recv(2) has.

use mem::Chain;
use protocol::Job;

use crate::errno::Errno;
use crate::sockets::Sockets;
use crate::table::{Phase, SockId, Socket, Tcp, flag};

/// What a recv asks for beside bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvFlags {
    /// MSG_PEEK: the bytes stay.
    pub peek: bool,
    /// MSG_DONTWAIT, or O_NONBLOCK: what is there, at once.
    pub dont_wait: bool,
    /// MSG_WAITALL: the whole buffer, unless the stream ends.
    pub wait_all: bool,
    /// MSG_TRUNC: the bytes are dropped rather than copied.
    pub truncate: bool,
    /// MSG_OOB: the urgent byte.
    pub urgent: bool,
}

impl RecvFlags {
    /// From Linux's numbers; others are ignored, as there.
    pub fn from_bits(bits: i32) -> RecvFlags {
        RecvFlags {
            peek: bits & 0x2 != 0,
            dont_wait: bits & 0x40 != 0,
            wait_all: bits & 0x100 != 0,
            truncate: bits & 0x20 != 0,
            urgent: bits & 0x1 != 0,
        }
    }
}

/// The error that a call meets first: reported once, then the connection is just over.
pub(crate) fn pending(t: &mut Tcp) -> Result<(), Errno> {
    t.take_error().map_or(Ok(()), Err)
}

/// What a read of a socket without bytes says: the end of the stream, or why not (Linux's tcp_recvmsg).
fn nothing(t: &mut Tcp) -> Result<(), Errno> {
    match t.phase {
        Phase::Open | Phase::Failed => {
            // The peer's FIN comes before whatever went wrong after it.
            if t.is(flag::FIN) {
                return Ok(());
            }
            pending(t)?;
            if t.receive_over() { Ok(()) } else { Err(Errno::EAGAIN) }
        }
        Phase::Asked | Phase::Opening => Err(Errno::EAGAIN),
        Phase::Fresh | Phase::Abandoned | Phase::Lingering | Phase::Lingered | Phase::Releasing | Phase::Released => {
            Err(Errno::ENOTCONN)
        }
    }
}

impl Tcp {
    /// Tells without a look at the options that nothing waits below SO_RCVLOWAT: most reads leave nothing.
    #[inline]
    fn may_be_low(&self) -> bool {
        !self.rx.is_empty() && self.cold.is_some()
    }

    /// The stack counts unreported bytes as occupying the window. A quarter of the buffer is worth a job; an emptied queue
    /// is worth one from an eighth on, so that a sender held up by the window goes on at once.
    #[inline]
    pub(crate) fn worth_reporting(&self) -> bool {
        let quarter = self.receive_buffer / 4;
        self.unreported >= if self.rx.is_empty() { quarter / 2 } else { quarter }
    }
}

impl Sockets {
    /// read: 0 at the end of the stream, `EAGAIN` when nothing is there.
    pub fn read(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno> {
        self.readv(id, &mut [out])
    }

    /// readv: fills the buffers in order.
    pub fn readv(&mut self, id: SockId, out: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let t = self.stream(id, Errno::ENOTCONN)?;
        let (skip, len) = t.span();
        if len == 0 {
            let wanted = out.iter().any(|b| !b.is_empty());
            return match nothing(t) {
                Err(Errno::EAGAIN) if !wanted => Ok(0),
                other => other.map(|()| 0),
            };
        }
        let Sockets { table, side, .. } = self;
        let Some(t) = table.tcp(id) else { return Err(Errno::EBADF) };
        t.rx.consume(side, skip);
        let mut n = 0;
        for part in out.iter_mut() {
            let fits = part.len().min(len - n);
            n += t.rx.read(side, &mut part[..fits]);
        }
        t.took(skip + n);
        let may_be_low = t.may_be_low();
        self.after_read(id, may_be_low);
        Ok(n)
    }

    /// recv with MSG_PEEK.
    pub fn peek(&mut self, id: SockId, out: &mut [u8]) -> Result<usize, Errno> {
        self.recv(id, out, RecvFlags { peek: true, ..RecvFlags::default() })
    }

    /// recv that does not wait: what is there, or `EAGAIN`.
    pub fn recv(&mut self, id: SockId, out: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        self.recv_on(id, out, &mut 0, RecvFlags { dont_wait: true, ..flags })
    }

    /// recv as one that waits: goes on filling `out` from `*done`, and says `EAGAIN` until it is complete. Complete is
    /// SO_RCVLOWAT, or the whole of `out` with MSG_WAITALL, or what came before the end of the stream.
    #[inline]
    pub fn recv_on(&mut self, id: SockId, out: &mut [u8], done: &mut usize, flags: RecvFlags) -> Result<usize, Errno> {
        // What most reads are: nothing is marked, and whatever bytes are there are enough, or there are none yet.
        const OVER: u16 = flag::FIN | flag::SHUT_READ | flag::ERROR_NEW;
        let plain = !(flags.urgent | flags.peek | flags.wait_all | flags.truncate);
        let Sockets { table, side, .. } = self;
        if let Ok(Socket::Tcp(t)) = table.open_mut(id)
            && plain
            && t.cold.is_none()
        {
            if !t.rx.is_empty()
                && let Some(room @ [_, ..]) = out.get_mut(*done..)
            {
                let n = t.rx.read(side, room);
                t.unreported += n as u32;
                *done += n;
                if t.worth_reporting() {
                    self.report_consumed(id);
                }
                return Ok(*done);
            }
            if t.rx.is_empty() && t.phase == Phase::Open && t.flags & OVER == 0 && t.error.is_none() && *done == 0 {
                return Err(Errno::EAGAIN);
            }
        }
        self.recv_any(id, out, done, flags)
    }

    fn recv_any(&mut self, id: SockId, out: &mut [u8], done: &mut usize, flags: RecvFlags) -> Result<usize, Errno> {
        if flags.urgent {
            return self.recv_urgent(id, out, flags.peek);
        }
        let t = self.stream(id, Errno::ENOTCONN)?;
        let target = if flags.wait_all { out.len() } else { t.receive_low().min(out.len()) }.max(1);
        if flags.peek {
            // From the start each time: nothing was taken.
            *done = 0;
        }
        let (skip, len) = t.span();
        let n = len.min(out.len() - *done);
        if n > 0 {
            let Sockets { table, side, .. } = self;
            let Some(t) = table.tcp(id) else { return Err(Errno::EBADF) };
            let part = &mut out[*done..*done + n];
            if !flags.truncate {
                t.rx.copy_at(side, skip, part);
            }
            *done += n;
            if !flags.peek {
                t.rx.consume(side, skip + n);
                t.took(skip + n);
                let may_be_low = t.may_be_low();
                self.after_read(id, may_be_low);
            }
        }
        if *done >= target {
            return Ok(*done);
        }
        let t = self.stream(id, Errno::ENOTCONN)?;
        if *done > 0 {
            // An error waits for the next call.
            let over = t.receive_over() || flags.dont_wait;
            return if over { Ok(*done) } else { Err(Errno::EAGAIN) };
        }
        if len > 0 {
            // A buffer of no bytes.
            return Ok(0);
        }
        nothing(t).map(|()| 0)
    }

    /// Everything received, without a copy; empty at the end of the stream.
    pub fn read_chain(&mut self, id: SockId) -> Result<Chain, Errno> {
        let t = self.stream(id, Errno::ENOTCONN)?;
        let (skip, len) = t.span();
        if len == 0 {
            return nothing(t).map(|()| Chain::default());
        }
        let Sockets { table, side, .. } = self;
        let Some(t) = table.tcp(id) else { return Err(Errno::EBADF) };
        t.rx.consume(side, skip);
        let chain = match len == t.rx.len() {
            true => core::mem::take(&mut t.rx),
            false => t.rx.split_front(side, len),
        };
        t.took(skip + chain.len());
        let may_be_low = t.may_be_low();
        self.after_read(id, may_be_low);
        Ok(chain)
    }

    /// The first contiguous bytes received, where they lie; for parsers. Empty when there are none: a read tells why.
    pub fn first_slice(&mut self, id: SockId) -> Result<&[u8], Errno> {
        self.stream(id, Errno::ENOTCONN)?;
        let Sockets { table, side, .. } = self;
        let t = table.tcp(id).ok_or(Errno::EBADF)?;
        let (skip, len) = t.span();
        if skip > 0 {
            t.rx.consume(side, skip);
            t.took(skip);
        }
        let slice = t.rx.first_slice(side);
        Ok(&slice[..slice.len().min(len)])
    }

    /// What was received, at most `most` bytes, in order and where it lies: `f` is lent each piece until it has enough
    /// (`false`). A piece stays where it is until it is consumed, read or the socket is closed; what arrives meanwhile comes
    /// behind it. How many bytes were lent; 0 at the end of the stream, `EAGAIN` when nothing is there.
    pub fn lend(&mut self, id: SockId, most: usize, mut f: impl FnMut(&[u8]) -> bool) -> Result<usize, Errno> {
        let t = self.stream(id, Errno::ENOTCONN)?;
        let (skip, len) = t.span();
        if len == 0 {
            return nothing(t).map(|()| 0);
        }
        let Sockets { table, side, .. } = self;
        let t = table.tcp(id).ok_or(Errno::EBADF)?;
        if skip > 0 {
            t.rx.consume(side, skip);
            t.took(skip);
        }
        let (mut lent, mut more) = (0, true);
        t.rx.for_each_slice(side, 0, len.min(most), |slice| {
            if more {
                lent += slice.len();
                more = f(slice);
            }
        });
        Ok(lent)
    }

    /// Drops bytes that were read in place.
    pub fn consume(&mut self, id: SockId, n: usize) -> Result<(), Errno> {
        self.stream(id, Errno::ENOTCONN)?;
        let Sockets { table, side, .. } = self;
        let t = table.tcp(id).ok_or(Errno::EBADF)?;
        let n = n.min(t.rx.len());
        t.rx.consume(side, n);
        t.took(n);
        let may_be_low = t.may_be_low();
        self.after_read(id, may_be_low);
        Ok(())
    }

    /// SIOCINQ (FIONREAD): bytes that a read would give, up to the urgent mark.
    pub fn available(&mut self, id: SockId) -> Result<usize, Errno> {
        Ok(self.stream(id, Errno::EINVAL)?.span().1)
    }

    /// TCP_CM_INQ, what a recvmsg under TCP_INQ tells beside the bytes: how many are left. The end of the stream counts as
    /// one, so that it is read.
    pub fn inq(&mut self, id: SockId) -> Result<Option<usize>, Errno> {
        let t = self.stream(id, Errno::ENOTCONN)?;
        let on = t.cold.as_ref().is_some_and(|c| c.inq);
        Ok(on.then_some(t.rx.len() + t.is(flag::FIN) as usize))
    }

    /// Some was read: tells the stack, and of a socket that `may_be_low` looks whether less is left than SO_RCVLOWAT.
    #[inline]
    fn after_read(&mut self, id: SockId, may_be_low: bool) {
        self.report_consumed(id);
        if may_be_low {
            self.note_low(id);
        }
    }

    /// Tells the stack what was read, when it is worth a job.
    pub(crate) fn report_consumed(&mut self, id: SockId) {
        let Some(t) = self.table.tcp(id) else { return };
        if t.worth_reporting() && t.error.is_none() && !t.is(flag::FIN) {
            let (conn, bytes) = (t.conn, core::mem::take(&mut t.unreported));
            self.job(Job::Consumed { conn, bytes });
        }
    }
}
