#!/bin/bash
# vm-soak.sh VM [STEP...]: the soak with a clock that jumps, on its own machine: no namespace has a clock.
#
# VM is a program that creates virtual machines, as for vm-test.sh. SOAK and SEED are those of `make soak`. The output
# of the machine is in .cache/vm-soak/. KEEP=yes leaves it running; MEMORY is its MiB, of which the soak's disk is 3
# GiB.
# shellcheck disable=SC2317,SC2329,SC2034 # the steps are called by name, STEPS by what is sourced
set -uo pipefail
cd "$(dirname "$0")/.." || exit
STEPS="boot soak"
. scripts/vm-steps.sh
NAME=${NAME:-kubelith-soak} MEMORY=${MEMORY:-7168}

step_boot() {
	local image
	go test -c -o "$LOGS/soak.test" ./integration/soak && image=$(go run ./integration/testimage/make "$LOGS") &&
		{ "$VM" ssh "$NAME" true || "$VM" start "$NAME" "$MEMORY"; } && "$VM" ssh "$NAME" 'rm -rf k; mkdir k' &&
		"$VM" put "$NAME" "$BIN" k/kubelith && "$VM" put "$NAME" "$LOGS/soak.test" k/ && "$VM" put "$NAME" "$image" k/image.tar &&
		{ "$VM" ssh "$NAME" 'test -e /etc/protocols' || "$VM" put "$NAME" /etc/protocols /etc/protocols; }
}
# The last line is what was left over before and after.
step_soak() {
	"$VM" ssh "$NAME" "cd k && KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=\$PWD/kubelith KUBELITH_TEST_IMAGE=\$PWD/image.tar KUBELITH_TEST_LOGS=\$PWD/logs KUBELITH_TEST_PATIENCE=6 \
		KUBELITH_SOAK=${SOAK:-10m} KUBELITH_SOAK_SEED=${SEED:-} KUBELITH_SOAK_CLOCK=yes ./soak.test -test.v -test.timeout 0" | tee "$LOGS/soak.out"
	local result=$?
	grep -E 'seed|done:|acknowledged|before:' "$LOGS/soak.out"
	return $result
}

run_steps "$NAME" "$@"
