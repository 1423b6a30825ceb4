package local

import (
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func TestMountAt(t *testing.T) {
	all, err := mountinfo.GetMountsFromReader(strings.NewReader(
		`36 35 98:0 /var/lib/volumes/v/data /pods/a\040b ro,noatime shared:1 master:2 - ext4 /dev/root rw,errors=continue
37 35 0:5 /loop3 /pods/c rw - devtmpfs udev rw
38 35 0:5 / /pods/c rw,nosuid - tmpfs none rw
`), nil)
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	if m := mountAt(all, "/pods/a b"); m == nil || !readOnly(m) || m.FSType != "ext4" || m.Root != "/var/lib/volumes/v/data" {
		t.Errorf("%+v", m)
	}
	if m := mountAt(all, "/pods/c"); m == nil || m.FSType != "tmpfs" || readOnly(m) {
		t.Errorf("not what is on top: %+v", m)
	}
	if mountAt(all, "/pods") != nil {
		t.Error("nothing is mounted there")
	}
	if _, err := mountinfo.GetMountsFromReader(strings.NewReader("36 35 98:0 / /\n"), nil); err == nil {
		t.Error("a line without a type")
	}
}

func TestFlags(t *testing.T) {
	if f, err := flagsOf([]string{"noexec", "noatime"}, true); err != nil || f != unix.MS_NOEXEC|unix.MS_NOATIME|unix.MS_RDONLY {
		t.Errorf("%x, %v", f, err)
	}
	if _, err := flagsOf([]string{"discard"}, false); err == nil || !strings.Contains(err.Error(), "discard") {
		t.Error(err)
	}
}
