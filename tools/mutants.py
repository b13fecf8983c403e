#!/usr/bin/env python3
"""Mutation testing of crates/tcp in one build.

cargo-mutants compiles the crate once for each mutant. This takes its list, puts all of them into one copy of the tree, each
function's body becoming `match mutant_switch::id() { 17 => {changed body} … _ => {body} }`, compiles that once, and runs the
tests with MUTANT=17 and so on. What cannot be switched (constants) is left to cargo-mutants itself.

    tools/mutants.py WORK-DIRECTORY [-f PART-OF-A-FILE-NAME]… [--names FILE] [-j N]

WORK-DIRECTORY gets the copy and the lists caught.txt, timeout.txt, missed.txt and unviable.txt. --names takes a file of
mutants' names, such as an earlier missed.txt. docs/mutants.md tells what came of it.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SWITCH = """
/// Which mutant runs; the first panic ends it.
pub(crate) mod mutant_switch {
    static ID: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    pub(crate) fn id() -> u32 {
        *ID.get_or_init(|| {
            std::panic::set_hook(Box::new(|_| std::process::exit(101)));
            std::env::var("MUTANT").ok().and_then(|v| v.parse().ok()).unwrap_or(0)
        })
    }
}
"""

TESTS = ["-p", "tcp", "--profile", "mutants", "--lib", "--test", "tcb"]

# Seconds of processor time for all tests; they take less than one.
LIMIT = 8


def braces(text):
    """Where each closing brace's opening one is; comments, strings and characters are stepped over."""
    stack, pairs, i = [], {}, 0
    char = re.compile(r"'(\\.[^']*|[^'\\])'")
    while i < len(text):
        if text.startswith("//", i):
            i = text.find("\n", i)
            if i < 0:
                break
        elif text.startswith("/*", i):
            i = text.find("*/", i) + 1
        elif text[i] == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif text[i] == "'" and (m := char.match(text, i)):
            i = m.end() - 1
        elif text[i] == "{":
            stack.append(i)
        elif text[i] == "}":
            pairs[i] = stack.pop()
        i += 1
    return pairs


class File:
    """One source file and its mutants."""

    def __init__(self, path, mutants):
        self.path, self.text = path, path.read_text()
        starts = [0]
        for line in self.text.split("\n"):
            starts.append(starts[-1] + len(line) + 1)
        at = lambda p: starts[p["line"] - 1] + p["column"] - 1
        pairs = braces(self.text)
        bodies, self.rest = {}, []
        for m in mutants:
            f = m["function"]
            end = at(f["span"]["end"]) - 1 if f else -1
            # A constant function cannot ask, and an opaque type is one type in every arm.
            if end not in pairs or "impl " in f["return_type"] or " const fn " in self.text[at(f["span"]["start"]) - 1 : end]:
                self.rest.append(m)
                continue
            m["from"], m["to"] = at(m["span"]["start"]), at(m["span"]["end"])
            bodies.setdefault((pairs[end], end + 1), []).append(m)
        # Of nested functions the outer one is switched.
        inside = lambda a, b: b[0] < a[0] and a[1] < b[1]
        self.bodies = {}
        for body in sorted(bodies):
            if any(inside(body, other) for other in bodies):
                self.rest += bodies[body]
            else:
                self.bodies[body] = bodies[body]

    def write(self, unviable):
        """Writes the file without the mutants in `unviable`; the lines of each."""
        out, lines, at, line = [], [], 0, 1

        def put(text):
            nonlocal line
            out.append(text)
            line += text.count("\n")

        for (start, end), mutants in self.bodies.items():
            put(self.text[at:start] + "{ match crate::mutant_switch::id() {\n")
            for m in mutants:
                if m["id"] not in unviable:
                    first = line
                    changed = self.text[start : m["from"]] + m["replacement"] + " " + self.text[m["to"] : end]
                    put(f"{m['id']} => {changed}\n")
                    lines.append((first, line - 1, m["id"]))
            put("_ => " + self.text[start:end] + "\n} }")
            at = end
        put(self.text[at:])
        self.path.write_text("".join(out))
        return lines


def cargo(tree, env, *args):
    return subprocess.run(["cargo", *args], cwd=tree, env=env, capture_output=True, text=True)


def messages(run):
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def find_unviable(tree, env, files):
    """Compiles until nothing is wrong any more; the mutants that cannot be compiled."""
    unviable = set()
    while True:
        lines = {str(f.path.relative_to(tree)): f.write(unviable) for f in files}
        run = cargo(tree, env, "check", "-p", "tcp", "--profile", "mutants", "--message-format", "json")
        if run.returncode == 0:
            return unviable
        before = len(unviable)
        for message in (m["message"] for m in messages(run) if m.get("message", {}).get("level") == "error"):
            for span in message["spans"]:
                where = lines.get(span["file_name"], [])
                unviable.update(i for first, last, i in where if span["is_primary"] and first <= span["line_start"] <= last)
        if len(unviable) == before:
            sys.exit(run.stderr)


def verdict(tree, env, binaries, mutant):
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 1))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

    # A body with all its mutants has a large frame.
    env = dict(env, MUTANT=str(mutant), RUST_MIN_STACK=str(64 << 20), RUST_BACKTRACE="0")
    for binary in binaries:
        args = [binary, "--test-threads", "1", "-q"]
        silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            code = subprocess.run(args, cwd=tree / "crates/tcp", env=env, preexec_fn=limit, timeout=300, **silent).returncode
        except subprocess.TimeoutExpired:
            return "timeout"
        if code:
            # SIGXCPU, SIGKILL.
            return "timeout" if code in (-24, -9) else "caught"
    return "missed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("-f", action="append", default=[])
    parser.add_argument("--names", type=Path)
    parser.add_argument("-j", type=int, default=os.cpu_count())
    args = parser.parse_args()
    root, work = Path(__file__).resolve().parent.parent, args.work.resolve()
    tree = work / "tree"
    env = {k: v for k, v in os.environ.items() if k != "CARGO_TARGET_DIR"}
    listed = cargo(root, env, "mutants", "-p", "tcp", "--list", "--json")
    if listed.returncode:
        sys.exit(listed.stderr)
    mutants = [dict(m, id=i + 1) for i, m in enumerate(json.loads(listed.stdout))]
    if args.f:
        mutants = [m for m in mutants if any(f in m["file"] for f in args.f)]
    if args.names:
        names = set(args.names.read_text().splitlines())
        mutants = [m for m in mutants if m["name"] in names]

    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(root, tree, ignore=shutil.ignore_patterns(".git", "target"))
    with open(tree / "crates/tcp/src/lib.rs", "a") as lib:
        lib.write(SWITCH)
    switched = dict(env, CARGO_TARGET_DIR=str(work / "target"), RUSTFLAGS="-Awarnings", CARGO_INCREMENTAL="0")
    files = [File(tree / f, [m for m in mutants if m["file"] == f]) for f in sorted({m["file"] for m in mutants})]
    unviable = find_unviable(tree, switched, files)
    built = cargo(tree, switched, "test", "--no-run", *TESTS, "--message-format", "json")
    if built.returncode:
        sys.exit(built.stderr)
    binaries = [m["executable"] for m in messages(built) if m.get("executable")]
    if verdict(tree, switched, binaries, 0) != "missed":
        sys.exit("the tests fail without a mutant")

    results = {k: [] for k in ("caught", "timeout", "missed", "unviable")}
    rest = [m for f in files for m in f.rest]
    left = {m["id"] for m in rest}
    results["unviable"] = [m["name"] for m in mutants if m["id"] in unviable]
    todo = [m for m in mutants if m["id"] not in left | unviable]
    picked = [a for m in rest for a in ("-F", "^" + re.escape(m["name"]) + "$")]
    # -F lets mutants of fields through.
    command = ["cargo", "mutants", "-p", "tcp", "--output", str(work), "-E", "delete field", *picked]
    with open(work / "rest.log", "w") as log:
        other = subprocess.Popen(command, cwd=root, env=env, stdout=log, stderr=log) if rest else None
    with ThreadPoolExecutor(args.j) as pool:
        for m, v in zip(todo, pool.map(lambda m: verdict(tree, switched, binaries, m["id"]), todo)):
            results[v].append(m["name"])
            if v == "missed":
                print("missed", m["name"], flush=True)
    if other:
        other.wait()
        for k in results:
            asked = {m["name"] for m in rest}
            names = [n for n in (work / "mutants.out" / f"{k}.txt").read_text().splitlines() if n in asked]
            results[k] += names
            for n in names if k == "missed" else []:
                print("missed", n)
    for k, names in results.items():
        (work / f"{k}.txt").write_text("".join(n + "\n" for n in names))
    counts = {k: len(names) for k, names in results.items()}
    found = counts["caught"] + counts["timeout"]
    print(f"{len(mutants)} mutants:", ", ".join(f"{n} {k}" for k, n in counts.items()), end="; ")
    print(f"{100 * found / max(1, found + counts['missed']):.1f} % found")


main()
