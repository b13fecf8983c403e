"""Clients that come back by the same ports: again.py ADDRESS PORT FIRST COUNT. Each of COUNT asks a key-value server for its version, from
port FIRST and those after it, all at once, and lets the server end the connection. Prints how many were answered."""

import socket
import sys
import threading

address, port, first, count = sys.argv[1], *map(int, sys.argv[2:])
# Who is not answered tries for so long; the kernel's TIME-WAIT lasts three times that.
WAIT = 20
answered = []


def client(own):
    s = socket.socket()
    s.settimeout(WAIT)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("", own))
    try:
        s.connect((address, port))
        s.sendall(b"version\r\nquit\r\n")
        said = b""
        while data := s.recv(100):
            said += data
        assert said.startswith(b"VERSION "), said
        answered.append(own)
    except OSError as error:
        print(f"port {own}: {error}", file=sys.stderr)
    s.close()


clients = [threading.Thread(target=client, args=[own]) for own in range(first, first + count)]
for c in clients:
    c.start()
for c in clients:
    c.join()
print(f"{len(answered)} of {count} were answered")
