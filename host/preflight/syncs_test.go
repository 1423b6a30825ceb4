package preflight

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSyncs: the disk is measured on request only, as etcd will use it; a slow one is a warning, and does not delay for
// long.
func TestSyncs(t *testing.T) {
	always := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	sometimes := func(d time.Duration, slow int) func(int) time.Duration {
		return func(n int) time.Duration {
			if n < slow {
				return d
			}
			return 2 * time.Millisecond
		}
	}
	for name, c := range map[string]struct {
		took   func(n int) time.Duration // of each sync
		fails  error
		writes int
		want   Status
		text   string
	}{
		"fast":              {always(1234 * time.Microsecond), nil, 100, OK, "disk: 99 of 100 syncs in /var/lib take 1.23ms or less"},
		"as recommended":    {always(10 * time.Millisecond), nil, 100, OK, "take 10ms or less"},
		"slower":            {always(11 * time.Millisecond), nil, 100, Warn, "disk: 99 of 100 syncs in /var/lib take up to 11ms, and each write to the API waits for one; etcd recommends 10ms at most: put --data-dir on a faster disk"},
		"one slow sync":     {sometimes(time.Second, 1), nil, 100, OK, "take 2ms or less"},
		"two slow syncs":    {sometimes(time.Second, 2), nil, 100, Warn, "take up to 1s"},
		"seconds for each":  {always(2 * time.Second), nil, 2, Warn, "take up to 2s"},
		"one takes forever": {always(time.Minute), nil, 1, Warn, "take up to 1m0s"},
		"full":              {always(0), unix.ENOSPC, 1, Warn, "cannot be measured in /var/lib: no space left on device: mount it writable and free some space"},
	} {
		t.Run(name, func(t *testing.T) {
			h, p := goodHost(t)
			h.Write("/var/lib/other", "")
			now, writes, ended := time.Unix(2000, 0), 0, 0
			p.clock = func() time.Time { return now }
			p.syncs = func(string) (func() error, func(), error) {
				return func() error {
					now = now.Add(c.took(writes))
					writes++
					return c.fails
				}, func() { ended++ }, nil
			}
			results := check(Options{DataDir: "/var/lib/kubelith", NodeName: "one", Syncs: true}, p)
			last := results[len(results)-1]
			if last.Status != c.want || !strings.Contains(last.Problem(), c.text) || strings.Contains(last.Problem(), "\n") {
				t.Errorf("got %s, want %s with %q", last, c.want, c.text)
			}
			if writes != c.writes || ended != 1 {
				t.Errorf("%d writes, closed %d times, want %d and once", writes, ended, c.writes)
			}
		})
	}

	h, p := goodHost(t)
	h.Write("/var/lib/kubelith/server/db/member/snap/db", "")
	var at []string
	p.syncs = func(dir string) (func() error, func(), error) {
		at = append(at, dir)
		return nil, nil, errors.New("not here")
	}
	for _, syncs := range []bool{false, true} { // a start does not measure
		check(Options{DataDir: "/var/lib/kubelith", NodeName: "one", Syncs: syncs}, p)
	}
	if len(at) != 1 || at[0] != "/var/lib/kubelith/server/db" {
		t.Errorf("measured in %q", at)
	}
}

// TestSyncedFile: each write takes the time of a sync, and the file has no name.
func TestSyncedFile(t *testing.T) {
	dir := t.TempDir()
	write, end, err := syncedFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := write(); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the directory has %v, %v", left, err)
	}
	end()
	if err := write(); err == nil {
		t.Error("it writes to a closed file")
	}
	if _, _, err := syncedFile(filepath.Join(dir, "none")); err == nil {
		t.Error("no error without a directory")
	}
}
