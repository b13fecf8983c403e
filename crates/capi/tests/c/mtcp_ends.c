/*
 * mtcp_ends CONF ADDRESS PORT PORTS COUNT HOW: opens COUNT connections to PORT and those after it, and ends without closing one of them.
 * HOW: "destroy" by mtcp_destroy, "exit" by exit(3), "thread" by exit(3) while another thread has the context and waits in
 * mtcp_epoll_wait.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <mtcp_api.h>
#include <mtcp_epoll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct sockaddr_in to;
static int port, ports, count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_up = PTHREAD_COND_INITIALIZER;
static int up;

/* Opens them all; how many are open. */
static int open_all(mctx_t m)
{
	struct mtcp_epoll_event ev, evs[1024];
	int opened = 0, done = 0, ep = mtcp_epoll_create(m, 1024);
	time_t until = time(NULL) + 60;

	while (done < count && time(NULL) < until) {
		int n;
		for (int k = 0; k < 256 && opened < count && opened - done < 1000; k++, opened++) {
			int s = mtcp_socket(m, AF_INET, SOCK_STREAM, 0);
			if (s < 0 || mtcp_setsock_nonblock(m, s) < 0)
				return perror("mtcp_socket"), done;
			to.sin_port = htons(port + opened % ports);
			if (mtcp_connect(m, s, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)
				return perror("mtcp_connect"), done;
			ev.events = MTCP_EPOLLOUT;
			ev.data.sockid = s;
			mtcp_epoll_ctl(m, ep, MTCP_EPOLL_CTL_ADD, s, &ev);
		}
		n = mtcp_epoll_wait(m, ep, evs, 1024, 100);
		for (int i = 0; i < n; i++) {
			int s = evs[i].data.sockid, error = 0;
			socklen_t len = sizeof error;
			mtcp_getsockopt(m, s, SOL_SOCKET, SO_ERROR, &error, &len);
			if (error != 0)
				return fprintf(stderr, "connecting: %s\n", strerror(error)), done;
			mtcp_epoll_ctl(m, ep, MTCP_EPOLL_CTL_DEL, s, NULL);
			done++;
		}
	}
	return done;
}

static void *waits(void *unused)
{
	struct mtcp_epoll_event ev;
	mctx_t m = mtcp_create_context(0);
	int done = m ? open_all(m) : 0;

	(void)unused;
	pthread_mutex_lock(&lock);
	up = done == count ? 1 : -1;
	pthread_cond_signal(&is_up);
	pthread_mutex_unlock(&lock);
	for (int ep = mtcp_epoll_create(m, 1);;)
		mtcp_epoll_wait(m, ep, &ev, 1, -1);
	return NULL;
}

int main(int argc, char **argv)
{
	struct mtcp_conf mc;
	pthread_t thread;
	mctx_t m;

	if (argc < 7 || mtcp_init(argv[1]) < 0)
		return 1;
	port = atoi(argv[3]);
	ports = atoi(argv[4]);
	count = atoi(argv[5]);
	mtcp_getconf(&mc);
	mc.num_cores = 1;
	mc.max_concurrency = count + 2000;
	mtcp_setconf(&mc);
	to.sin_family = AF_INET;
	to.sin_addr.s_addr = inet_addr(argv[2]);
	if (strcmp(argv[6], "thread") == 0) {
		if (pthread_create(&thread, NULL, waits, NULL) != 0)
			return 1;
		pthread_mutex_lock(&lock);
		while (up == 0)
			pthread_cond_wait(&is_up, &lock);
		pthread_mutex_unlock(&lock);
		return up < 0;
	}
	m = mtcp_create_context(0);
	if (!m || open_all(m) < count)
		return 1;
	if (strcmp(argv[6], "destroy") == 0) {
		mtcp_destroy_context(m);
		mtcp_destroy();
	}
	exit(0);
}
