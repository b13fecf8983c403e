/*
 * Lines of the library on a standard error that is a pipe: nobody reads it, or it is full. Without a configuration.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mtcp_api.h"

/* Standard error is what is tested: it says nothing here. */
#define CHECK(what) ((what) ? (void)0 : (printf("%d: %s (errno %d)\n", __LINE__, #what, errno), fflush(stdout), _exit(1)))

/* Calls that have something to say. */
static void fails_in_words(void)
{
	errno = 0;
	CHECK(mtcp_create_context(9999) == NULL && errno == EINVAL);
	errno = 0;
	CHECK(mtcp_init("/nonexistent") == -1 && errno == ENOENT);
}

static int pending(void)
{
	sigset_t set;
	CHECK(sigpending(&set) == 0);
	return sigismember(&set, SIGPIPE);
}

static int blocked(void)
{
	sigset_t set;
	CHECK(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0);
	return sigismember(&set, SIGPIPE);
}

/* A broken pipe ends nobody, and leaves signals as they were. */
static void nobody_reads(void)
{
	int ends[2];
	sigset_t set;
	CHECK(pipe(ends) == 0 && close(ends[0]) == 0 && dup2(ends[1], 2) == 2);
	close(ends[1]);
	fails_in_words();
	CHECK(!blocked() && !pending());
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	fails_in_words();
	CHECK(blocked() && !pending());
	/* The program's own. */
	CHECK(raise(SIGPIPE) == 0 && pending());
	fails_in_words();
	CHECK(blocked() && pending() && sigwaitinfo(&set, NULL) == SIGPIPE);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
}

static void *says(void *arg)
{
	(void)arg;
	errno = 0;
	CHECK(mtcp_create_context(9999) == NULL && errno == EINVAL);
	return NULL;
}

/* A child speaks though a thread of its parent is in the middle of a line. */
static void a_child_speaks(void)
{
	int ends[2], status;
	char page[4096];
	pthread_t thread;
	pid_t child;
	CHECK(pipe2(ends, O_NONBLOCK) == 0 && dup2(ends[1], 2) == 2);
	memset(page, 0, sizeof page);
	while (write(2, page, sizeof page) > 0)
		continue;
	CHECK(errno == EAGAIN && fcntl(2, F_SETFL, 0) == 0);
	CHECK(pthread_create(&thread, NULL, says, NULL) == 0);
	usleep(300000);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		int other = open("/dev/null", O_WRONLY);
		alarm(10);
		CHECK(dup2(other, 2) == 2);
		fails_in_words();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	/* Now nobody reads what the thread would write. */
	close(ends[0]);
	CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	struct mtcp_conf conf;
	CHECK(mtcp_getconf(&conf) == 0);
	nobody_reads();
	a_child_speaks();
	return 0;
}
