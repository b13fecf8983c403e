#!/usr/bin/env python3
"""How long nobody is answered when a server is stopped and started again: as root,

  tools/restart.py [--bin target/release/corelane] [--times 10] [--idle 1 20]

Two network namespaces joined by a veth with two queues; `corelane serve` in one, over AF_XDP. In the other a client asks for a page, a
connection each 5 ms, while so many others (--idle) have made a request each and stay. SIGTERM, and as soon as the server has ended it is
started again; with --wait the next one is started right behind the signal, and waits (`serve --wait`), and no attempt may be refused. For
each run: the longest time between two answers, and what became of the attempts.
"""
import argparse
import collections
import ctypes
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

EACH = 0.005
A, B = f"clr-a-{os.getpid()}", f"clr-b-{os.getpid()}"
CLONE_NEWNET = 0x40000000


def ip(command):
    subprocess.run(["ip", *command.split()], check=True)


def in_a():
    """This thread is in the client's namespace from now on."""
    with open(f"/var/run/netns/{A}") as name:
        if ctypes.CDLL(None, use_errno=True).setns(name.fileno(), CLONE_NEWNET):
            sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")


def start(binary, directory, *args):
    command = ["ip", "netns", "exec", B, binary, "serve", directory, "--dev", "xdp:vb", "--port", "80", *args]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not server.stdout.readline().startswith("serving"):
        sys.exit(server.stderr.read())
    return server


def stop(server):
    server.send_signal(signal.SIGTERM)
    await_end(server)


def await_end(server):
    if server.wait():
        sys.exit(f"the server ended with {server.returncode}: {server.stderr.read()}")


class Client:
    def __init__(self, idle):
        self.answers, self.failures, self.over = [], collections.Counter(), threading.Event()
        self.idle, self.ready = idle, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        self.ready.wait()

    def ask(self):
        with socket.socket() as s:
            s.settimeout(3)
            try:
                s.connect(("10.99.0.2", 80))
                s.sendall(b"GET / HTTP/1.0\r\n\r\n")
                said = b""
                while data := s.recv(4096):
                    said += data
                if b"works" not in said:
                    raise EOFError
                self.answers.append(time.monotonic())
            except OSError as error:
                self.failures[type(error).__name__] += 1
            except EOFError:
                self.failures["cut short"] += 1

    def run(self):
        # Threads are where who starts them is.
        in_a()
        stay = [socket.create_connection(("10.99.0.2", 80)) for _ in range(self.idle)]
        for s in stay:
            s.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            s.recv(4096)
        self.ready.set()
        asking, due = [], time.monotonic()
        while not self.over.is_set():
            asking.append(threading.Thread(target=self.ask))
            asking[-1].start()
            due += EACH
            time.sleep(max(0, due - time.monotonic()))
        for thread in asking:
            thread.join()
        for s in stay:
            s.close()


def once(binary, directory, idle, wait):
    old = start(binary, directory)
    client = Client(idle)
    time.sleep(1)
    asked = time.monotonic()
    if wait:
        old.send_signal(signal.SIGTERM)
        new = start(binary, directory, "--wait", str(wait))
        ready = time.monotonic()
        await_end(old)
        phases = f"ready {(ready - asked) * 1000:.0f} after the signal"
    else:
        stop(old)
        ended = time.monotonic()
        new = start(binary, directory)
        ready = time.monotonic()
        phases = f"ended after {(ended - asked) * 1000:.0f}, ready {(ready - ended) * 1000:.0f} later"
    time.sleep(1)
    client.over.set()
    client.thread.join()
    stop(new)
    answers = sorted(client.answers)
    longest = max(b - a for a, b in zip(answers, answers[1:])) * 1000
    failed = ", ".join(f"{n} × {what}" for what, n in client.failures.items()) or "none"
    print(
        f"{idle} idle: {longest:.0f} ms without an answer ({phases}); "
        f"{len(answers)} answers, failed: {failed}; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    if wait and client.failures["ConnectionRefusedError"]:
        sys.exit("an attempt was refused")
    return longest


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--bin", default="target/release/corelane")
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--idle", type=int, nargs="+", default=[1, 20])
    options.add_argument("--wait", type=float, default=0, metavar="S")
    options = options.parse_args()
    try:
        for name in (A, B):
            ip(f"netns add {name}")
        ip(f"link add va netns {A} numtxqueues 2 numrxqueues 2 type veth peer name vb netns {B} numtxqueues 2 numrxqueues 2")
        for name, dev, n in ((A, "va", 1), (B, "vb", 2)):
            ip(f"-n {name} link set lo up")
            ip(f"-n {name} link set {dev} up")
            ip(f"-n {name} addr add 10.99.0.{n}/24 dev {dev}")
        with tempfile.TemporaryDirectory() as directory:
            with open(f"{directory}/index.html", "w") as page:
                page.write("<h1>It works</h1>\n")
            all_of = {idle: [] for idle in options.idle}
            for _ in range(options.times):
                for idle in options.idle:
                    all_of[idle].append(once(os.path.abspath(options.bin), directory, idle, options.wait))
        for idle, times in all_of.items():
            print(f"{idle} idle: median {statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f}) of {len(times)} runs")
    finally:
        for name in (A, B):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


main()
