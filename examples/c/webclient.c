/*
 * A load generator with mTCP's API, in the manner of its epwget: fetches a page over and over, each time on a connection of its
 * own, and checks that all answers have the same length. It ends with 0 if every one was whole.
 *
 *   webclient -f CONF [-n CONNECTIONS] [-c CONCURRENCY] [-N CORES] ADDRESS[:PORT]/PATH
 */
#include "common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

#define EVENTS 256

/* One thread's work and what came of it. */
struct worker {
	int core, target, started, done, failed;
	unsigned long long bytes, size;
	mctx_t mctx;
	int ep;
	unsigned long long *got; /* by id */
	char *asked;             /* by id: the request was sent */
};

static struct sockaddr_in server;
static char request[1024];
static int concurrency = 64, cores = 1;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static int begin(struct worker *w)
{
	struct mtcp_epoll_event event;
	int id = mtcp_socket(w->mctx, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (id < 0)
		return -1;
	w->started++;
	w->got[id] = 0;
	w->asked[id] = 0;
	if (mtcp_connect(w->mctx, id, (struct sockaddr *)&server, sizeof server) != 0 && errno != EINPROGRESS) {
		w->done++;
		w->failed++;
		mtcp_close(w->mctx, id);
		return -1;
	}
	event.events = MTCP_EPOLLOUT;
	event.data.sockid = id;
	return mtcp_epoll_ctl(w->mctx, w->ep, MTCP_EPOLL_CTL_ADD, id, &event);
}

static void finish(struct worker *w, int id, int whole)
{
	mtcp_close(w->mctx, id);
	w->done++;
	if (whole && w->size == 0)
		w->size = w->got[id];
	if (!whole || w->got[id] == 0 || w->got[id] != w->size)
		w->failed++;
}

static void handle(struct worker *w, const struct mtcp_epoll_event *e)
{
	static const size_t room = 16384;
	int id = e->data.sockid;
	struct mtcp_epoll_event event;
	char buf[16384];
	ssize_t n;
	if (e->events & MTCP_EPOLLERR) {
		finish(w, id, 0);
		return;
	}
	if (!w->asked[id]) {
		n = mtcp_write(w->mctx, id, request, strlen(request));
		if (n != (ssize_t)strlen(request)) {
			finish(w, id, 0);
			return;
		}
		w->asked[id] = 1;
		event.events = MTCP_EPOLLIN;
		event.data.sockid = id;
		mtcp_epoll_ctl(w->mctx, w->ep, MTCP_EPOLL_CTL_MOD, id, &event);
		return;
	}
	while ((n = mtcp_read(w->mctx, id, buf, room)) > 0) {
		w->got[id] += (unsigned long long)n;
		w->bytes += (unsigned long long)n;
	}
	/* The server closes when all is sent. */
	if (n == 0 || errno != EAGAIN)
		finish(w, id, n == 0);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct mtcp_epoll_event events[EVENTS];
	struct mtcp_conf sizes;
	int i, n;
	mtcp_core_affinitize(w->core);
	w->mctx = mtcp_create_context(w->core);
	if (w->mctx == NULL) {
		perror("mtcp_create_context");
		exit(1);
	}
	mtcp_getconf(&sizes);
	w->got = calloc((size_t)sizes.max_concurrency, sizeof *w->got);
	w->asked = calloc((size_t)sizes.max_concurrency, 1);
	w->ep = mtcp_epoll_create(w->mctx, EVENTS);
	if (w->got == NULL || w->asked == NULL || w->ep < 0) {
		perror("no room for connections");
		exit(1);
	}
	while (!stopped && w->done < w->target) {
		while (w->started - w->done < concurrency && w->started < w->target)
			if (begin(w) != 0)
				break;
		n = mtcp_epoll_wait(w->mctx, w->ep, events, EVENTS, 1000);
		if (n < 0 && errno != EINTR) {
			perror("mtcp_epoll_wait");
			break;
		}
		for (i = 0; i < n; i++)
			handle(w, &events[i]);
	}
	mtcp_destroy_context(w->mctx);
	free(w->got);
	free(w->asked);
	return NULL;
}

static int usage(void)
{
	fprintf(stderr, "usage: webclient -f CONF [-n CONNECTIONS] [-c CONCURRENCY] [-N CORES] ADDRESS[:PORT]/PATH\n");
	return 2;
}

int main(int argc, char **argv)
{
	int option, connections = 1000, i, done = 0, failed = 0;
	unsigned long long bytes = 0;
	const char *conf = NULL, *slash, *colon;
	char host[64] = "";
	struct timeval from, to;
	struct mtcp_conf sizes;
	struct worker *workers;
	pthread_t *threads;
	double seconds;
	while ((option = getopt(argc, argv, "f:n:c:N:")) != -1) {
		switch (option) {
		case 'f': conf = optarg; break;
		case 'n': connections = (int)number_of("webclient", "-n", optarg, 1, INT_MAX); break;
		case 'c': concurrency = (int)number_of("webclient", "-c", optarg, 1, INT_MAX); break;
		case 'N': cores = (int)number_of("webclient", "-N", optarg, 1, 128); break;
		default: return usage();
		}
	}
	slash = optind < argc ? strchr(argv[optind], '/') : NULL;
	if (slash && (size_t)(slash - argv[optind]) < sizeof host)
		memcpy(host, argv[optind], (size_t)(slash - argv[optind]));
	colon = strchr(host, ':');
	server.sin_family = AF_INET;
	server.sin_port = htons((uint16_t)(colon ? number_of("webclient", "port", colon + 1, 1, 65535) : 80));
	host[strcspn(host, ":")] = 0;
	if (conf == NULL || inet_pton(AF_INET, host, &server.sin_addr) != 1)
		return usage();
	snprintf(request, sizeof request, "GET %.800s HTTP/1.0\r\nHost: %s\r\n\r\n", slash, host);
	concurrency = (concurrency + cores - 1) / cores;
	if (mtcp_init(conf) != 0)
		return 1;
	mtcp_getconf(&sizes);
	sizes.num_cores = cores;
	sizes.max_concurrency = concurrency * 3 + 8;
	mtcp_setconf(&sizes);
	mtcp_register_signal(SIGINT, stop);
	threads = calloc((size_t)cores, sizeof *threads);
	workers = calloc((size_t)cores, sizeof *workers);
	if (threads == NULL || workers == NULL) {
		perror("threads");
		return 1;
	}
	gettimeofday(&from, NULL);
	for (i = 0; i < cores; i++) {
		workers[i].core = i;
		workers[i].target = connections / cores + (i < connections % cores);
		if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) {
			fprintf(stderr, "no thread for core %d\n", i);
			return 1;
		}
	}
	for (i = 0; i < cores; i++) {
		pthread_join(threads[i], NULL);
		done += workers[i].done;
		failed += workers[i].failed;
		bytes += workers[i].bytes;
	}
	gettimeofday(&to, NULL);
	seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_usec - from.tv_usec) / 1e6;
	printf("%d connections, %d failed, %llu bytes, %.2f s, %.0f connections/s\n", done, failed, bytes, seconds, done / seconds);
	mtcp_destroy();
	free(threads);
	free(workers);
	return done == connections && failed == 0 ? 0 : 1;
}
