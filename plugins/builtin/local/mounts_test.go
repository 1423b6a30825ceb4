package local

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseMounts(t *testing.T) {
	all, err := parseMounts(strings.NewReader(
		`36 35 98:0 /var/lib/volumes/v/data /pods/a\040b ro,noatime shared:1 master:2 - ext4 /dev/root rw,errors=continue
37 35 0:5 /loop3 /pods/c rw - devtmpfs udev rw
38 35 0:5 / /pods/c rw,nosuid - tmpfs none rw
`))
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	if m, ok := mountAt(all, "/pods/a b"); !ok || !m.ro || m.fstype != "ext4" || m.root != "/var/lib/volumes/v/data" {
		t.Errorf("%+v", m)
	}
	if m, ok := mountAt(all, "/pods/c"); !ok || m.fstype != "tmpfs" || m.ro {
		t.Errorf("not what is on top: %+v", m)
	}
	if _, ok := mountAt(all, "/pods"); ok {
		t.Error("nothing is mounted there")
	}
	if _, err := parseMounts(strings.NewReader("36 35 98:0 / /\n")); err == nil {
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
