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

// images creates and checks file systems in files. Tests have a fake.
type images interface {
	// usable returns why this node cannot have file systems in files; nil: it can.
	usable() error
	// format creates a file with a file system that has room for size bytes.
	format(ctx context.Context, path string, size int64) error
}

// Parameters of mkfs.ext4. The block size does not depend on the volume's size, so that it can grow; one inode per 16
// KiB is the default.
const (
	imageBlock  = 4096
	inodeSize   = 256
	groupBlocks = 8 * imageBlock // one bit per block
	lastBlocks  = 1024           // the last group needs room for its own tables: never a smaller one
	// journalBlocks is the smallest file system that mkfs.ext4 gives a journal of 4 MiB, with some room.
	journalBlocks = 3072
)

// journalSize in bytes. It stays when the file system grows.
func journalSize(size int64) int64 { return min(max(size/64>>20<<20, 4<<20), 256<<20) }

// imageSize returns the size in bytes of a file system with room for size bytes, so that the claim gets all that it
// requests, as with a quota. It adds the journal, inodes, bitmaps, group tables, and ext4's reserve.
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

// groupTables returns the size of all copies of the group table in a file system of that size, with room to grow to
// 1024 times as many groups, limited to one block of pointers. Copies are in groups 0 and 1 and those whose number is a
// power of 3, 5 or 7.
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

// largestWithin returns the size of the largest volume whose image fits into free.
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

// ext4 implements images with the programs of e2fsprogs.
type ext4 struct {
	// grows: this process may grow a mounted file system. Otherwise file systems are created larger than requested, and
	// the rest is reserved.
	grows bool
}

// headroom is how many times larger to create a file system that cannot grow while it is mounted, but at most by
// maxHeadroom bytes.
const (
	headroom    = 16
	maxHeadroom = 1 << 40
)

// newExt4 returns what this process may do.
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
	// Lazy: a new file reads as zeros, and stays small if they are not written. No reserve for root: pods run as root
	// too.
	return run(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-b", fmt.Sprint(imageBlock), "-I", fmt.Sprint(inodeSize), "-i", fmt.Sprint(bytesPerFile),
		"-J", fmt.Sprintf("size=%d", journalSize(size)>>20), "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", path)
}

// repair repairs a file system that was not unmounted cleanly; the kernel replays the journal. It does not change a
// clean file system. It ignores deadlines: a whole check may take longer than the kubelet waits, whose next call waits
// for the volume.
func repair(ctx context.Context, image string, how ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
	defer cancel()
	err := run(ctx, "e2fsck", append(how, "-p", image)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() && exit.ExitCode() < 4 { // corrected
		return nil
	}
	if err != nil {
		return fmt.Errorf("the file system needs manual repair with `e2fsck %s`: %w", image, err)
	}
	return nil
}

// growUnmounted grows the file system to the size of its image. It ignores deadlines, as interrupting resize2fs can
// damage the file system.
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

// fit adapts a mounted file system to a volume's size while pods write to it: it grows a smaller one and reserves what
// a larger one has too much. Growing needs CAP_SYS_RESOURCE; the error is EPERM without.
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

// ownBlocks are for the root directory and lost+found.
const ownBlocks = 16

// holdBack reserves the blocks of a mounted file system that exceed a volume's size. Not even root can use the reserve;
// df counts it as neither used nor available.
func holdBack(device string, blocks, size int64) error {
	spare := blocks - (size+imageBlock-1)/imageBlock - ownBlocks
	least := min(blocks/50, 4096) // the kernel's default, for operations that must not fail
	path := filepath.Join("/sys/fs/ext4", device, "reserved_clusters")
	return os.WriteFile(path, fmt.Append(nil, max(spare, least)), 0)
}

// fileSystemSize returns the size of an ext4 in bytes, from its superblock.
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
		return 0, fmt.Errorf("%s is not an ext4", device)
	}
	blocks := uint64(binary.LittleEndian.Uint32(super[0x4:]))
	if binary.LittleEndian.Uint32(super[0x60:])&0x80 != 0 { // 64bit
		blocks |= uint64(binary.LittleEndian.Uint32(super[0x150:])) << 32
	}
	return int64(blocks) << (10 + binary.LittleEndian.Uint32(super[0x18:])), nil
}

// run runs a program. The error has the last line of its output.
func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(lines[len(lines)-1]))
}
