#!/bin/bash
# vm-test.sh VM [STEP...]: try Kubelith on a machine of its own: systemd, cgroup v2, reboots, a pulled plug.
#
# VM is a program that makes virtual machines (`VM start NAME MiB`, ssh, put, stop, kill, rm; Debian with systemd, nftables and
# perl). All steps run in the order below, one line each with the seconds they took; with STEPs, only these. A step that fails does not
# stop the others. What the machine said is in .cache/vm-test/. KEEP=yes leaves the machine running; MEMORY is its MiB; PACKAGES are
# .deb files to install there first (apparmor and libapparmor1 for a pod with a profile).
# The steps run in the guest, where perl, nsenter and curl of the guest look at what Kubelith does.
# shellcheck disable=SC2317 # the steps are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
STEPS="boot refusals install ready check drivers hello cgroups oom apparmor journal restart kill reset upgrade reboot plug uninstall"
usage() {
	echo "usage: vm-test.sh VM [STEP...]   steps: $STEPS" >&2
	exit 2
}
[ $# -gt 0 ] || usage
[ -x "$1" ] || usage
VM=$(readlink -f "$1")
shift
NAME=${NAME:-kubelith-test} MEMORY=${MEMORY:-4096} BIN=${BIN:-bin/kubelith}
LOGS=$PWD/.cache/vm-test
export WORK=${WORK:-$LOGS/vm}
mkdir -p "$LOGS" "$WORK"
[ -f "$BIN" ] || {
	echo "vm-test: no $BIN: run make build" >&2
	exit 1
}

# guest: runs the script on stdin in the machine, after the functions below; the last line it prints is the step's result.
guest() { { guest_functions; cat; } | "$VM" ssh "$NAME" 'cat >step.sh; bash step.sh </dev/null'; }

# shellcheck disable=SC2016 # all of it is for the guest's shell
guest_functions() {
	cat <<'GUEST'
set -euo pipefail
cd /root
k="kubelith kubectl"
fail() { echo "$*" | tee /dev/stderr; exit 1; }
uptime_s() { cut -d' ' -f1 /proc/uptime; }
since() { perl -e 'printf "%.1f s", $ARGV[1]-$ARGV[0]' "$1" "$(uptime_s)"; }
# until_true SECONDS COMMAND...
until_true() {
	local end=$((SECONDS + $1)); shift
	until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || return 1; sleep "${POLL:-5}"; done # each try costs a slow machine seconds
}
node_ready() { [ "$($k get nodes -o jsonpath='{.items[0].status.conditions[?(@.type=="Ready")].status}')" = True ]; }
# What the API says may be of before a reset or a boot: the processes count as well.
hello_ready() { [ "$(pidof hello | wc -w)" = 3 ] && [ "$($k get deployment hello -o jsonpath='{.status.readyReplicas}/{.status.updatedReplicas}/{.status.unavailableReplicas}')" = 3/3/ ]; }
wait_hello() { until_true 400 hello_ready; }
service() { curl -sf --max-time 5 "http://$($k get service hello -o jsonpath='{.spec.clusterIP}')/"; }
# containers: PID, start time and program of each process of a pod, and of each shim.
containers() (
	set +e +o pipefail
	for p in /proc/[0-9]*; do
		if grep -qs 'kubepods.*cri-containerd' $p/cgroup || grep -qs containerd-shim $p/cmdline; then
			echo "${p#/proc/} $(sed 's/.*) //' $p/stat | cut -d' ' -f20) $(cat $p/comm)"
		fi
	done 2>/dev/null | sort -n
)
pid_of_hello() { local p; for p in $(pidof hello); do grep -qs kubepods /proc/$p/cgroup && { echo $p; return; }; done; }
unchanged() {
	containers >after.list
	[ -s before.list ] || fail "no pod ran before: nothing was compared"
	cmp -s before.list after.list || { diff before.list after.list || true; fail "the processes of the pods changed"; }
	echo "$(wc -l <after.list) processes kept PID and start time"
}
# probe: asks DNS and a Service ten times a second from inside a pod; gaps prints the longest time without an answer.
probe() {
	cat >probe.pl <<'PERL'
use IO::Socket::INET; use IO::Select;
my ($what, $address) = @ARGV; $| = 1;
sub now { open my $f, "/proc/uptime"; (split " ", <$f>)[0] }
while (1) {
	my $ok = 0;
	if ($what eq "dns") {
		my $s = IO::Socket::INET->new(PeerAddr => $address, PeerPort => 53, Proto => "udp");
		if ($s) {
			$s->send(pack("n6", 7, 0x100, 1, 0, 0, 0) . "\5hello\7default\3svc\7cluster\5local\0" . pack("n2", 1, 1));
			if (IO::Select->new($s)->can_read(0.5)) { my $b; $ok = defined $s->recv($b, 512) && length $b > 12 && unpack("x6n", $b) > 0; }
		}
	} else {
		my $s = IO::Socket::INET->new(PeerAddr => $address, PeerPort => 80, Timeout => 2);
		if ($s) { print $s "GET /healthz HTTP/1.0\r\n\r\n"; $ok = (<$s> // "") =~ / 200 /; }
	}
	print now(), "\n" if $ok;
	select undef, undef, undef, 0.1;
}
PERL
	local pid; pid=$(pid_of_hello); kill $(cat probe.pids 2>/dev/null) 2>/dev/null || true
	$k get service hello -o jsonpath='{.spec.clusterIP}' >svc.ip
	nsenter -t $pid -n setsid perl probe.pl dns 10.43.0.10 >dns.log 2>/dev/null </dev/null & echo $! >probe.pids
	nsenter -t $pid -n setsid perl probe.pl web "$(cat svc.ip)" >web.log 2>/dev/null </dev/null & echo $! >>probe.pids
	POLL=1 until_true 30 sh -c '[ -s dns.log ] && [ -s web.log ]' || fail "no answer from DNS or the Service before the trial"
}
# gap WHAT LIMIT: the longest time without an answer; more than LIMIT seconds is a failure.
gap() {
	perl -e '($w, $limit) = @ARGV; open F, "$w.log"; while (<F>) { $m = $_ - $l if defined $l && $_ - $l > $m; $l = $_ } printf "%s gap %.1f s, ", $w, $m; exit($m > $limit)' "$1" "$2" || fail "$1 did not answer for more than $2 s"
}
gaps() {
	local dns=3
	for w in dns web; do until_true 120 sh -c 'n=$(wc -l <$0.log); sleep 2; [ $(wc -l <$0.log) -gt $n ]' $w || fail "$w does not answer again"; done
	kill $(cat probe.pids) 2>/dev/null || true
	# Three seconds are meant for a processor, not for a program that plays one.
	[ "$(systemd-detect-virt)" != qemu ] || dns=120
	gap dns $dns; gap web 3 # the Service is the kernel's: at most one probe of 2 s is lost
}
# leases and sandboxes must agree: an address for each sandbox that runs.
no_leaks() {
	local leases sandboxes
	leases=$(ls /var/lib/kubelith/agent/cni/kubelith | grep -c '^[0-9]*\.[0-9]*\.[0-9]*\.[0-9]*$' || true)
	sandboxes=$(ls /run/kubelith/containerd/io.containerd.grpc.v1.cri/netns 2>/dev/null | wc -l || true)
	results=$(find /var/lib/cni -type f 2>/dev/null | wc -l || true)
	[ "$leases" = "$sandboxes" ] && [ "$(ls /sys/class/net | grep -c ^veth)" = "$sandboxes" ] || {
		ls /var/lib/kubelith/agent/cni/kubelith; ls /run/kubelith/containerd/io.containerd.grpc.v1.cri/netns; ls /sys/class/net
		fail "$leases addresses are given out, $sandboxes network namespaces exist"
	}
	echo "$leases addresses = $sandboxes sandboxes, $results CNI results"
}
# system: all that an uninstall must put back.
system() (
	set +e +o pipefail
	echo "# mounts"; awk '{ print $5 }' /proc/self/mountinfo | grep -v binfmt_misc | sort # systemd mounts it when somebody looks
	echo "# network namespaces"; ls /run/netns 2>/dev/null | wc -l; lsns -t net -n 2>/dev/null | wc -l
	echo "# interfaces"; ls /sys/class/net
	echo "# addresses and routes"; ip -o address | awk '{ print $2, $4 }' | sort; ip route | sort; ip rule
	echo "# packet filter"; nft list ruleset
	echo "# cgroups"; find /sys/fs/cgroup -type d | grep -vE 'ssh|user.slice|session|modprobe|systemd-|getty|binfmt_misc' | sort
	echo "# units"; systemctl list-units --all --plain --no-legend --no-pager | awk '{ print $1 }' | grep -E 'kube|cri-|containerd|cni' || true
	echo "# processes"; ps -eo args | grep -E 'kubelith|containerd|runc|pause|hello' | grep -v grep || true
	echo "# files"; find / -xdev \( -path /root -o -path /tmp -o -path /var/log/journal -o -path /var/lib/systemd -o -path /var/cache -o -path /var/lib/apt -o -name 'systemd-private-*' \) -prune -o -print | sort
	find /run /tmp -not -path '/run/udev/*' -not -path '/run/systemd/*' -not -path '/run/user*' -not -path '/run/log/*' -not -path '*systemd-private*' | sort
)
kept() { sysctl -a 2>/dev/null | grep -E '^(net\.(ipv4|ipv6|bridge|netfilter)|vm\.(over|panic)|kernel\.(panic|keys))' | grep -vE 'conf\.(cni|veth|eth)|neigh|_count|nf_conntrack_(max|buckets)|random' | sort; }
GUEST
}

step_boot() {
	{ "$VM" ssh "$NAME" true || "$VM" start "$NAME" "$MEMORY"; } && "$VM" ssh "$NAME" 'rm -rf /root/k; mkdir -p /root/k' && "$VM" put "$NAME" "$BIN" /root/k/kubelith && "$VM" put "$NAME" scripts/install.sh scripts/uninstall.sh manifests/hello.yaml /root/k/ &&
		for package in ${PACKAGES:-}; do "$VM" put "$NAME" "$package" /root/p.deb && "$VM" ssh "$NAME" 'dpkg -i p.deb; rm p.deb'; done &&
		{ "$VM" ssh "$NAME" test -e /etc/protocols || "$VM" put "$NAME" /etc/protocols /etc/protocols; } &&
		guest <<'E'
# The machine has no other network than its host. A real one has a way out, and ClusterIPs need a route on the node itself.
ip route show default | grep -q . || { printf '[Route]\nGateway=10.0.2.2\n' >>/etc/systemd/network/10-eth0.network; networkctl reload; networkctl reconfigure eth0; sleep 3; }
ip route show default | grep -q . || fail "no default route"
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
[ "$(systemctl show kubelith -p StatusText --value)" = "all components are ready" ] || fail "started before it was ready"
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
$k logs job/hello-by-name | grep -q 'Hello from Kubelith' || fail "no answer by name"
service | grep -q 'Hello from Kubelith' || fail "no answer from the Service"
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
step_oom() { guest <<'E'
# The image has no program that takes memory: tail comes from the guest.
$k apply -f - <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers:
    - {name: tail, image: kubelith/hello:1, command: [/usr/bin/tail, /dev/zero], resources: {limits: {memory: 32Mi}}, volumeMounts: [{name: usr, mountPath: /usr, readOnly: true}, {name: lib, mountPath: /lib64, readOnly: true}, {name: l, mountPath: /lib, readOnly: true}]}
  volumes: [{name: usr, hostPath: {path: /usr}}, {name: lib, hostPath: {path: /usr/lib64}}, {name: l, hostPath: {path: /usr/lib}}]
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
journalctl -u kubelith -o cat --no-pager _COMM=kubelith | grep -v component= | cut -c1-150 | head -3
[ "$parts" -gt 5 ] || fail "only $parts components in the journal"
echo "$with of $all lines have component=, $parts components"
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
# The shims are in the unit's control group: only the main process is meant.
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
step_reboot() {
	guest <<<'containers >before.list; no_leaks; cat /proc/sys/kernel/random/boot_id >before.boot' && "$VM" stop "$NAME" && "$VM" start "$NAME" "$MEMORY" && came_back
}
came_back() { guest <<'E'
[ "$(cat /proc/sys/kernel/random/boot_id)" != "$(cat before.boot)" ] || fail "it did not reboot"
POLL=1 until_true 400 systemctl is-active -q kubelith || fail "$(systemctl status kubelith --no-pager)"; up=$(cut -d. -f1 /proc/uptime)
until_true 120 node_ready || fail "not Ready: $($k get nodes)"
# Until the kubelet has told it, the status of the pods is that of before.
POLL=1 until_true 400 sh -c '[ $(pidof hello | wc -w) -ge 3 ]' && wait_hello || fail "$($k get pods -o wide)"
ready=$(cut -d. -f1 /proc/uptime)
until_true 120 service || fail "the Service does not answer"
until_true 60 no_leaks || no_leaks
echo "unit active $up s and pods Ready $ready s after the boot, restarts $($k get pods -l app=hello -o jsonpath='{.items[*].status.containerStatuses[0].restartCount}'), $(no_leaks)"
E
}
step_plug() {
	guest <<<'cat /proc/sys/kernel/random/boot_id >before.boot; sync'
	# What the server acknowledged is noted here, outside of the machine.
	guest >"$LOGS/acknowledged" 2>/dev/null <<'E' &
for w in 1 2 3; do (for i in $(seq 1 500); do $k create configmap plug-$w-$i --from-literal=i=$i -o name || true; done) & done; wait
E
	local writer=$!
	for _ in $(seq 120); do [ "$(wc -l <"$LOGS/acknowledged")" -ge 15 ] && break; sleep 1; done
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

failed=0
if [ $# -gt 0 ]; then list=("$@") KEEP=yes; else read -ra list <<<"$STEPS"; fi
for step in "${list[@]}"; do
	declare -F "step_$step" >/dev/null || usage
	start=$SECONDS
	if "step_$step" >"$LOGS/$step.log" 2>&1; then result=ok; else result=FAILED failed=1; fi
	printf '%-6s %4d s  %-12s %s\n' "$result" $((SECONDS - start)) "$step" "$(tail -n 1 "$LOGS/$step.log")"
done
if [ "${KEEP:-}" != yes ]; then "$VM" rm "$NAME"; fi
exit $failed
