#!/bin/sh
# What the checks beside this file ask with: scripts/cis.sh names it in $PROBE and has put the answers of the process into $ANSWERS.
set -eu

# list prints NAME=none, or NAME= and what standard input names.
list() {
	found=$(tr '\n' ' ')
	printf '%s=%s\n' "$1" "${found:-none}"
}

# existing prints those of the paths that exist; one that must exist and does not is reported as missing.
existing() {
	for path; do
		if [ -e "$path" ]; then printf '%s\n' "$path"; else printf 'missing:%s\n' "$path"; fi
	done
}

what=$1
shift
case "$what" in
closed) # closed MASK PATH...: open=none unless a file at or below a PATH has one of the permission bits
	mask=$1
	shift
	existing "$@" | while read -r path; do
		case "$path" in missing:*) echo "$path" ;; *) find "$path" -perm "/$mask" ! -type l ;; esac
	done | list open
	;;
owned) # owned PATH...: foreign=none unless a file at or below a PATH belongs to another user than root
	existing "$@" | while read -r path; do
		case "$path" in missing:*) echo "$path" ;; *) find "$path" ! \( -user root -group root \) ;; esac
	done | list foreign
	;;
private) # private DIRECTORY: private=yes when it belongs to root and no other user can reach what is in it
	[ -d "$1" ] && [ -z "$(find "$1" -maxdepth 0 \( -perm /077 -o ! -user root \))" ] && echo private=yes || echo private=no
	;;
absent) # absent PATH...: found=none unless a PATH exists
	for path; do
		[ ! -e "$path" ] || echo "$path"
	done | list found
	;;
silent) # silent PORT...: listening=none unless a process listens on a PORT
	for port; do
		awk -v port="$port" '{ n = split($4, part, ":"); if (part[n] == port) print $4 }' "$ANSWERS/listening"
	done | list listening
	;;
flag) # flag NAME: NAME=VALUE as the apiserver runs with it
	grep "^$1=" "$ANSWERS/apiserver" || echo "unknown flag $1"
	;;
value) # value NAME: the value alone
	sed -n "s/^$1=//p" "$ANSWERS/apiserver"
	;;
metric) # metric PATTERN: matches=N, how many lines of the metrics match the extended regular expression
	echo "matches=$(grep -cE "$1" "$ANSWERS/metrics")"
	;;
service) # service: the paths of the service's file
	for file in /etc/systemd/system/kubelith.service /etc/init.d/kubelith; do
		[ ! -e "$file" ] || echo "$file"
	done
	;;
*)
	echo "probe.sh: unknown question $what" >&2
	exit 2
	;;
esac
