//! Socket options (socket(7), tcp(7)).

use core::time::Duration;

use protocol::{ConnId, ConnOption, Job, ListenerId};
use tcp::congestion::Algorithm;
use wire::Addr;

use crate::errno::Errno;
use crate::readiness::bits;
use crate::sockets::Sockets;
use crate::table::{ListenPhase, Phase, SockId, Socket, flag};
use crate::urgent::Urgent;

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
    /// SO_SNDBUF, bytes; the answer is the double.
    SendBuffer(u32),
    /// SO_RCVBUF, bytes; the answer is the double.
    ReceiveBuffer(u32),
    /// SO_RCVTIMEO; `None` waits for ever.
    ReceiveTimeout(Option<Duration>),
    /// SO_SNDTIMEO; `None` waits for ever.
    SendTimeout(Option<Duration>),
    /// TCP_NODELAY.
    NoDelay(bool),
    /// TCP_CORK.
    Cork(bool),
    /// TCP_QUICKACK: acknowledge at once, until answers show that the ACK may ride on them.
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
    /// SO_RCVLOWAT, bytes: with less there is nothing to read, but at the end of the stream.
    ReceiveLow(u32),
    /// SO_OOBINLINE: urgent bytes stay in the stream.
    OobInline(bool),
    /// TCP_SYNCNT, retransmissions of a SYN.
    SynCount(u32),
    /// TCP_LINGER2, seconds; below 0 an orphan does not wait in FIN-WAIT-2 at all.
    Linger2(i32),
    /// TCP_DEFER_ACCEPT, seconds: rounded up to what a number of SYN/ACK retransmissions takes.
    DeferAccept(u32),
    /// TCP_WINDOW_CLAMP, bytes; 0 lifts it.
    WindowClamp(u32),
    /// TCP_CONGESTION; [`SockOption::congestion`] finds it by name.
    Congestion(Algorithm),
    /// TCP_NOTSENT_LOWAT, bytes: a socket with as much unsent is not writable; 0 is no limit.
    NotSentLow(u32),
    /// SO_MAX_PACING_RATE, bytes a second; `u32::MAX` is no limit.
    MaxPacingRate(u32),
    /// TCP_INQ: [`Sockets::inq`] tells what a recvmsg's control message would.
    Inq(bool),
    /// IP_TOS, and IPV6_TCLASS (-1 is the default there). The ECN bits are TCP's own.
    TrafficClass(i32),
    /// IP_TTL (1 to 255), and IPV6_UNICAST_HOPS; -1 is the default.
    HopLimit(i32),
    /// IP_MTU_DISCOVER: IP_PMTUDISC_DONT (0), _INTERFACE (4) and _OMIT (5) let routers fragment IPv4 packets; IP_PMTUDISC_WANT
    /// (1, the default), _DO (2) and _PROBE (3) follow the path's MTU.
    MtuDiscover(i32),
    /// SO_TYPE: SOCK_STREAM. Cannot be set.
    Type(i32),
    /// SO_DOMAIN: AF_INET or AF_INET6. Cannot be set.
    Domain(i32),
    /// SO_PROTOCOL: IPPROTO_TCP. Cannot be set.
    Protocol(i32),
    /// SO_ACCEPTCONN: whether it listens. Cannot be set.
    AcceptConn(bool),
}

impl SockOption {
    /// TCP_CONGESTION by name ("cubic", "reno"); `ENOENT` where there is none of this name.
    pub fn congestion(name: &str) -> Result<SockOption, Errno> {
        Algorithm::from_name(name).map(SockOption::Congestion).ok_or(Errno::ENOENT)
    }
}

const SOCK_STREAM: i32 = 1;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
const IPPROTO_TCP: i32 = 6;
const HOPS: u32 = 64;

/// Options that live in a flag.
pub(crate) const FLAGGED: [(u16, ConnOption); 3] =
    [(flag::NO_DELAY, ConnOption::NoDelay), (flag::CORK, ConnOption::Cork), (flag::KEEPALIVE, ConnOption::KeepAlive)];

/// Their flags.
pub(crate) const TOLD: u16 = FLAGGED[0].0 | FLAGGED[1].0 | FLAGGED[2].0;

/// Options that few sockets set.
#[derive(Clone, Default)]
pub(crate) struct Cold {
    pub linger: Option<Linger>,
    pub receive_timeout: Option<Duration>,
    pub send_timeout: Option<Duration>,
    /// SO_RCVLOWAT; 0 is 1.
    pub receive_low: u32,
    /// SO_RCVLOWAT holds for no read until all is read: memory is too short for more to come.
    pub low_is_off: bool,
    /// The socket stands in the list of those with bytes below it.
    pub is_low: bool,
    /// TCP_NOTSENT_LOWAT; 0 is none.
    pub not_sent_low: u32,
    /// Bytes of the stream that the stack has sent, as it said last.
    pub sent: u32,
    /// Bytes of a burst, as it said with it; 0: not yet.
    pub burst: u32,
    pub oob_inline: bool,
    pub inq: bool,
    /// Our address, where it has no number.
    pub local: Option<Addr>,
    /// Where in the stream the urgent byte lies.
    pub urgent: Option<Urgent>,
    /// Something was set while the stack's answer was on its way: told once more when it is there.
    pub late: bool,
    /// What the stack must be told.
    pub stack: Vec<(ConnOption, u32)>,
}

impl Cold {
    fn put(&mut self, option: ConnOption, value: u32) {
        self.stack.retain(|(o, _)| *o != option);
        self.stack.push((option, value));
    }

    pub fn told(&self, option: ConnOption) -> Option<u32> {
        self.stack.iter().find(|(o, _)| *o == option).map(|(_, v)| *v)
    }
}

/// Whom the stack is to be told of an option.
enum Whom {
    /// Nobody yet.
    Later,
    Conn(ConnId),
    Listener(ListenerId),
}

impl Sockets {
    /// setsockopt.
    pub fn set_option(&mut self, id: SockId, option: SockOption) -> Result<(), Errno> {
        let (flags, cold, whom, asked, closed) = match self.table.open_mut(id)? {
            Socket::Tcp(t) => {
                resize((&mut t.send_buffer, &mut t.receive_buffer), t.cold.as_deref(), option);
                let live = matches!(t.phase, Phase::Opening | Phase::Open) && t.error.is_none();
                let whom = if live { Whom::Conn(t.conn) } else { Whom::Later };
                (&mut t.flags, &mut t.cold, whom, t.phase == Phase::Asked, !live && t.phase != Phase::Asked)
            }
            Socket::Listener(l) => {
                l.resized |= resize((&mut l.send_buffer, &mut l.receive_buffer), l.cold.as_deref(), option);
                let (whom, asked) = match l.phase {
                    ListenPhase::Open(listener) => (Whom::Listener(listener), false),
                    _ => (Whom::Later, matches!(l.phase, ListenPhase::Asked)),
                };
                (&mut l.flags, &mut l.cold, whom, asked, false)
            }
            Socket::Pipe(_) | Socket::Epoll(_) => return Err(Errno::ENOTSOCK),
        };
        let bound = *flags & flag::BOUND != 0 || !closed;
        let mut bit = |bit: u16, on: bool| if on { *flags |= bit } else { *flags &= !bit };
        let within = |n: u32, max: u32| if (1..=max).contains(&n) { Ok(n) } else { Err(Errno::EINVAL) };
        let (option, value) = match option {
            SockOption::ReuseAddr(on) => {
                bit(flag::REUSE_ADDR, on);
                return Ok(());
            }
            SockOption::ReusePort(on) => {
                bit(flag::REUSE_PORT, on);
                return Ok(());
            }
            // Linux: it says what a port is taken of, and comes before that.
            SockOption::V6Only(_) if bound => return Err(Errno::EINVAL),
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
            SockOption::ReceiveLow(n) => {
                cold.get_or_insert_default().receive_low = n;
                self.mark(id, bits::IN);
                self.note_low(id);
                return Ok(());
            }
            SockOption::OobInline(on) => {
                cold.get_or_insert_default().oob_inline = on;
                return Ok(());
            }
            SockOption::Inq(on) => {
                cold.get_or_insert_default().inq = on;
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
            SockOption::SendBuffer(n) => (ConnOption::SendBuffer, send_buffer(n)),
            SockOption::ReceiveBuffer(n) => (ConnOption::ReceiveBuffer, receive_buffer(n)),
            SockOption::QuickAck(on) => (ConnOption::QuickAck, on as u32),
            SockOption::MaxSegment(n) if n == 0 || (88..=32_767).contains(&n) => (ConnOption::MaxSegment, n),
            SockOption::MaxSegment(_) => return Err(Errno::EINVAL),
            SockOption::KeepIdle(n) => (ConnOption::KeepIdle, within(n, 32_767)?),
            SockOption::KeepInterval(n) => (ConnOption::KeepInterval, within(n, 32_767)?),
            SockOption::KeepCount(n) => (ConnOption::KeepCount, within(n, 127)?),
            SockOption::UserTimeout(ms) if ms <= i32::MAX as u32 => (ConnOption::UserTimeout, ms),
            SockOption::UserTimeout(_) => return Err(Errno::EINVAL),
            SockOption::SynCount(n) => (ConnOption::SynCount, within(n, 127)?),
            SockOption::Linger2(n) => (ConnOption::Linger2, n.clamp(-1, tcp::Tcb::MOST_LINGER2) as u32),
            SockOption::DeferAccept(n) => (ConnOption::DeferAccept, retransmissions(n)),
            SockOption::WindowClamp(0) if !closed => return Err(Errno::EINVAL),
            SockOption::WindowClamp(n) => (ConnOption::WindowClamp, window_clamp(n)),
            SockOption::Congestion(algorithm) => (ConnOption::Congestion, algorithm.number()),
            SockOption::MaxPacingRate(rate) => (ConnOption::MaxPacing, rate),
            SockOption::NotSentLow(n) => {
                cold.get_or_insert_default().not_sent_low = n;
                (ConnOption::NotSentLow, n)
            }
            SockOption::TrafficClass(n @ -1..=255) => (ConnOption::TrafficClass, n.max(0) as u32 & !3),
            SockOption::HopLimit(-1) => (ConnOption::HopLimit, 0),
            SockOption::HopLimit(n @ 1..=255) => (ConnOption::HopLimit, n as u32),
            SockOption::MtuDiscover(n @ 0..=5) => (ConnOption::MtuDiscover, n as u32),
            SockOption::TrafficClass(_) | SockOption::HopLimit(_) | SockOption::MtuDiscover(_) => {
                return Err(Errno::EINVAL);
            }
            SockOption::Type(_) | SockOption::Domain(_) | SockOption::Protocol(_) | SockOption::AcceptConn(_) => {
                return Err(Errno::ENOPROTOOPT);
            }
        };
        // These have a flag, and no place of their own.
        if FLAGGED.iter().all(|(_, flagged)| *flagged != option) {
            cold.get_or_insert_default().put(option, value);
        }
        if asked {
            cold.get_or_insert_default().late = true;
        }
        match whom {
            Whom::Conn(conn) => self.job(Job::SetOption { conn, option, value }),
            Whom::Listener(listener) => self.job(Job::SetListenerOption { listener, option, value }),
            Whom::Later => {}
        }
        match option {
            // Linux: a larger limit is room at once (sk_setsockopt, do_tcp_setsockopt).
            ConnOption::SendBuffer | ConnOption::NotSentLow => self.mark_space(id),
            // Of a smaller buffer it may be worth it, and nothing be left to be read.
            ConnOption::ReceiveBuffer | ConnOption::WindowClamp => self.report_consumed(id),
            _ => {}
        }
        Ok(())
    }

    /// getsockopt for what this half knows: the option that `like` names, with its value now. Buffers come back doubled,
    /// as on Linux.
    pub fn option(&self, id: SockId, like: SockOption) -> Result<SockOption, Errno> {
        let (flags, cold, send, receive, listens) = match self.table.open(id)? {
            Socket::Tcp(t) => (t.flags, &t.cold, t.send_buffer, t.receive_buffer, false),
            Socket::Listener(l) => (l.flags, &l.cold, l.send_buffer, l.receive_buffer, true),
            Socket::Pipe(_) | Socket::Epoll(_) => return Err(Errno::ENOTSOCK),
        };
        let on = |bit: u16| flags & bit != 0;
        let cold = cold.as_deref();
        let told = |option: ConnOption, default: u32| cold.and_then(|c| c.told(option)).unwrap_or(default);
        let tcp = &self.config.tcp;
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
            SockOption::ReceiveBuffer(_) => {
                // TCP_WINDOW_CLAMP is no SO_RCVBUF.
                let clamped = told(ConnOption::WindowClamp, 0) > 0;
                let buffer =
                    if clamped { told(ConnOption::ReceiveBuffer, self.config.receive_buffer) } else { receive };
                SockOption::ReceiveBuffer(buffer.saturating_mul(2))
            }
            SockOption::ReceiveLow(_) => SockOption::ReceiveLow(cold.map_or(1, |c| c.receive_low.max(1))),
            SockOption::OobInline(_) => SockOption::OobInline(cold.is_some_and(|c| c.oob_inline)),
            SockOption::Inq(_) => SockOption::Inq(cold.is_some_and(|c| c.inq)),
            SockOption::QuickAck(_) => SockOption::QuickAck(told(ConnOption::QuickAck, 1) != 0),
            SockOption::MaxSegment(_) => match told(ConnOption::MaxSegment, 0) {
                0 => SockOption::MaxSegment(536),
                n => SockOption::MaxSegment(n),
            },
            SockOption::KeepIdle(_) => SockOption::KeepIdle(told(ConnOption::KeepIdle, tcp.keep_idle.as_secs() as u32)),
            SockOption::KeepInterval(_) => {
                SockOption::KeepInterval(told(ConnOption::KeepInterval, tcp.keep_interval.as_secs() as u32))
            }
            SockOption::KeepCount(_) => SockOption::KeepCount(told(ConnOption::KeepCount, tcp.keep_count as u32)),
            SockOption::UserTimeout(_) => SockOption::UserTimeout(told(ConnOption::UserTimeout, 0)),
            SockOption::SynCount(_) => SockOption::SynCount(told(ConnOption::SynCount, tcp.syn_retries as u32)),
            SockOption::Linger2(_) => match told(ConnOption::Linger2, 0) as i32 {
                0 => SockOption::Linger2(tcp.fin_timeout.as_secs() as i32),
                n => SockOption::Linger2(n),
            },
            SockOption::DeferAccept(_) => SockOption::DeferAccept(seconds(told(ConnOption::DeferAccept, 0))),
            SockOption::WindowClamp(_) => SockOption::WindowClamp(told(ConnOption::WindowClamp, 0)),
            SockOption::Congestion(_) => {
                let number = told(ConnOption::Congestion, tcp.congestion.number());
                SockOption::Congestion(Algorithm::from_number(number).unwrap_or(tcp.congestion))
            }
            SockOption::MaxPacingRate(_) => SockOption::MaxPacingRate(told(ConnOption::MaxPacing, u32::MAX)),
            SockOption::NotSentLow(_) => SockOption::NotSentLow(told(ConnOption::NotSentLow, 0)),
            SockOption::TrafficClass(_) => SockOption::TrafficClass(told(ConnOption::TrafficClass, 0) as i32),
            SockOption::HopLimit(_) => match told(ConnOption::HopLimit, HOPS) {
                0 => SockOption::HopLimit(HOPS as i32),
                n => SockOption::HopLimit(n as i32),
            },
            SockOption::MtuDiscover(_) => SockOption::MtuDiscover(told(ConnOption::MtuDiscover, 1) as i32),
            SockOption::Type(_) => SockOption::Type(SOCK_STREAM),
            SockOption::Domain(_) => SockOption::Domain(if on(flag::V6) { AF_INET6 } else { AF_INET }),
            SockOption::Protocol(_) => SockOption::Protocol(IPPROTO_TCP),
            SockOption::AcceptConn(_) => SockOption::AcceptConn(listens),
        })
    }

    /// Options of a socket that the stack has still to hear of, those with a flag among them.
    pub(crate) fn to_tell(flags: u16, cold: Option<&Cold>) -> Vec<(ConnOption, u32)> {
        // SO_RCVBUF travels in the request itself.
        let of_stack = cold.iter().flat_map(|c| &c.stack).filter(|(o, _)| *o != ConnOption::ReceiveBuffer);
        let mut all: Vec<_> = of_stack.copied().collect();
        for (bit, option) in FLAGGED {
            if flags & bit != 0 {
                all.push((option, 1));
            }
        }
        all
    }

    /// Options that the connection or listener of the next request must know from the start.
    pub(crate) fn prepare(&mut self, options: Vec<(ConnOption, u32)>) {
        for (option, value) in options {
            self.job(Job::Prepare { option, value });
        }
    }

    /// A connection of a listener whose buffers were set while it listened has the listener's.
    #[cold]
    pub(crate) fn resize(&mut self, conn: ConnId, id: SockId) {
        let Some(cold) = self.table.tcp(id).and_then(|t| t.cold.as_deref()) else { return };
        let buffers = [ConnOption::SendBuffer, ConnOption::ReceiveBuffer, ConnOption::WindowClamp];
        for (option, value) in buffers.map(|option| Some((option, cold.told(option)?))).into_iter().flatten() {
            self.job(Job::SetOption { conn, option, value });
        }
    }

    /// SO_ERROR: the pending error, which is then no longer pending.
    pub fn take_error(&mut self, id: SockId) -> Result<Option<Errno>, Errno> {
        match self.table.open_mut(id)? {
            Socket::Tcp(t) => Ok(t.take_error()),
            Socket::Listener(_) => Ok(None),
            Socket::Pipe(_) | Socket::Epoll(_) => Err(Errno::ENOTSOCK),
        }
    }
}

/// Linux's SOCK_MIN_SNDBUF, and half of its SOCK_MIN_RCVBUF.
const SEND_MIN: u32 = 4608;
const RECEIVE_MIN: u32 = 1152;

/// Sets a socket's or listener's (send, receive) buffers as `option` says; whether it says anything of them.
fn resize((send, receive): (&mut u32, &mut u32), cold: Option<&Cold>, option: SockOption) -> bool {
    let clamp = cold.and_then(|c| c.told(ConnOption::WindowClamp)).filter(|clamp| *clamp > 0);
    match option {
        SockOption::SendBuffer(n) => *send = send_buffer(n),
        SockOption::ReceiveBuffer(n) => *receive = receive_buffer(n).min(clamp.unwrap_or(u32::MAX)),
        SockOption::WindowClamp(n @ 1..) => *receive = (*receive).min(window_clamp(n)),
        _ => return false,
    }
    true
}

/// What a send buffer holds: twice what was asked for, as on Linux.
fn send_buffer(bytes: u32) -> u32 {
    bytes.saturating_mul(2).clamp(SEND_MIN, 1 << 30)
}

/// What a receive buffer lets arrive: Linux doubles it too, and keeps half for its overhead.
fn receive_buffer(bytes: u32) -> u32 {
    bytes.clamp(RECEIVE_MIN, 1 << 29)
}

/// Linux's do_tcp_setsockopt: 0 lifts it.
fn window_clamp(bytes: u32) -> u32 {
    if bytes == 0 { 0 } else { bytes.max(RECEIVE_MIN) }
}

/// Linux's secs_to_retrans: how many SYN/ACK retransmissions take `seconds`, the first after 1 s, doubling up to 120 s.
fn retransmissions(seconds: u32) -> u32 {
    let (mut n, mut timeout, mut period) = ((seconds > 0) as u32, 1u32, 1u32);
    while seconds > period && n < 255 {
        n += 1;
        timeout = (timeout * 2).min(120);
        period += timeout;
    }
    n
}

/// Linux's retrans_to_secs: the other way round.
fn seconds(retransmissions: u32) -> u32 {
    (0..retransmissions.min(255)).map(|i| (1u32 << i.min(7)).min(120)).sum()
}
