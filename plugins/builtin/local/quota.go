package local

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// projects manages the project quotas of a file system, ext4 or XFS. Every file has a project, inherited from its
// directory, and the kernel counts and limits the space of each project's files. Tests have a fake.
type projects interface {
	// enforced returns why the file system of dir does not enforce limits of projects; nil: it does.
	enforced(dir string) error
	// limit limits a project to that many bytes, and to the number of files that a file system of that size would have;
	// 0: no limit.
	limit(dir string, project uint32, size int64) error
	// usage returns the usage and limits of a project.
	usage(dir string, project uint32) (projectUsage, error)
	// assign assigns a directory, and everything created in it later, to a project.
	assign(dir string, project uint32) error
}

type projectUsage struct{ bytes, files, maxBytes, maxFiles int64 }

// firstProject is "KL" and zeros. Project numbers have no owners; the kubelet's and Docker's ranges differ.
const firstProject = 0x4b4c0000

// bytesPerFile limits the number of files of a volume, as mkfs.ext4 does. Otherwise, empty files could use up the
// inodes of the disk.
const bytesPerFile = 16 << 10

// minFiles is the limit of files for small volumes.
const minFiles = 1024

func maxFiles(size int64) int64 { return max(size/bytesPerFile, minFiles) }

// freeProject returns a project that is not in use. The caller holds the store's lock.
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
		// It may still have files of a deleted volume, or other software may use this number.
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

// kernelProjects implements projects by quotactl_fd(2).
type kernelProjects struct{}

// Source: linux/quota.h, linux/dqblk_xfs.h and linux/fs.h; golang.org/x/sys does not have them.
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
	if errors.Is(err, unix.ENOENT) { // XFS has no entry for an empty project
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

// quotactl calls quotactl_fd on the file system of dir. It needs Linux 5.14, but not the path of the device.
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
