package memory

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dropProgram takes the pages of this program out of the process's memory: the initialisation of its packages reads
// most of them, and the running process needs few of those again. The kernel keeps them in its cache as long as it has
// room, and maps one that is needed with its neighbours by a page fault.
func dropProgram() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	for _, p := range cleanPages(smaps, program) {
		// Nothing is lost: the kernel reads these pages from the file again (madvise(2), MADV_DONTNEED).
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, p.start, p.end-p.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise %x-%x: %w", p.start, p.end, errno)
		}
	}
	return nil
}

type pageRange struct{ start, end uintptr }

// cleanPages returns the mappings of a file that the process can only read, and of which no page differs from the file,
// in memory or in swap space (a debugger's breakpoints do). smaps has the format of proc_pid_smaps(5).
func cleanPages(smaps []byte, file string) (found []pageRange) {
	var of *pageRange // the mapping that the current line describes, unless it may differ
	for line := range bytes.Lines(smaps) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] != "0":
			of = nil
		case len(fields) == 3 && fields[0] == "Swap:" && fields[1] == "0" && of != nil:
			found = append(found, *of)
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"):
			of = nil
			start, end, _ := strings.Cut(fields[0], "-")
			from, err1 := strconv.ParseUint(start, 16, strconv.IntSize)
			to, err2 := strconv.ParseUint(end, 16, strconv.IntSize)
			if err1 == nil && err2 == nil && !strings.Contains(fields[1], "w") && strings.Join(fields[5:], " ") == file {
				of = &pageRange{uintptr(from), uintptr(to)}
			}
		}
	}
	return found
}
