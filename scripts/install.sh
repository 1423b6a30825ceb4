#!/bin/sh
# Installs Kubelith on this machine and starts it: the program, a systemd unit or an OpenRC script, and what
# the program needs of the distribution. Doing it again upgrades; pods keep running meanwhile.
#
# The script needs nothing but itself and the program. The service files come from beside it when they are there and
# from the copies at its end otherwise; `make lint` compares them.

set -eu

usage() {
	cat <<'USAGE'
usage: install.sh [--no-start] [BINARY]

Installs BINARY (default: ./bin/kubelith or ./kubelith, here or beside this script) as
/usr/local/bin/kubelith with a service that starts at boot, and starts it. Run it as root.

  --no-start  install and enable the service, but do not start or restart it
  --help      show this text
USAGE
}

say() { printf '%s\n' "$*"; }
die() {
	printf 'install.sh: %s\n' "$*" >&2
	exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

BIN=/usr/local/bin/kubelith
UNIT=/etc/systemd/system/kubelith.service
OPENRC=/etc/init.d/kubelith
HERE=$(cd "$(dirname "$0")" && pwd)

find_binary() {
	for candidate in ./bin/kubelith ./kubelith "$HERE/../bin/kubelith" "$HERE/kubelith"; do
		if [ -f "$candidate" ]; then
			printf '%s\n' "$candidate"
			return
		fi
	done
	die "no kubelith here: build it with 'make build' or name the file, see --help"
}

# install_package PACKAGE TEST...: with the distribution's package manager, unless the test says that it is not needed.
install_package() {
	package=$1
	shift
	if "$@"; then
		return
	fi
	say "installing $package"
	if has apt-get; then
		# The package lists of a new machine may be empty or old.
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package" >/dev/null 2>&1 ||
			{ apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package" >/dev/null; }
	elif has dnf; then
		dnf install -y -q "$package"
	elif has yum; then
		yum install -y -q "$package"
	elif has zypper; then
		zypper --non-interactive --quiet install "$package"
	elif has apk; then
		apk add --quiet "$package"
	elif has pacman; then
		pacman -S --noconfirm --quiet --needed "$package"
	else
		die "$package is missing and no known package manager is here: install it and run this again"
	fi || die "cannot install $package: install it by hand and run this again"
	"$@" || die "$package is installed, but what is needed of it is not found ($*)"
}

install_prerequisites() {
	# kube-proxy's rules are written with nft.
	install_package nftables has nft
	if has apt-get; then
		install_package mount has mount
		# The names of protocols: without them, nft tells kube-proxy of other rules than it has written. Only Debian has
		# systems without this file.
		install_package netbase test -e /etc/protocols
	else
		install_package util-linux has mount
	fi
}

# put SOURCE TARGET MODE: complete or not at all, also when TARGET is the running program.
put() {
	cp "$1" "$2.new"
	chmod "$3" "$2.new"
	mv -f "$2.new" "$2"
}

install_binary() {
	mkdir -p /usr/local/bin
	if [ -f "$BIN" ] && cmp -s "$1" "$BIN"; then
		say "$BIN is up to date"
	else
		put "$1" "$BIN" 0755
		say "installed $BIN"
	fi
	if has kubectl; then
		return
	fi
	ln -sf kubelith /usr/local/bin/kubectl
	say "linked /usr/local/bin/kubectl to kubelith"
}

# service_file NAME: from beside this script, or the copy at its end.
service_file() {
	if [ -f "$HERE/$1" ]; then
		cat "$HERE/$1"
	else
		sed -n "/^#BEGIN $1\$/,/^#END $1\$/p" "$HERE/$(basename "$0")" | sed '1d;$d;s/^#|//'
	fi
}

install_systemd() {
	service_file kubelith.service >"$UNIT.new"
	[ -s "$UNIT.new" ] || die "the unit is missing: use install.sh as it was published"
	mv -f "$UNIT.new" "$UNIT"
	systemctl daemon-reload
	systemctl enable --quiet kubelith.service
	say "installed $UNIT"
	if [ "$START" = no ]; then
		say "not started: run 'systemctl start kubelith'"
		return
	fi
	say "starting kubelith; its log: journalctl -u kubelith"
	systemctl restart kubelith.service || die "it does not start: see 'journalctl -u kubelith -n 50' and 'kubelith check'"
}

install_openrc() {
	service_file kubelith.openrc >"$OPENRC.new"
	[ -s "$OPENRC.new" ] || die "the service script is missing: use install.sh as it was published"
	chmod 0755 "$OPENRC.new"
	mv -f "$OPENRC.new" "$OPENRC"
	rc-update add kubelith default >/dev/null
	# Alpine mounts no control groups by itself.
	if [ -f /etc/init.d/cgroups ]; then
		rc-update add cgroups boot >/dev/null
	fi
	say "installed $OPENRC"
	if [ "$START" = no ]; then
		say "not started: run 'rc-service kubelith start'"
		return
	fi
	say "starting kubelith; its log: /var/log/kubelith.log"
	rc-service kubelith restart || die "it does not start: see /var/log/kubelith.log and 'kubelith check'"
}

START=yes
BINARY=
for arg in "$@"; do
	case "$arg" in
	--help | -h)
		usage
		exit 0
		;;
	--no-start) START=no ;;
	-*) die "unknown option $arg, see --help" ;;
	*)
		[ -z "$BINARY" ] || die "give one binary, see --help"
		BINARY=$arg
		;;
	esac
done

[ "$(id -u)" -eq 0 ] || die "not root: run it with sudo"
[ "$(uname -s)" = Linux ] || die "Kubelith runs on Linux only"
[ -n "$BINARY" ] || BINARY=$(find_binary)
[ -f "$BINARY" ] || die "no file $BINARY"
case "$BINARY" in
*/*) ;;
*) BINARY=./$BINARY ;; # not whatever has this name in PATH
esac
chmod +x "$BINARY" 2>/dev/null || true
"$BINARY" version >/dev/null 2>&1 || die "$BINARY does not run on this machine ($(uname -m))"

if [ -d /run/systemd/system ]; then
	INIT=systemd
elif has openrc-run || [ -x /sbin/openrc-run ]; then
	INIT=openrc
else
	INIT=
fi

install_prerequisites
install_binary "$BINARY"
case "$INIT" in
systemd) install_systemd ;;
openrc) install_openrc ;;
*) say "neither systemd nor OpenRC runs here: start it by hand with '$BIN server'" ;;
esac
say "done. As root: kubelith kubectl get nodes"
exit 0

#BEGIN kubelith.service
#|[Unit]
#|Description=Kubelith: a Kubernetes cluster in one process
#|Wants=network-online.target
#|After=network-online.target
#|# It is tried again for as long as it takes.
#|StartLimitIntervalSec=0
#|
#|[Service]
#|Type=notify
#|ExecStartPre=-/sbin/modprobe -a br_netfilter overlay nf_tables
#|ExecStart=/usr/local/bin/kubelith server
#|# Pods outlive the process: their shims and containers are left alone when it stops.
#|KillMode=process
#|# The kubelet and containerd manage control groups of their own below this unit.
#|Delegate=yes
#|Restart=always
#|# A shim that the kernel ends for its memory is one pod's trouble, not the unit's.
#|OOMPolicy=continue
#|RestartSec=1
#|# The first start may wait for the network; readiness is told by the process.
#|TimeoutStartSec=300
#|TimeoutStopSec=60
#|LimitNOFILE=1048576
#|LimitNPROC=infinity
#|TasksMax=infinity
#|OOMScoreAdjust=-999
#|
#|[Install]
#|WantedBy=multi-user.target
#END kubelith.service
#BEGIN kubelith.openrc
#|#!/sbin/openrc-run
#|# Kubelith: a Kubernetes cluster in one process. supervise-daemon ends and restarts the process only; the shims
#|# and containers of the pods have sessions of their own and stay.
#|
#|name="kubelith"
#|description="Kubelith: a Kubernetes cluster in one process"
#|supervisor="supervise-daemon"
#|command="/usr/local/bin/kubelith"
#|command_args="server"
#|output_log="/var/log/kubelith.log"
#|error_log="/var/log/kubelith.log"
#|respawn_delay=1
#|respawn_max=0
#|retry="TERM/60/KILL/5"
#|rc_ulimit="-n 1048576 -u unlimited -c unlimited"
#|rc_cgroup_cleanup="no"
#|
#|depend() {
#|	need net
#|	use dns
#|	want cgroups
#|	after firewall
#|}
#|
#|start_pre() {
#|	modprobe -a br_netfilter overlay nf_tables 2>/dev/null
#|	return 0
#|}
#END kubelith.openrc
