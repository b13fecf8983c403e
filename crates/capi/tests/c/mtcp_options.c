/*
 * The same questions about options and addresses to Linux's sockets and to libmtcp's, an answer a line, so that the two can be
 * compared. Usage: mtcp_options linux | mtcp_options CONF
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "address.h"
#include "mtcp_api.h"

#define NEW_TCP_INQ 36
#define NEW_TCP_NOTSENT_LOWAT 25

static mctx_t M;

static int make(int family)
{
	return M ? mtcp_socket(M, family, SOCK_STREAM, 0) : socket(family, SOCK_STREAM, 0);
}

static int set(int s, int level, int name, const void *value, socklen_t len)
{
	return M ? mtcp_setsockopt(M, s, level, name, value, len) : setsockopt(s, level, name, value, len);
}

static int get(int s, int level, int name, void *value, socklen_t *len)
{
	return M ? mtcp_getsockopt(M, s, level, name, value, len) : getsockopt(s, level, name, value, len);
}

static int bind_to(int s, const void *at, socklen_t len)
{
	return M ? mtcp_bind(M, s, at, len) : bind(s, at, len);
}

static int connect_to(int s, const void *at, socklen_t len)
{
	return M ? mtcp_connect(M, s, at, len) : connect(s, at, len);
}

static int name_of(int s, void *at, socklen_t *len)
{
	return M ? mtcp_getsockname(M, s, at, len) : getsockname(s, at, len);
}

static int start(int s)
{
	return M ? mtcp_listen(M, s, 4) : listen(s, 4);
}

static void end(int s)
{
	if (M)
		mtcp_close(M, s);
	else
		close(s);
}

/* What a call gave: 0, or the error's name. */
static const char *told(int result)
{
	return result == 0 ? "0" : strerrorname_np(errno);
}

static const struct option {
	int level, name;
	const char *text;
} options[] = {
#define O(level, name) {level, name, #name}
	O(SOL_SOCKET, SO_REUSEADDR), O(SOL_SOCKET, SO_REUSEPORT), O(SOL_SOCKET, SO_KEEPALIVE), O(SOL_SOCKET, SO_SNDBUF),
	O(SOL_SOCKET, SO_RCVBUF), O(SOL_SOCKET, SO_RCVLOWAT), O(SOL_SOCKET, SO_SNDLOWAT), O(SOL_SOCKET, SO_OOBINLINE),
	O(SOL_SOCKET, SO_PRIORITY), O(SOL_SOCKET, SO_BROADCAST), O(SOL_SOCKET, SO_DONTROUTE), O(SOL_SOCKET, SO_INCOMING_CPU),
	O(SOL_SOCKET, SO_BUSY_POLL), O(SOL_SOCKET, SO_TYPE), O(SOL_SOCKET, SO_DOMAIN), O(SOL_SOCKET, SO_PROTOCOL),
	O(SOL_SOCKET, SO_ACCEPTCONN), O(SOL_SOCKET, SO_ERROR), O(SOL_SOCKET, SO_LINGER), O(SOL_SOCKET, SO_RCVTIMEO),
	O(IPPROTO_IP, IP_TOS), O(IPPROTO_IP, IP_TTL), O(IPPROTO_IP, IP_MTU_DISCOVER), O(IPPROTO_IPV6, IPV6_V6ONLY),
	O(IPPROTO_IPV6, IPV6_TCLASS), O(IPPROTO_IPV6, IPV6_UNICAST_HOPS), O(IPPROTO_TCP, TCP_NODELAY),
	O(IPPROTO_TCP, TCP_CORK), O(IPPROTO_TCP, TCP_QUICKACK), O(IPPROTO_TCP, TCP_MAXSEG), O(IPPROTO_TCP, TCP_KEEPIDLE),
	O(IPPROTO_TCP, TCP_KEEPINTVL), O(IPPROTO_TCP, TCP_KEEPCNT), O(IPPROTO_TCP, TCP_USER_TIMEOUT),
	O(IPPROTO_TCP, TCP_SYNCNT), O(IPPROTO_TCP, TCP_LINGER2), O(IPPROTO_TCP, TCP_DEFER_ACCEPT),
	O(IPPROTO_TCP, TCP_WINDOW_CLAMP), O(IPPROTO_TCP, NEW_TCP_NOTSENT_LOWAT), O(IPPROTO_TCP, NEW_TCP_INQ),
	O(IPPROTO_TCP, TCP_CONGESTION), O(IPPROTO_TCP, TCP_FASTOPEN),
};

/* How much they can be differs by machine. */
static int is_size(const struct option *o)
{
	return o->level == SOL_SOCKET && (o->name == SO_SNDBUF || o->name == SO_RCVBUF || o->name == SO_RCVLOWAT);
}

/* Sets `value` with `len` bytes on a new socket, and tells what is there then. */
static void ask(int family, const struct option *o, int value, socklen_t len)
{
	int s = make(family), got[4] = {0}, first[4] = {0}, given[4] = {value, 0, 0, 0};
	socklen_t room = sizeof first;
	const char *how;
	get(s, o->level, o->name, first, &room);
	room = sizeof got;
	how = told(set(s, o->level, o->name, given, len));
	printf("%s %s %d/%u: %s", family == AF_INET ? "v4" : "v6", o->text, value, len, how);
	if (get(s, o->level, o->name, got, &room) != 0)
		printf(", then %s\n", told(-1));
	else if (o->name == TCP_CONGESTION && o->level == IPPROTO_TCP)
		printf(", then %u bytes\n", room);
	else if (memcmp(got, first, sizeof got) == 0)
		/* What buffers and retries are at first differs by machine too. */
		printf(", then as before/%u\n", room);
	else if (is_size(o) && got[0] > 400000)
		printf(", then much/%u\n", room);
	else
		printf(", then %d/%u\n", got[0], room);
	end(s);
}

static void numbers(void)
{
	static const struct option connecting = O(IPPROTO_TCP, TCP_FASTOPEN_CONNECT);
	static const int values[] = {-1, 0, 1, 2, 3, 4, 127, 128, 255, 256, 70000, 2147483647};
	size_t i, n, family;
	for (family = 0; family < 2; family++)
		for (i = 0; i < sizeof options / sizeof *options; i++) {
			for (n = 0; n < sizeof values / sizeof *values; n++)
				ask(family ? AF_INET6 : AF_INET, &options[i], values[n], sizeof(int));
			for (n = 0; n <= 16; n = n < 3 ? n + 1 : n * 2)
				ask(family ? AF_INET6 : AF_INET, &options[i], 1, (socklen_t)n);
		}
	ask(AF_INET, &connecting, 1, sizeof(int));
}

/* Values with more behind them than any option has. */
static void long_values(void)
{
	static const struct option some[] = {
		O(SOL_SOCKET, SO_KEEPALIVE), O(SOL_SOCKET, SO_LINGER), O(SOL_SOCKET, SO_RCVTIMEO), O(IPPROTO_IP, IP_TTL),
		O(IPPROTO_TCP, TCP_KEEPIDLE), O(IPPROTO_TCP, TCP_CONGESTION), O(SOL_SOCKET, SO_PRIORITY),
	};
	static const socklen_t lengths[] = {17, 255, 256, 257, 4096};
	static unsigned char value[4096];
	unsigned char got[16];
	socklen_t room;
	size_t i, n;
	for (i = 0; i < sizeof some / sizeof *some; i++)
		for (n = 0; n < sizeof lengths / sizeof *lengths; n++) {
			int s = make(AF_INET);
			memset(value, 0xee, sizeof value);
			memset(value, 0, 16);
			if (some[i].level == IPPROTO_TCP && some[i].name == TCP_CONGESTION)
				memcpy(value, "reno", 4);
			else
				value[0] = 1;
			printf("long %s %u: %s", some[i].text, lengths[n], told(set(s, some[i].level, some[i].name, value, lengths[n])));
			memset(got, 0, sizeof got);
			room = sizeof got;
			printf(", %s", told(get(s, some[i].level, some[i].name, got, &room)));
			printf(", %d, %s\n", (int)room, memcmp(got, value, 4) == 0 ? "as given" : "otherwise");
			end(s);
		}
}

/* A getsockopt with little room, or none. */
static void little_room(void)
{
	static const struct option some[] = {
		O(SOL_SOCKET, SO_SNDLOWAT), O(IPPROTO_IP, IP_TTL), O(IPPROTO_IP, IP_TOS), O(IPPROTO_TCP, TCP_NODELAY),
		O(SOL_SOCKET, SO_LINGER), O(IPPROTO_TCP, TCP_CONGESTION),
	};
	unsigned char got[16];
	socklen_t room;
	size_t i, n;
	for (i = 0; i < sizeof some / sizeof *some; i++)
		for (n = 0; n < 6; n++) {
			int s = make(AF_INET);
			room = (socklen_t)(n == 5 ? -1 : (int)n);
			memset(got, 0xee, sizeof got);
			printf("room %s %d: %s", some[i].text, (int)room, told(get(s, some[i].level, some[i].name, got, &room)));
			printf(", %d, %s\n", (int)room, n < 5 && got[n] != 0xee ? "too much" : "no more");
			end(s);
		}
}

static void addresses(void)
{
	struct sockaddr_in any = v4("0.0.0.0", 0), at, one = v4("0.0.0.0", 7003), strange = v4("0.0.0.0", 0);
	struct sockaddr_in6 any6 = v6("::", 0), link = v6("fe80::1", 80), mapped = v6("::ffff:0.0.0.0", 7004);
	socklen_t len = sizeof at;
	struct tcp_info info;
	int s = make(AF_INET), one_int = 1;
	printf("bind to port 0: %s", told(bind_to(s, &any, sizeof any)));
	printf(", %s", told(name_of(s, &at, &len)));
	printf(", %s port", at.sin_port ? "a" : "no");
	one.sin_port = at.sin_port;
	printf(", listen %s", told(start(s)));
	len = sizeof at;
	printf(", %s", told(name_of(s, &at, &len)));
	printf(", %s\n", at.sin_port && (at.sin_port == one.sin_port || one.sin_port == 0) ? "the same" : "another");
	end(s);

	s = make(AF_INET);
	strange.sin_family = AF_UNSPEC;
	strange.sin_port = htons(7005);
	printf("bind AF_UNSPEC to any: %s\n", told(bind_to(s, &strange, sizeof strange)));
	end(s);
	s = make(AF_INET);
	strange.sin_addr.s_addr = htonl(0x0a090001);
	printf("bind AF_UNSPEC to one: %s\n", told(bind_to(s, &strange, sizeof strange)));
	end(s);
	s = make(AF_INET6);
	any6.sin6_family = AF_UNSPEC;
	printf("bind AF_UNSPEC of IPv6: %s\n", told(bind_to(s, &any6, sizeof any6)));
	printf("bind short of IPv6: %s\n", told(bind_to(s, &mapped, 23)));
	printf("bind AF_INET of IPv6: %s\n", told(bind_to(s, &any, sizeof any)));
	printf("bind to a mapped address: %s\n", told(bind_to(s, &mapped, sizeof mapped)));
	end(s);
	s = make(AF_INET6);
	printf("V6ONLY, then a mapped address: %s", told(set(s, IPPROTO_IPV6, IPV6_V6ONLY, &one_int, sizeof one_int)));
	printf(", %s\n", told(bind_to(s, &mapped, sizeof mapped)));
	end(s);
	s = make(AF_INET6);
	any6.sin6_family = AF_INET6;
	any6.sin6_port = htons(7006);
	printf("V6ONLY once bound: %s", told(bind_to(s, &any6, sizeof any6)));
	printf(", %s\n", told(set(s, IPPROTO_IPV6, IPV6_V6ONLY, &one_int, sizeof one_int)));
	end(s);

	s = make(AF_INET);
	strange.sin_family = AF_UNSPEC;
	printf("connect AF_UNSPEC, not connected: %s\n", told(connect_to(s, &strange, sizeof strange)));
	printf("connect of two bytes: %s\n", told(connect_to(s, &strange, 2)));
	printf("connect of one byte: %s\n", told(connect_to(s, &strange, 1)));
	end(s);
	s = make(AF_INET6);
	printf("connect to fe80:: without a scope: %s\n", told(connect_to(s, &link, sizeof link)));
	end(s);
	s = make(AF_INET6);
	printf("bind to fe80:: without a scope: %s\n", told(bind_to(s, &link, sizeof link)));
	end(s);

	s = make(AF_INET);
	len = sizeof info;
	memset(&info, 0xee, sizeof info);
	printf("TCP_INFO, not connected: %s", told(get(s, IPPROTO_TCP, TCP_INFO, &info, &len)));
	printf(", state %d, %u bytes\n", info.tcpi_state, len);
	one = v4("0.0.0.0", 7007);
	len = sizeof info;
	printf("TCP_INFO, listening: %s", told(bind_to(s, &one, sizeof one)));
	printf(" %s", told(start(s)));
	printf(" %s", told(get(s, IPPROTO_TCP, TCP_INFO, &info, &len)));
	printf(", state %d\n", info.tcpi_state);
	printf("connect of a listener: %s\n", told(connect_to(s, &one, sizeof one)));
	end(s);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	if (strcmp(argv[1], "linux") != 0) {
		if (mtcp_init(argv[1]) != 0 || (M = mtcp_create_context(0)) == NULL)
			return 1;
	}
	numbers();
	long_values();
	little_room();
	addresses();
	printf("passed\n");
	return 0;
}
