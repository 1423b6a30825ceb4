#!/bin/bash
# vm-nodes-test.sh VM [STEP...]: try a cluster of a server and an agent on two machines, each with its own kernel: what
# namespaces of one kernel cannot show, such as a cable that is cut and a plug that is pulled.
#
# VM is a program that creates virtual machines, as for vm-test.sh, on one Ethernet: `VM ip NAME`, `VM cut NAME` and `VM
# join NAME` are needed as well. All steps run in the order below, one line each with the seconds they took; with STEPs,
# only these. A step that fails does not stop the others. The output of the machines is in .cache/vm-nodes-test/.
# KEEP=yes leaves them running; MEMORY is the MiB of each. provision.sh, which Vagrant runs too, makes the machines
# nodes.
# shellcheck disable=SC2317,SC2329 # the steps are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
STEPS="boot server refused clock join pods streams restart away wireguard partition plug leave"
. scripts/vm-steps.sh
SERVER=${NAME:-kubelith}-server AGENT=${NAME:-kubelith}-agent MEMORY=${MEMORY:-3072}

# on MACHINE: runs the script on stdin there, after the functions of vm-guest.sh, vm-nodes-guest.sh and this test; the last line it prints is
# the result.
on() {
	{ cat scripts/vm-guest.sh scripts/vm-nodes-guest.sh; functions; cat; } | "$VM" ssh "$1" 'cat >step.sh; bash step.sh </dev/null'
}
functions() {
	echo "server=$("$VM" ip "$SERVER") agent=$("$VM" ip "$AGENT")"
	cat <<'GUEST'
# refused TOKENFILE REASON: the agent does not join, reports why, and leaves nothing.
refused() {
	local why since
	since=$(date +%s)
	if sh k/provision.sh agent $agent https://$server:6443 "$1" >refused.log 2>&1; then fail "joined with $1"; fi
	systemctl stop kubelith-agent
	why=$(journalctl -u kubelith-agent --since "@$since" -o cat --no-pager _COMM=kubelith | grep "$2" | tail -n 1)
	[ -n "$why" ] || fail "refused for another reason: $(journalctl -u kubelith-agent --since "@$since" -o cat --no-pager | tail -n 5)"
	[ ! -e /var/lib/kubelith/agent ] && [ ! -e /var/lib/kubelith/data ] || fail "left: $(find /var/lib/kubelith | head)"
	[ "$(ls /sys/class/net | tr '\n' ' ')" = "eth0 eth1 lo " ] || fail "left: $(ls /sys/class/net)"
	echo "refused: $why"
}
GUEST
}

# up MACHINE: boots it, with all that is needed in /root/k.
up() {
	reachable "$1" || "$VM" start "$1" "$MEMORY" || return
	"$VM" ssh "$1" 'rm -rf k; mkdir k' && "$VM" put "$1" "$BIN" /root/k/kubelith &&
		"$VM" put "$1" scripts/install.sh scripts/uninstall.sh scripts/provision.sh /root/k/ &&
		{ "$VM" ssh "$1" test -e /etc/protocols || "$VM" put "$1" /etc/protocols /etc/protocols; } &&
		on "$1" <<'E'
way_out
echo "$(hostname), kernel $(uname -r), boot $(cut -c1-8 /proc/sys/kernel/random/boot_id)"
E
}
step_boot() {
	up "$SERVER" && up "$AGENT" && on "$AGENT" <<'E'
ping -c 3 -i 0.3 -q $server | tee ping.log
system >before.system
echo "two kernels, $(awk -F'[/ ]' '/^rtt/ { print $8 }' ping.log) ms between them"
E
}
step_server() { on "$SERVER" <<'E'
t=$(uptime_s); sh k/provision.sh server $server; until_true 200 node_ready || fail "$(nodes)"
[ "$(stat -c %a /var/lib/kubelith/server/token)" = 600 ] || fail "the token can be read by others"
echo "installed and Ready in $(since $t)"
E
}
# token: the server's goes to the agent as a person would copy it, not over the cluster.
token() { "$VM" ssh "$SERVER" 'cat /var/lib/kubelith/server/token' | "$VM" ssh "$AGENT" 'umask 077; cat >token; wc -c <token'; }
step_refused() {
	token && on "$AGENT" <<'E'
sed 's/.$/x/; t' token >wrong; cmp -s token wrong && sed -i 's/.$/y/' wrong
refused wrong secret
E
}
# clock: the agent's is an hour late, then an hour early.
step_clock() {
	token && on "$AGENT" <<'E'
timedatectl set-ntp false 2>/dev/null || true
date -s '1 hour ago' >/dev/null; late=$(refused token "the clock of this machine is 1h") || { date -s '1 hour' >/dev/null; fail "$late"; }
date -s '2 hours' >/dev/null; early=$(refused token "the clock of this machine is 1h") || { date -s '1 hour ago' >/dev/null; fail "$early"; }
date -s '1 hour ago' >/dev/null
echo "$late; $early"
E
}
step_join() {
	token && on "$AGENT" <<'E' && on "$SERVER" <<'F'
t=$(uptime_s); sh k/provision.sh agent $agent https://$server:6443 token; rm token
[ "$(systemctl is-active kubelith-agent)" = active ] && [ "$(systemctl is-enabled kubelith-agent)" = enabled ] || fail "$(systemctl status kubelith-agent --no-pager)"
echo "active after $(since $t)" | tee joined
E
t=$(uptime_s); until_true 200 nodes_ready || fail "$(nodes)"
took=$(since $t); nodes
[ "$($k get node $(agent_node) -o jsonpath='{.status.addresses[?(@.type=="InternalIP")].address}')" = $agent ] || fail "the agent has another address"
echo "two nodes Ready $took after the agent's unit was"
F
}
step_pods() { on "$SERVER" <<'E'
everywhere
until_true 300 everywhere_ready || fail "$($k get pods -o wide; $k get events)"
$k get pods -o wide
ways=$(reached 120)
for node in $server $agent; do for i in 1 2 3 4; do curl -sf --max-time 20 http://$node:30080/ | grep Hello >/dev/null || fail "no answer at the port of $node"; done; done
link=$(ip -o link show type vxlan | awk -F': ' '{ print $2 }')
echo "$ways, the port of both nodes; $link carried $(cat /sys/class/net/${link:-lo}/statistics/rx_packets) packets"
E
}
step_streams() { on "$SERVER" <<'E'
p=$(pod_on $(agent_node) metadata.name)
until_true 100 sh -c "$k logs $p | grep -q ." || fail "no log of $p"
asks $p http://127.0.0.1:8080/ | grep Hello >/dev/null || fail "no answer of exec"
$k port-forward pod/$p 8088:8080 >forward.log 2>&1 & forward=$!
until_true 60 curl -sf --max-time 5 http://127.0.0.1:8088/ || { kill $forward; fail "$(cat forward.log)"; }
kill $forward
echo "logs, exec and port-forward of $p on $(agent_node)"
E
}
step_restart() {
	on "$AGENT" <<'E' && on "$SERVER" <<'F'
containers >before.list
t=$(uptime_s); systemctl restart kubelith-agent; echo "restart of the agent took $(since $t), $(unchanged)"
E
until_true 200 nodes_ready || fail "$(nodes)"
reached 120
F
}
# away: the server stops; the agent's pods go on, also over a restart of the agent; then the server is back.
step_away() {
	on "$SERVER" <<<'systemctl stop kubelith; [ "$(systemctl is-active kubelith || true)" = inactive ]' && on "$AGENT" <<'E' && on "$SERVER" <<'F'
containers >before.list
t=$(uptime_s); systemctl restart kubelith-agent; took=$(since $t)
[ "$(systemctl is-active kubelith-agent)" = active ] || fail "the agent does not start without the server: $(systemctl status kubelith-agent --no-pager)"
for i in 1 2 3 4; do curl -sf --max-time 20 http://$agent:30080/ | grep Hello >/dev/null || fail "the Service does not answer while the server is away"; done
echo "without the server: agent started in $took, $(unchanged), the Service answers"
E
t=$(uptime_s); systemctl start kubelith
until_true 300 nodes_ready || fail "$(nodes)"; took=$(since $t)
ways=$(reached 120)
echo "both nodes Ready $took after the server's start, $ways"
F
}
# wireguard: the backend changes under running pods. Two nodes with a kernel each: pods reach each other, what leaves the server is
# encrypted, and the tunnel does without the process.
step_wireguard() {
	on "$SERVER" <<'E' && on "$AGENT" <<'F' && on "$SERVER" <<'G'
grep -q '^network: wireguard' /etc/kubelith/config.yaml || echo 'network: wireguard' >>/etc/kubelith/config.yaml
systemctl restart kubelith
until_true 200 ip link show kubelith-wg || fail "no device: $(journalctl -u kubelith -o cat --no-pager | tail -n 20)"
E
until_true 200 ip link show kubelith-wg || fail "no device: $(journalctl -u kubelith-agent -o cat --no-pager | tail -n 20)"
[ ! -e /sys/class/net/flannel.1 ] || fail "flannel.1 is still there"
F
[ ! -e /sys/class/net/flannel.1 ] || fail "flannel.1 is still there"
[ "$(stat -c %a /var/lib/kubelith/agent/wireguard.key)" = 600 ] || fail "others may read the private key"
nft delete table inet wire 2>/dev/null || true
nft -f - <<'N'
table inet wire {
	counter sealed { }
	counter plain { }
	chain out {
		type filter hook postrouting priority 300;
		oifname "eth*" udp dport 51820 counter name sealed
		oifname "eth*" ip saddr 10.42.0.0/16 counter name plain
		oifname "eth*" ip daddr 10.42.0.0/16 counter name plain
		oifname "eth*" udp dport 8472 counter name plain
	}
}
N
packets() { nft list counter inet wire $1 | awk '/packets/ { print $2 }'; }
through() { cat /sys/class/net/kubelith-wg/statistics/tx_packets; }
ways=$(reached 300)
first=$(packets sealed) sent=$(through)
ways=$(reached 60)
carried=$(($(through) - sent)) sealed=$(($(packets sealed) - first))
[ $carried -gt 20 ] && [ $sealed -ge $carried ] || fail "$carried packets entered the device, $sealed encrypted ones left"
# Without the process: the kernel sends from pod to pod. The unit must not start it again meanwhile.
p=$(pod_on $(server_node) metadata.name) to=$(pod_on $(agent_node) status.podIP) pid=$(pid_of_hello)
device=$(cat /sys/class/net/kubelith-wg/ifindex)
mkdir -p /run/systemd/system/kubelith.service.d; printf '[Service]\nRestart=no\n' >/run/systemd/system/kubelith.service.d/wire.conf; systemctl daemon-reload
systemctl kill -s KILL --kill-who=main kubelith
until_true 30 sh -c '! pidof kubelith' || fail "the server did not end"
dead=0
for i in $(seq 20); do nsenter -t $pid -n curl -sf --max-time 5 http://$to:8080/ | grep Hello >/dev/null && dead=$((dead + 1)); done
rm -r /run/systemd/system/kubelith.service.d; systemctl daemon-reload
[ $dead = 20 ] || fail "without the server $dead of 20 requests to the other node's pod were answered"
systemctl start kubelith; until_true 300 nodes_ready || fail "$(nodes)"
ways=$(reached 200)
[ "$(cat /sys/class/net/kubelith-wg/ifindex)" = $device ] || fail "the start made another device"
[ "$(packets plain)" = 0 ] || fail "$(packets plain) packets of pods left in plain text"
nft delete table inet wire
echo "$ways; $carried packets into the tunnel, $sealed encrypted ones out, none in plain text; $dead of 20 requests answered after kill -9"
G
}
# partition: the cable of the agent is cut until its node is no longer Ready.
step_partition() {
	on "$AGENT" <<<'containers >before.list' && "$VM" cut "$AGENT" && on "$SERVER" <<'E'
t=$(uptime_s); until_true 200 agent_lost || fail "$(nodes)"
took=$(since $t)
pod=$(pod_on $(server_node) metadata.name); asks $pod http://127.0.0.1:8080/ | grep Hello >/dev/null || fail "the server's own pod"
echo "NotReady $took after the cut"
E
	local cut=$?
	on "$AGENT" <<'E' || cut=1
kept=$(unchanged)
[ "$(systemctl is-active kubelith-agent)" = active ] || fail "the agent ended"
echo "$kept"
E
	"$VM" join "$AGENT" && on "$SERVER" <<'E' || cut=1
t=$(uptime_s); until_true 300 nodes_ready || fail "$(nodes)"; took=$(since $t)
ways=$(reached 200)
echo "Ready $took after the cable was back, $ways"
E
	on "$AGENT" <<<'unchanged' || cut=1
	return $cut
}
# plug: the agent's machine loses its power and comes back; it joins with what it has on disk.
step_plug() {
	on "$AGENT" <<<'cat /proc/sys/kernel/random/boot_id >before.boot; sync' && "$VM" kill "$AGENT" || return
	for _ in $(seq 20); do "$VM" start "$AGENT" "$MEMORY" && break; sleep 1; done # it takes the machine a moment to be gone
	on "$AGENT" <<'E' && on "$SERVER" <<'F'
[ "$(cat /proc/sys/kernel/random/boot_id)" != "$(cat before.boot)" ] || fail "it did not boot again"
POLL=1 until_true 400 systemctl is-active -q kubelith-agent || fail "$(systemctl status kubelith-agent --no-pager)"
up=$(cut -d. -f1 /proc/uptime)
POLL=1 until_true 400 sh -c '[ $(pidof hello | wc -w) -ge 1 ]' || fail "its pod does not come back"
until_true 60 no_leaks || no_leaks
echo "unit active $up s after the boot, pod back after $(cut -d. -f1 /proc/uptime) s, $(no_leaks)"
E
until_true 300 nodes_ready || fail "$(nodes)"; until_true 300 everywhere_ready || fail "$($k get pods -o wide)"
ways=$(reached 200)
echo "after a pulled plug: $ways"
F
}
# leave: the agent is uninstalled; nothing of it remains on its machine.
step_leave() {
	on "$AGENT" <<'E' && on "$SERVER" <<'F'
t=$(uptime_s); sh k/uninstall.sh --yes >uninstall.log 2>&1 || { cat uninstall.log; fail "uninstall failed"; }; took=$(since $t)
tail -n 1 uninstall.log
[ ! -e /etc/kubelith ] || fail "left: $(ls /etc/kubelith)"
sleep 3; system >after.system
diff before.system after.system >system.diff || { cat system.diff; fail "$(grep -c '^[<>]' system.diff) differences to before the join"; }
echo "uninstalled in $took; mounts, network, packet filter, cgroups, units, processes and files as before"
E
a=$(agent_node); $k delete node $a >/dev/null
until_true 200 sh -c "[ \$($k get pods -l app=everywhere -o name | wc -l) = 1 ]" || fail "$($k get pods -o wide)"
node_ready || fail "$(nodes)"
echo "$a left; the server goes on"
F
}

run_steps "$SERVER $AGENT" "$@"
