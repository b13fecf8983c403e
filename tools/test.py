#!/usr/bin/env python3
"""Builds the workspace's tests and runs the test programs, several beside each other, with a table of their times.

  tools/test.py [--jobs N] [--only NAME] [--times FILE] [--result FILE] [--limit S] [CARGO TEST OPTIONS...] [-- OPTIONS OF THE PROGRAMS...]

cargo builds everything and says how it would run each test program: this script is cargo's "runner" and writes that down. Then
the programs run. Most of what the programs in namespaces do is to wait (for timers, for other programs), so one of them runs
beside the simulations, which compute. A program in EXCLUSIVE runs while no other does. Everything that cargo test prints is
printed, each program's output in one piece; at the end stands the time of each, and one line of totals in cargo's form.

The exit code is 0 when every program passed. A program that fails does not keep the others from running. One that runs longer than
the limit is ended, with the processes that it started, and counts as failed: what each of them waited for is printed.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

# Programs in which a test counts allocations, instructions or rates of the whole machine.
EXCLUSIVE = {"cli/bench"}
# Programs that mostly wait: one of them at a time, beside those that compute.
WAITING = {
    "capi/ends", "capi/megapipe", "capi/mtcp", "channel/kernel", "channel/light", "channel/parts", "channel/random", "channel/tcp",
    "cli/bench", "cli/cli", "cli/lab", "cli/serve", "cli/corelane", "corelane/bulk", "corelane/ends", "corelane/faults", "corelane/lanes",
    "corelane/overload", "corelane/scarce", "packetdrill/plugin", "pkt/kernel", "sim/linux", "io/sums", "runtime/ports", "runtime/runtime",
}
# The longest of them takes 3 minutes on two idle cores.
LIMIT = 900
RESULT = re.compile(r"^test result: (\w+)\. (\d+) passed; (\d+) failed; (\d+) ignored", re.M)


def collect(queue, command):
    """As cargo's runner: notes what is to be run, and from where."""
    with open(queue, "a") as out:
        out.write(json.dumps({"cwd": os.getcwd(), "command": command, "env": dict(os.environ)}) + "\n")


def name_of(task):
    package = task["env"].get("CARGO_PKG_NAME", "")
    stem = re.sub(r"-[0-9a-f]{16}$", "", os.path.basename(task["command"][0]))
    return f"{package}/{stem}"


def tasks_of(options, arguments):
    host = re.search(r"^host: (.*)$", subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout, re.M)
    target = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", "target"))
    os.makedirs(target, exist_ok=True)
    queue = os.path.join(target, "test-queue.json")
    if os.path.exists(queue):
        os.remove(queue)
    runner = f"CARGO_TARGET_{host[1].upper().replace('-', '_')}_RUNNER"
    env = dict(os.environ) | {runner: f"{sys.executable} {os.path.abspath(__file__)} --collect {queue}"}
    built = subprocess.run(["cargo", "test", *options, "--lib", "--bins", "--tests", "--", *arguments], env=env)
    if built.returncode:
        sys.exit(built.returncode)
    with open(queue) as lines:
        tasks = [json.loads(line) for line in lines]
    for task in tasks:
        task["name"] = name_of(task)
        task["env"].pop(runner, None)
    return tasks


def read(path):
    """A file of /proc; empty when its process has ended."""
    try:
        with open(path, "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def family(pid):
    """A process and those that it started, the oldest first."""
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        # The name, in parentheses, may hold anything.
        stat = read(f"/proc/{entry}/stat").rpartition(")")[2].split()
        if stat:
            children.setdefault(int(stat[1]), []).append(int(entry))
    found = [pid]
    for each in found:
        found += sorted(children.get(each, []))
    return found


def waits(pids):
    """What each thread of some processes waits for."""
    for pid in pids:
        yield f"  {pid} {read(f'/proc/{pid}/cmdline')[:200]}"
        try:
            threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
        except OSError:
            continue
        for thread in threads:
            task = f"/proc/{pid}/task/{thread}"
            yield f"    {thread} {read(f'{task}/comm')}: {read(f'{task}/wchan')} (syscall {read(f'{task}/syscall').split(' ')[0]})"


def end(pid):
    """Ends a program that ran too long, and what it started. Returns what they were doing."""
    pids = family(pid)
    said = "\n".join(waits(pids))
    for each in reversed(pids):
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return said


class Run:
    """The programs that are still to be run, and the results of those that were."""

    def __init__(self, tasks, jobs, last, limit):
        longest_first = sorted(tasks, key=lambda t: -last.get(t["name"], 1e9 if t["name"] in WAITING else 1))
        self.exclusive = [t for t in longest_first if t["name"] in EXCLUSIVE]
        self.waiting = [t for t in longest_first if t["name"] in WAITING and t["name"] not in EXCLUSIVE]
        self.computing = [t for t in longest_first if t["name"] not in WAITING and t["name"] not in EXCLUSIVE]
        self.jobs, self.limit, self.lock, self.results = jobs, limit, threading.Lock(), []

    def next(self, waits):
        with self.lock:
            first, second = (self.waiting, self.computing) if waits else (self.computing, self.waiting)
            if first:
                return first.pop(0)
            # Two programs that wait are never run beside each other: their clients would take each other's cores.
            return self.computing.pop(0) if waits and self.computing else None

    def one(self, task):
        begun = time.monotonic()
        log = os.path.join(os.path.dirname(task["command"][0]), f"{os.path.basename(task['command'][0])}.log")
        with open(log, "wb") as out:
            child = subprocess.Popen(task["command"], cwd=task["cwd"], env=task["env"], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
            told = []
            timer = threading.Timer(self.limit, lambda: told.append(end(child.pid)))
            timer.daemon = True
            timer.start()
            _, status, used = os.wait4(child.pid, 0)
            timer.cancel()
            # It may be about to end it, and has not said yet why.
            timer.join()
            child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begun
        with open(log, errors="replace") as text:
            said = text.read()
        counts = RESULT.findall(said)
        passed, failed, ignored = (sum(int(c[i]) for c in counts) for i in (1, 2, 3))
        with self.lock:
            ok = child.returncode == 0 and bool(counts)
            self.results.append((task["name"], wall, used.ru_utime, used.ru_stime, passed, failed, ignored, ok))
            print(f"\n     Running {task['name']} ({task['command'][0]})\n{said}", end="", flush=True)
            for doing in told:
                print(f"{task['name']} was ended after {self.limit} s. Processes and their threads, and what each waited for:\n{doing}")
            if not ok:
                print(f"FAILED: {task['name']} ended with {child.returncode}; the test program is {task['command'][0]}", flush=True)

    def worker(self, waits):
        while task := self.next(waits):
            self.one(task)

    def all(self):
        for task in self.exclusive:
            self.one(task)
        threads = [threading.Thread(target=self.worker, args=(i == 0,)) for i in range(max(1, self.jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def table(results, wall, file):
    lines = [f"{'seconds':>8} {'user':>8} {'system':>8} {'tests':>6}  program"]
    for name, took, user, system, passed, failed, ignored, ok in sorted(results, key=lambda r: -r[1]):
        lines.append(f"{took:8.1f} {user:8.1f} {system:8.1f} {passed + failed:6}  {name}{'' if ok else '  FAILED'}")
    user, system = sum(r[2] for r in results), sum(r[3] for r in results)
    lines.append(f"{wall:8.1f} {user:8.1f} {system:8.1f} {sum(r[4] + r[5] for r in results):6}  all test programs")
    with open(file, "w") as out:
        out.write("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines))


def main():
    if sys.argv[1:2] == ["--collect"]:
        return collect(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="programs beside each other (default 2)")
    parser.add_argument("--only", help="run this program alone, as channel/parts")
    parser.add_argument("--times", help="where the table is written, and read for the order (default target/test-times.txt)")
    parser.add_argument("--result", help="where the last line is written")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds that a program may run (default {LIMIT})")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_known_args(words[:end])
    args.times = args.times or (os.devnull if args.only else "target/test-times.txt")
    if args.result and os.path.exists(args.result):
        os.remove(args.result)
    last = {}
    if os.path.exists(args.times):
        with open(args.times) as lines:
            for line in lines:
                row = line.split()
                if len(row) >= 5 and "/" in row[4]:
                    last[row[4]] = float(row[0])
    # A shell's background job has SIGINT ignored, and would leave that to the programs that tests end by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tasks = [t for t in tasks_of(options, words[end + 1:]) if args.only in (None, t["name"])]
    if not tasks:
        sys.exit(f"no test program {args.only}")
    begun = time.monotonic()
    run = Run(tasks, args.jobs, last, args.limit)
    run.all()
    wall = time.monotonic() - begun
    table(run.results, wall, args.times)
    passed, failed, ignored = (sum(r[i] for r in run.results) for i in (4, 5, 6))
    bad = [r[0] for r in run.results if not r[7]]
    if bad:
        print(f"failed: {' '.join(sorted(bad))}")
    line = (f"test result: {'FAILED' if bad else 'ok'}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; "
            f"0 filtered out; finished in {wall:.2f}s")
    if args.result:
        with open(args.result, "w") as out:
            out.write(line + "\n")
    print(line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
