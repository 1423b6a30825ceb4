#!/bin/sh
# Writes the service files into the end of install.sh, so that the script can be copied alone. With --check it only
# reports whether they are the same.

set -eu
cd "$(dirname "$0")"

generated() {
	sed '/^#BEGIN /,$d' install.sh
	for file in kubelith.service kubelith.openrc kubelith-agent.service kubelith-agent.openrc; do
		printf '#BEGIN %s\n' "$file"
		sed 's/^/#|/' "$file"
		printf '#END %s\n' "$file"
	done
}

case "${1-}" in
--check)
	if ! generated | cmp -s - install.sh; then
		echo "the service files in install.sh differ from those in scripts/: run scripts/embed-services.sh" >&2
		exit 1
	fi
	;;
"")
	generated >install.sh.new
	cat install.sh.new >install.sh # keeps its mode
	rm install.sh.new
	;;
*)
	echo "usage: embed-services.sh [--check]" >&2
	exit 2
	;;
esac
