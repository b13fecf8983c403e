"""Many changed versions of functions in one build: a copy of the tree in which each changed function's body is
`match crate::mutant_switch::id() { 17 => {changed body} … _ => {body} }`, and MUTANT=17 in the environment chooses.

What mutants.py and faults.py share: finding bodies, writing the copy, building test programs, running one of them.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

SWITCH = """
/// Which change runs. With MUTANT_QUICK the first panic ends the program.
pub(crate) mod mutant_switch {
    static ID: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    pub(crate) fn id() -> u32 {
        *ID.get_or_init(|| {
            if std::env::var_os("MUTANT_QUICK").is_some() {
                std::panic::set_hook(Box::new(|_| std::process::exit(101)));
            }
            std::env::var("MUTANT").ok().and_then(|v| v.parse().ok()).unwrap_or(0)
        })
    }
}
"""


def braces(text):
    """Where each closing brace's opening one is; comments, strings and characters are stepped over."""
    stack, pairs, i = [], {}, 0
    char = re.compile(r"'(\\.[^']*|[^'\\])'")
    raw = re.compile(r'\bb?r(#*)"')
    while i < len(text):
        if text.startswith("//", i):
            i = text.find("\n", i)
            if i < 0:
                break
        elif text.startswith("/*", i):
            i = text.find("*/", i) + 1
        elif text[i] in "br" and (m := raw.match(text, i)):
            i = text.find('"' + m[1], m.end()) + len(m[1])
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


def bodies(text):
    """The bodies of functions that are in no other function: where each begins and ends."""
    ends = {start: end + 1 for end, start in braces(text).items()}
    found, at = [], 0
    for m in re.finditer(r"^ *(?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?(?:extern \"C\" )?fn \w+", text, re.M):
        if m.start() < at:
            continue
        depth, i = 0, m.end()
        # A declaration in a trait has no body; the semicolon of an array's type is in brackets.
        while not (depth == 0 and text[i] in "{;"):
            depth += (text[i] in "([") - (text[i] in ")]")
            i += 1
        if text[i] == "{" and i in ends:
            found.append((i, ends[i]))
            at = ends[i]
    return found


class File:
    """One source file and the changes of its functions."""

    def __init__(self, path):
        self.path, self.text = path, path.read_text()
        # By body: the number of each change, and what it changes where, as (from, to, text).
        self.bodies = {}

    def change(self, body, number, edits):
        self.bodies.setdefault(body, []).append((number, edits))

    def write(self, without=frozenset()):
        """Writes the file without the changes in `without`; the lines of each other one."""
        out, lines, at, line = [], [], 0, 1

        def put(text):
            nonlocal line
            out.append(text)
            line += text.count("\n")

        for (start, end), changes in sorted(self.bodies.items()):
            put(self.text[at:start] + "{ match crate::mutant_switch::id() {\n")
            for number, edits in changes:
                if number not in without:
                    first, changed, to = line, "", start
                    for a, b, new in sorted(edits):
                        changed += self.text[to:a] + new + " "
                        to = b
                    put(f"{number} => {changed}{self.text[to:end]}\n")
                    lines.append((first, line - 1, number))
            put("_ => " + self.text[start:end] + "\n} }")
            at = end
        put(self.text[at:])
        # A function with all its changes is large: it is not to be compiled anew wherever it is called.
        self.path.write_text(re.sub(r"#\[inline(\(always\))?\]", "#[inline(never)]", "".join(out)))
        return lines


def copy(root, tree, crates):
    """A copy of the tree, with a switch in each of `crates`."""
    before = tree.with_suffix(".before")
    shutil.rmtree(before, ignore_errors=True)
    if tree.exists():
        tree.rename(before)
    shutil.copytree(root, tree, ignore=shutil.ignore_patterns(".git", "target", "artifacts", "corpus"))
    for crate in crates:
        source = tree / "crates" / crate / "src"
        path = source / "lib.rs" if (source / "lib.rs").exists() else source / "main.rs"
        times = path.stat()
        with open(path, "a") as top:
            top.write(SWITCH)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def keep_times(tree):
    """What says the same as in the copy before this one is as old as there, so that it is not compiled again."""
    before = tree.with_suffix(".before")
    for path in tree.rglob("*.rs"):
        old = before / path.relative_to(tree)
        if old.exists() and old.read_bytes() == path.read_bytes():
            shutil.copystat(old, path)
    shutil.rmtree(before, ignore_errors=True)


def cargo(tree, env, *args):
    return subprocess.run(["cargo", *args], cwd=tree, env=env, capture_output=True, text=True)


def messages(run):
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def find_unviable(tree, env, files, *options):
    """Compiles until nothing is wrong any more; the changes that cannot be compiled."""
    unviable = set()
    while True:
        lines = {str(f.path.relative_to(tree)): f.write(unviable) for f in files}
        run = cargo(tree, env, "check", *options, "--message-format", "json")
        if run.returncode == 0:
            return unviable
        before = len(unviable)
        for message in (m["message"] for m in messages(run) if m.get("message", {}).get("level") == "error"):
            for span in message["spans"]:
                where = lines.get(span["file_name"], [])
                unviable.update(i for first, last, i in where if span["is_primary"] and first <= span["line_start"] <= last)
        if len(unviable) == before:
            sys.exit(run.stderr)


def build(tree, env, *options):
    """Builds test programs; by name, such as `stack` and `sim/links`, each with the directory in which it runs."""
    run = cargo(tree, env, "test", "--no-run", *options, "--message-format", "json")
    if run.returncode:
        rendered = [m["message"]["rendered"] for m in messages(run) if m.get("message", {}).get("level") == "error"]
        sys.exit("\n".join(rendered) or run.stderr)
    programs = {}
    for m in messages(run):
        if m.get("executable") and m["profile"]["test"]:
            home = os.path.dirname(m["manifest_path"])
            crate, target = os.path.basename(home), m["target"]
            programs[crate if target["kind"] != ["test"] else f"{crate}/{target['name']}"] = (m["executable"], home)
    return programs


class Run:
    """What one test program said, whole and in parts: its exit status, whether it was stopped, the tests that passed and failed, its time of
    processor."""

    def __init__(self, program, env, number, cpu, wall, *args):
        executable, home = program
        env = dict(env, MUTANT=str(number), RUST_BACKTRACE="0", PROPTEST_DISABLE_FAILURE_PERSISTENCE="true")
        # A body with all its changes has a large frame.
        env["RUST_MIN_STACK"] = str(64 << 20)

        def limit():
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
            resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        command, begun = [executable, *args], time.time()
        silent = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        child = subprocess.Popen(command, cwd=home, env=env, preexec_fn=limit, stdout=subprocess.PIPE, text=True, errors="replace", **silent)
        timer = threading.Timer(wall, lambda: os.killpg(child.pid, signal.SIGKILL))
        timer.start()
        said = self.said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = self.code = os.waitstatus_to_exitcode(status)
        self.stopped = self.code in (-signal.SIGXCPU, -signal.SIGKILL)
        told = lambda verdict: re.findall(rf"^test (\S+)(?: - should panic)? \.\.\. {verdict}", said, re.M)
        self.passed, self.failed = told("ok"), told("FAILED")
        self.cpu, self.wall = usage.ru_utime + usage.ru_stime, time.time() - begun
