/*
 * mTCP's epoll over corelane. A context may have several; a socket may be in several.
 *
 * As in mTCP, and other than on Linux, each entry that mtcp_epoll_wait() returns has one event bit, and MTCP_EPOLLHUP is reported
 * only where it was asked for. No id has two entries in one call: what else holds comes with the next call, after an error.
 * MTCP_EPOLLERR is always reported; but that the peer has reset a connection is the end of the stream, MTCP_EPOLLIN and
 * MTCP_EPOLLRDHUP, where one of them was asked for. That end comes when the bytes before it were read, to who asked for
 * MTCP_EPOLLIN.
 */
#ifndef MTCP_EPOLL_H
#define MTCP_EPOLL_H

#include "mtcp_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum mtcp_epoll_op {
	MTCP_EPOLL_CTL_ADD = 1,
	MTCP_EPOLL_CTL_DEL = 2,
	MTCP_EPOLL_CTL_MOD = 3
};

/* Events, with Linux's numbers. RDNORM, RDBAND, WRNORM, WRBAND and MSG are never reported. */
enum mtcp_event_type {
	MTCP_EPOLLNONE = 0x000,
	MTCP_EPOLLIN = 0x001,  /* something to read or to accept, or the end of the stream */
	MTCP_EPOLLPRI = 0x002, /* an urgent byte */
	MTCP_EPOLLOUT = 0x004, /* room to write, or a connect is done */
	MTCP_EPOLLRDNORM = 0x040,
	MTCP_EPOLLRDBAND = 0x080,
	MTCP_EPOLLWRNORM = 0x100,
	MTCP_EPOLLWRBAND = 0x200,
	MTCP_EPOLLMSG = 0x400,
	MTCP_EPOLLERR = 0x008,         /* SO_ERROR tells why */
	MTCP_EPOLLHUP = 0x010,         /* both directions are closed */
	MTCP_EPOLLRDHUP = 0x2000,      /* the peer has finished writing */
	MTCP_EPOLLONESHOT = (1 << 30), /* request: one report, then none before MTCP_EPOLL_CTL_MOD */
	MTCP_EPOLLET = (-2147483647 - 1) /* request, 1 << 31: each time something new happens, not as long as it holds */
};

/* Comes back with each event. */
typedef union mtcp_epoll_data {
	void *ptr;
	int sockid;
	uint32_t u32;
	uint64_t u64;
} mtcp_epoll_data_t;

struct mtcp_epoll_event {
	uint32_t events;
	mtcp_epoll_data_t data;
};

/* A new epoll; `size` says nothing but that it is above zero. Returns an id. EINVAL; EMFILE: all ids are in use. */
int mtcp_epoll_create(mctx_t mctx, int size);

/* As epoll_create1(2): `flags` is 0 or EPOLL_CLOEXEC. Returns an id. EINVAL; EMFILE. */
int mtcp_epoll_create1(mctx_t mctx, int flags);

/*
 * As epoll_ctl(2), of sockets, listeners and pipes; closing an id ends its registrations. `event` may be NULL for
 * MTCP_EPOLL_CTL_DEL. Returns 0. EEXIST, ENOENT: registered, or not; EINVAL: `epid` is no epoll, `sockid` is one, or no such
 * operation; EFAULT: no event.
 */
int mtcp_epoll_ctl(mctx_t mctx, int epid, int op, int sockid, struct mtcp_epoll_event *event);

/*
 * As epoll_wait(2): waits at most `timeout` milliseconds, for ever below 0, not at all at 0. Returns how many entries were
 * written, 0 when the time is over; at most `maxevents`, and at most 1024 in one call. EINVAL: not an epoll, or `maxevents`
 * is not above zero; EFAULT: no room; EINTR; ENETDOWN.
 */
int mtcp_epoll_wait(mctx_t mctx, int epid, struct mtcp_epoll_event *events, int maxevents, int timeout);

/* The name of one event, as "IN"; "NONE" for 0, "UNKNOWN" for what is none or several. Not to be changed or freed. */
char *EventToString(uint32_t event);

#ifdef __cplusplus
}
#endif

#endif
