/*
 * MegaPipe's API (Han, 2012: chapters 3 and 4, table 3.1) over two engines: the Linux kernel, by io_uring, and corelane's own TCP.
 *
 * A channel belongs to the thread that made it; make one for each core. What is registered with it is a handle, with a
 * cookie that comes with each of its completions. Operations are asked for one at a time; the library gathers them and hands
 * them over in batches: when the batch is full, when mp_dispatch() has nothing more to give, or by mp_flush(). mp_dispatch()
 * gives one completion at a time. The completions of a handle come in the order in which its operations were asked for: reads
 * (mp_read, mp_recv, mp_accept) among themselves, and writes, with mp_connect and mp_disconnect, among themselves.
 *
 * Memory that is given to an operation is the library's until its completion was fetched by mp_dispatch(), or until
 * mp_unregister() of the handle has returned. Arrays of struct iovec and addresses are copied.
 *
 * Files are named by an int: a descriptor of the process; a lightweight socket (lwsocket), which only its channel knows, no
 * file of the process, 2^30 or more; or a listener of mp_listen_at(), 2^29 or more. What was closed or unregistered stays EBADF
 * for a long time, not for ever: a handle until a million others have had its place, an lwsocket until about a million have been
 * closed on its channel (fewer where nearly 2^20 are open), a listener until a quarter of a million. An int has no room for more.
 *
 * Unless something else is said a function returns 0, or -1 with errno set. These errors can come of any of them:
 *   EINVAL    the channel is NULL, made up, or destroyed; an argument is out of range
 *   EPERM     the channel, or the handle's, belongs to another thread, or to the parent of a process that was forked
 *   EBADF     no such handle, lwsocket, listener or descriptor; one of another channel; one that was unregistered or closed
 *   EBUSY     called by a signal handler that came into another call on this channel
 *   EFAULT    a pointer is NULL that may not be
 *   ENOMEM    no memory
 * What goes wrong with an operation is told by its completion. A lane's TCP works inside the calls of its channel (model
 * "inline", the default), above all mp_dispatch(): a thread that computes for long lets it wait, but with model = "guarded" or
 * "paired" in the configuration. A child of fork() cannot use its parent's channels, and ends none when it ends; it can make its
 * own, and its parent's registrations are nothing to them, but parts of a listener (cpu_mask of mp_register()). Until it ends or
 * calls exec(2) it keeps the descriptors behind its parent's channels open. fork() waits while another thread's mp_create() starts
 * a lane's engine.
 */
#ifndef MEGAPIPE_H
#define MEGAPIPE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A channel. */
typedef struct mp_channel mp_channel;

/* A registration with a channel; 0 is none. */
typedef uint64_t mp_handle;

/* Who does the work. */
enum mp_engine {
	MP_ENGINE_URING = 0, /* the kernel, by io_uring (Linux 6.1 or newer; 6.8 for descriptors and options of lwsockets) */
	MP_ENGINE_LANE = 1   /* corelane's TCP; descriptors by an io_uring inside the channel */
};

/*
 * How a channel is made. mp_options_init() first: it fills in the defaults. Later versions may have more at the end: a program
 * says by its size which it was compiled with, and what it has not is as by default.
 */
struct mp_options {
	size_t size;              /* bytes of this structure, as its user was compiled with */
	int engine;               /* enum mp_engine; MP_ENGINE_URING */
	const char *config;       /* lane: path of a TOML file (docs/configuration.md); NULL */
	int lane;                 /* lane: which one, from 0; -1: the next that is free; -1 */
	unsigned int batch;       /* requests of a batch, 1 to 4096; 32 */
	unsigned int lwsockets;   /* uring: most lwsockets, 1 to 2^20, at most RLIMIT_NOFILE; 65536 */
	unsigned int buffers;     /* mp_recv: buffers, a power of two up to 32768; 1024 */
	unsigned int buffer_size; /* mp_recv: bytes of each, 64 to 2^20; 4096 */
	unsigned int accept_ahead; /* uring: connections taken from the kernel before mp_accept() asks, roughly; 0: none; 64 */
	unsigned int balance;     /* uring: see below; 0: off */
	unsigned int completions; /* uring: completions that the kernel's ring has room for, 1 to 65536; more are put aside; 4096 */
};
/*
 * balance: where a listener is in parts (cpu_mask), a channel that has nothing to do and an mp_accept() to fulfil takes
 * connections from the part where most wait, up to half of them at a time, if at least this many wait there. It looks each
 * time it has nothing to do, and every 5 ms while it sleeps. Parts of one process alone; what accept_ahead took stays.
 */

/* Fills in the defaults. size: sizeof(struct mp_options), of which no more is written. */
void mp_options_init(struct mp_options *options, size_t size);

/*
 * Makes a channel, for this thread. options may be NULL: the kernel's engine with defaults.
 * The first channel of a configuration file starts its engine, the last one that is destroyed ends it; every lane needs a
 * channel, since frames of one may come in by another's queue; those of a lane without one are lost with model "inline" (a line on
 * stderr says so a second after a channel listens), and else their connections go to lanes that have one.
 * NULL and errno: E2BIG the options are longer than this library knows, and not 0 there; EINVAL an option is out of range, or (a line on stderr) a wrong configuration; ENOSYS or EPERM (a line on
 * stderr) no io_uring here (kernel.io_uring_disabled, seccomp), or the thread cannot be pinned to the lane's core, EINVAL too
 * where its cpuset lacks it; EFAULT no configuration for a lane; ENOENT, EACCES and others why its file cannot be read; EBUSY the
 * lane is taken; ENODEV (a line on stderr) the engine could not start, EPERM where a capability is missing; ESRCH the thread ends (a destructor of
 * pthread_key_create()), and its channels have ended. A lane that could not be had is as free as before.
 */
mp_channel *mp_create(const struct mp_options *options);

/*
 * Ends a channel: as mp_unregister() of all its handles, and mp_close() of its lwsockets. Its memory is gone, that of
 * mp_recv() too. The last channel of a lane's configuration (with model "inline" each channel) waits until the peers have
 * acknowledged the end of all connections; the rest is reset once two seconds have passed in which nobody has acknowledged anything (at
 * the latest after two seconds, and 0.2 ms for each connection and a second for each MB that was open). A process that ends by exit() or by
 * returning from main() does the same for all channels; _exit() and a signal that nobody handles tell the peers of a lane nothing.
 */
int mp_destroy(mp_channel *channel);

/* What a channel can do; bits of mp_capabilities(). */
enum mp_capability {
	MP_CAP_KERNEL = 1,      /* descriptors can be registered */
	MP_CAP_LANE = 2,        /* TCP is a lane's: mp_socket() and listeners of mp_listen_at() are no files */
	MP_CAP_DESCRIPTORS = 4, /* accepted sockets can be descriptors: mp_accept() with is_lwsocket 0, mp_lwsocket_to_fd() */
	MP_CAP_BALANCE = 8      /* the option balance has a meaning */
};

/* What the channel can do, or -1. */
int mp_capabilities(mp_channel *channel);

/* Changes the number of requests of a batch, 1 to 4096. */
int mp_set_batch(mp_channel *channel, unsigned int requests);

/*
 * Registers a file: a descriptor (socket, listening socket, pipe, FIFO, timerfd, signalfd, disk file...), which must stay
 * open, an lwsocket, or a listener of mp_listen_at().
 * cpu_mask: for something that listens, the CPUs whose connections come to this handle, CPU 0 the lowest bit. They get an
 * accept queue of their own (SO_REUSEPORT and a BPF program), until the handle is unregistered; the original keeps the CPUs
 * that no mask names, wherever it is registered, with cpu_mask 0: where it is registered nowhere, their connections wait there
 * for ever, so let the masks name all CPUs of the machine, or register it once without. Masks of one listener must not meet. A lane
 * has its own connections anyway: of several registrations of a listener of mp_listen_at() with it, that whose mask has its core
 * has them, else the original, else the first; the others have none until that one is unregistered. The parts of a listener of the
 * kernel are one process's: another one, a child too, must have none, or connections come to where nobody accepts them.
 * The handle, or 0 and errno: EEXIST registered with this channel already; EBUSY the mask meets another's, or a
 * parent had parts of the listener when this process was forked; EINVAL a mask of
 * what does not listen; EOPNOTSUPP a mask of what is not TCP; EMFILE, ENFILE no more handles; EADDRINUSE, EADDRNOTAVAIL,
 * EACCES as of bind(2) and listen(2); EPERM an option of the original's, which a part is to have, is not this process's to set, or it has SO_LOCK_FILTER;
 * EPERM, ENOSYS too: a descriptor on a lane's channel, which gets no io_uring.
 */
mp_handle mp_register(mp_channel *channel, int fd, void *cookie, uint64_t cpu_mask);

/* The same for more than 64 CPUs: words of 64, up to CPU 1023. */
mp_handle mp_register_cpus(mp_channel *channel, int fd, void *cookie, const uint64_t *cpu_mask, size_t words);

/* Changes the cookie of completions to come. */
int mp_set_cookie(mp_handle handle, void *cookie);

/*
 * Ends a registration. What is under way is cancelled, completions that were not fetched are dropped, and when it returns the
 * library does not touch the memory of its operations any more. A descriptor goes on as any other; an lwsocket is closed. Of a
 * listener of the kernel's, connections that wait at this handle go to its other handles in this process; where there are none, or no
 * descriptor is left to pass one on by, those that the channel had accepted ahead are closed, and those of a part are reset, and
 * mp_stats() counts them (dropped). A part waits, half a second at most, for the handshakes under way with it. A transfer of a disk
 * file is waited for.
 */
int mp_unregister(mp_handle handle);

/* A count for mp_accept(): all that come, until the handle is unregistered or accepting fails. */
#define MP_ENDLESS UINT32_MAX

/*
 * Accepts count connections, at least one; each is a completion (MP_ACCEPT). is_lwsocket 0: as descriptors (close-on-exec),
 * else as lwsockets. Errors in the completion: EOPNOTSUPP descriptors of a lane's connections; EMFILE, ENFILE no room for
 * another; ENOBUFS, ENOMEM. With an error the request is over, and connections wait for the next: asked for again at once it fails
 * again at once, so wait until one has ended, or for a while.
 */
int mp_accept(mp_handle handle, uint32_t count, int is_lwsocket);

/* Connects a socket (MP_CONNECT). Errors in the completion: as of connect(2). Reads that are asked for meanwhile wait. */
int mp_connect(mp_handle handle, const struct sockaddr *address, socklen_t length);

/*
 * Reads what is there, up to size bytes (MP_READ; size 0 in the completion: the end). Of a socket that keeps messages apart it is one of
 * them (MP_MESSAGE), cut where it is longer than size (MP_CUT). A read of 0 bytes is complete in its turn, with size 0, and says nothing
 * of an end; of messages it takes one, of other files it is as read(2). mp_pread: at a place of a file, the
 * others at its own position; ESPIPE for what has none, sockets and pipes (mp_pwrite too). Errors in the completion: as of read(2) and recv(2).
 */
int mp_read(mp_handle handle, void *buf, size_t size);
int mp_pread(mp_handle handle, void *buf, size_t size, uint64_t offset);
/* iovcnt 0 to 1024, else EINVAL. */
int mp_readv(mp_handle handle, const struct iovec *iov, int iovcnt);

/*
 * Writes all of size bytes (MP_WRITE): what fits at once, and the rest as there is room. Errors in the completion: as of
 * write(2) and send(2), some of the bytes may have gone; there is no SIGPIPE (for pipes since Linux 6.18).
 */
int mp_write(mp_handle handle, const void *buf, size_t size);
int mp_pwrite(mp_handle handle, const void *buf, size_t size, uint64_t offset);
/* iovcnt 0 to 1024, else EINVAL. */
int mp_writev(mp_handle handle, const struct iovec *iov, int iovcnt);

/*
 * Of datagram sockets, connected or not: as mp_read (MP_READ), and who sent it, and as mp_write (MP_WRITE), to an address. The
 * memory of address and length is the library's until the completion, as that of buf is; length says how much room there is, and
 * then how long the address is, 0 of a connection or where it failed. NULL for both: nobody asks. A datagram is cut (MP_CUT) where it is
 * longer than size. ENOTSOCK: a file or a pipe. Of a connection the address of mp_sendto means nothing.
 */
int mp_recvfrom(mp_handle handle, void *buf, size_t size, struct sockaddr *address, socklen_t *length);
int mp_sendto(mp_handle handle, const void *buf, size_t size, const struct sockaddr *address, socklen_t length);

/*
 * Receives what is there into memory of the channel (MP_RECV), which is taken when bytes are there: idle connections hold none.
 * A message that is longer than the option buffer_size is cut (MP_CUT); an empty one (MP_MESSAGE) has no memory to be released.
 * Each is given back by mp_release(); while all are out, mp_recv() waits.
 */
int mp_recv(mp_handle handle);

/* Gives back memory of mp_recv(), by where it begins. EINVAL: it is not out. */
int mp_release(mp_channel *channel, const void *data);

/*
 * Ends a connection in both directions, after what was written before (MP_DISCONNECT); the handle stays. mp_shutdown: how as
 * of shutdown(2), SHUT_RD, SHUT_WR or SHUT_RDWR.
 */
int mp_disconnect(mp_handle handle);
int mp_shutdown(mp_handle handle, int how);

/* What is complete. */
enum mp_command {
	MP_ACCEPT = 1,
	MP_CONNECT = 2,
	MP_READ = 3,
	MP_WRITE = 4,
	MP_RECV = 5,
	MP_DISCONNECT = 6
};

/* What more there is to say of a completion; bits of flags. */
enum mp_flag {
	MP_MESSAGE = 1, /* what was read is of one message: of a socket of datagrams, whose size 0 is an empty one, or of SOCK_SEQPACKET,
	                   whose size 0 is the end or an empty one */
	MP_CUT = 2      /* that message was longer than its memory, and the rest of it is lost */
};

/* A completion. */
struct mp_event {
	int cmd;          /* enum mp_command */
	int result;       /* 0, or -1 where it failed */
	int error;        /* why: a number of errno.h; 0 */
	unsigned int flags; /* enum mp_flag */
	mp_handle handle; /* of which handle */
	void *cookie;     /* the handle's */
	union {
		struct {
			int fd;              /* the connection, a descriptor or an lwsocket; -1 where it failed */
			int is_lwsocket;     /* which of them */
			uint32_t queued;     /* connections that wait to be accepted after this one: in the channel, and in the kernel's queue */
		} accept;            /* MP_ACCEPT */
		struct {
			void *buf;           /* where the operation's memory began; NULL of a vector */
			size_t size;         /* bytes read, 0: the end (see MP_MESSAGE); or written */
		} io;                /* MP_READ, MP_WRITE */
		struct {
			const void *data;    /* to be given to mp_release(); NULL where size is 0 */
			size_t size;         /* bytes received, 0: the end (see MP_MESSAGE) */
		} recv;              /* MP_RECV */
	} u;
};

/*
 * The next completion; hands over what was asked for and waits where there is none, at most timeout milliseconds (0: not at
 * all, -1: for ever). 1: there it is. 0: none came. -1 and errno: EINTR a signal handler has run; ENETDOWN the lane's engine
 * has ended, or the library has panicked on any thread, which resets the connections of all lanes; or what the kernel says of the channel as a whole.
 */
int mp_dispatch(mp_channel *channel, struct mp_event *event, int timeout);

/* Hands over what was asked for. */
int mp_flush(mp_channel *channel);

/*
 * A descriptor of the process (close-on-exec) for an lwsocket, beside it: what is closed first leaves the other open. -1 and
 * errno: EOPNOTSUPP it is a lane's, and no file of the kernel; ENOTCONN it was disconnected, or is being; EBUSY bytes have come
 * that an mp_recv() or mp_read() has to ask for first, else they would be lost to the descriptor; EMFILE; EINVAL before Linux 6.8.
 */
int mp_lwsocket_to_fd(mp_channel *channel, int lwsocket);

/* Closes an lwsocket, a listener (channel may be NULL), or a descriptor. EBUSY: it is registered. */
int mp_close(mp_channel *channel, int fd);

/*
 * A listener at an IP address, TCP, for any channels of this process: those of the kernel share a kernel's listener, a
 * lane's listens in its own table. It listens once it is registered, so what is wrong with the address is an error of
 * mp_register(). Its number, or -1.
 */
int mp_listen_at(const struct sockaddr *address, socklen_t length, int backlog);

/*
 * A socket to be registered, and connected or listening: with a lane a TCP one (AF_INET or AF_INET6, SOCK_STREAM) is the lane's, an
 * lwsocket; all others are descriptors, close-on-exec. As socket(2).
 */
int mp_socket(mp_channel *channel, int domain, int type, int protocol);

/*
 * As bind(2), listen(2), getsockname(2), getpeername(2), setsockopt(2), getsockopt(2), of descriptors and lwsockets; of a
 * listener of mp_listen_at() mp_getsockname alone. mp_listen goes before mp_register, with options before it that connections
 * take over; a lane's socket that listens is its channel's alone: mp_listen_at() is for several. A lane's sockets have the
 * options of docs/mtcp.md.
 */
int mp_bind(mp_channel *channel, int fd, const struct sockaddr *address, socklen_t length);
int mp_listen(mp_channel *channel, int fd, int backlog);
int mp_getsockname(mp_channel *channel, int fd, struct sockaddr *address, socklen_t *length);
int mp_getpeername(mp_channel *channel, int fd, struct sockaddr *address, socklen_t *length);
int mp_setsockopt(mp_channel *channel, int fd, int level, int name, const void *value, socklen_t length);
int mp_getsockopt(mp_channel *channel, int fd, int level, int name, void *value, socklen_t *length);

/* What a channel counted. */
struct mp_stats {
	uint64_t completions; /* completions */
	uint64_t accepted;    /* connections given by mp_dispatch() */
	uint64_t batches;     /* hand-overs of requests */
	uint64_t requests;    /* requests in them */
	uint64_t enters;      /* system calls of the ring */
	uint64_t overflows;   /* times that the kernel had to put completions aside */
	uint64_t no_buffer;   /* times that mp_recv() found no buffer */
	uint64_t taken;       /* connections taken from other parts of a listener */
	uint64_t dropped;     /* connections closed or reset with a handle that accepted them: no other one, or no descriptor to pass them on */
};

/* What the channel counted. size: bytes of the structure, of which no more are written. */
int mp_stats(mp_channel *channel, struct mp_stats *stats, size_t size);

#ifdef __cplusplus
}
#endif

#endif
