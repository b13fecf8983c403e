//! Causes of a connection's failure, in the words of the report.

use crate::http::reader::Malformed;
use std::fmt;
use std::io;

/// Why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// connect: refused.
    Refused,
    /// connect: no address or port left.
    NoAddress,
    /// connect: unreachable.
    Unreachable,
    /// connect: another error.
    Connect(i32),
    /// connect: nobody answered in time.
    ConnectTimeout,
    /// An answer, or more of it, did not come in time.
    Timeout,
    /// Reset by the server.
    Reset,
    /// Another error in transfer.
    Transfer(i32),
    /// Closed before the response was whole.
    EarlyClose,
    /// Not understood.
    Malformed(Malformed),
    /// Not 2xx.
    Status(u16),
    /// Not the length that `--length` asks for.
    Length,
    /// More than the response.
    Surplus,
    /// Not what was asked for.
    Answer,
}

impl Cause {
    /// The cause of a failed connect.
    pub fn connect(error: &io::Error) -> Cause {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Cause::Refused,
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => Cause::NoAddress,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Cause::Unreachable,
            io::ErrorKind::TimedOut => Cause::ConnectTimeout,
            io::ErrorKind::ConnectionReset => Cause::Reset,
            _ => Cause::Connect(error.raw_os_error().unwrap_or(0)),
        }
    }

    /// The cause of a failed read or write.
    pub fn transfer(error: &io::Error) -> Cause {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Cause::Reset,
            io::ErrorKind::TimedOut => Cause::Timeout,
            _ => Cause::Transfer(error.raw_os_error().unwrap_or(0)),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |errno: &i32| crate::failure::words(&io::Error::from_raw_os_error(*errno));
        match self {
            Cause::Refused => f.write_str("connection refused"),
            Cause::NoAddress => f.write_str("no local address or port left"),
            Cause::Unreachable => f.write_str("host or network unreachable"),
            Cause::Connect(errno) => write!(f, "connect: {}", words(errno)),
            Cause::ConnectTimeout => f.write_str("connect: timed out"),
            Cause::Timeout => f.write_str("timed out"),
            Cause::Reset => f.write_str("reset by the server"),
            Cause::Transfer(errno) => write!(f, "transfer: {}", words(errno)),
            Cause::EarlyClose => Malformed::Short.fmt(f),
            Cause::Malformed(why) => why.fmt(f),
            Cause::Status(status) => write!(f, "status {status}"),
            Cause::Length => f.write_str("the body is not as long as --length says"),
            Cause::Surplus => f.write_str("bytes follow the response"),
            Cause::Answer => f.write_str("another answer than what was asked for"),
        }
    }
}
