#!/usr/bin/env python3
"""Shows that the tests which docs/conformance.md names can fail: each must fail against a mutant of the code.

    tools/rows.py WORK-DIRECTORY [--tests FILE] [--seed S] [-j N] [--result FILE]

Mutants of the sans-I/O crates, drawn by chance, are compiled in one build, as tools/mutants.py does, and tried in random order. With each one only
those tests run that have not been seen failing yet, and some tests drawn by chance as controls. A mutant against which
more than half of the controls fail says nothing of a single requirement, and counts for none. It ends when each test has failed, or each mutant
was tried; the tests that are left are printed, and the exit code is 1 then: another seed draws other mutants.

FILE of --tests has names of tests, a line each, as the table writes them, instead of all of the table. FILE of --result gets each
test with the mutant that it failed against, as soon as it has failed. WORK-DIRECTORY gets the copy of the tree and what is built. docs/mutants.md tells what came of it.
"""

import argparse
import json
import os
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# No directory of compiled modules beside the tools.
sys.dont_write_bytecode = True
import mutants
import switched

ROOT = Path(__file__).resolve().parent.parent
# The crates that are changed, and how many mutants of each are drawn: a build of all would need more memory than most machines have.
CRATES = {"wire": 200, "tcp": 800, "stack": 500, "socket": 60}
# What runs a script by itself.
SCRIPTS = "corelane-pkt"
CONTROLS = 24
# Seconds for one test program: of processor time, and in all.
CPU, WALL = 60, 180


def named(table):
    """The tests and scripts that the rows of requirements name."""
    names = []
    for line in table.splitlines():
        if line.startswith("|"):
            quoted = re.findall(r"`([^`]+)`", line.rstrip("| ").rsplit("|", 1)[-1])
            names += [n for n in quoted if re.search(r"\.rs::\w+$|^tests/.*\.pkt$", n)]
    return sorted(set(names))


def program_of(name):
    """The test program that has a test, and the words by which cargo builds it."""
    if name.endswith(".pkt"):
        return SCRIPTS, []
    file = name.split("::")[0]
    if file.startswith("tcb/"):
        return "tcp/tcb", ["-p", "tcp", "--test", "tcb"]
    crate, kind, rest = file.split("/", 2)
    if kind == "src":
        return crate, ["-p", crate, "--lib"]
    target = rest.split("/")[0].removesuffix(".rs")
    return f"{crate}/{target}", ["-p", crate, "--test", target]


def listed(program):
    """The names of a program's tests."""
    run = switched.Run(program, dict(os.environ), 0, CPU, WALL, "--list")
    return re.findall(r"^(\S+): test$", run.said, re.M)


def own_name(name, tests):
    """What a test is called in its program."""
    file, test = name.split("::")
    # a/src/b/c.rs has its tests in b::c or in b::c::tests.
    module = re.sub(r"(/tests|/mod)?\.rs$", "", re.sub(r"^(tcb|\w+/src|\w+/tests/\w+)(/|\.rs$)", "", file)).replace("/", "::")
    found = [t for t in tests if t.split("::")[-1] == test]
    exact = [t for t in found if module and t.startswith(module + "::")] or found
    if len(exact) != 1:
        sys.exit(f"{name}: its program has {len(exact)} tests of this name: {' '.join(exact)}")
    return exact[0]


class Tests:
    """What is to be seen failing."""

    def __init__(self, names, programs):
        self.programs, self.of, known = programs, {}, {}
        for name in names:
            program, _ = program_of(name)
            if name.endswith(".pkt"):
                self.of[name] = (program, name)
                continue
            if program not in known:
                known[program] = listed(programs[program])
            self.of[name] = (program, own_name(name, known[program]))

    def failing(self, names, env, mutant):
        """Those of the names that fail against a mutant; nothing where a program ends before it has told."""
        failed, wanted = set(), {}
        for name in names:
            program, own = self.of[name]
            wanted.setdefault(program, {})[own] = name
        for program, owns in wanted.items():
            if program == SCRIPTS:
                failed |= {s for s in owns if switched.Run(self.programs[program], env, mutant, CPU, WALL, s).code == 1}
                continue
            run = switched.Run(self.programs[program], env, mutant, CPU, WALL, "--exact", *sorted(owns))
            if run.code in (0, 101):
                failed |= {owns[t] for t in run.failed}
        return failed


def prepare(args, names):
    """The copy of the tree with every mutant in it, built; the mutants that compile, and the programs."""
    work = args.work.resolve()
    tree = work / "tree"
    env = {k: v for k, v in os.environ.items() if k not in ("CARGO_TARGET_DIR", "MUTANT", "MUTANT_QUICK")}
    said = switched.cargo(ROOT, env, "mutants", *(w for c in CRATES for w in ("-p", c)), "--list", "--json")
    if said.returncode:
        sys.exit(said.stderr)
    chance = random.Random(args.seed)
    listed = [dict(m, id=i + 1) for i, m in enumerate(json.loads(said.stdout))]
    drawn = []
    for crate, most in CRATES.items():
        own = [m for m in listed if m["package"] == crate]
        drawn += chance.sample(own, min(most, len(own)))
    drawn.sort(key=lambda m: m["id"])
    work.mkdir(parents=True, exist_ok=True)
    switched.copy(ROOT, tree, CRATES)
    env |= {"CARGO_TARGET_DIR": str(work / "target"), "RUSTFLAGS": "-Awarnings", "CARGO_INCREMENTAL": "0"}
    env |= {"PROPTEST_RNG_SEED": "1", "CORELANE_SEEDS": mutants.SEEDS}
    files, left = [], []
    for path in sorted({m["file"] for m in drawn}):
        file = switched.File(tree / path)
        left += mutants.bodies(file, [m for m in drawn if m["file"] == path])
        files.append(file)
    packages = [w for c in CRATES for w in ("-p", c)]
    gone = switched.find_unviable(tree, env, files, *packages, "--profile", "mutants") | {m["id"] for m in left}
    switched.keep_times(tree)
    programs = {}
    for program, words in sorted({(p, tuple(w)) for p, w in map(program_of, names)}):
        if program != SCRIPTS:
            programs |= switched.build(tree, env, *words, "--profile", "mutants")
            continue
        run = switched.cargo(tree, env, "build", "-p", "pkt", "--bins", "--profile", "mutants")
        if run.returncode:
            sys.exit(run.stderr)
        programs[SCRIPTS] = (str(work / "target/mutants" / SCRIPTS), str(tree))
    return [m for m in drawn if m["id"] not in gone], programs, env


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tests", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-j", type=int, default=os.cpu_count())
    parser.add_argument("--result", type=Path)
    args = parser.parse_args()
    table = (ROOT / "docs/conformance.md").read_text()
    names = args.tests.read_text().split() if args.tests else named(table)
    chosen, programs, env = prepare(args, names)
    tests = Tests(names, programs)
    broken = tests.failing(names, env, 0)
    if broken:
        sys.exit(f"fail without a mutant: {' '.join(sorted(broken))}")
    chance = random.Random(args.seed)
    chance.shuffle(chosen)
    controls = set(chance.sample(names, min(CONTROLS, len(names))))
    left, bitten, gross, tried = set(names), {}, 0, 0
    print(f"{len(names)} tests, {len(chosen)} mutants", flush=True)
    with ThreadPoolExecutor(args.j) as pool:
        while left and tried < len(chosen):
            some = chosen[tried : tried + 4 * args.j]
            tried += len(some)
            asked = sorted(left | controls)
            for m, failed in zip(some, pool.map(lambda m: tests.failing(asked, env, m["id"]), some)):
                if 2 * len(failed & controls) > len(controls):
                    gross += 1
                    continue
                for name in sorted(failed & left):
                    bitten[name] = m["name"]
                left -= failed
            if args.result:
                args.result.write_text("".join(f"{name}\n    {bitten[name]}\n" for name in sorted(bitten)))
            if tried // (4 * args.j) % 16 == 0:
                print(f"{tried} mutants tried, {len(left)} tests left", flush=True)
    print(f"{len(bitten)} of {len(names)} tests failed against a mutant; {tried} mutants tried, {gross} of them too gross to count")
    for name in sorted(left):
        print(f"never seen failing: {name}")
    sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
