/* Has the kernel refuse a system call to this thread, and those that it starts: EPERM. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int refuse(unsigned int call)
{
	struct sock_filter steps[] = {
		{ BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr) },
		{ BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | 1 },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW },
	};
	struct sock_fprog program = { sizeof steps / sizeof *steps, steps };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		return -1;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
