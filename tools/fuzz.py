#!/usr/bin/env python3
"""Builds the fuzz targets once, together, and runs all of them.

  tools/fuzz.py [--seconds N] [--seeds-only] [--jobs N] [TARGET...]
  tools/fuzz.py --minimise [TARGET...]     keep the few small inputs that reach most together, in fuzz/seeds

Each target runs for N seconds from its seeds (fuzz/seeds/TARGET, in the tree) and from what earlier runs found (fuzz/corpus/TARGET,
not in the tree; --seeds-only leaves that alone, so that a run does not depend on the machine). For each stand its executions, the
edges that the seeds reach, and how many more the run found. An input that fails is kept as fuzz/artifacts/TARGET/crash-*; the exit code is 1 then.
To run it again: tools/fuzz.py --run TARGET FILE.

It needs a nightly toolchain and a C++ compiler, and does what cargo-fuzz does, with its flags, but with one build for all targets.
"""
import argparse
import hashlib
import heapq
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FUZZ = os.path.join(ROOT, "fuzz")
FLAGS = [
    "-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4", "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table", "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0", "-Zsanitizer=address", "--cfg", "fuzzing",
]
# Seeds of a target: together some hundreds of small files.
MOST_SEEDS, LONGEST_SEED = 40, 1024

# Choosing inputs by entropy takes more time than most executions do, and finds no more in it.
OPTIONS = ["-entropic=0"]
# Contexts of libmtcp leave a few bytes on purpose: it would be looked for leaks after each execution, rather than at the end.
TARGET_OPTIONS = {"mtcp_calls": ["-detect_leaks=0"]}


def targets():
    with open(os.path.join(FUZZ, "Cargo.toml"), "rb") as file:
        return [b["name"] for b in tomllib.load(file)["bin"]]


def build():
    host = re.search(r"^host: (.*)$", subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout, re.M)[1]
    env = dict(os.environ) | {"RUSTFLAGS": " ".join(FLAGS)}
    command = ["cargo", "+nightly", "build", "--manifest-path", os.path.join(FUZZ, "Cargo.toml"), "--target", host, "--release", "--locked", "--bins", "--quiet"]
    if subprocess.run(command, env=env).returncode:
        sys.exit(1)
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(FUZZ, "target")), host, "release")


def run(programs, target, seconds, seeds_only):
    """Executions, edges of the seeds, edges at the end, and the output where it failed."""
    seeds, artifacts = os.path.join(FUZZ, "seeds", target), os.path.join(FUZZ, "artifacts", target)
    corpus = tempfile.mkdtemp(prefix=f"fuzz-{target}-") if seeds_only else os.path.join(FUZZ, "corpus", target)
    for folder in (seeds, artifacts, corpus):
        os.makedirs(folder, exist_ok=True)
    command = [os.path.join(programs, target), corpus, seeds, f"-max_total_time={seconds}", "-print_final_stats=1", "-timeout=60", "-rss_limit_mb=4096", f"-artifact_prefix={artifacts}/", *OPTIONS, *TARGET_OPTIONS.get(target, [])]
    env = dict(os.environ) | {"ASAN_OPTIONS": "detect_odr_violation=0"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=FUZZ)
    said = done.stdout.decode(errors="replace")
    if seeds_only:
        shutil.rmtree(corpus)
    edges = [int(n) for n in re.findall(r"^#\d+\s+(?:INITED|NEW|REDUCE|RELOAD|pulse|DONE)\s+cov: (\d+)", said, re.M)]
    first = re.search(r"INITED\s+cov: (\d+)", said)
    count = re.search(r"stat::number_of_executed_units:\s+(\d+)", said)
    failed = done.returncode != 0 or not count
    return int(count[1]) if count else 0, int(first[1]) if first else 0, max(edges, default=0), said if failed else ""


def reached(control):
    """What each input reaches, by its file's name, as libFuzzer writes it down when it merges."""
    with open(control) as file:
        lines = file.read().splitlines()
    names = lines[2 : 2 + int(lines[0])]
    return {names[int(n)]: frozenset(map(int, found)) for kind, n, *found in map(str.split, lines[2 + len(names) :]) if kind == "FT"}


def most(inputs, named):
    """The inputs that reach most together, beside so many that stay: in turn the one that adds most to those before, the smaller of two."""
    queue = [(-len(found), os.path.getsize(os.path.join(FUZZ, name)), name) for name, found in inputs.items()]
    heapq.heapify(queue)
    chosen, together = [], set()
    while queue and len(chosen) < MOST_SEEDS - named:
        _, size, name = heapq.heappop(queue)
        # It adds no more than it did when it was last looked at.
        adds = -len(inputs[name] - together)
        if adds and queue and (adds, size, name) > queue[0]:
            heapq.heappush(queue, (adds, size, name))
        elif adds:
            chosen.append(name)
            together |= inputs[name]
    return chosen


def minimise(programs, target):
    seeds, corpus = os.path.join(FUZZ, "seeds", target), os.path.join(FUZZ, "corpus", target)
    os.makedirs(corpus, exist_ok=True)
    os.makedirs(seeds, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        control, small = os.path.join(folder, "control"), os.path.join(folder, "small")
        os.mkdir(small)
        command = [os.path.join(programs, target), "-set_cover_merge=1", f"-merge_control_file={control}", f"-max_len={LONGEST_SEED}", *OPTIONS, small, seeds, corpus]
        subprocess.run(command, check=True, capture_output=True, cwd=FUZZ, env=dict(os.environ) | {"ASAN_OPTIONS": "detect_odr_violation=0"})
        named = [name for name in os.listdir(seeds) if not re.fullmatch("[0-9a-f]{40}", name)]
        inputs = []
        for file in most(reached(control), len(named)):
            with open(os.path.join(FUZZ, file), "rb") as source:
                inputs.append(source.read(LONGEST_SEED))
        # Those with names of their own found something once, and stay.
        for name in set(os.listdir(seeds)) - set(named):
            os.remove(os.path.join(seeds, name))
        for data in inputs:
            with open(os.path.join(seeds, hashlib.sha1(data).hexdigest()), "wb") as seed:
                seed.write(data)
    return len(os.listdir(seeds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--seeds-only", action="store_true")
    parser.add_argument("--jobs", type=int, default=2, help="targets beside each other (default 2)")
    parser.add_argument("--minimise", action="store_true")
    parser.add_argument("--run", nargs=2, metavar=("TARGET", "FILE"), help="run one input")
    parser.add_argument("targets", nargs="*")
    args = parser.parse_args()
    known = targets()
    asked = args.targets or ([args.run[0]] if args.run else known)
    if unknown := [t for t in asked if t not in known]:
        parser.error(f"no target {unknown[0]}; there are {' '.join(known)}")
    if args.seconds < 1:
        parser.error("--seconds is 1 or more")
    programs = build()
    if args.run:
        return subprocess.run([os.path.join(programs, args.run[0]), args.run[1]], cwd=FUZZ).returncode
    if args.minimise:
        for target in asked:
            print(f"{target}: {minimise(programs, target)} seeds")
        return 0
    left, lock, rows, failed = list(asked), threading.Lock(), [], []
    print(f"{'executions':>11} {'edges':>7} {'new':>6}  target", flush=True)

    def work():
        while True:
            with lock:
                if not left:
                    return
                target = left.pop(0)
            count, first, last, said = run(programs, target, args.seconds, args.seeds_only)
            with lock:
                rows.append(count)
                print(f"{count:11} {first:7} {last - first:6}  {target}{'  FAILED' if said else ''}", flush=True)
                if said:
                    failed.append(target)
                    print("\n".join(said.splitlines()[-60:]), flush=True)

    threads = [threading.Thread(target=work) for _ in range(max(1, args.jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{sum(rows):11} {'':7} {'':6}  all")
    if failed:
        print(f"fuzzing found something in {' '.join(sorted(failed))}: the input is in fuzz/artifacts; tools/fuzz.py --run TARGET FILE repeats it")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
