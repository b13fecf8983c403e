/*
 * mtcp_serves CONF ADDRESS PORT PORTS COUNT HOW: accepts COUNT connections on PORT and those after it, gives each a byte and waits for one
 * from each, and ends without closing one of them. HOW: "destroy" by mtcp_destroy, "exit" by exit(3); "close-destroy" and "close-exit"
 * so after the listeners were closed, before the first byte.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <mtcp_api.h>
#include <mtcp_epoll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PORTS 64

static int listeners[PORTS];

static void watch(mctx_t m, int ep, int s)
{
	struct mtcp_epoll_event ev;
	ev.events = MTCP_EPOLLIN;
	ev.data.sockid = s;
	mtcp_epoll_ctl(m, ep, MTCP_EPOLL_CTL_ADD, s, &ev);
}

int main(int argc, char **argv)
{
	struct mtcp_epoll_event evs[1024];
	struct sockaddr_in at;
	struct mtcp_conf mc;
	int ports, count, came = 0, asked = 0, answered = 0, ep, n, *all;
	time_t until;
	mctx_t m;

	if (argc < 7 || mtcp_init(argv[1]) < 0)
		return 1;
	ports = atoi(argv[4]);
	count = atoi(argv[5]);
	all = calloc(count, sizeof *all);
	mtcp_getconf(&mc);
	mc.num_cores = 1;
	mc.max_concurrency = count + 2000;
	mtcp_setconf(&mc);
	m = mtcp_create_context(0);
	if (!m || !all || ports > PORTS || (ep = mtcp_epoll_create(m, 1024)) < 0)
		return 1;
	memset(&at, 0, sizeof at);
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = inet_addr(argv[2]);
	for (int i = 0; i < ports; i++) {
		int s = listeners[i] = mtcp_socket(m, AF_INET, SOCK_STREAM, 0);
		at.sin_port = htons(atoi(argv[3]) + i);
		if (s < 0 || mtcp_setsock_nonblock(m, s) < 0 || mtcp_bind(m, s, (struct sockaddr *)&at, sizeof at) < 0 ||
		    mtcp_listen(m, s, 4096) < 0)
			return perror("listening"), 1;
		watch(m, ep, s);
	}
	puts("ready");
	fflush(stdout);
	for (until = time(NULL) + 100; came < count && time(NULL) < until;) {
		n = mtcp_epoll_wait(m, ep, evs, 1024, 100);
		for (int i = 0; i < n; i++)
			for (int s; came < count && (s = mtcp_accept(m, evs[i].data.sockid, NULL, NULL)) >= 0; came++) {
				mtcp_setsock_nonblock(m, s);
				all[came] = s;
			}
	}
	if (came < count)
		return fprintf(stderr, "%d came\n", came), 1;
	if (strncmp(argv[6], "close", 5) == 0) {
		for (int i = 0; i < ports; i++)
			mtcp_close(m, listeners[i]);
		/* What becomes of the ports is another thread's, which has its time. */
		for (until = time(NULL) + 3; time(NULL) < until;)
			mtcp_epoll_wait(m, ep, evs, 1024, 100);
	}
	for (int i = 0; i < count; i++)
		watch(m, ep, all[i]);
	/* As long as there are answers. */
	for (until = time(NULL) + 20; answered < count && time(NULL) < until;) {
		/* For some there may be no memory before others are answered. */
		for (; asked < count && mtcp_write(m, all[asked], "c", 1) == 1; asked++)
			;
		if (asked < count && errno != EAGAIN)
			return perror("mtcp_write"), 1;
		n = mtcp_epoll_wait(m, ep, evs, 1024, 100);
		for (int i = 0; i < n; i++) {
			char byte;
			int got = (int)mtcp_read(m, evs[i].data.sockid, &byte, 1);
			if (got < 0 && errno == EAGAIN)
				continue;
			mtcp_epoll_ctl(m, ep, MTCP_EPOLL_CTL_DEL, evs[i].data.sockid, NULL);
			answered += got == 1;
			until = time(NULL) + 20;
		}
	}
	printf("%d answered\n", answered);
	fflush(stdout);
	if (strstr(argv[6], "destroy")) {
		mtcp_destroy_context(m);
		mtcp_destroy();
	}
	exit(0);
}
