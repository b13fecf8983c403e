/*
 * Contexts on threads that may not be pinned: mtcp_core CONF, of lanes for the cores 0 and 1. The lane is the next one's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "mtcp_api.h"
#include "refuse.h"

#define CHECK(what) ((what) ? (void)0 : (fprintf(stderr, "%d: %s (errno %d)\n", __LINE__, #what, errno), _exit(1)))

static void *refused(void *arg)
{
	(void)arg;
	CHECK(refuse(SYS_sched_setaffinity) == 0);
	errno = 0;
	CHECK(mtcp_create_context(1) == NULL && errno == EPERM);
	return NULL;
}

static void *pinned(void *arg)
{
	cpu_set_t cpus;
	mctx_t context = mtcp_create_context(1);
	(void)arg;
	CHECK(context != NULL);
	CHECK(sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) == 1 && CPU_ISSET(1, &cpus));
	mtcp_destroy_context(context);
	return NULL;
}

static void on_a_thread(void *(*what)(void *))
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, what, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
	mctx_t first;
	CHECK(argc == 2 && mtcp_init(argv[1]) == 0);
	first = mtcp_create_context(0);
	CHECK(first != NULL);
	/* A lane that nobody had, and one that was given back. */
	on_a_thread(refused);
	on_a_thread(pinned);
	on_a_thread(refused);
	on_a_thread(pinned);
	mtcp_destroy_context(first);
	mtcp_destroy();
	return 0;
}
