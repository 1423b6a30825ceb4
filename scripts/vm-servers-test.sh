#!/bin/bash
# vm-servers-test.sh VM [STEP...]: three servers on three machines, each with a kernel, a clock and a plug of its own, and a fourth machine
# whose clients write to them meanwhile (TestMachines of integration/servers): no acknowledged write may be lost.
#
# VM is a program that makes virtual machines, as for vm-nodes-test.sh. NEXT is a second build of Kubelith, for the step upgrade. All steps
# run in the order below, one line each; with STEPs, only these. FAULTS is what is done to the server that leads; CLOCKS are how far a clock
# is set off (`date -s`); PULLS is how often a plug is pulled: a random one, and each third time (ALL) all at once. What the machines said is in
# .cache/vm-servers-test/. KEEP=yes leaves them running; MEMORY is the MiB of a server.
# shellcheck disable=SC2317,SC2329 # the steps are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
STEPS="boot first join faults clock plugs upgrade"
. scripts/vm-steps.sh
PREFIX=${NAME:-kubelith} MEMORY=${MEMORY:-2560} PULLS=${PULLS:-20} ALL=${ALL:-3} FAULTS=${FAULTS:-kill pause deaf mute cut slow full}
SERVERS=("$PREFIX-1" "$PREFIX-2" "$PREFIX-3") CLIENT=$PREFIX-client

# on MACHINE: runs the script on stdin there, after the functions of vm-guest.sh and this test; the last line it prints is the result.
on() {
	{ cat scripts/vm-guest.sh; functions; cat; } | "$VM" ssh "$1" 'cat >/run/step.sh && bash /run/step.sh </dev/null'
}
functions() {
	echo "first=$("$VM" ip "${SERVERS[0]}")"
	cat <<'GUEST'
all_ready() { [ "$($k get nodes -o jsonpath='{range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}')" = "True True True " ]; }
all_answer() { kubelith etcd status >status && [ "$(grep -c ' yes$' status)" = 3 ] && [ "$(grep -c 'leader' status)" = 1 ]; }
write() { $k create configmap "written-$(date +%s%N)" --from-literal=a=b; } # by another name each time: an answer may be lost
main_pid() { systemctl show -p MainPID --value kubelith; }
GUEST
}
# power MACHINE: one whose plug was pulled may not have ended yet, and then takes more time to boot than VM waits.
power() {
	for _ in $(seq 60); do
		{ "$VM" start "$1" "$MEMORY" || reachable "$1"; } && return
		sleep 5
	done
	return 1
}
# up MACHINE: boots it, with all that is needed in /root/k.
up() {
	reachable "$1" || power "$1" || return
	"$VM" ssh "$1" 'rm -rf k; mkdir k' && "$VM" put "$1" "$BIN" /root/k/kubelith &&
		"$VM" put "$1" scripts/install.sh scripts/uninstall.sh scripts/provision.sh /root/k/ &&
		{ "$VM" ssh "$1" test -e /etc/protocols || "$VM" put "$1" /etc/protocols /etc/protocols; } &&
		on "$1" <<'E'
way_out
timedatectl set-ntp false 2>/dev/null || true
E
}
step_boot() {
	local s
	go test -c -o "$LOGS/servers.test" ./integration/servers || return
	reachable "$CLIENT" || MEMORY=768 power "$CLIENT" || return
	"$VM" ssh "$CLIENT" 'rm -rf k; mkdir k' && "$VM" put "$CLIENT" "$LOGS/servers.test" k/ || return
	for s in "${SERVERS[@]}"; do up "$s" || return; done
	echo "three servers' machines and a client's"
}
step_first() { { echo "address=$("$VM" ip "${SERVERS[0]}")"; cat <<'E'
t=$(uptime_s); sh k/provision.sh server $address; until_true 400 node_ready || fail "$($k get nodes)"
echo "installed and Ready in $(since $t)"
E
} | on "${SERVERS[0]}"; }
# join: each by a token of its own.
step_join() {
	local s
	for s in "${SERVERS[@]:1}"; do
		"$VM" ssh "${SERVERS[0]}" 'kubelith token create --usages server' | "$VM" ssh "$s" 'umask 077; cat >token' &&
			{ echo "address=$("$VM" ip "$s")"; cat <<'E'; } | on "$s" || return
printf 'apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nnodeIP: [%s]\n' $address >config; mkdir -p /etc/kubelith; mv config /etc/kubelith/config.yaml
sh k/install.sh --server https://$first:6443 --token-file token k/kubelith; rm token
E
	done
	on "${SERVERS[0]}" <<'E' || return
until_true 600 all_ready || fail "$($k get nodes -o wide)"
until_true 200 all_answer || fail "$(cat status)"
$k get nodes -o wide; cat status
echo "three servers Ready"
E
	# The client's machine has the administrator's kubeconfig of each.
	for s in "${SERVERS[@]}"; do
		"$VM" ssh "$s" 'kubelith kubectl config view --raw' | sed "s#server: https://.*#server: https://$("$VM" ip "$s"):6443#" |
			"$VM" ssh "$CLIENT" "umask 077; cat >k/$s" || return
	done
}
# record, and check: what the clients do between them must be one history.
record() {
	local list
	list=$(printf ':k/%s' "${SERVERS[@]}")
	"$VM" ssh "$CLIENT" "rm -f until; echo >history.log; KUBELITH_MACHINES=${list#:} KUBELITH_MACHINES_UNTIL=until KUBELITH_TEST_PATIENCE=10 setsid -f k/servers.test -test.v -test.timeout 0 -test.run 'TestMachines\$' >history.log 2>&1 </dev/null"
	for _ in $(seq 60); do "$VM" ssh "$CLIENT" pgrep servers.test >/dev/null && return; sleep 1; done
	return 1
}
check() {
	# shellcheck disable=SC2016 # the guest expands it
	"$VM" ssh "$CLIENT" 'touch until; n=0; while pgrep servers.test >/dev/null && [ $n -lt 900 ]; do sleep 1; n=$((n + 1)); done; cat history.log; grep -q "^--- PASS" history.log' >"$LOGS/history.log"
	local result=$?
	cat "$LOGS/history.log"
	return $result
}
history() { sed -n 's/^.*history: //p' "$LOGS/history.log"; }
# The machine whose etcd leads. An election may be under way, or a busy machine late with its answer.
leader() {
	local role s
	for _ in $(seq 60); do
		for s in "${SERVERS[@]}"; do
			role=$("$VM" ssh "$s" "kubelith etcd status | awk -v ip=$("$VM" ip "$s") '\$2 ~ ip { print \$3 }'" 2>/dev/null)
			[ "$role" != leader ] || { echo "$s"; return; }
		done
		sleep 2
	done
	return 1
}
# The faults of step_faults: fault_NAME prints what begins it on the machine, and the function `end` that ends it.
# shellcheck disable=SC2016 # the guest expands it
fault_kill() { echo 'systemctl kill --kill-whom=main -s KILL kubelith'; echo 'end() { :; }'; }
# shellcheck disable=SC2016
fault_pause() { echo 'kill -STOP $(main_pid)'; echo 'end() { kill -CONT $(main_pid); }'; }
# deaf: it does not hear the others, and they hear it. mute: the reverse.
fault_deaf() {
	echo 'nft "add table inet fault; add chain inet fault in { type filter hook input priority -300; }; add rule inet fault in iifname eth1 drop"'
	echo 'end() { nft delete table inet fault; }'
}
fault_mute() {
	echo 'nft "add table inet fault; add chain inet fault out { type filter hook output priority 300; }; add rule inet fault out oifname eth1 drop"'
	echo 'end() { nft delete table inet fault; }'
}
fault_slow() {
	echo 'systemctl set-property --runtime kubelith "IOWriteIOPSMax=/var/lib/kubelith 5"'
	echo 'end() { systemctl set-property --runtime kubelith IOWriteIOPSMax=; }'
}
# shellcheck disable=SC2016
fault_full() {
	echo 'dd if=/dev/zero of=/fill bs=1M 2>/dev/null || true; df / | tail -n 1'
	echo 'end() { rm -f /fill; }'
}
# faults: one after the other, on the machine that leads, for a minute each; cut takes its network away for 70 s. The others go on meanwhile, and
# all three afterwards. Only a killed server, and one whose disk was full, may have another process then.
step_faults() {
	local fault leader other s result=0
	record || return
	for fault in $FAULTS; do
		leader=$(leader) || { echo "$fault: no server leads"; result=1; break; }
		for s in "${SERVERS[@]}"; do [ "$s" = "$leader" ] || other=$s; done
		echo 'main_pid >pid' | on "$leader" || result=1
		if [ "$fault" = cut ]; then "$VM" cut "$leader"; else "fault_$fault" | grep -v '^end()' | on "$leader"; fi || result=1
		on "$other" <<'E' || result=1
t=$(uptime_s); POLL=0.2 until_true 300 write || fail "nothing can be written"
echo "written after $(since $t)"
E
		[ "$fault" = kill ] || sleep 60
		if [ "$fault" = cut ]; then
			sleep 10
			"$VM" join "$leader" || result=1
		else
			{ "fault_$fault" | grep '^end()'; echo end; } | on "$leader" || result=1
		fi
		on "$other" <<'E' || result=1
t=$(uptime_s); until_true 600 all_answer || fail "$(cat status)"
until_true 600 all_ready || fail "$($k get nodes)"
echo "all there after $(since $t)"
E
		if [ "$fault" != kill ] && [ "$fault" != full ]; then
			on "$leader" <<'E' || result=1
[ "$(main_pid)" = "$(cat pid)" ] || fail "the process has ended: $(journalctl -u kubelith -o cat --no-pager | tail -n 20)"
E
		fi
		echo "$leader: $fault, $(date +%T)"
	done
	check || result=1
	echo "$FAULTS: $(history)"
	return $result
}
# clock: that of a follower, then that of the leader, is off for a minute. Its process goes on, and no node is lost for the others. (Programs on the
# machine itself may refuse certificates that are younger than its clock.)
step_clock() {
	local leader follower other s off result=0
	leader=$(leader) || return
	for s in "${SERVERS[@]}"; do [ "$s" = "$leader" ] || { other=${follower:-}; follower=$s; }; done
	record || return
	for off in ${CLOCKS:-+1hour -1hour}; do
		for s in "$follower" "$leader"; do
			"$VM" ssh "$s" "systemctl show -p MainPID --value kubelith >pid; date -s '${off/hour/ hour}'" || result=1
			on "$other" <<'E' || result=1
sleep 60
lost=0; for i in 1 2 3 4 5 6; do all_ready && all_answer || lost=$((lost + 1)); sleep 5; done
$k create configmap "clock-$RANDOM" --from-literal=a=b || fail "nothing can be written"
echo "$lost of 6 looks saw a node or a member missing"
E
			{ echo "back='$(tr '+-' '-+' <<<"${off/hour/ hour}")'"; cat <<'E'; } | on "$s" || result=1
date -s "$back" >/dev/null; sleep 10
[ "$(main_pid)" = "$(cat pid)" ] || fail "the process has ended"
until_true 100 all_ready && until_true 100 all_answer || fail "$($k get nodes; cat status)"
E
			echo "$s: its clock was off by $off"
		done
	done
	check || result=1
	echo "a follower's and the leader's clock, ${CLOCKS:-an hour ahead and behind}: $(history)"
	return $result
}
# plugs: what the machine has not written to its disk is lost.
step_plugs() {
	local n s pulled all=0 result=0
	record || return
	for n in $(seq "$PULLS"); do
		if [ $((n % ALL)) = 0 ]; then pulled=("${SERVERS[@]}") all=$((all + 1)); else pulled=("${SERVERS[RANDOM % 3]}"); fi
		sleep $((RANDOM % 10))
		for s in "${pulled[@]}"; do "$VM" kill "$s" & done
		wait
		sleep 1
		for s in "${pulled[@]}"; do power "$s" & done
		wait
		on "${SERVERS[0]}" <<'E' || { result=1; break; }
until_true 900 all_answer || fail "$(cat status; journalctl -u kubelith -o cat --no-pager | tail -n 20)"
E
		for s in "${SERVERS[@]}"; do
			on "$s" <<'E' || result=1
until_true 600 write || fail "$(hostname) does not write"
E
		done
		echo "pull $n: ${pulled[*]}, $(date +%T)"
		[ $result = 0 ] || break
	done
	check || result=1
	echo "$n pulls, $all of all three at once: $(history)"
	return $result
}
# upgrade: the whole cluster by one command, under systemd, while clients write.
step_upgrade() {
	local result=0
	[ -n "${NEXT:-}" ] || { echo "no NEXT: left out"; return; }
	"$VM" put "${SERVERS[0]}" "$NEXT" /root/k/next && record || return
	on "${SERVERS[0]}" <<'E' || result=1
t=$(uptime_s); kubelith upgrade k/next --cluster --within 15m || fail "the upgrade failed"
took=$(since $t)
until_true 400 all_ready && until_true 200 all_answer || fail "$($k get nodes; cat status)"
[ "$($k get nodes -o jsonpath='{.items[*].metadata.labels.kubelith\.io/version}' | tr ' ' '\n' | sort -u | wc -l)" -le 1 ] || fail "$($k get nodes --show-labels)"
cmp k/next /usr/local/bin/kubelith || fail "another program is installed"
echo "took $took"
E
	for s in "${SERVERS[@]}"; do
		on "$s" <<'E' || result=1
kubelith version >version; grep -e -next version || fail "$(hostname) has $(cat version)"
[ "$(systemctl is-active kubelith)" = active ]
E
	done
	check || result=1
	echo "three servers by one command: $(history)"
	return $result
}

run_steps "${SERVERS[*]} $CLIENT" "$@"
