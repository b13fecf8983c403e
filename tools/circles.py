#!/usr/bin/env python3
"""Circles of imports between the parts of a crate.

A part is a module of the crate's root: a file `src/NAME.rs` with the folder `src/NAME/`. Part A imports part B where code of A outside its
tests names `crate::B`, or something that `lib.rs` re-exports from B. `lib.rs` itself is no part.

    tools/circles.py CRATE…   prints each crate's parts with what they import; fails where parts import each other in a circle
"""
import re
import sys
from pathlib import Path


def without_tests(text):
    """The code above the tests, without comments."""
    text = re.split(r"^#\[cfg\(test\)\]\nmod tests\b", text, flags=re.M)[0]
    return re.sub(r"//[^\n]*", "", text)


def names(tree):
    """The paths that a use tree names: `a::{b, c::d}` is `a::b` and `a::c::d`."""
    tree = tree.strip()
    opened = tree.find("{")
    if opened < 0:
        return [tree.split(" as ")[0]]
    parts, depth, begun = [], 0, opened + 1
    for i in range(opened, tree.rindex("}") + 1):
        depth += {"{": 1, "}": -1}.get(tree[i], 0)
        if (tree[i] == "," and depth == 1) or depth == 0:
            parts.append(tree[begun:i])
            begun = i + 1
    return [tree[:opened] + name for part in parts if part.strip() for name in names(part)]


def paths(text):
    """All paths of the crate that a text names, in `use` and elsewhere."""
    for tree in re.findall(r"\buse\s+(crate::[^;]*);", text):
        yield from names(re.sub(r"\s+", " ", tree))
    yield from re.findall(r"\bcrate::[\w:]+", re.sub(r"\buse\s+crate::[^;]*;", "", text))


def imports(src):
    """The parts of a crate, each with the parts that it imports."""
    root = (src / "lib.rs").read_text()
    parts = {name for name in re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?mod (\w+);", root, flags=re.M)}
    # What the root re-exports belongs to the part that it is from.
    exported = {}
    for tree in re.findall(r"^pub(?:\([^)]*\))? use ([^;]*);", root, flags=re.M):
        for path in names(re.sub(r"\s+", " ", tree)):
            words = re.sub(r"^(crate|self)::", "", path).split("::")
            if words[0] in parts:
                exported[words[-1]] = words[0]
    found = {}
    for part in sorted(parts):
        files = [src / f"{part}.rs", *(src / part).rglob("*.rs")]
        text = "".join(without_tests(f.read_text()) for f in files if f.exists() and "tests" not in f.parts and f.name != "tests.rs")
        firsts = {path.split("::")[1].strip() for path in paths(text)}
        found[part] = {first if first in parts else exported.get(first) for first in firsts} - {None, part}
    return found


def circles(edges):
    """Groups of parts each of which leads to each other (Tarjan's algorithm)."""
    index, low, stack, groups = {}, {}, [], []

    def visit(part):
        index[part] = low[part] = len(index)
        stack.append(part)
        for other in sorted(edges[part]):
            if other not in index:
                visit(other)
                low[part] = min(low[part], low[other])
            elif other in stack:
                low[part] = min(low[part], index[other])
        if low[part] == index[part]:
            group = []
            while part not in group:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    for part in edges:
        if part not in index:
            visit(part)
    return groups


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    wrong = False
    for crate in sys.argv[1:]:
        src = Path(__file__).resolve().parent.parent / "crates" / crate / "src"
        if not (src / "lib.rs").is_file():
            print(f"circles.py: crates/{crate}/src/lib.rs is missing: name a crate of this workspace", file=sys.stderr)
            return 2
        edges = imports(src)
        print(f"{crate}:")
        for part, others in edges.items():
            print(f"  {part:<12} {' '.join(sorted(others))}")
        for group in circles(edges):
            wrong = True
            print(f"circles.py: in {crate} these parts import each other in a circle: {', '.join(group)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
