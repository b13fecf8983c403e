//! Names of numbers in Linux's headers (x86-64's where architectures differ).

/// The number that a name stands for.
pub fn number(name: &str) -> Option<i64> {
    NUMBERS.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
}

/// The name of an error number.
pub fn errno_name(number: i32) -> Option<&'static str> {
    NUMBERS.iter().find(|(n, v)| n.starts_with('E') && !n.starts_with("EPOLL") && *v == number as i64).map(|(n, _)| *n)
}

/// The names of the bits of `poll` and `epoll`, for messages.
pub fn events(bits: u32) -> String {
    const NAMES: [(&str, u32); 12] = [
        ("IN", 0x1),
        ("PRI", 0x2),
        ("OUT", 0x4),
        ("ERR", 0x8),
        ("HUP", 0x10),
        ("NVAL", 0x20),
        ("RDNORM", 0x40),
        ("RDBAND", 0x80),
        ("WRNORM", 0x100),
        ("WRBAND", 0x200),
        ("RDHUP", 0x2000),
        ("ET", 1 << 31),
    ];
    let names: Vec<_> = NAMES.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| *name).collect();
    if names.is_empty() { "0".into() } else { names.join("|") }
}

macro_rules! numbers {
    ($($name:ident = $value:expr),* $(,)?) => {
        const NUMBERS: &[(&str, i64)] = &[$((stringify!($name), $value)),*];
    };
}

numbers! {
    NULL = 0,
    AF_UNSPEC = 0, AF_INET = 2, AF_INET6 = 10, PF_INET = 2, PF_INET6 = 10,
    SOCK_STREAM = 1, SOCK_DGRAM = 2, SOCK_RAW = 3, SOCK_NONBLOCK = 0o4000, SOCK_CLOEXEC = 0o2000000,
    IPPROTO_IP = 0, IPPROTO_ICMP = 1, IPPROTO_TCP = 6, IPPROTO_UDP = 17, IPPROTO_IPV6 = 41, IPPROTO_ICMPV6 = 58, IPPROTO_RAW = 255,
    SHUT_RD = 0, SHUT_WR = 1, SHUT_RDWR = 2,
    SOL_IP = 0, SOL_SOCKET = 1, SOL_TCP = 6, SOL_UDP = 17, SOL_IPV6 = 41,

    SO_DEBUG = 1, SO_REUSEADDR = 2, SO_TYPE = 3, SO_ERROR = 4, SO_DONTROUTE = 5, SO_BROADCAST = 6, SO_SNDBUF = 7, SO_RCVBUF = 8,
    SO_KEEPALIVE = 9, SO_OOBINLINE = 10, SO_NO_CHECK = 11, SO_PRIORITY = 12, SO_LINGER = 13, SO_REUSEPORT = 15, SO_RCVLOWAT = 18,
    SO_SNDLOWAT = 19, SO_RCVTIMEO = 20, SO_SNDTIMEO = 21, SO_BINDTODEVICE = 25, SO_TIMESTAMP = 29, SO_ACCEPTCONN = 30,
    SO_MARK = 36, SO_TIMESTAMPING = 37, SCM_TIMESTAMPING = 37, SO_PROTOCOL = 38, SO_DOMAIN = 39, SO_BUSY_POLL = 46,
    SO_MAX_PACING_RATE = 47, SO_INCOMING_CPU = 49, SCM_TIMESTAMPING_OPT_STATS = 54, SO_ZEROCOPY = 60,

    IP_TOS = 1, IP_TTL = 2, IP_MTU_DISCOVER = 10, IP_RECVERR = 11, IP_MTU = 14, IP_FREEBIND = 15,
    IP_PMTUDISC_DONT = 0, IP_PMTUDISC_WANT = 1, IP_PMTUDISC_DO = 2, IP_PMTUDISC_PROBE = 3,
    IPV6_MTU_DISCOVER = 23, IPV6_MTU = 24, IPV6_RECVERR = 25, IPV6_V6ONLY = 26, IPV6_HOPLIMIT = 52, IPV6_TCLASS = 67,

    TCP_NODELAY = 1, TCP_MAXSEG = 2, TCP_CORK = 3, TCP_KEEPIDLE = 4, TCP_KEEPINTVL = 5, TCP_KEEPCNT = 6, TCP_SYNCNT = 7,
    TCP_LINGER2 = 8, TCP_DEFER_ACCEPT = 9, TCP_WINDOW_CLAMP = 10, TCP_INFO = 11, TCP_QUICKACK = 12, TCP_CONGESTION = 13,
    TCP_MD5SIG = 14, TCP_THIN_LINEAR_TIMEOUTS = 16, TCP_THIN_DUPACK = 17, TCP_USER_TIMEOUT = 18, TCP_FASTOPEN = 23,
    TCP_TIMESTAMP = 24, TCP_NOTSENT_LOWAT = 25, TCP_CC_INFO = 26, TCP_SAVE_SYN = 27, TCP_FASTOPEN_CONNECT = 30,
    TCP_FASTOPEN_KEY = 33, TCP_FASTOPEN_NO_COOKIE = 34, TCP_INQ = 36, TCP_CM_INQ = 36, TCP_TX_DELAY = 37,

    SOF_TIMESTAMPING_TX_HARDWARE = 0x1, SOF_TIMESTAMPING_TX_SOFTWARE = 0x2, SOF_TIMESTAMPING_RX_HARDWARE = 0x4,
    SOF_TIMESTAMPING_RX_SOFTWARE = 0x8, SOF_TIMESTAMPING_SOFTWARE = 0x10, SOF_TIMESTAMPING_OPT_ID = 0x80,
    SOF_TIMESTAMPING_TX_SCHED = 0x100, SOF_TIMESTAMPING_TX_ACK = 0x200, SOF_TIMESTAMPING_OPT_CMSG = 0x400,
    SOF_TIMESTAMPING_OPT_TSONLY = 0x800, SOF_TIMESTAMPING_OPT_STATS = 0x1000, SOF_TIMESTAMPING_OPT_ID_TCP = 0x10000,

    O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_ACCMODE = 3, O_CREAT = 0o100, O_EXCL = 0o200, O_TRUNC = 0o1000, O_APPEND = 0o2000,
    O_NONBLOCK = 0o4000,
    F_DUPFD = 0, F_GETFD = 1, F_SETFD = 2, F_GETFL = 3, F_SETFL = 4, FD_CLOEXEC = 1,
    SIOCINQ = 0x541b, FIONREAD = 0x541b, SIOCOUTQ = 0x5411, TIOCOUTQ = 0x5411, SIOCOUTQNSD = 0x894b,

    MSG_OOB = 0x1, MSG_PEEK = 0x2, MSG_DONTROUTE = 0x4, MSG_CTRUNC = 0x8, MSG_TRUNC = 0x20, MSG_DONTWAIT = 0x40, MSG_EOR = 0x80,
    MSG_WAITALL = 0x100, MSG_CONFIRM = 0x800, MSG_ERRQUEUE = 0x2000, MSG_NOSIGNAL = 0x4000, MSG_MORE = 0x8000,
    MSG_ZEROCOPY = 0x4000000, MSG_FASTOPEN = 0x20000000, MSG_CMSG_CLOEXEC = 0x40000000,

    POLLIN = 0x1, POLLPRI = 0x2, POLLOUT = 0x4, POLLERR = 0x8, POLLHUP = 0x10, POLLNVAL = 0x20, POLLRDNORM = 0x40,
    POLLRDBAND = 0x80, POLLWRNORM = 0x100, POLLWRBAND = 0x200, POLLMSG = 0x400, POLLRDHUP = 0x2000,
    EPOLLIN = 0x1, EPOLLPRI = 0x2, EPOLLOUT = 0x4, EPOLLERR = 0x8, EPOLLHUP = 0x10, EPOLLRDNORM = 0x40, EPOLLRDBAND = 0x80,
    EPOLLWRNORM = 0x100, EPOLLWRBAND = 0x200, EPOLLMSG = 0x400, EPOLLRDHUP = 0x2000, EPOLLEXCLUSIVE = 1 << 28,
    EPOLLONESHOT = 1 << 30, EPOLLET = 1 << 31,
    EPOLL_CTL_ADD = 1, EPOLL_CTL_DEL = 2, EPOLL_CTL_MOD = 3,

    EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, EBADF = 9, EAGAIN = 11, EWOULDBLOCK = 11, ENOMEM = 12, EACCES = 13, EFAULT = 14,
    EBUSY = 16, EEXIST = 17, ENODEV = 19, EINVAL = 22, ENFILE = 23, EMFILE = 24, ENOTTY = 25, EFBIG = 27, ESPIPE = 29, EPIPE = 32,
    EDOM = 33, ERANGE = 34, ENOSYS = 38, EPROTO = 71, EOVERFLOW = 75, ENOTSOCK = 88, EDESTADDRREQ = 89, EMSGSIZE = 90,
    EPROTOTYPE = 91, ENOPROTOOPT = 92, EPROTONOSUPPORT = 93, ESOCKTNOSUPPORT = 94, EOPNOTSUPP = 95, EPFNOSUPPORT = 96,
    EAFNOSUPPORT = 97, EADDRINUSE = 98, EADDRNOTAVAIL = 99, ENETDOWN = 100, ENETUNREACH = 101, ENETRESET = 102,
    ECONNABORTED = 103, ECONNRESET = 104, ENOBUFS = 105, EISCONN = 106, ENOTCONN = 107, ESHUTDOWN = 108, ETIMEDOUT = 110,
    ECONNREFUSED = 111, EHOSTDOWN = 112, EHOSTUNREACH = 113, EALREADY = 114, EINPROGRESS = 115, ECANCELED = 125,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        assert_eq!((number("TCP_INFO"), number("EPOLLET"), number("nothing")), (Some(11), Some(1 << 31), None));
        assert_eq!((errno_name(11), errno_name(104), errno_name(4096)), (Some("EAGAIN"), Some("ECONNRESET"), None));
        assert_eq!((events(0x2005).as_str(), events(0).as_str()), ("IN|OUT|RDHUP", "0"));
    }

    #[test]
    fn each_name_once() {
        let mut names: Vec<_> = NUMBERS.iter().map(|(name, _)| name).collect();
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
