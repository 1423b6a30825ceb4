#!/bin/sh
# Installs Kubelith on this machine and starts it, as a server or as an agent of one: the program, a systemd unit or an
# OpenRC script, and what the program needs of the distribution. Doing it again upgrades; pods keep running meanwhile.
#
# The script needs nothing but itself and the program. The service files come from beside it when they are there and
# from the copies at its end otherwise; `make lint` compares them.

set -eu

usage() {
	cat <<'USAGE'
usage: install.sh [--node-ip ADDRESS] [--no-start] [BINARY]
       install.sh --agent [--server URL] [--token-file FILE] [--node-ip ADDRESS] [--no-start] [BINARY]

Installs BINARY (default: ./bin/kubelith or ./kubelith, here or beside this script) as
/usr/local/bin/kubelith with a service that starts at boot, and starts it. Run it as root.

  --agent            a node of a cluster whose server is on another machine
  --server URL       that server, https://HOST:6443
  --token-file FILE  a token made there with 'kubelith token create'; the machine needs it to join,
                     and not any more when it has joined
  --node-ip ADDRESS  at which other nodes reach this machine, one per IP family, separated by a comma
                     (default: that of the interface with the default route)
  --no-start         install and enable the service, but do not start or restart it
  --help             show this text

Server, address and token go into /etc/kubelith/config.yaml and /etc/kubelith/token; the token is removed when the machine has joined.
To upgrade, --agent is enough; with --server the agent goes to another address of the server. An upgraded service
that is not ready within READY_WITHIN seconds (a variable, default 300) gets back the program from before, which stays
as /usr/local/bin/kubelith.previous.
USAGE
}

say() { printf '%s\n' "$*"; }
die() {
	printf 'install.sh: %s\n' "$*" >&2
	exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

BIN=/usr/local/bin/kubelith
CONFIG=/etc/kubelith/config.yaml
LOGIND=/etc/systemd/logind.conf.d/10-kubelith.conf
TOKEN=/etc/kubelith/token
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
	# Volumes that keep to their size, see docs/storage.md.
	install_package e2fsprogs has mkfs.ext4
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
		if [ -f "$BIN" ]; then
			ln -f "$BIN" "$BIN.previous"
			UPGRADED=yes
		fi
		put "$1" "$BIN" 0755
		say "installed $BIN"
	fi
	if has kubectl; then
		return
	fi
	ln -sf kubelith /usr/local/bin/kubectl
	say "linked /usr/local/bin/kubectl to kubelith"
}

# is_kind KIND: what the configuration file is for; a missing one is for anything.
is_kind() { [ ! -f "$CONFIG" ] || grep -Eq "^kind: *[\"']?$1" "$CONFIG"; }

# setting KEY VALUE [OTHER]: in the configuration file, in place of what it has for KEY, and for OTHER.
setting() {
	(
		umask 077
		# grep says 1 when no line is left, which is no error.
		{ grep -Ev "^($1${3:+|$3}):" "$CONFIG" >"$CONFIG.new" || [ $? -eq 1 ]; } &&
			printf '%s: %s\n' "$1" "$2" >>"$CONFIG.new"
	) 2>/dev/null || die "cannot write $CONFIG.new: $CONFIG is as it was"
	mv -f "$CONFIG.new" "$CONFIG"
}

# configure KIND: how to find the cluster, and where this machine is. Other settings of the file stay.
configure() {
	mkdir -p "$(dirname "$CONFIG")"
	[ -f "$CONFIG" ] || printf 'apiVersion: kubelith.io/v1alpha1\nkind: %s\n' "$1" >"$CONFIG"
	# Quoted: YAML takes some IPv6 addresses for something else.
	[ -z "$NODE_IP" ] || setting nodeIP "[\"$(printf '%s' "$NODE_IP" | sed 's/,/", "/g')\"]"
	[ -z "$SERVER" ] || setting server "$SERVER"
	if [ -n "$TOKEN_FILE" ]; then
		(umask 077 && cat "$TOKEN_FILE" >"$TOKEN.new")
		mv -f "$TOKEN.new" "$TOKEN"
		setting tokenFile "$TOKEN" token
	fi
}

# service_file NAME: from beside this script, or the copy at its end.
service_file() {
	if [ -f "$HERE/$1" ]; then
		cat "$HERE/$1"
	else
		sed -n "/^#BEGIN $1\$/,/^#END $1\$/p" "$HERE/$(basename "$0")" | sed '1d;$d;s/^#|//'
	fi
}

# allow_shutdown_delay lets the kubelet end pods in order before the machine goes down: logind allows 5 seconds otherwise.
allow_shutdown_delay() {
	mkdir -p "$(dirname "$LOGIND")"
	printf '# Kubelith: pods may take this long to end when the machine shuts down.\n[Login]\nInhibitDelayMaxSec=30\n' >"$LOGIND"
	systemctl kill --signal=HUP systemd-logind.service 2>/dev/null || true # it is not there on every machine
}

install_systemd() {
	allow_shutdown_delay
	service_file "$NAME.service" >"$UNIT.new"
	[ -s "$UNIT.new" ] || die "the unit is missing: use install.sh as it was published"
	mv -f "$UNIT.new" "$UNIT"
	systemctl daemon-reload
	systemctl enable --quiet "$NAME.service"
	say "installed $UNIT"
	if [ "$START" = no ]; then
		say "not started: run 'systemctl start $NAME'"
		return
	fi
	say "starting $NAME; its log: journalctl -u $NAME"
	started restart_systemd ready_systemd "see 'journalctl -u $NAME -n 50'$CHECK"
}

# A start may take longer than systemd lets a start job take, and ends with an error when it is refused.
restart_systemd() {
	systemctl reset-failed "$NAME.service" 2>/dev/null || true
	systemctl stop "$NAME.service" # or the one from before could be taken for ready
	systemctl start --no-block "$NAME.service"
}

# ready_systemd: 0 when the service is ready, 1 when it is not yet, 2 when it fails again and again.
ready_systemd() {
	systemctl is-active --quiet "$NAME.service" && return
	restarts=$(systemctl show --property NRestarts --value "$NAME.service")
	[ "${restarts:-0}" -lt 5 ] || return 2
	return 1
}

# started RESTART READY WHERE: restarts the service and waits until it is ready. When an upgraded one does not get there, the program
# from before comes back.
started() {
	if "$1" && wait_ready "$2"; then
		[ "$NAME" = kubelith ] || spent_token
		return
	fi
	if [ "$UPGRADED" = yes ]; then
		mv -f "$BIN.previous" "$BIN"
		UPGRADED=no
		say "it does not become ready: going back to the program from before, $("$BIN" version | head -n 1)"
		if "$1" && wait_ready "$2"; then
			die "the new program does not start, the one from before runs again: $3"
		fi
	fi
	die "it does not start: $3"
}

wait_ready() {
	waited=0
	while [ "$waited" -lt "$READY_WITHIN" ]; do
		status=0
		"$1" || status=$?
		case $status in
		0) return 0 ;;
		2) return 1 ;;
		esac
		sleep 1
		waited=$((waited + 1))
	done
	return 1
}

# spent_token: a machine that has joined needs its token no more, and whoever reads it could join another one.
spent_token() {
	if [ -f "$TOKEN" ]; then
		rm -f "$TOKEN"
		say "removed $TOKEN: this machine has joined"
	fi
}

install_openrc() {
	service_file "$NAME.openrc" >"$OPENRC.new"
	[ -s "$OPENRC.new" ] || die "the service script is missing: use install.sh as it was published"
	chmod 0755 "$OPENRC.new"
	mv -f "$OPENRC.new" "$OPENRC"
	rc-update add "$NAME" default >/dev/null
	# Alpine mounts no control groups by itself.
	if [ -f /etc/init.d/cgroups ]; then
		rc-update add cgroups boot >/dev/null
	fi
	say "installed $OPENRC"
	if [ "$START" = no ]; then
		say "not started: run 'rc-service $NAME start'"
		return
	fi
	say "starting $NAME; its log: /var/log/$NAME.log"
	started restart_openrc ready_openrc "see /var/log/$NAME.log$CHECK"
}

restart_openrc() { rc-service "$NAME" restart; }

# ready_openrc: OpenRC does not know when the process is ready. The kubelet listens on its port when it is, if it runs and has this port.
ready_openrc() {
	rc-service --quiet "$NAME" status >/dev/null 2>&1 || return 1
	! grep -Eqs 'healthz|disable.*kubelet|- kubelet' "$CONFIG" || return 0
	grep -Eqs ':2808 [0-9A-F]*:0000 0A' /proc/net/tcp
}

NAME=kubelith
OTHER=kubelith-agent
COMMAND=server
WHERE=''
START=yes
UPGRADED=no
# In seconds; a slow disk or a large cluster may need more.
READY_WITHIN=${READY_WITHIN:-300}
SERVER=
TOKEN_FILE=
NODE_IP=
BINARY=
CHECK=" and 'kubelith check'"
while [ $# -gt 0 ]; do
	case "$1" in
	--help | -h)
		usage
		exit 0
		;;
	--no-start) START=no ;;
	--agent) NAME=kubelith-agent OTHER=kubelith COMMAND=agent CHECK=" and 'kubelith check agent'" WHERE=' on the server' ;;
	--server | --token-file | --node-ip)
		[ $# -gt 1 ] || die "$1 needs a value, see --help"
		case "$1" in
		--server) SERVER=$2 ;;
		--token-file) TOKEN_FILE=$2 ;;
		--node-ip) NODE_IP=$2 ;;
		esac
		shift
		;;
	-*) die "unknown option $1, see --help" ;;
	*)
		[ -z "$BINARY" ] || die "give one binary, see --help"
		BINARY=$1
		;;
	esac
	shift
done
UNIT=/etc/systemd/system/$NAME.service
OPENRC=/etc/init.d/$NAME

[ "$(id -u)" -eq 0 ] || die "not root: run it with sudo"
[ "$(uname -s)" = Linux ] || die "Kubelith runs on Linux only"
for file in "/etc/systemd/system/$OTHER.service" "/etc/init.d/$OTHER"; do
	[ ! -e "$file" ] || die "this machine has $OTHER ($file): remove it with uninstall.sh first"
done
if [ "$NAME" = kubelith ]; then
	[ -z "$SERVER$TOKEN_FILE" ] || die "--server and --token-file are for agents: add --agent"
	is_kind ServerConfig || die "$CONFIG is not a server's: remove it, or add --agent"
else
	is_kind AgentConfig || die "$CONFIG is not an agent's: remove it, or leave --agent out"
	[ -n "$SERVER" ] || grep -qs '^server:' "$CONFIG" || die "which server? add --server https://HOST:6443 and --token-file FILE"
	[ -z "$TOKEN_FILE" ] || [ -s "$TOKEN_FILE" ] || die "no token in $TOKEN_FILE: write there what 'kubelith token create' says on the server"
fi
# In a list of several lines only the first would be replaced.
[ -z "$NODE_IP" ] || ! grep -Eqs '^nodeIP: *(#.*)?$' "$CONFIG" || die "nodeIP has several lines in $CONFIG: change it there, and leave --node-ip out"
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
if [ "$NAME" = kubelith-agent ]; then
	configure AgentConfig
elif [ -n "$NODE_IP" ]; then
	configure ServerConfig
fi
case "$INIT" in
systemd) install_systemd ;;
openrc) install_openrc ;;
*) say "neither systemd nor OpenRC runs here: start it by hand with '$BIN $COMMAND'" ;;
esac
say "done. As root$WHERE: kubelith kubectl get nodes"
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
#|# HTTPS_PROXY and the like, if the machine has them.
#|EnvironmentFile=-/etc/kubelith/env
#|ExecStart=/usr/local/bin/kubelith server
#|# Pods outlive the process: their shims and containers are left alone when it stops.
#|KillMode=process
#|# Not when the machine shuts down: what the kubelet could not end in time would keep it from that for 90 s.
#|ExecStopPost=-/bin/sh -c 'test "$$(systemctl is-system-running)" != stopping || exec /usr/local/bin/kubelith stop-pods'
#|# The kubelet and containerd manage control groups of their own below this unit.
#|Delegate=yes
#|Restart=always
#|# A shim that the kernel kills for its memory is one pod's trouble, not the unit's.
#|OOMPolicy=continue
#|RestartSec=1
#|# The first start may wait for the network, and any start for a slow disk: what it waits for is in its status and log, and
#|# ending it would begin the wait again.
#|TimeoutStartSec=infinity
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
#|# The process keeps the size of its log. What is said before and after (a refused start, a panic) goes to the same file.
#|command_args="server --log-file /var/log/kubelith.log"
#|output_log="/var/log/kubelith.log"
#|error_log="/var/log/kubelith.log"
#|respawn_delay=1
#|respawn_max=0
#|retry="TERM/60/KILL/5"
#|rc_ulimit="-n 1048576 -u unlimited -c 0"
#|rc_cgroup_cleanup="no"
#|
#|depend() {
#|	need net
#|	use dns
#|	want cgroups
#|	after firewall
#|}
#|
#|# HTTPS_PROXY and the like, if the machine has them.
#|if [ -f /etc/kubelith/env ]; then
#|	set -a
#|	. /etc/kubelith/env
#|	set +a
#|fi
#|
#|start_pre() {
#|	modprobe -a br_netfilter overlay nf_tables 2>/dev/null
#|	checkpath -f -m 0600 "$error_log"
#|}
#|
#|# When the machine shuts down nobody else ends the pods.
#|stop_post() {
#|	[ "${RC_GOINGDOWN:-}" != YES ] || /usr/local/bin/kubelith stop-pods
#|	return 0
#|}
#END kubelith.openrc
#BEGIN kubelith-agent.service
#|[Unit]
#|Description=Kubelith agent: a node of a Kubernetes cluster in one process
#|Wants=network-online.target
#|After=network-online.target
#|# It is tried again for as long as it takes.
#|StartLimitIntervalSec=0
#|
#|[Service]
#|Type=notify
#|ExecStartPre=-/sbin/modprobe -a br_netfilter overlay nf_tables
#|# HTTPS_PROXY and the like, if the machine has them.
#|EnvironmentFile=-/etc/kubelith/env
#|ExecStart=/usr/local/bin/kubelith agent
#|# Pods outlive the process: their shims and containers are left alone when it stops.
#|KillMode=process
#|# Not when the machine shuts down: what the kubelet could not end in time would keep it from that for 90 s.
#|ExecStopPost=-/bin/sh -c 'test "$$(systemctl is-system-running)" != stopping || exec /usr/local/bin/kubelith stop-pods'
#|# The kubelet and containerd manage control groups of their own below this unit.
#|Delegate=yes
#|Restart=always
#|# A shim that the kernel kills for its memory is one pod's trouble, not the unit's.
#|OOMPolicy=continue
#|# A join that is refused is tried again as well: the token may be corrected meanwhile.
#|RestartSec=2
#|# The first start may wait for the network, and any start for a slow disk: what it waits for is in its status and log. Once the
#|# machine has joined it does not wait for the server.
#|TimeoutStartSec=infinity
#|TimeoutStopSec=60
#|LimitNOFILE=1048576
#|LimitNPROC=infinity
#|TasksMax=infinity
#|OOMScoreAdjust=-999
#|
#|[Install]
#|WantedBy=multi-user.target
#END kubelith-agent.service
#BEGIN kubelith-agent.openrc
#|#!/sbin/openrc-run
#|# Kubelith agent: a node of a Kubernetes cluster in one process. supervise-daemon ends and restarts the process only; the shims
#|# and containers of the pods have sessions of their own and stay.
#|
#|name="kubelith-agent"
#|description="Kubelith agent: a node of a Kubernetes cluster in one process"
#|supervisor="supervise-daemon"
#|command="/usr/local/bin/kubelith"
#|# The process keeps the size of its log. What is said before and after (a refused start, a panic) goes to the same file.
#|command_args="agent --log-file /var/log/kubelith-agent.log"
#|output_log="/var/log/kubelith-agent.log"
#|error_log="/var/log/kubelith-agent.log"
#|respawn_delay=2
#|respawn_max=0
#|retry="TERM/60/KILL/5"
#|rc_ulimit="-n 1048576 -u unlimited -c 0"
#|rc_cgroup_cleanup="no"
#|
#|depend() {
#|	need net
#|	use dns
#|	want cgroups
#|	after firewall
#|}
#|
#|# HTTPS_PROXY and the like, if the machine has them.
#|if [ -f /etc/kubelith/env ]; then
#|	set -a
#|	. /etc/kubelith/env
#|	set +a
#|fi
#|
#|start_pre() {
#|	modprobe -a br_netfilter overlay nf_tables 2>/dev/null
#|	checkpath -f -m 0600 "$error_log"
#|}
#|
#|# When the machine shuts down nobody else ends the pods.
#|stop_post() {
#|	[ "${RC_GOINGDOWN:-}" != YES ] || /usr/local/bin/kubelith stop-pods
#|	return 0
#|}
#END kubelith-agent.openrc
