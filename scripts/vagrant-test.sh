#!/bin/bash
# vagrant-test.sh: test scripts/Vagrantfile as a user runs it: `vagrant up` with a server and an agent, a pod on each, `vagrant provision`
# with another version while they run, `vagrant destroy`. Needs root and Debian's packages, which it installs; no KVM, no systemd.
#
# libvirt, its networks and its machines run in their own namespaces with their own files: this machine's libvirt, if it has one, is
# not affected, and nothing remains. The box (vagrant-box.sh) and the logs of the steps are kept in .cache/vagrant-test/.
# BIN is the first version (bin/kubelith), NEXT the upgrade (built by `make vagrant-test`), DRIVER libvirt's driver: qemu or kvm.
# KEEP=yes destroys nothing and waits, also after a failed step.
# shellcheck disable=SC2317,SC2329 # the steps are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
STEPS="libvirt up pods provision"
[ "${KEEP:-}" = yes ] || STEPS+=" destroy"
WORK=$PWD/.cache/vagrant-test
RUN=$WORK/run # of one run only
BIN=${BIN:-bin/kubelith} NEXT=${NEXT:-$WORK/kubelith-next} DRIVER=${DRIVER:-qemu} BOX_FILE=$WORK/debian.box
DIRECTORIES="/etc/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt"
die() {
	echo "vagrant-test: $*" >&2
	exit 1
}

# outside: prepares what needs the network and the disk of this machine, runs the rest in namespaces, and removes what
# it created.
outside() {
	[ "$(id -u)" -eq 0 ] || die "needs root"
	for file in "$BIN" "$NEXT"; do [ -f "$file" ] || die "no $file: run make vagrant-test"; done
	mkdir -p "$WORK"
	exec 9>"$WORK/lock"
	flock -n 9 || die "already running (lock $WORK/lock)"
	# libvirt-daemon-system, which would start a daemon for all, is not needed.
	scripts/deps.sh vagrant-libvirt libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients dnsmasq-base iptables \
		qemu-system-x86 qemu-utils debootstrap openssh-client || exit
	scripts/vagrant-box.sh "$BOX_FILE" || exit

	namespaces=
	# They are places to mount at. A run that was killed may have left some, and their names.
	for directory in $DIRECTORIES; do [ -e "$directory" ] || { mkdir -p "$directory" && echo "$directory" >>"$WORK/made"; }; done
	trap clean EXIT
	trap 'exit 130' INT TERM HUP
	# Whatever ends this script, or the process that becomes the first of its namespace, ends all of them.
	setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc bash scripts/vagrant-test.sh inside &
	namespaces=$!
	wait "$namespaces"
}
clean() {
	if [ -n "$namespaces" ]; then
		kill -KILL "$namespaces" 2>/dev/null
		wait "$namespaces" 2>/dev/null
	fi
	rm -rf --one-file-system "$RUN"
	[ ! -f "$WORK/made" ] || { xargs rmdir <"$WORK/made" && rm "$WORK/made"; }
}

# inside: all the steps, with their own mounts, network and processes.
inside() {
	private || exit
	local step start log pid said=$SECONDS failed=0
	for step in $STEPS; do
		start=$SECONDS log=$WORK/$step.log
		"step_$step" >"$log" 2>&1 &
		pid=$!
		while kill -0 "$pid" 2>/dev/null; do
			sleep 1
			[ $((SECONDS - said)) -lt 30 ] || { said=$SECONDS && printf '       %4d s  %-10s %.120s\n' $((SECONDS - start)) "$step" "$(tr '\r' '\n' <"$log" | tail -n 1)"; }
		done
		if ! wait "$pid"; then
			# What libvirt refused, or Vagrant's error in front of its stack trace, or the last line.
			printf 'FAILED %4d s  %-10s %s\n' $((SECONDS - start)) "$step" "$(grep -m 1 -oE 'Call to vir.*|.*Error\)$' "$log" || tail -n 1 "$log")"
			echo "logs: $WORK/*.log"
			failed=1
			break
		fi
		printf 'ok     %4d s  %-10s %s\n' $((SECONDS - start)) "$step" "$(tail -n 1 "$log")"
	done
	if [ "${KEEP:-}" = yes ]; then
		echo "everything runs until this script ends; to enter: nsenter -a -t \$(pgrep -f 'vagrant-test.sh inside' | sed -n 2p)"
		sleep infinity
	fi
	return $failed
}

# private: libvirt's directories, and those that list who is on this machine, are ours and begin empty.
private() {
	rm -rf --one-file-system "$RUN"
	mkdir -p "$RUN"/{home,tree/scripts,tree/bin,host/etc} &&
		ip link set lo up && mount -t tmpfs tmpfs /run &&
		umount --recursive --lazy /sys && mount -t sysfs sysfs /sys || return # the interfaces of our namespace, and no control groups
	local path
	for path in $DIRECTORIES; do
		mkdir -p "$RUN/host$path" && mount --bind "$RUN/host$path" "$path" || return
	done
	# Debian's libvirt wants this user, even where the machines are root's.
	cp /etc/passwd /etc/group "$RUN/host/etc/" || return
	grep -q '^libvirt-qemu:' /etc/passwd || echo 'libvirt-qemu:x:64055:64055::/:/bin/false' >>"$RUN/host/etc/passwd"
	grep -q '^libvirt-qemu:' /etc/group || echo 'libvirt-qemu:x:64055:' >>"$RUN/host/etc/group"
	for path in /etc/passwd /etc/group; do mount --bind "$RUN/host$path" "$path" || return; done
	printf '%s\n' 'user = "root"' 'group = "root"' 'security_driver = "none"' 'stdio_handler = "file"' 'namespaces = []' >/etc/libvirt/qemu.conf
	export VAGRANT_HOME=$RUN/home VAGRANT_DEFAULT_PROVIDER=libvirt VAGRANT_CHECKPOINT_DISABLE=1 AGENTS=1 BOX=kubelith-test
	# What emulated machines need in addition to scripts/Vagrantfile.
	cat >"$VAGRANT_HOME/Vagrantfile" <<-VAGRANTFILE
		Vagrant.configure("2") do |config|
		  config.vm.boot_timeout = 900
		  config.vm.provider(:libvirt) { |v| v.driver, v.cpu_mode, v.graphics_type = "$DRIVER", "maximum", "none" }
		end
	VAGRANTFILE
	cp scripts/{Vagrantfile,install.sh,provision.sh} "$RUN/tree/scripts/" && cp "$BIN" "$RUN/tree/bin/kubelith"
}
in_tree() { (cd "$RUN/tree/scripts" && "$@"); }
# on MACHINE: runs the script on stdin there, after the functions of vm-guest.sh and vm-nodes-guest.sh.
on() {
	cat scripts/vm-guest.sh scripts/vm-nodes-guest.sh - | in_tree vagrant ssh "$1" --no-tty -c 'cat >step.sh; sudo bash step.sh </dev/null'
}

step_libvirt() {
	libvirtd >"$WORK/libvirtd.log" 2>&1 &
	for _ in $(seq 60); do virsh version && break; sleep 1; done
	virsh version >/dev/null || { tail -n 1 "$WORK/libvirtd.log"; return 1; }
	vagrant box add --name "$BOX" "$BOX_FILE" || return
	echo "$(vagrant --version), $(vagrant plugin list | grep libvirt | head -n 1), $(virsh version | grep ^Running), driver $DRIVER"
}
step_up() {
	in_tree vagrant up && on server <<'E'
t=$(uptime_s); until_true 900 nodes_ready || fail "$(nodes)"
nodes
for node in server agent-1; do $k get node $node >/dev/null; done
echo "both nodes Ready $(since $t) after vagrant up, $(kubelith version | head -n 1)"
E
}
step_pods() {
	on server <<'E'
everywhere
until_true 900 everywhere_ready || fail "$($k get pods -o wide; $k get events)"
$k get pods -o wide
[ "$($k get pods -l app=everywhere -o jsonpath='{.items[*].spec.nodeName}' | tr ' ' '\n' | sort | tr '\n' ' ')" = "agent-1 server " ] || fail "not one on each node"
reached 600
E
}
step_provision() {
	local machine kept=
	for machine in server agent-1; do
		on "$machine" <<<'kubelith version >before.version; containers >before.list; [ -s before.list ] || fail "no pod runs here"' || return
	done
	cp "$NEXT" "$RUN/tree/bin/kubelith" && in_tree vagrant provision || return
	for machine in server agent-1; do
		kept+=$(on "$machine" <<'E'
kubelith version >after.version
! cmp -s before.version after.version || fail "$(hostname) still has the previous version: $(head -n 1 after.version)"
pid=$(systemctl show -p MainPID --value kubelith kubelith-agent | grep -v '^0*$')
[ "$(readlink /proc/$pid/exe)" = /usr/local/bin/kubelith ] || fail "$(hostname) still runs the previous program"
kept=$(unchanged) || fail "$kept"
echo "$(hostname): $(awk 'NR == 1 { print $2 }' before.version) to $(awk 'NR == 1 { print $2 }' after.version), $kept; "
E
		) || { echo "$kept"; return 1; }
	done
	on server <<'E' || return
until_true 900 nodes_ready || fail "$(nodes)"
reached 600
E
	echo "${kept%; }"
}
step_destroy() {
	in_tree vagrant destroy --force && vagrant box remove --force "$BOX" || return
	local left
	left=$(virsh list --all --name; virsh net-list --all --name; virsh vol-list default | grep -E 'server|agent')
	[ -z "$(echo "$left" | tr -d ' \n')" ] || { echo "left:" $left; return 1; }
	echo "no machine, network or disk is left"
}

if [ "${1-}" = inside ]; then inside; else outside; fi
