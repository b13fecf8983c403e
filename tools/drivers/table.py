#!/usr/bin/env python3
"""Puts results of tools/drivers/run.sh into docs/drivers.md: table.py RESULTS PAGE

The table stands between two comments of the page. Rows of devices and kernels that were not run keep their place and date.
"""

import datetime
import sys

BEGIN, END = "<!-- table: ./ci.sh drivers --write -->", "<!-- end of table -->"
HEAD = ["driver", "kernel", "row", "verdict", "", "date"]


def main():
    results, page = sys.argv[1:]
    text = open(page).read()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    rows = {}
    for line in old.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) == len(HEAD) and cells[0] not in ("driver", "---"):
            rows[tuple(cells[:3])] = cells[3:]
    today = datetime.date.today().isoformat()
    for line in open(results):
        device, kernel, row, verdict, detail = line.rstrip("\n").split("|", 4)
        rows[device, kernel, row] = [verdict, detail.replace("|", "/"), today]
    out = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    out += ["| " + " | ".join([*key, *value]) + " |" for key, value in rows.items()]
    with open(page, "w") as f:
        f.write(before + BEGIN + "\n\n" + "\n".join(out) + "\n\n" + END + after)


main()
