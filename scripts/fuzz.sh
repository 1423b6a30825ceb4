#!/bin/sh
# make fuzz: every fuzz target of the repository for a while each ($FUZZTIME, a minute by default; FUZZ limits it to targets whose
# name has it). What a target finds is put below testdata/fuzz of its package: commit it with the fix, and `make test` keeps it right.
set -eu
cd "$(dirname "$0")/.."
time=${FUZZTIME:-1m}
failed=""
targets=$(git grep -hoE --untracked '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | wc -l)
echo "fuzz: $targets targets, $time each"
for file in $(git grep -lE --untracked '^func Fuzz' -- '*_test.go'); do
	for name in $(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/p' "$file"); do
		case "$name" in *"${FUZZ:-}"*) ;; *) continue ;; esac
		echo "fuzz: $(dirname "$file") $name"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "./$(dirname "$file")" || failed="$failed $name"
	done
done
[ -z "$failed" ] || {
	echo "fuzz: found faults in:$failed" >&2
	exit 1
}
echo "fuzz: nothing found"
