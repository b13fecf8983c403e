/*
 * What the examples have in common: numbers of the command line, and a CPU for each thread.
 */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number that an option has; ends the program where it is none, or not within least and most. */
static inline long number_of(const char *program, const char *option, const char *text, long least, long most)
{
	char *end;
	long value;
	errno = 0;
	value = strtol(text, &end, 10);
	if (end == text || *end != '\0' || errno != 0 || value < least || value > most) {
		fprintf(stderr, "%s: %s %s: a number from %ld to %ld\n", program, option, text, least, most);
		exit(2);
	}
	return value;
}

/* A CPU for each of so many threads, of those that this one may use (taskset, cpusets); ends the program where they are too few. */
static inline void cpus_for(const char *program, int *cpus, int threads)
{
	cpu_set_t set;
	int cpu, n = 0;
	CPU_ZERO(&set);
	sched_getaffinity(0, sizeof set, &set);
	for (cpu = 0; cpu < CPU_SETSIZE && n < threads; cpu++)
		if (CPU_ISSET(cpu, &set))
			cpus[n++] = cpu;
	if (n < threads) {
		fprintf(stderr, "%s: %d threads, but %d CPUs may be used: one for each\n", program, threads, n);
		exit(2);
	}
}

/* Keeps this thread on a CPU; -1 and errno where it may not be. */
static inline int stay_on(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	errno = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
	return errno ? -1 : 0;
}

/* The CPUs whose connections a thread gets: its own, and of those that are no thread's every so many, so that the connections of
   each come to somebody. */
static inline void own_cpus(uint64_t mask[16], const int *cpus, int threads, int thread)
{
	int cpu, owner, i, all = (int)sysconf(_SC_NPROCESSORS_CONF);
	memset(mask, 0, 16 * sizeof *mask);
	for (cpu = 0; cpu < all && cpu < 1024; cpu++) {
		owner = cpu % threads;
		for (i = 0; i < threads; i++)
			if (cpus[i] == cpu)
				owner = i;
		if (owner == thread)
			mask[cpu / 64] |= (uint64_t)1 << cpu % 64;
	}
}

#endif
