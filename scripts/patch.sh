#!/usr/bin/env bash
# patch.sh kubernetes: write .cache/patched: copies of upstream's modules with patches/MODULE/*.patch applied, and a go.mod that replaces
# the modules by them, for `go build -modfile`. patch.sh runc ARCH: the same of runc, for the payload, in .cache/payload/ARCH/patched.
# patches/MODULE/NAME.sha256 has the checksums of the files that NAME.patch was made for. Nothing is written that is current.
set -euo pipefail
cd "$(dirname "$0")/.."
case $1 in
kubernetes) modules=(k8s.io/kubernetes k8s.io/apiserver github.com/kubernetes-csi/csi-lib-utils github.com/emicklei/go-restful/v3) dir=. out=.cache/patched ;;
runc) modules=(github.com/opencontainers/runc) dir=runtime/payload/programs out=.cache/payload/$2/patched ;;
*) echo "patch: usage: patch.sh kubernetes | runc ARCH" >&2 && exit 1 ;;
esac
# directory MODULE: the directory in patches, and below $out: the last name of its path that is not a major version.
directory() {
	basename "${1%/v[0-9]}"
}
fail() {
	echo "patch: $*" >&2
	exit 1
}
export GOFLAGS= # make's names the go.mod that this script writes
mkdir -p "$(dirname "$out")"
exec 9>"$out.lock" # make runs this in several processes at a time
flock 9
stamp=$({
	cat "$0" && grep -F "${modules[@]/#/-e}" $dir/go.mod &&
		for module in "${modules[@]}"; do cat patches/"$(directory "$module")"/*.patch patches/"$(directory "$module")"/*.sha256 || exit; done
} | sha256sum)
if [ "$(cat "$out/stamp" 2>/dev/null)" != "$stamp" ]; then
	command -v patch >/dev/null || scripts/deps.sh patch >&2
	rm -rf "$out"
	mkdir -p "$out"
	for module in "${modules[@]}"; do
		name=$(directory "$module")
		go -C $dir mod download "$module"
		cp -r --no-preserve=mode --reflink=auto "$(go -C $dir list -m -f '{{.Dir}}' "$module")" "$out/$name"
		for patch in patches/"$name"/*.patch; do
			(cd "$out/$name" && sha256sum --check --status --strict "$OLDPWD/${patch%.patch}.sha256") ||
				fail "$patch was not made for $(go -C $dir list -m "$module"): make it again as docs/adr/038-patch-of-the-kubelet.md says, or build with UNPATCHED=1"
			patch --quiet --strip=1 --fuzz=0 --no-backup-if-mismatch --directory="$out/$name" <"$patch" >&2 || fail "$patch does not apply"
		done
	done
	echo "$stamp" >"$out/stamp"
fi
# The files keep their times if they are current.
{
	grep -vF "${modules[@]/#/-ereplace }" $dir/go.mod
	for module in "${modules[@]}"; do printf '\nreplace %s => ./%s\n' "$module" "$(realpath --relative-to=$dir "$out/$(directory "$module")")"; done
} >"$out/go.mod.new"
cmp -s "$out/go.mod.new" "$out/go.mod" || cp "$out/go.mod.new" "$out/go.mod"
cmp -s $dir/go.sum "$out/go.sum" || cp $dir/go.sum "$out/go.sum"
