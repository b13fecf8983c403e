//! Socket options (socket(7), tcp(7)).

use core::time::Duration;

use stack::channel::{ConnOption, Job};

use crate::errno::Errno;
use crate::sockets::Sockets;
use crate::table::{Phase, SockId, Socket, flag};

/// SO_LINGER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linger {
    /// Zero resets the connection on close.
    pub timeout: Duration,
}

/// An option with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SockOption {
    /// SO_REUSEADDR.
    ReuseAddr(bool),
    /// SO_REUSEPORT.
    ReusePort(bool),
    /// IPV6_V6ONLY.
    V6Only(bool),
    /// SO_KEEPALIVE.
    KeepAlive(bool),
    /// SO_LINGER.
    Linger(Option<Linger>),
    /// SO_SNDBUF, bytes.
    SendBuffer(u32),
    /// SO_RCVBUF, bytes.
    ReceiveBuffer(u32),
    /// SO_RCVTIMEO; `None` waits for ever.
    ReceiveTimeout(Option<Duration>),
    /// SO_SNDTIMEO; `None` waits for ever.
    SendTimeout(Option<Duration>),
    /// TCP_NODELAY.
    NoDelay(bool),
    /// TCP_CORK.
    Cork(bool),
    /// TCP_QUICKACK.
    QuickAck(bool),
    /// TCP_MAXSEG, bytes.
    MaxSegment(u32),
    /// TCP_KEEPIDLE, seconds.
    KeepIdle(u32),
    /// TCP_KEEPINTVL, seconds.
    KeepInterval(u32),
    /// TCP_KEEPCNT.
    KeepCount(u32),
    /// TCP_USER_TIMEOUT, milliseconds.
    UserTimeout(u32),
    /// SO_TYPE: SOCK_STREAM. Cannot be set.
    Type(i32),
    /// SO_DOMAIN: AF_INET or AF_INET6. Cannot be set.
    Domain(i32),
    /// SO_ACCEPTCONN: whether it listens. Cannot be set.
    AcceptConn(bool),
}

const SOCK_STREAM: i32 = 1;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;

/// Options that few sockets set.
#[derive(Clone, Default)]
pub(crate) struct Cold {
    pub linger: Option<Linger>,
    pub receive_timeout: Option<Duration>,
    pub send_timeout: Option<Duration>,
    /// What the stack must be told once the connection has a number.
    pub stack: Vec<(ConnOption, u32)>,
}

impl Cold {
    fn put(&mut self, option: ConnOption, value: u32) {
        self.stack.retain(|(o, _)| *o != option);
        self.stack.push((option, value));
    }
}

impl Sockets {
    /// setsockopt.
    pub fn set_option(&mut self, id: SockId, option: SockOption) -> Result<(), Errno> {
        let mut carried = false;
        let (flags, cold, conn) = match self.table.open_mut(id)? {
            Socket::Tcp(t) => {
                match option {
                    SockOption::SendBuffer(n) => t.send_buffer = buffer(n),
                    SockOption::ReceiveBuffer(n) => t.receive_buffer = buffer(n),
                    _ => {}
                }
                // Connect and Listen carry the buffer that is set before them.
                carried = t.phase == Phase::Fresh && matches!(option, SockOption::ReceiveBuffer(_));
                let live = matches!(t.phase, Phase::Opening | Phase::Open) && t.error.is_none();
                (&mut t.flags, &mut t.cold, live.then_some(t.conn))
            }
            Socket::Listener(l) => {
                match option {
                    SockOption::SendBuffer(n) => l.send_buffer = buffer(n),
                    SockOption::ReceiveBuffer(n) => l.receive_buffer = buffer(n),
                    _ => {}
                }
                (&mut l.flags, &mut l.cold, None)
            }
            Socket::Epoll(_) => return Err(Errno::ENOTSOCK),
        };
        let mut bit = |bit: u16, on: bool| if on { *flags |= bit } else { *flags &= !bit };
        let seconds = |n: u32| if (1..=32_767).contains(&n) { Ok(n) } else { Err(Errno::EINVAL) };
        let (option, value) = match option {
            SockOption::ReuseAddr(on) => {
                bit(flag::REUSE_ADDR, on);
                return Ok(());
            }
            SockOption::ReusePort(on) => {
                bit(flag::REUSE_PORT, on);
                return Ok(());
            }
            SockOption::V6Only(on) => {
                bit(flag::V6_ONLY, on);
                return Ok(());
            }
            SockOption::Linger(linger) => {
                cold.get_or_insert_default().linger = linger;
                return Ok(());
            }
            SockOption::ReceiveTimeout(t) => {
                cold.get_or_insert_default().receive_timeout = t;
                return Ok(());
            }
            SockOption::SendTimeout(t) => {
                cold.get_or_insert_default().send_timeout = t;
                return Ok(());
            }
            SockOption::KeepAlive(on) => {
                bit(flag::KEEPALIVE, on);
                (ConnOption::KeepAlive, on as u32)
            }
            SockOption::NoDelay(on) => {
                bit(flag::NO_DELAY, on);
                (ConnOption::NoDelay, on as u32)
            }
            SockOption::Cork(on) => {
                bit(flag::CORK, on);
                (ConnOption::Cork, on as u32)
            }
            SockOption::SendBuffer(n) => (ConnOption::SendBuffer, buffer(n)),
            SockOption::ReceiveBuffer(n) => (ConnOption::ReceiveBuffer, buffer(n)),
            SockOption::QuickAck(on) => (ConnOption::QuickAck, on as u32),
            SockOption::MaxSegment(n) if n == 0 || (88..=32_767).contains(&n) => (ConnOption::MaxSegment, n),
            SockOption::MaxSegment(_) => return Err(Errno::EINVAL),
            SockOption::KeepIdle(n) => (ConnOption::KeepIdle, seconds(n)?),
            SockOption::KeepInterval(n) => (ConnOption::KeepInterval, seconds(n)?),
            SockOption::KeepCount(n) if (1..=127).contains(&n) => (ConnOption::KeepCount, n),
            SockOption::KeepCount(_) => return Err(Errno::EINVAL),
            SockOption::UserTimeout(ms) => (ConnOption::UserTimeout, ms),
            SockOption::Type(_) | SockOption::Domain(_) | SockOption::AcceptConn(_) => return Err(Errno::ENOPROTOOPT),
        };
        // Flags travel by themselves when the connection opens.
        if !carried && !matches!(option, ConnOption::KeepAlive | ConnOption::NoDelay | ConnOption::Cork) {
            cold.get_or_insert_default().put(option, value);
        }
        if let Some(conn) = conn {
            self.job(Job::SetOption { conn, option, value });
        }
        Ok(())
    }

    /// getsockopt for what this half knows: the option that `like` names, with its value now.
    pub fn option(&self, id: SockId, like: SockOption) -> Result<SockOption, Errno> {
        let (flags, cold, send, receive, listens) = match self.table.open(id)? {
            Socket::Tcp(t) => (t.flags, &t.cold, t.send_buffer, t.receive_buffer, false),
            Socket::Listener(l) => (l.flags, &l.cold, l.send_buffer, l.receive_buffer, true),
            Socket::Epoll(_) => return Err(Errno::ENOTSOCK),
        };
        let on = |bit: u16| flags & bit != 0;
        let cold = cold.as_deref();
        let told = |option: ConnOption, default: u32| {
            cold.and_then(|c| c.stack.iter().find(|(o, _)| *o == option)).map_or(default, |(_, v)| *v)
        };
        Ok(match like {
            SockOption::ReuseAddr(_) => SockOption::ReuseAddr(on(flag::REUSE_ADDR)),
            SockOption::ReusePort(_) => SockOption::ReusePort(on(flag::REUSE_PORT)),
            SockOption::V6Only(_) => SockOption::V6Only(on(flag::V6_ONLY)),
            SockOption::KeepAlive(_) => SockOption::KeepAlive(on(flag::KEEPALIVE)),
            SockOption::NoDelay(_) => SockOption::NoDelay(on(flag::NO_DELAY)),
            SockOption::Cork(_) => SockOption::Cork(on(flag::CORK)),
            SockOption::Linger(_) => SockOption::Linger(cold.and_then(|c| c.linger)),
            SockOption::ReceiveTimeout(_) => SockOption::ReceiveTimeout(cold.and_then(|c| c.receive_timeout)),
            SockOption::SendTimeout(_) => SockOption::SendTimeout(cold.and_then(|c| c.send_timeout)),
            SockOption::SendBuffer(_) => SockOption::SendBuffer(send),
            SockOption::ReceiveBuffer(_) => SockOption::ReceiveBuffer(receive),
            SockOption::QuickAck(_) => SockOption::QuickAck(told(ConnOption::QuickAck, 0) != 0),
            SockOption::MaxSegment(_) => SockOption::MaxSegment(told(ConnOption::MaxSegment, 0)),
            SockOption::KeepIdle(_) => SockOption::KeepIdle(told(ConnOption::KeepIdle, 7200)),
            SockOption::KeepInterval(_) => SockOption::KeepInterval(told(ConnOption::KeepInterval, 75)),
            SockOption::KeepCount(_) => SockOption::KeepCount(told(ConnOption::KeepCount, 9)),
            SockOption::UserTimeout(_) => SockOption::UserTimeout(told(ConnOption::UserTimeout, 0)),
            SockOption::Type(_) => SockOption::Type(SOCK_STREAM),
            SockOption::Domain(_) => SockOption::Domain(if on(flag::V6) { AF_INET6 } else { AF_INET }),
            SockOption::AcceptConn(_) => SockOption::AcceptConn(listens),
        })
    }

    /// SO_ERROR: the pending error, which is then no longer pending.
    pub fn take_error(&mut self, id: SockId) -> Result<Option<Errno>, Errno> {
        match self.table.open_mut(id)? {
            Socket::Tcp(t) => Ok(t.take_error()),
            Socket::Listener(_) => Ok(None),
            Socket::Epoll(_) => Err(Errno::ENOTSOCK),
        }
    }
}

/// Linux's bounds, in spirit: never below a segment or two, never above what a scaled window can name.
fn buffer(bytes: u32) -> u32 {
    bytes.clamp(4096, 1 << 30)
}
