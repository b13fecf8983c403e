"""A client of the key-value server: kv.py ADDRESS PORT. What memcached answers to the same (protocol.txt) is expected."""

import socket
import sys
import threading
import time

AT = (sys.argv[1], int(sys.argv[2]))


class Client:
    def __init__(self):
        for _ in range(200):
            try:
                self.s = socket.create_connection(AT, timeout=20)
                break
            except OSError:
                time.sleep(0.05)
        self.rest = b""

    def send(self, data):
        self.s.sendall(data.encode() if isinstance(data, str) else data)

    def more(self):
        data = self.s.recv(1 << 16)
        if not data:
            raise EOFError
        self.rest += data

    def line(self):
        while b"\r\n" not in self.rest:
            self.more()
        line, self.rest = self.rest.split(b"\r\n", 1)
        return line.decode()

    def exactly(self, n):
        while len(self.rest) < n:
            self.more()
        data, self.rest = self.rest[:n], self.rest[n:]
        return data

    def ask(self, request):
        self.send(request + "\r\n")
        return self.line()

    def store(self, command, key, value, flags=0, exptime=0, more=""):
        value = value if isinstance(value, bytes) else value.encode()
        self.send(f"{command} {key} {flags} {exptime} {len(value)}{more}\r\n".encode() + value + b"\r\n")
        return self.line()

    def gets(self, *keys, command="gets"):
        self.send(f"{command} {' '.join(keys)}\r\n")
        found = {}
        while (line := self.line()) != "END":
            word, key, flags, n, *cas = line.split(" ")
            assert word == "VALUE", line
            found[key] = (self.exactly(int(n)), int(flags), *map(int, cas))
            assert self.exactly(2) == b"\r\n"
        return found

    def get(self, key):
        found = self.gets(key, command="get")
        return found[key][0] if key in found else None

    def stats(self):
        self.send("stats\r\n")
        found = {}
        while (line := self.line()) != "END":
            _, name, value = line.split(" ", 2)
            found[name] = value
        return found

    def ended(self):
        try:
            self.more()
            return False
        except EOFError:
            return True


def equal(a, b):
    assert a == b, f"{a!r} is not {b!r}"


c = Client()
equal(c.ask("version").split()[0], "VERSION")
equal(c.get("none"), None)

# Storing.
equal(c.store("set", "a", "hello", flags=7), "STORED")
value, flags, cas = c.gets("a")["a"]
equal((value, flags), (b"hello", 7))
equal(c.store("add", "a", "x"), "NOT_STORED")
equal(c.store("replace", "b", "x"), "NOT_STORED")
equal(c.store("append", "b", "x"), "NOT_STORED")
equal(c.store("append", "a", "!"), "STORED")
equal(c.store("prepend", "a", "oh, ", flags=9), "STORED")
equal(c.gets("a")["a"][:2], (b"oh, hello!", 7))
equal(c.store("cas", "a", "late", more=f" {cas}"), "EXISTS")
cas = c.gets("a")["a"][2]
equal(c.store("cas", "a", "in time", more=f" {cas}"), "STORED")
equal(c.store("cas", "b", "x", more=" 1"), "NOT_FOUND")
equal(c.store("replace", "a", ""), "STORED")
equal(c.get("a"), b"")
equal(c.store("set", "bytes", bytes(range(256))), "STORED")
equal(c.get("bytes"), bytes(range(256)))
equal(c.store("set", "k" * 250, "long"), "STORED")
equal(sorted(c.gets("a", "nope", "bytes", "k" * 250)), sorted(["a", "bytes", "k" * 250]))

# Counting.
equal(c.ask("incr none 1"), "NOT_FOUND")
equal(c.store("set", "n", "41"), "STORED")
equal(c.ask("incr n 1"), "42")
equal(c.ask("decr n 100"), "0")
equal(c.get("n"), b"0 ")
equal((c.ask("incr n 7"), c.ask("incr n 99"), c.get("n")), ("7", "106", b"106"))
equal(c.store("set", "n", str(2**64 - 1)), "STORED")
equal(c.ask("incr n 2"), "1")
assert c.ask("incr n -1").startswith("CLIENT_ERROR")
assert c.ask("incr bytes 1").startswith("CLIENT_ERROR")

# Deleting, expiry.
equal(c.ask("delete n"), "DELETED")
equal(c.ask("delete n 0"), "NOT_FOUND")
equal(c.store("set", "gone", "x", exptime=-1), "STORED")
equal(c.get("gone"), None)
equal(c.store("set", "soon", "x", exptime=1), "STORED")
equal(c.store("set", "kept", "x", exptime=1), "STORED")
equal(c.store("set", "date", "x", exptime=int(time.time()) + 1), "STORED")
equal(c.ask("touch kept 0"), "TOUCHED")
equal(c.ask("touch none 0"), "NOT_FOUND")
equal(c.get("soon"), b"x")
time.sleep(2.1)
equal((c.get("soon"), c.get("date"), c.get("kept")), (None, None, b"x"))

# Without an answer: what comes next is the next one's.
c.send("set q 0 0 1 noreply\r\n1\r\nincr q 5 noreply\r\nappend q 0 0 1 noreply\r\n0\r\ntouch q 0 noreply\r\ndelete none noreply\r\n")
equal(c.get("q"), b"60")

# What is no request.
equal(c.ask("bogus"), "ERROR")
equal(c.ask(""), "ERROR")
equal(c.ask("get"), "ERROR")
for bad in ["set", "set a", "set a 0 0 1 2 3", "cas a 0 0 1", "touch", "touch a", "touch a 1 2 3", "delete", "delete a b c d",
            "incr a", "incr a 1 2 3", "flush_all 1 2 3", "verbosity", "verbosity 1 2 3", "stats what", "stats noreply", "GET a"]:
    equal(c.ask(bad), "ERROR")
for bad in ["set a b 0 1", "set a 0 0 -1", "set a 0 0 x", "set a 0 0 99999999999", "set a x 0 1", "set a 0 x 1", "delete a b", "delete a 1",
            "touch a x", "flush_all x", "verbosity x", "get a " + "k" * 251, "set " + "k" * 251 + " 0 0 1", "incr a x"]:
    assert c.ask(bad).startswith("CLIENT_ERROR"), bad
# Without an answer, whatever is wrong.
for bad in ["set a x 0 1", "touch a x", "delete a b", "incr a x", "incr none 1", "flush_all x", "verbosity x", "delete " + "k" * 251]:
    c.send(bad + " noreply\r\n")
c.send("delete noreply\r\n")
equal(c.line(), "NOT_FOUND")
equal(c.store("set", "a", "y"), "STORED")
c.send("set a 0 0 1\r\nmuch more than one\r\n")
equal((c.line(), c.line()), ("CLIENT_ERROR bad data chunk", "ERROR"))
equal(c.get("a"), b"y")
c.send("set a 0 0 1 noreply\r\nmuch more than one\r\n")
equal(c.line(), "ERROR")
equal(c.store("set", "a", b"z" * (1 << 20)), "STORED")
equal(c.get("a"), b"z" * (1 << 20))
assert c.store("set", "a", b"z" * ((1 << 20) + 1)).startswith("SERVER_ERROR object too large")
equal(c.get("a"), None)
equal(c.ask("verbosity 1"), "OK")

# A request in single bytes, and many at once.
d = Client()
for byte in b"set slow 0 0 4\r\nslow\r\n":
    d.send(bytes([byte]))
    time.sleep(0.002)
equal(d.line(), "STORED")
many = 2000
writer = threading.Thread(target=d.send, args=("".join(f"set p{i} 0 0 1000\r\n{i:01000}\r\nget p{i}\r\n" for i in range(many)),))
writer.start()
for i in range(many):
    equal(d.line(), "STORED")
    equal(d.line(), f"VALUE p{i} 0 1000")
    equal(d.exactly(1002), f"{i:01000}\r\n".encode())
    equal(d.line(), "END")
writer.join()

# A large value asked for many times over, by one who does not read yet: the server keeps a bounded part of the answer.
def rss(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) * 1024

equal(c.store("set", "l", b"L" * 1_000_000), "STORED")
pid = int(c.stats()["pid"])
before = rss(pid)
e = Client()
e.send("get " + "l " * 3000 + "\r\nversion\r\n")
time.sleep(1)
assert rss(pid) < before + (50 << 20), (before, rss(pid))
for _ in range(100):
    equal((e.line(), e.exactly(1_000_002)), ("VALUE l 0 1000000", b"L" * 1_000_000 + b"\r\n"))
e.s.close()
e = Client()
e.send("gets " + "l " * 50 + "none l\r\nversion\r\n")
for _ in range(51):
    assert e.line().startswith("VALUE l 0 1000000 ")
    equal(e.exactly(1_000_002)[-4:], b"LL\r\n")
equal((e.line(), e.line().split()[0]), ("END", "VERSION"))
keys = [f"key{i:06}" for i in range(50_000)]
e.send("get " + " ".join(keys) + " kept\r\n")
equal(e.line(), "VALUE kept 0 1")
e.line()
equal(e.line(), "END")
# Many clients who have had something large keep nothing of it.
before = rss(pid)
crowd = [Client() for _ in range(100)]
for one in crowd:
    equal((one.store("set", "l", b"L" * 1_000_000), len(one.get("l"))), ("STORED", 1_000_000))
assert rss(pid) < before + (50 << 20), (before, rss(pid))
for one in crowd:
    one.s.close()

# Values that have not come whole are within the limit too, half of it at most: who has no room is told, and what was there is
# not what was set.
limit = int(c.stats()["limit_maxbytes"])
equal(c.store("set", "late", "x"), "STORED")
half = [Client() for _ in range(limit // 2 // 1_000_000)]
for i, one in enumerate(half):
    one.send(f"set half{i} 0 0 1000000\r\n".encode() + b"h" * 900_000)
while int((stats := c.stats())["connection_bytes"]) < len(half) * 980_000:
    time.sleep(0.01)
assert int(stats["bytes"]) + int(stats["connection_bytes"]) <= limit, stats
late = Client()
equal(late.store("set", "late", b"l" * 1_000_000), "SERVER_ERROR out of memory storing object")
equal(late.get("late"), None)
equal(late.store("add", "late", "small"), "STORED")
late.send(b"set late 0 0 1000000 noreply\r\n" + b"l" * 1_000_002)
equal(late.get("late"), None)
for i, one in enumerate(half):
    one.send(b"h" * 100_000 + b"\r\n")
    equal(one.line(), "STORED")
equal(late.get(f"half{len(half) - 1}"), b"h" * 1_000_000)
equal(late.store("set", "late", b"l" * 1_000_000), "STORED")
# Clients who go in the middle of a value or of an answer give back what they had.
for one in half:
    one.send(b"set half 0 0 1000000\r\nh")
for one in half[1:]:
    one.s.close()
half[0].send(b"h" * 999_999 + b"\r\n")
equal(half[0].line(), "STORED")
while int(c.stats()["connection_bytes"]) > 0:
    time.sleep(0.01)

# A line without an end, and a client that goes in the middle.
e = Client()
try:
    e.send("x" * 200_000)
    assert e.line().startswith("CLIENT_ERROR")
except OSError:
    pass
e = Client()
e.send("set half 0 0 1000\r\nhalf of it")
e.s.close()

# Many clients at once.
def work(seed):
    mine = Client()
    for i in range(200):
        key = f"w{(seed * 7919 + i * 31) % 500}"
        equal(mine.store("set", key, key * 20), "STORED")
        value = mine.get(key)
        assert value in (None, (key * 20).encode())
    mine.send("quit\r\n")
    assert mine.ended()

workers = [threading.Thread(target=work, args=(n,)) for n in range(20)]
for w in workers:
    w.start()
for w in workers:
    w.join()

# The limit holds, and what was used least recently makes room.
before = int(c.stats()["evictions"])
equal(c.store("set", "used", "u" * 1000), "STORED")
for i in range(12_000):
    c.send(f"set fill{i} 0 0 1000 noreply\r\n{'f' * 1000}\r\n")
    if i % 100 == 0:
        equal(c.get("used"), b"u" * 1000)
stats = c.stats()
assert int(stats["bytes"]) <= int(stats["limit_maxbytes"]) == 8 << 20, stats
assert int(stats["evictions"]) > before, stats
equal(c.get("fill0"), None)
equal(c.get("fill11999"), b"f" * 1000)

# All of it, at once and later.
equal(c.ask("flush_all"), "OK")
equal((c.get("used"), c.get("fill11999")), (None, None))
equal(c.store("set", "later", "x"), "STORED")
equal(c.ask("flush_all 2"), "OK")
equal(c.get("later"), b"x")
time.sleep(3.1)
equal(c.get("later"), None)
equal(c.store("set", "after", "x"), "STORED")
equal(c.get("after"), b"x")
stats = c.stats()
equal(int(stats["get_hits"]) + int(stats["get_misses"]), int(stats["cmd_get"]))
c.send("quit\r\n")
assert c.ended()
print("all answers are right")
