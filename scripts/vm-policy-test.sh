#!/bin/bash
# vm-policy-test.sh VM [STEP...]: the tests of network policies (integration/policy) on a machine with its own kernel,
# as one program: its nftables, br_netfilter and conntrack are not this machine's.
#
# VM is a program that creates virtual machines, as for vm-test.sh. RUN is an expression with the tests to run. The
# output of the machine is in .cache/vm-policy-test/. KEEP=yes leaves it running; MEMORY is its MiB.
# shellcheck disable=SC2317,SC2329,SC2034 # the steps are called by name, STEPS by what is sourced
set -uo pipefail
cd "$(dirname "$0")/.." || exit
STEPS="boot policies"
. scripts/vm-steps.sh
NAME=${NAME:-kubelith-policy} MEMORY=${MEMORY:-4096} RUN=${RUN:-TestPolicies\$|TestFirstPacket|TestDead|TestSources|TestServices|TestLeaves}

step_boot() {
	local image
	go test -c -o "$LOGS/policy.test" ./integration/policy && image=$(go run ./integration/testimage/make "$LOGS") &&
		{ "$VM" ssh "$NAME" true || "$VM" start "$NAME" "$MEMORY"; } && "$VM" ssh "$NAME" 'rm -rf k; mkdir k' &&
		"$VM" put "$NAME" "$BIN" k/kubelith && "$VM" put "$NAME" "$LOGS/policy.test" k/ && "$VM" put "$NAME" "$image" k/image.tar &&
		{ "$VM" ssh "$NAME" 'test -e /etc/protocols' || "$VM" put "$NAME" /etc/protocols /etc/protocols; } &&
		"$VM" ssh "$NAME" uname -sr
}
# The last line is how many tests passed.
step_policies() {
	"$VM" ssh "$NAME" "cd k && KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=\$PWD/kubelith KUBELITH_TEST_IMAGE=\$PWD/image.tar KUBELITH_TEST_LOGS=\$PWD/logs KUBELITH_TEST_PATIENCE=6 POLICY_PODS=40 POLICY_KILLS=3 \
		./policy.test -test.v -test.timeout 2h -test.run '$RUN'" | tee "$LOGS/policies.out"
	local result=$?
	echo "$(grep -c '^--- PASS' "$LOGS/policies.out") tests passed, $(grep -c '^--- FAIL' "$LOGS/policies.out") failed"
	return $result
}

run_steps "$NAME" "$@"
