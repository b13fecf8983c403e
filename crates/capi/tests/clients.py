"""Clients that count: clients.py ADDRESS PORT PORTS COUNT. Opens COUNT connections, in equal parts to PORT and those after it, gives back each byte
that comes, and waits until each connection has ended, by the end of its stream or a reset; says how many have, when all have, or nothing
has happened for so long that nothing will. Each port has a process, since one process may not have descriptors for all."""

import os
import resource
import select
import socket
import sys

WAIT = 30
address, (port, ports, count) = sys.argv[1], map(int, sys.argv[2:5])


def connect(to, count):
    """How many were answered a byte, and how many of them ended by the end of their streams and by a reset."""
    limit = max(count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    poll = select.epoll()
    open_now, given, fins, resets = {}, 0, 0, 0
    for _ in range(count):
        s = socket.create_connection((address, to), timeout=WAIT)
        s.setblocking(False)
        open_now[s.fileno()] = s
        poll.register(s, select.EPOLLIN)
    while open_now:
        events = poll.poll(WAIT, 1024)
        if not events:
            break
        for fd, _ in events:
            try:
                if open_now[fd].recv(1):
                    given += open_now[fd].send(b"x")
                    continue
                fins += 1
            except BlockingIOError:
                continue
            except OSError:
                resets += 1
            poll.unregister(fd)
            open_now.pop(fd).close()
    return given, fins, resets


results = []
for at in range(ports):
    reading, writing = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writing, "w") as out:
            print(*connect(port + at, len(range(at, count, ports))), file=out)
        os._exit(0)
    os.close(writing)
    results.append(reading)
said = [map(int, os.fdopen(reading).read().split()) for reading in results]
given, fins, resets = map(sum, zip(*said))
print(f"{given} given back, {fins} ended, {resets} reset")
