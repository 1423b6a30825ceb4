package procstat

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

func TestParse(t *testing.T) {
	const line = "7 (a (b) c) S 3 7 7 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 1 0 4711 1000 5 18446744073709551615\n"
	s, err := Parse(line)
	if err != nil || *s != (Stat{Name: "a (b) c", State: 'S', Parent: 3, CPU: 2.5, Start: 4711}) || s.Ended() {
		t.Errorf("Parse = %+v, %v", s, err)
	}
	for _, bad := range []string{"", "7 a S 3", "7 )a( S 3", "7 (a) S 3 7", "7 (a) S x 7 7 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 1 0 4711 1000"} {
		if s, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", bad, s)
		}
	}
}

func TestRead(t *testing.T) {
	s, err := Read(os.Getpid())
	if err != nil || s.Parent != os.Getppid() || s.Start == 0 || s.Ended() {
		t.Errorf("Read of this process = %+v, %v", s, err)
	}
	if _, err := Read(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read of no process = %v", err)
	}
}
