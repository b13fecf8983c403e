/* Driver of a NIC with receive rules, put before the kernel's ioctl by LD_PRELOAD: those of the interface NIC_INTERFACE, in the file NIC_TABLE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PLACES 1024

struct place {
	int taken;
	struct ethtool_rx_flow_spec rule;
};

static int fail(int error)
{
	errno = error;
	return -1;
}

/* Answers a request on rules. */
static int answer(struct place *places, struct ethtool_rxnfc *request)
{
	unsigned count = 0, at = request->fs.location;

	switch (request->cmd) {
	case ETHTOOL_GRXRINGS:
		request->data = 2;
		return 0;
	case ETHTOOL_GRXCLSRLCNT:
		for (at = 0; at < PLACES; at++)
			count += places[at].taken;
		break;
	case ETHTOOL_GRXCLSRLALL:
		for (at = 0; at < PLACES; at++) {
			if (places[at].taken && count == request->rule_cnt)
				return fail(EMSGSIZE);
			if (places[at].taken)
				request->rule_locs[count++] = at;
		}
		break;
	case ETHTOOL_GRXCLSRULE:
		if (at >= PLACES || !places[at].taken)
			return fail(ENOENT);
		request->fs = places[at].rule;
		return 0;
	case ETHTOOL_SRXCLSRLDEL:
		if (at >= PLACES || !places[at].taken)
			return fail(ENOENT);
		places[at].taken = 0;
		return 0;
	case ETHTOOL_SRXCLSRLINS:
		if (at >= PLACES || request->fs.ring_cookie > 1)
			return fail(EINVAL);
		places[at] = (struct place){ 1, request->fs };
		return 0;
	}
	request->rule_cnt = count;
	request->data = PLACES;
	return 0;
}

int ioctl(int fd, unsigned long number, ...)
{
	int (*kernels)(int, unsigned long, void *) = dlsym(RTLD_NEXT, "ioctl");
	const char *interface = getenv("NIC_INTERFACE"), *table = getenv("NIC_TABLE");
	struct place *places;
	struct ifreq *request;
	va_list rest;
	int file, result;

	va_start(rest, number);
	request = va_arg(rest, void *);
	va_end(rest);
	if (number != SIOCETHTOOL || !interface || !table || strcmp(request->ifr_name, interface))
		return kernels(fd, number, request);
	switch (*(__u32 *)request->ifr_data) {
	case ETHTOOL_GFLAGS:
		((struct ethtool_value *)request->ifr_data)->data = ETH_FLAG_NTUPLE;
		return 0;
	case ETHTOOL_GRXRINGS:
	case ETHTOOL_GRXCLSRLCNT:
	case ETHTOOL_GRXCLSRULE:
	case ETHTOOL_GRXCLSRLALL:
	case ETHTOOL_SRXCLSRLDEL:
	case ETHTOOL_SRXCLSRLINS:
		break;
	default:
		return kernels(fd, number, request);
	}
	file = open(table, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, PLACES * sizeof(*places)))
		abort();
	places = mmap(NULL, PLACES * sizeof(*places), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (places == MAP_FAILED)
		abort();
	result = answer(places, (struct ethtool_rxnfc *)request->ifr_data);
	munmap(places, PLACES * sizeof(*places));
	return result;
}
