#!/usr/bin/env python3
"""A long run under mixed load and every disturbance at hand, which must leave nothing behind.

  tools/soak.py [HOURS] [--program FILE] [--corelane FILE] [--model MODEL] [--lanes N] [--json FILE]

HOURS (default 2) may be a fraction: 0.05 is three minutes, the least that says anything (there are at least six cycles). It needs root and iproute2, and makes
namespaces of its own. `ci.sh soak [HOURS]` builds the two programs and starts it.

The program under test (crates/corelane/examples/soak.rs) lives through the whole run, on a veth by AF_XDP. It serves an echo,
listens on a new port 25 times a second, and exchanges bytes with echo servers on the kernel's TCP and with addresses where nobody is. Beside it, clients
on the kernel's TCP come and go in all manners; a sender of hostile frames sends SYNs, fragments, tagged frames, ICMP errors and garbage; the
link goes down and comes back; addresses come and go; the echo servers are killed and restarted; and a second program, `corelane serve` on another
veth, is started and ended, by SIGKILL every second time.

In each cycle the load stops, everything is closed, and a sample is taken: descriptors, threads and RSS of the program, places in its maps
for the XDP program (bpf(2)), chunks of its pools (to within 15 a lane, as a lane knows them), connections, TIME-WAIT records; with --machine
XDP programs and maps of the whole machine. The first three cycles warm up. In the last three nothing may be more than it was in any of them;
only of RSS the least of the last three counts, and may be 2 % more. In each cycle clients must have had answers over IPv4 and over IPv6.
All samples are printed.

The exit code is 0 when the run was flat, 1 when not, or when a program ended or a byte differed, 2 for a wrong call, 77 where it cannot run.
"""
import argparse
import ctypes
import json
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

ECHO = r'''
import asyncio, sys
async def echo(r, w):
    try:
        while data := await r.read(65536):
            w.write(data)
            await w.drain()
        w.close()
    except OSError:
        pass
async def main():
    await asyncio.start_server(echo, None, int(sys.argv[1]), backlog=512)
    await asyncio.sleep(1 << 20)
asyncio.run(main())
'''

# Clients on the kernel's TCP: closed, half-closed, reset, abandoned, with many sizes; a byte that differs is told on stdout, and twice a
# second how many exchanges each host has answered.
CLIENTS = r'''
import asyncio, os, random, socket, struct, sys
hosts, ports = sys.argv[1].split(","), range(20000, 24000)
answered = dict.fromkeys(hosts, 0)
async def one():
    host, kind = random.choice(hosts), random.randrange(8)
    port = random.choice(ports) if random.randrange(4) == 0 else 80
    try:
        r, w = await asyncio.wait_for(asyncio.open_connection(host, port), 2)
    except (OSError, asyncio.TimeoutError):
        return
    try:
        data = os.urandom(1 << random.randrange(18))
        w.write(data)
        if kind == 0:
            w.transport.abort()
            return
        if kind == 1:
            # A reset with bytes under way.
            w.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            w.close()
            return
        if kind == 2:
            w.write_eof()
        back = await asyncio.wait_for(r.readexactly(len(data)), 5)
        if back != data:
            print("differs", flush=True)
        answered[host] += 1
        w.close()
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        w.transport.abort()
async def client():
    while True:
        await one()
        await asyncio.sleep(random.random() / 20)
async def tell():
    while True:
        await asyncio.sleep(0.5)
        print("answered", *answered.values(), flush=True)
async def main():
    await asyncio.gather(tell(), *(client() for _ in range(12)))
asyncio.run(main())
'''

# Frames that no kernel sends, from a packet socket.
HOSTILE = r'''
import os, random, socket, struct, sys, time
dev, mac = sys.argv[1], bytes.fromhex(sys.argv[2].replace(":", ""))
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((dev, 0))
us, own = socket.inet_aton(sys.argv[3]), socket.inet_aton(sys.argv[4])
def total(b):
    b += b"\0" * (len(b) & 1)
    n = sum(struct.unpack(f"!{len(b) // 2}H", b))
    while n >> 16:
        n = (n & 0xffff) + (n >> 16)
    return ~n & 0xffff
def ip(proto, body, src, frag=0, ident=None):
    h = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), random.randrange(65536) if ident is None else ident, frag, 64, proto, 0, src, us)
    return h[:10] + struct.pack("!H", total(h)) + h[12:] + body
def tcp(src, flags, payload=b"", options=b""):
    options += b"\0" * (-len(options) % 4)
    port = random.choice((80, 80, random.randrange(20000, 24000), 22))
    h = struct.pack("!HHIIBBHHH", random.randrange(1024, 65535), port, random.getrandbits(32), random.getrandbits(32),
                    (5 + len(options) // 4) << 4, flags, random.randrange(65536), 0, 0) + options + payload
    check = total(src + us + struct.pack("!BBH", 0, 6, len(h)) + h)
    return h[:16] + struct.pack("!H", check) + h[18:]
def frame():
    # Sources that exist nowhere, some on the link.
    src = random.choice((own, bytes([10, 96, 0, random.randrange(100, 250)]), os.urandom(4)))
    kind = random.randrange(9)
    if kind < 3:
        body = ip(6, tcp(src, 2, options=b"\x02\x04" + struct.pack("!H", random.randrange(1, 9000))), src)
    elif kind == 3:
        body = ip(6, tcp(src, random.randrange(64), os.urandom(random.randrange(200))), src)
    elif kind == 4:
        body = ip(6, tcp(src, 16, os.urandom(64)), src, frag=0x2000 | random.choice((0, 0, 1, 8, 8191)))
    elif kind == 5:
        quoted = ip(6, os.urandom(20), us)
        icmp = struct.pack("!BBHI", 3, random.randrange(16), 0, random.choice((0, 68, 500, 1400))) + quoted[:28]
        body = ip(1, icmp[:2] + struct.pack("!H", total(icmp)) + icmp[4:], src)
    elif kind == 6:
        body = bytearray(ip(6, tcp(src, 24, os.urandom(100)), src))
        for _ in range(4):
            body[random.randrange(len(body))] = random.randrange(256)
    elif kind == 7:
        return mac + b"\2\0\0\0\0\x42" + random.choice((b"\x81\0\0\x07", b"\x88\xa8\0\x07")) + b"\x08\0" + ip(6, tcp(src, 2), src)
    else:
        return mac + b"\2\0\0\0\0\x42" + random.choice((b"\x08\0", b"\x86\xdd", b"\x08\x06")) + os.urandom(random.randrange(120))
    return mac + b"\2\0\0\0\0\x42" + b"\x08\0" + bytes(body)
while True:
    for _ in range(20):
        try:
            s.send(frame())
        except OSError:
            pass
    time.sleep(0.02)
'''

LIBC = ctypes.CDLL(None, use_errno=True)
BPF = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine)


def bpf(command, attributes):
    data = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = LIBC.syscall(BPF, command, data, 128)
    return (result, data.raw) if result >= 0 else (-ctypes.get_errno(), data.raw)


def bpf_ids(command):
    """All ids of programs (11) or maps (12) of the machine."""
    ids, at = [], 0
    while True:
        result, data = bpf(command, struct.pack("=II", at, 0))
        if result < 0:
            return ids
        at = struct.unpack_from("=I", data, 4)[0]
        ids.append(at)


def map_places(number):
    """Name and number of keys of a map, by BPF_MAP_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD and BPF_MAP_GET_NEXT_KEY."""
    fd, _ = bpf(14, struct.pack("=III", number, 0, 0))
    if fd < 0:
        return None
    try:
        info = ctypes.create_string_buffer(256)
        bpf(15, struct.pack("=IIQ", fd, 80, ctypes.addressof(info)))
        kind, _, key_size, _, _ = struct.unpack_from("=IIIII", info.raw, 0)
        name = info.raw[24:40].split(b"\0")[0].decode()
        if kind not in (1, 9):
            return None
        count, key, after = 0, ctypes.create_string_buffer(key_size), ctypes.create_string_buffer(key_size)
        at = 0
        while bpf(4, struct.pack("=IIQQ", fd, 0, at, ctypes.addressof(after)))[0] == 0:
            count += 1
            ctypes.memmove(key, after, key_size)
            at = ctypes.addressof(key)
        return name, count, kind
    finally:
        os.close(fd)


def run(command, check=True):
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
    return done


class Finding(Exception):
    pass


class Soak:
    def __init__(self, args):
        self.args, self.dir = args, tempfile.mkdtemp(prefix="corelane-soak-")
        self.a, self.b = f"soak-a-{os.getpid()}", f"soak-b-{os.getpid()}"
        self.running, self.stop, self.disturb = [], threading.Event(), threading.Event()
        self.counts = {"flaps": 0, "addresses": 0, "killed": 0, "restarts": 0}
        self.trouble, self.turns, self.answered = [], 0, [0, 0]

    # Namespaces

    def up(self):
        a, b = self.a, self.b
        for name in (a, b):
            run(f"ip netns add {name}")
            run(f"ip -n {name} link set lo up")
        run(f"ip link add va netns {a} numtxqueues 2 numrxqueues 2 type veth peer name vb netns {b} numtxqueues 2 numrxqueues 2")
        run(f"ip link add vc netns {a} numtxqueues 2 numrxqueues 2 type veth peer name vd netns {b} numtxqueues 2 numrxqueues 2")
        for ns, dev, net, n in ((a, "va", 96, 1), (b, "vb", 96, 2), (a, "vc", 95, 1), (b, "vd", 95, 2)):
            # IPv6 addresses stay when the link goes down.
            run(f"ip netns exec {ns} sysctl -qw net.ipv6.conf.{dev}.keep_addr_on_down=1")
            run(f"ip -n {ns} link set {dev} up")
            run(f"ip -n {ns} addr add 10.{net}.0.{n}/24 dev {dev}")
            run(f"ip -n {ns} addr add fd{net}::{n}/64 dev {dev} nodad")
            run(f"ip netns exec {ns} ethtool -K {dev} tso off gso off", check=False)

    def down(self):
        for name in (self.a, self.b):
            run(f"ip netns del {name}", check=False)

    def within(self, ns, command, **options):
        child = subprocess.Popen(["ip", "netns", "exec", ns, *command], stdin=subprocess.PIPE, **options)
        self.running.append(child)
        return child

    def end(self, child, how=signal.SIGKILL):
        child.send_signal(how)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise Finding(f"{child.args[4]} does not end upon signal {how}") from None
        finally:
            self.running.remove(child)

    # The program under test

    def start(self):
        config = os.path.join(self.dir, "soak.toml")
        with open(config, "w") as out:
            # What is left over ends within the quiet time.
            out.write(f'''lanes = {self.args.lanes}
model = "{self.args.model}"
buffers_mib = 32
max_connections = 4096
max_sockets = 8192
max_half_open = 512
max_time_wait = 2048
[[ports]]
device = "xdp:vb"
[tcp]
time_wait_ms = 1000
synack_retries = 1
syn_retries = 2
retries = 5
orphan_retries = 2
fin_timeout_ms = 2000
''')
        self.said = open(os.path.join(self.dir, "soak.log"), "w+")
        peers = ["10.96.0.1:7", "[fd96::1]:7", "10.96.0.1:8"]
        # PR_SET_THP_DISABLE: a huge page counts whole from its first byte on, so that a table that reaches a new page would be 2 % of RSS.
        small = lambda: LIBC.prctl(41, 1, 0, 0, 0)
        self.program = self.within(self.b, [self.args.program, config, *peers], stdout=subprocess.PIPE, stderr=self.said, text=True, preexec_fn=small)
        if self.answer(60) != "ready":
            raise Finding("the program does not start")

    def answer(self, seconds):
        """The program's next line; its end or silence is a finding."""
        if not select.select([self.program.stdout], [], [], seconds)[0]:
            raise Finding(f"the program said nothing for {seconds} s")
        line = self.program.stdout.readline()
        if not line:
            raise Finding(f"the program ended with {self.program.wait()}: {self.last_words()}")
        return line.strip()

    def last_words(self):
        self.said.flush()
        with open(self.said.name) as text:
            return " | ".join(text.read().splitlines()[-5:])

    def tell(self, command):
        try:
            self.program.stdin.write(command + "\n")
            self.program.stdin.flush()
        except OSError:
            raise Finding(f"the program ended with {self.program.wait()}: {self.last_words()}") from None

    def counters(self):
        self.tell("sample")
        return json.loads(self.answer(30))

    def sample(self):
        c, pid = self.counters(), self.pid()
        maps, fragments = {}, 0
        for fd in os.listdir(f"/proc/{pid}/fdinfo"):
            try:
                with open(f"/proc/{pid}/fdinfo/{fd}") as text:
                    found = re.search(r"^map_id:\s*(\d+)", text.read(), re.M)
            except OSError:
                continue
            places = found and map_places(int(found[1]))
            # An LRU map keeps what it has until it is full.
            if places and places[2] == 1:
                maps[places[0]] = places[1]
            elif places:
                fragments = places[1]
        with open(f"/proc/{pid}/statm") as text:
            rss = int(text.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return {
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            **{name: maps[name] for name in sorted(maps)},
            "connections": c.get("connections", 0),
            "time_wait": c.get("time_wait", 0),
            # A lane knows the free chunks of its other side to within 15.
            "chunks": max(0, c.get("chunks_in_use", 0) - 15 * self.args.lanes),
            "programs": len(bpf_ids(11)) if self.args.machine else 0,
            "maps": len(bpf_ids(12)) if self.args.machine else 0,
            "rss_kib": rss // 1024,
        }, c, fragments

    def pid(self):
        # `ip netns exec` becomes the program.
        return self.program.pid

    # Disturbances

    def load(self):
        """Clients, hostile frames and echo servers; the servers are killed now and then."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        servers = [self.within(self.a, [sys.executable, "-c", ECHO, port], **quiet) for port in ("7", "8")]
        out = open(os.path.join(self.dir, "clients.log"), "w")
        clients = self.within(self.a, [sys.executable, "-c", CLIENTS, "10.96.0.2,fd96::2"], stdout=out, stderr=subprocess.DEVNULL)
        mac = run(f"ip netns exec {self.b} cat /sys/class/net/vb/address").stdout.strip()
        hostile = self.within(self.a, [sys.executable, "-c", HOSTILE, "va", mac, "10.96.0.2", "10.96.0.1"], **quiet)
        return [*servers, clients, hostile]

    def flap(self):
        end, dev = random.choice(((self.a, "va"), (self.b, "vb")))
        run(f"ip -n {end} link set {dev} down")
        time.sleep(random.random())
        run(f"ip -n {end} link set {dev} up")
        self.counts["flaps"] += 1

    def address(self):
        for cidr in ("10.96.0.50/24", "fd96::50/64"):
            run(f"ip -n {self.b} addr add {cidr} dev vb")
        time.sleep(random.random())
        for cidr in ("10.96.0.50/24", "fd96::50/64"):
            run(f"ip -n {self.b} addr del {cidr} dev vb", check=False)
        self.counts["addresses"] += 1

    def second(self):
        """Another program on the other veth: started, asked, ended, by SIGKILL every second time."""
        child = self.within(self.b, [self.args.corelane, "serve", "--message", "64", "--dev", "xdp:vd", "--port", "81"], stdout=subprocess.PIPE, stderr=self.said)
        line = child.stdout.readline()
        if not line.startswith(b"serving"):
            self.end(child)
            raise Finding(f"corelane serve does not start: {self.last_words()}")
        got = subprocess.run(["ip", "netns", "exec", self.a, "curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "http://10.95.0.2:81/"], capture_output=True, text=True)
        kill = self.counts["restarts"] % 2 == 0
        self.end(child, signal.SIGKILL if kill else signal.SIGINT)
        child.stdout.close()
        if got.stdout != "200":
            raise Finding(f"corelane serve answers {got.stdout!r}")
        self.counts["restarts"] += 1

    def busy(self, seconds):
        self.tell("busy")
        parts = self.load()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, random.random() * 2))
            self.turns += 1
            if self.turns % 4 == 0:
                self.flap()
            elif self.turns % 4 == 1:
                self.address()
            elif self.turns % 4 == 2:
                self.second()
            else:
                # One echo server dies with its connections, and another takes its place.
                self.end(parts[0])
                parts[0] = self.within(self.a, [sys.executable, "-c", ECHO, "7"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.counts["killed"] += 1
            if self.program.poll() is not None:
                raise Finding(f"the program ended with {self.program.returncode}: {self.last_words()}")
        self.tell("quiet")
        for part in parts:
            if part.poll() is not None:
                raise Finding(f"a part of the load ended by itself with {part.returncode}")
            self.end(part)
            part.stdin.close()
        with open(os.path.join(self.dir, "clients.log")) as text:
            said = text.read()
        if "differs" in said:
            raise Finding("a client got bytes back that it had not sent")
        told = re.findall(r"^answered (\d+) (\d+)$", said, re.M)
        self.answered = [int(n) for n in told[-1]] if told else [0, 0]
        if not all(self.answered):
            raise Finding(f"{self.answered[0]} exchanges of clients were answered over IPv4 in a cycle, {self.answered[1]} over IPv6")

    def quiet(self):
        """Waits until nothing is under way; what is still there after a minute is in the sample."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            c = self.counters()
            if not c.get("connections", 0) and not c.get("time_wait", 0):
                break
            time.sleep(1)
        # Segments that come late, and addresses and links of the last disturbance.
        time.sleep(3)

    def all(self):
        seconds = self.args.hours * 3600
        cycle = min(max(seconds / 12, 15), 300)
        begun, samples = time.monotonic(), []
        while True:
            self.busy(cycle)
            self.quiet()
            now, counters, fragments = self.sample()
            samples.append(now)
            took = time.monotonic() - begun
            print(f"{took:7.0f} s  " + "  ".join(f"{k} {v}" for k, v in now.items()) +
                  f"  (answered {' + '.join(map(str, self.answered))}, exchanges {counters.get('exchanges', 0)}, ports {counters.get('listened', 0)}, refused {counters.get('listens_refused', 0)}"
                  f", fragment entries {fragments}, {', '.join(f'{k} {v}' for k, v in self.counts.items())})", flush=True)
            if counters.get("lanes_heard", 0) != self.args.lanes:
                self.trouble.append(f"{counters.get('lanes_heard', 0)} of {self.args.lanes} lanes answer")
            if took > seconds and len(samples) >= 6:
                break
        if counters.get("listens_refused", 0):
            self.trouble.append(f"listen failed {counters['listens_refused']} times: {counters['why']}")
        if not counters.get("exchanges") or not counters.get("listened"):
            self.trouble.append("no load: no exchange, or no port, was counted")
        for name in samples[0]:
            first, last = max(s.get(name, 0) for s in samples[:3]), [s.get(name, 0) for s in samples[-3:]]
            grown = min(last) > first + first // 50 if name == "rss_kib" else max(last) > first
            if grown:
                self.trouble.append(f"{name}: at most {first} in the first three cycles, {' '.join(map(str, last))} in the last three")
        self.tell("end")
        if self.program.wait(30):
            self.trouble.append(f"the program ended with {self.program.returncode}: {self.last_words()}")
        return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hours", nargs="?", type=float, default=2.0)
    parser.add_argument("--program", default="target/debug/examples/soak", help="the program under test")
    parser.add_argument("--corelane", default="target/debug/corelane", help="the one that is restarted")
    parser.add_argument("--model", default="inline", choices=("inline", "paired", "guarded"))
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--machine", action="store_true", help="count XDP programs and maps of the whole machine, where nobody else has some")
    parser.add_argument("--json", help="also write the samples to this file")
    args = parser.parse_args()
    if not 0 < args.hours <= 1000:
        parser.error("HOURS must be more than 0 and at most 1000")
    for file in (args.program, args.corelane):
        if not os.access(file, os.X_OK):
            parser.error(f"no program {file}: run `./ci.sh soak`, which builds it")
    args.program, args.corelane = os.path.abspath(args.program), os.path.abspath(args.corelane)
    if os.geteuid() != 0 or BPF is None:
        print("SKIPPED: soak needs root (network namespaces, AF_XDP) on x86_64 or aarch64")
        return 77
    soak, samples = Soak(args), []
    try:
        soak.up()
        soak.start()
        samples = soak.all()
    except (Finding, RuntimeError, OSError) as finding:
        soak.trouble.append(str(finding))
    finally:
        for child in soak.running[:]:
            child.kill()
            child.wait()
        soak.down()
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"samples": samples, "trouble": soak.trouble, "counts": soak.counts}, out)
    for line in soak.trouble:
        print(f"soak: {line}")
    print(f"soak: {'FAILED' if soak.trouble else 'flat'} after {args.hours} h ({soak.args.model}, {soak.args.lanes} lanes); logs in {soak.dir}")
    return 1 if soak.trouble else 0


if __name__ == "__main__":
    sys.exit(main())
