#!/bin/sh
# make fuzz: runs every fuzz target of the repository for $FUZZTIME (default: a minute); FUZZ limits it to targets whose name
# contains it. Failing inputs are written below testdata/fuzz of the package: commit them with the fix, as regression tests.
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
	echo "fuzz: failed:$failed" >&2
	exit 1
}
echo "fuzz: no failures"
