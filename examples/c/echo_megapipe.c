/*
 * An echo server with MegaPipe's API: the thesis's listing 3.1, for both engines.
 *
 *   echo_megapipe [-e uring|lane:CONFIG] [-a ADDRESS] [-p PORT] [-t THREADS]
 *
 * Each thread has a channel, on a core of its own, and its part of the listener. With lane:CONFIG the address is one of the
 * configuration's, and it needs as many lanes as there are threads.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <megapipe.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define READSIZE 16384

struct connection {
	mp_handle handle;
	char buf[READSIZE];
};

static struct mp_options options;
static int listener, threads = 1, cpus[64];
static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "echo_megapipe: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* A connection ends; its descriptor, where it has one, is closed with it. */
static void finish(struct connection *conn)
{
	mp_unregister(conn->handle);
	free(conn);
}

static void accepted(mp_channel *ch, int fd)
{
	struct connection *conn = malloc(sizeof *conn);
	if (conn != NULL) {
		conn->handle = mp_register(ch, fd, conn, 0);
		if (conn->handle != 0) {
			mp_read(conn->handle, conn->buf, READSIZE);
			return;
		}
		free(conn);
	}
	mp_close(ch, fd);
}

/* No room for another connection: said once. Asked for again at once, there would be none at once, over and over. */
static void no_room(int error)
{
	static int said;
	if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
		fprintf(stderr, "echo_megapipe: accepting: %s; others wait until a connection ends\n", strerror(error));
}

static void *serve(void *arg)
{
	int number = (int)(intptr_t)arg, ended = 0;
	time_t full = 0; /* when there was no room for another connection */
	struct mp_event ev;
	uint64_t mask[16];
	if (threads > 1 && stay_on(cpus[number]) != 0)
		die("a core for each thread");
	mp_channel *ch = mp_create(&options);
	if (ch == NULL)
		die("mp_create");
	own_cpus(mask, cpus, threads, number);
	mp_handle handle = mp_register_cpus(ch, listener, NULL, mask, threads > 1 ? 16 : 0);
	if (handle == 0)
		die("mp_register");
	/* One after the other as in the paper would do; all that come is less to say. */
	if (mp_accept(handle, MP_ENDLESS, 1) < 0 || mp_flush(ch) < 0)
		die("mp_accept");
	while (!stop) {
		int n = mp_dispatch(ch, &ev, 500);
		if (n < 0 && errno != EINTR)
			die("mp_dispatch");
		/* Others have descriptors too, so not only when a connection has ended here. */
		if (full != 0 && (ended || time(NULL) != full)) {
			full = 0;
			if (mp_accept(handle, MP_ENDLESS, 1) < 0)
				die("mp_accept");
		}
		if (n <= 0)
			continue;
		struct connection *conn = ev.cookie;
		switch (ev.cmd) {
		case MP_ACCEPT:
			if (ev.result == 0) {
				accepted(ch, ev.u.accept.fd);
			} else {
				no_room(ev.error);
				full = time(NULL);
				ended = 0;
			}
			break;
		case MP_READ:
			if (ev.result < 0)
				finish(conn);
			else if (ev.u.io.size == 0)
				mp_disconnect(conn->handle);
			else if (mp_write(conn->handle, conn->buf, ev.u.io.size) < 0)
				finish(conn);
			break;
		case MP_WRITE:
			if (ev.result < 0 || mp_read(conn->handle, conn->buf, READSIZE) < 0)
				finish(conn);
			break;
		case MP_DISCONNECT:
			finish(conn);
			ended = 1;
			break;
		}
	}
	mp_destroy(ch);
	return NULL;
}

int main(int argc, char **argv)
{
	const char *address = "0.0.0.0";
	int opt, port = 7777, i, error;
	mp_options_init(&options, sizeof options);
	while ((opt = getopt(argc, argv, "e:a:p:t:")) != -1) {
		switch (opt) {
		case 'e':
			if (strncmp(optarg, "lane:", 5) == 0) {
				options.engine = MP_ENGINE_LANE;
				options.config = optarg + 5;
				break;
			}
			if (strcmp(optarg, "uring") == 0)
				break;
			fprintf(stderr, "echo_megapipe: -e %s: uring or lane:CONFIG\n", optarg);
			return 2;
		case 'a':
			address = optarg;
			break;
		case 'p':
			port = (int)number_of("echo_megapipe", "-p", optarg, 0, 65535);
			break;
		case 't':
			threads = (int)number_of("echo_megapipe", "-t", optarg, 1, 64);
			break;
		default:
			fprintf(stderr, "usage: echo_megapipe [-e uring|lane:CONFIG] [-a ADDRESS] [-p PORT] [-t THREADS]\n");
			return 2;
		}
	}
	struct sockaddr_in at;
	memset(&at, 0, sizeof at);
	at.sin_family = AF_INET;
	at.sin_port = htons((uint16_t)port);
	if (inet_pton(AF_INET, address, &at.sin_addr) != 1) {
		fprintf(stderr, "echo_megapipe: -a %s: an IPv4 address\n", address);
		return 2;
	}
	cpus_for("echo_megapipe", cpus, threads);
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	listener = mp_listen_at((struct sockaddr *)&at, sizeof at, 4096);
	if (listener < 0)
		die("mp_listen_at");
	printf("echo_megapipe: %s:%d\n", address, port);
	fflush(stdout);
	pthread_t others[64];
	for (i = 1; i < threads; i++)
		if ((error = pthread_create(&others[i], NULL, serve, (void *)(intptr_t)i)) != 0) {
			errno = error;
			die("pthread_create");
		}
	serve((void *)0);
	for (i = 1; i < threads; i++)
		pthread_join(others[i], NULL);
	return 0;
}
