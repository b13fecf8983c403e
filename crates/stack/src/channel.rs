//! What the two halves of a lane say to each other: jobs from the application to the stack, events back.
//!
//! Both travel as 64-byte [`mem::spsc::Message`]s through single-producer single-consumer rings, so one implementation serves every
//! thread model and a ring may lie in memory that another process maps. Byte chains move with their message: whoever
//! holds a chain owns its chunks alone. The encoding is plain words; a message that does not decode is counted and
//! dropped, never trusted.

mod message;

use mem::Chain;
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
