package kubelith

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/components/controlplane/snapshot"
)

func bar(filled int) string {
	return strings.Repeat("#", filled) + strings.Repeat(" ", 30-filled)
}

// A terminal gets a bar that is drawn ten times a second at most, and is gone at the end; elsewhere there are lines
// when it takes long.
func TestProgress(t *testing.T) {
	for name, c := range map[string]struct {
		terminal bool
		want     string
	}{
		"terminal": {true, "\r\x1b[Ksaving [" + bar(0) + "] 0 KiB of 100 MiB" +
			"\r\x1b[Ksaving [" + bar(15) + "] 50 MiB of 100 MiB" +
			"\r\x1b[Ksaving [" + bar(30) + "] 100 MiB" +
			"\r\x1b[Ktesting [" + bar(30) + "] 50 MiB, starting etcd on it\r\x1b[K"},
		"file": {false, "saving: 50 MiB of 100 MiB\nsaving: 100 MiB of 100 MiB\n"},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(0, 0)
			var out bytes.Buffer
			p := &progress{out: &out, terminal: c.terminal, now: func() time.Time { return now }}
			for _, at := range []struct {
				step  string
				mib   int64
				total int64
				after time.Duration
			}{
				{snapshot.StepSave, 0, 100, 0},
				{snapshot.StepSave, 25, 100, 50 * time.Millisecond},
				{snapshot.StepSave, 50, 100, 11 * time.Second},
				{snapshot.StepSave, 51, 100, time.Millisecond},
				{snapshot.StepSave, 120, 100, 10 * time.Second},
				{snapshot.StepTest, 50, 50, time.Second},
			} {
				now = now.Add(at.after)
				p.at(at.step, at.mib<<20, at.total<<20)
			}
			p.end()
			if out.String() != c.want {
				t.Errorf("got  %q\nwant %q", out.String(), c.want)
			}
		})
	}
}
