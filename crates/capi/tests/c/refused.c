/*
 * Channels that cannot be made where the kernel refuses something, and can be elsewhere: refused CONF, of two lanes with cores.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <megapipe.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "refuse.h"

#define CHECK(what) ((what) ? (void)0 : (fprintf(stderr, "%d: %s (errno %d)\n", __LINE__, #what, errno), _exit(1)))

static struct mp_options lane;

static void *without_affinity(void *arg)
{
	(void)arg;
	CHECK(refuse(SYS_sched_setaffinity) == 0);
	errno = 0;
	CHECK(mp_create(&lane) == NULL && errno == EPERM);
	return NULL;
}

static void *without_ring(void *arg)
{
	int ends[2];
	(void)arg;
	CHECK(refuse(SYS_io_uring_setup) == 0);
	errno = 0;
	CHECK(mp_create(NULL) == NULL && errno == EPERM);
	/* A lane needs none, until it is to carry a descriptor. */
	mp_channel *channel = mp_create(&lane);
	CHECK(channel != NULL && pipe(ends) == 0);
	errno = 0;
	CHECK(mp_register(channel, ends[0], NULL, 0) == 0 && errno == EPERM);
	CHECK(mp_destroy(channel) == 0);
	close(ends[0]);
	close(ends[1]);
	return NULL;
}

static void on_a_thread(void *(*what)(void *))
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, what, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	mp_options_init(&lane, sizeof lane);
	lane.engine = MP_ENGINE_LANE;
	lane.config = argv[1];
	on_a_thread(without_ring);
	/* With the first lane in use, the engine stays. */
	mp_channel *first = mp_create(&lane), *second;
	CHECK(first != NULL);
	on_a_thread(without_affinity);
	lane.batch = 0;
	errno = 0;
	CHECK(mp_create(&lane) == NULL && errno == EINVAL);
	lane.batch = 1;
	second = mp_create(&lane);
	CHECK(second != NULL);
	errno = 0;
	CHECK(mp_create(&lane) == NULL && errno == EBUSY);
	CHECK(mp_destroy(second) == 0 && mp_destroy(first) == 0);
	return 0;
}
