"""A server that counts: ends.py ADDRESS PORT COUNT FILE. Accepts COUNT connections, and waits until each of them has ended, by the
end of its stream or a reset; FILE says how many have, when all have, or nothing has happened for so long that nothing will."""

import resource
import select
import socket
import sys

WAIT = 20
address, port, count, name = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, max(count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, port))
listener.listen(4096)
listener.setblocking(False)
poll = select.epoll()
poll.register(listener, select.EPOLLIN)
open_now, came, fins, resets = {}, 0, 0, 0
print("ready", flush=True)
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
with open(name, "w") as file:
    file.write(f"{came} came, {fins + resets} ended ({resets} by a reset)\n")
