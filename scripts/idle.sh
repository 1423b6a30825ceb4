#!/bin/sh
# idle.sh COMMAND...: runs a command with what other programs leave of the processors. It gets a session, and so a process group, of its own: on a
# kernel with autogroup, priorities count within a session only, and each session has one.
exec setsid sh -c 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"' sh "$@"
