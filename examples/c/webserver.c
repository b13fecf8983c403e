/*
 * A web server with mTCP's API, in the manner of its epserver: one thread and context for each core, the files of one directory,
 * HTTP/1.1 with keep-alive, GET and HEAD.
 *
 *   webserver -p DIRECTORY -f CONF [-P PORT] [-N CORES]
 */
#include "common.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

#define EVENTS 256
#define REQUEST 4096
#define FILES 4096

struct file {
	char name[256];
	int fd;
	off_t size;
};

/* What a connection is in the middle of. */
struct conn {
	char request[REQUEST];
	size_t len;
	char head[256];
	size_t head_len, head_sent;
	const struct file *file; /* being sent, from `at` on */
	off_t at;
	int keep;
};

static struct file files[FILES];
static int count, port = 80;
static const char *conf;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static void open_files(const char *directory)
{
	DIR *dir = opendir(directory);
	struct dirent *entry;
	struct stat st;
	char path[4096];
	if (dir == NULL) {
		perror(directory);
		exit(1);
	}
	while (count < FILES && (entry = readdir(dir)) != NULL) {
		struct file *f = &files[count];
		if (snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) >= (int)sizeof path)
			continue;
		f->fd = open(path, O_RDONLY | O_CLOEXEC);
		if (f->fd < 0 || fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
			if (f->fd >= 0)
				close(f->fd);
			continue;
		}
		snprintf(f->name, sizeof f->name, "%s", entry->d_name);
		f->size = st.st_size;
		count++;
	}
	closedir(dir);
}

static const struct file *find(const char *name, size_t len)
{
	int i;
	for (i = 0; i < count; i++)
		if (strlen(files[i].name) == len && memcmp(files[i].name, name, len) == 0)
			return &files[i];
	return NULL;
}

/* Answers the first request, if it is whole. -1: it cannot be read; 0: more is to come. */
static int answer(struct conn *c)
{
	const char *end, *path, *stop_at;
	const char *status = "200 OK";
	size_t used;
	int head;
	c->request[c->len] = 0;
	end = strstr(c->request, "\r\n\r\n");
	if (end == NULL)
		return c->len < REQUEST - 1 ? 0 : -1;
	used = (size_t)(end + 4 - c->request);
	c->request[used - 2] = 0; /* what follows is the next request's */
	head = strncmp(c->request, "HEAD /", 6) == 0;
	if (!head && strncmp(c->request, "GET /", 5) != 0)
		return -1;
	path = strchr(c->request, '/') + 1;
	stop_at = path + strcspn(path, " ?\r\n");
	c->file = find(path, (size_t)(stop_at - path));
	c->keep = strncmp(stop_at, " HTTP/1.1", 9) == 0 ? strcasestr(c->request, "\r\nConnection: close") == NULL
	                                                : strcasestr(c->request, "\r\nConnection: keep-alive") != NULL;
	if (c->file == NULL)
		status = "404 Not Found";
	c->head_len = (size_t)snprintf(c->head, sizeof c->head, "HTTP/1.1 %s\r\nContent-Length: %lld\r\nConnection: %s\r\n\r\n",
	                               status, c->file ? (long long)c->file->size : 0LL, c->keep ? "keep-alive" : "close");
	c->head_sent = 0;
	c->at = 0;
	if (head)
		c->file = NULL;
	memmove(c->request, c->request + used, c->len - used);
	c->len -= used;
	return 1;
}

/* Sends what is left of an answer. -1: failed; 0: not all, MTCP_EPOLLOUT will come; 1: done. */
static int send_on(mctx_t mctx, int id, struct conn *c)
{
	ssize_t n;
	while (c->head_sent < c->head_len) {
		n = mtcp_write(mctx, id, c->head + c->head_sent, c->head_len - c->head_sent);
		if (n < 0)
			return errno == EAGAIN ? 0 : -1;
		c->head_sent += (size_t)n;
	}
	while (c->file != NULL && c->at < c->file->size) {
		n = mtcp_sendfile(mctx, id, c->file->fd, &c->at, (size_t)(c->file->size - c->at));
		if (n < 0)
			return errno == EAGAIN ? 0 : -1;
		if (n == 0)
			return -1;
	}
	return 1;
}

/* Goes on with a connection. Whether it lives. */
static int go_on(mctx_t mctx, int id, struct conn *c)
{
	ssize_t n;
	int what;
	for (;;) {
		if (c->head_len > 0) {
			what = send_on(mctx, id, c);
			if (what <= 0)
				return what == 0;
			c->head_len = 0;
			if (!c->keep)
				return 0;
		}
		what = answer(c);
		if (what < 0)
			return 0;
		if (what > 0)
			continue;
		n = mtcp_read(mctx, id, c->request + c->len, REQUEST - 1 - c->len);
		if (n <= 0)
			return n < 0 && errno == EAGAIN;
		c->len += (size_t)n;
	}
}

static void *serve(void *arg)
{
	int core = *(int *)arg, listener, ep, i, n, id;
	struct mtcp_epoll_event event, events[EVENTS];
	struct sockaddr_in6 any;
	struct mtcp_conf sizes;
	struct conn *conns;
	mctx_t mctx;
	mtcp_core_affinitize(core);
	mctx = mtcp_create_context(core);
	if (mctx == NULL) {
		perror("mtcp_create_context");
		exit(1);
	}
	mtcp_getconf(&sizes);
	conns = calloc((size_t)sizes.max_concurrency, sizeof *conns);
	ep = mtcp_epoll_create(mctx, EVENTS);
	listener = mtcp_socket(mctx, AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
	memset(&any, 0, sizeof any);
	any.sin6_family = AF_INET6;
	any.sin6_port = htons((uint16_t)port);
	if (conns == NULL || mtcp_bind(mctx, listener, (struct sockaddr *)&any, sizeof any) != 0 ||
	    mtcp_listen(mctx, listener, 4096) != 0) {
		perror("listening");
		exit(1);
	}
	event.events = MTCP_EPOLLIN;
	event.data.sockid = listener;
	mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, listener, &event);
	if (core == 0) {
		printf("serving %d files on port %d\n", count, port);
		fflush(stdout);
	}
	while (!stopped) {
		n = mtcp_epoll_wait(mctx, ep, events, EVENTS, -1);
		if (n < 0 && errno != EINTR) {
			perror("mtcp_epoll_wait");
			break;
		}
		for (i = 0; i < n; i++) {
			id = events[i].data.sockid;
			if (id != listener) {
				if ((events[i].events & MTCP_EPOLLERR) || !go_on(mctx, id, &conns[id]))
					mtcp_close(mctx, id);
				continue;
			}
			while ((id = mtcp_accept(mctx, listener, NULL, NULL)) >= 0) {
				conns[id].len = conns[id].head_len = 0;
				mtcp_setsock_nonblock(mctx, id);
				event.events = (uint32_t)(MTCP_EPOLLIN | MTCP_EPOLLOUT | MTCP_EPOLLET);
				event.data.sockid = id;
				mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, id, &event);
			}
		}
	}
	mtcp_destroy_context(mctx);
	free(conns);
	return NULL;
}

static int usage(void)
{
	fprintf(stderr, "usage: webserver -p DIRECTORY -f CONF [-P PORT] [-N CORES]\n");
	return 2;
}

int main(int argc, char **argv)
{
	int option, cores = 1, i, *number;
	const char *directory = NULL;
	struct mtcp_conf sizes;
	pthread_t *threads;
	while ((option = getopt(argc, argv, "p:f:P:N:")) != -1) {
		switch (option) {
		case 'p': directory = optarg; break;
		case 'f': conf = optarg; break;
		case 'P': port = (int)number_of("webserver", "-P", optarg, 1, 65535); break;
		case 'N': cores = (int)number_of("webserver", "-N", optarg, 1, 128); break;
		default: return usage();
		}
	}
	if (conf == NULL || directory == NULL)
		return usage();
	open_files(directory);
	if (mtcp_init(conf) != 0)
		return 1;
	mtcp_getconf(&sizes);
	sizes.num_cores = cores;
	mtcp_setconf(&sizes);
	mtcp_register_signal(SIGINT, stop);
	mtcp_register_signal(SIGTERM, stop);
	threads = calloc((size_t)cores, sizeof *threads);
	number = calloc((size_t)cores, sizeof *number);
	if (threads == NULL || number == NULL) {
		perror("threads");
		return 1;
	}
	for (i = 0; i < cores; i++) {
		number[i] = i;
		if (pthread_create(&threads[i], NULL, serve, &number[i]) != 0) {
			fprintf(stderr, "no thread for core %d\n", i);
			return 1;
		}
	}
	for (i = 0; i < cores; i++)
		pthread_join(threads[i], NULL);
	mtcp_destroy();
	free(threads);
	free(number);
	return 0;
}
