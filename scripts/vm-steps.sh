# shellcheck shell=bash
# What vm-test.sh and vm-nodes-test.sh have in common on this side, as vm-guest.sh has for the machines. Their arguments are VM [STEP...],
# STEPS has all steps in order, and a step is a function step_NAME.
TEST=$(basename "$0" .sh)
usage() {
	echo "usage: $TEST.sh VM [STEP...]   steps: $STEPS" >&2
	exit 2
}
[ $# -gt 0 ] || usage
[ -x "$1" ] || usage
VM=$(readlink -f "$1")
shift
BIN=${BIN:-bin/kubelith} LOGS=$PWD/.cache/$TEST
export WORK=${WORK:-$LOGS/vm}
mkdir -p "$LOGS" "$WORK"
[ -f "$BIN" ] || {
	echo "$TEST: no $BIN: run make build" >&2
	exit 1
}

# reachable MACHINE: a busy one may be slow to answer.
reachable() { for _ in 1 2 3; do "$VM" ssh "$1" true 2>/dev/null && return; done; return 1; }

# run_steps MACHINES [STEP...]: a line for each step, then the end of the machines; fails when a step did.
run_steps() {
	local machines=$1 name list step start result failed=0
	shift
	if [ $# -gt 0 ]; then list=("$@") KEEP=yes; else read -ra list <<<"$STEPS"; fi
	for step in "${list[@]}"; do
		declare -F "step_$step" >/dev/null || usage
		start=$SECONDS
		if "step_$step" >"$LOGS/$step.log" 2>&1; then result=ok; else result=FAILED failed=1; fi
		printf '%-6s %4d s  %-12s %s\n' "$result" $((SECONDS - start)) "$step" "$(tail -n 1 "$LOGS/$step.log")"
	done
	if [ "${KEEP:-}" != yes ]; then for name in $machines; do "$VM" rm "$name"; done; fi
	return $failed
}
