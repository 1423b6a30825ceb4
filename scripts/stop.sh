#!/bin/sh
# make stop: end the server that `make run` started and remove all it left. The file with its process id tells that
# `make run` started one here, also when it has ended since: it stays until everything is removed.
set -eu
cd "$(dirname "$0")/.."
pidfile=.cache/run/server.pid
if [ ! -f "$pidfile" ]; then
	echo "stop: 'make run' has started no server that is still here; 'bin/kubelith reset --data' removes another one's cluster" >&2
	exit 1
fi
# A service is another cluster, also when it does not run now. It has the directories that reset would clear.
for path in /etc/systemd/system/kubelith.service /etc/systemd/system/kubelith-agent.service /etc/init.d/kubelith /etc/init.d/kubelith-agent; do
	if [ -e "$path" ]; then
		echo "stop: this machine has a cluster that 'make run' did not start ($path): nothing was changed; remove it with scripts/uninstall.sh" >&2
		exit 1
	fi
done
pid=$(cat "$pidfile")
if [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$PWD/bin/kubelith" ]; then
	kill -TERM "$pid"
	tries=0
	while kill -0 "$pid" 2>/dev/null && [ "$tries" -le 300 ]; do
		tries=$((tries + 1))
		sleep 0.1
	done
fi
bin/kubelith reset --yes --data
rm -f "$pidfile"
