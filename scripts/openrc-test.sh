#!/bin/sh
# Tests the OpenRC service on a Debian whose init system is OpenRC: debootstrap builds it once, in .cache/openrc, and
# the test runs it in its own namespaces (integration/process, TestOpenRC).
set -eu
cd "$(dirname "$0")/.."
root=$PWD/.cache/openrc/root
if [ ! -f "$root.made" ]; then
	scripts/deps.sh debootstrap
	mirror=$(apt-cache policy nftables | grep -oE 'https?://[^ ]+' | grep -v security | head -n 1)
	echo "openrc-test: making a Debian with OpenRC in $root (a minute)"
	rm -rf "$root"
	mkdir -p "$root"
	debootstrap --variant=minbase --include=openrc,nftables,iproute2,procps,kmod,util-linux,e2fsprogs bookworm "$root" "$mirror" >"$root.log" ||
		{ tail -n 3 "$root.log"; exit 1; }
	touch "$root.made"
fi
KUBELITH_OPENRC_ROOT=$root KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$PWD/bin/kubelith \
	"${GO:-go}" test -count=1 -v ./integration/process -run 'TestOpenRC$'
