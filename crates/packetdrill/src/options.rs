//! getsockopt and setsockopt: Linux's numbers and structures.

use std::time::Duration;

use rustix::io::Errno;
use socket::{Linger, SockId, SockOption};

use crate::calls::errno;
use crate::info;
use crate::plugin::{Plugin, Result, World};

/// Linux's `TCP_CC_INFO`.
const TCP_CC_INFO: i32 = 26;
/// Linux's `TCP_NOTSENT_LOWAT`.
const TCP_NOTSENT_LOWAT: i32 = 25;
/// Linux's `TCP_INQ`.
const TCP_INQ: i32 = 36;
/// Linux's `SO_MEMINFO`.
const SO_MEMINFO: i32 = 55;

fn int(value: &[u8]) -> Result<i32> {
    value.get(..4).and_then(|v| v.try_into().ok()).map(i32::from_ne_bytes).ok_or(Errno::INVAL)
}

fn long(value: &[u8]) -> Result<i64> {
    value.get(..8).and_then(|v| v.try_into().ok()).map(i64::from_ne_bytes).ok_or(Errno::INVAL)
}

fn positive(value: &[u8]) -> Result<u32> {
    u32::try_from(int(value)?).map_err(|_| Errno::INVAL)
}

/// A `struct timeval`; zero waits for ever.
fn time(value: &[u8]) -> Result<Option<Duration>> {
    let (seconds, micros) = (long(value)?, long(value.get(8..).ok_or(Errno::INVAL)?)?);
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::DOM);
    }
    let time = Duration::new(u64::try_from(seconds).unwrap_or(0), micros as u32 * 1000);
    Ok(Some(time).filter(|t| !t.is_zero()))
}

fn timeval(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    [time.as_secs() as i64, time.subsec_micros() as i64].iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// The option that a level and a name mean, with the value in `v`.
fn option(level: i32, name: i32, v: &[u8]) -> Result<SockOption> {
    let on = || int(v).map(|n| n != 0);
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => SockOption::ReuseAddr(on()?),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => SockOption::ReusePort(on()?),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => SockOption::KeepAlive(on()?),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds = int(v.get(4..).ok_or(Errno::INVAL)?)?;
            let timeout = Duration::from_secs(u64::try_from(seconds).unwrap_or(u32::MAX as u64));
            SockOption::Linger(on()?.then_some(Linger { timeout }))
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => SockOption::SendBuffer(positive(v)?),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => SockOption::ReceiveBuffer(positive(v)?),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => SockOption::ReceiveLow(positive(v)?),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => SockOption::OobInline(on()?),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => SockOption::Protocol(int(v)?),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => SockOption::ReceiveTimeout(time(v)?),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => SockOption::SendTimeout(time(v)?),
        (libc::SOL_SOCKET, libc::SO_TYPE) => SockOption::Type(int(v)?),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => SockOption::Domain(int(v)?),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => SockOption::AcceptConn(on()?),
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => SockOption::TrafficClass(int(v)?),
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            SockOption::HopLimit(int(v)?)
        }
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => SockOption::MtuDiscover(int(v)?),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => SockOption::V6Only(on()?),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => SockOption::NoDelay(on()?),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => SockOption::Cork(on()?),
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => SockOption::QuickAck(on()?),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => SockOption::MaxSegment(positive(v)?),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => SockOption::KeepIdle(positive(v)?),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => SockOption::KeepInterval(positive(v)?),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => SockOption::KeepCount(positive(v)?),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => SockOption::UserTimeout(positive(v)?),
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => SockOption::SynCount(positive(v)?),
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => SockOption::Linger2(int(v)?),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => SockOption::DeferAccept(int(v)?.max(0) as u32),
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => SockOption::WindowClamp(positive(v)?),
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => SockOption::MaxPacingRate(int(v)? as u32),
        (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => SockOption::NotSentLow(int(v)? as u32),
        (libc::IPPROTO_TCP, TCP_INQ) => SockOption::Inq(on()?),
        _ => return Err(Errno::NOPROTOOPT),
    })
}

/// A value as getsockopt shows it.
fn shown(option: SockOption) -> Vec<u8> {
    let int = |n: i32| n.to_ne_bytes().to_vec();
    match option {
        SockOption::ReuseAddr(on)
        | SockOption::ReusePort(on)
        | SockOption::V6Only(on)
        | SockOption::KeepAlive(on)
        | SockOption::NoDelay(on)
        | SockOption::Cork(on)
        | SockOption::QuickAck(on)
        | SockOption::OobInline(on)
        | SockOption::Inq(on)
        | SockOption::AcceptConn(on) => int(on as i32),
        SockOption::SendBuffer(n)
        | SockOption::ReceiveBuffer(n)
        | SockOption::MaxSegment(n)
        | SockOption::KeepIdle(n)
        | SockOption::KeepInterval(n)
        | SockOption::KeepCount(n)
        | SockOption::ReceiveLow(n)
        | SockOption::SynCount(n)
        | SockOption::DeferAccept(n)
        | SockOption::WindowClamp(n)
        | SockOption::UserTimeout(n) => int(n.min(i32::MAX as u32) as i32),
        // Linux's "no limit" is all ones.
        SockOption::NotSentLow(n) | SockOption::MaxPacingRate(n) => int(n as i32),
        SockOption::Type(n)
        | SockOption::Domain(n)
        | SockOption::Protocol(n)
        | SockOption::Linger2(n)
        | SockOption::TrafficClass(n)
        | SockOption::HopLimit(n)
        | SockOption::MtuDiscover(n) => int(n),
        // A name has 16 bytes on Linux.
        SockOption::Congestion(algorithm) => {
            let mut name = algorithm.name().as_bytes().to_vec();
            name.resize(16, 0);
            name
        }
        SockOption::ReceiveTimeout(t) | SockOption::SendTimeout(t) => timeval(t),
        SockOption::Linger(linger) => {
            let seconds = linger.map_or(0, |l| l.timeout.as_secs() as i32);
            [int(linger.is_some() as i32), int(seconds)].concat()
        }
    }
}

impl Plugin {
    /// setsockopt(2).
    pub fn set_option(&self, fd: i32, level: i32, name: i32, value: &[u8]) -> Result<()> {
        self.call(|w| {
            let id = w.id(fd)?;
            let option = match (level, name) {
                (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                    let name = String::from_utf8_lossy(value);
                    SockOption::congestion(name.trim_end_matches('\0')).map_err(errno)?
                }
                _ => option(level, name, value)?,
            };
            w.with(|s| s.set_option(id, option)).map_err(errno)
        })
    }

    /// getsockopt(2): the value's bytes.
    pub fn option(&self, fd: i32, level: i32, name: i32) -> Result<Vec<u8>> {
        self.call(|w| {
            let id = w.id(fd)?;
            match (level, name) {
                (libc::IPPROTO_TCP, libc::TCP_INFO) => Ok(info::tcp_info(&w.machine.info(id).map_err(errno)?)),
                // No algorithm here has anything to tell.
                (libc::IPPROTO_TCP, TCP_CC_INFO) => Ok(Vec::new()),
                (libc::SOL_SOCKET, SO_MEMINFO) => meminfo(w, id),
                (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => segment_size(w, id),
                (libc::SOL_SOCKET, libc::SO_ERROR) => {
                    let error = w.with(|s| s.take_error(id)).map_err(errno)?;
                    Ok(error.map_or(0, |e| e.number()).to_ne_bytes().to_vec())
                }
                _ => {
                    let like = match (level, name) {
                        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => SockOption::Congestion(Default::default()),
                        _ => option(level, name, &[0; 16])?,
                    };
                    w.machine.sockets().option(id, like).map(shown).map_err(errno)
                }
            }
        })
    }
}

/// The segment size in use, or what was set while there is no connection.
fn segment_size(w: &mut World, id: SockId) -> Result<Vec<u8>> {
    let size = match w.machine.info(id) {
        Ok(info) => SockOption::MaxSegment(info.snd_mss as u32),
        Err(_) => w.machine.sockets().option(id, SockOption::MaxSegment(0)).map_err(errno)?,
    };
    Ok(shown(size))
}

fn meminfo(w: &mut World, id: SockId) -> Result<Vec<u8>> {
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

    #[test]
    fn values_come_back_as_they_were_set() {
        let p = Plugin::new(sim::MachineConfig::default());
        let fd = p.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let int = |n: i32| n.to_ne_bytes().to_vec();
        for (level, name, value) in [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR, int(1)),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, int(1)),
            (libc::SOL_SOCKET, libc::SO_LINGER, [int(1), int(7)].concat()),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO, timeval(Some(Duration::from_micros(1_500_000)))),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, int(1)),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG, int(1000)),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, int(11)),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, int(3000)),
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, int(4096)),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
            (libc::IPPROTO_IP, libc::IP_TOS, int(0x10)),
        ] {
            p.set_option(fd, level, name, &value).unwrap();
            assert_eq!(p.option(fd, level, name), Ok(value), "{level} {name}");
        }
        p.set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &int(10_000)).unwrap();
        assert_eq!(p.option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF), Ok(int(20_000)));
        assert_eq!(p.option(fd, libc::SOL_SOCKET, libc::SO_ERROR), Ok(int(0)));
        assert_eq!(p.option(fd, libc::IPPROTO_TCP, libc::TCP_INFO), Err(Errno::NOTCONN));
        assert_eq!(p.option(fd, 12_345, 1), Err(Errno::NOPROTOOPT));
        assert_eq!(p.set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &[1]), Err(Errno::INVAL));
        assert_eq!(p.set_option(-1, libc::SOL_SOCKET, libc::SO_REUSEADDR, &int(1)), Err(Errno::BADF));
    }
}
