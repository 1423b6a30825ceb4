package local

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// projects are the project quotas of a file system. Every file has a project, which files inherit from their directory, and the
// kernel counts and limits what all files of a project take. ext4 and XFS have them. Tests have their own.
type projects interface {
	// enforced reports why the file system of dir does not hold projects to their limits; nil: it does.
	enforced(dir string) error
	// limit a project to that many bytes, and to the files that a file system of that size would have; 0 removes the limit.
	limit(dir string, project uint32, size int64) error
	// usage of a project, and its limits.
	usage(dir string, project uint32) (projectUsage, error)
	// assign a directory, and all that will be in it, to a project.
	assign(dir string, project uint32) error
}

type projectUsage struct{ bytes, files, maxBytes, maxFiles int64 }

// firstProject of ours: "KL" and zeros. Projects are numbers without owners; the kubelet's and Docker's begin elsewhere.
const firstProject = 0x4b4c0000

// bytesPerFile: a volume may have a file for so many of its bytes, as a file system that mkfs.ext4 makes. Without that limit, empty
// files would take the inodes of the whole disk.
const bytesPerFile = 16 << 10

// minFiles that even a small volume may have.
const minFiles = 1024

func maxFiles(size int64) int64 { return max(size/bytesPerFile, minFiles) }

// freeProject that neither a volume nor anybody else has. The caller holds the store's lock.
func (s *store) freeProject() (uint32, error) {
	volumes, err := s.list()
	if err != nil {
		return 0, err
	}
	taken := map[uint32]bool{}
	for _, v := range volumes {
		taken[v.Project] = true
	}
	for p := uint32(firstProject); p < firstProject+1<<16; p++ {
		if taken[p] {
			continue
		}
		// Files of a deleted volume may still be there, and somebody else may have chosen this number.
		u, err := s.projects.usage(s.dir, p)
		if err != nil {
			return 0, err
		}
		if u == (projectUsage{}) {
			return p, nil
		}
	}
	return 0, errors.New("no free project for a quota: all 65536 are in use")
}

// kernelProjects are those of the kernel, by quotactl_fd(2).
type kernelProjects struct{}

// Of linux/quota.h, linux/dqblk_xfs.h and linux/fs.h; golang.org/x/sys has none of them.
const (
	prjQuota       = 2
	qGetQuota      = 0x800007
	qSetQuota      = 0x800008
	qXGetQStatV    = 'X'<<8 + 8
	quotaEnforced  = 1 << 5 // FS_QUOTA_PDQ_ENFD
	quotaBlock     = 1024   // the unit of limits, whatever the file system's is
	qifSpaceLimit  = 1
	qifFileLimit   = 4
	fsGetAttr      = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetAttr      = 0x401c5820 // FS_IOC_FSSETXATTR
	flagProjectAll = 0x200      // FS_XFLAG_PROJINHERIT
)

// quotaLimits is struct if_dqblk.
type quotaLimits struct {
	hardBlocks, softBlocks, space, hardFiles, softFiles, files, blockTime, fileTime uint64
	valid                                                                           uint32
	_                                                                               uint32
}

// quotaState is struct fs_quota_statv.
type quotaState struct {
	version int8
	_       uint8
	flags   uint16
	_       [156]byte
}

// fileAttributes is struct fsxattr.
type fileAttributes struct {
	flags, extentSize, extents, project, copyExtentSize uint32
	_                                                   [8]byte
}

func (kernelProjects) enforced(dir string) error {
	state := quotaState{version: 1}
	err := quotactl(dir, qXGetQStatV, 0, unsafe.Pointer(&state))
	if err != nil || state.flags&quotaEnforced == 0 {
		return fmt.Errorf("%s is not on an ext4 or XFS mounted with prjquota", dir)
	}
	return nil
}

func (kernelProjects) limit(dir string, project uint32, size int64) error {
	l := quotaLimits{valid: qifSpaceLimit | qifFileLimit}
	if size > 0 {
		l.hardBlocks, l.hardFiles = uint64((size+quotaBlock-1)/quotaBlock), uint64(maxFiles(size))
	}
	if err := quotactl(dir, qSetQuota, project, unsafe.Pointer(&l)); err != nil {
		return fmt.Errorf("set the quota of project %d on %s: %w", project, dir, err)
	}
	return nil
}

func (kernelProjects) usage(dir string, project uint32) (projectUsage, error) {
	var l quotaLimits
	err := quotactl(dir, qGetQuota, project, unsafe.Pointer(&l))
	if errors.Is(err, unix.ENOENT) { // XFS knows no project that has nothing
		return projectUsage{}, nil
	}
	if err != nil {
		return projectUsage{}, fmt.Errorf("read the quota of project %d on %s: %w", project, dir, err)
	}
	return projectUsage{
		bytes: int64(l.space), files: int64(l.files), maxBytes: int64(l.hardBlocks) * quotaBlock, maxFiles: int64(l.hardFiles),
	}, nil
}

func (kernelProjects) assign(dir string, project uint32) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var a fileAttributes
	err = ioctl(f, fsGetAttr, unsafe.Pointer(&a))
	if err == nil {
		a.project, a.flags = project, a.flags|flagProjectAll
		err = ioctl(f, fsSetAttr, unsafe.Pointer(&a))
	}
	if err != nil {
		return fmt.Errorf("assign %s to project %d: %w", dir, project, err)
	}
	return nil
}

// quotactl on the file system of dir. The call by file needs Linux 5.14, and no path of the device.
func quotactl(dir string, command int, id uint32, addr unsafe.Pointer) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(command<<8|prjQuota), uintptr(id), uintptr(addr), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
