#!/usr/bin/env bash
# patch.sh: write .cache/patched: a copy of k8s.io/kubernetes with patches/*.patch applied, and a go.mod that replaces the module by it, for
# `go build -modfile`. patches/NAME.sha256 has the checksums of the files that NAME.patch was made for. Nothing is written that is current.
set -euo pipefail
cd "$(dirname "$0")/.."
out=.cache/patched
fail() {
	echo "patch: $*" >&2
	exit 1
}
export GOFLAGS= # make's names the go.mod that this script writes
version=$(sed -n 's/^\tk8s.io\/kubernetes \(v[^ ]*\).*/\1/p' go.mod)
stamp=$({ echo "$version" && cat "$0" patches/*.patch patches/*.sha256; } | sha256sum)
if [ "$(cat $out/stamp 2>/dev/null)" != "$stamp" ]; then
	command -v patch >/dev/null || scripts/deps.sh patch >&2
	go mod download k8s.io/kubernetes
	upstream=$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)
	rm -rf $out
	mkdir -p $out
	cp -r --no-preserve=mode --reflink=auto "$upstream" $out/kubernetes
	for patch in patches/*.patch; do
		(cd $out/kubernetes && sha256sum --check --status --strict "$OLDPWD/${patch%.patch}.sha256") ||
			fail "$patch was not made for k8s.io/kubernetes $version: make it again as docs/adr/038-patch-of-the-kubelet.md says, or build with UNPATCHED=1"
		patch --quiet --strip=1 --fuzz=0 --no-backup-if-mismatch --directory=$out/kubernetes <"$patch" >&2 || fail "$patch does not apply"
	done
	echo "$stamp" >$out/stamp
fi
# The files keep their times if they are current.
{ cat go.mod && printf '\nreplace k8s.io/kubernetes => ./%s/kubernetes\n' $out; } >$out/go.mod.new
for file in go.mod.new:go.mod ../../go.sum:go.sum; do
	cmp -s $out/"${file%:*}" $out/"${file#*:}" || cp $out/"${file%:*}" $out/"${file#*:}"
done
