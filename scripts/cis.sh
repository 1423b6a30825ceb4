#!/bin/sh
# Checks this server against the CIS Kubernetes Benchmark 1.12 with kube-bench (github.com/aquasecurity/kube-bench v0.15.6). The
# checks of scripts/kube-bench query the running process, as there are no command lines and manifests to read.
set -eu

usage() {
	cat <<'USAGE'
usage: cis.sh KUBE-BENCH [ARGUMENT...]

Runs the program KUBE-BENCH (make kube-bench builds it at .cache/tools/kube-bench) with Kubelith's checks. Further arguments are
passed to kube-bench, for example --json. Run it as root on a server; docs/hardening.md explains the result.

Environment: DATA_DIR (/var/lib/kubelith), KUBECONFIG (/etc/kubelith/kubelith.yaml), NODE (the host name), KUBELITH (kubelith).
USAGE
}
case "${1:-}" in
"" | -h | --help)
	usage
	exit 0
	;;
esac
bench=$1
shift
checks=$(cd "$(dirname "$0")" && pwd)/kube-bench
export DATA_DIR="${DATA_DIR:-/var/lib/kubelith}" KUBECONFIG="${KUBECONFIG:-/etc/kubelith/kubelith.yaml}" NODE="${NODE:-$(uname -n)}"
KUBECTL="${KUBELITH:-kubelith} kubectl"
# The configuration of the apiserver and the kubelet, requested once.
ANSWERS=$(mktemp -d)
trap 'rm -rf "$ANSWERS"' EXIT
export KUBECTL ANSWERS PROBE="$checks/probe.sh"
# Upstream chooses the separator of /flagz at random, so that no client relies on it. Normalize to name=value and lists without brackets.
$KUBECTL get --raw /flagz | sed -E 's/^([a-z0-9-]+)(: |:|=| )/\1=/; s/=\[(.*)\]$/=\1/' >"$ANSWERS/apiserver"
$KUBECTL get --raw "/api/v1/nodes/$NODE/proxy/configz" >"$ANSWERS/kubelet"
$KUBECTL get --raw /metrics >"$ANSWERS/metrics"
ss -Hltn >"$ANSWERS/listening"
"$bench" run --config-dir "$checks" --config "$checks/config.yaml" --benchmark kubelith-cis-1.12 "$@"
