#!/usr/bin/env python3
"""Says what a run stands on: the machine, free disk and memory, and how long a fixed computation takes, to compare times by.

  tools/machine.py [--disk GIB] [--memory GIB] FOLDER    the disk is the one that FOLDER is on

Prints one line. Where less disk or memory is free than asked for, one line says so, and the exit code is 1.
"""
import argparse
import os
import platform
import re
import sys
import time

GIB = 1 << 30


def text(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def free_memory():
    """Bytes that programs can have: MemAvailable, or less where a control group of this process is held to less."""
    found = [int(re.search(r"^MemAvailable: +(\d+) kB", text("/proc/meminfo"), re.M)[1]) * 1024]
    own = re.findall(r"^\d+:([^:]*):/(.*)$", text("/proc/self/cgroup"), re.M)
    for line in text("/proc/self/mountinfo").splitlines():
        fields, _, more = line.partition(" - ")
        kind, _, options = more.split(" ", 2)
        at = fields.split(" ")[4]
        if kind == "cgroup2":
            path, limit = next((path for names, path in own if not names), ""), "memory.max"
        elif kind == "cgroup" and "memory" in options.split(","):
            path, limit = next((path for names, path in own if "memory" in names.split(",")), ""), "memory.limit_in_bytes"
        else:
            continue
        # Each group is also held to what those above it are held to.
        while True:
            said = text(os.path.join(at, path, limit)).strip()
            if said.isdigit():
                found.append(int(said))
            if not path:
                break
            path = os.path.dirname(path)
    return min(found)


def free_disk(folder):
    """Bytes that are free where a folder is, or will be."""
    while not os.path.exists(folder):
        folder = os.path.dirname(os.path.abspath(folder))
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def computation():
    """Seconds of a fixed computation on one core, 0.9 on a Xeon of 2023: random numbers, counted in a table of 2 MiB."""
    table, state, begun = [0] * (1 << 18), 88172645463325252, time.monotonic()
    for _ in range(2_600_000):
        state ^= state << 13 & 0xFFFF_FFFF_FFFF_FFFF
        state ^= state >> 7
        state ^= state << 17 & 0xFFFF_FFFF_FFFF_FFFF
        table[state & 0x3FFFF] += 1
    return time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--disk", type=float, default=0, help="GiB that must be free")
    parser.add_argument("--memory", type=float, default=0, help="GiB that must be free")
    args = parser.parse_args()
    disk, memory = free_disk(args.folder) / GIB, free_memory() / GIB
    for least, free, name in (args.disk, disk, f"disk (for {args.folder})"), (args.memory, memory, "memory"):
        if free < least:
            print(f"machine.py: {free:.1f} GiB of {name} are free, and {least:g} are needed", file=sys.stderr)
            return 1
    model = re.search(r"^model name\s*: (.*)$", text("/proc/cpuinfo"), re.M)
    print(f"{model[1] if model else platform.machine()}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()} {platform.release()}; "
          f"free: {disk:.0f} GiB of disk, {memory:.0f} GiB of memory; a fixed computation took {computation():.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
