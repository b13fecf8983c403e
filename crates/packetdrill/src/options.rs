//! getsockopt and setsockopt.

use capi::info;
use capi::options::{Asked, Value, asked, parse, shown};
use socket::{SockId, SockOption};

use crate::calls::errno;
use crate::plugin::{Plugin, Result, World};

impl Plugin {
    /// setsockopt(2).
    pub fn set_option(&self, fd: i32, level: i32, name: i32, value: &[u8]) -> Result<()> {
        self.call(|w| {
            let id = w.id(fd)?;
            let option = parse(level, name, value)?;
            w.with(|s| s.set_option(id, option)).map_err(errno)
        })
    }

    /// getsockopt(2): the value's bytes.
    pub fn option(&self, fd: i32, level: i32, name: i32) -> Result<Value> {
        self.call(|w| {
            let id = w.id(fd)?;
            match asked(level, name)? {
                Asked::Option(like) => w.machine.sockets().option(id, like).map(shown).map_err(errno),
                Asked::Error => {
                    let error = w.with(|s| s.take_error(id)).map_err(errno)?;
                    Ok(Value::int(error.map_or(0, |e| e.number())))
                }
                Asked::Info => Ok(info::tcp_info(&w.machine.info(id).map_err(errno)?)),
                Asked::SegmentSize => segment_size(w, id),
                Asked::CongestionInfo => Ok(Value::of(&[])),
                Asked::Memory => meminfo(w, id),
            }
        })
    }
}

fn segment_size(w: &mut World, id: SockId) -> Result<Value> {
    let size = match w.machine.info(id) {
        Ok(info) => SockOption::MaxSegment(info.snd_mss as u32),
        Err(_) => w.machine.sockets().option(id, SockOption::MaxSegment(0)).map_err(errno)?,
    };
    Ok(shown(size))
}

fn meminfo(w: &mut World, id: SockId) -> Result<Value> {
    let sockets = w.machine.sockets();
    let (received, queued) = (sockets.available(id).map_err(errno)?, sockets.unacknowledged(id).map_err(errno)?);
    let size = |like| match sockets.option(id, like) {
        Ok(SockOption::SendBuffer(n) | SockOption::ReceiveBuffer(n)) => n as u64,
        _ => 0,
    };
    let (receive, send) = (size(SockOption::ReceiveBuffer(0)), size(SockOption::SendBuffer(0)));
    Ok(info::meminfo(received as u64, receive, queued as u64, send))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn values_come_back_as_they_were_set() {
        let p = Plugin::new(sim::MachineConfig::default());
        let fd = p.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let int = Value::int;
        for (level, name, value) in [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR, int(1)),
            (libc::SOL_SOCKET, libc::SO_LINGER, Value::of(&[1, 0, 0, 0, 7, 0, 0, 0])),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, int(1)),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG, int(1000)),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION, Value::of(b"reno\0\0\0\0\0\0\0\0\0\0\0\0")),
        ] {
            p.set_option(fd, level, name, value.as_bytes()).unwrap();
            assert_eq!(p.option(fd, level, name), Ok(value), "{level} {name}");
        }
        p.set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, int(10_000).as_bytes()).unwrap();
        assert_eq!(p.option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF), Ok(int(20_000)));
        assert_eq!(p.option(fd, libc::SOL_SOCKET, libc::SO_ERROR), Ok(int(0)));
        assert_eq!(p.option(fd, libc::IPPROTO_TCP, libc::TCP_INFO), Err(Errno::NOTCONN));
        assert_eq!(p.set_option(-1, libc::SOL_SOCKET, libc::SO_REUSEADDR, int(1).as_bytes()), Err(Errno::BADF));
    }
}
