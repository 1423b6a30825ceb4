# shellcheck shell=bash disable=SC2046,SC2154
# What vm-nodes-test.sh and vagrant-test.sh have in common: the cluster of a server and an agent, and a pod on each. It is sent to the
# machine after vm-guest.sh.
everywhere() {
	$k apply -f - <<'Y'
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec:
      containers:
        - {name: hello, image: "kubelith/hello:1", ports: [{containerPort: 8080}], readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 5, timeoutSeconds: 10}}
---
apiVersion: v1
kind: Service
metadata: {name: everywhere}
spec: {type: NodePort, selector: {app: everywhere}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
Y
}
nodes_ready() { [ "$($k get nodes -o jsonpath='{range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}')" = "True True " ]; }
agent_lost() { [ "$($k get nodes -l kubelith.io/role=agent -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}')" = Unknown ]; }
nodes() { $k get nodes -o wide; }
pod_on() { $k get pods -l app=everywhere --field-selector "spec.nodeName=$1" -o jsonpath="{.items[0].$2}"; }
server_node() { $k get nodes -l kubelith.io/role=server -o jsonpath='{.items[0].metadata.name}'; }
agent_node() { $k get nodes -l kubelith.io/role=agent -o jsonpath='{.items[0].metadata.name}'; }
# asks POD URL: prints the answer that the pod gets.
asks() { $k exec "$1" -- /hello get "$2"; }
everywhere_ready() { [ "$($k get daemonset everywhere -o jsonpath='{.status.numberReady}/{.status.desiredNumberScheduled}/{.status.updatedNumberScheduled}')" = 2/2/2 ]; }
# across: each pod reaches the other by its address, and both the Service by address and name.
across() {
	local sp ap service from to n=0
	sp=$(pod_on "$(server_node)" metadata.name) ap=$(pod_on "$(agent_node)" metadata.name)
	service=$($k get service everywhere -o jsonpath='{.spec.clusterIP}')
	for from in "$sp" "$ap"; do
		for to in $($k get pods "$sp" "$ap" -o jsonpath='{.items[0].status.podIP}:8080 {.items[1].status.podIP}:8080') "$service" everywhere.default.svc.cluster.local; do
			asks "$from" "http://$to/" | grep 'Hello from Kubelith' >/dev/null || { echo "$from gets no answer from $to"; return 1; }
			n=$((n + 1))
		done
	done
	echo "$n ways between pods"
}
try_across() { across >across.log 2>&1; }
# reached SECONDS: waits until across succeeds, and prints its output.
reached() { until_true "$1" try_across || fail "$(cat across.log)"; cat across.log; }
