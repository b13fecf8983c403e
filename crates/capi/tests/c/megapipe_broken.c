/*
 * A server in which the library panics: megapipe_broken CONF. It says when it listens, and what it hears in the end. Exit code 0 where it
 * was told, by this call and those after it.
 */
#include <errno.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct mp_options o;
	struct mp_event ev;
	mp_channel *ch;
	mp_handle handle;
	int listener, n, i, calls = 0;
	if (argc < 2)
		return 1;
	mp_options_init(&o, sizeof o);
	o.engine = MP_ENGINE_LANE;
	o.config = argv[1];
	ch = mp_create(&o);
	if (ch == NULL)
		return 2;
	at.sin_port = htons(80);
	listener = mp_listen_at((struct sockaddr *)&at, sizeof at, 16);
	handle = listener < 0 ? 0 : mp_register(ch, listener, NULL, 0);
	if (handle == 0 || mp_accept(handle, MP_ENDLESS, 1) < 0)
		return 3;
	mp_flush(ch);
	puts("listening");
	fflush(stdout);
	/* A call that panics fails, as those after it do. */
	while ((n = mp_dispatch(ch, &ev, 10000)) > 0) {
		if (ev.cmd == MP_ACCEPT && ev.result == 0 && mp_register(ch, ev.u.accept.fd, NULL, 0) != 0) {
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
		if (mp_dispatch(ch, &ev, 10000) != -1 || errno != ENETDOWN)
			return 7;
	mp_destroy(ch);
	puts("ended");
	return 0;
}
