#!/bin/sh
# Turns a new machine into a node. Vagrant (Vagrantfile) and the test with two virtual machines (vm-nodes-test.sh) run it in
# the machine, with kubelith and install.sh in its directory. Run it again to install another version with the same settings.
#
#   provision.sh server ADDRESS
#   provision.sh agent ADDRESS SERVER-URL [TOKEN-FILE]
#
# ADDRESS is the machine's on the network that the machines share: the first interface of a virtual machine often reaches
# only its host, and has the same address in all of them.

set -eu

die() {
	printf 'provision.sh: %s\n' "$*" >&2
	exit 1
}

role=${1-} address=${2-} server=${3-} token=${4-}
here=$(cd "$(dirname "$0")" && pwd)
[ "$(id -u)" -eq 0 ] || die "needs root"
case "$role" in
server) kind=ServerConfig ;;
agent) kind=AgentConfig ;;
*) die "usage: provision.sh server ADDRESS, or provision.sh agent ADDRESS SERVER-URL [TOKEN-FILE]" ;;
esac
[ "$role" = server ] || [ -n "$server" ] || die "an agent needs the URL of its server"
ip -o address show 2>/dev/null | grep -Fqw "$address" || die "this machine does not have the address $address: $(ip -o -4 address show | awk '{ print $2, $4 }' | tr '\n' ' ')"

mkdir -p /etc/kubelith
cat >/etc/kubelith/config.yaml <<CONFIG
apiVersion: kubelith.io/v1alpha1
kind: $kind
nodeIP: [$address]
CONFIG
if [ "$role" = server ]; then
	sh "$here/install.sh" "$here/kubelith"
else
	sh "$here/install.sh" --agent --server "$server" ${token:+--token-file "$token"} "$here/kubelith"
fi
