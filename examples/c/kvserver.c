/*
 * A key-value server that speaks memcached's text protocol, with MegaPipe's API, over either engine.
 *
 *   kvserver [-e uring|lane:CONFIG] [-a ADDRESS] [-p PORT] [-t THREADS] [-m MIB]
 *
 * get, gets, set, add, replace, append, prepend, cas, delete, incr, decr, touch, flush_all, stats, version, verbosity, quit, with
 * noreply; expiry; what was used least recently makes room within the memory limit, of which large requests and answers under way
 * may have half. Each thread has a channel on a core of its own and its part of the listener; the store is cut into shards, each
 * with a lock.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <megapipe.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define VERSION "corelane-kv 0.1"
#define MOST_KEY 250
#define MOST_VALUE (1u << 20)
#define MOST_LINE 8192
#define MOST_GET (1u << 20) /* the line of a get with many keys */
#define MOST_OUT (256u << 10) /* answers that are gathered before the client has to read some */
#define MOST_ANSWER 1024    /* any but a get's */
#define KEPT (16u << 10)    /* memory that an idle connection keeps, each way */
#define SPARES 1024         /* connections that have ended, kept for those to come */
#define FIRST_OUT 4096      /* memory for answers, as long as there are any: a thread's connections share it */
#define SPARE_OUTS 256
#define MOST_THREADS 64
#define MONTH (60 * 60 * 24 * 30)

/* The store. */

struct item {
	struct item *next;          /* in its place of the table */
	struct item *newer, *older; /* by use */
	uint64_t hash, cas;
	int64_t expires;            /* seconds; 0: never */
	uint32_t flags, value;      /* value: bytes of it */
	uint8_t key;                /* bytes of it */
	char data[];                /* key, value */
};

struct shard {
	pthread_mutex_t lock;
	struct item **table;
	size_t places, items, bytes, limit;
	struct item *newest, *oldest;
	uint64_t evictions, total;
};

static struct shard shards[MOST_THREADS * 8];
static unsigned int nshards = 1;
static uint64_t secret[2];
static uint64_t last_cas;    /* atomic */
static uint64_t flushed;     /* atomic: what has this cas or less is no more */
static int64_t flush_at;     /* atomic: when all that is there then is no more; 0 */

struct counters {
	uint64_t get, set, hits, misses, touch, connections, total_connections;
};

struct worker {
	mp_channel *channel;
	mp_handle listening;
	struct counters counters; /* its thread's; others read it */
	int number;
	int64_t full; /* since when no more connections are accepted: there was no room for one; 0 */
	int ended;    /* a connection has, since then */
	int lends;    /* more than before: the store has to make room */
	struct connection *spare;
	int spares;
	char *outs[SPARE_OUTS]; /* of FIRST_OUT bytes; the one used last, which the caches have, goes first */
	int nouts;
};

static struct worker workers[MOST_THREADS];
static int threads = 1, cpus[MOST_THREADS];
static size_t limit = 64u << 20;
static size_t lent; /* atomic: what connections hold beyond KEPT */
static time_t started;
static __thread int64_t now;
static __thread struct worker *me;

#define ROTATE(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define ROUND \
	(v0 += v1, v1 = ROTATE(v1, 13), v1 ^= v0, v0 = ROTATE(v0, 32), v2 += v3, v3 = ROTATE(v3, 16), v3 ^= v2, \
	 v0 += v3, v3 = ROTATE(v3, 21), v3 ^= v0, v2 += v1, v1 = ROTATE(v1, 17), v1 ^= v2, v2 = ROTATE(v2, 32))

/* SipHash-1-3 under a secret key: clients cannot choose what collides. */
static uint64_t hash_of(const char *key, size_t n)
{
	uint64_t v0 = secret[0] ^ 0x736f6d6570736575u, v1 = secret[1] ^ 0x646f72616e646f6du;
	uint64_t v2 = secret[0] ^ 0x6c7967656e657261u, v3 = secret[1] ^ 0x7465646279746573u, m;
	size_t left = n;
	for (; left >= 8; key += 8, left -= 8) {
		memcpy(&m, key, 8);
		v3 ^= m;
		ROUND;
		v0 ^= m;
	}
	m = 0;
	memcpy(&m, key, left);
	m |= (uint64_t)n << 56;
	v3 ^= m;
	ROUND;
	v0 ^= m;
	v2 ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

static size_t cost(const struct item *it)
{
	/* The allocator's word and the table's share. */
	return sizeof *it + it->key + it->value + 24;
}

/* One thread has nobody to wait for, and nothing to finish before others may see it. */
static void lock(struct shard *s)
{
	if (threads > 1)
		pthread_mutex_lock(&s->lock);
}

static void unlock(struct shard *s)
{
	if (threads > 1)
		pthread_mutex_unlock(&s->lock);
}

static struct shard *shard_of(uint64_t hash)
{
	return &shards[(hash >> 40) % nshards];
}

static void unlink_use(struct shard *s, struct item *it)
{
	*(it->newer ? &it->newer->older : &s->newest) = it->older;
	*(it->older ? &it->older->newer : &s->oldest) = it->newer;
}

static void link_newest(struct shard *s, struct item *it)
{
	it->newer = NULL;
	it->older = s->newest;
	*(s->newest ? &s->newest->newer : &s->oldest) = it;
	s->newest = it;
}

static void drop(struct shard *s, struct item *it)
{
	struct item **at = &s->table[it->hash & (s->places - 1)];
	while (*at != it)
		at = &(*at)->next;
	*at = it->next;
	unlink_use(s, it);
	s->items--;
	s->bytes -= cost(it);
	free(it);
}

/* What a shard may have: its share of what is not lent. */
static size_t room_of(const struct shard *s)
{
	size_t away = __atomic_load_n(&lent, __ATOMIC_RELAXED) / nshards;
	return s->limit > away ? s->limit - away : 0;
}

static int is_over(const struct item *it)
{
	return (it->expires != 0 && it->expires <= now) || it->cas <= __atomic_load_n(&flushed, __ATOMIC_RELAXED);
}

/* A delayed flush_all has come: what is there now is no more. */
static void flush_when_due(void)
{
	int64_t at = __atomic_load_n(&flush_at, __ATOMIC_RELAXED);
	if (at != 0 && at <= now && __atomic_compare_exchange_n(&flush_at, &at, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		__atomic_store_n(&flushed, __atomic_load_n(&last_cas, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

static struct item *find(struct shard *s, uint64_t hash, const char *key, size_t n)
{
	struct item *it = s->table[hash & (s->places - 1)];
	while (it != NULL && (it->hash != hash || it->key != n || memcmp(it->data, key, n) != 0))
		it = it->next;
	if (it != NULL && is_over(it)) {
		drop(s, it);
		it = NULL;
	}
	return it;
}

static void grow(struct shard *s)
{
	size_t places = s->places * 2, i;
	struct item **table = calloc(places, sizeof *table);
	if (table == NULL)
		return; /* longer chains, then */
	for (i = 0; i < s->places; i++) {
		struct item *it, *next;
		for (it = s->table[i]; it != NULL; it = next) {
			next = it->next;
			it->next = table[it->hash & (places - 1)];
			table[it->hash & (places - 1)] = it;
		}
	}
	free(s->table);
	s->table = table;
	s->places = places;
}

/* A new item with room for its value, in nobody's hands yet; NULL where there is no memory for it. */
static struct item *new_item(const char *key, size_t n, uint64_t hash, uint32_t flags, int64_t expires, size_t value)
{
	struct item *it = malloc(sizeof *it + n + value);
	if (it == NULL)
		return NULL;
	it->hash = hash;
	it->flags = flags;
	it->expires = expires;
	it->key = (uint8_t)n;
	it->value = (uint32_t)value;
	memcpy(it->data, key, n);
	return it;
}

/* What was used least recently goes until so much fits into `room`. */
static void evict(struct shard *s, size_t more, size_t room)
{
	while (s->oldest != NULL && s->bytes + more > room) {
		if (!is_over(s->oldest))
			s->evictions++;
		drop(s, s->oldest);
	}
}

/* More is lent: all shards have less. */
static void make_room(void)
{
	unsigned int i;
	for (i = 0; i < nshards; i++) {
		lock(&shards[i]);
		evict(&shards[i], 0, room_of(&shards[i]));
		unlock(&shards[i]);
	}
}

/* Puts an item in the place of `old`, if there is one; what was used least recently makes room. 0: there is none. */
static int put(struct shard *s, struct item *it, struct item *old)
{
	size_t room = room_of(s);
	if (cost(it) > room)
		return 0;
	if (old != NULL)
		drop(s, old);
	evict(s, cost(it), room);
	if (s->items >= s->places + s->places / 2)
		grow(s);
	it->cas = __atomic_add_fetch(&last_cas, 1, __ATOMIC_RELAXED);
	it->next = s->table[it->hash & (s->places - 1)];
	s->table[it->hash & (s->places - 1)] = it;
	link_newest(s, it);
	s->items++;
	s->total++;
	s->bytes += cost(it);
	return 1;
}

/* Connections. */

struct bytes {
	char *at;
	size_t len, room;
};

struct connection {
	mp_handle handle;
	struct connection *next; /* of the spare ones */
	struct bytes in;  /* of a request that has not come whole */
	struct bytes out; /* answers; with the library while `writing` */
	size_t parsed;    /* of `in` */
	size_t need;      /* bytes of the request that has not come whole, where it says; they are lent */
	size_t held;      /* of what is lent */
	size_t swallow;   /* bytes of a value that is not taken */
	int getting;      /* in the middle of a get: 1, or 2 of a gets */
	int quiet;        /* the request wants no answer */
	int writing, closing, failed;
};

/* Counts what a connection holds, with so much room each way. 0: so much is not lent. */
static int hold(struct connection *c, size_t in, size_t out)
{
	if (in < c->need)
		in = c->need;
	size_t holds = (in > KEPT ? in - KEPT : 0) + (out > KEPT ? out - KEPT : 0);
	if (holds > c->held) {
		size_t more = holds - c->held;
		if (__atomic_add_fetch(&lent, more, __ATOMIC_RELAXED) > limit / 2) {
			__atomic_sub_fetch(&lent, more, __ATOMIC_RELAXED);
			return 0;
		}
		me->lends = 1;
	} else {
		__atomic_sub_fetch(&lent, c->held - holds, __ATOMIC_RELAXED);
	}
	c->held = holds;
	return 1;
}

static void let_go(struct connection *c, struct bytes *b)
{
	if (b->room == FIRST_OUT && b == &c->out && me->nouts < SPARE_OUTS)
		me->outs[me->nouts++] = b->at;
	else
		free(b->at);
	memset(b, 0, sizeof *b);
	hold(c, c->in.room, c->out.room);
}

/* A request of which so many bytes will come. 0: there is no memory for it. */
static int expect(struct connection *c, size_t bytes)
{
	c->need = bytes;
	if (hold(c, c->in.room, c->out.room))
		return 1;
	c->need = 0;
	return 0;
}

/* Room for more; much of it is not doubled. 0: there is none. */
static int reserve(struct connection *c, struct bytes *b, size_t more)
{
	size_t want = b->len + more, room = b->room ? b->room : b == &c->out ? FIRST_OUT : 1024;
	if (b == &c->in && want < c->need)
		want = c->need;
	if (want <= b->room)
		return 1;
	if (b == &c->out && b->room == 0 && want <= FIRST_OUT && me->nouts > 0) {
		b->at = me->outs[--me->nouts];
		b->room = FIRST_OUT;
		return 1;
	}
	while (room < want)
		room = room < MOST_OUT ? room * 2 : want;
	if (!hold(c, b == &c->in ? room : c->in.room, b == &c->out ? room : c->out.room))
		return 0;
	char *at = realloc(b->at, room);
	if (at == NULL)
		return 0; /* what is counted now goes with the connection */
	b->at = at;
	b->room = room;
	return 1;
}

static void add(struct connection *c, const void *data, size_t n)
{
	if (!reserve(c, &c->out, n)) {
		c->failed = 1;
		return;
	}
	memcpy(c->out.at + c->out.len, data, n);
	c->out.len += n;
}

static void say(struct connection *c, const char *format, ...)
{
	char line[512];
	va_list args;
	if (c->quiet)
		return;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line, format, args);
	va_end(args);
	add(c, line, (size_t)n);
}

/* A space and a number: what every value has before it is not worth a format. */
static void add_number(struct connection *c, uint64_t number)
{
	char text[24], *at = text + sizeof text;
	do
		*--at = (char)('0' + number % 10);
	while ((number /= 10) != 0);
	*--at = ' ';
	add(c, at, (size_t)(text + sizeof text - at));
}

/* Requests. */

#define MOST_WORDS 8

struct word {
	const char *at;
	size_t n;
};

static int is(struct word w, const char *text)
{
	return w.n == strlen(text) && memcmp(w.at, text, w.n) == 0;
}

static struct word next_word(const char **at, const char *end)
{
	struct word w;
	while (*at < end && **at == ' ')
		++*at;
	w.at = *at;
	while (*at < end && **at != ' ')
		++*at;
	w.n = (size_t)(*at - w.at);
	return w;
}

/* A number that is not below 0; 0: it is none, or too large. */
static int number(struct word w, uint64_t most, uint64_t *value)
{
	size_t i;
	uint64_t v = 0;
	if (w.n > 1 && w.at[0] == '+')
		w.at++, w.n--;
	for (i = 0; i < w.n; i++) {
		uint64_t digit = (uint64_t)(w.at[i] - '0');
		if (w.at[i] < '0' || w.at[i] > '9' || v > (most - digit) / 10 || digit > most)
			return 0;
		v = v * 10 + digit;
	}
	*value = v;
	return w.n > 0;
}

/* An expiry as memcached has it: 0 never, below 0 at once, up to 30 days from now, else a time. 0: it is none. */
static int expiry(struct word w, int64_t *at)
{
	int negative = w.n > 0 && w.at[0] == '-';
	uint64_t v;
	if (negative)
		w.at++, w.n--;
	if (!number(w, INT64_MAX, &v))
		return 0;
	if (v == 0 && !negative)
		*at = 0;
	else if (negative)
		*at = 1;
	else
		*at = v <= MONTH ? now + (int64_t)v : (int64_t)v;
	return 1;
}

static void bad_line(struct connection *c)
{
	say(c, "CLIENT_ERROR bad command line format\r\n");
}

/* What is no request at all has an answer in any case. */
static void error(struct connection *c)
{
	c->quiet = 0;
	say(c, "ERROR\r\n");
}

/* The keys of a get, or those that are left of it; where it has to stop, because the client has to read first, or `end`. */
static const char *get(struct connection *c, const char *at, const char *end, int with_cas)
{
	const char *before = at;
	struct word key;
	if (!c->getting) {
		const char *all = at;
		size_t n = 0;
		while ((key = next_word(&all, end)).n > 0 && ++n)
			if (key.n > MOST_KEY) {
				bad_line(c);
				return end;
			}
		if (n == 0) {
			error(c);
			return end;
		}
	}
	c->getting = with_cas ? 2 : 1;
	while ((key = next_word(&at, end)).n > 0) {
		if (c->out.len >= MOST_OUT)
			return before;
		uint64_t hash = hash_of(key.at, key.n);
		struct shard *s = shard_of(hash);
		lock(s);
		struct item *it = find(s, hash, key.at, key.n);
		if (it != NULL && !reserve(c, &c->out, it->key + (size_t)it->value + MOST_ANSWER)) {
			unlock(s);
			if (c->out.len > 0)
				return before; /* when this is written there may be */
			c->getting = 0;
			c->closing = 1;
			say(c, "SERVER_ERROR out of memory writing get response\r\n");
			return end;
		}
		before = at;
		me->counters.get++;
		if (it != NULL) {
			me->counters.hits++;
			unlink_use(s, it);
			link_newest(s, it);
			add(c, "VALUE ", 6);
			add(c, it->data, it->key);
			add_number(c, it->flags);
			add_number(c, it->value);
			if (with_cas)
				add_number(c, it->cas);
			add(c, "\r\n", 2);
			add(c, it->data + it->key, it->value);
			add(c, "\r\n", 2);
		} else {
			me->counters.misses++;
		}
		unlock(s);
	}
	add(c, "END\r\n", 5);
	c->getting = 0;
	return end;
}

/* A key is no more; whether it was. */
static int forget(struct word key)
{
	uint64_t hash = hash_of(key.at, key.n);
	struct shard *s = shard_of(hash);
	lock(s);
	struct item *it = find(s, hash, key.at, key.n);
	if (it != NULL)
		drop(s, it);
	unlock(s);
	return it != NULL;
}

/*
 * set and its like: the value follows the line. How many bytes were used, behind the line; -1: it has not come whole.
 */
static ssize_t store(struct connection *c, struct word *w, int n, size_t line, const char *value, size_t there)
{
	uint64_t flags, bytes, cas = 0;
	int64_t expires;
	int with_cas = is(w[0], "cas"), words = with_cas ? 6 : 5;
	const char *answer = "STORED";
	if (n < words || n > words + 1) {
		error(c);
		return 0;
	}
	if (w[1].n > MOST_KEY || !number(w[2], UINT32_MAX, &flags) || !expiry(w[3], &expires) ||
	    !number(w[4], INT32_MAX - 2, &bytes) || (with_cas && !number(w[5], UINT64_MAX, &cas))) {
		bad_line(c);
		return 0;
	}
	if (bytes > MOST_VALUE) {
		if (is(w[0], "set"))
			forget(w[1]); /* what was there is not what was set */
		say(c, "SERVER_ERROR object too large for cache\r\n");
		c->swallow = bytes + 2;
		return 0;
	}
	if (there < bytes + 2) {
		if (expect(c, line + bytes + 2))
			return -1;
		if (is(w[0], "set"))
			forget(w[1]);
		say(c, "SERVER_ERROR out of memory storing object\r\n");
		c->swallow = bytes + 2;
		return 0;
	}
	c->need = 0;
	if (memcmp(value + bytes, "\r\n", 2) != 0) {
		say(c, "CLIENT_ERROR bad data chunk\r\n");
		return (ssize_t)bytes + 2;
	}
	me->counters.set++;
	uint64_t hash = hash_of(w[1].at, w[1].n);
	struct shard *s = shard_of(hash);
	lock(s);
	struct item *old = find(s, hash, w[1].at, w[1].n), *it;
	int joins = is(w[0], "append") || is(w[0], "prepend");
	if (is(w[0], "add") && old != NULL) {
		/* It counts as a use. */
		unlink_use(s, old);
		link_newest(s, old);
		answer = "NOT_STORED";
	} else if ((is(w[0], "replace") || joins) && old == NULL) {
		answer = "NOT_STORED";
	} else if (with_cas && old == NULL) {
		answer = "NOT_FOUND";
	} else if (with_cas && old->cas != cas) {
		answer = "EXISTS";
	} else if (joins && old->value + bytes > MOST_VALUE) {
		answer = "NOT_STORED";
	} else {
		size_t before = joins ? old->value : 0;
		it = new_item(w[1].at, w[1].n, hash, joins ? old->flags : (uint32_t)flags, joins ? old->expires : expires,
			before + bytes);
		if (it != NULL) {
			char *to = it->data + it->key;
			if (joins)
				memcpy(is(w[0], "append") ? to : to + bytes, old->data + old->key, before);
			memcpy(is(w[0], "append") ? to + before : to, value, bytes);
		}
		if (it == NULL || !put(s, it, old)) {
			free(it);
			answer = "SERVER_ERROR out of memory storing object";
		}
	}
	unlock(s);
	say(c, "%s\r\n", answer);
	return (ssize_t)bytes + 2;
}

static void count(struct connection *c, struct word *w, int n)
{
	uint64_t delta, value = 0;
	int negative = is(w[0], "decr");
	char text[24];
	if (n < 3 || n > 4) {
		error(c);
		return;
	}
	if (w[1].n > MOST_KEY) {
		bad_line(c);
		return;
	}
	if (!number(w[2], UINT64_MAX, &delta)) {
		say(c, "CLIENT_ERROR invalid numeric delta argument\r\n");
		return;
	}
	const char *failed = NULL;
	uint64_t hash = hash_of(w[1].at, w[1].n);
	struct shard *s = shard_of(hash);
	lock(s);
	struct item *old = find(s, hash, w[1].at, w[1].n), *it;
	struct word is_now = { old ? old->data + old->key : NULL, old ? old->value : 0 };
	while (is_now.n > 0 && is_now.at[is_now.n - 1] == ' ')
		is_now.n--;
	if (old == NULL) {
		failed = "NOT_FOUND";
	} else if (!number(is_now, UINT64_MAX, &value)) {
		failed = "CLIENT_ERROR cannot increment or decrement non-numeric value";
	} else {
		if (negative)
			value = value > delta ? value - delta : 0;
		else
			value += delta; /* it wraps around */
		/* The value gets no shorter: spaces follow. */
		size_t len = (size_t)snprintf(text, sizeof text, "%" PRIu64, value), room = len > old->value ? len : old->value;
		it = new_item(w[1].at, w[1].n, hash, old->flags, old->expires, room);
		if (it != NULL) {
			memset(it->data + it->key, ' ', room);
			memcpy(it->data + it->key, text, len);
		}
		if (it == NULL || !put(s, it, old)) {
			free(it);
			failed = "SERVER_ERROR out of memory in incr";
		}
	}
	unlock(s);
	if (failed != NULL)
		say(c, "%s\r\n", failed);
	else
		say(c, "%" PRIu64 "\r\n", value);
}

static void delete_key(struct connection *c, struct word *w, int n)
{
	int words = n - c->quiet;
	if (n < 2 || n > 4) {
		error(c);
		return;
	}
	/* A time of 0 was allowed once. */
	if (words > 3 || (words == 3 && !is(w[2], "0"))) {
		say(c, "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n");
		return;
	}
	if (w[1].n > MOST_KEY)
		bad_line(c);
	else
		say(c, forget(w[1]) ? "DELETED\r\n" : "NOT_FOUND\r\n");
}

static void touch(struct connection *c, struct word *w, int n)
{
	int64_t expires;
	if (n < 3 || n > 4) {
		error(c);
		return;
	}
	if (w[1].n > MOST_KEY) {
		bad_line(c);
		return;
	}
	if (!expiry(w[2], &expires)) {
		say(c, "CLIENT_ERROR invalid exptime argument\r\n");
		return;
	}
	me->counters.touch++;
	uint64_t hash = hash_of(w[1].at, w[1].n);
	struct shard *s = shard_of(hash);
	lock(s);
	struct item *it = find(s, hash, w[1].at, w[1].n);
	if (it != NULL) {
		it->expires = expires;
		unlink_use(s, it);
		link_newest(s, it);
	}
	unlock(s);
	say(c, it != NULL ? "TOUCHED\r\n" : "NOT_FOUND\r\n");
}

static void flush_all(struct connection *c, struct word *w, int n)
{
	int64_t at = 0;
	if (n > 3) {
		error(c);
		return;
	}
	if (n - c->quiet > 1 && !expiry(w[1], &at)) {
		say(c, "CLIENT_ERROR invalid exptime argument\r\n");
		return;
	}
	if (at == 0)
		at = now;
	__atomic_store_n(&flush_at, at, __ATOMIC_RELAXED);
	flush_when_due();
	say(c, "OK\r\n");
}

static void verbosity(struct connection *c, struct word *w, int n)
{
	uint64_t level;
	if (n < 2 || n > 3)
		error(c);
	else if (!number(w[1], UINT32_MAX, &level))
		bad_line(c);
	else
		say(c, "OK\r\n"); /* it has nothing to tell */
}

static void stats(struct connection *c)
{
	struct counters all = { 0, 0, 0, 0, 0, 0, 0 };
	uint64_t items = 0, bytes = 0, total = 0, evictions = 0;
	int i;
	for (i = 0; i < threads; i++) {
		struct counters *k = &workers[i].counters;
#define SUM(name) all.name += __atomic_load_n(&k->name, __ATOMIC_RELAXED)
		SUM(get), SUM(set), SUM(hits), SUM(misses), SUM(touch), SUM(connections), SUM(total_connections);
#undef SUM
	}
	for (i = 0; i < (int)nshards; i++) {
		lock(&shards[i]);
		items += shards[i].items;
		bytes += shards[i].bytes;
		total += shards[i].total;
		evictions += shards[i].evictions;
		unlock(&shards[i]);
	}
	say(c, "STAT pid %d\r\nSTAT uptime %" PRId64 "\r\nSTAT time %" PRId64 "\r\nSTAT version " VERSION "\r\n", (int)getpid(),
		now - (int64_t)started, now);
	say(c, "STAT pointer_size %d\r\nSTAT curr_connections %" PRIu64 "\r\nSTAT total_connections %" PRIu64 "\r\n",
		(int)sizeof(void *) * 8, all.connections, all.total_connections);
	say(c, "STAT cmd_get %" PRIu64 "\r\nSTAT cmd_set %" PRIu64 "\r\nSTAT cmd_touch %" PRIu64 "\r\n", all.get, all.set, all.touch);
	say(c, "STAT get_hits %" PRIu64 "\r\nSTAT get_misses %" PRIu64 "\r\n", all.hits, all.misses);
	say(c, "STAT curr_items %" PRIu64 "\r\nSTAT total_items %" PRIu64 "\r\nSTAT bytes %" PRIu64 "\r\n", items, total, bytes);
	say(c, "STAT connection_bytes %zu\r\n", __atomic_load_n(&lent, __ATOMIC_RELAXED));
	say(c, "STAT limit_maxbytes %zu\r\nSTAT evictions %" PRIu64 "\r\nSTAT threads %d\r\nEND\r\n", limit, evictions, threads);
}

/* One request of those bytes: how many it used; 0: it has not come whole. */
static size_t request(struct connection *c, const char *in, size_t len)
{
	if (c->swallow > 0) {
		size_t n = len < c->swallow ? len : c->swallow;
		c->swallow -= n;
		return n;
	}
	const char *lf = memchr(in, '\n', len);
	c->quiet = 0;
	if (lf == NULL) {
		if (len > MOST_LINE && (len > MOST_GET || (memcmp(in, "get", 3) != 0 && !c->getting))) {
			say(c, "CLIENT_ERROR line too long\r\n");
			c->closing = 1;
		}
		return 0;
	}
	const char *end = lf > in && lf[-1] == '\r' ? lf - 1 : lf, *at = in;
	size_t line = (size_t)(lf + 1 - in);
	struct word w[MOST_WORDS + 1];
	int n = 1;
	if (!c->getting)
		w[0] = next_word(&at, end);
	if (c->getting || is(w[0], "get") || is(w[0], "gets")) {
		at = get(c, at, end, c->getting ? c->getting == 2 : w[0].n == 4);
		return c->getting ? (size_t)(at - in) : line;
	}
	while (n <= MOST_WORDS && (w[n] = next_word(&at, end)).n > 0)
		n++;
	c->quiet = n > 1 && n <= MOST_WORDS && is(w[n - 1], "noreply") && (n > 2 || !is(w[0], "delete"));
	if (is(w[0], "set") || is(w[0], "add") || is(w[0], "replace") || is(w[0], "append") || is(w[0], "prepend") ||
	    is(w[0], "cas")) {
		ssize_t used = store(c, w, n, line, lf + 1, len - line);
		return used < 0 ? 0 : line + (size_t)used;
	}
	if (is(w[0], "delete"))
		delete_key(c, w, n);
	else if (is(w[0], "incr") || is(w[0], "decr"))
		count(c, w, n);
	else if (is(w[0], "touch"))
		touch(c, w, n);
	else if (is(w[0], "flush_all"))
		flush_all(c, w, n);
	else if (is(w[0], "verbosity"))
		verbosity(c, w, n);
	else if (is(w[0], "quit"))
		c->closing = 1;
	else {
		c->quiet = 0;
		if (is(w[0], "stats") && n == 1)
			stats(c);
		else if (is(w[0], "version"))
			say(c, "VERSION " VERSION "\r\n");
		else
			error(c);
	}
	return line;
}

/* The life of a connection: receive, answer all that has come, write, and again. */

/* One of those that have ended, or new memory; NULL: there is none. */
static struct connection *begin(void)
{
	struct connection *c = me->spare;
	if (c == NULL)
		return calloc(1, sizeof *c);
	me->spare = c->next;
	me->spares--;
	return memset(c, 0, sizeof *c);
}

static void end(struct connection *c)
{
	let_go(c, &c->in);
	let_go(c, &c->out);
	if (me->spares == SPARES) {
		free(c);
		return;
	}
	c->next = me->spare;
	me->spare = c;
	me->spares++;
}

static void finish(struct connection *c)
{
	mp_unregister(c->handle); /* nobody touches c->out any more */
	me->counters.connections--;
	me->ended = 1;
	c->need = 0;
	end(c);
}

/* Requests of these bytes, as long as the client has not too much to read; how many bytes they used. */
static size_t requests(struct connection *c, const char *at, size_t len)
{
	size_t used = 0, n;
	while (used < len && c->out.len < MOST_OUT && !c->closing) {
		if (!reserve(c, &c->out, MOST_ANSWER)) {
			c->failed = c->out.len == 0; /* otherwise when this is written */
			break;
		}
		n = request(c, at + used, len - used);
		if (n == 0)
			break;
		used += n;
	}
	return used;
}

static void go_on(struct connection *c)
{
	int failed = c->failed;
	if (c->parsed > 0) {
		c->in.len -= c->parsed;
		memmove(c->in.at, c->in.at + c->parsed, c->in.len);
		c->parsed = 0;
	}
	if (c->in.len == 0 && c->in.room > KEPT)
		let_go(c, &c->in);
	if (me->lends) {
		me->lends = 0;
		make_room();
	}
	if (!failed && c->out.len > 0) {
		c->writing = 1;
		failed = mp_write(c->handle, c->out.at, c->out.len) < 0;
	} else if (!failed && !c->closing) {
		failed = mp_recv(c->handle) < 0;
	}
	if (!failed && c->closing)
		failed = mp_disconnect(c->handle) < 0;
	if (failed)
		finish(c);
}

static void received(struct connection *c, const char *at, size_t len)
{
	size_t used = 0;
	if (c->in.len == 0)
		used = requests(c, at, len); /* where they lie */
	if (used < len) {
		if (!reserve(c, &c->in, len - used)) {
			c->in.len = c->need = 0;
			c->quiet = 0;
			say(c, "SERVER_ERROR out of memory reading request\r\n");
			c->closing = 1;
			go_on(c);
			return;
		}
		memcpy(c->in.at + c->in.len, at + used, len - used);
		if (c->in.len == 0) {
			c->in.len = len - used;
		} else {
			c->in.len += len - used;
			c->parsed = requests(c, c->in.at, c->in.len);
		}
	}
	go_on(c);
}

static void wrote(struct connection *c)
{
	c->writing = 0;
	c->out.len = 0;
	if (c->closing)
		return; /* its end is on the way */
	let_go(c, &c->out);
	c->parsed = requests(c, c->in.at, c->in.len);
	go_on(c);
}

static void accepted(int fd)
{
	struct connection *c = begin();
	if (c != NULL)
		c->handle = mp_register(me->channel, fd, c, 0);
	if (c == NULL || c->handle == 0) {
		mp_close(me->channel, fd);
		if (c != NULL)
			end(c);
		return;
	}
	me->counters.connections++;
	me->counters.total_connections++;
	go_on(c);
}

/* No room for another connection: asked for again at once, there would be none at once, over and over. */
static void rest(int error)
{
	static int said;
	if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
		fprintf(stderr, "kvserver: accepting: %s; others wait until a connection ends\n", strerror(error));
	me->full = now;
	me->ended = 0;
}

/* It is asked for when a connection has ended, and each second: others have descriptors too. */
static int accepts_again(void)
{
	if (me->full == 0 || (me->full == now && !me->ended))
		return 0;
	me->full = 0;
	return 1;
}

static struct mp_options options;
static int listener;
static char greeting[128];
static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "kvserver: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* The last thread that accepts says that the server serves. */
static void say_ready(void)
{
	static int accepting; /* atomic */
	if (__atomic_add_fetch(&accepting, 1, __ATOMIC_RELAXED) < threads)
		return;
	puts(greeting);
	fflush(stdout);
}

static void *serve(void *arg)
{
	struct mp_event ev;
	uint64_t mask[16];
	me = arg;
	if (threads > 1 && stay_on(cpus[me->number]) != 0)
		die("a core for each thread");
	me->channel = mp_create(&options);
	if (me->channel == NULL)
		die("mp_create");
	own_cpus(mask, cpus, threads, me->number);
	me->listening = mp_register_cpus(me->channel, listener, NULL, mask, threads > 1 ? 16 : 0);
	if (me->listening == 0)
		die("mp_register");
	if (mp_accept(me->listening, MP_ENDLESS, 1) < 0 || mp_flush(me->channel) < 0)
		die("mp_accept");
	say_ready();
	now = time(NULL);
	while (!stop) {
		int n = mp_dispatch(me->channel, &ev, 500);
		if (n < 0 && errno != EINTR)
			die("mp_dispatch");
		now = time(NULL);
		flush_when_due();
		if (accepts_again() && mp_accept(me->listening, MP_ENDLESS, 1) < 0)
			die("mp_accept");
		if (n <= 0)
			continue;
		struct connection *c = ev.cookie;
		if (ev.cmd == MP_ACCEPT) {
			if (ev.result == 0)
				accepted(ev.u.accept.fd);
			else
				rest(ev.error);
		} else if (ev.cmd == MP_RECV && ev.result == 0 && ev.u.recv.size > 0) {
			const char *data = ev.u.recv.data;
			received(c, data, ev.u.recv.size);
			mp_release(me->channel, data);
		} else if (ev.cmd == MP_WRITE && ev.result == 0) {
			wrote(c);
		} else {
			finish(c); /* the end, or an error */
		}
	}
	mp_destroy(me->channel);
	while (me->spare != NULL)
		free(begin());
	while (me->nouts > 0)
		free(me->outs[--me->nouts]);
	return NULL;
}

int main(int argc, char **argv)
{
	const char *address = "0.0.0.0";
	int opt, port = 11211, i, error;
	long mib = 64;
	mp_options_init(&options, sizeof options);
	while ((opt = getopt(argc, argv, "e:a:p:t:m:")) != -1) {
		switch (opt) {
		case 'e':
			if (strncmp(optarg, "lane:", 5) == 0) {
				options.engine = MP_ENGINE_LANE;
				options.config = optarg + 5;
				break;
			}
			if (strcmp(optarg, "uring") == 0)
				break;
			fprintf(stderr, "kvserver: -e %s: uring or lane:CONFIG\n", optarg);
			return 2;
		case 'a':
			address = optarg;
			break;
		case 'p':
			port = (int)number_of("kvserver", "-p", optarg, 0, 65535);
			break;
		case 't':
			threads = (int)number_of("kvserver", "-t", optarg, 1, MOST_THREADS);
			break;
		case 'm':
			mib = number_of("kvserver", "-m", optarg, 1, (long)(SIZE_MAX >> 21));
			break;
		default:
			fprintf(stderr, "usage: kvserver [-e uring|lane:CONFIG] [-a ADDRESS] [-p PORT] [-t THREADS] [-m MIB]\n");
			return 2;
		}
	}
	struct sockaddr_in at;
	memset(&at, 0, sizeof at);
	at.sin_family = AF_INET;
	at.sin_port = htons((uint16_t)port);
	if (inet_pton(AF_INET, address, &at.sin_addr) != 1) {
		fprintf(stderr, "kvserver: -a %s: an IPv4 address\n", address);
		return 2;
	}
	cpus_for("kvserver", cpus, threads);
	limit = (size_t)mib << 20;
	/* Connections without a descriptor count as if they had one. */
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	/* Large values go back to the system when they go, wherever they lie. */
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	/* Large enough for some of the largest values. */
	while ((int)nshards < threads * 4 && threads > 1 && limit / (nshards * 2) >= 4 * MOST_VALUE)
		nshards *= 2;
	for (i = 0; i < (int)nshards; i++) {
		pthread_mutex_init(&shards[i].lock, NULL);
		shards[i].limit = limit / nshards;
		shards[i].places = 1024;
		shards[i].table = calloc(shards[i].places, sizeof *shards[i].table);
		if (shards[i].table == NULL)
			die("memory");
	}
	if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
		die("getrandom");
	started = time(NULL);
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	listener = mp_listen_at((struct sockaddr *)&at, sizeof at, 4096);
	if (listener < 0)
		die("mp_listen_at");
	snprintf(greeting, sizeof greeting, "kvserver: %s:%d, %zu MiB", address, port, limit >> 20);
	pthread_t others[MOST_THREADS];
	for (i = 0; i < threads; i++)
		workers[i].number = i;
	for (i = 1; i < threads; i++)
		if ((error = pthread_create(&others[i], NULL, serve, &workers[i])) != 0) {
			errno = error;
			die("pthread_create");
		}
	serve(&workers[0]);
	for (i = 1; i < threads; i++)
		pthread_join(others[i], NULL);
	return 0;
}
