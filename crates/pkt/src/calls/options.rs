//! getsockopt and setsockopt.

use std::time::Duration;

use socket::{Linger, SockOption};

use super::Try;
use super::args::{Args, field_int};
use crate::ast::Expr;
use crate::run::{Runner, Stop};

const SOL_SOCKET: i64 = 1;
const SOL_TCP: i64 = 6;
const SOL_IPV6: i64 = 41;
const SO_ERROR: i64 = 4;
const SO_LINGER: i64 = 13;
const TCP_INQ: i64 = 36;

/// The option of that number, with a value.
fn option(level: i64, name: i64, value: i64) -> Option<SockOption> {
    let (on, n) = (value != 0, u32::try_from(value).unwrap_or(0));
    Some(match (level, name) {
        (SOL_SOCKET, 2) => SockOption::ReuseAddr(on),
        (SOL_SOCKET, 3) => SockOption::Type(0),
        (SOL_SOCKET, 7) => SockOption::SendBuffer(n),
        (SOL_SOCKET, 8) => SockOption::ReceiveBuffer(n),
        (SOL_SOCKET, 9) => SockOption::KeepAlive(on),
        (SOL_SOCKET, 15) => SockOption::ReusePort(on),
        (SOL_SOCKET, 30) => SockOption::AcceptConn(on),
        (SOL_SOCKET, 39) => SockOption::Domain(0),
        (SOL_TCP, 1) => SockOption::NoDelay(on),
        (SOL_TCP, 2) => SockOption::MaxSegment(n),
        (SOL_TCP, 3) => SockOption::Cork(on),
        (SOL_TCP, 4) => SockOption::KeepIdle(n),
        (SOL_TCP, 5) => SockOption::KeepInterval(n),
        (SOL_TCP, 6) => SockOption::KeepCount(n),
        (SOL_TCP, 12) => SockOption::QuickAck(on),
        (SOL_TCP, 18) => SockOption::UserTimeout(n),
        (SOL_IPV6, 26) => SockOption::V6Only(on),
        _ => return None,
    })
}

/// The value of an option that has one number.
fn value(option: SockOption) -> Option<i64> {
    Some(match option {
        SockOption::ReuseAddr(on) | SockOption::ReusePort(on) | SockOption::V6Only(on) | SockOption::KeepAlive(on) => {
            on as i64
        }
        SockOption::NoDelay(on) | SockOption::Cork(on) | SockOption::QuickAck(on) | SockOption::AcceptConn(on) => {
            on as i64
        }
        // Linux keeps the double of what was set, for what it needs itself.
        SockOption::SendBuffer(n) | SockOption::ReceiveBuffer(n) => 2 * n as i64,
        SockOption::MaxSegment(n) | SockOption::KeepIdle(n) | SockOption::KeepInterval(n) => n as i64,
        SockOption::KeepCount(n) | SockOption::UserTimeout(n) => n as i64,
        SockOption::Type(n) | SockOption::Domain(n) => n as i64,
        SockOption::Linger(_) | SockOption::ReceiveTimeout(_) | SockOption::SendTimeout(_) => return None,
    })
}

/// That an option is not known, by the script's name of it.
fn unknown(args: &Args) -> Stop {
    match args.get(2) {
        Ok(Expr::Word(name)) => Stop::unsupported(name.clone()),
        _ => Stop::unsupported("an option without a name"),
    }
}

impl Runner<'_> {
    pub(super) fn sys_setsockopt(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(5)?;
        let (number, fd) = self.fd(args, 0)?;
        let (level, name) = (args.int(1)?, args.int(2)?);
        let option = match args.get(3)? {
            Expr::Struct(fields) if (level, name) == (SOL_SOCKET, SO_LINGER) => {
                let timeout = Duration::from_secs(field_int(fields, "linger")?.max(0) as u64);
                SockOption::Linger((field_int(fields, "onoff")? != 0).then_some(Linger { timeout }))
            }
            Expr::List(_) if (level, name) == (SOL_TCP, TCP_INQ) => {
                let on = args.bracketed(3)? != 0;
                if let Some(fd) = self.fds.get_mut(&number) {
                    fd.inq = on;
                }
                return Ok(Ok(0).into());
            }
            Expr::List(_) => option(level, name, args.bracketed(3)?).ok_or_else(|| unknown(args))?,
            _ => return Err(unknown(args)),
        };
        Ok(self.machine.sockets().set_option(fd.id, option).into())
    }

    pub(super) fn sys_getsockopt(&mut self, args: &Args) -> Result<Try, Stop> {
        args.exactly(5)?;
        let (_, fd) = self.fd(args, 0)?;
        let (level, name) = (args.int(1)?, args.int(2)?);
        let sockets = self.machine.sockets();
        if (level, name) == (SOL_SOCKET, SO_ERROR) {
            return match sockets.take_error(fd.id) {
                Ok(error) => Ok(Try::with(0, "SO_ERROR", args.bracketed(3)?, error.map_or(0, |e| e.number()))),
                Err(e) => Ok(Err::<i64, _>(e).into()),
            };
        }
        let like = option(level, name, 0).ok_or_else(|| unknown(args))?;
        match sockets.option(fd.id, like) {
            Ok(option) => {
                let got = value(option).ok_or_else(|| unknown(args))?;
                Ok(Try::with(0, "a value of", args.bracketed(3)?, got))
            }
            Err(e) => Ok(Err::<i64, _>(e).into()),
        }
    }
}
