//! Values that have numbers.

/// Enumerations whose values lie in messages as a byte.
macro_rules! codes {
    ($($(#[doc = $what:literal])+ $name:ident { $($(#[doc = $doc:literal])+ $value:ident = $code:literal,)+ })+) => {$(
        $(#[doc = $what])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[doc = $doc])+ $value = $code,)+
        }

        impl $name {
            /// The value with this number.
            #[inline]
            pub const fn from_code(code: u8) -> Option<$name> {
                match code {
                    $($code => Some($name::$value),)+
                    _ => None,
                }
            }

            /// Name, number and meaning of each.
            pub(crate) const CODES: &'static [(&'static str, u8, &'static [&'static str])] =
                &[$((stringify!($value), $code, &[$($doc),+]),)+];
        }
    )+};
}

codes! {
    /// Why the stack refuses a request or ends a connection; `errno` appears only above `socket`.
    Failure {
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

    /// A per-connection option that the stack must know; those that only the application's half needs never travel.
    ConnOption {
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
        /// TCP_CONGESTION: the number of a congestion control algorithm (`tcp::congestion::Algorithm`).
        Congestion = 16,
        /// TCP_NOTSENT_LOWAT, bytes: below it, what waits unsent is reported by `Sent`; 0 switches the reports off.
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

    /// How [`Job::Close`](crate::Job::Close) ends the application's side.
    CloseMode {
        /// Send what is queued, then FIN, in the background.
        Graceful = 0,
        /// The application leaves received bytes unread: RST (RFC 9293 3.10.4 with RFC 2525 2.17, Linux's habit).
        Unread = 1,
        /// As `Graceful`, and `Closed` says when the peer has acknowledged everything (SO_LINGER).
        Report = 2,
    }
}
