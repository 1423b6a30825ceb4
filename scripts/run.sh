#!/bin/sh
# make run: start a cluster from bin/kubelith and an application on it, and show
# that the application answers. Can be run again; `make stop` ends it.
set -eu
cd "$(dirname "$0")/.."
log=.cache/run/server.log
pidfile=.cache/run/server.pid
kubectl="bin/kubelith kubectl"
unset KUBECONFIG
mkdir -p .cache/run

say() { printf '%s\n' "run: $*"; }
die() {
	say "$*" >&2
	exit 1
}
running() { [ -f "$pidfile" ] && [ "$(readlink "/proc/$(cat "$pidfile")/exe" 2>/dev/null)" = "$PWD/bin/kubelith" ]; }

[ "$(id -u)" = 0 ] || die "needs root: sudo make run"
if running; then
	say "the server is already running (process $(cat "$pidfile"))"
else
	# Not on another cluster's data: `make stop` would remove it.
	if [ ! -f "$pidfile" ]; then
		for path in /etc/systemd/system/kubelith.service /etc/init.d/kubelith /var/lib/kubelith/version; do
			[ ! -e "$path" ] || die "this machine has a cluster that 'make run' did not start ($path): remove it with scripts/uninstall.sh or 'bin/kubelith reset --data'"
		done
	fi
	say "starting the server; log: $log"
	setsid bin/kubelith server </dev/null >"$log" 2>&1 &
	echo $! >"$pidfile"
fi

tries=0
until $kubectl get --raw /readyz >/dev/null 2>&1 && [ "$($kubectl get nodes -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; do
	if ! running; then
		# A refused start leaves nothing for 'make stop' to remove.
		[ -e /var/lib/kubelith/version ] || rm -f "$pidfile"
		tail -n 5 "$log" >&2
		die "the server has ended, see above"
	fi
	tries=$((tries + 1))
	[ "$tries" -le 240 ] || die "the node is not Ready after two minutes: see $log"
	sleep 0.5
done
$kubectl get nodes -o wide

say "starting the application (manifests/hello.yaml)"
$kubectl delete job hello-by-name --ignore-not-found >/dev/null
$kubectl apply -f manifests/hello.yaml
$kubectl rollout status deployment/hello --timeout=120s
$kubectl wait --for=condition=complete job/hello-by-name --timeout=120s >/dev/null
address=$($kubectl get service hello -o jsonpath='{.spec.clusterIP}')
say "the answer of http://$address/ (the Service) on this host:"
curl -sS --max-time 10 "http://$address/"
say "the answer of http://hello.default.svc.cluster.local/ in a pod:"
$kubectl logs job/hello-by-name
say "the cluster keeps running: try 'bin/kubelith kubectl get pods -A'; 'make stop' ends it and removes everything"
