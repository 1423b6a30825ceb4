package kubelith

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/components/controlplane/encryption"
)

// TestPrintEncryption: an administrator sees each server's key, the Secrets of each key, and what a rotation waits for.
func TestPrintEncryption(t *testing.T) {
	v := &encryption.View{
		Rotation: encryption.State{Key: "new", Phase: "rewrite"}, Doing: "the Secrets are re-encrypted", Waiting: "server b: disk full",
		Secrets: map[string]int{"new": 3, "old": 2, "": 1},
		Servers: []encryption.ServerView{
			{Name: "a", Report: encryption.Report{Writes: "new", Reads: []string{"new", "old"}}},
			{Name: "b", Report: encryption.Report{Writes: "new", Problem: "disk full"}},
			{},
		},
	}
	var out bytes.Buffer
	if err := printEncryption(&out, v); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a        new             new,old         -\n", "b        new             -               disk full\n", "(plain text)   1",
		"Rotation to new: the Secrets are re-encrypted; 3 of 6 Secrets are encrypted with it. Waiting for server b: disk full.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if got := progressOf(&encryption.View{}); got != "The key has not been rotated yet." {
		t.Error(got)
	}
	done := encryption.State{Key: "new", Phase: "done", Finished: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	if got := progressOf(&encryption.View{Rotation: done}); got != "The last rotation, to new, ended at 2030-01-01T00:00:00Z." {
		t.Error(got)
	}
}
