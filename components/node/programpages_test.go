package node

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestCleanPages(t *testing.T) {
	const smaps = `00400000-00410000 r-xp 00000000 fe:00 12                    /opt/my program (deleted)
Size:                 64 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00410000-00420000 r-xp 00010000 fe:00 12                    /opt/my program (deleted)
Anonymous:             4 kB
00420000-00430000 r--p 00020000 fe:00 12                    /opt/my program (deleted)
Rss:                   4 kB
Anonymous:             0 kB
00430000-00440000 rw-p 00030000 fe:00 12                    /opt/my program (deleted)
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000000000-7f0000010000 r--s 00000000 fe:00 13            /data/db
Anonymous:             0 kB
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0             [vdso]
Anonymous:             0 kB
`
	got := fmt.Sprintf("%x", cleanPages([]byte(smaps), "/opt/my program (deleted)"))
	if want := "[{400000 410000} {420000 430000}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestDropProgram(t *testing.T) {
	before := fileKiB(t)
	if err := dropProgram(); err != nil {
		t.Fatal(err)
	}
	if after := fileKiB(t); after >= before {
		t.Errorf("%d KiB of files in memory, before %d", after, before)
	}
}

// fileKiB is how much of the process's memory are pages of files.
func fileKiB(t *testing.T) (kib int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "RssFile:")
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
