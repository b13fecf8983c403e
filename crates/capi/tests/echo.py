"""A client of an echo server: echo.py ADDRESS PORT."""

import os
import socket
import sys
import threading
import time

AT = (sys.argv[1], int(sys.argv[2]))


def connect():
    for _ in range(200):
        try:
            return socket.create_connection(AT, timeout=20)
        except OSError:
            time.sleep(0.05)
    raise SystemExit("nobody listens")


def echo(size):
    s = connect()
    sent = os.urandom(size)
    writer = threading.Thread(target=lambda: (s.sendall(sent), s.shutdown(socket.SHUT_WR)))
    writer.start()
    back = b""
    while data := s.recv(1 << 16):
        back += data
    writer.join()
    assert back == sent, f"{len(back)} of {size} bytes"


for size in [0, 1, 5, 16384, 100_000, 3_000_000]:
    echo(size)
clients = [threading.Thread(target=lambda: [echo(1000) for _ in range(20)]) for _ in range(20)]
for c in clients:
    c.start()
for c in clients:
    c.join()
print("all came back")
