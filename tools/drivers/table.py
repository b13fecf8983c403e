#!/usr/bin/env python3
"""Puts results of tools/drivers/run.sh into docs/drivers.md: table.py RESULTS PAGE

The table stands between two comments of the page, a line for each driver, kernel, and how frames came or what else was seen. Rows that
were not run this time keep their place and date.
"""

import datetime
import re
import sys

BEGIN, END = "<!-- table: ./ci.sh drivers --write -->", "<!-- end of table -->"
HEAD = ["driver", "kernel", "frames", "rows", "date"]
MODES = ("zero-copy", "native, copy", "native, mode not told", "generic")


def main():
    results, page = sys.argv[1:]
    text = open(page).read()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    # (driver, kernel, row) to (what was seen, date), in the order of the table.
    seen = {}
    for line in old.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) == len(HEAD) and cells[0] not in ("driver", "---"):
            device, kernel, mode, rows, date = cells
            for row in re.split(r", (?![^()]*\))", rows):
                seen[device, kernel, row.split(" (")[0]] = (mode, row, date)
    today = datetime.date.today().isoformat()
    for line in open(results):
        device, kernel, row, verdict, detail = line.rstrip("\n").split("|", 4)
        mode = next((m for m in MODES if detail.startswith(m)), "")
        name = row
        if verdict == "served":
            # Suites of tests say how many passed.
            mode, name = (mode, row) if mode else ("–", f"{row} ({detail})" if "passed" in detail else row)
        else:
            mode = f"**{verdict}**" if verdict == "FAILED" else verdict
        seen[device, kernel, row] = (mode, name, today)
    lines = {}
    for (device, kernel, _), (mode, name, date) in seen.items():
        lines.setdefault((device, kernel, mode, date), []).append(name)
    out = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    first = {key: at for at, key in reversed(list(enumerate((d, k) for d, k, _, _ in lines)))}
    for device, kernel, mode, date in sorted(lines, key=lambda l: first[l[:2]]):
        out.append(f"| {device} | {kernel} | {mode} | {', '.join(lines[device, kernel, mode, date])} | {date} |")
    with open(page, "w") as f:
        f.write(before + BEGIN + "\n\n" + "\n".join(out) + "\n\n" + END + after)


main()
