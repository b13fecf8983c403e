/* Connects once and prints what came of it: mtcp_connect CONF ADDRESS PORT */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mtcp_api.h>

int main(int argc, char **argv)
{
	struct sockaddr_in to;
	struct mtcp_conf sizes;
	mctx_t mctx;
	int id, connected;
	memset(&to, 0, sizeof to);
	if (argc != 4 || inet_pton(AF_INET, argv[2], &to.sin_addr) != 1 || mtcp_init(argv[1]) != 0)
		return 2;
	to.sin_family = AF_INET;
	to.sin_port = htons((uint16_t)atoi(argv[3]));
	mtcp_getconf(&sizes);
	sizes.num_cores = 1;
	mtcp_setconf(&sizes);
	mctx = mtcp_create_context(0);
	id = mctx ? mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0) : -1;
	if (id < 0)
		return 2;
	connected = mtcp_connect(mctx, id, (struct sockaddr *)&to, sizeof to);
	printf("%s\n", connected == 0 ? "connected" : strerror(errno));
	mtcp_destroy_context(mctx);
	mtcp_destroy();
	return 0;
}
