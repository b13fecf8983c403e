/*
 * MegaPipe's calls, right and wrong, over one engine: mp_calls uring ADDRESS, or mp_calls CONFIG ADDRESS, where the kernel is
 * at the other end of the lane's device. A third argument leaves signals out, with which valgrind does not interrupt a ring's
 * system call.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <megapipe.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno)); exit(1); } } while (0)
#define FAILS(call, number) do { errno = 0; CHECK((call) == -1 && errno == (number)); } while (0)
#define NONE(call, number) do { errno = 0; CHECK((call) == 0 && errno == (number)); } while (0)

static struct mp_options options;
static struct sockaddr_in at;
static mp_channel *ch;
static mp_handle other_threads;

/* What the kernel's end says, where it should have something to say; a lane works inside our calls. */
static ssize_t heard(int fd, void *buf, size_t size)
{
	int i;
	ssize_t n = 0;
	for (i = 0; i < 10000 && n < (ssize_t)size; i++) {
		CHECK(mp_flush(ch) == 0);
		ssize_t more = recv(fd, (char *)buf + n, size - (size_t)n, MSG_DONTWAIT);
		if (more == 0)
			return n;
		if (more > 0)
			n += more;
		else
			usleep(1000);
	}
	return n;
}

/*
 * Waits until the address answers, at a port where nobody listens. A lane's device probes for another owner of its address first
 * (RFC 5227), and answers no ARP meanwhile; the kernel gives a neighbour up after three requests, a second apart, of which some
 * may have gone out for an earlier program's connections.
 */
static void reachable(void)
{
	struct sockaddr_in nobody = at;
	int tries, ms, fd, error = EHOSTUNREACH;
	char none;
	nobody.sin_port = htons(1);
	for (tries = 0; tries < 10 && error == EHOSTUNREACH; tries++) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		CHECK(fd >= 0);
		CHECK(connect(fd, (struct sockaddr *)&nobody, sizeof nobody) == -1);
		error = errno == EINPROGRESS ? EAGAIN : errno;
		for (ms = 0; ms < 10000 && error == EAGAIN; ms++) {
			usleep(1000);
			CHECK(mp_flush(ch) == 0);
			CHECK(recv(fd, &none, 1, 0) == -1);
			error = errno;
		}
		close(fd);
	}
	errno = error;
	CHECK(error == ECONNREFUSED);
}

static struct mp_event next(int cmd)
{
	struct mp_event ev;
	memset(&ev, 0xa5, sizeof ev);
	CHECK(mp_dispatch(ch, &ev, 10000) == 1);
	if (ev.cmd != cmd)
		fprintf(stderr, "came %d, not %d\n", ev.cmd, cmd);
	CHECK(ev.cmd == cmd);
	return ev;
}

static void nothing(void)
{
	struct mp_event ev;
	CHECK(mp_dispatch(ch, &ev, 20) == 0);
}

/* An ordinary client of the kernel's, which is about to be connected. */
static int client(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	CHECK(fd >= 0);
	CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0 || errno == EINPROGRESS);
	return fd;
}

/* A connection: our end's handle, and the kernel's end in *fd. */
static mp_handle connection(mp_handle listening, int *fd, int *lwsocket, void *cookie)
{
	mp_handle h;
	*fd = client();
	CHECK(mp_accept(listening, 1, 1) == 0);
	struct mp_event ev = next(MP_ACCEPT);
	CHECK(ev.result == 0 && ev.error == 0 && ev.handle == listening && ev.u.accept.is_lwsocket == 1);
	CHECK(ev.u.accept.fd >= 1 << 30);
	CHECK(fcntl(*fd, F_SETFL, 0) == 0);
	if (lwsocket != NULL)
		*lwsocket = ev.u.accept.fd;
	h = mp_register(ch, ev.u.accept.fd, cookie, 0);
	CHECK(h != 0);
	return h;
}

static void transfers(mp_handle listening)
{
	int fd, lw, one;
	socklen_t len = sizeof one;
	struct sockaddr_in name, peer;
	char *buf = calloc(1, 64);
	struct iovec iov[3];
	struct mp_event ev;
	mp_handle h = connection(listening, &fd, &lw, buf);
	CHECK(write(fd, "hello", 5) == 5);
	CHECK(mp_read(h, buf, 64) == 0);
	ev = next(MP_READ);
	CHECK(ev.result == 0 && ev.handle == h && ev.cookie == buf && ev.u.io.buf == buf && ev.u.io.size == 5);
	CHECK(memcmp(buf, "hello", 5) == 0);
	iov[0].iov_base = buf, iov[0].iov_len = 3;
	iov[1].iov_base = NULL, iov[1].iov_len = 0;
	iov[2].iov_base = buf + 3, iov[2].iov_len = 2;
	CHECK(mp_writev(h, iov, 3) == 0);
	memset(iov, 0, sizeof iov); /* it was copied */
	ev = next(MP_WRITE);
	CHECK(ev.result == 0 && ev.u.io.size == 5 && ev.u.io.buf == NULL);
	char back[64];
	CHECK(heard(fd, back, 5) == 5 && memcmp(back, "hello", 5) == 0);
	iov[0].iov_base = buf, iov[0].iov_len = 1;
	iov[1].iov_base = buf + 1, iov[1].iov_len = 63;
	CHECK(mp_readv(h, iov, 2) == 0);
	CHECK(write(fd, "vector", 6) == 6);
	ev = next(MP_READ);
	CHECK(ev.u.io.size == 6 && memcmp(buf, "vector", 6) == 0);

	CHECK(mp_set_cookie(h, &fd) == 0);
	CHECK(mp_recv(h) == 0);
	CHECK(write(fd, "library", 7) == 7);
	ev = next(MP_RECV);
	CHECK(ev.cookie == &fd && ev.u.recv.size == 7 && memcmp(ev.u.recv.data, "library", 7) == 0);
	FAILS(mp_release(ch, (const char *)ev.u.recv.data + 1), EINVAL);
	CHECK(mp_release(ch, ev.u.recv.data) == 0);
	FAILS(mp_release(ch, ev.u.recv.data), EINVAL);
	FAILS(mp_release(ch, NULL), EINVAL);
	FAILS(mp_release(ch, back), EINVAL);

	len = sizeof name;
	CHECK(mp_getsockname(ch, lw, (struct sockaddr *)&name, &len) == 0 && len == sizeof name);
	CHECK(name.sin_port == at.sin_port);
	len = sizeof peer;
	CHECK(mp_getpeername(ch, lw, (struct sockaddr *)&peer, &len) == 0);
	len = sizeof name;
	CHECK(getsockname(fd, (struct sockaddr *)&name, &len) == 0);
	CHECK(peer.sin_port == name.sin_port && peer.sin_addr.s_addr == name.sin_addr.s_addr);
	one = 1;
	CHECK(mp_setsockopt(ch, lw, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
	one = 0;
	len = sizeof one;
	CHECK(mp_getsockopt(ch, lw, IPPROTO_TCP, TCP_NODELAY, &one, &len) == 0 && one == 1 && len == sizeof one);
	struct tcp_info info;
	len = sizeof info;
	CHECK(mp_getsockopt(ch, lw, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && len >= 104);
	CHECK(info.tcpi_state == 1 && info.tcpi_snd_mss > 500);
	one = -1;
	len = sizeof one;
	CHECK(mp_getsockopt(ch, lw, SOL_SOCKET, SO_ERROR, &one, &len) == 0 && one == 0 && len == sizeof one);
	CHECK(mp_getsockopt(ch, lw, IPPROTO_TCP, TCP_MAXSEG, &one, &len) == 0 && one > 500);
	uint32_t memory[9];
	len = sizeof memory;
	CHECK(mp_getsockopt(ch, lw, SOL_SOCKET, 55 /* SO_MEMINFO */, memory, &len) == 0 && memory[1] > 0 && memory[3] > 0);
	FAILS(mp_setsockopt(ch, lw, 12345, 1, &one, sizeof one), ENOPROTOOPT);
	FAILS(mp_setsockopt(ch, lw, IPPROTO_TCP, TCP_NODELAY, NULL, sizeof one), EFAULT);
	FAILS(mp_getsockopt(ch, lw, IPPROTO_TCP, TCP_NODELAY, NULL, &len), EFAULT);
	FAILS(mp_getsockname(ch, lw, NULL, &len), EFAULT);
	FAILS(mp_getpeername(ch, lw, (struct sockaddr *)&peer, NULL), EFAULT);

	if (mp_capabilities(ch) & MP_CAP_DESCRIPTORS) {
		int own = mp_lwsocket_to_fd(ch, lw);
		CHECK(own >= 0 && (fcntl(own, F_GETFD) & FD_CLOEXEC) != 0);
		CHECK(write(own, "beside", 6) == 6 && heard(fd, back, 6) == 6);
		close(own);
	} else {
		FAILS(mp_lwsocket_to_fd(ch, lw), EOPNOTSUPP);
	}
	FAILS(mp_lwsocket_to_fd(ch, 0), EBADF);
	FAILS(mp_close(ch, lw), EBUSY);
	NONE(mp_register(ch, lw, NULL, 0), EEXIST);
	NONE(mp_register(ch, lw, NULL, 1), EINVAL);

	CHECK(mp_write(h, "last", 4) == 0 && mp_disconnect(h) == 0);
	CHECK(next(MP_WRITE).u.io.size == 4 && next(MP_DISCONNECT).result == 0);
	CHECK(heard(fd, back, 10) == 4);
	CHECK(mp_unregister(h) == 0);
	FAILS(mp_unregister(h), EBADF);
	FAILS(mp_close(ch, lw), EBADF);
	FAILS(mp_read(h, buf, 1), EBADF);
	close(fd);
	free(buf);
}

/* Memory that is freed, or used for something else, as soon as its operation was given up. */
static void given_up(mp_handle listening)
{
	int fd, i;
	for (i = 0; i < 20; i++) {
		mp_handle h = connection(listening, &fd, NULL, NULL);
		char *in = malloc(1 << 16), *out = calloc(1, 8 << 20);
		struct iovec *iov = malloc(sizeof *iov);
		CHECK(in != NULL && out != NULL && iov != NULL);
		iov->iov_base = in, iov->iov_len = 1 << 16;
		CHECK(mp_read(h, in, 1 << 16) == 0 && mp_readv(h, iov, 1) == 0);
		free(iov);
		CHECK(mp_write(h, out, 8 << 20) == 0 && mp_write(h, out, 8 << 20) == 0);
		if (i % 2 == 0)
			nothing();
		CHECK(mp_unregister(h) == 0);
		free(out);
		/* What comes now has nowhere to go. */
		memset(in, 0x5a, 1 << 16);
		if (send(fd, "late", 4, MSG_NOSIGNAL) < 0)
			CHECK(errno == EPIPE || errno == ECONNRESET);
		nothing();
		for (size_t at = 0; at < 1 << 16; at++)
			CHECK(in[at] == 0x5a);
		free(in);
		close(fd);
	}
}

static void kernel_files(void)
{
	int p[2], t, file;
	uint64_t *ticks = calloc(1, sizeof *ticks);
	char *buf = calloc(1, 64);
	char path[] = "/tmp/mp-calls-XXXXXX";
	struct itimerspec soon;
	CHECK(pipe2(p, O_CLOEXEC) == 0);
	mp_handle r = mp_register(ch, p[0], NULL, 0), w = mp_register(ch, p[1], NULL, 0);
	CHECK(r != 0 && w != 0);
	NONE(mp_register(ch, p[0], NULL, 0), EEXIST);
	NONE(mp_register(ch, p[0], NULL, 1), EINVAL);
	FAILS(mp_close(ch, p[0]), EBUSY);
	CHECK(mp_write(w, "pipe", 4) == 0);
	CHECK(next(MP_WRITE).result == 0);
	CHECK(mp_read(r, buf, 64) == 0);
	CHECK(next(MP_READ).u.io.size == 4 && memcmp(buf, "pipe", 4) == 0);
	CHECK(mp_unregister(r) == 0);
	CHECK(mp_close(ch, p[0]) == 0);
	/* No SIGPIPE, which would end this program; older kernels have only it. */
	CHECK(mp_write(w, "lost", 4) == 0);
	struct mp_event ev = next(MP_WRITE);
	CHECK(ev.result == -1 && ev.error == EPIPE);
	CHECK(mp_unregister(w) == 0 && close(p[1]) == 0);

	t = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	memset(&soon, 0, sizeof soon);
	soon.it_value.tv_nsec = 10000000;
	CHECK(timerfd_settime(t, 0, &soon, NULL) == 0);
	mp_handle timer = mp_register(ch, t, NULL, 0);
	CHECK(mp_read(timer, ticks, 8) == 0);
	CHECK(mp_dispatch(ch, &ev, -1) == 1 && ev.handle == timer && *ticks == 1);
	CHECK(mp_unregister(timer) == 0 && close(t) == 0);

	/* A signal that is blocked here comes to no thread of the library's, and so to the signalfd. */
	sigset_t one, before;
	struct signalfd_siginfo *info = calloc(1, sizeof *info);
	CHECK(sigemptyset(&one) == 0 && sigaddset(&one, SIGUSR1) == 0);
	CHECK(pthread_sigmask(SIG_BLOCK, &one, &before) == 0);
	int sig = signalfd(-1, &one, SFD_CLOEXEC);
	mp_handle s = mp_register(ch, sig, NULL, 0);
	CHECK(s != 0 && mp_read(s, info, sizeof *info) == 0);
	nothing();
	CHECK(kill(getpid(), SIGUSR1) == 0);
	CHECK(next(MP_READ).u.io.size == sizeof *info && info->ssi_signo == SIGUSR1);
	CHECK(mp_unregister(s) == 0 && close(sig) == 0 && pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	free(info);

	file = mkstemp(path);
	CHECK(file >= 0 && unlink(path) == 0);
	mp_handle f = mp_register(ch, file, NULL, 0);
	CHECK(mp_pwrite(f, "0123456789", 10, 100) == 0 && next(MP_WRITE).u.io.size == 10);
	CHECK(mp_pread(f, buf, 5, 103) == 0 && next(MP_READ).u.io.size == 5 && memcmp(buf, "34567", 5) == 0);
	FAILS(mp_pread(f, buf, 5, UINT64_MAX), EINVAL);
	FAILS(mp_pwrite(f, buf, 5, (uint64_t)1 << 63), EINVAL);
	CHECK(mp_unregister(f) == 0 && close(file) == 0);
	free(ticks);
	free(buf);
}

/* Who sent a datagram is told, and may be answered. */
static void datagrams(mp_handle listening)
{
	struct sockaddr_in here, *from = malloc(sizeof *from);
	socklen_t len = sizeof here, *length = malloc(sizeof *length);
	char *buf = calloc(1, 16), back[16];
	static const char long_one[9000];
	int server = mp_socket(ch, AF_INET, SOCK_DGRAM, 0), peer = socket(AF_INET, SOCK_DGRAM, 0), p[2], fd;
	CHECK(server >= 0 && server < 1 << 29 && peer >= 0 && pipe(p) == 0);
	memset(&here, 0, sizeof here);
	here.sin_family = AF_INET;
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(mp_bind(ch, server, (struct sockaddr *)&here, sizeof here) == 0);
	CHECK(mp_getsockname(ch, server, (struct sockaddr *)&here, &len) == 0 && len == sizeof here);
	mp_handle h = mp_register(ch, server, NULL, 0);
	*length = sizeof *from;
	CHECK(mp_recvfrom(h, buf, 16, (struct sockaddr *)from, length) == 0);
	nothing();
	CHECK(sendto(peer, "question", 8, 0, (struct sockaddr *)&here, sizeof here) == 8);
	struct mp_event ev = next(MP_READ);
	CHECK(ev.result == 0 && ev.u.io.buf == buf && ev.u.io.size == 8 && memcmp(buf, "question", 8) == 0);
	len = sizeof here;
	CHECK(getsockname(peer, (struct sockaddr *)&here, &len) == 0);
	CHECK(*length == sizeof *from && from->sin_family == AF_INET && from->sin_port == here.sin_port);
	CHECK(mp_sendto(h, "answer", 6, (struct sockaddr *)from, *length) == 0);
	memset(from, 0, sizeof *from); /* it was copied */
	ev = next(MP_WRITE);
	CHECK(ev.result == 0 && ev.u.io.size == 6 && recv(peer, back, 16, 0) == 6 && memcmp(back, "answer", 6) == 0);
	/* What is empty, and what does not fit. */
	len = sizeof here;
	CHECK(mp_getsockname(ch, server, (struct sockaddr *)&here, &len) == 0);
	CHECK(sendto(peer, "", 0, 0, (struct sockaddr *)&here, sizeof here) == 0 && mp_read(h, buf, 16) == 0);
	ev = next(MP_READ);
	CHECK(ev.result == 0 && ev.u.io.size == 0 && ev.flags == MP_MESSAGE);
	CHECK(sendto(peer, "", 0, 0, (struct sockaddr *)&here, sizeof here) == 0 && mp_recv(h) == 0);
	ev = next(MP_RECV);
	CHECK(ev.result == 0 && ev.u.recv.size == 0 && ev.u.recv.data == NULL && ev.flags == MP_MESSAGE);
	CHECK(sendto(peer, long_one, sizeof long_one, 0, (struct sockaddr *)&here, sizeof here) == sizeof long_one);
	CHECK(mp_recv(h) == 0);
	ev = next(MP_RECV);
	CHECK(ev.result == 0 && ev.u.recv.size == 4096 && ev.flags == (MP_MESSAGE | MP_CUT));
	CHECK(mp_release(ch, ev.u.recv.data) == 0);
	CHECK(mp_recvfrom(h, buf, 16, (struct sockaddr *)from, length) == 0 && mp_flush(ch) == 0);
	CHECK(mp_unregister(h) == 0 && mp_close(ch, server) == 0);
	free(from);
	free(length);
	FAILS(mp_recvfrom(h, buf, 16, NULL, NULL), EBADF);

	h = mp_register(ch, p[0], NULL, 0);
	len = sizeof here;
	FAILS(mp_recvfrom(h, buf, 16, (struct sockaddr *)&here, &len), ENOTSOCK);
	FAILS(mp_recvfrom(h, buf, 16, NULL, &len), EFAULT);
	FAILS(mp_recvfrom(h, NULL, 16, (struct sockaddr *)&here, &len), EFAULT);
	FAILS(mp_sendto(h, buf, 16, (struct sockaddr *)&here, sizeof here), ENOTSOCK);
	FAILS(mp_sendto(h, buf, 16, NULL, sizeof here), EFAULT);
	FAILS(mp_sendto(h, buf, 16, (struct sockaddr *)&here, 0), EINVAL);
	CHECK(mp_unregister(h) == 0);

	/* Of a connection nobody needs to be told, on either engine. */
	h = connection(listening, &fd, NULL, NULL);
	CHECK(mp_recvfrom(h, buf, 16, (struct sockaddr *)&here, &len) == 0 && write(fd, "tcp", 3) == 3);
	ev = next(MP_READ);
	CHECK(ev.u.io.size == 3 && ev.u.io.buf == buf && len == 0 && ev.flags == 0);
	CHECK(mp_sendto(h, "back", 4, (struct sockaddr *)&at, sizeof at) == 0 && next(MP_WRITE).u.io.size == 4);
	CHECK(heard(fd, back, 4) == 4);
	CHECK(mp_unregister(h) == 0);
	close(fd), close(peer), close(p[0]), close(p[1]);
	free(buf);
}

/* A socket that listens by itself, with an option that its connections take over. */
static void listens(void)
{
	int server = mp_socket(ch, AF_INET, SOCK_STREAM, 0), one = 1, fd, value = 0;
	struct sockaddr_in where = at, was = at;
	socklen_t len = sizeof where;
	struct mp_event ev;
	where.sin_port = 0;
	CHECK(server >= 0);
	CHECK(mp_setsockopt(ch, server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
	CHECK(mp_bind(ch, server, (struct sockaddr *)&where, sizeof where) == 0);
	CHECK(mp_setsockopt(ch, server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
	CHECK(mp_listen(ch, server, 5) == 0 && mp_listen(ch, server, 10) == 0);
	CHECK(mp_getsockname(ch, server, (struct sockaddr *)&at, &len) == 0 && at.sin_port != 0);
	mp_handle listening = mp_register(ch, server, &one, 0);
	CHECK(listening != 0);
	FAILS(mp_read(listening, &fd, 1), ENOTCONN);
	FAILS(mp_close(ch, server), EBUSY);
	mp_handle h = connection(listening, &fd, &one, NULL);
	len = sizeof value;
	CHECK(mp_getsockopt(ch, one, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value != 0);
	FAILS(mp_listen(ch, one, 5), EINVAL);
	CHECK(mp_write(h, "x", 1) == 0);
	ev = next(MP_WRITE);
	CHECK(ev.result == 0 && heard(fd, &value, 1) == 1);
	CHECK(mp_unregister(h) == 0 && mp_unregister(listening) == 0);
	close(fd);
	if (options.engine == MP_ENGINE_URING)
		CHECK(mp_close(ch, server) == 0);
	else
		FAILS(mp_close(ch, server), EBADF);
	FAILS(mp_listen(ch, -1, 5), EBADF);
	FAILS(mp_listen(ch, (1 << 30) + 5000, 5), EBADF);
	fd = mp_listen_at((struct sockaddr *)&was, sizeof was, 5);
	FAILS(mp_listen(ch, fd, 5), EINVAL);
	CHECK(mp_close(ch, fd) == 0);
	/* The port is free again. */
	server = mp_socket(ch, AF_INET, SOCK_STREAM, 0);
	value = 1;
	CHECK(mp_setsockopt(ch, server, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value) == 0);
	CHECK(mp_bind(ch, server, (struct sockaddr *)&at, sizeof at) == 0 && mp_listen(ch, server, 5) == 0);
	CHECK(mp_close(ch, server) == 0);
	at = was;
}

/* The kernel's options come whole: it would refuse a part of these. */
static void long_options(void)
{
	unsigned char given[264] = { 0, 32 }, got[300];
	socklen_t len = sizeof got;
	int fd = mp_socket(ch, AF_INET6, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	FAILS(mp_setsockopt(ch, fd, SOL_SOCKET, SO_REUSEADDR, given, (socklen_t)-1), EINVAL);
	if (options.engine == MP_ENGINE_URING && getuid() == 0) {
		CHECK(mp_setsockopt(ch, fd, IPPROTO_IPV6, IPV6_HOPOPTS, given, sizeof given) == 0);
		CHECK(mp_getsockopt(ch, fd, IPPROTO_IPV6, IPV6_HOPOPTS, got, &len) == 0);
		CHECK(len == sizeof given && memcmp(got, given, sizeof given) == 0);
	}
	CHECK(mp_close(ch, fd) == 0);
}

/* A reset is told once, to who asks first. */
static void reset(mp_handle listening)
{
	int fd, lw, error = 0, i;
	char buf[4];
	socklen_t len = sizeof error;
	struct linger now = { 1, 0 };
	mp_handle h = connection(listening, &fd, &lw, NULL);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0 && close(fd) == 0);
	for (i = 0; i < 10000 && error == 0; i++) {
		CHECK(mp_getsockopt(ch, lw, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
		usleep(1000);
	}
	CHECK(error == ECONNRESET);
	CHECK(mp_getsockopt(ch, lw, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
	CHECK(mp_read(h, buf, 4) == 0 && next(MP_READ).u.io.size == 0);
	CHECK(mp_unregister(h) == 0);
}

/* A child's end is not its parent's, with what is under way either. */
static void forked(mp_handle listening)
{
	int fd, status, i;
	static char buf[8];
	struct mp_event ev;
	mp_handle h = connection(listening, &fd, NULL, NULL);
	CHECK(mp_read(h, buf, 8) == 0);
	nothing();
	for (i = 0; i < 2; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			FAILS(mp_dispatch(ch, &ev, 0), EPERM);
			FAILS(mp_read(h, buf, 1), EPERM);
			FAILS(mp_unregister(h), EPERM);
			FAILS(mp_destroy(ch), EPERM);
			mp_channel *own = mp_create(NULL);
			CHECK(own != NULL && mp_dispatch(own, &ev, 0) == 0);
			if (i == 0)
				CHECK(mp_destroy(own) == 0);
#ifdef __SANITIZE_ADDRESS__
			_exit(0); /* what the parent's other threads have is no leak */
#endif
			exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		nothing();
	}
	CHECK(write(fd, "parent", 6) == 6);
	ev = next(MP_READ);
	CHECK(ev.handle == h && ev.result == 0 && ev.u.io.size == 6);
	CHECK(mp_unregister(h) == 0);
	close(fd);
}

static void on_alarm(int sig)
{
	struct mp_event ev;
	int saved = errno;
	(void)sig;
	/* This came into mp_dispatch(). */
	FAILS(mp_dispatch(ch, &ev, 0), EBUSY);
	FAILS(mp_destroy(ch), EBUSY);
	errno = saved;
}

static void signals(void)
{
	struct sigaction action;
	struct mp_event ev;
	struct itimerval soon;
	memset(&action, 0, sizeof action);
	memset(&soon, 0, sizeof soon);
	action.sa_handler = on_alarm;
	sigaction(SIGALRM, &action, NULL);
	soon.it_value.tv_usec = soon.it_interval.tv_usec = 50000;
	setitimer(ITIMER_REAL, &soon, NULL);
	FAILS(mp_dispatch(ch, &ev, -1), EINTR);
	FAILS(mp_dispatch(ch, &ev, 60000), EINTR);
	memset(&soon, 0, sizeof soon);
	setitimer(ITIMER_REAL, &soon, NULL);
}

static void wrong(mp_handle listening)
{
	struct mp_event ev;
	struct mp_stats stats;
	struct iovec many[1025], nowhere = { NULL, 4 };
	uint64_t mask[2] = { 0, 0 };
	char buf[8];
	int fd, i;
	mp_channel *made_up[3];
	mp_handle h = connection(listening, &fd, NULL, NULL);
	made_up[0] = NULL;
	made_up[1] = (mp_channel *)buf;
	made_up[2] = (mp_channel *)(uintptr_t)0x1234;
	for (i = 0; i < 3; i++) {
		mp_channel *no = made_up[i];
		FAILS(mp_destroy(no), EINVAL);
		FAILS(mp_capabilities(no), EINVAL);
		FAILS(mp_set_batch(no, 1), EINVAL);
		NONE(mp_register(no, fd, NULL, 0), EINVAL);
		FAILS(mp_release(no, buf), EINVAL);
		FAILS(mp_dispatch(no, &ev, 0), EINVAL);
		FAILS(mp_flush(no), EINVAL);
		FAILS(mp_lwsocket_to_fd(no, 1 << 30), EINVAL);
		FAILS(mp_close(no, fd), EINVAL);
		FAILS(mp_socket(no, AF_INET, SOCK_STREAM, 0), EINVAL);
		FAILS(mp_bind(no, fd, (struct sockaddr *)&at, sizeof at), EINVAL);
		FAILS(mp_stats(no, &stats, sizeof stats), EINVAL);
	}
	mp_handle bad[] = { 0, 1, UINT64_MAX, h ^ ((mp_handle)1 << 24), h ^ 0x800000, other_threads };
	for (i = 0; i < 6; i++) {
		int number = bad[i] == other_threads ? EPERM : EBADF;
		FAILS(mp_unregister(bad[i]), number);
		FAILS(mp_set_cookie(bad[i], NULL), number);
		FAILS(mp_accept(bad[i], 1, 1), number);
		FAILS(mp_connect(bad[i], (struct sockaddr *)&at, sizeof at), number);
		FAILS(mp_read(bad[i], buf, 8), number);
		FAILS(mp_write(bad[i], buf, 8), number);
		FAILS(mp_pread(bad[i], buf, 8, 0), number);
		FAILS(mp_pwrite(bad[i], buf, 8, 0), number);
		FAILS(mp_recv(bad[i]), number);
		FAILS(mp_disconnect(bad[i]), number);
		FAILS(mp_shutdown(bad[i], SHUT_WR), number);
	}
	for (i = 0; i < 1025; i++)
		many[i].iov_base = buf, many[i].iov_len = 1;
	FAILS(mp_readv(h, many, 1025), EINVAL);
	FAILS(mp_writev(h, many, 1025), EINVAL);
	FAILS(mp_writev(h, many, INT32_MAX), EINVAL);
	FAILS(mp_writev(h, many, -1), EINVAL);
	FAILS(mp_writev(h, NULL, 1), EFAULT);
	FAILS(mp_readv(h, &nowhere, 1), EFAULT);
	many[0].iov_len = many[1].iov_len = SIZE_MAX;
	FAILS(mp_writev(h, many, 2), EINVAL);
	FAILS(mp_read(h, NULL, 1), EFAULT);
	FAILS(mp_write(h, NULL, 1), EFAULT);
	FAILS(mp_read(h, buf, SIZE_MAX), EINVAL);
	FAILS(mp_shutdown(h, 3), EINVAL);
	FAILS(mp_shutdown(h, -1), EINVAL);
	FAILS(mp_accept(h, 1, 1), EINVAL);
	FAILS(mp_accept(listening, 0, 1), EINVAL);
	FAILS(mp_read(listening, buf, 1), ENOTCONN);
	FAILS(mp_connect(h, NULL, sizeof at), EFAULT);
	FAILS(mp_connect(h, (struct sockaddr *)&at, 1), EINVAL);
	FAILS(mp_connect(h, (struct sockaddr *)&at, 100000), EINVAL);
	FAILS(mp_dispatch(ch, NULL, 0), EFAULT);
	FAILS(mp_dispatch(ch, &ev, -2), EINVAL);
	FAILS(mp_set_batch(ch, 0), EINVAL);
	FAILS(mp_set_batch(ch, 100000), EINVAL);
	FAILS(mp_stats(ch, NULL, sizeof stats), EFAULT);
	NONE(mp_register(ch, -1, NULL, 0), EBADF);
	NONE(mp_register(ch, 1 << 20, NULL, 0), EBADF);
	NONE(mp_register(ch, INT32_MAX, NULL, 0), EBADF);
	NONE(mp_register(ch, (1 << 29) + 77, NULL, 0), EBADF);
	NONE(mp_register_cpus(ch, fd, NULL, NULL, 1), EFAULT);
	NONE(mp_register_cpus(ch, fd, NULL, mask, 100000), EINVAL);
	FAILS(mp_close(ch, -5), EBADF);
	FAILS(mp_close(ch, (1 << 29) + 77), EBADF);
	FAILS(mp_listen_at(NULL, sizeof at, 1), EFAULT);
	FAILS(mp_listen_at((struct sockaddr *)&at, 3, 1), EINVAL);
	FAILS(mp_socket(ch, 9999, SOCK_STREAM, 0), EAFNOSUPPORT);
	/* Bytes of 0 are read and written in their turn. */
	CHECK(mp_write(h, NULL, 0) == 0 && next(MP_WRITE).u.io.size == 0);
	CHECK(mp_writev(h, NULL, 0) == 0 && next(MP_WRITE).result == 0);
	CHECK(mp_stats(ch, &stats, sizeof stats) == 0 && stats.completions > 0 && stats.requests >= stats.batches);
	CHECK(mp_unregister(h) == 0);
	close(fd);
}

static void options_out_of_range(void)
{
	struct mp_options o;
	int i;
	for (i = 0; i < 8; i++) {
		mp_options_init(&o, sizeof o);
		CHECK(o.size == sizeof o && o.batch == 32 && o.engine == MP_ENGINE_URING && o.lane == -1);
		switch (i) {
		case 0: o.size = 0; break;
		case 1: o.engine = 7; break;
		case 2: o.batch = 0; break;
		case 3: o.buffers = 3; break;
		case 4: o.buffer_size = 1; break;
		case 5: o.lwsockets = 0; break;
		case 6: o.completions = 0; break;
		case 7: o.buffers = 1 << 20; break;
		}
		NONE(mp_create(&o) != NULL, EINVAL);
	}
	mp_options_init(&o, sizeof o);
	o.engine = MP_ENGINE_LANE;
	NONE(mp_create(&o) != NULL, EFAULT);
	o.config = "/nonexistent.toml";
	NONE(mp_create(&o) != NULL, ENOENT);
	mp_options_init(NULL, sizeof o);
}

/* Programs that were compiled with another structure than the library. */
static void options_of_other_versions(void)
{
	struct mp_options o;
	size_t size;
	mp_channel *made;
	struct {
		struct mp_options known;
		unsigned int more[8];
	} longer;
	for (size = offsetof(struct mp_options, batch); size < sizeof o; size += 4) {
		unsigned char *shorter = malloc(size), *byte;
		/* Nothing behind it is written or read: the allocation ends there. */
		CHECK(shorter != NULL);
		mp_options_init((struct mp_options *)shorter, size);
		made = mp_create((struct mp_options *)shorter);
		CHECK(made != NULL && mp_destroy(made) == 0);
		free(shorter);
		/* What is behind it is not looked at, and what is before it is. */
		memset(&o, 0xff, sizeof o);
		mp_options_init(&o, size);
		for (byte = (unsigned char *)&o + size; byte < (unsigned char *)(&o + 1); byte++)
			CHECK(*byte == 0xff);
		made = mp_create(&o);
		CHECK(made != NULL && mp_destroy(made) == 0);
		o.engine = 7;
		NONE(mp_create(&o) != NULL, EINVAL);
	}
	/* In the middle of a member, and before there was any. */
	mp_options_init(&o, sizeof o);
	o.size = offsetof(struct mp_options, config) + 4;
	NONE(mp_create(&o) != NULL, EINVAL);
	o.size = sizeof o - 1;
	NONE(mp_create(&o) != NULL, EINVAL);
	memset(&longer, 0xff, sizeof longer);
	mp_options_init(&longer.known, sizeof longer);
	CHECK(longer.known.size == sizeof longer && longer.known.batch == 32 && longer.more[0] == 0 && longer.more[7] == 0);
	made = mp_create(&longer.known);
	CHECK(made != NULL && mp_destroy(made) == 0);
	longer.more[7] = 1;
	NONE(mp_create(&longer.known) != NULL, E2BIG);
	longer.known.size = SIZE_MAX;
	NONE(mp_create(&longer.known) != NULL, E2BIG);
}

static void parts(int listener)
{
	uint64_t far[12] = { 0 };
	mp_handle zero = mp_register(ch, listener, NULL, 1);
	CHECK(zero != 0);
	NONE(mp_register(ch, listener, NULL, 1), EBUSY);
	NONE(mp_register(ch, listener, NULL, 3), EBUSY);
	far[11] = 1;
	if (options.engine == MP_ENGINE_URING) {
		mp_handle away = mp_register_cpus(ch, listener, NULL, far, 12);
		CHECK(away != 0);
		NONE(mp_register_cpus(ch, listener, NULL, far, 12), EBUSY);
		CHECK(mp_unregister(away) == 0);
	}
	FAILS(mp_close(NULL, listener), EBUSY);
	CHECK(mp_unregister(zero) == 0);
	FAILS(mp_bind(ch, listener, (struct sockaddr *)&at, sizeof at), EINVAL);
	FAILS(mp_setsockopt(ch, listener, SOL_SOCKET, SO_SNDBUF, far, 4), EOPNOTSUPP);
}

static pthread_barrier_t both;

/* A channel of another thread. */
static void *other(void *arg)
{
	int p[2];
	struct mp_event ev;
	mp_channel **mine = arg;
	sigset_t one;
	CHECK(sigemptyset(&one) == 0 && sigaddset(&one, SIGUSR1) == 0 && pthread_sigmask(SIG_BLOCK, &one, NULL) == 0);
	mp_channel *own = mp_create(NULL);
	CHECK(own != NULL && pipe(p) == 0);
	mp_handle h = mp_register(own, p[0], NULL, 0);
	CHECK(h != 0);
	other_threads = h;
	FAILS(mp_dispatch(*mine, &ev, 0), EPERM);
	FAILS(mp_destroy(*mine), EPERM);
	FAILS(mp_flush(*mine), EPERM);
	*mine = own;
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	/* It is left to the end of its thread, with an operation under way. */
	static char buf[10];
	CHECK(mp_read(h, buf, 10) == 0 && mp_flush(own) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	socklen_t len = sizeof at;
	pthread_t thread;
	mp_channel *theirs;
	CHECK(argc == 3 || argc == 4);
	mp_options_init(&options, sizeof options);
	if (strcmp(argv[1], "uring") != 0) {
		options.engine = MP_ENGINE_LANE;
		options.config = argv[1];
	}
	memset(&at, 0, sizeof at);
	at.sin_family = AF_INET;
	at.sin_port = htons(5353);
	CHECK(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1);
	ch = mp_create(&options);
	CHECK(ch != NULL);
	if (options.engine == MP_ENGINE_LANE) {
		NONE(mp_create(&options) != NULL, EBUSY);
		CHECK(mp_capabilities(ch) == (MP_CAP_KERNEL | MP_CAP_LANE));
	} else {
		CHECK(mp_capabilities(ch) == (MP_CAP_KERNEL | MP_CAP_DESCRIPTORS | MP_CAP_BALANCE));
	}
	theirs = ch;
	CHECK(pthread_barrier_init(&both, NULL, 2) == 0);
	CHECK(pthread_create(&thread, NULL, other, &theirs) == 0);
	pthread_barrier_wait(&both);
	FAILS(mp_flush(theirs), EPERM);

	int listener = mp_listen_at((struct sockaddr *)&at, sizeof at, 100);
	CHECK(listener >= 1 << 29);
	parts(listener);
	mp_handle listening = mp_register(ch, listener, NULL, 0);
	CHECK(listening != 0);
	CHECK(mp_getsockname(ch, listener, (struct sockaddr *)&at, &len) == 0);
	reachable();
	transfers(listening);
	given_up(listening);
	kernel_files();
	datagrams(listening);
	reset(listening);
	listens();
	long_options();
	forked(listening);
	if (argc == 3)
		signals();
	wrong(listening);
	options_out_of_range();
	options_of_other_versions();

	/* Somebody else's channel is gone with its thread. */
	pthread_barrier_wait(&both);
	pthread_join(thread, NULL);
	FAILS(mp_flush(theirs), EINVAL);
	FAILS(mp_recv(other_threads), EBADF);

	/* It ends with all that is under way, and memory is freed at once. */
	int fd;
	char *buf = malloc(1 << 20);
	mp_handle h = connection(listening, &fd, NULL, NULL);
	CHECK(mp_read(h, buf, 1 << 20) == 0 && mp_accept(listening, MP_ENDLESS, 1) == 0 && mp_flush(ch) == 0);
	CHECK(mp_destroy(ch) == 0);
	free(buf);
	FAILS(mp_destroy(ch), EINVAL);
	FAILS(mp_read(h, &fd, 4), EBADF);
	CHECK(mp_close(NULL, listener) == 0);
	FAILS(mp_close(NULL, listener), EBADF);
	close(fd);
	return 0;
}
