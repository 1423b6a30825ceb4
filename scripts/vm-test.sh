#!/bin/bash
# vm-test.sh VM [STEP...]: try Kubelith on its own machine: systemd, cgroup v2, reboots, a pulled plug.
#
# VM is a program that creates virtual machines (`VM start NAME MiB`, ssh, put, stop, kill, rm; Debian with systemd,
# nftables and perl). All steps run in the order below, one line each with the seconds they took; with STEPs, only
# these. A step that fails does not stop the others. The output of the machine is in .cache/vm-test/. KEEP=yes leaves
# the machine running; MEMORY is its MiB; PACKAGES are .deb files to install there first (apparmor and libapparmor1 for
# a pod with a profile).
# The steps run in the guest, where perl, nsenter and curl of the guest inspect what Kubelith does.
# shellcheck disable=SC2317,SC2034 # the steps are called by name, STEPS by what is sourced
set -uo pipefail
cd "$(dirname "$0")/.." || exit
STEPS="boot refusals install ready check drivers hello cgroups resize oom apparmor journal plugins restart kill reset upgrade reboot plug uninstall"
. scripts/vm-steps.sh
NAME=${NAME:-kubelith-test} MEMORY=${MEMORY:-4096}

# guest: runs the script on stdin in the machine, after the functions of vm-guest.sh; the last line it prints is the step's result.
guest() { cat scripts/vm-guest.sh - | "$VM" ssh "$NAME" 'cat >step.sh; bash step.sh </dev/null'; }

step_boot() {
	{ "$VM" ssh "$NAME" true || "$VM" start "$NAME" "$MEMORY"; } && "$VM" ssh "$NAME" 'rm -rf /root/k; mkdir -p /root/k' && "$VM" put "$NAME" "$BIN" /root/k/kubelith && "$VM" put "$NAME" scripts/install.sh scripts/uninstall.sh manifests/hello.yaml /root/k/ &&
		for package in ${PACKAGES:-}; do "$VM" put "$NAME" "$package" /root/p.deb && "$VM" ssh "$NAME" 'dpkg -i p.deb; rm p.deb'; done &&
		{ "$VM" ssh "$NAME" test -e /etc/protocols || "$VM" put "$NAME" /etc/protocols /etc/protocols; } &&
		guest <<'E'
way_out
system >before.system; kept >before.sysctl; lsmod | awk '{ print $1 }' | sort >before.modules
. /etc/os-release; echo "$PRETTY_NAME, kernel $(uname -r), systemd $(systemctl --version | awk 'NR==1{print $2}'), $(stat -fc %T /sys/fs/cgroup)"
E
}
step_refusals() { guest <<'E'
# There is no network to install packages from: refused with the reason, nothing installed.
refused() {
	if "$@" sh k/install.sh k/kubelith >refused.log 2>&1; then fail "installed all the same"; fi
	cat refused.log
	[ ! -e /usr/local/bin/kubelith ] && [ ! -e /etc/systemd/system/kubelith.service ] || fail "half installed"
	said="$said$(tail -n 1 refused.log); "
}
mkdir -p hidden; for f in /usr/sbin/* /usr/bin/*; do ln -sf $f hidden/; done; rm hidden/nft
said=; refused env PATH=/root/hidden; rm -rf hidden
mv /etc/protocols .; trap 'mv protocols /etc/' EXIT; refused env
if k/kubelith check >refused.log; then fail "check passes without /etc/protocols"; fi
grep "^failed" refused.log
echo "$said$(grep '^failed' refused.log)"
E
}
step_install() { guest <<'E'
t=$(uptime_s)
sh k/install.sh k/kubelith
took=$(since $t)
[ "$(systemctl is-active kubelith)" = active ] && [ "$(systemctl is-enabled kubelith)" = enabled ] || fail "$(systemctl status kubelith --no-pager)"
# systemd waits for etcd, the API and the kubelet; the others may follow.
status() { systemctl show kubelith -p StatusText --value; }
all_ready() { [ "$(status)" = "all components are ready" ]; }
until_true 60 all_ready || fail "not all components are ready: $(status)"
unit=$(systemctl show kubelith -p Type -p Delegate -p KillMode | sort | tr '\n' ' ')
[ "$unit" = "Delegate=yes KillMode=process Type=notify " ] || fail "the unit has $unit"
echo "active and enabled after $took, $unit"
E
}
step_ready() { guest <<'E'
t=$(uptime_s); until_true 120 node_ready || fail "not Ready: $($k get nodes -o wide)"
$k get nodes -o wide
pods=$($k get pods -A --field-selector metadata.namespace!=default -o name)
[ -z "$pods" ] || fail "system pods: $pods"
echo "Ready $(since $t) after the unit was; no system pods"
E
}
step_check() { guest <<'E'
kubelith check || fail "check fails beside the running server"
echo "$(kubelith check | grep cgroups:)"
E
}
step_drivers() { guest <<'E'
kubelet=$($k get --raw "/api/v1/nodes/$(hostname)/proxy/configz" | grep -o '"cgroupDriver":"[a-z]*"')
[ "$kubelet" = '"cgroupDriver":"systemd"' ] || fail "the kubelet has $kubelet"
echo "kubelet $kubelet (containerd's: step cgroups)"
E
}
step_hello() { guest <<'E'
t=$(uptime_s)
$k apply -f k/hello.yaml
wait_hello || fail "$($k get pods -o wide; $k get events)"
took=$(since $t)
$k wait --for=condition=complete job/hello-by-name --timeout=300s
$k logs job/hello-by-name | grep 'Hello from Kubelith' >/dev/null || fail "no answer by name"
service | grep 'Hello from Kubelith' >/dev/null || fail "no answer from the Service"
echo "3 pods Ready in $took; answers at the ClusterIP and, in a pod, by DNS name"
E
}
step_cgroups() { guest <<'E'
group=$(cut -d: -f3 /proc/$(pid_of_hello)/cgroup)
case $group in /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod*.slice/cri-containerd-*.scope) ;; *) fail "cgroup $group" ;; esac
[ "$(cat /sys/fs/cgroup$group/memory.max)" = $((64 << 20)) ] || fail "memory.max is $(cat /sys/fs/cgroup$group/memory.max)"
systemctl is-active -q "$(basename "$group")" || fail "systemd does not know $group"
echo "scopes of systemd below kubepods.slice, memory.max 64 MiB"
E
}
# resize: the limits of a container change while its process runs, up and down, and systemd knows them.
step_resize() { guest <<'E'
$k apply -f - <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: resized}
spec:
  containers:
    - {name: hello, image: "kubelith/hello:1", resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}}
Y
trap '$k delete pod resized --timeout=200s >/dev/null' EXIT
$k wait --for=condition=Ready pod/resized --timeout=300s || fail "$($k describe pod resized)"
uid=$($k get pod resized -o jsonpath='{.metadata.uid}' | tr - _)
process() { local p; for p in $(pidof hello); do ! grep -qs $uid /proc/$p/cgroup || echo "$p of $(sed 's/.*) //' /proc/$p/stat | cut -d' ' -f20)"; done; }
before=$(process); group=/sys/fs/cgroup$(cut -d: -f3 /proc/${before%% *}/cgroup)
limits() { echo "$(cat $group/memory.max) $(cut -d' ' -f1 $group/cpu.max), of the pod $(cat $(dirname $group)/memory.max) $(cut -d' ' -f1 $(dirname $group)/cpu.max)"; }
limited() { [ "$(limits)" = "$1 $2, of the pod $1 $2" ]; }
told() { [ "$($k get pod resized -o jsonpath='{.status.containerStatuses[0].resources.limits.memory} {.status.containerStatuses[0].restartCount}')" = "$1 0" ]; }
limited 67108864 20000 || fail "limits at first: $(limits)"
# resize CPU MEMORY BYTES QUOTA
resize() {
	$k patch pod resized --subresource resize -p '{"spec": {"containers": [{"name": "hello", "resources": {"limits": {"cpu": "'$1'", "memory": "'$2'"}}}]}}'
	until_true 120 limited $3 $4 && until_true 120 told $2 || fail "limits with $1 $2: $(limits): $($k describe pod resized)"
	systemctl daemon-reload
	limited $3 $4 || fail "systemd set the limits to $(limits)"
}
resize 400m 96Mi 100663296 40000
resize 100m 48Mi 50331648 10000
[ "$(process)" = "$before" ] || fail "the process was $before and is $(process)"
echo "64 MiB and 0.2 CPUs became 96 MiB and 0.4, then 48 MiB and 0.1; the process is $before all the time"
E
}
step_oom() { guest <<'E'
# The image has no program that takes memory: tail comes from the guest.
$k apply -f - <<Y
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers:
    - {name: tail, image: kubelith/hello:1, command: [/usr/bin/tail, /dev/zero], resources: {limits: {memory: 32Mi}}, volumeMounts: [{name: usr, mountPath: /usr, readOnly: true}, {name: lib, mountPath: /lib64, readOnly: true}, {name: l, mountPath: /lib, readOnly: true}]}
  volumes: [{name: usr, hostPath: {path: /usr}}, {name: lib, hostPath: {path: $lib64}}, {name: l, hostPath: {path: /usr/lib}}]
Y
$k wait --for=jsonpath='{.status.phase}'=Failed pod/greedy --timeout=300s || fail "$($k describe pod greedy)"
said=$($k get pod greedy -o jsonpath='{.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}')
$k delete pod greedy >/dev/null
[ "$said" = "OOMKilled 137" ] || fail "$said"
[ "$(systemctl is-active kubelith)" = active ] || fail "the OOM kill ended the unit"
echo "$said"
E
}
step_apparmor() { guest <<'E'
profile=$(cat /proc/$(pid_of_hello)/attr/current)
seccomp=$(awk '/^Seccomp:/ { print $2 }' /proc/$(pid_of_hello)/status)
if command -v apparmor_parser >/dev/null; then [ "$profile" = "cri-containerd.apparmor.d (enforce)" ] || fail "profile $profile"; fi
echo "AppArmor profile: $profile; apparmor_parser: $(command -v apparmor_parser || echo none); seccomp mode of a pod that asks for none: $seccomp"
E
}
step_journal() { guest <<'E'
all=$(journalctl -u kubelith -o cat --no-pager _COMM=kubelith | wc -l)
with=$(journalctl -u kubelith -o cat --no-pager _COMM=kubelith | grep -c component=)
parts=$(journalctl -u kubelith -o cat --no-pager | grep -oE 'component=[a-z-]+' | sort -u | wc -l)
journalctl -u kubelith -o cat --no-pager _COMM=kubelith | sed -n '/component=/!p' | cut -c1-150 | head -3 # none: all is well
[ "$parts" -gt 5 ] || fail "only $parts components in the journal"
echo "$with of $all lines have component=, $parts components"
E
}
# plugins: the driver of volumes is a process in its own limited group, which the server's death ends; a volume survives
# that.
step_plugins() { guest <<'E'
plugin_runs() { [ -n "$(plugin)" ]; }
plugin() { pidof -s kubelith-local || pgrep -f bin/kubelith-local | head -n 1; }
until_true 60 plugin_runs || fail "$(kubelith plugin list)"
group=$(sed -n 's/^0:://p' /proc/$(plugin)/cgroup)
case $group in /kubelith-plugins-*/local-*) ;; *) fail "its cgroup is $group" ;; esac
[ "$(cat /sys/fs/cgroup$group/memory.max)" = 268435456 ] || fail "memory.max is $(cat /sys/fs/cgroup$group/memory.max)"
$k apply -f - <<'Y'
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  containers: [{name: hello, image: "kubelith/hello:1", volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
Y
until_true 200 $k wait --for=condition=Ready pod/writer --timeout=1s || fail "$($k get pvc,pods; $k get events)"
volume=$(awk '$5 ~ /local|mount$/ && /pvc-/ { print $5 }' /proc/self/mountinfo | head -n 1)
[ -n "$volume" ] || fail "no volume is mounted"
echo kept >"$volume/file"
old=$(plugin) main=$(systemctl show -p MainPID --value kubelith)
systemctl kill -s KILL --kill-who=main kubelith
until_true 10 sh -c "! kill -0 $old 2>/dev/null" || fail "the plugin outlives its server"
POLL=1 until_true 400 sh -c '[ $(systemctl is-active kubelith) = active ] && [ $(systemctl show -p MainPID --value kubelith) != '$main' ]' || fail "systemd did not start it again"
until_true 60 plugin_runs || fail "$(kubelith plugin list)"
[ "$(cat "$volume/file")" = kept ] || fail "the volume has lost its file"
$k delete pod/writer pvc/data --timeout=100s || fail "$($k get pods,pvc,pv)"
until_true 100 sh -c "[ -z \"\$($k get pv -o name)\" ]" || fail "$($k get pv)"
echo "pid $old in $group, ended with the server, pid $(plugin) after it; the volume kept its file and is deleted"
E
}
step_restart() { guest <<'E'
wait_hello; containers >before.list; probe
t=$(uptime_s); systemctl restart kubelith; took=$(since $t)
g=$(gaps); node_ready || until_true 60 node_ready; kept=$(unchanged); service >/dev/null || fail "the Service is gone"
echo "restart took $took, $g$kept"
E
}
step_kill() { guest <<'E'
wait_hello; containers >before.list; probe; old=$(systemctl show -p MainPID --value kubelith)
# The keepers are in the unit's control group: only the main process is meant.
t=$(uptime_s); systemctl kill -s KILL --kill-who=main kubelith
POLL=1 until_true 400 sh -c '[ $(systemctl is-active kubelith) = active ] && [ $(systemctl show -p MainPID --value kubelith) != '$old' ] && [ $(systemctl show -p MainPID --value kubelith) != 0 ]' || fail "systemd did not start it again"
took=$(since $t)
g=$(gaps); kept=$(unchanged); service >/dev/null || fail "the Service is gone"
echo "active again after $took, $g$kept"
E
}
step_reset() { guest <<'E'
wait_hello; containers >before.list
t=$(uptime_s); systemctl stop kubelith; took=$(since $t)
kept=$(unchanged); curl -sf --max-time 5 "http://$(cat svc.ip)/" >/dev/null || fail "the Service does not answer without the server"
kubelith reset --yes >reset.log 2>&1 || { cat reset.log; fail "reset failed"; }
[ -z "$(containers)" ] || fail "left: $(containers)"
[ -z "$(find /sys/fs/cgroup -name 'kubepods*')" ] || fail "left: $(find /sys/fs/cgroup -name 'kubepods*')"
[ ! -e /sys/class/net/cni0 ] && [ ! -e /sys/class/net/flannel.1 ] && [ ! -e /run/kubelith ] && [ -d /var/lib/kubelith/server ] || fail "wrong things removed: $(ls /sys/class/net /run/kubelith)"
systemctl start kubelith; wait_hello || fail "the pods do not come back: $($k get pods -o wide)"
echo "stop took $took, $kept and the Service answers; reset ended them; after a start they are back"
E
}
step_upgrade() { guest <<'E'
wait_hello; containers >before.list; cp k/kubelith new; printf x >>new
t=$(uptime_s); sh k/install.sh new; took=$(since $t); rm new
cmp -s k/kubelith /usr/local/bin/kubelith && fail "the old program is still there"
readlink /proc/$(systemctl show -p MainPID --value kubelith)/exe | grep -q deleted && fail "the old program runs"
kept=$(unchanged)
echo "another program installed and started in $took, $kept"
E
}
# reboot: pods end in order before the machine goes down, which does not wait for what ignores SIGTERM.
step_reboot() {
	guest <<'E' || return
containers >before.list; no_leaks; cat /proc/sys/kernel/random/boot_id >before.boot
$k apply -f - <<Y
apiVersion: v1
kind: Pod
metadata: {name: deaf}
spec:
  terminationGracePeriodSeconds: 300
  containers:
    - {name: tail, image: kubelith/hello:1, command: [/usr/bin/tail, -f, /dev/null], volumeMounts: [{name: usr, mountPath: /usr, readOnly: true}, {name: lib, mountPath: /lib64, readOnly: true}, {name: l, mountPath: /lib, readOnly: true}]}
  volumes: [{name: usr, hostPath: {path: /usr}}, {name: lib, hostPath: {path: $lib64}}, {name: l, hostPath: {path: /usr/lib}}]
Y
$k wait --for=condition=Ready pod/deaf --timeout=300s || fail "$($k describe pod deaf)"
# Upstream's lock for the end of pods, and ours for their statuses.
[ "$(systemd-inhibit --list --no-legend | grep -c kubelet)" = 2 ] || fail "the kubelet does not delay a shutdown twice: $(systemd-inhibit --list)"
E
	# The machine may take longer than VM stop waits before it pulls the plug: it ends itself, and cannot be started before. A slow one
	# with other work took 119 s; what ignores SIGTERM would add 90.
	local t=$SECONDS took
	"$VM" ssh "$NAME" systemctl poweroff
	until took=$((SECONDS - t)); "$VM" start "$NAME" "$MEMORY"; do
		[ "$took" -lt 150 ] || { echo "the machine took $took s to shut down"; return 1; }
		sleep 1
	done
	came_back && guest <<'E' && echo "shut down in $took s"
said=$($k get pod deaf -o jsonpath='{.status.phase} {.status.reason}')
[ "$said" = "Failed Terminated" ] || fail "the kubelet did not end the pods before the machine: $said"
$k delete pod deaf --wait=false >/dev/null
$k delete pods -l app=hello --field-selector status.phase=Failed >/dev/null
E
}
came_back() { guest <<'E'
[ "$(cat /proc/sys/kernel/random/boot_id)" != "$(cat before.boot)" ] || fail "it did not reboot"
POLL=1 until_true 400 systemctl is-active -q kubelith || fail "$(systemctl status kubelith --no-pager)"; up=$(cut -d. -f1 /proc/uptime)
until_true 120 node_ready || fail "not Ready: $($k get nodes)"
# Until the kubelet reports, the pods have the status of before.
POLL=1 until_true 400 sh -c '[ $(pidof hello | wc -w) -ge 3 ]' && wait_hello || fail "$($k get pods -o wide)"
ready=$(cut -d. -f1 /proc/uptime)
until_true 120 service || fail "the Service does not answer"
until_true 60 no_leaks || no_leaks
echo "unit active $up s and pods Ready $ready s after the boot, restarts $($k get pods -l app=hello -o jsonpath='{.items[*].status.containerStatuses[0].restartCount}'), $(no_leaks)"
E
}
step_plug() {
	guest <<<'cat /proc/sys/kernel/random/boot_id >before.boot; sync' || return
	# What the server acknowledged is noted here, outside of the machine.
	guest >"$LOGS/acknowledged" 2>/dev/null <<'E' &
for w in 1 2 3; do (for i in $(seq 1 500); do $k create configmap plug-$w-$i --from-literal=i=$i -o name || true; done) & done; wait
E
	local writer=$!
	for _ in $(seq 120); do [ "$(wc -l <"$LOGS/acknowledged")" -ge 15 ] && break; sleep 1; done
	[ -s "$LOGS/acknowledged" ] || { kill "$writer"; echo "nothing was acknowledged"; return 1; }
	"$VM" kill "$NAME"
	wait "$writer"
	for _ in $(seq 20); do "$VM" start "$NAME" "$MEMORY" && break; sleep 1; done # it takes the machine a moment to be gone
	local back; back=$(came_back) || { echo "$back"; return 1; }
	"$VM" ssh "$NAME" "kubelith kubectl get configmaps -o name" >"$LOGS/found" || return
	local lost; lost=$(sort "$LOGS/acknowledged" | comm -23 - <(sort "$LOGS/found"))
	[ -z "$lost" ] || { echo "lost: $lost"; return 1; }
	echo "$back; all $(wc -l <"$LOGS/acknowledged") acknowledged writes are there"
}
step_uninstall() { guest <<'E'
t=$(uptime_s); sh k/uninstall.sh --yes >uninstall.log 2>&1 || { cat uninstall.log; fail "uninstall failed"; }; took=$(since $t)
sleep 3; system >after.system; kept >after.sysctl; lsmod | awk '{ print $1 }' | sort >after.modules
echo "settings of the kernel that stay until the next boot:"; diff before.sysctl after.sysctl || true
echo "modules that stay: $(comm -13 before.modules after.modules | tr '\n' ' ')"
echo "AppArmor profiles that stay: $(grep -s containerd /sys/kernel/security/apparmor/profiles || echo none)"
diff before.system after.system >system.diff || { cat system.diff; fail "$(grep -c '^[<>]' system.diff) differences to before the installation"; }
[ "$(systemctl is-active kubelith || true)" = inactive ] || fail "systemd knows the unit"
echo "in $took; mounts, network, packet filter, cgroups, units, processes and $(wc -l <after.system) files and more as before"
E
}

run_steps "$NAME" "$@"
