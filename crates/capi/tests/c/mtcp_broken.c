/*
 * A server in which the library panics: mtcp_broken CONF. It says when it listens, and what it hears in the end. Exit code 0 where it
 * was told, by this call and those after it.
 */
#include <errno.h>
#include <mtcp_epoll.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct mtcp_epoll_event event, events[4];
	mctx_t mctx;
	int listener, ep, n, i, calls = 0;
	if (argc < 2 || mtcp_init(argv[1]) != 0)
		return 1;
	mctx = mtcp_create_context(0);
	if (mctx == NULL)
		return 2;
	at.sin_port = htons(80);
	listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
	if (mtcp_bind(mctx, listener, (struct sockaddr *)&at, sizeof at) != 0 || mtcp_listen(mctx, listener, 16) != 0)
		return 3;
	ep = mtcp_epoll_create(mctx, 4);
	event.events = MTCP_EPOLLIN;
	event.data.sockid = listener;
	if (ep < 0 || mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, listener, &event) != 0)
		return 4;
	puts("listening");
	fflush(stdout);
	/* A call that panics fails, as those after it do. */
	while ((n = mtcp_epoll_wait(mctx, ep, events, 4, 10000)) > 0) {
		for (i = 0; i < n; i++)
			if (events[i].data.sockid == listener && mtcp_accept(mctx, listener, NULL, NULL) >= 0) {
				puts("accepted");
				fflush(stdout);
			}
		if (++calls > 1000)
			return 5;
	}
	if (n == 0)
		return 6;
	printf("waiting: %s\n", strerror(errno));
	for (i = 0; i < 3; i++)
		if (mtcp_epoll_wait(mctx, ep, events, 4, 10000) != -1 || errno != ENETDOWN)
			return 7;
	mtcp_destroy_context(mctx);
	mtcp_destroy();
	puts("ended");
	return 0;
}
