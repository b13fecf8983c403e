#!/usr/bin/env bash
# Instructions of the hot paths, counted by callgrind: what a connection, an exchange, a megabyte cost on the memory wire.
# They repeat to a fraction of a percent where times do not, so they are held to a budget (tools/instructions.txt).
#
#   tools/instructions.sh            measures, prints a table; fails where a budget is exceeded by more than 2 %, or where a
#                                    connection on one of two lanes costs 2.5 % more than on a lone one
#   tools/instructions.sh --write    makes what it measures the budget
#   tools/instructions.sh --pgo      the same of a build by a profile (tools/pgo.sh), whose budget is tools/instructions-pgo.txt; --write
#                                    may follow
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = --pgo ]; then
    shift
    # Itself, with what makes cargo use the profile: that of fixed counts, for root too.
    exec tools/pgo.sh --memory-only tools/instructions.sh "$@"
fi
mode=${1:-}
budget=tools/instructions${CORELANE_PGO:+-pgo}.txt
programs=${CARGO_TARGET_DIR:-target}/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release/examples
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cargo build --release --locked --quiet -p corelane --example transactions --example flows --example bulk --example lanes

# name | what is counted | example and arguments | counted function | units
cases='
connection|a short connection, both ends|transactions 20000|transactions::run|30000
exchange|a 64-byte exchange on one of 1,000 connections, both ends|flows 1000 30000|flows::run|30000
send|a MiB of bulk sent|bulk 64|bulk::send|96
take|a MiB of bulk received|bulk 64|bulk::take|96
lane|a short connection, both ends, on one lane|lanes 1 20000|lanes::run|20000
lanes|the same on each of two lanes|lanes 2 20000|lanes::run|40000
'
status=0
printf '%-12s %12s %12s  %s\n' name instructions budget 'of'
measured=()
while IFS='|' read -r name what command function units; do
    [ -n "$name" ] || continue
    # shellcheck disable=SC2086
    set -- $command
    example=$1
    shift
    valgrind --tool=callgrind --fair-sched=yes --callgrind-out-file="$out/$name" --toggle-collect="$function" \
        "$programs/$example" "$@" >"$out/$name.log" 2>&1 || { cat "$out/$name.log"; exit 1; }
    total=$(sed -n 's/^totals: \([0-9]*\).*/\1/p; s/^summary: \([0-9]*\).*/\1/p' "$out/$name" | sort -n | tail -1)
    count=$((total / units))
    measured+=("$name $count")
    case $name in
    lane) lone=$count ;;
    lanes) [ "$count" -le $((lone + lone / 40)) ] || { echo "two lanes cost more than one"; status=1; } ;;
    esac
    allowed=$(awk -v n="$name" '$1 == n { print $2 }' "$budget" 2>/dev/null || true)
    printf '%-12s %12d %12s  %s\n' "$name" "$count" "${allowed:-none}" "$what"
    if [ "${allowed:-0}" -gt 0 ] && [ "$count" -gt $((allowed + allowed / 50)) ]; then
        status=1
    fi
done <<<"$cases"

if [ "$mode" = --write ]; then
    printf '%s\n' "${measured[@]}" >"$budget"
    exit 0
fi
[ $status = 0 ] || echo "over budget: profile it (callgrind_annotate), or, if it is worth it, raise $budget by --write" >&2
exit $status
