#!/usr/bin/env python3
"""Builds the workspace's tests and runs the test programs, several beside each other, with a table of their times.

  tools/test.py [--jobs N] [--only NAME] [--once] [--times FILE] [--result FILE] [--limit S] [CARGO TEST OPTIONS...]
                [-- OPTIONS OF THE PROGRAMS...]

cargo builds everything and says how it would run each test program: this script is cargo's "runner" and writes that down. Then
the programs run. Most of what the programs in namespaces do is to wait (for timers, for other programs), so one of them runs
beside the simulations, which compute. A program in EXCLUSIVE runs while no other does. Everything that cargo test prints is
printed, each program's output in one piece; at the end stands the time of each, and one line of totals in cargo's form.

As root each program runs in a fence (tools/fence.py): a network and mounts of its own, and what it leaves running is ended. Where none
can be made the programs share the machine's network, and a line says why.

A program that fails does not keep the others from running. One that runs longer than the limit is ended, with the processes that it
started: what each of them waited for is printed, and what the kernel said meanwhile.

At the end the tests that failed are run once more, each alone. A test that passes then is unsteady: it counts as passed, and is listed
with what it said when it failed. Without a second run, tests have failed where more than three did; where the program died by a signal,
ran longer than the limit, or a stack contradicted itself (Stack::check); with --once, and with options of the programs.

The exit code is 0 when every program passed, 1 when not, 2 when another run uses the same target folder.
"""
import argparse
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import fence
from fence import command_of, read

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
# More tests than these that fail are no accident.
UNSTEADY = 3
RESULT = re.compile(r"^test result: (\w+)\. (\d+) passed; (\d+) failed; (\d+) ignored", re.M)
# Place of the panic of a stack that contradicts itself, or a line of its backtrace.
CHECK = re.compile(r"crates/stack/src/engine/check\.rs:[0-9]")
# Names of the tests that failed, which a program lists last.
NAMES = re.compile(r"^failures:\n((?:    \S+\n)+)", re.M)
# Output of one of them.
SAID = re.compile(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^failures:$)", re.M | re.S)
# Lines of its message that are shown at the end.
SHOWN = 6


def collect(queue, command):
    """As cargo's runner: notes what is to be run, and from where."""
    with open(queue, "a") as out:
        out.write(json.dumps({"cwd": os.getcwd(), "command": command, "env": dict(os.environ)}) + "\n")


def name_of(task):
    package = task["env"].get("CARGO_PKG_NAME", "")
    stem = re.sub(r"-[0-9a-f]{16}$", "", os.path.basename(task["command"][0]))
    return f"{package}/{stem}"


def target():
    """Path of cargo's target folder, which is made where it is missing."""
    path = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", "target"))
    os.makedirs(path, exist_ok=True)
    return path


def tasks_of(options, arguments):
    host = re.search(r"^host: (.*)$", subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout, re.M)
    queue = os.path.join(target(), "test-queue.json")
    if os.path.exists(queue):
        os.remove(queue)
    runner = f"CARGO_TARGET_{host[1].upper().replace('-', '_')}_RUNNER"
    env = {"RUST_BACKTRACE": "1"} | dict(os.environ) | {runner: f"{sys.executable} {os.path.abspath(__file__)} --collect {queue}"}
    built = subprocess.run(["cargo", "test", *options, "--lib", "--bins", "--tests", "--", *arguments], env=env)
    if built.returncode:
        sys.exit(built.returncode)
    with open(queue) as lines:
        tasks = [json.loads(line) for line in lines]
    for task in tasks:
        task["name"] = name_of(task)
        task["env"].pop(runner, None)
    return tasks


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
        yield f"  {pid} {command_of(pid)}"
        try:
            threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
        except OSError:
            continue
        for thread in threads:
            task = f"/proc/{pid}/task/{thread}"
            yield f"    {thread} {read(f'{task}/comm')}: {read(f'{task}/wchan')} (syscall {read(f'{task}/syscall').split(' ')[0]})"


def end(pids):
    """Ends a program that ran too long, and what it started. Returns what they were doing."""
    said = "\n".join(waits(pids))
    for each in reversed(pids):
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return said


def kernel_said(since):
    """Lines of the kernel's log since a time of the monotonic clock, which the log counts by."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if log.returncode:
        return [log.stderr.strip()]
    lines = [(re.match(r"\[ *([0-9]+\.[0-9]+)\]", line), line) for line in log.stdout.splitlines()]
    return [line for at, line in lines if at and float(at[1]) >= since][-100:] or ["nothing"]


def message(block):
    """The lines of a failed test's output that say why, and how it is replayed."""
    lines = block.strip().splitlines()
    first = next((i for i, line in enumerate(lines) if "panicked at" in line), 0)
    until = next((i for i, line in enumerate(lines) if i > first and line.startswith(("stack backtrace:", "note: "))), len(lines))
    shown = lines[first:until][:SHOWN]
    return shown + [line for line in lines if "seed" in line.lower() and line not in shown]


@dataclass
class Result:
    """One run of a test program."""

    task: dict
    wall: float
    user: float
    system: float
    # Negative: the signal that it died by. None: the program could not be started.
    code: int | None
    said: str
    # Longer than the limit.
    ended: bool
    # Lines about each test that failed, and passed when it was run again.
    unsteady: dict

    def __post_init__(self):
        counts = RESULT.findall(self.said)
        self.name, self.finished = self.task["name"], bool(counts)
        self.passed, self.failed, self.ignored = (sum(int(c[i]) for c in counts) for i in (1, 2, 3))

    def ok(self):
        return self.finished and (self.code == 0 or self.failed == 0 and bool(self.unsteady))

    def failures(self):
        """Output of each test that failed, by name; empty where a second run would prove nothing."""
        if self.code is None or self.code < 0 or self.ended or CHECK.search(self.said):
            return {}
        said = dict(SAID.findall(self.said))
        names = [name for found in NAMES.findall(self.said) for name in found.split()]
        return {name: said.get(name, "") for name in names} if len(names) == self.failed else {}


class Run:
    """The programs that are still to be run, and the results of those that were."""

    def __init__(self, tasks, jobs, last, limit, fenced):
        longest_first = sorted(tasks, key=lambda t: -last.get(t["name"], 1e9 if t["name"] in WAITING else 1))
        self.exclusive = [t for t in longest_first if t["name"] in EXCLUSIVE]
        self.waiting = [t for t in longest_first if t["name"] in WAITING and t["name"] not in EXCLUSIVE]
        self.computing = [t for t in longest_first if t["name"] not in WAITING and t["name"] not in EXCLUSIVE]
        self.jobs, self.limit, self.fenced = jobs, limit, fenced
        self.lock, self.results, self.running, self.threads, self.stopped = threading.Lock(), [], {}, [], False

    def next(self, waits):
        with self.lock:
            first, second = (self.waiting, self.computing) if waits else (self.computing, self.waiting)
            if self.stopped:
                return None
            if first:
                return first.pop(0)
            # Two programs that wait are never run beside each other: their clients would take each other's cores.
            return self.computing.pop(0) if waits and self.computing else None

    def one(self, task, *options):
        """Runs a program to its end, prints what it said, and returns its result; None where the whole run is being stopped."""
        begun = time.monotonic()
        command = [*task["command"], *options]
        log, told, left = f"{command[0]}.log", [], []
        around = fence.Fence() if self.fenced else None

        def pids():
            return sorted({*family(child.pid), *(around.pids() if around else ())})

        def late():
            told.append(end(pids()))

        with open(log, "wb") as out:
            with self.lock:
                if self.stopped:
                    if around:
                        around.end()
                    return None
                child = subprocess.Popen(
                    around.around(command) if around else command,
                    cwd=task["cwd"], env=task["env"], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                )
                self.running[child.pid] = pids
            timer = threading.Timer(self.limit, late)
            timer.daemon = True
            timer.start()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            with self.lock:
                del self.running[child.pid]
            timer.cancel()
            # It may be about to end it, and has not said yet why.
            timer.join()
            if around:
                left = around.end()
        with open(log, errors="replace") as text:
            said = text.read()
        result = Result(task, time.monotonic() - begun, used.ru_utime, used.ru_stime, child.returncode, said, bool(told), {})
        with self.lock:
            if self.stopped:
                return None
            print(f"\n     Running {task['name']} ({' '.join(command)})\n{said}", end="", flush=True)
            for line in left:
                print(f"{task['name']} left this running, and it was ended: {line}")
            for doing in told:
                print(f"{task['name']} was ended after {self.limit:g} s. Processes and their threads, and what each waited for:\n{doing}")
                print("\n".join(["The kernel's log of that time:", *kernel_said(begun)]))
            if not result.ok():
                print(f"FAILED: {task['name']} ended with {result.code}; the test program is {command[0]}", flush=True)
        return result

    def noted(self, task):
        try:
            result = self.one(task)
        except OSError as error:
            print(f"FAILED: {task['name']} could not be run: {error}", flush=True)
            result = Result(task, 0, 0, 0, None, "", False, {})
        if result:
            self.results.append(result)

    def worker(self, waits):
        while task := self.next(waits):
            self.noted(task)

    def beside(self, *calls):
        """Makes calls in threads, and returns when they have returned. A signal may interrupt this, and then stop() waits for them."""
        # Not Thread.join(): interrupted by a signal, it takes the thread for ended.
        for call in calls:
            ended = threading.Event()
            self.threads.append(ended)

            def thread(call=call, ended=ended):
                try:
                    call()
                finally:
                    ended.set()

            threading.Thread(target=thread).start()
        for ended in self.threads:
            ended.wait()

    def all(self):
        self.beside(lambda: [self.noted(task) for task in self.exclusive])
        self.beside(*(lambda waits=i == 0: self.worker(waits) for i in range(max(1, self.jobs))))

    def again(self):
        """Runs the tests that failed once more, each alone."""
        failed = [(result, result.failures()) for result in self.results if not result.ok()]
        count = sum(len(tests) for _, tests in failed)
        if count > UNSTEADY:
            print(f"{count} tests failed, more than {UNSTEADY}: none is run again")
            return
        for result, tests in failed:
            for test, block in tests.items():
                print(f"\n     Running {test} of {result.name} again, alone")
                second = self.one(result.task, "--exact", test)
                if second and second.code == 0 and second.passed == 1:
                    result.unsteady[test] = message(block)
                    result.passed, result.failed = result.passed + 1, result.failed - 1

    def stop(self):
        """Ends what runs, and lets nothing more begin."""
        with self.lock:
            self.stopped = True
            for pids in self.running.values():
                end(pids())
        for ended in self.threads:
            ended.wait()


def table(results, wall, file):
    lines = [f"{'seconds':>8} {'user':>8} {'system':>8} {'tests':>6}  program"]
    for r in sorted(results, key=lambda r: -r.wall):
        verdict = "  FAILED" if not r.ok() else "  unsteady" if r.unsteady else ""
        lines.append(f"{r.wall:8.1f} {r.user:8.1f} {r.system:8.1f} {r.passed + r.failed:6}  {r.name}{verdict}")
    user, system, tests = sum(r.user for r in results), sum(r.system for r in results), sum(r.passed + r.failed for r in results)
    lines.append(f"{wall:8.1f} {user:8.1f} {system:8.1f} {tests:6}  all test programs")
    with open(file, "w") as out:
        out.write("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines))


def verdict(tasks, results, wall):
    """Names of the programs that failed; and the last lines: unsteady tests, and totals as cargo prints them."""
    bad = sorted({t["name"] for t in tasks} - {r.name for r in results if r.ok()})
    lines = []
    for r in results:
        for test, said in r.unsteady.items():
            lines += [f"unsteady: {r.name} {test} failed, and passed when it was run again:", *(f"  {line}" for line in said)]
    passed, failed, ignored = sum(r.passed for r in results), sum(r.failed for r in results), sum(r.ignored for r in results)
    lines.append(f"test result: {'FAILED' if bad else 'ok'}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; "
                 f"0 filtered out; finished in {wall:.2f}s")
    return bad, lines


def alone():
    """Locks the target folder until this process ends: two runs would write the same files."""
    lock = open(os.path.join(target(), "test.lock"), "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"test.py: {target()} is used by another run: wait for its end, or name another folder in CARGO_TARGET_DIR", file=sys.stderr)
        sys.exit(2)
    return lock


def fences():
    """True where programs can be run in fences. Prints changes that were made for it, or why they cannot."""
    why = fence.unavailable()
    if why:
        print(f"No fence around the test programs ({why}): they share this machine's network")
        return False
    for line in fence.settings():
        print(line)
    for line in fence.sweep():
        print(f"left running by a test run that was killed, and ended: {line}")
    return True


def main():
    if sys.argv[1:2] == ["--collect"]:
        return collect(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="programs beside each other (default 2)")
    parser.add_argument("--only", help="run this program alone, as channel/parts")
    parser.add_argument("--once", action="store_true", help="run no test a second time")
    parser.add_argument("--times", help="where the table is written, and read for the order (default test-times.txt in the target folder)")
    parser.add_argument("--result", help="where the last line is written")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds that a program may run (default {LIMIT})")
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_known_args(words[:own])
    lock = alone()
    args.times = args.times or (os.devnull if args.only else os.path.join(target(), "test-times.txt"))
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    tasks = [t for t in tasks_of(options, words[own + 1:]) if args.only in (None, t["name"])]
    if not tasks:
        sys.exit(f"no test program {args.only}")
    begun = time.monotonic()
    run = Run(tasks, args.jobs, last, args.limit, fences())
    try:
        run.all()
        if not args.once and own == len(words):
            run.beside(run.again)
    finally:
        run.stop()
    wall = time.monotonic() - begun
    table(run.results, wall, args.times)
    bad, lines = verdict(tasks, run.results, wall)
    if bad:
        print(f"failed: {' '.join(bad)}")
    if args.result:
        with open(args.result, "w") as out:
            out.write("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    lock.close()
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
