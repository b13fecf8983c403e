/*
 * What mtcp_getconf() tells is what sockets have, whatever was set and however the file looks: mtcp_conf CONF KEEPALIVE_MS, with
 * the timeout of silence that the file names, or -1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mtcp_api.h"

#define CHECK(what) ((what) ? (void)0 : (fprintf(stderr, "%d: %s (errno %d)\n", __LINE__, #what, errno), _exit(1)))

static int option(mctx_t m, int id, int level, int name)
{
	int n = -1;
	socklen_t len = sizeof n;
	CHECK(mtcp_getsockopt(m, id, level, name, &n, &len) == 0);
	return n;
}

/* A context, whose sockets are looked at; of a receive buffer Linux tells twice the size. */
static void as_told(const struct mtcp_conf *told)
{
	mctx_t all[64], m;
	struct mtcp_conf now;
	int id, keep, n = 0;
	m = mtcp_create_context(0);
	CHECK(m != NULL);
	CHECK(mtcp_getconf(&now) == 0 && memcmp(&now, told, sizeof now) == 0);
	id = mtcp_socket(m, AF_INET, SOCK_STREAM, 0);
	CHECK(id >= 0);
	CHECK(option(m, id, SOL_SOCKET, SO_RCVBUF) == 2 * told->rcvbuf_size);
	CHECK(option(m, id, SOL_SOCKET, SO_SNDBUF) == told->sndbuf_size);
	keep = told->tcp_timeout > 0;
	CHECK(option(m, id, SOL_SOCKET, SO_KEEPALIVE) == keep);
	CHECK(option(m, id, IPPROTO_TCP, TCP_KEEPIDLE) == (keep ? told->tcp_timeout / 1000 : 7200));
	/* As many ids and contexts as it says. */
	for (n = 1; n < told->max_concurrency; n++)
		CHECK(mtcp_socket(m, AF_INET, SOCK_STREAM, 0) >= 0);
	CHECK(mtcp_socket(m, AF_INET, SOCK_STREAM, 0) == -1 && errno == EMFILE);
	CHECK(told->num_cores < 64);
	for (n = 1; n < told->num_cores; n++)
		CHECK((all[n] = mtcp_create_context(0)) != NULL);
	CHECK(mtcp_create_context(0) == NULL && errno == EBUSY);
	/* It holds from the next engine on. */
	now.sndbuf_size = 345678;
	CHECK(mtcp_setconf(&now) == 0 && mtcp_getconf(&now) == 0 && memcmp(&now, told, sizeof now) == 0);
	/* What was set is taken back. */
	now.rcvbuf_size = told->rcvbuf_size + 1;
	CHECK(mtcp_setconf(&now) == 0);
	now.rcvbuf_size = told->rcvbuf_size;
	CHECK(mtcp_setconf(&now) == 0);
	for (n = 1; n < told->num_cores; n++)
		mtcp_destroy_context(all[n]);
	mtcp_destroy_context(m);
	mtcp_destroy();
}

int main(int argc, char **argv)
{
	struct mtcp_conf conf, first, none;
	CHECK(argc == 3);
	/* Before there is a file it is the usual that is told. */
	CHECK(mtcp_getconf(&conf) == 0 && conf.rcvbuf_size == 65536 && conf.sndbuf_size == 262144);
	CHECK(conf.tcp_timeout == -1 && conf.tcp_timewait == 60000 && conf.num_cores == GetNumCPUs());
	/* Of larger buffers there are fewer, however often that is said. */
	conf.rcvbuf_size = 1 << 20;
	CHECK(mtcp_setconf(&conf) == 0 && mtcp_setconf(&conf) == 0 && mtcp_getconf(&first) == 0);
	CHECK(first.rcvbuf_size == 1 << 20 && first.max_num_buffers < 1000 && conf.max_num_buffers > 10000);
	CHECK(mtcp_setconf(&conf) == 0 && mtcp_getconf(&none) == 0 && memcmp(&none, &first, sizeof none) == 0);
	conf.rcvbuf_size = 65536;
	CHECK(mtcp_setconf(&conf) == 0 && mtcp_getconf(&none) == 0 && none.rcvbuf_size == 65536);
	CHECK(mtcp_init(argv[1]) == 0 && mtcp_getconf(&first) == 0 && first.tcp_timeout == atoi(argv[2]));
	/* Given back as it was, and with nothing in it. */
	CHECK(mtcp_setconf(&first) == 0);
	memset(&none, 0, sizeof none);
	CHECK(mtcp_setconf(&none) == 0);
	memset(&none, 0xff, sizeof none);
	CHECK(mtcp_setconf(&none) == 0);
	CHECK(mtcp_getconf(&conf) == 0 && memcmp(&conf, &first, sizeof conf) == 0);
	as_told(&first);
	/* One number that is set while an engine runs is the next one's. */
	CHECK(mtcp_init(argv[1]) == 0 && mtcp_getconf(&conf) == 0);
	CHECK(conf.sndbuf_size == 345678 && conf.rcvbuf_size == first.rcvbuf_size && conf.tcp_timeout == first.tcp_timeout);
	CHECK(conf.tcp_timewait == first.tcp_timewait && conf.num_cores == first.num_cores);
	conf.rcvbuf_size = 300000;
	conf.sndbuf_size = 700000;
	conf.tcp_timeout = 5000;
	conf.tcp_timewait = 7000;
	conf.max_concurrency = 40;
	conf.max_num_buffers = 2000;
	CHECK(mtcp_setconf(&conf) == 0);
	first = conf;
	CHECK(mtcp_getconf(&conf) == 0 && conf.max_num_buffers >= 2000);
	first.max_num_buffers = conf.max_num_buffers;
	CHECK(memcmp(&conf, &first, sizeof conf) == 0);
	as_told(&conf);
	return 0;
}
