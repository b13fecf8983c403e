//! getsockopt and setsockopt: Linux's numbers and structures.

use core::ffi::{c_int, c_void};
use core::time::Duration;

use libc::socklen_t;
use socket::{Linger, SockOption};

use crate::errno::{self, Errno, Result};

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

/// As Linux reads an int of level IP: whole, its low byte where it is short, 0 where there is nothing.
fn int_or_byte(value: &[u8]) -> i32 {
    int(value).unwrap_or_else(|_| value.first().copied().map_or(0, i32::from))
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

fn timeval(time: Option<Duration>) -> Value {
    let time = time.unwrap_or_default();
    let mut value = Value::of(&(time.as_secs() as i64).to_ne_bytes());
    value.push(&(time.subsec_micros() as i64).to_ne_bytes());
    value
}

/// Bytes of the longest value: those of Linux 6.18's `struct tcp_info`.
pub const MOST_BYTES: usize = 280;

/// The bytes of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    bytes: [u8; MOST_BYTES],
    len: usize,
    /// Where an int does not fit, a byte that holds it does.
    shrinks: bool,
}

impl Value {
    /// These bytes; at most as many as the longest value has, a `struct tcp_info`.
    pub fn of(bytes: &[u8]) -> Value {
        let mut value = Value { bytes: [0; MOST_BYTES], len: 0, shrinks: false };
        value.push(bytes);
        value
    }

    /// An int.
    pub fn int(n: i32) -> Value {
        Value::of(&n.to_ne_bytes())
    }

    /// As options of level IP come back: in one byte where there is no room for an int.
    pub fn shrinking(self) -> Value {
        Value { shrinks: self.len == 4 && self.bytes[..4] == i32::from(self.bytes[0]).to_ne_bytes(), ..self }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Copies what fits to `out`, and how much that is to `len`, as getsockopt(2) does. `EFAULT` where one of them is null,
    /// `EINVAL` for a length below zero.
    ///
    /// # Safety
    /// `len` is null or holds a length; `out` is null or has as many writable bytes.
    pub unsafe fn write(&self, out: *mut c_void, len: *mut socklen_t) -> Result<()> {
        if out.is_null() || len.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: not null; the rest is the caller's word.
        unsafe {
            let room = usize::try_from(*len as i32).map_err(|_| Errno::INVAL)?;
            let n = if self.shrinks && (1..self.len).contains(&room) { 1 } else { self.len.min(room) };
            core::ptr::copy_nonoverlapping(self.bytes.as_ptr(), out.cast(), n);
            *len = n as socklen_t;
        }
        Ok(())
    }
}

/// What getsockopt asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// An option that the socket keeps; [`shown`] gives its bytes.
    Option(SockOption),
    /// SO_ERROR: the pending error, as an int.
    Error,
    /// TCP_INFO: [`crate::info::tcp_info`] of a snapshot.
    Info,
    /// TCP_MAXSEG: the segment size in use, or what was set while there is no connection.
    SegmentSize,
    /// TCP_CC_INFO: no algorithm here has anything to tell, so no bytes.
    CongestionInfo,
    /// SO_MEMINFO: [`crate::info::meminfo`].
    Memory,
}

/// The question that a level and a name mean; `ENOPROTOOPT` where they mean none.
pub fn asked(level: c_int, name: c_int) -> Result<Asked> {
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => Asked::Error,
        (libc::SOL_SOCKET, SO_MEMINFO) => Asked::Memory,
        (libc::IPPROTO_TCP, libc::TCP_INFO) => Asked::Info,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => Asked::SegmentSize,
        (libc::IPPROTO_TCP, TCP_CC_INFO) => Asked::CongestionInfo,
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => Asked::Option(SockOption::Congestion(Default::default())),
        _ => Asked::Option(parse(level, name, &[0; 16])?),
    })
}

/// What setsockopt sets: `ENOPROTOOPT` for a level and name that mean nothing, `EINVAL` for a value that is too short or
/// cannot be, `EDOM` for a time that is none, `ENOENT` for a congestion control that there is not.
pub fn parse(level: c_int, name: c_int, v: &[u8]) -> Result<SockOption> {
    let on = || int(v).map(|n| n != 0);
    // Linux: nothing of these levels is shorter, whatever it means, but for names.
    let short = v.len() < 4 && (level == libc::SOL_SOCKET || level == libc::IPPROTO_TCP);
    if short && (level, name) != (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        return Err(Errno::INVAL);
    }
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => SockOption::ReuseAddr(on()?),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => SockOption::ReusePort(on()?),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => SockOption::KeepAlive(on()?),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds = int(v.get(4..).ok_or(Errno::INVAL)?)?;
            let timeout = Duration::from_secs(u64::try_from(seconds).unwrap_or(u32::MAX as u64));
            SockOption::Linger(on()?.then_some(Linger { timeout }))
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => SockOption::SendBuffer(int(v)? as u32),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => SockOption::ReceiveBuffer(int(v)? as u32),
        // Linux: below zero is as much as can be.
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => SockOption::ReceiveLow(positive(v).unwrap_or(i32::MAX as u32)),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => SockOption::OobInline(on()?),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => SockOption::Protocol(int(v)?),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => SockOption::ReceiveTimeout(time(v)?),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => SockOption::SendTimeout(time(v)?),
        (libc::SOL_SOCKET, libc::SO_TYPE) => SockOption::Type(int(v)?),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => SockOption::Domain(int(v)?),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => SockOption::AcceptConn(on()?),
        (libc::IPPROTO_IP, libc::IP_TOS) => SockOption::TrafficClass(int_or_byte(v) & 0xff),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => SockOption::TrafficClass(int(v)?),
        (libc::IPPROTO_IP, libc::IP_TTL) if v.is_empty() => return Err(Errno::INVAL),
        (libc::IPPROTO_IP, libc::IP_TTL) => SockOption::HopLimit(int_or_byte(v)),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => SockOption::HopLimit(int(v)?),
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => SockOption::MtuDiscover(int_or_byte(v)),
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
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => SockOption::WindowClamp(positive(v).unwrap_or(1)),
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => SockOption::MaxPacingRate(int(v)? as u32),
        (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => SockOption::NotSentLow(int(v)? as u32),
        (libc::IPPROTO_TCP, TCP_INQ) if int(v)? & !1 != 0 => return Err(Errno::INVAL),
        (libc::IPPROTO_TCP, TCP_INQ) => SockOption::Inq(on()?),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) if v.is_empty() => return Err(Errno::INVAL),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let name = v.split(|b| *b == 0).next().and_then(|n| core::str::from_utf8(n).ok()).ok_or(Errno::NOENT)?;
            SockOption::congestion(name).map_err(errno::of)?
        }
        _ => return Err(Errno::NOPROTOOPT),
    })
}

/// A value as getsockopt shows it.
pub fn shown(option: SockOption) -> Value {
    let int = Value::int;
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
            let mut name = [0; 16];
            let text = algorithm.name().as_bytes();
            name[..text.len()].copy_from_slice(text);
            Value::of(&name)
        }
        SockOption::ReceiveTimeout(t) | SockOption::SendTimeout(t) => timeval(t),
        SockOption::Linger(linger) => {
            let seconds = linger.map_or(0, |l| l.timeout.as_secs() as i32);
            let mut value = int(linger.is_some() as i32);
            value.push(&seconds.to_ne_bytes());
            value
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(level: c_int, name: c_int, value: &[u8]) {
        let option = parse(level, name, value).unwrap();
        assert_eq!(shown(option).as_bytes(), value, "{level} {name}");
        match asked(level, name) {
            Ok(Asked::Option(like)) => assert_eq!(core::mem::discriminant(&like), core::mem::discriminant(&option)),
            Ok(Asked::SegmentSize) => assert_eq!(name, libc::TCP_MAXSEG),
            other => panic!("{level} {name}: {other:?}"),
        }
    }

    #[test]
    fn values_come_back_as_they_were_given() {
        let ints = [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR, 1i32),
            (libc::SOL_SOCKET, libc::SO_REUSEPORT, 1),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 100),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
            (libc::IPPROTO_TCP, libc::TCP_CORK, 1),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1000),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 11),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 12),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 3000),
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4096),
            (libc::IPPROTO_TCP, libc::TCP_LINGER2, -1),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1),
        ];
        for (level, name, value) in ints {
            round(level, name, &value.to_ne_bytes());
        }
        let two = |a: i32, b: i32| [a.to_ne_bytes(), b.to_ne_bytes()].concat();
        round(libc::SOL_SOCKET, libc::SO_LINGER, &two(1, 7));
        round(libc::SOL_SOCKET, libc::SO_RCVTIMEO, timeval(Some(Duration::from_micros(1_500_000))).as_bytes());
        round(libc::SOL_SOCKET, libc::SO_SNDTIMEO, timeval(None).as_bytes());
        round(libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let one = 1i32.to_ne_bytes();
        assert_eq!(parse(12_345, 1, &one), Err(Errno::NOPROTOOPT));
        assert_eq!(asked(libc::SOL_SOCKET, -1), Err(Errno::NOPROTOOPT));
        // Linux: first it looks whether there is an int.
        assert_eq!(parse(libc::SOL_SOCKET, -1, &one[..3]), Err(Errno::INVAL));
        assert_eq!(parse(libc::IPPROTO_TCP, libc::TCP_CONGESTION, b""), Err(Errno::INVAL));
        assert_eq!(parse(libc::IPPROTO_TCP, TCP_INQ, &2i32.to_ne_bytes()), Err(Errno::INVAL));
        for n in 0..4 {
            assert_eq!(parse(libc::SOL_SOCKET, libc::SO_REUSEADDR, &one[..n]), Err(Errno::INVAL));
            assert_eq!(parse(libc::SOL_SOCKET, libc::SO_LINGER, &[0; 7][..n + 4]), Err(Errno::INVAL));
        }
        assert_eq!(parse(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &[0; 15]), Err(Errno::INVAL));
        let second = [1i64.to_ne_bytes(), 1_000_000i64.to_ne_bytes()].concat();
        assert_eq!(parse(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &second), Err(Errno::DOM));
        assert_eq!(parse(libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"vegas"), Err(Errno::NOENT));
        assert_eq!(parse(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &(-1i32).to_ne_bytes()), Err(Errno::INVAL));
    }

    #[test]
    fn options_of_level_ip_take_and_give_single_bytes() {
        let tos = |v: &[u8]| parse(libc::IPPROTO_IP, libc::IP_TOS, v);
        assert_eq!(tos(&[0x10]), Ok(SockOption::TrafficClass(0x10)));
        assert_eq!(tos(&[0x10, 9, 9]), Ok(SockOption::TrafficClass(0x10)));
        assert_eq!(tos(&256i32.to_ne_bytes()), Ok(SockOption::TrafficClass(0)));
        assert_eq!(tos(&(-1i32).to_ne_bytes()), Ok(SockOption::TrafficClass(255)));
        assert_eq!(parse(libc::IPPROTO_IP, libc::IP_TTL, &[7]), Ok(SockOption::HopLimit(7)));
        let copied = |value: Value, room: usize| {
            let (mut out, mut len) = ([0xee_u8; 8], room as socklen_t);
            // SAFETY: as many bytes as are said, and more.
            unsafe { value.write(out.as_mut_ptr().cast(), &mut len) }.map(|()| (len, out[..2].to_vec()))
        };
        assert_eq!(copied(Value::int(0x40).shrinking(), 2), Ok((1, vec![0x40, 0xee])));
        assert_eq!(copied(Value::int(0x40).shrinking(), 4), Ok((4, vec![0x40, 0])));
        assert_eq!(copied(Value::int(0x40).shrinking(), 0), Ok((0, vec![0xee, 0xee])));
        assert_eq!(copied(Value::int(0x40), 2), Ok((2, vec![0x40, 0])));
        // One that no byte holds is cut.
        assert_eq!(copied(Value::int(0x101).shrinking(), 2), Ok((2, vec![1, 1])));
    }

    #[test]
    fn getsockopt_tells_what_it_copied() {
        let value = Value::int(0x0102_0304);
        let (mut room, mut len) = ([0xee_u8; 4], 2);
        // SAFETY: room for more than the two bytes that are said.
        assert_eq!(unsafe { value.write(room.as_mut_ptr().cast(), &mut len) }, Ok(()));
        assert_eq!((len, &room[2..]), (2, &[0xee, 0xee][..]));
        assert_eq!(room[..2], value.as_bytes()[..2]);
        let mut below = -4i32 as socklen_t;
        // SAFETY: nothing is written.
        assert_eq!(unsafe { value.write(room.as_mut_ptr().cast(), &mut below) }, Err(Errno::INVAL));
        // SAFETY: null is what is tried.
        assert_eq!(unsafe { value.write(room.as_mut_ptr().cast(), core::ptr::null_mut()) }, Err(Errno::FAULT));
    }
}
