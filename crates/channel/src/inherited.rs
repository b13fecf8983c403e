//! What a part of a listener has from the original: the options that Linux hands on from a listener to its connections, as far as
//! they can be asked for and set, and mean something on TCP. What a value does not tell is lost: one that was set to the default of
//! the time follows it, if it changes.
//!
//! Handed on, but not copied: a program that filters (SO_ATTACH_FILTER, SO_ATTACH_BPF), an upper protocol (TCP_ULP), keys
//! (TCP_MD5SIG, TCP_AO, TCP_FASTOPEN_KEY), IPsec policies (IP_XFRM_POLICY), extension headers and a source of every packet
//! (IPV6_HOPOPTS, IPV6_DSTOPTS, IPV6_RTHDR, IPV6_RTHDRDSTOPTS, IPV6_PKTINFO), IPV6_MTU and SO_BUSY_POLL_BUDGET, which nobody can ask
//! for, and a TCP_MAXSEG of 536, which reads as none; TCP_REPAIR and TCP_FASTOPEN_CONNECT, which are for sockets that connect, and
//! what is about multicast. A listener with SO_LOCK_FILTER has no parts: it takes no program.

use std::io;
use std::os::fd::BorrowedFd;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};

use crate::{errno, sys};

// Of linux/tcp.h, linux/in.h, linux/in6.h and asm-generic/socket.h, what libc has not.
const SO_WIFI_STATUS: i32 = 41;
const SO_NOFCS: i32 = 43;
const SO_SELECT_ERR_QUEUE: i32 = 45;
const SO_MAX_PACING_RATE: i32 = 47;
const SO_ZEROCOPY: i32 = 60;
const SO_TXTIME: i32 = 61;
const SO_TIMESTAMP_NEW: i32 = 63;
const SO_TIMESTAMPNS_NEW: i32 = 64;
const SO_TIMESTAMPING_NEW: i32 = 65;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUF_LOCK: i32 = 72;
const SO_TXREHASH: i32 = 74;
const SO_RCVMARK: i32 = 75;
const SO_RCVPRIORITY: i32 = 82;
const TCP_TX_DELAY: i32 = 37;
const TCP_RTO_MAX_MS: i32 = 44;
const TCP_RTO_MIN_US: i32 = 45;
const TCP_DELACK_MAX_US: i32 = 46;
const IP_RECVERR_RFC4884: i32 = 26;
const IP_LOCAL_PORT_RANGE: i32 = 51;
const IPV6_RECVERR_RFC4884: i32 = 31;

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

/// What connections take over, and how it is waited for them; all can be set before bind(2), and while it listens. What changes
/// another one is before it: the type of service the priority, the least that is read the buffer, and that its size is locked.
/// The last of the time stamps says which form of the structures all have.
pub(crate) const ALL: &[(i32, i32)] = &[
    (IPPROTO_IP, libc::IP_TOS),
    (IPPROTO_IP, libc::IP_TTL),
    (IPPROTO_IP, libc::IP_MINTTL),
    (IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (IPPROTO_IP, libc::IP_RECVERR),
    (IPPROTO_IP, IP_RECVERR_RFC4884),
    (IPPROTO_IP, libc::IP_RECVOPTS),
    (IPPROTO_IP, libc::IP_RETOPTS),
    (IPPROTO_IP, libc::IP_PKTINFO),
    (IPPROTO_IP, libc::IP_RECVTTL),
    (IPPROTO_IP, libc::IP_RECVTOS),
    (IPPROTO_IP, libc::IP_PASSSEC),
    (IPPROTO_IP, libc::IP_RECVORIGDSTADDR),
    (IPPROTO_IP, libc::IP_CHECKSUM),
    (IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (IPPROTO_IP, libc::IP_UNICAST_IF),
    (IPPROTO_IP, IP_LOCAL_PORT_RANGE),
    (IPPROTO_IPV6, libc::IPV6_TCLASS),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT),
    (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (IPPROTO_IPV6, libc::IPV6_RECVERR),
    (IPPROTO_IPV6, IPV6_RECVERR_RFC4884),
    (IPPROTO_IPV6, libc::IPV6_DONTFRAG),
    (IPPROTO_IPV6, libc::IPV6_2292PKTINFO),
    (IPPROTO_IPV6, libc::IPV6_2292HOPOPTS),
    (IPPROTO_IPV6, libc::IPV6_2292DSTOPTS),
    (IPPROTO_IPV6, libc::IPV6_2292RTHDR),
    (IPPROTO_IPV6, libc::IPV6_2292HOPLIMIT),
    (IPPROTO_IPV6, libc::IPV6_FLOWINFO),
    (IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND),
    (IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL),
    (IPPROTO_IPV6, libc::IPV6_ADDR_PREFERENCES),
    (IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (IPPROTO_IPV6, libc::IPV6_RECVHOPOPTS),
    (IPPROTO_IPV6, libc::IPV6_RECVRTHDR),
    (IPPROTO_IPV6, libc::IPV6_RECVDSTOPTS),
    (IPPROTO_IPV6, libc::IPV6_RECVPATHMTU),
    (IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR),
    (IPPROTO_IPV6, libc::IPV6_RECVFRAGSIZE),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_IF),
    (SOL_SOCKET, libc::SO_DEBUG),
    (SOL_SOCKET, libc::SO_BROADCAST),
    (SOL_SOCKET, libc::SO_NO_CHECK),
    (SOL_SOCKET, SO_NOFCS),
    (SOL_SOCKET, libc::SO_KEEPALIVE),
    (SOL_SOCKET, libc::SO_LINGER),
    (SOL_SOCKET, libc::SO_OOBINLINE),
    (SOL_SOCKET, libc::SO_DONTROUTE),
    (SOL_SOCKET, libc::SO_PEEK_OFF),
    (SOL_SOCKET, libc::SO_RCVLOWAT),
    (SOL_SOCKET, libc::SO_SNDBUF),
    (SOL_SOCKET, libc::SO_RCVBUF),
    (SOL_SOCKET, SO_BUF_LOCK),
    (SOL_SOCKET, libc::SO_RCVTIMEO),
    (SOL_SOCKET, libc::SO_SNDTIMEO),
    (SOL_SOCKET, libc::SO_PRIORITY),
    (SOL_SOCKET, libc::SO_MARK),
    (SOL_SOCKET, SO_RCVMARK),
    (SOL_SOCKET, SO_RCVPRIORITY),
    (SOL_SOCKET, libc::SO_RXQ_OVFL),
    (SOL_SOCKET, SO_WIFI_STATUS),
    (SOL_SOCKET, SO_SELECT_ERR_QUEUE),
    (SOL_SOCKET, libc::SO_TIMESTAMP),
    (SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (SOL_SOCKET, SO_TIMESTAMP_NEW),
    (SOL_SOCKET, SO_TIMESTAMPNS_NEW),
    (SOL_SOCKET, libc::SO_TIMESTAMPING),
    (SOL_SOCKET, SO_TIMESTAMPING_NEW),
    (SOL_SOCKET, SO_TXTIME),
    (SOL_SOCKET, SO_TXREHASH),
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

/// What listen(2) resets, and nobody is refused.
pub(crate) const LISTENING: &[(i32, i32)] = &[(IPPROTO_TCP, libc::TCP_QUICKACK)];

/// Makes options of a part what they are of the original. An option that the kernel has not is no loss; one that this process
/// may not set is an error (EPERM), for connections would differ by the CPU that they came in on.
pub(crate) fn copy(part: BorrowedFd<'_>, whole: BorrowedFd<'_>, options: &[(i32, i32)]) -> io::Result<()> {
    for (level, name) in options.iter().copied() {
        let Ok(value) = sys::option_bytes(whole, level, name) else { continue };
        let told = sys::option_bytes(part, level, name);
        if told.is_ok_and(|own| own == value) {
            continue;
        }
        let size = level == SOL_SOCKET && matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF);
        let set = match <[u8; 4]>::try_from(value.as_slice()) {
            Ok(value) if size => set_size(part, name, i32::from_ne_bytes(value)),
            _ => sys::set_option_bytes(part, level, name, &value),
        };
        match set {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP)) => {}
            // So says SO_DEBUG.
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => return Err(errno(libc::EPERM)),
            other => other?,
        }
    }
    Ok(())
}

/// The size of a buffer, of which the double is told. What is more than anyone may have (net.core.rmem_max, wmem_max) the kernel
/// cuts in silence, unless it is forced; EPERM where this process may not.
fn set_size(part: BorrowedFd<'_>, name: i32, told: i32) -> io::Result<()> {
    let half = told - told / 2;
    sys::set_option(part, SOL_SOCKET, name, half)?;
    if sys::option(part, SOL_SOCKET, name)? >= told {
        return Ok(());
    }
    let force = if name == libc::SO_SNDBUF { libc::SO_SNDBUFFORCE } else { libc::SO_RCVBUFFORCE };
    sys::set_option(part, SOL_SOCKET, force, half)
}

#[cfg(test)]
mod tests;
