#!/usr/bin/env python3
"""Circles of imports between the parts of a crate.

A part is a module of the crate's root: a file `src/NAME.rs` with the folder `src/NAME/`. Part A imports part B where code of A outside its
tests names `crate::B`, by `super` too, or something that `lib.rs` re-exports from B. `lib.rs` itself is no part.

    tools/circles.py CRATE…      prints each crate's parts with what they import; fails where parts import each other in a circle, or where
                                 an import cannot be told: of everything in the root, of the root by another name
    tools/circles.py --self-test shows that it finds them
"""
import re
import sys
import tempfile
from pathlib import Path


# What stands before a module of tests.
TESTS = r"#\[cfg\((?:all\()?test\b[^\n]*\)\]\n"


def without_tests(text):
    """The code beside the tests, without comments."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(rf"^{TESTS}mod \w+;\n", "", text, flags=re.M)
    found = re.search(rf"^{TESTS}mod \w+ \{{", text, flags=re.M)
    if not found:
        return text
    # rustfmt closes it in the first column.
    end = re.compile(r"^\}", re.M).search(text, found.end())
    return text[: found.start()] + (text[end.end() :] if end else "")


def absolute(text, depth):
    """`text` of a module so deep below the root, where paths by `super` to the root are by `crate`."""

    def named(match):
        return "crate::" if match[0].count("super") == depth else match[0]

    return re.sub(r"\b(?:self::)?(?:super::)+", named, text)


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


def untold(text, crate):
    """Imports of which nobody can tell what they bring."""
    every = [path for tree in re.findall(r"\buse\s+(crate::[^;]*);", text) for path in names(re.sub(r"\s+", " ", tree))]
    return [path for path in every if path == "crate::*"] + re.findall(rf"\buse\s+crate\s+as\s+\w+|(?<!\w)::{crate}::", text)


def paths(text):
    """All paths of the crate that a text names, in `use` and elsewhere."""
    for tree in re.findall(r"\buse\s+(crate::[^;]*);", text):
        yield from names(re.sub(r"\s+", " ", tree))
    yield from re.findall(r"\bcrate::[\w:]+", re.sub(r"\buse\s+crate::[^;]*;", "", text))


def imports(src):
    """The parts of a crate, each with the parts that it imports; and what cannot be told."""
    root = (src / "lib.rs").read_text()
    parts = set(re.findall(r"^\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))? )?mod (\w+);", root, flags=re.M))
    # What the root re-exports belongs to the part that it is from.
    exported = {}
    for tree in re.findall(r"^pub(?:\([^)]*\))? use ([^;]*);", root, flags=re.M):
        for path in names(re.sub(r"\s+", " ", tree)):
            words = re.sub(r"^(crate|self)::", "", path).split("::")
            if words[0] in parts:
                exported[words[-1]] = words[0]
    found, unclear = {}, []
    for part in sorted(parts):
        firsts = set()
        for f in [src / f"{part}.rs", *(src / part).rglob("*.rs")]:
            if not f.exists() or "tests" in f.parts or f.name == "tests.rs":
                continue
            module = f.relative_to(src).with_suffix("").parts
            text = absolute(without_tests(f.read_text()), len(module) - (module[-1] == "mod"))
            firsts |= {path.split("::")[1].strip() for path in paths(text)}
            unclear += [f"{f.relative_to(src)}: {what}" for what in untold(text, src.parent.name)]
        found[part] = {first if first in parts else exported.get(first) for first in firsts} - {None, part}
    return found, unclear


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


def self_test():
    """Each way in which two parts may import each other is found, and what cannot be told is refused."""
    plain = {"a.rs": "use crate::b::B;\npub struct A;\n", "b.rs": "pub struct B;\n", "b/deep.rs": "fn f() {}\n"}
    cases = [
        (False, {}),
        (True, {"b.rs": "use crate::a::A;\n"}),
        (True, {"b.rs": "use crate::{\n    a::{\n        A,\n    },\n};\n"}),
        (True, {"b.rs": "use crate::A;\n"}),
        (True, {"b.rs": "fn f(_: crate::a::A) {}\n"}),
        (True, {"b.rs": "use super::a::A;\n"}),
        (True, {"b/deep.rs": "use super::super::a::A;\n"}),
        (True, {"b.rs": "#[cfg(test)]\nmod tests;\nuse crate::a::A;\n"}),
        (True, {"b.rs": "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n\nuse crate::a::A;\n"}),
        (True, {"b.rs": "use crate as c;\nuse c::a::A;\n"}),
        (True, {"b.rs": "use crate::*;\n"}),
        (True, {"b.rs": "fn f(_: ::made::a::A) {}\n"}),
        (False, {"b.rs": "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"}),
        (False, {"b.rs": "// use crate::a::A;\n"}),
        (False, {"b/deep.rs": "use super::B;\n"}),
    ]
    for wanted, changed in cases:
        with tempfile.TemporaryDirectory() as folder:
            src = Path(folder) / "made" / "src"
            lib = "#[path = \"a.rs\"] mod a;\nmod b;\npub use a::A;\n"
            for name, text in {"lib.rs": lib, **plain, **changed}.items():
                (src / name).parent.mkdir(parents=True, exist_ok=True)
                (src / name).write_text(text)
            edges, unclear = imports(src)
            assert bool(circles(edges) or unclear) == wanted, changed
    print(f"{len(cases)} cases")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test() or 0
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    wrong = False
    for crate in sys.argv[1:]:
        src = Path(__file__).resolve().parent.parent / "crates" / crate / "src"
        if not (src / "lib.rs").is_file():
            print(f"circles.py: crates/{crate}/src/lib.rs is missing: name a crate of this workspace", file=sys.stderr)
            return 2
        edges, unclear = imports(src)
        print(f"{crate}:")
        for part, others in edges.items():
            print(f"  {part:<12} {' '.join(sorted(others))}")
        for what in unclear:
            wrong = True
            print(f"circles.py: what it imports cannot be told: crates/{crate}/src/{what}", file=sys.stderr)
        for group in circles(edges):
            wrong = True
            print(f"circles.py: in {crate} these parts import each other in a circle: {', '.join(group)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
