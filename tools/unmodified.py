#!/usr/bin/env python3
"""nginx under `corelane run`, beside nginx without it: as root, with nginx and wrk, `cost` with strace and valgrind,

  tools/unmodified.py throughput [--bin target/release/corelane] [--rounds 5] [--seconds 2]
  tools/unmodified.py ends [--bin target/release/corelane] [--rate 5000] [--seconds 20]
  tools/unmodified.py cost [--bin target/release/corelane]

In a network namespace of its own, over loopback, which delivers on the core that sends; nginx has two workers, and a client is pinned to
each of two cores. `throughput`: connections of one request each (`return 200`) in a second, by turns: each of 16 configurations by hand
(listen ... reuseport and deferred, multi_accept, worker_cpu_affinity), and those under `corelane run` that need no hand (deferred,
multi_accept). Medians, and the least and most of the rounds. `ends`: connections that are due at a rate, whatever becomes of the others,
while each second a worker is killed (SIGKILL), while nginx reloads five times (SIGHUP), and while its binary is upgraded (USR2, then
QUIT to the old one). Connections that were established and never accepted, by nginx's own count, were reset in a queue.

`cost`: system calls (strace) and instructions in user space (callgrind) that a connection costs a program which opens it, over a veth:
what 600 of them cost more than 100.
"""
import argparse
import collections
import errno
import itertools
import json
import multiprocessing
import os
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ADDRESS = ("127.0.0.1", 8080)
URL = f"http://{ADDRESS[0]}:{ADDRESS[1]}/"
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
SILENT = 5.0


def until(what, seconds, true):
    deadline = time.monotonic() + seconds
    while not (found := true()):
        if time.monotonic() > deadline:
            sys.exit(what)
        time.sleep(0.01)
    return found


def answered(path="/"):
    try:
        with socket.create_connection(ADDRESS, SILENT) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return b""


class Nginx:
    """Two workers; `run` is `corelane run` in front of it, with its arguments, or empty."""

    def __init__(self, folder, run, listen="", events="", main="", daemon="off"):
        self.pid_file, self.report = os.path.join(folder, "pid"), os.path.join(folder, "report.json")
        with open(os.path.join(folder, "nginx.conf"), "w") as config:
            config.write(f"""
                worker_processes 2; pid pid; daemon {daemon}; error_log error.log alert; {main}
                events {{ worker_connections 8192; {events} }}
                http {{ access_log off; keepalive_timeout 0; server {{
                    listen {ADDRESS[0]}:{ADDRESS[1]} backlog=4096 {listen};
                    location / {{ return 200 "ok"; }}
                    location = /status {{ stub_status; }} }} }}""")
        path = subprocess.run("command -v nginx || echo /usr/sbin/nginx", shell=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        self.run = [*run, "--report", self.report, "--"] if run else []
        self.first = subprocess.Popen([*self.run, path, "-e", "error.log", "-p", folder, "-c", "nginx.conf"], stderr=subprocess.DEVNULL)
        until("nginx does not come", 10, lambda: len(self.workers()) == 2 and answered())

    def master(self):
        try:
            with open(self.pid_file) as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    def workers(self, master=None):
        master = master or self.master()
        try:
            with open(f"/proc/{master}/task/{master}/children") as file:
                return [int(pid) for pid in file.read().split()]
        except OSError:
            return []

    def accepts(self):
        """Connections accepted so far, without the one that asks."""
        numbers = re.search(rb"requests\s+(\d+) (\d+) (\d+)", answered("/status"))
        return int(numbers[1]) - 1

    def stop(self):
        """Its report, where it has one."""
        os.kill(self.master(), signal.SIGQUIT)
        self.first.wait()
        until("nginx does not end", 10, lambda: not answered())
        if not self.run:
            return None

        def written():
            with open(self.report) as file:
                text = file.read()
            return text.endswith("}\n") and json.loads(text)

        return until("no report is written", 10, written)


def on_each_core(command):
    """Runs a command on each of two cores; their outputs."""
    pinned = [["taskset", "-c", str(core), *command] for core in (0, 1)]
    clients = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in pinned]
    return [client.communicate()[0] for client in clients]


def throughput(options, run):
    def hand(reuseport, deferred, multi, pinned):
        listen = " ".join(word for word, on in (("reuseport", reuseport), ("deferred", deferred)) if on)
        return dict(
            listen=listen,
            events="multi_accept on;" if multi else "",
            main="worker_cpu_affinity 01 10;" if pinned else "",
        )

    def name(reuseport, deferred, multi, pinned):
        words = ("reuseport", reuseport), ("deferred", deferred), ("multi_accept", multi), ("pinned", pinned)
        return " ".join(word for word, on in words if on) or "as it is"

    both = (False, True)
    rows = [(f"by hand: {name(*each)}", [], hand(*each)) for each in itertools.product(both, repeat=4)]
    ours = [(False, deferred, multi, False) for deferred in both for multi in both]
    rows += [(f"corelane run: {name(*each)}", run, hand(*each)) for each in ours]
    results = collections.defaultdict(list)
    for n in range(options.rounds):
        for row, before, how in rows[n % len(rows):] + rows[:n % len(rows)]:
            with tempfile.TemporaryDirectory() as folder:
                os.chmod(folder, 0o755)
                nginx = Nginx(folder, before, **how)
                wrk = ["wrk", "-t1", "-c32", f"-d{options.seconds}s", "-H", "Connection: close", URL]
                said = on_each_core(wrk)
                if any("Socket errors" in text or "Non-2xx" in text for text in said):
                    sys.exit(f"{row}: {said}")
                results[row].append(sum(float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1]) for text in said))
                nginx.stop()
        print(f"round {n + 1} of {options.rounds}", file=sys.stderr)
    for row in sorted(results, key=lambda row: -statistics.median(results[row])):
        of = results[row]
        print(f"{statistics.median(of):9,.0f} ({min(of):,.0f} to {max(of):,.0f})  {row}")


def client(core, rate, over, told):
    """Starts connections when they are due, and tells what became of them."""
    os.sched_setaffinity(0, {core})
    outcomes, latencies, open_, poll = collections.Counter(), [], {}, select.epoll()
    begin, started = time.monotonic(), 0

    def end(fd, outcome):
        connection, due, _ = open_.pop(fd)
        outcomes[outcome] += 1
        latencies.append(time.monotonic() - due)
        connection.close()

    def ready(fd):
        connection, due, text = open_[fd]
        try:
            if text is None:
                if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(error, "")
                outcomes["established"] += 1
                open_[fd] = connection, due, b""
                connection.send(REQUEST)
                poll.modify(fd, select.EPOLLIN)
            elif data := connection.recv(4096):
                open_[fd] = connection, due, text + data
            else:
                end(fd, "answered" if text.endswith(b"ok") else "ended early")
        except OSError as error:
            end(fd, {errno.ECONNREFUSED: "refused", errno.ECONNRESET: "reset"}.get(error.errno, os.strerror(error.errno or 0)))

    while not over.is_set() or open_:
        now = time.monotonic()
        while not over.is_set() and begin + started / rate <= now:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(ADDRESS)
            open_[connection.fileno()] = connection, begin + started / rate, None
            poll.register(connection, select.EPOLLOUT)
            started += 1
        for fd, _ in poll.poll(0.001):
            ready(fd)
        for fd in [fd for fd, (_, due, _) in open_.items() if now - due > SILENT]:
            end(fd, "silent")
    told.put((outcomes, latencies))


def ends(options, run):
    def kills(nginx):
        for n in range(options.seconds):
            time.sleep(1)
            os.kill(nginx.workers()[n % 2], signal.SIGKILL)
            until("no worker comes", 10, lambda: len(nginx.workers()) == 2)

    def reloads(nginx):
        for _ in range(5):
            before = nginx.workers()
            time.sleep(1)
            os.kill(nginx.master(), signal.SIGHUP)
            until("no new workers", 20, lambda: len(now := nginx.workers()) == 2 and not set(now) & set(before))

    def upgrade(nginx):
        old = nginx.master()
        time.sleep(1)
        os.kill(old, signal.SIGUSR2)
        until("no new binary", 20, lambda: nginx.master() not in (0, old) and len(nginx.workers()) == 2)
        time.sleep(1)
        os.kill(old, signal.SIGQUIT)
        until("the old binary does not end", 20, lambda: not nginx.workers(old))
        time.sleep(1)

    ways = ("by hand: reuseport", [], dict(listen="reuseport")), ("by hand: as it is", [], {}), ("corelane run", run, {})
    for what, action in (("a worker killed each second", kills), ("5 reloads", reloads), ("an upgrade", upgrade)):
        for row, before, how in ways:
            with tempfile.TemporaryDirectory() as folder:
                os.chmod(folder, 0o755)
                # With its starter as its parent nginx takes itself for the next binary, and ignores USR2.
                nginx = Nginx(folder, before, daemon="on" if action is upgrade else "off", **how)
                before = nginx.accepts()
                over, told = multiprocessing.Event(), multiprocessing.Queue()
                clients = [multiprocessing.Process(target=client, args=(core, options.rate / 2, over, told)) for core in (0, 1)]
                for each in clients:
                    each.start()
                action(nginx)
                over.set()
                outcomes, latencies = collections.Counter(), []
                for counted, times in (told.get() for _ in clients):
                    outcomes.update(counted)
                    latencies += times
                for each in clients:
                    each.join()
                # The next binary counts anew.
                lost = None if action is upgrade else outcomes["established"] - (nginx.accepts() - 1 - before)
                report = nginx.stop()
            rest = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()) if outcome not in ("established", "answered"))
            print(f"{what}; {row}: {outcomes['answered']} answered, {rest or 'no other'}", end="")
            print("" if lost is None else f"; {lost} reset in a queue", end="")
            if report:
                print(f"; {report['local_share'] * 100:.2f} % local, {report['migrated']} moved", end="")
            latencies.sort()
            print(f"; latency p99 {latencies[len(latencies) * 99 // 100] * 1000:.1f} ms, longest {latencies[-1] * 1000:.0f} ms")


SERVER = """
import socket, threading
def answer(connection):
    with connection:
        connection.recv(64)
        connection.sendall(b"y" * 64)
listener = socket.create_server(("", 9000), backlog=512)
print("ready", flush=True)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],)).start()
"""
OPENER = """
import socket, sys
for _ in range(int(sys.argv[1])):
    with socket.create_connection(("10.99.0.1", 9000), 20) as connection:
        connection.sendall(b"x" * 64)
        while connection.recv(4096):
            pass
"""


def cost(_, run):
    server = subprocess.Popen(["unshare", "--net", sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        server.stdout.readline()
        far = ["nsenter", "-t", str(server.pid), "-n"]
        for command in (
            ["ip", "link", "add", "cl0", "type", "veth", "peer", "name", "cl1", "netns", str(server.pid)],
            [*far, "ip", "addr", "add", "10.99.0.1/24", "dev", "cl1"],
            [*far, "ip", "link", "set", "cl1", "up"],
            ["ip", "addr", "add", "10.99.0.2/24", "dev", "cl0"],
            ["ip", "link", "set", "cl0", "up"],
        ):
            subprocess.run(command, check=True)
        # The order in which Python's tables are walked costs instructions, too.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        counters = (
            ("system calls", ["strace", "-f", "-c"], r"100\.00 .* (\d+) +\d+ total"),
            ("instructions", ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"], r"Collected : (\d+)"),
        )
        for row, before in (("without", []), ("corelane run", [*run, "--"]), ("corelane run --dev", [*run, "--dev", "cl0", "--"])):
            per = []
            for what, counter, total in counters:
                def counted(n):
                    command = [*before, *counter, sys.executable, "-c", OPENER, str(n)]
                    said = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment, check=True).stderr
                    return int(re.search(total, said)[1])
                per.append(f"{(counted(600) - counted(100)) / 500:,.1f} {what}")
            print(f"{row}: {', '.join(per)} a connection")
    finally:
        server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "ends", "cost"])
    parser.add_argument("--bin", default="target/release/corelane")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, help="of a row, 2, or of the kills, 20")
    parser.add_argument("--rate", type=int, default=5000)
    options = parser.parse_args()
    options.seconds = options.seconds or {"throughput": 2, "ends": 20}.get(options.what)
    if os.environ.get("UNMODIFIED") != "within":
        os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.argv], {**os.environ, "UNMODIFIED": "within"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    run = [os.path.abspath(options.bin), "run", "--strict"]
    {"throughput": throughput, "ends": ends, "cost": cost}[options.what](options, run)


if __name__ == "__main__":
    main()
