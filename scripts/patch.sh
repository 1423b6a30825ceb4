#!/usr/bin/env bash
# patch.sh kubernetes: write .cache/patched: a copy of k8s.io/kubernetes with patches/kubernetes/*.patch applied, and a go.mod that replaces
# the module by it, for `go build -modfile`. patch.sh runc ARCH: the same of runc, for the payload, in .cache/payload/ARCH/patched.
# patches/MODULE/NAME.sha256 has the checksums of the files that NAME.patch was made for. Nothing is written that is current.
set -euo pipefail
cd "$(dirname "$0")/.."
case $1 in
kubernetes) module=k8s.io/kubernetes dir=. out=.cache/patched ;;
runc) module=github.com/opencontainers/runc dir=runtime/payload/programs out=.cache/payload/$2/patched ;;
*) echo "patch: usage: patch.sh kubernetes | runc ARCH" >&2 && exit 1 ;;
esac
fail() {
	echo "patch: $*" >&2
	exit 1
}
export GOFLAGS= # make's names the go.mod that this script writes
version=$(sed -n "s|^\t$module \(v[^ ]*\).*|\1|p" $dir/go.mod)
stamp=$({ echo "$version" && cat "$0" patches/"$1"/*.patch patches/"$1"/*.sha256; } | sha256sum)
if [ "$(cat "$out/stamp" 2>/dev/null)" != "$stamp" ]; then
	command -v patch >/dev/null || scripts/deps.sh patch >&2
	go -C $dir mod download $module
	upstream=$(go -C $dir list -m -f '{{.Dir}}' $module)
	rm -rf "$out"
	mkdir -p "$out"
	cp -r --no-preserve=mode --reflink=auto "$upstream" "$out/$1"
	for patch in patches/"$1"/*.patch; do
		(cd "$out/$1" && sha256sum --check --status --strict "$OLDPWD/${patch%.patch}.sha256") ||
			fail "$patch was not made for $module $version: make it again as docs/adr/038-patch-of-the-kubelet.md says, or build with UNPATCHED=1"
		patch --quiet --strip=1 --fuzz=0 --no-backup-if-mismatch --directory="$out/$1" <"$patch" >&2 || fail "$patch does not apply"
	done
	echo "$stamp" >"$out/stamp"
fi
# The files keep their times if they are current.
{ cat $dir/go.mod && printf '\nreplace %s => ./%s\n' $module "$(realpath --relative-to=$dir "$out/$1")"; } >"$out/go.mod.new"
cmp -s "$out/go.mod.new" "$out/go.mod" || cp "$out/go.mod.new" "$out/go.mod"
cmp -s $dir/go.sum "$out/go.sum" || cp $dir/go.sum "$out/go.sum"
