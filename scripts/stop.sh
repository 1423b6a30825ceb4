#!/bin/sh
# make stop: end the server that `make run` started and remove everything it left. The pid file shows that `make run` started one,
# even if it has ended since; it is kept until everything is removed.
set -eu
cd "$(dirname "$0")/.."
pidfile=.cache/run/server.pid
if [ ! -f "$pidfile" ]; then
	echo "stop: there is no server started by 'make run'; to remove another cluster run 'bin/kubelith reset --data'" >&2
	exit 1
fi
# A service is another cluster, even if it is not running. It uses the directories that reset would clear.
for path in /etc/systemd/system/kubelith.service /etc/systemd/system/kubelith-agent.service /etc/init.d/kubelith /etc/init.d/kubelith-agent; do
	if [ -e "$path" ]; then
		echo "stop: this machine has a cluster that 'make run' did not start ($path): nothing was changed; to remove it run scripts/uninstall.sh" >&2
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
