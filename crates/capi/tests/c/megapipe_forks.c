/*
 * Children of fork(2): none waits for a lock that nobody gives back.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <megapipe.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* On stdout, for the library has a lot to say on stderr here. */
#define CHECK(what) do { if (!(what)) { \
	printf("%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno)); fflush(stdout); _exit(1); } } while (0)
#define FAILS(call, number) do { errno = 0; CHECK((call) == -1 && errno == (number)); } while (0)
#define NONE(call, number) do { errno = 0; CHECK((call) == 0 && errno == (number)); } while (0)

static struct mp_options options;
static struct sockaddr_in at;
static mp_channel *ch;

static int listening(void)
{
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	memset(&at, 0, sizeof at);
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 && listen(fd, 100) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
	return fd;
}

/* 0 in a child, which has ten seconds; in the parent 1, once the child has ended well. */
static int child_has_ended(void)
{
	int status = -1;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(10);
		return 0;
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(!WIFSIGNALED(status)); /* it has waited for ever */
	CHECK(status == 0);
	return 1;
}

static volatile int over;
static int shared;
static struct mp_options nowhere;

static void *registers(void *arg)
{
	mp_channel *own = mp_create(&options);
	CHECK(own != NULL);
	while (!over) {
		mp_handle h = mp_register(own, shared, NULL, 0);
		CHECK(h != 0 && mp_unregister(h) == 0);
	}
	CHECK(mp_destroy(own) == 0);
	return arg;
}

static void *looks_up(void *arg)
{
	while (!over)
		FAILS(mp_flush(ch), EPERM);
	return arg;
}

static void *starts_engines(void *arg)
{
	while (!over)
		NONE(mp_create(&nowhere) != NULL, ENOENT);
	return arg;
}

/* Whatever the parent's other threads are at. */
static void no_child_waits_for_ever(void)
{
	void *(*const busy[3])(void *) = { registers, looks_up, starts_engines };
	int i, null = open("/dev/null", O_WRONLY | O_CLOEXEC), said = dup(2);
	CHECK(null >= 0 && said >= 0 && dup2(null, 2) == 2);
	shared = listening();
	nowhere = options;
	nowhere.engine = MP_ENGINE_LANE;
	nowhere.config = "/nonexistent.toml";
	for (i = 0; i < 3; i++) {
		pthread_t thread;
		int n;
		over = 0;
		CHECK(pthread_create(&thread, NULL, busy[i], NULL) == 0);
		for (n = 0; n < 100; n++) {
			if (!child_has_ended()) {
				mp_channel *own;
				FAILS(mp_flush(ch), EPERM);
				NONE(mp_create(&nowhere) != NULL, ENOENT);
				own = mp_create(&options);
				CHECK(own != NULL && mp_register(own, shared, NULL, 0) != 0);
				_exit(0);
			}
		}
		over = 1;
		CHECK(pthread_join(thread, NULL) == 0);
	}
	CHECK(dup2(said, 2) == 2 && close(null) == 0 && close(said) == 0 && close(shared) == 0);
}

int main(void)
{
	mp_options_init(&options, sizeof options);
	options.lwsockets = 64;
	options.buffers = 16;
	ch = mp_create(&options);
	CHECK(ch != NULL);
	no_child_waits_for_ever();
	CHECK(mp_destroy(ch) == 0);
	return 0;
}
