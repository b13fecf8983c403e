/*
 * A TCP proxy with mTCP's API: what comes to PORT goes to TO, and back; each direction ends by itself. Both sides are on the
 * stack, so a byte is copied once, from where it was received to where it is sent.
 *
 *   proxy -f CONF -P PORT -t ADDRESS:PORT
 */
#include "common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

#define EVENTS 256
#define PIECES 16

/* One side of a pair, by its id. */
struct side {
	int other;     /* the other side's id, -1 once it is closed */
	int connected; /* the connect to the far end is done */
	int ended;     /* it sends no more, and the other side was told */
};

static mctx_t mctx;
static int ep;
static struct side *sides;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static void watch(int id, uint32_t events)
{
	struct mtcp_epoll_event event;
	event.events = events;
	event.data.sockid = id;
	mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, id, &event);
}

/* Both sides end; an error on one resets the other. */
static void drop(int id, int failed)
{
	int other = sides[id].other;
	mtcp_close(mctx, id);
	if (failed)
		mtcp_abort(mctx, other);
	else
		mtcp_close(mctx, other);
}

/* Moves what there is from one side to the other. Whether the pair goes on. */
static int move(int from)
{
	struct iovec pieces[PIECES];
	int to = sides[from].other;
	ssize_t n, written;
	if (sides[from].ended || !sides[to].connected)
		return 1;
	while ((n = mtcp_recv_zc(mctx, from, pieces, PIECES)) > 0) {
		written = mtcp_writev(mctx, to, pieces, PIECES);
		if (written < 0) {
			if (errno == EAGAIN)
				return 1;
			drop(from, 1);
			return 0;
		}
		mtcp_recv_done(mctx, from, (size_t)written);
		if (written < n)
			return 1;
	}
	if (n < 0 && errno == EAGAIN)
		return 1;
	if (n < 0) {
		drop(from, 1);
		return 0;
	}
	/* The end of this direction: the other one may go on. */
	sides[from].ended = 1;
	mtcp_shutdown(mctx, to, SHUT_WR);
	if (!sides[to].ended)
		return 1;
	drop(from, 0);
	return 0;
}

static void begin(int client, const struct sockaddr_in *to)
{
	int far = mtcp_socket(mctx, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	mtcp_setsock_nonblock(mctx, client);
	if (far < 0) {
		mtcp_abort(mctx, client);
		return;
	}
	if (mtcp_connect(mctx, far, (const struct sockaddr *)to, sizeof *to) != 0 && errno != EINPROGRESS) {
		mtcp_close(mctx, far);
		mtcp_abort(mctx, client);
		return;
	}
	sides[client].other = far;
	sides[far].other = client;
	sides[client].connected = 1;
	sides[far].connected = sides[client].ended = sides[far].ended = 0;
	watch(client, (uint32_t)(MTCP_EPOLLIN | MTCP_EPOLLOUT | MTCP_EPOLLET));
	watch(far, (uint32_t)(MTCP_EPOLLIN | MTCP_EPOLLOUT | MTCP_EPOLLET));
}

static void handle(const struct mtcp_epoll_event *event)
{
	int id = event->data.sockid;
	if (event->events & MTCP_EPOLLERR) {
		drop(id, 1);
		return;
	}
	if (event->events & MTCP_EPOLLOUT) {
		/* Room on this side: for what waits on the other. */
		sides[id].connected = 1;
		move(sides[id].other);
		return;
	}
	move(id);
}

static int usage(void)
{
	fprintf(stderr, "usage: proxy -f CONF -P PORT -t ADDRESS:PORT\n");
	return 2;
}

int main(int argc, char **argv)
{
	struct mtcp_epoll_event events[EVENTS];
	struct sockaddr_in to, any;
	struct mtcp_conf sizes;
	int option, port = 0, listener, i, n, id;
	const char *conf = NULL, *target = NULL, *colon;
	char host[64] = "";
	while ((option = getopt(argc, argv, "f:P:t:")) != -1) {
		switch (option) {
		case 'f': conf = optarg; break;
		case 'P': port = (int)number_of("proxy", "-P", optarg, 1, 65535); break;
		case 't': target = optarg; break;
		default: return usage();
		}
	}
	memset(&to, 0, sizeof to);
	to.sin_family = AF_INET;
	colon = target ? strrchr(target, ':') : NULL;
	if (colon && (size_t)(colon - target) < sizeof host) {
		memcpy(host, target, (size_t)(colon - target));
		to.sin_port = htons((uint16_t)number_of("proxy", "-t", colon + 1, 1, 65535));
	}
	if (conf == NULL || port < 1 || port > 65535 || inet_pton(AF_INET, host, &to.sin_addr) != 1)
		return usage();
	if (mtcp_init(conf) != 0)
		return 1;
	mtcp_getconf(&sizes);
	sizes.num_cores = 1;
	mtcp_setconf(&sizes);
	mtcp_register_signal(SIGINT, stop);
	mtcp_register_signal(SIGTERM, stop);
	sides = calloc((size_t)sizes.max_concurrency, sizeof *sides);
	mctx = mtcp_create_context(0);
	if (sides == NULL || mctx == NULL) {
		perror("mtcp_create_context");
		return 1;
	}
	ep = mtcp_epoll_create(mctx, EVENTS);
	listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	any = to;
	any.sin_addr.s_addr = INADDR_ANY;
	any.sin_port = htons((uint16_t)port);
	if (mtcp_bind(mctx, listener, (struct sockaddr *)&any, sizeof any) != 0 || mtcp_listen(mctx, listener, 4096) != 0) {
		perror("listening");
		return 1;
	}
	watch(listener, MTCP_EPOLLIN);
	printf("proxy from port %d to %s\n", port, target);
	fflush(stdout);
	while (!stopped) {
		n = mtcp_epoll_wait(mctx, ep, events, EVENTS, -1);
		if (n < 0 && errno != EINTR) {
			perror("mtcp_epoll_wait");
			break;
		}
		for (i = 0; i < n; i++) {
			if (events[i].data.sockid != listener) {
				handle(&events[i]);
				continue;
			}
			while ((id = mtcp_accept(mctx, listener, NULL, NULL)) >= 0)
				begin(id, &to);
		}
	}
	mtcp_destroy_context(mctx);
	mtcp_destroy();
	free(sides);
	return 0;
}
