/*
 * megapipe_serves CONFIG ADDRESS PORT PORTS COUNT HOW: accepts COUNT connections over a lane on PORT and those after it, gives each a byte
 * and waits for one from each, and ends without closing one of them. HOW: "destroy" by mp_destroy, "exit" by exit(3); "close-destroy"
 * and "close-exit" so after the listeners were closed, before the first byte.
 */
#include <arpa/inet.h>
#include <megapipe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PORTS 64

static int listeners[PORTS];
static mp_handle handles[PORTS];

int main(int argc, char **argv)
{
	int ports, count, came = 0, answered = 0;
	struct sockaddr_in at;
	struct mp_options o;
	struct mp_event ev;
	mp_handle *all;
	mp_channel *ch;
	char *bytes;
	time_t until;

	if (argc < 7)
		return 1;
	ports = atoi(argv[4]);
	count = atoi(argv[5]);
	all = calloc(count, sizeof *all);
	bytes = calloc(count, 1);
	mp_options_init(&o, sizeof o);
	o.engine = MP_ENGINE_LANE;
	o.config = argv[1];
	ch = mp_create(&o);
	if (!ch || !all || !bytes || ports > PORTS)
		return perror("mp_create"), 1;
	memset(&at, 0, sizeof at);
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = inet_addr(argv[2]);
	for (int i = 0; i < ports; i++) {
		at.sin_port = htons(atoi(argv[3]) + i);
		listeners[i] = mp_listen_at((struct sockaddr *)&at, sizeof at, 4096);
		handles[i] = listeners[i] < 0 ? 0 : mp_register(ch, listeners[i], NULL, 0);
		if (handles[i] == 0 || mp_accept(handles[i], MP_ENDLESS, 1) < 0)
			return perror("listening"), 1;
	}
	mp_flush(ch);
	puts("ready");
	fflush(stdout);
	while (came < count) {
		if (mp_dispatch(ch, &ev, 30000) != 1 || ev.cmd != MP_ACCEPT || ev.result != 0)
			return fprintf(stderr, "accepting: %d came, %s\n", came, strerror(ev.error)), 1;
		all[came] = mp_register(ch, ev.u.accept.fd, NULL, 0);
		if (all[came++] == 0)
			return perror("mp_register"), 1;
	}
	if (strncmp(argv[6], "close", 5) == 0) {
		for (int i = 0; i < ports; i++)
			if (mp_unregister(handles[i]) < 0 || mp_close(ch, listeners[i]) < 0)
				return perror("closing"), 1;
		/* What becomes of the ports is another thread's, which has its time. */
		for (until = time(NULL) + 3; time(NULL) < until;)
			mp_dispatch(ch, &ev, 100);
	}
	for (int i = 0; i < count; i++)
		if (mp_write(all[i], "c", 1) < 0 || mp_read(all[i], &bytes[i], 1) < 0)
			return perror("mp_write"), 1;
	/* As long as there are answers. */
	for (until = time(NULL) + 20; answered < count && time(NULL) < until;)
		if (mp_dispatch(ch, &ev, 100) == 1 && ev.cmd == MP_READ) {
			answered += ev.result == 0 && ev.u.io.size == 1;
			until = time(NULL) + 20;
		}
	printf("%d answered\n", answered);
	fflush(stdout);
	if (strstr(argv[6], "destroy"))
		mp_destroy(ch);
	exit(0);
}
