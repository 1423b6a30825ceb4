package local

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// images make and check file systems in files. Tests have their own.
type images interface {
	// usable reports why this node has no file systems in files; nil: it has.
	usable() error
	// format makes a file with a file system that has room for size bytes.
	format(ctx context.Context, path string, size int64) error
}

// What mkfs.ext4 is told. Blocks of one size whatever the volume's, so that it can grow; an inode for each 16 KiB as by default.
const (
	imageBlock  = 4096
	inodeSize   = 256
	groupBlocks = 8 * imageBlock // that one block's bits stand for
	lastBlocks  = 1024           // the last group needs room for its own tables: never a smaller one
	// journalBlocks is the smallest file system that mkfs.ext4 gives a journal of 4 MiB, with some room.
	journalBlocks = 3072
)

// journalSize in bytes. It stays when the file system grows.
func journalSize(size int64) int64 { return min(max(size/64>>20<<20, 4<<20), 256<<20) }

// imageSize in bytes of a file system with room for size bytes: the claim gets what it asks for, as it does with a quota. On top come
// the journal, inodes, bitmaps, tables of groups, and what ext4 keeps back for itself.
func imageSize(size int64) int64 {
	all := size + journalSize(size) + 1<<20
	all += all/bytesPerFile*inodeSize + all/groupBlocks*2
	all += groupTables(all) + all>>11 // groups are rounded up
	all += min(all/49, 16<<20)        // 2 % of the whole, at most 4096 blocks
	blocks := max((all+imageBlock-1)/imageBlock, journalBlocks)
	if last := blocks % groupBlocks; last > 0 && last < lastBlocks {
		blocks += lastBlocks - last
	}
	return blocks * imageBlock
}

// groupTables is what the copies of the table of groups take in a file system of that size, with space to grow to 1024 times as many
// groups, at most a block of pointers to such space. Copies are in groups 0 and 1 and in those that are powers of 3, 5 and 7.
func groupTables(size int64) int64 {
	const descriptor = 64
	groups := size/(groupBlocks*imageBlock) + 1
	table := (groups*descriptor + imageBlock - 1) / imageBlock
	reserved := min(groups*1024*descriptor/imageBlock, imageBlock/4)
	copies := int64(2)
	for _, base := range []int64{3, 5, 7} {
		for n := base; n < groups; n *= base {
			copies++
		}
	}
	return copies * (table + reserved) * imageBlock
}

// largestWithin is the size of the largest volume whose image is no larger than free.
func largestWithin(free int64) int64 {
	low, high := int64(0), free
	for low < high {
		middle := low + (high-low+1)/2
		if imageSize(middle) <= free {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// ext4 by the programs of e2fsprogs.
type ext4 struct {
	// grows: the kernel lets this process grow a file system that is mounted. Without that one is made larger than asked for,
	// and what is too much is held back.
	grows bool
}

// headroom of a file system that cannot grow while it is mounted: so many times its size, but no more than maxHeadroom bytes.
const (
	headroom    = 16
	maxHeadroom = 1 << 40
)

// newExt4 for this process.
func newExt4() ext4 {
	var sets [2]unix.CapUserData // bits 0-31 and 32-63
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0])
	return ext4{grows: err == nil && sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0}
}

func (ext4) usable() error {
	for _, program := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: install e2fsprogs", program)
		}
	}
	if _, err := os.Stat(loopControl); err != nil {
		return errors.New("there are no loop devices: `modprobe loop`")
	}
	return nil
}

func (e ext4) format(ctx context.Context, path string, size int64) error {
	formatted := size
	if !e.grows {
		formatted = max(size, min(headroom*size, maxHeadroom))
	}
	if err := resizeImage(path, imageSize(formatted)); err != nil {
		return err
	}
	// Lazy: a new file reads as zeros, and stays small when nobody writes them. No reserve for root: pods have root too.
	return run(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-b", fmt.Sprint(imageBlock), "-I", fmt.Sprint(inodeSize), "-i", fmt.Sprint(bytesPerFile),
		"-J", fmt.Sprintf("size=%d", journalSize(size)>>20), "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", path)
}

// repair what an earlier mount left; the kernel itself replays the journal. A clean file system is only looked at.
func repair(ctx context.Context, image string, how ...string) error {
	err := run(ctx, "e2fsck", append(how, "-p", image)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() < 4 { // corrected
		return nil
	}
	if err != nil {
		return fmt.Errorf("the file system needs repair by hand, `e2fsck %s`: %w", image, err)
	}
	return nil
}

// growUnmounted makes the file system as large as its image. An interrupted resize2fs is what a file system must
// not see, so nobody's deadline ends it.
func growUnmounted(ctx context.Context, image string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	if err := repair(ctx, image, "-f"); err != nil {
		return err
	}
	return run(ctx, "resize2fs", image)
}

// resizeFS is EXT4_IOC_RESIZE_FS.
const resizeFS = 0x40086610

// fit the file system that is mounted at a path to a volume's size, while pods write to it: it grows where it is too small, and
// what it has too much is held back. Growing takes CAP_SYS_RESOURCE, else the error is EPERM.
func fit(path, device string, size int64) error {
	now, err := fileSystemSize(device)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if want := imageSize(size); now < want {
		blocks := uint64(want / imageBlock)
		if err := ioctl(f, resizeFS, unsafe.Pointer(&blocks)); err != nil {
			return fmt.Errorf("grow the file system at %s: %w", path, err)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return err
	}
	return holdBack(filepath.Base(device), int64(fs.Blocks), size)
}

// ownBlocks are for what a volume has besides its pods' files: the root directory, lost+found.
const ownBlocks = 16

// holdBack what a file system of so many blocks has besides a volume's size. It is a setting of the mounted file system that no
// process gets past, not even root; df tells it from what is used and what is available.
func holdBack(device string, blocks, size int64) error {
	spare := blocks - (size+imageBlock-1)/imageBlock - ownBlocks
	least := min(blocks/50, 4096) // the kernel's own choice, for what it must not fail at
	path := filepath.Join("/sys/fs/ext4", device, "reserved_clusters")
	return os.WriteFile(path, fmt.Append(nil, max(spare, least)), 0)
}

// fileSystemSize in bytes, by the superblock of an ext4.
func fileSystemSize(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	super := make([]byte, 1024)
	if _, err := f.ReadAt(super, 1024); err != nil {
		return 0, err
	}
	if binary.LittleEndian.Uint16(super[0x38:]) != unix.EXT4_SUPER_MAGIC {
		return 0, fmt.Errorf("%s has no ext4", device)
	}
	blocks := uint64(binary.LittleEndian.Uint32(super[0x4:]))
	if binary.LittleEndian.Uint32(super[0x60:])&0x80 != 0 { // 64bit
		blocks |= uint64(binary.LittleEndian.Uint32(super[0x150:])) << 32
	}
	return int64(blocks) << (10 + binary.LittleEndian.Uint32(super[0x18:])), nil
}

// run a program; its error has the last line that it wrote.
func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(lines[len(lines)-1]))
}
