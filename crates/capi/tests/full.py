"""More clients than a server has room for: full.py ADDRESS PORT. Those that have none wait until others have gone."""

import socket
import sys

waiting = [socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) for _ in range(60)]
for s in waiting:
    s.sendall(b"version\r\n")
while waiting:
    answered = 0
    for s in waiting:
        s.settimeout(1 if answered else 20)
        try:
            assert s.recv(100).upper().startswith(b"VERSION")
        except TimeoutError:
            break
        answered += 1
    print(f"{answered} of {len(waiting)} were answered")
    assert answered < 60, "there was room for all"
    for s in waiting[:answered]:
        s.close()
    del waiting[:answered]
