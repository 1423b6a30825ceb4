package memory

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestCleanPages(t *testing.T) {
	const smaps = `00400000-00410000 r-xp 00000000 fe:00 12      /opt/my program (deleted)
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
00410000-00420000 r-xp 00000000 fe:00 12      /opt/my program (deleted)
Rss:                   4 kB
Anonymous:             4 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
00420000-00430000 r--p 00000000 fe:00 12      /opt/my program (deleted)
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
00430000-00440000 r--p 00000000 fe:00 12      /opt/my program (deleted)
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  4 kB
VmFlags: rd ex mr mw me
00440000-00450000 rw-p 00000000 fe:00 12      /opt/my program (deleted)
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
c000000000-c000400000 rw-p 00000000 fe:00 12
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000010000 r--s 00000000 fe:00 12      /data/db
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
7ffc00000000-7ffc00001000 r-xp 00000000 fe:00 12      [vdso]
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
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

// fileKiB is how much of the process's memory are pages of files, those on a tmpfs too.
func fileKiB(t *testing.T) (kib int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"RssFile:", "RssShmem:"} {
		var n int
		_, after, _ := strings.Cut(string(status), field)
		if _, err := fmt.Sscan(after, &n); err != nil {
			t.Fatal(err)
		}
		kib += n
	}
	return kib
}
