//! What a part of a listener has from the original: all that Linux hands on from a listener to its connections, and can be
//! asked for and set again. What cannot be is a program that filters (SO_ATTACH_FILTER, SO_ATTACH_BPF), an upper protocol
//! (TCP_ULP), keys (TCP_MD5SIG, TCP_AO, TCP_FASTOPEN_KEY), and a TCP_MAXSEG of 536, which reads as none.

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};

// Of linux/tcp.h and asm-generic/socket.h, what libc has not.
const SO_MAX_PACING_RATE: i32 = 47;
const SO_ZEROCOPY: i32 = 60;
const SO_PREFER_BUSY_POLL: i32 = 69;
const TCP_TX_DELAY: i32 = 37;
const TCP_RTO_MAX_MS: i32 = 44;
const TCP_RTO_MIN_US: i32 = 45;
const TCP_DELACK_MAX_US: i32 = 46;

/// Without these it is not the same address; they go before bind(2).
pub(crate) const ADDRESS: &[(i32, i32)] = &[
    (SOL_SOCKET, libc::SO_REUSEADDR),
    (SOL_SOCKET, libc::SO_BINDTOIFINDEX),
    (IPPROTO_IP, libc::IP_FREEBIND),
    (IPPROTO_IP, libc::IP_TRANSPARENT),
    (IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (IPPROTO_IPV6, libc::IPV6_FREEBIND),
    (IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
];

/// What connections take over, and how it is waited for them. What changes another one is before it: the type of service the
/// priority, and the least that is read the buffer.
pub(crate) const ALL: &[(i32, i32)] = &[
    (IPPROTO_IP, libc::IP_TOS),
    (IPPROTO_IP, libc::IP_TTL),
    (IPPROTO_IP, libc::IP_MINTTL),
    (IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (IPPROTO_IP, libc::IP_RECVERR),
    (IPPROTO_IPV6, libc::IPV6_TCLASS),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT),
    (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (IPPROTO_IPV6, libc::IPV6_RECVERR),
    (IPPROTO_IPV6, libc::IPV6_DONTFRAG),
    (SOL_SOCKET, libc::SO_KEEPALIVE),
    (SOL_SOCKET, libc::SO_LINGER),
    (SOL_SOCKET, libc::SO_OOBINLINE),
    (SOL_SOCKET, libc::SO_DONTROUTE),
    (SOL_SOCKET, libc::SO_RCVLOWAT),
    (SOL_SOCKET, libc::SO_SNDBUF),
    (SOL_SOCKET, libc::SO_RCVBUF),
    (SOL_SOCKET, libc::SO_RCVTIMEO),
    (SOL_SOCKET, libc::SO_SNDTIMEO),
    (SOL_SOCKET, libc::SO_PRIORITY),
    (SOL_SOCKET, libc::SO_MARK),
    (SOL_SOCKET, SO_MAX_PACING_RATE),
    (SOL_SOCKET, SO_ZEROCOPY),
    (SOL_SOCKET, libc::SO_BUSY_POLL),
    (SOL_SOCKET, SO_PREFER_BUSY_POLL),
    (IPPROTO_TCP, libc::TCP_NODELAY),
    (IPPROTO_TCP, libc::TCP_CORK),
    (IPPROTO_TCP, libc::TCP_MAXSEG),
    (IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (IPPROTO_TCP, libc::TCP_CONGESTION),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (IPPROTO_TCP, libc::TCP_KEEPCNT),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (IPPROTO_TCP, libc::TCP_LINGER2),
    (IPPROTO_TCP, libc::TCP_SYNCNT),
    (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (IPPROTO_TCP, libc::TCP_SAVE_SYN),
    (IPPROTO_TCP, libc::TCP_INQ),
    (IPPROTO_TCP, TCP_TX_DELAY),
    (IPPROTO_TCP, TCP_RTO_MAX_MS),
    (IPPROTO_TCP, TCP_RTO_MIN_US),
    (IPPROTO_TCP, TCP_DELACK_MAX_US),
    (IPPROTO_TCP, libc::TCP_FASTOPEN),
    (IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE),
];
