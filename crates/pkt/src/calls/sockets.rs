//! Calls that open, name and close sockets.

use protocol::Endpoint;
use socket::{Errno, ListenOptions, Shutdown, SockOption};

use super::args::Args;
use super::{Fd, Kind, Progress, Try};
use crate::ast::Expr;
use crate::conn::{Conn, Phase};
use crate::options::IpVersion;
use crate::run::{Runner, Stop};

const O_NONBLOCK: i64 = 0o4000;
const O_RDWR: i64 = 2;
const AF_INET: i64 = 2;
const AF_INET6: i64 = 10;

impl Runner<'_> {
    pub(super) fn sys_socket(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(3)?;
        let v6 = match args.get(0)? {
            Expr::Ellipsis => self.options.ip_version != IpVersion::V4,
            domain => match super::args::integer(domain)? {
                AF_INET => false,
                AF_INET6 => true,
                other => return Err(Stop::unsupported(format!("address family {other}"))),
            },
        };
        let kind = args.int(1)?;
        if kind & !O_NONBLOCK != 1 {
            return Err(Stop::unsupported("sockets that are not SOCK_STREAM"));
        }
        let id = match self.machine.sockets().socket(v6) {
            Ok(id) => id,
            Err(e) => return Ok(Err::<i64, _>(e).into()),
        };
        self.conns.push(Conn::new(Phase::New, Some(id)));
        self.under_test = Some(self.conns.len() - 1);
        let fd = Fd { id, nonblocking: kind & O_NONBLOCK != 0, kind: Kind::Socket, written: 0, read: 0 };
        self.name_fd(args.call, fd)?;
        Ok(Ok(0).into())
    }

    pub(super) fn sys_bind(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(3)?;
        let (_, fd) = self.fd(args, 0)?;
        let at = Endpoint { addr: self.options.local().into(), port: self.options.bind_port };
        Ok(self.machine.sockets().bind(fd.id, at).into())
    }

    pub(super) fn sys_listen(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(2)?;
        let (_, fd) = self.fd(args, 0)?;
        let backlog = args.int(1)?.max(0) as u32;
        let asked = self.machine.sockets().listen(fd.id, ListenOptions { backlog });
        if asked.is_err() {
            return Ok(asked.into());
        }
        self.machine.settle();
        let result = self.machine.sockets().listen_result(fd.id).unwrap_or(Err(Errno::EINVAL));
        if let (Ok(()), Some(conn)) = (result, self.conns.iter_mut().find(|c| c.sock == Some(fd.id))) {
            conn.phase = Phase::Listening;
        }
        Ok(result.into())
    }

    pub(super) fn sys_accept(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(3)?;
        let (_, fd) = self.fd(args, 0)?;
        let (id, remote) = match self.machine.sockets().accept(fd.id) {
            Ok(accepted) => accepted,
            Err(Errno::EAGAIN) if !fd.nonblocking => return Ok(Try::Wait),
            Err(e) => return Ok(Err::<i64, _>(e).into()),
        };
        let conn = self.conns.iter_mut().rev().find(|c| c.sock.is_none() && c.remote_port == remote.port);
        let Some(conn) = conn else { return Err(Stop::fail("a connection of the script", remote.port.to_string())) };
        conn.sock = Some(id);
        self.name_fd(args.call, Fd { id, nonblocking: false, kind: Kind::Socket, written: 0, read: 0 })?;
        Ok(Ok(0).into())
    }

    pub(super) fn sys_connect(&mut self, args: &Args, progress: &mut Progress) -> Result<Try, Stop> {
        args.exactly(3)?;
        let (_, fd) = self.fd(args, 0)?;
        if *args.get(1)? != Expr::Ellipsis {
            return Err(Stop::unsupported("connect to another address than `...`"));
        }
        if !progress.asked {
            let remote = Endpoint { addr: self.options.remote().into(), port: self.options.connect_port };
            let connect_port = remote.port;
            if let Some(conn) = self.conns.iter_mut().find(|c| c.sock == Some(fd.id) && c.phase == Phase::New) {
                conn.phase = Phase::Connecting;
                conn.remote_port = connect_port;
            }
            match self.machine.sockets().connect(fd.id, remote) {
                Err(Errno::EINPROGRESS) if !fd.nonblocking => progress.asked = true,
                Err(Errno::EALREADY) if !fd.nonblocking => progress.asked = true,
                other => return Ok(other.into()),
            }
            self.machine.settle();
        }
        Ok(match self.machine.sockets().connect_result(fd.id) {
            Some(result) => result.into(),
            None => Try::Wait,
        })
    }

    pub(super) fn sys_close(&mut self, args: &Args, progress: &mut Progress) -> Result<Try, Stop> {
        args.exactly(1)?;
        let (number, fd) = self.fd(args, 0)?;
        if !progress.asked {
            let linger = self.machine.sockets().option(fd.id, SockOption::Linger(None));
            if let Err(e) = self.machine.sockets().close(fd.id) {
                return Ok(Err::<i64, _>(e).into());
            }
            progress.asked = true;
            self.machine.settle();
            if let Ok(SockOption::Linger(Some(linger))) = linger {
                self.until(progress, linger.timeout.as_millis() as i64);
            }
        }
        if fd.kind == Kind::Socket && self.machine.sockets().linger_result(fd.id).is_none() {
            if !self.timed_out(progress) {
                return Ok(Try::Wait);
            }
            self.machine.sockets().linger_give_up(fd.id);
        }
        self.fds.remove(&number);
        // Its number may soon mean another socket.
        self.conns.iter_mut().filter(|c| c.sock == Some(fd.id)).for_each(|c| c.sock = None);
        Ok(Ok(0).into())
    }

    pub(super) fn sys_shutdown(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(2)?;
        let (_, fd) = self.fd(args, 0)?;
        let how = match args.int(1)? {
            0 => Shutdown::Read,
            1 => Shutdown::Write,
            2 => Shutdown::Both,
            _ => return Ok(Err::<i64, _>(Errno::EINVAL).into()),
        };
        Ok(self.machine.sockets().shutdown(fd.id, how).into())
    }

    pub(super) fn sys_fcntl(&mut self, args: &Args) -> Result<Try, Stop> {
        let (number, fd) = self.fd(args, 0)?;
        match args.int(1)? {
            // F_GETFD, F_SETFD.
            1 | 2 => Ok(Ok(0).into()),
            // F_GETFL.
            3 => Ok(Ok(O_RDWR | if fd.nonblocking { O_NONBLOCK } else { 0 }).into()),
            // F_SETFL.
            4 => {
                let nonblocking = args.int(2)? & O_NONBLOCK != 0;
                if let Some(fd) = self.fds.get_mut(&number) {
                    fd.nonblocking = nonblocking;
                }
                Ok(Ok(0).into())
            }
            other => Err(Stop::unsupported(format!("command {other} of fcntl"))),
        }
    }

    pub(super) fn sys_ioctl(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(3)?;
        let (_, fd) = self.fd(args, 0)?;
        let command = args.int(1)?;
        let sockets = self.machine.sockets();
        let (name, value) = match command {
            0x541b => ("SIOCINQ", sockets.available(fd.id)),
            0x5411 => ("SIOCOUTQ", sockets.unacknowledged(fd.id)),
            other => return Err(Stop::unsupported(format!("command {other:#x} of ioctl"))),
        };
        match value {
            Ok(n) => Ok(Try::with(0, name, args.bracketed(2)?, n)),
            Err(e) => Ok(Err::<i64, _>(e).into()),
        }
    }
}
