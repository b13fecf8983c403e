/*
 * mTCP's socket API (NSDI'14, 3.3) over corelane. Source-compatible with the original library; functions that it did not have
 * are marked "corelane".
 *
 * A context is one thread's end of one lane: a core's TCP stack with a queue of every port. All calls with a context must
 * come from the thread that created it, and what they open belongs to it. Ids of sockets, listeners, pipes and epolls are
 * small dense numbers from one space, 0 to max_concurrency - 1, in each context: the same number is something else in another. One that was closed rests: it is given out again when 1024 others
 * were closed after it, or when no other is left.
 *
 * Unless something else is said, a function returns -1 and sets errno when it fails, and these errors can come of any call
 * with a context:
 *   EINVAL    no such context: NULL, made up, or destroyed (mtcp_destroy() destroys all)
 *   EPERM     the context of another thread, or of the parent of a process that was forked
 *   EBUSY     called by a signal handler that came into another call on this context
 *   EBADF     no such id (calls with an id)
 * Calls that wait also give
 *   EINTR     a signal handler has run meanwhile
 *   ENETDOWN  mtcp_destroy() has ended the engine meanwhile; or the library has panicked, on any thread: all connections are reset, and
 *             the call that panicked fails so, too
 *   EAGAIN    nothing now, of an id that does not block (mtcp_setsock_nonblock) or whose SO_RCVTIMEO or SO_SNDTIMEO is over
 *
 * The stack runs inside the calls that wait, above all mtcp_epoll_wait(). In the usual thread model ("guarded") a second
 * thread steps in when none is made for a millisecond.
 *
 * A child of fork() cannot use its parent's contexts, and ends none, neither by mtcp_destroy() nor when it ends. It can make its own,
 * over another interface after another mtcp_init(), or, where the parent has made none yet, by what the parent's mtcp_init()
 * has read. Until it ends or calls exec(2) it keeps the descriptors behind the parent's open.
 */
#ifndef MTCP_API_H
#define MTCP_API_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <netinet/in.h>

#ifndef UNUSED
#define UNUSED(x) (void)x
#endif

#ifndef INPORT_ANY
#define INPORT_ANY (uint16_t)0
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What an id can stand for. */
enum socket_type {
	MTCP_SOCK_UNUSED,
	MTCP_SOCK_STREAM,
	MTCP_SOCK_PROXY,
	MTCP_SOCK_LISTENER,
	MTCP_SOCK_EPOLL,
	MTCP_SOCK_PIPE
};

/* Sizes that a program may read and set; zero and below change nothing, nor does what was told or given last. */
struct mtcp_conf {
	int num_cores;       /* lanes, and so contexts; as many as there are processors unless set */
	int max_concurrency; /* ids of a context */

	int max_num_buffers; /* connections of a lane for whose buffers there is memory at once; a buffer counts by what a file or a
	                      * program has asked for, 8 KiB where nobody has, as it holds no memory but for what is in it */
	int rcvbuf_size;     /* receive buffer at first, bytes; at least the usual 64 KiB, and it grows */
	int sndbuf_size;     /* send buffer at first, bytes; at least the usual 256 KiB, and it grows */

	int tcp_timewait;    /* TIME-WAIT, milliseconds; up to 600,000 */
	int tcp_timeout;     /* milliseconds of silence after which a peer is asked whether it is there, in whole seconds; -1: as each
	                      * socket says */
};

/* A context. What it points to is not for programs. */
typedef struct mtcp_context *mctx_t;

typedef void (*mtcp_sighandler_t)(int);

/* ---- the process ---------------------------------------------------------------------------------------------------- */

/*
 * Reads the configuration: mTCP's own form, with config/route.conf and config/arp.conf where they exist, or corelane's TOML
 * (by its name, NAME.toml, or by its look). docs/mtcp.md has the keys. Nothing is opened before the first context is created.
 * Returns 0. EINVAL: NULL, or the file is wrong, which a line on standard error tells with file and line; EBUSY: a context
 * was created since the last mtcp_init(); else what opening the file gave (ENOENT ...).
 */
int mtcp_init(const char *config_file);

/*
 * Ends all contexts of this process, and the engine that the first one started. All that is open is closed, on contexts of other threads too
 * (with model = "inline" by their next call), and each peer is told: what was written may still leave, and the peers acknowledge
 * the end. Once two seconds have passed in which nobody has acknowledged anything (at the latest after two seconds, and 0.2 ms for each
 * connection and a second for each MB that was open) the rest is reset. Other threads' calls that wait fail with ENETDOWN. mtcp_init() may
 * follow. A process that ends by exit() or by returning from main() does the same; _exit() and a signal that nobody handles tell
 * the peers nothing.
 */
void mtcp_destroy(void);

/* Writes the sizes in use to *conf, or, while no engine runs, those that the next one will have. Returns 0. EFAULT: NULL. */
int mtcp_getconf(struct mtcp_conf *conf);

/*
 * Sets the sizes that are above zero and other than what mtcp_getconf() told last and mtcp_setconf() was given last, so that all
 * can be read, some changed and all set, more than once. They hold from the next start of an engine on, that is, from the first
 * mtcp_create_context() after mtcp_init(), and go before what the file says that was read last, whatever its form; a file read
 * later goes before them where it names the same. Returns 0. EFAULT: NULL.
 */
int mtcp_setconf(const struct mtcp_conf *conf);

/* Pins the calling thread to core `cpu`. Returns 0. EINVAL: no core of this machine, or none that this process may use. */
int mtcp_core_affinitize(int cpu);

/*
 * Makes a context for the calling thread on lane `cpu`, or on the next one that is free: a lane need not run on the core of
 * its number, and the thread stays where it is unless the configuration names cores. The first one opens the ports. Returns
 * NULL on failure. EINVAL: not a core of this machine, or a configuration that cannot be; EPERM: mtcp_init() comes first;
 * EBUSY: all lanes have contexts; EPERM too: a capability is missing; ENODEV: a port; else what the system said, of a thread that cannot be pinned too. A line on
 * standard error says it in words.
 */
mctx_t mtcp_create_context(int cpu);

/*
 * Closes all that is open on a context of the calling thread, as close() would, and ends it; its lane is free for another. Sets errno where there is
 * no such context. A thread that ends does it to its contexts.
 */
void mtcp_destroy_context(mctx_t mctx);

/*
 * As signal(2), with the difference that calls of all contexts that wait when the signal comes fail with EINTR, whichever
 * thread the handler runs on. As in mTCP, the signal stays pending for a context that does not wait then: its next call that
 * would wait fails with EINTR, so that a flag which the handler sets is seen before the program waits.
 * Returns the handler before, SIG_ERR on failure. EINVAL: not a signal that can be caught.
 */
mtcp_sighandler_t mtcp_register_signal(int signum, mtcp_sighandler_t handler);

/* The processors that are on. Always above zero. */
int GetNumCPUs(void);

/* ---- sockets -------------------------------------------------------------------------------------------------------- */

/*
 * As socket(2): `domain` AF_INET or AF_INET6, `type` SOCK_STREAM, with SOCK_NONBLOCK if wanted, `protocol` 0 or IPPROTO_TCP.
 * Returns an id. EAFNOSUPPORT, ESOCKTNOSUPPORT, EPROTONOSUPPORT: anything else; EMFILE: max_concurrency ids are in use.
 */
int mtcp_socket(mctx_t mctx, int domain, int type, int protocol);

/*
 * As pipe(2): pipeid[0] is the id to read from, pipeid[1] the one to write to; 64 KiB fit between. For bytes between parts of
 * one thread, and in the same epolls as sockets. Returns 0. EFAULT: NULL; EMFILE.
 */
int mtcp_pipe(mctx_t mctx, int pipeid[2]);

/*
 * As bind(2). An IPv6 socket takes IPv4 addresses as mapped ones. Returns 0. EFAULT: no address; EINVAL: too short, bound
 * already, or fe80:: without its scope; EAFNOSUPPORT; ENOTSOCK: a pipe or an epoll. Whether the address is ours is told by
 * mtcp_listen() or mtcp_connect(), which choose the port where it is 0.
 */
int mtcp_bind(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);

/*
 * As listen(2): at most `backlog` connections wait to be accepted. Each lane listens for itself, and connections are spread
 * over those that do. Returns 0. EADDRINUSE: taken, here or by the kernel; EADDRNOTAVAIL: not our address; EINVAL: connected;
 * ENOTSOCK.
 */
int mtcp_listen(mctx_t mctx, int sockid, int backlog);

/*
 * As accept(2): waits for a connection, unless the listener does not block; then the new id does not block either, since reads never
 * do in mTCP. `addr` may be NULL, and nothing is written there without `addrlen`; *addrlen says how many bytes fit, and then how many
 * the address has. mTCP did not look at it: one below zero, as programs have that do not set it, is that of a struct sockaddr_in.
 * EINVAL: not a listener; EMFILE: max_concurrency ids are in use, and the connection waits on; ENOTSOCK.
 */
int mtcp_accept(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/*
 * Connections of this context that are bound to no address leave from `num_addr` addresses in turn, from `saddr_base`
 * (network byte order) on, which must be ours; INADDR_ANY leaves the choice to the stack, as it is without this call. Ports
 * are always chosen so that replies come back to this lane, whatever `daddr` and `dport` are. Returns 0. EINVAL: `num_addr`
 * is not within 1 and 65536.
 */
int mtcp_init_rss(mctx_t mctx, in_addr_t saddr_base, int num_addr, in_addr_t daddr, in_addr_t dport);

/*
 * As connect(2). EINPROGRESS: it has begun, of a socket that does not block (or whose SO_SNDTIMEO is over); it is writable
 * once it is done, and SO_ERROR tells how. EALREADY, EISCONN, ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH,
 * EADDRNOTAVAIL, EAFNOSUPPORT, EFAULT, EINVAL, ENOTSOCK as there. EOPNOTSUPP: AF_UNSPEC ends no connection.
 */
int mtcp_connect(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);

/*
 * As close(2), of any id: what was written is still sent, and the id is free at once. With SO_LINGER and a time, a socket
 * that blocks waits until the peer has acknowledged everything. Returns 0.
 */
int mtcp_close(mctx_t mctx, int sockid);

/* Resets a connection and frees the id: nothing more is sent. Returns 0. ENOTSOCK: not a socket that could be connected. */
int mtcp_abort(mctx_t mctx, int sockid);

/* As shutdown(2): `how` is SHUT_RD, SHUT_WR or SHUT_RDWR. Returns 0. EINVAL; ENOTCONN; ENOTSOCK. (corelane) */
int mtcp_shutdown(mctx_t mctx, int sockid, int how);

/*
 * As getsockname(2) and getpeername(2): *addrlen says how many bytes fit, and then how many the address has. Return 0.
 * EFAULT; EINVAL: a length below zero; ENOTCONN (peer); ENOTSOCK.
 */
int mtcp_getsockname(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);
int mtcp_getpeername(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/*
 * As getsockopt(2) and setsockopt(2), with Linux's levels, names, values and units: SO_ERROR, SO_REUSEADDR, SO_REUSEPORT,
 * SO_LINGER, SO_KEEPALIVE, SO_SNDBUF, SO_RCVBUF, SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVLOWAT, SO_OOBINLINE, SO_MAX_PACING_RATE,
 * SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN, SO_MEMINFO; TCP_NODELAY, TCP_CORK, TCP_QUICKACK, TCP_MAXSEG, TCP_INFO,
 * TCP_CONGESTION, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT, TCP_SYNCNT, TCP_LINGER2, TCP_DEFER_ACCEPT,
 * TCP_WINDOW_CLAMP, TCP_NOTSENT_LOWAT; IP_TOS, IP_TTL, IP_MTU_DISCOVER; IPV6_V6ONLY, IPV6_TCLASS, IPV6_UNICAST_HOPS.
 * These are kept for who asks, and change nothing: SO_PRIORITY, SO_BROADCAST, SO_DONTROUTE, SO_INCOMING_CPU, SO_BUSY_POLL, and
 * TCP_FASTOPEN: every connection makes the whole handshake. Accepted sockets inherit their listener's options. SO_ERROR
 * also tells, once, an error that a read or a write has told. Return 0. ENOPROTOOPT, EOPNOTSUPP: another option; EFAULT: NULL;
 * EINVAL: too short, or out of range; ENOTSOCK.
 */
int mtcp_getsockopt(mctx_t mctx, int sockid, int level, int optname, void *optval, socklen_t *optlen);
int mtcp_setsockopt(mctx_t mctx, int sockid, int level, int optname, const void *optval, socklen_t optlen);

/* Calls on this id fail with EAGAIN (or EINPROGRESS) rather than wait. Returns 0. */
int mtcp_setsock_nonblock(mctx_t mctx, int sockid);

/*
 * As ioctl(2); `argp` points to an int. FIONREAD: bytes to read (pipes too); FIONBIO: whether calls do not wait (in);
 * SIOCOUTQ: bytes not acknowledged; SIOCOUTQNSD: bytes not sent; SIOCATMARK. Returns 0. EFAULT: NULL; EINVAL: another
 * request.
 */
int mtcp_socket_ioctl(mctx_t mctx, int sockid, int request, void *argp);

/* ---- bytes ---------------------------------------------------------------------------------------------------------- */

/*
 * As read(2) and recv(2), of sockets and pipes: how many bytes came, 0 at the end of the stream. Flags are MSG_PEEK,
 * MSG_DONTWAIT, MSG_WAITALL, MSG_TRUNC and MSG_OOB. EFAULT: NULL; ENOTCONN; ECONNRESET, ETIMEDOUT ...: the connection has
 * failed, which is told once (and once more by SO_ERROR), then 0; EBADF: the end of a pipe that writes; EINVAL: an epoll.
 */
ssize_t mtcp_read(mctx_t mctx, int sockid, char *buf, size_t len);
ssize_t mtcp_recv(mctx_t mctx, int sockid, char *buf, size_t len, int flags);

/*
 * As readv(2): fills `iovcnt` (up to 1024) buffers in order. EINVAL: a number out of range, or lengths that no size_t can
 * sum; EFAULT: NULL; else as mtcp_read().
 */
int mtcp_readv(mctx_t mctx, int sockid, const struct iovec *iov, int iovcnt);

/*
 * As write(2): how many bytes were taken. What is written to an id that does not block leaves when the program waits, closes
 * it or turns to another id, or by itself some milliseconds later (not in the thread model "inline"); so what is written in
 * pieces goes in one segment. One that blocks goes on until all are, and they leave at once; a signal or SO_SNDTIMEO ends
 * it early. EPIPE (and no signal): the writing side is over; ENOTCONN is EPIPE too, as on Linux; ECONNRESET ... as in
 * mtcp_read(); EFAULT: NULL.
 */
ssize_t mtcp_write(mctx_t mctx, int sockid, const char *buf, size_t len);

/* As writev(2): all buffers in order, as mtcp_write() one. EINVAL and EFAULT as mtcp_readv(). */
int mtcp_writev(mctx_t mctx, int sockid, const struct iovec *iov, int iovcnt);

/*
 * As sendfile(2): writes up to `count` bytes of the kernel's file `in_fd`, from *offset on, which moves behind what was
 * taken; with NULL from the file's own position, which moves then. Returns how many bytes were taken, 0 at the end of the
 * file. EINVAL: a file that cannot be read at a place, or an offset below zero; EBADF: no such id, or no such file; else as
 * mtcp_write(). (corelane)
 */
ssize_t mtcp_sendfile(mctx_t mctx, int sockid, int in_fd, off_t *offset, size_t count);

/*
 * Lends received bytes where they lie, without a copy: iov[0] and on are set to pieces of them, in order, and what is not
 * needed of the `iovcnt` (1 to 1024) is set to length 0. Waits as mtcp_read() does; returns how many bytes they are, 0 at the
 * end of the stream. They are for reading only, and stay where they are until mtcp_recv_done(), a read or mtcp_close(); a
 * second call lends the same ones again, with what has come since. EOPNOTSUPP: a pipe; EFAULT; EINVAL; else as mtcp_read().
 * (corelane)
 */
ssize_t mtcp_recv_zc(mctx_t mctx, int sockid, struct iovec *iov, int iovcnt);

/* The first `len` bytes that were lent are used up. Returns 0. EINVAL: more than there are; EOPNOTSUPP: a pipe. (corelane) */
int mtcp_recv_done(mctx_t mctx, int sockid, size_t len);

#ifdef __cplusplus
}
#endif

#endif
