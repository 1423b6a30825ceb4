#!/bin/sh
# make stop: end the server that `make run` started and remove all it left.
set -eu
cd "$(dirname "$0")/.."
pidfile=.cache/run/server.pid
if [ -f "$pidfile" ]; then
	pid=$(cat "$pidfile")
	if [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$PWD/bin/kubelith" ]; then
		kill -TERM "$pid"
		tries=0
		while kill -0 "$pid" 2>/dev/null && [ "$tries" -le 300 ]; do
			tries=$((tries + 1))
			sleep 0.1
		done
	fi
	rm -f "$pidfile"
fi
exec bin/kubelith reset --yes --data
