/*
 * A server whose only interface goes: mtcp_gone CONF, or mtcp_gone CONF full, where its standard error takes no line any more. It says when
 * it listens, and then what a connect is answered.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <mtcp_epoll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void fill_standard_error(void)
{
	int ends[2];
	char page[4096] = { 0 };
	if (pipe2(ends, O_NONBLOCK) != 0 || dup2(ends[1], 2) != 2)
		_exit(8);
	while (write(2, page, sizeof page) > 0)
		continue;
	if (fcntl(2, F_SETFL, 0) != 0)
		_exit(8);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET }, to = { .sin_family = AF_INET };
	struct mtcp_epoll_event events[4];
	mctx_t mctx;
	int listener, ep, refused = 0;
	if (argc < 2 || mtcp_init(argv[1]) != 0)
		return 1;
	mctx = mtcp_create_context(0);
	if (mctx == NULL)
		return 2;
	at.sin_port = htons(80);
	to.sin_port = htons(81);
	to.sin_addr.s_addr = inet_addr("10.98.0.2");
	listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
	if (mtcp_bind(mctx, listener, (struct sockaddr *)&at, sizeof at) != 0 || mtcp_listen(mctx, listener, 16) != 0)
		return 3;
	ep = mtcp_epoll_create(mctx, 4);
	events[0].events = MTCP_EPOLLIN;
	events[0].data.sockid = listener;
	if (ep < 0 || mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, listener, &events[0]) != 0)
		return 4;
	if (argc > 2)
		fill_standard_error();
	puts("listening");
	fflush(stdout);
	while (!refused) {
		/* Nothing comes by a listener any more, and nothing is wrong with it. */
		if (mtcp_epoll_wait(mctx, ep, events, 4, 200) != 0)
			return 5;
		int id = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
		mtcp_setsock_nonblock(mctx, id);
		if (mtcp_connect(mctx, id, (struct sockaddr *)&to, sizeof to) == 0)
			return 6;
		if (errno == EINPROGRESS) {
			int error = 0;
			socklen_t len = sizeof error;
			mtcp_epoll_wait(mctx, ep, events, 4, 200);
			mtcp_getsockopt(mctx, id, SOL_SOCKET, SO_ERROR, &error, &len);
			errno = error;
		}
		if (errno != 0 && errno != ECONNREFUSED) {
			printf("connect: %s\n", strerror(errno));
			refused = 1;
		}
		mtcp_close(mctx, id);
	}
	mtcp_destroy();
	return 0;
}
