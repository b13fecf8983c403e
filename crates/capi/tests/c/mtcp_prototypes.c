/* Every function under the prototype that ports were written for; where two have it, the one of the original. */
#include <stdio.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>
#include <eventpoll.h>

typedef struct sockaddr addr;
typedef struct mtcp_epoll_event event;

static int (*const f1)(const char *) = mtcp_init;
static void (*const f2)(void) = mtcp_destroy;
static int (*const f3)(struct mtcp_conf *) = mtcp_getconf;
static int (*const f4)(const struct mtcp_conf *) = mtcp_setconf;
static int (*const f5)(int) = mtcp_core_affinitize;
static mctx_t (*const f6)(int) = mtcp_create_context;
static void (*const f7)(mctx_t) = mtcp_destroy_context;
static mtcp_sighandler_t (*const f8)(int, mtcp_sighandler_t) = mtcp_register_signal;
static int (*const f9)(void) = GetNumCPUs;
static int (*const f10)(mctx_t, int *) = mtcp_pipe;
static int (*const f11)(mctx_t, int, int, int, void *, socklen_t *) = mtcp_getsockopt;
static int (*const f12)(mctx_t, int, int, int, const void *, socklen_t) = mtcp_setsockopt;
static int (*const f13)(mctx_t, int) = mtcp_setsock_nonblock;
static int (*const f14)(mctx_t, int, int, void *) = mtcp_socket_ioctl;
static int (*const f15)(mctx_t, int, int, int) = mtcp_socket;
static int (*const f16)(mctx_t, int, const addr *, socklen_t) = mtcp_bind;
static int (*const f17)(mctx_t, int, int) = mtcp_listen;
static int (*const f18)(mctx_t, int, addr *, socklen_t *) = mtcp_accept;
static int (*const f19)(mctx_t, in_addr_t, int, in_addr_t, in_addr_t) = mtcp_init_rss;
static int (*const f20)(mctx_t, int, const addr *, socklen_t) = mtcp_connect;
static int (*const f21)(mctx_t, int) = mtcp_close;
static int (*const f22)(mctx_t, int) = mtcp_abort;
static int (*const f23)(mctx_t, int, addr *, socklen_t *) = mtcp_getsockname;
static int (*const f24)(mctx_t, int, addr *, socklen_t *) = mtcp_getpeername;
static ssize_t (*const f25)(mctx_t, int, char *, size_t) = mtcp_read;
static ssize_t (*const f26)(mctx_t, int, char *, size_t, int) = mtcp_recv;
static int (*const f27)(mctx_t, int, const struct iovec *, int) = mtcp_readv;
static ssize_t (*const f28)(mctx_t, int, const char *, size_t) = mtcp_write;
static int (*const f29)(mctx_t, int, const struct iovec *, int) = mtcp_writev;
static int (*const f30)(mctx_t, int) = mtcp_epoll_create;
static int (*const f31)(mctx_t, int) = mtcp_epoll_create1;
static int (*const f32)(mctx_t, int, int, int, event *) = mtcp_epoll_ctl;
static int (*const f33)(mctx_t, int, event *, int, int) = mtcp_epoll_wait;
static char *(*const f34)(uint32_t) = EventToString;
static int (*const f35)(mctx_t, int, int) = mtcp_shutdown;
static ssize_t (*const f36)(mctx_t, int, int, off_t *, size_t) = mtcp_sendfile;
static ssize_t (*const f37)(mctx_t, int, struct iovec *, int) = mtcp_recv_zc;
static int (*const f38)(mctx_t, int, size_t) = mtcp_recv_done;

/* Constants that programs compile in. */
typedef char numbers[MTCP_SOCK_UNUSED == 0 && MTCP_SOCK_PIPE == 5 && MTCP_EPOLL_CTL_ADD == 1 && MTCP_EPOLL_CTL_DEL == 2 &&
                             MTCP_EPOLL_CTL_MOD == 3 && MTCP_EPOLLIN == 1 && MTCP_EPOLLOUT == 4 && MTCP_EPOLLERR == 8 &&
                             MTCP_EPOLLHUP == 16 && MTCP_EPOLLRDHUP == 0x2000 && MTCP_EPOLLONESHOT == 1 << 30 &&
                             (uint32_t)MTCP_EPOLLET == (uint32_t)1 << 31
                         ? 1
                         : -1];
typedef char sizes[sizeof(event) == 16 && sizeof(struct mtcp_conf) == 28 && sizeof(mtcp_epoll_data_t) == 8 ? 1 : -1];

#ifdef MAX_CPUS
#error "programs define it themselves"
#endif

int main(void)
{
	int all = f1 && f2 && f3 && f4 && f5 && f6 && f7 && f8 && f10 && f11 && f12 && f13 && f14 && f15 && f16 && f17 && f18 &&
	          f19 && f20 && f21 && f22 && f23 && f24 && f25 && f26 && f27 && f28 && f29 && f30 && f31 && f32 && f33 && f35 &&
	          f36 && f37 && f38 && sizeof(numbers) && sizeof(sizes);
	mtcp_epoll_data_t data;
	data.u64 = 0;
	data.sockid = 7;
	return all && f9() > 0 && f34(MTCP_EPOLLIN)[0] == 'I' && data.u32 == 7 ? 0 : 1;
}
