"""A server that counts: ends.py ADDRESS PORT PORTS COUNT FILE. Accepts COUNT connections, in equal parts on PORT and those after it, and waits
until each of them has ended, by the end of its stream or a reset; FILE says how many have, when all have, or nothing has happened for so
long that nothing will. Each port has a process, since one process may not have descriptors for all."""

import os
import resource
import select
import socket
import sys

WAIT = 20
address, (port, ports, count), name = sys.argv[1], map(int, sys.argv[2:5]), sys.argv[5]


def listen(own):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, own))
    listener.listen(4096)
    listener.setblocking(False)
    return listener


def serve(listener, count):
    """How many came, and how many of them ended by the end of their streams and by a reset."""
    limit = max(count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    open_now, came, fins, resets = {}, 0, 0, 0
    while fins + resets < count:
        events = poll.poll(WAIT, 1024)
        if not events:
            break
        for fd, _ in events:
            if fd == listener.fileno():
                try:
                    while True:
                        s, _ = listener.accept()
                        s.setblocking(False)
                        open_now[s.fileno()] = s
                        poll.register(s, select.EPOLLIN)
                        came += 1
                except BlockingIOError:
                    pass
                continue
            try:
                if open_now[fd].recv(1):
                    continue
                fins += 1
            except BlockingIOError:
                continue
            except OSError:
                resets += 1
            poll.unregister(fd)
            open_now.pop(fd).close()
    return came, fins, resets


listeners = [listen(own) for own in range(port, port + ports)]
results = []
for at, listener in enumerate(listeners):
    reading, writing = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writing, "w") as out:
            # The client goes from port to port.
            print(*serve(listener, len(range(at, count, ports))), file=out)
        os._exit(0)
    os.close(writing)
    results.append(reading)
print("ready", flush=True)
said = [map(int, os.fdopen(reading).read().split()) for reading in results]
came, fins, resets = map(sum, zip(*said))
with open(name, "w") as file:
    file.write(f"{came} came, {fins + resets} ended ({resets} by a reset)\n")
