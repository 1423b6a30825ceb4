#!/bin/bash
# vagrant-box.sh FILE: build a Vagrant box of Debian for libvirt, as root, for vagrant-test.sh. It resembles the public debian/bookworm64:
# user vagrant with Vagrant's own key, sudo, ifupdown. It also has the packages that install.sh would fetch from a network.
# A box built by this version of the script is kept.
set -euo pipefail
file=${1:?usage: vagrant-box.sh FILE}
release=bookworm
packages=systemd,systemd-sysv,udev,dbus,linux-image-cloud-amd64,initramfs-tools,ifupdown,isc-dhcp-client,iproute2,openssh-server,sudo,kmod,procps,curl
packages+=,nftables,netbase,e2fsprogs,ca-certificates

stamp=$(sha256sum <"$0")
if [ -f "$file" ] && [ "$(cat "$file.stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
work=$file.work root=$work/root
rm -rf --one-file-system "$work"
mkdir -p "$work"
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

say() { echo "vagrant-box: $*"; }
say "installing Debian $release into a directory (a minute or two; log: $file.log)"
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $release" 'Label: Debian' | head -n 1)
# In its own mount namespace, so that no mount of debootstrap remains.
unshare --mount debootstrap --variant=minbase --include="$packages" "$release" "$root" ${mirror:+"$mirror"} >"$file.log" 2>&1 || {
	tail -n 3 "$file.log" >&2
	exit 1
}

in_root() { chroot "$root" "$@" >>"$file.log" 2>&1; }
in_root useradd --create-home --shell /bin/bash vagrant
install -d -m 700 "$root/home/vagrant/.ssh"
# When the machine is up, Vagrant replaces this well-known key by a new one.
cp "$(ruby -e 'puts Gem::Specification.find_by_name("vagrant").gem_dir')/keys/vagrant.pub" "$root/home/vagrant/.ssh/authorized_keys"
in_root chown -R vagrant:vagrant /home/vagrant
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/vagrant"
chmod 440 "$root/etc/sudoers.d/vagrant"
echo 'UseDNS no' >"$root/etc/ssh/sshd_config.d/vagrant.conf"
echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
printf 'auto lo\niface lo inet loopback\nallow-hotplug eth0\niface eth0 inet dhcp\n' >"$root/etc/network/interfaces"
echo bookworm >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 bookworm\n' >"$root/etc/hosts"
: >"$root/etc/machine-id" # each machine gets its own
echo 'READY_WITHIN=1800' >"$root/etc/environment" # for install.sh: an emulated processor is slow
in_root systemctl mask apt-daily.timer apt-daily-upgrade.timer systemd-timesyncd.service
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*

say "building the box"
# The machine boots a kernel outside its disk, which then needs no boot loader and no partitions.
cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
cp "$root"/boot/initrd.img-* "$work/initrd.img"
truncate -s 8G "$work/box.raw"
mke2fs -q -F -t ext4 -d "$root" "$work/box.raw"
qemu-img convert -c -o compression_type=zstd -f raw -O qcow2 "$work/box.raw" "$work/box.img"
echo '{"provider": "libvirt", "format": "qcow2", "virtual_size": 8}' >"$work/metadata.json"
cat >"$work/Vagrantfile" <<'VAGRANTFILE'
Vagrant.configure("2") do |config|
  config.vm.provider :libvirt do |v|
    v.kernel, v.initrd = File.join(__dir__, "vmlinuz"), File.join(__dir__, "initrd.img")
    v.cmd_line = "root=/dev/vda rw net.ifnames=0 console=ttyS0 quiet"
  end
end
VAGRANTFILE
tar -C "$work" -cf "$work/box" metadata.json Vagrantfile box.img vmlinuz initrd.img
mv -f "$work/box" "$file"
echo "$stamp" >"$file.stamp"
say "built $file, $(du -h "$file" | cut -f1)"
