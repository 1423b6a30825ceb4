package etcd

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// newData creates a directory as etcd does, with some hundred pages and the given applied index.
func newData(t *testing.T, applied uint64) (dir, db, wal string) {
	t.Helper()
	dir = t.TempDir()
	db, wal = filepath.Join(dir, "member", "snap", "db"), filepath.Join(dir, "member", "wal", "0.wal")
	for _, f := range []string{db, wal} {
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(wal, []byte("log"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := bolt.Open(db, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	err = b.Update(func(tx *bolt.Tx) error {
		keys, err := tx.CreateBucket([]byte("key"))
		if err != nil {
			return err
		}
		for i := range 300 {
			if err := keys.Put(fmt.Appendf(nil, "%05d", i), make([]byte, 3000)); err != nil {
				return err
			}
		}
		meta, err := tx.CreateBucket([]byte("meta"))
		if err != nil {
			return err
		}
		return meta.Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, applied))
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir, db, wal
}

func TestVerify(t *testing.T) {
	overwrite := func(offset int64, n int) func(string, string) error {
		return func(db, _ string) error {
			f, err := os.OpenFile(db, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte(strings.Repeat("\xa5", n)), offset)
			return err
		}
	}
	for name, tc := range map[string]struct {
		applied uint64
		damage  func(db, wal string) error
		want    string
	}{
		"good":                {applied: 7, damage: func(string, string) error { return nil }},
		"no data":             {applied: 7, damage: func(db, _ string) error { return os.Remove(db) }},
		"empty file":          {applied: 7, damage: func(db, _ string) error { return os.Truncate(db, 0) }},
		"first start stopped": {damage: func(_, wal string) error { return os.Remove(wal) }},
		"log lost":            {applied: 7, damage: func(_, wal string) error { return os.Remove(wal) }, want: "no *.wal file"},
		"cut":                 {applied: 7, damage: func(db, _ string) error { return os.Truncate(db, 9000) }, want: "invalid database"},
		"cut at the end":      {applied: 7, damage: func(db, _ string) error { return os.Truncate(db, 500_000) }, want: "invalid database"},
		"head is garbage":     {applied: 7, damage: overwrite(0, 16<<10), want: "invalid database"},
		"middle is garbage":   {applied: 7, damage: overwrite(200<<10, 64<<10), want: "invalid database"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, db, wal := newData(t, tc.applied)
			if err := tc.damage(db, wal); err != nil {
				t.Fatal(err)
			}
			err := verify(dir)
			switch {
			case tc.want == "" && err != nil:
				t.Fatal(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Fatalf("error %v, want one with %q", err, tc.want)
			case err != nil && strings.Contains(err.Error(), "\n"):
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestBegun(t *testing.T) {
	for what, c := range map[string]struct {
		applied  uint64
		log, new bool
		want     bool
	}{
		"nothing":                  {new: true},
		"a log and data":           {applied: 7, log: true, want: true},
		"a log without data":       {log: true, want: true},
		"an interrupted bootstrap": {},
		"data whose log is lost":   {applied: 7, want: true},
	} {
		dir, _, wal := newData(t, c.applied)
		if !c.log {
			if err := os.Remove(wal); err != nil {
				t.Fatal(err)
			}
		}
		if c.new {
			dir = t.TempDir()
		}
		if got := Begun(dir); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	if dir, db, wal := newData(t, 7); os.Remove(wal) != nil || os.WriteFile(db, []byte("damaged"), 0o600) != nil || !Begun(dir) {
		t.Error("a damaged database counts as none, and would be moved away")
	}
}
