#!/usr/bin/env python3
"""Puts faults back into the code, one at a time, and runs the tests that must find them.

    tools/faults.py [--work DIRECTORY] [--all] [--list] [PART-OF-A-NAME]…

tools/faults.toml has the rows: what was where, what stands there instead, and the tests that fail then. All faults are compiled
in one build of a copy of the tree (see tools/switched.py), and an environment variable chooses. Without root, rows that need it
are skipped by name, and with CI=true that is a failure. The exit code is 0 if each fault is found by every test that its row names.
A program that has to be ended has found nothing, unless its row says that it hangs then.

--all runs every test of the row's crates, and tells which fail: to write a row. --list shows the rows, if their texts are still in
the code and their tests among the tests, and so is what docs/testing.md says of faults; CI asks that. DIRECTORY is target/faults
unless it is told; what is built there is used again.
"""

import argparse
import os
import re
import sys
import tomllib
from pathlib import Path

# No directory of compiled modules beside the tools.
sys.dont_write_bytecode = True
import switched

ROOT = Path(__file__).resolve().parent.parent
# What the tests of the XDP program say where it is not loaded.
REFUSED = "the verifier accepts the program"
# Seconds for one test program: of processor time, and in all.
CPU, WALL = 600, 900


def place(row, edit, file):
    """Where an edit's text stands, and in which function's body."""
    if (n := file.text.count(edit["was"])) != 1:
        sys.exit(f"{row['name']}: {edit['file']} has the text {n} times: {edit['was']}")
    start = file.text.index(edit["was"])
    end = start + len(edit["was"])
    for body in switched.bodies(file.text):
        if body[0] <= start and end <= body[1]:
            return body, (start, end, edit["now"])
    sys.exit(f"{row['name']}: {edit['file']}: not in a function: {edit['was']}")


def sources_of(program):
    """The files that a test program is built from, its crate's others aside, each with the module that it is."""
    crate, _, target = program.partition("/")
    home = ROOT / "crates" / crate
    if not target:
        files = {p: p.relative_to(home / "src") for p in (home / "src").rglob("*.rs")}
    else:
        files = {p: p.relative_to(home / "tests" / target) for p in (home / "tests" / target).rglob("*.rs")}
        if (alone := home / "tests" / f"{target}.rs").exists():
            files[alone] = Path("main.rs")
    return {p: [m for m in inner.with_suffix("").parts if m not in ("lib", "main", "mod")] for p, inner in files.items()}


def has_test(program, path):
    """Whether a program has the test, as far as its text tells: the function with #[test] above it, in a file that is the first of its
    modules and has the others inside."""
    *modules, name = path.split("::")
    head = re.compile(rf"#\[test\]\s*\n(?:\s*(?://.*|#\[.*)\n)*\s*(?:async )?fn {name}\b")
    files = sources_of(program)
    texts = {file: file.read_text() for file in files}
    # One that is a module of another file than its place says: its last module is right.
    placed = {Path(p).name for text in texts.values() for p in re.findall(r'#\[path = "([^"]+)"\]', text)}
    for file, module in files.items():
        text = texts[file]
        if file.name in placed and module and module[-1] in modules:
            module = modules[: modules.index(module[-1]) + 1]
        inside = re.findall(r"\bmod (\w+) \{", text)
        if head.search(text) and modules[: len(module)] == module and all(m in inside for m in modules[len(module) :]):
            return True
    return False


def look_for_tests(rows):
    """Ends the program where a row names a test that is not there, or docs/testing.md does."""
    lost = [f"{row['name']}: no test {test}" for row in rows for test in row["found"] if not has_test(*test.split("::", 1))]
    code = [p for folder in ("crates", "fuzz/fuzz_targets") for p in (ROOT / folder).rglob("*.rs")]
    functions = {name for p in code for name in re.findall(r"\bfn (\w+)", p.read_text())}
    programs = {p.stem for p in code} | {p.name for p in (ROOT / "crates").iterdir()} | {p.parent.name for p in code}
    table = (ROOT / "docs/testing.md").read_text().split("| fault | found by |")[1]
    for line in (line for line in table.splitlines()[2:] if line.startswith("|")):
        fault, found = line.strip("|").rsplit(" | ", 1)
        words = re.findall(r"`([^`]+)`", found)
        if not words:
            lost.append(f"docs/testing.md: {fault.strip()}: found by nothing that has a name")
        for word in words:
            # Commands and variables are no tests.
            if re.search(r"[ =]", word):
                continue
            file, _, name = word.rpartition("::") if "::" in word else ("", "", word)
            there = name in functions if file else name in functions | programs or (ROOT / "crates" / name).is_file()
            if not there or (file.endswith(".rs") and not (ROOT / "crates" / file).is_file()):
                lost.append(f"docs/testing.md: {fault.strip()}: nothing is named {word}")
    if lost:
        sys.exit("\n".join(lost))


def prepare(tree, rows):
    """Writes all faults into the copy."""
    crates = sorted({Path(edit["file"]).parts[1] for row in rows for edit in row["edits"]})
    switched.copy(ROOT, tree, crates)
    files = {}
    for row in rows:
        changes = {}
        for edit in row["edits"]:
            file = files.setdefault(edit["file"], switched.File(tree / edit["file"]))
            body, change = place(row, edit, file)
            changes.setdefault((edit["file"], body), []).append(change)
        for (file, body), edits in changes.items():
            files[file].change(body, row["number"], edits)
    for file in files.values():
        file.write()
    switched.keep_times(tree)


def programs_of(tree, env, rows, everything):
    """Builds what the rows' tests are in."""
    wanted = {}
    for row in rows:
        for name in {*row.get("crates", []), *(test.split("::")[0] for test in row["found"])}:
            crate, _, target = name.partition("/")
            wanted.setdefault(crate, set()).add(target)
    programs = {}
    for crate, targets in sorted(wanted.items()):
        unit = "--lib" if (tree / "crates" / crate / "src/lib.rs").exists() else "--bins"
        some = [word for t in sorted(targets) for word in (["--test", t] if t else [unit])]
        programs |= switched.build(tree, env, "-p", crate, *([unit, "--tests"] if everything else some))
    return programs


def sound(programs, env, rows):
    """Without a fault every test must pass that is to find one."""
    named = {}
    for test in (test for row in rows for test in row["found"]):
        program, _, name = test.partition("::")
        named.setdefault(program, set()).add(name)
    for program, names in sorted(named.items()):
        run = switched.Run(programs[program], env, 0, CPU, WALL, "--exact", *sorted(names))
        if run.code or len(run.passed) != len(names):
            missing = names - set(run.passed)
            sys.exit(f"{program} without a fault: {', '.join(sorted(missing))} did not pass")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*")
    parser.add_argument("--work", type=Path, default=ROOT / "target/faults")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    with open(ROOT / "tools/faults.toml", "rb") as file:
        rows = tomllib.load(file)["fault"]
    for number, row in enumerate(rows, 1):
        row["number"] = number
    if args.part:
        rows = [r for r in rows if any(p.lower() in r["name"].lower() for p in args.part)]
    if args.list:
        for row in rows:
            for edit in row["edits"]:
                place(row, edit, switched.File(ROOT / edit["file"]))
            print(row["name"], *row["found"], sep="\n    ")
        look_for_tests(rows)
        return
    skipped = [r for r in rows if r.get("root") and os.geteuid() != 0]
    for row in skipped:
        print(f"SKIPPED: {row['name']} (needs root)")
    rows = [r for r in rows if r not in skipped]
    tree = args.work.resolve() / "tree"
    env = {k: v for k, v in os.environ.items() if k not in ("CARGO_TARGET_DIR", "MUTANT", "MUTANT_QUICK")}
    env["CARGO_TARGET_DIR"] = str(args.work.resolve() / "target")
    prepare(tree, rows)
    programs = programs_of(tree, env, rows, args.all)
    if not args.all:
        sound(programs, env, rows)

    missed = 0
    for row in rows:
        print(row["name"], flush=True)
        crates = {*row.get("crates", []), *(test.split("::")[0].split("/")[0] for test in row["found"])}
        mine = [p for p in programs if p.split("/")[0] in crates]
        expected = {}
        for test in row["found"]:
            program, _, name = test.partition("::")
            expected.setdefault(program, []).append(name)
        for program in sorted(mine) if args.all else expected:
            names = [] if args.all else ["--exact", *expected[program]]
            run = whole = switched.Run(programs[program], env, row["number"], CPU, WALL, *names)
            ending = lambda run: "did not end" if run.stopped else f"exit status {run.code}"
            if args.all:
                if run.code:
                    failed = " ".join(run.failed) or ending(run)
                    print(f"    {program} {run.wall:.1f} s: {failed}", flush=True)
                continue
            for name in expected[program]:
                # A program that aborts, or does not end, tells no test's name: each is run by itself then.
                if whole.code not in (0, 101) and len(expected[program]) > 1:
                    run = switched.Run(programs[program], env, row["number"], CPU, WALL, "--exact", name)
                told = run.code in (0, 101)
                # Whoever is ended may only have been slow.
                found = name in run.failed or not told and (row.get("hangs", False) or not run.stopped)
                # A program that cannot be loaded fails every test, and shows of none that it looks.
                found &= REFUSED not in run.said
                missed += not found
                verdict = "found" if found else "NOT FOUND"
                print(f"    {program}::{name}: {verdict}, {run.wall:.1f} s", "" if told else f"({ending(run)})", flush=True)
    if not args.all:
        print(f"{len(rows)} faults put back; {missed} tests did not find theirs")
        sys.exit(missed > 0 or bool(skipped) and os.environ.get("CI") == "true")


if __name__ == "__main__":
    main()
