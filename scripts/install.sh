#!/bin/sh
# Installs Kubelith on this machine as a server or an agent and starts it: the program, a systemd unit or an OpenRC script,
# and required packages of the distribution. Run it again to upgrade; pods keep running.
#
# The script needs only itself and the program. It takes the service files from its own directory, or else the copies at its
# end; `make lint` compares them.

set -eu

usage() {
	cat <<'USAGE'
usage: install.sh [--server URL --token-file FILE [--witness]] [--node-ip ADDRESS] [--no-start] [BINARY]
       install.sh --agent [--server URL] [--token-file FILE] [--node-ip ADDRESS] [--no-start] [BINARY]

Installs BINARY (default: ./bin/kubelith or ./kubelith, here or in this script's directory) as
/usr/local/bin/kubelith with a service that starts at boot, and starts it. Requires root.

  --agent            install an agent: a node of a cluster whose server is on another machine
  --server URL       a server of the cluster to join, https://HOST:6443; without it and --agent, a new cluster
  --token-file FILE  join token, created on the server with 'kubelith token create', for a further server with
                     --usages server; not needed once the machine has joined
  --witness          run etcd only, as the third vote of two servers; see docs/servers.md
  --node-ip ADDRESS  address at which other nodes reach this machine, one per IP family, separated by a comma
                     (default: that of the default route's interface)
  --no-start         install and enable the service, but do not start or restart it
  --help             show this text

Server and address are written to /etc/kubelith/config.yaml, the token to /etc/kubelith/token, which is removed
when the machine has joined. To upgrade an agent, --agent is enough; add --server if the server's address has changed. If an upgraded service is not
ready within READY_WITHIN seconds (environment variable, default 300), the previous program is restored; a successful upgrade keeps
it as /usr/local/bin/kubelith.previous.
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
	die "no kubelith found: build it with 'make build' or name the file, see --help"
}

# install_package PACKAGE TEST...: with the distribution's package manager, unless the test succeeds.
install_package() {
	package=$1
	shift
	if "$@"; then
		return
	fi
	say "installing $package"
	if has apt-get; then
		# A new machine's package lists may be empty or old.
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
		die "$package is missing, and there is no known package manager: install it and run this again"
	fi || die "cannot install $package: install it by hand and run this again"
	"$@" || die "$package is installed, but this still fails: $*"
}

install_prerequisites() {
	# kube-proxy writes its rules with nft.
	install_package nftables has nft
	# For volumes with an enforced size, see docs/storage.md.
	install_package e2fsprogs has mkfs.ext4
	if has apt-get; then
		install_package mount has mount
		# Protocol names: without them, nft reports other rules to kube-proxy than it has written. Only Debian has systems
		# without this file.
		install_package netbase test -e /etc/protocols
	else
		install_package util-linux has mount
	fi
}

# put SOURCE TARGET MODE: copies atomically, also when TARGET is the running program.
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
	# For 'kubelith plugin check', if it was built or unpacked too.
	if [ -f "$1-plugin-check" ] && ! cmp -s "$1-plugin-check" "$BIN-plugin-check"; then
		put "$1-plugin-check" "$BIN-plugin-check" 0755
		say "installed $BIN-plugin-check"
	fi
	if has kubectl; then
		return
	fi
	ln -sf kubelith /usr/local/bin/kubectl
	say "linked /usr/local/bin/kubectl to kubelith"
}

# is_kind KIND: succeeds if the configuration file has this kind or does not exist.
is_kind() { [ ! -f "$CONFIG" ] || grep -Eq "^kind: *[\"']?$1" "$CONFIG"; }

is_witness() { grep -Eqs '^witness: *true' "$CONFIG"; }

# setting KEY VALUE [OTHER]: sets KEY in the configuration file and removes OTHER.
setting() {
	(
		umask 077
		# grep returns 1 when no line is left, which is not an error.
		{ grep -Ev "^($1${3:+|$3}):" "$CONFIG" >"$CONFIG.new" || [ $? -eq 1 ]; } &&
			printf '%s: %s\n' "$1" "$2" >>"$CONFIG.new"
	) 2>/dev/null || die "cannot write $CONFIG.new: $CONFIG is unchanged"
	mv -f "$CONFIG.new" "$CONFIG"
}

# configure KIND: writes the server, the token and the node's address. Other settings of the file are kept.
configure() {
	mkdir -p "$(dirname "$CONFIG")"
	[ -f "$CONFIG" ] || printf 'apiVersion: kubelith.io/v1alpha1\nkind: %s\n' "$1" >"$CONFIG"
	# Quoted: YAML misreads some IPv6 addresses.
	[ -z "$NODE_IP" ] || setting nodeIP "[\"$(printf '%s' "$NODE_IP" | sed 's/,/", "/g')\"]"
	[ -z "$SERVER" ] || setting server "$SERVER"
	[ "$WITNESS" = no ] || setting witness true
	if [ -n "$TOKEN_FILE" ]; then
		(umask 077 && cat "$TOKEN_FILE" >"$TOKEN.new")
		mv -f "$TOKEN.new" "$TOKEN"
		setting tokenFile "$TOKEN" token
	fi
}

# service_file NAME: prints the file from this script's directory, or the copy at its end.
service_file() {
	if [ -f "$HERE/$1" ]; then
		cat "$HERE/$1"
	else
		sed -n "/^#BEGIN $1\$/,/^#END $1\$/p" "$HERE/$(basename "$0")" | sed '1d;$d;s/^#|//'
	fi
}

# allow_shutdown_delay lets the kubelet end pods in order at a machine shutdown, in 30 seconds, and write their statuses: logind's default
# is 5 seconds.
allow_shutdown_delay() {
	mkdir -p "$(dirname "$LOGIND")"
	printf '# Kubelith: a machine shutdown waits this long for pods to end (30 s) and for their statuses.\n[Login]\nInhibitDelayMaxSec=40\n' >"$LOGIND"
	systemctl kill --signal=HUP systemd-logind.service 2>/dev/null || true # not every machine runs it
}

install_systemd() {
	allow_shutdown_delay
	service_file "$NAME.service" >"$UNIT.new"
	[ -s "$UNIT.new" ] || die "the unit is missing from this script: use the published install.sh"
	mv -f "$UNIT.new" "$UNIT"
	systemctl daemon-reload
	systemctl enable --quiet "$NAME.service"
	say "installed $UNIT"
	if [ "$START" = no ]; then
		say "not started: run 'systemctl start $NAME'"
		return
	fi
	say "starting $NAME; log: journalctl -u $NAME"
	started restart_systemd ready_systemd "see 'journalctl -u $NAME -n 50'$CHECK"
}

# --no-block: a start may take long, and a refused one would end this script with systemd's error.
restart_systemd() {
	systemctl reset-failed "$NAME.service" 2>/dev/null || true
	systemctl stop "$NAME.service" # or the old process would count as ready
	systemctl start --no-block "$NAME.service"
}

# ready_systemd: 0 if the service is ready, 1 if it is not ready yet, 2 if it keeps failing.
ready_systemd() {
	systemctl is-active --quiet "$NAME.service" && return
	restarts=$(systemctl show --property NRestarts --value "$NAME.service")
	[ "${restarts:-0}" -lt 5 ] || return 2
	return 1
}

# started RESTART READY WHERE: restarts the service and waits until it is ready. If an upgraded one does not become ready, the
# previous program is restored.
started() {
	if "$1" && wait_ready "$2"; then
		spent_token
		return
	fi
	if [ "$UPGRADED" = yes ]; then
		mv -f "$BIN.previous" "$BIN"
		UPGRADED=no
		say "the new version did not become ready: restoring the previous one, $("$BIN" version | head -n 1)"
		if "$1" && wait_ready "$2"; then
			die "the new version did not start; the previous one is running again: $3"
		fi
	fi
	die "$NAME did not start: $3"
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

# spent_token removes the token of a machine that has joined: it is no longer needed, and could let another machine join.
spent_token() {
	if [ -f "$TOKEN" ] && grep -qs "^tokenFile: *$TOKEN" "$CONFIG"; then
		rm -f "$TOKEN"
		say "removed $TOKEN: this machine has joined"
	fi
}

install_openrc() {
	service_file "$NAME.openrc" >"$OPENRC.new"
	[ -s "$OPENRC.new" ] || die "the service script is missing from this script: use the published install.sh"
	chmod 0755 "$OPENRC.new"
	mv -f "$OPENRC.new" "$OPENRC"
	rc-update add "$NAME" default >/dev/null
	# Alpine does not mount cgroups by default.
	if [ -f /etc/init.d/cgroups ]; then
		rc-update add cgroups boot >/dev/null
	fi
	say "installed $OPENRC"
	if [ "$START" = no ]; then
		say "not started: run 'rc-service $NAME start'"
		return
	fi
	say "starting $NAME; log: /var/log/$NAME.log"
	started restart_openrc ready_openrc "see /var/log/$NAME.log$CHECK"
}

restart_openrc() {
	errors_before=$(errors_openrc)
	votes_before=$(votes_openrc)
	rc-service "$NAME" restart
}

# errors_openrc prints how often the process has ended with an error, one line each in its log.
errors_openrc() { grep -c '^kubelith: ' "/var/log/$NAME.log" 2>/dev/null || true; }

# votes_openrc prints how often the log reports that the witness has a vote.
votes_openrc() { grep -c 'this witness has all data, and a vote' "/var/log/$NAME.log" 2>/dev/null || true; }

# ready_openrc: 0 if the service is ready, 1 if it is not ready yet, 2 if it keeps failing. OpenRC does not know when the
# process is ready. The kubelet's health port is open then, unless it is disabled or has another port.
ready_openrc() {
	errors=$(errors_openrc)
	[ "$((${errors:-0} - ${errors_before:-0}))" -lt 5 ] || return 2
	rc-service --quiet "$NAME" status >/dev/null 2>&1 || return 1
	if is_witness; then
		votes=$(votes_openrc)
		[ "${votes:-0}" -gt "${votes_before:-0}" ] || return 1
		return 0
	fi
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
WITNESS=no
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
	--witness) WITNESS=yes WHERE=' on a server' ;;
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

[ "$(id -u)" -eq 0 ] || die "needs root: run it with sudo"
[ "$(uname -s)" = Linux ] || die "Kubelith runs on Linux only"
for file in "/etc/systemd/system/$OTHER.service" "/etc/init.d/$OTHER"; do
	[ ! -e "$file" ] || die "this machine has $OTHER ($file): remove it with uninstall.sh first"
done
if [ "$NAME" = kubelith ]; then
	is_kind ServerConfig || die "$CONFIG is not a ServerConfig: remove it, or add --agent"
else
	[ "$WITNESS" = no ] || die "--witness is for servers: leave out --agent"
	is_kind AgentConfig || die "$CONFIG is not an AgentConfig: remove it, or leave --agent out"
	[ -n "$SERVER" ] || grep -qs '^server:' "$CONFIG" || die "no server given: add --server https://HOST:6443 and --token-file FILE"
fi
[ -z "$TOKEN_FILE" ] || [ -s "$TOKEN_FILE" ] || die "no token in $TOKEN_FILE: write the output of 'kubelith token create' on the server to it"
# Only the first line of a multi-line list would be replaced.
[ -z "$NODE_IP" ] || ! grep -Eqs '^nodeIP: *(#.*)?$' "$CONFIG" || die "nodeIP has several lines in $CONFIG: change it there, and leave out --node-ip"
[ -n "$BINARY" ] || BINARY=$(find_binary)
[ -f "$BINARY" ] || die "no file $BINARY"
case "$BINARY" in
*/*) ;;
*) BINARY=./$BINARY ;; # do not search PATH
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

# A witness runs etcd only, which needs nothing of the distribution.
[ "$WITNESS" = yes ] || is_witness || install_prerequisites
install_binary "$BINARY"
if [ "$NAME" = kubelith-agent ]; then
	configure AgentConfig
elif [ -n "$NODE_IP$SERVER$TOKEN_FILE" ] || [ "$WITNESS" = yes ]; then
	configure ServerConfig
fi
case "$INIT" in
systemd) install_systemd ;;
openrc) install_openrc ;;
*) say "neither systemd nor OpenRC is running: start it by hand with '$BIN $COMMAND'" ;;
esac
say "done. As root$WHERE: kubelith kubectl get nodes"
exit 0

#BEGIN kubelith.service
#|[Unit]
#|Description=Kubelith: a Kubernetes cluster in one process
#|Wants=network-online.target
#|After=network-online.target
#|# Retry without limit.
#|StartLimitIntervalSec=0
#|
#|[Service]
#|Type=notify
#|ExecStartPre=-/sbin/modprobe -a br_netfilter overlay nf_tables
#|# HTTPS_PROXY and the like, if set.
#|EnvironmentFile=-/etc/kubelith/env
#|ExecStart=/usr/local/bin/kubelith server
#|# Pods outlive the process: leave their keepers and containers alone when it stops.
#|KillMode=process
#|# Except at a machine shutdown: pods that the kubelet could not end in time would delay it for 90 s.
#|ExecStopPost=-/bin/sh -c 'test "$$(systemctl is-system-running)" != stopping || exec /usr/local/bin/kubelith stop-pods'
#|# The kubelet and containerd manage their own cgroups below this unit.
#|Delegate=yes
#|Restart=always
#|# A keeper killed for lack of memory affects one pod, not the unit.
#|OOMPolicy=continue
#|RestartSec=1
#|# The first start may wait for the network, and any start for a slow disk. Status and log show the reason; a timeout would only
#|# start the wait again.
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
#|# Kubelith: a Kubernetes cluster in one process. supervise-daemon stops and restarts the process only; the pods'
#|# keepers and containers have their own sessions and keep running.
#|
#|name="kubelith"
#|description="Kubelith: a Kubernetes cluster in one process"
#|supervisor="supervise-daemon"
#|command="/usr/local/bin/kubelith"
#|# The process rotates its log. Output before and after (a refused start, a panic) is written to the same file.
#|command_args="server --log-file /var/log/kubelith.log"
#|output_log="/var/log/kubelith.log"
#|error_log="/var/log/kubelith.log"
#|respawn_delay=1
#|respawn_max=0
#|retry="TERM/60/KILL/5"
#|rc_cgroup_cleanup="no"
#|
#|depend() {
#|	need net
#|	use dns
#|	want cgroups
#|	after firewall
#|}
#|
#|# HTTPS_PROXY and the like, if set.
#|if [ -f /etc/kubelith/env ]; then
#|	set -a
#|	. /etc/kubelith/env
#|	set +a
#|fi
#|
#|start_pre() {
#|	# Not rc_ulimit, which needs a shell whose ulimit takes several options. In a container the limit may be fixed.
#|	ulimit -n 1048576 2>/dev/null || ulimit -n "$(ulimit -H -n)"
#|	ulimit -c 0
#|	modprobe -a br_netfilter overlay nf_tables 2>/dev/null
#|	checkpath -f -m 0600 "$error_log"
#|}
#|
#|# At a machine shutdown nothing else ends the pods.
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
#|# Retry without limit.
#|StartLimitIntervalSec=0
#|
#|[Service]
#|Type=notify
#|ExecStartPre=-/sbin/modprobe -a br_netfilter overlay nf_tables
#|# HTTPS_PROXY and the like, if set.
#|EnvironmentFile=-/etc/kubelith/env
#|ExecStart=/usr/local/bin/kubelith agent
#|# Pods outlive the process: leave their keepers and containers alone when it stops.
#|KillMode=process
#|# Except at a machine shutdown: pods that the kubelet could not end in time would delay it for 90 s.
#|ExecStopPost=-/bin/sh -c 'test "$$(systemctl is-system-running)" != stopping || exec /usr/local/bin/kubelith stop-pods'
#|# The kubelet and containerd manage their own cgroups below this unit.
#|Delegate=yes
#|Restart=always
#|# A keeper killed for lack of memory affects one pod, not the unit.
#|OOMPolicy=continue
#|# Retry a refused join too: the token may be corrected meanwhile.
#|RestartSec=2
#|# The first start may wait for the network, and any start for a slow disk; status and log show the reason. Once the machine has
#|# joined, a start does not wait for the server.
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
#|# Kubelith agent: a node of a Kubernetes cluster in one process. supervise-daemon stops and restarts the process only; the pods'
#|# keepers and containers have their own sessions and keep running.
#|
#|name="kubelith-agent"
#|description="Kubelith agent: a node of a Kubernetes cluster in one process"
#|supervisor="supervise-daemon"
#|command="/usr/local/bin/kubelith"
#|# The process rotates its log. Output before and after (a refused start, a panic) is written to the same file.
#|command_args="agent --log-file /var/log/kubelith-agent.log"
#|output_log="/var/log/kubelith-agent.log"
#|error_log="/var/log/kubelith-agent.log"
#|respawn_delay=2
#|respawn_max=0
#|retry="TERM/60/KILL/5"
#|rc_cgroup_cleanup="no"
#|
#|depend() {
#|	need net
#|	use dns
#|	want cgroups
#|	after firewall
#|}
#|
#|# HTTPS_PROXY and the like, if set.
#|if [ -f /etc/kubelith/env ]; then
#|	set -a
#|	. /etc/kubelith/env
#|	set +a
#|fi
#|
#|start_pre() {
#|	# Not rc_ulimit, which needs a shell whose ulimit takes several options. In a container the limit may be fixed.
#|	ulimit -n 1048576 2>/dev/null || ulimit -n "$(ulimit -H -n)"
#|	ulimit -c 0
#|	modprobe -a br_netfilter overlay nf_tables 2>/dev/null
#|	checkpath -f -m 0600 "$error_log"
#|}
#|
#|# At a machine shutdown nothing else ends the pods.
#|stop_post() {
#|	[ "${RC_GOINGDOWN:-}" != YES ] || /usr/local/bin/kubelith stop-pods
#|	return 0
#|}
#END kubelith-agent.openrc
