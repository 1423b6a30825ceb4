#!/bin/bash
# make conformance: run upstream's conformance suite, built by others into
# E2E_DIR (bin/e2e.test, images, run.sh beside or in E2E_RUN), against a fresh cluster
# in namespaces of its own.
#   E2E_DIR=dir   where the suite was built     E2E_RUN=file  its run.sh
#   FOCUS=regex or @file (default: all [Conformance])   SKIP=regex   PROCS=4
set -euo pipefail
cd "$(dirname "$0")/.."
: "${E2E_DIR:?give E2E_DIR=directory where the suite was built}"
E2E_RUN=${E2E_RUN:-../shared/conformance/run.sh}
[ -x "$E2E_RUN" ] || { echo "conformance: no $E2E_RUN: set E2E_RUN" >&2; exit 1; }
# Whole paths: in the mount namespace the working directory is another.
E2E_RUN=$(readlink -f "$E2E_RUN") E2E_DIR=$(readlink -f "$E2E_DIR") FOCUS="${FOCUS:-\[Conformance\]}"
case $FOCUS in @*)
	[ -f "${FOCUS#@}" ] || { echo "conformance: no file ${FOCUS#@}: see FOCUS" >&2; exit 1; }
	FOCUS=@$(readlink -f "${FOCUS#@}") ;;
esac
ns=kubelith-e2e dir=$PWD/.cache/conformance bin=$PWD/bin/kubelith
mirror=127.0.0.1:5055
# hidden: places of the host that the cluster has to itself. A bind mount needs a directory: made has those that were not there.
hidden=(/var/lib/kubelith /var/lib/kubelet /run/kubelith /etc/kubelith /var/log/pods /var/log/containers /etc/cni /var/lib/cni /usr/libexec/kubernetes)
made=()

finish() {
	local status=$?
	if [ -f "$dir/pid" ]; then
		kill -TERM "$(cat "$dir/pid")" 2>/dev/null || true
		for _ in $(seq 300); do [ -d "/proc/$(cat "$dir/pid")" ] || break; sleep 0.1; done
		in_mounts "$bin" reset --yes --data >"$dir/reset.log" 2>&1 || echo "conformance: see $dir/reset.log" >&2
	fi
	find /sys/fs/cgroup -depth -type d -path "*/$ns*" -exec rmdir {} + 2>/dev/null || true
	[ -z "${holder:-}" ] || kill "$holder" 2>/dev/null || true
	ip netns del $ns 2>/dev/null || true
	ip link del $ns 2>/dev/null || true
	[ ${#made[@]} = 0 ] || rmdir "${made[@]}" 2>/dev/null || true # those in which nobody else put something
	exit $status
}
trap finish EXIT
in_mounts() { nsenter -t "$holder" -m -n -- "$@"; }

rm -rf "$dir"
mkdir -p "$dir/root/etc/kubelith/registries.d/_default" "${hidden[@]/#/$dir/root}"
printf '[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' $mirror >"$dir/root/etc/kubelith/registries.d/_default/hosts.toml"
ip netns add $ns
ip link add $ns type veth peer name eth0 netns $ns
ip addr add 10.123.251.1/24 dev $ns; ip link set $ns up
ip -n $ns addr add 10.123.251.2/24 dev eth0; ip -n $ns link set eth0 up; ip -n $ns link set lo up
ip -n $ns route add default via 10.123.251.1
for d in "${hidden[@]}"; do
	[ -d "$d" ] || { mkdir -p "$d" && made+=("$d"); }
done
nsenter --net=/run/netns/$ns unshare -m --propagation private bash -c '
	root=$1; shift
	for d; do mount --bind "$root$d" "$d"; done
	mount --make-rshared /
	exec sleep infinity' hold "$dir/root" "${hidden[@]}" &
holder=$!
sleep 1
# A cgroup of its own: two kubelets in one would delete each other's pods.
for c in /sys/fs/cgroup /sys/fs/cgroup/*; do
	[ -e "$c/cgroup.procs" ] && mkdir -p "$c/$ns"
done
if [ -d "/sys/fs/cgroup/cpuset/$ns" ]; then
	for f in cpus mems; do cat "/sys/fs/cgroup/cpuset/cpuset.$f" >"/sys/fs/cgroup/cpuset/$ns/cpuset.$f"; done
fi
# Not by in_mounts: a function in the background is a shell of its own, whose id this would be.
nsenter -t "$holder" -m -n -- setsid "$bin" server --node-name e2e --kubelet-arg=cgroup-root=/$ns >"$dir/server.log" 2>&1 &
echo $! >"$dir/pid"
for i in $(seq 240); do
	in_mounts "$bin" kubectl --kubeconfig /etc/kubelith/kubelith.yaml wait --for=condition=Ready node/e2e --timeout=1s >/dev/null 2>&1 && break
	[ "$i" -lt 240 ] || { tail -5 "$dir/server.log" >&2; exit 1; }
	sleep 0.5
done
# No exec: the trap has to run.
in_mounts env WORK="$E2E_DIR" OUT="$dir/out" MIRROR=$mirror SKIP="${SKIP:-}" TIMEOUT="${TIMEOUT:-4h}" \
	"$E2E_RUN" /etc/kubelith/kubelith.yaml "$bin ctr" "$FOCUS" "${PROCS:-4}"
