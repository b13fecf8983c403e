#!/usr/bin/env python3
"""Mutation testing of one crate in one build.

cargo-mutants compiles the crate once for each mutant. This takes its list, puts all of them into one copy of the tree (see
tools/switched.py), compiles that once, and runs the tests with MUTANT=17 and so on, up to the first that fails. What cannot be
switched (constants) is left to cargo-mutants itself for tcp, and left out for the other crates, whose tests are in more crates
than one.

    tools/mutants.py WORK-DIRECTORY [-p CRATE] [-f PART-OF-A-FILE-NAME]… [--names FILE] [--sample N [--seed S]] [-j N]

CRATE is tcp, if it is not told. WORK-DIRECTORY gets the copy and the lists caught.txt, timeout.txt, missed.txt and unviable.txt.
--names takes a file of mutants' names, such as an earlier missed.txt. --sample draws N mutants by chance, the same for the same
seed, and tells the interval in which the score of all lies with 95 % confidence (Wilson). It asks them in an order of chance, so
that what is ended early by SIGTERM is a smaller sample. docs/mutants.md tells what came of it.
"""

import argparse
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# No directory of compiled modules beside the tools.
sys.dont_write_bytecode = True
import switched
from switched import cargo

# Of `sim` those that need a kernel, or take long for what they find.
LEFT_OUT = {"linux", "fairness", "goodput", "limits", "smoltcp"}
# Of those that draw, each takes fewer seeds, or cases, than in CI.
SEEDS, CASES = "100", "64"


def options(root, crate):
    """Of a crate the test programs: options of `cargo test`."""
    if crate == "tcp":
        return [["-p", "tcp", "--lib", "--test", "tcb"]]
    if crate == "socket":
        return [["-p", "socket", "--lib", "--tests"], ["-p", "sim", "--test", "machine"]]
    names = sorted({path.stem for path in (root / "crates/sim/tests").glob("*.rs")} - LEFT_OUT)
    return [["-p", "stack", "--lib"], ["-p", "sim", *(option for name in names for option in ("--test", name))]]


def interval(found, n):
    """Wilson's score interval, 95 %."""
    if n == 0:
        return 0.0, 1.0
    z = 1.96
    p, d = found / n, 1 + z * z / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / d, (middle + half) / d


def bodies(file, mutants):
    """Sorts mutants into the bodies of their functions; those that have none, or cannot be switched."""
    starts = [0]
    for line in file.text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    at = lambda p: starts[p["line"] - 1] + p["column"] - 1
    pairs = switched.braces(file.text)
    found, rest = {}, []
    for m in mutants:
        f = m["function"]
        end = at(f["span"]["end"]) - 1 if f else -1
        # A constant function cannot ask, and an opaque type is one type in every arm.
        if end not in pairs or "impl " in f["return_type"] or re.search(r"\bconst fn ", file.text[at(f["span"]["start"]) : end]):
            rest.append(m)
            continue
        edit = (at(m["span"]["start"]), at(m["span"]["end"]), m["replacement"])
        if edit[0] < pairs[end]:
            # In the types of its arguments.
            rest.append(m)
            continue
        found.setdefault((pairs[end], end + 1), []).append((m, edit))
    # Of nested functions the outer one is switched.
    inside = lambda a, b: b[0] < a[0] and a[1] < b[1]
    for body in sorted(found):
        if any(inside(body, other) for other in found):
            rest += [m for m, _ in found[body]]
            continue
        for m, edit in found[body]:
            file.change(body, m["id"], [edit])
    return rest


def verdict(programs, limits, env, crate, mutant):
    # Tests beside the line find most, and take no time.
    module = "::".join(Path(mutant["file"]).with_suffix("").parts[3:]) + "::"
    runs = [(crate, (module,)), *((name, ("--skip", module) if name == crate else ()) for name in programs)]
    for n, (name, tests) in enumerate(runs):
        cpu, wall = limits[name]
        # One module takes a part of the time of all.
        cpu = cpu if n else 8 + cpu // 4
        run = switched.Run(programs[name], env, mutant["id"], cpu, wall, *tests, "--test-threads", "1", "-q")
        if run.code:
            return "timeout" if run.stopped else "caught"
    return "missed"


def measure(programs, env):
    """How long each program may take: some times of what it takes without a mutant."""
    limits = {}
    for name, program in programs.items():
        run = switched.Run(program, env, 0, 600, 900, "--test-threads", "1", "-q")
        if run.code:
            sys.exit(f"{name} fails without a mutant")
        limits[name] = (8 + int(4 * run.cpu), 60 + 20 * int(run.wall))
        print(f"{name}: {run.cpu:.1f} s", flush=True)
    return limits


def ask_cargo(root, work, env, rest):
    """What cargo-mutants says of those that cannot be switched."""
    picked = [a for m in rest for a in ("-F", "^" + re.escape(m["name"]) + "$")]
    # -F lets mutants of fields through.
    command = ["cargo", "mutants", "-p", "tcp", "--output", str(work), "-E", "delete field", *picked]
    with open(work / "rest.log", "w") as log:
        subprocess.run(command, cwd=root, env=env, stdout=log, stderr=log)
    asked = {m["name"] for m in rest}
    verdicts = ("caught", "timeout", "missed", "unviable")
    lists = {v: (work / "mutants.out" / f"{v}.txt").read_text().splitlines() for v in verdicts}
    return {v: [n for n in names if n in asked] for v, names in lists.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("-p", "--package", choices=["tcp", "stack", "socket"], default="tcp")
    parser.add_argument("-f", action="append", default=[])
    parser.add_argument("--names", type=Path)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-j", type=int, default=os.cpu_count())
    args = parser.parse_args()
    root, work, crate = Path(__file__).resolve().parent.parent, args.work.resolve(), args.package
    tree = work / "tree"
    env = {k: v for k, v in os.environ.items() if k != "CARGO_TARGET_DIR"}
    listed = cargo(root, env, "mutants", "-p", crate, "--list", "--json")
    if listed.returncode:
        sys.exit(listed.stderr)
    mutants = [dict(m, id=i + 1) for i, m in enumerate(json.loads(listed.stdout))]
    if args.f:
        mutants = [m for m in mutants if any(f in m["file"] for f in args.f)]
    if args.names:
        names = set(args.names.read_text().splitlines())
        mutants = [m for m in mutants if m["name"] in names]
    all_of_them = len(mutants)
    if args.sample and args.sample < len(mutants):
        mutants = sorted(random.Random(args.seed).sample(mutants, args.sample), key=lambda m: m["id"])

    work.mkdir(parents=True, exist_ok=True)
    switched.copy(root, tree, [crate])
    target = str(work / "target")
    quick = dict(env, CARGO_TARGET_DIR=target, RUSTFLAGS="-Awarnings", CARGO_INCREMENTAL="0", MUTANT_QUICK="1")
    # The same inputs for every mutant.
    quick |= {"PROPTEST_RNG_SEED": "1", "PROPTEST_CASES": CASES, "CORELANE_SEEDS": SEEDS}
    files, rest = [], []
    for path in sorted({m["file"] for m in mutants}):
        file = switched.File(tree / path)
        rest += bodies(file, [m for m in mutants if m["file"] == path])
        files.append(file)
    unviable = switched.find_unviable(tree, quick, files, "-p", crate, "--profile", "mutants")
    switched.keep_times(tree)
    programs = {}
    for chosen in options(root, crate):
        programs |= switched.build(tree, quick, *chosen, "--profile", "mutants")
    limits = measure(programs, quick)
    # The quick ones first.
    order = {name: programs[name] for name in sorted(programs, key=lambda name: limits[name][0])}

    results = {k: [] for k in ("caught", "timeout", "missed", "unviable")}
    left = {m["id"] for m in rest}
    results["unviable"] = [m["name"] for m in mutants if m["id"] in unviable]
    todo = [m for m in mutants if m["id"] not in left | unviable]
    if args.sample:
        random.Random(args.seed).shuffle(todo)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    unasked = len(todo)
    with ThreadPoolExecutor(args.j) as pool:
        try:
            for m, v in zip(todo, pool.map(lambda m: verdict(order, limits, quick, crate, m), todo)):
                results[v].append(m["name"])
                unasked -= 1
                if v == "missed":
                    print("missed", m["name"], f"({len(todo) - unasked} of {len(todo)})", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            print(f"ended early, {unasked} not asked")
    if rest and crate == "tcp":
        for v, names in ask_cargo(root, work, env, rest).items():
            results[v] += names
            for n in names if v == "missed" else []:
                print("missed", n)
    for k, names in results.items():
        (work / f"{k}.txt").write_text("".join(n + "\n" for n in names))
    counts = {k: len(names) for k, names in results.items()}
    found = counts["caught"] + counts["timeout"]
    asked = found + counts["missed"]
    sampled = f" of {all_of_them}, seed {args.seed}" if len(mutants) < all_of_them else ""
    print(f"{len(mutants) - unasked} mutants{sampled}:", ", ".join(f"{n} {k}" for k, n in counts.items()), end="; ")
    print(f"{100 * found / max(1, asked):.1f} % found", end="")
    if sampled:
        low, high = interval(found, asked)
        print(f" (95 % interval {100 * low:.1f} to {100 * high:.1f})", end="")
    left = len(mutants) - sum(counts.values()) - unasked
    print(f"; {left} left out, since they cannot be switched" if left else "")


if __name__ == "__main__":
    main()
