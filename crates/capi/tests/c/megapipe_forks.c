/*
 * Children of fork(2), and threads that end: whose registrations are whose, and that no child waits for a lock that nobody gives back.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <megapipe.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
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

static int client(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
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

/* A channel of its own. The kernel gives back the locked memory of one whose process has ended a moment later, and where its limit is low
 * (8 MiB for an ordinary user) the children before may have used it up. */
static mp_channel *own_channel(void)
{
	mp_channel *own;
	int n;
	for (n = 0; (own = mp_create(&options)) == NULL && errno == ENOMEM && n < 500; n++)
		usleep(10000);
	return own;
}

/* What waits at a child's registration is for the child's other ones, never for those of its parent. */
static void a_child_leaves_nothing_to_its_parent(void)
{
	int clients[4], i, fd = listening();
	mp_handle parents = mp_register(ch, fd, NULL, 0);
	CHECK(parents != 0 && mp_flush(ch) == 0);
	if (!child_has_ended()) {
		struct mp_event ev;
		struct mp_stats stats;
		mp_channel *own = own_channel();
		mp_handle h = own == NULL ? 0 : mp_register(own, fd, NULL, 0);
		CHECK(h != 0);
		for (i = 0; i < 4; i++)
			clients[i] = client();
		CHECK(mp_accept(h, 1, 0) == 0 && mp_dispatch(own, &ev, 5000) == 1 && ev.cmd == MP_ACCEPT && ev.result == 0);
		CHECK(close(ev.u.accept.fd) == 0);
		for (i = 0; i < 10; i++) /* the others are accepted ahead */
			CHECK(mp_dispatch(own, &ev, 10) == 0);
		CHECK(mp_unregister(h) == 0 && mp_stats(own, &stats, sizeof stats) == 0);
		CHECK(stats.dropped == 3);
		for (i = 0; i < 4; i++) {
			struct pollfd ended = { clients[i], POLLIN, 0 };
			CHECK(poll(&ended, 1, 5000) == 1);
		}
		_exit(0);
	}
	CHECK(mp_unregister(parents) == 0 && close(fd) == 0);
}

/* The parts of a listener are one process's: a child has no say in where their connections go, and ends none. */
static void parts_of_a_parent(void)
{
	int i, own_fd, fd = listening();
	struct sockaddr_in theirs = at;
	struct mp_event ev;
	cpu_set_t before, zero;
	mp_handle part = mp_register(ch, fd, NULL, 1);
	CHECK(part != 0);
	if (!child_has_ended()) {
		mp_handle whole;
		mp_channel *own = own_channel();
		CHECK(own != NULL);
		NONE(mp_register(own, fd, NULL, 1), EBUSY);
		NONE(mp_register(own, fd, NULL, 2), EBUSY);
		whole = mp_register(own, fd, NULL, 0);
		CHECK(whole != 0 && mp_unregister(whole) == 0);
		own_fd = listening();
		CHECK(mp_register(own, own_fd, NULL, 1) != 0);
		CHECK(mp_destroy(own) == 0);
		if (!child_has_ended()) {
			CHECK((own = own_channel()) != NULL);
			NONE(mp_register(own, fd, NULL, 2), EBUSY);
			NONE(mp_register(own, -1, NULL, 2), EBADF);
			_exit(0);
		}
		exit(0);
	}
	at = theirs;
	CPU_ZERO(&zero);
	CPU_SET(0, &zero);
	CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
	if (sched_setaffinity(0, sizeof zero, &zero) == 0) {
		for (i = 0; i < 16; i++) {
			int came = client();
			CHECK(mp_accept(part, 1, 0) == 0 && mp_dispatch(ch, &ev, 5000) == 1);
			CHECK(ev.cmd == MP_ACCEPT && ev.result == 0);
			CHECK(close(ev.u.accept.fd) == 0 && close(came) == 0);
		}
		CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
	}
	CHECK(mp_unregister(part) == 0 && close(fd) == 0);
}

/* A listener of the parent's is one in a child too, and its number not another's there. */
static void listeners_of_a_parent(void)
{
	int number;
	mp_handle parents;
	at.sin_port = 0;
	number = mp_listen_at((struct sockaddr *)&at, sizeof at, 10);
	parents = mp_register(ch, number, NULL, 0);
	CHECK(number >= 1 << 29 && parents != 0);
	if (!child_has_ended()) {
		mp_channel *own = own_channel();
		mp_handle h = own == NULL ? 0 : mp_register(own, number, NULL, 0);
		CHECK(h != 0);
		FAILS(mp_close(NULL, number), EBUSY);
		CHECK(mp_unregister(h) == 0 && mp_close(NULL, number) == 0);
		FAILS(mp_close(NULL, number), EBADF);
		_exit(0);
	}
	FAILS(mp_close(NULL, number), EBUSY);
	FAILS(mp_close(NULL, number | 1 << 28), EBADF);
	CHECK(mp_unregister(parents) == 0 && mp_close(NULL, number) == 0);
}

static volatile int over;
static int shared;
static struct mp_options nowhere;

static void *registers(void *arg)
{
	mp_channel *own = own_channel();
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
				own = own_channel();
				CHECK(own != NULL && mp_register(own, shared, NULL, 0) != 0);
				_exit(0);
			}
		}
		over = 1;
		CHECK(pthread_join(thread, NULL) == 0);
	}
	CHECK(dup2(said, 2) == 2 && close(null) == 0 && close(said) == 0 && close(shared) == 0);
}

static pthread_key_t key;
static int too_late;

static void at_the_end(void *channel)
{
	struct mp_event ev;
	NONE(mp_create(&options) != NULL, ESRCH);
	NONE(mp_create(&nowhere) != NULL, ESRCH);
	FAILS(mp_dispatch(channel, &ev, 0), EINVAL);
	FAILS(mp_destroy(channel), EINVAL);
	too_late = 1;
}

static void *ends(void *arg)
{
	mp_channel *own = own_channel();
	CHECK(own != NULL && pthread_setspecific(key, own) == 0);
	return arg;
}

/* A thread that ends, whose channels have ended, gets no more. */
static void a_thread_that_ends(void)
{
	pthread_t thread;
	CHECK(pthread_key_create(&key, at_the_end) == 0 && pthread_create(&thread, NULL, ends, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0 && too_late == 1);
}

static int own_listener = -1, handled;

/* As for threads that are to be still while their process forks. */
static void handler(void)
{
	if (own_listener >= 0) {
		mp_handle h = mp_register(ch, own_listener, NULL, 0);
		CHECK(h != 0 && mp_unregister(h) == 0);
		FAILS(mp_flush((mp_channel *)&at), EINVAL);
		handled++;
	}
}

/* A handler that is older than the library's comes when that has its locks. */
static void handlers_of_the_program(void)
{
	own_listener = listening();
	if (!child_has_ended())
		_exit(0);
	CHECK(handled == 2 && close(own_listener) == 0);
	own_listener = -1;
}

int main(void)
{
	CHECK(pthread_atfork(handler, handler, NULL) == 0);
	mp_options_init(&options, sizeof options);
	options.lwsockets = 64;
	options.buffers = 16;
	ch = mp_create(&options);
	CHECK(ch != NULL);
	a_child_leaves_nothing_to_its_parent();
	parts_of_a_parent();
	listeners_of_a_parent();
	no_child_waits_for_ever();
	a_thread_that_ends();
	handlers_of_the_program();
	CHECK(mp_destroy(ch) == 0);
	return 0;
}
