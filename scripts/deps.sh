#!/bin/sh
# deps.sh PACKAGE[:ARCHITECTURE]...: install the Debian packages that are missing. The last
# ones are for running and testing: nftables for kube-proxy, iproute2 and
# util-linux for namespaces, e2fsprogs for volumes, busybox-static for the tests' image, strace for slow disks,
# crun as another runtime.
set -eu
missing='' foreign=''
for package in "$@" nftables netbase iproute2 util-linux e2fsprogs kmod conntrack patch curl ca-certificates git zstd busybox-static shellcheck strace crun openssl; do
	dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' && continue
	missing="$missing $package"
	case $package in *:*) foreign="$foreign ${package#*:}" ;; esac
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || {
	echo "deps: install these with your package manager:$missing" >&2
	exit 1
}
[ "$(id -u)" = 0 ] || {
	echo "deps: needs root to install:$missing" >&2
	exit 1
}
echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
for architecture in $foreign; do dpkg --add-architecture "$architecture"; done
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
