/*
 * megapipe_ends CONFIG ADDRESS PORT PORTS COUNT HOW: opens COUNT connections over a lane to PORT and those after it, and ends without
 * closing one of them. HOW: "destroy" by mp_destroy, "exit" by exit(3), "thread" by exit(3) while another thread has the channel and
 * waits in mp_dispatch.
 */
#include <arpa/inet.h>
#include <megapipe.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *config;
static struct sockaddr_in to;
static int port, ports, count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_up = PTHREAD_COND_INITIALIZER;
static int up;

/* A channel with all connections, or NULL. */
static mp_channel *open_all(void)
{
	struct mp_options o;
	struct mp_event ev;
	mp_channel *ch;
	int opened = 0, done = 0;

	mp_options_init(&o, sizeof o);
	o.engine = MP_ENGINE_LANE;
	o.config = config;
	ch = mp_create(&o);
	if (!ch)
		return perror("mp_create"), NULL;
	while (done < count) {
		for (int k = 0; k < 256 && opened < count && opened - done < 1000; k++, opened++) {
			int s = mp_socket(ch, AF_INET, SOCK_STREAM, 0);
			mp_handle h = s < 0 ? 0 : mp_register(ch, s, NULL, 0);
			to.sin_port = htons(port + opened % ports);
			if (h == 0 || mp_connect(h, (struct sockaddr *)&to, sizeof to) < 0)
				return perror("mp_connect"), NULL;
		}
		if (mp_dispatch(ch, &ev, 30000) != 1)
			return perror("mp_dispatch"), NULL;
		if (ev.result != 0)
			return fprintf(stderr, "connecting: %s\n", strerror(ev.error)), NULL;
		done++;
	}
	return ch;
}

static void *waits(void *unused)
{
	struct mp_event ev;
	mp_channel *ch = open_all();

	(void)unused;
	pthread_mutex_lock(&lock);
	up = ch ? 1 : -1;
	pthread_cond_signal(&is_up);
	pthread_mutex_unlock(&lock);
	while (ch)
		mp_dispatch(ch, &ev, -1);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	mp_channel *ch;

	if (argc < 7)
		return 1;
	config = argv[1];
	port = atoi(argv[3]);
	ports = atoi(argv[4]);
	count = atoi(argv[5]);
	to.sin_family = AF_INET;
	to.sin_addr.s_addr = inet_addr(argv[2]);
	if (strcmp(argv[6], "thread") == 0) {
		if (pthread_create(&thread, NULL, waits, NULL) != 0)
			return 1;
		pthread_mutex_lock(&lock);
		while (up == 0)
			pthread_cond_wait(&is_up, &lock);
		pthread_mutex_unlock(&lock);
		return up < 0;
	}
	ch = open_all();
	if (!ch)
		return 1;
	if (strcmp(argv[6], "destroy") == 0)
		mp_destroy(ch);
	exit(0);
}
