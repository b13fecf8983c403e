/* Addresses from their text, for the programs here. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

static struct sockaddr_in v4(const char *text, int port)
{
	struct sockaddr_in a;
	memset(&a, 0, sizeof a);
	a.sin_family = AF_INET;
	a.sin_port = htons((uint16_t)port);
	if (inet_pton(AF_INET, text, &a.sin_addr) != 1)
		abort();
	return a;
}

static struct sockaddr_in6 v6(const char *text, int port)
{
	struct sockaddr_in6 a;
	memset(&a, 0, sizeof a);
	a.sin6_family = AF_INET6;
	a.sin6_port = htons((uint16_t)port);
	if (inet_pton(AF_INET6, text, &a.sin6_addr) != 1)
		abort();
	return a;
}
