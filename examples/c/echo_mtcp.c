/*
 * An echo server with mTCP's API: one thread and context for each core, edge-triggered events, bytes echoed from where they lie.
 *
 *   echo_mtcp -f CONF [-P PORT] [-N CORES]
 */
#include "common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

#define EVENTS 256
#define PIECES 16

static int port = 7;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static int listen_on(mctx_t mctx)
{
	struct sockaddr_in6 any;
	int id = mtcp_socket(mctx, AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
	memset(&any, 0, sizeof any);
	any.sin6_family = AF_INET6;
	any.sin6_port = htons((uint16_t)port);
	if (id < 0 || mtcp_bind(mctx, id, (struct sockaddr *)&any, sizeof any) != 0 || mtcp_listen(mctx, id, 4096) != 0) {
		perror("listening");
		return -1;
	}
	return id;
}

/* Echoes what there is. Whether the connection goes on. */
static int echo(mctx_t mctx, int id)
{
	struct iovec pieces[PIECES];
	ssize_t n, written;
	while ((n = mtcp_recv_zc(mctx, id, pieces, PIECES)) > 0) {
		written = mtcp_writev(mctx, id, pieces, PIECES);
		if (written < 0)
			return errno == EAGAIN;
		/* What the send buffer does not take stays where it is until MTCP_EPOLLOUT. */
		mtcp_recv_done(mctx, id, (size_t)written);
		if (written < n)
			return 1;
	}
	return n < 0 && errno == EAGAIN;
}

static void *serve(void *arg)
{
	int core = *(int *)arg, listener, ep, i, n, id;
	struct mtcp_epoll_event event, events[EVENTS];
	mctx_t mctx;
	mtcp_core_affinitize(core);
	mctx = mtcp_create_context(core);
	if (mctx == NULL) {
		perror("mtcp_create_context");
		exit(1);
	}
	ep = mtcp_epoll_create(mctx, EVENTS);
	listener = listen_on(mctx);
	if (ep < 0 || listener < 0)
		exit(1);
	event.events = MTCP_EPOLLIN;
	event.data.sockid = listener;
	mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, listener, &event);
	if (core == 0) {
		printf("echoing on port %d\n", port);
		fflush(stdout);
	}
	while (!stopped) {
		n = mtcp_epoll_wait(mctx, ep, events, EVENTS, -1);
		for (i = 0; i < n; i++) {
			id = events[i].data.sockid;
			if (id != listener) {
				if ((events[i].events & MTCP_EPOLLERR) || !echo(mctx, id))
					mtcp_close(mctx, id);
				continue;
			}
			while ((id = mtcp_accept(mctx, listener, NULL, NULL)) >= 0) {
				mtcp_setsock_nonblock(mctx, id);
				event.events = (uint32_t)(MTCP_EPOLLIN | MTCP_EPOLLOUT | MTCP_EPOLLET);
				event.data.sockid = id;
				mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, id, &event);
			}
		}
		if (n < 0 && errno != EINTR) {
			perror("mtcp_epoll_wait");
			break;
		}
	}
	mtcp_destroy_context(mctx);
	return NULL;
}

static int usage(void)
{
	fprintf(stderr, "usage: echo_mtcp -f CONF [-P PORT] [-N CORES]\n");
	return 2;
}

int main(int argc, char **argv)
{
	int option, cores = 1, i, *number;
	const char *conf = NULL;
	struct mtcp_conf sizes;
	pthread_t *threads;
	while ((option = getopt(argc, argv, "f:P:N:")) != -1) {
		switch (option) {
		case 'f': conf = optarg; break;
		case 'P': port = (int)number_of("echo_mtcp", "-P", optarg, 1, 65535); break;
		case 'N': cores = (int)number_of("echo_mtcp", "-N", optarg, 1, 128); break;
		default: return usage();
		}
	}
	if (conf == NULL)
		return usage();
	if (mtcp_init(conf) != 0)
		return 1;
	mtcp_getconf(&sizes);
	sizes.num_cores = cores;
	mtcp_setconf(&sizes);
	mtcp_register_signal(SIGINT, stop);
	mtcp_register_signal(SIGTERM, stop);
	threads = calloc((size_t)cores, sizeof *threads);
	number = calloc((size_t)cores, sizeof *number);
	if (threads == NULL || number == NULL) {
		perror("threads");
		return 1;
	}
	for (i = 0; i < cores; i++) {
		number[i] = i;
		if (pthread_create(&threads[i], NULL, serve, &number[i]) != 0) {
			fprintf(stderr, "no thread for core %d\n", i);
			return 1;
		}
	}
	for (i = 0; i < cores; i++)
		pthread_join(threads[i], NULL);
	mtcp_destroy();
	free(threads);
	free(number);
	return 0;
}
