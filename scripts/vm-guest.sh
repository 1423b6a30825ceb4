# shellcheck shell=bash disable=SC2034,SC2086,SC2012,SC2010,SC2009,SC2046
# What the steps of vm-test.sh and vm-nodes-test.sh have in common. It is sent to the machine in front of each step and runs there.
set -euo pipefail
cd /root
k="kubelith kubectl"
lib64=/usr/lib64; [ -d $lib64 ] || lib64=/usr/lib # of pods that execute the machine's programs; arm64 has no lib64
fail() { echo "$*" | tee /dev/stderr; exit 1; }
uptime_s() { cut -d' ' -f1 /proc/uptime; }
since() { perl -e 'printf "%.1f s", $ARGV[1]-$ARGV[0]' "$1" "$(uptime_s)"; }
# until_true SECONDS COMMAND...
until_true() {
	local end=$((SECONDS + $1)); shift
	until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || return 1; sleep "${POLL:-5}"; done # each try costs a slow machine seconds
}
# way_out: a machine of the tests has no network but its host and the Ethernet. A real one has a way out, and ClusterIPs need a route on the node itself.
way_out() {
	ip route show default | grep -q . || { printf '[Route]\nGateway=10.0.2.2\n' >>/etc/systemd/network/10-eth0.network; systemctl restart systemd-networkd; until_true 30 sh -c "ip route show default | grep -q ."; }
	ip route show default | grep -q . || fail "no default route"
}
node_ready() { [ "$($k get nodes -o jsonpath='{.items[0].status.conditions[?(@.type=="Ready")].status}')" = True ]; }
# What the API says may be of before a reset or a boot: the processes count as well.
hello_ready() { [ "$(pidof hello | wc -w)" = 3 ] && [ "$($k get deployment hello -o jsonpath='{.status.readyReplicas}/{.status.updatedReplicas}/{.status.unavailableReplicas}')" = 3/3/ ]; }
wait_hello() { until_true 400 hello_ready; }
service() { curl -sf --max-time 5 "http://$($k get service hello -o jsonpath='{.spec.clusterIP}')/"; }
# containers: PID, start time and program of each process of a pod, and of each keeper.
containers() (
	set +e +o pipefail
	for p in /proc/[0-9]*; do
		if grep -qs 'kubepods.*cri-containerd' $p/cgroup || grep -qs kubelith-keeper $p/cmdline; then
			echo "${p#/proc/} $(sed 's/.*) //' $p/stat | cut -d' ' -f20) $(cat $p/comm)"
		fi
	done 2>/dev/null | sort -n
)
pid_of_hello() { local p; for p in $(pidof hello); do grep -qs kubepods /proc/$p/cgroup && { echo $p; return; }; done; }
unchanged() {
	containers >after.list
	[ -s before.list ] || fail "no pod ran before: nothing was compared"
	cmp -s before.list after.list || { diff before.list after.list || true; fail "the processes of the pods changed"; }
	echo "$(wc -l <after.list) processes kept PID and start time"
}
# probe: asks DNS and a Service ten times a second from inside a pod; gaps prints the longest time without an answer.
probe() {
	cat >probe.pl <<'PERL'
use IO::Socket::INET; use IO::Select;
my ($what, $address) = @ARGV; $| = 1;
sub now { open my $f, "/proc/uptime"; (split " ", <$f>)[0] }
while (1) {
	my $ok = 0;
	if ($what eq "dns") {
		my $s = IO::Socket::INET->new(PeerAddr => $address, PeerPort => 53, Proto => "udp");
		if ($s) {
			$s->send(pack("n6", 7, 0x100, 1, 0, 0, 0) . "\5hello\7default\3svc\7cluster\5local\0" . pack("n2", 1, 1));
			if (IO::Select->new($s)->can_read(0.5)) { my $b; $ok = defined $s->recv($b, 512) && length $b > 12 && unpack("x6n", $b) > 0; }
		}
	} else {
		my $s = IO::Socket::INET->new(PeerAddr => $address, PeerPort => 80, Timeout => 2);
		if ($s) { print $s "GET /healthz HTTP/1.0\r\n\r\n"; $ok = (<$s> // "") =~ / 200 /; }
	}
	print now(), "\n" if $ok;
	select undef, undef, undef, 0.1;
}
PERL
	local pid; pid=$(pid_of_hello); kill $(cat probe.pids 2>/dev/null) 2>/dev/null || true
	$k get service hello -o jsonpath='{.spec.clusterIP}' >svc.ip
	nsenter -t $pid -n setsid perl probe.pl dns 10.43.0.10 >dns.log 2>/dev/null </dev/null & echo $! >probe.pids
	nsenter -t $pid -n setsid perl probe.pl web "$(cat svc.ip)" >web.log 2>/dev/null </dev/null & echo $! >>probe.pids
	POLL=1 until_true 30 sh -c '[ -s dns.log ] && [ -s web.log ]' || fail "no answer from DNS or the Service before the trial"
}
# gap WHAT LIMIT: the longest time without an answer; more than LIMIT seconds is a failure.
gap() {
	perl -e '($w, $limit) = @ARGV; open F, "$w.log"; while (<F>) { $m = $_ - $l if defined $l && $_ - $l > $m; $l = $_ } printf "%s gap %.1f s, ", $w, $m; exit($m > $limit)' "$1" "$2" || fail "$1 did not answer for more than $2 s"
}
gaps() {
	local dns=3
	for w in dns web; do until_true 120 sh -c 'n=$(wc -l <$0.log); sleep 2; [ $(wc -l <$0.log) -gt $n ]' $w || fail "$w does not answer again"; done
	kill $(cat probe.pids) 2>/dev/null || true
	# Three seconds are meant for a processor, not for a program that plays one.
	[ "$(systemd-detect-virt)" != qemu ] || dns=120
	gap dns $dns; gap web 3 # the Service is the kernel's: at most one probe of 2 s is lost
}
# leases and sandboxes must agree: an address for each sandbox that runs.
no_leaks() {
	local leases sandboxes
	leases=$(ls /var/lib/kubelith/agent/cni/kubelith | grep -c '^[0-9]*\.[0-9]*\.[0-9]*\.[0-9]*$' || true)
	sandboxes=$(ls /run/kubelith/containerd/io.containerd.grpc.v1.cri/netns 2>/dev/null | wc -l || true)
	results=$(find /var/lib/cni -type f 2>/dev/null | wc -l || true)
	[ "$leases" = "$sandboxes" ] && [ "$(ls /sys/class/net | grep -c ^veth)" = "$sandboxes" ] || {
		ls /var/lib/kubelith/agent/cni/kubelith; ls /run/kubelith/containerd/io.containerd.grpc.v1.cri/netns; ls /sys/class/net
		fail "$leases addresses are given out, $sandboxes network namespaces exist"
	}
	echo "$leases addresses = $sandboxes sandboxes, $results CNI results"
}
# system: all that an uninstall must put back.
system() (
	set +e +o pipefail
	echo "# mounts"; awk '{ print $5 }' /proc/self/mountinfo | grep -v binfmt_misc | sort # systemd mounts it when somebody looks
	echo "# network namespaces"; ls /run/netns 2>/dev/null | wc -l; lsns -t net -n -o COMMAND 2>/dev/null | grep -vc systemd- # its services come and go
	echo "# interfaces"; ls /sys/class/net
	echo "# addresses and routes"; ip -o address | awk '{ print $2, $4 }' | sort; ip route | sort; ip rule
	echo "# packet filter"; nft list ruleset
	echo "# cgroups"; find /sys/fs/cgroup -type d | grep -vE 'ssh|user.slice|session|modprobe|systemd-|getty|binfmt_misc' | sort
	echo "# units"; systemctl list-units --all --plain --no-legend --no-pager | awk '{ print $1 }' | grep -E 'kube|cri-|containerd|cni' || true
	echo "# processes"; ps -eo args | grep -E 'kubelith|containerd|runc|pause|hello' | grep -vE '^grep|^\[kworker/' || true # a kernel worker has the name of its last work
	echo "# files"; find / -xdev \( -path /root -o -path /tmp -o -path /var/log/journal -o -path /var/lib/systemd -o -path /var/cache -o -path /var/lib/apt -o -name 'systemd-private-*' \) -prune -o -print | sort
	find /run /tmp -not -path '/run/udev/*' -not -path '/run/systemd/*' -not -path '/run/user*' -not -path '/run/log/*' -not -path '*systemd-private*' | sort
)
kept() { sysctl -a 2>/dev/null | grep -E '^(net\.(ipv4|ipv6|bridge|netfilter)|vm\.(over|panic)|kernel\.(panic|keys))' | grep -vE 'conf\.(cni|veth|eth)|neigh|_count|nf_conntrack_(max|buckets)|random' | sort; }
