#!/usr/bin/env bash
# make release-check: build the executables of dist/ a second time, in a fresh clone in another directory with its own
# build cache, and compare them with the first. It takes as long as a first build, for each of ARCHITECTURES.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
[ -d dist ] || { echo "release-check: no dist/: run make release first" >&2; exit 1; }
[ -z "$(git status --porcelain)" ] || { echo "release-check: commit or remove what git status shows" >&2; exit 1; }
again=$(mktemp -d)
trap 'chmod -R u+w "$again"; rm -rf "$again"' EXIT
git clone -q . "$again/clone"
GOCACHE=$again/cache make -C "$again/clone" --no-print-directory dist ARCHITECTURES="${ARCHITECTURES:-amd64 arm64}"
failed=0
for file in "$again"/clone/dist/*; do
	name=$(basename "$file")
	if cmp -s "$file" "$here/dist/$name"; then
		echo "the same: $(sha256sum "$file" | cut -d ' ' -f 1)  $name"
	else
		echo "release-check: $name is another one the second time" >&2
		failed=1
	fi
done
exit $failed
