"""A fence around one test program: a network, mounts and a control group of its own.

Interfaces, namespaces, addresses, rules, mounts and BPF pins that the program makes are gone when it ends, also when it is killed, and
so are the processes that it started. Shared with the machine: files, the clock, huge pages, process numbers, BPF objects without a
pin, and the kernel's tables of neighbours.

There is no PID namespace: the kernel's NAPI threads, which `corelane bench` moves and counts, are not seen from within one.
Processes are found by their control group (version 2) instead; those that a program moves to another group are not.
"""
import itertools
import os
import re
import signal
import subprocess
import time

# Control groups are named by this, the process number of the run, and a count.
NAME = "corelane-test-"
# Has the kernel kill a test before all else when memory is short.
OOM_SCORE = 900
# Seconds that a killed process may take to be gone.
GONE = 10

# $1 is the group; the command follows. Network devices in /sys are those of the namespace that it was mounted from; the fresh mount
# hides the control groups, which descriptor 3 keeps.
ENTER = f'''
echo $$ >"$1/cgroup.procs" && echo {OOM_SCORE} >/proc/self/oom_score_adj || exit 125
shift
exec unshare --net --mount --propagation private "$@"
'''
INSIDE = '''
ip link set lo up &&
exec 3</sys/fs/cgroup && mount -t sysfs sysfs /sys && mount --no-canonicalize --rbind /proc/self/fd/3 /sys/fs/cgroup && exec 3<&- &&
mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns &&
{ [ ! -d /sys/fs/bpf ] || mount -t bpf bpf /sys/fs/bpf; } || exit 125
exec "$@"
'''


def root():
    """Mount point of control groups of version 2; None where there is none."""
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            fields, _, more = line.partition(" - ")
            if more.startswith("cgroup2 "):
                return fields.split(" ")[4]
    return None


class Fence:
    """One fence: made before its program is started, ended after it."""

    # Taken by several threads at once.
    numbers = itertools.count(1)

    def __init__(self):
        self.group = os.path.join(root(), f"{NAME}{os.getpid()}-{next(Fence.numbers)}")
        os.mkdir(self.group)

    def around(self, command):
        """The command line that runs a command inside. The process that this starts becomes the command's."""
        return ["sh", "-c", ENTER, "fence", self.group, "sh", "-c", INSIDE, "fence", *command]

    def pids(self):
        return pids(self.group)

    def end(self):
        """Ends what still runs inside, and removes the fence. Returns a line about each such process."""
        return end(self.group)


def pids(group):
    return sorted(map(int, read(os.path.join(group, "cgroup.procs")).split()))


def end(group):
    found = {}
    until = time.monotonic() + GONE
    while True:
        for pid in pids(group):
            if pid not in found:
                found[pid] = f"{pid} {command_of(pid)}"
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.rmdir(group)
            return list(found.values())
        except FileNotFoundError:
            return list(found.values())
        except OSError:
            if time.monotonic() > until:
                return [*found.values(), f"{group} cannot be removed: a process in it does not end"]
        time.sleep(0.01)


def command_of(pid):
    return read(f"/proc/{pid}/cmdline")[:200]


def sweep():
    """Ends what is left of runs that were killed. Returns a line about each such process."""
    found = []
    for name in os.listdir(root()):
        run = re.fullmatch(f"{NAME}([0-9]+)-[0-9]+", name)
        if run and "test.py" not in command_of(int(run[1])):
            found += end(os.path.join(root(), name))
    return found


def settings():
    """Changes settings that all namespaces share, which a program cannot do from within its own. Yields a line about each change."""
    # Neighbours of all namespaces are counted together, and the machine's own router is one of them.
    for family in ("ipv4", "ipv6"):
        for number, least in ((1, 8192), (2, 32768), (3, 65536)):
            path = f"/proc/sys/net/{family}/neigh/default/gc_thresh{number}"
            if int(read(path) or least) < least:
                yield change(path, str(least))
    # A namespace may choose a congestion control only where all may.
    path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
    allowed = read(path).split()
    if allowed and "cubic" not in allowed:
        yield change(path, " ".join([*allowed, "cubic"]))


def read(path):
    """A file of /proc or of a control group; empty where it is not there, as when its process has ended."""
    try:
        with open(path, "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def change(path, value):
    name = path.removeprefix("/proc/sys/").replace("/", ".")
    try:
        with open(path, "w") as file:
            file.write(value)
        return f"{name} is {value} until the machine is started again"
    except OSError as error:
        return f"{name} cannot be set to {value}: {error.strerror}"


def unavailable():
    """Reason that no fence can be made here; None where one can."""
    if os.geteuid():
        return "needs root"
    if root() is None:
        return "no control groups of version 2 are mounted"
    try:
        fence = Fence()
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    tried = subprocess.run(fence.around(["true"]), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    fence.end()
    if tried.returncode:
        return " ".join(tried.stderr.split()) or f"its shell ended with {tried.returncode}"
    return None
