/*
 * libmtcp against the kernel's TCP over a TAP interface: ours is 10.9.0.2 and fd09::2, the kernel's 10.9.0.1 and fd09::1.
 * Usage: mtcp CONF [inline | lanes]; the last is two inline lanes, and what is said of those. Each test prints its name; a failure prints where, and ends the program.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <linux/sockios.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "address.h"
#include "mtcp_api.h"
#include "mtcp_epoll.h"

#define CHECK(what) ((what) ? (void)0 : fail(__FILE__, __LINE__, #what))
#define FAILS(call, error) (errno = 0, CHECK((call) == -1), CHECK_ERRNO(error))
#define CHECK_ERRNO(error) (errno == (error) ? (void)0 : fail_errno(__FILE__, __LINE__, #error))

static void fail(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", file, line, what, errno, strerror(errno));
	_exit(1);
}

static void fail_errno(const char *file, int line, const char *want)
{
	fprintf(stderr, "%s:%d: errno is %d (%s), not %s\n", file, line, errno, strerror(errno), want);
	_exit(1);
}

static mctx_t M;
/* No thread runs the stack beside ours: between our calls nothing happens. */
static int alone;

/* ---- the kernel's side ---------------------------------------------------------------------------------------------- */

static int kernel_listen(int port)
{
	int one = 1, fd = socket(AF_INET6, SOCK_STREAM, 0);
	struct sockaddr_in6 a = v6("::", port);
	CHECK(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 64) == 0);
	return fd;
}

static int kernel_connect(int port)
{
	struct sockaddr_in a = v4("10.9.0.2", port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
	return fd;
}

/* What a kernel thread does for a test. */
struct peer {
	int port;
	size_t bytes;
	int reset;
	int delay_ms;
	char *got;
	size_t n;
};

static void pause_ms(int ms)
{
	struct timespec t;
	t.tv_sec = ms / 1000;
	t.tv_nsec = (long)(ms % 1000) * 1000000;
	while (nanosleep(&t, &t) != 0)
		;
}

/* Connects, writes `bytes`, reads to the end into `got`. */
static void *client(void *arg)
{
	struct peer *p = arg;
	size_t left = p->bytes;
	char buf[8192];
	ssize_t n;
	int fd;
	pause_ms(p->delay_ms);
	fd = kernel_connect(p->port);
	memset(buf, 'k', sizeof buf);
	while (left > 0) {
		n = write(fd, buf, left < sizeof buf ? left : sizeof buf);
		CHECK(n > 0);
		left -= (size_t)n;
	}
	if (p->reset) {
		struct linger l = {1, 0};
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
		pause_ms(50);
		close(fd);
		return NULL;
	}
	shutdown(fd, SHUT_WR);
	p->got = malloc(1 << 24);
	while ((n = read(fd, p->got + p->n, (1 << 24) - p->n)) > 0)
		p->n += (size_t)n;
	CHECK(n == 0);
	close(fd);
	return NULL;
}

/* ---- helpers -------------------------------------------------------------------------------------------------------- */

static int open_listener(int port)
{
	struct sockaddr_in a = v4("0.0.0.0", port);
	int id = mtcp_socket(M, AF_INET, SOCK_STREAM, 0);
	CHECK(id >= 0);
	CHECK(mtcp_bind(M, id, (struct sockaddr *)&a, sizeof a) == 0);
	CHECK(mtcp_listen(M, id, 64) == 0);
	return id;
}

static void watch(int ep, int op, int id, uint32_t events)
{
	struct mtcp_epoll_event e;
	memset(&e, 0, sizeof e);
	e.events = events;
	e.data.sockid = id;
	CHECK(mtcp_epoll_ctl(M, ep, op, id, &e) == 0);
}

/* The one event of an epoll, or 0 after `ms`. */
static uint32_t next_event(int ep, int ms, int *id)
{
	struct mtcp_epoll_event e[8];
	int n = mtcp_epoll_wait(M, ep, e, 8, ms);
	CHECK(n == 0 || n == 1);
	if (n == 0)
		return 0;
	if (id)
		*id = e[0].data.sockid;
	return e[0].events;
}

/* A connection of ours to the kernel, and the kernel's end. */
static int pair(int *kernel)
{
	static int port = 7100;
	int listener = kernel_listen(++port), id = mtcp_socket(M, AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = v4("10.9.0.1", port);
	CHECK(id >= 0);
	CHECK(mtcp_connect(M, id, (struct sockaddr *)&a, sizeof a) == 0);
	*kernel = accept(listener, NULL, NULL);
	CHECK(*kernel >= 0);
	close(listener);
	return id;
}

/* ---- tests ---------------------------------------------------------------------------------------------------------- */

static void blocking_calls_serve_a_client(void)
{
	struct peer p = {7001, 300000, 0, 100, NULL, 0};
	struct sockaddr_in from, at;
	socklen_t len = sizeof from, at_len = sizeof at;
	int listener = open_listener(7001), id, i, three = 3, kept = 0;
	socklen_t size = sizeof kept;
	size_t got = 0;
	ssize_t n;
	char buf[4096], *big = malloc(1 << 20);
	pthread_t t;
	CHECK(mtcp_setsockopt(M, listener, SOL_SOCKET, SO_PRIORITY, &three, size) == 0);
	pthread_create(&t, NULL, client, &p);
	id = mtcp_accept(M, listener, (struct sockaddr *)&from, &len);
	CHECK(id >= 0 && id != listener);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_PRIORITY, &kept, &size) == 0 && kept == 3);
	CHECK(len == sizeof from && from.sin_family == AF_INET && from.sin_addr.s_addr == inet_addr("10.9.0.1"));
	CHECK(mtcp_getsockname(M, id, (struct sockaddr *)&at, &at_len) == 0 && at_len == sizeof at);
	CHECK(at.sin_addr.s_addr == inet_addr("10.9.0.2") && at.sin_port == htons(7001));
	CHECK(mtcp_getpeername(M, id, (struct sockaddr *)&at, &at_len) == 0 && memcmp(&at, &from, 8) == 0);
	while ((n = mtcp_read(M, id, buf, sizeof buf)) > 0) {
		for (i = 0; i < n; i++)
			CHECK(buf[i] == 'k');
		got += (size_t)n;
	}
	CHECK(n == 0 && got == 300000);
	/* A blocking write takes all of it. */
	memset(big, 'm', 1 << 20);
	CHECK(mtcp_write(M, id, big, 1 << 20) == 1 << 20);
	CHECK(mtcp_close(M, id) == 0);
	pthread_join(t, NULL);
	CHECK(p.n == 1 << 20 && p.got[0] == 'm' && p.got[p.n - 1] == 'm');
	CHECK(mtcp_close(M, listener) == 0);
	free(p.got);
	free(big);
}

static void vectors_keep_their_order(void)
{
	int k, id = pair(&k), i;
	char text[] = "abcdefghijklmnopqrstuvwxyz", a[3], b[30], *big = calloc(1, 1 << 20), *sink = malloc(1 << 20);
	struct iovec iov[26], in[3];
	size_t total = 0;
	ssize_t n;
	for (i = 0; i < 26; i++) {
		iov[i].iov_base = text + i;
		iov[i].iov_len = 1;
	}
	CHECK(mtcp_writev(M, id, iov, 26) == 26);
	CHECK(recv(k, b, 26, MSG_WAITALL) == 26 && memcmp(b, text, 26) == 0);
	CHECK(write(k, "0123456789", 10) == 10);
	in[0].iov_base = a;
	in[0].iov_len = 3;
	in[1].iov_base = NULL;
	in[1].iov_len = 0;
	in[2].iov_base = b;
	in[2].iov_len = sizeof b;
	CHECK(mtcp_readv(M, id, in, 3) == 10);
	CHECK(memcmp(a, "012", 3) == 0 && memcmp(b, "3456789", 7) == 0);
	/* More than a buffer holds goes whole, where the call may wait. */
	CHECK(mtcp_setsock_nonblock(M, id) == 0);
	iov[0].iov_base = big;
	iov[0].iov_len = 1 << 20;
	n = mtcp_writev(M, id, iov, 2);
	CHECK(n >= 8192 && n < 1 << 20);
	total = (size_t)n;
	FAILS(mtcp_readv(M, id, in, 3), EAGAIN);
	while (total > 0) {
		n = recv(k, sink, total, 0);
		CHECK(n > 0);
		total -= (size_t)n;
		mtcp_read(M, id, a, 1);
	}
	close(k);
	CHECK(mtcp_close(M, id) == 0);
	free(big);
	free(sink);
}

static void the_first_write_takes_a_whole_header(void)
{
	int k, id = pair(&k);
	char header[8192];
	memset(header, 'h', sizeof header);
	CHECK(mtcp_setsock_nonblock(M, id) == 0);
	CHECK(mtcp_write(M, id, header, sizeof header) == sizeof header);
	CHECK(mtcp_close(M, id) == 0);
	CHECK(recv(k, header, sizeof header, MSG_WAITALL) == sizeof header && recv(k, header, 1, 0) == 0);
	close(k);
}

/* Bytes are what fills a send buffer, in however many writes. */
static void small_writes_fill_the_buffer_by_their_bytes(void)
{
	int k, id = pair(&k), ep = mtcp_epoll_create(M, 1), size = 100000, i, n = 0, early = 0;
	socklen_t len = sizeof size;
	char c, got[4096];
	size_t total = 0;
	ssize_t m;
	CHECK(mtcp_setsock_nonblock(M, id) == 0);
	CHECK(mtcp_setsockopt(M, id, SOL_SOCKET, SO_SNDBUF, &size, len) == 0);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_SNDBUF, &size, &len) == 0 && size == 200000);
	watch(ep, MTCP_EPOLL_CTL_ADD, id, MTCP_EPOLLOUT);
	while (n < 1 << 24) {
		c = (char)(n * 31);
		if (mtcp_write(M, id, &c, 1) == 1) {
			n++;
			continue;
		}
		CHECK(errno == EAGAIN);
		if (next_event(ep, 200, NULL) != MTCP_EPOLLOUT)
			break;
		early++;
	}
	/* Refused before it was full, since the thread beside did not come: seldom, where it is not held up. */
	CHECK(n >= size && n < 1 << 24 && (early <= n / 8192 || getenv("SLOWLY")));
	watch(ep, MTCP_EPOLL_CTL_MOD, id, 0);
	/* In order, and all of it. */
	CHECK(fcntl(k, F_SETFL, O_NONBLOCK) == 0);
	while (total < (size_t)n) {
		next_event(ep, 1, NULL);
		while ((m = read(k, got, sizeof got)) > 0)
			for (i = 0; i < m; i++)
				CHECK(got[i] == (char)(total++ * 31));
	}
	CHECK(mtcp_write(M, id, &c, 1) == 1);
	close(k);
	CHECK(mtcp_close(M, id) == 0 && mtcp_close(M, ep) == 0);
}

/* A byte from the kernel's end, which is there soon. */
static int comes(int k)
{
	struct timeval t = {10, 0};
	char c;
	CHECK(setsockopt(k, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
	return recv(k, &c, 1, 0) == 1 ? c : -1;
}

static void what_was_written_leaves_without_another_call(void)
{
	int k, id = pair(&k), ep = mtcp_epoll_create(M, 1), one = 1, i, n;
	struct pollfd room = {-1, POLLOUT, 0};
	char c, buf[16384] = {0};
	ssize_t m;
	/* A socket that blocks: at once, whoever runs the stack. */
	CHECK(mtcp_write(M, id, "b", 1) == 1 && comes(k) == 'b');
	CHECK(mtcp_setsock_nonblock(M, id) == 0);
	CHECK(mtcp_setsockopt(M, id, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
	for (i = 0; i < 8; i++) {
		c = (char)('0' + i);
		CHECK(mtcp_write(M, id, &c, 1) == 1);
		if (alone) {
			/* The program's next wait. */
			pause_ms(30);
			CHECK(recv(k, &c, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
			CHECK(next_event(ep, 0, NULL) == 0);
		}
		CHECK(comes(k) == '0' + i);
		pause_ms(i * 3);
	}
	/* In pieces, for as long as one likes. */
	for (i = 0; i < 50; i++) {
		CHECK(mtcp_write(M, id, "p", 1) == 1);
		if (alone)
			CHECK(next_event(ep, 0, NULL) == 0);
		pause_ms(1);
		if (i == 25)
			CHECK(comes(k) == 'p');
	}
	while (i-- > 1)
		CHECK(comes(k) == 'p');
	/* Room that reading makes is told as well, though no read has found nothing. */
	room.fd = k;
	n = 8192;
	CHECK(setsockopt(k, SOL_SOCKET, SO_SNDBUF, &n, sizeof n) == 0);
	CHECK(fcntl(k, F_SETFL, O_NONBLOCK) == 0);
	for (i = 0; !alone && i < 3; i++) {
		while (write(k, buf, sizeof buf) > 0 || poll(&room, 1, 100) == 1)
			;
		CHECK(mtcp_socket_ioctl(M, id, FIONREAD, &n) == 0 && n > 0);
		for (; n > 0; n -= (int)m)
			CHECK((m = mtcp_read(M, id, buf, n < (int)sizeof buf ? (size_t)n : sizeof buf)) > 0);
		CHECK(poll(&room, 1, 10000) == 1);
	}
	close(k);
	CHECK(mtcp_close(M, id) == 0 && mtcp_close(M, ep) == 0);
}

static void events_come_one_by_one(void)
{
	int ep = mtcp_epoll_create(M, 64), other = mtcp_epoll_create1(M, O_CLOEXEC), k, id = pair(&k), got = -1;
	char c;
	CHECK(ep >= 0 && other >= 0);
	CHECK(mtcp_setsock_nonblock(M, id) == 0);
	watch(ep, MTCP_EPOLL_CTL_ADD, id, MTCP_EPOLLIN | MTCP_EPOLLOUT);
	watch(other, MTCP_EPOLL_CTL_ADD, id, (uint32_t)(MTCP_EPOLLIN | MTCP_EPOLLET));
	CHECK(next_event(ep, 1000, &got) == MTCP_EPOLLOUT && got == id);
	CHECK(write(k, "x", 1) == 1);
	CHECK(next_event(other, 1000, &got) == MTCP_EPOLLIN && got == id);
	CHECK(next_event(other, 10, NULL) == 0);
	CHECK(next_event(ep, 0, NULL) == MTCP_EPOLLIN);
	CHECK(next_event(ep, 0, NULL) == MTCP_EPOLLOUT);
	CHECK(next_event(ep, 0, NULL) == MTCP_EPOLLIN);
	/* Level: until it is read, without a call on the socket in between. */
	watch(ep, MTCP_EPOLL_CTL_MOD, id, MTCP_EPOLLIN);
	CHECK(next_event(ep, 0, NULL) == MTCP_EPOLLIN && next_event(ep, 0, NULL) == MTCP_EPOLLIN);
	CHECK(mtcp_read(M, id, &c, 1) == 1 && next_event(ep, 10, NULL) == 0);
	/* One-shot: once, until it is armed again. */
	watch(ep, MTCP_EPOLL_CTL_MOD, id, MTCP_EPOLLIN | MTCP_EPOLLONESHOT);
	CHECK(write(k, "yz", 2) == 2);
	CHECK(next_event(ep, 1000, NULL) == MTCP_EPOLLIN && next_event(ep, 10, NULL) == 0);
	watch(ep, MTCP_EPOLL_CTL_MOD, id, MTCP_EPOLLIN | MTCP_EPOLLRDHUP);
	CHECK(next_event(ep, 1000, NULL) == MTCP_EPOLLIN);
	/* The end of the stream: RDHUP to who asked, HUP to nobody. */
	close(k);
	watch(other, MTCP_EPOLL_CTL_MOD, id, MTCP_EPOLLIN);
	while (mtcp_read(M, id, &c, 1) == 1)
		;
	pause_ms(20);
	CHECK(next_event(other, 1000, NULL) == MTCP_EPOLLIN && next_event(other, 0, NULL) == MTCP_EPOLLIN);
	CHECK((next_event(ep, 0, NULL) | next_event(ep, 0, NULL)) == (MTCP_EPOLLIN | MTCP_EPOLLRDHUP));
	CHECK(mtcp_close(M, other) == 0);
	CHECK(mtcp_epoll_ctl(M, ep, MTCP_EPOLL_CTL_DEL, id, NULL) == 0);
	FAILS(mtcp_epoll_ctl(M, ep, MTCP_EPOLL_CTL_DEL, id, NULL), ENOENT);
	CHECK(mtcp_close(M, id) == 0 && mtcp_close(M, ep) == 0);
}

static void connecting_without_waiting(void)
{
	int ep = mtcp_epoll_create(M, 1), listener = kernel_listen(7301), id = mtcp_socket(M, AF_INET, SOCK_STREAM, 0), err = -1;
	struct sockaddr_in a = v4("10.9.0.1", 7301), none = v4("10.9.0.1", 7302);
	socklen_t len = sizeof err;
	CHECK(mtcp_setsock_nonblock(M, id) == 0);
	FAILS(mtcp_connect(M, id, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	watch(ep, MTCP_EPOLL_CTL_ADD, id, MTCP_EPOLLOUT);
	CHECK(next_event(ep, 2000, NULL) == MTCP_EPOLLOUT);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err == 0 && len == sizeof err);
	CHECK(mtcp_close(M, id) == 0);
	/* Nobody listens: an error alone, and SO_ERROR says which. */
	id = mtcp_socket(M, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	FAILS(mtcp_connect(M, id, (struct sockaddr *)&none, sizeof none), EINPROGRESS);
	watch(ep, MTCP_EPOLL_CTL_ADD, id, MTCP_EPOLLIN | MTCP_EPOLLOUT);
	CHECK(next_event(ep, 2000, NULL) == MTCP_EPOLLERR);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err == ECONNREFUSED);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err == 0);
	CHECK(mtcp_close(M, id) == 0);
	/* The same, waiting; then the socket can be used again. */
	id = mtcp_socket(M, AF_INET, SOCK_STREAM, 0);
	FAILS(mtcp_connect(M, id, (struct sockaddr *)&none, sizeof none), ECONNREFUSED);
	CHECK(mtcp_connect(M, id, (struct sockaddr *)&a, sizeof a) == 0);
	FAILS(mtcp_connect(M, id, (struct sockaddr *)&a, sizeof a), EISCONN);
	CHECK(mtcp_abort(M, id) == 0);
	FAILS(mtcp_abort(M, id), EBADF);
	CHECK(mtcp_close(M, ep) == 0);
	close(listener);
}

static void *write_later(void *arg)
{
	pause_ms(50);
	CHECK(write(*(int *)arg, "z", 1) == 1);
	return NULL;
}

static void asking_is_enough(void)
{
	int listener = kernel_listen(7300), id = mtcp_socket(M, AF_INET, SOCK_STREAM, 0), fd, n, tries, off = 0;
	struct sockaddr_in a = v4("10.9.0.1", 7300);
	struct timeval forever = { INT64_MAX, 0 };
	pthread_t later;
	char c = 0;
	CHECK(id >= 0 && mtcp_setsock_nonblock(M, id) == 0);
	for (tries = 0; mtcp_connect(M, id, (struct sockaddr *)&a, sizeof a) < 0 && errno != EISCONN; tries++) {
		CHECK((errno == EINPROGRESS || errno == EALREADY) && tries < 10000);
		pause_ms(1);
	}
	fd = accept(listener, NULL, NULL);
	CHECK(fd >= 0 && mtcp_read(M, id, &c, 0) == 0);
	CHECK(mtcp_write(M, id, "x", 1) == 1);
	for (tries = 0; mtcp_socket_ioctl(M, id, SIOCOUTQ, &n) == 0 && n > 0; tries++) {
		CHECK(tries < 10000);
		pause_ms(1);
	}
	CHECK(read(fd, &c, 1) == 1 && c == 'x' && write(fd, "y", 1) == 1);
	for (tries = 0; mtcp_socket_ioctl(M, id, FIONREAD, &n) == 0 && n < 1; tries++) {
		CHECK(tries < 10000);
		pause_ms(1);
	}
	CHECK(mtcp_read(M, id, &c, 1) == 1 && c == 'y');
	/* Nothing is there: who waits does so without end, who asks for nothing does not wait. */
	CHECK(mtcp_setsockopt(M, id, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever) == 0);
	CHECK(mtcp_socket_ioctl(M, id, FIONBIO, &off) == 0 && mtcp_read(M, id, &c, 0) == 0);
	CHECK(pthread_create(&later, NULL, write_later, &fd) == 0);
	CHECK(mtcp_read(M, id, &c, 1) == 1 && c == 'z');
	pthread_join(later, NULL);
	CHECK(mtcp_close(M, id) == 0);
	close(fd);
	close(listener);
}

static void a_reset_is_told_by_the_read_and_by_so_error(void)
{
	struct peer p = {7401, 0, 1, 0, NULL, 0};
	int listener = open_listener(7401), id, err = -1;
	socklen_t len = sizeof err;
	char c;
	pthread_t t;
	pthread_create(&t, NULL, client, &p);
	id = mtcp_accept(M, listener, NULL, NULL);
	CHECK(id >= 0);
	FAILS(mtcp_read(M, id, &c, 1), ECONNRESET);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err == ECONNRESET);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err == 0);
	CHECK(mtcp_read(M, id, &c, 1) == 0);
	FAILS(mtcp_write(M, id, &c, 1), EPIPE);
	FAILS(mtcp_getpeername(M, id, (struct sockaddr *)&(struct sockaddr_in){0}, &(socklen_t){16}), ENOTCONN);
	CHECK(mtcp_close(M, id) == 0 && mtcp_close(M, listener) == 0);
	pthread_join(t, NULL);
}

/* Programs for mTCP give up where an event is an error, which a reset was not there: it was the end of the stream. */
static void a_peer_that_resets_is_one_that_left(void)
{
	static const struct {
		uint32_t asked, told;
	} each[] = {
		{MTCP_EPOLLIN | MTCP_EPOLLOUT, MTCP_EPOLLIN},
		{MTCP_EPOLLIN | MTCP_EPOLLHUP | MTCP_EPOLLRDHUP, MTCP_EPOLLIN},
		{MTCP_EPOLLOUT | MTCP_EPOLLRDHUP, MTCP_EPOLLRDHUP},
		{MTCP_EPOLLOUT, MTCP_EPOLLERR},
	};
	struct linger l = {1, 0};
	int ep = mtcp_epoll_create(M, 1), k, id, err;
	socklen_t len = sizeof err;
	size_t i;
	char c;
	for (i = 0; i < sizeof each / sizeof *each; i++) {
		id = pair(&k);
		CHECK(mtcp_setsock_nonblock(M, id) == 0);
		watch(ep, MTCP_EPOLL_CTL_ADD, id, each[i].asked);
		CHECK(next_event(ep, 0, NULL) == (each[i].asked & MTCP_EPOLLOUT));
		CHECK(setsockopt(k, SOL_SOCKET, SO_LINGER, &l, sizeof l) == 0 && close(k) == 0);
		pause_ms(50);
		CHECK((next_event(ep, 0, NULL) & each[i].told) != 0);
		FAILS(mtcp_read(M, id, &c, 1), ECONNRESET);
		CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err == ECONNRESET);
		CHECK(mtcp_close(M, id) == 0);
	}
	CHECK(mtcp_close(M, ep) == 0);
}

/* A program that closes at RDHUP has read the last request by then. */
static void the_end_of_a_stream_comes_after_its_bytes(void)
{
	int ep = mtcp_epoll_create(M, 1), k, id = pair(&k);
	char c;
	CHECK(mtcp_setsock_nonblock(M, id) == 0);
	watch(ep, MTCP_EPOLL_CTL_ADD, id, MTCP_EPOLLIN | MTCP_EPOLLRDHUP);
	CHECK(write(k, "x", 1) == 1);
	CHECK(next_event(ep, 2000, NULL) == MTCP_EPOLLIN && mtcp_read(M, id, &c, 1) == 1);
	CHECK(write(k, "y", 1) == 1 && shutdown(k, SHUT_WR) == 0);
	pause_ms(50);
	CHECK(next_event(ep, 0, NULL) == MTCP_EPOLLIN && next_event(ep, 0, NULL) == MTCP_EPOLLIN);
	CHECK(mtcp_read(M, id, &c, 1) == 1 && c == 'y');
	CHECK((next_event(ep, 0, NULL) | next_event(ep, 0, NULL)) == (MTCP_EPOLLIN | MTCP_EPOLLRDHUP));
	CHECK(mtcp_close(M, id) == 0 && mtcp_close(M, ep) == 0);
	close(k);
}

/* Reads never block in mTCP: a program that waits for its listener's event may leave it at that. */
static void what_is_accepted_blocks_as_its_listener_does(void)
{
	int listener = open_listener(7403), k, id;
	char c;
	CHECK(mtcp_setsock_nonblock(M, listener) == 0);
	FAILS(mtcp_accept(M, listener, NULL, NULL), EAGAIN);
	k = kernel_connect(7403);
	pause_ms(20);
	id = mtcp_accept(M, listener, NULL, NULL);
	CHECK(id >= 0);
	FAILS(mtcp_read(M, id, &c, 1), EAGAIN);
	CHECK(mtcp_close(M, id) == 0 && close(k) == 0 && mtcp_close(M, listener) == 0);
}

/* mTCP does not look at it, and some programs leave it unset or out. */
static void accept_needs_no_length(void)
{
	int listener = open_listener(7402), k, id;
	struct sockaddr_in from;
	socklen_t unset = (socklen_t)-7;
	memset(&from, 0xee, sizeof from);
	k = kernel_connect(7402);
	id = mtcp_accept(M, listener, (struct sockaddr *)&from, NULL);
	CHECK(id >= 0 && from.sin_family == 0xeeee);
	CHECK(mtcp_close(M, id) == 0 && close(k) == 0);
	k = kernel_connect(7402);
	id = mtcp_accept(M, listener, (struct sockaddr *)&from, &unset);
	CHECK(id >= 0 && unset == sizeof from && from.sin_addr.s_addr == inet_addr("10.9.0.1"));
	CHECK(mtcp_close(M, id) == 0 && close(k) == 0 && mtcp_close(M, listener) == 0);
}

static void half_closed_still_reads(void)
{
	int k, id = pair(&k);
	char buf[8];
	CHECK(mtcp_write(M, id, "bye", 3) == 3 && mtcp_shutdown(M, id, SHUT_WR) == 0);
	CHECK(recv(k, buf, 3, MSG_WAITALL) == 3 && recv(k, buf, 1, 0) == 0);
	CHECK(write(k, "answer", 6) == 6);
	CHECK(mtcp_recv(M, id, buf, 6, MSG_WAITALL) == 6 && memcmp(buf, "answer", 6) == 0);
	FAILS(mtcp_write(M, id, "x", 1), EPIPE);
	FAILS(mtcp_shutdown(M, id, 9), EINVAL);
	close(k);
	CHECK(mtcp_close(M, id) == 0);
}

static void peeking_and_not_waiting(void)
{
	int k, id = pair(&k), n = -1;
	char buf[8] = {0};
	FAILS(mtcp_recv(M, id, buf, 8, MSG_DONTWAIT), EAGAIN);
	CHECK(write(k, "hello", 5) == 5);
	CHECK(mtcp_recv(M, id, buf, 8, MSG_PEEK) == 5 && memcmp(buf, "hello", 5) == 0);
	CHECK(mtcp_socket_ioctl(M, id, FIONREAD, &n) == 0 && n == 5);
	CHECK(mtcp_read(M, id, buf, 2) == 2 && mtcp_socket_ioctl(M, id, FIONREAD, &n) == 0 && n == 3);
	n = 1;
	CHECK(mtcp_socket_ioctl(M, id, FIONBIO, &n) == 0);
	CHECK(mtcp_read(M, id, buf, 8) == 3);
	FAILS(mtcp_read(M, id, buf, 8), EAGAIN);
	FAILS(mtcp_socket_ioctl(M, id, FIONREAD, NULL), EFAULT);
	FAILS(mtcp_socket_ioctl(M, id, 12345, &n), EINVAL);
	close(k);
	CHECK(mtcp_close(M, id) == 0);
}

static void lent_bytes_stay_until_they_are_given_back(void)
{
	int k, id = pair(&k), i;
	struct iovec iov[8];
	char sent[9000], got[9000];
	size_t n = 0, lent;
	ssize_t m;
	for (i = 0; i < 9000; i++)
		sent[i] = (char)(i * 7);
	CHECK(write(k, sent, 9000) == 9000);
	close(k);
	while ((m = mtcp_recv_zc(M, id, iov, 8)) > 0) {
		for (i = 0, lent = 0; i < 8; lent += iov[i++].iov_len)
			memcpy(got + n + lent, iov[i].iov_base ? iov[i].iov_base : got, iov[i].iov_len);
		CHECK(lent == (size_t)m);
		FAILS(mtcp_recv_done(M, id, 10000), EINVAL);
		/* Not all at once. */
		lent = lent > 1 ? lent - lent / 3 : 1;
		CHECK(mtcp_recv_done(M, id, lent) == 0);
		n += lent;
	}
	CHECK(m == 0 && n == 9000 && memcmp(sent, got, 9000) == 0);
	FAILS(mtcp_recv_zc(M, id, NULL, 8), EFAULT);
	FAILS(mtcp_recv_zc(M, id, iov, 0), EINVAL);
	CHECK(mtcp_close(M, id) == 0);
}

static void a_file_is_sent(void)
{
	int k, id = pair(&k), fd = open("/tmp", O_TMPFILE | O_RDWR, 0600), pipe_fds[2];
	char *data = malloc(200000), *got = malloc(200000);
	off_t at = 1000;
	int i;
	CHECK(fd >= 0);
	for (i = 0; i < 200000; i++)
		data[i] = (char)(i ^ (i >> 8));
	CHECK(write(fd, data, 200000) == 200000);
	CHECK(mtcp_sendfile(M, id, fd, &at, 100000) == 100000 && at == 101000);
	CHECK(recv(k, got, 100000, MSG_WAITALL) == 100000 && memcmp(got, data + 1000, 100000) == 0);
	CHECK(lseek(fd, 199990, SEEK_SET) == 199990);
	CHECK(mtcp_sendfile(M, id, fd, NULL, 100000) == 10 && lseek(fd, 0, SEEK_CUR) == 200000);
	CHECK(recv(k, got, 10, MSG_WAITALL) == 10 && memcmp(got, data + 199990, 10) == 0);
	CHECK(mtcp_sendfile(M, id, fd, NULL, 100000) == 0);
	at = -1;
	FAILS(mtcp_sendfile(M, id, fd, &at, 1), EINVAL);
	FAILS(mtcp_sendfile(M, id, -1, NULL, 1), EBADF);
	CHECK(pipe(pipe_fds) == 0);
	FAILS(mtcp_sendfile(M, id, pipe_fds[0], NULL, 1), EINVAL);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	close(fd);
	close(k);
	CHECK(mtcp_close(M, id) == 0);
	free(data);
	free(got);
}

static void pipes_are_in_the_same_epolls(void)
{
	int ep = mtcp_epoll_create(M, 4), ends[2], got = -1;
	char buf[16];
	CHECK(mtcp_pipe(M, ends) == 0);
	watch(ep, MTCP_EPOLL_CTL_ADD, ends[0], MTCP_EPOLLIN);
	CHECK(next_event(ep, 0, NULL) == 0);
	CHECK(mtcp_write(M, ends[1], "through", 7) == 7);
	CHECK(next_event(ep, 0, &got) == MTCP_EPOLLIN && got == ends[0]);
	CHECK(mtcp_read(M, ends[0], buf, sizeof buf) == 7 && memcmp(buf, "through", 7) == 0);
	FAILS(mtcp_recv(M, ends[0], buf, 1, MSG_DONTWAIT), EAGAIN);
	FAILS(mtcp_read(M, ends[1], buf, 1), EBADF);
	FAILS(mtcp_bind(M, ends[0], (struct sockaddr *)buf, 16), ENOTSOCK);
	FAILS(mtcp_getsockopt(M, ends[0], SOL_SOCKET, SO_ERROR, buf, &(socklen_t){4}), ENOTSOCK);
	CHECK(mtcp_close(M, ends[1]) == 0);
	CHECK(next_event(ep, 0, NULL) == MTCP_EPOLLIN && mtcp_read(M, ends[0], buf, 1) == 0);
	CHECK(mtcp_close(M, ends[0]) == 0 && mtcp_close(M, ep) == 0);
	CHECK(mtcp_pipe(M, ends) == 0 && mtcp_close(M, ends[0]) == 0);
	FAILS(mtcp_write(M, ends[1], "x", 1), EPIPE);
	CHECK(mtcp_close(M, ends[1]) == 0);
	FAILS(mtcp_pipe(M, NULL), EFAULT);
}

static void options_are_real(void)
{
	int k, id = pair(&k), n, got;
	struct linger l = {1, 3}, lgot;
	struct timeval t = {1, 500000}, tgot;
	struct tcp_info info;
	char cc[16];
	socklen_t len;
	size_t i;
	static const struct {
		int level, name, value;
	} all[] = {
		{SOL_SOCKET, SO_REUSEADDR, 1},       {SOL_SOCKET, SO_REUSEPORT, 1},    {SOL_SOCKET, SO_KEEPALIVE, 1},
		{SOL_SOCKET, SO_RCVLOWAT, 1},        {IPPROTO_TCP, TCP_NODELAY, 1},    {IPPROTO_TCP, TCP_CORK, 0},
		{IPPROTO_TCP, TCP_KEEPIDLE, 77},     {IPPROTO_TCP, TCP_KEEPINTVL, 5},  {IPPROTO_TCP, TCP_KEEPCNT, 4},
		{IPPROTO_TCP, TCP_USER_TIMEOUT, 9000}, {IPPROTO_TCP, TCP_DEFER_ACCEPT, 1}, {IPPROTO_TCP, TCP_SYNCNT, 3},
		{IPPROTO_TCP, TCP_LINGER2, 9},       {IPPROTO_IP, IP_TOS, 0x10},       {IPPROTO_IP, IP_TTL, 33},
	};
	for (i = 0; i < sizeof all / sizeof *all; i++) {
		n = all[i].value;
		CHECK(mtcp_setsockopt(M, id, all[i].level, all[i].name, &n, sizeof n) == 0);
		got = -1;
		len = sizeof got;
		CHECK(mtcp_getsockopt(M, id, all[i].level, all[i].name, &got, &len) == 0 && len == sizeof got && got == n);
	}
	n = 50000;
	len = sizeof got;
	CHECK(mtcp_setsockopt(M, id, SOL_SOCKET, SO_SNDBUF, &n, sizeof n) == 0);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_SNDBUF, &got, &len) == 0 && got == 100000);
	CHECK(mtcp_setsockopt(M, id, SOL_SOCKET, SO_RCVBUF, &n, sizeof n) == 0);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_RCVBUF, &got, &len) == 0 && got == 100000);
	len = sizeof lgot;
	CHECK(mtcp_setsockopt(M, id, SOL_SOCKET, SO_LINGER, &l, sizeof l) == 0);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_LINGER, &lgot, &len) == 0 && lgot.l_onoff == 1 && lgot.l_linger == 3);
	len = sizeof tgot;
	CHECK(mtcp_setsockopt(M, id, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t) == 0);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_SNDTIMEO, &tgot, &len) == 0 && tgot.tv_sec == 1 && tgot.tv_usec == 500000);
	CHECK(mtcp_setsockopt(M, id, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0);
	len = sizeof cc;
	CHECK(mtcp_getsockopt(M, id, IPPROTO_TCP, TCP_CONGESTION, cc, &len) == 0 && strcmp(cc, "reno") == 0);
	FAILS(mtcp_setsockopt(M, id, IPPROTO_TCP, TCP_CONGESTION, "vegas", 5), ENOENT);
	len = sizeof info;
	CHECK(mtcp_getsockopt(M, id, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && len == sizeof info);
	CHECK(info.tcpi_state == TCP_ESTABLISHED && info.tcpi_snd_mss >= 536);
	len = sizeof got;
	CHECK(mtcp_getsockopt(M, id, IPPROTO_TCP, TCP_MAXSEG, &got, &len) == 0 && got == (int)info.tcpi_snd_mss);
	CHECK(mtcp_getsockopt(M, id, SOL_SOCKET, SO_TYPE, &got, &len) == 0 && got == SOCK_STREAM);
	/* A receive timeout ends a wait. */
	t.tv_sec = 0;
	t.tv_usec = 20000;
	CHECK(mtcp_setsockopt(M, id, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
	FAILS(mtcp_read(M, id, cc, 1), EAGAIN);
	n = 5;
	FAILS(mtcp_setsockopt(M, id, IPPROTO_TCP, TCP_FASTOPEN, &n, sizeof n), EINVAL);
	FAILS(mtcp_setsockopt(M, id, SOL_SOCKET, 12345, &n, sizeof n), ENOPROTOOPT);
	FAILS(mtcp_getsockopt(M, id, 12345, 1, &n, &len), EOPNOTSUPP);
	FAILS(mtcp_setsockopt(M, id, SOL_SOCKET, SO_REUSEADDR, &n, 1), EINVAL);
	FAILS(mtcp_setsockopt(M, id, SOL_SOCKET, SO_REUSEADDR, NULL, 4), EFAULT);
	FAILS(mtcp_setsockopt(M, id, SOL_SOCKET, SO_REUSEADDR, &n, (socklen_t)-4), EINVAL);
	FAILS(mtcp_getsockopt(M, id, SOL_SOCKET, SO_ERROR, NULL, &len), EFAULT);
	FAILS(mtcp_getsockopt(M, id, SOL_SOCKET, SO_ERROR, &n, NULL), EFAULT);
	CHECK(mtcp_abort(M, id) == 0);
	close(k);
}

static void ipv6_beside_ipv4(void)
{
	int listener = kernel_listen(7501), id = mtcp_socket(M, AF_INET6, SOCK_STREAM, 0), k;
	struct sockaddr_in6 a = v6("fd09::1", 7501), at, any = v6("::", 7502), peer;
	struct sockaddr_in small;
	socklen_t len = sizeof at;
	CHECK(mtcp_connect(M, id, (struct sockaddr *)&a, sizeof a) == 0);
	k = accept(listener, NULL, NULL);
	CHECK(mtcp_write(M, id, "six", 3) == 3);
	CHECK(recv(k, &at, 3, MSG_WAITALL) == 3 && memcmp(&at, "six", 3) == 0);
	CHECK(mtcp_getpeername(M, id, (struct sockaddr *)&at, &len) == 0 && len == sizeof at);
	CHECK(at.sin6_family == AF_INET6 && memcmp(&at.sin6_addr, &a.sin6_addr, 16) == 0 && at.sin6_port == htons(7501));
	CHECK(mtcp_close(M, id) == 0);
	close(k);
	close(listener);
	/* One listener takes both; IPv4 peers are mapped. What does not fit is cut, and its length told. */
	id = mtcp_socket(M, AF_INET6, SOCK_STREAM, 0);
	CHECK(mtcp_bind(M, id, (struct sockaddr *)&any, sizeof any) == 0 && mtcp_listen(M, id, 4) == 0);
	{
		struct peer p = {7502, 0, 0, 0, NULL, 0};
		pthread_t t;
		pthread_create(&t, NULL, client, &p);
		len = sizeof peer;
		k = mtcp_accept(M, id, (struct sockaddr *)&peer, &len);
		CHECK(k >= 0 && len == sizeof peer && IN6_IS_ADDR_V4MAPPED(&peer.sin6_addr));
		len = sizeof small;
		CHECK(mtcp_getpeername(M, k, (struct sockaddr *)&small, &len) == 0 && len == sizeof peer);
		CHECK(mtcp_close(M, k) == 0);
		pthread_join(t, NULL);
		free(p.got);
	}
	CHECK(mtcp_close(M, id) == 0);
}

static void connections_leave_from_the_addresses_asked_for(void)
{
	int listener = kernel_listen(7601), i, id[4], k;
	struct sockaddr_in a = v4("10.9.0.1", 7601);
	CHECK(mtcp_init_rss(M, inet_addr("10.9.0.2"), 2, a.sin_addr.s_addr, a.sin_port) == 0);
	for (i = 0; i < 4; i++) {
		struct sockaddr_in6 from;
		socklen_t len = sizeof from;
		id[i] = mtcp_socket(M, AF_INET, SOCK_STREAM, 0);
		CHECK(mtcp_connect(M, id[i], (struct sockaddr *)&a, sizeof a) == 0);
		k = accept(listener, (struct sockaddr *)&from, &len);
		CHECK(k >= 0 && from.sin6_addr.s6_addr[15] == 2 + i % 2);
		close(k);
		CHECK(mtcp_close(M, id[i]) == 0);
	}
	FAILS(mtcp_init_rss(M, INADDR_ANY, 0, 0, 0), EINVAL);
	CHECK(mtcp_init_rss(M, INADDR_ANY, 1, 0, 0) == 0);
	close(listener);
}

static void a_closed_listener_is_gone(void)
{
	struct sockaddr_in a = v4("10.9.0.2", 7701);
	int listener = open_listener(7701), again, fd = socket(AF_INET, SOCK_STREAM, 0), queue = 5;
	socklen_t len = sizeof queue;
	again = mtcp_socket(M, AF_INET, SOCK_STREAM, 0);
	CHECK(mtcp_bind(M, again, (struct sockaddr *)&a, sizeof a) == 0);
	FAILS(mtcp_bind(M, again, (struct sockaddr *)&a, sizeof a), EINVAL);
	FAILS(mtcp_listen(M, again, 4), EADDRINUSE);
	CHECK(mtcp_setsockopt(M, listener, IPPROTO_TCP, TCP_FASTOPEN, &queue, len) == 0);
	queue = 0;
	CHECK(mtcp_getsockopt(M, listener, IPPROTO_TCP, TCP_FASTOPEN, &queue, &len) == 0 && queue == 5);
	CHECK(mtcp_getsockopt(M, listener, SOL_SOCKET, SO_ACCEPTCONN, &queue, &len) == 0 && queue == 1);
	CHECK(mtcp_close(M, again) == 0 && mtcp_close(M, listener) == 0);
	pause_ms(20);
	CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == -1 && errno == ECONNREFUSED);
	close(fd);
	CHECK(mtcp_close(M, open_listener(7701)) == 0);
}

/* ---- signals -------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t handled;
static int reentered;

static void note(int signal)
{
	handled = signal;
	if (reentered == 0) {
		/* A call inside a call is refused. */
		reentered = mtcp_socket(M, AF_INET, SOCK_STREAM, 0) == -1 ? errno : -1;
	}
}

static pthread_t waiting;
static int waited;

static void *signal_soon(void *arg)
{
	int sig = *(int *)arg;
	/* A handler of the program's own ends a sleep. Where the thread is kept from it for so long, it goes unnoticed, and comes again. */
	do {
		pause_ms(60);
		pthread_kill(waiting, sig);
	} while (sig == SIGUSR2 && !__atomic_load_n(&waited, __ATOMIC_SEQ_CST));
	return NULL;
}

static void signals_end_waits(void)
{
	int k, id = pair(&k), ep = mtcp_epoll_create(M, 1), listener = open_listener(7801), round, sig;
	struct mtcp_epoll_event e;
	struct sigaction sa;
	pthread_t t;
	char c;
	waiting = pthread_self();
	CHECK(mtcp_register_signal(SIGUSR1, note) == SIG_DFL);
	CHECK(mtcp_register_signal(SIGUSR1, note) == note);
	CHECK(mtcp_register_signal(SIGKILL, note) == SIG_ERR);
	CHECK_ERRNO(EINVAL);
	memset(&sa, 0, sizeof sa);
	sa.sa_handler = note;
	CHECK(sigaction(SIGUSR2, &sa, NULL) == 0);
	for (round = 0; round < 6; round++) {
		sig = round % 2 ? SIGUSR2 : SIGUSR1;
		handled = 0;
		__atomic_store_n(&waited, 0, __ATOMIC_SEQ_CST);
		pthread_create(&t, NULL, signal_soon, &sig);
		if (round < 2)
			FAILS(mtcp_read(M, id, &c, 1), EINTR);
		else if (round < 4)
			FAILS(mtcp_accept(M, listener, NULL, NULL), EINTR);
		else
			FAILS(mtcp_epoll_wait(M, ep, &e, 1, -1), EINTR);
		__atomic_store_n(&waited, 1, __ATOMIC_SEQ_CST);
		CHECK(handled == sig);
		pthread_join(t, NULL);
	}
	CHECK(reentered == EBUSY);
	/* One that comes between two waits is pending for the next, once, and for one that need not wait longer still. */
	handled = 0;
	raise(SIGUSR1);
	raise(SIGUSR1);
	CHECK(handled == SIGUSR1 && mtcp_epoll_wait(M, ep, &e, 1, 0) == 0);
	FAILS(mtcp_epoll_wait(M, ep, &e, 1, -1), EINTR);
	CHECK(mtcp_epoll_wait(M, ep, &e, 1, 10) == 0);
	CHECK(write(k, "st", 2) == 2 && mtcp_read(M, id, &c, 1) == 1 && c == 's');
	raise(SIGUSR1);
	CHECK(mtcp_read(M, id, &c, 1) == 1 && c == 't');
	FAILS(mtcp_read(M, id, &c, 1), EINTR);
	/* One of the program's own is its own to remember. */
	raise(SIGUSR2);
	CHECK(mtcp_epoll_wait(M, ep, &e, 1, 10) == 0);
	CHECK(mtcp_close(M, id) == 0 && mtcp_close(M, ep) == 0 && mtcp_close(M, listener) == 0);
	close(k);
}

/* ---- bad input ------------------------------------------------------------------------------------------------------ */

static void *foreign(void *arg)
{
	char c;
	int id = *(int *)arg;
	FAILS(mtcp_read(M, id, &c, 1), EPERM);
	FAILS(mtcp_close(M, id), EPERM);
	FAILS(mtcp_socket(M, AF_INET, SOCK_STREAM, 0), EPERM);
	errno = 0;
	mtcp_destroy_context(M);
	CHECK_ERRNO(EPERM);
	return NULL;
}

static void nonsense_is_refused(void)
{
	static const int no_ids[] = {-1, -2147483647 - 1, 9999, 10000, 2147483647};
	int ep = mtcp_epoll_create(M, 1), id = mtcp_socket(M, AF_INET, SOCK_STREAM, 0);
	struct mtcp_epoll_event e = {0, {NULL}};
	struct sockaddr_in a = v4("10.9.0.1", 9);
	struct iovec iov = {&a, sizeof a};
	mctx_t wrong[3];
	pthread_t t;
	char c;
	size_t i;
	for (i = 0; i < sizeof no_ids / sizeof *no_ids; i++) {
		int no = no_ids[i];
		FAILS(mtcp_bind(M, no, (struct sockaddr *)&a, sizeof a), EBADF);
		FAILS(mtcp_listen(M, no, 1), EBADF);
		FAILS(mtcp_accept(M, no, NULL, NULL), EBADF);
		FAILS(mtcp_connect(M, no, (struct sockaddr *)&a, sizeof a), EBADF);
		FAILS(mtcp_close(M, no), EBADF);
		FAILS(mtcp_abort(M, no), EBADF);
		FAILS(mtcp_shutdown(M, no, SHUT_WR), EBADF);
		FAILS(mtcp_read(M, no, &c, 1), EBADF);
		FAILS(mtcp_recv(M, no, &c, 1, 0), EBADF);
		FAILS(mtcp_write(M, no, &c, 1), EBADF);
		FAILS(mtcp_readv(M, no, &iov, 1), EBADF);
		FAILS(mtcp_writev(M, no, &iov, 1), EBADF);
		FAILS(mtcp_recv_zc(M, no, &iov, 1), EBADF);
		FAILS(mtcp_recv_done(M, no, 0), EBADF);
		FAILS(mtcp_sendfile(M, no, 0, NULL, 1), EBADF);
		FAILS(mtcp_setsock_nonblock(M, no), EBADF);
		FAILS(mtcp_socket_ioctl(M, no, FIONREAD, &c), EBADF);
		FAILS(mtcp_getsockopt(M, no, SOL_SOCKET, SO_ERROR, &c, NULL), EBADF);
		FAILS(mtcp_setsockopt(M, no, SOL_SOCKET, SO_ERROR, &c, 1), EBADF);
		FAILS(mtcp_getsockname(M, no, NULL, NULL), EBADF);
		FAILS(mtcp_getpeername(M, no, NULL, NULL), EBADF);
		FAILS(mtcp_epoll_ctl(M, no, MTCP_EPOLL_CTL_ADD, id, &e), EBADF);
		FAILS(mtcp_epoll_ctl(M, ep, MTCP_EPOLL_CTL_ADD, no, &e), EBADF);
		FAILS(mtcp_epoll_wait(M, no, &e, 1, 0), EBADF);
	}
	FAILS(mtcp_bind(M, id, NULL, sizeof a), EFAULT);
	FAILS(mtcp_bind(M, id, (struct sockaddr *)&a, 15), EINVAL);
	FAILS(mtcp_connect(M, id, NULL, sizeof a), EFAULT);
	FAILS(mtcp_connect(M, id, (struct sockaddr *)&a, 1), EINVAL);
	a.sin_family = AF_UNIX;
	FAILS(mtcp_connect(M, id, (struct sockaddr *)&a, sizeof a), EAFNOSUPPORT);
	FAILS(mtcp_accept(M, id, NULL, NULL), EINVAL);
	FAILS(mtcp_accept(M, ep, NULL, NULL), ENOTSOCK);
	FAILS(mtcp_getsockname(M, id, NULL, NULL), EFAULT);
	FAILS(mtcp_getpeername(M, id, (struct sockaddr *)&a, &(socklen_t){16}), ENOTCONN);
	FAILS(mtcp_read(M, id, &c, 1), ENOTCONN);
	FAILS(mtcp_read(M, id, NULL, 1), EFAULT);
	FAILS(mtcp_read(M, ep, &c, 1), EINVAL);
	FAILS(mtcp_write(M, id, &c, 1), EPIPE);
	FAILS(mtcp_write(M, id, NULL, 1), EFAULT);
	FAILS(mtcp_writev(M, id, &iov, -1), EINVAL);
	FAILS(mtcp_writev(M, id, &iov, 1025), EINVAL);
	FAILS(mtcp_writev(M, id, &iov, 2147483647), EINVAL);
	FAILS(mtcp_writev(M, id, NULL, 1), EFAULT);
	FAILS(mtcp_readv(M, id, &iov, 1025), EINVAL);
	FAILS(mtcp_readv(M, id, NULL, 1), EFAULT);
	iov.iov_base = NULL;
	FAILS(mtcp_readv(M, id, &iov, 1), EFAULT);
	FAILS(mtcp_writev(M, id, &iov, 1), EFAULT);
	FAILS(mtcp_socket(M, AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	FAILS(mtcp_socket(M, AF_INET, SOCK_DGRAM, 0), ESOCKTNOSUPPORT);
	FAILS(mtcp_socket(M, AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
	FAILS(mtcp_epoll_create(M, 0), EINVAL);
	FAILS(mtcp_epoll_create1(M, 1), EINVAL);
	FAILS(mtcp_epoll_ctl(M, ep, MTCP_EPOLL_CTL_ADD, id, NULL), EFAULT);
	FAILS(mtcp_epoll_ctl(M, ep, 4, id, &e), EINVAL);
	FAILS(mtcp_epoll_ctl(M, ep, MTCP_EPOLL_CTL_ADD, ep, &e), EINVAL);
	FAILS(mtcp_epoll_ctl(M, id, MTCP_EPOLL_CTL_ADD, ep, &e), EINVAL);
	FAILS(mtcp_epoll_wait(M, ep, &e, 0, 0), EINVAL);
	FAILS(mtcp_epoll_wait(M, ep, NULL, 1, 0), EFAULT);
	FAILS(mtcp_epoll_wait(M, id, &e, 1, 0), EINVAL);
	FAILS(mtcp_getconf(NULL), EFAULT);
	FAILS(mtcp_setconf(NULL), EFAULT);
	FAILS(mtcp_core_affinitize(-1), EINVAL);
	FAILS(mtcp_core_affinitize(1 << 20), EINVAL);
	wrong[0] = NULL;
	wrong[1] = (mctx_t)(void *)&e;
	wrong[2] = (mctx_t)(uintptr_t)0xdeadbeef;
	for (i = 0; i < 3; i++) {
		FAILS(mtcp_socket(wrong[i], AF_INET, SOCK_STREAM, 0), EINVAL);
		FAILS(mtcp_epoll_wait(wrong[i], ep, &e, 1, 0), EINVAL);
		FAILS(mtcp_close(wrong[i], id), EINVAL);
		errno = 0;
		mtcp_destroy_context(wrong[i]);
		CHECK_ERRNO(EINVAL);
	}
	pthread_create(&t, NULL, foreign, &id);
	pthread_join(t, NULL);
	CHECK(mtcp_close(M, id) == 0 && mtcp_close(M, ep) == 0);
	FAILS(mtcp_close(M, id), EBADF);
	errno = 0;
	CHECK(mtcp_create_context(-1) == NULL);
	CHECK_ERRNO(EINVAL);
	CHECK(mtcp_create_context(1 << 20) == NULL);
	CHECK_ERRNO(EINVAL);
	FAILS(mtcp_init("/nonexistent.conf"), EBUSY);
}

static void ids_are_few_and_small(void)
{
	struct mtcp_conf conf;
	int *ids, i, n, extra;
	CHECK(mtcp_getconf(&conf) == 0 && conf.max_concurrency == 300);
	n = conf.max_concurrency;
	ids = calloc((size_t)n, sizeof *ids);
	for (i = 0; i < n; i++) {
		ids[i] = mtcp_socket(M, AF_INET, SOCK_STREAM, 0);
		CHECK(ids[i] >= 0 && ids[i] < n);
	}
	FAILS(mtcp_socket(M, AF_INET, SOCK_STREAM, 0), EMFILE);
	FAILS(mtcp_epoll_create(M, 1), EMFILE);
	CHECK(mtcp_close(M, ids[7]) == 0);
	FAILS(mtcp_pipe(M, ids), EMFILE);
	extra = mtcp_socket(M, AF_INET, SOCK_STREAM, 0);
	CHECK(extra == ids[7]);
	for (i = 0; i < n; i++)
		CHECK(mtcp_close(M, ids[i]) == 0);
	free(ids);
}

/* ---- contexts ------------------------------------------------------------------------------------------------------- */

static void *second_context(void *arg)
{
	/* Another thread has a context of its own, whatever core it names, and its ids are its own. */
	mctx_t mine = mtcp_create_context(0);
	int id;
	CHECK(mine != NULL && mine != M);
	CHECK(mtcp_core_affinitize(sched_getcpu()) == 0);
	id = mtcp_socket(mine, AF_INET, SOCK_STREAM, 0);
	CHECK(id == 0);
	FAILS(mtcp_socket(M, AF_INET, SOCK_STREAM, 0), EPERM);
	*(mctx_t *)arg = mine;
	/* It ends with the thread. */
	return NULL;
}

static void contexts_come_and_go(void)
{
	mctx_t theirs = NULL, other;
	pthread_t t;
	int round, k, id;
	for (round = 0; !alone && round < 3; round++) {
		pthread_create(&t, NULL, second_context, &theirs);
		pthread_join(t, NULL);
		FAILS(mtcp_socket(theirs, AF_INET, SOCK_STREAM, 0), EINVAL);
	}
	/* One thread may have both lanes. */
	other = alone ? NULL : mtcp_create_context(0);
	CHECK(alone || (other != NULL && other != M));
	errno = 0;
	CHECK(mtcp_create_context(0) == NULL);
	CHECK_ERRNO(EBUSY);
	CHECK(alone || mtcp_socket(other, AF_INET, SOCK_STREAM, 0) == 0);
	mtcp_destroy_context(other);
	FAILS(mtcp_socket(other, AF_INET, SOCK_STREAM, 0), EINVAL);
	/* What was open is closed with the context. */
	id = pair(&k);
	CHECK(mtcp_write(M, id, "last", 4) == 4);
	open_listener(7901);
	mtcp_destroy_context(M);
	{
		char buf[8];
		CHECK(recv(k, buf, 4, MSG_WAITALL) == 4 && recv(k, buf, 1, 0) == 0);
	}
	close(k);
	FAILS(mtcp_close(M, id), EINVAL);
	M = mtcp_create_context(0);
	CHECK(M != NULL);
}

static void names_of_events(void)
{
	CHECK(strcmp(EventToString(MTCP_EPOLLNONE), "NONE") == 0 && strcmp(EventToString(MTCP_EPOLLIN), "IN") == 0);
	CHECK(strcmp(EventToString(MTCP_EPOLLRDHUP), "RDHUP") == 0);
	CHECK(strcmp(EventToString(MTCP_EPOLLIN | MTCP_EPOLLOUT), "UNKNOWN") == 0);
	CHECK(GetNumCPUs() >= 1);
	CHECK(sizeof(struct mtcp_epoll_event) == 16 && sizeof(struct mtcp_conf) == 7 * sizeof(int));
}

static void an_ended_inline_lane_is_taken_again(void)
{
	mctx_t first = M, second = NULL;
	int round, k, id;
	for (round = 0; round < 3; round++) {
		second = mtcp_create_context(1);
		CHECK(second != NULL && second != first);
		CHECK(mtcp_create_context(1) == NULL && errno == EBUSY);
		for (M = second; M != NULL; M = M == second ? first : NULL) {
			id = pair(&k);
			CHECK(mtcp_write(M, id, "l", 1) == 1 && comes(k) == 'l');
			close(k);
			CHECK(mtcp_close(M, id) == 0);
		}
		mtcp_destroy_context(second);
		M = first;
	}
}

/* ---- the end -------------------------------------------------------------------------------------------------------- */

struct other {
	mctx_t mctx;
	int port, waits;
};

/* It leaves by exit(3), which ends what a program has. */
static void leave_child(void)
{
#ifdef __SANITIZE_ADDRESS__
	_exit(0); /* what the parent has is no leak */
#endif
	exit(0);
}

static void a_child_does_no_harm_to_its_parent(void)
{
	int how, status, k, id = pair(&k);
	pid_t child;
	mctx_t own;
	char buf[4];
	for (how = 0; how < 5; how++) {
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			if (how == 0)
				_exit(0);
			FAILS(mtcp_write(M, id, "CHILD", 5), EPERM);
			FAILS(mtcp_read(M, id, buf, 1), EPERM);
			FAILS(mtcp_close(M, id), EPERM);
			FAILS(mtcp_socket(M, AF_INET, SOCK_STREAM, 0), EPERM);
			errno = 0;
			mtcp_destroy_context(M);
			CHECK_ERRNO(EPERM);
			if (how == 1)
				leave_child();
			mtcp_destroy();
			FAILS(mtcp_write(M, id, "CHILD", 5), EPERM);
			if (how == 2)
				leave_child();
			/* One of its own, over another interface; left to exit(3), or ended. */
			CHECK(mtcp_init("own.conf") == 0);
			own = mtcp_create_context(0);
			CHECK(own != NULL && own != M && mtcp_socket(own, AF_INET, SOCK_STREAM, 0) >= 0);
			FAILS(mtcp_write(M, id, "CHILD", 5), EPERM);
			if (how == 3)
				leave_child();
			mtcp_destroy_context(own);
			mtcp_destroy();
			leave_child();
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(mtcp_write(M, id, "go", 2) == 2 && comes(k) == 'g' && comes(k) == 'o');
		CHECK(write(k, "on", 2) == 2 && mtcp_read(M, id, buf, 2) == 2 && memcmp(buf, "on", 2) == 0);
	}
	CHECK(mtcp_close(M, id) == 0);
	CHECK(read(k, buf, 1) == 0);
	close(k);
}

static void *comes_and_goes(void *arg)
{
	while (!__atomic_load_n((int *)arg, __ATOMIC_SEQ_CST))
		mtcp_destroy_context(mtcp_create_context(1)), sched_yield();
	return NULL;
}

/* A child has no other thread to give locks back. */
static void a_child_may_come_while_contexts_do(void)
{
	int i, status, over = 0;
	struct mtcp_conf conf;
	pid_t child;
	pthread_t t;
	CHECK(pthread_create(&t, NULL, comes_and_goes, &over) == 0);
	for (i = 0; i < (getenv("SLOWLY") ? 3 : 50); i++) {
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			alarm(20);
			CHECK(mtcp_getconf(&conf) == 0 && mtcp_setconf(&conf) == 0);
			FAILS(mtcp_close(M, 0), EPERM);
			mtcp_destroy();
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	__atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
	pthread_join(t, NULL);
}

/* In fork(2), once the library's own such function has run: this one was there first. */
static int asks_in_fork;

static void ask_from_another_thread(void)
{
	pthread_t t;
	if (!asks_in_fork)
		return;
	CHECK(pthread_create(&t, NULL, foreign, &asks_in_fork) == 0 && pthread_join(t, NULL) == 0);
}

/* Whose a context is can be told at any time. */
static void strangers_are_told_so_during_a_fork(void)
{
	int status;
	pid_t child;
	asks_in_fork = 1;
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(0);
	asks_in_fork = 0;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void *waits_until_the_end(void *arg)
{
	struct other *o = arg;
	struct sockaddr_in a = v4("10.9.0.1", o->port);
	int id;
	char c;
	o->mctx = mtcp_create_context(0);
	CHECK(o->mctx != NULL);
	id = mtcp_socket(o->mctx, AF_INET, SOCK_STREAM, 0);
	CHECK(mtcp_connect(o->mctx, id, (struct sockaddr *)&a, sizeof a) == 0);
	__atomic_store_n(&o->waits, 1, __ATOMIC_SEQ_CST);
	FAILS(mtcp_read(o->mctx, id, &c, 1), ENETDOWN);
	FAILS(mtcp_write(o->mctx, id, &c, 1), EINVAL);
	FAILS(mtcp_socket(o->mctx, AF_INET, SOCK_STREAM, 0), EINVAL);
	mtcp_destroy_context(o->mctx);
	return NULL;
}

/* Whether this process has the TAP. */
static int attached(void)
{
	char path[32], at[64];
	ssize_t n;
	int fd, found = 0;
	for (fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		n = readlink(path, at, sizeof at);
		found |= n == 12 && memcmp(at, "/dev/net/tun", 12) == 0;
	}
	return found;
}

static void destroyed_with_everything_open(const char *conf)
{
	int k, id = pair(&k), listener = open_listener(7951), theirs = kernel_listen(7952), ep = mtcp_epoll_create(M, 1);
	struct other o = {NULL, 7952, 0};
	char buf[8];
	pthread_t t;
	if (!alone) {
		CHECK(pthread_create(&t, NULL, waits_until_the_end, &o) == 0);
		CHECK(accept(theirs, NULL, NULL) >= 0);
		while (!__atomic_load_n(&o.waits, __ATOMIC_SEQ_CST))
			pause_ms(1);
		pause_ms(20);
	}
	CHECK(mtcp_setsock_nonblock(M, id) == 0 && mtcp_write(M, id, "last", 4) == 4 && attached());
	mtcp_destroy();
	CHECK(recv(k, buf, 4, MSG_WAITALL) == 4 && memcmp(buf, "last", 4) == 0 && recv(k, buf, 1, 0) == 0);
	FAILS(mtcp_write(M, id, "x", 1), EINVAL);
	FAILS(mtcp_epoll_wait(M, ep, &(struct mtcp_epoll_event){0}, 1, 0), EINVAL);
	FAILS(mtcp_accept(M, listener, NULL, NULL), EINVAL);
	if (!alone)
		pthread_join(t, NULL);
	CHECK(!attached());
	errno = 0;
	mtcp_destroy_context(M);
	CHECK_ERRNO(EINVAL);
	mtcp_destroy();
	close(k);
	close(theirs);
	/* And once more. */
	CHECK(mtcp_init(conf) == 0);
	M = mtcp_create_context(0);
	CHECK(M != NULL);
	id = pair(&k);
	CHECK(mtcp_write(M, id, "z", 1) == 1 && comes(k) == 'z');
	CHECK(mtcp_close(M, id) == 0);
	close(k);
}

/* A port that has kept a close(2) of an id closes nothing of the library; larger numbers are ids to ports that define close(2). */
static void ids_are_no_descriptors(const char *open_before)
{
	int fd, k, id;
	for (fd = 0; fd < 300; fd++)
		CHECK(open_before[fd] || fcntl(fd, F_GETFD) == -1);
	CHECK(fcntl(512, F_GETFD) != -1 && fcntl(1024, F_GETFD) == -1);
	id = pair(&k);
	CHECK(mtcp_write(M, id, "x", 1) == 1 && comes(k) == 'x');
	CHECK(mtcp_close(M, id) == 0);
	close(k);
}

#define RUN(test) (printf("%s\n", #test), fflush(stdout), test())

int main(int argc, char **argv)
{
	struct mtcp_conf conf;
	char open_before[300];
	int lanes;
	lanes = argc == 3 && strcmp(argv[2], "lanes") == 0;
	alone = argc == 3 && strcmp(argv[2], "inline") == 0;
	CHECK(argc == 2 || lanes || alone);
	CHECK(pthread_atfork(ask_from_another_thread, NULL, NULL) == 0);
	errno = 0;
	CHECK(mtcp_create_context(0) == NULL);
	CHECK_ERRNO(EPERM);
	FAILS(mtcp_init(NULL), EINVAL);
	FAILS(mtcp_init("/nonexistent.conf"), ENOENT);
	CHECK(mtcp_init(argv[1]) == 0);
	/* Sizes may come after mtcp_init. */
	CHECK(mtcp_getconf(&conf) == 0);
	/* Each lane needs somebody who runs it. */
	conf.num_cores = alone ? 1 : 2;
	conf.max_concurrency = 300;
	CHECK(mtcp_setconf(&conf) == 0);
	for (lanes = 0; lanes < 300; lanes++)
		open_before[lanes] = fcntl(lanes, F_GETFD) != -1;
	lanes = argc == 3 && strcmp(argv[2], "lanes") == 0;
	M = mtcp_create_context(0);
	CHECK(M != NULL);
	if (lanes) {
		RUN(an_ended_inline_lane_is_taken_again);
		mtcp_destroy();
		printf("passed\n");
		return 0;
	}
	RUN(names_of_events);
	if (!alone) {
		printf("ids_are_no_descriptors\n");
		ids_are_no_descriptors(open_before);
	}
	RUN(what_was_written_leaves_without_another_call);
	RUN(small_writes_fill_the_buffer_by_their_bytes);
	/* The others wait for the kernel outside of our calls. */
	if (!alone) {
		RUN(blocking_calls_serve_a_client);
		RUN(vectors_keep_their_order);
		RUN(the_first_write_takes_a_whole_header);
		RUN(events_come_one_by_one);
		RUN(asking_is_enough);
		RUN(a_reset_is_told_by_the_read_and_by_so_error);
		RUN(a_peer_that_resets_is_one_that_left);
		RUN(the_end_of_a_stream_comes_after_its_bytes);
		RUN(what_is_accepted_blocks_as_its_listener_does);
		RUN(accept_needs_no_length);
		RUN(half_closed_still_reads);
		RUN(peeking_and_not_waiting);
		RUN(lent_bytes_stay_until_they_are_given_back);
		RUN(a_file_is_sent);
		RUN(pipes_are_in_the_same_epolls);
		RUN(options_are_real);
		RUN(ipv6_beside_ipv4);
		RUN(connections_leave_from_the_addresses_asked_for);
		RUN(a_closed_listener_is_gone);
		RUN(signals_end_waits);
	}
	RUN(connecting_without_waiting);
	RUN(nonsense_is_refused);
	RUN(ids_are_few_and_small);
	RUN(contexts_come_and_go);
	RUN(a_child_does_no_harm_to_its_parent);
	RUN(strangers_are_told_so_during_a_fork);
	if (!alone)
		RUN(a_child_may_come_while_contexts_do);
	printf("destroyed_with_everything_open\n");
	destroyed_with_everything_open(argv[1]);
	mtcp_destroy_context(M);
	mtcp_destroy();
	CHECK(mtcp_create_context(0) == NULL);
	printf("passed\n");
	return 0;
}
