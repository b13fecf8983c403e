//! getsockopt and setsockopt.

use std::time::Duration;

use socket::{Linger, SockOption};

use super::Try;
use super::args::{Args, field_int};
use crate::ast::Expr;
use crate::run::{Runner, Stop};

const SOL_IP: i64 = 0;
const SOL_SOCKET: i64 = 1;
const SOL_TCP: i64 = 6;
const SOL_IPV6: i64 = 41;
const SO_ERROR: i64 = 4;
const SO_LINGER: i64 = 13;
const TCP_CONGESTION: i64 = 13;

/// The option of that number, with a value.
fn option(level: i64, name: i64, value: i64) -> Option<SockOption> {
    let (on, n, int) = (value != 0, value as u32, value as i32);
    Some(match (level, name) {
        (SOL_SOCKET, 2) => SockOption::ReuseAddr(on),
        (SOL_SOCKET, 3) => SockOption::Type(int),
        (SOL_SOCKET, 7) => SockOption::SendBuffer(n),
        (SOL_SOCKET, 8) => SockOption::ReceiveBuffer(n),
        (SOL_SOCKET, 9) => SockOption::KeepAlive(on),
        (SOL_SOCKET, 10) => SockOption::OobInline(on),
        (SOL_SOCKET, 15) => SockOption::ReusePort(on),
        (SOL_SOCKET, 18) => SockOption::ReceiveLow(n),
        (SOL_SOCKET, 30) => SockOption::AcceptConn(on),
        (SOL_SOCKET, 38) => SockOption::Protocol(int),
        (SOL_SOCKET, 39) => SockOption::Domain(int),
        (SOL_TCP, 1) => SockOption::NoDelay(on),
        (SOL_TCP, 2) => SockOption::MaxSegment(n),
        (SOL_TCP, 3) => SockOption::Cork(on),
        (SOL_TCP, 4) => SockOption::KeepIdle(n),
        (SOL_TCP, 5) => SockOption::KeepInterval(n),
        (SOL_TCP, 6) => SockOption::KeepCount(n),
        (SOL_TCP, 7) => SockOption::SynCount(n),
        (SOL_TCP, 8) => SockOption::Linger2(int),
        (SOL_TCP, 9) => SockOption::DeferAccept(n),
        (SOL_TCP, 10) => SockOption::WindowClamp(n),
        (SOL_TCP, 12) => SockOption::QuickAck(on),
        (SOL_TCP, 18) => SockOption::UserTimeout(n),
        (SOL_SOCKET, 47) => SockOption::MaxPacingRate(n),
        (SOL_TCP, 25) => SockOption::NotSentLow(n),
        (SOL_TCP, 36) => SockOption::Inq(on),
        (SOL_IP, 1) | (SOL_IPV6, 67) => SockOption::TrafficClass(int),
        (SOL_IP, 2) | (SOL_IPV6, 16) => SockOption::HopLimit(int),
        (SOL_IP, 10) => SockOption::MtuDiscover(int),
        (SOL_IPV6, 26) => SockOption::V6Only(on),
        _ => return None,
    })
}

/// The value of an option that has one number.
fn value(option: SockOption) -> Option<i64> {
    use SockOption::*;
    Some(match option {
        ReuseAddr(on) | ReusePort(on) | V6Only(on) | KeepAlive(on) | NoDelay(on) | Cork(on) => on as i64,
        QuickAck(on) | OobInline(on) | Inq(on) | AcceptConn(on) => on as i64,
        SendBuffer(n) | ReceiveBuffer(n) | ReceiveLow(n) | MaxSegment(n) | KeepIdle(n) | KeepInterval(n) => n as i64,
        KeepCount(n) | UserTimeout(n) | SynCount(n) | DeferAccept(n) | WindowClamp(n) => n as i64,
        // As an int of 32 bits comes back.
        NotSentLow(n) | MaxPacingRate(n) => n as i32 as i64,
        Linger2(n) | TrafficClass(n) | HopLimit(n) | MtuDiscover(n) | Type(n) | Domain(n) | Protocol(n) => n as i64,
        Linger(_) | ReceiveTimeout(_) | SendTimeout(_) | Congestion(_) => return None,
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
        let (_, fd) = self.fd(args, 0)?;
        let (level, name) = (args.int(1)?, args.int(2)?);
        let option = match args.get(3)? {
            Expr::Struct(fields) if (level, name) == (SOL_SOCKET, SO_LINGER) => {
                let timeout = Duration::from_secs(field_int(fields, "linger")?.max(0) as u64);
                SockOption::Linger((field_int(fields, "onoff")? != 0).then_some(Linger { timeout }))
            }
            Expr::Str(text) if (level, name) == (SOL_TCP, TCP_CONGESTION) => match SockOption::congestion(text) {
                Ok(option) => option,
                Err(e) => return Ok(Err::<i64, _>(e).into()),
            },
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
        if (level, name) == (SOL_TCP, TCP_CONGESTION) {
            let Expr::Str(expected) = args.get(3)? else { return Err(unknown(args)) };
            let like = SockOption::Congestion(tcp::congestion::Algorithm::default());
            return match sockets.option(fd.id, like) {
                Ok(SockOption::Congestion(algorithm)) => Ok(Try::with(0, "the name", expected, algorithm.name())),
                Ok(_) => Err(unknown(args)),
                Err(e) => Ok(Err::<i64, _>(e).into()),
            };
        }
        let like = option(level, name, 0).ok_or_else(|| unknown(args))?;
        if matches!(like, SockOption::MaxSegment(_)) {
            // Of a connection, Linux tells what it sends.
            let info = self.info(fd.id);
            if !matches!(info.state, tcp::State::Closed | tcp::State::Listen) {
                return Ok(Try::with(0, "a value of", args.bracketed(3)?, info.snd_mss));
            }
        }
        let sockets = self.machine.sockets();
        match sockets.option(fd.id, like) {
            Ok(option) => {
                let got = value(option).ok_or_else(|| unknown(args))?;
                Ok(Try::with(0, "a value of", args.bracketed(3)? as i32, got as i32))
            }
            Err(e) => Ok(Err::<i64, _>(e).into()),
        }
    }
}
