#!/bin/bash
# make conformance: run upstream's conformance suite, built by others into
# E2E_DIR (bin/e2e.test, images, run.sh beside or in E2E_RUN), against a fresh cluster
# in its own namespaces: a server, and agents in namespaces beside it when there are to be more nodes.
#   E2E_DIR=dir   where the suite was built     E2E_RUN=file  its run.sh     NODES=1
#   DUAL_STACK=yes: pods and Services have IPv6 addresses as well; DUAL_STACK=ipv6: these come first, most tests use no others
#   FOCUS=regex or @file (default: all [Conformance])   SKIP=regex   PROCS=4
#   SETUP=file: bash to source when the nodes are Ready
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
net=10.123.251 net6=fd00:10:123:251: # ...1 is the bridge, the others are the nodes
networks=()
case ${DUAL_STACK:-} in
"") ;;
yes) networks=(--cluster-cidr '10.42.0.0/16,fd42::/56' --service-cidr '10.43.0.0/16,fd43::/112') ;;
ipv6) networks=(--cluster-cidr 'fd42::/56,10.42.0.0/16' --service-cidr 'fd43::/112,10.43.0.0/16') ;;
*) echo "conformance: DUAL_STACK is yes, ipv6 or empty" >&2; exit 1 ;;
esac
mirror=$net.2:5055
NODES=${NODES:-1}
# hidden: places of the host that each node has to itself. A bind mount needs a directory: made has those that were not there.
hidden=(/var/lib/kubelith /var/lib/kubelith-fuse /var/lib/kubelet /run/kubelith /etc/kubelith /var/log/pods /var/log/containers
	/etc/cni /var/lib/cni /usr/libexec/kubernetes)
made=()
declare -A holder

finish() {
	local status=$?
	for ((i = NODES; i > 0; i--)); do
		if [ -f "$dir/pid-$i" ]; then
			kill -TERM "$(cat "$dir/pid-$i")" 2>/dev/null || true
			for _ in $(seq 300); do [ -d "/proc/$(cat "$dir/pid-$i")" ] || break; sleep 0.1; done
			on "$i" "$bin" reset --yes --data >"$dir/reset-$i.log" 2>&1 || echo "conformance: see $dir/reset-$i.log" >&2
		fi
		[ -z "${holder[$i]:-}" ] || kill "${holder[$i]}" 2>/dev/null || true
		ip netns del "$ns-$i" 2>/dev/null || true
	done
	find /sys/fs/cgroup -depth -type d -path "*/$ns*" -exec rmdir {} + 2>/dev/null || true
	ip link del $ns 2>/dev/null || true
	[ ${#made[@]} = 0 ] || rmdir "${made[@]}" 2>/dev/null || true # those in which no other process put something
	exit $status
}
trap finish EXIT
# on NODE COMMAND...: in the namespaces of a node.
on() {
	local i=$1
	shift
	nsenter -t "${holder[$i]}" -m -n -- "$@"
}

# prepare NODE: its network, its mounts and a process that holds them.
prepare() {
	local i=$1 root=$dir/root-$1 d
	mkdir -p "$root/etc/kubelith/registries.d/_default" "${hidden[@]/#/$root}"
	printf '[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' $mirror >"$root/etc/kubelith/registries.d/_default/hosts.toml"
	ip netns add "$ns-$i"
	ip link add "$ns-$i" type veth peer name eth0 netns "$ns-$i"
	ip link set "$ns-$i" master $ns up
	ip -n "$ns-$i" addr add "$net.$((i + 1))/24" dev eth0; ip -n "$ns-$i" link set eth0 up; ip -n "$ns-$i" link set lo up
	ip -n "$ns-$i" route add default via $net.1
	if [ ${#networks[@]} -gt 0 ]; then
		ip -n "$ns-$i" addr add "$net6:$((i + 1))/64" dev eth0 nodad
		ip -n "$ns-$i" route add default via $net6:1
	fi
	nsenter --net="/run/netns/$ns-$i" unshare -m --propagation private bash -c '
		root=$1; shift
		for d; do mount --bind "$root$d" "$d"; done
		mount --make-rshared /
		# Tests enter the mount namespace of process 1 to see the mounts of a node.
		mount --bind /proc/$$ /proc/1
		exec sleep infinity' hold "$root" "${hidden[@]}" &
	holder[$i]=$!
	sleep 1
	# Its own cgroup: two kubelets in one would delete each other's pods.
	for c in /sys/fs/cgroup /sys/fs/cgroup/*; do
		[ -e "$c/cgroup.procs" ] && mkdir -p "$c/$ns-$i"
	done
	if [ -d "/sys/fs/cgroup/cpuset/$ns-$i" ]; then
		for f in cpus mems; do cat "/sys/fs/cgroup/cpuset/cpuset.$f" >"/sys/fs/cgroup/cpuset/$ns-$i/cpuset.$f"; done
	fi
}

# start NODE ARGUMENT...: kubelith, and wait until the node is Ready.
start() {
	local i=$1
	shift
	# A disk that builds have nearly filled is not what is tested: no eviction for it, no image removed.
	# Not by on: a function in the background is its own shell, whose id this would be.
	nsenter -t "${holder[$i]}" -m -n -- setsid "$bin" "$@" --node-name "e2e-$i" "--kubelet-arg=cgroup-root=/$ns-$i" \
		"--kubelet-arg=eviction-hard=memory.available<100Mi" --kubelet-arg=image-gc-high-threshold=100 >"$dir/node-$i.log" 2>&1 &
	echo $! >"$dir/pid-$i"
	for tries in $(seq 240); do
		on 1 "$bin" kubectl --kubeconfig /etc/kubelith/kubelith.yaml wait --for=condition=Ready "node/e2e-$i" --timeout=1s >/dev/null 2>&1 && return
		[ "$tries" -lt 240 ] || { tail -5 "$dir/node-$i.log" >&2; exit 1; }
		sleep 0.5
	done
}

rm -rf "$dir"
mkdir -p "$dir"
for d in "${hidden[@]}"; do
	[ -d "$d" ] || { mkdir -p "$d" && made+=("$d"); }
done
ip link add $ns type bridge
ip addr add $net.1/24 dev $ns; ip link set $ns up
[ ${#networks[@]} = 0 ] || ip addr add $net6:1/64 dev $ns nodad
prepare 1
start 1 server "${networks[@]}"
ctr="$bin ctr"
for ((i = 2; i <= NODES; i++)); do
	prepare "$i"
	start "$i" agent --server "https://$net.2:6443" --token-file "$dir/root-1/var/lib/kubelith/server/token"
	ctr="$ctr;nsenter -t ${holder[$i]} -m -n -- $bin ctr"
done
# shellcheck source=/dev/null
[ -z "${SETUP:-}" ] || . "$SETUP"
# No exec: the trap has to run.
on 1 env WORK="$E2E_DIR" OUT="$dir/out" MIRROR=$mirror SKIP="${SKIP:-}" TIMEOUT="${TIMEOUT:-4h}" \
	"$E2E_RUN" /etc/kubelith/kubelith.yaml "$ctr" "$FOCUS" "${PROCS:-4}"
