#!/bin/sh
# Removes Kubelith from this machine, a server or an agent: the service, the pods, the data and the program. Keeps snapshots of the
# cluster, and configuration that install.sh did not write.

set -eu

usage() {
	cat <<'USAGE'
usage: uninstall.sh [--yes] [--data-dir DIR] [--run-dir DIR] [--kubelet-root-dir DIR] [--write-kubeconfig FILE]

Stops Kubelith and removes it, on a server with the cluster's data. Directories are taken from /etc/kubelith/config.yaml or
the defaults; if the server was given directories as flags, give the same flags here. Keeps snapshots of the cluster, your
own files in these directories and in /etc/kubelith, and lists them. Requires root.

  --yes   do not ask
  --help  show this text
USAGE
}

say() { printf '%s\n' "$*"; }
die() {
	printf 'uninstall.sh: %s\n' "$*" >&2
	exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

BIN=/usr/local/bin/kubelith
UNITS=/etc/systemd/system
OPENRC=/etc/init.d
SERVICES="kubelith kubelith-agent"
CONFIG=/etc/kubelith
LOGIND=/etc/systemd/logind.conf.d/10-kubelith.conf

AGENT=no
for file in "$UNITS/kubelith-agent.service" "$OPENRC/kubelith-agent"; do
	[ ! -e "$file" ] || AGENT=yes
done

YES=no
# Pass on only given flags: a flag takes precedence over the configuration file, which may name other directories.
DATA_DIR=""
RUN_DIR=""
KUBELET_ROOT_DIR=""
KUBECONFIG_FILE=""
while [ $# -gt 0 ]; do
	case "$1" in
	--help | -h)
		usage
		exit 0
		;;
	--yes | -y) YES=yes ;;
	--data-dir | --run-dir | --kubelet-root-dir | --write-kubeconfig)
		[ $# -gt 1 ] || die "$1 needs a path"
		case "$1" in
		--data-dir) DATA_DIR=$2 ;;
		--run-dir) RUN_DIR=$2 ;;
		--kubelet-root-dir) KUBELET_ROOT_DIR=$2 ;;
		--write-kubeconfig) KUBECONFIG_FILE=$2 ;;
		esac
		shift
		;;
	*) die "unknown argument $1, see --help" ;;
	esac
	shift
done

[ "$(id -u)" -eq 0 ] || die "needs root: run it with sudo"
if [ "$YES" = no ]; then
	what="the cluster with its data"
	[ "$AGENT" = no ] || what="the data of this node"
	printf 'This stops all pods and deletes %s%s. Continue? [y/N] ' "$what" "${DATA_DIR:+ in $DATA_DIR}"
	read -r answer || answer=
	case "$answer" in
	y | Y | yes) ;;
	*) die "nothing was changed" ;;
	esac
fi

for name in $SERVICES; do
	if [ -f "$UNITS/$name.service" ] && has systemctl; then
		systemctl disable --now --quiet "$name.service" 2>/dev/null || true
		say "stopped $name.service"
	fi
	if [ -f "$OPENRC/$name" ] && has rc-service; then
		rc-service --quiet "$name" stop 2>/dev/null || true
		rc-update --quiet del "$name" default 2>/dev/null || true
		say "stopped the service $name"
	fi
done

# This needs the program, which knows what belongs to the pods.
KEPT=""
if [ -x "$BIN" ]; then
	said=$("$BIN" reset --yes --data ${DATA_DIR:+--data-dir "$DATA_DIR"} ${RUN_DIR:+--run-dir "$RUN_DIR"} \
		${KUBELET_ROOT_DIR:+--kubelet-root-dir "$KUBELET_ROOT_DIR"} ${KUBECONFIG_FILE:+--write-kubeconfig "$KUBECONFIG_FILE"}) || {
		say "$said"
		die "reset failed: fix the error above and run this again"
	}
	[ -z "$said" ] || say "$said"
	KEPT=$(say "$said" | sed -n 's/^left in //p') # DIRECTORY: FILES, as host/reset prints it
elif [ -e "${DATA_DIR:-/var/lib/kubelith}" ] || [ -e "${RUN_DIR:-/run/kubelith}" ] || [ -e "$CONFIG/config.yaml" ]; then
	die "$BIN is missing, so pods and data cannot be removed: install it and run this again"
fi

for name in $SERVICES; do
	if [ -f "$UNITS/$name.service" ]; then
		rm -f "$UNITS/$name.service"
		systemctl daemon-reload 2>/dev/null || true
		systemctl reset-failed "$name.service" 2>/dev/null || true
		say "removed $UNITS/$name.service"
	fi
	for file in "$OPENRC/$name" "/var/log/$name.log" "/var/log/$name.log."[1-3]; do
		if [ -f "$file" ]; then
			rm -f "$file"
			say "removed $file"
		fi
	done
done
if [ -f "$LOGIND" ]; then
	rm -f "$LOGIND"
	rmdir "$(dirname "$LOGIND")" 2>/dev/null || true # not if it has other files
	systemctl kill --signal=HUP systemd-logind.service 2>/dev/null || true
	say "removed $LOGIND"
fi
if [ -L /usr/local/bin/kubectl ]; then
	case "$(readlink /usr/local/bin/kubectl)" in
	kubelith | "$BIN")
		rm -f /usr/local/bin/kubectl
		say "removed /usr/local/bin/kubectl"
		;;
	esac
fi
for file in "$BIN" "$BIN.previous" "$BIN.new" "$BIN-plugin-check" "$CONFIG/token"; do
	if [ -e "$file" ]; then
		rm -f "$file"
		say "removed $file"
	fi
done
# The file that install.sh wrote, unless it was changed.
if [ -f "$CONFIG/config.yaml" ] && ! grep -Eqv '^(apiVersion|kind|server|tokenFile|nodeIP|witness): |^$' "$CONFIG/config.yaml"; then
	rm -f "$CONFIG/config.yaml"
	say "removed $CONFIG/config.yaml"
fi
if rmdir "$CONFIG" 2>/dev/null; then
	say "removed $CONFIG"
elif [ -d "$CONFIG" ]; then
	say "left $CONFIG with $(find "$CONFIG" -mindepth 1 -maxdepth 1 -exec basename {} \; | sort | tr '\n' ' '): remove it if you do not need it"
fi
say "Kubelith is removed; kernel settings that it changed (net.ipv4.ip_forward, vm.overcommit_memory, kernel.panic) remain until the next boot"
[ "$AGENT" = no ] || say "The cluster still has the node: on a server, run 'kubelith node remove $(uname -n)' (or the name it was given)"
[ -z "$KEPT" ] || say "$KEPT" | while read -r line; do
	say "kept in $line (snapshots outlive their cluster, other files are yours): remove ${line%%: *} if you do not need them"
done
