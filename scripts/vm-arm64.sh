#!/bin/bash
# vm-arm64.sh: the program that vm-test.sh takes as VM, with arm64 machines, emulated on any other host:
#
#   BIN=dist/kubelith-arm64 scripts/vm-test.sh scripts/vm-arm64.sh
#
#   vm-arm64.sh image             make the disk that all machines start from: Debian, in five minutes
#   vm-arm64.sh start NAME [MiB]  start a machine, and wait until it answers; its disk is kept until rm
#   vm-arm64.sh ssh NAME COMMAND...
#   vm-arm64.sh put NAME FILE... DIRECTORY
#   vm-arm64.sh stop NAME         power off       vm-arm64.sh kill NAME   pull the plug
#   vm-arm64.sh rm NAME           pull the plug, and remove the disk
#
# Needs root. WORK is where images and disks are (.cache/vm-arm64). Each machine is in a network namespace of its own
# and reaches nothing else. `image` has the kernel execute arm64 programs by qemu (binfmt_misc) until it is done.
set -euo pipefail
WORK=${WORK:-$(dirname "$0")/../.cache/vm-arm64}
mkdir -p "$WORK"
WORK=$(readlink -f "$WORK")
name=${2:-}
dir=$WORK/machines/$name
space=kubelith-arm64-$name

die() {
	echo "vm-arm64: $*" >&2
	exit 1
}
usage() {
	sed -n '/^#   vm-arm64/s/^# *//p' "$0" >&2
	exit 2
}
inside() { ip netns exec "$space" "$@"; }
runs() { [ -f "$dir/pid" ] && kill -0 "$(cat "$dir/pid")" 2>/dev/null; }
ssh_options=(-q -i "$WORK/key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20)
guest() { inside ssh "${ssh_options[@]}" -p 2222 root@127.0.0.1 "$@"; }

packages=systemd,systemd-sysv,udev,dbus,linux-image-cloud-arm64,initramfs-tools,openssh-server,kmod,nftables,conntrack,iproute2,util-linux,procps,curl,perl,ca-certificates

install_tools() {
	local program
	for program in debootstrap qemu-system-aarch64 qemu-aarch64-static qemu-img mke2fs ssh-keygen; do
		command -v "$program" >/dev/null && continue
		apt-get update -qq
		apt-get install -y -qq --no-install-recommends debootstrap qemu-system-arm qemu-user-static qemu-utils e2fsprogs openssh-client ipxe-qemu >/dev/null
		return
	done
}

# emulate COMMAND...: run a command while the kernel executes arm64 programs by qemu. F: the kernel opens qemu now, so that
# it is found in another root directory.
emulate() {
	local formats=/proc/sys/fs/binfmt_misc format=kubelith-arm64 status=0
	[ -e $formats/register ] || mount -t binfmt_misc none $formats
	[ -e $formats/$format ] || echo ":$format:M::\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00:\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:$(command -v qemu-aarch64-static):F" >$formats/register
	"$@" || status=$?
	echo -1 >$formats/$format
	return $status
}

image() {
	[ ! -e "$WORK/base.img" ] || return 0
	install_tools
	[ -f "$WORK/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$WORK/key"
	local root=$WORK/root mirror
	mirror=$(apt-cache policy nftables | grep -oE 'https?://[^ ]+' | grep -v security | head -n 1)
	rm -rf "$root"
	emulate populate "$root" "$mirror" >"$WORK/image.log" 2>&1 || die "no image: see $WORK/image.log"
	cp "$root"/boot/vmlinuz-* "$WORK/vmlinuz"
	cp "$root"/boot/initrd.img-* "$WORK/initrd"
	truncate -s 12G "$WORK/base.new"
	mke2fs -q -F -t ext4 -d "$root" "$WORK/base.new"
	rm -rf "$root"
	mv "$WORK/base.new" "$WORK/base.img"
}

# populate ROOT MIRROR
populate() {
	local root=$1
	debootstrap --arch=arm64 --variant=minbase --include="$packages" bookworm "$root" "$2" || return
	echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
	echo kubelith-arm64 >"$root/etc/hostname"
	echo '127.0.0.1 localhost kubelith-arm64' >"$root/etc/hosts"
	printf '[Match]\nName=eth0\n[Network]\nDHCP=yes\n' >"$root/etc/systemd/network/10-eth0.network"
	install -d -m 700 "$root/root/.ssh"
	cp "$WORK/key.pub" "$root/root/.ssh/authorized_keys"
	chroot "$root" systemctl enable systemd-networkd ssh &&
		chroot "$root" systemctl mask systemd-timesyncd apt-daily.timer apt-daily-upgrade.timer
}

start() {
	image
	runs && die "$name is running"
	mkdir -p "$dir"
	[ -e "$dir/disk.qcow2" ] || qemu-img create -q -f qcow2 -b "$WORK/base.img" -F raw "$dir/disk.qcow2"
	ip netns add "$space" 2>/dev/null || true
	inside ip link set lo up
	ip netns exec "$space" setsid qemu-system-aarch64 -M virt -cpu cortex-a72 -accel tcg,thread=multi,tb-size=512 -smp 2 -m "${1:-3072}" \
		-display none -serial "file:$dir/console" -no-reboot -device virtio-rng-pci \
		-drive "file=$dir/disk.qcow2,if=virtio,cache=writeback" \
		-netdev 'user,id=net,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:2222-:22' -device virtio-net-pci,netdev=net,romfile= \
		-kernel "$WORK/vmlinuz" -initrd "$WORK/initrd" -append 'root=/dev/vda rw console=ttyAMA0 quiet net.ifnames=0' \
		</dev/null >"$dir/qemu.log" 2>&1 &
	echo $! >"$dir/pid"
	for _ in $(seq 120); do
		runs || die "qemu has ended: $(tail -n 1 "$dir/qemu.log")"
		guest true 2>/dev/null && return
		sleep 2
	done
	die "$name does not answer: see $dir/console"
}

pull() { ! runs || kill -9 "$(cat "$dir/pid")"; }

[ -n "$name" ] || [ "${1:-}" = image ] || usage
case ${1:-} in
image) image ;;
start) start "${3:-}" ;;
ssh) guest "${@:3}" ;;
put) inside scp "${ssh_options[@]}" -P 2222 -r "${@:3:$#-3}" "root@127.0.0.1:${*: -1}" ;;
stop)
	guest systemctl poweroff || true
	for _ in $(seq 60); do
		runs || exit 0
		sleep 2
	done
	pull
	;;
kill) pull ;;
rm)
	pull
	rm -rf "$dir"
	ip netns del "$space" 2>/dev/null || true
	;;
*) usage ;;
esac
