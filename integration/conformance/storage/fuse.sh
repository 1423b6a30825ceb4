#!/bin/bash
# Sourced by scripts/conformance.sh, as its SETUP: the plugin fuse on all nodes, as docs/older-ways.md installs it, with the S3-compatible store of
# the tests.   MODE=mountpod, process or sidecar
# shellcheck disable=SC2154 # bin, dir, net, holder and NODES are that script's
go build -ldflags '-s -w' -o "$dir/" ./plugins/examples/fuse ./plugins/examples/fuse/sidecar ./integration/conformance/storage/store
"$dir/fuse" image "$dir/fuse.tar"
# It ends with this shell. Not by on, see start.
nsenter -t "${holder[1]}" -n -- setpriv --pdeathsig KILL "$dir/store" $net.2:9000 >"$dir/store.log" 2>&1 &
kubectl=("$bin" kubectl --kubeconfig /etc/kubelith/kubelith.yaml)
sed "s/mode: mountpod/mode: ${MODE:-mountpod}/" plugins/examples/fuse/manifest.yaml | on 1 "${kubectl[@]}" apply -f - >"$dir/setup.log"
on 1 "${kubectl[@]}" -n kubelith-fuse create secret generic store --from-literal=endpoint=http://$net.2:9000 --from-literal=bucket=data \
	--from-literal=access-key=a --from-literal=secret-key=b >>"$dir/setup.log"
on 1 install -D -m 755 "$dir/sidecar" /var/lib/kubelith/plugins/admission/fuse-sidecar
for ((i = 1; i <= NODES; i++)); do
	on "$i" "$bin" ctr -n k8s.io images import - <"$dir/fuse.tar" >>"$dir/setup.log"
	on "$i" install -D -m 755 "$dir/fuse" /var/lib/kubelith/plugins/storage/fuse
done
for ((i = 1; i <= NODES; i++)); do
	for tries in $(seq 60); do
		on 1 "${kubectl[@]}" get csinode "e2e-$i" -o yaml | grep -q fuse.kubelith.io && break
		[ "$tries" -lt 60 ] || { on "$i" "$bin" plugin list >&2; exit 1; }
		sleep 0.5
	done
done
