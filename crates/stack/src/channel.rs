//! What the two halves of a lane say to each other: jobs from the application to the stack, events back.
//!
//! Both travel as 64-byte [`Message`]s through single-producer single-consumer rings, so one implementation serves every
//! thread model and a ring may lie in memory that another process maps. Byte chains move with their message: whoever
//! holds a chain owns its chunks alone. The encoding is plain words; a message that does not decode is counted and
//! dropped, never trusted.

use mem::Chain;
use mem::spsc::Message;
use wire::Addr;

/// A connection of one stack, a dense index. It stays the application's until it sends [`Job::Close`] or
/// [`Job::Abort`]; only then may the stack give the number to another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// A listener of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// The application's own name for a request until the answer carries the stack's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u32);

/// An address and a port. Port 0 and an unspecified address mean "any".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The IP address; IPv4 in mapped form.
    pub addr: Addr,
    /// The port, host byte order.
    pub port: u16,
}

/// Why the stack refuses a request or ends a connection; `errno` appears only above `socket`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Failure {
    /// RST in answer to our SYN (ECONNREFUSED).
    Refused = 1,
    /// RST on an established connection (ECONNRESET).
    Reset = 2,
    /// Retransmissions or keepalives went unanswered (ETIMEDOUT).
    TimedOut = 3,
    /// No route or neighbour to the host (EHOSTUNREACH).
    HostUnreachable = 4,
    /// No route to the network (ENETUNREACH).
    NetworkUnreachable = 5,
    /// The address and port are taken (EADDRINUSE).
    AddressInUse = 6,
    /// No free local port, or not our address (EADDRNOTAVAIL).
    AddressNotAvailable = 7,
    /// Connection table full (ENOBUFS).
    NoBuffers = 8,
    /// ICMP protocol unreachable on a connection being opened (ENOPROTOOPT).
    ProtocolUnreachable = 9,
    /// The application aborted it (ECONNABORTED).
    Aborted = 10,
    /// The four-tuple is in use (EADDRNOTAVAIL on connect).
    TupleInUse = 11,
}

impl Failure {
    fn from_word(w: u64) -> Option<Failure> {
        use Failure::*;
        [
            Refused,
            Reset,
            TimedOut,
            HostUnreachable,
            NetworkUnreachable,
            AddressInUse,
            AddressNotAvailable,
            NoBuffers,
            ProtocolUnreachable,
            Aborted,
            TupleInUse,
        ]
        .into_iter()
        .find(|f| *f as u64 == w)
    }
}

/// A per-connection option that the stack must know; those that only the application's half needs never travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnOption {
    /// TCP_NODELAY: 0 or 1.
    NoDelay = 1,
    /// TCP_CORK: 0 or 1.
    Cork = 2,
    /// SO_RCVBUF in bytes: the largest window to offer.
    ReceiveBuffer = 3,
    /// SO_KEEPALIVE: 0 or 1.
    KeepAlive = 4,
    /// TCP_KEEPIDLE, seconds.
    KeepIdle = 5,
    /// TCP_KEEPINTVL, seconds.
    KeepInterval = 6,
    /// TCP_KEEPCNT, probes.
    KeepCount = 7,
    /// TCP_USER_TIMEOUT, milliseconds; 0 is the default behaviour.
    UserTimeout = 8,
    /// TCP_QUICKACK: 0 or 1.
    QuickAck = 9,
    /// TCP_MAXSEG, bytes; 0 lifts the clamp.
    MaxSegment = 10,
    /// SO_SNDBUF in bytes: paces how acknowledged bytes are reported back.
    SendBuffer = 11,
    /// TCP_SYNCNT: retransmissions of a SYN.
    SynCount = 12,
    /// TCP_LINGER2, seconds as `i32`: how long an orphan stays in FIN-WAIT-2; 0 is the configured time, below 0 not at all.
    Linger2 = 13,
    /// TCP_DEFER_ACCEPT, SYN/ACK retransmissions: how long a connection without data is kept from the application.
    DeferAccept = 14,
    /// TCP_WINDOW_CLAMP, bytes: the largest window to offer; 0 lifts the clamp.
    WindowClamp = 15,
    /// TCP_CONGESTION: the number of a [`tcp::congestion::Algorithm`].
    Congestion = 16,
    /// TCP_NOTSENT_LOWAT, bytes: below it, what waits unsent is reported by [`Event::Sent`]; 0 switches the reports off.
    NotSentLow = 17,
    /// IP_TOS, IPV6_TCLASS: DSCP in place; the ECN bits are TCP's.
    TrafficClass = 18,
    /// IP_TTL, IPV6_UNICAST_HOPS; 0 is the default.
    HopLimit = 19,
    /// SO_MAX_PACING_RATE, bytes a second; `u32::MAX` is no limit.
    MaxPacing = 20,
    /// IP_MTU_DISCOVER: 0, 4 and 5 let routers fragment IPv4 packets, anything else does not.
    MtuDiscover = 21,
}

impl ConnOption {
    fn from_word(w: u64) -> Option<ConnOption> {
        use ConnOption::*;
        [
            NoDelay,
            Cork,
            ReceiveBuffer,
            KeepAlive,
            KeepIdle,
            KeepInterval,
            KeepCount,
            UserTimeout,
            QuickAck,
            MaxSegment,
            SendBuffer,
            SynCount,
            Linger2,
            DeferAccept,
            WindowClamp,
            Congestion,
            NotSentLow,
            TrafficClass,
            HopLimit,
            MaxPacing,
            MtuDiscover,
        ]
        .into_iter()
        .find(|o| *o as u64 == w)
    }
}

/// How [`Job::Close`] ends the application's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CloseMode {
    /// Send what is queued, then FIN, in the background.
    Graceful = 0,
    /// The application leaves received bytes unread: RST (RFC 9293 3.10.4 with RFC 2525 2.17, Linux's habit).
    Unread = 1,
    /// As `Graceful`, and [`Event::Closed`] says when the peer has acknowledged everything (SO_LINGER).
    Report = 2,
}

/// From the application to the stack.
#[derive(Debug)]
pub enum Job {
    /// Active open; answered by [`Event::Opened`] then [`Event::Connected`], or [`Event::Refused`].
    Connect {
        /// Comes back in the answer.
        token: Token,
        /// Local end; unspecified address and port 0 let the stack choose.
        local: Endpoint,
        /// Remote end.
        remote: Endpoint,
        /// SO_RCVBUF in bytes; 0 for the configured one.
        receive_buffer: u32,
    },
    /// Passive open; answered by [`Event::Listening`] or [`Event::Refused`].
    Listen {
        /// Comes back in the answer.
        token: Token,
        /// Address (or unspecified) and port (0: the stack chooses).
        local: Endpoint,
        /// Most connections that are complete and not yet taken.
        backlog: u32,
        /// An unspecified IPv6 address does not take IPv4 (IPV6_V6ONLY).
        v6_only: bool,
        /// Several listeners on one address share its connections (SO_REUSEPORT).
        reuse_port: bool,
        /// SO_RCVBUF of accepted connections in bytes; 0 for the configured one.
        receive_buffer: u32,
    },
    /// The application took `count` accepted connections off its queue: the backlog has room again.
    Taken {
        /// Whose.
        listener: ListenerId,
        /// How many since the last report.
        count: u32,
    },
    /// Stops listening; connections not yet taken by the application are reset.
    CloseListener {
        /// Which.
        listener: ListenerId,
    },
    /// Bytes to send.
    Write {
        /// Where.
        conn: ConnId,
        /// What.
        chain: Chain,
        /// More follows at once (MSG_MORE): a partial segment may wait.
        more: bool,
        /// The application is done with the number, as [`CloseMode::Graceful`] says: [`Job::followed_by_close`].
        close: bool,
    },
    /// The application has read `bytes` since the last report.
    Consumed {
        /// Where.
        conn: ConnId,
        /// How many.
        bytes: u32,
    },
    /// FIN after what is queued.
    Shutdown {
        /// Which.
        conn: ConnId,
    },
    /// The application is done with the number.
    Close {
        /// Which.
        conn: ConnId,
        /// How.
        mode: CloseMode,
    },
    /// RST now; the number is the stack's again.
    Abort {
        /// Which.
        conn: ConnId,
    },
    /// Sets an option.
    SetOption {
        /// Which connection.
        conn: ConnId,
        /// Which option.
        option: ConnOption,
        /// Its value, in the option's unit.
        value: u32,
    },
    /// Sets an option of the connection or listener that the next `Connect` or `Listen` asks for: its SYN knows it.
    Prepare {
        /// Which option.
        option: ConnOption,
        /// Its value, in the option's unit.
        value: u32,
    },
    /// Sets an option that connections accepted from now on inherit.
    SetListenerOption {
        /// Which listener.
        listener: ListenerId,
        /// Which option.
        option: ConnOption,
        /// Its value, in the option's unit.
        value: u32,
    },
    /// Changes a listener's backlog.
    SetBacklog {
        /// Which.
        listener: ListenerId,
        /// Most connections that are complete and not yet taken.
        backlog: u32,
    },
    /// The last of the next `bytes` written is urgent (MSG_OOB).
    Urgent {
        /// Where.
        conn: ConnId,
        /// How many the next `Write` carries.
        bytes: u32,
    },
    /// What was written so far ends a record (MSG_EOR): no segment carries its last byte and what is written later.
    EndRecord {
        /// Where.
        conn: ConnId,
    },
    /// What is acknowledged is told by [`Event::Acked`] at once, and when it is nothing yet, as soon as it is something.
    TellAcked {
        /// Where.
        conn: ConnId,
    },
    /// The application ends, and closes all that it has: each of these closes is told the peer by a FIN, and none is a RST because
    /// there are more orphans than Linux would keep. Void when it opens something new.
    Ending,
    /// Asks for a [`TcpInfo`](tcp::TcpInfo); answered by [`Event::Info`].
    Query {
        /// Which.
        conn: ConnId,
        /// Comes back in the answer.
        token: Token,
    },
}

/// From the stack to the application. For one connection the order is: `Accepted` or `Opened`, `Connected`, any number of
/// `Data`, `Urgent`, `Acked` and `Sent`, at most one `Fin`, at most one `Failed`. Nothing follows the processing of its `Close` but
/// `Closed`.
#[derive(Debug)]
pub enum Event {
    /// A listener has a new established connection.
    Accepted {
        /// Whose.
        listener: ListenerId,
        /// The connection.
        conn: ConnId,
        /// Our end.
        local: Endpoint,
        /// The peer's end.
        remote: Endpoint,
        /// Bytes in order that have come already.
        chain: Chain,
    },
    /// An active open has a connection number and a local end; the SYN is on its way.
    Opened {
        /// The request's.
        token: Token,
        /// The connection.
        conn: ConnId,
        /// Our end.
        local: Endpoint,
    },
    /// A listener is open.
    Listening {
        /// The request's.
        token: Token,
        /// The listener.
        listener: ListenerId,
        /// The port that was chosen or asked for.
        port: u16,
    },
    /// A `Connect` or `Listen` request failed before it had a number.
    Refused {
        /// The request's.
        token: Token,
        /// Why.
        failure: Failure,
    },
    /// The handshake of an active open is done.
    Connected {
        /// Which.
        conn: ConnId,
    },
    /// Bytes in order.
    Data {
        /// Which.
        conn: ConnId,
        /// What.
        chain: Chain,
        /// And then the peer has sent everything (FIN).
        fin: bool,
    },
    /// The peer has sent everything (FIN), and nothing before it of which the application has not heard.
    Fin {
        /// Which.
        conn: ConnId,
    },
    /// The peer acknowledged `bytes` more; sent when they are worth a report, not for every segment.
    Acked {
        /// Which.
        conn: ConnId,
        /// How many since the last report.
        bytes: u32,
    },
    /// How much of the stream was sent, where TCP_NOTSENT_LOWAT is set: when a quarter of that has gone, or what waits unsent has
    /// fallen below half of it.
    Sent {
        /// Which.
        conn: ConnId,
        /// Bytes of the stream sent at least once since it began, modulo 2^32.
        total: u32,
        /// Bytes of a burst: what is written is taken in such pieces.
        burst: u32,
    },
    /// The peer marked a byte as urgent.
    Urgent {
        /// Which.
        conn: ConnId,
        /// How many bytes, after those delivered so far, come before it.
        beyond: u32,
    },
    /// The send buffer has grown by itself (it does until SO_SNDBUF is set).
    Room {
        /// Which.
        conn: ConnId,
        /// Its size now.
        bytes: u32,
    },
    /// The connection is over by error; data that arrived before was delivered before. The number stays the
    /// application's until it closes.
    Failed {
        /// Which.
        conn: ConnId,
        /// Why.
        failure: Failure,
    },
    /// A close with [`CloseMode::Report`] is complete: `None` when all was acknowledged.
    Closed {
        /// Which (already the stack's again).
        conn: ConnId,
        /// Why it did not end well.
        failure: Option<Failure>,
    },
    /// The answer to `Query`: the words of [`tcp::TcpInfo`] as bytes, or empty when the connection is gone.
    Info {
        /// Which.
        conn: ConnId,
        /// The request's.
        token: Token,
        /// [`tcp::TcpInfo::from_bytes`] reads it.
        chain: Chain,
    },
}

/// What a write says besides.
const MORE: u16 = 1;
const CLOSE: u16 = 2;

fn w0(kind: u64, small: u16, id: u32) -> u64 {
    kind | (small as u64) << 16 | (id as u64) << 32
}

fn msg(w: [u64; 6], chain: Chain) -> Message {
    Message { words: w, chain }
}

fn id(w: u64) -> u32 {
    (w >> 32) as u32
}

fn small(w: u64) -> u16 {
    (w >> 16) as u16
}

fn ends(w1: u64, w: &[u64; 6]) -> (Endpoint, Endpoint) {
    let local = Endpoint { addr: Addr::from_words([w[2], w[3]]), port: w1 as u16 };
    let remote = Endpoint { addr: Addr::from_words([w[4], w[5]]), port: (w1 >> 16) as u16 };
    (local, remote)
}

impl Job {
    /// The connection that it may change.
    pub fn conn(&self) -> Option<ConnId> {
        match self {
            Job::Write { conn, .. }
            | Job::Consumed { conn, .. }
            | Job::Shutdown { conn }
            | Job::Close { conn, .. }
            | Job::Abort { conn }
            | Job::SetOption { conn, .. }
            | Job::Urgent { conn, .. }
            | Job::EndRecord { conn }
            | Job::TellAcked { conn } => Some(*conn),
            Job::Connect { .. }
            | Job::Listen { .. }
            | Job::Taken { .. }
            | Job::CloseListener { .. }
            | Job::Prepare { .. }
            | Job::SetListenerOption { .. }
            | Job::SetBacklog { .. }
            | Job::Ending
            | Job::Query { .. } => None,
        }
    }

    /// Makes `message`, where it is a write to `conn`, say that the connection is closed after it; whether it is.
    #[inline]
    pub fn followed_by_close(message: &mut Message, conn: ConnId) -> bool {
        let w = &mut message.words[0];
        let write = *w as u16 == 5 && id(*w) == conn.0;
        *w |= if write { (CLOSE as u64) << 16 } else { 0 };
        write
    }

    /// The message that carries it.
    // Who makes a job knows its kind: only that kind's words are left of this.
    #[inline(always)]
    pub fn into_message(self) -> Message {
        let none = Chain::default();
        match self {
            Job::Connect { token, local, remote, receive_buffer } => {
                let ([l0, l1], [r0, r1]) = (local.addr.as_words(), remote.addr.as_words());
                let w1 = local.port as u64 | (remote.port as u64) << 16 | (receive_buffer as u64) << 32;
                msg([w0(1, 0, token.0), w1, l0, l1, r0, r1], none)
            }
            Job::Listen { token, local, backlog, v6_only, reuse_port, receive_buffer } => {
                let [l0, l1] = local.addr.as_words();
                let flags = v6_only as u16 | (reuse_port as u16) << 1;
                let w1 = local.port as u64 | (receive_buffer as u64) << 32;
                msg([w0(2, flags, token.0), w1, l0, l1, backlog as u64, 0], none)
            }
            Job::Taken { listener, count } => msg([w0(3, 0, listener.0), count as u64, 0, 0, 0, 0], none),
            Job::CloseListener { listener } => msg([w0(4, 0, listener.0), 0, 0, 0, 0, 0], none),
            Job::Write { conn, chain, more, close } => {
                let flags = if more { MORE } else { 0 } | if close { CLOSE } else { 0 };
                msg([w0(5, flags, conn.0), 0, 0, 0, 0, 0], chain)
            }
            Job::Consumed { conn, bytes } => msg([w0(6, 0, conn.0), bytes as u64, 0, 0, 0, 0], none),
            Job::Shutdown { conn } => msg([w0(7, 0, conn.0), 0, 0, 0, 0, 0], none),
            Job::Close { conn, mode } => msg([w0(8, mode as u16, conn.0), 0, 0, 0, 0, 0], none),
            Job::Abort { conn } => msg([w0(9, 0, conn.0), 0, 0, 0, 0, 0], none),
            Job::SetOption { conn, option, value } => {
                msg([w0(10, option as u16, conn.0), value as u64, 0, 0, 0, 0], none)
            }
            Job::Query { conn, token } => msg([w0(11, 0, conn.0), token.0 as u64, 0, 0, 0, 0], none),
            Job::Prepare { option, value } => msg([w0(12, option as u16, 0), value as u64, 0, 0, 0, 0], none),
            Job::SetListenerOption { listener, option, value } => {
                msg([w0(13, option as u16, listener.0), value as u64, 0, 0, 0, 0], none)
            }
            Job::SetBacklog { listener, backlog } => msg([w0(14, 0, listener.0), backlog as u64, 0, 0, 0, 0], none),
            Job::Urgent { conn, bytes } => msg([w0(15, 0, conn.0), bytes as u64, 0, 0, 0, 0], none),
            Job::EndRecord { conn } => msg([w0(16, 0, conn.0), 0, 0, 0, 0, 0], none),
            Job::TellAcked { conn } => msg([w0(17, 0, conn.0), 0, 0, 0, 0, 0], none),
            Job::Ending => msg([w0(18, 0, 0), 0, 0, 0, 0, 0], none),
        }
    }

    /// Reads a message; one that is no job gives its chain back to be freed.
    #[inline]
    pub fn from_message(m: Message) -> Result<Job, Chain> {
        let Message { words: w, chain } = m;
        // Only `Write` carries bytes.
        if !chain.is_empty() && w[0] as u16 != 5 {
            return Err(chain);
        }
        let conn = ConnId(id(w[0]));
        let listener = ListenerId(id(w[0]));
        let token = Token(id(w[0]));
        let number = w[1] as u32;
        let option = ConnOption::from_word(small(w[0]) as u64);
        Ok(match w[0] as u16 {
            1 => {
                let (local, remote) = ends(w[1], &w);
                Job::Connect { token, local, remote, receive_buffer: (w[1] >> 32) as u32 }
            }
            2 => Job::Listen {
                token,
                local: Endpoint { addr: Addr::from_words([w[2], w[3]]), port: w[1] as u16 },
                backlog: w[4] as u32,
                v6_only: small(w[0]) & 1 != 0,
                reuse_port: small(w[0]) & 2 != 0,
                receive_buffer: (w[1] >> 32) as u32,
            },
            3 => Job::Taken { listener, count: number },
            4 => Job::CloseListener { listener },
            5 => Job::Write { conn, chain, more: small(w[0]) & MORE != 0, close: small(w[0]) & CLOSE != 0 },
            6 => Job::Consumed { conn, bytes: number },
            7 => Job::Shutdown { conn },
            8 => Job::Close {
                conn,
                mode: match small(w[0]) {
                    0 => CloseMode::Graceful,
                    1 => CloseMode::Unread,
                    2 => CloseMode::Report,
                    _ => return Err(chain),
                },
            },
            9 => Job::Abort { conn },
            kind @ (10 | 12 | 13) => match (kind, option) {
                (10, Some(option)) => Job::SetOption { conn, option, value: number },
                (12, Some(option)) => Job::Prepare { option, value: number },
                (13, Some(option)) => Job::SetListenerOption { listener, option, value: number },
                _ => return Err(chain),
            },
            11 => Job::Query { conn, token: Token(number) },
            14 => Job::SetBacklog { listener, backlog: number },
            15 => Job::Urgent { conn, bytes: number },
            16 => Job::EndRecord { conn },
            17 => Job::TellAcked { conn },
            18 => Job::Ending,
            _ => return Err(chain),
        })
    }
}

impl Event {
    /// The connection that a message is about, if it is about one.
    #[inline]
    pub fn subject(message: &Message) -> ConnId {
        ConnId(id(message.words[0]))
    }

    /// The message that carries it.
    #[inline]
    pub fn into_message(self) -> Message {
        let none = Chain::default();
        match self {
            Event::Accepted { listener, conn, local, remote, chain } => {
                let ([l0, l1], [r0, r1]) = (local.addr.as_words(), remote.addr.as_words());
                let w1 = local.port as u64 | (remote.port as u64) << 16 | (listener.0 as u64) << 32;
                msg([w0(1, 0, conn.0), w1, l0, l1, r0, r1], chain)
            }
            Event::Opened { token, conn, local } => {
                let [l0, l1] = local.addr.as_words();
                msg([w0(2, local.port, conn.0), token.0 as u64, l0, l1, 0, 0], none)
            }
            Event::Listening { token, listener, port } => {
                msg([w0(3, port, listener.0), token.0 as u64, 0, 0, 0, 0], none)
            }
            Event::Refused { token, failure } => msg([w0(4, 0, token.0), failure as u64, 0, 0, 0, 0], none),
            Event::Connected { conn } => msg([w0(5, 0, conn.0), 0, 0, 0, 0, 0], none),
            Event::Data { conn, chain, fin } => msg([w0(6, fin as u16, conn.0), 0, 0, 0, 0, 0], chain),
            Event::Fin { conn } => msg([w0(7, 0, conn.0), 0, 0, 0, 0, 0], none),
            Event::Acked { conn, bytes } => msg([w0(8, 0, conn.0), bytes as u64, 0, 0, 0, 0], none),
            Event::Failed { conn, failure } => msg([w0(9, 0, conn.0), failure as u64, 0, 0, 0, 0], none),
            Event::Closed { conn, failure } => {
                msg([w0(10, 0, conn.0), failure.map_or(0, |f| f as u64), 0, 0, 0, 0], none)
            }
            Event::Info { conn, token, chain } => msg([w0(11, 0, conn.0), token.0 as u64, 0, 0, 0, 0], chain),
            Event::Room { conn, bytes } => msg([w0(14, 0, conn.0), bytes as u64, 0, 0, 0, 0], none),
            Event::Sent { conn, total, burst } => {
                msg([w0(12, 0, conn.0), total as u64 | (burst as u64) << 32, 0, 0, 0, 0], none)
            }
            Event::Urgent { conn, beyond } => msg([w0(13, 0, conn.0), beyond as u64, 0, 0, 0, 0], none),
        }
    }

    /// Reads a message; one that is no event gives its chain back to be freed.
    pub fn from_message(m: Message) -> Result<Event, Chain> {
        let Message { words: w, chain } = m;
        // Only `Accepted`, `Data` and `Info` carry bytes.
        if !chain.is_empty() && !matches!(w[0] as u16, 1 | 6 | 11) {
            return Err(chain);
        }
        let conn = ConnId(id(w[0]));
        let token = Token(w[1] as u32);
        Ok(match w[0] as u16 {
            1 => {
                let (local, remote) = ends(w[1], &w);
                Event::Accepted { listener: ListenerId(id(w[1])), conn, local, remote, chain }
            }
            2 => {
                let local = Endpoint { addr: Addr::from_words([w[2], w[3]]), port: small(w[0]) };
                Event::Opened { token, conn, local }
            }
            3 => Event::Listening { token, listener: ListenerId(id(w[0])), port: small(w[0]) },
            4 => match Failure::from_word(w[1]) {
                Some(failure) => Event::Refused { token: Token(id(w[0])), failure },
                None => return Err(chain),
            },
            5 => Event::Connected { conn },
            6 => Event::Data { conn, chain, fin: small(w[0]) != 0 },
            7 => Event::Fin { conn },
            8 => Event::Acked { conn, bytes: w[1] as u32 },
            9 => match Failure::from_word(w[1]) {
                Some(failure) => Event::Failed { conn, failure },
                None => return Err(chain),
            },
            10 => Event::Closed { conn, failure: Failure::from_word(w[1]) },
            11 => Event::Info { conn, token, chain },
            12 => Event::Sent { conn, total: w[1] as u32, burst: (w[1] >> 32) as u32 },
            14 => Event::Room { conn, bytes: w[1] as u32 },
            13 => Event::Urgent { conn, beyond: w[1] as u32 },
            _ => return Err(chain),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What a message says as a job, or as an event, another message says again.
        #[test]
        fn messages_say_all_again(small in prop_oneof![0u16..40, any::<u16>()], id: u32, rest: [u64; 5]) {
            // Small numbers are what failures and the like are.
            for (kind, w1) in (0..20).flat_map(|kind| [(kind, rest[0]), (kind, rest[0] % 32)]) {
                let words = [w0(kind, small, id), w1, rest[1], rest[2], rest[3], rest[4]];
                let message = || msg(words, Chain::default());
                if let Ok(job) = Job::from_message(message()) {
                    let conn = job.conn();
                    let told = format!("{job:?}");
                    let again = Job::from_message(job.into_message()).expect("a job");
                    prop_assert_eq!((format!("{again:?}"), again.conn()), (told, conn));
                    prop_assert!(conn.is_none_or(|conn| conn.0 == id));
                } else {
                    prop_assert!(kind == 0 || kind > 18 || matches!(kind, 8 | 10 | 12 | 13));
                }
                if let Ok(event) = Event::from_message(message()) {
                    let told = format!("{event:?}");
                    let message = event.into_message();
                    let subject = Event::subject(&message);
                    prop_assert_eq!(subject, ConnId(id));
                    prop_assert_eq!(format!("{:?}", Event::from_message(message).expect("an event")), told);
                } else {
                    prop_assert!(kind == 0 || kind > 14 || matches!(kind, 4 | 9));
                }
            }
        }
    }
    #[test]
    fn a_write_and_nothing_else_can_be_followed_by_a_close() {
        let conn = ConnId(7);
        let write = |conn, close| Job::Write { conn, chain: Chain::default(), more: false, close };
        for (job, follows) in [
            (write(conn, false), true),
            (write(conn, true), true),
            (write(ConnId(8), false), false),
            (Job::Shutdown { conn }, false),
            (Job::Consumed { conn, bytes: 5 }, false),
        ] {
            let told = if follows { format!("{:?}", write(conn, true)) } else { format!("{job:?}") };
            let mut message = job.into_message();
            assert_eq!(Job::followed_by_close(&mut message, conn), follows, "{told}");
            assert_eq!(format!("{:?}", Job::from_message(message).expect("a job")), told);
        }
    }
}
