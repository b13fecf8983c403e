//! Socket options as Linux numbers them and lays them out.

use std::time::Duration;

use socket::{Linger, SockOption};
use tcp::congestion::Algorithm;

const TCP_NOTSENT_LOWAT: i32 = 25;
const TCP_INQ: i32 = 36;

/// An option's level, name and value.
pub fn raw(option: SockOption, v6: bool) -> (i32, i32, Vec<u8>) {
    use libc::{IPPROTO_TCP as TCP, SOL_SOCKET as SOCKET};
    let int = |n: i32| n.to_ne_bytes().to_vec();
    let (level, name, value) = match option {
        SockOption::ReuseAddr(on) => (SOCKET, libc::SO_REUSEADDR, on as i32),
        SockOption::ReusePort(on) => (SOCKET, libc::SO_REUSEPORT, on as i32),
        SockOption::KeepAlive(on) => (SOCKET, libc::SO_KEEPALIVE, on as i32),
        SockOption::OobInline(on) => (SOCKET, libc::SO_OOBINLINE, on as i32),
        SockOption::SendBuffer(n) => (SOCKET, libc::SO_SNDBUF, n as i32),
        SockOption::ReceiveBuffer(n) => (SOCKET, libc::SO_RCVBUF, n as i32),
        SockOption::ReceiveLow(n) => (SOCKET, libc::SO_RCVLOWAT, n as i32),
        SockOption::Type(n) => (SOCKET, libc::SO_TYPE, n),
        SockOption::Domain(n) => (SOCKET, libc::SO_DOMAIN, n),
        SockOption::Protocol(n) => (SOCKET, libc::SO_PROTOCOL, n),
        SockOption::AcceptConn(on) => (SOCKET, libc::SO_ACCEPTCONN, on as i32),
        SockOption::V6Only(on) => (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, on as i32),
        SockOption::TrafficClass(n) if v6 => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, n),
        SockOption::TrafficClass(n) => (libc::IPPROTO_IP, libc::IP_TOS, n),
        SockOption::HopLimit(n) if v6 => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, n),
        SockOption::HopLimit(n) => (libc::IPPROTO_IP, libc::IP_TTL, n),
        SockOption::MtuDiscover(n) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, n),
        SockOption::NoDelay(on) => (TCP, libc::TCP_NODELAY, on as i32),
        SockOption::Cork(on) => (TCP, libc::TCP_CORK, on as i32),
        SockOption::QuickAck(on) => (TCP, libc::TCP_QUICKACK, on as i32),
        SockOption::MaxSegment(n) => (TCP, libc::TCP_MAXSEG, n as i32),
        SockOption::KeepIdle(n) => (TCP, libc::TCP_KEEPIDLE, n as i32),
        SockOption::KeepInterval(n) => (TCP, libc::TCP_KEEPINTVL, n as i32),
        SockOption::KeepCount(n) => (TCP, libc::TCP_KEEPCNT, n as i32),
        SockOption::UserTimeout(n) => (TCP, libc::TCP_USER_TIMEOUT, n as i32),
        SockOption::SynCount(n) => (TCP, libc::TCP_SYNCNT, n as i32),
        SockOption::Linger2(n) => (TCP, libc::TCP_LINGER2, n),
        SockOption::DeferAccept(n) => (TCP, libc::TCP_DEFER_ACCEPT, n as i32),
        SockOption::WindowClamp(n) => (TCP, libc::TCP_WINDOW_CLAMP, n as i32),
        SockOption::MaxPacingRate(n) => (SOCKET, libc::SO_MAX_PACING_RATE, n as i32),
        SockOption::NotSentLow(n) => (TCP, TCP_NOTSENT_LOWAT, n as i32),
        SockOption::Inq(on) => (TCP, TCP_INQ, on as i32),
        SockOption::Congestion(algorithm) => {
            return (TCP, libc::TCP_CONGESTION, algorithm.name().as_bytes().to_vec());
        }
        SockOption::Linger(linger) => {
            let seconds = linger.map_or(0, |l| l.timeout.as_secs() as i32);
            return (SOCKET, libc::SO_LINGER, [int(linger.is_some() as i32), int(seconds)].concat());
        }
        SockOption::ReceiveTimeout(t) => return (SOCKET, libc::SO_RCVTIMEO, timeval(t)),
        SockOption::SendTimeout(t) => return (SOCKET, libc::SO_SNDTIMEO, timeval(t)),
    };
    (level, name, int(value))
}

/// The same option with the value that getsockopt gave; `None` where it is no value of that option.
pub fn read(like: SockOption, value: &[u8]) -> Option<SockOption> {
    let int = |at: usize| value.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes);
    let long = |at: usize| value.get(at..at + 8)?.try_into().ok().map(i64::from_ne_bytes);
    let time = || {
        let time = Duration::from_secs(long(0)? as u64) + Duration::from_micros(long(8)? as u64);
        Some(Some(time).filter(|t| !t.is_zero()))
    };
    let n = int(0);
    let on = n.map(|n| n != 0);
    let size = n.map(|n| n as u32);
    Some(match like {
        SockOption::ReuseAddr(_) => SockOption::ReuseAddr(on?),
        SockOption::ReusePort(_) => SockOption::ReusePort(on?),
        SockOption::KeepAlive(_) => SockOption::KeepAlive(on?),
        SockOption::OobInline(_) => SockOption::OobInline(on?),
        SockOption::SendBuffer(_) => SockOption::SendBuffer(size?),
        SockOption::ReceiveBuffer(_) => SockOption::ReceiveBuffer(size?),
        SockOption::ReceiveLow(_) => SockOption::ReceiveLow(size?),
        SockOption::Type(_) => SockOption::Type(n?),
        SockOption::Domain(_) => SockOption::Domain(n?),
        SockOption::Protocol(_) => SockOption::Protocol(n?),
        SockOption::AcceptConn(_) => SockOption::AcceptConn(on?),
        SockOption::V6Only(_) => SockOption::V6Only(on?),
        SockOption::TrafficClass(_) => SockOption::TrafficClass(n?),
        SockOption::HopLimit(_) => SockOption::HopLimit(n?),
        SockOption::MtuDiscover(_) => SockOption::MtuDiscover(n?),
        SockOption::NoDelay(_) => SockOption::NoDelay(on?),
        SockOption::Cork(_) => SockOption::Cork(on?),
        SockOption::QuickAck(_) => SockOption::QuickAck(on?),
        SockOption::MaxSegment(_) => SockOption::MaxSegment(size?),
        SockOption::KeepIdle(_) => SockOption::KeepIdle(size?),
        SockOption::KeepInterval(_) => SockOption::KeepInterval(size?),
        SockOption::KeepCount(_) => SockOption::KeepCount(size?),
        SockOption::UserTimeout(_) => SockOption::UserTimeout(size?),
        SockOption::SynCount(_) => SockOption::SynCount(size?),
        SockOption::Linger2(_) => SockOption::Linger2(n?),
        SockOption::DeferAccept(_) => SockOption::DeferAccept(size?),
        SockOption::WindowClamp(_) => SockOption::WindowClamp(size?),
        SockOption::MaxPacingRate(_) => SockOption::MaxPacingRate(size?),
        SockOption::NotSentLow(_) => SockOption::NotSentLow(size?),
        SockOption::Inq(_) => SockOption::Inq(on?),
        SockOption::Congestion(_) => {
            let name = value.split(|b| *b == 0).next()?;
            SockOption::Congestion(Algorithm::from_name(core::str::from_utf8(name).ok()?)?)
        }
        SockOption::Linger(_) => {
            let linger = Linger { timeout: Duration::from_secs(int(4)?.max(0) as u64) };
            SockOption::Linger(on?.then_some(linger))
        }
        SockOption::ReceiveTimeout(_) => SockOption::ReceiveTimeout(time()?),
        SockOption::SendTimeout(_) => SockOption::SendTimeout(time()?),
    })
}

fn timeval(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    [time.as_secs() as i64, time.subsec_micros() as i64].iter().flat_map(|v| v.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::raw as calls;

    #[test]
    fn the_kernel_takes_and_gives_them() {
        let fd = calls::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        for option in [
            SockOption::ReuseAddr(true),
            SockOption::KeepAlive(true),
            SockOption::Linger(Some(Linger { timeout: Duration::from_secs(3) })),
            SockOption::ReceiveTimeout(Some(Duration::from_secs(2))),
            SockOption::ReceiveLow(77),
            SockOption::NoDelay(true),
            SockOption::Cork(true),
            SockOption::KeepIdle(12),
            SockOption::KeepCount(4),
            SockOption::UserTimeout(1500),
            SockOption::SynCount(3),
            SockOption::TrafficClass(0x10),
            SockOption::HopLimit(9),
            SockOption::NotSentLow(1 << 20),
            SockOption::MaxPacingRate(1 << 20),
            SockOption::Congestion(Algorithm::NewReno),
        ] {
            let (level, name, value) = raw(option, false);
            calls::set_option(fd, level, name, &value).unwrap();
            let got = calls::option(fd, level, name, 16).unwrap();
            assert_eq!(read(option, &got), Some(option));
        }
        calls::close(fd).unwrap();
    }
}
